//! getattr and setattr.
//!
//! Main functions: [`Filesystem::getattr`], [`Filesystem::setattr`]. Main type: [`SetAttr`].
//!
//! What it does not do: change flags (`flags.rs`), or check permissions.
//!
//! # Locking
//! `inode` exclusively for setattr.

use extant_ondisk::inode::{FileType, InodeDesc, InodeFlags, MODE_TYPE_MASK};
use extant_ondisk::time::Timestamp;

use crate::error::{Error, Result};
use crate::fast_commit::set_file_described;
use crate::filesystem::Filesystem;
use crate::inode::{Attr, InodeRef};
use crate::operation::Operation;
use crate::ops::credits;
use crate::ops::flags::Change;
use crate::ops::names::privileges;
use crate::xattr;
use crate::xattr_store::Values;

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time, clamped to the range of the inode's fields.
    At(Timestamp),
}

/// The attributes to change; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The permission bits.
    pub mode: Option<u16>,
    /// The owner's uid.
    pub uid: Option<u32>,
    /// The gid.
    pub gid: Option<u32>,
    /// The size, in bytes.
    pub size: Option<u64>,
    /// The time of the last access.
    pub atime: Option<SetTime>,
    /// The time of the last change of content.
    pub mtime: Option<SetTime>,
    /// The time of the last change of the inode, from callers that keep the times themselves. Otherwise any change sets
    /// it to the current time.
    pub ctime: Option<Timestamp>,
    /// A change of size removes set-user-id, set-group-id and capabilities.
    pub kill_privileges: bool,
}

impl SetAttr {
    /// The requested changes that inode flags may forbid.
    fn changes(&self) -> impl Iterator<Item = Change> {
        // A caller that keeps the times itself passes the times of changes that were allowed when they happened.
        let kept = self.ctime.is_some();
        let times = [self.atime, self.mtime].map(|t| t.filter(|_| !kept));
        let set = self.mode.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || times.iter().any(|t| matches!(t, Some(SetTime::At(_))));
        let touch = times.iter().any(Option::is_some);
        [(set, Change::Attributes), (touch, Change::Touch), (self.size.is_some(), Change::Truncate)]
            .into_iter()
            .filter_map(|(does, change)| does.then_some(change))
    }

    fn apply_times(&self, d: &mut InodeDesc, now: Timestamp) {
        let extra = d.has_extra_times();
        let pick = |t: SetTime| if let SetTime::At(t) = t { truncated(t, extra) } else { now };
        if let Some(t) = self.atime {
            d.atime = pick(t);
        }
        if let Some(t) = self.mtime {
            d.mtime = pick(t);
        }
        d.ctime = self.ctime.map_or(now, |t| truncated(t, extra));
    }
}

