//! The MMP block (multi-mount protection; Linux: `struct mmp_struct`, fs/ext4/ext4.h), which contains the heartbeat of
//! the mount that uses the file system.
//!
//! Main type: [`Mmp`]. [`fill_clean`] creates the block of a file system that no mount uses.
//!
//! What it does not do: implement the protocol.
//!
//! # Locking
//! None.

use crate::superblock::SuperBlock;

/// The value of `mmp_magic`.
pub const MAGIC: u32 = 0x004d_4d50;
/// The value of `mmp_seq` while no mount uses the file system.
pub const SEQ_CLEAN: u32 = 0xff4d_4d50;
/// The value of `mmp_seq` while a checker uses the file system.
pub const SEQ_FSCK: u32 = 0xe24d_4d50;
/// The largest sequence number of a mount.
pub const SEQ_MAX: u32 = 0xe24d_4d4f;
/// The size of the structure, in bytes.
pub const BYTES: usize = 1024;
/// The time between two writes of the block, in seconds.
pub const INTERVAL: u16 = 5;
/// The maximum time between two checks, in seconds (Linux: `EXT4_MMP_MAX_CHECK_INTERVAL`).
pub const CHECK_MAX: u16 = 300;
const TIME_AT: usize = 8;
const HOST_AT: usize = 16;
const DEVICE_AT: usize = 80;
const CHECK_AT: usize = 112;
const CHECKSUM_AT: usize = BYTES - 4;

/// One fault of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MmpDamage {
    /// `mmp_magic` is wrong.
    #[error("magic {found:#x}, expected {MAGIC:#x}")]
    Magic {
        /// The stored value.
        found: u32,
    },
    /// `mmp_checksum` does not match.
    #[error("checksum {found:#x}, expected {expected:#x}")]
    Checksum {
        /// The stored value.
        found: u32,
        /// The checksum of the bytes before it.
        expected: u32,
    },
}

/// The content of the block: one heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mmp {
    /// The sequence number, which changes with every write; see [`SEQ_CLEAN`] and [`SEQ_FSCK`].
    pub seq: u32,
    /// Seconds since 1970.
    pub time: u64,
    /// The host of the mount; at most 64 bytes.
    pub host: Vec<u8>,
    /// The device of the mount; at most 32 bytes.
    pub device: Vec<u8>,
    /// The time in seconds within which a live mount expects to write the block.
    pub check_interval: u16,
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

impl Mmp {
    /// Decodes a block of at least [`BYTES`] bytes.
    ///
    /// # Errors
    /// [`MmpDamage`] of the block.
    pub fn parse(sb: &SuperBlock, block: &[u8]) -> Result<Mmp, MmpDamage> {
        let mut first = None;
        Mmp::damage(sb, block, |damage| first = first.or(Some(damage)));
        if let Some(damage) = first {
            return Err(damage);
        }
        let text = |bytes: &[u8]| bytes.iter().copied().take_while(|byte| *byte != 0).collect();
        let time = block[TIME_AT..HOST_AT].iter().rev().fold(0, |time, byte| time << 8 | u64::from(*byte));
        Ok(Mmp {
            seq: word(block, 4),
            time,
            host: text(&block[HOST_AT..DEVICE_AT]),
            device: text(&block[DEVICE_AT..CHECK_AT]),
            check_interval: u16::from_le_bytes([block[CHECK_AT], block[CHECK_AT + 1]]),
        })
    }

    /// Reports everything that is wrong with a block of at least [`BYTES`] bytes.
    pub fn damage(sb: &SuperBlock, block: &[u8], mut sink: impl FnMut(MmpDamage)) {
        let geo = sb.geometry();
        if word(block, 0) != MAGIC {
            sink(MmpDamage::Magic { found: word(block, 0) });
        }
        let (found, expected) = (word(block, CHECKSUM_AT), geo.seed.checksum(&block[..CHECKSUM_AT]));
        if geo.metadata_csum && found != expected {
            sink(MmpDamage::Checksum { found, expected });
        }
    }

    /// Fills a block of zeros; names that are too long are cut.
    pub fn encode(&self, sb: &SuperBlock, block: &mut [u8]) {
        let geo = sb.geometry();
        block[..4].copy_from_slice(&MAGIC.to_le_bytes());
        block[4..TIME_AT].copy_from_slice(&self.seq.to_le_bytes());
        block[TIME_AT..HOST_AT].copy_from_slice(&self.time.to_le_bytes());
        for (name, from, to) in [(&self.host, HOST_AT, DEVICE_AT), (&self.device, DEVICE_AT, CHECK_AT)] {
            let length = name.len().min(to - from);
            block[from..from + length].copy_from_slice(&name[..length]);
        }
        block[CHECK_AT..CHECK_AT + 2].copy_from_slice(&self.check_interval.to_le_bytes());
        if geo.metadata_csum {
            let checksum = geo.seed.checksum(&block[..CHECKSUM_AT]);
            block[CHECKSUM_AT..BYTES].copy_from_slice(&checksum.to_le_bytes());
        }
    }
}

/// Fills a block of zeros for a file system that no mount uses. `block` has at least [`BYTES`] bytes.
pub fn fill_clean(sb: &SuperBlock, block: &mut [u8]) {
    let check_interval = sb.raw().s_mmp_update_interval.get().max(INTERVAL);
    Mmp { seq: SEQ_CLEAN, time: 0, host: Vec::new(), device: Vec::new(), check_interval }.encode(sb, block);
}
