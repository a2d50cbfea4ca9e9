# shellcheck shell=bash disable=SC2016,SC2046,SC2086
# The tests that scripts/test-vm.sh runs in a virtual machine with Linux 6.1. This kernel has XDP
# with frames of several buffers (5.18), and no tcx (6.6), no BPF netfilter links (6.4), no AF_XDP
# with several buffers (6.6), and no driver that hands a VLAN tag to an XDP program (6.8).
#
# Prints "ok WHAT" or "not ok WHAT" for each check, what else there is to know behind #, and at last
# "N passed, N failed".
#
# Two network namespaces, a and b, are joined by a veth pair, va and vb. vb is recorded. Nothing
# goes across but what is sent here: neighbours are entered by hand and IPv6 is off. So every
# count is exact.

MAC_A=02:00:00:00:00:0a
MAC_B=02:00:00:00:00:0b
ADDRESS_B=10.0.0.2
# b gets what is sent here and drops it without an answer.
NOBODY=10.0.0.3
NOBODY_VLAN=10.7.0.3

WORK=/tmp/work
# On ext4, where /tmp is a tmpfs. Each test has a link to it.
STORE=/mnt/store

passed=0
failed=0

note() { sed 's/^/# /'; }

# check WHAT COMMAND...: one result line, and where it failed the last log lines.
check() {
    local what="$test: $1"
    shift
    if "$@" >check.out 2>&1; then
        passed=$((passed + 1))
        echo "ok $what"
    else
        failed=$((failed + 1))
        echo "not ok $what"
        { echo "$*"; tail -n 15 check.out; } | note
        [[ -s tapdeck.log ]] && tail -n 15 tapdeck.log | note
    fi
}

equal() {
    echo "$1, should be $2"
    [[ "$1" == "$2" ]]
}

not() { ! "$@"; }

# wait_for COMMAND...: until it succeeds, at most 20 seconds, or as many as `patience` says.
wait_for() {
    local end=$((SECONDS + ${patience:-20}))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
}

in_a() { ip netns exec a "$@"; }
in_b() { ip netns exec b "$@"; }

# lay_cable [QUEUES]: of each end; else one for each CPU.
lay_cable() {
    ip link add va netns a address $MAC_A ${1:+numtxqueues $1 numrxqueues $1} type veth \
        peer name vb netns b address $MAC_B ${1:+numtxqueues $1 numrxqueues $1}
    in_a sysctl -q net.ipv6.conf.va.disable_ipv6=1
    in_b sysctl -q net.ipv6.conf.vb.disable_ipv6=1
    ip -n a addr add 10.0.0.1/24 dev va
    ip -n b addr add $ADDRESS_B/24 dev vb
    # At the tcx hook packets that leave have not been segmented yet; where tcpdump listens they
    # have.
    in_a ethtool -K va tso off gso off gro off
    in_b ethtool -K vb tso off gso off gro off
    ip -n a link set va up
    ip -n b link set vb up
    ip -n a neigh replace $ADDRESS_B lladdr $MAC_B nud permanent dev va
    ip -n a neigh replace $NOBODY lladdr $MAC_B nud permanent dev va
    ip -n b neigh replace 10.0.0.1 lladdr $MAC_A nud permanent dev vb
} >>setup.log 2>&1

lay_vlan() {
    ip -n a link add link va name va.7 type vlan id 7
    ip -n b link add link vb name vb.7 type vlan id 7
    in_a sysctl -q net.ipv6.conf.va/7.disable_ipv6=1
    in_b sysctl -q net.ipv6.conf.vb/7.disable_ipv6=1
    ip -n a addr add 10.7.0.1/24 dev va.7
    ip -n a link set va.7 up
    ip -n b link set vb.7 up
    ip -n a neigh replace $NOBODY_VLAN lladdr $MAC_B nud permanent dev va.7
} >>setup.log 2>&1

# new_store DIRECTORY: an empty one, at store.
new_store() {
    rm -rf "$1" store
    mkdir "$1"
    ln -s "$1" store
    sync
}

# begin TEST [QUEUES]: a new pair of namespaces, an empty directory.
begin() {
    test=$1
    ip netns del a 2>/dev/null
    ip netns del b 2>/dev/null
    rm -rf "$WORK"
    mkdir "$WORK" && cd "$WORK" || exit 1
    new_store $STORE
    ip netns add a
    ip netns add b
    ip -n a link set lo up
    ip -n b link set lo up
    lay_cable ${2:-}
}

