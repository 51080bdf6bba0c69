//! Finding a free extent: goal, then criterion after criterion over the groups that the policy names.
//! Linux: `ext4_mb_regular_allocator` and what it calls, fs/ext4/mballoc.c.
//!
//! Main types: [`Want`] (what to find), [`Extent`] (what was found: taken out of the buddy, held, in flight).
//!
//! One deliberate difference to Linux: the goal group's bitmap is loaded even by the picky criteria; Linux passes over
//! a group that it has not read yet, so that the first files after a mount miss their own group.
//!
//! # Locking
//! [`crate::lock::GROUP`], one at a time, dropped between groups.

use extant_base::sync::atomic::Ordering;
use extant_ondisk::GroupNr;

use crate::allocator::{Allocator, GroupStore};
use crate::buddy::Buddy;
use crate::group::{BAD, Group, GroupInner, KNOWN, LOADED, UNINIT};
use crate::group_choice::policy::{Criterion, Scan};
use crate::load::Unusable;

/// From this many groups per flex group on, the first one is left to directories (Linux:
/// `EXT4_FLEX_SIZE_DIR_ALLOC_SCHEME`).
const FLEX_SIZE_DIR_SCHEME: u32 = 4;

/// A stream goal that nobody has set.
pub(crate) const NO_GOAL: u64 = u64::MAX;

/// What to find.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub goal: Option<(GroupNr, u32)>,
    /// Blocks; never more than a group has.
    pub len: u32,
    /// Try the goal block itself first.
    pub try_goal: bool,
    /// … and nothing else; a shorter extent there will do.
    pub goal_only: bool,
    /// File data.
    pub data: bool,
    /// Follow, and move, this stream's goal.
    pub stream: Option<usize>,
    /// Only groups below this.
    pub limit: u32,
}

/// Blocks of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub group: GroupNr,
    pub start: u32,
    pub len: u32,
}

/// Linux: `struct ext4_allocation_context`.
struct Search {
    len: u32,
    data: bool,
    /// Take the first extent, whatever it is.
    first: bool,
    order2: Option<u32>,
    measured: u32,
    best: Option<Extent>,
    /// An extent this long ends the search even though it is too short.
    enough: u32,
    /// Stop measuring: what there is must do.
    stop: bool,
}

