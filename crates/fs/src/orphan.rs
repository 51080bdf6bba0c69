//! Inodes that a crash must clean up: unlinked but open, or being truncated (Linux: fs/ext4/orphan.c).
//!
//! Main types: [`Orphans`]; [`Over`], a reason for a record that no longer applies. An inode has one record for both
//! reasons, and it remains until neither applies. A record is a slot of the orphan file (feature `orphan_file`). If
//! that is full or absent, it is a place on the list that starts at `s_last_orphan` and continues through `i_dtime`.
//!
//! A new record is *pending*: it gets its place when its transaction closes ([`Orphans::place_pending`]). A crash shows
//! no other state of a transaction, so nothing is lost. Most files are freed in the transaction that removes their last
//! name. They get no place at all, and neither the superblock nor the orphan file changes. (Linux gives a place at
//! once, under one lock for the list, or to one of the blocks of the orphan file.)
//!
//! What it does not do: find orphans after a crash (`mount::recover`), or free them (`ops::evict`).
//!
//! # Locking
//! `orphan records` (54), one for each of some shards of the inode numbers, taken under the map lock; then `orphans`
//! (55), for the places, before `inode meta` (60). Records become pending and are removed under an open handle, and get
//! their places while none is open.

use std::sync::{Arc, OnceLock};

use extant_base::hash::{HashMap, HashSet, shard_of};
use extant_base::sim;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_cache::{BufKind, Buffer};
use extant_journal::Handle;
use extant_ondisk::csum::ChecksumSeed;
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::{BlockNr, InodeNr, orphan};

use crate::error::{Damage, Error, Result};
use crate::inode::{Inode, InodeRef};
use crate::volume::Volume;

static RECORDS_CLASS: LockClass = LockClass::new("orphan records", 54);
static CLASS: LockClass = LockClass::new("orphans", 55);

/// There is a bit for each shard in one word.
const SHARD_BITS: u32 = 6;

/// A reason for a record that no longer applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The inode has a name again.
    Nameless,
    /// No blocks remain past its end.
    Truncation,
    /// The inode is being freed.
    All,
}

/// The content of the orphan file.
pub(crate) struct OrphanFile {
    pub seed: Option<ChecksumSeed>,
    pub blocks: Vec<BlockNr>,
    /// For each used slot: the block of the file, the slot in it, and the orphan.
    pub used: Vec<(u32, u32, InodeNr)>,
}

/// The place of a record on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A block of the orphan file, and a slot in it.
    File {
        block: u32,
        slot: u32,
    },
    List,
}

/// The records of a shard of the inodes.
#[derive(Default)]
struct Records {
    /// Records of the running transaction, without a place.
    pending: HashMap<InodeNr, Arc<Inode>>,
    /// The records with a place.
    placed: HashSet<InodeNr>,
    /// Files with an unfinished truncation, which is in progress or has failed to remove the blocks. Mounts without a
    /// log keep this set as well, although they record no orphans.
    cut: HashSet<InodeNr>,
}

impl Records {
    fn contains(&self, ino: InodeNr) -> bool {
        self.pending.contains_key(&ino) || self.placed.contains(&ino)
    }
}

/// Processors fetch lines in pairs, so a pair is what two shards must not share.
#[repr(align(128))]
struct Line(Mutex<Records>);

/// The records that have a place.
struct Places {
    place: HashMap<InodeNr, Place>,
    /// The list in reverse: the head, which is the newest inode, comes last.
    list: Vec<Arc<Inode>>,
    /// The inode that follows these on the device, or 0. After a crash, the cleanup reads the rest of the list in
    /// portions.
    behind: u32,
    /// Free slots of the orphan file, in reverse order.
    free: Vec<(u32, u32)>,
    /// The orphan file's checksum seed and physical blocks.
    file: Option<(Option<ChecksumSeed>, Vec<BlockNr>)>,
}

