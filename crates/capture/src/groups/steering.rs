//! Which member of a group gets a packet?
//!
//! The kernel makes a number of each packet (`bpf/steer.h`) and looks it up in a table of slots,
//! whose owners are chosen here. [`Shares`] is that table's other half: who owns which slot, by
//! weight, so that as few as possible change hands when somebody comes or leaves.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::str::FromStr;

/// The most that a member may weigh, so that none can take all of its group from the others.
pub const MAX_WEIGHT: u32 = 100;

/// What a group keeps together. The order is that of `enum td_steering`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Steering {
    /// A flow, both directions: addresses, ports and protocol of the innermost packet.
    Flow,
    /// All that two hosts say to each other.
    IpPair,
    /// All that comes from one address.
    Source,
    /// All that goes to one address.
    Destination,
    /// All of a host: a copy to the owner of each end.
    BothEnds,
    /// Frames between two Ethernet addresses.
    Mac,
    /// A VLAN.
    Vlan,
    /// The order of arrival: members take turns.
    RoundRobin,
    /// What one receive queue received.
    Queue,
    /// Everything: each member gets a copy of each packet.
    Copy,
}

impl Steering {
    pub const ALL: [Self; 10] = [
        Self::Flow,
        Self::IpPair,
        Self::Source,
        Self::Destination,
        Self::BothEnds,
        Self::Mac,
        Self::Vlan,
        Self::RoundRobin,
        Self::Queue,
        Self::Copy,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::IpPair => "ip-pair",
            Self::Source => "src",
            Self::Destination => "dst",
            Self::BothEnds => "both-ends",
            Self::Mac => "mac",
            Self::Vlan => "vlan",
            Self::RoundRobin => "round-robin",
            Self::Queue => "queue",
            Self::Copy => "copy",
        }
    }

    /// Returns the number in `enum td_steering`.
    pub(super) fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No steering has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no steering is named {name:?}; there are: {}", Steering::ALL.map(Steering::name).join(", "))]
pub struct NoSteering {
    pub name: String,
}

impl FromStr for Steering {
    type Err = NoSteering;

    fn from_str(name: &str) -> Result<Self, NoSteering> {
        Self::ALL
            .into_iter()
            .find(|steering| steering.name() == name)
            .ok_or_else(|| NoSteering { name: name.to_owned() })
    }
}

/// Slots of a group (`TD_SLOTS`).
pub(super) const SLOTS: usize = 1 << 13;

/// A member's number plus one; 0: nobody.
pub(super) type Owner = u16;

/// The table of a group.
#[derive(Debug)]
pub(super) struct Shares {
    steering: Steering,
    weights: BTreeMap<Owner, u32>,
    slots: Vec<Owner>,
    listed: usize,
}

impl Shares {
    pub(super) fn new(steering: Steering) -> Self {
        Self { steering, weights: BTreeMap::new(), slots: vec![0; SLOTS], listed: 0 }
    }

    /// The table of a group whose programs have this one already. Slots of members that are not
    /// there any more go to others, and members that have none get some.
    pub(super) fn adopt(
        steering: Steering,
        weights: BTreeMap<Owner, u32>,
        (slots, listed): (Vec<Owner>, usize),
    ) -> Self {
        let mut shares = Self { steering, weights, slots, listed };
        match steering {
            Steering::Copy => {
                let mut met = BTreeSet::new();
                let weights = &shares.weights;
                for (at, slot) in shares.slots.iter_mut().enumerate() {
                    if at >= listed || !weights.contains_key(slot) || !met.insert(*slot) {
                        *slot = 0;
                    }
                }
                shares.remove(&[]);
                let rest = shares.weights.clone().into_iter();
                for (owner, weight) in rest.filter(|(owner, _)| !met.contains(owner)) {
                    shares.add(owner, weight);
                }
            }
            Steering::RoundRobin | Steering::Queue => shares.take_turns(),
            _ => {
                shares.listed = 0;
                shares.inherit();
                let held = shares.held();
                for owner in held.iter().filter(|(_, n)| **n == 0).map(|(owner, _)| *owner) {
                    shares.give(owner);
                }
            }
        }
        shares
    }

    /// The table as the kernel gets it.
    pub(super) fn slots(&self) -> &[Owner] {
        &self.slots
    }

    /// Returns how many slots are in use, where they are a list.
    pub(super) fn listed(&self) -> u32 {
        self.listed as u32
    }

