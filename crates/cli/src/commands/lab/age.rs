//! `extant lab age`.
//!
//! # Locking
//! None.

use std::cell::RefCell;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use extant_block::device::DeviceModel;
use extant_lab::run::age::{Config, Point, age};
use extant_lab::target::same_file;
use indicatif::{ProgressBar, ProgressStyle};

use super::run::{failure, watch_signals};
use crate::failure::{Failure, Result};

/// Age an image: fill it with files, and delete, truncate and write until it has turned over
///
/// The engine runs in this process, and the image is kept for other work. After each half turnover the image is
/// unmounted, a line describes its layout (see `extant lab layout`), and it is mounted again. The same seed on copies
/// of an image leaves the same image. A workload other than `age` can also be run.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  truncate -s 16G aged.img && mke2fs -t ext3 aged.img
  extant lab age aged.img --fill 90 --turnovers 4 --seed 1 --json aged.ndjson
  extant lab run random-read --image aged.img -t engine:/var/tmp/e.img
  extant lab age set.img --workload ext3-2007 --scale 0.92 --store metadata

Parameters of the workload `age`: extant lab list --parameters.
Exit status: 0, 1 (usage; nothing was written), 8 (it failed), 130 (interrupted; the image is of no use).")]
pub struct AgeArgs {
    /// Image file, without a partition table; it is changed
    pub image: PathBuf,
    /// Percentage of its blocks that are in use, from 1 to 99 [default: 90]
    #[arg(long, value_name = "PERCENT")]
    pub fill: Option<u64>,
    /// How often as many bytes are rewritten as filled it [default: 4]
    #[arg(long, value_name = "N")]
    pub turnovers: Option<u64>,
    /// Workload to run on it; see `extant lab list`
    #[arg(long, value_name = "WORKLOAD", default_value = "age")]
    pub workload: String,
    /// Size of the work; 1: as in its source. `age` uses the image's size
    #[arg(short, long, default_value_t = 1.0)]
    pub scale: f64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Options of the engine, as after `engine:IMAGE,`; may be given several times
    #[arg(long = "option", value_name = "OPTION")]
    pub options: Vec<String>,
    /// Content to store in the image file: all, or only metadata, so that an image of any size fits
    #[arg(long, value_name = "WHAT", value_parser = ["all", "metadata"], default_value = "all")]
    pub store: String,
    /// At each line, check the image as Extant and e2fsck do (under strace), and print how long this device would take
    #[arg(long, value_name = "DEVICE", value_parser = PossibleValuesParser::new(DeviceModel::names()))]
    pub check_on: Option<String>,
    /// Another parameter of the workload
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    /// Also write each line's figures, and others, to FILE: one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Show no progress bar
    #[arg(short, long)]
    pub quiet: bool,
}

pub fn run(args: &AgeArgs) -> Result<()> {
    let stop = watch_signals()?;
    let own = [("fill", args.fill), ("turnovers", args.turnovers)];
    let own = own.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
    let check_on = args.check_on.as_deref().map(extant_lab::timing::device);
    let config = Config {
        image: args.image.clone(),
        workload: args.workload.clone(),
        scale: args.scale,
        settings: own.chain(args.settings.clone()).collect(),
        options: [&[format!("store={}", args.store)], &args.options[..]].concat(),
        seed: args.seed,
        check_on: check_on.transpose().map_err(|e| failure(e, &args.image))?,
    };
    if let Some(path) = args.json.as_ref().filter(|path| same_file(path, &args.image)) {
        return Err(Failure::usage(format!("--json {}: that is the image; name another file", path.display())));
    }
    // Created at the first point, so a refused run replaces no file.
    let mut json = None;
    let bar = progress(args.quiet);
    let written = RefCell::new(Ok(()));
    let mut first = true;
    let mut at = |point: &Point| {
        let done = bar.suspend(|| {
            if std::mem::take(&mut first) {
                header()?;
            }
            line(point)?;
            match &args.json {
                Some(path) => record(&mut json, path, point).map_err(|e| Failure::io(path, e)),
                None => Ok(()),
            }
        });
        done.map_err(|e| {
            let message = e.message.clone();
            *written.borrow_mut() = Err(e);
            extant_lab::Error::Failed(message)
        })
    };
    let result = age(&config, &stop, &mut at, &|what| bar.set_message(what.to_owned()));
    bar.finish_and_clear();
    written.into_inner()?;
    result.map_err(|e| match e {
        extant_lab::Error::Interrupted => {
            let ended = failure(e, &args.image);
            Failure { message: format!("interrupted: {} is unfinished; make it again", args.image.display()), ..ended }
        }
        extant_lab::Error::Operation { ref source, .. } => {
            let next = match source.exists() {
                true => "it was aged before; take a fresh one",
                false => "it is unfinished; make it again",
            };
            let failed = failure(e, &args.image);
            Failure { message: format!("{}: {}: {next}", args.image.display(), failed.message), ..failed }
        }
        e => failure(e, &args.image),
    })
}

fn header() -> Result<()> {
    writeln!(
        std::io::stdout(),
        "{:>10} {:>10} {:>9} {:>10} {:>9} {:>9} {:>9} {:>10} {:>11} {:>10} {:>9} {:>9}",
        "PHASE",
        "MAP BLOCKS",
        "RUNS",
        "RUNS/BLOCK",
        "JUMPS",
        "MAX/GROUP",
        "DIRS/RUNS",
        "FRAGMENTS",
        "FREE BLOCKS",
        "DEVICE [s]",
        "CHECK [s]",
        "E2FSCK"
    )?;
    Ok(())
}

fn line(point: &Point) -> Result<()> {
    let l = &point.layout;
    let seconds = |s: Option<&f64>| s.map_or_else(|| "-".to_owned(), |s| format!("{s:.3}"));
    let device = seconds(point.device.get("device_seconds"));
    let (extant, e2fsck) = (seconds(point.check.get("extant")), seconds(point.check.get("e2fsck")));
    writeln!(
        std::io::stdout(),
        "{:>10} {:>10} {:>9} {:>10.3} {:>9} {:>9} {:>9} {:>10.2} {:>11} {device:>10} {extant:>9} {e2fsck:>9}",
        point.phase,
        l.map_blocks,
        l.map_runs,
        l.map_runs_per_block,
        l.map_jumps,
        l.map_blocks_per_group_max,
        format!("{}/{}", l.directory_blocks, l.directory_runs),
        l.fragments_per_file,
        l.free_blocks
    )?;
    Ok(())
}

fn record(file: &mut Option<File>, path: &Path, point: &Point) -> std::io::Result<()> {
    let file = match file {
        Some(file) => file,
        none => none.insert(File::create(path)?),
    };
    let mut text = serde_json::to_string(point).map_err(std::io::Error::other)?;
    text.push('\n');
    file.write_all(text.as_bytes())
}

fn progress(quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(500));
    match ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
