//! Linux's active and inactive lists, of the memory of programs and of files, together with the inodes.
//!
//! Main types: [`Lists`] (the lists of one zone), [`Kswapd`] (the background reclaimer, over all zones), [`Rules`] (the
//! differences between the versions). Linux: mm/vmscan.c of 3.9, of mmotm 2013-05-22 and of 3.11: `balance_pgdat`,
//! `get_scan_count`, `shrink_lruvec`, `shrink_page_list`, `shrink_slab`, `do_try_to_free_pages`. The three have the
//! same lists, and so the same hit rates. They differ in how a reclaimer proceeds after it meets a dirty page.
//! `workingset` (3.15) has the rules of the third, and remembers evicted pages ([`super::workingset`]).
//!
//! A frame counts as its number of pages of 4 KiB, like a folio in Linux. The counts that all policies share count
//! frames.
//!
//! Differences from Linux: a second use moves a page to the active list when reclaim meets it, not immediately; there
//! are no mapped pages of files, and no memory cgroups.
//!
//! # Locking
//! The lock of [`super::super::Reclaim`] protects everything here.

use super::super::core::{self, Class, Core, Field, Host, Next, Why, Wrote};
use super::super::frame::{FrameId, State};
use super::slab::{self, SLAB, Slab};
use super::workingset::Nonresident;

const INACTIVE_ANON: usize = 0;
const ACTIVE_ANON: usize = 1;
const INACTIVE_FILE: usize = 2;
const ACTIVE_FILE: usize = 3;

/// The number of pages that are examined as one batch (Linux: `SWAP_CLUSTER_MAX`).
const BATCH: u64 = 32;
/// The priority of the pass that examines the fewest pages: one in 2^12 (Linux: `DEF_PRIORITY`).
const PRIORITY: u32 = 12;
/// The preference for taking the memory of programs, from 0 to 200 (Linux: `vm_swappiness`).
const SWAPPINESS: f64 = 60.0;
/// The size of a page in bytes.
const PAGE: u64 = 4096;
/// After this many rounds over all priorities in which nothing was freed, nothing can be freed: each round examines
/// about twice as many pages as there are (Linux: `zone_reclaimable`, six times as many).
const FRUITLESS: u32 = 3;
/// The time for which a reclaimer has to wait (Linux: `HZ / 10`).
pub(super) const STALL_NS: u64 = 100_000_000;

/// When a background reclaimer may write a dirty page of a file itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reclaim) enum Writes {
    /// If it scans more than one page in 2^10.
    Harder,
    /// If a batch has marked the zone's tail as dirty.
    DirtyTail,
}

/// The part of a batch that has to be affected before it marks the zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reclaim) enum Marks {
    Never,
    /// A part of it that becomes smaller as the scan gets harder.
    Share,
    /// The whole batch.
    All,
}

/// When a background reclaimer waits after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reclaim) enum Stalls {
    /// Much is being written to a device that is congested.
    Congested,
    /// The same, or pages under writeback were met again.
    CongestedOrAgain,
    /// Pages under writeback were met again, or all pages are dirty and none is under writeback yet.
    AgainOrUnqueued,
}

/// Which pages of a batch count as those of a congested device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reclaim) enum Congestion {
    /// Dirty pages that a caller in need of memory does not write because of the congestion. kswapd writes them anyway.
    Refused,
    /// All dirty pages of such a device, and its pages under writeback that were met again.
    Met,
}

/// The differences between the versions of Linux.
#[derive(Debug)]
pub(in crate::reclaim) struct Rules {
    pub writes: Writes,
    /// How many dirty pages mark the zone. With [`Marks::All`], only those count that are not under writeback yet.
    pub dirty_tail: Marks,
    /// How many pages under writeback mark the zone.
    pub writeback_tail: Marks,
    pub congestion: Congestion,
    pub stalls: Stalls,
    /// Pages that are written but not durable count as dirty (Linux: `is_dirty_writeback`). Otherwise they are only
    /// known as pages that cannot be freed.
    pub sees_unstable: bool,
    /// A zone is scanned until as much as its high watermark was freed, with the lists in their initial proportion. The
    /// scan gets harder only if it examined fewer pages than that. Otherwise a pass scans everything that its priority
    /// allows, and each pass is harder.
    pub proportional: bool,
    /// Inodes are scanned once for each priority, not in each pass over a zone.
    pub slab_once: bool,
    /// A page that is needed again soon enough is put on the active list immediately (Linux: `workingset_refault`).
    pub refaults: bool,
}

