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

PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"

SERIES=6.1
TIMEOUT=${TAPDECK_VM_TIMEOUT:-1800}
KVM_TIMEOUT=15 # to boot
CACHE=target/vm
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

say() { echo "test-vm: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

install_packages() {
    local missing=() package shows
    while read -r package shows; do
        [[ -z "$package" ]] || command -v "$shows" >/dev/null || missing+=("$package")
    done <<<"$NEEDED"
    ((${#missing[@]})) || return 0

    command -v apt-get >/dev/null || fail "missing: ${missing[*]} (Debian's names; there is no apt-get here to install them)"
    ((EUID == 0)) || fail "missing: ${missing[*]} (as root: apt-get install --no-install-recommends ${missing[*]})"
    say "installing ${missing[*]}"
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# The name of the newest kernel package of the series that apt knows, as linux-image-6.1.0-56-amd64.
newest_kernel() {
    apt-cache pkgnames "linux-image-$SERIES." \
        | grep -E "^linux-image-${SERIES//./\\.}\.[0-9]+-[0-9]+-amd64$" | sort -V | tail -n 1
}

# Sets kernel_dir, kernel_release: a kernel package, unpacked. Nothing is installed on this machine.
fetch_kernel() {
    local package
    command -v apt-get >/dev/null || fail "the kernel comes from Debian's archive, and there is no apt-get here"
    package=$(newest_kernel) || true
    if [[ -z "$package" ]] && ((EUID == 0)); then
        apt-get update -q
        package=$(newest_kernel) || true
    fi
    [[ -n "$package" ]] || fail "apt knows no Linux $SERIES; Debian 12 has it (apt-get update; apt-cache search linux-image)"
    kernel_release=${package#linux-image-}
    kernel_dir=$CACHE/$kernel_release
    [[ ! -e $kernel_dir/complete ]] || return 0

    say "fetching $package"
    rm -rf "$kernel_dir" "$kernel_dir.part"
    mkdir -p "$kernel_dir.part/tree"
    (cd "$kernel_dir.part" && apt-get download -q "$package" 2>&1 | grep -v unsandboxed)
    dpkg-deb -x "$kernel_dir.part/"*.deb "$kernel_dir.part/tree"
    rm "$kernel_dir.part/"*.deb
    depmod -b "$kernel_dir.part/tree" "$kernel_release"
    touch "$kernel_dir.part/complete"
    mv "$kernel_dir.part" "$kernel_dir"
}

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

# run ACCELERATOR PARAMETERS: what the tests say comes by the second serial line; the kernel's
# messages go to a file by the first.
run() {
    say "booting Linux $kernel_release (accelerator $1), at most $TIMEOUT s"
    timeout --kill-after=5 "$TIMEOUT" qemu-system-x86_64 \
        -machine "q35,accel=$1" -cpu max -smp 2 -m 2048 \
        -nodefaults -no-user-config -display none -no-reboot -net none \
        -serial "file:$CACHE/console.log" -serial stdio \
        -kernel "$kernel_dir/tree/boot/vmlinuz-$kernel_release" -initrd "$CACHE/image.cpio" \
        -append "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off $2" \
        </dev/null 2>"$CACHE/qemu.log" | sed -u 's/\r$//' | tee "$CACHE/results"
}

# Whether a machine gets as far as its first process with KVM. There are machines, themselves
# virtual, that have /dev/kvm and hang.
kvm_works() {
    [[ -r /dev/kvm && -w /dev/kvm ]] || return 1
    TIMEOUT=$KVM_TIMEOUT run kvm tapdeck.only_boot && grep -q '^# Linux' "$CACHE/results" && return
    say "no machine boots with KVM here: emulating the processor"
    return 1
}

install_packages
built=$(build)
mapfile -t built <<<"$built"
mkdir -p "$CACHE"
fetch_kernel
make_image "$@"
accelerator=${TAPDECK_VM_ACCEL:-}
if [[ -z $accelerator ]]; then
    accelerator=tcg
    if kvm_works; then accelerator=kvm; fi
fi
began=$SECONDS
status=0
run "$accelerator" "" || status=$?
say "$((SECONDS - began)) s; what the kernel said is in $CACHE/console.log"

if ! grep -qE '^[0-9]+ passed, [0-9]+ failed$' "$CACHE/results"; then
    tail -n 30 "$CACHE/console.log" "$CACHE/qemu.log" >&2 || true
    ((status == 124)) && fail "the machine was still running after $TIMEOUT s"
    fail "the machine did not come to the end of the tests"
fi
grep -qE '^[1-9][0-9]* passed, 0 failed$' "$CACHE/results" || fail "tests failed"
