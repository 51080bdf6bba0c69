//! Entries of a tar archive: v7, ustar, PAX, and GNU's long names and sparse files.
//!
//! Main types: [`read`] (an archive, entry by entry), [`Entry`]. The archive format is implemented here, because sparse
//! maps of GNU's old form are between a header and its data, values of attributes contain line breaks, and the memory
//! is limited ([`HEADER_BYTES_MAX`]).
//!
//! # Locking
//! None.

mod acl;
pub mod flags;
mod header;
mod input;
mod pax;

use std::ops::Range;

use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;

use self::header::{BLOCK, FieldError, Header};
pub use self::input::Input;
use self::pax::Extended;
use super::left_out::LeftOut;
use crate::error::shown;
use crate::tree::{Attributes, Builder};
use crate::{Error, Result};

/// The maximum number of bytes in the extended headers and long names of an entry, in those of all entries, or in a
/// sparse map.
const HEADER_BYTES_MAX: u64 = 16 << 20;

/// An entry of an archive.
pub struct Entry {
    /// The offset of its header.
    pub position: u64,
    pub path: Vec<u8>,
    pub attributes: Attributes,
    pub kind: Kind,
}

/// The type of the entry, and the fields for it.
pub enum Kind {
    Directory,
    File { size: u64, data: Option<Vec<Range<u64>>>, content: u64 },
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    Device { major: u32, minor: u32 },
    Special,
}

impl Entry {
    /// The memory that the map of a sparse file takes here and in a tree.
    fn map_bytes(&self) -> usize {
        match &self.kind {
            Kind::File { data: Some(data), .. } => 3 * size_of_val(&data[..]),
            _ => 0,
        }
    }

    /// Adds the entry to a tree.
    ///
    /// # Errors
    /// A tree cannot contain it.
    pub fn add_to(self, builder: &mut Builder) -> Result<()> {
        let Entry { position, path, attributes, kind } = self;
        builder.set_position(position);
        match kind {
            Kind::Directory => builder.directory(&path, attributes),
            Kind::File { size, data, content } => builder.file(&path, attributes, size, data, content),
            Kind::Symlink(target) => builder.symlink(&path, attributes, &target),
            Kind::HardLink(target) => builder.hard_link(&path, &target),
            Kind::Device { major, minor } => builder.device(&path, attributes, major, minor),
            Kind::Special => builder.special(&path, attributes),
        }
    }
}

/// Adds the name of the archive to an error about an entry.
pub fn in_archive(error: Error, archive: &str) -> Error {
    match error {
        Error::Entry { entry, why } => Error::Entry { entry: format!("{archive}: {entry}"), why },
        error => error,
    }
}

/// The facts about a whole archive that [`read`] returns.
#[derive(Debug, Default)]
pub struct ArchiveSummary {
    /// The number of entries.
    pub entries: u64,
    /// Whether it has an end mark. GNU tar and Python accept an archive without one, but it may have been cut off
    /// between two entries.
    pub is_marked: bool,
    pub left_out: LeftOut,
}

/// Reads the entries of an archive up to its end mark, or up to its end.
///
/// # Errors
/// The archive cannot be read or decoded, or `entry` rejects an entry.
pub fn read(input: &mut Input<'_>, entry: &mut dyn FnMut(Entry) -> Result<()>) -> Result<ArchiveSummary> {
    let seen = ArchiveSummary::default();
    let mut reader = Reader { input, seen, global: Extended::default(), global_room: HEADER_BYTES_MAX };
    while let Some(next) = reader.next()? {
        entry(next)?;
        reader.seen.entries += 1;
    }
    Ok(reader.seen)
}

struct Reader<'r, 'a> {
    input: &'r mut Input<'a>,
    seen: ArchiveSummary,
    /// The records of a global header, which apply to all later entries.
    global: Extended,
    /// The number of bytes that global headers may still have.
    global_room: u64,
}

