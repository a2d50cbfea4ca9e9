//! Stores on a web server: what is asked of them is answered as it is of their directory, and a
//! server that misbehaves is told.

#[allow(dead_code)]
#[path = "../../tapdeck/tests/awkward/mod.rs"]
mod awkward;
mod rows;
mod site;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use awkward::store::Store;
use rustix::process::Signal;
use site::{Misbehaviour, Site};
use tapdeck_testkit::process::Running;
use tapdeck_testkit::{SplitMix64, Talking, wait_for};

/// A store, and the web server that gives it.
struct Bed {
    store: Store,
    site: Site,
}

impl Bed {
    fn new(seed: u64) -> Self {
        let store = Store::new(&mut SplitMix64(seed), true);
        let certificates = store.dir.path().join("certificates");
        fs::create_dir(&certificates).expect("a directory");
        let site = Site::start(&store.path(), &certificates);
        Self { store, site }
    }

    /// Makes whoever asks wait for a silent server for so many seconds.
    fn be_patient(&self, seconds: u32) {
        let config = self.store.dir.path().join("tapdeck");
        fs::create_dir_all(&config).expect("a directory");
        let config = config.join("remote.toml");
        fs::write(&config, format!("patience-s = {seconds}\n")).expect("a file");
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).expect("its own file");
    }

    fn path(&self) -> String {
        self.store.path().display().to_string()
    }

    fn tapdeck(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("it was built")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program("tapdeck"));
        command.args(words).env("XDG_CONFIG_HOME", self.store.dir.path());
        for name in std::env::vars_os().map(|(name, _)| name) {
            if name.to_string_lossy().starts_with("AWS_") {
                command.env_remove(name);
            }
        }
        command
    }

    fn here(&self, verb: &str, words: &[&str]) -> Output {
        self.tapdeck(&[&[verb, "--dir", &self.path()], words].concat())
    }

    fn there(&self, verb: &str, words: &[&str]) -> Output {
        let flags = self.site.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        self.tapdeck(&[&[verb, "--dir", &self.site.url], &flags[..], words].concat())
    }

    /// Makes flow tables of the store's segments, and returns them in their order.
    fn tables(&self) -> Vec<PathBuf> {
        let out = self.store.dir.path().join("flows");
        let made = self.here("flows", &["-o", out.to_str().expect("text")]);
        assert!(made.status.success(), "{}", said(&made));
        let entries = fs::read_dir(&out).expect("tables");
        let mut tables: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        tables.sort();
        assert!(tables.len() > 2, "{tables:?}");
        tables
    }

    fn fetch(&self, table: &Path, store: &str, more: &[&str]) -> Output {
        let table = table.to_str().expect("text");
        self.tapdeck(&[&["fetch", "--flows", table, "--store", store, "-w", "-"], more].concat())
    }

    /// Fetches the packets behind lines of JSON, here and there.
    fn fetch_lines(&self, lines: &str) -> [Output; 2] {
        let file = self.store.dir.path().join("rows.jsonl");
        fs::write(&file, lines).expect("room");
        let flags = self.site.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        [self.fetch(&file, &self.path(), &[]), self.fetch(&file, &self.site.url, &flags)]
    }

    /// The closed segments, in order.
    fn segments(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.store.path()).expect("a store");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "pcapng"));
        paths.sort();
        paths
    }
}

/// Returns what a program has written, with a place in the words of another.
fn written(out: &Output, place: &str) -> String {
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &said(out);
    text.replace(place, "PLACE")
}

/// Compares what is said of a store here and there.
fn same(bed: &Bed, verb: &str, words: &[&str]) {
    let (here, there) = (bed.here(verb, words), bed.there(verb, words));
    assert_eq!(here.status.code(), there.status.code(), "{verb} {words:?}: {}", said(&there));
    assert_eq!(written(&here, &bed.path()), written(&there, &bed.site.url), "{verb} {words:?}");
}

