//! The checksums of ext4: raw CRC32C and CRC16, and the seed that ties a checksum to one file system.
//!
//! Main types: [`crc32c()`] and [`crc16`] (the two functions), [`ChecksumSeed`] (the start value of every metadata
//! checksum). The bytes that a checksum covers are documented next to each structure, not here.
//!
//! # Locking
//! None.

use crate::InodeNr;

/// CRC32C without the final inversion (Linux: `crc32c_le`, which `ext4_chksum` calls). Calls can be chained: the result
/// of one call is the seed of the next.
pub fn crc32c(seed: u32, data: &[u8]) -> u32 {
    // The library inverts before and after; ext4 does neither.
    !::crc32c::crc32c_append(!seed, data)
}

/// CRC16 with polynomial 0xA001, reflected, no inversion (Linux: `crc16`, lib/crc16.c). Only group descriptors of
/// `uninit_bg` file systems use it.
pub fn crc16(seed: u16, data: &[u8]) -> u16 {
    data.iter().fold(seed, |crc, &byte| (crc >> 8) ^ CRC16_TABLE[usize::from((crc ^ u16::from(byte)) & 0xff)])
}

static CRC16_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ 0xa001 } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// The start value of a metadata checksum (Linux: `s_csum_seed` in `struct ext4_sb_info`, and `i_csum_seed` for an
/// inode). It comes from the superblock's UUID or its stored seed; [`ChecksumSeed::for_inode`] binds it to an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumSeed(u32);

impl ChecksumSeed {
    /// A seed as stored in `s_checksum_seed`, or any other known start value.
    pub const fn from_raw(seed: u32) -> ChecksumSeed {
        ChecksumSeed(seed)
    }

    /// The seed of a file system without INCOMPAT `metadata_csum_seed`.
    pub fn from_uuid(uuid: &[u8; 16]) -> ChecksumSeed {
        ChecksumSeed(crc32c(!0, uuid))
    }

    /// The start value itself, in the form of `s_checksum_seed`.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The checksum of `data` with this start value.
    pub fn checksum(self, data: &[u8]) -> u32 {
        crc32c(self.0, data)
    }

    /// The seed of everything that belongs to one inode: the inode itself, its extent blocks, directory blocks and
    /// htree nodes. It changes with the generation.
    pub fn for_inode(self, ino: InodeNr, generation: u32) -> ChecksumSeed {
        ChecksumSeed(crc32c(crc32c(self.0, &ino.0.to_le_bytes()), &generation.to_le_bytes()))
    }

    /// This seed with a little-endian 32-bit number folded in (a group number, for a descriptor).
    pub fn with_u32(self, number: u32) -> ChecksumSeed {
        ChecksumSeed(crc32c(self.0, &number.to_le_bytes()))
    }

    /// This seed with a little-endian 64-bit number folded in (a block number, for an xattr or orphan block).
    pub fn with_u64(self, number: u64) -> ChecksumSeed {
        ChecksumSeed(crc32c(self.0, &number.to_le_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_is_the_check_value_before_inversion() {
        assert_eq!(crc32c(!0, b"123456789"), !0xe306_9283);
        assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), !0xe306_9283);
        assert_eq!(crc32c(7, b""), 7);
    }

    #[test]
    fn crc16_is_the_arc_check_value() {
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
        assert_eq!(crc16(!0, b"123456789"), 0x4b37);
    }
}
