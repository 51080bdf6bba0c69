//! Descriptors and bitmaps with a single fault each.

use super::*;
use crate::bitmap;
use crate::damage::{Damage, all};
use crate::superblock::tests::sample;
use crate::superblock::{SUPERBLOCK_OFFSET, SuperBlock};

/// Four groups of 32768 blocks, the last one with 1000; descriptors of 64 bytes.
fn geometry() -> Geometry {
    let mut raw = sample();
    raw.s_checksum = U32::new(raw.compute_checksum());
    SuperBlock::decode(raw.as_bytes(), SUPERBLOCK_OFFSET).unwrap().geometry().clone()
}

const GROUP: GroupNr = GroupNr(2);

/// A valid descriptor of group 2, which has no copies of the superblock.
fn good() -> GroupDesc {
    GroupDesc {
        block_bitmap: BlockNr(65536),
        inode_bitmap: BlockNr(65537),
        inode_table: BlockNr(65538),
        free_clusters: 1000,
        free_inodes: 500,
        used_dirs: 7,
        flags: GroupFlags::INODE_ZEROED,
        itable_unused: 400,
        block_bitmap_csum: 0,
        inode_bitmap_csum: 0,
    }
}

fn damages_in(
    group: GroupNr,
    desc: &GroupDesc,
    geometry: &Geometry,
    change: impl FnOnce(&mut [u8]),
) -> Vec<DescDamage> {
    let mut bytes = vec![0; geometry.desc_size];
    desc.encode_into(&mut bytes, group, geometry);
    change(&mut bytes);
    let read = GroupDesc::parse(&bytes, group, geometry).unwrap();
    let found = all(|mut sink| read.damage(&bytes, group, geometry, &mut sink));
    let fatal = found.iter().find(|damage| damage.is_fatal());
    match GroupDesc::decode(&bytes, group, geometry) {
        Ok(_) => assert_eq!(fatal, None),
        Err(e) => assert_eq!(Some(e.to_string()), fatal.map(|d| format!("group descriptor {}: {d}", group.0))),
    }
    found
}

#[test]
fn each_damage_of_a_descriptor_is_found_alone() {
    use DescDamage as D;
    let geometry = geometry();
    let outside = |piece, start| D::Outside { piece, start, first: 65536, end: 98304 };
    assert_eq!(damages_in(GROUP, &good(), &geometry, |_| ()), []);
    let cases = [
        (GroupDesc { block_bitmap: BlockNr(65535), ..good() }, outside(Piece::BlockBitmap, 65535)),
        (GroupDesc { inode_bitmap: BlockNr(98304), ..good() }, outside(Piece::InodeBitmap, 98304)),
        (GroupDesc { inode_table: BlockNr(98304 - 511), ..good() }, outside(Piece::InodeTable, 98304 - 511)),
        (GroupDesc { inode_table: BlockNr(u64::MAX), ..good() }, outside(Piece::InodeTable, u64::MAX)),
        (
            GroupDesc { inode_bitmap: BlockNr(65536), ..good() },
            D::Shared { piece: Piece::InodeBitmap, other: Piece::BlockBitmap, block: 65536 },
        ),
        (
            GroupDesc { inode_bitmap: BlockNr(65540), ..good() },
            D::Shared { piece: Piece::InodeTable, other: Piece::InodeBitmap, block: 65540 },
        ),
        (
            GroupDesc { free_clusters: 32769, ..good() },
            D::Count { what: DescCount::FreeBlocks, found: 32769, most: 32768 },
        ),
        (GroupDesc { free_inodes: 8193, ..good() }, D::Count { what: DescCount::FreeInodes, found: 8193, most: 8192 }),
        (GroupDesc { used_dirs: 8193, ..good() }, D::Count { what: DescCount::Directories, found: 8193, most: 8192 }),
        (
            GroupDesc { itable_unused: 8193, ..good() },
            D::Count { what: DescCount::UnusedInodes, found: 8193, most: 8192 },
        ),
        (GroupDesc { itable_unused: 501, ..good() }, D::UnusedAboveFree { unused: 501, free: 500 }),
    ];
    for (desc, expected) in cases {
        assert_eq!(damages_in(GROUP, &desc, &geometry, |_| ()), [expected]);
    }
    let wrong = damages_in(GROUP, &good(), &geometry, |bytes| bytes[0x1e] ^= 1);
    assert!(matches!(wrong[..], [D::Checksum { found, expected }] if found == expected ^ 1), "{wrong:?}");
    let flexible = Geometry { flex_bg: true, ..geometry.clone() };
    let on_backup = GroupDesc { inode_bitmap: BlockNr(32768), ..good() };
    let expected = D::OnFixed { piece: Piece::InodeBitmap, start: 32768, fixed: 32768 };
    assert_eq!(damages_in(GROUP, &on_backup, &flexible, |_| ()), [expected]);
    let plain = Geometry { desc_checksum: DescChecksum::None, metadata_csum: false, ..geometry.clone() };
    let found = damages_in(GROUP, &good(), &plain, |bytes| bytes[0x12] = 2);
    assert_eq!(found, [D::Uninit { flags: 2, unused: 0 }]);
    let found = damages_in(GROUP, &good(), &plain, |bytes| bytes[0x1c] = 3);
    assert_eq!(found, [D::Uninit { flags: 0, unused: 3 }]);
    let last = GroupDesc {
        block_bitmap: BlockNr(98310),
        inode_bitmap: BlockNr(98311),
        inode_table: BlockNr(98312),
        flags: GroupFlags::BLOCK_UNINIT,
        ..good()
    };
    assert_eq!(damages_in(GroupNr(3), &last, &geometry, |_| ()), [D::UninitLast]);
    GroupDesc::decode(&[0; 63], GROUP, &geometry).unwrap_err();
}

