//! Finds a free extent: first at the goal, then criterion by criterion in the groups that the policy names. Linux:
//! `ext4_mb_regular_allocator` and its callees, fs/ext4/mballoc.c.
//!
//! Main types: [`SearchRequest`] (the goal of the search), [`Extent`] (its result: taken out of the buddy, held, in
//! flight).
//!
//! One deliberate difference from Linux: the goal group's bitmap is loaded even at the strict criteria. Linux skips a
//! group that it has not read yet, so the first files after a mount miss their own group.
//!
//! # Locking
//! [`crate::lock::GROUP`], one at a time, dropped between groups.

use extant_base::sim;
use extant_base::sync::atomic::Ordering;
use extant_ondisk::GroupNr;

use crate::GroupStore;
use crate::allocator::Allocator;
use crate::buddy::Buddy;
use crate::group::{BAD, Group, GroupInner, KNOWN, LOADED, UNINIT};
use crate::group_choice::policy::{Criterion, GroupSearch, Growth, Pass};
use crate::load::Unusable;

/// If flex groups have at least this many groups, the first one is reserved for directories (Linux:
/// `EXT4_FLEX_SIZE_DIR_ALLOC_SCHEME`).
const FLEX_SIZE_DIR_SCHEME: u32 = 4;

/// A stream goal that has not been set.
pub(crate) const NO_GOAL: u64 = u64::MAX;

/// The parameters of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchRequest {
    pub goal: Option<(GroupNr, u32)>,
    /// The number of blocks; never more than a group has.
    pub len: u32,
    /// The number of blocks that the caller needs now: a policy may search for fewer than `len`, but not for fewer than
    /// this.
    pub least: u32,
    /// Try the goal block itself first.
    pub try_goal: bool,
    /// Try only the goal block; a shorter extent there suffices.
    pub goal_only: bool,
    /// At the goal, the number of blocks that the caller needs now suffices.
    pub continues: bool,
    /// Whether the blocks are for file data.
    pub data: bool,
    /// Follow this stream's goal, and move it.
    pub stream: Option<usize>,
    /// Whether to wait for the lock of the goal's group.
    pub waits: bool,
    /// Only groups below this one may be used.
    pub limit: u32,
}

/// Adjacent blocks of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub group: GroupNr,
    pub start: u32,
    pub len: u32,
}

/// The state of a search. Linux: a part of `struct ext4_allocation_context`.
struct Search {
    /// Take the first extent, however short.
    first: bool,
    measured: u32,
    best: Option<Extent>,
    /// An extent of this length ends the search even if it is too short.
    enough: u32,
    /// Stop measuring: the best extent so far must suffice.
    stop: bool,
}

impl<S: GroupStore> Allocator<S> {
    /// Finds up to `want.len` blocks and takes them. None if no block is free, or other threads were faster (see
    /// [`crate::in_transit`]).
    pub(crate) fn find(&self, want: &SearchRequest) -> Result<Option<Extent>, S::Error> {
        let mut first_error = None;
        if let Some((group, index)) = want.goal
            && (want.try_goal || want.goal_only)
            && group.0 < want.limit
        {
            match self.find_by_goal(want, group, index) {
                Ok(Some(found)) => {
                    self.counters.goal_hits.inc();
                    return Ok(Some(found));
                }
                Err(Unusable::Store(e)) => first_error = Some(e),
                Ok(None) | Err(_) => {}
            }
        }
        let found = if want.goal_only { None } else { self.find_anywhere(want, &mut first_error) };
        match (found, first_error) {
            (None, Some(e)) => Err(e),
            (found, _) => Ok(found),
        }
    }

    fn find_by_goal(
        &self,
        want: &SearchRequest,
        nr: GroupNr,
        index: u32,
    ) -> Result<Option<Extent>, Unusable<S::Error>> {
        if self.group_ref(nr).is_none_or(|g| g.has(BAD) || g.free() == 0) {
            return Ok(None);
        }
        let mut inner = self.lock_loaded(nr, true)?;
        let run = inner.buddy.as_ref().map_or(0, |b| b.run_len(index, want.len));
        let enough = match self.rules.growth {
            _ if want.goal_only => 1,
            // An extent that continues the file is better than a longer one elsewhere.
            _ if want.continues => want.least,
            Growth::Table => want.len,
            Growth::Times(_) => want.least,
        };
        if run < enough || !self.take(nr, &mut inner, index, run) {
            return Ok(None);
        }
        Ok(Some(Extent { group: nr, start: index, len: run }))
    }