impl Reader<'_, '_> {
    /// Reads a block. Returns false if the archive ends here.
    fn block(&mut self, block: &mut [u8; BLOCK]) -> Result<bool> {
        let position = self.input.position();
        match self.input.read(block)? {
            BLOCK => Ok(true),
            0 => Ok(false),
            _ if position == 0 => Err(self.input.unknown(NO_ARCHIVE)),
            _ => Err(self.input.wrong(position, "the archive is cut off within a header")),
        }
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        let mut extended: Option<Extended> = None;
        let (mut long_name, mut long_link) = (None, None);
        // The position of the first header of the entry.
        let mut first = None;
        let mut room = HEADER_BYTES_MAX;
        loop {
            let position = self.input.position();
            let mut block = [0; BLOCK];
            let there = self.block(&mut block)?;
            let header = match there {
                true => Header::new(&block).map_err(|why| match position {
                    0 => self.input.unknown(NO_ARCHIVE),
                    _ => self.input.wrong(position, why),
                })?,
                false => None,
            };
            let Some(header) = header else {
                if first.is_some() {
                    return Err(self.input.wrong(position, "the archive ends behind an extended header"));
                }
                return self.end(position, there);
            };
            let first = *first.get_or_insert(position);
            let wrong = |input: &Input<'_>, why: FieldError| input.wrong(position, why);
            match header.kind() {
                b'x' | b'X' => {
                    let bytes = self.extra(&header, position, &mut room)?;
                    let extended = extended.get_or_insert_with(|| self.global.clone());
                    extended.add(&bytes).map_err(|why| wrong(self.input, why))?;
                }
                b'g' => {
                    let mut room = self.global_room;
                    let bytes = self.extra(&header, position, &mut room)?;
                    self.global_room = room;
                    self.global.add(&bytes).map_err(|why| wrong(self.input, why))?;
                }
                b'L' => long_name = Some(self.extra_text(&header, position, &mut room)?),
                b'K' => long_link = Some(self.extra_text(&header, position, &mut room)?),
                // The label of a volume.
                b'V' => {}
                _ => {
                    let mut extended = extended.unwrap_or_else(|| self.global.clone());
                    let sparse_name = extended.sparse.name.take();
                    let path = sparse_name.or(extended.path.take()).or(long_name).unwrap_or_else(|| header.path());
                    let link = extended.link.take().or(long_link).unwrap_or_else(|| header.link().to_vec());
                    let kept = extended.bytes() + path.len() + link.len();
                    let entry = self.entry(&header, first, &path, link, extended).and_then(|entry| {
                        self.input.budget().take((kept + entry.map_bytes()) as u64)?;
                        Ok(entry)
                    });
                    let entry = entry.map_err(|error| match error {
                        Failure::Wrong(why) => Error::Entry {
                            entry: format!("{}: {}", self.input.name(), shown(&path)),
                            why: format!("{why} (at byte {first})"),
                        },
                        Failure::Said(error) => error,
                    })?;
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Handles the end: two blocks of zeros, of which one is sufficient.
    fn end(&mut self, position: u64, marked: bool) -> Result<Option<Entry>> {
        if !marked {
            return Ok(None);
        }
        self.seen.is_marked = true;
        let mut block = [0; BLOCK];
        if self.block(&mut block)? && block.iter().any(|byte| *byte != 0) {
            return Err(self.input.wrong(position, "a block of zeroes, with more entries behind it"));
        }
        Ok(None)
    }

    /// The data of a header that belongs to another entry. Its length is subtracted from `room`.
    fn extra(&mut self, header: &Header<'_>, position: u64, room: &mut u64) -> Result<Vec<u8>> {
        let size = header.size().map_err(|why| self.input.wrong(position, why))?;
        let size = u64::try_from(size).ok().filter(|size| size <= room);
        let size = size.ok_or_else(|| {
            let why =
                format!("the extended headers of an entry, and those of all, have at most {HEADER_BYTES_MAX} bytes");
            self.input.wrong(position, why)
        })?;
        *room -= size;
        // This takes no more memory than the archive has bytes.
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let have = bytes.len();
            bytes.resize((have + (1 << 16)).min(size as usize), 0);
            if self.input.read(&mut bytes[have..])? < bytes.len() - have {
                return Err(self.input.wrong(position, "the archive is cut off within an extended header"));
            }
        }
        self.pad(size).map_err(|why| self.input.wrong(position, why))?;
        Ok(bytes)
    }

    fn extra_text(&mut self, header: &Header<'_>, position: u64, room: &mut u64) -> Result<Vec<u8>> {
        let mut text = self.extra(header, position, room)?;
        text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
        Ok(text)
    }

    /// Reads to the next block.
    fn pad(&mut self, size: u64) -> std::result::Result<(), FieldError> {
        let rest = size.next_multiple_of(BLOCK as u64) - size;
        match self.input.skip(rest) {
            Ok(true) => Ok(()),
            _ => Err(CUT_OFF.into()),
        }
    }

    fn entry(
        &mut self,
        header: &Header<'_>,
        position: u64,
        path: &[u8],
        link: Vec<u8>,
        mut extended: Extended,
    ) -> std::result::Result<Entry, Failure> {
        let id = |given: Option<i128>, stored: std::result::Result<i128, FieldError>, what: &str| {
            let id = given.map_or(stored, Ok)?;
            u32::try_from(id).map_err(|_| format!("its {what} is {id}, which does not fit into 32 bits"))
        };
        let mtime = match extended.mtime {
            Some(time) => time,
            None => Timestamp::from_seconds(i64::try_from(header.mtime()?).map_err(|_| "its time is out of range")?),
        };
        let left_out = &mut self.seen.left_out;
        let flags = extended.flags.take().unwrap_or_default();
        let mut attributes = Attributes {
            flags: flags::parse(&flags, |name| left_out.flag(name)),
            mode: header.mode()?,
            uid: id(extended.uid, header.uid(), "owner")?,
            gid: id(extended.gid, header.gid(), "group")?,
            mtime,
            xattrs: extended.take_xattrs(&mut self.seen.left_out)?,
        };
        let kind = match header.kind() {
            // A directory of the oldest archives, or one with a list of its names, whose stored bytes are ignored.
            0 | b'0' | b'D' if header.kind() == b'D' || path.ends_with(b"/") => {
                self.pass(self.size(header, &extended)?)?;
                Kind::Directory
            }
            0 | b'0' | b'7' | b'S' => self.file(header, &mut extended)?,
            // The header has a size, but no bytes are stored.
            b'1' => Kind::HardLink(link),
            b'2' => Kind::Symlink(link),
            b'5' => Kind::Directory,
            kind @ (b'3' | b'4') => {
                let (major, minor) = header.device()?;
                let number = |n: i128| u32::try_from(n).map_err(|_| format!("a device's number is {n}"));
                let kind = if kind == b'3' { FileType::CharDevice } else { FileType::BlockDevice };
                attributes.mode |= kind.mode_bits();
                let (given_major, given_minor) = extended.device;
                Kind::Device {
                    major: number(given_major.unwrap_or(major))?,
                    minor: number(given_minor.unwrap_or(minor))?,
                }
            }
            b'6' => {
                attributes.mode |= FileType::Fifo.mode_bits();
                Kind::Special
            }
            b'M' => return Err(FieldError::from("the rest of a file that begins on another volume").into()),
            kind => return Err(format!("an entry of the unknown type '{}'", kind.escape_ascii()).into()),
        };
        Ok(Entry { position, path: path.to_vec(), attributes, kind })
    }

    fn size(&self, header: &Header<'_>, extended: &Extended) -> std::result::Result<u64, FieldError> {
        let size = extended.size.map_or_else(|| header.size(), Ok)?;
        u64::try_from(size).ok().filter(|size| *size <= i64::MAX as u64).ok_or_else(|| format!("its size is {size}"))
    }

    /// Skips the stored bytes of an entry.
    fn pass(&mut self, size: u64) -> std::result::Result<(), Failure> {
        if !self.input.skip(size).map_err(Failure::Said)? {
            return Err(short(size).into());
        }
        Ok(self.pad(size)?)
    }

    fn data(&mut self, size: u64, data: Option<&[Range<u64>]>) -> std::result::Result<u64, Failure> {
        let content = self.input.content(size, data).map_err(Failure::Said)?;
        let content = content.ok_or_else(|| short(size))?;
        self.pad(size)?;
        Ok(content)
    }

    fn file(&mut self, header: &Header<'_>, extended: &mut Extended) -> std::result::Result<Kind, Failure> {
        // The number of stored bytes.
        let mut stored = self.size(header, extended)?;
        let sparse = std::mem::take(&mut extended.sparse);
        let mut real_size = sparse.real_size;
        let mut data = sparse.ranges;
        if header.kind() == b'S' {
            let mut ranges = Vec::new();
            let (size, mut more) = header.sparse(&mut ranges)?;
            while more {
                let mut block = [0; BLOCK];
                if !self.block(&mut block).map_err(Failure::Said)? {
                    return Err(FieldError::from(CUT_OFF).into());
                }
                more = header::more_sparse(&block, &mut ranges)?;
                if ranges.len() as u64 * size_of::<Range<u64>>() as u64 > HEADER_BYTES_MAX {
                    return Err(FieldError::from("its sparse map is longer than any that can be stored").into());
                }
            }
            (real_size, data) = (Some(real_size.unwrap_or(size)), Some(ranges));
        } else if sparse.major == Some(1) && sparse.minor == Some(0) {
            let (ranges, len) = self.map(stored)?;
            stored -= len;
            data = Some(ranges);
        } else if sparse.major.is_some_and(|major| major > 0) {
            return Err(FieldError::from("a sparse file of a form that is not known").into());
        }
        let Some(data) = data else {
            let content = self.data(stored, None)?;
            return Ok(Kind::File { size: stored, data: None, content });
        };
        let size = real_size.ok_or("a sparse file without its real size")?;
        let size = u64::try_from(size).map_err(|_| format!("its size is {size}"))?;
        check_map(&data, size, stored)?;
        let content = self.data(stored, Some(&data))?;
        Ok(Kind::File { size, data: Some(data), content })
    }

    /// The map before the data in GNU's form 1.0, and its number of bytes.
    fn map(&mut self, stored: u64) -> std::result::Result<(Vec<Range<u64>>, u64), Failure> {
        let mut lines = Lines { input: self.input, block: [0; BLOCK], at: BLOCK, read: 0, stored };
        let count = lines.number()?;
        let mut ranges = Vec::new();
        for _ in 0..count {
            let (start, len) = (lines.number()?, lines.number()?);
            header::add_range(&mut ranges, start, len)?;
        }
        Ok((ranges, lines.read))
    }
}

const NO_ARCHIVE: &str = "not a tar archive (nor gzip, xz or zstd)";
const CUT_OFF: &str = "the archive is cut off";

fn short(size: u64) -> FieldError {
    format!("its size is {size} bytes, but the archive is cut off")
}

/// Checks that ranges ascend, are within the file, and have as many bytes as are stored.
fn check_map(data: &[Range<u64>], size: u64, stored: u64) -> std::result::Result<(), FieldError> {
    let mut end = 0;
    let mut sum = 0;
    for (number, range) in data.iter().enumerate() {
        let len = range.end - range.start;
        if range.start < end || range.end > size {
            return Err(format!("its sparse map leads backwards or beyond its {size} bytes"));
        }
        // GNU pads each range to a whole block; others do not.
        if !len.is_multiple_of(BLOCK as u64) && number + 1 < data.len() {
            return Err("its sparse map has a range that ends within a block".into());
        }
        (end, sum) = (range.end, sum + len);
    }
    if sum != stored {
        return Err(format!("its sparse map has {sum} bytes, but {stored} are stored"));
    }
    Ok(())
}

/// The decimal numbers of some blocks, one on each line.
struct Lines<'l, 'a> {
    input: &'l mut Input<'a>,
    block: [u8; BLOCK],
    at: usize,
    read: u64,
    stored: u64,
}

impl Lines<'_, '_> {
    fn number(&mut self) -> std::result::Result<i128, Failure> {
        let mut digits = Vec::new();
        loop {
            if self.at == BLOCK {
                if self.read + BLOCK as u64 > self.stored.min(HEADER_BYTES_MAX) {
                    return Err(FieldError::from("its sparse map is longer than its stored data").into());
                }
                if self.input.read(&mut self.block).map_err(Failure::Said)? < BLOCK {
                    return Err(FieldError::from(CUT_OFF).into());
                }
                self.read += BLOCK as u64;
                self.at = 0;
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => return Ok(pax::decimal(&digits)?),
                digit if digits.len() < 20 => digits.push(digit),
                _ => return Err(FieldError::from("its sparse map has a line that is no number").into()),
            }
        }
    }
}

/// The reason why an entry cannot be accepted.
enum Failure {
    /// A reason that concerns the entry.
    Wrong(FieldError),
    /// An error that already contains its place.
    Said(Error),
}

impl From<FieldError> for Failure {
    fn from(why: FieldError) -> Failure {
        Failure::Wrong(why)
    }
}

impl From<&str> for Failure {
    fn from(why: &str) -> Failure {
        Failure::Wrong(why.into())
    }
}
