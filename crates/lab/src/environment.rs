//! What made the figures: program, machine, host.
//!
//! # Locking
//! None.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::result::Environment;
use crate::target::Tool;

/// The environment of this process; what belongs to a trial (image, device) is left empty.
pub fn of_this_machine(command: &[String]) -> Environment {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let line = |text: &str, name: &str| {
        let found = text.lines().find(|l| l.starts_with(name)).and_then(|l| l.split_once(':'));
        found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let cpu = line(&read("/proc/cpuinfo"), "model name");
    let memory = line(&read("/proc/meminfo"), "MemTotal");
    let memory: u64 = memory.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    Environment {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpu: if cpu.is_empty() { std::env::consts::ARCH.to_owned() } else { cpu },
        cores: extant_base::task::processors() as u32,
        memory_bytes: memory << 10,
        command: command.to_vec(),
        ..Environment::default()
    }
}

/// The commit of the checkout that the program lies in.
fn commit() -> String {
    let unknown = || "unknown".to_owned();
    let Ok(program) = std::env::current_exe() else { return unknown() };
    let Some(dir) = program.parent() else { return unknown() };
    let git = || Tool::new("git").arg("-C").arg(dir);
    let Ok(head) = git().args(["rev-parse", "HEAD"]).run() else { return unknown() };
    let changes = git().args(["status", "--porcelain", "--untracked-files=no"]).run().unwrap_or_default();
    // Paths in the answer are counted from the root of the checkout; an unchanged one says nothing.
    format!("{}{}", head.trim(), if changes.trim().is_empty() { "" } else { "-dirty" })
}

/// File system and device under `path`, as /proc/self/mountinfo names them.
pub fn device_under(path: &Path) -> String {
    let Ok(meta) = path.metadata() else { return String::new() };
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
