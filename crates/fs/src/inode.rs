//! The live inode.
//!
//! Main types: [`Inode`] (Linux: `struct inode` and `struct ext4_inode_info`), [`InodeRef`] (a user's reference, such
//! as an open file, or a name that the FUSE kernel remembers), [`Attr`] (the values for stat(2)), [`Meta`] (the decoded
//! on-disk inode).
//!
//! An inode has two sizes. Users see [`Inode::size`]. After a crash the file has the size `meta.desc.size` (Linux:
//! `i_disksize`). That size advances only over data that is mapped, and that is written before the commit.
//!
//! What it does not do: I/O, or change anything on disk; see `inode_slots.rs` and the operations.
//!
//! # Locking
//! `inode` (20) → `inode writeback` (25) → journal handle → `folio` (40) → `map` (50) → `orphans` (55) →
//! `inode meta` (60). Two inodes: parent before child, else lower number first, through the nested calls.

use std::sync::{Arc, OnceLock, Weak};

use extant_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use extant_base::sync::{LockClass, RwLock};
use extant_cache::reclaim::FrameCell;
use extant_cache::{AddressSpace, Home, Listed, LossLedger, Writebacks};
use extant_mballoc::InodePreallocation;
use extant_ondisk::InodeNr;
use extant_ondisk::inode::{DeviceNr, FileType, InodeDesc};
use extant_ondisk::time::Timestamp;

use crate::clusters::Promises;
use crate::crypt::Crypt;
use crate::error::Error;
use crate::inode_table::InodeTable;
use crate::map::MapRoot;
use crate::meta::{HasDesc, MetaLock};
use crate::quota::Charge;
use crate::verity::Verity;
use crate::volume::Volume;
use crate::writeback::asks::{Ask, WritebackLock};
use crate::writeback::batch::Batches;
use extant_es::EsInode;

static RW_CLASS: LockClass = LockClass::new("inode", 20);
static MAP_CLASS: LockClass = LockClass::new("map", 50);

/// The decoded on-disk inode and its companions.
#[derive(Debug)]
pub struct Meta {
    /// Its field `size` is the on-disk size.
    pub desc: InodeDesc,
    /// The times here are newer than in the inode table; the next writeback or fsync writes them.
    pub lazy_times: bool,
    /// The usage that was charged to the owners for the inode in its table.
    pub(crate) charge: Charge,
    /// Bytes of delayed data that are charged against the owners' limits.
    pub(crate) promised: u64,
    /// Its number is freed as soon as the inode has been written.
    pub(crate) freed: bool,
    /// The number of values in inodes of their own that its attributes refer to, where quotas count them.
    pub(crate) values: u32,
}

impl HasDesc for Meta {
    fn desc(&self) -> &InodeDesc {
        &self.desc
    }
}

/// The file system of an inode, as far as the inode and its queues know it.
pub(crate) trait InodeOwner: Send + Sync {
    /// The last user has dropped an inode that has lost its last name, or that has preallocated blocks.
    fn let_go(&self, inode: &Arc<Inode>, is_unlinked: bool);

    /// The inode has left memory.
    fn forget(&self, inode: &Inode);

    /// Writes the dirty data of the inodes.
    fn write(&self, inodes: &[Arc<Inode>]);

    /// The requests of the inode's oldest batch have completed. This is called on any thread, and must not wait.
    fn batch_completed(&self, inode: &Arc<Inode>);

    /// Bulk data has reached the device.
    fn bulk_completed(&self, bytes: u64);

    /// Continues writes whose obstacle is gone.
    fn resume(&self, asks: Vec<Ask>);

    /// Stops trusting the state in memory, because a thread panicked.
    fn distrust(&self);
}