/// The lists of one zone, and their statistics.
pub(in crate::reclaim) struct Lists {
    rules: &'static Rules,
    /// The numbers of recently examined pages, and of those that were kept, of programs and of files (Linux:
    /// `zone_reclaim_stat`).
    scanned: [f64; 2],
    rotated: [f64; 2],
    /// Linux: `ZONE_CONGESTED`, `ZONE_TAIL_LRU_DIRTY`, `ZONE_WRITEBACK`.
    congested: bool,
    dirty_tail: bool,
    writeback_tail: bool,
    slab: Slab,
    nonresident: Nonresident,
    /// The number of pages that the background reclaimer has freed since the start.
    freed: u64,
}

/// The pages of a batch, by state (Linux: the counts of `shrink_page_list`).
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    taken: u64,
    dirty: u64,
    unqueued: u64,
    congested: u64,
    writeback: u64,
    /// The number of pages under writeback that are marked to be freed afterwards and were met again.
    again: u64,
}

impl Lists {
    pub fn new(rules: &'static Rules) -> Lists {
        let (congested, dirty_tail, writeback_tail, freed) = (false, false, false, 0);
        let (scanned, rotated) = ([0.0; 2], [0.0; 2]);
        let (slab, nonresident) = (Slab::default(), Nonresident::default());
        Lists { rules, scanned, rotated, congested, dirty_tail, writeback_tail, slab, nonresident, freed }
    }

    pub fn inserted(&mut self, field: &mut Field, id: FrameId) {
        match field.class(id) {
            Class::Anonymous => field.frames.push(id_of(ACTIVE_ANON), id),
            Class::Data | Class::Metadata if self.comes_back(field, id) => {
                field.counts.refaulted += 1;
                field.frames.mark(id, State::PROMOTED);
                field.frames.push(id_of(ACTIVE_FILE), id);
                self.nonresident.activated(pages_of(field.frames.bytes(id)));
            }
            Class::Data | Class::Metadata => {
                field.frames.mark(id, State::REFERENCED);
                field.frames.push(id_of(INACTIVE_FILE), id);
            }
            Class::Inode => field.frames.push(SLAB, id),
        }
    }

    /// Whether the new page was evicted so recently that it would have been kept if the working set had been smaller by
    /// the pages that were evicted after it.
    fn comes_back(&mut self, field: &Field, id: FrameId) -> bool {
        let programs = pages(field, ACTIVE_ANON) + pages(field, INACTIVE_ANON);
        self.rules.refaults
            && self.nonresident.distance(field, id).is_some_and(|away| away <= pages(field, ACTIVE_FILE) + programs)
    }

    pub fn freed(&mut self, field: &Field, id: FrameId) {
        if self.rules.refaults && matches!(field.class(id), Class::Data | Class::Metadata) {
            self.nonresident.evicted(field, id, pages_of(field.frames.bytes(id)));
        }
        if !field.frames.state(id).has(State::DIRECT) {
            self.freed += pages_of(field.frames.bytes(id));
        }
    }

    /// Linux: `rotate_reclaimable_page`, at the end of a page's writeback.
    pub fn changed(&mut self, field: &mut Field, id: FrameId, before: State) {
        let written = before.has(State::WRITEBACK) && !field.frames.state(id).has(State::WRITEBACK);
        if written && field.frames.unmark(id, State::IMMEDIATE) {
            let list = field.frames.list(id);
            if list == id_of(INACTIVE_FILE) || list == id_of(INACTIVE_ANON) {
                field.frames.push_tail(list, id);
            }
        }
    }

    pub fn kept(&mut self, field: &mut Field, id: FrameId) {
        let active = field.frames.state(id).has(State::PROMOTED);
        let list = match field.class(id) {
            Class::Anonymous => id_of(if active { ACTIVE_ANON } else { INACTIVE_ANON }),
            Class::Data | Class::Metadata => id_of(if active { ACTIVE_FILE } else { INACTIVE_FILE }),
            Class::Inode => SLAB,
        };
        field.frames.push(list, id);
    }

