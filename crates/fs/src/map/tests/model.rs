//! Random operations against a map from logical block to (physical block, unwritten).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use extant_base::rng::Rng;
use extant_ondisk::extent::{LOGICAL_END, NodeRef};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock, indirect};
use proptest::prelude::*;

use super::fake::{Fake, Txn};
use crate::map::{ClusterSize, MapError, MapRoot, MapState, Mapping, Progress};

const INO: InodeNr = InodeNr(12);

struct World {
    fake: Fake,
    root: MapRoot,
    model: BTreeMap<u32, (u64, bool)>,
    rng: Rng,
    end: u32,
}

impl World {
    fn new(block_size: u32, extents: bool, seed: u64) -> World {
        let root = MapRoot::empty(INO, extents, extents.then_some(0xDEAD_BEEF));
        let end = root.logical_end(block_size);
        World { fake: Fake::new(block_size, seed), root, model: BTreeMap::new(), rng: Rng::new(seed), end }
    }

    /// Checks the whole tree: its structure, `i_blocks`, and lookups. Its metadata and data blocks must be exactly the
    /// allocated ones.
    fn check(&mut self) {
        if self.rng.one_in(3) {
            self.fake.drop_cache();
        }
        let mut meta = BTreeSet::new();
        self.root.walk_meta(&self.fake, |b| assert!(meta.insert(b.0), "{b} is in the tree twice")).unwrap();
        let allocated: BTreeSet<u64> = self.fake.blocks.borrow().meta.keys().copied().collect();
        assert_eq!(meta, allocated, "metadata blocks in the tree and allocated");
        let mut walked = BTreeMap::new();
        self.root
            .walk(&self.fake, LogicalBlock(0), |m| {
                for i in 0..m.len {
                    let state = match m.state {
                        MapState::Written(b) => (b.0 + u64::from(i), false),
                        MapState::Unwritten(b) => (b.0 + u64::from(i), true),
                        MapState::Hole => panic!("walk shows no holes"),
                    };
                    assert!(walked.insert(m.lblk.0 + i, state).is_none());
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(walked == self.model, "walk and model differ");
        let size = self.fake.clusters;
        let data: BTreeSet<u64> = self.model.values().map(|v| size.first_block(size.of(v.0))).collect();
        assert!(data == self.fake.blocks.borrow().data, "data blocks mapped and allocated differ");
        assert_eq!(self.root.blocks_delta, size.first_block((data.len() + meta.len()) as u64) as i64);
        if self.root.extents {
            self.check_shape();
        }
    }

    /// Checks that index keys are exact, no node is empty, and checksums are right.
    fn check_shape(&self) {
        let root = NodeRef::parse(&self.root.i_block, 0).unwrap();
        assert!(root.depth() == 0 || !root.is_empty());
        self.check_below(&root);
    }

    fn check_below(&self, node: &NodeRef<'_>) {
        if node.depth() == 0 {
            return;
        }
        for i in 0..node.len() {
            let index = node.index(i).unwrap();
            let bytes = self.fake.blocks.borrow().meta[&index.child.0].clone();
            let child = NodeRef::parse(&bytes, index.child.0).unwrap();
            assert_eq!(child.key(0), Some(index.lblk.0), "index key is the child's first key");
            assert_eq!(child.depth() + 1, node.depth());
            assert_eq!(child.stored_checksum(), child.checksum(0xDEAD_BEEF));
            self.check_below(&child);
        }
    }

    fn expect(&self, lblk: u32, max_len: u32) -> Mapping {
        let Some(&(pblk, unwritten)) = self.model.get(&lblk) else {
            let len = self.hole_len(lblk).min(u64::from(max_len)) as u32;
            return Mapping { lblk: LogicalBlock(lblk), len, state: MapState::Hole };
        };
        let mut len = 1;
        while len < max_len && self.model.get(&(lblk + len)) == Some(&(pblk + u64::from(len), unwritten)) {
            len += 1;
        }
        let state = if unwritten { MapState::Unwritten(BlockNr(pblk)) } else { MapState::Written(BlockNr(pblk)) };
        Mapping { lblk: LogicalBlock(lblk), len, state }
    }

    /// A lookup may end early at the border between extents that could not merge; the next lookup continues there.
    fn check_lookup(&mut self, lblk: u32, max_len: u32) {
        let want = self.expect(lblk, max_len);
        let mut at = lblk;
        let mut got = self.root.lookup(&self.fake, LogicalBlock(at), max_len).unwrap();
        if !self.root.extents || want.state == MapState::Hole {
            assert_eq!(got, want);
        }
        let mut len = 0;
        loop {
            let state = match want.state {
                MapState::Hole => MapState::Hole,
                MapState::Written(b) => MapState::Written(BlockNr(b.0 + u64::from(len))),
                MapState::Unwritten(b) => MapState::Unwritten(BlockNr(b.0 + u64::from(len))),
            };
            assert_eq!((got.lblk.0, got.state), (at, state));
            assert!(got.len >= 1);
            len += got.len;
            at += got.len;
            if len >= want.len {
                break;
            }
            got = self.root.lookup(&self.fake, LogicalBlock(at), want.len - len).unwrap();
        }
        assert_eq!(len, want.len);
    }

    fn hole_len(&self, lblk: u32) -> u64 {
        if self.model.contains_key(&lblk) {
            return 0;
        }
        self.model.range(lblk..).next().map_or(u64::from(self.end), |(k, _)| u64::from(*k)) - u64::from(lblk)
    }

    /// Inserts blocks in clusters, as a mount does. A block goes to the place that its cluster has; a run of new
    /// clusters ends before a cluster that has a place.
    fn insert_in_clusters(&mut self, lblk: u32, len: u32, unwritten: bool, jump: bool) {
        let size = self.fake.clusters;
        let mut len = u64::from(len).min(self.hole_len(lblk)) as u32;
        if len == 0 {
            return;
        }
        let expected = |model: &BTreeMap<u32, (u64, bool)>, lblk: u32| {
            let first = size.first_block(size.of(lblk.into())) as u32;
            let (at, (block, _)) = model.range(first..=first + (size.blocks() - 1)).next()?;
            Some(BlockNr(block - u64::from(size.offset((*at).into())) + u64::from(size.offset(lblk.into()))))
        };
        let place = self.root.place_in_cluster(&self.fake, LogicalBlock(lblk)).unwrap();
        assert_eq!(place, expected(&self.model, lblk), "the place of {lblk}");
        let end = lblk + len;
        if place.is_some() {
            len = len.min(size.blocks() - size.offset(lblk.into()));
        } else if size.of(u64::from(end) - 1) > size.of(lblk.into())
            && self.root.place_in_cluster(&self.fake, LogicalBlock(end - 1)).unwrap().is_some()
        {
            len = size.first_block(size.of(u64::from(end) - 1)) as u32 - lblk;
        }
        let pblk = place.unwrap_or_else(|| self.fake.allocate_clusters(size.offset(lblk.into()), len, jump));
        let mut txn = Txn::new(self.root.credits_for_insert(self.fake.block_size, len));
        match self.root.insert(&self.fake, &mut txn, LogicalBlock(lblk), pblk, len, unwritten) {
            Ok(done) => {
                assert_eq!(done, len);
                self.model.extend((0..len).map(|i| (lblk + i, (pblk.0 + u64::from(i), unwritten))));
            }
            Err(MapError::NoSpace { .. }) if place.is_none() => self.fake.return_clusters(pblk, len),
            Err(MapError::NoSpace { .. }) => {}
            Err(e) => panic!("insert {lblk} +{len}: {e}"),
        }
    }

    fn insert(&mut self, lblk: u32, len: u32, unwritten: bool, jump: bool) {
        if !self.fake.clusters.is_one() {
            return self.insert_in_clusters(lblk, len, unwritten, jump);
        }
        let len = u64::from(len).min(self.hole_len(lblk)) as u32;
        if len == 0 {
            let pblk = self.fake.allocate_data(1, true);
            let mut txn = Txn::new(1000);
            let r = self.root.insert(&self.fake, &mut txn, LogicalBlock(lblk), pblk, 1, false);
            assert_eq!(r, Err(MapError::Mapped { ino: INO, lblk }));
            self.fake.return_data(pblk, 1);
            return;
        }
        let unwritten = unwritten && self.root.extents;
        let pblk = self.fake.allocate_data(len, jump);
        let mut txn = Txn::new(self.root.credits_for_insert(self.fake.block_size, len));
        let before = (self.root.i_block, self.root.blocks_delta);
        match self.root.insert(&self.fake, &mut txn, LogicalBlock(lblk), pblk, len, unwritten) {
            Ok(done) => {
                assert!(done >= 1 && done <= len);
                for i in 0..done {
                    self.model.insert(lblk + i, (pblk.0 + u64::from(i), unwritten));
                }
                self.fake.return_data(BlockNr(pblk.0 + u64::from(done)), len - done);
            }
            Err(MapError::NoSpace { .. }) => {
                assert_ne!(*self.fake.no_space_one_in.borrow(), 0);
                assert_eq!(before, (self.root.i_block, self.root.blocks_delta));
                self.fake.return_data(pblk, len);
            }
            Err(e) => panic!("insert {lblk} +{len}: {e}"),
        }
    }

    fn set_state(&mut self, lblk: u32, len: u32, unwritten: bool) {
        if !self.root.extents {
            return;
        }
        let end = u64::from(lblk) + u64::from(len);
        let mut at = lblk;
        loop {
            let more = self.rng.below(20) as u32;
            let mut txn = Txn::new(self.root.credits_for_insert(self.fake.block_size, 1) + more);
            let left = (end - u64::from(at)) as u32;
            let result = if unwritten {
                self.root.mark_unwritten(&self.fake, &mut txn, LogicalBlock(at), left)
            } else {
                self.root.convert_unwritten(&self.fake, &mut txn, LogicalBlock(at), left)
            };
            match result {
                Ok(Progress::Done) => break,
                Ok(Progress::Stopped { at: new }) => {
                    assert!(new.0 > at);
                    at = new.0;
                }
                Err(MapError::NoSpace { .. }) => assert_ne!(*self.fake.no_space_one_in.borrow(), 0),
                Err(e) => panic!("set_state {lblk} +{len}: {e}"),
            }
        }
        for (_, v) in self.model.range_mut(lblk..=(end - 1) as u32) {
            v.1 = unwritten;
        }
    }

    fn remove(&mut self, from: u32, to: u32) {
        let mut to_go = to;
        loop {
            let more = self.rng.below(40) as u32;
            let mut txn = Txn::new(self.root.credits_for_remove(1) + more);
            match self.root.remove(&self.fake, &mut txn, LogicalBlock(from), LogicalBlock(to_go)) {
                Ok(Progress::Done) => break,
                Ok(Progress::Stopped { at }) => {
                    assert!(at.0 < to_go && at.0 >= from, "{from}..={to_go} stopped at {}", at.0);
                    // Everything after it is already unmapped.
                    let behind = self.root.lookup(&self.fake, LogicalBlock(at.0 + 1), to_go - at.0).unwrap();
                    assert_eq!(behind.state, MapState::Hole);
                    to_go = at.0;
                }
                Err(MapError::NoSpace { .. }) => assert_ne!(*self.fake.no_space_one_in.borrow(), 0),
                Err(e) => panic!("remove {from}..={to}: {e}"),
            }
        }
        let gone: Vec<u32> = self.model.range(from..=to).map(|(k, _)| *k).collect();
        for k in gone {
            self.model.remove(&k);
        }
    }

    fn run(&mut self, operations: u32, spread: u32, check_every: u32) {
        for n in 0..operations {
            let base = self.rng.below(u64::from(spread)) as u32;
            let base = if self.rng.one_in(20) { self.end - 1 - base % 2000 } else { base };
            let long = self.rng.one_in(8);
            let len = 1 + self.rng.below(if long { 600 } else { 12 }) as u32;
            let fit = len.min(self.end - base);
            match self.rng.below(16) {
                0..=7 => {
                    let (unwritten, jump) = (self.rng.one_in(2), !self.rng.one_in(3));
                    self.insert(base, fit, unwritten, jump);
                }
                8 | 9 => self.set_state(base, fit, false),
                10 => self.set_state(base, fit, true),
                11 | 12 => self.remove(base, base + fit - 1),
                13 if self.rng.one_in(10) => self.remove(base, u32::MAX),
                13 if self.rng.one_in(4) => {
                    let to = base.saturating_add(spread / 8);
                    self.remove(base, to);
                }
                _ => {
                    let lblk = base.saturating_sub(self.rng.below(5) as u32);
                    self.check_lookup(lblk, 1 + len * 100);
                }
            }
            if n % check_every == 0 {
                self.check();
            }
        }
        self.check();
        *self.fake.no_space_one_in.borrow_mut() = 0;
        self.remove(0, u32::MAX);
        self.check();
        assert_eq!(self.root.blocks_delta, 0);
        let empty = MapRoot::empty(INO, self.root.extents, None);
        assert_eq!(self.root.i_block, empty.i_block, "an emptied map is as new");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn extents_agree_with_the_model(seed in any::<u64>(), big in any::<bool>(), dense in any::<bool>(),
                                    tiny_groups in any::<bool>(),
                                    no_space in prop_oneof![Just(0u64), Just(6)]) {
        let mut w = World::new(if big { 4096 } else { 1024 }, true, seed);
        *w.fake.no_space_one_in.borrow_mut() = no_space;
        // Groups may be so small that one extent spans many of them.
        w.fake.per_group = if tiny_groups { 64 } else { w.fake.per_group };
        w.run(500, if dense { 3_000 } else { 40_000 }, 7);
    }

    #[test]
    fn clusters_agree_with_the_model(seed in any::<u64>(), big in any::<bool>(), dense in any::<bool>(),
                                     tiny_groups in any::<bool>(), bits in 1..7u32,
                                     no_space in prop_oneof![Just(0u64), Just(6)]) {
        let mut w = World::new(if big { 4096 } else { 1024 }, true, seed);
        w.fake.clusters = ClusterSize::new(bits);
        *w.fake.no_space_one_in.borrow_mut() = no_space;
        w.fake.per_group = if tiny_groups { 256 } else { w.fake.per_group };
        w.run(400, if dense { 3_000 } else { 40_000 }, 7);
    }

    #[test]
    fn indirect_maps_agree_with_the_model(seed in any::<u64>(), big in any::<bool>(), dense in any::<bool>(),
                                          no_space in prop_oneof![Just(0u64), Just(6)]) {
        let mut w = World::new(if big { 4096 } else { 1024 }, false, seed);
        *w.fake.no_space_one_in.borrow_mut() = no_space;
        w.run(300, if dense { 700 } else { 400_000 }, 5);
    }
}

#[test]
fn a_deep_tree_grows_and_shrinks() {
    for descending in [false, true] {
        let mut w = World::new(1024, true, 5);
        let count = 30_000u32;
        for i in 0..count {
            let lblk = 2 * if descending { count - 1 - i } else { i };
            w.insert(lblk, 1, false, false);
            w.fake.blocks.borrow_mut().next += 1;
        }
        w.check();
        let depth = NodeRef::parse(&w.root.i_block, 0).unwrap().depth();
        assert_eq!(depth, 3);
        // Sequential writing leaves full nodes in both directions.
        assert!(w.fake.blocks.borrow().meta.len() <= (count as usize).div_ceil(84) + 8);
        w.remove(1000, 50_000);
        w.check();
        w.remove(60, u32::MAX);
        w.check();
        assert_eq!(NodeRef::parse(&w.root.i_block, 0).unwrap().depth(), 1);
        w.remove(8, u32::MAX);
        w.check();
        assert_eq!(NodeRef::parse(&w.root.i_block, 0).unwrap().depth(), 0, "four extents fit the root again");
    }
}

#[test]
fn random_inserts_over_three_levels() {
    let mut w = World::new(1024, true, 77);
    for _ in 0..20_000 {
        let lblk = w.rng.below(200_000) as u32;
        w.insert(lblk, 1, false, true);
    }
    w.check();
    for _ in 0..2_000 {
        let lblk = w.rng.below(200_000) as u32;
        w.remove(lblk, lblk + 40);
    }
    w.check();
    w.run(200, 200_000, 100);
}

#[test]
fn lengths_are_capped_at_both_limits() {
    let mut w = World::new(4096, true, 1);
    w.fake.per_group = 256;
    for unwritten in [false, true] {
        let cap = if unwritten { 32_767 } else { 32_768 };
        let pblk = w.fake.allocate_data(70_000, true);
        let mut done = 0;
        let mut lens = Vec::new();
        while done < 70_000 {
            let mut txn = Txn::new(100);
            let at = BlockNr(pblk.0 + u64::from(done));
            let more = w.root.insert(&w.fake, &mut txn, LogicalBlock(done), at, 70_000 - done, unwritten).unwrap();
            lens.push(more);
            done += more;
        }
        assert_eq!(lens, [cap, cap, 70_000 - 2 * cap]);
        for i in 0..70_000 {
            w.model.insert(i, (pblk.0 + u64::from(i), unwritten));
        }
        w.check();
        // Whole extents change state. 32768 written blocks are one block too many for an unwritten extent.
        w.set_state(0, 70_000, !unwritten);
        w.check();
        w.set_state(5, 1, unwritten);
        w.set_state(5, 1, !unwritten);
        w.check();
        w.check_lookup(0, 70_000);
        w.remove(0, u32::MAX);
        w.check();
    }
}

#[test]
fn the_last_logical_block() {
    let mut w = World::new(4096, true, 1);
    w.insert(LOGICAL_END - 1, 1, false, true);
    w.insert(LOGICAL_END - 3, 1, true, true);
    w.check();
    w.check_lookup(LOGICAL_END - 2, 10);
    w.check_lookup(0, u32::MAX);
    let pblk = w.fake.allocate_data(2, true);
    let mut txn = Txn::new(100);
    let r = w.root.insert(&w.fake, &mut txn, LogicalBlock(LOGICAL_END - 2), pblk, 2, false);
    assert_eq!(r, Err(MapError::Mapped { ino: INO, lblk: LOGICAL_END - 1 }));
    let r = w.root.insert(&w.fake, &mut txn, LogicalBlock(LOGICAL_END), pblk, 1, false);
    assert_eq!(r, Err(MapError::TooBig { ino: INO, lblk: u64::from(LOGICAL_END) }));
    w.fake.return_data(pblk, 2);
    let beyond = w.root.lookup(&w.fake, LogicalBlock(u32::MAX), 5).unwrap();
    assert_eq!((beyond.len, beyond.state), (1, MapState::Hole));
    w.remove(LOGICAL_END - 1, u32::MAX);
    w.check();
    w.remove(0, u32::MAX);
    w.check();
}

#[test]
fn indirect_borders() {
    let mut w = World::new(1024, false, 3);
    for border in [12u32, 12 + 256, 12 + 256 + 65536, w.end] {
        w.insert(border - 3, 6, false, true);
        w.check();
        w.check_lookup(border - 3, 6.min(w.end - border + 3));
        w.check_lookup(border.saturating_sub(100), 100);
    }
    let mut txn = Txn::new(100);
    let r = w.root.insert(&w.fake, &mut txn, LogicalBlock(w.end), BlockNr(5), 1, false);
    assert_eq!(r, Err(MapError::TooBig { ino: INO, lblk: u64::from(w.end) }));
    let r = w.root.insert(&w.fake, &mut txn, LogicalBlock(0), BlockNr(5), 1, true);
    assert!(matches!(r, Err(MapError::Invalid { .. })));
    w.remove(13, 300);
    w.check();
    w.remove(0, u32::MAX);
    w.check();
}

/// The blocks mapped before the damage remain mapped. The next call fails at the damage and changes nothing.
#[test]
fn damage_behind_the_first_array_fails_the_next_call() {
    let mut w = World::new(1024, false, 9);
    w.insert(200, 1, false, false);
    assert!(indirect::set_pointer(&mut w.root.i_block, 13, 77));
    let start = w.fake.allocate_data(4, false);
    let mut txn = Txn::new(100);
    assert_eq!(w.root.insert(&w.fake, &mut txn, LogicalBlock(266), start, 4, false), Ok(2));
    let (before, delta) = (w.root.i_block, w.root.blocks_delta);
    let next = w.root.insert(&w.fake, &mut txn, LogicalBlock(268), BlockNr(start.0 + 2), 2, false);
    assert!(matches!(next, Err(MapError::Corrupt { .. })), "{next:?}");
    assert_eq!((w.root.i_block, w.root.blocks_delta), (before, delta));
    assert_eq!(w.fake.blocks.borrow().meta.len(), 1);
}

/// Kernels leave empty pointer arrays when they punch holes. A removal of the range around them frees them.
#[test]
fn a_removal_frees_arrays_that_were_already_empty() {
    let (double, triple) = (12 + 256, 12 + 256 + 65536);
    for (lblk, slot, levels) in [(double, 13, 1), (triple, 14, 1), (triple, 14, 2)] {
        let mut w = World::new(1024, false, 7);
        w.insert(3, 1, false, false);
        w.insert(lblk + 5, 1, false, false);
        // The last array on the path loses its only pointer, and everything below it is freed.
        let mut chain = vec![u64::from(indirect::pointer(&w.root.i_block, slot).unwrap())];
        let blocks = w.fake.blocks.get_mut();
        while let Some(below) = blocks.meta.get(chain.last().unwrap()) {
            let next = below.chunks(4).map(|p| u32::from_le_bytes(p.try_into().unwrap())).find(|p| *p != 0);
            chain.push(u64::from(next.unwrap()));
        }
        let gone = chain.split_off(levels);
        blocks.meta.get_mut(chain.last().unwrap()).unwrap().fill(0);
        for block in &gone {
            assert!(blocks.meta.remove(block).is_some() || blocks.data.remove(block));
        }
        w.root.blocks_delta -= gone.len() as i64;
        w.model.remove(&(lblk + 5));
        w.check();
        w.remove(0, u32::MAX);
        w.check();
        assert_eq!(w.root.i_block, [0; 60], "from block {lblk}, {levels} arrays");
    }
}

#[test]
fn a_walk_reads_each_leaf_once() {
    let mut w = World::new(1024, true, 5);
    for i in 0..2_000 {
        w.insert(2 * i, 1, false, true);
    }
    *w.fake.reads.borrow_mut() = 0;
    let mut n = 0;
    w.root
        .walk(&w.fake, LogicalBlock(0), |_| {
            n += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(n, 2_000);
    let leaves = w.fake.blocks.borrow().meta.len() as u64;
    assert!(*w.fake.reads.borrow() <= 3 * leaves + 3, "{} reads for {leaves} nodes", w.fake.reads.borrow());
}
