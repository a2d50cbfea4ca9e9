//! Groups over veth pairs: who gets which packets, and that every packet is accounted for. Needs
//! root.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tapdeck_capture::groups::{
    Error, GroupConfig, GroupStats, Groups, GroupsConfig, Membership, Steering,
};
use tapdeck_capture::ring::{ReadMemory, RingMemory, RingReader};
use tapdeck_capture::rules::{Compiled, Hits};
use tapdeck_capture::{Clock, Deliver, Event, Hook, Stamps, SystemClock, WallClock};
use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_packet::ring::Ring;
use tapdeck_packet::rules::RuleSet;
use tapdeck_packet::rules::image::Options;
use tapdeck_testkit::cable::End;
use tapdeck_testkit::frame::{UdpFrame, number_of};
use tapdeck_testkit::{Cable, Net, Sender, wait_for};

/// Two network namespaces, joined by a cable. This thread has moved into the second, where `vb` is.
fn lab() -> Net {
    let net = Net::default();
    plug(&net, "va", "vb");
    net.b.enter();
    net
}

/// Makes a cable, whose near end has the address that the frames below are sent to.
fn plug(net: &Net, far_end: &str, near_end: &str) {
    let near = End { mac: Some("02:00:00:00:00:02"), ..End::new(&net.b, near_end) };
    Cable::default().plug([End::new(&net.a, far_end), near]);
}

/// Sends frames from an interface of the far namespace, and returns when the near end has them.
fn transmit(net: &Net, device: &str, frames: &[Vec<u8>]) {
    net.a.inside(|| Sender::on(device).send_all(frames));
}

/// A UDP packet of one flow.
fn frame(source: [u8; 4], destination: [u8; 4], ports: (u16, u16), number: u32) -> Vec<u8> {
    let ports = [ports.0, ports.1];
    UdpFrame { source, destination, ports, number, ..UdpFrame::default() }.bytes()
}

/// Packets of many flows; `number` counts them.
fn flows(count: u32) -> Vec<Vec<u8>> {
    let address = |i: u32| [10, (i >> 16) as u8, (i >> 8) as u8, i as u8];
    (0..count).map(|i| frame(address(i), address(i / 7 + 1000), (1000 + i as u16, 53), i)).collect()
}

fn sorted(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut sorted = frames.to_vec();
    sorted.sort();
    sorted
}

fn group(name: &str, steering: Steering) -> GroupConfig {
    GroupConfig {
        name: name.to_owned(),
        interfaces: vec!["vb".to_owned()],
        hook: Hook::Xdp,
        deliver: Deliver::Pass,
        filter: None,
        rules: None,
        snaplen: 1500,
        steering,
        promiscuous: false,
        max_members: 1024,
        max_memory: None,
    }
}

fn config(groups: Vec<GroupConfig>) -> GroupsConfig {
    GroupsConfig {
        groups,
        ring_bytes: Some(1 << 20),
        block_bytes: 1 << 16,
        device_bound: true,
        stamps: Stamps::Auto,
    }
}

fn started(groups: Vec<GroupConfig>) -> Groups {
    let mut groups = Groups::open(&config(groups), &Arc::new(Clock::default())).expect("it opens");
    groups.start().expect("it starts");
    groups
}

/// A packet, as a member reads it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    interface: u32,
    frame: Vec<u8>,
    dropped: u64,
}

/// A member that reads.
struct Member {
    membership: Membership,
    memory: Vec<Arc<RingMemory>>,
    rings: Vec<RingReader>,
    packets: Vec<Packet>,
}

impl Member {
    fn of(membership: Membership) -> Self {
        let memory = membership.map().expect("the descriptors can be mapped");
        let rings = memory.iter().map(|m| RingReader::new(m.clone(), 0)).collect();
        Self { membership, memory, rings, packets: Vec::new() }
    }

    fn join(groups: &mut Groups, group: &str, weight: u32) -> Self {
        Self::of(groups.join(group, weight).expect("it may join"))
    }

    fn number(&self) -> u32 {
        self.membership.member
    }

    /// Reads what is complete.
    fn read(&mut self) {
        for ring in &mut self.rings {
            while let Some(block) = ring.peek(0) {
                let packets = &mut self.packets;
                read_block(block.bytes, packets);
                ring.release(1);
            }
        }
    }

    fn numbers(&self) -> BTreeSet<u32> {
        self.packets.iter().map(|p| number_of(&p.frame)).collect()
    }
}

/// The packet blocks of a ring's block, behind a section header and an interface for the reader's
/// sake.
fn read_block(bytes: &[u8], packets: &mut Vec<Packet>) {
    let mut file = Vec::new();
    for word in [0x0a0d_0d0au32, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28] {
        file.extend(word.to_ne_bytes());
    }
    for _ in 0..4 {
        for word in [1u32, 20, 1, 0, 20] {
            file.extend(word.to_ne_bytes());
        }
    }
    file.extend(bytes);
    for record in Reader::new(&file) {
        if let Record::Packet(p) = record.expect("blocks are well formed") {
            let (interface, dropped) = (p.interface, p.dropped);
            packets.push(Packet { interface, frame: p.frame.to_vec(), dropped });
        }
    }
}

fn stats_of(groups: &Groups, group: &str) -> GroupStats {
    let stats = groups.stats().expect("the kernel counts");
    stats.groups.into_iter().find(|g| g.name == group).expect("the group is there")
}

fn wait_seen(groups: &Groups, group: &str, packets: u64) {
    wait_for("packets to be seen", || stats_of(groups, group).seen >= packets);
}

fn assert_law(stats: &GroupStats) {
    assert_eq!(
        stats.seen + stats.extra,
        stats.filtered
            + stats.no_member
            + stats.captured
            + stats.dropped_ring
            + stats.dropped_other,
        "{stats:?}"
    );
}

