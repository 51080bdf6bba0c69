//! `extant lab replay-trace`.
//!
//! # Locking
//! None.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use extant_block::device::{DeviceModel, Usage};
use extant_lab::timing;
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::size;

/// Show the time that a device would take for recorded requests
///
/// The file is the output of `strace -e trace=pread64` (also with -f, -y, -t), whose reads wait for each other, or of
/// tracefs' event block_rq_issue. Requests are served in the order of the file, but threads of a program one after the
/// other, on a simulated clock that only the requests advance.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strace -f -y -o trace -e trace=pread64 e2fsck -fn disk.img
  extant lab replay-trace trace --device hdd-2007 --size 16G --only $PWD/disk.img

On flash and net-5ms the times of events are lower bounds: a request that somebody waited
for counts as under way with the ones before it.
Devices: extant lab list. Hints (fadvise64, readahead) are passed over: what they announce is
read afterwards.
Exit status: 0, 1 (usage, or a line that is neither of the two), 8 (the file cannot be read).")]
pub struct ReplayTraceArgs {
    /// Recorded requests
    pub file: PathBuf,
    /// Device that serves the requests
    #[arg(short, long, value_name = "NAME", value_parser = PossibleValuesParser::new(DeviceModel::names()))]
    pub device: String,
    /// Size of the recorded device; requests behind its end are refused [default: the usual size of such devices]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub size: Option<u64>,
    /// Only requests to this file, as printed by strace -y, or to this device, MAJOR,MINOR
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &ReplayTraceArgs) -> Result<()> {
    let model = timing::device(&args.device).map_err(failure)?;
    let usage = timing::replay(&args.file, args.only.as_deref(), model.clone(), args.size).map_err(failure)?;
    let mut out = std::io::stdout().lock();
    match args.json {
        true => writeln!(out, "{:#}", as_json(&model, &usage))?,
        false => writeln!(out, "{}", in_words(&model, &usage))?,
    }
    Ok(())
}

/// The work of a device as a line of text.
pub fn in_words(model: &DeviceModel, usage: &Usage) -> String {
    let lost = match usage.turnaround_ns {
        0 => String::new(),
        ns => format!(" (of which {:.3} s are lost between read-ahead windows)", ns as f64 / 1e9),
    };
    format!(
        "{}: {:.3} s{lost}, {} requests, {} seeks, {} bytes read, {} bytes written",
        model.name(),
        usage.seconds(),
        usage.requests(),
        usage.seeks,
        usage.read_bytes,
        usage.write_bytes
    )
}

/// The work of a device as JSON.
pub fn as_json(model: &DeviceModel, usage: &Usage) -> Value {
    let mut value = json!({
        "device": model.name(),
        "device_read_bytes": usage.read_bytes,
        "device_write_bytes": usage.write_bytes,
        "device_turnaround_seconds": usage.turnaround_ns as f64 / 1e9,
    });
    for (name, n) in timing::figures(usage) {
        value[name] = n.into();
    }
    value
}

/// The exit status for an error of the lab.
pub fn failure(e: extant_lab::Error) -> Failure {
    if e.is_usage() { Failure::usage(e.to_string()) } else { Failure::op(e.to_string()) }
}
