//! Reading and writing inodes in the inode tables, and the mapping layer's view of cache, journal and allocator.
//!
//! Main types: [`MapView`] (a [`MapStore`] for one inode).
//!
//! # Locking
//! `write_inode` takes the inode's meta lock (60), then the table block's buffer lock.

use std::cell::RefCell;
use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_cache::{BufKind, Buffer};
use extant_journal::Handle;
use extant_mballoc::{InodePreallocation, MetaRequest, MetaRole, Pointers, Request, RequestFlags};
use extant_ondisk::inode::{InodeDesc, InodeFlags};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap};

use crate::clusters::ClusterSize;
use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::map::{MapRoot, MapStore, NewNode, Shared, neighbours};
use crate::maps::Maps;
use crate::orphan;
use crate::quota::Charge;
use crate::volume::Volume;

impl Volume {
    /// The table block of an inode and the offset of its slot.
    pub(crate) fn inode_slot(&self, ino: InodeNr) -> Result<(Arc<Buffer>, usize)> {
        let place = self.geo.inode_location(ino)?;
        let table = self.placement.groups.with(place.group, |d| d.inode_table)?;
        let block = BlockNr(table.0 + u64::from(place.table_block));
        if self.cache.peek(block).is_none() {
            // As with Linux's inode_readahead_blks: 32 blocks around the wanted one, within the table.
            let first = place.table_block - place.table_block % 32;
            let count = 32.min(self.geo.inode_table_blocks - first);
            self.cache.readahead(BlockNr(table.0 + u64::from(first)), count);
        }
        Ok((self.cache.get(block)?, place.offset))
    }

    /// The table blocks of inodes that an operation will write. The operation takes them before its first change and
    /// holds them until its handle ends, so that [`Maps::write_inode`] cannot fail half-way.
    pub(crate) fn hold_slots<'a>(&self, inodes: impl IntoIterator<Item = &'a InodeRef>) -> Result<Vec<Arc<Buffer>>> {
        inodes.into_iter().map(|inode| self.inode_slot(inode.ino).map(|(table, _)| table)).collect()
    }

    /// The checksum seed of an inode's own blocks.
    pub(crate) fn inode_seed(&self, ino: InodeNr, generation: u32) -> Option<u32> {
        self.geo.metadata_csum.then(|| self.geo.seed.for_inode(ino, generation).raw())
    }

    /// Decodes the inode from its table.
    pub(crate) fn read_inode(&self, ino: InodeNr) -> Result<InodeDesc> {
        let (buffer, offset) = self.inode_slot(ino)?;
        let size = self.geo.inode_size;
        let desc = buffer.read(|b| InodeDesc::decode(&b[offset..offset + size], ino, &self.geo))?;
        if desc.file_type().is_none() {
            return Err(Error::Stale(ino));
        }
        self.check_content(ino, &desc)?;
        Ok(desc)
    }

    /// Checks the place of the content, and a directory's size.
    fn check_content(&self, ino: InodeNr, desc: &InodeDesc) -> Result<()> {
        let damaged = |detail: String| Err(Error::corrupt(Damage::Inode, detail).of(ino));
        if desc.flags.contains(InodeFlags::INLINE_DATA) {
            // As in Linux (`__ext4_iget`), so that no code treats such an inode as empty.
            if !self.inline_data {
                return damaged("its content is in the inode, but the image lacks the feature 'inline_data'".into());
            }
            if desc.has_extents() {
                return damaged("its content is in the inode, and in extents".into());
            }
            // Linux never writes this: content in the inode is always plaintext.
            if desc.flags.contains(InodeFlags::ENCRYPT) {
                return damaged("its content is in the inode, and encrypted".into());
            }
        } else if desc.is_regular()
            && desc.size > u64::from(u32::MAX)
            && desc.size > self.size_limit(desc.has_extents())
        {
            // As in Linux (`ext4_iget`: "bad i_size value"), because a read would end before the end of the file.
            let limit = self.size_limit(desc.has_extents());
            return damaged(format!("a file of {} bytes, more than its map can hold ({limit})", desc.size));
        } else if desc.is_dir() && desc.size > u64::from(u32::MAX) {
            // Otherwise a listing would try every block up to this size (Linux: `ext4_readdir` ends at i_blocks).
            let most = desc.blocks.saturating_mul(512).min(self.geo.blocks_count << self.geo.block_bits);
            if desc.size > most {
                return damaged(format!("a directory of {} bytes with blocks for {most}", desc.size));
            }
        }
        Ok(())
    }

    /// Runs `f` on the inode's bytes in its table.
    pub(crate) fn inode_bytes<R>(&self, ino: InodeNr, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let (buffer, offset) = self.inode_slot(ino)?;
        Ok(buffer.read(|b| f(&b[offset..offset + self.geo.inode_size])))
    }
}

