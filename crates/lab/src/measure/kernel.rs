//! The figures of the kernel's ext4: trace events, mb_stats, the statistics of its extent-status cache, and those of
//! the loop device below it.
//!
//! Main types: [`Probe`], [`Tracefs`] (where the probe enables events). Events go to three trace instances of their
//! own: those of the file system and those of its requests, filtered by device, and those of page reclaim, filtered by
//! the threads of this process. They are read at the end, so that recording costs the kernel no more than writing them
//! down. If events are lost, their figures are absent, and the trial says so.
//!
//! Reclaim by other threads (kswapd, writeback) is not counted. In a control group with a limit of memory, the threads
//! that need memory reclaim it themselves.
//!
//! It needs root. If no tracefs is mounted, it is mounted while the probe runs.
//!
//! # Locking
//! None.

use std::path::{Path, PathBuf};

use extant_block::device::unmount;
use tempfile::TempDir;

use super::Figures;
use super::requests::Requests;
use super::transactions::{Layout, Tally};
use crate::error::{Error, Result};
use crate::target::Tool;

/// Memory for events, per processor: about 150,000 events.
const BUFFER_KIB: &str = "16384";
const RECLAIM: &str = "vmscan/mm_vmscan_lru_shrink_inactive";
const REQUESTS: [&str; 2] = ["block/block_rq_complete", "block/block_rq_issue"];
const EVENTS: [&str; 6] = [
    "ext4/ext4_allocate_blocks",
    "ext4/ext4_es_shrink",
    "ext4/ext4_free_blocks",
    "ext4/ext4_mb_new_group_pa",
    "jbd2/jbd2_commit_flushing",
    "jbd2/jbd2_run_stats",
];

/// Records the events of one loop device.
#[derive(Debug)]
pub struct Probe {
    /// The device's name, such as `loop3`.
    device: String,
    io_before: Option<[u64; 17]>,
    /// The sums of mb_stats and of the extent-status cache over all unmounts.
    statistics: Figures,
    flaws: Vec<String>,
    listener: Option<Listener>,
}

/// The results of a probe.
#[derive(Debug, Default)]
pub struct Heard {
    /// Blocks allocated in each group.
    pub groups: std::collections::BTreeMap<u32, u64>,
    /// Groups of the first preallocations for small files.
    pub chunks: Vec<u32>,
    /// Requested figures that are absent, with the reason.
    pub flaws: Vec<String>,
}

impl Probe {
    /// Must be called before the mount. `number`: major and minor of the device. `events`: the places of the image's
    /// groups, to record events; an error if that is impossible.
    pub fn start(device: &str, number: (u32, u32), events: Option<Layout>) -> Result<Probe> {
        let listener = events.map(|layout| Listener::start(device, number, layout)).transpose()?;
        Ok(Probe {
            device: device.to_owned(),
            io_before: io(device),
            statistics: Figures::new(),
            flaws: Vec::new(),
            listener,
        })
    }

    /// Must be called after the mount.
    pub fn mounted(&self) {
        let _ = std::fs::write(format!("/sys/fs/ext4/{}/mb_stats", self.device), "1");
    }

    /// Must be called before the unmount, after which these figures are no longer available. Also syncs the mount on
    /// `dir`, so that files without blocks get them now. Otherwise the unmount would allocate them, after the end of
    /// the recording.
    pub fn unmounting(&mut self, dir: &Path) {
        if let Ok(dir) = std::fs::File::open(dir) {
            let _ = rustix::fs::syncfs(dir);
        }
        if let Ok(text) = std::fs::read_to_string(format!("/proc/fs/ext4/{}/es_shrinker_info", self.device)) {
            self.add(es_statistics(&text));
        }
        // Linux 5.13 and later; an older kernel has no such file.
        let path = format!("/proc/fs/ext4/{}/mb_stats", self.device);
        let Ok(text) = std::fs::read_to_string(&path) else { return };
        let figures = mb_stats(&text);
        if figures.is_empty() {
            self.flaws.push(format!("{path}: it has no figures"));
        }
        self.add(figures);
    }

