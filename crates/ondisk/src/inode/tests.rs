//! Encoding and decoding of inodes of every size, and with unusual fields.

use super::*;
use crate::damage::Damage;
use crate::extent;
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
        // Without the extra size, the checksum covers other bytes as well, so a change of that byte is detected.
        InodeDesc::decode(&bytes, INO, &geometry).expect_err(&format!("byte {at} changed unseen"));
        bytes[at] ^= 0x10;
    }
}

#[test]
fn encoding_preserves_unknown_bytes() {
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
fn invalid_extra_sizes_are_refused() {
    let geometry = full();
    let mut bytes = encoded(&sample(&geometry), &geometry);
    for bad in [2u16, 33, 132, 0xfffc] {
        bytes[128..130].copy_from_slice(&bad.to_le_bytes());
        update_checksum(&mut bytes, INO, &geometry);
        InodeDesc::decode(&bytes, INO, &geometry).unwrap_err();
    }
    // Without extra fields there is no high half of the checksum, but the bytes in its place are covered.
    bytes[128..130].fill(0);
    update_checksum(&mut bytes, INO, &geometry);
    let mut inode = InodeDesc::decode(&bytes, INO, &geometry).unwrap();
    assert_eq!((inode.extra_isize, inode.crtime, inode.xattr_area(&geometry)), (0, None, None));
    assert!(inode.claim_extra_isize(&geometry) && !inode.claim_extra_isize(&geometry));
    assert_eq!(inode.extra_isize, 32);
}

#[test]
fn large_block_counts_are_stored_in_blocks_up_to_the_maximum() {
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
fn impossible_inodes_are_refused() {
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

/// The damage of `inode` after it is encoded, `change` is applied to its bytes, and the checksum is updated.
fn damages(inode: &InodeDesc, geometry: &Geometry, change: impl FnOnce(&mut [u8])) -> Vec<InodeDamage> {
    damages_of(INO, inode, geometry, change)
}

fn damages_of(
    ino: InodeNr,
    inode: &InodeDesc,
    geometry: &Geometry,
    change: impl FnOnce(&mut [u8]),
) -> Vec<InodeDamage> {
    let mut bytes = vec![0; geometry.inode_size];
    inode.encode_into(&mut bytes, ino, geometry).unwrap();
    change(&mut bytes);
    update_checksum(&mut bytes, ino, geometry);
    let read = InodeDesc::parse(&bytes, ino, geometry).unwrap();
    let found = crate::damage::all(|mut sink| read.damage(&bytes, ino, geometry, &mut sink));
    let fatal = found.iter().find(|damage| damage.is_fatal());
    match InodeDesc::decode(&bytes, ino, geometry) {
        Ok(_) => assert_eq!(fatal, None),
        Err(error) => assert_eq!(Some(error.to_string()), fatal.map(|damage| format!("inode {}: {damage}", ino.0))),
    }
    found
}

#[test]
fn each_damage_of_the_fields_is_found_alone() {
    use InodeDamage as D;
    let geometry = Geometry { extents: true, dir_index: true, ..full() };
    let plain = InodeDesc { links: 1, ..InodeDesc::new(0o100644, &geometry) };
    let dir = InodeDesc { mode: 0o040755, size: 4096, ..plain.clone() };
    let fifo = InodeDesc { mode: 0o010644, ..plain.clone() };
    let link = InodeDesc { mode: 0o120777, size: 20, ..plain.clone() };
    let mut header = [0; 60];
    extent::NodeMut::init(&mut header, 0);
    let with = |base: &InodeDesc, flags| InodeDesc { flags, ..base.clone() };
    for sound in [&plain, &dir, &fifo, &link, &InodeDesc { mode: 0, links: 0, ..plain.clone() }] {
        assert_eq!(damages(sound, &geometry, |_| ()), []);
    }
    assert_eq!(damages(&with(&plain, InodeFlags::EXTENTS), &geometry, |_| ()), []);
    let cases = [
        (InodeDesc { mode: 0o644, ..plain.clone() }, D::Mode { found: 0o644 }),
        (InodeDesc { size: 1 << 63, ..plain.clone() }, D::Size { found: 1 << 63 }),
        (InodeDesc { size: 4097, ..link.clone() }, D::SymlinkSize { found: 4097, most: 4096 }),
        (InodeDesc { file_acl: BlockNr(30_000), ..plain.clone() }, D::FileAcl { found: BlockNr(30_000) }),
        (InodeDesc { size: 4095, ..dir.clone() }, D::DirSize { found: 4095, block_size: 4096 }),
        (InodeDesc { size: 1, ..fifo.clone() }, D::SpecialSize { found: 1 }),
        (InodeDesc { links: 0, ..plain.clone() }, D::DtimeMissing),
        (InodeDesc { dtime: 5000, ..plain.clone() }, D::DtimeSet { found: 5000 }),
        (InodeDesc { dtime: 12, links: 0, ..plain.clone() }, D::DtimeLow { found: 12, inodes_count: 1024 }),
        (InodeDesc { i_block: header, ..plain.clone() }, D::ExtentsFlagMissing),
        (with(&link, InodeFlags::EXTENTS), D::ExtentsOnFastSymlink { size: 20 }),
        (with(&fifo, InodeFlags::EXTENTS), D::MapOnSpecial { found: InodeFlags::EXTENTS.bits() }),
        (with(&fifo, InodeFlags::IMMUTABLE), D::ImmutableSpecial { found: InodeFlags::IMMUTABLE.bits() }),
        (with(&plain, InodeFlags::INLINE_DATA), D::InlineDataFeature),
        (with(&plain, InodeFlags::INDEX), D::IndexOnFile),
        (with(&plain, InodeFlags::IMAGIC), D::Imagic),
        (with(&dir, InodeFlags::CASEFOLD), D::CasefoldFeature),
        (with(&plain, InodeFlags::EA_INODE), D::EaInodeFeature),
    ];
    for (inode, expected) in cases {
        assert_eq!(damages(&inode, &geometry, |_| ()), [expected]);
    }

    let other =
        Geometry { extents: false, dir_index: false, inline_data: true, casefold: true, ea_inode: true, ..full() };
    for (inode, expected) in [
        (with(&plain, InodeFlags::EXTENTS), D::ExtentsFeature { header: false }),
        (
            InodeDesc { i_block: header, ..with(&plain, InodeFlags::EXTENTS | InodeFlags::INLINE_DATA) },
            D::InlineDataAndExtents { header: true },
        ),
        (with(&dir, InodeFlags::INDEX), D::IndexFeature),
        (with(&plain, InodeFlags::CASEFOLD), D::CasefoldOnFile),
        (with(&dir, InodeFlags::EA_INODE), D::EaInodeMode { mode: 0o040755 }),
    ] {
        assert_eq!(damages(&inode, &other, |_| ()), [expected]);
    }
    let clusters = Geometry { cluster_bits: 4, ..geometry.clone() };
    let mapped = InodeDesc { i_block: [5; 60], ..plain.clone() };
    assert_eq!(damages(&mapped, &clusters, |_| ()), [D::BlockMapOnClusters]);
    assert_eq!(damages_of(InodeNr::ROOT, &plain, &geometry, |_| ()), [D::RootMode { found: 0o100644 }]);
    assert!(!D::RootMode { found: 0o100644 }.is_fatal() && D::RootMode { found: 0o644 }.is_fatal());
}

#[test]
fn each_damage_of_the_bytes_is_found_alone() {
    use InodeDamage as D;
    let geometry = geometry(256, RoCompat::METADATA_CSUM);
    let geometry = Geometry { bit64: false, ..geometry };
    let plain = InodeDesc { links: 1, ..InodeDesc::new(0o100644, &geometry) };
    let dir = InodeDesc { mode: 0o040755, size: 4096, ..plain.clone() };
    type Case<'a> = (&'a InodeDesc, usize, &'a [u8], InodeDamage);
    let epoch = offset_of!(RawInodeExtra, i_mtime_extra) + GOOD_OLD_INODE_SIZE;
    let old = InodeDesc { mtime: Timestamp::from_seconds(-7), ..plain.clone() };
    let cases: [Case<'_>; 6] = [
        (&plain, 128, &[33], D::ExtraIsize { found: 33, inode_size: 256 }),
        (&dir, offset_of!(RawInode, i_size_high), &[1], D::DirSizeHigh { found: 1 }),
        (&plain, offset_of!(RawInode, l_i_blocks_high), &[2], D::BlocksHigh { found: 2 }),
        (&plain, offset_of!(RawInode, l_i_file_acl_high), &[3], D::FileAclHigh { found: 3 }),
        (&plain, offset_of!(RawInode, i_obso_faddr), &[4], D::FragmentAddress { found: 4 }),
        (&old, epoch, &[3], D::Timestamp { field: TimeField::Modification }),
    ];
    for (inode, at, new, expected) in cases {
        let found = damages(inode, &geometry, |bytes| bytes[at..at + new.len()].copy_from_slice(new));
        assert_eq!(found, [expected]);
    }
    let hurd = Geometry { hurd: true, ..geometry.clone() };
    let at = offset_of!(RawInode, l_i_blocks_high);
    assert_eq!(
        damages(&plain, &hurd, |bytes| bytes[at..at + 2].copy_from_slice(&[5, 6])),
        [D::FragmentNumber { found: 5 }, D::FragmentSize { found: 6 }]
    );
    let mut bytes = encoded(&plain, &geometry);
    bytes[0x7c] ^= 1;
    let expected = u32::from(bytes[0x7c] ^ 1);
    let found = crate::damage::all(|mut sink| plain.damage(&bytes, INO, &geometry, &mut sink));
    assert!(matches!(found[..], [D::Checksum { found, expected: e }] if found == e ^ 1 && e & 0xff == expected));
}

#[test]
fn all_damages_of_one_inode_are_reported() {
    let geometry = full();
    let inode = InodeDesc { size: 1 << 63, file_acl: BlockNr(30_000), dtime: 5000, ..sample(&geometry) };
    let found = damages(&inode, &geometry, |bytes| bytes[offset_of!(RawInode, i_obso_faddr)] = 1);
    assert_eq!(
        found,
        [
            InodeDamage::Size { found: 1 << 63 },
            InodeDamage::FileAcl { found: BlockNr(30_000) },
            InodeDamage::DtimeSet { found: 5000 },
            InodeDamage::ExtentsFeature { header: false },
            InodeDamage::FragmentAddress { found: 1 },
        ]
    );
}

#[test]
fn fast_symlinks_are_recognised() {
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
    // Attribute values may be in inodes of their own, and their blocks count as the link's. Then only the size decides.
    let geometry = geometry_with(256, Incompat::EA_INODE, RoCompat::METADATA_CSUM | RoCompat::HUGE_FILE);
    for (size, fast) in [(0, false), (1, true), (59, true), (60, false)] {
        link.size = size;
        assert_eq!(link.is_fast_symlink(&geometry), fast, "{size} bytes");
    }
}
