//! Where does a key stand? In which granules, and where that is told in which of their quarters.
//! Here is how that stands in an index, behind the key.

use std::io;

use super::code::{Bytes, RunCoder, damaged, put, put_granules};
use super::granule::Quarters;

/// How the places of a key are told, in the upper three bits of an entry's first byte.
mod form {
    /// A list of granules, and in front of it how many there are.
    pub const GRANULES: u8 = 0;
    /// A bit for each granule.
    pub const BITS: u8 = 1;
    /// A list of quarters, and in front of it how many there are.
    pub const QUARTERS: u8 = 2;
    /// And a list of one to three quarters is told by this and their number.
    pub const FEW_QUARTERS: u8 = 2;
    /// A list of one or two granules is told by this and their number.
    pub const FEW_GRANULES: u8 = 5;
}

/// How far the form lies above what stands in the lower bits of the same byte.
pub(super) const FORM_SHIFT: u8 = 5;

/// A granule with a key, and in which of its quarters the key stands: a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot(u32);

impl Spot {
    /// Quarters is 0 for no granule.
    pub fn new(granule: u32, quarters: u8) -> Self {
        Self(granule << Quarters::MOST | u32::from(quarters))
    }

    /// Makes a spot of which no more is known than the granule.
    pub fn whole(granule: u32) -> Self {
        Self::new(granule, Quarters::ALL)
    }

    pub fn granule(self) -> u32 {
        self.0 >> Quarters::MOST
    }

    pub fn quarters(self) -> u8 {
        self.0 as u8 & Quarters::ALL
    }
}

/// Adds a spot behind others, which are in granules before or in the same one.
#[inline]
pub(super) fn add_spot(spots: &mut Vec<Spot>, spot: Spot) {
    match spots.last_mut() {
        Some(last) if last.granule() == spot.granule() => last.0 |= spot.0,
        _ => spots.push(spot),
    }
}

/// Puts spots in order, and makes of several in one granule one.
pub(super) fn order(spots: &mut Vec<Spot>) {
    if spots.is_sorted_by(|a, b| a.granule() < b.granule()) {
        return;
    }
    spots.sort_unstable();
    spots.dedup_by(|spot, before| {
        let is_same = spot.granule() == before.granule();
        if is_same {
            before.0 |= spot.0;
        }
        is_same
    });
}

/// Puts where a key stands, in ascending granules, of which there are `of`; quarters only if they
/// are `told`. Returns the form.
pub(super) fn put_spots(out: &mut Vec<u8>, spots: &[Spot], of: u32, told: bool) -> u8 {
    if told {
        let count: u32 = spots.iter().map(|spot| spot.quarters().count_ones()).sum();
        let form = if let Ok(few @ 1..=3) = u8::try_from(count) {
            form::FEW_QUARTERS + few
        } else {
            put(out, u64::from(count));
            form::QUARTERS
        };
        let mut runs = RunCoder::new(out);
        for spot in spots {
            let first = spot.granule() * Quarters::MOST as u32;
            let mut left = spot.quarters();
            while left != 0 {
                runs.add(first + left.trailing_zeros());
                left &= left - 1;
            }
        }
        runs.end();
        return form;
    }
    if let Ok(few @ 1..=2) = u8::try_from(spots.len()) {
        let mut runs = RunCoder::new(out);
        for spot in spots {
            runs.add(spot.granule());
        }
        runs.end();
        return form::FEW_GRANULES + few;
    }
    let (start, bits) = (out.len(), of.div_ceil(8) as usize);
    // Each run takes a byte at least.
    let goes_on = |two: &[Spot]| two[0].granule() + 1 == two[1].granule();
    let runs = spots.len() - spots.windows(2).filter(|two| goes_on(two)).count();
    if runs < bits {
        put_granules(out, spots.iter().map(|spot| spot.granule()));
        if out.len() - start <= bits {
            return form::GRANULES;
        }
        out.truncate(start);
    }
    out.resize(start + bits, 0);
    for spot in spots {
        let granule = spot.granule() as usize;
        out[start + granule / 8] |= 1 << (granule % 8);
    }
    form::BITS
}

/// Takes where a key stands, and hands runs of granules to `each`, ascending, no granule twice: the
/// first number, the one behind the last, and the quarters.
#[inline]
pub(super) fn take_spots(
    bytes: &mut Bytes<'_>,
    form: u8,
    of: u32,
    mut each: impl FnMut(u32, u32, u8),
) -> io::Result<()> {
    match form {
        form::GRANULES => bytes.granules(of, |from, to| each(from, to, Quarters::ALL)).map(drop),
        form::BITS => take_bits(bytes, of, |from, to| each(from, to, Quarters::ALL)),
        form::QUARTERS => {
            let count = bytes.small()?;
            take_quarters(bytes, count, of, each)
        }
        _ if form <= form::FEW_GRANULES => {
            take_quarters(bytes, u32::from(form - form::FEW_QUARTERS), of, each)
        }
        _ => {
            let count = u32::from(form - form::FEW_GRANULES);
            bytes.runs(count, of, |from, to| each(from, to, Quarters::ALL))
        }
    }
}

