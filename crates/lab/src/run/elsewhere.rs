//! Trials in another process: of another build of `extant`, in a control group of limited memory.
//!
//! Main types: [`Elsewhere`] (the program and its group), [`MemoryGroup`]. The other process is `extant lab run` itself
//! with one round of one contestant. So it needs to know nothing about this process: the record that it writes is the
//! trial.
//!
//! It does not measure anything.
//!
//! # Locking
//! None.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU32, Ordering};
use rustix::process::{Pid, Signal, kill_process};

use super::Config;
use super::trial::Halt;
use crate::error::{Error, Result};
use crate::result::Trial;
use crate::target::{ImagePlan, Kind, Rig, Tool, is_block_device, one_line};

/// How long a process may take to clean up after it has been asked to end.
const GRACE_NS: u64 = 20_000_000_000;

/// Where trials run that do not run in this process.
pub struct Elsewhere {
    program: PathBuf,
    /// The options of `lab run` that the program knows.
    help: String,
    memory: Option<u64>,
}

impl Elsewhere {
    /// `None`: the trials of this contestant run in this process.
    pub fn of(rig: &Rig, rigs: &[Rig], config: &Config) -> Result<Option<Elsewhere>> {
        // The server of a mount is a separate process anyway, which this one measures. If one engine target needs a
        // separate process for each trial, all engine targets get one: otherwise the one in this process would have
        // warm memory.
        let engine = |rig: &Rig| rig.target.kind == Kind::Engine;
        let others = engine(rig) && rigs.iter().any(|r| engine(r) && r.target.program.is_some());
        let memory = rig.target.memory.or(config.memory);
        if !others && memory.is_none() {
            return Ok(None);
        }
        let other = rig.target.program.as_ref().filter(|_| engine(rig));
        let program = other.unwrap_or(&config.program).clone();
        let help = Tool::new(&program.to_string_lossy()).args(["lab", "run", "--help"]).run()?;
        Ok(Some(Elsewhere { program, help, memory }))
    }

    fn knows(&self, option: &str) -> bool {
        self.help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|word| word == option)
    }

    /// Runs the one trial; returns its record or an error.
    pub fn trial(&self, rig: &Rig, config: &Config, images: &ImagePlan, halt: &Halt) -> Result<Trial> {
        // Without any of these options, it would measure something else.
        let mut decides = vec![("--seed", config.seed.to_string()), ("--scale", config.scale.to_string())];
        decides.extend(config.settings.iter().map(|s| ("--set", s.clone())));
        decides.extend(config.operations.iter().map(|o| ("--operations", o.display().to_string())));
        decides.extend(images.options());
        if let Some((option, _)) = decides.iter().find(|(option, _)| !self.knows(option)) {
            let program = self.program.display();
            return Err(Error::Failed(format!(
                "{program} does not know {option}, with which it runs: name a newer build"
            )));
        }
        let temporary = std::env::temp_dir();
        let dir = tempfile::Builder::new().prefix("extant-lab-").tempdir_in(&temporary);
        let dir = dir.map_err(Error::file(&temporary))?;
        let (out, log) = (dir.path().join("result"), dir.path().join("log"));
        let group = self.memory.map(MemoryGroup::new).transpose()?;
        let mut command = match &group {
            Some(group) => group.command(&self.program),
            None => Command::new(&self.program),
        };
        command.args(["lab", "run", &config.workload]);
        let mut put = |name: &str, value: String| {
            if self.knows(name) {
                command.arg(format!("{name}={value}"));
            }
        };
        put("--target", self.target(rig));
        put("--rounds", "1".into());
        put("--warmup", "0".into());
        decides.into_iter().for_each(|(name, value)| put(name, value));
        put("--record", config.recorded.to_string());
        put("--output", out.display().to_string());
        command.args(["--quiet", "--overwrite"]);
        if is_block_device(&rig.target.path) {
            command.arg("--yes");
        }
        let said = std::fs::File::create(&log).map_err(Error::file(&log))?;
        let also = said.try_clone().map_err(Error::file(&log))?;
        // If it is killed, its leftovers are in a known place.
        let inside = dir.path().join("tmp");
        std::fs::create_dir(&inside).map_err(Error::file(&inside))?;
        command.env("TMPDIR", &inside);
        // Only this process gets Ctrl-C, and it passes the signal on.
        command.stdin(Stdio::null()).stdout(said).stderr(also).process_group(0);
        let mut child = command.spawn().map_err(Error::file(&self.program))?;
        let status = wait(&mut child, halt);
        let killed = group.as_ref().is_some_and(MemoryGroup::has_killed);
        // First ends all running processes: a server that is about to mount would otherwise do so after the clean-up.
        drop(group);
        clean_up(&inside, &rig.target.path, rig.target.kind);
        let mut trials = super::store::load(&out).unwrap_or_default();
        let trial = trials.pop();
        let failed = trial.as_ref().is_none_or(|t| !t.usable());
        if let (true, true, Some(bytes)) = (failed, killed, self.memory) {
            return Err(Error::Failed(format!(
                "out of memory: {} KiB (--memory, memory=) are too little for it",
                bytes >> 10
            )));
        }
        trial.ok_or_else(|| {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            Error::Failed(format!("{} ended with {status}: {}", self.program.display(), one_line(&said)))
        })
    }

    /// The target, as the other process's argument.
    fn target(&self, rig: &Rig) -> String {
        let mut target = format!("{}:{}", rig.target.kind.name(), rig.target.path.display());
        let options = rig.all_options();
        if !options.is_empty() {
            target += &format!(",{options}");
        }
        if let Some(program) = rig.target.program.as_ref().filter(|_| rig.target.kind == Kind::Mount) {
            target += &format!(",program={}", program.display());
        }
        target
    }
}

