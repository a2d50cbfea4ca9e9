//! What a member reads, against a daemon that has no kernel behind it.

mod support;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use support::{Daemon, EPOCH_NS, Form, Joined, Manner, Sent, udp};
use tapdeck_client::{Counts, Error, Member, Next, Options};
use tapdeck_packet::pcapng::Reader;
use tapdeck_testkit::wait_for;

const NOW: Option<Duration> = Some(Duration::ZERO);

fn options(daemon: &Daemon) -> Options {
    Options { socket: daemon.socket(), weight: 3 }
}

fn open(daemon: &Daemon) -> (Member, Joined) {
    let member = Member::open("ids", &options(daemon)).unwrap();
    (member, daemon.joined())
}

fn start(form: Form) -> (Daemon, Member, Joined) {
    let daemon = Daemon::new(Manner { form, ..Manner::default() });
    let (member, joined) = open(&daemon);
    (daemon, member, joined)
}

/// The source port of each packet that comes as batches, less 1000: which packet it is.
fn batches(member: &mut Member) -> Vec<u16> {
    let mut came = Vec::new();
    while let Next::Got(batch) = member.next_batch(NOW).unwrap() {
        came.extend(batch.packets().map(|packet| number(packet.unwrap().bytes)));
    }
    came
}

fn packets(member: &mut Member) -> Vec<u16> {
    let mut came = Vec::new();
    while let Next::Got(packet) = member.next_packet(NOW).unwrap() {
        came.push(number(packet.bytes));
    }
    came
}

fn number(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]]) - 1000
}

