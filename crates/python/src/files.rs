//! Open files and listings.
//!
//! Main types: [`RawFile`], [`Names`].
//!
//! # Locking
//! None.

use extant::{File, FileType, Metadata, ReadDir};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::raised;

/// Seconds since 1970, and nanoseconds of the second.
pub type Time = (i64, u32);

/// `st_mode`, inode, names, owner, group, bytes, units of 512 bytes, three times, the creation, the device.
pub type Stat = (u32, u64, u32, u32, u32, u64, u64, (Time, Time, Time), Option<Time>, Option<(u32, u32)>);

/// The bits of `st_mode` for a kind of file.
fn kind_bits(kind: FileType) -> u32 {
    match kind {
        FileType::Fifo => 0o010_000,
        FileType::CharDevice => 0o020_000,
        FileType::Dir => 0o040_000,
        FileType::BlockDevice => 0o060_000,
        FileType::File => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
        _ => 0,
    }
}

fn time(t: std::time::SystemTime) -> Time {
    let whole = |d: std::time::Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    match t.duration_since(std::time::UNIX_EPOCH) {
        Ok(after) => (whole(after), after.subsec_nanos()),
        Err(e) => match e.duration().subsec_nanos() {
            0 => (-whole(e.duration()), 0),
            nanos => (-whole(e.duration()) - 1, 1_000_000_000 - nanos),
        },
    }
}

pub fn stat(m: &Metadata) -> Stat {
    (
        kind_bits(m.file_type()) | m.mode(),
        m.ino(),
        m.nlink(),
        m.uid(),
        m.gid(),
        m.len(),
        m.blocks(),
        (time(m.accessed()), time(m.modified()), time(m.changed())),
        m.created().map(time),
        m.device(),
    )
}

/// An open file.
#[pyclass(frozen)]
pub struct RawFile(pub File);

#[pymethods]
impl RawFile {
    fn read_at<'py>(&self, py: Python<'py>, size: usize, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let read = py.detach(|| {
            // Python may ask for more than there is, and no memory is taken for that.
            let rest = self.0.metadata()?.len().saturating_sub(offset);
            let mut bytes = vec![0; size.min(usize::try_from(rest).unwrap_or(usize::MAX))];
            let n = self.0.read_at(&mut bytes, offset)?;
            bytes.truncate(n);
            Ok(bytes)
        });
        Ok(PyBytes::new(py, &read.map_err(raised)?))
    }

    fn write_at(&self, py: Python<'_>, data: &[u8], offset: u64) -> PyResult<usize> {
        // Bytes cannot be changed, so other threads may run meanwhile.
        py.detach(|| self.0.write_at(data, offset)).map_err(raised)
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.0.metadata()).map(|m| m.len()).map_err(raised)
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        py.detach(|| self.0.metadata()).map(|m| stat(&m)).map_err(raised)
    }

    fn set_len(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        py.detach(|| self.0.set_len(size)).map_err(raised)
    }

    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        py.detach(|| if data_only { self.0.sync_data() } else { self.0.sync_all() }).map_err(raised)
    }
}

/// The names in a directory, some at a time: name, inode, and the bits of `st_mode` for the kind.
#[pyclass]
pub struct Names(pub ReadDir);

/// Names per call.
const BATCH: usize = 256;

#[pymethods]
impl Names {
    /// The next names; none at the end.
    fn next_batch<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyBytes>, u64, u32)>> {
        let listing = &mut self.0;
        let found: Result<Vec<_>, _> = py.detach(|| listing.by_ref().take(BATCH).collect());
        let found = found.map_err(raised)?;
        Ok(found
            .iter()
            .map(|e| {
                let name = PyBytes::new(py, e.file_name().as_encoded_bytes());
                (name, e.ino(), e.file_type().map_or(0, kind_bits))
            })
            .collect())
    }
}
