//! The layout of a larger file system: the consequences of its size, and the bytes of its new groups.
//!
//! Main functions: [`target`] (the superblock of the largest file system in a given size, or the reason why there is
//! none), [`step`] (the next transaction of a growth in steps), [`place`] (the places of new bitmaps and tables),
//! [`new_group`] (descriptor and block bitmap). Main types: [`NoGrowth`], [`ReservedBlocks`] (the blocks of the resize
//! inode).
//!
//! `repair` grows images and `fs` grows mounts; both take the layout from here (Linux: fs/ext4/resize.c).
//!
//! What it does not do: I/O, or handle the descriptors and bitmaps of existing groups.
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

/// The reason why the file system cannot have that size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGrowth {
    /// The file system is larger already.
    #[error("it has {now} bytes, and {asked} are less")]
    Smaller {
        /// The current size, in bytes.
        now: u64,
        /// The requested size, in bytes.
        asked: u64,
    },
    /// No block is reserved for the descriptors of more groups, and `meta_bg` does not place them elsewhere.
    #[error("its descriptors have no room for more than {most} bytes")]
    DescriptorRoom {
        /// The maximum size, in bytes.
        most: u64,
    },
    /// Block numbers have only 32 bits.
    #[error("without the feature 64bit it has no more than 2^32 - 1 blocks, which are {most} bytes")]
    BlockNumbers {
        /// The maximum size, in bytes.
        most: u64,
    },
    /// The resize inode has block numbers of 32 bits, and no more backups than a block has pointers.
    #[error("its resize inode cannot name the blocks that descriptors of that many groups need")]
    ResizeInode,
    /// Inode numbers have only 32 bits.
    #[error("every group has {per_group} inodes, and that many groups would have more than 2^32 - 1")]
    InodeNumbers {
        /// The number of inodes in each group.
        per_group: u32,
    },
    /// `resize_inode` and `meta_bg` exclude each other, because both determine the place of descriptors.
    #[error("it has both features resize_inode and meta_bg, which exclude each other")]
    Descriptors,
    /// The larger layout breaks a rule of the format.
    #[error("the larger layout is not valid: {0}")]
    Layout(crate::Error),
    /// The bitmaps and inode tables do not fit in the new groups.
    #[error("the bitmaps and inode tables of the new groups do not fit")]
    Tables,
}

#[cfg(test)]
mod tests;
