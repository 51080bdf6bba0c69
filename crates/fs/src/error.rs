//! The errors of file system operations. `errno.rs` maps each to its error number.
//!
//! Main types: [`Error`], [`Damage`] (the damaged part of an image), [`Unsupported`].
//!
//! An error names the affected object in its fields. [`Error::place`] returns the inode and the block,
//! [`Error::cause_code`] and [`Error::check`] return the values for the superblock's error fields.

use std::fmt;
use std::sync::Arc;

use extant_cache::Loss;
use extant_mballoc::Error as AllocError;
use extant_ondisk::growth::NoGrowth;
use extant_ondisk::{BlockNr, GroupNr, InodeNr, Structure};

use crate::map::MapError;
use crate::xattr::XattrError;

/// The part of an image that breaks a rule of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The copy of the superblock that begins at this byte.
    SuperBlock {
        /// The offset from the start of the device.
        byte: u64,
    },
    /// A group descriptor.
    GroupDescriptor,
    /// A block bitmap.
    BlockBitmap,
    /// An inode bitmap.
    InodeBitmap,
    /// The fields of an inode, or its checksum.
    Inode,
    /// An extent tree or indirect blocks.
    Map,
    /// A directory's blocks: entries, index, checksums.
    Directory,
    /// The relations between directories: a loop, or a name that refers to a deleted inode.
    Tree,
    /// The target of a symbolic link.
    Symlink,
    /// Attributes, in an inode or a block.
    Xattr,
    /// The orphan list or file.
    Orphans,
    /// The journal's superblock or inode, or a transaction in it.
    Journal,
    /// A quota file.
    Quota,
    /// The MMP block (multi-mount protection).
    Mmp,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Damage::SuperBlock { byte } => return write!(f, "superblock at byte {byte}"),
            Damage::GroupDescriptor => "group descriptor",
            Damage::BlockBitmap => "block bitmap",
            Damage::InodeBitmap => "inode bitmap",
            Damage::Inode => "inode",
            Damage::Map => "map",
            Damage::Directory => "directory",
            Damage::Tree => "tree",
            Damage::Symlink => "symbolic link",
            Damage::Xattr => "attributes",
            Damage::Orphans => "orphans",
            Damage::Journal => "journal",
            Damage::Quota => "quota file",
            Damage::Mmp => "multi-mount protection",
        })
    }
}

impl Damage {
    /// The name of the check that finds the damage, for the superblock's error fields. They have room for 31 bytes;
    /// Linux stores the name of its function.
    pub fn check(self) -> &'static str {
        match self {
            Damage::SuperBlock { .. } => "check_superblock",
            Damage::GroupDescriptor => "check_group_descriptor",
            Damage::BlockBitmap => "check_block_bitmap",
            Damage::InodeBitmap => "check_inode_bitmap",
            Damage::Inode => "check_inode",
            Damage::Map => "check_map",
            Damage::Directory => "check_directory",
            Damage::Tree => "check_tree",
            Damage::Symlink => "check_symlink",
            Damage::Xattr => "check_attributes",
            Damage::Orphans => "check_orphans",
            Damage::Journal => "check_journal",
            Damage::Quota => "check_quota",
            Damage::Mmp => "check_mmp",
        }
    }
}

/// A property of an image that Extant does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The decoder of the format refuses the image: unknown features or sizes.
    #[error("unsupported: {detail}")]
    Format {
        /// The feature or value, as the decoder names it.
        detail: String,
    },
    /// These features allow the mount to read, but not to write.
    #[error("cannot be mounted for writing because of: {}; mount read-only (-o ro)", .reasons.join(", "))]
    Writing {
        /// Features, mostly by the names that e2fsprogs uses; at least one.
        reasons: Vec<String>,
    },
    /// As [`Unsupported::Writing`], for features that the replay of the journal brought to light.
    #[error("after replay, not writable because of: {}", .reasons.join(", "))]
    WritingAfterReplay {
        /// As in [`Unsupported::Writing`].
        reasons: Vec<String>,
    },
    /// A transaction must fit a quarter of the journal, and this journal is too small for that.
    #[error("the journal has {blocks} blocks, at least {least} are needed to write")]
    SmallJournal {
        /// The number of blocks that the journal has.
        blocks: u32,
        /// The number of blocks that it needs.
        least: u32,
    },
    /// The journal contains something that is not supported, or lacks something that is needed.
    #[error("{detail}")]
    Journal {
        /// A complete sentence, for messages.
        detail: String,
    },
    /// The inode is encrypted in a way that is not supported, or its key is too short for that way.
    #[error("{ino} is encrypted, and {detail}")]
    Cipher {
        /// The encrypted inode.
        ino: InodeNr,
        /// The part that is not supported, as the end of a sentence.
        detail: String,
    },
    /// The inode's content is encrypted (ENOKEY).
    #[error("{ino} is encrypted, and there is no key")]
    Content {
        /// The encrypted inode.
        ino: InodeNr,
    },
}

