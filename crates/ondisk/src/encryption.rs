//! The contexts of encrypted files: the policy, the name of the key, and a nonce for each file (Linux: `union
//! fscrypt_context`, fs/crypto/fscrypt_private.h).
//!
//! Main types: [`Context`] (a decoded context), [`Policy`] (the part that all files below an encrypted directory
//! share), [`KeyName`] (the name of a master key), [`Mode`] (a cipher), [`ContextDamage`] (one fault). [`policy`]
//! returns the bytes of a policy, for comparisons.
//!
//! A context is the value of an attribute ([`crate::xattr::index::ENCRYPTION`], [`NAME`]). All files below an encrypted
//! directory have its policy.
//!
//! What it does not do: derive keys, or encrypt.
//!
//! # Locking
//! None.

use crate::damage::Damage;

/// The attribute's name, without the prefix of its index.
pub const NAME: &[u8] = b"c";
/// The length of a context of version 1: version, modes, flags, eight bytes for the key's name, nonce.
const V1_LEN: usize = 28;
/// The length of a context of version 2: version, modes, flags, unit size, three reserved bytes, sixteen bytes for the
/// key's name, nonce.
const V2_LEN: usize = 40;
/// The length of a nonce, in bytes.
pub const NONCE_LEN: usize = 16;
/// The number of bytes before the ciphertext of a symbolic link's target, which contain its length (Linux: `struct
/// fscrypt_symlink_data`).
pub const LINK_HEADER: usize = 2;

/// One fault of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextDamage {
    /// There are no bytes, or the version is 0, which no context has.
    #[error("no version")]
    Version,
    /// The length does not match the version.
    #[error("{found} bytes, expected {expected}")]
    Length {
        /// The number of bytes.
        found: u32,
        /// The length for the version, in bytes.
        expected: u32,
    },
}

impl Damage for ContextDamage {
    fn is_fatal(&self) -> bool {
        true
    }
}

/// A cipher with its mode of operation (Linux: `FSCRYPT_MODE_*`). Others exist; see [`Mode::name_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// AES-256-XTS, for contents.
    Aes256Xts,
    /// AES-256-CBC with ciphertext stealing, for names.
    Aes256Cts,
    /// AES-128-CBC with ESSIV, for contents.
    Aes128CbcEssiv,
    /// AES-128-CBC with ciphertext stealing, for names.
    Aes128Cts,
}

impl Mode {
    /// The mode with this number; `None` if it is not supported.
    pub fn from_disk(number: u8) -> Option<Mode> {
        match number {
            1 => Some(Mode::Aes256Xts),
            4 => Some(Mode::Aes256Cts),
            5 => Some(Mode::Aes128CbcEssiv),
            6 => Some(Mode::Aes128Cts),
            _ => None,
        }
    }

    /// The number of the mode.
    pub fn to_disk(self) -> u8 {
        match self {
            Mode::Aes256Xts => 1,
            Mode::Aes256Cts => 4,
            Mode::Aes128CbcEssiv => 5,
            Mode::Aes128Cts => 6,
        }
    }

    /// The length of its key, in bytes.
    pub fn key_len(self) -> usize {
        match self {
            Mode::Aes256Xts => 64,
            Mode::Aes256Cts => 32,
            Mode::Aes128CbcEssiv | Mode::Aes128Cts => 16,
        }
    }

    /// The minimum length of a master key under policies of version 2, in bytes (Linux: `security_strength`).
    pub fn strength(self) -> usize {
        match self {
            Mode::Aes256Xts | Mode::Aes256Cts => 32,
            Mode::Aes128CbcEssiv | Mode::Aes128Cts => 16,
        }
    }

    /// The name of the mode with this number, for messages.
    pub fn name_of(number: u8) -> &'static str {
        match number {
            1 => "AES-256-XTS",
            4 => "AES-256-CBC-CTS",
            5 => "AES-128-CBC-ESSIV",
            6 => "AES-128-CBC-CTS",
            7 => "SM4-XTS",
            8 => "SM4-CBC-CTS",
            9 => "Adiantum",
            10 => "AES-256-HCTR2",
            _ => "an unknown cipher",
        }
    }
}

/// The name of a master key, in the form that policies store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyName {
    /// Version 1: chosen by the user, usually the first bytes of a double SHA-512 of the key.
    Descriptor([u8; 8]),
    /// Version 2: derived from the key.
    Identifier([u8; 16]),
}

/// The policy of an encrypted directory and of all files below it (Linux: `union fscrypt_policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The cipher of contents; see [`Mode::from_disk`].
    pub contents: u8,
    /// The cipher of names and link targets.
    pub names: u8,
    /// The padding of names, and the way in which keys and initialization vectors are derived.
    pub flags: u8,
    /// The size of a unit of contents as a power of two; 0 for a block of the file system.
    pub unit_bits: u8,
    /// The name of the key, which also determines the version.
    pub key: KeyName,
}

