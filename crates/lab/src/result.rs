//! The record of one trial: a line of NDJSON with the figures and where they come from.
//!
//! Main type: [`Trial`]. A directory of results has `trials.ndjson` and the files of a report. A line is appended when
//! a trial ends, so finished trials are usable if a run is interrupted. Fields have stable names; a change of their
//! meaning increases [`SCHEMA`]. A measure that a target does not provide is absent, never zero.
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
    /// The values of a sweep that this trial belongs to, by name; empty outside the merged result of a sweep.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub point: BTreeMap<String, String>,
    /// Round of the run, from 0. Trials of one round are paired in comparisons.
    pub round: u32,
    /// The position within its round, from 0, drawn from the run's seed.
    pub place: u32,
    /// Seconds since the epoch at the start.
    pub started_s: u64,
    /// The nanosecond part of the start.
    #[serde(default)]
    pub started_ns: u32,
    /// The machine and the program, as far as a reader needs to know.
    pub environment: Environment,
    /// The optional parts that were recorded, as in `--record`. `None` if the trial is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
    /// Everything that affects a trial of this run, by name. `None` if the trial is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Whether the figures may be used.
    pub outcome: Outcome,
    /// Deviations from the workload's expectations, although nothing failed. Such trials are used, and the reader sees
    /// the flaws.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flaws: Vec<String>,
    /// The output of the user's program; its beginning and its end if it was long.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Timed parts, in order.
    pub phases: Vec<Phase>,
    /// Latency of each kind of operation.
    pub latency: BTreeMap<String, Latency>,
    /// Figures by name (docs/lab.md lists names and units). A figure is absent if the target does not provide it.
    pub measures: BTreeMap<String, f64>,
    /// The lock table of the target, longest waits first. Empty if the target has none.
    #[serde(default)]
    pub locks: Vec<LockRow>,
    /// Blocks allocated in each block group, by group number.
    #[serde(default)]
    pub groups: BTreeMap<u32, u64>,
    /// Block groups of the first shared preallocations for small files, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<u32>,
}

/// The values that must be equal for trials to belong to one run. They are the workload with its parameters and seed,
/// lists of operations by their hash, the image, the recorded parts, the memory, and the program. Contestants differ in
/// their labels, which include their options and policies.
pub type Identity = BTreeMap<String, String>;

/// A workload with the parameters of this run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadRun {
    /// Stable name (`extant lab list`).
    pub name: String,
    /// 1.0: the parameters of the workload's source.
    pub scale: f64,
    /// Seed of all random numbers in it.
    pub seed: u64,
    /// Parameters after scaling.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// Name of the phase that comparisons judge by default.
    pub headline: String,
}

/// A target with its options and policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contestant {
    /// Its name, or its kind and options followed by the policies; it contains no path except for a directory. Unique
    /// within a run.
    pub label: String,
    /// `engine`, `mount`, `kernel`, `fuse2fs`, `dir`.
    pub kind: String,
    /// Mount options as given.
    pub options: String,
    /// The chosen policies, by name.
    pub policies: BTreeMap<String, String>,
    /// The version of its own program, if that is not the measuring program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

/// The origin of the figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of Extant.
    pub version: String,
    /// The commit that the program was built from, with `-modified` if files had been changed; "unknown" outside a
    /// checkout.
    pub commit: String,
    /// The build profile: `release`, `debug`.
    #[serde(default)]
    pub profile: String,
    /// Versions of the tools that made, checked or served the image, by name.
    #[serde(default)]
    pub tools: BTreeMap<String, String>,
    /// The settings for writing back dirty pages: `vm.dirty_*`.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// Limits of the control group in which the command was run, by file.
    #[serde(default)]
    pub cgroup: BTreeMap<String, String>,
    /// The number of runnable processes, on average over the minute before the trial.
    #[serde(default)]
    pub load: f64,
    /// The memory limit of its control group (`--memory`), in bytes. `None` if the lab sets no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Mount options as the kernel shows them; empty for the engine.
    #[serde(default)]
    pub mount_options: String,
    /// The directory in which the command was run.
    #[serde(default)]
    pub directory: String,
    /// `uname -r`.
    pub kernel: String,
    /// Model name of the processor.
    pub cpu: String,
    /// The number of cores that this process may use.
    pub cores: u32,
    /// The memory of the machine, bytes.
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
    /// The workload or the check failed, with the reason.
    Failed(String),
}

/// A timed part of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Stable name within its workload.
    pub name: String,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Completed operations (the workload defines their kind).
    pub operations: u64,
    /// Bytes of file data read or written.
    pub bytes: u64,
    /// Figures of a single phase: for the engine, its processor time, write requests and flushes.
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
    /// How often it was acquired.
    pub acquired: u64,
    /// How often another thread held it.
    pub contended: u64,
    /// Mean wait of contended acquisitions.
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
