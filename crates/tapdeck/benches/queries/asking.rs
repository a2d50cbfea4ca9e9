//! How soon stores of several sizes answer, with nothing of them in the page cache, and what is
//! read from disk for it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::process::Answer;
use super::recorder::{Method, Recorded};
use super::stenographer::{self, Stenographer, Stenotype};
use super::tape::{MARKED, Middle, STENOTYPE_PPS, TAPDECK_PPS, Tape, reels};
use super::{settle, show, words};
use crate::common::{Options, Spread, cell, range, row, table};
use tapdeck_testkit::Net;

/// Nobody has this address.
const NOBODY: &str = "host 192.0.2.200";

pub fn run(options: &Options) {
    let default = if options.tiny { "0.01" } else { "1,4,16" };
    let mut sizes = options.numbers("--gigabytes", default);
    sizes.sort_by(f64::total_cmp);
    let mut taken = Vec::new();
    for (i, gigabytes) in sizes.iter().enumerate() {
        match one_size(options, *gigabytes, i == 0) {
            Ok(one) => taken.push((*gigabytes, one)),
            Err(why) => {
                assert!(!options.tiny, "{why}");
                println!("\nA store of {gigabytes} GB: {why}");
            }
        }
    }
    if sizes.len() > 1 {
        print_growth(&taken);
    }
}

/// Records a store, asks everybody everything, and removes it.
fn one_size(options: &Options, gigabytes: f64, smallest: bool) -> Result<Vec<Taken>, String> {
    let tape = Tape::record(Method::INDEXED, gigabytes, TAPDECK_PPS)?;
    println!("\n### A store of {gigabytes} GB, nothing of it in the page cache\n");
    if !options.tiny {
        print_commands(gigabytes);
    }
    tape.describe();
    let questions = questions(&tape)?;
    let net = Net::new();
    // Without the peer, as where it is not installed, the rest is as true.
    let peer = (!options.tiny).then(|| Tape::record(Method::Stenotype, gigabytes, STENOTYPE_PPS));
    let peer = peer.and_then(|peer| told("stenotype", peer));
    let server = peer.as_ref().and_then(|peer| {
        peer.describe();
        told("stenographer", Stenographer::start(&net, &peer.store(), Stenotype::Ended))
    });
    println!();
    table(&[
        "question",
        "asked",
        "first packet, ms",
        "min-max",
        "all, ms",
        "min-max",
        "tcpdump takes, times as long",
        "packets",
        "read, MiB",
        "CPU, ms",
    ]);
    let mut taken = Vec::new();
    for question in &questions {
        let mut askers = vec![Asker::Tapdeck];
        if !options.tiny {
            askers.push(Asker::Tcpdump);
        }
        askers.extend(server.as_ref().map(Asker::Stenographer));
        if smallest && question.wireshark.is_some() && !options.tiny {
            askers.push(Asker::Tshark);
        }
        let answered = ask_in_turns(options, &tape.store(), question, &askers);
        if options.tiny {
            question.assert_answered(&answered, &tape.recorded);
        }
        taken.extend(print_answers(question, &askers, &answered));
    }
    Ok(taken)
}

/// What there is, or nothing, and why.
fn told<T>(who: &str, what: Result<T, String>) -> Option<T> {
    what.inspect_err(|why| println!("- {who} did not run: {why}")).ok()
}

/// The forms in which a question is put.
struct Question {
    what: &'static str,
    tapdeck: String,
    /// An expression for `tcpdump -r`, with its own flags.
    tcpdump: Option<String>,
    stenographer: Option<String>,
    wireshark: Option<String>,
    form: Form,
}

/// How an answer looks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A packet a line.
    Lines,
    /// The number of packets.
    Count,
    /// A capture file.
    File,
}

fn questions(tape: &Tape) -> Result<Vec<Question>, String> {
    let middle = Middle::of(&tape.store())?;
    let Middle { src, dst, sport, dport, time_s } = &middle;
    let same = |what, filter: &str| Question {
        what,
        tapdeck: filter.to_owned(),
        tcpdump: Some(filter.to_owned()),
        stenographer: Some(filter.to_owned()),
        wireshark: None,
        form: Form::Lines,
    };
    Ok(vec![
        Question {
            // In its language, a port is of no protocol.
            stenographer: Some(format!(
                "host {src} and host {dst} and port {sport} and port {dport} and udp"
            )),
            wireshark: Some(format!(
                "ip.addr=={src}&&ip.addr=={dst}&&udp.port=={sport}&&udp.port=={dport}"
            )),
            ..same("a 5-tuple", &middle.filter())
        },
        same("a host", &format!("host {dst}")),
        same("a pair of hosts seen all along", MARKED),
        same("a host that never was", NOBODY),
        Question {
            // Neither of the others finds a second: stenographer goes by files, each a minute long.
            tapdeck: format!("--after {time_s} --before {} -w -", time_s + 1),
            tcpdump: None,
            stenographer: None,
            form: Form::File,
            ..same("a second", "")
        },
        Question {
            tapdeck: "--count".into(),
            tcpdump: Some("--count".into()),
            stenographer: None,
            form: Form::Count,
            ..same("how many there are", "")
        },
    ])
}

