//! The contract of every policy, run over [`MetaPolicy::ALL`]: zones lose no block. The store of `crate::tests` checks
//! every mark.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::MetaPolicy;
use crate::tests::model::*;
use crate::{Allocator, Error, Geometry, InodePreallocation, MetaRequest, MetaRole, Options, Pointers, Request};

#[test]
fn names_are_found_and_in_the_table() {
    for policy in MetaPolicy::ALL {
        assert_eq!(MetaPolicy::from_name(policy.name()), Ok(policy));
    }
    for row in MetaPolicy::TABLE.rows {
        assert!(include_str!("mod.rs").contains(&format!("//! | `{}` |", row.name)), "{}", row.name);
    }
}

fn mount(store: &Arc<ModelStore>, meta_policy: MetaPolicy) -> Allocator<ModelStore> {
    allocator(store, Options { meta_policy, locality_groups: 1, stream_goals: 1, ..Options::default() })
}

/// File systems with blocks of 1 KiB and 4 KiB, a short last group, and flexible groups whose metadata is together.
/// Some groups are too small for the areas of `metacluster` and its variants, but not for those of `zones`.
fn shapes() -> Vec<(Geometry, Vec<(BlockNr, u64)>)> {
    let flex = Geometry { flex_bg_size: 4, ..large(3, 4) };
    vec![
        (geometry(3, 1024, 99), vec![(BlockNr(1), 40), (BlockNr(1025), 30), (BlockNr(2049), 30)]),
        (geometry(20, 64, 17), vec![]),
        (geometry(150, 128, 5), vec![(BlockNr(1), 3)]),
        (flex, vec![(BlockNr(0), 1600)]),
    ]
}

fn random_meta(rng: &mut Rng, blocks: u64) -> MetaRequest {
    let mut block = |one_in| rng.one_in(one_in).then(|| BlockNr(rng.below(blocks + 5)));
    let (home, parent, data) = (block(2), block(3), block(2));
    let role = MetaRole::ALL[rng.below(5) as usize];
    MetaRequest { role, owner: InodeNr(rng.below(40) as u32), home, parent, data }
}

/// Counts of requests, and how often zones served them, grew and were lent.
#[derive(Default)]
struct RequestCounts {
    requests: u64,
    hits: u64,
    grown: u64,
    lent: u64,
}

/// Fills and empties a disk, and remounts it from time to time, also with other policies.
#[expect(clippy::too_many_lines, reason = "one arm a random operation of the model")]
fn ages(
    first: MetaPolicy,
    shape: &(Geometry, Vec<(BlockNr, u64)>),
    seed: u64,
    requests: u64,
    done: &mut RequestCounts,
) {
    let (geometry, own) = shape;
    let store = Arc::new(ModelStore::new(geometry.clone()));
    for (start, len) in own {
        for block in start.0..start.0 + len {
            let (group, index) = geometry.locate(BlockNr(block)).expect("inside");
            store.set(group.0, index, 1, Block::Used);
        }
    }
    let mut rng = Rng::new(seed);
    let mut policy = first;
    let mut mine: Vec<(BlockNr, u32)> = Vec::new();
    let mut made = 0;
    while made < requests {
        let mut a = mount(&store, policy);
        a.protect(own.iter().copied());
        let owners: Vec<_> = (0..6).map(|i| InodePreallocation::new(InodeNr(50 + i))).collect();
        let mut written = [0u32; 6];
        let mut pending = Vec::new();
        // Nearly full for a while, then half empty.
        let mut fills = true;
        for _ in 0..3000 + rng.below(3000) {
            made += 1;
            let most = if rng.one_in(20) { 300 } else { 20 };
            let len = 1 + rng.below(most) as u32;
            let got = match rng.below(16) {
                0..=3 => {
                    a.allocate(&mut Txn::default(), &Request::meta(random_meta(&mut rng, geometry.blocks_count), 1))
                }
                4 => a.allocate(&mut Txn::default(), &Request::meta(random_meta(&mut rng, geometry.blocks_count), len)),
                5..=8 if fills => {
                    let i = rng.below(6) as usize;
                    let at = written[i];
                    written[i] += len;
                    let goal = Some(BlockNr(rng.below(geometry.blocks_count)));
                    let mut r = Request::data(&owners[i], goal, LogicalBlock(at), len, u64::from(at + len));
                    let (blocks, end) = pointer_blocks(at, rng.below(4) as usize);
                    r.pointers = Some(Pointers { owner: &owners[i], blocks: &blocks, end });
                    r.pointers = r.pointers.filter(|_| a.puts_pointers_in_front());
                    a.allocate(&mut Txn::default(), &r)
                }
                9 => {
                    // Writes data whose pointer blocks are mapped with it, or not.
                    let i = rng.below(6) as usize;
                    let (blocks, _) = pointer_blocks(written[i].saturating_sub(len), 3);
                    let blocks = &blocks[rng.below(3) as usize..][..1];
                    let r = Request::meta(random_meta(&mut rng, geometry.blocks_count), 1);
                    let pointers = Some(Pointers { owner: &owners[i], blocks, end: 0 });
                    a.allocate(&mut Txn::default(), &Request { pointers, ..r })
                }
                10 if rng.one_in(20) => {
                    a.drop_unused_buddies(20_000);
                    continue;
                }
                11 => {
                    a.discard_preallocations(&owners[rng.below(6) as usize]);
                    continue;
                }
                12 if rng.one_in(4) => {
                    store.commit(&pending);
                    a.release(&pending);
                    pending.clear();
                    continue;
                }
                _ => {
                    for _ in 0..if fills { 1 } else { 3 } {
                        if !mine.is_empty() && (!fills || rng.one_in(2)) {
                            let (start, len) = mine.swap_remove(rng.below(mine.len() as u64) as usize);
                            pending.extend(a.free(&mut Txn::default(), start, u64::from(len)).expect("mine"));
                        }
                    }
                    if mine.len() < 10 {
                        fills = true;
                    }
                    continue;
                }
            };
            match got {
                Ok(x) => mine.push(extent(x)),
                Err(e) => {
                    assert!(e.no_space(), "{e:?}");
                    // Before data borrows from a zone, it waits for a commit.
                    let waits = matches!(e, TestError::Alloc(Error::NoSpaceUntilCommit { .. }));
                    let others = store.count(Block::Free) - if waits { a.set_aside_blocks() } else { 0 };
                    assert_eq!(others, 0, "{}: no space, but something was free", policy.name());
                    fills = rng.one_in(3);
                }
            }
        }
        store.commit(&pending);
        a.release(&pending);
        assert_agrees(&a, &store);
        let s = a.statistics();
        done.hits += s.zone_hits;
        done.grown += s.zone_areas_grown;
        done.lent += s.zone_areas_lent;
        if rng.one_in(2) {
            policy = MetaPolicy::ALL[rng.below(MetaPolicy::ALL.len() as u64) as usize];
        }
    }
    done.requests += made;
}

/// Over more than a million requests, no block is allocated twice or lost, and "no space" is true.
#[test]
fn no_block_is_lost_or_handed_out_twice() {
    let shapes = shapes();
    let each = 1_000_000 / (MetaPolicy::ALL.len() * shapes.len()) as u64;
    let mut done = RequestCounts::default();
    for policy in MetaPolicy::ALL {
        for (seed, shape) in (1..).zip(&shapes) {
            ages(policy, shape, seed, each + 1, &mut done);
        }
    }
    let RequestCounts { requests, hits, grown, lent } = done;
    assert!(requests >= 1_000_000 && hits > 10_000 && grown > 100 && lent > 100, "{requests} {hits} {grown} {lent}");
}
