//! Partition tables, so that a whole-disk image can be opened: MBR with its extended chain, and GPT.
//!
//! Main types: [`read_table`] (finds the partitions), [`Table`], [`Partition`], [`PartitionEnd`] (moves the end of
//! one). What it does not do: create tables. An ext file system that fills the whole device may have boot code with the
//! MBR signature before it, so look for a superblock first.
//!
//! # Locking
//! None.

mod end;

pub use self::end::{CannotMove, PartitionEnd, Piece, Stage};
use crate::{Error, Result, Structure};

/// A partition whose range lies on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The number, as in Linux: MBR primaries from 1 to 4, logical ones from 5; GPT by entry, from 1.
    pub number: u32,
    /// The start, in bytes from the start of the device.
    pub start: u64,
    /// The size, in bytes.
    pub len: u64,
    /// The type: its name if it is a common one, otherwise the type in hexadecimal or the GUID.
    pub type_name: String,
    /// The label in a GPT; empty in an MBR.
    pub label: String,
}

/// The place where a table was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// There is no table.
    None,
    /// The first sector and, if there is an extended partition, its chain.
    Mbr,
    /// The GPT at the start of the device.
    Gpt,
    /// The copy of the GPT at the end of the device, because the one at the start is damaged or missing.
    BackupGpt,
}

/// A device's partitions, and the table that lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The partitions, in the order of the table.
    pub partitions: Vec<Partition>,
    /// The table that lists them.
    pub source: Source,
}

const SECTOR: u64 = 512;
/// The maximum number of logical partitions; a longer chain counts as broken.
const LOGICAL_MAX: usize = 128;
/// The maximum number of GPT entries; the standard says 128, and no known program creates more than this.
const GPT_ENTRIES_MAX: u32 = 1024;
const GPT_ENTRY_SIZE_MAX: u32 = 4096;
const GPT_HEADER_MIN: usize = 92;
const GPT_CHECKSUM_AT: usize = 16;
const MBR_ENTRIES_AT: usize = 446;
const MBR_TYPE_GPT: u8 = 0xee;

/// Reads at a byte offset and fills the buffer; returns false if that fails.
type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> bool;

/// Finds the partitions of a device of `device_len` bytes; there are none if it has no table. `read` fills a buffer
/// from a byte offset and returns false if it cannot.
///
/// Sectors are assumed to have 512 bytes, but a GPT for sectors of 4096 bytes is found as well. Without an MBR in the
/// first sector, either copy of a GPT is used. Its checksums prove that it is a GPT, and accidents usually overwrite
/// the first sectors of a disk.
///
/// # Errors
/// `Corrupt` if there is a table but it contradicts itself (both GPT copies bad, a chain of logical partitions that
/// loops) or cannot be read.
pub fn read_table(device_len: u64, mut read: impl FnMut(u64, &mut [u8]) -> bool) -> Result<Table> {
    let read: Read<'_> = &mut read;
    let mut sector = [0; SECTOR as usize];
    if device_len < SECTOR || !read(0, &mut sector) {
        return Err(Error::corrupt(Structure::PartitionTable, 0u32, "cannot be read"));
    }
    let Some(entries) = plausible_entries(&sector) else {
        return Ok(read_gpt(device_len, read).unwrap_or(Table { partitions: Vec::new(), source: Source::None }));
    };
    if entries.iter().any(|entry| entry.kind == MBR_TYPE_GPT) {
        return read_gpt(device_len, read);
    }
    let mut found = Vec::new();
    let mut extended = None;
    for (number, entry) in (1..).zip(&entries) {
        if entry.is_extended() {
            extended.get_or_insert((entry.start, entry.sectors));
        } else if entry.kind != 0 {
            push(&mut found, device_len, entry.partition(number, 0));
        }
    }
    if let Some((start, sectors)) = extended {
        read_logical(device_len, read, start, sectors, &mut found)?;
    }
    let source = if found.is_empty() { Source::None } else { Source::Mbr };
    Ok(Table { partitions: found, source })
}

/// Keeps a partition if it begins on the device. One that ends past the device is cut, as Linux does with truncated
/// images.
fn push(found: &mut Vec<Partition>, device_len: u64, mut partition: Partition) {
    if partition.start >= device_len || partition.len == 0 {
        return;
    }
    partition.len = partition.len.min(device_len - partition.start);
    found.push(partition);
}

