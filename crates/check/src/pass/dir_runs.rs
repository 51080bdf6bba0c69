//! Blocks of directories to which maps refer: each at most once, regardless of how many pointers there are.
//!
//! Main types: [`DirRun`] (adjacent blocks of one directory), [`DirRuns`] (all of them; it merges duplicates when there
//! are many, so that there are at most as many as blocks).
//!
//! # Locking
//! None.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::pile::Pile;
use crate::scan::RUN_BYTES;

/// Up to this number, pieces are stored without a search for duplicates.
const LOOSE_MAX: usize = 1 << 13;

/// Blocks of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirRun {
    pub block: u64,
    pub ino: u32,
    pub lblk: u32,
    pub blocks: u32,
}

impl DirRun {
    fn end(&self) -> u64 {
        self.block + u64::from(self.blocks)
    }

    /// If several directories contain a block, the one with the smallest inode number gets it, in its first place.
    fn rank(&self) -> (u32, i64) {
        (self.ino, i64::from(self.lblk) - self.block as i64)
    }

    /// The part from `block` to `end`.
    fn part(&self, block: u64, end: u64) -> DirRun {
        DirRun { block, lblk: self.lblk + (block - self.block) as u32, blocks: (end - block) as u32, ..*self }
    }
}

/// The blocks of directories.
#[derive(Default)]
pub struct DirRuns {
    runs: Pile<DirRun>,
    /// The number of pieces, including duplicates.
    pushed: usize,
    /// The number of pieces at which those with a repeated block are removed; 0 until the first time.
    settle_at: usize,
    /// The directories that lost pieces because they share blocks with others.
    shared: Vec<u32>,
}

impl DirRuns {
    /// Adds blocks of a map, in pieces that are read at once. Logical block 0 is a separate piece.
    pub fn push(&mut self, run: DirRun, block_bits: u32) {
        let most = (RUN_BYTES >> block_bits).max(1);
        // There is nothing after the last logical number.
        let run = DirRun { blocks: run.blocks.min(u32::MAX - run.lblk), ..run };
        let mut block = run.block;
        while block < run.end() {
            let first = run.lblk == 0 && block == run.block;
            let end = run.end().min(block + if first { 1 } else { most });
            self.runs.push(run.part(block, end));
            self.pushed += 1;
            block = end;
        }
        if self.runs.len() >= self.settle_at.max(LOOSE_MAX) {
            self.settle();
        }
    }

    pub fn append(&mut self, other: DirRuns) {
        self.runs.append(other.runs);
        self.pushed += other.pushed;
        self.shared.extend(other.shared);
        if self.runs.len() >= self.settle_at.max(LOOSE_MAX) {
            self.settle();
        }
    }

    /// Removes parts of pieces, so that each block is in only one piece.
    fn settle(&mut self) {
        let mut runs = std::mem::take(&mut self.runs).into_vec();
        disjoint(&mut runs, |ino| self.shared.push(ino));
        self.shared.sort_unstable();
        self.shared.dedup();
        self.settle_at = 2 * runs.len();
        self.runs = Pile::from(runs);
    }

    /// The runs by directory and logical block, and the sorted directories from which some runs were removed. The
    /// result does not depend on the order in which the runs were added.
    pub fn finish(mut self) -> (Vec<DirRun>, Vec<u32>) {
        if self.pushed >= LOOSE_MAX {
            self.settle();
        }
        let mut runs = self.runs.into_vec();
        runs.sort_unstable_by_key(|run| (run.ino, run.lblk, run.block));
        (runs, self.shared)
    }
}