fn is_readable(member: &Member) -> bool {
    let fd = member.as_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn a_packet_comes_with_everything_that_is_known_of_it() {
    let (_daemon, mut member, joined) = start(Form::default());
    assert_eq!((member.id(), member.snaplen(), joined.weight), (7, 65_535, 3));
    let interface = &member.interfaces()[0];
    assert_eq!((interface.name.as_str(), interface.link.0), ("eth1", 1));
    assert_eq!(interface.mac, Some([2, 0, 0, 0, 0, 1]));
    let sent = Sent { original_len: 9000, interface: 5, flags: 2, ..udp(4) };
    assert!(joined.tape().put(1, &sent));
    joined.tape().flush();
    let batch = member.next_batch(None).unwrap().got().unwrap();
    let found: Vec<_> = batch.packets().map(Result::unwrap).collect();
    assert_eq!(found.len(), 1);
    let packet = &found[0];
    assert_eq!(packet.timestamp_ns, EPOCH_NS + 4_000_004);
    assert_eq!((packet.interface, packet.original_len, packet.flags), (5, 9000, 2));
    assert_eq!((packet.bytes, packet.dropped), (&sent.frame[..], 0));
}

#[test]
fn blocks_go_back_when_the_next_is_asked_for() {
    let (_daemon, mut member, joined) = start(Form { nrings: 1, ..Form::default() });
    // Many times around the ring.
    for n in 0..50 {
        assert!(joined.tape().put(0, &udp(n)), "packet {n} has no room");
        joined.tape().flush();
        let batch = member.next_batch(None).unwrap().got().unwrap();
        let numbers: Vec<u16> = batch.packets().map(|p| number(p.unwrap().bytes)).collect();
        assert_eq!(numbers, [n]);
        assert_eq!(joined.tape().released(0), u32::from(n), "the batch is still in use");
    }
    member.release();
    assert_eq!(joined.tape().released(0), 50);
    assert_eq!(member.counts(), Counts { received: 50, unread: 0, dropped: 0 });
}

#[test]
fn packets_of_all_rings_come_in_the_order_of_time() {
    let (_daemon, mut member, joined) = start(Form { nrings: 3, ..Form::default() });
    let mut expected = Vec::new();
    for round in 0..20u16 {
        for n in 0..9 {
            let n = round * 9 + n;
            // The first ring gets most, the last one nothing in most rounds.
            let ring = [0, 0, 1, 0, 1, 0, 0, 2, 0][usize::from(n % 9)];
            let ring = if ring == 2 && round % 4 != 0 { 0 } else { ring };
            assert!(joined.tape().put(ring, &udp(n)));
            expected.push(n);
            if n % 5 == 0 {
                joined.tape().close(ring);
            }
        }
        let came = packets(&mut member);
        assert_eq!(came, expected, "part-filled blocks are read too");
        expected.clear();
    }
    assert_eq!(member.counts().received, 180);
}

#[test]
fn a_producer_at_work_hides_what_is_behind_it_in_its_ring_only() {
    let (_daemon, mut member, joined) = start(Form::default());
    assert!(joined.tape().put(0, &udp(1)));
    let begun = joined.tape().begin(0, &udp(2)).unwrap();
    assert!(joined.tape().put(0, &udp(3)));
    assert!(joined.tape().put(1, &udp(4)));
    assert_eq!(packets(&mut member), [4]);
    joined.tape().end(0, begun);
    assert_eq!(packets(&mut member), [1, 2, 3]);
    // A block that is closed and not complete is not read either, and then it is.
    let begun = joined.tape().begin(0, &udp(5)).unwrap();
    assert!(joined.tape().close(0));
    assert!(joined.tape().put(0, &udp(6)));
    assert_eq!(packets(&mut member), [0u16; 0]);
    joined.tape().end(0, begun);
    assert_eq!(packets(&mut member), [5, 6]);
}

#[test]
fn batches_and_packets_share_what_was_read() {
    let (_daemon, mut member, joined) = start(Form { nrings: 1, ..Form::default() });
    for n in 0..4 {
        assert!(joined.tape().put(0, &udp(n)));
    }
    let packet = member.next_packet(NOW).unwrap().got().unwrap();
    assert_eq!(number(packet.bytes), 0);
    assert_eq!(batches(&mut member), [0u16; 0], "the block is open");
    joined.tape().flush();
    assert_eq!(batches(&mut member), [1, 2, 3]);
    assert!(joined.tape().put(0, &udp(4)));
    assert_eq!(packets(&mut member), [4]);
    joined.tape().flush();
    assert_eq!(packets(&mut member), [0u16; 0]);
    member.release();
    assert_eq!(joined.tape().released(0), 2);
}

#[test]
fn what_is_dropped_is_told_with_the_next_packet_and_counted() {
    let (_daemon, mut member, joined) = start(Form { nrings: 1, ..Form::default() });
    let mut kept = 0;
    while joined.tape().put(0, &udp(kept)) {
        kept += 1;
    }
    for n in 0..6 {
        assert!(!joined.tape().put(0, &udp(n)));
    }
    let came = packets(&mut member);
    assert_eq!(came.len(), usize::from(kept));
    member.release();
    assert_eq!(member.counts().dropped, 7);
    assert!(joined.tape().put(0, &udp(9)));
    let packet = member.next_packet(NOW).unwrap().got().unwrap();
    assert_eq!((number(packet.bytes), packet.dropped), (9, 7));
    let stats = member.stats().unwrap();
    assert_eq!((stats.seen, stats.captured), (1000, 900));
    assert_eq!((stats.dropped_ring, stats.dropped_other), (7, 1));
}

#[test]
fn the_descriptor_is_readable_until_nothing_is_left() {
    let (_daemon, mut member, joined) = start(Form::default());
    assert!(matches!(member.next_batch(NOW).unwrap(), Next::Nothing));
    assert!(!is_readable(&member));
    for n in 0..3 {
        assert!(joined.tape().put(0, &udp(n)));
        joined.tape().flush();
    }
    for _ in 0..3 {
        assert!(is_readable(&member));
        assert!(member.next_packet(NOW).unwrap().got().is_some());
    }
    assert!(is_readable(&member), "nobody knows yet that there is no more");
    assert!(member.next_packet(NOW).unwrap().got().is_none());
    assert!(!is_readable(&member));
}

#[test]
fn a_member_that_waits_is_woken() {
    let (_daemon, mut member, joined) = start(Form::default());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let packet = member.next_packet(None).unwrap().got().unwrap();
            number(packet.bytes)
        });
        assert!(joined.tape().put(0, &udp(8)));
        joined.tape().flush();
        assert_eq!(reader.join().unwrap(), 8);
    });
    let waited = member.next_packet(Some(Duration::from_millis(1))).unwrap();
    assert!(matches!(waited, Next::Nothing));
}

#[test]
fn after_the_daemons_end_everything_is_read_and_then_comes_the_end() {
    for by_batch in [false, true] {
        let (daemon, mut member, joined) = start(Form::default());
        assert!(joined.tape().put(0, &udp(1)));
        assert!(joined.tape().close(0));
        assert!(joined.tape().put(0, &udp(2)));
        assert!(joined.tape().put(1, &udp(3)));
        daemon.die();
        let mut came = Vec::new();
        loop {
            if by_batch {
                match member.next_batch(None).unwrap() {
                    Next::Got(batch) => {
                        came.extend(batch.packets().map(|p| number(p.unwrap().bytes)));
                    }
                    Next::Nothing => panic!("it was to wait for ever"),
                    Next::End => break,
                }
            } else {
                match member.next_packet(None).unwrap() {
                    Next::Got(packet) => came.push(number(packet.bytes)),
                    Next::Nothing => panic!("it was to wait for ever"),
                    Next::End => break,
                }
            }
        }
        came.sort_unstable();
        assert_eq!(came, [1, 2, 3]);
        assert!(matches!(member.next_batch(None).unwrap(), Next::End), "and for ever");
        assert!(matches!(member.stats(), Err(Error::Connection(_))));
        assert_eq!(member.counts().received, 3);
    }
}

