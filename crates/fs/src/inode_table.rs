//! The inodes in memory (Linux: the inode hash, fs/inode.c).
//!
//! Main type: [`InodeTable`]. An inode stays in the table while it is used, dirty, or merely cached; the memory budget
//! takes merely cached ones, but none whose data was lost before somebody has been told.
//!
//! # Locking
//! One lock per shard (`inode table`, 30: taken while a directory's `inode` lock is held), never held across I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::hash::HashMap;
use extant_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_cache::{Budget, Shrinker};
use extant_ondisk::InodeNr;
use extant_ondisk::superblock::SuperBlock;

use crate::inode::{Inode, InodeRef};

/// Inodes that hold something of the file system's own, and that no name may lead to (Linux: `is_special_ino`,
/// fs/ext4/inode.c).
#[derive(Clone, Debug)]
pub(crate) struct OwnInodes {
    first_user: u32,
    /// Above the reserved numbers.
    others: [u32; 4],
    /// Old ext3 conversions have a journal with a name and an ordinary number.
    pub journal: Option<InodeNr>,
}

impl OwnInodes {
    pub(crate) fn of(sb: &SuperBlock) -> OwnInodes {
        let raw = sb.raw();
        let quota = [&raw.s_usr_quota_inum, &raw.s_grp_quota_inum, &raw.s_prj_quota_inum].map(|n| n.get());
        let orphan_file = sb.orphan_file().map_or(0, |ino| ino.0);
        OwnInodes {
            first_user: sb.geometry().first_ino,
            others: [quota[0], quota[1], quota[2], orphan_file],
            journal: sb.journal_inode(),
        }
    }

    pub(crate) fn contains(&self, ino: InodeNr) -> bool {
        (ino.0 < self.first_user && ino != InodeNr::ROOT) || self.others.contains(&ino.0)
    }
}

static CLASS: LockClass = LockClass::new("inode table", 30);
const SHARDS: usize = 32;
/// What an idle inode costs: the structure, its map root, its table entries.
const INODE_BYTES: u64 = 1024;

#[derive(Default)]
struct Shard {
    map: HashMap<InodeNr, (Arc<Inode>, AtomicBool)>,
    queue: VecDeque<InodeNr>,
    /// How many inodes have left.
    left: u64,
}

impl Shard {
    /// The inode is not in the shard yet.
    fn add(&mut self, inode: Arc<Inode>) {
        self.queue.push_back(inode.ino);
        if self.queue.len() > 2 * self.map.len() + 1024 {
            let Shard { map, queue, .. } = &mut *self;
            queue.retain(|i| map.contains_key(i) || *i == inode.ino);
        }
        self.map.insert(inode.ino, (inode, AtomicBool::new(false)));
    }

    fn remove(&mut self, ino: InodeNr) -> Option<Arc<Inode>> {
        let (inode, _) = self.map.remove(&ino)?;
        self.left += 1;
        Some(inode)
    }

    /// Takes out inodes that nobody uses, nor has since the last time, until they and their data come to `share` bytes;
    /// also returns how much data that is. One with more than `most` bytes of data stays, and gives of it.
    fn take_idle(&mut self, share: u64, most: u64) -> (Vec<Arc<Inode>>, u64) {
        let (mut gone, mut data) = (Vec::new(), 0);
        let mut turns = self.queue.len().min((share / INODE_BYTES) as usize * 4 + 16);
        while gone.len() as u64 * INODE_BYTES + data < share && turns > 0 {
            turns -= 1;
            let Some(ino) = self.queue.pop_front() else { break };
            let Some((inode, referenced)) = self.map.get(&ino) else { continue };
            // Dirty inodes are held by the flusher, used ones by their users: the count tells both. With it would go
            // that data was lost of which nobody has been told.
            let idle = !referenced.swap(false, Ordering::Relaxed)
                && inode.users() == 0
                && Arc::strong_count(inode) == 1
                && inode.pages.dirty_bytes() == 0
                && !inode.errors.is_unseen()
                && inode.meta.try_read().is_some_and(|m| !m.lazy_times && m.desc.links > 0);
            let bytes = inode.pages.bytes();
            if idle && bytes <= most {
                if let Some(inode) = self.remove(ino) {
                    gone.push(inode);
                    data += bytes;
                }
            } else {
                if idle {
                    data += inode.pages.shrink(share);
                }
                self.queue.push_back(ino);
            }
        }
        (gone, data)
    }
}

pub(crate) struct InodeTable {
    shards: Vec<Mutex<Shard>>,
    /// Counts calls of the shrinker.
    hand: AtomicUsize,
    budget: Arc<Budget>,
}

