//! Feature bits: their names, and whether Extant supports a file system with them.
//!
//! Main types: [`Compat`], [`Incompat`], [`RoCompat`] (the three words of the superblock), [`check`] (whether, and how,
//! a file system may be mounted), [`MountMode`]. This only examines the superblock. Whether the journal can be replayed
//! is decided elsewhere.
//!
//! # Locking
//! None.

use crate::superblock::SuperBlock;
use crate::{Error, Result};
use bitflags::bitflags;

bitflags! {
    /// Bits that never stop a mount (Linux: `EXT4_FEATURE_COMPAT_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Compat: u32 {
        /// Blocks should be preallocated for directories; no effect in Linux.
        const DIR_PREALLOC = 0x0001;
        /// Inodes of AFS; no effect in Linux.
        const IMAGIC_INODES = 0x0002;
        /// There is a journal, in an inode or on another device.
        const HAS_JOURNAL = 0x0004;
        /// Inodes have had attributes in separate blocks.
        const EXT_ATTR = 0x0008;
        /// Inode 7 owns blocks after the descriptors, into which the descriptor table can grow.
        const RESIZE_INODE = 0x0010;
        /// Directories may have a hash tree.
        const DIR_INDEX = 0x0020;
        /// Uninitialized groups, in a form older than `uninit_bg`.
        const LAZY_BG = 0x0040;
        /// Bitmaps of blocks that snapshots exclude; never used by Linux.
        const EXCLUDE_BITMAP = 0x0100;
        /// At most the two groups in `s_backup_bgs` have backups.
        const SPARSE_SUPER2 = 0x0200;
        /// The journal may contain fast commits.
        const FAST_COMMIT = 0x0400;
        /// Inode numbers and the UUID must not change, because encryption depends on them.
        const STABLE_INODES = 0x0800;
        /// Orphans are listed in a file (`s_orphan_file_inum`) instead of a linked list.
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }
}

bitflags! {
    /// Bits that an implementation must support to read the file system at all (Linux: `EXT4_FEATURE_INCOMPAT_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// File data may be compressed; never used by Linux.
        const COMPRESSION = 0x0_0001;
        /// Directory entries have the type of their inode.
        const FILETYPE = 0x0_0002;
        /// The journal contains transactions to replay.
        const NEEDS_RECOVERY = 0x0_0004;
        /// The device contains the journal of another file system, and no file system.
        const JOURNAL_DEV = 0x0_0008;
        /// Descriptors lie in the groups that they describe, from `s_first_meta_bg` on.
        const META_BG = 0x0_0010;
        /// Inodes may map their blocks with extents.
        const EXTENTS = 0x0_0040;
        /// Block numbers have 64 bits, and descriptors at least 64 bytes.
        const BIT64 = 0x0_0080;
        /// A block (`s_mmp_block`) shows other hosts which host has the file system mounted.
        const MMP = 0x0_0100;
        /// Bitmaps and inode tables may lie in another group.
        const FLEX_BG = 0x0_0200;
        /// Attribute values may be stored in inodes of their own.
        const EA_INODE = 0x0_0400;
        /// Directory entries contain more than the name; used by Lustre.
        const DIRDATA = 0x0_1000;
        /// Checksums start with `s_checksum_seed`, so the UUID may change.
        const CSUM_SEED = 0x0_2000;
        /// Directories may exceed their 32-bit size, and have three levels of index.
        const LARGE_DIR = 0x0_4000;
        /// The data of small files and directories is stored in the inode.
        const INLINE_DATA = 0x0_8000;
        /// Directories may be encrypted (fscrypt).
        const ENCRYPT = 0x1_0000;
        /// Directories may be case-insensitive.
        const CASEFOLD = 0x2_0000;
        const _ = !0;
    }
}

bitflags! {
    /// Bits that an implementation must support to write (Linux: `EXT4_FEATURE_RO_COMPAT_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        /// Only groups 0, 1 and the powers of 3, 5 and 7 have backups.
        const SPARSE_SUPER = 0x0_0001;
        /// A file of 2 GiB or more exists, so sizes have 64 bits.
        const LARGE_FILE = 0x0_0002;
        /// Indexed directories in an early form; never used.
        const BTREE_DIR = 0x0_0004;
        /// `i_blocks` has 48 bits, and may count file system blocks.
        const HUGE_FILE = 0x0_0008;
        /// Descriptors have a CRC16, and flags for uninitialised bitmaps and tables (`uninit_bg`).
        const GDT_CSUM = 0x0_0010;
        /// A directory with too many links to count has 1.
        const DIR_NLINK = 0x0_0020;
        /// Every inode has the extra fields of `s_min_extra_isize`.
        const EXTRA_ISIZE = 0x0_0040;
        /// There are snapshots; never used by Linux.
        const HAS_SNAPSHOT = 0x0_0080;
        /// Quotas are in hidden inodes.
        const QUOTA = 0x0_0100;
        /// Bitmaps count clusters of several blocks.
        const BIGALLOC = 0x0_0200;
        /// Metadata has CRC32C checksums; with it, [`RoCompat::GDT_CSUM`] has no meaning (Linux warns of both).
        const METADATA_CSUM = 0x0_0400;
        /// Replicas; never used by Linux.
        const REPLICA = 0x0_0800;
        /// The file system must not be mounted for writing.
        const READONLY = 0x0_1000;
        /// Inodes have a project (`i_projid`), with quotas.
        const PROJECT = 0x0_2000;
        /// Files share blocks, without reference counts.
        const SHARED_BLOCKS = 0x0_4000;
        /// Files may have a Merkle tree (fs-verity).
        const VERITY = 0x0_8000;
        /// The orphan file may contain entries.
        const ORPHAN_PRESENT = 0x1_0000;
        const _ = !0;
    }
}

