//! Packets of many sensors as one answer: it is that of one query over all their stores, it says
//! which sensors are missing from it, and it takes bounded memory.

mod testbed;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;
use tapdeck_testkit::{Talking, wait_for};
use testbed::{Fleet, Sensor, Stores, packets, printed, run, said};

fn none(_: usize) -> String {
    String::new()
}

#[test]
fn two_sensors_give_what_one_query_over_both_stores_gives() {
    let stores = Stores::record(2, 200);
    let fleet = Fleet::start(&stores, None, none);
    let urls = fleet.urls();
    let file = stores.path("remote.pcapng");
    let to = file.to_str().expect("it is UTF-8");
    let all = stores.queried(&[0, 1], &[]);
    assert_eq!(packets(&all), 400);
    for words in [&[][..], &["src port 1001"], &["--limit", "17"]] {
        let out = fleet.ask(&urls, &[&["-w", to], words].concat());
        assert!(out.status.success() && out.stderr.is_empty(), "{words:?}: {}", said(&out));
        assert_eq!(printed(&file), stores.queried(&[0, 1], words), "{words:?}");
    }
    let middle = all.lines().filter(|line| !line.starts_with('\t')).nth(200).expect("so many");
    let middle = middle.split(' ').next().expect("a time");
    for flag in ["--after", "--before"] {
        let out = fleet.ask(&urls, &["-w", to, flag, middle]);
        assert!(out.status.success(), "{}", said(&out));
        assert_eq!(printed(&file), stores.queried(&[0, 1], &[flag, middle]));
    }

    // Lines are those of any query, and tell the sensor beside the interface.
    let out = fleet.ask(&urls, &["--limit", "2"]);
    let text = String::from_utf8(out.stdout).expect("it is text");
    let mut lines = text.lines();
    for (name, port) in [("10.77.0.2:8443/vb", 1000), ("10.77.1.2:8443/vb", 1001)] {
        let line = lines.next().expect("two lines");
        let rest = format!(" {name} in udp 10.213.0.1:{port} > 10.213.0.2:9 length 400");
        assert!(line.ends_with(&rest), "{line}");
    }
    assert_eq!(lines.next(), None);
    let out = fleet.ask(&urls, &["--json", "--limit", "1", "-i", "*1.2:8443/v?"]);
    let object: serde_json::Value = serde_json::from_slice(&out.stdout).expect("an object");
    assert_eq!(object["interface"], "10.77.1.2:8443/vb");
    let flow = object["community_id"].as_str().expect("an id");
    let out = fleet.ask(&urls, &["-w", to, "--community-id", flow]);
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(printed(&file), stores.queried(&[1], &[]));
    let out = fleet.ask(&urls, &["--count", "--before", "1000000000"]);
    assert_eq!((out.status.code(), &*out.stdout), (Some(0), &b"0\n"[..]), "{}", said(&out));
    assert_eq!(fleet.ask(&urls, &["--count", "--direction", "in"]).stdout, b"400\n");
    assert_eq!(fleet.ask(&urls, &["--count", "--direction", "out"]).stdout, b"0\n");
}

/// Writes `remote.toml`, for whoever is named by its mode.
fn write(path: &Path, text: &str, mode: u32) {
    fs::create_dir_all(path.parent().expect("it lies somewhere")).expect("there is room");
    fs::write(path, text).expect("it can be written");
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("it is ours");
}

#[test]
fn what_is_shown_to_sensors_stands_in_a_file_that_nobody_else_may_read() {
    let stores = Stores::record(1, 10);
    let fleet = Fleet::start(&stores, None, none);
    let count = |remote: &str| fleet.query(remote).arg("--count").output().expect("it was built");
    // With nothing to show, nobody is believed on either side.
    let out = count(&fleet.urls());
    assert_eq!((out.status.code(), &*out.stdout), (Some(1), &b"0\n"[..]), "{}", said(&out));
    assert!(said(&out).contains("10.77.0.2:8443: no connection: invalid peer"), "{}", said(&out));

    let path = |name: &str| stores.path(name).display().to_string();
    let text = format!(
        "[all]\nca = '{}'\n[[sensor]]\nname = 'berlin'\nurl = '{}/edge'\nshow.cert = '{}'\nshow.key = '{}'\n",
        path("ca.pem"),
        fleet.sensors[0].url,
        path("alice.pem"),
        path("alice.key")
    );
    write(&fleet.remote_toml(), &text, 0o640);
    let out = count("berlin");
    assert_eq!(out.status.code(), Some(2));
    assert!(said(&out).contains("may be read by others than you"), "{}", said(&out));
    write(&fleet.remote_toml(), &text, 0o600);
    let out = count("berlin");
    assert_eq!((out.status.code(), &*out.stdout), (Some(0), &b"10\n"[..]), "{}", said(&out));
    let out = fleet.query("berlin").args(["--limit", "1"]).output().expect("it was built");
    assert!(String::from_utf8_lossy(&out.stdout).contains(" berlin/vb in udp "), "{out:?}");
    // A token that is nobody's, and a store that is not there.
    write(&fleet.remote_toml(), &text.replace("ca =", "token = 'alice.00'\nca ="), 0o600);
    let out = count(&fleet.urls());
    assert!(said(&out).contains("it refuses: who are you?"), "{}", said(&out));
    write(&fleet.remote_toml(), &text.replace("/edge", "/core"), 0o600);
    let out = count("berlin");
    assert!(
        said(&out).contains("berlin: it refuses: there is no store \"core\""),
        "{}",
        said(&out)
    );
    for wrong in ["hamburg", "http://10.77.0.2:8443", "https://a,https://a", "https://a/b/c"] {
        let out = count(wrong);
        assert_eq!(out.status.code(), Some(2), "{wrong}: {}", said(&out));
    }
}

