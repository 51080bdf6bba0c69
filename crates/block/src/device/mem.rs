//! [`MemDevice`]: a disk in memory that uses memory only for the bytes written to it.
//!
//! The image is a map of 64 KiB chunks, each of sixteen 4 KiB pages that may be absent. Chunks and pages are shared
//! between snapshots and copied when written, so a snapshot costs one pointer per chunk. An absent page reads from the
//! base device ([`MemDevice::over`]) if there is one, otherwise as zeros.
//!
//! What it does not do: lose writes; that is [`super::CrashDevice`].
//!
//! # Locking
//! The chunks are distributed over shards, each with its own lock (`block memory shard`), which is held while at most
//! one chunk is copied. A snapshot takes all of them in index order. No lock is held while the base device is read.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use extant_base::sync::RwLock;

use super::file::portable;
use super::{BlockDevice, IoCounters, IoStats, Limits, check_range, submit_inline, total_len};
use crate::bio::{Bio, BioFlags, BioOp};
use crate::error::{Error, Result};
use crate::ranks::MEM_SHARD;

const PAGE: usize = 4096;
const PAGES: usize = 16;
const CHUNK: u64 = (PAGE * PAGES) as u64;
/// More than the cores that are likely to write at the same time.
const SHARDS: usize = 32;
/// The distance that `next_data` searches: searching everything would make the duration of each call depend on the size
/// of the device.
const LOOK_AHEAD: u64 = 16 * CHUNK;

type Page = [u8; PAGE];
/// The pages of 64 KiB; `None` for a page that was never written.
type Chunk = [Option<Arc<Page>>; PAGES];
type Shard = RwLock<HashMap<u64, Arc<Chunk>>>;

/// The first offset at or after `at` at which `file` contains data: `u64::MAX` if there is none, `at` if the host
/// cannot tell.
#[cfg(target_os = "linux")]
fn next_data(file: &File, at: u64) -> std::io::Result<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(data) => Ok(data),
        Err(rustix::io::Errno::NXIO) => Ok(u64::MAX),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOTSUP) => Ok(at),
        Err(e) => Err(e.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn next_data(_: &File, at: u64) -> std::io::Result<u64> {
    Ok(at)
}

fn zero_page() -> &'static Arc<Page> {
    static ZERO: OnceLock<Arc<Page>> = OnceLock::new();
    ZERO.get_or_init(|| Arc::new([0; PAGE]))
}

/// A sparse disk in memory. Completes inline. Every write is "durable" immediately, but the device reports a volatile
/// cache so that the code above flushes as it would on a real disk.
pub struct MemDevice {
    name: String,
    size: u64,
    limits: Limits,
    read_only: bool,
    shards: Vec<Shard>,
    base: Option<Arc<dyn BlockDevice>>,
    counters: IoCounters,
}

impl MemDevice {
    /// `size` zero bytes, in logical blocks of 512.
    pub fn new(size: u64) -> MemDevice {
        let limits = Limits {
            logical_block: 512,
            physical_block: 4096,
            max_transfer: 1 << 20,
            discard: true,
            volatile_cache: true,
        };
        MemDevice::with_limits(size, limits)
    }

    /// `size` zero bytes with these limits.
    pub fn with_limits(size: u64, limits: Limits) -> MemDevice {
        MemDevice::build("memory".to_owned(), size, limits, None, (0..SHARDS).map(|_| HashMap::new()).collect())
    }

    /// The contents of `base`; writes are kept in memory. `base` must not change while this or a snapshot of it exists.
    pub fn over(base: Arc<dyn BlockDevice>) -> MemDevice {
        let maps = (0..SHARDS).map(|_| HashMap::new()).collect();
        let limits = Limits { discard: true, volatile_cache: true, ..*base.limits() };
        MemDevice::build(format!("memory over {}", base.name()), base.size_bytes(), limits, Some(base), maps)
    }

