//! Bytes that identify their place: a function of file, write and offset, never zero.
//!
//! # Locking
//! None.

/// The content of free space before the workload. In a file it means that a block was mapped and never written.
pub const POISON: &[u8; 8] = b"POISON!\xEE";

/// The value 1 in each byte.
const ONES: u64 = u64::MAX / 255;

/// The eight bytes at offset `cell * 8` that write `version` put into file `file`.
fn cell(file: u32, version: u32, cell: u64) -> [u8; 8] {
    let mut z = (u64::from(file) << 40) ^ (u64::from(version) << 20) ^ cell.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    // Zero means "nothing was written here", so no pattern contains it. The top bit of each byte of `zero` marks a zero
    // byte. Explorers spend their time here, so one expression tests all eight bytes.
    let zero = !(((z & (0x7F * ONES)) + 0x7F * ONES) | z) & (0x80 * ONES);
    (z | ((zero >> 7) * 0x5A)).to_le_bytes()
}

/// Fills `buf` with the bytes of write `version` at `offset` of `file`.
pub fn fill(file: u32, version: u32, offset: u64, buf: &mut [u8]) {
    let mut at = 0;
    if offset.is_multiple_of(8) {
        for (i, eight) in buf.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *eight = cell(file, version, offset / 8 + i as u64);
        }
        at = buf.len() & !7;
    }
    while at < buf.len() {
        let abs = offset + at as u64;
        let bytes = cell(file, version, abs / 8);
        let within = (abs % 8) as usize;
        let n = (8 - within).min(buf.len() - at);
        buf[at..at + n].copy_from_slice(&bytes[within..within + n]);
        at += n;
    }
}

/// The bytes `from..to`.
pub fn bytes(file: u32, version: u32, from: u64, to: u64) -> Vec<u8> {
    let mut buf = vec![0; (to - from) as usize];
    fill(file, version, from, &mut buf);
    buf
}

/// The value of an attribute that many files share, like that of an ACL: it is stored in a shared block or inode.
pub fn label(which: u32, len: u64) -> Vec<u8> {
    bytes(u32::MAX, which, 0, len)
}

/// Whether eight bytes at `offset` (of the image or of a file, which have the same alignment) are poison.
pub fn is_poison(bytes: &[u8], offset: u64) -> bool {
    !bytes.is_empty() && bytes.iter().enumerate().all(|(i, b)| *b == POISON[((offset + i as u64) % 8) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_agree_with_the_whole_and_differ_from_others() {
        let whole = bytes(3, 9, 0, 1000);
        assert_eq!(bytes(3, 9, 13, 500), whole[13..500]);
        assert!(!whole.contains(&0));
        for (file, version) in [(4, 9), (3, 10), (9, 3)] {
            let same = bytes(file, version, 0, 1000).iter().zip(&whole).filter(|(a, b)| a == b).count();
            assert!(same < 40, "{file} {version}: {same}");
        }
    }
}
