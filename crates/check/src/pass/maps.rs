//! The rules of maps: extent trees and blocks of pointers.
//!
//! Main functions: [`root`] (what lies in the inode), [`node`] (a block of a map), [`count_pieces`] (clusters of a map
//! whose blocks were read in any order).
//!
//! # Locking
//! None.

use extant_ondisk::extent::{Extent, NodeRef};
use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::{BlockNr, InodeNr, indirect};

use super::dir_runs::DirRun;
use super::inodes::{Inode, finish};
use super::walk::{AttributeRef, Mode, Node, Piece, Sums, Tally, Walker};
use super::{quota, xattrs};
use crate::finding::{Finding, Place};
use crate::problem::Problem;

/// Logical blocks end here.
const LOGICAL_END: u64 = 1 << 32;
/// Directories end at 2 GiB where they cannot be larger.
const DIR_BYTES_LOG2: u32 = 31;

/// Looks at an inode's map and its attribute block. `reserved`: it is an inode with a purpose.
pub fn root(walker: &mut Walker<'_>, inode: &Inode<'_>, reserved: bool) {
    let check = walker.check;
    let mut tally = Tally {
        ino: inode.ino,
        generation: inode.raw.i_generation.get(),
        mode: inode.raw.i_mode.get(),
        flags: inode.raw.i_flags.get(),
        size: inode.size,
        blocks: inode.blocks(check),
        size_high: inode.raw.i_size_high.get() != 0,
        owners: quota::owners(check, inode),
        late: check.features.ea_inode && xattrs::has_outside_values(inode),
        attributes: 0,
        values: 0,
        unknown_values: false,
        sums: Sums::default(),
    };
    if xattrs::has_block(check, inode) {
        let (block, generation) = (inode.file_acl, inode.raw.i_generation.get());
        let seeks_context = !reserved && xattrs::seeks_context(inode);
        walker.out.attributes.push(AttributeRef { block, ino: inode.ino, generation, seeks_context });
        tally.sums.clusters += 1;
        tally.attributes = block;
        // Whether values lie in inodes of their own, the block says, which is read later.
        tally.late |= check.features.ea_inode;
    }
    // The list of bad blocks has a map without a mode.
    let has_map = inode.has_map() || (inode.ino == 1 && reserved);
    let mut pieces = Vec::new();
    let before = walker.out.descents;
    if has_map {
        if check.features.extents && inode.flags.contains(InodeFlags::EXTENTS) {
            match NodeRef::parse(&inode.raw.i_block, 0) {
                Ok(node) => {
                    // What hangs below an index ends with the file. An orphan's size may be set already.
                    let last = node.key(node.len().saturating_sub(1)).map_or(0, u64::from);
                    let eof = inode.size.div_ceil(check.geo.block_size.into());
                    let end = match node.depth() {
                        0 => 0,
                        _ if eof > last && eof < LOGICAL_END && !check.orphans.contains(&inode.ino) => eof,
                        _ => LOGICAL_END,
                    };
                    let index = walker.out.tallies.len() as u32;
                    extents(walker, &mut tally, index, &node, 0, end, &mut pieces);
                }
                Err(_) => walker.bad_inode(Problem::MissingExtentHeader, inode.ino, 0u64, 0u64),
            }
        } else {
            let index = walker.out.tallies.len() as u32;
            pointers(walker, &mut tally, index, &inode.raw.i_block, None, &mut pieces);
        }
    }
    if walker.out.descents == before && !tally.late {
        count_pieces(walker, &mut tally, &pieces);
        finish(walker, &tally);
    } else {
        walker.out.tallies.push(tally);
        walker.out.pieces.extend(pieces);
    }
}

/// Looks at a block of a map, which nobody else looks at.
pub fn node(walker: &mut Walker<'_>, tally: &Tally, node: &Node, bytes: &[u8]) {
    let mut part = Tally { sums: Sums::default(), ..*tally };
    let mut pieces = Vec::new();
    if node.pointers {
        pointers(walker, &mut part, node.tally, bytes, Some(node), &mut pieces);
    } else {
        let place = place(node.ino, node.first, node.block);
        match NodeRef::parse(bytes, node.block) {
            Ok(view) if view.depth() == u16::from(node.level) && (view.depth() == 0 || !view.is_empty()) => {
                let seed = walker.check.geo.seed.for_inode(InodeNr(node.ino), tally.generation).raw();
                if walker.check.geo.metadata_csum && view.stored_checksum() != view.checksum(seed) {
                    let (found, expected) = (view.stored_checksum().unwrap_or(0), view.checksum(seed).unwrap_or(0));
                    walker.bad(Finding::new(Problem::ExtentOnlyCsumInvalid, place, found, expected));
                }
                if let Some(first) = view.key(0).map(u64::from).filter(|first| *first != node.first) {
                    walker.bad(Finding::new(Problem::ExtentIndexStartInvalid, place, node.first, first));
                }
                let first = view.key(0).map_or(node.first, u64::from);
                extents(walker, &mut part, node.tally, &view, first, node.end, &mut pieces);
            }
            _ => walker.bad(Finding::at(Problem::ExtentHeaderInvalid, place)),
        }
    }
    walker.out.pieces.extend(pieces);
    walker.out.sums.push((node.tally, part.sums));
}

