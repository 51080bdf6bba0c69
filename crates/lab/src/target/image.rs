//! Images: made afresh for each trial, checked after it, deleted.
//!
//! Main types: [`ImagePlan`] (how images of a run are made), [`Made`] (one that is there; dropping it deletes it).
//!
//! # Locking
//! None.

use std::fs::File;
use std::path::{Path, PathBuf};

use extant_base::rng::Rng;

use super::Tool;
use crate::error::{Error, Result};
use crate::workload::Needs;

/// Arguments for mke2fs unless told otherwise: nothing is left for a background thread to initialise during the trial.
pub const DEFAULT_MKFS: &str = "-t ext4 -E lazy_itable_init=0,lazy_journal_init=0";

/// Size of an image unless the workload needs more, in bytes: 64 block groups of 128 MiB. The file is sparse.
const DEFAULT_BYTES: u64 = 8 << 30;

/// A random UUID (RFC 4122, version 4).
fn uuid(rng: &mut Rng) -> String {
    let (a, b) = (rng.next_u64(), rng.next_u64());
    let (time, node) = ((a & !0xf000) | 0x4000, (b >> 2) | (2 << 62));
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        time >> 32,
        time >> 16 & 0xffff,
        time & 0xffff,
        node >> 48,
        node & ((1 << 48) - 1)
    )
}

/// How the images of a run are made.
#[derive(Clone, Debug)]
pub struct ImagePlan {
    /// Arguments for mke2fs.
    pub mkfs: Vec<String>,
    /// Size in bytes.
    pub bytes: u64,
}

impl ImagePlan {
    /// `mkfs` and `bytes` as asked for, or what suits `needs`. The UUID and the seed of directory hashes, which decide
    /// where things go, come from `seed` unless `mkfs` says them.
    pub fn new(mkfs: Option<&str>, bytes: Option<u64>, needs: Needs, seed: u64) -> ImagePlan {
        let bytes = bytes.unwrap_or_else(|| needs.bytes.saturating_mul(2).max(DEFAULT_BYTES).next_multiple_of(1 << 20));
        let mut arguments: Vec<String> = mkfs.unwrap_or(DEFAULT_MKFS).split_whitespace().map(str::to_owned).collect();
        // mke2fs makes an inode for each 16 KiB.
        let inodes = needs.files + needs.files / 4 + 1000;
        if inodes > bytes / (16 << 10) && !arguments.iter().any(|a| a == "-N" || a == "-i") {
            arguments.extend(["-N".to_owned(), inodes.to_string()]);
        }
        let mut rng = Rng::new(seed ^ 0x6d6b_6673);
        let (uuid, hash_seed) = (uuid(&mut rng), uuid(&mut rng));
        if !arguments.iter().any(|a| a.starts_with("-U")) {
            arguments.extend(["-U".to_owned(), uuid]);
        }
        if !arguments.iter().any(|a| a.contains("hash_seed=")) {
            // Of several -E mke2fs takes the last.
            match arguments.iter().rposition(|a| a == "-E") {
                Some(at) if at + 1 < arguments.len() => arguments[at + 1] += &format!(",hash_seed={hash_seed}"),
                _ => arguments.extend(["-E".to_owned(), format!("hash_seed={hash_seed}")]),
            }
        }
        ImagePlan { mkfs: arguments, bytes }
    }

    /// The command that makes an image, as it stands in results.
    pub fn command(&self) -> String {
        format!("mke2fs -q -F {} IMAGE", self.mkfs.join(" "))
    }

    /// Makes the image at `path`, replacing what is there.
    pub fn make(&self, path: &Path) -> Result<Made> {
        let file = File::create(path).map_err(Error::file(path))?;
        let made = Made { path: path.to_owned() };
        file.set_len(self.bytes).map_err(Error::file(path))?;
        Tool::new("mke2fs").args(["-q", "-F"]).args(&self.mkfs).arg(path).run()?;
        file.sync_all().map_err(Error::file(path))?;
        Ok(made)
    }
}

/// An image that the lab made. Deleted when dropped.
#[derive(Debug)]
pub struct Made {
    path: PathBuf,
}

impl Made {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `None`: `e2fsck -fn` found nothing; else what it said.
    pub fn check(&self) -> Result<Option<String>> {
        let (status, output, command) = Tool::new("e2fsck").arg("-fn").arg(&self.path).status()?;
        let lines: Vec<&str> = output.lines().filter(|l| !l.is_empty()).collect();
        let shown = lines[..lines.len().min(8)].join("; ");
        Ok((status != Some(0)).then(|| format!("{command}: {shown}")))
    }

    /// Features, as dumpe2fs prints them.
    pub fn features(&self) -> Vec<String> {
        let header = Tool::new("dumpe2fs").arg("-h").arg(&self.path).run().unwrap_or_default();
        let line = header.lines().find_map(|l| l.strip_prefix("Filesystem features:"));
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
