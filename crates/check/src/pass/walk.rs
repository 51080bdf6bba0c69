//! The walk over all inodes and their maps, in waves: tables, then the blocks of maps level by level, then attribute
//! blocks and the contents that have to be read.
//!
//! Main types: [`Mode`] (a check, or the search for the owners of blocks that are claimed twice), [`Out`] (the results
//! of a thread), [`Tally`] (the facts about an inode whose map has its own blocks), [`Node`] (a block of a map that has
//! to be read), [`WalkResult`] (the input of the later passes).
//!
//! # Locking
//! None of its own.

use std::iter::Peekable;
use std::sync::Arc;

use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::{BlockNr, InodeNr};

use super::dir_runs::DirRuns;
use super::{inodes, maps, peeks, quota, xattrs};
use crate::context::{Check, inodes_read};
use crate::error::Result;
use crate::finding::{Finding, Place};
use crate::pile::Pile;
use crate::problem::Problem;
use crate::report::Sink;
use crate::scan::{self, Output, RUN_BYTES, Run};

/// The purpose of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every rule is checked, and blocks are claimed.
    Check,
    /// The owners of blocks that were claimed twice are searched.
    Owners,
}

/// A block of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    pub block: u64,
    pub ino: u32,
    /// The first logical block below it, and the end of the blocks that may be there.
    pub first: u64,
    pub end: u64,
    /// The number of levels of nodes below it.
    pub depth: u16,
    pub pointers: bool,
    /// The index of its inode's tally.
    pub tally: u32,
    /// The number of times that the map refers to it.
    pub times: u64,
}

/// The sums over an inode's map so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The number of clusters of data, map and attribute block.
    pub clusters: u64,
    /// One past the last logical block.
    pub end: u64,
    /// One past the last logical block that is written.
    pub written_end: u64,
    /// The number of pointers to data, each counted as often as the map refers to it.
    pub pointers: u64,
    /// Whether part of the map is unknown, because a block of it is also in another map and was descended for that one.
    pub partial: bool,
}

impl Sums {
    pub fn add(&mut self, other: Sums) {
        self.clusters += other.clusters;
        self.pointers = self.pointers.saturating_add(other.pointers);
        self.end = self.end.max(other.end);
        self.written_end = self.written_end.max(other.written_end);
        self.partial |= other.partial;
    }
}

/// An inode and the sums over its map.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    pub ino: u32,
    pub generation: u32,
    pub mode: u16,
    pub flags: u32,
    pub size: u64,
    /// The stored count: sectors, or blocks with the flag huge_file.
    pub blocks: u64,
    pub size_high: bool,
    pub owners: quota::Owners,
    /// Values of its attributes may be in inodes, which count for it, so it is checked after all attributes have been
    /// read.
    pub late: bool,
    /// The attribute block; 0 if there is none.
    pub attributes: u64,
    /// The number of inodes with values of its attributes.
    pub values: u32,
    /// Whether one of them does not match the attribute, so that the count of blocks cannot be checked.
    pub unknown_values: bool,
    pub sums: Sums,
}

/// A run of an inode in a file system with clusters, for which adjacent runs must be counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    pub tally: u32,
    pub lblk: u64,
    pub block: u64,
    pub blocks: u64,
}

/// A directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dir {
    pub ino: u32,
    pub generation: u32,
    pub flags: u32,
    /// One past the last logical block.
    pub blocks: u32,
    pub extents: bool,
    pub partial: bool,
}

/// A directory whose entries are in its inode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InlineDir {
    pub ino: u32,
    /// The 60 bytes of `i_block`, and then the bytes of the attribute.
    pub bytes: Vec<u8>,
}

/// An inode that refers to an attribute block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttributeRef {
    pub block: u64,
    pub ino: u32,
    pub generation: u32,
    /// Whether it is encrypted and has no context in the inode.
    pub seeks_context: bool,
}

/// An attribute whose value is in a separate inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueRef {
    pub value: u32,
    pub ino: u32,
    pub generation: u32,
    /// The attribute block; 0 if the attribute is in the inode.
    pub block: u64,
    pub size: u64,
    /// The attribute's hash, and those of its name (with unsigned and with signed bytes), which the value's hash
    /// completes.
    pub hash: u32,
    pub name_hashes: [u32; 2],
}

/// The usage that a value in a separate inode adds to that of an inode, or of each inode with an attribute block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Charge {
    /// The attribute block, or 0 and the inode.
    pub of: (u64, u32),
    pub clusters: u64,
    pub inodes: u32,
    pub unknown: bool,
}

/// An inode that contains the value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueInode {
    pub ino: u32,
    pub size: u64,
    /// The stored number of attributes that refer to it.
    pub references: u64,
    /// Whether it is a value of Lustre, which stores no reference count.
    pub uncounted: bool,
    /// The value's hash.
    pub hash: u32,
    /// The number and generation of the owner, which a value of Lustre stores.
    pub owner: u32,
    pub generation: u32,
}

