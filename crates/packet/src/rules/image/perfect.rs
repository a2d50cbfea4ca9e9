//! How does a hash table get by without collisions?
//!
//! All keys that will ever stand in it are known. Keys are hashed into buckets of some three keys,
//! and each bucket, the largest first, is given a **displacement** that sends its keys to slots
//! that are free (Belazzougui, Botelho and Dietzfelbinger, "Hash, Displace, and Compress", 2009). A
//! look-up reads its bucket's displacement and one slot. There is no chain, so that nobody can make
//! look-ups slow by choosing packets.

const MIX_1: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const MIX_3: u64 = 0xd6e8_feb8_6659_fd93;

fn finish(x: u64) -> u64 {
    let x = (x ^ x >> 29).wrapping_mul(MIX_3);
    x ^ x >> 32
}

/// Returns the hash of an IPv4 key: `td_hash4` of `look.h`.
pub fn hash4(seed: u64, addresses: u64, rest: u64) -> u64 {
    let x = (addresses ^ seed).wrapping_mul(MIX_1);
    // Short prefixes differ in high bits alone, and so do the signatures' numbers in `rest`. The
    // two must not cancel each other.
    let x = x ^ x >> 32;
    finish(x.wrapping_add(rest.wrapping_mul(MIX_2)))
}

/// Returns the hash of an IPv6 key: `td_hash6` of `look.h`.
pub fn hash6(seed: u64, word: [u64; 4], rest: u64) -> u64 {
    let source = (word[0] ^ seed)
        .wrapping_mul(MIX_1)
        .wrapping_add((word[1] ^ seed >> 7).wrapping_mul(MIX_2));
    let destination =
        word[2].wrapping_add(seed).wrapping_mul(MIX_2).wrapping_add(word[3].wrapping_mul(MIX_3));
    let source = source ^ source >> 31;
    let destination = destination ^ destination >> 33;
    finish(
        source
            .wrapping_add(rest.wrapping_mul(MIX_2))
            .wrapping_mul(MIX_1)
            .wrapping_add(destination.wrapping_mul(MIX_3)),
    )
}

/// Returns the bits of the Bloom filter that a hash sets, before the filter's size is applied.
pub fn bloom_bits(seed: u64, hash: u64) -> [u32; 4] {
    let other = (hash ^ seed).wrapping_mul(MIX_2);
    let other = other ^ other >> 32;
    [hash as u32, (hash >> 32) as u32, other as u32, (other >> 32) as u32]
}

fn slot(hash: u64, displacement: u16, slot_shift: u32) -> u32 {
    ((hash >> 32) as u32 ^ u32::from(displacement).wrapping_mul(0x9e37_79b1))
        .wrapping_mul(0x85eb_ca6b)
        >> slot_shift
}

/// A hash table: which slot each key has.
pub struct Table {
    pub bucket_mask: u32,
    /// 32 minus the binary logarithm of the number of slots.
    pub slot_shift: u32,
    pub displacements: Vec<u16>,
    /// The slot of each key, in the order in which the keys were given.
    pub slots: Vec<u32>,
}

impl Table {
    pub fn nslots(&self) -> usize {
        1 << (32 - self.slot_shift)
    }

    /// Makes the table of these hashes. `None` where two of them are too much alike; another seed
    /// makes other hashes.
    pub fn build(hashes: &[u64]) -> Option<Self> {
        // At least a fifth stays free, because the last keys would search long for a slot.
        let nslots = (hashes.len() * 5 / 4 + 1).next_power_of_two().max(2);
        let slot_shift = 32 - nslots.ilog2();
        let nbuckets = (nslots / 4).max(1);
        let bucket_mask = nbuckets as u32 - 1;
        let mut order: Vec<(u32, u32)> =
            (0..).zip(hashes).map(|(key, hash)| (*hash as u32 & bucket_mask, key)).collect();
        order.sort_unstable();
        let mut buckets: Vec<&[(u32, u32)]> = order.chunk_by(|a, b| a.0 == b.0).collect();
        buckets.sort_by_key(|keys| std::cmp::Reverse(keys.len()));

        let mut displacements = vec![0; nbuckets];
        let mut slots = vec![0; hashes.len()];
        let mut is_used = vec![false; nslots];
        for keys in buckets {
            let displacement = (0..=u16::MAX).find(|&displacement| {
                place(keys, hashes, displacement, slot_shift, &mut is_used, &mut slots)
            })?;
            displacements[keys[0].0 as usize] = displacement;
        }
        Some(Self { bucket_mask, slot_shift, displacements, slots })
    }
}

/// Puts a bucket's keys into the slots to which the displacement sends them, if all of those are
/// free.
fn place(
    keys: &[(u32, u32)],
    hashes: &[u64],
    displacement: u16,
    slot_shift: u32,
    is_used: &mut [bool],
    slots: &mut [u32],
) -> bool {
    for (n, (_, key)) in keys.iter().enumerate() {
        let slot = slot(hashes[*key as usize], displacement, slot_shift);
        if is_used[slot as usize] {
            for (_, key) in &keys[..n] {
                is_used[slots[*key as usize] as usize] = false;
            }
            return false;
        }
        is_used[slot as usize] = true;
        slots[*key as usize] = slot;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_keys_share_a_slot() {
        for n in [0usize, 1, 2, 3, 4, 5, 17, 100, 1000, 52_428, 100_000] {
            let hashes: Vec<u64> = (0..n as u64).map(|i| hash4(7, i, 1)).collect();
            let table = Table::build(&hashes).unwrap();
            let mut slots: Vec<u32> = hashes
                .iter()
                .map(|&hash| {
                    let bucket = hash as u32 & table.bucket_mask;
                    slot(hash, table.displacements[bucket as usize], table.slot_shift)
                })
                .collect();
            assert_eq!(slots, table.slots);
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), n);
            assert!(slots.iter().all(|&slot| (slot as usize) < table.nslots()));
        }
    }

    #[test]
    fn short_prefixes_of_many_signatures_have_hashes_of_their_own() {
        let keys = (0..1u64 << 16).flat_map(|net| (0..8u64).map(move |n| (net << 48, n << 48)));
        let hashes = |hash: &dyn Fn(u64, u64) -> u64| {
            let mut hashes: Vec<u64> = keys.clone().map(|(net, n)| hash(net, n)).collect();
            hashes.sort_unstable();
            hashes.dedup();
            hashes.len()
        };
        assert_eq!(hashes(&|net, n| hash4(0, net, n)), 8 << 16);
        assert_eq!(hashes(&|net, n| hash6(0, [net, 0, 0, 0], n)), 8 << 16);
        assert_eq!(hashes(&|net, n| hash6(0, [0, 0, net, 0], n)), 8 << 16);
    }

    #[test]
    fn equal_hashes_need_another_seed() {
        assert!(Table::build(&[5, 5]).is_none());
    }
}
