//! The policies, side by side.
//!
//! | name | idea | Linux | judged by |
//! |---|---|---|---|
//! | `vanilla` | goal group, then each following group, once per criterion | 5.13, `mb_optimize_scan=0` | experiments/008 to 010 |
//! | `optimize-scan` | the head of a list of groups that fit; a group that changed goes to the tail | 5.13 to 5.19, `mb_optimize_scan=1` | experiments/008 to 010 |
//! | `goal-first` | goal group, then the head of such a list; a group of unchanged order stays in place | 6.1, `mb_optimize_scan=1` | experiments/008 to 010 |
//! | `ordered-groups` | forward from the goal among groups that fit, order by order; shorter goals before worse groups | 6.17, `mb_optimize_scan=1` | experiments/008 to 010 |
//! | `size-classes` | goal group, then the nearest of all orders that fit | none | experiments/008 to 010 |
//! | `sure-fit` | the nearest group that surely has a run; one home for all synced files | none | experiments/008 to 010 |
//!
//! Main types: [`Policy`] (the choice at mount), [`GroupChoice`] (the interface of a policy), [`Rules`] (other
//! differences between generations, as data), [`Pass`] (the progress of one request through the groups). A pass names
//! each group at most once per criterion (at the last criterion a group may be named again) and only groups below its
//! limit. A named group is a hint that the search checks again. A group with a free block is named at the last
//! criterion at the latest.
//!
//! Deliberate differences from Linux, from all its generations here:
//!
//! - The goal group's bitmap is read even at the strict criteria. Linux skips a group that it has not read, so the
//!   first files after a mount miss their own group.
//! - Busy and idle file systems are treated alike (Linux: `ext4_fs_is_busy`). So are rotating and other disks
//!   (`mb_max_linear_groups` is 0), and files with and without extents (Linux serves the latter without lists).
//! - A group that is BLOCK_UNINIT is listed from the mount on, from the last group down. Linux lists it when its buddy
//!   is built, in batches of 8 flex groups, each from its last group down.
//! - `optimize-scan`'s tree of averages is searched for the smallest sufficient one, as intended. Linux's comparison
//!   was reversed: it took the root or, usually, nothing.
//! - `ordered-groups` trims a length on both sides of the goal before it trims further, and down to the blocks needed.
//! - A stream's goal starts at that of its first file, not at group 0, and does not move when the goal block itself is
//!   allocated.
//! - If no run is aligned to the stripe, an unaligned run is taken from the same group at once.
//!
//! # Locking
//! [`GroupChoice::changed`] is called under the group's lock; the lists of `optimize-scan` and `goal-first` have locks
//! of their own ([`crate::lock::LISTS`]), everything else takes none.

pub mod goal_first;
mod lists;
pub mod optimize_scan;
pub mod ordered_groups;
pub mod size_classes;
pub mod sure_fit;
pub mod vanilla;

#[cfg(test)]
mod contract;

use crate::Geometry;

extant_base::policies! {
    /// The policies.
    pub enum Policy: "mb_policy", "in which block group free blocks are looked for", default SureFit {
        Vanilla = "vanilla", "goal group, then each following group in turn (Linux 5.13: mb_optimize_scan=0)";
        OptimizeScan = "optimize-scan", "the head of a list of groups that fit (Linux 5.13 to 5.19: mb_optimize_scan=1)";
        GoalFirst = "goal-first", "goal group, then the head of a list of groups that fit (Linux 6.1: mb_optimize_scan=1)";
        OrderedGroups = "ordered-groups", "forward from the goal among groups that fit (Linux 6.17: mb_optimize_scan=1)";
        SizeClasses = "size-classes", "goal group, then the nearest group that is known to fit";
        SureFit = "sure-fit", "the nearest group that surely has a run; one home for what is synced";
    }
}

/// The strictness of a search. Linux: `enum criteria`; its GOAL_LEN_SLOW is [`Criterion::FreeFits`], its
/// BEST_AVAIL_LEN a shorter length at [`Criterion::AverageFits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Criterion {
    /// A whole buddy of the length, which is a power of two, is free.
    Power2 = 0,
    /// The average free extent is long enough.
    AverageFits = 1,
    /// Enough blocks are free, perhaps in pieces.
    FreeFits = 2,
    /// Any block is free.
    Any = 3,
}

