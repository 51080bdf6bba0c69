//! Linux 6.1: pages in up to four generations. Pages that were read often are spared if pages of their tier are needed
//! again.
//!
//! Main types: [`Generations`] (the generations of one zone), [`Tiers`] (the pages that were needed again, for each
//! tier), [`Pacer`] (the background reclaimer, over all zones). Linux: the multi-gen LRU (Yu Zhao, 2022;
//! `CONFIG_LRU_GEN`), mm/vmscan.c and mm/workingset.c of 6.1: `lru_gen_add_folio`, `folio_inc_refs`, `scan_folios`,
//! `sort_folio`, `isolate_folio`, `get_tier_idx`, `should_run_aging`, `inc_max_seq`, `try_to_inc_min_seq`,
//! `lru_gen_eviction`, `lru_gen_refault`. It includes the correction 081488051d28 ("mm/mglru: fix underprotected page
//! cache", 6.7 and 6.1.70). 6.14 changed the detection of refaults again, which is not included.
//!
//! - **Generations** have numbers from `min_seq` to `max_seq`. Reclaim takes pages from the oldest one, and increments
//!   `min_seq` when that is empty. Aging begins a new generation when there are too few, or when their sizes are
//!   uneven.
//! - **Tiers.** A page of a file is not moved to another generation when it is read: reads are only counted. The first
//!   read is tier 0, the second is tier 1, the third and fourth are tier 2, and more are tier 3.
//! - **Feedback.** If reclaim meets a page of a tier whose pages are needed again more than twice as often as those of
//!   tier 0, it moves the page to the next generation, and its count starts again. Linux calls this a
//!   proportional-integral-derivative controller: the rate of the current generation, and the halved sum of the
//!   earlier ones, are compared.
//! - **Refaults** count if the page was evicted from the generation that is still the oldest.
//!
//! Differences from Linux:
//! - Pages of programs are not in generations, because Extant's cache has none. Only the model of a machine has some.
//!   Of these, the least recently used are freed first, when no zone has a page of a file left.
//! - Each zone has its own generations. There are no page tables to walk and no memory cgroups.
//! - If a batch finds only dirty pages, reclaim answers [`Next::Drive`], and the flusher writes. Linux wakes its
//!   flusher since 6.13; before that, only the writer's own limit did.
//! - The number of a generation and a count of reads are stored in the 32 bits of a ghost; Linux has a few more bits.
//!
//! # Locking
//! The lock of [`super::super::Reclaim`] protects everything here.

use super::super::core::{self, Class, Core, Field, Host, Next, Why, Wrote};
use super::super::frame::{FrameId, ListId, State};
use super::super::ghost::Ghosts;
use super::lists::{STALL_NS, pages_of};
use super::slab::{self, Slab};

/// Linux: `MIN_NR_GENS` and `MAX_NR_GENS`.
const GENS_MIN: u64 = 2;
const GENS_MAX: u64 = 4;
/// Linux: `MAX_NR_TIERS`.
const TIERS: usize = 4;
/// The maximum number of reads after the first that are counted (Linux: `BIT(LRU_REFS_WIDTH)`; the width is two bits).
const REFS_MAX: u8 = 4;
/// The number of bits of a ghost's 32 that contain the count of reads.
const REFS_BITS: u32 = 3;
/// The number of uses of a frame that are counted. A frame that begins without any use needs one more than
/// [`REFS_MAX`].
pub(super) const USES: u8 = REFS_MAX + 1;
/// The number of pages that a batch frees (Linux: `MIN_LRU_BATCH`, the bits of a word).
const BATCH: u64 = 64;
/// The number of frames that a batch examines (Linux: `MAX_LRU_BATCH`).
const LOOKS: u32 = 64 * 64;
/// Linux: `DEF_PRIORITY`.
const PRIORITY: u32 = 12;
/// Linux: `SWAP_CLUSTER_MAX`.
const CLUSTER: u64 = 32;
/// The first of the four lists of the generations.
const FIRST: ListId = 1;
/// The list of the memory of programs.
const PROGRAMS: ListId = 6;

