//! Damage of a directory or index block.
//!
//! Main types: [`DirDamage`] (a place in the block) and [`DirRule`] (the rule that is broken there). These are the
//! rules of a reader, which refuses what breaks one. A checker follows the same chain of entries
//! ([`super::StoredEntry`]), and judges what they say: `.` and `..`, inodes, types, and names that repeat.
//!
//! # Locking
//! None.

use super::{DirBlockFormat, Dirent, NAME_MAX, REC_LEN_MIN, RawDirentTail, TAIL_FILE_TYPE, TAIL_LEN, name_is_legal};
use crate::csum::ChecksumSeed;
use crate::damage::Damage;
use zerocopy::FromBytes;

/// One fault of a directory or index block. It contains no block number, because the caller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {what}")]
pub struct DirDamage {
    /// The offset in the block, in bytes.
    pub offset: u32,
    /// The broken rule.
    pub what: DirRule,
}

impl DirDamage {
    pub(crate) fn new(offset: usize, what: DirRule) -> DirDamage {
        DirDamage { offset: offset as u32, what }
    }

    /// Converts the damage to this crate's error, for logical block `lblk` of a directory.
    pub fn in_block(self, lblk: u32) -> crate::Error {
        crate::Error::corrupt(crate::Structure::DirectoryBlock, lblk, self.to_string())
    }
}

impl Damage for DirDamage {
    fn is_fatal(&self) -> bool {
        true
    }
}

