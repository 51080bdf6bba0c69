//! A journal on its device: superblock and reading by journal block number.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::jbd2::{JournalSuperBlock, LogRange, SUPER_BLOCK_BYTES, SUPER_BLOCK_LIVE_BYTES};
use extant_ondisk::superblock::{JournalDevice, NotAJournal, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

use crate::error::{Error, Result};
use crate::map::JournalMap;
use crate::read;

/// The journal has another UUID, or another user.
const OTHER: &str = "the journal of another file system";

/// The superblock of a device that has only a journal.
///
/// Errors: `NoJournal` if it has none; `Device`.
pub fn journal_device(device: &dyn BlockDevice) -> Result<JournalDevice> {
    let wrong = |detail: &dyn std::fmt::Display| Error::NoJournal { detail: format!("{}: {detail}", device.name()) };
    if SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 > device.size_bytes() {
        return Err(wrong(&NotAJournal::Other));
    }
    let bytes = read::bytes(device, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE)?;
    JournalDevice::decode(&bytes).map_err(|e| wrong(&e))
}

/// An opened journal (Linux: the part of `journal_t` that recovery uses).
#[derive(Clone)]
pub struct JournalFile {
    device: Arc<dyn BlockDevice>,
    map: JournalMap,
    /// The journal block that holds the superblock: 0, except on a device of its own.
    super_at: u32,
    external: bool,
    block_size: u32,
    sb: JournalSuperBlock,
}

impl JournalFile {
    /// Opens a journal inside the file system on `device`, at the places in `map`. `block_size` in bytes.
    ///
    /// Errors: `Format` for a bad superblock, `Map` if it claims more blocks than `map` has or a block is past the
    /// end of the device.
    pub fn open(device: Arc<dyn BlockDevice>, block_size: u32, map: JournalMap) -> Result<JournalFile> {
        Self::open_at(device, block_size, map, 0, false)
    }

    /// Opens the journal that has `device` to itself, of a file system whose journal is `journal_uuid` and whose own
    /// UUID is `user`.
    ///
    /// Errors: `NoJournal` if the device is no journal, or that of another file system; else as for
    /// [`open`](Self::open).
    pub fn open_external(
        device: Arc<dyn BlockDevice>,
        block_size: u32,
        journal_uuid: [u8; 16],
        user: [u8; 16],
    ) -> Result<JournalFile> {
        let (file, uuid) = Self::open_any_external(device, block_size)?;
        // Linux (`ext4_get_journal_blkdev`) compares the journal's UUID alone. A copy of the file system with a new
        // UUID would take the original's log for its own then.
        let owner = if uuid == journal_uuid { Self::owner(file.super_block(), user) } else { Some(OTHER.to_owned()) };
        match owner {
            None => Ok(file),
            Some(detail) => Err(Error::NoJournal { detail: format!("{}: {detail}", file.device.name()) }),
        }
    }

    /// Why the journal does not belong to the file system `user` alone.
    fn owner(sb: &JournalSuperBlock, user: [u8; 16]) -> Option<String> {
        match sb.nr_users {
            0 => Some("no file system uses it; 'mkfs -J device=' or tune2fs(8) gives it to one".to_owned()),
            1 if sb.users().all(|found| found == user) => None,
            1 => Some(OTHER.to_owned()),
            n => Some(format!("shared by {n} file systems, which is not supported")),
        }
    }

    /// Opens a journal that has `device` to itself, whichever file system uses it. Also returns its UUID.
    ///
    /// Errors: as for [`open_external`](Self::open_external), but for users.
    pub fn open_any_external(device: Arc<dyn BlockDevice>, block_size: u32) -> Result<(JournalFile, [u8; 16])> {
        let found = journal_device(&*device)?;
        if found.block_size != block_size {
            let detail = format!(
                "{}: its blocks have {} bytes, and those of the file system {block_size}",
                device.name(),
                found.block_size
            );
            return Err(Error::NoJournal { detail });
        }
        // Linux believes the superblock's length, which may be more than the device has.
        let blocks = (device.size_bytes() / u64::from(block_size)).min(found.blocks_count);
        let map = JournalMap::identity(u32::try_from(blocks).unwrap_or(u32::MAX));
        let super_at = JournalDevice::journal_super(block_size);
        Ok((Self::open_at(device, block_size, map, super_at, true)?, found.uuid))
    }

    fn open_at(
        device: Arc<dyn BlockDevice>,
        block_size: u32,
        map: JournalMap,
        super_at: u32,
        external: bool,
    ) -> Result<JournalFile> {
        let device_blocks = device.size_bytes() / u64::from(block_size.max(1));
        if let Some(highest) = map.highest().filter(|b| b.0 >= device_blocks) {
            return Err(Error::map(highest.0, format!("past the end of {} ({device_blocks} blocks)", device.name())));
        }
        let Some((at, _)) = map.lookup(super_at) else {
            return Err(Error::map(super_at, "the journal is too short for a superblock"));
        };
        let mut bytes = [0; SUPER_BLOCK_BYTES];
        // Read at the device's granularity: a sector can be larger than the superblock.
        let mut block = vec![0; block_size.clamp(1024, 65536) as usize];
        device.read_at(at.0 * u64::from(block_size), &mut block, BioFlags::META)?;
        bytes.copy_from_slice(&block[..SUPER_BLOCK_BYTES]);
        let sb = JournalSuperBlock::decode(&bytes, block_size)?;
        if sb.max_len > map.len() {
            return Err(Error::map(map.len(), format!("the superblock claims {} blocks", sb.max_len)));
        }
        if sb.first <= super_at {
            return Err(Error::map(sb.first, "the log overlaps the superblock"));
        }
        Ok(JournalFile { device, map, super_at, external, block_size, sb })
    }

    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    pub fn map(&self) -> &JournalMap {
        &self.map
    }

    /// Whether the journal has its device to itself.
    pub fn is_external(&self) -> bool {
        self.external
    }

    /// The block size in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    pub fn super_block(&self) -> &JournalSuperBlock {
        &self.sb
    }

    /// The blocks of the log that full commits use.
    pub fn log(&self) -> LogRange {
        self.sb.log()
    }

    /// The journal block that holds the superblock.
    pub fn super_at(&self) -> u32 {
        self.super_at
    }

    /// The byte on the device where the superblock begins.
    pub fn super_offset(&self) -> u64 {
        self.map.lookup(self.super_at).map_or(0, |(at, _)| at.0 * u64::from(self.block_size))
    }

    /// Reads whole consecutive journal blocks, from `block` on, without wrapping at the end of the log.
    pub fn read(&self, mut block: u32, mut buf: &mut [u8]) -> Result<()> {
        let size = self.block_size as usize;
        while !buf.is_empty() {
            let Some((at, run)) = self.map.lookup(block) else {
                return Err(Error::map(block, format!("past the journal's end ({} blocks)", self.map.len())));
            };
            let blocks = (buf.len() / size).clamp(1, run as usize);
            let (now, rest) = buf.split_at_mut((blocks * size).min(buf.len()));
            self.device.read_at(at.0 * self.block_size as u64, now, BioFlags::META)?;
            buf = rest;
            block += blocks as u32;
        }
        Ok(())
    }

    /// Writes `sb` over the journal's superblock and makes it durable, with everything that was written to the
    /// journal's device before. Only the first sector is written.
    pub fn write_super(&mut self, sb: JournalSuperBlock) -> Result<()> {
        let offset = self.super_offset();
        let live = sb.live_bytes();
        let sector = self.device.limits().logical_block as usize;
        self.device.flush()?;
        if sector <= SUPER_BLOCK_LIVE_BYTES {
            self.device.write_at(offset, &[&live], BioFlags::META | BioFlags::FUA)?;
        } else {
            let sector = sector.min(self.block_size as usize);
            let mut whole = vec![0; sector];
            self.device.read_at(offset, &mut whole, BioFlags::META)?;
            whole[..SUPER_BLOCK_LIVE_BYTES].copy_from_slice(&live);
            self.device.write_at(offset, &[&whole], BioFlags::META | BioFlags::FUA)?;
        }
        self.sb = sb;
        Ok(())
    }
}

