//! Pins over HTTP: what a user has pinned is what they may see, outlives the gateway and the
//! store's retention, and stands in the audit before it is made or removed.

#![allow(clippy::unnecessary_debug_formatting, reason = "TOML and shells want paths quoted")]

#[path = "../../evidence/tests/common/mod.rs"]
mod common;
mod testbed;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Made, SECOND, made, packets_in, packets_of, recorders, segment};
use serde_json::{Value, json};
use tapdeck_evidence::{PinStore, Question, Time, Wish};
use tapdeck_testkit::wait_for;
use testbed::{Answer, Bed, send};

const ROLES: &str = "
[[role]]\nname = 'all'\nkind = 'pinner'
[[role]]\nname = 'some'\nkind = 'pinner'\nfilter = 'port 53'\nhistory = '1h'\nbytes = 4000
[[role]]\nname = 'look'\nkind = 'reader'
[[role]]\nname = 'none'\nkind = 'operator'\nstores = []
[[user]]\nname = 'alice'\nrole = 'all'
[[user]]\nname = 'bob'\nrole = 'some'
[[user]]\nname = 'carol'\nrole = 'look'
[[user]]\nname = 'dave'\nrole = 'none'
[[listen]]\naddress = '127.0.0.1:8001'\nuser = 'alice'
[[listen]]\naddress = '127.0.0.1:8002'\nuser = 'bob'
[[listen]]\naddress = '127.0.0.1:8003'\nuser = 'carol'
[[listen]]\naddress = '127.0.0.1:8004'\nuser = 'dave'
";

const ALICE: u16 = 8001;
const BOB: u16 = 8002;
const CAROL: u16 = 8003;
const DAVE: u16 = 8004;

/// A store in which somebody recorded a packet a second to ports 53 and 80 by turns, until now.
fn record(bed: &Bed) -> i64 {
    let store = bed.store();
    fs::create_dir(&store).expect("a directory");
    let now_ns = Time::now().0;
    let begin_ns = now_ns - 200 * SECOND;
    let packet = |i: i64| made(begin_ns + i * SECOND, if i % 2 == 0 { 53 } else { 80 });
    segment(&store, 1, (begin_ns, now_ns), &(0..200).map(packet).collect::<Vec<Made>>());
    recorders(&store, &[1]);
    now_ns
}

fn config(bed: &Bed, more: &str) -> String {
    format!("audit = {:?}\n{ROLES}{more}", bed.path("audit.jsonl"))
}

fn ask(bed: &Bed, port: u16, method: &str, path: &str, body: &str) -> Answer {
    let head = "Content-Type: application/json\r\n";
    bed.net.b.inside(|| send(&format!("127.0.0.1:{port}"), method, path, head, body))
}

fn post(bed: &Bed, port: u16, wanted: &Value) -> Answer {
    ask(bed, port, "POST", "/v1/pins", &wanted.to_string())
}

fn list(bed: &Bed, port: u16) -> Vec<Value> {
    let answer = ask(bed, port, "GET", "/v1/pins", "");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["pins"].as_array().expect("a list").clone()
}

fn wanted(now_ns: i64, after_s: i64, before_s: i64, filter: &str) -> Value {
    let at = |s: i64| Time(now_ns + s * SECOND).to_string();
    json!({"filter": filter, "after": at(after_s), "before": at(before_s), "reason": "case 7"})
}

/// Waits until a pin is as it should be, and returns it.
fn pin(bed: &Bed, number: u64, state: &str) -> Value {
    let path = format!("/v1/pins/{number}?store=edge");
    let mut found = Value::Null;
    wait_for("the pin", || {
        found = ask(bed, ALICE, "GET", &path, "").json();
        found["state"] == state
    });
    found
}