# send COUNT TO [PAUSE]: UDP datagrams of growing size, to the ports from 10000 on.
send() {
    # Not with read -t, which waits for as long as the clock was stepped back.
    in_a bash -c '
        for ((i = 0; i < $0; i++)); do
            printf "%*d" $((i * 11 % 1400 + 1)) $i >/dev/udp/$1/$((10000 + i))
            [[ -z "$2" ]] || sleep $2
        done' "$1" "$2" "${3:-}"
}

ping_b() { in_a ping -q -n -f -c "$1" -W 5 $ADDRESS_B >ping.out; }

# record OPTION...: starts a recorder of vb and waits until it records. An emulated processor takes
# its time to verify the larger programs.
record() {
    rm -f tapdeck.log stats.json
    ip netns exec b tapdeck record -i vb --stats-json stats.json "$@" >tapdeck.out 2>tapdeck.log &
    recorder=$!
    patience=120 wait_for records_or_gone
}

runs() { [[ -d /proc/$recorder ]]; }
records_or_gone() { grep -q 'recording vb' tapdeck.log || not runs; }

stop() {
    kill -INT $recorder 2>/dev/null
    wait $recorder
}

# number KEY: of the recorder's last line of statistics.
number() { tail -n 1 stats.json 2>/dev/null | grep -o "\"$1\":[0-9]*" | head -n 1 | cut -d : -f 2; }

accounted() {
    tail -n 1 stats.json
    tail -n 1 stats.json | grep -q '"final":true' \
        && (($(number seen) == $(number captured) + $(number filtered) + $(number cutoff) + $(number dropped_ring) + $(number dropped_other)))
}

# until_seen COUNT: waits until the recorder says that it has seen so many.
seen() { not runs || (($(number seen) >= $1)); }
until_seen() { wait_for seen "$1"; }

# tcpdump_on NAMESPACE DEVICE OPTION...: starts tcpdump beside the recorder.
tcpdump_on() {
    local namespace=$1 device=$2
    shift 2
    ip netns exec "$namespace" tcpdump -Z root -i "$device" -nn --immediate-mode -U -s 0 -w tcpdump.pcap "$@" 2>tcpdump.log &
    tcpdump=$!
    wait_for grep -q 'listening on' tcpdump.log
}

stop_tcpdump() {
    kill -INT $tcpdump
    wait $tcpdump
}

segments() { find -L store -name 'tapdeck-*.pcapng' | sort; }

# frames FILE...: each frame as one line of text without its time.
frames() {
    local file
    for file in "$@"; do tcpdump -Z root -r "$file" -t -nn -xx 2>>read.log; done \
        | awk '/^\t0x/ { sub(/^[^:]*:/, ""); gsub(/ /, ""); line = line $0; next } { if (line) print line; line = "" }
            END { if (line) print line }'
}

# The lines of tcpdump for the packets of the store, with options.
dumped() {
    local file
    for file in $(segments); do tcpdump -Z root -r "$file" -nn "$@" 2>>read.log; done
}

count() { wc -l | tr -d ' '; }

# Whatever tcpdump takes a datagram for: by its drawn source port it may be another protocol's.
ports() { dumped -t | grep -oE '> [^ ]+\.1[0-9]{4}: ' | sort -u | count; }

same_frames() {
    frames $(segments) | sort >ours
    frames tcpdump.pcap | sort >theirs
    echo "$(count <ours) frames, tcpdump has $(count <theirs)"
    [[ -s ours ]] && cmp ours theirs
}

# tcpdump says which file it reads; everything else is a complaint.
no_complaint() {
    grep -v '^reading from file' read.log
    not grep -qv '^reading from file' read.log
}

# hook HOOK EXPECTED SIDE OPTION...: sends, and compares with tcpdump on side a or b.
hook() {
    local hook=$1 expected=$2 side=$3
    shift 3
    begin "hook $hook"
    case $side in
        inbound) tcpdump_on b vb -Q in ;;
        both) tcpdump_on b vb ;;
        sent) tcpdump_on a va -Q out ;;
    esac
    record --hook "$hook" --dir store "$@"
    send 300 $NOBODY
    [[ $side == sent ]] || ping_b 100
    until_seen "$expected"
    stop
    check "the recorder ends well" equal $? 0
    sleep 0.3
    stop_tcpdump
    check "$expected packets are captured" equal "$(number captured)" "$expected"
    check "seen = captured + filtered + dropped" accounted
    check "every frame is the same as tcpdump's" same_frames
    check "tcpdump reads the segments without complaint" no_complaint
}

