#!/usr/bin/env bash
# Tests tapdeck on the oldest kernel that tapdeck promises to work on: boots Debian 12's Linux 6.1
# in a virtual machine (QEMU) and runs scripts/vm/tests.sh there, which also runs cargo's tests of
# what sends. The machine has no disk and no network; all that it runs is in its initial RAM file
# system. Exits with 1 if a test failed, the machine came to no end, or took too long.
#
#   scripts/test-vm.sh [TEST...]    only the tests whose names contain one of these words
#
# What does not change from run to run is kept in target/vm. TAPDECK_VM_ACCEL=tcg emulates the
# processor even where it could be shared (KVM); TAPDECK_VM_TIMEOUT is in seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=scripts/vm/common.sh
. scripts/vm/common.sh

TIMEOUT=${TAPDECK_VM_TIMEOUT:-1800}
MODULES=(veth 8021q sch_ingress sch_tbf cls_bpf bridge macvlan loop ext4)
PROGRAMS=(bash ip tc tcpdump ethtool ping mke2fs chrt setpriv tshark editcap)
# Of cargo's test programs, those that the kernel has a say in.
PACKAGES=(tapdeck tapdeck-capture)
TESTS=(generate dist check_traffic transmit)
# A Debian package, and a program that shows that it is there.
NEEDED="
    qemu-system-x86  qemu-system-x86_64
    busybox-static   busybox
    cpio             cpio
    kmod             depmod
    binutils         strip
    iproute2         ip
    tcpdump          tcpdump
    ethtool          ethtool
    iputils-ping     ping
    e2fsprogs        mke2fs
    util-linux       setpriv
    tshark           tshark
    wireshark-common editcap
"

# Prints the paths of the programs that are built: tapdeck and the tests.
build() {
    cargo test --release --no-run "${PACKAGES[@]/#/--package=}" "${TESTS[@]/#/--test=}" \
        --message-format=json-render-diagnostics | grep -o '"executable":"[^"]*"' | cut -d '"' -f 4
}

# put ROOT PROGRAM [PATH]: copies a program to ROOT/bin, or as ROOT/PATH, and the libraries that it
# is linked with.
put() {
    local library
    cp -L "$2" "$1/${3:-bin/}"
    ldd "$2" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        [[ -e $1$library ]] || cp -L --parents "$library" "$1"
    done
}

# The image, with modules in the order in which they are to be loaded.
make_image() {
    local root program name module
    root=$(mktemp -d)
    chmod 755 "$root" # so that users other than root can run programs
    # shellcheck disable=SC2064
    trap "rm -rf '$root'" EXIT
    mkdir -p "$root"/{bin,dev,etc,mnt,modules,proc,run,sys,tests,tmp}
    echo 'root:x:0:0::/:/bin/bash' >"$root/etc/passwd"
    cp -L "$(command -v busybox)" "$root/bin/"
    for program in "${PROGRAMS[@]}"; do put "$root" "$(command -v "$program")"; done
    for program in "${built[@]}"; do
        if [[ $program == */deps/* ]]; then
            name=$(basename "$program")
            put "$root" "$program" "tests/${name%-*}"
        else
            put "$root" "$program"
            # Where cargo's tests look for it.
            echo "$program" >"$root/built"
        fi
    done
    strip "$root/bin/tapdeck" "$root/tests/"*
    for module in "${MODULES[@]}"; do
        modprobe -d "$kernel_dir/tree" -S "$kernel_release" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
    done | awk '!seen[$0]++' | while read -r module; do
        cp "$module" "$root/modules/"
        basename "$module"
    done >"$root/modules/order"
    cp scripts/vm/init "$root/init"
    cp scripts/vm/tests.sh "$root/tests.sh"
    chmod +x "$root/init"
    printf '%s\n' "$@" >"$root/wanted"
    (cd "$root" && find . | cpio -o -H newc --quiet) >"$CACHE/image.cpio"
}

install_packages
built=$(build)
mapfile -t built <<<"$built"
mkdir -p "$CACHE"
fetch_kernel
make_image "$@"
IMAGE=$CACHE/image.cpio
boot ""