    /// An image that contains `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> MemDevice {
        let dev = MemDevice::new(bytes.len() as u64);
        dev.put(0, bytes);
        dev
    }

    /// Reads the image file at `path`. Its holes cost nothing.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be opened or read.
    pub fn load(path: &Path) -> Result<MemDevice> {
        let name = path.display().to_string();
        let open = |e: std::io::Error| Error::open(&name, e);
        let file = File::open(path).map_err(open)?;
        let size = file.metadata().map_err(open)?.len();
        let dev = MemDevice::new(size);
        let mut buf = vec![0u8; 1 << 20];
        let mut at = 0;
        while at < size {
            at = match next_data(&file, at).map_err(open)? {
                u64::MAX => break,
                data => data - data % PAGE as u64,
            };
            let n = (size - at).min(buf.len() as u64) as usize;
            portable::read_full(&file, at, &mut buf[..n]).map_err(open)?;
            for (i, page) in buf[..n].chunks(PAGE).enumerate() {
                if page.iter().any(|&b| b != 0) {
                    dev.put(at + (i * PAGE) as u64, page);
                }
            }
            at += n as u64;
        }
        Ok(MemDevice { name, ..dev })
    }

    /// The same as [`MemDevice::load`] for a file that contained `known` before another program changed it. Unchanged
    /// pages are shared with `known`.
    ///
    /// # Errors
    /// As [`MemDevice::load`]; the error of the device below `known`, if reading it fails.
    pub fn load_over(path: &Path, known: &MemDevice) -> Result<MemDevice> {
        let name = path.display().to_string();
        let open = |e: std::io::Error| Error::open(&name, e);
        let file = File::open(path).map_err(open)?;
        if file.metadata().map_err(open)?.len() != known.size {
            return MemDevice::load(path);
        }
        let dev = known.snapshot().named(&name);
        let (mut buf, mut was) = ([0u8; CHUNK as usize], [0u8; CHUNK as usize]);
        for at in (0..dev.size).step_by(CHUNK as usize) {
            let n = (dev.size - at).min(CHUNK) as usize;
            portable::read_full(&file, at, &mut buf[..n]).map_err(open)?;
            known.get(at, &mut was[..n])?;
            for (i, (page, was)) in buf[..n].chunks(PAGE).zip(was[..n].chunks(PAGE)).enumerate() {
                if page != was {
                    dev.store(at + (i * PAGE) as u64, &[page])?;
                }
            }
        }
        Ok(dev)
    }

    /// Makes the file at `path` contain the image. A new file gets holes where the image is zero. In an existing file
    /// of the same size, only the differences are written, so saving a state over a similar one costs little more than
    /// reading it.
    ///
    /// # Errors
    /// As [`MemDevice::save_over`].
    pub fn save(&self, path: &Path) -> Result<()> {
        self.save_over(path, None)
    }

    /// The same as [`MemDevice::save`] for a file that still contains `known`: chunks shared with `known` are skipped
    /// without being read. States of one history share most of them.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be created, read or written; the error of the device below this one, if
    /// reading it fails.
    pub fn save_over(&self, path: &Path, known: Option<&MemDevice>) -> Result<()> {
        let name = path.display().to_string();
        let open = |e: std::io::Error| Error::open(&name, e);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(open)?;
        if file.metadata().map_err(open)?.len() != self.size {
            file.set_len(0).map_err(open)?;
            file.set_len(self.size).map_err(open)?;
        }
        let (mut buf, mut was) = ([0u8; CHUNK as usize], [0u8; CHUNK as usize]);
        // The next offset at which the file contains data.
        let mut data = 0;
        for index in 0..self.size.div_ceil(CHUNK) {
            let at = index * CHUNK;
            let n = (self.size - at).min(CHUNK) as usize;
            if known.is_some_and(|known| self.shares(known, index)) {
                continue;
            }
            if data <= at {
                data = next_data(&file, at).map_err(open)?;
            }
            let hole = data >= at + n as u64;
            if hole && self.base.is_none() && !self.shard(index).read().contains_key(&index) {
                continue;
            }
            self.get(at, &mut buf[..n])?;
            match hole {
                true => was[..n].fill(0),
                false => portable::read_full(&file, at, &mut was[..n]).map_err(open)?,
            }
            let mut from = 0;
            let pages = buf[..n].chunks(PAGE).zip(was[..n].chunks(PAGE));
            for run in pages.collect::<Vec<_>>().chunk_by(|a, b| (a.0 == a.1) == (b.0 == b.1)) {
                let to = (from + run.len() * PAGE).min(n);
                if run[0].0 != run[0].1 {
                    portable::write_full(&file, at + from as u64, &[&buf[from..to]]).map_err(open)?;
                }
                from = to;
            }
        }
        Ok(())
    }

    /// Whether the chunk is the same memory in both images, or in neither.
    fn shares(&self, other: &MemDevice, index: u64) -> bool {
        if self.size != other.size || self.base.is_some() || other.base.is_some() {
            return false;
        }
        let ours = self.shard(index).read().get(&index).cloned();
        match (ours, other.shard(index).read_nested().get(&index)) {
            (Some(a), Some(b)) => Arc::ptr_eq(&a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    fn build(
        name: String,
        size: u64,
        limits: Limits,
        base: Option<Arc<dyn BlockDevice>>,
        maps: Vec<HashMap<u64, Arc<Chunk>>>,
    ) -> MemDevice {
        let shards = maps.into_iter().map(|m| RwLock::new(&MEM_SHARD, m)).collect();
        MemDevice { name, size, limits, read_only: false, shards, base, counters: IoCounters::default() }
    }

    /// Sets another name for messages.
    pub fn named(self, name: &str) -> MemDevice {
        MemDevice { name: name.to_owned(), ..self }
    }

    /// Makes the device reject writes.
    pub fn into_read_only(self) -> MemDevice {
        MemDevice { read_only: true, ..self }
    }

    /// The current image. Both sides share memory until one is written. Counters of the copy start at zero.
    pub fn snapshot(&self) -> MemDevice {
        let guards: Vec<_> = self.shards.iter().map(|s| s.read_nested()).collect();
        let maps = guards.iter().map(|g| (**g).clone()).collect();
        drop(guards);
        MemDevice::build(self.name.clone(), self.size, self.limits, self.base.clone(), maps)
    }

    /// The number of bytes of memory with written data, counted for this image alone even if they are shared.
    pub fn resident_bytes(&self) -> u64 {
        let pages = |c: &Arc<Chunk>| c.iter().flatten().count() as u64 * PAGE as u64;
        self.shards.iter().map(|s| s.read().values().map(pages).sum::<u64>()).sum()
    }

    /// The offset of the first byte in which the two images differ. Base devices are compared, too.
    ///
    /// # Errors
    /// The error of the device below either image, if reading it fails.
    pub fn first_difference(&self, other: &MemDevice) -> Result<Option<u64>> {
        if self.size != other.size {
            return Ok(Some(self.size.min(other.size)));
        }
        let same_base = match (&self.base, &other.base) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let (mut a, mut b) = (vec![0u8; CHUNK as usize], vec![0u8; CHUNK as usize]);
        for index in 0..self.size.div_ceil(CHUNK) {
            let mine = self.shard(index).read().get(&index).cloned();
            let theirs = other.shard(index).read().get(&index).cloned();
            let same = match (&mine, &theirs) {
                (None, None) => true,
                (Some(x), Some(y)) => Arc::ptr_eq(x, y),
                _ => false,
            };
            if same && same_base {
                continue;
            }
            let at = index * CHUNK;
            let n = (self.size - at).min(CHUNK) as usize;
            self.get(at, &mut a[..n])?;
            other.get(at, &mut b[..n])?;
            if let Some(i) = a[..n].iter().zip(&b[..n]).position(|(x, y)| x != y) {
                return Ok(Some(at + i as u64));
            }
        }
        Ok(None)
    }

    fn shard(&self, chunk: u64) -> &Shard {
        &self.shards[(chunk % SHARDS as u64) as usize]
    }

    /// The first byte at or after `offset` that is in a written page, or the end of the search.
    fn next_page(&self, offset: u64) -> Option<u64> {
        let end = self.size.min(offset.saturating_add(LOOK_AHEAD));
        let mut at = offset;
        while at < end {
            let index = at / CHUNK;
            let page = (at % CHUNK) as usize / PAGE;
            let written = self.shard(index).read().get(&index).and_then(|c| c[page..].iter().position(Option::is_some));
            match written {
                Some(0) => return Some(at),
                Some(pages) => return Some(index * CHUNK + ((page + pages) * PAGE) as u64),
                None => at = (index + 1) * CHUNK,
            }
        }
        (at < self.size).then_some(at)
    }

    /// Reads without counting. The range is inside the device.
    pub(super) fn get(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset + buf.len() as u64;
        // These parts are only in the base, and are read after the locks are released.
        let mut absent: Vec<(u64, usize, usize)> = Vec::new();
        let mut at = offset;
        while at < end {
            let index = at / CHUNK;
            let chunk_end = ((index + 1) * CHUNK).min(end);
            let shard = self.shard(index).read();
            let chunk = shard.get(&index);
            while at < chunk_end {
                let in_page = (at % PAGE as u64) as usize;
                let n = (PAGE - in_page).min((chunk_end - at) as usize);
                let to = (at - offset) as usize;
                match chunk.and_then(|c| c[((at % CHUNK) as usize) / PAGE].as_ref()) {
                    Some(page) => buf[to..to + n].copy_from_slice(&page[in_page..in_page + n]),
                    None if self.base.is_none() => buf[to..to + n].fill(0),
                    None => match absent.last_mut() {
                        Some((_, start, len)) if *start + *len == to => *len += n,
                        _ => absent.push((at, to, n)),
                    },
                }
                at += n as u64;
            }
        }
        if let Some(base) = &self.base {
            for (at, to, n) in absent {
                base.read_at(at, &mut buf[to..to + n], BioFlags::empty())?;
            }
        }
        Ok(())
    }

    /// Writes to a device without a base; cannot fail.
    fn put(&self, offset: u64, bytes: &[u8]) {
        let written = self.store(offset, &[bytes]);
        debug_assert!(written.is_ok() || self.base.is_some());
    }

    /// The page of the base around `at`, if a write that covers it only partly needs it.
    fn page_of_base(&self, at: u64) -> Result<Option<Arc<Page>>> {
        let Some(base) = &self.base else { return Ok(None) };
        let (index, slot) = (at / CHUNK, ((at % CHUNK) as usize) / PAGE);
        if self.shard(index).read().get(&index).is_some_and(|c| c[slot].is_some()) {
            return Ok(None);
        }
        let start = at - at % PAGE as u64;
        let n = (self.size - start).min(PAGE as u64) as usize;
        let mut page = [0; PAGE];
        base.read_at(start, &mut page[..n], BioFlags::empty())?;
        Ok(Some(Arc::new(page)))
    }

    /// Writes without counting. The range is inside the device.
    pub(super) fn store(&self, offset: u64, pieces: &[&[u8]]) -> Result<()> {
        let end = offset + total_len(pieces);
        if end == offset {
            return Ok(());
        }
        // Only the first and the last page can be covered partly. A base never changes, so these reads stay valid even
        // if another thread fills the page in the meantime.
        let mut first = if offset.is_multiple_of(PAGE as u64) && end - offset >= PAGE as u64 {
            None
        } else {
            self.page_of_base(offset)?
        };
        let last_page = (end - 1) / PAGE as u64;
        let mut last = if end.is_multiple_of(PAGE as u64) || last_page == offset / PAGE as u64 {
            None
        } else {
            self.page_of_base(end - 1)?
        };
        let mut pieces = pieces.iter().copied();
        let mut piece: &[u8] = &[];
        let mut at = offset;
        while at < end {
            let index = at / CHUNK;
            let chunk_end = ((index + 1) * CHUNK).min(end);
            let mut shard = self.shard(index).write();
            let chunk = Arc::make_mut(shard.entry(index).or_default());
            while at < chunk_end {
                let in_page = (at % PAGE as u64) as usize;
                let n = (PAGE - in_page).min((chunk_end - at) as usize);
                let slot = &mut chunk[((at % CHUNK) as usize) / PAGE];
                if n == PAGE && slot.as_mut().is_none_or(|p| Arc::get_mut(p).is_none()) {
                    // The page will be overwritten entirely, so a copy of the shared page would be useless.
                    *slot = Some(Arc::new([0; PAGE]));
                }
                let from_base = || {
                    let held = if at == offset { first.take() } else { None };
                    let held = held.or_else(|| if at / PAGE as u64 == last_page { last.take() } else { None });
                    held.unwrap_or_else(|| Arc::new([0; PAGE]))
                };
                let page = Arc::make_mut(slot.get_or_insert_with(from_base));
                let mut to = &mut page[in_page..in_page + n];
                while !to.is_empty() {
                    while piece.is_empty() {
                        piece = pieces.next().unwrap_or(&ZERO_TAIL);
                    }
                    let k = to.len().min(piece.len());
                    to[..k].copy_from_slice(&piece[..k]);
                    to = &mut to[k..];
                    piece = &piece[k..];
                }
                at += n as u64;
            }
        }
        Ok(())
    }

    /// Zeroes without counting. The range is inside the device.
    pub(super) fn zero(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset + len;
        let whole_from = offset.next_multiple_of(CHUNK);
        let whole_to = end - end % CHUNK;
        if self.base.is_none() && whole_from < whole_to {
            // Dropping the existing chunks is cheaper than visiting a range that may span terabytes.
            let (a, b) = (whole_from / CHUNK, whole_to / CHUNK);
            for shard in &self.shards {
                shard.write().retain(|&i, _| i < a || i >= b);
            }
            self.zero_pages(offset, whole_from)?;
            return self.zero_pages(whole_to, end);
        }
        self.zero_pages(offset, end)
    }

    fn zero_pages(&self, offset: u64, end: u64) -> Result<()> {
        let mut at = offset;
        while at < end {
            let page_end = (at - at % PAGE as u64 + PAGE as u64).min(end);
            if page_end - at < PAGE as u64 {
                self.store(at, &[&zero_page()[..(page_end - at) as usize]])?;
            } else {
                let mut shard = self.shard(at / CHUNK).write();
                let page = self.base.as_ref().map(|_| zero_page().clone());
                if page.is_some() || shard.contains_key(&(at / CHUNK)) {
                    let chunk = Arc::make_mut(shard.entry(at / CHUNK).or_default());
                    chunk[((at % CHUNK) as usize) / PAGE] = page;
                }
            }
            at = page_end;
        }
        Ok(())
    }
}

/// Zeros for pieces that end before their total length, which `total_len` excludes.
static ZERO_TAIL: [u8; PAGE] = [0; PAGE];

impl BlockDevice for MemDevice {
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
        self.read_only
    }

    fn submit(&self, bio: Bio) {
        submit_inline(self, bio);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], _flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::Read, offset, buf.len() as u64)?;
        self.counters.read(buf.len() as u64);
        self.get(offset, buf)
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let below = match &self.base {
            Some(base) => base.next_data(offset)?,
            None => None,
        };
        let own = self.next_page(offset);
        Ok(own.into_iter().chain(below).min().filter(|at| *at < self.size))
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let len = total_len(pieces);
        check_range(self, BioOp::Write, offset, len)?;
        self.counters.write(len, flags);
        self.store(offset, pieces)
    }

    fn flush(&self) -> Result<()> {
        self.counters.flush();
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self, BioOp::Discard, offset, len)?;
        self.counters.discard();
        self.zero(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::WriteZeroes, offset, len)?;
        self.counters.write_zeroes(flags);
        self.zero(offset, len)
    }

    fn stats(&self) -> IoStats {
        self.counters.get()
    }
}
