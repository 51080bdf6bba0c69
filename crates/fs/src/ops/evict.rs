//! Evictions: freeing an unlinked inode when its last user is gone (Linux: `ext4_evict_inode`).
//!
//! Main types: [`Evictor`] (frees the queued inodes of a mount), `Eviction` (frees one).
//!
//! Dropping the last reference only queues the inode ([`crate::evictions`]). The eviction thread, or an earlier call of
//! [`Evictor::reap`], frees its blocks, attributes, orphan record and number. Without threads, the next operation that
//! waits does so. Until the last handle of the eviction is durable, the orphan record allows a cleanup after a crash.
//!
//! What it does not do: keep the queue ([`crate::evictions`]), or clean up after a crash (`mount/recover.rs`).
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
use crate::xattr::{self, XattrSource};
use crate::xattr_store::Values;

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
    /// Frees the inode, unless it is in use again. After a failure it remains in memory, as an orphan.
    fn run(&self) {
        let (fs, inode) = (self.fs, self.inode);
        // Another thread may have found the inode again, or the inode was queued twice, or because its links could not
        // be read.
        if inode.links() > 0 {
            fs.release_preallocations(inode);
            return;
        }
        if !fs.inodes.remove_unused(inode) {
            return;
        }
        fs.writeback.flusher.forget(u64::from(inode.ino.0));
        fs.stats.evictions.inc();
        if let Err(e) = self.free_inode() {
            // The orphan record remains, so the next mount tries again.
            self.note_failure(&e);
            fs.inodes.put_back(inode.clone());
            // A remount may have made the mount writable meanwhile, and may already have looked for such inodes.
            if matches!(e, Error::ReadOnly) {
                fs.evictor().queue(inode.clone());
            }
        }
    }

    /// Records that the blocks or the number of the inode could not be freed. It remains an orphan, and a checker has
    /// to run.
    fn note_failure(&self, e: &Error) {
        if !matches!(e, Error::ReadOnly | Error::Aborted { .. }) {
            self.fs.record_error_of(e, Some(self.inode.ino));
        }
    }

    /// Performs the steps of an eviction that can fail, except those on its map, before the first change. If a bitmap
    /// is unreadable, or the inode bitmap is damaged, the inode is leaked but the mount continues (Linux:
    /// `ext4_free_inode`). Damaged attributes are dropped with the inode, and their block is left to e2fsck if it
    /// cannot be freed. The result keeps the blocks in memory.
    fn check(&self) -> Result<(Prepared, Option<Prepared>, Arc<Buffer>)> {
        let (fs, inode) = (self.fs, self.inode);
        let number = fs.placement.check_free_inode_number(inode.ino)?;
        let view = fs.xattrs(inode);
        let known = fs.unless_damaged(inode, xattr::check(&view).map_err(Error::from))?;
        let group = known.unwrap_or_else(|| view.block_nr()).and_then(|nr| fs.geo.group_of_block(nr));
        let attributes = group.map(|(group, _)| fs.placement.groups.hold_blocks(group));
        let attributes = attributes.map(|held| fs.unless_damaged(inode, held)).transpose()?;
        let (table, _) = fs.inode_slot(inode.ino)?;
        Ok((number, attributes.flatten(), table))
    }

    /// Frees all that the inode has, and its number.
    fn free_inode(&self) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        let _exclusive = inode.rw.write();
        let _wb = inode.wb.lock();
        fs.writeback.drop_pages(&inode.writes, &inode.pages, 0);
        let is_inline = fs.is_inline(inode);
        let (is_dir, has_map, has_xattr) = {
            let m = inode.meta.read();
            let d = &m.desc;
            (d.is_dir(), d.has_map(&fs.geo) && !is_inline, d.file_acl.0 != 0)
        };
        let _held = self.check()?;
        let values = fs.xattrs(inode).hold_last_values()?;
        let mut handle = if has_map {
            // This also cancels reservations without blocks.
            fs.remove_all_blocks(inode)?
        } else {
            fs.start(credits::EVICT + credits::XATTR)?
        };
        let r = self.free_rest(&mut handle, is_dir, has_xattr, &values);
        fs.end(handle, r)
    }

    /// Frees an inode's attributes, orphan record and number, after its blocks have been freed.
    fn free_rest(&self, handle: &mut Handle, is_dir: bool, has_xattr: bool, values: &Values) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        fs.xattrs(inode).drop_values(handle, values)?;
        let credits = credits::EVICT + if has_xattr { credits::XATTR } else { 0 };
        if !handle.has_credits(fs.with_quota_credits(credits)) {
            handle.restart(fs.with_quota_credits(credits))?;
        }
        if has_xattr {
            let released = fs.xattrs(inode).edit(handle, values, |edit| xattr::release_all(edit));
            if fs.journal.is_aborted() {
                released?;
            } else if fs.unless_damaged(inode, released)?.is_none() {
                inode.meta.write().desc.file_acl = BlockNr(0);
            }
        }
        fs.orphans.remove(handle, inode, Over::All)?;
        {
            let mut m = inode.meta.write();
            m.desc.dtime = (fs.now().seconds.max(1)) as u32;
            m.desc.size = 0;
            m.freed = true;
        }
        inode.set_size(0);
        fs.write_inode(handle, inode)?;
        fs.placement.free_inode_number(handle, inode.ino, is_dir)
    }
}

