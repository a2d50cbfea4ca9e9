//! Ctrl-C while something must be brought to an orderly end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether somebody asked for the end. Whoever asks again before it was heard ends the program at
/// once.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    const EXIT_CODE: i32 = 130;

    pub fn listen() -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, Self::EXIT_CODE, asked.clone())
                .and_then(|_| flag::register(signal, asked.clone()))
                .context("cannot listen for signals")?;
        }
        Ok(Self(asked))
    }

    pub fn asked(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// It was heard; what is asked from now on is a new wish.
    pub fn heard(&self) {
        self.0.store(false, Relaxed);
    }
}
