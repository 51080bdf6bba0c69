//! The storage of an image's files: a directory, or an archive that has been read.
//!
//! Main types: [`Store`], [`Directory`], [`Archive`], [`Stored`] (one of its files).
//!
//! # Locking
//! None.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use super::super::contents::{Part, whole_file};
use super::super::regular;
use crate::error::shown;
use crate::tree::Builder;

/// The files of an image, by path.
pub trait Store: Sync {
    /// The name for messages.
    fn name(&self) -> String;

    /// Opens a regular file. The path comes from a document of the image.
    fn open(&self, path: &str) -> io::Result<Stored>;
}

/// A directory of the host.
pub struct Directory(pub PathBuf);

impl Store for Directory {
    fn name(&self) -> String {
        shown(self.0.as_os_str().as_bytes())
    }

    fn open(&self, path: &str) -> io::Result<Stored> {
        let path = Path::new(path);
        if !path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(io::Error::other("its path leads out of the image"));
        }
        let file = regular(&self.0.join(path))?;
        let end = file.metadata()?.len();
        Ok(Stored::new(file, 0..end))
    }
}

/// An archive, with its names and the bytes of its files.
pub struct Archive<'a> {
    pub name: String,
    pub builder: &'a Builder,
    pub part: &'a Part,
}

impl Store for Archive<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self, path: &str) -> io::Result<Stored> {
        let found = self.builder.file_at(path.as_bytes()).and_then(|(size, content)| whole_file(content, size));
        let range = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "No such file in the archive"))?;
        Ok(Stored::new(self.part.file.try_clone()?, range))
    }
}

/// A file, which may be a range of a larger one. It has a separate position.
pub struct Stored {
    pub file: File,
    pub range: Range<u64>,
    at: u64,
}

impl Stored {
    fn new(file: File, range: Range<u64>) -> Stored {
        let at = range.start;
        Stored { file, range, at }
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Moves the position back to the beginning.
    pub fn rewind(&mut self) {
        self.at = self.range.start;
    }
}

impl Read for Stored {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = (self.range.end - self.at).min(buf.len() as u64) as usize;
        let read = self.file.read_at(&mut buf[..most], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
