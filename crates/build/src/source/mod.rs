//! What trees are read from: directories of the host.
//!
//! Main types: [`Source`] (a tree and the bytes of its files), [`Options`].
//!
//! # Locking
//! None. Threads that write an image read files of one source side by side, each through a reader of its own.

mod directory;

use std::io;
use std::path::Path;

use crate::tree::{self, Content, Tree};
use crate::{Error, Result};

/// A tree, and where the bytes of its files come from.
pub struct Source {
    /// What there is.
    pub tree: Tree,
    /// What [`tree::Body::File`]'s `content` is a number for.
    pub content: Box<dyn Content + Send>,
}

/// How a source is read.
pub struct Options<'a> {
    /// What is changed of all entries.
    pub tree: tree::Options,
    /// Told now and then how many entries have been met.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options { tree: tree::Options::default(), progress: &|_| {} }
    }
}

impl Source {
    /// What a directory of the host holds, other file systems that are mounted below it included.
    ///
    /// # Errors
    /// Something cannot be read or stored; the error names it.
    pub fn directory(path: &Path, options: Options<'_>) -> Result<Source> {
        directory::read(path, options)
    }
}

/// Counts entries, and tells of every so many.
struct Progress<'a> {
    tell: &'a (dyn Fn(u64) + Sync),
    entries: u64,
}

impl Progress<'_> {
    /// Between two tellings; some tenths of a millisecond.
    const STEP: u64 = 256;

    fn new<'a>(options: &Options<'a>) -> Progress<'a> {
        Progress { tell: options.progress, entries: 0 }
    }

    fn entry(&mut self) {
        self.entries += 1;
        if self.entries.is_multiple_of(Progress::STEP) {
            (self.tell)(self.entries);
        }
    }

    fn end(self) {
        (self.tell)(self.entries);
    }
}

/// An error of the system as a sentence, without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// An error of the system about an entry.
fn entry_error(entry: String, doing: &str, error: impl Into<io::Error>) -> Error {
    Error::Entry { entry, why: format!("{doing}: {}", plain(&error.into())) }
}

/// Whether an image has a place for an extended attribute; others are the host file system's own.
fn is_stored(name: &[u8]) -> bool {
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    spaces.iter().any(|space| name.len() > space.len() && name.starts_with(space))
        || matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default")
}
