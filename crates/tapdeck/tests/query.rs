//! `tapdeck query`: its answers are those of `tcpdump -r` over the whole store; on stores that are
//! recorded into, copied, deleted from and somebody else's.

mod testbed;

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tapdeck_packet::link::LinkType;
use tapdeck_packet::pcapng::{self, InterfaceDescription};
use tapdeck_packet::trace;
use tapdeck_store::SegmentName;
use tapdeck_testkit::process::copy_program;
use tapdeck_testkit::{Net, Running, Sender, wait_for};
use testbed::recorder::{Contents, Recorder, frame, number, segments};

const SECOND: i64 = 1_000_000_000;
const T0: i64 = 1_767_323_045 * SECOND;

fn query(store: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg("query").arg("--dir").arg(store).args(args).stdin(Stdio::null());
    command
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Runs it to its end; it must succeed and have nothing to say.
fn answer(store: &Path, args: &[&str]) -> Vec<u8> {
    let out = query(store, args).output().expect("it runs");
    assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {}", said(&out));
    out.stdout
}

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().expect("make setup installs it");
    assert!(out.status.success(), "{program} {args:?}: {}", said(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Time, length on the wire and frame.
type Plain = (i64, u32, Vec<u8>);

fn plain(data: &[u8]) -> Vec<Plain> {
    let mut reader = trace::Reader::new(data).expect("a capture file");
    let mut packets = Vec::new();
    while let Some(p) = reader.next_packet().expect("whole") {
        packets.push((p.time_ns.expect("a time"), p.original_len, p.frame.to_vec()));
    }
    packets
}

/// In time order. Where times are equal, tools differ.
fn canonical(mut packets: Vec<Plain>) -> Vec<Plain> {
    assert!(packets.is_sorted_by_key(|p| p.0), "in time order");
    packets.sort();
    packets
}

/// A store of two interfaces with several rings each, cut packets, several segments, and traffic of
/// many kinds.
struct Recorded {
    dir: tempfile::TempDir,
    captured: u64,
}

impl Recorded {
    fn new() -> Self {
        let net = Net::new();
        net.plug_second();
        let dir = tempfile::tempdir().expect("a directory");
        let recorded = Self { dir, captured: 0 };
        let flags = format!(
            "--hook tcx --snaplen 200 --block-bytes 64KiB --ring-bytes 16MiB --segment-time 200ms --flush 100ms --dir {}",
            text(&recorded.store())
        );
        let recorder = Recorder::start_on(&net, "vb,vd", recorded.dir.path(), &flags);
        let rounds = [
            [
                "-i va --threads 2 --cpu 0,1 --flows 8 --proto udp,tcp,icmp --size 60-1500 --count 4000",
                "-i vc --threads 2 --cpu 1,0 --flows 6 --proto udp,tcp --size 64-900 --vlan 42 --count 4000",
            ],
            [
                "-i va,vc --flows 8 --proto udp,tcp,icmp --ipv6 --size imix --count 3000",
                "-i vc --flows 4 --proto tcp --vlan 7,42 --size 100-300 --count 2000",
            ],
            [
                "-i va --flows 3 --tunnel vxlan --size 200-1500 --count 1000",
                "-i vc --flows 5 --proto icmp,udp --dport 53 --size 70 --count 1000",
            ],
        ];
        for round in rounds {
            let senders = round.map(|args| {
                let mut command = net.a.command(env!("CARGO_BIN_EXE_tapdeck"));
                command.args(["gen", "--backend", "txring", "--rate", "5kpps"]);
                command.args(args.split_whitespace());
                command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs")
            });
            for mut sender in senders {
                assert!(sender.wait().expect("it was started").success(), "{round:?}");
            }
        }
        recorder.wait_for_captured(15_000);
        let stats = recorder.stop();
        let captured = number(&stats, "captured");
        assert_eq!((captured, number(&stats, "seen")), (15_000, 15_000));
        assert!(number(&stats, "segments") >= 3, "{stats}");
        Self { captured, ..recorded }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn path(&self, name: &str) -> String {
        text(&self.dir.path().join(name)).to_owned()
    }

    /// All packets in one file, in time order, by other programs.
    fn sorted(&self) -> String {
        let (all, sorted) = (self.path("all.pcapng"), self.path("sorted.pcapng"));
        let files = segments(&self.store());
        let mut args = vec!["-a", "-w", &all];
        args.extend(files.iter().map(|f| text(f)));
        run("mergecap", &args);
        run("reordercap", &[&all, &sorted]);
        sorted
    }
}

const EXPRESSIONS: [&str; 20] = [
    "udp",
    "tcp",
    "icmp or icmp6",
    "ip6",
    "vlan 42",
    "vlan and vlan and tcp",
    "not vlan",
    "host 198.18.0.1",
    "src net 198.18.0.0/24 and udp port 9",
    "port 53",
    "greater 800",
    "less 100 and ip",
    "tcp[tcpflags] & tcp-push != 0",
    "ether[0] & 1 = 0 and len > 700",
    "portrange 49152-52000",
    "ip6 and udp and greater 300",
    "ip[8] = 64 and ip[2:2] + 14 < len",
    "udp port 4789 and udp[8] = 8",
    "ether src 02:00:00:00:00:99",
    "arp",
];

#[test]
fn answers_are_those_of_tcpdump_over_the_whole_store() {
    let recorded = Recorded::new();
    let store = recorded.store();
    let rings = Contents::of_store(&store).packets.iter().map(|p| p.interface).max();
    assert!(rings >= Some(2), "packets of several rings");
    let sorted = recorded.sorted();
    let by_tcpdump = recorded.path("tcpdump.pcap");
    let mut matching = 0;
    for expression in EXPRESSIONS.iter().chain(&[""]) {
        let mut args = vec!["-r", &sorted, "--nano", "-w", &by_tcpdump];
        args.extend(expression.split_whitespace());
        run("tcpdump", &args);
        let expected = canonical(plain(&fs::read(&by_tcpdump).expect("tcpdump wrote it")));
        let mut args = vec!["-w", "-"];
        args.extend(expression.split_whitespace());
        let found = canonical(plain(&answer(&store, &args)));
        assert!(found == expected, "{expression}: {} packets, not {}", found.len(), expected.len());
        let count = answer(&store, &["--count", expression]);
        assert_eq!(
            String::from_utf8_lossy(&count),
            format!("{}\n", expected.len()),
            "{expression}"
        );
        matching += u32::from(!expected.is_empty() && expected.len() < recorded.captured as usize);
    }
    assert!(matching >= 14, "{matching} expressions chose a part");

    round_trip(&recorded);
    limits_are_exact(&recorded);
    json_and_lines(&recorded);
    as_somebody_else(&recorded);
}

fn round_trip(recorded: &Recorded) {
    let out = recorded.path("out.pcapng");
    answer(&recorded.store(), &["-w", &out, "udp", "and", "not", "vlan"]);
    let contents = Contents::of(Path::new(&out));
    assert!(contents.packets.iter().all(|p| p.flags == pcapng::FLAG_INBOUND), "flags are kept");
    let n = contents.packets.len();
    assert_eq!(run("tcpdump", &["--count", "-r", &out]), format!("{n} packets\n"));
    let about = run("capinfos", &["-M", &out]);
    for what in [
        &format!("Number of packets:   {n}")[..],
        "Name = vb",
        "Name = vd",
        "nanoseconds (9)",
        "filter udp and not vlan",
        text(&recorded.store()),
    ] {
        assert!(about.contains(what), "{what} in {about}");
    }
    let original = Contents::of(&segments(&recorded.store())[0]);
    assert_eq!(contents.interfaces, original.interfaces, "descriptions are kept");
}

fn limits_are_exact(recorded: &Recorded) {
    let store = recorded.store();
    let all = plain(&answer(&store, &["-w", "-"]));
    assert_eq!(all.len() as u64, recorded.captured);
    let seconds = |ns: i64| format!("{}.{:09}", ns / SECOND, ns % SECOND);
    for (from, to) in [(0, 1), (1, 2), (100, 101), (3000, 9000), (14_000, 14_999), (0, 14_999)] {
        let (after, before) = (all[from].0, all[to].0);
        let expected: Vec<_> = all.iter().filter(|p| (after..before).contains(&p.0)).collect();
        let (after, before) = (seconds(after), seconds(before));
        let args = ["-w", "-", "--after", &after, "--before", &before];
        let found = plain(&answer(&store, &args));
        assert!(found.iter().eq(expected.iter().copied()), "{from} to {to}");
        let limited = [&args[..], &["--limit", "7"]].concat();
        let first: Vec<_> = expected.into_iter().take(7).collect();
        assert!(plain(&answer(&store, &limited)).iter().eq(first), "{from} to {to}");
    }
    assert_eq!(plain(&answer(&store, &["-w", "-", "--limit", "1"])), all[..1]);
    assert_eq!(answer(&store, &["--count", "--limit", "99"]), b"99\n");
    assert_eq!(answer(&store, &["--count", "--limit", "99999"]), b"15000\n");
    assert_eq!(answer(&store, &["--count", "--before", "1h ago"]), b"0\n");
    assert_eq!(answer(&store, &["--count", "--after", "1h ago"]), b"15000\n");
}

fn json_and_lines(recorded: &Recorded) {
    let store = recorded.store();
    let all = answer(&store, &["--json"]);
    let objects: Vec<Value> = String::from_utf8_lossy(&all)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    assert_eq!(objects.len() as u64, recorded.captured);
    assert!(objects.is_sorted_by(|a, b| a["time"].as_str() <= b["time"].as_str()));
    for (expression, holds) in [
        (
            "tcp port 9",
            (|o| o["protocol"] == "tcp" && (o["dport"] == 9 || o["sport"] == 9))
                as fn(&Value) -> bool,
        ),
        ("icmp6", |o| {
            o["protocol"] == "icmp6"
                && o["sport"].is_null()
                && o["src"].as_str().is_some_and(|s| s.contains(':'))
        }),
        ("udp dst port 53", |o| {
            o["dport"] == 53
                && o["protocol"] == "udp"
                && o["length"] == 70
                && o["interface"] == "vd"
        }),
    ] {
        let count =
            String::from_utf8_lossy(&answer(&store, &["--json", expression])).lines().count();
        assert!(count > 0, "{expression}");
        let held = answer(&store, &["--json", expression]);
        for line in String::from_utf8_lossy(&held).lines() {
            let object = serde_json::from_str(line).expect("an object");
            assert!(holds(&object), "{expression}: {object}");
        }
    }
    // What tcpdump does not find behind two tags, is named all the same.
    assert!(objects.iter().filter(|o| o["protocol"] == "tcp").count() > 2000);

    let lines = answer(&store, &["--limit", "3", "udp dst port 53"]);
    let lines = String::from_utf8_lossy(&lines);
    assert_eq!(lines.lines().count(), 3);
    for line in lines.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[1..4], ["vd", "in", "udp"], "{line}");
        assert!(words[6].ends_with(":53") && words[7..] == ["length", "70"], "{line}");
    }
}

/// Somebody who may read, and on a copy without anything but segments that nobody may write.
fn as_somebody_else(recorded: &Recorded) {
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    };
    mode(recorded.dir.path(), 0o755);
    let program = recorded.path("tapdeck");
    copy_program(env!("CARGO_BIN_EXE_tapdeck"), Path::new(&program));
    let copy = recorded.dir.path().join("copy");
    fs::create_dir(&copy).expect("a directory");
    for path in segments(&recorded.store()) {
        let to = copy.join(path.file_name().expect("a name"));
        fs::copy(&path, &to).expect("a copy");
        mode(&to, 0o444);
    }
    mode(&copy, 0o555);
    let ask = |dir: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &program]);
        command.args(["query", "--count", "udp", "--dir"]).arg(dir).output().expect("it runs")
    };
    let expected = answer(&recorded.store(), &["--count", "udp"]);
    let out = ask(&copy);
    assert_eq!((&out.stdout, said(&out).as_str()), (&expected, ""));

    mode(&recorded.store(), 0o755);
    let one = &segments(&recorded.store())[1];
    mode(one, 0o600);
    let out = ask(&recorded.store());
    assert_eq!(out.status.code(), Some(1));
    assert!(
        said(&out).contains("no permission") && said(&out).lines().count() == 1,
        "{}",
        said(&out)
    );
    for path in segments(&recorded.store()) {
        mode(&path, 0o644);
    }
    assert_eq!(ask(&recorded.store()).stdout, expected);
}

