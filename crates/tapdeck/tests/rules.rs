//! `tapdeck rules`: three verbs over small files whose answers are computed by hand.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

/// Fourteen packets, see [`trace`].
const RULES: &str = "\
# line 1
accept     src 10.0.0.0/8 dst any          sport any dport 53  proto udp
drop       src 10.0.0.7   dst any          sport any dport any proto any
snaplen=96 src any        dst 192.0.2.0/24 sport any dport any proto tcp
group=ids  src any        dst any          sport any dport any proto icmp
accept     src 2001:db8::/32 dst any       sport any dport any proto any
accept     src 10.9.0.0/16 dst any         sport any dport 53  proto udp # inside line 2
drop       src 10.0.0.7   dst any          sport any dport any proto any # line 3 again
accept     src any        dst any          sport 1   dport any proto icmp # never
";

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn tapdeck(verb: &str) -> Command {
    let mut command = Command::cargo_bin("tapdeck").unwrap();
    command.args(["rules", verb]);
    command
}

fn ipv4(
    source: [u8; 4],
    destination: [u8; 4],
    protocol: u8,
    fragment: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 0, 0x77, 0x77]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol, 0, 0]);
    frame.extend(source);
    frame.extend(destination);
    frame.extend(payload);
    frame
}

fn ipv6(source: [u8; 2], next: u8) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, next, 64]);
    frame.extend([0x20, 1, source[0], source[1]]);
    frame.extend([0; 28]);
    frame
}

fn ports(source: u16, destination: u16) -> [u8; 4] {
    let mut bytes = [0; 4];
    bytes[..2].copy_from_slice(&source.to_be_bytes());
    bytes[2..].copy_from_slice(&destination.to_be_bytes());
    bytes
}

fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (second, frame) in (1..).zip(frames) {
        let length = frame.len() as u32;
        for word in [second, 0u32, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// The number of the rule that takes each packet stands behind it.
fn trace() -> Vec<u8> {
    let (server, other) = ([192, 0, 2, 1], [198, 51, 100, 1]);
    let more = 0x2000;
    pcap(&[
        // Ranks: 0: 32, 1: 32, 2: 32, 3: 8, 4: 32, 5: 40, 6: 32, 7: 24.
        ipv4([10, 1, 0, 1], other, 17, 0, &ports(40000, 53)), // 0
        ipv4([10, 1, 0, 1], other, 17, 0, &ports(40000, 54)), // none
        ipv4([10, 0, 0, 7], other, 17, 0, &ports(40000, 53)), /* 0, of the same rank as 1, and
                                                               * before it */
        ipv4([10, 0, 0, 7], other, 17, 0, &ports(40000, 54)), // 1
        ipv4([10, 0, 0, 7], server, 6, 0, &ports(40000, 80)), // 1, before 2
        ipv4([10, 0, 0, 8], server, 6, 0, &ports(40000, 80)), // 2
        ipv4([10, 0, 0, 8], other, 1, 0, &[8, 0, 0, 0]),      // 3
        ipv6([0x0d, 0xb8], 58),                               // 4, before 3
        ipv6([0x0d, 0xb9], 58),                               // 3
        ipv4([10, 9, 0, 1], other, 17, 0, &ports(40000, 53)), // 5
        // A datagram in fragments: the second has the first one's ports.
        ipv4([10, 1, 0, 2], other, 17, more, &ports(40000, 53)), // 0
        ipv4([10, 1, 0, 2], other, 17, 100, &[0; 8]),            // 0
        // No first fragment was seen.
        ipv4([10, 1, 0, 3], other, 17, 100, &[0; 8]), // none
        // No IP.
        [&[2; 12][..], &[8, 6], &[0; 28]].concat(), // none
    ])
}

fn json(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn test_tells_what_each_rule_takes() {
    let scratch = Scratch::new();
    let (rules, trace) = (scratch.file("r", RULES), scratch.file("t.pcap", trace()));
    let told = json(&tapdeck("test").args([&rules, &trace]).arg("--json").output().unwrap());
    let field = |name: &str| -> Vec<u64> {
        let rules = told["rules"].as_array().unwrap();
        rules.iter().map(|rule| rule[name].as_u64().unwrap()).collect()
    };
    assert_eq!(field("hits"), [4, 2, 1, 2, 1, 1, 0, 0]);
    assert_eq!(field("line"), [2, 3, 4, 5, 6, 7, 8, 9]);
    // A UDP packet has 38 bytes, the later fragment 42.
    assert_eq!(field("bytes"), [3 * 38 + 42, 2 * 38, 38, 38 + 54, 54, 38, 0, 0]);
    assert_eq!(
        told["rules"][2]["rule"],
        "snaplen=96 src any dst 192.0.2.0/24 sport any dport any proto tcp"
    );
    let total = |name: &str| told[name].as_u64().unwrap();
    assert_eq!(
        [total("packets"), total("accepted"), total("dropped"), total("none")],
        [14, 9, 2, 3]
    );
}

#[test]
fn a_range_of_ports_is_one_rule() {
    let scratch = Scratch::new();
    let rules = "accept src any dst any sport any dport 54-80 proto any\n\
                 accept src any dst any sport any dport 53 proto any\n\
                 drop src any dst any sport any dport 80 proto any\n";
    let (rules, trace) = (scratch.file("r", rules), scratch.file("t.pcap", trace()));
    let told = json(&tapdeck("test").args([&rules, &trace]).arg("--json").output().unwrap());
    let hits = |n: usize| told["rules"][n]["hits"].as_u64();
    assert_eq!([hits(0), hits(1), hits(2)], [Some(4), Some(5), Some(0)]);
    assert_eq!(told["rules"][0]["rule"], "accept src any dst any sport any dport 54-80 proto any");
    let told = json(&tapdeck("explain").arg(&rules).arg("--json").output().unwrap());
    assert_eq!((&told["rules"], &told["signatures"][0]["rules"]), (&3.into(), &3.into()));
    assert_eq!(told["bloom"]["patterns"], 2 * (27 + 1), "for both families");
    assert_eq!(told["not_needed"][0]["line"], 3);
    let compiled = tapdeck("compile").arg("--merge").arg(&rules).output().unwrap();
    let compiled = String::from_utf8(compiled.stdout).unwrap();
    assert!(compiled.contains("dport 54-80 proto any\n"), "{compiled}");
}

#[test]
fn test_reads_standard_input_and_writes_for_people() {
    let scratch = Scratch::new();
    let rules = scratch.file("r", RULES);
    let output = tapdeck("test").arg(&rules).arg("-").write_stdin(trace()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.ends_with("\n14 packets: 9 accepted, 2 dropped, 3 that no rule takes\n"),
        "{text}"
    );
    let line = text.lines().find(|line| line.contains("proto udp")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[..4], ["4", "156", "B", "2"]);
    assert!(output.stderr.is_empty());

    let trace = scratch.file("t.pcap", trace());
    let output = tapdeck("test").arg("-").arg(&trace).write_stdin(RULES).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
}

#[test]
fn a_damaged_trace_is_told_and_its_beginning_taken_if_asked() {
    let scratch = Scratch::new();
    let rules = scratch.file("r", RULES);
    let mut bytes = trace();
    bytes.truncate(bytes.len() - 1);
    let trace = scratch.file("t.pcap", bytes);
    let failed = tapdeck("test").args([&rules, &trace]).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    let told = String::from_utf8(failed.stderr).unwrap();
    assert!(told.contains("t.pcap: cut short") && told.contains("--up-to-damage"), "{told}");
    assert!(failed.stdout.is_empty());
    let taken =
        tapdeck("test").args([&rules, &trace]).args(["--up-to-damage", "--json"]).output().unwrap();
    assert_eq!(json(&taken)["packets"], 13);
}

#[test]
fn faults_of_a_file_are_told_all_at_once() {
    let scratch = Scratch::new();
    let rules = scratch.file("bad", "accept src any\n\nallow\n");
    for verb in ["compile", "explain"] {
        let output = tapdeck(verb).arg(&rules).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 3, "{told}");
        assert!(
            lines[0].starts_with("tapdeck: ") && lines[0].contains("bad: line 1: the line ends"),
            "{told}"
        );
        assert!(lines[1].contains("bad: line 3: \"allow\" is no action"), "{told}");
        assert!(lines[2].ends_with("bad: faults in 2 lines, as told above"), "{told}");
        assert!(output.stdout.is_empty());
    }
    let rules = scratch.file("one", "allow\n");
    let output = tapdeck("explain").arg(&rules).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.lines().count() == 1 && told.contains("one: line 1: \"allow\" is no action"),
        "{told}"
    );
}

#[test]
fn wrong_usage_and_what_cannot_be_read() {
    let scratch = Scratch::new();
    let rules = scratch.file("r", RULES);
    let code = |command: &mut Command| {
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!told.contains("panicked"), "{told}");
        (output.status.code(), told)
    };
    let (exit, told) = code(tapdeck("test").args(["-", "-"]));
    assert_eq!((exit, told.contains("named twice")), (Some(2), true), "{told}");
    assert_eq!(code(tapdeck("test").arg(&rules)).0, Some(2));
    assert_eq!(code(tapdeck("compile").arg(&rules).args(["--growth", "0.5"])).0, Some(2));
    assert_eq!(code(tapdeck("compile").arg(&rules).arg("--up-to-damage")).0, Some(2));
    let (exit, told) = code(tapdeck("explain").arg(scratch.0.path().join("none")));
    assert!(exit == Some(1) && told.contains("none"), "{told}");
    let (exit, told) = code(tapdeck("test").arg(&rules).arg(scratch.0.path()));
    assert!(exit == Some(1) && told.contains("has no segments and no pcap"), "{told}");
    let empty = scratch.file("e.pcap", pcap(&[]));
    let (exit, told) = code(tapdeck("compile").arg(&rules).arg("--sample").arg(&empty));
    assert!(exit == Some(1) && told.contains("holds no packet"), "{told}");
    let target = Path::new("/proc/nothing/here");
    assert_eq!(code(tapdeck("compile").arg(&rules).arg("-o").arg(target)).0, Some(1));
}

