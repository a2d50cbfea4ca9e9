//! What does an overview tell of each segment? What a question needs to know before it asks an
//! index: which segment it is, its times, how it begins, and whether it tells of losses.

use std::io;

use crate::format::index::code::{Bytes, damaged, put, put_signed};
use crate::format::name::SegmentName;

/// A segment that is covered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub number: u64,
    /// The time in the segment's name.
    pub began_s: i64,
    /// The segment's length, and when it was last changed: UTC nanoseconds.
    pub len: u64,
    pub changed_ns: i64,
    pub packets: u64,
    pub granules: u64,
    /// Whether a packet, or the segment's statistics, tell of losses.
    pub tells: bool,
    /// Times of the earliest and the latest packet, UTC nanoseconds.
    pub first_ns: i64,
    pub last_ns: i64,
    /// Which of the beginnings the segment has.
    pub head: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    /// How segments begin: the bytes before the first packet.
    pub heads: Vec<Vec<u8>>,
    /// The members, in the order of their numbers.
    pub members: Vec<Member>,
}

impl Table {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.members.len() as u64);
        for m in &self.members {
            put(&mut out, m.number);
            put_signed(&mut out, m.began_s);
            put(&mut out, m.len);
            put_signed(&mut out, m.changed_ns);
            put(&mut out, m.packets);
            put(&mut out, m.granules << 1 | u64::from(m.tells));
            put_signed(&mut out, m.first_ns);
            put_signed(&mut out, m.last_ns);
            put(&mut out, m.head as u64);
        }
        put(&mut out, self.heads.len() as u64);
        for head in &self.heads {
            put(&mut out, head.len() as u64);
            out.extend(head);
        }
        out
    }

    /// Takes the table of an overview that is named after a segment.
    pub fn decode(bytes: &[u8], last: &SegmentName) -> io::Result<Self> {
        let mut bytes = Bytes(bytes);
        let mut table = Self::default();
        for _ in 0..bytes.number()? {
            let (number, began_s) = (bytes.number()?, bytes.signed()?);
            let (len, changed_ns) = (bytes.number()?, bytes.signed()?);
            let (packets, granules) = (bytes.number()?, bytes.number()?);
            let (first_ns, last_ns) = (bytes.signed()?, bytes.signed()?);
            let head = usize::try_from(bytes.number()?).unwrap_or(usize::MAX);
            let is_next = table.members.last().is_none_or(|before| before.number < number);
            let name = SegmentName { number, began_s, live: false };
            if !is_next || number > last.number || !name.shares_overview(last) {
                return Err(damaged("a segment is not one of those that it is about"));
            }
            let (granules, tells) = (granules >> 1, granules & 1 != 0);
            table.members.push(Member {
                number,
                began_s,
                len,
                changed_ns,
                packets,
                granules,
                tells,
                first_ns,
                last_ns,
                head,
            });
        }
        for _ in 0..bytes.number()? {
            let len = usize::try_from(bytes.number()?).unwrap_or(usize::MAX);
            if table.heads.len() == table.members.len() {
                return Err(damaged("there are more beginnings than segments"));
            }
            table.heads.push(bytes.take(len)?.to_vec());
        }
        if table.members.iter().any(|m| m.head >= table.heads.len()) {
            return Err(damaged("a segment has no beginning"));
        }
        Ok(table)
    }
}
