//! Block groups: descriptors in memory, block bitmaps for the allocator, and the zones of the file system's own blocks.
//!
//! Main types: [`Groups`] (Linux: `s_group_desc`, fs/ext4/balloc.c), which is also the allocator's
//! [`extant_mballoc::GroupStore`].
//!
//! `growth.rs` appends groups.
//!
//! A descriptor is decoded once, at mount. Every change is written into its block immediately, with its checksum, under
//! the caller's handle. Each change also updates the sums of its flex group and of all directories, so that the
//! placement of a directory need not read every descriptor.
//!
//! # Locking
//! The sums are atomics that change under the descriptor's lock. Each descriptor has a lock (`group descriptor`, 72),
//! taken under the allocator's group lock (70) and before buffer locks (80).

mod growth;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use extant_base::append::{AppendVec, Latest};
use extant_base::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_block::BlockDevice;
use extant_cache::{BufKind, Buffer, BufferCache};
use extant_journal::Handle;
use extant_mballoc::{GroupStore, GroupSummary};
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, bitmap};

use extant_recovery::locate::{journal_blocks, journal_inode};

use crate::error::{Damage, Error, Result};

static DESC_CLASS: LockClass = LockClass::new("group descriptor", 72);
static DAMAGE_CLASS: LockClass = LockClass::new("group damage", 206);

/// The maximum number of errors that wait to be recorded.
const DAMAGE_MAX: usize = 64;

/// The counts of some groups for the placement of directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub free_inodes: i64,
    pub free_blocks: i64,
    pub dirs: i64,
}

impl Counts {
    fn of(desc: &GroupDesc) -> Counts {
        Counts {
            free_inodes: i64::from(desc.free_inodes),
            free_blocks: i64::from(desc.free_clusters),
            dirs: i64::from(desc.used_dirs),
        }
    }
}

/// The counts of one flex group, always current (Linux: `struct flex_groups`).
#[derive(Default)]
#[repr(align(64))]
struct FlexSums {
    free_inodes: AtomicI64,
    free_blocks: AtomicI64,
    dirs: AtomicI64,
}

impl FlexSums {
    fn add(&self, before: Counts, now: Counts) {
        for (sum, change) in [
            (&self.free_inodes, now.free_inodes - before.free_inodes),
            (&self.free_blocks, now.free_blocks - before.free_blocks),
            (&self.dirs, now.dirs - before.dirs),
        ] {
            if change != 0 {
                sum.fetch_add(change, Ordering::Relaxed);
            }
        }
    }

    fn get(&self) -> Counts {
        Counts {
            free_inodes: self.free_inodes.load(Ordering::Relaxed),
            free_blocks: self.free_blocks.load(Ordering::Relaxed),
            dirs: self.dirs.load(Ordering::Relaxed),
        }
    }
}

/// The blocks of the internal journal and of its map. No file may own them, as with the system zones. The result is
/// empty for a damaged journal, which only read-only mounts tolerate.
///
/// # Errors
/// The device cannot read the journal's inode or map, so the zones are unknown.
pub fn journal_zones(dev: &dyn BlockDevice, sb: &SuperBlock) -> Result<Vec<(BlockNr, u64)>> {
    let Some(ino) = sb.journal_inode() else { return Ok(Vec::new()) };
    let (map, nodes) = match journal_inode(dev, sb, ino).and_then(|inode| journal_blocks(dev, sb, ino, &inode)) {
        Err(e @ extant_recovery::Error::Device(_)) => return Err(e.into()),
        Err(_) => return Ok(Vec::new()),
        Ok(found) => found,
    };
    let runs = map.runs().map(|(start, len)| (start, u64::from(len)));
    Ok(runs.chain(nodes.into_iter().map(|node| (node, 1))).collect())
}

/// The blocks for a change of a group's bitmap. They remain in memory as long as this exists.
pub struct Prepared {
    pub bitmap: Arc<Buffer>,
    desc: (Arc<Buffer>, usize),
}

/// The groups of a file system of 2 TiB with blocks of 1 KiB take 60 MiB. More groups are supported only in a file
/// system with groups of the full size that its bitmap blocks allow.
const GROUPS_MAX: u64 = 1 << 18;

