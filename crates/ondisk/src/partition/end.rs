//! Moves the end of a partition.
//!
//! Main type: [`PartitionEnd`] (the end of a partition, its limits, and the writes that move it). If power is cut
//! between or within these writes, either the old table or the new one remains:
//!
//! | stage | GPT | valid during the stage |
//! |---|---|---|
//! | 1 | the backup, at the end of the device | the table at the start, as it was |
//! | 2 | one sector of entries and the header, at the start | both are new, or the backup counts, which is new |
//! | 3 | the size in the protective MBR | both |
//! | 4 | after a growth: the header of the old backup is erased | both |
//!
//! If the device becomes shorter, it still ends with the old backup during stage 2, and that backup is then the valid
//! one. So the places of the two backups must not overlap. An MBR is one sector, and so one write.
//!
//! What it does not do: I/O; change extended partitions and their contents; change a GPT whose copy at the start is
//! damaged.
//!
//! # Locking
//! None.

use super::{
    GPT_CHECKSUM_AT, Gpt, GptError, MBR_ENTRIES_AT, MBR_TYPE_GPT, MbrEntry, Read, SECTOR, crc32, gpt_header_checksum,
    gpt_range, le32, le64, plausible_entries, read_gpt_copy,
};

/// The length of a partition is a multiple of this, so that it has whole blocks of every block size.
const UNIT: u64 = 4096;
const MBR_ENTRY_BYTES: usize = 16;

/// Bytes to write, and their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset on the device, in bytes.
    pub at: u64,
    /// The content, in whole sectors.
    pub bytes: Vec<u8>,
}

/// Writes that may be made in any order, and must be durable before the next stage.
pub type Stage = Vec<Piece>;

/// The reason why the end of a partition cannot move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CannotMove {
    /// The table has no such partition.
    #[error("there is no partition {number} in a table that can be changed")]
    Absent {
        /// The number of the partition.
        number: u32,
    },
    /// The partition lies in an extended partition, or is one.
    #[error("partition {number} is a logical or extended one, whose size is in several tables")]
    Logical {
        /// The number of the partition.
        number: u32,
    },
    /// Another partition follows it.
    #[error("partition {behind} is behind it, from byte {start} on")]
    Behind {
        /// The number of the next partition.
        behind: u32,
        /// The byte at which the next partition begins.
        start: u64,
    },
    /// Two partitions share sectors.
    #[error("partition {other} overlaps it")]
    Overlap {
        /// The number of the other partition.
        other: u32,
    },
    /// A partition contains the first sector, and so the table.
    #[error("partition {other} begins with the partition table")]
    CoversTable {
        /// The number of that partition.
        other: u32,
    },
    /// The copy of the GPT at the start cannot be used.
    #[error("the partition table at the start of the disk is damaged: {why}")]
    Damaged {
        /// The fault of the table.
        why: String,
    },
    /// A hybrid MBR lists the partition as well.
    #[error("an MBR lists the partition beside the GPT")]
    Hybrid,
    /// The partition ends past the end of the device.
    #[error("it ends at byte {end}, behind the end of the disk, which has {there} bytes")]
    PastDevice {
        /// The end of the partition, in bytes.
        end: u64,
        /// The size of the device, in bytes.
        there: u64,
    },
    /// An MBR counts sectors with only 32 bits.
    #[error("an MBR has no partitions of more than {most} bytes")]
    MbrLimit {
        /// The maximum size, in bytes.
        most: u64,
    },
    /// The device would end before the partition, or before the backup of its table.
    #[error("the disk has room for {most} bytes of it")]
    Room {
        /// The maximum size, in bytes.
        most: u64,
    },
}

type Result<T> = std::result::Result<T, CannotMove>;

/// The end of a partition.
#[derive(Debug)]
pub struct PartitionEnd {
    /// The number of the partition.
    pub number: u32,
    /// The byte at which it begins.
    pub start: u64,
    /// The size of the partition, in bytes.
    pub len: u64,
    /// The next partition on the device: number and first byte.
    pub behind: Option<(u32, u64)>,
    /// Whether the device ends directly after the partition and its table: with the backup of a GPT, or for an MBR
    /// within a mebibyte, to which partitions are aligned.
    pub ends_device: bool,
    device_len: u64,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Mbr(Box<[u8; SECTOR as usize]>),
    Gpt(Box<GptTable>),
}

