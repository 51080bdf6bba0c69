//! Metadata blocks in memory (Linux: `struct buffer_head`, fs/buffer.c, and the states of include/linux/jbd2.h).
//!
//! Main types: [`Buffer`], [`BufferCache`].
//!
//! A buffer is Clean, Held by the running transaction, Logged (committed or committing, not yet home), or both Held and
//! Logged. Only the journal changes this state. The bytes are an `Arc`: the log or a home write that needs a stable
//! copy clones the `Arc`, and the next modification copies the block (`Arc::make_mut`). This is the "frozen copy" of
//! jbd2, made only if the block is changed in the meantime.
//!
//! A block's content is checked once by its owner, when it enters the cache (`verified`); blocks created in memory
//! count as verified.
//!
//! Each buffer is a frame of the budget's [`Reclaim`], and is dirty while it is Held or Logged.
//!
//! What it does not do: reclaim by itself (operations call [`Budget::relieve`] where they hold no lock that reclaim may
//! want), or writeback. The journal writes Held and Logged buffers home, even if there is no log (ext2).
//!
//! # Locking
//! Each buffer has a lock (`buffer`, 80) for its bytes and state. It is held while the buffer is filled from the device
//! (as Linux's BH_Lock), so that of two readers only one reads. A shard's lock (`buffer shard`, 90) protects the map;
//! only `reclaim` (213) is taken under it.

use std::sync::{Arc, OnceLock, Weak};

use extant_base::counter::Counter;
use extant_base::hash::{HashMap, shard_of};
use extant_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex, RwLock, RwLockWriteGuard};
use extant_block::{AlignedBuf, BioFlags, BlockDevice, Error};
use extant_ondisk::BlockNr;

use crate::budget::Budget;
use crate::reclaim::{Class, FrameCell, FrameId, FrameOwner, Key, OwnerId, Reclaim, State, Tried};

static BUFFER_CLASS: LockClass = LockClass::new("buffer", 80);
static SHARD_CLASS: LockClass = LockClass::new("buffer shard", 90);

const SHARD_BITS: u32 = 6;
const SHARDS: usize = 1 << SHARD_BITS;
/// The size of the data structures per buffer that the budget counts: map entry, frame, locks.
const OVERHEAD_BYTES: u64 = 192;

/// The wave in which a block is written home if there is no log. Blocks that others refer to are written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BufKind {
    /// Directory, indirect, extent, xattr and symlink blocks.
    Leaf = 0,
    /// Inode tables, bitmaps, descriptors, the superblock.
    Table = 1,
}

/// The transactions that need the buffer. If both are `None`, it is Clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferState {
    /// The running transaction that changed it.
    pub held: Option<u32>,
    /// The newest committing or committed transaction that logged it, while its home copy is older.
    pub logged: Option<u32>,
}

/// The bytes and the state, under the buffer's lock.
pub struct Inner {
    pub data: Arc<AlignedBuf>,
    state: BufferState,
}

impl Inner {
    pub fn state(&self) -> BufferState {
        self.state
    }
}

/// One metadata block.
pub struct Buffer {
    pub block: BlockNr,
    inner: RwLock<Inner>,
    uptodate: AtomicBool,
    verified: AtomicBool,
    kind: AtomicU8,
    frame: FrameCell,
    /// The time of its last use, as reclaim counts time.
    used: AtomicU32,
    budget: Arc<Budget>,
}

impl Buffer {
    /// Runs `f` on the bytes.
    pub fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.inner.read().data)
    }

    /// A stable copy of the bytes. They are copied only if the block changes.
    pub fn bytes(&self) -> Arc<AlignedBuf> {
        self.inner.read().data.clone()
    }

    /// Takes the lock of the bytes and state. For the journal.
    pub fn lock(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write()
    }

    pub fn state(&self) -> BufferState {
        self.inner.read().state
    }

    /// Changes the state of the buffer, whose lock the caller holds as `inner`. For the journal.
    pub fn claim(&self, inner: &mut Inner, change: impl FnOnce(&mut BufferState)) {
        let was_clean = inner.state == BufferState::default();
        change(&mut inner.state);
        let clean = inner.state == BufferState::default();
        if clean == was_clean {
            return;
        }
        let reclaim = self.budget.reclaim();
        reclaim.with(|core| {
            if let Some(id) = self.frame.get() {
                core.set_state(id, if clean { State::CLEAN } else { State::DIRTY });
            }
        });
        if clean {
            reclaim.written();
        }
    }

    pub fn kind(&self) -> BufKind {
        if self.kind.load(Ordering::Relaxed) == BufKind::Leaf as u8 { BufKind::Leaf } else { BufKind::Table }
    }

    pub fn set_kind(&self, kind: BufKind) {
        self.kind.store(kind as u8, Ordering::Relaxed);
    }

    /// Whether the owner has checked the content.
    pub fn verified(&self) -> bool {
        self.verified.load(Ordering::Acquire)
    }

    pub fn set_verified(&self) {
        self.verified.store(true, Ordering::Release);
    }
}

