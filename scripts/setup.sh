#!/usr/bin/env bash
# Installs what building, testing and the demonstration need on Debian 12 or later: only what is
# missing, and it says what it does.
#
#   scripts/setup.sh            for `make demo`
#   scripts/setup.sh --lab      and the lab, for `make test` and `make lab`
#   scripts/setup.sh --bench    and what `make bench` compares with
#   scripts/setup.sh --lint     and cargo-deny, which takes minutes to compile
set -euo pipefail
cd "$(dirname "$0")/.."

PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"

KERNEL_MIN=6.1

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

# The lab's Python, with exactly the versions that it states.
install_lab() {
    local stamp=lab/.venv/requirements.txt
    cmp -s lab/requirements.txt "$stamp" && return 0
    say "installing the lab's Python packages into lab/.venv"
    python3 -m venv --clear lab/.venv || fail "python3 -m venv does not work: apt-get install python3-venv"
    lab/.venv/bin/pip install -q --disable-pip-version-check -r lab/requirements.txt
    cp lab/requirements.txt "$stamp"
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
        --lab) install_packages "$NEEDED_FOR_LAB" && install_lab ;;
        --bench) install_packages "$NEEDED_FOR_BENCH" ;;
        --lint) cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny ;;
        *) fail "unknown option $option: see the top of scripts/setup.sh" ;;
    esac
done
check_system
say "what is needed is installed"
