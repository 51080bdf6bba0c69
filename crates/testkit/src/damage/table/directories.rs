//! Directories: entries, dot entries, types, the inodes that they refer to, indexes.
//!
//! # Locking
//! None.

use crate::damage::edit::{set_half, set_word, word};
use crate::damage::{Edit, Image, Mutation};

const BOTH: &[Image] = &[Image::Ext4, Image::Ext2];
const INDEXED: &[Image] = &[Image::Ext4, Image::Ext3];

/// The block of the first leaf of `/h2` and the bytes of entry `n` of its first index node.
fn index_entry(node: &mut [u8], n: usize) -> &mut [u8] {
    &mut node[8 + n * 8..16 + n * 8]
}

/// The logical number of the first index node of `/h2`.
fn first_node(e: &mut Edit) -> u64 {
    e.dir_block("/h2", 0, |b| u64::from(word(b, 36)))
}

/// Renames `/dir/two` to a name of the same length.
fn rename(e: &mut Edit, name: &[u8]) {
    e.entry("/dir/two", |d, n| {
        d.name_len = name.len() as u8;
        n[..name.len()].copy_from_slice(name);
    });
}

pub(super) const TABLE: &[Mutation] = &[
    Mutation {
        name: "dot leads elsewhere",
        images: BOTH,
        change: |e| e.entry("/dir/.", |d, _| d.inode.set(2)),
        expected: &["BAD_INODE_DOT"],
    },
    Mutation {
        name: "entry of a reserved inode",
        images: BOTH,
        change: |e| e.entry("/dir/two", |d, _| d.inode.set(5)),
        expected: &["BAD_INO"],
    },
    Mutation {
        name: "entry of an unused inode",
        images: BOTH,
        change: |e| {
            // A deleted inode, so that its group has no more unused inodes than before.
            let ino = e.ino("/empty");
            e.inode(ino, |i| {
                i.i_links_count.set(0);
                i.i_dtime.set(1_000_000_000);
            });
        },
        expected: &["UNUSED_INODE"],
    },
    Mutation {
        name: "entry of its own directory",
        images: BOTH,
        change: |e| {
            let ino = e.ino("/dir");
            e.entry("/dir/two", |d, _| d.inode.set(ino));
        },
        expected: &["LINK_DOT"],
    },
    Mutation {
        name: "second name of a directory",
        images: BOTH,
        change: |e| {
            let ino = e.ino("/deep/a");
            e.entry("/dir/two", |d, _| d.inode.set(ino));
        },
        expected: &["LINK_DIR"],
    },
    Mutation {
        name: "name of the root",
        images: BOTH,
        change: |e| e.entry("/dir/two", |d, _| d.inode.set(2)),
        expected: &["LINK_ROOT"],
    },
    Mutation { name: "name with a slash", images: BOTH, change: |e| rename(e, b"a/b"), expected: &["BAD_NAME"] },
    Mutation {
        name: "no dot",
        images: BOTH,
        change: |e| e.entry("/deep/a/b/.", |d, _| d.inode.set(0)),
        expected: &["MISSING_DOT"],
    },
    Mutation {
        name: "no dot dot",
        images: BOTH,
        change: |e| e.entry("/deep/a/b/..", |d, _| d.inode.set(0)),
        expected: &["MISSING_DOT_DOT"],
    },
    Mutation {
        name: "first entry is not dot",
        images: BOTH,
        change: |e| e.entry("/deep/a/b/.", |_, n| n[0] = b'x'),
        expected: &["1ST_NOT_DOT"],
    },
    Mutation {
        name: "second entry is not dot dot",
        images: BOTH,
        change: |e| e.entry("/deep/a/b/..", |_, n| n[1] = b'x'),
        expected: &["2ND_NOT_DOT_DOT"],
    },
    Mutation {
        name: "dot does not end",
        images: BOTH,
        change: |e| e.entry("/deep/a/b/.", |_, n| n[1] = b'x'),
        expected: &["DOT_NULL_TERM"],
    },
    Mutation {
        name: "dot dot does not end",
        images: BOTH,
        change: |e| e.entry("/deep/a/b/..", |_, n| n[2] = b'x'),
        expected: &["DOT_DOT_NULL_TERM"],
    },
    Mutation {
        name: "dot is long",
        images: BOTH,
        change: |e| {
            e.dir_block("/deep/a/b", 0, |b| {
                let rest = b.len() as u16 - 12;
                let tail = if b[b.len() - 5] == 0xDE { 12 } else { 0 };
                b.copy_within(12..24, 40);
                set_half(b, 4, 40);
                set_half(b, 44, rest + 12 - 40 - tail);
            });
        },
        expected: &["SPLIT_DOT"],
    },
    Mutation { name: "second dot", images: BOTH, change: |e| rename(e, b"."), expected: &["DUP_DOT"] },
    Mutation { name: "second dot dot", images: BOTH, change: |e| rename(e, b".."), expected: &["DUP_DOT_DOT"] },
    Mutation { name: "empty name", images: BOTH, change: |e| rename(e, b""), expected: &["NULL_NAME"] },
    Mutation {
        name: "address of a fragment",
        images: BOTH,
        change: |e| e.inode("/chr", |i| i.i_obso_faddr.set(5)),
        expected: &["FADDR_ZERO"],
    },
    Mutation {
        name: "directory over 4 GiB",
        images: BOTH,
        change: |e| e.inode("/dir", |i| i.i_size_high.set(1)),
        expected: &["DIR_SIZE_HIGH_ZERO"],
    },
    Mutation {
        name: "fragments of the Hurd",
        images: &[Image::Ext2Rev0],
        change: |e| {
            e.superblocks(|s| s.s_creator_os.set(1));
            // The Hurd's fields occupy the place of the high half of Linux's block count.
            e.inode("/chr", |i| {
                i.l_i_blocks_high.set(0x0101);
                i.i_obso_faddr.set(1);
            });
        },
        expected: &["FRAG_ZERO", "FSIZE_ZERO"],
    },
    Mutation {
        name: "mode of nothing",
        images: BOTH,
        change: |e| e.inode("/empty", |i| i.i_mode.set(0o644)),
        expected: &["BAD_MODE"],
    },
    Mutation {
        name: "entry that runs over its block",
        images: BOTH,
        change: |e| e.entry("/dir/two", |d, _| d.rec_len.set(5000)),
        expected: &["DIR_CORRUPTED"],
    },
    Mutation {
        name: "directory with a hole",
        images: &[Image::Ext2, Image::Ext3],
        change: |e| e.inode("/h1", |i| set_word(&mut i.i_block, 8, 0)),
        expected: &["DIRECTORY_HOLE"],
    },
    Mutation {
        name: "character device with an index",
        images: BOTH,
        change: |e| e.inode("/chr", |i| i.i_flags.set(0x1000)),
        expected: &["BAD_CHAR_DEV"],
    },
    Mutation {
        name: "block device with an index",
        images: BOTH,
        change: |e| e.inode("/blk", |i| i.i_flags.set(0x1000)),
        expected: &["BAD_BLOCK_DEV"],
    },
    Mutation {
        name: "pipe with an index",
        images: BOTH,
        change: |e| e.inode("/fifo", |i| i.i_flags.set(0x1000)),
        expected: &["BAD_FIFO"],
    },
    Mutation {
        name: "socket with an index",
        images: BOTH,
        change: |e| e.inode("/sock", |i| i.i_flags.set(0x1000)),
        expected: &["BAD_SOCKET"],
    },
    Mutation {
        name: "no type in an entry",
        images: BOTH,
        change: |e| e.entry("/dir/two", |d, _| d.file_type = 0),
        expected: &["SET_FILETYPE"],
    },
    Mutation {
        name: "wrong type in an entry",
        images: BOTH,
        change: |e| e.entry("/dir/two", |d, _| d.file_type = 2),
        expected: &["BAD_FILETYPE"],
    },
    Mutation {
        name: "type in an entry without its feature",
        images: &[Image::Ext2Rev0],
        change: |e| e.entry("/dir/two", |d, _| d.file_type = 1),
        expected: &["CLEAR_FILETYPE"],
    },
    Mutation {
        name: "fast symlink that does not end where it says",
        images: BOTH,
        change: |e| e.inode("/fast", |i| i.i_size_lo.set(20)),
        expected: &["INVALID_SYMLINK"],
    },
    Mutation {
        name: "file of 3 GiB without the feature",
        images: &[Image::Ext2Rev0, Image::Ext2],
        change: |e| {
            e.superblocks(|s| s.s_feature_ro_compat.set(s.s_feature_ro_compat.get() & !2));
            e.inode("/empty", |i| i.i_size_lo.set(3 << 30));
        },
        expected: &["FEATURE_LARGE_FILES"],
    },
    Mutation {
        name: "high half of a count of blocks without its feature",
        images: &[Image::Ext4Plain, Image::Ext2],
        change: |e| e.inode("/file", |i| i.l_i_blocks_high.set(1)),
        expected: &["BLOCKS_HI_ZERO"],
    },
    Mutation {
        name: "index leaves out a block",
        images: INDEXED,
        change: |e| {
            e.dir_block("/h1", 0, |b| {
                let count = u16::from_le_bytes([b[34], b[35]]);
                set_half(b, 34, count - 1);
            });
        },
        expected: &["HTREE_NOTREF"],
    },
    Mutation {
        name: "index names a block twice",
        images: INDEXED,
        change: |e| {
            e.dir_block("/h1", 0, |b| {
                let first = word(b, 36);
                set_word(b, 44, first);
            });
        },
        expected: &["HTREE_DUPREF"],
    },
    Mutation {
        name: "hash in an index is too small",
        images: INDEXED,
        change: |e| e.dir_block("/h1", 0, |b| set_word(b, 40, 2)),
        expected: &["HTREE_MAX_HASH"],
    },
    Mutation {
        name: "hash in an index is too large",
        images: INDEXED,
        change: |e| {
            // The hashes of a leaf begin before those that its entry announces.
            e.dir_block("/h1", 0, |b| {
                let next = word(b, 48);
                set_word(b, 40, next - 2);
            });
        },
        expected: &["HTREE_MIN_HASH"],
    },
    Mutation {
        name: "index leads behind the directory",
        images: INDEXED,
        change: |e| e.dir_block("/h1", 0, |b| set_word(b, 44, 5000)),
        expected: &["HTREE_BADBLK"],
    },
    Mutation {
        name: "root of an index with a wrong limit",
        images: INDEXED,
        change: |e| {
            e.dir_block("/h1", 0, |b| {
                let limit = u16::from_le_bytes([b[32], b[33]]);
                set_half(b, 32, limit - 1);
            });
        },
        expected: &["HTREE_BAD_LIMIT"],
    },
    Mutation {
        name: "index node with too many entries",
        images: INDEXED,
        change: |e| {
            let node = first_node(e);
            e.dir_block("/h2", node, |b| set_half(b, 10, 500));
        },
        expected: &["HTREE_BAD_COUNT"],
    },
    Mutation {
        name: "hashes in the wrong order",
        images: INDEXED,
        change: |e| {
            let node = first_node(e);
            e.dir_block("/h2", node, |b| {
                let (second, third) = (word(index_entry(b, 1), 0), word(index_entry(b, 2), 0));
                set_word(index_entry(b, 1), 0, third);
                set_word(index_entry(b, 2), 0, second);
            });
        },
        expected: &["HTREE_HASH_ORDER"],
    },
    Mutation {
        name: "leaf in place of an index node",
        images: INDEXED,
        change: |e| {
            let node = first_node(e);
            let leaf = e.dir_block("/h2", node, |b| word(index_entry(b, 1), 4));
            e.dir_block("/h2", 0, |b| set_word(b, 44, leaf));
        },
        expected: &["HTREE_BAD_DEPTH"],
    },
    Mutation {
        name: "name that a directory has already",
        images: BOTH,
        change: |e| {
            let ino = e.ino("/dir/one");
            rename(e, b"one");
            e.entry("/dir/one", |_, n| n[0] = b'x');
            e.entry("/dir/one", |d, _| d.inode.set(ino));
            e.entry("/dir/xne", |_, n| n[0] = b'o');
        },
        expected: &["DUPLICATE_DIRENT"],
    },
    Mutation {
        name: "indexed directory whose last pointer is wrong",
        images: &[Image::Ext3, Image::Ext2],
        change: |e| {
            let last = e.data("/h1").last().expect("blocks").0 as u32;
            e.dir_block("/h1", 0, |b| {
                // The index must not name it, or e2fsck would clear the index.
                let named = (36..b.len()).step_by(8).find(|&at| word(b, at) == last).expect("in the index");
                set_word(b, named, 1);
            });
            e.node("/h1", 0, |n| set_word(n, (last as usize - 12) * 4, 1 << 30));
        },
        expected: &["UNEXPECTED_HTREE_BLOCK"],
    },
    Mutation {
        name: "name of an inode in a group without inodes",
        images: &[Image::Ext4, Image::Ext4Gdt],
        change: |e| {
            let ino = e.geometry().inodes_per_group * 2 + 5;
            assert_ne!(e.group_desc(2).bg_flags.get() & 1, 0, "the group has no inodes");
            e.entry("/dir/two", |d, _| d.inode.set(ino));
        },
        expected: &["INOREF_BG_INO_UNINIT"],
    },
    Mutation {
        name: "name of an inode that was never used",
        images: &[Image::Ext4, Image::Ext4Gdt],
        change: |e| {
            let ino = e.geometry().inodes_per_group;
            e.entry("/dir/two", |d, _| d.inode.set(ino));
        },
        expected: &["INOREF_IN_UNUSED"],
    },
    Mutation {
        name: "root of an index with a wrong checksum",
        images: &[Image::Ext4],
        change: |e| {
            e.leave_checksums();
            e.dir_block("/h1", 0, |b| {
                let at = b.len() - 4;
                b[at] ^= 1;
            });
        },
        expected: &["HTREE_ROOT_CSUM_INVALID"],
    },
    Mutation {
        name: "index node with a wrong checksum",
        images: &[Image::Ext4],
        change: |e| {
            e.leave_checksums();
            let node = first_node(e);
            e.dir_block("/h2", node, |b| {
                let at = b.len() - 4;
                b[at] ^= 1;
            });
        },
        expected: &["HTREE_NODE_CSUM_INVALID"],
    },
    Mutation {
        name: "directory block without room for a checksum",
        images: &[Image::Ext4],
        change: |e| {
            e.dir_block("/deep/a/b", 0, |b| {
                let tail = b.len() - 12;
                b[tail..].fill(0);
                set_half(b, 16, (tail + 12 - 12) as u16);
            });
        },
        expected: &["LEAF_NODE_MISSING_CSUM"],
    },
    Mutation {
        name: "directory block with a wrong checksum",
        images: &[Image::Ext4],
        change: |e| {
            e.leave_checksums();
            e.dir_block("/deep/a/b", 0, |b| {
                let at = b.len() - 4;
                b[at] ^= 1;
            });
        },
        expected: &["LEAF_NODE_ONLY_CSUM_INVALID"],
    },
    Mutation {
        name: "last entry ends before its block",
        images: BOTH,
        change: |e| {
            e.dir_block("/deep/a/b", 0, |b| {
                let rest = u16::from_le_bytes([b[16], b[17]]);
                set_half(b, 16, rest - 4);
            });
        },
        expected: &["DIR_CORRUPTED"],
    },
    Mutation {
        name: "inline directory of an odd size",
        images: &[Image::InlineData],
        change: |e| {
            // The value that continues the directory's entries, of two bytes.
            e.inode_attributes("/inlinedir", |a| {
                let at = (a.len() - 12) as u16;
                set_half(a, 6, at);
                set_word(a, 12, 2);
            });
        },
        expected: &["BAD_INLINE_DIR_SIZE"],
    },
    Mutation {
        name: "short name in an encrypted directory",
        images: &[Image::Encrypt],
        change: |e| e.entry("/secret/abcdefghijklmnop", |d, _| d.name_len = 5),
        expected: &["BAD_ENCRYPTED_NAME"],
    },
    Mutation {
        name: "plain file in an encrypted directory",
        images: &[Image::Encrypt],
        change: |e| {
            let ino = e.ino("/plain");
            e.entry("/secret/abcdefghijklmnop", |d, _| d.inode.set(ino));
        },
        expected: &["UNENCRYPTED_FILE"],
    },
    Mutation {
        name: "file with another policy than its directory",
        images: &[Image::Encrypt],
        change: |e| {
            e.inode_attributes("/secret/abcdefghijklmnop", |a| crate::damage::image::encryption_context(a, 2));
        },
        expected: &["INCONSISTENT_ENCRYPTION_POLICY"],
    },
    Mutation {
        name: "name that is no text",
        images: &[Image::Casefold],
        change: |e| e.entry("/fold/Name", |_, n| n[1] = 0xFF),
        expected: &["BAD_ENCODED_NAME"],
    },
    Mutation {
        name: "hash in an index of folded names is too small",
        images: &[Image::Casefold],
        change: |e| e.dir_block("/foldindex", 0, |b| set_word(b, 40, 2)),
        expected: &["HTREE_MAX_HASH"],
    },
    Mutation {
        name: "hash in an index of folded names is too large",
        images: &[Image::Casefold],
        change: |e| {
            e.dir_block("/foldindex", 0, |b| {
                let next = word(b, 48);
                set_word(b, 40, next - 2);
            });
        },
        expected: &["HTREE_MIN_HASH"],
    },
    Mutation {
        name: "name that a folded directory has already in another case",
        images: &[Image::Casefold],
        change: |e| {
            e.entry("/fold/Other", |d, n| {
                d.name_len = 4;
                n[..4].copy_from_slice(b"nAME");
            });
        },
        expected: &["DUPLICATE_DIRENT"],
    },
    Mutation {
        name: "index of three levels",
        images: INDEXED,
        change: |e| e.dir_block("/h1", 0, |b| b[30] = 3),
        expected: &["HTREE_DEPTH", "FEATURE_LARGE_DIRS"],
    },
    Mutation {
        name: "no root",
        images: BOTH,
        change: |e| {
            e.inode_bytes(2, |b| b.fill(0));
        },
        expected: &["NO_ROOT_INODE"],
    },
    Mutation {
        name: "directory without a name",
        images: BOTH,
        change: |e| e.entry("/deep", |d, _| d.inode.set(0)),
        expected: &["UNCONNECTED_DIR"],
    },
    Mutation {
        name: "no lost+found",
        images: BOTH,
        change: |e| {
            e.entry("/lost+found", |_, n| n[0] = b'L');
            // e2fsck creates it only if it needs it.
            e.entry("/deep", |d, _| d.inode.set(0));
        },
        expected: &["NO_LF_DIR"],
    },
    Mutation {
        name: "lost+found is a file",
        images: BOTH,
        change: |e| {
            let ino = e.ino("/empty");
            e.entry("/lost+found", |d, _| {
                d.inode.set(ino);
                d.file_type = 1;
            });
        },
        expected: &["LPF_NOTDIR"],
    },
    Mutation {
        name: "lost+found with inline data",
        images: &[Image::InlineData],
        change: |e| {
            let ino = e.ino("/inlinedir");
            let lost = e.ino("/lost+found");
            e.entry("/lost+found", |d, _| d.inode.set(ino));
            e.entry("/inlinedir", |d, _| d.inode.set(lost));
        },
        expected: &["LPF_INLINE_DATA"],
    },
    Mutation {
        name: "encrypted lost+found",
        images: &[Image::Encrypt],
        change: |e| {
            let ino = e.ino("/secret");
            let lost = e.ino("/lost+found");
            e.entry("/lost+found", |d, _| d.inode.set(ino));
            e.entry("/secret", |d, _| d.inode.set(lost));
        },
        expected: &["LPF_ENCRYPTED"],
    },
    Mutation {
        name: "dot dot leads to another directory",
        images: BOTH,
        change: |e| e.entry("/deep/a/..", |d, _| d.inode.set(2)),
        expected: &["BAD_DOT_DOT"],
    },
    Mutation {
        name: "directories in a ring",
        images: BOTH,
        change: |e| {
            let (top, bottom) = (e.ino("/deep/a"), e.ino("/deep/a/b"));
            e.entry("/deep/a/..", |d, _| d.inode.set(bottom));
            // The only name of the upper directory is in the lower one.
            e.dir_block("/deep/a/b", 0, |b| {
                let rest = u16::from_le_bytes([b[16], b[17]]);
                set_half(b, 16, 12);
                set_word(b, 24, top);
                set_half(b, 28, rest - 12);
                b[30..33].copy_from_slice(&[1, 2, b'a']);
            });
            e.entry("/deep/a", |d, _| d.inode.set(0));
        },
        // e2fsck does not detect the cycle itself.
        expected: &["BAD_REF_COUNT"],
    },
];
