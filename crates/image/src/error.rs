//! Why an image could not be opened.

use std::path::PathBuf;
use std::sync::Arc;

use extant_block::BusyBy;
use extant_block::device::KernelMount;
use extant_ondisk::partition::Partition;

use crate::formats::Format;
use crate::holder::Holder;
use crate::member::Member;

/// Why an image could not be opened. Messages begin with the name of the image, or of the file that could not be
/// read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The image, or the device under it, failed.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// A file of the host that shows the users of an image cannot be read.
    #[error("{}: {source}", path.display())]
    Host {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: Arc<std::io::Error>,
    },
    /// The image begins like another format.
    #[error("{image}: no ext2/3/4 file system, but {}", format.name())]
    Foreign {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// The other format.
        format: &'static Format,
        /// A copy of an ext superblock is still there: the other format was written over a file system.
        backup: Option<Backup>,
    },
    /// The image is a disk of a virtual machine, and the program that shows it is not installed.
    #[error("{image}: {} is used through {program}, which is not installed", format.name())]
    NoProgram {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// The disk's format.
        format: &'static Format,
        /// The missing program.
        program: &'static str,
    },
    /// The program that shows the image fails.
    #[error("{image}: {program}: {why}")]
    Program {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// The program.
        program: &'static str,
        /// Its message.
        why: String,
    },
    /// The image's name begins like an NBD address and is not one.
    #[error("{image}: {why}")]
    Address {
        /// The name.
        image: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// There is no usable superblock: the primary is unsound and no backup is found, or the primary has unknown
    /// features.
    #[error("{image}: {source}")]
    SuperBlock {
        /// The device's name.
        image: String,
        /// The damage of the primary.
        source: extant_ondisk::Error,
    },
    /// The partition table is damaged.
    #[error("{image}: {source}")]
    Table {
        /// The device's name.
        image: String,
        /// The damage of the table.
        source: extant_ondisk::Error,
    },
    /// The caller named a partition, and there is no partition table.
    #[error("{image}: partition {number} wanted, but there is no partition table")]
    NoTable {
        /// The device's name.
        image: String,
        /// The partition that the caller named.
        number: u32,
    },
    /// There is no partition of this number.
    #[error("{image}: no partition {number}")]
    NoPartition {
        /// The device's name.
        image: String,
        /// The partition that the caller named.
        number: u32,
        /// The existing partitions.
        partitions: Vec<Partition>,
    },
    /// The caller named no partition of a whole disk, and not exactly one has ext2/3/4.
    #[error("{image}: {with_ext} of its partitions have an ext2/3/4 superblock: name one")]
    Ambiguous {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// How many have a superblock.
        with_ext: usize,
        /// All partitions.
        partitions: Vec<Partition>,
    },
    /// No file system can begin at this byte.
    #[error("{image}: offset {offset} {why}")]
    Offset {
        /// The image's name, without its part.
        image: String,
        /// The offset that the caller named.
        offset: u64,
        /// The rule that it breaks.
        why: BadOffset,
    },
    /// The image is to be written, and is read-only.
    #[error("{image}: may only be read")]
    ReadOnly {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: String,
    },
    /// The image is to be written, and is one device of several: a write would make them differ.
    #[error("{image}: {} (byte {})", member.name, member.byte)]
    Member {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// Its owner.
        member: Member,
    },
    /// Another process uses the image.
    #[error("{image}: in use: {}", holder.description_or(by))]
    InUse {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// The users of the image, as far as they are known.
        holder: Box<Holder>,
        /// The user that the device's open found.
        by: BusyBy,
    },
    /// The image is to be written, and a loop device of the kernel may write it, too.
    #[error("{image}: in use by {device}")]
    Loop {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// `/dev/loopN`.
        device: String,
        /// Its mount, if it is mounted.
        mounted: Option<KernelMount>,
    },
    /// Another process has opened a block device exclusively that was ours before.
    #[error("{image}: another process has opened it exclusively")]
    Taken {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: String,
    },
    /// Another process has opened a block device exclusively that was ours before, and has written to it.
    #[error("{image}: another process has changed it")]
    Changed {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: String,
    },
}

/// Which rule an offset breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOffset {
    /// File systems begin at a sector.
    #[error("is not a multiple of 512")]
    Unaligned,
    /// It lies behind the image.
    #[error("is past the end")]
    PastEnd,
}

/// Where a backup of a superblock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Its place in blocks of its file system.
    pub block: u64,
    /// Its first byte.
    pub byte: u64,
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
