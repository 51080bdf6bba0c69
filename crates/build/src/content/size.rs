//! The size of the file system that a tree needs.
//!
//! Main types: [`Spare`] (room that is left free). Main function: [`fit`].
//!
//! A file system's own structures (tables, journal, backups) grow with its size, and its defaults (block size, inodes)
//! depend on it. So several sizes are tried: each attempt plans a whole skeleton and places the tree on it.
//!
//! # Locking
//! None.

use extant_ondisk::jbd2::default_blocks;

use super::{Placement, PriorPlacement, owners};
use crate::options::{Fact, Options, Request, SizeAsked};
use crate::skeleton::{OwnerUsage, Skeleton};
use crate::tree::Tree;
use crate::{Error, Result};

/// The smallest size that is tried.
const START_BYTES: u64 = 512 << 10;
/// The maximum size: the limit of ext4 with blocks of 64 KiB.
const END_BYTES: u64 = 1 << 60;
/// Options that are rejected at this size, and at four times the bytes of the files, are rejected at any size.
const ABSURD_BYTES: u64 = 1 << 40;
/// The maximum size of mke2fs's type `small`, with blocks of 1 KiB.
const SMALL_BYTES: u64 = 512 << 20;
/// The first attempts narrow down the size; the others find the last block.
const ATTEMPTS_MAX: u32 = 100;

/// Room that is left free in addition to the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    /// The percentage of the blocks that the content takes.
    pub percent: u32,
    /// The number of bytes in addition to that.
    pub bytes: u64,
}

impl Spare {
    /// Nothing: the smallest file system that has room for the content.
    pub const NONE: Spare = Spare { percent: 0, bytes: 0 };
    /// The room that `--size auto` leaves.
    pub const DEFAULT: Spare = Spare { percent: 10, bytes: 0 };
}

/// An attempt with some size.
struct Attempt {
    options: Options,
    block_size: u64,
    /// The number of bytes of the whole file system, which may be less than requested, because a last group that is too
    /// small is left out.
    bytes: u64,
    /// The number of blocks that the content takes.
    content: u64,
    /// The number of missing blocks; if negative, the number of blocks that are left.
    missing: i64,
}

/// The options for the smallest file system that has room for the tree, which has a lost+found, and for the spare room;
/// and its size in bytes. It has room for its journal, if the options include one. If the defaults result in too few
/// inodes, there are as many as the tree needs.
///
/// # Errors
/// An entry cannot be stored, or the options contradict each other.
pub fn fit(request: &Request, fact: &Fact, tree: &Tree, spare: Spare) -> Result<(Options, u64)> {
    let mut search =
        Search { request: request.clone(), fact: *fact, tree, spare, owned: None, known: Default::default() };
    // The largest size that is known to be too small, and the smallest that is enough.
    let (mut low, mut high) = (0, None);
    let mut bytes = START_BYTES;
    let mut too_small = None;
    let mut content = String::new();
    let absurd = tree.file_bytes().saturating_mul(4).saturating_add(spare.bytes).clamp(ABSURD_BYTES, END_BYTES);
    for _ in 0..ATTEMPTS_MAX {
        if bytes > END_BYTES {
            break;
        }
        let attempt = match search.attempt(bytes) {
            Ok(attempt) => attempt,
            // There may not even be room for the file system's own structures; a larger size shows the other errors.
            // Also, small file systems have small blocks, in which not every entry has room.
            Err(error) if matches!(error, Error::Options(_)) || bytes < SMALL_BYTES && request.block_size.is_none() => {
                low = low.max(bytes);
                bytes = match &high {
                    None => bytes * 2,
                    Some(high) => middle(low, high, high.block_size),
                };
                too_small = Some(error);
                if high.is_none() && bytes > absurd {
                    break;
                }
                if high.as_ref().is_some_and(|high| bytes >= high.bytes) {
                    break;
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        content = format!("the content takes {} blocks of {} bytes: ", attempt.content, attempt.block_size);
        let step = attempt.missing.unsigned_abs() * attempt.block_size;
        if attempt.missing > 0 {
            low = low.max(bytes);
            bytes = match &high {
                None => bytes + step,
                Some(high) => middle(low, high, attempt.block_size),
            };
        } else {
            let block_size = attempt.block_size;
            let wanted = attempt.bytes - step;
            let best: &Attempt = high.insert(attempt);
            bytes = if wanted > low && wanted < best.bytes { wanted } else { middle(low, best, block_size) };
        }
        if let Some(high) = &high
            && bytes >= high.bytes
        {
            break;
        }
    }
    match high {
        Some(best) => Ok((best.options, best.bytes)),
        None => Err(match too_small {
            Some(Error::Options(why)) => Error::Options(content + &why),
            Some(error) => error,
            None => Error::Options(content + "no file system can be that large"),
        }),
    }
}

/// A size between one that is too small and one that is large enough; the latter if there is none in between.
fn middle(low: u64, high: &Attempt, block_size: u64) -> u64 {
    let middle = (low / block_size).midpoint(high.bytes / block_size) * block_size;
    if middle > low { middle } else { high.bytes }
}

struct Search<'a> {
    request: Request,
    fact: Fact,
    tree: &'a Tree,
    spare: Spare,
    /// The result of [`owners`], which is called once.
    owned: Option<OwnerUsage>,
    /// The results of the last attempt, and its block size.
    known: (u64, PriorPlacement),
}

impl Search<'_> {
    fn attempt(&mut self, bytes: u64) -> Result<Attempt> {
        let mut request = Request { size: SizeAsked::Bytes(bytes), ..self.request.clone() };
        loop {
            let options = request.resolve(&self.fact)?;
            let owned = self.owned.get_or_insert_with(|| owners(self.tree, &options));
            let skeleton = Skeleton::plan(&options, owned)?;
            let geo = skeleton.geometry().clone();
            if options.journal.is_some() && default_blocks(geo.blocks_count).is_none() {
                let blocks = geo.blocks_count;
                return Err(Error::Options(format!("{blocks} blocks are too few for a journal; add -O ^has_journal")));
            }
            let block_size = u64::from(geo.block_size);
            let (of, mut known) = std::mem::take(&mut self.known);
            if of != block_size {
                known.records.clear();
            }
            let placement = Placement::new(&skeleton, self.tree, known)?;
            let needed = placement.numbers.last();
            let spare = placement.placed.end.div_ceil(100) * u64::from(self.spare.percent);
            let content = placement.placed.end;
            let spare = spare + self.spare.bytes.div_ceil(block_size);
            let missing = placement.blocks_missing().saturating_add_unsigned(spare);
            let order = Some(placement.numbers.into_order());
            self.known = (block_size, PriorPlacement { order, records: placement.placed.records });
            if needed > geo.inodes_count && request.inodes.is_none() {
                let spare = u64::from(needed.div_ceil(100)) * u64::from(self.spare.percent);
                request.inodes = Some(u64::from(needed) + spare);
                continue;
            }
            let bytes = geo.blocks_count * block_size;
            return Ok(Attempt { options, block_size, bytes, content, missing });
        }
    }
}
