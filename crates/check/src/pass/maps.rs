//! The rules of maps: extent trees and blocks of pointers.
//!
//! Main functions: [`root`] (the node in the inode), [`node`] (a block of a map), [`count_pieces`] (clusters of a map
//! whose blocks were read in any order). `extant_ondisk::map` decodes the entries of a node.
//!
//! # Locking
//! None.

use std::ops::Range;

use extant_ondisk::extent::{DEPTH_MAX, ExtentDamage, LOGICAL_END, NodeContext, NodeRef, ROOT_BYTES};
use extant_ondisk::indirect::IndirectDamage;
use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::map::{self, Child, Form, MapDamage, Run, StepItem};
use extant_ondisk::superblock::Geometry;
use extant_ondisk::{BlockNr, GroupNr, InodeNr, indirect};

use super::dir_runs::DirRun;
use super::inodes::{Inode, finish};
use super::walk::{AttributeRef, Mode, Node, Piece, Sums, Tally, Walker};
use super::{quota, xattrs};
use crate::context::Check;
use crate::finding::{Finding, Place};
use crate::problem::Problem;

/// The list of bad blocks has a map without a mode.
const BAD_BLOCKS_INO: u32 = 1;
/// The maximum size of directories that must not be larger than 2 GiB, as a power of two.
const DIR_BYTES_LOG2: u32 = 31;

/// Checks an inode's map and its attribute block. `reserved` means that it is a reserved inode.
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
        late: xattrs::has_outside_values(check, inode),
        attributes: 0,
        values: 0,
        unknown_values: false,
        sums: Sums::default(),
    };
    if xattrs::has_block(check, inode) {
        let (block, generation) = (inode.file_acl, inode.raw.i_generation.get());
        let seeks_context = !reserved && xattrs::seeks_context(check, inode);
        walker.out.attributes.push(AttributeRef { block, ino: inode.ino, generation, seeks_context });
        tally.sums.clusters += 1;
        tally.attributes = block;
        // The attribute block, which is read later, shows whether values are in separate inodes.
        tally.late |= check.geo.ea_inode;
    }
    let has_map = inode.has_map() || (inode.ino == BAD_BLOCKS_INO && reserved);
    let before = walker.out.descents;
    let mut pieces = Vec::new();
    if has_map {
        let is_extents = check.geo.extents && inode.flags.contains(InodeFlags::EXTENTS);
        let form = if is_extents { Form::Extents } else { Form::Indirect };
        let index = walker.out.tallies.len() as u32;
        let mut part = Part { tally: &mut tally, index, form, node: None, pieces: &mut pieces };
        step(walker, &mut part, &inode.raw.i_block);
    }
    if walker.out.descents == before && !tally.late {
        count_pieces(walker, &mut tally, &pieces);
        finish(walker, &tally);
    } else {
        walker.out.tallies.push(tally);
        walker.out.pieces.extend(pieces);
    }
}

/// Checks a block of a map, each only once.
pub fn node(walker: &mut Walker<'_>, tally: &Tally, node: &Node, bytes: &[u8]) {
    let mut tally = Tally { sums: Sums::default(), ..*tally };
    let mut pieces = Vec::new();
    let form = if node.pointers { Form::Indirect } else { Form::Extents };
    let mut part = Part { tally: &mut tally, index: node.tally, form, node: Some(node), pieces: &mut pieces };
    step(walker, &mut part, bytes);
    walker.out.pieces.extend(pieces);
    walker.out.sums.push((node.tally, tally.sums));
}

/// A node of a map, and its contribution to its inode.
struct Part<'a> {
    tally: &'a mut Tally,
    /// The index of the tally.
    index: u32,
    form: Form,
    /// `None` if the node is in the inode.
    node: Option<&'a Node>,
    pieces: &'a mut Vec<Piece>,
}

impl Part<'_> {
    /// One past the last logical block that may be mapped here. Below the last index of a tree, it follows from the
    /// file's size, except for unwritten blocks, files with a Merkle tree, and orphans, whose size may already be the
    /// new one.
    fn end(&self, check: &Check, unwritten: bool) -> u64 {
        let file_end = self.tally.size.div_ceil(check.geo.block_size.into());
        let is_cut = self.form == Form::Extents
            && self.node.is_some_and(|node| node.end == LOGICAL_END.into() && node.first < file_end)
            && !unwritten
            && self.tally.flags & InodeFlags::VERITY.bits() == 0
            && !check.orphans.contains(&self.tally.ino);
        if is_cut { file_end } else { u64::MAX }
    }

    fn is_dir(&self) -> bool {
        FileType::from_mode(self.tally.mode) == Some(FileType::Directory)
    }
}

