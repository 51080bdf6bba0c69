//! Many changes as one: after a power cut the image has either all of them or none.
//!
//! Main type: [`Draft`], a device that shows an image together with changes, which are stored elsewhere. A file system
//! is mounted on the draft, changed and unmounted. Then [`Draft::commit`] writes everything into the image:
//!
//! 1. Blocks that were free in the image are written home, because nothing refers to them yet.
//! 2. The image is marked as needing recovery, and every other changed block goes into its log as one transaction.
//! 3. A write of one sector, the journal's superblock, makes the log begin there. Before that write the image is
//!    unchanged. After it, any replay, by Extant or another program, makes the image equal to the draft.
//!
//! So the size of the image's journal limits a draft, except for new content. Changes to the journal's own blocks are
//! dropped.
//!
//! What it does not do: support images without a journal.
//!
//! # Locking
//! None of its own.

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_block::device::CowDevice;
use extant_block::{Bio, BioFlags, BlockDevice};
use extant_ondisk::jbd2::{IncompatFeatures, JournalSuperBlock};
use extant_ondisk::superblock::SuperBlock;
use extant_ondisk::{BlockNr, GroupNr};
use extant_recovery::JournalFile;
use extant_recovery::locate::{open_journal, read_super};
use extant_recovery::transaction::{self, Stamp};

use crate::error::{Error, Result, Unsupported};
use crate::filesystem::Filesystem;
use crate::options::MountOptions;

/// An image with changes that are stored elsewhere.
pub struct Draft {
    cow: CowDevice,
    /// The source of the transaction's timestamp.
    clock: Clock,
    /// The image's log contains the changes until a mount replays it.
    committed: AtomicBool,
}

impl Draft {
    /// The changes are stored on `side`, which is as large as `base` and whose content does not matter. `base` must be
    /// clean, and nothing else may change it. `clock` gives the time of the commit.
    pub fn new(base: Arc<dyn BlockDevice>, side: Arc<dyn BlockDevice>, clock: Clock) -> Draft {
        let cow = CowDevice::spilling(base, 0, Box::new(move |_| Ok(side.clone())));
        Draft { cow, clock, committed: AtomicBool::new(false) }
    }

    fn base(&self) -> &Arc<dyn BlockDevice> {
        self.cow.base()
    }

    /// Writes everything into the image. Afterwards, mount the image for writing once, to replay its log. The draft's
    /// own file system must be unmounted. After an error the image is unchanged, but may be marked as needing recovery.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an image without a journal of its own, and for more changes than its log can take.
    /// [`Error::Invalid`] for a draft that has been committed: another commit would lose the content of its log.
    /// [`Error::Device`] if a request fails.
    pub fn commit(self: &Arc<Draft>) -> Result<()> {
        if self.committed.load(Ordering::Acquire) {
            return Err(Error::Invalid("the draft has been committed"));
        }
        let no_journal = || Error::Unsupported(Unsupported::Journal { detail: "the image has no journal".into() });
        let device: Arc<dyn BlockDevice> = self.clone();
        let sb = read_super(&*device)?;
        // The log is in the state in which the draft's mount left it: empty, with that mount's features.
        let journal = open_journal(device, &sb)?.ok_or_else(no_journal)?;
        let (direct, logged) = self.differences(&sb, &journal)?;
        if logged.is_empty() && direct.is_empty() {
            return Ok(());
        }
        let mut home = JournalFile::open(self.base().clone(), sb.block_size, journal.map().clone())?;
        let jsb = journal.super_block().clone();
        transaction::room_for(&home, &jsb.format(), logged.len())?;
        let size = sb.block_size as usize;
        let mut block = vec![0; size];
        for nr in direct {
            self.read_at(nr.0 * size as u64, &mut block, BioFlags::META)?;
            // All blocks count as metadata, because this code cannot distinguish data.
            self.base().write_at(nr.0 * size as u64, &[&block], BioFlags::META)?;
        }
        // This flushes before it writes the mark.
        transaction::mark(&**self.base())?;
        self.committed.store(true, Ordering::Release);
        self.log(&sb, &mut home, jsb, &logged)
    }

