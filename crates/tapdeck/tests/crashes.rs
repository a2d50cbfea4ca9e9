//! A recorder that is killed at any moment, again and again, into the same store: what was on disk
//! when it died is there in the end, sound, indexed and in the answers.

mod testbed;

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tapdeck_packet::trace;
use tapdeck_testkit::{Net, Running, SplitMix64};
use testbed::recorder::{Recorder, segments};

/// The least crashes, and the most that are tried for half as many to leave a live segment.
const CRASHES: u64 = 50;
const MOST: u64 = 500;

/// A packet by its time and a hash of its bytes.
type Who = (i64, u64);

/// The packets of a file, up to where it is torn.
fn packets(path: &Path) -> BTreeSet<Who> {
    let data = fs::read(path).expect("the file is there");
    let mut found = BTreeSet::new();
    let Ok(mut reader) = trace::Reader::new(&data[..]) else { return found };
    while let Ok(Some(packet)) = reader.next_packet() {
        let mut hasher = DefaultHasher::new();
        packet.frame.hash(&mut hasher);
        found.insert((packet.time_ns.expect("a time"), hasher.finish()));
    }
    found
}

fn live(store: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(store).expect("the store").flatten().map(|e| e.path());
    entries.into_iter().find(|p| p.to_string_lossy().ends_with(".pcapng.live"))
}

fn tapdeck(command: &str, store: &Path, args: &[&str]) -> String {
    let mut tapdeck = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    tapdeck.arg(command).arg("--dir").arg(store).args(args);
    let out = tapdeck.output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{command} {args:?}: {said}{told}");
    told
}

#[test]
fn fifty_crashes_lose_nothing_that_was_on_disk() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64);
    println!("seed {seed}");
    let mut random = SplitMix64(seed);
    let net = Net::new();
    let temp = tempfile::tempdir().expect("a directory");
    let store = temp.path().join("store");
    let mut sender = net.a.command(env!("CARGO_BIN_EXE_tapdeck"));
    sender.args(["gen", "-i", "va", "--backend", "txring", "--rate", "10kpps", "--flows", "40"]);
    sender.args(["--size", "60-1200", "--duration", "300s"]);
    sender.stdout(Stdio::null()).stderr(Stdio::null());
    let sender = Running(sender.spawn().expect("it runs"));

    let flags = format!(
        "--hook tcx --snaplen 2000 --block-bytes 64KiB --ring-bytes 4MiB --segment-size 8MiB --segment-time 300ms --flush 100ms --dir {}",
        store.display()
    );
    let mut all = BTreeSet::new();
    let mut torn = 0;
    for crash in 0..MOST {
        if crash >= CRASHES && torn > CRASHES / 2 && all.len() > 1000 {
            break;
        }
        let recorder = Recorder::start(&net, temp.path(), &flags);
        // The moment is the point here, so nothing is waited for.
        std::thread::sleep(Duration::from_millis(random.below(400)));
        recorder.kill();
        let Some(live) = live(&store) else { continue };
        let before = packets(&live);
        torn += 1;
        // Every second time it is left to the next recorder.
        if crash % 2 == 0 {
            tapdeck("recover", &store, &[]);
            let after = packets(&live.with_extension(""));
            assert!(after.is_superset(&before), "crash {crash} of seed {seed}");
        }
        all.extend(before);
    }
    drop(sender);
    assert!(torn > CRASHES / 2, "only {torn} live segments were left");
    tapdeck("recover", &store, &[]);
    assert_eq!(live(&store), None);
    let stored: BTreeSet<Who> = segments(&store).iter().flat_map(|path| packets(path)).collect();
    assert!(all.len() > 1000 && stored.is_superset(&all), "seed {seed}");
    let verdict: Value =
        serde_json::from_str(&tapdeck("verify", &store, &["--json"])).expect("JSON");
    assert_eq!(verdict["packets"], stored.len(), "each once");
    let is_indexed = |s: &Value| s["indexed_bytes"] == s["bytes"];
    assert!(verdict["segments"].as_array().expect("a list").iter().all(is_indexed), "{verdict}");
    assert_eq!(tapdeck("query", &store, &["--count"]).trim(), stored.len().to_string());
}
