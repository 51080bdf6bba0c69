//! The sources of trees: directories of the host, tar archives, OCI image layouts.
//!
//! Main types: [`Source`] (a tree and the bytes of its files), [`Options`].
//!
//! What it does not do: fetch anything from elsewhere, or write anything except the unnamed files for bytes that cannot
//! be read twice.
//!
//! # Locking
//! None. Threads that write an image read files of one source side by side, each through a reader of its own.

mod budget;
mod compressed;
mod contents;
mod directory;
mod oci;
mod tar;

pub use oci::architecture;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;

use self::budget::Budget;
use self::compressed::Compression;
use self::contents::Contents;
use crate::error::shown;
use crate::tree::{self, Builder, Content, Tree};
use crate::{Error, Result};

/// A tree, and the origin of its files' bytes.
pub struct Source {
    /// The directories, the files and their attributes.
    pub tree: Tree,
    /// The bytes of files, by the `content` of [`tree::Body::File`].
    pub content: Box<dyn Content + Send>,
    /// Parts of the source that were ignored, as sentences.
    pub warnings: Vec<String>,
}

/// How a source is read.
pub struct Options {
    /// Changes of all entries.
    pub tree: tree::Options,
    /// The directory for contents that cannot be read twice: those of pipes and of compressed archives.
    pub spool: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Options { tree: tree::Options::default(), spool: std::env::temp_dir() }
    }
}

impl Source {
    /// The tree below a directory of the host, other file systems that are mounted below it included.
    ///
    /// # Errors
    /// Something cannot be read or stored; the error names it.
    pub fn directory(path: &Path, options: Options) -> Result<Source> {
        directory::read(path, options)
    }

    /// The source that a word of a command line names: `oci:DIR[:TAG]`, `-` for a tar archive on standard input, a
    /// directory, or a tar archive.
    ///
    /// # Errors
    /// As the function of that source.
    pub fn open(word: &OsStr, options: Options) -> Result<Source> {
        let path = Path::new(word);
        if let Some(layout) = word.as_bytes().strip_prefix(b"oci:") {
            return Source::oci_word(layout, options);
        }
        if word == "-" {
            let name = "standard input".to_owned();
            let input = io::stdin().as_fd().try_clone_to_owned().map_err(|e| source_error(name.clone(), &e))?;
            return Source::tar_file(name, input.into(), options);
        }
        if path.is_dir() { Source::directory(path, options) } else { Source::tar(path, options) }
    }

    /// `DIR[:TAG]`, where the directory may have a colon in its name.
    fn oci_word(word: &[u8], options: Options) -> Result<Source> {
        let path = |bytes| Path::new(OsStr::from_bytes(bytes));
        let colon = word.iter().rposition(|byte| *byte == b':').filter(|_| !path(word).is_dir());
        match colon {
            None => Source::oci(path(word), None, options),
            Some(at) => {
                let tag = std::str::from_utf8(&word[at + 1..]);
                let tag = tag.map_err(|_| Error::Source { name: shown(word), why: "its tag is no text".into() })?;
                Source::oci(path(&word[..at]), Some(tag), options)
            }
        }
    }

    /// The tree of the layers of an image in an OCI image layout: the image with the tag, or the only one; if there are
    /// several, that of the host's platform.
    ///
    /// # Errors
    /// It is no layout, a blob is missing or not what its digest says, or an entry cannot be stored.
    pub fn oci(layout: &Path, tag: Option<&str>, options: Options) -> Result<Source> {
        oci::read(layout, tag, options)
    }

    /// The tree in a tar archive. Contents of a plain one are read in place; those of others are stored in
    /// [`Options::spool`].
    ///
    /// # Errors
    /// It cannot be read, is damaged or cut off, or an entry cannot be stored; the error names it.
    pub fn tar(path: &Path, options: Options) -> Result<Source> {
        let name = shown(path.as_os_str().as_bytes());
        match File::open(path) {
            Ok(file) => Source::tar_file(name, file, options),
            // The system's own error for a socket is that there is no such device.
            Err(_) if path.metadata().is_ok_and(|there| there.file_type().is_socket()) => {
                Err(Error::Source { name, why: "is a socket, and no tar archive".into() })
            }
            Err(e) => Err(source_error(name, &e)),
        }
    }

    /// As [`Source::tar`], of an open file, such as standard input; `name` is for messages. Bytes that have been read
    /// are not read again.
    ///
    /// # Errors
    /// As [`Source::tar`].
    pub fn tar_file(name: String, file: File, options: Options) -> Result<Source> {
        let wrong = |e: &io::Error| source_error(name.clone(), e);
        let there = file.metadata().map_err(|e| wrong(&e))?;
        if there.is_dir() {
            return Err(Error::Source { name, why: "is a directory, and no tar archive".into() });
        }
        if !there.is_file() {
            // With a larger pipe, its writer wakes us less often. If the kernel refuses, the pipe stays as it is.
            let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_BYTES);
            return Source::tar_stream(name, Box::new(file), options);
        }
        let position = rustix::fs::tell(&file).map_err(|e| wrong(&e.into()))?;
        let mut start = Vec::new();
        let read = (&file).take(compressed::MAGIC_BYTES as u64).read_to_end(&mut start);
        read.map_err(|e| wrong(&e))?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(position)).map_err(|e| wrong(&e.into()))?;
        if Compression::of(&start) == Compression::None {
            let input = tar::Input::file(name.clone(), file, position, Budget::default()).map_err(|e| wrong(&e))?;
            return archive(input, options);
        }
        Source::tar_stream(name, Box::new(file), options)
    }

    /// As [`Source::tar`], of anything that can be read.
    ///
    /// # Errors
    /// As [`Source::tar`].
    pub fn tar_stream(name: String, stream: Box<dyn Read + Send + '_>, options: Options) -> Result<Source> {
        let wrong = |e: io::Error| source_error(name.clone(), &e);
        let budget = Budget::default();
        let (compression, stream) = compressed::peeked(budget.counted(stream)).map_err(wrong)?;
        let stream = BufReader::with_capacity(STREAM_BUFFER, stream);
        let garbage = Arc::new(AtomicBool::new(false));
        let stream = compressed::decoder(compression, stream, garbage.clone()).map_err(wrong)?;
        let mut source = archive(tar::Input::stream(name.clone(), stream, options.spool.clone(), budget), options)?;
        if garbage.load(Ordering::Relaxed) {
            source.warnings.push(compressed::ignored_garbage(&name));
        }
        Ok(source)
    }
}

/// The largest pipe without privileges (`/proc/sys/fs/pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;
/// The bytes that are read of a stream at once.
const STREAM_BUFFER: usize = 1 << 17;

fn archive(mut input: tar::Input<'_>, options: Options) -> Result<Source> {
    let name = input.name().to_owned();
    let mut builder = Builder::new(options.tree);
    tar::read(&mut input, true, &mut |entry| entry.add_to(&mut builder).map_err(|e| tar::in_archive(e, &name)))?;
    let parts = vec![input.finish()?];
    let tree = builder.finish().map_err(|e| tar::in_archive(e, &name))?;
    Ok(Source { tree, content: Box::new(Contents { parts }), warnings: Vec::new() })
}

/// Opens a file that must be a regular one, without waiting for a FIFO.
fn regular(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("is not a regular file")),
    }
}

fn source_error(name: String, error: &io::Error) -> Error {
    Error::Source { name, why: plain(error) }
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
