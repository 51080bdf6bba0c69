//! Why a check could not be made.

/// Why a check could not be made. Damage is no error: it is in the report.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The device cannot be read where it must be.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// There is no superblock, neither a primary nor a backup.
    #[error("{device}: no ext2, ext3 or ext4 superblock found; name a backup with -b BLOCK -B SIZE")]
    NoSuperblock {
        /// [`extant_block::BlockDevice::name`].
        device: String,
    },
    /// The superblock that was asked for is none.
    #[error("{device}: {why}")]
    BadSuperblock {
        /// [`extant_block::BlockDevice::name`].
        device: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no memory for what is known of each block and inode.
    #[error("{device}: not enough memory for a check: {bytes} bytes more are needed")]
    Memory {
        /// [`extant_block::BlockDevice::name`].
        device: String,
        /// The bytes that the system did not give.
        bytes: u64,
    },
    /// The system gives no more threads.
    #[error("no thread can be started: {0}")]
    Thread(String),
}

/// What this crate answers.
pub type Result<T> = std::result::Result<T, Error>;
