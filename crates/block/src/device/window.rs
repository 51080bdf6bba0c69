//! [`OffsetDevice`] (a part of a device, such as a partition) and [`ReadOnlyDevice`] (a device that must not change).
//!
//! What it does not do: parse partition tables.
//!
//! # Locking
//! None of its own.

use std::sync::Arc;

use super::wrapper::Wrapper;
use super::{BlockDevice, IoCounters, IoStats, check_range, total_len};
use crate::bio::{Bio, BioFlags, BioOp, Completion};
use crate::error::{Error, Result};

/// `len` bytes of another device, from byte `start` on. Errors of the device below have offsets within that device.
pub struct OffsetDevice {
    inner: Arc<dyn BlockDevice>,
    name: String,
    start: u64,
    len: u64,
    counters: IoCounters,
}

impl OffsetDevice {
    /// The window of `len` bytes from byte `start` of `inner`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the window is not inside `inner`; [`Error::BadRequest`] if it does not start and end on
    /// a logical block.
    pub fn new(inner: Arc<dyn BlockDevice>, start: u64, len: u64) -> Result<OffsetDevice> {
        check_range(&*inner, BioOp::Read, start, len)?;
        let block = u64::from(inner.limits().logical_block);
        if !start.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(Error::BadRequest {
                device: inner.name().to_owned(),
                op: BioOp::Read,
                offset: start,
                len,
                why: "a window starts and ends on a logical block",
            });
        }
        let name = format!("{}+{start}", inner.name());
        Ok(OffsetDevice { inner, name, start, len, counters: IoCounters::default() })
    }

    /// Sets another name than that of the device below with the place in it.
    #[must_use]
    pub fn named(self, name: String) -> OffsetDevice {
        OffsetDevice { name, ..self }
    }
}

impl Wrapper for OffsetDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.len
    }

    fn completes_later(&self) -> bool {
        self.inner.completes_later()
    }

    fn submit(&self, mut bio: Bio) {
        if bio.op == BioOp::Flush {
            self.counters.flush();
            return self.inner.submit(bio);
        }
        if let Err(e) = check_range(self, bio.op, bio.offset, bio.len) {
            return bio.complete(Err(e));
        }
        match bio.op {
            BioOp::Read => self.counters.read(bio.len),
            BioOp::Write => self.counters.write(bio.len, bio.flags),
            BioOp::Discard => self.counters.discard(),
            BioOp::WriteZeroes => self.counters.write_zeroes(bio.flags),
            BioOp::Flush => {}
        }
        let (start, end_io) = (self.start, bio.end_io);
        bio.offset += start;
        bio.end_io =
            Box::new(move |done: Completion| end_io.end_io(Completion { offset: done.offset - start, ..done }));
        self.inner.submit(bio);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::Read, offset, buf.len() as u64)?;
        self.counters.read(buf.len() as u64);
        self.inner.read_at(self.start + offset, buf, flags)
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let found = self.inner.next_data(self.start.saturating_add(offset))?;
        Ok(found.map(|at| at - self.start).filter(|at| *at < self.len))
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let len = total_len(pieces);
        check_range(self, BioOp::Write, offset, len)?;
        self.counters.write(len, flags);
        self.inner.write_at(self.start + offset, pieces, flags)
    }

    fn flush(&self) -> Result<()> {
        self.counters.flush();
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self, BioOp::Discard, offset, len)?;
        self.counters.discard();
        self.inner.discard(self.start + offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::WriteZeroes, offset, len)?;
        self.counters.write_zeroes(flags);
        self.inner.write_zeroes(self.start + offset, len, flags)
    }

    fn stats(&self) -> IoStats {
        self.counters.get()
    }
}

/// A view of another device through which it cannot be changed: writes, discards and zeroings are rejected, and flushes
/// succeed without reaching it.
pub struct ReadOnlyDevice {
    inner: Arc<dyn BlockDevice>,
    counters: IoCounters,
}

impl ReadOnlyDevice {
    /// Creates a read-only view. An owner of `inner` itself can still change it.
    pub fn new(inner: Arc<dyn BlockDevice>) -> ReadOnlyDevice {
        ReadOnlyDevice { inner, counters: IoCounters::default() }
    }

    fn refuse(&self, op: BioOp) -> Result<()> {
        Err(Error::ReadOnly { device: self.inner.name().to_owned(), op })
    }
}

impl Wrapper for ReadOnlyDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read_only(&self) -> bool {
        true
    }

    fn submit(&self, bio: Bio) {
        match bio.op {
            BioOp::Read => {
                self.counters.read(bio.len);
                self.inner.submit(bio);
            }
            BioOp::Flush => bio.complete(Ok(())),
            op => {
                let refused = self.refuse(op);
                bio.complete(refused);
            }
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        self.counters.read(buf.len() as u64);
        self.inner.read_at(offset, buf, flags)
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.inner.next_data(offset)
    }

    fn write_at(&self, _offset: u64, _pieces: &[&[u8]], _flags: BioFlags) -> Result<()> {
        self.refuse(BioOp::Write)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        self.refuse(BioOp::Discard)
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _flags: BioFlags) -> Result<()> {
        self.refuse(BioOp::WriteZeroes)
    }

    fn stats(&self) -> IoStats {
        self.counters.get()
    }
}
