//! What does a hook program cost by itself? It is run on a frame inside the kernel, again and
//! again, without an interface, a driver or a reader (`BPF_PROG_RUN`).
//!
//! This is for benchmarks. Beside the recorder's programs there are programs that do nothing, and
//! programs that read the frame and drop it: the kernel's own part of a run is in every figure, and
//! only differences say something. The rings count as emptied all the time, so that every run finds
//! room: small rings stay in the cache, large ones do not.

use std::any::Any;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::ObjectBuilder;
use tapdeck_packet::ring::ReadMemory;

use crate::bpf::loaded::Loaded;
use crate::bpf::object::Aligned;
use crate::bpf::params::{Params, most_direct};
use crate::bpf::program::Program;
use crate::filter::{explain_load, filters_for};
use crate::flows;
use crate::groups::{self, GroupConfig, Groups, GroupsConfig, Steering};
use crate::hook::{RingUnit, TakenBy};
use crate::interface::Interface;
use crate::ring::{Geometry, RingMemory};
use crate::rules::{self, Compiled, Images};
use crate::sys::libbpf::{self, io_error, program, quiet_libbpf};
use crate::sys::program::run;
use crate::{Clock, Config, Deliver, Error, Hook, Stamps};

static TRIAL: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/trial.bpf.o")));

/// How often a charge is taken in one run (`TIMES` of `bpf/trial.bpf.c`).
pub const CHARGES: u32 = 64;
/// How far the reader of a ring counts as ahead of its producers: half of the numbers that blocks
/// have.
const AHEAD: u32 = 1 << 30;
/// `struct nf_hook_state`, which is all that a netfilter program's run can be told.
const NETFILTER_STATE: usize = 48;

/// What the recorder's program is given to do besides recording.
#[derive(Clone, Debug, Default)]
pub struct Duties {
    /// A pcap-filter(7) expression.
    pub filter: Option<String>,
    pub rules: Option<Arc<Compiled>>,
    /// Bytes that each flow may have.
    pub cutoff: Option<NonZeroU32>,
    /// Sets that the table of flows has, a power of two; `None`: as many as a recorder's.
    pub flow_sets: Option<u32>,
    /// Up to which length frames are copied by loads and stores; `None`: as suits this machine.
    pub most_direct: Option<u32>,
    /// Whether the packets of a poll share readings of the clock; a trial is one poll.
    pub clock_by_poll: bool,
    /// Whether space is reserved for several packets of a poll at once.
    pub claims: bool,
}

/// Something that a hook program is made of, and for which the machine charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// A call of another function of the program.
    Call,
    /// A call of a function of the kernel, which does next to nothing.
    Helper,
    /// A look at the clock.
    Clock,
    /// An atomic addition.
    Atomic,
}

impl Charge {
    pub const ALL: [Self; 4] = [Self::Call, Self::Helper, Self::Clock, Self::Atomic];

    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Helper => "helper",
            Self::Clock => "clock",
            Self::Atomic => "atomic",
        }
    }
}

/// A program that is loaded, and can be run.
pub struct Trial {
    program: OwnedFd,
    context: Vec<u8>,
    /// The rings that the program writes; none where it records nothing.
    rings: Vec<Arc<RingMemory>>,
    /// How often a packet is put into one of them.
    copies: u64,
    /// What the program is of: an object and its rules, or groups.
    #[cfg_attr(not(test), expect(dead_code, reason = "it is held as long as the program is"))]
    loaded: Box<dyn Any>,
}

