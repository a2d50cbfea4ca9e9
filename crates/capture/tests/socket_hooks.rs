//! The socket hooks against the kernel: what is sent over a veth pair between two network
//! namespaces stands in the rings byte for byte, or is counted as lost. Needs root.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError, channel};
use std::thread::JoinHandle;

use tapdeck_capture::ring::RingReader;
use tapdeck_capture::{Capture, Clock, Config, Deliver, Error, Event, Hook, Stamps};
use tapdeck_packet::pcapng::{
    FLAG_INBOUND, FLAG_OUTBOUND, Reader, Record, interface_description, section_header,
};
use tapdeck_packet::ring::Ring;
use tapdeck_testkit::frame::{EXPERIMENT, experiment};
use tapdeck_testkit::namespace::enter;
use tapdeck_testkit::{Cable, Namespace, Net, Sender, wait_for};

/// A cable as the kernel makes it.
const AS_IT_IS: Cable = Cable { mtu: 1500, queues: None, offloads: true };

/// Runs a test where `vb` is, the end at which is captured.
fn on_cable(cable: Cable, f: impl FnOnce(&Net) + Send) {
    let net = Net::with(cable);
    net.b.inside(|| f(&net));
}

/// How frames are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// So that none is lost before the interface at the far end has it, whenever that gets to run.
    Gently,
    FlatOut,
}

/// Sends frames out by an interface, from a thread that lives in its namespace.
struct Wire {
    frames: Option<mpsc::Sender<(Vec<Vec<u8>>, Manner)>>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    fn new(namespace: &Namespace, interface: &'static str) -> Self {
        let namespace = namespace.name().to_owned();
        let (frames, todo) = channel::<(Vec<Vec<u8>>, Manner)>();
        let (ready, done) = channel();
        let thread = std::thread::spawn(move || {
            enter(&namespace);
            let mut sender = Sender::on(interface);
            ready.send(()).unwrap();
            for (frames, manner) in todo {
                for frame in &frames {
                    match manner {
                        Manner::Gently => sender.send(frame),
                        Manner::FlatOut => sender.send_flat_out(frame),
                    }
                }
                sender.wait_for_arrival();
                ready.send(()).unwrap();
            }
        });
        done.recv().unwrap();
        Self { frames: Some(frames), done, thread: Some(thread) }
    }

    fn send(&self, frames: &[Vec<u8>]) {
        self.begin(frames, Manner::Gently);
        self.done.recv().unwrap();
    }

    fn begin(&self, frames: &[Vec<u8>], manner: Manner) {
        self.frames.as_ref().unwrap().send((frames.to_vec(), manner)).unwrap();
    }

