//! What must the user know about an answer? What is missing from it, and what took longer than it
//! had to. What makes an answer impossible is an [`Error`](super::Error) instead.

use std::fmt;

use crate::reading::holes::{self, Hole};

/// What the user must know about an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Retention deleted a segment before all of it was read.
    Deleted(String),
    /// Segments with these numbers, from the first to the last, came and were deleted between two
    /// rounds of an answer that follows the store.
    Missed { first: u64, last: u64 },
    /// A segment is damaged, or was cut although it is closed; what follows is not in the answer.
    Damaged { segment: String, at: u64, what: String },
    /// A granule of a segment is not what was indexed. What could be read of it is in the answer.
    Changed { segment: String, at: u64 },
    /// A segment holds packets from longer before its beginning than [`super::SLACK_NS`] allows.
    Late(String),
    /// A capture file of another recorder ends within a packet.
    Unfinished { segment: String, at: u64 },
    /// A capture file of another recorder has packets without a time, or from before 1970.
    Timeless(String),
    /// No index can be made of a capture file of another recorder.
    NotIndexed { segment: String, why: String },
    /// A capture file of another recorder has an index that is not to be believed.
    Disbelieved { segment: String, why: String },
    /// Files and directories beside the capture files that were not read.
    LeftOut(String),
    /// The index of a segment is damaged. All of the segment was read instead.
    Index { segment: String, why: String },
    /// An overview is damaged. The indexes of its segments were read instead.
    Overview { overview: String, why: String },
    /// Segments with these numbers, from the first to the last, are not there, though one before
    /// them and the segment named are. What they held is from no earlier than a time.
    Hole { segment: String, first: u64, last: u64, from_ns: i64 },
}

impl Note {
    /// Returns whether packets that are on disk are missing or out of order because of what the
    /// note tells.
    pub fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::Changed { .. }
                | Self::Late(_)
                | Self::LeftOut(_)
                | Self::Hole { .. }
        )
    }

    /// Returns whether packets that the store had when it was asked are missing from the answer, or
    /// out of order: by a fault, or because they were deleted meanwhile, as retention may.
    pub fn lacks_packets(&self) -> bool {
        self.is_fault() || matches!(self, Self::Deleted(_) | Self::Missed { .. })
    }

    /// Returns whether the note concerns an answer that goes no further than a time.
    pub fn concerns(&self, until_ns: i64) -> bool {
        !matches!(self, Self::Hole { from_ns, .. } if *from_ns > until_ns)
    }

    pub(super) fn segment(&self) -> &str {
        match self {
            Self::Deleted(segment)
            | Self::Damaged { segment, .. }
            | Self::Changed { segment, .. }
            | Self::Unfinished { segment, .. }
            | Self::NotIndexed { segment, .. }
            | Self::Disbelieved { segment, .. }
            | Self::Hole { segment, .. }
            | Self::Timeless(segment)
            | Self::LeftOut(segment)
            | Self::Late(segment)
            | Self::Overview { overview: segment, .. }
            | Self::Index { segment, .. } => segment,
            Self::Missed { .. } => "",
        }
    }
}

impl From<Hole> for Note {
    fn from(hole: Hole) -> Self {
        let Hole { before, numbers, from_ns } = hole;
        let (first, last) = numbers.into_inner();
        Self::Hole { segment: before.to_string(), first, last, from_ns }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted(segment) => {
                write!(
                    f,
                    "{segment} was deleted before it was read; its packets are not in the answer"
                )
            }
            Self::Missed { first, last } if first == last => {
                write!(
                    f,
                    "segment {first} came and was deleted before it was read; its packets are not in the answer"
                )
            }
            Self::Missed { first, last } => {
                write!(
                    f,
                    "segments {first} to {last} came and were deleted before they were read; their packets are not in the answer"
                )
            }
            Self::Damaged { segment, at, what } => {
                write!(
                    f,
                    "{segment} is damaged at byte {at} ({what}); what follows there is not in the answer"
                )
            }
            Self::Changed { segment, at } => {
                write!(
                    f,
                    "{segment} is damaged at byte {at} (its checksum differs); what could be read there is in the answer"
                )
            }
            Self::Unfinished { segment, at } => {
                write!(
                    f,
                    "{segment} ends at byte {at} with the beginning of a packet, as files do that are being written; what is whole is in the answer"
                )
            }
            Self::Timeless(segment) => {
                write!(
                    f,
                    "{segment} holds packets without a time; each has that of the packet before it in the file"
                )
            }
            Self::NotIndexed { segment, why } => {
                write!(f, "no index can be made of {segment} ({why}); all of it is read")
            }
            Self::LeftOut(what) => write!(f, "not read, and not in the answer: {what}"),
            Self::Disbelieved { segment, why } => {
                write!(f, "the index of {segment} is not believed ({why}); all of it is read")
            }
            Self::Index { segment, why } => {
                write!(
                    f,
                    "the index of {segment} cannot be used ({why}), so all of it was read; `tapdeck recover --all` makes a new one"
                )
            }
            Self::Overview { overview, why } => {
                write!(
                    f,
                    "{overview} cannot be used ({why}), so indexes were read in its place; `tapdeck recover --all` makes a new one"
                )
            }
            Self::Hole { segment, first, last, .. } => {
                let which = holes::show(&(*first..=*last), "");
                write!(f, "{which} missing before {segment}: what they held is not in the answer")
            }
            Self::Late(segment) => {
                write!(
                    f,
                    "{segment} holds packets that waited for more than a minute to be written; they are not in time order"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Note;

    #[test]
    fn an_answer_lacks_what_was_deleted_meanwhile_and_no_disk_is_at_fault() {
        for note in [Note::Deleted("a".into()), Note::Missed { first: 1, last: 2 }] {
            assert!(note.lacks_packets() && !note.is_fault(), "{note}");
        }
        let damaged = Note::Damaged { segment: "a".into(), at: 1, what: "it is cut".into() };
        assert!(damaged.lacks_packets() && damaged.is_fault());
        let slow = Note::Index { segment: "a".into(), why: "its checksum differs".into() };
        assert!(!slow.lacks_packets() && !slow.is_fault());
    }
}
