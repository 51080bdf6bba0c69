//! [`FileDevice`]: an image file or a block device of the host.
//!
//! Waiting calls are preadv and pwritev in the caller's thread. `submit` uses io_uring ([`Engine::IoUring`]), or is
//! carried out inline ([`Engine::Psync`]; also if io_uring is refused, and for small writes into the page cache). FUA
//! is RWF_DSYNC; a flush is fdatasync, and after a failed one every later flush fails. With [`IoMode::Direct`], memory
//! and reads that O_DIRECT does not accept are copied; writes are aligned by contract.
//!
//! An open image excludes other writers: for a file, by a lock of the open file description on its bytes; for a block
//! device, by O_EXCL. An image that the kernel has mounted is rejected ([`same_image_in_use`]).
//!
//! All of that is Linux. Other systems have [`Engine::Portable`] and `elsewhere`; on Linux, `EXTANT_ENGINE=portable`
//! chooses that engine for all files.
//!
//! If the host has no locks, no /proc or no /sys, reading still works, and [`FileDevice::unguarded`] lists the missing
//! protections.
//!
//! What it does not do: partitions, except as a byte range; growing an open image.
//!
//! # Locking
//! See [`flush`] and [`uring`]; reads and writes take none.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
mod flush;
#[cfg(target_os = "linux")]
mod in_use;
#[cfg(target_os = "linux")]
mod ioctl;
#[cfg(target_os = "linux")]
mod lock;
#[cfg(target_os = "linux")]
mod open;
mod options;
pub(crate) mod portable;
#[cfg(target_os = "linux")]
mod psync;
#[cfg(target_os = "linux")]
mod readers;
#[cfg(target_os = "linux")]
mod uring;

use std::fs::File;
use std::io::{self, Seek};
use std::path::Path;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::task;
#[cfg(target_os = "linux")]
use rustix::fs::FallocateFlags;

#[cfg(not(target_os = "linux"))]
use self::elsewhere as open;
#[cfg(not(target_os = "linux"))]
pub use self::elsewhere::{KernelMount, has_writer, is_locked, range_in_use, same_image_in_use, writing_loop_device};
use self::flush::{FlushStream, SharedPoison};
#[cfg(target_os = "linux")]
pub use self::in_use::{
    KernelMount, LoopDevice, range_in_use, same_image_in_use, unescape, unmount, writing_loop_device,
};
#[cfg(target_os = "linux")]
pub use self::lock::{has_writer, is_locked};
pub use self::options::{Locking, OpenOptions};
#[cfg(target_os = "linux")]
use self::uring::Ring;
use super::{
    BlockDevice, IoCounters, IoStats, Limits, check_fixed, check_range, submit_inline, total_len, zero_in_steps,
};
use crate::bio::{Bio, BioFlags, BioOp};
use crate::buf::AlignedBuf;
use crate::error::{Error, Result};

/// Whether the host's page cache is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// O_DIRECT; falls back to `Buffered` on a file system without it.
    Direct,
    /// Reads and writes go through the page cache; a flush is an fdatasync.
    Buffered,
}

/// The way in which [`BlockDevice::submit`] is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// System calls in the submitting thread.
    Psync,
    /// One ring per device. Falls back to `Psync` if the kernel refuses it, and to `Portable` on systems other than
    /// Linux.
    IoUring,
    /// Calls that every system has, in the submitting thread: [`IoMode::Buffered`], without discards and holes.
    Portable,
}

/// The maximum size of a copy for memory that O_DIRECT does not accept, in bytes.
const BOUNCE_MAX: usize = 1 << 20;

/// The state that the engines share.
struct FileCore {
    name: String,
    data: File,
    poison: SharedPoison,
    stream: FlushStream,
    start: u64,
    size: AtomicU64,
    /// Whether the device ends at the end of the file.
    is_to_end: bool,
    limits: Limits,
    read_only: bool,
    direct: bool,
    /// Whether only portable calls are used; always true on systems other than Linux.
    portable: bool,
    #[cfg(target_os = "linux")]
    block_device: bool,
    counters: IoCounters,
    /// Becomes false when this kernel or file system has refused it.
    has_dsync: AtomicBool,
    #[cfg(target_os = "linux")]
    has_discard: AtomicBool,
    #[cfg(target_os = "linux")]
    has_zero_range: AtomicBool,
}