/// One of the four entries of an MBR, or of a logical partition's sector. Start and size are in sectors.
struct MbrEntry {
    status: u8,
    kind: u8,
    start: u32,
    sectors: u32,
}

impl MbrEntry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85) && self.sectors != 0
    }

    /// `base` is the sector that the start is relative to.
    fn partition(&self, number: u32, base: u64) -> Partition {
        Partition {
            number,
            start: (base + u64::from(self.start)) * SECTOR,
            len: u64::from(self.sectors) * SECTOR,
            type_name: mbr_type_name(self.kind),
            label: String::new(),
        }
    }
}

/// The entries, or `None` without the signature.
fn mbr_entries(sector: &[u8; SECTOR as usize]) -> Option<[MbrEntry; 4]> {
    if sector[510..] != [0x55, 0xaa] {
        return None;
    }
    Some(std::array::from_fn(|index| {
        let entry = &sector[MBR_ENTRIES_AT + index * 16..][..16];
        MbrEntry { status: entry[0], kind: entry[4], start: le32(entry, 8), sectors: le32(entry, 12) }
    }))
}

/// The entries of a first sector. Boot code that happens to end in the signature has invalid entries.
fn plausible_entries(sector: &[u8; SECTOR as usize]) -> Option<[MbrEntry; 4]> {
    mbr_entries(sector).filter(|entries| entries.iter().all(|entry| entry.status & 0x7f == 0))
}

/// Follows the chain. Each sector has a partition relative to itself, and the next sector relative to the extended
/// partition.
fn read_logical(
    device_len: u64,
    read: Read<'_>,
    extended: u32,
    sectors: u32,
    found: &mut Vec<Partition>,
) -> Result<()> {
    let mut visited = Vec::new();
    let mut at = u64::from(extended);
    let mut number = 5;
    loop {
        if visited.contains(&at) || visited.len() >= LOGICAL_MAX {
            return Err(Error::corrupt(Structure::PartitionTable, at, "chain of logical partitions does not end"));
        }
        visited.push(at);
        let mut sector = [0; SECTOR as usize];
        if at * SECTOR + SECTOR > device_len || !read(at * SECTOR, &mut sector) {
            return Err(Error::corrupt(Structure::PartitionTable, at, "logical partition cannot be read"));
        }
        // An empty extended partition may have no table yet.
        let Some(entries) = mbr_entries(&sector) else { return Ok(()) };
        for entry in &entries {
            if entry.kind != 0 && !entry.is_extended() && entry.sectors != 0 {
                push(found, device_len, entry.partition(number, at));
                number += 1;
            }
        }
        match entries.iter().find(|entry| entry.is_extended()) {
            Some(next) if next.start < sectors => at = u64::from(extended) + u64::from(next.start),
            _ => return Ok(()),
        }
    }
}

/// Reads the GPT from its first header, or from the copy at the end of the device.
fn read_gpt(device_len: u64, read: Read<'_>) -> Result<Table> {
    let mut reason = String::from("device too short");
    for sector_size in [SECTOR, 4096] {
        let Some(last) = (device_len / sector_size).checked_sub(1) else { continue };
        for (lba, source) in [(1, Source::Gpt), (last, Source::BackupGpt)] {
            match read_gpt_copy(device_len, read, sector_size, lba) {
                Ok(gpt) => return Ok(Table { partitions: gpt.partitions(device_len, sector_size), source }),
                // Report the reason for the place where a header was most likely.
                Err(GptError::Damaged(why)) if sector_size == SECTOR => reason = why,
                Err(_) => {}
            }
        }
    }
    Err(Error::corrupt(Structure::PartitionTable, 1u32, format!("no valid GPT header: {reason}")))
}

enum GptError {
    Absent,
    Damaged(String),
}

/// A valid copy of a GPT.
struct Gpt {
    /// The first 512 bytes of the sector with its header.
    header: [u8; SECTOR as usize],
    entries: Vec<u8>,
    entry_size: usize,
    entries_lba: u64,
}

/// The first and last sector of an entry; `None` if it is not in use.
fn gpt_range(entry: &[u8]) -> Option<(u64, u64)> {
    let (first, last) = (le64(entry, 32), le64(entry, 40));
    (entry[..16] != [0; 16] && first <= last).then_some((first, last))
}

