//! The flags of `tapdeck-remote`, for the program and for what is made of them: manual pages.
#![forbid(unsafe_code)]

mod flags;

use clap::CommandFactory as _;

pub use flags::{Flags, Query, Verb};

/// Returns the command line as clap knows it, for what is made of it: manual pages.
pub fn command_line() -> clap::Command {
    Flags::command()
}
