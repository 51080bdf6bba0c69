//! Reservations for delayed data, here called promises, and how delayed data gets clusters that have several blocks.
//!
//! Space is reserved for every delayed block. Under `bigalloc` it is reserved for the clusters of [`Promises`]: those
//! with delayed blocks but no mapped one. A block whose cluster is already mapped needs no space. So the set changes
//! when a block becomes delayed ([`Maps::promise`]), is mapped ([`Maps::fill_hole`]), or is forgotten
//! ([`Maps::forget_status`]), and when the last mapped block of a cluster is removed ([`Maps::renew_promises`]). Linux:
//! `ext4_insert_delayed_blocks`, `ext4_es_remove_extent` with its `struct rsvd_count`, `ext4_rereserve_cluster`.
//!
//! Blocks of a cluster may be written at different times, and by several threads. So under `bigalloc` a writer does not
//! choose blocks in advance. It first maps them as unwritten, so that each thread sees where the cluster is.
//!
//! What it does not do: choose and map blocks if a cluster is a single block ([`super::mapping`]).
//!
//! # Locking
//! `map` (50) exclusively, and within it the allocator's locks.

use std::ops::Range;
use std::sync::Arc;

use extant_es::EsState;
use extant_journal::Handle;
use extant_mballoc::{Kind, Request};
use extant_ondisk::LogicalBlock;

use crate::clusters::Promises;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::map::{MapRoot, MapState};
use crate::map_view::MapView;
use crate::maps::Maps;
use crate::reserve::Caller;
use crate::writeback::batch::WritebackReason;

/// The maximum number of blocks mapped at once. An extent can hold them, and they end at the end of a cluster if the
/// cluster is not longer.
const FILL_BLOCKS_MAX: u32 = 1 << 14;

impl Maps {
    /// Reserves space for the hole of `len` blocks at `lblk`, from the start on, as long as there is space. Returns the
    /// number of blocks that are now delayed.
    pub(super) fn promise(&self, inode: &Arc<Inode>, lblk: LogicalBlock, len: u32) -> Result<u32> {
        let got = match &inode.promises {
            Some(promises) => self.promise_clusters(inode, promises, lblk, len),
            None => {
                let allowed = self.quotas.promise_blocks(inode, len)?;
                let got = self
                    .placement
                    .alloc
                    .reserve_clusters_up_to(u64::from(allowed), self.placement.may_use_reserve(Caller::current()))
                    as u32;
                if got > 0 {
                    // Every change of the extent-status cache needs the map lock.
                    let _map = inode.map.read();
                    inode.es.insert(lblk, got, EsState::Delayed);
                }
                Ok(got)
            }
        };
        self.quotas.settle_promises(inode);
        got
    }

    /// As [`Maps::promise`], where clusters have several blocks.
    fn promise_clusters(&self, inode: &Arc<Inode>, promises: &Promises, lblk: LogicalBlock, len: u32) -> Result<u32> {
        self.check_form(inode)?;
        let size = self.placement.alloc.cluster_size();
        let view = self.map_view(inode);
        let map = inode.map.write();
        let end = u64::from(lblk.0) + u64::from(len);
        let mut wanted = Vec::new();
        for cluster in size.around(lblk.0.into()..end) {
            let first = size.first_block(cluster);
            // Clusters in the middle of a hole have no mapped block.
            let inside = first >= u64::from(lblk.0) && size.first_block(cluster + 1) <= end;
            let has_promise = promises.lock().contains(&(cluster as u32));
            let at = LogicalBlock(first.max(lblk.0.into()) as u32);
            if !has_promise && (inside || map.place_in_cluster(&view, at)?.is_none()) {
                wanted.push(cluster as u32);
            }
        }
        let blocks = size.first_block(wanted.len() as u64).min(u64::from(u32::MAX)) as u32;
        let allowed = if blocks == 0 { 0 } else { size.of(self.quotas.promise_blocks(inode, blocks)?.into()) };
        let got =
            self.placement.alloc.reserve_clusters_up_to(allowed, self.placement.may_use_reserve(Caller::current()))
                as usize;
        promises.lock().extend(&wanted[..got]);
        let stop = wanted.get(got).map_or(end, |cluster| size.first_block((*cluster).into()).max(lblk.0.into()));
        let delayed = (stop - u64::from(lblk.0)) as u32;
        if delayed > 0 {
            inode.es.insert(lblk, delayed, EsState::Delayed);
        }
        Ok(delayed)
    }

