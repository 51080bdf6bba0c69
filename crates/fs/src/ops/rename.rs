//! rename(2) and renameat2(2).
//!
//! Main function: [`Filesystem::rename`]. Main type: [`RenameFlags`].
//!
//! What it does not do: change the blocks of directories ([`crate::dir_store`]).
//!
//! # Locking
//! Any rename that moves a directory or crosses directories holds `renames` (10), so that the shape of the tree does
//! not change. Then the two parents, the ancestor first, otherwise the lower inode number first. Then directories that
//! move or are replaced.

use std::sync::Arc;

use extant_cache::Buffer;
use extant_journal::Handle;
use extant_ondisk::InodeNr;
use extant_ondisk::time::Timestamp;

use crate::dir::Found;
use crate::dir_store::DirView;
use crate::error::{Damage, Error, Result};
use crate::fast_commit::describe_move;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::operation::Operation;
use crate::ops::create::{Cred, NewNode};
use crate::ops::credits;
use crate::ops::flags::Change;
use crate::ops::names::{add_dir_link, check_name, drop_dir_link};

/// The flags of renameat2(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail with [`Error::Exists`] if the new name exists (RENAME_NOREPLACE).
    pub no_replace: bool,
    /// Keep both names and exchange their inodes (RENAME_EXCHANGE).
    pub exchange: bool,
    /// Leave a whiteout with this owner at the old name, for overlay file systems (RENAME_WHITEOUT).
    pub whiteout: Option<Cred>,
}

impl Filesystem {
    /// Renames `old_name` in `old_dir` to `new_name` in `new_dir`, replacing the inode there.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Exists`] because of `flags`; [`Error::NotDirectory`], [`Error::IsDirectory`] or
    /// [`Error::NotEmpty`] if the target cannot be replaced; [`Error::Invalid`] for a move of a directory below itself,
    /// `flags` or a name; [`Error::DotName`]; [`Error::TooManyLinks`]; [`Error::OtherProject`]; [`Error::OtherPolicy`];
    /// [`Error::NameTooLong`]; [`Error::NotPermitted`] because of an inode's flags; [`Error::NoSpace`];
    /// [`Error::ReadOnly`]. [`Error::Lost`] if data is lost that must become durable first.
    pub fn rename(
        &self,
        old_dir: &InodeRef,
        old_name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let op = Operation::begin(self)?;
        old_dir.check_dir()?;
        new_dir.check_dir()?;
        check_name(old_name)?;
        check_name(new_name)?;
        if flags.exchange && (flags.no_replace || flags.whiteout.is_some()) {
            return Err(Error::Invalid("rename flags"));
        }
        for name in [old_name, new_name] {
            if name == b"." || name == b".." {
                return Err(Error::DotName);
            }
        }
        // If a rename replaces a file by one with dirty data, that data is written first. A crash then leaves the old
        // or the new content, not an empty file (Linux: auto_da_alloc). If the data cannot be written, or was lost
        // before and no party has seen that, the old file remains (Linux continues). No lock is held while the data is
        // written, so other renames do not wait. Data that is written afterwards is newer than the rename.
        let mut written = None;
        while let Some(source) =
            op.retry_no_space(|| op.rename_once(old_dir, old_name, new_dir, new_name, flags, written))?
        {
            let cursor = source.losses.open();
            self.content(&source).write_and_wait();
            source.losses.check(&cursor)?;
            written = Some(source.ino);
        }
        self.evictor().reap();
        self.honour_sync(&[old_dir, new_dir])
    }
}

