//! Finding inodes, in memory or in the inode tables (Linux: `ext4_iget`).
//!
//! Main types: none; [`Filesystem::iget`] and its variants for names, orphans and the file system's own inodes.
//!
//! What it does not do: keep inodes in memory (`inode_table.rs`), or write them (`inode_slots.rs`).
//!
//! # Locking
//! `inode table` (30), within the calls.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_ondisk::InodeNr;
use extant_ondisk::inode::{InodeDesc, InodeFlags};

use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::map::MapRoot;
use crate::map_view::MapView;
use crate::orphan;
use crate::quota::Charge;

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

    /// The inode in memory, made of its fields; it is not in the table yet.
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
        let inode = Inode::new(self, &self.inodes, ino, desc, map, self.es.attach(ino), tid);
        let values = self.xattrs(&inode).count_values()?;
        {
            let mut m = inode.meta.write();
            m.values = values;
            m.charge = Charge::of(&m.desc, values);
        }
        Ok(inode)
    }
}
