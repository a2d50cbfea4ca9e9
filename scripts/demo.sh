#!/usr/bin/env bash
# Shows tapdeck at work: two network namespaces joined by a cable (a veth pair), real programs
# talking across it, and tapdeck recording one end at two hooks at once, beside tcpdump. Then every
# frame that tapdeck stored is compared with tcpdump's file. After that tapdeck itself sends
# numbered packets of the lengths that it has just seen, so that each recorded packet can be held
# against the one that was sent: at a steady pace, with faults planted in the recording, and as fast
# as it goes. The store is asked, too, and its answers are held against tcpdump's. Exits with 1 if a
# single frame or answer differs, or if a packet is missing that nobody says was dropped.
#
#   scripts/demo.sh PROGRAM    as `make demo` runs it, which builds the program first
set -euo pipefail

PATH="$PATH:/usr/sbin:/sbin"

SERVER=tapdeck-demo-$$-server
CLIENT=tapdeck-demo-$$-client
# The two ends of the cable.
SERVER_MAC=02:00:00:00:00:01
CLIENT_MAC=02:00:00:00:00:02
VLAN=42

NAME=tape.example # what dnsmasq answers for
DNSMASQ_OPTIONS=(--keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts --user=root --pid-file
    "--address=/$NAME/192.0.2.1" "--address=/$NAME/2001:db8::1")

# What is generated: many flows, the first of them the busiest.
WORKLOAD=(--flows 1000 --zipf 1.1 --proto "udp,tcp,icmp" --vlan "$VLAN")
PACED=(--count 100000 --rate 40kpps) # about 60 MB/s for the disk
FLAT_OUT=(--count 200000 --rate max)
# Rings whose share for each of two CPUs holds all that is sent lose nothing, however long the disk
# takes.
TALK_RING=128MiB
PACED_RING=512MiB
# And one that must overflow.
FLAT_OUT_RING=8MiB

dir=
has_vlan=no
started=() # process ids, oldest first

title() { printf '\n== %s\n\n' "$*"; }

fail() {
    echo "demo: $*" >&2
    exit 1
}

# Whether the kernel is of this version or later.
at_least() { [[ "$(printf '%s\n' "$1" "$(uname -r)" | sort -V | head -n 1)" == "$1" ]]; }

on_server() { ip netns exec "$SERVER" "$@"; }
on_client() { ip netns exec "$CLIENT" "$@"; }

# start SIDE NAME COMMAND...: runs a program on one side; what it says goes to NAME.log.
start() {
    local side=$1 name=$2
    shift 2
    ip netns exec "$side" "$@" >"$dir/$name.log" 2>&1 </dev/null &
    started+=($!)
}

