//! What reads a store: it answers questions, checks, and mends what a crash left.
//!
//! All but mending reads through [`Storage`](crate::io::Storage) alone, changes nothing, and needs
//! no leave of a recorder that writes meanwhile.

pub mod choice;
pub mod filter;
pub mod holes;
pub mod query;
pub mod recent;
pub mod recorded;
pub mod recover;
pub mod stat;
pub mod verify;
pub mod walk;
