//! Yardsticks against their papers, and the engine's default against the yardsticks.

use super::contestant::{Contestant, cache};
use super::*;

fn accesses(trace_name: &str, settings: &[&str], n: u64) -> Vec<u32> {
    let mut parameters = ReclaimTraces.parameters();
    for setting in [&[&*format!("trace={trace_name}")], settings].concat() {
        parameters.set(setting).expect("a parameter");
    }
    trace(&parameters, n, &mut Rng::new(5)).expect("a trace").items
}

fn misses(contestant: Contestant, accesses: &[u32], room: usize) -> usize {
    let mut cache = cache(contestant, accesses, room);
    accesses.iter().filter(|item| !cache.access(**item)).count()
}

#[test]
fn caches_with_room_for_everything_miss_each_item_once() {
    for name in ["zipf", "scans", "loop", "copy", "shift", "files", "pairs"] {
        let accesses = accesses(name, &["items=512"], 5000);
        let mut items = accesses.clone();
        items.sort_unstable();
        items.dedup();
        for contestant in Contestant::ALL {
            // W-TinyLFU's window is full before the cache is.
            let room = items.len() * 101 / 100 + 2;
            assert_eq!(misses(contestant, &accesses, room), items.len(), "{name} {}", contestant.name());
        }
    }
}

#[test]
fn no_policy_beats_belady() {
    for name in ["zipf", "scans", "loop", "copy", "shift", "files", "pairs"] {
        let accesses = accesses(name, &[], 20_000);
        let best = misses(Contestant::Belady, &accesses, 409);
        for contestant in Contestant::ALL {
            assert!(misses(contestant, &accesses, 409) >= best, "{name} {}", contestant.name());
        }
    }
}

/// By hand, from the papers' rules.
#[test]
fn yardsticks_follow_their_papers() {
    // After 0, 1, 2 and 0 again, both LRU and SIEVE evict 1 to make room for 3. So 2 and 0 then hit, and 1 misses.
    for contestant in [Contestant::Lru, Contestant::Sieve] {
        let mut cache = cache(contestant, &[9], 3);
        let hits: Vec<bool> = [0, 1, 2, 0, 3, 2, 0, 1].map(|item| cache.access(item)).into();
        assert_eq!(hits, [false, false, false, true, false, true, true, false], "{}", contestant.name());
    }
    // A loop over more than fits: LRU hits nothing, and an item that was used twice survives it under the others.
    let looped: Vec<u32> = [0, 0, 0].into_iter().chain((0..3).flat_map(|_| 1..40)).chain([0]).collect();
    for contestant in [Contestant::Lru, Contestant::Arc, Contestant::S3Fifo, Contestant::TinyLfu] {
        let mut cache = cache(contestant, &looped, 20);
        let hits: Vec<bool> = looped.iter().map(|item| cache.access(*item)).collect();
        assert_eq!(hits[looped.len() - 1], contestant != Contestant::Lru, "{}", contestant.name());
    }
}

#[test]
fn senseless_parameters_are_refused() {
    for setting in ["trace=dance", "room=0", "room=101", "items=100", "items=5000000", "skew=1001"] {
        let mut parameters = ReclaimTraces.parameters();
        parameters.set(setting).expect("a parameter");
        assert!(ReclaimTraces.check(&parameters).is_err_and(|e| e.is_usage()), "{setting}");
    }
}

/// The bounds for the engine's default, here on small caches; the experiment has the full size.
#[test]
fn the_default_policy_stays_close_to_the_best_online_policies() {
    const ACCESSES: u64 = 60_000;
    let rivals = Contestant::ALL.into_iter().filter(|c| !matches!(c, Contestant::UsedOnce | Contestant::Belady));
    let (mut ours, mut theirs, mut worst) = (0.0, vec![0.0; rivals.clone().count()], ("", 0, 0.0));
    let points = |misses: usize| misses as f64 * 100.0 / ACCESSES as f64;
    for name in ["zipf", "scans", "copy", "shift", "files"] {
        let accesses = accesses(name, &["items=8192"], ACCESSES);
        for percent in [5, 10, 25] {
            let room = 8192 * percent / 100;
            let mine = points(misses(Contestant::UsedOnce, &accesses, room));
            let all: Vec<f64> = rivals.clone().map(|c| points(misses(c, &accesses, room))).collect();
            let best = all.iter().copied().fold(f64::INFINITY, f64::min);
            if mine - best > worst.2 {
                worst = (name, percent, mine - best);
            }
            ours += mine / 15.0;
            theirs.iter_mut().zip(all).for_each(|(sum, points)| *sum += points / 15.0);
        }
    }
    let best = theirs.into_iter().fold(f64::INFINITY, f64::min);
    assert!(worst.2 <= 5.0, "{worst:?}");
    assert!(ours <= best + 1.0, "{ours:.2} beside {best:.2}");
    let accesses = accesses("loop", &["items=8192"], ACCESSES);
    let [ours, published] = [Contestant::UsedOnce, Contestant::S3Fifo].map(|c| points(misses(c, &accesses, 819)));
    assert!(ours <= published + 2.0, "{ours:.2} beside {published:.2}");
}
