//! The inodes in memory (Linux: the inode hash, fs/inode.c).
//!
//! Main type: [`InodeTable`]. An inode stays in the table while it is used, dirty, or merely cached. The memory budget
//! may evict merely cached inodes, except those with a lost write that no party has seen. If reclaim finds an inode in
//! use, the inode leaves reclaim's lists until its last user drops it ([`InodeTable::let_go`]).
//!
//! # Locking
//! One lock per shard (`inode table`, 30: taken while a directory's `inode` lock is held), never held across I/O.

use std::sync::{Arc, OnceLock, Weak};

use extant_base::hash::HashMap;
use extant_base::sync::atomic::Ordering;
use extant_base::sync::{LockClass, Mutex};
use extant_cache::Budget;
use extant_cache::reclaim::{Class, FrameId, FrameOwner, Key, OwnerId, State, Tried};
use extant_ondisk::InodeNr;

use crate::inode::{Inode, InodeOwner, InodeRef};

static CLASS: LockClass = LockClass::new("inode table", 30);
const SHARDS: usize = 32;
/// The measured memory cost of an idle inode: the structure, its map root, its table entries, and the allocator's
/// overhead.
pub const INODE_BYTES: u64 = 1300;
/// An inode with at most this much clean data is evicted together with it. Otherwise the data is evicted first.
const DATA_MAX: u64 = 128 << 10;

#[derive(Default)]
struct Shard {
    map: HashMap<InodeNr, Arc<Inode>>,
    /// The number of inodes that have been removed from the shard.
    left: u64,
}

impl Shard {
    fn remove(&mut self, ino: InodeNr) -> Option<Arc<Inode>> {
        let inode = self.map.remove(&ino)?;
        self.left += 1;
        Some(inode)
    }
}

/// Whether the inode can be evicted: it has no user, matches the device, has little data, and has no lost write that no
/// party has seen. The caller holds the lock of its shard.
fn is_idle(inode: &Arc<Inode>) -> bool {
    // The flusher holds references to dirty inodes, and users to inodes in use, so the count covers both.
    inode.users() == 0
        && Arc::strong_count(inode) == 1
        && inode.pages.dirty_bytes() == 0
        && inode.pages.bytes() <= DATA_MAX
        && !inode.losses.is_unseen()
        && inode.meta.try_read().is_some_and(|m| !m.lazy_times && m.desc.links > 0)
}

pub(crate) struct InodeTable {
    shards: Vec<Mutex<Shard>>,
    budget: Arc<Budget>,
    owner: OnceLock<OwnerId>,
    /// Reclaim's owner of the inodes' data.
    data_owner: OnceLock<OwnerId>,
    inode_owner: OnceLock<Weak<dyn InodeOwner>>,
}

impl InodeTable {
    pub(crate) fn new(budget: Arc<Budget>) -> Arc<InodeTable> {
        let shards = (0..SHARDS).map(|_| Mutex::new(&CLASS, Shard::default())).collect();
        let (owner, data_owner, inode_owner) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let table = Arc::new(InodeTable { shards, budget, owner, data_owner, inode_owner });
        let weak: Weak<InodeTable> = Arc::downgrade(&table);
        let _ = table.owner.set(table.budget.reclaim().register(Class::Inode, weak));
        table
    }

