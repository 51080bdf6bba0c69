//! The source of an image as a file of the host. Refuses an image that is part of its source, and explains files that
//! are not a source.
//!
//! Main functions: [`refuse`], [`unknown`].
//!
//! # Locking
//! None.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use extant_build::source::Word;
use extant_image::{Error as ImageError, has_magic, identify_unpartitioned, look, partition_table};

use crate::failure::{Failure, Result};
use crate::image::ImageSpec;
use crate::text::argument;

/// Refuses an image at `target`, called `name`, that is the source or lies in it: the image would be emptied before it
/// is read.
pub fn refuse(target: &Path, name: &str, source: &Word) -> Result<()> {
    let it_is = match &source.path {
        None => is_same(target, standard_input()),
        Some(path) if path.is_dir() => {
            if lies_below(target, path) {
                return Err(Failure::usage(format!(
                    "{name}: it lies below the source of the image; name a file elsewhere"
                )));
            }
            blobs_of(path).iter().any(|file| is_same(target, file.metadata().ok()))
        }
        Some(path) => is_same(target, path.metadata().ok()),
    };
    if it_is {
        return Err(Failure::usage(format!("{name}: it is the source of the image; name another file")));
    }
    Ok(())
}

/// The failure for a source that no reader accepts. If it is another known format, the message names the next step.
pub fn unknown(source: &Word, error: &extant_build::Error) -> Failure {
    let known = source.path.as_ref().filter(|path| path.is_file()).and_then(|path| {
        let device = match look(&ImageSpec::whole(path)) {
            Ok(device) => device,
            // A virtual machine's disk that cannot be converted.
            Err(e @ (ImageError::Program { .. } | ImageError::NoProgram { .. })) => return Some(e.to_string()),
            Err(_) => return None,
        };
        let image = argument(path.as_os_str().as_encoded_bytes(), "");
        let copy = |image: &str| format!("'extant mkfs --from image:{image} --size auto NEW.img' copies its files");
        if has_magic(&*device) {
            return Some(format!("it has an ext2/3/4 file system: {}", copy(&image)));
        }
        if partition_table(&*device).is_ok_and(|table| !table.partitions.is_empty()) {
            return Some(format!("it is a disk with partitions: {}", copy(&format!("{image}@N"))));
        }
        identify_unpartitioned(&*device).map(|format| format!("it is {}: {}", format.name(), format.advice(&image)))
    });
    let known = known.map_or(String::new(), |known| format!("; {known}"));
    Failure::op(format!("{error}{known}"))
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

/// A file that does not exist yet is located by its directory.
fn lies_below(target: &Path, dir: &Path) -> bool {
    let parent = || {
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new(".")).canonicalize()
    };
    let (Ok(place), dir) = (target.canonicalize().or_else(|_| parent()), dir.metadata().ok()) else { return false };
    place.ancestors().any(|above| is_same(above, dir.clone()))
}

/// The files of an image layout, if the directory is one. Blobs are in `blobs/ALGORITHM`.
fn blobs_of(layout: &Path) -> Vec<PathBuf> {
    let below = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
    };
    let blobs = below(&layout.join("blobs"));
    below(layout).into_iter().chain(blobs.iter().flat_map(|dir| below(dir))).collect()
}
