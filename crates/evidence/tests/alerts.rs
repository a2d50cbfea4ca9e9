//! Alerts: which pins they make, and that none is missed while their file is rotated.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use tapdeck_evidence::alerts::{Alert, Decision, Follow, Merger, Position, Rules};
use tapdeck_evidence::{Pin, PinStore, Time, Wish};

const SECOND: i64 = 1_000_000_000;
const T0: i64 = 1_767_323_045 * SECOND;

fn rules(text: &str) -> Rules {
    Rules::parse(text).unwrap_or_else(|why| panic!("{why}"))
}

/// A line of Suricata's for a flow from a port, at so many seconds.
fn line(second: i64, port: u16, severity: u64) -> String {
    let time = Time(T0 + second * SECOND);
    format!(
        r#"{{"timestamp":"{time}","event_type":"alert","src_ip":"10.0.0.1","src_port":{port},"dest_ip":"10.0.0.2","dest_port":80,"proto":"TCP","alert":{{"signature_id":7,"signature":"ET MALWARE y","category":"trojan","severity":{severity}}}}}"#
    )
}

fn alert(second: i64, port: u16) -> Alert {
    Alert::parse(line(second, port, 1).as_bytes()).expect("an event").expect("an alert")
}

/// A merger, the pins that it makes, and the time.
struct Case {
    dir: tempfile::TempDir,
    pins: PinStore,
    merger: Merger,
    now: Time,
}

impl Case {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let pins = PinStore::make(&dir.path().join("pins"), None).expect("a directory");
        Self { dir, pins, merger: Merger::new(rules(text), &[], Time(T0)), now: Time(T0) }
    }

    fn take(&mut self, alert: &Alert) -> Decision {
        let decision = self.merger.decide(alert, self.dir.path(), self.now);
        if let Decision::Pin(wish) = &decision {
            let pin = self.pins.add(Wish::clone(wish)).expect("room");
            self.merger.made(&pin, self.now);
        }
        for (number, before) in self.merger.take_longer() {
            self.pins.extend(number, before).expect("it is there");
        }
        decision
    }

    /// Returns the spans of all pins, in seconds.
    fn spans(&self) -> Vec<(i64, i64)> {
        let span = |pin: &Pin| ((pin.after.0 - T0) / SECOND, (pin.before.0 - T0) / SECOND);
        self.pins().iter().map(span).collect()
    }

    fn pins(&self) -> Vec<Pin> {
        let pins = self.pins.list().expect("pins").into_iter();
        pins.map(|(_, pin)| pin.expect("a pin")).collect()
    }
}

const PLAIN: &str = "[[rule]]\nname = \"all\"\n";

#[test]
fn a_burst_of_ten_thousand_alerts_is_a_pin_for_each_flow() {
    let mut case = Case::new(PLAIN);
    let merged = (0..10_000)
        .filter(|i| case.take(&alert(i / 1000, 1000 + (i % 5) as u16)) == Decision::Merged)
        .count();
    assert_eq!(merged, 9995);
    assert_eq!(case.spans(), vec![(-120, 609); 5], "two minutes before to ten after");
    let pin = case.pins.pin(1).expect("the first");
    assert!(pin.question.inner && pin.question.filter.contains("port 80 and port 1000"));
    assert!(pin.reason.contains("all: 7 ET MALWARE y"), "{}", pin.reason);
    // The next process knows which flows have a pin.
    case.merger = Merger::new(rules(PLAIN), &case.pins(), Time(T0));
    assert_eq!(case.take(&alert(5, 1001)), Decision::Merged);
    assert_eq!(case.spans().len(), 5);
}

#[test]
fn a_flow_that_goes_on_has_pins_one_behind_the_other() {
    let mut case = Case::new(&format!("[limits]\nlongest = \"30m\"\n{PLAIN}"));
    for minute in 0..60 {
        case.now = Time(T0 + minute * 60 * SECOND);
        case.take(&alert(minute * 60, 1000));
    }
    let spans = case.spans();
    assert_eq!(spans[0].0, -120);
    assert!(spans.windows(2).all(|pair| pair[0].1 == pair[1].0), "{spans:?}");
    assert!(spans.iter().all(|(after, before)| before - after <= 1800), "{spans:?}");
    assert_eq!(spans.last().map(|span| span.1), Some(59 * 60 + 600));
    // Behind a break there is a pin of its own.
    case.now = Time(T0 + 9000 * SECOND);
    case.take(&alert(9000, 1000));
    assert_eq!(case.spans().last(), Some(&(8880, 9600)));
}