    /// Removes `len` blocks from `lblk` on from the extent-status cache. Space that was reserved for delayed ones
    /// becomes available again. The caller holds the map lock exclusively.
    pub(crate) fn forget_status(&self, inode: &Inode, lblk: LogicalBlock, len: u64) {
        let delayed = inode.es.remove(lblk, len.min(u64::from(u32::MAX - lblk.0)) as u32);
        let returned = match &inode.promises {
            Some(_) if delayed == 0 => 0,
            Some(promises) => self.end_promises(inode, promises, u64::from(lblk.0)..u64::from(lblk.0) + len),
            None => delayed,
        };
        self.placement.alloc.unreserve_clusters(returned);
        self.quotas.settle_promises(inode);
    }

    /// Removes from the set each cluster in this range that no longer has a delayed block. Returns the number removed.
    fn end_promises(&self, inode: &Inode, promises: &Promises, blocks: Range<u64>) -> u64 {
        let size = self.placement.alloc.cluster_size();
        let mut set = promises.lock();
        let clusters = size.around(blocks);
        let clusters = clusters.start as u32..clusters.end.min(u32::MAX.into()) as u32;
        let ended: Vec<u32> = set.range(clusters).copied().filter(|c| !self.has_delayed(inode, *c)).collect();
        set.retain(|cluster| ended.binary_search(cluster).is_err());
        ended.len() as u64
    }

    /// Whether the cluster has delayed blocks.
    fn has_delayed(&self, inode: &Inode, cluster: u32) -> bool {
        let size = self.placement.alloc.cluster_size();
        let (first, last) = (size.first_block(cluster.into()), size.first_block(u64::from(cluster) + 1) - 1);
        let last = last.min(u32::MAX.into());
        inode.es.find_delayed(LogicalBlock(first as u32), LogicalBlock(last as u32)).is_some()
    }

    /// Called after the blocks `from..=to` were unmapped. If the last mapped block of a cluster is gone and the cluster
    /// has delayed blocks, it needs a reservation now. Its space has just been freed, so there is enough.
    pub(super) fn renew_promises(
        &self,
        inode: &Arc<Inode>,
        map: &MapRoot,
        view: &MapView<'_>,
        from: LogicalBlock,
        to: LogicalBlock,
    ) -> Result<()> {
        let Some(promises) = &inode.promises else { return Ok(()) };
        let size = self.placement.alloc.cluster_size();
        for at in [from, to] {
            let cluster = size.of(at.0.into()) as u32;
            let is_new = self.has_delayed(inode, cluster) && !promises.lock().contains(&cluster);
            if is_new && map.place_in_cluster(view, at)?.is_none() {
                promises.lock().insert(cluster);
                self.placement.alloc.reserve_freed_clusters(1);
            }
        }
        self.quotas.settle_promises(inode);
        Ok(())
    }

    /// Given blocks in a hole whose first one has no place, finds the end of those that can go to new clusters
    /// together. Also returns whether their clusters have reservations: either all of them do, or none. Without a
    /// reservation, the quota must leave room.
    fn end_of_new_clusters(
        &self,
        inode: &Inode,
        map: &MapRoot,
        view: &MapView<'_>,
        blocks: Range<u64>,
    ) -> Result<(u64, bool)> {
        let size = self.placement.alloc.cluster_size();
        let Range { start: first, mut end } = blocks;
        let tail = size.of(end - 1);
        let is_cut = size.offset(end) != 0 && tail > size.of(first);
        if is_cut && map.place_in_cluster(view, LogicalBlock((end - 1) as u32))?.is_some() {
            end = size.first_block(tail);
        }
        // End the run where the first cluster differs from the others.
        let is_promised = {
            let set = inode.promises.as_ref().map(|promises| promises.lock());
            let has = |cluster: u64| set.as_ref().is_some_and(|set| set.contains(&(cluster as u32)));
            let is_promised = has(size.of(first));
            let other = size.around(first..end).find(|cluster| has(*cluster) != is_promised);
            end = other.map_or(end, |cluster| size.first_block(cluster));
            is_promised
        };
        if !is_promised {
            let clusters = size.around(first..end);
            let wanted = size.first_block(clusters.end - clusters.start).min(u32::MAX.into()) as u32;
            let allowed = size.of(self.quotas.blocks_within(inode, wanted)?.into());
            if allowed == 0 {
                return Err(Error::QuotaExceeded);
            }
            end = end.min(size.first_block(clusters.start + allowed));
        }
        Ok((end, is_promised))
    }

