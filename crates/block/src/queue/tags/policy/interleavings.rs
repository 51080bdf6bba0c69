//! Tests with three threads and two tags, with every schedule with few preemptions.
//!
//! Threads may switch at locks and waits, and at the atomic operations of the bitmaps (their `sim::point`s). Weak
//! memory orders are not covered.

use std::sync::Arc;

use extant_base::sim::{self, Options};
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::task;

use super::super::{TagConfig, TagGuard, TagSet, TagStats};
use super::TagPolicyKind;

/// Each thread takes a tag; one of them has a bio that waits. `out` tags are in use at the start.
fn three_threads(policy: TagPolicyKind, wait_queues: u32, out: u32) -> TagStats {
    let set = Arc::new(TagSet::new(TagConfig { depth: 2, policy, wait_queues }));
    let first: Vec<_> = (0..out).map(|_| TagSet::try_get(&set)).collect();
    let held = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let threads = [0u32, 1, 2].map(|t| {
        let (set, held) = (set.clone(), held.clone());
        let work = move || {
            let work = move |guard: TagGuard| {
                assert!(!held[guard.tag() as usize].swap(true, Ordering::SeqCst), "a tag is out twice");
                sim::point("tag: in use");
                held[guard.tag() as usize].store(false, Ordering::SeqCst);
            };
            match t {
                0 => TagSet::start(&set, t, 4096, Box::new(work)),
                _ => work(TagSet::get(&set, t)),
            }
        };
        task::spawn("tags", work).expect("thread")
    });
    if out > 0 {
        // This lets the other threads fail to get a tag without a preemption.
        task::yield_now();
    }
    drop(first);
    threads.into_iter().for_each(|t| t.join().expect("joined"));
    let all = [TagSet::try_get(&set), TagSet::try_get(&set)];
    assert!(all.iter().all(Option::is_some), "a tag is lost");
    set.stats()
}

fn search(policy: TagPolicyKind, wait_queues: u32, out: u32, preemptions: u32) {
    let mut waited = 0u64;
    let runs = sim::search(
        &Options { steps_max: 10_000, processors: 2, ..Options::new(0) },
        preemptions,
        move || three_threads(policy, wait_queues, out),
        |outcome| {
            let forks = outcome.forks;
            let stats = outcome.result.unwrap_or_else(|e| panic!("{} {forks:?}: {e}", policy.name()));
            waited += u64::from(stats.waits > 0);
            if policy == TagPolicyKind::HandOff {
                assert_eq!((stats.wakes_in_vain, stats.overtakings), (0, 0), "{forks:?}: {stats:?}");
            }
        },
    );
    assert!(waited > 0, "{}: {waited} of {runs}", policy.name());
}

/// A test for each policy, because each takes many seconds, except for those in `without`.
macro_rules! of_policies {
    ($module:ident, $wait_queues:literal, $out:literal, $preemptions:literal, without [$($left_out:ident)*],
     $($name:ident: $policy:ident),*) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $name() {
                    search(TagPolicyKind::$policy, $wait_queues, $out, $preemptions);
                }
            )*

            #[test]
            fn every_policy_has_its_test() {
                let known = [$(TagPolicyKind::$policy,)* $(TagPolicyKind::$left_out),*];
                assert!(TagPolicyKind::ALL.into_iter().all(|policy| known.contains(&policy)));
            }
        }
    };
}

of_policies!(three_threads_on_two_tags, 8, 0, 2, without [],
    percpu_ida: PercpuIda, wake_all: WakeAll, wake_exclusive: WakeExclusive, sbitmap: Sbitmap, hand_off: HandOff);
// The lists of percpu-ida have so many locks that their schedules would take minutes.
of_policies!(three_threads_while_both_tags_are_out, 1, 2, 1, without [PercpuIda],
    wake_all: WakeAll, wake_exclusive: WakeExclusive, sbitmap: Sbitmap, hand_off: HandOff);
