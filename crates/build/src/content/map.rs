//! The blocks of a file, in the order of their places.
//!
//! Main types: [`FileMap`] (the data of a file and how it is mapped), [`Ranges`].
//!
//! # Locking
//! None.

use std::ops::{Deref, Range};

use extant_ondisk::LogicalBlock;
use extant_ondisk::extent::{self, Extent, ROOT_BYTES, WRITTEN_LEN_MAX, capacity};
use extant_ondisk::indirect::{self, Part, Stream};

use super::line::Line;
use crate::tree::{Body, Node, Tree};

/// The ranges of a file that contain data, in logical blocks: sorted, not adjacent.
pub(super) enum Ranges {
    /// Most files have one range or none, which needs no allocation.
    One([Range<u32>; 1]),
    Many(Vec<Range<u32>>),
}

impl Deref for Ranges {
    type Target = [Range<u32>];

    fn deref(&self) -> &[Range<u32>] {
        match self {
            Ranges::One(one) if one[0].is_empty() => &[],
            Ranges::One(one) => one,
            Ranges::Many(many) => many,
        }
    }
}

impl Ranges {
    /// The first `blocks` blocks.
    pub fn all(blocks: u32) -> Ranges {
        Ranges::One([0..blocks; 1])
    }

    /// The ranges of a file; `None` if it has too many blocks.
    pub fn of(tree: &Tree, node: &Node, block_bits: u32) -> Option<Ranges> {
        let Body::File { size, sparse, .. } = &node.body else { return Some(Ranges::all(0)) };
        let block = |bytes: u64| bytes.div_ceil(1 << block_bits);
        u32::try_from(block(*size)).ok().filter(|blocks| *blocks < extent::LOGICAL_END)?;
        let Some(sparse) = sparse else { return Some(Ranges::all(block(*size) as u32)) };
        let mut many: Vec<Range<u32>> = Vec::new();
        for data in tree.data(*sparse) {
            let range = (data.start >> block_bits) as u32..block(data.end) as u32;
            match many.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ if !range.is_empty() => many.push(range),
                _ => {}
            }
        }
        Some(Ranges::Many(many))
    }
}

/// The data of a file, and how it is mapped.
pub(super) struct FileMap {
    ranges: Ranges,
    /// The geometry of pointers; `None` if the file is mapped by extents.
    pointers: Option<indirect::Geometry>,
    /// The number of blocks that are allocated as one unit (`bigalloc`), which only extents can map.
    cluster: u32,
}

impl FileMap {
    /// The map of a file; `None` if the format cannot map as many blocks.
    pub fn new(ranges: Ranges, pointers: Option<indirect::Geometry>, cluster: u32) -> Option<FileMap> {
        let fits = pointers.is_none_or(|geometry| Stream::new(geometry, &ranges).is_some());
        fits.then_some(FileMap { ranges, pointers, cluster })
    }

    pub fn stream(&self) -> Option<Stream<'_>> {
        Stream::new(self.pointers?, &self.ranges)
    }

    /// The number of blocks that the file takes on the line: data, and the pointers in between. Whole clusters.
    pub fn blocks(&self) -> u64 {
        match self.stream() {
            Some(stream) => stream.blocks(),
            None => self.written().last().map_or(0, |last| last.end.next_multiple_of(self.cluster.into())),
        }
    }

    /// The ranges of a file with extents, each with the position of its first block. A block without data in a cluster
    /// has a position, too.
    fn places(&self) -> impl Iterator<Item = (Range<u32>, u64)> + '_ {
        let cluster = self.cluster;
        // The cluster after the last one that was used, and the position after it.
        let (mut next, mut taken) = (0, 0);
        self.ranges.iter().map(move |range| {
            let (first, end) = (range.start / cluster, range.end.div_ceil(cluster));
            // The last range may have ended in the first cluster of this one.
            let start = if first < next { taken - u64::from(cluster) } else { taken };
            (next, taken) = (end, start + u64::from(end - first) * u64::from(cluster));
            (range.clone(), start + u64::from(range.start % cluster))
        })
    }

    /// The positions of blocks with data, in a file with extents.
    pub fn written(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.places().map(|(range, position)| position..position + u64::from(range.end - range.start))
    }

    /// The parts of these blocks, from a position on.
    pub fn parts(&self, position: u64) -> impl Iterator<Item = Part> + '_ {
        let stream = self.stream();
        let extents = self.places().filter(move |_| stream.is_none()).filter_map(move |(range, at)| {
            let gone = position.saturating_sub(at);
            let lblk = u64::from(range.start) + gone;
            (lblk < range.end.into())
                .then(|| Part::Data { lblk: LogicalBlock(lblk as u32), blocks: range.end - lblk as u32 })
        });
        stream.into_iter().flat_map(move |stream| stream.parts(position)).chain(extents)
    }

    /// The extents of the file, if its first block has number `at` on the line.
    pub fn extents<'a>(&'a self, line: &'a Line, at: u64) -> impl Iterator<Item = Extent> + 'a {
        self.places().flat_map(move |(range, position)| {
            let len = u64::from(range.end - range.start);
            let runs = line.runs(at + position..at + position + len);
            let mut lblk = range.start;
            runs.flat_map(move |(block, len)| {
                let first = lblk;
                lblk += len as u32;
                (0..len.div_ceil(WRITTEN_LEN_MAX.into())).map(move |i| {
                    let skip = i * u64::from(WRITTEN_LEN_MAX);
                    Extent {
                        lblk: LogicalBlock(first + skip as u32),
                        len: (len - skip).min(WRITTEN_LEN_MAX.into()) as u32,
                        pblk: extant_ondisk::BlockNr(block.0 + skip),
                        unwritten: false,
                    }
                })
            })
        })
    }

    /// The number of blocks in the extent tree except the root, if the file's first block has number `at` on the line.
    pub fn nodes(&self, line: &Line, at: u64, block_size: u32) -> u64 {
        // So few blocks have at most that many extents.
        if self.pointers.is_some() || self.blocks() <= ROOT_EXTENTS {
            return 0;
        }
        let (mut level, mut nodes) = (self.extents(line, at).count(), 0);
        while level > capacity(ROOT_BYTES) {
            level = level.div_ceil(capacity(block_size as usize));
            nodes += level;
        }
        nodes as u64
    }
}

/// The number of extents that an inode can contain.
const ROOT_EXTENTS: u64 = capacity(ROOT_BYTES) as u64;
