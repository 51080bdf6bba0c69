//! The mounted file system: its parts, in one struct.
//!
//! Main type: [`Filesystem`] (Linux: `struct super_block` and `struct ext4_sb_info`). [`Filesystem::mount`] (`mount/`)
//! creates it; the operations are in `ops/`, one file for each family. Below it are [`Maps`] and [`crate::Volume`], and
//! parts such as [`Orphans`] and [`Writeback`] that own their fields and methods. None of them can call a method of
//! this type.
//!
//! What it does not do: own anything that a part can own.
//!
//! # Locking
//! `renames` (10) serializes cross-directory renames.

use std::sync::{Arc, Weak};

use extant_base::sync::{LockClass, Mutex};

use crate::evictions::Evictions;
use crate::inode::{Inode, InodeRef};
use crate::inode_table::InodeTable;
use crate::maps::Maps;
use crate::orphan::Orphans;
use crate::rescue::state::Rescue;
use crate::writeback::asks::Ask;
use crate::writeback::batch::Completed;
use crate::writeback::state::Writeback;
use crate::xattr::{SharedBlocks, SharedValues};

pub(crate) static RENAME_CLASS: LockClass = LockClass::new("renames", 10);

/// A mounted file system.
///
/// It dereferences to [`Maps`], and that to [`crate::Volume`], so a caller sees one set of methods. No method of a
/// lower layer can call one of a higher layer.
pub struct Filesystem {
    /// For [`Filesystem::arc`].
    pub(crate) me: Weak<Filesystem>,
    pub(crate) maps: Maps,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) writeback: Writeback<Inode, Ask, Completed>,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) renames: Mutex<()>,
    pub(crate) evictions: Evictions<Arc<Inode>>,
    /// Attribute blocks that other inodes may share.
    pub(crate) shared_xattr: Arc<SharedBlocks>,
    /// Attribute values in inodes of their own that other attributes may share.
    pub(crate) shared_values: SharedValues,
    /// The additional state of a rescue.
    pub(crate) rescue: Option<Rescue<InodeRef>>,
}

impl std::ops::Deref for Filesystem {
    type Target = Maps;
    fn deref(&self) -> &Maps {
        &self.maps
    }
}

impl Filesystem {
    /// Under rescue: the number of inodes that no name leads to, where a directory counts once with everything below
    /// it. `None` before the first listing of the root or lookup in `lost+found`.
    pub fn nameless(&self) -> Option<u64> {
        Some(self.rescue.as_ref()?.surveyed()?.count)
    }

    /// A reference that callbacks can keep.
    pub(crate) fn arc(&self) -> Arc<Filesystem> {
        self.me.upgrade().expect("called through an Arc")
    }
}