#[test]
fn what_comes_while_the_kernel_lets_go_is_read() {
    let (daemon, mut member, joined) = start(Form::default());
    daemon.die();
    assert!(matches!(member.next_packet(NOW).unwrap(), Next::Nothing));
    assert!(joined.tape().put(0, &udp(1)));
    assert_eq!(packets(&mut member), [1]);
    assert!(matches!(member.next_packet(None).unwrap(), Next::End));
}

#[test]
fn closing_is_leaving() {
    let (_daemon, member, joined) = start(Form::default());
    assert!(!joined.has_left());
    drop(member);
    wait_for("the daemon to see that the member has left", || joined.has_left());
}

#[test]
fn a_damaged_block_is_told_and_passed_over() {
    let (_daemon, mut member, joined) = start(Form { nrings: 1, ..Form::default() });
    assert!(joined.tape().put(0, &udp(1)));
    // The first packet's length.
    joined.tape().damage(0, 4, &7u32.to_ne_bytes());
    assert!(joined.tape().close(0));
    assert!(joined.tape().put(0, &udp(2)));
    assert!(matches!(member.next_packet(NOW), Err(Error::Damaged(_))));
    assert_eq!(packets(&mut member), [2]);
}

#[test]
fn the_rings_themselves_can_be_had() {
    let daemon = Daemon::new(Manner {
        interfaces: json!([{"name": "a", "link": 1}, {"name": "b", "link": 1}]),
        ..Manner::default()
    });
    let (member, joined) = open(&daemon);
    let (mut rings, mut attachment) = member.into_rings();
    assert_eq!(rings.len(), 2);
    assert!(rings.iter().all(|ring| ring.is_mixed()));
    assert!(joined.tape().put(1, &udp(1)));
    assert!(rings[1].peek(0).is_none());
    attachment.flush().unwrap();
    let block = rings[1].peek(0).unwrap();
    assert_eq!(block.contents.packets, 1);
    assert!(block.bytes.as_ptr().addr().is_multiple_of(4096));
    let mut held = rings[1].hold(0).unwrap();
    assert!(held.bytes().is_some());
    rings[1].release(1);
    assert_eq!(joined.tape().released(1), 0);
    drop(held);
    assert_eq!(joined.tape().released(1), 1);
    assert!(rings[1].caught_up());

    assert!(joined.tape().put(0, &udp(2)));
    attachment.leave().unwrap();
    assert!(rings[0].peek(0).is_some(), "leaving closes what is open");
    attachment.drain().unwrap();
    wait_for("the end", || attachment.is_over());
}

/// What happens to the rings or to their member, in a random order.
#[derive(Clone, Debug)]
enum Act {
    Put {
        ring: usize,
    },
    /// A producer begins, and ends when the next `End` of its ring comes.
    Begin {
        ring: usize,
    },
    End {
        ring: usize,
    },
    Close {
        ring: usize,
    },
    Packets {
        most: usize,
    },
    Batch,
    Release,
}