/// Sorts runs by block, and assigns each block to one of the runs that contain it. Calls `lost` for directories that
/// lose some.
pub fn disjoint(runs: &mut Vec<DirRun>, mut lost: impl FnMut(u32)) {
    runs.sort_unstable();
    if runs.windows(2).all(|pair| pair[0].end() <= pair[1].block) {
        return;
    }
    let mut out: Vec<DirRun> = Vec::new();
    // A heap of the runs that contain block `at`; the top one gets the block. Runs below the top may have ended
    // already.
    let mut open = BinaryHeap::new();
    let (mut next, mut at) = (0, 0);
    loop {
        while open.peek().is_some_and(|Reverse((_, run)): &Reverse<(_, DirRun)>| run.end() <= at) {
            open.pop();
        }
        let fresh = runs.get(next).copied();
        match (open.peek(), fresh) {
            (None, None) => break,
            (None, Some(run)) => at = run.block,
            (Some(Reverse((rank, top))), Some(run)) if run.block <= at => {
                lost(if *rank < run.rank() { run.ino } else { top.ino });
            }
            (Some(Reverse((_, top))), _) => {
                let end = top.end().min(fresh.map_or(u64::MAX, |run| run.block));
                out.push(top.part(at, end));
                at = end;
                continue;
            }
        }
        open.extend(fresh.map(|run| Reverse((run.rank(), run))));
        next += 1;
    }
    *runs = out;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ino: u32, lblk: u32, block: u64, blocks: u32) -> DirRun {
        DirRun { block, ino, lblk, blocks }
    }

    #[test]
    fn each_block_belongs_to_one_directory_whatever_came_first() {
        let all =
            [run(14, 5, 100, 20), run(13, 9, 110, 5), run(15, 0, 90, 40), run(13, 50, 118, 1), run(13, 3, 110, 2)];
        let settled = |parts: &[&[usize]]| {
            let mut runs = Vec::new();
            let mut losers = Vec::new();
            for part in parts {
                runs.extend(part.iter().map(|at| all[*at]));
                disjoint(&mut runs, |ino| losers.push(ino));
            }
            losers.sort_unstable();
            losers.dedup();
            let places = |run: &DirRun| {
                let run = *run;
                (0..run.blocks).map(move |step| (run.block + u64::from(step), run.ino, run.lblk + step))
            };
            (runs.iter().flat_map(places).collect::<Vec<_>>(), losers)
        };
        let (owners, losers) = settled(&[&[0, 1, 2, 3, 4]]);
        assert_eq!(losers, [13, 14, 15]);
        assert_eq!(owners.len(), 40);
        assert_eq!([owners[0], owners[10], owners[20]], [(90, 15, 0), (100, 14, 5), (110, 13, 3)]);
        assert_eq!([owners[22], owners[25], owners[28]], [(112, 13, 11), (115, 14, 20), (118, 13, 50)]);
        for parts in [[&[4, 3, 2][..], &[1, 0]], [&[0, 2], &[1, 3, 4]], [&[1, 4], &[0, 2, 3]]] {
            assert_eq!(settled(&parts), (owners.clone(), losers.clone()), "{parts:?}");
        }
    }

    #[test]
    fn many_runs_of_few_blocks_become_few() {
        let mut runs = DirRuns::default();
        for n in 0..3 * LOOSE_MAX as u32 {
            runs.push(run(12, 1 + n, 1000 + u64::from(n % 5), 1), 12);
            assert!(runs.runs.len() <= LOOSE_MAX);
        }
        let (runs, shared) = runs.finish();
        assert_eq!(runs, (0..5).map(|n| run(12, 1 + n, 1000 + u64::from(n), 1)).collect::<Vec<_>>());
        assert_eq!(shared, [12]);
    }

    #[test]
    fn pieces_are_what_is_read_at_once_and_the_first_block_is_one() {
        let mut runs = DirRuns::default();
        runs.push(run(12, 0, 1000, 300), 12);
        runs.push(run(13, u32::MAX - 1, 5000, 100), 12);
        let (runs, _) = runs.finish();
        let most = (RUN_BYTES >> 12) as u32;
        let rest = run(12, 1 + most, 1001 + u64::from(most), 299 - most);
        let pieces = [run(12, 0, 1000, 1), run(12, 1, 1001, most), rest, run(13, u32::MAX - 1, 5000, 1)];
        assert_eq!(runs, pieces);
    }
}
