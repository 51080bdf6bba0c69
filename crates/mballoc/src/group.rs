//! One block group in core: [`Group`]. Linux: `struct ext4_group_info`, fs/ext4/ext4.h.
//!
//! The policies need free blocks, fragments and largest buddy. These are readable without the lock and stay available
//! when the buddy is dropped. Held blocks (see the crate's page) are recorded beside the buddy, so that the buddy can
//! be rebuilt from the on-disk bitmap at any time.
//!
//! What it does not do: it does not call the store.
//!
//! # Locking
//! [`crate::lock::GROUP`] protects [`GroupInner`]; the atomics are written under it and read without it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use extant_base::sim;
use extant_base::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use extant_base::sync::{Mutex, MutexGuard};

use crate::buddy::Buddy;
use crate::group_choice::policy::GroupInfo;
use crate::lock;
use crate::meta_place::PAGE;
use crate::prealloc::Preallocation;
use crate::ranges::RangeSet;

/// Fragments and largest order are known.
pub const KNOWN: u8 = 1;
/// The bitmap is unreliable.
pub const BAD: u8 = 2;
/// BLOCK_UNINIT at mount: building the buddy costs no I/O.
pub const UNINIT: u8 = 4;
/// The buddy is in memory.
pub const LOADED: u8 = 8;
/// The buddy has been used since the last round of [`crate::Allocator::drop_unused_buddies`].
pub const REFERENCED: u8 = 16;
/// There may be preallocations here.
pub const PREALLOCATED: u8 = 32;

const NO_ORDER: u8 = u8::MAX;

/// A block group.
#[repr(align(64))]
pub struct Group {
    free: AtomicU32,
    fragments: AtomicU32,
    largest_order: AtomicU8,
    flags: AtomicU8,
    inner: Mutex<GroupInner>,
}

/// The state under the group's lock.
#[derive(Default)]
pub struct GroupInner {
    /// Changes whenever a bitmap that is being loaded would become stale.
    pub generation: u32,
    /// Blocks of system zones that the bitmap shows as free; they count as used.
    pub masked: u32,
    pub buddy: Option<Box<Buddy>>,
    /// None if there are no held blocks and no preallocations, to save memory: a file system may have half a million
    /// groups.
    outside: Option<Box<WithheldBlocks>>,
}

/// Blocks that are used in core and free on disk, by reason.
#[derive(Default)]
pub struct WithheldBlocks {
    pub held: RangeSet,
    /// The held blocks that are set aside for metadata ([`crate::meta_place`]).
    pub set_aside: RangeSet,
    /// The home of each page of the group, 0 for none; empty where zones have no pages.
    pub pages: Vec<u8>,
    /// The live preallocations, by start and address.
    pub preallocations: BTreeMap<(u32, usize), Arc<Preallocation>>,
}

fn key(pa: &Arc<Preallocation>) -> (u32, usize) {
    (pa.start, Arc::as_ptr(pa) as usize)
}

impl GroupInner {
    pub fn held_total(&self) -> u32 {
        self.outside.as_ref().map_or(0, |o| o.held.total())
    }

    pub fn held(&self) -> Option<&RangeSet> {
        self.outside.as_ref().map(|o| &o.held)
    }

    pub fn hold(&mut self, start: u32, len: u32) -> bool {
        self.outside.get_or_insert_default().held.insert(start, len)
    }

    /// Releases held blocks. If they are set aside, [`GroupInner::take_aside`] must come first.
    pub fn unhold(&mut self, start: u32, len: u32) -> bool {
        let Some(outside) = &mut self.outside else { return false };
        let ok = !outside.set_aside.overlaps(start, len) && outside.held.remove(start, len);
        self.trim();
        ok
    }

    pub fn set_aside(&self) -> Option<&RangeSet> {
        self.outside.as_ref().map(|o| &o.set_aside)
    }

    /// The blocks set aside, and the pages.
    pub fn zone(&mut self) -> Option<(&mut RangeSet, &mut Vec<u8>)> {
        self.outside.as_mut().map(|o| (&mut o.set_aside, &mut o.pages))
    }

    /// Holds free blocks for metadata from now on.
    pub fn put_aside(&mut self, start: u32, len: u32) -> bool {
        let outside = self.outside.get_or_insert_default();
        outside.held.insert(start, len) && outside.set_aside.insert(start, len)
    }