/// One inode in memory.
pub struct Inode {
    pub ino: InodeNr,
    pub generation: u32,
    /// It never changes; `None` if the mode has none that is known.
    file_type: Option<FileType>,
    pub(crate) owner: Weak<dyn InodeOwner>,
    /// Excludes writers of content, names and attributes from each other and from readers (Linux: `i_rwsem`).
    pub(crate) rw: RwLock<()>,
    pub(crate) wb: WritebackLock,
    pub(crate) map: RwLock<MapRoot>,
    pub(crate) meta: MetaLock<Meta>,
    pub(crate) es: EsInode,
    /// Only where clusters have several blocks.
    pub(crate) promises: Option<Box<Promises>>,
    pub(crate) pages: AddressSpace,
    pub(crate) prealloc: InodePreallocation,
    /// Pending writes: data that was taken from the pages and is not yet readable from the device.
    pub(crate) writes: Arc<Writebacks>,
    pub(crate) batches: Batches,
    pub(crate) listed: Listed,
    /// The size that users see.
    size: AtomicU64,
    /// The newest transactions that changed the inode: in any way, and in a way that fdatasync must wait for.
    pub(crate) sync_tid: AtomicU32,
    pub(crate) datasync_tid: AtomicU32,
    /// A message has already reported that the content of this inode cannot be read.
    pub(crate) hurt: AtomicBool,
    /// The first damage in spite of which a rescue uses this inode.
    pub(crate) doubt: OnceLock<Box<Error>>,
    /// The Merkle tree that protects the content, once it has been read.
    pub(crate) verity: OnceLock<Box<Verity>>,
    /// The encryption of the inode, once it has been read.
    pub(crate) crypt: OnceLock<Box<Crypt>>,
    /// Created without a name (O_TMPFILE), so it may get its first one.
    pub(crate) linkable: AtomicBool,
    /// This mount created the file, and it never had content: its first content may be stored in the inode (Linux:
    /// `EXT4_STATE_MAY_INLINE_DATA`).
    pub(crate) fresh: AtomicBool,
    /// The inode holds, held or will hold the value of attributes: its blocks are metadata to the journal
    /// ([`crate::values`]).
    pub(crate) of_value: AtomicBool,
    /// The lost writes of this inode.
    pub(crate) losses: LossLedger<Error>,
    /// The number of [`InodeRef`]s.
    users: AtomicU32,
    /// A writer has closed the file, and no write has followed.
    closed: AtomicBool,
    /// The group of the most recently allocated child (Orlov).
    pub(crate) last_alloc_group: AtomicU32,
    /// The end of the last buffered read, where readahead continues.
    pub(crate) read_end: AtomicU64,
    /// Damage that listings of this directory have found.
    pub(crate) listings: Listings,
    /// Its frame in reclaim while it is in the table, and the time of its last use on reclaim's clock.
    pub(crate) frame: FrameCell,
    pub(crate) used: AtomicU32,
}

/// The damage that listings of a directory have found since its inode was loaded.
///
/// A listing takes several calls, and a call that finds damage still has names to return. The error is returned at the
/// end of the listing. That is another call, which may not come across the damage.
#[derive(Default)]
pub(crate) struct Listings {
    /// The first damage that hid names.
    damage: OnceLock<Box<Error>>,
    /// A listing has begun at the first name.
    begun: AtomicBool,
}

impl Listings {
    /// Records damage. Returns whether it is the first; the superblock and the log do not have it yet then.
    pub fn note_damage(&self, e: &Error) -> bool {
        self.damage.set(Box::new(e.clone())).is_ok()
    }

    pub fn damage(&self) -> Option<&Error> {
        self.damage.get().map(|e| &**e)
    }

    pub fn note_beginning(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Whether a listing has started at the beginning, and so would have found damage before any cookie.
    pub fn have_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }
}

/// The values that stat(2) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode number.
    pub ino: InodeNr,
    /// Distinguishes successive files with the same inode number.
    pub generation: u32,
    /// Bytes, including data that is not written yet.
    pub size: u64,
    /// 512-byte units, delayed blocks included.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation; `None` if the inode has no room for it.
    pub crtime: Option<Timestamp>,
    /// Kind and permissions.
    pub mode: u16,
    /// The number of names; 1 for a directory with too many to count.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// The number of a device inode; otherwise `None`.
    pub rdev: Option<DeviceNr>,
    /// Inode flags, as shown by lsattr.
    pub flags: u32,
    /// The file system's block size in bytes, the preferred unit of reads and writes.
    pub block_size: u32,
}

impl Inode {
    pub(crate) fn new(
        volume: &Volume,
        table: &InodeTable,
        ino: InodeNr,
        desc: InodeDesc,
        map: MapRoot,
        es: EsInode,
        tid: u32,
    ) -> Arc<Inode> {
        let keep_clean = volume.options.keep_clean && desc.is_regular();
        let home = Home { owner: table.data_owner(), object: u64::from(ino.0) };
        let pages = AddressSpace::new(volume.geo.block_bits, keep_clean, volume.budget.clone(), home);
        let (size, of_value) = (desc.size, desc.is_value());
        Arc::new(Inode {
            ino,
            generation: desc.generation,
            owner: table.inode_owner(),
            rw: RwLock::new(&RW_CLASS, ()),
            wb: WritebackLock::new(),
            map: RwLock::new(&MAP_CLASS, map),
            file_type: desc.file_type(),
            meta: MetaLock::new(Meta {
                desc,
                lazy_times: false,
                charge: Charge::default(),
                promised: 0,
                freed: false,
                values: 0,
            }),
            es,
            promises: Promises::new(volume.placement.alloc.cluster_size()),
            pages,
            prealloc: InodePreallocation::new(ino),
            writes: Writebacks::new(),
            batches: Batches::new(),
            listed: Listed::default(),
            size: AtomicU64::new(size),
            sync_tid: AtomicU32::new(tid),
            datasync_tid: AtomicU32::new(tid),
            hurt: AtomicBool::new(false),
            doubt: OnceLock::new(),
            verity: OnceLock::new(),
            crypt: OnceLock::new(),
            linkable: AtomicBool::new(false),
            fresh: AtomicBool::new(false),
            of_value: AtomicBool::new(of_value),
            losses: LossLedger::default(),
            users: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            last_alloc_group: AtomicU32::new(u32::MAX),
            read_end: AtomicU64::new(0),
            listings: Listings::default(),
            frame: FrameCell::default(),
            used: AtomicU32::new(0),
        })
    }

