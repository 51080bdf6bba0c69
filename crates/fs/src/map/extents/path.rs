//! The path from the root of an extent tree to the leaf that covers a logical block.
//!
//! Every descent checks the properties that a hostile image could violate. The depth decreases by one at each step, so
//! the descent ends. Each node stays within the range of its parent's entry. Each block number is one that a file may
//! own.
//!
//! # Locking
//! The caller's map lock.

use std::ops::Range;

use extant_ondisk::BlockNr;
use extant_ondisk::extent::{DEPTH_MAX, Extent, Index, LOGICAL_END, NodeRef, RawEntry};

use crate::map::{MapRoot, MapStore};

/// One node on a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Level {
    /// `None` for the root.
    pub block: Option<BlockNr>,
    /// The node's key in its parent, 0 for the root.
    pub first: u32,
    /// One past the last logical block below the node: the key of the next node, or the end of the map.
    pub end: u64,
    /// Entries in use.
    pub count: usize,
    /// The capacity, in entries.
    pub room: usize,
    /// The entry that the path follows (index levels only).
    pub pos: usize,
}

/// A path to a leaf, with the leaf's entries around the requested block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    levels: [Level; DEPTH_MAX as usize + 1],
    pub depth: usize,
    /// The leaf's last entry that starts at or before the block.
    pub pos: Option<usize>,
    /// That entry.
    pub at: Option<Extent>,
    /// The entries before and after it. Without `at`, `next` is the first entry of the leaf.
    pub before: Option<Extent>,
    pub next: Option<Extent>,
}

/// Whether a node may map these blocks.
fn may_stand<S: MapStore>(store: &S, start: BlockNr, len: u32) -> bool {
    store.gives_up() || store.block_range_valid(start, len)
}

/// The root as a node. It has at most 4 entries, so they are checked at every use.
pub(super) fn root_node<'a, S: MapStore>(root: &'a MapRoot, store: &S) -> Result<NodeRef<'a>, S::Error> {
    NodeRef::parse(&root.i_block, 0)
        .and_then(|node| {
            node.validate(node.depth(), 0, |start, len| may_stand(store, start, len))?;
            Ok(node)
        })
        .map_err(|e| root.corrupt(None, e.to_string()))
}

/// Verifies a node block that enters the cache: first its checksum, then every entry.
pub(super) fn verify_node<S: MapStore>(
    store: &S,
    bytes: &[u8],
    block: BlockNr,
    depth: u16,
    seed: Option<u32>,
) -> Result<(), String> {
    let node = NodeRef::parse(bytes, block.0).map_err(|e| e.to_string())?;
    if let Some(seed) = seed {
        let (stored, computed) = (node.stored_checksum(), node.checksum(seed));
        if stored != computed {
            return Err(format!(
                "extent node in {block}: checksum is {:#010x}, expected {:#010x}",
                stored.unwrap_or(0),
                computed.unwrap_or(0)
            ));
        }
    }
    node.validate(depth, block.0, |start, len| may_stand(store, start, len)).map_err(|e| e.to_string())
}

