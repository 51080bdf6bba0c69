//! Directories: their blocks are read in two waves, first those with `.` and `..` (and the root of an index), then the
//! others.
//!
//! Main types: [`DirOut`] (the results of a thread), [`Directories`] (the input of connectivity).
//!
//! # Locking
//! `check parents` protects the parents of directories, which the threads of a wave record.

use std::ops::Range;
use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex};
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::{BlockNr, InodeNr};

use super::dir_runs::{self, DirRun};
use super::entries;
use super::htree::{self, Leaf, Link, Root};
use super::names;
use super::walk::{Dir, WalkResult};
use crate::context::Check;
use crate::error::Result;
use crate::finding::{Finding, Place};
use crate::pile::Pile;
use crate::problem::Problem;
use crate::report::Sink;
use crate::scan::{self, Output};

/// A name of a directory in its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subdirectory {
    pub child: u32,
    pub name: Name,
}

/// The place of a name, ordered so that the name that is used comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The block. The highest bit is set unless it is the parent's first block. It is stored as two halves, the upper
    /// one first, so that the struct has no padding.
    place: [u32; 2],
    offset: u32,
    /// 0 if there is no name.
    parent: u32,
    lblk: u32,
}

impl Name {
    pub fn new(parent: u32, lblk: u32, block: u64, offset: u32) -> Name {
        let place = block | u64::from(lblk != 0) << 63;
        Name { place: [(place >> 32) as u32, place as u32], offset, parent, lblk }
    }
}

/// A directory's place in the tree: a name that refers to it, and its own `..`.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    name: Name,
    /// The inode number of `..`; 0 if none was found.
    dotdot: u32,
}

/// The parents of directories, and their additional names.
struct Holds {
    of: Vec<Hold>,
    more: Sink,
}

/// The number of entries that are recorded in one step. Taking the lock for every block would be slow, and the entries
/// of all blocks of a run would take much memory.
const NOTED_AT: usize = 1024;

static HOLDS: LockClass = LockClass::new("check parents", 767);

/// The results of a thread.
#[derive(Default)]
pub struct DirOut {
    pub sink: Sink,
    pub subs: Vec<Subdirectory>,
    pub dotdots: Vec<(u32, u32)>,
    pub roots: Vec<Root>,
    pub leaves: Vec<Leaf>,
    pub links: Vec<Link>,
    /// The inode to which `/lost+found` refers.
    pub lost_found: Option<u32>,
    /// The hashes of a block's names, with their places.
    pub names: Vec<(u32, u32)>,
    /// The keys of the names in a directory of several blocks without an index.
    pub keys: Pile<u64>,
}

impl Output for DirOut {
    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }
}

/// All directories, by inode, with their parents according to the names.
pub struct Directories {
    pub dirs: Vec<Dir>,
    holds: Vec<Hold>,
    pub lost_found: Option<u32>,
    /// The number of directories that need the feature large_dir.
    pub large: u64,
}

impl Directories {
    /// The position of directory `ino` in the list.
    pub fn find(&self, ino: u32) -> Option<usize> {
        find(&self.dirs, ino)
    }

    /// The directory that contains the first name of this one; 0 if it has no name.
    pub fn parent(&self, at: usize) -> u32 {
        self.holds[at].name.parent
    }

    /// The inode number of `..`; 0 if the directory has none.
    pub fn dotdot(&self, at: usize) -> u32 {
        self.holds[at].dotdot
    }
}

fn find(dirs: &[Dir], ino: u32) -> Option<usize> {
    dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()
}

/// Reads all directories.
pub fn check(check: &Arc<Check>, walked: WalkResult, sink: &mut Sink) -> Result<Directories> {
    let WalkResult { dir_runs, dirs, mut inline_dirs, .. } = walked;
    let mut dirs = dirs.into_vec();
    dirs.sort_unstable();
    let (mut pieces, shared) = dir_runs.finish();
    holes(check, &dirs, &pieces, &shared, sink);
    dir_runs::disjoint(&mut pieces, |_| ());
    pieces.sort_unstable_by_key(|piece| (piece.lblk != 0, piece.block));
    let first = pieces.partition_point(|piece| piece.lblk == 0);
    let holds = Mutex::new(&HOLDS, Holds { of: vec![Hold::default(); dirs.len()], more: Sink::default() });
    let all = Arc::new(DirectorySet { dirs, pieces, holds });
    let mut found = DirOut::default();
    wave(check, &all, 0..first, Arc::default(), &mut found)?;
    let mut roots = std::mem::take(&mut found.roots);
    roots.sort_unstable();
    let roots = Arc::new(roots);
    inline_dirs.sort_unstable();
    for inline in &inline_dirs {
        if let Some(at) = find(&all.dirs, inline.ino) {
            entries::inline(check, &all.dirs[at], &inline.bytes, &mut found);
            all.note(&mut found);
        }
    }
    check.progress(2, 1, 2);
    wave(check, &all, first..all.pieces.len(), roots.clone(), &mut found)?;
    let folded = all.dirs.iter().filter(|dir| entries::is_folded(check, dir.flags)).map(|dir| dir.ino).collect();
    names::check(check, std::mem::take(&mut found.keys).into_vec(), folded, &all.pieces, &mut found.sink)?;
    let large = htree::check(check, &all.dirs, &roots, &mut found.leaves, &mut found.links, &mut found.sink);
    sink.merge(found.sink);
    let holds = parents(&all, sink);
    // The threads of the waves have ended.
    let dirs = Arc::try_unwrap(all).map_or_else(|all| all.dirs.clone(), |all| all.dirs);
    check.progress(2, 2, 2);
    Ok(Directories { dirs, holds, lost_found: found.lost_found, large })
}

