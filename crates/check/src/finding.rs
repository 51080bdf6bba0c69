//! The results of a check: findings as values.
//!
//! Main types: [`Finding`] (problem, place, found, expected), [`Place`] (the location). Both are `Copy` and ordered, so
//! a report can be sorted and does not depend on the thread that found something. A finding is formatted when it is
//! shown.
//!
//! # Locking
//! None.

use std::fmt;

use extant_ondisk::{BlockNr, GroupNr, InodeNr};

use crate::problem::Problem;

/// A quantity that a quota file counts for an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UsageOf {
    /// The bytes of blocks.
    Bytes,
    /// The number of inodes.
    Inodes,
}

impl fmt::Display for UsageOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UsageOf::Bytes => "bytes",
            UsageOf::Inodes => "inodes",
        })
    }
}

/// The location of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// In the superblock, or in the file system as a whole.
    Volume,
    /// In this field of the superblock.
    Field(&'static str),
    /// In the journal.
    Journal,
    /// In a group's descriptor, bitmaps or table.
    Group(GroupNr),
    /// In blocks that belong to no file.
    Blocks(BlockNr),
    /// In an inode.
    Inode(InodeNr),
    /// In a quota file's entry for an owner.
    Usage {
        /// The quota file's inode.
        file: InodeNr,
        /// The user, group or project.
        id: u32,
        /// The quantity.
        of: UsageOf,
    },
    /// In the blocks that an inode maps.
    Mapped {
        /// The inode whose map it is.
        ino: InodeNr,
        /// The logical block: of the data, or the first one below a block of the map.
        lblk: u64,
        /// The mapped block: of the data, or of the map itself.
        block: BlockNr,
    },
    /// In a node of an inode's map: an entry of the node, or the node itself.
    Node {
        /// The inode whose map it is.
        ino: InodeNr,
        /// The block of the node; 0 if it is in the inode.
        node: BlockNr,
        /// The logical block of the entry, or the first one below the node.
        lblk: u64,
        /// The target of the entry; 0 if the finding is about the node itself.
        block: BlockNr,
    },
    /// In the attribute block of an inode (the first of those that share it).
    Attributes {
        /// The inode that has the attributes.
        ino: InodeNr,
        /// The attribute block.
        block: BlockNr,
    },
    /// In a directory's entry.
    Entry {
        /// The directory.
        dir: InodeNr,
        /// The logical block.
        lblk: u32,
        /// The offset of the entry in the block, in bytes.
        offset: u32,
        /// The inode to which the entry refers.
        ino: InodeNr,
    },
}

impl Place {
    /// The inode of the place; for an entry, the directory.
    pub fn ino(&self) -> Option<InodeNr> {
        match *self {
            Place::Inode(ino) | Place::Mapped { ino, .. } | Place::Node { ino, .. } | Place::Attributes { ino, .. } => {
                Some(ino)
            }
            Place::Entry { dir, .. } => Some(dir),
            Place::Usage { file, .. } => Some(file),
            _ => None,
        }
    }

    /// The block of the place.
    pub fn block(&self) -> Option<BlockNr> {
        match *self {
            Place::Blocks(block) | Place::Mapped { block, .. } | Place::Attributes { block, .. } => Some(block),
            Place::Node { node, block, .. } => Some(if block.0 == 0 { node } else { block }),
            _ => None,
        }
    }

    /// The logical block of the place.
    pub fn lblk(&self) -> Option<u64> {
        match *self {
            Place::Mapped { lblk, .. } | Place::Node { lblk, .. } => Some(lblk),
            Place::Entry { lblk, .. } => Some(lblk.into()),
            _ => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Place::Volume => f.write_str("superblock"),
            Place::Field(name) => write!(f, "superblock, {name}"),
            Place::Journal => f.write_str("journal"),
            Place::Group(group) => write!(f, "{group}"),
            Place::Blocks(block) => write!(f, "{block}"),
            Place::Inode(ino) => write!(f, "{ino}"),
            Place::Usage { file, id, of } => write!(f, "quota file {}, {of} of owner {id}", file.0),
            Place::Mapped { ino, lblk, block } => write!(f, "{ino}, logical block {lblk} ({block})"),
            Place::Node { ino, node, lblk, block } => {
                write!(f, "{ino}, logical block {lblk}")?;
                if block.0 != 0 {
                    write!(f, " ({block})")?;
                }
                if node.0 == 0 { f.write_str(", map in the inode") } else { write!(f, ", map in {node}") }
            }
            Place::Attributes { ino, block } => write!(f, "{ino}, attributes ({block})"),
            Place::Entry { dir, lblk, offset, ino } => {
                write!(f, "directory {}, logical block {lblk}, offset {offset} ({ino})", dir.0)
            }
        }
    }
}

/// One problem in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    /// The problem.
    pub problem: Problem,
    /// The location.
    pub place: Place,
    /// The value in the image. Its meaning depends on the problem.
    pub found: u64,
    /// The value that should be there.
    pub expected: u64,
}

impl Finding {
    /// A finding with both values.
    pub fn new(problem: Problem, place: Place, found: impl Into<u64>, expected: impl Into<u64>) -> Finding {
        Finding { problem, place, found: found.into(), expected: expected.into() }
    }

    /// A finding without values, because problem and place are sufficient.
    pub fn at(problem: Problem, place: Place) -> Finding {
        Finding::new(problem, place, 0u64, 0u64)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        let mut rest = self.problem.text();
        while let Some((before, after)) = rest.split_once('{') {
            f.write_str(before)?;
            let Some((name, behind)) = after.split_once('}') else { break };
            match name {
                "found" => write!(f, "{}", self.found)?,
                "found:x" => write!(f, "{:#x}", self.found)?,
                "found:o" => write!(f, "{:#o}", self.found)?,
                "expected" => write!(f, "{}", self.expected)?,
                "expected:x" => write!(f, "{:#x}", self.expected)?,
                "block" => write!(f, "{}", self.place.block().map_or(0, |block| block.0))?,
                _ => write!(f, "{}", self.place.lblk().unwrap_or(0))?,
            }
            rest = behind;
        }
        f.write_str(rest)
    }
}
