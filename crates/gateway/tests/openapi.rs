//! `openapi.json` is what the code generates, and true: each path is there and takes just the
//! parameters that it names, and answers are as it says.

#![allow(clippy::unnecessary_debug_formatting, reason = "TOML and shells want paths quoted")]

mod testbed;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testbed::{Bed, get, run};

const ADDRESS: &str = "127.0.0.1:8001";

fn generated() -> String {
    run(Command::new(env!("CARGO_BIN_EXE_tapdeck-gateway")).arg("openapi"))
}

#[test]
fn the_document_in_docs_is_what_the_code_generates() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let generated = generated();
    if std::env::var_os("TAPDECK_WRITE_DOCS").is_some() {
        fs::write(&file, &generated).expect("it can be written");
    }
    let committed = fs::read_to_string(&file).expect("it is there");
    assert!(
        committed == generated,
        "TAPDECK_WRITE_DOCS=1 cargo test -p tapdeck-gateway --test openapi"
    );
    // The table for people has the same paths.
    let table = fs::read_to_string(file.with_file_name("GATEWAY.md")).expect("it is there");
    let document: Value = serde_json::from_str(&generated).expect("JSON");
    for path in document["paths"].as_object().expect("paths").keys() {
        assert!(table.contains(&format!(" {path}")), "docs/GATEWAY.md does not name {path}");
    }
}

/// Returns what checks answers against a schema of the document.
fn validator(document: &Value, name: &str) -> jsonschema::Validator {
    assert!(document["components"]["schemas"][name].is_object(), "{name}");
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": format!("#/components/schemas/{name}"),
        "components": document["components"],
    });
    jsonschema::validator_for(&schema).expect("it is a schema")
}

fn assert_valid(document: &Value, name: &str, answer: &Value) {
    let errors: Vec<String> =
        validator(document, name).iter_errors(answer).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{name}: {errors:?}: {answer}");
    // Each key is one that the schema knows.
    let known = document["components"]["schemas"][name].to_string();
    for key in answer.as_object().expect("an object").keys() {
        assert!(known.contains(&format!("\"{key}\"")), "{name} has no {key}");
    }
}

#[test]
fn answers_are_as_the_document_says() {
    let mut bed = Bed::new();
    let _recorder = bed.record("");
    bed.send(50, 100);
    let log = bed.path("audit.jsonl");
    let _gateway = bed.gateway(&format!(
        "audit = {log:?}\n[[role]]\nname = 'all'\nkind = 'operator'\n\
         [[user]]\nname = 'local'\nrole = 'all'\n[[listen]]\naddress = '{ADDRESS}'\nuser = 'local'\n"
    ));
    let ask = |path: &str| bed.net.b.inside(|| get(ADDRESS, path, ""));
    let served = ask("/openapi.json");
    assert_eq!((served.status, served.text()), (200, &*generated()));
    let document = served.json();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));

    for (path, name) in [
        ("/v1/stat", "Stat"),
        ("/v1/stat?before=1000000000", "Stat"),
        ("/v1/histogram?step=1s", "Histogram"),
        ("/v1/hosts", "Hosts"),
        ("/v1/losses", "Losses"),
        ("/v1/stores", "Stores"),
        ("/v1/pins", "Pins"),
        ("/v1/filter?filter=port+53", "Meaning"),
        ("/v1/filter?filter=prot+53", "Meaning"),
        ("/healthz", "Health"),
    ] {
        let answer = ask(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert_valid(&document, name, &answer.json());
    }
    // A schema that takes everything would be none.
    assert!(!validator(&document, "Stat").is_valid(&json!({"packets": "many"})));
    let mut events = bed.net.b.inside(|| TcpStream::connect(ADDRESS).expect("it listens"));
    events.write_all(b"GET /v1/watch HTTP/1.0\r\n\r\n").expect("it reads");
    let mut lines = BufReader::new(events).lines().map_while(Result::ok);
    let event = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    let event: Value = serde_json::from_str(&event.expect("an event")).expect("JSON");
    let errors: Vec<String> =
        validator(&document, "Event").iter_errors(&event).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}: {event}");

    // Each path takes the parameters that it names, and no others.
    let paths = document["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), 16, "{:?}", paths.keys());
    for (path, methods) in paths {
        let Some(method) = methods.get("get") else {
            assert!(methods.get("post").is_some(), "{path}");
            continue;
        };
        let named: Vec<&str> = method["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|parameter| parameter["in"] == "query")
            .map(|parameter| parameter["name"].as_str().expect("a name"))
            .collect();
        let answer = ask(&format!("{}?colour=red", path.replace("{number}", "1")));
        if named.is_empty() {
            let status = if path.starts_with("/v1/") { 400 } else { 200 };
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
        } else {
            let there = format!("there are {}\n", named.join(", "));
            assert!(answer.text().ends_with(&there), "{path}: {}", answer.text());
        }
    }
}