#[test]
fn a_store_answers_while_it_is_recorded_into() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!(
        "--hook tcx --segment-time 300ms --keep-segments 3 --flush 100ms --dir {}",
        text(&store)
    );
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let count = |args: &[&str]| -> u64 {
        let out = query(&store, &[&["--count"], args].concat()).output().expect("it runs");
        // Retention may delete what it was about to read; no more may be said.
        let only_deleted = said(&out).lines().all(|line| line.contains("was deleted before"));
        assert!(out.status.success() && only_deleted, "{}", said(&out));
        String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number")
    };
    wait_for("the store", || store.join(".tapdeck.lock").exists());
    assert_eq!(count(&[]), 0);
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        for i in 0..40 {
            (0..50).for_each(|k| sender.send(&frame([2, 0, 0, 0, 0, 9], 200, i * 50 + k)));
            // All of what was just sent, by number; older packets may be gone.
            let newest = format!("ether[42:4] >= {} and udp", i * 50);
            wait_for("the newest packets", || count(&[&newest]) == 50);
        }
    });
    assert!(number(&recorder.now(), "segments") > 3, "segments came and went");
    // The live segment is there, and what is in it comes out as a whole file.
    let out = dir.path().join("out.pcapng");
    let written = query(&store, &["-w", text(&out), "ether[42:4] >= 1950"]).status();
    assert!(written.expect("it runs").success());
    let numbers: Vec<u32> = Contents::of(&out)
        .packets
        .iter()
        .map(|p| u32::from_be_bytes(p.frame[42..46].try_into().expect("46 bytes")))
        .collect();
    assert_eq!(numbers, (1950..2000).collect::<Vec<u32>>());
    recorder.stop();
    assert_eq!(count(&["ether[42:4] >= 1950"]), 50);
}

