//! Lookups during a shrink of the extent-status cache: of another thread, in the same inode. Prints their latencies;
//! run it with `--release --ignored --nocapture`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::task;
use extant_cache::Budget;
use extant_fs::EsPolicyKind;
use extant_fs::map::es::{EsCache, EsState};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

const ENTRIES: u32 = 4_000_000;
const WANTED: u64 = 32 << 20;
/// The batch of `Budget::relieve`.
const BATCH: u64 = 128;

#[test]
#[ignore = "takes a gigabyte and half a minute"]
fn lookups_proceed_during_a_shrink() {
    for policy in EsPolicyKind::ALL.into_iter().filter(|p| *p != EsPolicyKind::DelayedOnly) {
        let budget = Budget::new(1 << 40);
        let cache = EsCache::new(policy, Clock::real(), Some(budget.clone()));
        let inode = Arc::new(cache.attach(InodeNr(12)));
        for n in 0..ENTRIES {
            inode.insert(LogicalBlock(2 * n), 1, EsState::Written(BlockNr(1000 + 3 * u64::from(n))));
        }
        let (before, stop) = (budget.used(), Arc::new(AtomicBool::new(false)));
        let run = |what: &str, shrink: &dyn Fn()| {
            stop.store(false, Ordering::Relaxed);
            let (inode, stop_too) = (Arc::clone(&inode), Arc::clone(&stop));
            let looks = task::spawn("looks", move || {
                let mut rng = Rng::new(1);
                let mut took: Vec<u32> = Vec::with_capacity(50_000_000);
                while !stop_too.load(Ordering::Relaxed) && took.len() < took.capacity() {
                    let n = rng.below(u64::from(ENTRIES)) as u32;
                    let start = Instant::now();
                    let found = inode.lookup(LogicalBlock(2 * n));
                    took.push(start.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
                    if let Some(found) = found {
                        assert_eq!(found.state, EsState::Written(BlockNr(1000 + 3 * u64::from(n))));
                    }
                }
                took
            })
            .expect("started");
            let start = Instant::now();
            shrink();
            let ms = start.elapsed().as_millis();
            stop.store(true, Ordering::Relaxed);
            let mut took = looks.join().expect("looked");
            took.sort_unstable();
            let at = |q: f64| took[((took.len() - 1) as f64 * q) as usize];
            println!(
                "{:16} {what:8} {ms:6} ms, {:9} lookups: p50 {} p99 {} p99.99 {} max {} ns",
                policy.name(),
                took.len(),
                at(0.5),
                at(0.99),
                at(0.9999),
                at(1.0)
            );
        };
        run("alone", &|| Clock::real().sleep(std::time::Duration::from_millis(300)));
        let calls = std::cell::RefCell::new(Vec::new());
        run("shrinks", &|| {
            // It never waits for the inode's lock: an inode whose lock is held long is tried again later, for example
            // by the next operation. How many tries fail depends on the machine.
            for _ in 0..1_000_000 {
                if before - budget.used() >= WANTED {
                    break;
                }
                let start = Instant::now();
                let freed = cache.shrink(BATCH);
                assert!(freed <= BATCH, "{}: {freed} at once", policy.name());
                calls.borrow_mut().push(start.elapsed().as_nanos());
                std::thread::yield_now();
            }
        });
        let mut calls = calls.into_inner();
        calls.sort_unstable();
        let at = |q: f64| calls[((calls.len() - 1) as f64 * q) as usize];
        println!(
            "{:16} {} calls of {BATCH}: p50 {} p99 {} max {} ns",
            policy.name(),
            calls.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
        assert!(before - budget.used() >= WANTED, "{}: {} bytes came back", policy.name(), before - budget.used());
    }
}