    /// Returns the only member, where there is one that gets everything; else 0.
    pub(super) fn sole(&self) -> Owner {
        match (self.weights.len(), self.weights.first_key_value()) {
            (1, Some((&owner, _))) => owner,
            _ => 0,
        }
    }

    /// Returns how many slots the kernel may look at: it looks at the first even where none is
    /// listed.
    pub(super) fn used(&self) -> usize {
        match self.steering {
            Steering::Copy | Steering::RoundRobin | Steering::Queue => self.listed.max(1),
            _ => SLOTS,
        }
    }

    pub(super) fn members(&self) -> usize {
        self.weights.len()
    }

    /// Adds a member, with a weight of at least 1.
    pub(super) fn add(&mut self, owner: Owner, weight: u32) {
        self.weights.insert(owner, weight.max(1));
        match self.steering {
            Steering::Copy => {
                let hole = self.slots.iter().position(|slot| *slot == 0).unwrap_or(0);
                self.slots[hole] = owner;
                self.listed = self.listed.max(hole + 1);
            }
            Steering::RoundRobin | Steering::Queue => self.take_turns(),
            _ => self.give(owner),
        }
    }

    /// Removes members. The others keep their slots.
    pub(super) fn remove(&mut self, owners: &[Owner]) {
        for owner in owners {
            self.weights.remove(owner);
        }
        match self.steering {
            Steering::Copy => {
                for slot in self.slots.iter_mut().filter(|slot| owners.contains(slot)) {
                    *slot = 0;
                }
                self.listed = self.slots.iter().rposition(|slot| *slot != 0).map_or(0, |at| at + 1);
            }
            Steering::RoundRobin | Steering::Queue => self.take_turns(),
            _ => self.inherit(),
        }
    }

    /// Returns how many turns each member has in a round: as many as it weighs, or fewer where the
    /// table has no room for that, but one at least.
    fn turns(&self) -> BTreeMap<Owner, u32> {
        let total: u64 = self.weights.values().map(|w| u64::from(*w)).sum();
        let common = self.weights.values().fold(0, |a, b| gcd(a, *b)).max(1);
        let room = SLOTS.saturating_sub(self.weights.len()) as u64;
        let turns = |weight: u32| {
            if total / u64::from(common) <= SLOTS as u64 {
                weight / common
            } else {
                (u64::from(weight) * room / total).max(1) as u32
            }
        };
        self.weights.iter().map(|(owner, weight)| (*owner, turns(*weight))).collect()
    }

    /// Returns the order of turns, in which each member stands as often as it has turns, as evenly
    /// spread as possible.
    fn take_turns(&mut self) {
        let each = self.turns();
        let turns = each.values().map(|n| *n as usize).sum::<usize>().min(SLOTS);
        // A member's nth turn is in the middle of the nth part of the round, of as many as it has
        // turns.
        let at = |n: u64, turns: u32| (2 * n + 1) * (1 << 40) / u64::from(turns);
        let mut waiting: BinaryHeap<Reverse<(u64, Owner, u64)>> =
            each.iter().map(|(owner, n)| Reverse((at(0, *n), *owner, 0))).collect();
        self.slots.fill(0);
        for slot in &mut self.slots[..turns] {
            let Some(Reverse((_, owner, n))) = waiting.pop() else { break };
            *slot = owner;
            waiting.push(Reverse((at(n + 1, each[&owner]), owner, n + 1)));
        }
        self.listed = turns;
    }

    /// Returns how many slots each member should have, exactly.
    fn due(&self) -> BTreeMap<Owner, f64> {
        let total: f64 = self.weights.values().map(|w| f64::from(*w)).sum();
        let due = |w: u32| SLOTS as f64 * f64::from(w) / total;
        self.weights.iter().map(|(owner, w)| (*owner, due(*w))).collect()
    }

    fn held(&self) -> BTreeMap<Owner, usize> {
        let mut held: BTreeMap<Owner, usize> =
            self.weights.keys().map(|owner| (*owner, 0)).collect();
        for slot in &self.slots {
            held.entry(*slot).and_modify(|n| *n += 1);
        }
        held
    }

