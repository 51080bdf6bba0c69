//! A whole file with its pointer blocks, in the order in which they should be placed on the device.
//!
//! Main types: [`Stream`], [`Part`] (the content of one position).
//!
//! A pointer block comes directly before the first block that it leads to. So a cold sequential read of the file moves
//! only forwards, and readahead of the data includes the pointers. Holes and pointer blocks without targets are left
//! out.
//!
//! # Locking
//! None: pure functions.

use std::ops::Range;

use super::{DIRECT, Geometry, PointerBlock, SLOTS, set_pointer};
use crate::LogicalBlock;

/// The blocks of a file in order. Positions count from 0.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a> {
    geometry: Geometry,
    /// The ranges of logical blocks with data: sorted, not overlapping.
    data: &'a [Range<u32>],
}

/// The content of a position of a [`Stream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Adjacent blocks of data.
    Data {
        /// The first logical block.
        lblk: LogicalBlock,
        /// The number of adjacent logical blocks from here on.
        blocks: u32,
    },
    /// A block of pointers.
    Pointers(PointerBlock),
}

impl<'a> Stream<'a> {
    /// Returns `None` if there is data past the last block that the format can map.
    pub fn new(geometry: Geometry, data: &'a [Range<u32>]) -> Option<Stream<'a>> {
        let end = data.last().map_or(0, |range| range.end);
        (end <= geometry.logical_end()).then_some(Stream { geometry, data })
    }

    /// The parts of `data` inside `first..end`.
    fn within(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let from = self.data.partition_point(|range| u64::from(range.end) <= first);
        let clip = move |range: &Range<u32>| (u64::from(range.start).max(first), u64::from(range.end).min(end));
        self.data[from..].iter().map(clip).take_while(move |(start, _)| *start < end)
    }

    /// The number of blocks below a pointer that leads to `first` through `level` pointer blocks, including these.
    fn below(&self, first: u64, level: usize) -> u64 {
        let mut total = 0;
        // For each level, one past the last span that was counted.
        let mut counted = [0; super::LEVELS_MAX + 1];
        for (start, end) in self.within(first, first + self.geometry.span(level)) {
            total += end - start;
            for (step, counted) in counted.iter_mut().enumerate().take(level + 1).skip(1) {
                let span = self.geometry.span(step);
                let (low, high) = ((start - first) / span, (end - 1 - first) / span + 1);
                total += high - low.max(*counted);
                *counted = high;
            }
        }
        total
    }

    /// The slots of `i_block`: for each, the first logical block below it, the number of levels, and the number of
    /// blocks.
    fn slots(&self) -> impl Iterator<Item = (u64, usize, u64)> + '_ {
        (0..SLOTS).filter_map(|slot| {
            let (first, level) = self.geometry.slot_start(slot)?;
            Some((first, level, self.below(first, level)))
        })
    }

    /// The total number of data and pointer blocks.
    pub fn blocks(&self) -> u64 {
        self.slots().map(|(_, _, blocks)| blocks).sum()
    }

    /// The content of a position; `None` past the end.
    pub fn at(&self, position: u64) -> Option<Part> {
        let mut left = position;
        for (first, level, blocks) in self.slots() {
            if left < blocks {
                return match level {
                    0 => self.data_at(first, u64::from(DIRECT), left),
                    _ => self.descend(first, level, left),
                };
            }
            left -= blocks;
        }
        None
    }

