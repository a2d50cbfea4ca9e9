//! Keeps finished blocks from rings on disk, and answers what was recorded.
//!
//! A store is a directory of segments, each a pcapng file, and of their indexes; `docs/FORMAT.md`
//! specifies it. The folders show who does what:
//!
//! - `writing`: from rings into segments. [`Writer`] empties rings into a [`Sink`]: a
//!   [`SegmentSink`] (a store), a [`StreamSink`] (one file or pipe), or nothing. Beside it threads
//!   index what was written, set the next segment aside, and delete what retention lets go.
//! - `reading`: [`query`] gives packets back in time order, those that match a [`filter`], a whole
//!   [`choice`] or something else, [`walk`] those of a segment as they lie there, [`recent`]
//!   tallies of the last ones, [`stat`] tells what is in a store, [`recorded`] when somebody
//!   recorded, [`verify()`] checks it, and [`Store::recover`] mends what a crash left. [`time`]
//!   reads points in time as people write them.
//! - `format`: what stands on disk, which both agree on: names, how segments begin and end,
//!   indexes, and the directory with its lock.
//! - [`io`]: the place where a store lies, as traits that tests can make fail: [`io::Io`] for
//!   writing, [`io::Storage`] for reading.
//!
//! Writing and reading do not know each other: they meet in the files alone, and so a store is read
//! while another process writes it. Where blocks come from is not decided here.

mod format;
pub mod io;
mod reading;
mod shed;
mod span;
pub mod time;
#[doc(hidden)]
pub mod trial;
mod writing;

#[doc(hidden)]
pub use format::index::read_anything as read_any_index;
pub use format::leftovers::Leftovers;
pub use format::name::SegmentName;
pub use format::store::{Error, Store, Stored};
pub use format::unseen::UnseenSpan;
pub use format::without_indexes::WithoutIndexes;
#[doc(hidden)]
pub use reading::recover::resync_anything;
pub use reading::recover::{Action, ClosedScope, Fault, Finding, IndexAction, Scope};
pub use reading::verify::{Flaw, Indexed, Verdict, verify, verify_in};
pub use reading::{choice, filter, query, recent, recorded, stat, walk};
pub use shed::Shed;
pub use writing::control::{Done, RingsChange, WriterControl};
pub use writing::indexer::Indexing;
pub use writing::ledger::{Ledger, LedgerEntry, SegmentEnd};
pub use writing::log::Log;
pub use writing::retention::{MinFree, Retention};
pub use writing::segment_sink::{SegmentSink, SegmentSinkConfig};
pub use writing::stream::StreamSink;
pub use writing::totals::{InterfaceTotals, Totals};
pub use writing::writer::{Ending, InterfaceBlock, Nothing, Sink, SinkOutcome, Writer};
