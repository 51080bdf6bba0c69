//! Linux's scalable bitmap (`struct sbitmap`, lib/sbitmap.c, as of Linux 6.12).
//!
//! - The bits are spread over words, each on a cache line of its own, with fewer bits per word when there are few: at
//!   least four words where the depth allows it (`sbitmap_calculate_shift`).
//! - Each core starts looking where it last found a bit, and one further the next time (`update_alloc_hint_after_get`);
//!   a bit given back is where it looks next (`sbitmap_queue_clear`). Our cores are threads, dealt over shards.
//! - A release sets a bit in the word's `cleared` and leaves `word` alone; whoever finds the word full swaps all of
//!   them back at once (`sbitmap_deferred_clear`).
//!
//! Left out: shallow depths for schedulers, round robin, the eight wait queues with batched wake-ups (waiting is
//! [`super::super::TagSet`]'s).
//!
//! # Locking
//! One leaf lock per word (`block tag swap`), held by those who swap: somebody who finds the word full while another
//! swaps must see the outcome, or it would sleep beside free tags.

use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::TagPolicy;
use crate::ranks::TAG_SWAP;

/// Threads share hints beyond this many.
const HINTS: usize = 16;

#[repr(align(128))]
struct Word {
    /// Bits that are taken, or given back and not yet swapped.
    word: AtomicU64,
    /// Bits that were given back.
    cleared: AtomicU64,
    swap: Mutex<()>,
    /// Bits in use here.
    depth: u32,
}

#[repr(align(128))]
struct Hint(AtomicU32);

pub(in crate::queue::tags) struct Sbitmap {
    words: Vec<Word>,
    hints: Vec<Hint>,
    depth: u32,
    /// Bits per word, as a power of two.
    shift: u32,
}

impl Sbitmap {
    pub fn new(depth: u32) -> Sbitmap {
        let mut shift = 6;
        if depth >= 4 {
            while (4u64 << shift) > u64::from(depth) {
                shift -= 1;
            }
        }
        let per_word = 1u32 << shift;
        let word = |i: u32| Word {
            word: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            swap: Mutex::new(&TAG_SWAP, ()),
            depth: (depth - i * per_word).min(per_word),
        };
        let words = (0..depth.div_ceil(per_word)).map(word).collect();
        // Spread over the set from the start (Linux: a random hint per CPU).
        let hint = |i: usize| Hint(AtomicU32::new((u64::from(depth) * i as u64 / HINTS as u64) as u32));
        Sbitmap { words, hints: (0..HINTS).map(hint).collect(), depth, shift }
    }
}

impl Word {
    fn mask(&self) -> u64 {
        if self.depth == 64 { u64::MAX } else { (1 << self.depth) - 1 }
    }

    /// Takes a bit at or behind `from`, else before it.
    fn take(&self, from: u32) -> Option<u32> {
        let mask = self.mask();
        let mut now = self.word.load(Ordering::SeqCst);
        loop {
            let free = !now & mask;
            if free == 0 {
                return None;
            }
            let behind = free & (u64::MAX << from);
            let bit = if behind != 0 { behind.trailing_zeros() } else { free.trailing_zeros() };
            let taken = now | 1 << bit;
            match self.word.compare_exchange_weak(now, taken, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(bit),
                Err(other) => now = other,
            }
        }
    }

    /// Makes the bits that were given back free; false when there are none.
    fn swap_cleared(&self) -> bool {
        if self.cleared.load(Ordering::SeqCst) == 0 && self.swap.try_lock().is_some() {
            // Nobody swaps and nothing to swap: the common case of a full word.
            return !self.word.load(Ordering::SeqCst) & self.mask() != 0;
        }
        let _swapping = self.swap.lock();
        let back = self.cleared.swap(0, Ordering::SeqCst);
        if back != 0 {
            self.word.fetch_and(!back, Ordering::SeqCst);
        }
        !self.word.load(Ordering::SeqCst) & self.mask() != 0
    }
}

impl TagPolicy for Sbitmap {
    fn get(&self, hint: usize) -> Option<u32> {
        let hint = &self.hints[hint % HINTS].0;
        let start = hint.load(Ordering::Relaxed) % self.depth;
        let (first, mut from) = ((start >> self.shift) as usize, start & ((1 << self.shift) - 1));
        for i in 0..self.words.len() {
            let index = (first + i) % self.words.len();
            let word = &self.words[index];
            loop {
                if let Some(bit) = word.take(from) {
                    let tag = ((index as u32) << self.shift) + bit;
                    if tag == start {
                        hint.store(tag + 1, Ordering::Relaxed);
                    }
                    return Some(tag);
                }
                if !word.swap_cleared() {
                    break;
                }
            }
            from = 0;
        }
        hint.store(0, Ordering::Relaxed);
        None
    }

    fn put(&self, tag: u32, hint: usize) {
        let word = &self.words[(tag >> self.shift) as usize];
        word.cleared.fetch_or(1 << (tag & ((1 << self.shift) - 1)), Ordering::SeqCst);
        self.hints[hint % HINTS].0.store(tag, Ordering::Relaxed);
    }
}
