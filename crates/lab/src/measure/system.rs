//! The host's own figures: processor time, page cache, slabs.
//!
//! Main type: [`System`], a reading of /proc/stat and /proc/meminfo.
//!
//! # Locking
//! None.

use super::Figures;
/// Ticks per second in /proc: part of the kernel's ABI, independent of its timer (Linux: `USER_HZ`).
const USER_HZ: f64 = 100.0;

/// A reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct System {
    busy_s: Option<f64>,
    steal_s: Option<f64>,
    cached: Option<u64>,
    slab: Option<u64>,
    dirty: Option<u64>,
}

impl System {
    /// Takes a reading now.
    pub fn now() -> System {
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = |name: &str| {
            info.lines()
                .find_map(|l| l.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok().map(|n| n << 10))
        };
        let sum = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        let (busy_s, steal_s) = processors().map_or((None, None), |(busy, steal)| (Some(busy), Some(steal)));
        System {
            busy_s,
            steal_s,
            cached: sum(kib("Cached:"), kib("Buffers:")),
            slab: kib("Slab:"),
            dirty: sum(kib("Dirty:"), kib("Writeback:")),
        }
    }

    /// The memory of this reading, taken at the end of the work, compared with the reading before it.
    pub fn memory_since(&self, before: &System, figures: &mut Figures) {
        let mut put = |name: &str, now: Option<u64>, then: Option<u64>| {
            if let (Some(now), Some(then)) = (now, then) {
                figures.insert(name.to_owned(), now as f64 - then as f64);
            }
        };
        put("memory_page_cache_bytes", self.cached, before.cached);
        put("memory_slab_bytes", self.slab, before.slab);
        put("memory_dirty_bytes", self.dirty, Some(0));
    }

    /// The processor time of this reading, taken after unmounting, compared with the reading before mounting.
    pub fn busy_since(&self, before: &System, figures: &mut Figures) {
        if let (Some(now), Some(then)) = (self.busy_s, before.busy_s) {
            figures.insert("cpu_machine_s".to_owned(), now - then);
        }
        if let (Some(now), Some(then)) = (self.steal_s, before.steal_s) {
            figures.insert("cpu_steal_s".to_owned(), now - then);
        }
    }
}

/// Processor time except idle and I/O wait (user, nice, system, irq, softirq), and the time that the hypervisor gave to
/// others.
fn processors() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<f64> = text.lines().next()?.split_whitespace().skip(1).map_while(|f| f.parse().ok()).collect();
    let busy: f64 = fields.iter().take(3).chain(fields.iter().skip(5).take(2)).sum();
    Some((busy / USER_HZ, fields.get(7)? / USER_HZ))
}
