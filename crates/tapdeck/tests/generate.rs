//! `tapdeck gen`: what it says it sent is what came, packet for packet, whatever the back end; and
//! what it refuses.

mod testbed;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tapdeck_capture::transmit::live::LONGEST;
use tapdeck_packet::generate::{TAG_BYTES, Transport};
use tapdeck_testkit::{Cable, Net, Running, kernel, wait_for};
use tapdeck_traffic::sent::Sent;
use testbed::recorder::{Contents, Recorder, number};

const BACKENDS: [&str; 3] = ["xdp", "txring", "afxdp"];

fn command(net: &Net, args: &str) -> Command {
    let mut command = net.a.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.arg("gen").args(args.split_whitespace()).stdin(Stdio::null());
    command
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Runs it to its end; it must succeed. Returns its record.
fn run(net: &Net, args: &str) -> (Sent, String) {
    let out = command(net, &format!("{args} --json -")).output().expect("it runs");
    assert!(out.status.success(), "{args}: {}", said(&out));
    let sent = serde_json::from_slice(&out.stdout).expect("the record on standard output");
    (sent, said(&out))
}

/// Sends so many packets to a recorder. Returns the record, and the frames in the order of
/// arrival. The kernel's generator waits for nobody, so what a far end refuses that did not get its
/// processor in time is sent anew, with everything else, a few times at most.
fn send(net: &Net, args: &str, packets: u64) -> (Sent, Vec<Vec<u8>>) {
    const TIMES: usize = 5;
    let mut refused = Vec::new();
    while refused.len() < TIMES {
        let (sent, frames) = send_once(net, args, packets);
        if (sent.sent, sent.refused) == (packets, 0) {
            return (sent, frames);
        }
        refused.push(sent.refused);
    }
    panic!("{args}: {refused:?} of {packets} were refused");
}

fn send_once(net: &Net, args: &str, packets: u64) -> (Sent, Vec<Vec<u8>>) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("came.pcapng");
    // With an XDP program there, the far end takes redirected frames.
    let flags = format!("--hook xdp -w {}", file.display());
    let recorder = Recorder::start(net, dir.path(), &flags);
    // At a rate at which a ring of 256 packets at the far end lasts for many times what a thread
    // may have to wait.
    let rate = if args.contains("--rate") { "" } else { "--rate 20kpps" };
    let (sent, _) = run(net, &format!("-i va --count {packets} {rate} {args}"));
    recorder.wait_for_captured(sent.sent);
    recorder.stop();
    (sent, Contents::of(&file).frames())
}

fn sizes(frames: &[Vec<u8>]) -> BTreeMap<u16, u64> {
    let mut sizes = BTreeMap::new();
    for frame in frames {
        *sizes.entry(frame.len() as u16).or_default() += 1;
    }
    sizes
}

/// A pcap file of Ethernet frames, a millisecond apart: what was captured, and the length on the
/// wire.
fn pcap(packets: &[(Vec<u8>, u32)]) -> Vec<u8> {
    let header = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1];
    let mut file: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    for (i, (frame, len)) in packets.iter().enumerate() {
        let record = [1, i as u32 * 1000, frame.len() as u32, *len];
        file.extend(record.into_iter().flat_map(u32::to_le_bytes));
        file.extend(frame);
    }
    file
}

/// Where a frame's payload begins.
fn payload_at(sent: &Sent, frame: &[u8]) -> usize {
    let headers = sent.workload.as_ref().expect("generated").headers();
    let number = frame[headers.ip_at + if headers.ipv6 { 6 } else { 9 }];
    let transport = [Transport::Udp, Transport::Tcp, Transport::Icmp]
        .into_iter()
        .find(|t| t.number(headers.ipv6) == number)
        .expect("one of these");
    headers.transport_at() + transport.header_len()
}

/// The frame with zeros for its send time and the checksum over it.
fn timeless(sent: &Sent, frame: &[u8]) -> Vec<u8> {
    let at = payload_at(sent, frame);
    let mut frame = frame.to_vec();
    if frame.len() - at >= TAG_BYTES {
        frame[at + 8..at + TAG_BYTES].fill(0);
    }
    frame
}

