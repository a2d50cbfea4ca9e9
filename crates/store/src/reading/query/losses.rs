//! Losses that the next match of their interface has to tell.

use std::collections::BTreeMap;

use super::source::{Loss, Rank};

#[derive(Default)]
pub struct Losses {
    /// Of each interface, since its last match.
    untold: BTreeMap<u32, u64>,
    /// In sum for a granule each, where the answer has not come to.
    expected: BTreeMap<Rank, Loss>,
    /// Those that it is in the midst of, by their end.
    reached: BTreeMap<(i64, Rank), Loss>,
}

impl Losses {
    /// Before a packet that is not in the answer.
    pub fn add(&mut self, interface: u32, packets: u64) {
        *self.untold.entry(interface).or_default() += packets;
    }

    /// In granules that are not read, as it seems.
    pub fn expect(&mut self, losses: Vec<Loss>) {
        self.expected.extend(losses.into_iter().map(|loss| (loss.rank, loss)));
    }

    /// The answer comes to a match. Gives back of which granules it must be known which losses are
    /// before it.
    pub fn come_to(&mut self, time_ns: i64, interface: u32) -> Vec<Loss> {
        while let Some(entry) = self.expected.first_entry().filter(|e| e.key().bound_ns <= time_ns)
        {
            let (rank, loss) = entry.remove_entry();
            self.reached.insert((loss.last_ns, rank), loss);
        }
        while let Some(entry) = self.reached.first_entry().filter(|e| e.key().0 < time_ns) {
            for (interface, packets) in entry.remove().dropped {
                self.add(interface, packets);
            }
        }
        let tells = |loss: &Loss| loss.dropped.iter().any(|(of, _)| *of == interface);
        let keys: Vec<_> =
            self.reached.iter().filter(|(_, loss)| tells(loss)).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.reached.remove(key)).collect()
    }

    /// Those that a match of an interface has to tell.
    pub fn take(&mut self, interface: u32) -> u64 {
        self.untold.remove(&interface).unwrap_or(0)
    }
}
