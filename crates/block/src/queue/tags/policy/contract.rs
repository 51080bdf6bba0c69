//! What every tag policy must satisfy.

use std::collections::BTreeSet;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::task;

use super::super::TagSet;
use super::{TagPolicy, TagPolicyKind, Tags};

#[test]
fn names_are_found_and_in_the_table() {
    for kind in TagPolicyKind::ALL {
        assert_eq!(TagPolicyKind::from_name(kind.name()), Ok(kind));
    }
    assert!(TagPolicyKind::from_name("none").is_err());
    for row in TagPolicyKind::TABLE.rows {
        assert!(include_str!("mod.rs").contains(&format!("//! | `{}` |", row.name)), "{}", row.name);
    }
}

#[test]
fn alone_every_tag_is_found_and_none_twice() {
    for kind in TagPolicyKind::ALL {
        for depth in (1..70).chain([127, 128, 129, 255, 256, 257, 1000, 4096]) {
            let tags = Tags::new(kind, depth);
            for hint in [0, 7, 1_000_003] {
                let all: BTreeSet<u32> = (0..depth).map(|_| tags.get(hint).expect("one is free")).collect();
                assert_eq!(all.len(), depth as usize, "{kind:?} {depth}");
                assert!(all.last() < Some(&depth));
                assert_eq!(tags.get(hint + 1), None);
                // Whichever one is given back is found again.
                for &tag in all.iter().rev() {
                    tags.put(tag, hint + 2);
                    assert_eq!(tags.get(hint), Some(tag));
                }
                all.iter().for_each(|&t| tags.put(t, hint));
            }
        }
    }
}

#[test]
fn same_calls_same_tags() {
    for kind in TagPolicyKind::ALL {
        let run = || {
            let (tags, mut held, mut seen) = (Tags::new(kind, 37), Vec::new(), Vec::new());
            let mut rng = extant_base::rng::Rng::new(11);
            for _ in 0..2000 {
                if !held.is_empty() && rng.one_in(2) {
                    tags.put(held.swap_remove(rng.below(held.len() as u64) as usize), rng.below(4) as usize);
                } else if let Some(t) = tags.get(rng.below(4) as usize) {
                    held.push(t);
                    seen.push(t);
                }
            }
            seen
        };
        assert_eq!(run(), run());
    }
}

#[test]
fn no_tag_is_out_twice_and_every_waiter_ends() {
    for kind in TagPolicyKind::ALL {
        for depth in [1, 3, 8, 61] {
            let set = Arc::new(TagSet::new(depth, kind));
            let held: Arc<Vec<AtomicBool>> = Arc::new((0..depth).map(|_| AtomicBool::new(false)).collect());
            let total = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..12)
                .map(|t| {
                    let (set, held, total) = (set.clone(), held.clone(), total.clone());
                    task::spawn("tags", move || {
                        for i in 0..4000u32 {
                            let guard = TagSet::get(&set);
                            let out = held[guard.tag() as usize].swap(true, Ordering::SeqCst);
                            assert!(!out, "tag {} is out twice", guard.tag());
                            if (i + t) % 16 == 0 {
                                task::yield_now();
                            }
                            held[guard.tag() as usize].store(false, Ordering::SeqCst);
                            drop(guard);
                            total.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                    .expect("thread")
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().expect("joined"));
            assert_eq!(total.load(Ordering::Relaxed), 12 * 4000);
            let all: Vec<_> = (0..depth).map(|_| TagSet::try_get(&set).expect("all are back")).collect();
            assert!(TagSet::try_get(&set).is_none());
            drop(all);
        }
    }
}
