//! Evictions: freeing an unlinked inode when its last user is gone (Linux: `ext4_evict_inode`).
//!
//! Dropping the last reference only queues the inode ([`crate::evictions`]). The eviction thread, or an earlier call of
//! [`Evictor::reap`], frees its blocks, attributes, orphan record and number. Without threads, the next operation
//! that waits does so. Until the last handle of the eviction is durable, the orphan record allows a cleanup after a
//! crash.
//!
//! # Locking
//! Frees an inode under its `inode` and `inode writeback` locks; none is held between two inodes.

use std::sync::Arc;
use std::time::Duration;

use extant_cache::Buffer;
use extant_journal::Handle;
use extant_ondisk::BlockNr;

use crate::error::{Error, Result};
use crate::evictions::Evictee;
use crate::filesystem::Filesystem;
use crate::groups::Prepared;
use crate::inode::{Inode, InodeRef};
use crate::lifecycle::Right;
use crate::ops::credits;
use crate::orphan::Over;
use crate::xattr;
use crate::xattr::XattrSource;
use crate::xattr_store::Values;
use crate::xattr_view::XattrView;

/// The maximum number of inodes that one call of [`Evictor::reap`] frees.
const REAP_MAX: u32 = 8;
/// Only the eviction thread frees inodes with more 512-byte units than this (64 MiB).
const LARGE_UNITS: u64 = 128 << 10;

impl Evictee for Arc<Inode> {
    type Reference = InodeRef;

    fn is_large(&self) -> bool {
        self.meta.try_read().is_none_or(|m| m.desc.blocks > LARGE_UNITS)
    }
}

/// The end of an unlinked inode.
#[derive(Clone, Copy)]
struct Eviction<'a> {
    fs: &'a Filesystem,
    inode: &'a Arc<Inode>,
}

impl Eviction<'_> {
    fn run(&self) {
        // Another thread may have found the inode again, or the inode was queued twice, or because its links could not
        // be read.
        if self.inode.links() > 0 {
            self.fs.release_preallocations(self.inode);
            return;
        }
        if !self.fs.inodes.remove_unused(self.inode) {
            return;
        }
        self.fs.writeback.flusher.forget(u64::from(self.inode.ino.0));
        self.fs.stats.evictions.inc();
        if let Err(e) = self.free_inode() {
            // The orphan record remains, so the next mount tries again.
            self.fs.note_failed_eviction(self.inode.ino, &e);
            self.fs.inodes.put_back(self.inode.clone());
            // A remount may have made the mount writable meanwhile, and may already have looked for such inodes.
            if matches!(e, Error::ReadOnly) {
                self.fs.evictor().push(self.inode.clone());
            }
        }
    }

    /// Performs the steps of an eviction that can fail, except those on its map, before the first change. If a bitmap
    /// is unreadable, or the inode bitmap is damaged, the inode is leaked but the mount continues (Linux:
    /// `ext4_free_inode`). Damaged attributes are dropped with the inode, and their block is left to e2fsck if it
    /// cannot be freed. The result keeps the blocks in memory.
    fn check(&self) -> Result<(Prepared, Option<Prepared>, Arc<Buffer>)> {
        let number = self.fs.placement.check_free_inode_number(self.inode.ino)?;
        let view = XattrView { fs: self.fs, inode: self.inode };
        let known = self.fs.unless_damaged(self.inode, xattr::check(&view).map_err(Error::from))?;
        let group = known.unwrap_or_else(|| view.block_nr()).and_then(|nr| self.fs.geo.group_of_block(nr));
        let attributes = group.map(|(group, _)| self.fs.placement.groups.hold_blocks(group));
        let attributes = attributes.map(|held| self.fs.unless_damaged(self.inode, held)).transpose()?;
        let (table, _) = self.fs.inode_slot(self.inode.ino)?;
        Ok((number, attributes.flatten(), table))
    }

    fn free_inode(&self) -> Result<()> {
        let _exclusive = self.inode.rw.write();
        let _wb = self.inode.wb.lock();
        self.fs.writeback.drop_pages(&self.inode.writes, &self.inode.pages, 0);
        let is_inline = self.fs.is_inline(self.inode);
        let (is_dir, has_map, has_xattr) = {
            let m = self.inode.meta.read();
            let d = &m.desc;
            (d.is_dir(), d.has_map(&self.fs.geo) && !is_inline, d.file_acl.0 != 0)
        };
        let _held = self.check()?;
        let values = self.fs.xattrs(self.inode).hold_last_values()?;
        let mut handle = if has_map {
            // This also cancels reservations without blocks.
            self.fs.remove_all_blocks(self.inode)?
        } else {
            self.fs.start(credits::EVICT + credits::XATTR)?
        };
        let r = self.free_rest(&mut handle, is_dir, has_xattr, &values);
        self.fs.end(handle, r)
    }

    /// Frees an inode's attributes, orphan record and number, after its blocks have been freed.
    fn free_rest(&self, handle: &mut Handle, is_dir: bool, has_xattr: bool, values: &Values) -> Result<()> {
        self.fs.xattrs(self.inode).drop_values(handle, values)?;
        let credits = credits::EVICT + if has_xattr { credits::XATTR } else { 0 };
        if !handle.has_credits(self.fs.with_quota_credits(credits)) {
            handle.restart(self.fs.with_quota_credits(credits))?;
        }
        if has_xattr {
            let released = self.fs.xattrs(self.inode).edit(handle, values, |edit| xattr::release_all(edit));
            if self.fs.journal.is_aborted() {
                released?;
            } else if self.fs.unless_damaged(self.inode, released)?.is_none() {
                self.inode.meta.write().desc.file_acl = BlockNr(0);
            }
        }
        self.fs.orphans.remove(handle, self.inode, Over::All)?;
        {
            let mut m = self.inode.meta.write();
            m.desc.dtime = (self.fs.now().seconds.max(1)) as u32;
            m.desc.size = 0;
            m.freed = true;
        }
        self.inode.set_size(0);
        self.fs.write_inode(handle, self.inode)?;
        self.fs.placement.free_inode_number(handle, self.inode.ino, is_dir)
    }
}

