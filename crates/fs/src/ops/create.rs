//! New inodes: files, directories, symbolic links, devices, and files without a name (Linux: `__ext4_new_inode`,
//! fs/ext4/ialloc.c; `ext4_create`, `ext4_mkdir`, `ext4_tmpfile`, fs/ext4/namei.c).
//!
//! Main types: [`NewNode`] (the inode to create), [`Cred`] (its creator). [`inherit`] decides which attributes a new
//! inode inherits from its directory, and is a pure function.
//!
//! The steps are: inode number, inode in memory, its first block, its attributes, its name. Before the inode has a
//! name, [`Operation::take_back`] can undo everything.
//!
//! What it does not do: choose the number (`ialloc.rs`), or check permissions.
//!
//! # Locking
//! The directory's `inode` lock, exclusively; shared for a file without a name.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_journal::Handle;
use extant_mballoc::MetaRole;
use extant_ondisk::LogicalBlock;
use extant_ondisk::acl::{self, Acl};
use extant_ondisk::inode::{DeviceNr, FileType, InodeDesc, InodeFlags};

use crate::crypt::CONTEXT;
use crate::dir;
use crate::dir_store::DirView;
use crate::error::{Error, Result};
use crate::fast_commit::{NameChange, describe_name};
use crate::filesystem::Filesystem;
use crate::inode::{Attr, Inode, InodeRef};
use crate::map::{MapRoot, MapStore};
use crate::operation::Operation;
use crate::ops::credits;
use crate::ops::flags::Change;
use crate::ops::names::{S_ISGID, add_dir_link, check_name};
use crate::quota::NewInode;
use crate::reserve::Caller;
use crate::xattr::{self, AclKind};
use crate::xattr_store::Values;

/// The creator's credentials. The caller checks permissions (under FUSE, the kernel does).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cred {
    /// Owner of the new inode.
    pub uid: u32,
    /// Its group, unless the inode inherits the group of its directory (set-group-ID).
    pub gid: u32,
    /// The mask of the new inode's mode; a default ACL of the directory replaces it.
    pub umask: u16,
}

impl Cred {
    /// Adapts the credentials for an unprivileged caller to whom all files are shown as its own, regardless of the
    /// image. A new inode then gets the owner (`uid`) and the group (`gid`) of its directory.
    #[must_use]
    pub fn of_directory(self, dir: &Attr, uid: bool, gid: bool) -> Cred {
        Cred { uid: if uid { dir.uid } else { self.uid }, gid: if gid { dir.gid } else { self.gid }, ..self }
    }
}

/// The inode to create.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// Kind and permissions.
    pub mode: u16,
    /// The device number, for devices.
    pub rdev: Option<DeviceNr>,
    /// The target, for symbolic links.
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

    /// A whiteout, which marks a name as deleted in an overlay (Linux: `WHITEOUT_DEV`).
    pub fn whiteout() -> NewNode<'static> {
        let rdev = Some(DeviceNr { major: 0, minor: 0 });
        NewNode { mode: FileType::CharDevice.mode_bits(), rdev, target: None }
    }

    /// A symbolic link to `target`, which is not checked.
    pub fn symlink(target: &[u8]) -> NewNode<'_> {
        NewNode { mode: FileType::Symlink.mode_bits() | 0o777, rdev: None, target: Some(target) }
    }

    /// Checks that the target, if there is one, can be stored.
    fn check_target(&self, block_size: u32) -> Result<()> {
        match self.target {
            Some([]) => Err(Error::NotFound),
            Some(target) if target.len() >= block_size as usize => Err(Error::NameTooLong),
            _ => Ok(()),
        }
    }
}

/// The attributes of a directory that new inodes can inherit.
struct Parent<'a> {
    mode: u16,
    gid: u32,
    flags: InodeFlags,
    projid: u32,
    default_acl: Option<&'a Acl>,
    /// Every new inode in the directory inherits its group ([`crate::MountOptions::group_of_directory`]).
    hands_down_group: bool,
}

/// The initial attributes of a new inode.
#[derive(Debug, PartialEq, Eq)]
struct Inherited {
    /// The mode, and ACLs that match it.
    acl: acl::Inherited,
    gid: u32,
    /// Without [`InodeFlags::EXTENTS`], which does not depend on the directory.
    flags: InodeFlags,
    projid: u32,
}

