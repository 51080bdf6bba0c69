//! Journal credits: how many metadata blocks an operation changes at most (Linux: `EXT4_DATA_TRANS_BLOCKS` and
//! neighbours, fs/ext4/ext4_jbd2.h).
//!
//! | operation | blocks | which |
//! |---|---|---|
//! | [`SUPER`], [`INODE`] | 1 | one block, one change: label, flags, times |
//! | [`DISK_SIZE`] | 3 | `large_file`, the inode |
//! | [`TRUNCATE_BEGIN`] | 5 | the orphan record, both sizes |
//! | [`TRUNCATE_END`] | 4 | the orphan record, the inode |
//! | [`SETATTR`], [`CHMOD`] | 2, 10 | the inode; its access ACL, or its capabilities |
//! | [`SET_XATTR`] | 12 | one change of attributes, the time of change |
//! | [`NEW_INODE`] | 22 | number, inode, first block, attributes, the orphan record if it is taken back |
//! | [`create`], [`link`] | by the directory | the name; the new inode, or the old one |
//! | [`REMOVE_NAME`] | 8 | the entry, the directory, what it named, which may become an orphan |
//! | [`rename`], [`EXCHANGE`] | by the directory, 21 | two names, two directories, what moves, what goes |
//! | [`EVICT`] | 8 | the orphan record, the inode, its number; attributes with [`XATTR`] |
//! | [`allocate`], [`convert`], [`remove`] | by the map | blocks come, change their state, go |
//!
//! Blocks that are changed twice count once, so these are bounds, and what an operation does not use is given back when
//! its handle ends: too many cost room in the running transaction for that long, too few overrun it. Sums are of the
//! parts below; `+ n` at the end of one is what it has to spare. Debug builds, and so all tests, stop at an operation
//! that changes more than it asked for ([`extant_journal::Handle::modify`]).
//!
//! What it does not do: say what trees need. Maps ([`crate::map::MapRoot::credits_for_insert`]), directories
//! ([`crate::dir::credits_for_add`]) and attributes ([`crate::xattr::CREDITS`]) know that, and are tested for it.
//!
//! # Locking
//! The functions that ask a map take its lock (50), shared, for that long.

use crate::dir::{self, DirStore};
use crate::dir_store::DirView;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::xattr;

/// The superblock: a feature's flag, the head of the orphan list, an error's fields.
pub(crate) const SUPER: u32 = 1;
/// The table block of one inode.
pub(crate) const INODE: u32 = 1;
/// A bitmap and its group's descriptor: a block or an inode number comes or goes.
pub(crate) const GROUP: u32 = 2;
/// The directory block of a name that is there.
const ENTRY: u32 = 1;
/// One more or less among the orphans: the superblock or a block of the orphan file, and the neighbour on the list.
const ORPHAN: u32 = 2;

/// One change of attributes.
pub(crate) const XATTR: u32 = xattr::CREDITS;

/// A size on disk that moves, perhaps the first beyond 2 GiB.
pub(crate) const DISK_SIZE: u32 = SUPER + INODE + 1;
/// The inode is among the orphans, with its new size.
pub(crate) const TRUNCATE_BEGIN: u32 = ORPHAN + DISK_SIZE;
/// The inode is no orphan any more.
pub(crate) const TRUNCATE_END: u32 = ORPHAN + INODE + 1;
pub(crate) const SETATTR: u32 = INODE + 1;
/// As [`SETATTR`], with an attribute that changes with the mode.
pub(crate) const CHMOD: u32 = SETATTR + XATTR;
pub(crate) const SET_XATTR: u32 = XATTR + INODE + 3;
/// Number, own and parent's inode, first block, attributes; the orphan record of one that is taken back, the superblock
/// for `dir_nlink`.
pub(crate) const NEW_INODE: u32 = GROUP + INODE + INODE + (GROUP + 1) + ORPHAN + SUPER + 4 + XATTR;
/// unlink, rmdir.
pub(crate) const REMOVE_NAME: u32 = ENTRY + INODE + INODE + ORPHAN + 3;
/// Two entries, two `..`, the inodes of both and of their directories; the superblock for `dir_nlink`.
pub(crate) const EXCHANGE: u32 = 2 * ENTRY + 2 * ENTRY + 4 * INODE + SUPER + 12;
/// Without attributes.
pub(crate) const EVICT: u32 = ORPHAN + INODE + GROUP + 3;

/// A name more in the directory of `view`.
fn add_name(view: &DirView<'_>) -> u32 {
    let add = dir::credits_for_add(&view.params, view.blocks());
    let map = view.dir.map.read().credits_for_insert(view.fs.geo.block_size, 1);
    // Each new block: bitmap, descriptor, itself, and the map's nodes (whose first split makes the next cheap).
    add.blocks + add.appended * (GROUP + 1) + map + INODE
}

/// create, mkdir, symlink, mknod.
pub(crate) fn create(view: &DirView<'_>) -> u32 {
    add_name(view) + NEW_INODE
}

/// The inode, which may have been an orphan and become one again, and the directory.
pub(crate) fn link(view: &DirView<'_>) -> u32 {
    add_name(view) + INODE + INODE + 2 * ORPHAN + 4
}

/// The old entry, the `..` of a directory that moves, both directories, what moves, what it replaces and may be an
/// orphan then, the superblock for `dir_nlink`; and what is left in the old place, if something is.
pub(crate) fn rename(new: &DirView<'_>, leaves_whiteout: bool) -> u32 {
    let whiteout = if leaves_whiteout { NEW_INODE } else { 0 };
    add_name(new) + 2 * ENTRY + 2 * INODE + 2 * INODE + ORPHAN + SUPER + 7 + whiteout
}

impl Filesystem {
    /// Up to `len` blocks allocated and mapped: their group, the map's nodes, the inode, the superblock for
    /// `large_file`.
    pub(crate) fn allocate_credits(&self, inode: &Inode, len: u32) -> u32 {
        inode.map.read().credits_for_insert(self.geo.block_size, len) + GROUP + INODE + SUPER
    }

    /// A run of blocks changes its state, which may split extents at both of its ends.
    pub(crate) fn convert_credits(&self, inode: &Inode) -> u32 {
        self.allocate_credits(inode, 1) + 8
    }

    /// Some blocks of up to two groups are unmapped and freed; the inode. Whoever ends with this handle has some left.
    pub(crate) fn remove_credits(&self, inode: &Inode) -> u32 {
        inode.map.read().credits_for_remove(2) + INODE + 7
    }
}