/// Returns a program that was built beside the one under test.
fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_tapdeck-remote")).with_file_name(name);
    assert!(path.exists(), "{} is not there: cargo build -p {name}", path.display());
    path
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn a_store_elsewhere_is_answered_as_its_directory_is() {
    let bed = Bed::new(4);
    assert!(bed.segments().len() > 2, "several segments");
    let check = || {
        for words in [
            &[][..],
            &["--count", "udp"],
            &["--json", "-c", "20", "udp port 53"],
            &["udp port 443 or vlan 42"],
            &["--explain", "--json", "-c", "1", "--no-trust-index", "nonsense ("],
            &["--after", "2020-01-01", "--before", "2020-01-02"],
            &["--no-trust-index", "--count"],
        ] {
            same(&bed, "query", words);
        }
        for words in [&[][..], &["--json"], &["--no-trust-index"], &["--top", "3"]] {
            same(&bed, "stat", words);
        }
        same(&bed, "verify", &[]);
        same(&bed, "verify", &["--json"]);
        let files = ["here.pcapng", "there.pcapng"].map(|name| bed.store.dir.path().join(name));
        let [here, there] = files.each_ref().map(|file| file.to_str().expect("text"));
        let codes = [bed.here("query", &["-w", here]), bed.there("query", &["-w", there])];
        assert_eq!(codes[0].status.code(), codes[1].status.code());
        assert_eq!(blocks(Path::new(here)), blocks(Path::new(there)));
    };
    check();
    let segments = bed.segments();
    // A segment without an index is read from end to end.
    fs::remove_file(segments[0].with_extension("index")).expect("an index");
    check();
    // A segment that is cut, one that is not there, and one that is damaged.
    let bytes = fs::read(&segments[0]).expect("a segment");
    fs::write(&segments[0], &bytes[..bytes.len() / 2]).expect("room");
    fs::remove_file(&segments[1]).expect("a segment");
    let mut bytes = fs::read(&segments[2]).expect("a segment");
    bytes[30_000..30_100].fill(0xaa);
    fs::write(&segments[2], &bytes).expect("room");
    assert_eq!(bed.there("query", &["--count"]).status.code(), Some(1));
    check();
}

/// Returns the bytes of a capture file behind its first block, which names the place.
fn blocks(file: &Path) -> Vec<u8> {
    let bytes = fs::read(file).expect("a file");
    assert!(bytes.len() > 100_000, "{} bytes", bytes.len());
    behind_header(&bytes).to_vec()
}

fn behind_header(bytes: &[u8]) -> &[u8] {
    let len = u32::from_ne_bytes(bytes[4..8].try_into().expect("four"));
    &bytes[len as usize..]
}

#[test]
fn a_server_that_misbehaves_is_told_and_not_believed() {
    let bed = Bed::new(8);
    let whole = bed.there("query", &["--count"]);
    assert!(whole.status.success(), "{}", said(&whole));
    for (how, what) in [
        (Misbehaviour::Stall, "it sent nothing for 2 s"),
        (Misbehaviour::Cut, "the answer broke off"),
        (Misbehaviour::Half, "it sends another range than was asked for"),
        (Misbehaviour::More, "longer than"),
        (Misbehaviour::Elsewhere, "it sends another range than was asked for"),
        (Misbehaviour::LongerFile, "it sends another range than was asked for"),
        (Misbehaviour::Whole, "it ignores ranges"),
        (Misbehaviour::Exchanged, "it was changed while it was read"),
        (Misbehaviour::Drip, "its answer took more than 20 s"),
    ] {
        bed.site.misbehave(".pcapng", how);
        let waits = matches!(how, Misbehaviour::Stall | Misbehaviour::Drip);
        bed.be_patient(if waits { 2 } else { 30 });
        let began = Instant::now();
        let words: &[&str] = match how {
            Misbehaviour::Exchanged => &["--count", "--no-trust-index"],
            _ => &["--count"],
        };
        let out = bed.there("query", words);
        let text = said(&out);
        assert_eq!(out.status.code(), Some(1), "{how:?}: {text}");
        assert!(out.stdout.is_empty() && text.contains(what), "{how:?}: {text}");
        assert!(began.elapsed() < Duration::from_secs(120), "{how:?}");
    }
    bed.site.misbehave(".pcapng", Misbehaviour::EndlessFile);
    for verb in ["query", "stat", "verify"] {
        let out = bed.there(verb, &[]);
        assert_eq!(out.status.code(), Some(1), "{verb}: {}", said(&out));
        let text = written(&out, &bed.site.url);
        assert!(text.contains("it says that an object is longer than"), "{verb}: {text}");
    }
    for how in [Misbehaviour::CutOnce, Misbehaviour::BusyOnce] {
        bed.site.misbehave(".pcapng", how);
        let again = bed.there("query", &["--count"]);
        assert_eq!(again.stdout, whole.stdout, "{how:?}: {}", said(&again));
        assert!(again.status.success());
    }
    bed.site.behave();
}