#[test]
fn every_back_end_makes_the_same_packets() {
    const PACKETS: u64 = 1000;
    let net = Net::new();
    let kinds = [
        "--size 60",
        "--size 60-1514 --flows 7 --proto udp,tcp,icmp",
        "--size imix --flows 50 --zipf 1.2 --proto tcp,udp --vlan 42 --payload zero",
        "--size normal:100-1500 --flows 9 --proto udp,tcp,icmp --ipv6 --vlan 7,8",
        "--size 200-1500 --flows 5 --tunnel vxlan --vni 77 --proto udp,icmp,tcp --payload compressible:0.4",
        "--size 200-1500 --flows 5 --tunnel gre --ipv6 --proto icmp,tcp,udp",
        "--size 61-91 --flows 300 --dport 1000-2000 --src 10.1.0.0/16 --dst 10.2.3.4 --mark-every 1ms",
    ];
    for kind in kinds {
        let mut first: Option<Vec<Vec<u8>>> = None;
        for backend in BACKENDS {
            let (sent, frames) = send(&net, &format!("{kind} --backend {backend}"), PACKETS);
            assert_eq!(sent.backend, backend);
            assert_eq!((sent.sent, sent.refused), (PACKETS, 0), "{kind} {backend}");
            assert_eq!(frames.len() as u64, PACKETS, "{kind} {backend}");
            assert_eq!(sizes(&frames), sent.sizes, "{kind} {backend}");
            assert_eq!(frames.iter().map(|f| f.len() as u64).sum::<u64>(), sent.bytes);
            assert_eq!(sent.streams.iter().sum::<u64>(), PACKETS);
            let frames: Vec<_> = frames.iter().map(|f| timeless(&sent, f)).collect();
            let first = first.get_or_insert_with(|| frames.clone());
            for (i, (a, b)) in first.iter().zip(&frames).enumerate() {
                assert_eq!(a, b, "{kind} {backend}: packet {i}");
            }
        }
        // Packets of that length have numbers and nothing drawn.
        if kind == "--size 60" {
            continue;
        }
        let (sent, other) = send(&net, &format!("{kind} --backend txring --seed 99"), PACKETS);
        let other: Vec<_> = other.iter().map(|f| timeless(&sent, f)).collect();
        assert!(first != Some(other), "{kind}: another seed makes other packets");
    }
}

/// What tshark, which checks all checksums, counts under each display filter.
fn tshark(file: &Path, filters: &[&str]) -> Vec<usize> {
    let count = |filter: &&str| {
        let out = Command::new("tshark")
            .args(["-n", "-r"])
            .arg(file)
            .args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"])
            .args([
                "-o",
                "tcp.check_checksum:TRUE",
                "-Y",
                filter,
                "-T",
                "fields",
                "-e",
                "frame.number",
            ])
            .output()
            .expect("tshark is installed: make setup");
        assert!(out.status.success(), "{filter}: {}", said(&out));
        String::from_utf8_lossy(&out.stdout).lines().count()
    };
    filters.iter().map(count).collect()
}

