//! What writes a store: from rings into segments, and beside them their index.
//!
//! [`writer`] takes blocks out of the rings as [`control`] tells it, and knows nothing of files;
//! [`segment_sink`] puts them into segments ([`live`]), [`stream`] into one file or pipe. The
//! [`keeper`]'s thread sets segments aside and closes them; the [`holdings`] are the closed ones,
//! and delete what retention lets go. The [`indexer`]'s threads index segments. Nothing here reads
//! what was written, but for what the index missed.

pub mod ages;
pub mod control;
pub(crate) mod durability;
pub mod holdings;
pub mod indexer;
pub mod keeper;
pub mod ledger;
pub mod live;
pub mod log;
pub mod pace;
pub mod retention;
pub mod segment_sink;
pub mod stream;
pub mod totals;
pub mod writer;
