//! The record of one trial: a line of NDJSON with the figures and their whole origin.
//!
//! Main type: [`Trial`]. A directory of results has `trials.ndjson` (one line a trial, appended as each ends, so that
//! finished trials are usable when a run is cut off) and the files of a report. Fields have stable names; a change of
//! meaning raises [`SCHEMA`]. A measure that a target does not provide is absent, never zero.
//!
//! It does no statistics.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of the records. Results of different versions are not compared.
pub const SCHEMA: u32 = 1;

/// Name of the file in a directory of results.
pub const TRIALS: &str = "trials.ndjson";

/// One workload, run once by one contestant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// The workload.
    pub workload: WorkloadRun,
    /// The contestant.
    pub contestant: Contestant,
    /// The values of a sweep that this trial belongs to, by name; empty outside of a sweep's merged result.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub point: BTreeMap<String, String>,
    /// Round of the run, from 0. Trials of one round are paired in comparisons.
    pub round: u32,
    /// Place within its round, from 0, drawn from the run's seed.
    pub place: u32,
    /// Seconds since the epoch at the start.
    pub started_s: u64,
    /// Nanoseconds of the start, beside the seconds.
    #[serde(default)]
    pub started_ns: u32,
    /// The machine and the program, as far as a reader needs them.
    pub environment: Environment,
    /// The parts that were recorded beside the clock and the counters that always are, as `--record` names them.
    /// `None`: written before trials had this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
    /// Everything that shapes a trial of this run, by name. `None`: written before trials had this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Whether the figures may be used.
    pub outcome: Outcome,
    /// Differences from the workload's expectations, though nothing failed. Such trials are used, and the reader sees
    /// the flaws.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flaws: Vec<String>,
    /// The output of the user's program: its beginning and its end, if it was long.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Timed parts, in order.
    pub phases: Vec<Phase>,
    /// Latency of each kind of operation.
    pub latency: BTreeMap<String, Latency>,
    /// Figures by name (docs/lab.md lists names and units). Absent: the target does not provide them.
    pub measures: BTreeMap<String, f64>,
    /// Lock table of the target, the longest waits first. Empty: the target has none.
    #[serde(default)]
    pub locks: Vec<LockRow>,
    /// Blocks allocated in each block group, by group number.
    #[serde(default)]
    pub groups: BTreeMap<u32, u64>,
    /// Block groups of the first shared preallocations for small files, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<u32>,
}

/// The values that must be equal for trials to belong to one run: the workload with its parameters and seed, lists of
/// operations by their hash, the image, the recorded parts, the memory, the program. Contestants differ by their
/// labels, which have their options and policies.
pub type Identity = BTreeMap<String, String>;

/// A workload with the parameters of this run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadRun {
    /// Stable name (`extant lab list`).
    pub name: String,
    /// 1.0: the parameters of the workload's source.
    pub scale: f64,
    /// Seed of everything random in it.
    pub seed: u64,
    /// Parameters after scaling.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// Name of the phase that comparisons judge by default.
    pub headline: String,
}

/// A target with its options and policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contestant {
    /// Its name, or its kind and options, policies appended; no path but a directory's. Unique within a run.
    pub label: String,
    /// `engine`, `mount`, `kernel`, `fuse2fs`, `dir`.
    pub kind: String,
    /// Mount options as given.
    pub options: String,
    /// Policies chosen, by name.
    pub policies: BTreeMap<String, String>,
    /// The version of its own program, if it is not the one that measures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

/// The origin of the figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of Extant.
    pub version: String,
    /// Commit that the program was built from, `-modified` appended when files had changed; "unknown": not in a
    /// checkout.
    pub commit: String,
    /// How it was built: `release`, `debug`.
    #[serde(default)]
    pub profile: String,
    /// Versions of the tools that made, checked or served the image, by name.
    #[serde(default)]
    pub tools: BTreeMap<String, String>,
    /// When the kernel writes dirty pages back: `vm.dirty_*`.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// Limits of the control group that the command was given in, by file.
    #[serde(default)]
    pub cgroup: BTreeMap<String, String>,
    /// Processes that could run, on average over the minute before the trial.
    #[serde(default)]
    pub load: f64,
    /// Bytes of memory that its control group had (`--memory`). `None`: no limit of the lab's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Mount options as the kernel shows them; empty for the engine.
    #[serde(default)]
    pub mount_options: String,
    /// Directory that the command was given in.
    #[serde(default)]
    pub directory: String,
    /// `uname -r`.
    pub kernel: String,
    /// Model name of the processor.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: u32,
    /// Bytes of memory of the machine.
    pub memory_bytes: u64,
    /// File system and device under the image (or the directory).
    pub device: String,
    /// Command that made the image; empty for a directory.
    pub mkfs: String,
    /// Size of the image in bytes; 0 for a directory.
    pub image_bytes: u64,
    /// Features of the image, as dumpe2fs prints them.
    pub features: Vec<String>,
    /// The whole command line.
    pub command: Vec<String>,
}

/// Whether the figures may be used. Only `Checked` and `Unchecked` trials enter statistics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state", content = "why")]
pub enum Outcome {
    /// The workload ended and `e2fsck -fn` found nothing.
    Checked,
    /// The workload ended; there is no image to check.
    Unchecked,
    /// The workload or the check failed, and how.
    Failed(String),
}

/// A timed part of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Stable name within its workload.
    pub name: String,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Operations done (the workload says of which kind).
    pub operations: u64,
    /// Bytes of file data read or written.
    pub bytes: u64,
    /// Figures of a single phase: of the engine its processor time, write requests and flushes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measures: BTreeMap<String, f64>,
}

/// Distribution of the latency of one kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Samples.
    pub count: u64,
    /// Mean, in nanoseconds.
    pub mean_ns: f64,
    /// Median, in nanoseconds.
    pub p50_ns: u64,
    /// 90th percentile, in nanoseconds.
    pub p90_ns: u64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile, in nanoseconds.
    pub p999_ns: u64,
    /// Longest, in nanoseconds.
    pub max_ns: u64,
    /// The whole histogram: HdrHistogram V2, base64.
    pub histogram: String,
}

/// One row of the lock table, as `perf lock` prints it. Times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LockRow {
    /// Name of the lock's class.
    pub name: String,
    /// Times taken.
    pub acquired: u64,
    /// Times another thread held it.
    pub contended: u64,
    /// Mean wait of the contended ones.
    pub avg_wait_ns: f64,
    /// Sum of waits.
    pub total_wait_ns: u64,
    /// Longest wait.
    pub max_wait_ns: u64,
    /// Shortest wait.
    pub min_wait_ns: u64,
}

impl Trial {
    /// Whether the figures may be used.
    pub fn usable(&self) -> bool {
        !matches!(self.outcome, Outcome::Failed(_))
    }

    /// The phase of that name.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|p| p.name == name)
    }
}
