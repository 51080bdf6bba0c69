//! `extant mkdir`: makes directories.
//!
//! # Locking
//! None.

use extant_fs::{Error, NewNode, SetAttr};

use super::verb::{File, Images};
use crate::args::MkdirArgs;
use crate::failure::Result;
use crate::mode;
use crate::owner::{Owner, umask};
use crate::text::split_last;

pub fn run(args: &MkdirArgs, images: &mut Images) -> Result<()> {
    if let Some(mode) = &args.mode {
        // An invalid mode fails before anything has changed.
        mode::apply(mode, 0, 0)?;
    }
    images.each(&args.paths, |images, file, _| one(args, file, images.owner(&args.owner)))
}

fn one(args: &MkdirArgs, file: &File, owner: Owner) -> Result<()> {
    let failed = |e| file.failed(e);
    if args.parents && file.as_dir().is_some() {
        return Ok(());
    }
    if args.parents {
        owner.make_dirs(&file.fs, split_last(&file.path).0, umask()).map_err(failed)?;
    }
    let (dir, name) = file.parent()?;
    let inode = match owner.create(&file.fs, &dir, name, NewNode::directory(0o777), umask()) {
        Err(Error::Exists) if args.parents && file.as_dir().is_some() => return Ok(()),
        other => other.map_err(failed)?,
    };
    if let Some(mode) = &args.mode {
        // As mkdir(1): the umask does not apply to an explicit mode.
        let mode = mode::apply(mode, file.fs.getattr(&inode).mode, 0)?;
        file.fs.setattr(&inode, &SetAttr { mode: Some(mode), ..SetAttr::default() }).map_err(failed)?;
    }
    if args.verbose {
        use std::io::Write;
        writeln!(std::io::stdout(), "created directory '{}'", file.shown())?;
    }
    Ok(())
}
