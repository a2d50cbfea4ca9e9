#!/usr/bin/env bash
# Installs what building, testing and the demonstration need on Debian 12 or later: only what is
# missing, and says what it installs.
#
#   scripts/setup.sh            for `make demo`
#   scripts/setup.sh --lab      and the lab and what tests run, for `make test` and `make lab`
#   scripts/setup.sh --bench    and what `make bench` compares with
#   scripts/setup.sh --python   and what builds and tests the Python module
#   scripts/setup.sh --fuzz     and a nightly compiler with cargo-fuzz, for `make nightly`
#   scripts/setup.sh --package  and what makes and tests the Debian package; cargo-deb takes minutes
#   scripts/setup.sh --lint     and what `make lint` runs; cargo-deny takes minutes to compile
#   scripts/setup.sh --fleet    and the engines of flow tables, for `make test-fleet`
set -euo pipefail
cd "$(dirname "$0")/.."

# Where cargo puts what only `make lint` and `make deb` use.
LINT_TOOLS=$PWD/scripts/lint/.tools
PATH="$LINT_TOOLS/bin:${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"

KERNEL_MIN=6.1
CARGO_DENY=0.20.2
CARGO_FUZZ=0.13.2
CARGO_DEB=3.8.0

# A Debian package, and the program or file that shows that it is there.
NEEDED="
    gcc              gcc
    libc6-dev        /usr/include/stdio.h
    linux-libc-dev   /usr/include/linux/bpf.h
    make             make
    pkg-config       pkg-config
    clang            clang
    libelf-dev       /usr/include/libelf.h
    zlib1g-dev       /usr/include/zlib.h
    libpcap-dev      /usr/include/pcap/pcap.h
    ca-certificates  /etc/ssl/certs/ca-certificates.crt
    curl             curl
    iproute2         ip
    ethtool          ethtool
    iputils-ping     ping
    procps           sysctl
    python3          python3
    dnsmasq-base     dnsmasq
    bind9-dnsutils   dig
    tcpdump          tcpdump
    tshark           tshark
    xfsprogs         mkfs.xfs
    zstd             zstd
    lz4              lz4
    xz-utils         xz
"
# Programs that tests run beside tapdeck. Services of Debian's among them are not started.
NEEDED_FOR_TEST="
    argus-server         argus
    jq                   jq
    openssl              openssl
    p0f                  p0f
    prometheus           promtool
    softflowd            softflowd
    stenographer-client  stenoread
    tmux                 tmux
    util-linux-extra     fincore
"
NEEDED_FOR_LINT="
    python3-venv     /usr/share/doc/python3-venv
"
NEEDED_FOR_PYTHON="
    python3-venv     /usr/share/doc/python3-venv
"
NEEDED_FOR_PACKAGE="
    debootstrap      debootstrap
    dpkg-dev         dpkg-shlibdeps
"
NEEDED_FOR_FLEET="
    default-jre-headless  java
    maven            mvn
    postgresql       /usr/share/doc/postgresql
    python3-venv     /usr/share/doc/python3-venv
"
NEEDED_FOR_LAB="
    python3-venv     /usr/share/doc/python3-venv
    chromium         chromium
    fio              fio
"
NEEDED_FOR_BENCH="
    netsniff-ng      netsniff-ng
    daemonlogger     daemonlogger
    tcpreplay        tcpreplay
    xdp-tools        xdp-trafficgen
    stenographer     stenotype
"

