//! The reasons why a check is not possible.

/// The reason why a check is not possible. Damage is no error; it is in the report.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The device cannot be read at a necessary place.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// There is no superblock, neither a primary nor a backup.
    #[error("{device}: no ext2, ext3 or ext4 superblock found; name a backup with -b BLOCK -B SIZE")]
    NoSuperblock {
        /// The device's name.
        device: String,
    },
    /// There is no superblock in the requested place.
    #[error("{device}: {why}")]
    BadSuperblock {
        /// The device's name.
        device: String,
        /// The reason.
        why: String,
    },
    /// There is not enough memory for the facts about each block and inode.
    #[error("{device}: not enough memory for a check: {bytes} bytes more are needed")]
    Memory {
        /// The device's name.
        device: String,
        /// The number of bytes that could not be allocated.
        bytes: u64,
    },
    /// The system starts no more threads.
    #[error("no thread can be started: {0}")]
    Thread(String),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