#[derive(Debug)]
struct GptTable {
    sector_size: u64,
    mbr: [u8; SECTOR as usize],
    /// The whole sector with the header.
    header: Vec<u8>,
    header_size: usize,
    /// The entries, in whole sectors.
    entries: Vec<u8>,
    /// The number of bytes that are entries.
    entries_len: usize,
    entry_size: usize,
    entries_lba: u64,
    /// The sector with the header of the current backup, if there is one and no partition contains it.
    backup_lba: Option<u64>,
    /// One past the last sector of the other partitions.
    others_end: u64,
}

/// The sectors of a partition: its number, the first sector, the last sector.
type Sectors = (u32, u64, u64);

impl PartitionEnd {
    /// Finds partition `number` of a device of `device_len` bytes. `read` fills a buffer from a byte offset and returns
    /// false if it cannot.
    ///
    /// # Errors
    /// [`CannotMove`] if its end cannot move at all.
    pub fn read(device_len: u64, number: u32, mut read: impl FnMut(u64, &mut [u8]) -> bool) -> Result<PartitionEnd> {
        let read: Read<'_> = &mut read;
        let mut sector = [0; SECTOR as usize];
        if device_len < SECTOR || !read(0, &mut sector) {
            return Err(CannotMove::Absent { number });
        }
        match plausible_entries(&sector) {
            Some(entries) if entries.iter().all(|entry| entry.kind != MBR_TYPE_GPT) => {
                PartitionEnd::in_mbr(device_len, number, sector, &entries)
            }
            _ => PartitionEnd::in_gpt(device_len, number, sector, read),
        }
    }

    fn in_mbr(
        device_len: u64,
        number: u32,
        sector: [u8; SECTOR as usize],
        entries: &[MbrEntry; 4],
    ) -> Result<PartitionEnd> {
        let own = number.checked_sub(1).and_then(|index| entries.get(index as usize));
        let Some(own) = own else { return Err(CannotMove::Logical { number }) };
        if own.kind == 0 || own.sectors == 0 {
            return Err(CannotMove::Absent { number });
        }
        if own.is_extended() {
            return Err(CannotMove::Logical { number });
        }
        let used = (1..).zip(entries).filter(|(_, entry)| entry.kind != 0 && entry.sectors != 0);
        let range = |(number, entry): (u32, &MbrEntry)| {
            let first = u64::from(entry.start);
            (number, first, first + u64::from(entry.sectors) - 1)
        };
        let ranges: Vec<Sectors> = used.map(range).collect();
        let mut end = PartitionEnd::among(device_len, number, SECTOR, &ranges, Form::Mbr(Box::new(sector)))?;
        end.ends_device = end.behind.is_none() && device_len - (end.start + end.len) < 1 << 20;
        Ok(end)
    }

    fn in_gpt(device_len: u64, number: u32, mbr: [u8; SECTOR as usize], read: Read<'_>) -> Result<PartitionEnd> {
        let mut why = "it has no header".to_owned();
        for sector_size in [SECTOR, 4096] {
            match read_gpt_copy(device_len, read, sector_size, 1) {
                Ok(gpt) => return PartitionEnd::of_gpt(device_len, number, mbr, &gpt, sector_size, read),
                Err(GptError::Damaged(reason)) if sector_size == SECTOR => why = reason,
                Err(_) => {}
            }
        }
        Err(CannotMove::Damaged { why })
    }