    /// The parts from a position on. Only the first of them needs a search through all ranges.
    pub fn parts(self, position: u64) -> impl Iterator<Item = Part> + use<'a> {
        std::iter::successors(self.at(position), move |part| self.after(*part))
    }

    /// The part that follows `part`.
    fn after(&self, part: Part) -> Option<Part> {
        let (from, block) = match part {
            Part::Data { lblk, blocks } => (lblk.0 + blocks, None),
            Part::Pointers(block) => (block.first.0, Some(block)),
        };
        let range = &self.data[self.data.partition_point(|range| range.end <= from)..].first()?;
        let lblk = LogicalBlock(range.start.max(from));
        let path = self.geometry.path(lblk)?;
        // The pointer blocks on the path to it, from the top. A pointer block that also leads to earlier blocks has
        // already appeared.
        let is_new = |on_the_way: &PointerBlock| match block {
            Some(block) => on_the_way.level < block.level,
            None => on_the_way.first.0 >= from,
        };
        let mut on_the_way = (0..path.levels).filter_map(|step| path.names(step, lblk, &self.geometry));
        if let Some(block) = on_the_way.find(is_new) {
            return Some(Part::Pointers(block));
        }
        let end = match path.levels {
            0 => u64::from(DIRECT),
            levels => u64::from(lblk.0) - path.inside(levels - 1, &self.geometry) + self.geometry.span(1),
        };
        Some(Part::Data { lblk, blocks: (u64::from(range.end).min(end) - u64::from(lblk.0)) as u32 })
    }

    fn descend(&self, mut first: u64, mut level: usize, mut left: u64) -> Option<Part> {
        loop {
            if left == 0 {
                let block = PointerBlock { first: LogicalBlock(first as u32), level: level as u8 };
                return Some(Part::Pointers(block));
            }
            left -= 1;
            if level == 1 {
                return self.data_at(first, first + self.geometry.span(1), left);
            }
            level -= 1;
            let span = self.geometry.span(level);
            loop {
                let below = self.below(first, level);
                if left < below {
                    break;
                }
                left -= below;
                first += span;
            }
        }
    }

    /// The data block that follows `skip` data blocks after `first`.
    fn data_at(&self, first: u64, end: u64, mut skip: u64) -> Option<Part> {
        for (start, end) in self.within(first, end) {
            if skip < end - start {
                let (lblk, blocks) = (LogicalBlock((start + skip) as u32), (end - start - skip) as u32);
                return Some(Part::Data { lblk, blocks });
            }
            skip -= end - start;
        }
        None
    }

    /// The inode's `i_block`. `place` returns the device block of a position.
    pub fn root(&self, mut place: impl FnMut(u64) -> u32) -> [u8; 60] {
        let mut i_block = [0; 60];
        let mut position = 0;
        for (slot, (_, _, blocks)) in self.slots().enumerate() {
            if blocks > 0 && !set_pointer(&mut i_block, slot, place(position)) {
                break;
            }
            position += blocks;
        }
        i_block
    }

    /// Fills the pointer block at `position`. `out` is a block of zeros.
    pub fn fill(&self, block: PointerBlock, position: u64, mut place: impl FnMut(u64) -> u32, out: &mut [u8]) {
        let below = usize::from(block.level) - 1;
        let span = self.geometry.span(below);
        let mut position = position + 1;
        for index in 0..self.geometry.per_block {
            let blocks = self.below(u64::from(block.first.0) + u64::from(index) * span, below);
            if blocks > 0 && !set_pointer(out, index as usize, place(position)) {
                break;
            }
            position += blocks;
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use crate::indirect::pointer;
    use proptest::prelude::*;

    /// Follows the pointers from `i_block` to a logical block; position `p` lies in block `p + 1000`.
    fn look_up(stream: &Stream<'_>, size: usize, lblk: u32) -> Option<u64> {
        let path = stream.geometry.path(LogicalBlock(lblk))?;
        let mut at = pointer(&stream.root(|position| position as u32 + 1000), path.offsets[0] as usize)?;
        for step in 0..path.levels {
            let position = u64::from(at).checked_sub(1000)?;
            let Some(Part::Pointers(block)) = stream.at(position) else { panic!("no pointers at {position}") };
            assert_eq!(path.names(step, LogicalBlock(lblk), &stream.geometry), Some(block));
            let mut bytes = vec![0; size];
            stream.fill(block, position, |position| position as u32 + 1000, &mut bytes);
            at = pointer(&bytes, path.offsets[step + 1] as usize)?;
        }
        u64::from(at).checked_sub(1000)
    }

    fn check(size: u32, data: &[Range<u32>]) {
        let stream = Stream::new(Geometry::new(size), data).unwrap();
        // Every part appears once and in order, and each pointer leads to its position.
        let (mut position, mut next) = (0, 0);
        while let Some(part) = stream.at(position) {
            match part {
                Part::Data { lblk, blocks } => {
                    assert!(lblk.0 >= next && blocks > 0);
                    assert!(data.iter().any(|range| range.start <= lblk.0 && lblk.0 + blocks <= range.end));
                    for i in [0, blocks - 1] {
                        assert_eq!(look_up(&stream, size as usize, lblk.0 + i), Some(position + u64::from(i)));
                    }
                    next = lblk.0 + blocks;
                    position += u64::from(blocks);
                }
                Part::Pointers(block) => {
                    assert!(block.first.0 + stream.geometry.span(block.level.into()) as u32 > next);
                    position += 1;
                }
            }
        }
        assert_eq!(position, stream.blocks());
        for from in [0, position.min(1), position / 3, position / 2, position.saturating_sub(1), position] {
            let mut at = from;
            for part in stream.parts(from) {
                assert_eq!(stream.at(at), Some(part), "from {from}");
                at += if let Part::Data { blocks, .. } = part { blocks.into() } else { 1 };
            }
            assert_eq!(at, position, "from {from}");
        }
        for range in data {
            assert!(look_up(&stream, size as usize, range.start).is_some());
            let before = range.start.checked_sub(1).filter(|lblk| !data.iter().any(|other| other.contains(lblk)));
            assert!(before.is_none_or(|lblk| look_up(&stream, size as usize, lblk).is_none()));
        }
    }

    #[test]
    fn pointer_blocks_precede_their_targets() {
        let data = [0..12 + 256 + 300];
        let stream = Stream::new(Geometry::new(1024), &data).unwrap();
        assert_eq!(stream.at(0), Some(Part::Data { lblk: LogicalBlock(0), blocks: 12 }));
        let pointers = |first, level| Some(Part::Pointers(PointerBlock { first: LogicalBlock(first), level }));
        assert_eq!(stream.at(12), pointers(12, 1));
        assert_eq!(stream.at(13), Some(Part::Data { lblk: LogicalBlock(12), blocks: 256 }));
        assert_eq!(stream.at(13 + 256), pointers(268, 2));
        assert_eq!(stream.at(13 + 257), pointers(268, 1));
        assert_eq!(stream.blocks(), 12 + 1 + 256 + 1 + 2 + 300);
        assert_eq!(stream.at(stream.blocks()), None);
    }

    #[test]
    fn files_of_each_height_and_with_holes_are_laid_out() {
        check(1024, &[]);
        check(1024, &[0..1]);
        check(1024, &[0..70_000]);
        check(1024, &[5..6, 100..101, 300..301, 66_000..66_001, 16_843_000..16_843_020]);
        check(4096, &[0..12, 1_100_000..1_100_001]);
    }

    #[test]
    fn files_beyond_the_reach_of_pointers_are_refused() {
        let end = Geometry::new(1024).logical_end();
        assert!(Stream::new(Geometry::new(1024), &[end - 1..end]).is_some());
        assert!(Stream::new(Geometry::new(1024), &[end..end + 1]).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_ranges(gaps in proptest::collection::vec((1u32..3000, 1u32..700), 1..12), size in 0u32..2) {
            let mut at = 0;
            let data: Vec<Range<u32>> = gaps.into_iter().map(|(gap, len)| {
                let start = at + gap - 1 + u32::from(at > 0);
                at = start + len;
                start..at
            }).collect();
            check(1024 << size, &data);
        }
    }
}
