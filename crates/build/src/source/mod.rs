//! The sources of trees: directories of the host, tar archives, and images of layers in either.
//!
//! Main types: [`Source`] (a tree and the bytes of its files), [`Word`] (a source as an argument of a command line),
//! [`Options`].
//!
//! What it does not do: fetch anything from elsewhere, or write anything except the unnamed files for bytes that cannot
//! be read twice.
//!
//! # Locking
//! None. Threads that write an image read files of one source concurrently, each with a separate reader.

mod budget;
mod compressed;
mod contents;
mod directory;
mod left_out;
mod oci;
mod tar;
mod word;

pub use oci::{HIDES, architecture};
pub use tar::flags::names as flag_names;
pub use word::{Form, Word};

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_ondisk::superblock::MAGIC;
use rustix::fs::OFlags;

use self::budget::Budget;
use self::compressed::Compression;
use self::contents::Contents;
use crate::error::shown;
use crate::tree::{self, Builder, Content, Tree};
use crate::{Error, Result};

/// A tree, and the source of its files' bytes.
pub struct Source {
    /// The directories, the files and their attributes.
    pub tree: Tree,
    /// The bytes of files, by the `content` of [`tree::Body::File`].
    pub content: Box<dyn Content + Send>,
    /// Parts of the source that were ignored, as sentences.
    pub warnings: Vec<String>,
}

/// The options for reading a source.
pub struct Options {
    /// Changes to all entries.
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
    /// A tree without files.
    ///
    /// # Errors
    /// A path in the owners' file does not exist.
    pub fn empty(options: Options) -> Result<Source> {
        let content = Box::new(Contents { parts: Vec::new() });
        Ok(Source { tree: Builder::new(options.tree).finish()?, content, warnings: Vec::new() })
    }

    /// The tree below a directory of the host, including other file systems that are mounted below it.
    ///
    /// # Errors
    /// Something cannot be read or stored. The error contains its name.
    pub fn directory(path: &Path, options: Options) -> Result<Source> {
        directory::read(path, options)
    }

    /// The source of a [`Word`]. Without a form, a directory or an archive that is an image layout or a `docker save`
    /// becomes the tree of its layers, and any other the tree of its files.
    ///
    /// # Errors
    /// Those of the function for that source.
    pub fn open(word: &Word, options: Options) -> Result<Source> {
        let Word { form, path } = word;
        let Some(path) = path else {
            let name = "standard input".to_owned();
            let input = io::stdin().as_fd().try_clone_to_owned().map_err(|e| source_error(name.clone(), &e))?;
            return Source::tar_file(name, input.into(), form, options);
        };
        let is_directory = path.is_dir() && *form != Form::Archive;
        let store = oci::Directory(path.clone());
        match form {
            Form::Directory => Source::directory(path, options),
            Form::Image(tag) if is_directory => oci::read(&store, tag.as_deref(), options),
            _ if is_directory && oci::is_image(&store) => oci::read(&store, None, options),
            _ if is_directory => Source::directory(path, options),
            form => Source::tar_as(path, form, options),
        }
    }

    /// The tree of the layers of an image in an OCI image layout: the image with the tag, or the only one; if there are
    /// several, that of the host's platform.
    ///
    /// # Errors
    /// It is not a layout, a blob is missing or does not match its digest, or an entry cannot be stored.
    pub fn oci(layout: &Path, tag: Option<&str>, options: Options) -> Result<Source> {
        oci::read(&oci::Directory(layout.to_owned()), tag, options)
    }

    /// The tree in a tar archive, or of the image in it. The contents of a plain archive are read in place; those of
    /// others are stored in [`Options::spool`].
    ///
    /// # Errors
    /// It cannot be read, is damaged or cut off, or has no entries, or an entry cannot be stored. The error contains
    /// its name.
    pub fn tar(path: &Path, options: Options) -> Result<Source> {
        Source::tar_as(path, &Form::Any, options)
    }

    fn tar_as(path: &Path, form: &Form, options: Options) -> Result<Source> {
        let name = shown(path.as_os_str().as_bytes());
        match File::open(path) {
            Ok(file) => Source::tar_file(name, file, form, options),
            // For a socket, the system's own error would be that there is no such device.
            Err(_) if path.metadata().is_ok_and(|there| there.file_type().is_socket()) => {
                Err(Error::Source { name, why: "is a socket, and no tar archive".into() })
            }
            Err(e) => Err(source_error(name, &e)),
        }
    }

