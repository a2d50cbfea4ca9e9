//! Where do drawn inputs come from? From a seed, so that a test that fails can be run again with
//! the same input.
//!
//! The generator is Sebastiano Vigna's splitmix64 (public domain, <https://prng.di.unimi.it>): a
//! counter and a mixing function. Any seed will do, also neighbouring ones. It is no cipher, and
//! the numbers below `n` are as even as `n` is small against 2^64.

/// A splitmix64 generator; the number is its state, at first the seed.
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Draws any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number less than `n`.
    ///
    /// # Panics
    /// If `n` is not more than 0.
    pub fn below<N: TryInto<u64> + TryFrom<u64>>(&mut self, n: N) -> N {
        let n = n.try_into().ok().filter(|n| *n > 0).expect("a number more than 0");
        N::try_from(self.draw() % n).ok().expect("less than a number of this type")
    }

    /// Draws true once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Draws true `n` times of a hundred.
    pub fn percent(&mut self, n: usize) -> bool {
        self.below(100) < n
    }

    /// Draws true `n` times of a thousand.
    pub fn per_mille(&mut self, n: u32) -> bool {
        self.below(1000) < n
    }

    /// Draws one of some values.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Draws `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.draw() as u8).collect()
    }

    /// Draws an array of bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.draw() as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    /// The first outputs of the reference implementation, `splitmix64.c`.
    #[test]
    fn its_numbers_are_the_references() {
        let mut random = SplitMix64(1_234_567);
        let drawn: Vec<u64> = (0..5).map(|_| random.draw()).collect();
        let reference = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(drawn, reference);
    }

    #[test]
    fn what_is_drawn_stays_within_its_bounds() {
        let mut random = SplitMix64(1);
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[random.below(7)] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
        assert!(!random.percent(0) && random.percent(100));
        assert!(!random.per_mille(0) && random.per_mille(1000));
        assert!(random.one_in(1));
        assert_eq!((random.bytes(9).len(), random.array::<3>().len(), random.one(&[5])), (9, 3, 5));
    }
}
