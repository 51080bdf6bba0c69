//! Freeing blocks (Linux: `ext4_free_blocks`, `mb_free_blocks`, fs/ext4/mballoc.c), and which blocks may be freed.
//!
//! Main items: [`Allocator::free`], [`Allocator::check_free`], [`Allocator::next_freeable`].
//!
//! What it does not do: it does not make them available again ([`Allocator::release`]).
//!
//! # Locking
//! See the crate's page.

use extant_base::sim;
use extant_base::sync::MutexGuard;
use extant_base::trace_point;
use extant_ondisk::{BlockNr, GroupNr};

use crate::allocator::{Allocator, FreedExtents};
use crate::group::{BAD, GroupInner};
use crate::load::Unusable;
use crate::search::Extent;
use crate::{Error, GroupStore};

impl<S: GroupStore> Allocator<S> {
    /// Marks blocks free on disk in `txn`. They stay unavailable until the result is passed to [`Allocator::release`]
    /// after the transaction is durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a double free, blocks outside the file system or of its own metadata, found before any
    /// change; the store's.
    pub fn free(&self, txn: &mut S::Txn, start: BlockNr, len: u64) -> Result<FreedExtents, S::Error> {
        let pieces = self.pieces_to_free(start, len)?;
        // If the bitmap of the second piece cannot be read, the first piece must stay unmarked. Prepared bitmaps are
        // not read again.
        let mut prepared = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            prepared.push(self.store.prepare(txn, piece.group)?);
            if pieces.len() > 1 {
                self.lock_to_free(piece)?;
            }
        }
        let mut freed = Vec::with_capacity(pieces.len());
        for (piece, prepared) in pieces.into_iter().zip(&prepared) {
            let mut inner = self.lock_to_free(&piece)?;
            self.store.mark(txn, piece.group, prepared, piece.start..piece.start + piece.len, false)?;
            inner.hold(piece.start, piece.len);
            drop(inner);
            // The order matters: a request that is promised these blocks and does not find them must see that a commit
            // will free them.
            self.counters.blocks_freed.add(u64::from(piece.len));
            sim::point("free: counted");
            self.space.disk_gained(u64::from(piece.len));
            freed.push((self.geometry.block(piece.group, piece.start), piece.len));
        }
        trace_point!(ext4_mballoc_free, start = start.0, len = len);
        Ok(freed)
    }

    /// Whether [`Allocator::free`] would free these blocks now, for callers that must change something else first.
    pub fn check_free(&self, start: BlockNr, len: u64) -> Result<(), S::Error> {
        for piece in &self.pieces_to_free(start, len)? {
            self.lock_to_free(piece)?;
        }
        Ok(())
    }

    /// The first run that [`Allocator::free`] would free, among `len` blocks from `start` on that lie in one group and
    /// contain no metadata of the file system. `None` if there is none, or if the group's bitmap is bad.
    ///
    /// # Errors
    /// Those of the store.
    pub fn next_freeable(&self, start: BlockNr, len: u32) -> Result<Option<(BlockNr, u32)>, S::Error> {
        let Some((group, mut at)) = self.geometry.locate(start) else { return Ok(None) };
        let end = at.saturating_add(len).min(self.geometry.blocks_in_group(group));
        let inner = match self.lock_loaded(group, true) {
            Ok(inner) => inner,
            Err(Unusable::Store(e)) => return Err(e),
            Err(_) => return Ok(None),
        };
        let Some(buddy) = &inner.buddy else { return Ok(None) };
        while at < end {
            let free = buddy.next_free(at).unwrap_or(end);
            if free == at {
                at = buddy.next_used(at, end);
                continue;
            }
            let held = inner.held();
            if let Some((first, n)) = held.and_then(|h| h.containing(at)) {
                at = first + n;
                continue;
            }
            let stop = held.and_then(|h| h.next(at)).unwrap_or(end).min(free).min(end);
            return Ok(Some((self.geometry.block(group, at), stop - at)));
        }
        Ok(None)
    }

    /// Whether the block is known to be free, or freed by a transaction that is not durable yet. Then no inode can own
    /// it. Reads nothing: if the group's bitmap is not in memory, only blocks freed by such a transaction are known.
    pub fn is_known_free(&self, block: BlockNr) -> bool {
        let Some((nr, index)) = self.geometry.locate(block) else { return false };
        let Some(group) = self.group_ref(nr) else { return false };
        let inner = group.lock();
        let free = inner.buddy.as_ref().and_then(|b| b.next_free(index)) == Some(index);
        free || inner.held().is_some_and(|h| h.overlaps(index, 1))
    }

    /// Whether a group's bitmap has been found bad: its blocks are no longer allocated or freed.
    pub fn is_bad(&self, group: GroupNr) -> bool {
        self.group_ref(group).is_none_or(|g| g.has(BAD))
    }

    fn pieces_to_free(&self, start: BlockNr, len: u64) -> crate::Result<Vec<Extent>> {
        let pieces = self.split(start, len)?;
        if let Some((zone, _)) = self.zones.within(start.0, start.0 + len).next() {
            let (group, _) = self.geometry.locate(BlockNr(zone)).unwrap_or_default();
            let from = self.geometry.named(start).0;
            let detail = format!("file system metadata in the {len} blocks or clusters to free from {from}");
            return Err(Error::corrupt(group, self.geometry.named(BlockNr(zone)), detail));
        }
        Ok(pieces)
    }

    /// Locks a group if `piece` may be freed there: all of its blocks are in use, on disk too.
    fn lock_to_free(&self, piece: &Extent) -> Result<MutexGuard<'_, GroupInner>, S::Error> {
        let corrupt = |index: u32, detail: &str| {
            let block = self.geometry.named(self.geometry.block(piece.group, index));
            Error::corrupt(piece.group, block, detail)
        };
        let inner = match self.lock_loaded(piece.group, true) {
            Ok(inner) => inner,
            Err(Unusable::Store(e)) => return Err(e),
            Err(_) => return Err(corrupt(piece.start, "the bitmap of its group is bad").into()),
        };
        let free = inner.buddy.as_ref().and_then(|b| b.next_free(piece.start));
        if let Some(free) = free.filter(|&f| f < piece.start + piece.len) {
            return Err(corrupt(free, "freed while it is free").into());
        }
        if inner.held().is_some_and(|h| h.overlaps(piece.start, piece.len)) {
            return Err(corrupt(piece.start, "freed twice, or freed while preallocated").into());
        }
        Ok(inner)
    }
}
