//! Names: lookup, create, link, unlink, symbolic links.
//!
//! # Locking
//! The directory's `inode` lock, shared for lookup, exclusive for changes; a directory that is removed is locked after
//! its parent. Link counts change under the inode's meta lock alone, so that two names of one file need no common lock.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_journal::Handle;
use extant_ondisk::dirent;
use extant_ondisk::features::RoCompat;
use extant_ondisk::inode::{DeviceNr, FileType, InodeDesc, InodeFlags, LINK_MAX};
use extant_ondisk::time::Timestamp;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use crate::dir;
use crate::dir_store::DirView;
use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::map::{MapRoot, MapState, MapStore};
use crate::ops::evict::note_abandoned;
use crate::ops::flags::Change;
use crate::ops::xattrs::XATTR_CREDITS;
use crate::xattr::{self, AclKind};
use crate::xattr_store::XattrView;

/// Credits for a new inode, its first block and its attributes, and for the superblock.
pub(crate) const NEW_INODE_CREDITS: u32 = 14 + XATTR_CREDITS;

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;

/// Who asks. Permissions are the caller's to check (the kernel does, under FUSE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cred {
    /// Owner of what is created.
    pub uid: u32,
    /// Its group, unless the directory hands down its own (set-group-ID).
    pub gid: u32,
    /// Applied to the mode of what is created, unless the directory has a default ACL.
    pub umask: u16,
}

/// What to create.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// Kind and permissions.
    pub mode: u16,
    /// For devices.
    pub rdev: Option<DeviceNr>,
    /// For symbolic links.
    pub target: Option<&'a [u8]>,
}

impl NewNode<'_> {
    /// An empty file.
    pub fn file(permissions: u16) -> NewNode<'static> {
        NewNode { mode: FileType::Regular.mode_bits() | permissions & 0o7777, rdev: None, target: None }
    }

    /// An empty directory.
    pub fn directory(permissions: u16) -> NewNode<'static> {
        NewNode { mode: FileType::Directory.mode_bits() | permissions & 0o7777, rdev: None, target: None }
    }

    /// What an overlay takes for "not there" (Linux: `WHITEOUT_DEV`).
    pub fn whiteout() -> NewNode<'static> {
        let rdev = Some(DeviceNr { major: 0, minor: 0 });
        NewNode { mode: FileType::CharDevice.mode_bits(), rdev, target: None }
    }

    /// A symbolic link to `target`, which is not looked at.
    pub fn symlink(target: &[u8]) -> NewNode<'_> {
        NewNode { mode: FileType::Symlink.mode_bits() | 0o777, rdev: None, target: Some(target) }
    }
}

pub(crate) fn entry_type(mode: u16) -> dirent::FileType {
    dirent::FileType::from_disk(FileType::from_mode(mode).map_or(0, FileType::dirent_code))
}

pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > 255 {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::Invalid("name"));
    }
    Ok(())
}

impl Filesystem {
    pub(crate) fn check_dir(&self, dir: &Inode) -> Result<()> {
        if dir.is_dir() { Ok(()) } else { Err(Error::NotDirectory) }
    }

    /// The inode that `name` names in `dir`.
    pub fn lookup(&self, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        self.check_dir(dir)?;
        if name.len() > 255 {
            return Err(Error::NameTooLong);
        }
        let _shared = dir.rw.read();
        let view = DirView::new(self, dir);
        let found = self.watch(view.lookup(name))?.ok_or(Error::NotFound)?;
        self.watch(self.iget_named(dir, found.ino))
    }

    /// The parent of a directory.
    pub fn parent(&self, dir: &InodeRef) -> Result<InodeRef> {
        self.check_dir(dir)?;
        let ino = {
            let _shared = dir.rw.read();
            let view = DirView::new(self, dir);
            self.watch(view.dotdot())?
        };
        self.watch(self.iget_named(dir, ino))
    }

    /// Credits for adding a name to `dir`.
    pub(crate) fn add_credits(&self, view: &DirView<'_>) -> u32 {
        use crate::dir::DirStore;
        let add = dir::credits_for_add(&view.params, view.blocks());
        let map = view.dir.map.read().credits_for_insert(self.geo.block_size, 1);
        // Each new block: bitmap, descriptor, itself, and the map's nodes (whose first split makes the next cheap).
        add.blocks + add.appended * 3 + map + 1
    }

