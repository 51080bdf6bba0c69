//! Replaying fast commits: the changes fsynced since the newest full commit (Linux: `ext4_fc_replay`,
//! fs/ext4/fast_commit.c).
//!
//! Main type: [`Applier`]. After a replay of the image's log in memory, a private mount without a journal makes the
//! changes on a [`crate::Draft`] of the image. Nothing is written to the image before all of them have succeeded. A
//! read-only mount continues with the draft. For a mount for writing, the changed blocks become a transaction in the
//! log. A write of one sector replaces the fast commits by it. A crash leaves one or the other, and any program can
//! replay either.
//!
//! The changes come in their original order, but incomplete. The creation of files that were removed again is missing,
//! and directories have neither blocks nor link counts. So changes of missing inodes are skipped, as in Linux, and
//! directories are rebuilt from their names.
//!
//! The allocator trusts the bitmaps, so blocks are accounted for in three steps, each with its own mount. First, all
//! blocks of all ranges are marked as used, so that nodes and directories are placed elsewhere. Then the changes are
//! made; blocks that maps lose remain used. At the end, the blocks that the changed files map are marked as used, and
//! the lost ones as free.
//!
//! What it does not do: write fast commits, or clean up orphans, which the following mount does.
//!
//! # Locking
//! No other thread uses the file system; the layers below take their own locks.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_cache::BufKind;
use extant_journal::Handle;
use extant_ondisk::extent::Extent;
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::inode::{FileType, InodeDesc, InodeFlags};
use extant_ondisk::jbd2::{FastCommit, FastCommitName, FastCommitRecord};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock, bitmap, extent};

use crate::dir;
use crate::dir_store::DirView;
use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::map::{MapRoot, MapState, MapStore, NewNode, Progress, Shared};
use crate::map_view::MapView;
use crate::mount::draft::Draft;
use crate::mount::mount_unlogged;
use crate::mount::recover::read_orphan_file;
use crate::ops::credits;
use crate::ops::names::{add_dir_link, check_name, drop_dir_link};
use crate::options::MountOptions;
use crate::volume::Volume;

/// Applies `commits` to the image on `draft`.
///
/// # Errors
/// Damage, with the record's place in the journal; [`Error::Unsupported`] for an image that cannot be written.
pub(crate) fn replay(draft: &Arc<Draft>, commits: &[FastCommit], options: &MountOptions) -> Result<()> {
    let device: Arc<dyn BlockDevice> = draft.clone();
    let fs = mount_unlogged(device.clone(), options)?;
    let mut claimed = Runs::default();
    each(commits, |record| match record {
        FastCommitRecord::AddRange { ino, extent: Extent { pblk, len, .. } } => {
            if !fs.placement.may_be_owned(*pblk, u64::from(*len)) {
                let detail = format!("{len} blocks from {pblk} for {ino}, which no file can own");
                return Err(Error::corrupt(Damage::Map, detail));
            }
            claimed.add(*pblk, u64::from(*len));
            Ok(())
        }
        _ => Ok(()),
    })?;
    let mut lost = fs.set_blocks(&claimed, true)?;
    close(&fs)?;
    drop(fs);

    let fs = mount_unlogged(device.clone(), options)?;
    let mut applier = Applier::new(&fs)?;
    each(commits, |record| applier.apply(record))?;
    let kept = applier.finish()?;
    lost.extend(&applier.lost.take());
    // Close the mount while the orphans are still in use, so that none is evicted here.
    close(&fs)?;
    drop(applier);
    drop(fs);

    let fs = mount_unlogged(device, options)?;
    fs.set_blocks(&lost.without(&kept), false)?;
    fs.set_blocks(&kept, true)?;
    close(&fs)
}

/// Calls `f` with every record, and adds the record's place to its errors.
fn each(commits: &[FastCommit], mut f: impl FnMut(&FastCommitRecord) -> Result<()>) -> Result<()> {
    for (place, record) in commits.iter().flat_map(|commit| &commit.records) {
        f(record).map_err(|e| match e {
            Error::Device(_) | Error::Unsupported(_) => e,
            e => Error::corrupt(Damage::Journal, format!("{place}: {e}")),
        })?;
    }
    Ok(())
}