    /// Whether what was begun is sent.
    fn is_done(&self) -> bool {
        match self.done.try_recv() {
            Ok(()) => true,
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => panic!("the sender has failed"),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        drop(self.frames.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const VLAN_7: [u8; 4] = [0x81, 0, 0x60, 7];
const DOUBLE: [[u8; 4]; 2] = [[0x88, 0xa8, 0, 100], [0x81, 0, 0, 200]];

/// Frames of all lengths from 60 to `longest`, some of them with VLAN tags.
fn frames(n: u32, longest: usize) -> Vec<Vec<u8>> {
    (0..n)
        .map(|i| {
            let tags: &[[u8; 4]] = match i % 10 {
                3 => &[VLAN_7],
                7 => &DOUBLE,
                _ => &[],
            };
            experiment(i, 60 + (i as usize * 37) % (longest - 59), tags)
        })
        .collect()
}

fn number(frame: &[u8]) -> Option<u32> {
    let at = (12..=20)
        .step_by(4)
        .find(|&at| frame.get(at..at + 2) == Some(&EXPERIMENT.to_be_bytes()))?;
    Some(u32::from_be_bytes(frame.get(at + 2..at + 6)?.try_into().unwrap()))
}

fn config(hook: Hook) -> Config {
    Config {
        hook,
        deliver: if hook == Hook::AfXdp { Deliver::Consume } else { Deliver::Pass },
        snaplen: 65_535,
        ring_bytes: 64 << 20,
        block_bytes: 1 << 20,
        promiscuous: true,
        device_bound: true,
        overload: tapdeck_capture::Overload::Drop,
        stamps: Stamps::Auto,
        filter: None,
        rules: None,
        cutoff: None,
    }
}

fn open(interface: &str, config: &Config) -> Capture {
    Capture::open(interface, config, 0, &Arc::new(Clock::default())).unwrap()
}

/// A packet out of a ring.
#[derive(Debug)]
struct Taken {
    frame: Vec<u8>,
    original_len: u32,
    flags: u32,
    dropped: u64,
    timestamp: u64,
}

/// What was read from a capture's rings.
struct Tape {
    rings: Vec<RingReader>,
    file: Vec<u8>,
    packets: u64,
}

impl Tape {
    fn new(capture: &Capture) -> Self {
        let mut file = Vec::new();
        section_header(&mut file, "Linux", "test", None);
        for description in capture.descriptions() {
            interface_description(&mut file, &description);
        }
        Self { rings: capture.readers(), file, packets: 0 }
    }

    /// Reads the blocks that are complete.
    fn read(&mut self) {
        for ring in &mut self.rings {
            while let Some(block) = ring.peek(0) {
                self.file.extend(block.bytes);
                self.packets += u64::from(block.contents.packets);
                ring.release(1);
            }
        }
    }

    /// Reads all there is. A full ring can close its last block only when it has a free one.
    fn read_all(&mut self, capture: &mut Capture) {
        self.read();
        capture.flush_all().unwrap();
        self.read();
    }

    /// Reads until so many packets have come or are counted as lost.
    fn wait_for(&mut self, capture: &mut Capture, packets: usize) {
        wait_for("every frame to be accounted for", || {
            self.read_all(capture);
            self.packets + capture.losses().total() >= packets as u64
        });
    }

    /// Stops the capture and gives its packets, each ring's in their order.
    fn finish(mut self, capture: &mut Capture) -> Vec<Taken> {
        capture.stop();
        self.read_all(capture);
        assert!(self.rings.iter().all(Ring::caught_up));
        let taken: Vec<Taken> = Reader::new(&self.file)
            .filter_map(|record| match record.unwrap() {
                Record::Packet(p) => Some(Taken {
                    frame: p.frame.to_vec(),
                    original_len: p.original_len,
                    flags: p.flags,
                    dropped: p.dropped,
                    timestamp: p.timestamp,
                }),
                _ => None,
            })
            .collect();
        assert_eq!(taken.len() as u64, self.packets, "the rings' own count of packets");
        taken
    }
}

/// Waits for so many packets, stops the capture and gives them. The interface has a frame before
/// its hook does, and the kernel hands it over some time later still: who stops a capture at once
/// stops it before what was sent last.
fn finish(capture: &mut Capture, packets: usize) -> Vec<Taken> {
    let mut tape = Tape::new(capture);
    tape.wait_for(capture, packets);
    tape.finish(capture)
}

/// Everything that was sent is there once, byte for byte, and nothing else is.
fn assert_same(sent: &[Vec<u8>], taken: &[Taken]) {
    let sent: BTreeMap<u32, &[u8]> = sent.iter().map(|f| (number(f).unwrap(), &f[..])).collect();
    let mut seen = BTreeSet::new();
    for packet in taken {
        let number = number(&packet.frame)
            .unwrap_or_else(|| panic!("a frame that nobody sent: {packet:02x?}"));
        assert_eq!(packet.frame, sent[&number], "frame {number}");
        assert_eq!(packet.original_len as usize, packet.frame.len());
        assert!(seen.insert(number), "frame {number} is there twice");
    }
    assert_eq!(seen.len(), sent.len());
}

fn now_ns() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

fn identity(hook: Hook, cable: Cable) {
    on_cable(cable, |net| {
        let wire = Wire::new(&net.a, "va");
        let mut capture = open("vb", &config(hook));
        let sent = frames(5000, cable.mtu as usize + 14);
        let before = now_ns();
        capture.start().unwrap();
        let mut tape = Tape::new(&capture);
        // No more at a time than the kernel holds for a thread that does not come to them: a frame
        // of 9014 bytes takes three of the chunks that a socket has.
        let mut begun = 0;
        for part in sent.chunks(1000) {
            wire.send(part);
            begun += part.len();
            tape.wait_for(&mut capture, begun);
        }
        let taken = tape.finish(&mut capture);
        let after = now_ns();

        assert_eq!(taken.len() as u64 + capture.losses().total(), sent.len() as u64);
        assert_eq!(capture.losses().total(), 0);
        assert_same(&sent, &taken);
        let flags = if hook.sees_outbound() { FLAG_INBOUND } else { 0 };
        for packet in &taken {
            assert_eq!((packet.flags, packet.dropped), (flags, 0));
            assert!((before..=after).contains(&packet.timestamp), "{packet:?}");
        }
    });
}

#[test]
fn recv_gives_every_frame() {
    identity(Hook::Recv, AS_IT_IS);
}

#[test]
fn tpacket_gives_every_frame() {
    identity(Hook::Tpacket, AS_IT_IS);
}

#[test]
fn afxdp_gives_every_frame_of_every_queue() {
    identity(Hook::AfXdp, Cable { queues: Some(2), ..AS_IT_IS });
}

#[test]
fn afxdp_puts_jumbo_frames_together() {
    identity(Hook::AfXdp, Cable { mtu: 9000, ..AS_IT_IS });
}

#[test]
fn frames_are_cut_to_the_snaplen_and_keep_their_length() {
    for hook in [Hook::Recv, Hook::Tpacket, Hook::AfXdp] {
        for mtu in [1500, 9000] {
            on_cable(Cable { mtu, ..AS_IT_IS }, |net| {
                let wire = Wire::new(&net.a, "va");
                let mut capture = open("vb", &Config { snaplen: 100, ..config(hook) });
                let sent = frames(200, mtu as usize + 14);
                capture.start().unwrap();
                wire.send(&sent);
                let taken = finish(&mut capture, sent.len());
                assert_eq!(taken.len(), sent.len());
                for (packet, frame) in taken.iter().zip(&sent) {
                    assert_eq!(packet.frame, frame[..frame.len().min(100)], "{hook}");
                    assert_eq!(packet.original_len as usize, frame.len(), "{hook}");
                }
            });
        }
    }
}

#[test]
fn packet_sockets_tell_the_direction() {
    for hook in [Hook::Recv, Hook::Tpacket] {
        on_cable(AS_IT_IS, |net| {
            let (far, near) = (Wire::new(&net.a, "va"), Wire::new(&net.b, "vb"));
            let mut capture = open("vb", &config(hook));
            capture.start().unwrap();
            let mut tape = Tape::new(&capture);
            far.send(&[experiment(1, 60, &[])]);
            tape.wait_for(&mut capture, 1);
            near.send(&[experiment(2, 60, &[VLAN_7])]);
            tape.wait_for(&mut capture, 2);
            let taken = tape.finish(&mut capture);
            let seen: Vec<_> = taken.iter().map(|p| (number(&p.frame), p.flags)).collect();
            assert_eq!(seen, [(Some(1), FLAG_INBOUND), (Some(2), FLAG_OUTBOUND)], "{hook}");
            assert_eq!(taken[1].frame, experiment(2, 60, &[VLAN_7]));
        });
    }
}

#[test]
fn a_packet_on_the_loopback_interface_is_taken_once() {
    for hook in [Hook::Recv, Hook::Tpacket] {
        on_cable(AS_IT_IS, |net| {
            let wire = Wire::new(&net.b, "lo");
            let mut capture = open("lo", &config(hook));
            capture.start().unwrap();
            let sent = frames(20, 200);
            wire.send(&sent);
            let taken = finish(&mut capture, sent.len());
            assert_same(&sent, &taken);
            assert!(taken.iter().all(|p| p.flags == FLAG_INBOUND), "{hook}");
        });
    }
}

#[test]
fn a_filter_lets_in_what_it_names() {
    for hook in [Hook::Recv, Hook::Tpacket] {
        on_cable(AS_IT_IS, |net| {
            let wire = Wire::new(&net.a, "va");
            let sent = frames(500, 1500);
            let chosen: Vec<_> = sent.iter().filter(|f| f[12..16] == VLAN_7).cloned().collect();
            assert_eq!(chosen.len(), 50);
            let expressions =
                [("vlan 7", &chosen[..]), ("inbound", &sent[..]), ("outbound", &[][..])];
            for (expression, expected) in expressions {
                let filter = Some(expression.to_owned());
                let mut capture = open("vb", &Config { filter, ..config(hook) });
                capture.start().unwrap();
                wire.send(&sent);
                assert_same(expected, &finish(&mut capture, expected.len()));
            }
        });
    }
}

#[test]
fn a_bad_filter_is_refused_with_its_reason() {
    on_cable(AS_IT_IS, |_| {
        let filter = Some("host and port".to_owned());
        let config = Config { filter, ..config(Hook::Tpacket) };
        match Capture::open("vb", &config, 0, &Arc::new(Clock::default())).err() {
            Some(Error::Filter { expression, why }) => {
                assert_eq!(expression, "host and port");
                assert!(why.contains("syntax error"), "{why}");
            }
            other => panic!("{other:?}"),
        }
    });
}

/// Frames flat out into little memory: what is not captured is counted, to the packet.
/// `reading` the rings meanwhile, only the kernel's side can be too slow.
fn conservation(hook: Hook, reading: bool) {
    on_cable(AS_IT_IS, |net| {
        let wire = Wire::new(&net.a, "va");
        let small =
            Config { ring_bytes: 256 << 10, block_bytes: 64 << 10, snaplen: 2048, ..config(hook) };
        let sent: Vec<_> = (0..60_000).map(|i| experiment(i, 300, &[])).collect();
        let mut capture = open("vb", &small);
        let mut tape = Tape::new(&capture);
        capture.start().unwrap();
        wire.begin(&sent, Manner::FlatOut);
        while !wire.is_done() {
            if reading {
                tape.read();
            }
        }
        // Some frames may still be in the kernel's queue before the hook.
        wait_for("every frame to be accounted for", || {
            capture.refresh_nic();
            tape.read_all(&mut capture);
            tape.packets + capture.losses().total() == capture.nic().rx_packets
        });
        let taken = tape.finish(&mut capture);
        let lost = capture.losses().total();
        assert_eq!(taken.len() as u64 + lost, capture.nic().rx_packets, "{hook}");
        assert!(reading || lost > 0, "{hook}: rings of 256 KiB hold 18 MB");

        let announced: u64 = taken.iter().map(|p| p.dropped).sum();
        assert!(announced <= lost, "{hook}: {announced} of {lost} lost frames are announced");
        let numbers: Vec<u32> = taken.iter().map(|p| number(&p.frame).unwrap()).collect();
        for (number, packet) in numbers.iter().zip(&taken) {
            assert_eq!(packet.frame, sent[*number as usize]);
        }
        if hook == Hook::Recv && capture.nic().rx_packets == sent.len() as u64 {
            // Each packet tells how many are missing just before it.
            let before = std::iter::once(0).chain(numbers.iter().map(|n| n + 1));
            for ((number, before), packet) in numbers.iter().zip(before).zip(&taken) {
                assert_eq!(packet.dropped, u64::from(number - before), "frame {number}");
            }
        }
    });
}

#[test]
fn what_the_rings_lose_is_counted() {
    for hook in [Hook::Recv, Hook::Tpacket, Hook::AfXdp] {
        conservation(hook, false);
    }
}

#[test]
fn what_the_kernel_loses_is_counted() {
    for hook in [Hook::Recv, Hook::Tpacket, Hook::AfXdp] {
        conservation(hook, true);
    }
}

#[test]
fn a_capture_stops_promptly_in_the_midst_of_traffic() {
    for hook in [Hook::Recv, Hook::Tpacket, Hook::AfXdp] {
        on_cable(AS_IT_IS, |net| {
            let wire = Wire::new(&net.a, "va");
            let sent: Vec<_> = (0..200_000).map(|i| experiment(i, 60, &[])).collect();
            let mut capture = open("vb", &config(hook));
            let mut tape = Tape::new(&capture);
            capture.start().unwrap();
            wire.begin(&sent, Manner::Gently);
            wait_for("packets", || {
                tape.read();
                tape.packets > 20_000
            });
            let taken = tape.finish(&mut capture);
            capture.refresh_nic();
            let accounted = taken.len() as u64 + capture.losses().total();
            assert!(accounted <= capture.nic().rx_packets, "{hook}");
            // All frames before the last that was taken are there or counted.
            let last = number(&taken[taken.len() - 1].frame).unwrap();
            assert!(accounted > u64::from(last), "{hook}");
        });
    }
}

#[test]
fn capture_goes_on_after_the_link_was_down() {
    for hook in [Hook::Recv, Hook::Tpacket, Hook::AfXdp] {
        on_cable(AS_IT_IS, |net| {
            let wire = Wire::new(&net.a, "va");
            let mut capture = open("vb", &config(hook));
            let sent = frames(200, 1500);
            capture.start().unwrap();
            wire.send(&sent[..100]);
            let mut tape = Tape::new(&capture);
            tape.wait_for(&mut capture, 100);
            net.b.run("ip link set vb down");
            assert_eq!(capture.watch(&[]).unwrap(), Some(Event::LinkDown));
            net.b.run("ip link set vb up");
            net.wait_until_up();
            wire.send(&sent[100..]);
            tape.wait_for(&mut capture, 200);
            assert_same(&sent, &tape.finish(&mut capture));
        });
    }
}

#[test]
fn capture_goes_on_with_an_interface_that_was_made_anew() {
    for hook in [Hook::Recv, Hook::Tpacket, Hook::AfXdp] {
        on_cable(AS_IT_IS, |net| {
            let mut capture = open("vb", &config(hook));
            let sent = frames(200, 1500);
            capture.start().unwrap();
            Wire::new(&net.a, "va").send(&sent[..100]);
            let mut tape = Tape::new(&capture);
            tape.wait_for(&mut capture, 100);
            net.b.run("ip link del vb");
            assert_eq!(capture.watch(&[]).unwrap(), Some(Event::Gone));
            assert_eq!(capture.watch(&[]).unwrap(), None);
            net.plug(AS_IT_IS);
            assert_eq!(capture.watch(&[]).unwrap(), Some(Event::Back));
            Wire::new(&net.a, "va").send(&sent[100..]);
            tape.wait_for(&mut capture, 200);
            assert_same(&sent, &tape.finish(&mut capture));
        });
    }
}

#[test]
fn a_stopped_capture_can_be_started_again() {
    for hook in [Hook::Recv, Hook::Tpacket, Hook::AfXdp] {
        on_cable(AS_IT_IS, |net| {
            let wire = Wire::new(&net.a, "va");
            let mut capture = open("vb", &config(hook));
            let sent = frames(300, 1500);
            let mut tape = Tape::new(&capture);
            for (part, there) in sent.chunks(100).zip([100, 200, 300]) {
                capture.start().unwrap();
                wire.send(part);
                tape.wait_for(&mut capture, there);
                capture.stop();
            }
            capture.start().unwrap();
            assert_same(&sent, &tape.finish(&mut capture));
        });
    }
}