/// An image file or block device. See the module.
///
/// A process that forks into the background must open it afterwards, because the completion thread does not survive a
/// fork.
pub struct FileDevice {
    // This field is first, so that requests in flight end before the file is closed.
    #[cfg(target_os = "linux")]
    ring: Option<Ring>,
    core: Arc<FileCore>,
    unguarded: Vec<String>,
}

impl FileDevice {
    /// Opens the image file or block device at `path`.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has it open for writing (or if this call wants to write and another process
    /// reads), or if the kernel has it mounted; [`Error::NoLocks`] if it is to be written and the host cannot lock
    /// files ([`Locking`]); [`Error::Open`] for everything else.
    ///
    /// ```
    /// use extant_block::device::{BlockDevice, FileDevice, OpenOptions};
    /// use extant_block::{BioFlags, Error};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let image = dir.path().join("disk.img");
    /// std::fs::write(&image, [7; 8192])?;
    ///
    /// let device = FileDevice::open(&image, OpenOptions::read_only())?;
    /// let mut bytes = [0; 100];
    /// device.read_at(4096, &mut bytes, BioFlags::empty())?;
    /// assert_eq!(bytes, [7; 100]);
    /// // A reader excludes writers, and a writer excludes readers.
    /// assert!(matches!(FileDevice::open(&image, OpenOptions::default()), Err(Error::Busy { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<FileDevice> {
        FileDevice::open_or_create(path.as_ref(), &options, None)
    }

    /// The same as [`FileDevice::open`], but creates the file if it is missing, and makes it at least `size` bytes
    /// long. Existing contents are kept.
    ///
    /// # Errors
    /// As [`FileDevice::open`]; also [`Error::Open`] if the file cannot be created or extended.
    pub fn create(path: impl AsRef<Path>, size: u64, options: OpenOptions) -> Result<FileDevice> {
        FileDevice::open_or_create(path.as_ref(), &options, Some(size))
    }

    fn open_or_create(path: &Path, options: &OpenOptions, create: Option<u64>) -> Result<FileDevice> {
        let name = options.shown_as.clone().unwrap_or_else(|| path.display().to_string());
        let portable = !cfg!(target_os = "linux") || options.engine == Engine::Portable || portable::is_asked_for();
        let mut options = options.clone();
        if portable {
            (options.engine, options.io) = (Engine::Portable, IoMode::Buffered);
        }
        let opened = open::open(path, &name, &options, create)?;
        let poison = flush::new_poison();
        let stream_file = open::reopen(&opened.data, path, options.read_only).map_err(|e| Error::open(&name, e))?;
        let core = Arc::new(FileCore {
            stream: FlushStream::new(stream_file, poison.clone()),
            name,
            data: opened.data,
            poison,
            start: opened.start,
            size: AtomicU64::new(opened.size),
            is_to_end: options.len.is_none(),
            limits: opened.limits,
            read_only: options.read_only,
            direct: opened.io == IoMode::Direct,
            portable,
            #[cfg(target_os = "linux")]
            block_device: opened.block_device,
            counters: IoCounters::default(),
            has_dsync: AtomicBool::new(!portable),
            #[cfg(target_os = "linux")]
            has_discard: AtomicBool::new(!portable),
            #[cfg(target_os = "linux")]
            has_zero_range: AtomicBool::new(!portable),
        });
        #[cfg(target_os = "linux")]
        let ring = match options.engine {
            Engine::Psync | Engine::Portable => None,
            // If a kernel or container refuses the ring, that is no reason to reject the image.
            Engine::IoUring => {
                open::reopen(&core.data, path, core.read_only).and_then(|file| Ring::new(core.clone(), file)).ok()
            }
        };
        Ok(FileDevice {
            #[cfg(target_os = "linux")]
            ring,
            core,
            unguarded: opened.unguarded,
        })
    }

    /// Identifies the file of the host, even if it has been renamed or unlinked: the numbers of its device and of its
    /// inode.
    ///
    /// # Errors
    /// [`Error::Open`] if fstat(2) fails.
    #[cfg(unix)]
    pub fn host_file(&self) -> Result<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        let meta = self.core.data.metadata().map_err(|e| Error::open(&self.core.name, e))?;
        Ok((meta.dev(), meta.ino()))
    }

    /// The protections of an open image that this host could not provide, as reasons for a message. Usually empty.
    pub fn unguarded(&self) -> &[String] {
        &self.unguarded
    }

    /// The engine in use, after any fallback.
    pub fn engine(&self) -> Engine {
        match (self.core.portable, self.has_ring()) {
            (true, _) => Engine::Portable,
            (_, true) => Engine::IoUring,
            (_, false) => Engine::Psync,
        }
    }

    fn has_ring(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.ring.is_some();
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Whether the page cache is in use, after any fallback.
    pub fn io_mode(&self) -> IoMode {
        if self.core.direct { IoMode::Direct } else { IoMode::Buffered }
    }
}

