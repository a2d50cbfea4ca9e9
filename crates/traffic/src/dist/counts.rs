//! How many packets are there of each size? All that a distribution is made of; where the numbers
//! come from, and what is made of them, is elsewhere.

use super::Error;

const SIZES: usize = 1 << 16;

/// How many packets there are of each size from 1 to 65,535 bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets of each size, up to the largest that occurs.
    by_size: Vec<u64>,
    total: u64,
}

/// A size's part in a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    pub size: u16,
    pub packets: u64,
    /// The size's share of all packets, from 0 to 1.
    pub share: f64,
    /// The sum of the shares of this size and all smaller ones.
    pub cumulative: f64,
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Counts {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds packets of a size in bytes. After an error nothing has changed.
    pub fn add(&mut self, size: u16, packets: u64) -> Result<(), Error> {
        if size == 0 {
            return Err(Error::SizeZero);
        }
        // Where the total does not overflow, no size does.
        self.total = self.total.checked_add(packets).ok_or(Error::Overflow { size })?;
        let at = usize::from(size);
        if packets > 0 {
            if at >= self.by_size.len() {
                self.by_size.resize(at + 1, 0);
            }
            self.by_size[at] += packets;
        }
        Ok(())
    }

    /// Adds another distribution. After an error nothing has changed.
    pub fn merge(&mut self, other: &Self) -> Result<(), Error> {
        let size = other.largest().unwrap_or(0);
        self.total = self.total.checked_add(other.total).ok_or(Error::Overflow { size })?;
        let len = self.by_size.len().max(other.by_size.len());
        self.by_size.resize(len, 0);
        for (mine, theirs) in self.by_size.iter_mut().zip(&other.by_size) {
            *mine += theirs;
        }
        Ok(())
    }

    /// Returns the number of all packets.
    pub fn packets(&self) -> u64 {
        self.total
    }

    /// Returns the packets of one size.
    pub fn get(&self, size: u16) -> u64 {
        self.by_size.get(usize::from(size)).copied().unwrap_or(0)
    }

    /// Returns the sizes that occur and their packets, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        (0..=u16::MAX).zip(self.by_size.iter().copied()).filter(|(_, packets)| *packets > 0)
    }

    pub fn smallest(&self) -> Option<u16> {
        self.iter().next().map(|(size, _)| size)
    }

    pub fn largest(&self) -> Option<u16> {
        Some(self.by_size.len().checked_sub(1)? as u16)
    }

    /// Returns the number of packets of more than `size` bytes.
    pub fn above(&self, size: u16) -> u64 {
        self.by_size.iter().skip(usize::from(size) + 1).sum()
    }

    /// Returns the distribution of packets of at most `size` bytes.
    pub fn up_to(&self, size: u16) -> Self {
        let cut = &self.by_size[..self.by_size.len().min(usize::from(size) + 1)];
        let len = cut.iter().rposition(|packets| *packets > 0).map_or(0, |last| last + 1);
        Self { by_size: cut[..len].to_vec(), total: self.total - self.above(size) }
    }

    /// Returns the bytes of a packet in the mean; `None` where there is no packet.
    pub fn mean(&self) -> Option<f64> {
        let bytes: u128 = self.iter().map(|(size, n)| u128::from(size) * u128::from(n)).sum();
        (self.total > 0).then(|| bytes as f64 / self.total as f64)
    }

    /// Returns the `n` sizes with the most packets, most first, the smaller first among equals.
    pub fn top(&self, n: usize) -> Vec<Share> {
        let mut sizes: Vec<(u16, u64)> = self.iter().collect();
        sizes.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
        let mut sum = 0;
        let shares = sizes.into_iter().take(n).map(|(size, packets)| {
            sum += packets;
            Share {
                size,
                packets,
                share: packets as f64 / self.total as f64,
                cumulative: sum as f64 / self.total as f64,
            }
        });
        shares.collect()
    }

    /// Returns the sizes that occur and how probable each is, smallest first.
    pub fn probabilities(&self) -> Vec<(u16, f64)> {
        self.iter().map(|(size, n)| (size, n as f64 / self.total as f64)).collect()
    }

    /// Returns the Kolmogorov-Smirnov distance to other probabilities: the largest difference, over
    /// all sizes, between the shares of packets of at most that size. Equal distributions have
    /// distance 0, and those with nothing in common 1.
    pub fn ks_distance(&self, probabilities: &[(u16, f64)]) -> f64 {
        let mut difference = vec![0.0; SIZES];
        for (size, p) in self.probabilities() {
            difference[usize::from(size)] += p;
        }
        for (size, p) in probabilities {
            difference[usize::from(*size)] -= p;
        }
        let mut sum: f64 = 0.0;
        difference.iter().fold(0.0, |most, d| {
            sum += d;
            f64::max(most, sum.abs())
        })
    }
}
