//! `tapdeck top`: what goes on, on one screen?
//!
//! Threads ask the recorder or daemon over its control socket ([`asker`]) and put what they learn on
//! a [`board`], so that the screen never waits for them. What is known becomes lines in [`page`], by
//! way of [`tables`]; [`view`] has what the person at the screen wants to see of it, and
//! [`terminal`] is the only place that knows how lines come to a screen. `--once` prints the same
//! lines as plain text.

mod answer;
mod asker;
mod board;
mod page;
mod style;
mod table;
mod tables;
mod terminal;
mod view;

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ratatui::crossterm::event::{Event, poll, read};

use self::asker::Asker;
use self::board::{Board, Known};
use self::terminal::Screen;
use self::view::{Tab, View, Wish};
use crate::control::recorder_path;
use crate::flags;
use crate::interrupt::Interrupt;
use crate::standard_output;

/// How often signals are looked at.
const SIGNALS: Duration = Duration::from_millis(100);

/// Who is watched.
pub struct Target {
    pub socket: PathBuf,
    pub dir: Option<PathBuf>,
}

impl Target {
    fn of(flags: &flags::Top) -> Result<Self> {
        if let Some(dir) = &flags.dir {
            ensure!(dir.is_dir(), "{} is not a directory", dir.display());
        }
        let socket = match (&flags.socket, &flags.dir) {
            (Some(path), _) => path.clone(),
            (None, Some(dir)) => recorder_path(dir),
            (None, None) => tapdeck_client::default_socket(),
        };
        Ok(Self { socket, dir: flags.dir.clone() })
    }

    fn name(&self) -> String {
        let path = self.dir.as_ref().unwrap_or(&self.socket);
        tapdeck_packet::printable::name(&path.display().to_string()).into_owned()
    }
}

/// Shows what goes on until the person at the terminal has seen enough, or once.
pub fn run(flags: &flags::Top) -> Result<()> {
    if !flags.once {
        terminal::require()?;
    }
    let target = Target::of(flags)?;
    let board = Arc::new(Board::default());
    let mut asker = Asker::new(target.socket.clone());
    match asker.ask() {
        Ok(answer) => board.answered(answer),
        Err(e) => return Err(e),
    }
    if flags.once {
        thread::sleep(flags.interval);
        asker.ask_for(&board);
        return print(&target, &board.known());
    }
    let interrupt = Interrupt::listen()?;
    let (of_asker, interval) = (board.clone(), flags.interval);
    thread::Builder::new()
        .name("tapdeck-ask".into())
        .spawn(move || asker.run(&of_asker, interval))
        .context("cannot start a thread")?;
    watch(&target, &board, flags.interval, &interrupt)
}

fn print(target: &Target, known: &Known) -> Result<()> {
    let mut out = stdout().lock();
    for line in page::plain(target, known, standard_output::columns()) {
        writeln!(out, "{}", line.to_string().trim_end())?;
    }
    Ok(out.flush()?)
}

fn watch(target: &Target, board: &Board, every: Duration, interrupt: &Interrupt) -> Result<()> {
    let mut screen = Screen::take()?;
    let mut view = View::new();
    loop {
        let size = screen.size()?;
        let known = view.paused.as_ref().map_or_else(|| board.known(), |(known, _)| known.clone());
        screen.show(page::screen(target, &view, &known, size))?;
        let due = Instant::now() + every.min(Duration::from_secs(1));
        loop {
            if interrupt.asked() {
                return Ok(());
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if !poll(left.min(SIGNALS)).context("cannot read from the terminal")? {
                continue;
            }
            let key = match read().context("cannot read from the terminal")? {
                Event::Key(key) => key,
                Event::Resize(..) => break,
                _ => continue,
            };
            let columns = view.tab(&Tab::all(&known)).map_or(0, |tab| tables::columns(tab).len());
            let rows = page::rows_shown(target, &known, size);
            match view.key(key, &board.known(), columns, rows) {
                Wish::Nothing => continue,
                Wish::Redraw => {}
                Wish::Stop => screen.stop()?,
                Wish::Quit => return Ok(()),
            }
            break;
        }
    }
}