/// The results of a thread.
#[derive(Default)]
pub struct Out {
    pub sink: Sink,
    pub nodes: Vec<Node>,
    /// The number of nodes at which repeated pointers to a block are removed; 0 until the first time.
    dedup_at: usize,
    pub tallies: Vec<Tally>,
    pub sums: Vec<(u32, Sums)>,
    /// The tallies of inodes some of whose blocks were descended for another inode.
    partial: Vec<u32>,
    pub pieces: Vec<Piece>,
    /// The tallies that are checked when all attributes have been read.
    late: Vec<Tally>,
    pub dir_runs: DirRuns,
    pub dirs: Pile<Dir>,
    pub inline_dirs: Vec<InlineDir>,
    pub attributes: Vec<AttributeRef>,
    pub value_refs: Vec<ValueRef>,
    pub values: Vec<ValueInode>,
    /// Encrypted inodes and the hashes of their policies.
    pub policies: Vec<(u32, u32)>,
    pub peeks: Vec<peeks::Peek>,
    pub usage: quota::Sums,
    pub owners: Sink,
    /// The owners of clusters that are claimed more than once.
    sharers: Vec<u32>,
    pub large_files: u64,
    /// The number of map blocks that were queued.
    pub descents: u64,
}

impl Out {
    /// If there are very many nodes, keeps only the smallest of those with the same block.
    fn limit_nodes(&mut self) {
        if self.nodes.len() >= self.dedup_at.max(NODES_BEFORE_DEDUP) {
            dedup(&mut self.nodes, &mut self.partial);
            // If most of them are different, repeated sorting would take quadratic time.
            self.dedup_at = 2 * self.nodes.len();
        }
    }

    /// Adds to the sums over a map.
    fn add(&mut self, tally: u32, sums: Sums) {
        if let Some(tally) = self.tallies.get_mut(tally as usize) {
            tally.sums.add(sums);
        }
    }
}

impl Output for Out {
    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }
}

/// The input of the passes after the walk.
#[derive(Default)]
pub struct WalkResult {
    pub dir_runs: DirRuns,
    pub dirs: Pile<Dir>,
    pub inline_dirs: Vec<InlineDir>,
    pub usage: quota::Sums,
    pub large_files: u64,
    /// In a search for owners, the inodes with clusters that are claimed more than once, ascending.
    pub sharers: Vec<u32>,
}

/// The number of nodes that a thread collects before it removes those with the same block.
const NODES_BEFORE_DEDUP: usize = 1 << 14;

/// One thread's part of a walk.
pub struct Walker<'a> {
    pub check: &'a Check,
    pub mode: Mode,
    pub out: &'a mut Out,
}

impl Walker<'_> {
    /// Records a finding, except in a search for owners, because the first walk has reported it.
    pub fn bad(&mut self, finding: Finding) {
        if self.mode == Mode::Check {
            self.out.sink.push(finding);
        }
    }

    /// Records a finding about an inode.
    pub fn bad_inode(&mut self, problem: Problem, ino: u32, found: impl Into<u64>, expected: impl Into<u64>) {
        self.bad(Finding::new(problem, Place::Inode(InodeNr(ino)), found, expected));
    }

    /// Claims blocks for an inode or, in a search for owners, reports it as an owner.
    pub fn claim(&mut self, ino: u32, lblk: u64, first: u64, blocks: u64) {
        self.claim_as(false, ino, lblk, first, blocks);
    }

    /// Claims blocks of an inode's data, which files may share with the feature shared_blocks.
    pub fn claim_data(&mut self, of: &Tally, lblk: u64, first: u64, blocks: u64) {
        let is_file = FileType::from_mode(of.mode) == Some(FileType::Regular);
        let is_own = of.ino < self.check.geo.first_ino || of.flags & InodeFlags::EA_INODE.bits() != 0;
        self.claim_as(is_file && !is_own, of.ino, lblk, first, blocks);
    }

    fn claim_as(&mut self, data: bool, ino: u32, lblk: u64, first: u64, blocks: u64) {
        let clusters = self.check.clusters(first, blocks);
        if self.mode == Mode::Check {
            return self.check.claims.claim(clusters, data);
        }
        if !self.check.claims.double.any(clusters.clone()) {
            return;
        }
        if self.out.sharers.last() != Some(&ino) {
            self.out.sharers.push(ino);
        }
        let bits = self.check.geo.cluster_bits;
        // There is one finding for each run of clusters, because one for each cluster could be more than the image has
        // bytes.
        let double = &self.check.claims.double;
        let mut begin = double.find(clusters.start, clusters.end, true);
        while double.test(begin) && begin < clusters.end {
            let end = double.find(begin, clusters.end, false);
            let block = (begin << bits).max(first);
            let place = Place::Mapped { ino: InodeNr(ino), lblk: lblk + (block - first), block: BlockNr(block) };
            let count = (end << bits).min(first + blocks).saturating_sub(block);
            self.out.owners.push(Finding::new(Problem::DupBlock, place, count, 0u64));
            begin = double.find(end, clusters.end, true);
        }
    }

    /// Queues a block of a map, which has been claimed.
    pub fn descend(&mut self, node: Node) {
        self.out.nodes.push(node);
        self.out.descents += 1;
        self.out.limit_nodes();
    }
}

