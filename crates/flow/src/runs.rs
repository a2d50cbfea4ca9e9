//! Which granules hold a row's packets? Runs of successive numbers, in memory and as bytes.
//!
//! A flow's packets come back to granules in ascending order, so the last run is open and lies in
//! the entry itself; those before it have a place in a list for all flows. Most flows have one run
//! and no such place.
//!
//! A row names few runs, however thin its packets lie: nearby ones are joined, and the granules
//! between them are read in vain. That is done as runs come, so that a flow's memory does not grow.

/// Runs of a row, at most.
const MOST: usize = 8;
/// Runs so many granules apart are always joined: to read those is cheaper than to name both.
const NEAR: u32 = 1;

/// The flow has one run.
const NONE: u32 = u32::MAX;

/// The granules of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Granules {
    /// The run that is open: its first granule and the one behind its last.
    from: u32,
    to: u32,
    /// The first granule of all.
    first: u32,
    /// Where the runs before the open one are.
    before: u32,
    /// A granule that is at most so many behind the open run is joined with it.
    near: u32,
}

/// The runs of all flows that have more than one, but for the open ones.
#[derive(Debug, Default)]
pub struct ClosedRuns(Vec<Closed>);

/// The runs of a flow before the open one, ascending.
#[derive(Clone, Copy, Debug)]
struct Closed {
    len: u32,
    runs: [(u32, u32); MOST - 1],
}

impl Granules {
    pub fn at(granule: u32) -> Self {
        Self { from: granule, to: granule + 1, first: granule, before: NONE, near: NEAR }
    }

    /// Adds a granule, which is the last one or comes behind it.
    #[inline]
    pub fn add(&mut self, granule: u32, closed: &mut ClosedRuns) {
        if granule < self.to {
            return;
        }
        if granule > self.to + self.near {
            self.begin(granule, closed);
        }
        self.to = granule + 1;
    }

    /// Begins a run and closes the open one. Where the flow has too many then, the two that are
    /// nearest to one another are joined, of equally near ones the first.
    fn begin(&mut self, granule: u32, closed: &mut ClosedRuns) {
        let open = (self.from, self.to);
        let Some(before) = closed.0.get_mut(self.before as usize) else {
            self.before = closed.0.len() as u32;
            closed.0.push(Closed { len: 1, runs: [open; MOST - 1] });
            self.from = granule;
            return;
        };
        let len = before.len as usize;
        if let Some(free) = before.runs.get_mut(len) {
            *free = open;
            before.len += 1;
            self.from = granule;
            return;
        }
        let mut runs = [open; MOST + 1];
        runs[..len].copy_from_slice(&before.runs);
        runs[MOST].0 = granule;
        let mut gaps: [u32; MOST] = std::array::from_fn(|at| runs[at + 1].0 - runs[at].1);
        let nearest = (0..MOST).min_by_key(|at| gaps[*at]).unwrap_or(0);
        gaps[nearest] = u32::MAX;
        // What is nearer than all that are left would be joined at once.
        self.near = gaps.into_iter().min().unwrap_or(NEAR) - 1;
        runs[nearest].1 = runs[nearest + 1].1;
        runs.copy_within(nearest + 2.., nearest + 1);
        before.runs.copy_from_slice(&runs[..len]);
        self.from = runs[len].0;
    }

    /// Returns the first granule and the one behind the last.
    pub fn span(&self) -> (u32, u32) {
        (self.first, self.to)
    }

    /// Returns a word that depends on the first and the last of what [`Granules::list`] may read.
    #[inline]
    pub fn touch(&self, closed: &ClosedRuns) -> u32 {
        let word = |before: &Closed| before.len ^ before.runs[0].0 ^ before.runs[MOST - 2].1;
        closed.0.get(self.before as usize).map_or(0, word)
    }

    /// Puts the runs into a list, ascending.
    pub fn list(&self, closed: &ClosedRuns, to: &mut Vec<(u32, u32)>) {
        to.clear();
        if let Some(before) = closed.0.get(self.before as usize) {
            to.extend_from_slice(&before.runs[..before.len as usize]);
        }
        to.push((self.from, self.to));
    }
}

