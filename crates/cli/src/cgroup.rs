//! How much memory this process may use, as its control group (version 1 or 2) says.
//!
//! # Locking
//! None.

use std::path::Path;

/// Of what the group may have: the rest is for what the budget does not know of (stacks, replies, the page cache of the
/// image), and for the others in the group.
const SHARE: u64 = 4;
/// What a mount needs.
const LEAST: u64 = 8 << 20;

/// `wanted`, or what the control group leaves room for.
pub fn default_cache(wanted: u64) -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    share(wanted, limit(&groups, Path::new("/sys/fs/cgroup")))
}

fn share(wanted: u64, limit: Option<u64>) -> u64 {
    limit.map_or(wanted, |limit| wanted.min(limit / SHARE).max(LEAST))
}

/// The least limit of the group and those that it is in. `groups`: lines of `/proc/self/cgroup`.
fn limit(groups: &str, top: &Path) -> Option<u64> {
    let of = |line: &str| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let (base, file) = match controllers {
            "" => (top.to_owned(), "memory.max"),
            v1 if v1.split(',').any(|c| c == "memory") => (top.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let dir = base.join(group.trim_start_matches('/'));
        // The names of a container may not be the host's: what is not there says nothing.
        let levels = dir.ancestors().take_while(|d| d.starts_with(&base));
        levels.filter_map(|d| std::fs::read_to_string(d.join(file)).ok()?.trim().parse::<u64>().ok()).min()
    };
    groups.lines().filter_map(of).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        let top = tempfile::tempdir().expect("directory");
        let write = |name: &str, text: &str| {
            let path = top.path().join(name);
            std::fs::create_dir_all(path.parent().expect("has one")).expect("directory");
            std::fs::write(path, text).expect("written");
        };
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
}
