//! Turns events of allocations and commits into figures, with the same arithmetic for Extant and the kernel.
//!
//! Main types: [`Layout`] (the places of groups), [`Tally`]. A transaction's bitmaps are those of the groups in which
//! blocks were allocated or freed since the previous transaction was closed.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::Figures;

/// The places of block groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Block at which group 0 begins.
    pub first_block: u64,
    /// Blocks in a group.
    pub blocks_per_group: u32,
}

impl Layout {
    /// The groups of a range, with the number of blocks in each.
    fn groups(self, start: u64, len: u64) -> impl Iterator<Item = (u32, u64)> {
        let per_group = u64::from(self.blocks_per_group.max(1));
        let mut at = start.saturating_sub(self.first_block);
        let end = at.saturating_add(len);
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let group = at / per_group;
                let next = ((group + 1) * per_group).min(end);
                let blocks = next - at;
                at = next;
                (group as u32, blocks)
            })
        })
    }
}

/// The maximum number of preallocations whose group is recorded.
const CHUNKS_MAX: usize = 128;

/// Sums over the events of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Blocks allocated, by group.
    pub groups: BTreeMap<u32, u64>,
    allocations: u64,
    blocks_allocated: u64,
    blocks_freed: u64,
    transactions: u64,
    bitmaps: u64,
    bitmaps_max: u64,
    locality_preallocations: u64,
    locality_groups: BTreeSet<u32>,
    /// Groups of the first preallocations for small files, in order.
    #[serde(default)]
    pub chunks: Vec<u32>,
    blocks_touched: u64,
    /// One bit for each block that was allocated, 64 per entry.
    #[serde(skip)]
    touched: BTreeMap<u64, u64>,
    /// Changes that belong to no transaction yet: time and group.
    #[serde(skip)]
    open: VecDeque<(u64, u32)>,
}

impl Tally {
    /// Records that blocks were allocated at `time_ns`.
    pub fn allocated(&mut self, time_ns: u64, layout: Layout, start: u64, len: u64) {
        self.allocations += 1;
        self.blocks_allocated += len;
        for block in start..start.saturating_add(len) {
            let word = self.touched.entry(block / 64).or_default();
            self.blocks_touched += u64::from(*word >> (block % 64) & 1 == 0);
            *word |= 1 << (block % 64);
        }
        for (group, blocks) in layout.groups(start, len) {
            *self.groups.entry(group).or_default() += blocks;
            self.open.push_back((time_ns, group));
        }
    }

    /// Records that blocks were freed at `time_ns`.
    pub fn freed(&mut self, time_ns: u64, layout: Layout, start: u64, len: u64) {
        self.blocks_freed += len;
        self.open.extend(layout.groups(start, len).map(|(group, _)| (time_ns, group)));
    }

    /// Records that a preallocation for small files was made.
    pub fn locality_preallocation(&mut self, layout: Layout, start: u64) {
        self.locality_preallocations += 1;
        for (group, _) in layout.groups(start, 1) {
            self.locality_groups.insert(group);
            if self.chunks.len() < CHUNKS_MAX {
                self.chunks.push(group);
            }
        }
    }

    /// Records that a transaction was closed at `time_ns`: it contains the changes up to then.
    pub fn closed(&mut self, time_ns: u64) {
        let mut groups = BTreeSet::new();
        while let Some((_, group)) = self.open.front().copied().filter(|(time, _)| *time <= time_ns) {
            groups.insert(group);
            self.open.pop_front();
        }
        self.transactions += 1;
        self.bitmaps += groups.len() as u64;
        self.bitmaps_max = self.bitmaps_max.max(groups.len() as u64);
    }

    /// Adds the events of another mount of the same image.
    pub fn add(&mut self, more: &Tally) {
        for (group, blocks) in &more.groups {
            *self.groups.entry(*group).or_default() += blocks;
        }
        self.allocations += more.allocations;
        self.blocks_allocated += more.blocks_allocated;
        self.blocks_freed += more.blocks_freed;
        self.blocks_touched += more.blocks_touched;
        self.transactions += more.transactions;
        self.bitmaps += more.bitmaps;
        self.bitmaps_max = self.bitmaps_max.max(more.bitmaps_max);
        self.locality_preallocations += more.locality_preallocations;
        self.locality_groups.extend(&more.locality_groups);
        let room = CHUNKS_MAX - self.chunks.len().min(CHUNKS_MAX);
        self.chunks.extend(more.chunks.iter().take(room));
    }

    /// Adds the figures to `figures`.
    pub fn figures(&self, figures: &mut Figures) {
        let mut put = |name: &str, value: f64| figures.insert(name.to_owned(), value);
        put("groups_used", self.groups.len() as f64);
        put("allocations", self.allocations as f64);
        put("blocks_allocated", self.blocks_allocated as f64);
        put("blocks_freed", self.blocks_freed as f64);
        put("blocks_touched", self.blocks_touched as f64);
        put("locality_preallocations", self.locality_preallocations as f64);
        put("locality_groups", self.locality_groups.len() as f64);
        let first: BTreeSet<_> = self.chunks.iter().take(32).collect();
        put("locality_groups_of_32", first.len() as f64);
        if self.transactions > 0 {
            put("bitmaps_per_transaction", self.bitmaps as f64 / self.transactions as f64);
            put("bitmaps_per_transaction_max", self.bitmaps_max as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_belong_to_the_transaction_that_was_open() {
        let layout = Layout { first_block: 1, blocks_per_group: 100 };
        let mut tally = Tally::default();
        tally.allocated(10, layout, 1, 10);
        tally.allocated(11, layout, 95, 12); // groups 0 and 1
        tally.freed(30, layout, 305, 1);
        tally.closed(20);
        tally.closed(40);
        let mut figures = Figures::new();
        tally.figures(&mut figures);
        assert_eq!(tally.groups, BTreeMap::from([(0, 16), (1, 6)]));
        assert_eq!(figures["bitmaps_per_transaction"], 1.5);
        assert_eq!(figures["bitmaps_per_transaction_max"], 2.0);
        assert_eq!((figures["groups_used"], figures["blocks_freed"]), (2.0, 1.0));
        let mut twice = tally.clone();
        twice.add(&tally);
        assert_eq!((twice.groups[&0], twice.transactions), (32, 4));
    }
}
