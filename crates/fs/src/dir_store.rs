//! The blocks of a directory, as the directory layer (`dir/`) accesses them.
//!
//! Main type: [`DirView`] (a [`DirStore`] for one directory).
//!
//! Under rescue the directory has every block that the map contains, even past its size and with a wrong checksum.
//!
//! # Locking
//! The caller holds the directory's `inode` lock. Inside: map (50), buffers (80).

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use extant_cache::{BufKind, Buffer};
use extant_journal::Handle;
use extant_ondisk::casefold;
use extant_ondisk::inode::{FileType, InodeDesc, InodeFlags};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use crate::crypt::nokey;
use crate::dir::{self, BlockKind, DirError, DirParams, DirStore, Found, Scan};
use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::map::{MapState, MapStore};
use crate::ops::credits;
use crate::volume::Volume;

impl Volume {
    /// The parameters of `dir` for the directory layer, as of now.
    pub(crate) fn dir_params(&self, dir: &Inode) -> DirParams {
        let flags = dir.meta.read().desc.flags;
        DirParams {
            has_csum: self.hash.has_csum && !flags.contains(InodeFlags::INLINE_DATA),
            has_filetype: self.hash.filetype,
            // The index of an encrypted, case-insensitive directory needs a hash with a key of its own, which is not
            // supported.
            has_dir_index: self.hash.dir_index && !flags.contains(InodeFlags::CASEFOLD | InodeFlags::ENCRYPT),
            has_large_dir: self.hash.large_dir,
            is_indexed: flags.contains(InodeFlags::INDEX),
            hash_version: self.hash.version,
            hash_seed: self.hash.seed,
            inode_seed: self.geo.seed.for_inode(dir.ino, dir.generation),
            inodes_count: self.geo.inodes_count,
            encrypted: flags.contains(InodeFlags::ENCRYPT),
            folds: flags.contains(InodeFlags::CASEFOLD) && !flags.contains(InodeFlags::ENCRYPT),
            by_place: self.rescues(),
        }
    }
}

/// Blocks with their logical numbers.
type Blocks = Vec<(u32, Arc<Buffer>)>;

/// The names of a directory. Its operations are those of the directory layer; their damage errors name the inode.
pub(crate) struct DirView<'a> {
    pub fs: &'a Filesystem,
    pub dir: &'a Arc<Inode>,
    pub params: DirParams,
    /// While a name is added: the blocks that the change may modify. They remain in memory and need no lookup in the
    /// map, which might have become unreadable.
    held: RefCell<Option<Blocks>>,
    /// The number of blocks that a rescue has scanned.
    scanned: Cell<u64>,
    /// The first damage in a block that a rescue uses nevertheless.
    passed: RefCell<Option<Error>>,
}

