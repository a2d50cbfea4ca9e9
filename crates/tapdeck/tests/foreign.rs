//! `tapdeck query` over capture files of other recorders: the packets that `tcpdump -r` gives of
//! each, in time order over all.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use tapdeck_packet::trace;
use tapdeck_testkit::SplitMix64;
use tapdeck_testkit::process::copy_program;

const T0: i64 = 1_767_323_045_000_000_000;
const ETHERNET: u16 = 1;
const RAW: u16 = 101;

fn query(path: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg("query").arg("--dir").arg(path).args(args).stdin(Stdio::null());
    // What is cached is cached in the tests' own directories.
    command.env_remove("XDG_CACHE_HOME").env_remove("HOME");
    command
}

fn ask(path: &Path, args: &[&str]) -> Output {
    query(path, args).output().expect("it runs")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Runs it to its end; it must succeed and have nothing to say.
fn answer(path: &Path, args: &[&str]) -> Vec<u8> {
    let out = ask(path, args);
    assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {}", said(&out));
    out.stdout
}

fn run(program: &str, args: &[&str]) -> Vec<u8> {
    let out = Command::new(program).args(args).output().expect("make setup installs it");
    assert!(out.status.success(), "{program} {args:?}: {}", said(&out));
    out.stdout
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

/// What tcpdump gives of files, in time order; where times are equal, in the order of the files and
/// of what is in them.
fn by_tcpdump(files: &[PathBuf], expression: &str) -> Vec<Plain> {
    let mut all = Vec::new();
    for file in files {
        let mut args = vec!["-r", text(file), "--nano", "-w", "-"];
        args.extend(expression.split_whitespace());
        all.extend(plain(&run("tcpdump", &args)));
    }
    all.sort_by_key(|p| p.0);
    all
}

/// UDP or TCP between few hosts and ports, of Ethernet, at times in no order and often equal. Some
/// are cut.
fn packets(rng: &mut SplitMix64, count: usize) -> Vec<Plain> {
    let packet = |_| {
        let protocol = if rng.below(2) == 0 { 17 } else { 6 };
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64];
        f.extend([protocol, 0, 0]);
        for _ in 0..2 {
            f.extend([10, 0, 0, rng.below(9) as u8]);
        }
        for _ in 0..2 {
            f.extend([0, 50 + rng.below(9) as u8]);
        }
        f.resize(74 + rng.below(700), 0);
        let original_len = f.len() as u32;
        f.truncate(600);
        (T0 + rng.below(9000) * 1000, original_len, f)
    };
    (0..count).map(packet).collect()
}

/// How a file's numbers are written.
#[derive(Clone, Copy)]
struct Order {
    is_big: bool,
}

const LITTLE: Order = Order { is_big: false };
const BIG: Order = Order { is_big: true };

impl Order {
    fn u32(self, n: u32) -> [u8; 4] {
        if self.is_big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    fn u16(self, n: u16) -> [u8; 2] {
        if self.is_big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    fn pcap(self, magic: u32, link: u16, packets: &[Plain]) -> Vec<u8> {
        let mut out = self.u32(magic).to_vec();
        out.extend([self.u16(2), self.u16(4)].concat());
        out.extend([self.u32(0), self.u32(0), self.u32(65_535), self.u32(link.into())].concat());
        let unit_ns = if magic == 0xa1b2_3c4d { 1 } else { 1000 };
        for (time_ns, original_len, frame) in packets {
            let (s, fraction) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000 / unit_ns);
            for n in [s as u32, fraction as u32, frame.len() as u32, *original_len] {
                out.extend(self.u32(n));
            }
            // Kuznetsov's has an interface, a protocol and a type.
            out.extend(&[0; 8][..if magic == 0xa1b2_cd34 { 8 } else { 0 }]);
            out.extend(frame);
        }
        out
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let body_len = body.len().next_multiple_of(4);
        let total = self.u32(12 + body_len as u32);
        let mut out = [self.u32(kind), total].concat();
        out.extend(body);
        out.resize(8 + body_len, 0);
        out.extend(total);
        out
    }

    fn section(self) -> Vec<u8> {
        let mut body = self.u32(0x1a2b_3c4d).to_vec();
        body.extend([self.u16(1), self.u16(0)].concat());
        body.extend([0xff; 8]);
        self.block(0x0a0d_0d0a, &body)
    }

    fn option(self, code: u16, value: &[u8]) -> Vec<u8> {
        let mut out = [self.u16(code), self.u16(value.len() as u16)].concat();
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    /// Of times in a resolution, less an offset in seconds.
    fn interface(self, link: u16, name: &str, resolution: u8, offset_s: i64) -> Vec<u8> {
        let mut body = [self.u16(link), self.u16(0)].concat();
        body.extend(self.u32(0));
        body.extend(self.option(2, name.as_bytes()));
        body.extend(self.option(9, &[resolution]));
        let offset = if self.is_big { offset_s.to_be_bytes() } else { offset_s.to_le_bytes() };
        body.extend(self.option(14, &offset));
        self.block(1, &body)
    }

    /// `raw` is the time as it stands in the file.
    fn packet(self, interface: u32, raw: u64, (_, original_len, frame): &Plain) -> Vec<u8> {
        let mut body = self.u32(interface).to_vec();
        for n in [(raw >> 32) as u32, raw as u32, frame.len() as u32, *original_len] {
            body.extend(self.u32(n));
        }
        body.extend(frame);
        self.block(6, &body)
    }

    fn pcapng(self, name: &str, resolution: u8, offset_s: i64, packets: &[Plain]) -> Vec<u8> {
        let mut out = self.section();
        out.extend(self.interface(ETHERNET, name, resolution, offset_s));
        for packet in packets {
            let ns = i128::from(packet.0) - i128::from(offset_s) * 1_000_000_000;
            let raw = match resolution & 0x80 {
                0 => ns * 10i128.pow(resolution.into()) / 1_000_000_000,
                _ => (ns << (resolution & 0x7f)) / 1_000_000_000,
            };
            out.extend(self.packet(0, raw as u64, packet));
        }
        out
    }
}

/// Makes a directory of files of many kinds that overlap in time, and of others. Returns the
/// capture files in the order of their names. No file's byte order changes midway, which libpcap
/// does not read: [`interfaces_that_come_late_are_found`] has one.
fn files(dir: &Path) -> Vec<PathBuf> {
    let rng = &mut SplitMix64(7);
    let mut several = LITTLE.pcapng("eth0", 6, 0, &packets(rng, 300));
    several.extend(LITTLE.pcapng("eth0", 9, 0, &packets(rng, 300)));
    several.extend(LITTLE.pcapng("eth0", 3, 0, &packets(rng, 300)));
    let contents = [
        ("a.pcap", LITTLE.pcap(0xa1b2_c3d4, ETHERNET, &packets(rng, 2000))),
        ("b.cap.0001", BIG.pcap(0xa1b2_c3d4, ETHERNET, &packets(rng, 300))),
        ("capture", LITTLE.pcap(0xa1b2_3c4d, ETHERNET, &packets(rng, 300))),
        ("d nano", BIG.pcap(0xa1b2_3c4d, ETHERNET, &packets(rng, 300))),
        ("e.pcap1", LITTLE.pcap(0xa1b2_cd34, ETHERNET, &packets(rng, 300))),
        ("f.pcap", LITTLE.pcap(0xa1b2_c3d4, ETHERNET, &[])),
        ("g.pcapng", LITTLE.pcapng("eth0", 6, 0, &packets(rng, 2000))),
        ("h.ntar", BIG.pcapng("eth1", 9, 0, &packets(rng, 300))),
        ("i.ntar", LITTLE.pcapng("eth2", 9, 3600, &packets(rng, 300))),
        ("j.ntar", BIG.pcapng("eth2", 0x94, -7, &packets(rng, 300))),
        ("k.pcapng", several),
    ];
    let mut files = Vec::new();
    for (name, bytes) in contents {
        files.push(dir.join(name));
        fs::write(dir.join(name), bytes).expect("a file");
    }
    // What is none of a query's business.
    fs::write(dir.join("0-empty.pcap"), "").expect("a file");
    fs::write(dir.join("README"), "recorded on Monday").expect("a file");
    fs::write(dir.join("short"), [0xd4, 0xc3]).expect("a file");
    run("mkfifo", &[text(&dir.join("pipe"))]);
    files
}

const EXPRESSIONS: [&str; 8] = [
    "",
    "udp",
    "tcp port 53",
    "src host 10.0.0.3",
    "host 10.0.0.3 and not port 55",
    "greater 600",
    "len - ip[3] > 0",
    "vlan",
];

#[test]
fn answers_are_those_of_tcpdump_over_each_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = files(dir.path());
    compare(dir.path(), &files);
    let told = answer(dir.path(), &["--explain", "udp"]);
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("segments: 11 looked at, 0 outside the span; 0 have an index"), "{told}");

    // The same by indexes.
    let out = ask(dir.path(), &["--index", "--count", "udp"]);
    let expected = format!("{}\n", by_tcpdump(&files, "udp").len());
    assert_eq!(
        (out.status.code(), String::from_utf8_lossy(&out.stdout)),
        (Some(0), expected.into())
    );
    assert_eq!(said(&out).lines().count(), 1, "{}", said(&out));
    assert!(said(&out).contains("no index can be made of k.pcapng"), "{}", said(&out));
    compare(dir.path(), &files);
    let told = answer(dir.path(), &["--explain", "udp"]);
    let told = String::from_utf8_lossy(&told);
    // One holds no packets.
    assert!(told.contains("segments: 10 looked at, 1 outside the span; 9 have an index"), "{told}");
    assert_eq!(indexes(dir.path()).len(), 10);
}

/// The index files in a directory.
fn indexes(dir: &Path) -> Vec<PathBuf> {
    let paths = dir.read_dir().expect("a directory").map(|entry| entry.expect("an entry").path());
    paths.filter(|path| text(path).contains("tapdeck-index")).collect()
}

/// Asks in many ways for what is in a directory.
fn compare(dir: &Path, files: &[PathBuf]) {
    for expression in EXPRESSIONS {
        let expected = by_tcpdump(files, expression);
        let found = plain(&answer(dir, &["-w", "-", expression]));
        assert!(found == expected, "{expression}: {} packets, not {}", found.len(), expected.len());
        let count = answer(dir, &["--count", expression]);
        assert_eq!(String::from_utf8_lossy(&count), format!("{}\n", expected.len()));
        assert_eq!(expression == "vlan", expected.is_empty());
    }
    for file in files {
        let found = plain(&answer(file, &["-w", "-", "udp"]));
        assert!(found == by_tcpdump(std::slice::from_ref(file), "udp"), "{}", file.display());
    }

    let all = by_tcpdump(files, "");
    let (after, before) = (all[1000].0, all[5000].0);
    let seconds = |ns: i64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let args = ["-w", "-", "--after", &seconds(after), "--before", &seconds(before)];
    let found = plain(&answer(dir, &[&args[..], &["--limit", "500"]].concat()));
    assert!(found.iter().eq(all.iter().filter(|p| p.0 >= after).take(500)), "{}", found.len());
    let found = plain(&answer(dir, &args));
    assert!(found.iter().eq(all.iter().filter(|p| (after..before).contains(&p.0))));

    let lines = answer(dir, &["--json"]);
    let names: Vec<String> = String::from_utf8_lossy(&lines)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("an object"))
        .map(|object| object["interface"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(names.len(), all.len());
    let of = |name: &str| names.iter().filter(|n| *n == name).count();
    assert_eq!((of("-"), of("eth0"), of("eth1"), of("eth2")), (3200, 2900, 300, 600));
}

#[test]
fn an_answer_opens_everywhere_and_is_not_written_over_what_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = files(dir.path());
    let out = dir.path().join("out.pcapng");
    answer(dir.path(), &["-w", text(&out), "udp"]);
    let expected = by_tcpdump(&files, "udp");
    assert!(by_tcpdump(std::slice::from_ref(&out), "") == expected);
    let about = String::from_utf8_lossy(&run("capinfos", &["-M", text(&out)])).into_owned();
    for what in [
        "Number of interfaces in file: 4",
        "Name = eth2",
        "nanoseconds (9)",
        "filter udp",
        "Ethernet",
    ] {
        assert!(about.contains(what), "{what} in {about}");
    }
    // Now it is one of them.
    let again = ask(dir.path(), &["-w", text(&out)]);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert!(said(&again).contains("is one of the files that are asked"), "{}", said(&again));
    assert!(plain(&fs::read(&out).expect("it is there")) == expected, "untouched");
}

/// A file whose interfaces are described where they are needed, far behind its beginning, and of
/// more than one link type.
#[test]
fn interfaces_that_come_late_are_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let rng = &mut SplitMix64(9);
    let (ether, other) = (packets(rng, 1500), packets(rng, 1500));
    let raw: Vec<Plain> =
        other.iter().map(|(ns, len, f)| (*ns, len - 14, f[14..].to_vec())).collect();
    let mut mixed = BIG.pcapng("eth0", 9, 0, &ether);
    mixed.extend(BIG.interface(RAW, "tun0", 9, 0));
    for packet in &raw[..700] {
        mixed.extend(BIG.packet(1, packet.0 as u64, packet));
    }
    mixed.extend(LITTLE.section());
    mixed.extend(LITTLE.interface(RAW, "tun1", 9, 0));
    for packet in &raw[700..] {
        mixed.extend(LITTLE.packet(0, packet.0 as u64, packet));
    }
    let path = dir.path().join("mixed.pcapng");
    fs::write(&path, mixed).expect("a file");
    let apart = tempfile::tempdir().expect("a directory");
    let (a, b) = (apart.path().join("ether"), apart.path().join("raw"));
    fs::write(&a, LITTLE.pcap(0xa1b2_3c4d, ETHERNET, &ether)).expect("a file");
    fs::write(&b, LITTLE.pcap(0xa1b2_3c4d, RAW, &raw)).expect("a file");
    for expression in ["", "udp port 53", "src host 10.0.0.4", "greater 500"] {
        let expected = by_tcpdump(&[a.clone(), b.clone()], expression);
        let found = plain(&answer(&path, &["-w", "-", expression]));
        assert!(found == expected, "{expression}: {} packets, not {}", found.len(), expected.len());
        let count = answer(&path, &["--count", expression]);
        assert_eq!(String::from_utf8_lossy(&count), format!("{}\n", expected.len()));
        assert!(plain(&answer(apart.path(), &["-w", "-", expression])) == expected);
    }
    // What means nothing without an Ethernet header matches no packet without one.
    for expression in ["ether src 02:00:00:00:00:02", "vlan 5", "arp"] {
        let expected = by_tcpdump(std::slice::from_ref(&a), expression);
        let refused = [&path, apart.path()].map(|dir| answer(dir, &["--count", expression]));
        for count in refused {
            assert_eq!(String::from_utf8_lossy(&count), format!("{}\n", expected.len()));
        }
    }
    let alone = ask(&b, &["--count", "arp"]);
    assert_eq!((alone.status.code(), alone.stdout.len()), (Some(2), 0), "{}", said(&alone));
    assert!(said(&alone).contains("expression rejects all packets"), "{}", said(&alone));
    let out = dir.path().join("out");
    answer(&path, &["-w", text(&out), "udp"]);
    let about = String::from_utf8_lossy(&run("capinfos", &["-M", text(&out)])).into_owned();
    for name in ["Name = eth0", "Name = tun0", "Name = tun1", "Raw IP"] {
        assert!(about.contains(name), "{name} in {about}");
    }
}

