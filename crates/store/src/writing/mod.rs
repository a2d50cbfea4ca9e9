//! What writes a store: from rings into segments, and beside them their index.

pub mod indexer;
pub mod keeper;
pub mod live;
pub mod log;
pub mod retention;
pub mod segment_sink;
pub mod stream;
pub mod totals;
pub mod writer;
