//! `extant trim`: gives the host back the space that an image does not use.
//!
//! # Locking
//! None.

use std::io::Write;

use extant_base::size;

use super::verb::Images;
use crate::args::TrimArgs;
use crate::failure::{Failure, Result};
use crate::image::ImageSpec;
use crate::text::Output;

pub fn run(args: &TrimArgs, images: &mut Images) -> Result<()> {
    let spec = ImageSpec::parse(&args.image);
    let fs = images.image(&spec)?;
    let failed = |e: extant_fs::Error| Failure::op(format!("{}: not trimmed: {e}", spec.shown()));
    let bytes = fs.trim(args.start, args.length.unwrap_or(u64::MAX), args.minimum).map_err(failed)?;
    let mut out = Output::new();
    writeln!(out, "{}: {} ({bytes} bytes) trimmed", spec.shown(), size::human(bytes))?;
    Ok(out.flush()?)
}
