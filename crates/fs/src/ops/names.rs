//! Names of existing inodes: lookup, link, unlink, the targets of symbolic links.
//!
//! Main functions: [`Filesystem::lookup`], [`Filesystem::link`], [`Filesystem::unlink`], [`Filesystem::rmdir`],
//! [`Filesystem::read_link`].
//!
//! What it does not do: create inodes (`create.rs`), or move names (`rename.rs`).
//!
//! # Locking
//! The directory's `inode` lock, shared for lookup, exclusive for changes. A directory to be removed is locked after
//! its parent. Link counts change only under the inode's meta lock, so that two names of one file need no common lock.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_journal::Handle;
use extant_ondisk::casefold::LookupName;
use extant_ondisk::features::RoCompat;
use extant_ondisk::inode::{FileType, InodeDesc, LINK_MAX};
use extant_ondisk::time::Timestamp;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use crate::crypt::is_encrypted;
use crate::dir_store::DirView;
use crate::error::{Damage, Error, Result};
use crate::fast_commit::{NameChange, describe_name};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::map::MapState;
use crate::maps::Maps;
use crate::operation::Operation;
use crate::ops::credits;
use crate::ops::flags::Change;
use crate::ops::pages::ContentView;
use crate::orphan::Over;
use crate::volume::Volume;
use crate::xattr::{self, XattrSource};
use crate::xattr_store::Values;

const S_ISUID: u16 = 0o4000;
pub(super) const S_ISGID: u16 = 0o2000;

/// Checks that a name can be stored.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > 255 {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::Invalid("name"));
    }
    Ok(())
}

impl Inode {
    /// Checks that the inode is a directory.
    pub(crate) fn check_dir(&self) -> Result<()> {
        if self.is_dir() { Ok(()) } else { Err(Error::NotDirectory) }
    }

    /// Whether a directory may get another subdirectory. More than 65000 links need an index and `dir_nlink`.
    pub(crate) fn may_link_dir(&self, view: &DirView<'_>) -> bool {
        self.links() < LINK_MAX || (view.params.is_indexed && view.params.has_dir_index)
    }
}

impl Maps {
    /// Updates the times of an inode whose content has changed.
    pub(crate) fn stamp(&self, handle: &mut Handle, inode: &Arc<Inode>, now: Timestamp) -> Result<()> {
        {
            let mut m = inode.meta.write();
            m.desc.mtime = now;
            m.desc.ctime = now;
        }
        self.write_inode(handle, inode)
    }
}

impl Volume {
    /// Whether two names refer to one entry of a directory, which need not exist. They do if they are equal, or if the
    /// directory is case-insensitive and they fold to the same text.
    pub fn is_one_name(&self, dir: &InodeRef, one: &[u8], other: &[u8]) -> bool {
        LookupName::new(one, self.dir_params(dir).folds).is(other)
    }

    /// Sets the `dir_nlink` feature for the first directory with more links than the field can count.
    pub(crate) fn note_many_links(&self, handle: &mut Handle, dir: &Inode) -> Result<()> {
        if dir.links() == 1 && !self.sb.lock().ro_compat().contains(RoCompat::DIR_NLINK) {
            self.modify_superblock(handle, |sb| {
                sb.set_dir_nlink();
            })?;
        }
        Ok(())
    }
}

impl Operation<'_> {
    /// Drops one link. At zero, the inode becomes an orphan until its last user releases it.
    pub(crate) fn drop_link(&self, handle: &mut Handle, inode: &InodeRef, now: Timestamp) -> Result<()> {
        let last = {
            let mut m = inode.meta.write();
            m.desc.links = m.desc.links.saturating_sub(1);
            m.desc.ctime = now;
            m.desc.links == 0
        };
        if last { self.lost_last_name(handle, inode) } else { self.fs.write_inode(handle, inode) }
    }

    /// Drops all links of an empty directory whose name has been removed.
    pub(crate) fn kill_dir(&self, handle: &mut Handle, inode: &InodeRef, now: Timestamp) -> Result<()> {
        {
            let mut m = inode.meta.write();
            m.desc.links = 0;
            m.desc.ctime = now;
        }
        self.lost_last_name(handle, inode)
    }

    /// Called when the last link has been dropped.
    fn lost_last_name(&self, handle: &mut Handle, inode: &InodeRef) -> Result<()> {
        self.fs.evictions.lost_last_name(inode, self.fs.options.clock.now_ns());
        self.fs.orphans.add(handle, inode)?;
        self.fs.write_inode(handle, inode)
    }
}