/// The directories and their blocks, which all waves use.
struct DirectorySet {
    /// The directories, by inode.
    dirs: Vec<Dir>,
    /// The pieces with logical block 0 first, then the others. Each part is sorted by block.
    pieces: Vec<DirRun>,
    holds: Mutex<Holds>,
}

impl DirectorySet {
    /// Records the results about parents.
    fn note(&self, out: &mut DirOut) {
        // A directory may have two first blocks, which is damage. Then the larger `..` is used.
        let dotdots = out.dotdots.drain(..).filter_map(|(ino, dotdot)| Some((find(&self.dirs, ino)?, dotdot)));
        let dotdots: Vec<(usize, u32)> = dotdots.collect();
        let subs = out.subs.drain(..).filter_map(|sub| Some((find(&self.dirs, sub.child)?, sub)));
        let subs: Vec<(usize, Subdirectory)> = subs.collect();
        let mut holds = self.holds.lock();
        let Holds { of, more } = &mut *holds;
        for (at, dotdot) in dotdots {
            of[at].dotdot = of[at].dotdot.max(dotdot);
        }
        for (at, Subdirectory { child, mut name }) in subs {
            let kept = &mut of[at].name;
            if kept.parent == 0 {
                *kept = name;
                continue;
            }
            if name < *kept {
                std::mem::swap(kept, &mut name);
            }
            if child != InodeNr::ROOT.0 {
                let place = Place::Entry {
                    dir: InodeNr(name.parent),
                    lblk: name.lblk,
                    offset: name.offset,
                    ino: InodeNr(child),
                };
                more.push(Finding::new(Problem::LinkDir, place, child, 0u64));
            }
        }
    }
}

/// Reads some of the pieces.
fn wave(
    check: &Arc<Check>,
    all: &Arc<DirectorySet>,
    part: Range<usize>,
    roots: Arc<Vec<Root>>,
    found: &mut DirOut,
) -> Result<()> {
    let place = |piece: &DirRun| (piece.block, piece.blocks.into());
    let runs = scan::runs(&all.pieces[part.clone()], check.geo.block_bits, place);
    if runs.is_empty() {
        return Ok(());
    }
    let all = all.clone();
    let outs = scan::wave(check, runs, move |check, run, data, out: &mut DirOut| {
        let size = check.geo.block_size as usize;
        for piece in &all.pieces[part.start..][run.items.0..run.items.1] {
            let Some(at) = find(&all.dirs, piece.ino) else { continue };
            for step in 0..piece.blocks {
                let block = piece.block + u64::from(step);
                let bytes = &data[(block - run.first) as usize * size..][..size];
                let root = roots.binary_search_by_key(&piece.ino, |root| root.ino).ok().map(|at| roots[at]);
                entries::block(check, &all.dirs[at], piece.lblk + step, block, bytes, root, out);
                if out.subs.len() + out.dotdots.len() >= NOTED_AT {
                    all.note(out);
                }
            }
        }
        all.note(out);
    })?;
    for mut out in outs {
        found.roots.append(&mut out.roots);
        found.leaves.append(&mut out.leaves);
        found.links.append(&mut out.links);
        found.keys.append(out.keys);
        // Damage may contain the name twice. Then the smaller inode is used.
        found.lost_found = match (found.lost_found, out.lost_found) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
    Ok(())
}

/// Reports logical blocks without a mapped block. Skips `shared` directories, from which runs were removed. `runs` are
/// sorted by inode and logical block.
fn holes(check: &Check, dirs: &[Dir], runs: &[DirRun], shared: &[u32], sink: &mut Sink) {
    let mut rest = runs;
    for dir in dirs {
        let from = rest.partition_point(|run| run.ino < dir.ino);
        let to = rest.partition_point(|run| run.ino <= dir.ino);
        let own = &rest[from..to];
        rest = &rest[to..];
        let inline = dir.flags & InodeFlags::INLINE_DATA.bits() != 0;
        if dir.partial || inline || shared.binary_search(&dir.ino).is_ok() {
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

/// Reports the additional names of directories. Returns the parents of directories.
fn parents(all: &DirectorySet, sink: &mut Sink) -> Vec<Hold> {
    let (mut holds, mut more) = {
        let mut holds = all.holds.lock();
        (std::mem::take(&mut holds.of), std::mem::take(&mut holds.more))
    };
    if let Some(root) = find(&all.dirs, InodeNr::ROOT.0) {
        holds[root].name.parent = InodeNr::ROOT.0;
    }
    // The first name is known only now.
    more.amend(|finding| {
        let child = u32::try_from(finding.found).ok().and_then(|ino| find(&all.dirs, ino));
        finding.expected = child.map_or(0, |at| holds[at].name.parent).into();
    });
    sink.merge(more);
    holds
}
