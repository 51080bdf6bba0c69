//! The rows of the thread's tables.
//!
//! Main types: [`Rows`] (of one test), [`Samples`] (iostat(1), one sample every ten seconds).
//!
//! # Locking
//! None.

use extant_cache::reclaim::Counts;

use super::disk::Traffic;
use super::settings::{DMA32, NORMAL};

/// KiB of a page: the unit of the rows that the thread calls sectors (Linux: `pgpgin`, `pgpgout`).
const KIB: u64 = 4;

/// Mean and greatest over the samples: of the queue's length in thousandths, of waits in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    pub queue: [u64; 2],
    pub all: [u64; 2],
    pub reads: [u64; 2],
    pub writes: [u64; 2],
}

/// The results of a test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rows {
    pub ops: u64,
    pub io_ns: u64,
    pub elapsed_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub swapped_in: u64,
    pub swapped_out: u64,
    pub scanned: u64,
    pub scanned_direct: u64,
    pub reclaimed: u64,
    pub reclaimed_direct: u64,
    /// Pages looked at in each zone.
    pub zones: [u64; 2],
    pub writes_file: u64,
    pub writes_anon: u64,
    pub immediate: u64,
    pub stalls: u64,
    pub kib_read: u64,
    pub kib_written: u64,
    pub slabs_scanned: u64,
    pub direct_slabs_scanned: u64,
    pub inode_steals: u64,
    pub direct_inode_steals: u64,
    pub waits: Waits,
}

impl Rows {
    /// Adds reclaim's counts between two moments, zone by zone.
    pub fn count(&mut self, before: [Counts; 2], after: [Counts; 2], swapped_out: u64) {
        let sum = |of: fn(&Counts) -> u64| -> u64 { before.iter().zip(&after).map(|(b, a)| of(a) - of(b)).sum() };
        self.slabs_scanned = sum(|c| c.slabs_scanned);
        self.inode_steals = sum(|c| c.inodes_freed) - self.direct_inode_steals;
        // `scanned` includes inodes, which are looked at beside the pages.
        self.scanned = sum(|c| c.scanned) - (self.slabs_scanned - self.direct_slabs_scanned);
        self.scanned_direct = sum(|c| c.scanned_direct) - self.direct_slabs_scanned;
        self.reclaimed = sum(|c| c.freed) - self.inode_steals;
        self.reclaimed_direct = sum(|c| c.freed_direct) - self.direct_inode_steals;
        for zone in [DMA32, NORMAL] {
            let looks = |c: &Counts| c.scanned + c.scanned_direct - c.slabs_scanned;
            self.zones[zone] = looks(&after[zone]) - looks(&before[zone]);
        }
        self.writes_file = sum(|c| c.wanted_data);
        self.writes_anon = sum(|c| c.wanted_anonymous);
        self.immediate = sum(|c| c.immediate);
        self.stalls = sum(|c| c.stalls);
        self.swapped_out = swapped_out;
    }

    /// Adds the disk's work between two moments.
    pub fn traffic(&mut self, before: Traffic, after: Traffic) {
        self.kib_read = (after.pages_read - before.pages_read) * KIB;
        self.kib_written = (after.pages_written - before.pages_written) * KIB;
    }

