//! The contract of every policy, run over [`Policy::ALL`]. In every test, the store of `crate::tests` checks that no
//! block is allocated twice, that no used block is allocated, and that "no space" is true. Those tests run over all
//! policies, too.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::{Criterion, GroupInfo, Pass, Policy};
use crate::tests::model::*;
use crate::{InodePreallocation, Options, Request};

/// Fills an aged file system with mixed requests; returns every answer.
fn trace(policy: Policy, seed: u64) -> Vec<(u64, u32)> {
    let store = Arc::new(ModelStore::new(geometry(20, 512, 99)));
    let mut rng = Rng::new(seed);
    for _ in 0..1500 {
        store.set(rng.below(20) as u32, rng.below(512) as u32, 1, Block::Used);
    }
    let free = store.count(Block::Free);
    let a = allocator(&store, Options { policy, stream_goals: 2, ..Options::default() });
    let owners: Vec<_> = (0..6).map(|i| InodePreallocation::new(InodeNr(20 + i))).collect();
    let mut written = [0u32; 6];
    let mut answers = Vec::new();
    let mut got = 0u64;
    loop {
        let i = rng.below(6) as usize;
        let len = 1 + rng.below(30) as u32;
        let goal = Some(BlockNr(rng.below(store.geometry.blocks_count)));
        let r = if rng.one_in(4) {
            Request::metadata(goal, len)
        } else {
            let written = &mut written[i];
            *written += len;
            Request::data(&owners[i], goal, LogicalBlock(*written - len), len, u64::from(*written))
        };
        let Ok(x) = a.allocate(&mut Txn::default(), &r) else { break };
        got += u64::from(x.len);
        answers.push((x.start.0, x.len));
        if rng.one_in(50) {
            a.drop_unused_buddies(10_000);
        }
    }
    assert_eq!(got, free, "{}: no space, but something was free", policy.name());
    answers
}

#[test]
fn names_are_found_and_in_the_table() {
    for policy in Policy::ALL {
        assert_eq!(Policy::from_name(policy.name()), Ok(policy));
    }
    for row in Policy::TABLE.rows {
        assert!(include_str!("mod.rs").contains(&format!("//! | `{}` |", row.name)), "{}", row.name);
    }
}

#[test]
fn the_same_seed_gives_the_same_answers_until_the_disk_is_full() {
    for policy in Policy::ALL {
        for seed in 1..6 {
            assert_eq!(trace(policy, seed), trace(policy, seed), "{} seed {seed}", policy.name());
        }
    }
}

#[test]
fn a_pass_ends_and_names_each_group_once_per_criterion() {
    let mut rng = Rng::new(9);
    for policy in Policy::ALL {
        for groups in [1u32, 2, 63, 64, 65, 700] {
            let choice = policy.state(&geometry(groups, 8192, 0));
            let mut free = vec![0; groups as usize];
            for (g, free) in (0..).zip(&mut free) {
                let f = if rng.one_in(3) { 0 } else { 1 + rng.below(8000) as u32 };
                let fragments = if f == 0 || rng.one_in(5) { 0 } else { 1 + rng.below(u64::from(f)) as u32 };
                let run = f.checked_div(fragments).unwrap_or(0);
                choice.changed(g, GroupInfo { free: f, fragments, largest_order: run.checked_ilog2(), run });
                *free = f;
            }
            for from in [Criterion::Power2, Criterion::AverageFits, Criterion::Any] {
                for limit in [groups, groups.div_ceil(2), 0] {
                    let goal = rng.below(u64::from(groups) + 3) as u32;
                    let len = 1 << rng.below(10);
                    let mut pass = Pass::new(from, goal, limit, len, Some(len.ilog2()));
                    // Before this criterion, no group is good enough: a pass that does not advance finds nothing.
                    let picky = Criterion::ALL[rng.below(4) as usize];
                    let what = format!("{} {pass:?}, nothing good before {picky:?}", policy.name());
                    let mut good = |pass: &Pass, g: u32| pass.criterion >= picky && free[g as usize] > 0;
                    let mut seen = std::collections::BTreeSet::new();
                    // A group that was named and judged good is never enough for this search.
                    while let Some(g) = choice.next(&mut pass, &mut good) {
                        let fresh = seen.insert((pass.criterion, pass.len, g));
                        assert!(g < limit && (fresh || pass.criterion == Criterion::Any), "{what} group {g}");
                    }
                    for g in (0..limit).filter(|&g| free[g as usize] > 0) {
                        assert!(seen.iter().any(|s| s.2 == g), "{what} group {g} has something free");
                    }
                }
            }
        }
    }
}

/// The goal group comes first if it fits, except with the policy whose defect is to ignore the goal.
#[test]
fn the_goal_group_comes_first() {
    for policy in Policy::ALL {
        let choice = policy.state(&geometry(100, 8192, 0));
        let info = GroupInfo { free: 8192, fragments: 1, largest_order: Some(11), run: 8192 };
        (0..100).rev().for_each(|g| choice.changed(g, info));
        for goal in [0, 17, 99] {
            let mut pass = Pass::new(Criterion::Power2, goal, 100, 512, Some(9));
            let first = choice.next(&mut pass, &mut |_, _| true);
            assert_eq!(first == Some(goal), policy != Policy::OptimizeScan || goal == 99, "{}", policy.name());
        }
    }
}
