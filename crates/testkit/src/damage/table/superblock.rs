//! The superblock, group descriptors, the journal, orphans, multi-mount protection.
//!
//! # Locking
//! None.

use crate::damage::edit::{set_half, set_word};
use crate::damage::{Image, Mutation};

/// `s_feature_ro_compat`: orphans are in the orphan file.
const ORPHAN_PRESENT: u32 = 0x1_0000;
/// `s_feature_incompat`: the journal must be replayed.
const RECOVER: u32 = 4;

pub(super) const TABLE: &[Mutation] = &[
    Mutation {
        name: "block bitmap in another group",
        images: &[Image::Ext4Plain, Image::Ext2, Image::Ext3],
        change: |e| e.group_copies(1, |g| g.bg_block_bitmap_lo.set(8000)),
        expected: &["BB_NOT_GROUP"],
    },
    Mutation {
        name: "inode bitmap in another group",
        images: &[Image::Ext4Plain, Image::Ext2, Image::Ext3],
        change: |e| e.group_copies(1, |g| g.bg_inode_bitmap_lo.set(8000)),
        expected: &["IB_NOT_GROUP"],
    },
    Mutation {
        name: "inode table behind the end",
        images: &[Image::Ext4, Image::Ext2, Image::Ext3],
        change: |e| e.group_copies(1, |g| g.bg_inode_table_lo.set(40_000)),
        expected: &["ITABLE_NOT_GROUP"],
    },
    Mutation {
        name: "no superblock and no backup",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| {
            e.leave_checksums();
            for block in [1, 8193, 24577] {
                e.block(block, |b| set_half(b, 0x38, 0));
            }
        },
        expected: &["SB_CORRUPT"],
    },
    Mutation {
        name: "more blocks than the device has",
        images: &[Image::Ext4, Image::Ext2, Image::Ext4Large],
        change: |e| e.superblock(|s| s.s_blocks_count_lo.set(s.s_blocks_count_lo.get() + 1)),
        expected: &["FS_SIZE_WRONG"],
    },
    Mutation {
        name: "first data block",
        images: &[Image::Ext4],
        change: |e| e.superblocks(|s| s.s_first_data_block.set(0)),
        expected: &["FIRST_DATA_BLOCK"],
    },
    Mutation {
        name: "all blocks reserved",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| e.superblock(|s| s.s_r_blocks_count_lo = s.s_blocks_count_lo),
        expected: &["MISC_CORRUPT_SUPER"],
    },
    Mutation {
        name: "odd size of descriptors that is not used",
        images: &[Image::Ext2, Image::Ext3, Image::Ext4Plain],
        change: |e| e.superblock(|s| s.s_desc_size.set(48)),
        expected: &["MISC_CORRUPT_SUPER"],
    },
    Mutation {
        name: "inode tables larger than a group",
        images: &[Image::Ext2],
        change: |e| {
            e.superblocks(|s| {
                // A table of 512 inodes takes 128 blocks.
                s.s_blocks_per_group.set(128);
                s.s_clusters_per_group.set(128);
                s.s_inodes_count.set(256 * 512);
            });
        },
        expected: &["MISC_CORRUPT_SUPER"],
    },
    Mutation {
        name: "an inode too few",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| e.superblocks(|s| s.s_inodes_count.set(s.s_inodes_count.get() - 1)),
        expected: &["INODE_COUNT_WRONG"],
    },
    Mutation {
        name: "file types on the Hurd",
        images: &[Image::Ext2],
        change: |e| e.superblock(|s| s.s_creator_os.set(1)),
        expected: &["HURD_CLEAR_FILETYPE"],
    },
    Mutation {
        name: "journal inode without links",
        // On ext3, e2fsck uses the superblock's copy of the journal's map.
        images: &[Image::Ext4],
        change: |e| e.inode(8, |i| i.i_links_count.set(0)),
        expected: &["JOURNAL_BAD_INODE"],
    },
    Mutation {
        name: "journal in an inode that is not there",
        images: &[Image::Ext4],
        change: |e| e.superblock(|s| s.s_journal_inum.set(18_157)),
        expected: &["JOURNAL_BAD_INODE"],
    },
    Mutation {
        name: "journal named without its feature in an inode that is not there",
        images: &[Image::Ext2],
        change: |e| e.superblock(|s| s.s_journal_inum.set(18_157)),
        expected: &["JOURNAL_BAD_INODE"],
    },
    Mutation {
        name: "journal superblock that calls itself a descriptor",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.journal(0, |b| b[7] = 1),
        expected: &["JOURNAL_BAD_SUPER"],
    },
    Mutation {
        name: "journal without its feature",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.superblock(|s| s.s_feature_compat.set(s.s_feature_compat.get() & !4)),
        expected: &["JOURNAL_HAS_JOURNAL"],
    },
    Mutation {
        name: "recovery without a journal",
        images: &[Image::Ext2],
        change: |e| e.superblock(|s| s.s_feature_incompat.set(s.s_feature_incompat.get() | RECOVER)),
        expected: &["JOURNAL_RECOVER_SET"],
    },
    Mutation {
        name: "dirty journal without recovery",
        images: &[Image::Dirty],
        change: |e| e.superblock(|s| s.s_feature_incompat.set(s.s_feature_incompat.get() & !RECOVER)),
        expected: &["JOURNAL_RECOVERY_CLEAR"],
    },
    Mutation {
        name: "a feature in the first revision",
        images: &[Image::Ext2Rev0],
        change: |e| e.superblock(|s| s.s_feature_compat.set(0x20)),
        expected: &["FS_REV_LEVEL"],
    },
    Mutation {
        name: "list of orphans begins with a reserved inode",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| e.superblock(|s| s.s_last_orphan.set(5)),
        expected: &["ORPHAN_ILLEGAL_HEAD_INODE"],
    },
    Mutation {
        name: "list of orphans goes on with a reserved inode",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| {
            let ino = e.ino("/empty");
            e.inode(ino, |i| i.i_dtime.set(3));
            e.superblock(|s| s.s_last_orphan.set(ino));
        },
        expected: &["ORPHAN_ILLEGAL_INODE"],
    },
    Mutation {
        name: "journal with an unknown read-only feature",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.journal(0, |b| b[0x2C..0x30].copy_from_slice(&[0, 0, 1, 0])),
        expected: &["JOURNAL_UNSUPP_ROCOMPAT"],
    },
    Mutation {
        name: "journal with an unknown feature",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.journal(0, |b| b[0x28..0x2C].copy_from_slice(&[0, 0, 0x10, 0])),
        expected: &["JOURNAL_UNSUPP_INCOMPAT"],
    },
    Mutation {
        name: "journal superblock of an unknown version",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.journal(0, |b| b[4..8].copy_from_slice(&[0, 0, 0, 9])),
        expected: &["JOURNAL_UNSUPP_VERSION"],
    },
    Mutation {
        name: "blocks reserved for descriptors without a resize inode",
        images: &[Image::MetaBg],
        change: |e| e.superblock(|s| s.s_reserved_gdt_blocks.set(3)),
        expected: &["NONZERO_RESERVED_GDT_BLOCKS"],
    },
    Mutation {
        name: "resize inode without its feature",
        images: &[Image::MetaBg],
        change: |e| e.inode(7, |i| set_word(&mut i.i_block, 0, 2000)),
        expected: &["CLEAR_RESIZE_INODE"],
    },
    Mutation {
        name: "resize inode with a direct block",
        images: &[Image::Ext4, Image::Ext2, Image::Ext3],
        change: |e| e.inode(7, |i| set_word(&mut i.i_block, 0, 2000)),
        expected: &["RESIZE_INODE_INVALID"],
    },
    Mutation {
        name: "mounted in the future",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| e.superblock(|s| s.s_mtime.set(0xF000_0000)),
        expected: &["FUTURE_SB_LAST_MOUNT"],
    },
    Mutation {
        name: "written in the future",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| e.superblock(|s| s.s_wtime.set(0xF000_0000)),
        expected: &["FUTURE_SB_LAST_WRITE"],
    },
    Mutation {
        name: "descriptor with a wrong checksum",
        images: &[Image::Ext4, Image::Ext4Gdt, Image::Ext4Large],
        change: |e| {
            e.leave_checksums();
            e.group(0, |g| g.bg_checksum.set(!g.bg_checksum.get()));
        },
        expected: &["GDT_CSUM"],
    },
    Mutation {
        name: "unused groups without checksums of descriptors",
        images: &[Image::Ext4Plain, Image::Ext2],
        change: |e| e.group(1, |g| g.bg_flags.set(2)),
        expected: &["GDT_UNINIT"],
    },
    Mutation {
        name: "more unused inodes than free ones",
        images: &[Image::Ext4, Image::Ext4Gdt],
        change: |e| e.group(1, |g| g.bg_itable_unused_lo.set(g.bg_free_inodes_count_lo.get() + 1)),
        expected: &["GDT_ITABLE_UNUSED"],
    },
    Mutation {
        name: "last group with an unwritten block bitmap",
        images: &[Image::Ext4, Image::Ext4Gdt],
        change: |e| {
            let last = e.groups() - 1;
            e.group(last, |g| g.bg_flags.set(g.bg_flags.get() | 2));
        },
        expected: &["BB_UNINIT_LAST"],
    },
    Mutation {
        name: "damaged transaction in the log",
        images: &[Image::Dirty],
        // The first transaction is a descriptor in block 1, a copy in block 2 and the commit.
        change: |e| e.journal(3, |b| b[17] ^= 1),
        expected: &["JNL_TXN_CORRUPT"],
    },
    Mutation {
        name: "made for development code",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| e.superblock(|s| s.s_flags.set(s.s_flags.get() | 4)),
        expected: &["CLEAR_TESTFS_FLAG"],
    },
    Mutation {
        name: "multi-mount protection without a block",
        images: &[Image::Mmp],
        change: |e| e.superblock(|s| s.s_mmp_block.set(1 << 40)),
        expected: &["MMP_INVALID_BLK"],
    },
    Mutation {
        name: "multi-mount protection without magic number",
        images: &[Image::Mmp],
        change: |e| {
            let block = e.superblock(|s| s.s_mmp_block.get());
            e.block(block, |b| b[0] ^= 1);
        },
        expected: &["MMP_INVALID_MAGIC"],
    },
    Mutation {
        name: "multi-mount protection with a wrong checksum",
        images: &[Image::Mmp],
        change: |e| {
            let block = e.superblock(|s| s.s_mmp_block.get());
            e.block(block, |b| b[0x3FC] ^= 1);
        },
        expected: &["MMP_CSUM_INVALID"],
    },
    Mutation {
        name: "two kinds of descriptor checksums",
        images: &[Image::Ext4, Image::Ext4Large],
        change: |e| e.superblock(|s| s.s_feature_ro_compat.set(s.s_feature_ro_compat.get() | 0x10)),
        expected: &["META_AND_GDT_CSUM_SET"],
    },
    Mutation {
        name: "wide block numbers without extents",
        images: &[Image::Ext4, Image::Ext4Large],
        change: |e| e.superblock(|s| s.s_feature_incompat.set(s.s_feature_incompat.get() & !0x40)),
        expected: &["64BIT_WITHOUT_EXTENTS"],
    },
    Mutation {
        name: "first metagroup behind the descriptors",
        images: &[Image::MetaBg],
        change: |e| e.superblocks(|s| s.s_first_meta_bg.set(1000)),
        expected: &["FIRST_META_BG_TOO_BIG"],
    },
    Mutation {
        name: "seed of checksums without checksums",
        images: &[Image::Ext4Plain, Image::Ext4Gdt],
        change: |e| e.superblock(|s| s.s_feature_incompat.set(s.s_feature_incompat.get() | 0x2000)),
        expected: &["CSUM_SEED_WITHOUT_META_CSUM"],
    },
    Mutation {
        name: "odd size of extra fields",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| e.superblock(|s| s.s_min_extra_isize.set(5)),
        expected: &["BAD_MIN_EXTRA_ISIZE"],
    },
    Mutation {
        name: "wanted size of extra fields larger than an inode",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| e.superblock(|s| s.s_want_extra_isize.set(4000)),
        expected: &["BAD_WANT_EXTRA_ISIZE"],
    },
    Mutation {
        name: "quota in the boot loader's inode",
        images: &[Image::Quota, Image::Ext4, Image::Ext2],
        change: |e| e.superblock(|s| s.s_usr_quota_inum.set(5)),
        expected: &["INVALID_QUOTA_INO"],
    },
    Mutation {
        name: "more inodes than have numbers",
        images: &[Image::Ext2],
        change: |e| {
            e.superblocks(|s| {
                s.s_blocks_count_lo.set(u32::MAX);
                s.s_inodes_per_group.set(8192);
            });
        },
        expected: &["INODE_COUNT_BIG"],
    },
    Mutation {
        name: "resize inode with metagroups",
        images: &[Image::Ext2, Image::Ext3],
        change: |e| e.superblock(|s| s.s_feature_incompat.set(s.s_feature_incompat.get() | 0x10)),
        expected: &["DISABLE_RESIZE_INODE"],
    },
    Mutation {
        name: "orphan file with a hole",
        images: &[Image::OrphanFile],
        change: |e| {
            let ino = e.superblock(|s| {
                s.s_feature_ro_compat.set(s.s_feature_ro_compat.get() | ORPHAN_PRESENT);
                s.s_orphan_file_inum.get()
            });
            // Its only extent starts one block later.
            e.inode(ino, |i| i.i_block[12] = 1);
        },
        expected: &["ORPHAN_FILE_HOLE"],
    },
    Mutation {
        name: "orphan file without magic number",
        images: &[Image::OrphanFile],
        change: |e| {
            e.superblock(|s| s.s_feature_ro_compat.set(s.s_feature_ro_compat.get() | ORPHAN_PRESENT));
            let at = e.block_size() - 8;
            e.orphans(0, |b| b[at] ^= 1);
        },
        expected: &["ORPHAN_FILE_BAD_MAGIC"],
    },
    Mutation {
        name: "orphan file with a wrong checksum",
        images: &[Image::OrphanFile],
        change: |e| {
            e.superblock(|s| s.s_feature_ro_compat.set(s.s_feature_ro_compat.get() | ORPHAN_PRESENT));
            let block = e.data(e.ino_of_orphans())[0].1;
            let at = e.block_size() - 4;
            e.block(block, |b| b[at] ^= 1);
        },
        expected: &["ORPHAN_FILE_BAD_CHECKSUM"],
    },
    Mutation {
        name: "orphan file that ends within a block",
        images: &[Image::OrphanFile],
        change: |e| {
            e.superblock(|s| s.s_feature_ro_compat.set(s.s_feature_ro_compat.get() | ORPHAN_PRESENT));
            let ino = e.ino_of_orphans();
            e.inode(ino, |i| i.i_size_lo.set(i.i_size_lo.get() - 1));
        },
        expected: &["ORPHAN_FILE_WRONG_SIZE"],
    },
    Mutation {
        name: "orphan file without a journal",
        images: &[Image::OrphanFile],
        change: |e| {
            e.superblock(|s| {
                s.s_feature_compat.set(s.s_feature_compat.get() & !4);
                s.s_journal_inum.set(0);
                s.s_jnl_backup_type = 0;
            });
            e.inode_bytes(8, |b| b.fill(0));
        },
        expected: &["ORPHAN_FILE_WITHOUT_JOURNAL"],
    },
    Mutation {
        name: "orphan in a clean file system",
        images: &[Image::OrphanFile],
        change: |e| {
            let ino = e.ino("/empty");
            e.orphans(0, |b| set_word(b, 0, ino));
        },
        expected: &["ORPHAN_BLOCK_DIRTY"],
    },
    Mutation {
        name: "orphans announced and none there",
        images: &[Image::OrphanFile],
        change: |e| e.superblock(|s| s.s_feature_ro_compat.set(s.s_feature_ro_compat.get() | ORPHAN_PRESENT)),
        expected: &["ORPHAN_PRESENT_CLEAN_FILE"],
    },
    Mutation {
        name: "orphans announced without an orphan file",
        images: &[Image::Ext4],
        change: |e| e.superblock(|s| s.s_feature_ro_compat.set(s.s_feature_ro_compat.get() | ORPHAN_PRESENT)),
        expected: &["ORPHAN_PRESENT_NO_FILE"],
    },
];
