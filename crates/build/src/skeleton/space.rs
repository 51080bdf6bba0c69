//! The allocated blocks, as ranges, and the searches of mke2fs in them.
//!
//! Main type: [`Space`]. Its size depends on the number of groups, not of blocks: tables, backups and files are few
//! ranges. The searches have the same results as those of e2fsprogs, so that everything is in the same place.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::ops::Range;

use extant_ondisk::superblock::Geometry;

use crate::{Error, Result};

pub(super) struct Space {
    /// The start and the end of each allocated range; never adjacent.
    taken: BTreeMap<u64, u64>,
    first: u64,
    end: u64,
    /// The number of blocks that are allocated as one unit: 1 until [`Space::count_clusters`].
    unit: u64,
    cluster: u64,
    per_group: u64,
    /// Whether something was allocated in a group after its superblock and descriptors.
    touched: Vec<bool>,
    /// The numbers of free blocks of the groups as mke2fs counts them in between: with `bigalloc`, neither blocks nor
    /// clusters.
    pub counted: Vec<u32>,
}

impl Space {
    pub fn new(geo: &Geometry) -> Space {
        Space {
            taken: BTreeMap::new(),
            first: geo.first_data_block,
            end: geo.blocks_count,
            unit: 1,
            cluster: geo.blocks_per_cluster().into(),
            per_group: geo.blocks_per_group.into(),
            touched: vec![false; geo.group_count as usize],
            counted: vec![0; geo.group_count as usize],
        }
    }

    /// From this call on, whole clusters are allocated.
    pub fn count_clusters(&mut self) {
        self.unit = self.cluster;
        for (start, end) in std::mem::take(&mut self.taken) {
            self.mark(start, end - start);
        }
    }

    pub fn taken(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.taken.iter().map(|(start, end)| *start..*end)
    }

