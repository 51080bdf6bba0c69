//! Many changes as one: after a power cut either all of them are there, or none.
//!
//! Main type: [`Draft`], a device that shows an image with changes, which it stores beside it. A file system is
//! mounted on the draft, changed and unmounted; then [`Draft::commit`] writes everything into the image:
//!
//! 1. Blocks that were free in the image are written home: nothing points to them yet.
//! 2. The image is marked as needing recovery, and every other changed block goes into its log as one transaction.
//! 3. One sector, the journal's superblock, makes the log begin there. Before that write the image is as it was;
//!    after it any replay, by Extant or another program, makes it equal to the draft.
//!
//! So the image's journal bounds a draft, except for new content. Changes to the journal's own blocks are dropped.
//!
//! What it does not do: images without a journal.
//!
//! # Locking
//! `draft` is held during calls to the devices below.

use std::collections::BTreeSet;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_block::{BioFlags, BlockDevice, Limits};
use extant_ondisk::jbd2::{
    CommitBlock, DescriptorBuilder, IncompatFeatures, JournalSuperBlock, LogCsum, LogFormat, escape, needs_escape,
    tag_checksum, v1_checksum,
};
use extant_ondisk::superblock::{SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr};
use extant_recovery::JournalFile;
use extant_recovery::locate::{open_journal, read_super};

use crate::error::{Error, Result, Unsupported};
use crate::filesystem::Filesystem;
use crate::mount::super_block::write_super;
use crate::options::MountOptions;

static DRAFT_CLASS: LockClass = LockClass::new("draft", 790);

/// Changes are stored in pieces of this many bytes: a multiple of every block size and sector size.
const PIECE_BYTES: u64 = 4096;

/// An image with changes beside it.
pub struct Draft {
    base: Arc<dyn BlockDevice>,
    /// The changed pieces, each at its own place; as large as `base`.
    side: Arc<dyn BlockDevice>,
    limits: Limits,
    /// The source of the transaction's time stamp.
    clock: Clock,
    /// The pieces in `side`.
    changed: Mutex<BTreeSet<u64>>,
    /// The log of the image contains the changes, until a mount replays it.
    committed: AtomicBool,
}

impl Draft {
    /// `side` is as large as `base`; its content does not matter. `base` is clean, and nothing else changes it.
    /// `clock` stamps the commit.
    pub fn new(base: Arc<dyn BlockDevice>, side: Arc<dyn BlockDevice>, clock: Clock) -> Draft {
        let limits = Limits { discard: false, volatile_cache: false, ..*base.limits() };
        Draft {
            base,
            side,
            limits,
            clock,
            changed: Mutex::new(&DRAFT_CLASS, BTreeSet::new()),
            committed: AtomicBool::new(false),
        }
    }

