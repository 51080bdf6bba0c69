//! The replayed view of a device, without writing to it.
//!
//! Only reads work. If the log has a newer copy of a block, the reader gets that copy. The superblock of a journal
//! inside the file system reads as empty, since for the reader the log has been replayed. The needs_recovery flag
//! still reads as it was logged.
//!
//! Bios are passed to the devices below, all parts at once: the range at home, and each copy from the log. The last
//! part to arrive puts the copies in their places. At most [`COPIES_MAX`] bytes of copies are in flight; a read that
//! needs more is carried out on the submitter's thread.
//!
//! # Locking
//! `overlay read`: the parts of one read that have arrived. It is released before the read completes.

use std::sync::Arc;

use extant_base::sync::atomic::{AtomicUsize, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_block::{AlignedBuf, Bio, BioData, BioFlags, BioOp, BlockDevice, Completion, Wrapper};
use extant_block::{EndIo, submit_inline};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::SUPER_BLOCK_BYTES;

use crate::error::Error;
use crate::file::JournalFile;
use crate::scan::{LogCopy, Replay};

/// Bytes of copies that are read from the log at the same time.
const COPIES_MAX: usize = 1 << 20;

static CLASS: LockClass = LockClass::new("overlay read", 770);

/// A read-only device that shows the file system as replay would leave it.
pub struct OverlayDevice {
    home: Arc<dyn BlockDevice>,
    journal: JournalFile,
    replay: Replay,
    /// The journal's superblock after replay: byte on `home`, contents.
    emptied: Option<(u64, [u8; SUPER_BLOCK_BYTES])>,
    /// Bytes of copies in flight for bios.
    copying: Arc<AtomicUsize>,
}

/// The parts of a read that have arrived.
struct ArrivedParts {
    missing: usize,
    home: Option<Completion>,
    /// Each copy's byte offset, its entry, and the completion of its read.
    copies: Vec<(u64, LogCopy, Completion)>,
    /// The reader's completion.
    end_io: Option<Box<dyn EndIo>>,
}

/// A read whose parts are in flight.
struct Parts {
    arrived: Mutex<ArrivedParts>,
    emptied: Option<(u64, [u8; SUPER_BLOCK_BYTES])>,
    copying: Arc<AtomicUsize>,
}

impl Parts {
    /// Records a part with `put`; the last one completes the read.
    fn arrive(&self, put: impl FnOnce(&mut ArrivedParts)) {
        let mut arrived = self.arrived.lock();
        put(&mut arrived);
        arrived.missing -= 1;
        if arrived.missing > 0 {
            return;
        }
        let (home, end_io, copies) = (arrived.home.take(), arrived.end_io.take(), std::mem::take(&mut arrived.copies));
        drop(arrived);
        if let (Some(home), Some(end_io)) = (home, end_io) {
            end_io.end_io(self.join(home, copies));
        }
    }

    /// Replaces the logged parts of the bytes read from home with their copies.
    fn join(&self, mut home: Completion, copies: Vec<(u64, LogCopy, Completion)>) -> Completion {
        let BioData::Read(buf) = &mut home.data else { return home };
        for (at, copy, done) in copies {
            if home.result.is_ok() {
                home.result = done.result;
            }
            let BioData::Read(mut data) = done.data else { continue };
            self.copying.fetch_sub(data.len(), Ordering::Relaxed);
            copy.restore(&mut data);
            overlay(buf, home.offset, &data, at);
        }
        if let Some((at, bytes)) = &self.emptied {
            overlay(buf, home.offset, bytes, *at);
        }
        home
    }
}

impl OverlayDevice {
    /// `replay` was loaded from `journal`, which belongs to the file system on `home`. Call [`Replay::check`] first
    /// unless a partial view of a damaged log is wanted.
    pub fn new(home: Arc<dyn BlockDevice>, journal: JournalFile, replay: Replay) -> OverlayDevice {
        let emptied = (replay.live && !journal.is_external()).then(|| {
            let mut sb = journal.super_block().clone();
            (sb.sequence, sb.start) = (replay.next_tid(), 0);
            (journal.super_offset(), sb.encode())
        });
        OverlayDevice { home, journal, replay, emptied, copying: Arc::default() }
    }

    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// The copies that belong in the range.
    fn copies(&self, offset: u64, len: u64) -> impl Iterator<Item = (BlockNr, LogCopy)> + '_ {
        let size = u64::from(self.journal.block_size());
        let end = offset.saturating_add(len).div_ceil(size);
        self.replay.blocks.range(BlockNr(offset / size)..BlockNr(end)).map(|(block, copy)| (*block, *copy))
    }

    /// Submits a read, in parts if the log has some of its blocks.
    fn submit_read(&self, mut bio: Bio) {
        let size = u64::from(self.journal.block_size());
        let end = bio.offset.saturating_add(bio.len);
        let emptied = self.emptied.filter(|(at, bytes)| *at < end && bio.offset < at + bytes.len() as u64);
        let copies: Vec<(BlockNr, LogCopy)> = self.copies(bio.offset, bio.len).collect();
        if copies.is_empty() && emptied.is_none() {
            return self.home.submit(bio);
        }
        let log = self.journal.device().clone();
        let place = |(_, copy): &(BlockNr, LogCopy)| Some(self.journal.map().lookup(copy.log_block)?.0.0 * size);
        let places: Option<Vec<u64>> = copies.iter().map(place).collect();
        let whole = size.is_multiple_of(log.limits().logical_block.into());
        let Some(places) = places.filter(|_| whole && self.may_copy(copies.len())) else {
            return submit_inline(self, bio);
        };
        let end_io = Box::new(|_: Completion| ());
        let arrived = ArrivedParts {
            missing: copies.len() + 1,
            home: None,
            copies: Vec::with_capacity(copies.len()),
            end_io: Some(std::mem::replace(&mut bio.end_io, end_io)),
        };
        let arrived = Mutex::new(&CLASS, arrived);
        let parts = Arc::new(Parts { arrived, emptied, copying: self.copying.clone() });
        let reads = copies.into_iter().zip(places).map(|((block, copy), place)| {
            let parts = parts.clone();
            let end_io = move |done| parts.arrive(|arrived| arrived.copies.push((block.0 * size, copy, done)));
            Bio::read(place, AlignedBuf::zeroed(size as usize), bio.flags, Box::new(end_io))
        });
        let reads = reads.collect();
        bio.end_io = Box::new(move |done| parts.arrive(|arrived| arrived.home = Some(done)));
        self.home.submit(bio);
        log.submit_all(reads);
    }

    /// Whether this many more copies may be in flight; if so, counts them until they have arrived.
    fn may_copy(&self, copies: usize) -> bool {
        let bytes = copies * self.journal.block_size() as usize;
        let may = self.copying.fetch_add(bytes, Ordering::Relaxed) + bytes <= COPIES_MAX;
        if !may {
            self.copying.fetch_sub(bytes, Ordering::Relaxed);
        }
        may
    }

    /// Puts the copy of `block` into `buf`, which has the bytes of the device from `offset` on.
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
                device: self.home.name().to_owned(),
                op: BioOp::Read,
                offset,
                len: len as u64,
                source: Arc::new(std::io::Error::other(other.to_string())),
            },
        }
    }

    fn refuse(&self, op: BioOp) -> extant_block::Error {
        extant_block::Error::ReadOnly { device: self.home.name().to_owned(), op }
    }
}

