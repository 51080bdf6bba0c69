//! The input of an archive: a file, whose contents are read in place, or a stream, whose contents are stored.
//!
//! Main type: [`Input`].
//!
//! # Locking
//! None.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::super::budget::Budget;
use super::super::contents::{self, PART_BYTES_MAX, Part, Pieces, Print, Spool};
use super::super::plain;
use crate::{Error, Result};

/// The number of bytes of a file that are read at once: a header, and usually a small file and the next header, too.
const WINDOW: usize = 8192;
/// The number of bytes of a stream that are skipped at once.
const COPY: usize = 1 << 16;
/// The maximum number of zeros at the beginning of an archive after which other data is searched. Archives without
/// entries have 10 KiB; an image file may have terabytes.
const ZEROES_MAX: usize = 1 << 20;

/// An archive that is read sequentially.
pub struct Input<'a> {
    name: String,
    position: u64,
    from: InputSource<'a>,
    sparse: Vec<Pieces>,
    budget: Budget,
}

enum InputSource<'a> {
    /// `len` bytes from byte `origin` on. `window` contains those from byte `start` on.
    File {
        file: File,
        print: Print,
        origin: u64,
        len: u64,
        window: Vec<u8>,
        start: u64,
    },
    Stream {
        stream: Box<dyn Read + Send + 'a>,
        dir: PathBuf,
        spool: Option<Spool>,
        buffer: Vec<u8>,
    },
}