    fn of_gpt(
        device_len: u64,
        number: u32,
        mbr: [u8; SECTOR as usize],
        gpt: &Gpt,
        sector_size: u64,
        read: Read<'_>,
    ) -> Result<PartitionEnd> {
        let damaged = |why: &str| CannotMove::Damaged { why: why.to_owned() };
        let used = (1..).zip(gpt.entries.chunks_exact(gpt.entry_size));
        let ranges: Vec<Sectors> =
            used.filter_map(|(number, entry)| gpt_range(entry).map(|(first, last)| (number, first, last))).collect();
        let Some(own) = ranges.iter().find(|(other, ..)| *other == number) else {
            return Err(CannotMove::Absent { number });
        };
        let mut whole = vec![0; sector_size as usize];
        let mut entries = vec![0; gpt.entries.len().next_multiple_of(sector_size as usize)];
        if !read(sector_size, &mut whole) || !read(gpt.entries_lba.saturating_mul(sector_size), &mut entries) {
            return Err(damaged("it cannot be read"));
        }
        let entries_end = gpt.entries_lba + entries.len() as u64 / sector_size;
        if gpt.entries_lba < 2 || ranges.iter().any(|(_, first, _)| *first < entries_end) {
            return Err(damaged("its entries lie where a partition or a header does"));
        }
        if is_hybrid(&mbr, own.1) {
            return Err(CannotMove::Hybrid);
        }
        let backup = le64(&gpt.header, 32);
        let is_free = backup >= entries_end && ranges.iter().all(|(_, first, last)| backup < *first || backup > *last);
        let mut magic = [0; SECTOR as usize];
        let at =
            backup.checked_mul(sector_size).filter(|at| at.checked_add(SECTOR).is_some_and(|end| end <= device_len));
        let is_there = at.is_some_and(|at| read(at, &mut magic)) && magic.starts_with(b"EFI PART");
        let others = ranges.iter().filter(|(other, ..)| *other != number);
        let table = GptTable {
            sector_size,
            mbr,
            header: whole,
            header_size: le32(&gpt.header, 12) as usize,
            entries,
            entries_len: gpt.entries.len(),
            entry_size: gpt.entry_size,
            entries_lba: gpt.entries_lba,
            backup_lba: Some(backup).filter(|_| is_free && is_there),
            others_end: others.map(|(.., last)| last.saturating_add(1)).max().unwrap_or(0),
        };
        let mut end = PartitionEnd::among(device_len, number, sector_size, &ranges, Form::Gpt(Box::new(table)))?;
        end.ends_device = end.behind.is_none()
            && backup.checked_add(1).and_then(|end| end.checked_mul(sector_size)) == Some(device_len);
        Ok(end)
    }

    /// The partition with this number, which is one of `ranges`.
    fn among(device_len: u64, number: u32, sector_size: u64, ranges: &[Sectors], form: Form) -> Result<PartitionEnd> {
        let own = ranges.iter().find(|(other, ..)| *other == number);
        let (_, first, last) = *own.ok_or(CannotMove::Absent { number })?;
        let others = || ranges.iter().filter(|(other, ..)| *other != number);
        if let Some((other, ..)) = ranges.iter().find(|(_, first, _)| *first == 0) {
            return Err(CannotMove::CoversTable { other: *other });
        }
        if let Some((other, ..)) = others().find(|(_, start, end)| *start <= last && first <= *end) {
            return Err(CannotMove::Overlap { other: *other });
        }
        let end = last.checked_add(1).and_then(|end| end.checked_mul(sector_size));
        let end = end
            .filter(|end| *end <= device_len)
            .ok_or(CannotMove::PastDevice { end: end.unwrap_or(u64::MAX), there: device_len })?;
        let start = first * sector_size;
        let next = others().filter(|(_, start, _)| *start > last).min_by_key(|(_, start, _)| *start);
        let behind = next.map(|(other, start, _)| (*other, start.saturating_mul(sector_size)));
        Ok(PartitionEnd { number, start, len: end - start, behind, ends_device: false, device_len, form })
    }

    /// The minimum number of bytes that a device has after its last partition.
    fn tail(&self) -> u64 {
        match &self.form {
            Form::Mbr(_) => 0,
            Form::Gpt(table) => table.entries.len() as u64 + table.sector_size,
        }
    }

    /// The maximum size in bytes of the partition on a device of `device_len` bytes, but at least its current size.
    pub fn longest(&self, device_len: u64) -> u64 {
        if self.behind.is_some() {
            return self.len;
        }
        let end = match &self.form {
            Form::Mbr(_) => device_len,
            Form::Gpt(table) => (device_len - device_len % table.sector_size).saturating_sub(self.tail()),
        };
        let len = end.saturating_sub(self.start);
        let most = if let Form::Mbr(_) = self.form { u64::from(u32::MAX) * SECTOR } else { u64::MAX };
        let len = len.min(most);
        (len - len % UNIT).max(self.len)
    }

