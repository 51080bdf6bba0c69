//! The blocks of a file: looking them up, choosing and mapping new ones, converting, removing (Linux:
//! `ext4_map_blocks` and its neighbours).
//!
//! Main functions: [`Maps::status`] and [`Maps::map_lookup`] (the current state), [`Maps::choose_blocks`] (in memory
//! only) and [`Maps::map_chosen`] (under a handle), [`Maps::convert_some`], [`Maps::remove_blocks`].
//!
//! What it does not do: read or write data. The writers decide when to map its blocks (`writeback/`, `data.rs`).
//!
//! # Locking
//! `map` (50), under the inode's `inode` lock. The extent-status cache changes only under `map`.

use std::sync::Arc;

use extant_journal::Handle;
use extant_mballoc::{Kind, MetaRole, Pointers, Request};
use extant_ondisk::{BlockNr, LogicalBlock};

use crate::clusters::Chosen;
use crate::error::{Damage, Error, Result};
use crate::inode::{Inode, InodeRef};
use crate::map::{MapState, MapStore, Mapping, Progress};
use crate::map_view::MapView;
use crate::maps::Maps;
use crate::ops::disk_size::Move;
use crate::reserve::Caller;
use crate::volume::Volume;
use crate::writeback::batch::WritebackReason;
use extant_es::{EsEntry, EsState};

/// The purpose of blocks that fill a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Data that is written next.
    Written,
    /// Delayed data with reserved blocks that is written next, followed by up to `more` blocks of other small files.
    Promised { more: u32 },
    /// Preallocated blocks, which are unwritten.
    Unwritten,
}

/// The number of blocks of a lookup if the map must be read anyway. The lookup ends earlier if it would have to read
/// further map blocks.
const LOOKUP_BLOCKS: u32 = 1 << 15;

/// The last logical block of a map.
pub(super) const LAST_BLOCK: LogicalBlock = LogicalBlock(0xFFFF_FFFE);

/// The state of mapped blocks, as the extent-status cache has it.
fn es_state(state: MapState) -> EsState {
    match state {
        MapState::Written(b) => EsState::Written(b),
        MapState::Unwritten(b) => EsState::Unwritten(b),
        MapState::Hole => EsState::Hole,
    }
}

impl Volume {
    /// Checks that blocks in a map exist.
    pub(crate) fn check_data_range(&self, inode: &Inode, block: BlockNr, len: u32) -> Result<()> {
        if block.0 < self.geo.first_data_block.max(1) || !self.geo.contains_range(block, u64::from(len)) {
            return Err(Error::corrupt(Damage::Map, format!("{len} blocks of data outside the file system"))
                .of(inode.ino)
                .at(block));
        }
        Ok(())
    }

    /// Makes the blocks that remain chosen free again.
    pub(crate) fn cancel_chosen(&self, chosen: &mut Option<Chosen>) {
        if let Some(chosen) = chosen.take() {
            self.placement.alloc.cancel(chosen);
        }
    }

    /// Frees the inode's preallocated blocks, unless delayed data will soon need them.
    pub(crate) fn release_preallocations(&self, inode: &Inode) {
        if inode.es.counts().delayed_blocks == 0 {
            self.placement.alloc.discard_preallocations(&inode.prealloc);
        }
    }
}

impl Maps {
    /// Called when a writer closes the file: releases the preallocation for its growth, unless delayed data will soon
    /// need it (Linux: `ext4_release_file`). Dropping the last [`InodeRef`] does the same.
    pub fn release(&self, inode: &InodeRef) {
        inode.set_closed(true);
        self.release_preallocations(inode);
    }

    /// The map's state of `lblk`; a delayed block counts as a hole.
    pub(crate) fn map_lookup(&self, inode: &Arc<Inode>, lblk: LogicalBlock) -> Result<MapState> {
        let (_, state) = self.status(inode, lblk, 1)?;
        Ok(match state {
            EsState::Written(b) => MapState::Written(b),
            EsState::Unwritten(b) => MapState::Unwritten(b),
            EsState::Delayed | EsState::Hole => MapState::Hole,
        })
    }

