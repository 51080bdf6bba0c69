//! Images are made anew for each trial, by mke2fs or as copies of an existing image, and checked and deleted after it.
//! On a block device, the file system is kept.
//!
//! Main types: [`ImagePlan`] (how to make a run's images), [`Made`] (an image; dropping it deletes the file).
//!
//! # Locking
//! None.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use extant_base::rng::Rng;
use sha2::{Digest, Sha256};

use super::Tool;
use crate::error::{Error, Result};
use crate::measure::extents;
use crate::workload::Needs;

/// Default arguments for mke2fs: no background thread has to initialise anything during the trial.
pub const DEFAULT_MKFS: &str = "-t ext4 -E lazy_itable_init=0,lazy_journal_init=0";

/// Default size of an image in bytes, unless the workload needs more: 64 block groups of 128 MiB. The file is sparse.
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

/// The size in bytes of an image, if none is given.
fn suitable(needs: Needs) -> u64 {
    let bytes = match needs.fill {
        0 => needs.bytes.saturating_mul(2).max(DEFAULT_BYTES),
        fill => (needs.bytes / fill).saturating_mul(100),
    };
    bytes.next_multiple_of(1 << 20)
}

/// How the images of a run are made.
#[derive(Clone, Debug)]
pub struct ImagePlan {
    origin: Origin,
    /// Size in bytes.
    pub bytes: u64,
    /// Space for the work in bytes: the size, or the free space in a copied image.
    pub room: u64,
    /// Bytes that an image takes on the host's disk before the work begins.
    pub stored: u64,
}

/// The state of an image before the work begins.
#[derive(Clone, Debug)]
enum Origin {
    /// Arguments for mke2fs.
    Mkfs(Vec<String>),
    /// A copy of this file. `digest`: SHA-256 of its data and of the positions of the data.
    Copy { path: PathBuf, digest: String },
}

impl ImagePlan {
    /// A plan with `mkfs` and `bytes` as given, or according to `needs`. The UUID and the seed of directory hashes
    /// affect the layout; they are derived from `seed`, unless `mkfs` gives them.
    pub fn new(mkfs: Option<&str>, bytes: Option<u64>, needs: Needs, seed: u64) -> ImagePlan {
        let bytes = bytes.unwrap_or_else(|| suitable(needs));
        let mut arguments: Vec<String> = mkfs.unwrap_or(DEFAULT_MKFS).split_whitespace().map(str::to_owned).collect();
        // mke2fs makes one inode per 16 KiB.
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
            // If -E is given several times, mke2fs uses the last.
            match arguments.iter().rposition(|a| a == "-E") {
                Some(at) if at + 1 < arguments.len() => arguments[at + 1] += &format!(",hash_seed={hash_seed}"),
                _ => arguments.extend(["-E".to_owned(), format!("hash_seed={hash_seed}")]),
            }
        }
        ImagePlan { origin: Origin::Mkfs(arguments), bytes, room: bytes, stored: bytes / 32 }
    }

    /// A plan to copy the image at `path`, which is not changed.
    pub fn copy_of(path: &Path) -> Result<ImagePlan> {
        let room = extents::free_bytes(path)?;
        let stored = path.metadata().map_err(Error::file(path))?.blocks().saturating_mul(512);
        // Its data is read once, for the digest: a run that continues later, or is repeated, must begin with the same
        // image.
        let mut digest = Sha256::new();
        let mut buffer = vec![0; COPY_BYTES];
        let bytes = each_extent(path, |file, at, len| {
            digest.update(at.to_le_bytes());
            digest.update(len.to_le_bytes());
            file.seek(SeekFrom::Start(at)).map_err(Error::file(path))?;
            let mut left = len;
            while left > 0 {
                let n = left.min(COPY_BYTES as u64) as usize;
                file.read_exact(&mut buffer[..n]).map_err(Error::file(path))?;
                digest.update(&buffer[..n]);
                left -= n as u64;
            }
            Ok(())
        })?;
        let digest = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
        Ok(ImagePlan { origin: Origin::Copy { path: path.to_owned(), digest }, bytes, room, stored })
    }

    /// The command that makes an image, as recorded in results.
    pub fn command(&self) -> String {
        match &self.origin {
            Origin::Mkfs(arguments) => format!("mke2fs -q -F {} IMAGE", arguments.join(" ")),
            Origin::Copy { path, digest } => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                format!("cp --sparse=always {name} IMAGE # SHA-256 {digest}")
            }
        }
    }

    /// Whether the image contains files before the work begins.
    pub fn is_copy(&self) -> bool {
        matches!(self.origin, Origin::Copy { .. })
    }

    /// The image that is copied, if `path` is that image under any name.
    pub fn original(&self, path: &Path) -> Option<&Path> {
        let Origin::Copy { path: original, .. } = &self.origin else { return None };
        same_file(original, path).then_some(original)
    }

    /// The options of `lab run` for this plan.
    pub fn options(&self) -> Vec<(&'static str, String)> {
        match &self.origin {
            Origin::Mkfs(arguments) => vec![("--mkfs", arguments.join(" ")), ("--size", self.bytes.to_string())],
            Origin::Copy { path, .. } => vec![("--image", path.display().to_string())],
        }
    }

    /// Makes the image at `path`, replacing an existing file, unless that is the original of a copy. On a block device,
    /// mke2fs makes a file system of the same size as in a file.
    pub fn make(&self, path: &Path) -> Result<Made> {
        if let Some(original) = self.original(path) {
            let (path, original) = (path.display(), original.display());
            return Err(Error::Failed(format!("{path} is the image that is copied, {original}: it stays as it is")));
        }
        if let (Origin::Mkfs(arguments), true) = (&self.origin, is_block_device(path)) {
            let kib = format!("{}k", self.bytes >> 10);
            Tool::new("mke2fs").args(["-q", "-F"]).args(arguments).arg(path).arg(kib).run()?;
            let device = File::open(path).map_err(Error::file(path))?;
            device.sync_all().map_err(Error::file(path))?;
            return Ok(Made { path: path.to_owned() });
        }
        let mut file = File::create(path).map_err(Error::file(path))?;
        let made = Made { path: path.to_owned() };
        file.set_len(self.bytes).map_err(Error::file(path))?;
        match &self.origin {
            Origin::Mkfs(arguments) => {
                Tool::new("mke2fs").args(["-q", "-F"]).args(arguments).arg(path).run()?;
            }
            Origin::Copy { path: from, .. } => {
                let mut buffer = vec![0; COPY_BYTES];
                each_extent(from, |original, at, len| {
                    original.seek(SeekFrom::Start(at)).map_err(Error::file(from))?;
                    file.seek(SeekFrom::Start(at)).map_err(Error::file(path))?;
                    let mut left = len;
                    while left > 0 {
                        let n = left.min(COPY_BYTES as u64) as usize;
                        original.read_exact(&mut buffer[..n]).map_err(Error::file(from))?;
                        file.write_all(&buffer[..n]).map_err(Error::file(path))?;
                        left -= n as u64;
                    }
                    Ok(())
                })?;
            }
        }
        file.sync_all().map_err(Error::file(path))?;
        Ok(made)
    }
}