# --- the tests

test_probe() {
    begin probe
    tapdeck probe >probe.out 2>tapdeck.log
    check "it runs" equal $? 0
    note <probe.out
    check "xdp works" grep -qE '^  xdp +yes' probe.out
    check "xdp-generic works" grep -qE '^  xdp-generic +yes' probe.out
    check "tcx works by clsact" grep -qE '^  tcx +yes: .*clsact' probe.out
    check "netfilter does not, since it came with 6.4" grep -qE '^  netfilter +no: .*6\.4' probe.out
    check "tpacket works" grep -qE '^  tpacket +yes' probe.out
    check "recv works" grep -qE '^  recv +yes' probe.out
    check "afxdp works" grep -qE '^  afxdp +yes' probe.out
    in_b tapdeck probe -i vb >probe.out 2>tapdeck.log
    check "it knows an interface" grep -q '^vb (veth): up, MTU 1500' probe.out
    note <probe.out
    if ! grep -qE '^  xdp +yes' probe.out; then
        TAPDECK_LIBBPF_LOG=1 tapdeck probe 2>&1 | grep -v '^libbpf: \(map\|sec\|elf\|CO-RE\)' | tail -n 60 | note
    fi
}

test_hook_xdp() { hook xdp 400 inbound; }
# Asked for by name, the clock of the poll is not given up silently where the verifier refuses it.
test_hook_xdp_batch() {
    hook xdp 400 inbound --clock batch
    hook xdp 400 inbound --clock batch --cutoff 1GiB
    echo 'accept src any dst any sport any dport any proto any' >/tmp/accept-all
    hook xdp 400 inbound --clock batch --rules /tmp/accept-all
}
test_hook_xdp_generic() { hook xdp-generic 400 inbound; }
test_hook_tcx() { hook tcx 500 both; }
test_hook_tpacket() { hook tpacket 500 both; }
test_hook_recv() { hook recv 500 both; }
test_hook_afxdp() { hook afxdp 300 sent --deliver consume; }

test_hook_netfilter() {
    begin "hook netfilter"
    in_b tapdeck record -i vb --hook netfilter --dir store >tapdeck.out 2>tapdeck.log
    check "it is refused" equal $? 1
    check "with one line" equal "$(count <tapdeck.log)" 1
    check "that says that it came with 6.4" grep -q 'netfilter.*6\.4' tapdeck.log
    note <tapdeck.log
}

test_filter() {
    local hook
    for hook in tpacket recv xdp xdp-generic tcx 'afxdp --deliver consume'; do
        begin "filter at ${hook%% *}"
        record --hook $hook --dir store --filter 'udp and greater 700'
        send 300 $NOBODY
        # Where they are taken away, nobody answers.
        [[ $hook == afxdp* ]] || ping_b 10
        sleep 2
        stop
        # 42 bytes of headers and i * 11 % 1400 + 1 of payload.
        local i expected=0
        for ((i = 0; i < 300; i++)); do ((42 + i * 11 % 1400 + 1 >= 700)) && expected=$((expected + 1)); done
        check "$expected packets match" equal "$(number captured)" $expected
        check "seen = captured + filtered + dropped" accounted
        # A socket does not count what its filter refuses. tcx sees answers as well.
        case $hook in
            xdp*) check "the others are counted" equal "$(number filtered)" $((310 - expected)) ;;
            tcx) check "the others are counted" equal "$(number filtered)" $((320 - expected)) ;;
            afxdp*) check "the others are counted" equal "$(number filtered)" $((300 - expected)) ;;
        esac
    done
}

test_rules() {
    local hook
    for hook in xdp xdp-generic tcx; do
        begin "rules at $hook"
        cat >rules <<'END'
accept src any dst 10.0.0.0/8 sport any dport 10007 proto udp
snaplen=64 src any dst any sport any dport 10008 proto udp
drop src 10.0.0.0/8 dst any sport any dport any proto udp
accept src 2001:db8::/32 dst any sport any dport any proto tcp
accept src any dst any sport any dport any proto icmp
END
        record --hook $hook --dir store --rules rules
        send 300 $NOBODY
        until_seen 300
        stop
        check "two packets are taken" equal "$(number captured)" 2
        check "the others are refused" equal "$(number filtered)" 298
        check "seen = captured + filtered + dropped" accounted
    done
}

