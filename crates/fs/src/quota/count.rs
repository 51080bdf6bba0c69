//! Accounting: the charges of inodes, reservations, and the space that limits leave.
//!
//! Main functions: [`Quotas::recharge`] and [`Quotas::charge`] (an inode goes into its table),
//! [`Quotas::promise_blocks`] and [`Quotas::settle_promises`] (delayed data), [`Quotas::promise_inode`] (a new inode),
//! [`Quotas::blocks_within`].
//!
//! What it does not do: load the quota files (`load.rs`), or add entries (`owners.rs`).
//!
//! # Locking
//! As [`super`].

use std::sync::Arc;

use extant_base::hash::HashMap;
use extant_cache::{BufKind, Buffer};
use extant_journal::Handle;
use extant_ondisk::quota::pack::Owner;
use extant_ondisk::quota::tree::{self, ENTRY_BYTES, Place};
use extant_ondisk::quota::{BLOCK_BYTES, QuotaKind, Usage};
use extant_ondisk::{BlockNr, InodeNr};

use super::{Charge, Content, Fault, File, NewInode, Promise, Quotas, bytes, judge_times, left, locate};
use crate::error::{Damage, Error, Result};
use crate::inode::{Inode, Meta};
use crate::reserve::Caller;

impl Quotas {
    /// The charge before and after the inode's fields went into its table. The promises of its delayed data follow its
    /// owners.
    pub(crate) fn recharge(&self, inode: &Inode, meta: &mut Meta) -> Option<(Charge, Charge)> {
        if !self.is_counting() || self.volume.own_inodes.contains(inode.ino) {
            return None;
        }
        let before = meta.charge;
        let after = if meta.freed { Charge::default() } else { Charge::of(&meta.desc, meta.values) };
        meta.charge = after;
        let delayed = inode.promised_blocks() << self.volume.geo.block_bits;
        if meta.promised > 0 || delayed > 0 {
            let promise = Promise::of_bytes;
            self.move_promise((before.owners, promise(meta.promised)), (after.owners, promise(delayed)));
            meta.promised = delayed;
        }
        Some((before, after))
    }

    /// Charges the difference between an inode's former and new state, which has just been written into its table. The
    /// caller holds no lock of rank 73 or above.
    pub(crate) fn charge(&self, handle: &mut Handle, ino: InodeNr, before: Charge, after: Charge) -> Result<()> {
        if before == after {
            return Ok(());
        }
        for file in self.files() {
            let (from, to) = (before.owners[file.kind as usize], after.owners[file.kind as usize]);
            let add = |usage: &mut Usage, charge: Charge| {
                usage.bytes = usage.bytes.saturating_add(charge.bytes);
                usage.inodes = usage.inodes.saturating_add(charge.inodes);
            };
            // Usage does not become negative if the recorded value was too small (Linux: `dquot_decr_space`).
            let subtract = |usage: &mut Usage, charge: Charge| {
                usage.bytes = usage.bytes.saturating_sub(charge.bytes);
                usage.inodes = usage.inodes.saturating_sub(charge.inodes);
            };
            let since = self.since(file.kind, to);
            let mut known = true;
            if from == to {
                known &= self.change(handle, file, to, |owner, grace, now| {
                    add(&mut owner.usage, after);
                    subtract(&mut owner.usage, before);
                    judge_times(owner, grace, now, since);
                })?;
            } else {
                if before.inodes > 0 {
                    known &= self.change(handle, file, from, |owner, grace, now| {
                        subtract(&mut owner.usage, before);
                        judge_times(owner, grace, now, 0);
                    })?;
                }
                if after.inodes > 0 {
                    known &= self.change(handle, file, to, |owner, grace, now| {
                        add(&mut owner.usage, after);
                        judge_times(owner, grace, now, since);
                    })?;
                }
            }
            if since > 0 {
                self.settle_since(file, to)?;
            }
            if !known {
                // The owner had no entry when the image was mounted. The mount continues, but the usage is wrong.
                let detail = format!("an owner of {ino} has no entry");
                self.volume.placement.groups.keep_damage(Error::corrupt(Damage::Quota, detail).of(file.ino));
            }
        }
        Ok(())
    }

