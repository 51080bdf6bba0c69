//! Finding a file's data: lseek(2) with SEEK_DATA and SEEK_HOLE, the FIBMAP ioctl.
//!
//! Main functions: [`Filesystem::seek`], [`Filesystem::bmap`], [`Maps::extents`].
//!
//! What it does not do: read the data.
//!
//! # Locking
//! `inode`, shared, except while waiting for data under writeback.

use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::{BlockNr, LogicalBlock};

use crate::crypt::is_encrypted;
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::maps::Maps;
use crate::ops::mapping::LAST_BLOCK;
use extant_es::EsState;

/// Adjacent blocks of a file that are adjacent on the device as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// The first block, counted from the start of the file.
    pub logical: u64,
    /// The place of the first block on the device.
    pub physical: BlockNr,
    /// The number of blocks.
    pub len: u64,
    /// The blocks contain no data yet and read as zeros.
    pub unwritten: bool,
}

/// The target of lseek(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is written or dirty (SEEK_DATA).
    Data,
    /// The next byte that reads as zero because it has no block, or the end of the file (SEEK_HOLE).
    Hole,
}

impl Maps {
    /// Calls `f` with each run of blocks of the file, in order. A file whose content is in the inode has none. The
    /// journal's blocks are not shown.
    ///
    /// # Errors
    /// The map is damaged; `f` has been called for everything before the damage.
    pub fn extents(&self, inode: &InodeRef, mut f: impl FnMut(FileExtent)) -> Result<()> {
        let _shared = inode.rw.read();
        let is_own = self.own_inodes.journal == Some(inode.ino) || self.is_inline(inode);
        let (size, flags) = {
            let meta = inode.meta.read();
            if is_own || !meta.desc.has_map(&self.geo) {
                return Ok(());
            }
            (meta.desc.size, meta.desc.flags)
        };
        // Extent maps may have blocks past the end. Indirect maps have none, and searching their holes there would take
        // many steps.
        let most = if flags.contains(InodeFlags::EXTENTS) { u64::MAX } else { size.div_ceil(1 << self.geo.block_bits) };
        let end = most.min(u64::from(LAST_BLOCK.0) + 1);
        let (mut at, mut open) = (0, None::<FileExtent>);
        while at < end {
            let (n, state) = match self.status(inode, LogicalBlock(at as u32), (end - at) as u32) {
                Ok(found) => found,
                Err(e) => {
                    open.into_iter().for_each(f);
                    return self.watch(Err(e));
                }
            };
            let len = u64::from(n);
            let next = match state {
                EsState::Written(physical) => Some(FileExtent { logical: at, physical, len, unwritten: false }),
                EsState::Unwritten(physical) => Some(FileExtent { logical: at, physical, len, unwritten: true }),
                EsState::Hole | EsState::Delayed => None,
            };
            open = match (open, next) {
                (Some(last), Some(next))
                    if last.unwritten == next.unwritten && last.physical.0 + last.len == next.physical.0 =>
                {
                    Some(FileExtent { len: last.len + next.len, ..last })
                }
                (last, next) => {
                    last.into_iter().for_each(&mut f);
                    next
                }
            };
            at += len;
        }
        open.into_iter().for_each(f);
        Ok(())
    }
}

impl Filesystem {
    /// lseek(2) with SEEK_DATA or SEEK_HOLE: the next offset at or after `pos` of that kind.
    ///
    /// # Errors
    /// [`Error::NoSuchOffset`] at or past the end, and if only a hole follows a search for data; [`Error::Corrupt`] for
    /// a damaged map.
    pub fn seek(&self, inode: &InodeRef, pos: u64, what: Seek) -> Result<u64> {
        let _shared = inode.rw.read();
        let size = inode.size();
        if pos >= size {
            return Err(Error::NoSuchOffset);
        }
        if inode.file_type() != Some(FileType::Regular) {
            return if what == Seek::Data { Ok(pos) } else { Ok(size) };
        }
        if let Some(stored) = self.watch(self.inline(inode).content())? {
            let stored = stored.len() as u64;
            return match what {
                Seek::Data if pos < stored => Ok(pos),
                Seek::Data => Err(Error::NoSuchOffset),
                Seek::Hole => Ok(pos.max(stored)),
            };
        }
        let bits = self.geo.block_bits;
        // Past the last block that a map can address there is only a hole, even if a damaged size claims otherwise.
        let end = (size.div_ceil(1 << bits)).min(u64::from(LAST_BLOCK.0) + 1);
        let mut at = pos >> bits;
        while at < end {
            let lblk = at as u32;
            let (mut n, state) = self.watch(self.status(inode, LogicalBlock(lblk), (end - at) as u32))?;
            let is_data = match state {
                EsState::Written(_) | EsState::Delayed => true,
                EsState::Hole => false,
                EsState::Unwritten(_) => {
                    // Dirty data counts as data; the run ends where the blocks change between dirty and clean.
                    let dirty = inode.pages.block_dirty(at);
                    if !inode.pages.is_empty() {
                        n = (1..n).find(|i| inode.pages.block_dirty(at + u64::from(*i)) != dirty).unwrap_or(n);
                    }
                    if !dirty {
                        // Data that has left the folios meanwhile has been written.
                        let (still, EsState::Unwritten(_)) = self.watch(self.status(inode, LogicalBlock(lblk), n))?
                        else {
                            continue;
                        };
                        n = still;
                    }
                    dirty
                }
            };
            if is_data == (what == Seek::Data) {
                return Ok(pos.max(at << bits));
            }
            at += u64::from(n);
        }
        if what == Seek::Hole { Ok(size.min(pos.max(end << bits))) } else { Err(Error::NoSuchOffset) }
    }

    /// The device block of block `lblk` of the file, after pending data has been written; `None` if the block has none.
    /// A caller that then writes directly to that block, like the kernel to a swap file, must be its only writer.
    /// Linux: FIBMAP, `ext4_bmap`.
    ///
    /// # Errors
    /// The error of the writeback, if pending data cannot be written; [`Error::Corrupt`] for a damaged map.
    pub fn bmap(&self, inode: &InodeRef, lblk: u64) -> Result<Option<BlockNr>> {
        // A direct writer would write plaintext to the blocks of an encrypted file.
        let is_encrypted = is_encrypted(&inode.meta.read().desc);
        if inode.file_type() != Some(FileType::Regular) || lblk > u64::from(LAST_BLOCK.0) || is_encrypted {
            return Ok(None);
        }
        self.content(inode).settle()?;
        let _shared = inode.rw.read();
        if self.is_inline(inode) || lblk >= inode.size().div_ceil(u64::from(self.geo.block_size)) {
            return Ok(None);
        }
        match self.watch(self.status(inode, LogicalBlock(lblk as u32), 1))? {
            // A swap file may be preallocated (Linux: `ext4_iomap_swap_activate`; ext4's FIBMAP shows a hole there).
            (_, EsState::Written(block) | EsState::Unwritten(block)) => Ok(Some(block)),
            _ => Ok(None),
        }
    }
}
