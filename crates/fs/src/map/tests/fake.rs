//! A store in memory that keeps accounts like a journal: credits for each distinct block, double frees, leaks, and
//! verifications.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use extant_base::rng::Rng;
use extant_ondisk::{BlockNr, GroupNr};

use crate::map::{ClusterSize, MapError, MapStore, NewNode, Shared};

/// A handle: its credits, and the blocks it has touched.
#[derive(Debug)]
pub struct Txn {
    pub credits: u32,
    touched: BTreeSet<(u8, u64)>,
}

impl Txn {
    pub fn new(credits: u32) -> Txn {
        Txn { credits, touched: BTreeSet::new() }
    }

    /// kind 0: the block itself; 1: bitmap of a group; 2: descriptor of a group.
    fn touch(&mut self, kind: u8, nr: u64) {
        self.touched.insert((kind, nr));
        assert!(self.touched.len() <= self.credits as usize, "handle overrun: {} credits", self.credits);
    }
}

#[derive(Debug, Default)]
pub struct Blocks {
    pub meta: BTreeMap<u64, Vec<u8>>,
    pub data: BTreeSet<u64>,
    verified: BTreeSet<u64>,
    pub next: u64,
}

#[derive(Debug)]
pub struct Fake {
    pub block_size: u32,
    pub blocks_count: u64,
    pub per_group: u64,
    pub blocks: RefCell<Blocks>,
    pub rng: RefCell<Rng>,
    /// One in this many allocations fails; 0 for none.
    pub no_space_one_in: RefCell<u64>,
    pub reads: RefCell<u64>,
    pub salvages: bool,
    pub clusters: ClusterSize,
}

impl Fake {
    pub fn new(block_size: u32, seed: u64) -> Fake {
        Fake {
            block_size,
            blocks_count: 1 << 32,
            per_group: 8 * u64::from(block_size),
            blocks: RefCell::new(Blocks { next: 1000, ..Blocks::default() }),
            rng: RefCell::new(Rng::new(seed)),
            no_space_one_in: RefCell::new(0),
            reads: RefCell::new(0),
            salvages: false,
            clusters: ClusterSize::new(0),
        }
    }

    /// Allocates data blocks: right after the previous ones, or elsewhere.
    pub fn allocate_data(&self, len: u32, jump: bool) -> BlockNr {
        let mut blocks = self.blocks.borrow_mut();
        if jump {
            blocks.next += 1 + self.rng.borrow_mut().below(50_000);
        }
        let start = blocks.next;
        blocks.next += u64::from(len);
        assert!(blocks.next < 1 << 32, "the test used up its address space");
        for b in start..start + u64::from(len) {
            assert!(blocks.data.insert(b));
        }
        BlockNr(start)
    }

    /// Allocates the clusters of data blocks that begin at `offset` in the first of them.
    pub fn allocate_clusters(&self, offset: u32, len: u32, jump: bool) -> BlockNr {
        let size = self.clusters;
        let mut blocks = self.blocks.borrow_mut();
        if jump {
            blocks.next += 1 + self.rng.borrow_mut().below(50_000);
        }
        let first = size.for_blocks(blocks.next);
        let end = first + size.for_blocks(u64::from(offset) + u64::from(len));
        blocks.next = size.first_block(end);
        assert!(blocks.next < 1 << 32, "the test used up its address space");
        (first..end).for_each(|cluster| assert!(blocks.data.insert(size.first_block(cluster))));
        BlockNr(size.first_block(first) + u64::from(offset))
    }

    /// Frees the clusters of blocks that the map did not use.
    pub fn return_clusters(&self, start: BlockNr, len: u32) {
        let size = self.clusters;
        for cluster in size.around(start.0..start.0 + u64::from(len)) {
            assert!(self.blocks.borrow_mut().data.remove(&size.first_block(cluster)));
        }
    }

    /// Frees data blocks that the map did not use.
    pub fn return_data(&self, start: BlockNr, len: u32) {
        let mut blocks = self.blocks.borrow_mut();
        for b in start.0..start.0 + u64::from(len) {
            assert!(blocks.data.remove(&b));
        }
    }

    /// Forgets every verification, as a remount does.
    pub fn drop_cache(&self) {
        self.blocks.borrow_mut().verified.clear();
    }

