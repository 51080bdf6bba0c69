//! Walking the hash tree from the root to a leaf, and on to the next one (Linux: `dx_probe`, `ext4_htree_next_block`).
//!
//! # Locking
//! None; see the parent module.

use extant_ondisk::dirent::{DirDamage, DirRule};
use extant_ondisk::htree::{DxNode, DxShape, HashVersion, Hasher, NameHash};

use super::{BlockKind, Detail, DirError, DirParams, DirStore, name_hash};

/// The most index levels, the root included.
const LEVELS: usize = 3;

/// The damage of an index that refers to blocks past the directory's end. Those blocks may have contained names.
pub(super) const BEHIND_END: &str = "an index entry points behind the end of the directory";

/// The outer error is the store's and ends the operation. The inner error is damage of the index; the caller may be
/// able to work around it.
pub(super) type Probed<T, E> = Result<Result<T, DirError>, E>;

/// The target of a search: a name, or the hash at which a listing begins. A listing also checks the order of the keys,
/// because with wrong keys it would silently skip names. For a lookup, that check would cost more than the search.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    Name(&'a [u8]),
    Hash(u32),
}

/// One index block on a path (Linux: `struct dx_frame`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    pub(super) lblk: u32,
    /// The index of the child that the path takes.
    pub(super) at: usize,
    pub(super) count: usize,
    pub(super) limit: usize,
    /// The key of that child; 0 for the first.
    key: u32,
    /// The key of the next child, if there is one.
    next_key: Option<u32>,
}

impl Frame {
    fn new(lblk: u32, node: &DxNode<'_>, at: usize) -> Frame {
        let next_key = (at + 1 < node.count()).then(|| node.key(at + 1));
        Frame { lblk, at, count: node.count(), limit: node.limit(), key: node.key(at), next_key }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count >= self.limit
    }
}

/// A path from the root to a leaf. It lives on the stack, so that lookups do not allocate memory.
#[derive(Clone, Debug)]
pub(super) struct Path {
    frames: [Frame; LEVELS],
    depth: usize,
    /// The leaf's block.
    pub(super) leaf: u32,
    /// The target's hash.
    pub(super) hash: NameHash,
    /// The hash function of this directory.
    pub(super) hasher: Hasher,
    blocks: u32,
    steps: u32,
    lists: bool,
}

impl Path {
    /// The index blocks from the root down.
    pub(super) fn frames(&self) -> &[Frame] {
        &self.frames[..self.depth]
    }

    /// The lowest hash that belongs below this leaf.
    pub(super) fn lowest_hash(&self) -> u32 {
        self.frames().iter().rev().find(|frame| frame.at > 0).map_or(0, |frame| frame.key & !1)
    }

    /// The key under which the index refers to the subtree below `level`.
    fn key_above(&self, level: usize) -> u32 {
        self.frames[..level].iter().rev().find(|frame| frame.at > 0).map_or(0, |frame| frame.key)
    }

    fn shape(level: usize) -> DxShape {
        if level == 0 { DxShape::Root } else { DxShape::Node }
    }

    /// A child must lie in the directory and must not be one of its own parents.
    fn check_child(&self, child: u32, level: usize) -> Result<(), DirError> {
        let parents = &self.frames[..=level];
        let detail = if child >= self.blocks {
            BEHIND_END
        } else if child == 0 || parents.iter().any(|frame| frame.lblk == child) {
            "an index entry points back to a parent"
        } else {
            return Ok(());
        };
        Err(DirError::Corrupt { lblk: parents[level].lblk, offset: 0, detail: Detail::Whole(detail) })
    }
}

/// Checks that the keys of a node ascend from `above`, the node's key in its parent. With checksums, the order was
/// checked when the block entered the cache.
fn check_order(
    params: &DirParams,
    shape: DxShape,
    node: &DxNode<'_>,
    above: u32,
    blocks: u32,
) -> Result<(), DirDamage> {
    let found = node.key(1);
    // Only a leaf that continues the hash of the one before it has the same key.
    if node.count() > 1 && (found < above || (found == above && found & 1 == 0)) {
        return Err(DirDamage { offset: 0, what: DirRule::KeyOrder { found, previous: above } });
    }
    if params.has_csum { Ok(()) } else { node.validate(shape, blocks) }
}