impl Trial {
    /// Loads the recorder's program of a hook with a ring of so many bytes, in blocks of so many.
    ///
    /// # Errors
    /// As a capture at the hook has them; [`Error::Kernel`] where the hook has no program.
    pub fn of_recorder(
        hook: Hook,
        ring_bytes: u64,
        block_bytes: u64,
        duties: &Duties,
    ) -> Result<Self, Error> {
        // The kernel runs programs as if frames came from there.
        let interface = Interface::find("lo")?;
        let fail = |source| Error::Kernel { name: interface.name.clone(), hook, source };
        let Some(which) = program_of(hook) else {
            return Err(fail(io::Error::other("no program of this hook writes into rings")));
        };
        let config = Config {
            hook,
            deliver: Deliver::Consume,
            snaplen: hook.facts().most_snaplen.min(MOST_SNAPLEN),
            ring_bytes,
            block_bytes,
            promiscuous: false,
            device_bound: false,
            overload: crate::Overload::Drop,
            stamps: Stamps::Packet,
            filter: duties.filter.clone(),
            rules: duties.rules.clone(),
            cutoff: duties.cutoff,
        };
        let filters = filters_for(&interface, &config)?;
        let params = Params {
            geometry: Geometry::new(ring_bytes, config.block_bytes, 1, config.snaplen)?,
            // A run at netfilter comes from no interface, and elsewhere nobody asks.
            ifindex: 0,
            consume: true,
            by_cpu: hook.ring_unit() == RingUnit::Cpu,
            filtered: !filters.is_empty(),
            judged: config.rules.is_some(),
            cutoff: config.cutoff.map_or(0, NonZeroU32::get),
            flow_sets: duties.flow_sets.unwrap_or(flows::SETS),
            clock_by_poll: duties.clock_by_poll,
            claims: duties.claims && hook.ring_unit() == RingUnit::Queue,
            most_direct: duties.most_direct.unwrap_or_else(most_direct),
            ..Params::unread(0)
        };
        let (loaded, control) = Loaded::new(&[which], &params, &filters)
            .map_err(|e| explain_load(&interface, &config, &filters, e))?;
        // Nobody owns these programs, and they record all the same.
        control.set_deadline(u64::MAX);
        let images = match &config.rules {
            Some(rules) => Some(images_of(&loaded, rules).map_err(fail)?),
            None => None,
        };
        Ok(Self {
            program: loaded.program(which).map_err(fail)?,
            context: context_of(which),
            rings: loaded.rings().to_vec(),
            copies: 1,
            loaded: Box::new((loaded, images)),
        })
    }

    /// Loads a daemon's program of a hook that serves so many groups, each with one member, whose
    /// rings have so many bytes altogether, in blocks of so many. A thread takes the wake-ups, as a
    /// daemon's does.
    ///
    /// # Errors
    /// As [`Groups::open`] and [`Groups::join`] have them.
    pub fn of_groups(
        hook: Hook,
        ring_bytes: u64,
        block_bytes: u64,
        groups: usize,
    ) -> Result<Self, groups::Error> {
        let one = |number| GroupConfig {
            name: format!("trial-{number}"),
            // The kernel runs programs as if frames came from there.
            interfaces: vec!["lo".into()],
            hook,
            deliver: Deliver::Consume,
            filter: None,
            rules: None,
            snaplen: hook.facts().most_snaplen.min(MOST_SNAPLEN),
            steering: Steering::Flow,
            promiscuous: false,
            max_members: 1,
            max_memory: None,
        };
        let config = GroupsConfig {
            groups: (0..groups).map(one).collect(),
            ring_bytes: Some(ring_bytes),
            block_bytes,
            device_bound: false,
            stamps: Stamps::Auto,
        };
        let mut groups = Groups::open(&config, &Arc::new(Clock::default()))?;
        let fail = |source| groups::Error::Kernel { what: "try the programs".into(), source };
        let (mut members, mut rings) = (Vec::new(), Vec::new());
        for group in &config.groups {
            let member = groups.join(&group.name, 1)?;
            rings.extend(member.map().map_err(fail)?);
            members.push(member);
        }
        let which = program_of(hook).ok_or_else(|| fail(io::ErrorKind::Unsupported.into()))?;
        Ok(Self {
            program: groups.program(which).map_err(fail)?,
            context: context_of(which),
            rings,
            copies: config.groups.len() as u64,
            loaded: Box::new((groups, members)),
        })
    }

