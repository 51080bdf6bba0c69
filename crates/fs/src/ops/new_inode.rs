//! New inodes: their number, their slot, and their way back if they cannot be completed.
//!
//! Main functions: [`Operation::new_number`] and [`Operation::place_new`]; [`Operation::new_value_inode`] for attribute
//! values; [`Operation::take_back`].
//!
//! What it does not do: decide what a new inode inherits or contains (`create.rs`).
//!
//! # Locking
//! The caller holds the `inode` lock of the directory or owner, exclusively.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_cache::BufKind;
use extant_journal::Handle;
use extant_ondisk::InodeNr;
use extant_ondisk::inode::{FileType, InodeDesc, InodeFlags};

use crate::error::{Damage, Error, Result};
use crate::ialloc::NewNumber;
use crate::inode::{Inode, InodeRef};
use crate::map::MapRoot;
use crate::operation::Operation;
use crate::options::OnError;

impl Operation<'_> {
    /// Creates an inode for an attribute's value: empty, without a name, near `owner`, and with the same owners.
    /// [`NEW_INODE`](crate::ops::credits::NEW_INODE). The caller has charged it to their quotas.
    pub(crate) fn new_value_inode(&self, handle: &mut Handle, owner: &Arc<Inode>, hash: u32) -> Result<InodeRef> {
        let (ino, fresh) = self.new_number(handle, owner, false, b"")?;
        let mut desc = InodeDesc::new(FileType::Regular.mode_bits() | 0o600, &self.fs.geo);
        {
            let of = &owner.meta.read().desc;
            (desc.uid, desc.gid, desc.projid) = (of.uid, of.gid, of.projid);
        }
        desc.flags.set(InodeFlags::EXTENTS, self.fs.new_extents);
        desc.generation = self.fs.random_u32();
        let now = self.fs.now();
        desc.mtime = now;
        if desc.crtime.is_some() {
            desc.crtime = Some(now);
        }
        desc.set_value_hash(hash);
        desc.links = 1;
        let inode = self.place_new(handle, ino, fresh, desc)?;
        inode.of_value.store(true, Ordering::Release);
        self.take_back(handle, &inode)?;
        Ok(inode)
    }

    /// Allocates the number of a new inode in `parent`, see [`crate::placement::Placement::allocate_inode`].
    pub(crate) fn new_number(
        &self,
        handle: &mut Handle,
        parent: &Inode,
        is_dir: bool,
        name: &[u8],
    ) -> Result<(InodeNr, bool)> {
        let is_top = || parent.ino == InodeNr::ROOT || parent.meta.read().desc.flags.contains(InodeFlags::TOPDIR);
        let new = NewNumber {
            is_dir,
            parent: parent.ino,
            last_group: &parent.last_alloc_group,
            spread: (is_dir && is_top()).then(|| self.fs.hash.of_name(name)),
            looks: &self.fs.stats.placement_looks,
        };
        let mut skipped = Vec::new();
        let skips = (self.fs.on_error == OnError::Continue).then_some(&mut skipped);
        let found = self.fs.placement.allocate_inode(handle, &new, skips);
        // Also errors of the device are recorded here, because no other caller sees them.
        skipped.iter().for_each(|e| self.fs.record_error(e));
        found
    }

    /// Adds a new inode to the table of inodes in memory. Its number has just been allocated.
    pub(crate) fn place_new(
        &self,
        handle: &mut Handle,
        ino: InodeNr,
        fresh: bool,
        desc: InodeDesc,
    ) -> Result<InodeRef> {
        let kind = desc.file_type();
        let (is_dir, extents) = (kind == Some(FileType::Directory), desc.has_extents());
        let seed = self.fs.inode_seed(ino, desc.generation);
        let map = if matches!(kind, Some(FileType::Regular | FileType::Directory)) {
            MapRoot::empty(ino, extents, seed)
        } else {
            MapRoot::new(ino, desc.i_block, false, seed)
        };
        if let Err(e) = self.clear_slot(handle, ino, fresh) {
            if !e.is_corruption() {
                // Only the bitmap has changed so far, and this handle will be committed in any case.
                let freed = self.fs.placement.free_inode_number(handle, ino, is_dir);
                self.fs.whole(handle, freed)?;
            }
            // After corruption, the number belongs to another file, and its bit, which was missing, remains set.
            return Err(e);
        }
        let (es, tid) = (self.fs.es.attach(ino), handle.tid().0);
        let inode = Inode::new(self.fs, &self.fs.inodes, ino, desc, map, es, tid);
        inode.absorb_map(&mut inode.map.write(), self.fs.geo.block_size);
        let made = Arc::as_ptr(&inode);
        let inode = self.fs.inodes.insert(inode);
        if !std::ptr::eq(Arc::as_ptr(&inode), made) {
            let found = Err(Error::corrupt(Damage::InodeBitmap, "free, but in use").of(ino));
            return self.fs.whole(handle, found);
        }
        Ok(inode)
    }

    /// Zeroes the slot of a new inode. If the slot shows that the bitmap was wrong and the inode exists, returns an
    /// error. 1 credit.
    fn clear_slot(&self, handle: &mut Handle, ino: InodeNr, fresh: bool) -> Result<()> {
        let (buffer, offset) = self.fs.inode_slot(ino)?;
        let size = self.fs.geo.inode_size;
        let taken = self.fs.inodes.find(ino).is_some()
            || !fresh
                && buffer.read(|b| {
                    InodeDesc::parse(&b[offset..offset + size], ino, &self.fs.geo)
                        .is_ok_and(|d| d.links > 0 && d.dtime == 0 && d.file_type().is_some())
                });
        if taken {
            return Err(Error::corrupt(Damage::InodeBitmap, "free, but in use").of(ino));
        }
        self.fs.describe_new_slot(handle, &buffer, offset);
        handle.modify(&buffer, BufKind::Table, |b| b[offset..offset + size].fill(0));
        Ok(())
    }

    /// Takes back a new inode that could not be completed; its eviction frees it.
    pub(crate) fn take_back(&self, handle: &mut Handle, inode: &InodeRef) -> Result<()> {
        self.taken_back.set(self.taken_back.get() + 1);
        self.unname(handle, inode)
    }

    /// Removes the link of a new inode without a name, and records the inode as an orphan, so that a crash does not
    /// leak it.
    pub(crate) fn unname(&self, handle: &mut Handle, inode: &InodeRef) -> Result<()> {
        inode.meta.write().desc.links = 0;
        let recorded = self.fs.orphans.add(handle, inode).and_then(|()| self.fs.write_inode(handle, inode));
        self.fs.whole(handle, recorded)
    }
}
