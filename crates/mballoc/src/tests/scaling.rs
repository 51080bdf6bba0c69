//! Measurements, run by hand: `cargo test --release -p extant-mballoc -- --ignored --nocapture`. They use wall time,
//! so compare results of one run only.

use std::ops::Range;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::task::{processors, spawn};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

use super::model::large;
use crate::{Allocator, Error, GroupStore, GroupSummary, InodePreallocation, Options, Policy, Request};

/// An empty disk that accepts every change.
struct Nothing;

impl GroupStore for Nothing {
    type Txn = ();
    type Error = Error;
    type Prepared = ();
    fn load(&self, _: GroupNr) -> Result<Vec<u8>, Error> {
        Ok(vec![0; 4096])
    }
    fn prepare(&self, (): &mut (), _: GroupNr) -> Result<(), Error> {
        Ok(())
    }
    fn mark(&self, (): &mut (), _: GroupNr, (): &(), _: Range<u32>, _: bool) -> Result<(), Error> {
        Ok(())
    }
}

fn empty(policy: Policy) -> Arc<Allocator<Nothing>> {
    let groups = vec![GroupSummary { free: 32768, block_uninit: false, maps: 0 }; 128];
    let options = Options { policy, ..Options::default() };
    Arc::new(Allocator::new(Arc::new(Nothing), large(128, 16), &groups, options).expect("made"))
}

fn measure(name: &str, policy: Policy, threads: usize, work: fn(&Allocator<Nothing>, u64) -> u64) {
    let a = empty(policy);
    let clock = Clock::real();
    let workers: Vec<_> = (0..threads as u64)
        .map(|t| {
            let a = a.clone();
            spawn("measure", move || work(&a, t)).expect("thread")
        })
        .collect();
    let ops: u64 = workers.into_iter().map(|w| w.join().expect("joined")).sum();
    let ns = clock.now_ns();
    println!("{name:12} {:10} threads={threads} {:6} ns/op/thread", policy.name(), ns * threads as u64 / ops);
}

/// Create, free, release small files.
fn small_files(a: &Allocator<Nothing>, t: u64) -> u64 {
    let owner = InodePreallocation::new(InodeNr(t as u32));
    let goal = Some(BlockNr((1 + 16 * (t % 7)) * 32768));
    for _ in 0..400_000 {
        let x = a.allocate(&mut (), &Request::data(&owner, goal, LogicalBlock(0), 6, 6)).expect("free");
        let freed = a.free(&mut (), x.start, u64::from(x.len)).expect("freed");
        a.release(&freed);
    }
    400_000
}

/// Append 8 KiB at a time to 1 MiB, truncate, again (fallocate2 of the 6.17 series).
fn append(a: &Allocator<Nothing>, t: u64) -> u64 {
    let owner = InodePreallocation::new(InodeNr(t as u32));
    let goal = Some(BlockNr((1 + 16 * (t % 7)) * 32768));
    for _ in 0..3000u32 {
        let mut mine = Vec::new();
        for i in (0..256).step_by(2) {
            let x =
                a.allocate(&mut (), &Request::data(&owner, goal, LogicalBlock(i), 2, u64::from(i) + 2)).expect("free");
            mine.push((x.start, x.len));
        }
        a.discard_preallocations(&owner);
        for (start, len) in mine {
            let freed = a.free(&mut (), start, u64::from(len)).expect("freed");
            a.release(&freed);
        }
    }
    3000 * 128
}

#[test]
#[ignore = "a measurement"]
fn per_core_efficiency() {
    for policy in Policy::ALL {
        for threads in [1, 2, 4, 8, 16] {
            if threads <= processors() {
                measure("small_files", policy, threads, small_files);
                measure("append", policy, threads, append);
            }
        }
    }
}
