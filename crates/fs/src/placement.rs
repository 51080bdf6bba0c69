//! Where blocks and inodes go, and how many are free.
//!
//! Main types: [`Placement`], and [`StatFs`], its counts. It owns the group descriptors ([`Groups`]), the allocator of
//! blocks ([`BlockAllocator`]), the reserve ([`Reserve`]) and the counts of free inodes. `ialloc.rs` has its choice of
//! inode numbers.
//!
//! What it does not do: know inodes, maps or operations. Callers say for which inode and for whom they need space, and
//! record the errors that it returns.
//!
//! # Locking
//! None of its own; the groups and the allocator take theirs (70 to 74) within the calls.

use std::sync::Arc;

use extant_base::append::{AppendVec, Latest};
use extant_base::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use extant_cache::{Budget, BufferCache, Shrinker};
use extant_journal::Handle;
use extant_mballoc::{Kind, MetaRequest, MetaRole, Request, RequestFlags};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::FileType;
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr};

use crate::clusters::BlockAllocator;
use crate::error::{Damage, Error, Result};
use crate::groups::Groups;
use crate::reserve::{Caller, Reserve};

/// Sizes and limits of a file system (statvfs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// The size of the blocks that the counts below refer to, in bytes.
    pub block_size: u32,
    /// All blocks except the file system's own structures.
    pub blocks: u64,
    /// Free blocks, the reserve included.
    pub blocks_free: u64,
    /// Free blocks that users without privilege may use.
    pub blocks_available: u64,
    /// Inodes of all groups.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// The maximum length of a name, in bytes.
    pub name_max: u32,
    /// Both halves of the UUID combined by XOR, as in the kernel.
    pub fsid: u64,
}

/// Blocks, inode numbers, and their free counts.
pub(crate) struct Placement {
    pub(crate) groups: Arc<Groups>,
    pub(crate) alloc: BlockAllocator,
    pub(crate) reserve: Reserve,
    /// The layout, which may grow.
    pub(crate) geo: Arc<Latest<Geometry>>,
    /// For each group, the place where the search for a free inode begins; see [`crate::ialloc`].
    pub(super) inode_hints: AppendVec<AtomicU32>,
    pub(super) free_inodes: AtomicI64,
    /// The blocks that statfs does not count: those of the file system's own structures.
    overhead: AtomicU64,
    cache: Arc<BufferCache>,
    budget: Arc<Budget>,
    /// The memory of the allocator that is charged to the budget.
    buddy_bytes: AtomicUsize,
}

impl Placement {
    pub(crate) fn new(
        groups: Arc<Groups>,
        alloc: BlockAllocator,
        reserve: Reserve,
        overhead: u64,
        cache: Arc<BufferCache>,
        budget: Arc<Budget>,
    ) -> Placement {
        let (_, free_inodes) = groups.totals();
        let geo = groups.geo.clone();
        Placement {
            groups,
            alloc,
            reserve,
            inode_hints: (0..geo.group_count()).map(|_| AtomicU32::new(0)).collect(),
            geo,
            free_inodes: AtomicI64::new(free_inodes as i64),
            overhead: AtomicU64::new(overhead),
            cache,
            budget,
            buddy_bytes: AtomicUsize::new(0),
        }
    }

    /// The free counts for statfs(2). With `all`, the file system's own structures count as blocks.
    pub(crate) fn statfs(&self, all: bool, fsid: u64) -> StatFs {
        let free = self.alloc.free_blocks().saturating_sub(self.alloc.reserved_blocks());
        // As in the kernel: the blocks that an unprivileged write can get.
        let available = free.saturating_sub(self.reserve.kept_back());
        let overhead = if all { 0 } else { self.overhead.load(Ordering::Relaxed) };
        StatFs {
            block_size: self.geo.block_size,
            blocks: self.geo.blocks_count.saturating_sub(overhead),
            blocks_free: free,
            blocks_available: available,
            inodes: u64::from(self.geo.inodes_count),
            inodes_free: self.free_inodes.load(Ordering::Relaxed).max(0) as u64,
            name_max: 255,
            fsid,
        }
    }