    /// Splits a range at piece borders: offset, length.
    fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut at = offset;
        let end = offset + len;
        std::iter::from_fn(move || {
            let next = (at / PIECE_BYTES + 1) * PIECE_BYTES;
            let part = (at, next.min(end) - at);
            (at < end).then(|| {
                at = next.min(end);
                part
            })
        })
    }

    /// Writes everything into the image. Mount the image for writing once afterwards: that replays it. The draft's
    /// own file system must be unmounted. An error leaves the image as it was, but perhaps marked as needing
    /// recovery.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an image without a journal of its own, and for more changes than its log can take.
    /// [`Error::Invalid`] for a draft that has been committed: writing again would lose the content of its log.
    /// [`Error::Device`] if a request fails.
    pub fn commit(self: &Arc<Draft>) -> Result<()> {
        if self.committed.load(Ordering::Acquire) {
            return Err(Error::Invalid("the draft has been committed"));
        }
        let no_journal = || Error::Unsupported(Unsupported::Journal { detail: "the image has no journal".into() });
        let device: Arc<dyn BlockDevice> = self.clone();
        let sb = read_super(&*device)?;
        // As the draft's mount left it: empty, with that mount's features.
        let journal = open_journal(device, &sb)?.ok_or_else(no_journal)?;
        let (direct, logged) = self.differences(&sb, &journal)?;
        if logged.is_empty() && direct.is_empty() {
            return Ok(());
        }
        let mut home = JournalFile::open(self.base.clone(), sb.block_size, journal.map().clone())?;
        let jsb = journal.super_block().clone();
        room_for(&home, &jsb.format(), logged.len())?;
        let size = sb.block_size as usize;
        let mut block = vec![0; size];
        for nr in direct {
            self.read_at(nr.0 * size as u64, &mut block, BioFlags::META)?;
            // This code cannot tell whether the block is data.
            self.base.write_at(nr.0 * size as u64, &[&block], BioFlags::META)?;
        }
        // Flushes first.
        let mut marked = read_super(&*self.base)?;
        let place = marked.primary_location();
        marked.set_needs_recovery(true);
        write_super(&*self.base, &marked, place)?;
        self.committed.store(true, Ordering::Release);
        self.log(&sb, &mut home, jsb, &logged)
    }

    /// Makes all changed blocks the only transaction of `journal`, in place of the fast commits behind the end of its
    /// log. The log is live, without a transaction, and the draft contains the changes relative to the image's home
    /// blocks.
    ///
    /// The transaction's number is not the one that the present log continues with. So the fast commits count until
    /// one sector write begins the log with the transaction and ends them. (Simply appending the transaction would be
    /// enough for Linux. But e2fsck 1.47.0 drops the log if a stale head of fast commits lies behind it.)
    ///
    /// # Errors
    /// `Unsupported` for more changes than the log can take; nothing has been written then.
    pub(crate) fn replace_fast_commits(&self, journal: &mut JournalFile) -> Result<()> {
        let sb = read_super(self)?;
        let logged = self.changed_blocks(&sb, journal)?;
        let mut jsb = journal.super_block().clone();
        room_for(journal, &jsb.format(), logged.len())?;
        jsb.incompat.remove(IncompatFeatures::FAST_COMMIT);
        self.log(&sb, journal, jsb, &logged)
    }

    /// The blocks whose content differs from the base's, except the journal's.
    fn changed_blocks(&self, sb: &SuperBlock, journal: &JournalFile) -> Result<Vec<BlockNr>> {
        let size = u64::from(sb.block_size);
        let pieces: Vec<u64> = self.changed.lock().iter().copied().collect();
        let mut blocks: Vec<u64> =
            pieces.iter().flat_map(|p| p * PIECE_BYTES / size..((p + 1) * PIECE_BYTES).div_ceil(size)).collect();
        blocks.dedup();
        let (mut old, mut new) = (vec![0; size as usize], vec![0; size as usize]);
        let mut changed = Vec::new();
        for nr in blocks.into_iter().map(BlockNr) {
            if nr.0 >= sb.blocks_count || !journal.is_external() && journal.map().contains(nr) {
                continue;
            }
            self.base.read_at(nr.0 * size, &mut old, BioFlags::META)?;
            self.read_at(nr.0 * size, &mut new, BioFlags::META)?;
            if old != new {
                changed.push(nr);
            }
        }
        Ok(changed)
    }

    /// The changed blocks: those that were free in the image, and the others.
    fn differences(&self, sb: &SuperBlock, journal: &JournalFile) -> Result<(Vec<BlockNr>, Vec<BlockNr>)> {
        let options = MountOptions { read_only: true, threads: false, ..MountOptions::default() };
        let before = Filesystem::mount(self.base.clone(), options)?;
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
                bitmap = Some((group, before.groups.block_bitmap(group)?.read(<[u8]>::to_vec)));
            }
            let bit = (index % per_group) as usize;
            let is_used = bitmap.as_ref().is_none_or(|(_, bits)| bits[bit / 8] & (1 << (bit % 8)) != 0);
            if is_used { logged.push(nr) } else { direct.push(nr) }
        }
        Ok((direct, logged))
    }

    /// Writes one transaction of `blocks`, with the draft's content, into the log of `journal`, and then `jsb`, which
    /// refers to it.
    fn log(
        &self,
        sb: &SuperBlock,
        journal: &mut JournalFile,
        mut jsb: JournalSuperBlock,
        blocks: &[BlockNr],
    ) -> Result<()> {
        let size = u64::from(sb.block_size);
        let format = jsb.format();
        // Higher than every number in the image's log and the draft's.
        let (tid, first) = (jsb.sequence.next(), jsb.first);
        let mut at = first;
        let mut put = |data: &[u8]| -> Result<()> {
            let missing = || Error::Unsupported(Unsupported::Journal { detail: "the journal is cut off".into() });
            let (place, _) = journal.map().lookup(at).ok_or_else(missing)?;
            at += 1;
            Ok(journal.device().write_at(place.0 * size, &[data], BioFlags::META)?)
        };
        let (super_block, super_at) = sb.primary_location();
        let mut v1 = !0;
        let mut block = vec![0; size as usize];
        for part in blocks.chunks(DescriptorBuilder::capacity_of(&format)) {
            let mut descriptor = DescriptorBuilder::new(&format, tid);
            let mut copies = Vec::with_capacity(part.len());
            for nr in part {
                let mut copy = vec![0; size as usize];
                self.read_at(nr.0 * size, &mut copy, BioFlags::META)?;
                if *nr == super_block {
                    // Otherwise an interrupted replay could leave a live log that the image does not mention.
                    let mut marked = sb.clone();
                    marked.set_needs_recovery(true);
                    marked.encode_into(&mut copy[super_at..super_at + SUPERBLOCK_SIZE]);
                }
                let escaped = needs_escape(&copy);
                if escaped {
                    escape(&mut copy);
                }
                descriptor.push(*nr, escaped, tag_checksum(format.seed, tid, &copy));
                copies.push(copy);
            }
            descriptor.finish(&mut block);
            v1 = v1_checksum(v1, &block);
            put(&block)?;
            for copy in &copies {
                v1 = v1_checksum(v1, copy);
                put(copy)?;
            }
        }
        let now = self.clock.wall();
        let commit = CommitBlock { tid, sec: now.sec.max(0) as u64, nsec: now.nsec };
        commit.encode(&format, (format.csum == LogCsum::V1).then_some(v1), &mut block);
        put(&block)?;
        (jsb.sequence, jsb.start, jsb.head) = (tid, first, 0);
        // Flushes, and writes one sector.
        Ok(journal.write_super(jsb)?)
    }
}

