//! The archive's format: POSIX.1-2001 (PAX) with the records of GNU tar and star for features that POSIX lacks.
//!
//! Main types: [`Archive`], [`Entry`]; [`FileData`], the content of a file in sequence.
//!
//! A header of ustar has room for a name of 100 bytes, numbers of seven digits, and whole seconds. Only values that
//! do not fit go into records in front of it: most entries take one block. Extended attributes are
//! `SCHILY.xattr.NAME`, and the flags of chattr(1) `SCHILY.fflags`, which bsdtar sets. ACLs are also
//! `SCHILY.acl.access` and `.default`, from which GNU tar and bsdtar set ACLs. A file with holes is GNU's sparse format
//! 1.0.
//!
//! # Locking
//! None.

use std::io::{self, Write};
use std::ops::Range;

use extant_build::source::flag_names;
use extant_ondisk::inode::{DeviceNr, InodeFlags};
use extant_ondisk::time::Timestamp;
use tar::{EntryType, Header};

use super::acl;
use crate::attributes::Xattrs;
use crate::path::split_last;

const BLOCK: u64 = 512;
/// The largest numbers of a header: seven and eleven octal digits.
const ID_MAX: u32 = 0o7_777_777;
const SIZE_MAX: u64 = 0o77_777_777_777;
/// The room for a name, and for a link's target.
const NAME_BYTES: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    /// Another name for the file `target`.
    Link,
}

impl Kind {
    fn letter(self) -> EntryType {
        match self {
            Kind::File => EntryType::Regular,
            Kind::Directory => EntryType::Directory,
            Kind::Symlink => EntryType::Symlink,
            Kind::CharDevice => EntryType::Char,
            Kind::BlockDevice => EntryType::Block,
            Kind::Fifo => EntryType::Fifo,
            Kind::Link => EntryType::Link,
        }
    }
}

/// One file's attributes.
pub struct Entry<'a> {
    pub name: &'a [u8],
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    /// The target of a link.
    pub target: Vec<u8>,
    pub device: Option<DeviceNr>,
    /// The size of a regular file.
    pub size: u64,
    /// Flags that chattr(1) sets, among others.
    pub flags: InodeFlags,
    pub xattrs: Xattrs,
}

pub struct Archive<W> {
    to: W,
    /// Bytes written so far.
    written: u64,
    /// The end of the last header's data.
    data_end: u64,
}

impl<W: Write> Archive<W> {
    pub fn new(to: W) -> Archive<W> {
        Archive { to, written: 0, data_end: 0 }
    }

    /// Writes a file without content, or any other kind.
    pub fn entry(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        self.headers(entry, entry.name, 0, records(entry))
    }

    /// Writes the header of a regular file with data in `parts`; [`FileData::write`] takes the data next.
    pub fn file<'a>(&'a mut self, entry: &Entry<'_>, parts: &'a [Range<u64>]) -> io::Result<FileData<'a, W>> {
        let mut records = records(entry);
        let stored: u64 = parts.iter().map(|part| part.end - part.start).sum();
        if stored == entry.size {
            self.headers(entry, entry.name, stored, records)?;
            return Ok(FileData { archive: self, parts, part: 0, done: 0 });
        }
        let map = map(parts, entry.size);
        // The header's name is for programs that do not know the format.
        records.retain(|(key, _)| key != b"path");
        for (key, value) in [("major", "1"), ("minor", "0")] {
            records.push((format!("GNU.sparse.{key}").into_bytes(), value.into()));
        }
        records.push((b"GNU.sparse.name".to_vec(), entry.name.to_vec()));
        records.push((b"GNU.sparse.realsize".to_vec(), entry.size.to_string().into_bytes()));
        let name = in_folder(b"GNUSparseFile.0", entry.name);
        self.headers(entry, &name, map.len() as u64 + stored, records)?;
        self.put(&map)?;
        Ok(FileData { archive: self, parts, part: 0, done: 0 })
    }

    /// Writes the records, if there are any, and the header.
    fn headers(&mut self, entry: &Entry<'_>, name: &[u8], size: u64, mut records: Records) -> io::Result<()> {
        if size > SIZE_MAX {
            records.push((b"size".to_vec(), size.to_string().into_bytes()));
        }
        // An image may have attributes in any order.
        records.sort();
        let mut bytes = Vec::new();
        for (key, value) in &records {
            record(&mut bytes, key, value);
        }
        if !bytes.is_empty() {
            self.records_header(&in_folder(b"PaxHeaders", entry.name), entry.mtime, bytes.len())?;
            self.put(&bytes)?;
            self.fill_block()?;
        }
        let mut header = header(name, entry.mtime);
        header.set_entry_type(entry.kind.letter());
        header.set_mode(entry.mode.into());
        header.set_uid(entry.uid.into());
        header.set_gid(entry.gid.into());
        header.set_size(size);
        if let Some(ustar) = header.as_ustar_mut() {
            let target = &entry.target[..entry.target.len().min(NAME_BYTES)];
            ustar.linkname[..target.len()].copy_from_slice(target);
            let device = entry.device.unwrap_or(DeviceNr { major: 0, minor: 0 });
            ustar.set_device_major(device.major);
            ustar.set_device_minor(device.minor);
        }
        header.set_cksum();
        self.put(header.as_bytes())?;
        self.data_end = self.written + size;
        Ok(())
    }

    /// Writes the header of `len` bytes of records.
    fn records_header(&mut self, name: &[u8], mtime: Timestamp, len: usize) -> io::Result<()> {
        let mut header = header(name, mtime);
        header.set_entry_type(EntryType::XHeader);
        header.set_mode(0o644);
        header.set_size(len as u64);
        header.set_cksum();
        self.put(header.as_bytes())
    }

    /// Writes the end mark.
    pub fn end(&mut self) -> io::Result<()> {
        self.put(&[0; 2 * BLOCK as usize])?;
        self.to.flush()
    }

    /// Ends the archive at a place where more must follow, so that no reader accepts it as complete: in the data of a
    /// file, or after a header that announces records.
    pub fn break_off(&mut self) -> io::Result<()> {
        if self.written >= self.data_end {
            self.fill_block()?;
            self.records_header(b"./PaxHeaders/incomplete", Timestamp::default(), 2 * BLOCK as usize)?;
        }
        self.to.flush()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn zeros(&mut self, mut len: u64) -> io::Result<()> {
        let zeros = [0; 65536];
        while len > 0 {
            let n = len.min(zeros.len() as u64);
            self.put(&zeros[..n as usize])?;
            len -= n;
        }
        Ok(())
    }

    fn fill_block(&mut self) -> io::Result<()> {
        self.zeros(self.written.next_multiple_of(BLOCK) - self.written)
    }
}