    /// Adjusts the reservations of an inode to its delayed data. Called after each change of the delayed data.
    pub(crate) fn settle_promises(&self, inode: &Inode) {
        if !self.is_counting() {
            return;
        }
        let mut meta = inode.meta.write();
        let delayed = inode.promised_blocks() << self.volume.geo.block_bits;
        if meta.promised != delayed {
            let (owners, promise) = (meta.charge.owners, Promise::of_bytes);
            self.move_promise((owners, promise(meta.promised)), (owners, promise(delayed)));
            meta.promised = delayed;
            if delayed == 0 {
                self.forget_idle(owners);
            }
        }
    }

    /// Reserves up to `blocks` blocks of quota for delayed data of the inode, as many as its owners' limits leave.
    /// [`Quotas::settle_promises`] cancels those that do not become delayed.
    pub(crate) fn promise_blocks(&self, inode: &Inode, blocks: u32) -> Result<u32> {
        if !self.is_counting() {
            return Ok(blocks);
        }
        let mut meta = inode.meta.write();
        let owners = meta.charge.owners;
        let mut promises = self.promises.lock();
        let (space, _) = self.owners_left(owners, &promises)?;
        let got = u64::from(blocks).min(space >> self.volume.geo.block_bits);
        let taken = got << self.volume.geo.block_bits;
        for file in self.files() {
            let id = owners[file.kind as usize];
            let promise = promises.entry((file.kind, id)).or_default();
            let before = *promise;
            promise.bytes += taken;
            // The time of grace begins with the write that exceeds the limit, as in Linux (`dquot_add_space`).
            if self.volume.options.quota_limits[file.kind as usize]
                && let Some(owner) = self.read(file, id)?
                && owner.limits.blocks_until == 0
                && promise.exceeds(&owner)
                && (promise.since == 0 || !before.exceeds(&owner))
            {
                promise.since = self.volume.now().seconds.max(0) as u64;
            }
        }
        meta.promised += taken;
        Ok(got as u32)
    }

    /// How many of `blocks` the owners of an inode may have now; reserves nothing.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`] if none.
    pub(crate) fn blocks_within(&self, inode: &Inode, blocks: u32) -> Result<u32> {
        if !self.is_counting() {
            return Ok(blocks);
        }
        // A new inode has not been charged yet.
        let owners = Charge::of(&inode.meta.read().desc, 0).owners;
        let (space, _) = self.owners_left(owners, &self.promises.lock())?;
        match u64::from(blocks).min(space >> self.volume.geo.block_bits) {
            0 if blocks > 0 => Err(Error::QuotaExceeded),
            got => Ok(got as u32),
        }
    }

