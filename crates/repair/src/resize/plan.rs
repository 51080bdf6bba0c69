//! The new places of everything that is after the new end.
//!
//! Main type: [`Plan`]. Main functions: [`plan`], [`fits`].
//!
//! Data fills the free clusters in ascending order, so the pieces of a file do not become smaller than the gaps. The
//! clusters of bitmaps, tables and descriptors of removed groups come first. Blocks of maps and attributes are taken
//! from the rest, because old metadata must not be read as a map. A block keeps its place in its cluster.
//!
//! # Locking
//! None.

use std::collections::BTreeSet;
use std::ops::Range;

use extant_ondisk::features::Compat;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::map::{Form, Run};
use extant_ondisk::superblock::Geometry;
use extant_ondisk::{BlockNr, LogicalBlock, extent};

use super::content::Content;
use super::shrink::mmp_behind;
use crate::view::Image;

/// The new places.
pub struct Plan {
    /// The map of each content that changes: its index, and its runs by logical block.
    pub maps: Vec<(usize, Vec<Run>)>,
    /// The clusters used for data that were free before, ascending.
    pub taken: Vec<Range<u64>>,
}

/// Free clusters in the order in which data fills them.
struct Gaps {
    /// The ranges that metadata leaves free, then those that were free before.
    ranges: Vec<Range<u64>>,
    /// The number of ranges that metadata leaves free.
    left_by_metadata: usize,
    at: usize,
}

impl Gaps {
    fn new(old: &Image, new: &Geometry) -> Gaps {
        let end = new.blocks_count >> new.cluster_bits;
        let mut ranges = left_by_metadata(old, new);
        let left_by_metadata = ranges.len();
        let mut at = old.facts.find_cluster(new.first_data_block >> new.cluster_bits, end, false);
        while at < end {
            let behind = old.facts.find_cluster(at, end, true);
            ranges.push(at..behind);
            at = old.facts.find_cluster(behind, end, false);
        }
        Gaps { ranges, left_by_metadata, at: 0 }
    }

    /// The number of clusters that were free and still are.
    fn free(&self) -> u64 {
        let rest = self.ranges.iter().skip(self.at.max(self.left_by_metadata));
        rest.map(|range| range.end - range.start).sum()
    }

    /// Takes at most `most` adjacent clusters.
    fn take(&mut self, most: u64) -> Option<(u64, u64)> {
        while self.ranges.get(self.at)?.is_empty() {
            self.at += 1;
        }
        let range = self.ranges.get_mut(self.at)?;
        let count = (range.end - range.start).min(most);
        let first = range.start;
        range.start += count;
        Some((first, count))
    }
}

/// Clusters before the new end that contain metadata now and will not contain it any more.
fn left_by_metadata(old: &Image, new: &Geometry) -> Vec<Range<u64>> {
    let stays = metadata(new, &old.descs[..new.group_count as usize]);
    let mut left = Vec::new();
    let mut others = stays.iter().peekable();
    for range in metadata(&old.geo, &old.descs) {
        let (mut at, end) = (range.start, range.end.min(new.blocks_count >> new.cluster_bits));
        while at < end {
            while others.peek().is_some_and(|other| other.end <= at) {
                others.next();
            }
            let next = others.peek().map_or(u64::MAX, |other| other.start);
            if next <= at {
                at = others.peek().map_or(end, |other| other.end);
            } else {
                left.push(at..end.min(next));
                at = end.min(next);
            }
        }
    }
    left
}

/// The clusters of metadata, merged.
fn metadata(geo: &Geometry, descs: &[GroupDesc]) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for (group, desc) in geo.groups().zip(descs) {
        let copies = geo.base_metadata(group);
        all.extend(copies.ranges().map(|(start, count)| start.0..start.0 + u64::from(count)));
        all.extend([desc.block_bitmap, desc.inode_bitmap].map(|block| block.0..block.0 + 1));
        all.push(desc.inode_table.0..desc.inode_table.0 + u64::from(geo.inode_table_blocks));
    }
    for range in &mut all {
        *range = range.start >> geo.cluster_bits..((range.end - 1) >> geo.cluster_bits) + 1;
    }
    all.sort_unstable_by_key(|range| range.start);
    all.dedup_by(|next, last| {
        let meets = next.start <= last.end;
        if meets {
            last.end = last.end.max(next.end);
        }
        meets
    });
    all
}

/// Whether everything fits before the end of `new`.
pub fn fits(old: &Image, new: &Geometry, contents: &[Content]) -> bool {
    walk(old, new, contents, |_, _| {}).is_some()
}

/// Plans the new places; `None` if not everything fits before the end of `new`.
pub fn plan(old: &Image, new: &Geometry, contents: &[Content]) -> Option<Plan> {
    let mut maps = Vec::new();
    let gaps = walk(old, new, contents, |index, runs| maps.push((index, runs)))?;
    let whole = Gaps::new(old, new);
    let used = whole.ranges.iter().zip(&gaps.ranges).skip(whole.left_by_metadata);
    let taken = used.map(|(was, left)| was.start..left.start).filter(|range| !range.is_empty()).collect();
    Some(Plan { maps, taken })
}