    /// Loads a program of the same kind as the hook's that does nothing.
    pub fn of_nothing(hook: Hook) -> io::Result<Self> {
        Self::of(hook, "empty")
    }

    /// Loads a program of the same kind as the hook's that reads the frame and drops it; at a hook
    /// that cannot see the frame in place, one that copies it. Of a frame in fragments it reads the
    /// first.
    pub fn of_reading(hook: Hook) -> io::Result<Self> {
        Self::of(hook, "read")
    }

    /// Loads a program that takes a charge [`CHARGES`] times.
    pub fn of_charge(charge: Charge) -> io::Result<Self> {
        Self::load(&format!("charge_{}", charge.name()), Vec::new())
    }

    fn of(hook: Hook, what: &str) -> io::Result<Self> {
        let Some(which) = program_of(hook) else {
            return Err(io::Error::other("no program of this hook writes into rings"));
        };
        let kind = match which {
            Program::Xdp | Program::XdpMetadata | Program::Redirect => "xdp",
            Program::Ingress | Program::Egress | Program::SocketJudge => "skb",
            Program::Netfilter => "netfilter",
        };
        Self::load(&format!("{what}_{kind}"), context_of(which))
    }

    fn load(name: &str, context: Vec<u8>) -> io::Result<Self> {
        quiet_libbpf();
        let mut object =
            ObjectBuilder::default().open_memory(&TRIAL.0).map_err(|e| io_error(&e))?;
        for mut program in object.progs_mut() {
            program.set_autoload(program.name() == name);
        }
        let object = libbpf::load(object)?;
        let program = program(&object, name)?.as_fd().try_clone_to_owned()?;
        Ok(Self { program, context, rings: Vec::new(), copies: 0, loaded: Box::new(object) })
    }

    /// Runs the program on a frame so many times. Returns the mean time of a run, nanoseconds.
    ///
    /// # Errors
    /// `EINVAL` where the kernel has no frames of that length for programs of this kind, and where
    /// a packet was neither refused nor put into a ring.
    pub fn run(&self, frame: &[u8], times: u32) -> io::Result<f64> {
        let lost = || self.rings.iter().map(|r| r.lost()).sum::<u64>();
        let place = || self.rings.iter().map(|r| place_in(r)).sum::<u64>();
        let before = (lost(), place(), self.left_out());
        for ring in &self.rings {
            ring.set_released(ring.open_block().0.wrapping_add(AHEAD));
        }
        let (_, ns) = run(self.program.as_fd(), &self.context, frame, times)?;
        if lost() != before.0 {
            return Err(io::Error::other("packets of the trial were dropped"));
        }
        let least = u64::from(times) * self.copies * LEAST_PACKET;
        if self.left_out() == before.2 && place() - before.1 < least {
            return Err(io::Error::other("packets of the trial did not get into a ring"));
        }
        Ok(f64::from(ns))
    }

    /// Returns how many packets the filter and the rules refused, and how many were cut off.
    fn left_out(&self) -> u64 {
        self.filtered() + self.rings.iter().map(|r| r.cut().packets).sum::<u64>()
    }

    /// Returns how many packets the filter and the rules refused so far.
    pub fn filtered(&self) -> u64 {
        self.rings.iter().map(|r| r.filtered()).sum()
    }
}

/// The shortest block of a packet, bytes.
const LEAST_PACKET: u64 = 32;

/// Returns how far the producers of a ring have come, in bytes of blocks, filled or not.
fn place_in(ring: &RingMemory) -> u64 {
    let (block, bytes) = ring.open_block();
    (u64::from(block) << ring.geometry().block_shift) + u64::from(bytes)
}

/// No copy of a frame is longer here, so that blocks can be small.
const MOST_SNAPLEN: u32 = 16_384;

/// Returns the program of a hook that packets come in by.
fn program_of(hook: Hook) -> Option<Program> {
    match hook.facts().taken_by {
        TakenBy::Programs(set) => set.plain.first().copied(),
        TakenBy::Sockets(_) => None,
    }
}

