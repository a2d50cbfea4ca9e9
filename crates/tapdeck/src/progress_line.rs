//! What a person at a terminal is told while something goes on: lines that stay, and one line that
//! changes.
//!
//! All of it goes to standard error. Where nobody can be told, the work goes on all the same.

use std::io::{self, IsTerminal, Read, Write, stderr};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tapdeck_packet::printable;

use crate::messages::{self, Level, Teller};
use crate::outlet::{LATE, Outlet, PATIENCE};
use crate::units::{counted, show_bytes};

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
    let (begun, goes_on) = mpsc::channel::<()>();
    let write = move || {
        let _ = begun.send(());
        tell(Level::Error, &text);
    };
    if std::thread::Builder::new().name("tapdeck-last".into()).spawn(write).is_ok() {
        // On a busy machine the thread itself may come late.
        let _ = goes_on.recv_timeout(PATIENCE * LATE);
        // This ends with the thread.
        let _ = goes_on.recv_timeout(PATIENCE);
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
            say(&format!("{} dropped here, as nobody read them", counted(lines, "line")));
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

impl ProgressLine {
    /// Removes the line, until it is shown again: something else is to be said.
    pub fn clear(&mut self) {
        if std::mem::replace(&mut self.shown, false) {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The progress line of work on so many bytes: how many are done, how fast, and for how long it
/// will still go on like that.
pub struct Work {
    line: ProgressLine,
    began: Instant,
    total: Option<u64>,
}

impl Work {
    /// Begins work on `total` bytes, where that is known.
    pub fn new(total: Option<u64>) -> Self {
        Self { line: ProgressLine::new(), began: Instant::now(), total }
    }

    /// Shows how far the work is, behind what else is to be said.
    pub fn show(&mut self, done: u64, what: impl FnOnce() -> String) {
        let (began, total) = (self.began, self.total);
        self.line.show(|| {
            let pace = pace(done, total, began.elapsed());
            let what = what();
            if what.is_empty() { pace } else { format!("{what}, {pace}") }
        });
    }

    pub fn clear(&mut self) {
        self.line.clear();
    }
}

/// Says how far some work is: `1.0 GiB of 4.0 GiB, 512.0 MiB/s, 6 s left`.
pub fn pace(done: u64, total: Option<u64>, took: Duration) -> String {
    let rate = done as f64 / took.as_secs_f64().max(0.001);
    let how_far = match total {
        Some(total) => format!("{} of {}", show_bytes(done), show_bytes(total)),
        None => show_bytes(done),
    };
    let mut words = vec![how_far, format!("{}/s", show_bytes(rate as u64))];
    // What was measured for a moment only foretells nothing.
    if let Some(total) = total
        && took >= Duration::from_secs(1)
        && rate >= 1.0
    {
        let left_s = (total.saturating_sub(done) as f64 / rate).ceil() as u64;
        words.push(match left_s {
            0..100 => format!("{left_s} s left"),
            100..6000 => format!("{} min left", left_s.div_ceil(60)),
            _ => format!("{} h left", left_s.div_ceil(3600)),
        });
    }
    words.join(", ")
}

/// An input that shows on a [`ProgressLine`] how much of it has been read.
pub struct Watched<R> {
    input: R,
    name: String,
    read: u64,
    progress: Work,
}

impl<R: Read> Watched<R> {
    pub fn new(input: R, name: &str, total: Option<u64>) -> Self {
        Self { input, name: name.to_owned(), read: 0, progress: Work::new(total) }
    }
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.read += n as u64;
        self.progress.show(self.read, || self.name.clone());
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::pace;

    #[test]
    fn the_pace_tells_the_rate_and_what_is_left() {
        const GIB: u64 = 1 << 30;
        for (done, total, took_ms, expected) in [
            (GIB, Some(4 * GIB), 2000, "1.0 GiB of 4.0 GiB, 512.0 MiB/s, 6 s left"),
            (GIB, Some(4 * GIB), 100_000, "1.0 GiB of 4.0 GiB, 10.2 MiB/s, 5 min left"),
            (GIB, Some(4 * GIB), 4_000_000, "1.0 GiB of 4.0 GiB, 262.1 KiB/s, 4 h left"),
            (GIB, Some(GIB), 2000, "1.0 GiB of 1.0 GiB, 512.0 MiB/s, 0 s left"),
            (GIB, None, 2000, "1.0 GiB, 512.0 MiB/s"),
            (GIB, Some(4 * GIB), 500, "1.0 GiB of 4.0 GiB, 2.0 GiB/s"),
            (0, Some(GIB), 5000, "0 B of 1.0 GiB, 0 B/s"),
        ] {
            assert_eq!(pace(done, total, Duration::from_millis(took_ms)), expected);
        }
    }
}
