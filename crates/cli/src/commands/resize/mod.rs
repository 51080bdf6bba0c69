//! `extant resize`: makes a file system larger or smaller, and its image file with it; also as resize2fs.
//!
//! `extant_repair::resize` plans and verifies; this module chooses the size. [`room`] first makes file and partition
//! longer, and shorter again if the file system does not grow. After the file system has shrunk, it makes both shorter.
//! [`mounted`] asks the server of a mount.
//!
//! # Locking
//! None.

mod mounted;
mod program;
mod room;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::{size, task};
use extant_check::Options;
use extant_image::probe;
use extant_ondisk::growth::{Backups, target};
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_repair::resize::{CannotGrow, CannotShrink, Growth, NoGrowth, ShrinkTarget, grow, shrink};
use extant_repair::{Unsound, WriteMethod};

pub use self::program::{is_name, run as run_program};
use self::room::Room;
use super::change;
use crate::args::{ImageArgs, ResizeArgs};
use crate::failure::{Failure, Result, USAGE, warn};
use crate::text::{Output, argument, image_argument};

/// As in resize2fs, the status of every failure.
const FAILED: u8 = 1;

/// The requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    To(u64),
    More(u64),
    Max,
    Min,
}

impl Size {
    fn parse(text: &str) -> std::result::Result<Size, String> {
        match (text, text.strip_prefix('+')) {
            ("max", _) => Ok(Size::Max),
            ("min", _) => Ok(Size::Min),
            (_, Some(more)) => size::parse(more).map(Size::More),
            (text, None) => size::parse(text).map(Size::To),
        }
    }

    /// The size of the file system in bytes on a device of `device` bytes, if it has `now` bytes now.
    fn bytes(self, now: u64, device: u64) -> u64 {
        match self {
            Size::To(bytes) => bytes,
            Size::More(more) => now.saturating_add(more),
            Size::Max => device,
            Size::Min => 0,
        }
    }
}

pub fn run(args: &ResizeArgs) -> Result<()> {
    let size = Size::parse(&args.size).map_err(|e| Failure::new(USAGE, e))?;
    if Path::new(&args.image).is_dir() {
        return mounted::run(args, size);
    }
    let how = ImageArgs { partition: args.partition, offset: args.offset, ..ImageArgs::default() };
    let mut image = Room::open(how.spec(&args.image), how).map_err(|e| e.with_status(FAILED))?;
    resize(args, &mut image, size).map_err(|e| e.with_status(FAILED))
}

fn resize(args: &ResizeArgs, image: &mut Room, size: Size) -> Result<()> {
    change::refuse_elsewhere(&*image.device, &image.spec)?;
    change::refuse_unfinished(&*image.device, &image.spec)?;
    let name = image.spec.shown();
    let (sb, backup) = probe(&*image.device)?;
    if backup.is_some() {
        return Err(image.refusal(&CannotGrow::Damaged { first: "its superblock cannot be used".to_owned() }, 0));
    }
    let bytes = size.bytes(sb.blocks_count << sb.block_bits, image.longest());
    match size {
        Size::Min => return make_smaller(args, image, &sb, ShrinkTarget::Least),
        Size::To(_) if bytes < sb.blocks_count << sb.block_bits => {
            return make_smaller(args, image, &sb, ShrinkTarget::To(bytes));
        }
        _ => {}
    }
    let larger = target(&sb, bytes, Backups::Move).map_err(|e| image.refusal(&e.into(), bytes))?;
    if larger.blocks_count == sb.blocks_count {
        let mut out = Output::new();
        writeln!(out, "{name}: nothing to do: it has {}", described(sb.geometry()))?;
        return Ok(out.flush()?);
    }
    let bytes = larger.blocks_count << larger.block_bits;
    image.make(bytes, size == Size::Max)?;
    let check = check_options();
    let overlay = Arc::new(change::layers().over(image.device.clone()));
    match grow(overlay, &check, bytes) {
        Ok(Some(growth)) => {
            let said = image.settle().inspect_err(|_| drop(image.take_back()))?;
            write(args, image, &sb, &growth)?;
            report(&name, said)
        }
        Ok(None) => image.take_back(),
        Err(e) => {
            let failure = image.refusal(&e, bytes);
            image.take_back()?;
            Err(failure)
        }
    }
}

fn check_options() -> Options {
    Options { threads: task::processors(), now: Clock::real().wall().sec, ..Options::default() }
}

fn described(geo: &Geometry) -> String {
    shape(geo.blocks_count, geo.group_count, geo.block_size)
}

fn shape(blocks: u64, groups: u32, block_size: u32) -> String {
    let groups = if groups == 1 { "1 group".to_owned() } else { format!("{groups} groups") };
    let bytes = blocks.saturating_mul(block_size.into());
    format!("{blocks} blocks of {block_size} bytes in {groups} ({})", size::human(bytes))
}

/// Makes the file system smaller, then the file shorter if the file system reached to its end.
fn make_smaller(args: &ResizeArgs, image: &mut Room, sb: &SuperBlock, size: ShrinkTarget) -> Result<()> {
    let name = image.spec.shown();
    let check = check_options();
    let overlay = Arc::new(change::layers().over(image.device.clone()));
    let smaller = match shrink(overlay, &check, size) {
        Ok(Some(smaller)) => smaller,
        Ok(None) => {
            let mut out = Output::new();
            writeln!(out, "{name}: nothing to do: it has {}", described(sb.geometry()))?;
            return Ok(out.flush()?);
        }
        Err(e) => return Err(image.not_shrunk(&e, size)),
    };
    write(args, image, sb, &smaller)?;
    if args.undo_file.is_some() {
        // The old file system needs the blocks behind the new end.
        return report(&name, Some("the file stays as long as it is, for the old blocks".to_owned()));
    }
    let (bits, after) = (smaller.after.block_bits, smaller.after.blocks_count);
    let said = image.cut_off(after << bits, (smaller.before.blocks_count + 1) << bits)?;
    report(&name, said)
}

