//! `tapdeck stat`: its numbers are those of `tapdeck query` over the same store, of any kind; on
//! stores that are recorded into, copied and somebody else's.

#[allow(dead_code)]
mod awkward;
mod testbed;

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

use awkward::store::{SECOND, Store};
use serde_json::Value;
use tapdeck_testkit::kernel::need_root;
use tapdeck_testkit::{Net, Sender, SplitMix64, wait_for};
use testbed::recorder::{Recorder, frame, number};

fn tapdeck(command: &str, store: &Path, args: &[&str]) -> Output {
    let mut tapdeck = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    tapdeck.arg(command).arg("--dir").arg(store).args(args).stdin(Stdio::null());
    tapdeck.output().expect("the program was built")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// What it prints; it must succeed and have nothing to complain of.
fn told(store: &Path, args: &[&str]) -> String {
    let out = tapdeck("stat", store, args);
    assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {}", said(&out));
    String::from_utf8(out.stdout).expect("text")
}

fn json(store: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&told(store, &[&["--json"], args].concat())).expect("one JSON object")
}

fn seconds(ns: i64) -> String {
    format!("{}.{:09}", ns / SECOND, ns % SECOND)
}

fn rfc(ns: i64) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(ns)).expect("a time");
    format!("{time:.9}")
}

/// All files with their contents and when they were changed.
fn listing(dir: &Path) -> Vec<(PathBuf, Vec<u8>, SystemTime)> {
    let entries = fs::read_dir(dir).expect("a store").flatten();
    let mut all: Vec<_> = entries
        .map(|e| {
            let changed = e.metadata().and_then(|m| m.modified()).expect("its time");
            (e.path(), fs::read(e.path()).expect("it is there"), changed)
        })
        .collect();
    all.sort();
    all
}

/// The sum of what was lost, by a list of gaps.
fn lost(stat: &Value) -> u64 {
    stat["gaps"].as_array().expect("a list").iter().map(|gap| number(gap, "lost")).sum()
}

#[test]
fn numbers_are_those_of_query() {
    for (seed, indexed) in [(1, true), (2, true), (3, false)] {
        let rng = &mut SplitMix64(seed);
        let store = Store::new(rng, indexed);
        let dir = store.path();
        let before = listing(&dir);
        let all = json(&dir, &[]);
        assert_eq!(number(&all, "packets"), store.packets.len() as u64);
        let files = |end: &str| {
            let names = before.iter().filter(|f| f.0.to_str().is_some_and(|p| p.ends_with(end)));
            names.map(|f| f.1.len() as u64).collect::<Vec<_>>()
        };
        let closed = files(".pcapng");
        assert_eq!(number(&all, "segments"), closed.len() as u64 + 1);
        assert_eq!(number(&all, "segments_live"), 1);
        let bytes = closed.iter().chain(&files(".live")).sum::<u64>();
        assert_eq!(number(&all, "bytes_stored"), bytes);
        assert_eq!(number(&all, "index_bytes"), files(".index").iter().sum::<u64>());
        assert_eq!(number(&all, "lost"), lost(&all));
        let missing = if indexed { 0 } else { closed.len() as u64 };
        assert_eq!(number(&all, "segments_not_indexed"), missing);
        if indexed {
            let (first, last) =
                (store.packets[0].time_ns, store.packets[store.packets.len() - 1].time_ns);
            assert_eq!((&all["first"], &all["last"]), (&rfc(first).into(), &rfc(last).into()));
            assert_eq!(all["rate"]["packets_per_s"].as_array().map(Vec::len), Some(60));
        }

        for _ in 0..8 {
            let mut time = || store.packets[rng.below(store.packets.len())].time_ns;
            let (a, b) = (time(), time());
            let span = ["--after", &seconds(a.min(b)), "--before", &seconds(a.max(b))];
            let part = json(&dir, &span);
            let counted = tapdeck("query", &dir, &[&["--count"][..], &span].concat());
            let counted = String::from_utf8_lossy(&counted.stdout).into_owned();
            assert_eq!(part["packets"].to_string(), counted.trim(), "seed {seed}: {span:?}");
            assert!(number(&part, "lost") <= number(&all, "lost"));
        }
        assert!(listing(&dir) == before, "nothing was changed");
    }
}

