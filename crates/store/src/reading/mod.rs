//! What reads a store: it answers questions, checks, and mends what a crash left.

pub mod query;
pub mod recover;
pub mod stat;
pub mod verify;
