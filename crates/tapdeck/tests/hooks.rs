//! Every hook records what was sent, byte for byte, and accounts for every packet.

mod testbed;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::{CpuSet, sched_setaffinity};
use tapdeck_capture::interface::Interface;
use tapdeck_capture::transmit::Tag;
use tapdeck_packet::pcapng::{FLAG_INBOUND, FLAG_OUTBOUND, PACKET_OVERHEAD};
use tapdeck_testkit::cable::End;
use tapdeck_testkit::process::copy_program;
use tapdeck_testkit::{Cable, Net, Sender, wait_for};
use testbed::daemon::Asking;
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, number, segments};

fn mac(net: &Net) -> [u8; 6] {
    net.b.inside(|| Interface::find("vb").expect("made above")).mac.expect("veth has one")
}

fn send(net: &Net, frames: &[Vec<u8>]) {
    net.a.inside(|| Sender::on("va").send_all(frames));
}

/// Waits until a recorder has accounted for so many packets.
fn wait_seen(recorder: &Recorder, packets: usize) {
    wait_for("the packets to be seen", || {
        recorder.now()["seen"].as_u64().is_some_and(|n| n >= packets as u64)
    });
}

/// What these tests have sent of the packets in a file; where interfaces have addresses, the
/// kernel sends some too.
fn mine(contents: &Contents) -> Vec<Vec<u8>> {
    let from_us = |f: &Vec<u8>| f[6..12] == [2, 0, 0, 0, 0, 1];
    contents.frames().into_iter().filter(from_us).collect()
}

/// The segment that is being written.
fn live(store: &Path) -> Option<PathBuf> {
    let found = std::fs::read_dir(store).ok()?.flatten().map(|e| e.path());
    found.into_iter().find(|p| p.extension().is_some_and(|e| e == "live"))
}

/// The standard tools read every segment without complaint and count as we do.
fn assert_readable(dir: &Path, packets: u64) {
    let mut counted = 0;
    for segment in segments(dir) {
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(&segment).args(["-T", "fields", "-e", "frame.number"]);
        let out = tshark.output().expect("tshark is installed: make setup");
        let complaints: Vec<_> = String::from_utf8_lossy(&out.stderr)
            .lines()
            .filter(|l| !l.starts_with("Running as user"))
            .map(str::to_owned)
            .collect();
        assert!(out.status.success() && complaints.is_empty(), "tshark: {complaints:?}");
        counted += out.stdout.split(|b| *b == b'\n').filter(|l| !l.is_empty()).count() as u64;
        for (tool, args) in [("capinfos", vec!["-cMTr"]), ("tcpdump", vec!["-c", "1", "-nr"])] {
            let out =
                Command::new(tool).args(args).arg(&segment).output().expect("it is installed");
            let err = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{tool}: {err}");
            assert!(!err.contains("cut short") && !err.contains("damaged"), "{tool}: {err}");
        }
    }
    assert_eq!(counted, packets, "tshark counts as many packets");
}

fn records_what_was_sent(hook: &str, flags: &str) {
    let net = Net::new();
    net.addresses();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let line = format!("--hook {hook} {flags} --flush 100ms --dir {}", store.display());
    let recorder = Recorder::start(&net, dir.path(), &line);
    let to = mac(&net);
    let frames: Vec<_> = (0..3000).map(|i| frame(to, 60 + (i as usize * 7) % 1455, i)).collect();
    send(&net, &frames);
    // Those of others count as seen, too.
    wait_for("all frames to be stored", || {
        live(&store).is_some_and(|file| mine(&Contents::of(&file)).len() == frames.len())
    });
    let stats = recorder.stop();

    assert_accounted(&stats);
    assert_eq!(number(&stats, "dropped_ring") + number(&stats, "dropped_other"), 0);
    let contents = Contents::of_store(&store);
    assert_eq!(contents.packets.len() as u64, number(&stats, "captured"));
    let mine = mine(&contents);
    assert_eq!(mine.len(), frames.len());
    // Packets of one queue stay in order; the socket and generic hooks may see several CPUs'
    // queues.
    let sorted = |mut v: Vec<Vec<u8>>| {
        v.sort();
        v
    };
    assert!(sorted(mine) == sorted(frames), "the frames differ");
    assert!(contents.packets.iter().all(|p| p.original_len as usize == p.frame.len()));
    let interface = &contents.interfaces[0];
    assert_eq!((interface.name.as_deref(), interface.resolution), (Some("vb"), 9));
    assert_eq!(
        contents.statistics.iter().filter_map(|s| s.delivered).sum::<u64>(),
        number(&stats, "captured")
    );
    assert_readable(&store, number(&stats, "captured"));
}

