//! Types for units, so that a block number is not mistaken for an inode number.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $int:ty, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

unit!(
    /// A physical block of the file system, counted from the start of the device (Linux: `ext4_fsblk_t`).
    BlockNr,
    u64,
    "block"
);
unit!(
    /// A block within a file (Linux: `ext4_lblk_t`).
    LogicalBlock,
    u32,
    "logical block"
);
unit!(
    /// A block group (Linux: `ext4_group_t`).
    GroupNr,
    u32,
    "group"
);
unit!(
    /// An inode number, counted from 1.
    InodeNr,
    u32,
    "inode"
);

impl InodeNr {
    /// The root directory.
    pub const ROOT: InodeNr = InodeNr(2);
    /// The resize inode, whose blocks must never be touched.
    pub const RESIZE: InodeNr = InodeNr(7);
    /// The journal.
    pub const JOURNAL: InodeNr = InodeNr(8);
}
