//! Tests of the contract of every policy, run over [`EsPolicyKind::ALL`], and the experiment that compares them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::sim::{self, Options};
use extant_base::task;
use extant_cache::Budget;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use crate::{EsCache, EsInode, EsPolicyKind, EsState};

fn over_all(test: impl Fn(EsPolicyKind)) {
    EsPolicyKind::ALL.into_iter().for_each(test);
}

fn inodes(cache: &EsCache, count: u32) -> Vec<EsInode> {
    (0..count).map(|i| cache.attach(InodeNr(12 + i))).collect()
}

/// A written block that cannot be merged with another one.
fn lone(lblk: u32) -> EsState {
    EsState::Written(BlockNr(10_000 + 3 * u64::from(lblk)))
}

#[test]
fn names_are_unique_read_back_and_in_the_table() {
    over_all(|kind| assert_eq!(EsPolicyKind::from_name(kind.name()), Ok(kind)));
    assert!(EsPolicyKind::from_name("improved").is_err());
    for row in EsPolicyKind::TABLE.rows {
        assert!(include_str!("mod.rs").contains(&format!("//! | `{}` |", row.name)), "{}", row.name);
    }
}

#[test]
fn delayed_entries_survive_and_the_rest_goes() {
    over_all(|kind| {
        let budget = Budget::new(1 << 30);
        let clock = Clock::virtual_at(0);
        let cache = EsCache::new(kind, clock.clone(), Some(Arc::clone(&budget)));
        let all = inodes(&cache, 5);
        for (i, node) in all.iter().enumerate() {
            for n in 0..200u32 {
                let state = if (n + i as u32).is_multiple_of(3) { EsState::Delayed } else { lone(n) };
                assert_eq!(node.insert(LogicalBlock(2 * n), 1, state), 0);
            }
            clock.advance(Duration::from_millis(10));
        }
        let keeps_clean = kind != EsPolicyKind::DelayedOnly;
        assert_eq!(cache.entries(), if keeps_clean { 1000 } else { 333 });
        assert_eq!(budget.used(), cache.bytes());
        let evictable = cache.evictable();
        assert_eq!(evictable, all.iter().map(|n| n.counts().evictable).sum::<u64>());
        let mut freed = 0;
        for _ in 0..200 {
            let now = cache.shrink(64);
            assert!(now <= 64, "{}", kind.name());
            freed += now;
        }
        assert_eq!((freed, cache.evictable()), (evictable, 0), "{}", kind.name());
        assert_eq!(cache.shrink(64), 0);
        assert_eq!(cache.entries(), 333);
        for (i, node) in all.iter().enumerate() {
            for n in 0..200u32 {
                let want = (n + i as u32).is_multiple_of(3).then_some(EsState::Delayed);
                assert_eq!(node.lookup(LogicalBlock(2 * n)).map(|e| e.state), want);
            }
        }
        // An inode that left the policy's list returns with its next entry.
        all[2].insert(LogicalBlock(1001), 1, lone(1001));
        clock.advance(Duration::from_millis(10));
        let freed: u64 = (0..10).map(|_| cache.shrink(200)).sum();
        assert_eq!(freed, u64::from(keeps_clean), "{}", kind.name());
        drop(all);
        assert_eq!((cache.entries(), cache.evictable(), budget.used()), (0, 0, 0));
    });
}

#[test]
fn same_seed_same_answer() {
    over_all(|kind| {
        let run = || {
            let mut rng = Rng::new(3);
            let clock = Clock::virtual_at(0);
            let cache = EsCache::new(kind, clock.clone(), None);
            let all = inodes(&cache, 8);
            let mut log = Vec::new();
            for _ in 0..3_000 {
                clock.advance(Duration::from_millis(rng.below(9)));
                let node = &all[rng.below(8) as usize];
                let lblk = rng.below(500) as u32;
                match rng.below(6) {
                    0 => log.push(cache.shrink(1 + rng.below(20))),
                    1 => log.push(node.insert(LogicalBlock(lblk), 3, EsState::Delayed)),
                    2 => log.push(node.remove(LogicalBlock(lblk), 5)),
                    3 => log.push(u64::from(node.lookup(LogicalBlock(lblk)).is_some())),
                    _ => log.push(u64::from(node.cache(LogicalBlock(lblk), 2, lone(lblk)))),
                }
            }
            (log, cache.stats(), cache.entries())
        };
        assert_eq!(run(), run(), "{}", kind.name());
    });
}

