//! `optimize-scan`: the head of the list of groups whose largest free buddy has the wanted order. If no whole buddy
//! is wanted, the group with the smallest average free extent that is long enough. Linux: `ext4_mb_choose_next_group`
//! of 5.13 to 5.19, with `mb_optimize_scan=1`.
//!
//! Drawbacks, discussed on linux-ext4 in 2022: the goal is ignored. A group moves to the tail of its list on every
//! change, even if its order stays the same. So each new chunk comes from another group, and small files that are
//! synced one by one each dirty another bitmap.
//!
//! Lists are filled from the last group down, as in Linux where bitmaps are read ahead.
//!
//! # Locking
//! [`crate::lock::LISTS`], under the group's lock or none.

use std::collections::BTreeSet;

use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU32, Ordering};

use super::lists::Lists;
use super::{Criterion, GroupChoice, GroupInfo, GroupTest, LINUX_5_13, Pass, Rules};
use crate::lock;

/// The state of `optimize-scan`; see the module.
pub struct OptimizeScan {
    largest: Lists,
    /// Groups by average free extent, then by number.
    averages: Mutex<BTreeSet<(u32, u32)>>,
    /// For each group its average in `averages`; 0 for none.
    average: Box<[AtomicU32]>,
}

impl OptimizeScan {
    pub fn new(groups: u32) -> OptimizeScan {
        OptimizeScan {
            largest: Lists::new(groups),
            averages: Mutex::new(&lock::LISTS, BTreeSet::new()),
            average: (0..groups).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The next group in order of averages. `pass.at`: average and number behind the last group named.
    fn next_by_average(&self, pass: &mut Pass, good: GroupTest<'_>) -> Option<u32> {
        let from = ((pass.at >> 32) as u32, pass.at as u32).max((pass.len, 0));
        let averages = self.averages.lock();
        let found = averages.range(from..).copied().find(|&(_, g)| g < pass.limit && good(pass, g));
        let (average, group) = found?;
        pass.at = (u64::from(average) << 32 | u64::from(group)) + 1;
        Some(group)
    }
}

impl GroupChoice for OptimizeScan {
    fn rules(&self) -> &'static Rules {
        &LINUX_5_13
    }

    fn changed(&self, group: u32, info: GroupInfo) {
        self.largest.put(group, info.largest(), false);
        let Some(listed) = self.average.get(group as usize) else { return };
        let (old, new) = (listed.load(Ordering::Relaxed), info.average().unwrap_or(0));
        if old != new {
            let mut averages = self.averages.lock();
            averages.remove(&(old, group));
            if new > 0 {
                averages.insert((new, group));
            }
            listed.store(new, Ordering::Relaxed);
        }
    }

    fn next(&self, pass: &mut Pass, good: GroupTest<'_>) -> Option<u32> {
        loop {
            let found = match pass.criterion {
                Criterion::Power2 => self.largest.next(pass.order.unwrap_or(0), pass, &mut *good),
                Criterion::AverageFits => self.next_by_average(pass, good),
                Criterion::FreeFits | Criterion::Any => pass.walk_to(good),
            };
            if found.is_some() || !pass.relax() {
                return found;
            }
        }
    }

    fn bytes(&self) -> usize {
        self.largest.bytes() + self.average.len() * (4 + 16)
    }
}
