//! Clusters: the unit in which space is allocated, freed and reserved (`bigalloc`). Without the feature a cluster is
//! one block. Extents, the extent status and directories count blocks in either case.
//!
//! Main types: [`BlockAllocator`] (the allocator of a mount, whose callers count in blocks), [`Chosen`] (blocks that it
//! has chosen), [`Promises`] (the clusters of a file in which space is reserved for delayed data).
//!
//! The blocks of one logical cluster of a file share one physical cluster. A new block goes to the cluster of its
//! neighbours ([`crate::map::MapRoot::place_in_cluster`]), and only the first block of a cluster takes space. A cluster
//! is freed with its last block ([`crate::map::MapRoot::remove`]). A node of a map and a block of attributes take a
//! whole cluster.
//!
//! If some blocks leave a file and their cluster remains, the file may get the same blocks again. Until the transaction
//! that removed them is durable, a power cut brings the old mapping back, with the new contents of the blocks. So the
//! file gets no new blocks in such a cluster before then ([`BlockAllocator::is_vacated`]). Linux has no such check
//! (`get_implied_cluster_alloc`).
//!
//! # Locking
//! `promised clusters` (61), under the inode's `map` lock, which every change of the set holds exclusively. `vacated
//! clusters` (61) is a leaf.

use std::collections::{BTreeMap, BTreeSet};

use extant_base::sync::{LockClass, Mutex, MutexGuard};
use extant_journal::Handle;
use extant_mballoc::{Allocation, Allocator, InodePreallocation, Kind, MetaRequest, Neighbour, Request, Statistics};
use extant_ondisk::jbd2::Tid;
use extant_ondisk::{BlockNr, GroupNr, LogicalBlock};

use crate::error::Result;
use crate::groups::{Groups, Prepared};
pub(crate) use crate::map::ClusterSize;

static PROMISES_CLASS: LockClass = LockClass::new("promised clusters", 61);
static VACATED_CLASS: LockClass = LockClass::new("vacated clusters", 61);

/// Blocks that are chosen and not yet marked. No other blocks are in use in their clusters.
#[derive(Debug)]
#[must_use = "chosen blocks must be marked or cancelled"]
pub(crate) struct Chosen {
    pub start: BlockNr,
    pub len: u32,
    clusters: extant_mballoc::Chosen,
    size: ClusterSize,
}

impl Chosen {
    /// Splits off the blocks after the first `len`. Those in the last cluster that is kept are dropped.
    pub fn split_off(&mut self, len: u32) -> Option<Chosen> {
        let first = self.size.offset(self.start.0);
        let kept = self.size.for_blocks(u64::from(first) + u64::from(len)) as u32;
        let clusters = self.clusters.split_off(kept)?;
        let start = BlockNr(self.size.first_block(clusters.start.0));
        let rest = self.start.0 + u64::from(self.len) - start.0;
        self.len = self.len.min(len);
        Some(Chosen { start, len: rest as u32, clusters, size: self.size })
    }
}

/// The allocator of a mount. It counts clusters; its callers count blocks, except where a name says clusters.
pub(crate) struct BlockAllocator {
    clusters: Allocator<Groups>,
    size: ClusterSize,
    /// Clusters that remained in use when some of their blocks were freed, and the last transaction that freed some.
    vacated: Mutex<BTreeMap<u64, Tid>>,
}

impl BlockAllocator {
    pub fn new(clusters: Allocator<Groups>) -> BlockAllocator {
        let size = ClusterSize::new(clusters.geometry().cluster_bits);
        BlockAllocator { clusters, size, vacated: Mutex::new(&VACATED_CLASS, BTreeMap::new()) }
    }

    /// Records that transaction `tid` freed blocks of `cluster`, which remains in use. `durable` is the newest durable
    /// transaction.
    pub fn vacate(&self, cluster: u64, tid: Tid, durable: Tid) {
        let mut vacated = self.vacated.lock();
        vacated.retain(|_, left| left.is_after(durable));
        vacated.insert(cluster, tid);
    }

    /// Whether blocks of the cluster of `block` were freed in a transaction that is not yet durable.
    pub fn is_vacated(&self, block: BlockNr, durable: impl FnOnce() -> Tid) -> bool {
        let left = self.vacated.lock().get(&self.size.of(block.0)).copied();
        left.is_some_and(|left| left.is_after(durable()))
    }

    pub fn cluster_size(&self) -> ClusterSize {
        self.size
    }

    fn cluster(&self, block: BlockNr) -> BlockNr {
        BlockNr(self.size.of(block.0))
    }

    fn block(&self, cluster: BlockNr) -> BlockNr {
        BlockNr(self.size.first_block(cluster.0))
    }

    /// The clusters that contain any of these blocks, as start and number.
    fn around(&self, start: BlockNr, len: u64) -> (BlockNr, u64) {
        let clusters = self.size.around(start.0..start.0.saturating_add(len));
        (BlockNr(clusters.start), clusters.end.saturating_sub(clusters.start))
    }