fn place(ino: u32, lblk: u64, block: u64) -> Place {
    Place::Mapped { ino: InodeNr(ino), lblk, block: BlockNr(block) }
}

/// The place of a node's entry, or of the node itself if `block` is 0.
fn entry(part: &Part<'_>, lblk: u64, block: u64) -> Place {
    let node = BlockNr(part.node.map_or(0, |node| node.block));
    Place::Node { ino: InodeNr(part.tally.ino), node, lblk, block: BlockNr(block) }
}

/// Checks a node's entries.
fn step(walker: &mut Walker<'_>, part: &mut Part<'_>, bytes: &[u8]) {
    let geo = &walker.check.geo;
    let context = NodeContext {
        seed: geo.metadata_csum.then(|| geo.seed.for_inode(InodeNr(part.tally.ino), part.tally.generation).raw()),
        is_dir: part.is_dir(),
        cluster_bits: geo.cluster_bits,
        valid: |block: BlockNr, blocks: u32| block.0 != 0 && geo.contains_range(block, blocks.into()),
    };
    let (node, form) = (part.node, part.form);
    let mut has_header = true;
    let mut found = |found| match found {
        StepItem::Child(one) => child(walker, part, one),
        StepItem::Run(one) => run(walker, part, one),
        StepItem::Damage(MapDamage::Indirect(damage)) => pointer(walker, part, damage),
        StepItem::Damage(MapDamage::Extent(damage)) => {
            let Some((problem, lblk, block, found, expected)) = extent(geo, part, bytes, damage) else { return };
            // A header can have several faults.
            let is_header = matches!(problem, Problem::ExtentHeaderInvalid | Problem::MissingExtentHeader);
            if has_header || !is_header {
                walker.bad(Finding::new(problem, entry(part, lblk, block), found, expected));
            }
            has_header &= !is_header;
        }
    };
    match (node, <&[u8; ROOT_BYTES]>::try_from(bytes)) {
        (Some(node), _) => {
            let &Node { block, first, end, depth, .. } = node;
            let child = Child { block: BlockNr(block), first: first as u32, end, depth, form };
            map::node(&child, bytes, &context, &mut found);
        }
        (None, Ok(root)) => map::root(form, root, geo.block_size, &context, &mut found),
        (None, Err(_)) => {}
    }
}

/// Converts damage of a node of an extent tree: the problem, logical and physical block, found, expected. `None` if it
/// is no damage for e2fsck.
fn extent(
    geo: &Geometry,
    part: &Part<'_>,
    bytes: &[u8],
    damage: ExtentDamage,
) -> Option<(Problem, u64, u64, u64, u64)> {
    use ExtentDamage as D;
    let view = NodeRef::sound(bytes);
    let key = |entry: u16| view.and_then(|view| view.key(entry.into())).map_or(0, u64::from);
    // The target of a leaf entry or an index entry.
    let target = |entry: u16| {
        let Some(view) = view else { return 0 };
        let child = || view.index(entry.into()).map(|index| index.child);
        let extent = || view.extent(entry.into()).map(|extent| extent.pblk);
        let block = if view.depth() == 0 { extent() } else { child() };
        block.map_or(0, |block| block.0)
    };
    let first = part.node.map_or(0, |node| node.first);
    let whole = |problem, found, expected| Some((problem, first, 0, found, expected));
    Some(match damage {
        D::TooDeep { found } if NodeRef::is_only_too_deep(bytes) => {
            return whole(Problem::ExtentTooDeep, found.into(), DEPTH_MAX.into());
        }
        D::Length { .. } | D::Magic { .. } | D::Room { .. } | D::Entries { .. } | D::TooDeep { .. } => {
            let is_root = part.node.is_none();
            if is_root && part.tally.ino == BAD_BLOCKS_INO {
                // No kernel reads the list of bad blocks.
                return None;
            }
            let problem = if is_root { Problem::MissingExtentHeader } else { Problem::ExtentHeaderInvalid };
            return whole(problem, 0, 0);
        }
        D::Depth { found, expected } => return whole(Problem::ExtentHeaderInvalid, found.into(), expected.into()),
        // In the inode, an index node without entries is no damage for e2fsck.
        D::Empty => return part.node.and_then(|_| whole(Problem::ExtentHeaderInvalid, 0, 1)),
        D::Checksum { found, expected } => {
            return whole(Problem::ExtentOnlyCsumInvalid, found.into(), expected.into());
        }
        D::BeforeParent { start, first } | D::BehindKey { start, first } => {
            return whole(Problem::ExtentIndexStartInvalid, first.into(), start.into());
        }
        D::BehindParent { entry, start, end, limit } => {
            (Problem::ExtentEndOutOfBounds, start.into(), target(entry), end, limit)
        }
        D::BehindEnd { entry, start, len } => {
            let end = u64::from(start) + u64::from(len);
            (Problem::ExtentEndOutOfBounds, start.into(), target(entry), end, LOGICAL_END.into())
        }
        D::OutOfOrder { entry, start, previous } => {
            (Problem::OutOfOrderExtents, start.into(), target(entry), start.into(), previous.into())
        }
        // e2fsck calls it a collision if only one block is in both.
        D::Overlap { entry, start, end } => {
            let is_collision = u64::from(start) + 1 == end;
            let problem = if is_collision { Problem::ExtentCollision } else { Problem::OutOfOrderExtents };
            (problem, start.into(), target(entry), start.into(), end)
        }
        D::ZeroLength { entry, start } => (Problem::ExtentLengthZero, start.into(), target(entry), 0, 1),
        D::Child { entry, block } | D::BlockStart { entry, block, .. } => {
            (Problem::ExtentBadStartBlk, key(entry), block.0, block.0, 0)
        }
        D::BlockEnd { entry, block, len } => {
            (Problem::ExtentEndsBeyond, key(entry), block.0, block.0 + u64::from(len), geo.blocks_count)
        }
        D::UnwrittenDirectory { entry, .. } => (Problem::UninitDblock, key(entry), target(entry), 0, 0),
        D::Cluster { entry, start, block } => {
            let len = view.and_then(|view| view.extent(entry.into())).map_or(0, |extent| extent.len);
            (Problem::MisalignedCluster, start.into(), block.0, len.into(), 0)
        }
    })
}