impl Operation<'_> {
    /// One attempt of [`Filesystem::rename`]. Returns the file whose data must be written first, unless it is
    /// `written`; then nothing has changed.
    fn rename_once(
        &self,
        old_dir: &InodeRef,
        old_name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        flags: RenameFlags,
        written: Option<InodeNr>,
    ) -> Result<Option<InodeRef>> {
        let same_dir = old_dir.ino == new_dir.ino;
        // Only the lookup under the lock shows whether a directory moves. A file that stays in one directory does not
        // need the lock beyond that.
        let shape = self.fs.renames.lock();
        let (first, second) = self.in_order(old_dir, new_dir)?;
        let _first = first.rw.write();
        let _second = second.map(|d| d.rw.write_nested());

        if new_dir.links() == 0 || old_dir.links() == 0 {
            return Err(Error::NotFound);
        }
        let old_view = DirView::new(self.fs, old_dir);
        let new_view = DirView::new(self.fs, new_dir);
        let from = old_view.lookup(old_name)?.ok_or(Error::NotFound)?;
        let source = self.fs.iget_named(old_dir, from.ino)?;
        let to = new_view.lookup(new_name)?;
        let target = to.map(|t| self.fs.iget_named(new_dir, t.ino)).transpose()?;
        match &target {
            None if flags.exchange => return Err(Error::NotFound),
            Some(_) if flags.no_replace => return Err(Error::Exists),
            // Both names are spellings of one entry.
            Some(t) if same_dir && new_view.params.folds && to == Some(from) && t.ino == source.ino => {
                return self.respell(&new_view, new_dir, &from, new_name, &source, flags).map(|()| None);
            }
            // Both names refer to one file, so there is nothing to do.
            Some(t) if t.ino == source.ino => return Ok(None),
            _ => {}
        }
        old_dir.may_change(Change::RemoveEntry)?;
        source.may_change(Change::Unlink)?;
        match &target {
            Some(target) => {
                new_dir.may_change(Change::RemoveEntry)?;
                target.may_change(Change::Unlink)?;
            }
            None => new_dir.may_change(Change::AddEntry)?,
        }
        let replaces = target.is_some() && !flags.exchange;
        if replaces && written != Some(source.ino) && (!source.pages.is_empty() || source.losses.is_unseen()) {
            return Ok(Some(source));
        }
        self.check_entries(old_dir, new_dir, &source, target.as_ref().filter(|_| flags.exchange))?;
        if source.is_dir() && !same_dir && self.is_below(new_dir, source.ino)? {
            return Err(Error::Invalid("a directory cannot move into itself"));
        }
        // A directory that contains the source is not empty. Return here, because no thread may wait for its lock while
        // it holds the lock of a directory below it.
        if let Some(t) = &target
            && t.is_dir()
            && !same_dir
            && self.is_below(old_dir, t.ino)?
        {
            return Err(match flags.exchange {
                true => Error::Invalid("a directory cannot move into itself"),
                false => Error::NotEmpty,
            });
        }
        // Directories that move or are removed are locked last, the lower number first.
        let mut dirs: Vec<&InodeRef> = [Some(&source), target.as_ref()]
            .into_iter()
            .flatten()
            .filter(|i| i.is_dir() && i.ino != old_dir.ino && i.ino != new_dir.ino)
            .collect();
        dirs.sort_by_key(|i| i.ino);
        let _moving: Vec<_> = dirs.iter().map(|d| d.rw.write_nested()).collect();
        // Read the blocks of later changes before the first change, and keep them in memory until the last.
        let _tables = self.fs.hold_slots([old_dir, new_dir, &source].into_iter().chain(&target))?;
        let _entries = (old_view.hold_found(&from)?, to.map(|to| new_view.hold_found(&to)).transpose()?);
        let result = match (&target, to) {
            (Some(target), Some(to)) if flags.exchange => {
                self.exchange(&old_view, &new_view, (&from, &source), (&to, target))
            }
            _ => {
                let (from, to) = ((&from, &source), (to.as_ref(), target.as_ref()));
                self.replace(&old_view, old_name, &new_view, new_name, from, to, flags.whiteout)
            }
        };
        drop(shape);
        result.map(|()| None)
    }

    /// Changes the case or the spelling of a name in a case-insensitive directory. Linux does not get here: both
    /// spellings lead to one inode, and `vfs_rename` returns. Exchanging a name with itself, or leaving a whiteout in
    /// its place, does nothing.
    fn respell(
        &self,
        view: &DirView<'_>,
        dir: &InodeRef,
        place: &Found,
        name: &[u8],
        inode: &InodeRef,
        flags: RenameFlags,
    ) -> Result<()> {
        if flags.exchange || flags.whiteout.is_some() || view.stored_name(place)? == name {
            return Ok(());
        }
        dir.may_change(Change::RemoveEntry)?;
        inode.may_change(Change::Unlink)?;
        let _tables = self.fs.hold_slots([dir, inode])?;
        let _entry = view.hold_found(place)?;
        self.fs.transact_whole(credits::rename(view.add_credits(), false), |handle| {
            view.respell(handle, place, name, inode.file_type())?;
            let now = self.fs.now();
            inode.meta.write().desc.ctime = now;
            let done = self.fs.write_inode(handle, inode).and_then(|()| self.fs.stamp(handle, dir, now));
            self.fs.whole(handle, done)
        })
    }

    /// Checks that the projects and encryption policies of the directories accept the inodes that they get. `back` is
    /// the inode that moves to the old directory.
    fn check_entries(
        &self,
        old_dir: &InodeRef,
        new_dir: &InodeRef,
        source: &InodeRef,
        back: Option<&InodeRef>,
    ) -> Result<()> {
        self.fs.encryption(old_dir).may_add_names()?;
        self.fs.encryption(new_dir).may_add_names()?;
        for (dir, inode) in [(new_dir, Some(source)), (old_dir, back)] {
            let Some(inode) = inode else { continue };
            if old_dir.ino != new_dir.ino {
                self.fs.encryption(dir).check_policy(inode)?;
            }
            dir.check_project(inode)?;
        }
        Ok(())
    }

    /// The parents in the order of locking. The caller holds `renames`.
    fn in_order<'d>(
        &self,
        old_dir: &'d InodeRef,
        new_dir: &'d InodeRef,
    ) -> Result<(&'d InodeRef, Option<&'d InodeRef>)> {
        Ok(if new_dir.ino == old_dir.ino {
            (old_dir, None)
        } else if self.is_below(new_dir, old_dir.ino)? {
            (old_dir, Some(new_dir))
        } else if self.is_below(old_dir, new_dir.ino)? || new_dir.ino < old_dir.ino {
            (new_dir, Some(old_dir))
        } else {
            (old_dir, Some(new_dir))
        })
    }

    /// Whether `dir` is `ancestor` or lies below it; [`Error::NotFound`] if it was removed. The caller holds `renames`.
    fn is_below(&self, dir: &InodeRef, ancestor: InodeNr) -> Result<bool> {
        let mut at = dir.clone();
        // Detect loops: a path without an end returns to a mark, which is set at increasing distances (Brent).
        let (mut mark, mut steps, mut distance) = (at.ino, 0u32, 1u32);
        loop {
            if at.ino == ancestor {
                return Ok(true);
            }
            if at.ino == InodeNr::ROOT {
                return Ok(false);
            }
            let view = DirView::new(self.fs, &at);
            let up = view.dotdot()?;
            if up == at.ino {
                return Err(Error::corrupt(Damage::Tree, "'..' names the directory itself").of(up));
            }
            let up = self.fs.iget_named(&at, up);
            if at.links() == 0 {
                // It was removed. Its parent may have been removed as well, and its number may belong to another inode.
                return Err(Error::NotFound);
            }
            let up = up?;
            up.check_dir()?;
            at = up;
            if at.ino == mark {
                return Err(Error::corrupt(Damage::Tree, "a loop of directories").of(dir.ino));
            }
            steps += 1;
            if steps == distance {
                (mark, steps, distance) = (at.ino, 0, distance.saturating_mul(2));
            }
        }
    }

    /// Moves the name of `source` to the place of `target`, or to a new name.
    #[allow(clippy::too_many_arguments)] // the two sides of one rename
    fn replace(
        &self,
        old_view: &DirView<'_>,
        old_name: &[u8],
        new_view: &DirView<'_>,
        new_name: &[u8],
        (from, source): (&Found, &InodeRef),
        (to, target): (Option<&Found>, Option<&InodeRef>),
        whiteout: Option<Cred>,
    ) -> Result<()> {
        let (old_dir, new_dir) = (old_view.dir, new_view.dir);
        let same_dir = old_dir.ino == new_dir.ino;
        if let Some(target) = target {
            match (source.is_dir(), target.is_dir()) {
                (true, false) => return Err(Error::NotDirectory),
                (false, true) => return Err(Error::IsDirectory),
                (true, true) => {
                    let below = DirView::new(self.fs, target);
                    if !below.is_empty()? {
                        return Err(Error::NotEmpty);
                    }
                }
                (false, false) => {}
            }
        }
        if source.is_dir() && !same_dir && target.is_none() && !new_dir.may_link_dir(new_view) {
            return Err(Error::TooManyLinks);
        }
        let _dots = self.check_moves(source, same_dir)?;
        let _new = whiteout.map(|cred| self.admit_new(old_dir, NewNode::whiteout(), cred)).transpose()?;
        let inherited = whiteout.map(|cred| self.inherited_values(old_dir, NewNode::whiteout(), cred)).transpose()?;
        let values = inherited.unwrap_or_default();
        self.fs.transact_whole(credits::rename(new_view.add_credits(), whiteout.is_some()) + values.credits, |handle| {
            let now = self.fs.now();
            // First the steps that may find no space: the whiteout, then the new name.
            let whiteout = match whiteout {
                Some(cred) => Some(self.new_inode(handle, old_dir, old_name, NewNode::whiteout(), cred, &values)?),
                None => None,
            };
            let named = match to {
                Some(to) => new_view.set_inode(handle, to, source.ino, source.file_type()),
                None => new_view.add(handle, new_name, source.ino, source.file_type()),
            };
            if let Err(e) = named {
                if let Some(whiteout) = &whiteout {
                    self.take_back(handle, whiteout)?;
                }
                return Err(e);
            }
            // Adding the name may have moved the old entry, in which case `from` is only a hint. Or it has given the
            // directory an index, whose root contains no entries.
            let fresh = DirView::new(self.fs, old_dir);
            let hint = (fresh.params.is_indexed == old_view.params.is_indexed).then_some(from);
            let taken = match &whiteout {
                None => fresh.remove(handle, old_name, hint),
                Some(w) => fresh
                    .lookup(old_name)
                    .and_then(|place| place.ok_or(Error::NotFound))
                    .and_then(|at| fresh.set_inode(handle, &at, w.ino, w.file_type())),
            };
            let taken = taken.map_err(|e| match e {
                Error::NotFound => Error::corrupt(Damage::Directory, "the name to rename vanished").of(old_dir.ino),
                other => other,
            });
            let done = (|| {
                taken?;
                source.meta.write().desc.ctime = now;
                if source.is_dir() && !same_dir {
                    let moved = DirView::new(self.fs, source);
                    moved.set_dotdot(handle, new_dir.ino)?;
                    drop_dir_link(&mut old_dir.meta.write().desc);
                    if target.is_none() {
                        add_dir_link(&mut new_dir.meta.write().desc);
                        self.fs.note_many_links(handle, new_dir)?;
                    }
                }
                self.fs.write_inode(handle, source)?;
                if let Some(target) = target {
                    if target.is_dir() {
                        self.kill_dir(handle, target, now)?;
                        if same_dir {
                            // The parent has lost one of its two directories.
                            drop_dir_link(&mut old_dir.meta.write().desc);
                        }
                    } else {
                        self.drop_link(handle, target, now)?;
                    }
                }
                self.stamp_both(handle, old_dir, new_dir, now)
            })();
            let plain = target.is_none() && whiteout.is_none();
            describe_move(handle, source, (old_dir, old_name), (new_dir, new_name), plain);
            self.fs.whole(handle, done)
        })
    }

    /// Reads the first block of a directory that moves, before the first change. The caller keeps it in memory until
    /// the last.
    fn check_moves(&self, inode: &InodeRef, same_dir: bool) -> Result<Option<Arc<Buffer>>> {
        if !inode.is_dir() || same_dir {
            return Ok(None);
        }
        let view = DirView::new(self.fs, inode);
        view.dotdot()?;
        view.hold_first().map(Some)
    }

    /// Exchanges the inodes of two names.
    fn exchange(
        &self,
        old_view: &DirView<'_>,
        new_view: &DirView<'_>,
        (from, source): (&Found, &InodeRef),
        (to, target): (&Found, &InodeRef),
    ) -> Result<()> {
        let (old_dir, new_dir) = (old_view.dir, new_view.dir);
        let same_dir = old_dir.ino == new_dir.ino;
        // A directory takes the place of a file.
        let (loses, gains) = match (source.is_dir(), target.is_dir()) {
            (true, false) if !same_dir => (Some(old_view), Some(new_view)),
            (false, true) if !same_dir => (Some(new_view), Some(old_view)),
            _ => (None, None),
        };
        if gains.is_some_and(|view| !view.dir.may_link_dir(view)) {
            return Err(Error::TooManyLinks);
        }
        let _dots = (self.check_moves(source, same_dir)?, self.check_moves(target, same_dir)?);
        self.fs.transact_whole(credits::EXCHANGE, |handle| {
            let now = self.fs.now();
            let (source_type, target_type) = (source.file_type(), target.file_type());
            new_view.set_inode(handle, to, source.ino, source_type)?;
            let done = (|| {
                old_view.set_inode(handle, from, target.ino, target_type)?;
                if !same_dir {
                    for (inode, parent) in [(source, new_dir), (target, old_dir)] {
                        if inode.is_dir() {
                            let view = DirView::new(self.fs, inode);
                            view.set_dotdot(handle, parent.ino)?;
                        }
                    }
                    if let (Some(loses), Some(gains)) = (loses, gains) {
                        drop_dir_link(&mut loses.dir.meta.write().desc);
                        add_dir_link(&mut gains.dir.meta.write().desc);
                        self.fs.note_many_links(handle, gains.dir)?;
                    }
                }
                for inode in [source, target] {
                    inode.meta.write().desc.ctime = now;
                    self.fs.write_inode(handle, inode)?;
                }
                self.stamp_both(handle, old_dir, new_dir, now)
            })();
            self.fs.whole(handle, done)
        })
    }

    /// Updates the times of both directories, which may be one.
    fn stamp_both(&self, handle: &mut Handle, a: &Arc<Inode>, b: &Arc<Inode>, now: Timestamp) -> Result<()> {
        self.fs.stamp(handle, a, now)?;
        if a.ino != b.ino {
            self.fs.stamp(handle, b, now)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "rename_tests.rs"]
mod tests;
