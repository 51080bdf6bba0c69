//! The policies, side by side.
//!
//! | name | idea | Linux | judged by |
//! |---|---|---|---|
//! | `vanilla` | goal group, then each following group, once per criterion | `mb_optimize_scan=0`, 5.13 | `contract`, locality test |
//! | `goal-first` | goal group, then the nearest group that is known to fit | `mb_optimize_scan=1` after Kara's series (6.1) and the ordered sets of 6.17 | `contract`, locality test |
//!
//! Main types: [`Policy`] (the choice at mount), [`GroupChoice`] (its state), [`Cursor`] (one pass over the groups for
//! one criterion). A cursor names each group at most once and only groups below its limit; what it names is a hint that
//! the search checks again. What `goal-first` skips at criterion 3 has nothing free.
//!
//! # Locking
//! [`GroupChoice::publish`] is called under the group's lock; everything else takes none.

pub mod goal_first;
pub mod vanilla;

#[cfg(test)]
mod contract;

extant_base::policies! {
    /// The policies.
    pub enum Policy: "mb_policy", "in which block group free blocks are looked for", default GoalFirst {
        Vanilla = "vanilla", "goal group, then each following group in turn (Linux: mb_optimize_scan=0)";
        GoalFirst = "goal-first", "goal group, then the nearest group that is known to fit (Linux 6.17: mb_optimize_scan=1)";
    }
}

/// How picky a pass is. Linux: `enum criteria`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Criterion {
    /// A whole buddy of the (power of two) length.
    Power2 = 0,
    /// The average free extent is long enough.
    AverageFits = 1,
    /// As many blocks are free, in pieces.
    FreeFits = 2,
    /// Anything free.
    Any = 3,
}

impl Criterion {
    pub const ALL: [Criterion; 4] = [Criterion::Power2, Criterion::AverageFits, Criterion::FreeFits, Criterion::Any];
}

/// What a pass looks for.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// Where it starts.
    pub goal: u32,
    /// Only groups below this.
    pub limit: u32,
    pub criterion: Criterion,
    pub len: u32,
    /// log2 of `len`, in a pass for [`Criterion::Power2`].
    pub order: u32,
}

/// What a group publishes about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupInfo {
    pub free: u32,
    /// 0: unknown.
    pub fragments: u32,
    pub largest_order: Option<u32>,
}

/// The state of the policy of one mount.
pub enum GroupChoice {
    Vanilla,
    GoalFirst(goal_first::Sets),
}

impl GroupChoice {
    pub fn new(policy: Policy, groups: u32) -> GroupChoice {
        match policy {
            Policy::Vanilla => GroupChoice::Vanilla,
            Policy::GoalFirst => GroupChoice::GoalFirst(goal_first::Sets::new(groups)),
        }
    }

    /// Tells that a group's info changed; `listed` is this policy's note in the group. Under the group's lock.
    pub fn publish(&self, group: u32, listed: &mut goal_first::Listed, info: GroupInfo) {
        match self {
            GroupChoice::Vanilla => {}
            GroupChoice::GoalFirst(sets) => sets.publish(group, listed, info),
        }
    }

    /// True when a group whose lock is taken is better passed over (except at [`Criterion::Any`]).
    pub fn skips_busy(&self) -> bool {
        matches!(self, GroupChoice::GoalFirst(_))
    }

    /// At [`Criterion::Any`], an extent of this length ends the search: longer ones are hardly to be found.
    pub fn enough(&self, limit: u32) -> u32 {
        match self {
            GroupChoice::Vanilla => u32::MAX,
            GroupChoice::GoalFirst(sets) => sets.highest_order(limit).map_or(u32::MAX, |o| 1 << o),
        }
    }

    pub fn pass(&self, scan: Scan) -> Cursor<'_> {
        match self {
            GroupChoice::Vanilla => Cursor::Vanilla(vanilla::Walk::new(scan)),
            GroupChoice::GoalFirst(sets) => Cursor::GoalFirst(sets.pass(scan)),
        }
    }
}

/// One pass.
pub enum Cursor<'a> {
    Vanilla(vanilla::Walk),
    GoalFirst(goal_first::Pass<'a>),
}

impl Iterator for Cursor<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        match self {
            Cursor::Vanilla(turn) => turn.next(),
            Cursor::GoalFirst(pass) => pass.next(),
        }
    }
}
