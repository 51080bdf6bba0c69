//! Which group to search next.
//!
//! # Locking
//! None.

/// The policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Linux with `mb_optimize_scan=0`: goal group, then every group in turn.
    Vanilla,
    /// Linux 6.1 and later with `mb_optimize_scan=1`: goal group, then groups that are known to fit.
    #[default]
    GoalFirst,
}

impl Policy {
    pub const ALL: [Policy; 2] = [Policy::Vanilla, Policy::GoalFirst];

    pub fn name(self) -> &'static str {
        match self {
            Policy::Vanilla => "vanilla",
            Policy::GoalFirst => "goal_first",
        }
    }
}