/// Stops the groups and lets members read everything.
fn finish(groups: &mut Groups, members: &mut [&mut Member]) {
    groups.stop();
    for member in members {
        member.read();
    }
}

/// Sends frames, and waits until the group has seen them all.
fn send(lab: &Net, groups: &Groups, group: &str, frames: &[Vec<u8>]) {
    let before = stats_of(groups, group).seen;
    transmit(lab, "va", frames);
    wait_seen(groups, group, before + frames.len() as u64);
}

const HOOKS: [Hook; 4] = [Hook::Xdp, Hook::XdpGeneric, Hook::Tcx, Hook::Netfilter];

#[test]
fn each_group_gets_every_packet() {
    let lab = lab();
    for hook in HOOKS {
        let names = ["one", "two", "three"];
        let groups = names.map(|name| GroupConfig { hook, ..group(name, Steering::Flow) });
        let mut groups = started(groups.to_vec());
        let mut members = names.map(|name| Member::join(&mut groups, name, 1));
        let frames = flows(3000);
        send(&lab, &groups, "three", &frames);
        finish(&mut groups, &mut members.each_mut());
        for (member, name) in members.iter().zip(names) {
            let got: Vec<Vec<u8>> = member.packets.iter().map(|p| p.frame.clone()).collect();
            assert!(sorted(&got) == sorted(&frames), "{hook}: {} packets", got.len());
            let stats = stats_of(&groups, name);
            assert_law(&stats);
            assert_eq!((stats.seen, stats.captured, stats.captured_bytes), (3000, 3000, 180_000));
        }
        let ports = groups.stats().unwrap().ports;
        assert_eq!(ports.iter().map(|port| port.seen).collect::<Vec<_>>(), [3000]);
    }
}

/// Both directions of flows, to and from hosts.
fn conversations(count: u32) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for i in 0..count {
        let (client, server) = ([10, 0, (i >> 8) as u8, i as u8], [10, 9, 0, (i % 16) as u8]);
        let port = 2000 + i as u16;
        frames.push(frame(client, server, (port, 80), 2 * i));
        frames.push(frame(server, client, (80, port), 2 * i + 1));
    }
    frames
}

/// What steering keeps together.
fn key(steering: Steering, frame: &[u8]) -> Vec<Vec<u8>> {
    let (source, destination) = (frame[26..30].to_vec(), frame[30..34].to_vec());
    let ends =
        [[&frame[26..30], &frame[34..36]].concat(), [&frame[30..34], &frame[36..38]].concat()];
    let pair = |mut of: [Vec<u8>; 2]| {
        of.sort();
        vec![of.concat()]
    };
    match steering {
        Steering::Flow => pair(ends),
        Steering::IpPair => pair([source, destination]),
        Steering::Source => vec![source],
        Steering::Destination => vec![destination],
        Steering::BothEnds => vec![source, destination],
        _ => vec![Vec::new()],
    }
}

#[test]
fn what_belongs_together_goes_to_one_member() {
    let lab = lab();
    let frames = conversations(1500);
    let by_number: BTreeMap<u32, &Vec<u8>> = frames.iter().map(|f| (number_of(f), f)).collect();
    let hooks = [Hook::Xdp, Hook::Tcx, Hook::XdpGeneric, Hook::Netfilter];
    let all = [
        Steering::Flow,
        Steering::IpPair,
        Steering::Source,
        Steering::Destination,
        Steering::BothEnds,
    ];
    for (steering, hook) in all.into_iter().zip(hooks.into_iter().cycle()) {
        let mut groups = started(vec![GroupConfig { hook, ..group("g", steering) }]);
        let mut members: Vec<Member> = (0..4).map(|_| Member::join(&mut groups, "g", 1)).collect();
        send(&lab, &groups, "g", &frames);
        finish(&mut groups, &mut members.iter_mut().collect::<Vec<_>>());
        let stats = stats_of(&groups, "g");
        assert_law(&stats);
        assert_eq!((stats.seen, stats.no_member), (3000, 0), "{steering}");

        // Whoever has a packet of a key has all of that key.
        let mut owners: BTreeMap<Vec<u8>, BTreeSet<u32>> = BTreeMap::new();
        for f in &frames {
            for key in key(steering, f) {
                owners.entry(key).or_insert_with(|| members.iter().map(Member::number).collect());
            }
        }
        for member in &members {
            let has = member.numbers();
            for f in &frames {
                if !has.contains(&number_of(f)) {
                    for key in key(steering, f) {
                        owners.get_mut(&key).unwrap().remove(&member.number());
                    }
                }
            }
        }
        assert!(owners.values().all(|owners| !owners.is_empty()), "{steering}");
        let copies: usize = members.iter().map(|m| m.packets.len()).sum();
        if steering == Steering::BothEnds {
            assert!(stats.extra > 1000 && stats.extra < 3000, "{stats:?}");
        } else {
            assert_eq!(stats.extra, 0);
            assert!(members.iter().all(|m| m.packets.len() > 200), "{steering}");
        }
        assert_eq!(copies as u64, 3000 + stats.extra, "{steering}");
        let got: BTreeSet<u32> = members.iter().flat_map(Member::numbers).collect();
        assert_eq!(got.len(), by_number.len(), "{steering}");
    }
}

