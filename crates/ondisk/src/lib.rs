//! ext2/3/4 and jbd2 as bytes: declarations, decoding (which validates), encoding, checksums.
//!
//! Types come in three steps throughout the project: `Raw…` (zerocopy structs with the kernel header's field names,
//! with sizes and offsets asserted at compile time), then `…Desc` or a plain decoded struct (validated; only this crate
//! creates them), then the live object (in `fs`). Pure packers for extent nodes, htree blocks, directory blocks and
//! xattr areas are also in this crate. They work on byte slices and do no I/O.
//!
//! What it does not do: I/O, locking, `unsafe`, or allocation of memory whose size comes from a field on disk without a
//! bound.
//!
//! # Locking
//! None.
#![forbid(unsafe_code)]
#![deny(clippy::missing_errors_doc)]
#![warn(missing_docs)]

pub mod acl;
pub mod bitmap;
pub mod casefold;
pub mod csum;
pub mod damage;
pub mod dirent;
pub mod encryption;
pub mod error;
pub mod extent;
pub mod features;
pub mod group_desc;
pub mod growth;
pub mod htree;
pub mod indirect;
pub mod inode;
pub mod jbd2;
pub mod map;
pub mod mmp;
pub mod orphan;
pub mod partition;
pub mod quota;
pub mod superblock;
pub mod time;
pub mod units;
pub mod xattr;

pub use damage::Damage;
pub use error::{Error, Result, Structure};
pub use units::{BlockNr, GroupNr, InodeNr, LogicalBlock};