impl<'a> Input<'a> {
    /// A range of a regular file, whose contents can be read there again.
    pub fn file(name: String, file: File, range: Range<u64>, budget: Budget) -> io::Result<Input<'a>> {
        let print = Print::of(&file)?;
        let (origin, len) = (range.start, range.end.saturating_sub(range.start));
        budget.add_stored(len);
        let from = InputSource::File { file, print, origin, len, window: Vec::new(), start: 0 };
        Ok(Input { name, position: 0, from, sparse: Vec::new(), budget })
    }

    /// Any reader. Contents are stored in an unnamed file in `dir`. `budget` itself counts the stored bytes.
    pub fn stream(name: String, stream: Box<dyn Read + Send + 'a>, dir: PathBuf, budget: Budget) -> Input<'a> {
        let from = InputSource::Stream { stream, dir, spool: None, buffer: Vec::new() };
        Input { name, position: 0, from, sparse: Vec::new(), budget }
    }

    /// The name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The number of bytes of the archive that have been read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// An error at a position in the archive.
    pub fn wrong(&self, position: u64, why: impl std::fmt::Display) -> Error {
        self.refused(&format!("{why} (at byte {position})"))
    }

    /// An error of the archive as a whole.
    pub fn refused(&self, why: &str) -> Error {
        Error::Source { name: self.name.clone(), why: why.into() }
    }

    /// The error for bytes that are no archive at all.
    pub fn unknown(&self, why: &str) -> Error {
        Error::Unknown { name: self.name.clone(), why: why.into() }
    }

    fn unreadable(&self, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.wrong(self.position, "it is cut off"),
            _ => self.wrong(self.position, plain(error)),
        }
    }

    /// Reads until `buf` is full or the archive ends. Returns the number of bytes.
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let read = match &mut self.from {
            InputSource::File { file, origin, len: end, window, start, .. } => {
                let have = |window: &Vec<u8>, start: u64, at: u64, len: usize| {
                    at >= start && at + len as u64 <= start + window.len() as u64
                };
                let wanted = (buf.len() as u64).min(end.saturating_sub(self.position)) as usize;
                let buf = &mut buf[..wanted];
                if wanted > WINDOW {
                    file.read_exact_at(buf, *origin + self.position).map(|()| wanted)
                } else {
                    let filled = if have(window, *start, self.position, wanted) {
                        Ok(())
                    } else {
                        *start = self.position;
                        window.resize((*end - self.position).min(WINDOW as u64) as usize, 0);
                        file.read_exact_at(window, *origin + self.position)
                    };
                    filled.map(|()| {
                        buf.copy_from_slice(&window[(self.position - *start) as usize..][..wanted]);
                        wanted
                    })
                }
            }
            InputSource::Stream { stream, .. } => read_full(stream, buf),
        };
        let read = read.map_err(|e| self.unreadable(&e))?;
        self.position += read as u64;
        Ok(read)
    }

    /// Reads to the first byte that is not zero, up to a limit. Returns the bytes around it.
    pub fn data_behind(&mut self) -> Result<Option<Vec<u8>>> {
        let mut buf = vec![0; COPY];
        for _ in 0..ZEROES_MAX / COPY {
            let read = self.read(&mut buf)?;
            if buf[..read].iter().any(|byte| *byte != 0) {
                buf.truncate(read);
                return Ok(Some(buf));
            }
            if read < COPY {
                break;
            }
        }
        Ok(None)
    }

    /// Skips `len` bytes. Returns false if the archive ends before.
    pub fn skip(&mut self, len: u64) -> Result<bool> {
        if let InputSource::File { len: end, .. } = &self.from {
            let there = self.position.checked_add(len).is_some_and(|to| to <= *end);
            self.position = self.position.saturating_add(len).min(*end);
            return Ok(there);
        }
        self.pass(len, false)
    }

    /// Skips the data of a file, and returns the file's number; `None` if the archive ends before. `data` are the
    /// ranges of the file to which the bytes belong.
    pub fn content(&mut self, len: u64, data: Option<&[Range<u64>]>) -> Result<Option<u64>> {
        let offset = match &mut self.from {
            InputSource::File { origin, .. } => *origin + self.position,
            InputSource::Stream { dir, spool, .. } => match spool {
                Some(spool) => spool.end(),
                // A tree without files needs no storage.
                None if len == 0 => 0,
                None => spool.insert(Spool::new(dir)?).end(),
            },
        };
        if offset.checked_add(len).is_none_or(|end| end > PART_BYTES_MAX) {
            return Err(self.wrong(self.position, "it is larger than any archive can be"));
        }
        let there = match &self.from {
            InputSource::File { .. } => self.skip(len)?,
            InputSource::Stream { .. } => self.pass(len, true)?,
        };
        Ok(there.then(|| contents::number(&mut self.sparse, offset, data)))
    }

    /// Reads the next bytes of a stream. `keep` stores them in the spool.
    fn pass(&mut self, mut len: u64, keep: bool) -> Result<bool> {
        while len > 0 {
            let InputSource::Stream { stream, dir, spool, buffer } = &mut self.from else { break };
            let room = match (keep, spool.as_mut()) {
                (true, Some(spool)) => spool.room().map_err(|e| contents::wrong(dir, &e))?,
                _ => {
                    buffer.resize(COPY, 0);
                    &mut buffer[..]
                }
            };
            let wanted = len.min(room.len() as u64) as usize;
            let read = read_full(stream, &mut room[..wanted]);
            if let (Ok(read), true, Some(spool)) = (&read, keep, spool) {
                spool.add(*read);
            }
            let read = read.map_err(|e| self.unreadable(&e))?;
            self.position += read as u64;
            len -= read as u64;
            if read < wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the bytes after the archive, so that a compression's last checksum is compared and the writer gets no
    /// SIGPIPE. Returns the part with the bytes of the tree's files.
    pub fn finish(mut self) -> Result<Option<Part>> {
        if matches!(self.from, InputSource::Stream { .. }) {
            while self.pass(COPY as u64, false)? {}
        }
        let Input { name, from, sparse, .. } = self;
        Ok(match from {
            InputSource::File { file, print, .. } => Some(Part { name, file, print: Some(print), sparse }),
            InputSource::Stream { spool: None, .. } => None,
            InputSource::Stream { spool: Some(spool), dir, .. } => {
                let file = spool.finish().map_err(|e| contents::wrong(&dir, &e))?;
                Some(Part { name, file, print: None, sparse })
            }
        })
    }
}

fn read_full(stream: &mut dyn Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buf.len() {
        match stream.read(&mut buf[read..]) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(read)
}
