//! Finds deleted files by older versions of metadata that are still in the journal.
//!
//! Main function: [`search`]. Main types: [`DeletedFiles`] (all files, and the way to read them), [`Deleted`] (one
//! file), [`Chance`] (whether it is whole).
//!
//! A deletion empties an inode and its map, but the log keeps earlier copies of the same blocks until it is
//! overwritten. For each inode that is free now, or has another generation, the newest version with a link is used
//! (`versions`). Its map is read from copies of that time (`blocks`), and its name from older directory blocks
//! (`names`).
//!
//! A file counts as whole if its map is complete, all its blocks are free now, and the log shows no other use of them
//! since. A file that was created and deleted within one transaction leaves no trace there.
//!
//! What it does not do: search outside the journal, decrypt, or write.
//!
//! # Locking
//! None.

mod blocks;
mod names;
mod versions;

use std::sync::Arc;

use extant_block::device::CowDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_check::Options;
use extant_ondisk::InodeNr;
use extant_ondisk::inode::{FileType, InodeDesc};
use extant_ondisk::map::Run;
use extant_recovery::History;
use extant_recovery::locate::{open_journal, read_super};

use crate::apply::journal;
use crate::error::{Error, Result};
use crate::sound::look;
use crate::view::Image;

/// Whether the content of a deleted file still exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chance {
    /// The whole content exists, according to bitmaps and log.
    Whole,
    /// Something is missing.
    Partial {
        /// The number of bytes in blocks that belong to other files, or have belonged to them since.
        lost: u64,
        /// The reason.
        why: &'static str,
    },
}

/// A deleted file.
#[derive(Clone, Debug)]
pub struct Deleted {
    /// Its number.
    pub ino: InodeNr,
    /// The path without a leading slash. If names are unknown, `#` and the number of an inode.
    pub path: Vec<u8>,
    /// Regular file or symbolic link.
    pub kind: FileType,
    /// The fields at that time.
    pub inode: InodeDesc,
    /// The deletion time, in seconds since 1970; `None` if it is unknown.
    pub deleted: Option<i64>,
    /// The time of the transaction with this version, in seconds since 1970.
    pub version: Option<u64>,
    /// Whether it is whole.
    pub chance: Chance,
    runs: Vec<Run>,
    inline: Option<Vec<u8>>,
}

/// The deleted files, and the file system that contained them.
pub struct DeletedFiles {
    /// The files, by path.
    pub files: Vec<Deleted>,
    /// The number of transactions in the log, including those that were replayed long ago.
    pub transactions: usize,
    image: Image,
}

/// Searches the journal of the file system on `device` for deleted files. The log is replayed to `device`. `None` if
/// the file system has no internal journal.
///
/// # Errors
/// A device or the check fails.
pub fn search(device: Arc<CowDevice>, check: &Options) -> Result<Option<DeletedFiles>> {
    let shared: Arc<dyn BlockDevice> = device.clone();
    let sb = read_super(&*shared)?;
    let Some(own) = open_journal(shared.clone(), &sb)? else { return Ok(None) };
    let past = History::read(&own)?;
    if sb.needs_recovery() {
        journal::replay(&device)?;
    }
    let Some((mut image, _)) = Image::new(device.clone(), look(&device, check)?, check.now) else { return Ok(None) };
    let versions = versions::newest(&image, &own, &past)?;
    let names = names::Names::read(&image, &own, &past, &versions)?;
    let files = blocks::judge(&mut image, &own, &past, versions, &names)?;
    Ok(Some(DeletedFiles { files, transactions: past.transactions.len(), image }))
}

impl DeletedFiles {
    /// Passes the bytes of a file to `put`, with their offsets. Holes are left out.
    ///
    /// # Errors
    /// The device fails, or `put` does.
    pub fn read<E: From<Error>>(
        &self,
        file: &Deleted,
        mut put: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        /// The number of bytes that are read at once.
        const PIECE: u64 = 1 << 20;
        let (bits, size) = (self.image.geo.block_bits, file.inode.size);
        if let Some(bytes) = &file.inline {
            return put(0, bytes);
        }
        for run in file.runs.iter().filter(|run| !run.unwritten) {
            let start = u64::from(run.lblk.0) << bits;
            let end = (start + (u64::from(run.len) << bits)).min(size);
            let from = run.pblk.0 << bits;
            let mut at = start;
            while at < end {
                let len = PIECE.min(end - at);
                // A device reads whole sectors.
                let mut bytes = vec![0; (len as usize).next_multiple_of(1 << bits)];
                let read = self.image.device.read_at(from + (at - start), &mut bytes, BioFlags::empty());
                read.map_err(|e| E::from(Error::from(e)))?;
                put(at, &bytes[..len as usize])?;
                at += len;
            }
        }
        Ok(())
    }
}
