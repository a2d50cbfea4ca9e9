//! Sending against the kernel: what a sender is given arrives at the other end of a veth pair byte
//! for byte and in order, or is still there to be sent. And what the kernel says of an
//! interface before one sends by it. Needs root.

use std::io;

use rustix::thread::{CpuSet, Pid, gettid, sched_getcpu, sched_setaffinity};
use tapdeck_capture::interface::{Interface, NicCounters};
use tapdeck_capture::transmit::{Drain, PacketSender, Qdisc, Sender, XdpSender};
use tapdeck_testkit::frame::{EXPERIMENT, experiment};
use tapdeck_testkit::kernel::at_least;
use tapdeck_testkit::namespace::run;
use tapdeck_testkit::{Cable, Net, wait_for};

const VLAN_7: [u8; 4] = [0x81, 0, 0x60, 7];

/// Runs a test where `va` is, the end that sends, and on one CPU: a veth queues frames for the one
/// that sends them, be it a queueing discipline's timer, and what several have queued may overtake.
fn on_cable(mtu: u32, f: impl FnOnce(&Net) + Send) {
    let net = Net::with(Cable { mtu, offloads: true, ..Cable::default() });
    net.a.inside(|| {
        stay_here();
        f(&net);
    });
}

/// Records what arrives at the far end.
fn far_tape(net: &Net) -> Tape {
    net.b.inside(|| Tape::new("vb"))
}

/// The frames that came to an interface, as libpcap has them.
struct Tape(pcap::Capture<pcap::Active>);

impl Tape {
    fn new(interface: &str) -> Self {
        let device = pcap::Capture::from_device(interface).unwrap();
        let capture = device.buffer_size(64 << 20).snaplen(1 << 18).timeout(10).open().unwrap();
        Self(capture.setnonblock().unwrap())
    }

    /// Takes so many frames, and sees that no more are there.
    fn take(&mut self, n: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        wait_for("the frames to be recorded", || {
            while let Ok(packet) = self.0.next_packet() {
                frames.push(packet.data.to_vec());
            }
            let lost = self.0.stats().unwrap();
            assert_eq!(lost.dropped + lost.if_dropped, 0, "the test's own recorder has lost some");
            frames.len() >= n
        });
        assert_eq!(frames.len(), n);
        frames
    }
}

/// A frame of `len` bytes that carries its number, some of them behind a VLAN tag.
fn frame(number: u32, len: usize) -> Vec<u8> {
    let tags: &[[u8; 4]] = if number % 10 == 3 { &[VLAN_7] } else { &[] };
    experiment(number, len, tags)
}

/// Frames of all lengths from 60 to `longest`.
fn frames(n: u32, longest: usize) -> Vec<Vec<u8>> {
    (0..n).map(|i| frame(i, 60 + (i as usize * 37) % (longest - 59))).collect()
}

fn push(sender: &mut dyn Sender, frame: &[u8]) {
    again(|| sender.slot().map(|slot| slot[..frame.len()].copy_from_slice(frame)));
    sender.push(frame.len());
}

/// Repeats what was interrupted: it may be, whenever the machine is busy with other things for
/// long.
fn again<T>(mut f: impl FnMut() -> io::Result<T>) -> T {
    let mut result = None;
    wait_for("the interface to take it", || {
        let answer = f();
        let over = !matches!(&answer, Err(e) if e.kind() == io::ErrorKind::Interrupted);
        result = Some(answer);
        over
    });
    result.unwrap().unwrap()
}

fn send(sender: &mut dyn Sender, frames: &[Vec<u8>]) {
    for frame in frames {
        push(sender, frame);
    }
    again(|| sender.flush());
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Packet(Qdisc),
    Xdp,
}

const BYPASS: Kind = Kind::Packet(Qdisc::Bypassed);
const KINDS: [Kind; 3] = [BYPASS, Kind::Packet(Qdisc::Used), Kind::Xdp];

fn open(kind: Kind, max_frame: usize) -> Box<dyn Sender> {
    let near = Interface::find("va").unwrap();
    match kind {
        Kind::Packet(qdisc) => Box::new(PacketSender::open(&near, max_frame, qdisc).unwrap()),
        Kind::Xdp => Box::new(XdpSender::open(&near, 0, max_frame).unwrap()),
    }
}

