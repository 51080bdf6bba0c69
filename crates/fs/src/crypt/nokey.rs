//! The names and link targets that a mount without the key shows for encrypted files (Linux: fs/crypto/fname.c). They
//! consist of characters that every system accepts.
//!
//! A name is shown as its ciphertext in base64url. If that exceeds the maximum length of a name, it is cut and a
//! checksum of the rest is appended. The kernel uses another encoding; neither form is stored anywhere.
//!
//! # Locking
//! None.

use extant_ondisk::csum::crc32c;
use extant_ondisk::encryption::LINK_HEADER;

/// The longest ciphertext that is shown whole, as 252 characters.
const WHOLE_MAX: usize = 189;
/// The part of a longer ciphertext that is shown, as 240 characters.
const CUT: usize = 180;

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn letters(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for piece in bytes.chunks(3) {
        let number = piece.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - piece.len()));
        let letter = |i: usize| LETTERS[(number >> (18 - 6 * i)) as usize & 63];
        out.extend((0..=piece.len()).map(letter));
    }
    out
}

/// The no-key name: how a directory listing without the key shows an encrypted name.
pub(crate) fn name(ciphertext: &[u8]) -> Vec<u8> {
    if ciphertext.len() <= WHOLE_MAX {
        return letters(ciphertext);
    }
    let (shown, rest) = ciphertext.split_at(CUT);
    let mut out = letters(shown);
    out.extend(format!(".{:08x}", crc32c(!0, rest)).bytes());
    out
}

/// How a link's stored target is shown without the key.
pub(crate) fn target(stored: &[u8]) -> Vec<u8> {
    name(stored.get(LINK_HEADER..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_names_are_legal_and_tell_ciphertexts_apart() {
        assert_eq!(letters(b""), b"");
        assert_eq!(letters(b"\0"), b"AA");
        assert_eq!(letters(b"\xff\xff"), b"__8");
        assert_eq!(letters(b"any carnal pleas"), b"YW55IGNhcm5hbCBwbGVhcw");
        let mut shown = std::collections::HashSet::new();
        for len in 1..=255 {
            for last in [0, b'/', 255] {
                let mut ciphertext = vec![b'/'; len];
                ciphertext[len - 1] = last;
                let name = name(&ciphertext);
                assert!(extant_ondisk::dirent::name_is_legal(&name), "{len}: {name:?}");
                shown.insert(name);
            }
        }
        assert_eq!(shown.len(), 255 * 3);
    }
}
