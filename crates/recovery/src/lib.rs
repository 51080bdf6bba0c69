//! jbd2 replay: brings a file system up to the last transaction that its journal completed.
//!
//! Main types: [`JournalFile`] (a journal as a run of blocks on a device, with its superblock), [`Replay`] (what the
//! log holds: which block's newest copy lies where), [`OverlayDevice`] (the replayed view over a device that is not
//! written), [`JournalState`] (what an opener has to do). [`locate`] finds the journal of an image; [`wipe`] empties a
//! log unread.
//!
//! The steps: open the [`JournalFile`]; [`Replay::load`] reads the log and changes nothing; then either
//! [`Replay::apply`] writes the copies home and empties the log, or an [`OverlayDevice`] shows them in memory. `apply`
//! may be cut off anywhere and run again: the log is emptied only when everything is durable at home.
//!
//! The rules are the kernel's (fs/jbd2/recovery.c): which transactions count, when a bad checksum is an old leftover
//! and when it is damage, that a revoke of transaction R hides copies of every transaction up to and including R.
//!
//! What it does not do: apply fast commits (it reads them, and does not empty a log that goes on in them; `extant-fs`
//! turns them into a transaction, for which [`Replay::move_tail`] makes room), treat orphan inodes, touch the
//! needs_recovery flag or `s_state` (but that errors which the superblock has at home stay); after `apply` the caller
//! re-reads the superblock and does these. It does not know the cache.
//!
//! Memory: one map entry per distinct block in the log and a window of at most 1 MiB; copies stay in the log
//! until they are wanted. Fast commits are in memory, at most as much as their area holds.
//!
//! # Locking
//! `overlay read` (770): the parts of one read of a device seen through its log. It is released before the read
//! completes.
#![forbid(unsafe_code)]

mod error;
mod file;
pub mod locate;
mod map;
mod overlay;
mod replay;
mod scan;

#[cfg(test)]
mod tests;

pub use error::{Damage, Error, Result};
pub use file::JournalFile;
pub use map::JournalMap;
pub use overlay::OverlayDevice;
pub use replay::{Accept, JournalState, journal_state, wipe};
pub use scan::{LogCopy, Phase, Progress, Replay};
