#!/usr/bin/env bash
# Builds the Debian package, tapdeck_VERSION_amd64.deb, and prints its path: programs, libraries,
# manual pages and completions as clap knows the flags, units and examples.
#
#   scripts/package.sh [PROFILE]    of cargo; without, release
set -euo pipefail
cd "$(dirname "$0")/.."

PATH="$PWD/scripts/lint/.tools/bin:${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
PROFILE=${1:-release}
export CARGO_TARGET_DIR=$PWD/target

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
cargo build --profile "$PROFILE" -p tapdeck -p tapdeck-client -p tapdeck-pcap -p tapdeck-gateway \
    -p tapdeck-remote >&2
cargo run --quiet --profile "$PROFILE" -p tapdeck --example pages -- target/pages >&2
fast=()
[[ $PROFILE == release ]] || fast=(--fast) # to compress
cargo deb --quiet "${fast[@]}" --no-build --strip -p tapdeck --profile "$PROFILE" --deb-version "$version" --no-dbgsym >&2
deb=target/debian/tapdeck_${version}_amd64.deb
[[ -e $deb ]]
echo "$deb"