/// If the layout has too many groups, the maximum number that is supported.
fn too_many(geo: &Geometry) -> Option<u64> {
    let full_size = (8 * u64::from(geo.block_size)) << geo.cluster_bits;
    let most = (geo.blocks_count / full_size + 1).max(GROUPS_MAX);
    (u64::from(geo.group_count) > most).then_some(most)
}

pub struct Groups {
    pub cache: Arc<BufferCache>,
    /// The layout, which may grow.
    pub geo: Arc<Latest<Geometry>>,
    descs: AppendVec<Mutex<GroupDesc>>,
    /// Groups with damaged descriptors, in an image under rescue. Empty groups, without blocks and inodes, replace
    /// them.
    lost: BTreeMap<GroupNr, Error>,
    flexes: AppendVec<FlexSums>,
    dirs: AtomicI64,
    /// The errors for [`Groups::take_damage`].
    damage: Mutex<Vec<Error>>,
    has_damage: AtomicBool,
}

impl Groups {
    /// Reads and checks every descriptor. With `rescue`, a damaged descriptor only makes its group unusable.
    pub fn load(cache: Arc<BufferCache>, geo: Geometry, rescue: bool) -> Result<Groups> {
        // The limit does not depend on the image's size: the image may be sparse, so that many descriptors cost it
        // nothing.
        if let Some(most) = too_many(&geo) {
            let (count, size) = (geo.group_count(), geo.blocks_per_group);
            let detail = format!("{count} groups of {size} blocks: no more than {most} are supported");
            return Err(Error::NoMemory { detail });
        }
        let mut descs = Vec::with_capacity(geo.group_count() as usize);
        let mut lost = BTreeMap::new();
        let per_block = geo.descs_per_block().max(1);
        for group in geo.groups() {
            let (block, offset) = geo.group_desc_block(group).ok_or_else(|| {
                Error::corrupt(Damage::GroupDescriptor, format!("that of {group} lies outside the file system"))
            })?;
            if group.0 % per_block == 0 && geo.first_meta_bg.is_none() {
                cache.readahead(block, (geo.desc_blocks - group.0 / per_block).min(64));
            }
            let read = |block| {
                let buffer = cache.get(block)?;
                Ok(buffer.read(|bytes| GroupDesc::decode(&bytes[offset..], group, &geo))?)
            };
            let desc = match read(block) {
                Err(e) if rescue => {
                    lost.insert(group, e);
                    GroupDesc::parse(&vec![0; geo.desc_size], group, &geo)?
                }
                desc => desc?,
            };
            descs.push(Mutex::new(&DESC_CLASS, desc));
        }
        let flexes = descs.len().div_ceil(geo.groups_per_flex.max(1) as usize);
        let groups = Groups {
            cache,
            geo: Arc::new(Latest::new(geo)),
            descs: descs.into_iter().collect(),
            lost,
            flexes: (0..flexes).map(|_| FlexSums::default()).collect(),
            dirs: AtomicI64::new(0),
            damage: Mutex::new(&DAMAGE_CLASS, Vec::new()),
            has_damage: AtomicBool::new(false),
        };
        for group in groups.geo.groups().filter(|group| !groups.lost.contains_key(group)) {
            let counts = groups.with(group, Counts::of)?;
            groups.note(group, Counts::default(), counts);
        }
        Ok(groups)
    }

    /// Updates the sums after a change of `group`. The caller holds the descriptor's lock, or is the only user.
    fn note(&self, group: GroupNr, before: Counts, now: Counts) {
        if let Some(flex) = self.flexes.get((group.0 / self.geo.groups_per_flex.max(1)) as usize) {
            flex.add(before, now);
        }
        if before.dirs != now.dirs {
            self.dirs.fetch_add(now.dirs - before.dirs, Ordering::Relaxed);
        }
    }

    /// The sums over a flex group, without reading its descriptors.
    pub fn flex_counts(&self, flex: u32) -> Counts {
        self.flexes.get(flex as usize).map_or(Counts::default(), FlexSums::get)
    }

    /// The number of all directories.
    pub fn dirs(&self) -> i64 {
        self.dirs.load(Ordering::Relaxed)
    }

