//! One filter has one meaning: at every hook, alone and in groups, it lets through those packets
//! that `tcpdump -r` finds in a recording without a filter, with any expression, over awkward
//! traffic with no VLAN tag, one and two, some of which the kernel takes off before a hook sees the
//! frame.
//!
//! `TAPDECK_EXPRESSIONS` says how many expressions are tried at each hook by a recorder, and five
//! times as many by groups; `TAPDECK_SEED` which. `protochain` is left out: what it finds has a
//! bound, which the tests of filters hold.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod awkward;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use awkward::VLANS;
use awkward::frames::Stretch;
use awkward::language::Expression;
use awkward::program::reads_unwritten_memory;
use tapdeck_capture::groups::{GroupConfig, Groups, GroupsConfig, Steering};
use tapdeck_capture::interface::Interface;
use tapdeck_capture::ring::RingReader;
use tapdeck_capture::{Capture, Clock, Config, Deliver, Error, Hook};
use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_packet::ring::Ring;
use tapdeck_testkit::frame::seal_ipv4;
use tapdeck_testkit::{Net, Sender, SplitMix64};

const SEED: u64 = 20_261_123;
/// Expressions that a recorder tries at each hook.
const EXPRESSIONS: usize = 8;
const PER_GROUPS: usize = 5;
const STRETCHES: usize = 12;
const FRAMES: usize = 25;
/// A frame as long as an MTU of 1500 allows.
const LONGEST: usize = 1514;
const SNAPLEN: u32 = 2000;
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;

fn number(variable: &str, usual: u64) -> u64 {
    let Ok(text) = env::var(variable) else { return usual };
    text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number"))
}

/// Frames of all kinds, nearly half of them with a tag or two more, and half of them to `mac`. So
/// that routing looks at some, their IP headers have the right checksum.
fn frames(rng: &mut SplitMix64, mac: [u8; 6]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for _ in 0..STRETCHES {
        let stretch = Stretch::new(rng);
        for _ in 0..FRAMES {
            let mut frame = stretch.frame(rng).frame;
            if frame.len() < 14 {
                continue;
            }
            if frame[12..14] == [8, 0] && frame.get(14) == Some(&0x45) && frame.len() >= 34 {
                seal_ipv4(&mut frame[14..]);
            }
            let tags = rng.one(&[0, 0, 0, 1, 1, 2]);
            for _ in 0..tags {
                let protocol = rng.one(&[[0x81, 0], [0x81, 0], [0x88, 0xa8], [0x91, 0]]);
                let tci = rng.one(&VLANS) | rng.one(&[0, 0, 0x6000, 0x1000]);
                let tag: Vec<u8> = protocol.into_iter().chain(tci.to_be_bytes()).collect();
                frame.splice(12..12, tag);
            }
            if rng.percent(50) {
                frame[..6].copy_from_slice(&mac);
            }
            frame.truncate(LONGEST);
            all.push(frame);
        }
    }
    all
}

/// Packets, and the tcpdump that is asked about them.
struct Reference {
    frames: Vec<Vec<u8>>,
    dir: tempfile::TempDir,
}

impl Reference {
    fn of(frames: Vec<Vec<u8>>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 1 << 18, ETHERNET] {
            file.extend(word.to_le_bytes());
        }
        for frame in &frames {
            for word in [0, 0, frame.len() as u32, frame.len() as u32] {
                file.extend(word.to_le_bytes());
            }
            file.extend(frame);
        }
        std::fs::write(dir.path().join("all.pcap"), file).expect("a file");
        Self { frames, dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("all.pcap")
    }

    fn tcpdump(&self, arguments: &[&str], text: &str) -> std::process::Output {
        let mut command = Command::new("tcpdump");
        command.arg("-r").arg(self.file()).args(arguments).args(["--", text]);
        command.stdin(Stdio::null()).output().expect("make setup installs it")
    }

    /// Returns the frames that an expression finds, in order; `None` where tcpdump refuses it.
    fn find(&self, text: &str) -> Option<Vec<Vec<u8>>> {
        let out = self.tcpdump(&["-w", "-"], text);
        out.status.success().then(|| {
            let found = self.dir.path().join("found.pcap");
            std::fs::write(&found, out.stdout).expect("a file");
            frames_of(&found)
        })
    }

