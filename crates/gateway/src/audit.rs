//! The audit: who has asked for which packets, and what was given?
//!
//! Lines of JSON, only ever added to a file, which somebody else may rotate (the file is opened
//! anew for each line). A question is written down before the first byte of its answer leaves, and
//! its end when that is known. A question that cannot be written down is not answered.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde::Serialize;

/// A file of audit lines.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    /// One line at a time.
    writing: Mutex<()>,
    next: AtomicU64,
    /// What tells the numbers of this process from those of others.
    run: String,
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
}

/// What became of a question.
#[derive(Debug, Serialize)]
pub struct Ended<'a> {
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

impl Audit {
    /// Opens the audit once, so that one that cannot be written is found at the start.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let run = format!("{:x}", Timestamp::now().as_microsecond());
        let audit = Self { path, writing: Mutex::default(), next: AtomicU64::new(1), run };
        audit.file().map(|_| audit)
    }

    /// Writes down that something was asked. Returns the question's name in the audit.
    pub fn asked(&self, asked: &Asked<'_>) -> io::Result<String> {
        let id = format!("{}-{}", self.run, self.next.fetch_add(1, Relaxed));
        self.line(&id, "asked", asked)?;
        Ok(id)
    }

    /// Writes down what became of a question.
    pub fn ended(&self, id: &str, ended: &Ended<'_>) -> io::Result<()> {
        self.line(id, "ended", ended)
    }

    /// Writes down that somebody was refused before it was known what they ask.
    pub fn refused(&self, refused: &impl Serialize) -> io::Result<()> {
        let id = format!("{}-{}", self.run, self.next.fetch_add(1, Relaxed));
        self.line(&id, "refused", refused)
    }

    /// Returns why nothing can be written down, if so.
    pub fn fault(&self) -> Option<io::Error> {
        self.file().err()
    }

    fn file(&self) -> io::Result<std::fs::File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)
    }

    fn line(&self, id: &str, event: &'static str, rest: &impl Serialize) -> io::Result<()> {
        let time = format!("{:.6}", Timestamp::now());
        let mut line = serde_json::to_vec(&Line { time, id, event, rest })?;
        line.push(b'\n');
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // One call, so that a line is whole or is not there.
        self.file()?.write_all(&line)
    }
}
