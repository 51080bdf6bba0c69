//! Steps of a repair, as values.
//!
//! Main types: [`Layer`] (the order of steps), [`Action`] (one change), [`Step`] (an action and its cause).
//!
//! # Locking
//! None.

use std::fmt;

use extant_check::Finding;
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::{BlockNr, GroupNr, InodeNr};

/// The structure that a step repairs. Lower layers come first, so that the next check no longer finds their
/// consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// The superblock and the journal.
    Volume,
    /// Descriptors, and the places of bitmaps and tables.
    Groups,
    /// Fields of inodes.
    Inodes,
    /// The maps of files.
    Maps,
    /// Extended attributes.
    Attributes,
    /// Blocks that several files claim.
    Shared,
    /// Blocks of directories, and indexes.
    Directories,
    /// Single entries.
    Entries,
    /// `..` of directories.
    Parents,
    /// Files and directories without a name.
    Names,
    /// Link counts, counts of blocks, reference counts.
    Links,
    /// Bitmaps, and the counts that follow from them.
    Bitmaps,
    /// Usage by owner.
    Quota,
}

impl Layer {
    /// All layers, the lowest first.
    pub const ALL: [Layer; 13] = [
        Layer::Volume,
        Layer::Groups,
        Layer::Inodes,
        Layer::Maps,
        Layer::Attributes,
        Layer::Shared,
        Layer::Directories,
        Layer::Entries,
        Layer::Parents,
        Layer::Names,
        Layer::Links,
        Layer::Bitmaps,
        Layer::Quota,
    ];
}

/// A word of feature bits in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Word {
    /// `s_feature_compat`.
    Compat,
    /// `s_feature_incompat`.
    Incompat,
    /// `s_feature_ro_compat`.
    RoCompat,
}

/// A number in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SuperField {
    /// `s_last_orphan`.
    LastOrphan,
    /// `s_reserved_gdt_blocks`.
    ReservedGdtBlocks,
    /// `s_min_extra_isize`.
    MinExtraIsize,
    /// `s_want_extra_isize`.
    WantExtraIsize,
    /// `s_usr_quota_inum`.
    UserQuota,
    /// `s_grp_quota_inum`.
    GroupQuota,
    /// `s_prj_quota_inum`.
    ProjectQuota,
    /// `s_journal_inum`.
    Journal,
    /// `s_orphan_file_inum`.
    OrphanFile,
    /// The reserved blocks.
    ReservedBlocks,
}