/// Times never run backwards within a ring, whatever clock there is, and the recording says which.
#[test]
fn a_recording_says_what_its_packets_are_stamped_by() {
    for hook in ["xdp", "xdp-generic", "tcx", "netfilter"] {
        for (clock, taken) in [("packet", "packet"), ("batch", "batch"), ("auto", "batch")] {
            let net = Net::new();
            net.addresses();
            let dir = tempfile::tempdir().expect("a directory");
            let file = dir.path().join("it.pcapng");
            let line = format!("--hook {hook} --clock {clock} -w {}", file.display());
            let recorder = Recorder::start(&net, dir.path(), &line);
            let to = mac(&net);
            let frames: Vec<_> = (0..2000).map(|i| frame(to, 60, i)).collect();
            send(&net, &frames);
            wait_seen(&recorder, frames.len());
            recorder.stop();
            let contents = Contents::of(&file);
            assert!(mine(&contents).len() == frames.len(), "{hook}, {clock}");
            for (number, interface) in (0..).zip(&contents.interfaces) {
                let said = interface.description.as_deref().unwrap_or_default();
                assert!(said.ends_with(&format!(", clock {taken}")), "{hook}: {said}");
                let packets = contents.packets.iter().filter(|p| p.interface == number);
                let times: Vec<i64> = packets.map(|p| p.time_ns).collect();
                assert!(times.is_sorted(), "{hook}, {clock}: interface {number}");
            }
        }
    }
}

/// What cannot be had is refused, and the reason told.
#[test]
fn a_clock_that_there_is_not_is_refused() {
    let net = Net::with(Cable { queues: Some(2), ..Cable::default() });
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |flags: &[&str], why: &str| {
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        let file = dir.path().join("it.pcapng");
        command.args(["record", "-i", "vb", "--hook", "xdp", "-w"]).arg(&file).args(flags);
        let out = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && said.contains(why), "{said}");
    };
    refused(&["--clock", "hardware", "--no-device-bound"], "no hardware time");
    let small = ["--clock", "batch", "--ring-bytes", "4MiB", "--block-bytes", "1MiB"];
    refused(&small, "several queues or CPUs share a ring");
}

#[test]
fn xdp_records_what_was_sent() {
    records_what_was_sent("xdp", "");
}

#[test]
fn xdp_generic_records_what_was_sent() {
    records_what_was_sent("xdp-generic", "");
}

#[test]
fn tcx_records_what_was_sent() {
    records_what_was_sent("tcx", "");
}

#[test]
fn netfilter_records_what_was_sent() {
    records_what_was_sent("netfilter", "");
}

#[test]
fn tpacket_records_what_was_sent() {
    records_what_was_sent("tpacket", "");
}

#[test]
fn recv_records_what_was_sent() {
    records_what_was_sent("recv", "");
}

#[test]
fn afxdp_records_what_was_sent() {
    records_what_was_sent("afxdp", "--deliver consume");
}

