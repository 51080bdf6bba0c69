//! `extant cat`: prints files.
//!
//! # Locking
//! None.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use extant_fs::Filesystem;

use super::verb::Images;
use crate::args::CatArgs;
use crate::failure::{Failure, OPERATIONAL, Result, each};
use crate::image;
use crate::place::in_image;
use crate::text::Output;

const READ_BYTES: usize = 1 << 20;

pub fn run(args: &CatArgs, images: &mut Images) -> Result<()> {
    let (spec, paths) = in_image(&args.image, &args.paths);
    if paths.is_empty() {
        return Err(Failure::usage(format!("which files of {}?", spec.shown())));
    }
    let fs = images.image(&spec)?;
    let mut out = Output::new();
    let done = each(&paths, |path| cat(&fs, path.as_bytes(), &mut out))?;
    out.flush()?;
    if done { Ok(()) } else { Err(Failure::silent(OPERATIONAL)) }
}

fn cat(fs: &Filesystem, path: &[u8], out: &mut Output) -> Result<()> {
    let failed = |e| image::at(fs, path, e);
    let inode = fs.walk(path, true).map_err(failed)?;
    let mut buf = vec![0; READ_BYTES];
    let mut pos = 0;
    loop {
        let n = fs.read(&inode, pos, &mut buf).map_err(failed)?;
        if n == 0 {
            return Ok(());
        }
        out.write_all(&buf[..n])?;
        pos += n as u64;
    }
}
