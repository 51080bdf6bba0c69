//! The environment of the figures: program, machine, host.
//!
//! Main type: [`Build`], the stamp of the program that links the lab.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::result::Environment;
use crate::target::{Tool, is_block_device};

/// The program, as stamped at build time.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// Version of Extant.
    pub version: &'static str,
    /// [`Environment::commit`].
    pub commit: &'static str,
    /// [`Environment::profile`].
    pub profile: &'static str,
}

/// The environment of this process; the fields of a single trial (image, device, load) are left empty.
pub fn of_this_machine(command: &[String], build: Build) -> Environment {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let line = |text: &str, name: &str| {
        let found = text.lines().find(|l| l.starts_with(name)).and_then(|l| l.split_once(':'));
        found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let cpu = line(&read("/proc/cpuinfo"), "model name");
    let memory = line(&read("/proc/meminfo"), "MemTotal");
    let memory: u64 = memory.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    Environment {
        version: build.version.to_owned(),
        commit: build.commit.to_owned(),
        profile: build.profile.to_owned(),
        tools: tools(),
        sysctls: sysctls(),
        cgroup: cgroup(),
        directory: std::env::current_dir().map(|d| d.to_string_lossy().into_owned()).unwrap_or_default(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpu: if cpu.is_empty() { std::env::consts::ARCH.to_owned() } else { cpu },
        cores: extant_base::task::processors() as u32,
        memory_bytes: memory << 10,
        command: command.to_vec(),
        ..Environment::default()
    }
}

/// The versions that e2fsprogs and fuse2fs print.
fn tools() -> BTreeMap<String, String> {
    let version = |name: &str| {
        let (_, said, _) = Tool::new(name).arg("-V").status().ok()?;
        // fuse2fs prints its own version after that of libfuse.
        let own = said.lines().find(|l| l.starts_with(name)).or(said.lines().next())?;
        Some((name.to_owned(), own.trim().to_owned()))
    };
    ["mke2fs", "fuse2fs"].into_iter().filter_map(version).collect()
}

fn sysctls() -> BTreeMap<String, String> {
    let names = ["dirty_background_bytes", "dirty_background_ratio", "dirty_bytes", "dirty_ratio"];
    let times = ["dirty_expire_centisecs", "dirty_writeback_centisecs"];
    let value = |name| {
        let text = std::fs::read_to_string(format!("/proc/sys/vm/{name}")).ok()?;
        Some((format!("vm.{name}"), text.trim().to_owned()))
    };
    names.into_iter().chain(times).filter_map(value).collect()
}

/// Limits of this process's control group, of version 2 or 1. A missing limit is recorded as such or is absent.
fn cgroup() -> BTreeMap<String, String> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let files = [
        ("", "", "memory.max"),
        ("", "", "cpu.max"),
        ("memory", "memory", "memory.limit_in_bytes"),
        ("cpu", "cpu", "cpu.cfs_quota_us"),
    ];
    let limit = |(controller, mount, file): (&str, &str, &str)| {
        let path = groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|c| c == controller).then_some(path)
        })?;
        let group = Path::new("/sys/fs/cgroup").join(mount).join(path.trim_start_matches('/'));
        Some((file.to_owned(), std::fs::read_to_string(group.join(file)).ok()?.trim().to_owned()))
    };
    files.into_iter().filter_map(limit).collect()
}

/// The number of runnable processes, on average over the last minute.
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

/// Options of the mount on `dir`, as the kernel shows them: first those of the mount, then those of the file system.
pub fn mount_options(dir: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = mounts.lines().rev().find_map(|l| {
        let (left, right) = l.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        (Path::new(left.get(4)?) == dir).then_some(())?;
        Some(format!("{},{}", left.get(5)?, right.split(' ').nth(2)?))
    });
    found.unwrap_or_default()
}

/// File system and device under `path`, as /proc/self/mountinfo names them.
pub fn device_under(path: &Path) -> String {
    if is_block_device(path) {
        return path.canonicalize().unwrap_or_else(|_| path.to_owned()).display().to_string();
    }
    // The image may not exist yet.
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(meta) = path.metadata().or_else(|_| parent.metadata()) else { return String::new() };
    let number = format!("{}:{}", rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts
        .lines()
        .find_map(|l| {
            let (left, right) = l.split_once(" - ")?;
            (left.split(' ').nth(2)? == number).then_some(())?;
            let mut words = right.split(' ');
            Some(format!("{} on {}", words.next()?, words.next()?))
        })
        .unwrap_or(number)
}
