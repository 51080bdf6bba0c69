//! Reading and writing file content.
//!
//! There are two ways to write. In a *delayed* write, the data waits in folios; space is reserved for its blocks, but
//! they are not chosen yet. Files that are deleted soon never reach the device, and the others are allocated in one
//! piece. In a *write-through*, blocks are chosen immediately, and the data goes to the device from the caller's memory
//! without a copy. That suits large writes, and overwrites if the device itself caches (an image file without
//! O_DIRECT).
//!
//! Main functions: [`Filesystem::read`], [`Filesystem::write`].
//!
//! What it does not do: fill or empty folios (`pages.rs`), or choose blocks (`mapping.rs`).
//!
//! # Locking
//! Writers hold `inode` (20) exclusively and readers hold it shared, across the I/O. Blocks are looked up under `map`
//! (50); the extent-status cache changes only under that lock.

use std::sync::Arc;

use extant_ondisk::LogicalBlock;
use extant_ondisk::inode::{FileType, InodeFlags};

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::maps::Maps;
use crate::operation::Operation;
use crate::ops::credits;
use crate::ops::disk_size::Move;
use crate::ops::flags::Change;
use crate::ops::mapping::Want;
use crate::ops::pages::ContentView;
use crate::options::Atime;
use crate::volume::Volume;
use crate::writeback::batch::WritebackReason;
use extant_es::EsState;

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

impl Volume {
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
}

impl Maps {
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
                EsState::Hole | EsState::Delayed if !self.placement.alloc.cluster_size().is_one() => {
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
                            self.placement.alloc.cancel(chosen);
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
}

impl ContentView<'_> {
    /// As [`Filesystem::write`], but does not wait if much data is dirty. Also returns the bytes of blocks that became
    /// dirty.
    pub(crate) fn write(&self, pos: u64, data: &[u8], flags: WriteFlags) -> Result<(usize, u64)> {
        let op = Operation::begin(self.fs)?;
        if self.inode.file_type() != Some(FileType::Regular) {
            return Err(if self.inode.is_dir() { Error::IsDirectory } else { Error::Invalid("not a regular file") });
        }
        let max = self.max_size();
        if pos >= max && !data.is_empty() {
            return Err(Error::FileTooBig);
        }
        let data = &data[..(data.len() as u64).min(max.saturating_sub(pos)) as usize];
        if data.is_empty() {
            return Ok((0, 0));
        }
        self.inode.set_closed(false);
        self.fs.change_data(self.inode, || {
            let (mut done, mut dirtied) = (0, 0);
            while done < data.len() {
                match op.retry_no_space(|| self.write_once(pos + done as u64, &data[done..], flags)) {
                    Ok((n, newly)) => (done, dirtied) = (done + n, dirtied + newly),
                    // The write of the remaining data reports the error.
                    Err(e) if done > 0 && e.is_no_space() => break,
                    Err(e) => return Err(e),
                }
            }
            self.fs.budget.relieve();
            Ok((done, dirtied))
        })
    }

    /// Writes as much as there is space for at once, at least one byte. Returns the number of bytes written, and the
    /// bytes of blocks that became dirty.
    fn write_once(&self, pos: u64, data: &[u8], flags: WriteFlags) -> Result<(usize, u64)> {
        let (fs, inode) = (self.fs, self.inode);
        let _exclusive = inode.rw.write();
        let appends = flags.from_cache || pos >= inode.size();
        inode.may_change(if appends { Change::Append } else { Change::Write })?;
        fs.encryption(inode).file_key()?;
        if flags.kill_privileges {
            self.kill_privileges()?;
        } else if flags.kill_capabilities {
            self.kill_bits(0)?;
        }
        let written = self.write_locked(pos, data)?;
        if !flags.keep_times {
            let now = fs.now();
            let mut m = inode.meta.write();
            m.desc.mtime = now;
            m.desc.ctime = now;
            m.lazy_times = true;
            drop(m);
            fs.writeback.note_dirty(inode.ino, inode, 0);
        }
        Ok(written)
    }

    /// As [`ContentView::write_once`]. The caller holds the inode's lock exclusively, and the range is within the
    /// format's limits.
    fn write_locked(&self, pos: u64, data: &[u8]) -> Result<(usize, u64)> {
        let (fs, inode) = (self.fs, self.inode);
        if fs.inline(inode).write(pos, data)? {
            return Ok((data.len(), 0));
        }
        let bs = u64::from(fs.geo.block_size);
        let old = inode.size();
        let end = pos + data.len() as u64;
        self.prepare_end(pos)?;
        let aligned = pos.is_multiple_of(bs) && (end.is_multiple_of(bs) || end >= old);
        let through = match fs.options.write_through_bytes {
            // The plaintext of an encrypted file exists only in folios.
            Some(min) if aligned && inode.crypt.get().is_none() && !inode.pages.overlaps(pos, data.len() as u64) => {
                data.len() as u64 >= min || self.all_written(pos, data.len() as u64)?
            }
            _ => false,
        };
        if through {
            fs.stats.writes_through.inc();
            if !inode.pages.is_empty() && inode.meta.read().desc.size < end {
                // The size on disk must not advance past data that waits to be written.
                self.write_and_wait();
            }
            // [`ContentView::prepare_end`] has already handled the end of the file.
            self.prepare_size(pos.min(old))?;
            Ok((fs.write_through(inode, pos, data)?, 0))
        } else {
            fs.stats.writes_delayed.inc();
            self.write_delayed(pos, data)
        }
    }

    /// Whether every block of the range is mapped and written, so that an overwrite needs no metadata.
    fn all_written(&self, pos: u64, len: u64) -> Result<bool> {
        let bits = self.fs.geo.block_bits;
        let (mut lblk, last) = ((pos >> bits) as u32, ((pos + len - 1) >> bits) as u32);
        loop {
            let (n, state) = self.fs.status(self.inode, LogicalBlock(lblk), last - lblk + 1)?;
            if !matches!(state, EsState::Written(_)) {
                return Ok(false);
            }
            if n > last - lblk {
                return Ok(true);
            }
            lblk += n;
        }
    }
}

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
            self.watch(self.encryption(inode).file_key())?;
            let size = inode.size();
            let n = (buf.len() as u64).min(size.saturating_sub(pos)) as usize;
            if n == 0 {
                return Ok(0);
            }
            let protected = !self.rescues() && inode.meta.flags().contains(InodeFlags::VERITY);
            self.watch(match protected {
                true => self.content(inode).read_verified(pos, &mut buf[..n]),
                false => self.content(inode).read_locked(pos, &mut buf[..n]),
            })?;
            n
        };
        self.budget.relieve();
        self.touch_atime(inode);
        Ok(n)
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
        self.writeback.note_dirty(inode.ino, inode, 0);
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
        self.writeback.await_memory(data.len() as u64);
        let (done, dirtied) = self.content(inode).write(pos, data, flags)?;
        self.writeback.pause_writer(inode, dirtied);
        Ok(done)
    }
}
