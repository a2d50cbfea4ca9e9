//! The audit: who has asked for which packets, and what was given?
//!
//! Lines of JSON, only ever added to a file, which somebody else may rotate (the file is opened
//! anew for each line). A question is written down before the first byte of its answer leaves, and
//! its end when that is known. A question that cannot be written down is not answered.
//!
//! Anybody can be refused for want of a certificate or token, as often as they like; of these there
//! is one line a second for each place that they come from, with their number.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::mem;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::Serialize;

/// Places that strangers come from and that are told apart, within a second.
const PLACES: usize = 256;

/// A file of audit lines.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    /// One line at a time.
    writing: Mutex<Writing>,
    strangers: Mutex<BTreeMap<Stranger, u64>>,
    next: AtomicU64,
    /// What tells the numbers of this process from those of others.
    run: String,
}

/// How the file does.
#[derive(Debug, Default)]
struct Writing {
    /// Whether it ends within a line.
    is_cut: bool,
    /// Lines that could not be written since the last that could.
    unwritten: u64,
}

/// Somebody who could not show who they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Stranger {
    /// An address without a port.
    from: String,
    certificate: Option<String>,
}

/// A question, as it is written down before it is answered.
#[derive(Debug, Serialize)]
pub struct Asked<'a> {
    pub who: &'a str,
    /// How that was shown: by certificate, by token, or by where they connect.
    pub by: &'a str,
    pub from: &'a str,
    /// The path that was asked for.
    pub what: &'a str,
    pub store: &'a str,
    /// The question in its own words.
    pub filter: &'a str,
    /// What the role adds to the question's filter.
    pub ceiling: &'a str,
    pub after: Option<String>,
    pub before: Option<String>,
    #[serde(flatten)]
    pub change: Change<'a>,
}

/// What is to be changed of pins, where something is.
#[derive(Debug, Default, Serialize)]
pub struct Change<'a> {
    /// The number of a pin that is to be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// What became of a question.
#[derive(Debug, Serialize)]
pub struct Ended<'a> {
    pub packets: u64,
    pub bytes: u64,
    pub result: &'a str,
    /// The number of the pin that was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<u64>,
}

/// A pin whose copying has ended.
#[derive(Debug, Serialize)]
pub struct Pinned<'a> {
    pub who: &'a str,
    pub store: &'a str,
    pub pin: u64,
    pub packets: u64,
    pub bytes: u64,
    pub result: &'a str,
}

#[derive(Serialize)]
struct Line<'a, T> {
    time: String,
    id: &'a str,
    event: &'static str,
    #[serde(flatten)]
    rest: &'a T,
}

/// Refusals of strangers.
#[derive(Serialize)]
struct Refusals<'a> {
    #[serde(flatten)]
    stranger: &'a Stranger,
    count: u64,
}

/// Lines that could not be written.
#[derive(Serialize)]
struct Unwritten {
    lines: u64,
}

