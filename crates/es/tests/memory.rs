//! The extent-status cache charges the budget with the memory that the allocator gave it. A single test, so that
//! nothing else allocates.

use std::alloc::System;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_cache::Budget;
use extant_es::{EsCache, EsInode, EsPolicyKind, EsState};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn written(n: u32) -> EsState {
    EsState::Written(BlockNr(1000 + 3 * u64::from(n)))
}

struct Held {
    region: Region<'static, System>,
    budget: Arc<Budget>,
}

impl Held {
    /// Bytes allocated since and not freed. The charge must agree with them to one part in `part`; the allocator
    /// gives a little more than requested.
    fn compare(&self, when: &str, part: u64) -> u64 {
        let now = self.region.change();
        let truth = now.bytes_allocated as i64 - now.bytes_deallocated as i64;
        let (truth, charged) = (truth as u64, self.budget.used());
        assert!(charged.abs_diff(truth) * part <= truth, "{when}: {charged} charged, {truth} held");
        truth
    }
}

#[test]
fn the_charge_is_the_allocated_memory() {
    const ENTRIES: u32 = 200_000;
    for order in ["random", "ascending"] {
        let mut places: Vec<u32> = (0..ENTRIES).collect();
        let mut rng = Rng::new(1);
        if order == "random" {
            for i in (1..places.len()).rev() {
                places.swap(i, rng.below(i as u64 + 1) as usize);
            }
        }
        let budget = Budget::new(1 << 30);
        let cache = EsCache::new(EsPolicyKind::LeafRing, Clock::virtual_at(0), Some(budget.clone()));
        let inode = cache.attach(InodeNr(12));
        let held = Held { region: Region::new(ALLOCATOR), budget };
        for n in &places {
            inode.insert(LogicalBlock(2 * n), 1, written(*n));
        }
        let truth = held.compare(order, 20);
        let most = if order == "random" { 18 } else { 14 };
        assert!(truth <= most * u64::from(ENTRIES), "{order}: {truth} bytes for {ENTRIES} entries");
        while cache.entries() > u64::from(ENTRIES) / 10 {
            cache.shrink(128);
        }
        let left = held.compare("a tenth is left", 20);
        assert!(left <= truth / 5, "{order}: {left} of {truth} bytes for a tenth of the entries");
        for n in 0..ENTRIES {
            inode.remove(LogicalBlock(2 * n), 1);
        }
        assert_eq!(held.budget.used(), 0, "nothing is left");
    }

    // Files of one entry, as most are, cost nothing; small ones cost their entries.
    for (entries, most) in [(1, 0), (3, 0), (8, 600)] {
        let budget = Budget::new(1 << 30);
        let cache = EsCache::new(EsPolicyKind::LeafRing, Clock::virtual_at(0), Some(budget.clone()));
        let files: Vec<EsInode> = (0..1000).map(|n| cache.attach(InodeNr(12 + n))).collect();
        let held = Held { region: Region::new(ALLOCATOR), budget };
        for file in &files {
            for n in 0..entries {
                file.insert(LogicalBlock(2 * n), 1, written(n));
            }
        }
        if most == 0 {
            let now = held.region.change();
            assert_eq!((now.allocations, held.budget.used()), (0, 0), "{entries} entries");
        } else {
            let truth = held.compare("small files", 10);
            assert!(truth <= 1000 * most, "{entries} entries a file: {truth}");
        }
    }
}
