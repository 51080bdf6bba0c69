//! The figures of a trial by name, and which direction of each is better.
//!
//! Main items: [`figures`], [`headline_of`], [`unit()`], [`Direction`]. Names are stable and listed in docs/lab.md:
//!
//! - `PHASE.ops_per_s`, `PHASE.mib_per_s`, `PHASE.seconds` of each timed phase, absent if the phase has no such work
//!   (or a single operation); for the engine also `PHASE.cpu_s`, `PHASE.device_writes` and `PHASE.device_flushes`;
//! - the names in [`Trial::measures`];
//! - `latency.OPERATION.mean_ns`, `.p50_ns`, `.p90_ns`, `.p99_ns`, `.p999_ns`, `.max_ns`; a percentile is absent if no
//!   sample lies beyond it (of 999 samples, the 99.9th percentile is just the maximum);
//! - `fio.JOB.DIRECTION.FIGURE` and `program.NAME`, which a program printed (`measure::program`);
//! - `groups_used`, counted from [`Trial::groups`] if it is not among the measures.
//!
//! It does not measure anything.
//!
//! # Locking
//! None.

use crate::measure;
use crate::result::Trial;

/// The better direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    HigherIsBetter,
    LowerIsBetter,
    /// The figure is descriptive and has no better direction.
    Neither,
}

const MIB: f64 = 1024.0 * 1024.0;

/// All figures of a trial, phases first, in a stable order. Figures that are not a number are left out.
pub fn figures(trial: &Trial) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    for p in &trial.phases {
        // The rate of a single operation (an unmount) is just its time.
        if p.operations > 1 {
            all.push((format!("{}.ops_per_s", p.name), p.operations as f64 / p.seconds));
        }
        if p.bytes > 0 {
            all.push((format!("{}.mib_per_s", p.name), p.bytes as f64 / MIB / p.seconds));
        }
        all.push((format!("{}.seconds", p.name), p.seconds));
        all.extend(p.measures.iter().map(|(name, v)| (format!("{}.{name}", p.name), *v)));
    }
    all.extend(trial.measures.iter().map(|(name, v)| (name.clone(), *v)));
    if !trial.groups.is_empty() && !trial.measures.contains_key("groups_used") {
        all.push(("groups_used".into(), trial.groups.values().filter(|n| **n > 0).count() as f64));
    }
    for (operation, l) in trial.latency.iter().filter(|(_, l)| l.count > 0) {
        // Each with the number of samples that it requires.
        let parts = [
            ("mean_ns", l.mean_ns, 1),
            ("p50_ns", l.p50_ns as f64, 1),
            ("p90_ns", l.p90_ns as f64, 10),
            ("p99_ns", l.p99_ns as f64, 100),
            ("p999_ns", l.p999_ns as f64, 1000),
            ("max_ns", l.max_ns as f64, 1),
        ];
        let there = parts.into_iter().filter(|(_, _, least)| l.count >= *least);
        all.extend(there.map(|(part, v, _)| (format!("latency.{operation}.{part}"), v)));
    }
    all.retain(|(_, v)| v.is_finite());
    all
}

/// The figure that the verdict is based on: the rate of the headline phase, or its time if the phase counts nothing.
/// For a model, an exact count.
pub fn headline(trial: &Trial) -> String {
    let name = &trial.workload.headline;
    match trial.phase(name) {
        Some(p) if p.operations > 1 => format!("{name}.ops_per_s"),
        Some(p) if p.bytes > 0 => format!("{name}.mib_per_s"),
        None if trial.measures.contains_key(name) => name.clone(),
        _ => format!("{name}.seconds"),
    }
}

/// The figure that the verdict on these trials is based on: the time that their modelled devices took for the headline
/// phase, if all trials have one.
pub fn headline_of(trials: &[&Trial]) -> Option<String> {
    let first = trials.first()?;
    let device = |t: &&Trial| t.phase(&t.workload.headline).is_some_and(|p| p.measures.contains_key(DEVICE));
    Some(if trials.iter().all(device) { format!("{}.{DEVICE}", first.workload.headline) } else { headline(first) })
}

const DEVICE: &str = "device_seconds";

/// Suffixes of names whose higher values are better.
const HIGHER: &[&str] = &["_per_s", ".iops"];
/// Prefixes of such names: operations that a model completed in a given time.
const HIGHER_FROM: &[&str] = &["memcachetest_ops_"];

/// Figures that describe: a higher value is neither good nor bad. So are the allocator's counters, `mballoc_`, and the
/// costs of a modelled machine, `cost_`.
const NEITHER: &[&str] = &[
    "journal_commits",
    "journal_blocks_per_commit",
    "journal_handles",
    "es_hits",
    "es_shrinks",
    "es_reclaimed",
    "allocations",
    "blocks_allocated",
    "blocks_freed",
    "locality_preallocations",
    "files_left",
    "map_blocks",
    "entries_reclaimed",
    "belady_missed",
    "lookups_done",
    "entries_kept",
    "requests",
    "operations",
    "elapsed_ns",
    "kswapd_pages_reclaimed",
    "direct_pages_reclaimed",
];

/// The prefix of names of figures that a program printed.
const OF_PROGRAM: &str = "program.";
/// Suffixes of such names whose lower values are better: times and sizes. All others except rates have no direction,
/// because only the program's author knows it.
const LOWER_OF_PROGRAM: &[&str] = &["_ns", "_us", "_ms", "_s", "_seconds", "_bytes"];

