//! The space for a file system that changes its size: its image file, and its partition in the file.
//!
//! Main type: [`Room`]. Each change here leaves a valid partition table, even if it is interrupted.
//!
//! # Locking
//! None.

use std::fs::OpenOptions;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::{MemDevice, OffsetDevice};
use extant_image::{OpenImage, is_remote, partition_end, write_stages};
use extant_ondisk::partition::{CannotMove, PartitionEnd};

use crate::args::ImageArgs;
use crate::failure::{Failure, Result};
use crate::image::{self, ImageSpec, Part};

/// The space for a file system.
pub struct Room {
    pub spec: ImageSpec,
    how: ImageArgs,
    /// The part of the image, even if its name does not contain it.
    part: Part,
    /// The part with the file system.
    pub device: Arc<dyn BlockDevice>,
    partition: Option<Partition>,
    /// The old length of the file in bytes, if it was changed.
    was_bytes: Option<u64>,
}

/// A partition of an image file.
struct Partition {
    number: u32,
    whole: Arc<dyn BlockDevice>,
    /// The movable end of the partition, or why it cannot move.
    end: std::result::Result<PartitionEnd, CannotMove>,
    /// The length that it will have before the file system grows into it.
    planned: Option<u64>,
    /// The old length, once the table was changed.
    was_len: Option<u64>,
}

impl Room {
    /// Opens an image for writing.
    pub fn open(spec: ImageSpec, how: ImageArgs) -> Result<Room> {
        let OpenImage { device, .. } = image::open(&spec, &how.access(false))?;
        let part = spec.canonical().part;
        let mut room = Room { spec, how, part, device, partition: None, was_bytes: None };
        if let Part::Partition(number) = part
            && !room.spec.is_block_device()
        {
            // The kernel handles partitions of a device itself. In a file, the table can be changed.
            room.device = Arc::new(MemDevice::new(0));
            room.open_partition(number)?;
        }
        Ok(room)
    }

    fn open_partition(&mut self, number: u32) -> Result<()> {
        let whole = image::open_whole(&ImageSpec::whole(&self.spec.path), &self.how.access(false))?.device;
        self.device = extant_image::part_of_any(&whole, Part::Partition(number))?;
        let end = partition_end(&*whole, number);
        self.partition = Some(Partition { number, whole, end, planned: None, was_len: None });
        Ok(())
    }

    fn is_block_device(&self) -> bool {
        self.spec.is_block_device()
    }

    /// Whether the end of the file limits the space.
    fn is_file(&self) -> bool {
        !self.is_block_device() && self.partition.is_none() && !is_remote(&self.spec)
    }

    /// The maximum size of the file system, in bytes, without a longer file.
    pub fn longest(&self) -> u64 {
        match &self.partition {
            Some(Partition { whole, end: Ok(end), .. }) => end.longest(whole.size_bytes()),
            _ => self.device.size_bytes(),
        }
    }

    /// Makes the file longer, if a file system of `bytes` bytes needs that. Plans the partition's growth: to the end of
    /// the disk if `is_all`.
    pub fn make(&mut self, bytes: u64, is_all: bool) -> Result<()> {
        let there = self.device.size_bytes();
        if bytes <= there {
            return Ok(());
        }
        let name = self.spec.shown();
        let refused =
            |why: String| -> Result<()> { Err(Failure::op(format!("{name}: not grown: {why}; nothing was written"))) };
        let longest = self.longest();
        let Some(partition) = &mut self.partition else {
            if self.is_file() {
                return self.lengthen(self.start().saturating_add(bytes));
            }
            return Err(Failure::op(format!(
                "{name}: not grown: the device has {there} bytes, and {bytes} are needed; give max to fill it"
            )));
        };
        let end = match &partition.end {
            Ok(end) => end,
            Err(why) => return refused(why.to_string()),
        };
        let len = PartitionEnd::len_for(bytes).max(if is_all { longest } else { 0 });
        let device_len = end.device_len(len);
        if let Err(why) = end.moved(len, device_len) {
            return refused(why.to_string());
        }
        partition.planned = Some(len);
        if device_len > partition.whole.size_bytes() {
            if is_remote(&self.spec) {
                return refused(format!("the disk has {} bytes", partition.whole.size_bytes()));
            }
            return self.lengthen(device_len);
        }
        self.show_planned()
    }

