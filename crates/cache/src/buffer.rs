//! Metadata blocks in memory (Linux: `struct buffer_head`, fs/buffer.c, and the states of include/linux/jbd2.h).
//!
//! Main types: [`Buffer`], [`BufferCache`].
//!
//! A buffer is Clean, Held by the running transaction, Logged (committed or committing, not yet home), or both of the
//! last two. Only the journal moves it between these. The bytes are an `Arc`: whoever needs a stable copy (the log, a
//! home write) clones the `Arc`, and the next modification copies the block (`Arc::make_mut`). That is the "frozen
//! copy" of jbd2, made only when somebody really changes the block meanwhile.
//!
//! A block's content is checked by its owner once, when it enters the cache (`verified`); blocks made in memory count
//! as verified.
//!
//! What it does not do: reclaim by itself (operations call [`Budget::relieve`] where they hold no lock that a shrinker
//! may want), writeback. Held and Logged buffers go home through the journal, which also writes them when there is no
//! log (ext2).
//!
//! # Locking
//! Each buffer has a lock (`buffer`, 80) around bytes and state; filling it from the device happens under that lock (as
//! under Linux's BH_Lock), so that two readers read once. A shard's lock (`buffer shard`, 90) guards the map and is a
//! leaf.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::counter::Counter;
use extant_base::hash::{HashMap, shard_of};
use extant_base::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use extant_base::sync::{LockClass, Mutex, RwLock, RwLockWriteGuard};
use extant_block::{AlignedBuf, BioFlags, BlockDevice, Error};
use extant_ondisk::BlockNr;

use crate::budget::{Budget, Shrinker};

static BUFFER_CLASS: LockClass = LockClass::new("buffer", 80);
static SHARD_CLASS: LockClass = LockClass::new("buffer shard", 90);

const SHARD_BITS: u32 = 6;
const SHARDS: usize = 1 << SHARD_BITS;
/// Bookkeeping per buffer that the budget should see: map entry, queue entry, locks.
const OVERHEAD_BYTES: u64 = 192;

/// In which wave a block goes home when there is no log: blocks that others point to first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BufKind {
    /// Directory, indirect, extent, xattr and symlink blocks.
    Leaf = 0,
    /// Inode tables, bitmaps, descriptors, the superblock.
    Table = 1,
}

/// Who has a claim on a buffer. Both `None` is Clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferState {
    /// Changed by this running transaction.
    pub held: Option<u32>,
    /// The newest committing or committed transaction that logged it, while its home copy is older.
    pub logged: Option<u32>,
}

/// Bytes and state, under the buffer's lock.
pub struct Inner {
    pub data: Arc<AlignedBuf>,
    pub state: BufferState,
}

/// One metadata block.
pub struct Buffer {
    pub block: BlockNr,
    inner: RwLock<Inner>,
    uptodate: AtomicBool,
    verified: AtomicBool,
    referenced: AtomicBool,
    kind: AtomicU8,
}

impl Buffer {
    /// Runs `f` on the bytes.
    pub fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.inner.read().data)
    }

    /// A stable copy of the bytes (no copying until somebody changes the block).
    pub fn bytes(&self) -> Arc<AlignedBuf> {
        self.inner.read().data.clone()
    }

    /// The lock around bytes and state: for the journal.
    pub fn lock(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write()
    }

    pub fn state(&self) -> BufferState {
        self.inner.read().state
    }

    pub fn kind(&self) -> BufKind {
        if self.kind.load(Ordering::Relaxed) == BufKind::Leaf as u8 { BufKind::Leaf } else { BufKind::Table }
    }

    pub fn set_kind(&self, kind: BufKind) {
        self.kind.store(kind as u8, Ordering::Relaxed);
    }

    /// True once the owner has checked the content.
    pub fn verified(&self) -> bool {
        self.verified.load(Ordering::Acquire)
    }

    pub fn set_verified(&self) {
        self.verified.store(true, Ordering::Release);
    }
}

#[derive(Default)]
struct Shard {
    map: HashMap<BlockNr, Arc<Buffer>>,
    /// CLOCK order. Blocks that left the map are skipped when their turn comes.
    queue: VecDeque<BlockNr>,
}

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
    blocks_count: u64,
    budget: Arc<Budget>,
    shards: Vec<Mutex<Shard>>,
    pub stats: CacheStats,
}