    /// Whether the sums agree with the descriptors. No other thread may change them meanwhile.
    #[cfg(test)]
    fn sums_agree(&self) -> bool {
        let flex = self.geo.groups_per_flex.max(1) as usize;
        let sum = |descs: &[&Mutex<GroupDesc>]| {
            descs.iter().map(|d| Counts::of(&d.lock())).fold(Counts::default(), |a, b| Counts {
                free_inodes: a.free_inodes + b.free_inodes,
                free_blocks: a.free_blocks + b.free_blocks,
                dirs: a.dirs + b.dirs,
            })
        };
        let descs: Vec<_> = self.descs.iter().collect();
        sum(&descs).dirs == self.dirs()
            && descs.chunks(flex).zip(self.flexes.iter()).all(|(descs, sums)| sum(descs) == sums.get())
    }

    /// The number of groups. Groups that a growth is about to add have descriptors already, but do not count.
    pub fn count(&self) -> u32 {
        self.geo.group_count
    }

    fn desc(&self, group: GroupNr) -> Result<&Mutex<GroupDesc>> {
        if let Some(why) = self.lost.get(&group) {
            return Err(why.clone());
        }
        self.descs
            .get(group.0 as usize)
            .ok_or_else(|| Error::corrupt(Damage::GroupDescriptor, format!("{group} does not exist")))
    }

    /// Runs `f` on a descriptor.
    pub fn with<R>(&self, group: GroupNr, f: impl FnOnce(&GroupDesc) -> R) -> Result<R> {
        Ok(f(&self.desc(group)?.lock()))
    }

    /// The block of a group's descriptor, and the offset in it.
    fn desc_buffer(&self, group: GroupNr) -> Result<(Arc<Buffer>, usize)> {
        let (block, offset) = self.geo.group_desc_block(group).ok_or_else(|| {
            Error::corrupt(Damage::GroupDescriptor, format!("that of {group} lies outside the file system"))
        })?;
        Ok((self.cache.get(block)?, offset))
    }

    fn store(&self, handle: &mut Handle, buffer: &Arc<Buffer>, offset: usize, group: GroupNr, desc: &GroupDesc) {
        let size = self.geo.desc_size;
        handle.modify(buffer, BufKind::Table, |b| desc.encode_into(&mut b[offset..offset + size], group, &self.geo));
    }

