//! Attribute values in inodes of their own (`ea_inode`; Linux: `ext4_xattr_inode_*`, fs/ext4/xattr.c).
//!
//! Main functions: [`Operation::prepare_values`] before a change, [`XattrView::refer`] and [`Maps::charge_values`]
//! during it, [`XattrView::stored_value`] for readers. [`Values`] are the values that one change may refer to, kept in
//! memory while it runs.
//!
//! The inode of a value begins as a file without a name: an orphan that is charged to its owner. Its content is written
//! in separate handles, as metadata. The handle that writes the first entry for it turns it into a value: the inode
//! gets the flag, a link and a reference, is no longer an orphan, and is not charged any more. Further entries add
//! references. The handle that removes the last entry makes the inode an orphan again, without the flag, and its
//! eviction frees it. So after a crash at any point, a value has as many references as entries. An inode that is
//! neither a value nor a file is an orphan, in a form that Linux's orphan cleanup accepts; the cleanup refuses inodes
//! with the flag.
//!
//! Each inode that shares a value counts it in full, in `i_blocks` and for quotas. The number of references is stored
//! in fields that have other meanings in other inodes ([`extant_ondisk::inode::InodeDesc::value_references`]).
//!
//! Values that Lustre stored have neither a reference count nor a hash. They can be read, and are freed with the
//! attribute of their owner.
//!
//! What it does not do: decide which values are stored in inodes ([`crate::xattr`]).
//!
//! # Locking
//! The caller holds the owner's `inode` lock, shared for reading and exclusive for changes. The lock of the value's
//! inode is not taken, because nothing else uses that inode while an entry refers to it. `attribute values` (52) is
//! held while a count changes.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_cache::BufKind;
use extant_es::EsState;
use extant_journal::Handle;
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::xattr::{ExternalValue, MAGIC, Name, is_outside_hash, value_hash};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use crate::error::{Damage, Error, Result};
use crate::inode::{Inode, InodeRef};
use crate::maps::Maps;
use crate::operation::Operation;
use crate::ops::credits;
use crate::ops::mapping::Want;
use crate::orphan::Over;
use crate::volume::Volume;
use crate::writeback::batch::WritebackReason;
use crate::xattr::{self, Reference};
use crate::xattr_store::Values;
use crate::xattr_view::XattrView;

/// The maximum number of blocks of a value that one handle writes, because a small log limits its handles.
const BLOCKS_PER_HANDLE: u32 = 16;
/// The number of values whose references one handle of an eviction drops.
const DROPPED_PER_HANDLE: usize = 8;

/// The error for attributes of `owner`.
fn damaged(owner: InodeNr, detail: impl std::fmt::Display) -> Error {
    Error::corrupt(Damage::Xattr, detail.to_string()).of(owner)
}

impl Inode {
    /// Whether Lustre stored this value for `owner`. Such a value has no reference count, and is not charged to the
    /// owner.
    fn is_lustre_value_of(&self, owner: &Inode) -> bool {
        self.meta.read().desc.is_lustre_value_of(owner.ino, owner.generation)
    }
}

impl Volume {
    /// Checks that the log has room for the values. Linux refuses such changes as well (`ext4_xattr_set_handle`).
    fn has_room_for(&self, values: &Values) -> Result<()> {
        let needed = self.with_quota_credits(credits::NEW_INODE + values.credits);
        if needed > self.journal.max_credits() { Err(Error::NoSpace) } else { Ok(()) }
    }
}

