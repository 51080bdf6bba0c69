//! Devices: one trait, many implementers.
//!
//! Main types: [`BlockDevice`]; the leaves [`MemDevice`] (sparse memory), [`FileDevice`] (image files and block
//! devices) and [`NbdDevice`] (an export of an NBD server); the wrappers [`CrashDevice`] (images that a power cut could
//! leave), [`FaultyDevice`] (requests that fail), [`HeldDevice`] (holds requests until a test releases them),
//! [`LateDevice`] (bios that complete late and in any order), [`RateDevice`] (a fixed number of bytes per second),
//! [`TracedDevice`] (records of requests), [`CowDevice`] (a device whose changes are stored separately),
//! [`OffsetDevice`] and [`ReadOnlyDevice`] (a part of a device, and one that must not change), [`TimedDevice`] (adds up
//! the time that a disk would need), [`MetaOnlyDevice`] (keeps metadata and drops data). A wrapper implements
//! [`Wrapper`](wrapper::Wrapper).
//!
//! What it does not do: queueing and merging ([`crate::queue`]).
//!
//! # Locking
//! See `ranks`. A wrapper never holds its own lock while it calls the device below it, except [`CrashDevice`], which
//! must keep its log and its live image in the same order.

mod cow;
mod crash;
mod faulty;
mod file;
mod held;
mod late;
mod mem;
mod nbd;
mod rate;
mod sim;
mod stats;
mod traced;
mod window;
pub(crate) mod wrapper;

#[cfg(test)]
pub(crate) mod tests;

pub use cow::{CowDevice, Spill};
pub use crash::{CrashDevice, CrashEvent, CrashMode};
pub use faulty::{Fault, FaultAction, FaultyDevice};
pub use file::{Engine, FileDevice, IoMode, KernelMount, Locking, OpenOptions};
#[cfg(target_os = "linux")]
pub use file::{LoopDevice, unescape, unmount};
pub use file::{has_writer, is_locked, range_in_use, same_image_in_use, writing_loop_device};
pub use held::{Catch, HeldDevice, Request};
pub use late::{Crowded, LateDevice, Lateness};
pub use mem::MemDevice;
pub use nbd::{NbdAddress, NbdDevice, NbdOptions, NbdServer};
pub use rate::RateDevice;
pub use sim::{Arrival, DeviceModel, DroppedWrites, MetaOnlyDevice, TimedDevice, Timer, Usage};
pub use stats::{IoCounters, IoStats};
pub use traced::{TraceRecord, TracedDevice};
pub use window::{OffsetDevice, ReadOnlyDevice};

use crate::bio::{Bio, BioData, BioFlags, BioOp};
use crate::error::{Error, Result};

/// The abilities of a device (Linux: `struct queue_limits`). Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The smallest unit of I/O: offsets and lengths of writes, discards and bios are multiples of it. This does not
    /// apply to `read_at`.
    pub logical_block: u32,
    /// The unit that the device writes atomically.
    pub physical_block: u32,
    /// The largest useful transfer; a longer one is accepted and split.
    pub max_transfer: u32,
    /// Whether a discard has an effect; otherwise it is ignored.
    pub discard: bool,
    /// False if a completed write is durable without a flush.
    pub volatile_cache: bool,
}

/// A device with blocks. All offsets and lengths are in bytes.
///
/// Duties of the implementer: any number of threads may call at the same time. Of two overlapping writes in flight,
/// either may win, but each reaches the medium entirely or fails. After a successful `flush`, everything that had
/// completed before the call survives a power cut. A failed flush is final: data may be lost.
pub trait BlockDevice: Send + Sync {
    /// The name for messages: the path of the image, for example.
    fn name(&self) -> &str;

    /// The size in bytes. It changes only by [`BlockDevice::measure`] and [`BlockDevice::grow`], and never shrinks.
    fn size_bytes(&self) -> u64;