/// Why a mounted file system cannot grow. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotGrow {
    /// The file system cannot have a layout of that size.
    #[error(transparent)]
    Layout(#[from] NoGrowth),
    /// Without a journal, a power cut could leave the change incomplete.
    #[error("it has no journal, and none could be borrowed for the mount")]
    NoLog,
    /// One transaction must hold the changes to all blocks that are reserved for descriptors, and the journal is too
    /// small.
    #[error("its journal is too small: the growth needs a transaction of {needed} blocks, and {most} fit")]
    SmallLog {
        /// The number of blocks that the largest step changes.
        needed: u32,
        /// The number of blocks that a transaction can hold.
        most: u32,
    },
    /// The steps of a growth count blocks, not clusters.
    #[error("its clusters have several blocks (bigalloc); unmount it, and 'extant resize' makes it larger")]
    Clusters,
    /// Each group takes memory for as long as the file system is mounted, so their number is limited.
    #[error("it would have {groups} groups, and no more than {most} are supported")]
    Groups {
        /// The number of groups of the larger file system.
        groups: u32,
        /// The maximum number of groups.
        most: u64,
    },
}

/// Why an operation, or a mount, failed. Error numbers are those that a FUSE mount returns.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The image breaks a rule of the format.
    #[error("{what}{}: {detail}", Place(*.ino, *.block))]
    Corrupt {
        /// The damaged structure.
        what: Damage,
        /// The inode that the structure belongs to, if any.
        ino: Option<InodeNr>,
        /// The block, if it is known.
        block: Option<BlockNr>,
        /// The field, its value and the expected value, for messages.
        detail: String,
    },
    /// The image uses something that Extant does not support; the message names it.
    #[error(transparent)]
    Unsupported(Unsupported),
    /// The device failed a request (EIO; ENOSPC if the disk with the image is full), or refuses changes (EROFS).
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// An operation was left incomplete, or needs more blocks than a transaction can hold (EIO).
    #[error(transparent)]
    Journal(extant_journal::Error),
    /// An earlier error stopped the journal: no more changes are possible.
    #[error("{cause}")]
    Aborted {
        /// The error that stopped it, as reported then.
        cause: extant_journal::Error,
    },
    /// A write did not become durable. Operations that guarantee durability return this, for one inode or for the whole
    /// mount.
    #[error("not durable{}: {cause}", Place(*.ino, None))]
    Lost {
        /// The inode with the lost data or changes; `None` for the whole mount.
        ino: Option<InodeNr>,
        /// Why it could not be written.
        cause: Arc<Error>,
    },
    /// There is no free block that the caller may use (ENOSPC). The reserve for root may still have some.
    #[error("no space left in the file system")]
    NoSpace,
    /// Freed blocks become usable with the next commit. The operation then tries again.
    #[error("no space until the next commit")]
    NoSpaceUntilCommit,
    /// No group has a free inode (ENOSPC).
    #[error("no free inodes")]
    NoInodes,
    /// The operation would exceed a quota limit of the user, the group or the project (EDQUOT).
    #[error("disk quota exceeded")]
    QuotaExceeded,
    /// There is no such name, or no inode of this number (ENOENT).
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already (EEXIST).
    #[error("file exists")]
    Exists,
    /// A part of the path, or the object itself, is not a directory (ENOTDIR).
    #[error("not a directory")]
    NotDirectory,
    /// The operation does not apply to directories (EISDIR).
    #[error("is a directory")]
    IsDirectory,
    /// The directory to remove or replace contains names (ENOTEMPTY).
    #[error("directory not empty")]
    NotEmpty,
    /// A component of a path, or a symbolic link's target, is too long (ENAMETOOLONG).
    #[error("name longer than 255 bytes")]
    NameTooLong,
    /// The mount is read-only, or became read-only after an error (EROFS).
    #[error("the mount is read-only")]
    ReadOnly,
    /// The inode's flags, such as immutable or append-only, forbid it (EPERM).
    #[error("operation not permitted")]
    NotPermitted,
    /// A default ACL on an inode that is not a directory (EACCES).
    #[error("permission denied")]
    AccessDenied,
    /// The content of a file with a Merkle tree does not match the tree, or the tree is missing (EIO).
    #[error("{ino}: {detail}")]
    Unverified {
        /// The file.
        ino: InodeNr,
        /// The place of the mismatch, or the fault of the tree.
        detail: String,
    },
    /// Another host uses the file system (EBUSY).
    #[error("{detail}")]
    Elsewhere {
        /// The other use, and the host.
        detail: String,
    },
    /// The mount's present state does not allow it (EBUSY).
    #[error("{0}")]
    Busy(&'static str),
    /// The request is invalid (EINVAL), with the reason.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The file system cannot become larger, or cannot do so while it is mounted (EINVAL).
    #[error(transparent)]
    CannotGrow(CannotGrow),
    /// The path leads through more than 40 symbolic links (ELOOP).
    #[error("too many levels of symbolic links")]
    TooManySymlinks,
    /// The inode has the maximum number of links (EMLINK).
    #[error("too many links")]
    TooManyLinks,
    /// The end lies beyond what the inode's map can address (EFBIG).
    #[error("the file would grow past the format's limit")]
    FileTooBig,
    /// The inode has no attribute of this name (ENODATA).
    #[error("no such attribute")]
    NoAttribute,
    /// A directory whose files inherit its project accepts no files of another project.
    #[error("it belongs to another project than the directory")]
    OtherProject,
    /// An encrypted directory accepts only files that are encrypted by its own policy (EXDEV).
    #[error("it is not encrypted as the directory is: copy it instead")]
    OtherPolicy,
    /// The name or value of an attribute, or a number, exceeds the format's limit (E2BIG).
    #[error("value or list too large")]
    TooLarge,
    /// This kind of file, or this set of features, does not support the operation (EOPNOTSUPP).
    #[error("operation not supported: {0}")]
    NotSupported(&'static str),
    /// There is no data, or no hole, after the start of a seek (ENXIO).
    #[error("no data or hole there")]
    NoSuchOffset,
    /// An inode number from an earlier lookup; the inode has been deleted since.
    #[error("stale {0}")]
    Stale(InodeNr),
    /// `.` and `..` cannot be renamed.
    #[error("'.' and '..' cannot be renamed")]
    DotName,
    /// The system cannot start another thread.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// The request would need more memory than allowed, regardless of the sizes that the image claims (ENOMEM).
    #[error("{detail}")]
    NoMemory {
        /// The exceeded limit, and how to raise it.
        detail: String,
    },
    /// An image that cannot be mounted, prefixed by its name.
    #[error("{image}: {source}")]
    Mount {
        /// The device's name.
        image: String,
        /// The cause.
        source: Box<Error>,
    },
}

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// The place of damage, for messages: " of inode 12 at block 345".
struct Place(Option<InodeNr>, Option<BlockNr>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ino) = self.0 {
            write!(f, " of {ino}")?;
        }
        match self.1 {
            Some(block) => write!(f, " at {block}"),
            None => Ok(()),
        }
    }
}