/// The names that e2fsprogs prints and accepts.
const COMPAT_NAMES: &[(u32, &str)] = &[
    (0x0001, "dir_prealloc"),
    (0x0002, "imagic_inodes"),
    (0x0004, "has_journal"),
    (0x0008, "ext_attr"),
    (0x0010, "resize_inode"),
    (0x0020, "dir_index"),
    (0x0040, "lazy_bg"),
    (0x0100, "snapshot_bitmap"),
    (0x0200, "sparse_super2"),
    (0x0400, "fast_commit"),
    (0x0800, "stable_inodes"),
    (0x1000, "orphan_file"),
];
const INCOMPAT_NAMES: &[(u32, &str)] = &[
    (0x0_0001, "compression"),
    (0x0_0002, "filetype"),
    (0x0_0004, "needs_recovery"),
    (0x0_0008, "journal_dev"),
    (0x0_0010, "meta_bg"),
    (0x0_0040, "extent"),
    (0x0_0080, "64bit"),
    (0x0_0100, "mmp"),
    (0x0_0200, "flex_bg"),
    (0x0_0400, "ea_inode"),
    (0x0_1000, "dirdata"),
    (0x0_2000, "metadata_csum_seed"),
    (0x0_4000, "large_dir"),
    (0x0_8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
];
const RO_COMPAT_NAMES: &[(u32, &str)] = &[
    (0x0_0001, "sparse_super"),
    (0x0_0002, "large_file"),
    (0x0_0008, "huge_file"),
    (0x0_0010, "uninit_bg"),
    (0x0_0020, "dir_nlink"),
    (0x0_0040, "extra_isize"),
    (0x0_0080, "snapshot"),
    (0x0_0100, "quota"),
    (0x0_0200, "bigalloc"),
    (0x0_0400, "metadata_csum"),
    (0x0_0800, "replica"),
    (0x0_1000, "read-only"),
    (0x0_2000, "project"),
    (0x0_4000, "shared_blocks"),
    (0x0_8000, "verity"),
    (0x1_0000, "orphan_present"),
];

/// The names of the set bits, lowest first. A bit without a name is written as `FEATURE_C7`, as in e2fsprogs.
fn names(bits: u32, table: &[(u32, &str)], class: char) -> Vec<String> {
    (0..32)
        .filter(|bit| bits & (1 << bit) != 0)
        .map(|bit| match table.iter().find(|(value, _)| *value == 1 << bit) {
            Some((_, name)) => (*name).to_string(),
            None => format!("FEATURE_{class}{bit}"),
        })
        .collect()
}

fn by_name(name: &str, table: &[(u32, &str)]) -> Option<u32> {
    table.iter().find(|(_, known)| *known == name).map(|(bit, _)| *bit)
}

impl Compat {
    /// All bits whose meaning this code knows.
    pub const KNOWN: Compat = Compat::from_bits_retain(0x1f7f);

    /// The names of the set bits as e2fsprogs prints them, lowest bit first.
    pub fn names(self) -> Vec<String> {
        names(self.bits(), COMPAT_NAMES, 'C')
    }

    /// The bit with this name in e2fsprogs.
    pub fn by_name(name: &str) -> Option<Compat> {
        by_name(name, COMPAT_NAMES).map(Compat::from_bits_retain)
    }
}

impl Incompat {
    /// The incompatible features that Extant can write. `needs_recovery` is included, because the journal handles the
    /// log.
    pub const READ_WRITE: Incompat = Incompat::FILETYPE
        .union(Incompat::NEEDS_RECOVERY)
        .union(Incompat::META_BG)
        .union(Incompat::EXTENTS)
        .union(Incompat::BIT64)
        .union(Incompat::MMP)
        .union(Incompat::FLEX_BG)
        .union(Incompat::EA_INODE)
        .union(Incompat::CSUM_SEED)
        .union(Incompat::LARGE_DIR)
        .union(Incompat::INLINE_DATA)
        .union(Incompat::CASEFOLD)
        .union(Incompat::ENCRYPT);
    /// All bits whose meaning this code knows. A superblock with any other bit is not decoded at all, because the bit
    /// may change the meaning of its fields.
    pub const KNOWN: Incompat = Incompat::READ_WRITE.union(Incompat::COMPRESSION).union(Incompat::DIRDATA);

    /// The names of the set bits as e2fsprogs prints them, lowest bit first.
    pub fn names(self) -> Vec<String> {
        names(self.bits(), INCOMPAT_NAMES, 'I')
    }

    /// The bit with this name in e2fsprogs.
    pub fn by_name(name: &str) -> Option<Incompat> {
        by_name(name, INCOMPAT_NAMES).map(Incompat::from_bits_retain)
    }
}

impl RoCompat {
    /// The features that Extant can write; any other bit makes the mount read-only.
    pub const READ_WRITE: RoCompat = RoCompat::SPARSE_SUPER
        .union(RoCompat::LARGE_FILE)
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::EXTRA_ISIZE)
        .union(RoCompat::METADATA_CSUM)
        .union(RoCompat::QUOTA)
        .union(RoCompat::BIGALLOC)
        .union(RoCompat::PROJECT)
        .union(RoCompat::VERITY)
        .union(RoCompat::ORPHAN_PRESENT);

    /// All bits whose meaning this code knows.
    pub const KNOWN: RoCompat = RoCompat::from_bits_retain(0x1_ffff);

    /// The names of the set bits as e2fsprogs prints them, lowest bit first.
    pub fn names(self) -> Vec<String> {
        names(self.bits(), RO_COMPAT_NAMES, 'R')
    }

    /// The bit with this name in e2fsprogs.
    pub fn by_name(name: &str) -> Option<RoCompat> {
        by_name(name, RO_COMPAT_NAMES).map(RoCompat::from_bits_retain)
    }
}