/// The orphans of a mount.
pub(crate) struct Orphans {
    volume: Arc<Volume>,
    shards: Box<[Line]>,
    /// The shards with pending records, one bit each.
    ///
    /// Bits are set under open handles, and read and cleared when the transaction closes. The end of a handle and the
    /// close of its transaction are ordered by the locks of the journal, so relaxed operations suffice.
    waiting: AtomicU64,
    places: Mutex<Places>,
    /// The superblock's block, from the first record on: reading it cannot fail when a transaction closes.
    superblock: OnceLock<Arc<Buffer>>,
}

impl Orphans {
    pub(crate) fn new(volume: Arc<Volume>) -> Orphans {
        let shards = (0..1 << SHARD_BITS).map(|_| Line(Mutex::new(&RECORDS_CLASS, Records::default()))).collect();
        let places = Places { place: HashMap::default(), list: Vec::new(), behind: 0, free: Vec::new(), file: None };
        let (waiting, superblock) = (AtomicU64::new(0), OnceLock::new());
        Orphans { volume, shards, waiting, places: Mutex::new(&CLASS, places), superblock }
    }

    /// Sets up the orphan file. Slots that are in use for any reason do not count as free.
    pub(crate) fn use_file(&self, file: &OrphanFile, slots_per_block: u32) {
        let used: HashSet<(u32, u32)> = file.used.iter().map(|(block, slot, _)| (*block, *slot)).collect();
        let slots = (0..file.blocks.len() as u32).rev();
        let slots = slots.flat_map(|b| (0..slots_per_block).rev().map(move |i| (b, i)));
        let mut s = self.places.lock();
        s.free = slots.filter(|place| !used.contains(place)).collect();
        s.file = Some((file.seed, file.blocks.clone()));
    }

    /// Adopts the next part of the list found at mount, head first, and the inode that follows it.
    pub(crate) fn adopt_list(&self, chain: &[InodeRef], behind: Option<InodeNr>) {
        for inode in chain {
            self.records(inode.ino).lock().placed.insert(inode.ino);
        }
        let mut s = self.places.lock();
        s.list.splice(0..0, chain.iter().rev().map(|i| Arc::clone(i)));
        s.place.extend(chain.iter().map(|i| (i.ino, Place::List)));
        s.behind = behind.map_or(0, |ino| ino.0);
    }

    /// Adopts a used slot of the orphan file found at mount. Returns false if the inode has another record.
    pub(crate) fn adopt_slot(&self, ino: InodeNr, block: u32, slot: u32) -> bool {
        let mut records = self.records(ino).lock();
        let is_new = !records.contains(ino);
        if is_new {
            records.placed.insert(ino);
            self.places.lock().place.insert(ino, Place::File { block, slot });
        }
        is_new
    }

    /// Whether the inode has a record.
    pub(crate) fn contains(&self, ino: InodeNr) -> bool {
        self.records(ino).lock().contains(ino)
    }

    /// Records the start of a truncation of this file. It ends with [`Over::Truncation`], or when the inode is freed.
    pub(crate) fn note_cut(&self, ino: InodeNr) {
        self.records(ino).lock().cut.insert(ino);
    }

    /// Whether a truncation of this file has left blocks past its end. The caller holds the inode's lock.
    pub(crate) fn is_cut_short(&self, ino: InodeNr) -> bool {
        self.records(ino).lock().cut.contains(&ino)
    }

    /// The number of records, each shard at its own moment.
    pub(crate) fn len(&self) -> usize {
        let len = |line: &Line| {
            let records = line.0.lock();
            records.pending.len() + records.placed.len()
        };
        self.shards.iter().map(len).sum()
    }