/// Linux: `EXT4_ERR_*`, fs/ext4/ext4.h, the values of s_first_error_errcode and s_last_error_errcode.
mod code {
    pub const UNKNOWN: u8 = 1;
    pub const EIO: u8 = 2;
    pub const EFSCORRUPTED: u8 = 5;
    pub const ENOSPC: u8 = 6;
    pub const EROFS: u8 = 8;
}

impl Error {
    /// Damage without a place. [`Error::of`] and [`Error::at`] add it.
    pub fn corrupt(what: Damage, detail: impl Into<String>) -> Error {
        Error::Corrupt { what, ino: None, block: None, detail: detail.into() }
    }

    /// Adds the inode to damage that does not name one.
    #[must_use]
    pub fn of(mut self, inode: InodeNr) -> Error {
        if let Error::Corrupt { ino: ino @ None, .. } = &mut self {
            *ino = Some(inode);
        }
        self
    }

    /// Adds the block to damage that does not name one.
    #[must_use]
    pub fn at(mut self, nr: BlockNr) -> Error {
        if let Error::Corrupt { block: block @ None, .. } = &mut self {
            *block = Some(nr);
        }
        self
    }

    /// Appends advice to the message about damage.
    #[must_use]
    pub(crate) fn advised(mut self, advice: &str) -> Error {
        if let Error::Corrupt { detail, .. } = &mut self {
            detail.push_str("; ");
            detail.push_str(advice);
        }
        self
    }