/// Counters of the near end, and the code of an error.
fn counters() -> NicCounters {
    Interface::find("va").unwrap().counters
}

fn code<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

fn identity(kind: Kind, mtu: u32, n: u32, longest: usize) {
    on_cable(mtu, |net| {
        let mut tape = far_tape(net);
        let frames = frames(n, longest);
        let mut sender = open(kind, longest);
        let before = counters();
        send(&mut *sender, &frames);
        assert_eq!((sender.sent(), sender.queued()), (u64::from(n), 0));
        assert!(tape.take(frames.len()) == frames, "{kind:?}: not the same frames");
        let grown = counters().since(before);
        let bytes: usize = frames.iter().map(Vec::len).sum();
        assert_eq!((grown.tx_packets, grown.tx_bytes), (u64::from(n), bytes as u64));
    });
}

#[test]
fn all_frames_arrive_in_order() {
    for kind in KINDS {
        identity(kind, 1500, 5000, 1514);
    }
}

#[test]
fn long_frames_arrive() {
    identity(BYPASS, 9000, 2000, 9014);
    identity(BYPASS, 65_535, 500, 65_549);
    identity(Kind::Xdp, 9000, 2000, 4096);
}

/// A frame with a VLAN tag may be 4 bytes longer than others; beyond that, no sender pretends.
#[test]
fn a_frame_beyond_the_mtu_is_an_error() {
    for kind in KINDS {
        on_cable(1500, |net| {
            let mut tape = far_tape(net);
            let mut sender = open(kind, 1518);
            let (short, tagged) = (frame(0, 60), frame(3, 1518));
            send(&mut *sender, &[short.clone(), tagged.clone()]);
            net.a.run("ip link set va mtu 1400");
            net.b.run("ip link set vb mtu 1400");
            push(&mut *sender, &short);
            push(&mut *sender, &tagged);
            push(&mut *sender, &short);
            let refused = until_error(&mut *sender);
            assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE), "{kind:?}");
            assert_eq!((sender.sent(), sender.queued()), (3, 2));
            net.a.run("ip link set va mtu 1500");
            net.b.run("ip link set vb mtu 1500");
            again(|| sender.flush());
            assert_eq!((sender.sent(), sender.queued()), (5, 0));
            assert!(tape.take(5) == [&short, &tagged, &short, &tagged, &short].map(Vec::clone));
        });
    }
}

#[test]
fn what_cannot_be_sent_is_refused_at_once() {
    on_cable(1500, |_| {
        let near = Interface::find("va").unwrap();
        assert_eq!(code(XdpSender::open(&near, 0, 1519)), Some(libc::EMSGSIZE));
        assert_eq!(code(XdpSender::open(&near, 7, 1514)), Some(libc::EINVAL));
    });
}

/// The near end does not know what the far end takes, and must not lose the frame.
#[test]
fn a_frame_that_the_far_end_refuses_is_an_error() {
    for kind in [BYPASS, Kind::Xdp] {
        on_cable(1500, |net| {
            let mut tape = far_tape(net);
            net.b.run("ip link set vb mtu 1000");
            let mut sender = open(kind, 1514);
            let frames = [frame(0, 1014), frame(1, 1500), frame(2, 60)];
            for frame in &frames {
                push(&mut *sender, frame);
            }
            assert_eq!(until_error(&mut *sender).kind(), io::ErrorKind::TimedOut);
            assert_eq!((sender.sent(), sender.queued()), (1, 2));
            net.b.run("ip link set vb mtu 1500");
            again(|| sender.flush());
            assert!(tape.take(3) == frames);
        });
    }
}