/// Runs `f` on the node in `block`, which must have `depth` and lie within `first..end`.
pub(super) fn with_node<S: MapStore, R>(
    root: &MapRoot,
    store: &S,
    block: BlockNr,
    depth: u16,
    first: u32,
    end: u64,
    f: impl FnOnce(NodeRef<'_>) -> R,
) -> Result<R, S::Error> {
    if !store.block_range_valid(block, 1) {
        return Err(root.corrupt(Some(block), "an index points where no node can be"));
    }
    let seed = root.csum_seed;
    store
        .read(
            block,
            |bytes| verify_node(store, bytes, block, depth, seed),
            |bytes| {
                let node = NodeRef::parse(bytes, block.0)?;
                node.check_place(depth, first, end, block.0)?;
                Ok(f(node))
            },
        )?
        .map_err(|e: extant_ondisk::Error| root.corrupt(Some(block), e.to_string()))
}

/// The result of one step of a descent.
enum Step {
    Down { child: BlockNr, first: u32, end: u64 },
    Leaf { pos: Option<usize>, at: Option<Extent>, before: Option<Extent>, next: Option<Extent> },
    Broken,
}

fn step(node: &NodeRef<'_>, lblk: u32, level: &mut Level) -> Step {
    level.count = node.len();
    level.room = node.room();
    let pos = node.search(lblk);
    if node.depth() == 0 {
        let extent = |i: Option<usize>| i.and_then(|i| node.extent(i));
        let (before, after) = (pos.and_then(|p| p.checked_sub(1)), pos.map_or(0, |p| p + 1));
        return Step::Leaf { pos, at: extent(pos), before: extent(before), next: extent(Some(after)) };
    }
    level.pos = pos.unwrap_or(0);
    match node.index(level.pos) {
        Some(index) => Step::Down {
            child: index.child,
            first: index.lblk.0,
            end: node.key(level.pos + 1).map_or(level.end, u64::from),
        },
        None => Step::Broken,
    }
}

/// The path for a removal.
pub(super) enum Found {
    Leaf(Path),
    /// The subtree below the path's entry at this level is unreadable, and the removal drops it.
    Lost(Path, usize),
}

impl Path {
    /// Descends to the leaf for `lblk`: the last leaf that starts at or before it, or the first leaf of the tree.
    pub fn find<S: MapStore>(root: &MapRoot, store: &S, lblk: u32) -> Result<Path, S::Error> {
        Path::descend(root, store, lblk, |_, _| Ok(())).map_err(|(_, _, e)| e)
    }

    /// As [`Path::find`], for a removal: it follows no node that is not allocated. If the store tolerates the damage,
    /// the path ends at the parent of the damaged node.
    pub fn find_to_remove<S: MapStore>(root: &MapRoot, store: &S, lblk: u32) -> Result<Found, S::Error> {
        match Path::descend(root, store, lblk, |store, child| store.check_in_use(child)) {
            Ok(path) => Ok(Found::Leaf(path)),
            Err((Some(path), level, e)) if store.passes(&e) => Ok(Found::Lost(path, level)),
            Err((_, _, e)) => Err(e),
        }
    }

    /// Returns the path, or the error together with the level above the damaged node and the path down to that level.
    /// There is no path if the root is damaged.
    #[allow(clippy::type_complexity, clippy::result_large_err)] // between the two functions above
    fn descend<S: MapStore>(
        root: &MapRoot,
        store: &S,
        lblk: u32,
        check: impl Fn(&S, BlockNr) -> Result<(), S::Error>,
    ) -> Result<Path, (Option<Path>, usize, S::Error)> {
        let node = root_node(root, store).map_err(|e| (None, 0, e))?;
        let depth = usize::from(node.depth());
        let mut path = Path {
            levels: [Level::default(); DEPTH_MAX as usize + 1],
            depth,
            pos: None,
            at: None,
            before: None,
            next: None,
        };
        path.levels[0].end = u64::from(LOGICAL_END);
        let mut here = step(&node, lblk, &mut path.levels[0]);
        for l in 1..=depth {
            let Step::Down { child, first, end } = here else { break };
            let mut level = Level { block: Some(child), first, end, ..Level::default() };
            let found = check(store, child).and_then(|()| {
                store.read_ahead(child, || path.children(root, store, l - 1));
                with_node(root, store, child, (depth - l) as u16, first, end, |node| step(&node, lblk, &mut level))
            });
            here = match found {
                Ok(Step::Broken) => {
                    let e = root.corrupt(Some(child), "an index node without entries");
                    return Err((Some(path), l - 1, e));
                }
                Ok(step) => step,
                Err(e) => return Err((Some(path), l - 1, e)),
            };
            path.levels[l] = level;
        }
        let (block, above) = (path.leaf().block, depth.saturating_sub(1));
        let Step::Leaf { pos, at, before, next } = here else {
            return Err((None, 0, root.corrupt(block, "an index node without entries")));
        };
        (path.pos, path.at, path.before, path.next) = (pos, at, before, next);
        // The cache verified the block when it entered, but perhaps as another kind of block, so this checks again.
        if at.is_some_and(|e| e.len == 0 || !may_stand(store, e.pblk, e.len)) {
            let e = root.corrupt(block, "an extent maps blocks that no file can own");
            return Err((block.map(|_| path), above, e));
        }
        Ok(path)
    }

    /// The nodes that the index node at level `l` refers to; none of them is read.
    fn children<S: MapStore>(&self, root: &MapRoot, store: &S, l: usize) -> Vec<BlockNr> {
        let entries = self.raw_entries(root, store, l).unwrap_or_default();
        entries.iter().map(|raw| Index::decode(raw).child).collect()
    }

    pub fn level(&self, l: usize) -> &Level {
        &self.levels[l]
    }

    pub fn leaf(&self) -> &Level {
        &self.levels[self.depth]
    }

    /// The end of a hole that begins after `at`: the leaf's next extent, or the next leaf.
    pub fn hole_end(&self) -> u64 {
        self.next.map_or(self.leaf().end, |next| u64::from(next.lblk.0))
    }

    /// The extents `range` of the leaf.
    pub fn leaf_extents<S: MapStore>(
        &self,
        root: &MapRoot,
        store: &S,
        range: Range<usize>,
    ) -> Result<Vec<Extent>, S::Error> {
        let pick = |node: NodeRef<'_>| -> Vec<Extent> {
            (range.start..range.end.min(node.len())).filter_map(|i| node.extent(i)).collect()
        };
        let extents = match self.leaf().block {
            None => pick(root_node(root, store)?),
            Some(block) => with_node(root, store, block, 0, self.leaf().first, self.leaf().end, pick)?,
        };
        if extents.iter().any(|e| e.len == 0 || !may_stand(store, e.pblk, e.len)) {
            return Err(root.corrupt(self.leaf().block, "an extent maps blocks that no file can own"));
        }
        Ok(extents)
    }

    /// All entries of the node at level `l`.
    pub fn raw_entries<S: MapStore>(&self, root: &MapRoot, store: &S, l: usize) -> Result<Vec<RawEntry>, S::Error> {
        let level = &self.levels[l];
        match level.block {
            None => Ok(root_node(root, store)?.raw_entries().collect()),
            Some(block) => {
                let depth = (self.depth - l) as u16;
                with_node(root, store, block, depth, level.first, level.end, |node| node.raw_entries().collect())
            }
        }
    }
}
