//! Which blocks a file has: looking them up, choosing and mapping new ones, converting, removing (Linux:
//! `ext4_map_blocks` and what is around it).
//!
//! Main functions: [`Filesystem::status`] and [`Filesystem::map_lookup`] (what is there), [`Filesystem::choose_blocks`]
//! (in memory only) and [`Filesystem::map_chosen`] (under a handle), [`Filesystem::convert_some`],
//! [`Filesystem::remove_blocks`].
//!
//! What it does not do: data. Who writes it decides when its blocks are mapped (`writeback.rs`, `data.rs`).
//!
//! # Locking
//! `map` (50), under the inode's `inode` lock; the extent-status cache changes only under it.

use std::sync::Arc;

use extant_journal::Handle;
use extant_mballoc::{Chosen, Kind, Pointers, Request, RequestFlags};
use extant_ondisk::inode::FileType;
use extant_ondisk::{BlockNr, GroupNr, LogicalBlock};

use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::map::es::{EsEntry, EsState};
use crate::map::{MapState, Mapping, Progress};
use crate::store::MapView;
use crate::writeback::batch::WritebackReason;

/// For what a hole is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Data follows at once.
    Written,
    /// Delayed data, whose blocks were promised, follows at once; then so many blocks of other small files.
    Promised { more: u32 },
    /// Preallocation.
    Unwritten,
}

/// Blocks looked up at once when the map has to be read anyway, as far as map blocks that are in memory say.
const LOOKUP_BLOCKS: u32 = 1 << 15;

/// The last logical block that a map can hold.
pub(super) const LAST_BLOCK: LogicalBlock = LogicalBlock(0xFFFF_FFFE);

fn es_state(state: MapState) -> EsState {
    match state {
        MapState::Written(b) => EsState::Written(b),
        MapState::Unwritten(b) => EsState::Unwritten(b),
        MapState::Hole => EsState::Hole,
    }
}

impl Filesystem {
    /// Where new blocks of an inode are best placed: the start of its group, or, with flexible groups, of the second
    /// group of its flex group for files and the first for directories (Linux: `ext4_inode_to_goal_block`).
    pub(crate) fn inode_goal(&self, inode: &Inode) -> BlockNr {
        let mut group = (inode.ino.0 - 1) / self.geo.inodes_per_group;
        let flex = self.geo.groups_per_flex;
        if flex >= 4 {
            group -= group % flex;
            if inode.file_type() == Some(FileType::Regular) && group + 1 < self.groups.count() {
                group += 1;
            }
        }
        self.geo.first_block_of_group(GroupNr(group))
    }

    /// What the map says of `lblk`, a delayed block counting as a hole.
    pub(crate) fn map_lookup(&self, inode: &Arc<Inode>, lblk: LogicalBlock) -> Result<MapState> {
        let (_, state) = self.status(inode, lblk, 1)?;
        Ok(match state {
            EsState::Written(b) => MapState::Written(b),
            EsState::Unwritten(b) => MapState::Unwritten(b),
            EsState::Delayed | EsState::Hole => MapState::Hole,
        })
    }

    /// The status of `lblk` and for how many blocks (at most `max`) it holds (Linux: `ext4_map_blocks` without create).
    pub(crate) fn status(&self, inode: &Arc<Inode>, lblk: LogicalBlock, max: u32) -> Result<(u32, EsState)> {
        let max = max.max(1);
        if let Some(e) = inode.es.lookup(lblk).and_then(|e| e.from(lblk, max)) {
            return Ok((e.len, e.state));
        }
        let view = self.map_view(inode);
        let map = inode.map.read();
        let m = map.lookup_at_least(&view, lblk, max, LOOKUP_BLOCKS.max(max))?;
        let state = es_state(m.state);
        // Delayed blocks lie in what the map calls a hole: the answer ends before the first of them.
        let last = LogicalBlock(lblk.0.saturating_add(m.len - 1));
        let len = match inode.es.find_delayed(lblk, last) {
            Some(d) if d.lblk <= lblk => return Ok((1, EsState::Delayed)),
            Some(d) => (d.lblk.0 - lblk.0).min(m.len),
            None => m.len,
        };
        if m.state != MapState::Hole && inode.es.loads() {
            // The answer is known; what is wrong with its neighbours is told to who asks for them.
            let leaf = map.leaf(&view, lblk).unwrap_or_default();
            let entry = |m: &Mapping| EsEntry { lblk: m.lblk, len: m.len, state: es_state(m.state) };
            inode.es.load(&leaf.iter().map(entry).collect::<Vec<_>>());
        }
        inode.es.cache(lblk, len, state);
        Ok((len.min(max), state))
    }

