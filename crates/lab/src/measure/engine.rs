//! Extant's own figures: counters, trace points, the lock table.
//!
//! Main types: [`Probe`] (records from a mount to its unmount), [`Report`] (its results; JSON when the file system is
//! in a server). The trace points fill a bounded ring, so a thread empties it regularly.
//!
//! Lock statistics and trace points belong to the process, so there is only one probe at a time.
//!
//! # Locking
//! `lab probe` (1) protects the tally, which the thread and the end of the probe share.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex, lock_table, reset_lock_table, set_lock_stats};
use extant_base::task::{self, JoinHandle};
use extant_base::trace::{self, Event};
use extant_block::IoStats;
use extant_fs::Filesystem;
use serde::{Deserialize, Serialize};

use super::transactions::{Layout, Tally};
use super::{Figures, Recorded};
use crate::result::LockRow;

static PROBE_CLASS: LockClass = LockClass::new("lab probe", 1);

/// How often the ring of events is emptied.
const DRAIN_EVERY: Duration = Duration::from_millis(20);

/// The trace points that are recorded.
const POINTS: [&str; 4] = ["ext4_mballoc_alloc", "ext4_mballoc_free", "ext4_mb_new_group_pa", "jbd2_run_stats"];

/// The figures of one mount, or of several in one trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Sums by the names of [`super::ALL`].
    pub counts: std::collections::BTreeMap<String, u64>,
    /// Bytes in the caches at the end.
    pub budget_bytes: u64,
    /// The maximum number of bytes that they held.
    pub budget_peak_bytes: u64,
    /// The figures from the trace points; `None` if events were lost.
    pub tally: Option<Tally>,
    /// The lock table.
    pub locks: Vec<LockRow>,
}

/// Records from a mount to its unmount.
pub struct Probe {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    recorded: Recorded,
    /// Acquisitions before the mount, by class: these counters are never reset.
    acquired_before: Vec<extant_base::sync::LockRow>,
    io_before: IoStats,
}

struct Shared {
    layout: Layout,
    stop: AtomicBool,
    tally: Mutex<Listener>,
}

#[derive(Default)]
struct Listener {
    tally: Tally,
    lost: u64,
}

impl Probe {
    /// Starts recording. If no thread can be started, no events are recorded.
    pub fn start(fs: &Filesystem, recorded: Recorded) -> Probe {
        let geometry = fs.geometry();
        let layout = Layout { first_block: geometry.first_data_block, blocks_per_group: geometry.blocks_per_group };
        let shared = Arc::new(Shared {
            layout,
            stop: AtomicBool::new(false),
            tally: Mutex::new(&PROBE_CLASS, Listener::default()),
        });
        if recorded.locks {
            set_lock_stats(true);
            reset_lock_table();
        }
        let thread = if recorded.events {
            let _ = trace::drain();
            POINTS.iter().for_each(|point| trace::enable(point));
            let shared = shared.clone();
            let clock = Clock::real();
            let listener = task::spawn("lab-probe", move || {
                while !shared.stop.load(Ordering::Acquire) {
                    clock.sleep(DRAIN_EVERY);
                    shared.listen();
                }
            });
            listener.ok()
        } else {
            None
        };
        Probe { shared, thread, recorded, acquired_before: lock_table(), io_before: fs.device().stats() }
    }

    /// Must be called after the unmount: returns the results.
    pub fn finish(mut self, fs: &Filesystem) -> Report {
        let heard = self.thread.is_some();
        self.end();
        if heard {
            self.shared.listen();
        }
        let locks = if self.recorded.locks { self.locks() } else { Vec::new() };
        let (budget_bytes, budget_peak_bytes) = (fs.budget().used(), fs.budget().peak());
        let mut report = Report { budget_bytes, budget_peak_bytes, locks, ..Report::default() };
        let listener = std::mem::take(&mut *self.shared.tally.lock());
        report.tally = (heard && listener.lost == 0).then_some(listener.tally);
        self.count(fs, &mut report);
        report
    }