    /// The blocks that are taken within a range.
    pub fn taken_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.taken.range(..range.start).next_back().filter(|(_, end)| **end > range.start);
        let inside = self.taken.range(range.clone());
        before.into_iter().chain(inside).map(move |(start, end)| *start.max(&range.start)..*end.min(&range.end))
    }

    pub fn is_touched(&self, group: u32) -> bool {
        self.touched[group as usize]
    }

    fn group_of(&self, block: u64) -> usize {
        ((block - self.first) / self.per_group) as usize
    }

    /// Takes blocks for superblocks and descriptors.
    pub fn mark(&mut self, start: u64, count: u64) {
        if count == 0 {
            return;
        }
        let mut end = (start + count).next_multiple_of(self.unit);
        let mut start = start & !(self.unit - 1);
        while let Some((&s, &e)) = self.taken.range(..=end).next_back().filter(|(_, e)| **e >= start) {
            self.taken.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.taken.insert(start, end);
    }

    /// Takes blocks for anything else.
    pub fn take(&mut self, start: u64, count: u64) {
        self.mark(start, count);
        let (mut block, mut left) = (start, count);
        while left > 0 {
            let group = self.group_of(block);
            let last = self.first + (group as u64 + 1) * self.per_group;
            let n = left.min(last - block);
            self.touched[group] = true;
            let counted = if count == 1 { 1 } else { n / self.cluster };
            self.counted[group] = self.counted[group].wrapping_sub(counted as u32);
            (block, left) = (block + n, left - n);
        }
    }

    /// The end of the range that contains the block; `None` if it is free.
    fn taken_until(&self, block: u64) -> Option<u64> {
        self.taken.range(..=block).next_back().map(|(_, end)| *end).filter(|end| *end > block)
    }

    /// The first taken block from `from` on.
    fn next_taken(&self, from: u64) -> u64 {
        if self.taken_until(from).is_some() {
            return from;
        }
        self.taken.range(from..).next().map_or(u64::MAX, |(start, _)| *start)
    }

    /// The first free block of `from..end`.
    pub fn first_free(&self, from: u64, end: u64) -> Option<u64> {
        let at = self.taken_until(from).unwrap_or(from);
        (at < end).then_some(at)
    }

    /// The first `num` free blocks from `start` on. The search ends at `finish`, or wraps around if that is `start`
    /// (e2fsprogs: `ext2fs_get_free_blocks2`).
    pub fn free_run(&self, start: u64, finish: u64, num: u64) -> Option<u64> {
        let num = num.max(1);
        let finish = if finish == 0 { start } else { finish };
        let mut at = if start == 0 { self.first } else { start };
        let mut wrapped = false;
        loop {
            if at + num > self.end {
                if finish > start || wrapped {
                    return None;
                }
                (at, wrapped) = (self.first, true);
            }
            let blocked = self.next_taken(at);
            if blocked >= at + num {
                return Some(at);
            }
            let next = self.taken_until(blocked).unwrap_or(blocked + 1);
            if at < finish && next >= finish {
                return None;
            }
            at = next;
        }
    }

    /// The first free block from `goal` on, otherwise from the start (e2fsprogs: `ext2fs_new_block2`). It is not taken.
    pub fn new_block(&self, goal: u64) -> Result<u64> {
        let goal = if goal == 0 || goal >= self.end { self.first } else { goal };
        let goal = goal & !(self.cluster - 1);
        let found = self.first_free(goal, self.end).or_else(|| self.first_free(self.first, goal));
        found.ok_or_else(no_space)
    }

    /// Takes the block that [`Space::new_block`] finds.
    pub fn take_new_block(&mut self, goal: u64) -> Result<u64> {
        let block = self.new_block(goal)?;
        self.take(block, 1);
        Ok(block)
    }

    /// The first free run from `goal` on, truncated to `len` (e2fsprogs: `ext2fs_new_range`).
    pub fn new_range(&self, goal: u64, len: u64) -> Result<(u64, u64)> {
        let goal = if goal == 0 || goal >= self.end { self.first } else { goal };
        let start = self.first_free(goal, self.end).or_else(|| self.first_free(self.first, self.end));
        let start = start.ok_or_else(no_space)?;
        let end = self.next_taken(start).min(start + len).min(self.end);
        Ok((start, end - start))
    }
}

pub(super) fn no_space() -> Error {
    Error::Options("the file system is too small for its own structures; make it larger".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(blocks: u64) -> Space {
        Space {
            taken: BTreeMap::new(),
            first: 1,
            end: blocks,
            unit: 1,
            cluster: 1,
            per_group: 100,
            touched: vec![false; 10],
            counted: vec![100; 10],
        }
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut space = space(1000);
        for start in [10, 30, 20] {
            space.mark(start, 10);
        }
        let only = |mut runs: Vec<Range<u64>>| (runs.pop(), runs.len());
        assert_eq!(only(space.taken().collect()), (Some(10..40), 0));
        space.mark(5, 100);
        assert_eq!(only(space.taken().collect()), (Some(5..105), 0));
        assert_eq!(only(space.taken_in(50..60).collect()), (Some(50..60), 0));
        assert_eq!(space.first_free(6, 1000), Some(105));
        assert_eq!(space.first_free(6, 105), None);
    }

    #[test]
    fn searches_start_at_the_goal_and_go_round() {
        let mut space = space(200);
        space.take(100, 100);
        assert_eq!(space.new_block(150).unwrap(), 1);
        assert_eq!(space.new_range(150, 30).unwrap(), (1, 30));
        assert_eq!(space.new_range(90, 30).unwrap(), (90, 10));
        assert_eq!(space.free_run(50, 199, 60), None);
        assert_eq!(space.free_run(50, 199, 50), Some(50));
        assert!(space.is_touched(0) && space.is_touched(1) && !space.is_touched(2));
        assert_eq!(space.counted[..3], [99, 1, 100]);
    }
}