/// Frames that find no room wait, and nobody passes them by.
fn fill(kind: Kind, net: &Net, prepare: impl FnOnce() + Send) {
    let mut tape = far_tape(net);
    let before = counters();
    let mut sender = open(kind, 200);
    let mut frames = frames(2000, 200);
    // GRO, where the far end has it, hands tagged frames on ahead of others.
    frames.retain(|frame| frame[12..14] == EXPERIMENT.to_be_bytes());
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let work = || {
            prepare();
            wait_for("the far end to be full", || {
                for frame in &frames {
                    push(&mut *sender, frame);
                }
                rounds += 1;
                sender.turned_away() > 0
            });
            again(|| sender.flush());
        };
        scope.spawn(work).join().unwrap();
    });
    let n = rounds * frames.len();
    assert_eq!((sender.sent(), sender.queued()), (n as u64, 0));
    let same = tape.take(n).chunks(frames.len()).all(|round| round == frames);
    assert!(same, "{kind:?}: not the same frames");
    assert_eq!(counters().since(before).tx_packets, n as u64);
}

/// Keeps this thread on the CPU that it is on.
fn stay_here() -> CpuSet {
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one).unwrap();
    one
}

/// Has a thread take what comes to the far end, one that gets to it only while this thread sleeps.
fn slow_far_end(net: &Net) {
    net.b.run("ethtool -K vb gro on");
    // With segmentation offload, the kernel spares plain frames the thread.
    run("ethtool -K va tso off");
    net.b.shell("echo 1 > /sys/class/net/vb/threaded");
    let one = stay_here();
    let mut found = false;
    for process in std::fs::read_dir("/proc").unwrap().map(Result::unwrap) {
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        let id = process.file_name().to_str().and_then(|id| id.parse().ok());
        if let Some(id) = id.and_then(Pid::from_raw).filter(|_| name.starts_with("napi/vb-")) {
            // It may be another test's, and gone by now.
            found |= sched_setaffinity(Some(id), &one).is_ok();
        }
    }
    assert!(found, "the far end has no thread");
    run(&format!("chrt --fifo --pid 1 {}", gettid().as_raw_nonzero()));
}

#[test]
fn a_full_far_end_loses_nothing() {
    for kind in [BYPASS, Kind::Xdp] {
        on_cable(1500, |net| {
            fill(kind, net, || slow_far_end(net));
        });
    }
}

const SHAPED: &str = "root tbf burst 5kb limit 20kb rate";

#[test]
fn a_full_queueing_discipline_loses_nothing() {
    on_cable(1500, |net| {
        net.a.run(&format!("tc qdisc add dev va {SHAPED} 10mbit"));
        fill(Kind::Packet(Qdisc::Used), net, || ());
    });
}

/// Whoever waits gets to see that it is to stop.
#[test]
fn a_wait_is_interrupted_and_goes_on() {
    on_cable(1500, |net| {
        let mut tape = far_tape(net);
        net.a.run(&format!("tc qdisc add dev va {SHAPED} 64kbit"));
        let mut sender = open(Kind::Packet(Qdisc::Used), 1514);
        let frames = frames(60, 1514);
        for frame in &frames {
            push(&mut *sender, frame);
        }
        let stopped = sender.flush().unwrap_err();
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
        assert!(sender.sent() > 0);
        assert_eq!(sender.sent() + sender.queued() as u64, 60);
        net.a.run(&format!("tc qdisc replace dev va {SHAPED} 1gbit"));
        again(|| sender.flush());
        assert_eq!((sender.sent(), sender.queued()), (60, 0));
        assert!(tape.take(60) == frames);
    });
}

/// The error that a flush ends with, other than that it takes long.
fn until_error(sender: &mut dyn Sender) -> io::Error {
    let mut error = None;
    wait_for("the sender to fail", || {
        error = sender.flush().err().filter(|e| e.kind() != io::ErrorKind::Interrupted);
        error.is_some()
    });
    error.unwrap()
}

/// Fails a sender that has sent 100 frames and has 10 queued.
fn fail(kind: Kind, expected: i32, net: &Net, hinder: impl Fn(), allow: Option<&dyn Fn()>) {
    let mut tape = far_tape(net);
    let frames = frames(110, 1514);
    let mut sender = open(kind, 1514);
    send(&mut *sender, &frames[..100]);
    assert!(tape.take(100) == frames[..100]);
    for frame in &frames[100..] {
        push(&mut *sender, frame);
    }
    hinder();
    for _ in 0..2 {
        let error = until_error(&mut *sender);
        assert_eq!(error.raw_os_error(), Some(expected), "{kind:?}: {error}");
        assert_eq!((sender.sent(), sender.queued()), (100, 10), "{kind:?}");
    }
    if let Some(allow) = allow {
        allow();
        let mut tape = far_tape(net);
        again(|| sender.flush());
        assert_eq!((sender.sent(), sender.queued()), (110, 0));
        assert!(tape.take(10) == frames[100..], "{kind:?}: not the same frames after");
    }
}

