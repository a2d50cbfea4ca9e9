//! What stands on disk: names, segments, indexes, and the directory that holds them.
//!
//! Whoever writes and whoever reads agree on it here and in no other place; `docs/FORMAT.md` is the
//! same in words. Neither of the two is known here.

pub mod cutoff;
pub mod index;
pub mod leftovers;
pub mod name;
pub mod segment;
pub mod store;
pub mod unseen;
pub mod without_indexes;