    /// The minimum length of a partition that contains this many bytes.
    pub fn len_for(bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(UNIT).unwrap_or(bytes)
    }

    /// The length of the device when the partition has `len` bytes. A growth makes the device long enough. If the last
    /// partition becomes shorter, so does the device, provided that it ends with the table.
    pub fn device_len(&self, len: u64) -> u64 {
        let needed = self.start.saturating_add(len).saturating_add(self.tail());
        // The places of both backups must not overlap.
        let saved = self.device_len.saturating_sub(needed);
        if self.ends_device && len < self.len && saved > self.tail() { needed } else { needed.max(self.device_len) }
    }

    /// The writes that give the partition `len` bytes. The device has `device_len` bytes before the writes (for a
    /// growth) or gets them afterwards: [`PartitionEnd::device_len`], or another length that works.
    ///
    /// # Errors
    /// [`CannotMove`] if the partition cannot have this length on such a device.
    pub fn moved(&self, len: u64, device_len: u64) -> Result<Vec<Stage>> {
        if let Some((behind, start)) = self.behind.filter(|_| len > self.len) {
            return Err(CannotMove::Behind { behind, start });
        }
        let needed = self.start.saturating_add(len).saturating_add(self.tail());
        let is_close = device_len < self.device_len && self.device_len - device_len <= self.tail();
        if needed > device_len || is_close || len < UNIT {
            return Err(CannotMove::Room { most: self.longest(device_len) });
        }
        match &self.form {
            Form::Mbr(sector) => self.moved_in_mbr(sector, len),
            Form::Gpt(table) => self.moved_in_gpt(table, len, device_len),
        }
    }

    fn moved_in_mbr(&self, sector: &[u8; SECTOR as usize], len: u64) -> Result<Vec<Stage>> {
        let sectors = u32::try_from(len / SECTOR);
        let sectors = sectors.map_err(|_| CannotMove::MbrLimit { most: u64::from(u32::MAX) * SECTOR })?;
        let mut bytes = sector.to_vec();
        let entry = &mut bytes[MBR_ENTRIES_AT + (self.number as usize - 1) * MBR_ENTRY_BYTES..][..MBR_ENTRY_BYTES];
        entry[5..8].copy_from_slice(&cylinder_head_sector((self.start + len) / SECTOR - 1));
        entry[12..16].copy_from_slice(&sectors.to_le_bytes());
        Ok(vec![vec![Piece { at: 0, bytes }]])
    }

    fn moved_in_gpt(&self, table: &GptTable, len: u64, device_len: u64) -> Result<Vec<Stage>> {
        let size = table.sector_size;
        let sectors = device_len / size;
        let backup_lba = sectors - 1;
        let backup_entries = backup_lba - table.entries.len() as u64 / size;
        let last = (self.start + len) / size - 1;
        if last >= backup_entries || table.others_end > backup_entries {
            return Err(CannotMove::Room { most: self.longest(device_len) });
        }
        let mut entries = table.entries.clone();
        let entry_at = (self.number as usize - 1) * table.entry_size;
        entries[entry_at + 40..entry_at + 48].copy_from_slice(&last.to_le_bytes());
        let checksum = !crc32(!0, &entries[..table.entries_len]);
        let header = |own: u64, other: u64, entries_lba: u64| {
            let mut header = table.header.clone();
            header[24..32].copy_from_slice(&own.to_le_bytes());
            header[32..40].copy_from_slice(&other.to_le_bytes());
            header[48..56].copy_from_slice(&(backup_entries - 1).to_le_bytes());
            header[72..80].copy_from_slice(&entries_lba.to_le_bytes());
            header[88..92].copy_from_slice(&checksum.to_le_bytes());
            let own = gpt_header_checksum(&header, table.header_size);
            header[GPT_CHECKSUM_AT..GPT_CHECKSUM_AT + 4].copy_from_slice(&own.to_le_bytes());
            header
        };
        let sector_at = entry_at - entry_at % size as usize;
        let changed = entries[sector_at..sector_at + size as usize].to_vec();
        let mut stages = vec![
            vec![
                Piece { at: backup_entries * size, bytes: entries },
                Piece { at: backup_lba * size, bytes: header(backup_lba, 1, backup_entries) },
            ],
            vec![
                Piece { at: table.entries_lba * size + sector_at as u64, bytes: changed },
                Piece { at: size, bytes: header(1, backup_lba, table.entries_lba) },
            ],
        ];
        stages.extend(protective(&table.mbr, sectors).map(|bytes| vec![Piece { at: 0, bytes }]));
        let stale = table.backup_lba.filter(|lba| *lba < backup_entries && device_len > self.device_len);
        stages.extend(stale.map(|lba| vec![Piece { at: lba * size, bytes: vec![0; size as usize] }]));
        Ok(stages)
    }
}

