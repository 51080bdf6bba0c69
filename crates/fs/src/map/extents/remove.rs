//! Unmaps a range of an extent tree, leaf by leaf from right to left.
//!
//! Each round takes the last extents of the range that lie in one leaf, as many as the handle's credits allow. It
//! changes the leaf, frees the nodes that become empty, and then frees the data. The map is consistent between rounds.
//! Linux: `ext4_ext_remove_space`, `ext4_ext_rm_leaf`.
//!
//! # Locking
//! The caller's map lock.

use extant_ondisk::extent::{DEPTH_MAX, Extent, RawEntry};
use extant_ondisk::{BlockNr, GroupNr, LogicalBlock};

use super::edit::{Edit, nodes_needed};
use super::path::{Found, Path};
use super::{clusters, depth_of};
use crate::map::{MapRoot, MapStore, Progress};

/// The credits of one round, without those for the groups of the data. The nodes on the path are changed or freed; a
/// freed node needs its bitmap, its descriptor and a revoke record. The root may collapse, and a split in the middle of
/// an extent allocates `new_nodes`.
fn round_credits(depth: u32, new_nodes: u32) -> u32 {
    4 * (depth + 1) + 3 * new_nodes
}

pub(in crate::map) fn credits_for_remove(root: &MapRoot, groups: u32) -> u32 {
    let depth = (depth_of(root) + 1).min(u32::from(DEPTH_MAX));
    round_credits(depth, depth + 1) + 2 * groups.max(1)
}

/// The groups whose blocks are freed, each counted once.
#[derive(Default)]
struct Groups(Vec<GroupNr>);

impl Groups {
    /// Adds the groups of an extent. Groups are contiguous, so only the first and the last are looked up.
    fn add<S: MapStore>(&mut self, store: &S, extent: &Extent) {
        // Blocks that no file can own are not freed.
        if !store.block_range_valid(extent.pblk, extent.len) {
            return;
        }
        let first = store.group_of(extent.pblk).0;
        let last = store.group_of(BlockNr(extent.pblk.0 + u64::from(extent.len.max(1)) - 1)).0;
        // An extent has at most 32768 blocks, so this is short even with the smallest groups.
        for group in first..=last {
            if let Err(at) = self.0.binary_search(&GroupNr(group)) {
                self.0.insert(at, GroupNr(group));
            }
        }
    }

    fn credits(&self) -> u32 {
        2 * self.0.len() as u32
    }
}

/// The part of an extent in its last groups, as many of them as `affordable` accepts but fewer than all; `None` if not
/// even one group is affordable.
fn last_groups<S: MapStore>(store: &S, extent: &Extent, mut affordable: impl FnMut(u32) -> bool) -> Option<Extent> {
    let group_at = |offset: u32| store.group_of(BlockNr(extent.pblk.0 + u64::from(offset))).0;
    let last = group_at(extent.len - 1);
    let mut count = last.checked_sub(group_at(0))?;
    while count > 0 && !affordable(count) {
        count /= 2;
    }
    if count == 0 {
        return None;
    }
    // Find the first block in the first of these groups by bisection.
    let (mut low, mut high) = (0, extent.len - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if group_at(middle) > last - count { high = middle } else { low = middle + 1 }
    }
    extent.clip(u64::from(extent.lblk.0) + u64::from(low), u64::MAX)
}

pub(in crate::map) fn remove<S: MapStore>(
    root: &mut MapRoot,
    store: &S,
    txn: &mut S::Txn,
    from: u32,
    to: u32,
) -> Result<Progress, S::Error> {
    let mut to = to;
    while from <= to {
        let path = match Path::find_to_remove(root, store, to)? {
            Found::Leaf(path) => path,
            Found::Lost(path, level) => {
                if !store.has_credits(txn, round_credits(path.depth as u32, 0)) {
                    return Ok(Progress::Stopped { at: LogicalBlock(to) });
                }
                Edit::new(root, store, txn, path).drop_below(level)?;
                continue;
            }
        };
        let leaf = *path.leaf();
        if leaf.count == 0 && leaf.block.is_some() {
            // Old kernels left empty leaves in the tree. The tree cannot be freed before these are.
            if !store.has_credits(txn, round_credits(path.depth as u32, 0)) {
                return Ok(Progress::Stopped { at: LogicalBlock(to) });
            }
            Edit::new(root, store, txn, path).replace_leaf(0..0, &[], None)?;
            continue;
        }
        let Some(pos) = path.pos else {
            // The leaf's extents all lie after `to`. Blocks before the leaf's key belong to earlier leaves.
            if leaf.first > to || leaf.first <= from {
                break;
            }
            to = leaf.first - 1;
            continue;
        };
        let (start, stop) = (u64::from(from), u64::from(to) + 1);
        let extents = path.leaf_extents(root, store, 0..pos + 1)?;
        let mut groups = Groups::default();
        let mut gone: Vec<Extent> = Vec::new();
        let (mut left, mut right) = (None, None);
        for extent in extents.iter().rev() {
            let Some(part) = extent.clip(start, stop) else { break };
            let first = gone.is_empty();
            let behind = if first { extent.clip(stop, u64::MAX) } else { right };
            let before = extent.clip(0, u64::from(part.lblk.0));
            groups.add(store, &part);
            let nodes = |added: usize| nodes_needed::<S>(&path, gone.len() + 1, added);
            let added = usize::from(before.is_some()) + usize::from(behind.is_some());
            if store.has_credits(txn, round_credits(path.depth as u32, nodes(added)) + groups.credits()) {
                (left, right) = (before, behind);
                gone.push(part);
                continue;
            }
            if first {
                // This one extent lies in too many groups for the handle: free at least its part in the last of them.
                let part = last_groups(store, &part, |groups| {
                    let added = 1 + usize::from(behind.is_some());
                    store.has_credits(txn, round_credits(path.depth as u32, nodes(added)) + 2 * groups)
                });
                let Some(part) = part else { return Ok(Progress::Stopped { at: LogicalBlock(to) }) };
                (left, right) = (extent.clip(0, u64::from(part.lblk.0)), behind);
                gone.push(part);
            }
            break;
        }
        let Some(last) = gone.last() else { break };
        let (lowest, first_gone) = (last.lblk.0, pos + 1 - gone.len());
        let freed = clusters::freed(root, store, &gone)?;
        let new: Vec<RawEntry> = [left, right].into_iter().flatten().map(|e| e.encode()).collect();
        Edit::new(root, store, txn, path).replace_leaf(first_gone..pos + 1, &new, gone.first().map(|e| e.pblk))?;
        for (part, freed) in gone.iter().zip(freed) {
            let Some(freed) = freed else { continue };
            root.blocks_delta -= freed.blocks as i64;
            store.free_data(txn, part.pblk, part.len, freed.shared)?;
        }
        if lowest <= from {
            break;
        }
        to = lowest - 1;
    }
    Ok(Progress::Done)
}