    pub(crate) fn check_data_range(&self, inode: &Inode, block: BlockNr, len: u32) -> Result<()> {
        if block.0 < self.geo.first_data_block.max(1) || !self.geo.contains_range(block, u64::from(len)) {
            return Err(Error::corrupt(Damage::Map, format!("{len} blocks of data outside the file system"))
                .of(inode.ino)
                .at(block));
        }
        Ok(())
    }

    /// The largest size that the inode's map and the block count field allow.
    pub(crate) fn max_size(&self, inode: &Inode) -> u64 {
        if inode.map.read().extents { self.geo.max_extent_file_size() } else { self.geo.max_indirect_file_size() }
    }

    /// Chooses blocks for a hole: at least 1, at most `len`. `after`: the block before `lblk`, where the caller knows
    /// better than the map. And those that lie behind them, for [`Want::Promised::more`]. Needs no handle.
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
        // What is written through makes the file as long as that only later.
        let size_blocks = inode.size().div_ceil(u64::from(self.geo.block_size)).max(u64::from(lblk.0) + u64::from(len));
        let mut goal = self.inode_goal(inode);
        let mut flags = self.caller_flags();
        let before = after.or_else(|| {
            let before = LogicalBlock(lblk.0.checked_sub(1)?);
            match self.status(inode, before, 1).ok()?.1 {
                EsState::Written(block) | EsState::Unwritten(block) => Some(block),
                EsState::Delayed | EsState::Hole => None,
            }
        });
        if let Some(before) = before {
            goal = BlockNr(before.0 + 1);
            flags = flags | RequestFlags::TRY_GOAL;
        }
        if inode.users() == 0 {
            flags = flags | RequestFlags::CLOSED;
        }
        if reserved {
            // What was promised must be had: conversions and delayed writes may use the pool.
            flags = flags | RequestFlags::USE_RESERVED;
        }
        if why == WritebackReason::Fsync {
            flags = flags | RequestFlags::SYNCED;
        }
        let extents = inode.map.read().extents;
        let missing = if !extents && self.alloc.puts_pointers_in_front() {
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
        self.alloc.choose_with(&request, more)
    }

