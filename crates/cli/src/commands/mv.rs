//! `extant mv`: renames within an image.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_fs::{Error, RenameFlags};

use super::verb::{File, Images};
use crate::args::MvArgs;
use crate::failure::{Failure, Result};

pub fn run(args: &MvArgs, images: &mut Images) -> Result<()> {
    let Some((to, from)) = args.paths.split_last() else { return Err(Failure::usage("nothing to move")) };
    let to = images.file(to)?;
    let into_dir = !args.no_target_directory && to.as_dir().is_some();
    if from.len() > 1 && !into_dir {
        return Err(Failure::op(format!("{}: not a directory", to.shown())));
    }
    images.each(from, |_, source, _| one(args, source, &to, into_dir))
}

fn one(args: &MvArgs, source: &File, to: &File, into_dir: bool) -> Result<()> {
    if !Arc::ptr_eq(&source.fs, &to.fs) {
        return Err(Failure::op(format!(
            "{}: cannot move to another image: copy it with 'extant cp -a', then remove it with 'extant rm -r'",
            source.shown()
        )));
    }
    let name = source.name()?;
    let below;
    let target = if into_dir {
        below = to.below(name);
        &below
    } else {
        to
    };
    let (old_dir, old_name) = source.parent()?;
    let (new_dir, new_name) = target.parent()?;
    let moved = source.fs.lookup(&old_dir, old_name).map_err(|e| source.failed(e))?;
    for file in [source, target] {
        if file.path.ends_with(b"/") && !moved.is_dir() {
            return Err(file.failed(Error::NotDirectory));
        }
    }
    // As mv(1): for two names of one file, rename(2) would keep both and report success.
    if source.fs.lookup(&new_dir, new_name).is_ok_and(|there| there.ino == moved.ino) {
        if args.no_clobber {
            return Ok(());
        }
        return Err(Failure::op(format!("{} and {} are the same file", source.shown(), target.shown())));
    }
    let flags = RenameFlags { no_replace: args.no_clobber, ..RenameFlags::default() };
    match source.fs.rename(&old_dir, old_name, &new_dir, new_name, flags) {
        Err(Error::Exists) if args.no_clobber => return Ok(()),
        other => other.map_err(|e| target.failed(e))?,
    }
    if args.verbose {
        use std::io::Write;
        writeln!(std::io::stdout(), "renamed '{}' -> '{}'", source.shown(), target.shown())?;
    }
    Ok(())
}