impl Operation<'_> {
    /// One attempt of [`Filesystem::setattr`].
    fn set_attributes(&self, inode: &InodeRef, set: &SetAttr) -> Result<()> {
        let _exclusive = inode.rw.write();
        for change in set.changes() {
            inode.may_change(change)?;
        }
        let now = self.fs.now();
        if let SetAttr { mode: None, uid: None, gid: None, size: None, .. } = *set {
            // If only times change, they are written lazily, with the inode's next change or writeback. With FUSE's
            // writeback cache, such a call follows each write and each unlink of a file.
            let linked = {
                let mut m = inode.meta.write();
                set.apply_times(&mut m.desc, now);
                m.lazy_times = true;
                m.desc.links > 0
            };
            if linked {
                self.fs.writeback.note_dirty(inode.ino, inode, 0);
            }
            return Ok(());
        }
        // Reading the inode's block can fail, so it comes before the first change, including the change of size.
        let _table = self.fs.hold_slots([inode])?;
        if let Some(size) = set.size {
            self.set_size(inode, size, set.kill_privileges)?;
        }
        let chmod = set.mode.is_some_and(|m| m & 0o7777 != inode.mode() & 0o7777);
        let mut values = Values::default();
        if let Some(mode) = set.mode.filter(|_| chmod) {
            // The mode also changes the access ACL. Reading the ACL first shows its damage before anything has changed.
            let stored = xattr::chmod_value(&self.fs.xattrs(inode), mode)?;
            values = self.prepare_values(inode, stored.as_slice())?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let owners = {
                let d = &inode.meta.read().desc;
                [set.uid.unwrap_or(d.uid), set.gid.unwrap_or(d.gid), d.projid]
            };
            self.fs.quotas.prepare(self.fs, owners)?;
            self.fs.quotas.may_pass_on(inode, owners)?;
        }
        self.fs.transact_whole(if chmod { credits::CHMOD + values.credits } else { credits::SETATTR }, |handle| {
            // The step that may run out of space comes first: the ACL, whose block other inodes may share.
            if let Some(mode) = set.mode.filter(|_| chmod) {
                self.fs.xattrs(inode).edit(handle, &values, |edit| xattr::chmod_acl(edit, mode))?;
            }
            {
                let mut m = inode.meta.write();
                let d = &mut m.desc;
                if let Some(mode) = set.mode {
                    d.mode = d.mode & MODE_TYPE_MASK | mode & 0o7777;
                }
                let chown = set.uid.is_some() || set.gid.is_some();
                if let Some(uid) = set.uid {
                    d.uid = uid;
                }
                if let Some(gid) = set.gid {
                    d.gid = gid;
                }
                if chown && set.mode.is_none() && FileType::from_mode(d.mode) != Some(FileType::Directory) {
                    d.mode &= !privileges(d.mode);
                }
                if set.size.is_some() {
                    d.mtime = now;
                }
                set.apply_times(d, now);
            }
            let written = self.fs.write_inode(handle, inode);
            set_file_described(handle, inode);
            self.fs.whole(handle, written)
        })
    }

    /// Sets the size of a file. The caller holds its lock exclusively, and sets the times.
    fn set_size(&self, inode: &InodeRef, size: u64, kill_privileges: bool) -> Result<()> {
        match inode.file_type() {
            Some(FileType::Regular) => {}
            Some(FileType::Directory) => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("size of a special file")),
        }
        let content = self.fs.content(inode);
        if kill_privileges {
            content.kill_privileges()?;
        }
        // Setting the same size still frees blocks that were preallocated past the end.
        let cluster_bits = self.fs.geo.block_bits + self.fs.geo.cluster_bits;
        let units = size.div_ceil(1 << cluster_bits) << (cluster_bits - 9);
        if size != inode.size() || content.is_left_behind() || units < inode.meta.read().desc.blocks {
            content.truncate(size)?;
        }
        Ok(())
    }
}

impl Filesystem {
    /// The values for stat(2).
    pub fn getattr(&self, inode: &InodeRef) -> Attr {
        let mut attr = inode.attr(self.geo.block_size);
        // The size on disk is the size of the ciphertext (Linux: `fscrypt_symlink_getattr`).
        let is_encrypted = attr.flags & InodeFlags::ENCRYPT.bits() != 0;
        if is_encrypted
            && inode.file_type() == Some(FileType::Symlink)
            && let Ok(target) = self.read_link(inode)
        {
            attr.size = target.len() as u64;
        }
        attr
    }

    /// Changes attributes and returns the new ones.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::NotPermitted`] because of the inode's flags; [`Error::IsDirectory`],
    /// [`Error::Invalid`], [`Error::FileTooBig`] or [`Error::NoSpace`] for a size; [`Error::QuotaExceeded`] for an
    /// owner.
    pub fn setattr(&self, inode: &InodeRef, set: &SetAttr) -> Result<Attr> {
        let op = Operation::begin(self)?;
        let change = || op.retry_no_space(|| op.set_attributes(inode, set));
        match set.size {
            Some(_) => self.change_data(inode, change)?,
            None => change().and_then(|()| self.honour_sync(&[inode]))?,
        }
        Ok(self.getattr(inode))
    }
}

/// The time that a later read returns. It is clamped to the range of the inode's fields; the bounds have no nanoseconds
/// (Linux: `timestamp_truncate`, fs/inode.c).
fn truncated(t: Timestamp, extra: bool) -> Timestamp {
    let max = if extra { Timestamp::MAX } else { Timestamp::MAX_WITHOUT_EXTRA };
    let stored = t.as_stored(extra);
    if stored.seconds == max.seconds || stored.seconds == Timestamp::MIN.seconds {
        return Timestamp { nanos: 0, ..stored };
    }
    stored
}