    /// The error that fsync and similar calls return if `cause` prevented durability.
    pub fn lost(ino: Option<InodeNr>, cause: Error) -> Error {
        match cause {
            Error::Lost { ino: None, cause } => Error::Lost { ino, cause },
            Error::Lost { .. } => cause,
            cause => Error::Lost { ino, cause: Arc::new(cause) },
        }
    }

    /// The inode and the block of the error.
    pub fn place(&self) -> (Option<InodeNr>, Option<BlockNr>) {
        match self {
            Error::Corrupt { ino, block, .. } => (*ino, *block),
            Error::Stale(ino)
            | Error::Unsupported(Unsupported::Content { ino } | Unsupported::Cipher { ino, .. })
            | Error::Unverified { ino, .. } => (Some(*ino), None),
            Error::Lost { ino, cause } => {
                let (of, at) = cause.place();
                (ino.or(of), at)
            }
            Error::Mount { source, .. } => source.place(),
            _ => (None, None),
        }
    }

    /// The byte of the device where a transfer failed.
    pub fn device_offset(&self) -> Option<u64> {
        use extant_block::Error as E;
        match self {
            Error::Device(E::Io { offset, .. } | E::OutOfRange { offset, .. } | E::BadRequest { offset, .. })
            | Error::Journal(extant_journal::Error::Device(
                E::Io { offset, .. } | E::OutOfRange { offset, .. } | E::BadRequest { offset, .. },
            )) => Some(*offset),
            Error::Lost { cause, .. } => cause.device_offset(),
            Error::Mount { source, .. } => source.device_offset(),
            _ => None,
        }
    }

    /// The kind of this error in the superblock's error fields (Linux: `EXT4_ERR_*`).
    pub fn cause_code(&self) -> u8 {
        match self {
            Error::Corrupt { .. } => code::EFSCORRUPTED,
            Error::Device(_) | Error::Journal(_) | Error::Aborted { .. } => code::EIO,
            Error::NoSpace | Error::NoSpaceUntilCommit | Error::NoInodes | Error::QuotaExceeded => code::ENOSPC,
            Error::ReadOnly => code::EROFS,
            Error::Lost { cause, .. } => cause.cause_code(),
            Error::Mount { source, .. } => source.cause_code(),
            _ => code::UNKNOWN,
        }
    }

    /// The check or operation that found the error, for the superblock's error fields.
    pub fn check(&self) -> &'static str {
        match self {
            Error::Corrupt { what, .. } => what.check(),
            Error::Device(_) => "transfer",
            Error::Journal(_) | Error::Aborted { .. } => "journal",
            Error::Lost { cause, .. } => cause.check(),
            Error::Mount { source, .. } => source.check(),
            _ => "operation",
        }
    }

    /// Whether the error is a lack of space, of either kind, or an exceeded quota.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace | Error::NoSpaceUntilCommit | Error::QuotaExceeded)
    }

    /// Whether the image itself is damaged. The option `errors=` decides how the mount reacts.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Error::Corrupt { .. })
    }
}

impl From<extant_ondisk::Error> for Error {
    fn from(e: extant_ondisk::Error) -> Error {
        let (structure, number, detail) = match e {
            extant_ondisk::Error::Corrupt { structure, number, detail } => (structure, number, detail),
            extant_ondisk::Error::Unsupported { detail } => return Error::Unsupported(Unsupported::Format { detail }),
        };
        let group = |what| Error::corrupt(what, format!("{}: {detail}", GroupNr(number as u32)));
        let at_block = |what| Error::corrupt(what, detail.clone()).at(BlockNr(number));
        match structure {
            Structure::Inode => Error::corrupt(Damage::Inode, detail).of(InodeNr(number as u32)),
            Structure::SuperBlock => Error::corrupt(Damage::SuperBlock { byte: number }, detail),
            Structure::GroupDescriptor => group(Damage::GroupDescriptor),
            Structure::BlockBitmap => group(Damage::BlockBitmap),
            Structure::InodeBitmap => group(Damage::InodeBitmap),
            // The root of an extent tree is in the inode, not in a block.
            Structure::ExtentNode if number == 0 => Error::corrupt(Damage::Map, detail),
            Structure::ExtentNode | Structure::IndirectBlock => at_block(Damage::Map),
            Structure::ExtentList => Error::corrupt(Damage::Map, format!("logical block {number}: {detail}")),
            Structure::DirectoryBlock => Error::corrupt(Damage::Directory, format!("block {number} of it: {detail}")),
            Structure::XattrBlock => at_block(Damage::Xattr),
            Structure::OrphanFileBlock => at_block(Damage::Orphans),
            Structure::JournalSuperBlock => Error::corrupt(Damage::Journal, format!("superblock: {detail}")),
            Structure::RevokeBlock | Structure::FastCommit | Structure::PartitionTable => {
                Error::corrupt(Damage::Journal, format!("{structure} {number}: {detail}"))
            }
        }
    }
}

