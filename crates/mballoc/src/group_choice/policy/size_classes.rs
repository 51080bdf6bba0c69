//! `size-classes`: the goal group, then the nearest following group of all orders that fit, wrapping around.
//!
//! Three families of sets, one set per power of two: groups by their largest free buddy, by their average free
//! extent, and by their free blocks. A pass takes the union of the orders that fit and walks it upwards from the
//! goal. So it stays near the goal and considers only groups that fit. A group moves between sets only when its order
//! changes.
//!
//! If nothing fits, the groups with the largest buddies come first, and the search ends as soon as it has an extent of
//! that length. So on an aged file system the answer is as good as after a walk over all groups, and is found at once.
//!
//! A set is a two-level bitmap of atomics: readers and writers share no lock.
//!
//! Drawbacks: groups whose buddy was never built are only in the third family (unless BLOCK_UNINIT), so a new mount
//! finds them only at [`Criterion::FreeFits`]. An order describes a group poorly if sizes lie between two powers of
//! two. The same holds if only a few groups of some order are left and [`Criterion::Power2`] leaves them to
//! directories.
//!
//! # Locking
//! None.

use super::{Criterion, GroupChoice, GroupInfo, GroupTest, LINUX_5_13, ORDERS, Pass, Rules, Streams, order_of};
use crate::group_choice::group_set::{Family, GroupSet};

/// Groups of the order just below the wanted length are worth trying, but only this many, because all of them may be
/// too small.
const BORDERLINE_MAX: u32 = 16;

static RULES: Rules = Rules {
    streams: Streams::PerProcessor,
    closed_files_apart: false,
    orlov_unscaled: false,
    skips_busy: true,
    ..LINUX_5_13
};

const LARGEST: usize = 0;
const AVERAGE: usize = 1;
const FREE: usize = 2;

/// The state of `size-classes`: the three families.
pub struct SizeClasses {
    families: [Family; 3],
}

impl SizeClasses {
    pub fn new(groups: u32) -> SizeClasses {
        SizeClasses { families: std::array::from_fn(|_| Family::new(groups, ORDERS)) }
    }

    /// The highest order at which some group is known to have a free buddy.
    fn highest_order(&self, limit: u32) -> Option<u32> {
        (0..ORDERS as u32).rev().find(|&o| self.families[LARGEST].sets()[o as usize].next(0, limit).is_some())
    }

    fn leg(&self, family: usize, from: usize, to: usize, tries: u32) -> Leg<'_> {
        Leg { sets: &self.families[family].sets()[from.min(to)..to], tries }
    }

    /// The sets that the pass walks over, in two consecutive legs.
    fn legs(&self, pass: &Pass) -> [Leg<'_>; 2] {
        let nothing = self.leg(FREE, 0, 0, 0);
        let fitting = |family| {
            let order = order_of(pass.len).unwrap_or(0) as usize;
            if pass.len.is_power_of_two() {
                [self.leg(family, order, ORDERS, u32::MAX), nothing]
            } else {
                let borderline = self.leg(family, order, order + 1, BORDERLINE_MAX);
                [self.leg(family, order + 1, ORDERS, u32::MAX), borderline]
            }
        };
        match pass.criterion {
            Criterion::Power2 => {
                let order = pass.order.unwrap_or(0) as usize;
                [self.leg(LARGEST, order, ORDERS, u32::MAX), nothing]
            }
            Criterion::AverageFits => fitting(AVERAGE),
            Criterion::FreeFits => fitting(FREE),
            // First the groups with the largest buddies, then all others.
            Criterion::Any => {
                let highest = self.highest_order(pass.limit).map_or(ORDERS, |o| o as usize);
                [self.leg(LARGEST, highest, ORDERS, u32::MAX), self.leg(FREE, 0, ORDERS, u32::MAX)]
            }
        }
    }

    /// The next group to examine at the pass's criterion. `pass.step`: 0 for the goal group, then the first leg behind
    /// the goal and before it, then the second leg. `pass.at`: the group behind the last one named. `pass.tries`: how
    /// many groups this leg has named.
    fn candidate(&self, pass: &mut Pass) -> Option<u32> {
        if pass.step == 0 {
            (pass.step, pass.at) = (1, u64::from(pass.goal) + 1);
            if pass.goal < pass.limit {
                return Some(pass.goal);
            }
        }
        let legs = self.legs(pass);
        loop {
            let (leg, before) = match pass.step {
                1 => (0, false),
                2 => (0, true),
                3 => (1, false),
                4 => (1, true),
                _ => return None,
            };
            let end = if before { pass.goal.min(pass.limit) } else { pass.limit };
            match legs[leg].nearest(pass.at as u32, end).filter(|_| pass.tries < legs[leg].tries) {
                Some(group) => {
                    pass.at = u64::from(group) + 1;
                    // Groups named by the first leg are not named again.
                    if leg == 0 || !legs[0].has(group) {
                        pass.tries += 1;
                        return Some(group);
                    }
                }
                None => {
                    pass.step += 1;
                    pass.at = if before { u64::from(pass.goal) + 1 } else { 0 };
                    if before {
                        pass.tries = 0;
                    }
                }
            }
        }
    }
}

/// The union of some sets, from which a limited number of groups is named.
#[derive(Clone, Copy)]
struct Leg<'a> {
    sets: &'a [GroupSet],
    tries: u32,
}

impl Leg<'_> {
    fn nearest(&self, from: u32, to: u32) -> Option<u32> {
        self.sets.iter().filter_map(|s| s.next(from, to)).min()
    }

    fn has(&self, g: u32) -> bool {
        self.nearest(g, g + 1).is_some()
    }
}

impl GroupChoice for SizeClasses {
    fn rules(&self) -> &'static Rules {
        &RULES
    }

    fn changed(&self, group: u32, info: GroupInfo) {
        self.families[LARGEST].put(group, info.largest());
        self.families[AVERAGE].put(group, info.average().and_then(order_of));
        self.families[FREE].put(group, order_of(info.free));
    }

    fn next(&self, pass: &mut Pass, good: GroupTest<'_>) -> Option<u32> {
        loop {
            while let Some(group) = self.candidate(pass) {
                if good(pass, group) {
                    return Some(group);
                }
            }
            if !pass.relax() {
                return None;
            }
        }
    }

    fn enough(&self, limit: u32) -> u32 {
        self.highest_order(limit).map_or(u32::MAX, |o| 1 << o)
    }

    fn bytes(&self) -> usize {
        self.families.iter().map(Family::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_group_that_fits_is_taken() {
        let choice = SizeClasses::new(100);
        for (g, order) in [(3u32, 9u32), (10, 5), (40, 9), (90, 12)] {
            choice
                .changed(g, GroupInfo { free: 1 << order, fragments: 1, largest_order: Some(order), run: 1 << order });
        }
        let named = |criterion, limit, len: u32| {
            let mut pass = Pass::new(criterion, 20, limit, len, Some(len.ilog2()));
            std::iter::from_fn(|| choice.next(&mut pass, &mut |p, _| p.criterion == criterion)).collect::<Vec<_>>()
        };
        assert_eq!(named(Criterion::Power2, 100, 512), [20, 40, 90, 3]);
        assert_eq!(named(Criterion::AverageFits, 100, 600), [20, 90, 40, 3]);
        assert_eq!(named(Criterion::Any, 100, 5000), [20, 90, 40, 3, 10]);
        assert_eq!(named(Criterion::Any, 41, 1), [20, 40, 3, 10], "the largest below the limit");
    }
}