#[test]
fn what_is_cut_or_damaged_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = packets(&mut SplitMix64(3), 50);
    let path = dir.path().join("live.pcap");
    for bytes in [LITTLE.pcap(0xa1b2_3c4d, ETHERNET, &made), LITTLE.pcapng("eth0", 9, 0, &made)] {
        let whole = plain(&bytes);
        assert_eq!(whole.len(), 50);
        for cut in [1, 7, 300, 5000, bytes.len() - 30] {
            fs::write(&path, &bytes[..bytes.len() - cut]).expect("a file");
            let out = ask(&path, &["-w", "-"]);
            assert!(out.status.success(), "{}", said(&out));
            assert!(said(&out).contains("live.pcap ends at byte"), "{}", said(&out));
            assert_eq!(said(&out).lines().count(), 1, "{}", said(&out));
            let found = plain(&out.stdout);
            let mut reader = trace::Reader::new(&bytes[..bytes.len() - cut]).expect("a file");
            let mut expected = 0;
            while let Ok(Some(_)) = reader.next_packet() {
                expected += 1;
            }
            let mut first = whole[..expected].to_vec();
            first.sort_by_key(|p| p.0);
            assert!(found == first, "{cut}: {} packets, not {expected}", found.len());
        }
    }
    // A packet of 4 GiB, among others.
    let mut bytes = LITTLE.pcap(0xa1b2_3c4d, ETHERNET, &made);
    let at = bytes.len();
    bytes.extend([0xff; 400]);
    fs::write(&path, &bytes).expect("a file");
    fs::write(dir.path().join("good"), LITTLE.pcap(0xa1b2_3c4d, ETHERNET, &made)).expect("a file");
    let out = ask(dir.path(), &["--count"]);
    assert_eq!((out.status.code(), &out.stdout[..]), (Some(1), &b"100\n"[..]));
    assert!(said(&out).contains(&format!("live.pcap is damaged at byte {at} (")), "{}", said(&out));
    assert!(!said(&out).contains("recover"), "{}", said(&out));
}

