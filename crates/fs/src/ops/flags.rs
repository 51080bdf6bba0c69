//! Inode flags: the changes that they forbid, the durability that they demand, and the rules for setting them
//! (chattr(1), FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR).
//!
//! [`Inode::may_change`] alone decides which changes immutable and append-only allow. Every operation passes its kind
//! to it as a [`Change`]. The rules are those of Linux, where the checks are spread over the VFS (`may_delete`,
//! `may_create`, `may_setattr`, `vfs_fallocate`, `xattr_permission`, `may_open`) and ext4.
//!
//! What it does not do: check permissions by mode and owner. The caller checks them (under FUSE, the kernel does).
//!
//! # Locking
//! Flags change under `inode`, exclusively. A caller that reads them holds that lock, shared or exclusively, unless it
//! only adds or removes a name of the inode.

use std::sync::Arc;

use extant_ondisk::features::RoCompat;
use extant_ondisk::inode::{FileType, InodeFlags};

use crate::dir_store::DirView;
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::ops::credits;
use crate::ops::sync::Barrier;

/// A change that an operation makes to one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes change, or are added at the end.
    Write,
    /// Bytes are added at the end.
    Append,
    /// The size is set.
    Truncate,
    /// Blocks are allocated; the size may grow.
    Preallocate,
    /// A range is punched out or zeroed.
    Carve,
    /// Mode, owner, group, or times are set to given values.
    Attributes,
    /// Times are set to now.
    Touch,
    /// An extended attribute or ACL is set or removed.
    Xattr,
    /// The inode gets another name.
    Link,
    /// The inode loses a name, or one of its names changes.
    Unlink,
    /// A directory gets an entry.
    AddEntry,
    /// A directory loses an entry.
    RemoveEntry,
}

impl Change {
    /// Whether the change affects the content; a file with a Merkle tree allows none of these.
    fn is_of_content(self) -> bool {
        use Change::*;
        matches!(self, Write | Append | Truncate | Preallocate | Carve)
    }

    /// Whether the change only adds something; append-only allows no others.
    fn appends(self) -> bool {
        use Change::*;
        matches!(self, Append | Preallocate | Touch | AddEntry)
    }
}

/// The purpose of an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFor {
    /// Content may change (O_WRONLY, O_RDWR).
    pub write: bool,
    /// Every write goes to the end (O_APPEND).
    pub append: bool,
    /// The content is removed (O_TRUNC).
    pub truncate: bool,
}

/// The flags and the project that chattr(1) sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFlags {
    /// All flags, as in `FS_IOC_SETFLAGS`; `None` leaves them unchanged.
    pub flags: Option<u32>,
    /// The project, as in `FS_IOC_FSSETXATTR`; `None` leaves it unchanged.
    pub project: Option<u32>,
    /// The caller may change immutable and append-only (CAP_LINUX_IMMUTABLE) and data journaling (CAP_SYS_RESOURCE).
    pub privileged: bool,
}

/// Flags that are stored but have no effect. In Linux's ext4 they have none either, or only on a kind of device that
/// Extant does not support (DAX).
const STORED: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::DAX);
/// Flags that operations honour.
const HONOURED: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::PROJINHERIT)
    .union(InodeFlags::CASEFOLD);

impl DirView<'_> {
    /// Checks that the directory may become case-insensitive, or cease to be. The caller holds its lock exclusively
    /// (Linux: `ext4_ioctl_setflags`).
    fn may_change_case(&self) -> Result<()> {
        if !self.fs.geo.casefold {
            return Err(Error::NotSupported("the flag 'F' without the feature 'casefold'"));
        }
        if self.is_empty()? { Ok(()) } else { Err(Error::NotEmpty) }
    }
}

impl Inode {
    /// The project; 0 if inodes have no room for one.
    pub fn project(&self) -> u32 {
        self.meta.read().desc.projid
    }