    /// Clears the owner of each page of these blocks whose part inside `within` is entirely free.
    pub fn leave_pages(&mut self, start: u32, len: u32, within: Range<u32>) {
        let Some((free, pages)) = self.zone() else { return };
        for nr in start / PAGE..(start + len).div_ceil(PAGE) {
            let (first, end) = ((nr * PAGE).max(within.start), ((nr + 1) * PAGE).min(within.end));
            let is_free = first < end && free.contains(first, end - first);
            if let Some(page) = pages.get_mut(nr as usize).filter(|_| is_free) {
                *page = 0;
            }
        }
    }

    /// Ends setting blocks aside for metadata, for another purpose; they are still held.
    pub fn take_aside(&mut self, start: u32, len: u32) -> bool {
        self.outside.as_mut().is_some_and(|o| o.set_aside.remove(start, len))
    }

    pub fn register(&mut self, pa: &Arc<Preallocation>) {
        self.outside.get_or_insert_default().preallocations.insert(key(pa), pa.clone());
    }

    pub fn unregister(&mut self, pa: &Arc<Preallocation>) {
        if let Some(outside) = &mut self.outside {
            outside.preallocations.remove(&key(pa));
            self.trim();
        }
    }

    pub fn preallocations(&self) -> Vec<Arc<Preallocation>> {
        self.outside.as_ref().map_or_else(Vec::new, |o| o.preallocations.values().cloned().collect())
    }

    fn trim(&mut self) {
        if self.outside.as_ref().is_some_and(|o| o.held.is_empty() && o.preallocations.is_empty() && o.pages.is_empty())
        {
            self.outside = None;
        }
    }
}

impl Group {
    pub fn new(free: u32, uninit: bool) -> Group {
        Group {
            free: AtomicU32::new(free),
            fragments: AtomicU32::new(0),
            largest_order: AtomicU8::new(NO_ORDER),
            flags: AtomicU8::new(if uninit { UNINIT } else { 0 }),
            inner: Mutex::new(&lock::GROUP, GroupInner::default()),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, GroupInner> {
        self.inner.lock()
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, GroupInner>> {
        self.inner.try_lock()
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    pub fn set(&self, flags: u8) {
        // Written only if it changes, because every search for a group reads this cache line.
        if self.flags.load(Ordering::Relaxed) & flags != flags {
            self.flags.fetch_or(flags, Ordering::Relaxed);
        }
    }

    pub fn clear(&self, flag: u8) {
        if self.has(flag) {
            self.flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }

    /// Free blocks that can be allocated.
    pub fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Changes the free count of a group whose buddy is not in memory. Under the lock.
    pub fn set_free(&self, free: u32) {
        self.free.store(free, Ordering::Relaxed);
    }

    pub fn fragments(&self) -> u32 {
        self.fragments.load(Ordering::Relaxed)
    }

    pub fn largest_order(&self) -> Option<u32> {
        match self.largest_order.load(Ordering::Relaxed) {
            NO_ORDER => None,
            order => Some(u32::from(order)),
        }
    }

    /// The published numbers, or those of an empty group while this one is BLOCK_UNINIT. `buddy`: this group's, if it
    /// is in memory; `highest`: the highest order that buddies have.
    pub fn info(&self, buddy: Option<&Buddy>, highest: u32) -> GroupInfo {
        let free = self.free();
        if self.has(KNOWN) {
            let largest_order = self.largest_order();
            let run = buddy.map_or_else(|| largest_order.map_or(0, |o| 1 << o), Buddy::long_run);
            GroupInfo { free, fragments: self.fragments(), largest_order, run }
        } else if self.has(UNINIT) {
            let largest_order = free.checked_ilog2().map(|o| o.min(highest));
            GroupInfo { free, fragments: u32::from(free > 0), largest_order, run: free }
        } else {
            GroupInfo { free, ..GroupInfo::default() }
        }
    }

    /// Publishes the buddy's numbers. Under the lock.
    pub fn learn(&self, buddy: &Buddy) {
        sim::line_written("group summary", self);
        self.free.store(buddy.free(), Ordering::Relaxed);
        self.fragments.store(buddy.fragments(), Ordering::Relaxed);
        self.largest_order.store(buddy.largest_order().map_or(NO_ORDER, |o| o as u8), Ordering::Relaxed);
        self.set(KNOWN | LOADED);
        self.clear(UNINIT);
    }

    /// Forgets fragments and largest order, because they changed without a buddy in memory. Under the lock.
    pub fn unlearn(&self) {
        self.fragments.store(0, Ordering::Relaxed);
        self.largest_order.store(NO_ORDER, Ordering::Relaxed);
        self.clear(KNOWN | UNINIT);
    }
}