#[test]
fn packets_without_a_time_stand_with_the_one_before_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = packets(&mut SplitMix64(5), 3);
    let mut bytes = LITTLE.pcapng("eth0", 9, 0, &made[..1]);
    let mut simple = LITTLE.u32(made[1].2.len() as u32).to_vec();
    simple.extend(&made[1].2);
    bytes.extend(LITTLE.block(3, &simple));
    bytes.extend(LITTLE.packet(0, made[2].0 as u64, &made[2]));
    let path = dir.path().join("simple.pcapng");
    fs::write(&path, bytes).expect("a file");
    let out = ask(&path, &["-w", "-"]);
    assert!(out.status.success(), "{}", said(&out));
    assert!(said(&out).contains("simple.pcapng holds packets without a time"), "{}", said(&out));
    let timeless = (made[0].0, made[1].2.len() as u32, made[1].2.clone());
    let mut expected = vec![made[0].clone(), timeless, made[2].clone()];
    expected.sort_by_key(|p| p.0);
    assert_eq!(plain(&out.stdout), expected);
}

#[test]
fn what_cannot_be_read_is_told_in_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |path: &Path, words: &str| {
        let out = ask(path, &["--count"]);
        let said = said(&out);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    };
    refused(dir.path(), "no pcap or pcapng files");
    let file = dir.path().join("notes");
    fs::write(&file, "nothing").expect("a file");
    refused(&file, "no pcap or pcapng file");
    refused(dir.path(), "no pcap or pcapng files");

    let secret = dir.path().join("secret");
    fs::write(&secret, LITTLE.pcap(0xa1b2_c3d4, ETHERNET, &packets(&mut SplitMix64(1), 9)))
        .expect("a file");
    assert_eq!(answer(dir.path(), &["--count"]), b"9\n");
    fs::set_permissions(&secret, Permissions::from_mode(0o000)).expect("it is ours");
    let program = dir.path().join("tapdeck");
    copy_program(env!("CARGO_BIN_EXE_tapdeck"), &program);
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("it is ours");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", text(&program)]);
    let out =
        command.args(["query", "--count", "--dir"]).arg(dir.path()).output().expect("it runs");
    assert_eq!(out.status.code(), Some(1));
    assert!(said(&out).contains("no permission to read") && said(&out).contains("secret"));
}