impl<S: GroupStore> Allocator<S> {
    /// Finds up to `want.len` blocks and takes them. None: nothing is free (or lost to others; see
    /// [`crate::in_transit`]).
    pub(crate) fn find(&self, want: &Want) -> Result<Option<Extent>, S::Error> {
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
                Err(Unusable::Store(e)) => {
                    self.store.damaged(group, &e);
                    first_error = Some(e);
                }
                Ok(None) | Err(_) => {}
            }
        }
        let found = if want.goal_only { None } else { self.find_anywhere(want, &mut first_error) };
        match (found, first_error) {
            (None, Some(e)) => Err(e),
            (found, _) => Ok(found),
        }
    }

    fn find_by_goal(&self, want: &Want, nr: GroupNr, index: u32) -> Result<Option<Extent>, Unusable<S::Error>> {
        if self.group_ref(nr).is_none_or(|g| g.has(BAD) || g.free() == 0) {
            return Ok(None);
        }
        let mut inner = self.lock_loaded(nr, true)?;
        let run = inner.buddy.as_ref().map_or(0, |b| b.run_len(index, want.len));
        let enough = if want.goal_only { 1 } else { want.len };
        if run < enough || !self.take(nr, &mut inner, index, run) {
            return Ok(None);
        }
        Ok(Some(Extent { group: nr, start: index, len: run }))
    }

    fn find_anywhere(&self, want: &Want, first_error: &mut Option<S::Error>) -> Option<Extent> {
        let len = want.len;
        let order = len.max(1).ilog2();
        // A buddy larger than the highest order does not exist.
        let power2 =
            len.is_power_of_two() && order >= self.options.order2_requests && order < self.geometry.block_bits() + 2;
        let mut search = Search {
            len,
            data: want.data,
            first: false,
            order2: power2.then_some(order),
            measured: 0,
            best: None,
            enough: u32::MAX,
            stop: false,
        };
        let mut goal = want.goal.map_or(0, |(g, _)| g.0);
        let stream = want.stream.and_then(|i| self.streams.get(i));
        if let Some(last) = stream.map(|s| s.load(Ordering::Relaxed)).filter(|&s| s != NO_GOAL) {
            goal = (last >> 32) as u32;
        }
        let mut criterion = if power2 { Criterion::Power2 } else { Criterion::AverageFits };
        let found = loop {
            let found = self.scan(&mut search, criterion, goal, want.limit, first_error);
            if found.is_some() {
                break found;
            }
            let Some(best) = search.best.take() else { break None };
            if let Some(found) = self.take_best(best, len) {
                break Some(found);
            }
            // Somebody was faster. What there is comes next, whatever it is.
            self.counters.lost.inc();
            search.first = true;
            search.stop = false;
            criterion = Criterion::Any;
        };
        if let (Some(found), Some(stream)) = (found, stream) {
            stream.store(u64::from(found.group.0) << 32 | u64::from(found.start), Ordering::Relaxed);
        }
        found
    }

    /// All criteria from `from` on. Ends without an extent when nothing was found, or with `search.best` set when what
    /// was found has to be taken from an earlier group.
    fn scan(
        &self,
        search: &mut Search,
        from: Criterion,
        goal: u32,
        limit: u32,
        first_error: &mut Option<S::Error>,
    ) -> Option<Extent> {
        for criterion in Criterion::ALL.into_iter().filter(|&c| c >= from) {
            let order = search.order2.unwrap_or(0);
            if criterion == Criterion::Any {
                search.enough = self.choice.enough(limit);
            }
            let mut considered = 0;
            let mut found = None;
            for nr in self.choice.pass(Scan { goal, limit, criterion, len: search.len, order }) {
                considered += 1;
                let Some(group) = self.group_ref(GroupNr(nr)) else { continue };
                if !self.good(group, nr, criterion, search, goal) {
                    continue;
                }
                // Under contention another group is better than waiting; but the last criterion leaves nothing out.
                let wait = criterion == Criterion::Any || !self.choice.skips_busy() || !group.has(LOADED);
                let mut inner = match self.lock_loaded(GroupNr(nr), wait) {
                    Ok(inner) => inner,
                    Err(Unusable::Busy) => {
                        self.counters.groups_busy.inc();
                        continue;
                    }
                    Err(Unusable::Bad) => continue,
                    Err(Unusable::Store(e)) => {
                        self.store.damaged(GroupNr(nr), &e);
                        first_error.get_or_insert(e);
                        continue;
                    }
                };
                if !self.good(group, nr, criterion, search, goal) {
                    continue;
                }
                self.counters.groups_scanned.inc();
                found = self.scan_group(search, criterion, GroupNr(nr), &mut inner);
                if found.is_some() || search.stop {
                    break;
                }
            }
            let c = criterion as usize;
            self.counters.groups_considered[c].add(considered);
            if found.is_some() {
                self.counters.criterion_hits[c].inc();
                return found;
            }
            if search.stop {
                self.counters.breaks.inc();
                self.counters.criterion_hits[c].add(u64::from(search.best.is_some()));
                return None;
            }
        }
        None
    }

    /// Is the group worth its lock? Linux: `ext4_mb_good_group`.
    fn good(&self, group: &Group, nr: u32, criterion: Criterion, search: &Search, goal: u32) -> bool {
        let free = group.free();
        if group.has(BAD) || free == 0 {
            return false;
        }
        let flex = self.geometry.flex_bg_size;
        let flex_first = flex > 1 && nr.is_multiple_of(flex);
        if criterion == Criterion::Power2 && search.data && flex >= FLEX_SIZE_DIR_SCHEME && flex_first {
            return false;
        }
        if !group.has(KNOWN) {
            let cheap = nr == goal || group.has(UNINIT) || flex_first;
            return match criterion {
                Criterion::Power2 | Criterion::AverageFits => cheap && free >= search.len,
                Criterion::FreeFits => free >= search.len,
                Criterion::Any => true,
            };
        }
        match criterion {
            Criterion::Power2 => group.largest_order() >= search.order2.or(Some(u32::MAX)),
            Criterion::AverageFits => free.checked_div(group.fragments()).is_some_and(|average| average >= search.len),
            Criterion::FreeFits => free >= search.len,
            Criterion::Any => true,
        }
    }

    fn scan_group(
        &self,
        search: &mut Search,
        criterion: Criterion,
        nr: GroupNr,
        inner: &mut GroupInner,
    ) -> Option<Extent> {
        let buddy = inner.buddy.as_deref()?;
        let choice = if criterion == Criterion::Power2 {
            search.order2.and_then(|order| buddy.first_buddy(order)).map(|start| (start, search.len))
        } else {
            let aligned = (criterion == Criterion::AverageFits).then(|| self.aligned(buddy, search.len)).flatten();
            aligned.or_else(|| self.measure_group(search, nr, buddy))
        };
        let (start, len) = choice?;
        let len = len.min(search.len);
        if !self.take(nr, inner, start, len) {
            return None;
        }
        if criterion == Criterion::Power2 {
            self.counters.order2_hits.inc();
        }
        Some(Extent { group: nr, start, len })
    }

    /// With a RAID stripe: the first stripe-aligned free run of a whole number of stripes.
    /// Linux: `ext4_mb_scan_aligned`.
    fn aligned(&self, buddy: &Buddy, len: u32) -> Option<(u32, u32)> {
        let stripe = self.geometry.stripe;
        if stripe <= 1 || !len.is_multiple_of(stripe) {
            return None;
        }
        let blocks = self.geometry.blocks_per_group;
        let mut at = 0u32;
        while at < blocks {
            let free = buddy.next_free(at)?;
            at = free.checked_next_multiple_of(stripe)?;
            let run = buddy.run_len(at, len);
            if run == len {
                return Some((at, len));
            }
            at = at.checked_add(run.max(1))?;
        }
        None
    }

    /// Walks the free runs of a group; returns one to take now, or leaves the best so far in `search`.
    /// Linux: `ext4_mb_complex_scan_group`, `ext4_mb_measure_extent`, `ext4_mb_check_limits`.
    fn measure_group(&self, search: &mut Search, nr: GroupNr, buddy: &Buddy) -> Option<(u32, u32)> {
        let mut at = 0;
        let mut measured = 0;
        let mut chosen = None;
        while let Some(start) = buddy.next_free(at) {
            let end = buddy.next_used(start, u32::MAX);
            let len = end - start;
            at = end;
            measured += 1;
            search.measured += 1;
            if search.first || len == search.len {
                chosen = Some((start, len));
                break;
            }
            let better = match search.best {
                None => true,
                // Longer while too short, shorter while too long.
                Some(best) if best.len < search.len => len > best.len,
                Some(best) => len > search.len && len < best.len,
            };
            if better {
                search.best = Some(Extent { group: nr, start, len });
            }
            if search.measured > self.options.max_to_scan {
                search.stop = true;
                break;
            }
            if search.measured > self.options.min_to_scan
                && search.best.is_some_and(|b| b.len >= search.len && b.group == nr)
            {
                break;
            }
        }
        search.stop |= search.best.is_some_and(|b| b.len >= search.enough);
        self.counters.extents_scanned.add(measured);
        // At the end of a group what is good enough is taken, while the lock is held.
        let here =
            search.best.filter(|b| b.group == nr && (b.len >= search.len || search.stop)).map(|b| (b.start, b.len));
        chosen.or(here)
    }

    /// Takes what is still free of an extent found earlier. Linux: `ext4_mb_try_best_found`.
    fn take_best(&self, best: Extent, len: u32) -> Option<Extent> {
        let mut inner = self.lock_loaded(best.group, true).ok()?;
        let run = inner.buddy.as_ref()?.run_len(best.start, best.len.min(len));
        if run == 0 || !self.take(best.group, &mut inner, best.start, run) {
            return None;
        }
        Some(Extent { len: run, ..best })
    }
}
