//! `tapdeck record` for those who come from other programs: a filter as the last words, patterns of
//! interfaces, files for a group of people; and what keeps them from cutting themselves off.

mod testbed;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tapdeck_testkit::{Net, Sender};
use testbed::recorder::{Contents, Recorder, frame, number, segments};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn send(net: &Net, interface: &str, numbers: std::ops::Range<u32>) {
    net.a.inside(|| {
        let mut sender = Sender::on(interface);
        sender.send_all(numbers.map(|i| frame([2, 0, 0, 0, 0, 9], 100, i)));
    });
}

#[test]
fn the_last_words_are_the_filter() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("a.pcapng");
    let flags =
        ["--hook", "tcx", "-n", "-c", "10", "-w", text(&file), "udp", "and", "ether[45] = 7"];
    let recorder = Recorder::start_with(&net, "vb", dir.path(), &flags);
    for _ in 0..10 {
        send(&net, "va", 0..20);
    }
    let stats = recorder.finish();
    assert_eq!(
        (number(&stats, "captured"), number(&stats, "filtered") >= 171),
        (10, true),
        "{stats}"
    );
    let frames = Contents::of(&file).frames();
    assert!(frames.iter().all(|frame| frame[45] == 7) && frames.len() == 10);
}

#[test]
fn patterns_are_the_interfaces_that_are_up() {
    let net = Net::new();
    net.plug_second();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = ["--hook", "tcx", "--dir", text(&store)];
    let mut recorder = Recorder::start_with(&net, "v?", dir.path(), &flags);
    // One of the two was waited for.
    recorder.wait_to_say("recording");
    send(&net, "va", 0..10);
    send(&net, "vc", 0..20);
    recorder.wait_for_captured(30);
    let stats = recorder.stop();
    for (name, packets) in [("vb", 10), ("vd", 20)] {
        assert_eq!(number(&stats["interfaces"][name], "captured"), packets, "{stats}");
    }
    let mut none = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    let out = none.args(["record", "--no-store", "-i", "eth*"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("no interface that is up fits eth*; there are: "), "{said}");
}

#[test]
fn a_store_is_read_by_whom_it_is_made_for() {
    const DAEMON: u32 = 1;
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags =
        ["--hook", "tcx", "--file-group", "daemon", "--file-mode", "0644", "--dir", text(&store)];
    let recorder = Recorder::start_with(&net, "vb", dir.path(), &flags);
    send(&net, "va", 0..10);
    recorder.wait_for_captured(10);
    recorder.stop();
    let about = |path: &Path| {
        let meta = fs::symlink_metadata(path).expect("it is there");
        (meta.gid(), meta.mode() & 0o7777)
    };
    assert_eq!(about(&store), (DAEMON, 0o2755));
    let segment = &segments(&store)[0];
    assert_eq!(about(segment), (DAEMON, 0o644));
    assert_eq!(about(&segment.with_extension("index")), (DAEMON, 0o644));
    for (flags, words) in [
        (&["--file-group", "nobody here", "--dir", text(&store)][..], "there is no such group"),
        (&["--file-mode", "0666", "--dir", text(&store)], "nobody else write"),
        (&["--file-mode", "0640", "--no-store"], "give --dir"),
    ] {
        let mut refused = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        let out = refused.args(["record", "-i", "vb"]).args(flags).output().expect("it runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(words), "{flags:?}: {said}");
    }
}

#[test]
fn nobody_cuts_a_machine_off_unasked() {
    let net = Net::new();
    let dir = tempfile::tempdir().expect("a directory");
    for words in ["addr add 10.213.0.2/24 dev vb", "route add default via 10.213.0.1 dev vb"] {
        let done = net.b.command("ip").args(words.split(' ')).status();
        assert!(done.expect("ip(8)").success(), "{words}");
    }
    let consume = ["--no-store", "--hook", "xdp", "--deliver", "consume"];
    let mut refused = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    let out = refused.args(["record", "-i", "vb"]).args(consume).output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(
        said.contains("vb carries the default route (default via 10.213.0.1 dev vb)"),
        "{said}"
    );
    let meant = [&consume[..], &["--yes-this-interface"]].concat();
    Recorder::start_with(&net, "vb", dir.path(), &meant).stop();

    // A group of a daemon is refused alike, before anything is attached.
    let config = dir.path().join("serve.toml");
    let group = "[[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\n";
    let told = "vb carries the default route (default via 10.213.0.1 dev vb): deliver = \"consume\" \
                would cut this machine off; yes-this-interface = true if that is meant";
    let tapdeck = |command: &[&str]| {
        let mut program = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        let out = program.args(command).arg(&config).output().expect("it runs");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    fs::write(&config, format!("{group}deliver = \"consume\"\n")).expect("it is ours");
    for (command, code) in [(&["serve", "--config"][..], 2), (&["config", "check"], 1)] {
        let (ended, said) = tapdeck(command);
        assert_eq!(ended, Some(code), "{said}");
        assert!(said.contains("group ids: ") && said.contains(told), "{said}");
    }
    for meant in ["deliver = \"consume\"\nyes-this-interface = true\n", "deliver = \"pass\"\n"] {
        fs::write(&config, format!("{group}{meant}")).expect("it is ours");
        let (ended, said) = tapdeck(&["config", "check"]);
        assert_eq!(ended, Some(0), "{said}");
    }
}
