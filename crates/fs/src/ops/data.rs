//! Reading and writing file content.
//!
//! There are two ways to write. In a *delayed* write, the data waits in folios; space is reserved for its blocks, but
//! they are not chosen yet. Files that are deleted soon never reach the device, and the others are allocated in one
//! piece. In a *write-through*, blocks are chosen immediately, and the data goes to the device from the caller's memory
//! without a copy. That suits large writes, and overwrites if the device itself caches (an image file without
//! O_DIRECT).
//!
//! # Locking
//! Writers hold `inode` (20) exclusively and readers hold it shared, across the I/O. Blocks are looked up under `map`
//! (50); the extent-status cache changes only under that lock.

use std::sync::Arc;
use std::time::Duration;

use extant_base::sync::atomic::Ordering;
use extant_block::{AlignedBuf, BioFlags};
use extant_cache::{AddressSpaceOps, WriteRefused, longest_pause_ns};
use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::{BlockNr, LogicalBlock};

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::ops::credits;
use crate::ops::disk_size::Move;
use crate::ops::flags::Change;
use crate::ops::mapping::Want;
use crate::options::Atime;
use crate::writeback::batch::WritebackReason;
use extant_es::EsState;

/// Writers of less than this in one call do not wait for memory.
const LIGHT_BYTES: u64 = 64 << 10;

/// Properties of a write, from its caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteFlags {
    /// Drop set-user-id and set-group-id bits and file capabilities.
    pub kill_privileges: bool,
    /// Drop only file capabilities.
    pub kill_capabilities: bool,
    /// The caller keeps the times itself (FUSE writeback cache).
    pub keep_times: bool,
    /// The data are whole pages of the caller's cache, in any order. Even an append-only file accepts them.
    pub from_cache: bool,
}

/// The size of the largest possible block, in bytes.
const BLOCK_SIZE_MAX: usize = 64 << 10;
/// The number of bytes to read ahead for a sequential reader in process.
const READAHEAD_BYTES: u64 = 512 << 10;

impl Filesystem {
    /// Reads up to `buf.len()` bytes at `pos`. Returns the number of bytes before the end of the file.
    ///
    /// # Errors
    /// [`Error::IsDirectory`]; [`Error::Invalid`] for other special files; [`Error::Unsupported`] for an encrypted file
    /// without its key; [`Error::Unverified`] for content that does not match the file's Merkle tree;
    /// [`Error::Corrupt`] for a damaged map; [`Error::Device`] if the device fails.
    pub fn read(&self, inode: &InodeRef, pos: u64, buf: &mut [u8]) -> Result<usize> {
        let kind = inode.file_type();
        if kind == Some(FileType::Directory) {
            return Err(Error::IsDirectory);
        }
        if kind != Some(FileType::Regular) {
            return Err(Error::Invalid("not a regular file"));
        }
        let n = {
            let _shared = inode.rw.read();
            self.watch(self.file_key(inode))?;
            let size = inode.size();
            let n = (buf.len() as u64).min(size.saturating_sub(pos)) as usize;
            if n == 0 {
                return Ok(0);
            }
            let protected = !self.rescues() && inode.meta.flags().contains(InodeFlags::VERITY);
            self.watch(match protected {
                true => self.read_verified(inode, pos, &mut buf[..n]),
                false => self.read_locked(inode, pos, &mut buf[..n]),
            })?;
            n
        };
        self.budget.relieve();
        self.touch_atime(inode);
        Ok(n)
    }

    /// Reports the reason of an error that the caller of a read cannot see. Under rescue, a message names it, once for
    /// each file. Damage has already been reported.
    pub fn report_hurt(&self, inode: &InodeRef, e: &Error) {
        let unread = matches!(e, Error::Device(_)) && self.options.rescue;
        if unread && !inode.hurt.swap(true, Ordering::Relaxed) {
            self.options.messages.say(format_args!("{}: {}: {e}", self.image(), inode.ino));
        }
    }

