//! The journal: replayed into the overlay, emptied, or recreated.
//!
//! Main functions: [`replay`], [`wipe`], [`renew`].
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::device::CowDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::features::{Compat, Incompat};
use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::jbd2::{self, JournalContext, JournalSuperBlock, LogCsum, SUPER_BLOCK_BYTES};
use extant_ondisk::{BlockNr, InodeNr, extent};
use extant_recovery::locate::{open_journal, read_super};
use extant_recovery::{Accept, Replay};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::content;
use crate::error::{Error, Refusal, Result, StepResult};
use crate::view::Image;

/// Replays the readable part of a file system's log onto the changes of its device. Returns the number of transactions,
/// and of fast commits, which are lost.
pub fn replay(device: &Arc<CowDevice>) -> Result<(u32, usize)> {
    let shared: Arc<dyn BlockDevice> = device.clone();
    let sb = read_super(&*shared)?;
    let Some(mut journal) = open_journal(shared.clone(), &sb)? else { return Ok((0, 0)) };
    let replay = Replay::load(&journal, &*shared, &mut |_| {})?;
    replay.apply(&mut journal, &*shared, Accept::Damaged, &mut |_| {})?;
    unmark(&*shared)?;
    Ok((replay.transactions, replay.fast_commits.len()))
}

/// Empties the log without a replay.
pub fn wipe(device: &Arc<CowDevice>) -> Result<()> {
    let shared: Arc<dyn BlockDevice> = device.clone();
    let sb = read_super(&*shared)?;
    if let Some(mut journal) = open_journal(shared.clone(), &sb)? {
        extant_recovery::wipe(&mut journal, &*shared)?;
    }
    unmark(&*shared)
}

/// Clears needs_recovery, because the log is empty now.
fn unmark(device: &dyn BlockDevice) -> Result<()> {
    use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
    let mut sb = read_super(device)?;
    sb.set_needs_recovery(false);
    let unit = u64::from(device.limits().logical_block).max(SUPERBLOCK_SIZE as u64);
    let start = SUPERBLOCK_OFFSET - SUPERBLOCK_OFFSET % unit;
    let mut bytes = vec![0; unit as usize];
    device.read_at(start, &mut bytes, BioFlags::META)?;
    sb.encode_into(&mut bytes[(SUPERBLOCK_OFFSET - start) as usize..][..SUPERBLOCK_SIZE]);
    Ok(device.write_at(start, &[&bytes], BioFlags::META)?)
}

/// Restores the journal, or recreates it.
///
/// The inode gets back its kind, its links and its map if these are lost: the superblock has a copy of the map. If the
/// result is a journal with a readable log, the log is replayed. Otherwise the journal is empty, and takes those of its
/// old blocks that no other file uses.
pub fn renew(image: &mut Image) -> StepResult {
    let ino = InodeNr::JOURNAL;
    let inode = image.inode(ino)?;
    image.change_super(|raw| {
        raw.s_journal_inum.set(ino.0);
        raw.s_feature_compat.set(raw.s_feature_compat.get() | Compat::HAS_JOURNAL.bits());
    })?;
    let stored = stored_map(image);
    let as_it_is = inode.is_file().then_some((inode.raw.i_block, inode.size()));
    for (i_block, size) in as_it_is.into_iter().chain(stored) {
        if inode.is_zero() {
            super::inodes::fresh(image, ino, FileType::Regular, 0o600, 1)?;
        }
        image.change_inode(ino, |raw| {
            raw.i_mode.set(FileType::Regular.mode_bits() | 0o600);
            raw.i_links_count.set(1);
            raw.i_dtime.set(0);
            raw.i_block = i_block;
            raw.i_size_lo.set(size as u32);
            raw.i_size_high.set((size >> 32) as u32);
            if image.geo.extents && i_block.starts_with(&extent::MAGIC.to_le_bytes()) {
                raw.i_flags.set(InodeFlags::EXTENTS.bits());
            }
        })?;
        if is_usable(image) {
            return restored(image);
        }
    }
    image.touch(ino);
    empty(image, ino)
}

/// The copy of the journal's map in the superblock, and its size.
pub fn stored_map(image: &Image) -> Option<([u8; 60], u64)> {
    /// The value of `s_jnl_backup_type` if there is a copy.
    const BLOCKS: u8 = 1;
    let raw = image.sb.raw();
    let mut i_block = [0; 60];
    i_block.copy_from_slice(&raw.s_jnl_blocks.as_bytes()[..60]);
    let size = u64::from(raw.s_jnl_blocks[15].get()) << 32 | u64::from(raw.s_jnl_blocks[16].get());
    (raw.s_jnl_backup_type == BLOCKS && size > 0 && i_block != [0; 60]).then_some((i_block, size))
}

