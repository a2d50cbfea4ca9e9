//! What is known at the moment? Threads that ask and read put it here, and the screen takes it, so
//! that the screen never waits for either.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::answer::Answer;

/// How many rates are remembered for the chart.
pub const HISTORY: usize = 240;

/// All that is known at a moment.
#[derive(Clone, Default)]
pub struct Known {
    /// The latest answer of the recorder or daemon.
    pub answer: Option<Arc<Answer>>,
    /// Why there is no answer, or none any more, and since when.
    pub silence: Option<(Arc<str>, SystemTime)>,
    /// Packets in a second, one value for each answer, the latest last.
    pub history: Arc<Vec<f64>>,
}

/// Where it is put.
#[derive(Default)]
pub struct Board(Mutex<Known>);

impl Board {
    pub fn known(&self) -> Known {
        self.lock().clone()
    }

    /// Puts an answer up.
    pub fn answered(&self, answer: Answer) {
        let mut known = self.lock();
        if let Some(rate) = answer.rate {
            let mut history = known.history.to_vec();
            history.push(rate.packets);
            let excess = history.len().saturating_sub(HISTORY);
            known.history = Arc::new(history.split_off(excess));
        }
        known.answer = Some(Arc::new(answer));
        known.silence = None;
    }

    /// Says that nobody answers. The time is that of the first look at which nobody did.
    pub fn silent(&self, why: &str) {
        let mut known = self.lock();
        let since = known.silence.as_ref().map_or_else(SystemTime::now, |(_, since)| *since);
        known.silence = Some((why.into(), since));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