/// What the device received is what the hook saw, to the packet.
#[test]
fn the_device_and_the_hook_count_alike() {
    for (hook, deliver) in
        [("xdp", "consume"), ("xdp", "pass"), ("tcx", "consume"), ("tcx", "pass")]
    {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let flags = format!("--hook {hook} --deliver {deliver} --no-store");
        let recorder = Recorder::start(&net, dir.path(), &flags);
        let frames: Vec<_> = (0..5000).map(|i| frame([2, 0, 0, 0, 0, 2], 60, i)).collect();
        send(&net, &frames);
        wait_seen(&recorder, frames.len());
        let stats = recorder.stop();
        assert_accounted(&stats);
        assert_eq!(number(&stats, "seen"), 5000, "{hook} {deliver}");
        let device = number(&stats, "nic_received") + number(&stats, "nic_sent");
        assert_eq!(
            device,
            number(&stats, "seen") + number(&stats, "nic_dropped"),
            "{hook} {deliver}"
        );
    }
}

#[test]
fn a_packet_costs_32_bytes_at_xdp() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let recorder =
        Recorder::start(&net, dir.path(), &format!("--hook xdp --dir {}", store.display()));
    let frames: Vec<_> = (0..2000).map(|i| frame([2, 0, 0, 0, 0, 2], 60, i)).collect();
    send(&net, &frames);
    wait_seen(&recorder, frames.len());
    let stats = recorder.stop();
    let packets = number(&stats, "captured");
    // Each flush and each end fills up to a page.
    let pages = number(&stats, "bytes_written") - packets * (60 + PACKET_OVERHEAD as u64);
    assert!(pages < 8 * 4096, "{pages} bytes beside {packets} packets");
}

#[test]
fn tcx_tells_the_direction_and_xdp_spends_nothing_on_it() {
    for (hook, flags) in [("tcx", vec![FLAG_INBOUND, FLAG_OUTBOUND]), ("xdp", vec![0])] {
        let net = Net::new();
        net.addresses();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let recorder =
            Recorder::start(&net, dir.path(), &format!("--hook {hook} --dir {}", store.display()));
        net.a.run("ping -q -c 3 -i 0.01 10.213.0.2");
        recorder.stop();
        let packets = Contents::of_store(&store).packets;
        let mut seen: Vec<u32> = packets.iter().map(|p| p.flags).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, flags, "{hook}");
        let own = mac(&net);
        for p in packets.iter().filter(|p| p.flags != 0) {
            let outbound = p.frame[6..12] == own;
            assert_eq!(p.flags == FLAG_OUTBOUND, outbound, "{:02x?}", &p.frame[..12]);
        }
    }
}

/// One tag stands in the frame, the outer one beside it, as a VLAN device or a NIC leaves it.
#[test]
fn vlan_tags_are_put_back() {
    for hook in ["xdp", "tcx", "tpacket", "recv"] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let recorder =
            Recorder::start(&net, dir.path(), &format!("--hook {hook} --dir {}", store.display()));
        let tagged = |tags: &[u8]| -> Vec<Vec<u8>> {
            (0..50)
                .map(|i| {
                    let mut f = frame([2, 0, 0, 0, 0, 2], 60 + i as usize, i);
                    f.splice(12..12, tags.iter().copied());
                    f
                })
                .collect()
        };
        let _tag = net.a.inside(|| {
            let va = Interface::find("va").expect("made above");
            Tag::attach(va.index, 7).expect("a kernel with tcx")
        });
        send(&net, &tagged(&[0x81, 0, 0, 42]));
        wait_seen(&recorder, 50);
        recorder.stop();
        let contents = Contents::of_store(&store);
        assert!(
            contents.frames() == tagged(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 42]),
            "{hook}: {:02x?}",
            contents.frames().first()
        );
        assert!(
            contents.packets.iter().all(|p| p.original_len as usize == p.frame.len()),
            "{hook}"
        );
    }
}

