//! Content that is stored in the inode itself (`inline_data`; Linux: fs/ext4/inline.c): in `i_block`, and continued in
//! the attribute `system.data`.
//!
//! Main items: [`ROOM`], [`DATA`], and [`fits`], the rule for sizes. The checker and the mount apply the same rule, so
//! the mount can read content that the checker accepts.
//!
//! # Locking
//! None.

use super::FileType;
use crate::xattr::{Name, index};

/// The number of content bytes that fit in `i_block`.
pub const ROOM: usize = 60;
/// The attribute with the rest of the content. It is always in the inode, never in a block.
pub const DATA: Name<'static> = Name { index: index::SYSTEM, suffix: b"data" };

/// Whether an inode of this type may have `size` bytes of content if its attribute has `rest` bytes; `None` if it has
/// no such attribute, not even an empty one. A regular file may be longer than its stored bytes; the rest are zeros
/// (Linux: `ext4_read_inline_data`). Mke2fs stores a file of zeros in this way. A directory and the target of a
/// symbolic link are stored completely.
pub fn fits(kind: Option<FileType>, size: u64, rest: Option<usize>) -> bool {
    rest.is_some_and(|rest| kind == Some(FileType::Regular) || size == (ROOM + rest) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_may_be_longer_than_its_stored_content() {
        for (kind, longer) in [
            (FileType::Regular, true),
            (FileType::Directory, false),
            (FileType::Symlink, false),
            (FileType::Fifo, false),
        ] {
            assert!(fits(Some(kind), 60, Some(0)) && fits(Some(kind), 75, Some(15)));
            assert_eq!(fits(Some(kind), 1 << 40, Some(0)), longer, "{kind:?}");
            assert_eq!(fits(Some(kind), 10, Some(0)), longer, "{kind:?}");
            assert!(!fits(Some(kind), 60, None), "{kind:?}");
        }
        assert!(!fits(None, 1, Some(0)));
    }
}
