use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Event, MAX_CLIENTS, MAX_LINE, Server};
use crate::control::{Access, Answer, Command, RulesCommand, Socket};

/// A server on a thread that answers stats with what it has seen, and never answers `stop`.
struct Running {
    dir: tempfile::TempDir,
    ends: Arc<AtomicBool>,
    /// Clients that were told to be gone.
    gone: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = Socket::bind(&dir.path().join("s"), &Access::default()).unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let gone = Arc::new(AtomicUsize::new(0));
        let thread = std::thread::spawn({
            let (ends, gone) = (ends.clone(), gone.clone());
            move || serve(Server::new(socket).unwrap(), &ends, &gone)
        });
        Self { dir, ends, gone, thread: Some(thread) }
    }

    fn connect(&self) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(self.dir.path().join("s")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        BufReader::new(stream)
    }

    fn end(mut self) {
        self.ends.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }

    fn wait_gone(&self, clients: usize) {
        let begin = Instant::now();
        while self.gone.load(Relaxed) < clients {
            assert!(begin.elapsed() < Duration::from_secs(60), "nobody told that it is gone");
            std::thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
    }
}

fn serve(mut server: Server, ends: &AtomicBool, gone: &AtomicUsize) {
    while !ends.load(Relaxed) {
        for event in server.turn(Instant::now() + Duration::from_millis(5), None) {
            match event {
                Event::Asked(id, Command::Stats {}) => {
                    server.answer(id, Answer::ok(json!({"n": 1})));
                }
                Event::Asked(id, Command::Watch {}) => {
                    server.answer(id, Answer::done());
                    server.make_watcher(id);
                }
                Event::Asked(id, Command::Attach { .. }) => {
                    server.make_member(id);
                    server.answer(id, Answer::done());
                }
                Event::Asked(id, Command::Rules(RulesCommand::Replace { rules, .. })) => {
                    server.answer(id, Answer::ok(json!({"bytes": rules.len()})));
                }
                Event::Asked(id, Command::Rules(RulesCommand::List { .. })) => {
                    let long = "x".repeat(8 << 20);
                    server.answer(id, Answer::ok(json!({ "long": long })));
                }
                Event::Asked(_, _) => {}
                Event::Gone(_) => {
                    gone.fetch_add(1, Relaxed);
                }
            }
        }
        if server.has_watchers() {
            server.tell_watchers(&Answer::done());
        }
    }
}

fn ask(client: &mut BufReader<UnixStream>, line: &[u8]) -> Value {
    client.get_mut().write_all(line).unwrap();
    client.get_mut().write_all(b"\n").unwrap();
    answer(client)
}

fn answer(client: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
}

#[test]
fn a_million_empty_lines_hold_up_nobody() {
    let running = Running::start();
    let mut client = running.connect();
    for empty in [&b"\n"[..], b" \r\n"] {
        let mut lines = empty.repeat(MAX_LINE / empty.len());
        lines.extend(b"{\"verb\":\"stats\"}");
        assert_eq!(ask(&mut client, &lines)["n"], 1);
    }
    running.end();
}

