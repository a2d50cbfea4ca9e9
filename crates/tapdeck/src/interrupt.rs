//! Ctrl-C, while something must be brought to an orderly end.
//!
//! `record` has signals of its own: a second one there means a hurry.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

/// Whether somebody asked for the end, by SIGINT, SIGTERM or SIGQUIT. A second signal before the
/// first was heard ends the program at once.
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    ever: Cell<bool>,
}

impl Interrupt {
    const EXIT_CODE: i32 = 130;

    pub fn listen() -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGQUIT] {
            flag::register_conditional_shutdown(signal, Self::EXIT_CODE, asked.clone())
                .and_then(|_| flag::register(signal, asked.clone()))
                .context("cannot listen for signals")?;
        }
        Ok(Self { asked, ever: Cell::new(false) })
    }

    pub fn asked(&self) -> bool {
        let asked = self.asked.load(Relaxed);
        self.ever.set(self.ever.get() || asked);
        asked
    }

    /// Returns what says whether somebody asked for the end, for those that wait elsewhere.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.asked.clone()
    }

    /// Returns whether somebody asked for the end at any time, also where that was heard.
    pub fn ever_asked(&self) -> bool {
        self.asked() || self.ever.get()
    }

    /// Takes note that the signal was heard. The next one is a new wish.
    pub fn heard(&self) {
        self.asked();
        self.asked.store(false, Relaxed);
    }
}