impl Maps {
    /// The content of a value. The content is metadata, so the buffer cache may be newer than the device.
    fn read_value(&self, value: &InodeRef, len: usize) -> Result<Vec<u8>> {
        let bad = |detail: String| Error::corrupt(Damage::Xattr, detail).of(value.ino);
        if value.size() != len as u64 {
            return Err(bad(format!("{} bytes, {len} in its entry", value.size())));
        }
        let bs = self.geo.block_size as usize;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = LogicalBlock((bytes.len() / bs) as u32);
            let rest = (len - bytes.len()).div_ceil(bs) as u32;
            let (n, state) = self.status(value, at, rest)?;
            let EsState::Written(start) = state else { return Err(bad(format!("no block {at}"))) };
            if !self.placement.may_be_owned(start, n.into()) {
                return Err(bad(format!("its block {at} cannot be a file's")));
            }
            self.cache.readahead(start, n);
            for i in 0..u64::from(n) {
                let take = bs.min(len - bytes.len());
                self.cache.get(BlockNr(start.0 + i))?.read(|block| bytes.extend_from_slice(&block[..take]));
            }
        }
        Ok(bytes)
    }

    /// Charges the blocks of values to `owner`, whose attributes referred to the values `before` and now refer to those
    /// in `after`. The caller writes the inode.
    pub(crate) fn charge_values(
        &self,
        owner: &Inode,
        values: &Values,
        before: &[ExternalValue],
        after: &[ExternalValue],
    ) {
        let cluster = u64::from(self.geo.block_size) << self.geo.cluster_bits;
        let counted = |all: &[ExternalValue]| {
            let all = all
                .iter()
                .filter(|there| values.get(there.inode).is_some_and(|value| !value.is_lustre_value_of(owner)));
            all.fold((0, 0), |(n, units), there| (n + 1, units + u64::from(there.len).next_multiple_of(cluster) / 512))
        };
        let (less, more) = (counted(before), counted(after));
        let mut m = owner.meta.write();
        m.desc.blocks = (m.desc.blocks + more.1).saturating_sub(less.1);
        if self.counts_owners(owner.ino) {
            m.values = (m.values + more.0).saturating_sub(less.0);
        }
    }
}

