//! Configuration files: a recorder that is told by a file what to record, and what `config check`
//! says of files.

mod testbed;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use tapdeck_capture::interface::Interface;
use tapdeck_testkit::process::number;
use tapdeck_testkit::{Net, Sender};
use testbed::recorder::{Contents, Recorder, assert_accounted, frame, segments};

/// Writes a file, and returns its path.
fn file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).expect("the directory is ours");
    path
}

fn check(net: &Net, files: &[&Path]) -> Output {
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["config", "check"]).args(files).output().expect("it was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A network whose namespace `b` has another interface, `d0`.
fn net() -> Net {
    let net = Net::new();
    net.b.run("ip link add d0 type veth peer name d1");
    net.b.run("ip link set d0 up");
    net.b.run("ip link set d1 up");
    net
}

fn send(net: &Net, len: usize, numbers: std::ops::Range<u32>) {
    let to = net.b.inside(|| Interface::find("vb").expect("it is there")).mac.expect("a MAC");
    net.a.inside(|| {
        let mut sender = Sender::on("va");
        numbers.for_each(|number| sender.send(&frame(to, len, number)));
    });
}

#[test]
fn a_file_says_what_is_recorded_and_flags_win() {
    let net = net();
    let dir = tempfile::tempdir().expect("a directory");
    let text = format!(
        "# what the recorder of this test does\n\
         interface = [\"vb\", \"d0\"]\nhook = \"tcx\"\nfilter = \"udp port 9\"\nsnaplen = 96\n\
         dir = \"{}\"\nsegment-time = \"1h\"\nno-promiscuous = true\nno-index = false\n",
        dir.path().join("tape").display()
    );
    let path = file(dir.path(), "b.toml", &text);
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "--snaplen", "60", "--config"]).arg(&path);
    command.args(["--user", "root"]);
    let recorder = Recorder::of(command, dir.path());
    send(&net, 200, 0..10);
    recorder.wait_for_captured(10);
    let stats = recorder.stop();
    assert_accounted(&stats);
    let interfaces = stats["interfaces"].as_object().expect("a map");
    assert_eq!(interfaces.keys().collect::<Vec<_>>(), ["d0", "vb"]);
    for interface in interfaces.values() {
        assert_eq!(
            (&interface["hook"], &interface["filter"]),
            (&"tcx".into(), &"udp port 9".into())
        );
        assert_eq!(number(interface, "snaplen"), 60, "the command line's");
    }
    let contents = Contents::of_store(&dir.path().join("tape"));
    assert_eq!(contents.packets.len(), 10);
    assert!(contents.packets.iter().all(|packet| packet.frame.len() == 60));
}