    /// Makes the device of the file system's part reach to the planned end of the partition.
    fn show_planned(&mut self) -> Result<()> {
        if let Some(Partition { whole, end: Ok(end), planned: Some(len), .. }) = &self.partition {
            let part = OffsetDevice::new(whole.clone(), end.start, *len).map_err(extant_image::Error::from)?;
            self.device = Arc::new(part.named(self.device.name().to_owned()));
        }
        Ok(())
    }

    /// The byte of the image at which the file system begins; 0 if it is in a partition.
    fn start(&self) -> u64 {
        if let Part::Offset(offset) = self.part { offset } else { 0 }
    }

    /// Sets the length of the file, in bytes.
    fn lengthen(&mut self, bytes: u64) -> Result<()> {
        let file = OpenOptions::new().write(true).open(&self.spec.path);
        let longer = file.and_then(|file| {
            let was = file.metadata()?.len();
            file.set_len(bytes)?;
            self.was_bytes = Some(was);
            file.sync_all()
        });
        longer.map_err(|e| Failure::io(&self.spec.path, e))?;
        let opened = self.open_again();
        if opened.is_err() {
            self.take_back()?;
        }
        opened
    }

    /// Reopens the device, whose size is that of the file at the time of the open.
    fn open_again(&mut self) -> Result<()> {
        self.device = Arc::new(MemDevice::new(0));
        let Some(Partition { number, planned, .. }) = self.partition.take() else {
            self.device = image::open(&self.spec, &self.how.access(false))?.device;
            return Ok(());
        };
        self.open_partition(number)?;
        if let Some(partition) = &mut self.partition {
            partition.planned = planned;
        }
        self.show_planned()
    }

    /// Moves the end of the partition to its planned place, which the file system does not reach yet. Returns the line
    /// to report.
    pub fn settle(&mut self) -> Result<Option<String>> {
        let Some(Partition { number, whole, end: Ok(end), planned: Some(len), was_len }) = &mut self.partition else {
            return Ok(None);
        };
        let moved = end.moved(*len, end.device_len(*len));
        let moved = moved.map_err(|why| Failure::op(format!("{}: not grown: {why}", self.spec.shown())))?;
        write_stages(&**whole, &moved)?;
        *was_len = Some(end.len);
        Ok(Some(format!("partition {number} has {len} bytes now; it had {}", end.len)))
    }

    /// Restores the old lengths of partition and file.
    pub fn take_back(&mut self) -> Result<()> {
        if let Some(Partition { number, whole, was_len, .. }) = &mut self.partition
            && let Some(len) = was_len.take()
        {
            let end = partition_end(&**whole, *number);
            let device_len = self.was_bytes.unwrap_or(whole.size_bytes());
            let moved = end.and_then(|end| end.moved(len, device_len));
            // A partition that is longer than its file system is valid.
            let Ok(moved) = moved else { return Ok(()) };
            write_stages(&**whole, &moved)?;
        }
        let Some(was) = self.was_bytes.take() else { return Ok(()) };
        let file = OpenOptions::new().write(true).open(&self.spec.path);
        file.and_then(|file| file.set_len(was)).map_err(|e| Failure::io(&self.spec.path, e))
    }

    /// Shortens partition and file to a file system that now has `bytes` bytes. A file without partitions is shortened
    /// only if it has less than `reach` bytes, so that it contains nothing else. Returns the line to report.
    pub fn cut_off(&self, bytes: u64, reach: u64) -> Result<Option<String>> {
        let Some(Partition { number, whole, end, .. }) = &self.partition else {
            if self.is_file() && self.device.size_bytes() < reach {
                self.shorten(self.start() + bytes)?;
            }
            return Ok(None);
        };
        let end = match end {
            Ok(end) => end,
            Err(why) => return Ok(Some(format!("partition {number} stays as long as it is: {why}"))),
        };
        let len = PartitionEnd::len_for(bytes);
        if len >= end.len {
            return Ok(None);
        }
        let device_len = if is_remote(&self.spec) { whole.size_bytes() } else { end.device_len(len) };
        let moved = match end.moved(len, device_len) {
            Ok(moved) => moved,
            Err(why) => return Ok(Some(format!("partition {number} stays as long as it is: {why}"))),
        };
        write_stages(&**whole, &moved)?;
        let said = format!("partition {number} has {len} bytes now; it had {}", end.len);
        if device_len < whole.size_bytes() {
            self.shorten(device_len)?;
        }
        Ok(Some(said))
    }

    fn shorten(&self, bytes: u64) -> Result<()> {
        let file = OpenOptions::new().write(true).open(&self.spec.path);
        file.and_then(|file| file.set_len(bytes)).map_err(|e| Failure::io(&self.spec.path, e))
    }
}