impl Audit {
    /// Opens the audit once, so that one that cannot be written is found at the start.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let run = format!("{:x}", Timestamp::now().as_microsecond());
        let (writing, strangers) = (Mutex::default(), Mutex::default());
        let audit = Self { path, writing, strangers, next: AtomicU64::new(1), run };
        audit.file().map(|_| audit)
    }

    /// Writes down that something was asked. Returns the question's name in the audit.
    pub fn asked(&self, asked: &Asked<'_>) -> io::Result<String> {
        let id = self.new_id();
        self.line(&id, "asked", asked)?;
        Ok(id)
    }

    /// Writes down what became of a question.
    pub fn ended(&self, id: &str, ended: &Ended<'_>) -> io::Result<()> {
        self.line(id, "ended", ended)
    }

    /// Writes down what became of a pin.
    pub fn pinned(&self, pinned: &Pinned<'_>) -> io::Result<()> {
        self.line(&self.new_id(), "pinned", pinned)
    }

    /// Writes down that somebody who is known was refused.
    pub fn refused(&self, refused: &impl Serialize) -> io::Result<()> {
        self.line(&self.new_id(), "refused", refused)
    }

    /// Writes down that somebody was refused who did not show who they are: now, or with others of
    /// the same place by [`Audit::flush`].
    pub fn stranger(&self, from: &str, certificate: Option<&str>) -> io::Result<()> {
        let place = from.rsplit_once(':').map_or(from, |(place, _)| place);
        let mut stranger =
            Stranger { from: place.to_owned(), certificate: certificate.map(str::to_owned) };
        let mut strangers = lock(&self.strangers);
        if strangers.len() >= PLACES && !strangers.contains_key(&stranger) {
            stranger = Stranger { from: "others".into(), certificate: None };
        }
        if let Some(more) = strangers.get_mut(&stranger) {
            *more += 1;
            return Ok(());
        }
        strangers.insert(stranger.clone(), 0);
        drop(strangers);
        self.refused(&Refusals { stranger: &stranger, count: 1 })
    }

    /// Writes down who was refused since it was last called. It is called each second.
    pub fn flush(&self) -> io::Result<()> {
        let mut strangers = lock(&self.strangers);
        let before = mem::take(&mut *strangers);
        let due = before.into_iter().filter(|(_, more)| *more > 0).collect::<Vec<_>>();
        strangers.extend(due.iter().map(|(stranger, _)| (stranger.clone(), 0)));
        drop(strangers);
        let write = |(stranger, count): &(Stranger, u64)| {
            self.refused(&Refusals { stranger, count: *count })
        };
        // One that fails keeps no other from being written.
        due.iter().map(write).fold(Ok(()), Result::and)
    }

    /// Returns why nothing can be written down, if so: also where the file can be opened, but the
    /// last line could not be written.
    pub fn fault(&self) -> Option<io::Error> {
        let mut writing = lock(&self.writing);
        let result = if writing.unwritten > 0 {
            self.write(&mut writing, &[])
        } else {
            self.file().map(drop)
        };
        result.err()
    }

    fn new_id(&self) -> String {
        format!("{}-{}", self.run, self.next.fetch_add(1, Relaxed))
    }

    fn file(&self) -> io::Result<std::fs::File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)
    }

    fn line(&self, id: &str, event: &'static str, rest: &impl Serialize) -> io::Result<()> {
        let line = show(id, event, rest)?;
        let mut writing = lock(&self.writing);
        let result = self.write(&mut writing, &line);
        writing.unwritten += u64::from(result.is_err());
        result
    }

    /// Writes a line, and before it what is to be said of those that could not be written.
    fn write(&self, writing: &mut Writing, line: &[u8]) -> io::Result<()> {
        let mut text = Vec::new();
        if writing.is_cut {
            text.push(b'\n');
        }
        if writing.unwritten > 0 {
            let unwritten = Unwritten { lines: writing.unwritten };
            text.extend(show(&self.new_id(), "unwritten", &unwritten)?);
        }
        text.extend(line);
        let mut file = self.file()?;
        let mut rest = &text[..];
        // One call writes all of it, so that a line is whole or is not there, but on a full disk.
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    rest = &rest[n..];
                    writing.is_cut = !rest.is_empty();
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        writing.unwritten = 0;
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn show(id: &str, event: &'static str, rest: &impl Serialize) -> io::Result<Vec<u8>> {
    let time = format!("{:.6}", Timestamp::now());
    let mut line = serde_json::to_vec(&Line { time, id, event, rest })?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;

    use super::Audit;

    #[test]
    fn strangers_are_counted_and_each_second_has_one_line_of_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit");
        let audit = Audit::open(path.clone()).expect("it can be written");
        for port in 0..1000 {
            audit.stranger(&format!("192.0.2.1:{port}"), None).expect("it can be written");
        }
        audit.stranger("[2001:db8::1]:5", Some("mallory")).expect("it can be written");
        for _ in 0..3 {
            audit.flush().expect("it can be written");
        }
        let lines = fs::read_to_string(&path).expect("it is there");
        let lines: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let told: Vec<_> = lines
            .iter()
            .map(|line| (line["from"].as_str().expect("a place"), line["count"].as_u64()))
            .collect();
        let expected =
            [("192.0.2.1", Some(1)), ("[2001:db8::1]", Some(1)), ("192.0.2.1", Some(999))];
        assert_eq!(told, expected);
        // However many places there are.
        for host in 0..10_000 {
            audit.stranger(&format!("10.1.{}.{}:1", host / 250, host % 250), None).expect("room");
        }
        audit.flush().expect("it can be written");
        let lines = fs::read_to_string(&path).expect("it is there").lines().count();
        assert!(lines < 3 + 2 * super::PLACES, "{lines}");
    }

    #[test]
    fn a_write_that_failed_is_a_fault_until_one_succeeds() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit");
        std::os::unix::fs::symlink("/dev/full", &path).expect("it can be made");
        let audit = Audit::open(path.clone()).expect("it can be opened");
        assert!(audit.fault().is_none(), "nothing was written yet");
        audit.stranger("192.0.2.1:1", None).expect_err("it is full");
        assert!(audit.fault().is_some() && audit.fault().is_some(), "it is still full");
        fs::remove_file(&path).expect("it is there");
        assert!(audit.fault().is_none(), "there is room again");
        let told: Value = serde_json::from_str(&fs::read_to_string(&path).expect("it is there"))
            .expect("one line");
        assert_eq!((&told["event"], &told["lines"]), (&"unwritten".into(), &1.into()));
        // A line that was cut is ended before the next.
        fs::write(&path, "{\"time\":\"20").expect("it can be written");
        super::lock(&audit.writing).is_cut = true;
        audit.stranger("192.0.2.2:1", None).expect("there is room");
        let text = fs::read_to_string(&path).expect("it is there");
        assert!(text.starts_with("{\"time\":\"20\n{\"time\":\"20"), "{text}");
    }
}
