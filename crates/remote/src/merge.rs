//! One answer of all sensors, merged by time.
//!
//! Each sensor's packets come in time order, so the next packet of all is the earliest of those
//! that are next. All sensors are asked at once, and whoever is ahead waits for the others. Where a
//! limit has ended the answer, what sensors still send is read all the same, for its end, which
//! says how whole it is.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use tapdeck_packet::pcapng::{self, InterfaceDescription, StatisticsBlock};
use tapdeck_packet::printable::{count, counted};

use crate::answer::{Answer, End, Packet, Taker};
use crate::config::Sensor;
use crate::flags::Query;
use crate::{ask, say};

/// Bytes that gather before they are written.
const BUFFER: usize = 256 << 10;
const APPLICATION: &str = concat!("tapdeck-remote ", env!("CARGO_PKG_VERSION"));

/// Asks all sensors and writes their packets to standard output. Returns whether the answer is
/// whole.
pub fn run(query: &Query, sensors: Vec<Sensor>) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let mut answers = Vec::new();
    for sensor in sensors {
        let stream = ask::begin(&runtime, &sensor, query).with_context(|| sensor.name.clone())?;
        answers.push(Answer::new(sensor.name, stream));
    }
    let mut output = Output::default();
    output.begin(&comment(query));
    let limit = query.limit.unwrap_or(u64::MAX);
    let packets = merge(&mut answers, &mut output, limit)?;
    let told = Told::of(&answers, limit);
    told.lacks.iter().for_each(|lack| say(lack));
    output.end(&told.line(packets, packets == limit));
    output.flush()?;
    // Tasks of sensors that were given up end with the process.
    runtime.shutdown_background();
    Ok(told.lacks.is_empty())
}

/// Writes the packets of all answers by time, the first `limit` of them. Returns how many.
fn merge(answers: &mut [Answer], output: &mut Output, limit: u64) -> io::Result<u64> {
    let mut next = Vec::new();
    for answer in &mut *answers {
        next.push(find_next(answer, output)?);
    }
    let mut packets = 0;
    loop {
        let times = next.iter().enumerate();
        let first = times.filter_map(|(at, time_ns)| Some((time_ns.as_ref()?, at))).min();
        let Some((_, at)) = first else { return Ok(packets) };
        if packets < limit {
            output.packet(answers[at].packet())?;
            packets += 1;
        }
        next[at] = find_next(&mut answers[at], output)?;
    }
}

/// Finds the next packet of a answer. What was found before is shown before it is waited for.
fn find_next(answer: &mut Answer, output: &mut Output) -> io::Result<Option<i64>> {
    if !answer.is_ready() {
        output.flush()?;
    }
    Ok(answer.find_next(output))
}

/// What sensors say at their ends.
struct Told {
    dropped: u64,
    unseen: u64,
    /// What the answer lacks, a sentence each, which begins with the sensor.
    lacks: Vec<String>,
}

impl Told {
    fn of(answers: &[Answer], limit: u64) -> Self {
        let mut told = Self { dropped: 0, unseen: 0, lacks: Vec::new() };
        for answer in answers {
            let sensor = answer.sensor();
            match answer.end() {
                Ok(end) => {
                    told.dropped += end.dropped;
                    told.unseen += end.unseen;
                    told.lacks.extend(lacks(end, limit).map(|lack| format!("{sensor}: {lack}")));
                }
                Err(why) => told.lacks.push(format!("{sensor}: {why}")),
            }
        }
        told
    }

    /// Returns a line that says how whole the answer is, as a gateway's does.
    fn line(&self, packets: u64, is_limited: bool) -> String {
        let Self { dropped, unseen, lacks } = self;
        let word = match (lacks.is_empty(), is_limited) {
            (false, _) => "incomplete",
            (true, true) => "limited",
            (true, false) => "complete",
        };
        let mut line = format!("{word}: {packets} packets, {dropped} dropped, {unseen} unseen");
        for lack in lacks {
            // Writing into a string does not fail.
            let _ = write!(line, "; {lack}");
        }
        line
    }
}

/// Returns what an answer lacks that came up to its end, a sentence each.
fn lacks(end: &End, limit: u64) -> impl Iterator<Item = String> {
    let End { is_limited, packets, dropped, unseen, faults, is_incomplete } = end;
    let gaps = (dropped + unseen > 0).then(|| {
        let (dropped, unseen) = (counted(*dropped, "packet"), count(*unseen));
        format!("its recording has gaps here: {dropped} dropped, {unseen} unseen")
    });
    let ceiling = (*is_limited && *packets < limit).then(|| {
        format!("the answer ends at a limit of your role, after {}", counted(*packets, "packet"))
    });
    let unknown =
        (*is_incomplete && faults.is_empty()).then(|| "the answer is incomplete".to_owned());
    gaps.into_iter().chain(ceiling).chain(unknown).chain(faults.iter().cloned())
}

/// Returns the comment of the answer's section header.
fn comment(query: &Query) -> String {
    let expression = query.expression.join(" ");
    let mut words = vec![format!("from {}", query.remote.join(" and "))];
    words.extend((!expression.is_empty()).then(|| format!("filter {expression}")));
    words.extend(query.community_id.as_ref().map(|id| format!("community id {id}")));
    words.extend(query.after.as_ref().map(|time| format!("after {time}")));
    words.extend(query.before.as_ref().map(|time| format!("before {time}")));
    words.extend(query.limit.map(|limit| format!("limit {limit}")));
    words.join(", ")
}

/// The answer, on standard output.
#[derive(Default)]
struct Output {
    pending: Vec<u8>,
    interfaces: u32,
}

impl Output {
    fn begin(&mut self, comment: &str) {
        pcapng::section_header(&mut self.pending, std::env::consts::OS, APPLICATION, Some(comment));
    }

    fn packet(&mut self, p: &Packet) -> io::Result<()> {
        let start = self.pending.len();
        self.pending.resize(start + pcapng::packet_len(p.frame.len(), p.flags, p.dropped), 0);
        let (out, frame) = (&mut self.pending[start..], [&p.frame[..], &[], &[]]);
        let time_ns = p.time_ns as u64;
        pcapng::write_packet(out, p.interface, time_ns, frame, p.original_len, p.flags, p.dropped);
        if p.shed > 0 {
            pcapng::shed_packet(&mut self.pending, start, p.shed);
        }
        if self.pending.len() < BUFFER { Ok(()) } else { self.flush() }
    }

    /// Writes the last block, as a gateway does.
    fn end(&mut self, line: &str) {
        if self.interfaces > 0 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now_ns = now.map_or(0, |now| now.as_nanos() as u64);
            pcapng::comment(&mut self.pending, 0, now_ns, line);
        } else {
            self.begin(line);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(&self.pending)?;
        self.pending.clear();
        out.flush()
    }
}

impl Taker for Output {
    fn interface(&mut self, described: &InterfaceDescription) -> u32 {
        pcapng::interface_description(&mut self.pending, described);
        self.interfaces += 1;
        self.interfaces - 1
    }

    fn statistics(&mut self, statistics: &StatisticsBlock) {
        pcapng::statistics(&mut self.pending, statistics);
    }
}