/// Queues and frees the inodes of a mount that have no name and no user.
#[derive(Clone, Copy)]
pub(crate) struct Evictor<'fs> {
    fs: &'fs Filesystem,
}

impl Filesystem {
    /// Frees the queued inodes of the mount.
    pub(crate) fn evictor(&self) -> Evictor<'_> {
        Evictor { fs: self }
    }
}

impl Evictor<'_> {
    /// Queues an inode without links after its last user is gone.
    pub(crate) fn queue(&self, inode: Arc<Inode>) {
        if !self.fs.is_read_only() {
            self.fs.evictions.push(inode);
        }
    }

    /// Queues the inodes that lost their last user while the mount was read-only.
    pub(crate) fn queue_unused(&self) {
        let unused = |inode: &Arc<Inode>| inode.links() == 0 && inode.users() == 0;
        for inode in self.fs.inodes.all().into_iter().filter(unused) {
            self.queue(inode);
        }
    }

    /// Frees a few queued inodes on the caller's thread, which holds no lock and no handle. So small files are freed
    /// without a switch to the eviction thread, at the cost of the thread that unlinks. Large ones are left to the
    /// eviction thread.
    pub(crate) fn reap(&self) {
        self.run(REAP_MAX, true);
    }

    /// Frees all queued inodes, together with the eviction thread, and waits for those that it is freeing.
    pub(crate) fn drain(&self) {
        self.run(u32::MAX, false);
        self.fs.evictions.wait_until_idle(&self.fs.lifecycle);
    }

    /// One round of the eviction thread. Returns false if the thread must end.
    pub(crate) fn step(&self, wait: Duration) -> bool {
        if !self.fs.evictions.wait_for_work(&self.fs.lifecycle, wait) {
            return false;
        }
        self.run(u32::MAX, false);
        // Write errors that were not due when they occurred.
        self.fs.write_errors();
        self.fs.lifecycle.allows(Right::Work)
    }

    /// Freezes the mount. No eviction is in progress when this returns, and none begins before the thaw, because it
    /// would have to wait for a handle.
    pub(crate) fn freeze(&self) {
        self.drain();
        self.fs.evictions.freeze(&self.fs.lifecycle);
        self.drain();
    }

    /// Frees queued inodes, as [`crate::evictions::Evictions::run`] describes.
    fn run(&self, max: u32, small: bool) {
        let Evictor { fs } = *self;
        fs.evictions.run(&fs.lifecycle, max, small, |inode| Eviction { fs, inode }.run());
    }
}