    /// Creates what `node` says as `name` in `dir`.
    pub fn create(&self, dir: &InodeRef, name: &[u8], node: NewNode<'_>, cred: Cred) -> Result<InodeRef> {
        let _change = self.begin_change()?;
        self.check_dir(dir)?;
        check_name(name)?;
        self.check_target(node.target)?;
        let made = self.retry_no_space(|| self.create_once(dir, name, node, cred));
        self.budget.relieve();
        if made.is_ok() {
            self.honour_sync(&[dir])?;
        }
        made
    }

    fn check_target(&self, target: Option<&[u8]>) -> Result<()> {
        match target {
            Some([]) => Err(Error::NotFound),
            Some(t) if t.len() >= self.geo.block_size as usize => Err(Error::NameTooLong),
            _ => Ok(()),
        }
    }

    fn create_once(&self, dir: &InodeRef, name: &[u8], node: NewNode<'_>, cred: Cred) -> Result<InodeRef> {
        let _exclusive = dir.rw.write();
        let is_dir = FileType::from_mode(node.mode) == Some(FileType::Directory);
        {
            let m = dir.meta.read();
            if m.desc.links == 0 {
                return Err(Error::NotFound);
            }
        }
        self.may_change(dir, Change::AddEntry)?;
        let view = DirView::new(self, dir);
        if is_dir && !self.may_link_dir(dir, &view) {
            return Err(Error::TooManyLinks);
        }
        if view.lookup(name)?.is_some() {
            return Err(Error::Exists);
        }
        self.transact_whole(self.add_credits(&view) + NEW_INODE_CREDITS, |handle| {
            let inode = self.new_inode(handle, dir, name, node, cred)?;
            let entry = entry_type(inode.mode());
            // The directory's flags may have changed since: a snapshot for this operation.
            let view = DirView::new(self, dir);
            if let Err(e) = view.add(handle, name, inode.ino, entry) {
                self.abandon(handle, &inode)?;
                return Err(e);
            }
            let now = self.now();
            let done = (|| {
                if is_dir {
                    add_dir_link(&mut dir.meta.write().desc);
                    self.note_many_links(handle, dir)?;
                }
                self.stamp_dir(handle, dir, now)
            })();
            self.whole(handle, done)?;
            Ok(inode)
        })
    }

    /// Whether a directory may get another subdirectory: beyond 65000 links only with an index and `dir_nlink`.
    pub(crate) fn may_link_dir(&self, dir: &Inode, view: &DirView<'_>) -> bool {
        dir.links() < LINK_MAX || (view.params.is_indexed && view.params.has_dir_index)
    }

    /// Sets the `dir_nlink` feature with the first directory that has more links than are counted.
    pub(crate) fn note_many_links(&self, handle: &mut Handle, dir: &Inode) -> Result<()> {
        if dir.links() == 1 && !self.sb.lock().ro_compat().contains(RoCompat::DIR_NLINK) {
            self.modify_superblock(handle, |sb| {
                sb.set_dir_nlink();
            })?;
        }
        Ok(())
    }

