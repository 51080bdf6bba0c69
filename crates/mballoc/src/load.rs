//! Builds buddies from bitmaps, drops them, and moves ranges between "held" and "free".
//!
//! # Locking
//! [`crate::lock::GROUP`], one at a time; never while the store loads a bitmap (but see [`Allocator::lock_loaded`]).

use std::sync::Arc;

use extant_base::sync::MutexGuard;
use extant_base::sync::atomic::Ordering;
use extant_base::trace_point;
use extant_ondisk::GroupNr;

use crate::allocator::Allocator;
use crate::buddy::Buddy;
use crate::group::{BAD, Group, GroupInner, KNOWN, LOADED, PREALLOCATED, REFERENCED, UNINIT};
use crate::prealloc::Preallocation;
use crate::{Error, GroupStore};

/// Why a group cannot be used.
pub(crate) enum Unusable<E> {
    /// It was found bad earlier.
    Bad,
    /// It was found bad now: the store could not load it, and was notified.
    Store(E),
    /// Another thread holds the lock, and the caller does not wait.
    Busy,
}

/// The maximum number of bitmaps read ahead at once. Flex groups made by mke2fs are smaller, but larger ones are legal.
const READ_AHEAD_MAX: u32 = 64;

/// How often to try to install a newly loaded bitmap before loading it under the lock.
const LOAD_ATTEMPTS: u32 = 8;

impl<S: GroupStore> Allocator<S> {
    pub(crate) fn group_ref(&self, nr: GroupNr) -> Option<&Group> {
        self.groups.get(nr.0 as usize)
    }