    fn add(&mut self, figures: Figures) {
        for (name, n) in figures {
            *self.statistics.entry(name).or_default() += n;
        }
    }

    /// The requests to the device so far.
    pub fn requests(&self) -> Figures {
        let (Some(before), Some(now)) = (self.io_before, io(&self.device)) else { return Figures::new() };
        // Documentation/block/stat.rst; sectors of 512 bytes.
        let fields = [
            ("device_reads", 0, 1),
            ("device_read_bytes", 2, 512),
            ("device_writes", 4, 1),
            ("device_write_bytes", 6, 512),
            ("device_discards", 11, 1),
            ("device_flushes", 15, 1),
        ];
        let count =
            |(name, field, unit): (&str, usize, u64)| (name.to_owned(), ((now[field] - before[field]) * unit) as f64);
        let mut figures: Figures = fields.into_iter().map(count).collect();
        // Of reads, and of writes.
        let merges = |fields: &[u64; 17]| fields[1] + fields[5];
        figures.insert("device_merges".into(), (merges(&now) - merges(&before)) as f64);
        figures
    }

    /// Must be called after the last unmount, while the device still exists: adds the figures, and returns the other
    /// results.
    pub fn finish(&mut self, figures: &mut Figures) -> Heard {
        figures.append(&mut self.requests());
        figures.append(&mut self.statistics);
        let mut heard = Heard { flaws: std::mem::take(&mut self.flaws), ..Heard::default() };
        let Some(listener) = &self.listener else { return heard };
        match listener.reclaim.events() {
            Ok(trace) => reclaim(&trace).figures(figures),
            Err(why) => heard.flaws.push(format!("the kernel's events of page reclaim: {why}")),
        }
        match listener.requests.events() {
            Ok(trace) => Requests::of(&trace).figures(figures),
            Err(why) => heard.flaws.push(format!("the kernel's events of requests: {why}")),
        }
        let (tally, commits, shrinks) = match listener.file_system.events() {
            Ok(trace) => digest(&trace, listener.layout),
            Err(why) => {
                heard.flaws.push(format!("the kernel's events: {why}"));
                return heard;
            }
        };
        tally.figures(figures);
        shrinks.figures(figures);
        figures.insert("journal_commits".into(), commits.transactions as f64);
        figures.insert("journal_blocks".into(), commits.blocks as f64);
        figures.insert("journal_handles".into(), commits.handles as f64);
        if commits.transactions > 0 {
            figures.insert("journal_blocks_per_commit".into(), commits.blocks as f64 / commits.transactions as f64);
        }
        (heard.groups, heard.chunks) = (tally.groups, tally.chunks);
        heard
    }
}

/// The trace instances of one device.
#[derive(Debug)]
struct Listener {
    file_system: Instance,
    reclaim: Instance,
    requests: Instance,
    layout: Layout,
    /// Dropped after the instances.
    _tracefs: Tracefs,
}

impl Listener {
    fn start(device: &str, (major, minor): (u32, u32), layout: Layout) -> Result<Listener> {
        let tracefs = Tracefs::get()?;
        let name = format!("extant-lab-{}-{device}", std::process::id());
        let file_system = Instance::new(&tracefs, &name)?;
        let of_device = |instance: &Instance, events: &[&str]| -> Result<()> {
            for event in events {
                // As the kernel packs a device number.
                instance.put(&format!("events/{event}/filter"), &format!("dev == {}", major << 20 | minor))?;
                instance.put(&format!("events/{event}/enable"), "1")?;
            }
            Ok(())
        };
        of_device(&file_system, &EVENTS)?;
        let requests = Instance::new(&tracefs, &format!("{name}-requests"))?;
        of_device(&requests, &REQUESTS)?;
        let reclaim = Instance::new(&tracefs, &format!("{name}-reclaim"))?;
        // Threads and processes that these start are followed.
        reclaim.put("options/event-fork", "1")?;
        reclaim.put("set_event_pid", &own_threads()?)?;
        reclaim.put(&format!("events/{RECLAIM}/enable"), "1")?;
        Ok(Listener { file_system, reclaim, requests, layout, _tracefs: tracefs })
    }
}