/// Ends a mount of [`mount_unlogged`] and writes everything to its device.
fn close(fs: &Filesystem) -> Result<()> {
    fs.evictor().drain();
    fs.journal.close()?;
    fs.cut_off();
    Ok(())
}

/// Returns `None` for damage, which the following mount reports. A device error ends the replay: without the list of
/// orphans, it would skip the changes of orphans.
fn unless_damaged<T>(r: Result<T>) -> Result<Option<T>> {
    match r {
        Err(e @ Error::Device(_)) => Err(e),
        r => Ok(r.ok()),
    }
}

/// Finds a bit in a range of a bitmap.
type Find = fn(&[u8], std::ops::Range<u32>) -> Option<u32>;

/// Disjoint runs of blocks: the first block, and one past the last.
#[derive(Default)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    fn add(&mut self, start: BlockNr, len: u64) {
        let (mut from, mut to) = (start.0, start.0.saturating_add(len));
        while let Some((&at, &end)) = self.0.range(..=to).next_back().filter(|(_, end)| **end >= from) {
            (from, to) = (from.min(at), to.max(end));
            self.0.remove(&at);
        }
        self.0.insert(from, to);
    }

    fn extend(&mut self, other: &Runs) {
        for (&from, &to) in &other.0 {
            self.add(BlockNr(from), to - from);
        }
    }

    /// The blocks that are not in `other`.
    fn without(&self, other: &Runs) -> Runs {
        let mut left = Runs::default();
        for (&from, &to) in &self.0 {
            let mut at = from;
            let before = other.0.range(..=from).next_back();
            for (&start, &end) in before.into_iter().chain(other.0.range(from + 1..to)) {
                if start > at {
                    left.add(BlockNr(at), start - at);
                }
                at = at.max(end);
            }
            if at < to {
                left.add(BlockNr(at), to - at);
            }
        }
        left
    }
}

/// Applies the changes.
struct Applier<'a> {
    fs: &'a Arc<Filesystem>,
    /// The image's orphans, with their `i_dtime`, through which the following mount finds the list.
    orphans: BTreeMap<InodeNr, u32>,
    /// Inodes without links, kept from eviction because further changes may refer to them.
    unlinked: BTreeMap<InodeNr, InodeRef>,
    changed: BTreeSet<InodeNr>,
    /// Blocks that maps have lost.
    lost: RefCell<Runs>,
}

