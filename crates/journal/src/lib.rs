//! The journal (Linux: jbd2): changes grouped into transactions that reach the disk whole or not at all.
//!
//! Main types: [`Journal`], [`Handle`] (one operation's part of the running transaction), [`Hooks`] (what comes up
//! again: freed blocks after the commit, the abort). A journal also serves mounts without a log (ext2): same handles,
//! same tids, same group commit, but a commit writes the blocks home in two waves instead of logging them.
//!
//! How a commit goes: new handles wait, open ones end; every held buffer is frozen by taking a reference to its bytes
//! (a later writer gets a copy); new handles go on in the next transaction; revoke blocks, descriptors and copies are
//! written; then the commit block with PREFLUSH and FUA. Home writes come later (`checkpoint`), from the frozen bytes,
//! so home and log always agree.
//!
//! Bounds: running and committing transactions hold at most a quarter of `pinned_bytes_max` each, committed blocks that
//! are not home yet at most half of it; beyond, a commit is forced, or waits until blocks are home. The log must also
//! have room for a whole transaction, which checkpointing provides without needing a handle.
//!
//! What it does not do: it knows neither inodes nor what a block means; replay is `extant_recovery`.
//!
//! # Locking
//! `journal state` (91) is taken to start and stop handles and never across I/O. `log` (34) is held by the one
//! committer across its I/O: nobody else ever waits for it but a second committer. `transaction` (92) is a leaf under a
//! buffer's lock.
#![forbid(unsafe_code)]

mod checkpoint;
mod commit;
mod error;
mod handle;
mod log;
mod state;

pub use error::{Error, Result};
pub use handle::Handle;
pub use log::LogLocation;
pub use state::{Callback, Hooks, Journal, JournalStats, Options};
