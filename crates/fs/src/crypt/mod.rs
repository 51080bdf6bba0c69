//! Encrypted files (fscrypt; Linux: fs/crypto/, fs/ext4/crypto.c). This module alone decides which data is encrypted,
//! how, and with which key.
//!
//! Main types: [`KeyRing`] (the master keys of a mount), [`Crypt`] (the encryption of one inode), [`FileKey`] (its
//! cipher, if the mount has its master key). Functions: [`CryptView::crypt`], [`CryptView::file_key`],
//! [`CryptView::new_context`], [`CryptView::check_policy`].
//!
//! Contents are encrypted on their way to the device and decrypted on their way back. Folios hold plaintext, so holes,
//! unwritten blocks and the end of a file work as in other files. A block is encrypted as a whole, with zeros after the
//! end of the file. The log contains only metadata, so it never contains a file's plaintext. Names are encrypted before
//! a directory is searched or changed, so its blocks, its index and the log contain ciphertext. Attributes, sizes and
//! times are not encrypted.
//!
//! | without the key | answer |
//! |---|---|
//! | listing, readlink | the ciphertext in letters ([`nokey`]) |
//! | lookup, unlink, rmdir | by such a name |
//! | create, link, rename | ENOKEY |
//! | read, write, truncate, fallocate | ENOKEY |
//! | mode, owner, times, attributes | as for other files |
//!
//! A wrong key counts as a missing one. So does a cipher that is not supported; the error then names it.
//!
//! What it does not do: authenticate (fscrypt does not), or make directories that are both encrypted and
//! case-insensitive.
//!
//! # Locking
//! The caller holds the inode's `inode` lock, or has loaded the key before.

mod cipher;
mod file;
mod keys;
pub(crate) mod nokey;
mod policy;

use std::sync::Arc;

use extant_block::{AlignedBuf, BioFlags, BioVec};
use extant_cache::DirtyRun;
use extant_ondisk::BlockNr;
use extant_ondisk::encryption::{Context, NONCE_LEN, Policy};
use extant_ondisk::inode::{FileType, InodeFlags};

use self::cipher::Way;
pub(crate) use self::file::{CONTEXT, Crypt, is_encrypted};
use self::file::{FileKey, may_be_encrypted, no_key};
pub use self::keys::{BadKey, KeyRing};
use self::keys::{NoKey, file_cipher};
use crate::error::{Damage, Error, Result, Unsupported};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::volume::Volume;
use crate::xattr;

/// The encryption of an inode, which is read when it is first needed.
#[derive(Clone, Copy)]
pub(crate) struct CryptView<'a> {
    fs: &'a Filesystem,
    inode: &'a Arc<Inode>,
}

impl Filesystem {
    /// The encryption of `inode`.
    pub(crate) fn encryption<'a>(&'a self, inode: &'a Arc<Inode>) -> CryptView<'a> {
        CryptView { fs: self, inode }
    }

    /// Whether an encrypted inode lacks its key: its content cannot be read, or its names are shown in encrypted form.
    pub fn lacks_key(&self, inode: &InodeRef) -> bool {
        let _shared = inode.rw.read();
        self.encryption(inode).file_key().is_err()
    }
}