say() { echo "setup: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

# Whether version $1 is $2 or later.
at_least() { [[ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" == "$2" ]]; }

install_packages() {
    local missing=() package shows
    while read -r package shows; do
        [[ -z "$package" || -e "$shows" ]] || command -v "$shows" >/dev/null || missing+=("$package")
    done <<<"$1"
    ((${#missing[@]})) || return 0

    command -v apt-get >/dev/null || fail "missing: ${missing[*]} (Debian's names; there is no apt-get here to install them)"
    local install=(apt-get install -y --no-install-recommends "${missing[@]}")
    ((EUID == 0)) || fail "missing: ${missing[*]}
as root, run: apt-get update && DEBIAN_FRONTEND=noninteractive ${install[*]}"
    say "installing ${missing[*]}"
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive "${install[@]}"
}

# install_without_services PACKAGES: installs as install_packages does, and starts no service that
# comes along. Debian asks /usr/sbin/policy-rc.d, with or without systemd, and a machine that has
# one of its own has decided already.
install_without_services() {
    local policy=/usr/sbin/policy-rc.d
    if ((EUID != 0)) || [[ -e $policy ]]; then
        install_packages "$1"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    # shellcheck disable=SC2064 # The path of now is meant.
    trap "rm -f $policy" EXIT
    install_packages "$1"
    rm -f "$policy"
    trap - EXIT
}

# The version of cargo, or nothing.
cargo_version() { cargo --version 2>/dev/null | awk '{ print $2 }'; }

install_rust() {
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(cargo_version) || true
    if [[ -z "$have" ]] || ! at_least "$have" "$wanted"; then
        if command -v rustup >/dev/null; then
            say "Rust is ${have:-missing}, $wanted is needed: installing the stable toolchain with rustup"
            rustup toolchain install stable --profile minimal -c clippy -c rustfmt
        else
            say "Rust is ${have:-missing}, $wanted is needed: installing it with rustup's installer (https://rustup.rs)"
            curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs \
                | RUSTUP_INIT_SKIP_PATH_CHECK=yes sh -s -- -y --profile minimal -c clippy,rustfmt
        fi
        hash -r
        have=$(cargo_version) || true
        if [[ -z "$have" ]] || ! at_least "$have" "$wanted"; then
            fail "cargo is ${have:-missing} still, $wanted is needed: rustup default stable"
        fi
    fi
    local component
    for component in clippy fmt; do
        cargo "$component" --version >/dev/null 2>&1 && continue
        say "cargo $component is missing, which make lint needs"
        [[ $component == fmt ]] && component=rustfmt
        if command -v rustup >/dev/null; then rustup component add "$component"; fi
    done
}

# install_venv DIRECTORY: DIRECTORY/.venv, with exactly the versions of DIRECTORY/requirements.txt.
install_venv() {
    local venv=$1/.venv wanted=$1/requirements.txt
    cmp -s "$wanted" "$venv/requirements.txt" && return 0
    say "installing the Python packages of $wanted into $venv"
    python3 -m venv --clear "$venv" \
        || fail "python3 -m venv does not work: apt-get install python3-venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$venv/requirements.txt"
}

# The pinned version, beside those that the user may have of other versions.
install_cargo_deny() {
    local have
    have=$(cargo deny --version 2>/dev/null | awk '{ print $2 }') || true
    [[ "$have" != "$CARGO_DENY" ]] || return 0
    say "cargo-deny is ${have:-missing}, $CARGO_DENY is needed: compiling it, which takes minutes"
    # A run takes a second: without optimizations it is compiled in half the time.
    env -u CARGO_TARGET_DIR \
        cargo install -q --locked --debug --root "$LINT_TOOLS" --version "$CARGO_DENY" cargo-deny
}

# As cargo-deny.
install_cargo_deb() {
    local have
    have=$(cargo deb --version 2>/dev/null | awk '{ print $2 }') || true
    [[ "$have" != "$CARGO_DEB" ]] || return 0
    say "cargo-deb is ${have:-missing}, $CARGO_DEB is needed: compiling it, which takes minutes"
    env -u CARGO_TARGET_DIR cargo install -q --locked --debug --no-default-features \
        --root "$LINT_TOOLS" --version "$CARGO_DEB" cargo-deb
}

# The fuzz targets alone need a compiler that knows sanitizers.
install_fuzz() {
    if ! cargo +nightly --version >/dev/null 2>&1; then
        command -v rustup >/dev/null || fail "fuzz targets need a nightly compiler: install rustup (https://rustup.rs)"
        say "installing the nightly toolchain with rustup"
        rustup toolchain install nightly --profile minimal
    fi
    cargo fuzz --version >/dev/null 2>&1 && return 0
    say "cargo-fuzz is missing: compiling it, which takes minutes"
    env -u CARGO_TARGET_DIR cargo install -q --locked --version "$CARGO_FUZZ" cargo-fuzz
}

# What cannot be installed is said, and left to the user: building works without.
check_system() {
    local release
    release=$(uname -r)
    at_least "${release%%-*}" "$KERNEL_MIN" || say "the kernel is $release; tapdeck is tested from $KERNEL_MIN on"
    [[ -r /sys/kernel/btf/vmlinux ]] \
        || say "the kernel has no type information in /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF): the hooks will not load"
    ((EUID == 0)) || say "recording, make test, make demo and make bench need root"
}

install_packages "$NEEDED"
install_rust
for option in "$@"; do
    case "$option" in
        --lab)
            install_packages "$NEEDED_FOR_LAB"
            install_venv lab
            install_venv crates/gateway/tests/console
            install_without_services "$NEEDED_FOR_TEST"
            ;;
        --python) install_packages "$NEEDED_FOR_PYTHON" && install_venv crates/python ;;
        --bench) install_packages "$NEEDED_FOR_BENCH" ;;
        --fuzz) install_fuzz ;;
        --package) install_packages "$NEEDED_FOR_PACKAGE" && install_cargo_deb ;;
        --fleet)
            install_without_services "$NEEDED_FOR_FLEET"
            install_venv lake
            ;;
        --lint) install_packages "$NEEDED_FOR_LINT" && install_venv scripts/lint && install_cargo_deny ;;
        *) fail "unknown option $option: see the top of scripts/setup.sh" ;;
    esac
done
check_system
say "what is needed is installed"
