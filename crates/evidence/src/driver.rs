//! Which pins are due, and what is to be done about one that cannot be copied? A driver goes on
//! with the pins of a directory, one after the other, until all spans are over.

use crate::error::Error;
use crate::pin::{Pin, State};
use crate::pins::PinStore;
use crate::time::Time;

/// How long a pin waits that could not be copied.
const RETRY_NS: i64 = 60_000_000_000;

/// Goes on with pins of a directory that are not done.
#[derive(Debug, Default)]
pub struct Driver {
    /// Pins that could not be copied, and when that is tried again.
    failed: Vec<(u64, Time)>,
}

impl Driver {
    /// Copies what is due, of the pins that `takes` says yes to, and tells of each that it is done,
    /// or why it could not be copied or read. Returns when there is more to do; `None` where there
    /// will not be. `watch` ends it by `false`.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn drive(
        &mut self,
        pins: &PinStore,
        takes: impl Fn(&Pin) -> bool,
        mut told: impl FnMut(u64, Result<&Pin, Error>),
        mut watch: impl FnMut() -> bool,
    ) -> Result<Option<Time>, Error> {
        let mut next = None;
        for number in pins.numbers()? {
            let pin = match pins.pin(number) {
                Ok(pin) if takes(&pin) => Ok(pin),
                // It is somebody else's, or was removed meanwhile.
                Ok(_) | Err(Error::NoPin { .. }) => continue,
                Err(e) => Err(e),
            };
            let due = pin.as_ref().map_or(Some(Time(i64::MIN)), Pin::due);
            let Some(due) = due.map(|due| due.max(self.retry(number))) else { continue };
            if due > Time::now() {
                next = Some(earlier(next, due));
                continue;
            }
            self.failed.retain(|(failed, _)| *failed != number);
            match pin.and_then(|_| pins.advance(number, &mut watch)) {
                Ok(pin) if pin.state == State::Open => {
                    next = Some(earlier(next, pin.due().unwrap_or(due)));
                }
                Ok(pin) => told(number, Ok(&pin)),
                Err(Error::Stopped) => return Ok(Some(earlier(next, due))),
                Err(Error::NoPin { .. }) => {}
                Err(e) => {
                    told(number, Err(e));
                    if !matches!(pins.pin(number), Err(Error::NoPin { .. })) {
                        let again = Time::now().plus(RETRY_NS);
                        self.failed.push((number, again));
                        next = Some(earlier(next, again));
                    }
                }
            }
        }
        Ok(next)
    }

    /// Returns before when a pin is not tried again.
    fn retry(&self, number: u64) -> Time {
        let failed = self.failed.iter().find(|(failed, _)| *failed == number);
        failed.map_or(Time(i64::MIN), |(_, again)| *again)
    }
}

fn earlier(next: Option<Time>, other: Time) -> Time {
    next.map_or(other, |next| next.min(other))
}