/// Reads a journal block by block, with larger reads from the device.
pub(crate) struct Window<'a> {
    journal: &'a JournalFile,
    buf: Vec<u8>,
    first: u32,
    blocks: u32,
    /// The most blocks to read at once.
    ahead: u32,
}

impl<'a> Window<'a> {
    /// `bytes` is the most to read at once; at least one block is read.
    pub(crate) fn new(journal: &'a JournalFile, bytes: usize) -> Window<'a> {
        let ahead = (bytes as u32 / journal.block_size).max(1);
        Window { journal, buf: Vec::new(), first: 0, blocks: 0, ahead }
    }

    /// The contents of journal block `block`.
    pub(crate) fn block(&mut self, block: u32) -> Result<&[u8]> {
        let size = self.journal.block_size as usize;
        if block < self.first || block - self.first >= self.blocks {
            self.blocks = 0;
            let left = self.journal.map.len().saturating_sub(block).max(1);
            let run = self.journal.map.lookup(block).map_or(1, |(_, run)| run);
            let count = self.ahead.min(left).min(run);
            self.buf.resize(count as usize * size, 0);
            self.journal.read(block, &mut self.buf)?;
            (self.first, self.blocks) = (block, count);
        }
        let at = (block - self.first) as usize * size;
        Ok(&self.buf[at..at + size])
    }
}
