//! Master keys, and the keys of files that are derived from them (Linux: fs/crypto/keyring.c, keysetup.c,
//! keysetup_v1.c, hkdf.c).
//!
//! Main types: [`KeyRing`] (the master keys of a mount), [`BadKey`]. [`file_cipher`] makes the cipher of one file.
//!
//! A policy of version 2 names its key by an identifier that is derived from the key, so a wrong key is never used. A
//! policy of version 1 names its key by a descriptor of the user's choice, so a wrong key goes unnoticed.
//!
//! Master keys are in locked memory and are wiped with the last mount that uses them ([`Secret`]). Derived keys are
//! wiped after use and when their cipher is dropped. No key is ever printed.
//!
//! # Locking
//! None.

use std::fmt;
use std::sync::Arc;

use aes::cipher::generic_array::GenericArray;
use aes::cipher::{BlockEncrypt, KeyInit};
use extant_base::secret::Secret;
use extant_ondisk::encryption::{
    Context, FLAG_DIRECT_KEY, FLAG_IV_INO_LBLK_32, FLAG_IV_INO_LBLK_64, FLAGS_PAD, KeyName, Mode,
};
use hkdf::Hkdf;
use sha2::{Digest, Sha512};
use zeroize::{Zeroize, Zeroizing};

use super::cipher::Cipher;

/// The minimum and maximum length of a master key, in bytes (Linux: `FSCRYPT_MIN_KEY_SIZE`,
/// `FSCRYPT_MAX_RAW_KEY_SIZE`).
pub(crate) const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=64;

/// The purposes of derived keys (Linux: `HKDF_CONTEXT_*`).
mod purpose {
    pub const IDENTIFIER: u8 = 1;
    pub const FILE: u8 = 2;
    pub const IV_INO_LBLK_64: u8 = 4;
    pub const IV_INO_LBLK_32: u8 = 6;
    pub const INODE_HASH: u8 = 7;
}

/// Why a master key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// Too short or too long.
    #[error("a key of {found} bytes; a raw key has 16 to 64, and no line end")]
    Length {
        /// The key's length, in bytes.
        found: usize,
    },
}

/// A master key.
struct MasterKey {
    raw: Secret,
    descriptor: [u8; 8],
    identifier: [u8; 16],
}

/// The master keys of a mount. Clones share them; the last one wipes them.
#[derive(Clone, Default)]
pub struct KeyRing(Vec<Arc<MasterKey>>);

impl KeyRing {
    /// Adds a raw key. Policies of version 1 name it by `descriptor`. Without one, the descriptor is a hash of the key.
    ///
    /// # Errors
    /// [`BadKey::Length`].
    pub fn add(&mut self, raw: Secret, descriptor: Option<[u8; 8]>) -> Result<(), BadKey> {
        if !KEY_BYTES.contains(&raw.len()) {
            return Err(BadKey::Length { found: raw.len() });
        }
        let descriptor = descriptor.unwrap_or_else(|| {
            let twice = Sha512::digest(Sha512::digest(raw.expose()));
            *twice.first_chunk().expect("64 bytes")
        });
        let mut identifier = [0; 16];
        derive(raw.expose(), purpose::IDENTIFIER, &[], &mut identifier);
        self.0.push(Arc::new(MasterKey { raw, descriptor, identifier }));
        Ok(())
    }

    /// Adds the keys of another ring.
    pub fn join(&mut self, other: &KeyRing) {
        self.0.extend(other.0.iter().cloned());
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The identifiers, by which policies of version 2 name the keys.
    pub fn identifiers(&self) -> impl Iterator<Item = [u8; 16]> + '_ {
        self.0.iter().map(|key| key.identifier)
    }

    /// The descriptors, by which policies of version 1 name the keys.
    pub fn descriptors(&self) -> impl Iterator<Item = [u8; 8]> + '_ {
        self.0.iter().map(|key| key.descriptor)
    }

    fn find(&self, name: KeyName) -> Option<&MasterKey> {
        self.0.iter().map(|key| &**key).find(|key| match name {
            KeyName::Descriptor(descriptor) => key.descriptor == descriptor,
            KeyName::Identifier(identifier) => key.identifier == identifier,
        })
    }
}

