//! How do numbers and lists of numbers stand in an index? As bytes, few for small numbers and for
//! runs. What they mean is not known here.

use std::io;
use std::ops::Range;

/// Returns the error of an index that does not say what an index says.
pub(super) fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Returns the error of an index that is not to be used, whatever it says.
pub(super) fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Memory that may still be taken for what an index says. A few bytes of an index can say very
/// much, and who wrote them may have meant harm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room(usize);

impl Room {
    pub fn of(bytes: usize) -> Self {
        Self(bytes)
    }

    /// For what this process has made itself.
    pub fn endless() -> Self {
        Self(usize::MAX)
    }

    /// Takes room for so many values.
    pub fn take<T>(&mut self, values: usize) -> io::Result<()> {
        let left = values.checked_mul(size_of::<T>()).and_then(|bytes| self.0.checked_sub(bytes));
        self.0 = left.ok_or_else(|| damaged("what it says takes too much memory"))?;
        Ok(())
    }
}

/// Adds a run of numbers behind others. One that goes on where the last ended becomes a part of it.
pub(super) fn add_run(runs: &mut Vec<(u32, u32)>, from: u32, to: u32) {
    match runs.last_mut() {
        Some((_, end)) if *end == from => *end = to,
        _ => runs.push((from, to)),
    }
}

/// Puts runs of granule numbers, as [`put_granules`] puts numbers.
pub(super) fn put_runs(out: &mut Vec<u8>, runs: &[(u32, u32)]) {
    put(out, runs.iter().map(|(from, to)| u64::from(to - from)).sum());
    let mut next = 0;
    for (from, to) in runs {
        put_run(out, from - next, u64::from(to - from));
        next = *to;
    }
}

/// Puts a run of granule numbers that begins at a distance from the end of the one before.
fn put_run(out: &mut Vec<u8>, gap: u32, run: u64) {
    let gap = u64::from(gap) << 1;
    if run == 1 {
        put(out, gap);
    } else {
        put(out, gap | 1);
        put(out, run - 2);
    }
}

/// Puts a number as LEB128: seven bits a byte, the lowest first, the highest bit set where more
/// follows.
pub(super) fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Puts a signed number, of which those near zero are short: the order is 0, -1, 1, -2.
pub(super) fn put_signed(out: &mut Vec<u8>, n: i64) {
    put(out, (n << 1 ^ n >> 63) as u64);
}

/// Puts ascending granule numbers, none twice: how many there are; then their runs.
pub(super) fn put_granules(out: &mut Vec<u8>, granules: impl ExactSizeIterator<Item = u32>) {
    put(out, granules.len() as u64);
    let mut runs = RunCoder::new(out);
    granules.for_each(|granule| runs.add(granule));
    runs.end();
}

/// Puts ascending numbers, none twice: for each run of successive numbers its distance from the end
/// of the one before, doubled, and one more if the run is longer than one; its length less two then
/// follows.
pub(super) struct RunCoder<'a> {
    out: &'a mut Vec<u8>,
    /// The run that numbers are added to, and the end of the one before.
    run: Range<u32>,
    end: u32,
}

impl<'a> RunCoder<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, run: 0..0, end: 0 }
    }

    #[inline]
    pub fn add(&mut self, number: u32) {
        if number != self.run.end || self.run.is_empty() {
            self.flush();
            self.run.start = number;
        }
        self.run.end = number + 1;
    }

    pub fn end(mut self) {
        self.flush();
    }

    fn flush(&mut self) {
        if !self.run.is_empty() {
            put_run(self.out, self.run.start - self.end, (self.run.end - self.run.start).into());
            self.end = self.run.end;
        }
    }
}

