//! Messages are lines for people; for machines they are objects of JSON, or entries of the journal
//! with fields.

mod testbed;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_testkit::{Net, Talking};

const TAPDECK: &str = env!("CARGO_BIN_EXE_tapdeck");

#[test]
fn every_message_of_a_recorder_is_an_object_of_json() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let mut command = net.b.command(TAPDECK);
    command.args(["record", "--log", "json", "-i", "vb", "--dir"]).arg(&store);
    let mut recorder = Talking::start(&mut command);
    recorder.wait_to_say("recording vb");
    net.b.run("ip link del vb");
    recorder.wait_to_say("vb is gone");
    recorder.process.signal(Signal::INT);
    let (status, said) = recorder.end();
    assert!(status.success(), "{said:#?}");
    let mut levels = Vec::new();
    for line in said {
        let message: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let of = |key: &str| message[key].as_str().unwrap_or_else(|| panic!("{key}: {line}"));
        assert_eq!((of("command"), of("interface")), ("record", "vb"));
        assert_eq!(of("store"), store.to_str().expect("it is UTF-8"));
        assert!(of("timestamp").ends_with('Z') && !of("message").is_empty(), "{line}");
        if of("message").contains("vb is gone") {
            assert_eq!(of("level"), "WARN");
        }
        levels.push(of("level").to_owned());
    }
    assert!(levels.iter().any(|level| level == "INFO"), "{said:#?}");
}

#[test]
fn a_failure_is_an_error_in_json_and_a_line_else() {
    let failure = |flags: &[&str]| {
        let mut command = Command::new(TAPDECK);
        let out = command.args(flags).args(["query", "--dir", "/nowhere"]).output();
        let out = out.expect("the program was built");
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        String::from_utf8(out.stderr).expect("it is text")
    };
    assert_eq!(failure(&[]), "tapdeck: /nowhere does not exist\n");
    let json: Value = serde_json::from_str(&failure(&["--log", "json"])).expect("JSON");
    let of = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
    assert_eq!((of("level"), of("message")), ("ERROR".into(), "/nowhere does not exist".into()));
    assert_eq!((of("command"), of("store")), ("query".into(), "/nowhere".into()));
}

#[test]
fn under_a_service_manager_messages_go_to_the_journal_with_fields() {
    let dir = tempfile::tempdir().expect("a directory");
    let journal = UnixDatagram::bind(dir.path().join("socket")).expect("a journal");
    journal.set_read_timeout(Some(Duration::from_secs(60))).expect("it can wait");
    let stderr = File::create(dir.path().join("stderr")).expect("a file");
    let meta = stderr.metadata().expect("it is open");
    // The journal's place is fixed, so the program sees another /run.
    let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
                  mount --bind \"$1\" /run/systemd/journal && exec \"$2\" query --dir /nowhere";
    let status = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(dir.path())
        .arg(TAPDECK)
        .env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()))
        .stderr(stderr)
        .status();
    assert_eq!(status.expect("unshare is there").code(), Some(1));
    let mut entry = vec![0; 64 << 10];
    let entry = loop {
        let n = journal.recv(&mut entry).expect("an entry");
        // The first may be empty: a trial whether somebody listens.
        if n > 0 {
            break fields(&entry[..n]);
        }
    };
    let said = std::fs::read_to_string(dir.path().join("stderr")).expect("it is there");
    assert_eq!(said, "", "nothing is told twice");
    for (field, value) in [
        ("PRIORITY", "3"),
        ("SYSLOG_IDENTIFIER", "tapdeck"),
        ("TAPDECK_COMMAND", "query"),
        ("TAPDECK_STORE", "/nowhere"),
        ("MESSAGE", "/nowhere does not exist"),
    ] {
        assert_eq!(entry.get(field).map(String::as_str), Some(value), "{entry:?}");
    }
}

/// Reads an entry in the journal's own protocol: NAME=VALUE, or the name, a newline, the value's
/// length in eight bytes, and the value.
fn fields(mut entry: &[u8]) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut fields = BTreeMap::new();
    while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
        let (line, rest) = (&entry[..end], &entry[end + 1..]);
        if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
            fields.insert(text(&line[..equals]), text(&line[equals + 1..]));
            entry = rest;
            continue;
        }
        let (length, rest) = rest.split_first_chunk::<8>().expect("a length");
        let (value, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
        fields.insert(text(line), text(value));
        entry = &rest[1..];
    }
    fields
}