    /// Records the inode as an orphan, unless it is already recorded. 2 credits (superblock or orphan file block,
    /// inode). The caller writes the inode afterwards, under the same handle.
    pub(crate) fn add(&self, handle: &mut Handle, inode: &Arc<Inode>) -> Result<()> {
        if !self.volume.has_log {
            // Only a log ensures that the list never contradicts the inodes. E2fsck finds the orphans without the list,
            // but gives up if the list is inconsistent (as in Linux).
            return Ok(());
        }
        if self.superblock.get().is_none() {
            // If another thread was first, it has set the same buffer.
            let _ = self.superblock.set(self.volume.cache.get(self.volume.sb_place.0)?);
        }
        let mut records = self.records(inode.ino).lock();
        if records.contains(inode.ino) {
            return Ok(());
        }
        handle.set_opaque();
        // For the block with its place.
        handle.put_aside();
        records.pending.insert(inode.ino, inode.clone());
        self.note_waiting(inode.ino);
        Ok(())
    }

    /// Gives the pending records their places, because their transaction closes. The credits are those that
    /// [`Orphans::add`] has put aside. The inodes' blocks in their tables belong to the transaction already.
    pub(crate) fn place_pending(&self, handle: &mut Handle) -> Result<()> {
        let pending = self.take_pending();
        if pending.is_empty() {
            return Ok(());
        }
        let mut s = self.places.lock();
        let listed = s.list.len();
        for inode in pending {
            let place = match s.free.last().copied() {
                Some((block, slot)) => match self.set_slot(handle, &s, block, slot, Some(inode.ino)) {
                    Ok(()) => {
                        s.free.pop();
                        Place::File { block, slot }
                    }
                    Err(e) => {
                        // The list needs no block that might be unreadable.
                        if e.is_corruption() {
                            self.volume.placement.groups.keep_damage(e);
                        }
                        Place::List
                    }
                },
                None => Place::List,
            };
            s.place.insert(inode.ino, place);
            if place == Place::List {
                let next = s.list.last().map_or(s.behind, |i| i.ino.0);
                self.write_next(handle, &inode, next)?;
                s.list.push(inode);
            }
        }
        match s.list.get(listed..).and_then(<[_]>::last).map(|inode| inode.ino) {
            Some(head) => self.volume.modify_superblock(handle, |sb| sb.set_last_orphan(Some(head))),
            None => Ok(()),
        }
    }

    /// Removes the inode's record, unless there is none or another reason needs it. 2 credits. Afterwards its `dtime`
    /// is 0; the caller writes the inode.
    ///
    /// A truncation holds the inode's lock, but an operation that removes its last name or adds its first does not.
    /// That operation changes the link count before it comes here. So if both run at the same time, at least one of
    /// them sees the other.
    pub(crate) fn remove(&self, handle: &mut Handle, inode: &Arc<Inode>, over: Over) -> Result<()> {
        let mut records = self.records(inode.ino).lock();
        if over != Over::Nameless {
            records.cut.remove(&inode.ino);
        }
        let needed = match over {
            Over::Nameless => records.cut.contains(&inode.ino),
            Over::Truncation => inode.links() == 0,
            Over::All => false,
        };
        if needed {
            return Ok(());
        }
        if records.pending.remove(&inode.ino).is_some() {
            // The handle belongs to the transaction in which the record was made, because it has no place yet.
            handle.set_opaque();
            handle.take_back();
            return Ok(());
        }
        if !records.placed.contains(&inode.ino) {
            return Ok(());
        }
        let mut s = self.places.lock();
        let place = s.place.get(&inode.ino).copied().expect("placed");
        handle.set_opaque();
        match place {
            Place::File { block, slot } => {
                self.set_slot(handle, &s, block, slot, None)?;
                s.free.push((block, slot));
            }
            Place::List => {
                // Search from the end, because the newest inode is usually removed first.
                let at = s.list.iter().rposition(|i| Arc::ptr_eq(i, inode)).expect("listed");
                let older = at.checked_sub(1).map_or(s.behind, |i| s.list[i].ino.0);
                match s.list.get(at + 1).cloned() {
                    None => self.volume.modify_superblock(handle, |sb| {
                        sb.set_last_orphan((older != 0).then_some(InodeNr(older)));
                    })?,
                    Some(newer) => {
                        self.write_next(handle, &newer, older).inspect_err(|_| {
                            newer.meta.write().desc.dtime = inode.ino.0;
                        })?;
                    }
                }
                inode.meta.write().desc.dtime = 0;
                s.list.remove(at);
            }
        }
        s.place.remove(&inode.ino);
        records.placed.remove(&inode.ino);
        Ok(())
    }