fn read_gpt_copy(device_len: u64, read: Read<'_>, sector_size: u64, lba: u64) -> std::result::Result<Gpt, GptError> {
    let damaged = |why: &str| GptError::Damaged(why.to_string());
    let mut header = [0; SECTOR as usize];
    if !read(lba * sector_size, &mut header) {
        return Err(damaged("header cannot be read"));
    }
    if &header[..8] != b"EFI PART" {
        return Err(GptError::Absent);
    }
    let size = le32(&header, 12) as usize;
    if !(GPT_HEADER_MIN..=header.len()).contains(&size) {
        return Err(damaged("header size"));
    }
    if gpt_header_checksum(&header, size) != le32(&header, GPT_CHECKSUM_AT) {
        return Err(damaged("header checksum"));
    }
    if le64(&header, 24) != lba {
        return Err(damaged("header belongs elsewhere"));
    }
    let (entries_lba, count, entry_size) = (le64(&header, 72), le32(&header, 80), le32(&header, 84));
    if !(128..=GPT_ENTRY_SIZE_MAX).contains(&entry_size) || !entry_size.is_power_of_two() || count > GPT_ENTRIES_MAX {
        return Err(damaged("entry size or count"));
    }
    let bytes = u64::from(count) * u64::from(entry_size);
    let start = entries_lba.checked_mul(sector_size);
    let Some(start) = start.filter(|start| start.checked_add(bytes).is_some_and(|end| end <= device_len)) else {
        return Err(damaged("entries outside the device"));
    };
    // The limits above allow at most 4 MiB.
    let mut entries = vec![0; bytes as usize];
    if !read(start, &mut entries) {
        return Err(damaged("entries cannot be read"));
    }
    if crc32(!0, &entries) != !le32(&header, 88) {
        return Err(damaged("checksum of the entries"));
    }
    Ok(Gpt { header, entries, entry_size: entry_size as usize, entries_lba })
}

/// The checksum of a header of `size` bytes; it does not cover its own field.
fn gpt_header_checksum(header: &[u8], size: usize) -> u32 {
    let mut bytes = header[..size].to_vec();
    bytes[GPT_CHECKSUM_AT..GPT_CHECKSUM_AT + 4].fill(0);
    !crc32(!0, &bytes)
}

impl Gpt {
    fn partitions(&self, device_len: u64, sector_size: u64) -> Vec<Partition> {
        let mut found = Vec::new();
        for (number, entry) in (1..).zip(self.entries.chunks_exact(self.entry_size)) {
            let Some((first, last)) = gpt_range(entry) else { continue };
            let (Some(start), Some(len)) = (
                first.checked_mul(sector_size),
                (last - first).checked_add(1).and_then(|sectors| sectors.checked_mul(sector_size)),
            ) else {
                continue;
            };
            let units: Vec<u16> =
                entry[56..128].chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]])).collect();
            let end = units.iter().position(|&unit| unit == 0).unwrap_or(units.len());
            let partition = Partition {
                number,
                start,
                len,
                type_name: guid_name(&entry[..16]),
                label: String::from_utf16_lossy(&units[..end]),
            };
            push(&mut found, device_len, partition);
        }
        found
    }
}

fn mbr_type_name(kind: u8) -> String {
    match kind {
        0x07 => "NTFS or exFAT".into(),
        0x0b | 0x0c => "FAT32".into(),
        0x82 => "Linux swap".into(),
        0x83 => "Linux".into(),
        0x8e => "Linux LVM".into(),
        0xef => "EFI system".into(),
        0xfd => "Linux RAID".into(),
        other => format!("{other:#04x}"),
    }
}

/// The name of a partition type, or the GUID in its usual spelling, in which the first three parts are little-endian.
fn guid_name(guid: &[u8]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02X}")).collect::<String>();
    let reversed = |bytes: &[u8]| bytes.iter().rev().map(|byte| format!("{byte:02X}")).collect::<String>();
    let text = format!(
        "{}-{}-{}-{}-{}",
        reversed(&guid[..4]),
        reversed(&guid[4..6]),
        reversed(&guid[6..8]),
        hex(&guid[8..10]),
        hex(&guid[10..16])
    );
    match text.as_str() {
        "0FC63DAF-8483-4772-8E79-3D69D8477DE4" => "Linux".into(),
        "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709" => "Linux root (x86-64)".into(),
        "B921B045-1DF0-41C3-AF44-4C6F280D3FAE" => "Linux root (ARM64)".into(),
        "933AC7E1-2EB4-4F13-B844-0E14E2AEF915" => "Linux home".into(),
        "3B8F8425-20E0-4F3B-907F-1A25A76F98E8" => "Linux server data".into(),
        "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F" => "Linux swap".into(),
        "E6D6D379-F507-44C2-A23C-238F2A3DF928" => "Linux LVM".into(),
        "A19D880F-05FC-4D3B-A006-743F0F84911E" => "Linux RAID".into(),
        "C12A7328-F81F-11D2-BA4B-00A0C93EC93B" => "EFI system".into(),
        "21686148-6449-6E6F-744E-656564454649" => "BIOS boot".into(),
        "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7" => "Microsoft basic data".into(),
        _ => text,
    }
}

