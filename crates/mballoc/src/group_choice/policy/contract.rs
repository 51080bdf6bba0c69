//! What every policy must satisfy, run over [`Policy::ALL`]. That nothing is handed out twice, nor what is used, and
//! that "no space" is true is judged by the store of `crate::tests` in every test there, which also run over all
//! policies.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::{Criterion, GroupChoice, GroupInfo, Policy, Scan};
use crate::tests::model::*;
use crate::{InodePreallocation, Options, Request};

/// Fills a worn file system with a mix; returns every answer.
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
fn same_seed_same_answer_until_nothing_is_free() {
    for policy in Policy::ALL {
        for seed in 1..6 {
            assert_eq!(trace(policy, seed), trace(policy, seed), "{} seed {seed}", policy.name());
        }
    }
}

#[test]
fn a_pass_ends_and_names_each_group_at_most_once() {
    let mut rng = Rng::new(9);
    for policy in Policy::ALL {
        for groups in [1u32, 2, 63, 64, 65, 700] {
            let choice = GroupChoice::new(policy, groups);
            let mut listed = vec![Default::default(); groups as usize];
            let mut free = vec![0; groups as usize];
            for (g, l) in listed.iter_mut().enumerate() {
                let f = if rng.one_in(3) { 0 } else { 1 + rng.below(8000) as u32 };
                let fragments = if f == 0 { 0 } else { 1 + rng.below(u64::from(f)) as u32 };
                let largest = f.checked_div(fragments).and_then(u32::checked_ilog2);
                choice.publish(g as u32, l, GroupInfo { free: f, fragments, largest_order: largest });
                free[g] = f;
            }
            for criterion in Criterion::ALL {
                for limit in [groups, groups / 2] {
                    let goal = rng.below(u64::from(groups) + 3) as u32;
                    let len = 1 << rng.below(10);
                    let scan = Scan { goal, limit, criterion, len, order: len.ilog2() };
                    let mut seen = std::collections::BTreeSet::new();
                    for g in choice.pass(scan) {
                        assert!(g < limit && seen.insert(g), "{} {scan:?} group {g}", policy.name());
                    }
                    if goal < limit {
                        assert_eq!(choice.pass(scan).next(), Some(goal), "the goal group comes first");
                    }
                    if criterion == Criterion::Any {
                        assert!((0..limit).all(|g| free[g as usize] == 0 || seen.contains(&g)), "{}", policy.name());
                    }
                }
            }
        }
    }
}