#[test]
fn tshark_finds_what_was_asked_for_and_no_wrong_checksum() {
    const BAD: &str = "ip.checksum.status == 0 || udp.checksum.status == 0 || tcp.checksum.status == 0 \
        || icmp.checksum.status == 0 || icmpv6.checksum.status == 0";
    const GOOD: &str = "udp.checksum.status == 1 || tcp.checksum.status == 1 \
        || icmp.checksum.status == 1 || icmpv6.checksum.status == 1";
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let cases = [
        (
            "--size 60-1514 --flows 6 --proto udp,tcp,icmp",
            vec!["ip.src == 198.18.0.0/24 && ip.dst == 198.19.0.0/24"],
        ),
        (
            "--size 90-1514 --flows 6 --proto udp,tcp,icmp --ipv6",
            vec!["ipv6.src == 2001:2::/64 && ipv6.dst == 2001:2:0:1::/64"],
        ),
        (
            "--size 100-1514 --flows 6 --proto tcp,udp --vlan 7,8",
            vec!["ieee8021ad && vlan.id == 8", "vlan"],
        ),
        (
            "--size 150-1514 --flows 6 --proto udp,tcp --tunnel vxlan --vni 77",
            vec!["vxlan.vni == 77", "ip.dst == 192.0.2.2"],
        ),
        (
            "--size 150-1514 --flows 6 --proto udp,icmp --tunnel gre --tunnel-dst 192.0.2.9",
            vec!["gre", "ip.dst == 192.0.2.9"],
        ),
    ];
    for (kind, all) in cases {
        let file = dir.path().join("came.pcapng");
        let recorder = Recorder::start(
            &net,
            dir.path(),
            &format!("--hook xdp -w {} --count 600", file.display()),
        );
        run(&net, &format!("-i va --count 600 --rate 20kpps {kind}"));
        recorder.finish();
        let mut filters = vec![BAD, GOOD, "tcp.analysis.flags"];
        filters.extend(all);
        let counts = tshark(&file, &filters);
        assert_eq!(counts[0], 0, "{kind}: wrong checksums");
        assert_eq!(counts[1], 600, "{kind}: right checksums");
        assert_eq!(counts[2], 0, "{kind}: holes in TCP's sequence numbers");
        assert!(counts[3..].iter().all(|&n| n == 600), "{kind}: {filters:?} {counts:?}");
    }
}

#[test]
fn streams_are_numbered_without_holes_by_several_threads() {
    const PACKETS: u64 = 5000;
    let net = Net::new();
    for backend in ["xdp", "txring"] {
        let args = format!("--threads 2 --flows 11 --zipf 1 --backend {backend}");
        let (sent, frames) = send(&net, &args, PACKETS);
        let mut next = vec![0u64; sent.streams.len()];
        for frame in &frames {
            let at = payload_at(&sent, frame);
            let id = u64::from_be_bytes(frame[at..at + 8].try_into().expect("8 bytes"));
            let (stream, sequence) = ((id >> 40) as usize, id & ((1 << 40) - 1));
            assert_eq!(sequence, next[stream], "{backend}: stream {stream}");
            next[stream] += 1;
        }
        assert_eq!(next, sent.streams, "{backend}");
        assert!(next.iter().all(|&n| n > 0), "{backend}: every flow has packets");
        assert!(
            next[0] > 3 * next[10],
            "{backend}: the first flow has the greatest share: {next:?}"
        );
    }
}

#[test]
fn several_interfaces_share_flows_and_count() {
    let net = Net::new();
    net.plug_second();
    for backend in BACKENDS {
        let dir = tempfile::tempdir().expect("a directory");
        let flags = "--hook xdp --no-store --ring-bytes 64MiB --count 3001";
        let recorder = Recorder::start_on(&net, "vb,vd", dir.path(), flags);
        let args = format!("-i va,vc --flows 5 --count 3001 --rate 20kpps --backend {backend}");
        let (sent, _) = run(&net, &args);
        let stats = recorder.finish();
        assert_eq!((sent.sent, sent.refused), (3001, 0), "{backend}");
        let seen = |dev: &str| number(&stats["interfaces"][dev], "seen");
        assert_eq!((seen("vb"), seen("vd")), (1801, 1200), "{backend}");
        let (even, odd): (Vec<_>, Vec<_>) =
            sent.streams.iter().enumerate().partition(|(i, _)| i % 2 == 0);
        let sum = |of: Vec<(usize, &u64)>| of.into_iter().map(|(_, n)| n).sum::<u64>();
        assert_eq!((sum(even), sum(odd)), (1801, 1200), "{backend}: three flows and two");
    }
}

#[test]
fn marks_come_in_time_beside_the_others() {
    let net = Net::new();
    for backend in BACKENDS {
        // Marks are due at 0, 10, ... 90 ms.
        let args =
            format!("--rate 10kpps --mark-every 10ms --mark-src 203.0.113.77 --backend {backend}");
        let (sent, frames) = send(&net, &args, 1000);
        let marked = frames.iter().filter(|f| f[26..30] == [203, 0, 113, 77]).count();
        assert_eq!(marked, 10, "{backend}");
        assert_eq!(sent.streams, [990, 10], "{backend}");
        assert!(frames[0][26..30] == [203, 0, 113, 77], "{backend}: the first mark is due at once");
    }
}

