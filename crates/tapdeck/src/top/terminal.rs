//! The terminal, taken for a full screen and given back as it was, however the program ends.

use std::io::{self, BufWriter, IsTerminal, Stdout, stdout};
use std::{process, thread};

use anyhow::{Context, Result};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::text::Line;
use rustix::process::{Signal, getpid, kill_process};

use super::style::uncolour;
use crate::usage::usage;

/// The exit code of a program that has panicked.
const PANIC: i32 = 101;
/// That of one that was hung up.
const HANGUP: i32 = 129;

/// The screen while it is ours. What changes is sent in one go.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    has_colours: bool,
}

/// Says what is missing where standard output cannot be a full screen.
pub fn require() -> Result<()> {
    if !stdout().is_terminal() {
        return usage("standard output is no terminal: tapdeck top --once prints plain text");
    }
    let kind = std::env::var("TERM").unwrap_or_default();
    if matches!(kind.as_str(), "" | "dumb") {
        let text = "cannot show a full screen: tapdeck top --once prints plain text";
        return usage(format!("a terminal of the kind \"{kind}\" (TERM) {text}"));
    }
    Ok(())
}

impl Screen {
    /// Takes the terminal. It is given back when this is dropped, and before a panic is told.
    pub fn take() -> Result<Self> {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            give_back();
            tell(info);
            // Nobody draws on a terminal that was given back.
            if thread::current().name() != Some("main") {
                process::exit(PANIC);
            }
        }));
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        take().inspect_err(|_| give_back()).context("cannot use the terminal")?;
        let terminal = Terminal::new(CrosstermBackend::new(BufWriter::new(stdout())))
            .inspect_err(|_| give_back())
            .context("cannot use the terminal")?;
        Ok(Self { terminal, has_colours })
    }

    /// Returns columns and rows.
    pub fn size(&self) -> Result<(usize, usize)> {
        let size = self.terminal.size().context("the terminal is gone")?;
        Ok((size.width.into(), size.height.into()))
    }

    /// Shows lines, and sends only what is not there already.
    pub fn show(&mut self, mut lines: Vec<Line<'static>>) -> Result<()> {
        if !self.has_colours {
            uncolour(&mut lines);
        }
        let drawn = self.terminal.draw(|frame| {
            let area = frame.area();
            for (line, row) in lines.iter().zip(area.rows()) {
                frame.buffer_mut().set_line(row.x, row.y, line, row.width);
            }
        });
        drawn.map(|_| ()).context("cannot write to the terminal")
    }

    /// Draws everything anew at the next [`Screen::show`].
    pub fn forget(&mut self) -> Result<()> {
        self.terminal.clear().context("cannot write to the terminal")
    }

    /// Stops the process, as Ctrl-Z does elsewhere, until somebody lets it go on.
    pub fn stop(&mut self) -> Result<()> {
        give_back();
        kill_process(getpid(), Signal::TSTP).context("cannot stop")?;
        take().context("cannot use the terminal")?;
        self.forget()
    }
}

/// Gives the terminal back and ends the program, as one that was hung up.
pub fn leave() -> ! {
    give_back();
    process::exit(HANGUP);
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// Gives the terminal back. Where that fails, it is gone.
fn give_back() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
