//! Which packets of a store match, in time order? Answered from the segments and what is indexed of
//! them, for stores that are being written and deleted from meanwhile. A query changes nothing, and
//! does not decide what matches: a [`Matcher`] does.
//!
//! A segment is not sorted: rings lie in it by blocks, neighbouring segments overlap in time, and
//! even inside a ring packets may be stamped in another order than they were reserved in. So the
//! answer is merged, from **pieces** of segments whose matches are sorted. What may still hold a
//! part of the answer is **unread**: a segment of which no more is known than how it begins,
//! granules that its index names, or a stretch that is not indexed and has to be read from end to
//! end. Each unread part has a bound, the earliest time that may be in it. A packet goes out when
//! it is before the bounds of all unread parts that are left; until then the part with the lowest
//! bound is looked at. A look at a segment gives its granules and stretches, a look at a stretch a
//! piece and the rest of the stretch. Nothing is looked at that the next packet does not need; so
//! the first packet comes soon, and an answer depends on the store alone.
//!
//! The bounds of granules are exact. Those of what is not indexed are taken on trust: a segment may
//! hold nothing from more than [`SLACK_NS`] before its own beginning. Where a packet shows that
//! this was wrong, a [`Note`] says so. The same bound tells which segments lie outside the span
//! that was asked for.
//!
//! Matches of pieces stay in memory as long as there is room. Where there is not, the piece that is
//! needed last is forgotten and becomes unread again, with its next match as its bound. So disorder
//! beyond all measure costs time but no memory.
//!
//! Of capture files of other recorders nothing is known before they are read ([`foreign`]): each is
//! one stretch whose bound is lower than any time, so all of them are read before the first packet
//! goes out.
//!
//! Threads look at unread parts ahead of need ([`crew`]). What they found waits until the answer
//! needs it.
//!
//! **Losses.** A packet tells how many were lost before it. Where it is not in the answer, the next
//! match of its interface tells it instead: packets that tell of losses are merged like matches,
//! and then added up. Granules without a match are not read for that, since the index has their
//! sums; only where a match falls into the time of such a granule, and it is open which losses come
//! before the match, it is read.
//!
//! **Following.** An answer can go on with what is written behind it ([`tail`]).
//!
//! The files build on one another in this order: `order`, `interface`, `packet`; `blocks`, `scan`;
//! `piece`; `source`; `ends`, `capture_file`; `overviews`, `snapshot`; `request`; `expand`;
//! `reader`; `crew`; `tail`; `merge`; `split`.

pub(crate) mod blocks;
mod capture_file;
mod crew;
pub(crate) mod ends;
mod error;
mod expand;
mod foreign;
mod interface;
mod losses;
mod make;
mod merge;
mod note;
mod opened;
mod order;
mod overviews;
mod packet;
mod piece;
mod progress;
mod reader;
mod request;
mod scan;
mod snapshot;
mod source;
mod split;
mod tail;
#[cfg(test)]
mod tests;

pub use crate::span::Span;
pub use ends::SLACK_NS;
pub use error::Error;
pub use foreign::{Search, user_cache};
pub use interface::Described;
pub use make::index_captures;
pub use merge::Query;
pub use note::Note;
pub use packet::{Matcher, Packet};
pub use progress::Progress;
pub(crate) use snapshot::Segment;
pub use snapshot::{Missing, Snapshot};
pub use split::split;
pub use tail::Tail;
