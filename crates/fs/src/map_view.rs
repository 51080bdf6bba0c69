//! The mapping layer's view of cache, journal and allocator.
//!
//! Main type: [`MapView`] (a [`MapStore`] for one inode).
//!
//! What it does not do: hold the map's lock, which its caller does.
//!
//! # Locking
//! None of its own.

use std::cell::RefCell;
use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_cache::{BufKind, Buffer};
use extant_journal::Handle;
use extant_mballoc::{InodePreallocation, MetaRequest, MetaRole, Pointers, Request, RequestFlags};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap};

use crate::clusters::ClusterSize;
use crate::error::{Damage, Error, Result};
use crate::inode::Inode;
use crate::map::{MapStore, NewNode, Shared, neighbours};
use crate::maps::Maps;
use crate::volume::Volume;

impl Maps {
    /// The mapping layer's view of `inode`.
    pub(crate) fn map_view<'a>(&'a self, inode: &'a Inode) -> MapView<'a> {
        let regular = inode.meta.read().desc.is_regular() && !inode.of_value.load(Ordering::Acquire);
        MapView { inode: Some(inode), aside: Some(&inode.prealloc), ..MapView::new(self, inode.ino, regular) }
    }
}

/// The mapping layer's store, for the map of one inode.
pub(crate) struct MapView<'a> {
    pub volume: &'a Volume,
    ino: InodeNr,
    /// `None` while the inode is being created.
    inode: Option<&'a Inode>,
    goal_group: GroupNr,
    /// The inode's preallocation, which may contain blocks that are reserved for pointer blocks of the map.
    aside: Option<&'a InodePreallocation>,
    /// The data blocks are metadata to the journal (directories, symlinks, values), so freeing them needs revoke
    /// records.
    journalled: bool,
    /// The whole map is being removed, in spite of damage.
    gives_up: bool,
    /// The most recently read nodes, newest first. A change reads all of its nodes first. It must not find half-way
    /// that one has been evicted and is unreadable.
    held: RefCell<[Option<Arc<Buffer>>; HELD]>,
}

/// At least the number of nodes on the paths from the root of a map to two adjacent leaves.
const HELD: usize = 12;

impl<'a> MapView<'a> {
    /// A view for the map of `ino`, without the inode. `regular`: its blocks are data, not metadata.
    pub(crate) fn new(volume: &'a Volume, ino: InodeNr, regular: bool) -> MapView<'a> {
        let goal_group = GroupNr((ino.0 - 1) / volume.geo.inodes_per_group);
        let (aside, gives_up, held) = (None, false, RefCell::default());
        MapView { volume, ino, inode: None, goal_group, aside, journalled: !regular, gives_up, held }
    }

    /// The view for removing a whole map. Blocks that damage hides are leaked, and the damage is recorded.
    pub(crate) fn giving_up(self) -> MapView<'a> {
        MapView { gives_up: true, ..self }
    }

    /// Keeps the node in memory; see [`MapView::held`].
    fn hold(&self, buffer: &Arc<Buffer>) {
        let mut held = self.held.borrow_mut();
        let at = held.iter().position(|h| h.as_ref().is_some_and(|h| Arc::ptr_eq(h, buffer))).unwrap_or(HELD - 1);
        held[at] = Some(buffer.clone());
        held[..=at].rotate_right(1);
    }

    /// The buffer of a node that has been verified, and is held.
    fn verified(
        &self,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> std::result::Result<(), String>,
    ) -> Result<Arc<Buffer>> {
        let buffer = self.volume.cache.get(block)?;
        if !buffer.verified() {
            buffer.read(verify).map_err(|detail| Error::corrupt(Damage::Map, detail).of(self.ino).at(block))?;
            buffer.set_verified();
        }
        self.hold(&buffer);
        Ok(buffer)
    }
}