#[test]
fn what_may_hold_packets_and_is_not_read_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let made = packets(&mut SplitMix64(1), 9);
    let bytes = LITTLE.pcap(0xa1b2_c3d4, ETHERNET, &made);
    fs::write(path("b.pcap"), &bytes).expect("a file");
    fs::write(path("README"), "recorded on Monday").expect("a file");
    assert_eq!(answer(dir.path(), &["--count"]), b"9\n");

    fs::write(path("a.pcap"), &bytes).expect("a file");
    run("xz", &[text(&path("a.pcap"))]);
    let told = |words: &str| {
        let out = ask(dir.path(), &["--count"]);
        assert_eq!((out.status.code(), &out.stdout[..]), (Some(1), &b"9\n"[..]), "{}", said(&out));
        assert_eq!(said(&out).lines().count(), 2, "{}", said(&out));
        assert!(said(&out).lines().all(|line| line.contains("not ")), "{}", said(&out));
        assert!(said(&out).contains(words), "{}", said(&out));
    };
    told("not read, and not in the answer: 1 compressed file (a.pcap.xz)\n");
    symlink(dir.path(), path("sub\x1b[2J")).expect("a link");
    told("1 compressed file (a.pcap.xz) and 1 link to a directory (sub\\u{1b}[2J)\n");
    for magic in [&b"\xfd7zXZ\0"[..], b"BZh9"] {
        fs::write(path("c"), magic).expect("a file");
        told("2 compressed files (a.pcap.xz and others)");
    }

    let refused = |path: &Path, words: &str| {
        let out = ask(path, &["--count"]);
        assert_eq!(out.status.code(), Some(1), "{}", said(&out));
        assert_eq!(said(&out).lines().count(), 1, "{}", said(&out));
        assert!(said(&out).contains(words), "{}", said(&out));
    };
    refused(&path("a.pcap.xz"), "is compressed: decompress it first");
    fs::remove_file(path("b.pcap")).expect("it is there");
    refused(dir.path(), "that can be read, but 2 compressed files");
}

