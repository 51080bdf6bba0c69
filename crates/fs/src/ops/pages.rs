//! The content of a locked file: folios, reserved blocks, and the device below.
//!
//! Main type: [`ContentView`]. Main functions: [`ContentView::read_locked`] and [`ContentView::read_device`];
//! [`ContentView::write_delayed`] (into folios) and [`Volume::write_piece`] (to chosen blocks).
//!
//! What it does not do: lock inodes, check sizes or flags, or decide whether a write goes through folios (`data.rs`).
//!
//! # Locking
//! The caller holds the inode's `inode` lock: shared to read, exclusively to write.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_block::{AlignedBuf, BioFlags};
use extant_cache::WriteRefused;
use extant_es::EsState;
use extant_ondisk::{BlockNr, LogicalBlock};

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::volume::Volume;

/// The size of the largest possible block, in bytes.
const BLOCK_SIZE_MAX: usize = 64 << 10;
/// The number of bytes to read ahead for a sequential reader in process.
const READAHEAD_BYTES: u64 = 512 << 10;

/// The content of a file: its folios and its blocks. Its methods are in `ops/`, with the operations that they belong
/// to.
#[derive(Clone, Copy)]
pub(crate) struct ContentView<'a> {
    pub(crate) fs: &'a Filesystem,
    pub(crate) inode: &'a Arc<Inode>,
}

impl Filesystem {
    /// The content of `inode`.
    pub(crate) fn content<'a>(&'a self, inode: &'a Arc<Inode>) -> ContentView<'a> {
        ContentView { fs: self, inode }
    }
}

impl Volume {
    /// Writes the start of `data` to `len` blocks from `block` on, and pads the last block with zeros. Returns the
    /// number of bytes of `data` that were written.
    pub(crate) fn write_piece(&self, block: BlockNr, len: u32, data: &[u8]) -> Result<usize> {
        let bits = self.geo.block_bits;
        let room = (u64::from(len) << bits) as usize;
        let n = room.min(data.len());
        let pad = n.next_multiple_of(1 << bits) - n;
        static ZEROS: [u8; BLOCK_SIZE_MAX] = [0; BLOCK_SIZE_MAX];
        self.dev.write_at(block.0 << bits, &[&data[..n], &ZEROS[..pad]], BioFlags::empty())?;
        Ok(n)
    }
}

