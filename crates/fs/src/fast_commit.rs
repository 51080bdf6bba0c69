//! The description of changes for fast commits (Linux: the `ext4_fc_track_` functions, fs/ext4/fast_commit.c).
//!
//! Main functions: [`Volume::describe_inode`], [`Volume::describe_blocks`], [`describe_name`]; [`suits`]: whether the
//! mount writes fast commits at all. [`extant_journal`] lists the records, and writes them; `mount/fast_commit.rs`
//! replays them.
//!
//! A transaction needs a full commit unless every handle that changed something in it is described
//! ([`Handle::set_described`]). These are: new blocks of files and their conversion, sizes, times, modes and owners of
//! files, their creation, further names, and moves without a victim. Bitmaps, descriptors, nodes of maps and blocks of
//! directories follow from these when they are replayed. A directory has no record of its own, as in Linux: after a
//! replay, its times are those of the replay.
//!
//! Everything else is not described: removed blocks and names' last removal, orphans, attributes, directories that
//! come, go, move or grow, inodes of other kinds, quotas, the superblock. So are files that other programs treat
//! wrongly when they replay fast commits ([`can_be_described`]).
//!
//! What it does not do: write or replay anything.
//!
//! # Locking
//! Records are added under the lock that excludes a second change of the same thing: a map's, a directory's. They take
//! `transaction` (92) alone. No lock orders the names of one file in several directories. A name that a link adds is
//! recorded before it counts, and one that an unlink removes after it has ceased to count.

use std::sync::Arc;

use extant_cache::Buffer;
use extant_journal::Handle;
use extant_ondisk::extent::Extent;
use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::inode::{GOOD_OLD_INODE_SIZE, InodeDesc, InodeFlags};
use extant_ondisk::jbd2::{FastCommitName, FastCommitRecord};
use extant_ondisk::superblock::SuperBlock;
use extant_ondisk::{InodeNr, LogicalBlock, xattr};

use crate::inode::Inode;
use crate::map::{MapRoot, MapState};
use crate::map_view::MapView;
use crate::volume::Volume;

/// Flags that neither change what a file consists of nor the meaning of its map.
const PLAIN_FLAGS: InodeFlags = InodeFlags::EXTENTS
    .union(InodeFlags::SYNC)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::IMMUTABLE);

/// The extra bytes of an inode up to the upper half of its checksum.
const EXTRA_ISIZE_MIN: u16 = 4;

/// Whether fast commits can be written on this image: it has the feature, and none that its replay does not know.
pub(crate) fn suits(sb: &SuperBlock) -> bool {
    sb.compat().contains(Compat::FAST_COMMIT)
        && sb.incompat().contains(Incompat::EXTENTS)
        && !sb.incompat().contains(Incompat::INLINE_DATA)
        && !sb.ro_compat().intersects(RoCompat::QUOTA | RoCompat::BIGALLOC)
}

/// Whether a record can describe the fields of this inode. Orphans are not found by the replay of Linux. It does not
/// count blocks of attributes, and knows maps by extents alone. The map must fit into the inode, because for a node of
/// it e2fsck 1.47.0 may take a block that a later record gives to a file.
fn can_be_described(desc: &InodeDesc) -> bool {
    desc.is_regular()
        && desc.has_extents()
        && PLAIN_FLAGS.contains(desc.flags)
        && desc.links > 0
        && desc.dtime == 0
        && desc.file_acl.0 == 0
        && depth_of(desc) == 0
}

/// The levels of nodes below the root of a map by extents.
fn depth_of(desc: &InodeDesc) -> u16 {
    u16::from_le_bytes([desc.i_block[6], desc.i_block[7]])
}

/// Whether a record can describe names in this directory. In its replay, e2fsck 1.47.0 may fail to add one to an index,
/// and then drops the log.
fn has_plain_names(dir: &Inode) -> bool {
    let odd = InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT | InodeFlags::CASEFOLD | InodeFlags::INDEX;
    let m = dir.meta.read();
    m.desc.links > 0 && !m.desc.flags.intersects(odd)
}

/// How a name changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameChange {
    /// The first name of a new inode.
    Create,
    /// A further name.
    Link,
    /// A name less; others remain.
    Unlink,
}

/// Describes a change of the name `name` of the file `inode` in `dir`.
pub(crate) fn describe_name(handle: &mut Handle, how: NameChange, dir: &Inode, inode: &Inode, name: &[u8]) {
    if !handle.is_listing() {
        return;
    }
    if !has_plain_names(dir) || !can_be_described(&inode.meta.read().desc) {
        return handle.set_opaque();
    }
    let name = FastCommitName { parent: dir.ino, ino: inode.ino, name: name.to_vec() };
    handle.describe(match how {
        NameChange::Create => FastCommitRecord::Create(name),
        NameChange::Link => FastCommitRecord::Link(name),
        NameChange::Unlink => FastCommitRecord::Unlink(name),
    });
}

/// A change of attributes is described by the inode's record, which directories have none of.
pub(crate) fn set_file_described(handle: &mut Handle, inode: &Inode) {
    if !inode.is_dir() {
        handle.set_described();
    }
}

/// Describes the move of a file to another name. `plain`: no other inode has been replaced, or made.
pub(crate) fn describe_move(
    handle: &mut Handle,
    inode: &Inode,
    (old_dir, old_name): (&Inode, &[u8]),
    (new_dir, new_name): (&Inode, &[u8]),
    plain: bool,
) {
    if plain && !inode.is_dir() {
        describe_name(handle, NameChange::Link, new_dir, inode, new_name);
        describe_name(handle, NameChange::Unlink, old_dir, inode, old_name);
        handle.set_described();
    }
}

