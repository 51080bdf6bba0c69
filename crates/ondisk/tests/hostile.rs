//! Bytes changed at random, with corrected checksums: decoding fails or returns something harmless, and nothing
//! panics.

mod common;

use common::{Image, make};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::{self, InodeDesc};
use extant_ondisk::superblock::{Geometry, RawSuperBlock, SUPERBLOCK_OFFSET, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap, features};
use proptest::prelude::*;
use std::sync::LazyLock;
use zerocopy::{FromBytes, IntoBytes};

/// One image per way to protect descriptors and inodes.
static IMAGES: LazyLock<Vec<Image>> = LazyLock::new(|| {
    [
        "-t ext4 -b 1024 -O metadata_csum,64bit",
        "-t ext4 -b 4096 -O ^metadata_csum,uninit_bg",
        "-t ext3 -b 2048 -I 128",
        "-t ext4 -b 1024 -O meta_bg,^resize_inode",
        "-t ext4 -b 1024 -O bigalloc -C 4096",
    ]
    .into_iter()
    .map(|arguments| {
        let image = make(arguments, "32M");
        // A static is never dropped, and its bytes are in memory.
        std::fs::remove_dir_all(image.dir.path()).unwrap();
        image
    })
    .collect()
});

/// Offsets and values that land on fields often enough to be interesting.
fn changes(size: usize) -> impl Strategy<Value = Vec<(usize, u8)>> {
    let value = prop_oneof![Just(0u8), Just(0xff), Just(0x80), Just(1), any::<u8>()];
    prop::collection::vec((0..size, value), 1..12)
}

/// Makes every call that a mount makes on a geometry.
fn exercise(geometry: &Geometry) {
    let last = geometry.group_count() - 1;
    let mut block = vec![0; geometry.block_size as usize];
    for number in [0, 1, 2, last / 2, last.saturating_sub(1), last, last.wrapping_add(1), u32::MAX] {
        let group = GroupNr(number);
        let first = geometry.first_block_of_group(group);
        assert!(geometry.clusters_in_group(group) <= geometry.blocks_in_group(group));
        if let Some((home, offset)) = geometry.group_of_block(first) {
            assert_eq!((home, offset), (group, 0));
        }
        for (start, count) in geometry.base_metadata(group).ranges() {
            assert!(start.0 + u64::from(count) <= geometry.blocks_count);
        }
        if let Some((at, offset)) = geometry.group_desc_block(group) {
            assert!(offset + geometry.desc_size <= block.len() && at.0 < geometry.blocks_count + 2);
        }
        bitmap::init_block_bitmap(&mut block, group, [], geometry);
        geometry.super_location(group);
        geometry.inode_at(group, geometry.inodes_per_group - 1);
    }
    bitmap::init_inode_bitmap(&mut block, geometry);
    for ino in [0, 1, 2, geometry.inodes_count, u32::MAX] {
        if let Ok(place) = geometry.inode_location(InodeNr(ino)) {
            assert!(place.group.0 < geometry.group_count && place.table_block < geometry.inode_table_blocks);
            assert!(place.offset + geometry.inode_size <= geometry.block_size as usize);
        }
    }
    assert!(!geometry.contains(BlockNr(u64::MAX)));
    geometry.max_extent_file_size();
    geometry.max_indirect_file_size();
    let _ = geometry.check_device_size(32 << 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn superblocks(image in 0usize..5, changes in changes(1024), random in prop::bool::weighted(0.05), seed in any::<u64>()) {
        let mut bytes = IMAGES[image].bytes[SUPERBLOCK_OFFSET as usize..][..1024].to_vec();
        for (at, value) in changes {
            bytes[at] = value;
        }
        if random {
            for (index, byte) in bytes.iter_mut().enumerate().filter(|(index, _)| !(0x38..0x3a).contains(index)) {
                *byte = (seed.rotate_left(index as u32) >> (index % 50)) as u8;
            }
        }
        let mut raw = RawSuperBlock::read_from_bytes(&bytes).unwrap();
        raw.s_checksum = raw.compute_checksum().into();
        if let Ok(mut superblock) = SuperBlock::decode(raw.as_bytes(), 0) {
            let _ = features::check(&superblock);
            exercise(superblock.geometry());
            superblock.volume_name();
            superblock.set_free_blocks(superblock.reserved_blocks());
            superblock.set_mount_time(superblock.write_time());
            let copy = superblock.clone();
            superblock.copy_errors_from(&copy);
            superblock.encode_into(&mut bytes);
            SuperBlock::decode(&bytes, 0).unwrap();
        }
    }

    #[test]
    fn descriptors(image in 0usize..5, group in 0u32..4, changes in changes(64)) {
        let image = &IMAGES[image];
        let superblock = image.superblock();
        let geometry = superblock.geometry();
        let group = GroupNr(group % geometry.group_count());
        let (block, offset) = geometry.group_desc_block(group).unwrap();
        let mut bytes = image.block(block.0, geometry)[offset..][..geometry.desc_size].to_vec();
        for (at, value) in changes {
            if at < bytes.len() {
                bytes[at] = value;
            }
        }
        let _ = GroupDesc::decode(&bytes, group, geometry);
        let desc = GroupDesc::parse(&bytes, group, geometry).unwrap();
        desc.encode_into(&mut bytes, group, geometry);
        if let Ok(desc) = GroupDesc::decode(&bytes, group, geometry) {
            prop_assert!(geometry.contains_range(desc.inode_table, geometry.inode_table_blocks.into()));
            prop_assert!(geometry.contains(desc.block_bitmap) && geometry.contains(desc.inode_bitmap));
        }
        let mut bitmap = vec![0; geometry.block_size as usize];
        bitmap::init_block_bitmap(&mut bitmap, group, [&desc], geometry);
        let _ = desc.verify_block_bitmap(&bitmap, group, geometry);
        let _ = desc.verify_inode_bitmap(&bitmap[..7], group, geometry);
    }

    #[test]
    fn inodes(image in 0usize..5, ino in prop_oneof![Just(2u32), Just(8), 11u32..200], changes in changes(256)) {
        let image = &IMAGES[image];
        let superblock = image.superblock();
        let geometry = superblock.geometry();
        let descs = image.descs(geometry);
        let ino = InodeNr(ino);
        let mut bytes = image.inode_bytes(ino, &descs, geometry).to_vec();
        for (at, value) in changes {
            if at < bytes.len() {
                bytes[at] = value;
            }
        }
        let _ = InodeDesc::decode(&bytes, ino, geometry);
        inode::update_checksum(&mut bytes, ino, geometry);
        if let Ok(inode) = InodeDesc::decode(&bytes, ino, geometry) {
            inode.fast_symlink_target(geometry);
            inode.device();
            inode.xattr_area(geometry);
            inode.encode_into(&mut bytes, ino, geometry).unwrap();
            prop_assert_eq!(InodeDesc::decode(&bytes, ino, geometry).unwrap(), InodeDesc {
                // Whether blocks are counted in sectors is decided anew.
                flags: inode.flags.difference(inode::InodeFlags::HUGE_FILE)
                    | InodeDesc::parse(&bytes, ino, geometry).unwrap().flags.intersection(inode::InodeFlags::HUGE_FILE),
                ..inode
            });
        }
    }
}
