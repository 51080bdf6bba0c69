//! `extant man`: the manual pages, made from the command line's definition and the table of mount options.
//!
//! Main items: [`run`]; [`page`] makes one page, [`notes`] has the texts that no definition contains (files,
//! environment, see also).
//!
//! # Locking
//! None.

mod notes;
mod page;

use std::io::Write;
use std::path::Path;

use clap::{Command, CommandFactory};

use crate::args::{Cli, ManArgs, MountHelper};
use crate::failure::{Failure, Result};

pub fn run(args: &ManArgs) -> Result<()> {
    match &args.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|e| Failure::io(dir, e))?;
            let mut cli = built();
            cli.build();
            write_all(dir, &cli)?;
            write(dir, &MountHelper::command(), "8")
        }
        None => {
            std::io::stdout().write_all(page::of(&built(), "1")?.as_bytes())?;
            Ok(())
        }
    }
}

/// The command line, prepared for the pages.
fn built() -> Command {
    Cli::command().disable_help_subcommand(true)
}

/// Writes a page for each command and for its sub-commands.
fn write_all(dir: &Path, command: &Command) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_all(dir, below)?;
    }
    write(dir, command, "1")
}

fn write(dir: &Path, command: &Command, section: &str) -> Result<()> {
    let path = dir.join(format!("{}.{section}", page::name_of(command)));
    std::fs::write(&path, page::of(command, section)?).map_err(|e| Failure::io(&path, e))
}