    /// Checks whether the device has become longer since it was opened, and returns its size. By default it never has.
    ///
    /// # Errors
    /// [`Error::Io`] if the host cannot tell.
    fn measure(&self) -> Result<u64> {
        Ok(self.size_bytes())
    }

    /// Makes the device at least `bytes` long, durably. The new bytes read as zeros. By default this is not possible.
    ///
    /// # Errors
    /// [`Error::FixedSize`] if it cannot become longer, [`Error::ReadOnly`], or [`Error::Io`] if the host refuses.
    fn grow(&self, bytes: u64) -> Result<()> {
        check_fixed(self, bytes)
    }

    /// Sizes and abilities; they do not change.
    fn limits(&self) -> &Limits;

    /// Whether every change is refused with [`Error::ReadOnly`].
    fn read_only(&self) -> bool;

    /// Whether a well-formed read of whole blocks, write or flush never completes within `submit`. Then a thread may
    /// submit it regardless of the locks that it holds.
    fn completes_later(&self) -> bool {
        false
    }

    /// Whether every write that has ended is known to be durable, so that a flush would have no effect.
    fn is_flushed(&self) -> bool {
        false
    }

    /// Starts a request. May wait for a free tag, but never for the I/O itself unless the device completes inline.
    /// `end_io` may run before this returns.
    fn submit(&self, bio: Bio);

    /// Starts several requests, which may be cheaper than one after the other. Their order is not specified.
    fn submit_all(&self, bios: Vec<Bio>) {
        for bio in bios {
            self.submit(bio);
        }
    }

    /// The same as [`BlockDevice::submit_all`], for a thread that waits for them next. If that avoids waking another
    /// thread, the device may execute them before this returns.
    fn submit_all_and_wait(&self, bios: Vec<Bio>) {
        self.submit_all(bios);
    }

    /// Reads and waits. `buf` need not be aligned (an unaligned one may cost a copy).
    ///
    /// # Errors
    /// [`Error::OutOfRange`] past the end; [`Error::Io`] if the device fails the request; [`Error::Lost`] if the device
    /// drops it.
    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()>;