fn act() -> impl Strategy<Value = Act> {
    let ring = 0..3usize;
    prop_oneof![
        8 => ring.clone().prop_map(|ring| Act::Put { ring }),
        1 => ring.clone().prop_map(|ring| Act::Begin { ring }),
        2 => ring.clone().prop_map(|ring| Act::End { ring }),
        2 => ring.prop_map(|ring| Act::Close { ring }),
        3 => (0..20usize).prop_map(|most| Act::Packets { most }),
        1 => Just(Act::Batch),
        1 => Just(Act::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// However packets are read, every packet that had room comes once, and those of a ring in
    /// their order.
    #[test]
    fn every_packet_comes_once(acts in prop::collection::vec(act(), 0..200)) {
        let (_daemon, mut member, joined) = start(Form { nrings: 3, ..Form::default() });
        let mut sent: [Vec<u16>; 3] = Default::default();
        let mut came: Vec<u16> = Vec::new();
        let mut begun: [Vec<(u32, u64)>; 3] = Default::default();
        for (n, act) in (0u16..).zip(acts) {
            let mut tape = joined.tape();
            match act {
                Act::Put { ring } => {
                    if tape.put(ring, &udp(n)) {
                        sent[ring].push(n);
                    }
                }
                Act::Begin { ring } => {
                    if let Some(one) = tape.begin(ring, &udp(n)) {
                        begun[ring].push(one);
                        sent[ring].push(n);
                    }
                }
                Act::End { ring } => {
                    for one in begun[ring].drain(..) {
                        tape.end(ring, one);
                    }
                }
                Act::Close { ring } => _ = tape.close(ring),
                Act::Packets { most } => {
                    for _ in 0..most {
                        let Next::Got(packet) = member.next_packet(NOW).unwrap() else { break };
                        came.push(number(packet.bytes));
                    }
                }
                Act::Batch => {
                    if let Next::Got(batch) = member.next_batch(NOW).unwrap() {
                        came.extend(batch.packets().map(|p| number(p.unwrap().bytes)));
                    }
                }
                Act::Release => member.release(),
            }
        }
        for (ring, begun) in begun.into_iter().enumerate() {
            for one in begun {
                joined.tape().end(ring, one);
            }
        }
        came.extend(packets(&mut member));
        for sent in &sent {
            let of_ring: Vec<u16> = came.iter().copied().filter(|n| sent.contains(n)).collect();
            prop_assert_eq!(&of_ring, sent);
        }
        prop_assert_eq!(came.len(), sent.iter().map(Vec::len).sum::<usize>());
        prop_assert_eq!(member.counts().received, came.len() as u64);
    }
}

fn refusal(manner: Manner, group: &str) -> String {
    let daemon = Daemon::new(manner);
    match Member::open(group, &options(&daemon)) {
        Ok(_) => panic!("it attached"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn what_makes_no_sense_is_an_error_that_says_what() {
    let twisted = |twist: fn(&mut Value)| refusal(Manner { twist, ..Manner::default() }, "ids");
    assert_eq!(refusal(Manner::default(), "nids"), r#"there is no group "nids""#);
    let text = refusal(Manner { fds: 3, ..Manner::default() }, "ids");
    assert!(text.contains("3 descriptors"), "{text}");
    let text = twisted(|said| said["protocol"] = json!(2));
    assert!(text.contains("version 2 of the protocol, this program 1"), "{text}");
    let text = twisted(|said| said["nblocks"] = json!(5));
    assert!(text.contains("the number of blocks is impossible"), "{text}");
    let text = twisted(|said| said["interfaces"] = json!([]));
    assert!(text.contains("names no interface"), "{text}");
    let text = twisted(|said| said["data_stride"] = json!("much"));
    assert!(text.contains("cannot be understood"), "{text}");
    let text = twisted(|said| said["release_stride"] = json!(1 << 20));
    assert!(text.contains("the distance between rings is impossible"), "{text}");
}

#[test]
fn a_daemon_that_is_not_there_is_named_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none");
    let gone = Options { socket: socket.clone(), weight: 1 };
    let Err(error) = Member::open("ids", &gone) else { panic!("it attached") };
    assert!(matches!(&error, Error::NoDaemon { why, .. } if why.kind() == io::ErrorKind::NotFound));
    let text = error.to_string();
    assert!(text.contains(socket.to_str().unwrap()), "{text}");
    assert!(text.contains("tapdeck serve") && text.contains("TAPDECK_SOCKET"), "{text}");
}

#[test]
fn groups_are_listed() {
    let daemon = Daemon::new(Manner::default());
    let groups = tapdeck_client::groups(&daemon.socket()).unwrap();
    assert_eq!(groups.len(), 1);
    assert_eq!(
        (groups[0].name.as_str(), groups[0].interfaces.as_slice()),
        ("ids", &["eth1".to_owned()][..])
    );
}

/// As `record --group` reads: the open block, which a full ring or a daemon that is gone leaves
/// behind, is read at the end.
#[test]
fn rings_give_out_the_open_block_once_nothing_comes_any_more() {
    let form = Form { nrings: 1, nblocks: 2, block_shift: 16 };
    let (_daemon, member, joined) = start(form);
    let (mut rings, _attachment) = member.into_rings();
    let ring = &mut rings[0];
    let mut sent = 0;
    while joined.tape().put(0, &udp(sent % 1000)) {
        sent += 1;
    }
    assert!(!joined.tape().close(0), "the ring is full");
    let mut came = u64::from(ring.peek(0).unwrap().contents.packets);
    assert!(ring.peek(1).is_none());
    ring.release(1);
    assert!(ring.caught_up() && ring.peek(0).is_none(), "the open block is the producers'");
    ring.end();
    assert!(!ring.caught_up());
    let block = ring.peek(0).unwrap();
    came += u64::from(block.contents.packets);
    assert_eq!(
        Reader::inside(block.bytes).map_while(Result::ok).count(),
        block.contents.packets as usize
    );
    ring.release(1);
    assert_eq!((came, ring.unread()), (u64::from(sent), 0));
    assert!(ring.caught_up() && ring.peek(0).is_none());
}