/// The threads of this process, as `set_event_pid` takes them. Without any, the kernel would record all of the machine.
fn own_threads() -> Result<String> {
    let tasks = Path::new("/proc/self/task");
    let threads = std::fs::read_dir(tasks).and_then(|dir| {
        dir.map(|task| Ok(task?.file_name().to_string_lossy().into_owned())).collect::<std::io::Result<Vec<String>>>()
    });
    threads.map(|threads| threads.join(" ")).map_err(Error::file(tasks))
}

/// A trace instance; removed when it is dropped.
#[derive(Debug)]
struct Instance {
    path: PathBuf,
}

impl Instance {
    fn new(tracefs: &Tracefs, name: &str) -> Result<Instance> {
        let path = tracefs.path().join("instances").join(name);
        std::fs::create_dir(&path).map_err(Error::file(&path))?;
        let instance = Instance { path };
        instance.put("buffer_size_kb", BUFFER_KIB)?;
        Ok(instance)
    }

    fn put(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        std::fs::write(&path, value).map_err(Error::file(&path))
    }

    /// Ends the recording; returns the trace. An error: some events were lost.
    fn events(&self) -> std::result::Result<String, String> {
        self.put("tracing_on", "0").map_err(|e| e.to_string())?;
        let read = |path: &Path| std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
        let per_cpu = self.path.join("per_cpu");
        let mut lost = 0;
        for cpu in std::fs::read_dir(&per_cpu).map_err(|e| format!("{}: {e}", per_cpu.display()))?.flatten() {
            lost += lost_events(&read(&cpu.path().join("stats"))?);
        }
        if lost > 0 {
            return Err(format!("{lost} were lost, so their figures are left out"));
        }
        read(&self.path.join("trace"))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path.join("events/enable"), "0");
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Events of one processor that the reader will not see: overwritten, or dropped during writing.
fn lost_events(stats: &str) -> u64 {
    let count = |line: &str| match line.split_once(": ") {
        Some(("overrun" | "dropped events", n)) => n.trim().parse::<u64>().ok(),
        _ => None,
    };
    stats.lines().filter_map(count).sum::<u64>()
}

/// A mounted tracefs: that of the machine, or one that is unmounted when this is dropped.
#[derive(Debug)]
pub struct Tracefs {
    path: PathBuf,
    own: Option<TempDir>,
}

impl Tracefs {
    /// Finds a mounted tracefs, or mounts it. Every mount shows the same file system.
    pub fn get() -> Result<Tracefs> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if let Some(path) = mounted_tracefs(&mounts) {
            return Ok(Tracefs { path, own: None });
        }
        let temporary = std::env::temp_dir();
        let dir = tempfile::Builder::new().prefix("extant-lab-trace-").tempdir_in(&temporary);
        let dir = dir.map_err(Error::file(&temporary))?;
        Tool::new("mount").args(["-t", "tracefs", "tracefs"]).arg(dir.path()).run().map_err(|e| {
            Error::Failed(format!(
                "the kernel's events cannot be recorded: no tracefs is mounted, and mounting it failed: {e}"
            ))
        })?;
        Ok(Tracefs { path: dir.path().to_owned(), own: Some(dir) })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if let Some(dir) = self.own.take()
            && unmount(dir.path()).is_err()
        {
            // A directory must not be emptied while something is mounted on it.
            let _ = dir.keep();
        }
    }
}

/// The mount point of a tracefs that is mounted as a whole and writable, from /proc/self/mountinfo.
fn mounted_tracefs(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let (root, path, options) = (left.get(3)?, left.get(4)?, left.get(5)?);
        let whole = right.split(' ').next() == Some("tracefs") && *root == "/";
        (whole && options.split(',').any(|o| o == "rw")).then(|| PathBuf::from(path))
    })
}