#[test]
fn xdp_records_jumbo_frames() {
    let net = Net::with(Cable { mtu: 9000, ..Cable::default() });
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let recorder =
        Recorder::start(&net, dir.path(), &format!("--hook xdp --dir {}", store.display()));
    let sizes = [60, 1514, 3500, 4096, 8191, 9014];
    let frames: Vec<_> =
        (0..60).map(|i| frame([2, 0, 0, 0, 0, 2], sizes[i as usize % 6], i)).collect();
    send(&net, &frames);
    wait_seen(&recorder, frames.len());
    recorder.stop();
    assert!(Contents::of_store(&store).frames() == frames, "the frames differ");
}

#[test]
fn a_super_frame_is_recorded_with_its_true_length() {
    let net = Net::new();
    net.addresses();
    net.a.run("ethtool -K va tx on tso on gso on");
    net.b.run("ethtool -K vb gro on");
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let recorder =
        Recorder::start(&net, dir.path(), &format!("--hook tcx --dir {}", store.display()));
    let bytes = net.b.inside(|| {
        let listener = std::net::TcpListener::bind("10.213.0.2:7000").expect("a free port");
        std::thread::scope(|s| {
            s.spawn(|| {
                net.a.inside(|| {
                    use std::io::Write;
                    let mut out =
                        std::net::TcpStream::connect("10.213.0.2:7000").expect("it listens");
                    out.write_all(&vec![7; 4 << 20]).expect("it reads");
                });
            });
            let (mut stream, _) = listener.accept().expect("a connection");
            std::io::copy(&mut stream, &mut std::io::sink()).expect("it writes")
        })
    });
    recorder.stop();
    let mut inbound = Contents::of_store(&store).packets;
    inbound.retain(|p| p.flags == FLAG_INBOUND && p.frame[12..14] == [8, 0]);
    assert!(inbound.iter().any(|p| p.frame.len() > 9000), "no super-frame came");
    // Each frame's IP length is its own, and the payloads make up what was sent. A part of it may
    // have been sent twice.
    let mut pieces = Vec::new();
    for p in &inbound {
        let total = usize::from(u16::from_be_bytes([p.frame[16], p.frame[17]]));
        assert_eq!((total + 14, p.original_len as usize), (p.frame.len(), p.frame.len()));
        let tcp = &p.frame[14 + 20..];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        pieces.push((sequence, (total - 20 - usize::from(tcp[12] >> 4) * 4) as u32));
    }
    // Rings of several CPUs are written in turns, so the first in the file need not be it.
    let some = pieces.first().expect("packets").0;
    let before = |sequence: &u32| sequence.wrapping_sub(some) as i32;
    let first = pieces.iter().map(|piece| piece.0).min_by_key(before).expect("packets");
    pieces.sort_by_key(|(sequence, _)| sequence.wrapping_sub(first));
    let (mut end, mut payload) = (first, 0);
    for (sequence, len) in pieces {
        let new = sequence.wrapping_add(len).wrapping_sub(end) as i32;
        if len > 0 && new > 0 {
            payload += (new as u32).min(len);
            end = sequence.wrapping_add(len);
        }
    }
    assert_eq!(u64::from(payload), bytes);
}

#[test]
fn several_interfaces_go_into_one_recording() {
    let net = Net::new();
    Cable::default().plug([End::new(&net.b, "vc"), End::new(&net.b, "vd")]);
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!("--hook xdp --dir {}", store.display());
    let recorder = Recorder::start_on(&net, "vb,vd", dir.path(), &flags);
    let to_b: Vec<_> = (0..100).map(|i| frame([2, 0, 0, 0, 0, 2], 100, i)).collect();
    let to_d: Vec<_> = (0..50).map(|i| frame([2, 0, 0, 0, 0, 3], 200, i)).collect();
    net.b.inside(|| Sender::on("vc").send_all(&to_d));
    send(&net, &to_b);
    wait_seen(&recorder, to_b.len() + to_d.len());
    let stats = recorder.stop();
    assert_accounted(&stats);
    assert_eq!(number(&stats["interfaces"]["vb"], "captured"), 100);
    assert_eq!(number(&stats["interfaces"]["vd"], "captured"), 50);
    let contents = Contents::of_store(&store);
    for (name, frames) in [("vb", &to_b), ("vd", &to_d)] {
        let of: Vec<_> = contents
            .packets
            .iter()
            .filter(|p| contents.interfaces[p.interface as usize].name.as_deref() == Some(name))
            .map(|p| p.frame.clone())
            .collect();
        assert!(of == *frames, "{name}");
    }
}