    fn verify(&self, block: BlockNr, verify: impl FnOnce(&[u8]) -> Result<(), String>) -> Result<Vec<u8>, MapError> {
        let (bytes, known) = {
            let blocks = self.blocks.borrow();
            let Some(bytes) = blocks.meta.get(&block.0) else {
                return Err(self.corrupt(block, "not a metadata block".to_owned()));
            };
            (bytes.clone(), blocks.verified.contains(&block.0))
        };
        if !known {
            verify(&bytes).map_err(|detail| self.corrupt(block, detail))?;
            self.blocks.borrow_mut().verified.insert(block.0);
        }
        Ok(bytes)
    }

    fn corrupt(&self, block: BlockNr, detail: String) -> MapError {
        MapError::Corrupt { ino: extant_ondisk::InodeNr(0), block: Some(block), detail }
    }

    fn group(&self, block: u64) -> u64 {
        block / self.per_group
    }
}

impl MapStore for Fake {
    type Txn = Txn;
    type Error = MapError;

    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn blocks_count(&self) -> u64 {
        self.blocks_count
    }

    fn cluster_size(&self) -> ClusterSize {
        self.clusters
    }

    fn group_of(&self, block: BlockNr) -> GroupNr {
        GroupNr(self.group(block.0) as u32)
    }

    fn read<R>(
        &self,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> Result<(), String>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, MapError> {
        *self.reads.borrow_mut() += 1;
        Ok(f(&self.verify(block, verify)?))
    }

    fn read_damaged<R>(&self, block: BlockNr, f: impl FnOnce(&[u8]) -> R) -> Result<R, MapError> {
        *self.reads.borrow_mut() += 1;
        let bytes = self.blocks.borrow().meta.get(&block.0).cloned();
        bytes.map(|bytes| f(&bytes)).ok_or_else(|| self.corrupt(block, "not a metadata block".to_owned()))
    }

    fn salvages(&self) -> bool {
        self.salvages
    }

    fn modify<R>(
        &self,
        txn: &mut Txn,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> Result<(), String>,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, MapError> {
        let mut bytes = self.verify(block, verify)?;
        txn.touch(0, block.0);
        let result = f(&mut bytes);
        self.blocks.borrow_mut().meta.insert(block.0, bytes);
        Ok(result)
    }

    fn allocate_meta(&self, txn: &mut Txn, _: NewNode) -> Result<BlockNr, MapError> {
        let one_in = *self.no_space_one_in.borrow();
        if one_in > 0 && self.rng.borrow_mut().one_in(one_in) {
            return Err(MapError::NoSpace { ino: extant_ondisk::InodeNr(0) });
        }
        let mut blocks = self.blocks.borrow_mut();
        let block = self.clusters.first_block(self.clusters.for_blocks(blocks.next));
        blocks.next = block + u64::from(self.clusters.blocks());
        txn.touch(1, self.group(block));
        txn.touch(2, self.group(block));
        blocks.meta.insert(block, vec![0; self.block_size as usize]);
        blocks.verified.insert(block);
        Ok(BlockNr(block))
    }

    fn init<R>(&self, txn: &mut Txn, block: BlockNr, f: impl FnOnce(&mut [u8]) -> R) -> Result<R, MapError> {
        let mut bytes = vec![0; self.block_size as usize];
        txn.touch(0, block.0);
        let result = f(&mut bytes);
        self.blocks.borrow_mut().meta.insert(block.0, bytes).expect("allocated before");
        Ok(result)
    }

    fn free_meta(&self, txn: &mut Txn, block: BlockNr) -> Result<(), MapError> {
        txn.touch(1, self.group(block.0));
        txn.touch(2, self.group(block.0));
        let mut blocks = self.blocks.borrow_mut();
        blocks.verified.remove(&block.0);
        match blocks.meta.remove(&block.0) {
            Some(_) => Ok(()),
            None => Err(self.corrupt(block, "freed twice".to_owned())),
        }
    }

    fn free_data(&self, txn: &mut Txn, start: BlockNr, len: u32, shared: Shared) -> Result<(), MapError> {
        for b in shared.freed(self.clusters, start, len).map(|c| self.clusters.first_block(c)) {
            if !self.blocks.borrow_mut().data.remove(&b) {
                return Err(self.corrupt(BlockNr(b), "data freed twice".to_owned()));
            }
        }
        for group in self.group(start.0)..=self.group(start.0 + u64::from(len) - 1) {
            txn.touch(1, group);
            txn.touch(2, group);
        }
        Ok(())
    }

    fn has_credits(&self, txn: &mut Txn, blocks: u32) -> bool {
        txn.touched.len() + blocks as usize <= txn.credits as usize
    }
}
