//! The bitmap of Linux 3.16 (`struct blk_mq_bitmap_tags`), which `wake-all` and `wake-exclusive` use.
//!
//! The bits are spread over words, each on a separate cache line, with fewer bits per word if there are few
//! ([`bits_per_word`]). Each core starts its search after the tag that it had last (`last_tag`). A released tag is free
//! immediately, with one atomic operation on a line from which other threads are taking tags.
//!
//! What it does not do: waiting.
//!
//! # Locking
//! There are only atomics, all sequentially consistent.

use extant_base::sim;
use extant_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// If there are more cores than this, threads share their search positions.
pub(super) const CORES: usize = 16;

/// log2 of the number of bits per word: at least four words if the depth allows it (Linux: `bt_alloc`,
/// `sbitmap_calculate_shift`).
pub(super) fn bits_per_word(depth: u32) -> u32 {
    let mut shift = 6;
    if depth >= 4 {
        while (4u64 << shift) > u64::from(depth) {
            shift -= 1;
        }
    }
    shift
}

/// The lowest `depth` bits.
pub(super) fn mask(depth: u32) -> u64 {
    if depth >= 64 { u64::MAX } else { (1 << depth) - 1 }
}

/// Takes a bit of `word` at or after `from`, otherwise before it.
pub(super) fn take(word: &AtomicU64, mask: u64, from: u32) -> Option<u32> {
    let mut now = word.load(Ordering::SeqCst);
    loop {
        let free = !now & mask;
        if free == 0 {
            return None;
        }
        let behind = free & (u64::MAX << from);
        let bit = if behind != 0 { behind.trailing_zeros() } else { free.trailing_zeros() };
        match word.compare_exchange_weak(now, now | 1 << bit, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return Some(bit),
            Err(other) => now = other,
        }
    }
}

#[repr(align(128))]
struct Word(AtomicU64);

#[repr(align(128))]
struct LastTag(AtomicU32);

/// See the module.
pub(super) struct Bitmap {
    words: Vec<Word>,
    last: Vec<LastTag>,
    depth: u32,
    shift: u32,
}

impl Bitmap {
    pub fn new(depth: u32) -> Bitmap {
        let shift = bits_per_word(depth);
        // They are spread over the set at the start (Linux: a random hint for each CPU).
        let last = |i: usize| LastTag(AtomicU32::new((u64::from(depth) * i as u64 / CORES as u64) as u32));
        Bitmap {
            words: (0..depth.div_ceil(1 << shift)).map(|_| Word(AtomicU64::new(0))).collect(),
            last: (0..CORES).map(last).collect(),
            depth,
            shift,
        }
    }

    fn mask(&self, index: usize) -> u64 {
        mask((self.depth - ((index as u32) << self.shift)).min(1 << self.shift))
    }

    pub fn get(&self, hint: usize) -> Option<u32> {
        let last = &self.last[hint % CORES].0;
        let start = last.load(Ordering::Relaxed) % self.depth;
        let (first, mut from) = ((start >> self.shift) as usize, start & ((1 << self.shift) - 1));
        for i in 0..self.words.len() {
            let index = (first + i) % self.words.len();
            sim::point("tag: look at a word");
            if let Some(bit) = take(&self.words[index].0, self.mask(index), from) {
                let tag = ((index as u32) << self.shift) + bit;
                // Only a thread that got the tag that it remembered moves on.
                if tag == start {
                    last.store(tag + 1, Ordering::Relaxed);
                }
                return Some(tag);
            }
            from = 0;
        }
        None
    }

    pub fn put(&self, tag: u32, hint: usize) {
        let bit = 1 << (tag & ((1 << self.shift) - 1));
        self.words[(tag >> self.shift) as usize].0.fetch_and(!bit, Ordering::SeqCst);
        self.last[hint % CORES].0.store(tag, Ordering::Relaxed);
        sim::point("tag: is free");
    }

    /// Whether all tags are free.
    pub fn all_free(&self) -> bool {
        self.words.iter().all(|word| word.0.load(Ordering::SeqCst) == 0)
    }
}