impl MapStore for MapView<'_> {
    type Txn = Handle;
    type Error = Error;

    fn block_size(&self) -> u32 {
        self.volume.geo.block_size
    }

    fn blocks_count(&self) -> u64 {
        self.volume.geo.blocks_count
    }

    fn cluster_size(&self) -> ClusterSize {
        self.volume.placement.alloc.cluster_size()
    }

    fn group_of(&self, block: BlockNr) -> GroupNr {
        self.volume.geo.group_of_block(block).map_or(GroupNr(0), |(g, _)| g)
    }

    fn block_range_valid(&self, start: BlockNr, len: u32) -> bool {
        self.volume.placement.may_be_owned(start, u64::from(len))
    }

    fn read<R>(
        &self,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> std::result::Result<(), String>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let buffer = self.verified(block, verify)?;
        Ok(buffer.read(f))
    }

    fn read_damaged<R>(&self, block: BlockNr, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(self.volume.cache.get(block)?.read(f))
    }

    fn salvages(&self) -> bool {
        self.volume.rescues()
    }

    fn doubt(&self, e: Error) {
        if let Some(inode) = self.inode {
            self.volume.doubt(inode, e.of(self.ino));
        }
    }

    fn in_memory(&self, block: BlockNr) -> bool {
        self.volume.cache.peek(block).is_some()
    }

    fn read_ahead(&self, block: BlockNr, siblings: impl FnOnce() -> Vec<BlockNr>) {
        self.volume.read_neighbours(block, siblings);
    }

    fn modify<R>(
        &self,
        handle: &mut Handle,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> std::result::Result<(), String>,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let buffer = self.verified(block, verify)?;
        Ok(handle.modify(&buffer, BufKind::Leaf, f))
    }

    fn allocate_meta(&self, handle: &mut Handle, node: NewNode) -> Result<BlockNr> {
        let meta = MetaRequest {
            role: if node.pointers.is_some() { MetaRole::Indirect } else { MetaRole::ExtentNode },
            owner: self.ino,
            home: Some(self.volume.geo.first_block_of_group(self.goal_group)),
            parent: node.parent,
            data: node.data,
        };
        // Nodes may use the reserved pool, because they are needed to complete writes with reserved space.
        let flags = RequestFlags::USE_RESERVED;
        let blocks = node.pointers.as_slice();
        let pointers = self.aside.map(|owner| Pointers { owner, blocks, end: 0 });
        self.volume.placement.allocate_meta(handle, Request { flags, pointers, ..Request::meta(meta, 1) })
    }

    fn init<R>(&self, handle: &mut Handle, block: BlockNr, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let buffer = handle.create(block, BufKind::Leaf)?;
        Ok(handle.modify(&buffer, BufKind::Leaf, f))
    }

    fn free_meta(&self, handle: &mut Handle, block: BlockNr) -> Result<()> {
        // The order matters: a block that cannot be freed must stay in the log.
        if !self.volume.placement.free_blocks(handle, self.ino, block, 1)?.is_empty() {
            handle.forget(block);
        }
        Ok(())
    }

    fn free_data(&self, handle: &mut Handle, start: BlockNr, len: u32, shared: Shared) -> Result<()> {
        let size = self.cluster_size();
        let clusters = shared.freed(size, start, len);
        let mut freed = Vec::new();
        if !clusters.is_empty() {
            let (first, end) = (size.first_block(clusters.start), size.first_block(clusters.end));
            freed = self.volume.placement.free_blocks(handle, self.ino, BlockNr(first), (end - first) as u32)?;
        }
        let blocks = start.0..start.0 + u64::from(len);
        if !self.journalled {
            let durable = || self.volume.journal.committed_tid();
            let stay = size.around(blocks).filter(|cluster| !clusters.contains(cluster));
            stay.for_each(|cluster| self.volume.placement.alloc.vacate(cluster, handle.tid(), durable()));
        } else {
            // Blocks in clusters that remain in use must be revoked as well.
            let stays = |block: u64| !clusters.contains(&size.of(block));
            let is_freed = |block: u64| freed.iter().any(|(s, l)| (s.0..s.0 + u64::from(*l)).contains(&block));
            blocks.filter(|b| stays(*b) || is_freed(*b)).for_each(|b| handle.forget(BlockNr(b)));
        }
        Ok(())
    }

    fn check_in_use(&self, block: BlockNr) -> Result<()> {
        let in_bitmap = match self.volume.geo.group_of_block(block).filter(|_| self.gives_up) {
            // A damaged map may contain any block. If the bitmap is damaged as well, it proves nothing, and the
            // operation that needs it will report it.
            Some((group, index)) => match self.volume.placement.groups.block_bitmap(group) {
                Ok(bitmap) => {
                    let bit = index >> self.volume.geo.cluster_bits;
                    bitmap.read(|bytes| !bitmap::is_clear(bytes, bit..bit + 1)) || {
                        // This call finds out whether the group is damaged.
                        if let Err(e) = self.volume.placement.alloc.next_freeable(block, 1)
                            && !Error::is_corruption(&e)
                        {
                            return Err(e);
                        }
                        self.volume.placement.alloc.is_bad(group)
                    }
                }
                Err(e) if e.is_corruption() => true,
                Err(e) => return Err(e),
            },
            None => true,
        };
        if !in_bitmap || self.volume.placement.alloc.is_known_free(block) {
            let detail = "a block of the map is free";
            return Err(Error::corrupt(Damage::Map, detail).of(self.ino).at(block));
        }
        Ok(())
    }

    fn gives_up(&self) -> bool {
        self.gives_up
    }

    fn passes(&self, e: &Error) -> bool {
        let passes = self.gives_up && e.is_corruption();
        if passes {
            self.volume.placement.groups.keep_damage(e.clone().of(self.ino));
        }
        passes
    }

    fn has_credits(&self, handle: &mut Handle, blocks: u32) -> bool {
        handle.has_credits(self.volume.with_quota_credits(blocks))
    }
}

