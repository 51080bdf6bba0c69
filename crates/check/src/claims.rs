//! Which clusters belong to somebody: flat bitmaps that all threads set at once.
//!
//! Main types: [`Bits`] (a bitmap), [`Claims`] (what is claimed, and what more than once). A claim knows no owner; the
//! owners of what was claimed twice are found by walking all maps a second time.
//!
//! # Locking
//! None: the words are atomic, and what is set stays set.

use std::ops::Range;

use extant_base::sync::atomic::{AtomicU64, Ordering};
use zerocopy::FromZeros;

/// So many words, all 0. `Err`: how many bytes could not be had.
pub fn words(count: u64) -> Result<Vec<AtomicU64>, u64> {
    let words = usize::try_from(count).ok().and_then(|n| AtomicU64::new_vec_zeroed(n).ok());
    words.ok_or(count.saturating_mul(8))
}

/// A bitmap of fixed size.
pub struct Bits {
    words: Vec<AtomicU64>,
    len: u64,
}

impl Bits {
    /// `len` clear bits. The memory is taken from the system when it is first touched. `Err`: how many bytes could not
    /// be had.
    pub fn new(len: u64) -> Result<Bits, u64> {
        Ok(Bits { words: words(len.div_ceil(64))?, len })
    }

    /// Whether the bit is set; bits beyond the end are not.
    pub fn test(&self, bit: u64) -> bool {
        self.words.get((bit / 64) as usize).is_some_and(|word| word.load(Ordering::Relaxed) >> (bit % 64) & 1 != 0)
    }

    /// Sets a bit; whether it was set before.
    pub fn set(&self, bit: u64) -> bool {
        let Some(word) = self.words.get((bit / 64) as usize).filter(|_| bit < self.len) else { return false };
        let mask = 1 << (bit % 64);
        word.fetch_or(mask, Ordering::Relaxed) & mask != 0
    }

    /// The parts of the range word by word: index of the word, mask.
    fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (mut at, end) = (range.start, range.end.min(self.len));
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let low = at % 64;
            let count = (64 - low).min(end - at);
            let mask = if count == 64 { !0 } else { ((1 << count) - 1) << low };
            let word = (at / 64) as usize;
            at += count;
            Some((word, mask))
        })
    }

    /// Whether any bit of the range is set.
    pub fn any(&self, range: Range<u64>) -> bool {
        self.pieces(range).any(|(word, mask)| self.words[word].load(Ordering::Relaxed) & mask != 0)
    }

    /// The first bit from `from` on that is set, or clear, whatever is asked for; `end` if there is none before it.
    pub fn find(&self, from: u64, end: u64, set: bool) -> u64 {
        let (mut at, end) = (from, end.min(self.len));
        while at < end {
            let word = self.words[(at / 64) as usize].load(Ordering::Relaxed);
            let rest = if set { word } else { !word } >> (at % 64);
            if rest != 0 {
                return end.min(at + u64::from(rest.trailing_zeros()));
            }
            at = (at / 64 + 1) * 64;
        }
        end
    }

    /// Clears everything.
    pub fn clear(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// The word of 64 bits that begins at `bit`, which need not be aligned; zeros beyond the end.
    pub fn word_at(&self, bit: u64) -> u64 {
        let (at, low) = ((bit / 64) as usize, bit % 64);
        let word = |at: usize| self.words.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
        if low == 0 { word(at) } else { word(at) >> low | word(at + 1) << (64 - low) }
    }
}

/// Which clusters are claimed. Without `bigalloc` a cluster is a block.
pub struct Claims {
    /// Claimed at least once.
    pub used: Bits,
    /// Claimed more than once.
    pub double: Bits,
    /// Blocks of maps that have been descended, by block.
    pub descended: Bits,
    any_double: AtomicU64,
}

impl Claims {
    /// Room for this many clusters and blocks.
    pub fn new(clusters: u64, blocks: u64) -> Result<Claims, u64> {
        Ok(Claims {
            used: Bits::new(clusters)?,
            double: Bits::new(clusters)?,
            descended: Bits::new(blocks)?,
            any_double: AtomicU64::new(0),
        })
    }

    /// Claims clusters.
    pub fn claim(&self, clusters: Range<u64>) {
        for (word, mask) in self.used.pieces(clusters) {
            let before = self.used.words[word].fetch_or(mask, Ordering::Relaxed) & mask;
            if before != 0 {
                self.double.words[word].fetch_or(before, Ordering::Relaxed);
                self.any_double.store(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether anything was claimed more than once.
    pub fn has_doubles(&self) -> bool {
        self.any_double.load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_claim_is_remembered_exactly() {
        let claims = Claims::new(200, 200).expect("memory");
        claims.claim(3..130);
        assert!(!claims.has_doubles());
        claims.claim(128..140);
        assert!(claims.has_doubles());
        let double: Vec<u64> = (0..200).filter(|bit| claims.double.test(*bit)).collect();
        assert_eq!(double, [128, 129]);
        assert!(claims.used.test(139) && !claims.used.test(140) && !claims.used.test(2));
        claims.claim(190..400);
        assert!(claims.used.test(199) && !claims.used.test(200));
    }

    #[test]
    fn ranges_are_tested_across_words() {
        let bits = Bits::new(300).expect("memory");
        assert!(!bits.set(127) && bits.set(127));
        assert!(bits.any(100..128) && !bits.any(0..127) && !bits.any(128..1000));
        assert_eq!(bits.word_at(120) & 0xff, 0x80);
        assert_eq!((bits.find(0, 300, true), bits.find(127, 300, false), bits.find(128, 300, true)), (127, 128, 300));
        assert_eq!((bits.find(0, 100, true), bits.find(5, 1000, false), bits.find(128, 1000, true)), (100, 5, 300));
        assert!(!bits.set(300) && !bits.test(300));
    }
}
