//! Images that are built from directories, archives and layers.

#[path = "../common/mod.rs"]
mod common;

mod builders;
mod mkfs;
mod mkfs_sources;
mod reproducible;