fn place(ino: u32, lblk: u64, block: u64) -> Place {
    Place::Mapped { ino: InodeNr(ino), lblk, block: BlockNr(block) }
}

/// Looks at the entries of a node. What lies in it must begin at `first` or later and, unless `end` is 0, end there.
fn extents(
    walker: &mut Walker<'_>,
    tally: &mut Tally,
    index: u32,
    node: &NodeRef<'_>,
    first: u64,
    end: u64,
    pieces: &mut Vec<Piece>,
) {
    let geo = &walker.check.geo;
    let is_dir = FileType::from_mode(tally.mode) == Some(FileType::Directory);
    let eof = tally.size.div_ceil(u64::from(geo.block_size));
    let verity = tally.flags & InodeFlags::VERITY.bits() != 0;
    // The last block of the extent before, which the next must not begin before; and the end of all before.
    let (mut start, mut next) = (first, 0);
    for at in 0..node.len() {
        let Some(key) = node.key(at).map(u64::from) else { break };
        let (block, blocks, unwritten) = match node.depth() {
            0 => match node.extent(at) {
                Some(Extent { pblk, len, unwritten, .. }) => (pblk.0, u64::from(len), unwritten),
                None => break,
            },
            _ => {
                let Some(entry) = node.index(at) else { break };
                let until = node.key(at + 1).map_or(end, u64::from);
                (entry.child.0, until.saturating_sub(key), false)
            }
        };
        let leaf = node.depth() == 0;
        let last = (key + blocks).wrapping_sub(1);
        let there = place(tally.ino, key, block);
        let mut problem = None;
        if block < geo.first_data_block.max(1) || block >= geo.blocks_count {
            problem = Some((Problem::ExtentBadStartBlk, block, 0));
        } else if key < start {
            problem = Some((Problem::OutOfOrderExtents, key, start));
        } else if end != 0 && key + blocks > end && !(last >= eof && (unwritten || verity)) {
            problem = Some((Problem::ExtentEndOutOfBounds, key + blocks, end));
        } else if leaf && blocks == 0 {
            problem = Some((Problem::ExtentLengthZero, 0, 1));
        } else if leaf && block + blocks > geo.blocks_count {
            problem = Some((Problem::ExtentEndsBeyond, block + blocks, geo.blocks_count));
        } else if leaf
            && is_dir
            && !tally.size_high
            && !geo.large_dir
            && key + blocks > 1 << (DIR_BYTES_LOG2 - geo.block_bits)
        {
            problem = Some((Problem::ToobigDir, block, 0));
        } else if leaf && key < next {
            problem = Some((Problem::ExtentCollision, key, next));
        }
        if let Some((problem, found, expected)) = problem {
            walker.bad(Finding::new(problem, there, found, expected));
            continue;
        }
        if !leaf {
            map_block(walker, tally, key, block);
            let level = (node.depth() - 1) as u8;
            let end = key + blocks;
            walker.descend(Node {
                block,
                ino: tally.ino,
                first: key,
                end,
                level,
                pointers: false,
                tally: index,
                times: 1,
            });
            start = key;
            continue;
        }
        if is_dir && unwritten {
            walker.bad(Finding::at(Problem::UninitDblock, there));
        }
        next = key + blocks;
        start = next - 1;
        data(walker, tally, index, key, block, blocks, pieces);
        if !is_dir && !unwritten {
            tally.sums.written_end = tally.sums.written_end.max(next);
        }
    }
}

/// Counts and claims a block of a map.
fn map_block(walker: &mut Walker<'_>, tally: &mut Tally, lblk: u64, block: u64) {
    let resize = tally.ino == InodeNr::RESIZE.0;
    if !resize && walker.check.is_metadata(BlockNr(block)) {
        let there = place(tally.ino, lblk, block);
        walker.bad(Finding::new(Problem::CriticalMetadataCollision, there, block, 0u64));
    }
    tally.sums.clusters += 1;
    walker.claim(tally.ino, lblk, block, 1);
}

/// Counts and claims blocks of data.
fn data(
    walker: &mut Walker<'_>,
    tally: &mut Tally,
    index: u32,
    lblk: u64,
    block: u64,
    blocks: u64,
    pieces: &mut Vec<Piece>,
) {
    tally.sums.end = tally.sums.end.max(lblk + blocks);
    if walker.check.geo.cluster_bits > 0 {
        pieces.push(Piece { tally: index, lblk, block, blocks });
    } else {
        tally.sums.clusters += blocks;
        walker.claim(tally.ino, lblk, block, blocks);
    }
    if FileType::from_mode(tally.mode) == Some(FileType::Directory) && walker.mode == Mode::Check {
        let lblk = u32::try_from(lblk).unwrap_or(u32::MAX);
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        walker.out.dir_runs.push(DirRun { block, ino: tally.ino, lblk, blocks }, walker.check.geo.block_bits);
    }
}

