//! The clusters that an extent tree begins or ceases to use. A cluster takes space once for all of its blocks. It is
//! freed with the last of them, regardless of the extents and leaves that they are in (Linux:
//! `get_implied_cluster_alloc`, `ext4_remove_blocks` with `struct partial_cluster`).
//!
//! Before a change, the other blocks of a cluster are looked up in the map itself. So no state is kept between the
//! steps of a removal.
//!
//! # Locking
//! The caller's map lock.

use extant_ondisk::extent::{Extent, LOGICAL_END};
use extant_ondisk::{BlockNr, LogicalBlock};

use super::lookup;
use crate::map::store::Shared;
use crate::map::{MapRoot, MapState, MapStore, Mapping};

/// The first mapped run with blocks in `from..to`.
fn mapped_between<S: MapStore>(root: &MapRoot, store: &S, from: u64, to: u64) -> Result<Option<Mapping>, S::Error> {
    let (mut at, to) = (from, to.min(LOGICAL_END.into()));
    while at < to {
        let found = lookup(root, store, at as u32, (to - at) as u32)?;
        if found.state != MapState::Hole {
            return Ok(Some(found));
        }
        at += u64::from(found.len);
    }
    Ok(None)
}

/// As [`mapped_between`], for a removal: a cluster counts as used if damage hides its blocks.
fn is_used<S: MapStore>(root: &MapRoot, store: &S, from: u64, to: u64) -> Result<bool, S::Error> {
    match mapped_between(root, store, from, to) {
        Err(e) if store.passes(&e) => Ok(true),
        found => found.map(|found| found.is_some()),
    }
}

/// The place of `lblk` if another block of its cluster is mapped; otherwise `None`.
pub(in crate::map) fn place<S: MapStore>(root: &MapRoot, store: &S, lblk: u32) -> Result<Option<BlockNr>, S::Error> {
    let size = store.cluster_size();
    let cluster = size.of(lblk.into());
    let Some(found) = mapped_between(root, store, size.first_block(cluster), size.first_block(cluster + 1))? else {
        return Ok(None);
    };
    let (MapState::Written(block) | MapState::Unwritten(block)) = found.state else { return Ok(None) };
    if is_askew(store, found.lblk, block) {
        return Err(root.corrupt(None, askew(found.lblk, block)));
    }
    let first = size.first_block(size.of(block.0));
    Ok(Some(BlockNr(first + u64::from(size.offset(lblk.into())))))
}

fn is_askew<S: MapStore>(store: &S, lblk: LogicalBlock, block: BlockNr) -> bool {
    let size = store.cluster_size();
    size.offset(lblk.0.into()) != size.offset(block.0)
}

fn askew(lblk: LogicalBlock, block: BlockNr) -> String {
    format!("logical block {} is mapped to {block}, at another place in its cluster", lblk.0)
}

/// The blocks of the clusters that the file gains when the hole `lblk..lblk + len` is mapped.
pub(super) fn gained<S: MapStore>(root: &MapRoot, store: &S, lblk: u32, len: u32) -> Result<i64, S::Error> {
    let size = store.cluster_size();
    if size.is_one() {
        return Ok(len.into());
    }
    let (start, end) = (u64::from(lblk), u64::from(lblk) + u64::from(len));
    let clusters = size.around(start..end);
    let before = mapped_between(root, store, size.first_block(clusters.start), start)?.is_some();
    let behind = mapped_between(root, store, end, size.first_block(clusters.end))?.is_some();
    let count = clusters.end - clusters.start;
    let had = if count == 1 { u64::from(before || behind) } else { u64::from(before) + u64::from(behind) };
    Ok(size.first_block(count - had) as i64)
}

/// The clusters that become free when an extent is unmapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freed {
    pub shared: Shared,
    /// The number of blocks in the clusters that the file loses.
    pub blocks: u64,
}

/// The clusters that become free when `gone` is unmapped: adjacent extents, the last one first. `None` for an extent
/// that is damaged so that it does not match the boundaries of clusters; it frees nothing.
pub(super) fn freed<S: MapStore>(root: &MapRoot, store: &S, gone: &[Extent]) -> Result<Vec<Option<Freed>>, S::Error> {
    let size = store.cluster_size();
    let (Some(first), Some(last)) = (gone.last(), gone.first()) else { return Ok(Vec::new()) };
    if size.is_one() {
        let whole = |part: &Extent| Some(Freed { shared: Shared::default(), blocks: part.len.into() });
        return Ok(gone.iter().map(whole).collect());
    }
    let (start, end) = (u64::from(first.lblk.0), last.end());
    let (low, high) = (size.of(start), size.of(end - 1));
    let before = is_used(root, store, size.first_block(low), start)?;
    let behind = is_used(root, store, end, size.first_block(high + 1))?;
    let stays = |cluster: u64| (before && cluster == low) || (behind && cluster == high);
    let mut freed = Vec::with_capacity(gone.len());
    for (i, part) in gone.iter().enumerate() {
        if is_askew(store, part.lblk, part.pblk) {
            let e = root.corrupt(None, askew(part.lblk, part.pblk));
            if !store.passes(&e) {
                return Err(e);
            }
            freed.push(None);
            continue;
        }
        let (head, tail) = (size.of(part.lblk.0.into()), size.of(part.end() - 1));
        // If a cluster is in two of the extents, it is freed with the left one.
        let left_has = gone.get(i + 1).is_some_and(|left| size.of(left.end() - 1) == head);
        let (at_head, at_tail) = (left_has || stays(head), stays(tail));
        let shared = match head == tail {
            true => Shared { first: at_head || at_tail, last: false },
            false => Shared { first: at_head, last: at_tail },
        };
        let clusters = tail + 1 - head - u64::from(shared.first) - u64::from(shared.last);
        freed.push(Some(Freed { shared, blocks: size.first_block(clusters) }));
    }
    Ok(freed)
}
