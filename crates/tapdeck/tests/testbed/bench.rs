//! Where a recorder or a daemon that outlives its process is tested.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;
use tapdeck_testkit::{Mount, Net};

/// Returns how often a test kills what it tests: so often, or by the variable `TAPDECK_KILLS`.
pub fn kills(unless_told: u64) -> u64 {
    let told = std::env::var("TAPDECK_KILLS");
    told.map_or(unless_told, |n| n.parse().expect("a number of kills"))
}

/// A network, a directory, and a BPF file system of its own: commands that run in a network
/// namespace do not see the machine's.
pub struct Bench {
    pub net: Net,
    bpf: Mount,
    pub dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        Self { net: Net::new(), bpf: Mount::bpf(&dir.path().join("bpf")), dir }
    }

    /// What `TAPDECK_PERSIST` names.
    pub fn pins(&self) -> PathBuf {
        self.bpf.path().join("tapdeck")
    }

    /// Runs `tapdeck ctl persist`.
    pub fn ctl(&self, words: &[&str]) -> Output {
        let mut command = self.net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.env("TAPDECK_PERSIST", self.pins()).args(["ctl", "persist"]).args(words);
        command.output().expect("it runs")
    }

    /// What is pinned under the one name.
    pub fn listed(&self) -> Value {
        let out = self.ctl(&["list", "--json"]);
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
    }
}
