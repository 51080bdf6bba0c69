//! The encryption of one inode: its context and its cipher.
//!
//! Main types: [`Crypt`], [`FileKey`].
//!
//! What it does not do: read contexts, find keys, or depend on the mount ([`super`]).
//!
//! # Locking
//! None.

use extant_ondisk::InodeNr;
use extant_ondisk::encryption::{self, Context, LINK_HEADER};
use extant_ondisk::inode::{FileType, InodeDesc, InodeFlags};
use extant_ondisk::xattr::{Name, index};

use super::cipher::{BLOCK, Cipher, Way};
use super::keys::{NoKey, Vary};
use crate::error::{Error, Result, Unsupported};

/// The attribute that holds the context.
pub(crate) const CONTEXT: Name<'static> = Name { index: index::ENCRYPTION, suffix: encryption::NAME };
/// The longest name, plain or encrypted.
const NAME_MAX: usize = 255;
/// Shorter names are padded to this: a block of the cipher (Linux: `FSCRYPT_FNAME_MIN_MSG_LEN`).
const NAME_MIN: usize = 16;

/// The encryption of one inode, from its context and the keys of the mount.
pub(crate) struct Crypt {
    pub context: Context,
    pub(super) key: std::result::Result<FileKey, NoKey>,
}

/// The cipher of one inode.
pub(crate) struct FileKey {
    pub(super) cipher: Cipher,
    pub(super) vary: Vary,
    pub(super) block_bits: u32,
    /// The size of a unit of contents, as a power of two.
    pub(super) unit_bits: u32,
    pub(super) padding: usize,
}

/// Whether the inode is encrypted: the names in a directory, the target of a symbolic link, the content of a file.
pub(crate) fn is_encrypted(desc: &InodeDesc) -> bool {
    desc.flags.contains(InodeFlags::ENCRYPT)
}

/// Whether inodes of this kind can be encrypted.
pub(crate) fn may_be_encrypted(kind: Option<FileType>) -> bool {
    matches!(kind, Some(FileType::Regular | FileType::Directory | FileType::Symlink))
}

/// The bytes of the ciphertext of a name or target of `len` bytes; `None` if it exceeds `most` (Linux:
/// `__fscrypt_fname_encrypted_size`).
fn sealed_len(len: usize, padding: usize, most: usize) -> Option<usize> {
    (len <= most).then(|| len.max(NAME_MIN).next_multiple_of(padding).min(most))
}

impl FileKey {
    fn vector(&self, index: u64) -> [u8; BLOCK] {
        let index = match self.vary {
            Vary::Nothing => index,
            Vary::Inode(ino) => index | u64::from(ino) << 32,
            Vary::HashedInode(hash) => u64::from(hash.wrapping_add(index as u32)),
        };
        u128::from(index).to_le_bytes()
    }

    /// Encrypts or decrypts whole blocks of content; `first` is the logical number of the first one.
    pub(super) fn apply(&self, way: Way, first: u64, blocks: &mut [u8]) {
        debug_assert!(blocks.len().is_multiple_of(1 << self.block_bits));
        let at = first << (self.block_bits - self.unit_bits);
        for (unit, data) in (at..).zip(blocks.chunks_mut(1 << self.unit_bits)) {
            self.cipher.apply(way, self.vector(unit), data);
        }
    }

    fn seal(&self, plain: &[u8], most: usize) -> Option<Vec<u8>> {
        let mut sealed = plain.to_vec();
        sealed.resize(sealed_len(plain.len(), self.padding, most)?, 0);
        self.cipher.apply(Way::Encrypt, self.vector(0), &mut sealed);
        Some(sealed)
    }

    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        if sealed.len() < NAME_MIN {
            return None;
        }
        let mut plain = sealed.to_vec();
        self.cipher.apply(Way::Decrypt, self.vector(0), &mut plain);
        let end = plain.iter().position(|byte| *byte == 0).unwrap_or(plain.len());
        plain.truncate(end);
        Some(plain)
    }

    /// The stored form of a name; `None` if it is too long.
    pub fn seal_name(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.seal(name, NAME_MAX)
    }

    /// Decrypts a stored name; `None` if it is not the ciphertext of a name.
    pub fn open_name(&self, stored: &[u8]) -> Option<Vec<u8>> {
        self.open(stored).filter(|name| extant_ondisk::dirent::name_is_legal(name) && *name != b"." && *name != b"..")
    }

    /// The stored form of a symbolic link's target; `None` if it does not fit a block of `block_size` bytes (Linux:
    /// `fscrypt_prepare_symlink`).
    pub fn seal_target(&self, target: &[u8], block_size: u32) -> Option<Vec<u8>> {
        // The kernel ends the stored form with a NUL, which the size does not count.
        let sealed = self.seal(target, block_size as usize - LINK_HEADER - 1)?;
        Some([&(sealed.len() as u16).to_le_bytes()[..], &sealed].concat())
    }

    /// Decrypts a stored target; `None` if it is not the ciphertext of a target.
    pub fn open_target(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let (len, sealed) = stored.split_first_chunk::<LINK_HEADER>()?;
        let sealed = sealed.get(..usize::from(u16::from_le_bytes(*len)))?;
        self.open(sealed).filter(|target| !target.is_empty())
    }
}

impl Crypt {
    /// The cipher of the inode, or the error for an operation that needs it.
    pub fn key(&self, ino: InodeNr) -> Result<&FileKey> {
        self.key.as_ref().map_err(|why| match why {
            NoKey::Missing => no_key(ino),
            NoKey::Unusable(detail) => Error::Unsupported(Unsupported::Cipher { ino, detail: detail.clone() }),
        })
    }
}

/// The error of an operation that needs the missing key.
pub(super) fn no_key(ino: InodeNr) -> Error {
    Error::Unsupported(Unsupported::Content { ino })
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_ondisk::encryption::Mode;

    /// The kernel, with which other tests compare, may lack encryption.
    #[test]
    fn each_unit_of_contents_is_encrypted_under_its_own_number() {
        let cipher = || Cipher::new(Mode::Aes256Xts, &std::array::from_fn::<u8, 64, _>(|i| i as u8)).expect("a key");
        for (block_bits, unit_bits, vary, high) in
            [(12, 12, Vary::Nothing, 0), (12, 9, Vary::Nothing, 0), (10, 10, Vary::Inode(77), 77u128 << 32)]
        {
            let key = FileKey { cipher: cipher(), vary, block_bits, unit_bits, padding: 32 };
            let plain: Vec<u8> = (0..3 << block_bits).map(|i| (i / 5) as u8).collect();
            let mut sealed = plain.clone();
            key.apply(Way::Encrypt, 6, &mut sealed);
            let first = 6u128 << (block_bits - unit_bits);
            for (number, unit) in (first..).zip(sealed.chunks_mut(1 << unit_bits)) {
                cipher().apply(Way::Decrypt, (high | number).to_le_bytes(), unit);
            }
            assert!(sealed == plain, "{block_bits} {unit_bits}");
        }
    }
}
