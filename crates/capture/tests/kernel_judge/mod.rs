//! The judge inside the kernel, alone: tuples go in by a map, verdicts come out of it, and the
//! kernel says how long it took. For tests and for the benchmark.
#![allow(dead_code, reason = "neither uses all of it")]

use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use tapdeck_capture::rules::{Compiled, Hits, Images, Verdict, judged_bytes};
use tapdeck_packet::rules::Tuple;

#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/rules_test.bpf.o")));

/// As in `bpf/rules_test.bpf.c`.
const TUPLES: usize = 1 << 16;
const JUDGED_BYTES: usize = 64;

pub struct KernelJudge {
    runner: Runner,
    images: Images,
}

/// What runs the judge, apart from the sets that it judges by.
pub struct Runner {
    object: Object,
    tuples: usize,
}

impl KernelJudge {
    /// Needs the privilege to load BPF programs.
    pub fn load() -> Self {
        libbpf_rs::set_print(None);
        let object = ObjectBuilder::default().open_memory(&OBJECT.0).unwrap().load().unwrap();
        let images = Images::of(&object).unwrap();
        Self { runner: Runner { object, tuples: 0 }, images }
    }

    /// For two threads.
    pub fn split(self) -> (Runner, Images) {
        (self.runner, self.images)
    }

    pub fn set(&mut self, compiled: Option<&Arc<Compiled>>) -> Option<Hits> {
        self.images.set(0, compiled).unwrap()
    }

    pub fn hits(&self) -> Option<Hits> {
        self.images.hits(0)
    }

    pub fn leave(&mut self, tuples: &[Tuple]) {
        self.runner.leave(tuples);
    }

    pub fn run(&self, count: u32, quiet: bool) -> u64 {
        self.runner.run(count, quiet)
    }

    pub fn verdicts(&self) -> Vec<Option<Verdict>> {
        self.runner.verdicts()
    }
}

impl Runner {
    /// Leaves packets to be judged: a power of two of them, or as many as there are in a test that
    /// judges each once.
    pub fn leave(&mut self, tuples: &[Tuple]) {
        assert!(tuples.len() <= TUPLES);
        let mut bytes = vec![0; TUPLES * JUDGED_BYTES];
        for (tuple, to) in tuples.iter().zip(bytes.chunks_exact_mut(JUDGED_BYTES)) {
            to[..40].copy_from_slice(&judged_bytes(tuple));
        }
        let map = self.object.maps().find(|map| map.name() == "judged").unwrap();
        map.update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY).unwrap();
        self.tuples = tuples.len();
    }

    /// Judges so many packets, those that were left one after the other and again, and gives the ns
    /// it took. `quiet` reads them and judges nothing.
    pub fn run(&self, count: u32, quiet: bool) -> u64 {
        let mask = self.tuples.next_power_of_two() as u32 - 1;
        let mut run: Vec<u8> = [0, mask, count, u32::from(quiet), 0, 0]
            .iter()
            .flat_map(|word: &u32| word.to_ne_bytes())
            .collect();
        let program = self.object.progs_mut().find(|p| p.name() == "tapdeck_judge").unwrap();
        let input = ProgramInput { context_in: Some(&mut run), ..ProgramInput::default() };
        let output = program.test_run(input).unwrap();
        assert_eq!(output.return_value, 0);
        u64::from_ne_bytes(run[16..].try_into().unwrap())
    }

    /// What was said of each packet; `None` where there was no set.
    pub fn verdicts(&self) -> Vec<Option<Verdict>> {
        let map = self.object.maps().find(|map| map.name() == "judged").unwrap();
        let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        let judged = bytes.chunks_exact(JUDGED_BYTES).take(self.tuples);
        judged
            .map(|judged| {
                let word =
                    |i: usize| u32::from_ne_bytes(judged[40 + i * 4..][..4].try_into().unwrap());
                (word(5) == 1).then(|| Verdict::from_words(std::array::from_fn(word)))
            })
            .collect()
    }
}
