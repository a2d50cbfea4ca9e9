//! The same inside the kernel, where the verifier has to accept it: each hook's program over
//! generated frames, by BPF_PROG_TEST_RUN.

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput};
use tapdeck_capture::headers::Found;
use tapdeck_testkit::SplitMix64;

use super::frames::{Build, ethernet, ipv4};
use super::reference::{Looked, Reference, Seen};
use super::{FLOW, VLAN};

#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/headers_test.bpf.o")));

/// One hook's program, and what it writes.
struct Hook {
    object: Object,
    name: &'static str,
}

/// Numbers of words in `struct td_params`.
const NRINGS: usize = 0;
const IFINDEX: usize = 9;
const LINK_HEADER: usize = 14;
/// What a netfilter program sees where a test gives it no interface.
const NO_INTERFACE: u32 = 0;

impl Hook {
    fn load(name: &'static str, has_link: bool) -> Self {
        let mut open = ObjectBuilder::default().open_memory(&OBJECT.0).expect("an object");
        for mut program in open.progs_mut() {
            let is_wanted = program.name() == name;
            program.set_autoload(is_wanted);
        }
        for mut map in open.maps_mut() {
            if map.name().to_str().is_some_and(|name| name.ends_with(".rodata.params")) {
                let params = map.initial_value_mut().expect("parameters");
                let words = [(NRINGS, 1), (IFINDEX, NO_INTERFACE), (LINK_HEADER, has_link.into())];
                for (word, value) in words {
                    params[word * 4..word * 4 + 4].copy_from_slice(&u32::to_ne_bytes(value));
                }
            }
        }
        Self { object: open.load().unwrap_or_else(|e| panic!("{name} is refused: {e:#}")), name }
    }

    fn map(&self, name: &str) -> MapHandle {
        let map = self.object.maps().find(|m| m.name().to_str().is_some_and(|n| n.ends_with(name)));
        MapHandle::try_from(&map.expect("a map of this name")).expect("a handle")
    }

    fn forget(&self) {
        for name in ["td_fragments", "td_inner_fragments"] {
            let map = self.map(name);
            for key in map.keys().collect::<Vec<_>>() {
                map.delete(&key).expect("a key that was there");
            }
        }
    }

    fn look(&self, frame: &[u8], context: Option<&mut [u8]>) -> Found {
        let program = self.object.progs_mut().find(|p| p.name() == self.name).expect("loaded");
        let input =
            ProgramInput { data_in: Some(frame), context_in: context, ..ProgramInput::default() };
        program.test_run(input).unwrap_or_else(|e| panic!("{}: {e:#}: {frame:02x?}", self.name));
        let found = self.map(".data.found").lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        Found::from_bytes(&found.expect("readable").expect("one value"))
    }
}

fn assert_agree(found: &Found, expected: &Looked, context: &str) {
    assert_eq!(Seen::of(&found.outer), expected.outer, "outer: {context}");
    assert_eq!(Seen::of(found.innermost()), expected.innermost, "innermost: {context}");
    assert_eq!(found.number[FLOW..=VLAN], expected.number, "numbers: {context}");
    assert_eq!(found.second, expected.second, "second number: {context}");
}

/// Runs over many frames, none shorter than the kernel wants, each of which finds nothing
/// remembered of others.
fn compare(hook: &Hook, has_link: bool, least: usize) {
    for seed in 0..1_500 {
        let mut random = SplitMix64(seed ^ 0x6b65);
        let mut frame = Build::new(&mut random, false).frame(has_link);
        if random.below(4) == 0 {
            frame.truncate(least + random.below(frame.len() as u64) as usize);
        }
        if random.below(4) == 0 {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << random.below(8);
        }
        if frame.len() < least {
            continue;
        }
        hook.forget();
        let found = hook.look(&frame, None);
        let expected = Reference::default().look(&frame, has_link, None);
        assert_agree(&found, &expected, &format!("{}, seed {seed}: {frame:02x?}", hook.name));
    }
}

#[test]
fn xdp_finds_what_the_reference_finds() {
    compare(&Hook::load("tapdeck_xdp", true), true, 14);
}

