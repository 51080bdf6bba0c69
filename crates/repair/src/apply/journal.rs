//! The journal: replayed beside the device, emptied, or made anew.
//!
//! Main functions: [`replay`], [`wipe`], [`renew`].
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::device::CowDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_recovery::locate::{open_journal, read_super};
use extant_recovery::{Accept, Replay};

use crate::error::{Done, Refusal, Result};
use crate::view::Image;

/// Replays the log of a file system onto the changes of its device, as far as it is whole. Returns the number of
/// transactions, and of fast commits, which are lost.
pub fn replay(device: &Arc<CowDevice>) -> Result<(u32, usize)> {
    let shared: Arc<dyn BlockDevice> = device.clone();
    let sb = read_super(&*shared)?;
    let Some(mut journal) = open_journal(shared.clone(), &sb)? else { return Ok((0, 0)) };
    let replay = Replay::load(&journal, &*shared, &mut |_| {})?;
    replay.apply(&mut journal, &*shared, Accept::Damaged, &mut |_| {})?;
    unmark(&*shared)?;
    Ok((replay.transactions, replay.fast_commits.len()))
}

/// Empties the log without a replay.
pub fn wipe(device: &Arc<CowDevice>) -> Result<()> {
    let shared: Arc<dyn BlockDevice> = device.clone();
    let sb = read_super(&*shared)?;
    if let Some(mut journal) = open_journal(shared.clone(), &sb)? {
        extant_recovery::wipe(&mut journal, &*shared)?;
    }
    unmark(&*shared)
}

/// The log is empty now.
fn unmark(device: &dyn BlockDevice) -> Result<()> {
    use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
    let mut sb = read_super(device)?;
    sb.set_needs_recovery(false);
    let unit = u64::from(device.limits().logical_block).max(SUPERBLOCK_SIZE as u64);
    let start = SUPERBLOCK_OFFSET - SUPERBLOCK_OFFSET % unit;
    let mut bytes = vec![0; unit as usize];
    device.read_at(start, &mut bytes, BioFlags::META)?;
    sb.encode_into(&mut bytes[(SUPERBLOCK_OFFSET - start) as usize..][..SUPERBLOCK_SIZE]);
    Ok(device.write_at(start, &[&bytes], BioFlags::META)?)
}

/// Makes the journal anew.
pub fn renew(image: &mut Image) -> Done {
    let _ = image;
    Err(Refusal::Lost("the journal cannot be made anew yet"))
}
