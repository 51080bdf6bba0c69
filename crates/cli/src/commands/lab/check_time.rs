//! `extant lab check-time`.
//!
//! # Locking
//! None.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use clap::Args;
use clap::builder::PossibleValuesParser;
use extant_block::device::{DeviceModel, Locking};
use extant_lab::timing::{self, Checked};
use serde_json::json;

use super::replay_trace::{as_json, failure, in_words};
use super::run::{interrupted, watch_signals};
use crate::failure::{Result, warn};

/// Compute how long a device would take for a check of an image
///
/// The check is that of `extant fsck -fn`, in one thread, so that its requests have one order and the time is exact.
/// The time is that of the device alone, without the processor's work.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  extant lab check-time disk.img --device hdd-2007 --e2fsck

What a host loses between read-ahead windows (hdd-2007) is charged to e2fsck, which waits for
each read, and not to Extant's checker, which sends its reads without waiting; it is shown
apart. On flash and net-5ms Extant's time is a lower bound.
Devices: extant lab list.
Exit status: 0, 1 (usage), 8 (the check could not be made),
130 (interrupted).")]
pub struct CheckTimeArgs {
    /// Image file
    pub image: PathBuf,
    /// Device that serves the requests
    #[arg(short, long, value_name = "NAME", value_parser = PossibleValuesParser::new(DeviceModel::names()))]
    pub device: String,
    /// Also run e2fsck -fn under strace, and compute how long the device would take for it
    #[arg(long)]
    pub e2fsck: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &CheckTimeArgs) -> Result<()> {
    let model = timing::device(&args.device).map_err(failure)?;
    let lock = Locking::Required;
    let mut checks = vec![("extant", timing::check(&args.image, model.clone(), lock).map_err(failure)?)];
    if args.e2fsck {
        // From here on there is a temporary directory to remove.
        let stop = watch_signals()?;
        let checked = timing::e2fsck(&args.image, model.clone(), lock);
        if stop.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        checks.push(("e2fsck", checked.map_err(failure)?));
    }
    for (program, Checked { damaged, .. }) in &checks {
        if *damaged {
            warn(&format!("{}: {program} finds damage: of a sound image it reads other blocks", args.image.display()));
        }
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = checks.iter().map(|(program, checked)| ((*program).to_owned(), as_json(&model, &checked.usage)));
        writeln!(out, "{:#}", json!(all.collect::<serde_json::Map<_, _>>()))?;
        return Ok(());
    }
    for (program, checked) in &checks {
        writeln!(out, "{program}: {}", in_words(&model, &checked.usage))?;
    }
    Ok(())
}
