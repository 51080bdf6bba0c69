//! The free blocks of a skeleton as one continuous line.
//!
//! Main type: [`Line`]. The blocks of a tree are placed on the line, where everything is contiguous. The line knows the
//! places of bitmaps, inode tables, backups and the journal in between, and splits runs there.
//!
//! # Locking
//! None.

use std::ops::Range;

use extant_ondisk::BlockNr;

/// Free blocks in ascending order, numbered from 0.
pub(super) struct Line {
    /// For each run, the number of its first block, and the block itself. The last one only marks the end of the line.
    runs: Vec<(u64, u64)>,
}

impl Line {
    /// Creates a line from runs in ascending order.
    pub fn new(free: impl Iterator<Item = Range<u64>>) -> Line {
        let mut runs = Vec::new();
        let mut at = 0;
        for run in free {
            runs.push((at, run.start));
            at += run.end - run.start;
        }
        runs.push((at, u64::MAX));
        Line { runs }
    }

    /// The number of blocks.
    pub fn len(&self) -> u64 {
        self.runs[self.runs.len() - 1].0
    }

    /// The blocks with these numbers, as runs: first block and length. Numbers past the end of the line are left out.
    pub fn runs(&self, range: Range<u64>) -> impl Iterator<Item = (BlockNr, u64)> + '_ {
        let mut index = self.runs.partition_point(|(at, _)| *at <= range.start).saturating_sub(1);
        let (mut at, end) = (range.start, range.end.min(self.len()));
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (first, block) = self.runs[index];
            let stop = self.runs[index + 1].0.min(end);
            let run = (BlockNr(block + (at - first)), stop - at);
            index += 1;
            at = stop;
            Some(run)
        })
    }

    /// The block with this number.
    pub fn block(&self, number: u64) -> BlockNr {
        self.runs(number..number + 1).next().map_or(BlockNr(u64::MAX), |(block, _)| block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_behind_what_is_in_between() {
        let line = Line::new([10..20, 30..31, 40..45].into_iter());
        assert_eq!(line.len(), 16);
        let all: Vec<_> = line.runs(0..16).map(|(block, len)| (block.0, len)).collect();
        assert_eq!(all, [(10, 10), (30, 1), (40, 5)]);
        let some: Vec<_> = line.runs(9..12).map(|(block, len)| (block.0, len)).collect();
        assert_eq!(some, [(19, 1), (30, 1), (40, 1)]);
        assert_eq!(line.block(11), BlockNr(40));
        assert_eq!(line.runs(14..99).collect::<Vec<_>>(), [(BlockNr(43), 2)]);
        assert_eq!(line.runs(3..3).count(), 0);
    }
}