    /// The rows of `mmtests`' first table, of one test, by name.
    pub fn of_a_test(&self) -> [(&'static str, u64); 10] {
        [
            ("memcachetest_ops", self.ops),
            ("io_duration_ns", self.io_ns),
            ("swaptotal", self.swapped_in + self.swapped_out),
            ("swapin", self.swapped_in),
            ("minorfaults", self.minor_faults),
            ("majorfaults", self.major_faults),
            ("kswapd_pages_scanned", self.scanned),
            ("kswapd_pages_reclaimed", self.reclaimed),
            ("page_writes_file", self.writes_file),
            ("kswapd_stalls", self.stalls),
        ]
    }
}

/// The rows of its second and third table, over all tests, by name.
pub fn of_all(tests: &[Rows]) -> Vec<(&'static str, u64)> {
    let sum = |of: fn(&Rows) -> u64| tests.iter().map(of).sum::<u64>();
    let n = tests.len().max(1) as u64;
    let wait = |of: fn(&Waits) -> [u64; 2]| {
        let mean = tests.iter().map(|t| of(&t.waits)[0]).sum::<u64>() / n;
        [mean, tests.iter().map(|t| of(&t.waits)[1]).max().unwrap_or(0)]
    };
    let (queue, all, reads, writes) = (wait(|w| w.queue), wait(|w| w.all), wait(|w| w.reads), wait(|w| w.writes));
    vec![
        ("elapsed_ns", sum(|r| r.elapsed_ns)),
        ("minor_faults", sum(|r| r.minor_faults)),
        ("major_faults", sum(|r| r.major_faults)),
        ("swap_ins", sum(|r| r.swapped_in)),
        ("swap_outs", sum(|r| r.swapped_out)),
        ("direct_pages_scanned", sum(|r| r.scanned_direct)),
        ("kswapd_pages_scanned", sum(|r| r.scanned)),
        ("kswapd_pages_reclaimed", sum(|r| r.reclaimed)),
        ("direct_pages_reclaimed", sum(|r| r.reclaimed_direct)),
        ("zone_normal_scanned", sum(|r| r.zones[NORMAL])),
        ("zone_dma32_scanned", sum(|r| r.zones[DMA32])),
        ("page_writes_file", sum(|r| r.writes_file)),
        ("page_writes_anon", sum(|r| r.writes_anon)),
        ("page_reclaim_immediate", sum(|r| r.immediate)),
        ("kib_read", sum(|r| r.kib_read)),
        ("kib_written", sum(|r| r.kib_written)),
        ("slabs_scanned", sum(|r| r.slabs_scanned)),
        ("direct_inode_steals", sum(|r| r.direct_inode_steals)),
        ("kswapd_inode_steals", sum(|r| r.inode_steals)),
        ("sda_avgqz_milli_mean", queue[0]),
        ("sda_avgqz_milli_max", queue[1]),
        ("sda_await_mean_ns", all[0]),
        ("sda_await_max_ns", all[1]),
        ("sda_r_await_mean_ns", reads[0]),
        ("sda_r_await_max_ns", reads[1]),
        ("sda_w_await_mean_ns", writes[0]),
        ("sda_w_await_max_ns", writes[1]),
    ]
}

/// iostat(1): a line every ten seconds.
#[derive(Debug, Default)]
pub struct Samples {
    first: Traffic,
    last: Traffic,
    lines: Vec<[u64; 4]>,
}

impl Samples {
    pub fn from(start: Traffic) -> Samples {
        Samples { first: start, last: start, lines: Vec::new() }
    }

    pub fn start(&self) -> Traffic {
        self.first
    }

    pub fn take(&mut self, now: Traffic, interval_ns: u64) {
        let was = std::mem::replace(&mut self.last, now);
        let (reads, writes) = (now.reads - was.reads, now.writes - was.writes);
        let (read_ns, write_ns) = (now.read_wait_ns - was.read_wait_ns, now.write_wait_ns - was.write_wait_ns);
        self.lines.push([
            (now.queue_ns - was.queue_ns) * 1000 / interval_ns,
            (read_ns + write_ns) / (reads + writes).max(1),
            read_ns / reads.max(1),
            write_ns / writes.max(1),
        ]);
    }

    pub fn summary(&self) -> Waits {
        let n = self.lines.len().max(1) as u64;
        let of = |i: usize| {
            let values = || self.lines.iter().map(|line| line[i]);
            [values().sum::<u64>() / n, values().max().unwrap_or(0)]
        };
        Waits { queue: of(0), all: of(1), reads: of(2), writes: of(3) }
    }
}