#[test]
fn each_damage_of_a_bitmap_is_found_alone() {
    let geometry = geometry();
    let group = GroupNr(3);
    let (mut blocks, mut inodes) = (vec![0; 4096], vec![0; 4096]);
    bitmap::set_padding(&mut blocks, 1000);
    bitmap::set_padding(&mut inodes, 8192);
    let mut desc = good();
    desc.set_block_bitmap_csum(&blocks, &geometry);
    desc.set_inode_bitmap_csum(&inodes, &geometry);
    let of_blocks =
        |desc: &GroupDesc, bitmap: &[u8]| all(|mut sink| desc.block_bitmap_damage(bitmap, group, &geometry, &mut sink));
    let of_inodes =
        |desc: &GroupDesc, bitmap: &[u8]| all(|mut sink| desc.inode_bitmap_damage(bitmap, &geometry, &mut sink));
    assert_eq!((of_blocks(&desc, &blocks), of_inodes(&desc, &inodes)), (vec![], vec![]));

    bitmap::set(&mut blocks, 5);
    bitmap::set(&mut inodes, 5);
    assert!(matches!(of_blocks(&desc, &blocks)[..], [BitmapDamage::Checksum { .. }]));
    assert!(matches!(of_inodes(&desc, &inodes)[..], [BitmapDamage::Checksum { .. }]));
    desc.verify_block_bitmap(&blocks, group, &geometry).unwrap_err();
    desc.set_block_bitmap_csum(&blocks, &geometry);
    desc.set_inode_bitmap_csum(&inodes, &geometry);

    bitmap::clear(&mut blocks, 1001);
    bitmap::clear(&mut inodes, 9000);
    desc.set_block_bitmap_csum(&blocks, &geometry);
    assert_eq!(of_blocks(&desc, &blocks), [BitmapDamage::Padding { bit: 1001, bits: 1000 }]);
    assert_eq!(of_inodes(&desc, &inodes), [BitmapDamage::Padding { bit: 9000, bits: 8192 }]);
    desc.verify_block_bitmap(&blocks, group, &geometry).unwrap();

    desc.flags = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
    assert_eq!((of_blocks(&desc, &[9; 4096]), of_inodes(&desc, &[9; 4096])), (vec![], vec![]));
}