impl<'a> DirView<'a> {
    /// A view with the directory's parameters as they are now.
    pub(crate) fn new(fs: &'a Filesystem, dir: &'a Arc<Inode>) -> DirView<'a> {
        let (held, scanned, passed) = (RefCell::new(None), Cell::new(0), RefCell::new(None));
        DirView { fs, dir, params: fs.dir_params(dir), held, scanned, passed }
    }

    /// The entry with this name, if there is one.
    pub(crate) fn lookup(&self, name: &[u8]) -> Result<Option<Found>> {
        if self.params.encrypted {
            let stored = self.stored(name)?;
            let found = stored.map(|stored| dir::lookup(self, &self.params, &stored)).transpose();
            return self.mine(found.map(Option::flatten));
        }
        self.check_text(name)?;
        match self.mine(dir::lookup(self, &self.params, name))? {
            Some(found) => Ok(Some(found)),
            None => self.damage().map_or(Ok(None), Err),
        }
    }

    /// The parent, from `..`.
    pub(crate) fn dotdot(&self) -> Result<InodeNr> {
        if let Some(parent) = self.fs.inline(self.dir).parent()? {
            return Ok(parent);
        }
        self.mine(dir::dotdot(self, &self.params))
    }

    /// Whether there are no names except `.` and `..`.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        self.check_size()?;
        self.mine(dir::is_empty(self, &self.params))
    }

    /// Adds a name. The caller has [`DirView::add_credits`].
    pub(crate) fn add(&self, handle: &mut Handle, name: &[u8], ino: InodeNr, kind: Option<FileType>) -> Result<()> {
        self.check_size()?;
        if self.params.folds && !casefold::may_be_written(name, self.fs.hash.strict) {
            return Err(Error::Invalid("name in a directory that ignores case: not UTF-8, or '.' or '..' when folded"));
        }
        self.fs.encryption(self.dir).may_add_names()?;
        let stored = self.stored(name)?.ok_or(Error::NameTooLong)?;
        // Growing the directory writes its inode, and afterwards its times are written. The part of this that can fail
        // comes first: reading the inode's table block, which then remains in memory while it is referenced.
        let _table = self.fs.inode_slot(self.dir.ino)?;
        if self.fs.is_inline(self.dir) {
            if self.fs.inline(self.dir).add_name(handle, name, ino, kind)? {
                return Ok(());
            }
            // The directory now has a block, which may be full as well.
            return DirView::new(self.fs, self.dir).add(handle, name, ino, kind);
        }
        *self.held.borrow_mut() = Some(Vec::new());
        let added = dir::add(self, handle, &self.params, &stored, ino, kind).map(drop);
        *self.held.borrow_mut() = None;
        self.mine(added)
    }

    /// Removes a name. `hint`: its place, as found before.
    pub(crate) fn remove(&self, handle: &mut Handle, name: &[u8], hint: Option<&Found>) -> Result<()> {
        let stored = self.stored(name)?.ok_or(Error::NotFound)?;
        self.mine(dir::remove(self, handle, &self.params, &stored, hint).map(drop))
    }

    /// The name of an entry as it is stored: ciphertext in an encrypted directory.
    pub(crate) fn stored_name(&self, place: &Found) -> Result<Vec<u8>> {
        self.mine(dir::stored_name(self, &self.params, place))
    }

    /// Stores another spelling of an entry's name, which folds to the same text. If it fails, the old spelling remains.
    pub(crate) fn respell(
        &self,
        handle: &mut Handle,
        place: &Found,
        name: &[u8],
        kind: Option<FileType>,
    ) -> Result<()> {
        let old = self.stored_name(place)?;
        if self.mine(dir::respell(self, handle, &self.params, place, name))? {
            return Ok(());
        }
        // The new name is longer. Two names that fold alike cannot coexist, so the old one is removed first. Its space
        // remains free until the new one has been added.
        self.remove(handle, &old, Some(place))?;
        let added = self.add(handle, name, place.ino, kind);
        if added.is_err() {
            let back = DirView::new(self.fs, self.dir).add(handle, &old, place.ino, kind);
            self.fs.whole(handle, back)?;
        }
        added
    }

    /// Points an entry at another inode.
    pub(crate) fn set_inode(
        &self,
        handle: &mut Handle,
        place: &Found,
        ino: InodeNr,
        kind: Option<FileType>,
    ) -> Result<()> {
        self.mine(dir::set_inode(self, handle, &self.params, place, ino, kind))
    }

    /// Points `..` at another parent.
    pub(crate) fn set_dotdot(&self, handle: &mut Handle, parent: InodeNr) -> Result<()> {
        self.mine(dir::set_dotdot(self, handle, &self.params, parent))
    }

    /// The block with a found name, or the inode's block for an inline directory. It remains in memory while the caller
    /// holds it.
    pub(crate) fn hold_found(&self, found: &Found) -> Result<Arc<Buffer>> {
        self.hold_block(found.lblk, BlockKind::Leaf)
    }

    /// As [`DirView::hold_found`], the block with `.` and `..`.
    pub(crate) fn hold_first(&self) -> Result<Arc<Buffer>> {
        self.hold_block(0, BlockKind::Any)
    }

    /// The journal credits of adding a name.
    pub(crate) fn add_credits(&self) -> u32 {
        let add = dir::credits_for_add(&self.params, self.blocks());
        let map = self.dir.map.read().credits_for_insert(self.fs.geo.block_size, 1);
        // If names leave the inode, the directory needs a first block, and may then grow like any other.
        let first = u32::from(self.fs.is_inline(self.dir));
        // Each new block needs a bitmap, a descriptor, itself, and the map's nodes (whose first split makes the next
        // one cheap).
        add.blocks + (first + add.appended) * (credits::GROUP + 1) + map + credits::INODE
    }

    /// The number of blocks that a rescue has scanned through this view.
    pub(crate) fn scanned(&self) -> u64 {
        self.scanned.get()
    }

    /// The damage of the directory as a whole: its size is zero or not a multiple of the block size. Names are listed
    /// in spite of it (Linux: `ext4_readdir`), but a missing name proves nothing, and nothing may be changed. Under
    /// rescue this is also the first damage in a block that is used nevertheless.
    pub(crate) fn damage(&self) -> Option<Error> {
        let whole = self.check_size().err();
        whole.or_else(|| self.passed.borrow().clone())
    }

    /// Adds the directory's inode to an error.
    fn mine<T>(&self, r: Result<T>) -> Result<T> {
        r.map_err(|e| e.of(self.dir.ino))
    }

    /// Notes damage in a block that a rescue uses nevertheless.
    fn pass(&self, e: Error) {
        self.passed.borrow_mut().get_or_insert(e);
    }

    /// Checks that the directory consists of whole blocks.
    fn check_size(&self) -> Result<()> {
        let size = self.dir.size();
        let is_whole = size > 0 && size & ((1 << self.fs.geo.block_bits) - 1) == 0;
        if is_whole || self.dir.links() == 0 || self.fs.is_inline(self.dir) {
            return Ok(());
        }
        let detail = format!("a directory of {size} bytes, not a multiple of the block size");
        Err(Error::corrupt(Damage::Inode, detail).of(self.dir.ino))
    }

    /// Checks that the inode can still store its block count if the directory grows by a block and the nodes to map it.
    /// Otherwise writing the inode would fail after the block has been allocated.
    fn check_room_in_inode(&self) -> Result<()> {
        let geo = &self.fs.geo;
        let nodes = self.dir.map.read().credits_for_insert(geo.block_size, 1);
        let grown =
            self.dir.meta.read().desc.blocks + (u64::from((1 + nodes) * (geo.block_size / 512)) << geo.cluster_bits);
        if grown > InodeDesc::max_blocks(geo) {
            return Err(extant_ondisk::Error::unsupported(format!("{} with {grown} sectors", self.dir.ino)).into());
        }
        Ok(())
    }

    /// In strict mode, a lookup in a case-insensitive directory accepts only UTF-8 (Linux: `generic_ci_d_hash`,
    /// fs/libfs.c).
    fn check_text(&self, name: &[u8]) -> Result<()> {
        if self.params.folds && self.fs.hash.strict && !self.fs.rescues() && std::str::from_utf8(name).is_err() {
            return Err(Error::Invalid("name that is not UTF-8 (encoding_flags=strict)"));
        }
        Ok(())
    }

    /// The stored bytes of a name in this directory. `None` if there is no such name.
    fn stored<'n>(&self, name: &'n [u8]) -> Result<Option<Cow<'n, [u8]>>> {
        if !self.params.encrypted || name == b"." || name == b".." {
            return Ok(Some(name.into()));
        }
        if let Some(key) = self.fs.encryption(self.dir).name_key()? {
            if self.dir.meta.read().desc.flags.contains(InodeFlags::CASEFOLD) {
                let wanted = casefold::fold(name);
                let alike = |stored: &[u8]| key.open_name(stored).is_some_and(|name| casefold::fold(&name) == wanted);
                return Ok(self.mine(self.search(alike))?.map(Cow::Owned));
            }
            return Ok(key.seal_name(name).map(Cow::Owned));
        }
        let stored = self.search(|stored| nokey::name(stored) == name);
        Ok(self.mine(stored)?.map(Cow::Owned))
    }

    /// The first stored name that `is_it` accepts.
    fn search(&self, is_it: impl Fn(&[u8]) -> bool) -> Result<Option<Vec<u8>>> {
        let mut same = None;
        let listed = dir::readdir(self, &self.params, 0, |entry| {
            if is_it(entry.name) {
                same = Some(entry.name.to_vec());
            }
            same.is_none()
        })?;
        match (same, listed.damage) {
            (Some(name), _) => Ok(Some(name)),
            (None, Some(damage)) => Err(damage),
            (None, None) => Ok(None),
        }
    }

    /// The buffer of a block, or of the inode's block for an inline directory.
    fn hold_block(&self, lblk: u32, kind: BlockKind) -> Result<Arc<Buffer>> {
        if self.fs.is_inline(self.dir) {
            return self.fs.inode_slot(self.dir.ino).map(|(table, _)| table);
        }
        self.mine(self.buffer(lblk, kind))
    }

    /// Keeps a block in memory that adding the name may change.
    fn hold(&self, lblk: u32, buffer: &Arc<Buffer>) {
        if let Some(held) = &mut *self.held.borrow_mut()
            && held.iter().all(|(at, _)| *at != lblk)
        {
            held.push((lblk, buffer.clone()));
        }
    }

    /// The buffer of a block, verified as a block of this kind.
    fn buffer(&self, lblk: u32, kind: BlockKind) -> Result<Arc<Buffer>> {
        let held = self.held.borrow().iter().flatten().find(|(at, _)| *at == lblk).map(|(_, b)| b.clone());
        if let Some(buffer) = held {
            return Ok(buffer);
        }
        let block = self.physical(lblk)?;
        self.fs.read_neighbours(block, Vec::new);
        let buffer = self.fs.cache.get(block)?;
        if !buffer.verified() {
            let blocks = self.blocks();
            let whole = buffer.read(|b| dir::verify(&self.params, kind, lblk, blocks, b));
            // A reader without the directory's lock (`is_below`) may have used outdated parameters. If the block has
            // changed meanwhile, the change found it intact first and marked it.
            if !buffer.verified() {
                match whole.map_err(|e| Error::from(e).of(self.dir.ino).at(block)) {
                    // A rescue checks the entries one by one.
                    Err(e) if self.fs.rescues() => self.pass(e),
                    whole => {
                        whole?;
                        buffer.set_verified();
                    }
                }
            }
        }
        Ok(buffer)
    }

    /// The device block of a block of the directory.
    fn physical(&self, lblk: u32) -> Result<BlockNr> {
        match self.fs.map_lookup(self.dir, LogicalBlock(lblk))? {
            MapState::Written(block) => Ok(block),
            MapState::Unwritten(block) if self.fs.rescues() => Ok(block),
            _ => Err(Error::corrupt(Damage::Directory, format!("no block {lblk}")).of(self.dir.ino)),
        }
    }

    /// The next block in the map, regardless of the directory's size (e2fsck: `PR_1_BAD_I_SIZE`). The scan ends after
    /// as many blocks as the file system has, because a damaged map may refer to the same blocks repeatedly.
    fn next_mapped(&self, lblk: u32) -> Scan<Error> {
        let (fs, mut at, mut damage) = (self.fs, u64::from(lblk), None);
        let mut note = |e: Error| {
            damage.get_or_insert(e.of(self.dir.ino));
        };
        let view = fs.map_view(self.dir);
        let map = self.dir.map.read();
        let end = u64::from(map.logical_end(fs.geo.block_size));
        while at < end {
            let lblk = at as u32;
            match map.salvage(&view, LogicalBlock(lblk), (end - at) as u32) {
                Ok(found) if found.state == MapState::Hole => {
                    if at < u64::from(self.blocks()) {
                        note(Error::corrupt(Damage::Directory, format!("no block {lblk}")));
                    }
                    at += u64::from(found.len);
                }
                Ok(_) if self.scanned.get() >= fs.geo.blocks_count => {
                    note(Error::corrupt(Damage::Directory, "it has more blocks than the file system"));
                    break;
                }
                Ok(_) => {
                    if at >= u64::from(self.blocks()) {
                        note(Error::corrupt(Damage::Directory, format!("block {lblk} lies behind its size")));
                    }
                    self.scanned.set(self.scanned.get() + 1);
                    return Scan { block: Some(lblk), damage };
                }
                Err(lost) => {
                    note(lost.error);
                    at = lost.end.max(at + 1);
                }
            }
        }
        Scan { block: None, damage }
    }
}

