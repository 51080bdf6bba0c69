//! The hashes by which the kernel finds identical blocks, and which e2fsck checks.

use crate::csum::crc32c;

/// `e_hash` of an attribute: combines the name's bytes with rotations by 5, and the value's words (zero padded) with
/// rotations by 16 (Linux: `ext4_xattr_hash_entry`).
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    mix_value(name.iter().fold(0, |h, &b| mix(h, 5, u32::from(b))), value)
}

/// The same hash, with the bytes of the name read as signed char. Kernels before 6.1 stored it on machines where char
/// is signed. Both are valid on disk; they differ only for names with bytes from 0x80 on.
pub fn entry_hash_signed(name: &[u8], value: &[u8]) -> u32 {
    mix_value(name.iter().fold(0, |h, &b| mix(h, 5, i32::from(b as i8) as u32)), value)
}

/// The hash of a value in a separate inode, which that inode stores. `seed` is the file system's checksum seed, with or
/// without `metadata_csum` (Linux: `ext4_xattr_inode_hash`).
pub fn value_hash(seed: u32, value: &[u8]) -> u32 {
    crc32c(seed, value)
}

/// `e_hash` of an attribute whose value, with the hash `value`, is in a separate inode: that hash replaces the value's
/// bytes.
pub fn outside_hash(name: &[u8], value: u32) -> u32 {
    entry_hash(name, &value.to_le_bytes())
}

/// Whether `found` is the `e_hash` of such an attribute, with the bytes of the name read as signed or as unsigned.
pub fn is_outside_hash(found: u32, name: &[u8], value: u32) -> bool {
    let bytes = value.to_le_bytes();
    found == entry_hash(name, &bytes) || found == entry_hash_signed(name, &bytes)
}

fn mix_value(start: u32, value: &[u8]) -> u32 {
    value.chunks(4).fold(start, |h, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(h, 16, u32::from_le_bytes(word))
    })
}

fn mix(hash: u32, rotate: u32, with: u32) -> u32 {
    hash.rotate_left(rotate) ^ with
}

/// `h_hash` of a block from its entries' hashes: 0, which means "do not share", if any of them is 0 (Linux:
/// `ext4_xattr_rehash`).
pub fn block_hash(entry_hashes: impl IntoIterator<Item = u32>) -> u32 {
    let mut hash = 0;
    for h in entry_hashes {
        if h == 0 {
            return 0;
        }
        hash = mix(hash, 16, h);
    }
    hash
}
