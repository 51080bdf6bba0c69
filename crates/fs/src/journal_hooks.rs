//! The journal's calls to the file system.
//!
//! Main type: [`JournalHooks`].
//!
//! What it does not do: decide what an abort means ([`crate::failure`]), or which errors are due ([`crate::reports`]).
//!
//! # Locking
//! None of its own. [`Hooks`] says which locks of the journal its callers hold.

use std::sync::{Arc, OnceLock, Weak};

use extant_journal::{Handle, Hooks};
use extant_ondisk::BlockNr;

use crate::error::Error;
use crate::orphan::Orphans;
use crate::volume::Volume;

/// The journal's calls to the parts above it, held weakly: the journal belongs to the volume.
#[derive(Default)]
pub(crate) struct JournalHooks {
    volume: OnceLock<Weak<Volume>>,
    orphans: OnceLock<Weak<Orphans>>,
}

impl JournalHooks {
    /// Connects the journal with the parts above it, which exist later than it.
    pub(crate) fn connect(&self, volume: &Arc<Volume>, orphans: &Arc<Orphans>) {
        let _ = self.orphans.set(Arc::downgrade(orphans));
        let _ = self.volume.set(Arc::downgrade(volume));
    }

    fn volume(&self) -> Option<Arc<Volume>> {
        self.volume.get()?.upgrade()
    }
}

impl Hooks for JournalHooks {
    fn released(&self, freed: Vec<(BlockNr, u32)>) {
        if let Some(volume) = self.volume() {
            if volume.options.discard == Some(true) {
                let block = u64::from(volume.geo.block_size);
                for (start, len) in &freed {
                    // Failure is harmless: the device keeps the blocks.
                    let _ = volume.dev.discard(start.0 * block, u64::from(*len) * block);
                }
            }
            volume.placement.alloc.release(&freed);
        }
    }

    fn closing(&self, handle: &mut Handle) -> extant_journal::Result<()> {
        let Some(orphans) = self.orphans.get() else { return Ok(()) };
        let Some(orphans) = orphans.upgrade() else {
            // The records of orphans are gone with the mount.
            return Err(extant_journal::Error::Aborted { cause: "the mount has ended".to_owned() });
        };
        orphans.place_pending(handle).map_err(|e| match e {
            Error::Device(e) => extant_journal::Error::Device(e),
            e => extant_journal::Error::HalfDone { cause: e.to_string() },
        })
    }

    fn log_free(&self) {
        if let Some(volume) = self.volume() {
            volume.write_errors();
        }
    }

    fn aborted(&self, error: &extant_journal::Error) {
        if let Some(volume) = self.volume() {
            volume.note_aborted(error.clone());
        }
    }
}