impl Criterion {
    pub const ALL: [Criterion; 4] = [Criterion::Power2, Criterion::AverageFits, Criterion::FreeFits, Criterion::Any];
}

/// How a group is searched for free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupSearch {
    /// Free runs are measured one by one, up to a limit (Linux: `ext4_mb_complex_scan_group`).
    Measured,
    /// The first run that is long enough, else the longest.
    Direct,
}

/// Where to search for the next chunk of a growing file that cannot continue its last chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// Near the file's other blocks.
    None,
    /// Where any growing file got its last chunk (Linux until 6.16: `s_mb_last_group`).
    One,
    /// One goal per processor; each file uses one of them (Linux 6.17: `s_mb_last_groups`).
    PerProcessor,
}

/// How much is set aside for a growing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Up to the next size in a table, at most 8 MiB (Linux: `ext4_mb_normalize_request`).
    Table,
    /// This many times the file's size, while that is a small part of the free space. A file that requests more blocks
    /// counts as growing, however small it is.
    Times(u32),
}

/// The differences between generations other than the order of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub streams: Streams,
    pub growth: Growth,
    /// Small files that are not open for writing get blocks of their own (Linux until 6.0), instead of sharing
    /// chunks.
    pub closed_files_apart: bool,
    /// The bound on the directories in a flex group is that of a single group (Linux until 6.0). Used for the placement
    /// of directories.
    pub orlov_unscaled: bool,
    /// Whether a group whose lock is held is skipped, except at [`Criterion::Any`].
    pub skips_busy: bool,
    /// A goal length may shrink by this many powers of two before a worse group is taken (Linux:
    /// `mb_best_avail_max_trim_order`).
    pub trim_orders: u32,
    /// Chunks that are too short for a request stay reserved for smaller requests (Linux); otherwise their blocks are
    /// freed.
    pub keeps_remnants: bool,
    /// Small files that are written together get one run ([`crate::Allocator::choose_with`]), even while other files
    /// are being written.
    pub together: bool,
    pub within: GroupSearch,
}

/// Linux 5.13. The rules of other policies are given as differences from these.
pub const LINUX_5_13: Rules = Rules {
    streams: Streams::One,
    growth: Growth::Table,
    closed_files_apart: true,
    orlov_unscaled: true,
    skips_busy: false,
    trim_orders: 0,
    keeps_remnants: true,
    together: false,
    within: GroupSearch::Measured,
};

/// The numbers that a group publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupInfo {
    pub free: u32,
    /// Free runs; 0 if unknown.
    pub fragments: u32,
    pub largest_order: Option<u32>,
    /// The length of a free run that exists.
    pub run: u32,
}

/// The progress of one request through the groups.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// The group at which the pass starts; below `limit`.
    pub goal: u32,
    /// Only groups below this one may be named.
    pub limit: u32,
    pub criterion: Criterion,
    /// The number of blocks that the named group should have: `wanted`, or fewer if the policy trims.
    pub len: u32,
    /// Blocks wanted.
    pub wanted: u32,
    /// log2 of `len`, if a whole buddy of that length is wanted.
    pub order: Option<u32>,
    /// Whether the blocks are for file data.
    pub data: bool,
    /// The minimum number of blocks that the caller needs; trimming stops above it.
    pub least: u32,
    /// Private state of the policy, 0 at the start of each criterion; [`Pass::walk`] counts in `step`.
    pub step: u32,
    pub at: u64,
    pub tries: u32,
    /// More private state of the policy, 0 at the start.
    pub guesses: u32,
}

impl Pass {
    /// A pass that begins at criterion `from`.
    pub fn new(from: Criterion, goal: u32, limit: u32, len: u32, order: Option<u32>) -> Pass {
        Pass {
            goal: if goal < limit { goal } else { 0 },
            limit,
            criterion: from,
            len,
            wanted: len,
            order,
            data: true,
            least: 1,
            step: 0,
            at: 0,
            tries: 0,
            guesses: 0,
        }
    }

    /// Moves to the next criterion; false if there is none.
    pub fn relax(&mut self) -> bool {
        let next = Criterion::ALL.into_iter().find(|&c| c > self.criterion);
        self.criterion = next.unwrap_or(self.criterion);
        (self.step, self.at, self.tries) = (0, 0, 0);
        self.len = self.wanted;
        next.is_some()
    }