#[inline]
fn take_bits(bytes: &mut Bytes<'_>, of: u32, mut each: impl FnMut(u32, u32)) -> io::Result<()> {
    let bits = bytes.take(of.div_ceil(8) as usize)?;
    let mut run: Option<(u32, u32)> = None;
    for (first, byte) in (0..).step_by(8).zip(bits) {
        let mut left = *byte;
        while left != 0 {
            let granule = first + left.trailing_zeros();
            left &= left - 1;
            match &mut run {
                Some((_, to)) if *to == granule => *to += 1,
                _ => {
                    if let Some((from, to)) = run.replace((granule, granule + 1)) {
                        each(from, to);
                    }
                }
            }
        }
    }
    match run {
        Some((_, to)) if to > of => Err(damaged("a list of granules goes past the last one")),
        Some((from, to)) => {
            each(from, to);
            Ok(())
        }
        None => Ok(()),
    }
}

#[inline]
fn take_quarters(
    bytes: &mut Bytes<'_>,
    count: u32,
    of: u32,
    each: impl FnMut(u32, u32, u8),
) -> io::Result<()> {
    const MOST: u32 = Quarters::MOST as u32;
    let all = of.checked_mul(MOST).ok_or_else(|| damaged("it has too many granules"))?;
    let mut runs = QuarterRuns { open: Spot::new(0, 0), each };
    bytes.runs(count, all, |from, to| {
        let (first, last) = (from / MOST, (to - 1) / MOST);
        let quarters = |from: u32, to: u32| (Quarters::ALL << from) & Quarters::ALL >> (MOST - to);
        if first == last {
            return runs.add(Spot::new(first, quarters(from % MOST, to - first * MOST)));
        }
        runs.add(Spot::new(first, quarters(from % MOST, MOST)));
        if first + 1 < last {
            runs.end();
            (runs.each)(first + 1, last, Quarters::ALL);
        }
        runs.add(Spot::new(last, quarters(0, to - last * MOST)));
    })?;
    runs.end();
    Ok(())
}

/// Makes of quarters that come in order the granules that they are of.
struct QuarterRuns<F> {
    /// The granule whose last quarter is not yet known.
    open: Spot,
    each: F,
}

impl<F: FnMut(u32, u32, u8)> QuarterRuns<F> {
    #[inline]
    fn add(&mut self, spot: Spot) {
        if self.open.granule() == spot.granule() {
            self.open.0 |= spot.0;
        } else {
            self.end();
            self.open = spot;
        }
    }

    #[inline]
    fn end(&mut self) {
        let open = std::mem::replace(&mut self.open, Spot::new(0, 0));
        if open.quarters() != 0 {
            (self.each)(open.granule(), open.granule() + 1, open.quarters());
        }
    }
}

#[cfg(test)]
mod tests {
    use tapdeck_testkit::SplitMix64;

    use super::{Bytes, Spot, add_spot, form, order, put_spots, take_spots};

    fn read(out: &[u8], form: u8, of: u32) -> Vec<Spot> {
        let mut bytes = Bytes(out);
        let mut read = Vec::new();
        take_spots(&mut bytes, form, of, |from, to, quarters| {
            assert!(from < to && to <= of);
            read.extend((from..to).map(|granule| Spot::new(granule, quarters)));
        })
        .unwrap();
        assert!(bytes.0.is_empty());
        read
    }

    #[test]
    fn spots_read_back_in_every_form() {
        let mut rng = SplitMix64(1);
        let mut seen = [0; 8];
        for round in 0..20_000 {
            let of = 1 + rng.below(1 + round % 500u32);
            let density = 1 + rng.below(60u64);
            let quarters = |rng: &mut SplitMix64| match rng.below(3) {
                0 => 15,
                1 => 1 << rng.below(4),
                _ => 1 + rng.below(15) as u8,
            };
            let spots: Vec<Spot> = (0..of)
                .filter_map(|granule| {
                    let there = rng.below(density) == 0;
                    there.then(|| Spot::new(granule, quarters(&mut rng)))
                })
                .collect();
            if spots.is_empty() {
                continue;
            }
            let mut out = Vec::new();
            let form = put_spots(&mut out, &spots, of, true);
            seen[usize::from(form)] += 1;
            assert_eq!(read(&out, form, of), spots, "of {of}");
            out.clear();
            let form = put_spots(&mut out, &spots, of, false);
            seen[usize::from(form)] += 1;
            let whole: Vec<Spot> = spots.iter().map(|spot| Spot::whole(spot.granule())).collect();
            assert_eq!(read(&out, form, of), whole, "of {of}");
            let longest = u64::from(of).div_ceil(8) as usize;
            assert!(form != form::BITS || out.len() == longest);
            assert!(form != form::GRANULES || out.len() <= longest);
        }
        assert!(seen.iter().all(|seen| *seen > 100), "{seen:?}");
    }

    #[test]
    fn a_bit_behind_the_last_granule_is_damage() {
        let taken = |byte: u8, of| take_spots(&mut Bytes(&[byte]), form::BITS, of, |_, _, _| {});
        assert!(taken(0b1000, 4).is_ok());
        assert!(taken(0b1000, 3).is_err());
        assert!(take_spots(&mut Bytes(&[16 << 1]), 3, 4, |_, _, _| {}).is_err());
        assert!(take_spots(&mut Bytes(&[15 << 1]), 3, 4, |_, _, _| {}).is_ok());
    }

    #[test]
    fn spots_in_one_granule_become_one() {
        let many = [Spot::whole(2), Spot::new(1, 1), Spot::new(1, 8), Spot::new(2, 2)];
        let mut spots = many.to_vec();
        order(&mut spots);
        assert_eq!(spots, [Spot::new(1, 9), Spot::whole(2)]);
        let mut added = Vec::new();
        for i in [1, 2, 3, 0] {
            add_spot(&mut added, many[i]);
        }
        assert_eq!(added, spots);
    }
}