/// The attributes of a new inode for the `mode` (with its file type) that `cred` requests in a directory (Linux:
/// `inode_init_owner`, `ext4_mask_flags`, `posix_acl_create`).
///
/// In a set-group-ID directory new inodes inherit the group, and new directories also the bit. If new inodes inherit
/// the group of every directory, they do not get the bit (Linux: `EXT4_MOUNT_GRPID` in `__ext4_new_inode`). A default
/// ACL replaces the umask and restricts the mode. Flags are limited to those that the kind of file can have. The
/// project is inherited if the directory's flag says so.
fn inherit(parent: &Parent<'_>, mode: u16, cred: Cred) -> Inherited {
    let kind = FileType::from_mode(mode);
    let set_group_id = parent.mode & S_ISGID != 0 && !parent.hands_down_group;
    let sgid = if set_group_id && kind == Some(FileType::Directory) { S_ISGID } else { 0 };
    let hands_down_project = parent.flags.contains(InodeFlags::PROJINHERIT);
    Inherited {
        acl: acl::inherit(parent.default_acl, mode | sgid, cred.umask),
        gid: if set_group_id || parent.hands_down_group { parent.gid } else { cred.gid },
        flags: parent.flags & InodeFlags::INHERITED & InodeFlags::allowed_for(kind),
        projid: if hands_down_project { parent.projid } else { 0 },
    }
}

impl Filesystem {
    /// Creates `node` as `name` in `dir`.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotFound`] if `dir` was removed; [`Error::NotDirectory`]; [`Error::NameTooLong`] or
    /// [`Error::Invalid`] for the name; [`Error::TooManyLinks`] if `dir` has the maximum number of subdirectories;
    /// [`Error::NoSpace`] or [`Error::NoInodes`]; [`Error::NotPermitted`] because of the flags of `dir`;
    /// [`Error::ReadOnly`].
    pub fn create(&self, dir: &InodeRef, name: &[u8], node: NewNode<'_>, cred: Cred) -> Result<InodeRef> {
        let op = Operation::begin(self)?;
        dir.check_dir()?;
        check_name(name)?;
        node.check_target(self.geo.block_size)?;
        let made = op.retry_no_space(|| op.create_once(dir, name, node, cred));
        self.budget.relieve();
        if made.is_ok() {
            self.honour_sync(&[dir])?;
        }
        made
    }

    /// Creates a file without a name (O_TMPFILE); [`Filesystem::link`] may add one.
    ///
    /// # Errors
    /// As [`Filesystem::create`], except for errors that concern the name.
    pub fn tmpfile(&self, dir: &InodeRef, mode: u16, cred: Cred) -> Result<InodeRef> {
        let op = Operation::begin(self)?;
        dir.check_dir()?;
        op.retry_no_space(|| {
            let _shared = dir.rw.read();
            dir.may_change(Change::AddEntry)?;
            self.encryption(dir).may_add_names()?;
            let _new = op.admit_new(dir, NewNode::file(mode), cred)?;
            let values = op.inherited_values(dir, NewNode::file(mode), cred)?;
            self.transact_whole(credits::NEW_INODE + values.credits, |handle| {
                let inode = op.new_inode(handle, dir, b"", NewNode::file(mode), cred, &values)?;
                inode.linkable.store(true, Ordering::Release);
                op.unname(handle, &inode)?;
                Ok(inode)
            })
        })
    }
}

