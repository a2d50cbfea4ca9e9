#!/usr/bin/env bash
# Builds the S3 server that the tests of stores on S3 run against, versitygw, into a cache outside
# of the tree, and prints its path. From nothing that takes two to three minutes of a core.
#
#   scripts/setup-s3.sh         CACHE is TAPDECK_CACHE, or ~/.cache/tapdeck-fleet
set -euo pipefail

VERSITYGW=1.8.0
GO_MIN=1.25

cache=${TAPDECK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tapdeck-fleet}
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
