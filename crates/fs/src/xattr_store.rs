//! The attributes of an inode, as the attribute layer (`xattr/`) changes them.
//!
//! Main types: [`XattrEdit`] (a change under a handle; [`XattrView::edit`] runs it), [`Values`] (the values in inodes
//! of their own that a change may need).
//!
//! What it does not do: read attributes (`xattr_view.rs`), or make values (`values.rs`).
//!
//! # Locking
//! The caller holds the inode's `inode` lock, and for changes of the block `shared attributes` (77). This takes inode
//! meta (60) and buffers (80).

use std::sync::Arc;

use extant_cache::{BufKind, Buffer};
use extant_journal::Handle;
use extant_mballoc::MetaRole;
use extant_ondisk::features::Compat;
use extant_ondisk::xattr::{ExternalValue, Name};
use extant_ondisk::{BlockNr, InodeNr};

use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::reserve::Caller;
use crate::xattr::{Joinable, Reference, SharedBlocks, XattrError, XattrSource, XattrStore};
use crate::xattr_view::{XattrView, not_theirs};

/// The values that a change of attributes may add or drop. As long as this exists, their inodes and table blocks stay
/// in memory.
#[derive(Default)]
pub(crate) struct Values {
    held: Vec<InodeRef>,
    /// The values that the change may store, with their hashes and inodes. These inodes are also in `held`.
    prepared: Vec<(Vec<u8>, u32, InodeNr)>,
    /// The journal credits for all references.
    pub credits: u32,
    _tables: Vec<Arc<Buffer>>,
}

impl Values {
    /// The inode of a held value.
    pub(crate) fn get(&self, ino: InodeNr) -> Option<&InodeRef> {
        self.held.iter().find(|value| value.ino == ino)
    }

    /// The inode and the hash of a prepared value.
    pub(crate) fn prepared(&self, value: &[u8]) -> Option<(InodeNr, u32)> {
        let found = self.prepared.iter().find(|(bytes, ..)| bytes == value)?;
        Some((found.2, found.1))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Holds a value. `credits` are needed for a change of its count.
    pub(crate) fn hold(&mut self, fs: &Filesystem, value: InodeRef, credits: u32) -> Result<()> {
        self._tables.push(fs.inode_slot(value.ino)?.0);
        self.held.push(value);
        self.credits += credits;
        Ok(())
    }

    /// Records that the inode has this value, and that the change may store it.
    pub(crate) fn prepare(&mut self, value: Vec<u8>, hash: u32, ino: InodeNr) {
        self.prepared.push((value, hash, ino));
    }
}

/// A change of the attributes of an inode, under a handle.
pub(crate) struct XattrEdit<'a> {
    view: XattrView<'a>,
    handle: &'a mut Handle,
    values: &'a Values,
    /// A change has been made, so a failure now would leave half of it.
    changed: bool,
}

impl XattrView<'_> {
    /// Runs a change of attributes, with the values in inodes of their own that it may need. If the change is refused,
    /// nothing has changed; a later failure aborts the transaction.
    pub(crate) fn edit<R>(
        &self,
        handle: &mut Handle,
        values: &Values,
        f: impl FnOnce(&mut XattrEdit<'_>) -> std::result::Result<R, XattrError<Error>>,
    ) -> Result<R> {
        let mut edit = XattrEdit { view: *self, handle, values, changed: false };
        let r = f(&mut edit).map_err(Error::from);
        if edit.changed { self.fs.whole(handle, r) } else { r }
    }
}

impl XattrSource for XattrEdit<'_> {
    type Error = Error;

    fn ino(&self) -> InodeNr {
        self.view.ino()
    }
    fn mode(&self) -> u16 {
        self.view.mode()
    }
    fn inode_area(&self) -> Result<Vec<u8>> {
        self.view.inode_area()
    }
    fn block_nr(&self) -> Option<BlockNr> {
        self.view.block_nr()
    }
    fn read_block(&self, nr: BlockNr) -> Result<Vec<u8>> {
        self.view.read_block(nr)
    }
    fn block_size(&self) -> usize {
        self.view.block_size()
    }
    fn checksum_seed(&self) -> Option<u32> {
        self.view.checksum_seed()
    }
    fn shared(&self) -> &Arc<SharedBlocks> {
        self.view.shared()
    }
    fn may_go_outside(&self) -> bool {
        self.view.may_go_outside()
    }
    fn value(&self, name: Name<'_>, there: ExternalValue) -> Result<Vec<u8>> {
        self.view.value(name, there)
    }
}

