//! `tapdeck query` against `tcpdump -r`, over awkward traffic: the same packets in the same order,
//! for any expression and time, or refused by both.
//!
//! `TAPDECK_EXPRESSIONS` says how many expressions are tried, `TAPDECK_SEED` which. Each round has
//! a seed, which makes a store and the expressions that it is asked; a failure names the round's,
//! so that the round can be run alone. What fails is made as small as it fails, and the first
//! packet that differs is shown.

mod awkward;

use std::env;
use std::fmt::Write;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use awkward::language::Expression;
use awkward::program::reads_unwritten_memory;
use awkward::store::{Packet, SECOND, Store};
use serde_json::Value;
use tapdeck_packet::trace;
use tapdeck_testkit::SplitMix64;

const SEED: u64 = 20_260_102;
const EXPRESSIONS: u64 = 1000;
/// Expressions for which it pays to make a store.
const ROUND: u64 = 100;
/// Whether rounds of even seeds ask a store with an index. Its live segment never has one.
const INDEXED: bool = true;

/// How `tapdeck query` is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Packets,
    Count,
    Json,
}

/// A question.
#[derive(Clone, Debug)]
struct Question {
    expression: Expression,
    form: Form,
    after_ns: Option<i64>,
    before_ns: Option<i64>,
    limit: Option<usize>,
}

impl Question {
    fn random(rng: &mut SplitMix64, packets: &[Packet]) -> Self {
        let expression = Expression::random(rng);
        let form = rng.one(&[Form::Packets, Form::Packets, Form::Packets, Form::Count, Form::Json]);
        let limit = rng.percent(10).then(|| 1 + rng.below(50));
        let mut time = |percent| {
            // At a packet, or just before or after it.
            let near_ns = packets[rng.below(packets.len())].time_ns + rng.below(3) - 1;
            rng.percent(percent).then_some(near_ns)
        };
        let (mut after_ns, mut before_ns) = (time(20), time(20));
        if let (Some(after), Some(before)) = (&mut after_ns, &mut before_ns)
            && after > before
        {
            std::mem::swap(after, before);
        }
        Self { expression, form, after_ns, before_ns, limit }
    }

    fn arguments(&self) -> Vec<String> {
        let mut all: Vec<String> = match self.form {
            Form::Packets => vec!["-w".into(), "-".into()],
            Form::Count => vec!["--count".into()],
            Form::Json => vec!["--json".into()],
        };
        let seconds = |ns: i64| format!("{}.{:09}", ns / SECOND, ns % SECOND);
        for (name, value) in [
            ("--after", self.after_ns.map(seconds)),
            ("--before", self.before_ns.map(seconds)),
            ("--limit", self.limit.map(|n| n.to_string())),
        ] {
            all.extend(value.into_iter().flat_map(|value| [name.into(), value]));
        }
        all.extend(["--".into(), self.expression.to_string()]);
        all
    }

    /// What of tcpdump's answer is asked for.
    fn choose(&self, packets: Vec<Packet>) -> Vec<Packet> {
        let after_ns = self.after_ns.unwrap_or(i64::MIN);
        let before_ns = self.before_ns.unwrap_or(i64::MAX);
        let within = packets.into_iter().filter(|p| (after_ns..before_ns).contains(&p.time_ns));
        within.take(self.limit.unwrap_or(usize::MAX)).collect()
    }

    /// Questions that ask for less in fewer words, the simplest first.
    fn simpler(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for simple in [
            Self { form: Form::Packets, ..self.clone() },
            Self { limit: None, ..self.clone() },
            Self { after_ns: None, ..self.clone() },
            Self { before_ns: None, ..self.clone() },
        ] {
            if simple.arguments() != self.arguments() {
                all.push(simple);
            }
        }
        let smaller = self.expression.smaller().into_iter();
        all.extend(smaller.map(|expression| Self { expression, ..self.clone() }));
        all
    }
}

/// A program that may use so many seconds of CPU time.
fn limited(seconds: u32, program: &str) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--cpu={seconds}")).arg(program).stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("util-linux has prlimit")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).trim().to_owned()
}

