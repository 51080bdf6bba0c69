//! The buddy of one group: [`Buddy`]. Linux: `struct ext4_buddy` and the counters of `struct ext4_group_info`.
//!
//! A bit of order k is clear when all 2^k blocks under it are free; order 0 is the block bitmap itself. (Linux clears
//! only the bit of the *largest* free buddy; here every order speaks for itself, which makes both updates and run
//! searches plain word operations. A buddy is largest when its parent's bit is set.)
//!
//! What it does not do: know why a block is not free.
//!
//! # Locking
//! None; lives under its group's lock.

/// Orders at most: 64 KiB blocks have 2^(16+1) as their highest.
const ORDERS_MAX: usize = 18;

/// Free space of one group, at every power of two.
#[derive(Clone, Debug)]
pub struct Buddy {
    blocks: u32,
    orders: u32,
    /// All orders one after the other.
    words: Box<[u64]>,
    offset: [u32; ORDERS_MAX],
    /// Clear bits per order.
    clear: [u32; ORDERS_MAX],
    fragments: u32,
    /// No free block lies below.
    first_free: u32,
}

/// The even bits of `x`, moved together.
fn gather_even(mut x: u64) -> u64 {
    x &= 0x5555_5555_5555_5555;
    x = (x | x >> 1) & 0x3333_3333_3333_3333;
    x = (x | x >> 2) & 0x0F0F_0F0F_0F0F_0F0F;
    x = (x | x >> 4) & 0x00FF_00FF_00FF_00FF;
    x = (x | x >> 8) & 0x0000_FFFF_0000_FFFF;
    (x | x >> 16) & 0x0000_0000_FFFF_FFFF
}

/// Each of the low 32 bits of `x`, twice.
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

/// Bits `from..to` of one word (`to` at most 64).
fn span(from: u32, to: u32) -> u64 {
    let upper = if to >= 64 { u64::MAX } else { (1u64 << to) - 1 };
    upper & (u64::MAX << from)
}

/// Calls `f` with each word that holds bits of `lo..hi`, and the mask of those bits.
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
    /// Builds the buddy of `blocks` blocks from used-bits; `used` may be longer or shorter (missing bits are used).
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
        let mut buddy = Buddy { blocks, orders, words, offset, clear: [0; ORDERS_MAX], fragments: 0, first_free: 0 };
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
        buddy
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

    /// Runs of free blocks.
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

    /// Free blocks from `start` on, at most `wanted`.
    pub fn run_len(&self, start: u32, wanted: u32) -> u32 {
        self.next_used(start, start.saturating_add(wanted)).saturating_sub(start)
    }

    pub fn is_free(&self, start: u32, len: u32) -> bool {
        start.checked_add(len).is_some_and(|end| end <= self.blocks) && self.run_len(start, len) == len
    }

    pub fn is_used(&self, start: u32, len: u32) -> bool {
        match start.checked_add(len) {
            // next_free starts at first_free, below which all is used.
            Some(end) if end <= self.blocks => self.next_free(start).is_none_or(|f| f >= end),
            _ => false,
        }
    }

    /// The start of the first buddy of the smallest order that is at least `order` and has a largest-at-its-place
    /// buddy: best fit, so that large buddies stay whole.
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

    /// Takes a free range out. False, and no change, when it is not all free.
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
        true
    }

    /// Puts a used range back. False, and no change, when it is not all used.
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
            // Wholly inside the range, or else decided by the two children.
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
                if step % 50 == 0 {
                    check_against_fresh(&b, &model, 10);
                }
            }
            check_against_fresh(&b, &model, 10);
        }
    }

    #[test]
    fn first_buddy_spares_the_large_ones() {
        // Blocks 0..8 free but 3; a whole free area from 64 on.
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
