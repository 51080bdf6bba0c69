//! `extant rm`: removes files and directories.
//!
//! # Locking
//! None.

use extant_fs::Error;
use extant_fs::walk::{Visit, Walk};

use super::verb::{File, Images, Report};
use crate::args::RmArgs;
use crate::failure::{Failure, Result};
use crate::image;
use crate::text::shown;

pub fn run(args: &RmArgs, images: &mut Images) -> Result<()> {
    images.each(&args.paths, |images, file, report| one(args, file, images, report))
}

fn one(args: &RmArgs, file: &File, images: &Images, report: &mut Report) -> Result<()> {
    let name = file.name()?;
    let found = file.fs.walk_parent(&file.path).and_then(|(dir, name)| Ok((file.fs.lookup(&dir, name)?, dir)));
    let (inode, dir) = match found {
        Err(Error::NotFound) if args.force => return Ok(()),
        other => other.map_err(|e| file.failed(e))?,
    };
    if !inode.is_dir() {
        if file.path.ends_with(b"/") {
            return if args.force { Ok(()) } else { Err(file.failed(Error::NotDirectory)) };
        }
        file.fs.unlink(&dir, name).map_err(|e| file.failed(e))?;
        return say(args, &file.path);
    }
    if args.dir && !args.recursive {
        file.fs.rmdir(&dir, name).map_err(|e| file.failed(e))?;
        return say(args, &file.path);
    }
    if !args.recursive {
        return Err(Failure::op(format!("{}: is a directory (remove it with -r)", file.shown())));
    }
    let mut walk = Walk::new(&file.fs, &file.path, inode);
    while let Some(visit) = walk.next() {
        images.stop.check()?;
        // The starting point is not in a directory of the walk.
        let at = walk.dir().unwrap_or(&dir);
        let gone = match visit {
            Ok(Visit::Name(inode)) if inode.is_dir() => continue,
            Ok(Visit::Name(_)) => file.fs.unlink(at, walk.name()),
            Ok(Visit::Left(_)) => file.fs.rmdir(at, if walk.depth() == 0 { name } else { walk.name() }),
            Err(e) => Err(e),
        };
        let gone = gone.map_err(|e| image::at(&file.fs, walk.path(), e)).and_then(|()| say(args, walk.path()));
        report.note(gone)?;
    }
    Ok(())
}

fn say(args: &RmArgs, path: &[u8]) -> Result<()> {
    if args.verbose {
        use std::io::Write;
        writeln!(std::io::stdout(), "removed '{}'", shown(path))?;
    }
    Ok(())
}