fn packets(capture: &[u8]) -> Result<Vec<Packet>, trace::Error> {
    let mut reader = trace::Reader::new(capture)?;
    let mut all = Vec::new();
    while let Some(p) = reader.next_packet()? {
        let time_ns = p.time_ns.expect("both formats have times");
        all.push(Packet { time_ns, original_len: p.original_len, frame: p.frame.to_vec() });
    }
    Ok(all)
}

/// What tcpdump makes of an expression.
enum Reference {
    Chosen(Vec<Packet>),
    Refused,
    /// Nothing that another program could make of it too.
    Nothing,
}

fn by_tcpdump(store: &Store, expression: &Expression) -> Reference {
    let text = expression.to_string();
    let ask = |arguments: &[&str]| {
        let mut command = limited(1, "tcpdump");
        command.arg("-r").arg(store.file()).args(arguments);
        run(command.args(["--", &text]))
    };
    if text.contains("geneve") {
        let program = ask(&["-ddd"]);
        if program.status.success()
            && reads_unwritten_memory(&String::from_utf8_lossy(&program.stdout))
        {
            return Reference::Nothing;
        }
    }
    let out = ask(&["--nano", "-w", "-"]);
    match out.status.code() {
        Some(0) => Reference::Chosen(packets(&out.stdout).expect("a whole file")),
        Some(_) => Reference::Refused,
        None => {
            // libpcap's program for it can go round in circles where there are authentication
            // headers.
            assert!(text.contains("protochain"), "{text} does not end");
            Reference::Nothing
        }
    }
}

/// What both made of a question.
enum Agreed {
    Chosen(usize),
    Refused,
    /// There is no answer, so tapdeck was not asked.
    Nothing,
}

/// Asks both. The error says how they differ.
fn compare(store: &Store, question: &Question) -> Result<Agreed, String> {
    let reference = by_tcpdump(store, &question.expression);
    if matches!(reference, Reference::Nothing) {
        return Ok(Agreed::Nothing);
    }
    let mut command = limited(30, env!("CARGO_BIN_EXE_tapdeck"));
    command.args(["query", "--dir"]).arg(store.path()).args(question.arguments());
    let out = run(&mut command);
    let code = out.status.code();
    let Reference::Chosen(expected) = reference else {
        return match code {
            Some(2) if out.stdout.is_empty() => Ok(Agreed::Refused),
            _ => Err(format!("tcpdump refuses it, tapdeck exits with {code:?}: {}", said(&out))),
        };
    };
    let expected = question.choose(expected);
    if code != Some(0) {
        return Err(format!("tcpdump takes it, tapdeck exits with {code:?}: {}", said(&out)));
    }
    match question.form {
        Form::Packets => {
            let found = packets(&out.stdout).map_err(|e| format!("tapdeck's file: {e}"))?;
            first_difference(&found, &expected, |a, b| a == b, show)?;
        }
        Form::Count => {
            let (found, n) = (String::from_utf8_lossy(&out.stdout), expected.len());
            if found != format!("{n}\n") {
                return Err(format!("tcpdump counts {n}, tapdeck {found}"));
            }
        }
        Form::Json => {
            let found = objects(&out.stdout)?;
            let same = |a: &(i64, u32), b: &Packet| *a == (b.time_ns, b.original_len);
            let show = |(time_ns, len): &(i64, u32)| format!("from {time_ns} ns, {len} bytes");
            first_difference(&found, &expected, same, show)?;
        }
    }
    Ok(Agreed::Chosen(expected.len()))
}

/// Time and length of each.
fn objects(lines: &[u8]) -> Result<Vec<(i64, u32)>, String> {
    let object = |line: &str| {
        let object: Value = serde_json::from_str(line).ok()?;
        let time: jiff::Timestamp = object["time"].as_str()?.parse().ok()?;
        Some((time.as_nanosecond() as i64, u32::try_from(object["length"].as_u64()?).ok()?))
    };
    let lines = String::from_utf8_lossy(lines);
    lines.lines().map(|l| object(l).ok_or_else(|| format!("not a packet: {l}"))).collect()
}

