//! The table of mutations, one file for each part of an image.
//!
//! # Locking
//! None.

mod attributes;
mod counts;
mod directories;
mod inodes;
mod maps;
mod superblock;

use super::Mutation;

/// All mutations.
pub fn table() -> impl Iterator<Item = &'static Mutation> {
    [superblock::TABLE, inodes::TABLE, maps::TABLE, attributes::TABLE, directories::TABLE, counts::TABLE]
        .into_iter()
        .flatten()
}
