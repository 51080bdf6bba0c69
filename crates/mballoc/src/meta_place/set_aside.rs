//! Moving blocks into zones, out of them to metadata, and out of them to data.
//!
//! # Locking
//! [`crate::lock::GROUP`], one at a time.

use std::ops::Range;

use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_ondisk::{BlockNr, GroupNr};

use super::policy::Ahead;
use super::{Area, MetaZones, NEVER, PAGE, Region, WINDOW};
use crate::allocator::Allocator;
use crate::group::GroupInner;
use crate::ranges::RangeSet;
use crate::search::Extent;
use crate::space::Privilege;
use crate::{Allocation, GroupStore, Kind, MetaRequest, Request};

/// An owner's place in a region has so many bits, enough for 128 groups of 2^19 blocks. Above them is how many blocks
/// it has had, [`MOST`] at most, and above that its number.
const PLACE_BITS: u32 = 28;
/// An owner of at least so many blocks goes on in a window of its own.
const MANY: u32 = 8;
/// No more are counted. So many others that come to its slot, less [`MANY`], an owner outlasts without a block.
const MOST: u32 = 9;

/// Areas that one request makes active at most: each may read a bitmap.
const GROW_MAX: u32 = 16;

/// Where in a zone a block may be taken: the better places first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// The first block of a window of which nothing is used, in a page of the home or an unowned page.
    Window,
    /// The first block in a page of the home.
    Own,
    /// The first block of an unowned page.
    Unowned,
    /// The first block that no other owner goes on with.
    First,
    /// The first block.
    Any,
}

/// For an owner that has had no block of the region, or few: it takes what others left.
const FOR_FEW: &[Fit] = &[Fit::Own, Fit::Unowned, Fit::First, Fit::Any];
/// For an owner that has had many and goes on.
const FOR_MANY: &[Fit] = &[Fit::Window, Fit::Own, Fit::Unowned, Fit::First, Fit::Any];
/// Where zones have no pages.
const PLAIN: &[Fit] = &[Fit::Any];

/// The part of a zone that lies in one group, as it looks to one request.
struct View<'a> {
    free: &'a RangeSet,
    /// The home of each page; 0 for none.
    pages: &'a [u8],
    /// The index, in the region, of the group's first block.
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

    /// The end of the window that `index` is in.
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

    /// Where the owner goes on, as an index in the region, and how many blocks it has had, [`MOST`] at most.
    fn next_of(&self, owner: u32) -> Option<(u32, u32)> {
        let slot = self.slot(owner)?.load(Ordering::Relaxed);
        (slot != 0 && (slot >> 32) as u32 == owner).then(|| unpacked(slot))
    }

    /// Notes where the owner goes on. An owner of many in the same slot stays, for files of one block each come and go;
    /// it counts for a little less.
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

    /// Windows in which other owners of many blocks go on.
    fn windows_of_others(&self, owner: u32) -> Vec<u32> {
        let slots = self.owners.iter().map(|s| s.load(Ordering::Relaxed));
        let others = slots.filter(|s| (s >> 32) as u32 != owner).map(unpacked).filter(|(_, had)| *had >= MANY);
        others.map(|(next, _)| next).filter(|next| next % WINDOW != 0).map(|next| next / WINDOW).collect()
    }
}

fn packed(owner: u32, place: u32, had: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(had.min(MOST) << PLACE_BITS | place)
}

/// The place and the blocks that an owner has had.
fn unpacked(slot: u64) -> (u32, u32) {
    let low = slot as u32;
    (low & ((1 << PLACE_BITS) - 1), low >> PLACE_BITS)
}

impl<S: GroupStore> Allocator<S> {
    fn active_areas<'a>(&'a self, zones: &'a MetaZones, group: GroupNr) -> impl Iterator<Item = Area> + 'a {
        zones.active(&self.geometry, &self.zones, group)
    }