    /// Changes a descriptor and a bitmap of its group under `handle`. `f` gets the descriptor and the bitmap's bytes. 2
    /// credits.
    pub fn update_bitmap<R>(
        &self,
        handle: &mut Handle,
        group: GroupNr,
        bitmap: &Arc<Buffer>,
        f: impl FnOnce(&mut GroupDesc, &mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let desc = self.desc_buffer(group)?;
        self.update_prepared(handle, group, &Prepared { bitmap: bitmap.clone(), desc }, f)
    }

    fn update_prepared<R>(
        &self,
        handle: &mut Handle,
        group: GroupNr,
        Prepared { bitmap, desc: (buffer, offset) }: &Prepared,
        f: impl FnOnce(&mut GroupDesc, &mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let mut desc = self.desc(group)?.lock();
        let before = Counts::of(&desc);
        let r = handle.modify(bitmap, BufKind::Table, |bytes| f(&mut desc, bytes));
        self.note(group, before, Counts::of(&desc));
        let r = r?;
        self.store(handle, buffer, *offset, group, &desc);
        Ok(r)
    }

    /// The group's block bitmap, checked or (BLOCK_UNINIT) built in memory.
    pub fn block_bitmap(&self, group: GroupNr) -> Result<Arc<Buffer>> {
        let (block, uninit) = self.with(group, |d| (d.block_bitmap, d.flags.contains(GroupFlags::BLOCK_UNINIT)))?;
        if uninit {
            let built = self.build_block_bitmap(group)?;
            // The bitmap changes only under the descriptor's lock, and the first change clears the flag. Once the
            // flag is clear, do not touch the bytes. While it is set, build them only once, since other threads may
            // already read them.
            let desc = self.desc(group)?.lock();
            if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                return Ok(self.cache.get_made(block, |bytes| bytes.copy_from_slice(&built))?);
            }
        }
        let buffer = self.cache.get(block)?;
        if !buffer.verified() {
            let desc = self.desc(group)?.lock();
            buffer
                .read(|bytes| desc.verify_block_bitmap(bytes, group, &self.geo))
                .map_err(|e| Error::from(e).at(block))?;
            buffer.set_verified();
        }
        Ok(buffer)
    }

    /// Builds the content of a bitmap for a group whose bitmap was never written.
    fn build_block_bitmap(&self, group: GroupNr) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; self.geo.block_size as usize];
        let flex = self.geo.groups_per_flex.max(1);
        let from = group.0 - group.0 % flex;
        let to = from.saturating_add(flex).min(self.count());
        let descs = (from..to).map(|g| self.with(GroupNr(g), Clone::clone)).collect::<Result<Vec<_>>>()?;
        bitmap::init_block_bitmap(&mut bytes, group, &descs, &self.geo);
        Ok(bytes)
    }

    /// The group's inode bitmap, checked or (INODE_UNINIT) built in memory, by the same rules as the block bitmap.
    pub fn inode_bitmap(&self, group: GroupNr) -> Result<Arc<Buffer>> {
        let desc = self.desc(group)?.lock();
        let block = desc.inode_bitmap;
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            return Ok(self.cache.get_made(block, |bytes| bitmap::init_inode_bitmap(bytes, &self.geo))?);
        }
        drop(desc);
        let buffer = self.cache.get(block)?;
        if !buffer.verified() {
            let desc = self.desc(group)?.lock();
            buffer.read(|b| desc.verify_inode_bitmap(b, group, &self.geo)).map_err(|e| Error::from(e).at(block))?;
            buffer.set_verified();
        }
        Ok(buffer)
    }

    /// Reads the blocks for a change of the group's block bitmap.
    pub fn hold_blocks(&self, group: GroupNr) -> Result<Prepared> {
        Ok(Prepared { bitmap: self.block_bitmap(group)?, desc: self.desc_buffer(group)? })
    }

    /// Reads the blocks for a change of the group's inode bitmap.
    pub fn hold_inodes(&self, group: GroupNr) -> Result<Prepared> {
        Ok(Prepared { bitmap: self.inode_bitmap(group)?, desc: self.desc_buffer(group)? })
    }

    /// Keeps damage that did not stop an operation, to be recorded when no lock is held. More than [`DAMAGE_MAX`]
    /// errors at a time are dropped, because a single map may be wrong in millions of places.
    pub fn keep_damage(&self, e: Error) {
        let mut damage = self.damage.lock();
        if damage.len() < DAMAGE_MAX {
            damage.push(e);
        }
        drop(damage);
        self.has_damage.store(true, Ordering::Release);
    }

    /// Takes the damage from [`Groups::keep_damage`], and the errors of groups that allocations skipped.
    pub fn take_damage(&self) -> Vec<Error> {
        // Called at the start and the end of each handle. Loading first keeps the cache line shared while there is no
        // damage.
        if !self.has_damage.load(Ordering::Acquire) || !self.has_damage.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.damage.lock())
    }

    /// All ranges of blocks that belong to the file system's own structures.
    pub fn system_zones(&self) -> Result<Vec<(BlockNr, u64)>> {
        let mut zones = Vec::new();
        // In a flex group, structures of one kind are adjacent and form one range. So half a million groups have few
        // ranges.
        let mut open = [(BlockNr(0), 0u64); 3];
        for group in self.geo.groups() {
            zones.extend(self.geo.base_metadata(group).ranges().map(|(start, len)| (start, u64::from(len))));
            if self.lost.contains_key(&group) {
                continue;
            }
            let (b, i, t) = self.with(group, |d| (d.block_bitmap, d.inode_bitmap, d.inode_table))?;
            let kinds = [(b, 1), (i, 1), (t, u64::from(self.geo.inode_table_blocks))];
            for ((start, len), open) in kinds.into_iter().zip(&mut open) {
                if open.0.0 + open.1 == start.0 {
                    open.1 += len;
                } else {
                    zones.extend((open.1 > 0).then_some(*open));
                    *open = (start, len);
                }
            }
        }
        zones.extend(open.into_iter().filter(|(_, len)| *len > 0));
        Ok(zones)
    }

    /// The memory in bytes, which grows with the size of the file system.
    pub fn memory(&self) -> usize {
        self.descs.len() * size_of::<Mutex<GroupDesc>>() + self.flexes.len() * size_of::<FlexSums>()
    }

    /// The summary of each group for the allocator at mount. `extents`: files have extent trees.
    pub fn summaries(&self, extents: bool) -> Vec<GroupSummary> {
        (0..)
            .zip(self.descs.iter())
            .map(|(group, d)| {
                let blocks = self.geo.blocks_in_group(GroupNr(group));
                let d = d.lock();
                let free = d.free_clusters;
                let free_blocks = free.saturating_mul(self.geo.blocks_per_cluster());
                let inodes = self.geo.inodes_per_group.saturating_sub(d.free_inodes);
                // A small file has at most one block of pointers, and a pointer has four bytes. An extent tree has
                // nodes only if the file is fragmented: one file in thirty on an aged disk that is 90 % full.
                let maps = match extents {
                    true => d.used_dirs.saturating_add(inodes / 16),
                    false => inodes.saturating_add(blocks.saturating_sub(free_blocks) / (self.geo.block_size / 4)),
                };
                GroupSummary { free, block_uninit: d.flags.contains(GroupFlags::BLOCK_UNINIT), maps }
            })
            .collect()
    }

    /// Sums over all groups: free blocks and free inodes.
    pub fn totals(&self) -> (u64, u64) {
        self.descs.iter().fold((0, 0), |(b, i), d| {
            let d = d.lock();
            (b + (u64::from(d.free_clusters) << self.geo.cluster_bits), i + u64::from(d.free_inodes))
        })
    }
}