impl From<DirError> for Error {
    fn from(e: DirError) -> Error {
        match e {
            DirError::Corrupt { lblk, offset, detail } => {
                Error::corrupt(Damage::Directory, format!("block {lblk} of it, byte {offset}: {detail}"))
            }
            DirError::Full { .. } => Error::NoSpace,
            DirError::Exists { .. } => Error::Exists,
            DirError::NotFound => Error::NotFound,
            DirError::InvalidName { .. } => Error::Invalid("name"),
        }
    }
}

impl DirStore for DirView<'_> {
    type Txn = Handle;
    type Error = Error;

    fn is_damage(&self, error: &Error) -> bool {
        error.is_corruption() || (self.fs.rescues() && matches!(error, Error::Device(_)))
    }

    fn block_size(&self) -> u32 {
        self.fs.geo.block_size
    }

    fn blocks(&self) -> u32 {
        if self.fs.is_inline(self.dir) {
            return 1;
        }
        u32::try_from(self.dir.size().div_ceil(1 << self.fs.geo.block_bits)).unwrap_or(u32::MAX)
    }

    fn next_block(&self, lblk: u32) -> Scan<Error> {
        match self.fs.rescues() && !self.fs.is_inline(self.dir) {
            true => self.next_mapped(lblk),
            false => Scan { block: Some(lblk).filter(|lblk| *lblk < self.blocks()), damage: None },
        }
    }

    fn read<R>(&self, lblk: u32, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        match self.fs.inline(self.dir).directory()? {
            Some((block, passed)) => {
                passed.into_iter().for_each(|e| self.pass(e));
                Ok(f(&block))
            }
            None => {
                let buffer = self.buffer(lblk, kind)?;
                // The blocks of the path through the index, and the block that may become an index.
                if kind == BlockKind::Index || lblk == 0 {
                    self.hold(lblk, &buffer);
                }
                Ok(buffer.read(f))
            }
        }
    }

    fn modify<R>(&self, handle: &mut Handle, lblk: u32, kind: BlockKind, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        if self.fs.is_inline(self.dir) {
            return self.fs.inline(self.dir).change_names(handle, f);
        }
        let buffer = self.buffer(lblk, kind)?;
        self.hold(lblk, &buffer);
        Ok(handle.modify(&buffer, BufKind::Leaf, |b| {
            let r = f(b);
            dir::seal(&self.params, kind, b);
            r
        }))
    }

    fn append(&self, handle: &mut Handle, kind: BlockKind, f: impl FnOnce(&mut [u8])) -> Result<u32> {
        let lblk = self.blocks();
        self.check_room_in_inode()?;
        self.fs.quotas.blocks_within(self.dir, 1)?;
        let view = self.fs.map_view(self.dir);
        let before = lblk.checked_sub(1).map(|last| self.physical(last)).transpose()?;
        let block = self.fs.append_meta_block(handle, &view, self.dir, LogicalBlock(lblk), before)?;
        let filled = view.init(handle, block, |b| {
            f(b);
            dir::seal(&self.params, kind, b);
        });
        self.fs.whole(handle, filled)?;
        let size = u64::from(lblk + 1) << self.fs.geo.block_bits;
        self.dir.set_size(size);
        self.dir.meta.write().desc.size = size;
        let written = self.fs.write_inode_data(handle, self.dir);
        self.fs.whole(handle, written)?;
        Ok(lblk)
    }

    fn set_indexed(&self, handle: &mut Handle, indexed: bool) -> Result<()> {
        self.dir.meta.write().desc.flags.set(InodeFlags::INDEX, indexed);
        self.fs.write_inode(handle, self.dir)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use extant_block::device::{Fault, FaultyDevice, MemDevice};
    use extant_block::{BioOp, BlockDevice};

    use super::*;
    use crate::forgetful::Forgetful;
    use crate::{Cred, InodeRef, MountOptions, Mounted, NewNode};

    /// A mount of an image with one inode for each table block.
    pub(crate) fn spacious(features: &str) -> (Arc<MemDevice>, Arc<FaultyDevice>, Mounted) {
        let args = ["-t", "ext4", "-b", "1024", "-I", "1024", "-N", "64", "-O", features];
        let dev = Arc::new(crate::tools::made(&args, "16M"));
        let faulty = Arc::new(FaultyDevice::new(dev.clone()));
        let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
        let below: Arc<dyn BlockDevice> = faulty.clone();
        (dev, faulty, Filesystem::mount(below, options).expect("mounted"))
    }

    /// Evicts the table block of the inode and makes it unreadable.
    pub(crate) fn hide_from(fs: &Filesystem, faulty: &FaultyDevice, inode: &Inode) {
        assert!(fs.freeze().expect("everything is home") && fs.thaw());
        let place = fs.geo.inode_location(inode.ino).expect("place");
        let table = fs.placement.groups.with(place.group, |d| d.inode_table).expect("table");
        let at = (table.0 + u64::from(place.table_block)) << fs.geo.block_bits;
        fs.cache.drop_clean();
        faulty.inject(Fault::eio().op(BioOp::Read).range(at..at + 1024));
    }

    fn names(fs: &Filesystem, dir: &InodeRef) -> Vec<String> {
        let mut names = Vec::new();
        let mut note = |name: &[u8]| names.push(String::from_utf8_lossy(name).into_owned());
        let listed = fs.read_dir(dir, 0, |item| {
            note(item.name);
            true
        });
        listed.expect("listed");
        names.sort();
        names
    }

    /// The directory's inode, with its size and times, cannot be read.
    #[test]
    fn adding_a_name_fails_if_the_directorys_inode_is_unreadable() {
        // Directories that are full, and one with room for another name.
        for (features, had) in [("dir_index", 9), ("^dir_index", 9), ("dir_index", 3)] {
            let (dev, faulty, fs) = spacious(features);
            let root = fs.root().expect("root");
            let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
            let d = fs.create(&root, b"d", NewNode::directory(0o755), Cred::default()).expect("mkdir");
            let name = |i: u16| format!("{i:0>100}").into_bytes();
            for i in 0..had {
                fs.link(&f, &d, &name(i)).expect("link");
            }
            assert_eq!(d.size(), 1024);
            let before = names(&fs, &d);
            hide_from(&fs, &faulty, &d);
            let failed = fs.link(&f, &d, &name(had));
            assert!(matches!(failed, Err(Error::Device(_))), "{failed:?}");
            assert_eq!((d.size(), names(&fs, &d)), (1024, before), "{features}, {had}");
            assert_eq!(f.links(), 1 + had);
            faulty.clear();
            assert!(!fs.is_read_only(), "{features}, {had}: no change was left half-done");
            drop((root, f, d));
            fs.unmount().expect("unmount");
            crate::tools::assert_clean(&dev);
        }
    }

    /// Blocks of the directory that are about to change have been read before, and are not evicted meanwhile.
    #[test]
    fn a_directory_split_reads_no_block_after_its_first_change() {
        let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024"], "8M"));
        let (forgetful, fs) = Forgetful::mount(dev.clone());
        let root = fs.root().expect("root");
        let d = fs.create(&root, b"d", NewNode::directory(0o755), Cred::default()).expect("mkdir");
        let f = fs.create(&d, b"f", NewNode::file(0o644), Cred::default()).expect("create");
        // Until the index gets a second level.
        let (mut splits, mut i) = (0, 0);
        while splits < 140 {
            i += 1;
            let name = format!("{i:0>200}").into_bytes();
            let (linked, split) = forgetful.run(&fs, || fs.link(&f, &d, &name));
            assert!(linked.is_ok() && !fs.is_read_only(), "name {i}, {splits} splits before: {linked:?}");
            splits += u32::from(split);
        }
        drop((root, d, f));
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&dev);
    }
}
