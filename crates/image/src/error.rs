//! Why an image could not be opened.

use std::path::PathBuf;
use std::sync::Arc;

use extant_block::device::KernelMount;
use extant_ondisk::partition::Partition;

use crate::formats::Format;
use crate::holder::Holder;

/// Why an image could not be opened. Messages begin with the name of the image, or of what else did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The image, or the device it is on, does not answer.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// A file of the host that says who has what does not answer.
    #[error("{}: {source}", path.display())]
    Host {
        /// The file.
        path: PathBuf,
        /// The answer of the system.
        source: Arc<std::io::Error>,
    },
    /// The image begins like another format.
    #[error("{image}: no ext2/3/4 file system, but {}", format.name())]
    Foreign {
        /// As [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// Which.
        format: &'static Format,
        /// A copy of an ext superblock is still there: the other format was written over a file system.
        backup: Option<Backup>,
    },
    /// There is no superblock that can be used: the primary is unsound and no backup is found, or the primary has
    /// features that are not known.
    #[error("{image}: {source}")]
    SuperBlock {
        /// The device's name.
        image: String,
        /// What is wrong with the primary.
        source: extant_ondisk::Error,
    },
    /// The partition table is damaged.
    #[error("{image}: {source}")]
    Table {
        /// The device's name.
        image: String,
        /// What is wrong with it.
        source: extant_ondisk::Error,
    },
    /// A partition was asked for, and there is no partition table.
    #[error("{image}: partition {number} wanted, but there is no partition table")]
    NoTable {
        /// The device's name.
        image: String,
        /// What was asked for.
        number: u32,
    },
    /// There is no partition of this number.
    #[error("{image}: no partition {number}")]
    NoPartition {
        /// The device's name.
        image: String,
        /// What was asked for.
        number: u32,
        /// Those that there are.
        partitions: Vec<Partition>,
    },
    /// A whole disk of which no partition was named, and not exactly one has ext2/3/4.
    #[error("{image}: {with_ext} of its partitions have an ext2/3/4 superblock: name one")]
    Ambiguous {
        /// As [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// How many have a superblock.
        with_ext: usize,
        /// All of them.
        partitions: Vec<Partition>,
    },
    /// No file system can begin at this byte.
    #[error("{image}: offset {offset} {why}")]
    Offset {
        /// The image, without its part.
        image: String,
        /// What was asked for.
        offset: u64,
        /// The rule that it breaks.
        why: BadOffset,
    },
    /// The image is to be written, and may only be read.
    #[error("{image}: may only be read")]
    ReadOnly {
        /// As [`crate::ImageSpec::shown`] gives it.
        image: String,
    },
    /// Somebody else has it.
    #[error("{image}: in use: {}", holder.who_or(by))]
    InUse {
        /// As [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// Who, as far as it can be found out.
        holder: Box<Holder>,
        /// What the device said.
        by: String,
    },
    /// The image is to be written, and a loop device of the kernel may write it, too.
    #[error("{image}: in use by {device}")]
    Loop {
        /// As [`crate::ImageSpec::shown`] gives it.
        image: String,
        /// `/dev/loopN`.
        device: String,
        /// Where it is mounted, if it is.
        mounted: Option<KernelMount>,
    },
    /// Somebody else has a block device that we had claimed.
    #[error("{image}: somebody else has it")]
    Taken {
        /// As [`crate::ImageSpec::shown`] gives it.
        image: String,
    },
    /// Somebody else has had a block device that we had claimed, and has written to it.
    #[error("{image}: somebody else has changed it")]
    Changed {
        /// As [`crate::ImageSpec::shown`] gives it.
        image: String,
    },
}

/// Which rule an offset breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOffset {
    /// Nothing begins within a sector.
    #[error("is no multiple of 512")]
    Unaligned,
    /// It lies behind the image.
    #[error("is past the end")]
    PastEnd,
}

/// Where a backup of a superblock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backup {
    /// In blocks of its file system.
    pub block: u64,
    /// Its first byte.
    pub byte: u64,
}

/// What this crate answers.
pub type Result<T> = std::result::Result<T, Error>;