    /// The status of `lblk`, and the number of blocks that have it, at most `max` (Linux: `ext4_map_blocks` without
    /// create).
    pub(crate) fn status(&self, inode: &Arc<Inode>, lblk: LogicalBlock, max: u32) -> Result<(u32, EsState)> {
        let max = max.max(1);
        if let Some(e) = inode.es.lookup(lblk).and_then(|e| e.from(lblk, max)) {
            return Ok((e.len, e.state));
        }
        let view = self.map_view(inode);
        let map = inode.map.read();
        let m = map.lookup_at_least(&view, lblk, max, LOOKUP_BLOCKS.max(max))?;
        let state = es_state(m.state);
        // Delayed blocks lie in a hole of the map, so the result ends before the first of them.
        let last = LogicalBlock(lblk.0.saturating_add(m.len - 1));
        let len = match inode.es.find_delayed(lblk, last) {
            Some(d) if d.lblk <= lblk => return Ok((1, EsState::Delayed)),
            Some(d) => (d.lblk.0 - lblk.0).min(m.len),
            None => m.len,
        };
        if m.state != MapState::Hole && inode.es.loads() {
            // The result is known. Damage of neighbouring entries is reported to callers that look those up.
            let leaf = map.leaf(&view, lblk).unwrap_or_default();
            let entry = |m: &Mapping| EsEntry { lblk: m.lblk, len: m.len, state: es_state(m.state) };
            inode.es.load(&leaf.iter().map(entry).collect::<Vec<_>>());
        }
        inode.es.cache(lblk, len, state);
        Ok((len.min(max), state))
    }

    /// Chooses blocks for a hole: at least 1, at most `len`. `after` is the block before `lblk`, if the caller knows it
    /// better than the map. Also returns the following blocks for [`Want::Promised::more`]. Needs no handle.
    pub(crate) fn choose_blocks(
        &self,
        inode: &Arc<Inode>,
        lblk: LogicalBlock,
        len: u32,
        how: Want,
        after: Option<BlockNr>,
        why: WritebackReason,
    ) -> Result<(Chosen, Option<Chosen>)> {
        let (reserved, more) = match how {
            Want::Promised { more } => (true, more),
            Want::Written | Want::Unwritten => (false, 0),
        };
        let len = if reserved { len } else { self.quotas.blocks_within(inode, len)? };
        // A write-through extends the file to that length only afterwards.
        let size_blocks = inode.size().div_ceil(u64::from(self.geo.block_size)).max(u64::from(lblk.0) + u64::from(len));
        let before = after.or_else(|| {
            let before = LogicalBlock(lblk.0.checked_sub(1)?);
            match self.status(inode, before, 1).ok()?.1 {
                EsState::Written(block) | EsState::Unwritten(block) => Some(block),
                EsState::Delayed | EsState::Hole => None,
            }
        });
        let (goal, flags) = self.goal_behind(inode, before, reserved, why);
        let extents = inode.map.read().extents;
        let missing = if !extents && self.placement.alloc.puts_pointers_in_front() {
            Some(inode.map.read().missing(&self.map_view(inode), lblk)?)
        } else {
            None
        };
        let pointers = missing.as_ref().map(|(blocks, end)| Pointers { owner: &inode.prealloc, blocks, end: *end });
        let request = Request {
            goal: Some(goal),
            len,
            kind: Kind::Data {
                owner: &inode.prealloc,
                logical: lblk,
                file_blocks: size_blocks,
                reserved,
                left: None,
                right: None,
            },
            flags,
            max_block: (!extents).then_some(BlockNr(u64::from(u32::MAX))),
            pointers,
        };
        self.placement.alloc.choose_with(&request, more)
    }

