//! Hash tables whose order of iteration is random, or determined by a [`crate::sim`] run.
//!
//! Main types: [`HashMap`], [`HashSet`], [`State`]. A table that is created on a simulated thread gets its key from the
//! run's seed, so that its order of iteration is the same in each run. Elsewhere the key is random, as in std. The
//! reason is that images may be hostile: with a known key, an attacker could choose entries that collide.
//!
//! The hashed values are mostly numbers of blocks and inodes. Each is mixed in with one multiplication of 64 by 64
//! bits, and the halves of the product are folded together. [`shard_of`] distributes numbers over locks. These two are
//! the only hashes for data in memory; hashes on disk belong to the format (`extant_ondisk`: htree, xattr, crc), and
//! tests compare contents with the hash of std.
//!
//! What it does not do: resist an attacker who can observe the places of entries.
//!
//! # Locking
//! None.

use std::hash::{BuildHasher, Hasher};

use crate::sim;

pub type HashMap<K, V> = std::collections::HashMap<K, V, State>;
pub type HashSet<T> = std::collections::HashSet<T, State>;

/// The key of a table's hashers.
#[derive(Clone, Debug)]
pub struct State {
    start: u64,
    factor: u64,
}

impl Default for State {
    fn default() -> State {
        let simulated = if sim::active() { sim::hash_key() } else { None };
        let [start, factor] = simulated.unwrap_or_else(|| {
            // std's own source of randomness for hash keys.
            let process = std::collections::hash_map::RandomState::new();
            [process.hash_one(0u8), process.hash_one(1u8)]
        });
        State { start, factor: factor | 1 }
    }
}

impl BuildHasher for State {
    type Hasher = Folded;

    #[inline]
    fn build_hasher(&self) -> Folded {
        Folded { state: self.start, factor: self.factor }
    }
}

/// 2^64 divided by the golden ratio: adjacent numbers get distant places (Knuth, vol. 3, 6.4; Linux:
/// `GOLDEN_RATIO_64`).
const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

/// The index of the lock, of 2^`bits`, to which a number belongs. There is no key: an attacker who chooses numbers that
/// collide here can only make threads wait for each other.
#[inline]
pub fn shard_of(n: u64, bits: u32) -> usize {
    (n.wrapping_mul(GOLDEN_RATIO) >> (64 - bits)) as usize
}

/// The hasher that the module describes.
#[derive(Clone, Debug)]
pub struct Folded {
    state: u64,
    factor: u64,
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for Folded {
    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.state = fold(self.state ^ n, self.factor);
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let word = chunk.iter().rev().fold(0u64, |w, b| w << 8 | u64::from(*b));
            self.write_u64(word);
        }
        self.write_u64(bytes.len() as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The last multiplication only mixed towards higher bits, but tables use the lowest and the highest bits.
        fold(self.state, GOLDEN_RATIO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_spread_and_tables_have_different_keys() {
        let (a, b) = (State::default(), State::default());
        let mut low = HashSet::default();
        let mut high = HashSet::default();
        for n in 0..4096u64 {
            low.insert(a.hash_one(n * 128) & 4095);
            high.insert(a.hash_one(n * 128) >> 52);
        }
        // If 4096 balls are thrown into as many bins, about two thirds of the bins get a ball.
        assert!(low.len() > 2400 && high.len() > 2400, "{} {}", low.len(), high.len());
        assert!((0..64u64).any(|n| a.hash_one(n) != b.hash_one(n)));
        assert_ne!(a.hash_one("ab"), a.hash_one("ab\0"));
    }

    #[test]
    fn neighbours_and_strides_use_all_shards() {
        for stride in [1, 2, 32, 8192, 1 << 20] {
            let used: HashSet<usize> = (0..1024).map(|n| shard_of(n * stride, 6)).collect();
            assert_eq!((used.len(), used.iter().max()), (64, Some(&63)), "stride {stride}");
        }
    }
}