#[test]
fn sizes_of_a_trace_come_in_their_order_and_those_of_a_distribution_in_its_shares() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("trace.pcap");
    let lens = [60u32, 1514, 99, 100, 54, 777];
    let packets: Vec<_> = lens.iter().map(|&len| (vec![0; 14], len)).collect();
    let bytes = pcap(&packets);
    fs::write(&trace, bytes).expect("room on the disk");
    for backend in BACKENDS {
        let args = format!("--size trace:{} --backend {backend}", trace.display());
        let (_, frames) = send(&net, &args, 15);
        let came: Vec<u32> = frames.iter().map(|f| f.len() as u32).collect();
        // What is shorter than a frame can be is made longer.
        let wanted: Vec<u32> = lens.iter().cycle().take(15).map(|&len| len.max(60)).collect();
        assert_eq!(came, wanted, "{backend}");
    }
    let dist = dir.path().join("sizes.dist");
    fs::write(&dist, "64 3\n1000 1\n").expect("room on the disk");
    for method in ["alias", "two-stage"] {
        let args = format!("--size dist:{} --method {method}", dist.display());
        let (sent, _) = send(&net, &args, 4000);
        let (short, long) = (sent.sizes[&64], sent.sizes[&1000]);
        assert_eq!(short + long, 4000, "{method}");
        assert!((2850..3150).contains(&short), "{method}: {short}");
    }
}

#[test]
fn a_run_of_limited_time_does_not_wait_for_a_packet_that_is_due_later() {
    let net = Net::new();
    for args in [
        "--rate 0.001pps --backend txring",
        "--rate 0.01pps --backend afxdp",
        "--rate 1pps --gaps onoff --on 1s --off 1000s --sources 1 --seed 3",
    ] {
        let (sent, _) = run(&net, &format!("-i va --duration 200ms {args}"));
        assert!(sent.sent <= 1, "{args}: {sent:?}");
    }
    net.b.run("ethtool -K vb gro on");
    let (sent, _) = run(&net, "-i va --duration 200ms --rate 0.001pps --backend xdp");
    assert_eq!(sent.sent, 1);
}

#[test]
fn shares_of_flows_are_the_same_however_many_threads_there_are() {
    let net = Net::new();
    let shares = |threads: u32| -> Vec<f64> {
        let args = format!("-i va --flows 4 --zipf 1 --count 20000 --threads {threads}");
        let (sent, _) = run(&net, &args);
        sent.streams.iter().map(|&n| n as f64 / 20_000.0).collect()
    };
    for threads in [1, 2, 3] {
        let shares = shares(threads);
        for (n, share) in (1..).zip(&shares) {
            let wanted = 1.0 / f64::from(n) / (1.0 + 1.0 / 2.0 + 1.0 / 3.0 + 1.0 / 4.0);
            assert!((share - wanted).abs() < 0.02, "{threads} threads: {shares:?}");
        }
    }
}

#[test]
fn jumbo_frames_go_by_a_packet_socket() {
    let net = Net::with(Cable { mtu: 9000, ..Cable::default() });
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("came.pcapng");
    let recorder = Recorder::start(
        &net,
        dir.path(),
        &format!("--hook tpacket -w {} --count 50", file.display()),
    );
    let (sent, said) = run(&net, "-i va --size 8000-9014 --count 50");
    recorder.finish();
    assert_eq!(sent.backend, "txring");
    assert!(said.contains("longer than a page"), "{said}");
    assert_eq!(sizes(&Contents::of(&file).frames()), sent.sizes);
}

#[test]
fn the_kernel_makes_frames_up_to_a_page() {
    let net = Net::with(Cable { mtu: 3500, ..Cable::default() });
    let mut alike = Vec::new();
    for backend in ["xdp", "txring"] {
        let args = format!("--size {}-{LONGEST} --backend {backend}", LONGEST - 9);
        let (sent, frames) = send(&net, &args, 500);
        assert_eq!((sizes(&frames), frames.len()), (sent.sizes.clone(), 500), "{backend}");
        assert!(sent.sizes.contains_key(&(LONGEST as u16)), "{backend}");
        alike.push(frames.iter().map(|f| timeless(&sent, f)).collect::<Vec<_>>());
    }
    assert!(alike[0] == alike[1]);
    let longer = format!("-i va --count 1 --backend xdp --size {}", LONGEST + 1);
    refuses(command(&net, &longer), 2, &[&LONGEST.to_string()]);
}

