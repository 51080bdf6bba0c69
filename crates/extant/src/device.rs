//! Devices for images that are not files: memory, and anything with `Read + Write + Seek`.
//!
//! Main functions: [`from_io`], [`from_io_with_sync`], [`memory`]. [`BlockDevice`] is the trait to implement for
//! others; [`submit_inline`] is its method `submit` for a device that answers at once.
//!
//! # Locking
//! `library device` (942), around each call of the caller's object.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex};
use extant_block::BioOp;
use extant_block::device::MemDevice;
pub use extant_block::{Bio, BioFlags, BlockDevice, Error, IoCounters, IoStats, Limits, Result, submit_inline};

static CLASS: LockClass = LockClass::new("library device", 942);

/// The unit of I/O, in bytes.
const BLOCK: u32 = 512;

/// Memory of `size` bytes, all zeroes; what is not written takes none.
pub fn memory(size: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new(size).named("memory"))
}

/// A device over an object of the caller, of the size that it has now. `name` is for messages.
///
/// `Write::flush` must make durable what was written. Where it does less, as that of [`std::fs::File`] does, use
/// [`from_io_with_sync`].
///
/// ```
/// use std::io::Cursor;
///
/// let disk = extant::device::from_io("cursor", Cursor::new(vec![0; 16 << 20]))?;
/// let fs = extant::Image::device(disk).format()?.mount()?;
/// fs.write("/a", "text")?;
/// fs.unmount()?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The end cannot be found.
pub fn from_io<T>(name: &str, io: T) -> std::io::Result<Arc<dyn BlockDevice>>
where
    T: Read + Write + Seek + Send + 'static,
{
    from_io_with_sync(name, io, T::flush)
}

/// As [`from_io`], with a function that makes durable what was written, such as `std::fs::File::sync_all`.
///
/// # Errors
/// As [`from_io`].
pub fn from_io_with_sync<T, S>(name: &str, mut io: T, sync: S) -> std::io::Result<Arc<dyn BlockDevice>>
where
    T: Read + Write + Seek + Send + 'static,
    S: Fn(&mut T) -> std::io::Result<()> + Send + Sync + 'static,
{
    let size = io.seek(SeekFrom::End(0))?;
    let limits = Limits {
        logical_block: BLOCK,
        physical_block: 4096,
        max_transfer: 1 << 20,
        discard: false,
        volatile_cache: true,
    };
    let size = size - size % u64::from(BLOCK);
    let (name, io) = (name.to_owned(), Mutex::new(&CLASS, io));
    Ok(Arc::new(IoDevice { name, size, limits, io, sync, counters: IoCounters::default() }))
}

struct IoDevice<T, S> {
    name: String,
    size: u64,
    limits: Limits,
    io: Mutex<T>,
    sync: S,
    counters: IoCounters,
}

impl<T, S> IoDevice<T, S> {
    /// The checks of every request.
    fn check(&self, op: BioOp, offset: u64, len: u64) -> Result<()> {
        let (device, block) = (self.name.clone(), u64::from(BLOCK));
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(Error::OutOfRange { device, op, offset, len, size: self.size });
        }
        if op != BioOp::Read && !(offset.is_multiple_of(block) && len.is_multiple_of(block)) {
            return Err(Error::BadRequest { device, op, offset, len, why: "not a multiple of the logical block" });
        }
        Ok(())
    }
}

impl<T, S> BlockDevice for IoDevice<T, S>
where
    T: Read + Write + Seek + Send,
    S: Fn(&mut T) -> std::io::Result<()> + Send + Sync,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn read_only(&self) -> bool {
        false
    }

    fn submit(&self, bio: Bio) {
        submit_inline(self, bio);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], _flags: BioFlags) -> Result<()> {
        let len = buf.len() as u64;
        self.check(BioOp::Read, offset, len)?;
        self.counters.read(len);
        let mut io = self.io.lock();
        io.seek(SeekFrom::Start(offset))
            .and_then(|_| io.read_exact(buf))
            .map_err(|e| Error::io(&self.name, BioOp::Read, offset, len, e))
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.check(BioOp::Write, offset, len)?;
        if flags.contains(BioFlags::PREFLUSH) {
            self.flush()?;
        }
        if len > 0 {
            self.counters.write(len, BioFlags::empty());
            let mut io = self.io.lock();
            io.seek(SeekFrom::Start(offset))
                .and_then(|_| pieces.iter().try_for_each(|piece| io.write_all(piece)))
                .map_err(|e| Error::io(&self.name, BioOp::Write, offset, len, e))?;
        }
        if flags.contains(BioFlags::FUA) { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<()> {
        self.counters.flush();
        (self.sync)(&mut self.io.lock()).map_err(|e| Error::io(&self.name, BioOp::Flush, 0, 0, e))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check(BioOp::Discard, offset, len)
    }

    fn stats(&self) -> IoStats {
        self.counters.get()
    }
}