/// A number in an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InodeField {
    /// The deletion time.
    Dtime,
    /// Size in bytes.
    Size,
    /// High half of the size.
    SizeHigh,
    /// High half of the count of blocks.
    BlocksHigh,
    /// Address of a fragment.
    Faddr,
    /// Number of a fragment.
    Frag,
    /// Size of a fragment.
    Fsize,
    /// High half of the attribute block.
    AclHigh,
    /// The attribute block.
    Acl,
    /// The number of references to the value of an attribute.
    References,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The superblock is replaced by the candidate with the fewest findings.
    SuperBlock,
    /// Feature bits are set and cleared.
    Feature {
        /// The word.
        word: Word,
        /// Bits to set.
        set: u32,
        /// Bits to clear.
        clear: u32,
    },
    /// A number in the superblock is set.
    SuperField(SuperField, u64),
    /// The journal is recreated.
    NewJournal,
    /// The log, which the image does not mention, is replayed or emptied, depending on which leaves fewer findings.
    UnmentionedLog,
    /// A damaged block, or an inode in it, is replaced by its newest copy in the log.
    LogCopy {
        /// The block of which it is a copy.
        block: BlockNr,
        /// The inode; `None` for the whole block.
        ino: Option<InodeNr>,
    },
    /// The place of a journal on another device is forgotten.
    ForgetExternalJournal,
    /// Orphans are deleted or truncated, and their list is emptied.
    FinishOrphans,
    /// The orphan file is recreated.
    OrphanFile,
    /// The block of multi-mount protection is rewritten.
    MultiMount,
    /// A group's descriptor is rewritten, with its checksum.
    Descriptor(GroupNr),
    /// Places of a group's bitmaps or table that are lost, or that something else uses, are chosen again.
    Places(GroupNr),
    /// The unused part of a group's inode table begins after this inode.
    Table(InodeNr),
    /// Bitmaps and table of a group are set to the places that mke2fs chooses.
    UsualPlaces(GroupNr),
    /// The resize inode is changed to map the reserved blocks again.
    ResizeInode,
    /// A field of an inode is set.
    InodeField(InodeNr, InodeField, u64),
    /// Flags of an inode are set and cleared.
    InodeFlags {
        /// The inode.
        ino: InodeNr,
        /// Bits to set.
        set: u32,
        /// Bits to clear.
        clear: u32,
    },
    /// An inode's checksum is updated.
    InodeSeal(InodeNr),
    /// The kind in an inode's mode is set according to its entries and content.
    Kind(InodeNr),
    /// The size of an inode's extra fields is set.
    ExtraIsize(InodeNr),
    /// An inode is cleared.
    Clear(InodeNr),
    /// An inode that was never deleted, and has a name, is marked as in use again.
    Revive(InodeNr),
    /// The root directory is recreated, from its old blocks if they can be found.
    Root,
    /// An inode's map is rewritten with its usable part.
    Map(InodeNr),
    /// The size of a symlink is set according to its target.
    Target(InodeNr),
    /// Inline data gets the flag, the attribute or the form that it needs.
    Inline(InodeNr),
    /// An inode's readable attributes are rewritten.
    Attributes(InodeNr),
    /// An attribute block is rewritten with the attributes that can be read.
    AttributeBlock {
        /// The attribute block.
        block: BlockNr,
        /// The number of inodes that refer to it; 0 if it does not change.
        references: u32,
    },
    /// No inode refers to this attribute block any more.
    DropAttributeBlock(BlockNr),
    /// An inode gets separate blocks for those that it shares.
    Own(InodeNr),
    /// A block of a directory is rewritten with the entries that can be read.
    DirBlock(InodeNr, u32),
    /// A directory is rewritten with all names that can be read, and its index.
    Directory(InodeNr),
    /// An entry is removed.
    DropEntry {
        /// The directory.
        dir: InodeNr,
        /// The logical block.
        lblk: u32,
        /// The offset of the entry in the block, in bytes.
        offset: u32,
        /// The inode to which it refers.
        ino: InodeNr,
    },
    /// The file type in an entry is set.
    EntryKind {
        /// The directory.
        dir: InodeNr,
        /// The logical block.
        lblk: u32,
        /// The offset of the entry in the block, in bytes.
        offset: u32,
        /// The number of the type.
        kind: u8,
    },
    /// A directory keeps only one of several names: the one that its `..` confirms.
    OneName(InodeNr),
    /// `..` of a directory is set.
    Parent(InodeNr, InodeNr),
    /// A file or directory without a name gets one in `/lost+found`.
    Attach(InodeNr),
    /// A link count is set.
    Links(InodeNr, u16),
    /// A count of blocks is set.
    Blocks(InodeNr, u64),
    /// Bitmaps, checksums and counts of a group are rewritten.
    Recount(GroupNr),
    /// The totals in the superblock are set.
    Totals,
    /// A quota file is recreated; its readable limits are kept.
    Quota(InodeNr),
}

/// An action, and the finding that caused it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The layer, which determines when the step is carried out.
    pub layer: Layer,
    /// The change.
    pub action: Action,
    /// The first finding that it answers.
    pub cause: Finding,
    /// The number of findings that it answers.
    pub findings: u64,
    /// Whether `-p` may carry it out.
    pub is_safe: bool,
}

impl Action {
    /// The inode that it changes; for an entry, its directory.
    pub fn ino(&self) -> Option<InodeNr> {
        Some(match *self {
            Action::InodeField(ino, ..) | Action::InodeSeal(ino) | Action::Kind(ino) | Action::ExtraIsize(ino) => ino,
            Action::Clear(ino) | Action::Revive(ino) | Action::Map(ino) | Action::Target(ino) => ino,
            Action::Inline(ino) | Action::Attributes(ino) | Action::Own(ino) | Action::DirBlock(ino, _) => ino,
            Action::Directory(ino) | Action::OneName(ino) | Action::Parent(ino, _) | Action::Attach(ino) => ino,
            Action::Links(ino, _) | Action::Blocks(ino, _) | Action::Quota(ino) | Action::Table(ino) => ino,
            Action::InodeFlags { ino, .. } => ino,
            Action::LogCopy { ino, .. } => return ino,
            Action::DropEntry { dir, .. } | Action::EntryKind { dir, .. } => dir,
            Action::Root => InodeNr::ROOT,
            Action::ResizeInode => InodeNr::RESIZE,
            _ => return None,
        })
    }
}