impl Volume {
    /// Describes the fields of an inode that was just written to its slot. Those of a directory are not described; its
    /// names are, in records of their own.
    pub(crate) fn describe_inode(
        &self,
        handle: &mut Handle,
        ino: InodeNr,
        desc: &InodeDesc,
        table: &Arc<Buffer>,
        offset: usize,
    ) {
        if !handle.is_listing() || desc.is_dir() {
            return;
        }
        let is_own = ino.0 < self.geo.first_ino || self.own_inodes.contains(ino);
        let has_extra = self.geo.inode_size > GOOD_OLD_INODE_SIZE;
        // e2fsck 1.47.0 drops the log at a record of an inode that has room for these fields and lacks them.
        let lacks_extra = has_extra && desc.extra_isize < EXTRA_ISIZE_MIN;
        if is_own || lacks_extra || self.is_beside_journal(ino) || !can_be_described(desc) {
            return handle.set_opaque();
        }
        let extra = if has_extra { usize::from(desc.extra_isize) } else { 0 };
        // Attributes behind the fields stay as they are.
        handle.describe_inode(ino, table, offset, GOOD_OLD_INODE_SIZE + extra);
    }

    /// Whether the inode lies in the table block of the journal's inode: with blocks of 4 KiB, the first five files of
    /// a file system do. e2fsck 1.47.0 writes its old copy of that block over the one from the log (see
    /// `Changes::lay_out` in [`extant_journal`]).
    fn is_beside_journal(&self, ino: InodeNr) -> bool {
        let place = |ino| self.geo.inode_location(ino).ok().map(|place| (place.group, place.table_block));
        place(ino) == place(InodeNr::JOURNAL)
    }

    /// Describes the state of the blocks from `from` to before `to`, which the caller has just mapped or converted. The
    /// map is locked.
    pub(crate) fn describe_blocks(
        &self,
        handle: &mut Handle,
        inode: &Inode,
        map: &MapRoot,
        view: &MapView<'_>,
        (from, to): (u32, u32),
    ) {
        if !handle.is_listing() {
            return;
        }
        if !map.extents {
            return handle.set_opaque();
        }
        let mut at = from;
        while at < to {
            let (lblk, rest) = (LogicalBlock(at), to - at);
            let Ok(found) = map.lookup(view, lblk, rest) else { return handle.set_opaque() };
            let (pblk, unwritten) = match found.state {
                MapState::Written(pblk) => (pblk, false),
                MapState::Unwritten(pblk) => (pblk, true),
                MapState::Hole => return handle.set_opaque(),
            };
            let len = found.len.clamp(1, rest);
            handle
                .describe(FastCommitRecord::AddRange { ino: inode.ino, extent: Extent { lblk, len, pblk, unwritten } });
            at += len;
        }
    }

    /// A new inode gets this slot, which holds `old`. Replay writes only the fields over it. So the remains of an
    /// earlier inode must not look like content of the new one: its map, to Linux, or its attributes.
    pub(crate) fn describe_new_slot(&self, handle: &mut Handle, table: &Buffer, offset: usize) {
        if handle.is_listing() && !table.read(|b| is_reusable(&b[offset..offset + self.geo.inode_size])) {
            handle.set_opaque();
        }
    }
}

/// Where the fields are that [`is_reusable`] looks at.
const LINKS_AT: usize = 0x1A;
const BLOCK_AT: usize = 0x28;
const EXTRA_ISIZE_AT: usize = 0x80;
/// The magic number of a node of extents.
const EXTENT_MAGIC: u16 = 0xF30A;

/// Whether the slot holds nothing, or an inode that was deleted with its map.
fn is_reusable(old: &[u8]) -> bool {
    let le16 = |at: usize| u16::from_le_bytes([old[at], old[at + 1]]);
    let le32 = |at: usize| u32::from(le16(at)) | u32::from(le16(at + 2)) << 16;
    let is_empty_map = le16(BLOCK_AT) != EXTENT_MAGIC || (le16(BLOCK_AT + 2), le16(BLOCK_AT + 6)) == (0, 0);
    let has_no_attributes = old.len() <= GOOD_OLD_INODE_SIZE || {
        let extra = usize::from(le16(EXTRA_ISIZE_AT));
        extra % 4 == 0
            && GOOD_OLD_INODE_SIZE + extra <= old.len()
            && (GOOD_OLD_INODE_SIZE..old.len()).step_by(4).all(|at| le32(at) != xattr::MAGIC)
    };
    le16(LINKS_AT) == 0 && is_empty_map && has_no_attributes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_with_remains_of_an_earlier_inode_needs_a_full_commit() {
        assert!(is_reusable(&[0; 128]) && is_reusable(&[0; 256]));
        let with = |at: usize, bytes: &[u8]| {
            let mut slot = [0; 256];
            slot[at..at + bytes.len()].copy_from_slice(bytes);
            is_reusable(&slot)
        };
        // An empty root of extents, and the time of deletion.
        assert!(
            with(BLOCK_AT, &[0x0A, 0xF3, 0, 0, 4, 0, 0, 0]) && with(0x14, &[9; 4]) && with(EXTRA_ISIZE_AT, &[32, 0])
        );
        assert!(!with(BLOCK_AT, &[0x0A, 0xF3, 1, 0, 4, 0, 0, 0]), "extents");
        assert!(!with(BLOCK_AT, &[0x0A, 0xF3, 0, 0, 4, 0, 1, 0]), "a tree");
        assert!(!with(LINKS_AT, &[1, 0]), "links");
        assert!(!with(160, &xattr::MAGIC.to_le_bytes()), "attributes");
        assert!(!with(EXTRA_ISIZE_AT, &[200, 0]) && !with(EXTRA_ISIZE_AT, &[3, 0]), "garbage");
    }
}
