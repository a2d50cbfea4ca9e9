//! `tapdeck top`: what goes on, on one screen?
//!
//! Threads ask the recorder or daemon over its control socket ([`asker`]) and read the store
//! ([`store`], [`tally`]), and put what they learn on a [`board`], so that the screen never waits
//! for them. What is known becomes lines in [`page`], by way of [`tables`]; [`view`] has what the
//! person at the screen wants to see of it, and [`terminal`] is the only place that knows how lines
//! come to a screen. `--once` prints the same lines as plain text.

mod answer;
mod asker;
mod board;
mod page;
mod store;
mod style;
mod table;
mod tables;
mod tally;
mod terminal;
mod view;

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ratatui::crossterm::event::{Event, poll, read};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use self::asker::Asker;
use self::board::{Board, Known};
use self::store::StoreReader;
use self::terminal::Screen;
use self::view::{Tab, View, Wish};
use crate::control::recorder_path;
use crate::flags;
use crate::interrupt::Interrupt;
use crate::standard_output;

/// How often signals are looked at.
const SIGNALS: Duration = Duration::from_millis(100);

/// The recorder, daemon or store that is watched.
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
        // What the store holds can be told without its recorder.
        Err(e) if target.dir.is_some() && asker.is_heard() => board.silent(&format!("{e:#}")),
        Err(_) if target.dir.is_some() => {}
        Err(e) => return Err(e),
    }
    let reader = target.dir.as_deref().map(StoreReader::new);
    if flags.once {
        return once(&target, &board, asker, reader, flags.interval);
    }
    let interrupt = Interrupt::listen()?;
    let mut hangups = Signals::new([SIGHUP]).context("cannot listen for signals")?;
    start("tapdeck-hangup", move || {
        // Whoever reads from a terminal that is gone may not come back.
        if hangups.forever().next().is_some() {
            terminal::leave();
        }
    })?;
    let interval = flags.interval;
    let of_asker = board.clone();
    start("tapdeck-ask", move || asker.run(&of_asker, interval))?;
    if let Some(reader) = reader {
        let of_reader = board.clone();
        start("tapdeck-read", move || reader.run(&of_reader, interval))?;
    }
    watch(&target, &board, flags.interval, &interrupt)
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name(name.into()).spawn(run);
    thread.map(|_| ()).context("cannot start a thread")
}

/// Prints what an interval has brought.
fn once(
    target: &Target,
    board: &Board,
    mut asker: Asker,
    reader: Option<StoreReader>,
    interval: Duration,
) -> Result<()> {
    if board.known().answer.is_some() {
        thread::sleep(interval);
        asker.ask_for(board);
    }
    if let Some(mut reader) = reader {
        reader.look(board)?;
    }
    print(target, &board.known())
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
            let last =
                view.tab(&Tab::all(&known)).map_or(0, |tab| page::last_first(tab, &known, rows));
            view.first_row = view.first_row.min(last);
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