    fn find_anywhere(&self, want: &SearchRequest, first_error: &mut Option<S::Error>) -> Option<Extent> {
        let order = want.len.max(1).ilog2();
        // There is no buddy above the highest order. (Linux counts orders from 1 here.)
        let power2 = want.len.is_power_of_two()
            && order + 1 >= self.options.order2_requests
            && order < self.geometry.block_bits() + 2;
        let mut search = Search { first: false, measured: 0, best: None, enough: u32::MAX, stop: false };
        let mut goal = want.goal.map_or(0, |(g, _)| g.0);
        let stream = want.stream.and_then(|i| self.streams.get(i)).inspect(|goal| sim::line_read("stream goal", *goal));
        if let Some(last) = stream.map(|s| s.load(Ordering::Relaxed)).filter(|&s| s != NO_GOAL) {
            goal = (last >> 32) as u32;
        }
        let mut from = if power2 { Criterion::Power2 } else { Criterion::AverageFits };
        let found = loop {
            let mut pass = Pass::new(from, goal, want.limit, want.len, power2.then_some(order));
            (pass.data, pass.least) = (want.data, want.least);
            let found = self.scan(&mut search, pass, want.waits, first_error);
            if found.is_some() {
                break found;
            }
            let Some(best) = search.best.take() else { break None };
            if let Some(found) = self.take_best(best, want.len) {
                break Some(found);
            }
            // Another thread was faster. Take the next extent, however short.
            self.counters.lost.inc();
            search.first = true;
            search.stop = false;
            from = Criterion::Any;
        };
        if let (Some(found), Some(stream)) = (found, stream) {
            sim::line_written("stream goal", stream);
            stream.store(u64::from(found.group.0) << 32 | u64::from(found.start), Ordering::Relaxed);
        }
        found
    }

    /// Searches the groups that the policy names, one after the other. Returns no extent if it found none, or, with
    /// `search.best` set, if the best extent must be taken from an earlier group.
    fn scan(
        &self,
        search: &mut Search,
        mut pass: Pass,
        waits: bool,
        first_error: &mut Option<S::Error>,
    ) -> Option<Extent> {
        let (goal, limit) = (pass.goal, pass.limit);
        loop {
            let mut good = |pass: &Pass, nr: u32| {
                self.counters.groups_considered[pass.criterion as usize].inc();
                self.group_ref(GroupNr(nr)).is_some_and(|group| self.good(group, nr, pass, goal))
            };
            let nr = self.choice.next(&mut pass, &mut good)?;
            if pass.criterion == Criterion::Any && search.enough == u32::MAX {
                search.enough = self.choice.enough(limit);
            }
            let group = self.group_ref(GroupNr(nr))?;
            if !group.has(KNOWN | UNINIT) {
                self.read_ahead(nr);
            }
            // Under contention, using another group is better than waiting; but the last criterion skips no group.
            let anyway = pass.criterion == Criterion::Any || !self.rules.skips_busy || waits && nr == goal;
            let wait = anyway || !group.has(LOADED);
            let mut inner = match self.lock_loaded(GroupNr(nr), wait) {
                Ok(inner) => inner,
                Err(Unusable::Busy) => {
                    self.counters.groups_busy.inc();
                    continue;
                }
                Err(Unusable::Bad) => continue,
                Err(Unusable::Store(e)) => {
                    first_error.get_or_insert(e);
                    continue;
                }
            };
            if !self.good(group, nr, &pass, goal) {
                continue;
            }
            self.counters.groups_scanned.inc();
            let found = self.scan_group(search, &pass, GroupNr(nr), &mut inner);
            drop(inner);
            if found.is_some() || search.stop {
                let hit = found.is_some() || search.best.is_some();
                self.counters.breaks.add(u64::from(found.is_none()));
                self.counters.criterion_hits[pass.criterion as usize].add(u64::from(hit));
                return found;
            }
        }
    }

    /// Whether locking the group is worthwhile. Linux: `ext4_mb_good_group`.
    fn good(&self, group: &Group, nr: u32, pass: &Pass, goal: u32) -> bool {
        sim::line_read("group summary", group);
        let free = group.free();
        if group.has(BAD) || free == 0 {
            return false;
        }
        // Such a policy names only groups that fit.
        if self.rules.within == GroupSearch::Direct {
            return true;
        }
        let flex = self.geometry.flex_bg_size;
        let flex_first = flex > 1 && nr.is_multiple_of(flex);
        if pass.criterion == Criterion::Power2 && pass.data && flex >= FLEX_SIZE_DIR_SCHEME && flex_first {
            return false;
        }
        if !group.has(KNOWN) {
            let cheap = nr == goal || group.has(UNINIT) || flex_first;
            return match pass.criterion {
                Criterion::Power2 | Criterion::AverageFits => cheap && free >= pass.len,
                Criterion::FreeFits => free >= pass.len,
                Criterion::Any => true,
            };
        }
        match pass.criterion {
            Criterion::Power2 => group.largest_order() >= pass.order.or(Some(u32::MAX)),
            Criterion::AverageFits => free.checked_div(group.fragments()).is_some_and(|average| average >= pass.len),
            Criterion::FreeFits => free >= pass.len,
            Criterion::Any => true,
        }
    }

