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
        { echo "$*"; tail -n 15 /tmp/check.out; journalctl -q -n 12 --no-pager -o cat -u "tapdeck-*"; } | note
    fi
}

equal() {
    echo "$1, should be $2"
    [[ "$1" == "$2" ]]
}

# says WHAT COMMAND...: whether a command succeeds and its output has WHAT in it; lacks: has not.
says() {
    local what=$1 said
    shift
    said=$("$@" 2>&1) || { echo "$said"; return 1; }
    echo "$said"
    [[ "$said" == *"$what"* ]]
}

lacks() {
    local what=$1 said
    shift
    said=$("$@" 2>&1) || { echo "$said"; return 1; }
    echo "$said"
    [[ "$said" != *"$what"* ]]
}

nothing_runs() { [[ -z "$(pgrep tapdeck)" ]]; }

# wait_for COMMAND...: until it succeeds, at most a minute.
wait_for() {
    local end=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

property() { systemctl show --value --property "$1" "${2:-$UNIT}"; }

# begun_anew PID [UNIT]: whether a service runs, as another process than that.
begun_anew() {
    local now
    now=$(property MainPID "${@:2}")
    [[ $now != 0 && $now != "$1" && $(property ActiveState "${@:2}") == active ]]
}

# The directories of what outlives its process.
pins() { find /sys/fs/bpf/tapdeck -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort | xargs; }

# send NAME TIME SEED: packets for so long, whose account is NAME.json, in the background.
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
    ip link add link vb name vb.100 type vlan id 100
    ip link set vb.100 up
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
    for library in libtapdeck_pcap.so libtapdeck_client.so; do
        check "$library is where programs look" says "-linux-gnu/$library" env LD_PRELOAD=$library cat /proc/self/maps
    done
    check "the units are sound" systemd-analyze verify --man=no $UNIT tapdeck-serve.service tapdeck-gateway.service tapdeck-pins@vb.service tapdeck-watch-alerts@vb.service
    check "Wireshark finds it" says "extcap {version=" /usr/lib/x86_64-linux-gnu/wireshark/extcap/tapdeck --extcap-interfaces
    check "tapdeck finds what asks others" says "no connection" sh -c "tapdeck query --count --remote http://127.0.0.1:1 || true"
    check "Prometheus finds what to alarm at" test -s /usr/share/tapdeck/examples/prometheus/alerts.yml
}

test_start() {
    mkdir -p /etc/tapdeck/record.d
    sed -e 's/"eth0"/"vb"/; s#tapdeck/example#tapdeck/vb#; s/^keep-bytes = .*/keep-bytes = "400MiB"/; s/^ring-bytes = .*/ring-bytes = "64MiB"/; s/^min-free/#min-free/' \
        /usr/share/tapdeck/examples/record.d/example.toml >/etc/tapdeck/record.d/vb.toml
    check "the example is usable" tapdeck config check /etc/tapdeck/record.d/vb.toml
    check "it is enabled and starts" systemctl enable --now $UNIT
    check "it is active once it is ready" equal "$(property ActiveState)" active
    check "it says how fast" wait_for says "pkt/s" property StatusText
    local pid helper
    pid=$(property MainPID)
    helper=$(pgrep -P "$pid")
    check "the recorder has no capability" equal "$(awk '/^CapPrm/ { print $2 }' "/proc/$pid/status")" 0000000000000000
    check "the recorder is tapdeck" equal "$(stat -c %U "/proc/$pid")" tapdeck
    check "the helper has those of hooks" equal "$(awk '/^CapPrm/ { print $2 }' "/proc/$helper/status")" 000000c000003000
    check "the store is tapdeck's" equal "$(stat -c '%U %a' $STORE)" "tapdeck 750"
    check "the writer goes first" says "FF tapdeck-writer" ps -L -o cls=,comm= -p "$pid"
}

test_record() {
    send steady 3s 1
    check "every packet is recorded" arrived steady
    local sent
    sent=$(grep -oE '"sent": *[0-9]+' /tmp/steady.json | head -n 1 | grep -oE '[0-9]+')
    check "packets were sent" test "$sent" -gt 5000
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
    check "the filter is in force" wait_for says '"filter":"udp"' tapdeck ctl --dir $STORE stats --json
    sed -i '/^filter/d' /etc/tapdeck/record.d/vb.toml
    echo 'snap-len = 7' >>/etc/tapdeck/record.d/vb.toml
    check "what is wrong is told" systemctl reload $UNIT
    check "with the key that is near" wait_for says "the nearest is snaplen" journalctl -q -u $UNIT --no-pager -o cat
    check "and changes nothing" says '"filter":"udp"' tapdeck ctl --dir $STORE stats --json
    sed -i '/^snap-len/d' /etc/tapdeck/record.d/vb.toml
}