/// The kernel wants each of a namespace's programs there at a place of its own.
#[test]
fn several_interfaces_and_recorders_share_netfilter() {
    let net = Net::new();
    net.b.run("ip link add vc type veth peer name vd");
    net.b.run("ip link set vd up");
    let dir = tempfile::tempdir().expect("a directory");
    let others = tempfile::tempdir().expect("a directory");
    let recorder = Recorder::start_on(&net, "vd,vb", dir.path(), "--hook netfilter --no-store");
    let other = Recorder::start_on(&net, "vb", others.path(), "--hook netfilter --no-store");
    let frames: Vec<_> = (0..20).map(|i| frame(mac(&net), 100, i)).collect();
    send(&net, &frames);
    wait_seen(&recorder, frames.len());
    wait_seen(&other, frames.len());
    for stats in [recorder.stop(), other.stop()] {
        assert_accounted(&stats);
        assert_eq!(number(&stats["interfaces"]["vb"], "captured"), 20);
    }
}

/// Which interface id packets sent on one CPU get.
fn interface_of_packets_from(cpu: usize, net: &Net, hook: &str) -> (Vec<u32>, Vec<String>) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let recorder =
        Recorder::start(net, dir.path(), &format!("--hook {hook} --dir {}", store.display()));
    net.a.inside(|| {
        let mut core = CpuSet::new();
        core.set(cpu);
        sched_setaffinity(None, &core).expect("the CPU is there");
        let mut sender = Sender::on("va");
        for i in 0..10 {
            sender.send(&frame([2, 0, 0, 0, 0, 2], 100, i));
        }
    });
    wait_seen(&recorder, 10);
    recorder.stop();
    let contents = Contents::of_store(&store);
    let mut ids: Vec<u32> = contents.packets.iter().map(|p| p.interface).collect();
    ids.dedup();
    let told = contents.interfaces.into_iter().filter_map(|i| i.description).collect();
    (ids, told)
}

/// The sender's device is told to take the queue of the CPU that sends (XPS), and a veth's far end
/// receives on the queue that it was sent on.
#[test]
fn the_queue_or_cpu_of_a_packet_is_told_by_its_interface() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(cpus > 1, "this test needs two CPUs");
    for (hook, unit) in [("xdp", "receive queue"), ("xdp-generic", "CPU"), ("tcx", "CPU")] {
        let net = Net::with(Cable { queues: Some(2), ..Cable::default() });
        for cpu in [0, 1] {
            let mask = 1 << cpu;
            net.a.shell(&format!("echo {mask} > /sys/class/net/va/queues/tx-{cpu}/xps_cpus"));
        }
        for cpu in [0, 1] {
            let (ids, told) = interface_of_packets_from(cpu, &net, hook);
            assert_eq!(ids, [cpu as u32], "{hook}, sent on CPU {cpu}");
            let expected: Vec<String> =
                (0..told.len()).map(|n| format!("hook {hook}, {unit} {n}, clock batch")).collect();
            assert_eq!(told, expected);
        }
    }
}

