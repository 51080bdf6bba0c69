//! The clusters in use: flat bitmaps in which all threads set bits concurrently.
//!
//! Main types: [`Bits`] (a bitmap), [`Sparse`] (a bitmap that takes memory only where bits are set), [`Claims`] (the
//! claimed clusters, and those that were claimed more than once). A claim records no owner; a second walk over all maps
//! finds the owners of clusters that were claimed twice.
//!
//! # Locking
//! None: the words are atomic.

use std::ops::Range;
use std::sync::OnceLock;

use extant_base::sync::atomic::{AtomicU64, Ordering};
use zerocopy::FromZeros;

/// Allocates `count` words, all 0. Returns `Err` with the number of bytes that could not be allocated.
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
    /// Creates a bitmap of `len` clear bits. The system provides the memory when it is first touched. Returns `Err`
    /// with the number of bytes that could not be allocated.
    pub fn new(len: u64) -> Result<Bits, u64> {
        Ok(Bits { words: words(len.div_ceil(64))?, len })
    }

    /// Sets a bit. Returns whether it was set before.
    pub fn set(&self, bit: u64) -> bool {
        let Some(word) = self.words.get((bit / 64) as usize).filter(|_| bit < self.len) else { return false };
        let mask = 1 << (bit % 64);
        word.fetch_or(mask, Ordering::Relaxed) & mask != 0
    }

    /// Whether the bit is set; bits past the end are not.
    pub fn test(&self, bit: u64) -> bool {
        self.words.get((bit / 64) as usize).is_some_and(|word| word.load(Ordering::Relaxed) >> (bit % 64) & 1 != 0)
    }

    /// Clears all bits. A word without a bit is not written, because that would take memory for it.
    pub fn clear(&self) {
        let set = self.words.iter().filter(|word| word.load(Ordering::Relaxed) != 0);
        set.for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// Splits a range of bits into words: returns the index of the word and a mask.
fn pieces(range: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (range.start, range.end);
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

/// A bitmap that takes memory only where bits are set: chunks of `CHUNK` words, and a pointer for each.
pub struct Sparse<const CHUNK: usize = 64> {
    chunks: Vec<OnceLock<Box<[AtomicU64; CHUNK]>>>,
    len: u64,
}

impl<const CHUNK: usize> Sparse<CHUNK> {
    /// Creates a bitmap of `len` clear bits. Returns `Err` with the number of bytes that could not be allocated.
    pub fn new(len: u64) -> Result<Sparse<CHUNK>, u64> {
        let count = len.div_ceil(64).div_ceil(CHUNK as u64) as usize;
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(count).map_err(|_| (count * size_of::<OnceLock<Box<()>>>()) as u64)?;
        chunks.resize_with(count, OnceLock::new);
        Ok(Sparse { chunks, len })
    }

    fn word(&self, at: usize) -> u64 {
        let chunk = self.chunks.get(at / CHUNK).and_then(OnceLock::get);
        chunk.map_or(0, |chunk| chunk[at % CHUNK].load(Ordering::SeqCst))
    }

    /// Sets bits of a word. Returns those that were set before.
    fn add(&self, at: usize, bits: u64) -> u64 {
        let Some(chunk) = self.chunks.get(at / CHUNK) else { return 0 };
        let chunk = chunk.get_or_init(|| Box::new([const { AtomicU64::new(0) }; CHUNK]));
        chunk[at % CHUNK].fetch_or(bits, Ordering::SeqCst) & bits
    }

    /// Sets a bit. Returns whether it was set before.
    pub fn set(&self, bit: u64) -> bool {
        bit < self.len && self.add((bit / 64) as usize, 1 << (bit % 64)) != 0
    }

    /// The 64 bits from `bit` on, which need not be aligned; zeros past the end.
    pub fn word_at(&self, bit: u64) -> u64 {
        let (at, low) = ((bit / 64) as usize, bit % 64);
        if low == 0 { self.word(at) } else { self.word(at) >> low | self.word(at + 1) << (64 - low) }
    }

    /// Whether the bit is set; bits past the end are not.
    pub fn test(&self, bit: u64) -> bool {
        self.word((bit / 64) as usize) >> (bit % 64) & 1 != 0
    }

    /// Whether any bit of the range is set.
    pub fn any(&self, range: Range<u64>) -> bool {
        pieces(range.start..range.end.min(self.len)).any(|(at, mask)| self.word(at) & mask != 0)
    }

    /// The first bit from `from` on that is set or, without `set`, clear; `end` if there is none before it.
    pub fn find(&self, from: u64, end: u64, set: bool) -> u64 {
        let (mut at, end) = (from, end.min(self.len));
        while at < end {
            let word = self.word((at / 64) as usize);
            let rest = (if set { word } else { !word }) >> (at % 64);
            if rest != 0 {
                return end.min(at + u64::from(rest.trailing_zeros()));
            }
            at = (at / 64 + 1) * 64;
        }
        end
    }
}

/// The claimed clusters. Without `bigalloc`, a cluster is a block.
pub struct Claims {
    /// The clusters claimed at least once. The chunks are small, because an empty file system has bits in each of its
    /// flex groups.
    pub used: Sparse,
    /// The clusters claimed more than once, although one of the owners must not share them.
    pub double: Sparse<512>,
    /// With the feature shared_blocks: the clusters claimed by an owner that must not share them.
    owned: Option<Sparse>,
    /// The blocks of maps that have been descended.
    pub descended: Bits,
    any_double: AtomicU64,
}

impl Claims {
    /// Creates claims for this many clusters and blocks. With `shared`, the data of files may share clusters.
    pub fn new(clusters: u64, blocks: u64, shared: bool) -> Result<Claims, u64> {
        Ok(Claims {
            used: Sparse::new(clusters)?,
            double: Sparse::new(clusters)?,
            owned: if shared { Some(Sparse::new(clusters)?) } else { None },
            descended: Bits::new(blocks)?,
            any_double: AtomicU64::new(0),
        })
    }

    /// Claims clusters. `data` means that they are a file's data.
    pub fn claim(&self, clusters: Range<u64>, data: bool) {
        for (word, mask) in pieces(clusters.start..clusters.end.min(self.used.len)) {
            let before = match &self.owned {
                None => self.used.add(word, mask),
                // The order is sequentially consistent: of two owners that claim a cluster at the same time, at least
                // one sees the other's claim.
                Some(owned) if data => self.used.add(word, mask) & owned.word(word),
                Some(owned) => {
                    owned.add(word, mask);
                    self.used.add(word, mask)
                }
            };
            if before != 0 {
                self.double.add(word, before);
                self.any_double.store(1, Ordering::Relaxed);
            }
        }
    }

    /// Records that clusters in use belong to the file system itself.
    pub fn own(&self, clusters: Range<u64>) {
        let Some(owned) = &self.owned else { return };
        for (word, mask) in pieces(clusters.start..clusters.end.min(owned.len)) {
            owned.add(word, mask);
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
        let claims = Claims::new(200, 200, false).expect("memory");
        claims.claim(3..130, true);
        assert!(!claims.has_doubles());
        claims.claim(128..140, true);
        assert!(claims.has_doubles());
        let double: Vec<u64> = (0..200).filter(|bit| claims.double.test(*bit)).collect();
        assert_eq!(double, [128, 129]);
        assert_eq!(claims.used.word_at(128), (1 << 12) - 1);
        claims.claim(190..400, true);
        assert_eq!(claims.used.word_at(180), ((1 << 10) - 1) << 10, "nothing beyond the end");
    }

    #[test]
    fn data_is_shared_with_data_alone() {
        let double = |first: bool, second: bool| {
            let claims = Claims::new(100, 100, true).expect("memory");
            claims.claim(10..20, first);
            claims.claim(15..30, second);
            (claims.has_doubles(), (0..100).filter(|bit| claims.double.test(*bit)).count())
        };
        assert_eq!(double(true, true), (false, 0));
        for (first, second) in [(true, false), (false, true), (false, false)] {
            assert_eq!(double(first, second), (true, 5), "{first}, {second}");
        }
        let claims = Claims::new(100, 100, true).expect("memory");
        claims.used.set(50);
        claims.own(50..51);
        claims.claim(40..60, true);
        assert!(claims.double.test(50) && !claims.double.test(49));
    }

    #[test]
    fn ranges_are_tested_across_words() {
        let bits = Bits::new(300).expect("memory");
        assert!(!bits.set(127) && bits.set(127) && !bits.set(300));
        let sparse = Sparse::<64>::new(300).expect("memory");
        assert!(!sparse.set(127) && sparse.set(127) && !sparse.set(300));
        assert_eq!((sparse.word_at(120) & 0xff, sparse.word_at(300)), (0x80, 0));
        // This also works across chunks.
        for base in [0, 64 * 64 - 128] {
            let len = base + 300;
            let bits = Sparse::<64>::new(len).expect("memory");
            assert!(!bits.any(0..len) && bits.find(0, len, true) == len && bits.find(base, len, false) == base);
            bits.set(base + 127);
            assert!(bits.any(base + 100..base + 128) && !bits.any(base..base + 127) && !bits.any(base + 128..2 * len));
            let find = |from, to, set| bits.find(base + from, base + to, set) - base;
            assert_eq!((find(0, 300, true), find(127, 300, false), find(128, 300, true)), (127, 128, 300));
            assert_eq!((find(0, 100, true), find(5, 1000, false), find(128, 1000, true)), (100, 5, 300));
            assert!(bits.test(base + 127) && !bits.test(base + 128) && !bits.test(u64::MAX));
        }
    }
}