type Shard = HashMap<BlockNr, Arc<Buffer>>;

/// Exact counts since the mount.
#[derive(Debug, Default)]
pub struct CacheStats {
    pub hits: Counter,
    pub misses: Counter,
    pub evicted: Counter,
}

/// The metadata blocks of one mount.
pub struct BufferCache {
    dev: Arc<dyn BlockDevice>,
    block_size: u32,
    /// The number of blocks, which grows with the file system.
    blocks_count: AtomicU64,
    budget: Arc<Budget>,
    owner: OnceLock<OwnerId>,
    shards: Vec<Mutex<Shard>>,
    pub stats: CacheStats,
}

impl BufferCache {
    /// Creates a cache. `block_size` is in bytes; `blocks_count` limits every access.
    pub fn new(dev: Arc<dyn BlockDevice>, block_size: u32, blocks_count: u64, budget: Arc<Budget>) -> Arc<BufferCache> {
        let shards = (0..SHARDS).map(|_| Mutex::new(&SHARD_CLASS, Shard::default())).collect();
        let (owner, stats) = (OnceLock::new(), CacheStats::default());
        let blocks_count = AtomicU64::new(blocks_count);
        let cache = Arc::new(BufferCache { dev, block_size, blocks_count, budget, owner, shards, stats });
        let weak: Weak<BufferCache> = Arc::downgrade(&cache);
        let _ = cache.owner.set(cache.budget.reclaim().register(Class::Metadata, weak));
        cache
    }

    fn reclaim(&self) -> &Reclaim {
        self.budget.reclaim()
    }

    /// The number of bytes charged for a buffer.
    fn charge(&self) -> u64 {
        u64::from(self.block_size) + OVERHEAD_BYTES
    }

    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    pub fn blocks_count(&self) -> u64 {
        self.blocks_count.load(Ordering::Acquire)
    }