impl ContentView<'_> {
    /// The target of a symbolic link, decrypted.
    fn symlink_target(&self) -> Result<Vec<u8>> {
        let (fs, inode) = (self.fs, self.inode);
        let open = |stored: &[u8]| fs.encryption(inode).open_target(stored);
        let whole = |target: Vec<u8>, size: usize| {
            let end = target.iter().position(|b| *b == 0).unwrap_or(target.len());
            if end == 0 || end != size {
                let detail = format!("a target of {end} bytes, {size} expected");
                return Err(Error::corrupt(Damage::Symlink, detail).of(inode.ino));
            }
            Ok(target)
        };
        let (fast, size, is_encrypted) = {
            let m = inode.meta.read();
            if !m.desc.is_symlink() {
                return Err(Error::Invalid("not a symbolic link"));
            }
            (m.desc.fast_symlink_target(&fs.geo).map(<[u8]>::to_vec), m.desc.size as usize, is_encrypted(&m.desc))
        };
        if let Some(target) = fast {
            let size = target.len();
            return if is_encrypted { open(&target) } else { whole(target, size) };
        }
        if let Some(target) = fs.inline(inode).content()? {
            return whole(target, size);
        }
        let MapState::Written(block) = fs.map_lookup(inode, LogicalBlock(0))? else {
            return Err(Error::corrupt(Damage::Symlink, "no block").of(inode.ino));
        };
        if size > fs.geo.block_size as usize || block == BlockNr(0) {
            return Err(Error::corrupt(Damage::Symlink, format!("{size} bytes")).of(inode.ino));
        }
        let buffer = fs.cache.get(block)?;
        let target = buffer.read(|b| b[..size].to_vec());
        if is_encrypted {
            return open(&target);
        }
        whole(target, size)
    }

    /// Called before a change of content: removes the set-user-id bit, file capabilities, and, if the group may execute
    /// the file, the set-group-id bit.
    pub(crate) fn kill_privileges(&self) -> Result<()> {
        self.kill_bits(privileges(self.inode.mode()))
    }

    /// Removes these bits of the mode, as well as file capabilities.
    pub(crate) fn kill_bits(&self, kill: u16) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        let has_caps = {
            let view = fs.xattrs(inode);
            let may = view.block_nr().is_some() || !view.inode_area()?.iter().all(|b| *b == 0);
            may && xattr::get(&view, b"security.capability").is_ok()
        };
        if kill == 0 && !has_caps {
            return Ok(());
        }
        let _table = fs.inode_slot(inode.ino)?;
        let values = if has_caps { fs.xattrs(inode).hold_values()? } else { Values::default() };
        fs.transact_whole(credits::CHMOD + values.credits, |handle| {
            if has_caps {
                fs.xattrs(inode).edit(handle, &values, |edit| xattr::remove(edit, b"security.capability"))?;
            }
            inode.meta.write().desc.mode &= !kill;
            let written = fs.write_inode(handle, inode);
            fs.whole(handle, written)
        })
    }
}

impl Filesystem {
    /// The inode called `name` in `dir`.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::NotDirectory`]; [`Error::NameTooLong`]; [`Error::NotPermitted`] for a directory or
    /// link whose encryption differs from that of `dir`; [`Error::Corrupt`] if the directory or the inode is damaged.
    pub fn lookup(&self, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        dir.check_dir()?;
        if name.len() > 255 {
            return Err(Error::NameTooLong);
        }
        match &self.rescue {
            Some(rescue) => rescue.lookup(self, dir, name),
            None => self.lookup_own(dir, name),
        }
    }

    /// As [`Filesystem::lookup`], but only among the entries on disk.
    pub(crate) fn lookup_own(&self, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        let (inode, compares) = {
            let _shared = dir.rw.read();
            let view = DirView::new(self, dir);
            let found = self.watch(view.lookup(name))?.ok_or(Error::NotFound)?;
            let inode = self.watch(self.iget_named(dir, found.ino))?;
            let leads_on = inode.is_dir() || inode.file_type() == Some(FileType::Symlink);
            let compares = view.params.encrypted && leads_on && name != b"." && name != b"..";
            (inode, compares && self.encryption(dir).name_key()?.is_some())
        };
        if compares {
            // As in Linux (`ext4_lookup`). Otherwise a directory that was put here offline would accept plaintext. The
            // lock of the directory has been released, because a hostile name may refer to the directory itself.
            let _child = inode.rw.read();
            self.encryption(dir).check_policy(&inode).map_err(|e| match e {
                Error::OtherPolicy => Error::NotPermitted,
                e => e,
            })?;
        }
        Ok(inode)
    }

