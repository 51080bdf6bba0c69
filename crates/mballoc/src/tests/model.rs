//! A disk in memory that checks every mark: no block is allocated twice, none before its commit, and no metadata at
//! all.

use std::ops::Range;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_ondisk::indirect::PointerBlock;
use extant_ondisk::{BlockNr, GroupNr, LogicalBlock};

use crate::{Allocation, Allocator, Error, Geometry, GroupStore, GroupSummary, Options};

static DISK: LockClass = LockClass::new("test disk", 80);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestError {
    Alloc(Error),
    Io,
}

impl From<Error> for TestError {
    fn from(e: Error) -> TestError {
        TestError::Alloc(e)
    }
}

impl TestError {
    pub fn no_space(&self) -> bool {
        matches!(self, TestError::Alloc(e) if e.is_no_space())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    Free,
    Used,
    /// Free on disk, but not reusable yet.
    Pending,
    /// Metadata that a broken bitmap shows as free.
    Zone,
}

/// `count` missing pointer blocks of a file, for arrays of 64 pointers, and the end of the array of `logical`.
pub fn pointer_blocks(logical: u32, count: usize) -> (Vec<PointerBlock>, u64) {
    let first = |level: usize| LogicalBlock(logical >> (6 * level) << (6 * level));
    let blocks = (1..=count).rev().map(|level| PointerBlock { first: first(level), level: level as u8 });
    (blocks.collect(), u64::from(first(1).0) + 64)
}

pub struct ModelStore {
    pub geometry: Geometry,
    groups: Vec<Mutex<Vec<Block>>>,
    /// Makes loads and preparations take a while, so that other threads run in between.
    pub slow: AtomicBool,
    pub fail_marks: AtomicBool,
    pub fail_loads: AtomicU64,
    pub fail_prepares: AtomicU64,
    pub loads: AtomicU64,
    pub marks: AtomicU64,
    /// The map blocks in the summary of each group.
    pub maps: u32,
    /// The number of groups reported as damaged.
    pub damaged: AtomicU64,
}

/// The journal handle: records the groups that it dirtied.
#[derive(Default, Debug)]
pub struct Txn {
    pub groups: std::collections::BTreeSet<u32>,
}

impl ModelStore {
    pub fn new(geometry: Geometry) -> ModelStore {
        geometry.check().expect("sane");
        let groups = (0..geometry.groups)
            .map(|g| Mutex::new(&DISK, vec![Block::Free; geometry.blocks_in_group(GroupNr(g)) as usize]))
            .collect();
        ModelStore {
            geometry,
            groups,
            slow: AtomicBool::new(false),
            fail_marks: AtomicBool::new(false),
            fail_loads: AtomicU64::new(u64::MAX),
            fail_prepares: AtomicU64::new(u64::MAX),
            loads: AtomicU64::new(0),
            marks: AtomicU64::new(0),
            maps: 0,
            damaged: AtomicU64::new(0),
        }
    }

    pub fn set(&self, group: u32, start: u32, len: u32, state: Block) {
        self.groups[group as usize].lock()[start as usize..(start + len) as usize].fill(state);
    }

    pub fn count(&self, state: Block) -> u64 {
        self.groups.iter().map(|g| g.lock().iter().filter(|&&b| b == state).count() as u64).sum()
    }

    pub fn free_in(&self, group: u32) -> u32 {
        self.groups[group as usize].lock().iter().filter(|&&b| b != Block::Used).count() as u32
    }

    pub fn summaries(&self) -> Vec<GroupSummary> {
        (0..self.geometry.groups)
            .map(|g| GroupSummary { free: self.free_in(g), block_uninit: false, maps: self.maps })
            .collect()
    }

    fn dawdle(&self) {
        if self.slow.load(Ordering::Relaxed) {
            for _ in 0..8 {
                extant_base::task::yield_now();
            }
        }
    }

    /// Makes pending blocks in these ranges reusable.
    pub fn commit(&self, freed: &[(BlockNr, u32)]) {
        for &(start, len) in freed {
            for b in start.0..start.0 + u64::from(len) {
                let (g, i) = self.geometry.locate(BlockNr(b)).expect("inside");
                let block = &mut self.groups[g.0 as usize].lock()[i as usize];
                assert_eq!(*block, Block::Pending);
                *block = Block::Free;
            }
        }
    }
}

impl GroupStore for ModelStore {
    type Txn = Txn;
    type Error = TestError;
    type Prepared = GroupNr;

