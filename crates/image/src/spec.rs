//! The name of an image and of a part of it.
//!
//! Main types: [`ImageSpec`], [`Part`].
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use extant_base::size;

use crate::open::only_partition;
use crate::shown;

/// Which part of an image holds the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// The whole image, or its only partition with ext2/3/4.
    #[default]
    Any,
    /// The partition of this number.
    Partition(u32),
    /// From this byte on.
    Offset(u64),
}

impl Part {
    /// The part that a partition's number or an offset names; the partition takes precedence.
    pub fn from_options(partition: Option<u32>, offset: Option<u64>) -> Part {
        partition.map(Part::Partition).or(offset.map(Part::Offset)).unwrap_or_default()
    }
}

/// As a mount option.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Any => Ok(()),
            Part::Partition(number) => write!(f, "partition={number}"),
            Part::Offset(offset) => write!(f, "offset={offset}"),
        }
    }
}

/// An image and one part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// The image file or block device.
    pub path: PathBuf,
    /// The part of it.
    pub part: Part,
}

impl ImageSpec {
    /// All of the image at `path`.
    pub fn whole(path: impl Into<PathBuf>) -> ImageSpec {
        ImageSpec { path: path.into(), part: Part::Any }
    }

    /// Parses `IMAGE`, `IMAGE@N` or `IMAGE?offset=N`; if a file of the whole name exists, takes that.
    pub fn parse(arg: &OsStr) -> ImageSpec {
        match split_part(arg) {
            Some((path, part)) if !Path::new(arg).exists() => ImageSpec { path, part },
            _ => ImageSpec::whole(arg),
        }
    }

    /// The image with `part`, unless its name already has a part.
    pub fn or(self, part: Part) -> ImageSpec {
        if self.part == Part::Any { ImageSpec { part, ..self } } else { self }
    }

    /// The number of the partition, if one is named.
    pub fn partition(&self) -> Option<u32> {
        if let Part::Partition(number) = self.part { Some(number) } else { None }
    }

    /// The image's name with its part, in the user's form, safe for a message.
    pub fn shown(&self) -> String {
        let source = shown(self.source().as_os_str().as_encoded_bytes());
        if let Part::Offset(offset) = self.part { format!("{source}?offset={offset}") } else { source }
    }

    /// The source that the kernel shows for its mount, and by which unmount finds it.
    pub fn source(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        if let Some(number) = self.partition() {
            name.push(format!("@{number}"));
        }
        name.into()
    }

    /// If the kernel has a device for this partition of a block device, that device.
    pub fn resolved(self) -> ImageSpec {
        let own = self.partition().filter(|_| self.is_block_device()).and_then(|n| partition_device(&self.path, n));
        own.map_or(self, ImageSpec::whole)
    }

    /// The same form for all ways to write the image's name. If the name can mean only one partition, it gets that
    /// number.
    pub fn canonical(&self) -> ImageSpec {
        let path = self.path.canonicalize().unwrap_or(self.path.clone());
        let only = if self.part == Part::Any { only_partition(self) } else { None };
        ImageSpec { path, part: only.map_or(self.part, Part::Partition) }
    }

    /// Whether it is a block device that the kernel refuses to write; opening it does not show that.
    #[cfg(target_os = "linux")]
    pub fn is_read_only_device(&self) -> bool {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        let Ok(meta) = self.path.metadata() else { return false };
        let number = format!("{}:{}", rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let flag = Path::new("/sys/dev/block").join(number).join("ro");
        meta.file_type().is_block_device() && std::fs::read(flag).is_ok_and(|ro| ro.starts_with(b"1"))
    }

    /// False: on this system, devices are no images.
    #[cfg(not(target_os = "linux"))]
    pub fn is_read_only_device(&self) -> bool {
        false
    }

    /// Whether it is a block device of the host.
    #[cfg(unix)]
    pub fn is_block_device(&self) -> bool {
        use std::os::unix::fs::FileTypeExt;
        self.path.metadata().is_ok_and(|m| m.file_type().is_block_device())
    }

    /// False: on this system, devices are no images.
    #[cfg(not(unix))]
    pub fn is_block_device(&self) -> bool {
        false
    }
}

fn split_part(arg: &OsStr) -> Option<(PathBuf, Part)> {
    let bytes = arg.as_encoded_bytes();
    let at = bytes.iter().rposition(|b| matches!(b, b'@' | b'?')).filter(|at| *at > 0)?;
    let end = std::str::from_utf8(&bytes[at..]).ok()?;
    let part = match end.strip_prefix("?offset=") {
        Some(offset) => Part::Offset(size::parse(offset).ok()?),
        None => Part::Partition(end.strip_prefix('@')?.parse().ok()?),
    };
    Some((name(&bytes[..at])?, part))
}

#[cfg(unix)]
fn name(bytes: &[u8]) -> Option<PathBuf> {
    Some(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes).into())
}

#[cfg(not(unix))]
fn name(bytes: &[u8]) -> Option<PathBuf> {
    std::str::from_utf8(bytes).ok().map(PathBuf::from)
}

/// The kernel's device for partition `number` of the block device at `disk`.
fn partition_device(disk: &Path, number: u32) -> Option<PathBuf> {
    let disk = disk.canonicalize().ok()?;
    let entries = std::fs::read_dir(Path::new("/sys/class/block").join(disk.file_name()?)).ok()?;
    entries.flatten().find_map(|entry| {
        let of = std::fs::read_to_string(entry.path().join("partition")).ok()?;
        let device = Path::new("/dev").join(entry.file_name());
        (of.trim().parse() == Ok(number) && device.exists()).then_some(device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_the_part_of_an_image() {
        let spec = |s: &str| ImageSpec::parse(OsStr::new(s));
        for whole in ["no/such.img", "a@b", "@2", "?offset=512", "a?offset=x", "a?offset=512@", "a?b@x"] {
            assert_eq!(spec(whole), ImageSpec::whole(whole));
        }
        let (path, part) = ("no/such.img".into(), Part::Partition(2));
        assert_eq!(spec("no/such.img@2"), ImageSpec { path, part });
        let (path, part) = ("a@2".into(), Part::Offset(1 << 20));
        assert_eq!(spec("a@2?offset=1M"), ImageSpec { path, part });
        assert_eq!(spec("x@2").or(Part::Offset(512)).part, Part::Partition(2));
        assert_eq!(spec("x").or(Part::Offset(512)).shown(), "x?offset=512");
        let dir = tempfile::tempdir().expect("directory");
        for name in ["x@2", "x?offset=512"] {
            let named = dir.path().join(name);
            std::fs::write(&named, b"").expect("file");
            assert_eq!(ImageSpec::parse(named.as_os_str()), ImageSpec::whole(named));
        }
    }
}