    /// Makes all changed blocks the only transaction of `journal`, in place of the fast commits after the end of its
    /// log. The log is live but has no transaction left. The draft contains the changes relative to the image's home
    /// blocks.
    ///
    /// The transaction's number differs from the number with which the present log would continue. So the fast commits
    /// remain valid until a write of one sector makes the log begin with the transaction. (For Linux it would be enough
    /// to append the transaction. But e2fsck 1.47.0 drops the log if a stale head of fast commits follows the
    /// transaction.)
    ///
    /// # Errors
    /// `Unsupported` for more changes than the log can take; nothing has been written then.
    pub(crate) fn replace_fast_commits(&self, journal: &mut JournalFile) -> Result<()> {
        let sb = read_super(self)?;
        let logged = self.changed_blocks(&sb, journal)?;
        let mut jsb = journal.super_block().clone();
        transaction::room_for(journal, &jsb.format(), logged.len())?;
        jsb.incompat.remove(IncompatFeatures::FAST_COMMIT);
        self.log(&sb, journal, jsb, &logged)
    }

    /// The blocks whose content differs from the base's content, except the journal's blocks.
    fn changed_blocks(&self, sb: &SuperBlock, journal: &JournalFile) -> Result<Vec<BlockNr>> {
        let size = u64::from(sb.block_size);
        let whole = CowDevice::PIECE_BYTES;
        let blocks_of = |piece: &u64| piece * whole / size..((piece + 1) * whole).div_ceil(size);
        let mut blocks: Vec<u64> = self.cow.pieces().iter().flat_map(blocks_of).collect();
        blocks.dedup();
        let (mut old, mut new) = (vec![0; size as usize], vec![0; size as usize]);
        let mut changed = Vec::new();
        for nr in blocks.into_iter().map(BlockNr) {
            if nr.0 >= sb.blocks_count || !journal.is_external() && journal.map().contains(nr) {
                continue;
            }
            self.base().read_at(nr.0 * size, &mut old, BioFlags::META)?;
            self.read_at(nr.0 * size, &mut new, BioFlags::META)?;
            if old != new {
                changed.push(nr);
            }
        }
        Ok(changed)
    }

    /// The changed blocks, divided into those that were free in the image and the others.
    fn differences(&self, sb: &SuperBlock, journal: &JournalFile) -> Result<(Vec<BlockNr>, Vec<BlockNr>)> {
        let options = MountOptions { read_only: true, threads: false, ..MountOptions::default() };
        let before = Filesystem::mount(self.base().clone(), options)?;
        let geo = before.geometry().clone();
        let (mut direct, mut logged) = (Vec::new(), Vec::new());
        let mut bitmap: Option<(GroupNr, Vec<u8>)> = None;
        for nr in self.changed_blocks(sb, journal)? {
            let Some(index) = nr.0.checked_sub(geo.first_data_block) else {
                logged.push(nr);
                continue;
            };
            let per_group = u64::from(geo.blocks_per_group);
            let group = GroupNr((index / per_group) as u32);
            if bitmap.as_ref().is_none_or(|(of, _)| *of != group) {
                bitmap = Some((group, before.placement.groups.block_bitmap(group)?.read(<[u8]>::to_vec)));
            }
            let bit = (index % per_group) as usize;
            let is_used = bitmap.as_ref().is_none_or(|(_, bits)| bits[bit / 8] & (1 << (bit % 8)) != 0);
            if is_used { logged.push(nr) } else { direct.push(nr) }
        }
        Ok((direct, logged))
    }

    /// Writes one transaction of `blocks`, with the draft's content, into the log of `journal`. Then writes `jsb`,
    /// which refers to it.
    fn log(
        &self,
        sb: &SuperBlock,
        journal: &mut JournalFile,
        jsb: JournalSuperBlock,
        blocks: &[BlockNr],
    ) -> Result<()> {
        let now = self.clock.wall();
        let stamp = Stamp { sec: now.sec.max(0) as u64, nsec: now.nsec };
        Ok(transaction::write(journal, jsb, self, sb, blocks, stamp)?)
    }
}

impl extant_block::Wrapper for Draft {
    fn inner(&self) -> &dyn BlockDevice {
        &self.cow
    }

    fn submit(&self, bio: Bio) {
        BlockDevice::submit(&self.cow, bio);
    }

    fn next_data(&self, offset: u64) -> extant_block::Result<Option<u64>> {
        BlockDevice::next_data(&self.cow, offset)
    }
}
