//! What the console asks for: rows of packets, what a filter means, and the page itself. That the
//! page works is tested in a browser (`tests/console/`).
#![allow(clippy::unnecessary_debug_formatting, reason = "TOML wants paths quoted")]

mod testbed;

use std::fs;
use std::process::Command;

use serde_json::Value;
use tapdeck_testkit::process::number;
use tapdeck_testkit::wait_for;
use testbed::{Answer, Bed, run, tapdeck};

const ROWS: &str = "Accept: application/json\r\n";

fn times(answer: &Answer) -> Vec<String> {
    let told = answer.json();
    let packets = told["packets"].as_array().expect("a list").iter();
    packets.map(|packet| packet["time"].as_str().expect("a time").to_owned()).collect()
}

#[test]
fn rows_are_the_packets_of_query_within_the_ceilings_of_the_role() {
    let mut bed = Bed::new();
    let recorder = bed.record("");
    bed.send(50, 100);
    let sent = bed.send(30, 400);
    let stats = || {
        let mut ctl = Command::new(tapdeck());
        let text = run(ctl.args(["ctl", "stats", "--json", "--dir"]).arg(bed.store()));
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    wait_for("the packets", || number(&stats(), "captured") == sent);
    let log = bed.path("audit.jsonl");
    let gateway = bed.gateway(&format!(
        "audit = {log:?}\n\
         [[role]]\nname = 'all'\nkind = 'reader'\n\
         [[role]]\nname = 'small'\nkind = 'reader'\nfilter = 'less 200'\nbytes = 4000\n\
         [[user]]\nname = 'alice'\nrole = 'all'\n[[user]]\nname = 'bob'\nrole = 'small'\n\
         [[listen]]\naddress = '127.0.0.1:8001'\nuser = 'alice'\n\
         [[listen]]\naddress = '127.0.0.1:8002'\nuser = 'bob'\n"
    ));
    let ask = |port: u16, path: &str, head: &str| {
        bed.net.b.inside(|| testbed::get(&format!("127.0.0.1:{port}"), path, head))
    };

    // The same packets, with the same keys.
    let mut query = Command::new(tapdeck());
    let lines = run(query.args(["query", "--json", "--dir"]).arg(bed.store()));
    let lines: Vec<Value> =
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let all = ask(8001, "/v1/packets", ROWS);
    let told = all.json();
    let rows = told["packets"].as_array().expect("a list");
    assert_eq!((rows.len(), lines.len()), (80, 80));
    for (row, line) in rows.iter().zip(&lines) {
        for key in ["interface", "src", "dst", "sport", "dport", "protocol", "length"] {
            assert_eq!(row[key], line[key], "{key}");
        }
    }
    assert_eq!((&told["end"]["result"], &told["end"]["packets"]), (&"complete".into(), &80.into()));
    assert!(rows[0].get("layers").is_none(), "{}", rows[0]);

    // A page ends where the next begins, also within one nanosecond.
    let all = times(&all);
    let first = times(&ask(8001, "/v1/packets?limit=30", ROWS));
    let last = first.last().expect("a packet");
    let skip = first.iter().filter(|time| *time == last).count();
    let path = format!("/v1/packets?after={last}&skip={skip}");
    let rest = times(&ask(8001, &path, ROWS));
    assert_eq!([first, rest].concat(), all);

    // One packet, with its headers and bytes.
    let whole = ask(8001, "/v1/packets?skip=60&limit=1&whole=true", ROWS).json();
    let packet = &whole["packets"][0];
    assert_eq!(packet["time"], *all[60]);
    assert_eq!(packet["frame"].as_str().map(str::len), Some(800));
    assert_eq!(packet["layers"][2]["name"], "UDP", "{packet}");

    // Bytes of an answer are those of rows, and the role's filter holds.
    let small = ask(8002, "/v1/packets", ROWS);
    let told = small.json();
    let rows = told["packets"].as_array().expect("a list");
    assert!(!rows.is_empty() && rows.len() < 50, "{}", rows.len());
    assert!(small.body.len() < 4400 && rows.iter().all(|row| row["length"] == 100), "{told}");
    assert_eq!(told["end"]["result"], "limited");

    // What is not asked about packets.
    let stores = ask(8002, "/v1/stores", "").json();
    assert_eq!((&stores["user"], &stores["filter"]), (&"bob".into(), &"less 200".into()));
    assert_eq!(stores["stores"][0]["name"], "edge");
    let means = ask(8001, "/v1/filter?filter=host+10.0.0.1+and+not+arp", "").json();
    assert_eq!(means["compiles"], true, "{means}");
    let slow = "ip".to_owned() + &"+and+(ip+or+not+ip)".repeat(800);
    let bad = ask(8001, &format!("/v1/filter?filter={slow})"), "").json();
    assert_eq!(bad["compiles"], false, "{bad}");
    let histogram = ask(8001, "/v1/histogram?parts=7", "").json();
    let parts = histogram["packets"].as_array().expect("a list");
    assert_eq!(parts.iter().filter_map(Value::as_u64).sum::<u64>(), 80, "{histogram}");
    assert!((1..=7).contains(&parts.len()), "{histogram}");
    for path in [
        "/v1/histogram?parts=0",
        "/v1/histogram?parts=7&step=1s",
        "/v1/packets?whole=1",
        "/v1/stores?x=1",
    ] {
        assert_eq!(ask(8001, path, ROWS).status, 400, "{path}");
    }

    // A page of somebody else's asks for nothing, whoever has that browser.
    let asked = || fs::read_to_string(&log).expect("it is there").matches("\"asked\"").count();
    let before = asked();
    for site in ["cross-site", "same-site", "nonsense"] {
        let head = format!("Sec-Fetch-Site: {site}\r\n");
        for path in ["/v1/packets", "/metrics", "/healthz"] {
            assert_eq!(ask(8001, path, &head).status, 403, "{path}: {site}");
        }
    }
    assert_eq!(asked(), before);
    for site in ["same-origin", "none"] {
        let head = format!("Sec-Fetch-Site: {site}\r\n");
        assert_eq!(ask(8001, "/v1/stat", &head).status, 200, "{site}");
    }

    // Whoever may connect gets the page, and is told what it may do.
    let page = gateway.get("/console/");
    assert_eq!(page.status, 200);
    assert!(page.text().starts_with("<!doctype html>"));
    for said in ["script-src 'self';", "default-src 'none';", "frame-ancestors 'none'"] {
        assert!(page.head.contains(said), "{}", page.head);
    }
    let there = gateway.get("/");
    assert!(there.status == 303 && there.head.contains("location: /console/"), "{}", there.head);
    assert!(all.len() == 80 && page.head.contains("x-content-type-options: nosniff"));
    assert_eq!(gateway.get("/console/../v1/stat").status, 404);
    drop(recorder);
}
