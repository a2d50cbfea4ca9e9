//! Which granules hold a row's packets? Runs of successive numbers, in memory and as bytes.
//!
//! A flow's packets come back to granules in ascending order, so the last run is open and lies in
//! the entry itself; those before it are a list through one arena for all flows. Most flows have
//! one run and take nothing of the arena.
//!
//! A row names few runs, however thin its packets lie: nearby ones are joined, and the granules
//! between them are read in vain.

/// Runs of a row, at most.
const MOST: usize = 8;
/// Runs so many granules apart are always joined: to read those is cheaper than to name both.
const NEAR: u32 = 1;

/// No run before.
const NONE: u32 = u32::MAX;

/// The granules of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Granules {
    /// The run that is open: its first granule and the one behind its last.
    from: u32,
    to: u32,
    /// The first granule of all.
    first: u32,
    /// The run before the open one.
    before: u32,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    from: u32,
    to: u32,
    before: u32,
}

/// The runs of all flows that are not open.
#[derive(Debug, Default)]
pub struct Arena(Vec<Run>);

impl Granules {
    pub fn at(granule: u32) -> Self {
        Self { from: granule, to: granule + 1, first: granule, before: NONE }
    }

    /// Adds a granule, which is the last one or comes behind it.
    #[inline]
    pub fn add(&mut self, granule: u32, arena: &mut Arena) {
        if granule < self.to {
            return;
        }
        if granule > self.to + NEAR {
            let run = Run { from: self.from, to: self.to, before: self.before };
            self.before = arena.0.len() as u32;
            self.from = granule;
            arena.0.push(run);
        }
        self.to = granule + 1;
    }

    /// Returns the first granule and the one behind the last.
    pub fn span(&self) -> (u32, u32) {
        (self.first, self.to)
    }

    /// Puts the runs into a list, ascending, with those joined that are nearest to one another
    /// where there are too many.
    pub fn list(&self, arena: &Arena, to: &mut Vec<(u32, u32)>) {
        to.clear();
        to.push((self.from, self.to));
        let mut before = self.before;
        while let Some(run) = arena.0.get(before as usize) {
            to.push((run.from, run.to));
            before = run.before;
        }
        to.reverse();
        join_nearest(to);
    }
}

/// Joins the runs with the smallest gaps between them, of equal ones the first, until few are left.
fn join_nearest(runs: &mut Vec<(u32, u32)>) {
    let too_many = runs.len().saturating_sub(MOST);
    if too_many == 0 {
        return;
    }
    let mut gaps: Vec<(u32, usize)> =
        runs.windows(2).zip(1..).map(|(pair, at)| (pair[1].0 - pair[0].1, at)).collect();
    gaps.sort_unstable();
    let mut is_joined = vec![false; runs.len()];
    gaps.iter().take(too_many).for_each(|(_, at)| is_joined[*at] = true);
    let mut joined: Vec<(u32, u32)> = Vec::with_capacity(MOST);
    for (run, is_joined) in runs.iter().zip(is_joined) {
        match joined.last_mut().filter(|_| is_joined) {
            Some(last) => last.1 = run.1,
            None => joined.push(*run),
        }
    }
    *runs = joined;
}

impl Arena {
    /// Returns how many runs there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

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
    use super::{Arena, Granules, put_runs, take_runs};

    #[test]
    fn runs_are_those_of_the_granules_that_were_added() {
        let mut arena = Arena::default();
        let (mut one, mut other) = (Granules::at(3), Granules::at(0));
        for granule in [3, 4, 4, 5, 9, 9, 12, 13, 15] {
            one.add(granule, &mut arena);
            other.add(granule, &mut arena);
        }
        let mut list = Vec::new();
        one.list(&arena, &mut list);
        // One granule between two runs is taken along.
        assert_eq!(list, [(3, 6), (9, 10), (12, 16)]);
        assert_eq!(one.span(), (3, 16));
        other.list(&arena, &mut list);
        assert_eq!(list, [(0, 1), (3, 6), (9, 10), (12, 16)]);
    }

    #[test]
    fn of_too_many_runs_the_nearest_are_joined() {
        let mut arena = Arena::default();
        let mut granules = Granules::at(0);
        let starts = [0, 10, 20, 23, 33, 43, 46, 56, 66, 69];
        for granule in starts {
            granules.add(granule, &mut arena);
        }
        let mut list = Vec::new();
        granules.list(&arena, &mut list);
        let expected = [0, 10, 20, 33, 43, 56, 66, 69].map(|from| match from {
            20 | 43 => (from, from + 4),
            from => (from, from + 1),
        });
        assert_eq!(list, expected);
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
