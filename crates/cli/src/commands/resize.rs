//! `extant resize`: makes a file system larger or smaller, and its image file with it.
//!
//! `extant_repair::resize` plans and proves; this module chooses the size, makes the file longer before, and shorter
//! again if the file system does not grow. After a shrinking it makes the file shorter.
//!
//! What it does not do: find the least size, move the end of a partition.
//!
//! # Locking
//! None.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::{size, task};
use extant_block::BlockDevice;
use extant_check::Options;
use extant_image::{Opened, probe};
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_repair::resize::{CannotGrow, CannotShrink, Growth, grow, shrink, target};
use extant_repair::{How, Unsound};

use super::change;
use crate::args::{ImageArgs, ResizeArgs};
use crate::failure::{Failure, Result, USAGE, warn};
use crate::image::{self, ImageSpec, Part};
use crate::text::{Output, argument};

/// As resize2fs: whatever fails.
const FAILED: u8 = 1;

/// The size that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    To(u64),
    More(u64),
    Max,
}

impl Size {
    fn parse(text: &str) -> std::result::Result<Size, String> {
        match (text, text.strip_prefix('+')) {
            ("max", _) => Ok(Size::Max),
            ("min", _) => {
                Err("'min': give a size; 'extant mkfs --from image:OLD --size auto NEW' makes the smallest image \
                               of the same files"
                    .to_owned())
            }
            (_, Some(more)) => size::parse(more).map(Size::More),
            (text, None) => size::parse(text).map(Size::To),
        }
    }

    /// Bytes of a file system on a device that has `now` bytes.
    fn bytes(self, now: u64, device: u64) -> u64 {
        match self {
            Size::To(bytes) => bytes,
            Size::More(more) => now.saturating_add(more),
            Size::Max => device,
        }
    }
}

/// An image, and the file that may become longer.
struct Image {
    spec: ImageSpec,
    how: ImageArgs,
    /// The part of the image, also if its name does not say it.
    part: Part,
    device: Arc<dyn BlockDevice>,
    /// The file's bytes, if they were changed.
    was_bytes: Option<u64>,
}

pub fn run(args: &ResizeArgs) -> Result<()> {
    let size = Size::parse(&args.size).map_err(|e| Failure::new(USAGE, e))?;
    let how = ImageArgs { partition: args.partition, offset: args.offset, ..ImageArgs::default() };
    let mut image = Image::open(how.spec(&args.image), how).map_err(|e| e.with_status(FAILED))?;
    resize(args, &mut image, size).map_err(|e| e.with_status(FAILED))
}

fn resize(args: &ResizeArgs, image: &mut Image, size: Size) -> Result<()> {
    change::refuse_unfinished(&*image.device, &image.spec)?;
    let name = image.spec.shown();
    let (sb, backup) = probe(&*image.device)?;
    if backup.is_some() {
        return Err(image.refusal(&CannotGrow::Damaged { first: "its superblock cannot be used".to_owned() }, 0));
    }
    let bytes = size.bytes(sb.blocks_count << sb.block_bits, image.device.size_bytes());
    if let Size::To(_) = size
        && bytes < sb.blocks_count << sb.block_bits
    {
        return make_smaller(args, image, &sb, bytes);
    }
    let larger = target(&sb, bytes).map_err(|e| image.refusal(&e, bytes))?;
    if larger.blocks_count == sb.blocks_count {
        let mut out = Output::new();
        writeln!(out, "{name}: nothing to do: it has {}", described(sb.geometry()))?;
        return Ok(out.flush()?);
    }
    let bytes = larger.blocks_count << larger.block_bits;
    image.make_room(bytes)?;
    let check = Options { threads: task::processors(), now: Clock::real().wall().sec, ..Options::default() };
    let overlay = Arc::new(change::layers().over(image.device.clone()));
    match grow(overlay, &check, bytes) {
        Ok(Some(growth)) => write(args, image, &sb, &growth),
        Ok(None) => image.take_room_back(),
        Err(e) => {
            let failure = image.refusal(&e, bytes);
            image.take_room_back()?;
            Err(failure)
        }
    }
}

fn described(geo: &Geometry) -> String {
    let (blocks, groups) = (geo.blocks_count, geo.group_count);
    let groups = if groups == 1 { "1 group".to_owned() } else { format!("{groups} groups") };
    format!("{blocks} blocks of {} bytes in {groups} ({})", geo.block_size, size::human(blocks << geo.block_bits))
}

/// Makes the file system smaller, then the file shorter if the file system reached to its end.
fn make_smaller(args: &ResizeArgs, image: &mut Image, sb: &SuperBlock, bytes: u64) -> Result<()> {
    let name = image.spec.shown();
    let check = Options { threads: task::processors(), now: Clock::real().wall().sec, ..Options::default() };
    let overlay = Arc::new(change::layers().over(image.device.clone()));
    let smaller = match shrink(overlay, &check, bytes) {
        Ok(Some(smaller)) => smaller,
        Ok(None) => {
            let mut out = Output::new();
            writeln!(out, "{name}: nothing to do: it has {}", described(sb.geometry()))?;
            return Ok(out.flush()?);
        }
        Err(e) => return Err(image.not_shrunk(&e, bytes)),
    };
    let ends_with_it = image.device.size_bytes() < (sb.blocks_count + 1) << sb.block_bits;
    write(args, image, sb, &smaller)?;
    if image.is_file() && ends_with_it {
        let start = if let Part::Offset(offset) = image.part { offset } else { 0 };
        let end = start + (smaller.after.blocks_count << smaller.after.block_bits);
        let file = OpenOptions::new().write(true).open(&image.spec.path);
        file.and_then(|file| file.set_len(end)).map_err(|e| Failure::io(&image.spec.path, e))?;
    }
    Ok(())
}

