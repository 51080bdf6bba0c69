//! `extant chmod`: changes modes.
//!
//! # Locking
//! None.

use extant_fs::SetAttr;
use extant_ondisk::inode::FileType;

use super::verb::{Images, each};
use crate::args::ChmodArgs;
use crate::failure::Result;
use crate::owner::umask;
use crate::{image, mode};

pub fn run(args: &ChmodArgs, images: &mut Images) -> Result<()> {
    let umask = umask();
    // An invalid mode fails before anything has changed.
    mode::apply(&args.mode, 0, umask)?;
    images.each(&args.paths, |images, file, report| {
        each(file, true, args.recursive, &images.stop, report, |path, inode, _| {
            if inode.file_type() == Some(FileType::Symlink) {
                return Ok(());
            }
            let mode = mode::apply(&args.mode, file.fs.getattr(inode).mode, umask)?;
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            file.fs.setattr(inode, &set).map(drop).map_err(|e| image::at(&file.fs, path, e))
        })
    })
}
