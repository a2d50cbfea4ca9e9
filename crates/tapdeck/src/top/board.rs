//! What is known at the moment? Threads that ask and read put it here, and the screen takes it, so
//! that the screen never waits for either.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tapdeck_packet::printable;

use super::answer::{Answer, Of};
use super::store::{Minute, Whole};

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
    /// What the store holds, if there is one that was looked at.
    pub whole: Option<Arc<Whole>>,
    pub minute: Option<Arc<Minute>>,
    /// Why the store cannot be read.
    pub store_fault: Option<Arc<str>>,
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
        known.silence = Some((printable::name(why).into(), since));
    }

    pub fn store_is(&self, whole: Whole) {
        self.lock().whole = Some(Arc::new(whole));
    }

    pub fn minute_is(&self, minute: Minute) {
        let mut known = self.lock();
        known.minute = Some(Arc::new(minute));
        known.store_fault = None;
    }

    pub fn store_fails(&self, why: &str) {
        self.lock().store_fault = Some(printable::name(why).into());
    }

    /// Whether a recorder answers.
    pub fn is_recording(&self) -> bool {
        let known = self.lock();
        let is_recorder = |answer: &Arc<Answer>| matches!(answer.of, Of::Recorder(_));
        known.silence.is_none() && known.answer.as_ref().is_some_and(is_recorder)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