# A VLAN's interface has a dot in its name, and so has its recorder.
test_dotted() {
    sed -e 's/"vb"/"vb.100"/; s#tapdeck/vb#tapdeck/vb.100#; s/^#hook = .*/hook = "xdp-generic"/' \
        /etc/tapdeck/record.d/vb.toml >/etc/tapdeck/record.d/vb.100.toml
    check "a VLAN is recorded" systemctl start tapdeck-record@vb.100
    check "under its name" says vb.100 tapdeck ctl persist list
}

join() {
    ip link add "$1" type veth peer name "${1}a" netns a
    ip link set "$1" up
    ip -n a link set "${1}a" up
}

# A recorder of a pattern, which gets another interface while it has no right to make pins.
test_later() {
    local unit=tapdeck-record@later store=/var/lib/tapdeck/later pid
    join link0
    sed -e 's/"vb"/"link*"/; s#tapdeck/vb#tapdeck/later#; s/^ring-bytes = .*/ring-bytes = "16MiB"/' \
        /etc/tapdeck/record.d/vb.toml >/etc/tapdeck/record.d/later.toml
    check "a pattern is recorded" systemctl start $unit
    join link1
    check "an interface that comes later is recorded" wait_for says '"link1"' tapdeck ctl --dir $store stats --json
    pid=$(property MainPID $unit)
    ip netns exec a tapdeck gen -i link1a --size 200 --rate 2kpps --duration 8s --seed 5 --json /tmp/later.json >/tmp/later.log 2>&1 &
    sending=$!
    sleep 2
    kill -9 "$pid"
    check "its recorder is started again" wait_for begun_anew "$pid" $unit
    wait "$sending"
    sleep 2
    check "kill -9 loses nothing of it" tapdeck check-traffic $store --sent /tmp/later.json
    systemctl stop $unit
    check "its hooks are dropped, too" tapdeck ctl persist drop later
    ip link del link0
    ip link del link1
}

# get PATH: what the gateway answers.
get() { curl -sS --max-time 10 "http://127.0.0.1:9670$1"; }

test_gateway() {
    sed 's/"example"/"vb"/; s#/example"#/vb"#' /usr/share/tapdeck/examples/gateway.toml >/etc/tapdeck/gateway.toml
    check "the gateway starts" systemctl enable --now tapdeck-gateway
    check "it serves what recorders count" wait_for says 'tapdeck_up{store="vb"} 1' get /metrics
    check "and whether all is well" says '"healthy":true' get /healthz
    local pid
    pid=$(property MainPID tapdeck-gateway)
    check "it is a user of its own" equal "$(stat -c %U "/proc/$pid")" tapdeck-gateway
    check "it has no capability" equal "$(awk '/^CapPrm|^CapBnd/ { print $2 }' "/proc/$pid/status" | sort -u)" 0000000000000000
    test_pins
}

# pin STATE: whether the first pin, as the gateway has it, is so.
pin() { says "\"state\":\"$1\"" get "/v1/pins/1"; }

resumed() { [[ $(property ActiveState tapdeck-pins@vb) == inactive && $(property Result tapdeck-pins@vb) == success ]]; }

# Packets that somebody has pinned over HTTP, with no other right than the service has.
test_pins() {
    cat >>/etc/tapdeck/gateway.toml <<END
[[role]]
name = "pins"
kind = "pinner"
[[user]]
name = "alice"
role = "pins"
END
    sed -i '1i audit = "/var/log/tapdeck/audit.jsonl"' /etc/tapdeck/gateway.toml
    sed -i 's/^address = .*/&\nuser = "alice"/' /etc/tapdeck/gateway.toml
    check "pins have a place" says "pins      vb: in /var/lib/tapdeck-evidence/vb, not there yet" \
        runuser -u tapdeck-gateway -- tapdeck-gateway check /etc/tapdeck/gateway.toml
    check "the gateway reads who may pin" systemctl restart tapdeck-gateway
    local wanted
    wanted="{\"after\":\"$(date -u -d '-1 hour' +%FT%TZ)\",\"before\":\"$(date -u +%FT%TZ)\",\"filter\":\"udp\",\"reason\":\"case 7\"}"
    check "packets are pinned over HTTP" wait_for says '"number":1' curl -sS --max-time 10 --json "$wanted" http://127.0.0.1:9670/v1/pins
    check "they are copied" wait_for pin "done"
    check "the group may read pins" equal "$(stat -c '%U:%G %a' /var/lib/tapdeck-evidence/vb/pin-00000001/pin.json)" "tapdeck-gateway:tapdeck 640"
    check "the audit is the gateway's" equal "$(stat -c '%U %a' /var/log/tapdeck/audit.jsonl)" "tapdeck-gateway 600"
    check "root leaves pins to their user" says "belongs to the user" sh -c "tapdeck unpin --dir $STORE --evidence /var/lib/tapdeck-evidence/vb 1 2>&1 || true"
    check "what is under way goes on" systemctl start tapdeck-pins@vb
    check "and ends well" wait_for resumed
    cp /usr/share/tapdeck/examples/alerts.d/example.toml /etc/tapdeck/alerts.d/vb.toml
    mkdir -p /var/log/suricata
    touch /var/log/suricata/eve.json
    check "alerts are followed" systemctl start tapdeck-watch-alerts@vb
    local alert
    alert="{\"timestamp\":\"$(date -u +%FT%T.000000+0000)\",\"event_type\":\"alert\",\"src_ip\":\"10.0.0.1\",\"src_port\":9,\"dest_ip\":\"10.0.0.2\",\"dest_port\":9,\"proto\":\"UDP\",\"alert\":{\"signature_id\":1,\"signature\":\"x\",\"category\":\"y\",\"severity\":1}}"
    wait_for says "following" journalctl -q -o cat -u tapdeck-watch-alerts@vb
    echo "$alert" >>/var/log/suricata/eve.json
    check "an alert pins" wait_for says '"rule":"severe"' get /v1/pins
    check "they can be stopped" systemctl stop tapdeck-watch-alerts@vb
}

