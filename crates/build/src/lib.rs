//! Creates ext2, ext3 and ext4 file systems, either empty or filled with a tree of files.
//!
//! Three steps, each of which knows only the result of the one before:
//!
//! 1. **Tree** ([`tree`]): the contents of the file system, in one order for every source ([`source`]).
//! 2. **Plan** ([`plan`]): the geometry, the number of each inode, the place of each block. It is a pure function of
//!    the options and the tree, the same on every machine.
//! 3. **Write** ([`mod@write`]): each block once, in ascending order and all superblocks last, created and checksummed
//!    by all threads. An older file system is erased first ([`erase`]).
//!
//! Sources can be read only on Linux; the rest creates empty file systems and given trees everywhere.
//!
//! What it does not do: read a file system, change one, parse command lines, or open the image.
//!
//! # Locking
//! None.
#![forbid(unsafe_code)]
#![deny(clippy::missing_errors_doc)]
#![warn(missing_docs)]

pub mod content;
pub mod erase;
mod error;
pub mod journal_device;
pub mod options;
pub mod plan;
pub mod skeleton;
#[cfg(target_os = "linux")]
pub mod source;
pub mod sparse;
pub mod tree;
pub mod write;

pub use error::{Error, Result};
