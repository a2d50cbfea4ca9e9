//! What a person at a terminal is told while something goes on: lines that stay, and one line that
//! changes.
//!
//! All of it goes to standard error. Where nobody can be told, the work goes on all the same.

use std::io::{self, IsTerminal, Read, Write, stderr};
use std::time::{Duration, Instant};

use tapdeck_packet::printable;

use crate::messages::{self, Level, Teller};
use crate::outlet::{Outlet, PATIENCE};
use crate::units::show_bytes;

/// Tells something that stays. An error is left alone: the work goes on where nobody can be told.
pub fn say(text: &str) {
    tell(Level::Info, text);
}

fn tell(level: Level, text: &str) {
    if messages::are_lines() {
        let _ = writeln!(stderr(), "tapdeck: {}", printable::lines(text));
    } else {
        messages::tell(level, text);
    }
}

/// Tells why the program ends, and does not wait for long where nobody reads it.
pub fn say_last(text: &str) {
    let text = text.to_owned();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let write = move || {
        tell(Level::Error, &text);
        drop(done);
    };
    if std::thread::Builder::new().name("tapdeck-last".into()).spawn(write).is_ok() {
        let _ = is_done.recv_timeout(PATIENCE);
    }
}

/// The live line of a recorder or a daemon, with lines that stay above it. Whoever tells does not
/// wait for a reader.
pub struct LiveLine {
    terminal: bool,
    shown: bool,
    outlet: Outlet,
}

impl LiveLine {
    /// Starts the thread that writes.
    pub fn new() -> io::Result<Self> {
        let tell_dropped = |lines: u64| {
            say(&format!("{lines} lines were dropped here, as nobody read them"));
        };
        let are_lines = messages::are_lines();
        let out: Box<dyn Write + Send> =
            if are_lines { Box::new(stderr()) } else { Box::new(Teller) };
        let outlet = Outlet::start("tapdeck-report", out, Some(Box::new(tell_dropped)))?;
        Ok(Self { terminal: are_lines && stderr().is_terminal(), shown: false, outlet })
    }

    /// Tells something that stays. The live line comes again below it.
    pub fn say(&mut self, level: Level, text: &str) {
        if !messages::are_lines() {
            return self.outlet.send(messages::packed(level, text));
        }
        let clear = if self.shown { "\r\x1b[K" } else { "" };
        self.shown = false;
        self.outlet.send(format!("{clear}tapdeck: {}\n", printable::lines(text)).into_bytes());
    }

    /// Waits until everything is written, but not for long.
    pub fn finish(&self) {
        self.outlet.finish();
    }

    /// Shows the live line; nothing where there is no terminal.
    pub fn show(&mut self, text: &str) {
        if self.terminal {
            let text = printable::name(text);
            let line = format!("\r\x1b[K{text}").into_bytes();
            self.shown |= self.outlet.send_if_idle(line);
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
        let terminal = messages::are_lines() && stderr().is_terminal();
        Self { terminal, shown: false, next }
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