#[test]
fn macs_vlans_turns_queues_and_copies() {
    let lab = lab();
    let tagged = |vlan: u32, i: u32| {
        let mut f = frame([10, 0, 0, i as u8], [10, 0, 0, 9], (1, 2), i);
        f[11] = vlan as u8;
        f.splice(12..12, [0x81, 0, 0, vlan as u8]);
        f
    };
    let frames: Vec<Vec<u8>> = (0..2048).map(|i| tagged(i % 64, i)).collect();
    for steering in
        [Steering::Mac, Steering::Vlan, Steering::RoundRobin, Steering::Queue, Steering::Copy]
    {
        let mut groups = started(vec![group("g", steering)]);
        let mut members: Vec<Member> = (0..4).map(|_| Member::join(&mut groups, "g", 1)).collect();
        send(&lab, &groups, "g", &frames);
        finish(&mut groups, &mut members.iter_mut().collect::<Vec<_>>());
        let stats = stats_of(&groups, "g");
        assert_law(&stats);
        assert_eq!((stats.seen, stats.no_member, stats.dropped_ring), (2048, 0, 0));
        let each: Vec<usize> = members.iter().map(|m| m.packets.len()).collect();
        // A VLAN's frames have one source here, so both keep VLANs together.
        let vlans = |m: &Member| m.packets.iter().map(|p| p.frame[15]).collect::<BTreeSet<_>>();
        match steering {
            Steering::Mac | Steering::Vlan => {
                let all: Vec<u8> = members.iter().flat_map(vlans).collect();
                assert_eq!(all.len(), 64, "{steering}: each has one owner");
                assert!(members.iter().all(|m| m.packets.len() == vlans(m).len() * 32));
                assert!(each.iter().all(|n| *n > 0), "{each:?}");
            }
            Steering::RoundRobin => {
                // Each CPU takes turns by itself.
                assert!(each.iter().all(|n| n.abs_diff(512) <= 128), "{each:?}");
            }
            // There is one queue.
            Steering::Queue => assert_eq!(each.iter().filter(|n| **n == 2048).count(), 1),
            _ => {
                assert_eq!((each, stats.extra), (vec![2048; 4], 3 * 2048));
            }
        }
    }
}

#[test]
fn members_share_by_weight() {
    let lab = lab();
    let mut groups =
        started(vec![group("g", Steering::Flow), group("turns", Steering::RoundRobin)]);
    let mut members: Vec<Member> =
        [1, 3].map(|weight| Member::join(&mut groups, "g", weight)).into_iter().collect();
    members.extend([1, 3].map(|weight| Member::join(&mut groups, "turns", weight)));
    send(&lab, &groups, "turns", &flows(4000));
    finish(&mut groups, &mut members.iter_mut().collect::<Vec<_>>());
    let each: Vec<usize> = members.iter().map(|m| m.packets.len()).collect();
    assert_eq!((each[0] + each[1], each[2] + each[3]), (4000, 4000));
    assert!(each[0].abs_diff(1000) < 150, "{each:?}");
    assert!(each[2].abs_diff(1000) < 10, "{each:?}");
}

#[test]
fn only_the_share_of_whoever_leaves_moves() {
    let lab = lab();
    let mut groups = started(vec![group("g", Steering::Flow)]);
    let mut members: Vec<Member> = (0..5).map(|_| Member::join(&mut groups, "g", 1)).collect();
    let frames = flows(2000);
    send(&lab, &groups, "g", &frames);
    groups.flush_all().unwrap();
    members.iter_mut().for_each(Member::read);
    let before: Vec<BTreeSet<u32>> = members
        .iter_mut()
        .map(|m| std::mem::take(&mut m.packets).iter().map(|p| number_of(&p.frame)).collect())
        .collect();
    assert_eq!(before.iter().map(BTreeSet::len).sum::<usize>(), 2000);

    let gone = members.remove(2);
    let left = groups.leave(&[gone.number(), 999, gone.number()]);
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].0, left[0].1.captured), (gone.number(), before[2].len() as u64));
    assert!(groups.leave(&[gone.number()]).is_empty());
    send(&lab, &groups, "g", &frames);
    groups.flush_all().unwrap();
    members.iter_mut().for_each(Member::read);
    let stayed = [0, 1, 3, 4].map(|i| &before[i]);
    for (member, before) in members.iter().zip(stayed) {
        assert!(member.numbers().is_superset(before), "a flow moved without need");
        assert!(member.packets.len() > before.len(), "the share is shared out");
    }
    assert_eq!(members.iter().map(|m| m.packets.len()).sum::<usize>(), 2000);

    // Everybody leaves, and somebody comes.
    let all: Vec<u32> = members.iter().map(Member::number).collect();
    assert_eq!(groups.leave(&all).len(), 4);
    send(&lab, &groups, "g", &frames[..100]);
    assert_eq!(stats_of(&groups, "g").no_member, 100);
    let mut last = Member::join(&mut groups, "g", 1);
    assert_eq!(last.number(), 0, "numbers are used again");
    send(&lab, &groups, "g", &frames);
    finish(&mut groups, &mut [&mut last]);
    assert_eq!(last.packets.len(), 2000);
    let stats = stats_of(&groups, "g");
    assert_law(&stats);
    assert_eq!((stats.seen, stats.captured, stats.members), (6100, 6000, 1));
}

/// Whoever leaves a group whose members take turns leaves no gap in them.
#[test]
fn no_packet_is_without_a_member_while_some_leave() {
    let lab = lab();
    let names = ["turns", "queues", "copies"];
    let mut groups = started(vec![
        group("turns", Steering::RoundRobin),
        group("queues", Steering::Queue),
        group("copies", Steering::Copy),
    ]);
    let mut stay = names.map(|name| Member::join(&mut groups, name, 1));
    let frames = flows(6000);
    thread::scope(|scope| {
        let sending = scope.spawn(|| frames.chunks(50).for_each(|part| transmit(&lab, "va", part)));
        while !sending.is_finished() {
            let mut come: Vec<u32> = Vec::new();
            for name in names.iter().cycle().take(9) {
                come.push(groups.join(name, 1).unwrap().member);
            }
            groups.leave(&come);
            groups.tick().unwrap();
            stay.iter_mut().for_each(Member::read);
        }
    });
    wait_seen(&groups, "copies", 6000);
    finish(&mut groups, &mut stay.each_mut());
    for name in names {
        let stats = stats_of(&groups, name);
        assert_law(&stats);
        assert_eq!((stats.seen, stats.no_member), (6000, 0), "{name}");
    }
    assert_eq!(stay[2].packets.len(), 6000);
}