/// Reports damage of a block of pointers.
fn pointer(walker: &mut Walker<'_>, part: &Part<'_>, damage: IndirectDamage) {
    let geometry = indirect::Geometry::new(walker.check.geo.block_size);
    let lblk = |index: u32| match part.node {
        Some(node) => node.first + u64::from(index) * geometry.span(node.depth.into()),
        None => geometry.slot_start(index as usize).map_or(0, |(first, _)| first),
    };
    let (problem, lblk, block) = match damage {
        IndirectDamage::Pointer { index, block } => (Problem::IllegalBlockNum, lblk(index), block),
        IndirectDamage::BehindEnd { block, lblk, .. } => (Problem::ToobigReg, lblk, block),
    };
    walker.bad(Finding::new(problem, entry(part, lblk, block.into()), block, 0u64));
}

/// Counts a block of a map, claims it and queues it for reading.
fn child(walker: &mut Walker<'_>, part: &mut Part<'_>, child: Child) {
    let (ino, first, block) = (part.tally.ino, u64::from(child.first), child.block.0);
    let is_resize = ino == InodeNr::RESIZE.0;
    part.tally.sums.clusters += 1;
    // The blocks that the resize inode maps belong to the file system itself, except for the one block that refers to
    // them.
    if !is_resize || child.depth == 1 || walker.mode == Mode::Owners {
        if !is_resize && walker.check.is_metadata(child.block) {
            walker.bad(Finding::new(Problem::CriticalMetadataCollision, entry(part, first, block), block, 0u64));
        }
        walker.claim(ino, first, block, 1);
    }
    walker.descend(Node {
        block,
        ino,
        first,
        end: child.end,
        depth: child.depth,
        pointers: child.form == Form::Indirect,
        tally: part.index,
        times: part.node.map_or(1, |node| node.times),
    });
}