/// Whether a hybrid MBR lists the partition that begins at this sector.
fn is_hybrid(mbr: &[u8; SECTOR as usize], first: u64) -> bool {
    let entries = plausible_entries(mbr);
    entries.is_some_and(|entries| {
        entries.iter().any(|entry| ![0, MBR_TYPE_GPT].contains(&entry.kind) && u64::from(entry.start) == first)
    })
}

/// A protective MBR for a device of this many sectors. `None` if the present one is right, or does not cover the
/// device.
fn protective(mbr: &[u8; SECTOR as usize], sectors: u64) -> Option<Vec<u8>> {
    let entries = plausible_entries(mbr)?;
    let index = entries.iter().position(|entry| entry.kind == MBR_TYPE_GPT)?;
    let is_alone = entries.iter().filter(|entry| entry.kind != 0).count() == 1;
    let covered = u32::try_from(sectors - 1).unwrap_or(u32::MAX);
    let entry = &entries[index];
    if !is_alone || entry.start != 1 || [covered, u32::MAX].contains(&entry.sectors) {
        return None;
    }
    let mut bytes = mbr.to_vec();
    bytes[MBR_ENTRIES_AT + index * MBR_ENTRY_BYTES + 12..][..4].copy_from_slice(&covered.to_le_bytes());
    Some(bytes)
}