    /// Maps the first of `len` blocks from `lblk` on as unwritten, in the place of their cluster or in new clusters.
    /// Returns how many were mapped, at least 1, including blocks that another thread has mapped meanwhile. The caller
    /// writes the inode.
    ///
    /// # Errors
    /// [`Error::NoSpaceUntilCommit`] also if blocks of the cluster left the file in a transaction that is not yet
    /// durable.
    pub(crate) fn fill_hole(
        &self,
        handle: &mut Handle,
        inode: &Arc<Inode>,
        lblk: LogicalBlock,
        len: u32,
        why: WritebackReason,
    ) -> Result<u32> {
        self.check_form(inode)?;
        let size = self.placement.alloc.cluster_size();
        let view = self.map_view(inode);
        let mut map = inode.map.write();
        let found = map.lookup(&view, lblk, len)?;
        if found.state != MapState::Hole {
            return Ok(found.len);
        }
        let first = u64::from(lblk.0);
        let mut end = first + u64::from(found.len.min(FILL_BLOCKS_MAX));
        if let Some(block) = map.place_in_cluster(&view, lblk)? {
            if self.placement.alloc.is_vacated(block, || self.journal.committed_tid()) {
                return Err(Error::NoSpaceUntilCommit);
            }
            let len = (end - first).min(u64::from(size.blocks() - size.offset(first))) as u32;
            let mapped = map.insert(&view, handle, lblk, block, len, true);
            inode.absorb_map(&mut map, self.geo.block_size);
            let mapped = mapped?;
            inode.es.insert(lblk, mapped, EsState::Unwritten(block));
            return Ok(mapped);
        }
        let is_promised;
        (end, is_promised) = self.end_of_new_clusters(inode, &map, &view, first..end)?;
        let before = lblk.0.checked_sub(1).map(|before| map.lookup(&view, LogicalBlock(before), 1)).transpose()?;
        let before = before.and_then(|before| match before.state {
            MapState::Written(block) | MapState::Unwritten(block) => Some(block),
            MapState::Hole => None,
        });
        let (goal, flags) = self.goal_behind(inode, before, is_promised, why);
        let size_blocks = inode.size().div_ceil(u64::from(self.geo.block_size)).max(end);
        let kind = Kind::Data {
            owner: &inode.prealloc,
            logical: lblk,
            file_blocks: size_blocks,
            reserved: is_promised,
            left: None,
            right: None,
        };
        let request =
            Request { goal: Some(goal), len: (end - first) as u32, kind, flags, max_block: None, pointers: None };
        let (chosen, _) = self.placement.alloc.choose_with(&request, 0)?;
        let inserted = self.placement.alloc.prepare(handle, &chosen).and_then(|held| {
            let mapped = map.insert(&view, handle, lblk, chosen.start, chosen.len, true)?;
            Ok((mapped, held))
        });
        inode.absorb_map(&mut map, self.geo.block_size);
        let (mapped, _held) = match inserted {
            Ok(mapped) => mapped,
            Err(e) => {
                self.placement.alloc.cancel(chosen);
                return Err(e);
            }
        };
        debug_assert_eq!(mapped, chosen.len, "an extent holds as many");
        self.placement.alloc.mark(handle, &chosen)?;
        inode.es.insert(lblk, mapped, EsState::Unwritten(chosen.start));
        if is_promised && let Some(promises) = &inode.promises {
            let mut set = promises.lock();
            for cluster in size.around(first..first + u64::from(mapped)) {
                set.remove(&(cluster as u32));
            }
        }
        drop(map);
        self.quotas.settle_promises(inode);
        Ok(mapped)
    }
}
