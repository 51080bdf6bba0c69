//! Inodes there and back, of every size and with odd fields.

use super::*;
use crate::features::{Incompat, RoCompat};
use crate::superblock::{RawSuperBlock, SuperBlock};

const INO: InodeNr = InodeNr(12);

/// A file system of one group with this inode size and these features.
fn geometry(inode_size: u16, ro_compat: RoCompat) -> Geometry {
    geometry_with(inode_size, Incompat::empty(), ro_compat)
}

fn geometry_with(inode_size: u16, incompat: Incompat, ro_compat: RoCompat) -> Geometry {
    let mut raw = RawSuperBlock::new_zeroed();
    raw.s_magic = U16::new(crate::superblock::MAGIC);
    raw.s_rev_level = U32::new(1);
    raw.s_log_block_size = U32::new(2);
    raw.s_log_cluster_size = U32::new(2);
    raw.s_blocks_count_lo = U32::new(30000);
    raw.s_blocks_per_group = U32::new(32768);
    raw.s_inodes_per_group = U32::new(1024);
    raw.s_inodes_count = U32::new(1024);
    raw.s_first_ino = U32::new(11);
    raw.s_inode_size = U16::new(inode_size);
    raw.s_desc_size = U16::new(64);
    raw.s_checksum_type = 1;
    raw.s_feature_incompat = U32::new((Incompat::FILETYPE | Incompat::BIT64 | incompat).bits());
    raw.s_feature_ro_compat = U32::new(ro_compat.bits());
    raw.s_checksum = U32::new(raw.compute_checksum());
    SuperBlock::decode(raw.as_bytes(), 0).unwrap().geometry().clone()
}

fn full() -> Geometry {
    geometry(256, RoCompat::METADATA_CSUM | RoCompat::HUGE_FILE)
}

fn sample(geometry: &Geometry) -> InodeDesc {
    InodeDesc {
        uid: 0x1_2345,
        gid: 0x5_4321,
        size: 0x12_3456_7890,
        blocks: 0x1234_5678,
        links: 3,
        flags: InodeFlags::EXTENTS | InodeFlags::NOATIME,
        generation: 99,
        atime: Timestamp { seconds: 1 << 33, nanos: 999_999_999 },
        mtime: Timestamp { seconds: -7, nanos: 1 },
        file_acl: BlockNr(29_999),
        version: 0x1234_5678_9abc,
        i_block: [5; 60],
        ..InodeDesc::new(0o100644, geometry)
    }
}

fn encoded(inode: &InodeDesc, geometry: &Geometry) -> Vec<u8> {
    let mut bytes = vec![0; geometry.inode_size];
    inode.encode_into(&mut bytes, INO, geometry).unwrap();
    bytes
}

#[test]
fn round_trip_with_and_without_extra_fields() {
    for geometry in [full(), geometry(1024, RoCompat::HUGE_FILE)] {
        let inode = sample(&geometry);
        assert_eq!(InodeDesc::decode(&encoded(&inode, &geometry), INO, &geometry).unwrap(), inode);
    }
    let small = geometry(128, RoCompat::METADATA_CSUM);
    let inode = sample(&small);
    let read = InodeDesc::decode(&encoded(&inode, &small), INO, &small).unwrap();
    assert_eq!(read.crtime, None);
    assert_eq!(read.atime, Timestamp::MAX_WITHOUT_EXTRA);
    assert_eq!(read.mtime, Timestamp::from_seconds(-7));
    assert_eq!(read.version, 0x5678_9abc);
    assert_eq!(read.xattr_area(&small), None);
}

#[test]
fn every_byte_is_under_the_checksum() {
    let geometry = full();
    let mut bytes = encoded(&sample(&geometry), &geometry);
    bytes[200] = 77;
    update_checksum(&mut bytes, INO, &geometry);
    verify_checksum(&bytes, INO, &geometry).unwrap();
    verify_checksum(&bytes, InodeNr(13), &geometry).unwrap_err();
    for at in 0..bytes.len() {
        bytes[at] ^= 0x10;
        // Without the extra size the cover changes too, so even that byte is caught.
        InodeDesc::decode(&bytes, INO, &geometry).expect_err(&format!("byte {at} changed unseen"));
        bytes[at] ^= 0x10;
    }
}

