//! The layout of a borrowed journal: its length, the free blocks that it takes, and their mapping.
//!
//! Main type: [`Layout`]. The search tries in this order:
//! 1. One piece for the whole journal, in the first group with room from the middle of the image on (as in mke2fs).
//! 2. Pieces of at least 1024 blocks, then of at least 64, then of at least 8.
//!
//! Each round reads a bounded number of bitmaps, and the journal lies in a bounded number of groups and pieces.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_ondisk::extent::{Extent, PackedTree, capacity, pack_tree};
use extant_ondisk::indirect::{self, Stream, pack_pointers};
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::jbd2::default_blocks;
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock, bitmap};
use extant_recovery::JournalMap;

use crate::error::{Damage, Error, Result};
use crate::groups::Groups;

/// The maximum size of a borrowed journal, in bytes. Such a mount is short, so its log need not be large.
const BYTES_MAX: u64 = 16 << 20;
/// The maximum number of bitmaps that one round of the search reads.
const LOOKED_AT_MAX: u32 = 256;
/// The maximum numbers of groups and pieces of one journal. Two blocks for each group must fit in a transaction.
const GROUPS_MAX: usize = 48;
const PIECES_MAX: usize = 256;
/// The number of extents that fit in the root of 60 bytes.
const ROOT_EXTENTS: usize = 4;
/// The maximum length of a written extent, in blocks.
const EXTENT_LEN_MAX: u32 = 1 << 15;

/// The journal's length for a file system of `blocks_count` blocks: as in mke2fs, but at most [`BYTES_MAX`]. `None` if
/// the file system is too small for a journal.
pub(super) fn journal_len(blocks_count: u64, block_size: u32) -> Option<u32> {
    let len = default_blocks(blocks_count)?;
    Some(len.min((BYTES_MAX / u64::from(block_size)) as u32))
}

/// The inode flags for this kind of mapping.
pub(super) fn map_flags(extents: bool) -> InodeFlags {
    if extents { InodeFlags::EXTENTS } else { InodeFlags::empty() }
}

pub(super) struct Layout {
    /// The journal's blocks in order, as runs of adjacent blocks.
    pub runs: Vec<(BlockNr, u32)>,
    /// The blocks of the mapping, and their content.
    pub nodes: Vec<(BlockNr, Vec<u8>)>,
    pub i_block: [u8; 60],
    pub flags: InodeFlags,
}

impl Layout {
    /// Finds room for a journal of `len` blocks. `None` if the free space is too fragmented.
    pub fn find(groups: &Groups, sb: &SuperBlock, len: u32, extents: bool) -> Result<Option<Layout>> {
        let mut extra = if extents { 0 } else { pointer_blocks(len, sb.block_size / 4) };
        // With extents, more pieces need more nodes, which may need one more piece.
        for _ in 0..3 {
            let Some(mut runs) = find_runs(groups, sb, len + extra)? else { return Ok(None) };
            let nodes = cut_off(&mut runs, extra);
            let needed = match extents {
                true if runs.len() <= ROOT_EXTENTS => 0,
                true => runs.len().div_ceil(capacity(sb.block_size as usize)) as u32,
                false => extra,
            };
            if needed == extra {
                let map = map_of(sb, &runs, &nodes, extents)?;
                let layout =
                    |map: PackedTree| Layout { runs, nodes: map.blocks, i_block: map.root, flags: map_flags(extents) };
                return Ok(map.map(layout));
            }
            extra = needed;
        }
        Ok(None)
    }

    /// The number of the journal's blocks.
    pub fn len(&self) -> u32 {
        self.runs.iter().map(|(_, len)| *len).sum()
    }

    /// The block of the journal's superblock.
    pub fn first(&self) -> BlockNr {
        self.runs[0].0
    }

    /// The number of blocks of the journal and its mapping.
    pub fn all_blocks(&self) -> u64 {
        u64::from(self.len()) + self.nodes.len() as u64
    }

    pub fn map(&self) -> Result<JournalMap> {
        Ok(JournalMap::from_runs(self.runs.iter().copied())?)
    }

    /// All blocks by group, as runs: the first block within the group, and the length.
    pub fn by_group(&self, geo: &Geometry) -> Result<BTreeMap<GroupNr, Vec<(u32, u32)>>> {
        let nodes = self.nodes.iter().map(|(b, _)| (*b, 1));
        by_group(geo, self.runs.iter().copied().chain(nodes))
    }
}

/// Splits runs at the borders of groups.
pub(super) fn by_group(
    geo: &Geometry,
    runs: impl Iterator<Item = (BlockNr, u32)>,
) -> Result<BTreeMap<GroupNr, Vec<(u32, u32)>>> {
    let mut out: BTreeMap<GroupNr, Vec<(u32, u32)>> = BTreeMap::new();
    for (mut start, mut len) in runs {
        while len > 0 {
            let place = geo.group_of_block(start).filter(|(g, at)| *at < geo.blocks_in_group(*g));
            let Some((group, at)) = place else {
                return Err(Error::corrupt(Damage::Journal, "a block that does not exist").at(start));
            };
            let n = len.min(geo.blocks_in_group(group) - at);
            out.entry(group).or_default().push((at, n));
            (start.0, len) = (start.0 + u64::from(n), len - n);
        }
    }
    Ok(out)
}

