//! The layout of a larger file system: what its size decides, and the bytes of its new groups.
//!
//! Main functions: [`target`] (the superblock of the largest file system in so many bytes, or why there is none),
//! [`step`] (the next transaction of a growth in steps), [`place`] (where new bitmaps and tables lie), [`new_group`]
//! (descriptor and block bitmap). Main types: [`NoGrowth`], [`ReservedBlocks`] (the blocks of the resize inode).
//!
//! Images are grown by `repair`, mounts by `fs`: both take the layout from here (Linux: fs/ext4/resize.c).
//!
//! What it does not do: I/O, and the descriptors and bitmaps of groups that exist already.
//!
//! # Locking
//! None.

mod group;
mod place;
mod reserved;
mod target;

pub use self::group::new_group;
pub use self::place::{Tables, neighbours, place};
pub use self::reserved::ReservedBlocks;
pub use self::target::{Backups, step, target};

/// Why there is no such larger file system.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGrowth {
    /// It is larger already.
    #[error("it has {now} bytes, and {asked} are less")]
    Smaller {
        /// Its bytes.
        now: u64,
        /// The bytes it was to have.
        asked: u64,
    },
    /// No block is reserved for descriptors of more groups, and `meta_bg` does not place them elsewhere.
    #[error("its descriptors have no room for more than {most} bytes")]
    DescriptorRoom {
        /// The most bytes that it can have.
        most: u64,
    },
    /// Block numbers have 32 bits.
    #[error("without the feature 64bit it has no more than 2^32 - 1 blocks, which are {most} bytes")]
    BlockNumbers {
        /// The most bytes that it can have.
        most: u64,
    },
    /// The resize inode names blocks with 32 bits, and as many backups as a block has pointers.
    #[error("its resize inode cannot name the blocks that descriptors of that many groups need")]
    ResizeInode,
    /// Inode numbers have 32 bits.
    #[error("every group has {per_group} inodes, and that many groups would have more than 2^32 - 1")]
    InodeNumbers {
        /// Inodes of a group.
        per_group: u32,
    },
    /// Both decide where descriptors lie.
    #[error("it has both features resize_inode and meta_bg, which exclude each other")]
    Descriptors,
    /// The numbers break a rule of the format.
    #[error("the larger layout is not valid: {0}")]
    Layout(crate::Error),
    /// Bitmaps and inode tables do not fit the new groups.
    #[error("the bitmaps and inode tables of the new groups do not fit")]
    Tables,
}

#[cfg(test)]
mod tests;
