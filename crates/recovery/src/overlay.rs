//! The replayed view of a device, without writing to it.
//!
//! Only reads work. Where the log holds a newer copy of a block, the reader gets that; the journal's superblock (of a
//! journal inside the file system) reads as empty, since for the reader the log has been replayed. The needs_recovery
//! flag still reads as it was logged.
//!
//! # Locking
//! None: nothing changes after construction.

use std::sync::Arc;

use extant_block::{Bio, BioData, BioFlags, BioOp, BlockDevice, IoStats, Limits};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::SUPER_BLOCK_BYTES;

use crate::error::Error;
use crate::file::JournalFile;
use crate::scan::{LogCopy, Replay};

/// A read-only device that shows the file system as it will be after replay.
pub struct OverlayDevice {
    home: Arc<dyn BlockDevice>,
    journal: JournalFile,
    replay: Replay,
    /// The journal's superblock as it will be: byte on `home`, contents.
    emptied: Option<(u64, [u8; SUPER_BLOCK_BYTES])>,
}

impl OverlayDevice {
    /// `replay` was loaded from `journal`, which belongs to the file system on `home`. Ask [`Replay::check`] first
    /// unless a partial view of a damaged log is wanted.
    pub fn new(home: Arc<dyn BlockDevice>, journal: JournalFile, replay: Replay) -> OverlayDevice {
        let emptied = (replay.live && !journal.is_external()).then(|| {
            let mut sb = journal.super_block().clone();
            (sb.sequence, sb.start) = (replay.next_tid(), 0);
            (journal.super_offset(), sb.encode())
        });
        OverlayDevice { home, journal, replay, emptied }
    }

    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Puts the copy of `block` into `buf`, which is the contents of the device from byte `offset` on.
    fn patch(&self, block: BlockNr, copy: &LogCopy, offset: u64, buf: &mut [u8]) -> extant_block::Result<()> {
        let mut data = vec![0; self.journal.block_size() as usize];
        self.journal.read(copy.log_block, &mut data).map_err(|e| self.device_error(e, offset, buf.len()))?;
        copy.restore(&mut data);
        overlay(buf, offset, &data, block.0 * u64::from(self.journal.block_size()));
        Ok(())
    }

    fn device_error(&self, e: Error, offset: u64, len: usize) -> extant_block::Error {
        match e {
            Error::Device(e) => e,
            other => extant_block::Error::Io {
                device: self.name().to_owned(),
                op: BioOp::Read,
                offset,
                len: len as u64,
                source: Arc::new(std::io::Error::other(other.to_string())),
            },
        }
    }

    fn refuse(&self, op: BioOp) -> extant_block::Error {
        extant_block::Error::ReadOnly { device: self.name().to_owned(), op }
    }
}

/// Copies the part of `data`, which lies at byte `data_at`, that falls into `buf`, which lies at byte `buf_at`.
fn overlay(buf: &mut [u8], buf_at: u64, data: &[u8], data_at: u64) {
    let from = buf_at.max(data_at);
    let to = (buf_at + buf.len() as u64).min(data_at + data.len() as u64);
    if from < to {
        let len = (to - from) as usize;
        let (b, d) = ((from - buf_at) as usize, (from - data_at) as usize);
        buf[b..b + len].copy_from_slice(&data[d..d + len]);
    }
}

impl BlockDevice for OverlayDevice {
    fn name(&self) -> &str {
        self.home.name()
    }

    fn size_bytes(&self) -> u64 {
        self.home.size_bytes()
    }

    fn limits(&self) -> &Limits {
        self.home.limits()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn submit(&self, mut bio: Bio) {
        let result = match bio.op {
            BioOp::Flush => Ok(()),
            BioOp::Read => match &mut bio.data {
                BioData::Read(buf) => self.read_at(bio.offset, buf, bio.flags),
                BioData::None | BioData::Write(_) => Ok(()),
            },
            BioOp::Write | BioOp::Discard | BioOp::WriteZeroes => Err(self.refuse(bio.op)),
        };
        bio.complete(result);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> extant_block::Result<()> {
        self.home.read_at(offset, buf, flags)?;
        if buf.is_empty() {
            return Ok(());
        }
        let size = u64::from(self.journal.block_size());
        let first = BlockNr(offset / size);
        let last = BlockNr((offset + buf.len() as u64 - 1) / size);
        for (block, copy) in self.replay.blocks.range(first..=last) {
            self.patch(*block, copy, offset, buf)?;
        }
        if let Some((at, bytes)) = &self.emptied {
            overlay(buf, offset, bytes, *at);
        }
        Ok(())
    }

    fn next_data(&self, offset: u64) -> extant_block::Result<Option<u64>> {
        let size = u64::from(self.journal.block_size());
        // What the log holds is data, also where the device has a hole.
        let logged = self.replay.blocks.range(BlockNr(offset / size)..).next();
        let logged = logged.map(|(block, _)| offset.max(block.0.saturating_mul(size)));
        let home = self.home.next_data(offset)?;
        Ok(home.into_iter().chain(logged).min().filter(|at| *at < self.size_bytes()))
    }

    fn write_at(&self, _offset: u64, _pieces: &[&[u8]], _flags: BioFlags) -> extant_block::Result<()> {
        Err(self.refuse(BioOp::Write))
    }

    fn flush(&self) -> extant_block::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> extant_block::Result<()> {
        Err(self.refuse(BioOp::Discard))
    }

    fn stats(&self) -> IoStats {
        self.home.stats()
    }
}