#[test]
fn an_interface_that_is_down_is_an_error() {
    for kind in KINDS {
        on_cable(1500, |net| {
            let down = || net.a.run("ip link set va down");
            let up = || {
                net.a.run("ip link set va up");
                until_running();
            };
            fail(kind, libc::ENETDOWN, net, down, Some(&up));
        });
    }
}

#[test]
fn an_interface_without_carrier_is_an_error() {
    // Not with a queueing discipline: what is queued counts as sent, as documented.
    for kind in [BYPASS, Kind::Xdp] {
        on_cable(1500, |net| {
            let down = || net.b.run("ip link set vb down");
            let up = || {
                net.b.run("ip link set vb up");
                until_running();
            };
            fail(kind, libc::ENETDOWN, net, down, Some(&up));
        });
    }
}

fn until_running() {
    wait_for("the link to be up", || Interface::find("va").unwrap().running);
}

#[test]
fn an_interface_that_is_removed_is_an_error() {
    for kind in KINDS {
        on_cable(1500, |net| {
            fail(kind, libc::ENXIO, net, || net.a.run("ip link del va"), None);
        });
    }
}

#[test]
fn a_veth_pair_says_its_speed() {
    on_cable(1500, |net| {
        assert_eq!(Interface::find("va").unwrap().speed_mbit().unwrap(), Some(10_000));
        // These have no speed.
        assert_eq!(Interface::find("lo").unwrap().speed_mbit().unwrap(), None);
        let gone = Interface::find("va").unwrap();
        net.a.run("ip link del va");
        assert_eq!(code(gone.speed_mbit()), Some(libc::ENODEV));
    });
}

#[test]
fn a_veth_takes_redirected_frames_while_its_far_end_does() {
    on_cable(1500, |net| {
        let takes = || Interface::find("va").unwrap().takes_redirected_frames();
        if !at_least((6, 3), "telling what drivers can do") {
            assert_eq!(takes(), None);
            return;
        }
        let gro = |how: &str| net.b.run(&format!("ethtool -K vb gro {how}"));
        gro("off");
        // The near end's own doing is of no account.
        run("ethtool -K va gro on");
        assert_eq!(takes(), Some(false));
        gro("on");
        assert_eq!(takes(), Some(true));
        gro("off");
        assert_eq!(takes(), Some(false));
        let drain = net.b.inside(|| Drain::attach(Interface::find("vb").unwrap().index).unwrap());
        assert_eq!(takes(), Some(true));
        drop(drain);
        // A process that another test was just starting may have had its link for a moment.
        wait_for("the far end to be without a program", || takes() == Some(false));
    });
}

/// Whether the default route leads over an interface of the near namespace, in words.
fn route(interface: &str) -> Option<String> {
    Interface::find(interface).unwrap().carries_default_route().unwrap()
}

fn says(interface: &str, expected: &str) {
    assert_eq!(route(interface).as_deref(), Some(expected), "{interface}");
}

#[test]
fn nothing_is_said_where_no_default_route_is() {
    on_cable(1500, |net| {
        assert_eq!(route("va"), None);
        assert_eq!(route("lo"), None);
        net.a.run("ip addr add 10.213.0.1/24 dev va");
        net.a.run("ip route add 10.214.0.0/16 via 10.213.0.2");
        net.a.run("ip route add unreachable default metric 5000");
        net.a.run("ip link add vc type veth peer name vd");
        assert_eq!(route("va"), None);
        // The default route of another interface.
        net.a.run("ip link set vc up");
        net.a.run("ip addr add 10.215.0.1/24 dev vc");
        net.a.run("ip route add default via 10.215.0.2");
        assert_eq!(route("va"), None);
        assert_eq!(route("vd"), None);
        says("vc", "default via 10.215.0.2 dev vc");
    });
}