impl Maps {
    /// Writes the inode into its table block, and charges its owners. 1 credit, in addition to those of the quotas.
    pub(crate) fn write_inode(&self, handle: &mut Handle, inode: &Arc<Inode>) -> Result<()> {
        let (buffer, offset) = self.inode_slot(inode.ino)?;
        let size = self.geo.inode_size;
        let mut m = inode.meta.write();
        m.lazy_times = false;
        handle.modify(&buffer, BufKind::Table, |b| {
            m.desc.encode_into(&mut b[offset..offset + size], inode.ino, &self.geo)
        })?;
        self.describe_inode(handle, inode.ino, &m.desc, &buffer, offset);
        // Before the lock is released: a thread that sees no pending times must also see their transaction.
        inode.sync_tid.store(handle.tid().0, Ordering::Release);
        let charges = self.quotas.recharge(inode, &mut m);
        drop(m);
        charges.map_or(Ok(()), |(before, after)| self.quotas.charge(handle, inode.ino, before, after))
    }

    /// As [`Maps::write_inode`], for a change that is needed to read the file's data (size, mapping).
    pub(crate) fn write_inode_data(&self, handle: &mut Handle, inode: &Arc<Inode>) -> Result<()> {
        self.write_inode(handle, inode)?;
        inode.datasync_tid.store(handle.tid().0, Ordering::Release);
        Ok(())
    }

    /// The mapping layer's view for `inode`.
    pub(crate) fn map_view<'a>(&'a self, inode: &'a Inode) -> MapView<'a> {
        let regular = inode.meta.read().desc.is_regular() && !inode.of_value.load(Ordering::Acquire);
        MapView { inode: Some(inode), aside: Some(&inode.prealloc), ..MapView::new(self, inode.ino, regular) }
    }
}

impl Filesystem {
    /// The root directory.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the inode is damaged; [`Error::Device`] if its block cannot be read.
    pub fn root(&self) -> Result<InodeRef> {
        self.iget(InodeNr::ROOT)
    }

    /// The inode, from memory or from its inode table.
    ///
    /// # Errors
    /// [`Error::Stale`] for a deleted inode that is not in use, and for one of the file system's own inodes.
    pub fn iget(&self, ino: InodeNr) -> Result<InodeRef> {
        if let Some(rescue) = &self.rescue {
            return rescue.iget(self, ino);
        }
        if self.own_inodes.contains(ino) {
            return Err(Error::Stale(ino));
        }
        let inode = self.iget_own(ino)?;
        if inode.of_value.load(Ordering::Acquire) {
            // As in Linux (`check_igot_inode`), no name may refer to such an inode.
            return Err(Error::corrupt(Damage::Inode, "it has the value of attributes, and is no file").of(ino));
        }
        // The inode is in memory, but without links and other users, so its eviction is about to begin.
        if inode.links() == 0 && inode.users() == 1 {
            return Err(Error::Stale(ino));
        }
        Ok(inode)
    }

    /// The inode with this number, for tools. This includes the file system's own inodes, and under rescue deleted
    /// ones. A rescue mount never becomes writable, so dropping the last reference frees nothing.
    ///
    /// # Errors
    /// [`Error::Stale`] for an inode that is not in use; under rescue [`Error::Corrupt`] if nothing is left of it.
    pub fn iget_by_number(&self, ino: InodeNr) -> Result<InodeRef> {
        self.iget_own(ino)
    }

