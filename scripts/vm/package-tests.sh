# shellcheck shell=bash
# The tests that scripts/test-package.sh runs in a fresh Debian 12 whose first process is systemd.
#
# Prints "ok WHAT" or "not ok WHAT" for each check, what else there is to know behind #, and at last
# "N passed, N failed".
#
# A veth pair joins this system (vb, which is recorded) and the network namespace a (va). Packets
# are numbered (tapdeck gen), so that check-traffic tells each one that is missing.

passed=0
failed=0
UNIT=tapdeck-record@vb.service
STORE=/var/lib/tapdeck/vb

note() { sed 's/^/# /'; }

# check WHAT COMMAND...: one result line, and where it failed what was said.
check() {
    local what=$1
    shift
    if "$@" >/tmp/check.out 2>&1; then
        passed=$((passed + 1))
        echo "ok $what"
    else
        failed=$((failed + 1))
        echo "not ok $what"
        { echo "$*"; tail -n 15 /tmp/check.out; journalctl -q -n 12 --no-pager -o cat -u $UNIT; } | note
    fi
}

equal() {
    echo "$1, should be $2"
    [[ "$1" == "$2" ]]
}

not() { ! "$@"; }

contains() {
    echo "$1"
    [[ "$1" == *"$2"* ]]
}