/// Who is asked.
enum Asker<'a> {
    Tapdeck,
    Tcpdump,
    Tshark,
    Stenographer(&'a Stenographer<'a>),
}

impl Asker<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Tapdeck => "tapdeck query",
            Self::Tcpdump => "tcpdump -r",
            Self::Tshark => "tshark -r",
            Self::Stenographer(_) => "stenographer",
        }
    }

    /// Has the programs in memory: how soon they are there is not the question.
    fn load(&self) {
        let programs: &[&str] = match self {
            Self::Tapdeck => &[env!("CARGO_BIN_EXE_tapdeck")],
            Self::Tcpdump => &["sh", "tcpdump"],
            Self::Tshark => &["sh", "tshark"],
            Self::Stenographer(_) => &["ip", "curl"],
        };
        for program in programs {
            let mut command = Command::new(program);
            command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            let _ = command.stdin(Stdio::null()).status();
        }
        // The whole of it, not only what it takes to tell its version; others have no debugging
        // information.
        let _ = fs::read(env!("CARGO_BIN_EXE_tapdeck"));
    }

    /// Asks, unless the question cannot be put this way.
    fn ask(&self, store: &Path, question: &Question) -> Option<Result<Answer, String>> {
        // One file after the other, in their order.
        let scan = |command: String| {
            let script =
                format!("for f in {}/*.pcapng; do {command} || exit 1; done", store.display());
            Answer::of(Command::new("sh").args(["-c", &script]), 0)
        };
        match self {
            Self::Tapdeck => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_tapdeck"));
                command.arg("query").arg("--dir").arg(store).args(words(&question.tapdeck));
                Some(Answer::of(&mut command, 0))
            }
            Self::Tcpdump => {
                let filter = question.tcpdump.as_ref()?;
                Some(scan(format!("tcpdump -nnl -r $f {filter}")))
            }
            Self::Tshark => {
                let filter = question.wireshark.as_ref()?;
                Some(scan(format!("tshark -nl -r $f -Y '{filter}'")))
            }
            Self::Stenographer(server) => Some(server.ask(question.stenographer.as_ref()?)),
        }
    }

    /// Packets in an answer, where that can be told from what was kept of it.
    fn packets(&self, question: &Question, answer: &Answer) -> Option<u64> {
        let text = String::from_utf8_lossy(&answer.kept);
        match (self, question.form) {
            (Self::Stenographer(_), _) => Some(stenographer::packets(&answer.kept)),
            (_, Form::Lines) => Some(text.lines().count() as u64),
            (_, Form::File) => None,
            // Of each file, among other words.
            (_, Form::Count) => {
                Some(text.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).sum())
            }
        }
    }
}

type Answers = Result<Vec<Answer>, String>;