impl ContentView<'_> {
    /// Reads a range that lies within the file. The caller holds the inode's lock, at least shared.
    pub(crate) fn read_locked(&self, pos: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(content) = self.fs.inline(self.inode).content()? {
            let stored = content.get(usize::try_from(pos).unwrap_or(usize::MAX)..).unwrap_or_default();
            let (front, zeros) = buf.split_at_mut(stored.len().min(buf.len()));
            front.copy_from_slice(&stored[..front.len()]);
            zeros.fill(0);
            return Ok(());
        }
        let missing = self.inode.pages.read_cached(pos, buf);
        if missing.is_empty() {
            return Ok(());
        }
        if !self.inode.pages.keeps_clean() {
            for (from, to) in missing {
                self.read_device(pos + from as u64, &mut buf[from..to])?;
            }
            return Ok(());
        }
        let bs = u64::from(self.fs.geo.block_size);
        let size = self.inode.size();
        let end = pos + buf.len() as u64;
        let sequential = self.inode.read_end.swap(end, Ordering::Relaxed) == pos;
        let last = missing.len() - 1;
        for (i, (from, to)) in missing.into_iter().enumerate() {
            let start = (pos + from as u64) / bs * bs;
            let wanted = (pos + to as u64).div_ceil(bs) * bs;
            let mut stop = wanted;
            if sequential && i == last {
                // Stop at the first block in memory, because it may be newer than the device.
                let ahead = (stop + READAHEAD_BYTES).min(size.div_ceil(bs) * bs);
                stop = self.inode.pages.next_uptodate(stop / bs, ahead / bs) * bs;
            }
            let mut fresh = AlignedBuf::zeroed((stop - start) as usize);
            if let Err(e) = self.read_device(start, &mut fresh) {
                if stop == wanted {
                    return Err(e);
                }
                // A failed readahead must not fail the caller's read.
                stop = wanted;
                fresh = AlignedBuf::zeroed((stop - start) as usize);
                self.read_device(start, &mut fresh)?;
            }
            if stop > size {
                // The device may contain anything after the end of the file.
                fresh[(size.max(start) - start) as usize..].fill(0);
            }
            let within = (pos + from as u64 - start) as usize;
            buf[from..to].copy_from_slice(&fresh[within..within + (to - from)]);
            self.inode.pages.insert_clean(start, &fresh, (wanted.min(stop) - start) as usize);
        }
        Ok(())
    }

    /// Reads the mapped blocks from the device and decrypts them. Holes and unwritten blocks read as zeros.
    pub(crate) fn read_device(&self, pos: u64, buf: &mut [u8]) -> Result<()> {
        let bits = self.fs.geo.block_bits;
        let key = self.fs.encryption(self.inode).file_key()?;
        let mut at = 0usize;
        while at < buf.len() {
            let abs = pos + at as u64;
            let lblk = u32::try_from(abs >> bits).map_err(|_| Error::FileTooBig)?;
            let within = abs & ((1 << bits) - 1);
            let want = (within + (buf.len() - at) as u64).div_ceil(1 << bits).min(u64::from(u32::MAX)) as u32;
            let (len, state) = self.fs.status(self.inode, LogicalBlock(lblk), want)?;
            let n = ((u64::from(len) << bits) - within).min((buf.len() - at) as u64) as usize;
            let piece = &mut buf[at..at + n];
            match state {
                EsState::Written(block) => {
                    self.fs.check_data_range(self.inode, block, len)?;
                    match key {
                        Some(key) => self.fs.read_sealed(key, (lblk, block), within, piece)?,
                        None => self.fs.dev.read_at((block.0 << bits) + within, piece, BioFlags::empty())?,
                    }
                }
                _ => piece.fill(0),
            }
            at += n;
        }
        Ok(())
    }

    /// Writes into folios, as much as blocks can be reserved for, but at least one byte. Returns the number of bytes
    /// written, and the bytes of blocks that became dirty.
    pub(crate) fn write_delayed(&self, pos: u64, data: &[u8]) -> Result<(usize, u64)> {
        let bits = self.fs.geo.block_bits;
        let bs = 1u64 << bits;
        let (old, end) = (self.inode.size(), pos + data.len() as u64);
        let (first, last) = (pos >> bits, (end - 1) >> bits);
        // Partial blocks need their old content, unless it is in memory already.
        let mut fills: Vec<(u64, AlignedBuf)> = Vec::new();
        for block in [first, last] {
            let whole = pos <= block * bs && end >= (block + 1) * bs;
            if whole || self.inode.pages.block_uptodate(block) || fills.iter().any(|(b, _)| *b == block) {
                continue;
            }
            fills.push((block, self.read_fill(block, old)?));
        }
        loop {
            // Take the position before the map is read: a loss from here on cancels the reservations of its blocks.
            let before = self.inode.losses.position();
            let (placed, promised) = self.promise_holes(first as u32, last as u32)?;
            let n = match u64::from(placed) {
                placed if placed <= first => return Err(self.missing_space()),
                placed => ((placed << bits).min(end) - pos) as usize,
            };
            match self.inode.pages.write(pos, &data[..n], &fills, self.inode.size_cell(), before) {
                Ok(newly) => {
                    self.fs.writeback.note_dirty(self.inode.ino, self.inode, newly);
                    return Ok((n, newly));
                }
                Err(refused) => {
                    self.break_promises(promised);
                    if let WriteRefused::NeedsFill { block } = refused {
                        // The block's writeback has ended since the check, and the block was evicted. The device has
                        // its content now.
                        fills.push((block, self.read_fill(block, old)?));
                    }
                }
            }
        }
    }

    /// The largest size that the file's map and the block count field allow.
    pub(crate) fn max_size(&self) -> u64 {
        self.fs.size_limit(self.inode.map.read().extents)
    }

    /// Reserves blocks for the holes in `first..=last`, from the start on, as long as there is space. Returns the first
    /// block without a reservation or place (`last` + 1 if there is none), and the reserved runs.
    fn promise_holes(&self, first: u32, last: u32) -> Result<(u32, Vec<(u32, u32)>)> {
        let mut promised: Vec<(u32, u32)> = Vec::new();
        let mut lblk = first;
        loop {
            let (n, state) = match self.fs.status(self.inode, LogicalBlock(lblk), last - lblk + 1) {
                Ok(found) => found,
                Err(e) => {
                    self.break_promises(promised);
                    return Err(e);
                }
            };
            if state == EsState::Hole {
                let got = match self.fs.promise(self.inode, LogicalBlock(lblk), n) {
                    Ok(got) => got,
                    Err(e) => {
                        self.break_promises(promised);
                        return Err(e);
                    }
                };
                if got > 0 {
                    promised.push((lblk, got));
                }
                if got < n {
                    return Ok((lblk + got, promised));
                }
            }
            if n > last - lblk {
                return Ok((last + 1, promised));
            }
            lblk += n;
        }
    }

    /// Cancels reservations, because no data follows for these blocks.
    fn break_promises(&self, promised: Vec<(u32, u32)>) {
        let _map = self.inode.map.write();
        for (lblk, n) in promised {
            self.fs.forget_status(self.inode, LogicalBlock(lblk), n.into());
        }
    }

    /// The reason why no block could be reserved for delayed data of the file.
    fn missing_space(&self) -> Error {
        match self.fs.quotas.blocks_within(self.inode, 1) {
            Err(Error::QuotaExceeded) => Error::QuotaExceeded,
            _ => Error::NoSpace,
        }
    }

    /// Reads the current content of a block that a write covers in part, up to the file's `size`.
    fn read_fill(&self, block: u64, size: u64) -> Result<AlignedBuf> {
        let bs = u64::from(self.fs.geo.block_size);
        let mut content = AlignedBuf::zeroed(bs as usize);
        let valid = size.saturating_sub(block * bs).min(bs) as usize;
        if valid > 0 {
            self.read_device(block * bs, &mut content[..valid])?;
        }
        Ok(content)
    }
}
