//! Bitmaps and counts: the groups' free blocks and inodes, compared with those found in use.
//!
//! # Locking
//! None.

use std::ops::Range;
use std::sync::Arc;

use extant_ondisk::bitmap;
use extant_ondisk::group_desc::{BitmapDamage, GroupFlags, Piece};
use extant_ondisk::{BlockNr, GroupNr, InodeNr};

use crate::context::{Check, InodeState, Kind};
use crate::error::Result;
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::{Sink, Totals};
use crate::scan::{self, Output};

#[derive(Default)]
struct Out {
    sink: Sink,
    free_clusters: u64,
    free_inodes: u64,
    used_inodes: u64,
    used_clusters: u64,
    directories: u64,
}

impl Output for Out {
    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }
}

/// The first blocks of the groups' bitmaps and tables, sorted, so that a search for those in one group need not visit
/// all groups.
struct Pieces(Vec<(u64, u32)>);

impl Pieces {
    /// Takes each group's number and the first blocks of its bitmaps and table.
    fn new(groups: impl Iterator<Item = (u32, [u64; 3])>) -> Pieces {
        let mut pieces: Vec<(u64, u32)> =
            groups.flat_map(|(group, firsts)| firsts.map(|first| (first, group))).collect();
        pieces.sort_unstable();
        Pieces(pieces)
    }

    /// The groups with a piece in these blocks, if no piece is longer than `longest`. A group may occur several times.
    fn groups(&self, blocks: Range<u64>, longest: u64) -> impl Iterator<Item = u32> + '_ {
        let from = blocks.start.saturating_sub(longest);
        let at = self.0.partition_point(|(first, _)| *first < from);
        self.0[at..].iter().take_while(move |(first, _)| *first < blocks.end).map(|(_, group)| *group)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    block: u64,
    group: u32,
    inodes: bool,
}

/// Compares all bitmaps and counts. Returns the totals.
pub fn check(check: &Arc<Check>, sink: &mut Sink) -> Result<Totals> {
    let mut items = Vec::new();
    let mut all = Out::default();
    let pieces = Pieces::new(
        check
            .descs
            .iter()
            .enumerate()
            .map(|(group, desc)| (group as u32, [desc.block_bitmap.0, desc.inode_bitmap.0, desc.inode_table.0])),
    );
    for (group, desc) in check.descs.iter().enumerate() {
        let group = group as u32;
        for (inodes, block, flag) in [
            (false, desc.block_bitmap.0, GroupFlags::BLOCK_UNINIT),
            (true, desc.inode_bitmap.0, GroupFlags::INODE_UNINIT),
        ] {
            if desc.flags.contains(flag) {
                // The bitmap was never written, so it follows from the layout.
                if inodes {
                    inode_bitmap(check, GroupNr(group), None, &mut all);
                } else {
                    let initial = initial(check, GroupNr(group), &pieces);
                    block_bitmap(check, GroupNr(group), &initial, false, &mut all);
                }
            } else if block != 0 {
                items.push(Item { block, group, inodes });
            }
        }
    }
    drop(pieces);
    items.sort_unstable();
    let runs = scan::runs(&items, check.geo.block_bits, |item| (item.block, 1));
    if !runs.is_empty() {
        let items = Arc::new(items);
        let outs = scan::wave(check, runs, move |check, run, data, out: &mut Out| {
            let size = check.geo.block_size as usize;
            for item in &items[run.items.0..run.items.1] {
                let at = (item.block - run.first) as usize * size;
                let (group, bytes) = (GroupNr(item.group), &data[at..at + size]);
                if item.inodes {
                    inode_bitmap(check, group, Some(bytes), out);
                } else {
                    block_bitmap(check, group, bytes, true, out);
                }
            }
        })?;
        for out in outs {
            all.free_clusters += out.free_clusters;
            all.free_inodes += out.free_inodes;
            all.used_inodes += out.used_inodes;
            all.used_clusters += out.used_clusters;
            all.directories += out.directories;
        }
    }
    sink.merge(all.sink);
    let raw = &check.sb;
    let free_blocks = all.free_clusters << check.geo.cluster_bits;
    // After a crash, the totals are as old as the log's copy of the superblock, and no mount uses them.
    if !check.replayed {
        if raw.free_blocks() != free_blocks {
            sink.push(Finding::new(Problem::FreeBlockCount, Place::Volume, raw.free_blocks(), free_blocks));
        }
        if u64::from(raw.free_inodes()) != all.free_inodes {
            sink.push(Finding::new(Problem::FreeInodeCount, Place::Volume, raw.free_inodes(), all.free_inodes));
        }
    }
    Ok(Totals {
        inodes_used: all.used_inodes,
        inodes: check.geo.inodes_count.into(),
        directories: all.directories,
        blocks_used: all.used_clusters << check.geo.cluster_bits,
        blocks: check.geo.blocks_count,
        ..Totals::default()
    })
}

