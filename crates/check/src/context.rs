//! The state that all passes share.
//!
//! Main types: [`Check`] (one check: device, layout, claims, the facts about inodes), [`InodeStates`] (eight bytes for
//! each inode of a table that is read), [`Kind`].
//!
//! # Locking
//! `check findings` protects the findings of the waves so far. All other shared state is atomic.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_block::BlockDevice;
use extant_ondisk::features::RoCompat;
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::inode::FileType;
use extant_ondisk::superblock::{Geometry, RawSuperBlock, SuperBlock};
use extant_ondisk::{BlockNr, InodeNr};

use crate::claims::{Claims, words};
use crate::error::{Error, Result};
use crate::report::Sink;
use crate::view::View;
use crate::{Options, Progress};

static FINDINGS: LockClass = LockClass::new("check findings", 766);

/// One check.
pub struct Check {
    pub device: Arc<dyn BlockDevice>,
    pub sb: SuperBlock,
    pub geo: Geometry,
    pub descs: Vec<GroupDesc>,
    pub claims: Claims,
    pub inodes: InodeStates,
    /// The file system's own blocks as merged ranges: the first block, and one past the last.
    pub metadata: Vec<(u64, u64)>,
    /// The inodes in the orphan list or the orphan file, which a mount will delete or truncate.
    pub orphans: HashSet<u32>,
    pub replayed: bool,
    /// Whether small deletion times may be inode numbers.
    pub low_dtime: bool,
    pub threads: usize,
    pub progress: Option<Progress>,
    /// The encrypted inodes and the hashes of their policies, sorted. Known after the walk.
    policies: OnceLock<Vec<(u32, u32)>>,
    /// The findings of the waves.
    findings: Mutex<Sink>,
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl Check {
    pub fn new(view: View, options: &Options) -> Result<Check> {
        let View { device, sb, descs, replayed } = view;
        let geo = sb.geometry().clone();
        let raw = sb.raw();
        let inodes = i64::from(geo.inodes_count);
        let made = RawSuperBlock::time(raw.s_mkfs_time, raw.s_mkfs_time_hi);
        let low_dtime = [sb.write_time(), sb.mount_time(), made].into_iter().all(|when| when == 0 || when >= inodes);
        let clusters = ((geo.blocks_count - 1) >> geo.cluster_bits) + 1;
        let memory = |bytes| Error::Memory { device: device.name().to_owned(), bytes };
        let shared = sb.ro_compat().contains(RoCompat::SHARED_BLOCKS);
        Ok(Check {
            claims: Claims::new(clusters, geo.blocks_count, shared).map_err(memory)?,
            inodes: InodeStates::new(&geo, &descs).map_err(memory)?,
            metadata: Vec::new(),
            orphans: HashSet::new(),
            device,
            sb,
            geo,
            descs,
            replayed,
            low_dtime,
            threads: options.threads.clamp(1, 256),
            progress: options.progress.clone(),
            policies: OnceLock::new(),
            findings: Mutex::new(&FINDINGS, Sink::default()),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        })
    }

    /// Adds the findings of a run.
    pub fn take(&self, findings: &mut Sink) {
        if !findings.is_empty() {
            self.findings.lock().merge(std::mem::take(findings));
        }
    }

    /// Removes and returns the findings of the waves so far.
    pub fn found(&self) -> Sink {
        std::mem::take(&mut *self.findings.lock())
    }

    pub fn count_read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The numbers of requests and of bytes that were read so far.
    pub fn reads(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.read_bytes.load(Ordering::Relaxed))
    }

    /// Whether the block belongs to the file system itself: superblock, descriptors, bitmaps, tables.
    pub fn is_metadata(&self, block: BlockNr) -> bool {
        let at = self.metadata.partition_point(|(first, _)| *first <= block.0);
        at.checked_sub(1).is_some_and(|at| block.0 < self.metadata[at].1)
    }

    /// The clusters that contain these blocks.
    pub fn clusters(&self, first: u64, blocks: u64) -> std::ops::Range<u64> {
        let bits = self.geo.cluster_bits;
        let end = first.saturating_add(blocks).min(self.geo.blocks_count);
        if first >= end { 0..0 } else { first >> bits..((end - 1) >> bits) + 1 }
    }

    /// Records the policies of encrypted inodes, sorted.
    pub fn learn_policies(&self, policies: Vec<(u32, u32)>) {
        // Only one walk collects them.
        let _ = self.policies.set(policies);
    }

    /// The hash of an inode's policy; `None` if it has none, or an unknown one.
    pub fn policy(&self, ino: u32) -> Option<u32> {
        let policies = self.policies.get()?;
        policies.binary_search_by_key(&ino, |(of, _)| *of).ok().map(|at| policies[at].1)
    }

    /// The inode of the project quota; 0 if there is none. Without the feature, the number in the superblock has no
    /// meaning.
    pub fn project_quota(&self) -> u32 {
        if self.sb.ro_compat().contains(RoCompat::QUOTA) { self.sb.raw().s_prj_quota_inum.get() } else { 0 }
    }

    /// Reports the progress of the check.
    pub fn progress(&self, pass: u32, done: u64, total: u64) {
        if let Some(Progress(tell)) = &self.progress {
            tell(pass, done, total);
        }
    }
}

/// The kind of an inode, if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Not in use, or not read.
    Unused = 0,
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A character device.
    Character = 3,
    /// A block device.
    Block = 4,
    /// A named pipe.
    Fifo = 5,
    /// A socket.
    Socket = 6,
    /// A symbolic link.
    Symlink = 7,
    /// In use, with a mode that is no known kind.
    Unknown = 8,
}