impl XattrView<'_> {
    /// The value of the attribute `name`, whose entry says that it is `there`. The entry and the value's inode must
    /// agree.
    pub(crate) fn stored_value(&self, name: Name<'_>, there: ExternalValue) -> Result<Vec<u8>> {
        let value = self.value_inode(there.inode)?;
        let bytes = self.fs.read_value(&value, there.len as usize).map_err(|e| match e.is_corruption() {
            true => damaged(self.inode.ino, format_args!("a value in {}: {e}", there.inode)),
            false => e,
        })?;
        let hash = value_hash(self.fs.geo.seed.raw(), &bytes);
        let stored = value.meta.read().desc.value_hash();
        if hash == stored && is_outside_hash(there.hash, name.suffix, hash) {
            self.fs.shared_values.note(hash, there.inode);
        } else if !value.is_lustre_value_of(self.inode) && !self.fs.rescues() {
            let detail = format_args!("the value in {} has hash {hash:#010x}, not that of its entry", there.inode);
            return Err(damaged(self.inode.ino, detail));
        }
        Ok(bytes)
    }

    /// The values that the attributes refer to now, for a change that may add and drop references to all of them.
    ///
    /// # Errors
    /// Damage of the attributes or of a value; [`Error::NoSpace`] if the log has no room for this many.
    pub(crate) fn hold_values(&self) -> Result<Values> {
        let mut values = Values::default();
        if !self.fs.geo.ea_inode {
            return Ok(values);
        }
        for there in xattr::outside(self)? {
            if values.get(there.inode).is_none() {
                values.hold(self.fs, self.value_inode(there.inode)?, credits::VALUE)?;
            }
        }
        self.fs.has_room_for(&values)?;
        Ok(values)
    }

    /// As [`XattrView::hold_values`], at the end of the inode's life. Damage is recorded, and the affected value is
    /// leaked; e2fsck finds it.
    pub(crate) fn hold_last_values(&self) -> Result<Values> {
        let mut values = Values::default();
        if !self.fs.geo.ea_inode {
            return Ok(values);
        }
        let found = xattr::outside(self).map_err(Error::from);
        for there in self.fs.unless_damaged(self.inode, found)?.unwrap_or_default() {
            if values.get(there.inode).is_none()
                && let Some(value) = self.fs.unless_damaged(self.inode, self.value_inode(there.inode))?
            {
                values.hold(self.fs, value, credits::VALUE)?;
            }
        }
        Ok(values)
    }

    /// Adds or drops a reference to a value, for an entry that the handle writes (Linux:
    /// `ext4_xattr_inode_update_ref`). [`credits::VALUE`].
    pub(crate) fn refer(&self, handle: &mut Handle, value: &InodeRef, how: Reference) -> Result<()> {
        let (uid, gid, projid) = {
            let d = &self.inode.meta.read().desc;
            (d.uid, d.gid, d.projid)
        };
        let is_lustre = value.is_lustre_value_of(self.inode);
        let _counts = self.fs.shared_values.hold_counts();
        let (count, was_value) = {
            let d = &value.meta.read().desc;
            (if is_lustre { 1 } else { d.value_references() }, d.is_value())
        };
        let next = match how {
            Reference::Add if !was_value => Some(1),
            Reference::Add => count.checked_add(1),
            Reference::Drop => count.checked_sub(1).filter(|_| was_value),
        };
        let Some(next) = next else {
            // The count is wrong, perhaps crafted. The value remains, or is already gone; e2fsck corrects the count.
            let detail = format_args!("the value in {} has a wrong count of references, {count}", value.ino);
            self.fs.placement.groups.keep_damage(damaged(self.inode.ino, detail));
            return Ok(());
        };
        {
            let d = &mut value.meta.write().desc;
            d.set_value_references(next);
            d.flags.set(InodeFlags::EA_INODE, next > 0);
            d.links = u16::from(next > 0);
            if next == 0 {
                // The owners must have entries in the quota files.
                (d.uid, d.gid, d.projid) = (uid, gid, projid);
            }
        }
        if !was_value {
            self.fs.orphans.remove(handle, value, Over::Nameless)?;
        } else if next == 0 {
            self.fs.orphans.add(handle, value)?;
        }
        self.fs.write_inode(handle, value)
    }

    /// At the end of an inode's life, drops its references to values, in as many handles as needed. The references of a
    /// block that other inodes share are dropped with the block.
    pub(crate) fn drop_values(&self, handle: &mut Handle, values: &Values) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let each = credits::EVICT + credits::XATTR + DROPPED_PER_HANDLE as u32 * credits::VALUE;
        loop {
            let credits = self.fs.with_quota_credits(each);
            if !handle.has_credits(credits) {
                handle.restart(credits)?;
            }
            let dropped = self.edit(handle, values, |edit| xattr::release_values(edit, DROPPED_PER_HANDLE));
            let more = if self.fs.journal.is_aborted() {
                Some(dropped?)
            } else {
                self.fs.unless_damaged(self.inode, dropped)?
            };
            if more != Some(true) {
                return Ok(());
            }
        }
    }

    /// The inode of a value that an entry refers to (Linux: `ext4_xattr_inode_iget`).
    fn value_inode(&self, ino: InodeNr) -> Result<InodeRef> {
        let (fs, inode) = (self.fs, self.inode);
        let bad = |detail: &str| damaged(inode.ino, format_args!("a value in {ino}, {detail}"));
        if !fs.geo.ea_inode && !fs.rescues() {
            return Err(bad("but the image lacks the feature 'ea_inode'"));
        }
        if ino == inode.ino {
            return Err(bad("which has the attribute itself"));
        }
        if !fs.geo.contains_inode(ino) || ino.0 < fs.geo.first_ino || fs.own_inodes.contains(ino) {
            return Err(bad("which is the file system's own or does not exist"));
        }
        let value = fs.iget_own(ino).map_err(|e| match e {
            Error::Stale(_) => bad("which is not in use"),
            e if e.is_corruption() => damaged(inode.ino, format_args!("a value in {ino}: {e}")),
            e => e,
        })?;
        let (is_value, area) = {
            let d = &value.meta.read().desc;
            let is_value = d.is_value() && d.is_regular() && d.links > 0;
            (is_value && d.file_acl.0 == 0, d.xattr_area(&fs.geo))
        };
        if !is_value {
            return Err(bad("which has no value of attributes"));
        }
        let has_own = match area {
            Some(area) => fs.inode_bytes(ino, |bytes| bytes[area].starts_with(&MAGIC.to_le_bytes()))?,
            None => false,
        };
        if has_own {
            return Err(bad("which has attributes itself"));
        }
        Ok(value)
    }
}

