//! `extant touch`: sets times, and makes files.
//!
//! # Locking
//! None.

use extant_base::clock::Clock;
use extant_fs::{Error, NewNode, SetAttr, SetTime};
use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;

use super::verb::{File, Images};
use crate::args::TouchArgs;
use crate::failure::Result;
use crate::owner::{Owner, umask};
use crate::source_date::SourceDate;
use crate::when;

pub fn run(args: &TouchArgs, images: &mut Images) -> Result<()> {
    let clock = SourceDate::from_environment()?.map_or_else(Clock::real, SourceDate::clock);
    let now = clock.wall();
    let now = Timestamp { seconds: now.sec, nanos: now.nsec };
    let time = match (&args.date, &args.stamp) {
        (Some(date), _) => when::date(date, now)?.map_or(SetTime::Now, SetTime::At),
        (None, Some(stamp)) => SetTime::At(when::digits(stamp)?),
        (None, None) => SetTime::Now,
    };
    images.each(&args.paths, |images, file, _| one(args, file, images.owner(&args.owner), time))
}

fn one(args: &TouchArgs, file: &File, owner: Owner, time: SetTime) -> Result<()> {
    let failed = |e| file.failed(e);
    let inode = match file.fs.walk(&file.path, !args.no_dereference) {
        Err(Error::NotFound) if args.no_create || args.no_dereference => return Ok(()),
        Err(Error::NotFound) => {
            let place = led_to(file)?;
            let (dir, name) = place.parent_of_file()?;
            owner.create(&file.fs, &dir, name, NewNode::file(0o666), umask()).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    let both = args.access == args.modification;
    let set = SetAttr {
        atime: (both || args.access).then_some(time),
        mtime: (both || args.modification).then_some(time),
        ..SetAttr::default()
    };
    file.fs.setattr(&inode, &set).map(drop).map_err(failed)
}

/// The file to create: if symbolic links lead to a missing file, their target.
fn led_to(file: &File) -> Result<File> {
    let mut path = file.path.clone();
    while let Some(link) = file.fs.walk(&path, false).ok().filter(|at| at.file_type() == Some(FileType::Symlink)) {
        let target = file.fs.read_link(&link).map_err(|e| file.failed(e))?;
        let dir = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
        path.truncate(if target.starts_with(b"/") { 0 } else { dir });
        path.extend_from_slice(&target);
    }
    Ok(File { fs: file.fs.clone(), path })
}