#[test]
fn a_far_end_that_takes_no_redirected_frames_gets_them_another_way() {
    let net = Net::new();
    // Kernels before 6.3 do not tell, and only afterwards it is seen.
    let told = kernel::version() >= (6, 3);
    let (sent, said) = run(&net, "-i va --count 10");
    assert_eq!((&*sent.backend, sent.sent), ("txring", 10));
    let why = if told { "takes no redirected frames" } else { "does not tell" };
    assert!(said.contains(why), "{said}");
    if told {
        refuses(command(&net, "-i va --count 10 --backend xdp"), 1, &["GRO"]);
    } else {
        let out = command(&net, "-i va --count 10 --backend xdp --json -").output();
        let out = out.expect("it runs");
        assert_eq!(out.status.code(), Some(1), "{}", self::said(&out));
        let sent: Sent = serde_json::from_slice(&out.stdout).expect("a record");
        assert_eq!((sent.sent, sent.refused), (0, 10));
        assert!(self::said(&out).contains("GRO"), "{}", self::said(&out));
    }
}

/// Starts an endless run and lets some of its packets arrive.
fn endless(net: &Net, recorder: &Recorder, args: &str, json: &Path) -> Running {
    let mut command = command(net, &format!("-i va {args} --json {}", json.display()));
    let child = command.stderr(Stdio::piped()).spawn().expect("it runs");
    let running = Running(child);
    wait_for("packets", || recorder.now()["seen"].as_u64().is_some_and(|n| n > 0));
    running
}

fn record_of(path: &Path) -> Sent {
    let text = fs::read(path).expect("the record was written");
    serde_json::from_slice(&text).expect("a record")
}

#[test]
fn an_interrupted_run_tells_what_it_sent_to_the_packet() {
    let net = Net::new();
    for args in [
        "--backend xdp",
        "--backend xdp --rate 50kpps",
        "--backend txring",
        "--rate 1kpps",
        "--backend afxdp",
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let json = dir.path().join("sent.json");
        let recorder =
            Recorder::start(&net, dir.path(), "--hook xdp --no-store --ring-bytes 256MiB");
        let running = endless(&net, &recorder, args, &json);
        let status = running.interrupt();
        assert!(status.success(), "{args}: {status}");
        let sent = record_of(&json);
        assert!(sent.interrupted, "{args}");
        assert!(sent.sent > 0, "{args}");
        assert_eq!(sent.sizes[&64], sent.sent + sent.refused, "{args}");
        wait_for("the last packet", || number(&recorder.now(), "seen") >= sent.sent);
        let stats = recorder.stop();
        assert_eq!(number(&stats, "seen"), sent.sent, "{args}: seen is what was sent");
    }
}

#[test]
fn a_lost_link_ends_the_run_with_a_reason_and_its_count() {
    let net = Net::new();
    for backend in BACKENDS {
        let dir = tempfile::tempdir().expect("a directory");
        let json = dir.path().join("sent.json");
        let recorder =
            Recorder::start(&net, dir.path(), "--hook xdp --no-store --ring-bytes 256MiB");
        let mut running = endless(&net, &recorder, &format!("--backend {backend}"), &json);
        net.a.run("ip link set va down");
        wait_for("the run to end", || matches!(running.0.try_wait(), Ok(Some(_))));
        assert_eq!(running.0.wait().expect("it has ended").code(), Some(1), "{backend}");
        let mut said = String::new();
        std::io::Read::read_to_string(&mut running.0.stderr.take().expect("piped"), &mut said)
            .expect("text");
        let last = said.lines().last().unwrap_or("");
        assert!(last.starts_with("tapdeck: va"), "{backend}: {said}");
        let sent = record_of(&json);
        net.a.run("ip link set va up");
        wait_for("the last packet", || number(&recorder.now(), "seen") >= sent.sent);
        let stats = recorder.stop();
        assert_eq!(number(&stats, "seen"), sent.sent, "{backend}: {sent:?}");
    }
}