    /// Reads a range that lies within the file. The caller holds the inode's lock, at least shared.
    pub(crate) fn read_locked(&self, inode: &Arc<Inode>, pos: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(content) = self.inline_content(inode)? {
            let stored = content.get(usize::try_from(pos).unwrap_or(usize::MAX)..).unwrap_or_default();
            let (front, zeros) = buf.split_at_mut(stored.len().min(buf.len()));
            front.copy_from_slice(&stored[..front.len()]);
            zeros.fill(0);
            return Ok(());
        }
        let missing = inode.pages.read_cached(pos, buf);
        if missing.is_empty() {
            return Ok(());
        }
        if !inode.pages.keeps_clean() {
            for (from, to) in missing {
                self.read_device(inode, pos + from as u64, &mut buf[from..to])?;
            }
            return Ok(());
        }
        let bs = u64::from(self.geo.block_size);
        let size = inode.size();
        let end = pos + buf.len() as u64;
        let sequential = inode.read_end.swap(end, Ordering::Relaxed) == pos;
        let last = missing.len() - 1;
        for (i, (from, to)) in missing.into_iter().enumerate() {
            let start = (pos + from as u64) / bs * bs;
            let wanted = (pos + to as u64).div_ceil(bs) * bs;
            let mut stop = wanted;
            if sequential && i == last {
                // Stop at the first block in memory, because it may be newer than the device.
                let ahead = (stop + READAHEAD_BYTES).min(size.div_ceil(bs) * bs);
                stop = inode.pages.next_uptodate(stop / bs, ahead / bs) * bs;
            }
            let mut fresh = AlignedBuf::zeroed((stop - start) as usize);
            if let Err(e) = self.read_device(inode, start, &mut fresh) {
                if stop == wanted {
                    return Err(e);
                }
                // A failed readahead must not fail the caller's read.
                stop = wanted;
                fresh = AlignedBuf::zeroed((stop - start) as usize);
                self.read_device(inode, start, &mut fresh)?;
            }
            if stop > size {
                // The device may contain anything after the end of the file.
                fresh[(size.max(start) - start) as usize..].fill(0);
            }
            let within = (pos + from as u64 - start) as usize;
            buf[from..to].copy_from_slice(&fresh[within..within + (to - from)]);
            inode.pages.insert_clean(start, &fresh, (wanted.min(stop) - start) as usize);
        }
        Ok(())
    }

    /// Reads the mapped blocks from the device and decrypts them. Holes and unwritten blocks read as zeros.
    pub(crate) fn read_device(&self, inode: &Arc<Inode>, pos: u64, buf: &mut [u8]) -> Result<()> {
        let bits = self.geo.block_bits;
        let key = self.file_key(inode)?;
        let mut at = 0usize;
        while at < buf.len() {
            let abs = pos + at as u64;
            let lblk = u32::try_from(abs >> bits).map_err(|_| Error::FileTooBig)?;
            let within = abs & ((1 << bits) - 1);
            let want = (within + (buf.len() - at) as u64).div_ceil(1 << bits).min(u64::from(u32::MAX)) as u32;
            let (len, state) = self.status(inode, LogicalBlock(lblk), want)?;
            let n = ((u64::from(len) << bits) - within).min((buf.len() - at) as u64) as usize;
            let piece = &mut buf[at..at + n];
            match state {
                EsState::Written(block) => {
                    self.check_data_range(inode, block, len)?;
                    match key {
                        Some(key) => self.read_sealed(key, (lblk, block), within, piece)?,
                        None => self.dev.read_at((block.0 << bits) + within, piece, BioFlags::empty())?,
                    }
                }
                _ => piece.fill(0),
            }
            at += n;
        }
        Ok(())
    }