    /// Locks a group and ensures that its buddy is in memory. The bitmap is loaded without the lock. If other threads
    /// keep changing the group meanwhile, the last attempt loads it under the lock.
    pub(crate) fn lock_loaded(
        &self,
        nr: GroupNr,
        wait: bool,
    ) -> Result<MutexGuard<'_, GroupInner>, Unusable<S::Error>> {
        let Some(group) = self.group_ref(nr) else { return Err(Unusable::Bad) };
        let mut inner = if wait { group.lock() } else { group.try_lock().ok_or(Unusable::Busy)? };
        for attempt in 0.. {
            if group.has(BAD) {
                return Err(Unusable::Bad);
            }
            if inner.buddy.is_some() {
                group.set(REFERENCED);
                return Ok(inner);
            }
            let generation = inner.generation;
            let bitmap = if attempt < LOAD_ATTEMPTS {
                drop(inner);
                let bitmap = self.store.load(nr);
                inner = group.lock();
                bitmap
            } else {
                self.store.load(nr)
            };
            match bitmap {
                Err(e) => {
                    self.mark_bad(nr, group, &mut inner, "its bitmap cannot be read");
                    self.store.damaged(nr, &e);
                    return Err(Unusable::Store(e));
                }
                Ok(_) if inner.buddy.is_some() || inner.generation != generation => {}
                Ok(bitmap) => self.install(nr, group, &mut inner, &bitmap),
            }
        }
        Err(Unusable::Bad)
    }

    /// Builds the buddy from the bitmap, the held blocks and the system zones. Marks the group bad if they contradict
    /// each other or the descriptor's count.
    fn install(&self, nr: GroupNr, group: &Group, inner: &mut GroupInner, bitmap: &[u8]) {
        let blocks = self.geometry.blocks_in_group(nr);
        if (bitmap.len() as u64) < u64::from(blocks).div_ceil(8) {
            return self.distrust(nr, group, inner, "its bitmap is too short".to_owned());
        }
        let mut used = vec![0u64; blocks.div_ceil(64) as usize];
        for (word, bytes) in used.iter_mut().zip(bitmap.chunks(8)) {
            let mut raw = [0u8; 8];
            raw[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(raw);
        }
        let is_used = |used: &[u64], i: u32| used[i as usize / 64] >> (i % 64) & 1 == 1;
        let disk_free = (0..blocks.div_ceil(64))
            .map(|w| {
                let bits = (blocks - w * 64).min(64);
                let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                (!used[w as usize] & mask).count_ones()
            })
            .sum::<u32>();
        let expected = group.free() + inner.held_total() + inner.masked;
        if disk_free != expected {
            let detail = format!("{disk_free} blocks are free in the bitmap, {expected} in the descriptor");
            return self.distrust(nr, group, inner, detail);
        }
        let mut sound = true;
        for (start, len) in inner.held().into_iter().flat_map(|h| h.iter()) {
            for i in start..start + len {
                sound &= !is_used(&used, i);
                used[i as usize / 64] |= 1 << (i % 64);
            }
        }
        if !sound {
            return self.distrust(nr, group, inner, "a block is used that was never handed out".to_owned());
        }
        let first = self.geometry.group_start(nr).0;
        let mut masked = 0;
        for (start, end) in self.zones.within(first, first + u64::from(blocks)) {
            for i in (start - first) as u32..(end - first) as u32 {
                masked += u32::from(!is_used(&used, i));
                used[i as usize / 64] |= 1 << (i % 64);
            }
        }
        if masked > inner.masked {
            self.space.disk_forgotten(u64::from(masked - inner.masked));
            inner.masked = masked;
        }
        let buddy = Box::new(Buddy::new(&used, blocks, self.geometry.block_bits()));
        self.buddy_bytes.fetch_add(buddy.bytes(), Ordering::Relaxed);
        self.counters.buddies_loaded.inc();
        trace_point!(ext4_mb_buddy_bitmap_load, group = nr.0, free = buddy.free());
        inner.buddy = Some(buddy);
        group.set(REFERENCED);
        self.put_aside(nr, inner, 0, blocks);
        self.publish(nr, group, inner);
    }

    /// Reads the bitmaps of the flex group in one request, before the bitmap of this group is needed. Afterwards the
    /// policy knows the numbers of all its groups. Linux: `ext4_mb_prefetch`.
    pub(crate) fn read_ahead(&self, nr: u32) {
        let together = self.geometry.flex_bg_size.clamp(1, READ_AHEAD_MAX);
        let first = nr - nr % together;
        let last = first.saturating_add(together).min(self.geometry.groups);
        let unknown: Vec<GroupNr> = (first..last)
            .map(GroupNr)
            .filter(|&g| self.group_ref(g).is_some_and(|g| !g.has(KNOWN | BAD | UNINIT) && g.free() > 0))
            .collect();
        if unknown.len() <= 1 {
            return;
        }
        self.counters.read_aheads.inc();
        self.store.read_ahead(&unknown);
        // From the last group down, as in Linux: lists begin with it.
        for group in unknown.into_iter().rev().filter(|g| g.0 != nr) {
            self.survey(group);
        }
    }

    /// Publishes the numbers of a group's bitmap without keeping a buddy. If the bitmap cannot be read, the request
    /// that needs it reports the error.
    fn survey(&self, nr: GroupNr) {
        let Some(group) = self.group_ref(nr).filter(|g| !g.has(KNOWN | BAD)) else { return };
        let Some(before) = group.try_lock().map(|inner| inner.generation) else { return };
        let Ok(bitmap) = self.store.load(nr) else { return };
        let Some(mut inner) = group.try_lock() else { return };
        if !group.has(KNOWN | BAD) && inner.buddy.is_none() && inner.generation == before {
            self.install(nr, group, &mut inner, &bitmap);
            self.drop_buddy(group, &mut inner);
        }
    }

    /// Makes the buddy's numbers readable without the lock and notifies the policy.
    pub(crate) fn publish(&self, nr: GroupNr, group: &Group, inner: &GroupInner) {
        if let Some(buddy) = &inner.buddy {
            group.learn(buddy);
        }
        self.choice.changed(nr.0, group.info(inner.buddy.as_deref(), self.geometry.highest_order()));
    }

    /// Handles a group whose state is inconsistent: marks it bad and notifies the store.
    fn distrust(&self, nr: GroupNr, group: &Group, inner: &mut GroupInner, detail: String) {
        self.mark_bad(nr, group, inner, &detail);
        self.store.damaged(nr, &Error::corrupt(nr, self.geometry.named(self.geometry.group_start(nr)), detail).into());
    }

    /// Marks a group bad: from now on nothing is allocated or freed in it, and its free blocks do not count.
    pub(crate) fn mark_bad(&self, nr: GroupNr, group: &Group, inner: &mut GroupInner, why: &str) {
        if group.has(BAD) {
            return;
        }
        trace_point!(ext4_mark_group_bitmap_corrupted, group = nr.0; "why={why:?}");
        self.counters.groups_bad.inc();
        self.space.disk_forgotten(u64::from(group.free() + inner.held_total()));
        self.forget_aside(nr, inner);
        group.set(BAD);
        self.drop_buddy(group, inner);
        group.set_free(0);
        group.unlearn();
        self.choice.changed(nr.0, group.info(inner.buddy.as_deref(), self.geometry.highest_order()));
    }

    pub(crate) fn drop_buddy(&self, group: &Group, inner: &mut GroupInner) -> usize {
        let Some(buddy) = inner.buddy.take() else { return 0 };
        let bytes = buddy.bytes();
        self.buddy_bytes.fetch_sub(bytes, Ordering::Relaxed);
        inner.generation = inner.generation.wrapping_add(1);
        group.clear(LOADED);
        bytes
    }

    /// Removes free blocks from the buddy of a locked group; from now on they are held and in flight.
    pub(crate) fn take(&self, nr: GroupNr, inner: &mut GroupInner, start: u32, len: u32) -> bool {
        let Some(group) = self.group_ref(nr) else { return false };
        if !inner.buddy.as_mut().is_some_and(|b| b.mark_used(start, len)) {
            return false;
        }
        let fresh = inner.hold(start, len);
        debug_assert!(fresh, "free blocks are not held");
        self.in_transit.begin(u64::from(len));
        self.publish(nr, group, inner);
        true
    }

    /// Makes held blocks free; with `pa`, the group forgets that preallocation. Returns the number of blocks.
    pub(crate) fn give_back(
        &self,
        nr: GroupNr,
        ranges: impl IntoIterator<Item = (u32, u32)>,
        pa: Option<&Arc<Preallocation>>,
    ) -> u32 {
        let Some(group) = self.group_ref(nr) else { return 0 };
        let mut inner = group.lock();
        let mut total = 0;
        for (start, len) in ranges {
            if !inner.unhold(start, len) {
                self.counters.bad_releases.inc();
                continue;
            }
            total += len;
            if group.has(BAD) {
                continue;
            }
            match inner.buddy.as_mut().map(|b| b.mark_free(start, len)) {
                Some(true) => {}
                Some(false) => {
                    self.distrust(nr, group, &mut inner, "a held block was free".to_owned());
                    // These blocks are now neither held nor free.
                    self.space.disk_forgotten(u64::from(len));
                }
                None => {
                    group.set_free(group.free() + len);
                    group.unlearn();
                }
            }
            self.put_aside(nr, &mut inner, start, len);
        }
        if let Some(pa) = pa {
            inner.unregister(pa);
        }
        if !group.has(BAD) {
            self.publish(nr, group, &inner);
        }
        drop(inner);
        self.in_transit.turned();
        total
    }

    /// Drops buddies; see [`Allocator::drop_unused_buddies`].
    pub(crate) fn shrink(&self, target: usize) -> usize {
        let n = self.groups.len() as u32;
        let mut freed = 0;
        // The first round spares buddies that were used since the last round.
        for _ in 0..2u64 * u64::from(n) {
            if freed >= target || self.buddy_bytes.load(Ordering::Relaxed) == 0 {
                break;
            }
            let nr = self.shrink_hand.fetch_add(1, Ordering::Relaxed) % n;
            let Some(group) = self.group_ref(GroupNr(nr)).filter(|group| group.has(LOADED)) else {
                continue;
            };
            if group.has(REFERENCED) {
                group.clear(REFERENCED);
                continue;
            }
            if let Some(mut inner) = group.try_lock() {
                let bytes = self.drop_buddy(group, &mut inner);
                if bytes > 0 {
                    self.counters.buddies_dropped.inc();
                }
                freed += bytes;
            }
        }
        freed
    }

    /// Drops every buddy, because the system zones changed. Must be called before the allocator is shared.
    pub(crate) fn forget_buddies(&self) {
        for (nr, group) in self.groups.iter().enumerate() {
            let mut inner = group.lock();
            let aside = self.forget_aside(GroupNr(nr as u32), &mut inner);
            if self.drop_buddy(group, &mut inner) > 0 || aside > 0 {
                group.set_free(group.free() + aside);
                group.clear(KNOWN | UNINIT);
                group.unlearn();
                self.publish(GroupNr(nr as u32), group, &inner);
            }
        }
    }

    /// Frees a preallocation's remaining blocks.
    pub(crate) fn discard(&self, pa: &Arc<Preallocation>) -> u32 {
        // Counted as in flight. Otherwise another thread may meanwhile conclude that these blocks do not exist.
        self.in_transit.begin(1);
        let ranges = pa.take_all();
        let mut freed = 0;
        self.counters.pa_spent.add(u64::from(ranges.total()));
        if !ranges.is_empty() {
            freed = self.give_back(pa.group, ranges.iter(), Some(pa));
            self.counters.pa_discarded.inc();
            self.counters.pa_discarded_blocks.add(u64::from(freed));
            trace_point!(ext4_mb_release_pa, group = pa.group.0, start = pa.start, blocks = freed);
        }
        self.in_transit.end(1);
        freed
    }

    pub(crate) fn discard_everything(&self) -> u64 {
        // In flight from clearing the first flag to freeing the last block: otherwise another thread may conclude that
        // no block is left.
        self.in_transit.begin(1);
        let mut freed = 0;
        for group in self.groups.iter().filter(|g| g.has(PREALLOCATED)) {
            let list = {
                let inner = group.lock();
                group.clear(PREALLOCATED);
                inner.preallocations()
            };
            for pa in list {
                freed += u64::from(self.discard(&pa));
            }
        }
        self.in_transit.end(1);
        trace_point!(ext4_mb_discard_preallocations, freed = freed);
        freed
    }
}