    /// The parent of a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the directory was removed: the inode in its `..` may be free as well, or belong to
    /// another file.
    pub fn parent(&self, dir: &InodeRef) -> Result<InodeRef> {
        dir.check_dir()?;
        match &self.rescue {
            Some(rescue) => rescue.parent(self, dir),
            None => self.parent_own(dir),
        }
    }

    /// As [`Filesystem::parent`], from the directory's own `..`.
    pub(crate) fn parent_own(&self, dir: &InodeRef) -> Result<InodeRef> {
        // The lock is held until the parent is found. Otherwise the directory could be moved or removed meanwhile.
        let _shared = dir.rw.read();
        if dir.links() == 0 {
            return Err(Error::NotFound);
        }
        let view = DirView::new(self, dir);
        self.watch(view.dotdot().and_then(|ino| self.iget_named(dir, ino)))
    }

    /// Adds a name to a file.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotFound`] if `dir` or the file was removed; [`Error::NotDirectory`];
    /// [`Error::NotPermitted`] for a directory, and because of the flags of either; [`Error::TooManyLinks`];
    /// [`Error::OtherProject`]; [`Error::OtherPolicy`]; [`Error::NameTooLong`] or [`Error::Invalid`] for the name;
    /// [`Error::NoSpace`]; [`Error::ReadOnly`].
    pub fn link(&self, inode: &InodeRef, dir: &InodeRef, name: &[u8]) -> Result<()> {
        let op = Operation::begin(self)?;
        dir.check_dir()?;
        check_name(name)?;
        if inode.is_dir() {
            return Err(Error::NotPermitted);
        }
        op.retry_no_space(|| {
            let _exclusive = dir.rw.write();
            let view = DirView::new(self, dir);
            if dir.links() == 0 {
                return Err(Error::NotFound);
            }
            dir.may_change(Change::AddEntry)?;
            if view.lookup(name)?.is_some() {
                return Err(Error::Exists);
            }
            self.encryption(dir).may_add_names()?;
            self.encryption(dir).check_policy(inode)?;
            dir.check_project(inode)?;
            inode.may_change(Change::Link)?;
            let _tables = self.hold_slots([inode, dir])?;
            self.transact_whole(credits::link(view.add_credits()), |handle| {
                let now = self.now();
                // Before the link is counted: an unlink elsewhere that sees it counted, and so leaves the file another
                // name, must not be listed first. Replay would free the file there.
                describe_name(handle, NameChange::Link, dir, inode, name);
                let from_nothing = {
                    let mut m = inode.meta.write();
                    if m.desc.links >= LINK_MAX {
                        return Err(Error::TooManyLinks);
                    }
                    if m.desc.links == 0 && !inode.linkable.load(Ordering::Acquire) {
                        return Err(Error::NotFound);
                    }
                    m.desc.links += 1;
                    m.desc.ctime = now;
                    m.desc.links == 1
                };
                if let Err(e) = view.add(handle, name, inode.ino, inode.file_type()) {
                    // The link was counted before the addition of the name failed. Meanwhile an unlink elsewhere may
                    // have removed the last name without seeing it as the last link; now it is the last. Or a link
                    // elsewhere may have added the first name without seeing it as the first; the inode is then no
                    // longer an orphan.
                    let known = if from_nothing { self.orphans.remove(handle, inode, Over::Nameless) } else { Ok(()) };
                    let undone = known.and_then(|()| op.drop_link(handle, inode, now));
                    self.whole(handle, undone)?;
                    return Err(e);
                }
                let done = (|| {
                    if from_nothing {
                        self.orphans.remove(handle, inode, Over::Nameless)?;
                    }
                    self.write_inode(handle, inode)?;
                    self.stamp(handle, dir, now)
                })();
                handle.set_described();
                self.whole(handle, done)
            })
        })?;
        self.honour_sync(&[dir])
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::IsDirectory`]; [`Error::NotDirectory`]; [`Error::NameTooLong`] or
    /// [`Error::Invalid`] for the name; [`Error::NotPermitted`] because of the flags of either; [`Error::ReadOnly`].
    pub fn unlink(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        let op = Operation::begin(self)?;
        dir.check_dir()?;
        check_name(name)?;
        op.retry_no_space(|| {
            let _exclusive = dir.rw.write();
            let view = DirView::new(self, dir);
            let found = view.lookup(name)?.ok_or(Error::NotFound)?;
            let inode = self.iget_named(dir, found.ino)?;
            if inode.is_dir() {
                return Err(Error::IsDirectory);
            }
            dir.may_change(Change::RemoveEntry)?;
            inode.may_change(Change::Unlink)?;
            let _tables = self.hold_slots([dir, &inode])?;
            self.transact_whole(credits::REMOVE_NAME, |handle| {
                view.remove(handle, name, Some(&found))?;
                let now = self.now();
                let done = self.stamp(handle, dir, now).and_then(|()| op.drop_link(handle, &inode, now));
                // The last name goes with an orphan's record, which no fast commit has.
                describe_name(handle, NameChange::Unlink, dir, &inode, name);
                handle.set_described();
                self.whole(handle, done)
            })
        })?;
        self.evictor().reap();
        self.honour_sync(&[dir])
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], also for `..`; [`Error::Invalid`] for `.`; [`Error::NotDirectory`], also if the name refers
    /// to a file; otherwise as [`Filesystem::unlink`].
    pub fn rmdir(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        let op = Operation::begin(self)?;
        dir.check_dir()?;
        check_name(name)?;
        if name == b"." {
            return Err(Error::Invalid("removing '.'"));
        }
        if name == b".." {
            return Err(Error::NotEmpty);
        }
        op.retry_no_space(|| {
            let _exclusive = dir.rw.write();
            let view = DirView::new(self, dir);
            let found = view.lookup(name)?.ok_or(Error::NotFound)?;
            let inode = self.iget_named(dir, found.ino)?;
            dir.may_change(Change::RemoveEntry)?;
            inode.may_change(Change::Unlink)?;
            if !inode.is_dir() {
                return Err(Error::NotDirectory);
            }
            if inode.ino == dir.ino || inode.ino == InodeNr::ROOT {
                return Err(Error::corrupt(Damage::Tree, "it contains itself").of(dir.ino));
            }
            let _victim = inode.rw.write_nested();
            let below = DirView::new(self, &inode);
            if !below.is_empty()? {
                return Err(Error::NotEmpty);
            }
            let _tables = self.hold_slots([dir, &inode])?;
            self.transact_whole(credits::REMOVE_NAME, |handle| {
                view.remove(handle, name, Some(&found))?;
                let now = self.now();
                let done = op.kill_dir(handle, &inode, now).and_then(|()| {
                    drop_dir_link(&mut dir.meta.write().desc);
                    self.stamp(handle, dir, now)
                });
                self.whole(handle, done)
            })
        })?;
        self.evictor().reap();
        self.honour_sync(&[dir])
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Corrupt`], also for a target that is shorter than the size, because the rest of it is lost (Linux
    /// checks this in `ext4_iget` for targets in the inode, e2fsck for all).
    pub fn read_link(&self, inode: &InodeRef) -> Result<Vec<u8>> {
        self.watch(self.content(inode).symlink_target())
    }

    /// Removes set-id bits and file capabilities, as after a change of content by a process without CAP_FSETID.
    /// `member` says whether the process is a member of the file's group. If it is not, the set-group-id bit is removed
    /// even if the group may not execute the file (Linux: `setattr_should_drop_sgid`).
    ///
    /// # Errors
    /// [`Error::NotPermitted`] because of the inode's flags; [`Error::ReadOnly`]; [`Error::Device`] if the device
    /// fails.
    pub fn drop_privileges(&self, inode: &InodeRef, member: bool) -> Result<()> {
        let _change = self.begin_change()?;
        {
            let _exclusive = inode.rw.write();
            // If the change itself is refused, the bits must remain.
            inode.may_change(Change::Preallocate)?;
            let others = if member { 0 } else { S_ISGID };
            self.content(inode).kill_bits(privileges(inode.mode()) | inode.mode() & others)?;
        }
        self.honour_sync(&[inode])
    }
}

/// The bits that a change of content removes.
pub(crate) fn privileges(mode: u16) -> u16 {
    let mut kill = mode & S_ISUID;
    if mode & S_ISGID != 0 && mode & 0o010 != 0 {
        kill |= S_ISGID;
    }
    kill
}

/// Counts an additional subdirectory. Beyond the field's maximum, the count becomes 1 and does not change any more
/// (Linux: `ext4_inc_count`).
pub(crate) fn add_dir_link(desc: &mut InodeDesc) {
    if desc.links == 1 {
        return;
    }
    desc.links = if desc.links >= LINK_MAX { 1 } else { desc.links + 1 };
}

/// Counts one subdirectory fewer (Linux: `ext4_dec_count`).
pub(crate) fn drop_dir_link(desc: &mut InodeDesc) {
    if desc.links > 2 {
        desc.links -= 1;
    }
}
