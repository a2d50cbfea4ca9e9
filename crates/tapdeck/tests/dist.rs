//! `tapdeck dist`: capture files, tables and live packets in, every format out, and what it
//! refuses.

mod testbed;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use assert_cmd::Command;
use rustix::process::Signal;
use tapdeck_capture::interface::Interface;
use tapdeck_testkit::{Net, Running, Sender, wait_for};
use tempfile::TempDir;
use testbed::recorder::frame;

fn dist(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg("dist").args(args.split_whitespace()).timeout(Duration::from_secs(60));
    command
}

/// Runs it in a directory; it must succeed. Returns standard output and error.
fn run(dir: &TempDir, args: &str) -> (String, String) {
    let out = dist(args).current_dir(dir).output().expect("it runs");
    assert!(out.status.success(), "{args}: {}", said(&out));
    (String::from_utf8(out.stdout.clone()).expect("text"), said(&out))
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Asserts that the program ends with the code, and with one line of its own that holds all of
/// `words`.
fn refuses(mut command: Command, code: i32, words: &[&str]) {
    let out = command.output().expect("it runs");
    let said = said(&out);
    assert_eq!(out.status.code(), Some(code), "{command:?}: {said}");
    let last = said.lines().last().unwrap_or("");
    assert!(out.stdout.is_empty(), "{command:?} wrote something");
    for word in words {
        assert!(said.contains(word), "{command:?} does not say {word:?}: {said}");
    }
    if said.starts_with("tapdeck:") {
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(last.len() < 300, "{last}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

/// A pcap file of packets with their lengths on the wire.
fn pcap(link: u32, packets: &[(&[u8], u32)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut put = |n: u32| file.extend(n.to_le_bytes());
    [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, link].into_iter().for_each(&mut put);
    for (i, (bytes, len)) in packets.iter().enumerate() {
        for n in [1_700_000_000 + i as u32, 0, bytes.len() as u32, *len] {
            file.extend(n.to_le_bytes());
        }
        file.extend(*bytes);
    }
    file
}

/// Three IPv4 packets of 46 bytes, one of 1500, an IPv6 one of 540, and an ARP request, on
/// Ethernet, cut to 60 bytes.
fn ethernet() -> Vec<u8> {
    let to = [2, 0, 0, 0, 0, 2];
    let (small, large) = (frame(to, 60, 1), frame(to, 1514, 2));
    let mut six = frame(to, 554, 3);
    six[12..14].copy_from_slice(&[0x86, 0xdd]);
    six[14..22].copy_from_slice(&[0x60, 0, 0, 0, 0x01, 0xf4, 17, 64]);
    let mut arp = frame(to, 60, 4);
    arp[12..14].copy_from_slice(&[8, 6]);
    let packets: Vec<(&[u8], u32)> = [&small, &large, &small, &six, &arp, &small]
        .map(|f| (&f[..f.len().min(60)], f.len() as u32))
        .to_vec();
    pcap(1, &packets)
}

fn dir_with(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).expect("there is room");
    }
    dir
}

fn names(dir: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("it is there").flatten();
    let mut names: Vec<String> =
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

const FRAMES: &str = "# length: frame\n60 4\n554 1\n1514 1\n";
const IP_PACKETS: &str = "# length: ip\n46 3\n540 1\n1500 1\n";

#[test]
fn frames_and_ip_packets_of_a_capture_file_are_counted() {
    let dir = dir_with(&[("e.pcap", &ethernet())]);
    let (out, said) = run(&dir, "e.pcap");
    assert_eq!(out, FRAMES);
    for words in [
        "6 packets, frame lengths: mean 384.7 bytes, 60 to 1514",
        "     60               4   66.667 %   66.667 %",
        "1514               1   16.667 %  100.000 %",
        "KS distance to the source 0.000",
    ] {
        assert!(said.contains(words), "{words:?}: {said}");
    }
    let (out, said) = run(&dir, "e.pcap --length ip --top 1");
    assert_eq!(out, IP_PACKETS);
    assert!(said.contains("5 packets, IP packet lengths"), "{said}");
    assert!(said.contains("1 left out: no IP packets"), "{said}");
    assert!(!said.contains("1500  "), "only the first size is shown: {said}");
}

#[test]
fn any_link_type_is_counted() {
    let packet = &frame([0; 6], 554, 1)[14..];
    let cooked = [&[0; 14][..], &[8, 0], packet].concat();
    for (link, bytes, header) in [(101, packet, 0), (228, packet, 0), (113, &cooked[..], 16)] {
        let dir = dir_with(&[("x.pcap", &pcap(link, &[(bytes, 540 + header)]))]);
        assert_eq!(run(&dir, "x.pcap --length ip").0, "# length: ip\n540 1\n", "{link}");
        let frames = format!("# length: frame\n{} 1\n", 540 + header);
        assert_eq!(run(&dir, "x.pcap").0, frames, "{link}");
    }
    let dir = dir_with(&[("usb.pcap", &pcap(220, &[(packet, 540)]))]);
    assert_eq!(run(&dir, "usb.pcap").0, "# length: frame\n540 1\n");
    let mut command = dist("usb.pcap --length ip");
    command.current_dir(&dir);
    refuses(command, 1, &["usb.pcap", "link type 220", "--length frame"]);
}

#[test]
fn pcapng_standard_input_and_several_inputs_add_up() {
    let dir =
        dir_with(&[("e.pcap", &ethernet()), ("more.dist", b"# length: frame\n60 10\n99 5\n")]);
    let converted = std::process::Command::new("editcap")
        .args(["-F", "pcapng", "e.pcap", "e.pcapng"])
        .current_dir(&dir)
        .status();
    assert!(converted.expect("editcap is installed: make setup").success());
    assert_eq!(run(&dir, "e.pcapng").0, FRAMES);

    let sum = "# length: frame\n60 18\n99 5\n554 2\n1514 2\n";
    assert_eq!(run(&dir, "e.pcap e.pcapng more.dist").0, sum);
    let piped = dist("e.pcap - more.dist").current_dir(&dir).write_stdin(ethernet()).output();
    assert_eq!(String::from_utf8_lossy(&piped.expect("it runs").stdout), sum);
    // A table of IP packets has a capture file counted so.
    fs::write(dir.path().join("ip.dist"), IP_PACKETS).expect("there is room");
    assert_eq!(run(&dir, "ip.dist e.pcap").0, "# length: ip\n46 6\n540 2\n1500 2\n");
}

#[test]
fn every_format_is_written_and_read_back() {
    let dir = dir_with(&[("ip.dist", IP_PACKETS.as_bytes())]);
    run(&dir, "ip.dist --to toml -o a.toml");
    assert_eq!(run(&dir, "a.toml").0, IP_PACKETS);
    assert_eq!(
        run(&dir, "ip.dist --separator ,").0,
        IP_PACKETS.replace(' ', ",").replace("#,length:,", "# length: ")
    );
    run(&dir, "ip.dist --separator ; -o b.csv");
    assert_eq!(
        run(&dir, "b.csv --separator ;").0,
        IP_PACKETS.replace(' ', ";").replace("#;length:;", "# length: ")
    );

    let model = "dist 5 20 1500 3 0\noutl 46 3\noutl 540 1\noutl 1500 1\nflag PKTSIZE_REAL\n";
    assert_eq!(run(&dir, "ip.dist --to pktgen --precision 5").0, model);
    let (script, _) = run(&dir, "ip.dist --to pktgen --precision 5 --surround-pgset -o script");
    assert_eq!(script, "");
    let script = fs::read_to_string(dir.path().join("script")).expect("it was written");
    let wrapped: Vec<String> = model.lines().map(|line| format!("pgset \"{line}\"")).collect();
    assert_eq!(script, wrapped.join("\n") + "\n# length: ip\n");
    let (back, said) = run(&dir, "script");
    assert_eq!(back, "# length: ip\n46 3\n540 1\n1500 1\n");
    assert!(said.contains("shares of a two-stage model, IP packet lengths"), "{said}");
}

#[test]
fn parameters_shape_the_model() {
    let packets = |size| if size == 50 { 100 } else { 1 };
    let lines: Vec<String> = (1..=100).map(|size| format!("{size} {}", packets(size))).collect();
    let text = lines.join("\n");
    let dir = dir_with(&[("d", text.as_bytes())]);
    // 198 packets of up to 99 bytes: the outlier's 100 less its bin's average of 1, and ten bins.
    let (out, _) =
        run(&dir, "d --to pktgen --outlier-bound 0.1 --bin-width 10 --precision 198 --max-size 99");
    assert!(out.starts_with("dist 198 10 99 1 10\noutl 50 99\nhist 0 9\nhist 10 10\n"), "{out}");
    let cells = |word: &str| -> u32 {
        let of = out.lines().filter(|line| line.starts_with(word));
        of.filter_map(|line| line.split(' ').nth(2)?.parse::<u32>().ok()).sum()
    };
    assert_eq!((cells("outl "), cells("hist ")), (99, 99), "{out}");
    let (_, said) = run(&dir, "d --max-size 99");
    assert!(said.contains("1 left out: larger than --max-size"), "{said}");
    assert!(!run(&dir, "d --max-size 99").0.contains("100 1\n"));
    // By default nothing is left out, however large.
    fs::write(dir.path().join("jumbo"), "9000 1\n60 1\n").expect("there is room");
    assert!(run(&dir, "jumbo --to pktgen").0.starts_with("dist 1000 20 9000 2 0\n"));
}

#[test]
fn a_sample_is_near_its_source_and_the_same_for_a_seed() {
    let packets = |size: u64| 1 + size * 7919 % 101 + if size % 500 == 40 { 50_000 } else { 0 };
    let lines: Vec<String> = (40..=1500).map(|n| format!("{n} {}", packets(n))).collect();
    let table = lines.join("\n");
    let dir = dir_with(&[("d", table.as_bytes())]);
    let (sample, said) = run(&dir, "d --to sizes -n 100000");
    assert_eq!(sample.lines().count(), 100_000);
    assert!(said.contains("seed 1, KS distance to the source 0.00"), "{said}");
    assert_eq!(sample, run(&dir, "d --to sizes -n 100000 --seed 1").0);
    assert_ne!(sample, run(&dir, "d --to sizes -n 100000 --seed 2").0);
    // The distribution of the sample, judged by what reads it.
    fs::write(dir.path().join("sample"), &sample).expect("there is room");
    let count = |text: &str, size: &str| -> f64 {
        let line = text.lines().find_map(|l| l.strip_prefix(size)?.strip_prefix(' '));
        line.and_then(|n| n.parse().ok()).unwrap_or(0.0)
    };
    let total = (40..=1500).map(packets).sum::<u64>() as f64;
    let back = run(&dir, "sample").0;
    for size in ["40", "540", "1040"] {
        let (want, got) = (count(&table, size) / total, count(&back, size) / 100_000.0);
        assert!((want - got).abs() < 0.01, "{size}: {got}, not {want}");
    }
}

#[test]
fn a_damaged_capture_file_is_used_up_to_the_damage_only_if_asked() {
    let whole = ethernet();
    let dir = dir_with(&[("cut.pcap", &whole[..whole.len() - 5]), ("out", b"before")]);
    let mut command = dist("cut.pcap -o out");
    command.current_dir(&dir);
    refuses(command, 1, &["cut.pcap", "cut short", "--up-to-damage"]);
    assert_eq!(fs::read(dir.path().join("out")).expect("it was there"), b"before");
    assert_eq!(names(&dir), ["cut.pcap", "out"], "no other file is left");
    let (_, said) = run(&dir, "cut.pcap -o out --up-to-damage");
    assert!(said.contains("cut short") && said.contains("5 packets"), "{said}");
    let out = fs::read_to_string(dir.path().join("out")).expect("it was written");
    assert_eq!(out, "# length: frame\n60 3\n554 1\n1514 1\n");
}

#[test]
fn bad_input_is_one_line() {
    let arp = pcap(1, &[(&[0; 60], 60)]);
    let dir = dir_with(&[
        ("empty", b""),
        ("nothing.pcap", &pcap(1, &[])),
        ("header.pcap", &pcap(1, &[])[..20]),
        ("arp.pcap", &arp),
        ("zero", b"60 0\n61 0\n"),
        ("negative", b"60 1\n61 -1\n"),
        ("word", b"60 1\n61 many\n"),
        ("wide", b"60 1\n61 99999999999999999999\n"),
        ("full", b"60 18446744073709551615\n"),
        ("one", b"60 1\n"),
        ("large", b"70000 1\n"),
        ("binary", &[0xff, 0xfe, 0, 1, 2, 3]),
        ("ip.dist", IP_PACKETS.as_bytes()),
        ("e.pcap", &ethernet()),
        ("model", b"dist 10 20 1500 1 0\noutl 60 10\nflag PKTSIZE_REAL\n"),
    ]);
    for (args, words) in [
        ("absent", &["absent", "No such file"][..]),
        (".", &["header.pcap", "cut short"]),
        ("empty", &["empty", "is empty"]),
        ("nothing.pcap", &["nothing.pcap", "no packets"]),
        ("header.pcap", &["cut short"]),
        ("arp.pcap --length ip", &["arp.pcap", "of its 1, none is an IP packet", "--length frame"]),
        ("zero", &["zero", "all its counts are 0"]),
        ("negative", &["negative: line 2", "-1 is negative"]),
        ("word", &["word: line 2", "\"many\" is no whole number"]),
        ("wide", &["wide: line 2", "does not fit into 64 bits"]),
        ("full one", &["one", "64-bit"]),
        ("large", &["line 1: size 70000 is not within 1 to 65535"]),
        ("binary", &["binary: line 1", "neither text"]),
        ("one --from trace", &["one", "magic number"]),
        ("e.pcap --from dist", &["e.pcap: line 1", "neither text"]),
        ("ip.dist --length frame", &["ip.dist", "--length ip"]),
        ("e.pcap ip.dist", &["ip.dist", "e.pcap", "do not add up", "--length ip"]),
        ("model one", &["model", "by itself"]),
        ("one --max-size 59", &["at most 59 bytes", "--max-size"]),
        ("one -o no/such/place", &["cannot write no/such/place", "No such file"]),
        ("one -o .", &["cannot write .", "directory"]),
        ("one --plot no/such/place.svg", &["cannot write no/such/place.svg"]),
        ("-i nope", &["nope"]),
    ] {
        let before = names(&dir);
        let mut command = dist(args);
        command.current_dir(&dir);
        refuses(command, 1, words);
        assert_eq!(names(&dir), before, "{args} left a file");
    }
}

#[test]
fn wrong_usage_is_told_from_bad_input() {
    for (args, words) in [
        ("", &["what to read", "-i IFACE"][..]),
        ("- -", &["named twice"]),
        ("- -o x --plot x", &["-o and --plot"]),
        ("- --surround-pgset", &["--to pktgen"]),
        ("- --seed 5", &["--to sizes"]),
        ("- -n 5 --to toml", &["--to sizes"]),
        ("- -n 0 --to sizes", &["0"]),
        ("- --outlier-bound 0", &["above 0"]),
        ("- --outlier-bound nan", &["above 0"]),
        ("- --outlier-bound 1.5", &["up to 1"]),
        ("- --bin-width 0", &["bin-width"]),
        ("- --precision 0", &["precision"]),
        ("- --precision 1000001", &["precision"]),
        ("- --max-size 0", &["max-size"]),
        ("- --max-size 65536", &["max-size"]),
        ("- --separator 5", &["one character"]),
        ("- --separator ,,", &["one character"]),
        ("- --to procfs", &["pktgen", "sizes"]),
        ("- --from pcap", &["trace", "toml"]),
        ("- --length wire", &["frame", "ip"]),
        ("- --duration 5s", &["are for -i"]),
        ("- --count 5", &["are for -i"]),
        ("- -i lo", &["--interface"]),
    ] {
        refuses(dist(args), 2, words);
    }
}

#[test]
fn help_says_the_defaults_and_shows_examples() {
    let out = dist("--help").output().expect("it runs");
    let text = String::from_utf8_lossy(&out.stdout);
    for words in ["Examples:", "--to pktgen --surround-pgset", "0.002", "2 %", "[default: 1000000]"]
    {
        assert!(text.contains(words), "{words:?}: {text}");
    }
}

#[test]
fn a_plot_is_well_formed_and_names_its_source() {
    let dir = dir_with(&[("a & <b>", b"60 5\n1514 3\n")]);
    let mut command = dist("--plot p.svg -o d");
    let out = command.arg("a & <b>").current_dir(&dir).output().expect("it runs");
    assert!(out.status.success(), "{}", said(&out));
    let svg = fs::read_to_string(dir.path().join("p.svg")).expect("it was written");
    let document = roxmltree::Document::parse(&svg).expect("well-formed XML");
    let texts: Vec<&str> = document.descendants().filter_map(|n| n.text()).map(str::trim).collect();
    for text in ["Packet sizes of a & <b>", "frame size, bytes", "source", "two-stage model"] {
        assert!(texts.contains(&text), "{text:?} is not in {texts:?}");
    }
    assert_eq!(names(&dir), ["a & <b>", "d", "p.svg"]);
}

#[test]
fn a_pipe_is_written_and_not_replaced_and_a_closed_one_is_no_error() {
    let dir = dir_with(&[("d", b"60 5\n")]);
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("coreutils");
    assert!(made.success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).expect("it is written")
    });
    run(&dir, "d -o pipe");
    assert_eq!(reader.join().expect("it ends"), "# length: frame\n60 5\n");

    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_tapdeck"))
        .args(["dist", "d", "--to", "sizes"])
        .current_dir(&dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it was built");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    out.read_line(&mut String::new()).expect("it writes");
    drop(out);
    assert!(child.wait().expect("it was started").success());
}

/// `tapdeck dist -i vb` that counts already.
struct Live {
    process: Running,
    errors: BufReader<std::process::ChildStderr>,
    out: PathBuf,
}

impl Live {
    fn start(net: &Net, dir: &Path, flags: &str) -> Self {
        let out = dir.join("out");
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["dist", "-i", "vb", "-o"]).arg(&out).args(flags.split_whitespace());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it was built");
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("it says that it counts");
        assert!(line.contains("counting the packets of vb"), "{line}");
        Self { process: Running(child), errors, out }
    }

    /// What it wrote and said, once it has ended well.
    fn finish(mut self) -> (String, String) {
        let lines: Vec<String> = self.errors.lines().map_while(Result::ok).collect();
        let said = lines.join("\n");
        let status = self.process.0.wait().expect("it was started");
        assert!(status.success(), "{said}");
        (fs::read_to_string(&self.out).expect("it was written"), said)
    }
}

fn send(net: &Net, sizes: &[(usize, u32)]) {
    let to = net.b.inside(|| Interface::find("vb").expect("made above")).mac.expect("a MAC");
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        for (size, n) in sizes {
            (0..*n).for_each(|i| sender.send(&frame(to, *size, i)));
        }
    });
}

