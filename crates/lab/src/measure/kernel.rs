//! What the kernel's ext4 tells of itself: trace events, mb_stats, and the statistics of the loop device below it.
//!
//! Main type: [`Probe`]. Events go to a trace instance of its own, filtered by device, and are read when all is over, so that
//! listening costs the kernel no more than writing them down. Events that were lost make their figures absent.
//!
//! It needs root, and tracefs at its usual place; without, the figures are absent.
//!
//! # Locking
//! None.

use std::path::{Path, PathBuf};

use super::Figures;
use super::transactions::{Layout, Tally};

const INSTANCES: &str = "/sys/kernel/tracing/instances";
/// Memory for events, for each processor: some 150,000 events.
const BUFFER_KIB: &str = "16384";
const EVENTS: [&str; 5] = [
    "ext4/ext4_allocate_blocks",
    "ext4/ext4_free_blocks",
    "ext4/ext4_mb_new_group_pa",
    "jbd2/jbd2_commit_flushing",
    "jbd2/jbd2_run_stats",
];

/// Listens to one loop device.
#[derive(Debug)]
pub struct Probe {
    /// `loop3`.
    device: String,
    layout: Option<Layout>,
    instance: Option<PathBuf>,
    io_before: Option<[u64; 17]>,
    mb_stats: Figures,
}

impl Probe {
    /// Before the mount. `number`: major and minor of the device.
    pub fn start(device: &str, number: (u32, u32), layout: Option<Layout>, trace: bool) -> Probe {
        let instance = if trace { listen(device, number) } else { None };
        Probe { device: device.to_owned(), layout, instance, io_before: io(device), mb_stats: Figures::new() }
    }

    /// After the mount.
    pub fn mounted(&self) {
        let _ = std::fs::write(format!("/sys/fs/ext4/{}/mb_stats", self.device), "1");
    }

    /// Before the unmount, which makes these vanish.
    pub fn unmounting(&mut self) {
        let text = std::fs::read_to_string(format!("/proc/fs/ext4/{}/mb_stats", self.device)).unwrap_or_default();
        for (name, n) in mb_stats(&text) {
            *self.mb_stats.entry(name).or_default() += n;
        }
    }

    /// After the last unmount, while the device is still there: the figures, and the blocks allocated in each group.
    pub fn finish(&mut self, figures: &mut Figures) -> std::collections::BTreeMap<u32, u64> {
        if let (Some(before), Some(now)) = (self.io_before, io(&self.device)) {
            // Documentation/block/stat.rst; sectors of 512 bytes.
            let mut put = |name: &str, field: usize, unit: u64| {
                figures.insert(name.to_owned(), ((now[field] - before[field]) * unit) as f64);
            };
            put("device_reads", 0, 1);
            put("device_read_bytes", 2, 512);
            put("device_writes", 4, 1);
            put("device_write_bytes", 6, 512);
            put("device_discards", 11, 1);
            put("device_flushes", 15, 1);
        }
        figures.append(&mut self.mb_stats);
        let heard = self.events();
        let Some((tally, commits)) = heard else { return Default::default() };
        tally.figures(figures);
        figures.insert("journal_commits".into(), commits.transactions as f64);
        figures.insert("journal_blocks".into(), commits.blocks as f64);
        figures.insert("journal_handles".into(), commits.handles as f64);
        if commits.transactions > 0 {
            figures.insert("journal_blocks_per_commit".into(), commits.blocks as f64 / commits.transactions as f64);
        }
        tally.groups
    }

    /// `None`: not all were heard.
    fn events(&self) -> Option<(Tally, Commits)> {
        let instance = self.instance.as_ref()?;
        let _ = std::fs::write(instance.join("tracing_on"), "0");
        let lost = std::fs::read_dir(instance.join("per_cpu")).ok()?.flatten().any(|cpu| {
            let stats = std::fs::read_to_string(cpu.path().join("stats")).unwrap_or_default();
            stats.lines().any(|l| l.strip_prefix("overrun: ").is_some_and(|n| n.trim() != "0"))
        });
        if lost {
            return None;
        }
        Some(digest(&std::fs::read_to_string(instance.join("trace")).ok()?, self.layout?))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(instance) = &self.instance {
            let _ = std::fs::write(instance.join("events/enable"), "0");
            let _ = std::fs::remove_dir(instance);
        }
    }
}