fn io(device: &str) -> Option<[u64; 17]> {
    let text = std::fs::read_to_string(format!("/sys/block/{device}/stat")).ok()?;
    let mut fields = [0; 17];
    let mut there = text.split_whitespace();
    for field in &mut fields {
        *field = there.next()?.parse().ok()?;
    }
    Some(fields)
}

/// Sums over the jbd2_run_stats events.
#[derive(Debug, Default, PartialEq, Eq)]
struct Commits {
    transactions: u64,
    blocks: u64,
    handles: u64,
}

/// Sums over ext4_es_shrink.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shrinks {
    calls: u64,
    freed: u64,
    in_vain: u64,
    longest_us: u64,
}

impl Shrinks {
    fn figures(&self, figures: &mut Figures) {
        figures.insert("es_shrinks".into(), self.calls as f64);
        figures.insert("es_reclaimed".into(), self.freed as f64);
        figures.insert("es_shrinks_in_vain".into(), self.in_vain as f64);
        figures.insert("es_shrink_longest_us".into(), self.longest_us as f64);
    }
}

/// Sums over mm_vmscan_lru_shrink_inactive, in pages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reclaimed {
    scanned: u64,
    freed: u64,
    unclean: u64,
}

impl Reclaimed {
    fn figures(&self, figures: &mut Figures) {
        figures.insert("reclaim_scanned".into(), self.scanned as f64);
        figures.insert("reclaim_freed".into(), self.freed as f64);
        figures.insert("reclaim_unclean".into(), self.unclean as f64);
    }
}

/// The sums of page reclaim. Its events have words of the form `name=value`.
fn reclaim(trace: &str) -> Reclaimed {
    let mut sums = Reclaimed::default();
    for args in trace.lines().filter_map(|l| l.split_once(" mm_vmscan_lru_shrink_inactive: ")).map(|(_, args)| args) {
        let number = |name: &str| -> u64 {
            let mut words = args.split_whitespace().filter_map(|word| word.split_once('='));
            words.find(|(key, _)| *key == name).and_then(|(_, n)| n.parse().ok()).unwrap_or(0)
        };
        sums.scanned += number("nr_scanned");
        sums.freed += number("nr_reclaimed");
        sums.unclean += number("nr_dirty") + number("nr_writeback");
    }
    sums
}

/// The lines of a trace of the file system, in the order of time.
fn digest(trace: &str, layout: Layout) -> (Tally, Commits, Shrinks) {
    let (mut tally, mut commits, mut shrinks) = (Tally::default(), Commits::default(), Shrinks::default());
    for (at, line) in trace.lines().enumerate().filter(|(_, l)| !l.starts_with('#')) {
        let at = at as u64;
        let Some((event, args)) = EVENTS.iter().find_map(|event| {
            let name = event.rsplit('/').next().unwrap_or(event);
            let from = line.find(&format!(" {name}: "))?;
            Some((name, &line[from + name.len() + 3..]))
        }) else {
            continue;
        };
        let number = |name: &str| -> Option<u64> {
            let mut words = args.split_whitespace();
            words.find(|w| *w == name)?;
            // ext4_es_shrink has a comma behind one of its numbers.
            words.next()?.trim_end_matches(',').parse().ok()
        };
        match event {
            "ext4_allocate_blocks" => {
                if let (Some(block), Some(len)) = (number("block"), number("len")) {
                    tally.allocated(at, layout, block, len);
                }
            }
            "ext4_free_blocks" => {
                if let (Some(block), Some(count)) = (number("block"), number("count")) {
                    tally.freed(at, layout, block, count);
                }
            }
            "ext4_mb_new_group_pa" => {
                if let Some(start) = number("pstart") {
                    tally.locality_preallocation(layout, start);
                }
            }
            "ext4_es_shrink" => {
                let freed = number("nr_shrunk").unwrap_or(0);
                shrinks.calls += 1;
                shrinks.freed += freed;
                shrinks.in_vain += u64::from(freed == 0);
                shrinks.longest_us = shrinks.longest_us.max(number("scan_time").unwrap_or(0));
            }
            "jbd2_commit_flushing" => tally.closed(at),
            _ => {
                commits.transactions += 1;
                commits.blocks += number("blocks").unwrap_or(0);
                commits.handles += number("handle_count").unwrap_or(0);
            }
        }
    }
    (tally, commits, shrinks)
}

