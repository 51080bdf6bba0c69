//! Extent trees over a store: look up, map, change state, unmap, walk.
//!
//! Main types: `path::Path` (the path from the root to one leaf), `edit::Edit` (replaces entries of a leaf and
//! updates the tree above). Linux: fs/ext4/extents.c, with the same shape: find a path, change the leaf, correct the
//! indexes.
//!
//! # Locking
//! The caller's map lock.

mod clusters;
mod edit;
mod path;
mod remove;
mod salvage;

use std::ops::ControlFlow;

use extant_ondisk::extent::{DEPTH_MAX, Extent, LOGICAL_END, NodeRef, len_max};
use extant_ondisk::{BlockNr, LogicalBlock};

use super::{MapError, MapRoot, MapState, MapStore, Mapping, NEIGHBOURS, Progress};
pub(super) use clusters::place;
use edit::{Edit, Pieces};
use path::{Path, root_node, with_node};
pub(super) use remove::{credits_for_remove, remove};
pub(super) use salvage::salvage;

/// The whole run that one extent maps.
fn mapping_of(extent: &Extent) -> Mapping {
    let state = if extent.unwritten { MapState::Unwritten(extent.pblk) } else { MapState::Written(extent.pblk) };
    Mapping { lblk: extent.lblk, len: extent.len, state }
}

pub(super) fn check_root<S: MapStore>(root: &MapRoot, store: &S) -> Result<(), S::Error> {
    root_node(root, store).map(drop)
}

pub(super) fn lookup<S: MapStore>(root: &MapRoot, store: &S, lblk: u32, max_len: u32) -> Result<Mapping, S::Error> {
    let path = Path::find(root, store, lblk)?;
    let limit = u64::from(lblk) + u64::from(max_len);
    if let Some(found) = path.at.and_then(|e| e.clip(u64::from(lblk), limit)).filter(|e| e.lblk.0 == lblk) {
        return Ok(mapping_of(&found));
    }
    let len = (path.hole_end().min(limit)).saturating_sub(u64::from(lblk));
    match u32::try_from(len) {
        Ok(len) if len > 0 => Ok(Mapping { lblk: LogicalBlock(lblk), len, state: MapState::Hole }),
        _ => Err(root.corrupt(path.leaf().block, "keys of the tree are not in order")),
    }
}

pub(super) fn leaf<S: MapStore>(root: &MapRoot, store: &S, lblk: u32) -> Result<Vec<Mapping>, S::Error> {
    let path = Path::find(root, store, lblk)?;
    if path.depth == 0 {
        return Ok(Vec::new());
    }
    let at = path.pos.unwrap_or(0);
    let extents = path.leaf_extents(root, store, at.saturating_sub(NEIGHBOURS)..at + NEIGHBOURS)?;
    Ok(extents.iter().map(mapping_of).collect())
}

pub(super) fn insert<S: MapStore>(
    root: &mut MapRoot,
    store: &S,
    txn: &mut S::Txn,
    lblk: u32,
    pblk: BlockNr,
    len: u32,
    unwritten: bool,
) -> Result<u32, S::Error> {
    let len = len.min(len_max(unwritten));
    if pblk.0 + u64::from(len) > 1 << 48 {
        return Err(MapError::Invalid { ino: root.ino, detail: "blocks beyond 48 bits" }.into());
    }
    let path = Path::find(root, store, lblk)?;
    let new = Extent { lblk: LogicalBlock(lblk), len, pblk, unwritten };
    if path.at.is_some_and(|e| e.contains(lblk)) {
        return Err(MapError::Mapped { ino: root.ino, lblk }.into());
    }
    if path.hole_end() < new.end() {
        return Err(MapError::Mapped { ino: root.ino, lblk: path.hole_end() as u32 }.into());
    }
    let gained = clusters::gained(root, store, lblk, len)?;
    let mut pieces = Pieces::new(path.at);
    pieces.push(new);
    pieces.finish(path.next);
    let start = path.pos.map_or(0, |pos| pos + 1);
    Edit::new(root, store, txn, path).replace_extents(start..start, &pieces, Some(pblk))?;
    root.blocks_delta += gained;
    Ok(len)
}

