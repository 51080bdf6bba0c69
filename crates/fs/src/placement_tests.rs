//! Goals, owners and counts of [`Placement`], on images of the oracle.

use std::sync::Arc;

use extant_mballoc::MetaRole;

use super::*;
use crate::{Filesystem, MountOptions, Mounted};

fn mounted(kind: &[&str], size: &str) -> Mounted {
    let options = MountOptions { threads: false, ..MountOptions::default() };
    Filesystem::mount(Arc::new(crate::tools::made(kind, size)), options).expect("mounted")
}

/// Kernel: `ext4_inode_to_goal_block`. From four groups on, a flex group keeps its first group for directories.
#[test]
fn the_goal_of_an_inode_is_its_group_or_the_place_in_its_flex_group() {
    for (flex, group, of_file, of_dir) in [
        (1, 0, 0, 0),
        (1, 5, 5, 5),
        (2, 5, 5, 5),
        (4, 0, 1, 0),
        (4, 3, 1, 0),
        (4, 4, 5, 4),
        (16, 6, 1, 0),
        // The last flex group has one group, so there is no second one for files.
        (4, 8, 8, 8),
    ] {
        let flex = flex.to_string();
        let fs = mounted(&["-t", "ext4", "-b", "1024", "-g", "1024", "-G", &flex, "-N", "1152"], "9M");
        let placement = &fs.placement;
        assert_eq!(placement.groups.count(), 9);
        let ino = InodeNr(group * placement.geo.inodes_per_group + 1);
        for (kind, goal) in [(FileType::Regular, of_file), (FileType::Directory, of_dir)] {
            let first = placement.geo.first_block_of_group(GroupNr(goal));
            assert_eq!(placement.inode_goal(ino, Some(kind)), first, "flex {flex}, group {group}, {kind:?}");
        }
    }
}

#[test]
fn no_file_owns_a_block_of_the_file_system_itself_or_one_that_does_not_exist() {
    let dev = crate::tools::made(&["-t", "ext4", "-b", "1024"], "16M");
    let journal: u64 = crate::tools::debugfs(&dev, "bmap <8> 0").trim().parse().expect("a block");
    let options = MountOptions { threads: false, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::new(dev), options).expect("mounted");
    let (placement, geo) = (&fs.placement, &fs.geo);
    let blocks = geo.blocks_count;
    let free: Vec<u64> = (0..blocks).filter(|b| placement.may_be_owned(BlockNr(*b), 1)).collect();
    assert!(free.len() as u64 > blocks / 2);
    for b in [0, blocks, u64::MAX] {
        assert!(!placement.may_be_owned(BlockNr(b), 1), "{b}");
    }
    assert!(!placement.may_be_owned(BlockNr(blocks - 1), 2), "a run beyond the end");
    assert!(!placement.may_be_owned(BlockNr(blocks - 1), u64::MAX), "a length that overflows");
    for group in (0..placement.groups.count()).map(GroupNr) {
        let own = placement
            .groups
            .with(group, |d| [(d.block_bitmap, 1), (d.inode_bitmap, 1), (d.inode_table, geo.inode_table_blocks)])
            .expect("a descriptor");
        for (start, len) in own {
            for b in start.0..start.0 + u64::from(len) {
                assert!(!placement.may_be_owned(BlockNr(b), 1), "{group}: {b}");
            }
            assert!(!placement.may_be_owned(BlockNr(start.0 - 1), 2), "a run that ends in it");
        }
    }
    assert!(!placement.may_be_owned(BlockNr(journal), 1), "the journal");
}

#[test]
fn allocated_blocks_leave_the_counts_and_freed_ones_come_back_with_the_commit() {
    let fs = mounted(&["-t", "ext4", "-b", "1024", "-m", "5"], "16M");
    let placement = &fs.placement;
    let counts = || {
        let s = placement.statfs(false, 0);
        (s.blocks_free, s.blocks_available)
    };
    let (free, available) = counts();
    assert_eq!(free - available, placement.reserve.kept_back(), "unprivileged callers do not see the reserve");
    assert!(placement.reserve.kept_back() > 0);
    let owner = (MetaRole::Directory, InodeNr::ROOT);
    let home = placement.inode_goal(InodeNr::ROOT, Some(FileType::Directory));
    let mut handle = fs.start(4).expect("handle");
    let block = placement.allocate_meta_block(&mut handle, owner, home, None, Caller::ROOT).expect("a block");
    handle.finish();
    assert_eq!(counts(), (free - 1, available - 1));
    let mut handle = fs.start(4).expect("handle");
    assert_eq!(placement.free_blocks(&mut handle, InodeNr::ROOT, block, 1).expect("freed"), [(block, 1)]);
    handle.finish();
    fs.sync().expect("committed");
    assert_eq!(counts(), (free, available));
}

/// Blocks that cannot be freed stay in use, and the damage waits for a moment without locks.
#[test]
fn blocks_that_no_file_may_own_are_not_freed() {
    let fs = mounted(&["-t", "ext4", "-b", "1024"], "16M");
    let placement = &fs.placement;
    let table = placement.groups.with(GroupNr(0), |d| d.inode_table).expect("a descriptor");
    let before = placement.statfs(false, 0);
    for (start, len) in [(table, 1), (BlockNr(0), 1), (BlockNr(fs.geo.blocks_count - 1), 4)] {
        let mut handle = fs.start(8).expect("handle");
        let freed = placement.free_blocks(&mut handle, InodeNr(12), start, len).expect("survives");
        handle.finish();
        assert_eq!(freed, [], "{start}");
        let damage = placement.groups.take_damage();
        assert!(!damage.is_empty() && damage.iter().all(Error::is_corruption), "{start}: {damage:?}");
    }
    assert_eq!(placement.statfs(false, 0), before);
}

#[test]
fn the_overhead_counts_as_blocks_only_if_a_mount_asks_for_it() {
    let fs = mounted(&["-t", "ext4", "-b", "1024"], "16M");
    let [all, usual] = [true, false].map(|all| fs.placement.statfs(all, 7));
    assert_eq!(all.blocks, fs.geo.blocks_count);
    // mke2fs stores the same number.
    let stored = fs.superblock().raw().s_overhead_clusters.get();
    assert_eq!(all.blocks - usual.blocks, u64::from(stored));
    assert_eq!(StatFs { blocks: all.blocks, ..usual }, all);
}