/// Two files that are told apart by nothing that an index knows of its file, and the index of the
/// second beside the first.
fn forge(dir: &Path) -> (PathBuf, PathBuf) {
    let mut made = packets(&mut SplitMix64(11), 5000);
    let harmless = LITTLE.pcap(0xa1b2_3c4d, ETHERNET, &made);
    made[3210].2[26..30].copy_from_slice(&[10, 9, 9, 9]);
    let wanted = LITTLE.pcap(0xa1b2_3c4d, ETHERNET, &made);
    let (path, decoy) = (dir.join("a.pcap"), dir.join("decoy.pcap"));
    let then = UNIX_EPOCH + Duration::from_nanos(T0 as u64);
    for (path, bytes) in [(&path, wanted), (&decoy, harmless)] {
        fs::write(path, bytes).expect("a file");
        fs::File::options()
            .write(true)
            .open(path)
            .and_then(|file| file.set_modified(then))
            .expect("it is ours");
    }
    answer(&decoy, &["--index", "--count"]);
    let index = dir.join("a.pcap.tapdeck-index");
    fs::rename(dir.join("decoy.pcap.tapdeck-index"), &index).expect("it was made");
    fs::remove_file(decoy).expect("it was made");
    (path, index)
}

/// A user who is nobody else.
const STRANGER: u32 = 65_534;

#[test]
fn an_index_of_a_stranger_leaves_nothing_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, index) = forge(dir.path());
    let count = |args: &[&str]| {
        let out = ask(&path, &[&["--count", "src host 10.9.9.9"], args].concat());
        assert!(out.status.success(), "{}", said(&out));
        (String::from_utf8_lossy(&out.stdout).trim().to_owned(), said(&out))
    };
    let is_believed = || {
        let (found, said) = count(&[]);
        assert_eq!(said.is_empty(), found == "0", "{found} {said}");
        assert!(found == "0" || said.contains("the index of a.pcap is not believed"), "{said}");
        found == "0"
    };
    let mode = |mode| fs::set_permissions(&index, Permissions::from_mode(mode)).expect("ours");
    assert!(is_believed(), "of root, who asks");
    assert_eq!(count(&["--no-trust-index"]), ("1".into(), String::new()));
    mode(0o666);
    assert!(!is_believed(), "everybody may have written it");
    mode(0o644);
    chown(&index, Some(STRANGER), None).expect("root may");
    assert!(!is_believed(), "it is a stranger's");
    chown(&path, Some(STRANGER), None).expect("root may");
    assert!(is_believed(), "whoever wrote the file may write its index");

    // Whoever asks makes an index of their own, and the stranger's stays.
    chown(&path, Some(0), None).expect("root may");
    let cache = dir.path().join("cache");
    let mut query = query(&path, &["--index", "--count", "src host 10.9.9.9"]);
    let out = query.env("XDG_CACHE_HOME", &cache).output().expect("it runs");
    assert!(out.status.success() && out.stderr.is_empty(), "{}", said(&out));
    assert_eq!(out.stdout, b"1\n");
    assert_eq!(indexes(&cache.join("tapdeck")).len(), 1);
    assert_eq!(fs::metadata(&index).expect("it stays").uid(), STRANGER);
}

/// The bytes of an index, from which another is made.
struct Forged(Vec<u8>);

impl Forged {
    const PAGE: usize = 4096;