    /// Draws an expression that has one meaning.
    fn draw(&self, rng: &mut SplitMix64) -> String {
        loop {
            let text = Expression::random(rng).to_string();
            if text.contains("protochain") {
                continue;
            }
            if text.contains("geneve") {
                let program = self.tcpdump(&["-ddd"], &text);
                let program_text = String::from_utf8_lossy(&program.stdout);
                if program.status.success() && reads_unwritten_memory(&program_text) {
                    continue;
                }
            }
            return text;
        }
    }

    fn assert_is(&self, at: &str, text: &str, recorded: Vec<Vec<u8>>) {
        let expected = self.find(text).expect("tcpdump takes it too");
        let (recorded, expected) = (sorted(recorded), sorted(expected));
        if recorded == expected {
            return;
        }
        let only = |these: &[Vec<u8>], those: &[Vec<u8>]| {
            these.iter().find(|frame| !those.contains(frame)).map(|frame| format!("{frame:02x?}"))
        };
        panic!(
            "{at}, {text:?}: {} packets, and tcpdump finds {} of {}; only recorded: {:?}; only found: {:?}",
            recorded.len(),
            expected.len(),
            self.frames.len(),
            only(&recorded, &expected),
            only(&expected, &recorded),
        );
    }
}

fn frames_of(file: &Path) -> Vec<Vec<u8>> {
    let mut capture = pcap::Capture::from_file(file).expect("tcpdump wrote it");
    let mut frames = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        frames.push(packet.data.to_vec());
    }
    frames
}

fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort();
    frames
}

/// Takes what is in rings out of them.
fn take(readers: &mut [RingReader]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for reader in readers {
        while let Some(block) = reader.peek(0) {
            for record in Reader::inside(block.bytes) {
                if let Record::Packet(packet) = record.expect("blocks are well formed") {
                    frames.push(packet.frame.to_vec());
                }
            }
            reader.release(1);
        }
    }
    frames
}

/// Two namespaces; at the hook that looks at packets to be routed, the kernel takes some.
fn net(hook: Hook) -> Net {
    let net = Net::new();
    if hook == Hook::Netfilter {
        net.b.run("sysctl -qw net.ipv6.conf.vb.disable_ipv6=0");
        net.b.run("ip addr add 10.213.0.2/24 dev vb");
    }
    net
}

fn send(net: &Net, frames: &[Vec<u8>]) {
    net.a.inside(|| Sender::on("va").send_all(frames));
}

/// Records frames from the beginning to the end, and returns those that were taken and how many
/// were refused.
fn record(
    net: &Net,
    capture: &mut Capture,
    readers: &mut [RingReader],
    frames: &[Vec<u8>],
) -> (Vec<Vec<u8>>, u64) {
    let before = capture.filtered();
    capture.start().expect("the interface is there");
    send(net, frames);
    capture.stop();
    capture.flush_all().expect("the rings are there");
    (take(readers), capture.filtered() - before)
}

fn at_hook(hook: Hook, seed: u64, expressions: usize) {
    let net = net(hook);
    let mut rng = SplitMix64(seed);
    net.b.inside(|| {
        let mac = Interface::find("vb").expect("made above").mac.expect("veth has one");
        let frames = frames(&mut rng, mac);
        let config = Config {
            hook,
            deliver: if hook == Hook::AfXdp { Deliver::Consume } else { Deliver::Pass },
            snaplen: SNAPLEN,
            ring_bytes: 16 << 20,
            block_bytes: 1 << 16,
            promiscuous: true,
            device_bound: true,
            overload: tapdeck_capture::Overload::Drop,
            stamps: tapdeck_capture::Stamps::Auto,
            filter: None,
            rules: None,
            cutoff: None,
        };
        let mut capture =
            Capture::open("vb", &config, 0, &Arc::new(Clock::default())).expect("this hook");
        let mut readers = capture.readers();
        let (all, filtered) = record(&net, &mut capture, &mut readers, &frames);
        assert_eq!(filtered, 0, "{hook}: there is no filter");
        assert!(all.len() > frames.len() / 20, "{hook}: it sees {} frames", all.len());
        let is_tagged =
            |frame: &&Vec<u8>| [[0x81, 0], [0x88, 0xa8]].contains(&[frame[12], frame[13]]);
        let tagged = all.iter().filter(is_tagged).count();
        assert!(hook == Hook::Netfilter || tagged > all.len() / 5, "{hook}: {tagged} with tags");
        let reference = Reference::of(all);
        let mut some = 0;
        for _ in 0..expressions {
            let text = reference.draw(&mut rng);
            match (capture.set_filter(Some(&text)), reference.find(&text)) {
                (Ok(()), Some(_)) => {}
                (Err(Error::Filter { .. }), None) => continue,
                (ours, theirs) => {
                    panic!("{hook}, {text:?}: {ours:?}, and tcpdump takes it: {}", theirs.is_some())
                }
            }
            let (found, filtered) = record(&net, &mut capture, &mut readers, &frames);
            let total = reference.frames.len();
            assert_eq!(found.len() + filtered as usize, total, "{hook}, {text:?}: all are counted");
            some += usize::from(found.len() < total && !found.is_empty());
            reference.assert_is(hook.name(), &text, found);
        }
        assert!(some > expressions / 5, "{hook}: {some} of {expressions} choose");
    });
}