/// Any eviction may happen in between, but if a lookup finds something, it must be correct.
#[test]
fn a_lookup_never_lies() {
    over_all(|kind| {
        let clock = Clock::virtual_at(0);
        let cache = EsCache::new(kind, clock.clone(), None);
        let node = cache.attach(InodeNr(12));
        let mut model: BTreeMap<u32, EsState> = BTreeMap::new();
        let mut rng = Rng::new(11);
        for _ in 0..5_000 {
            clock.advance(Duration::from_millis(1));
            let lblk = rng.below(200) as u32;
            let state = match rng.below(3) {
                0 => EsState::Delayed,
                1 => EsState::Hole,
                _ => lone(lblk),
            };
            match rng.below(4) {
                0 => {
                    node.insert(LogicalBlock(lblk), 1, state);
                    model.insert(lblk, state);
                }
                1 => {
                    cache.shrink(1 + rng.below(10));
                }
                2 => {
                    node.remove(LogicalBlock(lblk), 1);
                    model.remove(&lblk);
                }
                _ => match node.lookup(LogicalBlock(lblk)) {
                    Some(found) => {
                        let here = found.from(LogicalBlock(lblk), 1).unwrap();
                        assert_eq!(Some(&here.state), model.get(&lblk));
                    }
                    None => assert_ne!(model.get(&lblk), Some(&EsState::Delayed)),
                },
            }
        }
    });
}

#[test]
fn threads_and_shrinks_agree_in_the_end() {
    over_all(|kind| {
        let cache = EsCache::new(kind, Clock::real(), None);
        let all = Arc::new(inodes(&cache, 4));
        let workers: Vec<_> = (0..4u64)
            .map(|t| {
                let (cache, all) = (cache.clone(), Arc::clone(&all));
                task::spawn("es-worker", move || {
                    let mut rng = Rng::new(t);
                    let mut delayed = 0i64;
                    for _ in 0..20_000 {
                        // Each thread looks up all blocks and changes only its own.
                        let node = &all[rng.below(4) as usize];
                        let lblk = LogicalBlock((rng.below(500) * 4 + t) as u32);
                        match rng.below(8) {
                            0 => {
                                cache.shrink(16);
                            }
                            1 => delayed += 1 - node.insert(lblk, 1, EsState::Delayed) as i64,
                            2 => delayed -= node.remove(lblk, 1) as i64,
                            3 => {
                                node.lookup(LogicalBlock(rng.below(2_000) as u32));
                            }
                            _ => delayed -= node.insert(lblk, 1, lone(lblk.0)) as i64,
                        }
                    }
                    delayed
                })
                .unwrap()
            })
            .collect();
        let delayed: i64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
        assert_eq!(delayed, all.iter().map(|n| n.counts().delayed_blocks as i64).sum::<i64>());
        assert_eq!(cache.entries(), all.iter().map(|n| n.counts().entries).sum::<u64>());
        assert_eq!(cache.evictable(), all.iter().map(|n| n.counts().evictable).sum::<u64>());
        for _ in 0..5_000 {
            std::hint::black_box(cache.shrink(1000));
        }
        assert_eq!(cache.evictable(), 0, "{}: every inode with evictable entries is still listed", kind.name());
    });
}

/// One thread looks up, one changes and one shrinks, with every schedule with few preemptions. No lookup returns a
/// wrong state, no delayed entry disappears, and afterwards a shrink still finds everything evictable.
fn lookups_changes_and_shrinks(kind: EsPolicyKind) {
    fn state(node: &EsInode, lblk: u32) -> Option<EsState> {
        node.lookup(LogicalBlock(lblk)).map(|e| e.state)
    }
    let three_threads = move |kind: EsPolicyKind| {
        let cache = EsCache::new(kind, Clock::real(), None);
        let all = Arc::new(inodes(&cache, 2));
        // There are enough delayed entries that no policy stores the others inside the inode, where they cost nothing.
        all.iter()
            .for_each(|n| (0..3).for_each(|i| assert_eq!(n.insert(LogicalBlock(20 + 2 * i), 1, EsState::Delayed), 0)));
        all[0].insert(LogicalBlock(0), 1, EsState::Delayed);
        all[0].insert(LogicalBlock(2), 1, lone(2));
        let start = |work: fn(&EsCache, &[EsInode])| {
            let (cache, all) = (cache.clone(), Arc::clone(&all));
            task::spawn("es", move || work(&cache, &all)).expect("thread")
        };
        let threads = [
            start(|cache, _| {
                cache.shrink(2);
            }),
            start(|_, all| {
                all[0].remove(LogicalBlock(2), 1);
                all[1].insert(LogicalBlock(4), 1, lone(4));
                assert_eq!(all[0].insert(LogicalBlock(0), 1, lone(0)), 1, "a delayed entry has vanished");
                all[0].insert(LogicalBlock(6), 1, EsState::Delayed);
            }),
            start(|_, all| {
                assert!([None, Some(lone(4))].contains(&state(&all[1], 4)));
                assert!([None, Some(lone(2))].contains(&state(&all[0], 2)));
                assert!([None, Some(lone(0)), Some(EsState::Delayed)].contains(&state(&all[0], 0)));
            }),
        ];
        threads.into_iter().for_each(|t| t.join().expect("joined"));
        assert_eq!(cache.entries(), all.iter().map(|n| n.counts().entries).sum::<u64>());
        assert_eq!(cache.evictable(), all.iter().map(|n| n.counts().evictable).sum::<u64>());
        let gone = cache.stats().freed;
        // The first call may only clear marks.
        (0..4).for_each(|_| assert!(cache.shrink(8) <= 8));
        assert_eq!((cache.entries(), cache.evictable()), (7, 0), "not found by a shrink");
        // This is not tested earlier, because a lookup puts an inode back on the list.
        assert_eq!((state(&all[0], 2), state(&all[0], 6)), (None, Some(EsState::Delayed)));
        gone
    };
    let (mut before, mut after) = (0u64, 0u64);
    let runs = sim::search(
        &Options { steps_max: 10_000, processors: 2, ..Options::new(0) },
        2,
        move || three_threads(kind),
        |outcome| {
            let forks = outcome.forks;
            let gone = outcome.result.unwrap_or_else(|e| panic!("{} {forks:?}: {e}", kind.name()));
            (before, after) = (before + u64::from(gone == 0), after + u64::from(gone > 0));
        },
    );
    assert!(runs > 1_000, "{}: {runs} schedules", kind.name());
    let evicts = kind != EsPolicyKind::DelayedOnly;
    assert!(before > 0 && (after > 0) == evicts, "{}: {before} and {after} of {runs}", kind.name());
}

