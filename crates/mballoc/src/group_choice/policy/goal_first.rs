//! `goal_first`: the goal group, then the nearest following group that is known to fit, wrapping around.
//! Linux: `ext4_mb_choose_next_group` after commit 4fca50d440cc (6.1) and with the ordered sets of 6.17.
//!
//! Three families of sets, one set per power of two: groups by their largest free buddy, by their average free extent,
//! by their free blocks. A pass takes the union of the orders that fit and walks it upwards from the goal, so it keeps
//! near the goal and considers only groups that fit, instead of all. A group moves between sets only when its order
//! changes.
//!
//! When nothing fits, the groups with the largest buddies come first and the search ends as soon as it has an extent as
//! long as those: on a worn file system the answer is as good as after a walk over all groups, and found at once.
//!
//! A set is a two-level bitmap of atomics: readers and writers share no lock.
//!
//! Its wart: groups whose buddy was never built are only in the third family (unless BLOCK_UNINIT), so a fresh mount
//! learns of them at [`Criterion::FreeFits`].
//!
//! # Locking
//! None.

use extant_base::sync::atomic::{AtomicU64, Ordering};

use super::{Criterion, GroupInfo, Scan};

/// Orders per family: group sizes are below 2^20 blocks.
const ORDERS: usize = 20;

/// Groups of the order just below the wanted length are worth a look, but only so many: all of them may be too small.
const BORDERLINE_MAX: u32 = 16;

/// A set of group numbers.
struct GroupSet {
    words: Box<[AtomicU64]>,
    /// Which words may be non-zero.
    summary: Box<[AtomicU64]>,
}

impl GroupSet {
    fn new(groups: u32) -> GroupSet {
        let make = |n: u32| (0..n).map(|_| AtomicU64::new(0)).collect();
        let words = groups.div_ceil(64);
        GroupSet { words: make(words), summary: make(words.div_ceil(64)) }
    }

    fn insert(&self, g: u32) {
        let word = g / 64;
        if let (Some(w), Some(s)) = (self.words.get(word as usize), self.summary.get(word as usize / 64)) {
            w.fetch_or(1 << (g % 64), Ordering::SeqCst);
            s.fetch_or(1 << (word % 64), Ordering::SeqCst);
        }
    }

    fn remove(&self, g: u32) {
        let word = g / 64;
        if let (Some(w), Some(s)) = (self.words.get(word as usize), self.summary.get(word as usize / 64)) {
            let bit = 1 << (g % 64);
            if w.fetch_and(!bit, Ordering::SeqCst) & !bit == 0 {
                s.fetch_and(!(1 << (word % 64)), Ordering::SeqCst);
                // Somebody may have inserted between the two; then the summary has to say so again.
                if w.load(Ordering::SeqCst) != 0 {
                    s.fetch_or(1 << (word % 64), Ordering::SeqCst);
                }
            }
        }
    }

    /// The smallest member in `from..to`.
    fn next(&self, from: u32, to: u32) -> Option<u32> {
        if from >= to {
            return None;
        }
        let first = from / 64;
        let member = self.words.get(first as usize)?.load(Ordering::Relaxed) & (u64::MAX << (from % 64));
        if member != 0 {
            return Some(first * 64 + member.trailing_zeros()).filter(|&g| g < to);
        }
        let mut at = first + 1;
        let end = to.div_ceil(64);
        while at < end {
            let summary = self.summary.get(at as usize / 64)?.load(Ordering::Relaxed) & (u64::MAX << (at % 64));
            if summary == 0 {
                at = (at / 64 + 1) * 64;
                continue;
            }
            at = at / 64 * 64 + summary.trailing_zeros();
            let member = self.words.get(at as usize)?.load(Ordering::Relaxed);
            if member != 0 {
                return Some(at * 64 + member.trailing_zeros()).filter(|&g| g < to);
            }
            at += 1;
        }
        None
    }
}

/// In which sets a group is: order + 1 per family, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed([u8; 3]);

const LARGEST: usize = 0;
const AVERAGE: usize = 1;
const FREE: usize = 2;

/// The three families.
pub struct Sets {
    families: [Vec<GroupSet>; 3],
}

fn order_of(n: u32) -> u8 {
    n.checked_ilog2().map_or(0, |o| (o as u8).min(ORDERS as u8 - 1) + 1)
}

impl Sets {
    pub fn new(groups: u32) -> Sets {
        Sets { families: std::array::from_fn(|_| (0..ORDERS).map(|_| GroupSet::new(groups)).collect()) }
    }

    pub fn publish(&self, group: u32, listed: &mut Listed, info: GroupInfo) {
        let largest =
            if info.free > 0 { info.largest_order.map_or(0, |o| (o as u8).min(ORDERS as u8 - 1) + 1) } else { 0 };
        let average = info.free.checked_div(info.fragments).map_or(0, order_of);
        let new = [largest, average, order_of(info.free)];
        for ((sets, &new), old) in self.families.iter().zip(&new).zip(&mut listed.0) {
            if *old != new {
                // In before out: nobody who looks meanwhile misses the group.
                if new > 0 {
                    sets[new as usize - 1].insert(group);
                }
                if *old > 0 {
                    sets[*old as usize - 1].remove(group);
                }
                *old = new;
            }
        }
    }