/// A store of three segments an hour apart, of 4000 packets of 1000 bytes each.
fn three_hours(dir: &Path) -> [PathBuf; 3] {
    [0, 1, 2].map(|hour| {
        let began_ns = T0 + hour * 3600 * SECOND;
        let packets: Vec<i64> = (0..4000).map(|i| began_ns + i * 1000).collect();
        write_segment(dir, 1 + hour as u64, began_ns, &packets, 1000)
    })
}

fn write_segment(dir: &Path, number: u64, began_ns: i64, times: &[i64], len: usize) -> PathBuf {
    let path = SegmentName { number, began_s: began_ns / SECOND, live: false }.path(dir);
    let mut head = Vec::new();
    pcapng::section_header(&mut head, "linux", "tapdeck 0.1.0", None);
    pcapng::interface_description(
        &mut head,
        &InterfaceDescription {
            link: LinkType::ETHERNET,
            snaplen: 0,
            name: "eth0".into(),
            description: "hook tcx, CPU 0".into(),
            filter: None,
            hardware: None,
            mac: None,
        },
    );
    let mut file = File::create(&path).expect("a file");
    file.write_all(&head).expect("room on the disk");
    let frame = frame([2; 6], len, 0);
    let mut block = vec![0; pcapng::packet_len(len, 0, 0)];
    for time_ns in times {
        pcapng::write_packet(&mut block, 0, *time_ns as u64, [&frame, &[], &[]], len as u32, 0, 0);
        file.write_all(&block).expect("room on the disk");
    }
    path
}

