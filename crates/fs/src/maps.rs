//! Live inodes' entries in the inode tables, and their blocks: the layer between [`Volume`] and the file system.
//!
//! Main type: [`Maps`]. Its methods are in `inode_slots.rs` (inode tables), `ops/mapping.rs` (the blocks of a file),
//! `ops/promises.rs` (reservations for delayed data) and `ops/disk_size.rs`.
//!
//! What it does not do: find inodes, or read and write data. No method here can call an operation.
//!
//! # Locking
//! None of its own.

use std::sync::Arc;

use crate::quota::Quotas;
use crate::volume::Volume;

/// The inode tables and the maps of inodes.
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
