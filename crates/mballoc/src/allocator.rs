//! [`Allocator`], the public interface, and the steps of a request: claim blocks, try a preallocation, choose a size,
//! search, allocate. Linux: `ext4_mb_new_blocks`, `ext4_free_blocks`, fs/ext4/mballoc.c.
//!
//! What it does not do: it does not search (`search`), build buddies (`load`) or decide sizes (`prealloc::normalize`).
//!
//! # Locking
//! See the crate's page. No lock is held between the steps of a request. Blocks in flight are marked as held, so no
//! other request gets them.

use std::sync::Arc;

use extant_base::append::{AppendVec, Latest};
use extant_base::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use extant_base::task::{processors, shard_index};
use extant_base::trace_point;
use extant_ondisk::indirect::PointerBlock;
use extant_ondisk::{BlockNr, GroupNr, LogicalBlock};

use crate::group::{BAD, Group, LOADED, PREALLOCATED};
use crate::group_choice::policy::{GroupChoice, Growth, Rules, Streams};
use crate::in_transit::TransitTracker;
use crate::meta_place::MetaZones;
use crate::meta_place::policy::MetaPlace;
use crate::prealloc::in_front::{lead_off, pointer_blocks};
use crate::prealloc::locality::LocalityGroup;
use crate::prealloc::normalize::{Normalized, Shape, fill, grow, normalize, place};
use crate::prealloc::{Cut, Preallocation};
use crate::ranges::RangeSet;
use crate::search::{Extent, NO_GOAL, SearchRequest};
use crate::space::{Privilege, Space};
use crate::stats::Counters;
use crate::zones::SystemZones;
use crate::{
    Allocation, Error, Geometry, GroupStore, GroupSummary, InodePreallocation, Kind, MetaPolicy, Neighbour, Policy,
    Request, RequestFlags, Statistics,
};

/// Options chosen at mount.
#[derive(Clone, Debug)]
pub struct Options {
    pub policy: Policy,
    /// The policy that places metadata.
    pub meta_policy: MetaPolicy,
    /// Blocks reserved for requests with USE_ROOT_RESERVE (`s_r_blocks_count`).
    pub root_reserve: u64,
    /// Blocks reserved for requests with USE_RESERVED (Linux: `s_resv_clusters`, at most 2 % and 4096).
    pub pool_reserve: u64,
    /// Preallocation for locality groups, in blocks; 0 disables it (Linux: `mb_group_prealloc`, 512). At most a quarter
    /// of a group.
    pub group_prealloc: u32,
    /// Files up to this many blocks are small (Linux: `mb_stream_req`, 16).
    pub stream_request: u32,
    /// Whether to preallocate for inodes.
    pub inode_prealloc: bool,
    /// How many free extents one search measures at most, and at least (Linux: `mb_max_to_scan`, `mb_min_to_scan`).
    pub max_to_scan: u32,
    pub min_to_scan: u32,
    /// Power-of-two requests of at least this order use the buddy directly (Linux: `mb_order2_req`).
    pub order2_requests: u32,
    /// Locality groups; 0 for one per processor.
    pub locality_groups: usize,
    /// Goals for streams; 0 for the policy's choice: one, or one per processor. At most groups / 4.
    pub stream_goals: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: Policy::default(),
            meta_policy: MetaPolicy::default(),
            root_reserve: 0,
            pool_reserve: 0,
            group_prealloc: 512,
            stream_request: 16,
            inode_prealloc: true,
            max_to_scan: 200,
            min_to_scan: 10,
            order2_requests: 2,
            locality_groups: 0,
            stream_goals: 0,
        }
    }
}

/// Blocks freed in one call, split at group borders. Pass it (or its sum over a transaction) to
/// [`Allocator::release`] once that transaction is durable.
pub type FreedExtents = Vec<(BlockNr, u32)>;

/// One group as the allocator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupState {
    /// Blocks that can be allocated now.
    pub free: u32,
    /// Runs of free blocks; 0 while unknown.
    pub fragments: u32,
    /// log2 of the largest free buddy; None if no block is free, or while unknown.
    pub largest_order: Option<u8>,
    /// Free blocks set aside for metadata; not counted in `free`.
    pub set_aside: u32,
    /// Whether the buddy is in memory.
    pub loaded: bool,
    /// Whether the bitmap is unreliable; nothing is allocated or freed here.
    pub bad: bool,
}

/// Blocks that have been chosen and not yet marked ([`Allocator::choose`]): `len` blocks from `start` on, inside one
/// group.
#[derive(Debug)]
#[must_use = "chosen blocks must be marked or cancelled"]
pub struct Chosen {
    pub start: BlockNr,
    pub len: u32,
    /// Whether they belong to a promise ([`Allocator::reserve`]).
    reserved: bool,
}

impl Chosen {
    /// Splits off the blocks behind the first `len`.
    pub fn split_off(&mut self, len: u32) -> Option<Chosen> {
        let rest = self.len.checked_sub(len).filter(|&rest| rest > 0)?;
        self.len = len;
        Some(Chosen { start: BlockNr(self.start.0 + u64::from(len)), len: rest, reserved: self.reserved })
    }
}

/// How often a request searches again, after a short wait, while other threads hold blocks in flight.
const TURNS_MAX: u32 = 1000;
/// As [`TURNS_MAX`], for a request that may not use all groups.
const TURNS_FEW: u32 = 8;

