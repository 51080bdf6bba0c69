//! Changes an existing tree, file by file, as a user does.

use std::path::{Path, PathBuf};

use extant_base::rng::Rng;
use rustix::io::Errno;

use super::execute::execute;
use super::op::{Falloc, NodeType, Op, RenameMode};
use super::settle::time;
use crate::tree::walk;
use crate::{Error, Result};

/// Changes about half of the regular files under `dir`: renames, deletes, truncates, appends to, punches holes into and
/// links them. It also sets attributes, owners and odd times, and creates devices beside them. The same tree and seed
/// give the same result. Returns how many operations succeeded; a hole that the format does not support is not counted.
pub fn change(dir: &Path, seed: u64) -> Result<usize> {
    let mut files: Vec<(PathBuf, u64)> = Vec::new();
    walk(dir, &mut |relative, path| {
        let meta = path.symlink_metadata().map_err(Error::io(format!("stat {}", path.display())))?;
        if meta.is_file() {
            files.push((relative.to_owned(), meta.len()));
        }
        Ok(())
    })?;
    let mut rng = Rng::new(seed);
    let mut done = 0;
    for (path, size) in files {
        let op = one(&mut rng, path, size);
        let Some(op) = op else { continue };
        match execute(dir, &op) {
            Ok(()) => done += 1,
            Err(e) if e.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {}
            Err(e) => return Err(Error::io(format!("{op:?} in {}", dir.display()))(e)),
        }
    }
    Ok(done)
}

fn one(rng: &mut Rng, path: PathBuf, size: u64) -> Option<Op> {
    let beside = |suffix: &str| {
        let mut name = path.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    };
    let fill = rng.next_u64();
    Some(match rng.below(22) {
        0 => Op::Rename { from: path.clone(), to: beside(".renamed"), mode: RenameMode::NoReplace },
        1 => Op::Unlink { path },
        2 => Op::Truncate { path, size: size / 2 },
        3 => Op::Truncate { path, size: size + rng.below(1 << 20) },
        4 => Op::Append { path, len: rng.below(20_000) as usize, fill },
        5 => Op::Fallocate { path, how: Falloc::PunchHole, offset: size / 3, len: size / 2 + 1 },
        6 => Op::SetXattr { path, name: b"user.changed".to_vec(), len: rng.below(200) as usize, fill, flags: 0 },
        7 => Op::Link { from: path.clone(), to: beside(".linked") },
        8 => Op::Mknod {
            path: beside(".device"),
            node: NodeType::CharDevice(259, rng.below(100_000) as u32),
            mode: 0o640,
        },
        9 => Op::Utimens { path, atime: time(rng, true), mtime: time(rng, true) },
        10 => Op::Chown { path, uid: Some(rng.below(100_000) as u32), gid: Some(rng.below(100_000) as u32) },
        _ => return None,
    })
}