#[test]
fn rows_give_the_packets_that_lie_on_a_web_server() {
    let bed = Bed::new(4);
    let flags = bed.site.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let fetch = |table: &Path, store: &str, more: &[&str]| bed.fetch(table, store, more);
    let tables = bed.tables();
    for table in &tables {
        bed.site.take_asked("");
        let here = fetch(table, &bed.path(), &[]);
        let there = fetch(table, &bed.site.url, &flags);
        assert!(here.status.success() && there.status.success(), "{}", said(&there));
        let [here, there] = [&here, &there].map(|out| behind_header(&out.stdout));
        assert!(here.len() > 10_000 && here == there, "{}", table.display());
        // The head, the index, and all rows at once; a little more where parts were not foreseen.
        let asked = bed.site.take_asked("");
        assert!(asked <= 6, "{asked} requests for {}", table.display());
    }
    bed.site.misbehave(".pcapng", Misbehaviour::Cut);
    let cut = fetch(&tables[0], &bed.site.url, &flags);
    assert_eq!(cut.status.code(), Some(1));
    assert!(said(&cut).contains("the answer broke off"), "{}", said(&cut));
    bed.site.misbehave(".index", Misbehaviour::Whole);
    // Without a sound index what the rows say is enough.
    let bare = fetch(&tables[0], &bed.site.url, &flags);
    assert!(said(&bare).contains("the index of"), "{}", said(&bare));
    assert!(bare.status.success(), "{}", said(&bare));
}

#[test]
fn a_row_decides_neither_how_much_is_asked_for_nor_what_is_believed() {
    let bed = Bed::new(4);
    let tables = bed.tables();
    let row = rows::rows(&tables[0]).swap_remove(0);
    let leads_to = |offset: u64, span: u64| {
        let mut row = row.clone();
        row.insert("offset".into(), offset.into());
        row.insert("span".into(), span.into());
        row.insert("runs".into(), serde_json::Value::Null);
        rows::line(&row)
    };
    bed.site.take_asked("");
    let [here, there] = bed.fetch_lines(&leads_to(0, i64::MAX as u64));
    let asked = bed.site.take_asked(".pcapng");
    assert!(asked <= 20, "{asked} requests");
    assert_eq!(here.status.code(), there.status.code(), "{}", said(&there));
    assert!(behind_header(&here.stdout) == behind_header(&there.stdout));
    // What is told of an object where it has no bytes does not tell it from another.
    bed.site.misbehave(".pcapng", Misbehaviour::RefusesFirst);
    let [here, there] = bed.fetch_lines(&(rows::line(&row) + &leads_to(1 << 40, 100)));
    assert_eq!(here.status.code(), there.status.code(), "{}", said(&there));
    assert!(here.stdout.len() > 100 && behind_header(&here.stdout) == behind_header(&there.stdout));
}