test_groups() {
    local hook
    for hook in xdp tcx; do
        begin "groups at $hook"
        cat >groups.toml <<END
[[group]]
name = "shared"
interfaces = ["vb"]
hook = "$hook"
filter = "udp"
[[group]]
name = "copied"
interfaces = ["vb"]
hook = "$hook"
snaplen = 64
steering = "copy"
END
        ip netns exec b tapdeck serve --config groups.toml --socket socket --stats-json stats.json 2>tapdeck.log &
        recorder=$!
        wait_for grep -q 'serving at' tapdeck.log
        local members=() i
        for i in 1 2 3 4; do
            tapdeck attach --socket socket --group $( ((i < 3)) && echo shared || echo copied) -w member$i.pcapng 2>member$i.log &
            members+=($!)
            wait_for grep -q 'of group' member$i.log
        done
        send 300 $NOBODY
        # Each flow's packets have a port of their own.
        wait_for shared_so_far 300
        sleep 1
        kill -INT "${members[@]}"
        wait "${members[@]}"
        stop
        check "two members share the packets" equal "$(frames member1.pcapng member2.pcapng | sort -u | count)" 300
        check "both have some" test "$(frames member1.pcapng | count)" -gt 50 -a "$(frames member2.pcapng | count)" -gt 50
        check "two have a copy each" equal "$(frames member3.pcapng | count) $(frames member4.pcapng | count)" "300 300"
        check "the daemon ends well" equal "$(tail -n 1 stats.json | grep -c '"final":true')" 1
    done
}

shared_so_far() { (($(frames member1.pcapng member2.pcapng | count) >= $1)); }

test_consume() {
    local hook
    for hook in xdp tcx; do
        begin "consume at $hook"
        record --hook $hook --deliver consume --dir store
        in_a ping -q -n -c 3 -i 0.2 -W 1 $ADDRESS_B >ping.out
        check "no packet reaches the host" grep -q ' 0 received' ping.out
        until_seen 3
        stop
        check "but the store" equal "$(number captured)" 3
    done
}

# filters DIRECTION: how many filters are at clsact.
filters() { tc -n b filter show dev vb "$1" | grep -c 'handle'; }

no_filters() { [[ "$(filters ingress) $(filters egress)" == "0 0" ]]; }

