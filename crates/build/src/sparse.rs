//! The Android sparse format, which fastboot(1), simg2img(1) and device makers' flash tools read.
//!
//! A file consists of a header and chunks, which follow each other through the image: bytes without a change, or one
//! word that is repeated. A third kind, for bytes that do not matter, is not written. Numbers are little-endian (AOSP:
//! `libsparse/sparse_format.h`, version 1.0).
//!
//! Main function: [`write()`].
//!
//! What it does not do: checksums, which the format allows and flash tools ignore, or images of several files.
//!
//! # Locking
//! None.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

const MAGIC: u32 = 0xed26_ff3a;
const HEADER_BYTES: u16 = 28;
const CHUNK_HEADER_BYTES: u16 = 12;
/// The size of a chunk has 32 bits, and flash tools keep one in memory.
const RAW_BYTES_MAX: u64 = 64 << 20;
const READ_BYTES: u64 = 1 << 20;

/// The kinds of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Raw,
    /// This word, repeated.
    Fill(u32),
}

/// Blocks of one kind.
#[derive(Clone, Copy, Debug)]
struct Run {
    kind: Kind,
    start: u64,
    blocks: u64,
}

/// Writes `image`, which consists of whole blocks of `block_size` bytes, as a sparse image to `to`, from its position
/// on. Holes are written as zeros, because a device that is flashed may contain anything there, and a file system
/// relies on some of them. The header is written last, when `sync` has made the rest durable: until then, no program
/// mistakes the file for an image.
///
/// # Errors
/// A file cannot be read or written, the image has more blocks than the format can count, or it has a partial block.
pub fn write<T: Write + Seek>(
    image: &mut File,
    block_size: u32,
    to: &mut T,
    sync: &mut dyn FnMut(&mut T) -> io::Result<()>,
) -> io::Result<()> {
    let size = image.metadata()?.len();
    let block = u64::from(block_size);
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    if block == 0 || !block.is_multiple_of(4) || !size.is_multiple_of(block) {
        return Err(invalid("a sparse image consists of whole blocks, of a multiple of 4 bytes"));
    }
    let blocks = u32::try_from(size / block).map_err(|_| invalid("a sparse image has fewer than 2^32 blocks"))?;
    let begin = to.stream_position()?;
    to.write_all(&[0; HEADER_BYTES as usize])?;
    let mut writer = Writer { image, block, to, chunks: 0, run: None };
    let mut next = 0;
    while next < u64::from(blocks) {
        let (data, end) = writer.next_data(next, u64::from(blocks))?;
        writer.add(Kind::Fill(0), next, data - next)?;
        writer.blocks(data, end)?;
        next = end;
    }
    writer.end_run()?;
    let chunks = writer.chunks;
    sync(to)?;
    to.seek(SeekFrom::Start(begin))?;
    to.write_all(&header(block_size, blocks, chunks))?;
    to.seek(SeekFrom::End(0))?;
    to.flush()
}

fn header(block_size: u32, blocks: u32, chunks: u32) -> Vec<u8> {
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    // Major and minor version.
    for field in [1, 0, HEADER_BYTES, CHUNK_HEADER_BYTES] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    // The last is a checksum; 0 if there is none.
    for field in [block_size, blocks, chunks, 0] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes
}

struct Writer<'a, T> {
    image: &'a mut File,
    block: u64,
    to: &'a mut T,
    chunks: u32,
    /// The current run, as long as blocks are of the same kind.
    run: Option<Run>,
}

impl<T: Write + Seek> Writer<'_, T> {
    /// The next blocks that are not a hole, from `from` on: the first, and the first after them.
    #[cfg(target_os = "linux")]
    fn next_data(&self, from: u64, blocks: u64) -> io::Result<(u64, u64)> {
        use rustix::fs::{SeekFrom, seek};
        use rustix::io::Errno;
        let start = match seek(&*self.image, SeekFrom::Data(from * self.block)) {
            Ok(start) => start / self.block,
            Err(Errno::NXIO) => return Ok((blocks, blocks)),
            // The file system does not support holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((from, blocks)),
            Err(e) => return Err(e.into()),
        };
        let end = seek(&*self.image, SeekFrom::Hole(start.max(from) * self.block))?;
        Ok((start.max(from), end.div_ceil(self.block).min(blocks)))
    }

    /// This system does not report the holes, so every block is read, and repeated ones are found then.
    #[cfg(not(target_os = "linux"))]
    #[allow(clippy::unnecessary_wraps, reason = "as on Linux")]
    fn next_data(&self, from: u64, blocks: u64) -> io::Result<(u64, u64)> {
        Ok((from, blocks))
    }

    /// Adds blocks that have to be read.
    fn blocks(&mut self, start: u64, end: u64) -> io::Result<()> {
        let per_read = (READ_BYTES / self.block).max(1);
        let mut buf = vec![0; (per_read * self.block) as usize];
        let mut next = start;
        while next < end {
            let count = per_read.min(end - next);
            let bytes = &mut buf[..(count * self.block) as usize];
            self.image.seek(SeekFrom::Start(next * self.block))?;
            self.image.read_exact(bytes)?;
            for (nr, block) in (next..).zip(bytes.chunks(self.block as usize)) {
                self.add(repeated(block).map_or(Kind::Raw, Kind::Fill), nr, 1)?;
            }
            next += count;
        }
        Ok(())
    }

    fn add(&mut self, kind: Kind, start: u64, blocks: u64) -> io::Result<()> {
        if let Some(run) = &mut self.run
            && run.kind == kind
            && (kind != Kind::Raw || (run.blocks + blocks) * self.block <= RAW_BYTES_MAX)
        {
            run.blocks += blocks;
        } else if blocks > 0 {
            self.end_run()?;
            self.run = Some(Run { kind, start, blocks });
        }
        Ok(())
    }

    /// Writes the chunk of the blocks so far.
    fn end_run(&mut self) -> io::Result<()> {
        let Some(Run { kind, start, blocks }) = self.run.take() else { return Ok(()) };
        let (number, content) = match kind {
            Kind::Raw => (0xcac1_u16, blocks * self.block),
            Kind::Fill(_) => (0xcac2, 4),
        };
        let mut head = number.to_le_bytes().to_vec();
        head.extend_from_slice(&[0; 2]);
        // Both fit: the image has fewer than 2^32 blocks, and raw chunks are limited.
        head.extend_from_slice(&(blocks as u32).to_le_bytes());
        head.extend_from_slice(&(content as u32 + u32::from(CHUNK_HEADER_BYTES)).to_le_bytes());
        self.to.write_all(&head)?;
        match kind {
            Kind::Raw => {
                self.image.seek(SeekFrom::Start(start * self.block))?;
                let copied = io::copy(&mut Read::by_ref(self.image).take(content), self.to)?;
                if copied != content {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Kind::Fill(word) => self.to.write_all(&word.to_le_bytes())?,
        }
        self.chunks += 1;
        Ok(())
    }
}

/// The word that fills the whole block, if there is one.
fn repeated(block: &[u8]) -> Option<u32> {
    let first = block.first_chunk::<4>()?;
    block.chunks(4).all(|word| word == first).then(|| u32::from_le_bytes(*first))
}
