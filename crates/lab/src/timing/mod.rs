//! The time that a modelled device takes for recorded requests, or for a check.
//!
//! Main items: [`replay`] (a file of `strace` or tracefs on a device), [`check`] and [`e2fsck`] (a check of an image by
//! Extant's checker and by e2fsck), [`figures`] (the figures of a device, named as in [`crate::measure::ALL`]),
//! [`Trace`] (the requests of such a file). The models are `extant_block`'s.
//!
//! # Locking
//! None.

mod page_cache;
#[cfg(test)]
mod tests;
mod trace;

use std::path::Path;
use std::sync::Arc;

use extant_block::device::{Arrival, DeviceModel, Engine, FileDevice, Locking, OpenOptions, TimedDevice, Timer, Usage};
use extant_block::{BioOp, BlockDevice};

use page_cache::PageCache;
pub use trace::{Request, Trace};

use crate::error::{Error, Result};
use crate::measure::Figures;
use crate::target::{Tool, find, one_line};

/// The device model with this name.
///
/// # Errors
/// There is no such model; the error has the known names.
pub fn device(name: &str) -> Result<DeviceModel> {
    DeviceModel::named(name).map_err(Error::Usage)
}

/// The figures of a device, by name.
pub fn figures(usage: &Usage) -> Figures {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let named = [
        ("device_seconds", usage.seconds()),
        ("device_read_seconds", seconds(usage.read_ns)),
        ("device_write_seconds", seconds(usage.write_ns)),
        ("device_flush_seconds", seconds(usage.flush_ns)),
        ("device_requests", usage.requests() as f64),
        ("device_seeks", usage.seeks as f64),
    ];
    named.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
}

/// Serves the requests of a recorded trace in order; `size`: the size of the device, if it differs from the model's
/// capacity.
///
/// # Errors
/// The trace cannot be read, or a request is beyond the end of the device.
pub fn replay(path: &Path, only: Option<&str>, model: DeviceModel, size: Option<u64>) -> Result<Usage> {
    let trace = Trace::read(path, only)?;
    replay_on(&trace, model, size)
}

/// As [`replay`], for a trace that has already been read.
///
/// # Errors
/// A request is beyond the end of the device.
pub fn replay_on(trace: &Trace, model: DeviceModel, size: Option<u64>) -> Result<Usage> {
    let size = size.unwrap_or(model.capacity());
    let mut timer = Timer::new(model, size);
    let mut memory = PageCache::default();
    for request in &trace.requests {
        if request.offset.checked_add(request.len).is_none_or(|end| end > size) {
            return Err(Error::Usage(format!(
                "{}:{}: {} of {} bytes at byte {} lies behind the end of the device ({size} bytes); give its size with --size",
                trace.name, request.line, request.op, request.len, request.offset
            )));
        }
        if request.flushes_first {
            timer.flush();
        }
        match request.op {
            // A program's system call, not a request of the host's driver.
            BioOp::Read if request.arrival == Arrival::ReadAhead => {
                let parts = memory.read(request.offset, request.len);
                parts.into_iter().for_each(|(offset, len)| timer.read(offset, len, request.arrival));
            }
            BioOp::Read => timer.read(request.offset, request.len, request.arrival),
            BioOp::Write | BioOp::WriteZeroes => timer.write(request.offset, request.len, request.arrival),
            BioOp::Flush => timer.flush(),
            BioOp::Discard => {}
        }
        if request.is_durable {
            timer.flush();
        }
    }
    Ok(timer.usage())
}

/// A timed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The device's figures.
    pub usage: Usage,
    /// Whether the image is damaged, so that this was not the check of a valid image.
    pub damaged: bool,
}

/// Checks an image with Extant's checker, in one thread: its requests then have one order, and the time is exact. Holes
/// of the image file are read, because a disk has none. No process may write to the image meanwhile; `lock` or the
/// caller must ensure that.
///
/// # Errors
/// It cannot be opened, is in use, or has no superblock.
pub fn check(image: &Path, model: DeviceModel, lock: Locking) -> Result<Checked> {
    let failed = |e: &dyn std::fmt::Display| Error::Failed(format!("{}: {e}", image.display()));
    let timed = Arc::new(TimedDevice::new(Arc::new(look(image, lock)?), model));
    let device: Arc<dyn BlockDevice> = timed.clone();
    let report = extant_check::check(&device, &extant_check::Options::default()).map_err(|e| failed(&e))?;
    if !report.complete {
        return Err(failed(&"it could not be checked; \"extant fsck -fn\" says why"));
    }
    Ok(Checked { usage: timed.usage(), damaged: report.is_damaged() })
}

fn look(image: &Path, lock: Locking) -> Result<FileDevice> {
    let open = OpenOptions { engine: Engine::Psync, lock, ..OpenOptions::read_only() };
    FileDevice::open(image, open).map_err(|e| Error::Failed(e.to_string()))
}

/// Checks an image with `e2fsck -fn`, and serves its reads of the image; `lock` as in [`check`].
///
/// # Errors
/// `strace` or `e2fsck` is missing, the image is in use, or the check could not be made.
pub fn e2fsck(image: &Path, model: DeviceModel, lock: Locking) -> Result<Checked> {
    for (tool, package) in [("strace", "strace"), ("e2fsck", "e2fsprogs")] {
        if find(tool).is_none() {
            let image = image.display();
            return Err(Error::Failed(format!("{image}: {tool} is missing; install the package {package}")));
        }
    }
    let image = image.canonicalize().map_err(Error::file(image))?;
    // Its lock is held until e2fsck has ended.
    let held = look(&image, lock)?;
    let dir = tempfile::Builder::new().prefix("extant-lab-").tempdir().map_err(Error::file(&std::env::temp_dir()))?;
    let path = dir.path().join("trace");
    let strace = Tool::new("strace").args(["-f", "-y", "-s", "0", "-e", "trace=pread64", "-o"]).arg(&path);
    let (status, said, command) = strace.args(["e2fsck", "-fn"]).arg(&image).status()?;
    let damaged = match status {
        Some(0) => false,
        Some(4) => true,
        _ => return Err(Error::Tool { command, output: one_line(&said) }),
    };
    let usage = replay(&path, Some(&image.to_string_lossy()), model, Some(held.size_bytes()))?;
    Ok(Checked { usage, damaged })
}