/// A rule of directory and index blocks, with the values that break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirRule {
    /// Fewer than eight bytes are left for an entry.
    #[error("entry header crosses the end of the block")]
    HeaderCut,
    /// `rec_len` is below the smallest entry.
    #[error("rec_len {found} is too small, at least {REC_LEN_MIN} expected")]
    RecLen {
        /// The value of `rec_len`, in bytes.
        found: u32,
    },
    /// `rec_len` is no multiple of four.
    #[error("rec_len {found} is not a multiple of four")]
    RecLenUnaligned {
        /// The value of `rec_len`, in bytes.
        found: u32,
    },
    /// `rec_len` leaves no room for the name.
    #[error("rec_len {found} is smaller than the name, which needs {needed}")]
    NameLen {
        /// The value of `rec_len`, in bytes.
        found: u32,
        /// The size of header and name, in bytes.
        needed: u32,
    },
    /// `rec_len` reaches past the end of the block.
    #[error("rec_len {found} reaches past the end of the block, {room} bytes away")]
    PastEnd {
        /// The value of `rec_len`, in bytes.
        found: u32,
        /// The number of bytes up to the end of the block.
        room: u32,
    },
    /// `rec_len` reaches into the place of the checksum tail.
    #[error("rec_len {found} reaches past the end of the block's entries, {room} bytes away")]
    InTail {
        /// The value of `rec_len`, in bytes.
        found: u32,
        /// The number of bytes up to the tail.
        room: u32,
    },
    /// The entry leaves too few bytes for another one.
    #[error("entry ends too close to the end of the block: {left} bytes are left")]
    ShortRest {
        /// The number of bytes after the entry.
        left: u32,
    },
    /// The inode number exceeds the number of inodes.
    #[error("inode number {found} is out of range, at most {most} expected")]
    Inode {
        /// The stored value.
        found: u32,
        /// The number of inodes of the file system.
        most: u32,
    },
    /// A used entry without a name.
    #[error("the name is empty")]
    NameEmpty,
    /// A name with a slash or NUL.
    #[error("the name has {}", if *.found == 0 { "a NUL" } else { "a slash" })]
    NameByte {
        /// The first such byte.
        found: u8,
    },
    /// The first entry has another name.
    #[error("the first entry is not '.'")]
    DotName,
    /// The second entry has another name.
    #[error("the second entry is not '..'")]
    DotDotName,
    /// The block is too small for a tail.
    #[error("the block is too small for a checksum tail")]
    NoTailRoom,
    /// A leaf without a tail.
    #[error("the checksum tail is missing")]
    TailMissing,
    /// The checksum of a leaf does not match its bytes.
    #[error("the checksum does not match: {found:#010x}, computed {expected:#010x}")]
    Checksum {
        /// The stored value.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },

    /// The bytes have neither form of an index block.
    #[error("not an index block")]
    NoIndex,
    /// The block is an index block, but entries were expected.
    #[error("an index block where a leaf was expected")]
    IndexForLeaf,
    /// The block contains entries, but an index block was expected.
    #[error("a directory leaf where an index node was expected")]
    LeafForIndex,
    /// There are too few bytes for any index.
    #[error("the block is too small for an index")]
    IndexTooSmall,
    /// There are too few bytes for a root.
    #[error("the block is too small for an index root")]
    RootTooSmall,
    /// The entries of a root do not hide the index from old readers.
    #[error("not an index root: its '.' or '..' entry is wrong")]
    RootDots,
    /// `reserved_zero` of a root is not zero.
    #[error("not an index root: {found:#x} where its header has 0")]
    RootReserved {
        /// The stored value.
        found: u32,
    },
    /// `info_length` of a root is wrong.
    #[error("not an index root: its header has {found} bytes, expected 8")]
    RootLength {
        /// The stored value.
        found: u8,
    },
    /// `unused_flags` of a root has unknown bits.
    #[error("unknown flags {found:#x} in the index root")]
    RootFlags {
        /// The stored value.
        found: u8,
    },
    /// `hash_version` of a root is unknown.
    #[error("unknown hash version {found} in the index root")]
    HashVersion {
        /// The stored value.
        found: u8,
    },
    /// `indirect_levels` of a root is too large.
    #[error("too many index levels: {found}, at most {most} expected")]
    Levels {
        /// The stored value.
        found: u8,
        /// The maximum for this file system.
        most: u8,
    },
    /// The limit of an index block does not match its size.
    #[error("the entry limit is wrong: {found}, expected {expected}")]
    Limit {
        /// The stored value.
        found: u16,
        /// The limit that the size implies.
        expected: u16,
    },
    /// The count of an index block is zero or exceeds its limit.
    #[error("the entry count is zero or above the limit: {found} of {limit}")]
    Count {
        /// The stored value.
        found: u16,
        /// The limit of the block.
        limit: u16,
    },
    /// A key is below the one before it.
    #[error("keys are out of order: {found:#010x} behind {previous:#010x}")]
    KeyOrder {
        /// The key.
        found: u32,
        /// The key of the entry before.
        previous: u32,
    },
    /// A child is not in the directory, or is its root.
    #[error("child {found} lies outside the directory of {blocks} blocks")]
    Child {
        /// The logical block of the child.
        found: u32,
        /// The number of blocks of the directory.
        blocks: u32,
    },
    /// An index block has no room for its checksum.
    #[error("no room for the index checksum")]
    NoIndexTailRoom,
    /// The checksum of an index block does not match its bytes.
    #[error("the index checksum does not match: {found:#010x}, computed {expected:#010x}")]
    IndexChecksum {
        /// The stored value.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },

    /// An edit: no used entry starts at the given offset.
    #[error("no used entry starts here")]
    NotThere,
    /// An edit: the new entry has no legal name or inode number.
    #[error("the new entry has no legal name or inode number")]
    Unwritable,
    /// An edit: the entries do not fit in one block.
    #[error("the entries do not fit into one block")]
    DoNotFit,
    /// An edit: an index block is full.
    #[error("no room for another index entry")]
    IndexFull,
    /// An edit: an index node cannot be halved.
    #[error("an index node too small to split")]
    TooSmallToSplit,
}

impl DirBlockFormat {
    /// The first rule that an entry of a valid length breaks.
    #[inline]
    pub(super) fn broken_rule(&self, entry: &Dirent<'_>) -> Option<DirRule> {
        if entry.ino > self.inodes_count {
            return Some(DirRule::Inode { found: entry.ino, most: self.inodes_count });
        }
        let may_be_any = self.encrypted && !entry.name.is_empty();
        if !entry.is_used() || may_be_any || name_is_legal(entry.name) {
            return None;
        }
        Some(match entry.name.iter().find(|byte| matches!(byte, 0 | b'/')) {
            Some(&found) => DirRule::NameByte { found },
            None => DirRule::NameEmpty,
        })
    }
}

const _: () = assert!(NAME_MAX == u8::MAX as usize, "no name is too long for its length's byte");

/// Reports a tail that is missing, or whose checksum does not fit the leaf.
pub fn tail_damage(block: &[u8], seed: ChecksumSeed, sink: &mut impl FnMut(DirDamage)) {
    let at = block.len().saturating_sub(TAIL_LEN);
    let mut note = |what| sink(DirDamage::new(at, what));
    let Ok(tail) = RawDirentTail::ref_from_bytes(&block[at..]) else {
        return note(DirRule::NoTailRoom);
    };
    let has_shape = tail.reserved_zero1.get() == 0
        && tail.rec_len.get() == TAIL_LEN as u16
        && tail.reserved_zero2 == 0
        && tail.reserved_ft == TAIL_FILE_TYPE;
    if !has_shape {
        return note(DirRule::TailMissing);
    }
    let (found, expected) = (tail.checksum.get(), seed.checksum(&block[..at]));
    if found != expected {
        note(DirRule::Checksum { found, expected });
    }
}