    fn clear_marks(&mut self) {
        (self.congested, self.dirty_tail, self.writeback_tail) = (false, false, false);
    }

    /// The number of pages of each list that a pass examines (Linux: `get_scan_count`).
    fn scan_count(&mut self, field: &Field, priority: u32) -> [u64; 4] {
        let len = |list| pages(field, list);
        let anon = len(INACTIVE_ANON) + len(ACTIVE_ANON);
        let file = len(INACTIVE_FILE) + len(ACTIVE_FILE);
        let share: Box<dyn Fn(usize, u64) -> u64> = if anon > 0 && priority == 0 {
            Box::new(|_, n| n)
        } else if anon > 0 && file + field.room.free / PAGE <= field.room.high / PAGE {
            // There are too few pages of files to be worth a scan.
            Box::new(|list, n| if list < INACTIVE_FILE { n } else { 0 })
        } else if anon == 0 || len(ACTIVE_FILE) <= len(INACTIVE_FILE) {
            // There are enough pages of files that were not used again.
            Box::new(|list, n| if list < INACTIVE_FILE { 0 } else { n })
        } else {
            for (t, n) in [anon, file].into_iter().enumerate() {
                if self.scanned[t] > n as f64 / 4.0 {
                    self.scanned[t] /= 2.0;
                    self.rotated[t] /= 2.0;
                }
            }
            let weight = |t: usize, of: f64| of * (self.scanned[t] + 1.0) / (self.rotated[t] + 1.0);
            let weights = [weight(0, SWAPPINESS), weight(1, 200.0 - SWAPPINESS)];
            let sum = weights[0] + weights[1] + 1.0;
            Box::new(move |list, n| (n as f64 * weights[usize::from(list >= INACTIVE_FILE)] / sum) as u64)
        };
        std::array::from_fn(|list| share(list, len(list) >> priority))
    }

    /// Whether the inactive list is too short; the larger the zone, the smaller its share may be (Linux:
    /// `inactive_anon_is_low`).
    fn anon_is_low(field: &Field) -> bool {
        let gib = field.room.total as f64 / f64::from(1 << 30);
        let ratio = if gib >= 1.0 { (10.0 * gib).sqrt() as u64 } else { 1 };
        pages(field, INACTIVE_ANON) * ratio < pages(field, ACTIVE_ANON)
    }

    /// Linux: `inactive_file_is_low`.
    fn file_is_low(field: &Field) -> bool {
        pages(field, ACTIVE_FILE) > pages(field, INACTIVE_FILE)
    }

    /// Moves up to `n` pages from the active list to the inactive one (Linux: `shrink_active_list`).
    fn shrink_active(&mut self, field: &mut Field, list: usize, n: u64) {
        let kind = usize::from(list == ACTIVE_FILE);
        let mut moved = 0;
        while moved < n {
            let Some(id) = field.frames.tail(id_of(list)) else { break };
            let pages = pages_of(field.frames.bytes(id));
            moved += pages;
            self.scanned[kind] += pages as f64;
            if field.frames.touches().take(id) > 0 {
                self.rotated[kind] += pages as f64;
            }
            field.frames.unmark(id, State::PROMOTED.or(State::REFERENCED));
            field.frames.push(id_of(list - 1), id);
        }
    }

    /// Whether `n` pages of a batch mark the zone.
    fn marks(rule: Marks, n: u64, all: u64, taken: u64, priority: u32) -> bool {
        match rule {
            Marks::Never => false,
            Marks::Share => n > 0 && n >= taken >> (PRIORITY - priority.min(PRIORITY)),
            Marks::All => taken > 0 && all == taken,
        }
    }

