//! jbd2 replay: brings a file system up to the last transaction that its journal completed.
//!
//! Main types: [`JournalFile`] (a journal as a run of blocks on a device, with its superblock), [`Replay`] (the log's
//! contents: the newest copy of each block), [`OverlayDevice`] (the replayed view over a device that is not written),
//! [`JournalState`] (the recovery that a journal needs). [`read`] reads a file system without an engine, and
//! [`locate`] finds its journal; [`transaction`] writes one transaction; [`wipe`] empties a log without reading it;
//! [`History`] has the older copies of blocks, too.
//!
//! The steps: open the [`JournalFile`]; [`Replay::load`] reads the log and changes nothing; then either
//! [`Replay::apply`] writes the copies home and empties the log, or an [`OverlayDevice`] shows them in memory.
//! `apply` may be interrupted anywhere and run again: the log is emptied only once everything is durable at home.
//!
//! The rules are the kernel's (fs/jbd2/recovery.c): which transactions count, when a bad checksum is a leftover and
//! when it is damage, and that a revoke of transaction R hides copies of every transaction up to and including R.
//!
//! What it does not do: apply fast commits, treat orphan inodes, touch the needs_recovery flag or `s_state`. It reads
//! fast commits, and does not empty a log that continues in them; `extant-fs` turns them into a transaction, for
//! which [`Replay::move_tail`] makes room. Errors recorded in the superblock at home are preserved. After `apply` the
//! caller re-reads the superblock and does the rest. It does not know the cache.
//!
//! Memory: one map entry per distinct block in the log and a window of at most 1 MiB; copies stay in the log until
//! they are needed. Fast commits are in memory, at most as much as their area holds.
//!
//! # Locking
//! `overlay read` (770): the parts of one read of a device seen through its log. It is released before the read
//! completes.
#![forbid(unsafe_code)]

mod error;
mod file;
mod history;
pub mod locate;
mod map;
mod overlay;
pub mod read;
mod replay;
mod scan;
pub mod transaction;

#[cfg(test)]
mod tests;

pub use error::{Damage, Error, Result};
pub use file::{JournalFile, journal_device};
pub use history::{History, Newest, PastCopy};
pub use map::JournalMap;
pub use overlay::OverlayDevice;
pub use replay::{Accept, JournalState, journal_state, wipe};
pub use scan::{LogCopy, Phase, Progress, Replay};
