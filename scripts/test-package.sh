#!/usr/bin/env bash
# Tests the package as its users meet it: installs it into a fresh Debian 12, boots that in a
# virtual machine (QEMU) with systemd as its first process and Linux 6.1, and runs
# scripts/vm/package-tests.sh there: enable, start, traffic, questions, kill -9, reload, the
# gateway, an upgrade under load, removal. Exits with 1 if a test failed, the machine came to no
# end, or took too long.
#
#   scripts/test-package.sh [PROFILE]    of cargo; without, release
#
# What does not change from run to run is kept in target/vm. TAPDECK_VM_TIMEOUT is in seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/vm/common.sh
. scripts/vm/common.sh

TIMEOUT=${TAPDECK_VM_TIMEOUT:-1800}
MODULES=(veth loop ext4 8021q)
SUITE=bookworm
MIRROR=http://deb.debian.org/debian
# What the package needs, and what the tests use.
INCLUDE=systemd,systemd-sysv,libpcap0.8,libelf1,zlib1g,iproute2,kmod,procps,curl
NEEDED="
    qemu-system-x86  qemu-system-x86_64
    cpio             cpio
    kmod             depmod
    debootstrap      debootstrap
"

# A fresh system, which is made once.
make_system() {
    system=$CACHE/$SUITE.tar
    [[ ! -e $system ]] || return 0
    ((EUID == 0)) || fail "debootstrap needs root"
    say "making a Debian of $SUITE"
    rm -rf "${CACHE:?}/$SUITE"
    debootstrap --variant=minbase --include="$INCLUDE" "$SUITE" "$CACHE/$SUITE" "$MIRROR" >"$CACHE/debootstrap.log" 2>&1 \
        || fail "debootstrap failed, see $CACHE/debootstrap.log"
    rm -rf "$CACHE/$SUITE"/var/cache/apt/archives/*.deb "$CACHE/$SUITE"/var/lib/apt/lists/* \
        "$CACHE/$SUITE"/usr/share/{doc,locale,man}/*
    tar -C "$CACHE/$SUITE" -cf "$system.part" .
    mv "$system.part" "$system"
    rm -rf "${CACHE:?}/$SUITE"
}

# newer DEB VERSION OUT: the same package with a higher version.
newer() {
    local tree
    tree=$(mktemp -d)
    dpkg-deb -R "$1" "$tree"
    sed -i "s/^Version: .*/Version: $2/" "$tree/DEBIAN/control"
    dpkg-deb --root-owner-group -Znone -b "$tree" "$3" >/dev/null
    rm -rf "$tree"
}

make_image() {
    local root module
    root=$(mktemp -d)
    chmod 755 "$root"
    # shellcheck disable=SC2064
    trap "rm -rf '$root'" EXIT
    tar -C "$root" -xf "$system"
    mkdir -p "$root/modules"
    cp "$deb" "$root/tapdeck-1.deb"
    newer "$deb" 99.0 "$root/tapdeck-2.deb"
    for module in "${MODULES[@]}"; do
        modprobe -d "$kernel_dir/tree" -S "$kernel_release" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
    done | awk '!seen[$0]++' | while read -r module; do
        cp "$module" "$root/modules/"
        basename "$module"
    done >"$root/modules/order"
    cp scripts/vm/package-tests.sh "$root/tests.sh"
    cp scripts/vm/package-tests.service "$root/etc/systemd/system/package-tests.service"
    mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
    ln -s ../package-tests.service "$root/etc/systemd/system/multi-user.target.wants/"
    # Nobody logs in, and the root is a file system of memory that is there already.
    ln -sf /dev/null "$root/etc/systemd/system/getty.target"
    ln -sf /dev/null "$root/etc/systemd/system/systemd-remount-fs.service"
    ln -sf /usr/lib/systemd/systemd "$root/init"
    : >"$root/etc/fstab"
    (cd "$root" && find . | cpio -o -H newc --quiet) >"$CACHE/package.cpio"
}

install_packages
mkdir -p "$CACHE"
fetch_kernel
make_system
deb=$(scripts/package.sh "${1:-release}" | tail -n 1)
make_image
IMAGE=$CACHE/package.cpio MEMORY=4096
boot "systemd.unit=multi-user.target"
