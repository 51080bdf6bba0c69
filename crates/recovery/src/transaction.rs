//! One transaction in an empty log: many changed blocks as one change.
//!
//! Main functions: [`room_for`] (whether the log can take them), [`mark`] (the image says that its journal is to be
//! replayed), [`write()`] (the transaction, and then the one sector that makes it count). Before that sector the image
//! is as it was; after it, any replay makes it new. A cut in between leaves one or the other.
//!
//! What it does not do: write blocks home ([`crate::Replay::apply`] does), choose the blocks.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{
    CommitBlock, DescriptorBuilder, JournalSuperBlock, LogCsum, LogFormat, escape, needs_escape, tag_checksum,
    v1_checksum,
};
use extant_ondisk::superblock::{SUPERBLOCK_SIZE, SuperBlock};

use crate::error::{Error, Result};
use crate::file::JournalFile;
use crate::locate::{read_super, write_super};

/// A moment for the commit block: seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Seconds.
    pub sec: u64,
    /// Nanoseconds.
    pub nsec: u32,
}

/// Checks that the empty log has room for a transaction of `blocks`.
///
/// Errors: `NoRoom`.
pub fn room_for(journal: &JournalFile, format: &LogFormat, blocks: usize) -> Result<()> {
    let needed = blocks + blocks.div_ceil(DescriptorBuilder::capacity_of(format)) + 1;
    let there = journal.log().len() as usize - 1;
    if needed > there { Err(Error::NoRoom { needed, there }) } else { Ok(()) }
}

/// Marks the file system on `device` as needing recovery, durably, with everything that was written before.
///
/// Errors: `Device`; `Format` if the superblock cannot be used.
pub fn mark(device: &dyn BlockDevice) -> Result<()> {
    let mut marked = read_super(device)?;
    marked.set_needs_recovery(true);
    write_super(device, &marked)
}

/// Makes `blocks`, with their content on `new`, the only transaction of `journal`, and then writes `jsb`, which refers
/// to it. `sb` is the superblock on `new`. The image is marked ([`mark`]), and its log is empty.
///
/// Errors: `Device`; `Map` if the journal is cut off. The image is then as it was, but for the mark.
pub fn write(
    journal: &mut JournalFile,
    mut jsb: JournalSuperBlock,
    new: &dyn BlockDevice,
    sb: &SuperBlock,
    blocks: &[BlockNr],
    stamp: Stamp,
) -> Result<()> {
    let size = u64::from(sb.block_size);
    let format = jsb.format();
    // Higher than every number in the log.
    let (tid, first) = (jsb.sequence.next(), jsb.first);
    let mut at = first;
    let mut put = |data: &[u8]| -> Result<()> {
        let (place, _) = journal.map().lookup(at).ok_or_else(|| Error::map(at, "the journal is cut off"))?;
        at += 1;
        Ok(journal.device().write_at(place.0 * size, &[data], BioFlags::META)?)
    };
    let (super_block, super_at) = sb.primary_location();
    let mut v1 = !0;
    let mut block = vec![0; size as usize];
    for part in blocks.chunks(DescriptorBuilder::capacity_of(&format)) {
        let mut descriptor = DescriptorBuilder::new(&format, tid);
        let mut copies = Vec::with_capacity(part.len());
        for nr in part {
            let mut copy = vec![0; size as usize];
            new.read_at(nr.0 * size, &mut copy, BioFlags::META)?;
            if *nr == super_block {
                // Otherwise an interrupted replay could leave a live log that the image does not mention.
                let mut marked = sb.clone();
                marked.set_needs_recovery(true);
                marked.encode_into(&mut copy[super_at..super_at + SUPERBLOCK_SIZE]);
            }
            let escaped = needs_escape(&copy);
            if escaped {
                escape(&mut copy);
            }
            descriptor.push(*nr, escaped, tag_checksum(format.seed, tid, &copy));
            copies.push(copy);
        }
        descriptor.finish(&mut block);
        v1 = v1_checksum(v1, &block);
        put(&block)?;
        for copy in &copies {
            v1 = v1_checksum(v1, copy);
            put(copy)?;
        }
    }
    let commit = CommitBlock { tid, sec: stamp.sec, nsec: stamp.nsec };
    commit.encode(&format, (format.csum == LogCsum::V1).then_some(v1), &mut block);
    put(&block)?;
    (jsb.sequence, jsb.start, jsb.head) = (tid, first, 0);
    // Flushes, and writes one sector.
    journal.write_super(jsb)
}