    /// A new inode, linked once and written, named nowhere yet. [`NEW_INODE_CREDITS`].
    pub(crate) fn new_inode(
        &self,
        handle: &mut Handle,
        dir: &Arc<Inode>,
        name: &[u8],
        node: NewNode<'_>,
        cred: Cred,
    ) -> Result<InodeRef> {
        let kind = FileType::from_mode(node.mode).ok_or(Error::Invalid("file type"))?;
        let is_dir = kind == FileType::Directory;
        let (dir_gid, dir_mode, dir_flags, dir_projid) = {
            let m = dir.meta.read();
            (m.desc.gid, m.desc.mode, m.desc.flags, m.desc.projid)
        };
        let default_acl = match kind {
            FileType::Symlink => None,
            _ => xattr::get_acl(&XattrView { fs: self, inode: dir }, AclKind::Default)?,
        };
        let (ino, fresh) = self.allocate_inode(handle, dir, is_dir, name)?;
        let mut desc = InodeDesc::new(node.mode, &self.geo);
        desc.uid = cred.uid;
        desc.gid = cred.gid;
        if dir_mode & S_ISGID != 0 {
            desc.gid = dir_gid;
            if is_dir {
                desc.mode |= S_ISGID;
            }
        }
        if default_acl.is_none() && kind != FileType::Symlink {
            desc.mode &= !(cred.umask & 0o777);
        }
        let mut flags = dir_flags & InodeFlags::INHERITED;
        match kind {
            FileType::Directory => {}
            kind => flags &= InodeFlags::allowed_for(Some(kind)),
        }
        let extents = self.new_extents && matches!(kind, FileType::Regular | FileType::Directory);
        flags.set(InodeFlags::EXTENTS, extents);
        desc.flags = flags;
        desc.projid = if dir_flags.contains(InodeFlags::PROJINHERIT) { dir_projid } else { 0 };
        desc.generation = self.random_u32();
        let now = self.now();
        (desc.atime, desc.mtime, desc.ctime) = (now, now, now);
        if desc.crtime.is_some() {
            desc.crtime = Some(now);
        }
        desc.links = if is_dir { 2 } else { 1 };
        if let Some(rdev) = node.rdev.filter(|_| kind.is_device()) {
            desc.i_block = rdev.encode();
        }
        let seed = self.inode_seed(ino, desc.generation);
        let map = if matches!(kind, FileType::Regular | FileType::Directory) {
            MapRoot::empty(ino, extents, seed)
        } else {
            MapRoot::new(ino, desc.i_block, false, seed)
        };
        if let Err(e) = self.clear_inode_slot(handle, ino, fresh) {
            if !e.is_corruption() {
                // Nothing but the bitmap knows of it yet, and this handle commits whatever happens.
                let freed = self.free_inode_number(handle, ino, is_dir);
                self.whole(handle, freed)?;
            }
            // Else it belongs to somebody: the bit that was missing stays.
            return Err(e);
        }
        let inode = Inode::new(&self.arc(), ino, desc, map, self.es.attach(ino), handle.tid().0);
        {
            let mut map = inode.map.write();
            inode.absorb_map(&mut map, self.geo.block_size);
        }
        let made = Arc::as_ptr(&inode);
        let inode = self.inodes.insert(inode);
        if !std::ptr::eq(Arc::as_ptr(&inode), made) {
            let found = Err(Error::corrupt(Damage::InodeBitmap, "free, but in use").of(ino));
            return self.whole(handle, found);
        }
        let filled = self.fill_new(handle, &inode, dir, node.target).and_then(|()| {
            self.write_inode_data(handle, &inode)?;
            if default_acl.is_some() {
                let acl = default_acl.as_ref();
                self.edit_xattrs(handle, &inode, |edit| xattr::inherit_acl(edit, acl, cred.umask))?;
            }
            Ok(())
        });
        if let Err(e) = filled {
            self.abandon(handle, &inode)?;
            return Err(e);
        }
        Ok(inode)
    }

    /// What a new directory or symbolic link contains.
    fn fill_new(&self, handle: &mut Handle, inode: &InodeRef, dir: &Arc<Inode>, target: Option<&[u8]>) -> Result<()> {
        if inode.is_dir() {
            let view = DirView::new(self, inode);
            return dir::init(&view, handle, &view.params, inode.ino, dir.ino);
        }
        let Some(target) = target else { return Ok(()) };
        inode.set_size(target.len() as u64);
        if target.len() < 60 {
            let mut m = inode.meta.write();
            m.desc.size = target.len() as u64;
            m.desc.i_block = [0; 60];
            m.desc.i_block[..target.len()].copy_from_slice(target);
            inode.map.try_write().expect("nobody else has the new inode").i_block = m.desc.i_block;
            return Ok(());
        }
        let extents = self.new_extents;
        let view = self.map_view(inode);
        let block = self.allocate_meta_block(handle, self.inode_goal(dir))?;
        let mut map = inode.map.write();
        *map = MapRoot::empty(inode.ino, extents, self.inode_seed(inode.ino, inode.generation));
        inode.meta.write().desc.flags.set(InodeFlags::EXTENTS, extents);
        if let Err(e) = map.insert(&view, handle, LogicalBlock(0), block, 1, false) {
            drop(map);
            let freed = self.free_blocks(handle, block, 1);
            self.whole(handle, freed)?;
            return Err(e);
        }
        inode.absorb_map(&mut map, self.geo.block_size);
        drop(map);
        view.init(handle, block, |b| b[..target.len()].copy_from_slice(target))?;
        inode.meta.write().desc.size = target.len() as u64;
        Ok(())
    }

    /// A new inode that could not be finished: its eviction frees it.
    pub(crate) fn abandon(&self, handle: &mut Handle, inode: &InodeRef) -> Result<()> {
        note_abandoned();
        self.unname(handle, inode)
    }

    /// An inode that was made and has no name; a crash must not leave it behind.
    fn unname(&self, handle: &mut Handle, inode: &InodeRef) -> Result<()> {
        inode.meta.write().desc.links = 0;
        let recorded = self.orphan_add(handle, inode).and_then(|()| self.write_inode(handle, inode));
        self.whole(handle, recorded)
    }