/// The maximum size of a write into the page cache that costs less than the wake-up for its completion on another
/// thread.
#[cfg(target_os = "linux")]
const INLINE_BYTES: u64 = 128 << 10;

impl FileCore {
    /// Whether the submitter carries out the bio itself although there is a ring.
    #[cfg(target_os = "linux")]
    fn takes_inline(&self, bio: &Bio) -> bool {
        !self.direct
            && bio.op == BioOp::Write
            && bio.len <= INLINE_BYTES
            && !bio.flags.intersects(BioFlags::FUA | BioFlags::PREFLUSH)
    }

    fn error(&self, op: BioOp, offset: u64, len: u64, source: io::Error) -> Error {
        Error::io(&self.name, op, offset, len, source)
    }

    fn shared_error(&self, op: BioOp, offset: u64, len: u64, source: Arc<io::Error>) -> Error {
        Error::Io { device: self.name.clone(), op, offset, len, source }
    }

    fn aligned(&self, bytes: &[u8]) -> bool {
        !self.direct || (bytes.as_ptr().addr().is_multiple_of(512) && self.whole_blocks(bytes.len() as u64))
    }

    fn whole_blocks(&self, n: u64) -> bool {
        n.is_multiple_of(u64::from(self.limits.logical_block))
    }

    /// Fills `buf` from byte `at` of the file. With O_DIRECT, everything must be aligned.
    fn read_plain(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if !self.portable {
            return psync::read_full(&self.data, at, buf, self.direct);
        }
        portable::read_full(&self.data, at, buf)
    }

    /// The same as [`FileCore::read_plain`], but only the first `need` bytes must exist.
    fn read_at_least(&self, at: u64, buf: &mut [u8], need: usize) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if !self.portable {
            return psync::read_at_least(&self.data, at, buf, need);
        }
        if portable::read_some(&self.data, at, buf)? < need { Err(portable::short_file()) } else { Ok(()) }
    }

    /// Writes the pieces from byte `at` of the file on. Returns false if `dsync` is not possible here.
    fn write_plain(&self, at: u64, pieces: &[&[u8]], dsync: bool) -> io::Result<bool> {
        #[cfg(target_os = "linux")]
        if !self.portable {
            return psync::write_full(&self.data, at, pieces, dsync);
        }
        portable::write_full(&self.data, at, pieces)?;
        Ok(!dsync)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let at = self.start + offset;
        if !self.direct || (self.whole_blocks(at) && self.aligned(buf)) {
            return self.read_plain(at, buf);
        }
        let block = u64::from(self.limits.logical_block);
        let mut done = 0;
        let mut bounce = AlignedBuf::zeroed((buf.len() + 2 * block as usize).min(BOUNCE_MAX));
        while done < buf.len() {
            let from = at + done as u64;
            let skip = (from % block) as usize;
            let n = (buf.len() - done).min(bounce.len() - skip - block as usize);
            let whole = (skip + n).next_multiple_of(block as usize);
            // The last block of a file may be incomplete, but the requested bytes are inside it.
            self.read_at_least(from - skip as u64, &mut bounce[..whole], skip + n)?;
            buf[done..done + n].copy_from_slice(&bounce[skip..skip + n]);
            done += n;
        }
        Ok(())
    }

    /// Writes the pieces, durably if `fua`.
    fn write(&self, offset: u64, pieces: &[&[u8]], fua: bool) -> std::result::Result<(), Arc<io::Error>> {
        let dsync = fua && self.has_dsync.load(Ordering::Relaxed);
        if self.direct {
            task::before_sleep();
        }
        let done = if pieces.iter().all(|p| self.aligned(p)) {
            self.write_plain(self.start + offset, pieces, dsync)
        } else {
            self.write_bounced(offset, pieces, dsync)
        };
        match done {
            Ok(true) if dsync || !fua => Ok(()),
            Ok(durable) => {
                if !durable {
                    self.has_dsync.store(false, Ordering::Relaxed);
                    return self.write(offset, pieces, fua);
                }
                self.stream.flush()
            }
            Err(e) => {
                let e = Arc::new(e);
                if dsync {
                    // The kernel may have reported the loss of earlier writes to this call.
                    flush::poison(&self.poison, &e);
                }
                Err(e)
            }
        }
    }

    fn write_bounced(&self, offset: u64, pieces: &[&[u8]], dsync: bool) -> io::Result<bool> {
        let total = total_len(pieces);
        let mut bounce = AlignedBuf::zeroed(total.min(BOUNCE_MAX as u64) as usize);
        let mut bytes = pieces.iter().copied();
        let mut piece: &[u8] = &[];
        let mut done = 0;
        while done < total {
            let n = (total - done).min(bounce.len() as u64) as usize;
            let mut to = &mut bounce[..n];
            while !to.is_empty() {
                if piece.is_empty() {
                    piece = bytes.next().ok_or(io::ErrorKind::InvalidInput)?;
                }
                let k = piece.len().min(to.len());
                to[..k].copy_from_slice(&piece[..k]);
                to = &mut to[k..];
                piece = &piece[k..];
            }
            if !self.write_plain(self.start + offset + done, &[&bounce[..n]], dsync)? {
                return Ok(false);
            }
            done += n as u64;
        }
        Ok(true)
    }

    /// The size of the file or block device, in bytes.
    fn end(&self) -> io::Result<u64> {
        if self.is_file() {
            return Ok(self.data.metadata()?.len());
        }
        // Requests contain their offsets, so no other call uses the position.
        let mut data = &self.data;
        data.seek(io::SeekFrom::End(0))
    }

    /// Makes the file end at byte `end`, durably. If the file is already longer, it is not changed.
    fn lengthen(&self, end: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        open::within_limit(end)?;
        if self.end()? < end {
            self.data.set_len(end)?;
        }
        self.data.sync_all()
    }

    fn is_file(&self) -> bool {
        #[cfg(target_os = "linux")]
        return !self.block_device;
        #[cfg(not(target_os = "linux"))]
        true
    }

    fn flush_for(&self, op: BioOp, offset: u64, len: u64) -> Result<()> {
        self.stream.flush().map_err(|e| self.shared_error(op, offset, len, e))
    }
}