/// How a file system may be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountMode {
    /// No feature prevents changes.
    ReadWrite,
    /// Nothing may be written, not even the orphan list.
    ReadOnly {
        /// The reasons, for the user: mostly feature names; at least one.
        reasons: Vec<String>,
    },
}

/// Decides from the feature words whether, and how, a file system can be mounted.
///
/// # Errors
/// `Unsupported`, with the names of the features that prevent Extant from reading it.
pub fn check(superblock: &SuperBlock) -> Result<MountMode> {
    let incompat = superblock.incompat();
    let refused = incompat.difference(Incompat::READ_WRITE);
    if !refused.is_empty() {
        return Err(refusal(refused));
    }
    if superblock.raw().s_creator_os.get() == CREATOR_OS_HURD {
        return Err(Error::unsupported("made by the Hurd: inode fields have other meanings"));
    }
    let mut reasons = superblock.ro_compat().difference(RoCompat::READ_WRITE).names();
    if has_unmarked_reserved_blocks(superblock) {
        reasons.push("meta_bg together with resize_inode, which has blocks in meta block groups".into());
    }
    if superblock.ro_compat().contains(RoCompat::BIGALLOC) && !incompat.contains(Incompat::EXTENTS) {
        // Only extent trees can map parts of a cluster.
        reasons.push("bigalloc without extent".into());
    }
    let keyed_hashes = Incompat::CASEFOLD.union(Incompat::ENCRYPT);
    if incompat.contains(keyed_hashes) {
        // Directories with both flags hash folded names with a separate key.
        reasons.push("casefold together with encrypt".into());
    }
    if superblock.raw().s_rev_level.get() == 0
        && (!incompat.is_empty() || !superblock.ro_compat().is_empty() || !superblock.compat().is_empty())
    {
        reasons.push("feature bits in a revision 0 file system".into());
    }
    Ok(if reasons.is_empty() { MountMode::ReadWrite } else { MountMode::ReadOnly { reasons } })
}

/// Whether groups may have reserved descriptor blocks of the resize inode that the layout does not show. These are the
/// groups from `s_first_meta_bg` on, with `meta_bg` (Linux: `ext4_num_base_meta_clusters`). If the bitmap of such a
/// group was never written, those blocks count as free. Groups before it have the layout without `meta_bg`, where the
/// two features do not conflict.
fn has_unmarked_reserved_blocks(superblock: &SuperBlock) -> bool {
    let geo = superblock.geometry();
    superblock.compat().contains(Compat::RESIZE_INODE)
        && geo.reserved_gdt_blocks > 0
        && geo.first_meta_bg.is_some_and(|first| first < geo.desc_blocks)
}

/// The value of `s_creator_os` for the Hurd.
pub(crate) const CREATOR_OS_HURD: u32 = 1;

/// The error for incompatible features that Extant does not support.
pub(crate) fn refusal(features: Incompat) -> Error {
    Error::unsupported(format!("feature {}", features.names().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_bits_have_one() {
        for (bit, name) in INCOMPAT_NAMES {
            assert_eq!(Incompat::by_name(name), Some(Incompat::from_bits_retain(*bit)));
            assert_eq!(Incompat::from_bits_retain(*bit).names(), [*name]);
        }
        assert_eq!(RoCompat::from_bits_retain(1 << 31 | 2).names(), ["large_file", "FEATURE_R31"]);
        assert_eq!(Compat::by_name("no_such"), None);
    }
}
