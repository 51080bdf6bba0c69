//! A target that is mounted, with its measures.
//!
//! Main types: [`Site`], [`Evidence`] (the results of its measures). A site is mounted and unmounted several times in a
//! trial if a workload needs cold caches. Figures add up from the first mount to the last unmount. Dropping a site
//! removes everything that it created: mounts, servers, loop devices, directories. The image does not belong to the
//! site.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU32, Ordering};
use extant_block::BlockDevice;
use extant_block::device::{FileDevice, LoopDevice, MemDevice, MetaOnlyDevice, OpenOptions, TimedDevice};
use extant_fs::{Filesystem, Mounted};
use tempfile::TempDir;

use super::tools::{find, is_mount_point, one_line};
use super::{EngineOptions, Kind, Rig, Server, Tool, is_block_device};
use crate::environment::mount_options;
use crate::error::{Error, Result};
use crate::measure::process::{Cpu, Memory, Switches, Threads};
use crate::measure::{Figures, Recorded, engine, extents, kernel};
use crate::result::LockRow;
use crate::timing;
use crate::vfs::{EngineVfs, PosixVfs, Vfs};
use crate::workload::{Place, Settled, Space, since};

/// How long a mount may take to appear, and a server to end.
const PATIENCE_NS: u64 = 120_000_000_000;

/// The results of a site's own measures.
#[derive(Debug, Default)]
pub struct Evidence {
    /// The figures, by name.
    pub figures: Figures,
    /// The lock table.
    pub locks: Vec<LockRow>,
    /// Blocks allocated by group.
    pub groups: BTreeMap<u32, u64>,
    /// Groups of the first preallocations for small files.
    pub chunks: Vec<u32>,
    /// Context switches of servers.
    pub server_switches: Option<Switches>,
    /// Processor time of servers.
    pub server_cpu: Cpu,
    /// Options of the mount, as the kernel shows them.
    pub mount_options: String,
    /// Requested figures that could not be recorded, with the reason.
    pub flaws: Vec<String>,
}

/// A target that is or was mounted.
pub struct Site {
    kind: Kind,
    label: String,
    image: PathBuf,
    options: String,
    /// Seed of the engine's random choices.
    seed: u64,
    /// The binary whose `mount` serves, and the options that it supports.
    program: PathBuf,
    can: Server,
    recorded: Recorded,
    work: TempDir,
    /// For `dir`: the directory that was created in the user's directory.
    inside: Option<TempDir>,
    mounted: bool,
    vfs: Option<Box<dyn Vfs>>,
    fs: Option<Mounted>,
    device: Option<Arc<dyn BlockDevice>>,
    memory: Option<Arc<MemDevice>>,
    timed: Option<Arc<TimedDevice>>,
    kept: Option<Arc<MetaOnlyDevice>>,
    probe: Option<engine::Probe>,
    report: Option<engine::Report>,
    /// The block device that the kernel mounts.
    kernel_device: Option<String>,
    /// The loop device, if this site created it.
    loop_device: Option<String>,
    kernel_probe: Option<kernel::Probe>,
    server: Option<Child>,
    serving: Arc<AtomicU32>,
    evidence: Evidence,
}

impl Site {
    /// A site that is not mounted yet. `image`: the new image, or the user's directory. `program`: the `extant` binary
    /// that serves unless the target names another. `serving`: receives the process ID of the mount's server, or 0.
    pub fn new(
        rig: &Rig,
        image: &Path,
        program: &Path,
        seed: u64,
        recorded: Recorded,
        serving: Arc<AtomicU32>,
    ) -> Result<Site> {
        let temporary = std::env::temp_dir();
        Ok(Site {
            kind: rig.target.kind,
            label: rig.contestant.label.clone(),
            image: std::path::absolute(image).map_err(Error::file(image))?,
            options: rig.all_options(),
            seed,
            program: rig.target.program.as_deref().unwrap_or(program).to_owned(),
            can: rig.server,
            recorded,
            work: tempfile::Builder::new()
                .prefix("extant-lab-")
                .tempdir_in(&temporary)
                .map_err(Error::file(&temporary))?,
            inside: None,
            mounted: false,
            vfs: None,
            fs: None,
            device: None,
            memory: None,
            timed: None,
            kept: None,
            probe: None,
            report: None,
            kernel_device: None,
            loop_device: None,
            kernel_probe: None,
            server: None,
            serving,
            evidence: Evidence::default(),
        })
    }

