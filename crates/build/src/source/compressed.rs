//! Archives as they are stored: plain, or with a compression that their first bytes show.
//!
//! # Locking
//! None.

use std::io::{self, BufRead, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::bufread::GzDecoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

/// The compression of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Xz,
    Zstd,
    /// A known compression that is not supported.
    Unsupported(&'static str),
}

/// The number of bytes that [`Compression::of`] examines.
pub const MAGIC_BYTES: usize = 6;
/// The maximum memory of xz's dictionary; its largest preset needs 65 MiB.
const XZ_MEMORY_BYTES: u64 = 256 << 20;

impl Compression {
    /// The compression according to the first bytes, which may be fewer than [`MAGIC_BYTES`].
    pub fn of(start: &[u8]) -> Compression {
        match start {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            // A skippable frame may come first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Compression::Unsupported("bzip2"),
            [0x04, 0x22, 0x4d, 0x18, ..] => Compression::Unsupported("lz4"),
            [b'L', b'Z', b'I', b'P', ..] => Compression::Unsupported("lzip"),
            [0x5d, 0, 0, ..] => Compression::Unsupported("lzma"),
            [b'P', b'K', 3, 4, ..] => Compression::Unsupported("zip"),
            [0x1f, 0x9d, ..] => Compression::Unsupported("compress"),
            _ => Compression::None,
        }
    }
}

/// The uncompressed bytes of a stream. All members of a gzip file and all frames of a zstd file count. Other bytes
/// after the last member of a gzip file are read and ignored, as gzip(1) does; `garbage` then says whether there were
/// any.
///
/// # Errors
/// The compression is not supported, or its decoder cannot be created.
pub fn decoder<'a>(
    compression: Compression,
    stream: impl BufRead + Send + 'a,
    garbage: Arc<AtomicBool>,
) -> io::Result<Box<dyn Read + Send + 'a>> {
    Ok(match compression {
        Compression::None => Box::new(stream),
        Compression::Gzip => {
            Box::new(Members { member: Some(GzDecoder::new(Cursor::new(Vec::new()).chain(stream))), garbage })
        }
        Compression::Xz => {
            Box::new(XzDecoder::new_stream(stream, Stream::new_stream_decoder(XZ_MEMORY_BYTES, CONCATENATED)?))
        }
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(stream)?),
        Compression::Unsupported(name) => {
            let why = format!("is compressed with {name}, which is not supported; decompress it first");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
    })
}

/// All members of a gzip file. Zeros after them, which tapes and devices leave, are skipped without a warning.
struct Members<R> {
    /// The current member; `None` after the last one.
    member: Option<GzDecoder<Peeked<R>>>,
    garbage: Arc<AtomicBool>,
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.member {
            let read = member.read(buf)?;
            if read > 0 {
                return Ok(read);
            }
            let Some(member) = self.member.take() else { break };
            let (compression, mut behind) = peeked(member.into_inner().into_inner().1)?;
            if compression == Compression::Gzip {
                self.member = Some(GzDecoder::new(behind));
            } else if !only_zeroes(&mut behind)? {
                self.garbage.store(true, Ordering::Relaxed);
            }
        }
        Ok(0)
    }
}

/// Reads to the end. Returns whether all bytes were zeros.
fn only_zeroes(stream: &mut impl BufRead) -> io::Result<bool> {
    let mut zeroes = true;
    loop {
        let bytes = match stream.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(zeroes);
        }
        zeroes &= bytes.iter().all(|byte| *byte == 0);
        let len = bytes.len();
        stream.consume(len);
    }
}

/// A warning about the archive `name`.
pub fn ignored_garbage(name: &str) -> String {
    format!("{name}: other bytes follow the end of the gzip data; they are ignored")
}

/// A stream whose first bytes have been read.
pub type Peeked<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// The compression according to the first bytes of a stream, and the stream including these bytes.
pub fn peeked<R: Read>(mut stream: R) -> io::Result<(Compression, Peeked<R>)> {
    let mut start = Vec::new();
    stream.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut start)?;
    Ok((Compression::of(&start), Cursor::new(start).chain(stream)))
}