    /// Registers `owner`, which frees the data of inodes through [`InodeTable::try_free_data`].
    pub(crate) fn set_owner<T: FrameOwner + InodeOwner + 'static>(&self, owner: Weak<T>) {
        let _ = self.data_owner.set(self.budget.reclaim().register(Class::Data, owner.clone()));
        let _ = self.inode_owner.set(owner);
    }

    /// The owner of the inodes, for their calls ([`InodeOwner`]).
    pub(crate) fn inode_owner(&self) -> Weak<dyn InodeOwner> {
        self.inode_owner.get().expect("set when the mount was put together").clone()
    }

    /// The owner of the inodes' data, as reclaim knows it.
    pub(crate) fn data_owner(&self) -> OwnerId {
        *self.data_owner.get().expect("set when the mount was put together")
    }

    fn shard(&self, ino: InodeNr) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// The inode, if it is in memory.
    pub(crate) fn find(&self, ino: InodeNr) -> Option<InodeRef> {
        let s = self.shard(ino).lock();
        let inode = s.map.get(&ino)?;
        if let Some(id) = inode.frame.get() {
            self.budget.reclaim().touches().touch_apart(id, &inode.used);
        }
        Some(inode.reference())
    }

    /// Adds the inode to the shard, which must not contain its number.
    fn add(&self, s: &mut Shard, inode: Arc<Inode>) {
        let reclaim = self.budget.reclaim();
        inode.used.store(reclaim.touches().now(), Ordering::Relaxed);
        let owner = *self.owner.get().expect("set by new");
        let key = Key { object: u64::from(inode.ino.0), page: 0 };
        reclaim.with(|core| inode.frame.set(core.insert(owner, key, INODE_BYTES as u32, State::CLEAN)));
        self.budget.charge(INODE_BYTES);
        s.map.insert(inode.ino, inode);
    }

    /// Removes the inode's frame from reclaim after the inode has left its shard.
    fn leave(&self, inode: &Inode) {
        self.budget.reclaim().with(|core| {
            if let Some(id) = inode.frame.take() {
                core.remove(id);
            }
        });
        self.budget.uncharge(INODE_BYTES);
    }

    /// Returns the inode to reclaim's lists after its last user has dropped it.
    pub(crate) fn let_go(inode: &Inode) {
        let reclaim = inode.pages.budget().reclaim();
        if inode.frame.get().is_some_and(|id| reclaim.touches().is_parked(id)) {
            reclaim.with(|core| {
                if let Some(id) = inode.frame.get() {
                    core.unpark(id);
                }
            });
        }
    }

    /// The number to pass to [`InodeTable::insert_read`]; take it before reading the inode from the device.
    pub(crate) fn left(&self, ino: InodeNr) -> u64 {
        self.shard(ino).lock().left
    }

    /// Adds `inode` to the table. If another thread has added it before, returns that thread's inode.
    pub(crate) fn insert(&self, inode: Arc<Inode>) -> InodeRef {
        self.insert_if(inode, |_| true).expect("without a condition")
    }

    /// As [`InodeTable::insert`], for an inode that was read when [`InodeTable::left`] was `left`. Returns `None` if
    /// any inode has been removed since: it may have been this one, changed or freed meanwhile.
    pub(crate) fn insert_read(&self, inode: Arc<Inode>, left: u64) -> Option<InodeRef> {
        self.insert_if(inode, |s| s.left == left)
    }

    fn insert_if(&self, inode: Arc<Inode>, fits: impl FnOnce(&Shard) -> bool) -> Option<InodeRef> {
        let r = {
            let mut s = self.shard(inode.ino).lock();
            if let Some(existing) = s.map.get(&inode.ino) {
                return Some(existing.reference());
            }
            if !fits(&s) {
                return None;
            }
            let r = inode.reference();
            self.add(&mut s, inode);
            r
        };
        Some(r)
    }

    /// Removes an unused inode, which the caller then frees on disk. Returns false if the inode is in use (again).
    pub(crate) fn remove_unused(&self, inode: &Arc<Inode>) -> bool {
        let mut s = self.shard(inode.ino).lock();
        if inode.users() > 0 || !s.map.get(&inode.ino).is_some_and(|i| Arc::ptr_eq(i, inode)) {
            return false;
        }
        s.remove(inode.ino);
        self.leave(inode);
        true
    }

    /// Puts an inode back after a failed eviction. It takes no reference: dropping one would queue the eviction again,
    /// forever.
    pub(crate) fn put_back(&self, inode: Arc<Inode>) {
        let mut s = self.shard(inode.ino).lock();
        if !s.map.contains_key(&inode.ino) {
            self.add(&mut s, inode);
        }
    }

    /// Every inode in memory.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.shards.iter().flat_map(|s| s.lock().map.values().cloned().collect::<Vec<_>>()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().map.len()).sum()
    }

    /// Frees clean data of an inode on behalf of reclaim.
    pub(crate) fn try_free_data(&self, key: Key, id: FrameId) -> Tried {
        let inode = {
            let ino = InodeNr(key.object as u32);
            let Some(s) = self.shard(ino).try_lock() else { return Tried::Busy };
            s.map.get(&ino).cloned()
        };
        inode.map_or(Tried::Changed, |inode| inode.pages.try_free(key.page, id))
    }
}

impl FrameOwner for InodeTable {
    fn try_free(&self, key: Key, id: FrameId) -> Tried {
        let ino = InodeNr(key.object as u32);
        let gone = {
            let Some(mut s) = self.shard(ino).try_lock() else { return Tried::Busy };
            let Some(inode) = s.map.get(&ino).filter(|i| i.frame.get() == Some(id)) else { return Tried::Changed };
            if inode.users() > 0 {
                let inode = inode.clone();
                self.budget.reclaim().with(|core| core.park(id));
                // The last user may have dropped the inode before its frame was parked.
                if inode.users() == 0 {
                    InodeTable::let_go(&inode);
                }
                return Tried::Parked;
            }
            if !is_idle(inode) {
                return Tried::InUse;
            }
            let Some(inode) = s.remove(ino) else { return Tried::Changed };
            self.leave(&inode);
            inode
        };
        if let Some(owner) = gone.owner.upgrade() {
            owner.forget(&gone);
        }
        Tried::Freed
    }
}

impl Drop for InodeTable {
    /// Removes the frames of all inodes, because other mounts may share the budget.
    fn drop(&mut self) {
        for shard in &self.shards {
            for (_, inode) in shard.lock().map.drain() {
                self.leave(&inode);
            }
        }
    }
}
