//! `extant lab report`.
//!
//! # Locking
//! None.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use extant_lab::report;

use crate::commands::lab::compare::failure;
use crate::failure::Result;
use crate::text::shown;

/// Write one HTML file with verdicts, curves, tables and the configuration
///
/// The file needs no network and runs no script.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant lab report result                (writes result/report.html)
  extant lab report result -o /tmp/r.html

Exit status: 0, 1 (usage), 8 (the result cannot be read).")]
pub struct ReportArgs {
    /// Directory or file of results
    pub result: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

pub fn run(args: &ReportArgs) -> Result<()> {
    let path = report::command(&args.result, args.output.as_deref()).map_err(failure)?;
    writeln!(std::io::stdout(), "{}", shown(path.as_os_str().as_bytes()))?;
    Ok(())
}
