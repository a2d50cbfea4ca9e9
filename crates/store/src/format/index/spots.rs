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
    /// The distances between quarters, and in front of them how many there are.
    pub const QUARTERS: u8 = 2;
    /// And of one to three quarters by this and their number.
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
        return put_quarters(out, spots, of);
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

/// Returns how many quarters there are.
pub(super) fn count_quarters(spots: &[Spot]) -> u32 {
    spots.iter().map(|spot| spot.quarters().count_ones()).sum()
}

/// Returns how many low bits of the distances between `count` quarters are told as they are, if
/// there are `of` granules: so many that what is left of a distance is small.
pub(super) fn low_bits(count: u32, of: u32) -> u32 {
    let mean = u64::from(of) * Quarters::MOST as u64 / u64::from(count.max(1));
    mean.max(1).ilog2()
}

fn put_quarters(out: &mut Vec<u8>, spots: &[Spot], of: u32) -> u8 {
    let count = count_quarters(spots);
    let form = if let Ok(few @ 1..=3) = u8::try_from(count) {
        form::FEW_QUARTERS + few
    } else {
        put(out, u64::from(count));
        form::QUARTERS
    };
    let low = low_bits(count, of);
    let (mut bits, mut next) = (Bits { out, word: 0, len: 0 }, 0);
    for spot in spots {
        let first = spot.granule() * Quarters::MOST as u32;
        let mut left = spot.quarters();
        while left != 0 {
            let quarter = first + left.trailing_zeros();
            left &= left - 1;
            let distance = quarter - next;
            next = quarter + 1;
            let mut high = distance >> low;
            while high >= 32 {
                bits.put(u64::from(u32::MAX), 32);
                high -= 32;
            }
            bits.put((1 << high) - 1, high + 1);
            bits.put(u64::from(distance) & ((1 << low) - 1), low);
        }
    }
    bits.end();
    form
}

/// Puts bits, the lowest of each byte first.
struct Bits<'a> {
    out: &'a mut Vec<u8>,
    word: u64,
    len: u32,
}

impl Bits<'_> {
    /// Puts the lowest bits of a word, 33 at most; those above are 0.
    #[inline]
    fn put(&mut self, bits: u64, len: u32) {
        self.word |= bits << self.len;
        self.len += len;
        if self.len >= 31 {
            let whole = self.len / 8;
            self.out.extend(&self.word.to_le_bytes()[..whole as usize]);
            self.word >>= 8 * whole;
            self.len -= 8 * whole;
        }
    }

    fn end(self) {
        let bytes = self.len.div_ceil(8) as usize;
        self.out.extend(&self.word.to_le_bytes()[..bytes]);
    }
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
    let is_past = |last: &u8| !of.is_multiple_of(8) && last >> (of % 8) != 0;
    if bits.last().is_some_and(is_past) {
        return Err(damaged("a list of granules goes past the last one"));
    }
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
    if let Some((from, to)) = run {
        each(from, to);
    }
    Ok(())
}

fn take_quarters(
    bytes: &mut Bytes<'_>,
    count: u32,
    of: u32,
    each: impl FnMut(u32, u32, u8),
) -> io::Result<()> {
    const MOST: u32 = Quarters::MOST as u32;
    let past = || damaged("a list of quarters goes past the last one");
    let all = of.checked_mul(MOST).ok_or_else(past)?;
    if count > all {
        return Err(past());
    }
    let low = low_bits(count, of);
    let mut runs = QuarterRuns { open: Spot::new(0, 0), each };
    let (mut at, mut next) = (0usize, 0u32);
    for _ in 0..count {
        let mut high = 0;
        let mut word = bits_at(bytes.0, at)?;
        // Of a word 57 bits count.
        let mut ones = word.trailing_ones();
        while ones > 28 {
            (high, at) = (high + 28, at + 28);
            word = bits_at(bytes.0, at)?;
            ones = word.trailing_ones();
        }
        high += ones;
        let rest = (word >> (ones + 1)) & ((1 << low) - 1);
        at += (ones + 1 + low) as usize;
        let distance = u64::from(high) << low | rest;
        let quarter = u64::from(next) + distance;
        if quarter >= u64::from(all) {
            return Err(past());
        }
        next = quarter as u32 + 1;
        runs.add(Spot::new(quarter as u32 / MOST, 1 << (quarter as u32 % MOST)));
    }
    bytes.take(at.div_ceil(8))?;
    runs.end();
    Ok(())
}

/// Returns the bits from one on, 57 of them at least, and zeros behind the end.
#[inline]
fn bits_at(bytes: &[u8], at: usize) -> io::Result<u64> {
    let rest = bytes.get(at / 8..).ok_or_else(|| damaged("it ends early"))?;
    let word = if let Some(eight) = rest.first_chunk() {
        u64::from_le_bytes(*eight)
    } else {
        let mut eight = [0; 8];
        eight[..rest.len()].copy_from_slice(rest);
        u64::from_le_bytes(eight)
    };
    Ok(word >> (at % 8))
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

    use super::{Bytes, Spot, add_spot, count_quarters, form, low_bits, order};
    use super::{put_spots, take_spots};

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
            let count = count_quarters(&spots);
            let longest = count * (low_bits(count, of) + 3);
            assert!(out.len() as u32 <= 3 + longest.div_ceil(8), "{} bytes", out.len());
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
        let none = |_, _, _| panic!("what is damaged is not handed on");
        assert!(take_spots(&mut Bytes(&[0b101_0001]), form::BITS, 3, none).is_err());
        // One of 16 quarters: four bits of its number, and a 0 in front of them.
        assert!(take_spots(&mut Bytes(&[0b1_1110]), 3, 4, |_, _, _| {}).is_ok());
        let past_the_last = &mut Bytes(&[0b0000_0001]);
        assert!(take_spots(past_the_last, 3, 4, |_, _, _| {}).is_err());
        assert!(take_spots(&mut Bytes(&[]), 3, 4, |_, _, _| {}).is_err());
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
