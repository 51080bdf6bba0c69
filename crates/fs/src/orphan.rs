//! Inodes that a crash must clean up: unlinked but open, or being truncated (Linux: fs/ext4/orphan.c).
//!
//! Main types: [`Orphans`]; [`Over`], a reason for a record that no longer applies. An inode has one record for both
//! reasons, and it remains until neither applies. A record is a slot of the orphan file (feature `orphan_file`). If
//! that is full or absent, it is a place on the list that starts at `s_last_orphan` and continues through `i_dtime`.
//!
//! # Locking
//! `orphans` (55), taken under the map lock and before inode metas.

use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;

use extant_base::hash::{HashMap, HashSet};
use extant_base::sync::{LockClass, Mutex};
use extant_cache::BufKind;
use extant_journal::Handle;
use extant_ondisk::csum::ChecksumSeed;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock, orphan};

use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::map::MapState;

static CLASS: LockClass = LockClass::new("orphans", 55);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A block of the orphan file, and a slot in it.
    File {
        block: u32,
        slot: u32,
    },
    List,
}

struct State {
    place: HashMap<InodeNr, Place>,
    /// The list in reverse: the head, which is the newest inode, comes last.
    list: Vec<Arc<Inode>>,
    /// The inode that follows these on the device, or 0. After a crash, the cleanup reads the rest of the list in
    /// portions.
    behind: u32,
    /// Free slots of the orphan file, in reverse order.
    free: Vec<(u32, u32)>,
    /// Files with an unfinished truncation, which is in progress or has failed to remove the blocks. Mounts without a
    /// log keep this set as well, although they record no orphans.
    cut: HashSet<InodeNr>,
    /// The orphan file's checksum seed and physical blocks.
    file: Option<(Option<ChecksumSeed>, Vec<BlockNr>)>,
}

pub(crate) struct Orphans(Mutex<State>);

impl Orphans {
    pub(crate) fn new() -> Orphans {
        let (place, cut) = (HashMap::default(), HashSet::default());
        Orphans(Mutex::new(&CLASS, State { place, list: Vec::new(), behind: 0, free: Vec::new(), cut, file: None }))
    }

    /// Sets up the orphan file. Slots that are in use for any reason do not count as free.
    pub(crate) fn use_file(&self, file: &OrphanFile, slots_per_block: u32) {
        let used: HashSet<(u32, u32)> = file.used.iter().map(|(block, slot, _)| (*block, *slot)).collect();
        let slots = (0..file.blocks.len() as u32).rev();
        let slots = slots.flat_map(|b| (0..slots_per_block).rev().map(move |i| (b, i)));
        let mut s = self.0.lock();
        s.free = slots.filter(|place| !used.contains(place)).collect();
        s.file = Some((file.seed, file.blocks.clone()));
    }

    /// Adopts the next part of the list found at mount, head first, and the inode that follows it.
    pub(crate) fn adopt_list(&self, chain: &[InodeRef], behind: Option<InodeNr>) {
        let mut s = self.0.lock();
        s.list.splice(0..0, chain.iter().rev().map(|i| Arc::clone(i)));
        s.place.extend(chain.iter().map(|i| (i.ino, Place::List)));
        s.behind = behind.map_or(0, |ino| ino.0);
    }

    /// Adopts a used slot of the orphan file found at mount. Returns false if the inode has another record.
    pub(crate) fn adopt_slot(&self, ino: InodeNr, block: u32, slot: u32) -> bool {
        match self.0.lock().place.entry(ino) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(Place::File { block, slot });
                true
            }
        }
    }

    /// Whether the inode has a record.
    pub(crate) fn contains(&self, ino: InodeNr) -> bool {
        self.0.lock().place.contains_key(&ino)
    }

    /// Records the start of a truncation of this file. It ends with [`Over::Truncation`], or when the inode is freed.
    pub(crate) fn note_cut(&self, ino: InodeNr) {
        self.0.lock().cut.insert(ino);
    }

    /// Whether a truncation of this file has left blocks past its end. The caller holds the inode's lock.
    pub(crate) fn is_cut_short(&self, ino: InodeNr) -> bool {
        self.0.lock().cut.contains(&ino)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().place.len()
    }
}

/// Converts the error "not in use" to damage, because an orphan record refers to the inode.
pub(crate) fn named_wrongly(e: Error) -> Error {
    match e {
        Error::Stale(ino) => Error::corrupt(Damage::Orphans, "not in use").of(ino),
        e => e,
    }
}

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