#[test]
fn what_the_far_end_does_not_take_is_counted() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let json = dir.path().join("sent.json");
    let recorder = Recorder::start(&net, dir.path(), "--hook xdp --no-store --ring-bytes 256MiB");
    let running = endless(&net, &recorder, "--backend xdp --rate 100kpps", &json);
    // Without its program, it takes no redirected frames.
    let stats = recorder.stop();
    let seen = number(&stats, "seen");
    // It goes on, and after some of its packets were refused it is ended.
    let count = dir.path().join("second");
    fs::create_dir(&count).expect("room on the disk");
    let recorder = Recorder::start(&net, &count, "--hook xdp --no-store --ring-bytes 256MiB");
    wait_for("packets again", || recorder.now()["seen"].as_u64().is_some_and(|n| n > 0));
    assert!(running.interrupt().success());
    let sent = record_of(&json);
    assert!(sent.refused > 0, "{sent:?}");
    assert_eq!(sent.streams.iter().sum::<u64>(), sent.sent + sent.refused);
    let seen = seen + number(&recorder.stop(), "seen");
    // Between the two recordings the stack may have had some.
    assert!(seen <= sent.sent, "{seen} {sent:?}");
}

/// Asserts that the program ends with the code, and with one line that holds all the words.
fn refuses(mut command: Command, code: i32, words: &[&str]) {
    let out = command.output().expect("it runs");
    let said = said(&out);
    assert_eq!(out.status.code(), Some(code), "{command:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{command:?} does not say {word:?}: {said}");
    }
    if said.starts_with("tapdeck:") {
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str, contents: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, contents).expect("room on the disk");
        path.display().to_string()
    };
    let empty = path("empty", b"");
    let zero = path("zero", b"64 0\n100 0\n");
    let negative = path("negative", b"64 -1\n");
    let word = path("word", b"64 many\n");
    let overflow = path("overflow", b"64 18446744073709551615\n65 18446744073709551615\n");
    let long = path("long", b"64 1\n9000 1\n");
    let whole = pcap(&[(vec![0; 60], 60), (vec![0; 60], 60)]);
    let cut = &whole[..whole.len() - 10];
    let cut = path("cut", cut);
    let usage: [(&str, &[&str]); 30] = [
        ("--size 59", &["59", "at least 60"]),
        ("--size 1515", &["1515", "1514"]),
        ("--size 60-9000", &["9000", "MTU"]),
        ("--size 60 --ipv6", &["60", "68"]),
        ("--up-to-damage", &["--up-to-damage"]),
        ("--rate -5pps", &["-5pps"]),
        ("--ipv6 --mark-every 1s --mark-src 10.0.0.1", &["mark"]),
        ("--rate 1kpps --mark-every 1ms", &["nothing but marks"]),
        ("--rate 1pps --gaps onoff --on 1us --off 1us --sources 1024", &["--sources"]),
        ("--size 1500-60", &["1500-60"]),
        ("--rate 0pps", &["0pps", "from 0.001 packets"]),
        ("--rate fast", &["fast", "1.2mpps"]),
        ("--ipg 0us", &["0us"]),
        ("--rate 1mpps --ipg 1us", &["--ipg"]),
        ("--gaps poisson", &["--rate"]),
        ("--gaps onoff --rate 1kpps --hurst 1.5", &["1.5"]),
        ("--gaps poisson --rate 1kpps --hurst 0.7", &["--gaps onoff"]),
        ("--hurst 0.7", &["--gaps"]),
        ("--tunnel gre --vni 7 --size 200", &["--vni"]),
        ("--count 0", &["--count"]),
        ("--count 1 --threads 2", &["--count"]),
        ("--flows 0", &["flows"]),
        ("--flows 2000000", &["2000000"]),
        ("--flows 100 --src 10.0.0.1 --dst 10.0.0.2 --sport 1", &["only 1 different"]),
        ("--src 10.0.0.0/8 --dst fd00::/64", &["IP version"]),
        ("--zipf -1 --flows 2", &["-1"]),
        ("--payload compressible:2", &["2"]),
        ("--vlan 1,2,3", &["--vlan"]),
        ("--dst-mac 1:2", &["1:2"]),
        ("--size 64 --method two-stage", &["dist:FILE"]),
    ];
    for (args, words) in usage {
        refuses(command(&net, &format!("-i va --count 1 {args}")), 2, words);
    }
    let failed: [(String, &[&str]); 9] = [
        (format!("--size dist:{empty}"), &["empty"]),
        (format!("--size dist:{zero}"), &["zero"]),
        (format!("--size dist:{negative}"), &["negative", "line 1"]),
        (format!("--size dist:{word}"), &["word", "line 1"]),
        (format!("--size dist:{overflow}"), &["overflow"]),
        (format!("--size trace:{cut}"), &["cut"]),
        (format!("--size trace:{empty}"), &["empty"]),
        ("--size dist:/nowhere".into(), &["/nowhere"]),
        ("--json /nowhere/file".into(), &["/nowhere/file"]),
    ];
    for (args, words) in failed {
        refuses(command(&net, &format!("-i va --count 1 {args}")), 1, words);
    }
    refuses(
        command(&net, &format!("-i va --count 1 --size dist:{long}")),
        1,
        &["9000", "--max-size 1514"],
    );
    refuses(command(&net, "-i nope --count 1"), 1, &["nope", "va"]);
    // A macvlan has the speed of its interface, which a veth states and is not held to.
    net.a.run("ip link add link va name va9 type macvlan");
    net.a.run("ip link set va9 up");
    let fast = "--count 1 --rate 100gbit";
    refuses(command(&net, &format!("-i va9 {fast}")), 2, &["10000 Mbit/s", "max"]);
    assert!(command(&net, &format!("-i va {fast}")).status().expect("it runs").success());
    refuses(command(&net, "-i va,va --count 2"), 2, &["twice"]);
    net.b.run("ip link set vb down");
    refuses(command(&net, "-i va --count 1"), 1, &["va", "far end"]);
    net.a.run("ip link set va down");
    refuses(command(&net, "-i va --count 1"), 1, &["va is down", "ip link set"]);
}

