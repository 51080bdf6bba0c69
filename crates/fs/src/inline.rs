//! Content that is stored in the inode itself (`inline_data`): in `i_block`, and continued in the attribute
//! `system.data` (Linux: fs/ext4/inline.c).
//!
//! Main type: [`InlineView`]. [`InlineView::content`] (files, symbolic links) and [`InlineView::directory`] read;
//! [`InlineView::write`], [`InlineView::resize`], [`InlineView::add_name`] and [`InlineView::change_names`] write;
//! [`InlineView::move_out`] gives a file blocks.
//!
//! The content is metadata. Each change of it is part of one handle, so a write is atomic even in a crash. Such a file
//! therefore has no folios, its two sizes are equal, and fsync need not wait for data. Quotas charge no block for it.
//!
//! A new directory, and the first content of a new file, begin in the inode if its attributes leave room. A file that
//! became empty later does not: Linux 6.18 loses its own writes far past the end of an inline file if pages are larger
//! than blocks. Content that outgrows the room moves to a block in one handle, and never returns to the inode.
//! Fallocate also moves it. Other attributes that do not fit beside the content go to the attribute block
//! ([`crate::xattr`]); `system.data` never does.
//!
//! What it does not do: store the targets of symbolic links here. Linux no longer does, either.
//!
//! # Locking
//! As for reading and changing attributes: the caller holds the inode's `inode` lock, shared for reading and exclusive
//! for changes, unless no thread changes anything. [`InlineView::parent`] needs no lock. The flag and `i_block` change
//! together under `inode meta` (60), at a time when the map (50), which is locked, already has the block.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_cache::BufKind;
use extant_journal::Handle;
use extant_mballoc::MetaRole;
use extant_ondisk::dirent::{DirBlockFormat, DirDamage, InlineDir, Insert};
use extant_ondisk::inode::{FileType, InodeFlags, inline};
use extant_ondisk::{InodeNr, LogicalBlock};

use crate::dir::{self, BlockKind, DirParams};
use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::map::MapRoot;
use crate::ops::credits;
use crate::ops::mapping::Want;
use crate::reserve::Caller;
use crate::volume::Volume;
use crate::writeback::batch::WritebackReason;
use crate::xattr;
use crate::xattr_store::Values;

/// The content of an inode as far as it is stored in the inode itself.
#[derive(Clone, Copy)]
pub(crate) struct InlineView<'a> {
    fs: &'a Filesystem,
    inode: &'a Arc<Inode>,
}

impl Volume {
    /// Whether the content of the inode is stored in the inode itself.
    pub(crate) fn is_inline(&self, inode: &Inode) -> bool {
        self.inline_data && inode.meta.flags().contains(InodeFlags::INLINE_DATA)
    }
}

impl Filesystem {
    /// The content of `inode` as far as it is stored in the inode itself.
    pub(crate) fn inline<'a>(&'a self, inode: &'a Arc<Inode>) -> InlineView<'a> {
        InlineView { fs: self, inode }
    }
}

