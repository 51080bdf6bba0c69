//! Partitions of a whole disk: their places, and the choice of one if the user names none. [`part_of`] makes that
//! choice on a device that is already open.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::device::OffsetDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::partition::{Partition, Source, Table, read_table};

use crate::error::{BadOffset, Error, Result};
use crate::formats;
use crate::open::{has_magic, overwritten, probe, shows_magic};
use crate::spec::{ImageSpec, Part};

/// The partitions of a whole disk, and the table that lists them.
///
/// # Errors
/// [`Error::Table`]: there is a table, and it is damaged.
pub fn partition_table(dev: &dyn BlockDevice) -> Result<Table> {
    let read = |offset: u64, buf: &mut [u8]| {
        offset.checked_add(buf.len() as u64).is_some_and(|end| end <= dev.size_bytes())
            && dev.read_at(offset, buf, BioFlags::META).is_ok()
    };
    if dev.size_bytes() < 512 {
        return Ok(Table { partitions: Vec::new(), source: Source::None });
    }
    read_table(dev.size_bytes(), read).map_err(|source| Error::Table { image: dev.name().to_owned(), source })
}

/// The place of partition `number`, in bytes: start and length.
pub(crate) fn find_partition(dev: &dyn BlockDevice, number: u32) -> Result<(u64, u64)> {
    let Table { partitions, .. } = partition_table(dev)?;
    let image = dev.name().to_owned();
    match partitions.iter().find(|p| p.number == number) {
        Some(found) => Ok(place_of(found)),
        None if partitions.is_empty() => Err(Error::NoTable { image, number }),
        None => Err(Error::NoPartition { image, number, partitions }),
    }
}

/// The start and length of a partition: whole blocks, whatever block size the device has.
fn place_of(partition: &Partition) -> (u64, u64) {
    (partition.start, partition.len - partition.len % 4096)
}

/// The only partition with an ext file system, if there is one: its number and place.
pub(crate) fn choose_partition(
    spec: &ImageSpec,
    whole: &Arc<dyn BlockDevice>,
    partitions: &[Partition],
) -> Result<(u32, (u64, u64))> {
    let mut with_ext = Vec::new();
    for p in partitions {
        let (start, len) = place_of(p);
        // A partition that cannot be read may be another one with ext: fail.
        if shows_magic(&OffsetDevice::new(whole.clone(), start, len)?)? {
            with_ext.push((p.number, (start, len)));
        }
    }
    match with_ext.len() {
        1 => Ok(with_ext.remove(0)),
        with_ext => Err(Error::Ambiguous { image: spec.shown(), with_ext, partitions: partitions.to_vec() }),
    }
}

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
    let (number, (start, len)) = choose_partition(&ImageSpec::whole(image), device, &table.partitions)?;
    window(device, start, len, &format!("@{number}"))
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
            window(device, start, len, &format!("@{number}"))
        }
        Part::Offset(offset) => {
            let failed = |why| Error::Offset { image: device.name().to_owned(), offset, why };
            if !offset.is_multiple_of(512) {
                return Err(failed(BadOffset::Unaligned));
            }
            let rest = device.size_bytes().checked_sub(offset).filter(|rest| *rest > 0);
            let rest = rest.ok_or_else(|| failed(BadOffset::PastEnd))?;
            window(device, offset, rest, &format!("?offset={offset}"))
        }
    }
}

/// Whole logical blocks: the end of a disk may lie in the middle of one. `part` is what its name has behind the
/// device's.
fn window(device: &Arc<dyn BlockDevice>, start: u64, len: u64, part: &str) -> Result<Arc<dyn BlockDevice>> {
    let block = u64::from(device.limits().logical_block);
    let name = format!("{}{part}", device.name());
    Ok(Arc::new(OffsetDevice::new(device.clone(), start, len - len % block)?.named(name)))
}

#[cfg(test)]
mod tests {
    use extant_block::device::{Fault, FaultyDevice, MemDevice};
    use extant_ondisk::superblock::{MAGIC, SUPERBLOCK_OFFSET};

    use super::*;

    /// A partition that cannot be read must not make another one appear to be the only one.
    #[test]
    fn no_partition_is_chosen_from_two_file_systems() {
        let faulty = Arc::new(FaultyDevice::new(Arc::new(MemDevice::new(4 << 20))));
        let partition = |number| Partition {
            number,
            start: u64::from(number) << 20,
            len: 1 << 20,
            type_name: "Linux".into(),
            label: String::new(),
        };
        let both = [partition(1), partition(2)];
        let spec = ImageSpec::whole("disk.img");
        let whole: Arc<dyn BlockDevice> = faulty.clone();
        let choose = || choose_partition(&spec, &whole, &both).map(|(number, _)| number);
        for found in 0..=2 {
            if found > 0 {
                let mut sector = [0; 512];
                sector[56..58].copy_from_slice(&MAGIC.to_le_bytes());
                let at = both[found - 1].start + SUPERBLOCK_OFFSET;
                faulty.write_at(at, &[&sector], BioFlags::empty()).expect("written");
            }
            match choose() {
                Ok(number) => assert_eq!((found, number), (1, 1)),
                Err(Error::Ambiguous { with_ext, .. }) => assert!(found != 1 && with_ext == found),
                Err(e) => panic!("{e}"),
            }
        }
        let at = both[0].start + SUPERBLOCK_OFFSET;
        faulty.inject(Fault::eio().range(at..at + 1));
        assert!(matches!(choose(), Err(Error::Device(_))), "unread");
    }
}