    fn load(&self, group: GroupNr) -> Result<Vec<u8>, TestError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        if self.fail_loads.load(Ordering::Relaxed) == u64::from(group.0) {
            return Err(TestError::Io);
        }
        let mut bitmap = vec![0xFFu8; self.geometry.block_size as usize];
        for (i, b) in self.groups[group.0 as usize].lock().iter().enumerate() {
            if *b != Block::Used {
                bitmap[i / 8] &= !(1 << (i % 8));
            }
        }
        self.dawdle();
        Ok(bitmap)
    }

    fn damaged(&self, _: GroupNr, _: &TestError) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }

    fn prepare(&self, _: &mut Txn, group: GroupNr) -> Result<GroupNr, TestError> {
        if self.fail_prepares.load(Ordering::Relaxed) == u64::from(group.0) {
            return Err(TestError::Io);
        }
        self.dawdle();
        Ok(group)
    }

    fn mark(
        &self,
        txn: &mut Txn,
        group: GroupNr,
        prepared: &GroupNr,
        range: Range<u32>,
        used: bool,
    ) -> Result<(), TestError> {
        assert_eq!(*prepared, group);
        if self.fail_marks.load(Ordering::Relaxed) {
            return Err(TestError::Io);
        }
        self.marks.fetch_add(1, Ordering::Relaxed);
        txn.groups.insert(group.0);
        let mut blocks = self.groups[group.0 as usize].lock();
        for (i, b) in blocks.iter_mut().enumerate().take(range.end as usize).skip(range.start as usize) {
            let (from, to) = if used { (Block::Free, Block::Used) } else { (Block::Used, Block::Pending) };
            assert_eq!(*b, from, "block {i} of {group}, used={used}");
            *b = to;
        }
        assert!(range.end as usize <= blocks.len() && !range.is_empty());
        Ok(())
    }
}

/// `groups` full groups of `bpg` blocks, and a last one of `last` (none if 0), with blocks of 1 KiB.
pub fn geometry(groups: u32, bpg: u32, last: u32) -> Geometry {
    Geometry {
        blocks_count: 1 + u64::from(groups) * u64::from(bpg) + u64::from(last),
        first_data_block: 1,
        blocks_per_group: bpg,
        groups: groups + u32::from(last > 0),
        cluster_bits: 0,
        flex_bg_size: 1,
        stripe: 0,
        block_size: 1024,
    }
}

/// Blocks of 4 KiB in groups of 32768.
pub fn large(groups: u32, flex_bg_size: u32) -> Geometry {
    Geometry {
        blocks_count: u64::from(groups) * 32768,
        first_data_block: 0,
        blocks_per_group: 32768,
        groups,
        cluster_bits: 0,
        flex_bg_size,
        stripe: 0,
        block_size: 4096,
    }
}

pub fn allocator(store: &Arc<ModelStore>, options: Options) -> Allocator<ModelStore> {
    Allocator::new(store.clone(), store.geometry.clone(), &store.summaries(), options).expect("made")
}

pub fn extent(a: Allocation) -> (BlockNr, u32) {
    (a.start, a.len)
}

/// Frees, commits and releases.
pub fn free_now(a: &Allocator<ModelStore>, store: &ModelStore, (start, len): (BlockNr, u32)) {
    let freed = a.free(&mut Txn::default(), start, u64::from(len)).expect("freed");
    store.commit(&freed);
    a.release(&freed);
}

/// Asserts that, with every preallocation discarded and nothing pending, the allocator and the disk agree group by
/// group.
pub fn assert_agrees(a: &Allocator<ModelStore>, store: &ModelStore) {
    a.discard_all_under_pressure();
    assert_eq!(a.free_blocks(), store.count(Block::Free) + store.count(Block::Pending));
    if store.count(Block::Pending) == 0 {
        for g in 0..store.geometry.groups {
            let group = a.group(GroupNr(g)).expect("group");
            assert_eq!(group.free + group.set_aside, store.free_in(g), "group {g}");
        }
        assert_eq!(a.pending_blocks(), 0);
    }
    assert_eq!(a.statistics().pa_blocks, a.statistics().pa_spent, "nothing is set aside any more");
    assert_eq!(a.available_blocks(true) + a.reserved_blocks(), a.free_blocks());
    assert_eq!(a.statistics().bad_releases, 0);
    assert_eq!(a.statistics().groups_bad, 0);
}
