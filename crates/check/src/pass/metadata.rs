//! The file system's own blocks: superblocks, descriptors, bitmaps, inode tables. They are claimed first, so that a
//! file's claim of one of them is the second.
//!
//! # Locking
//! None.

use extant_block::BioFlags;
use extant_ondisk::features::Incompat;
use extant_ondisk::mmp::{self, Mmp, MmpDamage};
use extant_ondisk::{BlockNr, GroupNr};

use crate::claims::Sparse;
use crate::context::Check;
use crate::error::{Error, Result};
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

/// The number of ranges that are collected before adjacent ones are merged, because an image may have millions of
/// groups.
const RANGES_BEFORE_MERGE: usize = 1 << 16;

/// Sorts ranges and merges those that touch.
fn merge(ranges: &mut Vec<(u64, u64)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = next.0 <= last.1;
        if touches {
            last.1 = last.1.max(next.1);
        }
        touches
    });
}

/// Claims the metadata and reports metadata that overlaps. Returns it as merged ranges: first, end.
pub fn claim(check: &Check, sink: &mut Sink) -> Result<Vec<(u64, u64)>> {
    let geo = &check.geo;
    // With clusters, the bitmaps and tables of several groups may share one, so conflicts are searched by block.
    let memory = |bytes| Error::Memory { device: check.device.name().to_owned(), bytes };
    let blocks = (geo.cluster_bits > 0).then(|| Sparse::<64>::new(geo.blocks_count)).transpose().map_err(memory)?;
    let bits = blocks.as_ref().unwrap_or(&check.claims.used);
    let (mut ranges, mut merge_at) = (Vec::new(), RANGES_BEFORE_MERGE);
    let mut mark = |first: u64, count: u64| {
        let end = first.saturating_add(count).min(geo.blocks_count);
        if first >= end || first < geo.first_data_block {
            return Vec::new();
        }
        ranges.push((first, end));
        if ranges.len() >= merge_at {
            merge(&mut ranges);
            merge_at = RANGES_BEFORE_MERGE.max(2 * ranges.len());
        }
        // The first block and the length of each run that was set before.
        let mut conflicts: Vec<(u64, u64)> = Vec::new();
        for block in first..end {
            if !bits.set(block) {
                continue;
            }
            match conflicts.last_mut() {
                Some((from, count)) if *from + *count == block => *count += 1,
                _ => conflicts.push((block, 1)),
            }
        }
        conflicts
    };
    for group in geo.groups() {
        for (first, count) in geo.base_metadata(group).ranges() {
            mark(first.0, count.into());
        }
    }
    for (group, desc) in check.descs.iter().enumerate() {
        let place = Place::Group(GroupNr(group as u32));
        for (first, count, problem) in [
            (desc.inode_table.0, u64::from(geo.inode_table_blocks), Problem::ItableConflict),
            (desc.block_bitmap.0, 1, Problem::BbConflict),
            (desc.inode_bitmap.0, 1, Problem::IbConflict),
        ] {
            if first == 0 {
                continue;
            }
            for (block, count) in mark(first, count) {
                sink.push(Finding::new(problem, place, block, count));
            }
        }
    }
    let mmp = check.sb.raw().s_mmp_block.get();
    if check.sb.incompat().contains(Incompat::MMP) {
        // A block outside the file system is damage of the superblock itself.
        if !mark(mmp, 1).is_empty() {
            sink.push(Finding::new(Problem::MmpInvalidBlk, Place::Volume, mmp, 0u64));
        } else if mmp > geo.first_data_block && mmp < geo.blocks_count {
            multi_mount(check, mmp, sink);
        }
    }
    merge(&mut ranges);
    for (first, end) in &ranges {
        let clusters = check.clusters(*first, end - first);
        check.claims.own(clusters.clone());
        if blocks.is_some() {
            for cluster in clusters {
                check.claims.used.set(cluster);
            }
        }
    }
    Ok(ranges)
}

/// The block of multi-mount protection (Linux: `struct mmp_struct`).
fn multi_mount(check: &Check, block: u64, sink: &mut Sink) {
    let mut bytes = vec![0; mmp::BYTES];
    let at = block << check.geo.block_bits;
    if check.device.read_at(at, &mut bytes, BioFlags::META).is_err() {
        sink.push(Finding::new(Problem::Unreadable, Place::Blocks(BlockNr(block)), mmp::BYTES as u64, at));
        return;
    }
    Mmp::damage(&check.sb, &bytes, |damage| {
        let (problem, found, expected) = match damage {
            MmpDamage::Magic { found } => (Problem::MmpInvalidMagic, found, mmp::MAGIC),
            MmpDamage::Checksum { found, expected } => (Problem::MmpCsumInvalid, found, expected),
        };
        sink.push(Finding::new(problem, Place::Volume, found, expected));
    });
}
