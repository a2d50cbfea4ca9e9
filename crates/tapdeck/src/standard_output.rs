//! Standard output: as a place for packets, where `-` on the command line names it, and how wide it
//! is where it is a terminal.

use std::fs::File;
use std::io::{IsTerminal, stdout};
use std::os::fd::AsFd;

use anyhow::{Context, Result, ensure};
use tapdeck_store::io::standard_output_was_closed;

use crate::usage::usage;

/// Standard output's name in messages.
pub const NAME: &str = "standard output";
/// The size of a pipe that anybody may ask for (`pipe-max-size` in proc(5)). With the usual 64 KiB
/// both sides would wait for each other more often.
const PIPE_BYTES: usize = 1 << 20;
/// Columns of a text where there is no terminal.
const COLUMNS: usize = 80;

/// Returns the columns of the terminal, or of a page where there is none.
pub fn columns() -> usize {
    let out = stdout();
    let size = out.is_terminal().then(|| rustix::termios::tcgetwinsize(&out).ok()).flatten();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

pub fn refuse_terminal() -> Result<()> {
    if rustix::termios::isatty(stdout()) {
        let text = "standard output is a terminal, which cannot show binary data: pipe it into a program, or name a file with -w";
        return usage(text);
    }
    Ok(())
}

/// Returns standard output as a file. Rust's own keeps back bytes that no end of line follows.
pub fn open() -> Result<File> {
    ensure!(
        !standard_output_was_closed(),
        "standard output is closed: pipe it into a program, or name a file with -w"
    );
    let file = stdout().as_fd().try_clone_to_owned().context("cannot write to standard output")?;
    // What is no pipe has no such size, and a pipe that may not grow works as it is.
    let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_BYTES);
    Ok(file.into())
}
