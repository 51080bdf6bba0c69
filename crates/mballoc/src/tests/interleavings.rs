//! Random sequences of all operations against the model, over small file systems of many shapes.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};
use proptest::prelude::*;

use super::model::*;
use crate::{Allocator, Error, Geometry, InodePreallocation, Kind, Neighbour, Options, Policy, Request, RequestFlags};

#[derive(Clone, Debug)]
enum Op {
    Meta { goal: u16, len: u16, try_goal: bool },
    Data { owner: u8, logical: u16, len: u16, grow: u16, goal: u16, promised: bool, no_prealloc: bool },
    Free { owner: u8, logical: u16, len: u16 },
    FreeMeta { index: u16 },
    Commit,
    Discard { owner: u8 },
    DiscardAll,
    DropBuddies,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (any::<u16>(), 1..80u16, any::<bool>()).prop_map(|(goal, len, try_goal)| Op::Meta { goal, len, try_goal }),
        8 => (0..4u8, 0..600u16, 1..60u16, 0..400u16, any::<u16>(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(owner, logical, len, grow, goal, promised, no_prealloc)| {
                Op::Data { owner, logical, len, grow, goal, promised, no_prealloc }
            }
        ),
        4 => (0..4u8, 0..600u16, 1..200u16).prop_map(|(owner, logical, len)| Op::Free { owner, logical, len }),
        1 => any::<u16>().prop_map(|index| Op::FreeMeta { index }),
        2 => Just(Op::Commit),
        1 => (0..4u8).prop_map(|owner| Op::Discard { owner }),
        1 => Just(Op::DiscardAll),
        1 => Just(Op::DropBuddies),
    ]
}

fn shape() -> impl Strategy<Value = Geometry> {
    (1..6u32, prop::sample::select(vec![64u32, 100, 256, 1000]), 0..64u32, 0..5u32, prop::sample::select(vec![0u32, 8]))
        .prop_map(|(groups, bpg, last, flex, stripe)| Geometry {
            cluster_bits: 0,
            flex_bg_size: 1 << flex,
            stripe,
            ..geometry(groups, bpg, last)
        })
}

struct Run {
    a: Allocator<ModelStore>,
    store: Arc<ModelStore>,
    owners: Vec<InodePreallocation>,
    /// Per file: logical → block.
    maps: Vec<BTreeMap<u32, u64>>,
    meta: Vec<(BlockNr, u32)>,
    pending: Vec<(BlockNr, u32)>,
}

impl Run {
    fn new(geometry: Geometry, policy: Policy, used: &[(u8, u16)]) -> Run {
        let store = Arc::new(ModelStore::new(geometry));
        for &(g, i) in used {
            let g = u32::from(g) % store.geometry.groups;
            let n = store.geometry.blocks_in_group(extant_ondisk::GroupNr(g));
            store.set(g, u32::from(i) % n, 1, Block::Used);
        }
        let a = allocator(&store, Options { policy, ..Options::default() });
        let owners = (0..4).map(|i| InodePreallocation::new(InodeNr(12 + i))).collect();
        Run { a, store, owners, maps: vec![BTreeMap::new(); 4], meta: Vec::new(), pending: Vec::new() }
    }

