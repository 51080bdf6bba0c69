//! Growth and shrinking of a file system, proved before it is written.
//!
//! Main functions: [`grow`] (creates the larger file system in an overlay and checks it; [`crate::commit`] writes it),
//! [`shrink()`]. Main types: [`Growth`], [`CannotGrow`], [`ShrinkTarget`], [`CannotShrink`]. The layout of a larger
//! file system is in [`extant_ondisk::growth`].
//!
//! Blocks after the old end, and those that nothing claims, belong to no file system until the change is written, so
//! they are written home first. The others are one transaction of the journal, or have an undo file. So an interruption
//! leaves the old size or the new one.
//!
//! What it does not do: make a file or a partition longer or shorter. A file system grows at most as far as its
//! descriptors have room: reserved blocks of the resize inode, or `meta_bg`.
//!
//! # Locking
//! None of its own.

mod content;
mod plan;
mod relocate;
mod renumber;
mod shrink;
mod write;

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::CowDevice;
use extant_check::Options;
use extant_ondisk::BlockNr;
pub use extant_ondisk::growth::NoGrowth;
use extant_ondisk::growth::{Backups, target};
use extant_ondisk::superblock::Geometry;

pub use self::shrink::{CannotShrink, ShrinkTarget, shrink};
use crate::error::{Error, Refusal};
use crate::prove::{FreshBlocks, Outcome};
use crate::sound::{Sound, Unsound, prove};

/// The reason why a file system does not grow. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum CannotGrow {
    /// No such file system exists.
    #[error(transparent)]
    Layout(#[from] NoGrowth),
    /// The device ends before the file system would.
    #[error("the device has {there} bytes, and {needed} are needed")]
    DeviceSize {
        /// The size of the device in bytes.
        there: u64,
        /// The size of the larger file system in bytes.
        needed: u64,
    },
    /// It is damaged.
    #[error("it is damaged: {first}")]
    Damaged {
        /// The first finding of the check.
        first: String,
    },
    /// The check cannot check all of it.
    #[error("it cannot be checked: {why}")]
    Unchecked {
        /// The reason.
        why: String,
    },
    /// The check of the larger file system found damage, which is a fault of this program.
    #[error("the grown file system would be damaged, which is a fault of extant: {first}")]
    Unproved {
        /// The first finding.
        first: String,
    },
    /// A structure cannot be changed.
    #[error("{0}")]
    Step(String),
    /// A device or the check failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<Unsound> for CannotGrow {
    fn from(unsound: Unsound) -> CannotGrow {
        match unsound {
            Unsound::Damaged { first } => CannotGrow::Damaged { first },
            Unsound::Unchecked { why } => CannotGrow::Unchecked { why },
            Unsound::Failed(e) => CannotGrow::Failed(e),
        }
    }
}

impl From<Refusal> for CannotGrow {
    fn from(refusal: Refusal) -> CannotGrow {
        match refusal {
            Refusal::Device(e) => CannotGrow::Failed(e.into()),
            other => CannotGrow::Step(other.to_string()),
        }
    }
}

/// The result of [`grow`] and of [`shrink()`].
pub struct Growth {
    /// The changes in an overlay, for [`crate::commit`].
    pub outcome: Outcome,
    /// The layout before.
    pub before: Geometry,
    /// The layout after.
    pub after: Geometry,
    /// The number of inodes that have a new number.
    pub renumbered: usize,
}

/// Grows the file system on `device`, to which the changes are written, to at most `bytes` bytes, and checks the
/// result. The check's time becomes that of the last write. `None` if the file system already has this size, and
/// nothing changed.
///
/// # Errors
/// [`CannotGrow`]; the changes must then not be used.
pub fn grow(device: Arc<CowDevice>, check: &Options, bytes: u64) -> Result<Option<Growth>, CannotGrow> {
    let Sound { image: old, report, replayed } = Sound::open(&device, check)?;
    let sb = target(&old.sb, bytes, Backups::Move)?;
    let (before, after) = (old.geo.clone(), sb.geometry().clone());
    if after.blocks_count == before.blocks_count {
        return Ok(None);
    }
    let (there, needed) = (device.size_bytes(), after.blocks_count << after.block_bits);
    if there < needed {
        return Err(CannotGrow::DeviceSize { there, needed });
    }
    write::enlarge(&old, sb)?;
    let fresh = FreshBlocks::From(BlockNr(before.blocks_count));
    let outcome = prove(device, check, (report, replayed), fresh)?;
    let outcome = outcome.map_err(|first| CannotGrow::Unproved { first })?;
    Ok(Some(Growth { outcome, before, after, renumbered: 0 }))
}