    fn failed(&self, why: impl std::fmt::Display) -> Error {
        Error::Failed(format!("{}: {why}", self.label))
    }

    fn dir(&self) -> PathBuf {
        self.work.path().join("mnt")
    }

    /// The engine's device, mounted or not; `None` before the first mount, and for other targets.
    pub fn device(&self) -> Option<&dyn BlockDevice> {
        self.device.as_deref()
    }

    /// Mounts the target, so that it is ready for work.
    pub fn up(&mut self) -> Result<()> {
        match self.kind {
            Kind::Engine => self.engine_up(),
            Kind::Dir => self.dir_up(),
            Kind::Kernel => self.kernel_up(),
            Kind::Mount | Kind::Fuse2fs => self.server_up(),
        }
    }

    fn engine_up(&mut self) -> Result<()> {
        let mut options = EngineOptions::parse(&self.options).map_err(|e| self.failed(e))?;
        options.fs.seed = Some(self.seed);
        let device = match &self.device {
            Some(device) => device.clone(),
            None => self.open_device(&options)?,
        };
        self.device = Some(device.clone());
        if options.exact {
            let superblock = extant_recovery::read::find_super(&*device, None, false).map_err(|e| self.failed(e))?.sb;
            options.fs.clock = Clock::virtual_at(superblock.write_time());
        }
        let fs = Filesystem::mount(device, options.fs).map_err(|e| self.failed(e))?;
        self.probe = Some(engine::Probe::start(&fs, self.recorded));
        self.vfs = Some(Box::new(EngineVfs::new(fs.clone(), options.slow).map_err(|e| self.failed(e))?));
        self.fs = Some(fs);
        Ok(())
    }

    /// The image, or its copy in memory, with the layers that the options request.
    fn open_device(&mut self, options: &EngineOptions) -> Result<Arc<dyn BlockDevice>> {
        let mut device: Arc<dyn BlockDevice> = if options.memory {
            let memory = Arc::new(MemDevice::load(&self.image).map_err(|e| self.failed(e))?);
            self.memory = Some(memory.clone());
            memory
        } else {
            let open = OpenOptions { io: options.io, engine: options.engine, ..OpenOptions::default() };
            Arc::new(FileDevice::open(&self.image, open).map_err(|e| self.failed(e))?)
        };
        if options.metadata_only {
            let kept = Arc::new(MetaOnlyDevice::new(device));
            (self.kept, device) = (Some(kept.clone()), kept);
        }
        if let Some(model) = &options.device {
            let timed = Arc::new(TimedDevice::new(device, model.clone()));
            (self.timed, device) = (Some(timed.clone()), timed);
        }
        Ok(device)
    }

    fn dir_up(&mut self) -> Result<()> {
        if self.inside.is_none() {
            let made = tempfile::Builder::new().prefix("extant-lab-").tempdir_in(&self.image);
            self.inside = Some(made.map_err(Error::file(&self.image))?);
        }
        let path = self.inside.as_ref().map(|d| d.path().to_owned()).unwrap_or_default();
        self.open_vfs(&path)
    }

    fn open_vfs(&mut self, path: &Path) -> Result<()> {
        self.vfs = Some(Box::new(PosixVfs::open(path).map_err(|e| self.failed(e))?));
        Ok(())
    }

    fn kernel_up(&mut self) -> Result<()> {
        let dir = self.dir();
        std::fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        let device = match &self.kernel_device {
            Some(device) => device.clone(),
            None => {
                let device = match is_block_device(&self.image) {
                    // The canonical name, which /proc and tracefs use.
                    true => self.image.canonicalize().map_err(Error::file(&self.image))?.display().to_string(),
                    false => {
                        let attach = Tool::new("losetup").args(["--find", "--show", "--direct-io=off"]);
                        let device = attach.arg(&self.image).run()?.trim().to_owned();
                        self.loop_device = Some(device.clone());
                        device
                    }
                };
                self.kernel_device = Some(device.clone());
                let name = device.trim_start_matches("/dev/").to_owned();
                let rdev = std::fs::metadata(&device).map_err(Error::file(Path::new(&device)))?.rdev();
                let number = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
                let events = match self.recorded.events {
                    true => Some(extents::layout(&self.image).ok_or_else(|| self.failed("its groups cannot be read"))?),
                    false => None,
                };
                // Requests are always counted, because that costs nothing.
                self.kernel_probe = Some(kernel::Probe::start(&name, number, events)?);
                device
            }
        };
        let options = if self.options.is_empty() { "rw" } else { &self.options };
        Tool::new("mount").args(["-t", "ext4", "-o", options]).arg(&device).arg(&dir).run()?;
        self.mounted = true;
        if let Some(probe) = self.kernel_probe.as_ref().filter(|_| self.recorded.events) {
            probe.mounted();
        }
        self.open_vfs(&dir)
    }