/// The two low bits of the flags: names are padded to multiples of 4 << n bytes (Linux:
/// `FSCRYPT_POLICY_FLAGS_PAD_MASK`).
pub const FLAGS_PAD: u8 = 3;
/// Files have no keys of their own; their nonces are in the initialization vectors.
pub const FLAG_DIRECT_KEY: u8 = 4;
/// Files have no keys of their own; initialization vectors contain the inode number and 32 bits of the position.
pub const FLAG_IV_INO_LBLK_64: u8 = 8;
/// As [`FLAG_IV_INO_LBLK_64`], with a hash of the inode number that is added to the position.
pub const FLAG_IV_INO_LBLK_32: u8 = 16;

impl Policy {
    /// The default policy of mkfs and fscryptctl(1): version 2, AES-256, names padded to 32 bytes.
    pub fn new(identifier: [u8; 16]) -> Policy {
        let key = KeyName::Identifier(identifier);
        let (contents, names) = (Mode::Aes256Xts.to_disk(), Mode::Aes256Cts.to_disk());
        Policy { contents, names, flags: FLAGS_PAD, unit_bits: 0, key }
    }

    /// Names are padded to multiples of this, in bytes.
    pub fn padding(&self) -> usize {
        4 << (self.flags & FLAGS_PAD)
    }
}

/// The decoded context of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The part that the directory and all files below it share.
    pub policy: Policy,
    /// The nonce of this file.
    pub nonce: [u8; NONCE_LEN],
}

impl Context {
    /// Decodes the value of the attribute. `None` if the version is unknown.
    ///
    /// # Errors
    /// The fault of the context.
    pub fn decode(context: &[u8]) -> Result<Option<Context>, ContextDamage> {
        let Some(bytes) = policy(context)? else { return Ok(None) };
        let unit_bits = if bytes[0] == 1 { 0 } else { bytes[4] };
        let (_, name) = bytes.split_at(if bytes[0] == 1 { 4 } else { 8 });
        let key = match name.try_into() {
            Ok(descriptor) => KeyName::Descriptor(descriptor),
            Err(_) => KeyName::Identifier(name.try_into().unwrap_or_default()),
        };
        let policy = Policy { contents: bytes[1], names: bytes[2], flags: bytes[3], unit_bits, key };
        let nonce = context[bytes.len()..].try_into().unwrap_or_default();
        Ok(Some(Context { policy, nonce }))
    }

    /// Encodes the value of the attribute.
    pub fn encode(&self) -> Vec<u8> {
        let Policy { contents, names, flags, unit_bits, key } = self.policy;
        let mut bytes = match key {
            KeyName::Descriptor(descriptor) => [&[1, contents, names, flags][..], &descriptor].concat(),
            KeyName::Identifier(identifier) => {
                [&[2, contents, names, flags, unit_bits, 0, 0, 0][..], &identifier].concat()
            }
        };
        bytes.extend(self.nonce);
        bytes
    }
}

/// The policy in a context, which is everything except the nonce. `None` if the version is unknown.
///
/// # Errors
/// The fault of the context.
pub fn policy(context: &[u8]) -> Result<Option<&[u8]>, ContextDamage> {
    let expected = match context.first() {
        None | Some(0) => return Err(ContextDamage::Version),
        Some(1) => V1_LEN,
        Some(2) => V2_LEN,
        Some(_) => return Ok(None),
    };
    if context.len() != expected {
        return Err(ContextDamage::Length { found: context.len() as u32, expected: expected as u32 });
    }
    Ok(Some(&context[..expected - NONCE_LEN]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_the_context_without_its_nonce() {
        for (version, length) in [(1, 28), (2, 40)] {
            let mut context = vec![version; length];
            context[length - 16..].fill(9);
            assert_eq!(policy(&context), Ok(Some(&vec![version; length - 16][..])));
            let found = ContextDamage::Length { found: length as u32 - 1, expected: length as u32 };
            assert_eq!(policy(&context[1..]), Err(found));
        }
        assert_eq!(policy(&[3; 50]), Ok(None));
        assert_eq!(policy(&[]), Err(ContextDamage::Version));
        assert_eq!(policy(&[0; 28]), Err(ContextDamage::Version));
    }

    #[test]
    fn contexts_of_both_versions_survive_encoding() {
        for key in [KeyName::Descriptor([7; 8]), KeyName::Identifier([9; 16])] {
            let unit_bits = if matches!(key, KeyName::Descriptor(_)) { 0 } else { 10 };
            let context =
                Context { policy: Policy { key, flags: 2, unit_bits, ..Policy::new([0; 16]) }, nonce: [3; 16] };
            let bytes = context.encode();
            assert_eq!(bytes.len(), if unit_bits == 0 { V1_LEN } else { V2_LEN });
            assert_eq!(Context::decode(&bytes), Ok(Some(context)));
            assert_eq!(context.policy.padding(), 16);
        }
        assert_eq!(Context::decode(&[3; 50]), Ok(None));
        assert_eq!(Context::decode(&[1; 27]), Err(ContextDamage::Length { found: 27, expected: 28 }));
    }
}