    fn records(&self, ino: InodeNr) -> &Mutex<Records> {
        &self.shards[shard_of(u64::from(ino.0), SHARD_BITS)].0
    }

    /// Notes that the inode's shard has a pending record. Mostly the bit is set already, and the line stays shared.
    fn note_waiting(&self, ino: InodeNr) {
        let bit = 1 << shard_of(u64::from(ino.0), SHARD_BITS);
        sim::line_read("orphans waiting", &self.waiting);
        if self.waiting.load(Ordering::Relaxed) & bit == 0 {
            sim::line_written("orphans waiting", &self.waiting);
            self.waiting.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Takes the pending records, which count as placed from here on. No handle is open.
    fn take_pending(&self) -> Vec<Arc<Inode>> {
        sim::line_read("orphans waiting", &self.waiting);
        let mut waiting = self.waiting.load(Ordering::Relaxed);
        if waiting == 0 {
            return Vec::new();
        }
        sim::line_written("orphans waiting", &self.waiting);
        self.waiting.store(0, Ordering::Relaxed);
        let mut pending = Vec::new();
        while waiting != 0 {
            let mut records = self.shards[waiting.trailing_zeros() as usize].0.lock();
            waiting &= waiting - 1;
            let Records { pending: found, placed, .. } = &mut *records;
            pending.extend(found.drain().map(|(ino, inode)| {
                placed.insert(ino);
                inode
            }));
        }
        pending.sort_unstable_by_key(|inode| inode.ino);
        pending
    }

    /// Sets one slot of the orphan file. 1 credit.
    fn set_slot(
        &self,
        handle: &mut Handle,
        places: &Places,
        block: u32,
        slot: u32,
        ino: Option<InodeNr>,
    ) -> Result<()> {
        let (seed, blocks) = places.file.as_ref().expect("a place in the file implies the file");
        let nr = blocks[block as usize];
        let buffer = self.volume.cache.get(nr)?;
        if !buffer.verified() {
            buffer.read(|b| orphan::verify(b, nr, *seed))?;
            buffer.set_verified();
        }
        handle.modify(&buffer, BufKind::Table, |b| {
            orphan::set_slot(b, slot as usize, ino);
            orphan::update_checksum(b, nr, *seed);
        });
        Ok(())
    }

    /// Writes the number of the inode that follows this one on the list. The rest of the inode in its table stays as
    /// the transaction has it, because the inode in memory may be ahead of it.
    fn write_next(&self, handle: &mut Handle, inode: &Arc<Inode>, next: u32) -> Result<()> {
        let (buffer, offset) = self.volume.inode_slot(inode.ino)?;
        let place = offset..offset + self.volume.geo.inode_size;
        inode.meta.write().desc.dtime = next;
        Ok(handle.modify(&buffer, BufKind::Table, |b| {
            let mut desc = InodeDesc::parse(&b[place.clone()], inode.ino, &self.volume.geo)?;
            desc.dtime = next;
            desc.encode_into(&mut b[place], inode.ino, &self.volume.geo)
        })?)
    }
}

/// Converts the error "not in use" to damage, because an orphan record refers to the inode.
pub(crate) fn named_wrongly(e: Error) -> Error {
    match e {
        Error::Stale(ino) => Error::corrupt(Damage::Orphans, "not in use").of(ino),
        e => e,
    }
}

#[cfg(test)]
mod tests {
    use crate::filesystem::Filesystem;
    use extant_block::device::{Fault, FaultyDevice, MemDevice};
    use extant_block::{BioOp, BlockDevice};

    use super::*;
    use crate::{Cred, MountOptions, Mounted, NewNode};

    /// The number of records, of those that are pending, the length of the list, and the number of free slots.
    fn recorded(fs: &Filesystem) -> (usize, usize, usize, usize) {
        let pending = fs.orphans.shards.iter().map(|line| line.0.lock().pending.len()).sum();
        let len = fs.orphans.len();
        let s = fs.orphans.places.lock();
        (len, pending, s.list.len(), s.free.len())
    }

    fn mounted(dev: Arc<dyn BlockDevice>) -> Mounted {
        let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
        Filesystem::mount(dev, options).expect("mounted")
    }

    fn image(features: &str) -> Arc<MemDevice> {
        Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024", "-O", features], "16M"))
    }

    /// A failed change neither takes nor frees a slot, so the next try finds the same state.
    #[test]
    fn a_record_that_cannot_be_written_takes_no_slot() {
        for features in ["orphan_file", "^orphan_file"] {
            let dev = image(features);
            let faulty = Arc::new(FaultyDevice::new(dev.clone()));
            let fs = mounted(faulty.clone());
            let root = fs.root().expect("root");
            let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
            let (_, _, _, free) = recorded(&fs);
            let (listed, taken) = if free == 0 { (1, 0) } else { (0, 1) };
            let all_fail = |change: fn(&Filesystem, &mut Handle, &Arc<Inode>) -> Result<()>| {
                let before = recorded(&fs);
                assert!(fs.freeze().expect("everything is home") && fs.thaw());
                fs.cache.drop_clean();
                faulty.inject(Fault::eio().op(BioOp::Read));
                for _ in 0..3 {
                    let failed = fs.transact(2, |handle| change(&fs, handle, &f));
                    assert!(failed.is_err() && !fs.is_read_only(), "{features}: {failed:?}");
                    assert_eq!((recorded(&fs), f.meta.read().desc.dtime), (before, 0), "{features}");
                }
                faulty.clear();
            };
            let add = |handle: &mut Handle| fs.orphans.add(handle, &f).and_then(|()| fs.write_inode(handle, &f));
            let remove = |handle: &mut Handle| {
                fs.orphans.remove(handle, &f, Over::All).and_then(|()| fs.write_inode(handle, &f))
            };
            all_fail(|fs, handle, inode| fs.orphans.add(handle, inode));
            fs.transact(3, add).expect("readable");
            assert_eq!(recorded(&fs), (1, 1, 0, free), "{features}");
            fs.sync().expect("committed");
            assert_eq!(recorded(&fs), (1, 0, listed, free - taken), "{features}");
            if taken == 1 {
                // The superblock stays in memory, but the blocks of the orphan file do not.
                all_fail(|fs, handle, inode| fs.orphans.remove(handle, inode, Over::All));
            }
            fs.transact(3, remove).expect("readable");
            assert_eq!(recorded(&fs), (0, 0, 0, free), "{features}");
            drop((root, f));
            fs.unmount().expect("unmount");
            crate::tools::assert_clean(&dev);
        }
    }

    /// If a block of the orphan file cannot be read when the transaction closes, the orphan goes to the list.
    #[test]
    fn an_orphan_goes_to_the_list_if_the_orphan_file_is_unreadable() {
        let dev = image("orphan_file");
        let faulty = Arc::new(FaultyDevice::new(dev.clone()));
        let fs = mounted(faulty.clone());
        let root = fs.root().expect("root");
        let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
        fs.sync().expect("committed");
        fs.unlink(&root, b"f").expect("unlinked");
        assert!(recorded(&fs).3 > 0);
        let (nr, _) = fs.orphans.places.lock().free.last().map(|&(block, slot)| (block, slot)).expect("a slot");
        let block = fs.orphans.places.lock().file.as_ref().expect("a file").1[nr as usize];
        fs.cache.drop_clean();
        assert!(fs.cache.peek(block).is_none(), "it would not be read");
        faulty.inject(Fault::eio().op(BioOp::Read));
        fs.sync().expect("committed");
        faulty.clear();
        assert_eq!((recorded(&fs).0, recorded(&fs).2), (1, 1));
        drop(f);
        fs.evictor().reap();
        assert_eq!((recorded(&fs).0, recorded(&fs).2), (0, 0));
        drop(root);
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&dev);
    }

    /// A file that is freed in the transaction that removes its last name never has a place. One that stays open across
    /// a commit has, and a crash behind the commit finds it.
    #[test]
    fn only_orphans_that_outlive_their_transaction_get_a_place() {
        for features in ["orphan_file", "^orphan_file"] {
            let dev = image(features);
            let fs = mounted(dev.clone());
            let root = fs.root().expect("root");
            let make = |name: &str| {
                let f = fs.create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
                fs.write(&f, 0, &[7; 3000], crate::WriteFlags::default()).expect("write");
                f
            };
            let open: Vec<_> = (0..5).map(|n| make(&format!("open{n}"))).collect();
            drop(make("gone"));
            fs.sync().expect("sync");
            let (_, _, _, free) = recorded(&fs);
            fs.unlink(&root, b"gone").expect("unlinked");
            fs.evictor().reap();
            fs.sync().expect("sync");
            assert_eq!(recorded(&fs), (0, 0, 0, free), "{features}: freed in its transaction");
            for n in 0..open.len() {
                fs.unlink(&root, format!("open{n}").as_bytes()).expect("unlinked");
            }
            assert_eq!(recorded(&fs), (5, 5, 0, free), "{features}");
            fs.sync().expect("sync");
            let in_file = if free > 0 { 5 } else { 0 };
            assert_eq!(recorded(&fs), (5, 0, 5 - in_file, free - in_file), "{features}");
            // The state after a crash.
            let below: Arc<dyn BlockDevice> = dev.clone();
            let again = mounted(Arc::new(MemDevice::over(below)));
            assert_eq!(again.stats.evictions.get(), 5, "{features}: all are found");
            again.unmount().expect("unmount");
            drop(open);
            fs.evictor().reap();
            assert_eq!(recorded(&fs), (0, 0, 0, free), "{features}");
            drop(root);
            fs.unmount().expect("unmount");
            crate::tools::assert_clean(&dev);
        }
    }

    /// An inode in memory may be ahead of the transaction, and its neighbours on the list must not write that.
    #[test]
    fn a_removal_writes_only_the_dtime_of_the_next_inode_on_the_list() {
        let dev = image("^orphan_file");
        let fs = mounted(dev.clone());
        let root = fs.root().expect("root");
        let make = |name: &str| {
            let f = fs.create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
            fs.unlink(&root, name.as_bytes()).expect("unlinked");
            f
        };
        let [older, newer] = ["older", "newer"].map(make);
        fs.sync().expect("sync");
        let stored = |f: &Arc<Inode>| {
            let (buffer, offset) = fs.inode_slot(f.ino).expect("readable");
            buffer.read(|b| InodeDesc::parse(&b[offset..offset + fs.geo.inode_size], f.ino, &fs.geo)).expect("sound")
        };
        let before = stored(&newer);
        assert_eq!(before.dtime, older.ino.0);
        newer.meta.write().desc.uid = 7;
        fs.transact(3, |handle| fs.orphans.remove(handle, &older, Over::All)).expect("removed");
        assert_eq!(stored(&newer), InodeDesc { dtime: 0, ..before.clone() });
        newer.meta.write().desc.uid = before.uid;
        fs.transact(3, |handle| fs.orphans.add(handle, &older)).expect("added");
        drop((root, older, newer));
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&dev);
    }
}