impl BufferCache {
    /// `block_size` in bytes; `blocks_count` bounds every access.
    pub fn new(dev: Arc<dyn BlockDevice>, block_size: u32, blocks_count: u64, budget: Arc<Budget>) -> Arc<BufferCache> {
        let shards = (0..SHARDS).map(|_| Mutex::new(&SHARD_CLASS, Shard::default())).collect();
        let cache =
            Arc::new(BufferCache { dev, block_size, blocks_count, budget, shards, stats: CacheStats::default() });
        let weak = Arc::downgrade(&cache);
        let weak: std::sync::Weak<dyn Shrinker> = weak;
        cache.budget.register(weak);
        cache
    }

    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    pub fn blocks_count(&self) -> u64 {
        self.blocks_count
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
            size: self.blocks_count.saturating_mul(u64::from(self.block_size)),
        }
    }

    /// The buffer of `block`, in the cache or freshly put there without content.
    fn find_or_insert(&self, block: BlockNr) -> Result<Arc<Buffer>, Error> {
        if block.0 >= self.blocks_count {
            return Err(self.out_of_range(block));
        }
        let buffer = {
            let mut s = self.shard(block).lock();
            if let Some(b) = s.map.get(&block) {
                if !b.referenced.load(Ordering::Relaxed) {
                    b.referenced.store(true, Ordering::Relaxed);
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
                referenced: AtomicBool::new(false),
                kind: AtomicU8::new(BufKind::Table as u8),
            });
            s.map.insert(block, b.clone());
            s.queue.push_back(block);
            if s.queue.len() > 2 * s.map.len() + 1024 {
                // Forgotten blocks left their turns behind; without this a mount that never reclaims would collect
                // them.
                let Shard { map, queue } = &mut *s;
                queue.retain(|b| map.contains_key(b));
            }
            b
        };
        self.budget.charge(u64::from(self.block_size) + OVERHEAD_BYTES);
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

    /// The block, zeroed in memory without reading it: for a block that was just allocated (Linux: `sb_getblk` and a
    /// memset). Its old content, if cached, is gone.
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

    /// The block with what `make` makes of zeros, without reading it: for a block that is not on the device yet. One
    /// that was made or checked before stays as it is, with the changes since; nobody sees it half made.
    ///
    /// # Errors
    /// The block lies behind the end.
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

    /// The block if it is in the cache with content.
    pub fn peek(&self, block: BlockNr) -> Option<Arc<Buffer>> {
        let b = self.shard(block).lock().map.get(&block).cloned()?;
        b.uptodate.load(Ordering::Acquire).then_some(b)
    }

    /// Takes the block out of the cache: it was freed. Whoever still holds the buffer keeps a detached copy.
    pub fn forget(&self, block: BlockNr) {
        let gone = self.shard(block).lock().map.remove(&block);
        if gone.is_some() {
            self.budget.uncharge(u64::from(self.block_size) + OVERHEAD_BYTES);
        }
    }

    /// Reads `count` blocks from `start` in one request into the cache, where they are missing (Linux:
    /// `sb_breadahead`). Errors are left for the access that really needs the block.
    pub fn readahead(&self, start: BlockNr, count: u32) {
        let end = start.0.saturating_add(u64::from(count)).min(self.blocks_count);
        let mut from = start.0;
        while from < end && self.peek(BlockNr(from)).is_some() {
            from += 1;
        }
        let mut to = end;
        while to > from && self.peek(BlockNr(to - 1)).is_some() {
            to -= 1;
        }
        if to <= from {
            return;
        }
        // The buffers are locked before the device is read, so that nobody can load, change, write home and drop a
        // block in between and have the old content put over it.
        let mut buffers = Vec::with_capacity((to - from) as usize);
        for block in from..to {
            let Ok(b) = self.find_or_insert(BlockNr(block)) else { return };
            buffers.push(b);
        }
        // Not those that have their content: somebody may change them meanwhile, holding what others wait for.
        let missing = buffers.iter().map(|b| (!b.uptodate.load(Ordering::Acquire)).then_some(b));
        let mut locked: Vec<_> = missing.map(|b| b?.inner.try_write()).collect();
        let bs = self.block_size as usize;
        let mut all = AlignedBuf::zeroed(buffers.len() * bs);
        let flags = BioFlags::META | BioFlags::RAHEAD;
        if self.dev.read_at(from * u64::from(self.block_size), &mut all, flags).is_err() {
            return;
        }
        for ((b, inner), piece) in buffers.iter().zip(&mut locked).zip(all.chunks_exact(bs)) {
            let Some(inner) = inner else { continue };
            if !b.uptodate.load(Ordering::Acquire) {
                self.stats.misses.inc();
                inner.data = Arc::new(AlignedBuf::from_slice(piece));
                b.uptodate.store(true, Ordering::Release);
            }
        }
    }

    /// Drops every block that nobody holds (after a replay has rewritten the device).
    pub fn drop_clean(&self) {
        self.shrink(u64::MAX);
    }

    /// Blocks in the cache.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().map.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Shrinker for BufferCache {
    fn reclaimable(&self) -> u64 {
        self.len() as u64 * (u64::from(self.block_size) + OVERHEAD_BYTES)
    }

    /// CLOCK over each shard: clean buffers that nobody references go; a referenced bit buys one more round.
    fn shrink(&self, bytes: u64) -> u64 {
        let each = u64::from(self.block_size) + OVERHEAD_BYTES;
        let want = bytes.div_ceil(each);
        let all = bytes == u64::MAX;
        let per_shard = if all { u64::MAX } else { want.div_ceil(SHARDS as u64) };
        let mut freed = 0u64;
        for shard in &self.shards {
            let Some(mut s) = shard.try_lock() else { continue };
            let mut here = 0u64;
            let mut turns = if all { s.queue.len() * 2 } else { s.queue.len().min(per_shard as usize * 8 + 16) };
            while here < per_shard && turns > 0 {
                turns -= 1;
                let Some(block) = s.queue.pop_front() else { break };
                let Some(b) = s.map.get(&block) else { continue };
                let second_chance = b.referenced.swap(false, Ordering::Relaxed) && !all;
                // Cloning happens under this lock, so a count of one cannot grow behind our back.
                let droppable = !second_chance
                    && Arc::strong_count(b) == 1
                    && b.inner.try_read().is_some_and(|i| i.state == BufferState::default());
                if droppable {
                    s.map.remove(&block);
                    here += 1;
                } else {
                    s.queue.push_back(block);
                }
            }
            freed += here;
        }
        self.stats.evicted.add(freed);
        self.budget.uncharge(freed * each);
        freed * each
    }
}
