//! The block of multi-mount protection (Linux: `struct mmp_struct`, fs/ext4/ext4.h): a sign of life of the mount that
//! uses the file system.
//!
//! Main function: [`fill_clean`].
//!
//! What it does not do: the protocol.
//!
//! # Locking
//! None.

use crate::superblock::SuperBlock;

/// `mmp_magic`.
pub const MAGIC: u32 = 0x004d_4d50;
/// `mmp_seq` while no mount uses the file system.
pub const SEQ_CLEAN: u32 = 0xff4d_4d50;
/// Bytes of the structure.
pub const BYTES: usize = 1024;
/// Seconds between two signs of life.
pub const INTERVAL: u16 = 5;
/// `mmp_check_interval`; before it are the magic, a number, a time, and two names that stay empty.
const INTERVAL_AT: usize = 112;
const CHECKSUM_AT: usize = BYTES - 4;

/// Fills a block of zeros as that of a file system which no mount uses. `block`: at least [`BYTES`] bytes.
pub fn fill_clean(sb: &SuperBlock, block: &mut [u8]) {
    let geo = sb.geometry();
    block[..4].copy_from_slice(&MAGIC.to_le_bytes());
    block[4..8].copy_from_slice(&SEQ_CLEAN.to_le_bytes());
    let interval = sb.raw().s_mmp_update_interval.get().max(INTERVAL);
    block[INTERVAL_AT..INTERVAL_AT + 2].copy_from_slice(&interval.to_le_bytes());
    if geo.metadata_csum {
        let checksum = geo.seed.checksum(&block[..CHECKSUM_AT]);
        block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    }
}