    /// Allows access to more blocks, because the file system has grown. Their content is on the device.
    pub fn grow(&self, blocks_count: u64) {
        self.blocks_count.fetch_max(blocks_count, Ordering::AcqRel);
    }

    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.dev
    }

    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    fn shard(&self, block: BlockNr) -> &Mutex<Shard> {
        &self.shards[shard_of(block.0, SHARD_BITS)]
    }

    fn out_of_range(&self, block: BlockNr) -> Error {
        Error::OutOfRange {
            device: self.dev.name().to_owned(),
            op: extant_block::BioOp::Read,
            offset: block.0.saturating_mul(u64::from(self.block_size)),
            len: u64::from(self.block_size),
            size: self.blocks_count().saturating_mul(u64::from(self.block_size)),
        }
    }

    /// The buffer of `block`, from the cache or newly inserted without content.
    fn find_or_insert(&self, block: BlockNr) -> Result<Arc<Buffer>, Error> {
        if block.0 >= self.blocks_count() {
            return Err(self.out_of_range(block));
        }
        let buffer = {
            let mut s = self.shard(block).lock();
            if let Some(b) = s.get(&block) {
                if let Some(id) = b.frame.get() {
                    self.reclaim().touches().touch_apart(id, &b.used);
                }
                return Ok(b.clone());
            }
            let b = Arc::new(Buffer {
                block,
                inner: RwLock::new(
                    &BUFFER_CLASS,
                    Inner { data: Arc::new(AlignedBuf::zeroed(0)), state: BufferState::default() },
                ),
                uptodate: AtomicBool::new(false),
                verified: AtomicBool::new(false),
                kind: AtomicU8::new(BufKind::Table as u8),
                frame: FrameCell::default(),
                used: AtomicU32::new(self.reclaim().touches().now()),
                budget: self.budget.clone(),
            });
            s.insert(block, b.clone());
            let owner = *self.owner.get().expect("set by new");
            let key = Key { object: block.0, page: 0 };
            self.reclaim().with(|core| b.frame.set(core.insert(owner, key, self.charge() as u32, State::CLEAN)));
            b
        };
        self.budget.charge(self.charge());
        Ok(buffer)
    }

    /// The block with its content (Linux: `sb_bread`).
    pub fn get(&self, block: BlockNr) -> Result<Arc<Buffer>, Error> {
        let b = self.find_or_insert(block)?;
        if b.uptodate.load(Ordering::Acquire) {
            self.stats.hits.inc();
            return Ok(b);
        }
        self.fill(&b)?;
        Ok(b)
    }

    fn fill(&self, b: &Arc<Buffer>) -> Result<(), Error> {
        let mut inner = b.inner.write();
        if b.uptodate.load(Ordering::Acquire) {
            self.stats.hits.inc();
            return Ok(());
        }
        self.stats.misses.inc();
        let mut data = AlignedBuf::zeroed(self.block_size as usize);
        self.dev.read_at(b.block.0 * u64::from(self.block_size), &mut data, BioFlags::META)?;
        inner.data = Arc::new(data);
        b.uptodate.store(true, Ordering::Release);
        Ok(())
    }

    /// The block, zeroed in memory without reading it, for a block that was just allocated (Linux: `sb_getblk` and a
    /// memset). Its old content, if cached, is lost.
    pub fn get_zeroed(&self, block: BlockNr) -> Result<Arc<Buffer>, Error> {
        let b = self.find_or_insert(block)?;
        {
            let mut inner = b.inner.write();
            inner.data = Arc::new(AlignedBuf::zeroed(self.block_size as usize));
            b.uptodate.store(true, Ordering::Release);
            b.verified.store(true, Ordering::Release);
        }
        Ok(b)
    }

    /// The block with the content that `make` writes into zeros, without reading it, for a block that is not on the
    /// device yet. If the block was created or checked before, it keeps its content. No thread sees an incomplete
    /// block.
    ///
    /// # Errors
    /// The block is past the end.
    pub fn get_made(&self, block: BlockNr, make: impl FnOnce(&mut [u8])) -> Result<Arc<Buffer>, Error> {
        let b = self.find_or_insert(block)?;
        {
            let mut inner = b.inner.write();
            if !(b.uptodate.load(Ordering::Acquire) && b.verified()) {
                let mut data = AlignedBuf::zeroed(self.block_size as usize);
                make(&mut data);
                inner.data = Arc::new(data);
                b.uptodate.store(true, Ordering::Release);
                b.set_verified();
            }
        }
        Ok(b)
    }

    /// The block, if it is in the cache with its content.
    pub fn peek(&self, block: BlockNr) -> Option<Arc<Buffer>> {
        let b = self.shard(block).lock().get(&block).cloned()?;
        b.uptodate.load(Ordering::Acquire).then_some(b)
    }

    /// Whether the block is in the cache, even without content because it is being read or could not be read.
    pub fn has_buffer(&self, block: BlockNr) -> bool {
        self.shard(block).lock().contains_key(&block)
    }

    /// Removes a freed block from the cache. A caller that still has the buffer keeps a detached copy.
    pub fn forget(&self, block: BlockNr) {
        let mut s = self.shard(block).lock();
        if let Some(b) = s.remove(&block) {
            self.leave(&b);
        }
    }

    /// Removes the frame of a buffer that was removed from its shard. The caller holds the shard's lock.
    fn leave(&self, b: &Buffer) {
        self.reclaim().with(|core| {
            if let Some(id) = b.frame.take() {
                core.remove(id);
            }
        });
        self.budget.uncharge(self.charge());
    }

    /// Reads those of `count` blocks from `start` on that are missing into the cache, in one request (Linux:
    /// `sb_breadahead`). Errors are ignored here, because the access that needs the block finds them again.
    pub fn readahead(&self, start: BlockNr, count: u32) {
        let end = start.0.saturating_add(u64::from(count)).min(self.blocks_count());
        self.read_together(&(start.0..end).map(BlockNr).collect::<Vec<_>>());
    }

    /// The same as [`BufferCache::readahead`] for `blocks`, which are in ascending order and near each other. The
    /// blocks between them are read in the same request, but are not put into the cache. They may be data, whose copy
    /// here would be stale as soon as the file is written.
    pub fn read_together(&self, blocks: &[BlockNr]) {
        let missing = |block: &BlockNr| self.peek(*block).is_none();
        let (Some(first), Some(last)) = (blocks.iter().position(missing), blocks.iter().rposition(missing)) else {
            return;
        };
        let blocks = &blocks[first..=last];
        // The buffers are locked before the device is read. Otherwise another thread could load, change, write home and
        // evict a block in between, and the old content would overwrite it.
        let mut buffers = Vec::with_capacity(blocks.len());
        for block in blocks {
            let Ok(b) = self.find_or_insert(*block) else { return };
            buffers.push(b);
        }
        // Buffers that have their content are skipped: a thread that changes one may hold a lock that other readers
        // wait for.
        let missing = buffers.iter().map(|b| (!b.uptodate.load(Ordering::Acquire)).then_some(b));
        let mut locked: Vec<_> = missing.map(|b| b?.inner.try_write()).collect();
        let (bs, from) = (self.block_size as usize, blocks[0].0);
        let mut all = AlignedBuf::zeroed((blocks[blocks.len() - 1].0 - from + 1) as usize * bs);
        let flags = BioFlags::META | BioFlags::RAHEAD;
        if self.dev.read_at(from * u64::from(self.block_size), &mut all, flags).is_err() {
            return;
        }
        for (b, inner) in buffers.iter().zip(&mut locked) {
            let Some(inner) = inner else { continue };
            if !b.uptodate.load(Ordering::Acquire) {
                let at = (b.block.0 - from) as usize * bs;
                self.stats.misses.inc();
                inner.data = Arc::new(AlignedBuf::from_slice(&all[at..at + bs]));
                b.uptodate.store(true, Ordering::Release);
            }
        }
    }

    /// Evicts every clean block that is not in use (after a replay has rewritten the device).
    pub fn drop_clean(&self) {
        for shard in &self.shards {
            let mut s = shard.lock();
            let all: Vec<_> = s.keys().copied().collect();
            for block in all {
                self.free(&mut s, block);
            }
        }
    }

    /// Frees the block's buffer if it is clean and unused. Returns whether it was freed.
    fn free(&self, s: &mut Shard, block: BlockNr) -> bool {
        let Some(b) = s.get(&block) else { return false };
        // The buffer is cloned only under this lock, so a count of one cannot increase now.
        let unused = Arc::strong_count(b) == 1;
        if !unused || !b.inner.try_read().is_some_and(|i| i.state == BufferState::default()) {
            return false;
        }
        if let Some(b) = s.remove(&block) {
            self.leave(&b);
            self.stats.evicted.inc();
        }
        true
    }

    /// The number of blocks in the cache.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl FrameOwner for BufferCache {
    fn try_free(&self, key: Key, id: FrameId) -> Tried {
        let block = BlockNr(key.object);
        let Some(mut s) = self.shard(block).try_lock() else { return Tried::Busy };
        match s.get(&block).is_some_and(|b| b.frame.get() == Some(id)) {
            true if self.free(&mut s, block) => Tried::Freed,
            true => Tried::InUse,
            false => Tried::Changed,
        }
    }
}