impl<'a> Applier<'a> {
    fn new(fs: &'a Arc<Filesystem>) -> Result<Applier<'a>> {
        let mut orphans = BTreeMap::new();
        let mut next = fs.superblock().last_orphan();
        while let Some(ino) = next.filter(|ino| fs.geo.contains_inode(*ino) && !orphans.contains_key(ino)) {
            let Some(InodeDesc { dtime, .. }) = unless_damaged(fs.read_inode(ino))? else { break };
            orphans.insert(ino, dtime);
            next = (dtime != 0).then_some(InodeNr(dtime));
        }
        if let Some(Some(file)) = unless_damaged(read_orphan_file(fs))? {
            orphans.extend(file.used.into_iter().map(|(_, _, ino)| (ino, 0)));
        }
        Ok(Applier {
            fs,
            orphans,
            unlinked: BTreeMap::new(),
            changed: BTreeSet::new(),
            lost: RefCell::new(Runs::default()),
        })
    }

    fn apply(&mut self, record: &FastCommitRecord) -> Result<()> {
        match record {
            FastCommitRecord::AddRange { ino, extent } => self.add_range(*ino, extent),
            FastCommitRecord::DelRange { ino, lblk, len } => {
                let Some(inode) = self.mapped(*ino)? else { return Ok(()) };
                self.unmap(&inode, *lblk, *len)
            }
            FastCommitRecord::Create(name) => self.link(name, true),
            FastCommitRecord::Link(name) => self.link(name, false),
            FastCommitRecord::Unlink(name) => self.unlink(name),
            FastCommitRecord::Inode { ino, raw } => self.inode(*ino, raw),
        }
    }

    /// Frees the remaining inodes without a name, and returns the blocks that the changed inodes map.
    fn finish(&mut self) -> Result<Runs> {
        for (ino, inode) in std::mem::take(&mut self.unlinked) {
            if self.orphans.contains_key(&ino) {
                self.unlinked.insert(ino, inode);
            } else {
                self.free(inode)?;
            }
        }
        let mut kept = Runs::default();
        for ino in std::mem::take(&mut self.changed) {
            let Some(inode) = self.get(ino)?.filter(|inode| self.has_map(inode)) else { continue };
            let view = self.fs.map_view(&inode);
            let map = inode.map.read();
            map.walk(&view, LogicalBlock(0), |m| {
                if let MapState::Written(start) | MapState::Unwritten(start) = m.state {
                    kept.add(start, u64::from(m.len));
                }
                ControlFlow::Continue(())
            })?;
            map.walk_meta(&view, |node| kept.add(node, 1))?;
        }
        Ok(kept)
    }

    /// The inode, if it is allocated. Orphans count as allocated.
    fn get(&mut self, ino: InodeNr) -> Result<Option<InodeRef>> {
        let fs = self.fs;
        if !fs.geo.contains_inode(ino) || fs.own_inodes.contains(ino) {
            return Err(Error::corrupt(Damage::Inode, "no file can have this number").of(ino));
        }
        let inode = match fs.inodes.find(ino) {
            Some(inode) => inode,
            None if !fs.placement.is_inode_marked(ino)? => return Ok(None),
            None => match fs.read_inode(ino) {
                Ok(desc) if desc.links == 0 && !self.orphans.contains_key(&ino) => return Ok(None),
                Ok(desc) => fs.adopt_inode(ino, desc)?,
                Err(Error::Stale(_)) => return Ok(None),
                Err(e) => return Err(e),
            },
        };
        if inode.links() == 0 {
            self.unlinked.insert(ino, inode.clone());
        }
        Ok(Some(inode))
    }

    fn has_map(&self, inode: &Inode) -> bool {
        let desc = &inode.meta.read().desc;
        !desc.flags.contains(InodeFlags::INLINE_DATA)
            && (desc.is_regular() || desc.is_dir() || desc.is_symlink() && !desc.is_fast_symlink(&self.fs.geo))
    }

    /// The inode whose range changes, if it is allocated.
    fn mapped(&mut self, ino: InodeNr) -> Result<Option<InodeRef>> {
        let Some(inode) = self.get(ino)? else { return Ok(None) };
        if inode.is_dir() || !self.has_map(&inode) {
            return Err(Error::corrupt(Damage::Map, "a range of something that has none").of(ino));
        }
        self.changed.insert(ino);
        Ok(Some(inode))
    }

    /// Maps the blocks of a record to its file (Linux: `ext4_fc_replay_add_range`).
    fn add_range(&mut self, ino: InodeNr, add: &Extent) -> Result<()> {
        let Some(inode) = self.mapped(ino)? else { return Ok(()) };
        if add.end() > u64::from(inode.map.read().logical_end(self.fs.geo.block_size)) {
            return Err(Error::corrupt(Damage::Map, format!("a range up to block {}", add.end())).of(ino));
        }
        let mut at = 0;
        while at < add.len {
            let lblk = LogicalBlock(add.lblk.0 + at);
            let pblk = BlockNr(add.pblk.0 + u64::from(at));
            let there = inode.map.read().lookup(&self.fs.map_view(&inode), lblk, add.len - at)?;
            match there.state {
                MapState::Written(b) if b == pblk && !add.unwritten => {}
                MapState::Unwritten(b) if b == pblk && add.unwritten => {}
                MapState::Written(b) | MapState::Unwritten(b) if b == pblk => {
                    self.change_state(&inode, lblk, there.len, add.unwritten)?;
                }
                MapState::Hole => self.map(&inode, lblk, pblk, there.len, add.unwritten)?,
                _ => {
                    self.unmap(&inode, lblk, there.len)?;
                    self.map(&inode, lblk, pblk, there.len, add.unwritten)?;
                }
            }
            at += there.len;
        }
        Ok(())
    }

    /// Runs `change` on the map under as many handles as it needs.
    fn edit(
        &self,
        inode: &InodeRef,
        mut change: impl FnMut(&mut MapRoot, &Keeping<'_>, &mut Handle) -> Result<Progress>,
    ) -> Result<()> {
        let fs = self.fs;
        let journalled = !inode.meta.read().desc.is_regular();
        let store = Keeping { view: fs.map_view(inode), journalled, lost: &self.lost };
        loop {
            let credits = {
                let map = inode.map.read();
                map.credits_for_insert(fs.geo.block_size, 1) + map.credits_for_remove(2) + 8
            };
            let progress = fs.transact(credits, |handle| {
                let progress = {
                    let mut map = inode.map.write();
                    let r = change(&mut map, &store, handle);
                    inode.absorb_map(&mut map, fs.geo.block_size);
                    r?
                };
                fs.write_inode_data(handle, inode)?;
                Ok(progress)
            })?;
            inode.es.remove(LogicalBlock(0), u32::MAX);
            if progress == Progress::Done {
                return Ok(());
            }
        }
    }

    fn map(&self, inode: &InodeRef, lblk: LogicalBlock, pblk: BlockNr, len: u32, unwritten: bool) -> Result<()> {
        let mut done = 0;
        self.edit(inode, |map, store, handle| {
            let (lblk, pblk) = (LogicalBlock(lblk.0 + done), BlockNr(pblk.0 + u64::from(done)));
            done += map.insert(store, handle, lblk, pblk, len - done, unwritten)?;
            Ok(if done < len { Progress::Stopped { at: lblk } } else { Progress::Done })
        })
    }

    fn unmap(&self, inode: &InodeRef, lblk: LogicalBlock, len: u32) -> Result<()> {
        let Some(last) = len.checked_sub(1) else { return Ok(()) };
        let mut to = LogicalBlock(lblk.0.saturating_add(last).min(extent::LOGICAL_END - 1));
        self.edit(inode, |map, store, handle| {
            let progress = map.remove(store, handle, lblk, to)?;
            if let Progress::Stopped { at } = progress {
                to = at;
            }
            Ok(progress)
        })
    }

    fn change_state(&self, inode: &InodeRef, lblk: LogicalBlock, len: u32, unwritten: bool) -> Result<()> {
        let (mut from, end) = (lblk, lblk.0 + len);
        self.edit(inode, |map, store, handle| {
            let progress = match unwritten {
                true => map.mark_unwritten(store, handle, from, end - from.0)?,
                false => map.convert_unwritten(store, handle, from, end - from.0)?,
            };
            if let Progress::Stopped { at } = progress {
                from = at;
            }
            Ok(progress)
        })
    }

    /// Frees an inode without links. A later change may use the number for another inode, which then must be free.
    fn free(&mut self, inode: InodeRef) -> Result<()> {
        let fs = self.fs;
        let ino = inode.ino;
        if self.has_map(&inode) {
            self.unmap(&inode, LogicalBlock(0), u32::MAX)?;
        }
        inode.meta.write().desc.links = 0;
        fs.transact(1, |handle| fs.write_inode(handle, &inode))?;
        self.unlinked.remove(&ino);
        drop(inode);
        fs.evictor().drain();
        if fs.inodes.find(ino).is_some() || fs.placement.is_inode_marked(ino)? {
            return Err(Error::corrupt(Damage::Inode, "it cannot be freed").of(ino));
        }
        Ok(())
    }

    /// Gives an inode the fields of a record (Linux: `ext4_fc_replay_inode`).
    fn inode(&mut self, ino: InodeNr, raw: &[u8]) -> Result<()> {
        let fs = self.fs;
        let size = fs.geo.inode_size;
        let corrupt = |detail: String| Err(Error::corrupt(Damage::Inode, detail).of(ino));
        if raw.len() > size {
            return corrupt(format!("{} bytes of it, where inodes have {size}", raw.len()));
        }
        let there = self.get(ino)?;
        let mut bytes = vec![0; size];
        bytes[..raw.len()].copy_from_slice(raw);
        let mut desc = InodeDesc::parse(&bytes, ino, &fs.geo)?;
        let same = match there {
            Some(old) if old.generation == desc.generation && old.file_type() == desc.file_type() => Some(old),
            // Without its root directory the image cannot be mounted, and that would only show after the replay has
            // been written.
            _ if ino == InodeNr::ROOT => return corrupt("this cannot replace the root directory".to_owned()),
            Some(other) => {
                self.free(other)?;
                None
            }
            None => None,
        };
        if same.is_some() {
            // The attributes after the fields do not change.
            fs.inode_bytes(ino, |old| bytes[raw.len()..].copy_from_slice(&old[raw.len()..]))?;
            desc = InodeDesc::parse(&bytes, ino, &fs.geo)?;
        }
        desc.check(ino, &fs.geo)?;
        let Some(kind) = desc.file_type() else { return corrupt(format!("mode {:#o}", desc.mode)) };
        // Names in encrypted directories are never in a fast commit, and the encryption context of a new inode would be
        // missing.
        if desc.flags.contains(InodeFlags::ENCRYPT) && same.is_none() {
            return corrupt("it is encrypted, and new".to_owned());
        }
        if raw.len() > 128 && 128 + usize::from(desc.extra_isize) > raw.len() {
            return corrupt(format!("{} extra bytes, of which {} are there", desc.extra_isize, raw.len() - 128));
        }
        let in_place = !matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
            || desc.flags.contains(InodeFlags::INLINE_DATA)
            || kind == FileType::Symlink && !desc.has_extents() && desc.size < 60;
        self.complete(&mut desc, ino, kind, same.as_ref(), in_place)?;
        desc.dtime = self.orphans.get(&ino).copied().unwrap_or(0);
        let is_new = same.is_none();
        if let Some(old) = same {
            // The new inode replaces the old one in memory.
            self.unlinked.remove(&ino);
            let cached = Arc::clone(&old);
            drop(old);
            fs.inodes.remove_unused(&cached);
        }
        if is_new {
            fs.mark_inode_used(ino, kind == FileType::Directory)?;
        }
        let inode = fs.adopt_inode(ino, desc)?;
        fs.transact(4, |handle| {
            fs.set_large_file(handle, inode.size())?;
            let (buffer, offset) = fs.inode_slot(ino)?;
            if is_new {
                handle.modify(&buffer, BufKind::Table, |b| b[offset..offset + size].fill(0));
            }
            fs.write_inode_data(handle, &inode)
        })?;
        self.changed.insert(ino);
        if inode.links() == 0 {
            self.unlinked.insert(ino, inode);
        }
        Ok(())
    }

    /// Adds the fields that a record lacks: blocks, attributes, a directory's size, the map. They come from `same`; a
    /// new inode begins without them. With `in_place`, `i_block` contains no map.
    fn complete(
        &self,
        desc: &mut InodeDesc,
        ino: InodeNr,
        kind: FileType,
        same: Option<&InodeRef>,
        in_place: bool,
    ) -> Result<()> {
        let corrupt = |detail: &str| Err(Error::corrupt(Damage::Inode, detail).of(ino));
        let mut i_block = MapRoot::empty(ino, desc.has_extents(), None).i_block;
        match same {
            Some(old) => {
                let old_has_map = self.has_map(old);
                let before = &old.meta.read().desc;
                (desc.blocks, desc.file_acl) = (before.blocks, before.file_acl);
                if kind == FileType::Directory {
                    (desc.size, desc.links) = (before.size, before.links);
                    desc.flags.set(InodeFlags::INDEX, before.flags.contains(InodeFlags::INDEX));
                }
                if old_has_map {
                    if in_place || before.has_extents() != desc.has_extents() {
                        return corrupt("it changes the kind of its map");
                    }
                    i_block = before.i_block;
                }
            }
            None => {
                if desc.file_acl.0 != 0 {
                    return corrupt("a new one with a block of attributes");
                }
                desc.blocks = 0;
                if kind == FileType::Directory {
                    // The following records contain its names and its subdirectories.
                    (desc.size, desc.links) = (0, 2);
                    desc.flags.remove(InodeFlags::INDEX);
                }
            }
        }
        if !in_place {
            desc.i_block = i_block;
        }
        Ok(())
    }

    /// Adds a name (Linux: `ext4_fc_replay_create`, `ext4_fc_replay_link`).
    fn link(&mut self, entry: &FastCommitName, is_first: bool) -> Result<()> {
        let fs = self.fs;
        let FastCommitName { parent, ino, name } = entry;
        let corrupt = |detail: &str| Err(Error::corrupt(Damage::Tree, detail).of(*ino));
        check_entry(name)?;
        let Some(inode) = self.get(*ino)? else {
            // An inode that got another name and then lost all of its names has no record.
            return if is_first { corrupt("created without a record of its own") } else { Ok(()) };
        };
        let Some(dir) = self.directory(*parent)? else { return Ok(()) };
        let is_dir = inode.is_dir();
        if is_dir && !is_first {
            return corrupt("a second name for a directory");
        }
        if is_dir && inode.size() == 0 {
            let view = DirView::new(fs, &inode);
            fs.transact(credits::create(view.add_credits()), |handle| {
                dir::init(&view, handle, &view.params, *ino, *parent)?;
                fs.write_inode_data(handle, &inode)
            })?;
        } else if is_dir && DirView::new(fs, &inode).dotdot()? != *parent {
            return corrupt("a directory that is created in two others");
        }
        let view = DirView::new(fs, &dir);
        // An earlier, interrupted replay may have added this entry, or a later one of the same name.
        let is_there = view.lookup(name)?.is_some();
        fs.transact(credits::create(view.add_credits()), |handle| {
            if !is_there {
                view.add(handle, name, *ino, inode.file_type())?;
                if is_dir {
                    add_dir_link(&mut dir.meta.write().desc);
                    fs.note_many_links(handle, &dir)?;
                }
                fs.stamp(handle, &dir, fs.now())?;
            }
            if !is_dir {
                let links = &mut inode.meta.write().desc.links;
                *links = if is_first { 1 } else { links.saturating_add(u16::from(!is_there)) };
            }
            fs.write_inode(handle, &inode)
        })?;
        self.changed.extend([*parent, *ino]);
        self.unlinked.remove(ino);
        Ok(())
    }

    /// Removes a name (Linux: `ext4_fc_replay_unlink`).
    fn unlink(&mut self, entry: &FastCommitName) -> Result<()> {
        let fs = self.fs;
        let FastCommitName { parent, ino, name } = entry;
        check_entry(name)?;
        let (Some(inode), Some(dir)) = (self.get(*ino)?, self.directory(*parent)?) else { return Ok(()) };
        let view = DirView::new(fs, &dir);
        // An earlier, interrupted replay may have removed this entry, and added a later one of the same name. Then the
        // link is no longer counted, and to drop it again might free a file that has another name.
        let Some(found) = view.lookup(name)?.filter(|found| found.ino == *ino) else { return Ok(()) };
        let is_dir = inode.is_dir();
        if is_dir && (*ino == *parent || *ino == InodeNr::ROOT) {
            return Err(Error::corrupt(Damage::Tree, "it contains itself").of(*ino));
        }
        if is_dir && !DirView::new(fs, &inode).is_empty()? {
            return Err(Error::corrupt(Damage::Tree, "a directory is removed that is not empty").of(*ino));
        }
        fs.transact(12, |handle| {
            view.remove(handle, name, Some(&found))?;
            if is_dir {
                drop_dir_link(&mut dir.meta.write().desc);
            }
            fs.stamp(handle, &dir, fs.now())?;
            let links = &mut inode.meta.write().desc.links;
            *links = if is_dir { 0 } else { links.saturating_sub(1) };
            Ok(())
        })?;
        self.changed.insert(*parent);
        if inode.links() > 0 || self.orphans.contains_key(ino) {
            fs.transact(1, |handle| fs.write_inode(handle, &inode))?;
            if inode.links() == 0 {
                self.unlinked.insert(*ino, inode);
            }
            return Ok(());
        }
        self.free(inode)
    }

    /// The directory that contains a name, if it is allocated.
    fn directory(&mut self, ino: InodeNr) -> Result<Option<InodeRef>> {
        match self.get(ino)? {
            Some(dir) if !dir.is_dir() => {
                Err(Error::corrupt(Damage::Tree, "a name in an inode that is not a directory").of(ino))
            }
            found => Ok(found),
        }
    }
}

fn check_entry(name: &[u8]) -> Result<()> {
    if matches!(name, b"." | b"..") {
        return Err(Error::DotName);
    }
    check_name(name)
}

/// A map's view of the file system that keeps freed blocks marked as used.
struct Keeping<'a> {
    view: MapView<'a>,
    /// The blocks of content may be in memory as metadata.
    journalled: bool,
    lost: &'a RefCell<Runs>,
}

impl MapStore for Keeping<'_> {
    type Txn = Handle;
    type Error = Error;

