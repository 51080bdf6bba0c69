//! `extant touch`: sets times, and makes files.
//!
//! # Locking
//! None.

use extant_fs::{Error, NewNode, SetAttr, SetTime};

use super::verb::{File, Images, Report, caller};
use crate::args::TouchArgs;
use crate::failure::Result;
use crate::when;

pub fn run(args: &TouchArgs, images: &mut Images) -> Result<()> {
    let time = match (&args.date, &args.stamp) {
        (Some(date), _) => when::date(date)?.map_or(SetTime::Now, SetTime::At),
        (None, Some(stamp)) => SetTime::At(when::digits(stamp)?),
        (None, None) => SetTime::Now,
    };
    let mut report = Report::default();
    for path in &args.paths {
        let file = images.file(path)?;
        images.stop.check()?;
        let touched = one(args, &file, time);
        report.note(touched)?;
    }
    report.end()
}

fn one(args: &TouchArgs, file: &File, time: SetTime) -> Result<()> {
    let failed = |e| file.failed(e);
    let inode = match file.fs.walk(&file.path, !args.no_dereference) {
        Err(Error::NotFound) if args.no_create || args.no_dereference => return Ok(()),
        Err(Error::NotFound) => {
            let (dir, name) = file.parent()?;
            file.fs.create(&dir, name, NewNode::file(0o666), caller()).map_err(failed)?
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