#[test]
fn people_get_a_page() {
    let store = Store::new(&mut SplitMix64(4), true);
    let page = told(&store.path(), &["--top", "3"]);
    let value = |label: &str| {
        let line = page.lines().find(|l| l.starts_with(label));
        line.unwrap_or_else(|| panic!("{label} in {page}"))[label.len()..].trim().to_owned()
    };
    let packets = store.packets.len();
    let packets = format!("{},{:03}", packets / 1000, packets % 1000);
    assert_eq!(value("packets "), packets);
    assert!(value("segments").ends_with(", 1 of them being written"), "{page}");
    assert_eq!(value("first"), rfc(store.packets[0].time_ns));
    assert!(value("lost").contains(" gap"), "{page}");
    let bars = value("packets/s");
    assert!(bars.contains('█') && bars.chars().count() <= 69, "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 110), "{page}");
    let tops = page.lines().filter(|l| l.contains(" %") && l.contains("port ")).count();
    assert_eq!(tops, 3, "{page}");
    assert!(page.contains("gaps:"), "{page}");
    // What is asked for is told, and nothing else.
    let page = told(&store.path(), &["--top", "0"]);
    assert!(!page.contains("port "), "{page}");

    let page = told(&store.path(), &["--before", "2000-01-01T00:00:00Z"]);
    assert_eq!(page.lines().next(), Some("segments   0"));
    assert!(page.contains("packets    0") && !page.contains("first"), "{page}");

    let store = Store::new(&mut SplitMix64(4), false);
    let page = told(&store.path(), &[]);
    assert!(page.contains("not indexed; `tapdeck recover` makes"), "{page}");
    assert!(page.contains(&format!("packets    {packets}")), "{page}");
}

#[test]
fn what_is_no_store_is_one_line() {
    need_root();
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |path: &Path, args: &[&str], code: i32, words: &str| {
        let out = tapdeck("stat", path, args);
        let line = said(&out);
        assert_eq!(out.status.code(), Some(code), "{line}");
        assert!(line.contains(words) && out.stdout.is_empty(), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    };
    refused(&dir.path().join("none"), &[], 1, "does not exist");
    refused(dir.path(), &[], 1, "has no segments");
    let file = dir.path().join("file");
    fs::write(&file, "x").expect("room");
    refused(&file, &["--json"], 1, "is not a directory");
    refused(dir.path(), &["--after", "1000", "--before", "999"], 2, "is later than");
}

/// Somebody who may read, on a copy that nobody may write; and somebody who may not.
#[test]
fn whoever_may_read_is_told() {
    need_root();
    let store = Store::new(&mut SplitMix64(5), true);
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    };
    mode(store.dir.path(), 0o755);
    let program = store.dir.path().join("tapdeck");
    fs::copy(env!("CARGO_BIN_EXE_tapdeck"), &program).expect("the program was built");
    let expected = told(&store.path(), &["--json"]);
    let files: Vec<PathBuf> = listing(&store.path()).into_iter().map(|f| f.0).collect();
    for path in &files {
        mode(path, 0o444);
    }
    mode(&store.path(), 0o555);
    let ask = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        command.args(["stat", "--json", "--dir"]).arg(store.path()).output().expect("it runs")
    };
    let out = ask();
    assert_eq!(
        (String::from_utf8_lossy(&out.stdout).as_ref(), said(&out).as_str()),
        (&*expected, "")
    );

    let of = |end: &str| files.iter().find(|p| p.to_str().is_some_and(|p| p.ends_with(end)));
    mode(of(".index").expect("an index"), 0o600);
    let out = ask();
    assert!(out.status.success(), "{}", said(&out));
    let stat: Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    assert_eq!(number(&stat, "packets"), store.packets.len() as u64);
    assert!(said(&out).contains("cannot be used (Permission denied"), "{}", said(&out));

    mode(of(".pcapng").expect("a segment"), 0o600);
    let out = ask();
    assert_eq!(out.status.code(), Some(1));
    assert!(said(&out).contains("no permission to read"), "{}", said(&out));
}