    /// Checks that the inode's flags allow the change; [`Error::NotPermitted`] if not.
    pub(crate) fn may_change(&self, change: Change) -> Result<()> {
        let flags = self.meta.read().desc.flags;
        if flags.contains(InodeFlags::IMMUTABLE) || (flags.contains(InodeFlags::APPEND) && !change.appends()) {
            return Err(Error::NotPermitted);
        }
        if flags.contains(InodeFlags::VERITY) && change.is_of_content() {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    /// Checks that an inode may be moved into this directory. A directory whose files inherit its project accepts no
    /// other project (Linux: `ext4_link`, `ext4_rename`).
    pub(crate) fn check_project(&self, inode: &Inode) -> Result<()> {
        let (flags, project) = {
            let m = self.meta.read();
            (m.desc.flags, m.desc.projid)
        };
        if flags.contains(InodeFlags::PROJINHERIT) && inode.meta.read().desc.projid != project {
            return Err(Error::OtherProject);
        }
        Ok(())
    }
}

impl Filesystem {
    /// Checks that the flags of a file allow this kind of open.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] if the flags forbid it; [`Error::Unsupported`] if the content is encrypted and the mount
    /// lacks the key.
    pub fn may_open(&self, inode: &InodeRef, how: OpenFor) -> Result<()> {
        if inode.file_type() == Some(FileType::Regular) {
            let _shared = inode.rw.read();
            self.watch(self.encryption(inode).file_key())?;
        }
        if how.truncate {
            inode.may_change(Change::Truncate)?;
        }
        if how.write {
            inode.may_change(if how.append { Change::Append } else { Change::Write })?;
        }
        Ok(())
    }

    /// Sets the flags that chattr(1) may change, and the project. Bits that are visible but fixed are ignored, since
    /// chattr(1) passes back the flags that it read. Flags that have an effect in Linux but would have none here (data
    /// journaling, another kind of map) fail with [`Error::NotSupported`]. A directory can become case-insensitive, or
    /// cease to be, only while it is empty.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for those flags, and for a project or case-insensitivity without the feature;
    /// [`Error::NotEmpty`] if names would have to be hashed again; [`Error::NotPermitted`] without privilege or on an
    /// immutable inode; [`Error::TooLarge`] if the inode has no room for a project; [`Error::ReadOnly`].
    pub fn set_flags(&self, inode: &InodeRef, set: SetFlags) -> Result<()> {
        let _change = self.begin_change()?;
        {
            let _exclusive = inode.rw.write();
            let (old, old_project) = {
                let m = inode.meta.read();
                (m.desc.flags, m.desc.projid)
            };
            let flags = match set.flags {
                Some(wanted) => {
                    new_flags(old, InodeFlags::from_bits_retain(wanted), inode.file_type(), set.privileged)?
                }
                None => old,
            };
            let project = set.project.unwrap_or(old_project);
            if project != old_project {
                if !self.sb.lock().ro_compat().contains(RoCompat::PROJECT) {
                    return Err(Error::NotSupported("projects without the feature 'project'"));
                }
                if !inode.meta.read().desc.has_project() {
                    return Err(Error::TooLarge);
                }
            }
            if (flags ^ old).contains(InodeFlags::CASEFOLD) {
                DirView::new(self, inode).may_change_case()?;
            }
            // Linux: `ext4_ioctl_check_immutable`.
            let stays = old.contains(InodeFlags::IMMUTABLE) && flags.contains(InodeFlags::IMMUTABLE);
            if stays && (flags != old || project != old_project) {
                return Err(Error::NotPermitted);
            }
            // Reading the inode's block can fail, so it comes before the change. The slot keeps the block in memory.
            let _table = self.inode_slot(inode.ino)?;
            if project != old_project {
                let owners = {
                    let d = &inode.meta.read().desc;
                    [d.uid, d.gid, project]
                };
                self.quotas.prepare(self, owners)?;
                self.quotas.may_pass_on(inode, owners)?;
            }
            self.transact_whole(credits::INODE, |handle| {
                {
                    let mut m = inode.meta.write();
                    m.desc.flags = flags;
                    m.desc.projid = project;
                    m.desc.ctime = self.now();
                }
                self.write_inode(handle, inode)
            })?;
        }
        self.honour_sync(&[inode])
    }

    /// Ends an operation that changed files or directories. If the flags of one of them require it, makes the operation
    /// durable before it returns (Linux: `IS_SYNC`, `IS_DIRSYNC`). The caller holds no lock.
    pub(crate) fn honour_sync(&self, changed: &[&Arc<Inode>]) -> Result<()> {
        for inode in changed.iter().filter(|inode| is_synchronous(inode)) {
            Barrier::of(inode, false).wait(self)?;
        }
        Ok(())
    }

    /// Runs an operation that changes data, and ends it as [`Filesystem::honour_sync`] does. If the data must be
    /// durable, this also reports data of the file that was lost since the operation began.
    pub(crate) fn change_data<T>(&self, inode: &Arc<Inode>, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = inode.losses.position();
        let done = change()?;
        if is_synchronous(inode) {
            self.honour_sync(&[inode])?;
            inode.losses.lost_since(before)?;
        }
        Ok(done)
    }
}

/// Whether the flags require that each change is durable before its call returns.
fn is_synchronous(inode: &Inode) -> bool {
    let asks = if inode.is_dir() { InodeFlags::SYNC | InodeFlags::DIRSYNC } else { InodeFlags::SYNC };
    inode.meta.read().desc.flags.intersects(asks)
}

/// The flags after chattr(1) (Linux: `ext4_fileattr_set`, `ext4_ioctl_setflags`, `fileattr_set_prepare`).
fn new_flags(old: InodeFlags, wanted: InodeFlags, kind: Option<FileType>, privileged: bool) -> Result<InodeFlags> {
    if !(wanted - InodeFlags::USER_VISIBLE).is_empty() {
        return Err(Error::NotSupported("an unknown inode flag"));
    }
    let wanted = wanted & InodeFlags::USER_MODIFIABLE;
    if !(wanted - InodeFlags::allowed_for(kind)).is_empty() {
        return Err(Error::NotSupported("this inode flag on this kind of file"));
    }
    let changed = (old & InodeFlags::USER_MODIFIABLE) ^ wanted;
    if changed.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND | InodeFlags::JOURNAL_DATA) && !privileged {
        return Err(Error::NotPermitted);
    }
    if !(changed & (wanted - (STORED | HONOURED))).is_empty() || changed.contains(InodeFlags::EXTENTS) {
        return Err(Error::NotSupported("this inode flag"));
    }
    Ok((old - InodeFlags::USER_MODIFIABLE) | wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir_store::tests::{hide_from, spacious};
    use crate::{Cred, NewNode};

    #[test]
    fn flags_that_cannot_be_written_are_not_set() {
        let (_dev, faulty, fs) = spacious("dir_index");
        let root = fs.root().expect("root");
        let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
        let state = || {
            let m = f.meta.read();
            (m.desc.flags, m.desc.projid, m.desc.ctime)
        };
        let before = state();
        hide_from(&fs, &faulty, &f);
        let set = SetFlags { flags: Some((before.0 | InodeFlags::NODUMP).bits()), ..SetFlags::default() };
        let failed = fs.set_flags(&f, set);
        assert!(matches!(failed, Err(Error::Device(_))), "{failed:?}");
        assert_eq!(state(), before);
        faulty.clear();
        fs.set_flags(&f, set).expect("flags");
        assert!(state().0.contains(InodeFlags::NODUMP));
    }
}