    /// Updates the zone after a batch. Returns whether its reclaimer has to wait (Linux: the end of
    /// `shrink_inactive_list`).
    fn after(&mut self, batch: Batch, priority: u32, background: bool, device_full: bool) -> bool {
        let Batch { taken, dirty, unqueued, congested, writeback, again } = batch;
        let many_written = writeback > 0 && writeback >= taken >> (PRIORITY - priority.min(PRIORITY));
        self.writeback_tail |= Self::marks(self.rules.writeback_tail, writeback, writeback, taken, priority);
        self.dirty_tail |= Self::marks(self.rules.dirty_tail, dirty, unqueued, taken, priority);
        self.congested |= dirty > 0 && dirty == congested;
        let crowded = self.congested && device_full;
        if again > 0 && self.rules.stalls == Stalls::CongestedOrAgain {
            // After a wait, the reclaimer checks again before it waits once more.
            self.writeback_tail = false;
        }
        match self.rules.stalls {
            Stalls::Congested => many_written && crowded,
            Stalls::CongestedOrAgain => many_written && crowded || again > 0,
            Stalls::AgainOrUnqueued => again > 0 || taken > 0 && unqueued == taken || !background && crowded,
        }
    }
}

/// The list with this index.
fn id_of(list: usize) -> u8 {
    list as u8 + 1
}

/// The number of 4 KiB pages in this many bytes. A frame counts as at least one.
pub(super) fn pages_of(bytes: u64) -> u64 {
    (bytes / PAGE).max(1)
}

/// The number of pages on a list.
fn pages(field: &Field, list: usize) -> u64 {
    match field.frames.list_bytes(id_of(list)) {
        0 => 0,
        bytes => pages_of(bytes),
    }
}

/// Counts pages of a file in their batch, unless they are clean (Linux 3.11: `page_check_dirty_writeback`).
fn count_unclean(field: &mut Field, rules: &Rules, id: FrameId, batch: &mut Batch, host: &dyn Host) {
    let state = field.frames.state(id);
    let in_writeback = state.has(State::WRITEBACK);
    let unstable = state.told() == State::UNSTABLE;
    if !(in_writeback || state.has(State::DIRTY) || unstable && rules.sees_unstable) {
        return;
    }
    let pages = pages_of(field.frames.bytes(id));
    batch.dirty += pages;
    field.counts.dirty += 1;
    if !in_writeback {
        batch.unqueued += pages;
        field.counts.unqueued += 1;
    }
    let again = in_writeback && state.has(State::IMMEDIATE);
    if again || host.congested(field.frames.owner(id)) {
        batch.congested += pages;
    }
}

/// Starts to write dirty pages, if the rules permit this to the reclaimer (Linux: `pageout`). `referenced` means that a
/// file's pages were used since reclaim last met them; they are kept until it meets them again (Linux:
/// `PAGEREF_RECLAIM_CLEAN`).
fn pageout(
    core: &mut Core,
    (id, referenced): (FrameId, bool),
    priority: u32,
    background: bool,
    batch: &mut Batch,
    host: &mut dyn Host,
) {
    let (field, policy) = core.parts();
    let super::Policy::Lists(lists) = policy else { return };
    let pages = pages_of(field.frames.bytes(id));
    let anon = field.class(id) == Class::Anonymous;
    let rules = lists.rules;
    let may = anon
        || background
            && match rules.writes {
                Writes::Harder => priority < PRIORITY - 2,
                Writes::DirtyTail => lists.dirty_tail,
            };
    if !may {
        field.counts.immediate += 1;
        field.frames.mark(id, State::IMMEDIATE);
        return;
    }
    if referenced && !anon {
        return;
    }
    let victim = field.victim(id);
    if !background && host.congested(victim.owner) {
        if rules.congestion == Congestion::Refused {
            batch.congested += pages;
        }
        return;
    }
    if anon {
        field.counts.wanted_anonymous += 1;
    } else {
        field.counts.wanted_data += 1;
    }
    if host.write(victim) == Wrote::Started {
        let now = field.frames.state(id).without(State::DIRTY).or(State::WRITEBACK).or(State::IMMEDIATE);
        core.set_state(id, now);
        core.parts().0.frames.mark(id, State::IMMEDIATE);
    }
}

