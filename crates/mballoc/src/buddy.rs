//! The buddy of one group: [`Buddy`]. Linux: `struct ext4_buddy` and the counters of `struct ext4_group_info`.
//!
//! A bit of order k is clear when all 2^k blocks under it are free; order 0 is the block bitmap itself. (Linux clears
//! only the bit of the *largest* free buddy. Here the bits of every order are complete, so updates and run searches are
//! plain word operations. A buddy is maximal if its parent's bit is set.)
//!
//! What it does not do: it does not record why a block is in use.
//!
//! # Locking
//! None; protected by its group's lock.

/// The maximum number of orders: with blocks of 64 KiB, the largest buddy has 2^(16+1) blocks.
const ORDERS_MAX: usize = 18;

/// The free space of one group, at every power of two.
#[derive(Clone, Debug)]
pub struct Buddy {
    blocks: u32,
    orders: u32,
    /// The bits of all orders, one after the other.
    words: Box<[u64]>,
    offset: [u32; ORDERS_MAX],
    /// Clear bits per order.
    clear: [u32; ORDERS_MAX],
    fragments: u32,
    /// No block below this one is free.
    first_free: u32,
    /// The longest known free run; no run is more than a third longer (see [`Buddy::long_run`]).
    long: Run,
    /// The length of `long` at the last survey of all runs; 0 if a new survey is due.
    surveyed: u32,
}

/// Adjacent free blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    pub start: u32,
    pub len: u32,
}

/// For runs up to this length, the largest buddy suffices as an estimate of the longest run.
const SHORT: u32 = 8;

/// Packs the even bits of `x`.
fn gather_even(mut x: u64) -> u64 {
    x &= 0x5555_5555_5555_5555;
    x = (x | x >> 1) & 0x3333_3333_3333_3333;
    x = (x | x >> 2) & 0x0F0F_0F0F_0F0F_0F0F;
    x = (x | x >> 4) & 0x00FF_00FF_00FF_00FF;
    x = (x | x >> 8) & 0x0000_FFFF_0000_FFFF;
    (x | x >> 16) & 0x0000_0000_FFFF_FFFF
}

/// Duplicates each of the low 32 bits of `x`.
fn double_bits(mut x: u64) -> u64 {
    x &= 0x0000_0000_FFFF_FFFF;
    x = (x | x << 16) & 0x0000_FFFF_0000_FFFF;
    x = (x | x << 8) & 0x00FF_00FF_00FF_00FF;
    x = (x | x << 4) & 0x0F0F_0F0F_0F0F_0F0F;
    x = (x | x << 2) & 0x3333_3333_3333_3333;
    x = (x | x << 1) & 0x5555_5555_5555_5555;
    x | x << 1
}

fn words_for(bits: u32) -> u32 {
    bits.div_ceil(64).max(1)
}

/// A mask of bits `from..to` of one word (`to` at most 64).
fn span(from: u32, to: u32) -> u64 {
    let upper = if to >= 64 { u64::MAX } else { (1u64 << to) - 1 };
    upper & (u64::MAX << from)
}

/// Calls `f` with each word that contains bits of `lo..hi`, and the mask of those bits.
fn for_words(words: &mut [u64], lo: u32, hi: u32, mut f: impl FnMut(&mut u64, u64)) {
    let mut at = lo;
    while at < hi {
        let word = at / 64;
        let end = hi.min((word + 1) * 64);
        f(&mut words[word as usize], span(at % 64, end - word * 64));
        at = end;
    }
}