/// The refaults, evictions and protections of the current generation by tier, and the sums over all earlier
/// generations, each halved with every generation (Linux: the counters of `struct lru_gen_folio`).
#[derive(Debug, Default)]
struct Tiers {
    refaulted: [u64; TIERS],
    evicted: [u64; TIERS],
    protected: [u64; TIERS],
    refaulted_before: [u64; TIERS],
    total_before: [u64; TIERS],
}

impl Tiers {
    /// The number of the tier's pages that were needed again, and of all that were met (Linux: `read_ctrl_pos`).
    fn position(&self, tier: usize) -> (u64, u64) {
        let total = self.total_before[tier] + self.evicted[tier] + self.protected[tier];
        (self.refaulted_before[tier] + self.refaulted[tier], total)
    }

    /// Must be called when another generation becomes the oldest (Linux: `reset_ctrl_pos`).
    fn carry_over(&mut self) {
        for tier in 0..TIERS {
            let (refaulted, total) = self.position(tier);
            (self.refaulted_before[tier], self.total_before[tier]) = (refaulted / 2, total / 2);
        }
        (self.refaulted, self.evicted, self.protected) = Default::default();
    }

    /// The highest tier whose pages are freed (Linux: `get_tier_idx`, `positive_ctrl_err`).
    fn last_to_go(&self) -> usize {
        let (of_first, first) = self.position(0);
        let spared = (1..TIERS).find(|tier| {
            let (refaulted, total) = self.position(*tier);
            // It must be twice as often as the first tier, which is a margin for fluctuations.
            let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
            refaulted >= BATCH && product(refaulted, first + BATCH) > product(of_first + 1, total) * 2
        });
        spared.unwrap_or(TIERS) - 1
    }
}

/// Linux: `lru_tier_from_refs`.
fn tier_of(refs: u8) -> usize {
    usize::from(refs + 1).next_power_of_two().trailing_zeros() as usize
}

/// The generations of one zone.
pub(in crate::reclaim) struct Generations {
    min_seq: u64,
    max_seq: u64,
    tiers: Tiers,
    ghosts: Ghosts,
    slab: Slab,
}

/// The result of a batch.
#[derive(Default)]
struct Batch {
    /// The number of pages examined, and of pages chosen to be freed.
    scanned: u64,
    chosen: u64,
    /// Whether some were dirty, under writeback, or not durable.
    unclean: bool,
}

impl Default for Generations {
    fn default() -> Generations {
        // Linux: `lru_gen_init_lruvec`.
        let (min_seq, max_seq) = (0, GENS_MIN + 1);
        let (tiers, ghosts, slab) = (Tiers::default(), Ghosts::default(), Slab::default());
        Generations { min_seq, max_seq, tiers, ghosts, slab }
    }
}

impl Generations {
    fn list(seq: u64) -> ListId {
        FIRST + (seq % GENS_MAX) as ListId
    }

    fn gens(&self) -> u64 {
        self.max_seq - self.min_seq + 1
    }

    /// The counted reads of the frame after the first (Linux: `folio_lru_refs`).
    fn refs(field: &Field, id: FrameId) -> u8 {
        let first = u8::from(field.frames.state(id).has(State::REFERENCED));
        (field.frames.touches().count(id) + first).saturating_sub(1).min(REFS_MAX)
    }

    fn forget_refs(field: &mut Field, id: FrameId) {
        field.frames.touches().take(id);
        field.frames.unmark(id, State::REFERENCED);
    }

    pub fn inserted(&mut self, field: &mut Field, id: FrameId) {
        match field.class(id) {
            Class::Inode => field.frames.push(slab::SLAB, id),
            Class::Anonymous => field.frames.push(PROGRAMS, id),
            Class::Data | Class::Metadata => {
                self.ghosts.reserve(u64::from(field.frames.live()));
                field.frames.mark(id, State::REFERENCED);
                if let Some(token) = self.ghosts.left(field.frames.owner(id), field.frames.key(id)) {
                    self.refault(field, id, token);
                }
                let second = u64::from(self.min_seq + GENS_MIN < self.max_seq);
                field.frames.push(Self::list(self.min_seq + second), id);
            }
        }
    }

