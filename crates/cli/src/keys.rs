//! Keys of encrypted files, as `--key` and `-o fscrypt_key=` name them.
//!
//! Main type: [`Keys`], of one word: `FILE` or `fd:N`, with `DESCRIPTOR:` in front for a policy of version 1 whose
//! descriptor is not derived from its key.
//!
//! What it does not do: print keys, or take them from the command line, which other users can list.
//!
//! # Locking
//! None.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use extant_fs::{KeyRing, Secret};

use crate::failure::plain;
use crate::text::shown;

/// The most bytes of a raw key.
const KEY_BYTES_MAX: usize = 64;
/// Hexadecimal digits of a descriptor, with the colon.
const DESCRIPTOR_CHARS: usize = 17;

/// The keys of one word, read.
#[derive(Clone, Debug)]
pub struct Keys(KeyRing);

impl Keys {
    /// Reads the file or descriptor that the word names.
    pub fn read(word: OsString) -> Result<Keys, String> {
        let (descriptor, place) = split(word.as_bytes());
        let name = || shown(place);
        let path = match place.strip_prefix(b"fd:").and_then(|n| std::str::from_utf8(n).ok()?.parse::<u32>().ok()) {
            // Opened again, so that a pipe and a file work alike.
            Some(number) => PathBuf::from(format!("/dev/fd/{number}")),
            None => PathBuf::from(std::ffi::OsStr::from_bytes(place)),
        };
        let key = File::open(path).and_then(|mut file| Secret::read_from(&mut file, KEY_BYTES_MAX));
        let key = key.map_err(|e| format!("{}: {}", name(), plain(&e)))?;
        let mut ring = KeyRing::default();
        ring.add(key, descriptor).map_err(|e| format!("{}: {e}", name()))?;
        Ok(Keys(ring))
    }

    /// All keys of the words of a command line.
    pub fn together(all: &[Keys]) -> KeyRing {
        let mut ring = KeyRing::default();
        all.iter().for_each(|keys| ring.join(&keys.0));
        ring
    }
}

/// The descriptor in front of the place, and the place.
fn split(word: &[u8]) -> (Option<[u8; 8]>, &[u8]) {
    let digits = word.split_at_checked(DESCRIPTOR_CHARS).filter(|(front, _)| front.ends_with(b":"));
    let parsed = digits.and_then(|(front, place)| {
        let text = std::str::from_utf8(&front[..DESCRIPTOR_CHARS - 1]).ok()?;
        let is_hex = text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
        Some((number.to_be_bytes(), place))
    });
    parsed.map_or((None, word), |(descriptor, place)| (Some(descriptor), place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_16_digits_and_a_colon() {
        let descriptor = Some([0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        assert_eq!(split(b"0123456789abcdef:key"), (descriptor, &b"key"[..]));
        assert_eq!(split(b"0123456789ABCDEF:fd:3"), (descriptor, &b"fd:3"[..]));
        for plain in [&b"key"[..], b"fd:3", b"0123456789abcde:key", b"0123456789abcdeg:key", b"+123456789abcdef:key"] {
            assert_eq!(split(plain), (None, plain));
        }
    }

    #[test]
    fn keys_are_read_from_files_and_descriptors() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("key");
        std::fs::write(&path, [7; 32]).expect("written");
        let by_name = format!("{:?}", Keys::read(path.clone().into()).expect("a key"));
        let file = File::open(&path).expect("opened");
        let word = format!("fd:{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        assert_eq!(format!("{:?}", Keys::read(word.into()).expect("a key")), by_name);
        std::fs::write(&path, [7; 65]).expect("written");
        let refused = Keys::read(path.into()).expect_err("too long");
        assert!(refused.contains("a key of 65 bytes"), "{refused}");
    }
}