#[cfg(target_os = "linux")]
impl FileCore {
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 || !self.has_discard.load(Ordering::Relaxed) {
            return Ok(());
        }
        let at = self.start + offset;
        let done = if self.block_device {
            match ioctl::blkdiscard(&self.data, at, len) {
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
                other => other.map(|()| true),
            }
        } else {
            psync::fallocate(&self.data, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
        };
        if !done? {
            self.has_discard.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns false if the zeros must be written.
    fn zero_range(&self, offset: u64, len: u64, unmap: bool) -> io::Result<bool> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if unmap && !self.portable && psync::fallocate(&self.data, hole, self.start + offset, len)? {
            return Ok(true);
        }
        if !self.has_zero_range.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let done = psync::fallocate(&self.data, mode, self.start + offset, len)?;
        if !done {
            self.has_zero_range.store(false, Ordering::Relaxed);
        }
        Ok(done)
    }
}

/// The system has no discards, and no zeroing without a write.
#[cfg(not(target_os = "linux"))]
impl FileCore {
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn zero_range(&self, _: u64, _: u64, _: bool) -> io::Result<bool> {
        Ok(false)
    }
}

impl Drop for FileCore {
    fn drop(&mut self) {
        // The kernel keeps the files of an io_uring open for a short time after the ring is closed. The lock must be
        // released now, because the image may be opened again immediately. If there is no lock, this does nothing.
        #[cfg(target_os = "linux")]
        lock::unlock(&self.data);
    }
}

impl BlockDevice for FileCore {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn measure(&self) -> Result<u64> {
        if self.is_to_end {
            let end = self.end().map_err(|e| self.error(BioOp::Read, 0, 0, e))?;
            self.size.fetch_max(end.saturating_sub(self.start), Ordering::AcqRel);
        }
        Ok(self.size_bytes())
    }

