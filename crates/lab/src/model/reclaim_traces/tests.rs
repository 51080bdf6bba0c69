use super::contestant::{Cache, Contestant, cache};
use super::*;

fn accesses(trace_name: &str, settings: &[&str], n: u64) -> Vec<u32> {
    let mut parameters = ReclaimTraces.parameters();
    for setting in [&[&*format!("trace={trace_name}")], settings].concat() {
        parameters.set(setting).expect("a parameter");
    }
    trace(&parameters, n, &mut Rng::new(5)).expect("a trace")
}

fn misses(contestant: Contestant, accesses: &[u32], room: usize) -> usize {
    let mut cache = cache(contestant, accesses, room);
    accesses.iter().filter(|item| !cache.access(**item)).count()
}

#[test]
fn caches_with_room_for_everything_miss_each_item_once() {
    for name in ["zipf", "scans", "loop", "copy", "shift", "files"] {
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
fn no_policy_beats_the_one_that_knows_the_future() {
    for name in ["zipf", "scans", "loop", "copy", "shift", "files"] {
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
    // Of 0, 1, 2 and again 0, LRU drops 1 for 3, SIEVE 1 too; then 2 is the next to go for both.
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
fn what_makes_no_sense_is_refused() {
    for setting in ["trace=dance", "room=0", "room=101", "items=100", "items=5000000", "skew=1001"] {
        let mut parameters = ReclaimTraces.parameters();
        parameters.set(setting).expect("a parameter");
        assert!(ReclaimTraces.check(&parameters).is_err_and(|e| e.is_usage()), "{setting}");
    }
}
