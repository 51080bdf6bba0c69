//! Tests with valid, corrupt and unsupported superblocks.

use super::*;
use crate::GroupNr;
use crate::features::{MountMode, check};
use zerocopy::FromZeros;

/// A valid superblock: 4 KiB blocks, four groups, the last of them short.
pub(crate) fn sample() -> RawSuperBlock {
    let mut raw = RawSuperBlock::new_zeroed();
    raw.s_magic = U16::new(MAGIC);
    raw.s_rev_level = U32::new(1);
    raw.s_log_block_size = U32::new(2);
    raw.s_log_cluster_size = U32::new(2);
    raw.s_blocks_count_lo = U32::new(3 * 32768 + 1000);
    raw.s_blocks_per_group = U32::new(32768);
    raw.s_clusters_per_group = U32::new(32768);
    raw.s_inodes_per_group = U32::new(8192);
    raw.s_inodes_count = U32::new(4 * 8192);
    raw.s_first_ino = U32::new(11);
    raw.s_inode_size = U16::new(256);
    raw.s_desc_size = U16::new(64);
    raw.s_want_extra_isize = U16::new(32);
    raw.s_checksum_type = 1;
    raw.s_feature_incompat = U32::new((Incompat::FILETYPE | Incompat::EXTENTS | Incompat::BIT64).bits());
    raw.s_feature_ro_compat = U32::new((RoCompat::METADATA_CSUM | RoCompat::SPARSE_SUPER | RoCompat::HUGE_FILE).bits());
    raw
}

fn decode(mut raw: RawSuperBlock) -> Result<SuperBlock> {
    raw.s_checksum = U32::new(raw.compute_checksum());
    SuperBlock::decode(raw.as_bytes(), SUPERBLOCK_OFFSET)
}

fn with(change: impl FnOnce(&mut RawSuperBlock)) -> Result<SuperBlock> {
    let mut raw = sample();
    change(&mut raw);
    decode(raw)
}

#[test]
fn the_sample_decodes_and_the_checksum_guards_it() {
    let superblock = decode(sample()).unwrap();
    assert_eq!(superblock.group_count, 4);
    assert_eq!(superblock.blocks_in_group(GroupNr(3)), 1000);
    assert_eq!(superblock.blocks_in_group(GroupNr(4)), 0);
    let mut bytes = [0; SUPERBLOCK_SIZE];
    superblock.encode_into(&mut bytes);
    SuperBlock::decode(&bytes, 1024).unwrap();
    bytes[0x78] ^= 1;
    let error = SuperBlock::decode(&bytes, 1024).unwrap_err();
    assert!(error.to_string().starts_with("superblock at byte 1024: checksum"), "{error}");
    SuperBlock::decode(&bytes[..1023], 1024).unwrap_err();
}