fn audit(bed: &Bed) -> Vec<Value> {
    let text = fs::read_to_string(bed.path("audit.jsonl")).expect("it is there");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Returns how many packets the files of a pin have.
fn pinned_packets(pins: &PinStore, number: u64) -> usize {
    let files = fs::read_dir(pins.packets_of(number)).expect("it is there");
    files.map(|file| packets_of(&file.expect("a file").path()).len()).sum()
}

#[test]
fn a_pin_is_made_listed_and_removed_within_the_ceilings_of_the_role() {
    let bed = Bed::new();
    let now_ns = record(&bed);
    let _gateway = bed.gateway(&config(&bed, ""));
    assert_eq!(list(&bed, CAROL), Vec::<Value>::new(), "nothing was pinned yet");

    // Who may pin gets what they ask for.
    let answer = post(&bed, ALICE, &wanted(now_ns, -100, -50, "port 80"));
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert!(answer.head.contains("location: /v1/pins/1?store=edge"), "{}", answer.head);
    let one = pin(&bed, 1, "done");
    assert_eq!(
        (&one["packets"], &one["by"], &one["complete"]),
        (&25.into(), &"alice".into(), &true.into())
    );
    let pins = PinStore::open(&PinStore::beside(&bed.store())).expect("pins");
    assert_eq!(pinned_packets(&pins, 1), 25);

    let given = ask(&bed, CAROL, "GET", "/v1/pins/1/packets", "");
    assert_eq!((given.status, packets_in(&given.body).len()), (200, 25), "{}", given.head);
    assert!(given.head.contains("content-type: application/x-pcapng"), "{}", given.head);
    assert!(String::from_utf8_lossy(&given.body).contains("complete: 25 packets"));

    // The role's filter holds whatever is asked, and so does how much one may have.
    let answer = post(&bed, BOB, &wanted(now_ns, -40, -20, "ip or not ip"));
    assert_eq!(answer.status, 201, "{}", answer.text());
    let two = pin(&bed, 2, "done");
    assert_eq!((&two["packets"], &two["ceiling"]), (&10.into(), &"port 53".into()));
    assert_eq!(pinned_packets(&pins, 2), 10);
    let given = ask(&bed, BOB, "GET", "/v1/pins/2/packets", "");
    assert_eq!((given.status, packets_in(&given.body).len()), (200, 10), "{}", given.head);
    assert_eq!(ask(&bed, BOB, "GET", "/v1/pins/1/packets", "").status, 404);
    assert_eq!(ask(&bed, DAVE, "GET", "/v1/pins/1/packets", "").status, 404);
    let answer = post(&bed, BOB, &wanted(now_ns, -190, -20, ""));
    assert_eq!(answer.status, 201, "{}", answer.text());
    let three = pin(&bed, 3, "full");
    assert_eq!(three["packets"], 0);
    let lacks = three["lacks"][0].as_str().expect("a sentence");
    assert!(lacks.contains("no more than 4,000 bytes"), "{lacks}");
    assert_eq!(ask(&bed, BOB, "GET", "/v1/pins/3/packets", "").status, 404, "it has none");
    let escapes = post(&bed, BOB, &wanted(now_ns, -40, -20, "ip) or (ip"));
    assert_eq!(escapes.status, 400, "{}", escapes.text());

    // Who sees what: a role with a filter sees its own, and hears nothing of what is lacking.
    let numbers =
        |port| list(&bed, port).iter().map(|pin| pin["number"].clone()).collect::<Vec<_>>();
    assert_eq!(numbers(CAROL), [3, 2, 1]);
    assert_eq!(numbers(BOB), [3, 2]);
    let seen = list(&bed, BOB);
    assert!(
        seen.iter().all(|pin| pin["complete"].is_null() && pin["lacks"] == json!([])),
        "{seen:?}"
    );
    assert_eq!(ask(&bed, DAVE, "GET", "/v1/pins", "").status, 404);

    // Readers and operators change nothing.
    for port in [CAROL, DAVE] {
        assert_eq!(post(&bed, port, &wanted(now_ns, -100, -50, "")).status, 403);
        assert_eq!(ask(&bed, port, "DELETE", "/v1/pins/1", "").status, 403);
    }
    assert_eq!(ask(&bed, BOB, "DELETE", "/v1/pins/1", "").status, 404, "it is not bob's to see");
    assert_eq!(ask(&bed, ALICE, "DELETE", "/v1/pins/9", "").status, 404);
    for none in ["x", "+1"] {
        let path = format!("/v1/pins/{none}");
        assert_eq!(ask(&bed, ALICE, "DELETE", &path, "").status, 400, "{path}");
    }
    assert_eq!(ask(&bed, ALICE, "DELETE", "/v1/pins/1", "").status, 204);
    assert!(!pins.place(1).exists());
    assert_eq!(numbers(CAROL), [3, 2]);

    // It was written down before, by whom, and what it is about.
    let lines = audit(&bed);
    let of = |key: &str, value: &str| lines.iter().filter(|l| l[key] == value).collect::<Vec<_>>();
    let asked: Vec<_> =
        of("what", "POST /v1/pins").into_iter().filter(|l| l["event"] == "asked").collect();
    assert_eq!(asked.len(), 3, "{lines:#?}");
    assert_eq!((&asked[0]["who"], &asked[0]["reason"]), (&"alice".into(), &"case 7".into()));
    assert_eq!(
        (&asked[1]["ceiling"], &asked[1]["filter"]),
        (&"port 53".into(), &"ip or not ip".into())
    );
    let ended = lines.iter().find(|l| l["event"] == "ended" && l["id"] == asked[0]["id"]);
    assert_eq!(ended.expect("it ended")["pin"], 1);
    let given: Vec<_> = of("what", "/v1/pins/1/packets");
    let given = given.iter().find(|l| l["event"] == "asked").expect("it is written down");
    assert_eq!((&given["who"], &given["filter"]), (&"carol".into(), &"port 80".into()));
    let ended = lines.iter().find(|l| l["event"] == "ended" && l["id"] == given["id"]);
    let ended = ended.expect("it ended");
    assert_eq!((&ended["packets"], &ended["result"]), (&25.into(), &"complete".into()));
    let removed: Vec<_> =
        of("what", "DELETE /v1/pins/1").into_iter().filter(|l| l["who"] == "alice").collect();
    assert_eq!((&removed[0]["event"], &removed[0]["pin"]), (&"asked".into(), &1.into()));
    let results: Vec<_> = of("event", "pinned").iter().map(|l| l["result"].clone()).collect();
    assert_eq!(results, ["done", "done", "full"]);
    let refused = of("event", "refused");
    assert_eq!(refused.iter().filter(|l| l["who"] == "carol").count(), 2, "{refused:#?}");
    assert_eq!(of("event", "asked").len(), of("event", "ended").len(), "{lines:#?}");
}

#[test]
fn packets_of_a_pin_are_given_within_the_ceilings_of_the_role() {
    let bed = Bed::new();
    let now_ns = record(&bed);
    let few = "[[role]]\nname = 'few'\nkind = 'reader'\npackets = 3\n\
               [[role]]\nname = 'new'\nkind = 'reader'\nhistory = '150s'\n\
               [[user]]\nname = 'eve'\nrole = 'few'\n[[user]]\nname = 'frank'\nrole = 'new'\n\
               [[listen]]\naddress = '127.0.0.1:8005'\nuser = 'eve'\n\
               [[listen]]\naddress = '127.0.0.1:8006'\nuser = 'frank'\n";
    let _gateway = bed.gateway(&config(&bed, few));
    let answer = post(&bed, ALICE, &wanted(now_ns, -200, -100, "port 80"));
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(pin(&bed, 1, "done")["packets"], 50);
    let give = |port| ask(&bed, port, "GET", "/v1/pins/1/packets", "").body;
    assert_eq!(packets_in(&give(ALICE)).len(), 50);
    let given = give(8005);
    assert_eq!(packets_in(&given).len(), 3);
    assert!(String::from_utf8_lossy(&given).contains("limited: 3 packets"));
    // Of somebody else's pin no packet is given that the role does not reach back to.
    let asked_ns = Time::now().0;
    let given = packets_in(&give(8006));
    assert!(given.len() < 50, "{}", given.len());
    assert!(given.iter().all(|(time_ns, _)| *time_ns >= asked_ns - 150 * SECOND));
}

#[test]
fn what_makes_no_sense_or_has_no_room_is_refused_and_says_why() {
    let bed = Bed::new();
    let now_ns = record(&bed);
    let evidence = bed.path("pins");

    let text = config(&bed, "");
    let gateway = bed.gateway_with(&text, &format!("evidence = {evidence:?}\npin-bytes = 70000\n"));
    let good = wanted(now_ns, -100, -50, "");
    let with = |key: &str, value: Value| {
        let mut wanted = good.clone();
        wanted[key] = value;
        post(&bed, ALICE, &wanted)
    };
    let at = |s: i64| Value::from(Time(now_ns + s * SECOND).to_string());
    for (answer, status, says) in [
        (with("filter", "prot 80".into()), 400, "prot 80"),
        (with("filter", "host gate".into()), 400, "in place of names"),
        (with("store", "core".into()), 404, "no store \"core\" for you"),
        (with("before", at(-100)), 400, "not later than after"),
        (with("before", at(90_000)), 400, "no more than a day from now"),
        (with("until", at(-10)), 400, "later than now"),
        (with("reason", " ".into()), 400, "reason: "),
        (with("after", "soon".into()), 400, "after: "),
        (with("colour", "red".into()), 400, "unknown field `colour`"),
        (with("community_id", "1:x".into()), 400, "community_id: "),
        (with("filter", "port 80 or ".repeat(200).into()), 400, "filter: 2000 bytes at most"),
    ] {
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.text().contains(says), "{says}: {}", answer.text());
    }
    assert!(!evidence.exists(), "nothing was made");
    let plain = "Content-Type: text/plain\r\n";
    let body = good.to_string();
    let simple = bed.net.b.inside(|| send("127.0.0.1:8001", "POST", "/v1/pins", plain, &body));
    assert_eq!(simple.status, 415, "a form of another page's could send it");
    let theirs = "Content-Type: application/json\r\nSec-Fetch-Site: cross-site\r\n";
    let other = bed.net.b.inside(|| send("127.0.0.1:8001", "POST", "/v1/pins", theirs, &body));
    assert_eq!(other.status, 403);

    // The budget that the configuration names, which has room for one small pin.
    let (json, small) = ("Content-Type: Application/JSON; a=b\r\n", wanted(now_ns, -100, -90, ""));
    let small = small.to_string();
    let made = bed.net.b.inside(|| send("127.0.0.1:8001", "POST", "/v1/pins", json, &small));
    assert_eq!(made.status, 201, "{}", made.text());
    let one = pin(&bed, 1, "done");
    assert!(evidence.join("pin-00000001/pin.json").exists());
    assert_eq!(post(&bed, ALICE, &good).status, 201);
    let two = pin(&bed, 2, "full");
    assert!(two["lacks"][0].as_str().expect("a sentence").contains("budget of 70000"), "{two}");
    let told = ask(&bed, CAROL, "GET", "/v1/pins", "").json();
    assert_eq!(told["budget_bytes"], 70_000);
    assert!(told["used_bytes"].as_u64() > one["bytes"].as_u64(), "{told}");
    fs::write(evidence.join("pin-00000001/packets/more"), vec![0; 8000]).expect("room");
    let full = post(&bed, ALICE, &good);
    assert_eq!(full.status, 507, "{}", full.text());
    assert!(full.text().contains("budget") && full.text().contains("pin-bytes"), "{}", full.text());
    drop(gateway);

    // Pins of another user's are not changed.
    std::os::unix::fs::chown(&evidence, Some(65_534), None).expect("root");
    let _gateway = bed.gateway_with(&text, &format!("evidence = {evidence:?}\n"));
    let refused = post(&bed, ALICE, &good);
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(
        refused.text().contains("belongs to the user with the number 65534"),
        "{}",
        refused.text()
    );
}