/// The divisor that bounds one preallocation of a growing file ([`Growth::Times`]). The dividend is the number of
/// blocks that may be set aside for all files together: three quarters of the free blocks.
const SPARE: u64 = 16;

/// The allocator of one mount. Linux: the `s_mb_*` part of `struct ext4_sb_info`.
pub struct Allocator<S: GroupStore> {
    pub(crate) store: Arc<S>,
    pub(crate) geometry: Latest<Geometry>,
    pub(crate) options: Options,
    pub(crate) groups: AppendVec<Group>,
    pub(crate) zones: SystemZones,
    pub(crate) space: Space,
    pub(crate) in_transit: TransitTracker,
    pub(crate) choice: Latest<Box<dyn GroupChoice>>,
    /// The number of groups that the policy has space for.
    pub(crate) choice_groups: AtomicU32,
    pub(crate) rules: &'static Rules,
    pub(crate) meta: Box<dyn MetaPlace>,
    pub(crate) meta_zones: Option<MetaZones>,
    /// Each processor has its own counters. They are boxed because an allocator that is moved would copy them all.
    pub(crate) counters: Box<Counters>,
    /// Where each stream last got blocks: group << 32 | index (Linux: `s_mb_last_groups`).
    pub(crate) streams: Box<[AtomicU64]>,
    locality: Box<[LocalityGroup]>,
    pub(crate) buddy_bytes: AtomicUsize,
    pub(crate) shrink_hand: AtomicU32,
}

/// Whether the request reaches the end of a file that is not open for writing.
fn is_finished(request: &Request<'_>) -> bool {
    let Kind::Data { logical, file_blocks, .. } = request.kind else { return false };
    request.flags.contains(RequestFlags::CLOSED) && u64::from(logical.0) + u64::from(request.len) >= file_blocks
}

/// How to serve a data request.
enum Plan<'a> {
    /// Exactly the requested blocks.
    Plain,
    /// With a chunk for this processor's small files.
    Group,
    /// With a chunk for the file.
    Inode(&'a InodePreallocation, Normalized),
}

impl<S: GroupStore> Allocator<S> {
    /// `groups` has one entry per group of the geometry. A group whose summary has more free blocks than the group has
    /// blocks is bad from the start. Does no I/O.
    pub fn new(store: Arc<S>, geometry: Geometry, groups: &[GroupSummary], options: Options) -> crate::Result<Self> {
        geometry.check()?;
        if groups.len() != geometry.groups as usize {
            return Err(Error::Invalid {
                detail: format!("{} summaries for {} groups", groups.len(), geometry.groups),
            });
        }
        let mut free = 0u64;
        for (nr, g) in (0..).map(GroupNr).zip(groups) {
            // An impossible descriptor makes only its group unusable, not the mount.
            if g.free <= geometry.blocks_in_group(nr) {
                free += u64::from(g.free);
            }
        }
        let choice = options.policy.state(&geometry);
        let meta = options.meta_policy.state();
        let meta_zones = meta.zoning().map(|zoning| MetaZones::new(zoning, &geometry, groups));
        let groups: AppendVec<Group> = groups.iter().map(|g| Group::new(g.free, g.block_uninit)).collect();
        let counters = Box::<Counters>::default();
        // From the last group down, so that lists begin with the last group, as they do where bitmaps are read ahead
        // (Linux: `ext4_mb_prefetch_fini`).
        for (nr, group) in groups.iter().enumerate().rev() {
            if group.free() > geometry.blocks_in_group(GroupNr(nr as u32)) {
                group.set(BAD);
                group.set_free(0);
                counters.groups_bad.inc();
            }
            choice.changed(nr as u32, group.info(None, geometry.highest_order()));
        }
        let rules = choice.rules();
        let or_processors = |n: usize| if n == 0 { processors() } else { n };
        let streams = match options.stream_goals {
            0 if rules.streams != Streams::PerProcessor => 1,
            n => or_processors(n).min(groups.len().div_ceil(4)),
        };
        let locality = or_processors(options.locality_groups);
        Ok(Allocator {
            store,
            space: Space::new(free, options.root_reserve, options.pool_reserve),
            zones: SystemZones::default(),
            in_transit: TransitTracker::default(),
            choice_groups: AtomicU32::new(geometry.groups),
            choice: Latest::new(choice),
            rules,
            meta,
            meta_zones,
            counters,
            streams: (0..streams).map(|_| AtomicU64::new(NO_GOAL)).collect(),
            locality: (0..locality).map(|_| LocalityGroup::new()).collect(),
            buddy_bytes: AtomicUsize::new(0),
            shrink_hand: AtomicU32::new(0),
            groups,
            geometry: Latest::new(geometry),
            options,
        })
    }

    /// Protects ranges (first block, length): they are never allocated or freed, whatever the bitmaps say. Meant for
    /// superblocks, descriptors, bitmaps, inode tables, the journal. Adds to earlier calls. Parts outside the file
    /// system are ignored.
    pub fn protect(&mut self, ranges: impl IntoIterator<Item = (BlockNr, u64)>) {
        let end = self.geometry.blocks_count;
        self.zones.add(ranges.into_iter().map(|(start, len)| (start.0, start.0.saturating_add(len).min(end))));
        self.forget_buddies();
        if let Some(zones) = &self.meta_zones {
            zones.begin(&self.geometry, &self.zones);
        }
    }