test_upgrade() {
    local pid gateway
    pid=$(property MainPID)
    gateway=$(property MainPID tapdeck-gateway)
    # One that cannot begin anew.
    echo 'snap-len = 7' >>/etc/tapdeck/record.d/vb.100.toml
    send upgraded 20s 3
    sleep 2
    check "a higher version installs under load" says "tapdeck-record@vb.100.service loaded failed" dpkg -i /tapdeck-2.deb
    check "it is there" equal "$(dpkg-query -W -f '${Version}' tapdeck)" 99.0
    check "the recorder is another one" wait_for begun_anew "$pid"
    check "so is the gateway" wait_for begun_anew "$gateway" tapdeck-gateway
    check "an upgrade under load loses nothing" arrived upgraded
    check "the store is sound" tapdeck verify --dir $STORE
}

test_daemon() {
    sed 's/"eth0"/"vb"/' /usr/share/tapdeck/examples/serve.toml >/etc/tapdeck/serve.toml
    check "the recorder stops" systemctl disable --now $UNIT
    check "its hooks are dropped" tapdeck ctl persist drop vb
    check "and of the VLAN" tapdeck ctl persist drop vb.100
    check "the daemon's example is usable" tapdeck config check /etc/tapdeck/serve.toml
    check "the daemon starts" systemctl start tapdeck-serve
    check "its socket is the group's" equal "$(stat -c '%G %a' /run/tapdeck/serve.sock)" "tapdeck 660"
    tapdeck attach --group ids -w /tmp/ids.pcapng >/tmp/attach.log 2>&1 &
    local member=$!
    check "a member attaches" wait_for says '"pid":'"$member" tapdeck ctl groups --json
    send daemon 2s 4
    wait "$sending"
    sleep 1
    kill -INT "$member"
    wait "$member"
    check "a member gets every packet" tapdeck check-traffic /tmp/ids.pcapng --sent /tmp/daemon.json
    check "the daemon reloads" systemctl reload tapdeck-serve
    check "the daemon stops" systemctl stop tapdeck-serve
    check "the hooks that it left are dropped" tapdeck ctl persist drop deck
}

test_purge() {
    sed -i '/^snap-len/d' /etc/tapdeck/record.d/vb.100.toml
    check "it records again" systemctl enable --now $UNIT
    # XDP stands at no interface below another that has it, so this one is the second.
    check "so does that of the VLAN" systemctl enable --now tapdeck-record@vb.100
    check "there is a hook" says "prog/xdp" ip -d link show vb
    check "there are pins" equal "$(pins)" "vb vb:100"
    check "it is removed while it records" lacks "stay" dpkg -r tapdeck
    check "nothing runs any more" nothing_runs
    check "no hook stays" lacks "prog/xdp" ip -d link show vb
    check "no pin stays" equal "$(pins)" ""
    check "recordings stay" says ".pcapng" ls $STORE
    check "it is purged" dpkg -P tapdeck
    check "recordings stay after a purge" says ".pcapng" ls $STORE
    check "so do pins" test -e /var/lib/tapdeck-evidence/vb/pin-00000001/pin.json
    check "no unit is wanted any more" equal "$(find /etc/systemd/system -name 'tapdeck*' | wc -l)" 0
}

echo "# Linux $(uname -r), $(systemctl --version | head -n 1)"
grep -q tapdeck.only_boot /proc/cmdline && exit
lay_cable
for test in install start record kill reload dotted later gateway upgrade daemon purge; do "test_$test"; done
echo "$passed passed, $failed failed"
sync