    /// A file without a name (O_TMPFILE); [`Filesystem::link`] may give it one.
    pub fn tmpfile(&self, dir: &InodeRef, mode: u16, cred: Cred) -> Result<InodeRef> {
        let _change = self.begin_change()?;
        self.check_dir(dir)?;
        self.retry_no_space(|| {
            let _shared = dir.rw.read();
            self.may_change(dir, Change::AddEntry)?;
            self.transact_whole(NEW_INODE_CREDITS, |handle| {
                let inode = self.new_inode(handle, dir, b"", NewNode::file(mode), cred)?;
                inode.linkable.store(true, Ordering::Release);
                self.unname(handle, &inode)?;
                Ok(inode)
            })
        })
    }

    /// A further name for a file.
    pub fn link(&self, inode: &InodeRef, dir: &InodeRef, name: &[u8]) -> Result<()> {
        let _change = self.begin_change()?;
        self.check_dir(dir)?;
        check_name(name)?;
        if inode.is_dir() {
            return Err(Error::NotPermitted);
        }
        self.retry_no_space(|| {
            let _exclusive = dir.rw.write();
            let view = DirView::new(self, dir);
            if dir.links() == 0 {
                return Err(Error::NotFound);
            }
            self.may_change(dir, Change::AddEntry)?;
            if view.lookup(name)?.is_some() {
                return Err(Error::Exists);
            }
            self.check_project(dir, inode)?;
            self.may_change(inode, Change::Link)?;
            self.transact_whole(self.add_credits(&view) + 8, |handle| {
                let now = self.now();
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
                if let Err(e) = view.add(handle, name, inode.ino, entry_type(inode.mode())) {
                    // The link was counted while an unlink elsewhere may have taken the last name, which then was not
                    // the last link: it is now.
                    let undone = self.drop_link(handle, inode, now);
                    self.whole(handle, undone)?;
                    return Err(e);
                }
                let done = (|| {
                    if from_nothing {
                        self.orphan_remove(handle, inode)?;
                    }
                    self.write_inode(handle, inode)?;
                    self.stamp_dir(handle, dir, now)
                })();
                self.whole(handle, done)
            })
        })?;
        self.honour_sync(&[dir])
    }

    /// A directory's content changed.
    pub(crate) fn stamp_dir(&self, handle: &mut Handle, dir: &Arc<Inode>, now: Timestamp) -> Result<()> {
        {
            let mut m = dir.meta.write();
            m.desc.mtime = now;
            m.desc.ctime = now;
        }
        self.write_inode(handle, dir)
    }

    /// Removes a name of a file.
    pub fn unlink(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        let _change = self.begin_change()?;
        self.check_dir(dir)?;
        check_name(name)?;
        self.retry_no_space(|| {
            let _exclusive = dir.rw.write();
            let view = DirView::new(self, dir);
            let found = view.lookup(name)?.ok_or(Error::NotFound)?;
            let inode = self.iget_named(dir, found.ino)?;
            if inode.is_dir() {
                return Err(Error::IsDirectory);
            }
            self.may_change(dir, Change::RemoveEntry)?;
            self.may_change(&inode, Change::Unlink)?;
            self.transact_whole(8, |handle| {
                view.remove(handle, name, Some(&found))?;
                let now = self.now();
                let done = self.stamp_dir(handle, dir, now).and_then(|()| self.drop_link(handle, &inode, now));
                self.whole(handle, done)
            })
        })?;
        self.reap();
        self.honour_sync(&[dir])
    }

    /// One name less; without any, the inode becomes an orphan until its last user lets go.
    pub(crate) fn drop_link(&self, handle: &mut Handle, inode: &InodeRef, now: Timestamp) -> Result<()> {
        let last = {
            let mut m = inode.meta.write();
            m.desc.links = m.desc.links.saturating_sub(1);
            m.desc.ctime = now;
            m.desc.links == 0
        };
        if last {
            self.orphan_add(handle, inode)?;
        }
        self.write_inode(handle, inode)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        let _change = self.begin_change()?;
        self.check_dir(dir)?;
        check_name(name)?;
        if name == b"." {
            return Err(Error::Invalid("removing '.'"));
        }
        if name == b".." {
            return Err(Error::NotEmpty);
        }
        self.retry_no_space(|| {
            let _exclusive = dir.rw.write();
            let view = DirView::new(self, dir);
            let found = view.lookup(name)?.ok_or(Error::NotFound)?;
            let inode = self.iget_named(dir, found.ino)?;
            self.may_change(dir, Change::RemoveEntry)?;
            self.may_change(&inode, Change::Unlink)?;
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
            self.transact_whole(8, |handle| {
                view.remove(handle, name, Some(&found))?;
                let now = self.now();
                let done = self.kill_dir(handle, &inode, now).and_then(|()| {
                    drop_dir_link(&mut dir.meta.write().desc);
                    self.stamp_dir(handle, dir, now)
                });
                self.whole(handle, done)
            })
        })?;
        self.reap();
        self.honour_sync(&[dir])
    }

