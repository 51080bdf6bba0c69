//! `extant ln`: makes hard and symbolic links.
//!
//! # Locking
//! None.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use extant_fs::{Error, NewNode};

use super::verb::Images;
use crate::args::LnArgs;
use crate::failure::{Failure, Result};
use crate::owner::umask;
use crate::text::split_last;

pub fn run(args: &LnArgs, images: &mut Images) -> Result<()> {
    let mut link = images.file(&args.link)?;
    images.stop.check()?;
    let target = if args.symbolic { None } else { Some(images.file(&args.target)?) };
    if let Some(target) = &target
        && !Arc::ptr_eq(&target.fs, &link.fs)
    {
        return Err(Failure::op(format!("{}: a hard link cannot lead to another image", link.shown())));
    }
    if !args.no_dereference && link.as_dir().is_some() {
        let path = target.as_ref().map_or(args.target.as_bytes(), |t| &t.path);
        link = link.below(split_last(path).1);
    }
    let failed = |e| link.failed(e);
    let source = match &target {
        Some(target) => Some(target.walk(false)?),
        None => None,
    };
    if source.as_ref().is_some_and(|inode| inode.is_dir()) {
        return Err(Failure::op(format!("{}: cannot make a hard link to a directory", link.shown())));
    }
    let (dir, name) = link.parent_of_file()?;
    if args.force {
        match link.fs.lookup(&dir, name) {
            Ok(there) if source.as_ref().is_some_and(|inode| inode.ino == there.ino) => return Ok(()),
            Ok(there) if there.is_dir() => return Err(failed(Error::IsDirectory)),
            Ok(_) => link.fs.unlink(&dir, name).map_err(failed)?,
            Err(Error::NotFound) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    match source {
        Some(inode) => link.fs.link(&inode, &dir, name).map_err(failed),
        None => {
            let node = NewNode::symlink(args.target.as_bytes());
            images.owner(&args.owner).create(&link.fs, &dir, name, node, umask()).map(drop).map_err(failed)
        }
    }
}