/// Waits for the end, and requests it once the trial must stop.
fn wait(child: &mut Child, halt: &Halt) -> String {
    let clock = Clock::real();
    let mut asked = None;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.to_string(),
            Ok(None) => {}
            Err(e) => return e.to_string(),
        }
        match asked {
            None if halt.is_set() => {
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
                asked = Some(clock.now_ns());
            }
            Some(when) if clock.now_ns() - when > GRACE_NS => {
                let _ = child.kill();
            }
            _ => {}
        }
        clock.sleep(Duration::from_millis(20));
    }
}

/// Removes the leftovers of a killed process: mounts below `inside`, the image, and loop devices on it. The directory's
/// owner removes the directory.
fn clean_up(inside: &Path, image: &Path, kind: Kind) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for point in mounts.lines().filter_map(|l| l.split(' ').nth(4)).filter(|p| Path::new(p).starts_with(inside)) {
        let _ = Tool::new("umount").arg("-l").arg(point).run();
    }
    if kind == Kind::Dir || is_block_device(image) {
        return;
    }
    let loops = Tool::new("losetup").args(["-n", "-O", "NAME", "-j"]).arg(image).run().unwrap_or_default();
    for device in loops.split_whitespace() {
        let _ = Tool::new("losetup").arg("-d").arg(device).run();
    }
    let _ = std::fs::remove_file(image);
}

/// A control group with a memory limit, version 1 or 2. Dropping it kills its processes and removes it.
pub struct MemoryGroup {
    path: PathBuf,
}

impl MemoryGroup {
    /// Creates a group. Needs root.
    pub fn new(bytes: u64) -> Result<MemoryGroup> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        // One group for each trial, so that the kernel's counts of the group belong to that trial.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("extant-lab-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (path, limit) = if v1.is_dir() {
            let own = groups.lines().find_map(|l| l.split_once(":memory:")).map_or("", |(_, path)| path);
            // In another namespace, the path may not exist.
            let inside = v1.join(own.trim_start_matches('/'));
            (if inside.is_dir() { inside } else { v1.to_owned() }.join(name), "memory.limit_in_bytes")
        } else {
            // A group with processes cannot have a child group with a limit; the root is the exception.
            (Path::new("/sys/fs/cgroup").join(name), "memory.max")
        };
        let failed = |e: std::io::Error| {
            Error::Usage(format!(
                "no control group for memory (--memory, memory=) at {}: {e} (it needs root)",
                path.display()
            ))
        };
        std::fs::create_dir(&path).map_err(failed)?;
        let group = MemoryGroup { path: path.clone() };
        std::fs::write(path.join(limit), bytes.to_string()).map_err(failed)?;
        Ok(group)
    }

    /// Whether the kernel killed a process of the group because of the memory limit.
    fn has_killed(&self) -> bool {
        let read = |file| std::fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let told = read("memory.events") + &read("memory.oom_control");
        told.lines().filter_map(|l| l.strip_prefix("oom_kill ")).any(|n| n.trim() != "0")
    }

    /// A command that runs in the group from its first instruction on.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$1\" && shift && exec \"$@\"", "sh"]);
        command.arg(self.path.join("cgroup.procs")).arg(program);
        command
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that has just ended is still counted for a moment, and a server may outlive the process that
        // started it.
        let clock = Clock::real();
        for _ in 0..250 {
            let processes = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
            for pid in processes.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
                let _ = kill_process(pid, Signal::KILL);
            }
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            clock.sleep(Duration::from_millis(20));
        }
    }
}