/// Counts and claims what an inode maps in a file system with clusters, from the first logical block to the last.
pub fn count_pieces(walker: &mut Walker<'_>, tally: &mut Tally, pieces: &[Piece]) {
    let bits = walker.check.geo.cluster_bits;
    let mask = (1u64 << bits) - 1;
    // The last logical block so far, and where it lies.
    let mut before: Option<(u64, u64)> = None;
    for piece in pieces {
        let astray = piece.lblk & mask != piece.block & mask;
        let torn = before.is_some_and(|(lblk, block)| {
            piece.lblk & mask != 0 && piece.lblk >> bits == lblk >> bits && piece.block >> bits != block >> bits
        });
        if astray || torn {
            let there = place(tally.ino, piece.lblk, piece.block);
            walker.bad(Finding::new(Problem::MisalignedCluster, there, piece.blocks, 0u64));
        }
        let shared = before.is_some_and(|(_, block)| block >> bits == piece.block >> bits);
        let first = if shared { ((piece.block >> bits) + 1) << bits } else { piece.block };
        let end = piece.block + piece.blocks;
        if first < end {
            tally.sums.clusters += ((end - 1) >> bits) - (first >> bits) + 1;
            walker.claim(tally.ino, piece.lblk + (first - piece.block), first, end - first);
        }
        before = Some((piece.lblk + piece.blocks - 1, end - 1));
    }
}

/// Looks at pointers: the inode's 15 (`node` is `None`), or those of a block.
fn pointers(
    walker: &mut Walker<'_>,
    tally: &mut Tally,
    index: u32,
    bytes: &[u8],
    node: Option<&Node>,
    pieces: &mut Vec<Piece>,
) {
    let geo = &walker.check.geo;
    let kind = FileType::from_mode(tally.mode);
    let (is_dir, is_regular) = (kind == Some(FileType::Directory), kind == Some(FileType::Regular));
    let resize = tally.ino == InodeNr::RESIZE.0;
    let per_block = u64::from(geo.block_size / 4);
    let times = node.map_or(1, |node| node.times);
    // A run of neighbours that is not yet counted: logical, physical, blocks.
    let mut run = (0, 0, 0);
    let slots = if node.is_some() { bytes.len() / 4 } else { indirect::SLOTS };
    for slot in 0..slots {
        let block = u64::from(indirect::pointer(bytes, slot).unwrap_or(0));
        if block == 0 {
            continue;
        }
        // How many levels of pointers lie below, and the first logical block below.
        let (level, lblk) = match node {
            Some(node) => {
                let span = per_block.pow(u32::from(node.level - 1));
                (node.level - 1, node.first + slot as u64 * span)
            }
            None if slot < 12 => (0, slot as u64),
            None => {
                let level = (slot - 11) as u8;
                let before = (1..u32::from(level)).map(|below| per_block.pow(below)).sum::<u64>();
                (level, 12 + before)
            }
        };
        let mut problem = None;
        if is_dir && !geo.large_dir && !tally.size_high && level == 0 && lblk > 1 << (DIR_BYTES_LOG2 - geo.block_bits) {
            problem = Some(Problem::ToobigDir);
        }
        if !is_dir && !is_regular && level == 0 && lblk > 0 && tally.ino != 1 {
            problem = Some(Problem::ToobigSymlink);
        }
        if block < geo.first_data_block || block >= geo.blocks_count {
            problem = Some(Problem::IllegalBlockNum);
        }
        if let Some(problem) = problem {
            walker.bad(Finding::new(problem, place(tally.ino, lblk, block), block, 0u64));
            continue;
        }
        if resize {
            // The blocks that it maps are the file system's own; what they are, the superblock's pass has checked.
            tally.sums.clusters += 1;
            if level == 2 || walker.mode == Mode::Owners {
                walker.claim(tally.ino, lblk, block, 1);
            }
            if level > 0 {
                descend(walker, tally, index, block, lblk, level, times);
            } else {
                tally.sums.end = tally.sums.end.max(lblk + 1);
                tally.sums.written_end = tally.sums.end;
            }
            continue;
        }
        if level > 0 {
            map_block(walker, tally, lblk, block);
            descend(walker, tally, index, block, lblk, level, times);
            continue;
        }
        tally.sums.pointers = tally.sums.pointers.saturating_add(times);
        if run.2 > 0 && run.0 + run.2 == lblk && run.1 + run.2 == block {
            run.2 += 1;
            continue;
        }
        if run.2 > 0 {
            data(walker, tally, index, run.0, run.1, run.2, pieces);
        }
        run = (lblk, block, 1);
    }
    if run.2 > 0 {
        data(walker, tally, index, run.0, run.1, run.2, pieces);
    }
    if !is_dir {
        tally.sums.written_end = tally.sums.written_end.max(tally.sums.end);
    }
}

fn descend(walker: &mut Walker<'_>, tally: &Tally, index: u32, block: u64, first: u64, level: u8, times: u64) {
    let end = LOGICAL_END;
    walker.descend(Node { block, ino: tally.ino, first, end, level, pointers: true, tally: index, times });
}
