//! The table of mutations, one file for each part of an image.
//!
//! # Locking
//! None.

mod inodes;
mod superblock;

use super::Mutation;

/// All mutations.
pub fn table() -> impl Iterator<Item = &'static Mutation> {
    [superblock::TABLE, inodes::TABLE].into_iter().flatten()
}