    fn end(&mut self) {
        set_lock_stats(false);
        trace::disable_all();
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn count(&self, fs: &Filesystem, report: &mut Report) {
        let mut put = |name: &str, n: u64| report.counts.insert(name.to_owned(), n);
        let (io, before) = (fs.device().stats(), self.io_before);
        put("device_reads", io.reads - before.reads);
        put("device_read_bytes", io.read_bytes - before.read_bytes);
        put("device_writes", io.writes + io.write_zeroes - before.writes - before.write_zeroes);
        put("device_write_bytes", io.write_bytes - before.write_bytes);
        put("device_flushes", io.flushes - before.flushes);
        put("device_discards", io.discards - before.discards);
        let journal = fs.statistics().journal();
        put("journal_commits", journal.commits.get());
        put("journal_blocks", journal.blocks.get());
        put("journal_handles", journal.handles.get());
        let es = fs.statistics().extent_status();
        put("es_hits", es.hits);
        put("es_misses", es.misses);
        put("es_shrinks", es.shrinks);
        put("es_scanned", es.scanned);
        put("es_reclaimed", es.freed);
        let reclaim = fs.budget().reclaim().counts();
        put("reclaim_scanned", reclaim.scanned + reclaim.scanned_direct);
        put("reclaim_freed", reclaim.freed + reclaim.freed_direct);
        put("reclaim_freed_direct", reclaim.freed_direct);
        put("reclaim_unclean", reclaim.dirty + reclaim.writeback);
        put("reclaim_in_use", reclaim.in_use);
        put("reclaim_busy", reclaim.busy);
        put("reclaim_refaulted", reclaim.refaulted);
        let alloc = fs.statistics().allocator();
        put("mballoc_reqs", alloc.requests);
        put("mballoc_success", alloc.success);
        put("mballoc_groups_scanned", alloc.groups_scanned);
        put("mballoc_extents_scanned", alloc.extents_scanned);
        put("mballoc_goal_hits", alloc.goal_hits);
        put("mballoc_2n_hits", alloc.order2_hits);
        put("mballoc_breaks", alloc.breaks);
        put("mballoc_lost", alloc.lost);
        put("mballoc_zone_hits", alloc.zone_hits);
        put("mballoc_zone_overflows", alloc.zone_overflows);
        put("mballoc_zone_areas_grown", alloc.zone_areas_grown);
        put("mballoc_zone_areas_lent", alloc.zone_areas_lent);
        put("mballoc_zone_blocks_lent", alloc.zone_blocks_lent);
        for (i, (considered, hits)) in alloc.groups_considered.iter().zip(alloc.criterion_hits).enumerate() {
            put(&format!("mballoc_cr{i}_groups_considered"), *considered);
            put(&format!("mballoc_cr{i}_hits"), hits);
        }
    }

    fn locks(&self) -> Vec<LockRow> {
        let before = |name: &str| self.acquired_before.iter().find(|r| r.name == name);
        let rows = lock_table().into_iter().map(|row| {
            let (acquired, contended) = before(row.name).map_or((0, 0), |b| (b.acquired, b.contended));
            let contended = row.contended.saturating_sub(contended);
            LockRow {
                name: row.name.to_owned(),
                acquired: row.acquired.saturating_sub(acquired),
                contended,
                avg_wait_ns: if contended == 0 { 0.0 } else { row.wait_ns_total as f64 / contended as f64 },
                total_wait_ns: row.wait_ns_total,
                max_wait_ns: row.wait_ns_max,
                min_wait_ns: row.wait_ns_min,
            }
        });
        rows.filter(|r| r.acquired > 0 && !r.name.starts_with("lab ")).collect()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn listen(&self) {
        let (events, lost) = trace::drain();
        let mut listener = self.tally.lock();
        listener.lost += lost;
        for event in &events {
            hear(&mut listener.tally, self.layout, event);
        }
    }
}

fn hear(tally: &mut Tally, layout: Layout, event: &Event) {
    match event.name() {
        "ext4_mballoc_alloc" => {
            if let (Some(start), Some(len)) = (event.get("start"), event.get("len")) {
                tally.allocated(event.time_ns, layout, start, len);
            }
        }
        "ext4_mballoc_free" => {
            if let (Some(start), Some(len)) = (event.get("start"), event.get("len")) {
                tally.freed(event.time_ns, layout, start, len);
            }
        }
        "ext4_mb_new_group_pa" => {
            if let Some(start) = event.get("pstart") {
                tally.locality_preallocation(layout, start);
            }
        }
        "jbd2_run_stats" => {
            // The event arrives when the commit has completed; the transaction was closed `lock_ns` after its
            // beginning.
            let of = |key| event.get(key).unwrap_or(0);
            let since = of("total_ns").saturating_sub(of("lock_ns"));
            tally.closed(event.time_ns.saturating_sub(since));
        }
        _ => {}
    }
}

impl Report {
    /// Adds the figures of another mount of the same trial.
    pub fn add(&mut self, more: Report) {
        for (name, n) in more.counts {
            *self.counts.entry(name).or_default() += n;
        }
        self.budget_bytes = self.budget_bytes.max(more.budget_bytes);
        self.budget_peak_bytes = self.budget_peak_bytes.max(more.budget_peak_bytes);
        match (&mut self.tally, &more.tally) {
            (Some(mine), Some(theirs)) => mine.add(theirs),
            _ => self.tally = None,
        }
        for row in more.locks {
            match self.locks.iter_mut().find(|r| r.name == row.name) {
                Some(mine) => add_row(mine, &row),
                None => self.locks.push(row),
            }
        }
    }

    /// Adds the figures to `figures`.
    pub fn figures(&self, figures: &mut Figures) {
        for (name, n) in &self.counts {
            figures.insert(name.clone(), *n as f64);
        }
        for (name, bytes) in
            [("memory_budget_bytes", self.budget_bytes), ("memory_budget_peak_bytes", self.budget_peak_bytes)]
        {
            if bytes > 0 {
                figures.insert(name.to_owned(), bytes as f64);
            }
        }
        let count = |name: &str| self.counts.get(name).copied().unwrap_or(0);
        let commits = count("journal_commits");
        if commits > 0 {
            figures.insert("journal_blocks_per_commit".to_owned(), count("journal_blocks") as f64 / commits as f64);
        }
        if let Some(tally) = &self.tally {
            tally.figures(figures);
        }
    }
}

fn add_row(mine: &mut LockRow, more: &LockRow) {
    mine.min_wait_ns = match (mine.contended, more.contended) {
        (0, _) => more.min_wait_ns,
        (_, 0) => mine.min_wait_ns,
        _ => mine.min_wait_ns.min(more.min_wait_ns),
    };
    mine.acquired += more.acquired;
    mine.contended += more.contended;
    mine.total_wait_ns += more.total_wait_ns;
    mine.max_wait_ns = mine.max_wait_ns.max(more.max_wait_ns);
    mine.avg_wait_ns = if mine.contended == 0 { 0.0 } else { mine.total_wait_ns as f64 / mine.contended as f64 };
}
