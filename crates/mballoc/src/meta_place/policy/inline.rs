//! `inline`: each pointer block lies directly in front of the data that it maps, as ext3 laid files out without delayed
//! allocation. Linux: `ext3_get_blocks_handle`, `ext3_alloc_blocks`, fs/ext3/inode.c, and the reservation windows of
//! fs/ext3/balloc.c.
//!
//! Data is chosen before it is mapped. So the request for data names the pointer blocks that are missing, and the
//! allocator looks for a run with room for both, sets the first blocks aside for the pointer blocks and lays out the
//! file's preallocation behind the data, to the end of what the array of pointers maps. The next array then begins with
//! its own pointer block.
//!
//! Where there is no such run, and for everything else than the files of an image without extents, it is `vanilla`.
//!
//! # Locking
//! None.

use super::MetaPlace;

/// No state at all.
pub struct Inline;

impl MetaPlace for Inline {
    fn in_front(&self) -> bool {
        true
    }
}