impl Drop for BufferCache {
    /// Removes the buffers from the budget, because other mounts may share it.
    fn drop(&mut self) {
        for shard in &self.shards {
            for (_, b) in shard.lock().drain() {
                self.leave(&b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use extant_block::BioOp;
    use extant_block::device::{MemDevice, TracedDevice};

    use super::*;

    #[test]
    fn read_together_caches_only_the_named_blocks() {
        let dev = Arc::new(TracedDevice::new(Arc::new(MemDevice::new(1 << 20))));
        for n in 0..64 {
            dev.write_at(n * 1024, &[&[n as u8; 1024]], BioFlags::empty()).expect("written");
        }
        let cache = BufferCache::new(dev.clone(), 1024, 1024, Budget::new(1 << 20));
        let named = [10, 11, 14, 20].map(BlockNr);
        cache.get(named[0]).expect("read");
        dev.take();
        cache.read_together(&named);
        let reads: Vec<_> = dev.take().iter().map(|r| (r.offset / 1024, r.len / 1024)).collect();
        assert_eq!(reads, [(11, 10)], "one request, without the last blocks, which are cached");
        for n in 0..64 {
            let cached = cache.peek(BlockNr(n)).map(|b| b.read(|bytes| bytes[0]));
            assert_eq!(cached, named.contains(&BlockNr(n)).then_some(n as u8), "block {n}");
        }
        cache.read_together(&named);
        assert_eq!(dev.count(BioOp::Read), 0, "everything is cached");
    }
}