    /// CRC32C, bit by bit.
    fn checksum(bytes: &[u8]) -> u32 {
        let step = |crc: u32| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 };
        !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
    }

    /// LEB128.
    fn number(mut n: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while n >= 0x80 {
            out.push(n as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
        out
    }

    /// Puts a section behind the others. Returns what names it in a directory.
    fn section(&mut self, bytes: &[u8]) -> Vec<u8> {
        let at = Self::number(self.0.len() as u64);
        self.0.extend(bytes);
        let checksum = Self::checksum(bytes).to_le_bytes();
        [&at[..], &Self::number(bytes.len() as u64), &checksum].concat()
    }

    /// Puts the directory behind everything, and what names it into the header.
    fn finish(mut self, directory: &[u8]) -> Vec<u8> {
        let at = self.0.len() as u64;
        self.0.extend(directory);
        self.0.resize(self.0.len().next_multiple_of(Self::PAGE), 0);
        let len = self.0.len() as u64;
        self.0[16..24].copy_from_slice(&len.to_le_bytes());
        self.0[80..88].copy_from_slice(&at.to_le_bytes());
        self.0[88..92].copy_from_slice(&(directory.len() as u32).to_le_bytes());
        self.0[92..96].copy_from_slice(&Self::checksum(directory).to_le_bytes());
        let checksum = Self::checksum(&self.0[..116]);
        self.0[116..120].copy_from_slice(&checksum.to_le_bytes());
        self.0
    }
}

/// Runs a query that may take so much memory.
fn ask_within(path: &Path, mebibytes: u64, args: &[&str]) -> Output {
    let mut command = Command::new("prlimit");
    command.arg(format!("--data={}", mebibytes << 20)).arg(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["query", "--dir", text(path)]).args(args);
    command.env_remove("XDG_CACHE_HOME").env_remove("HOME");
    command.output().expect("prlimit(1) is there")
}

/// Forges an index of so many granules, each a byte of the file, with groups that are all the same.
fn forged(sound: &[u8], granules: u64, group: &[u8]) -> Vec<u8> {
    let number = Forged::number;
    // A list of granules, two and two in a row.
    let list = [number(granules / 16), [0, 2].repeat(granules as usize / 32)].concat();
    let keys = [&[0, 6][..], &list].concat();
    // As many quarters as there are granules, none far from the next.
    let zeros = vec![0; granules as usize * 3 / 8];
    let quarters = [&[2 << 5, 10, 0, 0, 1][..], &number(granules), &zeros].concat();
    let mut forged = Forged(sound.to_vec());
    let section = forged.section(group);
    let (keys, quarters) = (forged.section(&keys), forged.section(&quarters));
    // All granules, one part of the file, the groups, then all granules as those that are not
    // wholly known and those that tell of losses.
    let all = [number(granules), number(1), number(granules - 2)].concat();
    let mut directory = [number(granules), number(1), number(24), number(granules)].concat();
    directory.extend([&[0, 2][..], &section].concat().repeat(granules as usize / 64));
    directory.extend([all.clone(), all].concat());
    // Protocols and IPv4 sources, each with a section of keys.
    directory.extend(number(2));
    for (number_of, first, section) in [(3, &[6][..], keys), (6, &[10, 0, 0, 1], quarters)] {
        let class = [&[0][..], &number(1), &number(1), first, &section].concat();
        directory.extend([number(number_of), number(class.len() as u64), class].concat());
    }
    forged.finish(&directory)
}

/// A few bytes of an index can name millions of granules, of losses in them, or of keys. Whoever
/// made it owns the file that it is of, so that it is believed.
#[test]
fn a_hostile_index_takes_no_more_than_64_mib() {
    /// What a query takes that finds no index.
    const USUAL: u64 = 24;
    const GRANULES: u64 = 1 << 24;
    let dir = tempfile::tempdir().expect("a directory");
    let (path, index) = forge(dir.path());
    let sound = fs::read(&index).expect("it was made");
    let empty = ask_within(&path, USUAL, &["--count", "--no-trust-index"]);
    assert_eq!((empty.status.code(), &empty.stdout[..]), (Some(0), &b"5000\n"[..]));

    // The last granule of a group has losses on many interfaces.
    let granule = |losses: u64| {
        let one = [&[0, 1, 0, 0, 2, 1][..], &[0; 4], &Forged::number(losses)].concat();
        [one, [1, 1].repeat(losses as usize)].concat()
    };
    let few = granule(0).repeat(64);
    let many = [granule(0).repeat(63), granule(1 << 19)].concat();
    // One that is not large is taken for an index. Its first granule is not at the beginning.
    let mut one_group = few.clone();
    one_group[0] = 24;
    fs::write(&index, forged(&sound, 64, &one_group)).expect("it is ours");
    for filter in ["tcp", "src host 10.0.0.1"] {
        let out = ask_within(&path, USUAL + 64, &["--explain", filter]);
        let told = String::from_utf8_lossy(&out.stdout);
        assert!(told.contains("granules: 64 of 64"), "{filter}: {told} {}", said(&out));
    }
    for (what, group) in [("granules", few), ("losses", many)] {
        fs::write(&index, forged(&sound, GRANULES, &group)).expect("it is ours");
        for args in [
            &["--count"][..],
            &["--count", "tcp or not tcp"],
            &["--count", "src host 10.0.0.1"],
            &["-w", "-"],
        ] {
            let out = ask_within(&path, USUAL + 64, args);
            assert!(out.status.success(), "{what} {args:?}: {:?} {}", out.status, said(&out));
        }
        let out = ask_within(&path, USUAL + 64, &["--index", "--count"]);
        assert_eq!((out.status.code(), &out.stdout[..]), (Some(0), &b"5000\n"[..]), "{what}");
    }
}

#[test]
fn an_index_that_can_be_put_nowhere_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, index) = forge(dir.path());
    chown(&index, Some(STRANGER), None).expect("root may");
    // Beside the file is another's, and a directory cannot be made in what is none.
    for (home, words) in [(None, "neither HOME nor XDG_CACHE_HOME"), (Some("/proc/none"), "/proc/")]
    {
        let mut query = query(&path, &["--index", "--count"]);
        if let Some(home) = home {
            query.env("HOME", home);
        }
        let out = query.output().expect("it runs");
        assert!(out.status.success(), "{}", said(&out));
        assert_eq!(out.stdout, b"5000\n");
        assert!(said(&out).contains("no index can be made of a.pcap (there is no place for it"));
        assert!(said(&out).contains(words), "{}", said(&out));
    }
}

