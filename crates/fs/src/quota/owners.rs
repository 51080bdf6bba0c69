//! Owners' entries, which are added before they are needed and removed at the unmount. Callers read usage and set
//! limits here.
//!
//! Main functions: [`Quotas::prepare`], [`Quotas::drop_idle`]; [`Filesystem::quota_from`], [`Filesystem::set_quota`].
//!
//! What it does not do: count (`count.rs`).
//!
//! # Locking
//! As [`super`].

use extant_cache::BufKind;
use extant_es::EsState;
use extant_journal::Handle;
use extant_ondisk::quota::pack::Owner;
use extant_ondisk::quota::tree::{self, CHANGED_BLOCKS, Patch};
use extant_ondisk::quota::{BLOCK_BYTES, Limits, QuotaKind, Usage};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::{Content, Fault, File, QuotaInodes, QuotaLimits, Quotas, judge_times, locate};
use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::map::MapStore;
use crate::ops::credits;
use crate::reserve::Caller;

impl Quotas {
    /// Adds entries for owners that have none. The caller holds no handle, and no locks except inodes' locks.
    ///
    /// # Errors
    /// [`Error::NoSpace`] for a quota file that cannot grow; damage.
    pub(crate) fn prepare(&self, inodes: &impl QuotaInodes, owners: [u32; 3]) -> Result<()> {
        for file in self.files() {
            let id = owners[file.kind as usize];
            if !file.content.read().tree.places.contains_key(&id) {
                self.add_entry(inodes, file, id)?;
            }
        }
        Ok(())
    }

    /// Removes the entries of owners without usage and limits. No operation may be in progress.
    pub(crate) fn drop_idle(&self) -> Result<()> {
        for file in self.files() {
            let _growth = file.growth.lock();
            let idle = std::mem::take(&mut file.content.write().idle);
            for id in idle {
                if self.read(file, id)?.is_none_or(|owner| !tree::is_empty(&owner)) {
                    continue;
                }
                self.volume.transact(CHANGED_BLOCKS, |handle| {
                    let mut content = file.content.write();
                    let Content { tree, blocks, .. } = &mut *content;
                    let patches = tree.remove(id, |number| self.block(blocks, number));
                    let patches = patches.map_err(|fault: Fault| fault.in_file(file.ino))?.unwrap_or_default();
                    self.patch(handle, blocks, patches)
                })?;
            }
        }
        Ok(())
    }

    /// Adds the entry of an owner, for which the file may have to grow.
    fn add_entry(&self, inodes: &impl QuotaInodes, file: &File, id: u32) -> Result<()> {
        let _growth = file.growth.lock();
        // The quota file belongs to the file system, so its growth may use root's reserve for any caller.
        Caller::ROOT.run(|| {
            let per_block = u64::from(self.volume.geo.block_size) / BLOCK_BYTES as u64;
            loop {
                let content = file.content.read();
                let needed = u64::from(content.tree.blocks + content.tree.missing_blocks()).div_ceil(per_block);
                if content.blocks.len() as u64 >= needed {
                    break;
                }
                drop(content);
                self.append(inodes, file)?;
            }
            self.volume.transact(CHANGED_BLOCKS, |handle| {
                let mut content = file.content.write();
                let Content { tree, blocks, .. } = &mut *content;
                let patches = tree.insert(id, |number| self.block(blocks, number));
                let patches = patches.map_err(|fault: Fault| fault.in_file(file.ino))?.unwrap_or_default();
                self.patch(handle, blocks, patches)
            })
        })
    }

    /// Appends a block of zeros to the quota file. The caller holds the file's growth.
    fn append(&self, inodes: &impl QuotaInodes, file: &File) -> Result<()> {
        let (lblk, before) = {
            let content = file.content.read();
            (LogicalBlock(content.blocks.len() as u32), content.blocks.last().copied())
        };
        let block = inodes.append_zeros(file.ino, lblk, before)?;
        file.content.write().blocks.push(block);
        Ok(())
    }

    /// Writes these bytes into blocks of a quota file. A failure changes nothing.
    fn patch(&self, handle: &mut Handle, blocks: &[BlockNr], patches: Vec<Patch>) -> Result<()> {
        let find = |patch: &Patch| {
            let (block, offset) = locate(blocks, patch.block, self.volume.geo.block_bits)?;
            Ok((self.volume.cache.get(block)?, offset + patch.offset))
        };
        // Read all blocks before changing the first one.
        let places = patches.iter().map(find).collect::<Result<Vec<_>>>()?;
        for (patch, (buffer, at)) in patches.into_iter().zip(places) {
            handle.modify(&buffer, BufKind::Leaf, |bytes| {
                bytes[at..at + patch.bytes.len()].copy_from_slice(&patch.bytes);
            });
        }
        Ok(())
    }
}

impl QuotaInodes for Filesystem {
    fn content_of(&self, ino: InodeNr) -> Result<(u64, Vec<BlockNr>)> {
        let inode = self.iget_own(ino).map_err(|e| match e {
            Error::Stale(ino) => Error::corrupt(Damage::Quota, "its inode is not in use").of(ino),
            e => e,
        })?;
        if !inode.meta.read().desc.is_regular() {
            return Err(Error::corrupt(Damage::Quota, "not a regular file"));
        }
        let size = inode.size();
        let mut blocks: Vec<BlockNr> = Vec::new();
        let wanted = size.div_ceil(u64::from(self.geo.block_size));
        while (blocks.len() as u64) < wanted {
            let lblk = blocks.len() as u32;
            match self.status(&inode, LogicalBlock(lblk), (wanted - u64::from(lblk)).min(1 << 20) as u32)? {
                (len, EsState::Written(start)) if self.placement.may_be_owned(start, len.into()) => {
                    blocks.extend((0..u64::from(len)).map(|i| BlockNr(start.0 + i)));
                }
                _ => return Err(Error::corrupt(Damage::Quota, format!("no block {lblk} that could be its own"))),
            }
        }
        Ok((size, blocks))
    }

