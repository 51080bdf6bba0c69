//! Workloads: deterministic sequences of file operations, each with the parameters of its source and a scale.
//!
//! Main types: [`Workload`], [`Parameters`], [`Context`] (the tools of a running workload). There is one file per
//! workload; a new workload gets its own file and an entry in [`all`].
//!
//! The processes of a source are threads here. The operations of a process depend only on the seed, the phase and its
//! number: not on the target, nor on the other processes.
//!
//! # Locking
//! None.

mod age;
mod command;
mod context;
mod copy_beside;
mod ext3_2007;
mod fio_mix;
mod fsmark;
mod kernel_tree;
mod postmark;
mod random_read;
mod reaim_disk;
mod replay;
mod small_files;
mod stream;
mod tree;
mod untar;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::result::Trial;

pub(crate) use context::since;
pub use context::{Context, Place, Settled, Space};

/// The space that a workload needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Bytes of file data at the same time.
    pub bytes: u64,
    /// Files and directories at the same time.
    pub files: u64,
    /// The percentage of the image that it fills, whatever the image's size; `bytes` is then for an image of suitable
    /// size. 0 if it takes `bytes`.
    pub fill: u64,
    /// Whether the needs are a guess, because only the program's author knows them. They suit most programs, and a size
    /// that the user gives is accepted.
    pub guess: bool,
}

impl Needs {
    /// Bytes of file data at the same time in an image of `image_bytes` bytes.
    pub fn in_image(&self, image_bytes: u64) -> u64 {
        if self.fill == 0 { self.bytes } else { (image_bytes / 100).saturating_mul(self.fill) }
    }
}

/// Whether the headline of this trial, made by an older build, ends before its work is durable, while it now ends
/// afterwards. Those builds did not record the identity of their trials, and `untar` always waited.
pub fn ends_early(trial: &Trial) -> bool {
    let name = &trial.workload.name;
    let waits = || {
        let Ok(workload) = find(name) else { return false };
        let mut parameters = workload.parameters(trial.workload.scale);
        for (name, value) in &trial.workload.parameters {
            // Parameters that this build does not know do not matter here.
            let _ = parameters.set(&format!("{name}={value}"));
        }
        workload.durable(&parameters)
    };
    trial.identity.is_none() && name != "untar" && waits()
}

/// A sequence of operations. Implementations have no state: everything is derived from the parameters and the seed.
pub trait Workload: Send + Sync {
    /// Stable name.
    fn name(&self) -> &'static str;
    /// Its description, in one line.
    fn summary(&self) -> &'static str;
    /// The source of its parameters, in one line.
    fn source(&self) -> &'static str;
    /// The phase that comparisons judge.
    fn headline(&self) -> &'static str;
    /// The noun for an operation of a phase, for units: `files` a second.
    fn counted(&self, phase: &str) -> &'static str {
        let _ = phase;
        "operations"
    }
    /// The source's parameters at scale 1.0, and less at a smaller scale.
    fn parameters(&self, scale: f64) -> Parameters;
    /// Refuses invalid parameters, and names valid ones.
    fn check(&self, parameters: &Parameters) -> Result<()> {
        let _ = parameters;
        Ok(())
    }
    /// The space that it needs with these parameters.
    fn needs(&self, parameters: &Parameters) -> Needs;
    /// A scale at which a trial takes seconds, for `matrix`.
    fn small_scale(&self) -> f64 {
        0.02
    }
    /// The number of regular files with blocks in the image at the end; `None` if unknown in advance.
    fn leaves(&self, parameters: &Parameters) -> Option<u64> {
        let _ = parameters;
        None
    }
    /// Whether the headline's clock runs until the target is unmounted and its image durable. Otherwise a target could
    /// postpone the work, if no call makes it durable.
    fn durable(&self, parameters: &Parameters) -> bool {
        let _ = parameters;
        false
    }
    /// Whether it needs a target with a directory in the machine's file system.
    fn needs_directory(&self) -> bool {
        false
    }
    /// Runs it.
    fn run(&self, context: &mut Context<'_>) -> Result<()>;
}

/// Checks the inputs of a workload other than its parameters.
pub fn check_inputs(workload: &dyn Workload, operations: Option<&Path>) -> Result<()> {
    match (workload.name() == "replay", operations) {
        (true, Some(list)) => replay::check(list),
        (true, None) => Err(Error::Usage("replay needs a list: --operations FILE".into())),
        (false, Some(_)) => Err(Error::Usage(format!("{} reads no list of operations", workload.name()))),
        (false, None) => Ok(()),
    }
}

/// Every workload.
pub fn all() -> &'static [&'static dyn Workload] {
    &[
        &small_files::SmallFiles,
        &fio_mix::FioMix,
        &fsmark::FsMark,
        &reaim_disk::ReaimDisk,
        &untar::Untar,
        &kernel_tree::KernelTree,
        &stream::Stream,
        &copy_beside::CopyBeside,
        &random_read::RandomRead,
        &postmark::PostMark,
        &age::Age,
        &ext3_2007::Ext32007,
        &replay::Replay,
        &command::Command,
    ]
}

/// The workload called `name`.
pub fn find(name: &str) -> Result<&'static dyn Workload> {
    let found = all().iter().find(|w| w.name() == name).copied();
    found.ok_or_else(|| Error::unknown("workload", name, all().iter().map(|w| w.name())))
}

/// Parameters by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(BTreeMap<String, Value>);

impl Parameters {
    /// No parameters.
    pub fn new() -> Parameters {
        Parameters::default()
    }

    /// Adds a number.
    #[must_use]
    pub fn with(mut self, name: &str, value: u64) -> Parameters {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a word.
    #[must_use]
    pub fn with_text(mut self, name: &str, value: &str) -> Parameters {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a list of numbers.
    #[must_use]
    pub fn with_list(mut self, name: &str, values: &[u64]) -> Parameters {
        self.0.insert(name.to_owned(), values.into());
        self
    }

    /// A number; 0 if the parameter does not exist.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    /// A word; empty if the parameter does not exist.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A list of numbers.
    pub fn list(&self, name: &str) -> Vec<u64> {
        let values = self.0.get(name).and_then(Value::as_array);
        values.map_or_else(Vec::new, |v| v.iter().filter_map(Value::as_u64).collect())
    }

    /// Applies `NAME=VALUE`; lists are written as `1,2,3`.
    pub fn set(&mut self, setting: &str) -> Result<()> {
        let (name, value) =
            setting.split_once('=').ok_or_else(|| Error::Usage(format!("'{setting}' is not NAME=VALUE")))?;
        let known: Vec<String> = self.0.keys().cloned().collect();
        let Some(old) = self.0.get_mut(name) else {
            return Err(Error::unknown("parameter", name, known.iter().map(String::as_str)));
        };
        let numbers: Option<Vec<u64>> = value.split(',').map(|n| n.parse().ok()).collect();
        *old = match (&old, numbers.as_deref()) {
            (Value::Array(_), Some(numbers)) => numbers.into(),
            (Value::Number(_), Some([number])) => (*number).into(),
            (Value::String(_), _) => value.into(),
            _ => return Err(Error::Usage(format!("{name}: '{value}' is no number"))),
        };
        Ok(())
    }

    /// The values, as recorded in results.
    pub fn values(&self) -> &BTreeMap<String, Value> {
        &self.0
    }
}

/// `full` times `scale`, at least `least`.
pub(crate) fn scaled(full: u64, scale: f64, least: u64) -> u64 {
    ((full as f64 * scale).round() as u64).max(least)
}