/// A query whose output nobody reads yet.
fn waiting(store: &Path, args: &[&str]) -> Running {
    let mut command = query(store, args);
    Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs"))
}

/// Waits until it has written its first bytes, so is on its way.
fn begun(child: &mut Child) -> Vec<u8> {
    let mut first = vec![0; 1024];
    child.stdout.as_mut().expect("piped").read_exact(&mut first).expect("it writes");
    first
}

/// Reads all it still writes; it must succeed. Returns what it said.
fn drain(child: &mut Child, out: &mut Vec<u8>) -> String {
    child.stdout.take().expect("piped").read_to_end(out).expect("it writes");
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    let status = child.wait().expect("it was started");
    assert!(status.success(), "{status}: {said}");
    said
}

#[test]
fn a_segment_that_is_deleted_under_it_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = three_hours(dir.path());
    let mut running = waiting(dir.path(), &["-w", "-"]);
    let mut out = begun(&mut running.0);
    // It has the first segment to write, and nobody reads.
    fs::remove_file(&paths[2]).expect("it is there");
    let said = drain(&mut running.0, &mut out);
    assert!(said.contains("tapdeck-00000003-") && said.contains("was deleted"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(plain(&out).len(), 8000);
}

#[test]
fn ctrl_c_leaves_a_valid_file_and_says_how_far_it_got() {
    let dir = tempfile::tempdir().expect("a directory");
    three_hours(dir.path());
    let mut running = waiting(dir.path(), &["-w", "-"]);
    let mut out = begun(&mut running.0);
    running.signal(Signal::INT);
    let said = drain(&mut running.0, &mut out);
    let packets = plain(&out).len();
    assert!(packets < 4000, "{packets}: it ended early");
    let told = said.replace(',', "");
    assert!(told.contains(&format!("stopped by a signal: {packets} packets")), "{packets}: {said}");
}

#[test]
fn whoever_has_seen_enough_is_not_scolded() {
    let dir = tempfile::tempdir().expect("a directory");
    three_hours(dir.path());
    for args in [&["-w", "-"][..], &["--json"], &[]] {
        let mut running = waiting(dir.path(), args);
        begun(&mut running.0);
        drop(running.0.stdout.take());
        let out = &mut String::new();
        running.0.stderr.take().expect("piped").read_to_string(out).expect("text");
        let status = running.0.wait().expect("it was started");
        assert!(status.success() && out.is_empty(), "{args:?}: {status} {out}");
    }
}

#[test]
fn memory_is_bounded_whatever_the_answer_is() {
    let dir = tempfile::tempdir().expect("a directory");
    // 150 MB without any order.
    let times: Vec<i64> = (0..1000i64).map(|i| T0 + i * 7919 % 1000 * 1000).collect();
    for number in 1..=3 {
        write_segment(dir.path(), number, T0, &times, 50_000);
    }
    let out = dir.path().join("out");
    let line = format!(
        "ulimit -d 65536; exec {} query --dir {} -w {}",
        env!("CARGO_BIN_EXE_tapdeck"),
        text(dir.path()),
        text(&out)
    );
    run("bash", &["-c", &line]);
    let found = plain(&fs::read(&out).expect("it was written"));
    assert_eq!(found.len(), 3000);
    assert!(found.is_sorted_by_key(|p| p.0));
}

#[test]
fn explain_tells_how_packets_are_found_instead_of_them() {
    let dir = tempfile::tempdir().expect("a directory");
    three_hours(dir.path());
    let object = |args: &[&str]| -> Value {
        let out = answer(dir.path(), &[&["--explain", "--json"], args].concat());
        serde_json::from_slice(&out).expect("one object")
    };
    let all = object(&["udp and ether src 02:02:02:02:02:02"]);
    assert_eq!((&all["segments"], &all["segments_scanned"]), (&3.into(), &3.into()), "{all}");
    assert_eq!(all["understood"], true);
    assert!(all["plan"].as_str().is_some_and(|plan| plan.contains("protocol 17")), "{all}");
    assert_eq!(all["segment_bytes_read"], all["segment_bytes"]);
    let some = object(&["--limit", "3", "--before", "1767330000"]);
    assert_eq!((&some["packets"], &some["segments_outside"]), (&3.into(), &1.into()), "{some}");
    assert!(some["first_packet_s"].as_f64() <= some["elapsed_s"].as_f64(), "{some}");
    let none = object(&["--before", "1767330000", "ether[0] = 99"]);
    assert_eq!((&none["packets"], &none["first_packet_s"]), (&0.into(), &Value::Null), "{none}");

    let text = answer(dir.path(), &["--explain", "--count", "src host 10.1.2.3"]);
    let text = String::from_utf8_lossy(&text);
    for line in [
        "expression: src host 10.1.2.3",
        "span: the beginning to the end",
        "granules: 0 of 0",
        "packets: 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in {text}");
    }
    assert!(text.contains("source address 10.1.2.3"), "{text}");
}

