//! A caller's request and the answer: [`Request`], [`Kind`], [`MetaRequest`], [`Pointers`], [`RequestFlags`],
//! [`Allocation`].
//!
//! # Locking
//! None.

use std::ops::BitOr;

use extant_ondisk::indirect::PointerBlock;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use crate::InodePreallocation;

/// One request for blocks. Linux: `struct ext4_allocation_request`, fs/ext4/ext4.h.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The best place for the blocks. With [`RequestFlags::TRY_GOAL`] exactly there if free; otherwise its group is
    /// where the search starts. A goal outside the file system counts as none (group 0). Metadata has none: its
    /// policy computes one from the facts in [`MetaRequest`].
    pub goal: Option<BlockNr>,
    /// Blocks wanted, at least 1. The answer may be shorter, never longer.
    pub len: u32,
    pub kind: Kind<'a>,
    pub flags: RequestFlags,
    /// The highest block that the caller can address (indirect-mapped files: 2^32 - 1). Groups that extend beyond it
    /// are not used at all.
    pub max_block: Option<BlockNr>,
    /// For a policy that puts pointer blocks in front of their data ([`crate::Allocator::puts_pointers_in_front`]).
    pub pointers: Option<Pointers<'a>>,
}

/// The pointer blocks that a request concerns, for a file without extents.
#[derive(Clone, Copy, Debug)]
pub struct Pointers<'a> {
    pub owner: &'a InodePreallocation,
    /// Data: the pointer blocks that the map needs for the first block and lacks, the uppermost first. A pointer
    /// block: itself.
    pub blocks: &'a [PointerBlock],
    /// Data: the logical block behind the last one that the same array of pointers maps. The answer ends before it.
    pub end: u64,
}

/// The purpose of the blocks.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// Blocks of a regular file (Linux: `EXT4_MB_HINT_DATA`).
    Data {
        owner: &'a InodePreallocation,
        /// The first logical block to be mapped.
        logical: LogicalBlock,
        /// Size of the file in blocks, rounded up, delayed writes included.
        file_blocks: u64,
        /// True if delayed allocation has reserved the blocks: the allocation consumes that reservation (the caller
        /// must not unreserve it again). False: it consumes available blocks.
        reserved: bool,
        /// The nearest mapped block before `logical`, if any. Without it, TRY_GOAL means that `goal` continues the
        /// block before `logical`. With neither, a preallocation may be laid out for blocks that are already mapped,
        /// which only wastes space.
        left: Option<Neighbour>,
        /// The nearest mapped block after the request, if any.
        right: Option<Neighbour>,
    },
    /// Everything else. Never preallocated.
    Metadata(MetaRequest),
}

/// The role of a block of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaRole {
    /// A block of pointers of a file without extents: indirect, double or triple indirect.
    Indirect,
    /// A node of an extent tree.
    ExtentNode,
    Directory,
    Xattr,
    /// The target of a symbolic link.
    Symlink,
}

impl MetaRole {
    pub const ALL: [MetaRole; 5] =
        [MetaRole::Indirect, MetaRole::ExtentNode, MetaRole::Directory, MetaRole::Xattr, MetaRole::Symlink];
}

/// The known facts about a block of metadata before it has a place. The policy ([`crate::MetaPolicy`]) chooses the
/// place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaRequest {
    pub role: MetaRole,
    /// The inode that it belongs to.
    pub owner: InodeNr,
    /// The first block of the group where the owner's blocks are best placed.
    pub home: Option<BlockNr>,
    /// Indirect blocks: the block that will point to it. Extent nodes: the node beside it. Directories: the block
    /// before it.
    pub parent: Option<BlockNr>,
    /// The data that it will map.
    pub data: Option<BlockNr>,
}

/// A block of the same file that is already mapped (Linux: `lleft`/`pleft`, `lright`/`pright`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub logical: LogicalBlock,
    pub block: BlockNr,
}

/// A set of flags; combine with `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFlags(u32);

impl RequestFlags {
    pub const NONE: RequestFlags = RequestFlags(0);
    /// Do not preallocate (Linux: `EXT4_MB_HINT_NOPREALLOC`): fallocate, direct I/O of a known size.
    pub const NO_PREALLOC: RequestFlags = RequestFlags(1);
    /// Use the goal block itself when it is free (Linux: `EXT4_MB_HINT_TRY_GOAL`).
    pub const TRY_GOAL: RequestFlags = RequestFlags(2);
    /// The goal block or nothing (Linux: `EXT4_MB_HINT_GOAL_ONLY`); implies TRY_GOAL.
    pub const GOAL_ONLY: RequestFlags = RequestFlags(4);
    /// May use the blocks reserved for root (Linux: `EXT4_MB_USE_ROOT_BLOCKS`).
    pub const USE_ROOT_RESERVE: RequestFlags = RequestFlags(8);
    /// May use every block, including the pool for conversions that must not fail (Linux: `EXT4_MB_USE_RESERVED`).
    pub const USE_RESERVED: RequestFlags = RequestFlags(16);
    /// The file is not open for writing, so it will hardly grow.
    pub const CLOSED: RequestFlags = RequestFlags(32);
    /// An fsync waits for it.
    pub const SYNCED: RequestFlags = RequestFlags(64);

    pub fn contains(self, other: RequestFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for RequestFlags {
    type Output = RequestFlags;
    fn bitor(self, other: RequestFlags) -> RequestFlags {
        RequestFlags(self.0 | other.0)
    }
}

impl<'a> Request<'a> {
    /// A request for metadata with a known home and no other facts.
    pub fn metadata(home: Option<BlockNr>, len: u32) -> Request<'a> {
        let (owner, role) = (InodeNr(0), MetaRole::Directory);
        Request::meta(MetaRequest { role, owner, home, parent: None, data: None }, len)
    }

    /// A request for metadata.
    pub fn meta(meta: MetaRequest, len: u32) -> Request<'a> {
        let kind = Kind::Metadata(meta);
        Request { goal: None, len, kind, flags: RequestFlags::NONE, max_block: None, pointers: None }
    }

    /// A request for file data without reservation and without known neighbours.
    pub fn data(
        owner: &'a InodePreallocation,
        goal: Option<BlockNr>,
        logical: LogicalBlock,
        len: u32,
        file_blocks: u64,
    ) -> Request<'a> {
        let kind = Kind::Data { owner, logical, file_blocks, reserved: false, left: None, right: None };
        Request { goal, len, kind, flags: RequestFlags::NONE, max_block: None, pointers: None }
    }
}

/// The answer: `len` blocks from `start` on, inside one group, marked used on disk in the caller's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub start: BlockNr,
    pub len: u32,
}
