//! `extant mkdir`: makes directories.
//!
//! # Locking
//! None.

use extant_fs::{Error, NewNode, SetAttr};

use super::verb::{File, Images, Report};
use crate::args::MkdirArgs;
use crate::failure::Result;
use crate::mode;
use crate::owner::{Owner, umask};

pub fn run(args: &MkdirArgs, images: &mut Images) -> Result<()> {
    if let Some(mode) = &args.mode {
        // An invalid mode fails before anything has changed.
        mode::apply(mode, 0, 0)?;
    }
    let mut report = Report::default();
    for path in &args.paths {
        let file = images.file(path)?;
        images.stop.check()?;
        let made = one(args, &file, images.owner(&args.owner));
        report.note(made)?;
    }
    report.end()
}

fn one(args: &MkdirArgs, file: &File, owner: Owner) -> Result<()> {
    let failed = |e| file.failed(e);
    if args.parents && file.as_dir().is_some() {
        return Ok(());
    }
    if args.parents {
        let above = &file.path[..file.path.len() - trailing(&file.path)];
        owner.make_dirs(&file.fs, above, umask()).map_err(failed)?;
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

/// The length of a path's last name and the slashes around it.
fn trailing(path: &[u8]) -> usize {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let name = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    path.len() - name
}
