//! Maps: extent trees and pointer blocks, and blocks that two owners claim.
//!
//! # Locking
//! None.

use crate::damage::edit::{set_half, set_word, word};
use crate::damage::{Edit, Image, Mutation};

const EXT4: &[Image] = &[Image::Ext4];
const INDIRECT: &[Image] = &[Image::Ext3, Image::Ext2];

/// `i_flags`: an indexed directory.
const INDEX_FL: u32 = 0x1000;

/// The bytes of entry `n` of an extent node: the logical block, then the fields of its kind of entry.
fn entry(node: &mut [u8], n: usize) -> &mut [u8] {
    &mut node[12 + n * 12..24 + n * 12]
}

/// Replaces the map of a file by one extent.
fn one_extent(e: &mut Edit, path: &str, lblk: u32, len: u16, pblk: u32) {
    e.inode(path, |i| {
        let root = &mut i.i_block;
        set_half(root, 2, 1);
        set_half(root, 6, 0);
        set_word(root, 12, lblk);
        set_half(root, 16, len);
        set_half(root, 18, 0);
        set_word(root, 20, pblk);
    });
}

pub(super) const TABLE: &[Mutation] = &[
    Mutation {
        name: "block bitmap on the inode table",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| {
            let table = e.group_desc(1).bg_inode_table_lo;
            e.group_copies(1, |g| g.bg_block_bitmap_lo = table);
        },
        expected: &["BB_CONFLICT"],
    },
    Mutation {
        name: "inode bitmap on the inode table",
        images: &[Image::Ext4, Image::Ext2],
        change: |e| {
            let table = e.group_desc(1).bg_inode_table_lo;
            e.group_copies(1, |g| g.bg_inode_bitmap_lo = table);
        },
        expected: &["IB_CONFLICT"],
    },
    Mutation {
        name: "two inode tables in one place",
        images: EXT4,
        change: |e| {
            let table = e.group_desc(1).bg_inode_table_lo;
            e.group_copies(2, |g| g.bg_inode_table_lo = table);
        },
        expected: &["ITABLE_CONFLICT"],
    },
    Mutation {
        name: "pointer behind the end",
        images: INDIRECT,
        change: |e| e.inode("/file", |i| set_word(&mut i.i_block, 0, 1 << 30)),
        expected: &["ILLEGAL_BLOCK_NUM"],
    },
    Mutation {
        name: "pointer block on an inode table",
        images: INDIRECT,
        change: |e| {
            let table = e.group_desc(0).bg_inode_table_lo.get();
            e.inode("/far", |i| set_word(&mut i.i_block, 48, table));
        },
        expected: &["CRITICAL_METADATA_COLLISION"],
    },
    Mutation {
        name: "directory as large as no directory",
        images: INDIRECT,
        change: |e| {
            let block = e.free_block() as u32;
            // A block of the third level is far beyond 2 GiB.
            let [a, b, c] = e.free_blocks(3)[..] else { unreachable!() };
            e.block(a, |p| set_word(p, 1020, b as u32));
            e.block(b, |p| set_word(p, 1020, c as u32));
            e.block(c, |p| set_word(p, 1020, block));
            e.inode("/deep/a/b", |i| set_word(&mut i.i_block, 56, a as u32));
        },
        expected: &["TOOBIG_DIR"],
    },
    Mutation {
        name: "file as large as no file",
        images: &[Image::LargeBlocks],
        change: |e| {
            let [double, single, data] = e.free_blocks(3)[..] else { unreachable!() };
            // 2^25 blocks of 64 KiB, all of which are the same block.
            e.block(double, |p| {
                for at in (0..2048 * 4).step_by(4) {
                    set_word(p, at, single as u32);
                }
            });
            e.block(single, |p| {
                for at in (0..p.len()).step_by(4) {
                    set_word(p, at, data as u32);
                }
            });
            e.inode("/file", |i| set_word(&mut i.i_block, 52, double as u32));
        },
        expected: &["TOOBIG_REG"],
    },
    Mutation {
        name: "symlink with an indirect block",
        images: INDIRECT,
        change: |e| {
            let blocks = e.free_blocks(2);
            e.block(blocks[0], |p| {
                p.fill(0);
                set_word(p, 0, blocks[1] as u32);
            });
            let link = e.raw_inode("/slow").i_block[0];
            assert_ne!(link, 0);
            e.inode("/slow", |i| set_word(&mut i.i_block, 48, blocks[0] as u32));
        },
        expected: &["TOOBIG_SYMLINK"],
    },
    Mutation {
        name: "index on a file",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.inode("/file", |i| i.i_flags.set(i.i_flags.get() | INDEX_FL)),
        expected: &["HTREE_NODIR"],
    },
    Mutation {
        name: "index without its feature",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.superblock(|s| s.s_feature_compat.set(s.s_feature_compat.get() & !0x20)),
        expected: &["HTREE_SET"],
    },
    Mutation {
        name: "root of an index without its first field",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.dir_block("/h1", 0, |b| set_word(b, 24, 1)),
        expected: &["HTREE_BADROOT", "HTREE_BAD_ROOT"],
    },
    Mutation {
        name: "index with an unknown hash",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.dir_block("/h1", 0, |b| b[28] = 77),
        expected: &["HTREE_HASHV"],
    },
    Mutation {
        name: "index with an unknown flag",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.dir_block("/h1", 0, |b| b[31] = 1),
        expected: &["HTREE_INCOMPAT"],
    },
    Mutation {
        name: "index of nine levels",
        images: &[Image::Ext4, Image::Ext3],
        change: |e| e.dir_block("/h1", 0, |b| b[30] = 9),
        expected: &["HTREE_DEPTH"],
    },
    Mutation {
        name: "folded directory with another hash than its own",
        images: &[Image::Casefold],
        change: |e| e.inode("/h1", |i| i.i_flags.set(i.i_flags.get() | 0x4000_0800)),
        expected: &["HTREE_NEEDS_SIPHASH"],
    },
    Mutation {
        name: "plain directory with the hash of encrypted ones",
        images: &[Image::Casefold, Image::Ext4],
        change: |e| e.dir_block("/h1", 0, |b| b[28] = 6),
        expected: &["HTREE_CANNOT_SIPHASH"],
    },
    Mutation {
        name: "extent before the first data block",
        images: EXT4,
        change: |e| one_extent(e, "/file", 0, 20, 0),
        expected: &["EXTENT_BAD_START_BLK"],
    },
    Mutation {
        name: "extent that runs over the end",
        images: EXT4,
        change: |e| one_extent(e, "/file", 0, 20, 32_760),
        expected: &["EXTENT_ENDS_BEYOND"],
    },
    Mutation {
        name: "extents in the wrong order",
        images: EXT4,
        change: |e| {
            e.node("/depth1", 0, |n| {
                let (first, second) = (word(n, 12), word(n, 24));
                set_word(n, 12, second);
                set_word(n, 24, first);
            });
        },
        expected: &["OUT_OF_ORDER_EXTENTS"],
    },
    Mutation {
        name: "extent of no blocks",
        images: EXT4,
        change: |e| e.node("/depth1", 0, |n| set_half(entry(n, 1), 4, 0)),
        expected: &["EXTENT_LENGTH_ZERO"],
    },
    Mutation {
        name: "extent behind its parent's end",
        images: EXT4,
        change: |e| {
            // The last extent of the first leaf of several.
            e.node("/depth2", 1, |n| {
                let last = usize::from(u16::from_le_bytes([n[2], n[3]])) - 1;
                set_half(entry(n, last), 4, 3000);
            });
        },
        expected: &["EXTENT_END_OUT_OF_BOUNDS"],
    },
    Mutation {
        name: "extents that overlap",
        images: EXT4,
        change: |e| {
            e.node("/depth1", 0, |n| {
                let second = word(n, 24);
                set_half(entry(n, 0), 4, second as u16 + 1);
            });
        },
        expected: &["EXTENT_COLLISION"],
    },
    Mutation {
        name: "extent node without magic number",
        images: EXT4,
        change: |e| e.node("/depth1", 0, |n| n[0] = 0),
        expected: &["EXTENT_HEADER_INVALID"],
    },
    Mutation {
        name: "extent node with a wrong checksum",
        images: EXT4,
        change: |e| {
            e.leave_checksums();
            e.node("/depth1", 0, |n| {
                let at = n.len() - 4;
                n[at] ^= 1;
            });
        },
        expected: &["EXTENT_ONLY_CSUM_INVALID"],
    },
    Mutation {
        name: "index that begins before its child",
        images: EXT4,
        change: |e| {
            // The second child of the root, or of the first node below it.
            e.node("/depth2", 0, |n| {
                let start = word(n, 24);
                set_word(n, 24, start - 1);
            });
        },
        expected: &["EXTENT_INDEX_START_INVALID"],
    },
    Mutation {
        name: "extent node on an inode table",
        images: EXT4,
        change: |e| {
            let table = e.group_desc(0).bg_inode_table_lo.get();
            e.inode("/depth1", |i| set_word(&mut i.i_block, 16, table));
        },
        expected: &["CRITICAL_METADATA_COLLISION"],
    },
    Mutation {
        name: "map without its header",
        images: EXT4,
        change: |e| e.inode("/file", |i| i.i_block[0] = 0),
        expected: &["MISSING_EXTENT_HEADER"],
    },
    Mutation {
        name: "extents without their feature",
        images: &[Image::Ext4Plain, Image::Ext4Gdt],
        change: |e| e.superblocks(|s| s.s_feature_incompat.set(s.s_feature_incompat.get() & !0x40)),
        expected: &["EXTENT_FEATURE", "EXTENTS_SET"],
    },
    Mutation {
        name: "extents without their flag",
        images: EXT4,
        change: |e| e.inode("/file", |i| i.i_flags.set(i.i_flags.get() & !0x8_0000)),
        expected: &["UNSET_EXTENT_FL"],
    },
    Mutation {
        name: "fast symlink with the flag of extents",
        images: EXT4,
        change: |e| e.inode("/fast", |i| i.i_flags.set(i.i_flags.get() | 0x8_0000)),
        expected: &["FAST_SYMLINK_EXTENT_FL"],
    },
    Mutation {
        name: "directory with unwritten blocks",
        images: EXT4,
        change: |e| {
            e.inode("/deep/a", |i| {
                let len = u16::from_le_bytes([i.i_block[16], i.i_block[17]]);
                set_half(&mut i.i_block, 16, len + 32_768);
            });
        },
        expected: &["UNINIT_DBLOCK"],
    },
    Mutation {
        name: "directory with a hole at its start",
        images: EXT4,
        change: |e| e.inode("/deep/a", |i| set_word(&mut i.i_block, 12, 3)),
        expected: &["COLLAPSE_DBLOCK"],
    },
    Mutation {
        name: "directory with an extent behind 2 GiB",
        images: EXT4,
        change: |e| e.inode("/deep/a", |i| set_word(&mut i.i_block, 12, 1 << 22)),
        expected: &["TOOBIG_DIR"],
    },
    Mutation {
        name: "extent across clusters",
        images: &[Image::Bigalloc],
        change: |e| {
            e.inode("/file", |i| {
                let block = word(&i.i_block, 20);
                set_word(&mut i.i_block, 20, block + 1);
            });
        },
        expected: &["MISALIGNED_CLUSTER"],
    },
    Mutation {
        name: "pointers with clusters",
        images: &[Image::Bigalloc],
        change: |e| {
            let data = e.data("/file");
            e.inode("/file", |i| {
                i.i_flags.set(i.i_flags.get() & !0x8_0000);
                i.i_block.fill(0);
                for &(lblk, block) in data.iter().take(12) {
                    set_word(&mut i.i_block, lblk as usize * 4, block as u32);
                }
            });
        },
        expected: &["NO_BIGALLOC_BLOCKMAP_FILES"],
    },
    Mutation {
        name: "two files with the same block",
        images: &[Image::Ext4, Image::Ext2, Image::Ext3],
        change: |e| {
            let block = e.data("/other")[0].1 as u32;
            if e.raw_inode("/file").i_flags.get() & 0x8_0000 != 0 {
                one_extent(e, "/file", 0, 1, block);
            } else {
                e.inode("/file", |i| set_word(&mut i.i_block, 0, block));
            }
        },
        expected: &["DUP_BLOCK"],
    },
];