/// Keeps only the smallest of the nodes with the same block. The inodes of the others are then only partly known.
fn dedup(nodes: &mut Vec<Node>, partial: &mut Vec<u32>) {
    nodes.sort_unstable();
    nodes.dedup_by(|node, kept| {
        let same = node.block == kept.block;
        if same {
            if node.tally == kept.tally {
                kept.times = kept.times.saturating_add(node.times);
            }
            if partial.last() != Some(&node.tally) {
                partial.push(node.tally);
            }
        }
        same
    });
    partial.sort_unstable();
    partial.dedup();
}

/// The number of bytes of inode tables that are read before the blocks of their maps. This limits the memory for maps
/// that have not been walked yet.
const BATCH_BYTES: u64 = 4 << 20;
/// The number of blocks of maps that are read before their sums are added up.
const BATCH_NODES: u64 = 1 << 13;

/// Walks everything.
pub fn walk(check: &Arc<Check>, mode: Mode, sink: &mut Sink) -> Result<WalkResult> {
    if mode == Mode::Owners {
        check.claims.descended.clear();
    }
    let mut all = Out::default();
    let mut tables = table_runs(check).into_iter().peekable();
    while tables.peek().is_some() {
        let runs = batch(&mut tables, BATCH_BYTES >> check.geo.block_bits, |run| run.blocks);
        let outs = scan::wave(check, runs, move |check, run, data, out| {
            inodes::table(&mut Walker { check, mode, out }, run, data);
            found(mode, out);
        })?;
        for out in outs {
            take(&mut all, out, true);
        }
        levels(check, mode, &mut all)?;
        finish(check, mode, &mut all);
        if mode == Mode::Check {
            peeks::check(check, &mut all)?;
        }
    }
    xattrs::blocks(check, mode, &mut all)?;
    if mode == Mode::Check {
        let charges = xattrs::values(check, &mut all);
        let late = std::mem::take(&mut all.late);
        let mut walker = Walker { check, mode, out: &mut all };
        for mut tally in late {
            xattrs::charge(&mut tally, &charges);
            inodes::finish(&mut walker, &tally);
        }
        all.policies.sort_unstable();
        check.learn_policies(std::mem::take(&mut all.policies));
        sink.merge(all.sink);
    } else {
        sink.merge(all.owners);
        all.sharers.sort_unstable();
        all.sharers.dedup();
    }
    Ok(WalkResult {
        dir_runs: all.dir_runs,
        dirs: all.dirs,
        inline_dirs: all.inline_dirs,
        usage: all.usage,
        large_files: all.large_files,
        sharers: all.sharers,
    })
}

/// The next runs to read.
fn batch(runs: &mut Peekable<impl Iterator<Item = Run>>, most: u64, weight: impl Fn(&Run) -> u64) -> Vec<Run> {
    let mut room = most;
    std::iter::from_fn(|| {
        let run = runs.next_if(|_| room > 0)?;
        room = room.saturating_sub(weight(&run));
        Some(run)
    })
    .collect()
}

/// Walks the blocks of maps, level by level.
fn levels(check: &Arc<Check>, mode: Mode, all: &mut Out) -> Result<()> {
    loop {
        let mut nodes = std::mem::take(&mut all.nodes);
        all.dedup_at = 0;
        dedup(&mut nodes, &mut all.partial);
        nodes.retain(|node| {
            let again = check.claims.descended.set(node.block);
            if again && all.partial.last() != Some(&node.tally) {
                all.partial.push(node.tally);
            }
            !again
        });
        for tally in std::mem::take(&mut all.partial) {
            all.add(tally, Sums { partial: true, ..Sums::default() });
        }
        for (tally, sums) in std::mem::take(&mut all.sums) {
            all.add(tally, sums);
        }
        if nodes.is_empty() {
            return Ok(());
        }
        let mut runs = scan::runs(&nodes, check.geo.block_bits, |node| (node.block, 1)).into_iter().peekable();
        let nodes = Arc::new(nodes);
        while runs.peek().is_some() {
            let runs = batch(&mut runs, BATCH_NODES, |run| (run.items.1 - run.items.0) as u64);
            let tallies = Arc::new(std::mem::take(&mut all.tallies));
            let (level, known) = (nodes.clone(), tallies.clone());
            let outs = scan::wave(check, runs, move |check, run, data, out| {
                let size = check.geo.block_size as usize;
                for node in &level[run.items.0..run.items.1] {
                    let at = (node.block - run.first) as usize * size;
                    let Some(tally) = known.get(node.tally as usize) else { continue };
                    maps::node(&mut Walker { check, mode, out }, tally, node, &data[at..at + size]);
                }
                found(mode, out);
            })?;
            all.tallies = Arc::try_unwrap(tallies).unwrap_or_else(|shared| shared.to_vec());
            for out in outs {
                take(all, out, false);
            }
        }
    }
}

