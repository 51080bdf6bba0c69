//! The bytes of files that are stored one after the other in archives, or in their unpacked bytes.
//!
//! Main types: [`Contents`] (the files to which a tree's numbers refer), [`Part`] (those of one archive), [`Spool`] (a
//! temporary file for bytes that cannot be read twice).
//!
//! # Locking
//! None.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::{entry_error, plain};
use crate::tree::{Content, ReadAt};
use crate::{Error, Result};

/// The bit for a file with holes, whose number is then an index of [`Part::sparse`]. Other numbers are offsets.
const SPARSE: u64 = 1 << 63;
/// The number of bits of a number below those of its part: a quarter of a pebibyte.
const OFFSET_BITS: u32 = 48;

/// The bytes of a tree's files that are in one archive.
pub struct Part {
    /// The name for messages.
    pub name: String,
    pub file: File,
    /// The state of the file when its entries were read; `None` if it is our own file, which does not change.
    pub print: Option<Print>,
    /// Files with holes.
    pub sparse: Vec<Pieces>,
}

/// The data of a file with holes: ranges in the file, and their places in the part. Ascending.
pub type Pieces = Box<[(Range<u64>, u64)]>;

/// The fields that change if a file is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Print {
    inode: (u64, u64),
    size: u64,
    mtime: (i64, u64),
}

impl Print {
    pub fn of(file: &File) -> rustix::io::Result<Print> {
        let stat = fstat(file)?;
        // The type is unsigned on some machines.
        #[allow(clippy::unnecessary_cast)]
        let nanos = stat.st_mtime_nsec as u64;
        let inode = (stat.st_dev, stat.st_ino);
        Ok(Print { inode, size: stat.st_size as u64, mtime: (stat.st_mtime, nanos) })
    }
}

/// The number of a file whose data begins at `offset`, without its holes.
pub fn number(sparse: &mut Vec<Pieces>, mut offset: u64, data: Option<&[Range<u64>]>) -> u64 {
    match data {
        None => offset,
        Some(data) => {
            let piece = |range: &Range<u64>| {
                let from = offset;
                offset += range.end - range.start;
                (range.clone(), from)
            };
            sparse.push(data.iter().map(piece).collect());
            SPARSE | (sparse.len() as u64 - 1)
        }
    }
}

/// The place of a file's bytes in its part; `None` if it has holes.
pub fn whole_file(number: u64, size: u64) -> Option<Range<u64>> {
    let start = number & (PART_BYTES_MAX - 1);
    (number & SPARSE == 0).then(|| start..start.saturating_add(size))
}

/// The number of the same file in part `part`.
pub fn in_part(number: u64, part: usize) -> u64 {
    number | (part as u64) << OFFSET_BITS
}

/// The maximum number of parts that can be distinguished.
pub const PARTS_MAX: usize = 1 << (63 - OFFSET_BITS);
/// The maximum size of a part in bytes.
pub const PART_BYTES_MAX: u64 = 1 << OFFSET_BITS;

/// The files to which the numbers of a tree refer.
pub struct Contents {
    /// The parts; `None` if all files of a part are empty.
    pub parts: Vec<Option<Part>>,
}

impl Content for Contents {
    fn open(&self, content: u64) -> Result<Box<dyn ReadAt + '_>> {
        let Some(part) = &self.parts[((content & !SPARSE) >> OFFSET_BITS) as usize] else {
            return Ok(Box::new(EmptyFile));
        };
        let place = content & (PART_BYTES_MAX - 1);
        Ok(match content & SPARSE {
            0 => Box::new(Reader { part, stored: Stored::Whole(place) }),
            _ => Box::new(Reader { part, stored: Stored::Pieces(&part.sparse[place as usize]) }),
        })
    }
}

/// An empty file.
struct EmptyFile;

impl ReadAt for EmptyFile {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

struct Reader<'a> {
    part: &'a Part,
    stored: Stored<'a>,
}

enum Stored<'a> {
    /// All bytes from this offset on.
    Whole(u64),
    Pieces(&'a [(Range<u64>, u64)]),
}