    /// The next group of a walk that starts at the goal and visits each group once, wrapping around.
    pub fn walk(&mut self) -> Option<u32> {
        if self.step >= self.limit {
            return None;
        }
        self.step += 1;
        Some(self.group_behind(self.step - 1))
    }

    /// The next good group of such a walk.
    pub fn walk_to(&mut self, good: GroupTest<'_>) -> Option<u32> {
        while let Some(group) = self.walk() {
            if good(self, group) {
                return Some(group);
            }
        }
        None
    }

    /// As [`Pass::walk_to`], but continues through the criteria.
    pub fn walk_on(&mut self, good: GroupTest<'_>) -> Option<u32> {
        loop {
            let found = self.walk_to(good);
            if found.is_some() || !self.relax() {
                return found;
            }
        }
    }

    /// The group at distance `far` behind the goal, wrapping around at the limit.
    pub fn group_behind(&self, far: u32) -> u32 {
        ((u64::from(self.goal) + u64::from(far)) % u64::from(self.limit.max(1))) as u32
    }
}

/// Whether a group looks good enough for the pass; the group is counted as considered.
pub type GroupTest<'a> = &'a mut dyn FnMut(&Pass, u32) -> bool;

/// The interface of a policy.
pub trait GroupChoice: Send + Sync {
    fn rules(&self) -> &'static Rules;

    /// Reports that a group's numbers have changed, or that the mount begins and its bitmap has not been read yet.
    /// Called under the group's lock.
    fn changed(&self, group: u32, info: GroupInfo);

    /// The next group to search; moves the pass to the next criterion if no group is left. None if no block is free.
    fn next(&self, pass: &mut Pass, good: GroupTest<'_>) -> Option<u32>;

    /// At [`Criterion::Any`], an extent of this length ends the search, because longer ones are unlikely.
    fn enough(&self, limit: u32) -> u32 {
        let _ = limit;
        u32::MAX
    }

    /// The home of a small file; files with the same home share chunks. `goal`: the group near which the file should be
    /// placed; `synced`: an fsync waits for it.
    fn home(&self, goal: u32, synced: bool) -> u32 {
        let _ = (goal, synced);
        0
    }

    /// The length of the next chunk for `home`, where chunks usually have `usual` blocks.
    fn chunk_len(&self, home: u32, usual: u32) -> u32 {
        let _ = home;
        usual
    }

    /// Where to search for the next chunk for `home`; None: near the goal of the request.
    fn chunk_goal(&self, home: u32) -> Option<u32> {
        let _ = home;
        None
    }

    /// Reports that a chunk for `home` was found in `group`.
    fn chunk_placed(&self, home: u32, group: u32) {
        let _ = (home, group);
    }

    /// Bytes of the policy's memory, which grows with the disk.
    fn bytes(&self) -> usize;
}

impl Policy {
    /// The state of the policy for one mount.
    pub fn state(self, geometry: &Geometry) -> Box<dyn GroupChoice> {
        let groups = geometry.groups;
        match self {
            Policy::Vanilla => Box::new(vanilla::Vanilla),
            Policy::OptimizeScan => Box::new(optimize_scan::OptimizeScan::new(groups)),
            Policy::GoalFirst => Box::new(goal_first::GoalFirst::new(groups)),
            Policy::OrderedGroups => Box::new(ordered_groups::OrderedGroups::new(groups)),
            Policy::SizeClasses => Box::new(size_classes::SizeClasses::new(groups)),
            Policy::SureFit => Box::new(sure_fit::SureFit::new(geometry)),
        }
    }
}

/// The maximum number of buddy orders: groups have fewer than 2^20 blocks.
pub const ORDERS: usize = 20;

/// The order of `n` blocks; None for 0.
fn order_of(n: u32) -> Option<u32> {
    n.checked_ilog2().map(|o| o.min(ORDERS as u32 - 1))
}

impl GroupInfo {
    /// The order of the largest free buddy, if known.
    fn largest(&self) -> Option<u32> {
        self.largest_order.filter(|_| self.free > 0).map(|o| o.min(ORDERS as u32 - 1))
    }

    /// The average length of a free extent, if known.
    fn average(&self) -> Option<u32> {
        self.free.checked_div(self.fragments)
    }
}