    /// Asserts that this refusal is justified.
    fn judge(&self, e: &TestError, promised: bool) {
        match e {
            TestError::Alloc(Error::NoSpace { .. }) => {
                assert!(!promised, "a promise was broken");
                assert_eq!(self.store.count(Block::Free) + self.store.count(Block::Pending), 0);
            }
            TestError::Alloc(Error::NoSpaceUntilCommit { pending, .. }) => {
                assert_eq!(self.store.count(Block::Free), 0);
                assert_eq!(self.store.count(Block::Pending), *pending);
            }
            other => panic!("{other:?}"),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn data(
        &mut self,
        owner: usize,
        logical: u32,
        len: u32,
        grow: u32,
        goal: u64,
        promised: bool,
        flags: RequestFlags,
    ) {
        let map = &self.maps[owner];
        // The file system requests only unmapped blocks.
        if map.contains_key(&logical) {
            return;
        }
        let near = |(&l, &b): (&u32, &u64)| Neighbour { logical: LogicalBlock(l), block: BlockNr(b) };
        let left = map.range(..logical).next_back().map(near);
        let right = map.range(logical..).next().map(near);
        let len = right.map_or(len, |r| len.min(r.logical.0 - logical));
        let size = map.last_key_value().map_or(0, |(&l, _)| l + 1).max(logical + len) + grow;
        let promised = promised && self.a.reserve(u64::from(len), true).is_ok();
        let kind = Kind::Data {
            owner: &self.owners[owner],
            logical: LogicalBlock(logical),
            file_blocks: u64::from(size),
            reserved: promised,
            left,
            right,
        };
        let r = Request { goal: Some(BlockNr(goal)), len, kind, flags, max_block: None, pointers: None };
        let got = self.a.allocate(&mut Txn::default(), &r);
        if promised {
            self.a.unreserve(u64::from(len - got.as_ref().map_or(0, |x| x.len)));
        }
        match got {
            Ok(x) => {
                assert!(x.len >= 1 && x.len <= len);
                for i in 0..x.len {
                    self.maps[owner].insert(logical + i, x.start.0 + u64::from(i));
                }
            }
            Err(e) => self.judge(&e, promised),
        }
    }

    fn step(&mut self, op: &Op) {
        let blocks = self.store.geometry.blocks_count;
        match *op {
            Op::Meta { goal, len, try_goal } => {
                let flags = if try_goal { RequestFlags::TRY_GOAL } else { RequestFlags::NONE };
                let r = Request {
                    flags,
                    ..Request::metadata(Some(BlockNr(u64::from(goal) % (blocks + 9))), u32::from(len))
                };
                match self.a.allocate(&mut Txn::default(), &r) {
                    Ok(x) => self.meta.push(extent(x)),
                    Err(e) => self.judge(&e, false),
                }
            }
            Op::Data { owner, logical, len, grow, goal, promised, no_prealloc } => {
                let flags = if no_prealloc { RequestFlags::NO_PREALLOC } else { RequestFlags::NONE };
                let grow = u32::from(grow) * u32::from(logical % 2);
                let (owner, logical, len) = (usize::from(owner), u32::from(logical), u32::from(len));
                self.data(owner, logical, len, grow, u64::from(goal) % blocks, promised, flags);
            }
            Op::Free { owner, logical, len } => {
                let owner = usize::from(owner);
                let span = u32::from(logical)..u32::from(logical) + u32::from(len);
                let gone: Vec<(u32, u64)> = self.maps[owner].range(span).map(|(&l, &b)| (l, b)).collect();
                // Most callers discard first; the allocator must tolerate callers that do not.
                if len % 3 > 0 {
                    self.a.discard_preallocations(&self.owners[owner]);
                }
                for run in gone.chunk_by(|x, y| x.1 + 1 == y.1) {
                    let freed = self.a.free(&mut Txn::default(), BlockNr(run[0].1), run.len() as u64).expect("mapped");
                    self.pending.extend(freed);
                }
                for (l, _) in gone {
                    self.maps[owner].remove(&l);
                }
            }
            Op::FreeMeta { index } if !self.meta.is_empty() => {
                let (start, len) = self.meta.swap_remove(usize::from(index) % self.meta.len());
                self.pending.extend(self.a.free(&mut Txn::default(), start, u64::from(len)).expect("mine"));
            }
            Op::FreeMeta { .. } => {}
            Op::Commit => {
                self.store.commit(&self.pending);
                self.a.release(&self.pending);
                self.pending.clear();
            }
            Op::Discard { owner } => self.a.discard_preallocations(&self.owners[usize::from(owner)]),
            Op::DiscardAll => {
                self.a.discard_all_under_pressure();
            }
            Op::DropBuddies => {
                self.a.drop_unused_buddies(usize::MAX);
                assert_eq!(self.a.memory_used(), 0);
            }
        }
        let free = self.store.count(Block::Free) + self.store.count(Block::Pending);
        assert_eq!(self.a.free_blocks(), free);
        assert_eq!(self.a.pending_blocks(), self.store.count(Block::Pending));
        assert_eq!(self.a.available_blocks(true), free);
        assert_eq!(self.a.statistics().groups_bad, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_agrees(
        geometry in shape(),
        used in prop::collection::vec((any::<u8>(), any::<u16>()), 0..200),
        ops in prop::collection::vec(op(), 1..150),
    ) {
        for policy in Policy::ALL {
            let mut run = Run::new(geometry.clone(), policy, &used);
            for op in &ops {
                run.step(op);
            }
            run.step(&Op::Commit);
            assert_agrees(&run.a, &run.store);
            // No two files share a block, and together they own exactly the used blocks.
            let mut seen = std::collections::BTreeSet::new();
            prop_assert!(run.maps.iter().flat_map(|m| m.values()).all(|b| seen.insert(*b)));
        }
    }
}
