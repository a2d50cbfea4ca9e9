//! The tape deck: takes finished blocks from rings and keeps them on disk.
//!
//! [`Writer`] empties rings into a [`Sink`]: a [`SegmentSink`] (a store: a directory of segments),
//! a [`Stream`] (one file or pipe), or nothing. A segment is a pcapng file; `docs/FORMAT.md`
//! specifies it. Files are reached through [`io::Io`], so that tests can make a disk fail.

mod format;
pub mod io;
mod reading;
mod span;
mod writing;

#[doc(hidden)]
pub use format::index::read_anything as read_any_index;
pub use format::name::SegmentName;
pub use format::store::{Error, Store, Stored};
pub use reading::recover::{Action, Closed, Fault, Finding, IndexAction, Scope};
pub use reading::verify::{Flaw, Indexed, Verdict, verify, verify_in};
pub use reading::{query, stat};
pub use writing::indexer::Indexing;
pub use writing::log::Log;
pub use writing::retention::{MinFree, Retention};
pub use writing::segment_sink::{SegmentSink, SegmentSinkConfig};
pub use writing::stream::Stream;
pub use writing::totals::{InterfaceTotals, Totals};
pub use writing::writer::{
    Done, Ending, InterfaceBlock, Nothing, Outcome, Sink, Writer, WriterControl,
};