/// Makes a trace instance that hears of this device alone.
fn listen(device: &str, (major, minor): (u32, u32)) -> Option<PathBuf> {
    let instance = Path::new(INSTANCES).join(format!("extant-lab-{}-{device}", std::process::id()));
    std::fs::create_dir(&instance).ok()?;
    let set = || {
        std::fs::write(instance.join("buffer_size_kb"), BUFFER_KIB)?;
        for event in EVENTS {
            let dir = instance.join("events").join(event);
            // As the kernel packs a device number.
            std::fs::write(dir.join("filter"), format!("dev == {}", major << 20 | minor))?;
            std::fs::write(dir.join("enable"), "1")?;
        }
        std::io::Result::Ok(())
    };
    if set().is_err() {
        let _ = std::fs::remove_dir(&instance);
        return None;
    }
    Some(instance)
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

/// Sums over jbd2_run_stats.
#[derive(Debug, Default, PartialEq, Eq)]
struct Commits {
    transactions: u64,
    blocks: u64,
    handles: u64,
}

/// The lines of a trace, in the order of time.
fn digest(trace: &str, layout: Layout) -> (Tally, Commits) {
    let (mut tally, mut commits) = (Tally::default(), Commits::default());
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
            words.next()?.parse().ok()
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
            "jbd2_commit_flushing" => tally.closed(at),
            _ => {
                commits.transactions += 1;
                commits.blocks += number("blocks").unwrap_or(0);
                commits.handles += number("handle_count").unwrap_or(0);
            }
        }
    }
    (tally, commits)
}

/// Names as [`super::engine`] gives them, of the lines of /proc/fs/ext4/*/mb_stats that both have.
fn mb_stats(text: &str) -> Figures {
    let mut figures = Figures::new();
    let mut criterion = None;
    for line in text.lines() {
        let Some((name, value)) = line.trim().split_once(':') else { continue };
        let name = name.trim();
        if name.starts_with("cr_") {
            // One heading for each, in their order (Linux 6.5: five of them).
            criterion = Some(criterion.map_or(0, |c| c + 1));
            continue;
        }
        let Ok(value) = value.trim().parse::<f64>() else { continue };
        let ours = match (name, criterion) {
            ("reqs" | "success" | "goal_hits" | "breaks" | "lost", _) => format!("mballoc_{name}"),
            ("2^n_hits", _) => "mballoc_2n_hits".to_owned(),
            ("groups_scanned" | "extents_scanned", _) => {
                criterion = None;
                format!("mballoc_{name}")
            }
            ("hits" | "groups_considered", Some(c)) => format!("mballoc_cr{c}_{name}"),
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
            jbd2-11 [000] ..... 1.4: jbd2_run_stats: dev 7,0 tid 2 wait 0 request_delay 0 running 1 locked 0 flushing 0 logging 1 handle_count 9 blocks 7 blocks_logged 9\n";
        let (tally, commits) = digest(trace, Layout { first_block: 0, blocks_per_group: 32768 });
        assert_eq!(commits, Commits { transactions: 1, blocks: 7, handles: 9 });
        let mut figures = Figures::new();
        tally.figures(&mut figures);
        assert_eq!(figures["groups_used"], 1.0);
        assert_eq!(figures["blocks_freed"], 6.0);
        assert_eq!(figures["locality_groups"], 1.0);
        assert_eq!(figures["bitmaps_per_transaction"], 1.0);
    }

    #[test]
    fn mb_stats_are_read() {
        let text = "mballoc:\n\treqs: 7\n\tsuccess: 6\n\tgroups_scanned: 3\n\tcr_p2_aligned_stats:\n\t\thits: 1\n\t\t\
                    groups_considered: 2\n\tcr_goal_fast_stats:\n\t\thits: 4\n\textents_scanned: 5\n\t\tgoal_hits: 2\n\t\t2^n_hits: 1\n";
        let figures = mb_stats(text);
        assert_eq!(figures["mballoc_reqs"], 7.0);
        assert_eq!(figures["mballoc_cr0_groups_considered"], 2.0);
        assert_eq!(figures["mballoc_cr1_hits"], 4.0);
        assert_eq!((figures["mballoc_extents_scanned"], figures["mballoc_2n_hits"]), (5.0, 1.0));
    }
}
