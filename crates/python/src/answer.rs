//! What is an answer made of? Batches of columns, and an end that says how whole it is; or a
//! failure in place of either.

use std::path::PathBuf;

use arrow_array::RecordBatch;
use tapdeck_packet::printable::counted;
use tapdeck_store::query::{Error, Note};
use tapdeck_store::{Shed, filter};

/// A part of an answer, in the order in which they come.
pub enum Part {
    /// The question makes sense, and batches come.
    Begun,
    Batch(RecordBatch),
    Ended(End),
    /// No answer, or no more of it.
    Failed(Failure),
}

/// How an answer ended.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// Packets or rows.
    pub rows: u64,
    /// Whether a limit ended the answer, which is whole up to its last packet then.
    pub is_limited: bool,
    /// Packets that the recording says it dropped inside the span.
    pub dropped: u64,
    /// Packets that went unseen inside the span.
    pub unseen: u64,
    /// Payload that was given up of packets that are in the answer.
    pub shed: Shed,
    /// Packets that the recording had and the answer has not, or not in order: a sentence each.
    pub faults: Vec<String>,
    /// What else there is to know, a sentence each.
    pub notes: Vec<String>,
}

impl End {
    /// Takes in notes, by whether they say that packets are missing.
    pub fn add_notes(&mut self, notes: impl IntoIterator<Item = Note>) {
        for note in notes {
            let list = if note.lacks_packets() { &mut self.faults } else { &mut self.notes };
            list.push(note.to_string());
        }
    }

    /// Returns what is missing, in a line; `None` where nothing is.
    pub fn lacks(&self) -> Option<String> {
        let Self { dropped, unseen, shed, faults, .. } = self;
        let count = |n: u64, what: &str| (n > 0).then(|| counted(n, "packet") + what);
        let parts = [
            count(*dropped, " dropped by the recorder"),
            count(*unseen, " not shown to it"),
            count(shed.packets, " cut short when a ring was nearly full"),
        ];
        let parts: Vec<String> =
            parts.into_iter().flatten().chain(faults.iter().cloned()).collect();
        (!parts.is_empty()).then(|| format!("the answer is not whole: {}", parts.join("; ")))
    }
}

/// Why there is no answer, or no more of it.
#[derive(Debug)]
pub enum Failure {
    /// The store cannot be read.
    Store(Error),
    /// A segment cannot be read.
    Segment { path: PathBuf, why: std::io::Error },
    /// A URL names no store, or cannot be asked as things are: a sentence.
    Place(String),
    /// No program is there that reads what lies elsewhere.
    NoReader(PathBuf),
    /// The question makes no sense.
    Filter(filter::Error),
    /// Columns could not be made.
    Columns(arrow_schema::ArrowError),
    /// The thread that made the answer came to an end that nobody foresaw.
    Broken,
    /// Nobody takes the answer any more.
    Left,
    /// The answer is made in another process, from which this one was forked.
    Forked,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(Error::Io { path, source }) => {
                write!(f, "cannot read {}: {source}", path.display())
            }
            Self::Store(e) => write!(f, "{e}"),
            Self::Segment { path, why } => write!(f, "cannot read {}: {why}", path.display()),
            Self::Place(why) => write!(f, "{why}"),
            Self::NoReader(url) => write!(
                f,
                "reading {} is the work of the program tapdeck-remote, which is not in PATH: install tapdeck, or add its directory",
                url.display()
            ),
            Self::Filter(e) => write!(f, "{e}"),
            Self::Columns(e) => write!(f, "cannot make columns: {e}"),
            Self::Broken => write!(f, "the answer ended by a fault of tapdeck; ask again"),
            Self::Left => write!(f, "the answer was given up"),
            Self::Forked => write!(
                f,
                "the answer began in another process, and is read there alone; ask again in this one"
            ),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Store(e)
    }
}

impl From<filter::Error> for Failure {
    fn from(e: filter::Error) -> Self {
        Self::Filter(e)
    }
}

impl From<arrow_schema::ArrowError> for Failure {
    fn from(e: arrow_schema::ArrowError) -> Self {
        Self::Columns(e)
    }
}