/// Counts and claims blocks of a file's data.
fn run(walker: &mut Walker<'_>, part: &mut Part<'_>, run: Run) {
    let geo = &walker.check.geo;
    let (lblk, block, blocks) = (u64::from(run.lblk.0), run.pblk.0, u64::from(run.len));
    let (end, is_dir) = (lblk + blocks, part.is_dir());
    let limit = part.end(walker.check, run.unwritten);
    let tally = &mut *part.tally;
    let is_pointers = part.form == Form::Indirect;
    let is_file = is_dir || FileType::from_mode(tally.mode) == Some(FileType::Regular);
    let dir_end = 1 << (DIR_BYTES_LOG2 - geo.block_bits);
    let problem = match () {
        () if end > limit => Some((Problem::ExtentEndOutOfBounds, end, limit)),
        () if is_dir && !geo.large_dir && !tally.size_high && end > dir_end => Some((Problem::ToobigDir, block, 0)),
        () if is_pointers && !is_file && end > 1 && tally.ino != BAD_BLOCKS_INO => {
            Some((Problem::ToobigSymlink, block, 0))
        }
        () => None,
    };
    if let Some((problem, found, expected)) = problem {
        return walker.bad(Finding::new(problem, entry(part, lblk, block), found, expected));
    }
    tally.sums.end = tally.sums.end.max(end);
    if !is_dir && !run.unwritten {
        tally.sums.written_end = tally.sums.written_end.max(end);
    }
    if is_pointers {
        let times = part.node.map_or(1, |node| node.times);
        tally.sums.pointers = tally.sums.pointers.saturating_add(times.saturating_mul(blocks));
    }
    if tally.ino == InodeNr::RESIZE.0 {
        // The blocks belong to the file system itself, and the pass over the superblock has checked them.
        tally.sums.clusters += blocks;
        if walker.mode == Mode::Owners {
            walker.claim(tally.ino, lblk, block, blocks);
        }
    } else if tally.ino == BAD_BLOCKS_INO {
        let node = BlockNr(part.node.map_or(0, |node| node.block));
        bad_blocks(walker, tally, node, (lblk, block, blocks));
    } else if geo.cluster_bits > 0 {
        part.pieces.push(Piece { tally: part.index, lblk, block, blocks });
    } else {
        tally.sums.clusters += blocks;
        walker.claim_data(tally, lblk, block, blocks);
    }
    if is_dir && walker.mode == Mode::Check {
        let dir_run = DirRun { block, ino: tally.ino, lblk: run.lblk.0, blocks: run.len };
        walker.out.dir_runs.push(dir_run, geo.block_bits);
    }
}

/// Claims blocks of the list of bad blocks. A table may be on some of them, but not the primary superblock or
/// descriptors, which have been read and could not be moved.
fn bad_blocks(walker: &mut Walker<'_>, tally: &mut Tally, node: BlockNr, (lblk, block, blocks): (u64, u64, u64)) {
    tally.sums.clusters += blocks;
    let (ino, primary) = (tally.ino, primary_blocks(&walker.check.geo));
    for (lblk, block) in (0..blocks).map(|step| (lblk + step, block + step)) {
        if primary.contains(&block) {
            let place = Place::Node { ino: InodeNr(ino), node, lblk, block: BlockNr(block) };
            walker.bad(Finding::new(Problem::CriticalMetadataCollision, place, block, 0u64));
        } else if !walker.check.is_metadata(BlockNr(block)) {
            walker.claim(ino, lblk, block, 1);
        }
    }
}

/// The blocks of the primary superblock and of the descriptors after it.
fn primary_blocks(geo: &Geometry) -> Range<u64> {
    let first = geo.super_location(GroupNr(0)).0.0;
    // With meta block groups from the first one on, its descriptors are there as well.
    let behind = geo.first_meta_bg.map_or(geo.desc_blocks, |first| first.clamp(1, geo.desc_blocks));
    first..first + 1 + u64::from(behind)
}

/// Counts and claims the blocks of an inode in a file system with clusters, from the first logical block to the last.
pub fn count_pieces(walker: &mut Walker<'_>, tally: &mut Tally, pieces: &[Piece]) {
    let bits = walker.check.geo.cluster_bits;
    let mask = (1u64 << bits) - 1;
    // The last logical block so far, and its place.
    let mut before: Option<(u64, u64)> = None;
    for piece in pieces {
        let torn = before.is_some_and(|(lblk, block)| {
            piece.lblk & mask != 0 && piece.lblk >> bits == lblk >> bits && piece.block >> bits != block >> bits
        });
        if torn {
            let there = place(tally.ino, piece.lblk, piece.block);
            walker.bad(Finding::new(Problem::MisalignedCluster, there, piece.blocks, 0u64));
        }
        let shared = before.is_some_and(|(_, block)| block >> bits == piece.block >> bits);
        let first = if shared { ((piece.block >> bits) + 1) << bits } else { piece.block };
        let end = piece.block + piece.blocks;
        if first < end {
            tally.sums.clusters += ((end - 1) >> bits) - (first >> bits) + 1;
            walker.claim_data(tally, piece.lblk + (first - piece.block), first, end - first);
        }
        before = Some((piece.lblk + piece.blocks - 1, end - 1));
    }
}
