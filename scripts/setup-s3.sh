#!/usr/bin/env bash
# Puts the S3 servers that the tests of stores on S3 run against into a cache outside of the tree,
# and prints the path of the one that is asked for: versitygw, which is built and from nothing takes
# two to three minutes of a core, or S3Proxy, which Maven fetches, 42 MB that Java runs.
#
#   scripts/setup-s3.sh [versitygw|s3proxy]    CACHE is TAPDECK_CACHE, or ~/.cache/tapdeck-fleet
set -euo pipefail

VERSITYGW=1.8.0
GO_MIN=1.25
S3PROXY=2.6.0

cache=${TAPDECK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tapdeck-fleet}

if [[ ${1:-versitygw} == s3proxy ]]; then
    jar=$cache/jars/s3proxy-$S3PROXY-jar-with-dependencies.jar
    if [[ ! -f $jar ]]; then
        for program in mvn java; do
            command -v "$program" >/dev/null || {
                echo "setup: $program is missing: run scripts/setup.sh --fleet" >&2
                exit 1
            }
        done
        echo "setup: fetching S3Proxy $S3PROXY into $cache" >&2
        mkdir -p "$cache/jars"
        draft=$(mktemp -d "$cache/jars/.draft.XXXXXX")
        trap 'rm -rf "$draft"' EXIT
        mvn -B -q -ntp -Dstyle.color=never dependency:copy -DoutputDirectory="$draft" \
            -Dartifact="org.gaul:s3proxy:$S3PROXY:jar:jar-with-dependencies" >&2
        mv "$draft/${jar##*/}" "$jar"
    fi
    echo "$jar"
    exit
fi

server=$cache/bin/versitygw-$VERSITYGW

if [[ ! -x $server ]]; then
    have=$(go env GOVERSION 2>/dev/null | sed 's/^go//') || true
    if [[ -z "$have" || "$(printf '%s\n' "$GO_MIN" "$have" | sort -V | head -n 1)" != "$GO_MIN" ]]; then
        echo "setup: Go is ${have:-missing}, $GO_MIN is needed to build versitygw: apt-get install golang-go, or https://go.dev/dl" >&2
        exit 1
    fi
    echo "setup: building versitygw $VERSITYGW into $cache" >&2
    mkdir -p "$cache/bin"
    draft=$(mktemp -d "$cache/bin/.draft.XXXXXX")
    trap 'rm -rf "$draft"' EXIT
    GOBIN=$draft go install "github.com/versity/versitygw/cmd/versitygw@v$VERSITYGW" >&2
    mv "$draft/versitygw" "$server"
fi
echo "$server"