#[test]
fn names_that_others_chose_do_nothing_to_a_terminal() {
    let dir = tempfile::tempdir().expect("a directory");
    let hostile = "eth0\x1b]0;owned\x07\n\u{9b}2J";
    let path = dir.path().join("a\x1b[2J.pcapng");
    let mut bytes = LITTLE.pcapng(hostile, 9, 0, &packets(&mut SplitMix64(1), 9));
    bytes.extend([6, 0, 0]);
    fs::write(&path, bytes).expect("a file");
    let is_harmless = |bytes: &[u8]| {
        let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
        !text.chars().any(|c| c.is_control() && c != '\n')
    };
    for args in [&[][..], &["--json"], &["--count"], &["--index"], &["--explain"]] {
        let out = ask(dir.path(), args);
        assert!(out.status.success(), "{}", said(&out));
        assert!(is_harmless(&out.stdout), "{:?}", String::from_utf8_lossy(&out.stdout));
        assert!(is_harmless(&out.stderr), "{:?}", said(&out));
        // Each packet is a line.
        let lines = String::from_utf8_lossy(&out.stdout).lines().count();
        assert!(!["", "--json"].contains(args.first().unwrap_or(&"")) || lines == 9, "{lines}");
        assert!(said(&out).contains(r"a\u{1b}[2J.pcapng ends at byte"), "{}", said(&out));
    }
    // In JSON the name is whole.
    let lines = ask(dir.path(), &["--json", "--limit", "1"]).stdout;
    let object: serde_json::Value = serde_json::from_slice(&lines).expect("an object");
    assert_eq!(object["interface"], hostile);
}

/// What `--explain` says of a search for an address.
fn explained(path: &Path) -> serde_json::Value {
    let out = answer(path, &["--explain", "--json", "src host 10.9.9.9"]);
    serde_json::from_slice(&out).expect("an object")
}

#[test]
fn an_index_narrows_what_is_read_until_the_file_changes() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("long.pcap");
    let rng = &mut SplitMix64(11);
    let mut made = packets(rng, 5000);
    // One that is looked for.
    made[3210].2[26..30].copy_from_slice(&[10, 9, 9, 9]);
    for bytes in [LITTLE.pcap(0xa1b2_3c4d, ETHERNET, &made), BIG.pcapng("eth0", 9, 0, &made)] {
        fs::write(&path, &bytes).expect("a file");
        assert_eq!(explained(&path)["segments_indexed"], 0);
        assert_eq!(answer(&path, &["--index", "--count", "src host 10.9.9.9"]), b"1\n");
        let told = explained(&path);
        assert_eq!((&told["segments_indexed"], &told["packets"]), (&1.into(), &1.into()), "{told}");
        assert_eq!(told["granules_wanted"], 1, "{told}");
        assert!(told["granules"].as_u64() > Some(10), "{told}");
        let read = told["segment_bytes_read"].as_u64().expect("a number");
        assert!(read < bytes.len() as u64 / 8, "{told}");
        // Outside of its times nothing is read.
        let outside = answer(&path, &["--explain", "--json", "--before", "2026-01-01T00:00:00Z"]);
        let outside: serde_json::Value = serde_json::from_slice(&outside).expect("an object");
        assert_eq!(outside["segments_outside"], 1, "{outside}");

        // It grows, and what comes is found.
        let more = LITTLE.pcap(0xa1b2_3c4d, ETHERNET, &made[3210..3211]);
        let more = match bytes[0] {
            0x0a => BIG.packet(0, made[0].0 as u64, &made[3210]),
            _ => more[24..].to_vec(),
        };
        fs::write(&path, [&bytes[..], &more].concat()).expect("a file");
        let told = explained(&path);
        assert_eq!((&told["segments_indexed"], &told["packets"]), (&0.into(), &2.into()), "{told}");
        answer(&path, &["--index", "--count"]);
        let told = explained(&path);
        assert_eq!((&told["segments_indexed"], &told["packets"]), (&1.into(), &2.into()), "{told}");

        // An index that is damaged is not believed, and made anew.
        let [index] = &indexes(dir.path())[..] else { panic!("one index") };
        let mut damaged = fs::read(index).expect("an index");
        damaged[4096..].fill(0);
        fs::write(index, damaged).expect("an index");
        assert_eq!(answer(&path, &["--count", "src host 10.9.9.9"]), b"2\n");
        assert_eq!(explained(&path)["segments_indexed"], 0);
        answer(&path, &["--index", "--count"]);
        assert_eq!(explained(&path)["segments_indexed"], 1);
    }
}