#[test]
fn a_default_route_of_any_kind_is_found() {
    on_cable(1500, |net| {
        net.a.run("ip addr add 10.213.0.1/24 dev va");
        let cases = [
            ("route add default via 10.213.0.2", "default via 10.213.0.2 dev va"),
            ("route add default dev va table 4711", "default dev va"),
            (
                "route add default nexthop via 10.215.0.2 dev vc nexthop via 10.213.0.3 dev va",
                "default via 10.213.0.3 dev va",
            ),
            ("-6 route add default via fd13::2", "default via fd13::2 dev va"),
            ("-6 route add default via fe80::1 dev va table 9", "default via fe80::1 dev va"),
            ("route add default via inet6 fe80::1 dev va", "default via fe80::1 dev va"),
            ("route add default nhid 5", "default via 10.213.0.4 dev va"),
        ];
        net.a.run("ip nexthop add id 5 via 10.213.0.4 dev va");
        net.a.run("ip link add vc type veth peer name vd");
        net.a.run("ip link set vc up");
        net.a.run("ip link set vd up");
        net.a.run("ip addr add 10.215.0.1/24 dev vc");
        std::fs::write("/proc/sys/net/ipv6/conf/va/disable_ipv6", "0").unwrap();
        net.a.run("ip -6 addr add fd13::1/64 dev va nodad");
        for (add, expected) in cases {
            assert_eq!(route("va"), None, "before {add}");
            net.a.run(&format!("ip {add}"));
            says("va", expected);
            net.a.run(&format!("ip {}", add.replacen("add", "del", 1)));
        }
        // So set, the kernel names the object alone. That may be anywhere.
        std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", "0").unwrap();
        net.a.run("ip route add default nhid 5");
        says("va", "default by next hop 5, whose interface is not known");
    });
}

#[test]
fn a_default_route_by_what_shares_a_wire_is_found() {
    on_cable(1500, |net| {
        let via = "default via 10.213.0.2 dev";
        net.a.run("ip link add br0 type bridge");
        net.a.run("ip link set va master br0");
        net.a.run("ip link set br0 up");
        net.a.run("ip addr add 10.213.0.1/24 dev br0");
        net.a.run("ip route add default via 10.213.0.2");
        says("va", &format!("{via} br0, of which va is a port"));
        // Two of them on one interface, which is a port itself.
        net.a.run("ip link add mv0 link br0 type macvlan mode bridge");
        net.a.run("ip link add mv1 link br0 type macvlan mode bridge");
        says("mv1", &format!("{via} br0, on which mv1 sits"));
        net.a.run("ip addr flush dev br0");
        net.a.run("ip link set mv0 up");
        net.a.run("ip addr add 10.213.0.1/24 dev mv0");
        net.a.run("ip route add default via 10.213.0.2");
        says("br0", &format!("{via} mv0, which sits on br0"));
        says("va", &format!("{via} mv0, which sits on br0, of which va is a port"));
        says("mv1", &format!("{via} mv0, which sits on br0, on which mv1 sits"));
        assert_eq!(route("lo"), None);
        // From the port up.
        net.a.run("ip link del br0");
        net.a.run("ip link add br1 type bridge");
        net.a.run("ip link set va master br1");
        net.a.run("ip addr add 10.213.0.1/24 dev va");
        net.a.run("ip route add default via 10.213.0.2");
        says("br1", &format!("{via} va, which is a port of br1"));
    });
}

/// An interface in another namespace may have the number of one that is here.
#[test]
fn what_sits_on_an_interface_elsewhere_is_not_here() {
    on_cable(1500, |net| {
        net.a.run("ip link add mv0 link va type macvlan mode bridge");
        net.a.run(&format!("ip link set mv0 netns {}", net.b));
        net.b.run("ip link set mv0 up");
        net.b.run("ip addr add 10.213.0.1/24 dev mv0");
        net.b.run("ip route add default via 10.213.0.2");
        let here = || Interface::find("vb").unwrap();
        net.b.inside(|| {
            assert_eq!(here().index, net.a.inside(|| Interface::find("va").unwrap().index));
            assert_eq!(here().carries_default_route().unwrap(), None);
            says("mv0", "default via 10.213.0.2 dev mv0");
        });
    });
}