#[test]
fn a_list_is_bounded_and_neither_many_pins_nor_one_that_cannot_be_read_is_in_the_way() {
    let bed = Bed::new();
    let now_ns = record(&bed);
    let pins = PinStore::make(&PinStore::beside(&bed.store()), None).expect("a directory");
    let first = pins.add(Wish {
        store: bed.store(),
        question: Question::default(),
        after: Time(now_ns - 100 * SECOND),
        before: Time(now_ns - 50 * SECOND),
        until: None,
        reason: "an alert".into(),
        rule: Some("trojans".into()),
        order: None,
    });
    // As many as a store may have of users.
    let mut like = serde_json::to_value(first.expect("room")).expect("JSON");
    for number in 2..=1000 {
        like["number"] = number.into();
        fs::create_dir(pins.place(number)).expect("it is new");
        fs::write(pins.place(number).join("pin.json"), like.to_string()).expect("room");
    }
    fs::write(pins.place(999).join("pin.json"), "{").expect("room");

    let gateway = bed.gateway(&config(&bed, ""));
    let answer = post(&bed, ALICE, &wanted(now_ns, -100, -50, "port 80"));
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(pin(&bed, 1001, "done")["packets"], 25);
    let told = |port, path: &str| {
        let answer = ask(&bed, port, "GET", path, "");
        assert_eq!(answer.status, 200, "{}", answer.text());
        let told = answer.json();
        let pins = told["pins"].as_array().expect("a list").iter();
        let numbers: Vec<u64> = pins.map(|pin| pin["number"].as_u64().expect("one")).collect();
        (numbers, told["next"].clone(), told["unread"].clone())
    };
    let newest: Vec<u64> = (902..=1001).rev().filter(|number| *number != 999).collect();
    assert_eq!(told(CAROL, "/v1/pins"), (newest, 901.into(), json!([999])));
    let older: Vec<u64> = (802..=901).rev().collect();
    assert_eq!(told(CAROL, "/v1/pins?from=901"), (older, 801.into(), json!([])));
    assert_eq!(told(CAROL, "/v1/pins?from=2"), (vec![2, 1], Value::Null, json!([])));
    assert_eq!(told(BOB, "/v1/pins"), (vec![], Value::Null, json!([])), "nothing of others'");
    assert_eq!(ask(&bed, ALICE, "GET", "/v1/pins/999", "").status, 503);
    assert_eq!(ask(&bed, ALICE, "DELETE", "/v1/pins/1001", "").status, 204);
    drop(gateway);

    // Pins that are there and cannot be read are not none.
    fs::write(pins.dir().join("settings.json"), "{").expect("room");
    let _gateway = bed.gateway(&config(&bed, ""));
    for (method, path) in [("GET", "/v1/pins"), ("GET", "/v1/pins/1"), ("DELETE", "/v1/pins/1")] {
        let answer = ask(&bed, ALICE, method, path, "");
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.text().contains("settings.json"), "{}", answer.text());
    }
}