/// Whether the journal can be opened and its log can be read.
fn is_usable(image: &Image) -> bool {
    let device: Arc<dyn BlockDevice> = image.device.clone();
    let loaded = || {
        let journal = open_journal(device.clone(), &read_super(&*device).ok()?).ok()??;
        let context = JournalContext { block_size: image.geo.block_size, blocks: Some(journal.map().len()) };
        let (first, _) = journal.map().lookup(0)?;
        let mut sound = true;
        let bytes = image.bytes(first.0 << image.geo.block_bits, SUPER_BLOCK_BYTES).ok()?;
        JournalSuperBlock::parse(&bytes, &context, &mut |_| sound = false);
        (sound && Replay::load(&journal, &*device, &mut |_| {}).is_ok()).then_some(())
    };
    loaded().is_some()
}

/// Replays the log of a journal that was found again, if the superblock says that there is one.
fn restored(image: &mut Image) -> StepResult {
    image.touch(InodeNr::JOURNAL);
    note(image, InodeNr::JOURNAL)?;
    if !image.sb.needs_recovery() {
        return Ok(());
    }
    match replay(&image.device) {
        Ok(_) => Ok(()),
        Err(Error::Device(e)) => Err(e.into()),
        Err(_) => Err(Refusal::Lost("the log cannot be replayed")),
    }
}

/// Updates the superblock's copy of the map from the journal's inode.
pub fn note(image: &mut Image, ino: InodeNr) -> StepResult {
    let raw = image.inode(ino)?.raw;
    note_map(image, raw.i_block, u64::from(raw.i_size_lo.get()) | u64::from(raw.i_size_high.get()) << 32)
}

/// Sets the superblock's copy of the map.
fn note_map(image: &mut Image, i_block: [u8; 60], size: u64) -> StepResult {
    image.change_super(|raw| {
        for (word, bytes) in raw.s_jnl_blocks.iter_mut().zip(i_block.as_chunks::<4>().0) {
            *word = U32::from_bytes(*bytes);
        }
        raw.s_jnl_blocks[15].set((size >> 32) as u32);
        raw.s_jnl_blocks[16].set(size as u32);
        raw.s_jnl_backup_type = 1;
    })
}

/// Creates a journal of `blocks` blocks, or of as many as mke2fs would choose, for a file system without one.
pub fn create(image: &mut Image, blocks: Option<u32>) -> StepResult {
    let usual = jbd2::default_blocks(image.geo.blocks_count).unwrap_or(jbd2::MIN_LOG_BLOCKS);
    image.change_super(|raw| raw.s_journal_inum.set(InodeNr::JOURNAL.0))?;
    image.zero_inode(InodeNr::JOURNAL)?;
    make(image, InodeNr::JOURNAL, Vec::new(), blocks.unwrap_or(usual) as usize)
}

/// Creates an empty journal in its old blocks. Old blocks of a log in it are zeroed, so that none of them is ever
/// mistaken for a block of a new log.
fn empty(image: &mut Image, ino: InodeNr) -> StepResult {
    let own = match image.inode(ino)?.is_file() {
        true => content::own(image, ino)?,
        false => Vec::new(),
    };
    let usual = jbd2::default_blocks(image.geo.blocks_count).unwrap_or(jbd2::MIN_LOG_BLOCKS);
    let count = if own.len() > jbd2::MIN_LOG_BLOCKS as usize { own.len() } else { usual as usize };
    make(image, ino, own, count)
}

/// Creates an empty journal of `count` blocks, `own` first.
fn make(image: &mut Image, ino: InodeNr, own: Vec<BlockNr>, count: usize) -> StepResult {
    super::inodes::fresh(image, ino, FileType::Regular, 0o600, 1)?;
    let blocks = content::blocks(image, own, count)?;
    let magic = jbd2::MAGIC.to_be_bytes();
    let zeros = vec![0; image.geo.block_size as usize];
    for block in &blocks {
        if image.block(*block)?.starts_with(&magic) {
            image.put_block(*block, &zeros)?;
        }
    }
    let mut first = zeros;
    let fresh = JournalSuperBlock::create(image.geo.block_size, count as u32, image.geo.uuid, LogCsum::None, false);
    first[..SUPER_BLOCK_BYTES].copy_from_slice(&fresh.encode());
    image.put_block(blocks[0], &first)?;
    content::set_blocks(image, ino, &blocks, (blocks.len() as u64) << image.geo.block_bits)?;
    let raw = image.inode(ino)?.raw;
    note_map(image, raw.i_block, (blocks.len() as u64) << image.geo.block_bits)?;
    image.change_super(|raw| {
        raw.s_feature_incompat.set(raw.s_feature_incompat.get() & !Incompat::NEEDS_RECOVERY.bits());
    })
}