impl ClosedRuns {
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Puts a list of granules as an index has it (`docs/FORMAT.md`).
pub fn put_runs(out: &mut Vec<u8>, runs: &[(u32, u32)]) {
    put(out, runs.iter().map(|(from, to)| u64::from(to - from)).sum());
    let mut next = 0;
    for (from, to) in runs {
        let gap = u64::from(from - next) << 1;
        match to - from {
            1 => put(out, gap),
            length => {
                put(out, gap | 1);
                put(out, u64::from(length) - 2);
            }
        }
        next = *to;
    }
}

/// Takes what [`put_runs`] puts of a row; `None` where it is something else. Runs ascend and hold a
/// granule each at least.
pub fn take_runs(mut bytes: &[u8]) -> Option<Vec<(u32, u32)>> {
    let mut left = take(&mut bytes)?;
    let (mut runs, mut next) = (Vec::new(), 0_u64);
    while left > 0 {
        if runs.len() == MOST {
            return None;
        }
        let head = take(&mut bytes)?;
        let length = if head & 1 == 1 { take(&mut bytes)?.checked_add(2)? } else { 1 };
        let from = next.checked_add(head >> 1)?;
        next = from.checked_add(length)?;
        left = left.checked_sub(length)?;
        runs.push((u32::try_from(from).ok()?, u32::try_from(next).ok()?));
    }
    bytes.is_empty().then_some(runs)
}

/// Takes a number that is LEB128.
fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for shift in (0..63).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

/// Puts a number as LEB128.
fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

#[cfg(test)]
mod tests {
    use tapdeck_testkit::SplitMix64;

    use super::{ClosedRuns, Granules, MOST, NEAR, put_runs, take_runs};

    #[test]
    fn runs_are_those_of_the_granules_that_were_added() {
        let mut closed = ClosedRuns::default();
        let (mut one, mut other) = (Granules::at(3), Granules::at(0));
        for granule in [3, 4, 4, 5, 9, 9, 12, 13, 15] {
            one.add(granule, &mut closed);
            other.add(granule, &mut closed);
        }
        let mut list = Vec::new();
        one.list(&closed, &mut list);
        // One granule between two runs is taken along.
        assert_eq!(list, [(3, 6), (9, 10), (12, 16)]);
        assert_eq!(one.span(), (3, 16));
        other.list(&closed, &mut list);
        assert_eq!(list, [(0, 1), (3, 6), (9, 10), (12, 16)]);
    }

    #[test]
    fn of_too_many_runs_the_nearest_are_joined() {
        let mut closed = ClosedRuns::default();
        let mut granules = Granules::at(0);
        let starts = [0, 10, 20, 23, 33, 43, 46, 56, 66, 69];
        for granule in starts {
            granules.add(granule, &mut closed);
        }
        let mut list = Vec::new();
        granules.list(&closed, &mut list);
        let expected = [0, 10, 20, 33, 43, 56, 66, 69].map(|from| match from {
            20 | 43 => (from, from + 4),
            from => (from, from + 1),
        });
        assert_eq!(list, expected);
    }

    /// What is joined as runs come is what would be joined if all of them were known.
    #[test]
    fn joining_does_not_wait_for_all_runs() {
        let mut random = SplitMix64(7);
        for round in 0..2000 {
            let widest = [4, 8, 40, 5000][round % 4];
            let mut granule = random.below(widest);
            let (mut closed, mut granules) = (ClosedRuns::default(), Granules::at(granule));
            let mut all = vec![(granule, granule + 1)];
            for _ in 0..random.below(60_u32) {
                granule += random.below(widest);
                granules.add(granule, &mut closed);
                match all.last_mut() {
                    Some(last) if granule <= last.1 + NEAR => last.1 = last.1.max(granule + 1),
                    _ => all.push((granule, granule + 1)),
                }
            }
            while all.len() > MOST {
                let gap = |at: &usize| all[*at].0 - all[*at - 1].1;
                let nearest = (1..all.len()).min_by_key(gap).unwrap();
                all[nearest - 1].1 = all[nearest].1;
                all.remove(nearest);
            }
            let mut list = Vec::new();
            granules.list(&closed, &mut list);
            assert_eq!(list, all, "round {round}");
        }
    }

    #[test]
    fn a_list_has_the_form_of_an_index() {
        let mut out = Vec::new();
        // Six granules: from 3 on three, three further one, two further two.
        put_runs(&mut out, &[(3, 6), (9, 10), (12, 14)]);
        assert_eq!(out, [6, 3 << 1 | 1, 1, 3 << 1, 2 << 1 | 1, 0]);
        out.clear();
        put_runs(&mut out, &[(100, 101)]);
        assert_eq!(out, [1, 200, 1]);
        for runs in [&[(3, 6), (9, 10), (12, 14)][..], &[(100, 101)], &[(0, 1_000_000)], &[]] {
            out.clear();
            put_runs(&mut out, runs);
            assert_eq!(take_runs(&out).unwrap(), runs);
            assert_eq!(take_runs(&[&out[..], &[0]].concat()), None);
            assert_eq!(take_runs(&out[..out.len() - 1]), None);
        }
        assert_eq!(take_runs(&[0xff; 20]), None);
        assert_eq!(take_runs(&[1, 1, 0]), None, "more than it says");
    }
}