/// Returns the processes that one has started and that have not ended.
fn children(pid: u32) -> Vec<u32> {
    let stats = fs::read_dir("/proc").expect("processes").flatten();
    let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let child = |stat: String| {
        let (head, rest) = stat.rsplit_once(") ")?;
        let words: Vec<&str> = rest.split(' ').collect();
        let is_child = words[0] != "Z" && words[1] == pid.to_string();
        is_child.then(|| head.split(' ').next()?.parse().ok())?
    };
    stats.filter_map(child).collect()
}

fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

#[test]
fn whoever_reads_elsewhere_ends_with_whoever_asks() {
    let bed = Bed::new(8);
    bed.site.misbehave(".pcapng", Misbehaviour::Stall);
    bed.be_patient(3600);
    let flags = bed.site.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut query =
        bed.command(&[&["query", "--count", "--dir", &bed.site.url][..], &flags].concat());
    let mut query = Running(query.spawn().expect("it was built"));
    wait_for("a question", || bed.site.was_asked(".pcapng"));
    let readers = children(query.0.id());
    assert_eq!(readers.len(), 1, "{readers:?}");
    query.signal(Signal::KILL);
    query.wait();
    wait_for("the end of who reads", || has_ended(readers[0]));
}

#[test]
fn a_signal_ends_a_fetch_that_waits_for_a_silent_server() {
    let bed = Bed::new(4);
    let tables = bed.tables();
    bed.site.misbehave(".pcapng", Misbehaviour::Stall);
    bed.be_patient(3600);
    let flags = bed.site.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let table = tables[0].to_str().expect("text");
    let words = ["fetch", "--flows", table, "--store", &bed.site.url, "-w", "-"];
    let mut fetch = bed.command(&[&words, &flags[..]].concat());
    let mut fetch = Talking::start(fetch.stdout(Stdio::null()));
    wait_for("a question", || bed.site.was_asked(".pcapng"));
    fetch.process.signal(Signal::INT);
    let (status, said) = fetch.end();
    assert!(status.success(), "{said:?}");
    assert_eq!(said, ["tapdeck: stopped by a signal: 0 packets"]);
}

#[test]
fn what_cannot_be_asked_is_said() {
    let bed = Bed::new(9);
    let stranger = bed.tapdeck(&["query", "--dir", &bed.site.url]);
    assert_eq!(stranger.status.code(), Some(1));
    assert!(said(&stranger).contains("ertificate"), "{}", said(&stranger));
    for (words, code, what) in [
        (&["query", "--dir", "http://192.0.2.1/tape/"][..], 2, "without TLS"),
        (&["query", "--dir", "https://user@example.org/"], 2, "write s3://BUCKET"),
        (&["query", "--dir", "s3://bucket/prefix"], 2, "AWS_ACCESS_KEY_ID"),
        (&["query", "--dir", &bed.site.url, "--follow"], 2, "--follow is for files"),
        (&["stat", "--dir", "/", "--ca", "x"], 2, "--ca is for stores that are URLs"),
        (&["stat", "--dir", &bed.site.url, "--ca", "/nowhere"], 1, "/nowhere"),
    ] {
        let out = bed.tapdeck(words);
        assert_eq!(out.status.code(), Some(code), "{words:?}: {}", said(&out));
        assert!(said(&out).contains(what), "{words:?}: {}", said(&out));
    }
    for name in ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"] {
        let mut query = bed.command(&["query", "--dir", "s3://bucket/prefix"]);
        query.envs([("AWS_SKIP_SIGNATURE", "true"), (name, "http://192.0.2.1:9")]);
        let out = query.output().expect("it was built");
        assert_eq!(out.status.code(), Some(2), "{name}: {}", said(&out));
        assert!(said(&out).contains("without TLS"), "{name}: {}", said(&out));
    }
    let nowhere = bed.site.url.replace("/tape/", "/tape/nowhere/");
    let flags = bed.site.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let out = bed.tapdeck(&[&["verify", "--dir", &nowhere][..], &flags].concat());
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    let mut relay = Command::new(program("tapdeck-remote"));
    let out = relay.args(["relay", &bed.site.url]).output().expect("it was built");
    assert_eq!(out.status.code(), Some(2), "{}", said(&out));
}