    /// The same as [`Source::tar`], for an open file, such as standard input; `name` is for messages. Bytes that have
    /// been read are not read again.
    fn tar_file(name: String, file: File, form: &Form, options: Options) -> Result<Source> {
        let wrong = |e: &io::Error| source_error(name.clone(), e);
        let there = file.metadata().map_err(|e| wrong(&e))?;
        if there.is_dir() {
            return Err(Error::Source { name, why: "is a directory, and no tar archive".into() });
        }
        if !there.is_file() {
            // With a larger pipe, its writer wakes us less often. If the kernel refuses, the pipe is not changed.
            let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_BYTES);
            return Source::tar_stream_as(name, Box::new(file), form, options);
        }
        let position = rustix::fs::tell(&file).map_err(|e| wrong(&e.into()))?;
        let mut start = Vec::new();
        let read = (&file).take(compressed::MAGIC_BYTES as u64).read_to_end(&mut start);
        read.map_err(|e| wrong(&e))?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(position)).map_err(|e| wrong(&e.into()))?;
        if Compression::of(&start) == Compression::None {
            let range = position..there.len();
            let input = tar::Input::file(name.clone(), file, range, Budget::default()).map_err(|e| wrong(&e))?;
            return archive(input, form, options);
        }
        Source::tar_stream_as(name, Box::new(file), form, options)
    }

    /// The same as [`Source::tar`], for anything that can be read.
    ///
    /// # Errors
    /// As [`Source::tar`].
    pub fn tar_stream(name: String, stream: Box<dyn Read + Send + '_>, options: Options) -> Result<Source> {
        Source::tar_stream_as(name, stream, &Form::Any, options)
    }

    fn tar_stream_as(name: String, stream: Box<dyn Read + Send + '_>, form: &Form, options: Options) -> Result<Source> {
        let wrong = |e: io::Error| source_error(name.clone(), &e);
        let budget = Budget::default();
        let (compression, stream) = compressed::peeked(budget.counted(stream)).map_err(wrong)?;
        let stream = BufReader::with_capacity(STREAM_BUFFER, stream);
        let garbage = Arc::new(AtomicBool::new(false));
        let stream = compressed::decoder(compression, stream, garbage.clone()).map_err(wrong)?;
        let input = tar::Input::stream(name.clone(), stream, options.spool.clone(), budget);
        let mut source = archive(input, form, options)?;
        if garbage.load(Ordering::Relaxed) {
            source.warnings.push(compressed::ignored_garbage(&name));
        }
        Ok(source)
    }
}

/// The maximum size of a pipe without privileges (`/proc/sys/fs/pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;
/// The offset of the magic of a superblock after two blocks of zeros.
const MAGIC_AT: usize = 56;
/// The number of bytes of a stream that are read at once.
const STREAM_BUFFER: usize = 1 << 17;

fn archive(mut input: tar::Input<'_>, form: &Form, options: Options) -> Result<Source> {
    let name = input.name().to_owned();
    let mut builder = Builder::new(options.tree.clone());
    let seen = tar::read(&mut input, &mut |entry| entry.add_to(&mut builder).map_err(|e| tar::in_archive(e, &name)))?;
    if seen.entries == 0 {
        refuse_empty(&mut input, &seen, form)?;
    }
    let part = input.finish()?;
    let mut warnings: Vec<String> = seen.left_out.warning(&name).into_iter().collect();
    if !seen.is_marked {
        warnings.push(format!("{name}: no end mark follows the last entry; more may be missing if it was cut off"));
    }
    let in_archive = |e| tar::in_archive(e, &name);
    builder.settle().map_err(in_archive)?;
    // Without a part, all files are empty.
    let store = part.as_ref().map(|part| oci::Archive { name: name.clone(), builder: &builder, part });
    let image = match form {
        Form::Image(tag) => Some((store.ok_or_else(|| oci::no_image(name.clone()))?, tag.as_deref())),
        Form::Any => store.filter(|store| oci::is_image(store)).map(|store| (store, None)),
        Form::Archive | Form::Directory => None,
    };
    if let Some((store, tag)) = image {
        let mut source = oci::read(&store, tag, options)?;
        source.warnings.splice(0..0, warnings);
        return Ok(source);
    }
    let tree = builder.finish().map_err(in_archive)?;
    Ok(Source { tree, content: Box::new(Contents { parts: vec![part] }), warnings })
}

/// An archive without entries contains only zeros, like many files that are no archives. It is accepted only if the
/// user says that it is an archive.
fn refuse_empty(input: &mut tar::Input<'_>, seen: &tar::ArchiveSummary, form: &Form) -> Result<()> {
    if !seen.is_marked {
        return Err(input.refused("it is empty"));
    }
    if let Some(data) = input.data_behind()? {
        let is_ext = data.get(MAGIC_AT..MAGIC_AT + 2) == Some(&MAGIC.to_le_bytes());
        let what = if is_ext { "an ext2/3/4 file system follows" } else { "other data follows" };
        return Err(input.unknown(&format!("not a tar archive: it begins with zeroes, and {what}")));
    }
    match form {
        Form::Archive => Ok(()),
        _ => {
            Err(input.unknown("it has only zeroes and no entries; with tar: in front it is taken as an empty archive"))
        }
    }
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
