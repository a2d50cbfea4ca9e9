//! What is pinned, and how far has its copying come? A pin is a directory of its own: `pin.json`,
//! and `packets`, in which capture files lie that any program reads.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::account::{Account, LAG_NS};
use crate::bundle::{Clock, FileEntry, Interface};
use crate::copy::{Most, Question};
use crate::error::Error;
use crate::time::Time;

/// The file that says what a pin is.
pub(crate) const FILE: &str = "pin.json";
/// The directory of a pin's packets.
pub(crate) const PACKETS: &str = "packets";
/// How long packets of a pin whose span is not over wait to be copied.
const ROUND_NS: i64 = 60_000_000_000;

/// How far a pin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The span is not over, or not all of it was copied yet.
    Open,
    /// All of the span was copied.
    Done,
    /// The budget was full before all was copied; what was is there.
    Full,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Done => "done",
            Self::Full => "full",
        }
    }
}

/// A user who has had a pin made from afar, and how much of it they may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The user's name, as the gateway knows it.
    pub by: String,
    pub most: Most,
}

/// What somebody wants to be pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The directory of the store.
    pub store: PathBuf,
    /// Which packets: a filter, or a flow.
    pub question: Question,
    /// The span, from a time on and up to another, which may be yet to come.
    pub after: Time,
    pub before: Time,
    /// Until when the pin is kept; `None` for until somebody removes it.
    pub until: Option<Time>,
    pub reason: String,
    /// The rule that the pin is of, where alerts made it.
    pub rule: Option<String>,
    /// The user who asked, where that was from afar.
    pub order: Option<Order>,
}

/// A pin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    pub number: u64,
    pub state: State,
    pub store: PathBuf,
    pub question: Question,
    pub after: Time,
    pub before: Time,
    pub until: Option<Time>,
    pub reason: String,
    pub rule: Option<String>,
    /// The user who asked, where that was from afar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    pub made: Time,
    /// Packets from before this time are copied.
    pub reached: Time,
    pub packets: u64,
    /// Bytes of the files of packets.
    pub bytes: u64,
    pub first: Option<Time>,
    pub last: Option<Time>,
    /// The files of packets, in the order of time.
    pub files: Vec<FileEntry>,
    /// What the recording lacks in the part of the span that is copied.
    pub account: Account,
    pub clock: Clock,
    pub interfaces: Vec<Interface>,
}

impl Pin {
    pub(crate) fn new(number: u64, wish: Wish) -> Self {
        let Wish { store, question, after, before, until, reason, rule, order } = wish;
        Self {
            number,
            state: State::Open,
            store,
            question: Question { after: None, before: None, ..question },
            after,
            before,
            until,
            reason,
            rule,
            order,
            made: Time::now(),
            reached: after,
            packets: 0,
            bytes: 0,
            first: None,
            last: None,
            files: Vec::new(),
            account: Account::default(),
            clock: Clock { kept_at_utc: Some(true), steps: Vec::new() },
            interfaces: Vec::new(),
        }
    }

    /// Returns the name of a pin's directory.
    pub fn directory_name(number: u64) -> String {
        format!("pin-{number:08}")
    }

    pub(crate) fn number_of(name: &str) -> Option<u64> {
        let digits = name.strip_prefix("pin-")?;
        let number = digits.parse().ok()?;
        (Self::directory_name(number) == name).then_some(number)
    }

    /// Returns up to when packets can be copied now: what came later may not be on disk yet.
    pub(crate) fn upto(&self, now: Time) -> Time {
        self.before.min(now.plus(-LAG_NS))
    }

    /// Returns when there is something to be copied; `None` where there will not be.
    pub fn due(&self) -> Option<Time> {
        let is_begun = self.reached > self.after || self.after.plus(LAG_NS) >= self.made;
        let due = self.before.min(self.reached.plus(ROUND_NS)).plus(LAG_NS);
        (self.state == State::Open).then_some(if is_begun { due } else { self.made })
    }

    /// Returns the part of the question that can be answered now.
    pub(crate) fn part(&self, now: Time) -> Question {
        let (after, before) = (Some(self.reached), Some(self.upto(now)));
        Question { after, before, ..self.question.clone() }
    }

    /// Returns how much more the pin may have.
    pub(crate) fn room(&self) -> Most {
        let most = self.order.as_ref().map_or(Most::ALL, |order| order.most);
        Most {
            packets: most.packets.saturating_sub(self.packets),
            bytes: most.bytes.saturating_sub(self.bytes),
        }
    }

    pub(crate) fn read(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(FILE);
        let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
        serde_json::from_slice(&bytes).map_err(|e| Error::io("read", &path)(e.into()))
    }

    /// Writes down what the pin is, in place of what stood there.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(self);
        let path = dir.join(FILE);
        let text = text.map_err(|e| Error::io("write", &path)(e.into()))?;
        replace(&path, &text)
    }
}

/// Writes a file in place of another: whenever the machine stops, one of both is there, whole.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let draft = path.with_extension("new");
    let write = || {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o640);
        let mut file = options.open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        sync_parent(path)
    };
    write().map_err(Error::io("write", path))
}

pub(crate) fn sync_parent(path: &Path) -> std::io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