impl InodeTable {
    pub(crate) fn new(budget: Arc<Budget>) -> Arc<InodeTable> {
        let table = Arc::new(InodeTable {
            shards: (0..SHARDS).map(|_| Mutex::new(&CLASS, Shard::default())).collect(),
            hand: AtomicUsize::new(0),
            budget,
        });
        let weak = Arc::downgrade(&table);
        let weak: std::sync::Weak<dyn Shrinker> = weak;
        table.budget.register(weak);
        table
    }

    fn shard(&self, ino: InodeNr) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// The inode, if it is in memory.
    pub(crate) fn find(&self, ino: InodeNr) -> Option<InodeRef> {
        let s = self.shard(ino).lock();
        let (inode, referenced) = s.map.get(&ino)?;
        referenced.store(true, Ordering::Relaxed);
        Some(inode.reference())
    }

    /// To be asked before an inode's place on the device is read, for [`InodeTable::insert_read`].
    pub(crate) fn left(&self, ino: InodeNr) -> u64 {
        self.shard(ino).lock().left
    }

    /// Puts `inode` into the table, unless another thread was first: then that one's inode is returned.
    pub(crate) fn insert(&self, inode: Arc<Inode>) -> InodeRef {
        self.insert_if(inode, |_| true).expect("on no condition")
    }

    /// As [`InodeTable::insert`], for an inode that was read when [`InodeTable::left`] said `left`. `None` if one has
    /// left since: it may have been this one, changed meanwhile, or freed.
    pub(crate) fn insert_read(&self, inode: Arc<Inode>, left: u64) -> Option<InodeRef> {
        self.insert_if(inode, |s| s.left == left)
    }

    fn insert_if(&self, inode: Arc<Inode>, fits: impl FnOnce(&Shard) -> bool) -> Option<InodeRef> {
        let r = {
            let mut s = self.shard(inode.ino).lock();
            if let Some((existing, _)) = s.map.get(&inode.ino) {
                return Some(existing.reference());
            }
            if !fits(&s) {
                return None;
            }
            let r = inode.reference();
            s.add(inode);
            r
        };
        self.budget.charge(INODE_BYTES);
        Some(r)
    }

    /// Takes the inode out if nobody uses it: the caller will free it on disk. False when it is used (again).
    pub(crate) fn remove_unused(&self, inode: &Arc<Inode>) -> bool {
        let mut s = self.shard(inode.ino).lock();
        if inode.users() > 0 || !s.map.get(&inode.ino).is_some_and(|(i, _)| Arc::ptr_eq(i, inode)) {
            return false;
        }
        s.remove(inode.ino);
        drop(s);
        self.budget.uncharge(INODE_BYTES);
        true
    }

    /// Puts an inode back whose eviction failed. Without a reference, whose end would queue the eviction again, for
    /// ever.
    pub(crate) fn put_back(&self, inode: Arc<Inode>) {
        {
            let mut s = self.shard(inode.ino).lock();
            if s.map.contains_key(&inode.ino) {
                return;
            }
            s.add(inode);
        }
        self.budget.charge(INODE_BYTES);
    }

    /// Every inode in memory.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.shards.iter().flat_map(|s| s.lock().map.values().map(|(i, _)| i.clone()).collect::<Vec<_>>()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().map.len()).sum()
    }
}

impl Shrinker for InodeTable {
    /// Inodes and their cached data.
    fn reclaimable(&self) -> u64 {
        self.len() as u64 * INODE_BYTES + self.budget.data()
    }

    /// Idle inodes go with their cached data, and both count; of one that has more data than is asked for, only data.
    fn shrink(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        // Each call begins with another shard, or the first ones would give all.
        let first = self.hand.fetch_add(1, Ordering::Relaxed);
        for n in 0..SHARDS {
            if freed >= bytes {
                break;
            }
            let share = (bytes - freed).div_ceil((SHARDS - n) as u64);
            if let Some(mut shard) = self.shards[(first + n) % SHARDS].try_lock() {
                let (gone, data) = shard.take_idle(share, bytes - freed);
                drop(shard);
                let inodes = gone.len() as u64 * INODE_BYTES;
                self.budget.uncharge(inodes);
                freed += inodes + data;
                for inode in gone {
                    if let Some(fs) = inode.fs.upgrade() {
                        fs.alloc.discard_preallocations(&inode.prealloc);
                    }
                }
            }
        }
        // Clean folios of inodes that stay.
        if freed < bytes {
            for inode in self.all() {
                if freed >= bytes {
                    break;
                }
                freed += inode.pages.shrink(bytes - freed);
            }
        }
        freed
    }
}
