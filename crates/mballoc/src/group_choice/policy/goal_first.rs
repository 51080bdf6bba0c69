//! `goal-first`: the goal group, then the head of the list of groups whose largest free buddy, or whose average free
//! extent, has the wanted order. A group keeps its place in its list while its order stays the same. Linux:
//! `ext4_mb_choose_next_group` of 6.1 (commits 4fca50d440cc, 1940265ede66, 83e80a6e3543), `mb_optimize_scan=1`.
//!
//! Drawback: once the goal group has nothing that fits, files go to the head of the list, wherever that is.
//!
//! # Locking
//! [`crate::lock::LISTS`], under the group's lock or none.

use super::lists::Lists;
use super::{Criterion, GroupChoice, GroupInfo, GroupTest, LINUX_5_13, Pass, Rules, order_of};

static RULES: Rules = Rules { closed_files_apart: false, orlov_unscaled: false, ..LINUX_5_13 };

/// The state of `goal-first`; see the module.
pub struct GoalFirst {
    largest: Lists,
    averages: Lists,
}

impl GoalFirst {
    pub fn new(groups: u32) -> GoalFirst {
        GoalFirst { largest: Lists::new(groups), averages: Lists::new(groups) }
    }
}

impl GroupChoice for GoalFirst {
    fn rules(&self) -> &'static Rules {
        &RULES
    }

    fn changed(&self, group: u32, info: GroupInfo) {
        self.largest.put(group, info.largest(), true);
        self.averages.put(group, info.average().and_then(order_of), true);
    }

    fn next(&self, pass: &mut Pass, good: GroupTest<'_>) -> Option<u32> {
        loop {
            let (lists, order) = match pass.criterion {
                Criterion::Power2 => (&self.largest, pass.order.unwrap_or(0)),
                Criterion::AverageFits => (&self.averages, order_of(pass.len).unwrap_or(0)),
                Criterion::FreeFits | Criterion::Any => return pass.walk_on(good),
            };
            // The goal group comes before the lists.
            if pass.tries == 0 {
                pass.tries = 1;
                if pass.goal < pass.limit && good(pass, pass.goal) {
                    return Some(pass.goal);
                }
            }
            let likes = |pass: &Pass, g: u32| g != pass.goal && good(pass, g);
            let found = lists.next(order, pass, likes);
            if found.is_some() || !pass.relax() {
                return found;
            }
        }
    }

    fn bytes(&self) -> usize {
        self.largest.bytes() + self.averages.bytes()
    }
}