    fn scan_group(&self, search: &mut Search, pass: &Pass, nr: GroupNr, inner: &mut GroupInner) -> Option<Extent> {
        let buddy = inner.buddy.as_deref()?;
        let whole = pass.criterion == Criterion::Power2;
        let of_buddy = || {
            let start = buddy.first_buddy(pass.order?)?;
            self.counters.order2_hits.inc();
            Some((start, pass.len))
        };
        let aligned = || self.aligned(nr, buddy, pass.len);
        let choice = match self.rules.within {
            GroupSearch::Measured if whole => of_buddy(),
            GroupSearch::Measured => {
                let aligned = (pass.criterion == Criterion::AverageFits).then(aligned).flatten();
                aligned.or_else(|| self.measure_group(search, pass.len, nr, buddy))
            }
            GroupSearch::Direct => {
                self.counters.extents_scanned.inc();
                let fits = aligned().or_else(of_buddy).or_else(|| Some((buddy.first_run(pass.len)?, pass.len)));
                let longest = || Some((buddy.long_run_start()?, buddy.long_run()));
                fits.or_else(|| if pass.criterion == Criterion::Any { longest() } else { None })
            }
        };
        let (start, len) = choice?;
        let len = len.min(pass.len);
        if !self.take(nr, inner, start, len) {
            return None;
        }
        Some(Extent { group: nr, start, len })
    }

    /// For a RAID stripe: the first stripe-aligned free run of a whole number of stripes. Linux:
    /// `ext4_mb_scan_aligned`.
    fn aligned(&self, nr: GroupNr, buddy: &Buddy, len: u32) -> Option<(u32, u32)> {
        let stripe = self.geometry.stripe;
        if stripe <= 1 || !len.is_multiple_of(stripe) {
            return None;
        }
        let blocks = self.geometry.blocks_per_group;
        // Stripes are counted from the start of the disk, which need not be aligned with the start of the group.
        let first = self.geometry.group_start(nr).0;
        let mut at = 0u32;
        while at < blocks {
            let free = buddy.next_free(at)?;
            let on_disk = (first + u64::from(free)).checked_next_multiple_of(u64::from(stripe))?;
            at = u32::try_from(on_disk - first).ok()?;
            let run = buddy.run_len(at, len);
            if run == len {
                return Some((at, len));
            }
            at = at.checked_add(run.max(1))?;
        }
        None
    }

    /// Measures the free runs of a group. Returns one to take now, or leaves the best so far in `search`. Linux:
    /// `ext4_mb_complex_scan_group`, `ext4_mb_measure_extent`, `ext4_mb_check_limits`.
    fn measure_group(&self, search: &mut Search, wanted: u32, nr: GroupNr, buddy: &Buddy) -> Option<(u32, u32)> {
        let mut at = 0;
        let mut measured = 0;
        let mut chosen = None;
        while let Some(start) = buddy.next_free(at) {
            let end = buddy.next_used(start, u32::MAX);
            let len = end - start;
            at = end;
            measured += 1;
            search.measured += 1;
            if search.first || len == wanted {
                chosen = Some((start, len));
                break;
            }
            let better = match search.best {
                None => true,
                // Prefer longer runs while the best is too short, then shorter runs while it is longer than needed.
                Some(best) if best.len < wanted => len > best.len,
                Some(best) => len > wanted && len < best.len,
            };
            if better {
                search.best = Some(Extent { group: nr, start, len });
            }
            if search.measured > self.options.max_to_scan {
                search.stop = true;
                break;
            }
            if search.measured > self.options.min_to_scan
                && search.best.is_some_and(|b| b.len >= wanted && b.group == nr)
            {
                break;
            }
        }
        search.stop |= search.best.is_some_and(|b| b.len >= search.enough);
        self.counters.extents_scanned.add(measured);
        // At the end of a group, take an extent that is good enough while the lock is held.
        let here = search.best.filter(|b| b.group == nr && (b.len >= wanted || search.stop)).map(|b| (b.start, b.len));
        chosen.or(here)
    }

    /// Takes as much of an earlier extent as is still free. Linux: `ext4_mb_try_best_found`.
    fn take_best(&self, best: Extent, len: u32) -> Option<Extent> {
        let mut inner = self.lock_loaded(best.group, true).ok()?;
        let run = inner.buddy.as_ref()?.run_len(best.start, best.len.min(len));
        if run == 0 || !self.take(best.group, &mut inner, best.start, run) {
            return None;
        }
        Some(Extent { len: run, ..best })
    }
}
