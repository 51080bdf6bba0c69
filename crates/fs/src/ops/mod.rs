//! The operations of a file system, one file per family. Callers see methods of [`crate::Filesystem`]. Their steps are
//! methods of the running [`crate::operation::Operation`] and of views of one inode, such as [`pages::ContentView`].
//!
//! | file | what |
//! |---|---|
//! | `data.rs`, `pages.rs` | read and write; the content of a locked file: folios, delayed blocks, the device |
//! | `mapping.rs`, `goal.rs` | the blocks of a file: finding and choosing them; where they should go |
//! | `disk_size.rs`, `tail.rs` | the size on disk; the end of a file before a size moves over it |
//! | `truncate.rs`, `fallocate.rs`, `seek.rs` | size changes; preallocation, holes, zeros; finding data and holes |
//! | `names.rs` | lookup, link, unlink |
//! | `create.rs`, `new_inode.rs` | new files, and what they inherit; numbers and slots of new inodes |
//! | `rename.rs` | rename |
//! | `listing.rs` | readdir |
//! | `attr.rs` | getattr, setattr |
//! | `flags.rs` | inode flags: the changes that they forbid or require, chattr(1) |
//! | `xattrs.rs` | extended attributes and ACLs |
//! | `block_use.rs` | the purpose of a block, and whether it belongs to an inode |
//! | `sync/` | fsync, syncfs, and the policy for the other inodes that an fsync writes |
//! | `evict.rs` | the end of an inode's life |
//! | `verified.rs` | reads of files that a Merkle tree protects |
//! | `volume.rs`, `growth/` | freeze, trim, label, remount; a larger file system while it is mounted |
//! | `credits.rs` | how many blocks each operation may change |
//! | `no_space.rs` | when an operation that found no space tries again |
//! | `promises.rs` | delayed blocks, and how they get clusters of several blocks |
//!
//! What it does not do: write dirty data (`writeback/`), or check permissions.
//!
//! # Locking
//! Each operation first takes the `inode` locks that it needs; see docs/locking.md for the whole order.

mod attr;
mod block_use;
mod create;
pub(crate) mod credits;
mod data;
pub(crate) mod disk_size;
pub(crate) mod evict;
mod fallocate;
pub(crate) mod flags;
mod goal;
pub mod growth;
mod listing;
pub(crate) mod mapping;
pub(crate) mod names;
mod new_inode;
pub(crate) mod no_space;
pub(crate) mod pages;
mod promises;
mod rename;
mod seek;
pub(crate) mod sync;
mod tail;
mod truncate;
mod verified;
pub mod volume;
mod xattrs;

pub use attr::{SetAttr, SetTime};
pub use block_use::{BlockUse, Part};
pub use create::{Cred, NewNode};
pub use data::WriteFlags;
pub use fallocate::FallocateMode;
pub use flags::{OpenFor, SetFlags};
pub use listing::DirItem;
pub use rename::RenameFlags;
pub use seek::{FileExtent, Seek};