impl Kind {
    /// The kind for a file type; `None` if the mode is no known type.
    pub fn of(kind: Option<FileType>) -> Kind {
        Kind::from_number(kind.map_or(8, |kind| kind.dirent_code()))
    }

    fn from_number(number: u8) -> Kind {
        match number {
            0 => Kind::Unused,
            1 => Kind::Regular,
            2 => Kind::Directory,
            3 => Kind::Character,
            4 => Kind::Block,
            5 => Kind::Fifo,
            6 => Kind::Socket,
            7 => Kind::Symlink,
            _ => Kind::Unknown,
        }
    }
}

/// The state of an inode in one word: number of names (32 bits), link count (16), kind (8), flags (8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeState(u64);

impl InodeState {
    /// The inode is in use.
    pub const USED: u8 = 1;
    /// Names of the inode are not counted, because it is reserved or has the flag imagic.
    pub const UNCOUNTED: u8 = 2;
    /// The inode is an orphan that must be deleted or truncated.
    pub const ORPHAN: u8 = 4;
    /// The inode is an indexed directory.
    pub const INDEXED: u8 = 8;
    /// The inode is a file or directory without blocks and attributes.
    pub const EMPTY: u8 = 16;
    /// The inode contains the value of an attribute.
    pub const VALUE: u8 = 32;
    /// The fields contradict each other, so the kind in the names is not compared.
    pub const BAD: u8 = 64;
    /// The inode is encrypted.
    pub const ENCRYPTED: u8 = 128;

    /// The number of names that refer to the inode.
    pub fn names(self) -> u32 {
        self.0 as u32
    }

    /// The link count.
    pub fn links(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// The kind.
    pub fn kind(self) -> Kind {
        Kind::from_number((self.0 >> 48) as u8)
    }

    /// Whether the state has one of these flags.
    pub fn has(self, flag: u8) -> bool {
        (self.0 >> 56) as u8 & flag != 0
    }
}

/// The states of the inodes whose tables are read. They are one allocation, so that the system provides memory only
/// where inodes are in use; many small allocations would be touched when they are created.
pub struct InodeStates {
    per_group: u32,
    /// The index of each group's first state, and the total number.
    starts: Vec<u64>,
    states: Vec<AtomicU64>,
}

impl InodeStates {
    fn new(geo: &Geometry, descs: &[GroupDesc]) -> std::result::Result<InodeStates, u64> {
        let mut starts = Vec::new();
        let count = descs.len() + 1;
        starts.try_reserve_exact(count).map_err(|_| (count * size_of::<u64>()) as u64)?;
        let mut all = 0;
        for desc in descs {
            starts.push(all);
            all += u64::from(inodes_read(geo, desc));
        }
        starts.push(all);
        Ok(InodeStates { per_group: geo.inodes_per_group, starts, states: words(all)? })
    }

    fn of(&self, group: usize) -> &[AtomicU64] {
        let place = |at: usize| self.starts.get(at).map(|start| *start as usize);
        let range = place(group).zip(place(group + 1));
        range.and_then(|(start, end)| self.states.get(start..end)).unwrap_or_default()
    }

    fn word(&self, ino: InodeNr) -> Option<&AtomicU64> {
        let index = ino.0.checked_sub(1)?;
        self.of((index / self.per_group) as usize).get((index % self.per_group) as usize)
    }

    /// Records the fields from the inode's table.
    pub fn put(&self, ino: InodeNr, links: u16, kind: Kind, flags: u8) {
        if let Some(word) = self.word(ino) {
            let value = u64::from(links) << 32 | (kind as u64) << 48 | u64::from(flags) << 56;
            // An inode can occur twice only if tables overlap.
            if word.load(Ordering::Relaxed) >> 32 != 0 {
                word.fetch_and(u64::from(u32::MAX), Ordering::Relaxed);
            }
            word.fetch_or(value, Ordering::Relaxed);
        }
    }

    /// Sets a flag.
    pub fn mark(&self, ino: InodeNr, flag: u8) {
        if let Some(word) = self.word(ino) {
            word.fetch_or(u64::from(flag) << 56, Ordering::Relaxed);
        }
    }

    /// Clears a flag.
    pub fn clear(&self, ino: InodeNr, flag: u8) {
        if let Some(word) = self.word(ino) {
            word.fetch_and(!(u64::from(flag) << 56), Ordering::Relaxed);
        }
    }

    /// Counts a name that refers to the inode.
    pub fn count_name(&self, ino: InodeNr) {
        if let Some(word) = self.word(ino) {
            word.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The state of an inode; one that was not read counts as unused.
    pub fn get(&self, ino: InodeNr) -> InodeState {
        InodeState(self.word(ino).map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    /// The inodes of a group that were read.
    pub fn of_group(&self, group: u32) -> impl Iterator<Item = (InodeNr, InodeState)> + '_ {
        let first = group * self.per_group + 1;
        self.of(group as usize)
            .iter()
            .zip(first..)
            .map(|(word, ino)| (InodeNr(ino), InodeState(word.load(Ordering::Relaxed))))
    }
}

/// The number of inodes at the start of a group's table that are read.
pub fn inodes_read(geo: &Geometry, desc: &GroupDesc) -> u32 {
    if desc.flags.contains(GroupFlags::INODE_UNINIT) || desc.inode_table.0 == 0 {
        return 0;
    }
    geo.inodes_per_group - desc.itable_unused.min(geo.inodes_per_group)
}