    fn block_size(&self) -> u32 {
        self.view.block_size()
    }

    fn blocks_count(&self) -> u64 {
        self.view.blocks_count()
    }

    fn group_of(&self, block: BlockNr) -> GroupNr {
        self.view.group_of(block)
    }

    fn block_range_valid(&self, start: BlockNr, len: u32) -> bool {
        self.view.block_range_valid(start, len)
    }

    fn read<R>(
        &self,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> std::result::Result<(), String>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        self.view.read(block, verify, f)
    }

    fn read_damaged<R>(&self, block: BlockNr, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.view.read_damaged(block, f)
    }

    fn modify<R>(
        &self,
        handle: &mut Handle,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> std::result::Result<(), String>,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.view.modify(handle, block, verify, f)
    }

    fn allocate_meta(&self, handle: &mut Handle, node: NewNode) -> Result<BlockNr> {
        self.view.allocate_meta(handle, node)
    }

    fn init<R>(&self, handle: &mut Handle, block: BlockNr, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.view.init(handle, block, f)
    }

    fn free_meta(&self, handle: &mut Handle, block: BlockNr) -> Result<()> {
        handle.forget(block);
        self.lost.borrow_mut().add(block, 1);
        Ok(())
    }

    fn free_data(&self, handle: &mut Handle, start: BlockNr, len: u32, _: Shared) -> Result<()> {
        // Content of regular files is not in memory here, and a record of 16 bytes may free 128 MiB of it.
        if self.journalled {
            for i in 0..u64::from(len) {
                handle.forget(BlockNr(start.0 + i));
            }
        }
        self.lost.borrow_mut().add(start, u64::from(len));
        Ok(())
    }