impl Buddy {
    /// Builds the buddy of `blocks` blocks from a bitmap in which a set bit means used. `used` may be longer or shorter
    /// (missing bits count as used).
    pub fn new(used: &[u64], blocks: u32, block_bits: u32) -> Buddy {
        let orders = (block_bits + 2).min(ORDERS_MAX as u32);
        let mut offset = [0u32; ORDERS_MAX];
        let mut total = 0u32;
        for k in 0..orders {
            offset[k as usize] = total;
            total += words_for(blocks >> k);
        }
        let mut words = vec![u64::MAX; total as usize].into_boxed_slice();
        for (to, from) in words.iter_mut().zip(used).take(words_for(blocks) as usize) {
            *to = *from;
        }
        for k in 0..orders as usize {
            if k > 0 {
                let (below, this) = words.split_at_mut(offset[k] as usize);
                let below = &below[offset[k - 1] as usize..];
                let n = words_for(blocks >> k) as usize;
                for (i, to) in this.iter_mut().take(n).enumerate() {
                    let pair = |j: usize| below.get(j).map_or(u64::MAX, |&w| w | w >> 1);
                    *to = gather_even(pair(2 * i)) | gather_even(pair(2 * i + 1)) << 32;
                }
            }
            // Bits past the end count as used.
            let bits = blocks >> k;
            let n = words_for(bits);
            let start = offset[k];
            for_words(&mut words[start as usize..], bits, n * 64, |w, m| *w |= m);
        }
        let mut buddy = Buddy {
            blocks,
            orders,
            words,
            offset,
            clear: [0; ORDERS_MAX],
            fragments: 0,
            first_free: 0,
            long: Run::default(),
            surveyed: 0,
        };
        for k in 0..orders {
            buddy.clear[k as usize] = buddy.order(k).iter().map(|w| w.count_zeros()).sum();
        }
        // A run starts at a clear bit whose predecessor is set.
        let mut before = 1u64;
        let mut fragments = 0;
        for &w in buddy.order(0) {
            fragments += (!w & (w << 1 | before)).count_ones();
            before = w >> 63;
        }
        buddy.fragments = fragments;
        buddy.first_free = buddy.next_free(0).unwrap_or(blocks);
        buddy.survey();
        buddy
    }

    /// The length of a run that definitely exists: at least three quarters of the longest run. If the largest buddy has
    /// at most [`SHORT`] blocks, it is that buddy.
    pub fn long_run(&self) -> u32 {
        self.long.len.max(self.largest_order().map_or(0, |o| 1 << o))
    }

    /// Examines all runs.
    fn survey(&mut self) {
        let (mut longest, mut start, mut open) = (Run::default(), 0, 0);
        for (i, &used) in self.order(0).iter().enumerate() {
            let base = i as u32 * 64;
            if used == 0 {
                if open == 0 {
                    start = base;
                }
                open += 64;
                continue;
            }
            // The run from the left ends in this word, and another may begin at its right end; runs between are short.
            let (head, tail) = (used.trailing_zeros(), used.leading_zeros());
            if open == 0 {
                start = base;
            }
            open += head;
            if open > longest.len {
                longest = Run { start, len: open };
            }
            if longest.len < 62 && used != u64::MAX {
                let mut rest = used >> head;
                let mut at = head;
                while rest != 0 {
                    let used_here = rest.trailing_ones();
                    at += used_here;
                    rest = rest.checked_shr(used_here).unwrap_or(0);
                    let free_here = if rest == 0 { 0 } else { rest.trailing_zeros() };
                    if free_here > longest.len {
                        longest = Run { start: base + at, len: free_here };
                    }
                    at += free_here;
                    rest = rest.checked_shr(free_here).unwrap_or(0);
                }
            }
            (start, open) = (base + 64 - tail, tail);
        }
        if open > longest.len {
            longest = Run { start, len: open };
        }
        (self.long, self.surveyed) = (longest, longest.len);
    }

    /// Updates `long` after blocks of it were taken.
    fn shorten(&mut self, start: u32, end: u32) {
        let long = self.long;
        let long_end = long.start + long.len;
        if end <= long.start || start >= long_end {
            return;
        }
        let (left, right) = (start.saturating_sub(long.start), long_end.saturating_sub(end));
        self.long = if left > right { Run { start: long.start, len: left } } else { Run { start: end, len: right } };
        // Other runs that are longer now are at most a third longer.
        if self.long.len < self.surveyed - self.surveyed / 4 {
            self.surveyed = 0;
            self.survey_if_long();
        }
    }

    /// Surveys again only once there is a long run: short runs are soon used up.
    fn survey_if_long(&mut self) {
        if self.surveyed == 0 && self.largest_order().is_some_and(|o| 1 << o > SHORT) {
            self.survey();
        }
    }

    /// Updates `long` after blocks became free, perhaps next to other free blocks.
    fn lengthen(&mut self, mut start: u32, mut end: u32) {
        let long = self.long;
        let long_end = long.start + long.len;
        if long.len > 0 && end == long.start {
            end = long_end;
        } else if long.len > 0 && start == long_end {
            start = long.start;
        }
        start = self.run_start(start);
        end = self.next_used(end, u32::MAX);
        if end - start > self.long.len {
            self.long = Run { start, len: end - start };
            if self.surveyed > 0 {
                self.surveyed = self.surveyed.max(end - start);
            }
        }
        self.survey_if_long();
    }