/// The number of bytes that are read at once.
const COPY_BYTES: usize = 1 << 20;

/// Calls `visit` with each part of a file that is not a hole, and returns the file's size.
fn each_extent(path: &Path, mut visit: impl FnMut(&mut File, u64, u64) -> Result<()>) -> Result<u64> {
    let mut file = File::open(path).map_err(Error::file(path))?;
    let bytes = file.metadata().map_err(Error::file(path))?.len();
    let mut at = 0;
    loop {
        let data = match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            // Only a hole follows.
            Err(rustix::io::Errno::NXIO) => return Ok(bytes),
            data => data.map_err(|e| Error::file(path)(e.into()))?,
        };
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data));
        let hole = hole.map_err(|e| Error::file(path)(e.into()))?;
        visit(&mut file, data, hole - data)?;
        at = hole;
    }
}

/// Whether both names refer to the same file. Names of missing files do not.
pub fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.metadata(), b.metadata()), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// Whether `path` is a block device, also through symbolic links as in /dev/disk.
pub fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.file_type().is_block_device())
}

/// An image that the lab made. Deleted when dropped, unless it is a block device.
#[derive(Debug)]
pub struct Made {
    path: PathBuf,
}

impl Made {
    /// The path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the image. `None` if `e2fsck -fn` finds nothing; otherwise its output.
    pub fn check(&self) -> Result<Option<String>> {
        let (status, output, command) = Tool::new("e2fsck").arg("-fn").arg(&self.path).status()?;
        let lines: Vec<&str> = output.lines().filter(|l| !l.is_empty()).collect();
        let shown = lines[..lines.len().min(8)].join("; ");
        Ok((status != Some(0)).then(|| format!("{command}: {shown}")))
    }

    /// The features, as dumpe2fs prints them.
    pub fn features(&self) -> Vec<String> {
        let header = Tool::new("dumpe2fs").arg("-h").arg(&self.path).run().unwrap_or_default();
        let line = header.lines().find_map(|l| l.strip_prefix("Filesystem features:"));
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if !is_block_device(&self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