    /// As [`Filesystem::iget`], for a name in `dir`. A name that refers to a deleted inode is damage.
    pub(crate) fn iget_named(&self, dir: &Inode, ino: InodeNr) -> Result<InodeRef> {
        self.iget(ino).map_err(|e| match e {
            Error::Stale(ino) => {
                let detail = format!("it names {ino}, which is deleted or the file system's own");
                Error::corrupt(Damage::Tree, detail).of(dir.ino)
            }
            other => other,
        })
    }

    /// As [`Filesystem::iget`], but also for the file system's own inodes.
    pub(crate) fn iget_own(&self, ino: InodeNr) -> Result<InodeRef> {
        if let Some(rescue) = &self.rescue {
            return rescue.load(self, ino);
        }
        if let Some(inode) = self.inodes.find(ino) {
            return Ok(inode);
        }
        loop {
            let left = self.inodes.left(ino);
            let desc = self.read_inode(ino)?;
            if desc.links == 0 {
                // An orphan is in memory from the moment when it becomes one. So this inode became one after the first
                // lookup, or it was deleted and may be in the course of being freed.
                return self.inodes.find(ino).ok_or(Error::Stale(ino));
            }
            let inode = self.decoded_inode(ino, desc)?;
            if let Some(inode) = self.inodes.insert_read(inode, left) {
                self.budget.relieve();
                return Ok(inode);
            }
        }
    }

    /// Loads the inode of a record of the orphan list or file, at mount.
    pub(crate) fn iget_orphan(&self, ino: InodeNr) -> Result<InodeRef> {
        if ino.0 < self.geo.first_ino || self.own_inodes.contains(ino) {
            return Err(Error::corrupt(Damage::Orphans, "the file system's own").of(ino));
        }
        if let Some(inode) = self.inodes.find(ino) {
            return Ok(inode);
        }
        let desc = self.read_inode(ino).map_err(orphan::named_wrongly)?;
        if desc.links > 0 && !desc.has_map(&self.geo) {
            // As in Linux (`ext4_orphan_get`): the inode has no blocks to free, because `i_block` contains something
            // other than a map.
            return Err(Error::corrupt(Damage::Orphans, "neither deleted nor with blocks to be cut off").of(ino));
        }
        self.adopt_inode(ino, desc)
    }

    /// Adds an inode that was read from its table to those in memory. No other thread may be looking it up.
    pub(crate) fn adopt_inode(&self, ino: InodeNr, desc: InodeDesc) -> Result<InodeRef> {
        let r = self.inodes.insert(self.decoded_inode(ino, desc)?);
        self.budget.relieve();
        Ok(r)
    }

    fn decoded_inode(&self, ino: InodeNr, desc: InodeDesc) -> Result<Arc<Inode>> {
        let inline = desc.flags.contains(InodeFlags::INLINE_DATA);
        let seed = self.inode_seed(ino, desc.generation);
        let map = match inline {
            // This only determines the form of the map that the inode gets when its content moves out.
            true => MapRoot { dirty: false, ..MapRoot::empty(ino, self.new_extents, seed) },
            false => MapRoot::new(ino, desc.i_block, desc.has_extents(), seed),
        };
        let mapped =
            !inline && (desc.is_regular() || desc.is_dir() || (desc.is_symlink() && !desc.is_fast_symlink(&self.geo)));
        // As in Linux (`ext4_ext_check_inode`, `ext4_ind_check_inode`), an operation on a damaged inode fails before it
        // begins. The journal's inode is visible if it has a name, but reads and writes of its blocks are refused.
        // Under rescue, only the damaged parts fail.
        if mapped && self.own_inodes.journal != Some(ino) && !self.rescues() {
            map.check_root(&MapView::new(self, ino, desc.is_regular()))?;
        }
        if desc.file_acl.0 != 0 && !self.placement.may_be_owned(desc.file_acl, 1) && !self.rescues() {
            return Err(Error::corrupt(Damage::Xattr, "their block cannot be a file's").of(ino).at(desc.file_acl));
        }
        // A transaction that changed the inode may still be uncommitted, and fsync must wait for it.
        let tid = self.journal.running_tid().0;
        let inode = Inode::new(&self.arc(), ino, desc, map, self.es.attach(ino), tid, Charge::default());
        let values = self.xattrs(&inode).count_values()?;
        {
            let mut m = inode.meta.write();
            m.values = values;
            m.charge = Charge::of(&m.desc, values);
        }
        Ok(inode)
    }