    /// The highest order of which a group is known to have a free buddy.
    pub fn highest_order(&self, limit: u32) -> Option<u32> {
        (0..ORDERS as u32).rev().find(|&o| self.families[LARGEST][o as usize].next(0, limit).is_some())
    }

    pub fn pass(&self, scan: Scan) -> Pass<'_> {
        let goal = if scan.goal < scan.limit { scan.goal } else { 0 };
        let leg = |family: usize, from: usize, to: usize| Leg {
            sets: &self.families[family][from.min(to)..to],
            tries: u32::MAX,
        };
        let nothing = leg(FREE, 0, 0);
        let fitting = |family| {
            let order = scan.len.max(1).ilog2() as usize;
            if scan.len.is_power_of_two() {
                [leg(family, order, ORDERS), nothing]
            } else {
                [leg(family, order + 1, ORDERS), Leg { tries: BORDERLINE_MAX, ..leg(family, order, order + 1) }]
            }
        };
        let legs = match scan.criterion {
            Criterion::Power2 => [leg(LARGEST, scan.order as usize, ORDERS), nothing],
            Criterion::AverageFits => fitting(AVERAGE),
            Criterion::FreeFits => fitting(FREE),
            // The largest first, then whatever is left.
            Criterion::Any => {
                let highest = self.highest_order(scan.limit).map_or(ORDERS, |o| o as usize);
                [leg(LARGEST, highest, ORDERS), leg(FREE, 0, ORDERS)]
            }
        };
        Pass { legs, leg: 0, goal, limit: scan.limit, stage: Stage::Goal }
    }
}

/// The union of some sets, walked once around.
#[derive(Clone, Copy)]
struct Leg<'a> {
    sets: &'a [GroupSet],
    /// Groups to name at most.
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

#[derive(Clone, Copy)]
enum Stage {
    Goal,
    /// From this group on, up to the limit.
    After(u32),
    /// From this group on, up to the goal.
    Before(u32),
}

/// One pass over the groups that fit.
pub struct Pass<'a> {
    legs: [Leg<'a>; 2],
    /// The leg under way.
    leg: usize,
    goal: u32,
    limit: u32,
    stage: Stage,
}

impl Iterator for Pass<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        loop {
            let after = Stage::After(self.goal.saturating_add(1));
            if let Stage::Goal = self.stage {
                self.stage = after;
                if self.goal < self.limit {
                    return Some(self.goal);
                }
            }
            let first_leg = self.legs[0];
            let second = self.leg == 1;
            let leg = self.legs.get_mut(self.leg)?;
            let found = match self.stage {
                _ if leg.tries == 0 => None,
                Stage::Goal => None,
                Stage::After(from) => leg.nearest(from, self.limit),
                Stage::Before(from) => leg.nearest(from, self.goal.min(self.limit)),
            };
            match (found, self.stage) {
                (Some(g), stage) => {
                    self.stage = match stage {
                        Stage::Before(_) => Stage::Before(g + 1),
                        _ => Stage::After(g + 1),
                    };
                    // What the first leg named is not named again.
                    if !(second && first_leg.has(g)) {
                        leg.tries -= 1;
                        return Some(g);
                    }
                }
                (None, Stage::After(_)) => self.stage = Stage::Before(0),
                (None, _) => {
                    self.leg += 1;
                    self.stage = after;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::rng::Rng;

    #[test]
    fn set_agrees_with_a_plain_array() {
        let (n, mut rng) = (10_000u32, Rng::new(5));
        let set = GroupSet::new(n);
        let mut model = vec![false; n as usize];
        for _ in 0..30_000 {
            let g = if rng.one_in(2) { rng.below(u64::from(n)) } else { rng.below(70) } as u32;
            if rng.one_in(3) {
                set.insert(g);
                model[g as usize] = true;
            } else {
                set.remove(g);
                model[g as usize] = false;
            }
            let from = rng.below(u64::from(n)) as u32;
            let to = from + rng.below(u64::from(n - from)) as u32;
            assert_eq!(set.next(from, to), (from..to).find(|&g| model[g as usize]));
        }
    }

    #[test]
    fn takes_the_nearest_that_fits() {
        let sets = Sets::new(100);
        let mut listed = [Listed::default(); 100];
        for (g, order) in [(3u32, 9u32), (10, 5), (40, 9), (90, 12)] {
            let info = GroupInfo { free: 1 << order, fragments: 1, largest_order: Some(order) };
            sets.publish(g, &mut listed[g as usize], info);
        }
        let scan = |criterion, len: u32| Scan { goal: 20, limit: 100, criterion, len, order: len.max(1).ilog2() };
        assert_eq!(sets.pass(scan(Criterion::Power2, 512)).collect::<Vec<_>>(), [20, 40, 90, 3]);
        assert_eq!(sets.pass(scan(Criterion::AverageFits, 600)).collect::<Vec<_>>(), [20, 90, 40, 3]);
        assert_eq!(sets.pass(scan(Criterion::Any, 5000)).collect::<Vec<_>>(), [20, 90, 40, 3, 10]);
        let near = Scan { limit: 41, ..scan(Criterion::Any, 1) };
        assert_eq!(sets.pass(near).collect::<Vec<_>>(), [20, 40, 3, 10], "the largest below the limit");
    }
}