    /// Whether a read would update the access time now, by the mount's rule and the inode's flag. A server whose client
    /// caches reads calls this at open.
    pub fn atime_is_due(&self, inode: &InodeRef) -> bool {
        if self.options.atime == Atime::Never || self.is_read_only() {
            return false;
        }
        if !self.options.dir_atime && inode.file_type() == Some(FileType::Directory) {
            return false;
        }
        let now = self.now();
        let is_recent = self.options.atime != Atime::Always && inode.meta.has_recent_atime(now.seconds);
        !is_recent && !inode.meta.flags().contains(InodeFlags::NOATIME)
    }

    /// Updates the access time if the mount's rule requires it. The inode is written lazily.
    pub(crate) fn touch_atime(&self, inode: &InodeRef) {
        if !self.atime_is_due(inode) {
            return;
        }
        let now = self.now();
        // While the mount is frozen or being frozen, nothing may become dirty.
        let Some(_change) = self.try_begin_change() else { return };
        let mut m = inode.meta.write();
        m.desc.atime = now;
        m.lazy_times = true;
        drop(m);
        self.note_dirty(inode, 0);
    }

    /// Adds the inode to the flusher's list of dirty inodes.
    pub(crate) fn note_dirty(&self, inode: &Arc<Inode>, bytes: u64) {
        self.flusher.dirtied(u64::from(inode.ino.0), bytes, inode);
    }

    /// Writes `data` at `pos` and returns how much of it, from the start, was written. As in write(2), a write stops at
    /// the format's limit, and where space runs out; [`Error::NoSpace`] means that not even one byte fits. If much data
    /// is dirty, the writer waits.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::FileTooBig`] at the format's limit; [`Error::IsDirectory`]; [`Error::Invalid`] for
    /// other special files; [`Error::NotPermitted`] because of the inode's flags; [`Error::ReadOnly`]. [`Error::Lost`]
    /// if the inode is synchronous and the data did not become durable.
    pub fn write(&self, inode: &InodeRef, pos: u64, data: &[u8], flags: WriteFlags) -> Result<usize> {
        self.await_memory(data.len() as u64);
        let (done, dirtied) = self.write_data(inode, pos, data, flags)?;
        self.pause_writer(inode, dirtied);
        Ok(done)
    }