    /// Whether any of the `len` blocks from `start` on is protected ([`Allocator::protect`]). No file may own such a
    /// block.
    pub fn is_protected(&self, start: BlockNr, len: u64) -> bool {
        self.zones.overlap(start.0, start.0.saturating_add(len))
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The policy's rules, for the allocator and for the placement of directories.
    pub fn rules(&self) -> &'static Rules {
        self.rules
    }

    /// Allocates at least 1 and at most `request.len` blocks inside one group and marks them used in `txn`:
    /// [`Allocator::choose`], then [`Allocator::mark`].
    ///
    /// # Errors
    /// Those of the two; nothing is allocated then.
    pub fn allocate(&self, txn: &mut S::Txn, request: &Request<'_>) -> Result<Allocation, S::Error> {
        let chosen = self.choose(request)?;
        match self.mark(txn, &chosen) {
            Ok(()) => Ok(Allocation { start: chosen.start, len: chosen.len }),
            Err(e) => {
                self.cancel(chosen);
                Err(e)
            }
        }
    }

    /// Chooses at least 1 and at most `request.len` blocks inside one group. From then on no other request gets them,
    /// but they are free on disk until [`Allocator::mark`]. If the system crashes in between, they remain free. So data
    /// can be written before anything points to it. Needs no journal handle. Chosen blocks must be marked or cancelled
    /// ([`Allocator::cancel`]).
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::NoSpaceUntilCommit`] if freed blocks wait for their commit (stop the handle, force
    /// a commit, retry a bounded number of times); the store's error if no readable group is left.
    pub fn choose(&self, request: &Request<'_>) -> Result<Chosen, S::Error> {
        Ok(self.choose_with(request, 0)?.0)
    }

    /// Whether [`Allocator::choose_with`] may choose more.
    pub fn puts_together(&self) -> bool {
        self.rules.together
    }

    /// As [`Allocator::choose`], and up to `more` blocks behind those of the request. They are for small files that
    /// will be written next and belong beside this one ([`Allocator::hand_over`]). Chooses more only if the blocks of
    /// the request were promised, the policy puts such files together, and there is plenty of unpromised space. Then
    /// another writer of one of these files still finds the blocks of its promise.
    ///
    /// # Errors
    /// As [`Allocator::choose`].
    pub fn choose_with(&self, request: &Request<'_>, more: u32) -> Result<(Chosen, Option<Chosen>), S::Error> {
        self.counters.requests.inc();
        if request.len == 0 {
            return Err(Error::Invalid { detail: "a request for no blocks".to_owned() }.into());
        }
        let reserved = matches!(request.kind, Kind::Data { reserved: true, .. });
        let who = if request.flags.contains(RequestFlags::USE_RESERVED) {
            Privilege::All
        } else if request.flags.contains(RequestFlags::USE_ROOT_RESERVE) {
            Privilege::Root
        } else {
            Privilege::Normal
        };
        let mut len = request.len.min(self.geometry.blocks_per_group);
        if let (Kind::Data { logical, .. }, Some(pointers)) = (request.kind, request.pointers) {
            len = u64::from(len).min(pointers.end.saturating_sub(u64::from(logical.0)).max(1)) as u32;
        }
        let mut more = if reserved && self.rules.together && self.is_small(request) { more } else { 0 };
        if !reserved {
            len = self.space.claim(u64::from(len), true, who) as u32;
            if len == 0 {
                self.counters.no_space.inc();
                return Err(Error::NoSpace { wanted: u64::from(request.len) }.into());
            }
        } else if more > 0 {
            // The files that will use these blocks already have a promise for as many, so claiming the blocks counts
            // them twice. Near the end of the disk, a writer would then be refused blocks that exist.
            more = more.min(self.geometry.blocks_per_group - len);
            more = if self.space.claim_spare(u64::from(more)) { more } else { 0 };
        }
        let result = self.choose_claimed(request, len + more);
        let got = result.as_ref().map_or(0, |a| a.len);
        let claimed = if reserved { more } else { len };
        self.space.unclaim(u64::from(claimed - if reserved { got.saturating_sub(len) } else { got }));
        match result {
            Ok(a) => {
                let mut chosen = Chosen { start: a.start, len: a.len, reserved };
                let rest = chosen.split_off(len).map(|rest| Chosen { reserved: false, ..rest });
                self.note_success(&chosen, request.len);
                Ok((chosen, rest))
            }
            Err(e) => {
                self.counters.no_space.inc();
                Err(e)
            }
        }
    }

    /// Assigns blocks chosen in advance ([`Allocator::choose_with`]) to a file that has a promise for as many.
    pub fn hand_over(&self, chosen: &mut Chosen) {
        if !std::mem::replace(&mut chosen.reserved, true) {
            self.space.unclaim(u64::from(chosen.len));
        }
        self.counters.requests.inc();
        self.note_success(chosen, chosen.len);
    }

    fn note_success(&self, chosen: &Chosen, wanted: u32) {
        self.counters.success.inc();
        self.counters.blocks_allocated.add(u64::from(chosen.len));
        trace_point!(ext4_mballoc_alloc, start = chosen.start.0, len = chosen.len, wanted = wanted);
    }

    fn choose_claimed(&self, request: &Request<'_>, len: u32) -> Result<Allocation, S::Error> {
        let goal_only = request.flags.contains(RequestFlags::GOAL_ONLY);
        let limit = self.group_limit(request.max_block);
        let wanted = u64::from(request.len);
        // The claimed blocks exist and only have to become visible, unless they are in groups that may not be used.
        let anywhere = || limit == self.geometry.groups && self.counters.groups_bad.get() == 0;
        let mut first_error = None;
        let mut turn = 0;
        let mut lead = pointer_blocks(request);
        while turn < TURNS_FEW || turn < TURNS_MAX && anywhere() {
            match self.use_set_aside(request, len, &lead, limit) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                // There is one usable group less, so the loop ends.
                Err(e) => {
                    first_error.get_or_insert(e);
                    continue;
                }
            }
            // To ask for it costs more than most searches, so the first one does without.
            let turns = (turn > 0).then(|| self.in_transit.turns());
            // Under pressure, no request sets aside more than it needs.
            let plan = if turn == 0 { self.plan(request, len) } else { Plan::Plain };
            let want = self.want(request, &plan, len, lead.len() as u32, limit);
            if let Some(found) = self.find(&want)? {
                match self.settle_extent(request, plan, found, len, &lead) {
                    Ok(chosen) => return Ok(chosen),
                    Err(e) => {
                        first_error.get_or_insert(e);
                        continue;
                    }
                }
            }
            turn += 1;
            lead.clear();
            if goal_only {
                break;
            }
            if self.discard_everything() > 0 {
                continue;
            }
            // Lends one area and repeats: each step frees blocks, so the loop reaches the claimed block.
            if !self.waits_rather_than_borrows(request) && self.lend(want.goal.map(|(group, _)| group), limit) {
                turn = 1;
                continue;
            }
            // After a commit the caller retries. If no blocks are pending, another thread holds the claimed ones in
            // flight.
            match (self.pending_blocks(), turns) {
                (0, None) => {}
                (0, Some(turns)) if self.in_transit.in_flight() || self.in_transit.turns() != turns => {
                    self.in_transit.wait(turns, turn > TURNS_FEW);
                }
                (0, Some(_)) => break,
                (pending, _) => return Err(Error::NoSpaceUntilCommit { wanted, pending }.into()),
            }
        }
        Err(first_error.unwrap_or_else(|| Error::NoSpace { wanted }.into()))
    }

    /// Reads the blocks that [`Allocator::mark`] will change. While the caller holds the returned value, a mark does
    /// not fail because of a read ([`GroupStore::prepare`]).
    pub fn prepare(&self, txn: &mut S::Txn, chosen: &Chosen) -> Result<Option<S::Prepared>, S::Error> {
        self.geometry.locate(chosen.start).map(|(group, _)| self.store.prepare(txn, group)).transpose()
    }

    /// Marks chosen blocks used in `txn`.
    ///
    /// # Errors
    /// The store's, and [`Error::Corrupt`]. Nothing has changed then, and the blocks are still chosen.
    pub fn mark(&self, txn: &mut S::Txn, chosen: &Chosen) -> Result<(), S::Error> {
        let place = self.geometry.locate(chosen.start);
        let corrupt = |detail: &str| {
            let (group, _) = place.unwrap_or_default();
            Error::corrupt(group, self.geometry.named(chosen.start), detail)
        };
        let (Some((nr, start)), Some(group)) = (place, place.and_then(|(nr, _)| self.group_ref(nr))) else {
            return Err(corrupt("no such group").into());
        };
        let prepared = self.store.prepare(txn, nr)?;
        let mut inner = group.lock();
        if group.has(BAD) {
            return Err(corrupt("the group turned out to be bad").into());
        }
        self.store.mark(txn, nr, &prepared, start..start + chosen.len, true)?;
        let held = inner.unhold(start, chosen.len);
        debug_assert!(held, "chosen blocks are held");
        if inner.buddy.is_none() {
            // A bitmap that is being loaded may or may not include this change.
            inner.generation = inner.generation.wrapping_add(1);
        }
        drop(inner);
        self.space.disk_used(u64::from(chosen.len));
        if chosen.reserved {
            self.space.promise_kept(u64::from(chosen.len));
        }
        Ok(())
    }

    /// Makes chosen blocks free again. If they belonged to a promise, the promise remains.
    pub fn cancel(&self, chosen: Chosen) {
        if let Some((group, start)) = self.geometry.locate(chosen.start) {
            self.give_back(group, [(start, chosen.len)], None);
        }
        if !chosen.reserved {
            self.space.unclaim(u64::from(chosen.len));
        }
    }

    /// The number of groups that lie entirely at or below `max_block`.
    fn group_limit(&self, max_block: Option<BlockNr>) -> u32 {
        let Some(max) = max_block.filter(|m| m.0 < self.geometry.blocks_count - 1) else { return self.geometry.groups };
        let blocks = (max.0 + 1).saturating_sub(self.geometry.first_data_block);
        (blocks / u64::from(self.geometry.blocks_per_group)) as u32
    }

    /// Chooses how to serve a request: small files share chunks, growing files get their own chunks, and finished files
    /// get exactly the requested blocks. Linux: `ext4_mb_group_or_file`, `ext4_mb_normalize_request`.
    fn plan<'a>(&self, request: &Request<'a>, len: u32) -> Plan<'a> {
        let Kind::Data { owner, logical, file_blocks, left, right, .. } = request.kind else { return Plan::Plain };
        let flags = request.flags;
        if flags.contains(RequestFlags::NO_PREALLOC) || flags.contains(RequestFlags::GOAL_ONLY) {
            return Plan::Plain;
        }
        if self.is_small(request) {
            return Plan::Group;
        }
        if !self.options.inode_prealloc || is_finished(request) {
            return Plan::Plain;
        }
        // If a caller names a goal block without a neighbour, the request continues the block before the goal.
        let continues = flags.contains(RequestFlags::TRY_GOAL) && left.is_none();
        let before = request.goal.filter(|_| continues).and_then(|goal| {
            let (logical, block) = (logical.0.checked_sub(1)?, goal.0.checked_sub(1)?);
            Some(Neighbour { logical: LogicalBlock(logical), block: BlockNr(block) })
        });
        let left = left.or(before);
        let (gap_start, gap_end, stale) = owner.gap_around(logical.0);
        if let Some(stale) = stale {
            self.discard(&stale);
        }
        let shape = Shape {
            block_bits: self.geometry.unit_bits(),
            blocks_per_group: self.geometry.blocks_per_group,
            logical: logical.0,
            len,
            file_blocks,
            left,
            right,
            gap: (gap_start, gap_end),
        };
        let most = || self.geometry.whole_stripes(self.spare() / SPARE);
        let range = match (request.pointers, self.rules.growth) {
            (Some(pointers), _) => fill(&shape, pointers.end, most()),
            (None, Growth::Table) => normalize(&shape),
            (None, Growth::Times(times)) => grow(&shape, times, most()),
        };
        Plan::Inode(owner, range)
    }

    /// The number of blocks that may still be set aside.
    fn spare(&self) -> u64 {
        let spent = self.counters.pa_spent.get();
        let aside = self.counters.pa_blocks.get().saturating_sub(spent);
        (self.space.available(Privilege::Normal) / 4 * 3).saturating_sub(aside)
    }

    /// Whether the file is small. Linux: `ext4_mb_group_or_file`.
    fn is_small(&self, request: &Request<'_>) -> bool {
        let Kind::Data { logical, file_blocks, .. } = request.kind else { return false };
        let end = u64::from(logical.0) + u64::from(request.len);
        let apart = self.rules.closed_files_apart && is_finished(request);
        let small = file_blocks.max(end) <= u64::from(self.options.stream_request);
        let grows = self.rules.growth != Growth::Table && logical.0 > 0 && !is_finished(request);
        small && !apart && !grows && self.options.group_prealloc > 0
    }

    /// The home of a small file; files with the same home share chunks.
    fn home(&self, request: &Request<'_>) -> u32 {
        let goal = request.goal.and_then(|goal| self.geometry.locate(goal)).map_or(0, |(group, _)| group.0);
        self.choice.home(goal, request.flags.contains(RequestFlags::SYNCED))
    }

    /// The search for a request. `lead`: the number of blocks in front of its `len` blocks.
    fn want(&self, request: &Request<'_>, plan: &Plan<'_>, len: u32, lead: u32, limit: u32) -> SearchRequest {
        let mut goal = request.goal;
        let mut try_goal = request.flags.contains(RequestFlags::TRY_GOAL);
        let mut stream = None;
        let mut waits = false;
        match request.kind {
            Kind::Data { owner, logical, left, .. } => {
                // Continues the block before.
                if let Some(left) = left
                    && left.logical.0.checked_add(1) == Some(logical.0)
                    && !try_goal
                {
                    (goal, try_goal) = (Some(BlockNr(left.block.0.saturating_add(1))), true);
                }
                if self.rules.streams != Streams::None && !self.is_small(request) && !is_finished(request) {
                    stream = Some(owner.ino().0 as usize % self.streams.len());
                }
            }
            Kind::Metadata(meta) => goal = self.meta.goal(&meta),
        }
        let wanted = match plan {
            Plan::Plain => len + lead,
            Plan::Group => {
                let home = self.home(request);
                if let Some(group) = self.choice.chunk_goal(home) {
                    (goal, try_goal, waits) = (Some(self.geometry.group_start(GroupNr(group))), false, true);
                }
                self.choice.chunk_len(home, self.group_chunk()).max(len + lead)
            }
            Plan::Inode(_, range) => {
                if let Some(block) = range.try_goal {
                    (goal, try_goal) = (Some(block), true);
                }
                range.len + lead
            }
        };
        let data = matches!(request.kind, Kind::Data { .. });
        SearchRequest {
            goal: goal.and_then(|b| self.geometry.locate(b)),
            len: wanted.min(self.geometry.blocks_per_group),
            least: len + lead,
            try_goal,
            goal_only: request.flags.contains(RequestFlags::GOAL_ONLY),
            continues: data && request.pointers.is_some(),
            data,
            stream,
            waits,
            limit,
        }
    }

    /// The size of a locality group's chunk: whole stripes, at most a quarter of a group.
    fn group_chunk(&self) -> u32 {
        let most = (self.geometry.blocks_per_group / 4).max(1);
        let chunk = self.options.group_prealloc.min(most);
        match self.geometry.stripe {
            0 | 1 => chunk,
            stripe => chunk.checked_next_multiple_of(stripe).filter(|&c| c <= most).unwrap_or(chunk),
        }
    }

    fn own_locality_group(&self) -> &LocalityGroup {
        &self.locality[shard_index() % self.locality.len()]
    }

    pub(crate) fn usable(&self, pa: &Preallocation, limit: u32) -> bool {
        pa.group.0 < limit && self.group_ref(pa.group).is_some_and(|g| !g.has(BAD))
    }

    /// Serves the request from blocks that were set aside earlier. `lead`: pointer blocks that it wants in front of the
    /// data.
    fn use_set_aside(
        &self,
        request: &Request<'_>,
        len: u32,
        lead: &[PointerBlock],
        limit: u32,
    ) -> Result<Option<Allocation>, S::Error> {
        match request.kind {
            Kind::Data { .. } => {
                self.look_before_data(request.goal);
                self.use_preallocated(request, len, lead, limit)
            }
            Kind::Metadata(meta) if !request.flags.contains(RequestFlags::GOAL_ONLY) => {
                match self.use_pointer_block(request, limit)? {
                    None => self.use_zone(&meta, len, limit),
                    found => Ok(found),
                }
            }
            Kind::Metadata(_) => Ok(None),
        }
    }

    /// Serves the request from a preallocation. Linux: `ext4_mb_use_preallocated`.
    fn use_preallocated(
        &self,
        request: &Request<'_>,
        len: u32,
        lead: &[PointerBlock],
        limit: u32,
    ) -> Result<Option<Allocation>, S::Error> {
        let Kind::Data { owner, logical, .. } = request.kind else { return Ok(None) };
        if request.flags.contains(RequestFlags::GOAL_ONLY) {
            return Ok(None);
        }
        // Counted before the cut. Otherwise another thread may meanwhile conclude that these blocks do not exist.
        self.in_transit.begin(u64::from(len));
        if let Some((pa, cut)) = owner.cut(logical.0, len, |pa| self.usable(pa, limit)) {
            self.in_transit.end(u64::from(len - cut.len));
            self.counters.inode_pa_hits.inc();
            return self.settle_cut(request, &pa, cut, &[]).map(Some);
        }
        self.in_transit.begin(lead.len() as u64);
        let len = len + lead.len() as u32;
        if !self.is_small(request) || request.flags.contains(RequestFlags::NO_PREALLOC) {
            self.in_transit.end(u64::from(len));
            return Ok(None);
        }
        let goal = request.goal.unwrap_or_default();
        let home = self.home(request);
        let distance = |pa: &Preallocation| {
            let start = self.geometry.block(pa.group, pa.start + pa.len.saturating_sub(pa.left()));
            (pa.logical == home && self.usable(pa, limit)).then(|| start.0.abs_diff(goal.0))
        };
        let (found, gone) = self.own_locality_group().cut(len, self.rules.keeps_remnants, distance);
        self.discard_list(gone);
        let Some((pa, cut)) = found else {
            self.in_transit.end(u64::from(len));
            return Ok(None);
        };
        self.counters.group_pa_hits.inc();
        self.settle_cut(request, &pa, cut, lead).map(Some)
    }

    /// Chooses the blocks of `cut`, the first of them for `lead`.
    pub(crate) fn settle_cut(
        &self,
        request: &Request<'_>,
        pa: &Arc<Preallocation>,
        cut: Cut,
        lead: &[PointerBlock],
    ) -> Result<Allocation, S::Error> {
        self.counters.pa_spent.add(u64::from(cut.len));
        let extent = Extent { group: pa.group, start: cut.start, len: cut.len };
        let (in_front, part) = lead_off(extent, lead);
        let got = self.settle(extent, part, in_front.iter().map(|(_, pa)| pa), cut.last.then_some(pa))?;
        self.keep_in_front(request, in_front);
        Ok(got)
    }

    /// Splits the found extent into the blocks for `lead`, the part to allocate, and a preallocation.
    fn settle_extent(
        &self,
        request: &Request<'_>,
        plan: Plan<'_>,
        whole: Extent,
        len: u32,
        lead: &[PointerBlock],
    ) -> Result<Allocation, S::Error> {
        let (in_front, found) = lead_off(whole, lead);
        let logical = match request.kind {
            Kind::Data { logical, .. } => logical.0,
            Kind::Metadata(_) => 0,
        };
        let plain = Extent { len: found.len.min(len), ..found };
        // The part to allocate, and the logical block of the first block found.
        let (part, first_logical) = match &plan {
            Plan::Plain => (plain, 0),
            Plan::Group => (plain, self.home(request)),
            Plan::Inode(_, range) => {
                let range_end = u64::from(range.start) + u64::from(range.len);
                let end = (u64::from(logical) + u64::from(len)).min(range_end);
                let first = place(*range, found.len, logical, end);
                let skip = logical.saturating_sub(first).min(found.len - 1);
                let n = u64::from(found.len - skip).min(end - u64::from(logical)).max(1) as u32;
                (Extent { start: found.start + skip, len: n, ..found }, first)
            }
        };
        let pa = (part.len < found.len).then(|| {
            let mut rest = RangeSet::of(found.start, found.len);
            rest.remove(part.start, part.len);
            Preallocation::new(found.group, found.start, found.len, first_logical, rest)
        });
        let got = self.settle(whole, part, pa.iter().chain(in_front.iter().map(|(_, pa)| pa)), None)?;
        self.keep_in_front(request, in_front);
        let Some(pa) = pa else { return Ok(got) };
        let block = self.geometry.block(pa.group, pa.start).0;
        let gone = match plan {
            Plan::Inode(owner, _) => {
                self.counters.inode_pa_new.inc();
                trace_point!(
                    ext4_mb_new_inode_pa,
                    group = pa.group.0,
                    pstart = block,
                    len = pa.len,
                    lstart = pa.logical
                );
                owner.add(pa)
            }
            Plan::Group => {
                self.counters.group_pa_new.inc();
                self.choice.chunk_placed(pa.logical, pa.group.0);
                trace_point!(ext4_mb_new_group_pa, group = pa.group.0, pstart = block, len = pa.len);
                self.own_locality_group().add(pa, self.rules.keeps_remnants)
            }
            // A plain search finds no more than the requested blocks.
            Plan::Plain => vec![pa],
        };
        self.discard_list(gone);
        Ok(got)
    }

    pub(crate) fn discard_list(&self, list: impl IntoIterator<Item = Arc<Preallocation>>) {
        for pa in list {
            self.discard(&pa);
        }
    }

    /// Completes a request whose blocks, `found`, are held and in flight. Afterwards `part` is chosen, and the rest
    /// belongs to the `new` preallocations. If the group turns out to be unusable, it is marked bad, and all of `found`
    /// is given up.
    pub(crate) fn settle<'p>(
        &self,
        found: Extent,
        part: Extent,
        new: impl IntoIterator<Item = &'p Arc<Preallocation>>,
        spent: Option<&Arc<Preallocation>>,
    ) -> Result<Allocation, S::Error> {
        let mut new = new.into_iter().peekable();
        // Counted before other threads can see it, because a thread that discards it decreases the count.
        let aside = u64::from(found.len - part.len);
        self.counters.pa_blocks.add(aside);
        let result = self.store.check(found.group).inspect_err(|_| self.counters.pa_spent.add(aside));
        match (&result, self.group_ref(found.group)) {
            (Ok(()), Some(group)) if new.peek().is_some() || spent.is_some() => {
                let mut inner = group.lock();
                for new in new {
                    inner.register(new);
                    group.set(PREALLOCATED);
                }
                if let Some(spent) = spent {
                    inner.unregister(spent);
                }
            }
            (Err(e), Some(group)) => {
                self.give_back(found.group, [(found.start, found.len)], spent);
                self.mark_bad(found.group, group, &mut group.lock(), "its bitmap cannot be changed");
                self.store.damaged(found.group, e);
            }
            _ => {}
        }
        self.in_transit.turned();
        self.in_transit.end(u64::from(found.len));
        result.map(|()| Allocation { start: self.geometry.block(part.group, part.start), len: part.len })
    }

    /// Cuts a range at group borders.
    pub(crate) fn split(&self, start: BlockNr, len: u64) -> crate::Result<Vec<Extent>> {
        let whole = start.0.checked_add(len).filter(|&end| len > 0 && end <= self.geometry.blocks_count);
        let (Some(end), Some((mut group, mut index))) = (whole, self.geometry.locate(start)) else {
            let group = self.geometry.locate(start).map_or(GroupNr(0), |(g, _)| g);
            let detail = format!("{len} blocks or clusters from here do not lie in the file system");
            return Err(Error::corrupt(group, self.geometry.named(start), detail));
        };
        let mut pieces = Vec::new();
        let mut left = end - start.0;
        while left > 0 {
            let n = u64::from(self.geometry.blocks_in_group(group).saturating_sub(index)).min(left);
            pieces.push(Extent { group, start: index, len: n as u32 });
            left -= n;
            (group, index) = (GroupNr(group.0 + 1), 0);
        }
        Ok(pieces)
    }

    /// Makes freed blocks available again, once their transaction is durable. Ranges of several calls may be merged.
    pub fn release(&self, freed: &[(BlockNr, u32)]) {
        for &(start, len) in freed {
            let Ok(pieces) = self.split(start, u64::from(len)) else {
                self.counters.bad_releases.inc();
                continue;
            };
            for piece in pieces {
                let n = self.give_back(piece.group, [(piece.start, piece.len)], None);
                self.counters.blocks_released.add(u64::from(n));
            }
        }
    }

    /// Calls `visit` with each free range of at least `min_len` blocks among the `len` blocks from `start` on, cut at
    /// group borders. These blocks are not allocated meanwhile. Unusable groups are skipped ([`GroupStore::damaged`]).
    /// Linux: `ext4_trim_fs`.
    ///
    /// # Errors
    /// The first error of `visit`.
    pub fn visit_free<E>(
        &self,
        start: BlockNr,
        len: u64,
        min_len: u32,
        mut visit: impl FnMut(BlockNr, u32) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for piece in self.split(start, len).unwrap_or_default() {
            // Counted first. Otherwise another thread may meanwhile conclude that these blocks do not exist.
            self.in_transit.begin(u64::from(piece.len));
            let visited = self.visit_free_in(&piece, min_len.max(1), &mut visit);
            self.in_transit.end(u64::from(piece.len));
            visited?;
        }
        Ok(())
    }

    fn visit_free_in<E>(
        &self,
        piece: &Extent,
        min_len: u32,
        visit: &mut impl FnMut(BlockNr, u32) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let (mut at, limit) = (piece.start, piece.start + piece.len);
        while let (Some(group), Ok(mut inner)) = (self.group_ref(piece.group), self.lock_loaded(piece.group, true)) {
            let found = inner.buddy.as_ref().and_then(|b| {
                let start = b.next_free(at).filter(|start| *start < limit)?;
                Some((start, b.next_used(start, limit).min(limit)))
            });
            let Some((start, end)) = found else { break };
            at = end;
            let (block, len) = (self.geometry.block(piece.group, start), end - start);
            // A damaged bitmap may show the file system's own blocks as free.
            if len < min_len || self.is_protected(block, u64::from(len)) {
                continue;
            }
            if !inner.buddy.as_mut().is_some_and(|b| b.mark_used(start, len)) || !inner.hold(start, len) {
                break;
            }
            self.publish(piece.group, group, &inner);
            drop(inner);
            let visited = visit(block, len);
            self.give_back(piece.group, [(start, len)], None);
            visited?;
        }
        // Blocks set aside for metadata are free, too.
        let mut at = piece.start;
        while let Some((start, len)) = self.borrow_aside_from(piece.group, at, limit) {
            at = start + len;
            let visited = if len < min_len { Ok(()) } else { visit(self.geometry.block(piece.group, start), len) };
            self.return_aside(piece.group, (start, len));
            visited?;
        }
        Ok(())
    }

    /// Promises `blocks` to delayed allocation. `root`: may use the root reserve.
    pub fn reserve(&self, blocks: u64, root: bool) -> crate::Result<()> {
        let who = if root { Privilege::Root } else { Privilege::Normal };
        if self.space.promise(blocks, who) { Ok(()) } else { Err(Error::NoSpace { wanted: blocks }) }
    }

    /// Promises to delayed allocation as many of `blocks` as are available; returns their number.
    pub fn reserve_up_to(&self, blocks: u64, root: bool) -> u64 {
        self.space.promise_up_to(blocks, if root { Privilege::Root } else { Privilege::Normal })
    }

    /// Promises blocks even if none are free: blocks that the caller has just freed, for delayed data that will replace
    /// them.
    pub fn reserve_freed(&self, blocks: u64) {
        self.space.promise_freed(blocks);
    }

    /// Withdraws a promise whose blocks were not (all) allocated.
    pub fn unreserve(&self, blocks: u64) {
        self.space.promise_returned(blocks);
    }

    /// Frees the unused preallocated blocks of an inode.
    pub fn discard_preallocations(&self, owner: &InodePreallocation) {
        let list = owner.take_all();
        if !list.is_empty() {
            trace_point!(ext4_discard_preallocations, ino = owner.ino().0, count = list.len());
        }
        self.discard_list(list);
    }

    /// Discards the preallocations of all inodes and locality groups; returns the number of blocks that became free.
    /// `allocate` does this itself before it reports that no block is free.
    pub fn discard_all_under_pressure(&self) -> u64 {
        self.discard_everything()
    }

    /// Blocks that are free on disk, including preallocated, freed-but-not-durable and reserved ones (statfs
    /// `f_bfree` before reservations).
    pub fn free_blocks(&self) -> u64 {
        self.space.free_on_disk()
    }

    /// Blocks promised to delayed allocation.
    pub fn reserved_blocks(&self) -> u64 {
        self.space.promised()
    }

    /// Blocks that a reservation could get: those free on disk, minus the promised ones, minus the reserves that the
    /// caller may not use (statfs `f_bavail` with `root` false).
    pub fn available_blocks(&self, root: bool) -> u64 {
        self.space.available(if root { Privilege::Root } else { Privilege::Normal })
    }

    /// Freed blocks that wait for [`Allocator::release`].
    pub fn pending_blocks(&self) -> u64 {
        let released = self.counters.blocks_released.get();
        self.counters.blocks_freed.get().saturating_sub(released)
    }

    /// The state of one group; None for a group behind the last.
    pub fn group(&self, group: GroupNr) -> Option<GroupState> {
        let g = self.group_ref(group)?;
        Some(GroupState {
            free: g.free(),
            fragments: g.fragments(),
            largest_order: g.largest_order().map(|o| o as u8),
            set_aside: g.lock().set_aside().map_or(0, RangeSet::total),
            loaded: g.has(LOADED),
            bad: g.has(BAD),
        })
    }

    /// Free blocks that are set aside for metadata ([`crate::meta_place`]).
    pub fn set_aside_blocks(&self) -> u64 {
        self.meta_zones.as_ref().map_or(0, MetaZones::total)
    }

    pub fn statistics(&self) -> Statistics {
        self.counters.snapshot()
    }

    /// Drops buddies until `target` bytes are free, first those not used since the last call; returns the bytes freed.
    /// Never waits for a lock.
    pub fn drop_unused_buddies(&self, target: usize) -> usize {
        self.shrink(target)
    }

    /// Bytes of the allocator's fixed memory, which grows with the disk.
    pub fn memory_fixed(&self) -> usize {
        let zones = self.meta_zones.as_ref().map_or(0, MetaZones::bytes);
        self.groups.len() * size_of::<Group>() + self.choice.bytes() + zones
    }

    /// Bytes held by buddies.
    pub fn memory_used(&self) -> usize {
        self.buddy_bytes.load(Ordering::Relaxed)
    }
}
