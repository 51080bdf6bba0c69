//! The journal (Linux: jbd2): it groups changes into transactions, which are made durable completely or not at all.
//!
//! Main types: [`Journal`], [`Handle`] (one operation's part of the running transaction), [`Hooks`] (notifications to
//! the file system: freed blocks after the commit, and the abort). A journal also serves mounts without a log (ext2),
//! with the same handles, tids and group commit. Then a commit writes the blocks to their own places ("home") in two
//! waves instead of logging them.
//!
//! A commit has these steps. New handles wait, and open ones end. Every held buffer is frozen by taking a reference to
//! its bytes (a later writer gets a copy). New handles continue in the next transaction. Revoke blocks, descriptors and
//! copies are written, then the commit block with PREFLUSH and FUA. The blocks are written home later (`checkpoint`),
//! from the frozen bytes, so home and log always agree.
//!
//! A file system with the feature gets fast commits (`fast_commit`): a list of the running transaction's changes in an
//! area behind the log, for a caller that waits. The transaction goes on, and the next full commit has all of it.
//!
//! Bounds: running and committing transactions hold at most a quarter of `pinned_bytes_max` each, committed blocks
//! that are not home yet at most half of it. Beyond that, a commit is forced, or waits until blocks are home. The log
//! must also have room for a whole transaction, which checkpointing provides without needing a handle.
//!
//! What it does not do: it knows neither inodes nor the meaning of a block. `extant_recovery` does the replay.
//!
//! # Locking
//! Handles are counted in shards (`journal handles`, 93, in `handle`). `journal state` (91) is taken by commits and
//! their callers, and by handles while a shard is closed or has no credits; never across I/O. The one committer holds
//! `log` (34) across its I/O; only a second committer ever waits for it. `transaction` (92) is a leaf under a buffer's
//! lock.
#![forbid(unsafe_code)]

mod checkpoint;
mod commit;
mod error;
mod fast_commit;
mod handle;
mod log;
mod state;

pub use error::{Error, Result};
pub use handle::Handle;
pub use log::{ExternalLog, LogLocation};
pub use state::{Callback, Durability, Hooks, Journal, JournalStats, Options};