#[test]
fn without_the_privilege_it_says_so() {
    let net = Net::new();
    let mut command = net.a.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    command.args([env!("CARGO_BIN_EXE_tapdeck"), "gen", "-i", "va", "--count", "1"]);
    refuses(command, 1, &["root"]);
}

#[test]
fn it_does_not_flood_the_network_that_it_needs() {
    let net = Net::new();
    net.addresses();
    net.a.run("ip route add default via 10.213.0.2");
    refuses(
        command(&net, "-i va --count 1"),
        2,
        &["default via 10.213.0.2", "--yes-this-interface"],
    );
    let (sent, _) = run(&net, "-i va --count 1 --yes-this-interface");
    assert_eq!(sent.sent, 1);
}

#[test]
fn a_replay_sends_what_was_recorded() {
    const BAD: &str =
        "ip.checksum.status == 0 || udp.checksum.status == 0 || tcp.checksum.status == 0";
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("recorded.pcap");
    // Frames of generated traffic, whose checksums tell whether rewriting keeps them right.
    let (_, frames) =
        send(&net, "--size 60-1514 --flows 5 --proto udp,tcp,icmp --src 10.1.2.0/24", 40);
    let packets: Vec<_> = frames.iter().map(|f| (f.clone(), f.len() as u32)).collect();
    fs::write(&file, pcap(&packets)).expect("room on the disk");
    for (speed, backend) in
        [("x4", "txring"), ("x9", "afxdp"), ("20kpps", "auto"), ("10mbit", "auto")]
    {
        let flags = format!("--hook xdp -w {} --count 80", dir.path().join("came").display());
        let recorder = Recorder::start(&net, dir.path(), &flags);
        let args = format!(
            "-i va --replay {} --loop 2 --speed {speed} --backend {backend}",
            file.display()
        );
        let (sent, _) = run(&net, &args);
        recorder.finish();
        assert_eq!((sent.sent, sent.workload), (80, None), "{speed}");
        let came = Contents::of(&dir.path().join("came")).frames();
        assert_eq!(came, [&frames[..], &frames[..]].concat(), "{speed}");
        fs::remove_file(dir.path().join("came")).expect("it was written");
    }
    let came = dir.path().join("rewritten.pcapng");
    let flags = format!("--hook xdp -w {} --count 30", came.display());
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let args = "--rewrite 10.1.2.0/24=172.16.9.0/24 --dst-mac 02:00:00:00:00:99 --count 30 --speed x9 --loop 0";
    run(&net, &format!("-i va --replay {} {args}", file.display()));
    recorder.finish();
    let moved =
        "ip.src == 172.16.9.0/24 && ip.dst == 198.19.0.0/24 && eth.dst == 02:00:00:00:00:99";
    assert_eq!(tshark(&came, &[BAD, moved]), [0, 30]);
}

