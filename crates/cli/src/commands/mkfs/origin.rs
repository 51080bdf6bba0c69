//! Refuses an image that is part of its own source: it would be emptied before it is read.
//!
//! Main function: [`refuse`].
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// Refuses an image at `target`, called `name`, that is or lies in the source `word`.
pub fn refuse(target: &Path, name: &str, word: &OsStr) -> Result<()> {
    let path = Path::new(word);
    let it_is = if let Some(layout) = word.as_bytes().strip_prefix(b"oci:") {
        files_of_layout(&layout_of(layout)).iter().any(|file| is_same(target, file.metadata().ok()))
    } else if word == "-" {
        is_same(target, standard_input())
    } else if path.is_dir() {
        if lies_below(target, path) {
            return Err(Failure::usage(format!(
                "{name}: it lies below the source of the image; name a file elsewhere"
            )));
        }
        false
    } else {
        is_same(target, path.metadata().ok())
    };
    if it_is {
        return Err(Failure::usage(format!("{name}: it is the source of the image; name another file")));
    }
    Ok(())
}

fn is_same(target: &Path, other: Option<Metadata>) -> bool {
    let Some((target, other)) = target.metadata().ok().zip(other) else { return false };
    let is_device = |meta: &Metadata| meta.file_type().is_block_device();
    (target.dev(), target.ino()) == (other.dev(), other.ino())
        || is_device(&target) && is_device(&other) && target.rdev() == other.rdev()
}

fn standard_input() -> Option<Metadata> {
    let input = std::io::stdin().as_fd().try_clone_to_owned().ok()?;
    std::fs::File::from(input).metadata().ok()
}

/// A file that does not exist yet lies in its directory.
fn lies_below(target: &Path, dir: &Path) -> bool {
    let parent = || {
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new(".")).canonicalize()
    };
    let (Ok(place), dir) = (target.canonicalize().or_else(|_| parent()), dir.metadata().ok()) else { return false };
    place.ancestors().any(|above| is_same(above, dir.clone()))
}

/// The directory of `DIR[:TAG]`; the directory may have a colon in its name.
fn layout_of(word: &[u8]) -> PathBuf {
    let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
    let colon = word.iter().rposition(|byte| *byte == b':').filter(|_| !path(word).is_dir());
    path(&word[..colon.unwrap_or(word.len())])
}

/// Blobs are in `blobs/ALGORITHM`.
fn files_of_layout(layout: &Path) -> Vec<PathBuf> {
    let below = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
    };
    let blobs = below(&layout.join("blobs"));
    below(layout).into_iter().chain(blobs.iter().flat_map(|dir| below(dir))).collect()
}