#[test]
fn bad_input_is_told_in_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    fs::create_dir(&store).expect("a directory");
    let [first, ..] = three_hours(&store);
    let (empty, file) = (dir.path().join("empty"), dir.path().join("file"));
    fs::create_dir(&empty).expect("a directory");
    fs::write(&file, "x").expect("a file");
    let mut refused = vec![
        (&store, vec!["host and"], 2, "syntax error"),
        (&store, vec!["inbound"], 2, "inbound/outbound not supported"),
        (&store, vec!["port", "99999"], 2, "port"),
        (&empty, vec!["--count"], 1, "has no segments"),
        (&file, vec!["--count"], 1, "is not a directory"),
        (&store, vec!["--after", "1767323046", "--before", "1767323045"], 2, "is later than"),
        (&store, vec!["-w", "/nowhere/x"], 1, "cannot write /nowhere/x"),
        (&store, vec!["-w", text(&first)], 2, "has the name of a segment"),
    ];
    let none = dir.path().join("none");
    refused.push((&none, vec![], 1, "does not exist"));
    for (dir, args, code, words) in refused {
        let out = query(dir, &args).output().expect("it runs");
        let said = said(&out);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.starts_with("tapdeck: ") && said.contains(words), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(out.stdout.is_empty());
    }
    for args in [
        &["--after", "soon"][..],
        &["--before", "10m"],
        &["--limit", "0"],
        &["-w", "x", "--count"],
        &["-w", "x", "--explain"],
    ] {
        let out = query(&store, args).output().expect("it runs");
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", said(&out));
    }
    assert_eq!(plain(&fs::read(&first).expect("it is there")).len(), 4000, "untouched");
}