/// Copies the overlapping part of `data`, which starts at byte `data_at`, into `buf`, which starts at byte `buf_at`.
fn overlay(buf: &mut [u8], buf_at: u64, data: &[u8], data_at: u64) {
    let from = buf_at.max(data_at);
    let to = (buf_at + buf.len() as u64).min(data_at + data.len() as u64);
    if from < to {
        let len = (to - from) as usize;
        let (b, d) = ((from - buf_at) as usize, (from - data_at) as usize);
        buf[b..b + len].copy_from_slice(&data[d..d + len]);
    }
}

impl Wrapper for OverlayDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.home
    }

    fn read_only(&self) -> bool {
        true
    }

    fn submit(&self, bio: Bio) {
        match (bio.op, &bio.data) {
            (BioOp::Read, BioData::Read(_)) => self.submit_read(bio),
            _ => submit_inline(self, bio),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> extant_block::Result<()> {
        self.home.read_at(offset, buf, flags)?;
        for (block, copy) in self.copies(offset, buf.len() as u64) {
            self.patch(block, &copy, offset, buf)?;
        }
        if let Some((at, bytes)) = &self.emptied {
            overlay(buf, offset, bytes, *at);
        }
        Ok(())
    }

    fn next_data(&self, offset: u64) -> extant_block::Result<Option<u64>> {
        let size = u64::from(self.journal.block_size());
        // Logged blocks are data, even if the device has a hole there.
        let logged = self.replay.blocks.range(BlockNr(offset / size)..).next();
        let logged = logged.map(|(block, _)| offset.max(block.0.saturating_mul(size)));
        let home = self.home.next_data(offset)?;
        Ok(home.into_iter().chain(logged).min().filter(|at| *at < self.home.size_bytes()))
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
}