    /// The free blocks of a range that lie in active areas are set aside, unless the region has enough. The caller
    /// publishes.
    pub(crate) fn put_aside(&self, nr: GroupNr, inner: &mut GroupInner, start: u32, len: u32) {
        let Some(zones) = &self.meta_zones else { return };
        // Pages are cut where the group's part of the zone begins and ends, not where one area meets the next.
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
                // They are found when the bitmap is loaded.
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

    /// What is set aside in an area becomes free, unless the area is active again. Returns how many blocks.
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

    /// Dissolves the zone of a group. Its blocks are neither held nor free; the caller counts them. Returns how many.
    pub(crate) fn forget_aside(&self, nr: GroupNr, inner: &mut GroupInner) -> u32 {
        let (Some(zones), Some(all)) = (&self.meta_zones, inner.set_aside().cloned()) else { return 0 };
        for (start, len) in all.iter() {
            inner.take_aside(start, len);
            inner.unhold(start, len);
        }
        zones.removed(nr, all.total());
        all.total()
    }

    /// Takes the first run that is set aside in `from..limit`; it is held still, and counted until
    /// [`Allocator::return_aside`]: nobody makes a zone larger for what is missing so shortly.
    pub(crate) fn borrow_aside_from(&self, nr: GroupNr, from: u32, limit: u32) -> Option<(u32, u32)> {
        let mut inner = self.group_ref(nr)?.lock();
        let start = inner.set_aside()?.next(from).filter(|&start| start < limit)?;
        let (first, len) = inner.set_aside()?.containing(start)?;
        let len = (first + len).min(limit) - start;
        inner.take_aside(start, len);
        Some((start, len))
    }

    /// What was taken becomes free, or is set aside again.
    pub(crate) fn return_aside(&self, nr: GroupNr, (start, len): (u32, u32)) {
        if let Some(zones) = &self.meta_zones {
            zones.removed(nr, len);
        }
        self.give_back(nr, [(start, len)], None);
    }

    /// Data is about to be placed in a region. What lies in its zone since earlier mounts is looked at first: data is
    /// chosen long before it is mapped, and would fill a zone of which no area is active yet.
    pub(crate) fn look_before_data(&self, goal: Option<BlockNr>) {
        let Some(zones) = &self.meta_zones else { return };
        let group = goal.and_then(|goal| self.geometry.locate(goal)).map_or(GroupNr(0), |(group, _)| group);
        if let Some((nr, region)) = zones.unseen(group) {
            self.look_around(zones, nr, region);
        }
    }

    /// Serves a request for metadata from the zone where its policy keeps such.
    pub(crate) fn use_zone(&self, meta: &MetaRequest, len: u32, limit: u32) -> Result<Option<Allocation>, S::Error> {
        let Some(zones) = self.meta_zones.as_ref().filter(|z| z.zoning.roles.contains(&meta.role)) else {
            return Ok(None);
        };
        let near = meta.data.or(meta.parent).or(meta.home).and_then(|b| self.geometry.locate(b));
        let Some((nr, region)) = zones.region(near.map_or(GroupNr(0), |(group, _)| group)) else { return Ok(None) };
        self.look_around(zones, nr, region);
        // Counted before they are cut, so that no other request concludes meanwhile that these blocks do not exist.
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

    /// Reads the bitmaps of a region's active areas once. While too little is set aside, looks there again for what was
    /// left to data, and makes more areas active.
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
                Ahead::All => true,
                Ahead::HalfAnArea => region.free.load(Ordering::Relaxed) < zones.area_len / 2,
            };
            if !short || !self.has_plenty(zones) {
                return;
            }
            if region.left.swap(false, Ordering::Relaxed) {
                // What it left to data may be free yet.
                region.seen.store(0, Ordering::Relaxed);
                continue;
            }
            if active >= region.most {
                return;
            }
            self.grow(zones, nr, region, active);
        }
    }

    /// Makes one more area active than `active`, unless another request has.
    fn grow(&self, zones: &MetaZones, nr: u32, region: &Region, active: u32) {
        if region.active.compare_exchange(active, active + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        self.counters.zone_areas_grown.inc();
        if let Some(area) = zones.area(&self.geometry, &self.zones, nr, active) {
            self.put_all_aside(area.group, area.start..area.start + area.len);
        }
    }

    /// All that is free lies in pages of other homes: makes one more area active, unless so much is free there that it
    /// must do: none of the new area would be set aside. Whether it is worth looking for a page again.
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

    /// Loads the bitmap of a group, and puts aside what is free in a range.
    fn put_all_aside(&self, nr: GroupNr, range: Range<u32>) {
        if let Some(group) = self.group_ref(nr)
            && let Ok(mut inner) = self.lock_loaded(nr, true)
        {
            self.put_aside(nr, &mut inner, range.start, range.end - range.start);
            self.publish(nr, group, &inner);
        }
    }

    /// With one more area, data would still have more than the zones, without waiting for a commit. Zones that were
    /// lent thus stay so until much more is free than an area.
    fn has_plenty(&self, zones: &MetaZones) -> bool {
        let aside = zones.total();
        let free = self.space.available(Privilege::All).saturating_sub(aside + self.pending_blocks());
        free > aside + u64::from(zones.area_len)
    }

    /// Takes blocks out of the zone of a region; they are held still.
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
        // Inodes of the same group are checked together.
        let home = [meta.home, meta.data].into_iter().flatten().find_map(in_region);
        let home = home.map_or(1, |(group, _)| (group.0 - first) as u8 + 1);
        let cut = |group: GroupNr, fit: &dyn Fn(&View<'_>) -> Option<u32>| {
            let mut inner = self.lock_loaded(group, true).ok()?;
            if inner.set_aside().is_none_or(RangeSet::is_empty) {
                // Under the lock: whoever sets some aside here does so before this, or lowers the number again.
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
        // Where the owner goes on, or close behind what the block belongs to.
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
            // Rather than from the pages of others.
            let again = found.is_none() && fit == Fit::Unowned && self.grow_for_pages(zones, nr, region);
            if again { anywhere(fit) } else { found }
        })
    }

    /// Whether data waits for a commit that brings as much as it wants, instead of borrowing an area. Where nothing was
    /// left of what a commit brought since the last such answer, others are faster, and data borrows: who waits does so
    /// a bounded number of times.
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

    /// Nothing is free but what is set aside: gives one area to data, the last of the region nearest behind `goal` that
    /// has something. False: no area below `limit` has.
    pub(crate) fn lend(&self, goal: Option<GroupNr>, limit: u32) -> bool {
        let Some(zones) = self.meta_zones.as_ref().filter(|z| z.total() > 0) else { return false };
        // From the number changed to the last block given away, others must not take silence for emptiness.
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

/// What two ranges have in common.
fn overlap(a: (u32, u32), b: (u32, u32)) -> Option<(u32, u32)> {
    let (start, end) = (a.0.max(b.0), (a.0 + a.1).min(b.0 + b.1));
    (start < end).then(|| (start, end - start))
}
