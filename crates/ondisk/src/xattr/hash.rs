//! The hashes by which the kernel finds identical blocks, and which e2fsck checks.

/// `e_hash` of an attribute: the name's bytes rotated in by 5, the value's words (zero padded) by 16 (Linux:
/// `ext4_xattr_hash_entry`).
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    value_hash(name.iter().fold(0, |h, &b| mix(h, 5, u32::from(b))), value)
}

/// The same, with name bytes read as signed char. Kernels before 6.1 stored it on machines where char is signed. Both
/// are valid on disk; they differ only for names with bytes from 0x80 on.
pub fn entry_hash_signed(name: &[u8], value: &[u8]) -> u32 {
    value_hash(name.iter().fold(0, |h, &b| mix(h, 5, i32::from(b as i8) as u32)), value)
}

fn value_hash(start: u32, value: &[u8]) -> u32 {
    value.chunks(4).fold(start, |h, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(h, 16, u32::from_le_bytes(word))
    })
}

fn mix(hash: u32, rotate: u32, with: u32) -> u32 {
    hash.rotate_left(rotate) ^ with
}

/// `h_hash` of a block from its entries' hashes: 0, "do not share", as soon as one of them is 0 (Linux:
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