/// The better direction, derived from the name of a figure. Unknown names are costs (memory, requests, waits): less is
/// better.
pub fn direction(name: &str) -> Direction {
    let higher = HIGHER.iter().any(|end| name.ends_with(end)) || HIGHER_FROM.iter().any(|from| name.starts_with(from));
    if higher && name != "memcachetest_ops_lost" {
        Direction::HigherIsBetter
    } else if NEITHER.contains(&name)
        || name.starts_with("mballoc_")
        || name.starts_with("cost_")
        || name.ends_with(".total_ios")
        || name.starts_with(OF_PROGRAM) && !LOWER_OF_PROGRAM.iter().any(|end| name.ends_with(end))
    {
        Direction::Neither
    } else {
        Direction::LowerIsBetter
    }
}

/// The unit of a figure: by the suffix of its name, else by the list of measures, else it is a count.
pub fn unit(name: &str) -> &'static str {
    const ENDINGS: &[(&str, &str)] = &[
        (".mib_per_s", "MiB/s"),
        ("_per_s", "1/s"),
        (".iops", "1/s"),
        (".seconds", "s"),
        ("_seconds", "s"),
        ("_s", "s"),
        ("_ns", "ns"),
        ("_us", "us"),
        ("_ms", "ms"),
        ("_bytes", "B"),
    ];
    let listed = || measure::ALL.iter().find(|m| m.name == name).map(|m| m.unit).filter(|unit| !unit.is_empty());
    let ending = ENDINGS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, unit)| *unit);
    ending.or_else(listed).unwrap_or("count")
}

/// Whether a figure counts work, so that the same work gives the same number on any machine.
pub fn is_count(name: &str) -> bool {
    unit(name) == "count"
        && !name.starts_with(OF_PROGRAM)
        && !name.starts_with("fio.")
        && !name.starts_with("switches_")
        && !name.ends_with("_per_request")
        || matches!(name, "device_read_bytes" | "device_write_bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests_support::trial;

    #[test]
    fn units() {
        for (name, is) in [
            ("work.ops_per_s", "1/s"),
            ("work.mib_per_s", "MiB/s"),
            ("unmount.seconds", "s"),
            ("cpu_user_s", "s"),
            ("read.device_seconds", "s"),
            ("latency.fsync.p99_ns", "ns"),
            ("memory_slab_bytes", "B"),
            ("device_write_bytes", "B"),
            ("device_writes", "count"),
            ("extents_per_file", "count"),
            ("of another program", "count"),
        ] {
            assert_eq!(unit(name), is, "{name}");
        }
        // A name whose suffix contradicts the unit in the list of measures would be misleading.
        for m in measure::ALL.iter().filter(|m| !m.unit.is_empty()) {
            assert_eq!(unit(m.name), m.unit, "{}", m.name);
        }
        assert!(is_count("journal_commits") && is_count("device_write_bytes"));
        assert!(!is_count("switches_voluntary") && !is_count("work.seconds") && !is_count("memory_slab_bytes"));
    }

    /// With 99 samples the 99th percentile is the maximum, and with 999 the 99.9th is.
    #[test]
    fn percentiles_take_samples() {
        let parts = |count| -> Vec<String> {
            let mut t = trial("engine:a", 0, 1.0);
            t.latency.get_mut("fsync").unwrap().count = count;
            let names = figures(&t).into_iter().filter_map(|(n, _)| Some(n.strip_prefix("latency.fsync.")?.to_owned()));
            names.collect()
        };
        assert!(parts(0).is_empty());
        assert_eq!(parts(9), ["mean_ns", "p50_ns", "max_ns"]);
        assert_eq!(parts(99), ["mean_ns", "p50_ns", "p90_ns", "max_ns"]);
        assert_eq!(parts(999), ["mean_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns"]);
        assert_eq!(parts(1000), ["mean_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"]);
    }

    #[test]
    fn directions() {
        assert_eq!(direction("write.ops_per_s"), Direction::HigherIsBetter);
        assert_eq!(direction("write.mib_per_s"), Direction::HigherIsBetter);
        assert_eq!(direction("write.seconds"), Direction::LowerIsBetter);
        assert_eq!(direction("memcachetest_ops_4055M"), Direction::HigherIsBetter);
        assert_eq!(direction("memcachetest_ops_lost"), Direction::LowerIsBetter);
        assert_eq!(direction("latency.fsync.p99_ns"), Direction::LowerIsBetter);
        assert_eq!(direction("switches_voluntary"), Direction::LowerIsBetter);
        assert_eq!(direction("journal_blocks_per_commit"), Direction::Neither);
        assert_eq!(direction("fio.a.read.iops"), Direction::HigherIsBetter);
        assert_eq!(direction("fio.a.read.clat_p99_ns"), Direction::LowerIsBetter);
        assert_eq!(direction("fio.a.read.total_ios"), Direction::Neither);
        assert_eq!(direction("program.requests_per_s"), Direction::HigherIsBetter);
        assert_eq!(direction("program.latency_us"), Direction::LowerIsBetter);
        assert_eq!(direction("program.score"), Direction::Neither, "only its author knows");
    }
}
