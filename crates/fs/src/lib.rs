//! The ext2/3/4 file system, for embedding.
//!
//! Main types: [`Filesystem`] (a mounted file system; all operations are its methods, some of them those of [`Maps`]
//! and [`Volume`], to which it dereferences), [`Mounted`] (a mount that ends when it is dropped), [`InodeRef`] (a file
//! in use), [`MountOptions`], [`Error`]; for servers [`Serving`] and [`Statistics`]. Other parts: `mount/` (the steps
//! of a mount, and its end), `ops/` (the operations), `placement.rs` (where blocks and inodes go), `map_view.rs`,
//! `dir_store.rs`, `xattr_store.rs` (the stores for the layers below the operations), `map` (extents, indirect blocks),
//! `dir` (directories), `xattr`.
//!
//! What it does not do: check permissions (the caller's kernel or program does), find partitions, or repair.
//!
//! ```no_run
//! use extant_block::device::{FileDevice, OpenOptions};
//! use extant_fs::{Cred, Filesystem, MountOptions, NewNode, WriteFlags};
//!
//! let device = FileDevice::open("disk.img", OpenOptions::default())?;
//! let fs = Filesystem::mount(std::sync::Arc::new(device), MountOptions::default())?;
//! let file = fs.create(&fs.root()?, b"hello.txt", NewNode::file(0o644), Cred::default())?;
//! fs.write(&file, 0, b"Hello, world!", WriteFlags::default())?;
//! fs.fsync(&file, false)?;
//! for name in fs.list(&fs.root()?)? {
//!     println!("{} {}", name.ino, name.name.escape_ascii());
//! }
//! // Dropping the mount unmounts as well, but cannot return an error.
//! fs.unmount()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Locking
//! See docs/locking.md; each lock's class states its rank.
#![forbid(unsafe_code)]
#![deny(clippy::missing_errors_doc)]
#![warn(missing_docs)]

mod background;
mod clusters;
mod crypt;
mod dir;
mod dir_store;
pub mod errno;
mod error;
mod error_log;
mod evictions;
mod failure;
mod fast_commit;
mod filesystem;
#[cfg(test)]
mod forgetful;
mod groups;
mod handles;
mod hash_settings;
mod heart;
mod ialloc;
mod iget;
mod inline;
mod inode;
mod inode_slots;
mod inode_table;
mod journal_hooks;
mod lifecycle;
mod map;
mod map_view;
mod maps;
mod meta;
mod mount;
pub mod number_set;
mod operation;
mod ops;
mod options;
mod orphan;
mod own_inodes;
mod owner;
pub mod path;
mod placement;
mod quota;
mod reports;
mod rescue;
mod reserve;
mod serving;
mod statistics;
mod threads;
mod values;
mod verity;
mod volume;
pub mod walk;
mod writeback;
mod xattr;
mod xattr_store;
mod xattr_view;

pub use crypt::{BadKey, KeyRing};
pub use error::{CannotGrow, Damage, Error, Result, Unsupported};
pub use extant_base::secret::Secret;
pub use extant_cache::{Budget, LossCursor, Party, ReclaimPolicy};
pub use extant_es::EsPolicyKind;
pub use extant_journal::Error as JournalError;
pub use extant_mballoc::MetaPolicy;
pub use extant_mballoc::Policy as AllocPolicy;
pub use extant_ondisk::encryption::{KeyName, Policy as EncryptionPolicy};
pub use extant_ondisk::growth::NoGrowth;
pub use extant_ondisk::quota::{Limits, QuotaKind, Usage};
pub use filesystem::Filesystem;
pub use inode::{Attr, InodeRef};
pub use inode_table::INODE_BYTES;
pub use maps::Maps;
pub use mount::copies::probe_superblock;
pub use mount::draft::Draft;
pub use mount::unmount::Mounted;
pub use ops::growth::{GrowTo, Grown};
pub use ops::sync::policy::SyncPolicyKind;
pub use ops::sync::{Done, DoneEach};
pub use ops::volume::LABEL_MAX;
pub use ops::{
    BlockUse, Cred, DirItem, FallocateMode, FileExtent, NewNode, OpenFor, Part, RenameFlags, Seek, SetAttr, SetFlags,
    SetTime, WriteFlags,
};
pub use options::{
    Atime, BadValue, BorrowJournal, COMMIT_INTERVAL_S, DIRTY_BYTES_MIN, JournalDevice, Messages, MountOptions, OnError,
    POLICIES, PolicyOption, QUEUE_DEPTH_MAX,
};
pub use placement::StatFs;
pub use quota::QuotaLimits;
pub use reserve::Caller;
pub use serving::Serving;
pub use statistics::Statistics;
pub use volume::{FsStats, Volume};
pub use xattr::SetMode;

#[cfg(test)]
use extant_oracle::memory as tools;
