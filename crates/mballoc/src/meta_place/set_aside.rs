//! Moves blocks into zones, from zones to metadata, and from zones to data.
//!
//! # Locking
//! [`crate::lock::GROUP`], one at a time.

use std::ops::Range;

use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_ondisk::{BlockNr, GroupNr};

use super::policy::SetAsideAmount;
use super::{Area, MetaZones, NEVER, PAGE, Region, WINDOW};
use crate::allocator::Allocator;
use crate::group::GroupInner;
use crate::ranges::RangeSet;
use crate::search::Extent;
use crate::space::Privilege;
use crate::{Allocation, GroupStore, Kind, MetaRequest, Request};

/// The number of bits for an owner's place in a region, enough for 128 groups of 2^19 blocks. Above them is the number
/// of its blocks so far, at most [`MOST`], and above that the owner's inode number.
const PLACE_BITS: u32 = 28;
/// An owner of at least this many blocks continues in its own window.
const MANY: u32 = 8;
/// The count of an owner's blocks stops here. Minus [`MANY`], this is how many requests of other owners in the same
/// slot an owner of many survives without taking a block itself.
const MOST: u32 = 9;

/// The maximum number of areas that one request activates, because each may read a bitmap.
const GROW_MAX: u32 = 16;

/// Where in a zone a block may be taken, better places first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// The first block of an entirely free window, in a page of the home or an unowned page.
    Window,
    /// The first block in a page of the home.
    Own,
    /// The first block of an unowned page.
    Unowned,
    /// The first block that does not continue another owner's blocks.
    First,
    /// The first block.
    Any,
}

/// For an owner with few or no blocks in the region: it fills the gaps that others left.
const FOR_FEW: &[Fit] = &[Fit::Own, Fit::Unowned, Fit::First, Fit::Any];
/// For an owner of many blocks, which continues its own.
const FOR_MANY: &[Fit] = &[Fit::Window, Fit::Own, Fit::Unowned, Fit::First, Fit::Any];
/// For zones without pages.
const PLAIN: &[Fit] = &[Fit::Any];

/// The part of a zone in one group, as one request sees it.
struct View<'a> {
    free: &'a RangeSet,
    /// The home of each page; 0 for none.
    pages: &'a [u8],
    /// The index of the group's first block in the region.
    base: u32,
    /// Windows of other owners, by number.
    others: &'a [u32],
    home: u8,
}

impl View<'_> {
    fn taken(&self, index: u32) -> bool {
        self.others.contains(&((self.base + index) / WINDOW))
    }

    fn page(&self, index: u32) -> u8 {
        self.pages.get((index / PAGE) as usize).copied().unwrap_or(0)
    }

    /// The end of the window that contains `index`.
    fn window_end(&self, index: u32) -> u32 {
        index + WINDOW - (self.base + index) % WINDOW
    }

    fn find(&self, fit: Fit) -> Option<u32> {
        for (start, len) in self.free.iter() {
            let (mut at, end) = (start, start + len);
            while at < end {
                let (owner, window_end) = (self.page(at), self.window_end(at));
                let fits = match fit {
                    Fit::Window => {
                        let whole = (self.base + at).is_multiple_of(WINDOW) && window_end <= end;
                        whole && (owner == 0 || owner == self.home) && !self.taken(at)
                    }
                    Fit::Own => owner == self.home && !self.taken(at),
                    Fit::Unowned => owner == 0,
                    Fit::First => !self.taken(at),
                    Fit::Any => true,
                };
                if fits {
                    return Some(at);
                }
                at = window_end;
            }
        }
        None
    }
}

impl Region {
    fn slot(&self, owner: u32) -> Option<&AtomicU64> {
        self.owners.get(owner as usize % self.owners.len().max(1))
    }

    /// Where the owner continues, as an index in the region, and the number of its blocks so far, at most [`MOST`].
    fn next_of(&self, owner: u32) -> Option<(u32, u32)> {
        let slot = self.slot(owner)?.load(Ordering::Relaxed);
        (slot != 0 && (slot >> 32) as u32 == owner).then(|| unpacked(slot))
    }

