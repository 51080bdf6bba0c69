//! The figures of a trial, and their names.
//!
//! Main types: [`Measure`] (a name with its unit), [`ALL`]. [`process`] and [`system`] read the host's figures,
//! [`engine`] those of Extant, [`kernel`] those of the kernel's ext4 and its loop device, with `requests` for the
//! requests. [`transactions`] turns the events of both into the same figures, [`extents`] reads the image afterwards,
//! [`latency`] turns histograms into records.
//!
//! A figure that a target does not provide is left out, never zero.
//!
//! # Locking
//! See [`engine`].

pub mod engine;
pub mod extents;
pub mod kernel;
pub mod latency;
pub mod process;
pub mod program;
mod requests;
pub mod system;
pub mod transactions;

use std::collections::BTreeMap;

/// Figures by name.
pub type Figures = BTreeMap<String, f64>;

/// A figure that a trial may have.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Stable name.
    pub name: &'static str,
    /// Unit; empty for a count.
    pub unit: &'static str,
    /// A description in one line.
    pub summary: &'static str,
}

const fn measure(name: &'static str, unit: &'static str, summary: &'static str) -> Measure {
    Measure { name, unit, summary }
}

/// The optional parts of a trial's record, besides the clock and the counters of devices and host. Each part has a
/// cost, which docs/lab.md gives. The lab itself measures latency, in the same way for every target. The other two
/// parts exist for some targets only, and slow down only these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Latency of each operation.
    pub latency: bool,
    /// The lock table.
    pub locks: bool,
    /// Trace events: allocations, commits, groups; for the kernel, also mb_stats.
    pub events: bool,
}

impl Recorded {
    /// All parts.
    pub const ALL: Recorded = Recorded { latency: true, locks: true, events: true };
    /// No part.
    pub const NONE: Recorded = Recorded { latency: false, locks: false, events: false };

    /// The parts that cost the same for all targets.
    pub const FAIR: Recorded = Recorded { latency: true, locks: false, events: false };

    /// Whether a part is recorded that only some targets provide, at their cost.
    pub fn one_sided(self) -> bool {
        self.locks || self.events
    }
}

impl std::str::FromStr for Recorded {
    type Err = String;

    /// Parses `latency,locks,events`, some of these, `all` or `none`.
    fn from_str(text: &str) -> Result<Recorded, String> {
        let mut recorded = Recorded::NONE;
        for part in text.split(',').filter(|part| *part != "none") {
            match part {
                "latency" => recorded.latency = true,
                "locks" => recorded.locks = true,
                "events" => recorded.events = true,
                "all" => recorded = Recorded::ALL,
                _ => return Err(format!("'{part}' is none of latency, locks, events, all, none")),
            }
        }
        Ok(recorded)
    }
}

impl std::fmt::Display for Recorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [(self.latency, "latency"), (self.locks, "locks"), (self.events, "events")];
        let on: Vec<&str> = parts.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        f.write_str(if on.is_empty() { "none".to_owned() } else { on.join(",") }.as_str())
    }
}

