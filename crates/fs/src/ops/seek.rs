//! lseek(2) with SEEK_DATA and SEEK_HOLE.
//!
//! # Locking
//! `inode` shared.

use extant_ondisk::LogicalBlock;
use extant_ondisk::inode::FileType;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::map::es::EsState;

/// What lseek(2) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is written or on its way (SEEK_DATA).
    Data,
    /// The next byte that reads as zero for want of blocks, or the end (SEEK_HOLE).
    Hole,
}

impl Filesystem {
    /// lseek(2) with SEEK_DATA or SEEK_HOLE: the next offset at or after `pos` of that kind.
    pub fn seek(&self, inode: &InodeRef, pos: u64, what: Seek) -> Result<u64> {
        let _shared = inode.rw.read();
        let size = inode.size();
        if pos >= size {
            return Err(Error::NoSuchOffset);
        }
        if inode.file_type() != Some(FileType::Regular) {
            return if what == Seek::Data { Ok(pos) } else { Ok(size) };
        }
        if self.is_inline(inode) {
            return if what == Seek::Data { Ok(pos) } else { Ok(size) };
        }
        let bits = self.geo.block_bits;
        let last = ((size - 1) >> bits) as u32;
        let mut lblk = (pos >> bits) as u32;
        while lblk <= last {
            let (mut n, state) = self.status(inode, LogicalBlock(lblk), last - lblk + 1)?;
            let is_data = match state {
                EsState::Written(_) | EsState::Delayed => true,
                EsState::Hole => false,
                EsState::Unwritten(_) => {
                    // Data on its way counts; the run ends where that changes.
                    let dirty = inode.pages.block_dirty(u64::from(lblk));
                    if !inode.pages.is_empty() {
                        n = (1..n).find(|i| inode.pages.block_dirty(u64::from(lblk + i)) != dirty).unwrap_or(n);
                    }
                    if !dirty {
                        // What has left the folios meanwhile is written by now.
                        let (still, EsState::Unwritten(_)) = self.status(inode, LogicalBlock(lblk), n)? else {
                            continue;
                        };
                        n = still;
                    }
                    dirty
                }
            };
            if is_data == (what == Seek::Data) {
                return Ok(pos.max(u64::from(lblk) << bits));
            }
            lblk = lblk.saturating_add(n);
        }
        if what == Seek::Hole { Ok(size) } else { Err(Error::NoSuchOffset) }
    }
}