    /// Records where the owner continues. If an owner of many blocks has the same slot, it keeps the slot and its count
    /// decreases by one, because files of one block each come and go.
    fn remember(&self, owner: u32, next: u32, blocks: u32) {
        let Some(slot) = self.slot(owner) else { return };
        let held = slot.load(Ordering::Relaxed);
        let (other, (place, had)) = ((held >> 32) as u32, unpacked(held));
        let new = match other == owner {
            true => packed(owner, next, had.saturating_add(blocks)),
            false if had >= MANY => packed(other, place, had - 1),
            false => packed(owner, next, blocks),
        };
        slot.store(new, Ordering::Relaxed);
    }

    /// Windows in which other owners of many blocks continue.
    fn windows_of_others(&self, owner: u32) -> Vec<u32> {
        let slots = self.owners.iter().map(|s| s.load(Ordering::Relaxed));
        let others = slots.filter(|s| (s >> 32) as u32 != owner).map(unpacked).filter(|(_, had)| *had >= MANY);
        others.map(|(next, _)| next).filter(|next| next % WINDOW != 0).map(|next| next / WINDOW).collect()
    }
}

fn packed(owner: u32, place: u32, had: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(had.min(MOST) << PLACE_BITS | place)
}

/// Unpacks the place of an owner's last block and the number of its blocks.
fn unpacked(slot: u64) -> (u32, u32) {
    let low = slot as u32;
    (low & ((1 << PLACE_BITS) - 1), low >> PLACE_BITS)
}

impl<S: GroupStore> Allocator<S> {
    /// The area of a zone that contains `block`, for a reader that wants the neighbours of a block: first block and
    /// length. Its used blocks are metadata, or data to which the area was lent.
    pub fn zone_around(&self, block: BlockNr) -> Option<(BlockNr, u32)> {
        let zones = self.meta_zones.as_ref()?;
        let (group, index) = self.geometry.locate(block)?;
        let mut active = zones.active(&self.geometry, &self.zones, group);
        let area = active.find(|area| (area.start..area.start + area.len).contains(&index))?;
        Some((self.geometry.block(group, area.start), area.len))
    }
}

impl<S: GroupStore> Allocator<S> {
    fn active_areas<'a>(&'a self, zones: &'a MetaZones, group: GroupNr) -> impl Iterator<Item = Area> + 'a {
        zones.active(&self.geometry, &self.zones, group)
    }

    /// Sets aside the free blocks of a range that are in active areas, unless the region has enough. The caller
    /// publishes the group's numbers.
    pub(crate) fn put_aside(&self, nr: GroupNr, inner: &mut GroupInner, start: u32, len: u32) {
        let Some(zones) = &self.meta_zones else { return };
        // Pages are clipped at the ends of the group's part of the zone, not where one area meets the next.
        let within = self.active_areas(zones, nr).map(|a| a.start..a.start + a.len);
        let Some(within) = within.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else { return };
        for area in self.active_areas(zones, nr) {
            let (mut at, end) = (area.start.max(start), (area.start + area.len).min(start + len));
            if at >= end {
                continue;
            }
            if zones.has_enough(nr) {
                return;
            }
            let mut moved = 0;
            let Some(buddy) = &mut inner.buddy else {
                // The blocks are found later, when the bitmap is loaded.
                return zones.added(nr, 0);
            };
            let mut runs = Vec::new();
            while let Some(free) = buddy.next_free(at).filter(|&free| free < end) {
                at = buddy.next_used(free, end).min(end);
                runs.push((free, at - free));
            }
            for (start, len) in runs {
                if inner.buddy.as_mut().is_some_and(|b| b.mark_used(start, len)) {
                    let fresh = inner.put_aside(start, len);
                    debug_assert!(fresh, "free blocks are not held");
                    inner.leave_pages(start, len, within.clone());
                    moved += len;
                }
            }
            if moved > 0 {
                zones.added(nr, moved);
            }
        }
    }

    /// Frees the blocks set aside in an area, unless the area is active again. Returns their number.
    fn give_aside(&self, zones: &MetaZones, area: Area) -> u32 {
        let nr = area.group;
        let Some(group) = self.group_ref(nr) else { return 0 };
        let mut inner = group.lock();
        if self.active_areas(zones, nr).any(|active| active == area) {
            return 0;
        }
        let aside = inner.set_aside().into_iter().flat_map(RangeSet::iter);
        let lent: Vec<_> = aside.filter_map(|run| overlap(run, (area.start, area.len))).collect();
        let total = lent.iter().map(|(_, len)| len).sum();
        for (start, len) in lent {
            inner.take_aside(start, len);
            inner.unhold(start, len);
            match &mut inner.buddy {
                Some(buddy) => {
                    let fresh = buddy.mark_free(start, len);
                    debug_assert!(fresh, "held blocks are not free");
                }
                None => {
                    group.set_free(group.free() + len);
                    group.unlearn();
                }
            }
        }
        if total > 0 {
            zones.removed(nr, total);
            self.publish(nr, group, &inner);
        }
        total
    }

