//! A growth in steps has the same result as a growth at once, and new groups and reserved blocks have the right bytes.
//!
//! # Locking
//! None.

use zerocopy::IntoBytes;

use super::*;
use crate::features::{Compat, Incompat, RoCompat};
use crate::superblock::{Layout, LayoutRequest, SuperBlock};
use crate::{GroupNr, indirect};

fn made(blocks: u64, change: impl FnOnce(&mut LayoutRequest)) -> SuperBlock {
    let mut wanted = LayoutRequest {
        compat: Compat::RESIZE_INODE,
        incompat: Incompat::FILETYPE | Incompat::BIT64 | Incompat::EXTENTS | Incompat::FLEX_BG,
        ro_compat: RoCompat::SPARSE_SUPER | RoCompat::METADATA_CSUM,
        revision: 1,
        block_size: 1024,
        cluster_size: 1024,
        blocks_count: blocks,
        reserved_blocks: blocks / 20,
        per_group: 0,
        inodes_count: (blocks / 8) as u32,
        inode_size: 256,
        log_groups_per_flex: 4,
        reserved_gdt_blocks: None,
        first_meta_bg: 0,
        backup_groups: [0; 2],
        stride: 0,
        stripe_width: 0,
        uuid: [7; 16],
        hash_seed: [9; 16],
        label: Vec::new(),
        last_mounted: Vec::new(),
        time: 1_700_000_000,
        errors: 1,
        default_mount_opts: 0,
        desc_size: 0,
        creator_os: 0,
        test_filesystem: false,
        encoding: (0, 0),
        mmp_interval: 0,
    };
    change(&mut wanted);
    SuperBlock::create(&Layout::compute(&wanted).expect("laid out")).expect("created")
}

#[test]
fn steps_end_where_the_growth_at_once_does() {
    let kinds: [fn(&mut LayoutRequest); 4] = [
        |_| {},
        |wanted| wanted.incompat -= Incompat::FLEX_BG,
        |wanted| {
            wanted.incompat |= Incompat::META_BG;
            wanted.compat = Compat::empty();
        },
        |wanted| (wanted.block_size, wanted.cluster_size) = (4096, 4096),
    ];
    for change in kinds {
        let begin = made(20_000, change);
        let goal = target(&begin, (begin.blocks_count << begin.block_bits) * 17 + 5000, Backups::Stay).expect("grows");
        let (mut now, mut steps) = (begin.clone(), 0);
        while now.blocks_count < goal.blocks_count {
            let next = step(&begin, &now, goal.blocks_count).expect("a step");
            assert!(next.blocks_count > now.blocks_count);
            let is_longer = next.group_count == now.group_count;
            let tables = place(&next, now.group_count).expect("placed");
            assert_eq!(tables.len() as u32, next.group_count - now.group_count);
            assert!(is_longer || now.blocks_in_group(GroupNr(now.group_count - 1)) == now.blocks_per_group);
            // Everything past the old end is in groups that this step adds.
            assert!(tables.iter().flatten().all(|block| block.0 >= now.blocks_count && next.contains(*block)));
            (now, steps) = (next, steps + 1);
        }
        assert!(now.raw().as_bytes() == goal.raw().as_bytes());
        assert!(steps > 1);
    }
}

#[test]
fn new_groups_count_their_own_tables_as_used() {
    let begin = made(8193, |_| {});
    let goal = target(&begin, 65 << 20, Backups::Stay).expect("grows");
    let tables = place(&goal, 1).expect("placed");
    let mut bits = vec![0; 1024];
    let mut used = 0;
    for group in 1..goal.group_count {
        let around = neighbours(&goal, 1, group);
        let (first, end) = ((around.start - 1) as usize, (around.end - 1) as usize);
        let desc = new_group(&goal, GroupNr(group), GroupNr(around.start), &tables[first..end], &mut bits);
        used += u64::from(goal.clusters_in_group(GroupNr(group)) - desc.free_clusters);
        desc.check_locations(GroupNr(group), &goal).expect("a place of its own");
    }
    let overhead = |sb: &SuperBlock| sb.overhead_blocks();
    // Blocks that were reserved for descriptors belong to the old group before and after the growth.
    assert_eq!(used, overhead(&goal) - overhead(&begin));
}

#[test]
fn reserved_blocks_name_their_copies() {
    let sb = made(100_000, |_| {});
    let reserved = ReservedBlocks::new(&sb);
    let (double, first) = (reserved.double().expect("fits"), reserved.blocks().next().expect("reserved"));
    assert_eq!(indirect::pointer(&double, sb.desc_blocks as usize), Some(first.0 as u32));
    let copies = reserved.copies(first).expect("fits");
    let group = sb.backup_groups().next().expect("a backup");
    assert_eq!(
        u64::from(indirect::pointer(&copies, 0).expect("named")),
        sb.first_block_of_group(group).0 + 1 + u64::from(sb.desc_blocks)
    );
}

#[test]
fn a_growth_needs_room_for_descriptors() {
    let none = made(8193, |wanted| wanted.compat = Compat::empty());
    let most = 8192 * u64::from(none.descs_per_block()) + 1;
    let refused = target(&none, (most + 8192) << 10, Backups::Stay).expect_err("no room");
    assert!(matches!(refused, NoGrowth::DescriptorRoom { .. }), "{refused}");
    let narrow = made(8193, |wanted| wanted.incompat -= Incompat::BIT64);
    let refused = target(&narrow, 1 << 43, Backups::Stay).expect_err("32 bits");
    assert!(matches!(refused, NoGrowth::BlockNumbers { .. }), "{refused}");
    let smaller = target(&narrow, 1 << 20, Backups::Stay).expect_err("smaller");
    assert!(matches!(smaller, NoGrowth::Smaller { .. }), "{smaller}");
}