    /// Handles a frame that is needed again (Linux: `lru_gen_refault`).
    fn refault(&mut self, field: &mut Field, id: FrameId, token: u32) {
        if token >> REFS_BITS != self.seq_of_token() {
            return;
        }
        let refs = (token & ((1 << REFS_BITS) - 1)) as u8;
        self.tiers.refaulted[tier_of(refs)] += pages_of(field.frames.bytes(id));
        field.counts.refaulted += 1;
        if refs >= REFS_MAX - 1 {
            // It starts with its old state: when it is met next, it is spared.
            field.frames.touches().set(id, REFS_MAX);
        }
    }

    /// The part of the oldest generation's number for which a ghost has room.
    fn seq_of_token(&self) -> u32 {
        self.min_seq as u32 & (u32::MAX >> REFS_BITS)
    }

    /// Linux: `folio_rotate_reclaimable`, at the end of a page's writeback.
    pub fn changed(&mut self, field: &mut Field, id: FrameId, before: State) {
        let clean = before != State::CLEAN && field.frames.state(id).told() == State::CLEAN;
        if clean && field.frames.unmark(id, State::IMMEDIATE) && !matches!(field.class(id), Class::Inode) {
            let anonymous = field.class(id) == Class::Anonymous;
            field.frames.push_tail(if anonymous { PROGRAMS } else { Self::list(self.min_seq) }, id);
        }
    }

    /// Linux: `evict_folios` puts pages that could not be freed into the youngest generation.
    pub fn kept(&mut self, field: &mut Field, id: FrameId) {
        field.frames.unmark(id, State::PROMOTED);
        match field.class(id) {
            Class::Inode => field.frames.push(slab::SLAB, id),
            Class::Anonymous => field.frames.push(PROGRAMS, id),
            Class::Data | Class::Metadata => {
                Self::forget_refs(field, id);
                field.frames.push(Self::list(self.max_seq), id);
            }
        }
    }

    pub fn freed(&mut self, field: &mut Field, id: FrameId) {
        if matches!(field.class(id), Class::Data | Class::Metadata) {
            let refs = Self::refs(field, id);
            self.tiers.evicted[tier_of(refs)] += pages_of(field.frames.bytes(id));
            let token = self.seq_of_token() << REFS_BITS | u32::from(refs);
            self.ghosts.add(field.frames.owner(id), field.frames.key(id), token);
        }
    }

    /// The number of pages in a generation.
    fn len(field: &Field, seq: u64) -> u64 {
        match field.frames.list_bytes(Self::list(seq)) {
            0 => 0,
            bytes => pages_of(bytes),
        }
    }

    /// The number of pages of files on any list.
    fn total(&self, field: &Field) -> u64 {
        (self.min_seq..=self.max_seq).map(|seq| Self::len(field, seq)).sum()
    }

    /// Whether a new generation should begin (Linux: `should_run_aging`).
    fn wants_aging(&self, field: &Field) -> bool {
        match self.gens() {
            gens if gens <= GENS_MIN => true,
            gens if gens > GENS_MIN + 1 => false,
            _ => {
                let total = self.total(field);
                let (young, old) = (Self::len(field, self.max_seq), Self::len(field, self.max_seq - GENS_MIN));
                young * GENS_MIN > total || old * (GENS_MIN + 2) < total
            }
        }
    }

    /// The number of pages that a pass examines (Linux: `get_nr_to_scan`).
    fn scan_count(&mut self, field: &Field, priority: u32) -> u64 {
        if self.wants_aging(field) && priority < PRIORITY {
            // Reads are counted when they happen, so aging has no page to move.
            self.max_seq += 1;
        }
        if self.gens() > GENS_MIN { self.total(field) >> priority } else { 0 }
    }