    /// Dissolves the zone of a group. Its blocks are neither held nor free; the caller counts them. Returns their
    /// number.
    pub(crate) fn forget_aside(&self, nr: GroupNr, inner: &mut GroupInner) -> u32 {
        let (Some(zones), Some(all)) = (&self.meta_zones, inner.set_aside().cloned()) else { return 0 };
        for (start, len) in all.iter() {
            inner.take_aside(start, len);
            inner.unhold(start, len);
        }
        zones.removed(nr, all.total());
        all.total()
    }

    /// Takes the first run that is set aside in `from..limit`. It is still held, and is counted until
    /// [`Allocator::return_aside`], so that its brief absence makes no zone grow.
    pub(crate) fn borrow_aside_from(&self, nr: GroupNr, from: u32, limit: u32) -> Option<(u32, u32)> {
        let mut inner = self.group_ref(nr)?.lock();
        let start = inner.set_aside()?.next(from).filter(|&start| start < limit)?;
        let (first, len) = inner.set_aside()?.containing(start)?;
        let len = (first + len).min(limit) - start;
        inner.take_aside(start, len);
        Some((start, len))
    }

    /// Frees a run that was taken, or sets it aside again.
    pub(crate) fn return_aside(&self, nr: GroupNr, (start, len): (u32, u32)) {
        if let Some(zones) = &self.meta_zones {
            zones.removed(nr, len);
        }
        self.give_back(nr, [(start, len)], None);
    }

    /// Called before data is placed in a region: first examines the zone's blocks from earlier mounts. Data is chosen
    /// long before it is mapped, and would fill a zone of which no area is active yet.
    pub(crate) fn look_before_data(&self, goal: Option<BlockNr>) {
        let Some(zones) = &self.meta_zones else { return };
        let group = goal.and_then(|goal| self.geometry.locate(goal)).map_or(GroupNr(0), |(group, _)| group);
        if let Some((nr, region)) = zones.unseen(group) {
            self.look_around(zones, nr, region);
        }
    }

    /// Serves a request for metadata from the policy's zone for its kind.
    pub(crate) fn use_zone(&self, meta: &MetaRequest, len: u32, limit: u32) -> Result<Option<Allocation>, S::Error> {
        let Some(zones) = self.meta_zones.as_ref().filter(|z| z.zoning.roles.contains(&meta.role)) else {
            return Ok(None);
        };
        let near = meta.data.or(meta.parent).or(meta.home).and_then(|b| self.geometry.locate(b));
        let Some((nr, region)) = zones.region(near.map_or(GroupNr(0), |(group, _)| group)) else { return Ok(None) };
        self.look_around(zones, nr, region);
        // Counted before the blocks are cut. Otherwise another request may meanwhile conclude that they do not exist.
        self.in_transit.begin(u64::from(len));
        let found = self.cut_from_region(zones, nr, region, meta, len, limit);
        self.in_transit.end(u64::from(len - found.map_or(0, |f| f.len)));
        let Some(found) = found else {
            self.counters.zone_overflows.inc();
            return Ok(None);
        };
        self.counters.zone_hits.inc();
        self.settle(found, found, None, None).map(Some)
    }

