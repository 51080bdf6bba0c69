//! Directories: their blocks are read in two waves, first those with `.` and `..` (and the root of an index), then the
//! rest.
//!
//! Main types: [`DirOut`] (what a thread brings back), [`Directories`] (what connectivity needs).
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_ondisk::inode::InodeFlags;
use extant_ondisk::{BlockNr, InodeNr};

use super::entries;
use super::htree::{self, Leaf, Link, Root};
use super::names;
use super::walk::{Dir, DirRun, Walked};
use crate::context::Check;
use crate::error::Result;
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;
use crate::scan::{self, Output, RUN_BYTES};

/// A name of a directory in its parent, ordered so that the name that counts comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sub {
    pub child: u32,
    /// Not in the parent's first block.
    pub late: bool,
    pub block: u64,
    pub offset: u32,
    pub parent: u32,
    pub lblk: u32,
}

/// What a thread brings back.
#[derive(Default)]
pub struct DirOut {
    pub sink: Sink,
    pub subs: Vec<Sub>,
    pub dotdots: Vec<(u32, u32)>,
    pub roots: Vec<Root>,
    pub leaves: Vec<Leaf>,
    pub links: Vec<Link>,
    /// The inode that `/lost+found` leads to.
    pub lost_found: Option<u32>,
    /// Hashes of a block's names, with their places.
    pub names: Vec<(u32, u32)>,
    /// Of each name in a directory of several blocks without an index.
    pub keys: Vec<u64>,
}

impl Output for DirOut {
    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }
}

/// All directories, by inode, with the parents that names give them.
#[derive(Default)]
pub struct Directories {
    pub dirs: Vec<Dir>,
    pub lost_found: Option<u32>,
    /// Directories that need the feature large_dir.
    pub large: u64,
}

impl Directories {
    /// The index of a directory.
    pub fn find(&self, ino: u32) -> Option<usize> {
        self.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()
    }
}

/// Reads all directories.
pub fn check(check: &Arc<Check>, walked: Walked, sink: &mut Sink) -> Result<Directories> {
    let Walked { mut dir_runs, mut dirs, mut inline_dirs, .. } = walked;
    dirs.sort_unstable();
    dir_runs.sort_unstable_by_key(|run| (run.ino, run.lblk, run.block));
    holes(check, &dirs, &dir_runs, sink);
    let pieces = pieces(check, dir_runs);
    let (first, rest): (Vec<_>, Vec<_>) = pieces.into_iter().partition(|piece| piece.lblk == 0);
    let (first, rest, dirs) = (Arc::new(first), Arc::new(rest), Arc::new(dirs));
    let mut all = DirOut::default();
    wave(check, &dirs, &first, Arc::default(), &mut all)?;
    let mut roots = std::mem::take(&mut all.roots);
    roots.sort_unstable();
    let roots = Arc::new(roots);
    inline_dirs.sort_unstable();
    for inline in &inline_dirs {
        if let Ok(at) = dirs.binary_search_by_key(&inline.ino, |dir| dir.ino) {
            entries::inline(check, &dirs[at], &inline.bytes, &mut all);
        }
    }
    check.progress(2, 1, 2);
    wave(check, &dirs, &rest, roots.clone(), &mut all)?;
    let folded = dirs.iter().filter(|dir| entries::is_folded(check, dir.flags)).map(|dir| dir.ino).collect();
    names::check(check, std::mem::take(&mut all.keys), folded, first.iter().chain(&*rest), &mut all.sink)?;
    let mut dirs = Arc::try_unwrap(dirs).unwrap_or_else(|shared| shared.to_vec());
    parents(&mut dirs, &mut all, sink);
    let large = htree::check(check, &dirs, &roots, &mut all.leaves, &mut all.links, &mut all.sink);
    sink.merge(all.sink);
    check.progress(2, 2, 2);
    Ok(Directories { dirs, lost_found: all.lost_found, large })
}