/// A stranger who may write into the store's directory may have put an index there.
#[test]
fn an_index_of_a_stranger_is_not_believed() {
    const STRANGER: u32 = 65_534;
    need_root();
    let store = Store::new(&mut SplitMix64(6), true);
    let path = store.path();
    let packets = store.packets.len().to_string();
    let asked = |args: &[&str]| {
        let out = tapdeck("query", &path, &[&["--count"], args].concat());
        assert!(out.status.success(), "{}", said(&out));
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), packets);
        said(&out)
    };
    let is_believed = |args: &[&str]| !asked(args).contains("the index of");
    assert!(is_believed(&[]));
    let names: Vec<PathBuf> = listing(&path).into_iter().map(|file| file.0).collect();
    let index = names.iter().find(|name| name.extension().is_some_and(|end| end == "index"));
    let index = index.expect("an index");
    chown(index, Some(STRANGER), None).expect("root may");
    let why = "cannot be used (it belongs to user 65534";
    assert!(asked(&[]).contains(why), "{}", asked(&[]));
    let stat = tapdeck("stat", &path, &["--json"]);
    assert!(stat.status.success() && said(&stat).contains(why), "{}", said(&stat));
    assert!(is_believed(&["--no-trust-index"]), "and so nothing is to be said of them");
    let stat = json(&path, &["--no-trust-index"]);
    assert_eq!(number(&stat, "packets"), store.packets.len() as u64);
    assert_eq!(number(&stat, "index_bytes"), 0);
    // Whoever owns the segment may have made its index.
    chown(index.with_extension("pcapng"), Some(STRANGER), None).expect("root may");
    assert!(is_believed(&[]));
}

#[test]
fn a_damaged_segment_is_told_and_the_rest_counts() {
    let store = Store::new(&mut SplitMix64(6), false);
    let live = listing(&store.path()).into_iter().map(|f| f.0);
    let live = live.max().expect("a segment");
    let whole = number(&json(&store.path(), &[]), "packets");
    let mut bytes = fs::read(&live).expect("it is there");
    let at = bytes.len() / 2 / 4096 * 4096;
    bytes[at..].fill(0);
    fs::write(&live, bytes).expect("room");
    // What is at a live segment's end may still be written.
    assert!(number(&json(&store.path(), &[]), "packets") < whole);

    let closed = live.with_extension("");
    fs::rename(&live, &closed).expect("a new name");
    let out = tapdeck("stat", &store.path(), &[]);
    assert_eq!(out.status.code(), Some(1));
    let line = said(&out);
    assert!(line.contains("is damaged at byte") && line.contains("tapdeck recover"), "{line}");
    assert!(String::from_utf8_lossy(&out.stdout).contains("packets/s"));
}

#[test]
fn nobody_has_to_read_to_the_end() {
    let store = Store::new(&mut SplitMix64(8), true);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["stat", "--json", "--dir"]).arg(store.path());
    let (read, write) = std::io::pipe().expect("a pipe");
    drop(read);
    let mut child = command.stdout(write).stderr(Stdio::piped()).spawn().expect("it runs");
    drop(command);
    let mut err = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("text");
    assert!(child.wait().expect("it was started").success(), "{err}");
    assert_eq!(err, "");
}

/// Two segments and a part of a third, while a recorder goes on.
#[test]
fn a_store_that_is_recorded_is_told() {
    const FRAMES: u32 = 13_000;
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!(
        "--hook tpacket --flush 100ms --segment-size 8MiB --ring-bytes 64MiB --dir {}",
        store.display()
    );
    let recorder = Recorder::start(&net, dir.path(), &flags);
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        for n in 0..FRAMES {
            sender.send(&frame([2, 0, 0, 0, 0, 2], 1400, n));
        }
    });
    wait_for("all packets on disk", || {
        let stat = json(&store, &[]);
        let seen = recorder.now()["seen"].as_u64().unwrap_or(0);
        // For a moment after each there is none.
        stat["segments_live"] == 1
            && seen >= u64::from(FRAMES)
            && number(&stat, "packets") + number(&stat, "lost") >= u64::from(FRAMES)
    });
    let stats = recorder.stop();
    let stat = json(&store, &[]);
    assert_eq!(number(&stat, "packets"), number(&stats, "captured"));
    assert_eq!(number(&stat, "segments"), number(&stats, "segments"));
    assert_eq!(number(&stat, "lost"), number(&stats, "dropped_ring"));
    assert_eq!(number(&stat, "segments_not_indexed"), 0);
    assert!(number(&stat, "index_bytes") > 0 && number(&stat, "segments") >= 3);
    let shares: Vec<(&Value, &Value)> = stat["top_hosts"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|top| (&top["host"], &top["share"]))
        .collect();
    let one = Value::from(1.0);
    assert_eq!(shares, [(&"10.213.0.1".into(), &one), (&"10.213.0.2".into(), &one)]);
    assert_eq!(stat["top_ports"], serde_json::json!([{ "port": 9, "share": 1.0 }]));
}