    /// Marks chosen blocks used and maps them; returns how many. What did not fit into the handle stays in `chosen`,
    /// and so does everything when it fails before the first change: the caller tries again or gives it back.
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
            .alloc
            .prepare(handle, &now)
            .and_then(|held| Ok((map.insert(&view, handle, lblk, now.start, now.len, unwritten)?, held)));
        inode.absorb_map(&mut map, self.geo.block_size);
        // What is marked below is held until then: what is mapped must not stay free.
        let (mapped, _held) = match inserted {
            Ok(n) => n,
            Err(e) => {
                *chosen = Some(now);
                return Err(e);
            }
        };
        *chosen = now.split_off(mapped);
        self.alloc.mark(handle, &now)?;
        let state = if unwritten { EsState::Unwritten(now.start) } else { EsState::Written(now.start) };
        inode.es.insert(lblk, mapped, state);
        Ok(mapped)
    }

    pub(crate) fn cancel_chosen(&self, chosen: &mut Option<Chosen>) {
        if let Some(chosen) = chosen.take() {
            self.alloc.cancel(chosen);
        }
    }

    /// Chosen blocks whose data is on the device become the file's, and the size on disk follows up to `end`. How many
    /// did, also when the others could not.
    pub(super) fn map_written(
        &self,
        inode: &Arc<Inode>,
        lblk: LogicalBlock,
        chosen: Chosen,
        end: u64,
    ) -> (u32, Result<()>) {
        let mut open = None;
        let len = chosen.len;
        let mut chosen = Some(chosen);
        let r = self.settle_chosen(&mut open, inode, lblk, &mut chosen, end);
        let left = chosen.as_ref().map_or(0, |c| c.len);
        self.cancel_chosen(&mut chosen);
        let r = match open {
            Some(handle) => self.end(handle, r),
            None => r,
        };
        (len - left, r)
    }

    /// Chooses blocks for a hole and maps them as unwritten, under one handle: returns how many from `lblk` on (at
    /// least 1, at most `len`).
    pub(crate) fn preallocate_range(
        &self,
        handle: &mut Handle,
        inode: &Arc<Inode>,
        lblk: LogicalBlock,
        len: u32,
    ) -> Result<u32> {
        let mut chosen =
            Some(self.choose_blocks(inode, lblk, len, Want::Unwritten, None, WritebackReason::Background)?.0);
        let mapped = self.map_chosen(handle, inode, lblk, &mut chosen, true);
        self.cancel_chosen(&mut chosen);
        mapped
    }

    /// Data has reached unwritten blocks: they become written, and the size on disk follows.
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

    /// Converts as much as the handle allows; the size on disk follows when that is all.
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
            // What failed in the middle must still be written with the inode.
            r
        };
        match progress {
            Ok(Progress::Done) => self.write_disk_size(handle, inode, end)?,
            _ => self.write_inode_data(handle, inode)?,
        }
        progress
    }

    /// Unmaps and frees `from..=to`, in as many handles as it takes, and returns the last one, still open. Writeback of
    /// the range is excluded and nothing of it in flight; its cached blocks are the caller's to drop.
    pub(crate) fn remove_blocks(&self, inode: &Arc<Inode>, from: LogicalBlock, to: LogicalBlock) -> Result<Handle> {
        self.unmap(&self.map_view(inode), inode, from, to)
    }

    /// The same for all blocks of an inode that goes. What damage hides of its map is noted and left to e2fsck: it must
    /// not keep the rest (Linux: `ext4_ind_truncate`).
    pub(crate) fn remove_all_blocks(&self, inode: &Arc<Inode>) -> Result<Handle> {
        self.unmap(&self.map_view(inode).giving_up(), inode, LogicalBlock(0), LAST_BLOCK)
    }

    fn unmap(&self, view: &MapView<'_>, inode: &Arc<Inode>, from: LogicalBlock, to: LogicalBlock) -> Result<Handle> {
        self.alloc.discard_preallocations(&inode.prealloc);
        let credits = self.remove_credits(inode);
        let mut handle = self.start(credits)?;
        let mut last = to;
        loop {
            let progress = {
                let mut map = inode.map.write();
                let promised = inode.es.remove(from, to.0 - from.0 + 1);
                self.alloc.unreserve(promised);
                let r = map.remove(view, &mut handle, from, last);
                inode.absorb_map(&mut map, self.geo.block_size);
                // What failed in the middle must still be written with the inode.
                r
            };
            if let Err(e) = self.write_inode_data(&mut handle, inode) {
                return self.end(handle, Err(e));
            }
            match progress {
                Ok(Progress::Done) => return Ok(handle),
                Ok(Progress::Stopped { at }) => {
                    last = at;
                    handle.restart(credits)?;
                }
                // The map is consistent, and what it lost is told to e2fsck.
                Err(e) => {
                    self.note_cut_short(&e);
                    handle.finish();
                    return Err(e);
                }
            }
        }
    }

    /// Makes written blocks unwritten, and delayed ones (whose data goes) holes; the size on disk reaches `size` then.
    pub(super) fn unwrite(&self, inode: &Arc<Inode>, first: LogicalBlock, len: u32, size: u64) -> Result<()> {
        let view = self.map_view(inode);
        let mut from = first;
        let to = first.0 + len;
        loop {
            let mut handle = self.start(self.convert_credits(inode))?;
            let progress = {
                let mut map = inode.map.write();
                let promised = inode.es.remove(from, to - from.0);
                self.alloc.unreserve(promised);
                let r = map.mark_unwritten(&view, &mut handle, from, to - from.0);
                inode.absorb_map(&mut map, self.geo.block_size);
                // What failed in the middle must still be written with the inode.
                r
            };
            match progress {
                Ok(Progress::Done) => self.write_disk_size(&mut handle, inode, size)?,
                _ => self.write_inode_data(&mut handle, inode)?,
            }
            // Also after an error: the map is consistent, and what it lost is told to e2fsck.
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

    /// Somebody who wrote the file closed it: what is set aside for its growth goes back, unless delayed data will soon
    /// ask for it (Linux: `ext4_release_file`). The last [`InodeRef`] does the same by itself.
    pub fn release(&self, inode: &InodeRef) {
        inode.set_closed(true);
        self.release_preallocations(inode);
    }

    pub(crate) fn release_preallocations(&self, inode: &Inode) {
        if inode.es.counts().delayed_blocks == 0 {
            self.alloc.discard_preallocations(&inode.prealloc);
        }
    }
}