impl GroupStore for Groups {
    type Txn = Handle;
    type Error = Error;
    type Prepared = Prepared;

    fn load(&self, group: GroupNr) -> Result<Vec<u8>> {
        Ok(self.block_bitmap(group)?.read(<[u8]>::to_vec))
    }

    /// Reads bitmaps that are adjacent, as `flex_bg` places them, with one request.
    fn read_ahead(&self, groups: &[GroupNr]) {
        let mut run: Option<(BlockNr, u32)> = None;
        for group in groups {
            let Ok(block) = self.with(*group, |d| d.block_bitmap) else { continue };
            run = match run {
                Some((first, count)) if first.0 + u64::from(count) == block.0 => Some((first, count + 1)),
                other => {
                    if let Some((first, count)) = other {
                        self.cache.readahead(first, count);
                    }
                    Some((block, 1))
                }
            };
        }
        if let Some((first, count)) = run {
            self.cache.readahead(first, count);
        }
    }

    fn check(&self, group: GroupNr) -> Result<()> {
        self.block_bitmap(group)?;
        self.desc_buffer(group)?;
        Ok(())
    }

    fn damaged(&self, _group: GroupNr, error: &Error) {
        self.keep_damage(error.clone());
    }

    fn prepare(&self, _handle: &mut Handle, group: GroupNr) -> Result<Prepared> {
        self.hold_blocks(group)
    }