/// Finds the leaf for a hash, or the first such leaf if several share the hash.
pub(super) fn probe<S: DirStore>(store: &S, params: &DirParams, target: Target<'_>) -> Probed<Path, S::Error> {
    let format = params.dx_format();
    let unsigned = params.hash_version.is_unsigned();
    let (blocks, lists) = (store.blocks(), matches!(target, Target::Hash(_)));
    let root = store.read(0, BlockKind::Index, |block| {
        let (info, node) = format.root(block)?;
        if lists {
            check_order(params, DxShape::Root, &node, 0, blocks)?;
        }
        let version = HashVersion::from_disk(info.hash_version, unsigned)
            .ok_or(DirDamage { offset: 28, what: DirRule::HashVersion { found: info.hash_version } })?;
        let hasher = params.hasher(version);
        let hash = match target {
            Target::Name(name) => name_hash(&hasher, name),
            Target::Hash(hash) => NameHash { hash, minor: 0 },
        };
        let at = node.search(hash.hash);
        Ok((usize::from(info.indirect_levels) + 1, hasher, hash, Frame::new(0, &node, at), node.child(at)))
    })?;
    let (depth, hasher, hash, frame, mut child) = match root {
        Ok(root) => root,
        Err(damage) => return Ok(Err(DirError::corrupt(0, damage))),
    };
    if depth > params.levels_max() {
        return Ok(Err(DirError::Corrupt {
            lblk: 0,
            offset: 30,
            detail: Detail::Whole("more index levels than the file system allows"),
        }));
    }
    let mut path = Path { frames: [frame; LEVELS], depth, leaf: 0, hash, hasher, blocks, steps: 0, lists };
    if let Err(error) = path.check_child(child, 0) {
        return Ok(Err(error));
    }
    for level in 1..depth {
        match descend(store, params, &mut path, level, child, Some(hash.hash))? {
            Ok(next) => child = next,
            Err(error) => return Ok(Err(error)),
        }
    }
    path.leaf = child;
    Ok(Ok(path))
}

/// Adds index node `lblk` to the path as frame `level`. The path takes the child for `hash`, or the first child; the
/// result is that child.
fn descend<S: DirStore>(
    store: &S,
    params: &DirParams,
    path: &mut Path,
    level: usize,
    lblk: u32,
    hash: Option<u32>,
) -> Probed<u32, S::Error> {
    let format = params.dx_format();
    let (lists, above, blocks) = (path.lists, path.key_above(level), path.blocks);
    let node = store.read(lblk, BlockKind::Index, |block| {
        let node = format.node(DxShape::Node, block)?;
        if lists {
            check_order(params, DxShape::Node, &node, above, blocks)?;
        }
        let at = hash.map_or(0, |hash| node.search(hash));
        Ok((Frame::new(lblk, &node, at), node.child(at)))
    })?;
    Ok(match node {
        Ok((frame, child)) => {
            path.frames[level] = frame;
            path.check_child(child, level).map(|()| child)
        }
        Err(damage) => Err(DirError::corrupt(lblk, damage)),
    })
}

/// The key of the leaf after this one. It needs no further block.
pub(super) fn next_key(path: &Path) -> Option<u32> {
    path.frames().iter().rev().find_map(|frame| frame.next_key)
}

/// Moves the path to the next leaf. The caller has consulted [`next_key`]; without a next leaf this reports damage.
pub(super) fn advance<S: DirStore>(store: &S, params: &DirParams, path: &mut Path) -> Probed<(), S::Error> {
    // A sound tree has fewer leaves than the directory has blocks. A hostile one can share nodes and look endless.
    path.steps += 1;
    let level = path.frames().iter().rposition(|frame| frame.next_key.is_some());
    let Some(level) = level.filter(|_| path.steps <= path.blocks) else {
        return Ok(Err(DirError::Corrupt {
            lblk: 0,
            offset: 0,
            detail: Detail::Whole("the index has more leaves than blocks"),
        }));
    };
    let (lblk, at) = (path.frames[level].lblk, path.frames[level].at + 1);
    let format = params.dx_format();
    let node = store.read(lblk, BlockKind::Index, |block| {
        let node = format.node(Path::shape(level), block)?;
        Ok((Frame::new(lblk, &node, at), node.child(at)))
    })?;
    let (frame, mut child) = match node {
        Ok(node) => node,
        Err(damage) => return Ok(Err(DirError::corrupt(lblk, damage))),
    };
    path.frames[level] = frame;
    if let Err(error) = path.check_child(child, level) {
        return Ok(Err(error));
    }
    for below in level + 1..path.depth {
        match descend(store, params, path, below, child, None)? {
            Ok(next) => child = next,
            Err(error) => return Ok(Err(error)),
        }
    }
    path.leaf = child;
    Ok(Ok(()))
}
