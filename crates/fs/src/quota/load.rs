//! Loading the quota files at the mount.
//!
//! # Locking
//! As [`super`].

use std::collections::BTreeSet;

use extant_base::sync::{Mutex, RwLock};
use extant_es::EsState;
use extant_ondisk::features::RoCompat;
use extant_ondisk::quota::QuotaKind;
use extant_ondisk::quota::tree::Tree;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::{Content, FILE_CLASS, Fault, File, GROWTH_CLASS};
use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;

impl Filesystem {
    /// Reads the quota files of a mount for writing.
    ///
    /// # Errors
    /// A quota file is damaged, or the device fails.
    pub(crate) fn load_quotas(&self) -> Result<()> {
        let numbers = {
            let sb = self.sb.lock();
            if !sb.ro_compat().contains(RoCompat::QUOTA) {
                return match self.options.quota_limits.contains(&true) {
                    true => Err(Error::Invalid("limits of quotas, but the image lacks the feature 'quota'")),
                    false => Ok(()),
                };
            }
            let raw = sb.raw();
            [&raw.s_usr_quota_inum, &raw.s_grp_quota_inum, &raw.s_prj_quota_inum].map(|number| InodeNr(number.get()))
        };
        let mut files = Vec::new();
        for (kind, ino) in QuotaKind::ALL.into_iter().zip(numbers).filter(|(_, ino)| ino.0 != 0) {
            let file = self.load_quota_file(kind, ino);
            files.push(
                file.map_err(|e| e.of(ino).advised("'extant fsck' repairs it; to read the image, mount it read-only"))?,
            );
        }
        self.quotas.install(files);
        Ok(())
    }

    pub(super) fn load_quota_file(&self, kind: QuotaKind, ino: InodeNr) -> Result<File> {
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
        let tree = Tree::load(kind, size, |number| self.quotas.block(&blocks, number));
        let tree = tree.map_err(|fault: Fault| fault.in_file(ino))?;
        let content = Content { tree, blocks, idle: BTreeSet::new() };
        Ok(File { kind, ino, growth: Mutex::new(&GROWTH_CLASS, ()), content: RwLock::new(&FILE_CLASS, content) })
    }
}