    /// As [`Filesystem::write`], for a server with few threads: it does not wait, but also returns how long to delay
    /// the reply to the writer. See [`Filesystem::is_full_of_dirty`].
    ///
    /// # Errors
    /// As [`Filesystem::write`].
    pub fn write_unpaced(
        &self,
        inode: &InodeRef,
        pos: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<(usize, Duration)> {
        if !self.options.threads {
            return Ok((self.write(inode, pos, data, flags)?, Duration::ZERO));
        }
        let (done, dirtied) = self.write_data(inode, pos, data, flags)?;
        let rate = self.bulk.rate();
        let for_memory = match dirtied >= LIGHT_BYTES && !self.budget.make_room(0) && self.budget.is_dirty() {
            true => longest_pause_ns(dirtied, rate),
            false => 0,
        };
        let pause = self.flusher.pause_ns(inode.listed(), dirtied, rate).max(for_memory);
        Ok((done, Duration::from_nanos(pause)))
    }

    /// Whether so much data is dirty that a writer must wait, regardless of how long it has already waited.
    pub fn is_full_of_dirty(&self) -> bool {
        self.flusher.is_full()
    }

    /// Returns the number of bytes written, and the bytes of blocks that became dirty.
    fn write_data(&self, inode: &InodeRef, pos: u64, data: &[u8], flags: WriteFlags) -> Result<(usize, u64)> {
        let op = self.begin_change()?;
        if inode.file_type() != Some(FileType::Regular) {
            return Err(if inode.is_dir() { Error::IsDirectory } else { Error::Invalid("not a regular file") });
        }
        let max = self.max_size(inode);
        if pos >= max && !data.is_empty() {
            return Err(Error::FileTooBig);
        }
        let data = &data[..(data.len() as u64).min(max.saturating_sub(pos)) as usize];
        if data.is_empty() {
            return Ok((0, 0));
        }
        inode.set_closed(false);
        self.change_data(inode, || {
            let (mut done, mut dirtied) = (0, 0);
            while done < data.len() {
                match op.retry_no_space(|| self.write_once(inode, pos + done as u64, &data[done..], flags)) {
                    Ok((n, newly)) => (done, dirtied) = (done + n, dirtied + newly),
                    // The write of the remaining data reports the error.
                    Err(e) if done > 0 && e.is_no_space() => break,
                    Err(e) => return Err(e),
                }
            }
            self.budget.relieve();
            Ok((done, dirtied))
        })
    }

    /// Waits until there is memory for the data of a writer: clean frames are evicted, and the flushers of all mounts
    /// that share the budget clean more. The wait is bounded by the time that the device needs to write this amount.
    /// Small writes do not wait, because they do not fill memory. No lock or handle is held.
    fn await_memory(&self, bytes: u64) {
        const AT_MOST: u64 = 1 << 20;
        let bytes = bytes.min(AT_MOST);
        if bytes < LIGHT_BYTES || self.budget.make_room(bytes) || !self.options.threads {
            return;
        }
        let now = || self.options.clock.now_ns();
        let until = now() + longest_pause_ns(bytes, self.bulk.rate());
        while self.budget.is_dirty() && !self.budget.make_room(bytes) {
            let Some(left) = until.checked_sub(now()).filter(|left| *left > 0) else { break };
            self.budget.wait_for_writes(bytes, Duration::from_nanos(left));
        }
    }

    /// Makes a writer pause for this number of dirty bytes. Without a flusher thread, the writer writes them itself. No
    /// lock or handle is held.
    fn pause_writer(&self, inode: &Inode, bytes: u64) {
        match self.options.threads {
            true => self.flusher.throttle(inode.listed(), bytes, self.bulk.rate()),
            false => self.flusher.throttle_alone(),
        }
    }

    /// Writes as much as there is space for at once, at least one byte. Returns the number of bytes written, and the
    /// bytes of blocks that became dirty.
    fn write_once(&self, inode: &InodeRef, pos: u64, data: &[u8], flags: WriteFlags) -> Result<(usize, u64)> {
        let _exclusive = inode.rw.write();
        let appends = flags.from_cache || pos >= inode.size();
        self.may_change(inode, if appends { Change::Append } else { Change::Write })?;
        self.file_key(inode)?;
        if flags.kill_privileges {
            self.kill_privileges(inode)?;
        } else if flags.kill_capabilities {
            self.kill_bits(inode, 0)?;
        }
        let written = self.write_locked(inode, pos, data)?;
        if !flags.keep_times {
            let now = self.now();
            let mut m = inode.meta.write();
            m.desc.mtime = now;
            m.desc.ctime = now;
            m.lazy_times = true;
            drop(m);
            self.note_dirty(inode, 0);
        }
        Ok(written)
    }

    /// As [`Filesystem::write_once`]. The caller holds the inode's lock exclusively, and the range is within the
    /// format's limits.
    fn write_locked(&self, inode: &Arc<Inode>, pos: u64, data: &[u8]) -> Result<(usize, u64)> {
        if self.write_inline(inode, pos, data)? {
            return Ok((data.len(), 0));
        }
        let bs = u64::from(self.geo.block_size);
        let old = inode.size();
        let end = pos + data.len() as u64;
        self.prepare_end(inode, pos)?;
        let aligned = pos.is_multiple_of(bs) && (end.is_multiple_of(bs) || end >= old);
        let through = match self.options.write_through_bytes {
            // The plaintext of an encrypted file exists only in folios.
            Some(min) if aligned && inode.crypt.get().is_none() && !inode.pages.overlaps(pos, data.len() as u64) => {
                data.len() as u64 >= min || self.all_written(inode, pos, data.len() as u64)?
            }
            _ => false,
        };
        if through {
            self.stats.writes_through.inc();
            if !inode.pages.is_empty() && inode.meta.read().desc.size < end {
                // The size on disk must not advance past data that waits to be written.
                self.write_and_wait(inode);
            }
            // [`Filesystem::prepare_end`] has already handled the end of the file.
            self.prepare_size(inode, pos.min(old))?;
            Ok((self.write_through(inode, pos, data)?, 0))
        } else {
            self.stats.writes_delayed.inc();
            self.write_delayed(inode, pos, data)
        }
    }

    /// Whether every block of the range is mapped and written, so that an overwrite needs no metadata.
    fn all_written(&self, inode: &Arc<Inode>, pos: u64, len: u64) -> Result<bool> {
        let bits = self.geo.block_bits;
        let (mut lblk, last) = ((pos >> bits) as u32, ((pos + len - 1) >> bits) as u32);
        loop {
            let (n, state) = self.status(inode, LogicalBlock(lblk), last - lblk + 1)?;
            if !matches!(state, EsState::Written(_)) {
                return Ok(false);
            }
            if n > last - lblk {
                return Ok(true);
            }
            lblk += n;
        }
    }

    /// Writes into folios, as much as blocks can be reserved for, but at least one byte. Returns the number of bytes
    /// written, and the bytes of blocks that became dirty.
    pub(crate) fn write_delayed(&self, inode: &Arc<Inode>, pos: u64, data: &[u8]) -> Result<(usize, u64)> {
        let bits = self.geo.block_bits;
        let bs = 1u64 << bits;
        let (old, end) = (inode.size(), pos + data.len() as u64);
        let (first, last) = (pos >> bits, (end - 1) >> bits);
        // Partial blocks need their old content, unless it is in memory already.
        let mut fills: Vec<(u64, AlignedBuf)> = Vec::new();
        for block in [first, last] {
            let whole = pos <= block * bs && end >= (block + 1) * bs;
            if whole || inode.pages.block_uptodate(block) || fills.iter().any(|(b, _)| *b == block) {
                continue;
            }
            fills.push((block, self.read_fill(inode, block, old)?));
        }
        loop {
            // Take the position before the map is read: a loss from here on cancels the reservations of its blocks.
            let before = inode.losses.position();
            let (placed, promised) = self.promise_holes(inode, first as u32, last as u32)?;
            let n = match u64::from(placed) {
                placed if placed <= first => return Err(self.missing_space(inode)),
                placed => ((placed << bits).min(end) - pos) as usize,
            };
            match inode.pages.write(pos, &data[..n], &fills, inode.size_cell(), before) {
                Ok(newly) => {
                    self.note_dirty(inode, newly);
                    return Ok((n, newly));
                }
                Err(refused) => {
                    self.break_promises(inode, promised);
                    if let WriteRefused::NeedsFill { block } = refused {
                        // The block's writeback has ended since the check, and the block was evicted. The device has
                        // its content now.
                        fills.push((block, self.read_fill(inode, block, old)?));
                    }
                }
            }
        }
    }

    /// Reads the current content of a block that a write covers in part, up to the file's `size`.
    fn read_fill(&self, inode: &Arc<Inode>, block: u64, size: u64) -> Result<AlignedBuf> {
        let bs = u64::from(self.geo.block_size);
        let mut content = AlignedBuf::zeroed(bs as usize);
        let valid = size.saturating_sub(block * bs).min(bs) as usize;
        if valid > 0 {
            self.read_device(inode, block * bs, &mut content[..valid])?;
        }
        Ok(content)
    }

    /// Reserves blocks for the holes in `first..=last`, from the start on, as long as there is space. Returns the first
    /// block without a reservation or place (`last` + 1 if there is none), and the reserved runs.
    fn promise_holes(&self, inode: &Arc<Inode>, first: u32, last: u32) -> Result<(u32, Vec<(u32, u32)>)> {
        let mut promised: Vec<(u32, u32)> = Vec::new();
        let mut lblk = first;
        loop {
            let (n, state) = match self.status(inode, LogicalBlock(lblk), last - lblk + 1) {
                Ok(found) => found,
                Err(e) => {
                    self.break_promises(inode, promised);
                    return Err(e);
                }
            };
            if state == EsState::Hole {
                let got = match self.promise(inode, LogicalBlock(lblk), n) {
                    Ok(got) => got,
                    Err(e) => {
                        self.break_promises(inode, promised);
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
    fn break_promises(&self, inode: &Inode, promised: Vec<(u32, u32)>) {
        let _map = inode.map.write();
        for (lblk, n) in promised {
            self.forget_status(inode, LogicalBlock(lblk), n.into());
        }
    }

    /// The reason why no block could be reserved for delayed data of the inode.
    fn missing_space(&self, inode: &Inode) -> Error {
        match self.blocks_within_quota(inode, 1) {
            Err(Error::QuotaExceeded) => Error::QuotaExceeded,
            _ => Error::NoSpace,
        }
    }

    /// Writes whole blocks (the last may end with the file): allocates the missing ones, then writes from the caller's
    /// memory. Returns how much was written before space ran out; the size is then where the data ends.
    fn write_through(&self, inode: &Arc<Inode>, pos: u64, data: &[u8]) -> Result<usize> {
        let bits = self.geo.block_bits;
        let mut end = pos + data.len() as u64;
        let mut at = 0usize;
        while at < data.len() {
            let abs = pos + at as u64;
            let lblk = LogicalBlock((abs >> bits) as u32);
            let want = ((data.len() - at) as u64).div_ceil(1 << bits).min(u64::from(u32::MAX)) as u32;
            let (len, state) = self.status(inode, lblk, want)?;
            match state {
                EsState::Written(block) => {
                    at += self.write_piece(block, len, &data[at..])?;
                }
                EsState::Unwritten(block) => {
                    let n = self.write_piece(block, len, &data[at..])?;
                    match self.finish_unwritten(inode, lblk, len, (abs + n as u64).min(end)) {
                        Err(e) if at > 0 && e.is_no_space() => break,
                        r => r?,
                    }
                    at += n;
                }
                EsState::Hole | EsState::Delayed if !self.alloc.cluster_size().is_one() => {
                    let filled = self.transact(self.allocate_credits(inode, len), |handle| {
                        self.fill_hole(handle, inode, lblk, len, WritebackReason::Background)?;
                        self.write_inode_data(handle, inode)
                    });
                    match filled {
                        Err(e) if at > 0 && e.is_no_space() => break,
                        r => r?,
                    }
                }
                EsState::Hole | EsState::Delayed => {
                    let want = if state == EsState::Delayed { Want::Promised { more: 0 } } else { Want::Written };
                    let chosen = match self.choose_blocks(inode, lblk, len, want, None, WritebackReason::Background) {
                        Err(e) if at > 0 && e.is_no_space() => break,
                        r => r?.0,
                    };
                    // Write the data first: after an error or a crash here, nothing refers to these blocks.
                    let n = match self.write_piece(chosen.start, chosen.len, &data[at..]) {
                        Ok(n) => n,
                        Err(e) => {
                            self.alloc.cancel(chosen);
                            return Err(e);
                        }
                    };
                    let (mapped, r) = self.map_written(inode, lblk, chosen, (abs + n as u64).min(end));
                    at += n.min((mapped as usize) << bits);
                    match r {
                        Err(e) if at > 0 && e.is_no_space() => break,
                        r => r?,
                    }
                }
            }
        }
        end = end.min(pos + at as u64);
        if inode.meta.read().desc.size < end {
            self.transact(credits::DISK_SIZE, |handle| self.move_size(handle, inode, end, Move::AtLeast))?;
        }
        Ok(at)
    }

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
