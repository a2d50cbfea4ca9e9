//! Copies what pins want that users have had made.
//!
//! One thread does it for all stores, with the lowest priority that it may have: it delays no
//! answer and no recorder. It goes on with what an earlier gateway left, when the gateway starts,
//! and with pins whose spans are not over, each minute. What others pin in the same directory
//! (`tapdeck pin`, `tapdeck watch-alerts`) is theirs to copy: the filters of users were tried
//! before they came here ([`crate::check`]), theirs were not.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tapdeck_evidence::{Driver, Error, Pin, PinStore, Time};
use tokio_util::sync::CancellationToken;

use crate::audit::Pinned;
use crate::config::SourceKind;
use crate::routes::Gateway;
use crate::say;

/// How long it rests where nothing is due and nobody rings.
const REST: Duration = Duration::from_secs(3600);
/// How long it rests where a directory of pins could not be read.
const AGAIN: Duration = Duration::from_secs(60);

/// Wakes somebody who rests.
#[derive(Debug, Default)]
pub struct Bell {
    is_rung: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    pub fn ring(&self) {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rung.notify_one();
    }

    /// Rests until somebody rings, or has since the last rest, and no longer than so.
    fn rest(&self, most: Duration) {
        let is_rung = self.is_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(is_rung, most, |is_rung| !*is_rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// Begins to copy, until the gateway ends.
pub fn start(gateway: Arc<Gateway>) -> io::Result<JoinHandle<()>> {
    end_with(gateway.ending.clone(), move || copy(&gateway))
}

/// Begins a thread that ends the gateway when it ends itself, also by a panic: pins would be made
/// that nobody copies.
fn end_with(
    ending: CancellationToken,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("pins".into()).spawn(move || {
        let _end = ending.drop_guard();
        work();
    })
}

fn copy(gateway: &Gateway) {
    // Where this is refused, the thread is as polite as the gateway.
    let _ = rustix::process::nice(19);
    let stores = gateway.sources.iter().filter_map(|source| match &source.kind {
        SourceKind::Store { directory, pins } => {
            Some((&*source.name, pins.place(directory), Driver::default()))
        }
        SourceKind::Daemon => None,
    });
    let mut stores: Vec<_> = stores.collect();
    while !gateway.ending.is_cancelled() {
        let mut rest = REST;
        for (store, place, driver) in &mut stores {
            rest = rest.min(drive(gateway, store, place, driver));
        }
        gateway.pinned.rest(rest);
    }
}

/// Copies what is due in a directory. Returns how long nothing will be.
fn drive(gateway: &Gateway, store: &str, place: &Path, driver: &mut Driver) -> Duration {
    let is_ordered = |pin: &Pin| pin.order.is_some();
    let told = |number, outcome: Result<&Pin, Error>| match outcome {
        Ok(pin) => tell(gateway, store, pin),
        Err(e) => say(&format!("pin {number} of {store}: {:#}", anyhow::Error::from(e))),
    };
    let watch = || !gateway.ending.is_cancelled();
    let driven =
        PinStore::open(place).and_then(|pins| driver.drive(&pins, is_ordered, told, watch));
    match driven {
        // Without a directory nobody has pinned anything.
        Ok(None) | Err(Error::NoPins(_)) => REST,
        Ok(Some(due)) => Duration::from_nanos(due.0.saturating_sub(Time::now().0).max(0) as u64),
        Err(e) => {
            say(&format!("pins of {store}: {:#}", anyhow::Error::from(e)));
            AGAIN
        }
    }
}

/// Writes down what became of a pin.
fn tell(gateway: &Gateway, store: &str, pin: &Pin) {
    let Some(order) = &pin.order else { return };
    let pinned = Pinned {
        who: &order.by,
        store,
        pin: pin.number,
        packets: pin.packets,
        bytes: pin.bytes,
        result: pin.state.word(),
    };
    if let Some(audit) = &gateway.audit
        && let Err(e) = audit.pinned(&pinned)
    {
        say(&format!("the audit cannot be written: {e}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use super::{Bell, end_with};

    #[test]
    fn a_thread_that_fails_ends_the_gateway() {
        let ending = CancellationToken::new();
        let failing = end_with(ending.clone(), || panic!("as it should")).expect("a thread");
        failing.join().expect_err("it has failed");
        assert!(ending.is_cancelled());
    }

    #[test]
    fn who_rings_before_somebody_rests_is_heard() {
        let bell = Arc::new(Bell::default());
        bell.ring();
        bell.rest(Duration::MAX);
        let resting = bell.clone();
        let rests = thread::spawn(move || resting.rest(Duration::from_secs(3600)));
        bell.ring();
        rests.join().expect("it was woken");
    }
}