impl InlineView<'_> {
    /// The parent of a directory without blocks; `None` for other directories. The caller need not lock the directory.
    pub(crate) fn parent(&self) -> Result<Option<InodeNr>> {
        let i_block = {
            let m = self.inode.meta.read();
            if !self.fs.inline_data || !m.desc.flags.contains(InodeFlags::INLINE_DATA) {
                return Ok(None);
            }
            m.desc.i_block
        };
        let parent = InodeNr(InlineDir::from_parts(&i_block, Vec::new()).parent());
        if !self.fs.geo.contains_inode(parent) {
            let detail = format!("its parent is {}, which does not exist", parent.0);
            return Err(Error::corrupt(Damage::Directory, detail).of(self.inode.ino));
        }
        Ok(Some(parent))
    }

    /// The stored content of a file or symbolic link without blocks; `None` for others. A regular file may be longer
    /// ([`inline::fits`]): it continues with zeros.
    pub(crate) fn content(&self) -> Result<Option<Vec<u8>>> {
        if !self.fs.is_inline(self.inode) {
            return Ok(None);
        }
        let (first, rest) = self.parts()?;
        let (size, mut content) = (self.inode.size(), first.to_vec());
        let is_whole = inline::fits(self.inode.file_type(), size, rest.as_ref().map(Vec::len));
        content.extend(rest.unwrap_or_default());
        let stored = content.len() as u64;
        if size > stored && !is_whole {
            let detail = format!("{size} bytes in an inode that holds {stored}");
            let e = Error::corrupt(Damage::Inode, detail).of(self.inode.ino);
            if !self.fs.rescues() {
                return Err(e);
            }
            self.fs.doubt(self.inode, e);
        }
        content.truncate(size.min(stored) as usize);
        Ok(Some(content))
    }

    /// The content of a directory without blocks, in the form of an ordinary directory block without a checksum; `None`
    /// for other directories. Under rescue, also the first damage that hides a part of it.
    #[allow(clippy::type_complexity)] // one caller
    pub(crate) fn directory(&self) -> Result<Option<(Vec<u8>, Option<Error>)>> {
        if !self.fs.is_inline(self.inode) {
            return Ok(None);
        }
        let (first, rest) = self.parts()?;
        let mut passed = None;
        let mut block = vec![0; self.fs.geo.block_size as usize];
        let names = InlineDir::from_parts(&first, rest.unwrap_or_default());
        names.to_block(self.block_format(false), self.inode.ino.0, &mut block, |e| {
            let e = broken_names(self.inode, e);
            if self.fs.rescues() {
                passed.get_or_insert(e);
                return Ok(());
            }
            Err(e)
        })?;
        Ok(Some((block, passed)))
    }

    /// Stores the content of a new directory in its inode, if it fits (Linux: `ext4_try_create_inline_dir`).
    pub(crate) fn begin_directory(&self, handle: &mut Handle, parent: InodeNr) -> Result<bool> {
        let fits = self.fs.inline_data && self.room()?.is_some();
        if fits {
            self.begin(handle, &InlineDir::new(parent.0, 0).to_bytes())?;
        }
        Ok(fits)
    }

    /// Writes `data` at `pos` to a file that is stored in its inode, or to a new file. If the result is false, nothing
    /// has been written: the content must go to blocks, and the file is ready for that.
    pub(crate) fn write(&self, pos: u64, data: &[u8]) -> Result<bool> {
        let end = self.inode.size().max(pos + data.len() as u64);
        self.change(end, |content| content[pos as usize..][..data.len()].copy_from_slice(data))
    }

    /// Sets the size of such a file. The result is as for [`InlineView::write`].
    pub(crate) fn resize(&self, size: u64) -> Result<bool> {
        self.change(size, |_| ())
    }

    /// Removes stored content past the size of a file, which an interrupted truncation by the kernel leaves.
    pub(crate) fn cut(&self) -> Result<()> {
        let size = self.inode.size();
        if self.content()?.is_some_and(|content| content.len() as u64 == size) {
            self.resize(size)?;
        }
        Ok(())
    }

    /// Moves the content of a file from its inode to a block. A file without content merely gets its next content
    /// there. The data goes to the device first; then all of the metadata changes in one handle (Linux:
    /// `ext4_convert_inline_data`).
    pub(crate) fn move_out(&self) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        inode.fresh.store(false, Ordering::Release);
        let Some(content) = self.content()? else { return Ok(()) };
        let _table = fs.inode_slot(inode.ino)?;
        if content.is_empty() {
            return fs.transact_whole(credits::INODE, |handle| {
                self.set_rest(handle, None)?;
                self.show_map(self.empty_map());
                let written = fs.write_inode_data(handle, inode);
                fs.whole(handle, written)
            });
        }
        let first = LogicalBlock(0);
        let (block, _) = fs.choose_blocks(inode, first, 1, Want::Written, None, WritebackReason::Background)?;
        let start = block.start;
        let mut chosen = Some(block);
        let moved = fs.write_piece(start, 1, &content).and_then(|_| {
            fs.transact_whole(fs.allocate_credits(inode, 1), |handle| {
                // Reading the bitmap can fail, so it comes before the first change. It stays in memory until the last.
                let _bitmap = chosen.as_ref().map(|chosen| fs.placement.alloc.prepare(handle, chosen)).transpose()?;
                self.set_rest(handle, None)?;
                self.show_map(self.empty_map());
                let mapped = fs.map_chosen(handle, inode, first, &mut chosen, false);
                let written = mapped.and_then(|_| fs.write_inode_data(handle, inode));
                fs.whole(handle, written)
            })
        });
        fs.cancel_chosen(&mut chosen);
        moved
    }

    /// Runs `change` on the content of a directory without blocks, in the form of [`InlineView::directory`]. No name
    /// may move.
    pub(crate) fn change_names<R>(&self, handle: &mut Handle, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let (names, format) = (self.names()?, self.block_format(false));
        let damaged = |e| broken_names(self.inode, e);
        let mut block = vec![0; self.fs.geo.block_size as usize];
        names.to_block(format, self.inode.ino.0, &mut block, |e| Err(damaged(e)))?;
        let r = change(&mut block);
        let changed = InlineDir::from_block(format, &block, names.rest_len()).map_err(damaged)?;
        if changed != names {
            self.put(handle, &changed.to_bytes())?;
        }
        Ok(r)
    }

    /// Adds a name to a directory without blocks (Linux: `ext4_try_add_inline_entry`). If the result is false, there
    /// was no room: the directory now has a block, and the name has not been added.
    pub(crate) fn add_name(
        &self,
        handle: &mut Handle,
        name: &[u8],
        ino: InodeNr,
        kind: Option<FileType>,
    ) -> Result<bool> {
        let (mut names, format) = (self.names()?, self.block_format(false));
        let damaged = |e| broken_names(self.inode, e);
        let mut added = names.insert(format, name, ino.0, kind).map_err(damaged)?;
        if added == Insert::Full {
            // Take all of the room at once, as in Linux. If the content grew with each name, the other attributes would
            // move each time.
            let room = self.room()?.map_or(0, |room| room - inline::ROOM);
            if names.grow(format, room).map_err(damaged)? {
                added = names.insert(format, name, ino.0, kind).map_err(damaged)?;
            }
        }
        match added {
            Insert::Done { .. } => self.put(handle, &names.to_bytes()).map(|()| true),
            Insert::Exists { .. } => Err(Error::Exists),
            Insert::Full => self.move_names_out(handle, &names).map(|()| false),
        }
    }

    /// As [`InlineView::move_names_out`], for a directory that is about to be encrypted.
    pub(crate) fn move_directory_out(&self, handle: &mut Handle) -> Result<()> {
        let names = self.names()?;
        self.move_names_out(handle, &names)
    }

    /// The bytes of `i_block`, and the bytes in the attribute.
    fn parts(&self) -> Result<([u8; inline::ROOM], Option<Vec<u8>>)> {
        let first = self.inode.meta.read().desc.i_block;
        let rest = xattr::get_in_inode(&self.fs.xattrs(self.inode), inline::DATA).map_err(Error::from)?;
        Ok((first, rest))
    }

    /// The names of a directory without blocks, for an operation that changes them.
    fn names(&self) -> Result<InlineDir> {
        let (first, rest) = self.parts()?;
        let size = self.inode.size();
        if !inline::fits(Some(FileType::Directory), size, rest.as_ref().map(Vec::len)) {
            let detail = match rest {
                Some(rest) => {
                    format!("a directory of {size} bytes in an inode that holds {}", inline::ROOM + rest.len())
                }
                None => "a directory in its inode, which lacks the attribute 'system.data'".into(),
            };
            return Err(Error::corrupt(Damage::Inode, detail).of(self.inode.ino));
        }
        Ok(InlineDir::from_parts(&first, rest.unwrap_or_default()))
    }

    /// The form of the directory block that the names are converted to and from.
    fn block_format(&self, has_csum: bool) -> DirBlockFormat {
        let (has_filetype, inodes_count) = (self.fs.geo.filetype, self.fs.geo.inodes_count);
        DirBlockFormat { has_filetype, has_csum, inodes_count, encrypted: false }
    }

    /// The number of content bytes that fit beside the inode's other attributes; `None` if no attribute fits.
    fn room(&self) -> Result<Option<usize>> {
        let rest = xattr::room_in_inode(&self.fs.xattrs(self.inode), inline::DATA).map_err(Error::from)?;
        Ok(rest.map(|rest| inline::ROOM + rest))
    }

    /// Runs `change` on the content, which first gets this size. The result is as for [`InlineView::write`].
    fn change(&self, size: u64, change: impl FnOnce(&mut [u8])) -> Result<bool> {
        if !self.fs.inline_data {
            return Ok(false);
        }
        let stored = self.content()?;
        let begins = stored.is_none() && size > 0 && self.inode.fresh.swap(false, Ordering::AcqRel);
        if stored.is_none() && !begins {
            return Ok(false);
        }
        if self.room()?.is_none_or(|room| size > room as u64) {
            self.move_out()?;
            return Ok(false);
        }
        // Stored bytes past the former end must not reappear.
        let mut content = stored.unwrap_or_default();
        content.resize(size as usize, 0);
        change(&mut content);
        let _table = self.fs.inode_slot(self.inode.ino)?;
        self.fs.transact_whole(credits::INODE, |handle| match begins {
            true => self.begin(handle, &content),
            false => self.put(handle, &content),
        })?;
        Ok(true)
    }

    /// Stores the first content in an inode that has neither blocks nor content. The content must fit.
    fn begin(&self, handle: &mut Handle, content: &[u8]) -> Result<()> {
        {
            let flags = &mut self.inode.meta.write().desc.flags;
            flags.insert(InodeFlags::INLINE_DATA);
            flags.remove(InodeFlags::EXTENTS);
        }
        let begun = self.put(handle, content);
        self.fs.whole(handle, begun)
    }

    /// Replaces the content by `content`, for which the inode has room, and sets the size. [`credits::INODE`]; the
    /// caller holds the inode's table block.
    fn put(&self, handle: &mut Handle, content: &[u8]) -> Result<()> {
        let (first, rest) = content.split_at(content.len().min(inline::ROOM));
        self.set_rest(handle, Some(rest))?;
        {
            let mut m = self.inode.meta.write();
            let mut i_block = [0; inline::ROOM];
            i_block[..first.len()].copy_from_slice(first);
            m.desc.i_block = i_block;
            m.desc.size = content.len() as u64;
        }
        self.inode.set_size(content.len() as u64);
        let written = self.fs.write_inode_data(handle, self.inode);
        self.fs.whole(handle, written)
    }

    /// Sets or removes the attribute `system.data`. A failure either changes nothing or aborts the journal.
    fn set_rest(&self, handle: &mut Handle, rest: Option<&[u8]>) -> Result<()> {
        let xattrs = self.fs.xattrs(self.inode);
        xattrs.edit(handle, &Values::default(), |edit| xattr::set_in_inode(edit, inline::DATA, rest))
    }

    /// Moves the names of a directory from its inode to its first block. The caller holds the inode's table block. If
    /// it is refused (no space), nothing has changed; a later failure aborts the journal.
    fn move_names_out(&self, handle: &mut Handle, names: &InlineDir) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        let params = DirParams { has_csum: fs.hash.has_csum, ..fs.dir_params(inode) };
        let mut bytes = vec![0; fs.geo.block_size as usize];
        let format = self.block_format(params.has_csum);
        names.to_block(format, inode.ino.0, &mut bytes, |e| Err(broken_names(inode, e)))?;
        dir::seal(&params, BlockKind::Leaf, &mut bytes);
        fs.quotas.blocks_within(inode, 1)?;
        let home = fs.placement.inode_goal(inode.ino, inode.file_type());
        let owner = (MetaRole::Directory, inode.ino);
        let block = fs.placement.allocate_meta_block(handle, owner, home, None, Caller::current())?;
        let mut root = self.empty_map();
        if let Err(e) = root.insert(&fs.map_view(inode), handle, LogicalBlock(0), block, 1, false) {
            let freed = fs.placement.free_blocks(handle, inode.ino, block, 1);
            fs.whole(handle, freed)?;
            return Err(e);
        }
        let moved = (|| {
            // Fill the block before the inode refers to it, because a thread without the directory's lock may look for
            // the parent.
            let buffer = handle.create(block, BufKind::Leaf)?;
            handle.modify(&buffer, BufKind::Leaf, |b| b.copy_from_slice(&bytes));
            self.set_rest(handle, None)?;
            self.show_map(root);
            let size = u64::from(fs.geo.block_size);
            inode.set_size(size);
            inode.meta.write().desc.size = size;
            fs.write_inode_data(handle, inode)
        })();
        fs.whole(handle, moved)
    }

    /// The map that the content moves to.
    fn empty_map(&self) -> MapRoot {
        MapRoot::empty(self.inode.ino, self.fs.new_extents, self.fs.inode_seed(self.inode.ino, self.inode.generation))
    }

    /// Replaces the inline content by the map `root` and its blocks. The caller writes the inode.
    fn show_map(&self, mut root: MapRoot) {
        let mut map = self.inode.map.write();
        self.inode.es.remove(LogicalBlock(0), u32::MAX);
        let units = root.blocks_delta * i64::from(self.fs.geo.block_size / 512);
        (root.blocks_delta, root.dirty) = (0, false);
        let mut m = self.inode.meta.write();
        m.desc.i_block = root.i_block;
        m.desc.blocks = m.desc.blocks.saturating_add_signed(units);
        m.desc.flags.remove(InodeFlags::INLINE_DATA | InodeFlags::INDEX);
        m.desc.flags.set(InodeFlags::EXTENTS, root.extents);
        *map = root;
    }
}

/// The error for names in the inode of a directory that cannot be decoded.
fn broken_names(dir: &Inode, e: DirDamage) -> Error {
    Error::corrupt(Damage::Directory, format!("names in the inode, {e}")).of(dir.ino)
}

#[cfg(test)]
#[path = "inline_tests.rs"]
mod tests;