#[test]
fn encoding_keeps_what_it_does_not_know() {
    let geometry = full();
    let inode = InodeDesc { extra_isize: 8, crtime: None, version: 7, ..sample(&geometry) };
    let mut bytes = vec![0xabu8; 256];
    inode.encode_into(&mut bytes, INO, &geometry).unwrap();
    assert_eq!(inode.xattr_area(&geometry), Some(136..256));
    assert!(bytes[136..].iter().all(|&byte| byte == 0xab), "xattrs overwritten");
    assert_eq!(bytes[0x70..0x74], [0xab; 4]);
    let read = InodeDesc::decode(&bytes, INO, &geometry).unwrap();
    assert_eq!(read.ctime, inode.ctime);
    assert_eq!((read.mtime.seconds, read.mtime.nanos), (-7, 0));
}

#[test]
fn extra_size_rules() {
    let geometry = full();
    let mut bytes = encoded(&sample(&geometry), &geometry);
    for bad in [2u16, 33, 132, 0xfffc] {
        bytes[128..130].copy_from_slice(&bad.to_le_bytes());
        update_checksum(&mut bytes, INO, &geometry);
        InodeDesc::decode(&bytes, INO, &geometry).unwrap_err();
    }
    // Without extra fields the high half of the checksum is not there, but what lies in its place is covered.
    bytes[128..130].fill(0);
    update_checksum(&mut bytes, INO, &geometry);
    let mut inode = InodeDesc::decode(&bytes, INO, &geometry).unwrap();
    assert_eq!((inode.extra_isize, inode.crtime, inode.xattr_area(&geometry)), (0, None, None));
    assert!(inode.claim_extra_isize(&geometry) && !inode.claim_extra_isize(&geometry));
    assert_eq!(inode.extra_isize, 32);
}

#[test]
fn sectors_switch_to_blocks_when_they_must() {
    let geometry = full();
    let huge = InodeDesc { blocks: 3 << 48, ..sample(&geometry) };
    let bytes = encoded(&huge, &geometry);
    assert_ne!(u32::from_le_bytes(bytes[0x20..0x24].try_into().unwrap()) & InodeFlags::HUGE_FILE.bits(), 0);
    assert_eq!(InodeDesc::decode(&bytes, INO, &geometry).unwrap().blocks, 3 << 48);
    let beyond = InodeDesc { blocks: InodeDesc::max_blocks(&geometry) + 1, ..huge.clone() };
    let mut untouched = vec![9; 256];
    beyond.encode_into(&mut untouched, INO, &geometry).unwrap_err();
    assert_eq!(untouched, [9; 256]);
    let without = self::geometry(256, RoCompat::empty());
    InodeDesc { blocks: 1 << 32, ..huge }.encode_into(&mut untouched, INO, &without).unwrap_err();
}

#[test]
fn impossible_inodes() {
    let geometry = full();
    let root = InodeNr::ROOT;
    let base = sample(&geometry);
    assert!(InodeDesc { mode: 0o644, ..base.clone() }.check(INO, &geometry).is_err());
    assert!(InodeDesc { mode: 0o644, links: 0, ..base.clone() }.check(INO, &geometry).is_ok());
    assert!(InodeDesc { mode: 0, ..base.clone() }.check(InodeNr(1), &geometry).is_ok());
    assert!(InodeDesc { mode: 0, links: 0, ..base.clone() }.check(root, &geometry).is_err());
    assert!(InodeDesc { size: 1 << 63, ..base.clone() }.check(INO, &geometry).is_err());
    assert!(InodeDesc { mode: 0o120777, size: 4097, ..base.clone() }.check(INO, &geometry).is_err());
    assert!(InodeDesc { file_acl: BlockNr(30_000), ..base.clone() }.check(INO, &geometry).is_err());
    InodeDesc::decode(&[0; 256], INO, &geometry).unwrap();
    InodeDesc::decode(&[0; 255], INO, &geometry).unwrap_err();
}

#[test]
fn fast_symlinks() {
    let geometry = full();
    let mut link = InodeDesc { links: 1, ..InodeDesc::new(0o120777, &geometry) };
    link.size = 59;
    assert_eq!(link.fast_symlink_target(&geometry).map(<[u8]>::len), Some(59));
    link.size = 60;
    assert!(!link.is_fast_symlink(&geometry));
    link.size = 20;
    link.file_acl = BlockNr(500);
    link.blocks = 8;
    assert!(link.is_fast_symlink(&geometry));
    link.blocks = 16;
    assert!(!link.is_fast_symlink(&geometry));
    // Values of attributes may be in inodes of their own, which count as the link's blocks: only the size tells then.
    let geometry = geometry_with(256, Incompat::EA_INODE, RoCompat::METADATA_CSUM | RoCompat::HUGE_FILE);
    for (size, fast) in [(0, false), (1, true), (59, true), (60, false)] {
        link.size = size;
        assert_eq!(link.is_fast_symlink(&geometry), fast, "{size} bytes");
    }
}