/// Takes numbers off bytes.
pub(super) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn take(&mut self, n: usize) -> io::Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n).ok_or_else(|| damaged("it ends early"))?;
        self.0 = rest;
        Ok(head)
    }

    pub fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn u32(&mut self) -> io::Result<u32> {
        let b = self.take(4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    pub fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from(self.u32()?) | u64::from(self.u32()?) << 32)
    }

    #[inline]
    pub fn number(&mut self) -> io::Result<u64> {
        match *self.0 {
            [one, ref rest @ ..] if one < 0x80 => {
                self.0 = rest;
                Ok(u64::from(one))
            }
            [one, two, ref rest @ ..] if two < 0x80 => {
                self.0 = rest;
                Ok(u64::from(one & 0x7f) | u64::from(two) << 7)
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> io::Result<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                break;
            }
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(damaged("a number is too long"))
    }

    pub fn small(&mut self) -> io::Result<u32> {
        u32::try_from(self.number()?).map_err(|_| damaged("a number is too large"))
    }

    pub fn signed(&mut self) -> io::Result<i64> {
        let n = self.number()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// Takes a list of granules, of which there are `of`. Hands each run of the list to `each`: its
    /// first number and the one behind its last. Returns how many granules the list has.
    #[inline]
    pub fn granules(&mut self, of: u32, each: impl FnMut(u32, u32)) -> io::Result<u32> {
        let count = self.small()?;
        self.runs(count, of, each)?;
        Ok(count)
    }

    /// Takes the runs of `count` numbers below `of`. Hands each to `each`: its first number and the
    /// one behind its last.
    #[inline]
    pub fn runs(&mut self, count: u32, of: u32, mut each: impl FnMut(u32, u32)) -> io::Result<()> {
        let (mut left, mut next) = (count, 0u32);
        while left > 0 {
            let gap = self.number()?;
            let run = if gap & 1 == 0 { 1 } else { self.number()?.saturating_add(2) };
            let first = u64::from(next) + (gap >> 1);
            if run > u64::from(left) || first.saturating_add(run) > u64::from(of) {
                return Err(damaged("a list of granules goes past the last one"));
            }
            next = (first + run) as u32;
            left -= run as u32;
            each(first as u32, next);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, add_run, put, put_granules, put_runs, put_signed};

    #[test]
    fn numbers_read_back() {
        for n in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, n);
            put_signed(&mut out, n as i64);
            let mut bytes = Bytes(&out);
            assert_eq!(bytes.number().unwrap(), n);
            assert_eq!(bytes.signed().unwrap(), n as i64);
            assert!(bytes.0.is_empty());
        }
        assert!(Bytes(&[0x80; 9]).number().is_err());
        assert!(Bytes(&[0xff; 10]).number().is_err(), "more than 64 bits");
    }

    #[test]
    fn lists_read_back_and_runs_are_short() {
        for list in [&[][..], &[0], &[7], &[0, 1, 2, 3], &[0, 2, 4], &[5, 6, 9, 10, 11, 4000]] {
            let mut out = Vec::new();
            put_granules(&mut out, list.iter().copied());
            let mut read = Vec::new();
            let mut bytes = Bytes(&out);
            let count = bytes.granules(4001, |a, b| read.extend(a..b)).unwrap();
            assert_eq!((count as usize, &read[..]), (list.len(), list));
            assert!(bytes.0.is_empty());
            if let Some(last) = list.last() {
                assert!(Bytes(&out).granules(*last, |_, _| {}).is_err(), "{list:?} is too long");
            }
        }
        let mut runs = Vec::new();
        for (from, to) in [(3, 4), (4, 6), (9, 10)] {
            add_run(&mut runs, from, to);
        }
        assert_eq!(runs, [(3, 6), (9, 10)]);
        let (mut of_runs, mut of_numbers) = (Vec::new(), Vec::new());
        put_runs(&mut of_runs, &runs);
        put_granules(&mut of_numbers, [3, 4, 5, 9].into_iter());
        assert_eq!(of_runs, of_numbers);
        let all: Vec<u32> = (0..16384).collect();
        let mut out = Vec::new();
        put_granules(&mut out, all.iter().copied());
        assert!(out.len() < 8);
    }
}