/// Shows only the names of the keys, which the images that use them show as well.
impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|key| {
            let name = key.identifier.iter().chain(&key.descriptor);
            name.map(|byte| format!("{byte:02x}")).collect::<String>()
        });
        f.write_str("KeyRing")?;
        f.debug_list().entries(names).finish()
    }
}

/// HKDF-SHA512 without a salt, as fscrypt uses it.
fn derive(master: &[u8], purpose: u8, info: &[&[u8]], to: &mut [u8]) {
    let mut all: Vec<&[u8]> = vec![b"fscrypt\0", std::slice::from_ref(&purpose)];
    all.extend(info);
    Hkdf::<Sha512>::new(None, master).expand_multi_info(&all, to).expect("no more than 255 blocks of SHA-512");
}

/// The part of a file's initialization vectors that does not come from the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vary {
    /// Nothing: the file has a key of its own.
    Nothing,
    /// The inode number, in the upper half of the position.
    Inode(u32),
    /// A hash of the inode number, added to the lower half.
    HashedInode(u32),
}

/// Why a file of an encrypted directory is handled as if its key were missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// The mount has no key of this name.
    Missing,
    /// The key cannot be used, for this reason.
    Unusable(String),
}

/// The cipher of a file, for its contents or for names. `volume` is the UUID of the file system, `ino` the inode.
///
/// # Errors
/// [`NoKey`], if the mount lacks the key, or the policy needs something that is not supported.
pub(super) fn file_cipher(
    keys: &KeyRing,
    context: &Context,
    is_contents: bool,
    volume: &[u8; 16],
    ino: u32,
) -> Result<(Cipher, Vary), NoKey> {
    let policy = &context.policy;
    let master = keys.find(policy.key).ok_or(NoKey::Missing)?;
    let pair = (Mode::from_disk(policy.contents), Mode::from_disk(policy.names));
    let (Some(contents), Some(names)) = pair else {
        let name = |number, mode: Option<Mode>| mode.is_none().then(|| Mode::name_of(number));
        let lacking = name(policy.contents, pair.0).or(name(policy.names, pair.1)).unwrap_or_default();
        return Err(NoKey::Unusable(format!("its policy asks for {lacking}, which is not supported")));
    };
    let is_pair =
        matches!((contents, names), (Mode::Aes256Xts, Mode::Aes256Cts) | (Mode::Aes128CbcEssiv, Mode::Aes128Cts));
    let flags = policy.flags & !FLAGS_PAD;
    let (is_v1, by_inode) =
        (matches!(policy.key, KeyName::Descriptor(_)), matches!(flags, FLAG_IV_INO_LBLK_64 | FLAG_IV_INO_LBLK_32));
    // Linux: `fscrypt_supported_v1_policy`, `fscrypt_supported_v2_policy`. Direct keys need a cipher with a longer
    // initialization vector.
    if !is_pair || (flags != 0 && (is_v1 || !by_inode || contents != Mode::Aes256Xts)) {
        let direct = if flags == FLAG_DIRECT_KEY { " (direct keys)" } else { "" };
        let detail = format!(
            "its policy has the ciphers {} and {} with the flags {:#x}{direct}, which is not supported",
            Mode::name_of(policy.contents),
            Mode::name_of(policy.names),
            policy.flags
        );
        return Err(NoKey::Unusable(detail));
    }
    let mode = if is_contents { contents } else { names };
    let raw = master.raw.expose();
    let needed = if is_v1 { mode.key_len() } else { contents.strength() };
    if raw.len() < needed {
        let name = Mode::name_of(mode.to_disk());
        let detail = format!("its key has {} bytes, and {name} needs {needed}", raw.len());
        return Err(NoKey::Unusable(detail));
    }
    let mut key = Zeroizing::new([0; 64]);
    let key = &mut key[..mode.key_len()];
    let vary = if is_v1 {
        key.copy_from_slice(&raw[..mode.key_len()]);
        let by_nonce = aes::Aes128::new(&GenericArray::from(context.nonce));
        for block in key.chunks_mut(16) {
            by_nonce.encrypt_block(GenericArray::from_mut_slice(block));
        }
        Vary::Nothing
    } else if flags == FLAG_IV_INO_LBLK_64 {
        derive(raw, purpose::IV_INO_LBLK_64, &[&[mode.to_disk()], volume], key);
        Vary::Inode(ino)
    } else if flags == FLAG_IV_INO_LBLK_32 {
        derive(raw, purpose::IV_INO_LBLK_32, &[&[mode.to_disk()], volume], key);
        let mut hash_key = Zeroizing::new([0; 16]);
        derive(raw, purpose::INODE_HASH, &[], &mut *hash_key);
        Vary::HashedInode(sip_hash(&hash_key, ino.into()) as u32)
    } else {
        derive(raw, purpose::FILE, &[&context.nonce], key);
        Vary::Nothing
    };
    let cipher = Cipher::new(mode, key);
    key.zeroize();
    Ok((cipher.ok_or(NoKey::Missing)?, vary))
}

