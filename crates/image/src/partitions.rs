//! Partitions of a whole disk: their places, and the choice of one if the user names none. [`part_of`] makes that
//! choice on a device that is already open. [`partition_end`] and [`write_stages`] move the end of a partition.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::device::OffsetDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::partition::{CannotMove, Partition, PartitionEnd, Source, Stage, Table, read_table};

use crate::error::{BadOffset, Error, Result};
use crate::formats;
use crate::open::{has_magic, overwritten, probe, shows_magic};
use crate::spec::{ImageSpec, Part};

/// The partitions of a whole disk, and the table that lists them.
///
/// # Errors
/// [`Error::Table`]: there is a table, and it is damaged.
pub fn partition_table(dev: &dyn BlockDevice) -> Result<Table> {
    if dev.size_bytes() < 512 {
        return Ok(Table { partitions: Vec::new(), source: Source::None });
    }
    read_table(dev.size_bytes(), reading(dev)).map_err(|source| Error::Table { image: dev.name().to_owned(), source })
}

/// Reads a range if the device has it.
fn reading(dev: &dyn BlockDevice) -> impl FnMut(u64, &mut [u8]) -> bool {
    move |offset: u64, buf: &mut [u8]| {
        offset.checked_add(buf.len() as u64).is_some_and(|end| end <= dev.size_bytes())
            && dev.read_at(offset, buf, BioFlags::META).is_ok()
    }
}

/// The end of partition `number` of a whole disk.
///
/// # Errors
/// [`CannotMove`]: it has to stay where it is.
pub fn partition_end(dev: &dyn BlockDevice, number: u32) -> std::result::Result<PartitionEnd, CannotMove> {
    PartitionEnd::read(dev.size_bytes(), number, reading(dev))
}

/// Moves the end of a partition: writes the stages, each durable before the next.
///
/// # Errors
/// [`Error::Device`]; the old table or the new one is valid then.
pub fn write_stages(dev: &dyn BlockDevice, stages: &[Stage]) -> Result<()> {
    for stage in stages {
        for piece in stage {
            dev.write_at(piece.at, &[&piece.bytes], BioFlags::META)?;
        }
        dev.flush()?;
    }
    Ok(())
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
    use extant_base::rng::Rng;
    use extant_block::device::{CrashDevice, CrashMode, Fault, FaultyDevice, MemDevice};
    use extant_ondisk::superblock::{MAGIC, SUPERBLOCK_OFFSET};

    use super::*;

    /// A disk with an MBR that has one partition, from the first mebibyte on.
    fn mbr_disk(bytes: u64, len: u64) -> MemDevice {
        let disk = MemDevice::new(bytes);
        let mut sector = [0; 512];
        sector[446 + 4] = 0x83;
        sector[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
        sector[446 + 12..446 + 16].copy_from_slice(&((len / 512) as u32).to_le_bytes());
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        disk.write_at(0, &[&sector], BioFlags::META).expect("memory");
        disk
    }

    /// The same with a GPT that has 128 entries.
    fn gpt_disk(bytes: u64, len: u64) -> MemDevice {
        let disk = mbr_disk(bytes, len);
        let mut entry = [0; 128];
        entry[..16].copy_from_slice(&[7; 16]);
        entry[32..40].copy_from_slice(&2048u64.to_le_bytes());
        entry[40..48].copy_from_slice(&(2047 + len / 512).to_le_bytes());
        let mut entries = vec![0; 128 * 128];
        entries[..128].copy_from_slice(&entry);
        let mut sector = [0; 512];
        sector[446 + 4] = 0xee;
        sector[446 + 8] = 1;
        sector[446 + 12..446 + 16].copy_from_slice(&((bytes / 512 - 1) as u32).to_le_bytes());
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        disk.write_at(0, &[&sector], BioFlags::META).expect("memory");
        let last = bytes / 512 - 1;
        for (lba, other, at) in [(1, last, 2), (last, 1, last - 32)] {
            let mut header = [0; 512];
            header[..8].copy_from_slice(b"EFI PART");
            header[10] = 1;
            header[12] = 92;
            header[24..32].copy_from_slice(&lba.to_le_bytes());
            header[32..40].copy_from_slice(&other.to_le_bytes());
            header[40..48].copy_from_slice(&34u64.to_le_bytes());
            header[48..56].copy_from_slice(&(last - 33).to_le_bytes());
            header[72..80].copy_from_slice(&at.to_le_bytes());
            header[80..84].copy_from_slice(&128u32.to_le_bytes());
            header[84..88].copy_from_slice(&128u32.to_le_bytes());
            header[88..92].copy_from_slice(&crc32(&entries).to_le_bytes());
            let sum = crc32(&header[..92]);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
            disk.write_at(lba * 512, &[&header], BioFlags::META).expect("memory");
            disk.write_at(at * 512, &[&entries], BioFlags::META).expect("memory");
        }
        disk
    }

    fn crc32(data: &[u8]) -> u32 {
        let step = |crc: u32, _| if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        !data.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
    }

    /// Any sector of any write may be missing, until a flush ends.
    #[test]
    fn a_cut_leaves_the_old_partition_or_the_new_one() {
        const OLD: u64 = 8 << 20;
        let (mut states, mut old, mut new) = (0, 0, 0);
        for (is_gpt, len) in
            [(true, 2 * OLD), (true, OLD + 4096), (true, OLD / 2), (true, OLD - 4096), (false, 2 * OLD)]
        {
            let bytes = OLD + (1 << 20) + if is_gpt { 33 * 512 } else { 0 };
            let disk = if is_gpt { gpt_disk(bytes, OLD) } else { mbr_disk(bytes, OLD) };
            let end = partition_end(&disk, 1).expect("a partition");
            assert_eq!((end.start, end.len, end.ends_device), (1 << 20, OLD, true));
            let device_len = end.device_len(len);
            let longer = MemDevice::new(device_len.max(bytes));
            let mut all = vec![0; bytes as usize];
            disk.read_at(0, &mut all, BioFlags::META).expect("memory");
            longer.write_at(0, &[&all], BioFlags::META).expect("memory");
            let crash = CrashDevice::from_image(&longer);
            write_stages(&crash, &end.moved(len, device_len).expect("moved")).expect("written");
            let mut rng = Rng::new(11);
            for event in 0..=crash.write_log() {
                for mode in [CrashMode::InOrder, CrashMode::RandomSubset, CrashMode::Torn, CrashMode::Torn] {
                    let state = crash.state_during(event, &mut rng, mode).expect("a state");
                    let table = partition_table(&state).expect("a table");
                    let found = table.partitions[0].len;
                    assert!(found == OLD || found == len, "{is_gpt}, {len}: event {event}, {mode:?}: {found}");
                    (old, new) = (old + u32::from(found == OLD), new + u32::from(found == len));
                    states += 1;
                }
            }
            assert_eq!(partition_table(&crash.live()).expect("a table").partitions[0].len, len);
        }
        assert!(states > 100 && old > 20 && new > 20, "{states}: {old}, {new}");
    }

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