    /// The start of the run that contains `at`, or ends there.
    fn run_start(&self, at: u32) -> u32 {
        let words = self.order(0);
        let mut i = at / 64;
        let mut before = if at.is_multiple_of(64) { 0 } else { words[i as usize] & span(0, at % 64) };
        while before == 0 {
            if i == 0 {
                return 0;
            }
            i -= 1;
            before = words[i as usize];
        }
        i * 64 + 64 - before.leading_zeros()
    }

    /// The start of the first run of at least `len` blocks.
    pub fn first_run(&self, len: u32) -> Option<u32> {
        if len > 64 { self.first_long_run(len) } else { self.first_short_run(len) }
    }

    /// Searches for a run of more than 64 blocks. A run of `len` blocks contains a buddy of at least half as many.
    fn first_long_run(&self, len: u32) -> Option<u32> {
        let k = (len.ilog2() - 1).min(self.orders - 1);
        let words = self.order(k);
        let mut from = 0;
        for (i, &used) in words.iter().enumerate() {
            let mut free = !used;
            while free != 0 {
                let at = (i as u32 * 64 + free.trailing_zeros()) << k;
                free &= free - 1;
                if at < from {
                    continue;
                }
                let start = self.run_start(at);
                let end = self.next_used(at, start.saturating_add(len));
                if end - start >= len {
                    return Some(start);
                }
                from = end;
            }
        }
        None
    }

    fn first_short_run(&self, len: u32) -> Option<u32> {
        let words = self.order(0);
        for (i, &used) in words.iter().enumerate().skip(self.first_free as usize / 64) {
            if used == u64::MAX {
                continue;
            }
            let next = words.get(i + 1).copied().unwrap_or(u64::MAX);
            // A bit remains set if it and its successors, `have` in total, are free.
            let mut free = u128::from(!used) | u128::from(!next) << 64;
            let mut have = 1;
            while have < len && free as u64 != 0 {
                let step = have.min(len - have);
                free &= free >> step;
                have += step;
            }
            if free as u64 != 0 {
                return Some(i as u32 * 64 + (free as u64).trailing_zeros());
            }
        }
        None
    }

    /// The start of a long run ([`Buddy::long_run`]).
    pub fn long_run_start(&self) -> Option<u32> {
        let largest = self.largest_order()?;
        if self.long.len >= 1 << largest { Some(self.long.start) } else { self.first_buddy(largest) }
    }

    fn order(&self, k: u32) -> &[u64] {
        let start = self.offset[k as usize] as usize;
        &self.words[start..start + words_for(self.blocks >> k) as usize]
    }

    fn order_mut(&mut self, k: u32) -> &mut [u64] {
        let start = self.offset[k as usize] as usize;
        &mut self.words[start..start + words_for(self.blocks >> k) as usize]
    }

    fn is_set(&self, k: u32, i: u32) -> bool {
        i >= self.blocks >> k || self.order(k)[i as usize / 64] >> (i % 64) & 1 == 1
    }

    pub fn free(&self) -> u32 {
        self.clear[0]
    }

    /// The number of runs of free blocks.
    pub fn fragments(&self) -> u32 {
        self.fragments
    }

    pub fn largest_order(&self) -> Option<u32> {
        (0..self.orders).rev().find(|&k| self.clear[k as usize] > 0)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        size_of::<Buddy>() + self.words.len() * 8
    }

    /// The first free block at or after `from`.
    pub fn next_free(&self, from: u32) -> Option<u32> {
        let from = from.max(self.first_free);
        if from >= self.blocks {
            return None;
        }
        let words = self.order(0);
        let mut i = from / 64;
        let mut w = !words[i as usize] & span(from % 64, 64);
        while w == 0 {
            i += 1;
            w = !*words.get(i as usize)?;
        }
        let at = i * 64 + w.trailing_zeros();
        (at < self.blocks).then_some(at)
    }

    /// The first used block in `from..limit`, or `limit` (at most the end of the group).
    pub fn next_used(&self, from: u32, limit: u32) -> u32 {
        let limit = limit.min(self.blocks);
        if from >= limit {
            return limit;
        }
        let words = self.order(0);
        let mut i = from / 64;
        let mut w = words[i as usize] & span(from % 64, 64);
        while w == 0 {
            i += 1;
            match words.get(i as usize) {
                Some(&next) if i * 64 < limit => w = next,
                _ => return limit,
            }
        }
        (i * 64 + w.trailing_zeros()).min(limit)
    }

    /// The number of free blocks from `start` on, at most `wanted`.
    pub fn run_len(&self, start: u32, wanted: u32) -> u32 {
        self.next_used(start, start.saturating_add(wanted)).saturating_sub(start)
    }