    fn server_up(&mut self) -> Result<()> {
        let dir = self.dir();
        std::fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        let log = self.work.path().join("server.log");
        let out = std::fs::File::options().create(true).append(true).open(&log).map_err(Error::file(&log))?;
        let err = out.try_clone().map_err(Error::file(&log))?;
        let mut options = self.options.clone();
        let mut command = if self.kind == Kind::Mount {
            let mut command = Command::new(&self.program);
            command.args(["mount", "--foreground"]);
            if self.can.stats {
                command.arg("--stats").arg(self.stats_file()).arg("--stats-of").arg(self.recorded.to_string());
            }
            if self.can.seed {
                options += &format!("{}seed={}", if options.is_empty() { "" } else { "," }, self.seed);
            }
            command
        } else {
            let mut command = Command::new(find("fuse2fs").unwrap_or_else(|| "fuse2fs".into()));
            command.arg("-f");
            command
        };
        if !options.is_empty() {
            command.arg("-o").arg(&options);
        }
        // In a separate process group, because Ctrl-C is meant for the lab, which unmounts.
        command.arg(&self.image).arg(&dir).stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let server = command.spawn().map_err(|e| self.failed(e))?;
        self.serving.store(server.id(), Ordering::Relaxed);
        self.server = Some(server);
        let clock = Clock::real();
        let end = clock.now_ns() + PATIENCE_NS;
        while !is_mount_point(&dir) {
            let ended = self.server.as_mut().and_then(|s| s.try_wait().ok().flatten());
            if ended.is_some() || clock.now_ns() > end {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(self.failed(format!("it did not mount: {}", one_line(&said))));
            }
            clock.sleep(Duration::from_millis(1));
        }
        self.mounted = true;
        self.open_vfs(&dir)
    }

    fn stats_file(&self) -> PathBuf {
        self.work.path().join("stats.json")
    }

    /// Reads the figures that only a mounted target has, after the work has ended.
    pub fn observe(&mut self) {
        if let Some(server) = &self.server {
            let memory = Memory::of(Some(server.id()));
            let mut put = |name: &str, value: Option<u64>| {
                if let Some(value) = value {
                    self.evidence.figures.insert(name.to_owned(), value as f64);
                }
            };
            put("memory_server_rss_bytes", memory.rss);
            put("memory_server_peak_bytes", memory.peak);
            put("memory_server_pss_anon_bytes", memory.pss_anon);
            put("memory_server_pss_file_bytes", memory.pss_file);
        }
        if self.mounted {
            self.evidence.mount_options = mount_options(&self.dir());
        }
        if let Some(fs) = &self.fs {
            self.evidence.figures.insert("memory_budget_bytes".into(), fs.budget().used() as f64);
        }
    }

    /// Unmounts; when this returns, everything has been written to the image.
    pub fn down(&mut self) -> Result<()> {
        match self.kind {
            Kind::Engine => self.engine_down(),
            Kind::Dir => {
                let synced = self.vfs.take().map_or(Ok(()), |vfs| vfs.sync_all());
                synced.map_err(|e| self.failed(e))
            }
            Kind::Kernel => {
                self.vfs = None;
                let dir = self.dir();
                if let Some(probe) = self.kernel_probe.as_mut().filter(|_| self.recorded.events) {
                    probe.unmounting(&dir);
                }
                self.unmount()
            }
            Kind::Mount | Kind::Fuse2fs => self.server_down(),
        }
    }