fn first_difference<T>(
    found: &[T],
    expected: &[Packet],
    same: impl Fn(&T, &Packet) -> bool,
    show_found: impl Fn(&T) -> String,
) -> Result<(), String> {
    let alike = found.iter().zip(expected).take_while(|(a, b)| same(a, b)).count();
    if alike == found.len() && alike == expected.len() {
        return Ok(());
    }
    let (theirs, ours) = (expected.get(alike).map(show), found.get(alike).map(show_found));
    let none = || "no more".to_owned();
    Err(format!(
        "tcpdump chooses {} packets, tapdeck {}; from packet {alike} on they differ.\ntcpdump has {}\ntapdeck has {}",
        expected.len(),
        found.len(),
        theirs.unwrap_or_else(none),
        ours.unwrap_or_else(none)
    ))
}

fn show(Packet { time_ns, original_len, frame }: &Packet) -> String {
    let mut hex = String::new();
    for byte in frame {
        _ = write!(hex, "{byte:02x}");
    }
    format!("from {time_ns} ns, {} bytes of {original_len}: {hex}", frame.len())
}

/// The smallest question that still fails, and how.
fn shrink(store: &Store, mut question: Question, mut failure: String) -> String {
    let asked = question.arguments();
    loop {
        let simpler = question.simpler().into_iter();
        let failing = simpler.filter_map(|q| compare(store, &q).err().map(|failure| (q, failure)));
        match { failing }.next() {
            Some(smaller) => (question, failure) = smaller,
            None => return format!("{:?}\nfrom {asked:?}\n{failure}", question.arguments()),
        }
    }
}

/// How questions went.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Chose packets, but not all.
    some: u64,
    all: u64,
    none: u64,
    refused: u64,
    unasked: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.some += other.some;
        self.all += other.all;
        self.none += other.none;
        self.refused += other.refused;
        self.unasked += other.unasked;
    }
}

fn round(seed: u64, questions: u64, indexed: bool) -> Result<Tally, String> {
    let mut rng = SplitMix64(seed);
    let store = Store::new(&mut rng, indexed);
    let mut tally = Tally::default();
    for _ in 0..questions {
        let question = Question::random(&mut rng, &store.packets);
        let counter = match compare(&store, &question) {
            Ok(Agreed::Refused) => &mut tally.refused,
            Ok(Agreed::Nothing) => &mut tally.unasked,
            Ok(Agreed::Chosen(0)) => &mut tally.none,
            Ok(Agreed::Chosen(n)) if n == store.packets.len() => &mut tally.all,
            Ok(Agreed::Chosen(_)) => &mut tally.some,
            Err(failure) => {
                let kind = if indexed { "an indexed store" } else { "a store without an index" };
                let failure = shrink(&store, question, failure);
                return Err(format!("TAPDECK_SEED={seed}, {kind}: {failure}"));
            }
        };
        *counter += 1;
    }
    Ok(tally)
}

fn number(variable: &str, usual: u64) -> u64 {
    let Ok(text) = env::var(variable) else { return usual };
    text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number"))
}

#[test]
fn answers_to_random_expressions_are_those_of_tcpdump() {
    let expressions = number("TAPDECK_EXPRESSIONS", EXPRESSIONS);
    let seed = number("TAPDECK_SEED", SEED);
    println!("TAPDECK_SEED={seed} TAPDECK_EXPRESSIONS={expressions}");
    let rounds = expressions.div_ceil(ROUND);
    let (next, failed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let tally = Mutex::new(Tally::default());
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= rounds {
                return;
            }
            let questions = ROUND.min(expressions - i * ROUND);
            let seed = seed.wrapping_add(i);
            match round(seed, questions, INDEXED && seed.is_multiple_of(2)) {
                Ok(more) => tally.lock().expect("no panic").add(more),
                Err(failure) => {
                    failed.lock().expect("no panic").push(failure);
                    next.store(rounds, Ordering::Relaxed);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().expect("no panic");
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    let tally = tally.into_inner().expect("no panic");
    println!("{tally:?}");
    // Few questions may be all alike.
    assert!(expressions < ROUND || tally.some * 10 > expressions * 4, "too few choose: {tally:?}");
}