impl Reader<'_> {
    fn read_stored(&self, from: u64, buf: &mut [u8]) -> Result<()> {
        self.part.file.read_exact_at(buf, from).map_err(|e| {
            let name = self.part.name.clone();
            match e.kind() {
                io::ErrorKind::UnexpectedEof => Error::Source { name, why: "became shorter while it was read".into() },
                _ => Error::Source { name, why: format!("{} (at byte {from})", plain(&e)) },
            }
        })
    }
}

impl ReadAt for Reader<'_> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let pieces = match self.stored {
            Stored::Whole(from) => return self.read_stored(from + offset, buf),
            Stored::Pieces(pieces) => pieces,
        };
        buf.fill(0);
        let end = offset + buf.len() as u64;
        let first = pieces.partition_point(|(range, _)| range.end <= offset);
        for (range, stored) in pieces[first..].iter().take_while(|(range, _)| range.start < end) {
            let (from, to) = (range.start.max(offset), range.end.min(end));
            self.read_stored(
                stored + (from - range.start),
                &mut buf[(from - offset) as usize..(to - offset) as usize],
            )?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        let Some(print) = self.part.print else { return Ok(()) };
        let name = || self.part.name.clone();
        let now = Print::of(&self.part.file).map_err(|e| entry_error(name(), "cannot be examined", e))?;
        if now == print {
            return Ok(());
        }
        Err(Error::Source { name: name(), why: "changed while it was read".into() })
    }
}

/// An unnamed file that is written sequentially.
pub struct Spool {
    file: File,
    buffer: Vec<u8>,
    /// The number of bytes in the buffer.
    used: usize,
    bytes: u64,
}

impl Spool {
    /// The number of bytes that are written at once.
    const BUFFER: usize = 1 << 18;

    /// Creates the file in a directory.
    ///
    /// # Errors
    /// No file can be created in the directory. The error contains its name.
    pub fn new(dir: &Path) -> Result<Spool> {
        let file = unnamed(dir).map_err(|e| wrong(dir, &e))?;
        Ok(Spool { file, buffer: vec![0; Spool::BUFFER], used: 0, bytes: 0 })
    }

    /// The offset of the next byte.
    pub fn end(&self) -> u64 {
        self.bytes
    }

    /// Memory for the next bytes, at least one byte.
    pub fn room(&mut self) -> io::Result<&mut [u8]> {
        if self.used == self.buffer.len() {
            self.file.write_all(&self.buffer)?;
            self.used = 0;
        }
        Ok(&mut self.buffer[self.used..])
    }

    /// Adds the first `len` bytes of the memory that [`Spool::room`] returned.
    pub fn add(&mut self, len: usize) {
        self.used += len;
        self.bytes += len as u64;
    }

    /// Writes the rest of the buffer. Returns the file.
    pub fn finish(mut self) -> io::Result<File> {
        self.file.write_all(&self.buffer[..self.used])?;
        Ok(self.file)
    }
}

/// An error of the file in `dir`.
pub fn wrong(dir: &Path, error: &io::Error) -> Error {
    use std::os::unix::ffi::OsStrExt;
    let name = crate::error::shown(dir.as_os_str().as_bytes());
    let why = format!(
        "the contents of the archive cannot be stored here: {}; name another directory in TMPDIR",
        plain(error)
    );
    Error::Source { name, why }
}

fn unnamed(dir: &Path) -> io::Result<File> {
    let mode = Mode::from_raw_mode(0o600);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match openat(rustix::fs::CWD, dir, flags | OFlags::TMPFILE, mode) {
        // The file system does not support it (ENOTSUP; kernels before 3.11 report a directory).
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        made => return Ok(made.map(|fd: OwnedFd| fd.into())?),
    }
    for number in 0..1000u32 {
        let path = dir.join(format!(".extant-{}-{number}", extant_base::task::process_id()));
        match openat(rustix::fs::CWD, &path, flags | OFlags::CREATE | OFlags::EXCL, mode) {
            Err(Errno::EXIST) => {}
            made => {
                let file = made?.into();
                rustix::fs::unlink(&path)?;
                return Ok(file);
            }
        }
    }
    Err(Errno::EXIST.into())
}