    /// Marks chosen blocks as used and maps them; returns their number. Blocks that exceed the handle's credits remain
    /// in `chosen`. If this fails before the first change, all blocks remain there, and the caller tries again or
    /// cancels them.
    pub(crate) fn map_chosen(
        &self,
        handle: &mut Handle,
        inode: &Arc<Inode>,
        lblk: LogicalBlock,
        chosen: &mut Option<Chosen>,
        unwritten: bool,
    ) -> Result<u32> {
        let Some(mut now) = chosen.take() else { return Ok(0) };
        let view = self.map_view(inode);
        let mut map = inode.map.write();
        let inserted = self
            .placement
            .alloc
            .prepare(handle, &now)
            .and_then(|held| Ok((map.insert(&view, handle, lblk, now.start, now.len, unwritten)?, held)));
        inode.absorb_map(&mut map, self.geo.block_size);
        // Marking the blocks below must not fail, because mapped blocks would then remain free. So the bitmaps are kept
        // in memory until then.
        let (mapped, _held) = match inserted {
            Ok(n) => n,
            Err(e) => {
                *chosen = Some(now);
                return Err(e);
            }
        };
        *chosen = now.split_off(mapped);
        self.placement.alloc.mark(handle, &now)?;
        self.describe_blocks(handle, inode, &map, &view, (lblk.0, lblk.0 + mapped));
        let state = if unwritten { EsState::Unwritten(now.start) } else { EsState::Written(now.start) };
        inode.es.insert(lblk, mapped, state);
        Ok(mapped)
    }

    /// Chooses blocks for a hole and maps them as unwritten, under one handle. Returns their number from `lblk` on (at
    /// least 1, at most `len`).
    pub(crate) fn preallocate_range(
        &self,
        handle: &mut Handle,
        inode: &Arc<Inode>,
        lblk: LogicalBlock,
        len: u32,
    ) -> Result<u32> {
        if !self.placement.alloc.cluster_size().is_one() {
            return self.fill_hole(handle, inode, lblk, len, WritebackReason::Background);
        }
        let mut chosen =
            Some(self.choose_blocks(inode, lblk, len, Want::Unwritten, None, WritebackReason::Background)?.0);
        let mapped = self.map_chosen(handle, inode, lblk, &mut chosen, true);
        self.cancel_chosen(&mut chosen);
        mapped
    }

    /// Converts unwritten blocks to written ones after their data has reached the device, and moves the size on disk.
    pub(crate) fn finish_unwritten(&self, inode: &Arc<Inode>, lblk: LogicalBlock, len: u32, end: u64) -> Result<()> {
        let mut from = lblk;
        loop {
            let mut handle = self.start(self.convert_credits(inode))?;
            let r = self.convert_some(&mut handle, inode, from, lblk.0 + len - from.0, end);
            match self.end(handle, r)? {
                Progress::Done => return Ok(()),
                Progress::Stopped { at } => from = at,
            }
        }
    }

    /// Converts as many blocks as the handle allows. After the last block, moves the size on disk.
    pub(crate) fn convert_some(
        &self,
        handle: &mut Handle,
        inode: &Arc<Inode>,
        from: LogicalBlock,
        len: u32,
        end: u64,
    ) -> Result<Progress> {
        let view = self.map_view(inode);
        let progress = {
            let mut map = inode.map.write();
            let r = map.convert_unwritten(&view, handle, from, len);
            inode.absorb_map(&mut map, self.geo.block_size);
            inode.es.remove(from, len);
            self.describe_blocks(handle, inode, &map, &view, (from.0, from.0 + len));
            // Even after a failure half-way, the map must be written with the inode.
            r
        };
        match progress {
            Ok(Progress::Done) => self.move_size(handle, inode, end, Move::AtLeast)?,
            _ => self.write_inode_data(handle, inode)?,
        }
        progress
    }

    /// Allocates and maps the block `lblk` of a file of metadata: a directory, or quotas. It goes to the place of its
    /// cluster; otherwise `before` is the file's previous block. A failure either has undone its changes or aborts the
    /// journal.
    pub(crate) fn append_meta_block(
        &self,
        handle: &mut Handle,
        view: &MapView<'_>,
        inode: &Inode,
        lblk: LogicalBlock,
        before: Option<BlockNr>,
    ) -> Result<BlockNr> {
        self.check_form(inode)?;
        // In its replay, e2fsck 1.47.0 may put the block where a later record has data of a file.
        handle.set_opaque();
        // No other thread appends.
        let place = inode.map.read().place_in_cluster(view, lblk)?;
        let block = match place {
            Some(block) => {
                self.placement.check_unused(block)?;
                block
            }
            None => {
                let home = self.placement.inode_goal(inode.ino, inode.file_type());
                let owner = (MetaRole::Directory, inode.ino);
                let block = self.placement.allocate_meta_block(handle, owner, home, before, Caller::current())?;
                BlockNr(block.0 + u64::from(view.cluster_size().offset(lblk.0.into())))
            }
        };
        let mut map = inode.map.write();
        if let Err(e) = map.insert(view, handle, lblk, block, 1, false) {
            drop(map);
            if place.is_none() {
                let freed = self.placement.free_blocks(handle, inode.ino, block, 1);
                self.whole(handle, freed)?;
            }
            return Err(e);
        }
        // The map has counted its own nodes; add this block.
        inode.absorb_map(&mut map, self.geo.block_size);
        Ok(block)
    }

