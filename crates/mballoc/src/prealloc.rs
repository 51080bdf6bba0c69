//! Preallocation.

use extant_ondisk::InodeNr;

/// The preallocations of one inode; lives in the in-core inode. Linux: `i_prealloc_node` of `struct ext4_inode_info`.
///
/// Give them back with [`crate::Allocator::discard_preallocations`] before truncate, punch and eviction, and when the last
/// writer closes the file. Dropping it without doing so loses nothing: the blocks come back when space gets short.
#[derive(Debug)]
pub struct InodePreallocation {
    #[allow(dead_code)]
    ino: InodeNr,
}

impl InodePreallocation {
    pub const fn new(ino: InodeNr) -> InodePreallocation {
        InodePreallocation { ino }
    }
}
