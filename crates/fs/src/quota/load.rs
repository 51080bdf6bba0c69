//! Loading the quota files at the mount.
//!
//! # Locking
//! As [`super`].

use std::collections::BTreeSet;

use extant_base::sync::{Mutex, RwLock};
use extant_ondisk::InodeNr;
use extant_ondisk::features::RoCompat;
use extant_ondisk::quota::QuotaKind;
use extant_ondisk::quota::tree::Tree;

use super::{Content, FILE_CLASS, Fault, File, GROWTH_CLASS, QuotaInodes, Quotas};
use crate::error::{Error, Result};

impl Quotas {
    /// Reads the quota files of a mount for writing.
    ///
    /// # Errors
    /// A quota file is damaged, or the device fails.
    pub(crate) fn load(&self, inodes: &impl QuotaInodes) -> Result<()> {
        let numbers = {
            let sb = self.volume.sb.lock();
            if !sb.ro_compat().contains(RoCompat::QUOTA) {
                return match self.volume.options.quota_limits.contains(&true) {
                    true => Err(Error::Invalid("limits of quotas, but the image lacks the feature 'quota'")),
                    false => Ok(()),
                };
            }
            let raw = sb.raw();
            [&raw.s_usr_quota_inum, &raw.s_grp_quota_inum, &raw.s_prj_quota_inum].map(|number| InodeNr(number.get()))
        };
        let mut files = Vec::new();
        for (kind, ino) in QuotaKind::ALL.into_iter().zip(numbers).filter(|(_, ino)| ino.0 != 0) {
            let file = self.load_file(inodes, kind, ino);
            files.push(
                file.map_err(|e| e.of(ino).advised("'extant fsck' repairs it; to read the image, mount it read-only"))?,
            );
        }
        self.install(files);
        Ok(())
    }

    /// Reads one quota file.
    fn load_file(&self, inodes: &impl QuotaInodes, kind: QuotaKind, ino: InodeNr) -> Result<File> {
        let (size, blocks) = inodes.content_of(ino)?;
        let tree = Tree::load(kind, size, |number| self.block(&blocks, number));
        let tree = tree.map_err(|fault: Fault| fault.in_file(ino))?;
        let content = Content { tree, blocks, idle: BTreeSet::new() };
        Ok(File { kind, ino, growth: Mutex::new(&GROWTH_CLASS, ()), content: RwLock::new(&FILE_CLASS, content) })
    }
}