/// Frees the queued inodes of a mount.
#[derive(Clone, Copy)]
pub(crate) struct Evictor<'fs> {
    fs: &'fs Filesystem,
}

impl Evictor<'_> {
    /// Frees a few queued inodes on the caller's thread, which holds no lock and no handle. So small files are freed
    /// without a switch to the eviction thread, at the cost of the thread that unlinks. Large ones are left to the
    /// eviction thread.
    pub(crate) fn reap(&self) {
        self.fs.evictions.run(&self.fs.lifecycle, REAP_MAX, true, |inode| Eviction { fs: self.fs, inode }.run());
    }

    /// Queues an inode without links after its last user is gone.
    pub(crate) fn push(&self, inode: Arc<Inode>) {
        if !self.fs.is_read_only() {
            self.fs.evictions.push(inode);
        }
    }

    /// Queues the inodes that lost their last user while the mount was read-only.
    pub(crate) fn push_unused(&self) {
        let unused = |inode: &Arc<Inode>| inode.links() == 0 && inode.users() == 0;
        for inode in self.fs.inodes.all().into_iter().filter(unused) {
            self.push(inode);
        }
    }

    /// Freezes the mount. No eviction is in progress when this returns, and none begins before the thaw, because it
    /// would have to wait for a handle.
    pub(crate) fn hold(&self) {
        self.drain();
        self.fs.evictions.freeze(&self.fs.lifecycle);
        self.drain();
    }

    fn run_queued(&self) {
        self.fs.evictions.run(&self.fs.lifecycle, u32::MAX, false, |inode| Eviction { fs: self.fs, inode }.run());
    }

    /// One round of the eviction thread. Returns false if the thread must end.
    pub(crate) fn step(&self, wait: Duration) -> bool {
        if !self.fs.evictions.wait_for_work(&self.fs.lifecycle, wait) {
            return false;
        }
        self.run_queued();
        // Write errors that were not due when they occurred.
        self.fs.write_errors();
        self.fs.lifecycle.allows(Right::Work)
    }

    /// Frees all queued inodes, together with the eviction thread, and waits for those that it is freeing.
    pub(crate) fn drain(&self) {
        self.run_queued();
        self.fs.evictions.wait_until_idle(&self.fs.lifecycle);
    }
}

impl Filesystem {
    /// Frees the queued inodes.
    pub(crate) fn evictor(&self) -> Evictor<'_> {
        Evictor { fs: self }
    }
}

impl Filesystem {}