    /// Unmaps and frees `from..=to`, in as many handles as needed, and returns the last one, still open. The caller
    /// excludes writeback of the range, has none in progress, and drops the cached blocks.
    pub(crate) fn remove_blocks(&self, inode: &Arc<Inode>, from: LogicalBlock, to: LogicalBlock) -> Result<Handle> {
        self.unmap(&self.map_view(inode), inode, from, to)
    }

    /// As [`Maps::remove_blocks`], for all blocks of an inode that is being evicted. Damage in its map is recorded, and
    /// the blocks below it are left to e2fsck. So the damage does not prevent freeing the rest (Linux:
    /// `ext4_ind_truncate`).
    pub(crate) fn remove_all_blocks(&self, inode: &Arc<Inode>) -> Result<Handle> {
        self.unmap(&self.map_view(inode).giving_up(), inode, LogicalBlock(0), LAST_BLOCK)
    }

    /// Unmaps and frees blocks through this view, which decides what damage does.
    fn unmap(&self, view: &MapView<'_>, inode: &Arc<Inode>, from: LogicalBlock, to: LogicalBlock) -> Result<Handle> {
        self.placement.alloc.discard_preallocations(&inode.prealloc);
        let credits = self.remove_credits(inode);
        match self.check_form(inode) {
            // Blocks that are mapped without extents may share clusters in any way, so none of them is freed.
            Err(e) if view.passes(&e) => return self.start(credits),
            formed => formed?,
        }
        let mut handle = self.start(credits)?;
        let mut last = to;
        loop {
            let progress = {
                let mut map = inode.map.write();
                self.forget_status(inode, from, u64::from(to.0 - from.0) + 1);
                let r = map.remove(view, &mut handle, from, last);
                inode.absorb_map(&mut map, self.geo.block_size);
                // Even after a failure half-way, the map must be written with the inode.
                self.renew_promises(inode, &map, view, from, to).and(r)
            };
            if let Err(e) = self.write_inode_data(&mut handle, inode) {
                return self.end(handle, Err(e));
            }
            match progress {
                Ok(Progress::Done) => return Ok(handle),
                Ok(Progress::Stopped { at }) => {
                    last = at;
                    handle.restart(self.with_quota_credits(credits))?;
                }
                // The map is consistent; e2fsck will find the blocks that it lost.
                Err(e) => {
                    self.note_cut_short(&e);
                    handle.finish();
                    return Err(e);
                }
            }
        }
    }

    /// Converts written blocks to unwritten ones, and delayed blocks, whose data has been dropped, to holes. Then the
    /// size on disk becomes at least `size`.
    pub(super) fn unwrite(&self, inode: &Arc<Inode>, first: LogicalBlock, len: u32, size: u64) -> Result<()> {
        let view = self.map_view(inode);
        let mut from = first;
        let to = first.0 + len;
        loop {
            let mut handle = self.start(self.convert_credits(inode))?;
            let progress = {
                let mut map = inode.map.write();
                self.forget_status(inode, from, u64::from(to - from.0));
                let r = map.mark_unwritten(&view, &mut handle, from, to - from.0);
                inode.absorb_map(&mut map, self.geo.block_size);
                // Even after a failure half-way, the map must be written with the inode.
                r
            };
            match progress {
                Ok(Progress::Done) => self.move_size(&mut handle, inode, size, Move::AtLeast)?,
                _ => self.write_inode_data(&mut handle, inode)?,
            }
            // This also applies after an error: the map is consistent, and e2fsck will find the blocks that it lost.
            handle.finish();
            match progress {
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::Stopped { at }) => from = at,
                Err(e) => {
                    self.note_cut_short(&e);
                    return Err(e);
                }
            }
        }
    }
}