impl Operation<'_> {
    /// The values that a change of the attributes of `inode` may need: those that the attributes refer to, and an inode
    /// for each value in `new` that needs one. The caller holds no handle.
    ///
    /// # Errors
    /// As [`XattrView::hold_values`]; [`Error::NoSpace`], [`Error::NoInodes`] and [`Error::QuotaExceeded`] for a new
    /// value.
    pub(crate) fn prepare_values(&self, inode: &InodeRef, new: &[(Name<'_>, Vec<u8>)]) -> Result<Values> {
        let mut values = self.fs.xattrs(inode).hold_values()?;
        for (name, value) in new {
            if values.prepared(value).is_some() || !xattr::goes_outside(&self.fs.xattrs(inode), *name, value)? {
                continue;
            }
            self.prepare_one(&mut values, inode, value)?;
        }
        self.fs.has_room_for(&values)?;
        Ok(values)
    }

    /// As [`Operation::prepare_values`], for a new inode in `dir` that inherits these ACLs: prepares values for those
    /// that may not fit in one block. They count against the limits of the owners of `dir`.
    pub(crate) fn prepare_inherited(&self, dir: &Arc<Inode>, lists: &[(Name<'_>, Vec<u8>)]) -> Result<Values> {
        let mut values = Values::default();
        let bytes: usize = lists.iter().map(|(_, list)| list.len()).sum();
        if bytes <= self.fs.geo.block_size as usize / 2 {
            return Ok(values);
        }
        for (_, list) in lists {
            self.prepare_one(&mut values, dir, list)?;
        }
        self.fs.has_room_for(&values)?;
        Ok(values)
    }

    /// Prepares and holds an inode with this value, which the owners of `inode` account for.
    fn prepare_one(&self, values: &mut Values, inode: &Arc<Inode>, value: &[u8]) -> Result<()> {
        let hash = value_hash(self.fs.geo.seed.raw(), value);
        let found = self.value_with(inode, value, hash)?;
        values.prepare(value.to_vec(), hash, found.ino);
        if values.get(found.ino).is_none() {
            values.hold(self.fs, found, credits::VALUE)?;
        }
        Ok(())
    }

    /// An inode with this value, existing or new. It counts against the limits of the owners of `inode` in either case.
    fn value_with(&self, inode: &Arc<Inode>, value: &[u8], hash: u32) -> Result<InodeRef> {
        let owners = {
            let d = &inode.meta.read().desc;
            [d.uid, d.gid, d.projid]
        };
        self.fs.quotas.prepare(self.fs, owners)?;
        let _admitted = self.fs.quotas.promise_inode(owners)?;
        let blocks = value.len().div_ceil(self.fs.geo.block_size as usize) as u32;
        if self.fs.quotas.blocks_within(inode, blocks)? < blocks {
            return Err(Error::QuotaExceeded);
        }
        if let Some(found) = self.find_value(value, hash) {
            self.fs.shared_values.shared.inc();
            return Ok(found);
        }
        let made = self.fs.transact_whole(credits::NEW_INODE, |handle| self.new_value_inode(handle, inode, hash))?;
        self.write_value(&made, value)?;
        self.fs.shared_values.note(hash, made.ino);
        Ok(made)
    }

    /// An inode with this value, if the index has one. This compares the bytes.
    fn find_value(&self, value: &[u8], hash: u32) -> Option<InodeRef> {
        let candidates = self.fs.shared_values.candidates(hash);
        for ino in candidates {
            let fits = |found: &InodeRef| {
                // If the inode loses its last reference meanwhile, it stays in memory and may get another.
                found.of_value.load(Ordering::Acquire)
                    && found.meta.read().desc.value_hash() == hash
                    && self.fs.read_value(found, value.len()).is_ok_and(|bytes| bytes == value)
            };
            match self.fs.iget_own(ino) {
                Ok(found) if fits(&found) => return Some(found),
                _ => self.fs.shared_values.forget(hash, ino),
            }
        }
        None
    }

    /// Writes the content of a new value, in as many handles as needed. If that fails, dropping the inode frees it.
    fn write_value(&self, made: &InodeRef, value: &[u8]) -> Result<()> {
        let fs = self.fs;
        let bs = fs.geo.block_size as usize;
        let blocks = value.len().div_ceil(bs) as u32;
        made.set_size(value.len() as u64);
        let mut at = 0;
        while at < blocks {
            let (first, most) = (LogicalBlock(at), (blocks - at).min(BLOCKS_PER_HANDLE));
            let (chosen, _) = fs.choose_blocks(made, first, most, Want::Written, None, WritebackReason::Background)?;
            let (start, len) = (chosen.start, chosen.len);
            let mut chosen = Some(chosen);
            let mapped = fs.transact_whole(fs.allocate_credits(made, len) + len, |handle| {
                let mapped = fs.map_chosen(handle, made, first, &mut chosen, false)?;
                let written = (0..mapped).try_for_each(|i| {
                    let buffer = handle.create(BlockNr(start.0 + u64::from(i)), BufKind::Leaf)?;
                    let from = (at + i) as usize * bs;
                    let piece = &value[from..value.len().min(from + bs)];
                    handle.modify(&buffer, BufKind::Leaf, |block| block[..piece.len()].copy_from_slice(piece));
                    Ok(())
                });
                made.meta.write().desc.size = value.len() as u64;
                let written = written.and_then(|()| fs.write_inode_data(handle, made));
                fs.whole(handle, written).map(|()| mapped)
            });
            fs.cancel_chosen(&mut chosen);
            at += mapped?;
        }
        fs.release_preallocations(made);
        Ok(())
    }
}