/// A test for each policy, because each takes many seconds.
mod lookups_changes_and_shrinks_under_every_schedule {
    use super::*;

    #[test]
    fn vanilla() {
        lookups_changes_and_shrinks(EsPolicyKind::Vanilla);
    }

    #[test]
    fn evictable_list() {
        lookups_changes_and_shrinks(EsPolicyKind::EvictableList);
    }

    #[test]
    fn round_robin() {
        lookups_changes_and_shrinks(EsPolicyKind::RoundRobin);
    }

    #[test]
    fn delayed_only() {
        lookups_changes_and_shrinks(EsPolicyKind::DelayedOnly);
    }

    #[test]
    fn leaf_ring() {
        lookups_changes_and_shrinks(EsPolicyKind::LeafRing);
    }

    #[test]
    fn every_policy_has_its_test() {
        assert_eq!(EsPolicyKind::ALL.len(), 5);
    }
}

/// The reproducer that the old bug report did not have: delayed entries at low blocks, and evictable ones after them.
/// Counts the entries that one shrink(128) visits, for two numbers of delayed entries.
#[test]
fn cost_of_delayed_entries() {
    let visited = |kind: EsPolicyKind, delayed: u32| {
        let clock = Clock::virtual_at(0);
        let cache = EsCache::new(kind, clock.clone(), None);
        let node = cache.attach(InodeNr(12));
        for n in 0..delayed {
            node.insert(LogicalBlock(2 * n), 1, EsState::Delayed);
        }
        for n in 0..1_000 {
            node.insert(LogicalBlock(2 * (delayed + n)), 1, lone(n));
        }
        clock.advance(Duration::from_secs(1));
        cache.shrink(128);
        cache.stats().scanned
    };
    assert_eq!(visited(EsPolicyKind::Vanilla, 0), 128);
    assert_eq!(visited(EsPolicyKind::Vanilla, 20_000), 20_128, "vanilla steps over every delayed entry");
    assert_eq!(visited(EsPolicyKind::EvictableList, 20_000), 128);
    assert_eq!(visited(EsPolicyKind::RoundRobin, 20_000), 128);
    // This policy counts leaves, not entries.
    assert_eq!(visited(EsPolicyKind::LeafRing, 0), 1);
    assert_eq!(visited(EsPolicyKind::LeafRing, 20_000), 1);
}

/// One call frees as much as requested, if so much is evictable: with one inode or several, with marks or none, and
/// regardless of where the call before ended.
#[test]
fn leaf_ring_frees_the_requested_number_or_everything() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let clock = Clock::virtual_at(0);
        let cache = EsCache::new(EsPolicyKind::LeafRing, clock.clone(), None);
        let all = inodes(&cache, 1 + (seed % 4) as u32);
        // In every second run, leaves are full of delayed entries, so a round finds few evictable ones.
        let delayed = if seed % 2 == 0 { 99 } else { 20 };
        for _ in 0..30 {
            for _ in 0..rng.below(4_000) {
                let node = &all[rng.below(all.len() as u64) as usize];
                let lblk = LogicalBlock(2 * rng.below(20_000) as u32);
                if rng.below(100) < delayed {
                    node.insert(lblk, 1, EsState::Delayed);
                } else {
                    node.insert(lblk, 1, lone(lblk.0));
                    node.lookup(lblk);
                }
            }
            let (evictable, asked) = (cache.evictable(), 1 + rng.below(40));
            assert_eq!(cache.shrink(asked), asked.min(evictable), "seed {seed}: {evictable} could go");
        }
    }
}

/// The limit of Linux: a call visits no entry twice, even if all were looked up and none is removed.
#[test]
fn a_call_of_round_robin_visits_each_entry_once() {
    let cache = EsCache::new(EsPolicyKind::RoundRobin, Clock::virtual_at(0), None);
    let all = inodes(&cache, 3);
    for n in 0..300 {
        let node = &all[n as usize % 3];
        node.insert(LogicalBlock(2 * n), 1, lone(n));
        node.lookup(LogicalBlock(2 * n));
    }
    assert_eq!((cache.shrink(1_000), cache.stats().scanned), (0, 300));
    assert_eq!((cache.shrink(1_000), cache.stats().scanned), (300, 600));
}
