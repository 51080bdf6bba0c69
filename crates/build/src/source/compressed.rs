//! Archives as they come: plain, or compressed with what their first bytes say.
//!
//! # Locking
//! None.

use std::io::{self, BufRead, Cursor, Read};

use flate2::bufread::GzDecoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

/// How a stream is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Xz,
    Zstd,
    /// Recognised, and refused.
    Unsupported(&'static str),
}

/// As many bytes as [`Compression::of`] looks at.
pub const MAGIC_BYTES: usize = 6;
/// The most memory that xz's dictionary may take; its largest preset needs 65 MiB.
const XZ_MEMORY_BYTES: u64 = 256 << 20;

impl Compression {
    /// By the first bytes, of which there may be fewer than [`MAGIC_BYTES`].
    pub fn of(start: &[u8]) -> Compression {
        match start {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            // A frame to be skipped may come first.
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

/// The bytes behind a compression. All members of a gzip and all frames of a zstd file count.
///
/// # Errors
/// The compression is not supported, or its decoder cannot be made.
pub fn decoder<'a>(
    compression: Compression,
    stream: impl BufRead + Send + 'a,
) -> io::Result<Box<dyn Read + Send + 'a>> {
    Ok(match compression {
        Compression::None => Box::new(stream),
        Compression::Gzip => Box::new(Members { member: Some(GzDecoder::new(stream)), first: true, begun: false }),
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

/// All members of a gzip file. Zeroes behind them, such as tapes and devices leave, are passed over.
struct Members<R> {
    /// `None`: there are no more.
    member: Option<GzDecoder<R>>,
    first: bool,
    /// Whether the member has given anything.
    begun: bool,
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.member {
            match member.read(buf) {
                Ok(0) => {}
                Ok(read) => {
                    self.begun = true;
                    return Ok(read);
                }
                // No header.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput && !self.first && !self.begun => {
                    return Err(trailing());
                }
                Err(e) => return Err(e),
            }
            if let Some(member) = self.member.take()
                && let Some(rest) = behind(member.into_inner())?
            {
                *self = Members { member: Some(GzDecoder::new(rest)), first: false, begun: false };
            }
        }
        Ok(0)
    }
}

/// What is behind a member: another one, or nothing but zeroes.
fn behind<R: BufRead>(mut rest: R) -> io::Result<Option<R>> {
    let mut zeroes = false;
    loop {
        let bytes = match rest.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        match bytes.first() {
            None => return Ok(None),
            Some(0) => {}
            Some(0x1f) if !zeroes => return Ok(Some(rest)),
            Some(_) => return Err(trailing()),
        }
        zeroes = true;
        let len = bytes.iter().take_while(|byte| **byte == 0).count();
        rest.consume(len);
    }
}

fn trailing() -> io::Error {
    let why =
        "other bytes follow the end of what gzip has compressed; decompress it with gzip first, which ignores them";
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A stream whose first bytes have been read.
pub type Peeked<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// What the first bytes of a stream say, and the stream with them in front again.
pub fn peeked<R: Read>(mut stream: R) -> io::Result<(Compression, Peeked<R>)> {
    let mut start = Vec::new();
    stream.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut start)?;
    Ok((Compression::of(&start), Cursor::new(start).chain(stream)))
}