fn in_groups(hook: Hook, seed: u64, expressions: usize) {
    let net = net(hook);
    let mut rng = SplitMix64(seed);
    net.b.inside(|| {
        let mac = Interface::find("vb").expect("made above").mac.expect("veth has one");
        let frames = frames(&mut rng, mac);
        let group = |number: usize, filter: Option<String>| GroupConfig {
            name: format!("g{number}"),
            interfaces: vec!["vb".to_owned()],
            hook,
            deliver: Deliver::Pass,
            filter,
            rules: None,
            snaplen: SNAPLEN,
            steering: Steering::Flow,
            promiscuous: true,
            max_members: 1024,
            max_memory: None,
        };
        let record = |filters: Vec<Option<String>>| -> Vec<Vec<Vec<u8>>> {
            let count = filters.len();
            let groups = (0..).zip(filters).map(|(number, filter)| group(number, filter)).collect();
            let config = GroupsConfig {
                groups,
                ring_bytes: Some(2 << 20),
                block_bytes: 1 << 16,
                device_bound: true,
                stamps: tapdeck_capture::Stamps::Auto,
            };
            let mut groups = Groups::open(&config, &Arc::new(Clock::default())).expect("it opens");
            let members: Vec<_> = (0..count)
                .map(|number| groups.join(&format!("g{number}"), 1).expect("it may join"))
                .collect();
            groups.start().expect("it starts");
            send(&net, &frames);
            groups.stop();
            let read = |membership: &tapdeck_capture::groups::Membership| {
                let rings = membership.map().expect("the descriptors can be mapped");
                let mut readers: Vec<_> =
                    rings.into_iter().map(|memory| RingReader::new(memory, 0)).collect();
                take(&mut readers)
            };
            members.iter().map(read).collect()
        };
        let all = record(vec![None]).pop().expect("one group");
        assert!(all.len() > frames.len() / 20, "{hook}: it sees {} frames", all.len());
        let reference = Reference::of(all);
        let mut texts = Vec::new();
        while texts.len() < expressions {
            let text = reference.draw(&mut rng);
            if reference.find(&text).is_some() {
                texts.push(text);
            }
        }
        let found = record(texts.iter().cloned().map(Some).collect());
        for (text, found) in texts.iter().zip(found) {
            reference.assert_is(&format!("groups at {hook}"), text, found);
        }
    });
}

fn seed() -> u64 {
    let seed = number("TAPDECK_SEED", SEED);
    println!("TAPDECK_SEED={seed}");
    seed
}

fn expressions() -> usize {
    number("TAPDECK_EXPRESSIONS", EXPRESSIONS as u64) as usize
}

#[test]
fn a_recorder_takes_what_tcpdump_finds_without_a_filter() {
    for hook in Hook::ALL {
        at_hook(hook, seed(), expressions());
    }
}

#[test]
fn groups_take_what_tcpdump_finds_without_a_filter() {
    for hook in Hook::ALL.into_iter().filter(|hook| hook.takes_groups()) {
        in_groups(hook, seed(), (PER_GROUPS * expressions()).min(250));
    }
}