    /// Takes pages from the oldest generation. Some are freed, the others are moved on (Linux: `scan_folios`,
    /// `sort_folio`).
    fn batch(&mut self, field: &mut Field, taken: &mut Vec<FrameId>) -> Batch {
        let mut batch = Batch::default();
        let last_to_go = self.tiers.last_to_go();
        for _ in 0..LOOKS {
            if self.gens() == GENS_MIN || batch.chosen >= BATCH {
                break;
            }
            let Some(id) = field.frames.tail(Self::list(self.min_seq)) else { break };
            field.scan();
            let (state, pages, refs) =
                (field.frames.state(id), pages_of(field.frames.bytes(id)), Self::refs(field, id));
            let next = Self::list(self.min_seq + 1);
            batch.scanned += pages;
            if tier_of(refs) > last_to_go || refs == REFS_MAX {
                self.tiers.protected[tier_of(refs)] += pages;
                Self::forget_refs(field, id);
                field.frames.push_tail(next, id);
            } else if state.told() != State::CLEAN {
                let counts = &mut field.counts;
                counts.dirty += u64::from(state.has(State::DIRTY));
                counts.unqueued += u64::from(state.has(State::DIRTY) && !state.has(State::WRITEBACK));
                counts.writeback += u64::from(state.has(State::WRITEBACK));
                counts.immediate += 1;
                batch.unclean = true;
                Self::forget_refs(field, id);
                field.frames.mark(id, State::IMMEDIATE);
                field.frames.push(next, id);
            } else {
                field.frames.unlink(id);
                taken.push(id);
                batch.chosen += pages;
            }
        }
        let before = self.min_seq;
        while self.min_seq + GENS_MIN <= self.max_seq && field.frames.len(Self::list(self.min_seq)) == 0 {
            self.min_seq += 1;
        }
        if self.min_seq > before {
            self.tiers.carry_over();
        }
        let total = self.total(field);
        self.slab.scanned(field, batch.scanned, total + batch.chosen);
        batch
    }
}

/// Frees a batch of pages, and inodes in proportion.
fn evict(core: &mut Core, host: &mut dyn Host) -> Batch {
    let mut taken = Vec::new();
    let (field, policy) = core.parts();
    let super::Policy::Generations(generations) = policy else { return Batch::default() };
    let batch = generations.batch(field, &mut taken);
    for id in taken {
        core::free(core, id, host);
    }
    batch
}

/// Examines the inodes that are due.
fn shrink_slab(core: &mut Core, host: &mut dyn Host) {
    let (field, policy) = core.parts();
    let super::Policy::Generations(generations) = policy else { return };
    let alone = generations.total(field) == 0;
    let n = generations.slab.due(field, if alone { CLUSTER } else { 0 });
    slab::shrink(core, n, host);
}

/// Frees memory of programs that was not used since the last look, if no zone has any page of a file.
fn shrink_programs(core: &mut Core, host: &mut dyn Host) {
    for _ in 0..CLUSTER {
        let (field, _) = core.parts();
        let Some(id) = field.frames.tail(PROGRAMS) else { break };
        field.scan();
        let state = field.frames.state(id);
        if field.frames.touches().take(id) > 0 || state.has(State::WRITEBACK) {
            field.frames.push(PROGRAMS, id);
        } else if state.has(State::DIRTY) {
            field.counts.wanted_anonymous += 1;
            field.frames.push(PROGRAMS, id);
            if host.write(field.victim(id)) == Wrote::Started {
                core.set_state(id, state.told().without(State::DIRTY).or(State::WRITEBACK));
                core.parts().0.frames.mark(id, State::IMMEDIATE);
            }
        } else {
            core::free(core, id, host);
        }
    }
}

/// The number of pages of files in a zone, and of those that cannot be freed before they are written.
fn pages_of_files(zone: &Core) -> (u64, u64) {
    let field = zone.field();
    let listed = (0..GENS_MAX).map(|seq| field.frames.list_bytes(Generations::list(seq))).sum::<u64>();
    (listed, field.unclean.data + field.unclean.other)
}

/// The background reclaimer (Linux: `balance_pgdat`).
pub(in crate::reclaim) struct Pacer {
    on: bool,
    priority: u32,
    /// The zone that this pass is at, and the number of its pages that are left to examine.
    zone: usize,
    left: Option<u64>,
    /// The number of pages that this pass has examined, and the count of freed frames when it began.
    scanned: u64,
    freed_before: u64,
    /// The count of freed frames when the round over all priorities began.
    freed_in_rounds: u64,
}

impl Pacer {
    pub fn new() -> Pacer {
        Pacer { on: false, priority: PRIORITY, zone: 0, left: None, scanned: 0, freed_before: 0, freed_in_rounds: 0 }
    }

    pub fn wake(&mut self) {
        self.on = false;
    }

