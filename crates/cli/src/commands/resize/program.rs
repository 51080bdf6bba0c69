//! The arguments of resize2fs(8), for scripts that call it.
//!
//! Main function: [`run`]. It reports a change as `extant resize` does.
//!
//! What it does not do: `-b` and `-s`; use `extant tune -O 64bit` and `^64bit`.
//!
//! # Locking
//! None.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use extant_base::size;
use extant_image::probe;
use extant_repair::resize::{ShrinkTarget, shrink};

use super::room::Room;
use super::{FAILED, check_options};
use crate::args::{ImageArgs, ResizeArgs, ResizeProgram};
use crate::commands::change;
use crate::failure::{Failure, Result};
use crate::text::Output;

/// Whether `name` is a program that resizes file systems.
pub fn is_name(name: &str) -> bool {
    name == "resize2fs"
}

/// Runs under the name resize2fs.
pub fn run(program: ResizeProgram) -> Result<()> {
    if program.print_least {
        return print_least(&program).map_err(|e| e.with_status(FAILED));
    }
    let size = match &program.size {
        _ if program.least => "min".to_owned(),
        None => "max".to_owned(),
        Some(text) => bytes(&program, text).map_err(|e| e.with_status(FAILED))?.to_string(),
    };
    let ResizeProgram { image, undo_file, .. } = program;
    super::run(&ResizeArgs { image, size, undo_file, partition: None, offset: None })
}

/// The bytes of a size; a number alone counts blocks.
fn bytes(program: &ResizeProgram, text: &str) -> Result<u64> {
    let wrong = || Failure::op(format!("'{text}' is not a size (blocks, or with s, K, M, G or T)"));
    let number = |digits: &str| digits.parse::<u64>().ok();
    if let Some(sectors) = text.strip_suffix('s').and_then(number) {
        return sectors.checked_mul(512).ok_or_else(wrong);
    }
    let Some(blocks) = number(text) else {
        return size::parse(text).map_err(|_| wrong());
    };
    if Path::new(&program.image).is_dir() {
        return Err(Failure::op(format!("'{text}' blocks: the size of a mount has s, K, M, G or T")));
    }
    let image = open(program)?;
    let (sb, _) = probe(&*image.device)?;
    blocks.checked_shl(sb.block_bits).filter(|bytes| bytes >> sb.block_bits == blocks).ok_or_else(wrong)
}

fn open(program: &ResizeProgram) -> Result<Room> {
    let how = ImageArgs::default();
    Room::open(how.spec(&program.image), how)
}

fn print_least(program: &ResizeProgram) -> Result<()> {
    let image = open(program)?;
    change::refuse_unfinished(&*image.device, &image.spec)?;
    let (sb, _) = probe(&*image.device)?;
    let overlay = Arc::new(change::layers().over(image.device.clone()));
    let smaller = shrink(overlay, &check_options(), ShrinkTarget::Least)
        .map_err(|e| image.not_shrunk(&e, ShrinkTarget::Least))?;
    let least = smaller.map_or(sb.blocks_count, |smaller| smaller.after.blocks_count);
    let mut out = Output::new();
    // Scripts parse the text after the colon.
    writeln!(out, "Estimated minimum size of the filesystem: {least}")?;
    Ok(out.flush()?)
}