    fn append_zeros(&self, ino: InodeNr, lblk: LogicalBlock, before: Option<BlockNr>) -> Result<BlockNr> {
        let inode: InodeRef = self.iget_own(ino)?;
        let credits = inode.map.read().credits_for_insert(self.geo.block_size, 1) + credits::GROUP + 1 + credits::INODE;
        let view = self.map_view(&inode);
        self.transact_whole(credits, |handle| {
            let block = self.append_meta_block(handle, &view, &inode, lblk, before)?;
            {
                let _map = inode.map.write();
                inode.es.insert(lblk, 1, EsState::Written(block));
            }
            let done = view.init(handle, block, |_| ()).and_then(|()| {
                let size = u64::from(lblk.0 + 1) << self.geo.block_bits;
                inode.set_size(size);
                inode.meta.write().desc.size = size;
                self.write_inode_data(handle, &inode)
            });
            self.whole(handle, done)?;
            Ok(block)
        })
    }
}

impl Filesystem {
    /// The kinds of owners whose usage is counted.
    ///
    /// # Errors
    /// A quota file is damaged, which only a read-only mount tolerates.
    pub fn quota_kinds(&self) -> Result<Vec<QuotaKind>> {
        Ok(self.known_quotas()?.iter().map(|file| file.kind).collect())
    }

    /// The quota files, if the image has any. A read-only mount loads them here, when they are first needed.
    fn known_quotas(&self) -> Result<&[File]> {
        if !self.quotas.is_counting() && self.is_read_only() {
            self.quotas.load(self)?;
        }
        Ok(self.quotas.files())
    }

    /// The quota file of this kind.
    fn counted(&self, kind: QuotaKind) -> Result<&File> {
        let file = self.known_quotas()?.iter().find(|file| file.kind == kind);
        file.ok_or(Error::NotSupported("quotas of this kind, which the image does not have"))
    }

    /// The usage and limits of the next owner, by number, from `id` on (Linux: `Q_GETNEXTQUOTA`). Delayed data is
    /// included.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the image has no quotas of this kind; [`Error::NotFound`] after the last owner;
    /// [`Error::Corrupt`] for a damaged quota file.
    pub fn quota_from(&self, kind: QuotaKind, id: u32) -> Result<(Usage, Limits)> {
        let file = self.counted(kind)?;
        let mut from = id;
        loop {
            let next = file.content.read().tree.places.range(from..).next().map(|(id, _)| *id);
            let id = next.ok_or(Error::NotFound)?;
            let promise = self.quotas.promises.lock().get(&(kind, id)).copied().unwrap_or_default();
            match self.quotas.read(file, id)? {
                Some(owner) if !tree::is_empty(&owner) || promise.bytes > 0 => {
                    let usage = Usage { bytes: owner.usage.bytes + promise.bytes, ..owner.usage };
                    let until = promise.blocks_until(&owner, file.content.read().tree.grace[0]);
                    return Ok((usage, Limits { blocks_until: until, ..owner.limits }));
                }
                _ => from = id.checked_add(1).ok_or(Error::NotFound)?,
            }
        }
    }

    /// Sets the limits of an owner. If its usage already exceeds a soft limit, the grace time begins.
    ///
    /// # Errors
    /// [`Error::NotSupported`] as in [`Filesystem::quota_from`]; [`Error::NoSpace`]; [`Error::ReadOnly`].
    pub fn set_quota(&self, kind: QuotaKind, id: u32, new: QuotaLimits) -> Result<()> {
        let file = self.counted(kind)?;
        let _change = self.begin_change()?;
        if !file.content.read().tree.places.contains_key(&id) {
            self.quotas.add_entry(self, file, id)?;
        }
        self.transact(credits::INODE, |handle| {
            let set = |owner: &mut Owner, grace, now| {
                let QuotaLimits { blocks_soft, blocks_hard, inodes_soft, inodes_hard } = new;
                owner.limits = Limits { blocks_soft, blocks_hard, inodes_soft, inodes_hard, ..owner.limits };
                judge_times(owner, grace, now, 0);
            };
            self.quotas.change(handle, file, id, set).map(drop)
        })
    }

    /// The grace times of the soft limits of blocks and of inodes, in seconds.
    ///
    /// # Errors
    /// [`Error::NotSupported`] as in [`Filesystem::quota_from`].
    pub fn quota_grace(&self, kind: QuotaKind) -> Result<[u32; 2]> {
        Ok(self.counted(kind)?.content.read().tree.grace)
    }

    /// Sets [`Filesystem::quota_grace`]. It applies to limits that are exceeded from now on.
    ///
    /// # Errors
    /// As [`Filesystem::set_quota`].
    pub fn set_quota_grace(&self, kind: QuotaKind, grace: [u32; 2]) -> Result<()> {
        let file = self.counted(kind)?;
        let _change = self.begin_change()?;
        self.transact(1, |handle| {
            let mut content = file.content.write();
            let bytes = grace.map(u32::to_le_bytes).concat();
            let patch = Patch { block: 0, offset: tree::GRACE_AT, bytes };
            self.quotas.patch(handle, &content.blocks, vec![patch])?;
            content.tree.grace = grace;
            Ok(())
        })
    }
}
