//! The memory limit of this process and the free memory below it, according to its control group (version 1 or 2).
//!
//! Main types: [`Group`] (the open files of the group and of its ancestors), [`Room`] (the free memory).
//!
//! # Locking
//! None.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The cache's share of the group's limit is one part in this many. The rest is for memory outside the budget (stacks,
/// replies, the page cache of the image), and for the other processes in the group.
const SHARE: u64 = 4;
/// The minimum cache of a mount.
pub const LEAST: u64 = 8 << 20;

const GROUPS: &str = "/proc/self/cgroup";
const TOP: &str = "/sys/fs/cgroup";

/// The file names and keys of one version of the memory controller.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Keys of `memory.stat`. Before it kills a process, the kernel reclaims clean file pages and such slabs.
    files: [&'static str; 2],
    slabs: Option<&'static str>,
    unclean: [&'static str; 2],
}

const V2: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    files: ["inactive_file", "active_file"],
    slabs: Some("slab_reclaimable"),
    unclean: ["file_dirty", "file_writeback"],
};

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
    slabs: None,
    unclean: ["total_dirty", "total_writeback"],
};

/// A group of version 1 without a limit reports a higher value.
const LIMIT_MAX: u64 = 1 << 60;

/// Returns `wanted`, or less if the control group has less memory.
pub fn default_cache(wanted: u64) -> u64 {
    let groups = std::fs::read_to_string(GROUPS).unwrap_or_default();
    share(wanted, limit(&groups, Path::new(TOP)))
}

fn share(wanted: u64, limit: Option<u64>) -> u64 {
    limit.map_or(wanted, |limit| wanted.min(limit / SHARE).max(LEAST))
}

/// The directories of the group and its ancestors. `groups`: lines of `/proc/self/cgroup`.
fn levels(groups: &str, top: &Path) -> Vec<(PathBuf, &'static Names)> {
    let of = |line: &str| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let (base, names) = match controllers {
            "" => (top.to_owned(), &V2),
            v1 if v1.split(',').any(|c| c == "memory") => (top.join("memory"), &V1),
            _ => return None,
        };
        let dir = base.join(group.trim_start_matches('/'));
        let levels = dir.ancestors().take_while(|d| d.starts_with(&base));
        Some(levels.map(|dir| (dir.to_owned(), names)).collect::<Vec<_>>())
    };
    groups.lines().filter_map(of).flatten().collect()
}

/// The lowest limit of the group and its ancestors.
fn limit(groups: &str, top: &Path) -> Option<u64> {
    // In a container the names may differ from those of the host: a missing directory sets no limit.
    let of = |(dir, names): (PathBuf, &Names)| number(&std::fs::read_to_string(dir.join(names.limit)).ok()?);
    levels(groups, top).into_iter().filter_map(of).min()
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The free memory of a control group, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub left: u64,
    pub limit: u64,
}

struct Level {
    limit: File,
    usage: File,
    stat: Option<File>,
    names: &'static Names,
}

impl Level {
    fn open(dir: &Path, names: &'static Names) -> Option<Level> {
        let open = |name| File::open(dir.join(name)).ok();
        Some(Level { limit: open(names.limit)?, usage: open(names.usage)?, stat: open("memory.stat"), names })
    }

    /// The free memory of the group; None without a limit.
    fn room(&self) -> Option<Room> {
        let limit = number(&read(&self.limit)?).filter(|limit| *limit < LIMIT_MAX)?;
        let used = number(&read(&self.usage)?)?;
        let left = limit.saturating_sub(used.saturating_sub(self.reclaimable()));
        Some(Room { left, limit })
    }

    /// The memory that the kernel would reclaim.
    fn reclaimable(&self) -> u64 {
        let text = self.stat.as_ref().and_then(read).unwrap_or_default();
        let of = |key: &str| {
            text.lines().find_map(|line| number(line.strip_prefix(key)?.strip_prefix(' ')?)).unwrap_or_default()
        };
        let sum = |keys: &[&str]| keys.iter().map(|key| of(key)).sum::<u64>();
        sum(&self.names.files).saturating_sub(sum(&self.names.unclean)) + self.names.slabs.map_or(0, of)
    }
}

