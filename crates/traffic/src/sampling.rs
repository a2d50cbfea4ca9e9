//! Drawing: which size, and which flow, has the next packet?
//!
//! Every choice is made from the output of [`SplitMix64`], which a BPF program computes as well as
//! user space does, and by the alias method, which takes two look-ups whatever the number of
//! outcomes. So senders in the kernel and in user space make the same packets from the same seed.

pub use tapdeck_packet::generate::Column;

/// A generator of 64-bit numbers with 64 bits of state: Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators" (OOPSLA 2014), figure 17.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Returns a number in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// Mixes the bits of a number. This is the finaliser of [`SplitMix64`], a bijection that leaves no
/// bit where it was.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Draws from weighted outcomes in constant time: Walker's alias method, with Vose's way to build
/// the table ("A linear algorithm for generating random numbers with a given distribution", IEEE
/// TSE 17 (9), 1991).
///
/// The table is built in integers. A column's threshold is kept in 32 bits, so an outcome's
/// probability is exact to 2⁻³² of its column.
#[derive(Clone, Debug)]
pub struct Alias {
    columns: Vec<Column>,
}

impl Alias {
    /// Builds the table. Outcome `i` has `weights[i]` chances of their sum; at most 2³² outcomes.
    ///
    /// # Panics
    /// If all weights are 0, or there are none.
    pub fn new(weights: &[u64]) -> Self {
        let n = weights.len() as u128;
        let total: u128 = weights.iter().map(|&w| u128::from(w)).sum();
        assert!(total > 0, "one weight at least must be more than 0");
        // Each column holds `total`, each outcome brings its weight `n` times.
        let mut left: Vec<u128> = weights.iter().map(|&w| u128::from(w) * n).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..weights.len()).partition(|&i| left[i] < total);
        let whole = |i: usize| Column { threshold: u32::MAX, own: i as u32, other: i as u32 };
        let mut columns: Vec<Column> = (0..weights.len()).map(whole).collect();
        while let (Some(&i), Some(&j)) = (small.last(), large.last()) {
            small.pop();
            columns[i].threshold = share(left[i], total);
            columns[i].other = j as u32;
            left[j] -= total - left[i];
            if left[j] < total {
                large.pop();
                small.push(j);
            }
        }
        Self { columns }
    }

    /// Returns the outcome that a random number stands for: the lower half chooses the column, the
    /// upper half one of the two outcomes there.
    pub fn pick(&self, random: u64) -> usize {
        Column::pick(&self.columns, random) as usize
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }
}

/// Returns `part / total` of 2³², rounded. A part below the whole never becomes the whole.
fn share(part: u128, total: u128) -> u32 {
    // Weights of 64 bits and 2³² outcomes fit: the shift loses nothing that matters at 2⁻³².
    let spare = part.leading_zeros().min(32);
    let (part, total) = (part << spare, total >> (32 - spare));
    u32::try_from((part + total / 2) / total.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Alias, SplitMix64};
    use proptest::prelude::*;

    /// Returns the probability of each outcome, added up over the table.
    fn probabilities(alias: &Alias, outcomes: usize) -> Vec<f64> {
        let mut p = vec![0.0; outcomes];
        for c in alias.columns() {
            let own = if c.own == c.other { 1.0 } else { f64::from(c.threshold) / 2f64.powi(32) };
            p[c.own as usize] += own / outcomes as f64;
            p[c.other as usize] += (1.0 - own) / outcomes as f64;
        }
        p
    }

    proptest! {
        #[test]
        fn a_table_holds_each_outcome_in_its_share(
            weights in prop::collection::vec(prop_oneof![0..10u64, any::<u64>()], 1..200)
                .prop_filter("none", |w| w.iter().any(|&w| w > 0))
        ) {
            let total: f64 = weights.iter().map(|&w| w as f64).sum();
            let p = probabilities(&Alias::new(&weights), weights.len());
            for (w, p) in weights.iter().zip(p) {
                prop_assert!((*w as f64 / total - p).abs() < 1e-8, "{w} of {total}: {p}");
            }
        }

        #[test]
        fn what_has_no_weight_is_never_drawn(seed: u64, nothing in 0..5usize) {
            let mut weights = [3, 1, 4, 1, 5];
            weights[nothing] = 0;
            let alias = Alias::new(&weights);
            let mut random = SplitMix64::new(seed);
            for _ in 0..1000 {
                prop_assert_ne!(alias.pick(random.next_u64()), nothing);
            }
        }
    }

    #[test]
    fn draws_follow_the_weights() {
        let weights = [1, 10, 100, 1000, 5000, 2, 2];
        let total: u64 = weights.iter().sum();
        let alias = Alias::new(&weights);
        let mut random = SplitMix64::new(2026);
        let mut drawn = [0u64; 7];
        let n = 1_000_000;
        for _ in 0..n {
            drawn[alias.pick(random.next_u64())] += 1;
        }
        let chi: f64 = weights
            .iter()
            .zip(drawn)
            .map(|(&w, d)| {
                let expected = w as f64 / total as f64 * f64::from(n);
                (d as f64 - expected).powi(2) / expected
            })
            .sum();
        // The 0.999 quantile of chi-square with 6 degrees of freedom.
        assert!(chi < 22.46, "{chi}");
    }

    #[test]
    fn the_numbers_are_those_of_the_paper() {
        // The first outputs of java.util.SplittableRandom's mixing from seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }
}