    /// Zeroes the slot of a new inode. If the slot shows that the bitmap was wrong and the inode exists, returns an
    /// error. 1 credit.
    pub(crate) fn clear_inode_slot(&self, handle: &mut Handle, ino: InodeNr, fresh: bool) -> Result<()> {
        let (buffer, offset) = self.inode_slot(ino)?;
        let size = self.geo.inode_size;
        let taken = self.inodes.find(ino).is_some()
            || !fresh
                && buffer.read(|b| {
                    InodeDesc::parse(&b[offset..offset + size], ino, &self.geo)
                        .is_ok_and(|d| d.links > 0 && d.dtime == 0 && d.file_type().is_some())
                });
        if taken {
            return Err(Error::corrupt(Damage::InodeBitmap, "free, but in use").of(ino));
        }
        self.describe_new_slot(handle, &buffer, offset);
        handle.modify(&buffer, BufKind::Table, |b| b[offset..offset + size].fill(0));
        Ok(())
    }
}

/// The mapping layer's store for one inode.
pub(crate) struct MapView<'a> {
    pub volume: &'a Volume,
    ino: InodeNr,
    /// `None` while the inode is being created.
    inode: Option<&'a Inode>,
    goal_group: GroupNr,
    /// The preallocation that may contain blocks reserved for its pointer blocks.
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
    fn new(volume: &'a Volume, ino: InodeNr, regular: bool) -> MapView<'a> {
        let goal_group = GroupNr((ino.0 - 1) / volume.geo.inodes_per_group);
        let (aside, gives_up, held) = (None, false, RefCell::default());
        MapView { volume, ino, inode: None, goal_group, aside, journalled: !regular, gives_up, held }
    }

    /// The view for removing a whole map. Blocks that damage hides are leaked, and the damage is recorded.
    pub(crate) fn giving_up(self) -> MapView<'a> {
        MapView { gives_up: true, ..self }
    }

    fn hold(&self, buffer: &Arc<Buffer>) {
        let mut held = self.held.borrow_mut();
        let at = held.iter().position(|h| h.as_ref().is_some_and(|h| Arc::ptr_eq(h, buffer))).unwrap_or(HELD - 1);
        held[at] = Some(buffer.clone());
        held[..=at].rotate_right(1);
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
}

impl MapView<'_> {
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

impl Volume {
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

#[cfg(test)]
mod tests {
    use extant_block::device::FaultyDevice;

    use super::*;
    use crate::dir_store::tests::{hide_from, spacious};
    use crate::forgetful::Forgetful;
    use crate::{Attr, Cred, NewNode, RenameFlags, SetAttr, SetMode, WriteFlags};

    /// The directory tree of the test below.
    struct Tree<'a> {
        fs: &'a Filesystem,
        d: InodeRef,
        e: InodeRef,
        file: InodeRef,
        sub: InodeRef,
        other: InodeRef,
    }

    type State = (Vec<Attr>, Vec<(Vec<u8>, u64)>);

    impl Tree<'_> {
        fn inodes(&self) -> [&InodeRef; 5] {
            [&self.d, &self.e, &self.file, &self.sub, &self.other]
        }

