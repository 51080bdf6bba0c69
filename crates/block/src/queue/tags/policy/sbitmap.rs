//! Linux's scalable bitmap (`struct sbitmap_queue`, lib/sbitmap.c, as of Linux 6.12).
//!
//! - The bits are spread over words, each on a separate cache line, with fewer bits per word if there are few: at least
//!   four words if the depth allows it (`sbitmap_calculate_shift`).
//! - Each core starts its search where it last found a bit, and one further the next time
//!   (`update_alloc_hint_after_get`). A released bit is its next starting point (`sbitmap_queue_clear`). Cores are
//!   threads here, spread over shards.
//! - A release sets a bit in the word's `cleared` and does not change `word`. A thread that finds the word full swaps
//!   all of them back at once (`sbitmap_deferred_clear`).
//! - A waiter enters the next wait queue at its end. While any thread waits, releases are counted, for all queues
//!   together. Each batch of them wakes as many threads, queue by queue (`sbitmap_queue_wake_up`, since 6.2).
//!
//! Left out: shallow depths for schedulers, round robin, and the share to which each of several queues is limited
//! (`hctx_may_queue`).
//!
//! # Locking
//! One leaf lock per word (`block tag swap`), held by a thread that swaps. A thread that finds the word full while
//! another swaps must wait for the result; otherwise it would sleep although tags are free. Also those of
//! [`super::wait_queue`].

use extant_base::sim;
use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::super::ledger::Ledger;
use super::bitmap::{CORES, bits_per_word, mask, take};
use super::wait_queue::{QueueEnd, WaitQueues};
use super::{TagHandOff, TagPolicy, wake_batch};
use crate::ranks::TAG_SWAP;

#[repr(align(128))]
struct Word {
    /// Bits that are taken, or released and not yet swapped.
    word: AtomicU64,
    /// Bits that were released.
    cleared: AtomicU64,
    swap: Mutex<()>,
    /// The number of bits in use here.
    depth: u32,
}

#[repr(align(128))]
struct Hint(AtomicU32);

struct Sbitmap {
    words: Vec<Word>,
    hints: Vec<Hint>,
    depth: u32,
    /// log2 of the number of bits per word.
    shift: u32,
}

impl Sbitmap {
    pub fn new(depth: u32) -> Sbitmap {
        let shift = bits_per_word(depth);
        let per_word = 1u32 << shift;
        let word = |i: u32| Word {
            word: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            swap: Mutex::new(&TAG_SWAP, ()),
            depth: (depth - i * per_word).min(per_word),
        };
        let words = (0..depth.div_ceil(per_word)).map(word).collect();
        // They are spread over the set at the start (Linux: a random hint per CPU).
        let hint = |i: usize| Hint(AtomicU32::new((u64::from(depth) * i as u64 / CORES as u64) as u32));
        Sbitmap { words, hints: (0..CORES).map(hint).collect(), depth, shift }
    }
}

impl Word {
    fn mask(&self) -> u64 {
        mask(self.depth)
    }

    /// Frees the released bits. Returns false if there are none.
    fn swap_cleared(&self) -> bool {
        if self.cleared.load(Ordering::SeqCst) == 0 && self.swap.try_lock().is_some() {
            // No other thread swaps and there is nothing to swap, which is the most common case of a full word.
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

impl Sbitmap {
    fn get(&self, hint: usize) -> Option<u32> {
        let hint = &self.hints[hint % CORES].0;
        let start = hint.load(Ordering::Relaxed) % self.depth;
        let (first, mut from) = ((start >> self.shift) as usize, start & ((1 << self.shift) - 1));
        for i in 0..self.words.len() {
            let index = (first + i) % self.words.len();
            let word = &self.words[index];
            loop {
                sim::point("tag: look at a word");
                if let Some(bit) = take(&word.word, word.mask(), from) {
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
        self.hints[hint % CORES].0.store(tag, Ordering::Relaxed);
        sim::point("tag: is free");
    }
}

pub(in crate::queue::tags) struct SbitmapQueue {
    bits: Sbitmap,
    queues: WaitQueues,
    /// The number of waiting threads, including those that are moving between queues (Linux: `ws_active`).
    waiting: AtomicUsize,
    /// The number of tags released while a thread waited, and the number of those for which a thread was woken.
    completions: AtomicU64,
    wakeups: AtomicU64,
    batch: u64,
    ledger: Ledger,
}

impl SbitmapQueue {
    pub fn new(depth: u32, wait_queues: u32) -> SbitmapQueue {
        SbitmapQueue {
            bits: Sbitmap::new(depth),
            queues: WaitQueues::new(wait_queues),
            waiting: AtomicUsize::new(0),
            completions: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            batch: u64::from(wake_batch(depth)),
            ledger: Ledger::new(),
        }
    }
}

impl TagPolicy for SbitmapQueue {
    fn try_get(&self, hint: usize) -> Option<u32> {
        let tag = self.bits.get(hint)?;
        self.ledger.at_once();
        Some(tag)
    }

    fn get(&self, hint: usize, user: u32) -> u32 {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let tag = self.queues.wait(user, QueueEnd::Tail, &self.ledger, || self.bits.get(hint), |_| {});
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        tag
    }

    fn put(&self, tag: u32, hint: usize) -> Option<TagHandOff> {
        self.bits.put(tag, hint);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let completions = self.completions.fetch_add(1, Ordering::SeqCst) + 1;
        let mut wakeups = self.wakeups.load(Ordering::SeqCst);
        loop {
            if completions.saturating_sub(wakeups) < self.batch {
                return None;
            }
            let counted = wakeups + self.batch;
            match self.wakeups.compare_exchange(wakeups, counted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(other) => wakeups = other,
            }
        }
        self.queues.wake_around(self.batch as usize, &self.ledger);
        None
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}