/// Writes the file system of another size.
fn write(args: &ResizeArgs, image: &mut Image, old: &SuperBlock, growth: &Growth) -> Result<()> {
    let name = image.spec.shown();
    let wanted = args.undo_file.as_deref();
    let (written, record) = change::write(&image.spec, &image.device, &growth.outcome, wanted, false);
    let how = match (written, &record) {
        (Ok(how), _) => how,
        (Err(e), record) => {
            let message = if image.is_as_before(old) {
                image.take_room_back()?;
                format!("{name}: not resized: {e}; it is as it was")
            } else if let Some(record) = record {
                format!(
                    "{name}: the change may be written in part: {e}; '{}' brings back the state before it",
                    change::undo_command(record, &image.spec)
                )
            } else {
                let command = argument(image.spec.path.as_os_str().as_bytes(), "");
                format!(
                    "{name}: the change is in the journal, but not in its place: {e}; 'extant fsck -p {command}' puts it there"
                )
            };
            return Err(Failure::op(message));
        }
    };
    let mut out = Output::new();
    writeln!(out, "{name}: {} now; it had {}", described(&growth.after), described(&growth.before))?;
    match (how, record) {
        (How::Journal { blocks }, _) => {
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

impl Image {
    fn open(spec: ImageSpec, how: ImageArgs) -> Result<Image> {
        let Opened { device, .. } = image::open(&spec, &how.access(false))?;
        let part = spec.canonical().part;
        Ok(Image { spec, how, part, device, was_bytes: None })
    }

    /// Whether the end of the file is the end of the file system's room.
    fn is_file(&self) -> bool {
        !self.spec.is_block_device() && !matches!(self.part, Part::Partition(_))
    }

    /// Makes the file longer, if the file system needs that.
    fn make_room(&mut self, bytes: u64) -> Result<()> {
        let there = self.device.size_bytes();
        if bytes <= there {
            return Ok(());
        }
        let name = self.spec.shown();
        if !self.is_file() {
            let what = if self.spec.is_block_device() { "the device" } else { "the partition" };
            return Err(Failure::op(format!(
                "{name}: not grown: {what} has {there} bytes, and {bytes} are needed; give max to fill it"
            )));
        }
        let start = if let Part::Offset(offset) = self.part { offset } else { 0 };
        let end = start.saturating_add(bytes);
        let file = OpenOptions::new().write(true).open(&self.spec.path);
        let longer = file.and_then(|file| {
            let was = file.metadata()?.len();
            file.set_len(end)?;
            self.was_bytes = Some(was);
            file.sync_all()
        });
        longer.map_err(|e| Failure::io(&self.spec.path, e))?;
        // The device has the size that the file had when it was opened.
        self.device = Arc::new(extant_block::device::MemDevice::new(0));
        match image::open(&self.spec, &self.how.access(false)) {
            Ok(opened) => self.device = opened.device,
            Err(e) => {
                self.take_room_back()?;
                return Err(e);
            }
        }
        Ok(())
    }

    /// Gives the file its old length again.
    fn take_room_back(&mut self) -> Result<()> {
        let Some(was) = self.was_bytes.take() else { return Ok(()) };
        let file = OpenOptions::new().write(true).open(&self.spec.path);
        file.and_then(|file| file.set_len(was)).map_err(|e| Failure::io(&self.spec.path, e))
    }

    /// Whether the image shows the file system that it had, with nothing to recover.
    fn is_as_before(&self, old: &SuperBlock) -> bool {
        let now = probe(&*self.device).ok().filter(|(_, backup)| backup.is_none());
        now.is_some_and(|(sb, _)| {
            sb.blocks_count == old.blocks_count
                && sb.needs_recovery() == old.needs_recovery()
                && extant_repair::unfinished(&*self.device).is_none()
        })
    }

    /// Why it does not shrink, and the way out.
    fn not_shrunk(&self, e: &CannotShrink, bytes: u64) -> Failure {
        let image = argument(self.spec.source().as_os_str().as_bytes(), "");
        let from = argument(&[b"image:", self.spec.source().as_os_str().as_bytes()].concat(), "");
        let next = match e {
            CannotShrink::Unsound(Unsound::Damaged { .. } | Unsound::Unchecked { .. }) => {
                format!("'extant fsck -fn {image}' shows more, and 'extant fsck -fy {image}' repairs it")
            }
            CannotShrink::Failed(_) | CannotShrink::Unsound(_) => "nothing was written".to_owned(),
            _ => {
                format!("'extant mkfs --from {from} --size {bytes} NEW' makes a new image of that size with its files")
            }
        };
        Failure::op(format!("{}: not shrunk: {e}; {next}", self.spec.shown()))
    }

    /// The reason, and the way out.
    fn refusal(&self, e: &CannotGrow, bytes: u64) -> Failure {
        let image = argument(self.spec.source().as_os_str().as_bytes(), "");
        let from = argument(&[b"image:", self.spec.source().as_os_str().as_bytes()].concat(), "");
        let next = match e {
            CannotGrow::DescriptorRoom { .. }
            | CannotGrow::BlockNumbers { .. }
            | CannotGrow::ResizeInode
            | CannotGrow::InodeNumbers { .. }
            | CannotGrow::Descriptors
            | CannotGrow::Tables
            | CannotGrow::Layout(_) => {
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
        for wrong in ["", "+", "min", "-1G", "8Q"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
