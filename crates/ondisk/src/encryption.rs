//! The contexts of encrypted files: which policy, by which keys, and a nonce of the file's own (Linux:
//! `union fscrypt_context`, fs/crypto/fscrypt_private.h).
//!
//! Main function: [`policy`]. Main type: [`ContextDamage`] (one fault).
//!
//! A context is the value of an attribute ([`crate::xattr::index::ENCRYPTION`], [`NAME`]). All files below an encrypted
//! directory have its policy.
//!
//! # Locking
//! None.

use crate::damage::Damage;

/// The attribute's name behind its index.
pub const NAME: &[u8] = b"c";
/// Version, modes, flags, eight bytes that name the key, nonce.
const V1_LEN: usize = 28;
/// Version, modes, flags, four reserved bytes, sixteen that name the key, nonce.
const V2_LEN: usize = 40;
const NONCE_LEN: usize = 16;

/// One fault of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextDamage {
    /// There are no bytes, or the version is 0, which no context has.
    #[error("no version")]
    Version,
    /// The length is not that of the version.
    #[error("{found} bytes, expected {expected}")]
    Length {
        /// Bytes.
        found: u32,
        /// Those of the version.
        expected: u32,
    },
}

impl Damage for ContextDamage {
    fn is_fatal(&self) -> bool {
        true
    }
}

/// The policy in a context: everything but the nonce. `None`: the version is unknown here.
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
}
