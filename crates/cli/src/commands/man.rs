//! `extant man`: the manual pages.
//!
//! # Locking
//! None.

use std::io::Write;

use clap::CommandFactory;

use crate::args::{Cli, ManArgs, MountHelper};
use crate::failure::{Failure, Result};

pub fn run(args: &ManArgs) -> Result<()> {
    match &args.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|e| Failure::io(dir, e))?;
            clap_mangen::generate_to(Cli::command(), dir).map_err(|e| Failure::io(dir, e))?;
            let mut page = Vec::new();
            clap_mangen::Man::new(MountHelper::command()).section("8").render(&mut page)?;
            std::fs::write(dir.join("mount.fuse.extant.8"), page).map_err(|e| Failure::io(dir, e))
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
            Ok(())
        }
    }
}