    /// Adds the groups of a larger file system. The allocator does not hand out their blocks yet. `taken`: the blocks
    /// of their own structures.
    pub(crate) fn join(&self, next: &SuperBlock, descs: &[GroupDesc], taken: u64, inodes: u32) {
        descs.iter().for_each(|_| self.inode_hints.push(Default::default()));
        self.groups.append(descs.to_vec());
        self.overhead.fetch_add(taken, Ordering::Relaxed);
        self.reserve.grow(next);
        self.alloc.in_blocks().set_reserves(self.reserve.root_blocks(), self.reserve.pool_blocks());
        self.geo.publish(next.geometry().clone());
        self.free_inodes.fetch_add(i64::from(inodes), Ordering::Relaxed);
    }

    /// The goal for new blocks of an inode: the start of its group. With flex groups, it is the start of the flex
    /// group's second group for files, and of its first group for directories (Linux: `ext4_inode_to_goal_block`).
    pub(crate) fn inode_goal(&self, ino: InodeNr, file_type: Option<FileType>) -> BlockNr {
        let mut group = (ino.0 - 1) / self.geo.inodes_per_group;
        let flex = self.geo.groups_per_flex;
        if flex >= 4 {
            group -= group % flex;
            if file_type == Some(FileType::Regular) && group + 1 < self.groups.count() {
                group += 1;
            }
        }
        self.geo.first_block_of_group(GroupNr(group))
    }

    /// Whether this caller may use the blocks that are reserved for root.
    pub(crate) fn may_use_reserve(&self, caller: Caller) -> bool {
        self.reserve.open_to(caller)
    }

    /// The flags of a request for blocks that describe its caller.
    pub(crate) fn flags_of(&self, caller: Caller) -> RequestFlags {
        if self.may_use_reserve(caller) { RequestFlags::USE_ROOT_RESERVE } else { RequestFlags::NONE }
    }

    /// Whether a file may own these blocks: they exist, and none of them belongs to the file system's own structures or
    /// the journal (Linux: `ext4_inode_block_valid`, fs/ext4/block_validity.c). Takes no lock. This is checked for all
    /// blocks in a map on disk; the extent status remembers good results.
    pub(crate) fn may_be_owned(&self, start: BlockNr, len: u64) -> bool {
        start.0 >= self.geo.first_data_block.max(1)
            && self.geo.contains_range(start, len)
            && !self.alloc.is_protected(start, len)
    }

    /// Checks that a newly allocated block is not in use. Freeing a block also removes it from the cache. So a verified
    /// block in the cache has an owner, and the bitmap that marked it as free is wrong. Its bit then remains set, and
    /// its content is not overwritten.
    pub(crate) fn check_unused(&self, block: BlockNr) -> Result<()> {
        if self.cache.peek(block).is_some_and(|b| b.verified()) {
            return Err(Error::corrupt(Damage::BlockBitmap, "free, but in use as metadata").at(block));
        }
        Ok(())
    }

    /// Allocates a block for a directory, a symbolic link or attributes of `owner`. It is placed near `home`, or after
    /// `parent`, the directory's previous block.
    pub(crate) fn allocate_meta_block(
        &self,
        handle: &mut Handle,
        (role, owner): (MetaRole, InodeNr),
        home: BlockNr,
        parent: Option<BlockNr>,
        caller: Caller,
    ) -> Result<BlockNr> {
        let meta = MetaRequest { role, owner, home: Some(home), parent, data: None };
        self.allocate_meta(handle, Request { flags: self.flags_of(caller), ..Request::meta(meta, 1) })
    }

