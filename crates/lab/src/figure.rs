//! The figures of a trial by name, and which direction of each is better.
//!
//! Main items: [`figures`], [`headline`], [`Direction`]. Names are stable and listed in docs/lab.md:
//!
//! - `PHASE.ops_per_s`, `PHASE.mib_per_s`, `PHASE.seconds` of each timed phase, absent where the phase did none of it
//!   (or a single operation);
//! - the names in [`Trial::measures`];
//! - `latency.OPERATION.mean_ns`, `.p50_ns`, `.p90_ns`, `.p99_ns`, `.p999_ns`, `.max_ns`;
//! - `groups_used`, counted from [`Trial::groups`] where it is not among the measures.
//!
//! It does not measure anything.
//!
//! # Locking
//! None.

use crate::result::Trial;

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    HigherIsBetter,
    LowerIsBetter,
    /// It describes, it does not judge.
    Neither,
}

const MIB: f64 = 1024.0 * 1024.0;

/// All figures of a trial, phases first, in a stable order. Those that are not a number are left out.
pub fn figures(trial: &Trial) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    for p in &trial.phases {
        // One operation (an unmount) is its time.
        if p.operations > 1 {
            all.push((format!("{}.ops_per_s", p.name), p.operations as f64 / p.seconds));
        }
        if p.bytes > 0 {
            all.push((format!("{}.mib_per_s", p.name), p.bytes as f64 / MIB / p.seconds));
        }
        all.push((format!("{}.seconds", p.name), p.seconds));
    }
    all.extend(trial.measures.iter().map(|(name, v)| (name.clone(), *v)));
    if !trial.groups.is_empty() && !trial.measures.contains_key("groups_used") {
        all.push(("groups_used".into(), trial.groups.values().filter(|n| **n > 0).count() as f64));
    }
    for (operation, l) in trial.latency.iter().filter(|(_, l)| l.count > 0) {
        let parts = [
            ("mean_ns", l.mean_ns),
            ("p50_ns", l.p50_ns as f64),
            ("p90_ns", l.p90_ns as f64),
            ("p99_ns", l.p99_ns as f64),
            ("p999_ns", l.p999_ns as f64),
            ("max_ns", l.max_ns as f64),
        ];
        all.extend(parts.map(|(part, v)| (format!("latency.{operation}.{part}"), v)));
    }
    all.retain(|(_, v)| v.is_finite());
    all
}

/// The figure that the verdict is about: the rate of the headline phase, or its time where nothing is counted. Of a
/// model, an exact count.
pub fn headline(trial: &Trial) -> String {
    let name = &trial.workload.headline;
    match trial.phase(name) {
        Some(p) if p.operations > 1 => format!("{name}.ops_per_s"),
        Some(p) if p.bytes > 0 => format!("{name}.mib_per_s"),
        None if trial.measures.contains_key(name) => name.clone(),
        _ => format!("{name}.seconds"),
    }
}

/// Endings of names of which more is better.
const HIGHER: &[&str] = &["_per_s"];

/// Figures that describe: more is neither good nor bad by itself. So are the allocator's counters, `mballoc_`.
const NEITHER: &[&str] = &[
    "journal_commits",
    "journal_blocks_per_commit",
    "journal_handles",
    "allocations",
    "blocks_allocated",
    "blocks_freed",
    "locality_preallocations",
    "files_left",
    "entries_reclaimed",
];

/// Which way is better, by the name of a figure. Unknown names are costs (memory, requests, waits): less is better.
pub fn direction(name: &str) -> Direction {
    if HIGHER.iter().any(|end| name.ends_with(end)) {
        Direction::HigherIsBetter
    } else if NEITHER.contains(&name) || name.starts_with("mballoc_") {
        Direction::Neither
    } else {
        Direction::LowerIsBetter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions() {
        assert_eq!(direction("write.ops_per_s"), Direction::HigherIsBetter);
        assert_eq!(direction("write.mib_per_s"), Direction::HigherIsBetter);
        assert_eq!(direction("write.seconds"), Direction::LowerIsBetter);
        assert_eq!(direction("latency.fsync.p99_ns"), Direction::LowerIsBetter);
        assert_eq!(direction("switches_voluntary"), Direction::LowerIsBetter);
        assert_eq!(direction("journal_blocks_per_commit"), Direction::Neither);
    }
}