impl XattrStore for XattrEdit<'_> {
    fn write_inode_area(&mut self, area: &[u8]) -> Result<()> {
        let XattrView { fs, inode } = self.view;
        let Some(range) = inode.meta.read().desc.xattr_area(&fs.geo) else {
            return Err(Error::Invalid("an inode without room for attributes"));
        };
        let (buffer, offset) = fs.inode_slot(inode.ino)?;
        self.changed = true;
        self.handle.set_opaque();
        self.handle.modify(&buffer, BufKind::Table, |b| {
            b[offset + range.start..offset + range.end].copy_from_slice(area);
        });
        // Write the inode, because its checksum covers the area.
        fs.write_inode(self.handle, inode)
    }

    fn set_mode(&mut self, mode: u16) -> Result<()> {
        self.changed = true;
        self.view.inode.meta.write().desc.mode = mode;
        self.view.fs.write_inode(self.handle, self.view.inode)
    }

    fn set_block_nr(&mut self, nr: Option<BlockNr>) -> Result<()> {
        self.changed = true;
        self.handle.set_opaque();
        let XattrView { fs, inode } = self.view;
        {
            let mut m = inode.meta.write();
            let units = u64::from(fs.geo.block_size / 512) << fs.geo.cluster_bits;
            match (m.desc.file_acl.0 != 0, nr.is_some()) {
                (false, true) => m.desc.blocks += units,
                (true, false) => m.desc.blocks = m.desc.blocks.saturating_sub(units),
                _ => {}
            }
            m.desc.file_acl = nr.unwrap_or(BlockNr(0));
        }
        fs.write_inode(self.handle, inode)
    }

    fn allocate_block(&mut self) -> Result<BlockNr> {
        let XattrView { fs, inode } = self.view;
        if !fs.sb.lock().compat().contains(Compat::EXT_ATTR) {
            fs.modify_superblock(self.handle, |sb| sb.set_ext_attr())?;
        }
        fs.quotas.blocks_within(inode, 1)?;
        let home = fs.placement.inode_goal(inode.ino, inode.file_type());
        let owner = (MetaRole::Xattr, inode.ino);
        let block = fs.placement.allocate_meta_block(self.handle, owner, home, None, Caller::current())?;
        self.changed = true;
        Ok(block)
    }

    fn init_block(&mut self, nr: BlockNr, bytes: &[u8]) -> Result<()> {
        self.handle.set_opaque();
        let buffer = self.handle.create(nr, BufKind::Leaf)?;
        self.handle.modify(&buffer, BufKind::Leaf, |b| b[..bytes.len()].copy_from_slice(bytes));
        Ok(())
    }

    fn update_block(&mut self, nr: BlockNr, _held: &Joinable, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<()> {
        let XattrView { fs, inode } = self.view;
        if !fs.placement.may_be_owned(nr, 1) {
            return Err(not_theirs(inode, nr));
        }
        let buffer = fs.cache.get(nr)?;
        let mut copy = buffer.read(<[u8]>::to_vec);
        if change(&mut copy) {
            self.changed = true;
            self.handle.set_opaque();
            self.handle.modify(&buffer, BufKind::Leaf, |b| b.copy_from_slice(&copy));
        }
        Ok(())
    }

    fn free_block(&mut self, nr: BlockNr) -> Result<()> {
        // The order matters: a block that cannot be freed must stay in the log.
        let freed = self.view.fs.placement.free_blocks(self.handle, self.view.inode.ino, nr, 1)?;
        self.changed = true;
        if !freed.is_empty() {
            self.handle.forget(nr);
        }
        Ok(())
    }

    fn prepared(&self, value: &[u8]) -> Option<(InodeNr, u32)> {
        self.values.prepared(value)
    }

    fn refer(&mut self, value: InodeNr, how: Reference) -> Result<()> {
        let Some(value) = self.values.get(value) else {
            return match how {
                // The caller has already recorded why the value cannot be used.
                Reference::Drop => Ok(()),
                Reference::Add => Err(Error::corrupt(Damage::Xattr, format!("no value in {value}")).of(self.ino())),
            };
        };
        self.changed = true;
        self.handle.set_opaque();
        self.view.refer(self.handle, value, how)
    }

    fn charge(&mut self, before: &[ExternalValue], after: &[ExternalValue]) -> Result<()> {
        self.changed = true;
        self.handle.set_opaque();
        let XattrView { fs, inode } = self.view;
        fs.charge_values(inode, self.values, before, after);
        fs.write_inode(self.handle, inode)
    }
}