fn context_of(which: Program) -> Vec<u8> {
    match which {
        Program::Netfilter => {
            let mut state = vec![0; NETFILTER_STATE];
            state[1] = libc::NFPROTO_IPV4 as u8;
            state
        }
        Program::Xdp
        | Program::XdpMetadata
        | Program::Redirect
        | Program::Ingress
        | Program::Egress
        | Program::SocketJudge => Vec::new(),
    }
}

fn images_of(loaded: &Loaded, rules: &Arc<Compiled>) -> io::Result<Images> {
    let mut images = loaded.images()?;
    images.set(0, Some(rules)).map_err(|e: rules::Error| io::Error::other(e))?;
    Ok(images)
}

#[cfg(test)]
mod cutoff_tests;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use tapdeck_packet::pcapng::{FILL, Reader, Record};
    use tapdeck_packet::ring::Ring;
    use tapdeck_packet::rules::RuleSet;
    use tapdeck_packet::rules::image::Options;
    use tapdeck_testkit::SplitMix64;
    use tapdeck_testkit::kernel::need_root;

    use super::{Compiled, Duties, Images, Loaded, Trial};
    use crate::Hook;
    use crate::ring::RingReader;
    use crate::sys::program::run;

    /// A frame that says that it holds IPv4, and random bytes.
    fn frame(len: usize, random: &mut SplitMix64) -> Vec<u8> {
        let mut frame: Vec<u8> = (0..len).map(|_| random.draw() as u8).collect();
        frame[12..14].copy_from_slice(&[8, 0]);
        frame
    }

    fn frames_in(bytes: &[u8]) -> Vec<Vec<u8>> {
        let packet = |record| match record {
            Ok(Record::Packet(packet)) => Some((packet.frame, packet.original_len)),
            Ok(_) => None,
            Err(e) => panic!("{e}"),
        };
        let packets = Reader::inside(bytes).filter_map(packet);
        packets
            .map(|(frame, original)| {
                assert_eq!(frame.len(), original as usize);
                let behind = frame.as_ptr_range().end.addr() - bytes.as_ptr().addr();
                let padding = &bytes[behind..behind.next_multiple_of(4)];
                assert!(padding.iter().all(|byte| *byte == 0), "{padding:?} pads {frame:?}");
                frame.to_vec()
            })
            .collect()
    }

    /// Holds frames of all lengths against what the program of a hook makes of them.
    fn record_all_lengths(hook: Hook, duties: &Duties) {
        let trial = Trial::of_recorder(hook, 1 << 20, 1 << 16, duties).unwrap();
        let mut ring = RingReader::new(trial.rings[0].clone(), 0);
        let mut random = SplitMix64(1);
        let (mut sent, mut came) = (Vec::new(), Vec::new());
        with_polls(|poll| {
            // The last are written over what was there before, when the ring has been filled once.
            for len in (14..1700).chain([2000, 3000, 4096, 5000, 9000]).chain(14..300) {
                let frame = frame(len, &mut random);
                match run(trial.program.as_fd(), &trial.context, &frame, 1) {
                    Ok(_) => sent.push(frame),
                    // The kernel has no frames of this length for programs of this kind.
                    Err(e) => assert!(!(34..1700).contains(&len), "{hook}, {len} bytes: {e}"),
                }
                while let Some(block) = ring.peek(0) {
                    came.extend(frames_in(block.bytes));
                    ring.release(1);
                }
            }
            poll();
        });
        assert!(ring.look());
        came.extend(frames_in(ring.begun()));
        assert_eq!(came.len(), sent.len());
        assert!(came == sent, "{hook}, {duties:?}: a frame is not as it was sent");
    }

    /// Copied by loads and stores as by a call; frames of more than a page come in fragments at
    /// `xdp`.
    #[test]
    fn a_frame_of_any_length_is_recorded_as_it_is() {
        need_root();
        for hook in [Hook::Xdp, Hook::Tcx, Hook::Netfilter] {
            for most_direct in [0, 128, 1536] {
                let most_direct = Some(most_direct);
                record_all_lengths(hook, &Duties { most_direct, ..Duties::default() });
            }
        }
    }

    /// Each of the recorder's programs is tried.
    #[test]
    fn a_frame_of_any_length_is_recorded_in_a_claim_as_it_is() {
        need_root();
        let claims = Duties { clock_by_poll: true, claims: true, ..Duties::default() };
        record_all_lengths(Hook::Xdp, &claims);
        record_all_lengths(
            Hook::Xdp,
            &Duties { cutoff: NonZeroU32::new(u32::MAX), ..claims.clone() },
        );
        let all = RuleSet::parse("accept src any dst any sport any dport any proto any").unwrap();
        let rules = Compiled::new(&all, &Options::default()).unwrap();
        record_all_lengths(Hook::Xdp, &Duties { rules: Some(Arc::new(rules)), ..claims });
    }

    fn times_in(bytes: &[u8]) -> Vec<u64> {
        let time = |record| match record {
            Ok(Record::Packet(packet)) => Some(packet.timestamp),
            Ok(_) => None,
            Err(e) => panic!("{e}"),
        };
        Reader::inside(bytes).filter_map(time).collect()
    }

    /// A trial whose packets share readings of the clock, and its ring's reader.
    fn sharing(hook: Hook) -> (Trial, RingReader) {
        let duties = Duties { clock_by_poll: true, ..Duties::default() };
        let trial = Trial::of_recorder(hook, 1 << 20, 1 << 16, &duties).unwrap();
        let ring = RingReader::new(trial.rings[0].clone(), 0);
        (trial, ring)
    }

    #[test]
    fn the_packets_of_a_poll_share_a_reading_of_the_clock_sixteen_at_a_time() {
        need_root();
        for hook in [Hook::Xdp, Hook::Tcx, Hook::Netfilter] {
            let (trial, mut ring) = sharing(hook);
            let frame = frame(60, &mut SplitMix64(1));
            // All of one run, with which no poll interferes.
            run(trial.program.as_fd(), &trial.context, &frame, 320).unwrap();
            assert!(ring.look());
            let times = times_in(ring.begun());
            assert_eq!(times.len(), 320);
            let steps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            // A reading is further off than a nanosecond, and there is one for 16 packets; more
            // only where the kernel's tick has come in between.
            let mut shared = 0;
            for step in &steps {
                shared = if *step == 1 { shared + 1 } else { 0 };
                assert!(shared < 16, "{hook}: {steps:?}");
            }
            let readings = steps.iter().filter(|step| **step > 1).count();
            assert!((19..40).contains(&readings), "{hook}: {readings} readings");
        }
    }

    /// Runs something on one CPU, and gives it what has a poll of that CPU come and end: the
    /// loopback device delivers what is sent to it in a poll of the CPU that has sent it.
    fn with_polls(work: impl FnOnce(&dyn Fn())) {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let mut here = rustix::thread::CpuSet::new();
        here.set(0);
        rustix::thread::sched_setaffinity(None, &here).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        work(&|| {
            socket.send_to(&[1], to).unwrap();
            socket.recv(&mut [0]).unwrap();
        });
        rustix::thread::sched_setaffinity(None, &before).unwrap();
    }

    #[test]
    fn after_a_poll_the_clock_is_read_again() {
        need_root();
        let (trial, mut ring) = sharing(Hook::Xdp);
        let frame = frame(60, &mut SplitMix64(1));
        with_polls(|poll| {
            for _ in 0..100 {
                run(trial.program.as_fd(), &trial.context, &frame, 1).unwrap();
                poll();
            }
        });
        assert!(ring.look());
        let times = times_in(ring.begun());
        assert_eq!(times.len(), 100);
        assert!(times.windows(2).all(|pair| pair[1] > pair[0] + 1), "{times:?}");
    }

    /// Returns how many blocks that only fill space are among a ring block's.
    fn fills_in(mut bytes: &[u8]) -> usize {
        let mut fills = 0;
        while let [a, b, c, d, e, f, g, h, ..] = *bytes {
            fills += usize::from(u32::from_ne_bytes([a, b, c, d]) == FILL);
            bytes = &bytes[u32::from_ne_bytes([e, f, g, h]) as usize..];
        }
        fills
    }

    #[test]
    fn claims_grow_where_they_are_used_and_nobody_reserves_behind_them() {
        const IN_RING: u32 = 92;
        need_root();
        let frame = frame(60, &mut SplitMix64(1));
        let duties = Duties { clock_by_poll: true, claims: true, ..Duties::default() };
        // How many packets' room is reserved after so many of one poll, and how much more by a
        // lone packet of the next.
        let lone = |before: u32, closes: bool, poll: &dyn Fn()| {
            let trial = Trial::of_recorder(Hook::Xdp, 1 << 20, 1 << 16, &duties).unwrap();
            let (loaded, _) = trial.loaded.downcast_ref::<(Loaded, Option<Images>)>().unwrap();
            let send = |n| run(trial.program.as_fd(), &trial.context, &frame, n).unwrap();
            let open = || trial.rings[0].open_block();
            send(before);
            let claimed = open().1;
            if closes {
                loaded.flush(0, open().0).unwrap();
            }
            poll();
            let begin = open().1;
            send(1);
            (claimed / IN_RING, (open().1 - begin) / IN_RING)
        };
        with_polls(|poll| {
            let cases = [
                ("too few for a larger one", 10, false, (17, 1)),
                ("used up, so it grows, and then used by few", 18, false, (81, 1)),
                ("used by many", 40, false, (81, 64)),
                ("used by many, and closed by others", 40, true, (81, 1)),
            ];
            for (what, before, closes, expected) in cases {
                // A poll of somebody else's may come in between and end a claim.
                let is_seen = (0..1000).any(|_| lone(before, closes, poll) == expected);
                assert!(is_seen, "{what}: never {expected:?}");
            }
        });
    }

    #[test]
    fn what_is_left_of_a_claim_goes_back_or_is_filled_when_the_poll_ends() {
        need_root();
        let duties = Duties { clock_by_poll: true, claims: true, ..Duties::default() };
        let trial = Trial::of_recorder(Hook::Xdp, 1 << 20, 1 << 16, &duties).unwrap();
        let (loaded, _) = trial.loaded.downcast_ref::<(Loaded, Option<Images>)>().unwrap();
        let mut ring = RingReader::new(trial.rings[0].clone(), 0);
        let mut random = SplitMix64(1);
        let (mut sent, mut came, mut fills) = (Vec::new(), Vec::new(), 0);
        with_polls(|poll| {
            // On a busy machine other polls may end nearly all claims before they are filled.
            for round in 0..100_000 {
                if round >= 300 && fills > 0 {
                    break;
                }
                let frame = frame(34 + random.below(200usize), &mut random);
                // Enough to use up the larger claims that the first ones lead to.
                let times = 1 + random.below(160u32);
                run(trial.program.as_fd(), &trial.context, &frame, times).unwrap();
                sent.extend(std::iter::repeat_n(frame, times as usize));
                // Whoever closes the block leaves nothing to give back.
                if round % 3 == 0 {
                    loaded.flush(0, trial.rings[0].open_block().0).unwrap();
                }
                poll();
                while let Some(block) = ring.peek(0) {
                    came.extend(frames_in(block.bytes));
                    fills += fills_in(block.bytes);
                    ring.release(1);
                }
            }
        });
        assert!(ring.look());
        came.extend(frames_in(ring.begun()));
        assert_eq!(came.len(), sent.len());
        assert!(came == sent, "a frame is not as it was sent");
        assert!(fills > 0, "no claim was filled");
        assert_eq!(trial.rings[0].lost(), 0);
    }
}
