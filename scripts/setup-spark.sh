#!/usr/bin/env bash
# Fetches what Spark does not bring along to read Iceberg tables, also on S3, and their catalogs in
# PostgreSQL and SQLite, by Maven into a cache outside of the tree, and prints its path. 131 MB.
#
#   scripts/setup-spark.sh      CACHE is TAPDECK_CACHE, or ~/.cache/tapdeck-fleet
set -euo pipefail

JARS="
    org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
    org.apache.iceberg:iceberg-aws-bundle:1.12.0
    org.postgresql:postgresql:42.7.14
    org.xerial:sqlite-jdbc:3.54.1.0
"

cache=${TAPDECK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tapdeck-fleet}
# Other versions are other directories.
jars=$cache/jars/$(sha256sum <<<"$JARS" | cut -c 1-16)

if [[ ! -d $jars ]]; then
    command -v mvn >/dev/null || {
        echo "setup: Maven is missing: run scripts/setup.sh --fleet" >&2
        exit 1
    }
    echo "setup: fetching classes for Spark into $cache" >&2
    mkdir -p "$cache/jars"
    draft=$(mktemp -d "$cache/jars/.draft.XXXXXX")
    trap 'rm -rf "$draft"' EXIT
    for jar in $JARS; do
        mvn -B -q -ntp -Dstyle.color=never dependency:copy -Dartifact="$jar" -DoutputDirectory="$draft" >&2
    done
    mv -T "$draft" "$jars"
fi
echo "$jars"