#[test]
fn gaps_and_damage_are_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = write_segment(dir.path(), 1, T0, &[], 100);
    let frame = frame([2; 6], 100, 0);
    let mut file = fs::OpenOptions::new().append(true).open(&path).expect("it is there");
    for (i, dropped) in [(0, 0), (1, 12), (2, 0)] {
        let mut block = vec![0; pcapng::packet_len(100, 0, dropped)];
        pcapng::write_packet(&mut block, 0, (T0 + i) as u64, [&frame, &[], &[]], 100, 0, dropped);
        file.write_all(&block).expect("room on the disk");
    }
    let out = query(dir.path(), &["--json"]).output().expect("it runs");
    assert!(out.status.success() && said(&out).contains("dropped 12 packets"), "{}", said(&out));
    let second = String::from_utf8_lossy(&out.stdout).lines().nth(1).map(str::to_owned);
    assert!(second.expect("a second").contains("\"dropped\":12"));
    // Before the gap there is none.
    let first = query(dir.path(), &["--count", "--limit", "1"]).output().expect("it runs");
    assert_eq!(first.stdout, b"1\n");
    let before = answer(dir.path(), &["--before", "1767323045.000000001"]);
    assert_eq!(String::from_utf8_lossy(&before).lines().count(), 1);

    file.write_all(&[6, 0, 0, 0, 13, 0, 0, 0, 0, 0, 0, 0]).expect("room on the disk");
    let out = query(dir.path(), &["--count"]).output().expect("it runs");
    assert_eq!((out.status.code(), &out.stdout[..]), (Some(1), &b"3\n"[..]));
    assert!(said(&out).contains("is damaged at byte"), "{}", said(&out));
}

