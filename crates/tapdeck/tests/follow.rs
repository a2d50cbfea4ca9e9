//! `tapdeck query --follow`: what is there and what comes, each packet once, while recorders write.

mod testbed;

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::Signal;
use tapdeck_packet::pcapng::{Reader, Record};
use tapdeck_testkit::{Net, Running, Sender, wait_for};
use testbed::recorder::{Recorder, frame, number};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A query that follows, of which a pipe takes what it gives.
struct Follower {
    process: Running,
    given: Arc<Mutex<Vec<u8>>>,
}

impl Follower {
    fn start(store: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
        command.args(["query", "--follow", "--dir"]).arg(store).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Running(command.spawn().expect("it runs"));
        let mut pipe = process.0.stdout.take().expect("piped");
        let given = Arc::new(Mutex::new(Vec::new()));
        let taken = given.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                taken.lock().expect("nobody panics with it").extend(&buffer[..n]);
            }
        });
        Self { process, given }
    }

    /// Returns the numbers of the packets that it has given as pcapng, and their interfaces.
    fn numbers(&self) -> Vec<(u32, String)> {
        let given = self.given.lock().expect("nobody panics with it");
        let (mut numbers, mut interfaces) = (Vec::new(), Vec::new());
        for record in Reader::new(&given) {
            match record {
                Ok(Record::Interface(interface)) => {
                    interfaces.push(interface.name.expect("each has a name"));
                }
                Ok(Record::Packet(packet)) => {
                    let number = packet.frame[42..46].try_into().expect("4 bytes");
                    let interface = interfaces[packet.interface as usize].clone();
                    numbers.push((u32::from_be_bytes(number), interface));
                }
                Ok(_) => {}
                // It is writing.
                Err(_) => break,
            }
        }
        numbers
    }

    fn lines(&self) -> usize {
        let given = self.given.lock().expect("nobody panics with it");
        given.split(|byte| *byte == b'\n').count() - 1
    }

    /// Ends it as Ctrl-C does. Returns what it said.
    fn stop(mut self) -> String {
        self.process.signal(Signal::INT);
        self.finish()
    }

    fn finish(&mut self) -> String {
        let status = self.process.wait();
        let mut said = String::new();
        self.process.0.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        assert!(status.success(), "{status}: {said}");
        said
    }
}

/// Sends numbered packets to `vb` and to `vd`, in turn.
fn send(net: &Net, interface: &str, numbers: std::ops::Range<u32>) {
    net.a.inside(|| {
        let mut sender = Sender::on(interface);
        sender.send_all(numbers.map(|i| frame([2, 0, 0, 0, 0, 9], 100 + i as usize % 900, i)));
    });
}

#[test]
fn no_packet_is_missing_and_none_comes_twice() {
    let net = Net::new();
    net.plug_second();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!(
        "--hook tcx --snaplen 2000 --block-bytes 64KiB --ring-bytes 16MiB --segment-time 300ms --flush 100ms --dir {}",
        text(&store)
    );
    let recorder = Recorder::start(&net, dir.path(), &flags);
    send(&net, "va", 0..500);
    recorder.wait_for_captured(500);
    // These begin in the midst of a live segment.
    let all = Follower::start(&store, &["-w", "-", "udp"]);
    let lines = Follower::start(&store, &[]);
    let odd = Follower::start(&store, &["-w", "-", "ether[45] & 1 = 1"]);
    let three = Follower::start(&store, &["-w", "-", "--limit", "503"]);
    let mut sent = 500;
    while sent < 4000 || number(&recorder.now(), "segments") < 4 {
        send(&net, "va", sent..sent + 100);
        sent += 100;
    }
    recorder.wait_for_captured(u64::from(sent));
    let stats = recorder.stop();
    assert_eq!(number(&stats, "captured"), u64::from(sent), "{stats}");
    // Another recorder goes on in the same store, with one interface more.
    let recorder = Recorder::start_on(&net, "vb,vd", dir.path(), &flags);
    send(&net, "vc", sent..sent + 300);
    send(&net, "va", sent + 300..sent + 600);
    sent += 600;
    recorder.wait_for_captured(600);

    wait_for("all packets", || all.numbers().len() >= sent as usize);
    wait_for("all lines", || lines.lines() >= sent as usize);
    wait_for("every second packet", || odd.numbers().len() >= sent as usize / 2);
    let mut given = all.numbers();
    given.sort();
    assert!(given.iter().map(|(number, _)| *number).eq(0..sent), "each once");
    let of_vd = given.iter().filter(|(_, interface)| interface == "vd");
    assert!(of_vd.map(|(number, _)| *number).eq(sent - 600..sent - 300));
    let mut given = odd.numbers();
    given.sort();
    assert!(given.iter().map(|(number, _)| *number).eq((0..sent).filter(|i| i % 2 == 1)));
    assert_eq!(lines.lines(), sent as usize);
    for follower in [all, lines, odd] {
        assert_eq!(follower.stop(), "");
    }
    let mut three = three;
    three.finish();
    assert_eq!(three.numbers().len(), 503, "it ended by itself");
    recorder.stop();
}

#[test]
fn it_ends_when_nobody_reads() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = format!("--hook tcx --flush 100ms --dir {}", text(&store));
    let recorder = Recorder::start(&net, dir.path(), &flags);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["query", "--follow", "--dir"]).arg(&store).stdout(Stdio::piped());
    let mut running = Running(command.spawn().expect("it runs"));
    drop(running.0.stdout.take());
    // No packet ever comes that would tell it.
    assert!(running.wait().success());
    recorder.stop();
}

#[test]
fn files_of_other_programs_are_not_followed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut file = Vec::new();
    tapdeck_packet::pcapng::section_header(&mut file, "linux", "another", None);
    std::fs::write(dir.path().join("a.pcapng"), file).expect("room on the disk");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
    let out = command.args(["query", "--follow", "--dir"]).arg(dir.path()).output();
    let out = out.expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("--follow is for stores"), "{said}");
}