fn flags(f: &mut fmt::Formatter<'_>, what: &str, bits: u32) -> fmt::Result {
    let flags = InodeFlags::from_bits_retain(bits);
    let names: Vec<String> = flags.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    write!(f, "{what} {}", names.join(", "))
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::SuperBlock => f.write_str("superblock: take the fields with which the fewest findings remain"),
            Action::Feature { word, set, clear } => {
                write!(f, "superblock: {word:?}: set {set:#x}, clear {clear:#x}")
            }
            Action::SuperField(field, value) => write!(f, "superblock: set {field:?} to {value}"),
            Action::NewJournal => f.write_str("journal: make it anew"),
            Action::UnmentionedLog => f.write_str("journal: replay or empty the log, whichever leaves fewer findings"),
            Action::LogCopy { block, ino: None } => write!(f, "{block}: take the copy in the log"),
            Action::LogCopy { block, ino: Some(ino) } => write!(f, "{ino}: take the copy of {block} in the log"),
            Action::ForgetExternalJournal => f.write_str("superblock: forget the journal on another device"),
            Action::FinishOrphans => f.write_str("orphans: delete or truncate them, and empty their list"),
            Action::OrphanFile => f.write_str("orphan file: make it anew"),
            Action::MultiMount => f.write_str("multi-mount protection: make its block anew"),
            Action::Descriptor(group) => write!(f, "{group}: write the descriptor anew"),
            Action::Places(group) => write!(f, "{group}: choose places for bitmaps and table"),
            Action::UsualPlaces(group) => write!(f, "{group}: bitmaps and table are where mke2fs puts them"),
            Action::Table(ino) => write!(f, "{ino}: extend the used part of its table to it"),
            Action::ResizeInode => f.write_str("resize inode: map the reserved blocks"),
            Action::InodeField(ino, field, value) => write!(f, "{ino}: set {field:?} to {value}"),
            Action::InodeFlags { ino, set, clear } => {
                write!(f, "{ino}: ")?;
                match (set, clear) {
                    (0, clear) => flags(f, "clear flags", *clear),
                    (set, 0) => flags(f, "set flags", *set),
                    (set, clear) => {
                        flags(f, "set flags", *set)?;
                        flags(f, ", clear flags", *clear)
                    }
                }
            }
            Action::InodeSeal(ino) => write!(f, "{ino}: renew the checksum"),
            Action::Kind(ino) => write!(f, "{ino}: set the kind that its names and its content show"),
            Action::ExtraIsize(ino) => write!(f, "{ino}: set the size of its extra fields"),
            Action::Clear(ino) => write!(f, "{ino}: clear"),
            Action::Revive(ino) => write!(f, "{ino}: take it back into use"),
            Action::Root => f.write_str("root directory: find its blocks, or make it anew"),
            Action::Map(ino) => write!(f, "{ino}: write its map with the part that can be used"),
            Action::Target(ino) => write!(f, "{ino}: set the size to that of its target"),
            Action::Inline(ino) => write!(f, "{ino}: mend its inline data"),
            Action::Attributes(ino) => write!(f, "{ino}: write the attributes that can be read"),
            Action::AttributeBlock { block, .. } => write!(f, "attributes in {block}: write those that can be read"),
            Action::DropAttributeBlock(block) => write!(f, "attributes in {block}: drop all references to it"),
            _ => self.write_rest(f),
        }
    }
}

impl Action {
    fn write_rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Own(ino) => write!(f, "{ino}: settle the blocks that it shares"),
            Action::DirBlock(ino, lblk) => {
                write!(f, "directory {}, logical block {lblk}: write the entries that can be read", ino.0)
            }
            Action::Directory(ino) => write!(f, "directory {}: write all names and the index anew", ino.0),
            Action::DropEntry { dir, lblk, offset, ino } => {
                write!(f, "directory {}, logical block {lblk}, offset {offset}: remove the name of {ino}", dir.0)
            }
            Action::EntryKind { dir, lblk, offset, kind } => {
                write!(f, "directory {}, logical block {lblk}, offset {offset}: set file type {kind}", dir.0)
            }
            Action::OneName(ino) => write!(f, "directory {}: keep the name that '..' confirms", ino.0),
            Action::Parent(ino, parent) => write!(f, "directory {}: set '..' to {parent}", ino.0),
            Action::Attach(ino) => write!(f, "{ino}: give it a name in /lost+found"),
            Action::Links(ino, links) => write!(f, "{ino}: set the link count to {links}"),
            Action::Blocks(ino, blocks) => write!(f, "{ino}: set the count of blocks to {blocks}"),
            Action::Recount(group) => write!(f, "{group}: write bitmaps and counts as the files need them"),
            Action::Totals => f.write_str("superblock: set the totals"),
            Action::Quota(ino) => write!(f, "quota file {}: write the usage anew", ino.0),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)
    }
}
