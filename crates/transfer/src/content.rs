//! Reads a file out of an image, damaged ones included.
//!
//! Main functions: [`read`], [`data`] (the parts of a file with data), [`doubt`] (the damage in spite of which a file
//! was used). In an image that is rescued, parts that a damaged map or a device does not return are left out, and
//! counted in [`Missing`].
//!
//! # Locking
//! None.

use std::fmt;
use std::ops::Range;

use extant_fs::{Damage, Error, Filesystem, InodeRef, Seek};

/// Bytes of one read.
pub const CHUNK_BYTES: usize = 1 << 20;
/// The maximum of stored parts of a sparse file; beyond it, the rest of the file is stored as data.
const PARTS_MAX: usize = 1 << 20;
/// Consecutive blocks with a damaged map after which the rest of the file is skipped.
const UNMAPPED_MAX: u64 = 1 << 22;

/// The parts of a file that could not be read.
#[derive(Debug)]
pub struct Missing {
    /// How much is missing.
    pub bytes: u64,
    /// The first error.
    pub why: Error,
}

impl Missing {
    fn add(missing: &mut Option<Missing>, bytes: u64, why: Error) {
        missing.get_or_insert(Missing { bytes: 0, why }).bytes += bytes;
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes cannot be read, and are zeros instead: {}", self.bytes, self.why)
    }
}

/// Takes offset and bytes of a part of a file.
pub type Receiver<'w, E> = dyn FnMut(u64, &[u8]) -> Result<(), E> + 'w;

/// Why a read ended.
pub enum TransferError<E> {
    /// The file cannot be read.
    Read(Error),
    /// The receiver of the data failed.
    Write(E),
}

impl<E> From<Error> for TransferError<E> {
    fn from(e: Error) -> TransferError<E> {
        TransferError::Read(e)
    }
}

/// Identifies an image in this process.
pub fn image_id(fs: &Filesystem) -> usize {
    std::ptr::from_ref(fs) as usize
}

/// The damage in spite of which a file was used, or names of a directory were listed, in an image that is rescued.
pub fn doubt<'i>(fs: &Filesystem, inode: &'i InodeRef) -> Option<&'i Error> {
    inode.known_damage().filter(|_| fs.rescues())
}

/// Whether the error is one that a rescue expects, and goes around.
pub fn is_expected(fs: &Filesystem, e: &Error) -> bool {
    fs.rescues() && (e.is_corruption() || matches!(e, Error::Device(_) | Error::Unsupported(_)))
}

/// Calls `write` with offset and bytes of all data of a regular file; the gaps read as zeros.
///
/// # Errors
/// The file cannot be read, or `write` has failed.
pub fn read<E>(
    fs: &Filesystem,
    file: &InodeRef,
    write: &mut Receiver<'_, E>,
) -> Result<Option<Missing>, TransferError<E>> {
    let attr = fs.getattr(file);
    let (size, block) = (attr.size, u64::from(attr.block_size));
    // A file without its key is not damaged, and none of it can be read.
    let passes = |e: &Error| fs.rescues() && (e.is_corruption() || matches!(e, Error::Device(_)));
    let (mut missing, mut unmapped) = (None, 0);
    let mut buf = vec![0; CHUNK_BYTES];
    let mut pos = 0;
    while pos < size {
        pos = match fs.seek(file, pos, Seek::Data) {
            Ok(data) => data,
            Err(Error::NoSuchOffset) => break,
            Err(e) if passes(&e) => {
                unmapped += 1;
                let next = if unmapped > UNMAPPED_MAX { size } else { (pos / block + 1) * block };
                Missing::add(&mut missing, next.min(size) - pos, e);
                pos = next;
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        let end = match fs.seek(file, pos, Seek::Hole) {
            Err(e) if passes(&e) => (pos / block + 1) * block,
            end => end?,
        };
        let end = end.min(size);
        while pos < end {
            let want = (end - pos).min(buf.len() as u64) as usize;
            match fs.read(file, pos, &mut buf[..want]) {
                Ok(0) => {
                    let what = format!("nothing to read at byte {pos} of {size}");
                    return Err(Error::corrupt(Damage::Map, what).of(file.ino).into());
                }
                Ok(n) => {
                    write(pos, &buf[..n]).map_err(TransferError::Write)?;
                    pos += n as u64;
                }
                // Reads it block by block, as far as possible.
                Err(e) if passes(&e) => {
                    let stop = pos + want as u64;
                    while pos < stop {
                        let n = ((pos / block + 1) * block).min(stop) - pos;
                        let piece = &mut buf[..n as usize];
                        match fs.read(file, pos, piece) {
                            Ok(n) => write(pos, &piece[..n]).map_err(TransferError::Write)?,
                            Err(e) => Missing::add(&mut missing, n, e),
                        }
                        pos += n;
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(missing)
}

/// The parts of a file with data: ascending, not adjacent.
///
/// # Errors
/// The map of the file cannot be read.
pub fn data(fs: &Filesystem, inode: &InodeRef, size: u64) -> Result<Vec<Range<u64>>, Error> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut pos = 0;
    while pos < size {
        let start = match fs.seek(inode, pos, Seek::Data) {
            Ok(start) => start,
            Err(Error::NoSuchOffset) => break,
            Err(e) => return Err(e),
        };
        if start >= size {
            break;
        }
        let end = if parts.len() + 1 < PARTS_MAX { fs.seek(inode, start, Seek::Hole)?.min(size) } else { size };
        if end <= start {
            return Err(Error::corrupt(Damage::Map, format!("no end of the data at byte {start}")).of(inode.ino));
        }
        match parts.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => parts.push(start..end),
        }
        pos = end;
    }
    Ok(parts)
}
