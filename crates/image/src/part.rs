//! The part of a device that holds the file system: the functions of [`mod@crate::open`] for a device that is already
//! open.
//!
//! Main functions: [`part_of`], [`part_of_any`].
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::OffsetDevice;
use extant_ondisk::partition::Source;

use crate::error::{BadOffset, Error, Result};
use crate::formats;
use crate::open::{has_magic, overwritten, probe};
use crate::partitions::{choose_partition, find_partition, partition_table};
use crate::spec::{ImageSpec, Part};

/// The file system's part of a device: the named part, or the whole device, or its only partition with ext2/3/4.
///
/// # Errors
/// As [`crate::open()`], except for those of other users of the image.
pub fn part_of(device: &Arc<dyn BlockDevice>, part: Part) -> Result<Arc<dyn BlockDevice>> {
    if part != Part::Any {
        return part_of_any(device, part);
    }
    if has_magic(&**device) {
        return Ok(device.clone());
    }
    let image = device.name().to_owned();
    if let Some(format) = formats::identify(&**device) {
        return Err(overwritten(&**device, image, format));
    }
    let table = partition_table(&**device)?;
    // A backup GPT may be older than a file system on the whole disk whose first blocks are lost.
    let stale = || table.source == Source::BackupGpt && probe(&**device).is_ok();
    if table.partitions.is_empty() || stale() {
        return Ok(device.clone());
    }
    let (_, (start, len)) = choose_partition(&ImageSpec::whole(image), device, &table.partitions)?;
    window(device, start, len)
}

/// The named part of a device, whatever it holds; without a name, all of it.
///
/// # Errors
/// The partition does not exist, or no file system can begin at the offset.
pub fn part_of_any(device: &Arc<dyn BlockDevice>, part: Part) -> Result<Arc<dyn BlockDevice>> {
    match part {
        Part::Any => Ok(device.clone()),
        Part::Partition(number) => {
            let (start, len) = find_partition(&**device, number)?;
            window(device, start, len)
        }
        Part::Offset(offset) => {
            let failed = |why| Error::Offset { image: device.name().to_owned(), offset, why };
            if !offset.is_multiple_of(512) {
                return Err(failed(BadOffset::Unaligned));
            }
            let rest = device.size_bytes().checked_sub(offset).filter(|rest| *rest > 0);
            let rest = rest.ok_or_else(|| failed(BadOffset::PastEnd))?;
            window(device, offset, rest)
        }
    }
}

/// Whole logical blocks: the end of a disk may lie in the middle of one.
fn window(device: &Arc<dyn BlockDevice>, start: u64, len: u64) -> Result<Arc<dyn BlockDevice>> {
    let block = u64::from(device.limits().logical_block);
    Ok(Arc::new(OffsetDevice::new(device.clone(), start, len - len % block)?))
}