/// An answer that may lack something says so and is no success, other answers are whole.
#[test]
fn segments_that_are_missing_are_told() {
    let dir = tempfile::tempdir().expect("a directory");
    // One packet at the beginning of each of two hours, and one half an hour later.
    for (number, hour) in [(1, 0), (3, 2)] {
        let began_ns = T0 + hour * 3600 * SECOND;
        write_segment(dir.path(), number, began_ns, &[began_ns, began_ns + 1800 * SECOND], 100);
    }
    run(env!("CARGO_BIN_EXE_tapdeck"), &["recover", "--dir", text(dir.path())]);
    assert_eq!(answer(dir.path(), &["--count", "--before", "1767324000"]), b"1\n");
    assert_eq!(answer(dir.path(), &["--count", "--after", "1767330246"]), b"1\n");
    for (args, is_told) in [
        (&["--count"][..], true),
        (&["--json"], true),
        (&["-w", "-"], true),
        (&["--explain"], true),
        (&["--count", "udp port 53"], true),
        (&["--json", "--limit", "1"], false),
        (&["--explain", "--limit", "1"], false),
        (&["--count", "--limit", "1"], false),
        (&["--json", "--limit", "3"], true),
    ] {
        let out = query(dir.path(), args).output().expect("it runs");
        let said = said(&out);
        assert_eq!(out.status.code(), Some(i32::from(is_told)), "{args:?}: {said}");
        let told = ["segment 2 is missing before tapdeck-00000003-", "the answer is not whole"];
        assert!(told.iter().all(|words| said.contains(words) == is_told), "{args:?}: {said}");
    }
}

#[test]
fn packets_inside_tunnels_count_if_asked_for() {
    let recorded = Recorded::new();
    let store = recorded.store();
    let count = |args: &[&str]| -> u64 {
        let args = [&["--count"], args].concat();
        String::from_utf8(answer(&store, &args)).expect("text").trim().parse().expect("a number")
    };
    let tunnels = count(&["udp port 4789"]);
    assert_eq!(tunnels, 1000);
    // The inner packets have the addresses that those of other streams have outside.
    let net = "src net 198.18.0.0/16 and dst net 198.19.0.0/16";
    let outside = count(&[net]);
    let outer = count(&[&format!("{net} and udp port 4789")]);
    assert_eq!(count(&["--inner", net]), outside + tunnels - outer);
    assert_eq!(count(&["--inner", "host 203.0.113.9"]), 0);
    let first = answer(&store, &["--json", "--inner", "--limit", "1", "udp port 4789"]);
    assert!(!first.is_empty(), "what is outside counts all the same");
    let explained =
        String::from_utf8(answer(&store, &["--explain", "--inner", "host 203.0.113.9"]));
    assert!(explained.expect("text").contains("read of segments: 0 B"), "the index knows them");
}