/// Examines `n` pages at the end of an inactive list, or a few more with the last frame. Returns how many pages it
/// chose to be freed, and whether the reclaimer has to wait (Linux: `shrink_inactive_list`, `shrink_page_list`).
fn shrink_inactive(core: &mut Core, list: usize, n: u64, priority: u32, host: &mut dyn Host) -> (u64, bool) {
    let background = !core.parts().0.direct;
    let mut batch = Batch::default();
    let mut taken = Vec::with_capacity(n as usize);
    let (field, _) = core.parts();
    while batch.taken < n {
        let Some(id) = field.frames.tail(id_of(list)) else { break };
        field.frames.unlink(id);
        field.scan();
        batch.taken += pages_of(field.frames.bytes(id));
        taken.push(id);
    }
    let device_full = taken.first().is_some_and(|id| host.congested(field.frames.owner(*id)));
    let mut back = Vec::new();
    let mut rotated = 0;
    let mut chosen = 0;
    for id in taken {
        let (field, policy) = core.parts();
        let super::Policy::Lists(lists) = policy else { return (chosen, false) };
        let (state, pages) = (field.frames.state(id), pages_of(field.frames.bytes(id)));
        // Linux before 3.11 counts pages as dirty only where it would write them, which is below.
        let counts_all = lists.rules.congestion == Congestion::Met;
        if counts_all && field.class(id) != Class::Anonymous {
            count_unclean(field, lists.rules, id, &mut batch, host);
        }
        if state.has(State::WRITEBACK) {
            field.counts.writeback += 1;
            if background && lists.writeback_tail && state.has(State::IMMEDIATE) {
                batch.again += pages;
            } else {
                batch.writeback += pages;
            }
            field.frames.mark(id, State::IMMEDIATE);
            back.push((id, list));
            continue;
        }
        if state.told() == State::UNSTABLE {
            // Linux: `try_to_release_page` fails, and the page is activated.
            field.counts.in_use += 1;
            field.frames.mark(id, State::PROMOTED);
            back.push((id, list + 1));
            continue;
        }
        if field.frames.touches().take(id) > 0 {
            rotated += pages;
            if lists.rules.refaults && list == INACTIVE_FILE {
                lists.nonresident.activated(pages);
            }
            field.frames.mark(id, State::PROMOTED);
            back.push((id, list + 1));
            continue;
        }
        let referenced = field.frames.unmark(id, State::REFERENCED);
        if state.has(State::DIRTY) {
            if !counts_all {
                batch.dirty += pages;
                field.counts.dirty += 1;
                field.counts.unqueued += 1;
            }
            pageout(core, (id, referenced), priority, background, &mut batch, host);
            back.push((id, list));
            continue;
        }
        core::free(core, id, host);
        chosen += pages;
    }
    let (field, policy) = core.parts();
    let super::Policy::Lists(lists) = policy else { return (chosen, false) };
    for (id, to) in back {
        field.frames.push(id_of(to), id);
    }
    let kind = usize::from(list == INACTIVE_FILE);
    lists.scanned[kind] += batch.taken as f64;
    lists.rotated[kind] += rotated as f64;
    let all: u64 = (0..4).map(|list| pages(field, list)).sum();
    lists.slab.scanned(field, batch.taken, all);
    (chosen, lists.after(batch, priority, background, device_full))
}

/// Frees inodes in proportion to the pages that were examined.
fn shrink_slab(core: &mut Core, host: &mut dyn Host) {
    let (field, policy) = core.parts();
    let super::Policy::Lists(lists) = policy else { return };
    let alone = (0..4).all(|list| field.frames.len(id_of(list)) == 0);
    let n = lists.slab.due(field, if alone { BATCH } else { 0 });
    slab::shrink(core, n, host);
}

/// The state of a pass over one zone.
#[derive(Debug, Default)]
struct Pass {
    /// The number of pages of each list to examine: at the start of the pass, and now.
    targets: [u64; 4],
    left: [u64; 4],
    scanned: u64,
    /// The zone's count of freed pages when the pass began.
    freed_before: u64,
    /// The maximum number of pages that the pass frees.
    want: u64,
    cut: bool,
}

/// The number of pages of a zone that the background reclaimer has freed since the start.
fn freed_pages(zone: &mut Core) -> u64 {
    match zone.parts() {
        (_, super::Policy::Lists(lists)) => lists.freed,
        _ => 0,
    }
}