#[test]
fn explain_tells_signatures_cost_and_what_is_not_needed() {
    let scratch = Scratch::new();
    let (rules, trace) = (scratch.file("r", RULES), scratch.file("t.pcap", trace()));
    let mut command = tapdeck("explain");
    let told =
        json(&command.arg(&rules).arg("--sample").arg(&trace).arg("--json").output().unwrap());
    assert_eq!(told["rules"], 8);
    let signatures: Vec<(u64, &str, u64)> = told["signatures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| {
            (
                s["rank"].as_u64().unwrap(),
                s["signature"].as_str().unwrap(),
                s["rules"].as_u64().unwrap(),
            )
        })
        .collect();
    let mut expected = [
        (40, "ipv4 src/16 dport proto", 1),
        (32, "ipv4 src/8 dport proto", 1),
        (32, "ipv4 src/32", 2),
        (32, "ipv4 dst/24 proto", 1),
        (32, "ipv6 src/32", 1),
        (24, "ipv4 sport proto", 1),
        (24, "ipv6 sport proto", 1),
        (8, "ipv4 proto", 1),
        (8, "ipv6 proto", 1),
    ];
    let mut signatures = signatures;
    assert!(signatures.is_sorted_by_key(|s| std::cmp::Reverse(s.0)));
    signatures.sort_unstable();
    expected.sort_unstable();
    assert_eq!(signatures, expected);

    let not_needed = told["not_needed"].as_array().unwrap();
    let not_needed: Vec<_> = not_needed
        .iter()
        .map(|r| (r["line"].as_u64(), r["why"].as_str(), r["because_of_line"].as_u64()))
        .collect();
    assert_eq!(
        not_needed,
        [(Some(7), Some("subset"), Some(2)), (Some(8), Some("duplicate"), Some(3))]
    );
    assert_eq!(told["impossible"][0]["line"], 9);
    let bloom = &told["bloom"];
    assert!(bloom["rate"].as_f64() <= bloom["promised_rate"].as_f64(), "{bloom}");
    assert_eq!((&bloom["hashes"], bloom["promised_rate"].as_f64()), (&Value::from(4), Some(0.002)));
    assert!(told["kernel_bytes"].as_u64() > Some(0));
    let tries = &told["tries"];
    assert_eq!((&tries["packets"], &tries["is_sample"]), (&Value::from(14), &Value::from(true)));
    assert!(tries["candidates_mean"].as_f64() <= tries["walk_mean"].as_f64(), "{tries}");

    let output = tapdeck("explain").arg(&rules).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for expected in
        ["signatures  9\n", "ipv4 src/16 dport proto", "line 9: ", "(does the same as line 2)"]
    {
        assert!(text.contains(expected), "{text}");
    }
}

/// Look-ups of three packets in three signatures, counted by hand.
#[test]
fn explain_counts_look_ups() {
    let scratch = Scratch::new();
    let rules = scratch.file(
        "r",
        "accept src 10.0.0.1 dst any sport any dport any proto any
        accept src any dst any sport any dport 53 proto any
        accept src any dst any sport any dport any proto 1\n",
    );
    let trace = scratch.file(
        "t.pcap",
        pcap(&[
            // The first look-up ends it.
            ipv4([10, 0, 0, 1], [10, 0, 0, 9], 17, 0, &ports(1, 53)),
            // Source in vain, then the port: one candidate, and nothing better left.
            ipv4([10, 0, 0, 2], [10, 0, 0, 9], 17, 0, &ports(1, 53)),
            // Nothing fits; all three are looked up, none is a candidate.
            ipv4([10, 0, 0, 2], [10, 0, 0, 9], 17, 0, &ports(1, 54)),
        ]),
    );
    let mut command = tapdeck("explain");
    let told =
        json(&command.arg(&rules).arg("--sample").arg(&trace).arg("--json").output().unwrap());
    let tries = &told["tries"];
    assert_eq!(tries["walk_mean"], 2.0);
    assert_eq!((&tries["walk_max"], &tries["candidates_max"]), (&Value::from(3), &Value::from(1)));
    let mean = tries["candidates_mean"].as_f64().unwrap();
    assert!((mean - 2.0 / 3.0).abs() < 1e-9, "{mean}");
}