/// Checks the inodes whose maps are known now, except for those whose attributes have to be read first.
fn finish(check: &Check, mode: Mode, all: &mut Out) {
    let tallies = std::mem::take(&mut all.tallies);
    let mut pieces = std::mem::take(&mut all.pieces);
    pieces.sort_unstable();
    let mut walker = Walker { check, mode, out: all };
    for (index, mut tally) in tallies.into_iter().enumerate() {
        let from = pieces.partition_point(|piece| (piece.tally as usize) < index);
        let to = pieces.partition_point(|piece| piece.tally as usize <= index);
        maps::count_pieces(&mut walker, &mut tally, &pieces[from..to]);
        if tally.late && mode == Mode::Check {
            walker.out.late.push(tally);
        } else {
            inodes::finish(&mut walker, &tally);
        }
    }
}

/// Keeps only the findings that a walk reports: in a search for owners, only the owners.
fn found(mode: Mode, out: &mut Out) {
    if mode == Mode::Owners {
        out.sink = std::mem::take(&mut out.owners);
    }
}

/// The maximum number of bytes of inode tables that are read again because tables overlap.
const AGAIN_BYTES: u64 = 16 << 20;

/// The used parts of the inode tables. If tables overlap, which is damage, a limited number is read, because all groups
/// of a small image may refer to the same table.
fn table_runs(check: &Check) -> Vec<Run> {
    let geo = &check.geo;
    let most = (RUN_BYTES >> geo.block_bits).max(1);
    let mut groups: Vec<usize> = (0..check.descs.len()).collect();
    groups.sort_by_key(|group| check.descs[*group].inode_table);
    let (mut end, mut room) = (0, AGAIN_BYTES >> geo.block_bits);
    groups.retain(|group| {
        let desc = &check.descs[*group];
        let blocks = u64::from(inodes_read(geo, desc).div_ceil(geo.inodes_per_block()));
        let first = desc.inode_table.0;
        let again = end.min(first + blocks).saturating_sub(first);
        if again > room {
            return false;
        }
        (end, room) = (end.max(first + blocks), room + blocks - again - again);
        true
    });
    groups.sort_unstable();
    let mut runs = Vec::new();
    for group in groups {
        let desc = &check.descs[group];
        let blocks = u64::from(inodes_read(geo, desc).div_ceil(geo.inodes_per_block()));
        let mut at = 0;
        while at < blocks {
            let count = most.min(blocks - at);
            // The items are the group, and the offset of the run in its table.
            runs.push(Run { first: desc.inode_table.0 + at, blocks: count, items: (group, at as usize) });
            at += count;
        }
    }
    runs
}

/// Adds the results of a thread. `fresh` means that its nodes and sums refer to its own tallies, which are put after
/// the existing ones.
fn take(all: &mut Out, out: Out, fresh: bool) {
    let base = if fresh { all.tallies.len() as u32 } else { 0 };
    append(&mut all.tallies, out.tallies);
    let (mut nodes, mut pieces) = (out.nodes, out.pieces);
    nodes.iter_mut().for_each(|node| node.tally += base);
    append(&mut all.nodes, nodes);
    all.partial.extend(out.partial.into_iter().map(|tally| tally + base));
    all.limit_nodes();
    for (tally, sums) in out.sums {
        all.add(tally + base, sums);
    }
    pieces.iter_mut().for_each(|piece| piece.tally += base);
    append(&mut all.pieces, pieces);
    all.dir_runs.append(out.dir_runs);
    all.dirs.append(out.dirs);
    all.inline_dirs.extend(out.inline_dirs);
    all.attributes.extend(out.attributes);
    all.value_refs.extend(out.value_refs);
    all.values.extend(out.values);
    all.policies.extend(out.policies);
    all.peeks.extend(out.peeks);
    all.usage.merge(out.usage);
    all.sharers.extend(out.sharers);
    all.large_files += out.large_files;
}

/// Appends without reserving more memory than is needed.
fn append<T>(all: &mut Vec<T>, mut part: Vec<T>) {
    if all.is_empty() {
        *all = part;
    } else {
        all.reserve_exact(part.len());
        all.append(&mut part);
    }
}
