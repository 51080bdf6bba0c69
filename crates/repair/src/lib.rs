//! Repair of an ext2, ext3 or ext4 file system that is proved before it is written.
//!
//! Main functions: [`prove`] (plans the repair and proves it beside the device), [`commit`] (writes a proved change so
//! that a cut leaves the old state or the new one). Main types: [`Outcome`], [`Step`], [`Action`], [`Loss`]. [`resize`]
//! makes a sound file system larger in the same way, and [`tune`] changes its identity, limits and features.
//! [`undelete`] finds deleted files, and
//! [`metadata`] copies all but the content of files.
//!
//! A repair goes in rounds. Each plans an answer to every finding of a check, carries out the steps of the lowest layer
//! on a copy-on-write overlay, and checks again: damage that only followed from the repaired one is gone then. The
//! repair ends when the check finds nothing, or is refused, and the device is untouched. Each loss is named by path,
//! inode and bytes before anything is written.
//!
//! What it does not do: open images, ask, print. It shares only bytes, devices, replay and the check with the rest: the
//! code that is proved must not be the code that proves, and the engine takes no part.
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

pub use error::{Error, Refusal, Result, Stands};
pub use extant_recovery::transaction::Stamp;
pub use loss::{Loss, Lost};
pub use plan::{Action, InodeField, Layer, Step, SuperField, Word};
pub use prove::{Decision, End, Fresh, Layers, Options, Outcome, Overlay, ROUNDS_MAX, Sharing, prove};
pub use sound::Unsound;
pub use write::undo::undo;
pub use write::{How, Make, Undo, commit, unfinished};
