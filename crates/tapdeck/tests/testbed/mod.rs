//! Programs under test on a cable: a recorder, a daemon and its members.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod bench;
pub mod daemon;
pub mod later;
pub mod recorder;