#[test]
fn impossible_fields_are_corrupt() {
    type Change = fn(&mut RawSuperBlock);
    let changes: &[(&str, Change)] = &[
        ("magic", |raw| raw.s_magic = U16::new(0xef54)),
        ("block size", |raw| raw.s_log_block_size = U32::new(7)),
        ("cluster size", |raw| raw.s_log_cluster_size = U32::new(3)),
        ("no blocks", |raw| raw.s_blocks_count_lo = U32::new(0)),
        ("too many blocks", |raw| raw.s_blocks_count_hi = U32::new(0x10001)),
        ("first block", |raw| raw.s_first_data_block = U32::new(1)),
        ("no blocks per group", |raw| raw.s_blocks_per_group = U32::new(0)),
        ("blocks per group", |raw| raw.s_blocks_per_group = U32::new(32776)),
        ("odd blocks per group", |raw| raw.s_blocks_per_group = U32::new(32766)),
        ("no inodes per group", |raw| raw.s_inodes_per_group = U32::new(0)),
        ("inodes per group", |raw| raw.s_inodes_per_group = U32::new(32776)),
        ("inodes", |raw| raw.s_inodes_count = U32::new(4 * 8192 + 1)),
        ("inode size", |raw| raw.s_inode_size = U16::new(192)),
        ("small inode", |raw| raw.s_inode_size = U16::new(64)),
        ("large inode", |raw| raw.s_inode_size = U16::new(8192)),
        ("first inode", |raw| raw.s_first_ino = U32::new(10)),
        ("descriptor size", |raw| raw.s_desc_size = U16::new(32)),
        ("odd descriptor size", |raw| raw.s_desc_size = U16::new(96)),
        ("reserved descriptors", |raw| raw.s_reserved_gdt_blocks = U16::new(1025)),
        ("journal inode", |raw| raw.s_journal_inum = U32::new(4 * 8192 + 1)),
        ("high blocks without 64bit", |raw| {
            raw.s_feature_incompat = U32::new(Incompat::FILETYPE.bits());
            raw.s_blocks_count_hi = U32::new(1);
        }),
        ("first metagroup", |raw| {
            raw.s_feature_incompat = U32::new((Incompat::BIT64 | Incompat::META_BG).bits());
            raw.s_first_meta_bg = U32::new(2);
        }),
        ("descriptors larger than a group", |raw| {
            raw.s_blocks_per_group = U32::new(8);
            raw.s_inodes_per_group = U32::new(16);
            raw.s_blocks_count_lo = U32::new(8 << 20);
            raw.s_inodes_count = U32::new(16 << 20);
        }),
    ];
    for (what, change) in changes {
        match with(change) {
            Err(Error::Corrupt { .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
    }
}

fn damages(raw: RawSuperBlock, context: &SuperContext) -> (Vec<SuperDamage>, Option<SuperBlock>) {
    let mut raw = raw;
    raw.s_checksum = U32::new(raw.compute_checksum());
    let mut superblock = None;
    let found = crate::damage::all(|mut sink| superblock = SuperBlock::parse(raw.as_bytes(), context, &mut sink));
    let fatal = found.iter().find(|damage| damage.is_fatal());
    match SuperBlock::decode(raw.as_bytes(), 1024) {
        Ok(_) => assert_eq!(fatal, None),
        Err(error) => assert_eq!(Some(error), fatal.map(|damage| damage.error(1024))),
    }
    (found, superblock)
}

#[test]
fn each_damage_of_the_layout_is_found_alone() {
    use SuperDamage as D;
    type Change = fn(&mut RawSuperBlock);
    let inode = |what| D::Inode { what, found: 32769, most: 32768 };
    // Whether a layout can still be derived, and the fault.
    let cases: &[(Change, bool, SuperDamage)] = &[
        (|raw| raw.s_magic = U16::new(0xef54), false, D::Magic { found: 0xef54 }),
        (
            |raw| raw.s_feature_incompat = U32::new(8),
            false,
            D::JournalDevice { features: Incompat::JOURNAL_DEV.bits() },
        ),
        (
            |raw| raw.s_feature_incompat = U32::new(raw.s_feature_incompat.get() | 1 << 31),
            true,
            D::Features { unknown: 1 << 31 },
        ),
        (|raw| raw.s_checksum_type = 2, true, D::ChecksumType { found: 2 }),
        (|raw| raw.s_rev_level = U32::new(2), true, D::Revision { found: 2 }),
        (|raw| raw.s_log_block_size = U32::new(7), false, D::LogBlockSize { found: 7 }),
        (|raw| raw.s_log_cluster_size = U32::new(3), false, D::LogClusterSize { found: 3, log_block_size: 2 }),
        (|raw| raw.s_first_data_block = U32::new(1), false, D::FirstDataBlock { found: 1, expected: 0 }),
        (|raw| raw.s_blocks_count_lo = U32::new(1), false, D::BlocksCount { found: 1 }),
        (|raw| raw.s_blocks_per_group = U32::new(12), false, D::BlocksPerGroup { blocks: 12, clusters: 12 }),
        (|raw| raw.s_inode_size = U16::new(192), false, D::InodeSize { found: 192 }),
        (|raw| raw.s_inodes_per_group = U32::new(32776), false, D::InodesPerGroup { found: 32776, most: 32768 }),
        (|raw| raw.s_inodes_count = U32::new(32760), true, D::InodesCount { found: 32760, groups: 4, per_group: 8192 }),
        (|raw| raw.s_first_ino = U32::new(10), true, D::FirstInode { found: 10, inodes_count: 32768 }),
        (|raw| raw.s_desc_size = U16::new(32), false, D::DescSize { found: 32 }),
        (
            |raw| {
                raw.s_feature_incompat = U32::new(raw.s_feature_incompat.get() | Incompat::META_BG.bits());
                raw.s_first_meta_bg = U32::new(2);
            },
            true,
            D::FirstMetaBg { found: 2, most: 1 },
        ),
        (
            |raw| {
                raw.s_feature_compat = U32::new(Compat::RESIZE_INODE.bits());
                raw.s_reserved_gdt_blocks = U16::new(1025);
            },
            true,
            D::ReservedGdtBlocks { found: 1025, most: 1024 },
        ),
        (
            |raw| {
                raw.s_feature_compat = U32::new(Compat::HAS_JOURNAL.bits());
                raw.s_journal_inum = U32::new(32769);
            },
            true,
            inode(SpecialInode::Journal),
        ),
        (|raw| raw.s_usr_quota_inum = U32::new(32769), true, inode(SpecialInode::UserQuota)),
        (|raw| raw.s_grp_quota_inum = U32::new(32769), true, inode(SpecialInode::GroupQuota)),
        (|raw| raw.s_last_orphan = U32::new(32769), true, inode(SpecialInode::LastOrphan)),
    ];
    let plain = SuperContext::default();
    assert_eq!(damages(sample(), &plain).0, []);
    for (change, has_layout, expected) in cases {
        let mut raw = sample();
        change(&mut raw);
        let (found, superblock) = damages(raw, &plain);
        assert_eq!(found, [*expected]);
        assert_eq!(superblock.is_some(), *has_layout, "{expected}");
    }
    let mut raw = sample();
    (raw.s_checksum, raw.s_inode_size) = (U32::new(1), U16::new(192));
    let found = crate::damage::all(|mut sink| _ = SuperBlock::parse(raw.as_bytes(), &plain, &mut sink));
    assert!(matches!(found[..], [D::Checksum { found: 1, .. }, D::InodeSize { found: 192 }]), "{found:?}");
    let found = crate::damage::all(|mut sink| _ = SuperBlock::parse(&[0; 1000], &plain, &mut sink));
    assert_eq!(found, [D::Length { found: 1000 }]);
}

#[test]
fn descriptors_larger_than_a_group_leave_no_layout() {
    let mut raw = sample();
    raw.s_blocks_per_group = U32::new(8);
    raw.s_inodes_per_group = U32::new(16);
    raw.s_blocks_count_lo = U32::new(8 << 20);
    raw.s_inodes_count = U32::new(16 << 20);
    let (found, superblock) = damages(raw, &SuperContext::default());
    assert!(matches!(found[..], [SuperDamage::DescBlocks { .. }]) && superblock.is_none(), "{found:?}");
    let mut raw = sample();
    raw.s_feature_incompat = U32::new(Incompat::FILETYPE.bits());
    raw.s_blocks_count_hi = U32::new(1);
    assert_eq!(damages(raw, &SuperContext::default()).0, [SuperDamage::BlocksHigh { found: 1 }]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one row a contradiction")]
fn each_contradiction_that_a_mount_accepts_is_found_alone() {
    use SuperDamage as D;
    type Change = fn(&mut RawSuperBlock);
    fn add(word: &mut U32, bits: u32) {
        *word = U32::new(word.get() | bits);
    }
    let role = |what, found| D::InodeRole { what, found };
    let cases: &[(Change, SuperDamage)] = &[
        (|raw| (raw.s_rev_level, raw.s_feature_ro_compat) = (U32::new(0), U32::new(0)), D::RevisionFeatures),
        (|raw| add(&mut raw.s_feature_ro_compat, RoCompat::GDT_CSUM.bits()), D::BothChecksums),
        (|raw| raw.s_feature_incompat = U32::new(Incompat::BIT64.bits()), D::Bit64WithoutExtents),
        (
            |raw| {
                raw.s_feature_ro_compat = U32::new(0);
                add(&mut raw.s_feature_incompat, Incompat::CSUM_SEED.bits());
            },
            D::SeedWithoutChecksums,
        ),
        (
            |raw| {
                raw.s_feature_compat = U32::new(Compat::RESIZE_INODE.bits());
                add(&mut raw.s_feature_incompat, Incompat::META_BG.bits());
            },
            D::MetaBgWithResizeInode,
        ),
        (|raw| raw.s_reserved_gdt_blocks = U16::new(7), D::ReservedWithoutResizeInode { found: 7 }),
        (|raw| raw.s_journal_inum = U32::new(8), D::JournalWithoutFeature { found: 8 }),
        (|raw| raw.s_journal_dev = U32::new(8), D::JournalWithoutFeature { found: 0 }),
        (|raw| raw.s_feature_compat = U32::new(Compat::HAS_JOURNAL.bits()), D::JournalMissing),
        (
            |raw| {
                raw.s_feature_compat = U32::new(Compat::HAS_JOURNAL.bits());
                (raw.s_journal_inum, raw.s_journal_uuid) = (U32::new(8), [1; 16]);
            },
            D::JournalTwice { found: 8 },
        ),
        (|raw| add(&mut raw.s_feature_compat, 1 << 20), D::CompatFeatures { unknown: 1 << 20 }),
        (|raw| add(&mut raw.s_feature_ro_compat, 1 << 20), D::RoCompatFeatures { unknown: 1 << 20 }),
        (|raw| raw.s_clusters_per_group = U32::new(8), D::UnusedClusters { found: 8, expected: 32_768 }),
        (
            |raw| {
                add(&mut raw.s_feature_ro_compat, RoCompat::BIGALLOC.bits());
                raw.s_log_cluster_size = U32::new(20);
                (raw.s_clusters_per_group, raw.s_blocks_per_group) = (U32::new(8), U32::new(8 << 18));
                (raw.s_inodes_count, raw.s_reserved_gdt_blocks) = (raw.s_inodes_per_group, U16::new(0));
            },
            D::LargeClusters { found: 20 },
        ),
        (|raw| raw.s_log_groups_per_flex = 32, D::GroupsPerFlex { found: 32 }),
        (
            |raw| {
                raw.s_feature_incompat = U32::new(Incompat::EXTENTS.bits());
                raw.s_desc_size = U16::new(48);
            },
            D::UnusedDescSize { found: 48 },
        ),
        (|raw| add(&mut raw.s_feature_incompat, Incompat::NEEDS_RECOVERY.bits()), D::RecoveryWithoutJournal),
        (|raw| add(&mut raw.s_feature_ro_compat, RoCompat::ORPHAN_PRESENT.bits()), D::OrphanPresentWithoutFile),
        (
            |raw| {
                raw.s_feature_compat = U32::new(Compat::ORPHAN_FILE.bits());
                raw.s_orphan_file_inum = U32::new(12);
            },
            D::OrphanFileWithoutJournal,
        ),
        (
            |raw| {
                raw.s_feature_compat = U32::new((Compat::ORPHAN_FILE | Compat::HAS_JOURNAL).bits());
                raw.s_journal_inum = U32::new(8);
            },
            role(SpecialInode::OrphanFile, 0),
        ),
        (|raw| raw.s_last_orphan = U32::new(5), role(SpecialInode::LastOrphan, 5)),
        (
            |raw| {
                add(&mut raw.s_feature_ro_compat, RoCompat::QUOTA.bits());
                raw.s_usr_quota_inum = U32::new(4);
            },
            role(SpecialInode::UserQuota, 4),
        ),
        (
            |raw| {
                add(&mut raw.s_feature_ro_compat, RoCompat::QUOTA.bits());
                raw.s_grp_quota_inum = U32::new(3);
            },
            role(SpecialInode::GroupQuota, 3),
        ),
        (
            |raw| {
                add(&mut raw.s_feature_ro_compat, RoCompat::QUOTA.bits());
                raw.s_prj_quota_inum = U32::new(2);
            },
            role(SpecialInode::ProjectQuota, 2),
        ),
        (|raw| raw.s_usr_quota_inum = U32::new(5), role(SpecialInode::UserQuota, 5)),
        (|raw| raw.s_prj_quota_inum = U32::new(2), role(SpecialInode::ProjectQuota, 2)),
        (|raw| raw.s_min_extra_isize = U16::new(129), D::MinExtraIsize { found: 129, most: 128 }),
        (|raw| raw.s_want_extra_isize = U16::new(30), D::WantExtraIsize { found: 30, most: 128 }),
        (|raw| raw.s_r_blocks_count_lo = U32::new(60_000), D::ReservedBlocks { found: 60_000, most: 49_652 }),
        (|raw| raw.s_free_blocks_count_lo = U32::new(99_305), D::FreeBlocks { found: 99_305, most: 99_304 }),
        (|raw| raw.s_free_inodes_count = U32::new(32_769), D::FreeInodes { found: 32_769, most: 32_768 }),
        (
            |raw| {
                add(&mut raw.s_feature_incompat, Incompat::MMP.bits());
                raw.s_mmp_block = U64::new(99_304);
            },
            D::MmpBlock { found: 99_304, most: 99_304 },
        ),
        (|raw| raw.s_flags = U32::new(SuperFlags::TEST_FILESYS.bits()), D::TestFlag),
        (|raw| add(&mut raw.s_feature_incompat, Incompat::CASEFOLD.bits()), D::Encoding { found: 0 }),
        (|raw| raw.s_creator_os = U32::new(1), D::HurdFiletype),
        (|raw| raw.s_mtime = U32::new(2000), D::FutureMount { found: 2000, now: 1000 }),
        (|raw| raw.s_wtime = U32::new(2000), D::FutureWrite { found: 2000, now: 1000 }),
    ];
    let context = SuperContext { device_bytes: Some(99_304 * 4096), now: Some(1000) };
    for (change, expected) in cases {
        let mut raw = sample();
        change(&mut raw);
        if raw.s_rev_level.get() == 0 {
            // The first revision has inodes of 128 bytes.
            raw.s_want_extra_isize = U16::new(0);
        }
        let (found, superblock) = damages(raw, &context);
        assert_eq!(found, [*expected]);
        assert!(superblock.is_some() && !expected.is_fatal(), "{expected}");
    }
    let short = SuperContext { device_bytes: Some(99_304 * 4096 - 1), ..context };
    assert_eq!(damages(sample(), &short).0, [D::DeviceSize { blocks: 99_304, device: 99_303 }]);
}

#[test]
fn unsupported_superblocks_are_not_corrupt() {
    for (what, result) in [
        ("checksum type", with(|raw| raw.s_checksum_type = 2)),
        ("revision", with(|raw| raw.s_rev_level = U32::new(2))),
    ] {
        assert!(matches!(result, Err(Error::Unsupported { .. })), "{what}: {result:?}");
    }
}

#[test]
fn each_feature_bit_alone_is_judged() {
    for bit in 0..32 {
        let flag = 1u32 << bit;
        let incompat = Incompat::from_bits_retain(flag);
        let name = incompat.names()[0].clone();
        let mode = with(|raw| raw.s_feature_incompat = U32::new(raw.s_feature_incompat.get() | flag))
            .and_then(|superblock| check(&superblock));
        if Incompat::READ_WRITE.contains(incompat) {
            assert_eq!(mode, Ok(MountMode::ReadWrite), "{name}");
        } else {
            // For a journal device, the error says more than the name of the feature.
            let refused = matches!(&mode, Err(Error::Unsupported { detail }) if detail.contains(&name));
            assert!(refused, "{name}: {mode:?}");
        }

        let ro_compat = RoCompat::from_bits_retain(flag);
        let name = ro_compat.names()[0].clone();
        let mode = with(|raw| raw.s_feature_ro_compat = U32::new(raw.s_feature_ro_compat.get() | flag))
            .and_then(|superblock| check(&superblock))
            .unwrap();
        if RoCompat::READ_WRITE.contains(ro_compat) {
            assert_eq!(mode, MountMode::ReadWrite, "{name}");
        } else {
            let MountMode::ReadOnly { reasons } = mode else { panic!("{name} allows writing") };
            assert!(reasons[0].contains(&name), "{name}: {reasons:?}");
        }

        let superblock = with(|raw| raw.s_feature_compat = U32::new(flag)).unwrap();
        // This also holds for `has_journal`: the sample gives no journal inode, so its journal is on another device.
        assert_eq!(check(&superblock), Ok(MountMode::ReadWrite), "compatible bit {bit}");
    }
}

#[test]
fn backups_follow_the_rule() {
    let list = |superblock: &SuperBlock| superblock.backup_groups().map(|group| group.0).collect::<Vec<_>>();
    let large = |raw: &mut RawSuperBlock| {
        raw.s_blocks_count_lo = U32::new(130 * 32768);
        raw.s_inodes_count = U32::new(130 * 8192);
    };
    assert_eq!(list(&with(large).unwrap()), [1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
    let all = with(|raw| raw.s_feature_ro_compat = U32::new(0)).unwrap();
    assert_eq!(list(&all), [1, 2, 3]);
    let two = with(|raw| {
        raw.s_feature_compat = U32::new(Compat::SPARSE_SUPER2.bits());
        raw.s_backup_bgs = [U32::new(2), U32::new(0)];
    });
    assert_eq!(list(&two.unwrap()), [2]);
    assert_eq!(
        backup_candidates(1 << 40).take(4).collect::<Vec<_>>(),
        [(8193 * 1024, 1024), (16384 * 2048, 2048), (32768 * 4096, 4096), (65536 * 8192, 8192)]
    );
}

#[test]
fn inodes_and_blocks_find_their_group() {
    let superblock = decode(sample()).unwrap();
    let place = superblock.inode_location(InodeNr(8192 + 18)).unwrap();
    assert_eq!((place.group, place.index, place.table_block, place.offset), (GroupNr(1), 17, 1, 256));
    assert_eq!(superblock.inode_at(place.group, place.index), Some(InodeNr(8192 + 18)));
    superblock.inode_location(InodeNr(0)).unwrap_err();
    superblock.inode_location(InodeNr(4 * 8192 + 1)).unwrap_err();
    assert_eq!(superblock.inode_at(GroupNr(4), 0), None);
    assert_eq!(superblock.group_of_block(BlockNr(32768 * 2 + 5)), Some((GroupNr(2), 5)));
    assert_eq!(superblock.group_of_block(BlockNr(3 * 32768 + 1000)), None);
    assert!(superblock.contains_range(BlockNr(3 * 32768), 1000));
    assert!(!superblock.contains_range(BlockNr(3 * 32768), 1001));
    assert!(!superblock.contains_range(BlockNr(5), u64::MAX));
}

#[test]
fn the_largest_file_sizes_follow_map_and_block_count() {
    let superblock = decode(sample()).unwrap();
    assert_eq!(superblock.max_extent_file_size(), u64::from(u32::MAX) * 4096);
    assert_eq!(superblock.max_indirect_file_size(), (12 + 1024 + 1024 * 1024 + 1024u64.pow(3)) * 4096);
    let small = with(|raw| raw.s_feature_ro_compat = U32::new(0)).unwrap();
    assert_eq!(small.max_extent_file_size(), ((1 << 29) - 1) * 4096);
    // There are 2^29 - 1 blocks of 4 KiB to count, and about one in 1024 of them is indirect.
    let limit = small.max_indirect_file_size();
    assert!((2194719883264u64..2u64 << 40).contains(&limit), "{limit}");
}

#[test]
fn changes_of_a_mount_round_trip() {
    let mut superblock = decode(sample()).unwrap();
    superblock.set_needs_recovery(true);
    superblock.set_orphan_present(true);
    assert!(superblock.set_large_file() && !superblock.set_large_file());
    superblock.set_mount_time(0x1_2345_6789);
    superblock.set_write_time(-5);
    superblock.set_mount_count(7);
    superblock.set_last_mounted(&[b'x'; 100]);
    superblock.set_last_orphan(Some(InodeNr(12)));
    superblock.set_free_blocks(0x2_0000_0001);
    superblock.set_free_inodes(9);
    superblock.set_kbytes_written(55);
    let event = ErrorEvent { time: 10, ino: 2, block: 3, function: "first_place", line: 4, code: 5 };
    superblock.record_error(&event);
    superblock.record_error(&ErrorEvent { function: "second", time: 11, ..event });
    let mut bytes = [0; SUPERBLOCK_SIZE];
    superblock.encode_into(&mut bytes);

    let read = SuperBlock::decode(&bytes, 1024).unwrap();
    assert!(read.needs_recovery() && read.ro_compat().contains(RoCompat::LARGE_FILE | RoCompat::ORPHAN_PRESENT));
    assert_eq!((read.mount_time(), read.write_time(), read.mount_count()), (0x1_2345_6789, 0, 7));
    assert_eq!(read.last_mounted(), "x".repeat(63));
    assert_eq!(read.last_orphan(), Some(InodeNr(12)));
    assert_eq!((read.free_blocks(), read.free_inodes(), read.kbytes_written()), (0x2_0000_0001, 9, 55));
    assert_eq!(read.error_count(), 2);
    assert_eq!(text(&read.raw().s_first_error_func), "first_place");
    assert_eq!(text(&read.raw().s_last_error_func), "second");
    assert!(read.state().contains(FsState::ERROR));

    let mut older = decode(sample()).unwrap();
    older.copy_errors_from(&read);
    assert_eq!((older.error_count(), older.state()), (2, FsState::ERROR));
    let backup = read.backup_for(GroupNr(3));
    assert!(!backup.needs_recovery());
    assert_eq!(backup.raw().s_block_group_nr.get(), 3);
}

/// mke2fs writes 65535 into the copies of all groups with a larger number.
#[test]
fn a_copy_of_a_group_beyond_16_bits_leads_to_the_start() {
    let groups = 80_000;
    let superblock = with(|raw| {
        raw.s_blocks_count_lo = U32::new(groups * 32768);
        raw.s_inodes_per_group = U32::new(16);
        raw.s_inodes_count = U32::new(groups * 16);
        raw.s_block_group_nr = U16::new(u16::MAX);
    })
    .unwrap();
    let group = GroupNr(5u32.pow(7));
    let byte = superblock.first_block_of_group(group).0 * u64::from(superblock.block_size);
    let found: Vec<_> = find_start(&superblock, byte).filter(|start| start.start == 0).collect();
    assert_eq!(found, [Start { start: 0, group, guessed: false }]);
}