    /// Counts a new inode against its owners' limits.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`].
    pub(crate) fn promise_inode(&self, owners: [u32; 3]) -> Result<NewInode<'_>> {
        let mut promises = self.promises.lock();
        if self.owners_left(owners, &promises)?.1 == 0 {
            return Err(Error::QuotaExceeded);
        }
        for file in self.files() {
            promises.entry((file.kind, owners[file.kind as usize])).or_default().inodes += 1;
        }
        Ok(NewInode { quotas: self, owners })
    }

    /// Checks that the new owners of an inode may have it with all of its blocks.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`].
    pub(crate) fn may_pass_on(&self, inode: &Inode, owners: [u32; 3]) -> Result<()> {
        if !self.is_counting() {
            return Ok(());
        }
        let (charge, promised) = {
            let meta = inode.meta.read();
            (meta.charge, meta.promised)
        };
        let promises = self.promises.lock();
        for file in self.files().iter().filter(|file| self.limits_hold(file.kind)) {
            let id = owners[file.kind as usize];
            if id == charge.owners[file.kind as usize] {
                continue;
            }
            let promise = promises.get(&(file.kind, id)).copied().unwrap_or_default();
            let (space, inodes) = self.left_to(file, id, promise)?;
            if space < charge.bytes + promised || inodes == 0 {
                return Err(Error::QuotaExceeded);
            }
        }
        Ok(())
    }

    /// A block of a quota file, of the format's own size.
    pub(super) fn block(&self, blocks: &[BlockNr], number: u32) -> std::result::Result<[u8; BLOCK_BYTES], Fault> {
        let (block, offset) = locate(blocks, number, self.volume.geo.block_bits).map_err(Fault::Other)?;
        let buffer = self.volume.cache.get(block).map_err(|e| Fault::Other(e.into()))?;
        let mut copy = [0; BLOCK_BYTES];
        buffer.read(|bytes| copy.copy_from_slice(&bytes[offset..offset + BLOCK_BYTES]));
        Ok(copy)
    }

    /// The buffer with an owner's entry, and the entry's offset in it.
    fn entry(&self, content: &Content, place: Place) -> Result<(Arc<Buffer>, usize)> {
        let (block, offset) = locate(&content.blocks, place.block, self.volume.geo.block_bits)?;
        Ok((self.volume.cache.get(block)?, offset + usize::from(place.offset)))
    }

    /// An owner's entry, if there is one.
    pub(super) fn read(&self, file: &File, id: u32) -> Result<Option<Owner>> {
        let content = file.content.read();
        let Some(place) = content.tree.places.get(&id).copied() else { return Ok(None) };
        let (buffer, at) = self.entry(&content, place)?;
        let mut entry = [0; ENTRY_BYTES];
        buffer.read(|bytes| entry.copy_from_slice(&bytes[at..at + ENTRY_BYTES]));
        Ok(Some(tree::read_owner(&entry)))
    }

    /// Changes an owner's entry under `handle`. Returns false if the owner has none.
    pub(super) fn change(
        &self,
        handle: &mut Handle,
        file: &File,
        id: u32,
        change: impl FnOnce(&mut Owner, [u32; 2], u64),
    ) -> Result<bool> {
        let now = self.volume.now().seconds.max(0) as u64;
        let (empty, was_idle) = {
            let content = file.content.read();
            let Some(place) = content.tree.places.get(&id).copied() else { return Ok(false) };
            let (buffer, at) = self.entry(&content, place)?;
            let mut entry = [0; ENTRY_BYTES];
            handle.set_opaque();
            let empty = handle.modify(&buffer, BufKind::Leaf, |bytes| {
                let stored = &mut bytes[at..at + ENTRY_BYTES];
                entry.copy_from_slice(stored);
                let mut owner = tree::read_owner(&entry);
                change(&mut owner, content.tree.grace, now);
                owner.usage.id = id;
                tree::write_owner(&owner, &mut entry);
                stored.copy_from_slice(&entry);
                tree::is_empty(&owner)
            });
            (empty, content.idle.contains(&id))
        };
        if empty && !was_idle {
            file.content.write().idle.insert(id);
        }
        Ok(true)
    }

    /// Forgets when delayed data exceeded the soft limit of an owner, once that is stored or not true any more.
    fn settle_since(&self, file: &File, id: u32) -> Result<()> {
        let Some(owner) = self.read(file, id)? else { return Ok(()) };
        let promise = self.promises.lock().get(&(file.kind, id)).copied().unwrap_or_default();
        if owner.limits.blocks_until > 0 || !promise.exceeds(&owner) {
            self.forget_since(file.kind, id);
        }
        Ok(())
    }

    /// Whether the limits of this kind apply to the thread's caller.
    fn limits_hold(&self, kind: QuotaKind) -> bool {
        self.volume.options.quota_limits[kind as usize] && Caller::current().uid != 0
    }

    /// The bytes and inodes that the limits leave to an owner.
    fn left_to(&self, file: &File, id: u32, promise: Promise) -> Result<(u64, u64)> {
        let Some(owner) = self.read(file, id)? else { return Ok((u64::MAX, u64::MAX)) };
        let until = promise.blocks_until(&owner, file.content.read().tree.grace[0]);
        let Owner { usage, limits } = owner;
        let now = self.volume.now().seconds.max(0) as u64;
        let (hard, soft) = (bytes(limits.blocks_hard), bytes(limits.blocks_soft));
        let space = left(hard, soft, until, usage.bytes.saturating_add(promise.bytes), now);
        let used = usage.inodes.saturating_add(promise.inodes);
        Ok((space, left(limits.inodes_hard, limits.inodes_soft, limits.inodes_until, used, now)))
    }

    /// The bytes and inodes that the limits leave to all of an inode's owners together.
    fn owners_left(&self, owners: [u32; 3], promises: &HashMap<(QuotaKind, u32), Promise>) -> Result<(u64, u64)> {
        let (mut space, mut inodes) = (u64::MAX, u64::MAX);
        for file in self.files().iter().filter(|file| self.limits_hold(file.kind)) {
            let id = owners[file.kind as usize];
            let promise = promises.get(&(file.kind, id)).copied().unwrap_or_default();
            let left = self.left_to(file, id, promise)?;
            (space, inodes) = (space.min(left.0), inodes.min(left.1));
        }
        Ok((space, inodes))
    }
}