    /// Gives a newcomer slots of those who have most beyond their due, the last slot of each first.
    /// The hashes spread what is counted up (addresses, ports) evenly over the table, and stretches
    /// of it share that more evenly than slots from here and there. However little the newcomer
    /// weighs, it gets one slot, and nobody's last slot is taken.
    fn give(&mut self, newcomer: Owner) {
        let due = self.due();
        let wanted = (due[&newcomer].round() as usize).max(1);
        if self.weights.len() == 1 {
            self.slots.fill(newcomer);
            return;
        }
        let mut held = self.held();
        let mut spare: BinaryHeap<(Ranked, Owner)> = held
            .iter()
            .filter(|(owner, n)| **owner != newcomer && **n > 1)
            .map(|(owner, n)| (Ranked::of(*n as f64 - due[owner]), *owner))
            .collect();
        let mut take: BTreeMap<Owner, usize> = BTreeMap::new();
        for _ in 0..wanted {
            let Some((Ranked(spares), owner)) = spare.pop() else { break };
            *take.entry(owner).or_default() += 1;
            let left = held.entry(owner).or_default();
            *left -= 1;
            if *left > 1 {
                spare.push((Ranked(spares - Ranked::ONE), owner));
            }
        }
        for at in (0..SLOTS).rev() {
            if let Some(n) = take.get_mut(&self.slots[at]).filter(|n| **n > 0) {
                *n -= 1;
                self.slots[at] = newcomer;
            }
        }
    }

    /// Gives the slots of those who are gone to whoever lacks most of its due.
    fn inherit(&mut self) {
        if self.weights.is_empty() {
            self.slots.fill(0);
            return;
        }
        let due = self.due();
        let mut lacking: BinaryHeap<(Ranked, Reverse<Owner>)> = self
            .held()
            .iter()
            .map(|(owner, n)| (Ranked::of(due[owner] - *n as f64), Reverse(*owner)))
            .collect();
        for at in (0..SLOTS).rev() {
            if self.weights.contains_key(&self.slots[at]) {
                continue;
            }
            let Some((Ranked(lacks), heir)) = lacking.pop() else { break };
            self.slots[at] = heir.0;
            lacking.push((Ranked(lacks - Ranked::ONE), heir));
        }
    }
}

/// A fraction of a slot that can be ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ranked(i64);

impl Ranked {
    const ONE: i64 = 1 << 32;