/// Makes a sensor's line to those who ask a bad one: frames come late, and some not at all. Where
/// the kernel has no netem, a queue that is too short does that.
fn spoil(sensor: &Sensor) {
    let Sensor { namespace, interface, .. } = sensor;
    let netem = format!("tc qdisc add dev {interface} root netem delay 20ms 10ms loss 2%");
    let words = ["-c", &format!("{netem} 2>/dev/null")];
    if !namespace.command("sh").args(words).status().expect("there is a shell").success() {
        let queue = "tbf rate 8mbit burst 4kb limit 12kb";
        namespace.run(&format!("tc qdisc add dev {interface} root {queue}"));
    }
}

/// Returns how many frames a sensor's line has lost.
fn lost(sensor: &Sensor) -> u64 {
    let Sensor { namespace, interface, .. } = sensor;
    let told = run(namespace.command("tc").args(["-s", "qdisc", "show", "dev", interface]));
    let (_, rest) = told.split_once("(dropped ").unwrap_or_else(|| panic!("{told}"));
    let number = rest.split(',').next().and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("{told}"))
}

#[test]
fn of_eight_sensors_those_that_fail_are_named_and_the_rest_is_given() {
    let stores = Stores::record(8, 1500);
    let (expired, limited, dead, slow, bad) = (1, 2, 3, 4, [5, 6]);
    let role = |at| if at == limited { "packets = 100".to_owned() } else { String::new() };
    let fleet = Fleet::start(&stores, Some(expired), role);
    let sensor = |at: usize| &fleet.sensors[at];
    // One takes connections and says nothing, and one says little at a time.
    sensor(dead).gateway.process.signal(Signal::STOP);
    let few = format!(
        "tc qdisc add dev {} root tbf rate 2mbit burst 4kb latency 2s",
        sensor(slow).interface
    );
    sensor(slow).namespace.run(&few);
    for at in bad {
        spoil(sensor(at));
    }

    let file = stores.path("remote.pcapng");
    let out = fleet.ask(&fleet.urls(), &["-w", file.to_str().expect("it is UTF-8")]);
    let said = said(&out);
    assert_eq!(out.status.code(), Some(1), "{said}");
    let name = |at: usize| &sensor(at).name;
    let mut lines = said.lines();
    for (at, what) in [
        (expired, "no connection: invalid peer certificate: Expired"),
        (limited, "the answer ends at a limit of your role, after 100 packets"),
        (dead, "no connection"),
    ] {
        let line = lines.next().unwrap_or_else(|| panic!("{said}"));
        assert!(line.starts_with(&format!("tapdeck-remote: {}: {what}", name(at))), "{line}");
    }
    assert_eq!(lines.next(), Some("tapdeck: the answer is not whole, as said above"), "{said}");
    assert_eq!(lines.next(), None, "{said}");
    assert!(bad.into_iter().all(|at| lost(sensor(at)) > 0), "the lines were bad");

    // What the others have is there, in order, and a part of one.
    assert_eq!(packets(&printed(&file)), 5 * 1500 + 100);
    let part = stores.path("part.pcapng");
    let to = part.to_str().expect("it is UTF-8");
    let whole: Vec<&str> = [0, 4, 5, 6, 7].into_iter().map(|at| sensor(at).url.as_str()).collect();
    let out = fleet.ask(&whole.join(","), &["-w", to]);
    assert!(out.status.success() && out.stderr.is_empty(), "{}", testbed::said(&out));
    assert_eq!(printed(&part), stores.queried(&[0, 4, 5, 6, 7], &[]));
    // The file itself says what it lacks.
    let bytes = fs::read(&file).expect("it was written");
    let told = format!("incomplete: {} packets, 0 dropped, 0 unseen; {}: ", 7600, name(expired));
    assert!(bytes.windows(told.len()).any(|part| part == told.as_bytes()));
}

#[test]
fn an_answer_that_breaks_off_is_given_as_far_as_it_came() {
    let stores = Stores::record(2, 4000);
    let fleet = Fleet::start(&stores, None, none);
    // It is so slow that it is under way when its gateway is killed.
    let Sensor { namespace, interface, gateway, name, .. } = &fleet.sensors[0];
    namespace
        .run(&format!("tc qdisc add dev {interface} root tbf rate 1mbit burst 4kb latency 2s"));
    let file = stores.path("remote.pcapng");
    let mut command = fleet.query_with_certificate(&fleet.urls());
    let mut query = Talking::start(command.arg("-w").arg(&file));
    wait_for("packets", || file.metadata().is_ok_and(|file| file.len() > 100_000));
    gateway.process.signal(Signal::KILL);
    let (status, said) = query.end();
    assert_eq!(status.code(), Some(1), "{said:?}");
    let first = said.first().expect("it says why");
    assert!(first.starts_with(&format!("tapdeck-remote: {name}: the answer broke off")), "{first}");
    let given = printed(&file);
    // All of the other sensor's, and the first of this one's.
    let all = stores.queried(&[0, 1], &[]);
    let of = |text: &str, port: &str| {
        let lines = text.lines().filter(|line| line.contains(port));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of(&given, ".1001 > "), of(&all, ".1001 > "));
    let (given, all) = (of(&given, ".1000 > "), of(&all, ".1000 > "));
    assert!(!given.is_empty() && given.len() < all.len() && all.starts_with(&given));
}