/// `tcpdump -i any` writes such, and tunnels have such: what is looked for stands elsewhere in
/// their packets.
#[test]
fn an_index_leaves_out_nothing_of_other_link_types() {
    const COOKED: u16 = 113;
    let dir = tempfile::tempdir().expect("a directory");
    let rng = &mut SplitMix64(13);
    let cook = |(ns, len, f): Plain| {
        let head = [0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 0, 0, 8, 0];
        (ns, len + 2, [&head[..], &f[14..]].concat())
    };
    let cooked: Vec<Plain> = packets(rng, 2000).into_iter().map(cook).collect();
    let raw = |(ns, len, f): Plain| (ns, len - 14, f[14..].to_vec());
    let raw: Vec<Plain> = packets(rng, 2000).into_iter().map(raw).collect();
    let files = [dir.path().join("cooked"), dir.path().join("raw")];
    fs::write(&files[0], LITTLE.pcap(0xa1b2_c3d4, COOKED, &cooked)).expect("a file");
    fs::write(&files[1], LITTLE.pcap(0xa1b2_c3d4, RAW, &raw)).expect("a file");
    answer(dir.path(), &["--index", "--count"]);
    assert_eq!(explained(dir.path())["segments_indexed"], 2);
    for expression in ["", "src host 10.0.0.3 and udp", "tcp port 53", "not port 53"] {
        let expected = by_tcpdump(&files, expression);
        let found = plain(&answer(dir.path(), &["-w", "-", expression]));
        assert!(found == expected, "{expression}: {} packets, not {}", found.len(), expected.len());
    }
}

/// What a file has of a packet beyond its own snap length is not there to libpcap.
#[test]
fn packets_end_at_the_snap_length_of_their_file() {
    const SNAPLEN: u32 = 26;
    const RADIOTAP: u16 = 127;
    let dir = tempfile::tempdir().expect("a directory");
    let rng = &mut SplitMix64(26);
    // A frame of data, whose type would stand 54 bytes behind the beginning of the radiotap header.
    let mut radio = vec![0; 86];
    radio[2] = 24;
    radio[24] = 0x08;
    radio[54..56].copy_from_slice(&[8, 6]);
    let files = [
        (ETHERNET, SNAPLEN, packets(rng, 300)),
        (RADIOTAP, SNAPLEN, vec![(1, 86, radio)]),
        // These mean any length.
        (ETHERNET, 0, packets(rng, 300)),
        (ETHERNET, u32::MAX, packets(rng, 300)),
    ];
    for (at, (link, snaplen, packets)) in files.into_iter().enumerate() {
        let path = dir.path().join(at.to_string());
        let mut file = LITTLE.pcap(0xa1b2_3c4d, link, &packets);
        file[16..20].copy_from_slice(&snaplen.to_le_bytes());
        fs::write(&path, file).expect("a file");
        for expression in ["", "not ip", "ip", "greater 60", "udp port 53", "not tcp"] {
            let expected = by_tcpdump(std::slice::from_ref(&path), expression);
            let found = plain(&answer(&path, &["-w", "-", expression]));
            assert!(
                found == expected,
                "{at}, {expression}: {}, not {}",
                found.len(),
                expected.len()
            );
        }
    }
}

#[test]
fn an_index_lies_in_the_cache_where_nobody_may_write() {
    let dir = tempfile::tempdir().expect("a directory");
    let (captures, cache) = (dir.path().join("captures"), dir.path().join("cache"));
    for path in [&captures, &cache] {
        fs::create_dir(path).expect("a directory");
    }
    let program = dir.path().join("tapdeck");
    copy_program(env!("CARGO_BIN_EXE_tapdeck"), &program);
    for (i, name) in ["a", "b"].iter().enumerate() {
        let made = packets(&mut SplitMix64(i as u64), 500);
        fs::write(captures.join(name), LITTLE.pcap(0xa1b2_c3d4, ETHERNET, &made)).expect("a file");
    }
    for (path, mode) in [(dir.path(), 0o755), (&captures, 0o555), (&cache, 0o777)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    }
    let ask = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", text(&program)]);
        command.args(["query", "--dir", text(&captures)]).args(args);
        let out = command.env("XDG_CACHE_HOME", &cache).output().expect("it runs");
        assert!(out.status.success() && out.stderr.is_empty(), "{}", said(&out));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    assert!(ask(&["--explain"]).contains("0 have an index"));
    assert_eq!(ask(&["--index", "--count"]), "1000\n");
    assert_eq!((indexes(&captures).len(), indexes(&cache.join("tapdeck")).len()), (0, 2));
    assert!(ask(&["--explain"]).contains("2 have an index, 0 were read"));
    let expected = by_tcpdump(&[captures.join("a"), captures.join("b")], "udp port 53");
    assert_eq!(ask(&["--count", "udp port 53"]), format!("{}\n", expected.len()));
}

#[test]
fn a_store_needs_no_index_of_this_kind() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join(".tapdeck.lock"), "").expect("a file");
    let out = ask(dir.path(), &["--index", "--count"]);
    assert_eq!(out.status.code(), Some(2), "{}", said(&out));
    assert!(said(&out).contains("is a store"), "{}", said(&out));
}