impl Volume {
    /// If the metadata block `block` is not in memory, reads it together with nearby `siblings`, and with its
    /// neighbours in a zone. Errors are ignored here, because the access that needs the block reports them.
    ///
    /// The siblings cannot change while their map is locked. A neighbour in a zone may be anything: free, or data that
    /// borrows the zone. Its copy may become stale, but nothing reads the stale copy. Data is not read through this
    /// cache, and a block that becomes metadata is initialized in it. The copy counts as unverified until it is used.
    pub(crate) fn read_neighbours(&self, block: BlockNr, siblings: impl FnOnce() -> Vec<BlockNr>) {
        // Almost every step of a descent ends here.
        if self.cache.peek(block).is_some() {
            return;
        }
        let most = neighbours::WINDOW * u64::from(self.geo.block_size);
        // Do not read blocks that no file may own, which a damaged map may contain.
        if !self.placement.may_be_owned(block, 1) || !self.budget.has_room_for(most) {
            return;
        }
        let window = neighbours::window(block, self.geo.first_data_block);
        let zone = self
            .placement
            .alloc
            .zone_around(block)
            .map_or(0..0, |(start, len)| start.0.max(window.start)..(start.0 + u64::from(len)).min(window.end));
        let of_zone = zone.map(BlockNr).filter(|b| !self.placement.alloc.is_known_free(*b));
        // Blocks that are being read, or that failed to be read with others, already have a buffer.
        let wanted = |b: BlockNr| !self.cache.has_buffer(b) && self.placement.may_be_owned(b, 1);
        let together = neighbours::around(block, &window, siblings().into_iter().chain(of_zone), wanted);
        if together.len() > 1 {
            self.cache.read_together(&together);
        }
    }

    /// The largest size that a map of this form and the block count field allow.
    pub(crate) fn size_limit(&self, extents: bool) -> u64 {
        if extents { self.geo.max_extent_file_size() } else { self.geo.max_indirect_file_size() }
    }

    /// Refuses to change the map of a file without extents if clusters have several blocks. Such a map does not show
    /// where the rest of a cluster lies, and e2fsck treats it as damage.
    pub(crate) fn check_form(&self, inode: &Inode) -> Result<()> {
        match self.placement.alloc.cluster_size().is_one() || inode.map.read().extents {
            true => Ok(()),
            false => Err(Error::corrupt(Damage::Map, "no extents, which bigalloc requires").of(inode.ino)),
        }
    }
}