#[test]
fn there_are_no_more_pins_than_the_rules_allow() {
    let mut case = Case::new(&format!("[limits]\nopen-pins = 3\npins-per-hour = 5\n{PLAIN}"));
    let mut at = |second: i64, port: u16| {
        case.now = Time(T0 + second * SECOND);
        case.take(&alert(second, port))
    };
    let pinned = |decision| matches!(decision, Decision::Pin(_));
    assert!((0..3).all(|i| pinned(at(i, 1000 + i as u16))));
    assert_eq!(at(3, 1003), Decision::Limited, "three are under way");
    assert_eq!(at(3, 1000), Decision::Merged, "of a flow that has one");
    assert!(pinned(at(700, 1004)) && pinned(at(700, 1005)), "they are done");
    assert_eq!(at(1400, 1006), Decision::Limited, "five in an hour");
    assert!(pinned(at(3601, 1007)));
}

#[test]
fn the_first_rule_that_fits_counts() {
    let mut case = Case::new(
        r#"
        [[rule]]
        name = "known"
        signature-ids = [7]
        severity = 1
        signatures = ["no such", "MALWARE"]
        categories = ["trojan"]
        pin = "hosts"
        before = "10s"
        after = "1m"
        keep = "1d"
        [[rule]]
        name = "noise"
        signature-ids = [7]
        pin = "nothing"
        [[rule]]
        name = "rest"
        severity = 3
        "#,
    );
    let parse = |text: &str| Alert::parse(text.as_bytes()).unwrap().unwrap();
    assert!(matches!(case.take(&alert(0, 1000)), Decision::Pin(_)));
    let pin = case.pins.pin(1).unwrap();
    assert_eq!(case.spans(), [(-10, 60)]);
    assert_eq!(pin.until, Some(Time(T0 + 86_460 * SECOND)));
    assert_eq!(pin.rule.as_deref(), Some("known"));
    assert!(!pin.question.filter.contains("port"), "{}", pin.question.filter);
    assert_eq!(case.take(&parse(&line(0, 1000, 2))), Decision::Ignored);
    let other = line(0, 1000, 2).replace("\"signature_id\":7", "\"signature_id\":8");
    assert!(matches!(case.take(&parse(&other)), Decision::Pin(_)));
    assert_eq!(
        case.take(&parse(&other.replace("\"severity\":2", "\"severity\":4"))),
        Decision::Ignored
    );
    for wrong in [
        "",
        "[[rule]]\n",
        "[[rule]]\nname = \"a\"\nbefor = \"2m\"",
        "[[rule]]\nname = \"a\"\nbefore = \"2\"",
    ] {
        assert!(Rules::parse(wrong).is_err(), "{wrong:?}");
    }
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file");
    file.write_all(text.as_bytes()).expect("room");
}

/// Reads what there is, to the end.
fn read(follow: &mut Follow) -> Vec<String> {
    let mut lines = Vec::new();
    while follow
        .read(|line| lines.push(String::from_utf8_lossy(line).into_owned()))
        .expect("it can be read")
    {}
    lines
}

#[test]
fn every_line_is_read_once_over_halves_rotation_and_cuts() {
    let dir = tempfile::tempdir().unwrap();
    let [path, old, older] = ["eve.json", "eve.json.1", "eve.json.2"].map(|n| dir.path().join(n));
    let mut follow = Follow::new(&path, None, false).unwrap();
    assert!(read(&mut follow).is_empty() && follow.position().is_none(), "there is none yet");
    append(&path, "one\ntw");
    assert_eq!(read(&mut follow), ["one"]);
    append(&path, "o\n\nthree\n");
    assert_eq!(read(&mut follow), ["two", "", "three"]);
    // It gets another name, and the writer goes on in it for a while.
    append(&path, "fo");
    assert!(read(&mut follow).is_empty());
    fs::rename(&path, &old).unwrap();
    append(&path, "six\n");
    assert_eq!(read(&mut follow), ["six"]);
    append(&old, "ur\nfive\n");
    append(&path, "seven\n");
    assert_eq!(read(&mut follow), ["four", "five", "seven"]);

    // Another process goes on, and finds the file under another name.
    append(&path, "eight\nni");
    let reached = follow.position();
    let mut follow = Follow::new(&path, reached, false).unwrap();
    assert_eq!(read(&mut follow), ["eight"]);
    let reached: Position = follow.position().unwrap();
    append(&path, "ne\n");
    fs::rename(&old, &older).unwrap();
    fs::rename(&path, &old).unwrap();
    append(&path, "ten\n");
    let mut follow = Follow::new(&path, Some(reached), false).unwrap();
    assert_eq!(read(&mut follow), ["nine", "ten"]);

    // It is cut, and written anew.
    OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    append(&path, "11\n");
    assert_eq!(read(&mut follow), ["11"]);

    // A line beyond all measure is left out, and what follows is read.
    append(&path, &"x".repeat(3 << 20));
    assert!(read(&mut follow).is_empty());
    append(&path, "x\n12\n");
    assert_eq!(read(&mut follow), ["12"]);
    assert_eq!(follow.skipped, 1);

    // Who comes for the first time begins at the end, or at the beginning where that is wanted.
    assert!(read(&mut Follow::new(&path, None, false).unwrap()).is_empty());
    assert_eq!(read(&mut Follow::new(&path, None, true).unwrap()), ["11", "12"]);
}
