//! Partitions of a whole disk: their places, and the choice of one if the user names none.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::device::OffsetDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::partition::{Partition, Source, Table, read_table};

use crate::error::{Error, Result};
use crate::open::shows_magic;
use crate::spec::ImageSpec;

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