/// The initial block bitmap of a group whose bitmap was never written, computed from the layout.
fn initial(check: &Check, group: GroupNr, pieces: &Pieces) -> Vec<u8> {
    let geo = &check.geo;
    let mut bitmap = vec![0; geo.block_size as usize];
    let first = geo.first_block_of_group(group).0;
    let blocks = first..first + u64::from(geo.blocks_in_group(group));
    let flex = geo.groups_per_flex.max(1);
    // Without flex_bg, the bitmaps and the table of every group are in the group itself.
    let near = |other: &u32| if geo.flex_bg { other / flex == group.0 / flex } else { *other == group.0 };
    let near = pieces.groups(blocks, geo.inode_table_blocks.into()).filter(near);
    bitmap::init_block_bitmap(&mut bitmap, group, near.map(|other| &check.descs[other as usize]), geo);
    bitmap
}

fn bad(out: &mut Out, problem: Problem, place: Place, found: impl Into<u64>, expected: impl Into<u64>) {
    out.sink.push(Finding::new(problem, place, found, expected));
}

/// Checks a block bitmap. `stored` means that it is on the device.
fn block_bitmap(check: &Check, group: GroupNr, bitmap: &[u8], stored: bool, out: &mut Out) {
    let geo = &check.geo;
    let desc = &check.descs[group.0 as usize];
    let bits = geo.clusters_in_group(group);
    let first_cluster = geo.first_block_of_group(group).0 >> geo.cluster_bits;
    let block_of = |bit: u32| BlockNr((first_cluster + u64::from(bit)) << geo.cluster_bits);
    let mut free = 0;
    let mut unlike = Vec::new();
    for bit in (0..bits).step_by(64) {
        let count = (bits - bit).min(64);
        let mask = if count == 64 { !0 } else { (1u64 << count) - 1 };
        let actual = check.claims.used.word_at(first_cluster + u64::from(bit)) & mask;
        let claimed = word(bitmap, bit) & mask;
        free += u64::from((mask & !claimed).count_ones());
        out.used_clusters += u64::from(actual.count_ones());
        let mut differ = actual ^ claimed;
        while differ != 0 {
            let low = differ.trailing_zeros();
            unlike.push((bit + low, actual >> low & 1 != 0));
            differ &= differ - 1;
        }
    }
    if !stored && unlike.iter().any(|(_, used)| *used) {
        let place = Place::Group(group);
        bad(out, Problem::BlockUninit, place, 0u64, 0u64);
    }
    ranges(&unlike, |bit, count, used| {
        let problem = if used { Problem::BlockUsed } else { Problem::BlockUnused };
        bad(out, problem, Place::Blocks(block_of(bit)), u64::from(count) << geo.cluster_bits, 0u64);
    });
    let place = Place::Group(group);
    if stored {
        let mut note = |one| out.sink.push(finding(one, Piece::BlockBitmap, group));
        desc.block_bitmap_damage(bitmap, group, geo, &mut note);
    }
    if u64::from(desc.free_clusters) != free {
        bad(out, Problem::FreeBlockCountGroup, place, desc.free_clusters, free);
    }
    out.free_clusters += free;
}

