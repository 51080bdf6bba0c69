//! `extant lab list`.
//!
//! # Locking
//! None.

use std::io::Write;

use clap::Args;
use extant_block::device::DeviceModel;
use extant_lab::target::{self, Kind};
use extant_lab::{measure, model, timing, workload};

use super::replay_trace::failure;
use crate::failure::Result;

/// Workloads, models, targets, devices, policies and measures
#[derive(Args, Debug)]
#[command(after_help = "Example:
  extant lab list --parameters --scale 0.1")]
pub struct ListArgs {
    /// Show the parameters of the workloads, too
    #[arg(long)]
    pub parameters: bool,
    /// Scale of the parameters shown
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
}

pub fn run(args: &ListArgs) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "workloads (the parameters at scale 1.0 are those of the source):")?;
    for w in workload::all() {
        writeln!(out, "  {:12} {}", w.name(), w.summary())?;
        writeln!(out, "  {:12} from {}", "", w.source())?;
        if args.parameters {
            let parameters = w.parameters(args.scale);
            let values: Vec<String> = parameters.values().iter().map(|(n, v)| format!("{n}={v}")).collect();
            writeln!(out, "  {:12} {}", "", values.join(" "))?;
        }
    }
    writeln!(out, "\nmodels (one mechanism each; its policies compete):")?;
    for m in model::all() {
        writeln!(out, "  {:12} {}", m.name(), m.summary())?;
        if args.parameters {
            let parameters = m.parameters();
            let values: Vec<String> = parameters.values().iter().map(|(n, v)| format!("{n}={v}")).collect();
            writeln!(out, "  {:12} {}", "", values.join(" "))?;
        }
    }
    writeln!(out, "\ntargets (an image is made afresh for each trial, and checked after it):")?;
    for kind in Kind::ALL {
        writeln!(out, "  {}", kind.summary())?;
    }
    writeln!(out, "\ndevices (engine:IMAGE,device=NAME, replay-trace and check-time: what one would take):")?;
    for name in DeviceModel::names() {
        let model = timing::device(name).map_err(failure)?;
        writeln!(out, "  {name:12} {}", model.summary())?;
    }
    writeln!(out, "\npolicies (--policy NAME=a,b; of engine and mount; the default first):")?;
    for policy in target::policies() {
        writeln!(out, "  {}: {}", policy.option, policy.decides)?;
        for row in policy.default_first() {
            writeln!(out, "    {:15} {}", row.name, row.summary)?;
        }
    }
    writeln!(out, "\nmeasures (what a target cannot tell is left out):")?;
    for m in measure::ALL {
        let unit = if m.unit.is_empty() { String::new() } else { format!(" [{}]", m.unit) };
        writeln!(out, "  {:30} {}{unit}", m.name, m.summary)?;
    }
    writeln!(out, "  and: time of each phase, latency of each kind of operation, the lock table, blocks by group")?;
    Ok(())
}