impl Operation<'_> {
    /// One attempt of [`Filesystem::create`].
    fn create_once(&self, dir: &InodeRef, name: &[u8], node: NewNode<'_>, cred: Cred) -> Result<InodeRef> {
        let _exclusive = dir.rw.write();
        let is_dir = FileType::from_mode(node.mode) == Some(FileType::Directory);
        {
            let m = dir.meta.read();
            if m.desc.links == 0 {
                return Err(Error::NotFound);
            }
        }
        dir.may_change(Change::AddEntry)?;
        self.fs.encryption(dir).may_add_names()?;
        let view = DirView::new(self.fs, dir);
        if is_dir && !dir.may_link_dir(&view) {
            return Err(Error::TooManyLinks);
        }
        if view.lookup(name)?.is_some() {
            return Err(Error::Exists);
        }
        let _table = self.fs.hold_slots([dir])?;
        let _new = self.admit_new(dir, node, cred)?;
        let values = self.inherited_values(dir, node, cred)?;
        self.fs.transact_whole(credits::create(view.add_credits()) + values.credits, |handle| {
            let inode = self.new_inode(handle, dir, name, node, cred, &values)?;
            // The directory's flags may have changed meanwhile, so take a new snapshot.
            let view = DirView::new(self.fs, dir);
            if let Err(e) = view.add(handle, name, inode.ino, inode.file_type()) {
                self.take_back(handle, &inode)?;
                return Err(e);
            }
            let now = self.fs.now();
            let done = (|| {
                if is_dir {
                    add_dir_link(&mut dir.meta.write().desc);
                    self.fs.note_many_links(handle, dir)?;
                }
                self.fs.stamp(handle, dir, now)
            })();
            self.fs.whole(handle, done)?;
            if !is_dir {
                describe_name(handle, NameChange::Create, dir, &inode, name);
                handle.set_described();
            }
            Ok(inode)
        })
    }

    /// Charges a new inode to the quotas of its owners, before the handle that creates it. It counts against their
    /// limits until the result is dropped.
    pub(crate) fn admit_new(&self, dir: &Inode, node: NewNode<'_>, cred: Cred) -> Result<NewInode<'_>> {
        let Inherited { gid, projid, .. } = {
            let m = dir.meta.read();
            inherit(&self.parent(&m.desc, None), node.mode, cred)
        };
        let owners = [cred.uid, gid, projid];
        self.fs.quotas.prepare(self.fs, owners)?;
        self.fs.quotas.promise_inode(owners)
    }

    /// Prepares the values of inherited ACLs that may need inodes of their own.
    pub(crate) fn inherited_values(&self, dir: &Arc<Inode>, node: NewNode<'_>, cred: Cred) -> Result<Values> {
        let is_link = FileType::from_mode(node.mode) == Some(FileType::Symlink);
        if !self.fs.geo.ea_inode || !self.fs.has_acls() || is_link {
            return Ok(Values::default());
        }
        let Some(default) = xattr::get_acl(&self.fs.xattrs(dir), AclKind::Default)? else {
            return Ok(Values::default());
        };
        let inherited = inherit(&self.parent(&dir.meta.read().desc, Some(&default)), node.mode, cred);
        self.prepare_inherited(dir, &xattr::inherited_values(&inherited.acl))
    }

    /// The attributes of a directory, for [`inherit`].
    fn parent<'a>(&self, desc: &InodeDesc, default_acl: Option<&'a Acl>) -> Parent<'a> {
        let InodeDesc { mode, gid, flags, projid, .. } = *desc;
        let hands_down_group = self.fs.options.group_of_directory == Some(true);
        Parent { mode, gid, flags, projid, default_acl, hands_down_group }
    }

    /// Creates an inode with one link and writes it; it has no name yet. [`credits::NEW_INODE`]. The caller has charged
    /// it to the quotas ([`Operation::admit_new`]), and has prepared the `values` that it may inherit.
    pub(crate) fn new_inode(
        &self,
        handle: &mut Handle,
        dir: &Arc<Inode>,
        name: &[u8],
        node: NewNode<'_>,
        cred: Cred,
        values: &Values,
    ) -> Result<InodeRef> {
        let kind = FileType::from_mode(node.mode).ok_or(Error::Invalid("file type"))?;
        let is_dir = kind == FileType::Directory;
        let context = self.fs.encryption(dir).new_context(Some(kind))?;
        let default_acl = match kind {
            FileType::Symlink => None,
            _ if !self.fs.has_acls() => None,
            _ => xattr::get_acl(&self.fs.xattrs(dir), AclKind::Default)?,
        };
        let parent = self.parent(&dir.meta.read().desc, default_acl.as_ref());
        let Inherited { acl, gid, mut flags, projid } = inherit(&parent, node.mode, cred);
        let (ino, fresh) = self.new_number(handle, dir, is_dir, name)?;
        let extents = self.fs.new_extents && matches!(kind, FileType::Regular | FileType::Directory);
        flags.set(InodeFlags::EXTENTS, extents);
        let mut desc = InodeDesc::new(acl.mode, &self.fs.geo);
        (desc.uid, desc.gid, desc.flags, desc.projid) = (cred.uid, gid, flags, projid);
        desc.generation = self.fs.random_u32();
        let now = self.fs.now();
        (desc.atime, desc.mtime, desc.ctime) = (now, now, now);
        if desc.crtime.is_some() {
            desc.crtime = Some(now);
        }
        desc.links = if is_dir { 2 } else { 1 };
        if let Some(rdev) = node.rdev.filter(|_| kind.is_device()) {
            desc.i_block = rdev.encode();
        }
        let inode = self.place_new(handle, ino, fresh, desc)?;
        if let Some(context) = context {
            inode.meta.write().desc.flags.insert(InodeFlags::ENCRYPT);
            self.fs.encryption(&inode).set_context(context);
        }
        let filled = (|| {
            // The context comes first. If there is too little room in the inode, the other attributes go to a block,
            // which inodes may share (Linux: `__ext4_new_inode`).
            if let Some(context) = context {
                self.fs
                    .xattrs(&inode)
                    .edit(handle, &Values::default(), |edit| xattr::set_stored(edit, CONTEXT, &context.encode()))?;
            }
            // The ACLs come before the content, which may be stored in the inode and takes all of the remaining room.
            if acl.access.is_some() || acl.default.is_some() {
                self.fs.xattrs(&inode).edit(handle, values, |edit| xattr::set_inherited(edit, &acl))?;
            }
            self.fill_new(handle, &inode, dir, node.target)?;
            self.fs.write_inode_data(handle, &inode)
        })();
        if let Err(e) = filled {
            self.take_back(handle, &inode)?;
            return Err(e);
        }
        Ok(inode)
    }

    /// Writes the first content of a new inode.
    fn fill_new(&self, handle: &mut Handle, inode: &InodeRef, dir: &Arc<Inode>, target: Option<&[u8]>) -> Result<()> {
        let key = self.fs.encryption(inode).file_key()?;
        if inode.is_dir() {
            // As in Linux, content in the inode is never encrypted, so encrypted inodes have none.
            if key.is_none() && self.fs.inline(inode).begin_directory(handle, dir.ino)? {
                return Ok(());
            }
            let view = DirView::new(self.fs, inode);
            return dir::init(&view, handle, &view.params, inode.ino, dir.ino);
        }
        inode.fresh.store(key.is_none() && inode.file_type() == Some(FileType::Regular), Ordering::Release);
        let Some(target) = target else { return Ok(()) };
        let sealed =
            key.map(|key| key.seal_target(target, self.fs.geo.block_size).ok_or(Error::NameTooLong)).transpose()?;
        let target = sealed.as_deref().unwrap_or(target);
        inode.set_size(target.len() as u64);
        if target.len() < 60 {
            let mut m = inode.meta.write();
            m.desc.size = target.len() as u64;
            m.desc.i_block = [0; 60];
            m.desc.i_block[..target.len()].copy_from_slice(target);
            inode.map.try_write().expect("no other thread has the new inode").i_block = m.desc.i_block;
            return Ok(());
        }
        let extents = self.fs.new_extents;
        let view = self.fs.map_view(inode);
        self.fs.quotas.blocks_within(inode, 1)?;
        let home = self.fs.placement.inode_goal(dir.ino, dir.file_type());
        let owner = (MetaRole::Symlink, inode.ino);
        let block = self.fs.placement.allocate_meta_block(handle, owner, home, None, Caller::current())?;
        let mut map = inode.map.write();
        *map = MapRoot::empty(inode.ino, extents, self.fs.inode_seed(inode.ino, inode.generation));
        inode.meta.write().desc.flags.set(InodeFlags::EXTENTS, extents);
        if let Err(e) = map.insert(&view, handle, LogicalBlock(0), block, 1, false) {
            drop(map);
            let freed = self.fs.placement.free_blocks(handle, inode.ino, block, 1);
            self.fs.whole(handle, freed)?;
            return Err(e);
        }
        inode.absorb_map(&mut map, self.fs.geo.block_size);
        drop(map);
        view.init(handle, block, |b| b[..target.len()].copy_from_slice(target))?;
        inode.meta.write().desc.size = target.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
#[path = "create_tests.rs"]
mod tests;