/// Where a tag is put back and the packet is cut inside it or before it.
#[test]
fn a_tag_is_cut_where_the_snaplen_says() {
    let net = Net::new();
    let _tag = net.a.inside(|| {
        let va = Interface::find("va").expect("made above");
        Tag::attach(va.index, 7).expect("a kernel with tcx")
    });
    for hook in ["xdp", "tcx", "tpacket", "recv"] {
        for snaplen in [1, 4, 11, 12, 13, 14, 15, 16, 17, 40] {
            let dir = tempfile::tempdir().expect("a directory");
            let store = dir.path().join("store");
            let flags = format!("--hook {hook} --snaplen {snaplen} --dir {}", store.display());
            let recorder = Recorder::start(&net, dir.path(), &flags);
            let frames: Vec<_> = (0..5).map(|i| frame([2, 0, 0, 0, 0, 2], 100, i)).collect();
            send(&net, &frames);
            // Forty times a second until the next line of statistics would be most of the time.
            let mut control = Asking::at(&store.join(".tapdeck.sock"));
            wait_for("the packets to be seen", || {
                number(&control.ask(r#"{"verb":"stats"}"#), "seen") >= frames.len() as u64
            });
            recorder.stop();
            let cut: Vec<Vec<u8>> = frames
                .into_iter()
                .map(|mut f| {
                    f.splice(12..12, [0x88, 0xa8, 0, 7]);
                    f.truncate(snaplen);
                    f
                })
                .collect();
            assert!(Contents::of_store(&store).frames() == cut, "{hook}, snaplen {snaplen}");
        }
    }
}

/// On the loopback interface each packet leaves and comes back, and is one packet all the same.
#[test]
fn a_packet_on_loopback_is_recorded_once() {
    for hook in ["tcx", "tpacket", "recv", "xdp-generic"] {
        let net = Net::new();
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let flags = format!("--hook {hook} --dir {}", store.display());
        let recorder = Recorder::start_on(&net, "lo", dir.path(), &flags);
        net.b.run("ping -q -c 5 -i 0.01 127.0.0.1");
        // Five requests and five answers.
        wait_seen(&recorder, 10);
        recorder.stop();
        assert_eq!(Contents::of_store(&store).packets.len(), 10, "{hook}");
    }
}

#[test]
fn a_program_above_is_named_where_it_keeps_xdp_away() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    net.b.run("ip link add br0 type bridge");
    net.b.run("ip link set vb master br0");
    net.b.run("ip link set br0 up");
    let above = ["--hook", "xdp-generic", "--no-store"];
    let recorder = Recorder::start_with(&net, "br0", dir.path(), &above);
    let record = |flags: &[&str]| {
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        let out = command.args(["record", "-i", "vb", "--no-store", "--duration", "100ms"]);
        let out = out.args(flags).output().expect("it was built");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for hook in ["xdp", "xdp-generic"] {
        let (code, said) = record(&["--hook", hook]);
        assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
        let told = "vb can have no XDP program while br0, which sits on it, has one (id ";
        assert!(said.contains(told) && said.contains("ip link set br0 xdp off"), "{said}");
        assert!(!said.contains("id 0"), "{said}");
    }
    let (code, said) = record(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("tcx") && said.contains("sits on it has an XDP program"), "{said}");
    recorder.stop();
}

/// The four capabilities that recording takes are enough at afxdp too, where memory may be locked:
/// because the limit is high enough, or by one capability more.
#[test]
fn afxdp_without_root_says_what_memory_it_lacks() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).expect("it is ours");
    let program = dir.path().join("tapdeck");
    copy_program(env!("CARGO_BIN_EXE_tapdeck"), &program);
    let record = |more: &str| {
        let caps = format!("+bpf,+net_admin,+perfmon,+net_raw{more}");
        let mut command = net.b.command("prlimit");
        command.args(["--memlock=65536", "setpriv"]);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(format!("--inh-caps={caps}")).arg(format!("--ambient-caps={caps}"));
        command.arg(&program);
        command.args(["record", "-i", "vb", "--hook", "afxdp", "--ring-bytes", "4MiB"]);
        command.args(["--no-store", "--duration", "100ms"]).output().expect("util-linux is there")
    };
    let refused = record("");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("CAP_IPC_LOCK") && said.contains("ulimit -l"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let taken = record(",+ipc_lock");
    assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
}
