//! `extant chown`: changes owners.
//!
//! # Locking
//! None.

use extant_fs::SetAttr;

use super::verb::{Images, each};
use crate::args::ChownArgs;
use crate::failure::Result;
use crate::image;

pub fn run(args: &ChownArgs, images: &mut Images) -> Result<()> {
    let owner = args.owner;
    // As chown(1): a link is followed, except in a recursive change.
    let follow = !args.no_dereference && !args.recursive;
    images.each(&args.paths, |images, file, report| {
        each(file, follow, args.recursive, &images.stop, report, |path, inode, _| {
            let set = SetAttr { uid: owner.uid, gid: owner.gid, ..SetAttr::default() };
            file.fs.setattr(inode, &set).map(drop).map_err(|e| image::at(&file.fs, path, e))
        })
    })
}
