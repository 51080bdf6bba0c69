//! Inodes: their fields, and whether these fit each other.
//!
//! # Locking
//! None.

use crate::damage::edit::set_word;
use crate::damage::{Edit, Image, Mutation};

const EXT4: &[Image] = &[Image::Ext4];
const BOTH: &[Image] = &[Image::Ext4, Image::Ext2];

/// Sets flags of an inode.
fn flag(e: &mut Edit, path: &str, flags: u32) {
    e.inode(path, |i| i.i_flags.set(i.i_flags.get() | flags));
}

pub(super) const TABLE: &[Mutation] = &[
    Mutation {
        name: "root is a file",
        images: BOTH,
        change: |e| e.inode(2, |i| i.i_mode.set(0o100_644)),
        expected: &["ROOT_NO_DIR"],
    },
    Mutation {
        name: "root was deleted",
        images: BOTH,
        change: |e| e.inode(2, |i| i.i_dtime.set(1_000_000_000)),
        expected: &["ROOT_DTIME"],
    },
    Mutation {
        name: "reserved inode is a directory",
        images: BOTH,
        change: |e| e.inode(9, |i| i.i_mode.set(0o040_755)),
        expected: &["RESERVED_BAD_MODE"],
    },
    Mutation {
        name: "list of bad blocks with an owner",
        images: BOTH,
        change: |e| e.inode(1, |i| i.i_uid.set(1000)),
        expected: &["INVALID_BAD_INODE"],
    },
    Mutation {
        name: "deleted without a time",
        images: BOTH,
        change: |e| e.inode("/empty", |i| i.i_links_count.set(0)),
        expected: &["ZERO_DTIME"],
    },
    Mutation {
        name: "linked and deleted",
        images: BOTH,
        change: |e| e.inode("/empty", |i| i.i_dtime.set(1_000_000_000)),
        expected: &["SET_DTIME"],
    },
    Mutation {
        name: "time of deletion is an inode's number",
        images: &[Image::Ext2Rev0, Image::Ext2],
        change: |e| e.inode("/empty", |i| i.i_dtime.set(12)),
        expected: &["LOW_DTIME"],
    },
    Mutation {
        name: "directory without blocks",
        images: BOTH,
        change: |e| {
            let extents = e.raw_inode("/deep/a").i_flags.get() & 0x8_0000 != 0;
            e.inode("/deep/a", |i| {
                i.i_blocks_lo.set(0);
                i.i_size_lo.set(0);
                let from = if extents { 12 } else { 0 };
                i.i_block[from..].fill(0);
                if extents {
                    i.i_block[2] = 0;
                }
            });
        },
        expected: &["ZERO_LENGTH_DIR"],
    },
    Mutation {
        name: "file is longer than its blocks",
        images: BOTH,
        change: |e| e.inode("/file", |i| i.i_size_lo.set(1)),
        expected: &["BAD_I_SIZE"],
    },
    Mutation {
        name: "count of blocks",
        images: BOTH,
        change: |e| e.inode("/file", |i| i.i_blocks_lo.set(i.i_blocks_lo.get() + 2)),
        expected: &["BAD_I_BLOCKS"],
    },
    Mutation {
        name: "AFS flag without its feature",
        images: BOTH,
        change: |e| flag(e, "/file", 0x2000),
        expected: &["SET_IMAGIC"],
    },
    Mutation {
        name: "immutable device",
        images: BOTH,
        change: |e| flag(e, "/chr", 0x10),
        expected: &["SET_IMMUTABLE"],
    },
    Mutation {
        name: "device with a size",
        images: BOTH,
        change: |e| e.inode("/blk", |i| i.i_size_lo.set(512)),
        expected: &["SET_NONZSIZE"],
    },
    Mutation {
        name: "journal inode in use without a journal",
        images: &[Image::Ext2, Image::MetaBg],
        change: |e| e.inode(8, |i| i.i_links_count.set(1)),
        expected: &["JOURNAL_INODE_NOT_CLEAR"],
    },
    Mutation {
        name: "journal is a directory",
        // On ext4, e2fsck cannot use the superblock's copy of the journal's map, because it lacks the extents flag.
        images: &[Image::Ext3],
        change: |e| e.inode(8, |i| i.i_mode.set(0o040_600)),
        expected: &["JOURNAL_BAD_MODE"],
    },
    Mutation {
        name: "size of extra fields is odd",
        images: BOTH,
        change: |e| e.extra("/file", |x| x.i_extra_isize.set(7)),
        expected: &["EXTRA_ISIZE"],
    },
    Mutation {
        name: "device that looks like a directory",
        images: &[Image::Ext2, Image::Ext3],
        change: |e| e.inode("/deep/a/b", |i| i.i_mode.set(0o020_755)),
        expected: &["TREAT_AS_DIRECTORY"],
    },
    Mutation {
        name: "inode of nonsense",
        images: EXT4,
        change: |e| {
            // e2fsck checks the checksums in a block of the inode table together: all in this block are wrong.
            e.leave_checksums();
            let first = (e.ino("/empty") - 1) & !3;
            for ino in first + 1..first + 5 {
                e.inode_bytes(ino, |b| b.fill(0xA5));
            }
        },
        expected: &["INODE_IS_GARBAGE"],
    },
    Mutation {
        name: "inode with a wrong checksum",
        images: EXT4,
        change: |e| {
            e.leave_checksums();
            e.inode("/file", |i| i.l_i_checksum_lo.set(!i.l_i_checksum_lo.get()));
        },
        expected: &["INODE_ONLY_CSUM_INVALID"],
    },
    Mutation {
        name: "time before 1970 in the old form",
        images: EXT4,
        change: |e| {
            e.inode("/file", |i| i.i_mtime.set(0x8000_0000));
            e.extra("/file", |x| x.i_mtime_extra.set(3));
        },
        expected: &["EA_TIME_OUT_OF_RANGE"],
    },
    Mutation {
        name: "folded file",
        images: &[Image::Casefold],
        change: |e| flag(e, "/file", 0x4000_0000),
        expected: &["CASEFOLD_NONDIR"],
    },
    Mutation {
        name: "folded directory without its feature",
        images: EXT4,
        change: |e| flag(e, "/dir", 0x4000_0000),
        expected: &["CASEFOLD_FEATURE"],
    },
    Mutation {
        name: "encrypted directory without a policy",
        images: &[Image::Encrypt],
        change: |e| e.inode_attributes("/secret", |a| a.fill(0)),
        expected: &["MISSING_ENCRYPTION_XATTR"],
    },
    Mutation {
        name: "encryption policy that is too short",
        images: &[Image::Encrypt],
        change: |e| e.inode_attributes("/secret", |a| set_word(a, 12, 20)),
        expected: &["CORRUPT_ENCRYPTION_XATTR"],
    },
    Mutation {
        name: "orphan file is a directory",
        images: &[Image::OrphanFile],
        change: |e| e.inode(e.ino_of_orphans(), |i| i.i_mode.set(0o040_600)),
        expected: &["ORPHAN_FILE_BAD_MODE"],
    },
    Mutation {
        name: "orphan file without its feature",
        images: &[Image::OrphanFile],
        change: |e| e.superblock(|s| s.s_feature_compat.set(s.s_feature_compat.get() & !0x1000)),
        expected: &["ORPHAN_FILE_NOT_CLEAR"],
    },
    Mutation {
        name: "quota file is a directory",
        images: &[Image::Quota],
        change: |e| e.inode(3, |i| i.i_mode.set(0o040_600)),
        expected: &["QUOTA_BAD_MODE"],
    },
    Mutation {
        name: "quota file without its feature",
        images: &[Image::Quota],
        change: |e| e.superblock(|s| s.s_feature_ro_compat.set(s.s_feature_ro_compat.get() & !0x100)),
        expected: &["QUOTA_INODE_NOT_CLEAR"],
    },
    Mutation {
        name: "inline data without its feature",
        images: &[Image::InlineData],
        change: |e| e.superblocks(|s| s.s_feature_incompat.set(s.s_feature_incompat.get() & !0x8000)),
        expected: &["INLINE_DATA_FEATURE", "INLINE_DATA_SET"],
    },
    Mutation {
        name: "inline data without its attribute",
        images: &[Image::InlineData],
        change: |e| e.inode_attributes("/inline", |a| a.fill(0)),
        expected: &["INLINE_DATA_NO_ATTR"],
    },
    Mutation {
        name: "device with extents and inline data",
        images: &[Image::InlineData],
        change: |e| flag(e, "/chr", 0x1008_0000),
        expected: &["SPECIAL_EXTENTS_IDATA"],
    },
    Mutation {
        name: "extents that claim to be inline data",
        images: &[Image::InlineData],
        change: |e| flag(e, "/depth1", 0x1008_0000),
        expected: &["CLEAR_INLINE_DATA_FOR_EXTENT"],
    },
    Mutation {
        name: "inline data that claim to be extents",
        images: &[Image::InlineData],
        change: |e| flag(e, "/inline", 0x1008_0000),
        expected: &["CLEAR_EXTENT_FOR_INLINE_DATA"],
    },
    Mutation {
        name: "block map that claims to be extents and inline data",
        images: &[Image::InlineData],
        change: |e| {
            flag(e, "/file", 0x1008_0000);
            e.inode("/file", |i| {
                i.i_block.fill(0);
                set_word(&mut i.i_block, 0, 9000);
            });
        },
        expected: &["CLEAR_EXTENT_INLINE_DATA_FLAGS"],
    },
    Mutation {
        name: "nonsense that claims to be extents and inline data",
        images: &[Image::InlineData],
        change: |e| {
            flag(e, "/file", 0x1008_0000);
            e.inode("/file", |i| i.i_block.fill(0xFE));
        },
        expected: &["CLEAR_EXTENT_INLINE_DATA_INODE"],
    },
];
