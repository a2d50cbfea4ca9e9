# shellcheck shell=bash
# What the tests in virtual machines share: Debian's Linux 6.1, and booting it. A script that reads
# this sets NEEDED (packages, each with a program that shows that it is there) and TIMEOUT
# (seconds), and for `boot` IMAGE (an initial RAM file system).

PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"

SERIES=6.1
KVM_TIMEOUT=15 # to boot
CACHE=target/vm
MEMORY=2048

say() { echo "$(basename "$0" .sh): $*"; }

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

# run ACCELERATOR PARAMETERS: what the tests say comes by the second serial line; the kernel's
# messages go to a file by the first.
run() {
    say "booting Linux $kernel_release (accelerator $1), at most $TIMEOUT s"
    timeout --kill-after=5 "$TIMEOUT" qemu-system-x86_64 \
        -machine "q35,accel=$1" -cpu max -smp 2 -m "$MEMORY" \
        -nodefaults -no-user-config -display none -no-reboot -net none \
        -serial "file:$CACHE/console.log" -serial stdio \
        -kernel "$kernel_dir/tree/boot/vmlinuz-$kernel_release" -initrd "$IMAGE" \
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

# boot PARAMETERS: boots the image and shows what the tests in it say. Fails if one of them did.
boot() {
    local accelerator=${TAPDECK_VM_ACCEL:-} began=$SECONDS status=0
    if [[ -z $accelerator ]]; then
        accelerator=tcg
        if kvm_works; then accelerator=kvm; fi
    fi
    run "$accelerator" "$1" || status=$?
    say "$((SECONDS - began)) s; what the kernel said is in $CACHE/console.log"

    if ! grep -qE '^[0-9]+ passed, [0-9]+ failed$' "$CACHE/results"; then
        tail -n 30 "$CACHE/console.log" "$CACHE/qemu.log" >&2 || true
        ((status == 124)) && fail "the machine was still running after $TIMEOUT s"
        fail "the machine did not come to the end of the tests"
    fi
    grep -qE '^[1-9][0-9]* passed, 0 failed$' "$CACHE/results" || fail "tests failed"
}