    pub fn is_free(&self, start: u32, len: u32) -> bool {
        start.checked_add(len).is_some_and(|end| end <= self.blocks) && self.run_len(start, len) == len
    }

    pub fn is_used(&self, start: u32, len: u32) -> bool {
        match start.checked_add(len) {
            // next_free starts at first_free, below which all blocks are used.
            Some(end) if end <= self.blocks => self.next_free(start).is_none_or(|f| f >= end),
            _ => false,
        }
    }

    /// The start of the first maximal buddy of the smallest sufficient order (at least `order`). This is best fit:
    /// large buddies stay whole.
    pub fn first_buddy(&self, order: u32) -> Option<u32> {
        (order..self.orders).find_map(|k| self.first_maximal(k).map(|i| i << k))
    }

    fn first_maximal(&self, k: u32) -> Option<u32> {
        let parents = if k + 1 < self.orders { self.clear[k as usize + 1] } else { 0 };
        // Every free parent accounts for two free children.
        if self.clear[k as usize] == 2 * parents {
            return None;
        }
        let words = self.order(k);
        for (i, &w) in words.iter().enumerate() {
            let mut free = !w;
            if k + 1 < self.orders && free != 0 {
                let above = self.order(k + 1).get(i / 2).copied().unwrap_or(u64::MAX);
                free &= double_bits(if i % 2 == 0 { above } else { above >> 32 });
            }
            if free != 0 {
                return Some(i as u32 * 64 + free.trailing_zeros());
            }
        }
        None
    }

    /// Removes a free range. Returns false, without a change, if part of it is used.
    #[must_use]
    pub fn mark_used(&mut self, start: u32, len: u32) -> bool {
        if len == 0 || !self.is_free(start, len) {
            return false;
        }
        let end = start + len;
        let joins_left = start > 0 && !self.is_set(0, start - 1);
        let joins_right = !self.is_set(0, end);
        for k in 0..self.orders {
            let lo = start >> k;
            let hi = ((end - 1) >> k) + 1;
            let hi = hi.min(self.blocks >> k);
            let mut changed = 0;
            for_words(self.order_mut(k), lo, hi, |w, m| {
                changed += (!*w & m).count_ones();
                *w |= m;
            });
            self.clear[k as usize] -= changed;
            if changed == 0 {
                break;
            }
        }
        self.fragments = self.fragments + u32::from(joins_left) + u32::from(joins_right) - 1;
        if start == self.first_free {
            self.first_free = end;
        }
        self.shorten(start, end);
        true
    }