/// The place of a sector in the old notation: 63 sectors in a track, 255 heads, 1024 cylinders.
fn cylinder_head_sector(sector: u64) -> [u8; 3] {
    let (track, sector_of) = (sector / 63, sector % 63 + 1);
    let (cylinder, head) = (track / 255, track % 255);
    if cylinder > 1023 {
        return [0xfe, 0xff, 0xff];
    }
    [head as u8, sector_of as u8 | (cylinder >> 8 << 6) as u8, cylinder as u8]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{gpt_disk, mbr_disk, parse, places, put_entry, table};
    use super::super::{Source, Table};
    use super::*;

    fn end_of(disk: &[u8], number: u32) -> Result<PartitionEnd> {
        PartitionEnd::read(disk.len() as u64, number, |offset, buffer| {
            let from = disk.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
            from.map(|from| buffer.copy_from_slice(from)).is_some()
        })
    }

    fn write(disk: &mut [u8], pieces: &[Piece]) {
        for piece in pieces {
            disk[piece.at as usize..][..piece.bytes.len()].copy_from_slice(&piece.bytes);
        }
    }

    /// Moves the end of a partition, and checks every intermediate state: each subset of the writes of a stage.
    fn moved(disk: &[u8], number: u32, len: u64) -> Vec<u8> {
        let end = end_of(disk, number).expect("a partition");
        let device_len = end.device_len(len);
        let stages = end.moved(len, device_len).expect("moved");
        let mut now = disk.to_vec();
        now.resize(disk.len().max(device_len as usize), 0);
        let old = parse(disk).expect("a table");
        let mut new = old.clone();
        new.iter_mut().filter(|partition| partition.number == number).for_each(|partition| partition.len = len);
        for stage in stages {
            for subset in 0..1u32 << stage.len() {
                let mut torn = now.clone();
                let some = (0..).zip(&stage).filter(|(at, _)| subset >> at & 1 == 1);
                some.for_each(|(_, piece)| write(&mut torn, std::slice::from_ref(piece)));
                let found = parse(&torn).expect("a table after a cut");
                assert!(found == old || found == new, "{found:?}");
            }
            write(&mut now, &stage);
        }
        now.truncate(device_len as usize);
        assert_eq!(parse(&now).expect("a table"), new);
        now
    }

    /// Both copies of a GPT are valid and equal, and the second one is at the end.
    fn assert_sound(disk: &[u8], sector: usize) {
        let whole = table(disk).expect("a table");
        assert_eq!(whole.source, Source::Gpt);
        let mut second = disk.to_vec();
        second[sector..2 * sector].fill(0);
        assert_eq!(table(&second), Ok(Table { source: Source::BackupGpt, ..whole }));
        let header = &disk[sector..];
        assert_eq!(le64(header, 32), (disk.len() / sector) as u64 - 1);
        assert_eq!(le64(header, 48), (disk.len() / sector) as u64 - 1 - (2048 / sector).max(1) as u64 - 1);
        assert_eq!(u64::from(le32(disk, MBR_ENTRIES_AT + 12)), (disk.len() / sector) as u64 - 1);
    }

    #[test]
    fn the_last_partition_of_a_gpt_grows_and_shrinks_and_the_backup_follows() {
        for sector in [512, 4096] {
            let disk = gpt_disk(sector);
            for len in [(120 * sector as u64).next_multiple_of(4096), 64 << 20] {
                let grown = moved(&disk, 3, len);
                assert_sound(&grown, sector);
                assert!(!grown[199 * sector..][..512].starts_with(b"EFI PART"), "the old backup is erased");
                let least = 8 * sector as u64;
                let end = end_of(&grown, 3).expect("a partition");
                // The old backup would overlap the new one.
                let close = grown.len() as u64 - 512;
                assert!(matches!(end.moved(least, close), Err(CannotMove::Room { .. })), "{close}");
                let shrunk = moved(&grown, 3, least);
                assert_sound(&shrunk, sector);
                assert!(shrunk.len() < grown.len() && shrunk.len() as u64 >= 88 * sector as u64 + 2048);
                // Everything that belongs to other partitions is unchanged.
                assert_eq!(shrunk[2 * sector..][..256 + 40], disk[2 * sector..][..256 + 40]);
                assert_eq!(shrunk[2 * sector + 256 + 48..][..1700], disk[2 * sector + 256 + 48..][..1700]);
            }
        }
    }

    #[test]
    fn a_longer_disk_gives_its_room_to_the_last_partition() {
        for sector in [512u64, 4096] {
            let mut disk = gpt_disk(sector as usize);
            disk.resize(disk.len() + (4 << 20) + 512, 0);
            let longest = end_of(&disk, 3).expect("a partition").longest(disk.len() as u64);
            let tail = sector + 2048u64.next_multiple_of(sector);
            let room = disk.len() as u64 - 80 * sector - tail;
            assert!(longest <= room && longest + 4096 + sector > room, "{longest} of {room}");
            let mut grown = moved(&disk, 3, longest);
            grown.truncate(grown.len() - grown.len() % sector as usize);
            assert_eq!(parse(&grown).expect("a table")[1].len, longest);
        }
    }

    #[test]
    fn a_partition_before_another_one_shrinks_and_does_not_grow() {
        let disk = gpt_disk(512);
        let end = end_of(&disk, 1).expect("a partition");
        assert_eq!(end.behind, Some((3, 80 * 512)));
        assert_eq!(end.moved(1 << 20, 1 << 30), Err(CannotMove::Behind { behind: 3, start: 80 * 512 }));
        assert_eq!(end.longest(1 << 30), end.len);
        let shrunk = moved(&disk, 1, 8192);
        assert_eq!(shrunk.len(), disk.len());
        assert_sound(&shrunk, 512);
    }

    #[test]
    fn an_mbr_changes_one_entry() {
        let mut disk = mbr_disk();
        disk.resize(512 * 1010, 0);
        // In a truncated image, the partition ends past the end of the device.
        assert!(matches!(end_of(&disk, 4), Err(CannotMove::PastDevice { .. })));
        disk.resize(512 * 1050, 0);
        let grown = moved(&disk, 4, 1 << 20);
        assert_eq!(grown.len(), 950 * 512 + (1 << 20));
        let unlike: Vec<usize> = (0..disk.len()).filter(|at| disk[*at] != grown[*at]).collect();
        assert!(unlike.iter().all(|at| (446 + 48 + 5..446 + 64).contains(at)), "{unlike:?}");
        assert_eq!(places(&parse(&moved(&grown, 4, 4096)).expect("a table"))[1], (4, 950, 8));
        let end = end_of(&disk, 1).expect("a partition");
        assert_eq!(end.moved(1 << 20, 1 << 30), Err(CannotMove::Behind { behind: 2, start: 100 * 512 }));
        for number in [0, 2, 5, 6, 99] {
            assert_eq!(end_of(&disk, number).map(|end| end.len), Err(CannotMove::Logical { number }));
        }
        assert_eq!(end_of(&disk, 3).map(|end| end.len), Err(CannotMove::Absent { number: 3 }));
        let last = end_of(&disk, 4).expect("a partition");
        assert_eq!(last.moved(1 << 42, 1 << 60), Err(CannotMove::MbrLimit { most: (u64::from(u32::MAX)) * 512 }));
        assert!(last.longest(1 << 60) <= u64::from(u32::MAX) * 512);
        put_entry(&mut disk, 0, 2, 0x83, 960, 2);
        assert_eq!(end_of(&disk, 4).map(|end| end.len), Err(CannotMove::Overlap { other: 3 }));
    }

    #[test]
    fn an_end_in_cylinders_has_the_largest_numbers_if_it_is_too_far() {
        assert_eq!(cylinder_head_sector(131_071), [0x28, 0x20, 0x08]);
        assert_eq!(cylinder_head_sector(419_430_399), [0xfe, 0xff, 0xff]);
    }

    #[test]
    fn a_damaged_or_ambiguous_gpt_is_not_changed() {
        let mut disk = gpt_disk(512);
        assert_eq!(end_of(&disk, 2).map(|end| end.len), Err(CannotMove::Absent { number: 2 }));
        put_entry(&mut disk, 0, 1, 0x83, 80, 71);
        assert_eq!(end_of(&disk, 3).map(|end| end.len), Err(CannotMove::Hybrid));
        let mut disk = gpt_disk(512);
        disk[512 + 30] ^= 1;
        assert!(matches!(end_of(&disk, 3), Err(CannotMove::Damaged { .. })));
        assert_eq!(table(&disk).map(|table| table.source), Ok(Source::BackupGpt));
    }

    proptest! {
        /// No table causes a panic, or a write outside the device or over another partition.
        #[test]
        fn hostile_tables_are_refused_or_changed_in_their_own_sectors(
            gpt in any::<bool>(),
            changes in prop::collection::vec((0usize..5000, any::<u8>()), 0..6),
            number in 0u32..7,
            len in 0u64..200_000,
        ) {
            let mut disk = if gpt { gpt_disk(512) } else { mbr_disk() };
            for (at, value) in changes {
                disk[at] = value;
            }
            if gpt {
                // With right checksums, more of the changes pass.
                let sum = !crc32(!0, &disk[1024..1024 + 2048]);
                disk[512 + 88..512 + 92].copy_from_slice(&sum.to_le_bytes());
                let sum = gpt_header_checksum(&disk[512..1024], 92);
                disk[512 + 16..512 + 20].copy_from_slice(&sum.to_le_bytes());
            }
            let Ok(end) = end_of(&disk, number) else { return Ok(()) };
            let len = PartitionEnd::len_for(len).max(4096);
            let device_len = end.device_len(len).max(disk.len() as u64);
            let Ok(stages) = end.moved(len, end.device_len(len)) else { return Ok(()) };
            for piece in stages.concat() {
                let last = piece.at + piece.bytes.len() as u64;
                prop_assert!(last <= device_len);
                for other in parse(&disk).unwrap_or_default() {
                    let end = if other.number == number { other.start + len.min(other.len) } else { other.start + other.len };
                    // A logical partition lies in the extended one, whose sectors belong to another table.
                    prop_assert!(last <= other.start || piece.at >= end, "{piece:?} meets {other:?}");
                }
            }
        }
    }
}
