//! The two-stage model of packet sizes: Schneider, "Performance evaluation of packet capturing
//! systems for high-speed networks" (2005), section 4.2; formulas by their number there.
//!
//! Sizes that many packets have, the outliers, are drawn exactly from a first array. The others
//! share bins: where the first array holds no size, a bin is drawn from a second array, and in it a
//! size uniformly. A cell is worth the same share of the packets in both arrays, as (4.10) has it:
//! together they have as many cells as the precision. A look into the second array draws among the
//! cells that are filled there. A bin's jitter reaches over its whole width; size 0 and sizes above
//! the maximum cannot occur, so the jitter is cut to the sizes that can.

use serde::{Deserialize, Serialize};

use super::{Counts, Error, Fault};

/// The most cells of an array; more than a million tell nothing more apart.
pub const MAX_PRECISION: u32 = 1_000_000;

/// The parameters of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Share of all packets from which on a size is an outlier, above 0 to 1.
    pub outlier_bound: f64,
    /// Sizes in a bin.
    pub bin_width: u16,
    /// Cells in an array.
    pub precision: u32,
    /// Larger packets are left out of the model. By default 1500, or the largest packet where that
    /// is larger: nothing is left out.
    pub max_size: Option<u16>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { outlier_bound: 0.002, bin_width: 20, precision: 1000, max_size: None }
    }
}

impl Parameters {
    const MAX_SIZE: u16 = 1500;

    /// Returns the largest size of a model of `counts`.
    pub fn max_size(&self, counts: &Counts) -> u16 {
        let largest = counts.largest().unwrap_or(0);
        self.max_size.unwrap_or(largest.max(Self::MAX_SIZE))
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = if !(self.outlier_bound > 0.0 && self.outlier_bound <= 1.0) {
            "the outlier bound is a share above 0 and up to 1"
        } else if self.bin_width == 0 {
            "a bin is at least 1 size wide"
        } else if self.precision == 0 || self.precision > MAX_PRECISION {
            "the precision is from 1 to 1000000 cells"
        } else if self.max_size == Some(0) {
            "the largest size is at least 1"
        } else {
            return Ok(());
        };
        Err(Error::Parameters(wrong))
    }
}

/// The model's two arrays, as how many cells each entry has, and what it was made with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cells {
    /// The parameters; not known where the model was read from pktgen's commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlier_bound: Option<f64>,
    pub bin_width: u16,
    /// Cells of the first array. Cells that no outlier has stand for the second array.
    pub precision: u32,
    pub max_size: u16,
    /// Sizes and their cells in the first array.
    pub outliers: Vec<(u16, u32)>,
    /// First sizes of bins and their cells in the second array: what the outliers leave of
    /// `precision`. Files of others may have rounded them otherwise.
    pub bins: Vec<(u16, u32)>,
}

/// A model from which sizes can be drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Cells", into = "Cells")]
pub struct TwoStage(Cells);

impl From<TwoStage> for Cells {
    fn from(model: TwoStage) -> Self {
        model.0
    }
}

impl TryFrom<Cells> for TwoStage {
    type Error = Fault;

    /// Sorts entries by size, drops those without cells, and checks that every draw gives a size.
    fn try_from(mut cells: Cells) -> Result<Self, Fault> {
        if cells.bin_width == 0 || cells.max_size == 0 {
            return Err(Fault::Cells("the bin width and the maximum size are at least 1"));
        }
        if cells.precision == 0 || cells.precision > MAX_PRECISION {
            return Err(Fault::Cells("the precision is from 1 to 1000000 cells"));
        }
        for entries in [&mut cells.outliers, &mut cells.bins] {
            entries.retain(|(_, n)| *n > 0);
            entries.sort_unstable();
            if let Some(twice) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(Fault::Cell(twice[0].0));
            }
        }
        let model = Self(cells);
        let Cells { max_size, bin_width, .. } = model.0;
        let bad_outlier = |size: &&(u16, u32)| size.0 == 0 || size.0 > max_size;
        let bad_bin = |bin: &&(u16, u32)| {
            !bin.0.is_multiple_of(bin_width) || model.sizes_of_bin(bin.0).is_empty()
        };
        let mut bad = model.0.outliers.iter().filter(bad_outlier);
        if let Some((size, _)) = bad.next().or(model.0.bins.iter().find(bad_bin)) {
            return Err(Fault::Cell(*size));
        }
        let (first, second) = (sum(&model.0.outliers), sum(&model.0.bins));
        if first > u64::from(model.0.precision) {
            return Err(Fault::Cells("the outliers have more cells than the precision"));
        }
        if second > 2 * u64::from(MAX_PRECISION) {
            return Err(Fault::Cells("the bins have more than 2000000 cells"));
        }
        if first < u64::from(model.0.precision) && second == 0 {
            return Err(Fault::Cells(
                "the outliers have fewer cells than the precision, and there are no bins",
            ));
        }
        Ok(model)
    }
}

fn sum(entries: &[(u16, u32)]) -> u64 {
    entries.iter().map(|(_, cells)| u64::from(*cells)).sum()
}

/// The weight of a packet when cells are shared out: bins get parts of packets.
const PACKET: u32 = 32;

