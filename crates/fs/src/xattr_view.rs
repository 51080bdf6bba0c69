//! The attributes of an inode, for reading.
//!
//! Main type: [`XattrView`], the source of the attribute layer (`xattr/`).
//!
//! What it does not do: change attributes (`xattr_store.rs`), or read values in inodes of their own (`values.rs`).
//!
//! # Locking
//! The caller holds the inode's `inode` lock. This takes inode meta (60) and buffers (80).

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_ondisk::xattr::{ExternalValue, Name};
use extant_ondisk::{BlockNr, InodeNr};

use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::xattr::{self, SharedBlocks, XattrError, XattrSource};

/// The attributes of an inode.
#[derive(Clone, Copy)]
pub(crate) struct XattrView<'a> {
    pub fs: &'a Filesystem,
    pub inode: &'a Arc<Inode>,
}

impl Filesystem {
    /// The attributes of `inode`.
    pub(crate) fn xattrs<'a>(&'a self, inode: &'a Arc<Inode>) -> XattrView<'a> {
        XattrView { fs: self, inode }
    }
}

/// The error for an attribute block that no file can own.
pub(crate) fn not_theirs(inode: &Inode, nr: BlockNr) -> Error {
    Error::corrupt(Damage::Xattr, "their block cannot be a file's").of(inode.ino).at(nr)
}

impl XattrSource for XattrView<'_> {
    type Error = Error;

    fn ino(&self) -> InodeNr {
        self.inode.ino
    }

    fn mode(&self) -> u16 {
        self.inode.mode()
    }

    fn inode_area(&self) -> Result<Vec<u8>> {
        let area = self.inode.meta.read().desc.xattr_area(&self.fs.geo);
        match area {
            Some(range) => self.fs.inode_bytes(self.inode.ino, |b| b[range].to_vec()),
            None => Ok(Vec::new()),
        }
    }

    fn block_nr(&self) -> Option<BlockNr> {
        let block = self.inode.meta.read().desc.file_acl;
        (block.0 != 0).then_some(block)
    }

    fn read_block(&self, nr: BlockNr) -> Result<Vec<u8>> {
        if !self.fs.placement.may_be_owned(nr, 1) {
            return Err(not_theirs(self.inode, nr));
        }
        Ok(self.fs.cache.get(nr)?.read(<[u8]>::to_vec))
    }

    fn block_size(&self) -> usize {
        self.fs.geo.block_size as usize
    }

    fn checksum_seed(&self) -> Option<u32> {
        self.fs.geo.metadata_csum.then(|| self.fs.geo.seed.raw())
    }

    fn shared(&self) -> &Arc<SharedBlocks> {
        &self.fs.shared_xattr
    }

    fn pass(&self, e: XattrError<Error>) -> std::result::Result<(), XattrError<Error>> {
        if !self.fs.rescues() {
            return Err(e);
        }
        match Error::from(e) {
            e if e.is_corruption() || matches!(e, Error::Device(_)) => {
                self.fs.doubt(self.inode, e.of(self.inode.ino));
                Ok(())
            }
            e => Err(XattrError::Store(e)),
        }
    }

    fn may_go_outside(&self) -> bool {
        self.fs.geo.ea_inode
    }

    fn value(&self, name: Name<'_>, there: ExternalValue) -> Result<Vec<u8>> {
        self.stored_value(name, there)
    }
}

impl XattrView<'_> {
    /// The number of values that the attributes of a newly read inode refer to, for the quotas of its owners. It is 0
    /// if quotas do not count the inode, or if the attributes are damaged.
    pub(crate) fn count_values(&self) -> Result<u32> {
        let counts = self.fs.geo.ea_inode
            && !self.inode.of_value.load(Ordering::Acquire)
            && self.fs.counts_owners(self.inode.ino);
        if !counts {
            return Ok(0);
        }
        match xattr::outside(self).map_err(Error::from) {
            Ok(values) => Ok(values.len() as u32),
            Err(e) if e.is_corruption() => Ok(0),
            Err(e) => Err(e),
        }
    }
}