#[test]
fn a_pin_whose_span_is_not_over_goes_on_in_the_next_gateway() {
    let bed = Bed::new();
    let now_ns = record(&bed);
    let mut gateway = bed.gateway(&config(&bed, ""));
    let answer = post(&bed, ALICE, &wanted(now_ns, -100, 3, "port 80"));
    assert_eq!(answer.status, 201, "{}", answer.text());
    let pins = PinStore::open(&PinStore::beside(&bed.store())).expect("pins");
    wait_for("what is there", || pins.pin(1).expect("a pin").packets > 40);
    gateway.program.process.0.kill().expect("it runs");
    drop(gateway);
    assert_eq!(pins.pin(1).expect("a pin").state.word(), "open");
    let more: Vec<Made> = (0..8).map(|i| made(now_ns + i * SECOND, 80)).collect();
    segment(&bed.store(), 2, (now_ns, now_ns + 30 * SECOND), &more);
    let _gateway = bed.gateway(&config(&bed, ""));
    let done = pin(&bed, 1, "done");
    assert_eq!(done["packets"], 53, "50 that were there, and three of what came: {done}");
    assert_eq!(pinned_packets(&pins, 1), 53);
}

fn check(program: &str, file: &Path) -> String {
    let out = Command::new(program).arg("check").arg(file).output().expect("it runs");
    String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
}