/// Every measure. A name that ends in `_` is the prefix of a family.
pub const ALL: &[Measure] = &[
    measure("mount_s", "s", "time from the beginning of the mount until the target can work"),
    measure("cpu_s", "s", "processor time of the workload and of the target's server, to the microsecond"),
    measure("cpu_user_s", "s", "user time of the same, as the kernel divides it"),
    measure("cpu_system_s", "s", "system time of the same"),
    measure(
        "cpu_machine_s",
        "s",
        "time that the machine's processors were busy, kernel threads included, in ticks of 10 ms",
    ),
    measure("cpu_steal_s", "s", "time that the hypervisor gave to others, in ticks of 10 ms"),
    measure("switches_voluntary", "", "context switches of the same threads, waiting"),
    measure("switches_involuntary", "", "context switches of the same threads, preempted"),
    measure(
        "memory_workload_bytes",
        "B",
        "resident anonymous memory of the lab at the end (engine: the file system's too)",
    ),
    measure("memory_server_rss_bytes", "B", "resident memory of the server at the end"),
    measure("memory_server_pss_anon_bytes", "B", "its proportional share of anonymous memory"),
    measure("memory_server_pss_file_bytes", "B", "its proportional share of file memory"),
    measure("memory_server_peak_bytes", "B", "the most that was resident of it"),
    measure("memory_page_cache_bytes", "B", "growth of the machine's page cache"),
    measure("memory_slab_bytes", "B", "growth of the kernel's slabs"),
    measure("memory_dirty_bytes", "B", "dirty and under writeback in the page cache at the end"),
    measure("memory_budget_bytes", "B", "bytes in Extant's caches at the end"),
    measure("memory_budget_peak_bytes", "B", "the most bytes in them"),
    measure("device_reads", "", "requests to the device (Extant: to the image)"),
    measure("device_read_bytes", "B", "bytes read"),
    measure("device_writes", "", "requests to write"),
    measure("device_write_bytes", "B", "bytes written"),
    measure("device_flushes", "", "cache flushes"),
    measure("device_discards", "", "discards"),
    measure("device_merges", "", "requests that joined another one before it was issued (the kernel's)"),
    measure("device_issued_reads", "", "reads that the kernel gave to the device's driver"),
    measure("device_issued_writes", "", "writes that it gave to it"),
    measure("device_issued_flushes", "", "flushes that it gave to it"),
    measure("device_issued_sectors", "", "sectors of 512 bytes of those reads and writes"),
    measure("device_request_sum_us", "us", "time of those requests from issue to completion, added up"),
    measure("device_request_p50_us", "us", "median of that time"),
    measure("device_request_p99_us", "us", "its 99th percentile"),
    measure("device_request_longest_us", "us", "the longest of them"),
    measure("device_seconds", "s", "with device=: such a device's time for all requests"),
    measure("device_read_seconds", "s", "of these, for reads"),
    measure("device_write_seconds", "s", "for writes"),
    measure("device_flush_seconds", "s", "for flushes"),
    measure("device_requests", "", "with device=: reads and writes that it served"),
    measure("device_seeks", "", "of these, those for which a disk's arm moved or a turn was waited for"),
    measure("device_dropped_requests", "", "with store=metadata: writes that were dropped"),
    measure("device_dropped_bytes", "B", "bytes of these"),
    measure("journal_commits", "", "transactions committed"),
    measure("journal_blocks", "", "metadata blocks in them"),
    measure("journal_blocks_per_commit", "", "the same, for each"),
    measure("journal_handles", "", "operations that joined a transaction"),
    measure("bitmaps_per_transaction", "", "block bitmaps changed by a transaction, on average"),
    measure("bitmaps_per_transaction_max", "", "the most that one changed"),
    measure("groups_used", "", "block groups in which blocks were allocated"),
    measure("allocations", "", "extents allocated"),
    measure("blocks_allocated", "", "blocks in them"),
    measure("blocks_freed", "", "blocks freed"),
    measure("blocks_touched", "", "different blocks among those allocated, of each mount"),
    measure("locality_preallocations", "", "preallocations made for small files together"),
    measure("locality_groups", "", "block groups that they lie in"),
    measure("locality_groups_of_32", "", "block groups that the first 32 of them lie in"),
    measure("es_hits", "", "lookups that the extent-status cache answered"),
    measure("es_misses", "", "lookups for which the map had to be read"),
    measure("es_shrinks", "", "calls of the extent-status cache's shrinker"),
    measure("es_scanned", "", "entries, or leaves of them, that those calls looked at"),
    measure("es_reclaimed", "", "entries that they gave up"),
    measure("es_shrinks_in_vain", "", "of these calls, those that gave up nothing (the kernel's)"),
    measure("es_shrink_longest_us", "us", "the longest of these calls (the kernel's)"),
    measure("reclaim_scanned", "", "frames that reclaim looked at (the kernel: pages, by the trial's own threads)"),
    measure("reclaim_freed", "", "frames that it freed"),
    measure("reclaim_freed_direct", "", "of these, by a thread that needed memory at once"),
    measure("reclaim_unclean", "", "frames looked at that were dirty or under writeback"),
    measure("reclaim_in_use", "", "frames chosen that were in use"),
    measure("reclaim_busy", "", "frames chosen whose owner could not lock them"),
    measure("reclaim_refaulted", "", "frames that came back soon after they had left"),
    measure("mballoc_", "", "counters of the block allocator (Linux: mb_stats)"),
    measure("files_left", "", "regular files with blocks in the image afterwards"),
    measure("extents_per_file", "", "extents of those, on average"),
    measure("extents_per_file_max", "", "extents of the most fragmented"),
    measure("groups_from_inode", "", "block groups between an inode and its data, on average over all blocks"),
    measure("map_blocks", "", "indirect blocks and extent nodes in the image afterwards"),
    measure("map_runs", "", "sets of physically adjacent ones among them"),
    measure("map_runs_per_block", "", "the same, for each of them"),
    measure("map_jumps", "", "how often the next one, read file by file, does not follow the last one"),
    measure("map_blocks_per_group_max", "", "those of the block group that has most"),
];