    /// Adds a used range. Returns false, without a change, if part of it is free.
    #[must_use]
    pub fn mark_free(&mut self, start: u32, len: u32) -> bool {
        if len == 0 || !self.is_used(start, len) {
            return false;
        }
        let end = start + len;
        let joins_left = start > 0 && !self.is_set(0, start - 1);
        let joins_right = !self.is_set(0, end);
        for k in 0..self.orders {
            let bits = self.blocks >> k;
            let (lo, hi) = (start >> k, (((end - 1) >> k) + 1).min(bits));
            if lo >= hi {
                break;
            }
            // A bit is entirely inside the range, or depends on its two children.
            let (whole_lo, whole_hi) = (start.div_ceil(1 << k).min(hi), (end >> k).min(hi));
            let mut changed = 0;
            for_words(self.order_mut(k), whole_lo, whole_hi, |w, m| {
                changed += (*w & m).count_ones();
                *w &= !m;
            });
            for edge in [lo, hi - 1] {
                if k > 0
                    && !(whole_lo..whole_hi).contains(&edge)
                    && self.is_set(k, edge)
                    && !self.is_set(k - 1, 2 * edge)
                    && !self.is_set(k - 1, 2 * edge + 1)
                {
                    self.order_mut(k)[edge as usize / 64] &= !(1 << (edge % 64));
                    changed += 1;
                }
            }
            self.clear[k as usize] += changed;
            if changed == 0 {
                break;
            }
        }
        self.fragments = self.fragments + 1 - u32::from(joins_left) - u32::from(joins_right);
        self.first_free = self.first_free.min(start);
        self.lengthen(start, end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::rng::Rng;

    fn check_against_fresh(b: &Buddy, model: &[bool], block_bits: u32) {
        let mut words = vec![0u64; model.len().div_ceil(64)];
        for (i, &used) in model.iter().enumerate() {
            words[i / 64] |= u64::from(used) << (i % 64);
        }
        let fresh = Buddy::new(&words, model.len() as u32, block_bits);
        assert_eq!(b.words, fresh.words);
        assert_eq!(b.clear, fresh.clear);
        assert_eq!(b.fragments, fresh.fragments);
        assert!(b.first_free <= fresh.first_free);
        assert_eq!(fresh.free() as usize, model.iter().filter(|&&u| !u).count());
        let mut runs = 0;
        for i in 0..model.len() {
            runs += u32::from(!model[i] && (i == 0 || model[i - 1]));
        }
        assert_eq!(fresh.fragments(), runs);
        for k in 0..b.orders {
            let want =
                (0..model.len() >> k).map(|i| i << k).filter(|&s| model[s..s + (1 << k)].iter().all(|&u| !u)).count();
            assert_eq!(b.clear[k as usize] as usize, want, "order {k}");
        }
    }

    /// Checks that the longest run is known within a quarter, and that a run of `len` blocks is found if there is one.
    fn check_runs(b: &Buddy, model: &[bool], len: u32) {
        let mut runs: Vec<Run> = Vec::new();
        for (i, _) in (0..).zip(model).filter(|(_, used)| !**used) {
            match runs.last_mut() {
                Some(run) if run.start + run.len == i => run.len += 1,
                _ => runs.push(Run { start: i, len: 1 }),
            }
        }
        let longest = runs.iter().map(|r| r.len).max().unwrap_or(0);
        let known = b.long_run();
        let largest = b.largest_order().map_or(0, |o| 1 << o);
        let least = if largest > SHORT { longest - longest / 4 } else { largest };
        assert!((least..=longest).contains(&known), "{known} of {longest}, the largest buddy has {largest}");
        assert_eq!(b.long_run_start().is_some(), longest > 0);
        if let Some(start) = b.long_run_start() {
            assert!(b.is_free(start, known), "{known} from {start}");
        }
        let first = runs.iter().find(|r| r.len >= len).map(|r| r.start);
        assert_eq!(b.first_run(len), first, "{len} blocks");
    }

    #[test]
    fn updates_agree_with_rebuilding() {
        for (blocks, seed) in [(8192u32, 1), (777, 2), (64, 3), (1, 4), (5000, 5), (65, 6)] {
            let mut rng = Rng::new(seed);
            let mut model = vec![false; blocks as usize];
            let mut b = Buddy::new(&vec![0; blocks.div_ceil(64) as usize], blocks, 10);
            for step in 0..1500 {
                let start = rng.below(u64::from(blocks)) as u32;
                let bound = if rng.one_in(8) { 1500 } else { 20 };
                let len = (1 + rng.below(bound) as u32).min(blocks - start);
                let span = start as usize..(start + len) as usize;
                if rng.one_in(2) {
                    let ok = model[span.clone()].iter().all(|&u| !u);
                    assert_eq!(b.mark_used(start, len), ok);
                    if ok {
                        model[span].fill(true);
                    }
                } else {
                    let ok = model[span.clone()].iter().all(|&u| u);
                    assert_eq!(b.mark_free(start, len), ok);
                    if ok {
                        model[span].fill(false);
                    }
                }
                let next = (start..blocks).find(|&i| !model[i as usize]);
                assert_eq!(b.next_free(start), next);
                let used = (start..blocks).find(|&i| model[i as usize]).unwrap_or(blocks);
                assert_eq!(b.next_used(start, u32::MAX), used);
                if step % 10 == 0 {
                    check_runs(&b, &model, len);
                }
                if step % 50 == 0 {
                    check_against_fresh(&b, &model, 10);
                }
            }
            check_against_fresh(&b, &model, 10);
        }
    }

    #[test]
    fn first_buddy_spares_larger_buddies() {
        // Blocks 0..8 are free except block 3; from 64 on, a whole area is free.
        let mut b = Buddy::new(&[!0xF7, 0], 128, 12);
        assert_eq!(b.first_buddy(0), Some(2), "the single block");
        assert_eq!(b.first_buddy(1), Some(0));
        assert_eq!(b.first_buddy(2), Some(4));
        assert_eq!(b.first_buddy(3), Some(64));
        assert_eq!(b.first_buddy(6), Some(64));
        assert_eq!(b.first_buddy(7), None);
        assert_eq!(b.largest_order(), Some(6));
        assert!(b.mark_used(64, 64));
        assert_eq!(b.largest_order(), Some(2));
        assert!(!b.mark_used(0, 4), "3 is used");
        assert!(!b.mark_free(0, 4), "0 is free");
    }
}