/// Makes every mapped block of `from..from + len` written or unwritten, one extent at a time, left to right.
pub(super) fn set_state<S: MapStore>(
    root: &mut MapRoot,
    store: &S,
    txn: &mut S::Txn,
    from: u32,
    len: u32,
    unwritten: bool,
) -> Result<Progress, S::Error> {
    let end = (u64::from(from) + u64::from(len)).min(u64::from(LOGICAL_END));
    let mut at = u64::from(from);
    let mut started = false;
    while at < end {
        let lblk = at as u32;
        let path = Path::find(root, store, lblk)?;
        let Some(found) = path.at.filter(|e| e.contains(lblk)) else {
            if path.hole_end() <= at {
                return Err(root.corrupt(path.leaf().block, "keys of the tree are not in order"));
            }
            at = path.hole_end();
            continue;
        };
        let stop = found.end().min(end);
        if found.unwritten != unwritten {
            // The caller's credits cover the first extent. For each further one the handle must have credits left.
            if started && !store.has_credits(txn, credits_for_insert(root)) {
                return Ok(Progress::Stopped { at: LogicalBlock(lblk) });
            }
            started = true;
            let mut pieces = Pieces::new(path.before);
            for part in [found.clip(0, at), found.clip(at, stop), found.clip(stop, found.end())].into_iter().flatten() {
                let inside = u64::from(part.lblk.0) >= at && part.end() <= stop;
                pieces.push_long(Extent { unwritten: if inside { unwritten } else { found.unwritten }, ..part });
            }
            pieces.finish(path.next);
            let pos = path.pos.unwrap_or(0);
            Edit::new(root, store, txn, path).replace_extents(pos..pos + 1, &pieces, Some(found.pblk))?;
        }
        at = stop;
    }
    Ok(Progress::Done)
}

pub(super) fn walk<S: MapStore>(
    root: &MapRoot,
    store: &S,
    from: u32,
    mut f: impl FnMut(Mapping) -> ControlFlow<()>,
) -> Result<(), S::Error> {
    let mut at = u64::from(from);
    while at < u64::from(LOGICAL_END) {
        let start = at;
        let path = Path::find(root, store, at as u32)?;
        let first = path.pos.unwrap_or(0);
        let extents = path.leaf_extents(root, store, first..usize::MAX)?;
        for extent in extents {
            if let Some(part) = extent.clip(at, u64::from(LOGICAL_END)) {
                if f(mapping_of(&part)).is_break() {
                    return Ok(());
                }
                at = part.end();
            }
        }
        // Take the leaf's own end, not the end of its last extent, so that the next search lands in the next leaf.
        if path.leaf().end <= start {
            return Err(root.corrupt(path.leaf().block, "keys of the tree are not in order"));
        }
        at = at.max(path.leaf().end);
    }
    Ok(())
}

pub(super) fn walk_meta<S: MapStore>(root: &MapRoot, store: &S, f: &mut impl FnMut(BlockNr)) -> Result<(), S::Error> {
    let node = root_node(root, store)?;
    let children = children_of(&node, u64::from(LOGICAL_END));
    walk_meta_below(root, store, node.depth(), &children, f)
}

/// A child node, its first logical block, and the end of its range.
type Child = (BlockNr, u32, u64);

fn children_of(node: &NodeRef<'_>, end: u64) -> Vec<Child> {
    if node.depth() == 0 {
        return Vec::new();
    }
    (0..node.len())
        .filter_map(|i| {
            let index = node.index(i)?;
            Some((index.child, index.lblk.0, node.key(i + 1).map_or(end, u64::from)))
        })
        .collect()
}

fn walk_meta_below<S: MapStore>(
    root: &MapRoot,
    store: &S,
    depth: u16,
    children: &[Child],
    f: &mut impl FnMut(BlockNr),
) -> Result<(), S::Error> {
    for &(block, first, end) in children {
        f(block);
        if depth > 1 {
            let below = with_node(root, store, block, depth - 1, first, end, |node| children_of(&node, end))?;
            walk_meta_below(root, store, depth - 1, &below, f)?;
        }
    }
    Ok(())
}

/// The depth of the tree. A damaged root counts as the deepest possible tree.
fn depth_of(root: &MapRoot) -> u32 {
    NodeRef::parse(&root.i_block, 0).map_or(u32::from(DEPTH_MAX), |node| u32::from(node.depth()))
}

/// The worst case: every level is changed and split, the root grows, and a merge causes one collapse. The tree may grow
/// between the estimate and the use of the handle, so one level is added.
pub(super) fn credits_for_insert(root: &MapRoot) -> u32 {
    let levels = (depth_of(root) + 1).min(u32::from(DEPTH_MAX));
    levels + 3 * (levels + 1) + 2
}