    fn mark(
        &self,
        handle: &mut Handle,
        group: GroupNr,
        prepared: &Prepared,
        range: Range<u32>,
        used: bool,
    ) -> Result<()> {
        let geo = &self.geo;
        self.update_prepared(handle, group, prepared, |desc, bytes| {
            let len = range.len() as u32;
            let as_expected =
                if used { bitmap::is_clear(bytes, range.clone()) } else { bitmap::is_set(bytes, range.clone()) };
            if !as_expected {
                return Err(Error::corrupt(
                    Damage::BlockBitmap,
                    format!("{group}: blocks {}+{len} are not all {}", range.start, if used { "free" } else { "used" }),
                )
                .at(prepared.bitmap.block));
            }
            if used {
                bitmap::set_range(bytes, range);
                desc.free_clusters = desc.free_clusters.saturating_sub(len);
            } else {
                bitmap::clear_range(bytes, range);
                desc.free_clusters = desc.free_clusters.saturating_add(len);
            }
            desc.flags.remove(GroupFlags::BLOCK_UNINIT);
            desc.set_block_bitmap_csum(bytes, geo);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {

    use extant_base::{sim, task};
    use extant_mballoc::{Request, RequestFlags};
    use extant_ondisk::InodeNr;

    use super::*;
    use crate::forgetful::Forgetful;
    use crate::{Cred, Filesystem, InodeRef, MountOptions, NewNode, WriteFlags};

    fn mounted(args: &[&str]) -> crate::Mounted {
        let dev = Arc::new(crate::tools::made(&[&["-b", "1024"], args].concat(), "128M"));
        let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
        Filesystem::mount(dev, options).expect("mounted")
    }

    fn mkdir(fs: &Filesystem, dir: &InodeRef, name: u32) -> InodeRef {
        let cred = Cred::default();
        fs.create(dir, format!("d{name}").as_bytes(), NewNode::directory(0o755), cred).expect("mkdir")
    }

    #[test]
    fn the_sums_follow_every_change() {
        for args in [&["-t", "ext4", "-g", "512"][..], &["-t", "ext3", "-g", "1024"]] {
            let fs = mounted(args);
            assert!(fs.placement.groups.sums_agree(), "{args:?}: as mounted");
            let root = fs.root().expect("root");
            for i in 0..100 {
                let d = mkdir(&fs, &root, i);
                let f = fs.create(&d, b"f", NewNode::file(0o644), Cred::default()).expect("create");
                fs.write(&f, 0, &vec![1; 10_000 * (i as usize % 7)], WriteFlags::default()).expect("write");
                mkdir(&fs, &d, i);
                if i % 3 == 0 {
                    fs.unlink(&d, b"f").expect("unlink");
                }
            }
            fs.sync().expect("sync");
            assert!(fs.placement.groups.sums_agree(), "{args:?}: after making");
            let made = fs.placement.groups.dirs();
            for i in 0..100 {
                let d = fs.lookup(&root, format!("d{i}").as_bytes()).expect("there");
                fs.rmdir(&d, format!("d{i}").as_bytes()).expect("rmdir");
            }
            fs.evictor().drain();
            assert!(fs.placement.groups.sums_agree(), "{args:?}: after removing");
            assert_eq!(fs.placement.groups.dirs(), made - 100);
            drop(root);
            fs.unmount().expect("unmount");
        }
    }

    /// The cost of choosing a group does not depend on the number of groups.
    #[test]
    fn placing_a_directory_does_not_visit_all_groups() {
        let fs = mounted(&["-t", "ext4", "-g", "256"]);
        assert!(fs.placement.groups.count() >= 500);
        let root = fs.root().expect("root");
        let top = mkdir(&fs, &root, 0);
        let before = fs.stats.placement_looks.get();
        for i in 0..50 {
            mkdir(&fs, &root, 1 + i);
            mkdir(&fs, &top, i);
        }
        let looks = fs.stats.placement_looks.get() - before;
        assert!(looks <= 100 * u64::from(fs.geo.groups_per_flex), "{looks} reads of descriptors for 100 directories");
        drop((root, top));
        fs.unmount().expect("unmount");
    }

    /// A directory's files fill the groups of its flex group in order (Linux: `find_group_other`).
    #[test]
    fn files_fill_their_flex_group_before_they_leave_it() {
        let fs = mounted(&["-t", "ext4", "-g", "512", "-G", "8", "-N", "8192"]);
        let root = fs.root().expect("root");
        let dir = mkdir(&fs, &root, 0);
        let per_group = fs.geo.inodes_per_group;
        let flex = (dir.ino.0 - 1) / per_group / 8;
        let mut groups = Vec::new();
        for i in 0..4 * per_group {
            let f = fs.create(&dir, format!("f{i}").as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
            groups.push((f.ino.0 - 1) / per_group);
        }
        assert!(groups.iter().all(|g| g / 8 == flex), "{groups:?}");
        assert!(groups.is_sorted(), "one after the other: {groups:?}");
        drop((dir, root));
        fs.unmount().expect("unmount");
    }

    /// The bitmaps of both groups have been read and are not evicted, even if memory runs short meanwhile.
    #[test]
    fn a_free_over_a_border_reads_each_bitmap_once() {
        let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024", "-g", "1024"], "8M"));
        let (forgetful, fs) = Forgetful::mount(dev.clone());
        // A group without a copy of the superblock at its beginning.
        let border = fs.geo.first_block_of_group(GroupNr(4));
        let free = fs.placement.alloc.free_blocks();
        for (start, len) in [(border.0 - 3, 3), (border.0, 5)] {
            let request = Request { flags: RequestFlags::GOAL_ONLY, ..Request::metadata(Some(BlockNr(start)), len) };
            let got = fs.transact(8, |handle| fs.placement.alloc.allocate(handle, &request)).expect("free");
            assert_eq!((got.start.0, got.len), (start, len));
        }
        fs.sync().expect("sync");
        let (freed, _) = forgetful.run_until(&fs, 3, || {
            fs.transact(8, |handle| fs.placement.free_blocks(handle, InodeNr::ROOT, BlockNr(border.0 - 3), 8))
        });
        assert!(freed.is_ok() && !fs.is_read_only(), "{freed:?}");
        assert_eq!(fs.placement.alloc.free_blocks(), free);
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&dev);
    }

    /// Groups whose bitmaps were never written, but are not empty: they contain copies of the superblock and
    /// descriptors.
    fn fresh_groups(fs: &Filesystem) -> Vec<GroupNr> {
        let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
        fs.geo
            .groups()
            .filter(|g| fs.placement.groups.with(*g, |d| d.flags.contains(uninit)).expect("a group"))
            .collect()
    }

    /// Runs an operation on each of two threads of a mount, in many schedules.
    fn two_at_once<T: Send + 'static>(
        each: impl Fn(&Filesystem) -> T + Clone + Send + 'static,
        judged: impl Fn(&Filesystem, T, T) + Clone + Send + 'static,
    ) {
        let image = crate::tools::made(&["-t", "ext4", "-b", "1024", "-g", "512", "-O", "^flex_bg"], "8M");
        for seed in 0..20 {
            let (dev, each, judged) = (Arc::new(image.snapshot()), each.clone(), judged.clone());
            let strategy = sim::Strategy::Random { preempt_permille: 300 };
            let outcome = sim::run(&sim::Options { strategy, ..sim::Options::new(seed) }, move || {
                let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
                let fs = Filesystem::mount(dev, options).expect("mounted");
                let shared = Arc::clone(&fs);
                let other = each.clone();
                let other = task::spawn("other", move || other(&shared)).expect("thread");
                let own = each(&fs);
                judged(&fs, own, other.join().expect("joined"));
                fs.unmount().expect("unmount");
            });
            outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
    }

    #[test]
    fn readers_see_only_complete_bitmaps() {
        let look = |fs: &Filesystem| {
            let bitmaps = |g: &GroupNr| {
                let inodes = fs.placement.groups.inode_bitmap(*g).expect("inode bitmap");
                (fs.placement.groups.load(*g).expect("block bitmap"), inodes.read(<[u8]>::to_vec))
            };
            fresh_groups(fs).iter().map(bitmaps).collect::<Vec<_>>()
        };
        two_at_once(look, move |fs, one, other| {
            let quiet = look(fs);
            assert!(quiet.len() > 2 && quiet.iter().all(|(b, i)| b.contains(&0xFF) && i.contains(&0xFF)));
            assert!(one == quiet && other == quiet);
        });
    }

    #[test]
    fn concurrent_allocations_in_a_fresh_group_are_sound() {
        let take = |fs: &Filesystem| {
            for group in fresh_groups(fs) {
                let goal = fs.geo.first_block_of_group(group);
                let mut handle = fs.start(8).expect("handle");
                let got = fs.placement.alloc.allocate(&mut handle, &Request::metadata(Some(goal), 1)).expect("space");
                fs.placement.free_blocks(&mut handle, InodeNr::ROOT, got.start, 1).expect("freed");
                handle.finish();
            }
        };
        two_at_once(take, |fs, (), ()| {
            assert_eq!(fs.statistics().allocator().groups_bad, 0);
            assert_eq!(fs.placement.groups.take_damage().len(), 0);
        });
    }

    #[test]
    fn group_descriptors_are_small_and_charged_to_the_budget() {
        let mut besides = Vec::new();
        for policy in extant_mballoc::Policy::ALL {
            let dev = Arc::new(crate::tools::made(&["-b", "1024", "-t", "ext4", "-g", "256"], "128M"));
            let options =
                MountOptions { threads: false, seed: Some(1), alloc_policy: policy, ..MountOptions::default() };
            let fs = Filesystem::mount(dev, options).expect("mounted");
            let (fixed, groups) = (fs.placement.fixed_bytes(), u64::from(fs.placement.groups.count()));
            let linux = matches!(policy.name(), "optimize-scan" | "goal-first");
            assert!(fixed <= groups * if linux { 300 } else { 200 }, "{}: {}", policy.name(), fixed / groups);
            besides.push(fs.budget.used().checked_sub(fixed).expect("charged"));
            fs.unmount().expect("unmount");
        }
        // The other memory of a mount does not depend on the policy.
        assert!(besides.windows(2).all(|pair| pair[0] == pair[1]), "{besides:?}");
    }
}
