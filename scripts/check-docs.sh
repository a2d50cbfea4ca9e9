#!/usr/bin/env bash
# Checks what documents say about files: every file that ARCHITECTURE.md, WORDS.md and
# CONTRIBUTING.md name exists, every type that WORDS.md names is in its crate, and every relative
# link leads somewhere. It also holds README and ARCHITECTURE to their greatest length. Reads files
# only. Exits with 1 if anything is wrong, after naming all of it.
# The backquotes in patterns are Markdown's.
# shellcheck disable=SC2016
set -euo pipefail
cd "$(dirname "$0")/.."

faults=0
fault() {
    echo "$*" >&2
    faults=$((faults + 1))
}

# What git knows, and what is new and not ignored.
files=$(git ls-files --cached --others --exclude-standard)

# A path counts from the root, or it is the end of a file's path: `ring.h` is
# crates/capture/bpf/ring.h. A name with one of the endings below is a path as well.
for document in docs/ARCHITECTURE.md docs/WORDS.md CONTRIBUTING.md; do
    while read -r name; do
        case $name in
        crates/* | docs/* | lab/* | scripts/* | fuzz/* | .ci/*) [[ -e $name ]] && continue ;;
        *.rs | *.h | *.c | *.py | *.sh | *.md) ;;
        *) continue ;;
        esac
        grep -qE "(^|/)${name//./\\.}\$" <<<"$files" || fault "$document: $name is not there"
    done < <(grep -oE '`[A-Za-z0-9_./-]+`' "$document" | tr -d '`' | sort -u)
done

# In the last column of WORDS.md: `crate`: `Type`, `Type`. The macro of the list of counters makes
# structs of `Type at [...]`.
while IFS=: read -r crate types; do
    for type in ${types//,/ }; do
        name=${type##*::}
        grep -rqE "\b(struct|enum|trait|type|mod) $name\b|^ +$name at \[" "crates/$crate/src" ||
            fault "docs/WORDS.md: the crate $crate has no $type"
    done
done < <(grep -oE '`[a-z/]+`: `[A-Za-z:]+`(, `[A-Za-z:]+`)*' docs/WORDS.md | tr -d '` ' | sort -u)

for document in README.md CONTRIBUTING.md CHANGELOG.md docs/*.md lab/README.md; do
    while read -r link; do
        [[ -e $(dirname "$document")/${link%%#*} ]] || fault "$document: $link leads nowhere"
    done < <(grep -oE '\]\([^)#:]+(#[^)]*)?\)' "$document" | sed 's/^](//; s/)$//' | sort -u)
done

for limit in "README.md 1000" "docs/ARCHITECTURE.md 6000"; do
    read -r document most <<<"$limit"
    words=$(wc -w <"$document")
    ((words <= most)) || fault "$document: $words words, of at most $most"
done

((faults == 0))