/// The background reclaimer (Linux: `kswapd`, `balance_pgdat`).
pub(in crate::reclaim) struct Kswapd {
    rules: &'static Rules,
    on: bool,
    priority: u32,
    /// This pass examines the zones from 0 to this one.
    end: usize,
    zone: usize,
    pass: Option<Pass>,
    /// The number of freed pages, over all zones, when the priority was set.
    freed_before: u64,
    /// The pass examined less than was to be freed, so the next one is harder.
    raise: bool,
    /// The number of rounds in which nothing was freed, and the count of freed pages when the last one ended.
    fruitless: u32,
    freed_by_all: u64,
}

impl Kswapd {
    pub fn new(rules: &'static Rules) -> Kswapd {
        let (on, end, zone, pass, freed_before, raise) = (false, 0, 0, None, 0, true);
        let (fruitless, freed_by_all) = (0, 0);
        Kswapd { rules, on, priority: PRIORITY, end, zone, pass, freed_before, raise, fruitless, freed_by_all }
    }

    pub fn wake(&mut self) {
        self.on = false;
    }

    fn balanced(zone: &Core, gap: bool) -> bool {
        let room = zone.room();
        // Linux: `KSWAPD_ZONE_BALANCE_GAP_RATIO`.
        room.free >= room.high + if gap { room.low.min(room.total / 100) } else { 0 }
    }

    fn freed(zones: &mut [Core]) -> u64 {
        zones.iter_mut().map(freed_pages).sum()
    }

    /// Begins a pass over the zones up to the highest one that is short of memory. Returns false if there is none.
    fn begin(&mut self, zones: &mut [Core]) -> bool {
        (self.zone, self.pass, self.raise) = (0, None, true);
        for (i, zone) in zones.iter_mut().enumerate().rev() {
            if !Self::balanced(zone, false) {
                self.end = i;
                return true;
            }
            if let (_, super::Policy::Lists(lists)) = zone.parts() {
                lists.clear_marks();
            }
        }
        false
    }

    pub fn step(&mut self, zones: &mut [Core], host: &mut dyn Host) -> Next {
        if !self.on {
            if !self.begin(zones) {
                return Next::Enough;
            }
            (self.on, self.priority, self.freed_before) = (true, PRIORITY, Self::freed(zones));
        }
        if self.pass.is_none() {
            while self.zone <= self.end && Self::balanced(&zones[self.zone], true) {
                self.zone += 1;
            }
            if self.zone > self.end {
                return self.end_of_pass(zones);
            }
            self.pass = Some(self.begin_zone(&mut zones[self.zone]));
        }
        if self.scan(&mut zones[self.zone], host) {
            return Next::Wait { why: Why::Writeback, at_most_ns: STALL_NS };
        }
        Next::More
    }

    fn begin_zone(&self, zone: &mut Core) -> Pass {
        let freed_before = freed_pages(zone);
        let (field, policy) = zone.parts();
        let super::Policy::Lists(lists) = policy else { return Pass::default() };
        let left = lists.scan_count(field, self.priority);
        if Lists::anon_is_low(field) {
            lists.shrink_active(field, ACTIVE_ANON, BATCH);
        }
        let want = if self.rules.proportional { (field.room.high / PAGE).max(BATCH) } else { u64::MAX };
        Pass { targets: left, left, scanned: 0, freed_before, want, cut: false }
    }

