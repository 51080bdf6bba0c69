//! `vanilla`: the goal group, then each following group in turn, wrapping around.
//! Linux: the loop of `ext4_mb_regular_allocator` with `mb_optimize_scan=0` (5.13).
//!
//! Its wart: on a large and full file system each criterion walks over every group.
//!
//! # Locking
//! None.

use super::Quest;

/// One turn around the groups.
pub struct Turn {
    goal: u32,
    limit: u32,
    done: u32,
}

impl Turn {
    pub fn new(quest: Quest) -> Turn {
        let goal = if quest.goal < quest.limit { quest.goal } else { 0 };
        Turn { goal, limit: quest.limit, done: 0 }
    }
}

impl Iterator for Turn {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.done >= self.limit {
            return None;
        }
        let group = (u64::from(self.goal) + u64::from(self.done)) % u64::from(self.limit);
        self.done += 1;
        Some(group as u32)
    }
}