    /// An empty directory that has no name any more: all its links go.
    pub(crate) fn kill_dir(&self, handle: &mut Handle, inode: &InodeRef, now: Timestamp) -> Result<()> {
        {
            let mut m = inode.meta.write();
            m.desc.links = 0;
            m.desc.ctime = now;
        }
        self.orphan_add(handle, inode)?;
        self.write_inode(handle, inode)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, inode: &InodeRef) -> Result<Vec<u8>> {
        let size = {
            let m = inode.meta.read();
            if !m.desc.is_symlink() {
                return Err(Error::Invalid("not a symbolic link"));
            }
            if let Some(target) = m.desc.fast_symlink_target(&self.geo) {
                return Ok(target.to_vec());
            }
            m.desc.size as usize
        };
        if let Some(target) = self.watch(self.inline_content(inode))? {
            return Ok(target);
        }
        let m = self.watch(self.map_lookup(inode, LogicalBlock(0), 1))?;
        let MapState::Written(block) = m.state else {
            return self.watch(Err(Error::corrupt(Damage::Symlink, "no block").of(inode.ino)));
        };
        if size > self.geo.block_size as usize || block == BlockNr(0) {
            return self.watch(Err(Error::corrupt(Damage::Symlink, format!("{size} bytes")).of(inode.ino)));
        }
        let buffer = self.cache.get(block)?;
        let target = buffer.read(|b| b[..size].to_vec());
        // Linux ends the target at a NUL.
        Ok(target.split(|b| *b == 0).next().unwrap_or_default().to_vec())
    }

    /// Takes set-id bits and file capabilities away, as a change of content by somebody without CAP_FSETID does.
    /// `member`: of the file's group; for others the set-group-id bit goes even where the group may not execute the
    /// file (Linux: `setattr_should_drop_sgid`).
    pub fn drop_privileges(&self, inode: &InodeRef, member: bool) -> Result<()> {
        let _change = self.begin_change()?;
        let _exclusive = inode.rw.write();
        let others = if member { 0 } else { S_ISGID };
        self.kill_bits(inode, privileges(inode.mode()) | inode.mode() & others)
    }

    /// Drops the set-user-id bit, the set-group-id bit where it means what it says, and file capabilities: the content
    /// is about to change.
    pub(crate) fn kill_privileges(&self, inode: &InodeRef) -> Result<()> {
        self.kill_bits(inode, privileges(inode.mode()))
    }

    /// Takes these bits of the mode away, and file capabilities.
    fn kill_bits(&self, inode: &InodeRef, kill: u16) -> Result<()> {
        let has_caps = {
            let view = XattrView { fs: self, inode };
            use crate::xattr::XattrSource;
            let may = view.block_nr().is_some() || !view.inode_area()?.iter().all(|b| *b == 0);
            may && xattr::get(&view, b"security.capability").is_ok()
        };
        if kill == 0 && !has_caps {
            return Ok(());
        }
        self.transact_whole(2 + XATTR_CREDITS, |handle| {
            if has_caps {
                self.edit_xattrs(handle, inode, |edit| xattr::remove(edit, b"security.capability"))?;
            }
            inode.meta.write().desc.mode &= !kill;
            let written = self.write_inode(handle, inode);
            self.whole(handle, written)
        })
    }
}

/// The bits that a change of content takes away.
pub(crate) fn privileges(mode: u16) -> u16 {
    let mut kill = mode & S_ISUID;
    if mode & S_ISGID != 0 && mode & 0o010 != 0 {
        kill |= S_ISGID;
    }
    kill
}

/// A subdirectory more: beyond what the field can count it says 1, and stays so (Linux: `ext4_inc_count`).
pub(crate) fn add_dir_link(desc: &mut InodeDesc) {
    if desc.links == 1 {
        return;
    }
    desc.links = if desc.links >= LINK_MAX { 1 } else { desc.links + 1 };
}

/// A subdirectory less (Linux: `ext4_dec_count`).
pub(crate) fn drop_dir_link(desc: &mut InodeDesc) {
    if desc.links > 2 {
        desc.links -= 1;
    }
}
