//! `tapdeck watch-alerts`: alerts become pins, while their file is rotated and after a kill.

#[path = "../../evidence/tests/common/mod.rs"]
mod common;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{SECOND, made, recorders, segment};
use serde_json::Value;
use tapdeck_evidence::Time;
use tapdeck_testkit::{Talking, wait_for};

const RULES: &str = "[[rule]]\nname = \"all\"\nbefore = \"20s\"\nafter = \"10s\"\n";

/// A store in which somebody recorded a packet a second to each of two ports until now, and a file
/// for alerts of those.
struct Case {
    dir: tempfile::TempDir,
    now_ns: i64,
}

impl Case {
    fn new() -> Self {
        let case = Self { dir: tempfile::tempdir().expect("a directory"), now_ns: Time::now().0 };
        fs::create_dir(case.path("store")).expect("a directory");
        let begin_ns = case.now_ns - 100 * SECOND;
        let packets: Vec<_> =
            (0..200).map(|i| made(begin_ns + i / 2 * SECOND, 53 + (i % 2) as u16)).collect();
        segment(&case.path("store"), 1, (begin_ns, case.now_ns), &packets);
        recorders(&case.path("store"), &[1]);
        fs::write(case.path("rules"), RULES).expect("a file");
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.arg("watch-alerts").arg("--dir").arg(self.path("store"));
        command.arg("--eve").arg(self.path("eve.json")).arg("--rules").arg(self.path("rules"));
        command
    }

    /// Writes an alert of so many seconds ago about a packet to a port.
    fn alert(&self, name: &str, ago_s: i64, port: u16) {
        let time = Time(self.now_ns - ago_s * SECOND);
        let line = format!(
            r#"{{"timestamp":"{time}","event_type":"alert","src_ip":"10.213.0.1","src_port":4000,"dest_ip":"10.213.0.2","dest_port":{port},"proto":"UDP","alert":{{"signature_id":7,"signature":"x","severity":1}}}}"#
        );
        let mut file = OpenOptions::new().create(true).append(true).open(self.path(name)).unwrap();
        writeln!(file, "{line}").expect("room");
    }

    fn tapdeck(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        let store = self.path("store");
        command.args(&words[..1]).arg("--dir").arg(&store).args(&words[1..]);
        command.output().expect("it runs")
    }

    /// Returns how many pins there are, how many are not done, and how many packets they have.
    fn pins(&self) -> (usize, usize, u64) {
        let out = String::from_utf8(self.tapdeck(&["pins", "--json"]).stdout).expect("JSON");
        let (mut all, mut open, mut packets) = (0, 0, 0);
        for line in out.lines() {
            let pin: Value = serde_json::from_str(line).expect("JSON");
            all += 1;
            open += usize::from(pin["state"] != "done");
            packets += pin["packets"].as_u64().expect("a number");
        }
        (all, open, packets)
    }

    /// Waits until all pins are done and have so many packets, each once.
    fn wait_for_packets(&self, packets: u64) {
        wait_for("packets to be pinned", || {
            let (all, open, now) = self.pins();
            assert!(now <= packets, "{now} packets in {all} pins");
            open == 0 && now == packets
        });
    }
}

fn addresses(store: &Path) -> Vec<String> {
    let out = Command::new(env!("CARGO_BIN_EXE_tapdeck"))
        .args(["query", "--json", "-c", "1", "-r"])
        .arg(store)
        .output()
        .expect("it runs");
    let packet: Value = serde_json::from_slice(&out.stdout).expect("a packet");
    ["src", "dst"].map(|key| packet[key].as_str().unwrap().to_owned()).to_vec()
}

#[test]
fn alerts_pin_the_packets_of_their_flows_once() {
    let case = Case::new();
    assert_eq!(addresses(&case.path("store")), ["10.213.0.1", "10.213.0.2"], "as alerts have them");
    case.alert("eve.json", 90, 53);
    let mut watch = Talking::start(&mut case.command());
    watch.wait_to_say("following");
    // It begins at the end of what nobody has read before.
    for ago_s in [60, 59, 58] {
        case.alert("eve.json", ago_s, 53);
    }
    case.wait_for_packets(32);
    // The file is rotated, and another flow has an alert in either file.
    fs::rename(case.path("eve.json"), case.path("eve.json.1")).unwrap();
    case.alert("eve.json.1", 50, 54);
    case.alert("eve.json", 49, 54);
    case.wait_for_packets(32 + 31);
    watch.process.0.kill().expect("it runs");
    watch.end();

    // What came while it was away is read by the next, which makes no pin twice.
    case.alert("eve.json", 30, 53);
    let mut watch = Talking::start(&mut case.command());
    watch.wait_to_say("following");
    case.wait_for_packets(32 + 31 + 28);
    assert!(watch.process.interrupt().success());
}

#[test]
fn a_burst_is_read_to_its_end_and_told() {
    let case = Case::new();
    case.alert("eve.json", 60, 53);
    let line = fs::read_to_string(case.path("eve.json")).unwrap();
    let mut text = line.repeat(10_000);
    text.push_str("{\"event_type\":\"dns\"}\nno event\n");
    fs::write(case.path("eve.json"), text).unwrap();
    let out = case.command().args(["--from-start", "--until-end"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    assert!(said.contains("10,000 alerts: 1 pin, 9,999 of their flows"), "{said}");
    assert!(said.contains("no events: 1 line"), "{said}");
    assert_eq!(case.pins().0, 1);
    assert!(case.tapdeck(&["pins", "--resume"]).status.success());
    assert_eq!(case.pins(), (1, 0, 30));

    fs::write(case.path("rules"), "[[rule]]\nbefore = \"1m\"\n").unwrap();
    let refused = case.command().output().expect("it runs");
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
}
