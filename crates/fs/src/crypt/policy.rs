//! Encrypting a directory (Linux: `FS_IOC_SET_ENCRYPTION_POLICY`, `fscrypt_ioctl_set_policy`, fs/crypto/policy.c).
//!
//! Only an empty directory can get a policy; inodes created in it later inherit the policy. A policy never changes, and
//! it cannot be removed.
//!
//! # Locking
//! `inode` exclusively.

use extant_base::sync::atomic::Ordering;
use extant_ondisk::InodeNr;
use extant_ondisk::encryption::{Context, KeyName, Policy};
use extant_ondisk::features::Incompat;
use extant_ondisk::inode::InodeFlags;

use super::{CONTEXT, CryptView, fresh_context};
use crate::dir_store::DirView;
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::operation::Operation;
use crate::ops::credits;
use crate::ops::flags::Change;
use crate::volume::Volume;
use crate::xattr;
use crate::xattr_store::Values;

impl Volume {
    /// The default policy of new encrypted directories, with the mount's first key (as in fscryptctl(1)). `None` if the
    /// mount has no key.
    pub fn default_policy(&self) -> Option<Policy> {
        self.options.keys.identifiers().next().map(Policy::new)
    }

    /// The names of the mount's first key in policies: the identifier of version 2, and the descriptor of version 1.
    pub fn key_names(&self) -> Option<[KeyName; 2]> {
        let keys = &self.options.keys;
        let (identifier, descriptor) = (keys.identifiers().next()?, keys.descriptors().next()?);
        Some([KeyName::Identifier(identifier), KeyName::Descriptor(descriptor)])
    }
}

impl CryptView<'_> {
    /// Makes an empty directory encrypted. The caller holds its lock exclusively.
    fn encrypt_empty(&self, context: Context) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        let _table = fs.inode_slot(inode.ino)?;
        let credits = credits::create(DirView::new(fs, inode).add_credits());
        fs.transact_whole(credits, |handle| {
            // Names stored in the inode are never encrypted.
            if fs.is_inline(inode) {
                fs.inline(inode).move_directory_out(handle)?;
            }
            let stored = context.encode();
            fs.xattrs(inode).edit(handle, &Values::default(), |edit| xattr::set_stored(edit, CONTEXT, &stored))?;
            {
                let mut m = inode.meta.write();
                m.desc.flags.insert(InodeFlags::ENCRYPT);
                m.desc.ctime = fs.now();
            }
            inode.fresh.store(false, Ordering::Release);
            self.set_context(context);
            let written = fs.write_inode(handle, inode);
            fs.whole(handle, written)
        })
    }
}

impl Filesystem {
    /// The policy of an encrypted inode; `None` if it is not encrypted.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for an encrypted inode without a sound context.
    pub fn encryption_policy(&self, inode: &InodeRef) -> Result<Option<Policy>> {
        let _shared = inode.rw.read();
        Ok(self.watch(self.encryption(inode).crypt())?.map(|crypt| crypt.context.policy))
    }

    /// Encrypts an empty directory: everything that is created in it from now on has this policy. A directory that
    /// already has the policy does not change.
    ///
    /// # Errors
    /// [`Error::NotDirectory`]; [`Error::NotEmpty`]; [`Error::Exists`] if it has another policy;
    /// [`Error::NotPermitted`] for the root, or because of the directory's flags; [`Error::NotSupported`] without the
    /// feature `encrypt`; [`crate::Unsupported::Content`] if the mount lacks the key, [`crate::Unsupported::Cipher`]
    /// for a policy that cannot be used.
    pub fn set_encryption_policy(&self, dir: &InodeRef, policy: Policy) -> Result<()> {
        let op = Operation::begin(self)?;
        dir.check_dir()?;
        if !self.sb.lock().incompat().contains(Incompat::ENCRYPT) {
            return Err(Error::NotSupported(
                "encryption without the feature 'encrypt' ('extant tune -O encrypt' adds it)",
            ));
        }
        op.retry_no_space(|| {
            let _exclusive = dir.rw.write();
            if let Some(crypt) = self.encryption(dir).crypt()? {
                return if crypt.context.policy == policy { Ok(()) } else { Err(Error::Exists) };
            }
            if dir.links() == 0 {
                return Err(Error::NotFound);
            }
            if dir.ino == InodeNr::ROOT {
                return Err(Error::NotPermitted);
            }
            dir.may_change(Change::Attributes)?;
            let is_folded = dir.meta.read().desc.flags.contains(InodeFlags::CASEFOLD);
            if is_folded {
                return Err(Error::NotSupported("encryption of a directory that ignores case"));
            }
            if !DirView::new(self, dir).is_empty()? {
                return Err(Error::NotEmpty);
            }
            let context = fresh_context(policy)?;
            // With an unusable key, nothing could be created in the directory.
            for is_contents in [false, true] {
                self.encryption(dir).with_key_for(context, is_contents).key(dir.ino)?;
            }
            self.encryption(dir).encrypt_empty(context)
        })?;
        self.honour_sync(&[dir])
    }
}