/// Reads with pread(2) from a file that stays open, because the sandbox cannot open it again.
fn read(file: &File) -> Option<String> {
    let mut text = [0; 8192];
    let n = file.read_at(&mut text, 0).ok()?;
    Some(String::from_utf8_lossy(&text[..n]).into_owned())
}

/// This process's group and its ancestors.
pub struct Group(Vec<Level>);

impl Group {
    /// Opens the files; None if there is no information about memory.
    pub fn open() -> Option<Group> {
        Group::find(&std::fs::read_to_string(GROUPS).unwrap_or_default(), Path::new(TOP))
    }

    pub fn find(groups: &str, top: &Path) -> Option<Group> {
        let levels = levels(groups, top).into_iter();
        let levels: Vec<_> = levels.filter_map(|(dir, names)| Level::open(&dir, names)).collect();
        (!levels.is_empty()).then_some(Group(levels))
    }

    /// The free memory of the group with the lowest free share of its limit; None without any limit.
    pub fn room(&self) -> Option<Room> {
        self.0
            .iter()
            .filter_map(Level::room)
            .min_by_key(|room| (u128::from(room.left) << 32) / u128::from(room.limit.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(top: &Path, name: &str, text: &str) {
        let path = top.join(name);
        std::fs::create_dir_all(path.parent().expect("has one")).expect("directory");
        std::fs::write(path, text).expect("written");
    }

    #[test]
    fn the_lowest_limit_counts() {
        let top = tempfile::tempdir().expect("directory");
        let write = |name: &str, text: &str| write(top.path(), name, text);
        write("a/memory.max", "104857600\n");
        write("a/b/memory.max", "max\n");
        write("memory/c/memory.limit_in_bytes", "41943040\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let of = |groups: &str| limit(groups, top.path());
        assert_eq!(of("0::/a/b\n"), Some(100 << 20));
        assert_eq!(of("0::/elsewhere\n"), None);
        assert_eq!(of("12:cpu,memory:/c\n3:pids:/c\n"), Some(40 << 20));
        assert_eq!(of("12:memory:/\n"), Some(9_223_372_036_854_771_712));
        assert_eq!(of(""), None);
        assert_eq!(share(256 << 20, of("0::/a/b")), 25 << 20);
        assert_eq!(share(256 << 20, of("12:memory:/")), 256 << 20);
        assert_eq!(share(256 << 20, Some(1 << 20)), LEAST);
    }

    #[test]
    fn the_group_with_the_lowest_free_share_counts() {
        let top = tempfile::tempdir().expect("directory");
        let write = |name: &str, text: &str| write(top.path(), name, text);
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "600\n");
        let group = Group::find("0::/a/b\n", top.path()).expect("files");
        assert_eq!(group.room(), Some(Room { left: 300, limit: 1000 }));
        // Limits change while the files are open.
        write("a/b/memory.max", "640\n");
        assert_eq!(group.room(), Some(Room { left: 40, limit: 640 }));
        // Clean file pages do not count as used; dirty ones do.
        write("a/b/memory.stat", "anon 1\ninactive_file 300\nactive_file 200\nfile_dirty 60\nfile_writeback 40\n");
        let group = Group::find("0::/a/b\n", top.path()).expect("files");
        assert_eq!(group.room(), Some(Room { left: 300, limit: 1000 }), "the other group has the lower share");
        write("a/memory.max", "max\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(group.room(), None);
        assert!(Group::find("0::/elsewhere\n", top.path()).is_none());
    }

    #[test]
    fn a_group_of_version_1_has_its_room_computed() {
        let top = tempfile::tempdir().expect("directory");
        let write = |name: &str, text: &str| write(top.path(), name, text);
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/memory.usage_in_bytes", "5000\n");
        write("memory/c/memory.limit_in_bytes", "1000\n");
        write("memory/c/memory.usage_in_bytes", "900\n");
        write(
            "memory/c/memory.stat",
            "inactive_file 7\ntotal_inactive_file 100\ntotal_active_file 50\ntotal_dirty 30\n",
        );
        let group = Group::find("4:memory:/c\n0::/\n", top.path()).expect("files");
        assert_eq!(group.room(), Some(Room { left: 220, limit: 1000 }));
    }
}