    /// Scans a batch of each list of the current zone. Returns whether the reclaimer has to wait.
    fn scan(&mut self, zone: &mut Core, host: &mut dyn Host) -> bool {
        let Some(pass) = &mut self.pass else { return false };
        let mut stall = false;
        for list in [INACTIVE_ANON, ACTIVE_ANON, INACTIVE_FILE, ACTIVE_FILE] {
            let n = pass.left[list].min(BATCH);
            if n == 0 {
                continue;
            }
            pass.left[list] -= n;
            pass.scanned += n;
            let (field, policy) = zone.parts();
            let super::Policy::Lists(lists) = policy else { return false };
            match list {
                ACTIVE_ANON if Lists::anon_is_low(field) => lists.shrink_active(field, list, n),
                ACTIVE_FILE if Lists::file_is_low(field) => lists.shrink_active(field, list, n),
                ACTIVE_ANON | ACTIVE_FILE => {}
                _ => stall |= shrink_inactive(zone, list, n, self.priority, host).1,
            }
        }
        if self.rules.proportional && !pass.cut && freed_pages(zone) - pass.freed_before >= pass.want {
            // Enough was freed: the kind with less left is stopped, and the other one continues to the share that the
            // first one has reached.
            pass.cut = true;
            let both = |lists: &[u64; 4], kind: usize| lists[2 * kind] + lists[2 * kind + 1];
            let (stops, on) = if both(&pass.left, 1) > both(&pass.left, 0) { (0, 1) } else { (1, 0) };
            let percent = both(&pass.left, stops) * 100 / (both(&pass.targets, stops) + 1);
            for active in 0..2 {
                pass.left[2 * stops + active] = 0;
                let list = 2 * on + active;
                let done = pass.targets[list] - pass.left[list];
                pass.left[list] = (pass.targets[list] * (100 - percent) / 100).saturating_sub(done);
            }
        }
        if pass.left[INACTIVE_ANON] + pass.left[INACTIVE_FILE] + pass.left[ACTIVE_FILE] == 0 {
            if pass.scanned >= pass.want {
                self.raise = false;
            }
            if !self.rules.slab_once || self.zone == self.end {
                shrink_slab(zone, host);
            }
            let balanced = Self::balanced(zone, false);
            if let (_, super::Policy::Lists(lists)) = zone.parts() {
                lists.writeback_tail = false;
                if balanced {
                    lists.clear_marks();
                }
            }
            self.pass = None;
            self.zone += 1;
        }
        stall
    }

    fn end_of_pass(&mut self, zones: &mut [Core]) -> Next {
        if zones.iter().all(|z| Self::balanced(z, false)) {
            self.on = false;
            return Next::Enough;
        }
        let freed = Self::freed(zones);
        let lowest = if self.rules.proportional { 1 } else { 0 };
        if self.rules.proportional && !self.raise && freed > self.freed_before {
            // The next pass is as hard as this one.
            self.freed_before = freed;
        } else if !self.rules.proportional && freed - self.freed_before >= BATCH {
            (self.priority, self.freed_before) = (PRIORITY, freed);
        } else if self.priority == lowest {
            (self.priority, self.freed_before) = (PRIORITY, freed);
            let by_all = freed + zones.iter().map(|z| z.counts().freed_direct).sum::<u64>();
            self.fruitless = if by_all == self.freed_by_all { self.fruitless + 1 } else { 0 };
            self.freed_by_all = by_all;
            if self.fruitless >= FRUITLESS {
                (self.on, self.fruitless) = (false, 0);
                return Next::Wait { why: Why::InUse, at_most_ns: STALL_NS };
            }
        } else {
            self.priority -= 1;
            if self.rules.proportional {
                self.freed_before = freed;
            }
        }
        if self.begin(zones) { Next::More } else { Next::Enough }
    }

    /// Linux: `do_try_to_free_pages`.
    pub fn direct(&mut self, zones: &mut [Core], host: &mut dyn Host) -> Next {
        let mut chosen = 0;
        for priority in (0..=PRIORITY).rev() {
            for zone in &mut *zones {
                let (field, policy) = zone.parts();
                let super::Policy::Lists(lists) = policy else { continue };
                let counts = lists.scan_count(field, priority);
                if Lists::file_is_low(field) {
                    lists.shrink_active(field, ACTIVE_FILE, BATCH);
                }
                for list in [INACTIVE_ANON, INACTIVE_FILE] {
                    let mut left = counts[list].min(2 * BATCH);
                    while left > 0 && chosen < BATCH {
                        let n = left.min(BATCH);
                        left -= n;
                        let (some, stall) = shrink_inactive(zone, list, n, priority, host);
                        chosen += some;
                        if stall {
                            return Next::Wait { why: Why::Writeback, at_most_ns: STALL_NS };
                        }
                    }
                }
                shrink_slab(zone, host);
            }
            if chosen >= BATCH {
                return Next::More;
            }
        }
        if chosen > 0 { Next::More } else { Next::Wait { why: Why::InUse, at_most_ns: STALL_NS } }
    }
}