    /// The first byte at or after `offset` that may not be zero; `None` if there is none. A device that does not know
    /// its holes returns `offset`.
    ///
    /// # Errors
    /// [`Error::Io`] if the host cannot search the file; the default never fails.
    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        Ok((offset < self.size_bytes()).then_some(offset))
    }

    /// Writes the pieces one after the other and waits. They are durable on return only with `FUA`. Without data, a
    /// `PREFLUSH` or `FUA` is a flush.
    ///
    /// # Errors
    /// As [`BlockDevice::read_at`]; also [`Error::ReadOnly`], and [`Error::BadRequest`] if the range is not a multiple
    /// of the logical block.
    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()>;

    /// Makes everything durable that completed before the call.
    ///
    /// # Errors
    /// [`Error::Io`] if the device fails the request: the writes since the last flush may be lost.
    fn flush(&self) -> Result<()>;

    /// Marks the range as unused; a device without discard ignores it.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`].
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes the range read as zeros. This is durable on return only with `FUA`. The default writes zeros.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`]. A part of the range may be zero then.
    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::WriteZeroes, offset, len)?;
        let mut flags = flags;
        zero_in_steps(offset, len, |at, pieces| {
            self.write_at(at, pieces, flags)?;
            flags.remove(BioFlags::PREFLUSH);
            Ok(())
        })
    }

    /// The counts of requests that this device, or wrapper, has passed on so far.
    fn stats(&self) -> IoStats;
}

/// Rejects making a device longer.
pub(crate) fn check_fixed<D: BlockDevice + ?Sized>(dev: &D, wanted: u64) -> Result<()> {
    let size = dev.size_bytes();
    if wanted <= size { Ok(()) } else { Err(Error::FixedSize { device: dev.name().to_owned(), size, wanted }) }
}

static ZEROES: [u8; 65536] = [0; 65536];

/// Calls `write` with zeros for each MiB of a range.
pub(crate) fn zero_in_steps(offset: u64, len: u64, mut write: impl FnMut(u64, &[&[u8]]) -> Result<()>) -> Result<()> {
    let mut done = 0;
    while done < len {
        let step = (len - done).min(1 << 20);
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(16);
        let mut left = step as usize;
        while left > 0 {
            let n = left.min(ZEROES.len());
            pieces.push(&ZEROES[..n]);
            left -= n;
        }
        write(offset + done, &pieces)?;
        done += step;
    }
    Ok(())
}

/// Carries out `bio` through the waiting calls of `dev` and completes it. This is `submit` for a device that completes
/// inline.
pub fn submit_inline<D: BlockDevice + ?Sized>(dev: &D, mut bio: Bio) {
    let result = match check_shape(dev, &bio) {
        Err(e) => Err(e),
        Ok(()) => match (bio.op, &mut bio.data) {
            (BioOp::Read, BioData::Read(buf)) => dev.read_at(bio.offset, buf, bio.flags),
            (BioOp::Write, BioData::Write(vecs)) => {
                let pieces: Vec<&[u8]> = vecs.iter().map(|v| v.bytes()).collect();
                dev.write_at(bio.offset, &pieces, bio.flags)
            }
            (BioOp::Write, _) => dev.write_at(bio.offset, &[], bio.flags),
            (BioOp::Discard, _) => dev.discard(bio.offset, bio.len),
            (BioOp::WriteZeroes, _) => dev.write_zeroes(bio.offset, bio.len, bio.flags),
            (BioOp::Flush | BioOp::Read, _) => dev.flush(),
        },
    };
    bio.complete(result);
}

/// Rejects a bio whose memory does not match its operation or length.
pub(crate) fn check_shape<D: BlockDevice + ?Sized>(dev: &D, bio: &Bio) -> Result<()> {
    let fits = match (bio.op, &bio.data) {
        (BioOp::Read, BioData::Read(buf)) => buf.len() as u64 == bio.len,
        (BioOp::Write, BioData::Write(vecs)) => {
            let mut sum = 0u64;
            let inside = vecs.iter().all(|v| {
                sum = sum.saturating_add(v.len as u64);
                v.offset.checked_add(v.len).is_some_and(|end| end <= v.buf.len())
            });
            inside && sum == bio.len
        }
        (BioOp::Write | BioOp::Flush, BioData::None) => bio.len == 0,
        (BioOp::Discard | BioOp::WriteZeroes, BioData::None) => true,
        _ => false,
    };
    if fits { Ok(()) } else { Err(bad(dev, bio.op, bio.offset, bio.len, "its memory does not match it")) }
}

fn bad<D: BlockDevice + ?Sized>(dev: &D, op: BioOp, offset: u64, len: u64, why: &'static str) -> Error {
    Error::BadRequest { device: dev.name().to_owned(), op, offset, len, why }
}

/// The checks that every request must pass first: writable, inside the device, and (except reads) aligned.
pub(crate) fn check_range<D: BlockDevice + ?Sized>(dev: &D, op: BioOp, offset: u64, len: u64) -> Result<()> {
    if op != BioOp::Read && dev.read_only() {
        return Err(Error::ReadOnly { device: dev.name().to_owned(), op });
    }
    let size = dev.size_bytes();
    if offset.checked_add(len).is_none_or(|end| end > size) {
        return Err(Error::OutOfRange { device: dev.name().to_owned(), op, offset, len, size });
    }
    let block = u64::from(dev.limits().logical_block);
    if op != BioOp::Read && (!offset.is_multiple_of(block) || !len.is_multiple_of(block)) {
        return Err(bad(dev, op, offset, len, "not a multiple of the logical block"));
    }
    Ok(())
}

/// The number of bytes in `pieces`.
pub(crate) fn total_len(pieces: &[&[u8]]) -> u64 {
    pieces.iter().map(|p| p.len() as u64).sum()
}