/// A file's content, in ascending order.
pub struct FileData<'a, W> {
    archive: &'a mut Archive<W>,
    parts: &'a [Range<u64>],
    /// The part that is being written, and how much of it is done.
    part: usize,
    done: u64,
}

impl<W: Write> FileData<'_, W> {
    /// Writes data from `offset` on. Gaps since the last data are zeros, as far as they lie in a part.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        while let Some(part) = self.parts.get(self.part) {
            let at = part.start + self.done;
            let until = part.end.min(offset);
            if at < until {
                self.archive.zeros(until - at)?;
                self.done += until - at;
            }
            let at = part.start + self.done;
            let until = part.end.min(end);
            if at >= offset && at < until {
                self.archive.put(&bytes[(at - offset) as usize..(until - offset) as usize])?;
                self.done += until - at;
            }
            if part.start + self.done < part.end {
                break;
            }
            (self.part, self.done) = (self.part + 1, 0);
        }
        Ok(())
    }

    /// Ends the data; parts without data are zeros.
    pub fn end(mut self) -> io::Result<()> {
        self.write(u64::MAX, &[])?;
        self.archive.fill_block()
    }
}

/// Keyword and value.
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// The records of an entry: values that do not fit into its header.
fn records(entry: &Entry<'_>) -> Records {
    let mut records = Records::new();
    let mut add = |key: &str, value: Vec<u8>| records.push((key.as_bytes().to_vec(), value));
    if entry.name.len() > NAME_BYTES {
        add("path", entry.name.to_vec());
    }
    if entry.target.len() > NAME_BYTES {
        add("linkpath", entry.target.clone());
    }
    for (key, id) in [("uid", entry.uid), ("gid", entry.gid)] {
        if id > ID_MAX {
            add(key, id.to_string().into_bytes());
        }
    }
    if entry.mtime.nanos != 0 || !(0..=SIZE_MAX as i64).contains(&entry.mtime.seconds) {
        add("mtime", decimal(entry.mtime).into_bytes());
    }
    if let Some(names) = flag_names(entry.flags) {
        add("SCHILY.fflags", names.into_bytes());
    }
    for (name, value) in &entry.xattrs {
        let form = match &name[..] {
            b"system.posix_acl_access" => Some("SCHILY.acl.access"),
            b"system.posix_acl_default" => Some("SCHILY.acl.default"),
            _ => None,
        };
        if let (Some(form), Some(text)) = (form, acl::text(value)) {
            add(form, text);
        }
    }
    for (name, value) in &entry.xattrs {
        records.push((xattr_keyword(name), value.clone()));
    }
    records
}