/// Assigns places to every content.
fn walk(old: &Image, new: &Geometry, contents: &[Content], mut each: impl FnMut(usize, Vec<Run>)) -> Option<Gaps> {
    let end = new.blocks_count;
    let mut gaps = Gaps::new(old, new);
    let mut attributes = BTreeSet::new();
    // The block that the resize inode's map needs if its own is after the end.
    let mut others = u64::from(old.sb.compat().contains(Compat::RESIZE_INODE));
    others += u64::from(mmp_behind(old, end).is_some());
    for (index, content) in contents.iter().enumerate() {
        if let Some(block) = content.attributes.filter(|block| block.0 >= end) {
            others += u64::from(attributes.insert(block.0));
        }
        if !content.has_map_behind(end) {
            continue;
        }
        let runs = moved(&content.mapped.runs, end, new.cluster_bits, &mut gaps)?;
        let kept = content.mapped.nodes.iter().filter(|block| block.0 < end).count() as u64;
        let needed = match content.form {
            Form::Extents => nodes(&runs, new.block_size),
            // They depend only on the logical blocks.
            Form::Indirect => content.mapped.nodes.len() as u64,
        };
        others += needed.saturating_sub(kept);
        each(index, runs);
    }
    (others <= gaps.free()).then_some(gaps)
}

/// The runs of a content, with those after the end moved to gaps. The blocks of a cluster may belong to adjacent runs.
fn moved(runs: &[Run], end: u64, cluster_bits: u32, gaps: &mut Gaps) -> Option<Vec<Run>> {
    let mut out: Vec<Run> = Vec::with_capacity(runs.len());
    // The last cluster that was moved: from, to.
    let mut last = None;
    for run in runs {
        let stays = end.saturating_sub(run.pblk.0).min(run.len.into()) as u32;
        if stays > 0 {
            out.push(Run { len: stays, ..*run });
        }
        let mut done = stays;
        while done < run.len {
            let (block, rest) = (run.pblk.0 + u64::from(done), u64::from(run.len - done));
            let from = block >> cluster_bits;
            let inside = block - (from << cluster_bits);
            let (to, count) = match last {
                Some((known, to)) if known == from => (to, 1),
                _ => gaps.take(((inside + rest - 1) >> cluster_bits) + 1)?,
            };
            let len = rest.min((count << cluster_bits) - inside) as u32;
            last = Some((from + count - 1, to + count - 1));
            let lblk = LogicalBlock(run.lblk.0 + done);
            out.push(Run { lblk, len, pblk: BlockNr((to << cluster_bits) + inside), ..*run });
            done += len;
        }
    }
    Some(out)
}

/// The number of blocks of an extent tree that is packed.
fn nodes(runs: &[Run], block_size: u32) -> u64 {
    let joins = |one: &Run, next: &Run, len: u32| {
        one.lblk.0 + one.len == next.lblk.0
            && one.pblk.0 + u64::from(one.len) == next.pblk.0
            && one.unwritten == next.unwritten
            && len + next.len <= extent::len_max(next.unwritten)
    };
    let (mut level, mut last, mut len) = (0usize, None::<&Run>, 0);
    for run in runs {
        if last.is_some_and(|last| joins(last, run, len)) {
            len += run.len;
        } else {
            (level, len) = (level + 1, run.len);
        }
        last = Some(run);
    }
    let per_block = extent::capacity(block_size as usize);
    let mut all = 0;
    while level > extent::capacity(extent::ROOT_BYTES) {
        level = level.div_ceil(per_block);
        all += level as u64;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lblk: u32, len: u32, pblk: u64) -> Run {
        Run { lblk: LogicalBlock(lblk), len, pblk: BlockNr(pblk), unwritten: false }
    }

    #[test]
    fn runs_behind_the_end_fill_the_gaps_in_their_order() {
        let mut gaps = Gaps { ranges: vec![10..12, 20..25, 30..40], left_by_metadata: 1, at: 0 };
        let runs = moved(&[run(0, 4, 98), run(4, 1, 50), run(9, 6, 200)], 100, 0, &mut gaps).expect("room");
        let expected = [run(0, 2, 98), run(2, 2, 10), run(4, 1, 50), run(9, 5, 20), run(14, 1, 30)];
        assert_eq!(runs, expected);
        assert_eq!(gaps.free(), 9);
        assert_eq!(moved(&[run(0, 10, 100)], 100, 0, &mut gaps), None);
    }

    #[test]
    fn blocks_keep_their_places_in_clusters_that_move() {
        let mut gaps = Gaps { ranges: vec![10..11, 20..22], left_by_metadata: 0, at: 0 };
        // Two runs share cluster 26, and a cluster has a hole at its end.
        let old = [run(1, 4, 101), run(5, 1, 105), run(7, 1, 107), run(8, 2, 400)];
        let runs = moved(&old, 100, 2, &mut gaps).expect("room");
        let expected = [run(1, 3, 41), run(4, 1, 80), run(5, 1, 81), run(7, 1, 83), run(8, 2, 84)];
        assert_eq!(runs, expected);
        assert_eq!(gaps.free(), 0);
    }

    #[test]
    fn a_tree_has_the_blocks_that_packing_gives_it() {
        let apart = |count: u32| (0..count).map(|at| run(2 * at, 1, 2 * u64::from(at) + 7)).collect::<Vec<_>>();
        let side_by_side: Vec<Run> = (0..50).map(|at| run(at, 1, 7 + u64::from(at))).collect();
        assert_eq!(nodes(&side_by_side, 1024), 0);
        for count in [0, 4, 5, 84, 85, 336, 337, 5000] {
            let extents: Vec<extent::Extent> = apart(count)
                .iter()
                .map(|run| extent::Extent { lblk: run.lblk, len: 1, pblk: run.pblk, unwritten: false })
                .collect();
            let mut blocks = 0;
            extent::pack_tree(&extents, 1024, None, || {
                blocks += 1;
                Some(BlockNr(blocks))
            })
            .expect("a tree");
            assert_eq!(nodes(&apart(count), 1024), blocks, "{count}");
        }
    }
}