/// Removes the last `n` blocks from the runs.
fn cut_off(runs: &mut Vec<(BlockNr, u32)>, mut n: u32) -> Vec<BlockNr> {
    let mut out = Vec::with_capacity(n as usize);
    while let Some((start, len)) = runs.last_mut()
        && n > 0
    {
        *len -= 1;
        n -= 1;
        out.push(BlockNr(start.0 + u64::from(*len)));
        if *len == 0 {
            runs.pop();
        }
    }
    out.reverse();
    out
}

fn find_runs(groups: &Groups, geo: &Geometry, want: u32) -> Result<Option<Vec<(BlockNr, u32)>>> {
    for least in [want, 1024, 64, 8] {
        if least > geo.blocks_per_group || (least > want) {
            continue;
        }
        if let Some(runs) = collect_runs(groups, geo, want, least)? {
            return Ok(Some(runs));
        }
    }
    Ok(None)
}

/// Collects free runs of at least `least` blocks until they contain `want` blocks.
fn collect_runs(groups: &Groups, geo: &Geometry, want: u32, least: u32) -> Result<Option<Vec<(BlockNr, u32)>>> {
    let count = groups.count();
    let (mut runs, mut left, mut looked_at, mut in_groups) = (Vec::<(BlockNr, u32)>::new(), want, 0, 0);
    for i in 0..count {
        let group = GroupNr((count / 2 + i) % count);
        if groups.with(group, |d| d.free_clusters)? < least.min(left) {
            continue;
        }
        looked_at += 1;
        if looked_at > LOOKED_AT_MAX || in_groups >= GROUPS_MAX || runs.len() >= PIECES_MAX {
            break;
        }
        let (first, end) = (geo.first_block_of_group(group), geo.blocks_in_group(group));
        let before = left;
        groups.block_bitmap(group)?.read(|bytes| {
            let mut at = 0;
            while let Some(start) = bitmap::find_next_zero(bytes, at..end)
                && left > 0
            {
                at = bitmap::find_next_one(bytes, start..end).unwrap_or(end);
                if at - start < least.min(left) {
                    continue;
                }
                let (start, n) = (BlockNr(first.0 + u64::from(start)), (at - start).min(left));
                left -= n;
                match runs.last_mut() {
                    Some((s, len)) if s.0 + u64::from(*len) == start.0 && *len + n <= EXTENT_LEN_MAX => *len += n,
                    _ => runs.push((start, n)),
                }
            }
        });
        in_groups += usize::from(left < before);
        if left == 0 {
            return Ok((runs.len() <= PIECES_MAX).then_some(runs));
        }
    }
    Ok(None)
}

/// The map of `runs` with `nodes` as its blocks. `None`: it needs another number of them, or cannot be.
fn map_of(sb: &SuperBlock, runs: &[(BlockNr, u32)], nodes: &[BlockNr], extents: bool) -> Result<Option<PackedTree>> {
    let mut free = nodes.iter().copied();
    let tree = if extents {
        let mut lblk = 0;
        let extent = |(pblk, len): &(BlockNr, u32)| {
            lblk += len;
            Extent { lblk: LogicalBlock(lblk - len), pblk: *pblk, len: *len, unwritten: false }
        };
        let extents: Vec<Extent> = runs.iter().map(extent).collect();
        let seed = sb.metadata_csum.then(|| sb.checksum_seed().for_inode(InodeNr::JOURNAL, 0).raw());
        Some(pack_tree(&extents, sb.block_size, seed, || free.next())?)
    } else {
        let blocks = runs.iter().flat_map(|(start, len)| (0..u64::from(*len)).map(|i| BlockNr(start.0 + i)));
        pack_pointers(sb.block_size, (0..).map(LogicalBlock).zip(blocks), |_| free.next()).ok()
    };
    Ok(tree.filter(|tree| tree.blocks.len() == nodes.len()))
}

/// The number of pointer blocks for `len` blocks, with `per_block` pointers in each.
fn pointer_blocks(len: u32, per_block: u32) -> u32 {
    let whole = 0..len;
    let stream = Stream::new(indirect::Geometry { per_block }, std::slice::from_ref(&whole));
    stream.map_or(0, |stream| stream.blocks() as u32 - len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_mke2fs_up_to_the_bound() {
        let cases = [
            (2047, 1024, None),
            (2048, 1024, Some(1024)),
            (32767, 4096, Some(1024)),
            (32768, 4096, Some(4096)),
            (262_144, 4096, Some(4096)),
            (262_144, 1024, Some(8192)),
            (1 << 40, 1024, Some(16384)),
            (1 << 40, 4096, Some(4096)),
        ];
        for (blocks, block_size, len) in cases {
            assert_eq!(journal_len(blocks, block_size), len, "{blocks} blocks of {block_size}");
        }
    }

    #[test]
    fn cut_off_takes_the_last_blocks() {
        let mut runs = vec![(BlockNr(10), 5), (BlockNr(20), 2)];
        assert_eq!(cut_off(&mut runs, 3), [BlockNr(14), BlockNr(20), BlockNr(21)].to_vec());
        assert_eq!(runs, [(BlockNr(10), 4)]);
        assert_eq!(pointer_blocks(12, 256), 0);
        assert_eq!(pointer_blocks(268, 256), 1);
        assert_eq!(pointer_blocks(269, 256), 3);
        assert_eq!(pointer_blocks(16384, 256), 65);
    }
}
