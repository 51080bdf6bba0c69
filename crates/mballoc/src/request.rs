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
    /// The best place for the blocks. With [`RequestFlags::TRY_GOAL`], exactly there if free; otherwise the search
    /// starts in its group. A goal outside the file system counts as no goal (group 0). Metadata has no goal: its
    /// policy computes one from the facts in [`MetaRequest`].
    pub goal: Option<BlockNr>,
    /// The number of blocks wanted, at least 1. The answer may be shorter, never longer.
    pub len: u32,
    pub kind: Kind<'a>,
    pub flags: RequestFlags,
    /// The highest block that the caller can address (2^32 - 1 for indirect-mapped files). Groups that extend beyond it
    /// are not used at all.
    pub max_block: Option<BlockNr>,
    /// For a policy that puts pointer blocks in front of their data ([`crate::Allocator::puts_pointers_in_front`]).
    pub pointers: Option<Pointers<'a>>,
}

/// The pointer blocks that a request concerns, for a file without extents.
#[derive(Clone, Copy, Debug)]
pub struct Pointers<'a> {
    pub owner: &'a InodePreallocation,
    /// For data: the pointer blocks that the map needs for the first block and lacks, the uppermost first. For a
    /// pointer block: the block itself.
    pub blocks: &'a [PointerBlock],
    /// For data: the logical block behind the last one that the same array of pointers maps. The answer ends before it.
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
        /// Size of the file in blocks, rounded up, including delayed writes.
        file_blocks: u64,
        /// True if delayed allocation has reserved the blocks: the allocation consumes that reservation (the caller
        /// must not unreserve it again). If false, it consumes available blocks.
        reserved: bool,
        /// The nearest mapped block before `logical`, if any. Without it, TRY_GOAL means that `goal` continues the
        /// block before `logical`. With neither, a preallocation may cover blocks that are already mapped, which only
        /// wastes space.
        left: Option<Neighbour>,
        /// The nearest mapped block after the request, if any.
        right: Option<Neighbour>,
    },
    /// Everything else. It is never preallocated.
    Metadata(MetaRequest),
}

/// The role of a block of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaRole {
    /// A block of pointers of a file without extents: indirect, double indirect or triple indirect.
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

/// The known facts about a metadata block before it is placed. The policy ([`crate::MetaPolicy`]) chooses the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaRequest {
    pub role: MetaRole,
    /// The inode that owns the block.
    pub owner: InodeNr,
    /// The first block of the group in which the owner's blocks are best placed.
    pub home: Option<BlockNr>,
    /// For indirect blocks, the block that will point to this one; for extent nodes, the adjacent node; for
    /// directories, the previous block.
    pub parent: Option<BlockNr>,
    /// The data that the block will map.
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
    /// The goal block or no block (Linux: `EXT4_MB_HINT_GOAL_ONLY`); implies TRY_GOAL.
    pub const GOAL_ONLY: RequestFlags = RequestFlags(4);
    /// May use the blocks reserved for root (Linux: `EXT4_MB_USE_ROOT_BLOCKS`).
    pub const USE_ROOT_RESERVE: RequestFlags = RequestFlags(8);
    /// May use every block, including the pool for conversions that must not fail (Linux: `EXT4_MB_USE_RESERVED`).
    pub const USE_RESERVED: RequestFlags = RequestFlags(16);
    /// The file is not open for writing, so it is unlikely to grow.
    pub const CLOSED: RequestFlags = RequestFlags(32);
    /// An fsync waits for the blocks.
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