#[test]
fn long_answers_come_one_after_another_and_those_who_do_not_read_give_way() {
    let running = Running::start();
    let mut clients: Vec<_> = (0..3).map(|_| running.connect()).collect();
    for client in &mut clients {
        client.get_mut().write_all(b"{\"verb\":\"rules\",\"do\":\"list\"}\n").unwrap();
    }
    assert_eq!(ask(&mut running.connect(), br#"{"verb":"stats"}"#)["n"], 1);
    // There is room for two: the last has its answer though nobody before it reads.
    assert_eq!(answer(clients.last_mut().unwrap())["ok"], true);
    running.end();
}

fn refused(answer: &Value, part: &str) {
    assert_eq!(answer["ok"], false, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains(part), "{answer}");
}

#[test]
fn answers_come_in_order_and_wrong_lines_are_answered() {
    let running = Running::start();
    let mut client = running.connect();
    let stats = br#"{"verb":"stats"}"#;
    for wrong in [&b"{"[..], b"stats", b"\xff\xfe", b"\0", b"[[[[", br#"{"verb":"dance"}"#, b"null"]
    {
        assert_eq!(ask(&mut client, wrong)["ok"], false);
        assert_eq!(ask(&mut client, stats)["n"], 1);
    }
    // Many at once, with empty lines between and none at the end.
    client
        .get_mut()
        .write_all(b"\n \n{\"verb\":\"stats\"}\r\n{\"verb\":1}\n\n{\"verb\":\"stats\"}")
        .unwrap();
    client.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(answer(&mut client)["n"], 1);
    assert_eq!(answer(&mut client)["ok"], false);
    assert_eq!(answer(&mut client)["n"], 1);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "it is closed after the last answer");
    running.end();
}

#[test]
fn a_request_may_come_in_pieces() {
    let running = Running::start();
    let mut client = running.connect();
    for byte in br#"{"verb":"stats"}"# {
        client.get_mut().write_all(&[*byte]).unwrap();
    }
    assert_eq!(ask(&mut client, b"")["n"], 1);
    running.end();
}

#[test]
fn long_lines_are_refused_but_rules_may_be_long() {
    let running = Running::start();
    let mut client = running.connect();
    let long = format!(r#"{{"verb":"filter","filter":"{}"}}"#, "x".repeat(2 * MAX_LINE));
    refused(&ask(&mut client, long.as_bytes()), "longer than 1 MiB");
    assert_eq!(ask(&mut client, br#"{"verb":"stats"}"#)["n"], 1, "the line is skipped to its end");
    let text = "x".repeat(3 * MAX_LINE);
    let rules = format!(r#"{{"verb": "rules", "do": "replace", "rules": "{text}"}}"#);
    assert_eq!(ask(&mut client, rules.as_bytes())["bytes"], text.len());

    // Another one may only when the first is done.
    let (head, tail) = rules.as_bytes().split_at(2 * MAX_LINE);
    client.get_mut().write_all(head).unwrap();
    let mut other = running.connect();
    assert_eq!(ask(&mut other, br#"{"verb":"stats"}"#)["n"], 1);
    refused(&ask(&mut other, rules.as_bytes()), "another client");
    assert_eq!(ask(&mut client, tail)["bytes"], text.len());
    assert_eq!(ask(&mut other, rules.as_bytes())["bytes"], text.len());
    running.end();
}

#[test]
fn a_client_that_does_not_read_or_answer_harms_nobody() {
    let running = Running::start();
    let mut deaf = running.connect();
    for _ in 0..100 {
        deaf.get_mut().write_all(b"{\"verb\":\"rules\",\"do\":\"list\"}\n").unwrap();
    }
    let mut half = running.connect();
    half.get_mut().write_all(br#"{"verb":"#).unwrap();
    let mut waits = running.connect();
    waits.get_mut().write_all(b"{\"verb\":\"stop\"}\n{\"verb\":\"stats\"}\n").unwrap();
    let mut blind = running.connect();
    assert_eq!(ask(&mut blind, br#"{"verb":"watch"}"#)["ok"], true);
    let mut good = running.connect();
    for _ in 0..1000 {
        assert_eq!(ask(&mut good, br#"{"verb":"stats"}"#)["n"], 1);
    }
    running.end();
}

#[test]
fn a_watcher_is_told_until_it_leaves() {
    let running = Running::start();
    let mut client = running.connect();
    assert_eq!(ask(&mut client, br#"{"verb":"watch"}"#)["ok"], true);
    for _ in 0..3 {
        assert_eq!(answer(&mut client)["ok"], true);
    }
    drop(client);
    let mut other = running.connect();
    assert_eq!(ask(&mut other, br#"{"verb":"stats"}"#)["n"], 1);
    running.end();
}

#[test]
fn too_many_clients_cost_the_one_that_is_silent_for_longest() {
    let running = Running::start();
    let mut first = running.connect();
    assert_eq!(ask(&mut first, br#"{"verb":"stats"}"#)["n"], 1);
    let mut member = running.connect();
    assert_eq!(ask(&mut member, br#"{"verb":"attach","group":"g"}"#)["ok"], true);
    let mut others: Vec<_> = (0..MAX_CLIENTS).map(|_| running.connect()).collect();
    for other in &mut others {
        assert_eq!(ask(other, br#"{"verb":"stats"}"#)["n"], 1);
    }
    let mut line = String::new();
    assert_eq!(first.read_line(&mut line).unwrap(), 0, "its place was taken");
    assert_eq!(ask(&mut member, br#"{"verb":"stats"}"#)["n"], 1, "a member keeps its own");
    running.wait_gone(1);
    running.end();
}

#[test]
fn the_end_of_a_member_is_told_while_it_does_not_read() {
    let running = Running::start();
    let mut member = running.connect();
    assert_eq!(ask(&mut member, br#"{"verb":"attach","group":"g"}"#)["ok"], true);
    member
        .get_mut()
        .write_all(b"{\"verb\":\"rules\",\"do\":\"list\"}\n{\"verb\":\"stats\"}\n")
        .unwrap();
    drop(member);
    running.wait_gone(1);
    running.end();
}