/// GNU tar's spelling of a name in a keyword, which ends at the first `=`.
fn xattr_keyword(name: &[u8]) -> Vec<u8> {
    let mut key = b"SCHILY.xattr.".to_vec();
    for byte in name {
        match byte {
            b'%' => key.extend_from_slice(b"%25"),
            b'=' => key.extend_from_slice(b"%3D"),
            byte => key.push(*byte),
        }
    }
    key
}

/// Seconds since 1970 with all significant digits; the fraction counts away from 1970.
fn decimal(time: Timestamp) -> String {
    let total = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    let sign = if total < 0 { "-" } else { "" };
    let (seconds, nanos) = (total.unsigned_abs() / 1_000_000_000, total.unsigned_abs() % 1_000_000_000);
    let text = format!("{sign}{seconds}.{nanos:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `LENGTH KEY=VALUE\n`; the length includes itself.
fn record(to: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    to.extend_from_slice(format!("{len} ").as_bytes());
    to.extend_from_slice(key);
    to.push(b'=');
    to.extend_from_slice(value);
    to.push(b'\n');
}

/// The map of a sparse file: the number of parts, and start and length of each, one number a line, up to the end of a
/// block. An empty part at the end marks the end of the file.
fn map(parts: &[Range<u64>], size: u64) -> Vec<u8> {
    let at_end = parts.last().is_none_or(|last| last.end < size).then_some(size..size);
    let all = parts.iter().cloned().chain(at_end);
    let mut map = format!("{}\n", all.clone().count()).into_bytes();
    for part in all {
        map.extend_from_slice(format!("{}\n{}\n", part.start, part.end - part.start).as_bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK as usize), 0);
    map
}

/// A substitute name for a header, in a folder beside the real one.
fn in_folder(folder: &[u8], name: &[u8]) -> Vec<u8> {
    [b"./", folder, b"/", split_last(name).1].concat()
}

/// A header with as much of the name as fits.
fn header(name: &[u8], mtime: Timestamp) -> Header {
    let mut header = Header::new_ustar();
    if let Some(ustar) = header.as_ustar_mut() {
        let name = &name[..name.len().min(NAME_BYTES)];
        ustar.name[..name.len()].copy_from_slice(name);
    }
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(mtime.seconds.clamp(0, SIZE_MAX as i64) as u64);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_lengths_count_their_own_digits() {
        let of = |value: usize| {
            let mut bytes = Vec::new();
            record(&mut bytes, b"k", &vec![b'x'; value]);
            let len: usize =
                std::str::from_utf8(&bytes).expect("text").split(' ').next().expect("len").parse().expect("n");
            (len, bytes.len())
        };
        for value in (0..20).chain(85..100).chain(985..1000) {
            let (said, real) = of(value);
            assert_eq!(said, real, "{value}");
        }
    }

    #[test]
    fn times_before_1970_are_written_as_gnu_tar_reads_them() {
        for (seconds, nanos, text) in [
            (5, 0, "5"),
            (100, 500_000_000, "100.5"),
            (-1, 300_000_000, "-0.7"),
            (-2, 0, "-2"),
            (0, 1, "0.000000001"),
            (15_032_385_535, 999_999_999, "15032385535.999999999"),
        ] {
            assert_eq!(decimal(Timestamp { seconds, nanos }), text);
        }
    }

    #[test]
    fn sizes_and_owners_beyond_the_header_are_records() {
        let entry = |size, uid| Entry {
            name: b"./f",
            kind: Kind::File,
            mode: 0o644,
            uid,
            gid: 0,
            mtime: Timestamp::default(),
            target: Vec::new(),
            device: None,
            size,
            flags: InodeFlags::empty(),
            xattrs: Xattrs::new(),
        };
        let bytes = |size, uid| {
            let mut archive = Archive::new(Vec::new());
            archive.file(&entry(size, uid), std::slice::from_ref(&(0..size))).expect("written");
            archive.to
        };
        assert_eq!(bytes(SIZE_MAX, ID_MAX).len(), 512);
        let large = bytes(SIZE_MAX + 1, ID_MAX + 1);
        assert!(large[512..].starts_with(b"19 size=8589934592\n15 uid=2097152\n"), "{}", large.escape_ascii());
        assert_eq!(large.len(), 3 * 512);
    }

    #[test]
    fn gaps_of_data_are_zeros_inside_parts_and_omitted_outside() {
        let mut archive = Archive::new(Vec::new());
        let parts = [2..5, 8..12];
        let mut file = FileData { archive: &mut archive, parts: &parts, part: 0, done: 0 };
        file.write(3, b"d").expect("written");
        file.write(9, b"jk").expect("written");
        file.end().expect("written");
        assert_eq!(&archive.to[..7], b"\0d\0\0jk\0");
        assert_eq!(archive.to.len(), 512);
    }
}
