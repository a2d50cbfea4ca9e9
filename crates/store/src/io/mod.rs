//! What a store asks of the place where it lies, as two traits: [`Io`] writes files.

mod disk;
mod page;
mod priority;
mod read;
mod write;

pub use disk::Disk;
pub use page::{PAGE, Page};
pub use priority::{go_first, yield_disk};
pub(crate) use read::{forget_pages, read_at};
pub use write::{File, Io, Space};
pub(crate) use write::{write_all, write_pages};
