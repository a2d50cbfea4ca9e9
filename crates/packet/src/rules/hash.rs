//! A hash for keys of rules, fast because tables of keys are asked for every packet and every
//! signature.
//!
//! The hash does not withstand an adversary who chooses keys to collide. It need not: rules come
//! from their owner, and packets are only looked up, never inserted.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with the hash [`Folding`].
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Folding>>;

/// Multiplies each word into 128 bits and folds them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Folding(u64);

impl Hasher for Folding {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64(number as u64);
        self.write_u64((number >> 64) as u64);
    }
}
