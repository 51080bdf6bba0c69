//! The states of an image that a check must be able to find, by e2fsck's name and number for each.
//!
//! Main types: [`Problem`], [`PROBLEMS`] (all of them), [`WITHOUT`] (those that no mutation produces, with the reason).
//! [`super::table`] has the changes that produce such a state.
//!
//! # Locking
//! None.

/// How e2fsck reports a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// `e2fsck -fn` writes it to its problem log.
    Check,
    /// Only a repairing run reaches the problem: `e2fsck -fy`, on a copy, writes it to its problem log.
    Repair,
    /// e2fsck ends before it writes to the log; `-fn` prints this text.
    Says(&'static str),
}

/// A state that a check must be able to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// e2fsck's name (e2fsck/problem.h) without the prefix of its pass.
    pub name: &'static str,
    /// e2fsck's number; the pass is in the third byte.
    pub code: u32,
    /// How e2fsck reports it.
    pub shown: Detection,
    /// The first N for which e2fsck 1.47.N knows it.
    pub since: u32,
}

/// The problem with this name.
///
/// # Panics
/// If there is none, because a table contains a wrong name.
pub fn named(name: &str) -> Problem {
    *PROBLEMS.iter().find(|p| p.name == name).unwrap_or_else(|| panic!("no problem is called {name}"))
}

const fn state(name: &'static str, code: u32) -> Problem {
    Problem { name, code, shown: Detection::Check, since: 0 }
}

const fn repair(name: &'static str, code: u32) -> Problem {
    Problem { name, code, shown: Detection::Repair, since: 0 }
}

const fn says(name: &'static str, code: u32, text: &'static str) -> Problem {
    Problem { name, code, shown: Detection::Says(text), since: 0 }
}

/// A state that e2fsck knows since 1.47.4.
const fn recent(name: &'static str, code: u32) -> Problem {
    Problem { name, code, shown: Detection::Check, since: 4 }
}