impl From<extant_recovery::read::Error> for Error {
    fn from(e: extant_recovery::read::Error) -> Error {
        match e {
            extant_recovery::read::Error::Device(e) => Error::Device(e),
            extant_recovery::read::Error::Format(e) => e.into(),
        }
    }
}

impl From<Loss<Error>> for Error {
    fn from(loss: Loss<Error>) -> Error {
        Error::lost(Some(loss.inode), loss.cause)
    }
}

impl From<extant_journal::Error> for Error {
    fn from(e: extant_journal::Error) -> Error {
        match e {
            extant_journal::Error::Device(d) => Error::Device(d),
            extant_journal::Error::Format(f) => f.into(),
            aborted @ extant_journal::Error::Aborted { .. } => Error::Aborted { cause: aborted },
            other => Error::Journal(other),
        }
    }
}

impl From<AllocError> for Error {
    fn from(e: AllocError) -> Error {
        match e {
            AllocError::NoSpace { .. } => Error::NoSpace,
            AllocError::NoSpaceUntilCommit { .. } => Error::NoSpaceUntilCommit,
            AllocError::Corrupt { group, block, detail } => {
                Error::corrupt(Damage::BlockBitmap, format!("{group}: {detail}")).at(block)
            }
            AllocError::Invalid { .. } => Error::Invalid("allocation request"),
        }
    }
}

impl From<MapError> for Error {
    fn from(e: MapError) -> Error {
        match e {
            MapError::Corrupt { ino, block, detail } => {
                Error::Corrupt { what: Damage::Map, ino: Some(ino), block, detail }
            }
            MapError::Mapped { ino, lblk } => {
                Error::corrupt(Damage::Map, format!("logical block {lblk} is mapped already")).of(ino)
            }
            MapError::NoSpace { .. } => Error::NoSpace,
            MapError::TooBig { .. } => Error::FileTooBig,
            MapError::Invalid { detail, .. } => Error::Invalid(detail),
        }
    }
}

impl From<XattrError<Error>> for Error {
    fn from(e: XattrError<Error>) -> Error {
        match e {
            XattrError::NotFound { .. } => Error::NoAttribute,
            XattrError::Exists { .. } => Error::Exists,
            XattrError::NameNotSupported { .. } => Error::NotSupported("attributes of this name"),
            XattrError::NameTooLong { .. } => Error::TooLarge,
            XattrError::ValueTooLong { .. } => Error::TooLarge,
            XattrError::NoSpace { .. } => Error::NoSpace,
            XattrError::InvalidAcl { .. } => Error::Invalid("ACL"),
            XattrError::NoDirectory { .. } => Error::AccessDenied,
            XattrError::OnDisk(e) => e.into(),
            XattrError::Store(e) => e,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_and_cause_survive_every_wrapping() {
        let damage = Error::from(MapError::Corrupt { ino: InodeNr(12), block: Some(BlockNr(34)), detail: "x".into() });
        assert_eq!(damage.to_string(), "map of inode 12 at block 34: x");
        let lost = Error::lost(Some(InodeNr(13)), damage.clone().of(InodeNr(99)).at(BlockNr(99)));
        let mount = Error::Mount { image: "i".into(), source: Box::new(Error::lost(None, lost)) };
        assert_eq!(mount.place(), (Some(InodeNr(13)), Some(BlockNr(34))));
        assert_eq!((mount.cause_code(), mount.check()), (5, "check_map"));
        assert!(damage.is_corruption());
    }

    #[test]
    fn an_aborted_journal_keeps_its_cause() {
        let e = Error::from(extant_journal::Error::Aborted { cause: "the disk is gone".into() });
        assert!(matches!(e, Error::Aborted { .. }));
        assert_eq!(e.to_string(), "journal aborted: the disk is gone");
        assert_eq!(e.cause_code(), 2);
    }
}