fn report(name: &str, said: Option<String>) -> Result<()> {
    let mut out = Output::new();
    if let Some(said) = said {
        writeln!(out, "{name}: {said}")?;
    }
    Ok(out.flush()?)
}

/// Writes the file system with its new size.
fn write(args: &ResizeArgs, image: &mut Room, old: &SuperBlock, growth: &Growth) -> Result<()> {
    let name = image.spec.shown();
    let wanted = args.undo_file.as_deref();
    let (written, record) = change::write(&image.spec, &image.device, &growth.outcome, wanted, false);
    let how = match (written, &record) {
        (Ok(how), _) => how,
        (Err(e), record) => {
            let message = if image.is_as_before(old) {
                image.take_back()?;
                format!("{name}: not resized: {e}; it is as it was")
            } else if let Some(record) = record {
                format!(
                    "{name}: the change may be written in part: {e}; '{}' brings back the state before it",
                    change::undo_command(record, &image.spec)
                )
            } else {
                let command = image_argument(&image.spec);
                format!(
                    "{name}: the change is in the journal, but not in its place: {e}; 'extant fsck -p {command}' puts it there"
                )
            };
            return Err(Failure::op(message));
        }
    };
    let mut out = Output::new();
    writeln!(out, "{name}: {} now; it had {}", described(&growth.after), described(&growth.before))?;
    if growth.renumbered > 0 {
        writeln!(out, "{name}: {} inodes have other numbers now: theirs were behind the end", growth.renumbered)?;
    }
    match (how, record) {
        (WriteMethod::Journal { blocks }, _) => {
            writeln!(out, "{name}: {blocks} old blocks changed as one transaction of the journal")?;
        }
        (_, Some(record)) if wanted.is_some() => {
            writeln!(out, "{name}: '{}' undoes it", change::undo_command(&record, &image.spec))?;
        }
        (_, Some(record)) => {
            if let Err(e) = std::fs::remove_file(&record) {
                warn(&format!("{}: not removed: {e}; nothing needs it any more", record.display()));
            }
        }
        (_, None) => {}
    }
    Ok(out.flush()?)
}

impl Room {
    /// Whether the image still has the old file system, with nothing to recover.
    fn is_as_before(&self, old: &SuperBlock) -> bool {
        let now = probe(&*self.device).ok().filter(|(_, backup)| backup.is_none());
        now.is_some_and(|(sb, _)| {
            sb.blocks_count == old.blocks_count
                && sb.needs_recovery() == old.needs_recovery()
                && extant_repair::unfinished(&*self.device).is_none()
        })
    }

    /// Why the file system does not shrink, and the next step.
    fn not_shrunk(&self, e: &CannotShrink, size: ShrinkTarget) -> Failure {
        let image = image_argument(&self.spec);
        let from = argument(&[b"image:", self.spec.source().as_os_str().as_bytes()].concat(), "");
        let next = match e {
            CannotShrink::Unsound(Unsound::Damaged { .. } | Unsound::Unchecked { .. }) => {
                format!("'extant fsck -fn {image}' shows more, and 'extant fsck -fy {image}' repairs it")
            }
            CannotShrink::Failed(_) | CannotShrink::Unsound(_) => "nothing was written".to_owned(),
            _ => {
                let size = if let ShrinkTarget::To(bytes) = size { bytes.to_string() } else { "auto".to_owned() };
                format!("'extant mkfs --from {from} --size {size} NEW' makes a new image of that size with its files")
            }
        };
        Failure::op(format!("{}: not shrunk: {e}; {next}", self.spec.shown()))
    }

    /// Why the file system does not grow, and the next step.
    fn refusal(&self, e: &CannotGrow, bytes: u64) -> Failure {
        let image = image_argument(&self.spec);
        let from = argument(&[b"image:", self.spec.source().as_os_str().as_bytes()].concat(), "");
        let next = match e {
            CannotGrow::Layout(why) if !matches!(why, NoGrowth::Smaller { .. }) => {
                format!("'extant mkfs --from {from} --size {bytes} NEW' makes a new image of that size with its files")
            }
            CannotGrow::Damaged { .. } | CannotGrow::Unchecked { .. } => {
                format!("'extant fsck -fn {image}' shows more, and 'extant fsck -fy {image}' repairs it")
            }
            _ => "nothing was written".to_owned(),
        };
        Failure::op(format!("{}: not grown: {e}; {next}", self.spec.shown()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_absolute_relative_or_all_there_is() {
        let bytes = |text: &str| Size::parse(text).map(|size| size.bytes(64 << 20, 1 << 30));
        assert_eq!(bytes("8G"), Ok(8 << 30));
        assert_eq!(bytes("+1M"), Ok(65 << 20));
        assert_eq!(bytes("max"), Ok(1 << 30));
        assert_eq!(bytes("min"), Ok(0));
        for wrong in ["", "+", "-1G", "8Q"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