    /// Calls [`Site::down`] and makes the image durable on its disk; returns the time for that.
    pub fn settle(&mut self) -> Result<Settled> {
        let before = self.modelled();
        let clock = Clock::real();
        let start = clock.now_ns();
        self.down()?;
        if self.kind != Kind::Dir {
            let file = std::fs::File::open(&self.image).map_err(Error::file(&self.image))?;
            file.sync_all().map_err(Error::file(&self.image))?;
        }
        let seconds = (clock.now_ns() - start) as f64 / 1e9;
        Ok(Settled { seconds, measures: since(self.modelled(), &before) })
    }

    fn engine_down(&mut self) -> Result<()> {
        self.vfs = None;
        let Some(fs) = self.fs.take() else { return Ok(()) };
        let unmounted = fs.unmount();
        if let Some(probe) = self.probe.take() {
            self.heard(probe.finish(&fs));
        }
        unmounted.map_err(|e| self.failed(e))
    }

    fn heard(&mut self, report: engine::Report) {
        match &mut self.report {
            Some(before) => before.add(report),
            None => self.report = Some(report),
        }
    }

    fn unmount(&mut self) -> Result<()> {
        let clock = Clock::real();
        let end = clock.now_ns() + 10_000_000_000;
        let device = LoopDevice::of_mount(&self.dir());
        loop {
            let root = rustix::process::geteuid().is_root();
            let tool = if root { Tool::new("umount") } else { Tool::new("fusermount3").arg("-u") };
            match tool.arg(self.dir()).run() {
                Ok(_) => {
                    self.mounted = false;
                    if !device.wait() {
                        let why = "unmounted, but still mounted in another mount namespace";
                        return Err(self.failed(std::io::Error::other(why)));
                    }
                    return Ok(());
                }
                Err(e) if clock.now_ns() > end => return Err(e),
                Err(_) => clock.sleep(Duration::from_millis(20)),
            }
        }
    }

    fn server_down(&mut self) -> Result<()> {
        self.vfs = None;
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let switches = Threads::of(Some(server.id())).since(&Threads::default());
        *self.evidence.server_switches.get_or_insert_default() += switches;
        let unmounted = self.unmount();
        if unmounted.is_err() {
            self.server = Some(server);
            return unmounted;
        }
        // A child's time counts once its parent has waited for it. That of umount(8) already counts; the server's does
        // not.
        let cpu_before = Cpu::of_ended_children();
        // Unmounting does not wait for the server.
        let clock = Clock::real();
        let end = clock.now_ns() + PATIENCE_NS;
        let status = loop {
            match server.try_wait() {
                Ok(Some(status)) => {
                    self.serving.store(0, Ordering::Relaxed);
                    break status;
                }
                Ok(None) if clock.now_ns() < end => clock.sleep(Duration::from_millis(2)),
                _ => {
                    self.server = Some(server);
                    return Err(self.failed("its server does not end"));
                }
            }
        };
        if let (Some(before), Some(after)) = (cpu_before, Cpu::of_ended_children()) {
            self.evidence.server_cpu += after - before;
        }
        if !status.success() {
            let said = std::fs::read_to_string(self.work.path().join("server.log")).unwrap_or_default();
            return Err(self.failed(format!("its server ended with {status}: {}", one_line(&said))));
        }
        let stats = self.stats_file();
        if self.kind == Kind::Mount && self.can.stats {
            let text = std::fs::read_to_string(&stats).map_err(Error::file(&stats))?;
            let report = serde_json::from_str(&text).map_err(|e| self.failed(format!("its counters: {e}")))?;
            let _ = std::fs::remove_file(&stats);
            self.heard(report);
        }
        Ok(())
    }

    /// The figures of a modelled device so far.
    pub fn modelled(&self) -> Figures {
        let timed = self.timed.as_ref().map(|device| timing::figures(&device.usage())).unwrap_or_default();
        let dropped = self.kept.as_ref().map(|kept| kept.dropped());
        let dropped = dropped
            .into_iter()
            .flat_map(|d| [("device_dropped_requests", d.requests as f64), ("device_dropped_bytes", d.bytes as f64)]);
        timed.into_iter().chain(dropped.map(|(name, n)| (name.to_owned(), n))).collect()
    }