/// Is the kernel of this release, or a later one?
fn kernel_is(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-', '+']).map_while(|number| number.parse().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Where the driver shows a first part only, the rest comes through a helper.
#[test]
fn xdp_finds_what_lies_in_fragments_of_the_buffer() {
    const ETHERNET: u64 = 14;
    if !kernel_is(6, 18) {
        eprintln!("skipped: BPF_PROG_TEST_RUN splits no packet before Linux 6.18");
        return;
    }
    let hook = Hook::load("tapdeck_xdp", true);
    for seed in 0..1_500 {
        let mut random = SplitMix64(seed ^ 0x6672);
        let frame = Build::new(&mut random, false).frame(true);
        let linear = ETHERNET + random.below(frame.len() as u64 - ETHERNET + 1);
        // `struct xdp_md`, whose second word is the end of the linear part.
        let mut context = [0; 24];
        context[4..8].copy_from_slice(&(linear as u32).to_ne_bytes());
        hook.forget();
        let found = hook.look(&frame, Some(&mut context));
        let expected = Reference::default().look(&frame, true, None);
        assert_agree(&found, &expected, &format!("linear {linear}, seed {seed}: {frame:02x?}"));
    }
}

#[test]
fn xdp_finds_what_the_reference_finds_without_link_headers() {
    compare(&Hook::load("tapdeck_xdp", false), false, 14);
}

#[test]
fn tc_finds_what_the_reference_finds() {
    const ETHERNET_AND_IPV6: usize = 54;
    compare(&Hook::load("tapdeck_ingress", true), true, ETHERNET_AND_IPV6);
}

/// A hook sees the link layer's header of a packet that came over Ethernet, though its data begins
/// behind it.
#[test]
fn netfilter_finds_what_the_reference_finds() {
    const NFPROTO_IPV4: u8 = 2;
    const NFPROTO_IPV6: u8 = 10;
    if !kernel_is(6, 4) {
        eprintln!("skipped: there are no netfilter programs before Linux 6.4");
        return;
    }
    let hook = Hook::load("tapdeck_netfilter", true);
    for seed in 0..1_500 {
        let packet = Build::new(&mut SplitMix64(seed ^ 0x6e66), false).frame(false);
        let (protocol, kind) =
            if packet[0] >> 4 == 4 { (NFPROTO_IPV4, 0x0800) } else { (NFPROTO_IPV6, 0x86dd) };
        let frame = ethernet(&[], kind, &packet);
        // `struct nf_hook_state` of the prerouting hook.
        let mut state = [0; 48];
        state[1] = protocol;
        hook.forget();
        let found = hook.look(&frame, Some(&mut state));
        let expected = Reference::default().look(&frame, true, None);
        assert_agree(&found, &expected, &format!("seed {seed}: {frame:02x?}"));
    }
}

#[test]
fn fragments_follow_their_first_inside_the_kernel() {
    let hook = Hook::load("tapdeck_xdp", true);
    let mut reference = Reference::default();
    let mut later = 0;
    hook.forget();
    for seed in 0..3_000 {
        let mut random = SplitMix64(seed);
        // Few addresses and identifications, so that datagrams meet.
        let host = random.below(3) as u8;
        let payload: Vec<u8> = (0..40).map(|_| random.draw() as u8).collect();
        let mut packet = ipv4(
            [10, 0, 0, host],
            [10, 0, 1, 1],
            [17, 6, 4, 1][random.below(4) as usize],
            &payload,
        );
        packet[5] = random.below(4) as u8;
        let part: [u8; 2] = [[0x20, 0], [0, 9], [0x20, 9], [0, 0]][random.below(4) as usize];
        packet[6..8].copy_from_slice(&part);
        let frame = ethernet(&[], 0x0800, &packet);
        let expected = reference.look(&frame, true, None);
        let found = hook.look(&frame, None);
        assert_agree(&found, &expected, &format!("seed {seed}: {frame:02x?}"));
        later += u32::from(part[1] != 0 && found.outer.source_port != 0);
    }
    assert!(later > 300, "{later} later fragments had ports");
}
