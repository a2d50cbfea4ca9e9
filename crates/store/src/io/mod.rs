//! What a store asks of the place where it lies, as two pairs of traits: [`Io`] and [`File`] write,
//! [`Storage`] and [`Object`] read. The file system is the first implementation of both; tests put
//! faults in between.
//!
//! Writing and reading are apart since whoever reads a store must not be able to change it, and may
//! read it where no file system is.

mod ahead;
mod directory;
mod disk;
mod elsewhere;
mod inflate;
mod page;
mod prefetch;
mod priority;
mod read;
mod relay;
mod standard_output;
mod turns;
mod uptime;
mod write;

pub(crate) use directory::object_of;
pub use directory::{Directory, Paths};
pub use disk::Disk;
pub use elsewhere::{Elsewhere, Reader};
pub use inflate::{Inflating, inflate};
pub use page::{PAGE, Page};
pub(crate) use prefetch::prefetch;
pub(crate) use priority::while_yielding_disk;
pub use priority::{go_as_others, go_first, go_first_with_threads, yield_disk, yield_processor};
pub use read::{Access, Object, Owner, State, Storage};
pub use relay::{Relayed, serve};
pub use standard_output::standard_output_was_closed;
pub use uptime::Uptime;
pub use write::{File, Io, Space};
pub(crate) use write::{write_all, write_pages};