    fn blocks_of(&self, clusters: u32) -> u32 {
        self.size.first_block(clusters.into()).min(u64::from(u32::MAX)) as u32
    }

    /// The request for the clusters that cover a request for blocks.
    fn translated<'a>(&self, request: &Request<'a>) -> Request<'a> {
        if self.size.is_one() {
            return *request;
        }
        let here = |block: Option<BlockNr>| block.map(|b| self.cluster(b));
        let neighbour = |n: Option<Neighbour>| {
            n.map(|n| Neighbour {
                logical: LogicalBlock(self.size.of(n.logical.0.into()) as u32),
                block: self.cluster(n.block),
            })
        };
        let (first, kind) = match request.kind {
            Kind::Data { owner, logical, file_blocks, reserved, left, right } => {
                let kind = Kind::Data {
                    owner,
                    logical: LogicalBlock(self.size.of(logical.0.into()) as u32),
                    file_blocks: self.size.for_blocks(file_blocks),
                    reserved,
                    left: neighbour(left),
                    right: neighbour(right),
                };
                (self.size.offset(logical.0.into()), kind)
            }
            Kind::Metadata(meta) => {
                let (home, parent, data) = (here(meta.home), here(meta.parent), here(meta.data));
                (0, Kind::Metadata(MetaRequest { home, parent, data, ..meta }))
            }
        };
        let len = self.size.for_blocks(u64::from(first) + u64::from(request.len)) as u32;
        // Only files without extents have pointers, and bigalloc excludes such files.
        Request { goal: here(request.goal), len, kind, max_block: here(request.max_block), pointers: None, ..*request }
    }

    /// [`Allocator::choose_with`], for blocks that need a new cluster. A block whose cluster is already mapped gets its
    /// place from [`crate::map::MapRoot::place_in_cluster`].
    pub fn choose_with(&self, request: &Request<'_>, more: u32) -> Result<(Chosen, Option<Chosen>)> {
        let more = if self.size.is_one() { more } else { 0 };
        let (clusters, rest) = self.clusters.choose_with(&self.translated(request), more)?;
        let offset = match request.kind {
            Kind::Data { logical, .. } => self.size.offset(logical.0.into()),
            Kind::Metadata(_) => 0,
        };
        let start = BlockNr(self.block(clusters.start).0 + u64::from(offset));
        let len = match self.size.is_one() {
            true => clusters.len,
            false => request.len.min(self.blocks_of(clusters.len).saturating_sub(offset)),
        };
        let rest =
            rest.map(|rest| Chosen { start: self.block(rest.start), len: rest.len, clusters: rest, size: self.size });
        Ok((Chosen { start, len, clusters, size: self.size }, rest))
    }

    pub fn hand_over(&self, chosen: &mut Chosen) {
        self.clusters.hand_over(&mut chosen.clusters);
    }

    pub fn prepare(&self, handle: &mut Handle, chosen: &Chosen) -> Result<Option<Prepared>> {
        self.clusters.prepare(handle, &chosen.clusters)
    }

    pub fn mark(&self, handle: &mut Handle, chosen: &Chosen) -> Result<()> {
        self.clusters.mark(handle, &chosen.clusters)
    }

    pub fn cancel(&self, chosen: Chosen) {
        self.clusters.cancel(chosen.clusters);
    }

    /// [`Allocator::allocate`]: whole clusters.
    pub fn allocate(&self, handle: &mut Handle, request: &Request<'_>) -> Result<Allocation> {
        let got = self.clusters.allocate(handle, &self.translated(request))?;
        Ok(Allocation { start: self.block(got.start), len: self.blocks_of(got.len) })
    }

    /// [`Allocator::free`], for the clusters that contain any of these blocks.
    pub fn free(&self, handle: &mut Handle, start: BlockNr, len: u64) -> Result<Vec<(BlockNr, u32)>> {
        let (start, len) = self.around(start, len);
        let mut freed = self.clusters.free(handle, start, len)?;
        if !self.size.is_one() {
            freed.iter_mut().for_each(|(start, len)| (*start, *len) = (self.block(*start), self.blocks_of(*len)));
        }
        Ok(freed)
    }

    pub fn next_freeable(&self, start: BlockNr, len: u32) -> Result<Option<(BlockNr, u32)>> {
        let (start, len) = self.around(start, len.into());
        let found = self.clusters.next_freeable(start, len as u32)?;
        Ok(found.map(|(start, len)| (self.block(start), self.blocks_of(len))))
    }

    pub fn release(&self, freed: &[(BlockNr, u32)]) {
        if self.size.is_one() {
            return self.clusters.release(freed);
        }
        let clusters: Vec<_> = freed
            .iter()
            .map(|(start, len)| self.around(*start, u64::from(*len)))
            .map(|(start, len)| (start, len as u32))
            .collect();
        self.clusters.release(&clusters);
    }

    /// [`Allocator::visit_free`], for the clusters that lie in the range.
    pub fn visit_free<E>(
        &self,
        start: BlockNr,
        len: u64,
        min_len: u32,
        mut visit: impl FnMut(BlockNr, u32) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let clusters = self.size.within(start.0..start.0.saturating_add(len));
        let (first, count) = (BlockNr(clusters.start), clusters.end - clusters.start);
        self.clusters.visit_free(first, count, self.size.for_blocks(min_len.into()) as u32, |start, len| {
            visit(self.block(start), self.blocks_of(len))
        })
    }

    pub fn protect(&mut self, ranges: impl IntoIterator<Item = (BlockNr, u64)>) {
        let clusters: Vec<_> = ranges.into_iter().map(|(start, len)| self.around(start, len)).collect();
        self.clusters.protect(clusters);
    }

    /// Whether some of these blocks share a cluster with the file system's own structures.
    pub fn is_protected(&self, start: BlockNr, len: u64) -> bool {
        let (start, len) = self.around(start, len);
        self.clusters.is_protected(start, len)
    }

    pub fn is_known_free(&self, block: BlockNr) -> bool {
        self.clusters.is_known_free(self.cluster(block))
    }

    pub fn is_bad(&self, group: GroupNr) -> bool {
        self.clusters.is_bad(group)
    }

    pub fn zone_around(&self, block: BlockNr) -> Option<(BlockNr, u32)> {
        let (start, len) = self.clusters.zone_around(self.cluster(block))?;
        Some((self.block(start), self.blocks_of(len)))
    }

    /// Reserves as many of these clusters as are free for delayed data, and returns their number.
    pub fn reserve_clusters_up_to(&self, clusters: u64, root: bool) -> u64 {
        self.clusters.reserve_up_to(clusters, root)
    }

    /// Reserves clusters that the caller has just freed.
    pub fn reserve_freed_clusters(&self, clusters: u64) {
        self.clusters.reserve_freed(clusters);
    }

    pub fn unreserve_clusters(&self, clusters: u64) {
        self.clusters.unreserve(clusters);
    }

    pub fn free_blocks(&self) -> u64 {
        self.size.first_block(self.clusters.free_blocks())
    }

    /// Free clusters: the unit of the counts in the descriptors.
    pub fn free_clusters(&self) -> u64 {
        self.clusters.free_blocks()
    }

    pub fn reserved_blocks(&self) -> u64 {
        self.size.first_block(self.clusters.reserved_blocks())
    }

    #[cfg(test)]
    pub fn pending_blocks(&self) -> u64 {
        self.size.first_block(self.clusters.pending_blocks())
    }

    pub fn discard_preallocations(&self, owner: &InodePreallocation) {
        self.clusters.discard_preallocations(owner);
    }

    pub fn discard_all_under_pressure(&self) {
        self.clusters.discard_all_under_pressure();
    }

    pub fn puts_together(&self) -> bool {
        self.size.is_one() && self.clusters.puts_together()
    }

    pub fn puts_pointers_in_front(&self) -> bool {
        self.clusters.puts_pointers_in_front()
    }

    /// Linux up to 6.0 bounds the directories of a flex group as if it were a single group.
    pub fn orlov_unscaled(&self) -> bool {
        self.clusters.rules().orlov_unscaled
    }

    pub fn statistics(&self) -> Statistics {
        self.clusters.statistics()
    }

    pub fn memory_fixed(&self) -> usize {
        self.clusters.memory_fixed()
    }

    pub fn memory_used(&self) -> usize {
        self.clusters.memory_used()
    }

    pub fn drop_unused_buddies(&self, target: usize) -> usize {
        self.clusters.drop_unused_buddies(target)
    }

    /// The allocator itself, for growing a file system. Growth is refused if clusters have several blocks.
    pub fn in_blocks(&self) -> &Allocator<Groups> {
        &self.clusters
    }
}

/// The clusters of a file that have delayed data and no mapped block. Space is reserved once for each of them. A
/// cluster with a mapped block needs no reservation. Linux keeps the opposite set (`struct pending_reservation`,
/// fs/ext4/extents_status.h).
pub(crate) struct Promises {
    size: ClusterSize,
    clusters: Mutex<BTreeSet<u32>>,
}

impl Promises {
    /// `None` if a cluster is one block: then space is reserved for every delayed block, and the extent status knows
    /// those.
    pub fn new(size: ClusterSize) -> Option<Box<Promises>> {
        (!size.is_one()).then(|| Box::new(Promises { size, clusters: Mutex::new(&PROMISES_CLASS, BTreeSet::new()) }))
    }

    pub fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.clusters.lock()
    }

    /// The reserved space, in blocks.
    pub fn total(&self) -> u64 {
        self.size.first_block(self.clusters.lock().len() as u64)
    }
}
