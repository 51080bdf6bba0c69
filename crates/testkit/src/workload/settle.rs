//! Times that depend only on path and seed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use extant_base::rng::Rng;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::tree::walk;
use crate::{Error, Result};

/// A time. `odd`: also before 1970, near the limits of 32 bits, and near the last second that ext4 can store.
pub(super) fn time(rng: &mut Rng, odd: bool) -> (i64, u32) {
    const LAST: i64 = 15_032_385_535;
    const ODD: [i64; 14] = [
        0,
        -1,
        -2,
        i32::MIN as i64,
        i32::MIN as i64 - 1,
        i32::MAX as i64,
        i32::MAX as i64 + 1,
        u32::MAX as i64,
        u32::MAX as i64 + 1,
        3 << 32,
        LAST - 1,
        LAST,
        LAST + 1,
        1 << 40,
    ];
    let sec = if odd && rng.one_in(3) {
        ODD[rng.below(ODD.len() as u64) as usize]
    } else {
        1_000_000_000 + rng.below(1_000_000_000) as i64
    };
    let nsec = [0, 1, 999_999_999, rng.below(1_000_000_000) as u32][rng.below(4) as usize];
    (sec, nsec)
}

/// utimensat, without following symbolic links.
pub(super) fn set_times(path: &Path, atime: (i64, u32), mtime: (i64, u32)) -> io::Result<()> {
    let spec = |(sec, nsec): (i64, u32)| Timespec { tv_sec: sec, tv_nsec: nsec.into() };
    let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Sets all times under `top`. Paths are visited in order, so that the last name of an inode determines its times on
/// every file system. Directories are read before their times are set.
pub(super) fn settle(top: &Path, seed: u64, odd: bool) -> Result<()> {
    let mut all: Vec<(PathBuf, PathBuf)> = Vec::new();
    walk(top, &mut |relative, path| {
        all.push((relative.to_owned(), path.to_owned()));
        Ok(())
    })?;
    for (relative, path) in all {
        let mut hasher = DefaultHasher::new();
        relative.hash(&mut hasher);
        let mut rng = Rng::new(seed ^ hasher.finish());
        set_times(&path, time(&mut rng, odd), time(&mut rng, odd))
            .map_err(Error::io(format!("utimens {}", path.display())))?;
    }
    Ok(())
}