/// CRC32 as in Ethernet and GPT, without the final inversion. It is computed bit by bit, because only a few kilobytes
/// are checked.
fn crc32(seed: u32, data: &[u8]) -> u32 {
    data.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 != 0 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 })
    })
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn parse(disk: &[u8]) -> Result<Vec<Partition>> {
        table(disk).map(|table| table.partitions)
    }

    pub fn table(disk: &[u8]) -> Result<Table> {
        read_table(disk.len() as u64, |offset, buffer| {
            let from = disk.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
            from.map(|from| buffer.copy_from_slice(from)).is_some()
        })
    }

    pub fn put_entry(disk: &mut [u8], sector: usize, index: usize, kind: u8, start: u32, sectors: u32) {
        let table = &mut disk[sector * 512..][..512];
        table[510..].copy_from_slice(&[0x55, 0xaa]);
        let entry = &mut table[446 + index * 16..][..16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..16].copy_from_slice(&sectors.to_le_bytes());
    }

    pub fn places(found: &[Partition]) -> Vec<(u32, u64, u64)> {
        found.iter().map(|partition| (partition.number, partition.start / 512, partition.len / 512)).collect()
    }

    pub fn mbr_disk() -> Vec<u8> {
        let mut disk = vec![0; 512 * 1000];
        put_entry(&mut disk, 0, 0, 0x83, 10, 90);
        put_entry(&mut disk, 0, 1, 0x0f, 100, 800);
        put_entry(&mut disk, 0, 3, 0x82, 950, 100);
        put_entry(&mut disk, 100, 0, 0x83, 1, 99);
        put_entry(&mut disk, 100, 1, 0x05, 300, 300);
        put_entry(&mut disk, 400, 0, 0x8e, 2, 50);
        disk
    }

    pub fn gpt_disk(sector: usize) -> Vec<u8> {
        let mut disk = vec![0; sector * 200];
        put_entry(&mut disk, 0, 0, 0xee, 1, 199);
        let linux = [0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4];
        let mut entries = vec![0; 128 * 16];
        for (index, first, last) in [(0usize, 40u64, 79u64), (2, 80, 150)] {
            let entry = &mut entries[index * 128..][..128];
            entry[..16].copy_from_slice(&linux);
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
            entry[56..60].copy_from_slice(&[b'h', 0, b'i', 0]);
        }
        for (lba, entries_lba) in [(1u64, 2u64), (199, 190)] {
            let mut header = [0; 92];
            header[..8].copy_from_slice(b"EFI PART");
            header[8..12].copy_from_slice(&0x1_0000u32.to_le_bytes());
            header[12..16].copy_from_slice(&92u32.to_le_bytes());
            header[24..32].copy_from_slice(&lba.to_le_bytes());
            header[32..40].copy_from_slice(&(200 - lba).to_le_bytes());
            header[40..48].copy_from_slice(&10u64.to_le_bytes());
            header[48..56].copy_from_slice(&180u64.to_le_bytes());
            header[72..80].copy_from_slice(&entries_lba.to_le_bytes());
            header[80..84].copy_from_slice(&16u32.to_le_bytes());
            header[84..88].copy_from_slice(&128u32.to_le_bytes());
            header[88..92].copy_from_slice(&(!crc32(!0, &entries)).to_le_bytes());
            let checksum = !crc32(!0, &header);
            header[16..20].copy_from_slice(&checksum.to_le_bytes());
            disk[lba as usize * sector..][..92].copy_from_slice(&header);
            disk[entries_lba as usize * sector..][..entries.len()].copy_from_slice(&entries);
        }
        disk
    }

    #[test]
    fn crc32_has_the_check_value() {
        assert_eq!(!crc32(!0, b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn an_mbr_with_logical_partitions_is_read() {
        let found = parse(&mbr_disk()).unwrap();
        assert_eq!(places(&found), [(1, 10, 90), (4, 950, 50), (5, 101, 99), (6, 402, 50)]);
        assert_eq!(found[0].type_name, "Linux");
        assert_eq!(found[3].type_name, "Linux LVM");
    }

    #[test]
    fn a_chain_that_loops_ends() {
        let mut disk = mbr_disk();
        put_entry(&mut disk, 400, 1, 0x05, 0, 300);
        assert!(parse(&disk).unwrap_err().to_string().contains("does not end"));
        put_entry(&mut disk, 400, 1, 0x05, 900, 300);
        assert_eq!(parse(&disk).unwrap().len(), 4);
    }

    #[test]
    fn a_device_without_a_table_has_no_partitions() {
        assert_eq!(parse(&[0; 4096]), Ok(vec![]));
        let mut boot_code = vec![0x90; 4096];
        boot_code[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(parse(&boot_code), Ok(vec![]));
        parse(&[0; 100]).unwrap_err();
    }

    #[test]
    fn a_gpt_is_read_from_either_copy() {
        for sector in [512, 4096] {
            let mut disk = gpt_disk(sector);
            let found = parse(&disk).unwrap();
            let unit = sector as u64 / 512;
            assert_eq!(places(&found), [(1, 40 * unit, 40 * unit), (3, 80 * unit, 71 * unit)]);
            assert_eq!((found[0].type_name.as_str(), found[0].label.as_str()), ("Linux", "hi"));
            assert_eq!(table(&disk).unwrap().source, Source::Gpt);
            disk[sector + 30] ^= 1;
            assert_eq!(table(&disk), Ok(Table { partitions: found, source: Source::BackupGpt }));
            disk[190 * sector] ^= 1;
            assert!(parse(&disk).unwrap_err().to_string().contains("no valid GPT"));
        }
    }

    #[test]
    fn gpt_is_found_after_the_first_sectors_are_overwritten() {
        for sector in [512, 4096] {
            let whole = gpt_disk(sector);
            let found = parse(&whole).unwrap();
            for (overwritten, source) in [(1, Source::Gpt), (20, Source::BackupGpt)] {
                for byte in [0, 0xe5] {
                    let mut disk = whole.clone();
                    disk[..overwritten * sector].fill(byte);
                    assert_eq!(table(&disk), Ok(Table { partitions: found.clone(), source }));
                }
            }
        }
    }

    /// util-linux finds the same partitions on the same disks; skipped if it is not installed.
    #[test]
    fn partx_finds_the_same() {
        let mut mbr = mbr_disk();
        mbr.resize(512 * 1100, 0);
        for (name, disk) in [("mbr", mbr), ("gpt", gpt_disk(512))] {
            let path = std::env::temp_dir().join(format!("extant-partition-{name}-{}", std::process::id()));
            std::fs::write(&path, &disk).unwrap();
            let output = std::process::Command::new("partx").args(["-g", "-o", "NR,START,SECTORS"]).arg(&path).output();
            std::fs::remove_file(&path).unwrap();
            let Ok(output) = output else { return };
            let text = String::from_utf8_lossy(&output.stdout);
            // It also lists the extended partition, which contains the logical ones but no file system.
            let theirs: Vec<Vec<u64>> = text
                .lines()
                .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
                .filter(|partition: &Vec<u64>| name == "gpt" || partition[0] != 2)
                .collect();
            let ours: Vec<Vec<u64>> = places(&parse(&disk).unwrap())
                .into_iter()
                .map(|(number, start, sectors)| vec![number.into(), start, sectors])
                .collect();
            assert_eq!(ours, theirs, "{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    proptest! {
        #[test]
        fn corruption_never_panics(
            gpt in any::<bool>(),
            changes in prop::collection::vec((0usize..5000, any::<u8>()), 1..20),
            chain in prop::collection::vec((446usize..512, any::<u8>()), 0..8),
        ) {
            let mut disk = if gpt { gpt_disk(512) } else { mbr_disk() };
            for (at, value) in changes {
                disk[at] = value;
            }
            for (at, value) in chain {
                disk[100 * 512 + at] = value;
            }
            let len = disk.len() as u64;
            for partition in parse(&disk).unwrap_or_default() {
                prop_assert!(partition.start + partition.len <= len);
            }
        }
    }
}
