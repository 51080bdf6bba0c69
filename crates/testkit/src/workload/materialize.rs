//! A plain source tree: many small files, some larger ones, a few links, and directories of moderate size.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use extant_base::rng::Rng;

use super::execute::pattern;
use crate::{Error, Result};

/// The size of the tree that was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Materialized {
    pub files: usize,
    pub directories: usize,
    pub symlinks: usize,
    /// Content in bytes.
    pub bytes: u64,
}

/// The average number of files per directory.
const PER_DIRECTORY: usize = 20;

/// Builds a tree of `files` regular files in `dir`; the same count and seed give the same tree. Half the files are
/// below 4 KiB, one in a hundred reaches 1 MiB.
pub fn materialize(dir: &Path, files: usize, seed: u64) -> Result<Materialized> {
    build(dir, files, seed).map_err(Error::io(format!("materialize {}", dir.display())))
}

fn build(dir: &Path, files: usize, seed: u64) -> io::Result<Materialized> {
    let mut rng = Rng::new(seed);
    let mut done = Materialized::default();
    let mut directories: Vec<PathBuf> = vec![dir.to_owned()];
    while done.files < files {
        if done.files >= done.directories * PER_DIRECTORY {
            // Parents come from the older half, so the tree grows in width and in depth.
            let parent = &directories[rng.below(directories.len().div_ceil(2) as u64) as usize];
            let path = parent.join(format!("d{}", done.directories));
            std::fs::create_dir(&path)?;
            directories.push(path);
            done.directories += 1;
        }
        let newest = directories.len().saturating_sub(4);
        let at = newest + rng.below((directories.len() - newest) as u64) as usize;
        let path = directories[at].join(format!("f{}.c", done.files));
        let max = [4096, 4096, 4096, 16 << 10, 16 << 10, 64 << 10][rng.below(6) as usize];
        let len = if rng.one_in(100) { 1 << 20 } else { rng.below(max) };
        std::fs::write(&path, pattern(rng.next_u64(), len as usize))?;
        if rng.one_in(10) {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        }
        if rng.one_in(40) {
            std::os::unix::fs::symlink(format!("f{}.c", done.files), path.with_extension("link"))?;
            done.symlinks += 1;
        }
        done.files += 1;
        done.bytes += len;
    }
    Ok(done)
}