    /// Allocates a block of metadata as requested.
    pub(crate) fn allocate_meta(&self, handle: &mut Handle, request: Request<'_>) -> Result<BlockNr> {
        // A block pointer has only 32 bits.
        let indirect = matches!(request.kind, Kind::Metadata(meta) if meta.role == MetaRole::Indirect);
        let request = Request { max_block: indirect.then_some(BlockNr(u64::from(u32::MAX))), ..request };
        let block = self.alloc.allocate(handle, &request)?.start;
        self.check_unused(block)?;
        Ok(block)
    }

    /// Frees blocks of `owner` under `handle`, with the rest of their clusters. They can be allocated again once the
    /// transaction is durable. Returns the freed blocks.
    ///
    /// Some blocks cannot be freed: those outside the file system, those of its own metadata, free ones, and those in a
    /// group with a damaged bitmap. They do not change, and the damage is recorded when no lock is held. The owner
    /// drops them, and e2fsck finds blocks without an owner (Linux: `ext4_free_blocks`, `mb_free_blocks`).
    pub(crate) fn free_blocks(
        &self,
        handle: &mut Handle,
        owner: InodeNr,
        start: BlockNr,
        len: u32,
    ) -> Result<Vec<(BlockNr, u32)>> {
        let freed = match self.alloc.free(handle, start, u64::from(len)) {
            Err(e) if Error::is_corruption(&e) => self.free_some(handle, owner, start, len, e),
            freed => freed?,
        };
        for (s, l) in &freed {
            handle.freed(*s, *l);
        }
        Ok(freed)
    }

    /// Frees the blocks that can be freed, if some cannot.
    fn free_some(
        &self,
        handle: &mut Handle,
        owner: InodeNr,
        start: BlockNr,
        len: u32,
        why: Error,
    ) -> Vec<(BlockNr, u32)> {
        let mut freed = Vec::new();
        if !self.may_be_owned(start, u64::from(len)) {
            self.groups.keep_damage(why.of(owner));
            return freed;
        }
        let (mut at, end) = (start.0, start.0 + u64::from(len));
        while let Some((_, index)) = self.geo.group_of_block(BlockNr(at)).filter(|_| at < end) {
            // Treat each group separately, run by run, because a damaged map may contain very many blocks that do not
            // belong to it.
            let stop = end.min(at - u64::from(index) + u64::from(self.geo.blocks_per_group));
            let run = self.alloc.next_freeable(BlockNr(at), (stop - at) as u32);
            let more = run.and_then(|run| match run {
                Some((from, n)) => Ok(Some((from.0 + u64::from(n), self.alloc.free(handle, from, u64::from(n))?))),
                None => Ok(None),
            });
            at = match more {
                Ok(Some((next, more))) => {
                    freed.extend(more);
                    next
                }
                Ok(None) => stop,
                Err(e) => {
                    self.groups.keep_damage(Error::of(e, owner));
                    stop
                }
            };
        }
        self.groups.keep_damage(why.of(owner));
        freed
    }

    /// The memory for block groups, in bytes, which does not depend on the contents of the caches.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        (self.groups.memory() + self.alloc.memory_fixed() + self.inode_hints.len() * 4) as u64
    }

    /// Adjusts the budget to the memory that the allocator's buddy bitmaps take now.
    pub(crate) fn charge_buddies(&self) {
        let now = self.alloc.memory_used();
        if self.buddy_bytes.load(Ordering::Relaxed) != now {
            let before = self.buddy_bytes.swap(now, Ordering::Relaxed);
            self.budget.charge(now as u64);
            self.budget.uncharge(before as u64);
        }
    }
}

/// Frees buddy bitmaps, which can be built again from the block bitmaps.
impl Shrinker for Placement {
    fn reclaimable(&self) -> u64 {
        self.alloc.memory_used() as u64
    }

    fn shrink(&self, bytes: u64) -> u64 {
        let buddies = self.alloc.drop_unused_buddies(bytes as usize) as u64;
        self.charge_buddies();
        buddies
    }
}

impl Drop for Placement {
    /// Other mounts may share the budget.
    fn drop(&mut self) {
        self.budget.uncharge(self.buddy_bytes.load(Ordering::Relaxed) as u64);
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
