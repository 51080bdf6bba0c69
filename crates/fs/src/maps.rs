//! Live inodes' entries in the inode tables, and their blocks: the layer between [`Volume`] and the file system.
//!
//! Main type: [`Maps`]. Its methods are in `inode_slots.rs` (inode tables), `ops/mapping.rs` (the blocks of a file),
//! `ops/promises.rs` (reservations for delayed data), `ops/disk_size.rs` (sizes), `writeback/mod.rs` (mapping blocks
//! that have been written) and `values.rs` (charges).
//!
//! What it does not do: find inodes, or read and write files. No method here can call one of [`crate::Filesystem`].
//!
//! # Locking
//! None of its own.

use std::sync::Arc;

use crate::quota::Quotas;
use crate::volume::Volume;

/// The inode tables and the maps of inodes: the middle layer of a mount, above [`Volume`].
pub struct Maps {
    pub(crate) volume: Arc<Volume>,
    pub(crate) quotas: Quotas,
}

impl std::ops::Deref for Maps {
    type Target = Volume;
    fn deref(&self) -> &Volume {
        &self.volume
    }
}
