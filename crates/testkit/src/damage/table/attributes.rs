//! Extended attributes, in inodes and in blocks, and the inodes that hold large values.
//!
//! # Locking
//! None.

use crate::damage::edit::{set_half, set_word, word};
use crate::damage::image::{SECRET_IN_BLOCK, encryption_context_in_block};
use crate::damage::{Image, Mutation};

const BOTH: &[Image] = &[Image::Ext4, Image::Ext2];
const VALUES: &[Image] = &[Image::EaInode];

/// The offset of the first entry in a block.
const FIRST: usize = 32;

pub(super) const TABLE: &[Mutation] = &[
    Mutation {
        name: "attribute block without magic number",
        images: BOTH,
        change: |e| e.attributes("/eablock", |b| b[0] ^= 1),
        expected: &["BAD_EA_BLOCK"],
    },
    Mutation {
        name: "attribute block with too many references",
        images: BOTH,
        change: |e| e.attributes("/eablock", |b| set_word(b, 4, 7)),
        expected: &["EXTATTR_REFCOUNT"],
    },
    Mutation {
        name: "attributes in two blocks",
        images: BOTH,
        change: |e| e.attributes("/eablock", |b| set_word(b, 8, 2)),
        expected: &["EA_MULTI_BLOCK"],
    },
    Mutation {
        name: "attribute's value on its name",
        images: BOTH,
        change: |e| e.attributes("/eablock", |b| set_half(b, FIRST + 2, FIRST as u16)),
        expected: &["EA_ALLOC_COLLISION"],
    },
    Mutation {
        name: "attribute without a namespace",
        images: BOTH,
        change: |e| e.attributes("/eablock", |b| b[FIRST + 1] = 0),
        expected: &["EA_BAD_NAME"],
    },
    Mutation {
        name: "attribute's value behind its block",
        images: BOTH,
        change: |e| e.attributes("/eablock", |b| set_half(b, FIRST + 2, 1000)),
        expected: &["EA_BAD_VALUE"],
    },
    Mutation {
        name: "attribute with a wrong hash",
        images: BOTH,
        change: |e| e.attributes("/eablock", |b| set_word(b, FIRST + 12, 77)),
        expected: &["ATTR_HASH"],
    },
    Mutation {
        name: "attribute block with a wrong checksum",
        images: &[Image::Ext4],
        change: |e| {
            e.leave_checksums();
            e.attributes("/eablock", |b| b[16] ^= 1);
        },
        expected: &["EA_BLOCK_ONLY_CSUM_INVALID"],
    },
    Mutation {
        name: "attribute in an inode with a large value",
        images: BOTH,
        change: |e| e.inode_attributes("/ea", |a| set_word(a, 12, 500)),
        expected: &["ATTR_VALUE_SIZE"],
    },
    Mutation {
        name: "attribute in an inode with its value on its name",
        images: BOTH,
        change: |e| e.inode_attributes("/ea", |a| set_half(a, 6, 0)),
        expected: &["INODE_EA_ALLOC_COLLISION"],
    },
    Mutation {
        name: "attribute in an inode with a wrong hash",
        images: BOTH,
        change: |e| e.inode_attributes("/ea", |a| set_word(a, 16, 77)),
        expected: &["ATTR_HASH"],
    },
    Mutation {
        name: "value in an inode that does not exist",
        images: VALUES,
        change: |e| {
            e.inode_attributes("/value", |a| {
                assert_ne!(word(a, 8), 0, "the value has an inode");
                set_word(a, 8, 5);
            });
        },
        expected: &["ATTR_VALUE_EA_INODE"],
    },
    Mutation {
        name: "inode of a value without its flag",
        images: VALUES,
        change: |e| {
            let ino = e.inode_attributes("/value", |a| word(a, 8));
            e.inode(ino, |i| i.i_flags.set(i.i_flags.get() & !0x20_0000));
        },
        expected: &["ATTR_SET_EA_INODE_FL", "ATTR_NO_EA_INODE_FL"],
    },
    Mutation {
        name: "inode of a value with too many references",
        images: VALUES,
        change: |e| {
            let ino = e.inode_attributes("/value", |a| word(a, 8));
            e.inode(ino, |i| {
                i.l_i_version.set(7);
                // If both are equal, the value is one of Lustre, which has no count.
                i.i_ctime.set(0);
            });
        },
        expected: &["EA_INODE_REF_COUNT"],
    },
    Mutation {
        name: "attribute block of an inode without the feature",
        images: &[Image::Ext2, Image::Ext4],
        change: |e| e.superblocks(|s| s.s_feature_compat.set(s.s_feature_compat.get() & !8)),
        expected: &["FILE_ACL_ZERO"],
    },
    Mutation {
        name: "attribute block behind the end",
        images: BOTH,
        change: |e| e.inode("/eablock", |i| i.i_file_acl_lo.set(1 << 30)),
        expected: &["FILE_ACL_BAD"],
    },
    Mutation {
        name: "high half of an attribute block's number",
        images: &[Image::Ext4Plain, Image::Ext2],
        change: |e| e.inode("/file", |i| i.l_i_file_acl_high.set(1)),
        expected: &["I_FILE_ACL_HI_ZERO"],
    },
    Mutation {
        name: "value's inode is a pipe",
        images: VALUES,
        change: |e| {
            let ino = e.inode_attributes("/value", |a| word(a, 8));
            e.inode(ino, |i| i.i_mode.set(0o010_600));
        },
        expected: &["EA_INODE_NONREG"],
    },
    Mutation {
        name: "value in an inode without the feature",
        images: VALUES,
        change: |e| e.superblocks(|s| s.s_feature_incompat.set(s.s_feature_incompat.get() & !0x400)),
        expected: &["EA_INODE_FEATURE"],
    },
    Mutation {
        name: "name of a value's inode",
        images: VALUES,
        change: |e| {
            let ino = e.inode_attributes("/value", |a| word(a, 8));
            e.entry("/dir/two", |d, _| d.inode.set(ino));
        },
        expected: &["EA_INODE_DIR_LINK"],
    },
    Mutation {
        name: "inode of a value with another hash",
        images: VALUES,
        change: |e| {
            let ino = e.inode_attributes("/value", |a| word(a, 8));
            e.inode(ino, |i| i.i_atime.set(!i.i_atime.get()));
        },
        expected: &["ATTR_HASH"],
    },
    Mutation {
        name: "attribute of a block with another hash than its value",
        images: VALUES,
        change: |e| e.attributes("/valueblock", |b| set_word(b, FIRST + 12, 77)),
        expected: &["ATTR_HASH"],
    },
    Mutation {
        name: "count of blocks without those of a value",
        images: VALUES,
        change: |e| e.inode("/value", |i| i.i_blocks_lo.set(0)),
        expected: &["BAD_I_BLOCKS"],
    },
    Mutation {
        name: "count of blocks without those of a value that a block names",
        images: VALUES,
        change: |e| {
            let plain = e.raw_inode("/file").i_blocks_lo.get();
            // Including its attribute block.
            e.inode("/valueblock", |i| i.i_blocks_lo.set(plain + 2));
        },
        expected: &["BAD_I_BLOCKS"],
    },
    Mutation {
        name: "encryption context in a block, of another policy",
        images: &[Image::Encrypt],
        change: |e| e.attributes(SECRET_IN_BLOCK, |b| encryption_context_in_block(b, b"c", 28, 2)),
        expected: &["INCONSISTENT_ENCRYPTION_POLICY"],
    },
    Mutation {
        name: "encryption context in a block, too short",
        images: &[Image::Encrypt],
        change: |e| e.attributes(SECRET_IN_BLOCK, |b| encryption_context_in_block(b, b"c", 24, 1)),
        expected: &["CORRUPT_ENCRYPTION_XATTR"],
    },
    Mutation {
        name: "attribute block of an encrypted file without a context",
        images: &[Image::Encrypt],
        change: |e| e.attributes(SECRET_IN_BLOCK, |b| encryption_context_in_block(b, b"d", 28, 1)),
        expected: &["MISSING_ENCRYPTION_XATTR"],
    },
    Mutation {
        name: "inode of a value that no attribute names",
        images: VALUES,
        change: |e| e.inode_attributes("/value", |a| a.fill(0)),
        expected: &["EA_INODE_SPURIOUS_FLAG"],
    },
];
