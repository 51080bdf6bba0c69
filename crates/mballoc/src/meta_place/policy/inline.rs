//! `inline`: each indirect block is directly in front of the data that it maps, as ext3 laid out files without delayed
//! allocation. Linux: `ext3_get_blocks_handle`, `ext3_alloc_blocks`, fs/ext3/inode.c, and the reservation windows of
//! fs/ext3/balloc.c.
//!
//! Data is chosen before it is mapped. So the request for data names the missing indirect blocks, and the allocator
//! searches for a run with room for both. It sets the first blocks aside for the indirect blocks (`crate::prealloc`).
//! Behind the data it places the file's preallocation, up to the end of the range that the same indirect block maps.
//! The run of the next range then begins with its own indirect block.
//!
//! If there is no such run, and for everything except files without extents, it acts as `vanilla`.
//!
//! # Locking
//! None.

use super::MetaPlace;

/// This policy has no state.
pub struct Inline;

impl MetaPlace for Inline {
    fn in_front(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use extant_ondisk::indirect::PointerBlock;
    use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

    use crate::tests::model::*;
    use crate::{Allocator, InodePreallocation, MetaPolicy, Options, Pointers, Request};

    fn mount(store: &Arc<ModelStore>) -> Allocator<ModelStore> {
        allocator(store, Options { meta_policy: MetaPolicy::Inline, locality_groups: 1, ..Options::default() })
    }

    /// Allocates 20 blocks of data from the first block of an array of 64 pointers on, with two pointer blocks missing.
    fn data(a: &Allocator<ModelStore>, owner: &InodePreallocation) -> (BlockNr, u32) {
        let (blocks, end) = pointer_blocks(64, 2);
        let pointers = Some(Pointers { owner, blocks: &blocks, end });
        let request = Request { pointers, ..Request::data(owner, None, LogicalBlock(64), 20, 84) };
        extent(a.allocate(&mut Txn::default(), &request).expect("data"))
    }

    fn pointer_block(a: &Allocator<ModelStore>, owner: &InodePreallocation, which: PointerBlock) -> BlockNr {
        let pointers = Some(Pointers { owner, blocks: &[which], end: 0 });
        let request = Request { pointers, ..Request::metadata(None, 1) };
        a.allocate(&mut Txn::default(), &request).expect("a pointer block").start
    }

    #[test]
    fn pointer_blocks_lie_in_front_of_their_data_in_one_run() {
        let store = Arc::new(ModelStore::new(geometry(2, 1024, 500)));
        let a = mount(&store);
        let owner = InodePreallocation::new(InodeNr(12));
        let (start, len) = data(&a, &owner);
        assert_eq!((len, owner.blocks()), (20, 2 + 44), "the preallocation reaches the end of the array");
        let (blocks, _) = pointer_blocks(64, 2);
        // The pointer blocks may be used in any order.
        assert_eq!(pointer_block(&a, &owner, blocks[1]).0, start.0 - 1);
        assert_eq!(pointer_block(&a, &owner, blocks[0]).0, start.0 - 2);
        let more = Request::data(&owner, None, LogicalBlock(84), 100, 184);
        let got = a.allocate(&mut Txn::default(), &more).expect("more");
        assert_eq!((got.start.0, got.len), (start.0 + 20, 44));
        assert_agrees(&a, &store);
    }

    #[test]
    fn no_pointer_block_is_set_aside_if_no_run_has_room_for_both() {
        let store = Arc::new(ModelStore::new(geometry(2, 1024, 500)));
        for group in 0..2 {
            (0..store.geometry.blocks_in_group(extant_ondisk::GroupNr(group)))
                .filter(|index| index % 3 == 0)
                .for_each(|index| store.set(group, index, 1, Block::Used));
        }
        let a = mount(&store);
        let owner = InodePreallocation::new(InodeNr(12));
        assert_eq!(data(&a, &owner).1, 2, "all adjacent free blocks");
        assert!(owner.is_empty());
        assert_agrees(&a, &store);
    }

    #[test]
    fn a_full_disk_discards_blocks_set_aside_for_pointer_blocks() {
        let store = Arc::new(ModelStore::new(geometry(1, 1024, 1024)));
        let a = mount(&store);
        let owner = InodePreallocation::new(InodeNr(12));
        data(&a, &owner);
        let free = a.free_blocks();
        let mut got = 0;
        while let Ok(x) = a.allocate(&mut Txn::default(), &Request::metadata(None, 50)) {
            got += u64::from(x.len);
        }
        assert_eq!((got, store.count(Block::Free)), (free, 0));
        assert_agrees(&a, &store);
    }
}
