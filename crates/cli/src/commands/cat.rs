//! `extant cat`: prints files.
//!
//! # Locking
//! None.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use extant_fs::Filesystem;

use crate::args::CatArgs;
use crate::failure::{Failure, OPERATIONAL, Result};
use crate::image::{self, ImageSpec, open_image};
use crate::text::Output;

const READ_BYTES: usize = 1 << 20;

pub fn run(args: &CatArgs) -> Result<()> {
    let fs = open_image(&ImageSpec::parse(&args.image, args.partition.partition), true)?;
    let mut out = Output::new();
    let mut failed = false;
    for path in &args.paths {
        match cat(&fs, path.as_bytes(), &mut out) {
            Err(e) if e.status == OPERATIONAL => {
                e.print();
                failed = true;
            }
            other => other?,
        }
    }
    out.flush()?;
    if failed { Err(Failure::silent(OPERATIONAL)) } else { Ok(()) }
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