    fn has_credits(&self, handle: &mut Handle, blocks: u32) -> bool {
        self.view.has_credits(handle, blocks)
    }
}

impl Volume {
    /// Marks the blocks of `runs` as used or free, and returns the runs that changed. The allocator must not have
    /// loaded the bitmaps yet.
    fn set_blocks(&self, runs: &Runs, used: bool) -> Result<Runs> {
        let mut changed = Runs::default();
        for (&from, &to) in &runs.0 {
            let mut at = BlockNr(from);
            while at.0 < to {
                let outside = || Error::corrupt(Damage::Map, "outside the file system").at(at);
                let (group, first) = self.geo.group_of_block(at).ok_or_else(outside)?;
                let len = (self.geo.blocks_in_group(group) - first).min((to - at.0).min(u64::from(u32::MAX)) as u32);
                let buffer = self.placement.groups.block_bitmap(group)?;
                self.transact(2, |handle| {
                    self.placement.groups.update_bitmap(handle, group, &buffer, |desc, bytes| {
                        let (mut from, end) = (first, first + len);
                        // Go from one run that differs to the next.
                        loop {
                            let (starts, ends): (Find, Find) = match used {
                                true => (bitmap::find_next_zero, bitmap::find_next_one),
                                false => (bitmap::find_next_one, bitmap::find_next_zero),
                            };
                            let Some(start) = starts(bytes, from..end) else { break };
                            from = ends(bytes, start..end).unwrap_or(end);
                            let free = &mut desc.free_clusters;
                            if used {
                                bitmap::set_range(bytes, start..from);
                                *free = free.saturating_sub(from - start);
                            } else {
                                bitmap::clear_range(bytes, start..from);
                                *free = free.saturating_add(from - start);
                            }
                            changed.add(BlockNr(at.0 + u64::from(start - first)), u64::from(from - start));
                        }
                        desc.flags.remove(GroupFlags::BLOCK_UNINIT);
                        desc.set_block_bitmap_csum(bytes, &self.geo);
                        Ok(())
                    })
                })?;
                at = BlockNr(at.0 + u64::from(len));
            }
        }
        Ok(changed)
    }

    /// Marks this inode number as used, unless it is already. Zeroes never-used slots that come into use with it
    /// (Linux: `ext4_mark_inode_used`).
    fn mark_inode_used(&self, ino: InodeNr, is_dir: bool) -> Result<()> {
        let fresh = self.transact(2, |handle| self.placement.mark_inode(handle, ino, is_dir))?;
        let (first, size) = (ino.0 - self.geo.inode_location(ino)?.index, self.geo.inode_size);
        for index in fresh {
            let (buffer, offset) = self.inode_slot(InodeNr(first + index))?;
            self.transact(1, |handle| {
                handle.modify(&buffer, BufKind::Table, |b| b[offset..offset + size].fill(0));
                Ok(())
            })?;
        }
        Ok(())
    }
}