#[test]
fn what_cannot_be_replayed_is_refused_in_one_line() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let whole = pcap(&[(vec![1; 60], 60), (vec![2; 60], 60)]);
    let path = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).expect("room on the disk");
        path.display().to_string()
    };
    let good = path("good", &whole);
    let cut = path("cut", &whole[..whole.len() - 10]);
    let none = path("none", &whole[..24]);
    let text = path("text", b"64 1\n");
    let gen_ = |args: String| command(&net, &format!("-i va {args}"));
    refuses(gen_(format!("--replay {cut}")), 1, &["cut", "--up-to-damage"]);
    refuses(gen_(format!("--replay {none}")), 1, &["none", "no packet"]);
    refuses(gen_(format!("--replay {text}")), 1, &["text"]);
    refuses(gen_("--replay /nowhere".into()), 1, &["/nowhere"]);
    refuses(gen_("--replay -".into()), 1, &["standard input"]);
    refuses(gen_(format!("--replay {good} --speed x0")), 2, &["x0"]);
    refuses(gen_(format!("--replay {good} --rewrite 10.0.0.0/8=10.0.0.0/16")), 2, &["prefixes"]);
    refuses(gen_(format!("--replay {good} --backend xdp")), 2, &["--backend xdp"]);
    refuses(gen_(format!("--replay {good} --size 64")), 2, &["--size"]);
    refuses(gen_("--speed x2 --count 1".into()), 2, &["--replay"]);
    let (sent, said) = run(&net, &format!("-i va --replay {cut} --up-to-damage"));
    assert_eq!(sent.sent, 1);
    assert!(said.contains("damage"), "{said}");
}

/// Generator, recorder and judge together.
#[test]
fn the_judge_finds_everything_that_was_sent() {
    let net = Net::new();
    let kinds = [
        "--size 60 --proto tcp --flows 3",
        "--size imix --flows 1000 --zipf 1 --proto udp,tcp,icmp --mark-every 5ms --rate 30kpps",
        "--size 90-1500 --ipv6 --vlan 9 --flows 20 --payload zero --threads 2",
        "--size 150-1500 --tunnel vxlan --flows 20 --proto tcp,icmp",
    ];
    for kind in kinds {
        let dir = tempfile::tempdir().expect("a directory");
        let (store, json) = (dir.path().join("store"), dir.path().join("sent.json"));
        let flags =
            format!("--hook xdp --ring-bytes 256MiB --count 20000 --dir {}", store.display());
        let recorder = Recorder::start(&net, dir.path(), &flags);
        let rate = if kind.contains("--rate") { "" } else { "--rate 20kpps" };
        let args = format!("-i va --count 20000 {rate} {kind} --json {}", json.display());
        let out = command(&net, &args).output().expect("it runs");
        assert!(out.status.success(), "{kind}: {}", said(&out));
        recorder.finish();
        let judge = Command::new(env!("CARGO_BIN_EXE_tapdeck"))
            .args(["check-traffic", "--json", "--sent"])
            .args([&json, &store])
            .output()
            .expect("it runs");
        assert!(judge.status.success(), "{kind}: {}", said(&judge));
        let report: serde_json::Value = serde_json::from_slice(&judge.stdout).expect("JSON");
        let n = |key: &str| report[key].as_u64().unwrap_or_else(|| panic!("{key} in {report}"));
        let found =
            ["made", "intact", "lost", "repeated", "reordered", "damaged", "foreign"].map(n);
        assert_eq!(found, [20_000, 20_000, 0, 0, 0, 0, 0], "{kind}");
    }
}
