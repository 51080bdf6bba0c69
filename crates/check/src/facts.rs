//! The facts about a file system that a check found, in addition to its damage.
//!
//! Main types: [`Checked`] (report and facts), [`Facts`] (claims, states of inodes, parents of directories, usage),
//! [`Directory`]. A report stores a limited number of findings, but the facts are complete, so bitmaps, counts and
//! links can be derived from them.
//!
//! What it does not do: report damage. The facts of a damaged map are those of its usable part.
//!
//! # Locking
//! None: nothing changes after the check.

use std::ops::Range;
use std::sync::Arc;

use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::quota::{QuotaKind, Usage};
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap};

use crate::context::{Check, InodeState, Kind};
use crate::pass::bitmaps::always_used;
use crate::pass::directories::Directories;
use crate::pass::links;
use crate::pass::quota::Usages;
use crate::report::Report;

/// The results of a check.
pub struct Checked {
    /// The findings.
    pub report: Report,
    /// The facts; `None` if nothing could be checked.
    pub facts: Option<Facts>,
}

/// A directory's place in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// The directory that has its first name; 0 if it has no name.
    pub parent: InodeNr,
    /// The inode number of its `..`; 0 if there is none.
    pub dotdot: InodeNr,
}

/// The facts of a check.
pub struct Facts {
    check: Arc<Check>,
    directories: Directories,
    usages: Usages,
    sharers: Vec<u32>,
}

impl Facts {
    pub(crate) fn new(check: Arc<Check>, directories: Directories, usages: Usages, sharers: Vec<u32>) -> Facts {
        Facts { check, directories, usages, sharers }
    }

    /// The superblock that the check used.
    pub fn super_block(&self) -> &SuperBlock {
        &self.check.sb
    }

    /// The layout.
    pub fn geometry(&self) -> &Geometry {
        &self.check.geo
    }

    /// The descriptors by group. If a place in a descriptor cannot be used, it comes from a backup. An unknown place is
    /// block 0.
    pub fn descs(&self) -> &[GroupDesc] {
        &self.check.descs
    }

    /// Whether a log was replayed in memory.
    pub fn is_replayed(&self) -> bool {
        self.check.replayed
    }

    /// The clusters that contain these blocks.
    pub fn clusters(&self, first: BlockNr, blocks: u64) -> Range<u64> {
        self.check.clusters(first.0, blocks)
    }

    /// Whether the file system or a file has any of these clusters.
    pub fn is_claimed(&self, clusters: Range<u64>) -> bool {
        self.check.claims.used.any(clusters)
    }

    /// The first cluster from `from` on that is claimed or, without `claimed`, not claimed; `end` if there is none
    /// before it.
    pub fn find_cluster(&self, from: u64, end: u64, claimed: bool) -> u64 {
        self.check.claims.used.find(from, end, claimed)
    }

    /// Whether any of these clusters is claimed more than once, although an owner must not share it.
    pub fn is_shared(&self, clusters: Range<u64>) -> bool {
        self.check.claims.double.any(clusters)
    }

    /// The inodes that claim a cluster which is claimed more than once, ascending.
    pub fn sharers(&self) -> &[u32] {
        &self.sharers
    }

    /// Whether the block belongs to the file system itself: superblock, descriptors, bitmaps, tables.
    pub fn is_metadata(&self, block: BlockNr) -> bool {
        self.check.is_metadata(block)
    }

    /// The state of an inode; one that was not read counts as unused.
    pub fn inode(&self, ino: InodeNr) -> InodeState {
        self.check.inodes.get(ino)
    }

    /// The inodes of a group in the part of the table that was read.
    pub fn inodes_of(&self, group: GroupNr) -> impl Iterator<Item = (InodeNr, InodeState)> + '_ {
        self.check.inodes.of_group(group.0)
    }

    /// Whether the inode is in the orphan list or the orphan file.
    pub fn is_orphan(&self, ino: InodeNr) -> bool {
        self.check.orphans.contains(&ino.0)
    }

    /// All orphans, ascending.
    pub fn orphans(&self) -> Vec<InodeNr> {
        let mut all: Vec<_> = self.check.orphans.iter().copied().map(InodeNr).collect();
        all.sort_unstable();
        all
    }

    /// The inode of the project quota; 0 if there is none.
    pub fn project_quota(&self) -> u32 {
        self.check.project_quota()
    }

    /// The place of a directory in the tree; `None` if the inode is no directory.
    pub fn directory(&self, ino: InodeNr) -> Option<Directory> {
        let at = self.directories.find(ino.0)?;
        let (parent, dotdot) = (self.directories.parent(at), self.directories.dotdot(at));
        Some(Directory { parent: InodeNr(parent), dotdot: InodeNr(dotdot) })
    }

    /// All directories, ascending.
    pub fn directories(&self) -> impl Iterator<Item = InodeNr> + '_ {
        self.directories.dirs.iter().map(|dir| InodeNr(dir.ino))
    }

    /// The inode to which `/lost+found` refers.
    pub fn lost_found(&self) -> Option<InodeNr> {
        self.directories.lost_found.map(InodeNr)
    }

    /// The link count of an inode according to its names; `None` if names are not counted for it, or there are none.
    pub fn links(&self, ino: InodeNr) -> Option<u16> {
        links::expected(&self.check, ino, self.inode(ino))
    }

    /// The block bitmap of a group according to the claims, with its padding.
    pub fn block_bitmap(&self, group: GroupNr) -> Vec<u8> {
        let geo = self.geometry();
        let mut bitmap = vec![0; geo.block_size as usize];
        let (bits, first) = (geo.clusters_in_group(group), geo.first_block_of_group(group).0 >> geo.cluster_bits);
        let end = first + u64::from(bits);
        let mut at = self.find_cluster(first, end, true);
        while at < end {
            let behind = self.find_cluster(at, end, false);
            bitmap::set_range(&mut bitmap, (at - first) as u32..(behind - first) as u32);
            at = self.find_cluster(behind, end, true);
        }
        bitmap::set_padding(&mut bitmap, bits);
        bitmap
    }

    /// The inode bitmap of a group according to the states, with its padding, and the number of directories.
    pub fn inode_bitmap(&self, group: GroupNr) -> (Vec<u8>, u32) {
        let geo = self.geometry();
        let mut bitmap = vec![0; geo.block_size as usize];
        let first = group.0 * geo.inodes_per_group + 1;
        let mut directories = 0;
        for (ino, state) in self.inodes_of(group).filter(|(_, state)| state.has(InodeState::USED)) {
            bitmap::set(&mut bitmap, ino.0 - first);
            directories += u32::from(state.kind() == Kind::Directory);
        }
        for ino in (first..first + geo.inodes_per_group).take_while(|ino| *ino < geo.first_ino) {
            if always_used(&self.check, ino) {
                bitmap::set(&mut bitmap, ino - first);
            }
        }
        bitmap::set_padding(&mut bitmap, geo.inodes_per_group);
        (bitmap, directories)
    }

    /// The usage of the owners of one kind, ascending. `None` if part of it is unknown.
    pub fn usage(&self, kind: QuotaKind) -> Option<impl Iterator<Item = Usage> + '_> {
        self.usages.of(kind)
    }
}