#[test]
fn a_bloom_filter_of_a_fixed_size_keeps_its_promise_or_says_so() {
    let scratch = Scratch::new();
    let mut text = String::new();
    for n in 0..200 {
        let _ = writeln!(text, "accept src 10.0.0.{n} dst any sport any dport any proto any");
    }
    let rules = scratch.file("r", text);
    let explain =
        |arguments: &[&str]| tapdeck("explain").arg(&rules).args(arguments).output().unwrap();
    let failed = explain(&["--bloom-bits", "1024"]);
    let told = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(2));
    // f = (1 - e^(-4*200/1024))^4
    assert!(
        told.contains(
            "200 patterns in a Bloom filter of 1024 bits make a false-positive rate of 0.0864"
        ),
        "{told}"
    );
    assert!(told.contains("or 4096 bits"), "{told}");
    let told = json(&explain(&["--bloom-bits", "4096", "--json"]));
    assert_eq!(told["bloom"]["bits"], 4096);
    let told = json(&explain(&["--false-positive-rate", "0.1", "--json"]));
    assert_eq!(told["bloom"]["bits"], 1024);
    assert!(!explain(&["--false-positive-rate", "0"]).status.success());
}

#[test]
fn compile_chooses_signatures_and_writes_a_file_that_judges_alike() {
    let scratch = Scratch::new();
    let mut text = String::new();
    for n in 0..30 {
        let _ = writeln!(text, "accept src 10.1.{n}.0/24 dst any sport any dport any proto any");
    }
    text += "drop src 10.2.0.0/23 dst any sport any dport any proto any\n";
    text += "drop src 10.2.1.0/24 dst any sport any dport any proto any\n";
    let rules = scratch.file("r", text);
    let compiled = scratch.0.path().join("compiled");
    let output = tapdeck("compile").arg(&rules).arg("-o").arg(&compiled).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{told}");
    assert!(told.contains("signatures: 2 before, 1 now"), "{told}");
    assert!(told.contains("one rule is not needed: --merge"), "{told}");
    let written = std::fs::read_to_string(&compiled).unwrap();
    // The half that line 32 takes is not written again.
    assert!(
        written.contains(
            "# parts of line 31: drop src 10.2.0.0/23 dst any sport any dport any proto any\n\
         drop src 10.2.0.0/24 dst any sport any dport any proto any\n"
        ),
        "{written}"
    );
    assert_eq!(written.lines().filter(|line| !line.starts_with('#')).count(), 32);

    let frames: Vec<_> = [[10, 2, 0, 9], [10, 2, 1, 9], [10, 1, 29, 9], [10, 1, 30, 9]]
        .map(|source| ipv4(source, [1, 1, 1, 1], 6, 0, &ports(1, 1)))
        .into();
    let trace = scratch.file("t.pcap", pcap(&frames));
    for file in [&rules, &compiled] {
        let told = json(&tapdeck("test").args([file, &trace]).arg("--json").output().unwrap());
        assert_eq!(
            [&told["accepted"], &told["dropped"], &told["none"]].map(Value::as_u64),
            [Some(1), Some(2), Some(1)]
        );
    }
    // Merged, to standard output; no growth allowed.
    let output =
        tapdeck("compile").arg(&rules).args(["--merge", "--growth", "1"]).output().unwrap();
    let written = String::from_utf8(output.stdout).unwrap();
    assert_eq!(written.lines().filter(|line| !line.starts_with('#')).count(), 31);
    assert!(!written.contains("10.2.1.0/24") && written.contains("10.2.0.0/23"), "{written}");
}

#[test]
fn rules_of_groups_can_be_explained_and_empty_files_are_sets_that_take_nothing() {
    let scratch = Scratch::new();
    let rules = scratch.file("r", "group=a src any dst any sport any dport any proto any\n");
    assert!(tapdeck("explain").arg(&rules).output().unwrap().status.success());
    let empty = scratch.file("e", "# nothing\n");
    for verb in ["explain", "compile"] {
        let output = tapdeck(verb).arg(&empty).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let trace = scratch.file("t.pcap", trace());
    let told = json(&tapdeck("test").args([&empty, &trace]).arg("--json").output().unwrap());
    assert_eq!((&told["packets"], &told["none"]), (&Value::from(14), &Value::from(14)));
}