    /// Reads the bitmaps of a region's active areas once. While too little is set aside, it examines them again for
    /// blocks that were left to data, and activates more areas.
    fn look_around(&self, zones: &MetaZones, nr: u32, region: &Region) {
        for _ in 0..GROW_MAX {
            let active = region.active.load(Ordering::Relaxed);
            let seen = region.seen.load(Ordering::Relaxed);
            if seen < active.div_ceil(zones.zoning.per_group) {
                let group = GroupNr(zones.first_group(nr) + seen);
                self.put_all_aside(group, 0..self.geometry.blocks_in_group(group));
                let _ = region.seen.compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed);
                continue;
            }
            let short = match zones.zoning.ahead {
                SetAsideAmount::All => true,
                SetAsideAmount::HalfAnArea => region.free.load(Ordering::Relaxed) < zones.area_len / 2,
            };
            if !short || !self.has_plenty(zones) {
                return;
            }
            if region.left.swap(false, Ordering::Relaxed) {
                // The blocks that were left to data may still be free.
                region.seen.store(0, Ordering::Relaxed);
                continue;
            }
            if active >= region.most {
                return;
            }
            self.grow(zones, nr, region, active);
        }
    }

    /// Activates one more area than `active`, unless another request already has.
    fn grow(&self, zones: &MetaZones, nr: u32, region: &Region, active: u32) {
        if region.active.compare_exchange(active, active + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        self.counters.zone_areas_grown.inc();
        if let Some(area) = zones.area(&self.geometry, &self.zones, nr, active) {
            self.put_all_aside(area.group, area.start..area.start + area.len);
        }
    }

    /// Called when all free blocks are in pages of other homes: activates one more area. Does nothing if enough blocks
    /// are free, because then none of the new area would be set aside. Returns whether another search for a page is
    /// worthwhile.
    fn grow_for_pages(&self, zones: &MetaZones, nr: u32, region: &Region) -> bool {
        let (active, first) = (region.active.load(Ordering::Relaxed), zones.first_group(nr));
        let has_any =
            |group| self.group_ref(group).is_some_and(|g| g.lock().set_aside().is_some_and(|s| !s.is_empty()));
        let grows = active < region.most
            && !zones.is_rich(region)
            && self.has_plenty(zones)
            && (first..first + active.div_ceil(zones.zoning.per_group)).any(|g| has_any(GroupNr(g)));
        if grows {
            self.grow(zones, nr, region, active);
        }
        grows
    }

    /// Loads the bitmap of a group, and sets aside the free blocks of a range.
    fn put_all_aside(&self, nr: GroupNr, range: Range<u32>) {
        if let Some(group) = self.group_ref(nr)
            && let Ok(mut inner) = self.lock_loaded(nr, true)
        {
            self.put_aside(nr, &mut inner, range.start, range.end - range.start);
            self.publish(nr, group, &inner);
        }
    }

    /// Whether data would still have more free blocks than the zones if one more area were active, without waiting for
    /// a commit. So a lent area returns only once much more than an area is free.
    fn has_plenty(&self, zones: &MetaZones) -> bool {
        let aside = zones.total();
        let free = self.space.available(Privilege::All).saturating_sub(aside + self.pending_blocks());
        free > aside + u64::from(zones.area_len)
    }

    /// Takes blocks from the zone of a region; they are still held.
    fn cut_from_region(
        &self,
        zones: &MetaZones,
        nr: u32,
        region: &Region,
        meta: &MetaRequest,
        len: u32,
        limit: u32,
    ) -> Option<Extent> {
        let first = zones.first_group(nr);
        let (owner, blocks) = (meta.owner.0, self.geometry.blocks_per_group);
        let others = region.windows_of_others(owner);
        let next = region.next_of(owner);
        let in_region = |block: BlockNr| {
            let (group, index) = self.geometry.locate(block)?;
            zones.region(group).filter(|r| r.0 == nr).map(|_| (group, index))
        };
        // A checker reads the maps of inodes of the same group together.
        let home = [meta.home, meta.data].into_iter().flatten().find_map(in_region);
        let home = home.map_or(1, |(group, _)| (group.0 - first) as u8 + 1);
        let cut = |group: GroupNr, fit: &dyn Fn(&View<'_>) -> Option<u32>| {
            let mut inner = self.lock_loaded(group, true).ok()?;
            if inner.set_aside().is_none_or(RangeSet::is_empty) {
                // Under the lock: a thread that sets blocks aside here did so before, or lowers the number
                // afterwards.
                let offset = group.0 - first;
                let _ = region.lowest.compare_exchange(offset, offset + 1, Ordering::Relaxed, Ordering::Relaxed);
                return None;
            }
            let (free, pages) = inner.zone()?;
            if zones.zoning.owners > 0 && pages.is_empty() {
                pages.resize(blocks.div_ceil(PAGE) as usize, 0);
            }
            let view = View { free, pages, base: (group.0 - first) * blocks, others: &others, home };
            let start = fit(&view)?;
            let (s, l) = view.free.containing(start)?;
            let n = len.min(s + l - start);
            region.remember(owner, view.base + start + n, n);
            if let Some(page) = pages.get_mut((start / PAGE) as usize).filter(|page| **page == 0) {
                *page = home;
            }
            free.remove(start, n);
            zones.removed(group, n);
            Some(Extent { group, start, len: n })
        };
        // Where the owner continues, or just behind the block's parent.
        let hint = next.map(|(index, _)| (GroupNr(first + index / blocks), index % blocks));
        let hint = hint.or_else(|| in_region(meta.parent?).map(|(group, index)| (group, index + 1)));
        let end = || limit.min(first + region.active.load(Ordering::Relaxed).div_ceil(zones.zoning.per_group));
        if let Some((group, index)) = hint.filter(|(group, _)| group.0 < end()) {
            let close = if next.is_some() { 1 } else { WINDOW };
            let here = |view: &View<'_>| view.free.next(index).filter(|&at| at - index < close && !view.taken(at));
            if let Some(found) = cut(group, &here) {
                return Some(found);
            }
        }
        let fits = match next {
            _ if zones.zoning.owners == 0 => PLAIN,
            Some((_, had)) if had >= MANY => FOR_MANY,
            _ => FOR_FEW,
        };
        let anywhere = |fit: Fit| {
            let lowest = region.lowest.load(Ordering::Relaxed);
            let mut groups = (lowest..end().saturating_sub(first)).map(|offset| GroupNr(first + offset));
            groups.find_map(|group| cut(group, &|view| view.find(fit)))
        };
        fits.iter().find_map(|&fit| {
            let found = anywhere(fit);
            // A new area is better than the pages of other homes.
            let again = found.is_none() && fit == Fit::Unowned && self.grow_for_pages(zones, nr, region);
            if again { anywhere(fit) } else { found }
        })
    }

    /// Whether data waits for a commit that frees enough blocks, instead of borrowing an area. Data borrows if blocks
    /// have been released since the last such answer and the request still found none, because other requests were
    /// faster. So a request waits only a bounded number of times.
    pub(crate) fn waits_rather_than_borrows(&self, request: &Request<'_>) -> bool {
        let Some(zones) = &self.meta_zones else { return false };
        if !matches!(request.kind, Kind::Data { .. }) || self.pending_blocks() < u64::from(request.len) {
            return false;
        }
        let released = self.counters.blocks_released.get();
        let told = zones.told_to_wait.swap(released, Ordering::Relaxed);
        let waits = told == NEVER || told == released;
        if !waits {
            zones.told_to_wait.store(NEVER, Ordering::Relaxed);
        }
        waits
    }

    /// Called when the only free blocks are those set aside: lends one area to data. It is the last non-empty area of
    /// the region nearest behind `goal`. Returns false if there is none below `limit`.
    pub(crate) fn lend(&self, goal: Option<GroupNr>, limit: u32) -> bool {
        let Some(zones) = self.meta_zones.as_ref().filter(|z| z.total() > 0) else { return false };
        // In flight from the change of the number to freeing the last block: otherwise another thread may conclude that
        // no block is left.
        self.in_transit.begin(1);
        let lent = self.lend_one(zones, goal.unwrap_or_default(), limit);
        if lent > 0 {
            self.counters.zone_areas_lent.inc();
            self.counters.zone_blocks_lent.add(u64::from(lent));
            self.in_transit.turned();
        }
        self.in_transit.end(1);
        lent > 0
    }

    fn lend_one(&self, zones: &MetaZones, goal: GroupNr, limit: u32) -> u32 {
        let count = zones.regions.len() as u32;
        let nearest = (goal.0 / zones.zoning.region_groups).min(count.saturating_sub(1));
        for nr in (nearest..count).chain(0..nearest) {
            let region = &zones.regions[nr as usize];
            while zones.first_group(nr) < limit && region.free.load(Ordering::Relaxed) > 0 {
                let last = |active: u32| active.checked_sub(1);
                let Ok(active) = region.active.fetch_update(Ordering::Relaxed, Ordering::Relaxed, last) else { break };
                let Some(area) = zones.area(&self.geometry, &self.zones, nr, active - 1) else { continue };
                let lent = self.give_aside(zones, area);
                if lent > 0 && area.group.0 < limit {
                    return lent;
                }
            }
        }
        0
    }
}

/// The intersection of two ranges.
fn overlap(a: (u32, u32), b: (u32, u32)) -> Option<(u32, u32)> {
    let (start, end) = (a.0.max(b.0), (a.0 + a.1).min(b.0 + b.1));
    (start < end).then(|| (start, end - start))
}
