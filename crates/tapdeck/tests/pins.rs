//! `tapdeck pin`, `pins` and `unpin`: packets that outlive retention, a kill, and the store.

#[path = "../../evidence/tests/common/mod.rs"]
mod common;
mod testbed;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{SECOND, made, packets_of, recorders, segment};
use serde_json::Value;
use tapdeck_evidence::{Most, Order, PinStore, Question, Time, Wish};
use tapdeck_testkit::frame::UdpFrame;
use tapdeck_testkit::{Net, Sender, Talking, wait_for};
use testbed::recorder::Recorder;

fn tapdeck(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tapdeck")).args(words).output().expect("it runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Returns what `pins --json` tells.
fn pins(store: &Path) -> Vec<Value> {
    let out = tapdeck(&["pins", "--dir", text(store), "--json"]);
    let lines = String::from_utf8(out.stdout).expect("JSON");
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn directory_of(store: &Path, number: u64) -> PathBuf {
    let name = format!("{}.evidence/pin-{number:08}/packets", store.display());
    PathBuf::from(name)
}

/// A store in which somebody recorded a packet a second until now.
fn store() -> (tempfile::TempDir, PathBuf, i64) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    fs::create_dir(&store).expect("a directory");
    let now_ns = Time::now().0;
    let begin_ns = now_ns - 100 * SECOND;
    let packets: Vec<_> = (0..100).map(|i| made(begin_ns + i * SECOND, 53)).collect();
    segment(&store, 1, (begin_ns, now_ns), &packets);
    recorders(&store, &[1]);
    (dir, store, now_ns)
}

#[test]
fn pins_are_made_listed_exported_and_removed() {
    let (dir, store, _) = store();
    let at = ["--after", "-60s", "--before", "-30s"];
    let pin = |more: &[&str]| {
        let words = [&["pin", "--dir", text(&store), "--reason", "case 7"][..], &at, more].concat();
        tapdeck(&words)
    };
    let made = pin(&["port", "53"]);
    assert!(made.status.success(), "{}", said(&made));
    assert!(said(&made).contains("30 packets"), "{}", said(&made));
    let [one] = &pins(&store)[..] else { panic!("one pin") };
    assert_eq!((&one["state"], &one["packets"]), (&"done".into(), &30.into()));
    assert_eq!(one["account"]["complete"], true);
    let listed = tapdeck(&["pins", "--dir", text(&store)]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("case 7") && listed.contains("10.0 GiB"), "{listed}");
    // What is pinned is a directory of capture files to `query`.
    let asked = tapdeck(&["query", "-r", text(&directory_of(&store, 1)), "--count"]);
    assert_eq!(String::from_utf8_lossy(&asked.stdout), "30\n", "{}", said(&asked));

    let refused = pin(&["no", "such", "word"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    let refused = pin(&["port", "53", "--pin-bytes", "64KiB"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("is full"), "{}", said(&refused));
    assert_eq!(pins(&store).len(), 1, "nothing was evicted");

    let key = dir.path().join("key");
    assert!(tapdeck(&["evidence", "key", "new", "-o", text(&key)]).status.success());
    fs::remove_dir_all(&store).expect("it goes");
    let bundle = dir.path().join("bundle");
    let words = ["evidence", "export", "--dir", text(&store), "--pin", "1", "--key", text(&key)];
    let exported = tapdeck(&[&words[..], &["-o", text(&bundle)]].concat());
    assert!(exported.status.success(), "{}", said(&exported));
    let key = dir.path().join("key.pub");
    let checked = tapdeck(&["evidence", "check", text(&bundle), "--key", text(&key)]);
    let page = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(page.contains("case 7") && page.contains("packets       30\n"), "{page}");

    fs::create_dir(&store).expect("a directory");
    assert!(tapdeck(&["unpin", "--dir", text(&store), "1"]).status.success());
    assert!(pins(&store).is_empty());
    let gone = tapdeck(&["unpin", "--dir", text(&store), "1"]);
    assert_eq!(gone.status.code(), Some(1), "{}", said(&gone));
}

#[test]
fn a_pin_that_was_killed_goes_on() {
    let (_dir, store, now_ns) = store();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["pin", "--dir", text(&store), "--reason", "case 8", "port", "53"]);
    let before = Time(now_ns + 8 * SECOND).to_string();
    command.args(["--after", "-50s", "--before", &before]);
    let mut pin = Talking::start(&mut command);
    pin.wait_to_say("goes on until");
    wait_for("the packets that are there to be copied", || {
        pins(&store).first().is_some_and(|pin| pin["packets"].as_u64() > Some(40))
    });
    pin.process.0.kill().expect("it runs");
    pin.end();
    assert_eq!(pins(&store)[0]["state"], "open");
    // Somebody goes on recording, and somebody with the pin.
    let packets: Vec<_> = (0..8).map(|i| made(now_ns + i * SECOND, 53)).collect();
    segment(&store, 2, (now_ns, now_ns + 30 * SECOND), &packets);
    let resumed = tapdeck(&["pins", "--dir", text(&store), "--resume"]);
    assert!(resumed.status.success(), "{}", said(&resumed));
    let pin = &pins(&store)[0];
    assert_eq!(pin["state"], "done");
    let files = fs::read_dir(directory_of(&store, 1)).expect("it is there");
    let mut times: Vec<i64> = files
        .flat_map(|file| packets_of(&file.expect("a file").path()))
        .map(|(time_ns, _)| time_ns)
        .collect();
    times.sort_unstable();
    let first = times[0];
    let expected: Vec<i64> = (0..times.len() as i64).map(|i| first + i * SECOND).collect();
    assert_eq!(times, expected, "each second's packet once");
    assert_eq!(times.last(), Some(&(now_ns + 7 * SECOND)));
    assert!(times.len() >= 57, "{}", times.len());
}

#[test]
fn pins_of_a_gateway_s_users_are_left_to_it_and_one_that_cannot_be_read_is_told() {
    let (_dir, store, now_ns) = store();
    let made = PinStore::make(&PinStore::beside(&store), None).expect("a directory");
    for by in [None, Some("alice"), None] {
        let wish = Wish {
            store: store.clone(),
            question: Question::default(),
            after: Time(now_ns - 60 * SECOND),
            before: Time(now_ns - 30 * SECOND),
            until: None,
            reason: "case 9".into(),
            rule: None,
            order: by.map(|by| Order { by: by.into(), most: Most::ALL }),
        };
        made.add(wish).expect("room");
    }
    let resumed = tapdeck(&["pins", "--dir", text(&store), "--resume"]);
    assert!(resumed.status.success(), "{}", said(&resumed));
    let states: Vec<Value> = pins(&store).iter().map(|pin| pin["state"].clone()).collect();
    assert_eq!(states, ["done", "open", "done"]);

    fs::write(made.place(1).join("pin.json"), "{").expect("room");
    let listed = tapdeck(&["pins", "--dir", text(&store)]);
    assert_eq!(listed.status.code(), Some(1));
    assert!(said(&listed).contains("pin 1: cannot read "), "{}", said(&listed));
    assert_eq!(pins(&store).len(), 2);
}

#[test]
fn what_is_pinned_of_a_recording_outlives_its_retention() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!(
        "--hook tcx --flush 100ms --segment-size 8MiB --keep-bytes 32MiB --dir {}",
        store.display()
    );
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let send = |numbers: std::ops::Range<u32>, port: u16, len: usize| {
        let frame = |number| {
            UdpFrame { to: [2; 6], len, number, ports: [4000, port], ..UdpFrame::default() }.bytes()
        };
        let frames: Vec<_> = numbers.map(frame).collect();
        net.a.inside(|| Sender::on("va").send_all(&frames));
    };
    let count = |path: &Path| -> u64 {
        let out = tapdeck(&["query", "-r", text(path), "--count", "udp port 53"]);
        String::from_utf8_lossy(&out.stdout).trim().parse().unwrap_or(0)
    };
    send(0..500, 53, 200);
    wait_for("the packets to be on disk", || count(&store) == 500);
    // It comes from a recorder at work: the span ends now, and goes on until it is on disk.
    let words = ["--after", "-10m", "--before", "now", "--reason", "case 9", "udp", "port", "53"];
    let pinned = tapdeck(&[&["pin", "--dir", text(&store)][..], &words].concat());
    assert!(pinned.status.success(), "{}", said(&pinned));
    assert_eq!(pins(&store)[0]["packets"], 500);
    wait_for("retention to take the packets", || {
        send(0..5000, 99, 1400);
        count(&store) == 0
    });
    recorder.stop();
    assert_eq!(count(&directory_of(&store, 1)), 500, "they are pinned");
}
