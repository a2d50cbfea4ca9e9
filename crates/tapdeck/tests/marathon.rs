//! Everything at once, for as long as one likes: recording, queries of all kinds and verification,
//! while retention deletes under them. `make nightly` runs it for ten minutes.

mod testbed;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tapdeck_packet::trace;
use tapdeck_testkit::{Net, Running, wait_for};
use testbed::recorder::{Recorder, assert_accounted, number};

const SECONDS: &str = "TAPDECK_MARATHON_SECONDS";

fn seconds() -> u64 {
    std::env::var(SECONDS).map_or(8, |s| s.parse().expect("a number of seconds"))
}

fn tapdeck(command: &str, store: &Path, args: &[&str]) -> Output {
    let mut tapdeck = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    tapdeck.arg(command).arg("--dir").arg(store).args(args);
    tapdeck.output().expect("it runs")
}

/// Returns the answer of a command that succeeds, and has nothing to say but what retention did.
fn answer(store: &Path, args: &[&str]) -> Vec<u8> {
    let out = tapdeck("query", store, args);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {said}");
    assert!(said.lines().all(|line| line.contains("was deleted before it was read")), "{said}");
    out.stdout
}

fn times(pcapng: &[u8]) -> Vec<i64> {
    let mut reader = trace::Reader::new(pcapng).expect("a capture file");
    let mut times = Vec::new();
    while let Some(packet) = reader.next_packet().expect("whole") {
        times.push(packet.time_ns.expect("a time"));
    }
    times
}

#[test]
fn recording_asking_checking_and_deleting_go_on_together() {
    let net = Net::new();
    let temp = tempfile::tempdir().expect("a directory");
    let store = temp.path().join("store");
    // The rings hold what comes in half a minute: for as long, other programs may keep the disk.
    let flags = format!(
        "--hook tcx --segment-size 8MiB --segment-time 1s --keep-segments 6 --ring-bytes 128MiB --dir {}",
        store.display()
    );
    let recorder = Recorder::start(&net, temp.path(), &flags);
    let mut sender = net.a.command(env!("CARGO_BIN_EXE_tapdeck"));
    sender.args(["gen", "-i", "va", "--backend", "txring", "--rate", "4kpps", "--flows", "200"]);
    sender.args(["--zipf", "1", "--size", "imix", "--proto", "udp,tcp"]);
    sender.args(["--duration", &format!("{}s", seconds() + 600)]);
    sender.stdout(Stdio::null()).stderr(Stdio::null());
    let sender = Running(sender.spawn().expect("it runs"));
    wait_for("a first segment", || recorder.now()["segments"].as_u64() >= Some(2));

    let begun = Instant::now();
    let (mut rounds, mut found) = (0, 0);
    while begun.elapsed() < Duration::from_secs(seconds()) || rounds == 0 {
        let all = times(&answer(&store, &["-w", "-"]));
        assert!(!all.is_empty() && all.is_sorted());
        let tcp = times(&answer(&store, &["-w", "-", "tcp"]));
        assert!(tcp.is_sorted());
        let one = answer(&store, &["--json", "--limit", "50", "host 198.18.0.1 and udp"]);
        found += one.split(|b| *b == b'\n').filter(|line| !line.is_empty()).count();
        assert_eq!(
            String::from_utf8_lossy(&answer(&store, &["--count", "host 203.0.113.9"])),
            "0\n"
        );
        // Whatever is deleted meanwhile is passed over.
        let verdict = tapdeck("verify", &store, &["--json"]);
        assert!(verdict.status.success(), "{}", String::from_utf8_lossy(&verdict.stdout));
        rounds += 1;
    }
    assert!(found > 0);
    drop(sender);
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!(number(&stats, "dropped_ring") + number(&stats, "dropped_other"), 0, "{stats}");
    let verdict: Value =
        serde_json::from_slice(&tapdeck("verify", &store, &["--json"]).stdout).expect("JSON");
    let stored = number(&stats, "captured") - number(&stats, "packets_deleted");
    assert_eq!((&verdict["sound"], &verdict["packets"]), (&true.into(), &stored.into()));
    assert_eq!(answer(&store, &["--count"]), format!("{stored}\n").into_bytes());
}