# wait_for WHAT COMMAND...: until the command succeeds, for about a minute at most.
wait_for() {
    local what=$1 tries
    shift
    for ((tries = 0; tries < 1200; tries++)); do
        if "$@"; then return; fi
        sleep 0.05
    done
    tail -n 5 "$dir"/*.log >&2
    fail "waited in vain for $what"
}

says() { grep -qs "$2" "$dir/$1.log"; }
listens() { ip netns exec "$1" ss -Hln "$2" "sport = :$3" | grep -q .; }
# Whether tcpdump has written all that the kernel holds for it: it says both counts when asked.
tcpdump_caught_up() {
    kill -USR1 "$tcpdump"
    tail -n 1 "$dir/tcpdump.log" | awk '{ exit !(/packets captured,/ && $2 == $5) }'
}
has_link() { on_server cat /sys/class/net/cable/operstate | grep -q up; }

# Starts the gateway as the demonstration's last line says, takes what a browser would, and ends it.
look_at_console() {
    local url token packets
    "${tapdeck%/*}/tapdeck-gateway" --store "$dir/paced" >"$dir/console.log" 2>&1 </dev/null &
    started+=($!)
    wait_for "the console" says console '#token='
    url=$(grep -o 'http://.*#token=.*' "$dir/console.log")
    token=${url#*#token=}
    echo "tapdeck-gateway --store $dir/paced"
    echo "    $url"
    # The whole page is read: curl fails where its reader has seen enough.
    curl -fsS "${url%#*}" | grep '<title>tapdeck</title>' >/dev/null || fail "the console gives no page"
    packets=$(curl -fsS -H "Authorization: Bearer $token" "${url%console/*}v1/stat" \
        | grep -o '"packets":[0-9]*')
    echo "    its page tells of ${packets#*:} packets"
    stop_all
}

# Ends what runs, newest first, and waits for it.
stop_all() {
    local i
    for ((i = ${#started[@]} - 1; i >= 0; i--)); do
        kill -TERM "${started[i]}" 2>/dev/null || true
    done
    wait "${started[@]}" || true
    started=()
}

clean_up() {
    trap '' INT TERM
    if ((${#started[@]})); then stop_all; fi
    ip netns del "$SERVER" 2>/dev/null || true
    ip netns del "$CLIENT" 2>/dev/null || true
    if [[ -n "$dir" ]]; then rm -rf "$dir"; fi
}

# Lays the cable, with an end called `cable` in each namespace, and leaves it unplugged: the
# client's end is down. The client sends whole frames, and the server does not join them again
# before it counts them. The server leaves segmenting and checksums to the cable, so that the tcx
# hook and tcpdump, which listens behind it, see the same: segments of up to 64 KiB whose checksums
# are not filled in yet.
lay_cable() {
    local side n=1
    ip netns add "$SERVER"
    ip netns add "$CLIENT"
    ip link add cable netns "$SERVER" address $SERVER_MAC type veth \
        peer name cable netns "$CLIENT" address $CLIENT_MAC
    for side in "$SERVER" "$CLIENT"; do
        ip -n "$side" link set lo up
        add_vlan "$side" $n
        n=$((n + 1))
    done
    on_client ethtool -K cable tx off tso off gso off gro off >/dev/null
    ip -n "$SERVER" link set cable up
}

# A VLAN interface on the cable, where the kernel has such (CONFIG_VLAN_8021Q).
add_vlan() {
    if ip -n "$1" link add link cable name vlan type vlan id $VLAN 2>"$dir/vlan.log"; then
        has_vlan=yes
        ip -n "$1" addr add "198.51.100.$2/24" dev vlan
        # Before 6.8 no XDP program can ask for a tag that travels beside the frame: put the tag
        # into the frame.
        at_least 6.8 || ip netns exec "$1" ethtool -K cable txvlan off >/dev/null
    else
        grep -q 'Unknown device type' "$dir/vlan.log" || fail "$(cat "$dir/vlan.log")"
    fi
}

plug_in() {
    # Not before: the kernel turns GRO on when a program comes to the XDP hook.
    on_server ethtool -K cable gro off
    ip -n "$CLIENT" link set cable up
    wait_for "the link" has_link
    local side n=1
    for side in "$SERVER" "$CLIENT"; do
        ip -n "$side" addr add 192.0.2.$n/24 dev cable
        ip -n "$side" addr add 2001:db8::$n/64 dev cable nodad
        n=$((n + 1))
    done
    if [[ $has_vlan == yes ]]; then
        ip -n "$SERVER" link set vlan up
        ip -n "$CLIENT" link set vlan up
    fi
}

# Unplugs the cable before a recorder stops, so that all three saw the same. What the server would
# send without a link, tcx sees and tcpdump does not; so the server falls silent first.
unplug() {
    on_server sysctl -qw net.ipv6.conf.cable.disable_ipv6=1
    ip -n "$SERVER" addr flush dev cable
    if [[ $has_vlan == yes ]]; then ip -n "$SERVER" link del vlan; fi
    ip -n "$CLIENT" link set cable down
}

# fetch SIDE HOST FILE: downloads a file to that side and compares it with what was served.
fetch() {
    ip netns exec "$1" curl -sSf --globoff --max-time 60 -o "$dir/fetched" "http://$2:8000/$3"
    cmp "$dir/fetched" "$dir/www/$3" || fail "$3 did not arrive as it was sent"
    echo "curl     http://$2/$3: $(stat -c %s "$dir/fetched") bytes, as they were sent"
}

# look_up ANSWER OPTION...: asks for NAME.
look_up() {
    local answer=$1 got
    shift
    got=$(on_client dig +short +time=30 +tries=1 @192.0.2.1 "$NAME" "$@")
    [[ "$got" == "$answer" ]] || fail "dig $* got '$got'"
    echo "dig      $NAME $*: $got"
}

# echo_to ADDRESS SIZE: 20 pings that must all come back.
echo_to() {
    local said
    said=$(on_client ping -q -c 20 -i 0.02 -W 5 -s "$2" "$1") || true
    grep -q '20 received' <<<"$said" || fail "ping $1: $said"
    echo "ping     $1: 20 of 20 with $2 bytes each came back"
}

talk() {
    local i
    echo_to 192.0.2.1 56
    echo_to 192.0.2.1 4000
    echo_to 2001:db8::1 1400
    look_up 192.0.2.1 A
    look_up 2001:db8::1 AAAA
    look_up 192.0.2.1 A +tcp
    fetch "$CLIENT" 192.0.2.1 film
    fetch "$CLIENT" '[2001:db8::1]' film
    fetch "$SERVER" 192.0.2.2 film
    fetch "$SERVER" '[2001:db8::2]' film
    for i in {1..40}; do fetch "$CLIENT" 192.0.2.1 page; done | sed -n '$s/$/, 40 times/p'
    if [[ $has_vlan == yes ]]; then
        echo_to 198.51.100.1 56
        fetch "$CLIENT" 198.51.100.1 page
        fetch "$SERVER" 198.51.100.2 page
    else
        send_tagged
    fi
}

# Without VLAN interfaces: frames with a tag, made by hand.
send_tagged() {
    on_client python3 - "$SERVER_MAC" "$CLIENT_MAC" $VLAN <<'END'
import socket, struct, sys
to, sender, vlan = sys.argv[1:]
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(("cable", 0))
mac = lambda text: bytes.fromhex(text.replace(":", ""))
for n in range(100):
    data = f"tagged frame {n}".encode()
    udp = struct.pack("!4H", 4242, 9, 8 + len(data), 0) + data
    ip = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), n, 0, 64, 17, 0))
    ip += socket.inet_aton("198.51.100.2") + socket.inet_aton("198.51.100.1")
    total = sum(struct.unpack("!10H", ip))
    ip[10:12] = struct.pack("!H", 0xFFFF - (total % 0xFFFF))
    out.send(mac(to) + mac(sender) + struct.pack("!3H", 0x8100, int(vlan), 0x0800) + ip + udp)
END
    echo "python3  100 frames with tag $VLAN, made by hand: this kernel has no VLAN interfaces"
}

# The frames of a file that one end sent, as one hash a line, sorted.
frames_from() {
    tshark -r "$1" -n -o frame.generate_md5_hash:TRUE -Y "eth.src == $2" -T fields -e frame.md5_hash \
        2>>"$dir/tshark.log" | LC_ALL=C sort
}

count() { wc -l <"$dir/$1"; }

# figure KEY: of the JSON object on standard input.
figure() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# A number that a recorder gave in its last statistics, which it writes once a second.
counted() { tail -n 1 "$dir/$1.json" | figure "$2"; }
captured() { counted "$1" captured; }

compare() {
    local tool total same=yes
    for tool in tcpdump xdp tcx; do
        frames_from "$dir/$tool.pcapng" $CLIENT_MAC >"$dir/$tool.in"
        frames_from "$dir/$tool.pcapng" $SERVER_MAC >"$dir/$tool.out"
    done
    printf '%-14s %10s %10s %10s   %s\n' recorder inbound outbound total 'same frames as tcpdump'
    printf '%-14s %10d %10d %10d\n' tcpdump "$(count tcpdump.in)" "$(count tcpdump.out)" \
        $(($(count tcpdump.in) + $(count tcpdump.out)))
    for tool in xdp tcx; do
        total=$(($(count $tool.in) + $(count $tool.out)))
        same=yes
        cmp -s "$dir/tcpdump.in" "$dir/$tool.in" || same=NO
        # XDP is where packets come in: it sees none that leave.
        if [[ $tool == xdp ]]; then [[ $total == $(count xdp.in) ]] || same=NO
        else cmp -s "$dir/tcpdump.out" "$dir/$tool.out" || same=NO; fi
        [[ $(captured $tool) == "$total" ]] || same="NO: it counted $(captured $tool)"
        printf '%-14s %10d %10d %10d   %s\n' "tapdeck $tool" "$(count $tool.in)" "$(count $tool.out)" $total "$same"
        [[ $same == yes ]] && continue
        verdict=1
        show_difference $tool tcpdump
        if [[ $tool == tcx ]]; then show_difference tcpdump tcx; fi
    done
}

# The first frames that only one of two recorders has.
show_difference() {
    local has=$1 lacks=$2 hash
    for hash in $(LC_ALL=C comm -23 <(LC_ALL=C sort "$dir/$has".in "$dir/$has".out) \
        <(LC_ALL=C sort "$dir/$lacks".in "$dir/$lacks".out) | sed 5q); do
        echo "only $has has: $(tshark -r "$dir/$has.pcapng" -n -o frame.generate_md5_hash:TRUE \
            -Y "frame.md5_hash == $hash" 2>>"$dir/tshark.log" | sed -n 1p)"
    done
}

show_vlan() {
    local tool tagged
    for tool in tcpdump xdp tcx; do
        tagged=$(tshark -r "$dir/$tool.pcapng" -n -Y "vlan.id == $VLAN" -T fields -e vlan.id 2>>"$dir/tshark.log" | wc -l)
        echo "$tool: $tagged frames with tag $VLAN"
        ((tagged)) || verdict=1
    done
    tshark -r "$dir/xdp.pcapng" -n -Y "vlan.id == $VLAN && ip" -T fields -E separator=, \
        -e frame.number -e vlan.id -e ip.src -e ip.dst -e _ws.col.Info 2>>"$dir/tshark.log" \
        | sed -n '1s/\(.*\),\(.*\),\(.*\),\(.*\),\(.*\)/for example at xdp: frame \1, tag \2, \3 > \4, \5/p'
}

# The cable carries nothing now but what is generated: no addresses, no neighbours to look for.
plug_in_again() {
    on_client sysctl -qw net.ipv6.conf.all.disable_ipv6=1
    ip -n "$CLIENT" link set cable up
    wait_for "the link" has_link
}

# Whether a recorder has seen as many packets as were sent.
has_seen_all() { [[ $(counted "$1" seen 2>/dev/null) == "$(figure sent <"$dir/$1.sent")" ]]; }

# generate NAME RING OPTION...: the client sends, and the server records into the store NAME with so
# large a ring.
generate() {
    local name=$1 ring=$2
    shift 2
    start "$SERVER" "$name" "$tapdeck" record -i cable --hook xdp --deliver consume \
        --ring-bytes "$ring" --dir "$dir/$name" --stats-json "$dir/$name.json"
    wait_for "tapdeck at xdp" says "$name" 'recording cable'
    on_client "$tapdeck" gen -i cable --size "dist:$dir/real.dist" "${WORKLOAD[@]}" "$@" \
        --json "$dir/$name.sent"
    wait_for "the last packet" has_seen_all "$name"
    "$tapdeck" top --once --dir "$dir/$name" >"$dir/$name.top"
    stop_all
    grep ' seen = ' "$dir/$name.log"
}

# check RECORDING SENT: prints what came back of what was sent, and keeps the figures as `found`.
# Faults do not end the demonstration: some are planted.
check() {
    local question=("$tapdeck" check-traffic "$dir/$1" --sent "$dir/$2.sent" --streams 5)
    "${question[@]}" --json >"$dir/found" 2>"$dir/check.log" || true
    [[ -s "$dir/found" ]] || fail "$(cat "$dir/check.log")"
    "${question[@]}" 2>/dev/null || true
}

# expect KEY NUMBER...: whether the judge found just that.
expect() {
    local got
    while (($#)); do
        got=$(figure "$1" <"$dir/found")
        [[ $got == "$2" ]] || differ "$1: $got, and not $2"
        shift 2
    done
}

differ() {
    echo "NO: $*"
    verdict=1
}

# In a copy of the recording: one packet taken out, one doubled, one spoilt from its 500th byte on.
plant_faults() {
    local out double spoil
    mergecap -w "$dir/copy.pcapng" "$dir"/paced/*.pcapng
    read -r out double spoil < <(tshark -r "$dir/copy.pcapng" -n -c 2000 -Y 'frame.len > 1000' -T fields \
        -e frame.number 2>>"$dir/tshark.log" | sed -n '100p;200p;300p' | paste -s -d ' ')
    editcap "$dir/copy.pcapng" "$dir/rest.pcapng" "$out" "$spoil"
    editcap -r "$dir/copy.pcapng" "$dir/double.pcapng" "$double"
    editcap -r -E 1 -o 500 "$dir/copy.pcapng" "$dir/spoilt.pcapng" "$spoil" >>"$dir/tshark.log" 2>&1
    mergecap -w "$dir/planted.pcapng" "$dir"/{rest,double,spoilt}.pcapng
    echo "editcap  packet $out taken out, packet $double doubled, packet $spoil spoilt"
}

# ask EXPRESSION: the same question to tapdeck's store and to tcpdump, which reads all of it.
ask() {
    local found theirs
    found=$("$tapdeck" query --dir "$dir/paced" --count "$@")
    theirs=$(for segment in "$dir"/paced/*.pcapng; do tcpdump -n -r "$segment" "$@" 2>>"$dir/tshark.log"; done | wc -l)
    echo "$*: $found packets; tcpdump finds $theirs"
    [[ $found == "$theirs" ]] || differ "the answers are not the same"
    "$tapdeck" query --dir "$dir/paced" --explain "$@" | grep -E '^(granules|read of|all after)' | sed 's/^/    /'
}

# What three say of a run must add up: the sender, the recorder, and the judge, who has only the
# store.
balance() {
    local sent seen stored arrived lost
    sent=$(figure sent <"$dir/$1.sent")
    seen=$(counted "$1" seen)
    stored=$(captured "$1")
    arrived=$(figure arrived <"$dir/found")
    lost=$(figure lost <"$dir/found")
    printf '\n%-12s %10s %10s %10s\n' '' packets stored missing
    printf '%-12s %10d\n' sender "$sent"
    printf '%-12s %10d %10d %10d\n' recorder "$seen" "$stored" $((seen - stored)) \
        judge $((arrived + lost)) "$arrived" "$lost"
    ((sent == seen && sent == arrived + lost && stored == arrived)) || differ "the three do not agree"
}

((EUID == 0)) || fail "network namespaces and recording need root: run it as root"
(($# == 1)) || fail "the program that is shown must be named: make demo builds one and names it"
tapdeck=$(realpath -- "$1")
[[ -x $tapdeck && ! -d $tapdeck ]] || fail "$1 is no program"

trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
dir=$(mktemp -d)
chmod 755 "$dir"
mkdir "$dir/www"
head -c 8000000 /dev/urandom >"$dir/www/film"
head -c 20000 /dev/urandom >"$dir/www/page"

title "Three recorders on one end of a cable that is not plugged in yet"
lay_cable
start "$SERVER" http python3 -m http.server --bind :: --directory "$dir/www" 8000
start "$CLIENT" http-back python3 -m http.server --bind :: --directory "$dir/www" 8000
start "$SERVER" dns dnsmasq "${DNSMASQ_OPTIONS[@]}"
wait_for "the server's web server" listens "$SERVER" -t 8000
wait_for "the client's web server" listens "$CLIENT" -t 8000
wait_for dnsmasq listens "$SERVER" -u 53
start "$SERVER" tcpdump tcpdump -i cable -n -Z root -B 65536 -w "$dir/tcpdump.pcapng"
tcpdump=${started[-1]}
for hook in xdp tcx; do
    start "$SERVER" $hook "$tapdeck" record -i cable --hook $hook --ring-bytes $TALK_RING \
        --dir "$dir/$hook" --stats-json "$dir/$hook.json"
done
wait_for tcpdump says tcpdump 'listening on'
wait_for "tapdeck at xdp" says xdp 'recording cable'
wait_for "tapdeck at tcx" says tcx 'recording cable'
grep -h 'recording cable' "$dir/xdp.log" "$dir/tcx.log"

title "Plugged in: programs talk across it"
plug_in
talk
unplug
wait_for "tcpdump to write what it has" tcpdump_caught_up
stop_all

title "What tapdeck says at its end"
tail -n 2 "$dir/xdp.log"
tail -n 2 "$dir/tcx.log"
grep -q '^0 packets dropped by kernel' "$dir/tcpdump.log" || fail "tcpdump dropped packets: it is no judge of this run"

title "The judge: every frame in tapdeck's segments against tcpdump's file"
verdict=0
for tool in xdp tcx; do
    mergecap -w "$dir/$tool.merged" "$dir/$tool"/*.pcapng
    reordercap "$dir/$tool.merged" "$dir/$tool.pcapng" >>"$dir/tshark.log"
done
compare

title "VLAN tags, which the kernel takes out of frames: tapdeck puts them back"
show_vlan

title "What was recorded at tcx, by tshark"
tshark -q -n -r "$dir/tcx.pcapng" -z io,phs -z conv,ip 2>>"$dir/tshark.log" | grep -v '^=*$'

title "How long packets are: learnt from what was recorded at xdp"
"$tapdeck" dist "$dir/xdp.pcapng" -o "$dir/real.dist" --top 5

title "Plugged in again: tapdeck sends packets of such lengths, at ${PACED[-1]}, and records them on the far end"
plug_in_again
generate paced $PACED_RING "${PACED[@]}"

title "The judge: the store against what was sent, packet by packet"
check paced paced
expect intact "$(figure sent <"$dir/paced.sent")" lost 0 repeated 0 reordered 0 damaged 0
echo
"$tapdeck" dist "$dir"/paced/*.pcapng -o "$dir/generated.dist" --top 5

title "The store: what is in it, whether it is sound, and three questions to it, held against tcpdump"
"$tapdeck" stat --dir "$dir/paced" --top 3
"$tapdeck" verify --dir "$dir/paced"
ask vlan $VLAN and host 198.18.0.77 and udp
ask vlan $VLAN and src net 198.18.0.0/28 and tcp dst port 9
ask vlan $VLAN and host 203.0.113.1

title "Would the judge notice? Three faults planted in a copy"
plant_faults
check planted.pcapng paced | sed '/^frame bytes/,/^$/d' # which are as before
expect lost 1 repeated 1 reordered 0 damaged 1

title "As fast as it goes, into a ring too small for that: what the recorder cannot keep, it counts"
generate flat-out $FLAT_OUT_RING "${FLAT_OUT[@]}"
check flat-out flat-out | sed -n 1p
balance flat-out
expect repeated 0 reordered 0 damaged 0

title "Three pictures: tapdeck top for a second, while the steady pace was recorded"
cat "$dir/paced.top"

title "The store, over time"
"$tapdeck" stat --dir "$dir/paced" --top 0

title "The answer to a question: vlan $VLAN and host 198.18.0.77 and udp"
"$tapdeck" query --dir "$dir/paced" vlan $VLAN and host 198.18.0.77 and udp | sed -n 1,8p

title "The same store in a browser: the gateway gives its console to who has the address"
look_at_console

title "Done"
((verdict == 0)) || fail "not all is as it must be: see NO above"
cat <<END
The first two stores hold what tcpdump saw, byte for byte; of what tapdeck sent, every packet was stored or
counted as dropped. All was in a temporary directory, which is removed with the cable. To record for real,
until Ctrl-C, and keep at most 10 GiB:

    cargo build --release
    target/release/tapdeck record -i eth0 --dir /var/tape --keep-bytes 10GiB

and to ask, meanwhile:

    target/release/tapdeck query --dir /var/tape host 192.0.2.1 and tcp port 443 --after "10m ago"

and to look at it in a browser, which opens the address that this prints:

    target/release/tapdeck-gateway --store /var/tape
END