fn ask_in_turns(
    options: &Options,
    store: &Path,
    question: &Question,
    askers: &[Asker<'_>],
) -> Vec<Option<Answers>> {
    let mut answers: Vec<Option<Answers>> = askers.iter().map(|_| Some(Ok(Vec::new()))).collect();
    for run in 0..options.runs {
        for (asker, answers) in askers.iter().zip(&mut answers) {
            // It takes a thousand times as long as the others; once is enough to see.
            let again = run > 0 && matches!(asker, Asker::Tshark);
            let Some(Ok(so_far)) = answers else { continue };
            if again {
                continue;
            }
            if !options.tiny {
                forget_pages();
                asker.load();
            }
            match asker.ask(store, question) {
                Some(Ok(answer)) => so_far.push(answer),
                Some(Err(why)) => *answers = Some(Err(why)),
                None => *answers = None,
            }
        }
    }
    answers
}

/// Nothing of any file is in memory, but for what the machine beneath may keep.
fn forget_pages() {
    settle();
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root may");
}

impl Question {
    /// As it should be: someone who never was is not found, and the rest is.
    fn assert_answered(&self, answers: &[Option<Answers>], recorded: &Recorded) {
        let Some(Some(Ok(answers))) = answers.first() else {
            panic!("{}: {}", self.what, why_not(answers.first()));
        };
        for answer in answers {
            let packets = Asker::Tapdeck.packets(self, answer);
            match self.form {
                Form::Count => assert_eq!(packets, Some(recorded.packets), "{}", self.what),
                Form::File => assert!(answer.bytes > 0, "{}", self.what),
                Form::Lines => {
                    assert_eq!(packets > Some(0), self.tapdeck != NOBODY, "{}", self.what);
                }
            }
        }
    }
}

fn why_not(answers: Option<&Option<Answers>>) -> &str {
    match answers {
        Some(Some(Err(why))) => why,
        _ => "not asked",
    }
}

/// What somebody took for a question, in the median.
struct Taken {
    question: &'static str,
    asker: &'static str,
    all_ms: f64,
    read_mib: f64,
}

fn print_answers(
    question: &Question,
    askers: &[Asker<'_>],
    answers: &[Option<Answers>],
) -> Vec<Taken> {
    let all_ms = |answers: &[Answer]| Spread::of(answers.iter().map(|a| a.all_s * 1e3));
    let scan_ms = askers.iter().zip(answers).find_map(|(asker, answers)| match answers {
        Some(Ok(answers)) if matches!(asker, Asker::Tcpdump) => Some(all_ms(answers).median),
        _ => None,
    });
    let mut taken = Vec::new();
    for (asker, answers) in askers.iter().zip(answers) {
        let answers = match answers {
            Some(Ok(answers)) => answers,
            Some(Err(why)) => {
                println!(
                    "| {} | {} | failed: {why} |{}",
                    question.what,
                    asker.name(),
                    " |".repeat(7)
                );
                continue;
            }
            None => continue,
        };
        let of = |f: &dyn Fn(&Answer) -> f64| Spread::of(answers.iter().map(f));
        let first = of(&|a| a.first_s * 1e3);
        let all = all_ms(answers);
        let packets = of(&|a| asker.packets(question, a).map_or(f64::NAN, |n| n as f64));
        let read_mib = of(&|a| a.used.read_mib).median;
        row(&[
            question.what.into(),
            asker.name().into(),
            cell(first.median, 1),
            range(first, 1.0, 1),
            cell(all.median, 1),
            range(all, 1.0, 1),
            cell(scan_ms.map_or(f64::NAN, |scan| scan / all.median), 1),
            cell(packets.median, 0),
            cell(read_mib, 2),
            cell(of(&|a| a.used.cpu_ms).median, 1),
        ]);
        let (question, asker) = (question.what, asker.name());
        taken.push(Taken { question, asker, all_ms: all.median, read_mib });
    }
    taken
}

/// Each question beside itself in a larger store, to see with what its cost grows.
fn print_growth(sizes: &[(f64, Vec<Taken>)]) {
    println!("\n### What grows with the store: time for everything, ms, and what was read, MiB\n");
    let mut heads = vec!["question".to_owned(), "asked".to_owned()];
    heads.extend(sizes.iter().map(|(gigabytes, _)| format!("{gigabytes} GB")));
    table(&heads.iter().map(String::as_str).collect::<Vec<_>>());
    for first in sizes.first().map_or(&[][..], |(_, taken)| taken) {
        let mut cells = vec![first.question.to_owned(), first.asker.to_owned()];
        cells.extend(sizes.iter().map(|(_, taken)| {
            let same = |t: &&Taken| (t.question, t.asker) == (first.question, first.asker);
            taken.iter().find(same).map_or("-".into(), |t| {
                format!("{} ms, {} MiB", cell(t.all_ms, 1), cell(t.read_mib, 2))
            })
        }));
        row(&cells);
    }
}

fn print_commands(gigabytes: f64) {
    for (method, pps) in [(Method::INDEXED, TAPDECK_PPS), (Method::Stenotype, STENOTYPE_PPS)] {
        println!("- `{}`", show(&method.command("DIR")));
        if let Some(flags) = reels(gigabytes, pps).first() {
            println!("- and for its first gigabyte `tapdeck gen {flags}`");
        }
    }
    println!(
        "- `tapdeck query --dir DIR EXPR` · `for f in DIR/*.pcapng; do tcpdump -nnl -r $f EXPR; done`"
    );
    println!(
        "- stenographer: `ip netns exec NS curl -sSfkN --http1.1 --cert CERT --key KEY -d EXPR https://127.0.0.1:1234/query`, \
         whose start and TLS are in the time; of CPU, only the client's"
    );
}
