//! [`InodePreallocation`]: the preallocations of one file, by logical block, and those of its pointer blocks.
//!
//! # Locking
//! [`crate::lock::OWNER`] protects the list. The file system's own lock on the inode's mapping already serializes
//! allocations for one file. A discard under pressure does not take the list's lock at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::sync::Mutex;
use extant_ondisk::InodeNr;
use extant_ondisk::indirect::PointerBlock;

use super::{Cut, Preallocation};
use crate::lock;

/// If there are more, the farthest one is discarded (Linux: `mb_max_inode_prealloc`).
const INODE_PREALLOCATIONS_MAX: usize = 512;

/// The preallocations of one inode; part of the in-core inode. Linux: `i_prealloc_node` of `struct ext4_inode_info`.
///
/// Discard them with [`crate::Allocator::discard_preallocations`] before truncate, punch and eviction, and when the
/// last writer closes the file. Dropping this without discarding them loses no blocks: they are freed when space is
/// short.
#[derive(Debug)]
pub struct InodePreallocation {
    ino: InodeNr,
    /// Keyed by first logical block; they do not overlap.
    list: Mutex<BTreeMap<u32, Arc<Preallocation>>>,
    /// One block each.
    pointers: Mutex<BTreeMap<PointerBlock, Arc<Preallocation>>>,
}

impl InodePreallocation {
    pub const fn new(ino: InodeNr) -> InodePreallocation {
        let pointers = Mutex::new(&lock::OWNER, BTreeMap::new());
        InodePreallocation { ino, list: Mutex::new(&lock::OWNER, BTreeMap::new()), pointers }
    }

    pub fn ino(&self) -> InodeNr {
        self.ino
    }

    pub fn is_empty(&self) -> bool {
        self.list.lock().is_empty() && self.pointers.lock().is_empty()
    }

    /// The number of blocks left in the preallocations.
    pub fn blocks(&self) -> u64 {
        let left = |p: &Arc<Preallocation>| u64::from(p.left());
        let data: u64 = self.list.lock().values().map(left).sum();
        data + self.pointers.lock().values().map(left).sum::<u64>()
    }

    /// Cuts blocks for `logical` from the preallocation that covers it. `usable` decides whether its group may be used.
    pub(crate) fn cut(
        &self,
        logical: u32,
        len: u32,
        usable: impl Fn(&Preallocation) -> bool,
    ) -> Option<(Arc<Preallocation>, Cut)> {
        let mut list = self.list.lock();
        let (&key, pa) = list.range(..=logical).next_back()?;
        if u64::from(logical) >= pa.logical_end() || !usable(pa) {
            return None;
        }
        let pa = pa.clone();
        let cut = pa.cut_at(logical, len);
        if pa.left() == 0 {
            list.remove(&key);
        }
        cut.map(|cut| (pa, cut))
    }

    /// The bounds `(start, end)` around `logical` that do not overlap live preallocations. Also returns a preallocation
    /// that covers `logical` but no longer has a block for it (its owner freed that block): it must be discarded.
    pub(crate) fn gap_around(&self, logical: u32) -> (u64, u64, Option<Arc<Preallocation>>) {
        let mut list = self.list.lock();
        list.retain(|_, p| p.left() > 0);
        let mut stale = None;
        let mut start = 0;
        if let Some((&key, pa)) = list.range(..=logical).next_back() {
            if pa.logical_end() > u64::from(logical) {
                stale = list.remove(&key);
                if let Some((_, before)) = list.range(..logical).next_back() {
                    start = before.logical_end();
                }
            } else {
                start = pa.logical_end();
            }
        }
        let end = list.range(logical..).next().map_or(u64::MAX, |(&k, _)| u64::from(k));
        (start, end, stale)
    }

    /// Adds a preallocation; returns those to be discarded.
    pub(crate) fn add(&self, pa: Arc<Preallocation>) -> Vec<Arc<Preallocation>> {
        let mut list = self.list.lock();
        let at = pa.logical;
        let mut gone: Vec<_> = list.insert(at, pa).into_iter().collect();
        if list.len() > INODE_PREALLOCATIONS_MAX {
            let (first, last) = (list.first_key_value(), list.last_key_value());
            if let (Some((&first, _)), Some((&last, _))) = (first, last) {
                let farthest = if at - first > last - at { first } else { last };
                gone.extend(list.remove(&farthest));
            }
        }
        gone
    }

    /// Whether a block is set aside for this pointer block.
    pub(crate) fn has_pointer_block(&self, which: PointerBlock) -> bool {
        self.pointers.lock().get(&which).is_some_and(|pa| pa.left() > 0)
    }

    /// Sets a block aside for a pointer block; returns the preallocation that it replaces, to be discarded.
    pub(crate) fn add_pointer_block(&self, which: PointerBlock, pa: Arc<Preallocation>) -> Option<Arc<Preallocation>> {
        self.pointers.lock().insert(which, pa)
    }

    /// Takes the block that was set aside for this pointer block. `usable` decides whether its group may be used.
    pub(crate) fn cut_pointer_block(
        &self,
        which: PointerBlock,
        usable: impl Fn(&Preallocation) -> bool,
    ) -> Option<(Arc<Preallocation>, Cut)> {
        let mut pointers = self.pointers.lock();
        let pa = pointers.get(&which).filter(|pa| usable(pa))?.clone();
        pointers.remove(&which);
        pa.cut_first(1).map(|cut| (pa, cut))
    }

    /// Empties the lists.
    pub(crate) fn take_all(&self) -> Vec<Arc<Preallocation>> {
        let data = std::mem::take(&mut *self.list.lock());
        let pointers = std::mem::take(&mut *self.pointers.lock());
        data.into_values().chain(pointers.into_values()).collect()
    }
}