# wait_for COMMAND...: until it succeeds, at most a minute.
wait_for() {
    local end=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

property() { systemctl show --value --property "$1" "${2:-$UNIT}"; }

begun_anew() { [[ $(property MainPID) != 0 && $(property MainPID) != "$1" && $(property ActiveState) == active ]]; }

# send NAME TIME: packets for so long, whose account is NAME.json, in the background.
send() {
    ip netns exec a tapdeck gen -i va --size 200 --rate 2kpps --duration "$2" --seed "$3" \
        --json "/tmp/$1.json" >"/tmp/$1.log" 2>&1 &
    sending=$!
}

# arrived NAME: whether all packets of an account are in the store.
arrived() {
    wait "$sending"
    # They are in the output within --flush.
    sleep 2
    tapdeck check-traffic "$STORE" --sent "/tmp/$1.json"
}

lay_cable() {
    while read -r module; do insmod "/modules/$module"; done </modules/order
    ip netns add a
    sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
    ip link add vb type veth peer name va netns a
    ip netns exec a sysctl -qw net.ipv6.conf.all.disable_ipv6=1
    ip link set vb up
    ip -n a link set va up
} >/tmp/setup.log 2>&1

test_install() {
    check "the package installs" dpkg -i /tapdeck-1.deb
    check "installing starts nothing" equal "$(systemctl list-units --no-legend 'tapdeck*' | wc -l)" 0
    check "there is a user" id tapdeck
    # As on a machine: a disk, which is written past the page cache.
    truncate -s 2G /disk
    mkfs.ext4 -q /disk
    mount -o loop /disk /var/lib/tapdeck
    rmdir /var/lib/tapdeck/lost+found
    systemd-tmpfiles --create tapdeck.conf
    check "stores are root's to make" equal "$(stat -c '%U:%G %a' /var/lib/tapdeck)" "root:tapdeck 750"
    check "there are manual pages" test -s /usr/share/man/man1/tapdeck-record.1.gz
    check "bash takes the completions" bash -n /usr/share/bash-completion/completions/tapdeck
    check "libraries are where programs look" ldconfig -p
    check "the units are sound" systemd-analyze verify --man=no $UNIT tapdeck-serve.service
}

test_start() {
    mkdir -p /etc/tapdeck/record.d
    sed -e 's/"eth0"/"vb"/; s#tapdeck/example#tapdeck/vb#; s/^keep-bytes = .*/keep-bytes = "400MiB"/; s/^ring-bytes = .*/ring-bytes = "64MiB"/; s/^min-free/#min-free/' \
        /usr/share/tapdeck/examples/record.d/example.toml >/etc/tapdeck/record.d/vb.toml
    check "the example is usable" tapdeck config check /etc/tapdeck/record.d/vb.toml
    check "it is enabled and starts" systemctl enable --now $UNIT
    check "it is active once it is ready" equal "$(property ActiveState)" active
    check "it says how fast" wait_for contains "$(sleep 2; property StatusText)" "pkt/s"
    local pid helper
    pid=$(property MainPID)
    helper=$(pgrep -P "$pid")
    check "the recorder has no capability" equal "$(awk '/^CapPrm/ { print $2 }' "/proc/$pid/status")" 0000000000000000
    check "the recorder is tapdeck" equal "$(stat -c %U "/proc/$pid")" tapdeck
    check "the helper has those of hooks" equal "$(awk '/^CapPrm/ { print $2 }' "/proc/$helper/status")" 000000c000003000
    check "the store is tapdeck's" equal "$(stat -c '%U %a' $STORE)" "tapdeck 750"
    check "the writer goes first" contains "$(ps -L -o cls=,comm= -p "$pid")" "FF tapdeck-writer"
}

test_record() {
    send steady 3s 1
    check "every packet is recorded" arrived steady
    local sent
    sent=$(grep -oE '"sent": *[0-9]+' /tmp/steady.json | head -n 1 | grep -oE '[0-9]+')
    check "a question is answered" equal "$(tapdeck query --dir $STORE --count udp 2>/dev/null)" "$sent"
}

test_kill() {
    local pid
    pid=$(property MainPID)
    send killed 8s 2
    sleep 2
    kill -9 "$pid"
    check "it is started again" wait_for begun_anew "$pid"
    check "kill -9 under load loses nothing" arrived killed
}

test_reload() {
    echo 'filter = "udp"' >>/etc/tapdeck/record.d/vb.toml
    check "it is reloaded" systemctl reload $UNIT
    check "the filter is in force" wait_for contains "$(sleep 3; tapdeck ctl --dir $STORE stats --json)" '"filter":"udp"'
    echo 'snap-len = 7' >>/etc/tapdeck/record.d/vb.toml
    systemctl reload $UNIT
    sleep 3
    check "what is wrong changes nothing" contains "$(journalctl -q -u $UNIT --no-pager -o cat)" "the nearest is snaplen"
    check "and it records on" equal "$(property ActiveState)" active
    sed -i '/^snap-len/d' /etc/tapdeck/record.d/vb.toml
}

test_upgrade() {
    local pid
    pid=$(property MainPID)
    send upgraded 20s 3
    sleep 2
    check "a higher version installs under load" dpkg -i /tapdeck-2.deb
    check "it is there" equal "$(dpkg-query -W -f '${Version}' tapdeck)" 99.0
    check "the recorder is another one" wait_for begun_anew "$pid"
    check "an upgrade under load loses nothing" arrived upgraded
    check "the store is sound" tapdeck verify --dir $STORE
}

test_daemon() {
    sed 's/"eth0"/"vb"/' /usr/share/tapdeck/examples/serve.toml >/etc/tapdeck/serve.toml
    systemctl disable --now $UNIT 2>/dev/null
    tapdeck ctl persist drop vb >/dev/null
    check "the daemon's example is usable" tapdeck config check /etc/tapdeck/serve.toml
    check "the daemon starts" systemctl start tapdeck-serve
    check "its socket is the group's" equal "$(stat -c '%G %a' /run/tapdeck/serve.sock)" "tapdeck 660"
    tapdeck attach --group ids -w /tmp/ids.pcapng >/tmp/attach.log 2>&1 &
    local member=$!
    wait_for grep -q '"member"' <(tapdeck ctl groups --json)
    sleep 2
    send daemon 2s 4
    wait "$sending"
    sleep 1
    kill -INT "$member"
    wait "$member"
    check "a member gets every packet" tapdeck check-traffic /tmp/ids.pcapng --sent /tmp/daemon.json
    check "the daemon reloads" systemctl reload tapdeck-serve
    check "the daemon stops" systemctl stop tapdeck-serve
}

test_purge() {
    systemctl enable --now $UNIT 2>/dev/null
    check "it is removed while it records" dpkg -r tapdeck
    check "nothing runs any more" not pgrep -x tapdeck
    check "no hook stays" not contains "$(ip -d link show vb)" "prog/xdp"
    check "no pin stays" equal "$(find /sys/fs/bpf/tapdeck -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)" 0
    check "recordings stay" contains "$(ls $STORE)" ".pcapng"
    check "it is purged" dpkg -P tapdeck
    check "recordings stay after a purge" contains "$(ls $STORE)" ".pcapng"
    check "no unit is wanted any more" equal "$(find /etc/systemd/system -name 'tapdeck*' | wc -l)" 0
}

echo "# Linux $(uname -r), $(systemctl --version | head -n 1)"
grep -q tapdeck.only_boot /proc/cmdline && exit
lay_cable
for test in install start record kill reload upgrade daemon purge; do "test_$test"; done
echo "$passed passed, $failed failed"
sync
