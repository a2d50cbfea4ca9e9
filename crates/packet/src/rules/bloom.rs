//! How large is a Bloom filter for a promised rate of false positives?
//!
//! In a filter of `m` bits that holds `n` patterns, each of which set `k` bits, a pattern that the
//! filter does not hold finds all its bits set at a rate of `f = (1 - e^(-kn/m))^k` (Gopalakrishnan
//! 2011, section 4.7). In tapdeck such a false positive costs an exact look-up that finds nothing;
//! no packet is judged wrongly because of it.
//!
//! This is arithmetic alone. The filter's bits are in [`super::image`].

/// Number of bits that each pattern sets: the thesis' `k`.
pub const HASHES: u32 = 4;
/// The rate that is promised by default: the one that the thesis' filter of [`THESIS_BITS`] was
/// made for.
pub const PROMISED_RATE: f64 = 0.002;
/// Size of the thesis' filter in bits.
pub const THESIS_BITS: u64 = 1 << 16;
/// Size of the smallest filter in bits: a cache line.
pub const MIN_BITS: u64 = 512;
/// Size of the largest filter in bits: 64 MiB.
pub const MAX_BITS: u64 = 1 << 29;

/// Why there is no filter that keeps the promise.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// a rate is a share, and neither nothing nor all
    #[error(
        "a false-positive rate of {0} cannot be promised: give a share above 0 and below 1, as 0.002"
    )]
    Rate(f64),
    /// the number of bits is none that a filter can have
    #[error(
        "a Bloom filter cannot have {0} bits: give a power of two from {MIN_BITS} to {MAX_BITS}"
    )]
    Size(u64),
    /// the filter would tell more false positives than promised
    #[error(
        "{patterns} patterns in a Bloom filter of {bits} bits make a false-positive rate of {rate:.4}, and {promised} is promised: at most {capacity} patterns keep it, or {needed} bits"
    )]
    Promise { patterns: u64, bits: u64, rate: f64, promised: f64, capacity: u64, needed: u64 },
    /// no filter is large enough
    #[error(
        "{patterns} patterns at a false-positive rate of {promised} need a Bloom filter of more than {most} bits: promise a higher rate, or merge rules"
    )]
    TooLarge { patterns: u64, promised: f64, most: u64 },
}

/// Returns the rate of false positives: the share of patterns that the filter takes for its own
/// among those that it does not hold.
pub fn rate(bits: u64, patterns: u64) -> f64 {
    let k = f64::from(HASHES);
    let is_set = -(-k * patterns as f64 / bits as f64).exp_m1();
    is_set.powf(k)
}

/// Bits that a filter has for each pattern at this rate.
fn bits_each(rate: f64) -> f64 {
    let k = f64::from(HASHES);
    -k / (-rate.powf(1.0 / k)).ln_1p()
}

/// Returns the most patterns with which a filter of so many bits keeps the rate.
pub fn capacity(bits: u64, promised: f64) -> u64 {
    let mut patterns = (bits as f64 / bits_each(promised)) as u64;
    // Rounding may have made the number too large by one.
    while patterns > 0 && rate(bits, patterns) > promised {
        patterns -= 1;
    }
    patterns
}

/// Returns the least power of two of bits, at least [`MIN_BITS`] and at most 2^62, that keeps the
/// rate.
pub fn bits(patterns: u64, promised: f64) -> u64 {
    const MOST: u64 = 1 << 62;
    let about = (patterns as f64 * bits_each(promised)).min(MOST as f64) as u64;
    let mut bits = about.next_power_of_two().max(MIN_BITS);
    while bits < MOST && rate(bits, patterns) > promised {
        bits *= 2;
    }
    bits
}

/// How large a filter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A given number of bits, as in the thesis; an error where that breaks the promise.
    Fixed(u64),
    /// The bits that the promise takes, up to a given number.
    UpTo(u64),
}

/// Returns the size in bits of a filter for so many patterns.
///
/// # Errors
/// Where the rate or the size is none that can be, or the promise cannot be kept.
pub fn plan(patterns: u64, promised: f64, size: Size) -> Result<u64, Error> {
    if !(promised > 0.0 && promised < 1.0) {
        return Err(Error::Rate(promised));
    }
    let (Size::Fixed(limit) | Size::UpTo(limit)) = size;
    if !limit.is_power_of_two() || !(MIN_BITS..=MAX_BITS).contains(&limit) {
        return Err(Error::Size(limit));
    }
    let needed = bits(patterns, promised);
    match size {
        Size::Fixed(bits) if needed > bits => Err(Error::Promise {
            patterns,
            bits,
            rate: rate(bits, patterns),
            promised,
            capacity: capacity(bits, promised),
            needed,
        }),
        Size::Fixed(bits) => Ok(bits),
        Size::UpTo(most) if needed > most => Err(Error::TooLarge { patterns, promised, most }),
        Size::UpTo(_) => Ok(needed),
    }
}