#[test]
fn what_is_wrong_is_told_with_line_and_key_before_anything_is_touched() {
    let net = net();
    let dir = tempfile::tempdir().expect("a directory");
    let tape = dir.path().join("tape");
    let store = format!("dir = {:?}\n", tape.display().to_string());
    for (name, written, line, words) in [
        ("a", "snap-len = 96\n", 1, &["no key snap-len", "nearest is snaplen"][..]),
        ("b", "interface = \"vb\"\nkeep-time = \"soon\"\n", 2, &["keep-time", "no time"]),
        (
            "c",
            "interface = \"vb\"\nkeep-bytes = \"1MB\"\n",
            2,
            &["--keep-bytes 976.6 KiB: at least"],
        ),
        ("d", "interface = \"vb\"\npersist = \"b\"\ncount = 7\n", 3, &["--count", "--persist"]),
    ] {
        let path = file(dir.path(), &format!("{name}.toml"), &format!("{written}{store}"));
        let shown = format!("{}, line {line}: ", path.display());
        let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
        let out = command.args(["record", "--config"]).arg(&path).output().expect("it was built");
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("tapdeck: {shown}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let checked = check(&net, &[&path]);
        let told = text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(1), "{told}");
        assert!(told.contains(&shown) && told.contains("1 of 1 files cannot be used"), "{told}");
        for word in words {
            assert!(said.contains(word) && told.contains(word), "{word}: {said}{told}");
        }
    }
    let nowhere = check(&net, &[Path::new("/nowhere/x.toml")]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(text(&nowhere.stderr).contains("cannot read /nowhere/x.toml"));
    assert!(!tape.exists(), "nothing was made");
}

#[test]
fn check_says_what_each_file_would_do() {
    let net = net();
    let dir = tempfile::tempdir().expect("a directory");
    let tape = dir.path().join("tape");
    let recorder = format!(
        "interface = [\"vb\", \"d0\"]\nhook = \"tcx\"\nfilter = \"udp port 9\"\nring-bytes = \"32MiB\"\n\
         dir = {:?}\nkeep-bytes = \"10GiB\"\npersist = \"b\"\nuser = \"root\"\n",
        tape.display().to_string()
    );
    let recorder = file(dir.path(), "b.toml", &recorder);
    let daemon = file(
        dir.path(),
        "serve.toml",
        "[serve]\nsocket = \"/run/x\"\nsocket-mode = \"0600\"\n\
         [[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"xdp\"\nfilter = \"not port 22\"\n",
    );
    let out = check(&net, &[&recorder, &daemon]);
    let page = text(&out.stdout);
    assert!(out.status.success(), "{page}{}", text(&out.stderr));
    for line in [
        "b.toml: usable",
        "hook      tcx at vb; packets pass; 262144 bytes of each",
        "hook      tcx at d0;",
        "filter    udp port 9",
        "tape, which is made",
        "hooks and rings stay as b when the recorder ends",
        "started by root it becomes user root, without capabilities; its helper keeps",
        "serve.toml: usable",
        "socket    /run/x, mode 0600",
        "group     ids: hook xdp at vb; packets pass; 65535 bytes of each, by flow; filter not port 22",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    assert!(!tape.exists(), "it only looks");

    // A store that is there tells how long packets stay. In a namespace nothing can be pinned.
    let lines = fs::read_to_string(&recorder).expect("it is ours").replace("persist = \"b\"\n", "");
    fs::write(&recorder, lines).expect("it is ours");
    let mut command = net.b.command(env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["record", "--config"]).arg(&recorder);
    let words = Recorder::of(command, dir.path());
    send(&net, 200, 0..1000);
    words.wait_for_captured(1000);
    assert_eq!(number(&words.stop(), "captured"), 1000);
    // As if it had begun long ago.
    let [segment] = &segments(&tape)[..] else { panic!("one segment") };
    let old = tape.join("tapdeck-00000001-20260102T030405Z.pcapng");
    fs::rename(segment, old).expect("it is ours");
    let page = text(&check(&net, &[&recorder]).stdout);
    assert!(page.contains("packets stay for ") && page.contains(" a day"), "{page}");
}

#[test]
fn check_finds_what_the_machine_lacks() {
    let net = net();
    let dir = tempfile::tempdir().expect("a directory");
    let store = |rest: &str| {
        let tape = dir.path().join("tape").display().to_string();
        format!("dir = {tape:?}\nhook = \"tcx\"\n{rest}\n")
    };
    let group = |rest: &str| {
        format!(
            "[[group]]\nname = \"a\"\ninterfaces = [\"d0\"]\nhook = \"tcx\"\n\
                 [[group]]\nname = \"ids\"\ninterfaces = [\"vb\"]\nhook = \"tcx\"\n{rest}\n"
        )
    };
    for (number, (written, line, words)) in [
        (store("interface = \"eth7\""), None, &["eth7"][..]),
        (store("interface = \"vb\"\nfilter = \"florb\""), None, &["florb"]),
        (store("interface = \"vb\"\nuser = \"no-such-user\""), Some(4), &["--user"]),
        (store("interface = \"vb\"\nblock-bytes = 100000"), None, &["power of two"]),
        (group("filter = \"florb\""), Some(6), &["florb", "ids"]),
        (group("rules = \"no-such-file\""), Some(6), &["ids", "no-such-file"]),
        (group("colour = 7"), Some(9), &["no key colour; the nearest is "]),
        (group("steering = \"left\""), Some(9), &["no steering"]),
        (group("snap-len = 96"), Some(9), &["no key snap-len; the nearest is snaplen"]),
        ("[[listen]]\naddress = \"127.0.0.1:1\"".into(), None, &["tapdeck-gateway check"]),
    ]
    .into_iter()
    .enumerate()
    {
        let path = file(dir.path(), &format!("{number}.toml"), &written);
        let out = check(&net, &[&path]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{written}{said}");
        if let Some(line) = line {
            assert!(
                said.contains(&format!("{}, line {line}: ", path.display())),
                "{written}{said}"
            );
        }
        for word in words.iter().copied().chain([path.to_str().expect("UTF-8")]) {
            assert!(said.contains(word), "{written}{word}: {said}");
        }
    }
}