        fn state(&self) -> State {
            let mut names = Vec::new();
            for dir in [&self.d, &self.e, &self.sub] {
                let note = |item: crate::DirItem<'_>| {
                    names.push((item.name.to_vec(), u64::from(item.ino.0)));
                    true
                };
                self.fs.read_dir(dir, 0, note).expect("listed");
            }
            (self.inodes().map(|inode| self.fs.getattr(inode)).to_vec(), names)
        }
    }

    /// Tries a change while one of the inodes that it writes is unreadable.
    fn refuse(
        tree: &Tree<'_>,
        faulty: &FaultyDevice,
        what: &str,
        hidden: &[&InodeRef],
        change: impl Fn() -> Result<()>,
    ) {
        for inode in hidden {
            let before = tree.state();
            hide_from(tree.fs, faulty, inode);
            let failed = change();
            faulty.clear();
            assert!(matches!(failed, Err(Error::Device(_))), "{what} without {}: {failed:?}", inode.ino);
            assert!(!tree.fs.is_read_only(), "{what} without {}: no change was left half-done", inode.ino);
            assert_eq!(tree.state(), before, "{what} without {}", inode.ino);
        }
    }

    /// The table block of an inode in memory is unreadable, so no operation that must write the inode begins.
    #[test]
    fn operations_fail_before_the_first_change_if_an_inode_cannot_be_written() {
        let (dev, faulty, fs) = spacious("dir_index");
        let root = fs.root().expect("root");
        let create = |dir: &InodeRef, name: &[u8], node| fs.create(dir, name, node, Cred::default()).expect("create");
        let [d, e] = [b"d", b"e"].map(|name| create(&root, name, NewNode::directory(0o755)));
        let file = create(&d, b"file", NewNode::file(0o644));
        let sub = create(&d, b"sub", NewNode::directory(0o755));
        let other = create(&e, b"other", NewNode::file(0o644));
        fs.write(&file, 0, &[1; 5000], WriteFlags::default()).expect("write");
        fs.sync().expect("sync");
        let tree = Tree { fs: &fs, d, e, file, sub, other };
        let Tree { d, e, file, sub, other, .. } = &tree;
        let refuse = |what: &str, hidden: &[&InodeRef], change: &dyn Fn() -> Result<()>| {
            refuse(&tree, &faulty, what, hidden, change);
        };
        let chown = SetAttr { uid: Some(4711), ..SetAttr::default() };
        refuse("chown", &[file], &|| fs.setattr(file, &chown).map(drop));
        let cut = SetAttr { size: Some(100), ..SetAttr::default() };
        refuse("truncate", &[file], &|| fs.setattr(file, &cut).map(drop));
        refuse("create", &[d], &|| fs.create(d, b"new", NewNode::file(0o644), Cred::default()).map(drop));
        refuse("unlink", &[d, file], &|| fs.unlink(d, b"file"));
        refuse("rmdir", &[d, sub], &|| fs.rmdir(d, b"sub"));
        refuse("link", &[e, file], &|| fs.link(file, e, b"linked"));
        let rename = |old: &[u8], new: &[u8], flags| fs.rename(d, old, e, new, flags);
        refuse("rename", &[d, e, file], &|| rename(b"file", b"new", RenameFlags::default()));
        refuse("replace", &[d, e, file, other], &|| rename(b"file", b"other", RenameFlags::default()));
        refuse("move", &[d, e, sub], &|| rename(b"sub", b"new", RenameFlags::default()));
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        refuse("exchange", &[d, e, sub, other], &|| rename(b"sub", b"other", exchange));
        drop((tree, root));
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&dev);
    }

    /// The same, if the block has been evicted since the operation began.
    #[test]
    fn inodes_to_be_written_stay_in_memory() {
        let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024", "-I", "1024", "-N", "64"], "8M"));
        let (forgetful, fs) = Forgetful::mount(dev.clone());
        let root = fs.root().expect("root");
        let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
        let (set, allocated) = forgetful.run(&fs, || fs.set_xattr(&f, b"user.large", &[b'L'; 900], SetMode::Any));
        assert!(set.is_ok() && allocated && !fs.is_read_only(), "{set:?}");
        let mkdir = || fs.create(&root, b"d", NewNode::directory(0o755), Cred::default());
        let (made, allocated) = forgetful.run(&fs, mkdir);
        assert!(made.is_ok() && allocated && !fs.is_read_only(), "{made:?}");
        drop((root, f, made));
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&dev);
    }
}