/// Checks an inode bitmap; `bytes` is `None` if it was never written.
fn inode_bitmap(check: &Check, group: GroupNr, bytes: Option<&[u8]>, out: &mut Out) {
    let geo = &check.geo;
    let desc = &check.descs[group.0 as usize];
    let bits = geo.inodes_per_group;
    let first = group.0 * bits + 1;
    let mut states = check.inodes.of_group(group.0);
    let (mut free, mut directories) = (0u64, 0u64);
    let mut unlike = Vec::new();
    for bit in 0..bits {
        let state = states.next().map(|(_, state)| state);
        let used = state.is_some_and(|state| state.has(InodeState::USED)) || always_used(check, first + bit);
        let stored = bytes.is_some_and(|bytes| bitmap::test(bytes, bit));
        let is_dir = state.is_some_and(|state| used && state.kind() == Kind::Directory);
        free += u64::from(!stored);
        directories += u64::from(is_dir && stored);
        out.used_inodes += u64::from(used);
        out.directories += u64::from(is_dir);
        if used != stored {
            unlike.push((bit, used));
        }
    }
    let place = Place::Group(group);
    if bytes.is_none() && unlike.iter().any(|(_, used)| *used) {
        bad(out, Problem::InodeUninit, place, 0u64, 0u64);
    }
    ranges(&unlike, |bit, count, used| {
        let problem = if used { Problem::InodeUsed } else { Problem::InodeUnused };
        bad(out, problem, Place::Inode(InodeNr(first + bit)), count, 0u64);
    });
    if let Some(bytes) = bytes {
        desc.inode_bitmap_damage(bytes, geo, &mut |one| out.sink.push(finding(one, Piece::InodeBitmap, group)));
    }
    if u64::from(desc.free_inodes) != free {
        bad(out, Problem::FreeInodeCountGroup, place, desc.free_inodes, free);
    }
    if u64::from(desc.used_dirs) != directories {
        bad(out, Problem::FreeDirCountGroup, place, desc.used_dirs, directories);
    }
    out.free_inodes += free;
    check.progress(5, group.0.into(), geo.group_count.into());
}

/// Whether the inode is reserved. Such inodes are in use, regardless of the content of their table.
pub fn always_used(check: &Check, ino: u32) -> bool {
    ino < check.geo.first_ino && ino != InodeNr::ROOT.0
}

/// Calls `tell` for each range of adjacent bits that differ in the same way: first bit, number of bits, whether they
/// are in use.
fn ranges(unlike: &[(u32, bool)], mut tell: impl FnMut(u32, u32, bool)) {
    for range in unlike.chunk_by(|one, next| one.0 + 1 == next.0 && one.1 == next.1) {
        tell(range[0].0, range.len() as u32, range[0].1);
    }
}

/// The 64 bits from `bit` on.
fn word(bitmap: &[u8], bit: u32) -> u64 {
    let at = bit as usize / 8;
    let mut bytes = [0; 8];
    let rest = bitmap.get(at..).unwrap_or_default();
    let length = rest.len().min(8);
    bytes[..length].copy_from_slice(&rest[..length]);
    u64::from_le_bytes(bytes)
}

/// Converts damage of a bitmap to a finding.
fn finding(damage: BitmapDamage, piece: Piece, group: GroupNr) -> Finding {
    let is_blocks = piece == Piece::BlockBitmap;
    let (problem, found, expected) = match damage {
        BitmapDamage::Checksum { found, expected } if is_blocks => (Problem::BlockBitmapCsumInvalid, found, expected),
        BitmapDamage::Checksum { found, expected } => (Problem::InodeBitmapCsumInvalid, found, expected),
        BitmapDamage::Padding { bit, bits } if is_blocks => (Problem::BlockBmapPadding, bit, bits),
        BitmapDamage::Padding { bit, bits } => (Problem::InodeBmapPadding, bit, bits),
    };
    Finding::new(problem, Place::Group(group), found, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_in_a_group_are_found_without_a_search_of_all_groups() {
        let (groups, blocks, table) = (10_000u32, 8192, 500);
        let asked = |pieces: &Pieces| -> usize {
            let range = |group| u64::from(group) * blocks..u64::from(group + 1) * blocks;
            (0..groups).map(|group| pieces.groups(range(group), table).count()).sum()
        };
        let own = |group| [3, 4, 5].map(|at| u64::from(group) * blocks + at);
        let pieces = Pieces::new((0..groups).map(|group| (group, own(group))));
        assert_eq!(asked(&pieces), 3 * groups as usize);
        let found: Vec<u32> = pieces.groups(blocks * 7..blocks * 8, table).collect();
        assert_eq!(found, [7, 7, 7]);
        // All groups have the same places; the table begins at the end of group 0 and extends into group 1.
        let pieces = Pieces::new((0..groups).map(|group| (group, [3, 4, blocks - 1])));
        assert_eq!(pieces.groups(blocks..2 * blocks, table).count(), groups as usize);
        assert_eq!(asked(&pieces), 4 * groups as usize);
    }
}