/// Checks that the empty log has room for a transaction of `blocks`.
fn room_for(journal: &JournalFile, format: &LogFormat, blocks: usize) -> Result<()> {
    let needed = blocks + blocks.div_ceil(DescriptorBuilder::capacity_of(format)) + 1;
    let there = journal.log().len() as usize - 1;
    if needed > there {
        let detail = format!(
            "{needed} blocks of the journal would be needed to do all of it at once, and it has {there}; nothing was done"
        );
        return Err(Error::Unsupported(Unsupported::Journal { detail }));
    }
    Ok(())
}

impl extant_block::Wrapper for Draft {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.base
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> extant_block::Result<()> {
        let changed = self.changed.lock();
        let pieces = offset / PIECE_BYTES..(offset + buf.len() as u64).div_ceil(PIECE_BYTES);
        if changed.range(pieces).next().is_none() {
            drop(changed);
            return self.base.read_at(offset, buf, flags);
        }
        for (at, len) in Draft::parts(offset, buf.len() as u64) {
            let device = if changed.contains(&(at / PIECE_BYTES)) { &self.side } else { &self.base };
            let start = (at - offset) as usize;
            device.read_at(at, &mut buf[start..start + len as usize], flags)?;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], _flags: BioFlags) -> extant_block::Result<()> {
        let data = pieces.concat();
        let mut changed = self.changed.lock();
        for (at, len) in Draft::parts(offset, data.len() as u64) {
            let piece = at / PIECE_BYTES;
            let start = piece * PIECE_BYTES;
            let whole = PIECE_BYTES.min(self.base.size_bytes().saturating_sub(start));
            if len < whole && !changed.contains(&piece) {
                let mut before = vec![0; whole as usize];
                self.base.read_at(start, &mut before, BioFlags::META)?;
                self.side.write_at(start, &[&before], BioFlags::empty())?;
            }
            let from = (at - offset) as usize;
            self.side.write_at(at, &[&data[from..from + len as usize]], BioFlags::empty())?;
            changed.insert(piece);
        }
        Ok(())
    }

    /// Nothing of a draft need survive a crash.
    fn flush(&self) -> extant_block::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> extant_block::Result<()> {
        Ok(())
    }
}