impl<'a> CryptView<'a> {
    /// The encryption of the inode; `None` if it is not encrypted.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for an encrypted inode without a sound context.
    pub(crate) fn crypt(&self) -> Result<Option<&'a Crypt>> {
        if !is_encrypted(&self.inode.meta.read().desc) {
            return Ok(None);
        }
        if let Some(crypt) = self.inode.crypt.get() {
            return Ok(Some(crypt));
        }
        let damaged = |detail: String| Error::corrupt(Damage::Xattr, detail).of(self.inode.ino);
        let stored = xattr::get_stored(&self.fs.xattrs(self.inode), CONTEXT)?;
        let stored = stored.ok_or_else(|| damaged("it is encrypted, and has no encryption context".into()))?;
        let context = Context::decode(&stored)
            .map_err(|e| damaged(format!("its encryption context: {e}")))?
            .ok_or_else(|| {
                let detail = format!("its encryption context has the version {}", stored[0]);
                Error::Unsupported(Unsupported::Cipher { ino: self.inode.ino, detail })
            })?;
        // This takes ranked locks, which must not be taken inside the cell: a second thread would wait for the first
        // one outside the order of locks. It makes the same value instead, and the first one stays.
        let made = Box::new(self.with_key(context));
        Ok(Some(self.inode.crypt.get_or_init(|| made)))
    }

    /// The cipher of the inode; `None` if it is not encrypted.
    ///
    /// # Errors
    /// [`Unsupported::Content`] if the mount lacks its key, [`Unsupported::Cipher`], and the errors of
    /// [`CryptView::crypt`].
    pub(crate) fn file_key(&self) -> Result<Option<&'a FileKey>> {
        if self.inode.crypt.get().is_none() && self.fs.options.keys.is_empty() {
            // Without any key, the context does not matter. It may be damaged, so it is not read.
            return if self.inode.meta.flags().contains(InodeFlags::ENCRYPT) {
                Err(no_key(self.inode.ino))
            } else {
                Ok(None)
            };
        }
        self.crypt()?.map(|crypt| crypt.key(self.inode.ino)).transpose()
    }

    /// The cipher of an encrypted directory's names or of a symbolic link's target; `None` without the key. A damaged
    /// context counts as a missing key, so that the stored names remain accessible.
    pub(crate) fn name_key(&self) -> Result<Option<&'a FileKey>> {
        match self.file_key() {
            Err(Error::Unsupported(_) | Error::Corrupt { .. }) => Ok(None),
            key => key,
        }
    }

    /// The target of an encrypted symbolic link, from its stored form.
    pub(crate) fn open_target(&self, stored: &[u8]) -> Result<Vec<u8>> {
        let key = {
            // A listing may examine its entries while it holds the lock of its directory.
            let _shared = self.inode.rw.read_nested();
            self.name_key()?
        };
        match key {
            None => Ok(nokey::target(stored)),
            Some(key) => key.open_target(stored).ok_or_else(|| {
                let detail = format!("{} bytes that are not an encrypted target", stored.len());
                Error::corrupt(Damage::Symlink, detail).of(self.inode.ino)
            }),
        }
    }

    /// A run of the inode's dirty folios in the form that goes to the device: a copy in ciphertext if the inode is
    /// encrypted. The folios keep the plaintext.
    pub(crate) fn sealed_run(&self, run: DirtyRun) -> Result<DirtyRun> {
        let Some(key) = self.file_key()? else { return Ok(run) };
        let DirtyRun { start, blocks, vecs } = run;
        let mut at = start;
        let sealed = vecs.iter().map(|vec| {
            let mut buf = AlignedBuf::from_slice(vec.bytes());
            key.apply(Way::Encrypt, at, &mut buf);
            at += (vec.len >> self.fs.geo.block_bits) as u64;
            BioVec { buf: Arc::new(buf), offset: 0, len: vec.len }
        });
        Ok(DirtyRun { start, blocks, vecs: sealed.collect() })
    }

    /// Checks that names can be added to the directory: if it is encrypted, the mount must have its key.
    pub(crate) fn may_add_names(&self) -> Result<()> {
        self.file_key().map(drop)
    }

    /// Checks that the inode may have a name in the directory. In an encrypted directory, each inode that can be
    /// encrypted must have the directory's policy (Linux: `fscrypt_has_permitted_context`).
    ///
    /// # Errors
    /// [`Error::OtherPolicy`].
    pub(crate) fn check_policy(&self, inode: &Arc<Inode>) -> Result<()> {
        let Some(above) = self.crypt()? else { return Ok(()) };
        if !may_be_encrypted(inode.file_type()) {
            return Ok(());
        }
        match self.fs.encryption(inode).crypt()? {
            Some(own) if own.context.policy == above.context.policy => Ok(()),
            _ => Err(Error::OtherPolicy),
        }
    }

    /// The context of a new inode of this kind in the directory: the directory's policy, with a fresh nonce. `None` if
    /// the inode is not encrypted.
    ///
    /// # Errors
    /// As [`CryptView::file_key`]: without the directory's key, no names can be added to it.
    pub(crate) fn new_context(&self, kind: Option<FileType>) -> Result<Option<Context>> {
        if self.file_key()?.is_none() || !may_be_encrypted(kind) {
            return Ok(None);
        }
        self.crypt()?.map(|crypt| fresh_context(crypt.context.policy)).transpose()
    }

    /// Gives a new inode its context.
    pub(crate) fn set_context(&self, context: Context) {
        self.inode.crypt.get_or_init(|| Box::new(self.with_key(context)));
    }

    /// The encryption by this context, with its key if the mount has it.
    fn with_key(&self, context: Context) -> Crypt {
        self.with_key_for(context, self.inode.file_type() == Some(FileType::Regular))
    }

    /// As [`CryptView::with_key`], with the cipher of contents or else that of names, whatever kind the inode is.
    fn with_key_for(&self, context: Context, is_contents: bool) -> Crypt {
        let volume = self.fs.sb.lock().uuid();
        let (policy, block_bits) = (context.policy, self.fs.geo.block_bits);
        let unit_bits = match policy.unit_bits {
            0 => Some(block_bits),
            bits => Some(u32::from(bits)).filter(|bits| (9..=block_bits).contains(bits)),
        };
        let key = file_cipher(&self.fs.options.keys, &context, is_contents, &volume, self.inode.ino.0);
        let key = key.and_then(|(cipher, vary)| match unit_bits {
            Some(unit_bits) => Ok(FileKey { cipher, vary, block_bits, unit_bits, padding: policy.padding() }),
            None => Err(NoKey::Unusable(format!("its policy has units of 2^{} bytes", policy.unit_bits))),
        });
        Crypt { context, key }
    }
}

impl Volume {
    /// Reads and decrypts a part of some blocks of the device. It begins at byte `within` of `block`, whose logical
    /// number is `lblk`.
    pub(crate) fn read_sealed(
        &self,
        key: &FileKey,
        (lblk, block): (u32, BlockNr),
        within: u64,
        to: &mut [u8],
    ) -> Result<()> {
        let bits = self.geo.block_bits;
        let mask = (1 << bits) - 1;
        let at = block.0 << bits;
        if within == 0 && to.len() & mask == 0 {
            self.dev.read_at(at, to, BioFlags::empty())?;
            key.apply(Way::Decrypt, lblk.into(), to);
            return Ok(());
        }
        // Only whole blocks can be decrypted.
        let end = (within as usize + to.len() + mask) & !mask;
        let mut whole = AlignedBuf::zeroed(end);
        self.dev.read_at(at, &mut whole, BioFlags::empty())?;
        key.apply(Way::Decrypt, lblk.into(), &mut whole);
        to.copy_from_slice(&whole[within as usize..within as usize + to.len()]);
        Ok(())
    }
}

/// A context of this policy, with a nonce that no other file has. The nonce comes from the system's generator even if
/// the mount has a seed, because two files with the same nonce would have the same key.
fn fresh_context(policy: Policy) -> Result<Context> {
    let mut nonce = [0; NONCE_LEN];
    match getrandom::fill(&mut nonce) {
        Ok(()) => Ok(Context { policy, nonce }),
        Err(_) => Err(Error::NotSupported("encryption on a host without random numbers")),
    }
}