#[test]
fn live_packets_are_counted_up_to_a_count() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let live = Live::start(&net, dir.path(), "--count 40");
    send(&net, &[(60, 30), (1514, 30)]);
    let (out, said) = live.finish();
    assert_eq!(out, "# length: frame\n60 30\n1514 10\n");
    assert!(said.contains("40 packets, frame lengths"), "{said}");
}

#[test]
fn ctrl_c_ends_a_live_count_with_a_right_result() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let live = Live::start(&net, dir.path(), "--length ip");
    let received =
        || net.b.inside(|| Interface::find("vb").expect("made above").counters.rx_packets);
    let before = received();
    send(&net, &[(60, 20), (600, 10), (1514, 5)]);
    wait_for("the packets to arrive", || received() >= before + 35);
    live.process.signal(Signal::INT);
    let (out, said) = live.finish();
    assert_eq!(out, "# length: ip\n46 20\n586 10\n1500 5\n");
    assert!(said.contains("35 packets, IP packet lengths"), "{said}");
}

#[test]
fn a_live_count_ends_by_itself_and_says_where_nothing_came() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", net.b.name(), env!("CARGO_BIN_EXE_tapdeck")]);
    command.args(["dist", "-i", "vb", "--duration", "100ms", "-o", "out"]).current_dir(&dir);
    let out = command.output().expect("it runs");
    assert_eq!(out.status.code(), Some(1));
    assert!(said(&out).contains("vb: no packet came"), "{}", said(&out));
    assert!(names(&dir).is_empty(), "nothing was written");
}