    fn freed(zones: &[Core]) -> u64 {
        zones.iter().map(|zone| zone.counts().freed + zone.counts().freed_direct).sum()
    }

    fn begin(&mut self, zones: &[Core]) {
        (self.zone, self.left, self.scanned, self.freed_before) = (0, None, 0, Self::freed(zones));
    }

    /// The answer if nothing can be freed: the flusher has to write, or everything is in use.
    fn nothing(zones: &[Core], bytes: u64) -> Next {
        match zones.iter().map(pages_of_files).map(|(_, unclean)| unclean).sum::<u64>() {
            0 => Next::Wait { why: Why::InUse, at_most_ns: STALL_NS },
            _ => Next::Drive { bytes },
        }
    }

    pub fn step(&mut self, zones: &mut [Core], host: &mut dyn Host) -> Next {
        let sum = |zones: &[Core], of: fn(&Core) -> u64| zones.iter().map(of).sum::<u64>();
        let high = sum(zones, |zone| zone.room().high);
        let missing = high.saturating_sub(sum(zones, |zone| zone.room().free));
        if missing == 0 {
            self.on = false;
            return Next::Enough;
        }
        if !self.on {
            (self.on, self.priority, self.freed_in_rounds) = (true, PRIORITY, Self::freed(zones));
            self.begin(zones);
        }
        if self.zone >= zones.len() {
            return self.end_of_pass(zones, missing, high, host);
        }
        let zone = &mut zones[self.zone];
        let left = match self.left {
            Some(left) => left,
            None => {
                let (field, policy) = zone.parts();
                let super::Policy::Generations(generations) = policy else { return Next::Enough };
                generations.scan_count(field, self.priority)
            }
        };
        let batch = if left > 0 { evict(zone, host) } else { Batch::default() };
        self.scanned += batch.scanned;
        self.left = Some(left.saturating_sub(batch.scanned));
        if batch.scanned == 0 || self.left == Some(0) {
            shrink_slab(zone, host);
            (self.zone, self.left) = (self.zone + 1, None);
        }
        if batch.chosen == 0 && batch.unclean { Next::Drive { bytes: missing } } else { Next::More }
    }

    fn end_of_pass(&mut self, zones: &mut [Core], missing: u64, high: u64, host: &mut dyn Host) -> Next {
        if zones.iter().all(|zone| pages_of_files(zone) == (0, 0)) {
            zones.iter_mut().for_each(|zone| shrink_programs(zone, host));
        }
        let freed = Self::freed(zones);
        // In Linux, the next pass is harder, unless this one examined as much as had to be freed, and freed some of it.
        if self.scanned < pages_of(high).max(CLUSTER) || freed == self.freed_before {
            self.priority -= 1;
        }
        if self.priority == 0 {
            let in_vain = freed == self.freed_in_rounds;
            (self.priority, self.freed_in_rounds) = (PRIORITY, freed);
            if in_vain {
                self.on = false;
                return Self::nothing(zones, missing);
            }
        }
        self.begin(zones);
        Next::More
    }

    /// For a caller that needs memory immediately (Linux: `do_try_to_free_pages`).
    pub fn direct(&mut self, zones: &mut [Core], host: &mut dyn Host) -> Next {
        let mut chosen = 0;
        for priority in (0..=PRIORITY).rev() {
            for zone in &mut *zones {
                let (field, policy) = zone.parts();
                let super::Policy::Generations(generations) = policy else { continue };
                let mut left = generations.scan_count(field, priority);
                while left > 0 && chosen < CLUSTER {
                    let batch = evict(zone, host);
                    chosen += batch.chosen;
                    if batch.scanned == 0 {
                        break;
                    }
                    left = left.saturating_sub(batch.scanned);
                }
                shrink_slab(zone, host);
            }
            if chosen >= CLUSTER {
                return Next::More;
            }
        }
        let before = Self::freed(zones);
        if zones.iter().all(|zone| pages_of_files(zone) == (0, 0)) {
            zones.iter_mut().for_each(|zone| shrink_programs(zone, host));
        }
        if chosen > 0 || Self::freed(zones) > before { Next::More } else { Self::nothing(zones, CLUSTER << 12) }
    }
}

#[cfg(test)]
mod tests;