/// Lookups by /proc/fs/ext4/*/es_shrinker_info, with names as [`super::engine`] gives them.
fn es_statistics(text: &str) -> Figures {
    let counts = text.lines().find_map(|l| l.trim().strip_suffix(" cache hits/misses")?.split_once('/'));
    let numbers = counts.and_then(|(hits, misses)| Some((hits.parse().ok()?, misses.parse().ok()?)));
    let Some((hits, misses)) = numbers else { return Figures::new() };
    Figures::from([("es_hits".to_owned(), hits), ("es_misses".to_owned(), misses)])
}

/// Figures from the lines of /proc/fs/ext4/*/mb_stats for which Extant has figures, too, named as in [`super::engine`].
///
/// Headings of criteria are `cr0_stats:` (Linux 5.13) or `cr_p2_aligned_stats:` (6.5, five of them). Lines that are
/// indented more than such a heading belong to it, even if their names also occur elsewhere.
fn mb_stats(text: &str) -> Figures {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut figures = Figures::new();
    // The number of criteria so far, and the indentation of the last heading while its lines last.
    let (mut criteria, mut heading) = (0usize, None);
    for line in text.lines() {
        let Some((name, value)) = line.trim().split_once(':') else { continue };
        if name.starts_with("cr") && name.ends_with("_stats") {
            criteria += 1;
            heading = Some(indent(line));
            continue;
        }
        heading = heading.filter(|at| indent(line) > *at);
        let Ok(value) = value.trim().parse::<f64>() else { continue };
        let ours = match (name, heading) {
            ("hits" | "groups_considered", Some(_)) => format!("mballoc_cr{}_{name}", criteria - 1),
            (_, Some(_)) => continue,
            ("reqs" | "success" | "goal_hits" | "breaks" | "lost" | "groups_scanned" | "extents_scanned", None) => {
                format!("mballoc_{name}")
            }
            ("2^n_hits", None) => "mballoc_2n_hits".to_owned(),
            _ => continue,
        };
        figures.insert(ours, value);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read() {
        let trace = "# tracer: nop\n\
            lab-0-10 [000] ..... 1.0: ext4_allocate_blocks: dev 7,0 ino 12 flags HINT_DATA|HINT_GRP_ALLOC len 6 block 32770 lblk 0 goal 1 lleft 0 lright 0 pleft 0 pright 0\n\
            lab-0-10 [000] ..... 1.1: ext4_mb_new_group_pa: dev 7,0 ino 12 pstart 65536 len 512 lstart 65536\n\
            jbd2-11 [000] ..... 1.2: jbd2_commit_flushing: dev 7,0 transaction 2 sync 1\n\
            lab-0-10 [000] ..... 1.3: ext4_free_blocks: dev 7,0 ino 12 mode 0100644 block 32770 count 6 flags METADATA\n\
            kswapd0-9 [000] ..... 1.3: ext4_es_shrink: dev 7,0 nr_shrunk 128, scan_time 2 nr_skipped 0 retried 0\n\
            kswapd0-9 [000] ..... 1.3: ext4_es_shrink: dev 7,0 nr_shrunk 0, scan_time 95 nr_skipped 3 retried 1\n\
            jbd2-11 [000] ..... 1.4: jbd2_run_stats: dev 7,0 tid 2 wait 0 request_delay 0 running 1 locked 0 flushing 0 logging 1 handle_count 9 blocks 7 blocks_logged 9\n";
        let (tally, commits, shrinks) = digest(trace, Layout { first_block: 0, blocks_per_group: 32768 });
        assert_eq!(shrinks, Shrinks { calls: 2, freed: 128, in_vain: 1, longest_us: 95 });
        assert_eq!(commits, Commits { transactions: 1, blocks: 7, handles: 9 });
        let mut figures = Figures::new();
        tally.figures(&mut figures);
        assert_eq!(figures["groups_used"], 1.0);
        assert_eq!(figures["blocks_freed"], 6.0);
        assert_eq!(figures["locality_groups"], 1.0);
        assert_eq!(figures["bitmaps_per_transaction"], 1.0);
    }

    #[test]
    fn page_reclaim_is_summed() {
        let trace = "# tracer: nop\n\
            lab-9 [001] ..... 1.0: mm_vmscan_lru_shrink_inactive: nid=0 nr_scanned=32 nr_reclaimed=20 nr_dirty=3 nr_writeback=1 nr_congested=0 priority=12 flags=RECLAIM_WB_FILE\n\
            lab-9 [001] ..... 1.1: mm_vmscan_lru_shrink_inactive: nid=0 nr_scanned=8 nr_reclaimed=8 nr_dirty=0 nr_writeback=0 priority=12\n";
        assert_eq!(reclaim(trace), Reclaimed { scanned: 40, freed: 28, unclean: 4 });
    }

    #[test]
    fn lookups_of_the_extent_status_cache_are_read() {
        let text = "stats:\n  104447 objects\n  103889 reclaimable objects\n  1443188/71834 cache hits/misses\n";
        let expected = Figures::from([("es_hits".to_owned(), 1_443_188.0), ("es_misses".to_owned(), 71_834.0)]);
        assert_eq!(es_statistics(text), expected);
        assert_eq!(es_statistics("stats:\n  3 objects\n"), Figures::new());
    }

    fn of_criteria(figures: &Figures, what: &str) -> Vec<f64> {
        (0..).map_while(|c| figures.get(&format!("mballoc_cr{c}_{what}")).copied()).collect()
    }

    #[test]
    fn mb_stats_of_linux_6_18() {
        let figures = mb_stats(include_str!("testdata/mb_stats-6.18.txt"));
        assert_eq!(of_criteria(&figures, "groups_considered"), [5.0, 112.0, 0.0, 0.0, 0.0]);
        assert_eq!(of_criteria(&figures, "hits"), [4.0, 92.0, 0.0, 0.0, 0.0]);
        let sum = ["reqs", "success", "groups_scanned", "extents_scanned", "goal_hits", "2n_hits", "breaks", "lost"]
            .map(|name| figures[&format!("mballoc_{name}")]);
        assert_eq!(sum, [222.0, 222.0, 96.0, 630.0, 0.0, 4.0, 0.0, 0.0]);
        assert_eq!(figures.len(), 18, "{figures:?}");
    }

    #[test]
    fn mb_stats_of_linux_5_17() {
        let figures = mb_stats(include_str!("testdata/mb_stats-5.17.txt"));
        assert_eq!(of_criteria(&figures, "groups_considered"), [9472.0, 908_560.0, 6913.0, 5040.0]);
        assert_eq!(of_criteria(&figures, "hits"), [37.0, 11418.0, 1873.0, 21.0]);
        assert_eq!((figures["mballoc_extents_scanned"], figures["mballoc_goal_hits"]), (417_364.0, 3707.0));
    }

    #[test]
    fn a_mounted_tracefs_is_found() {
        let mounts = "24 1 0:21 / /sys rw,nosuid - sysfs sysfs rw\n\
                      60 24 0:12 / /sys/kernel/tracing rw,nosuid,nodev - tracefs tracefs rw\n";
        assert_eq!(mounted_tracefs(mounts), Some("/sys/kernel/tracing".into()));
        for none in ["", "24 1 0:21 / /sys rw - sysfs sysfs rw", &mounts.replace("tracing rw", "tracing ro")] {
            assert_eq!(mounted_tracefs(none), None, "{none}");
        }
    }

    #[test]
    fn lost_events_are_counted() {
        let stats = "entries: 5\noverrun: 7\ncommit overrun: 0\nbytes: 260\ndropped events: 2\nread events: 0\n";
        assert_eq!(lost_events(stats), 9);
    }

    #[test]
    fn statistics_that_are_off_are_absent() {
        assert_eq!(mb_stats(include_str!("testdata/mb_stats-6.18-off.txt")), Figures::new());
    }
}