    fn grow(&self, bytes: u64) -> Result<()> {
        if bytes > self.measure()? && self.is_to_end && self.is_file() {
            if self.read_only {
                return Err(Error::ReadOnly { device: self.name.clone(), op: BioOp::Write });
            }
            let longer = self.start.checked_add(bytes).ok_or_else(|| io::ErrorKind::FileTooLarge.into());
            let longer = longer.and_then(|end| self.lengthen(end));
            longer.map_err(|e| self.error(BioOp::Write, self.size_bytes(), 0, e))?;
            self.size.fetch_max(bytes, Ordering::AcqRel);
        }
        check_fixed(self, bytes)
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn submit(&self, bio: Bio) {
        submit_inline(self, bio);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], _flags: BioFlags) -> Result<()> {
        let len = buf.len() as u64;
        check_range(self, BioOp::Read, offset, len)?;
        self.counters.read(len);
        self.read(offset, buf).map_err(|e| self.error(BioOp::Read, offset, len, e))
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let size = self.size_bytes();
        if offset >= size {
            return Ok(None);
        }
        #[cfg(target_os = "linux")]
        if !self.portable {
            let found = match psync::next_data(&self.data, self.start + offset) {
                // There is no data after the last hole.
                Ok(None) => return Ok(None),
                Ok(Some(at)) => at - self.start,
                Err(e) => return Err(self.error(BioOp::Read, offset, size - offset, e)),
            };
            return Ok((found < size).then_some(found));
        }
        Ok(Some(offset))
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let len = total_len(pieces);
        check_range(self, BioOp::Write, offset, len)?;
        self.counters.write(len, flags);
        let fua = flags.contains(BioFlags::FUA);
        if flags.contains(BioFlags::PREFLUSH) || (len == 0 && fua) {
            self.flush_for(BioOp::Write, offset, len)?;
        }
        if len == 0 {
            return Ok(());
        }
        self.write(offset, pieces, fua).map_err(|e| self.shared_error(BioOp::Write, offset, len, e))
    }

    fn flush(&self) -> Result<()> {
        self.counters.flush();
        self.flush_for(BioOp::Flush, 0, 0)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self, BioOp::Discard, offset, len)?;
        self.counters.discard();
        FileCore::discard(self, offset, len).map_err(|e| self.error(BioOp::Discard, offset, len, e))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::WriteZeroes, offset, len)?;
        self.counters.write_zeroes(flags);
        if flags.contains(BioFlags::PREFLUSH) {
            self.flush_for(BioOp::WriteZeroes, offset, len)?;
        }
        let unmap = flags.contains(BioFlags::UNMAP);
        if len > 0
            && !self.zero_range(offset, len, unmap).map_err(|e| self.error(BioOp::WriteZeroes, offset, len, e))?
        {
            zero_in_steps(offset, len, |at, pieces| {
                let n = total_len(pieces);
                self.write(at, pieces, false).map_err(|e| self.shared_error(BioOp::WriteZeroes, at, n, e))
            })?;
        }
        if flags.contains(BioFlags::FUA) {
            self.flush_for(BioOp::WriteZeroes, offset, len)?;
        }
        Ok(())
    }

    fn stats(&self) -> IoStats {
        self.counters.get()
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        self.core.name()
    }

    fn size_bytes(&self) -> u64 {
        self.core.size_bytes()
    }

    fn measure(&self) -> Result<u64> {
        self.core.measure()
    }

    fn grow(&self, bytes: u64) -> Result<()> {
        self.core.grow(bytes)
    }

    fn limits(&self) -> &Limits {
        self.core.limits()
    }

    fn read_only(&self) -> bool {
        self.core.read_only()
    }

    fn completes_later(&self) -> bool {
        // Through the page cache, the submitter carries out most writes itself.
        self.has_ring() && self.core.direct && self.core.whole_blocks(self.core.start)
    }

    fn submit(&self, bio: Bio) {
        #[cfg(target_os = "linux")]
        if let Some(ring) = &self.ring
            && !self.core.takes_inline(&bio)
        {
            return ring.submit(vec![bio]);
        }
        self.core.submit(bio);
    }

    fn submit_all(&self, bios: Vec<Bio>) {
        #[cfg(target_os = "linux")]
        if let Some(ring) = &self.ring {
            let (inline, later): (Vec<Bio>, Vec<Bio>) = bios.into_iter().partition(|b| self.core.takes_inline(b));
            // The requests that complete asynchronously are first.
            ring.submit(later);
            return self.core.submit_all(inline);
        }
        self.core.submit_all(bios);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        self.core.read_at(offset, buf, flags)
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.core.next_data(offset)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.core.write_at(offset, pieces, flags)
    }

    fn flush(&self) -> Result<()> {
        self.core.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        BlockDevice::discard(&*self.core, offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        self.core.write_zeroes(offset, len, flags)
    }

    fn stats(&self) -> IoStats {
        self.core.stats()
    }
}
