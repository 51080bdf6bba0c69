//! `ordered-groups`: sets of groups that fit, ordered by number. The walk goes forward from the goal, order by order,
//! and then through the groups before the goal. If no group fits, shorter lengths are tried before worse groups.
//! Growing files follow several goals, and a group whose lock is held is skipped. Linux: `ext4_mb_scan_groups` of 6.17,
//! `mb_optimize_scan=1`.
//!
//! Drawbacks: the orders are walked one after the other, so a distant group of a small order comes before a nearby one
//! of a larger order. If nothing fits, the last two criteria walk over every group.
//!
//! # Locking
//! None.

use super::{Criterion, GroupChoice, GroupInfo, GroupTest, LINUX_5_13, ORDERS, Pass, Rules, Streams, order_of};
use crate::group_choice::group_set::Family;

static RULES: Rules = Rules {
    streams: Streams::PerProcessor,
    closed_files_apart: false,
    orlov_unscaled: false,
    skips_busy: true,
    trim_orders: 3,
    ..LINUX_5_13
};

/// The next group of a pass: from the goal on, order by order, then before the goal. `pass.step` encodes the order and
/// the side of the goal; `pass.at` is the group behind the last one named.
fn next(family: &Family, pass: &mut Pass, least: u32) -> Option<u32> {
    loop {
        let (side, order) = (pass.step as usize / ORDERS, pass.step as usize % ORDERS);
        let (from, to) = if side == 0 { (pass.goal, pass.limit) } else { (0, pass.goal) };
        if side > 1 {
            return None;
        }
        if order >= least as usize
            && let Some(group) = family.sets()[order].next(from.max(pass.at as u32), to)
        {
            pass.at = u64::from(group) + 1;
            return Some(group);
        }
        pass.step += 1;
        pass.at = 0;
    }
}

/// The state of `ordered-groups`; see the module.
pub struct OrderedGroups {
    largest: Family,
    averages: Family,
}

impl OrderedGroups {
    pub fn new(groups: u32) -> OrderedGroups {
        OrderedGroups { largest: Family::new(groups, ORDERS), averages: Family::new(groups, ORDERS) }
    }

    /// Shortens the length at the same criterion; false if it would become too short. `pass.tries` counts the calls.
    fn trim(pass: &mut Pass) -> bool {
        let order = order_of(pass.len).unwrap_or(0);
        // A length that is not a power of two is rounded down first.
        let shorter = if pass.len.is_power_of_two() { 1 << order.saturating_sub(1) } else { 1 << order };
        if pass.tries >= RULES.trim_orders || shorter < pass.least || shorter == pass.len {
            return false;
        }
        let tries = pass.tries + 1;
        (pass.len, pass.order) = (shorter, pass.order.map(|_| shorter.ilog2()));
        (pass.step, pass.at, pass.tries) = (0, 0, tries);
        true
    }
}

impl GroupChoice for OrderedGroups {
    fn rules(&self) -> &'static Rules {
        &RULES
    }

    fn changed(&self, group: u32, info: GroupInfo) {
        self.largest.put(group, info.largest());
        self.averages.put(group, info.average().and_then(order_of));
    }

    fn next(&self, pass: &mut Pass, good: GroupTest<'_>) -> Option<u32> {
        loop {
            loop {
                let group = match pass.criterion {
                    Criterion::Power2 => next(&self.largest, pass, pass.order.unwrap_or(0)),
                    Criterion::AverageFits => next(&self.averages, pass, order_of(pass.len).unwrap_or(0)),
                    Criterion::FreeFits | Criterion::Any => pass.walk(),
                };
                match group {
                    Some(group) if good(pass, group) => return Some(group),
                    Some(_) => {}
                    None if pass.criterion == Criterion::AverageFits && OrderedGroups::trim(pass) => {}
                    None => break,
                }
            }
            if !pass.relax() {
                return None;
            }
        }
    }

    fn bytes(&self) -> usize {
        self.largest.bytes() + self.averages.bytes()
    }
}