kill_with_helper() {
    # Its one child.
    kill -KILL $(cat /proc/$recorder/task/*/children) $recorder 2>/dev/null
    wait $recorder 2>/dev/null
}

test_clsact() {
    begin clsact
    record --hook tcx --dir store
    check "the recorder says that a filter does the work of tcx" grep -q 'clsact filters on vb' tapdeck.log
    check "a filter inbound" equal "$(filters ingress)" 1
    check "a filter outbound" equal "$(filters egress)" 1
    stop
    check "after the end there is none inbound" equal "$(filters ingress)" 0
    check "after the end there is none outbound" equal "$(filters egress)" 0

    record --hook tcx --dir store
    kill -KILL $recorder 2>/dev/null
    wait $recorder 2>/dev/null
    check "the helper of a recorder that is killed takes its filters away" wait_for no_filters
    new_store $STORE
    record --hook tcx --dir store
    kill_with_helper
    check "a recorder that is killed with its helper leaves its filters" equal "$(filters ingress) $(filters egress)" "1 1"
    new_store $STORE
    record --hook tcx --dir store
    check "the next one replaces them" equal "$(filters ingress) $(filters egress)" "1 1"
    send 100 $NOBODY
    ping_b 20
    until_seen 140
    stop
    check "each packet is recorded once" equal "$(number captured) $(dumped -t | count)" "140 140"
    check "and no filter is left" equal "$(filters ingress) $(filters egress)" "0 0"
}

both_filters() { [[ "$(filters ingress) $(filters egress)" == "1 1" ]]; }
has_unseen() { not runs || (($(number unseen) >= 1)); }

# The programs are those of vb in both directions; `qdisc del` takes both away.
test_clsact_detached() {
    begin "clsact that is taken away"
    record --hook tcx --dir store
    send 50 $NOBODY
    until_seen 50
    ip netns exec b tapdeck record -i vb --hook tcx --no-store --duration 1s >second.log 2>&1
    check "a second recorder is refused" grep -q 'another recorder has its clsact filter' second.log
    check "and leaves the filters of the first" both_filters
    # Some of them before the recorder looks again.
    in_a ping -q -n -i 0.1 -c 30 -W 5 $ADDRESS_B >ping.out &
    local pings=$!
    sleep 0.2
    tc -n b qdisc del dev vb clsact
    wait $pings
    check "the filters are put there again" wait_for both_filters
    check "what was missed is said" wait_for has_unseen
    send 70 $NOBODY
    until_seen $((180 - $(number unseen)))
    stop
    check "seen + unseen is what vb received and sent" \
        equal "$(($(number captured) + $(number unseen)))" 180
    check "seen = captured + filtered + dropped" accounted
    check "and no filter is left" equal "$(filters ingress) $(filters egress)" "0 0"
}

gets_through() { in_a ping -q -n -c 1 -W 1 $ADDRESS_B; }

test_clsact_abandoned() {
    begin "clsact whose recorder was killed"
    record --hook tcx --deliver consume --abandon 3s --dir store
    check "no packet gets through" not gets_through
    kill_with_helper
    check "its filters stay" both_filters
    check "and let packets pass in the end" wait_for gets_through
    new_store $STORE
    record --hook tcx --dir store
    send 50 $NOBODY
    until_seen 50
    stop
    check "the next recorder takes them again" equal "$(number captured)" 50
    check "and no filter is left" equal "$(filters ingress) $(filters egress)" "0 0"
}

persisted() { ip netns exec b tapdeck ctl persist "$@"; }

test_persist() {
    local hook
    mkdir -p /run/bpf
    mount -t bpf bpf /run/bpf
    export TAPDECK_PERSIST=/run/bpf/tapdeck
    for hook in xdp tcx; do
        begin "--persist at $hook"
        record --hook $hook --persist tape --dir store
        send 50 $NOBODY
        until_seen 50
        kill -KILL $recorder 2>/dev/null
        wait $recorder 2>/dev/null
        send 30 $NOBODY
        record --hook $hook --persist tape --dir store
        send 20 $NOBODY
        until_seen 100
        check "another recorder has taken over" equal "$(number takeovers)" 1
        stop
        check "each packet is recorded once" equal "$(number captured) $(dumped -t | count)" "100 100"
        check "seen = captured + filtered + dropped" accounted
        check "what stays is taken away" persisted drop tape
        check "and nothing of it is left" equal "$(ls $TAPDECK_PERSIST)" ""
    done
    unset TAPDECK_PERSIST
    umount /run/bpf
}

has_shed() { (($(number shed_packets) > 100 && $(number shed_bytes) > 100 * 1000)); }

test_overload() {
    local hook sides
    for hook in xdp tcx; do
        begin "--on-overload shed at $hook"
        sides=1
        [[ $hook == xdp ]] || sides=2
        record --hook $hook --on-overload shed --block-bytes 64KiB --ring-bytes $((512 * sides))KiB \
            --snaplen 2000 --dir store
        # While it is stopped nobody empties the rings, of which three quarters hold 270 of these.
        kill -STOP $recorder
        in_a ping -q -n -f -c 600 -s 1400 -W 5 $ADDRESS_B >ping.out
        kill -CONT $recorder
        until_seen $((600 * sides))
        send 20 $NOBODY
        until_seen $((600 * sides + 20))
        stop
        check "all packets are captured" equal "$(number captured) $(number dropped_ring)" "$((600 * sides + 20)) 0"
        check "some of them cut short" has_shed
        check "seen = captured + filtered + dropped" accounted
        check "the store is right" tapdeck verify --dir store
        check "tcpdump reads the segments without complaint" no_complaint
    done
}

# Datagrams to one port are one flow, which is cut off behind its first 2000 bytes.
test_cutoff() {
    local hook sides
    for hook in xdp tcx; do
        begin "--cutoff at $hook"
        sides=1
        [[ $hook == xdp ]] || sides=2
        record --hook $hook --cutoff 2000 --dir store
        in_a bash -c '
            exec 3>/dev/udp/$0/10000
            for ((i = 0; i < 100; i++)); do printf "%500d" $i >&3; done' $NOBODY
        ping_b 10
        until_seen $((100 + 10 * sides))
        stop
        # Four frames of 542 bytes begin within 2000.
        check "the flow's first bytes are there" equal "$(ports) $(dumped -t 'udp' | count)" "1 4"
        check "what comes behind them is counted" equal "$(number cutoff)" 96
        check "seen = captured + filtered + cutoff + dropped" accounted
        check "the store is right" tapdeck verify --dir store
    done
}

has_no_xdp() { [[ "$(ip -n b link show vb)" != *xdp* ]]; }

test_xdp_killed() {
    local hook
    for hook in xdp xdp-generic 'afxdp --deliver consume'; do
        begin "kill -9 at ${hook%% *}"
        record --hook $hook --no-store
        check "a program is attached" not has_no_xdp
        kill -KILL $recorder 2>/dev/null
        wait $recorder 2>/dev/null
        check "it is gone with the recorder" wait_for has_no_xdp
        record --hook $hook --dir store
        send 50 $NOBODY
        until_seen 50
        stop
        check "and another one can record" equal "$(number captured)" 50
    done
}

# A segment's times, checked: none goes back by more than $1 ms, all are within ten minutes.
times_of_segments() {
    local file bad=0
    [[ -n "$(segments)" ]] || return 1
    for file in $(segments); do
        tcpdump -Z root -r "$file" -tt -nn 2>>read.log | awk -v allowed="$1" -v name="$file" '
            NR > 1 && before - $1 > back { back = before - $1 }
            NR == 1 || $1 < first { first = $1 }
            $1 > last { last = $1 }
            { before = $1 }
            END {
                printf "%s: %d packets over %.3f s, at most %.3f ms back\n", name, NR, last - first, back * 1000
                exit back * 1000 > allowed || last - first > 600
            }' || bad=1
    done
    return $bad
}

# clock_step HOOK MS OPTION...: times may go back by MS. Hooks with a ring for each CPU write one
# ring's block after the other's.
clock_step() {
    local hook=$1 allowed=$2
    shift 2
    begin "clock step at $hook" 1
    record --hook "$hook" --dir store "$@"
    send 1000 $NOBODY 0.005 &
    local sender=$!
    sleep 2
    date -s "@$(($(date +%s) - 3600))" >/dev/null
    sleep 2
    date -s "@$(($(date +%s) + 3600))" >/dev/null
    wait $sender
    until_seen 1000
    stop
    check "the recorder says that the clock went back" grep -q 'clock was stepped by -3[56]' tapdeck.log
    check "and that it went forward" grep -q 'clock was stepped by +3[56]' tapdeck.log
    # Hooks with several rings may take one more, as one ring's new block comes before another's old
    # one.
    check "each step begins a segment" test "$(segments | count)" -ge 3
    check "in none of them time jumps" times_of_segments "$allowed"
    times_of_segments "$allowed" | note
    check "all packets are captured" equal "$(number captured)" 1000
    check "and each is there" equal "$(ports)" 1000
}

test_clock_xdp() { clock_step xdp 5; }
test_clock_tcx() { clock_step tcx 1000; }
test_clock_tpacket() { clock_step tpacket 5; }
test_clock_recv() { clock_step recv 5; }
test_clock_afxdp() { clock_step afxdp 5 --deliver consume; }

tagged() { dumped -e -t | grep -c 'vlan 7,'; }

test_vlan() {
    local hook
    for hook in tcx tpacket recv; do
        begin "VLAN at $hook"
        lay_vlan
        record --hook $hook --dir store
        send 60 $NOBODY_VLAN
        send 40 $NOBODY
        until_seen 100
        stop
        check "100 packets" equal "$(number captured)" 100
        check "60 with their tag" equal "$(tagged)" 60
    done
    for hook in xdp xdp-generic; do
        begin "VLAN at $hook"
        lay_vlan
        record --hook $hook --dir store
        send 60 $NOBODY_VLAN
        until_seen 60
        stop
        check "60 packets" equal "$(number captured)" 60
        if (($(tagged) == 60)); then
            check "with their tag" true
        else
            check "the tag is gone, and the recorder says so and what to do" grep -q 'takes VLAN tags off.*rxvlan off' tapdeck.log
        fi

        begin "VLAN in the frame at $hook"
        lay_vlan
        in_a ethtool -K va txvlan off
        in_b ethtool -K vb rxvlan off
        record --hook $hook --dir store
        send 60 $NOBODY_VLAN
        until_seen 60
        stop
        check "60 packets with their tag" equal "$(number captured) $(tagged)" "60 60"
        check "and no warning" not grep -q 'takes VLAN tags off' tapdeck.log
    done
}

# The device is deleted and made anew while it is recorded.
test_device_again() {
    local hook
    for hook in xdp tcx tpacket 'afxdp --deliver consume'; do
        begin "device made anew at ${hook%% *}"
        record --hook $hook --dir store
        send 50 $NOBODY
        until_seen 50
        ip -n b link del vb
        wait_for grep -q 'vb is gone' tapdeck.log
        check "the recorder says that it is gone" grep -q 'vb is gone' tapdeck.log
        lay_cable
        wait_for grep -q 'vb is back' tapdeck.log
        check "and that it is back" grep -q 'vb is back' tapdeck.log
        send 70 $NOBODY
        until_seen 120
        stop
        check "and records the packets before and after" equal "$(number captured)" 120
        check "seen = captured + filtered + dropped" accounted
    done
}

# The interface has an IP address, or none.
test_auto() {
    begin auto
    record --no-store --duration 1s
    wait $recorder
    check "tcx where there is an address" grep -q 'recording vb at hook tcx (auto' tapdeck.log
    ip -n b addr flush dev vb
    record --no-store --duration 1s
    wait $recorder
    check "xdp where there is none" grep -q 'recording vb at hook xdp (auto' tapdeck.log
}

# store_with OPTION...: records into store/.
store_with() {
    record --hook xdp --dir store --segment-size 8MiB --block-bytes 128KiB "$@"
    send 900 $NOBODY
    until_seen 900
    stop
    check "the recorder ends well" equal $? 0
    check "all is captured and there" equal "$(number captured) $(ports)" "900 900"
    check "seen = captured + filtered + dropped" accounted
    check "tcpdump reads the segments without complaint" no_complaint
    check "no live segment is left" equal "$(find -L store -name '*.live' | count)" 0
}

test_file_systems() {
    local direct
    for direct in on off; do
        begin "store on ext4, --direct $direct"
        store_with --direct $direct
    done

    # It can be written past the page cache since 6.6.
    begin "store on tmpfs, --direct on"
    new_store /tmp/store
    in_b tapdeck record -i vb --hook xdp --dir store --direct on --duration 1s >tapdeck.out 2>tapdeck.log
    check "it is refused" equal $? 1
    check "and why is said" grep -q 'cannot write past the page cache' tapdeck.log

    begin "store on tmpfs, --direct auto"
    new_store /tmp/store
    store_with --direct auto
}

# Many packets: several blocks of each ring and several segments.
test_volume() {
    local hook
    for hook in xdp tcx tpacket; do
        begin "many packets at $hook"
        record --hook $hook --dir store --segment-size 8MiB --block-bytes 128KiB --snaplen 2000
        in_a ping -q -n -f -l 20 -s 1400 -c 8000 $ADDRESS_B >ping.out
        local both=16000
        [[ $hook == xdp ]] && both=8000
        until_seen $both
        stop
        check "$both packets" equal "$(number captured) $(dumped -t | count)" "$both $both"
        check "several segments" test "$(segments | count)" -gt 1
        check "seen = captured + filtered + dropped" accounted
        check "tcpdump reads the segments without complaint" no_complaint
    done
}

# Prints the tests of cargo's test programs, as PROGRAM/TEST. Each runs alone: they compare counts
# and wait, and this machine is slow.
cargo_tests() {
    local program
    for program in /tests/*; do
        "$program" --list --format terse | sed -n "s|^\(.*\): test$|${program#/tests/}/\1|p"
    done
}

cargo_test() {
    begin "${1%/*}"
    check "${1#*/}" timeout 300 "/tests/${1%/*}" --exact "${1#*/}" --nocapture
    grep '^skipped' check.out | note
}

words=("$@")

# Whether a name has one of the words that this was called with.
is_wanted() {
    local word
    for word in "${words[@]}"; do [[ $1 == *"$word"* ]] && return; done
    ((! ${#words[@]}))
}

for name in $(declare -F | grep -o 'test_.*') $(cargo_tests); do
    is_wanted "$name" || continue
    began=$SECONDS
    if [[ $name == */* ]]; then cargo_test "$name"; else "$name"; fi
    echo "# $name took $((SECONDS - began)) s"
done
echo "$passed passed, $failed failed"
