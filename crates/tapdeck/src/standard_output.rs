//! Standard output, as packets go into it.

use std::fs::File;
use std::io::stdout;
use std::os::fd::AsFd;

use anyhow::{Context, Result};

use crate::usage::usage;

/// What messages call it.
pub const NAME: &str = "standard output";
/// What anybody may have of a pipe (`pipe-max-size` in proc(5)); usual are 64 KiB, for which both
/// sides would wait for each other more often.
const PIPE_BYTES: usize = 1 << 20;

pub fn refuse_terminal() -> Result<()> {
    if rustix::termios::isatty(stdout()) {
        let text = "standard output is a terminal, which cannot show binary data: pipe it into a program, or name a file with -w";
        return usage(text);
    }
    Ok(())
}

/// Rust's own keeps back what has no end of line.
pub fn open() -> Result<File> {
    let file = stdout().as_fd().try_clone_to_owned().context("cannot write to standard output")?;
    // What is no pipe cannot have more, and a pipe that may not works as it is.
    let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_BYTES);
    Ok(file.into())
}