impl TwoStage {
    /// Makes the model of a distribution.
    pub fn new(counts: &Counts, parameters: &Parameters) -> Result<Self, Error> {
        parameters.check()?;
        let max_size = parameters.max_size(counts);
        let all = counts.packets() - counts.above(max_size);
        if all == 0 {
            return Err(Error::AllAbove { max_size });
        }
        let (outliers, bins) = weigh(counts, all, max_size, parameters);
        let weights = outliers.iter().chain(&bins).map(|(_, weight)| *weight);
        let mut first = share_out(&weights.collect::<Vec<_>>(), parameters.precision);
        let second = first.split_off(outliers.len());
        let entries = |of: &[(u16, u128)], cells: Vec<u32>| {
            of.iter().map(|(size, _)| *size).zip(cells).collect()
        };
        let cells = Cells {
            outlier_bound: Some(parameters.outlier_bound),
            bin_width: parameters.bin_width,
            precision: parameters.precision,
            max_size,
            outliers: entries(&outliers, first),
            bins: entries(&bins, second),
        };
        Self::try_from(cells).map_err(Error::Model)
    }

    pub fn cells(&self) -> &Cells {
        &self.0
    }

    /// Returns the sizes that a draw of the bin can give.
    fn sizes_of_bin(&self, start: u16) -> std::ops::Range<u32> {
        let (start, max) = (u32::from(start), u32::from(self.0.max_size));
        start.max(1)..(start + u32::from(self.0.bin_width)).min(max + 1)
    }

    /// Returns the sizes that the model gives and how probable each is, smallest first.
    pub fn probabilities(&self) -> Vec<(u16, f64)> {
        let mut by_size = vec![0.0; usize::from(self.0.max_size) + 1];
        let precision = f64::from(self.0.precision);
        for (size, cells) in &self.0.outliers {
            by_size[usize::from(*size)] += f64::from(*cells) / precision;
        }
        let rest = 1.0 - sum(&self.0.outliers) as f64 / precision;
        let second = sum(&self.0.bins) as f64;
        for (start, cells) in &self.0.bins {
            let sizes = self.sizes_of_bin(*start);
            let each = rest * f64::from(*cells) / second / sizes.len() as f64;
            sizes.for_each(|size| by_size[size as usize] += each);
        }
        (0..=u16::MAX).zip(by_size).filter(|(_, p)| *p > 0.0).collect()
    }

    /// Returns the model as the smallest whole numbers that stand to each other as the
    /// probabilities do.
    pub fn counts(&self) -> Result<Counts, Error> {
        let cells = &self.0;
        let (first, second) = (sum(&cells.outliers), sum(&cells.bins).max(1));
        let rest = u128::from(u64::from(cells.precision) - first);
        // Bins have one of three numbers of sizes: the first lacks size 0, the last what is cut.
        let widths = cells.bins.iter().map(|(start, _)| self.sizes_of_bin(*start).len() as u128);
        let common = widths.fold(1, lcm);
        let mut by_size = vec![0u128; usize::from(cells.max_size) + 1];
        for (size, n) in &cells.outliers {
            by_size[usize::from(*size)] += u128::from(*n) * u128::from(second) * common;
        }
        for (start, n) in &cells.bins {
            let sizes = self.sizes_of_bin(*start);
            let each = rest * u128::from(*n) * (common / sizes.len() as u128);
            sizes.for_each(|size| by_size[size as usize] += each);
        }
        let divisor = by_size.iter().copied().fold(0, gcd);
        let mut counts = Counts::new();
        for (size, n) in (0..=u16::MAX).zip(by_size).filter(|(_, n)| *n > 0) {
            let n = u64::try_from(n / divisor).map_err(|_| Error::Overflow { size })?;
            counts.add(size, n)?;
        }
        Ok(counts)
    }
}

/// Returns the weights of outliers and of bins, in parts of a packet: (4.1) to (4.9).
#[allow(clippy::type_complexity, reason = "two lists of sizes and their weights")]
fn weigh(
    counts: &Counts,
    all: u64,
    max_size: u16,
    parameters: &Parameters,
) -> (Vec<(u16, u128)>, Vec<(u16, u128)>) {
    let is_outlier = |packets: u64| packets as f64 / all as f64 >= parameters.outlier_bound;
    let (mut outliers, mut bins) = (Vec::new(), Vec::new());
    let (mut inside, mut others) = (Vec::new(), 0u128);
    let mut sizes = counts.iter().filter(|(size, _)| *size <= max_size).peekable();
    while let Some((size, packets)) = sizes.next() {
        let bin = size / parameters.bin_width;
        let weight = u128::from(packets) << PACKET;
        if is_outlier(packets) {
            inside.push((size, weight));
        } else {
            others += weight;
        }
        if sizes.peek().is_some_and(|(next, _)| next / parameters.bin_width == bin) {
            continue;
        }
        // The bin is complete. Where all its sizes are outliers, no size is left to average.
        let not_outliers = u128::from(parameters.bin_width) - inside.len() as u128;
        let average = others.checked_div(not_outliers).unwrap_or(0);
        bins.push((bin * parameters.bin_width, others + average * inside.len() as u128));
        outliers.extend(inside.drain(..).map(|(size, weight)| (size, weight - average)));
        others = 0;
    }
    (outliers, bins)
}

/// Shares `cells` out in proportion to weights, by largest remainder: the sum is exact, and no
/// share is off by a whole cell.
fn share_out(weights: &[u128], cells: u32) -> Vec<u32> {
    let total: u128 = weights.iter().sum();
    let quota = |weight: u128| weight * u128::from(cells);
    let mut shares: Vec<u32> = weights.iter().map(|w| (quota(*w) / total) as u32).collect();
    let left = cells - shares.iter().sum::<u32>();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|i| std::cmp::Reverse(quota(weights[*i]) % total));
    by_remainder.iter().take(left as usize).for_each(|i| shares[*i] += 1);
    shares
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u128, b: u128) -> u128 {
    a / gcd(a, b) * b
}