/// All states, in the order of their numbers within each pass.
pub const PROBLEMS: &[Problem] = &[
    // The superblock, descriptors, the journal, orphans.
    state("BB_NOT_GROUP", 0x000001),
    state("IB_NOT_GROUP", 0x000002),
    state("ITABLE_NOT_GROUP", 0x000003),
    says("SB_CORRUPT", 0x000004, "superblock could not be read or does not describe a valid"),
    state("FS_SIZE_WRONG", 0x000005),
    state("FIRST_DATA_BLOCK", 0x000008),
    state("MISC_CORRUPT_SUPER", 0x00000B),
    state("INODE_COUNT_WRONG", 0x00000D),
    repair("HURD_CLEAR_FILETYPE", 0x00000E),
    state("JOURNAL_BAD_INODE", 0x00000F),
    state("JOURNAL_BAD_SUPER", 0x000015),
    state("JOURNAL_HAS_JOURNAL", 0x000016),
    state("JOURNAL_RECOVER_SET", 0x000017),
    state("JOURNAL_RECOVERY_CLEAR", 0x000018),
    repair("FS_REV_LEVEL", 0x00001A),
    repair("ORPHAN_ILLEGAL_HEAD_INODE", 0x000023),
    repair("ORPHAN_ILLEGAL_INODE", 0x000024),
    state("JOURNAL_UNSUPP_ROCOMPAT", 0x000025),
    state("JOURNAL_UNSUPP_INCOMPAT", 0x000026),
    state("JOURNAL_UNSUPP_VERSION", 0x000027),
    state("NONZERO_RESERVED_GDT_BLOCKS", 0x00002E),
    state("CLEAR_RESIZE_INODE", 0x00002F),
    state("RESIZE_INODE_INVALID", 0x000030),
    state("FUTURE_SB_LAST_MOUNT", 0x000031),
    state("FUTURE_SB_LAST_WRITE", 0x000032),
    state("GDT_CSUM", 0x000035),
    state("GDT_UNINIT", 0x000036),
    state("GDT_ITABLE_UNUSED", 0x000038),
    state("BB_UNINIT_LAST", 0x000039),
    repair("JNL_TXN_CORRUPT", 0x00003A),
    repair("CLEAR_TESTFS_FLAG", 0x00003B),
    state("MMP_INVALID_BLK", 0x000042),
    state("MMP_INVALID_MAGIC", 0x000043),
    state("META_AND_GDT_CSUM_SET", 0x000046),
    state("MMP_CSUM_INVALID", 0x000047),
    state("64BIT_WITHOUT_EXTENTS", 0x000048),
    state("FIRST_META_BG_TOO_BIG", 0x000049),
    state("CSUM_SEED_WITHOUT_META_CSUM", 0x00004B),
    state("BAD_MIN_EXTRA_ISIZE", 0x00004D),
    state("BAD_WANT_EXTRA_ISIZE", 0x00004E),
    state("INVALID_QUOTA_INO", 0x00004F),
    state("INODE_COUNT_BIG", 0x000050),
    state("DISABLE_RESIZE_INODE", 0x000051),
    repair("ORPHAN_FILE_HOLE", 0x000052),
    repair("ORPHAN_FILE_BAD_MAGIC", 0x000053),
    repair("ORPHAN_FILE_BAD_CHECKSUM", 0x000054),
    repair("ORPHAN_FILE_WRONG_SIZE", 0x000055),
    // Inodes, maps, attributes.
    state("ROOT_NO_DIR", 0x010001),
    state("ROOT_DTIME", 0x010002),
    state("RESERVED_BAD_MODE", 0x010003),
    state("ZERO_DTIME", 0x010004),
    state("SET_DTIME", 0x010005),
    state("ZERO_LENGTH_DIR", 0x010006),
    state("BB_CONFLICT", 0x010007),
    state("IB_CONFLICT", 0x010008),
    state("ITABLE_CONFLICT", 0x010009),
    state("BAD_I_SIZE", 0x01000C),
    state("BAD_I_BLOCKS", 0x01000D),
    state("ILLEGAL_BLOCK_NUM", 0x01000E),
    state("SET_IMAGIC", 0x01002F),
    state("SET_IMMUTABLE", 0x010030),
    state("SET_NONZSIZE", 0x010032),
    state("JOURNAL_INODE_NOT_CLEAR", 0x010034),
    state("JOURNAL_BAD_MODE", 0x010035),
    state("LOW_DTIME", 0x010036),
    state("BAD_EA_BLOCK", 0x01003A),
    state("EXTATTR_REFCOUNT", 0x01003C),
    state("EA_MULTI_BLOCK", 0x01003E),
    state("EA_ALLOC_COLLISION", 0x010040),
    state("EA_BAD_NAME", 0x010041),
    state("EA_BAD_VALUE", 0x010042),
    state("TOOBIG_DIR", 0x010044),
    state("TOOBIG_REG", 0x010045),
    state("TOOBIG_SYMLINK", 0x010046),
    state("HTREE_SET", 0x010047),
    state("HTREE_NODIR", 0x010048),
    state("HTREE_BADROOT", 0x010049),
    state("HTREE_HASHV", 0x01004A),
    state("HTREE_INCOMPAT", 0x01004B),
    state("HTREE_DEPTH", 0x01004C),
    state("EXTRA_ISIZE", 0x01004F),
    state("ATTR_NAME_LEN", 0x010050),
    state("ATTR_VALUE_SIZE", 0x010053),
    state("ATTR_HASH", 0x010054),
    state("TREAT_AS_DIRECTORY", 0x010055),
    state("EXTENT_BAD_START_BLK", 0x010058),
    state("EXTENT_ENDS_BEYOND", 0x010059),
    state("EXTENTS_SET", 0x01005A),
    state("EXTENT_FEATURE", 0x01005B),
    state("UNSET_EXTENT_FL", 0x01005C),
    state("FAST_SYMLINK_EXTENT_FL", 0x01005D),
    state("OUT_OF_ORDER_EXTENTS", 0x01005E),
    state("EXTENT_HEADER_INVALID", 0x01005F),
    state("QUOTA_BAD_MODE", 0x010062),
    state("QUOTA_INODE_NOT_CLEAR", 0x010063),
    state("INVALID_BAD_INODE", 0x010065),
    state("EXTENT_LENGTH_ZERO", 0x010066),
    state("INODE_IS_GARBAGE", 0x010067),
    state("INODE_ONLY_CSUM_INVALID", 0x010068),
    state("INODE_EA_ALLOC_COLLISION", 0x010069),
    state("EXTENT_ONLY_CSUM_INVALID", 0x01006A),
    state("EA_BLOCK_ONLY_CSUM_INVALID", 0x01006C),
    state("EXTENT_INDEX_START_INVALID", 0x01006D),
    state("EXTENT_END_OUT_OF_BOUNDS", 0x01006E),
    state("INLINE_DATA_FEATURE", 0x01006F),
    state("INLINE_DATA_SET", 0x010070),
    state("CRITICAL_METADATA_COLLISION", 0x010071),
    state("COLLAPSE_DBLOCK", 0x010072),
    state("UNINIT_DBLOCK", 0x010073),
    state("MISALIGNED_CLUSTER", 0x010074),
    state("INLINE_DATA_NO_ATTR", 0x010075),
    state("SPECIAL_EXTENTS_IDATA", 0x010076),
    state("CLEAR_INLINE_DATA_FOR_EXTENT", 0x010077),
    state("CLEAR_EXTENT_FOR_INLINE_DATA", 0x010078),
    state("CLEAR_EXTENT_INLINE_DATA_FLAGS", 0x010079),
    state("CLEAR_EXTENT_INLINE_DATA_INODE", 0x01007A),
    state("EXTENT_COLLISION", 0x01007D),
    state("NO_BIGALLOC_BLOCKMAP_FILES", 0x010080),
    state("MISSING_EXTENT_HEADER", 0x010081),
    state("EA_TIME_OUT_OF_RANGE", 0x010082),
    state("ATTR_VALUE_EA_INODE", 0x010083),
    state("ATTR_NO_EA_INODE_FL", 0x010085),
    state("ATTR_SET_EA_INODE_FL", 0x010086),
    state("CLEAR_UNINIT_EXTENT", 0x010087),
    state("CASEFOLD_NONDIR", 0x010088),
    state("CASEFOLD_FEATURE", 0x010089),
    state("MISSING_ENCRYPTION_XATTR", 0x01008A),
    state("CORRUPT_ENCRYPTION_XATTR", 0x01008B),
    state("HTREE_NEEDS_SIPHASH", 0x01008D),
    state("HTREE_CANNOT_SIPHASH", 0x01008E),
    state("ORPHAN_FILE_BAD_MODE", 0x01008F),
    state("ORPHAN_FILE_NOT_CLEAR", 0x010090),
    recent("EA_INODE_NONREG", 0x010091),
    recent("EA_INODE_FEATURE", 0x010092),
    // Blocks claimed twice.
    state("DUP_BLOCK", 0x011002),
    // Directories.
    state("BAD_INODE_DOT", 0x020001),
    state("BAD_INO", 0x020002),
    state("UNUSED_INODE", 0x020003),
    state("LINK_DOT", 0x020004),
    state("LINK_DIR", 0x020006),
    state("LINK_ROOT", 0x020007),
    state("BAD_NAME", 0x020008),
    state("MISSING_DOT", 0x020009),
    state("MISSING_DOT_DOT", 0x02000A),
    state("1ST_NOT_DOT", 0x02000B),
    state("2ND_NOT_DOT_DOT", 0x02000C),
    state("FADDR_ZERO", 0x02000D),
    state("FILE_ACL_ZERO", 0x02000E),
    state("DIR_SIZE_HIGH_ZERO", 0x02000F),
    state("FRAG_ZERO", 0x020010),
    state("FSIZE_ZERO", 0x020011),
    state("BAD_MODE", 0x020012),
    state("DIR_CORRUPTED", 0x020013),
    state("DIRECTORY_HOLE", 0x020015),
    state("DOT_NULL_TERM", 0x020016),
    state("DOT_DOT_NULL_TERM", 0x020017),
    state("BAD_CHAR_DEV", 0x020018),
    state("BAD_BLOCK_DEV", 0x020019),
    state("DUP_DOT", 0x02001A),
    state("DUP_DOT_DOT", 0x02001B),
    state("FINAL_RECLEN", 0x02001D),
    state("SPLIT_DOT", 0x020024),
    state("BAD_FIFO", 0x020025),
    state("BAD_SOCKET", 0x020026),
    state("SET_FILETYPE", 0x020027),
    state("BAD_FILETYPE", 0x020028),
    state("CLEAR_FILETYPE", 0x020029),
    state("NULL_NAME", 0x020030),
    state("INVALID_SYMLINK", 0x020031),
    state("FILE_ACL_BAD", 0x020032),
    state("FEATURE_LARGE_FILES", 0x020033),
    state("HTREE_NOTREF", 0x020034),
    state("HTREE_DUPREF", 0x020035),
    state("HTREE_MIN_HASH", 0x020036),
    state("HTREE_MAX_HASH", 0x020037),
    state("FEATURE_LARGE_DIRS", 0x020039),
    state("HTREE_BADBLK", 0x02003A),
    state("HTREE_BAD_ROOT", 0x02003C),
    state("HTREE_BAD_LIMIT", 0x02003D),
    state("HTREE_BAD_COUNT", 0x02003E),
    state("HTREE_HASH_ORDER", 0x02003F),
    state("HTREE_BAD_DEPTH", 0x020040),
    repair("DUPLICATE_DIRENT", 0x020041),
    state("BLOCKS_HI_ZERO", 0x020044),
    repair("UNEXPECTED_HTREE_BLOCK", 0x020045),
    state("INOREF_BG_INO_UNINIT", 0x020046),
    state("INOREF_IN_UNUSED", 0x020047),
    state("I_FILE_ACL_HI_ZERO", 0x020048),
    state("HTREE_ROOT_CSUM_INVALID", 0x020049),
    state("HTREE_NODE_CSUM_INVALID", 0x02004A),
    state("LEAF_NODE_MISSING_CSUM", 0x02004C),
    state("LEAF_NODE_ONLY_CSUM_INVALID", 0x02004D),
    state("BAD_INLINE_DIR_SIZE", 0x02004E),
    state("BAD_ENCRYPTED_NAME", 0x020050),
    state("UNENCRYPTED_FILE", 0x020051),
    state("INCONSISTENT_ENCRYPTION_POLICY", 0x020052),
    state("BAD_ENCODED_NAME", 0x020053),
    recent("EA_INODE_DIR_LINK", 0x020055),
    // Connectivity.
    state("NO_ROOT_INODE", 0x030001),
    state("UNCONNECTED_DIR", 0x030003),
    repair("NO_LF_DIR", 0x030004),
    state("BAD_DOT_DOT", 0x030005),
    repair("LPF_NOTDIR", 0x030017),
    repair("LPF_INLINE_DATA", 0x030018),
    repair("LPF_ENCRYPTED", 0x03001B),
    state("LOOPED_DIR", 0x03001D),
    // Links and reference counts.
    state("ZERO_LEN_INODE", 0x040001),
    state("UNATTACHED_INODE", 0x040002),
    state("BAD_REF_COUNT", 0x040003),
    state("EA_INODE_REF_COUNT", 0x040005),
    state("DIR_NLINK_FEATURE", 0x040006),
    repair("DIR_OVERFLOW_REF_COUNT", 0x040007),
    recent("EA_INODE_SPURIOUS_FLAG", 0x040008),
    // Bitmaps and counts.
    state("INODE_BMAP_PADDING", 0x050001),
    state("BLOCK_BMAP_PADDING", 0x050002),
    state("BLOCK_UNUSED", 0x050004),
    state("BLOCK_USED", 0x050005),
    state("INODE_UNUSED", 0x050008),
    state("INODE_USED", 0x050009),
    state("FREE_INODE_COUNT_GROUP", 0x05000B),
    state("FREE_DIR_COUNT_GROUP", 0x05000C),
    state("FREE_INODE_COUNT", 0x05000D),
    state("FREE_BLOCK_COUNT_GROUP", 0x05000E),
    state("FREE_BLOCK_COUNT", 0x05000F),
    state("BLOCK_UNINIT", 0x050018),
    state("INODE_UNINIT", 0x050019),
    state("INODE_BITMAP_CSUM_INVALID", 0x05001A),
    state("BLOCK_BITMAP_CSUM_INVALID", 0x05001B),
    // After all passes.
    state("UPDATE_QUOTAS", 0x060002),
    state("ORPHAN_FILE_WITHOUT_JOURNAL", 0x060007),
    state("ORPHAN_BLOCK_DIRTY", 0x06000C),
    state("ORPHAN_PRESENT_CLEAN_FILE", 0x06000D),
    state("ORPHAN_PRESENT_NO_FILE", 0x06000E),
];

/// The states without a mutation, with the reason.
pub const WITHOUT: &[(&str, &str)] = &[
    ("ATTR_NAME_LEN", "a name that is too long overlaps what follows, which e2fsck reports first"),
    ("CLEAR_UNINIT_EXTENT", "only an e2fsck built for its developers reports it, when asked to"),
    ("FINAL_RECLEN", "an entry that runs over its block is DIR_CORRUPTED first"),
    ("INODE_UNINIT", "e2fsck reads no inode of such a group, and so finds none in use there"),
    ("LOOPED_DIR", "e2fsck marks each directory of a ring as done before it has seen the ring"),
];
