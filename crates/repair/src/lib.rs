//! Repair of an ext2, ext3 or ext4 file system that is proved before it is written.
//!
//! Main functions: [`prove`] (plans the repair and proves it in an overlay), [`commit`] (writes a proved change so that
//! an interruption leaves the old state or the new one). Main types: [`Outcome`], [`Step`], [`Action`], [`Loss`].
//! [`resize`] makes a sound file system larger in the same way, and [`tune`] changes its identity, limits and features.
//! [`undelete`] finds deleted files, and [`metadata`] copies everything except the content of files.
//!
//! A repair consists of rounds. Each plans an answer to every finding of a check, carries out the steps of the lowest
//! layer on a copy-on-write overlay, and checks again: damage that was only a consequence of the repaired one is then
//! gone. The repair ends when the check finds nothing, or is rejected, and the device has not changed. Each loss is
//! reported with path, inode and bytes before anything is written.
//!
//! What it does not do: open images, ask, print. It shares only bytes, devices, replay and the check with the rest: the
//! code that is proved must not be the code that proves, and the `fs` crate is not used.
//!
//! # Locking
//! None of its own.
#![forbid(unsafe_code)]
#![deny(clippy::missing_errors_doc)]
#![warn(missing_docs)]

mod apply;
#[cfg(test)]
mod canaries;
mod error;
mod evidence;
mod loss;
pub mod metadata;
mod plan;
mod prove;
pub mod resize;
mod sound;
pub mod tune;
pub mod undelete;
mod view;
mod write;

pub use error::{Error, ImageState, Refusal, Result};
pub use extant_recovery::transaction::Stamp;
pub use loss::{Loss, LossKind};
pub use plan::{Action, InodeField, Layer, Step, SuperField, Word};
pub use prove::{Decision, End, FreshBlocks, Layers, Options, Outcome, Overlay, ROUNDS_MAX, Sharing, prove};
pub use sound::Unsound;
pub use write::undo::undo;
pub use write::{RecordMaker, Undo, WriteMethod, commit, unfinished};
