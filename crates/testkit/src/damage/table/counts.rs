//! Links, reference counts, bitmaps, free counts, quota.
//!
//! # Locking
//! None.

use crate::damage::edit::{set_half, set_word, word};
use crate::damage::{Edit, Image, Mutation};

const BOTH: &[Image] = &[Image::Ext4, Image::Ext2];

/// The inodes of the user quota and of the group quota.
const USERS: u32 = 3;
const GROUPS: u32 = 4;

/// The lowest block of the tree that leads to an entry of user 0, and the block with that entry.
fn quota_path(e: &Edit) -> (u64, u64) {
    let blocks = e.data(USERS);
    let mut at = 1;
    for _ in 0..3 {
        at = word(&e.read(blocks[at].1 * 1024, 4), 0) as usize;
    }
    let entries = word(&e.read(blocks[at].1 * 1024, 4), 0) as usize;
    (blocks[at].1, blocks[entries].1)
}

fn quota_header(e: &mut Edit, file: u32, at: usize, value: u32) {
    let block = e.data(file)[0].1;
    e.block(block, |b| set_word(b, at, value));
}

pub(super) const TABLE: &[Mutation] = &[
    Mutation {
        name: "empty file without a name",
        images: BOTH,
        change: |e| e.entry("/empty", |d, _| d.inode.set(0)),
        expected: &["ZERO_LEN_INODE"],
    },
    Mutation {
        name: "file without a name",
        images: BOTH,
        change: |e| e.entry("/ea", |d, _| d.inode.set(0)),
        expected: &["UNATTACHED_INODE"],
    },
    Mutation {
        name: "more links than names",
        images: BOTH,
        change: |e| e.inode("/other", |i| i.i_links_count.set(9)),
        expected: &["BAD_REF_COUNT"],
    },
    Mutation {
        name: "indexed directory that has had too many links",
        images: BOTH,
        change: |e| e.inode("/h1", |i| i.i_links_count.set(1)),
        expected: &["DIR_OVERFLOW_REF_COUNT"],
    },
    Mutation {
        name: "more subdirectories than links can count",
        images: &[Image::ManyInodes],
        change: |e| {
            let (parent, first, count) = (e.ino("/lost+found"), 200, 65_025);
            // Directories with blocks would need much space; inline directories have no blocks.
            let mut child = e.inode_bytes("/inlinedir", |b| b.to_vec());
            child[40..44].copy_from_slice(&parent.to_le_bytes());
            // The one name in it refers to no inode.
            child[44..48].fill(0);
            for ino in first..first + count {
                e.inode_bytes(ino, |b| b.copy_from_slice(&child));
                e.set_inode_bit(ino, true);
            }
            let blocks = e.free_blocks(765);
            for (i, &block) in blocks.iter().enumerate() {
                e.block(block, |b| {
                    for (j, entry) in b.chunks_mut(12).take(85).enumerate() {
                        set_word(entry, 0, first + (i * 85 + j) as u32);
                        set_half(entry, 4, if j == 84 { 1024 - 84 * 12 } else { 12 });
                        let name = [b'a' + (i / 28) as u8, b'a' + (i % 28) as u8, b'0' + j as u8, b'x'];
                        // The names in a block differ in one byte, which must not be a slash.
                        entry[6..12].copy_from_slice(&[4, 2, name[0], name[1], name[2], name[3]]);
                    }
                });
            }
            e.inode(parent, |i| {
                // First its first block, then these.
                set_half(&mut i.i_block, 2, 2);
                set_half(&mut i.i_block, 16, 1);
                set_word(&mut i.i_block, 24, 1);
                set_half(&mut i.i_block, 28, 765);
                set_half(&mut i.i_block, 30, 0);
                set_word(&mut i.i_block, 32, blocks[0] as u32);
                i.i_size_lo.set(766 * 1024);
                i.i_blocks_lo.set(766 * 2);
            });
        },
        expected: &["DIR_NLINK_FEATURE"],
    },
    Mutation {
        name: "inode bitmap without padding",
        images: BOTH,
        change: |e| e.inode_bitmap(0, |b| *b.last_mut().expect("a block") = 0),
        expected: &["INODE_BMAP_PADDING"],
    },
    Mutation {
        name: "block bitmap without padding",
        images: BOTH,
        change: |e| {
            let last = e.groups() - 1;
            e.block_bitmap(last, |b| *b.last_mut().expect("a block") &= 0x7F);
        },
        expected: &["BLOCK_BMAP_PADDING"],
    },
    Mutation {
        name: "free block marked as used",
        images: BOTH,
        change: |e| {
            let block = e.free_block();
            e.set_block_bit(block, true);
        },
        expected: &["BLOCK_UNUSED"],
    },
    Mutation {
        name: "used block marked as free",
        images: BOTH,
        change: |e| {
            let block = e.data("/file")[0].1;
            e.set_block_bit(block, false);
        },
        expected: &["BLOCK_USED"],
    },
    Mutation {
        name: "free inode marked as used",
        images: BOTH,
        change: |e| {
            let ino = e.free_ino();
            e.set_inode_bit(ino, true);
        },
        expected: &["INODE_UNUSED"],
    },
    Mutation {
        name: "used inode marked as free",
        images: BOTH,
        change: |e| {
            let ino = e.ino("/empty");
            e.set_inode_bit(ino, false);
        },
        expected: &["INODE_USED"],
    },
    Mutation {
        name: "group's count of free inodes",
        images: BOTH,
        change: |e| e.group(0, |g| g.bg_free_inodes_count_lo.set(g.bg_free_inodes_count_lo.get() - 1)),
        expected: &["FREE_INODE_COUNT_GROUP"],
    },
    Mutation {
        name: "group's count of directories",
        images: BOTH,
        change: |e| e.group(0, |g| g.bg_used_dirs_count_lo.set(g.bg_used_dirs_count_lo.get() + 1)),
        expected: &["FREE_DIR_COUNT_GROUP"],
    },
    Mutation {
        name: "count of free inodes",
        images: BOTH,
        change: |e| e.superblock(|s| s.s_free_inodes_count.set(s.s_free_inodes_count.get() - 1)),
        expected: &["FREE_INODE_COUNT"],
    },
    Mutation {
        name: "group's count of free blocks",
        images: BOTH,
        change: |e| e.group(0, |g| g.bg_free_blocks_count_lo.set(g.bg_free_blocks_count_lo.get() - 1)),
        expected: &["FREE_BLOCK_COUNT_GROUP"],
    },
    Mutation {
        name: "count of free blocks",
        images: BOTH,
        change: |e| e.superblock(|s| s.s_free_blocks_count_lo.set(s.s_free_blocks_count_lo.get() - 1)),
        expected: &["FREE_BLOCK_COUNT"],
    },
    Mutation {
        name: "block in a group whose bitmap is unwritten",
        images: &[Image::Ext4, Image::Ext4Gdt],
        change: |e| {
            let group = e.data("/file")[0].1 / 8192;
            e.group(group as u32, |g| g.bg_flags.set(g.bg_flags.get() | 2));
        },
        expected: &["BLOCK_UNINIT"],
    },
    Mutation {
        name: "inode bitmap with a wrong checksum",
        images: &[Image::Ext4],
        change: |e| e.group(0, |g| g.bg_inode_bitmap_csum_lo.set(!g.bg_inode_bitmap_csum_lo.get())),
        expected: &["INODE_BITMAP_CSUM_INVALID"],
    },
    Mutation {
        name: "block bitmap with a wrong checksum",
        images: &[Image::Ext4],
        change: |e| e.group(0, |g| g.bg_block_bitmap_csum_lo.set(!g.bg_block_bitmap_csum_lo.get())),
        expected: &["BLOCK_BITMAP_CSUM_INVALID"],
    },
    Mutation {
        name: "used blocks that no quota counts",
        images: &[Image::Quota],
        change: |e| e.inode("/other", |i| i.i_uid.set(1234)),
        expected: &["UPDATE_QUOTAS"],
    },
    Mutation {
        name: "file of another project",
        images: &[Image::Quota],
        change: |e| e.extra("/other", |i| i.i_projid.set(70)),
        expected: &["UPDATE_QUOTAS"],
    },
    Mutation {
        name: "quota counts too many bytes",
        images: &[Image::Quota],
        change: |e| {
            let (_, entries) = quota_path(e);
            e.block(entries, |b| set_word(b, 16 + 48, word(b, 16 + 48) + 1024));
        },
        expected: &["UPDATE_QUOTAS"],
    },
    Mutation {
        name: "quota counts too few inodes",
        images: &[Image::Quota],
        change: |e| {
            let (_, entries) = quota_path(e);
            e.block(entries, |b| set_word(b, 16 + 24, word(b, 16 + 24) - 1));
        },
        expected: &["UPDATE_QUOTAS"],
    },
    Mutation {
        name: "quota without an owner's entry",
        images: &[Image::Quota],
        change: |e| {
            let (_, entries) = quota_path(e);
            e.block(entries, |b| b[16..16 + 72].fill(0));
        },
        expected: &["UPDATE_QUOTAS"],
    },
    Mutation {
        name: "quota tree leads behind its file",
        images: &[Image::Quota],
        change: |e| {
            let (node, _) = quota_path(e);
            e.block(node, |b| set_word(b, 255 * 4, 5000));
        },
        expected: &["UPDATE_QUOTAS"],
    },
    Mutation {
        name: "quota tree leads in circles",
        images: &[Image::Quota],
        change: |e| {
            let root = e.data(USERS)[1].1;
            e.block(root, |b| b.chunks_mut(4).for_each(|number| set_word(number, 0, 1)));
        },
        expected: &["UPDATE_QUOTAS"],
    },
    Mutation {
        name: "quota file of an unknown version",
        images: &[Image::Quota],
        change: |e| quota_header(e, GROUPS, 4, 2),
        expected: &["UPDATE_QUOTAS"],
    },
    Mutation {
        name: "quota file with more blocks than it has",
        images: &[Image::Quota],
        change: |e| quota_header(e, GROUPS, 20, 5000),
        expected: &["UPDATE_QUOTAS"],
    },
    Mutation {
        name: "quota file whose free blocks begin behind its end",
        images: &[Image::Quota],
        change: |e| quota_header(e, GROUPS, 24, 5000),
        expected: &["UPDATE_QUOTAS"],
    },
];
