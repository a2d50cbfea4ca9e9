//! Sending against the kernel: what a sender is given arrives at the other end of a veth pair byte
//! for byte and in order, or is still there to be sent. And what the kernel says of an
//! interface before one sends by it. Needs root.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{
    CpuSet, LinkNameSpaceType, Pid, gettid, move_into_link_name_space, sched_getcpu,
    sched_setaffinity,
};
use tapdeck_capture::interface::{Interface, NicCounters};
use tapdeck_capture::transmit::{Drain, PacketSender, Qdisc, Sender, XdpSender};

/// IEEE 802's first `EtherType` for experiments.
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];
const VLAN_7: [u8; 4] = [0x81, 0, 0x60, 7];

fn run(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().expect("the program is there");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Two network namespaces, each with one end of a veth pair: `td0` (near) and `td1` (far).
struct Lab {
    near: String,
    far: String,
}

impl Lab {
    fn new(mtu: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        assert!(rustix::process::geteuid().is_root(), "network namespaces need root");
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // Made first, so that what follows is undone if it fails.
        let lab = Self { near: format!("tdt-{id}-a"), far: format!("tdt-{id}-b") };
        for namespace in [&lab.near, &lab.far] {
            run(&format!("ip netns add {namespace}"));
            // Nobody else speaks on the wire.
            inside(namespace, || {
                std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
            });
        }
        lab.plug(mtu);
        lab
    }

    fn plug(&self, mtu: u32) {
        let one = "numtxqueues 1 numrxqueues 1";
        let Self { near, far } = self;
        run(&format!(
            "ip -n {near} link add td0 mtu {mtu} {one} type veth peer name td1 mtu {mtu} {one} netns {far}"
        ));
        self.far_ip("link set td1 up");
        self.ip("link set td0 up");
    }

    fn ip(&self, words: &str) {
        run(&format!("ip -n {} {words}", self.near));
    }

    fn far_ip(&self, words: &str) {
        run(&format!("ip -n {} {words}", self.far));
    }

    /// Runs a test in the near namespace, where the link is up: the kernel says so a little after
    /// it was plugged. And on one CPU: a veth queues frames for the one that sends them, be it
    /// a queueing discipline's timer, and what several have queued may overtake.
    fn run(&self, f: impl FnOnce(&Self) + Send) {
        inside(&self.near, || {
            stay_here();
            until_running();
            f(self);
        });
    }

    /// Records what arrives at the far end.
    fn tape(&self) -> Tape {
        inside(&self.far, || Tape::new("td1"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
    }
}

/// Runs something in a network namespace.
fn inside<T: Send>(namespace: &str, f: impl FnOnce() -> T + Send) -> T {
    let file = File::open(format!("/run/netns/{namespace}")).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            f()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Its version and patch level.
fn kernel() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::yield_now();
    }
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
        until("the frames are recorded", || {
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
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if number % 10 == 3 {
        f.extend(VLAN_7);
    }
    f.extend(EXPERIMENT);
    f.extend(number.to_be_bytes());
    let mut noise = number;
    while f.len() < len {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f.push((noise >> 24) as u8);
    }
    f
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
    until("the interface takes it", || {
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
    let near = Interface::find("td0").unwrap();
    match kind {
        Kind::Packet(qdisc) => Box::new(PacketSender::open(&near, max_frame, qdisc).unwrap()),
        Kind::Xdp => Box::new(XdpSender::open(&near, 0, max_frame).unwrap()),
    }
}

/// Counters of the near end, and the code of an error.
fn counters() -> NicCounters {
    Interface::find("td0").unwrap().counters
}

fn code<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

fn identity(kind: Kind, mtu: u32, n: u32, longest: usize) {
    Lab::new(mtu).run(|lab| {
        let mut tape = lab.tape();
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
        Lab::new(1500).run(|lab| {
            let mut tape = lab.tape();
            let mut sender = open(kind, 1518);
            let (short, tagged) = (frame(0, 60), frame(3, 1518));
            send(&mut *sender, &[short.clone(), tagged.clone()]);
            lab.ip("link set td0 mtu 1400");
            lab.far_ip("link set td1 mtu 1400");
            push(&mut *sender, &short);
            push(&mut *sender, &tagged);
            push(&mut *sender, &short);
            let refused = until_error(&mut *sender);
            assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE), "{kind:?}");
            assert_eq!((sender.sent(), sender.queued()), (3, 2));
            lab.ip("link set td0 mtu 1500");
            lab.far_ip("link set td1 mtu 1500");
            again(|| sender.flush());
            assert_eq!((sender.sent(), sender.queued()), (5, 0));
            assert!(tape.take(5) == [&short, &tagged, &short, &tagged, &short].map(Vec::clone));
        });
    }
}

#[test]
fn what_cannot_be_sent_is_refused_at_once() {
    Lab::new(1500).run(|_| {
        let near = Interface::find("td0").unwrap();
        assert_eq!(code(XdpSender::open(&near, 0, 1519)), Some(libc::EMSGSIZE));
        assert_eq!(code(XdpSender::open(&near, 7, 1514)), Some(libc::EINVAL));
    });
}

/// The near end does not know what the far end takes, and must not lose the frame.
#[test]
fn a_frame_that_the_far_end_refuses_is_an_error() {
    for kind in [BYPASS, Kind::Xdp] {
        Lab::new(1500).run(|lab| {
            let mut tape = lab.tape();
            lab.far_ip("link set td1 mtu 1000");
            let mut sender = open(kind, 1514);
            let frames = [frame(0, 1014), frame(1, 1500), frame(2, 60)];
            for frame in &frames {
                push(&mut *sender, frame);
            }
            assert_eq!(until_error(&mut *sender).kind(), io::ErrorKind::TimedOut);
            assert_eq!((sender.sent(), sender.queued()), (1, 2));
            lab.far_ip("link set td1 mtu 1500");
            again(|| sender.flush());
            assert!(tape.take(3) == frames);
        });
    }
}

/// Frames that find no room wait, and nobody passes them by.
fn fill(kind: Kind, lab: &Lab, prepare: impl FnOnce() + Send) {
    let mut tape = lab.tape();
    let before = counters();
    let mut sender = open(kind, 200);
    let mut frames = frames(2000, 200);
    // GRO, where the far end has it, hands tagged frames on ahead of others.
    frames.retain(|frame| frame[12..14] == EXPERIMENT);
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let work = || {
            prepare();
            until("the far end is full", || {
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
fn slow_far_end(lab: &Lab) {
    run(&format!("ip netns exec {} ethtool -K td1 gro on", lab.far));
    // With segmentation offload, the kernel spares plain frames the thread.
    run("ethtool -K td0 tso off");
    let threaded = "echo 1 > /sys/class/net/td1/threaded";
    let shell = ["netns", "exec", &lab.far, "sh", "-c", threaded];
    assert!(Command::new("ip").args(shell).status().unwrap().success());
    let one = stay_here();
    let mut found = false;
    for process in std::fs::read_dir("/proc").unwrap().map(Result::unwrap) {
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        let id = process.file_name().to_str().and_then(|id| id.parse().ok());
        if let Some(id) = id.and_then(Pid::from_raw).filter(|_| name.starts_with("napi/td1-")) {
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
        Lab::new(1500).run(|lab| {
            fill(kind, lab, || slow_far_end(lab));
        });
    }
}

const SHAPED: &str = "root tbf burst 5kb limit 20kb rate";

#[test]
fn a_full_queueing_discipline_loses_nothing() {
    Lab::new(1500).run(|lab| {
        run(&format!("tc -n {} qdisc add dev td0 {SHAPED} 10mbit", lab.near));
        fill(Kind::Packet(Qdisc::Used), lab, || ());
    });
}

/// Whoever waits gets to see that it is to stop.
#[test]
fn a_wait_is_interrupted_and_goes_on() {
    Lab::new(1500).run(|lab| {
        let mut tape = lab.tape();
        run(&format!("tc -n {} qdisc add dev td0 {SHAPED} 64kbit", lab.near));
        let mut sender = open(Kind::Packet(Qdisc::Used), 1514);
        let frames = frames(60, 1514);
        for frame in &frames {
            push(&mut *sender, frame);
        }
        let stopped = sender.flush().unwrap_err();
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
        assert!(sender.sent() > 0);
        assert_eq!(sender.sent() + sender.queued() as u64, 60);
        run(&format!("tc -n {} qdisc replace dev td0 {SHAPED} 1gbit", lab.near));
        again(|| sender.flush());
        assert_eq!((sender.sent(), sender.queued()), (60, 0));
        assert!(tape.take(60) == frames);
    });
}

/// The error that a flush ends with, other than that it takes long.
fn until_error(sender: &mut dyn Sender) -> io::Error {
    let mut error = None;
    until("the sender fails", || {
        error = sender.flush().err().filter(|e| e.kind() != io::ErrorKind::Interrupted);
        error.is_some()
    });
    error.unwrap()
}

/// Fails a sender that has sent 100 frames and has 10 queued.
fn fail(kind: Kind, expected: i32, lab: &Lab, hinder: impl Fn(), allow: Option<&dyn Fn()>) {
    let mut tape = lab.tape();
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
        let mut tape = lab.tape();
        again(|| sender.flush());
        assert_eq!((sender.sent(), sender.queued()), (110, 0));
        assert!(tape.take(10) == frames[100..], "{kind:?}: not the same frames after");
    }
}

#[test]
fn an_interface_that_is_down_is_an_error() {
    for kind in KINDS {
        Lab::new(1500).run(|lab| {
            let down = || lab.ip("link set td0 down");
            let up = || {
                lab.ip("link set td0 up");
                until_running();
            };
            fail(kind, libc::ENETDOWN, lab, down, Some(&up));
        });
    }
}

#[test]
fn an_interface_without_carrier_is_an_error() {
    // Not with a queueing discipline: what is queued counts as sent, as documented.
    for kind in [BYPASS, Kind::Xdp] {
        Lab::new(1500).run(|lab| {
            let down = || lab.far_ip("link set td1 down");
            let up = || {
                lab.far_ip("link set td1 up");
                until_running();
            };
            fail(kind, libc::ENETDOWN, lab, down, Some(&up));
        });
    }
}

fn until_running() {
    until("the link is up", || Interface::find("td0").unwrap().running);
}

#[test]
fn an_interface_that_is_removed_is_an_error() {
    for kind in KINDS {
        Lab::new(1500).run(|lab| {
            fail(kind, libc::ENXIO, lab, || lab.ip("link del td0"), None);
        });
    }
}

#[test]
fn a_veth_pair_says_its_speed() {
    Lab::new(1500).run(|lab| {
        assert_eq!(Interface::find("td0").unwrap().speed_mbit().unwrap(), Some(10_000));
        // These have no speed.
        assert_eq!(Interface::find("lo").unwrap().speed_mbit().unwrap(), None);
        let gone = Interface::find("td0").unwrap();
        lab.ip("link del td0");
        assert_eq!(code(gone.speed_mbit()), Some(libc::ENODEV));
    });
}

#[test]
fn a_veth_takes_redirected_frames_while_its_far_end_does() {
    Lab::new(1500).run(|lab| {
        let takes = || Interface::find("td0").unwrap().takes_redirected_frames();
        if kernel() < (6, 3) {
            assert_eq!(takes(), None);
            eprintln!("skipped: kernels before 6.3 do not tell what drivers can do");
            return;
        }
        let gro = |how: &str| run(&format!("ip netns exec {} ethtool -K td1 gro {how}", lab.far));
        gro("off");
        // The near end's own doing is of no account.
        run("ethtool -K td0 gro on");
        assert_eq!(takes(), Some(false));
        gro("on");
        assert_eq!(takes(), Some(true));
        gro("off");
        assert_eq!(takes(), Some(false));
        let drain =
            inside(&lab.far, || Drain::attach(Interface::find("td1").unwrap().index).unwrap());
        assert_eq!(takes(), Some(true));
        drop(drain);
        assert_eq!(takes(), Some(false));
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
    Lab::new(1500).run(|lab| {
        assert_eq!(route("td0"), None);
        assert_eq!(route("lo"), None);
        lab.ip("addr add 10.213.0.1/24 dev td0");
        lab.ip("route add 10.214.0.0/16 via 10.213.0.2");
        lab.ip("route add unreachable default metric 5000");
        lab.ip("link add td2 type veth peer name td3");
        assert_eq!(route("td0"), None);
        // The default route of another interface.
        lab.ip("link set td2 up");
        lab.ip("addr add 10.215.0.1/24 dev td2");
        lab.ip("route add default via 10.215.0.2");
        assert_eq!(route("td0"), None);
        assert_eq!(route("td3"), None);
        says("td2", "default via 10.215.0.2 dev td2");
    });
}

#[test]
fn a_default_route_of_any_kind_is_found() {
    Lab::new(1500).run(|lab| {
        lab.ip("addr add 10.213.0.1/24 dev td0");
        let cases = [
            ("route add default via 10.213.0.2", "default via 10.213.0.2 dev td0"),
            ("route add default dev td0 table 4711", "default dev td0"),
            (
                "route add default nexthop via 10.215.0.2 dev td2 nexthop via 10.213.0.3 dev td0",
                "default via 10.213.0.3 dev td0",
            ),
            ("-6 route add default via fd13::2", "default via fd13::2 dev td0"),
            ("-6 route add default via fe80::1 dev td0 table 9", "default via fe80::1 dev td0"),
            ("route add default via inet6 fe80::1 dev td0", "default via fe80::1 dev td0"),
            ("route add default nhid 5", "default via 10.213.0.4 dev td0"),
        ];
        lab.ip("nexthop add id 5 via 10.213.0.4 dev td0");
        lab.ip("link add td2 type veth peer name td3");
        lab.ip("link set td2 up");
        lab.ip("link set td3 up");
        lab.ip("addr add 10.215.0.1/24 dev td2");
        std::fs::write("/proc/sys/net/ipv6/conf/td0/disable_ipv6", "0").unwrap();
        lab.ip("-6 addr add fd13::1/64 dev td0 nodad");
        for (add, expected) in cases {
            assert_eq!(route("td0"), None, "before {add}");
            lab.ip(add);
            says("td0", expected);
            lab.ip(&add.replacen("add", "del", 1));
        }
        // So set, the kernel names the object alone. That may be anywhere.
        std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", "0").unwrap();
        lab.ip("route add default nhid 5");
        says("td0", "default by next hop 5, whose interface is not known");
    });
}

#[test]
fn a_default_route_by_what_shares_a_wire_is_found() {
    Lab::new(1500).run(|lab| {
        let via = "default via 10.213.0.2 dev";
        lab.ip("link add br0 type bridge");
        lab.ip("link set td0 master br0");
        lab.ip("link set br0 up");
        lab.ip("addr add 10.213.0.1/24 dev br0");
        lab.ip("route add default via 10.213.0.2");
        says("td0", &format!("{via} br0, of which td0 is a port"));
        // Two of them on one interface, which is a port itself.
        lab.ip("link add mv0 link br0 type macvlan mode bridge");
        lab.ip("link add mv1 link br0 type macvlan mode bridge");
        says("mv1", &format!("{via} br0, on which mv1 sits"));
        lab.ip("addr flush dev br0");
        lab.ip("link set mv0 up");
        lab.ip("addr add 10.213.0.1/24 dev mv0");
        lab.ip("route add default via 10.213.0.2");
        says("br0", &format!("{via} mv0, which sits on br0"));
        says("td0", &format!("{via} mv0, which sits on br0, of which td0 is a port"));
        says("mv1", &format!("{via} mv0, which sits on br0, on which mv1 sits"));
        assert_eq!(route("lo"), None);
        // From the port up.
        lab.ip("link del br0");
        lab.ip("link add br1 type bridge");
        lab.ip("link set td0 master br1");
        lab.ip("addr add 10.213.0.1/24 dev td0");
        lab.ip("route add default via 10.213.0.2");
        says("br1", &format!("{via} td0, which is a port of br1"));
    });
}

/// An interface in another namespace may have the number of one that is here.
#[test]
fn what_sits_on_an_interface_elsewhere_is_not_here() {
    Lab::new(1500).run(|lab| {
        lab.ip("link add mv0 link td0 type macvlan mode bridge");
        lab.ip(&format!("link set mv0 netns {}", lab.far));
        lab.far_ip("link set mv0 up");
        lab.far_ip("addr add 10.213.0.1/24 dev mv0");
        lab.far_ip("route add default via 10.213.0.2");
        let here = || Interface::find("td1").unwrap();
        inside(&lab.far, || {
            assert_eq!(here().index, inside(&lab.near, || Interface::find("td0").unwrap().index));
            assert_eq!(here().carries_default_route().unwrap(), None);
            says("mv0", "default via 10.213.0.2 dev mv0");
        });
    });
}