impl Filesystem {
    /// Reads the orphan file; `None` if there is none. Fails if one of its blocks is damaged (Linux:
    /// `ext4_init_orphan_info`).
    pub(crate) fn read_orphan_file(&self) -> Result<Option<OrphanFile>> {
        let Some(ino) = self.sb.lock().orphan_file() else { return Ok(None) };
        let inode = self.iget_own(ino).map_err(named_wrongly)?;
        let seed = self.geo.metadata_csum.then(|| self.geo.seed.for_inode(ino, inode.generation));
        let mut blocks = Vec::new();
        let view = self.map_view(&inode);
        inode.map.read().walk(&view, LogicalBlock(0), |m| {
            if let MapState::Written(start) = m.state {
                blocks.extend((0..u64::from(m.len)).map(|i| BlockNr(start.0 + i)));
            }
            if blocks.len() <= 512 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        blocks.truncate(512);
        let mut used = Vec::new();
        for (i, nr) in blocks.iter().enumerate() {
            let buffer = self.cache.get(*nr)?;
            buffer.read(|b| orphan::verify(b, *nr, seed))?;
            buffer.set_verified();
            buffer.read(|b| used.extend(orphan::used_slots(b).map(|(slot, ino)| (i as u32, slot as u32, ino))));
        }
        Ok(Some(OrphanFile { seed, blocks, used }))
    }

    /// Sets one slot of the orphan file. 1 credit.
    fn set_orphan_slot(
        &self,
        handle: &mut Handle,
        state: &State,
        block: u32,
        slot: u32,
        ino: Option<InodeNr>,
    ) -> Result<()> {
        let (seed, blocks) = state.file.as_ref().expect("a place in the file implies the file");
        let nr = blocks[block as usize];
        let buffer = self.cache.get(nr)?;
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

    /// Records the inode as an orphan, unless it is already recorded. 2 credits (superblock or orphan file block,
    /// inode). The caller writes the inode afterwards.
    pub(crate) fn orphan_add(&self, handle: &mut Handle, inode: &Arc<Inode>) -> Result<()> {
        if !self.has_log {
            // Only a log ensures that the list never contradicts the inodes. E2fsck finds the orphans without the list,
            // but gives up if the list is inconsistent (as in Linux).
            return Ok(());
        }
        let mut s = self.orphans.0.lock();
        if s.place.contains_key(&inode.ino) {
            return Ok(());
        }
        handle.set_opaque();
        if let Some(&(block, slot)) = s.free.last() {
            self.set_orphan_slot(handle, &s, block, slot, Some(inode.ino))?;
            // The slot is taken only now, because the write may have failed.
            s.free.pop();
            s.place.insert(inode.ino, Place::File { block, slot });
            return Ok(());
        }
        self.modify_superblock(handle, |sb| sb.set_last_orphan(Some(inode.ino)))?;
        let next = s.list.last().map_or(s.behind, |i| i.ino.0);
        inode.meta.write().desc.dtime = next;
        s.list.push(inode.clone());
        s.place.insert(inode.ino, Place::List);
        Ok(())
    }

    /// Removes the inode's record, unless there is none or another reason needs it. 2 credits. Afterwards its `dtime`
    /// is 0; the caller writes the inode.
    /// A truncation holds the inode's lock, but an operation that removes its last name or adds its first does not.
    /// That operation changes the link count before it comes here. So if both run at the same time, at least one of
    /// them sees the other.
    /// the other.
    pub(crate) fn orphan_remove(&self, handle: &mut Handle, inode: &Arc<Inode>, over: Over) -> Result<()> {
        let mut s = self.orphans.0.lock();
        if over != Over::Nameless {
            s.cut.remove(&inode.ino);
        }
        let needed = match over {
            Over::Nameless => s.cut.contains(&inode.ino),
            Over::Truncation => inode.links() == 0,
            Over::All => false,
        };
        if needed {
            return Ok(());
        }
        let Some(place) = s.place.get(&inode.ino).copied() else { return Ok(()) };
        handle.set_opaque();
        match place {
            Place::File { block, slot } => {
                self.set_orphan_slot(handle, &s, block, slot, None)?;
                s.free.push((block, slot));
            }
            Place::List => {
                // Search from the end, because the newest inode is usually removed first.
                let at = s.list.iter().rposition(|i| Arc::ptr_eq(i, inode)).expect("listed");
                let older = at.checked_sub(1).map_or(s.behind, |i| s.list[i].ino.0);
                match s.list.get(at + 1).cloned() {
                    None => self.modify_superblock(handle, |sb| {
                        sb.set_last_orphan((older != 0).then_some(InodeNr(older)));
                    })?,
                    Some(newer) => {
                        newer.meta.write().desc.dtime = older;
                        self.write_inode(handle, &newer).inspect_err(|_| {
                            newer.meta.write().desc.dtime = inode.ino.0;
                        })?;
                    }
                }
                inode.meta.write().desc.dtime = 0;
                s.list.remove(at);
            }
        }
        s.place.remove(&inode.ino);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use extant_block::device::{Fault, FaultyDevice};
    use extant_block::{BioOp, BlockDevice};

    use super::*;
    use crate::{Cred, MountOptions, NewNode};

    /// The number of records, the length of the list, and the number of free slots.
    fn recorded(fs: &Filesystem) -> (usize, usize, usize) {
        let s = fs.orphans.0.lock();
        (s.place.len(), s.list.len(), s.free.len())
    }

    /// A failed change neither takes nor frees a slot, so the next try finds the same state.
    #[test]
    fn a_record_that_cannot_be_written_takes_no_slot() {
        for features in ["orphan_file", "^orphan_file"] {
            let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024", "-O", features], "16M"));
            let faulty = Arc::new(FaultyDevice::new(dev.clone()));
            let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
            let below: Arc<dyn BlockDevice> = faulty.clone();
            let fs = Filesystem::mount(below, options).expect("mounted");
            let root = fs.root().expect("root");
            let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
            let try_all = |change: fn(&Filesystem, &mut Handle, &Arc<Inode>) -> Result<()>, after| {
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
                fs.transact(2, |handle| change(&fs, handle, &f)).expect("readable");
                assert_eq!(recorded(&fs), after, "{features}");
            };
            let (_, _, free) = recorded(&fs);
            let (listed, taken) = if free == 0 { (1, 0) } else { (0, 1) };
            try_all(Filesystem::orphan_add, (1, listed, free - taken));
            try_all(|fs, handle, inode| fs.orphan_remove(handle, inode, Over::All), (0, 0, free));
            drop((root, f));
            fs.unmount().expect("unmount");
            crate::tools::assert_clean(&dev);
        }
    }
}
