//! `vanilla`: the goal group, then each following group in turn, wrapping around.
//! Linux: the loop of `ext4_mb_regular_allocator` with `mb_optimize_scan=0` (5.13).
//!
//! Drawbacks: on a large and full file system, each criterion walks over every group. All growing files follow one
//! goal. A small file that is closed before writeback gets no chunk.
//!
//! # Locking
//! None.

use super::{GroupChoice, GroupInfo, GroupTest, LINUX_5_13, Pass, Rules};

/// This policy has no state.
pub struct Vanilla;

impl GroupChoice for Vanilla {
    fn rules(&self) -> &'static Rules {
        &LINUX_5_13
    }

    fn changed(&self, _: u32, _: GroupInfo) {}

    fn next(&self, pass: &mut Pass, good: GroupTest<'_>) -> Option<u32> {
        pass.walk_on(good)
    }

    fn bytes(&self) -> usize {
        0
    }
}
