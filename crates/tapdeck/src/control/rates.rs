//! How much may users ask for?
//!
//! Everybody who may connect may ask, and what is asked for costs time of the one thread that
//! serves all. So each user has an allowance: it grows with time up to a bound, and each request,
//! and each piece of what goes over the socket, costs a part of it. Nothing is refused: who has
//! spent it waits until it has grown again. Operators have no bound.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What an allowance grows by in a second. A request costs 1, an attachment 10.
const PER_SECOND: u32 = 200;
/// The most that an allowance grows to.
const MOST: u32 = 1000;
/// Bytes that cost 1.
const PIECE: usize = 16 << 10;
/// Users of whom an account is kept. With more, those are forgotten who have spent nothing of late.
const USERS: usize = 1024;

/// The allowances of users, by their numbers.
pub(super) struct Rates {
    users: HashMap<u32, Allowance>,
    /// What the accounts' times are relative to.
    began: Instant,
}

/// What a user had at a moment. Less than 0 where they were served before they were charged.
#[derive(Clone, Copy)]
struct Allowance {
    left: f64,
    at: Duration,
}

impl Allowance {
    fn grown(self, now: Duration) -> Self {
        let seconds = now.saturating_sub(self.at).as_secs_f64();
        Self { left: (self.left + seconds * f64::from(PER_SECOND)).min(MOST.into()), at: now }
    }
}

impl Rates {
    pub(super) fn new(now: Instant) -> Self {
        Self { users: HashMap::new(), began: now }
    }

    /// Whether a user has to wait.
    pub(super) fn is_spent(&self, user: u32, now: Instant) -> bool {
        let now = now.saturating_duration_since(self.began);
        self.users.get(&user).is_some_and(|allowance| allowance.grown(now).left < 1.0)
    }

    /// Charges a user for something that was asked.
    pub(super) fn charge(&mut self, user: u32, cost: u32) {
        self.spend(user, cost.into(), Instant::now());
    }

    /// Charges a user for bytes that go over the socket.
    pub(super) fn charge_bytes(&mut self, user: u32, bytes: usize) {
        self.spend(user, bytes as f64 / PIECE as f64, Instant::now());
    }

    fn spend(&mut self, user: u32, cost: f64, now: Instant) {
        let now = now.saturating_duration_since(self.began);
        if self.users.len() >= USERS {
            self.users.retain(|_, allowance| allowance.grown(now).left < MOST.into());
        }
        let full = Allowance { left: MOST.into(), at: now };
        let allowance = self.users.entry(user).or_insert(full);
        *allowance = allowance.grown(now);
        allowance.left -= cost;
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{MOST, PER_SECOND, Rates, USERS};

    #[test]
    fn who_has_spent_the_allowance_waits_and_others_do_not() {
        let began = Instant::now();
        let mut rates = Rates::new(began);
        assert!(!rates.is_spent(7, began), "nothing was asked");
        rates.spend(7, (MOST - 1).into(), began);
        assert!(!rates.is_spent(7, began));
        rates.spend(7, f64::from(PER_SECOND) + 1.0, began);
        assert!(rates.is_spent(7, began) && !rates.is_spent(8, began));
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        assert!(rates.is_spent(7, at(1)), "it owes more than a second's growth");
        assert!(!rates.is_spent(7, at(2)));
        rates.spend(7, (MOST + 1).into(), at(1_000_000));
        assert!(rates.is_spent(7, at(1_000_000)), "it does not grow without bound");
    }

    #[test]
    fn users_who_ask_for_nothing_are_forgotten() {
        let began = Instant::now();
        let mut rates = Rates::new(began);
        for user in 0..3 * USERS as u32 {
            rates.spend(user, 1.0, began + Duration::from_secs(user.into()));
        }
        assert!(rates.users.len() <= USERS + 1);
    }
}