#[test]
fn check_says_where_pins_go_and_who_may_make_them() {
    let bed = Bed::new();
    record(&bed);
    let program = env!("CARGO_BIN_EXE_tapdeck-gateway");
    let file = bed.path("gateway.toml");
    let evidence = bed.path("pins");
    let write = |more: &str| {
        let store = bed.store();
        let text = format!(
            "{}\n[[store]]\nname = 'edge'\ndirectory = {store:?}\n{more}",
            config(&bed, "")
        );
        fs::write(&file, text).expect("it can be written");
        check(program, &file)
    };
    let said = write("");
    assert!(said.contains("pins      edge: in "), "{said}");
    assert!(
        said.contains("store.evidence, where the gateway's user has to be let make it"),
        "{said}"
    );
    assert!(said.contains("alice: pinner of all stores"), "{said}");
    fs::create_dir(&evidence).expect("a directory");
    let ours = format!("evidence = {evidence:?}\n");
    assert!(write(&ours).contains(&format!("pins      edge: in {}\n", evidence.display())));
    std::os::unix::fs::chown(&evidence, Some(65_534), None).expect("root");
    let said = write(&ours);
    assert!(said.contains("if the gateway is the user with the number 65534"), "{said}");
    let said = write(&format!("evidence = '{}/none/pins'\n", evidence.display()));
    assert!(said.contains("edge: no pin can be made: cannot write into "), "{said}");
}
