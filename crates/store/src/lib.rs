//! The tape deck: takes finished blocks from rings and keeps them on disk.
//!
//! [`Writer`] empties rings into a [`Sink`]: a [`SegmentSink`] (a store: a directory of segments), a
//! [`Stream`] (one file or pipe), or nothing. A segment is a pcapng file;
//! `docs/FORMAT.md` specifies it. Files are reached through [`io::Io`], so that tests can make a
//! disk fail.

mod index;
mod indexer;
pub mod io;
mod keeper;
mod name;
pub mod query;
mod recover;
mod retention;
mod segment;
mod segment_sink;
pub mod stat;
mod store;
mod stream;
mod totals;
mod verify;
mod writer;

#[doc(hidden)]
pub use index::read_anything as read_any_index;
pub use indexer::Indexing;
pub use keeper::Log;
pub use name::SegmentName;
pub use recover::{Action, Closed, Fault, Finding, IndexAction, Scope};
pub use retention::{MinFree, Retention};
pub use segment_sink::{SegmentSink, SegmentSinkConfig};
pub use store::{Error, Store, Stored};
pub use stream::Stream;
pub use totals::{InterfaceTotals, Totals};
pub use verify::{Flaw, Indexed, Verdict, verify};
pub use writer::{Done, Ending, InterfaceBlock, Nothing, Outcome, Sink, Writer, WriterControl};
