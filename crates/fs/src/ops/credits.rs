//! Journal credits: the maximum number of metadata blocks that each operation changes (Linux: `EXT4_DATA_TRANS_BLOCKS`
//! and its neighbours, fs/ext4/ext4_jbd2.h).
//!
//! | operation | blocks | which |
//! |---|---|---|
//! | [`SUPER`], [`INODE`] | 1 | one block, one change: label, flags, times |
//! | [`DISK_SIZE`] | 3 | `large_file`, the inode |
//! | [`TRUNCATE_BEGIN`] | 5 | the orphan record, both sizes |
//! | [`TRUNCATE_END`] | 4 | the orphan record, the inode |
//! | [`SETATTR`], [`CHMOD`] | 2, 10 | the inode; its access ACL, or its capabilities |
//! | [`SET_XATTR`] | 12 | one change of attributes, the time of change |
//! | [`NEW_INODE`] | 22 | number, inode, first block, attributes, the orphan record if it is abandoned |
//! | [`create`], [`link`] | by the directory | the name; the new inode, or the old one |
//! | [`REMOVE_NAME`] | 8 | the entry, the directory, its inode, which may become an orphan |
//! | [`rename`], [`EXCHANGE`] | by the directory, 21 | two names, two directories, the moved and the replaced inode |
//! | [`EVICT`] | 8 | the orphan record, the inode, its number; attributes with [`XATTR`] |
//! | [`VALUE`] | 3 | a value in an inode of its own gets or loses a reference |
//! | [`Volume::allocate_credits`] etc. | by the map | allocating blocks, changing their state, freeing them |
//!
//! A block that changes twice counts once, so these are upper bounds. Unused credits are returned when the handle ends.
//! Too many credits occupy room in the running transaction until then, and too few overrun it. The sums consist of the
//! parts below; `+ n` at the end of a sum is spare. Debug builds, and therefore all tests, stop at an operation that
//! changes more blocks than its credits allow ([`extant_journal::Handle::modify`]).
//!
//! What it does not do: know the trees. Maps ([`crate::map::MapRoot::credits_for_insert`]), directories
//! ([`crate::dir::credits_for_add`]) and attributes ([`crate::xattr::CREDITS`]) compute their own credits, and tests
//! check those.
//!
//! # Locking
//! The functions that consult a map take its lock (50), shared, while they do.

use crate::inode::Inode;
use crate::volume::Volume;
use crate::xattr;

/// The superblock: a feature's flag, the head of the orphan list, an error's fields.
pub(crate) const SUPER: u32 = 1;
/// The table block of one inode.
pub(crate) const INODE: u32 = 1;
/// A bitmap and its group's descriptor: a block or an inode number is allocated or freed.
pub(crate) const GROUP: u32 = 2;
/// The directory block of an existing name.
const ENTRY: u32 = 1;
/// Adding or removing an orphan: the superblock or a block of the orphan file, and the neighbour on the list.
const ORPHAN: u32 = 2;

/// One change of attributes.
pub(crate) const XATTR: u32 = xattr::CREDITS;

/// Adding or removing a reference to a value: its inode, which may join or leave the orphans.
pub(crate) const VALUE: u32 = INODE + ORPHAN;

/// Moving the size on disk, perhaps for the first time beyond 2 GiB.
pub(crate) const DISK_SIZE: u32 = SUPER + INODE + 1;
/// Adding the inode to the orphans, with its new size.
pub(crate) const TRUNCATE_BEGIN: u32 = ORPHAN + DISK_SIZE;
/// Removing the inode from the orphans.
pub(crate) const TRUNCATE_END: u32 = ORPHAN + INODE + 1;
pub(crate) const SETATTR: u32 = INODE + 1;
/// As [`SETATTR`], with an attribute that depends on the mode.
pub(crate) const CHMOD: u32 = SETATTR + XATTR;
pub(crate) const SET_XATTR: u32 = XATTR + INODE + 3;
/// The number, the new inode and its parent, the first block, and the attributes. Also the orphan record if the inode
/// is taken back, and the superblock for `dir_nlink`.
pub(crate) const NEW_INODE: u32 = GROUP + INODE + INODE + (GROUP + 1) + ORPHAN + SUPER + 4 + XATTR;
/// For unlink and rmdir.
pub(crate) const REMOVE_NAME: u32 = ENTRY + INODE + INODE + ORPHAN + 3;
/// Two entries, two `..`, the inodes of both and of their directories; the superblock for `dir_nlink`.
pub(crate) const EXCHANGE: u32 = 2 * ENTRY + 2 * ENTRY + 4 * INODE + SUPER + 12;
/// Evicting an inode without attributes; with attributes, add [`XATTR`].
pub(crate) const EVICT: u32 = ORPHAN + INODE + GROUP + 3;

/// For create, mkdir, symlink and mknod. `add`: [`crate::dir_store::DirView::add_credits`], here and below.
pub(crate) fn create(add: u32) -> u32 {
    add + NEW_INODE
}

/// A new name, the directory, and the inode, which may leave the orphans and join them again.
pub(crate) fn link(add: u32) -> u32 {
    add + INODE + INODE + 2 * ORPHAN + 4
}

/// The old entry, the `..` of a moved directory, both directories, the moved inode, and the replaced one, which may
/// become an orphan; the superblock for `dir_nlink`; and the whiteout in the old place, if there is one.
pub(crate) fn rename(add: u32, leaves_whiteout: bool) -> u32 {
    let whiteout = if leaves_whiteout { NEW_INODE } else { 0 };
    add + 2 * ENTRY + 2 * INODE + 2 * INODE + ORPHAN + SUPER + 7 + whiteout
}

impl Volume {
    /// For allocating and mapping up to `len` blocks: their group, the map's nodes, the inode, and the superblock for
    /// `large_file`.
    pub(crate) fn allocate_credits(&self, inode: &Inode, len: u32) -> u32 {
        inode.map.read().credits_for_insert(self.geo.block_size, len) + GROUP + INODE + SUPER
    }

    /// For changing the state of a run of blocks, which may split extents at both of its ends.
    pub(crate) fn convert_credits(&self, inode: &Inode) -> u32 {
        self.allocate_credits(inode, 1) + 8
    }

    /// For unmapping and freeing some blocks in up to two groups, and writing the inode. The spare credits let a caller
    /// finish in the same handle.
    pub(crate) fn remove_credits(&self, inode: &Inode) -> u32 {
        inode.map.read().credits_for_remove(2) + INODE + 7
    }
}
