//! A device that contains only a journal (`-O journal_dev`): two superblocks, and zeros.
//!
//! Main type: [`JournalPlan`].
//!
//! # Locking
//! None.

use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{JournalSuperBlock, SUPER_BLOCK_BYTES};
use extant_ondisk::superblock::{JournalDevice, NewJournalDevice, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

use crate::Result;
use crate::plan::{Piece, Plan};

/// The plan of a journal's device.
pub struct JournalPlan {
    wanted: NewJournalDevice,
}

/// One of the two superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalKey {
    /// The superblock that marks the device as a journal.
    Device,
    /// The journal's own superblock, after it.
    Log,
}

impl JournalPlan {
    /// A journal with these values, which [`crate::options::Request::resolve_journal`] has checked.
    pub fn new(wanted: NewJournalDevice) -> JournalPlan {
        JournalPlan { wanted }
    }

    /// Its values.
    pub fn wanted(&self) -> &NewJournalDevice {
        &self.wanted
    }
}

impl Plan for JournalPlan {
    type Key = JournalKey;

    fn block_size(&self) -> u32 {
        self.wanted.block_size
    }

    fn blocks_count(&self) -> u64 {
        self.wanted.blocks_count.into()
    }

    fn pieces(&self) -> impl Iterator<Item = Piece<JournalKey>> + Send {
        let start = BlockNr(JournalDevice::journal_super(self.wanted.block_size).into());
        std::iter::once(Piece { start, blocks: 1, key: JournalKey::Log })
    }

    fn superblocks(&self) -> impl Iterator<Item = Piece<JournalKey>> {
        let start = BlockNr(SUPERBLOCK_OFFSET / u64::from(self.wanted.block_size));
        std::iter::once(Piece { start, blocks: 1, key: JournalKey::Device })
    }

    fn fill(&self, key: JournalKey, _first: u32, buf: &mut [u8]) -> Result<()> {
        let NewJournalDevice { block_size, blocks_count, uuid, .. } = self.wanted;
        match key {
            JournalKey::Device => {
                let at = (SUPERBLOCK_OFFSET % u64::from(block_size)) as usize;
                buf[at..at + SUPERBLOCK_SIZE].copy_from_slice(&JournalDevice::create(&self.wanted));
            }
            JournalKey::Log => {
                let journal = JournalSuperBlock::create_external(block_size, blocks_count, uuid);
                buf[..SUPER_BLOCK_BYTES].copy_from_slice(&journal.encode());
            }
        }
        Ok(())
    }
}