fn wave(
    check: &Arc<Check>,
    dirs: &Arc<Vec<Dir>>,
    pieces: &Arc<Vec<DirRun>>,
    roots: Arc<Vec<Root>>,
    all: &mut DirOut,
) -> Result<()> {
    let runs = scan::runs(pieces, check.geo.block_bits, |piece| (piece.block, piece.blocks.into()));
    if runs.is_empty() {
        return Ok(());
    }
    let (pieces, dirs) = (pieces.clone(), dirs.clone());
    let outs = scan::wave(check, runs, move |check, run, data, out: &mut DirOut| {
        let size = check.geo.block_size as usize;
        for piece in &pieces[run.items.0..run.items.1] {
            let Ok(at) = dirs.binary_search_by_key(&piece.ino, |dir| dir.ino) else { continue };
            for step in 0..piece.blocks {
                let block = piece.block + u64::from(step);
                let bytes = &data[(block - run.first) as usize * size..][..size];
                let root = roots.binary_search_by_key(&piece.ino, |root| root.ino).ok().map(|at| roots[at]);
                entries::block(check, &dirs[at], piece.lblk.saturating_add(step), block, bytes, root, out);
            }
        }
    })?;
    for mut out in outs {
        all.sink.merge(out.sink);
        all.subs.append(&mut out.subs);
        all.dotdots.append(&mut out.dotdots);
        all.roots.append(&mut out.roots);
        all.leaves.append(&mut out.leaves);
        all.links.append(&mut out.links);
        all.keys.append(&mut out.keys);
        // Of two, which is damage, the smaller one.
        all.lost_found = match (all.lost_found, out.lost_found) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
    Ok(())
}

/// Reports logical blocks that no block is mapped to. `runs` are in the order of inode and logical block.
fn holes(check: &Check, dirs: &[Dir], runs: &[DirRun], sink: &mut Sink) {
    let mut rest = runs;
    for dir in dirs {
        let from = rest.partition_point(|run| run.ino < dir.ino);
        let to = rest.partition_point(|run| run.ino <= dir.ino);
        let own = &rest[from..to];
        rest = &rest[to..];
        let inline = dir.flags & InodeFlags::INLINE_DATA.bits() != 0;
        if dir.partial || inline {
            continue;
        }
        let mut next = 0u64;
        let ends = own.iter().map(|run| (u64::from(run.lblk), u64::from(run.blocks), run.block));
        for (lblk, blocks, block) in ends {
            if lblk > next {
                let place = |lblk, block| Place::Mapped { ino: InodeNr(dir.ino), lblk, block: BlockNr(block) };
                if dir.extents {
                    sink.push(Finding::new(Problem::CollapseDblock, place(lblk, block), lblk, next));
                }
                if !check.geo.large_dir {
                    sink.push(Finding::new(Problem::DirectoryHole, place(next, 0), lblk - next, 0u64));
                }
            }
            next = next.max(lblk + blocks);
        }
        if next == 0 && dir.blocks == 0 && !dir.extents {
            let place = Place::Mapped { ino: InodeNr(dir.ino), lblk: 0, block: BlockNr(0) };
            sink.push(Finding::new(Problem::DirectoryHole, place, 1u64, 0u64));
        }
    }
}

/// The blocks to read, each once: what two directories map belongs to the first. Sorted by block; logical block 0 is a
/// piece of its own.
fn pieces(check: &Check, mut runs: Vec<DirRun>) -> Vec<DirRun> {
    let most = u32::try_from((RUN_BYTES >> check.geo.block_bits).max(1)).unwrap_or(1);
    runs.sort_unstable();
    let mut pieces = Vec::with_capacity(runs.len());
    let mut covered = 0;
    for run in runs {
        let end = run.block + u64::from(run.blocks);
        let skip = covered.max(run.block) - run.block;
        covered = covered.max(end);
        if skip >= u64::from(run.blocks) {
            continue;
        }
        let mut at = skip as u32;
        while at < run.blocks {
            let lblk = run.lblk.saturating_add(at);
            let blocks = if lblk == 0 { 1 } else { most.min(run.blocks - at) };
            pieces.push(DirRun { block: run.block + u64::from(at), ino: run.ino, lblk, blocks });
            at += blocks;
        }
    }
    pieces
}

/// Gives each directory the parent that its first name lies in, and reports further names.
fn parents(dirs: &mut [Dir], all: &mut DirOut, sink: &mut Sink) {
    let find = |dirs: &[Dir], ino: u32| dirs.binary_search_by_key(&ino, |dir| dir.ino).ok();
    all.subs.sort_unstable();
    if let Some(root) = find(dirs, InodeNr::ROOT.0) {
        dirs[root].parent = InodeNr::ROOT.0;
    }
    for sub in &all.subs {
        let Some(at) = find(dirs, sub.child) else { continue };
        let dir = &mut dirs[at];
        if dir.parent == 0 {
            dir.parent = sub.parent;
        } else if sub.child != InodeNr::ROOT.0 {
            let (dir_ino, ino) = (InodeNr(sub.parent), InodeNr(sub.child));
            let place = Place::Entry { dir: dir_ino, lblk: sub.lblk, offset: sub.offset, ino };
            sink.push(Finding::new(Problem::LinkDir, place, sub.child, dir.parent));
        }
    }
    // A directory may have two first blocks, which is damage.
    all.dotdots.sort_unstable();
    for (ino, dotdot) in &all.dotdots {
        if let Some(at) = find(dirs, *ino) {
            dirs[at].dotdot = *dotdot;
        }
    }
}