/// SipHash-2-4 of one number (Aumasson, Bernstein, 2012; Linux: `siphash_1u64`).
fn sip_hash(key: &[u8; 16], number: u64) -> u64 {
    fn round(v: &mut [u64; 4]) {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    }
    let both = u128::from_le_bytes(*key);
    let (k0, k1) = (both as u64, (both >> 64) as u64);
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    for word in [number, 8 << 56] {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use extant_ondisk::encryption::Policy;

    use super::*;

    fn ring(raw: &[u8]) -> KeyRing {
        let mut ring = KeyRing::default();
        ring.add(Secret::new(raw).expect("short"), None).expect("a key");
        ring
    }

    #[test]
    fn keys_have_16_to_64_bytes_and_are_not_printed() {
        for len in [0, 15, 65, 100] {
            let refused = KeyRing::default().add(Secret::new(&vec![1; len]).expect("short"), None);
            assert_eq!(refused, Err(BadKey::Length { found: len }));
        }
        let ring = ring(b"correct horse battery staple ...");
        let shown = format!("{ring:?}");
        assert!(shown.starts_with("KeyRing[\"") && !shown.contains("horse"), "{shown}");
    }

    /// The name of the std hasher, SipHash, leaves open whether it has 1 and 3 rounds. This one has 2 and 4.
    #[test]
    #[allow(deprecated)]
    fn sip_hash_is_that_of_its_authors() {
        use std::hash::Hasher;
        let key: [u8; 16] = std::array::from_fn(|i| i as u8);
        let k = |at: usize| u64::from_le_bytes(*key[at..].first_chunk().expect("eight bytes"));
        let mut hasher = std::hash::SipHasher::new_with_keys(k(0), k(8));
        hasher.write(&0x0123_4567_89ab_cdef_u64.to_le_bytes());
        assert_eq!(sip_hash(&key, 0x0123_4567_89ab_cdef), hasher.finish());
        // The authors' vector for eight bytes, 00 to 07.
        assert_eq!(sip_hash(&key, 0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn policies_that_are_not_supported_are_refused_by_name() {
        let ring = ring(&[7; 64]);
        let identifier = ring.identifiers().next().expect("a key");
        let refusal = |change: fn(&mut Policy)| {
            let mut policy = Policy::new(identifier);
            change(&mut policy);
            match file_cipher(&ring, &Context { policy, nonce: [1; 16] }, true, &[0; 16], 12) {
                Err(NoKey::Unusable(why)) => why,
                Err(NoKey::Missing) => "missing".to_owned(),
                Ok(_) => String::new(),
            }
        };
        assert_eq!(refusal(|_| ()), "");
        assert_eq!(refusal(|p| p.flags = FLAG_IV_INO_LBLK_32 | 1), "");
        assert_eq!(refusal(|p| p.key = KeyName::Identifier([0; 16])), "missing");
        assert!(refusal(|p| (p.contents, p.names) = (9, 9)).contains("Adiantum"));
        assert!(refusal(|p| p.names = 10).contains("AES-256-HCTR2"));
        assert!(refusal(|p| p.names = 6).contains("AES-128-CBC-CTS"));
        assert!(refusal(|p| p.flags = FLAG_DIRECT_KEY).contains("direct keys"));
        assert!(refusal(|p| p.flags = 0x80).contains("0x80"));
    }
}
