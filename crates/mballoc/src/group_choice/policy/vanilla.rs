//! `vanilla`: the goal group, then each following group in turn, wrapping around.
//! Linux: the loop of `ext4_mb_regular_allocator` with `mb_optimize_scan=0` (5.13).
//!
//! Its wart: on a large and full file system each criterion walks over every group.
//!
//! # Locking
//! None.

use super::Scan;

/// One turn around the groups.
pub struct Walk {
    goal: u32,
    limit: u32,
    done: u32,
}

impl Walk {
    pub fn new(scan: Scan) -> Walk {
        let goal = if scan.goal < scan.limit { scan.goal } else { 0 };
        Walk { goal, limit: scan.limit, done: 0 }
    }
}

impl Iterator for Walk {
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