    /// The size in bytes that users see.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// For the pages, which increase the size together with the data that extends the file.
    pub(crate) fn size_cell(&self) -> &AtomicU64 {
        &self.size
    }

    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    pub fn mode(&self) -> u16 {
        self.meta.read().desc.mode
    }

    pub fn file_type(&self) -> Option<FileType> {
        self.file_type
    }

    pub fn is_dir(&self) -> bool {
        self.file_type() == Some(FileType::Directory)
    }

    pub fn links(&self) -> u16 {
        self.meta.read().desc.links
    }

    /// The values for stat(2).
    pub fn attr(&self, block_size: u32) -> Attr {
        let delayed = self.promised_blocks() * u64::from(block_size / 512);
        let m = self.meta.read();
        let d = &m.desc;
        Attr {
            ino: self.ino,
            generation: self.generation,
            size: self.size(),
            blocks: d.blocks + delayed,
            atime: d.atime,
            mtime: d.mtime,
            ctime: d.ctime,
            crtime: d.crtime,
            mode: d.mode,
            // A directory with more subdirectories than the field can hold shows 1.
            nlink: u32::from(d.links),
            uid: d.uid,
            gid: d.gid,
            rdev: d.device(),
            flags: d.flags.bits(),
            block_size,
        }
    }

    /// Whether a caller that will use the inode again must keep a reference until then. Without one, an unlinked inode
    /// is freed, delayed data is allocated as that of a closed file, and the ledger of lost writes is dropped once one
    /// party has seen the newest loss. Everything else except [`Inode::has_preallocations`] can be read from the image
    /// again.
    pub fn needs_user(&self) -> bool {
        self.pages.dirty_bytes() > 0 || !self.writes.is_idle() || self.losses.has_losses() || self.links() == 0
    }

    /// Whether blocks are preallocated for the file's growth. Dropping the last reference frees them.
    pub fn has_preallocations(&self) -> bool {
        !self.prealloc.is_empty()
    }

    pub(crate) fn users(&self) -> u32 {
        self.users.load(Ordering::SeqCst)
    }

    /// Whether the file seems to have no writer (Linux: `i_writecount`). Only writes are visible here, opens are not.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.users() == 0
    }

    pub(crate) fn set_closed(&self, closed: bool) {
        if self.closed.load(Ordering::Relaxed) != closed {
            self.closed.store(closed, Ordering::Relaxed);
        }
    }

    /// A new reference; the caller holds the inode table's shard lock or another reference.
    pub(crate) fn reference(self: &Arc<Inode>) -> InodeRef {
        self.users.fetch_add(1, Ordering::AcqRel);
        InodeRef(self.clone())
    }

    /// Blocks that are reserved for delayed data and not yet counted in `i_blocks`.
    pub(crate) fn promised_blocks(&self) -> u64 {
        match &self.promises {
            Some(promises) => promises.total(),
            None => self.es.counts().delayed_blocks,
        }
    }

    /// Copies the map's root and block count into the inode; the caller holds the map lock for writing.
    pub(crate) fn absorb_map(&self, root: &mut MapRoot, block_size: u32) {
        if !root.dirty && root.blocks_delta == 0 {
            return;
        }
        let mut m = self.meta.write();
        m.desc.i_block = root.i_block;
        let units = root.blocks_delta * i64::from(block_size / 512);
        m.desc.blocks = m.desc.blocks.saturating_add_signed(units);
        root.dirty = false;
        root.blocks_delta = 0;
    }
}

/// A user's reference. While one exists, an unlinked inode keeps its content.
pub struct InodeRef(Arc<Inode>);

impl std::ops::Deref for InodeRef {
    type Target = Arc<Inode>;
    fn deref(&self) -> &Arc<Inode> {
        &self.0
    }
}

impl Clone for InodeRef {
    fn clone(&self) -> InodeRef {
        self.0.reference()
    }
}

impl std::fmt::Debug for InodeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InodeRef({})", self.0.ino)
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        // Sequentially consistent against reclaim, which parks an inode that it finds in use.
        if self.0.users.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        InodeTable::let_go(&self.0);
        let unlinked = self.0.meta.try_read().is_none_or(|m| m.desc.links == 0);
        if (unlinked || !self.0.prealloc.is_empty())
            && let Some(owner) = self.0.owner.upgrade()
        {
            owner.let_go(&self.0, unlinked);
        }
    }
}
