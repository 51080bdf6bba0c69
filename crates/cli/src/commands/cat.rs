//! `extant cat`: prints files.
//!
//! # Locking
//! None.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use extant_fs::Filesystem;
use extant_transfer::content::{self, TransferError};

use super::verb::Images;
use crate::args::CatArgs;
use crate::failure::{Failure, Report, Result};
use crate::image;
use crate::place::in_image;
use crate::rescued::{self, AccessKind, Tally};
use crate::text::Output;

pub fn run(args: &CatArgs, images: &mut Images) -> Result<()> {
    let (spec, paths) = in_image(&args.image, &args.paths);
    if paths.is_empty() {
        return Err(Failure::usage(format!("which files of {}?", spec.shown())));
    }
    let fs = images.image(&spec)?;
    let mut out = Output::new();
    let (mut report, mut tally) = (Report::default(), Tally::new(AccessKind::Read));
    for path in &paths {
        let printed = cat(&fs, path.as_bytes(), &mut out);
        if printed.is_ok() {
            tally.whole(rescued::id(&fs))
        } else {
            tally.hurt(rescued::id(&fs))
        }
        report.note(printed)?;
    }
    out.flush()?;
    tally.print(&fs);
    report.end()?;
    image::refuse_damage([&fs])
}

fn cat(fs: &Filesystem, path: &[u8], out: &mut Output) -> Result<()> {
    let failed = |e| image::at(fs, path, e);
    let inode = image::walk(fs, path, true).map_err(failed)?;
    let mut pos = 0;
    let read = content::read(fs, &inode, &mut |offset, data| {
        zeroes(out, offset - pos)?;
        pos = offset + data.len() as u64;
        Ok(out.write_all(data)?)
    });
    let missing = match read {
        Ok(missing) => missing,
        Err(TransferError::Write(e)) => return Err(e),
        Err(TransferError::Read(e)) => return Err(failed(e)),
    };
    zeroes(out, fs.getattr(&inode).size.saturating_sub(pos))?;
    match (missing, rescued::doubt(fs, &inode)) {
        (Some(missing), _) => Err(image::hurt(fs, path, &missing)),
        (None, Some(doubt)) => Err(failed(doubt.clone())),
        (None, None) => Ok(()),
    }
}

/// Prints a hole.
fn zeroes(out: &mut Output, mut len: u64) -> Result<()> {
    let zeroes = [0; 65536];
    while len > 0 {
        let n = len.min(zeroes.len() as u64);
        out.write_all(&zeroes[..n as usize])?;
        len -= n;
    }
    Ok(())
}
