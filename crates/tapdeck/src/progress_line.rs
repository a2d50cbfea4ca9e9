//! What a person at a terminal is told while something goes on: lines that stay, and one line that
//! changes.
//!
//! All of it goes to standard error. Where nobody can be told, the work goes on all the same.

use std::io::{self, IsTerminal, Read, Write, stderr};
use std::time::{Duration, Instant};

use tapdeck_packet::printable;

use crate::units::show_bytes;

/// Writes a line that stays. An error is left alone: the work goes on where nobody can be told.
pub fn say(text: &str) {
    let _ = writeln!(stderr(), "tapdeck: {}", printable::lines(text));
}

/// The live line of a recorder or a daemon, with lines that stay above it.
pub struct LiveLine {
    terminal: bool,
    shown: bool,
}

impl LiveLine {
    pub fn new() -> Self {
        Self { terminal: stderr().is_terminal(), shown: false }
    }

    /// Writes a line that stays. The live line comes again below it.
    pub fn say(&mut self, text: &str) {
        let clear = if self.shown { "\r\x1b[K" } else { "" };
        self.shown = false;
        // The work goes on where nobody can be told.
        let _ = writeln!(stderr(), "{clear}tapdeck: {}", printable::lines(text));
    }

    /// Shows the live line; nothing where there is no terminal.
    pub fn show(&mut self, text: &str) {
        if self.terminal {
            self.shown = true;
            let mut out = stderr();
            let text = printable::name(text);
            let _ = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
        }
    }
}

/// A line that shows how far some work is, at most four times a second; nothing where there is no
/// terminal. Dropping it removes the line.
pub struct ProgressLine {
    terminal: bool,
    shown: bool,
    next: Instant,
}

impl ProgressLine {
    const EVERY: Duration = Duration::from_millis(250);

    pub fn new() -> Self {
        let next = Instant::now() + Self::EVERY;
        Self { terminal: stderr().is_terminal(), shown: false, next }
    }

    pub fn show(&mut self, text: impl FnOnce() -> String) {
        if !self.terminal || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + Self::EVERY;
        self.shown = true;
        let mut out = stderr();
        let text = text();
        let text = printable::name(&text);
        let _ = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

/// An input that shows on a [`ProgressLine`] how much of it has been read.
pub struct Watched<R> {
    input: R,
    name: String,
    read: u64,
    /// Bytes of the whole input, where that is known.
    total: Option<u64>,
    progress: ProgressLine,
}

impl<R: Read> Watched<R> {
    pub fn new(input: R, name: &str, total: Option<u64>) -> Self {
        Self { input, name: name.to_owned(), read: 0, total, progress: ProgressLine::new() }
    }
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.read += n as u64;
        let Self { name, read, total, progress, .. } = self;
        progress.show(|| match total {
            Some(total) => format!("{name}: {} of {}", show_bytes(*read), show_bytes(*total)),
            None => format!("{name}: {}", show_bytes(*read)),
        });
        Ok(n)
    }
}