    fn of(slots: f64) -> Self {
        Self((slots * Self::ONE as f64) as i64)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::{Owner, SLOTS, Shares, Steering};
    use std::collections::BTreeMap;

    fn held(shares: &Shares) -> BTreeMap<Owner, usize> {
        let mut held = BTreeMap::new();
        for slot in shares.slots() {
            *held.entry(*slot).or_insert(0) += 1;
        }
        held
    }

    /// Each has what it weighs, to a slot and what rounding left before.
    fn assert_fair(shares: &Shares, slack: f64) {
        let held = held(shares);
        for (owner, due) in shares.due() {
            let has = *held.get(&owner).unwrap_or(&0) as f64;
            assert!((has - due).abs() <= slack, "{owner} has {has} of {due}");
        }
    }

    #[test]
    fn slots_are_shared_by_weight() {
        let mut shares = Shares::new(Steering::Flow);
        assert!(shares.slots().iter().all(|slot| *slot == 0));
        for owner in 1..=10 {
            shares.add(owner, u32::from(owner));
            assert_fair(&shares, 1.0);
        }
    }

    #[test]
    fn a_thousand_members_have_eight_slots_each() {
        let mut shares = Shares::new(Steering::IpPair);
        for owner in 1..=1024 {
            shares.add(owner, 1);
        }
        assert_fair(&shares, 1.0);
    }

    #[test]
    fn whoever_weighs_little_among_many_gets_something() {
        for steering in [Steering::Flow, Steering::RoundRobin, Steering::Queue, Steering::Copy] {
            let mut shares = Shares::new(steering);
            for owner in 1..=1024 {
                shares.add(owner, if owner % 3 == 0 { 1 } else { 100 });
            }
            let has_all = |shares: &Shares, all: &[Owner]| {
                let held: BTreeMap<Owner, usize> = held(shares);
                all.iter().all(|owner| held.contains_key(owner))
            };
            let mut all: Vec<Owner> = (1..=1024).collect();
            assert!(has_all(&shares, &all), "{steering}");
            let gone: Vec<Owner> = all.extract_if(.., |owner| *owner % 5 == 0).collect();
            shares.remove(&gone);
            assert!(has_all(&shares, &all), "{steering}");
            assert!(held(&shares).keys().all(|owner| *owner == 0 || all.contains(owner)));
            assert!(shares.used() >= all.len());
        }
    }

    #[test]
    fn who_comes_takes_and_nobody_else_changes() {
        let mut shares = Shares::new(Steering::Flow);
        for owner in 1..=7 {
            let before = shares.slots().to_vec();
            shares.add(owner, 3);
            for (was, is) in before.iter().zip(shares.slots()) {
                assert!(was == is || *is == owner);
            }
        }
    }

    #[test]
    fn only_the_slots_of_those_who_leave_change_hands() {
        let mut shares = Shares::new(Steering::Source);
        for owner in 1..=100 {
            shares.add(owner, 1 + u32::from(owner) % 3);
        }
        let gone: Vec<Owner> = (1..=100).filter(|owner| owner % 7 == 0).collect();
        let before = shares.slots().to_vec();
        shares.remove(&gone);
        for (was, is) in before.iter().zip(shares.slots()) {
            assert!(was == is || gone.contains(was));
            assert!(!gone.contains(is) && *is != 0);
        }
        assert_fair(&shares, 2.0);
        let rest: Vec<Owner> = (1..=100).collect();
        shares.remove(&rest);
        assert_eq!((shares.sole(), held(&shares)[&0]), (0, SLOTS));
    }

    #[test]
    fn a_table_that_is_there_is_gone_on_with() {
        for steering in Steering::ALL {
            let mut before = Shares::new(steering);
            (1..=5).for_each(|owner| before.add(owner, u32::from(owner)));
            let as_it_is = || (before.slots.clone(), before.listed);
            let after = Shares::adopt(steering, before.weights.clone(), as_it_is());
            assert_eq!((&after.slots, after.listed), (&before.slots, before.listed), "{steering}");

            // Owner 3 has gone, and 9 has come and got nothing yet.
            let mut weights = before.weights.clone();
            weights.remove(&3);
            weights.insert(9, 4);
            let after = Shares::adopt(steering, weights.clone(), as_it_is());
            let held = held(&after);
            assert!(!held.contains_key(&3) && held[&9] > 0, "{steering}");
            assert!(weights.keys().all(|owner| held[owner] > 0), "{steering}");
            for (was, is) in before.slots.iter().zip(&after.slots) {
                let turns = matches!(steering, Steering::RoundRobin | Steering::Queue);
                assert!(turns || was == is || *was == 3 || *is == 9, "{steering}");
            }
            let nobody = Shares::adopt(steering, BTreeMap::new(), as_it_is());
            assert!(nobody.slots[..nobody.used()].iter().all(|owner| *owner == 0), "{steering}");
        }
    }

    #[test]
    fn turns_are_as_many_as_weighed_and_evenly_apart() {
        let mut shares = Shares::new(Steering::RoundRobin);
        shares.add(1, 4);
        shares.add(2, 2);
        shares.add(3, 2);
        assert_eq!(shares.listed(), 4);
        let mut order = shares.slots()[..4].to_vec();
        assert!(order.windows(2).all(|pair| pair[0] != pair[1]), "{order:?}");
        order.sort_unstable();
        assert_eq!(order, [1, 1, 2, 3]);
        shares.remove(&[1]);
        assert_eq!((shares.listed(), shares.slots()[..2].to_vec()), (2, vec![2, 3]));
        shares.remove(&[2, 3]);
        assert_eq!(shares.listed(), 0);
    }

    #[test]
    fn a_list_for_copies_keeps_everybody_in_place() {
        let mut shares = Shares::new(Steering::Copy);
        for owner in 1..=4 {
            shares.add(owner, 1);
        }
        shares.remove(&[2]);
        assert_eq!((shares.slots()[..4].to_vec(), shares.listed()), (vec![1, 0, 3, 4], 4));
        shares.add(9, 1);
        assert_eq!(shares.slots()[..4].to_vec(), [1, 9, 3, 4]);
        shares.remove(&[4, 3]);
        assert_eq!(shares.listed(), 2);
    }

    #[test]
    fn names_are_read_back() {
        for steering in Steering::ALL {
            assert_eq!(steering.to_string().parse(), Ok(steering));
            assert_eq!(Steering::ALL[steering.number() as usize], steering);
        }
        let e = "flows".parse::<Steering>().unwrap_err().to_string();
        assert!(e.contains("\"flows\"") && e.contains("flow, ip-pair, src"), "{e}");
    }
}
