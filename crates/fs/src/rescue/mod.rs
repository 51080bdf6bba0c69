//! A mount that reads as much as possible of a damaged image ([`crate::MountOptions::rescue`]).
//!
//! Main type: [`state::Rescue`], the state of such a mount, which contains everything that it adds to an ordinary
//! read-only mount:
//!
//! | file | what |
//! |---|---|
//! | `state.rs` | the stand-ins for lost directories, and the result of the survey |
//! | `inodes.rs` | which damaged inodes are used, and how |
//! | `names.rs` | `lost+found`, which shows what no name leads to; listings and lookups |
//! | `survey.rs` | finds the inodes that no name leads to |
//!
//! The layers below skip damage to reach intact parts: the map (`map/extents/salvage.rs`), directories
//! ([`crate::dir::DirParams::by_place`]), and attributes ([`crate::xattr::XattrSource::pass`]).
//!
//! What it does not do: choose copies of superblock and descriptors (`mount/copies.rs`), skip damage of the log
//! (`mount/recover.rs`), or write anything.
//!
//! # Locking
//! `rescue survey` (15) is held while the survey reads the tree, so that it runs only once.

mod inodes;
mod names;
pub(crate) mod state;
mod survey;
