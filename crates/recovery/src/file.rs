//! A journal on its device: superblock and reading by journal block number.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::jbd2::{JournalSuperBlock, LogRange, SUPER_BLOCK_BYTES, SUPER_BLOCK_LIVE_BYTES};

use crate::error::{Error, Result};
use crate::map::JournalMap;

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

    /// Opens a journal that has `device` to itself. `journal_uuid` is the UUID that the file system expects.
    ///
    /// Errors: `NoJournal` if the device is no journal, or another one; else as for [`open`](Self::open).
    pub fn open_external(device: Arc<dyn BlockDevice>, block_size: u32, journal_uuid: [u8; 16]) -> Result<JournalFile> {
        let mut sector = [0; 512];
        device.read_at(1024, &mut sector, BioFlags::META)?;
        // Linux: `struct ext4_super_block`: s_magic, s_feature_incompat (JOURNAL_DEV), s_uuid.
        let wrong = |detail: &str| Error::NoJournal { detail: format!("{}: {detail}", device.name()) };
        if sector[0x38..0x3A] != [0x53, 0xEF] || sector[0x60] & 8 == 0 {
            return Err(wrong("not a journal device"));
        }
        if sector[0x68..0x78] != journal_uuid {
            return Err(wrong("the journal of another file system"));
        }
        let blocks = device.size_bytes() / u64::from(block_size.max(1024));
        let map = JournalMap::identity(u32::try_from(blocks).unwrap_or(u32::MAX));
        let super_at = if block_size <= 1024 { 2 } else { 1 };
        let file = Self::open_at(device, block_size, map, super_at, true)?;
        if file.sb.nr_users != 1 {
            return Err(Error::NoJournal { detail: format!("shared by {} file systems", file.sb.nr_users) });
        }
        Ok(file)
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