/// This machine's clock, and how far somebody has set it.
struct SetClock(Arc<AtomicI64>);

impl WallClock for SetClock {
    fn utc_offset_ns(&self) -> i64 {
        SystemClock.utc_offset_ns() + self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_step_of_the_clock_reaches_rings_that_hold_nothing() {
    let lab = lab();
    let set = Arc::new(AtomicI64::new(0));
    let clock = Arc::new(Clock::new(Box::new(SetClock(set.clone()))));
    let mut groups = Groups::open(&config(vec![group("g", Steering::Copy)]), &clock).unwrap();
    groups.start().unwrap();
    let mut there = Member::join(&mut groups, "g", 1);
    send(&lab, &groups, "g", &flows(10));
    set.store(3_600_000_000_000, Ordering::Relaxed);
    assert!(clock.check().is_some());
    groups.flush_all().unwrap();
    let mut new = Member::join(&mut groups, "g", 1);
    for memory in there.memory.iter().chain(&new.memory) {
        assert_eq!((memory.open_epoch(), memory.open_block().1), (clock.epoch(), 0));
    }
    send(&lab, &groups, "g", &flows(10));
    finish(&mut groups, &mut [&mut there, &mut new]);
    assert_eq!((there.packets.len(), new.packets.len()), (20, 10));
}

/// A member that leaves while it holds its descriptors can read all it got.
#[test]
fn the_last_packets_can_be_read_after_leaving() {
    let lab = lab();
    let mut groups = started(vec![group("g", Steering::Flow)]);
    let mut member = Member::join(&mut groups, "g", 1);
    send(&lab, &groups, "g", &flows(777));
    let left = groups.leave(&[member.number()]);
    member.read();
    assert_eq!((member.packets.len(), left[0].1.captured), (777, 777));
}

#[test]
fn a_member_that_does_not_read_loses_its_own_packets_only() {
    let lab = lab();
    let groups = vec![group("g", Steering::Copy), group("other", Steering::Flow)];
    let mut groups = started(groups);
    let mut reads = Member::join(&mut groups, "g", 1);
    let mut lazy = Member::join(&mut groups, "g", 1);
    let mut other = Member::join(&mut groups, "other", 1);
    // More than all rings hold: about 700 packets fit into a block of 64 KiB.
    let ring = reads.membership.geometry.nblocks * 750 * reads.membership.geometry.nrings;
    let frames = flows(ring * 2);
    for part in frames.chunks(500) {
        send(&lab, &groups, "other", part);
        groups.tick().unwrap();
        reads.read();
        other.read();
    }
    finish(&mut groups, &mut [&mut reads, &mut other]);
    assert_eq!((reads.packets.len(), other.packets.len()), (frames.len(), frames.len()));
    let stats = groups.stats().unwrap();
    let of = |m: &Member| stats.members.iter().find(|s| s.member == m.number()).unwrap();
    assert_eq!((of(&reads).dropped_ring, of(&other).dropped_ring), (0, 0));
    assert!(of(&lazy).dropped_ring > 0);
    assert_eq!(of(&lazy).captured + of(&lazy).dropped_ring, frames.len() as u64);
    assert_law(&stats.groups[0]);
    // It wakes up: what was lost is told, and what is new comes.
    lazy.read();
    assert!(lazy.packets.len() as u64 <= of(&lazy).captured);
}

#[test]
fn nonsense_about_what_was_read_harms_nobody_else() {
    let lab = lab();
    let mut groups = started(vec![group("g", Steering::Copy)]);
    let mut good = Member::join(&mut groups, "g", 1);
    let bad = Member::join(&mut groups, "g", 1);
    let words = [1, 3, 4, 5, 1000, u32::MAX, 1 << 31, (1 << 31) - 1, 0x5555_5555, 0];
    let mut sent = 0;
    for (i, part) in flows(12_000).chunks(400).enumerate() {
        for memory in &bad.memory {
            memory.set_released(words[i % words.len()]);
        }
        send(&lab, &groups, "g", part);
        sent += part.len();
        groups.tick().unwrap();
        groups.flush_member(bad.number()).unwrap();
        good.read();
        let stats = groups.stats().unwrap();
        assert_law(&stats.groups[0]);
        assert!(stats.members.iter().all(|m| m.ring_fill_bytes <= m.ring_bytes));
    }
    finish(&mut groups, &mut [&mut good]);
    assert_eq!((good.packets.len(), good.numbers().len()), (sent, sent));
    let left = groups.leave(&[bad.number()]);
    assert_eq!(left[0].1.captured + left[0].1.dropped_ring, sent as u64);
}

#[test]
fn filters_pauses_and_cuts_are_accounted_for() {
    let lab = lab();
    for hook in HOOKS {
        let filter = |text: &str| Some(text.to_owned());
        let mut groups = started(vec![
            GroupConfig {
                hook,
                filter: filter("udp src port 1000"),
                ..group("few", Steering::Flow)
            },
            GroupConfig { hook, filter: filter("not udp"), ..group("none", Steering::Copy) },
            GroupConfig { hook, snaplen: 50, ..group("all", Steering::Flow) },
        ]);
        let mut members = ["few", "none", "all"].map(|name| Member::join(&mut groups, name, 1));
        let frames = flows(1000);
        send(&lab, &groups, "all", &frames);
        groups.pause(Some("few")).unwrap();
        groups.set_snaplen("all", 20).unwrap();
        send(&lab, &groups, "all", &frames);
        groups.pause(None).unwrap();
        transmit(&lab, "va", &frames);
        wait_for("packets", || groups.stats().unwrap().ports[0].seen == 3000);
        groups.resume(None).unwrap();
        send(&lab, &groups, "all", &frames);
        finish(&mut groups, &mut members.each_mut());
        let [few, none, all] = ["few", "none", "all"].map(|name| stats_of(&groups, name));
        for stats in [&few, &none, &all] {
            assert_law(stats);
        }
        assert_eq!((few.seen, few.captured, few.filtered), (2000, 2, 1998), "{hook}");
        assert_eq!((none.seen, none.filtered), (3000, 3000), "{hook}");
        assert_eq!((all.seen, all.captured), (3000, 3000), "{hook}");
        assert_eq!(all.captured_bytes, 1000 * 50 + 2000 * 20, "{hook}");
        let kept: Vec<usize> = members[2].packets.iter().map(|p| p.frame.len()).collect();
        assert_eq!(kept.iter().filter(|len| **len == 20).count(), 2000);
        assert_eq!(kept.iter().filter(|len| **len == 50).count(), 1000);
    }
}

/// A filter may take long to make: meanwhile the groups are anybody's.
#[test]
fn groups_go_on_while_a_filter_is_made_and_one_that_does_not_suit_them_begins_anew() {
    let _lab = lab();
    let mut groups = started(vec![group("g", Steering::Flow)]);
    let filter_of = |groups: &Groups| groups.configs().next().unwrap().filter.clone();
    let change = groups.begin_filter("g", Some("udp")).expect("there is such a group");
    let prepared = thread::scope(|scope| {
        let preparing = scope.spawn(|| change.prepare());
        Member::join(&mut groups, "g", 1);
        groups.tick().unwrap();
        assert_eq!(groups.stats().unwrap().members.len(), 1);
        preparing.join().unwrap()
    });
    // Another filter was faster, for which these programs were not made.
    groups.set_filter("g", Some("tcp")).unwrap();
    assert!(!groups.finish_filter(prepared).unwrap());
    assert_eq!(filter_of(&groups).as_deref(), Some("tcp"));
    let change = groups.begin_filter("g", Some("udp")).unwrap();
    assert!(groups.finish_filter(change.prepare()).unwrap());
    assert_eq!(filter_of(&groups).as_deref(), Some("udp"));
}

#[test]
fn a_filter_is_exchanged_without_losing_a_packet() {
    let lab = lab();
    for hook in [Hook::Xdp, Hook::XdpGeneric, Hook::Tcx] {
        let of = |name| GroupConfig { hook, ..group(name, Steering::Flow) };
        let mut groups = started(vec![of("g"), of("all")]);
        let mut members = ["g", "all"].map(|name| Member::join(&mut groups, name, 1));
        let frames = flows(4000);
        let even = "udp[11] & 1 = 0";
        thread::scope(|scope| {
            let sending = scope.spawn(|| transmit(&lab, "va", &frames));
            for filter in [Some(even), Some("udp[11] & 1 = 1"), None, Some("ip"), Some(even)] {
                groups.set_filter("g", filter).unwrap();
                groups.tick().unwrap();
                members.iter_mut().for_each(Member::read);
            }
            sending.join().unwrap();
        });
        wait_seen(&groups, "all", 4000);
        finish(&mut groups, &mut members.each_mut());
        let [g, all] = ["g", "all"].map(|name| stats_of(&groups, name));
        assert_law(&g);
        assert_eq!((g.seen, all.seen, all.captured), (4000, 4000, 4000), "{hook}");
        assert_eq!(members[0].packets.len() as u64, g.captured);
        assert_eq!(members[1].packets.len(), 4000);
        let bad = groups.set_filter("g", Some("udp portt 1")).unwrap_err();
        assert!(bad.to_string().contains("udp portt 1"), "{bad}");
        assert_eq!(groups.configs().next().unwrap().filter.as_deref(), Some(even));
    }
    let mut groups =
        started(vec![GroupConfig { hook: Hook::Netfilter, ..group("g", Steering::Flow) }]);
    let refused = groups.set_filter("g", Some("ip")).unwrap_err();
    assert!(refused.is_usage() && refused.to_string().contains("netfilter"), "{refused}");
}

/// Rules, with the groups "g" and "h" as numbers 0 and 1.
fn rules(text: &str) -> Arc<Compiled> {
    let groups = [("g".to_owned(), 0), ("h".to_owned(), 1)].into_iter().collect();
    let set = RuleSet::parse(text).expect("good rules");
    Arc::new(Compiled::new(&set, &Options { groups, ..Options::default() }).expect("few rules"))
}

#[test]
fn each_group_has_rules_of_its_own() {
    let lab = lab();
    let text = "accept src any dst any sport 1000 dport any proto udp
drop src any dst any sport 1001 dport any proto udp
snaplen=30 src any dst any sport 1002 dport any proto udp
group=g src any dst any sport 1003 dport any proto udp
group=h src any dst any sport 1004 dport any proto udp
snaplen=5000 src any dst any sport 1005 dport any proto udp
";
    for hook in HOOKS {
        let of = |name, rules| GroupConfig { hook, rules, ..group(name, Steering::Flow) };
        let mut groups = started(vec![
            of("g", Some(rules(text))),
            of("h", Some(rules(text))),
            GroupConfig {
                filter: Some("udp src port 1000".into()),
                ..of("both", Some(rules(text)))
            },
            of("free", None),
        ]);
        let names = ["g", "h", "both", "free"];
        let mut members = names.map(|name| Member::join(&mut groups, name, 1));
        send(&lab, &groups, "free", &flows(50));
        let hits = groups.rule_hits("g").unwrap();
        let fives: u64 = hits.per_rule.iter().sum();
        assert_eq!((fives, hits.none, hits.seen()), (6, 44, 50), "{hook}");
        assert_eq!(groups.rule_hits("both").unwrap().seen(), 1, "its filter comes first");
        assert!(groups.rule_hits("free").is_none() && groups.rule_hits("nobody").is_none());
        finish(&mut groups, &mut members.each_mut());
        let got =
            |i: usize| members[i].packets.iter().map(|p| (number_of_port(&p.frame), p.frame.len()));
        assert_eq!(
            sorted_pairs(got(0)),
            [(1000, 60), (1002, 30), (1003, 60), (1005, 60)],
            "{hook}"
        );
        assert_eq!(
            sorted_pairs(got(1)),
            [(1000, 60), (1002, 30), (1004, 60), (1005, 60)],
            "{hook}"
        );
        assert_eq!(sorted_pairs(got(2)), [(1000, 60)], "{hook}");
        assert_eq!(members[3].packets.len(), 50);
        for name in names {
            assert_law(&stats_of(&groups, name));
        }
        assert_eq!((stats_of(&groups, "g").filtered, stats_of(&groups, "both").filtered), (46, 49));
    }
}

fn number_of_port(frame: &[u8]) -> u16 {
    // Of a short frame, the last two bytes are its address.
    frame.get(34..36).map_or(1002, |port| u16::from_be_bytes([port[0], port[1]]))
}

fn sorted_pairs(pairs: impl Iterator<Item = (u16, usize)>) -> Vec<(u16, usize)> {
    let mut sorted: Vec<_> = pairs.collect();
    sorted.sort_unstable();
    sorted
}

#[test]
fn rules_are_exchanged_without_losing_a_hit() {
    let lab = lab();
    let mut groups = started(vec![group("g", Steering::Flow)]);
    let mut member = Member::join(&mut groups, "g", 1);
    let frames = flows(4000);
    let sets = [
        rules("accept src 10.0.0.0/20 dst any sport any dport any proto any"),
        rules("drop src any dst any sport any dport 53 proto udp"),
        rules(
            "accept src any dst any sport any dport 53 proto udp\ndrop src 10.0.0.0/16 dst any sport any dport any proto any",
        ),
    ];
    let (mut judged, mut accepted) = (0, 0);
    let mut count = |hits: Option<Hits>, which: usize| {
        let hits = hits.unwrap();
        judged += hits.seen();
        accepted += if which == 1 { 0 } else { hits.per_rule[0] };
    };
    groups.set_rules("g", Some(sets[0].clone())).unwrap();
    thread::scope(|scope| {
        let sending = scope.spawn(|| transmit(&lab, "va", &frames));
        for i in 0..12 {
            count(groups.set_rules("g", Some(sets[(i + 1) % 3].clone())).unwrap(), i % 3);
            groups.tick().unwrap();
            member.read();
        }
        sending.join().unwrap();
    });
    wait_seen(&groups, "g", 4000);
    finish(&mut groups, &mut [&mut member]);
    count(groups.set_rules("g", None).unwrap(), 0);
    let stats = stats_of(&groups, "g");
    assert_law(&stats);
    assert_eq!((judged, accepted), (4000, stats.captured));
    assert_eq!((stats.dropped_ring, member.packets.len() as u64), (0, stats.captured));
}

#[test]
fn a_group_on_two_interfaces_tells_them_apart() {
    let lab = lab();
    plug(&lab, "va2", "vb2");
    let both = |name, interfaces: [&str; 2]| GroupConfig {
        interfaces: interfaces.map(str::to_owned).to_vec(),
        ..group(name, Steering::Flow)
    };
    let mut groups = started(vec![both("one", ["vb", "vb2"]), both("two", ["vb2", "vb"])]);
    let mut members = ["one", "two"].map(|name| Member::join(&mut groups, name, 1));
    let names: Vec<&str> =
        members[1].membership.interfaces.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["vb2", "vb"]);
    transmit(&lab, "va", &flows(300));
    transmit(&lab, "va2", &flows(500));
    wait_seen(&groups, "two", 800);
    wait_seen(&groups, "one", 800);
    finish(&mut groups, &mut members.each_mut());
    for (member, expected) in members.iter().zip([[300, 500], [500, 300]]) {
        let of = |id| member.packets.iter().filter(|p| p.interface == id).count();
        assert_eq!([of(0), of(1)], expected);
    }
}

/// Whether there is a byte in a pipe, or its end.
fn is_readable(pipe: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a pipe") > 0
}

/// A ring of 1 MiB holds what comes in 8 ms at 1 Gbit/s: a member that waits for the daemon's next
/// look loses packets. So it is woken by the packet that completes a block, and nobody looks here.
#[test]
fn a_complete_block_wakes_its_member_at_once() {
    let net = lab();
    let mut groups = started(vec![group("g", Steering::Flow)]);
    let mut member = Member::join(&mut groups, "g", 1);
    transmit(&net, "va", &flows(1000));
    wait_for("the wake-up", || is_readable(&member.membership.wake));
    member.read();
    assert!(member.packets.len() > 500, "{} packets", member.packets.len());
}

/// A member that is behind finds the next block by itself.
#[test]
fn a_member_is_woken_again_only_when_it_has_caught_up() {
    let net = lab();
    let mut groups = started(vec![group("g", Steering::Flow)]);
    let mut member = Member::join(&mut groups, "g", 1);
    let wake = member.membership.wake.try_clone().unwrap();
    let complete = |member: &Member| member.memory[0].open_block().0;
    let mut wakes = 0;
    for round in 1..=3 {
        let before = complete(&member);
        transmit(&net, "va", &flows(3000));
        wait_seen(&groups, "g", round * 3000);
        assert!(complete(&member) - before > 2, "several blocks are complete");
        // What is told in this round is told in this order, so the last round's wake-up came
        // behind all that there were for the rounds before.
        wait_for("the wake-up", || {
            wakes += rustix::io::read(&wake, &mut [0; 64]).unwrap_or(0) as u64;
            wakes >= round
        });
        assert_eq!(wakes, round);
        member.read();
    }
}

/// A member that has taken the byte out of its pipe and does not read its rings, as one may that
/// reads and sleeps in the wrong order, is reminded at the daemon's second look. Its ring is full,
/// so that no block is closed meanwhile.
#[test]
fn a_member_that_reads_nothing_is_reminded() {
    let net = lab();
    let mut groups = started(vec![group("g", Steering::Flow)]);
    let member = Member::join(&mut groups, "g", 1);
    let wake = &member.membership.wake;
    transmit(&net, "va", &flows(20_000));
    wait_seen(&groups, "g", 20_000);
    wait_for("the wake-up", || is_readable(wake));
    assert_eq!(rustix::io::read(wake, &mut [0; 64]), Ok(1));
    groups.tick().unwrap();
    assert!(!is_readable(wake), "the first look");
    groups.tick().unwrap();
    assert!(is_readable(wake), "the second");
}

#[test]
fn members_are_woken_and_get_part_filled_blocks() {
    let lab = lab();
    let mut groups = started(vec![group("g", Steering::Flow)]);
    let mut member = Member::join(&mut groups, "g", 1);
    let wake = member.membership.wake.try_clone().unwrap();
    let is_awake = || is_readable(&wake);
    groups.tick().unwrap();
    assert!(!is_awake(), "there is nothing");
    send(&lab, &groups, "g", &flows(3));
    groups.tick().unwrap();
    member.read();
    assert!(member.packets.is_empty() && !is_awake(), "the first look");
    groups.tick().unwrap();
    assert!(is_awake(), "the second");
    member.read();
    assert_eq!(member.packets.len(), 3);
    groups.leave(&[member.number()]);
    wait_for("the pipe's end", || rustix::io::read(&wake, &mut [0; 64]) == Ok(0));
}

#[test]
fn a_daemon_that_rests_is_told_of_the_next_packet_and_of_no_other() {
    let lab = lab();
    for hook in HOOKS {
        let of = GroupConfig { hook, ..group("g", Steering::Flow) };
        let told = Arc::new(AtomicI64::new(0));
        let bell = told.clone();
        let clock = Arc::new(Clock::default());
        let mut groups = Groups::open(&config(vec![of]), &clock).expect("it opens");
        groups.wake_by(Box::new(move || {
            bell.fetch_add(1, Ordering::SeqCst);
        }));
        groups.start().expect("it starts");
        let mut member = Member::join(&mut groups, "g", 1);
        assert!(!groups.rest(), "{hook}: it has not looked yet");
        send(&lab, &groups, "g", &flows(3));
        for times in 1..4 {
            groups.tick().unwrap();
            assert!(!groups.rest(), "{hook}: there are packets");
            groups.tick().unwrap();
            groups.tick().unwrap();
            assert!(!groups.rest(), "{hook}: nobody has read them");
            member.read();
            assert!(!groups.rest(), "{hook}: it has not looked since");
            groups.tick().unwrap();
            assert!(groups.rest(), "{hook}");
            send(&lab, &groups, "g", &flows(2));
            wait_for("the daemon to be told", || told.load(Ordering::SeqCst) >= times);
            send(&lab, &groups, "g", &flows(3));
            assert_eq!(told.load(Ordering::SeqCst), times, "{hook}");
        }
        finish(&mut groups, &mut [&mut member]);
        assert_eq!(member.packets.len(), 18, "{hook}");
    }
}

#[test]
fn an_interface_that_comes_back_is_served_again() {
    let lab = lab();
    for hook in HOOKS {
        let mut groups = started(vec![GroupConfig { hook, ..group("g", Steering::Flow) }]);
        let mut member = Member::join(&mut groups, "g", 1);
        send(&lab, &groups, "g", &flows(100));
        assert!(groups.watch().faults.is_empty());
        lab.b.run("ip link del vb");
        let mut events = Vec::new();
        wait_for("it to be missed", || {
            events.extend(groups.watch().events);
            events.contains(&("vb".to_owned(), Event::Gone))
        });
        assert!(!groups.stats().unwrap().ports[0].attached);
        plug(&lab, "va", "vb");
        wait_for("it to be back", || {
            events.extend(groups.watch().events);
            events.contains(&("vb".to_owned(), Event::Back))
        });
        send(&lab, &groups, "g", &flows(200));
        finish(&mut groups, &mut [&mut member]);
        let stats = stats_of(&groups, "g");
        assert_law(&stats);
        assert_eq!((stats.seen, member.packets.len()), (300, 300), "{hook}");
    }
}

/// Neither a filter given while the interface is away, nor one that comes to an interface made anew
/// that nobody has looked for yet, is in force if it was refused.
#[test]
fn a_filter_that_is_refused_is_nowhere_in_force() {
    let lab = lab();
    for hook in [Hook::Xdp, Hook::Tcx] {
        let of = |name| GroupConfig { hook, ..group(name, Steering::Flow) };
        let mut groups = started(vec![of("g"), of("h")]);
        let mut members = ["g", "h"].map(|name| Member::join(&mut groups, name, 1));
        let wait_event = |groups: &mut Groups, event: Event| {
            wait_for("the interface to change", || {
                groups.watch().events.contains(&("vb".to_owned(), event))
            });
        };
        let filter_of = |groups: &Groups| groups.configs().next().and_then(|g| g.filter.clone());
        lab.b.run("ip link del vb");
        wait_event(&mut groups, Event::Gone);
        let bad = groups.set_filter("g", Some("udp portt 1")).unwrap_err();
        assert!(bad.to_string().contains("udp portt 1"), "{bad}");
        assert_eq!(filter_of(&groups), None);
        let good = Some("udp src port 1000");
        groups.set_filter("g", good).unwrap();
        plug(&lab, "va", "vb");
        wait_event(&mut groups, Event::Back);

        lab.b.run("ip link del vb");
        plug(&lab, "va", "vb");
        groups.set_filter("g", None).unwrap_err();
        assert_eq!(filter_of(&groups).as_deref(), good);
        wait_event(&mut groups, Event::Gone);
        wait_event(&mut groups, Event::Back);
        send(&lab, &groups, "h", &flows(100));
        finish(&mut groups, &mut members.each_mut());
        let each = members.each_ref().map(|m| m.packets.len());
        assert_eq!(each, [1, 100], "{hook}");
    }
}

#[test]
fn two_hundred_and_fifty_six_groups() {
    let lab = lab();
    let configs = (0..256).map(|i| GroupConfig {
        snaplen: 64,
        filter: Some(format!("udp src port {}", 1000 + i)),
        ..group(&format!("g{i}"), Steering::Flow)
    });
    let configs: Vec<GroupConfig> = configs.collect();
    let mut groups = started(configs.clone());
    let mut first = Member::join(&mut groups, "g0", 1);
    let mut last = Member::join(&mut groups, "g255", 1);
    send(&lab, &groups, "g255", &flows(512));
    finish(&mut groups, &mut [&mut first, &mut last]);
    assert_eq!((first.packets.len(), last.packets.len()), (1, 1));
    let stats = groups.stats().unwrap();
    assert!(stats.groups.iter().all(|g| (g.seen, g.filtered) == (512, 511)));
    stats.groups.iter().for_each(assert_law);
    drop(groups);

    let mut more = configs;
    more.push(group("one too many", Steering::Flow));
    let refused = Groups::open(&config(more), &Arc::new(Clock::default())).err().expect("too many");
    assert!(refused.is_usage() && refused.to_string().contains("256"), "{refused}");
}

#[test]
fn a_thousand_and_twenty_four_members_come_and_die_at_once() {
    let lab = lab();
    let most = rustix::process::Resource::Nofile;
    let limit = rustix::process::getrlimit(most);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(most, raised).expect("up to the hard limit");
    let groups = vec![
        GroupConfig { snaplen: 64, ..group("many", Steering::Flow) },
        GroupConfig { snaplen: 64, ..group("turns", Steering::RoundRobin) },
    ];
    let smallest = GroupsConfig {
        groups,
        ring_bytes: Some(1),
        block_bytes: 1 << 16,
        device_bound: true,
        stamps: Stamps::Auto,
    };
    let mut groups = Groups::open(&smallest, &Arc::new(Clock::default())).expect("it opens");
    groups.start().unwrap();
    let mut numbers = Vec::new();
    for i in 0..1024 {
        let joined = groups.join(if i % 2 == 0 { "many" } else { "turns" }, 1);
        numbers.push(joined.expect("there is room").member);
    }
    let full = groups.join("many", 1).unwrap_err();
    assert!(matches!(&full, Error::Full(_)) && !full.is_usage(), "{full}");
    send(&lab, &groups, "turns", &flows(2048));
    let stats = groups.stats().unwrap();
    assert_eq!(stats.members.len(), 1024);
    stats.groups.iter().for_each(assert_law);
    assert!(stats.members.iter().filter(|m| m.group == "turns").all(|m| m.captured >= 2));

    // All but one.
    let left = groups.leave(&numbers[1..]);
    assert_eq!(left.len(), 1023);
    send(&lab, &groups, "turns", &flows(100));
    let stats = groups.stats().unwrap();
    stats.groups.iter().for_each(assert_law);
    assert_eq!((stats.groups[1].no_member, stats.members[0].group.as_str()), (100, "many"));
    assert_eq!(stats.groups[0].captured, 2148);
    assert_eq!(groups.join("turns", 1).unwrap().member, 1);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let _lab = lab();
    let open = |groups: Vec<GroupConfig>| {
        let opened = Groups::open(&config(groups), &Arc::new(Clock::default()));
        opened.err().map(|e| (e.is_usage(), e.to_string()))
    };
    let g = || group("g", Steering::Flow);
    let strings = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let cases = [
        (vec![], true, "no group"),
        (vec![g(), g()], true, "two groups are named g"),
        (vec![group("", Steering::Flow)], true, "needs a name"),
        (vec![GroupConfig { interfaces: vec![], ..g() }], true, "no interface"),
        (vec![GroupConfig { interfaces: strings(&["vb", "vb"]), ..g() }], true, "vb twice"),
        (vec![GroupConfig { interfaces: strings(&["nosuch"]), ..g() }], false, "nosuch"),
        (vec![GroupConfig { hook: Hook::Tpacket, ..g() }], true, "hook tpacket"),
        (vec![GroupConfig { hook: Hook::AfXdp, ..g() }], true, "hook afxdp"),
        (vec![GroupConfig { snaplen: 0, ..g() }], true, "snaplen of 0"),
        (vec![GroupConfig { snaplen: 1 << 20, ..g() }], true, "snaplen of 1048576"),
        (vec![GroupConfig { filter: Some("bad words".into()), ..g() }], true, "bad words"),
        (
            vec![g(), GroupConfig { deliver: Deliver::Consume, ..group("h", Steering::Flow) }],
            true,
            "g and h share vb",
        ),
    ];
    for (groups, is_usage, text) in cases {
        let (usage, message) = open(groups).expect("refused");
        assert!(message.contains(text) && usage == is_usage, "{message}");
    }

    let mut groups = started(vec![g()]);
    let no_group = groups.join("h", 1).unwrap_err();
    assert!(no_group.to_string().contains("no group is named h; there are: g"), "{no_group}");
    assert!(groups.join("g", 0).unwrap_err().is_usage());
    assert!(groups.set_snaplen("g", 1501).unwrap_err().to_string().contains("1500"));
    assert!(groups.set_snaplen("g", 0).is_err());
    assert!(groups.pause(Some("h")).is_err());
    assert!(groups.leave(&[0, 5000]).is_empty());
}
