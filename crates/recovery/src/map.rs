//! The places of the journal's blocks on its device.
//!
//! # Locking
//! None.

use extant_ondisk::BlockNr;

use crate::error::{Error, Result};

/// Consecutive journal blocks in consecutive places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    logical: u32,
    physical: u64,
    len: u32,
}

/// The journal's logical to physical table, stored as runs. Complete: it has no holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalMap {
    runs: Vec<Run>,
    len: u32,
    /// The runs as (first, end) on the device, sorted: answers "is this block the journal's?".
    sorted: Vec<(u64, u64)>,
}

impl JournalMap {
    /// A journal whose block n lies at `blocks[n]`.
    ///
    /// Errors: `Map` for block 0 (a hole), for a table too long to number, or if two blocks share a place.
    pub fn from_blocks(blocks: &[BlockNr]) -> Result<JournalMap> {
        JournalMap::from_runs(blocks.iter().map(|b| (*b, 1)))
    }

    /// A journal of `runs`, each (first block, number of blocks), one after the other.
    ///
    /// Errors: as for [`from_blocks`](Self::from_blocks).
    pub fn from_runs(runs: impl IntoIterator<Item = (BlockNr, u32)>) -> Result<JournalMap> {
        let mut map = JournalMap::default();
        for (physical, len) in runs {
            if len == 0 {
                continue;
            }
            if physical.0 == 0 {
                return Err(Error::map(map.len, "a hole"));
            }
            let end = physical.0.checked_add(u64::from(len));
            let (Some(_), Some(total)) = (end, map.len.checked_add(len)) else {
                return Err(Error::map(map.len, "the table is too long"));
            };
            match map.runs.last_mut() {
                Some(last) if last.physical + u64::from(last.len) == physical.0 => last.len += len,
                _ => map.runs.push(Run { logical: map.len, physical: physical.0, len }),
            }
            map.len = total;
        }
        map.index()?;
        Ok(map)
    }

    /// Journal block n at device block n, for `len` blocks: a journal that has a device to itself.
    pub(crate) fn identity(len: u32) -> JournalMap {
        let runs = vec![Run { logical: 0, physical: 0, len }];
        JournalMap { runs, len, sorted: vec![(0, u64::from(len))] }
    }

    fn index(&mut self) -> Result<()> {
        self.sorted = self.runs.iter().map(|r| (r.physical, r.physical + u64::from(r.len))).collect();
        self.sorted.sort_unstable();
        for pair in self.sorted.windows(2) {
            if pair[1].0 < pair[0].1 {
                return Err(Error::map(pair[1].0, "used twice by the journal"));
            }
        }
        Ok(())
    }

    /// The number of blocks.
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of pieces of the journal.
    pub fn fragments(&self) -> usize {
        self.runs.len()
    }

    /// The place of journal block `logical`, and the number of consecutive blocks from there on.
    pub fn lookup(&self, logical: u32) -> Option<(BlockNr, u32)> {
        let at = self.runs.partition_point(|r| r.logical <= logical).checked_sub(1)?;
        let run = self.runs.get(at)?;
        let skip = logical - run.logical;
        (skip < run.len).then(|| (BlockNr(run.physical + u64::from(skip)), run.len - skip))
    }

    /// Whether device block `block` belongs to the journal.
    pub fn contains(&self, block: BlockNr) -> bool {
        let at = self.sorted.partition_point(|(first, _)| *first <= block.0);
        at.checked_sub(1).and_then(|i| self.sorted.get(i)).is_some_and(|(_, end)| block.0 < *end)
    }

    /// The pieces of the journal: first block, number of blocks.
    pub fn runs(&self) -> impl Iterator<Item = (BlockNr, u32)> + '_ {
        self.runs.iter().map(|r| (BlockNr(r.physical), r.len))
    }

    /// The whole table, one entry per journal block.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNr> + '_ {
        self.runs.iter().flat_map(|r| (r.physical..r.physical + u64::from(r.len)).map(BlockNr))
    }

    /// The largest device block of the journal; `None` if it is empty.
    pub(crate) fn highest(&self) -> Option<BlockNr> {
        self.sorted.last().map(|(_, end)| BlockNr(end - 1))
    }
}