    /// Must be called after the last [`Site::down`]: closes the image and returns the results.
    pub fn finish(mut self) -> Result<Evidence> {
        let modelled = self.modelled();
        self.evidence.figures.extend(modelled);
        if let Some(memory) = self.memory.take() {
            memory.save(&self.image).map_err(|e| self.failed(e))?;
        }
        self.device = None;
        let mut evidence = std::mem::take(&mut self.evidence);
        if let Some(report) = self.report.take() {
            report.figures(&mut evidence.figures);
            if self.recorded.events && report.tally.is_none() {
                evidence.flaws.push("Extant's events: some were lost, so their figures are left out".into());
            }
            let tally = report.tally.unwrap_or_default();
            (evidence.groups, evidence.chunks) = (tally.groups, tally.chunks);
            evidence.locks = report.locks;
        }
        if let Some(mut probe) = self.kernel_probe.take() {
            let heard = probe.finish(&mut evidence.figures);
            (evidence.groups, evidence.chunks) = (heard.groups, heard.chunks);
            evidence.flaws.extend(heard.flaws);
        }
        self.detach()?;
        Ok(evidence)
    }

    fn detach(&mut self) -> Result<()> {
        match self.loop_device.take() {
            Some(device) => Tool::new("losetup").arg("-d").arg(device).run().map(drop),
            None => Ok(()),
        }
    }
}

impl Place for Site {
    fn vfs(&self) -> Result<&dyn Vfs> {
        self.vfs.as_deref().ok_or_else(|| self.failed("not mounted"))
    }

    fn space(&self) -> Result<Space> {
        if let Some(fs) = &self.fs {
            let stat = fs.statfs();
            return Ok(Space {
                block_bytes: stat.block_size.into(),
                blocks: stat.blocks,
                free_blocks: stat.blocks_free,
            });
        }
        if self.kind == Kind::Dir {
            return Err(Error::Usage(format!("{}: a directory has no room of its own", self.label)));
        }
        let stat = rustix::fs::statvfs(self.dir()).map_err(|e| self.failed(e))?;
        Ok(Space { block_bytes: stat.f_frsize, blocks: stat.f_blocks, free_blocks: stat.f_bfree })
    }

    fn cold(&mut self) -> Result<Settled> {
        let settled = self.settle()?;
        // A copy in memory, or a modelled device, does not benefit from the page cache.
        if self.memory.is_none() && self.timed.is_none() {
            drop_caches(&self.image);
        }
        self.up()?;
        Ok(settled)
    }

    fn counters(&self) -> Figures {
        let Some(fs) = &self.fs else {
            return self.kernel_probe.as_ref().map(kernel::Probe::requests).unwrap_or_default();
        };
        let io = fs.device().stats();
        let cpu = Cpu::of_self().map(|cpu| ("cpu_s".to_owned(), cpu.user_s + cpu.system_s));
        let requests = [
            ("device_reads", io.reads),
            ("device_read_bytes", io.read_bytes),
            ("device_writes", io.writes + io.write_zeroes),
            ("device_flushes", io.flushes),
        ];
        let counted = cpu.into_iter().chain(requests.map(|(name, n)| (name.to_owned(), n as f64)));
        counted.chain(self.modelled()).collect()
    }
}

/// Writes everything back and empties the page cache of the machine; without root, only that of the file.
pub fn drop_caches(image: &Path) {
    rustix::fs::sync();
    if std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        return;
    }
    if let Ok(file) = std::fs::File::open(image) {
        let _ = file.sync_all();
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.vfs = None;
        self.probe = None;
        // A site that is still mounted has failed or was interrupted, and its image will be deleted, so nothing needs
        // to be written.
        if let Some(fs) = self.fs.take() {
            fs.abort("the trial was given up");
            let _ = fs.unmount();
        }
        if let (true, Some(server)) = (self.mounted, &mut self.server) {
            let _ = server.kill();
        }
        if self.mounted && self.kind == Kind::Kernel {
            let _ = Tool::new("mount").args(["-o", "remount,abort"]).arg(self.dir()).run();
        }
        if self.mounted && self.unmount().is_err() {
            let _ = Tool::new("umount").arg("-l").arg(self.dir()).run();
        }
        if let Some(mut server) = self.server.take() {
            let clock = Clock::real();
            let end = clock.now_ns() + 10_000_000_000;
            while clock.now_ns() < end && server.try_wait().is_ok_and(|s| s.is_none()) {
                clock.sleep(Duration::from_millis(10));
            }
            let _ = server.kill();
            let _ = server.wait();
        }
        self.kernel_probe = None;
        let _ = self.detach();
    }
}
