//! Which losses has the next match of an interface to tell? Those of all packets before it that are
//! not in the answer, whether they were read or are known in sum from an index.

use std::collections::BTreeMap;

use super::order::Rank;
use super::source::Loss;

/// Losses that no packet of the answer has told yet.
#[derive(Default)]
pub struct Losses {
    /// Packets lost since the last match, by interface.
    untold: BTreeMap<u32, u64>,
    /// Losses in granules, each known in sum, that the answer has not come to.
    expected: BTreeMap<Rank, Loss>,
    /// Losses in granules that the answer is in the midst of, by the granules' last times.
    reached: BTreeMap<(i64, Rank), Loss>,
}

impl Losses {
    /// Takes in losses before a packet that is not in the answer.
    pub fn add(&mut self, interface: u32, packets: u64) {
        *self.untold.entry(interface).or_default() += packets;
    }

    /// Takes in losses in granules that need not be read, as it seems.
    pub fn expect(&mut self, losses: Vec<Loss>) {
        self.expected.extend(losses.into_iter().map(|loss| (loss.rank, loss)));
    }

    /// Brings the answer to a match. Returns the granules that have to be read, to know which of
    /// their losses come before the match.
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

    /// Takes the losses that a match of an interface has to tell.
    pub fn take(&mut self, interface: u32) -> u64 {
        self.untold.remove(&interface).unwrap_or(0)
    }
}
