//! Images and mounted file systems.
//!
//! Main types: [`Image`], [`Fs`].
//!
//! # Locking
//! None.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use extant::{ExportOptions, OpenOptions, Severity};
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::raised;
use crate::files::{Names, RawFile, Stat, Time, stat};
use crate::paths::path;

/// An image and how it is to be used.
#[pyclass(frozen)]
pub struct Image(extant::Image);

/// Options of an image, as `extant.Image` has them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Options {
    partition: Option<u32>,
    offset: Option<u64>,
    read_only: bool,
    rescue: bool,
    owner: Option<(u32, u32)>,
    cache_bytes: Option<u64>,
    messages: Option<Py<PyAny>>,
}

fn configured(mut image: extant::Image, options: Options) -> PyResult<Image> {
    match (options.partition, options.offset) {
        (Some(_), Some(_)) => return Err(PyValueError::new_err("both a partition and an offset: choose one")),
        (Some(number), None) => image = image.partition(number),
        (None, Some(offset)) => image = image.offset(offset),
        (None, None) => {}
    }
    if options.read_only {
        image = image.read_only();
    }
    if options.rescue {
        image = image.rescue();
    }
    if let Some((uid, gid)) = options.owner {
        image = image.owner(uid, gid);
    }
    if let Some(bytes) = options.cache_bytes {
        image = image.cache_bytes(bytes);
    }
    if let Some(messages) = options.messages {
        image = image.messages(move |text| {
            Python::attach(|py| {
                if let Err(e) = messages.call1(py, (text,)) {
                    // There is no caller to whom it could go.
                    e.write_unraisable(py, None);
                }
            });
        });
    }
    Ok(Image(image))
}

#[pymethods]
impl Image {
    #[staticmethod]
    fn open(name: &[u8], options: Options) -> PyResult<Image> {
        configured(extant::Image::open(path(name)?), options)
    }

    #[staticmethod]
    fn memory(size: u64, options: Options) -> PyResult<Image> {
        configured(extant::Image::memory(size), options)
    }

    #[staticmethod]
    fn build(py: Python<'_>, tree: &[u8], image: &[u8], size: u64, time: i64) -> PyResult<()> {
        let (tree, image) = (path(tree)?, path(image)?);
        py.detach(|| extant::Image::build(tree, image, size, time)).map(drop).map_err(raised)
    }

    fn mount(&self, py: Python<'_>) -> PyResult<Fs> {
        py.detach(|| self.0.mount()).map(Fs).map_err(raised)
    }

    fn format(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.clone().format()).map(drop).map_err(raised)
    }

    /// Whether every pass ran, and for each problem whether it is damage, and its text.
    fn check(&self, py: Python<'_>) -> PyResult<(bool, Vec<(bool, String)>)> {
        let report = py.detach(|| self.0.check()).map_err(raised)?;
        let problems = report.findings.iter();
        let problems = problems.map(|f| (f.problem.severity() >= Severity::Damage, f.to_string())).collect();
        Ok((report.complete, problems))
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

/// A mounted file system.
#[pyclass(frozen)]
pub struct Fs(extant::Fs);

fn system_time((seconds, nanos): Time) -> PyResult<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let second = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    let time = second.and_then(|second| second.checked_add(Duration::from_nanos(nanos.into())));
    time.ok_or_else(|| PyOverflowError::new_err("no such time"))
}

#[pymethods]
impl Fs {
    fn name(&self) -> String {
        self.0.image().to_owned()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn unmount(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.clone().unmount()).map_err(raised)
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.sync()).map_err(raised)
    }

    /// In bytes: all, free, free for users without privilege; then files, and free ones.
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64, u64)> {
        let space = py.detach(|| self.0.space()).map_err(raised)?;
        Ok((space.total, space.free, space.available, space.files, space.files_free))
    }

    /// `how` has a letter for each permission: r, w, a (append), c (create), x (new), t (truncate).
    fn open(&self, py: Python<'_>, name: &[u8], how: &str, mode: u32) -> PyResult<RawFile> {
        let has = |letter: char| how.contains(letter);
        let mut options = OpenOptions::new();
        options.read(has('r')).write(has('w')).append(has('a')).create(has('c')).create_new(has('x'));
        options.truncate(has('t')).mode(mode);
        let name = path(name)?;
        py.detach(|| options.open(&self.0, name)).map(RawFile).map_err(raised)
    }

    fn stat(&self, py: Python<'_>, name: &[u8], follow: bool) -> PyResult<Stat> {
        let name = path(name)?;
        let found = py.detach(|| if follow { self.0.metadata(name) } else { self.0.symlink_metadata(name) });
        found.map(|m| stat(&m)).map_err(raised)
    }

    fn names(&self, py: Python<'_>, name: &[u8]) -> PyResult<Names> {
        let name = path(name)?;
        py.detach(|| self.0.read_dir(name)).map(Names).map_err(raised)
    }

    fn mkdir(&self, py: Python<'_>, name: &[u8], mode: u32) -> PyResult<()> {
        let name = path(name)?;
        let made = py.detach(|| {
            self.0.create_dir(name)?;
            if mode == 0o755 { Ok(()) } else { self.0.set_permissions(name, mode) }
        });
        made.map_err(raised)
    }

    fn makedirs(&self, py: Python<'_>, name: &[u8]) -> PyResult<()> {
        let name = path(name)?;
        py.detach(|| self.0.create_dir_all(name)).map_err(raised)
    }

    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8]) -> PyResult<()> {
        let (from, to) = (path(from)?, path(to)?);
        py.detach(|| self.0.rename(from, to)).map_err(raised)
    }

    fn remove(&self, py: Python<'_>, name: &[u8]) -> PyResult<()> {
        let name = path(name)?;
        py.detach(|| self.0.remove_file(name)).map_err(raised)
    }

    fn rmdir(&self, py: Python<'_>, name: &[u8]) -> PyResult<()> {
        let name = path(name)?;
        py.detach(|| self.0.remove_dir(name)).map_err(raised)
    }

    fn rmtree(&self, py: Python<'_>, name: &[u8]) -> PyResult<()> {
        let name = path(name)?;
        py.detach(|| self.0.remove_dir_all(name)).map_err(raised)
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], name: &[u8]) -> PyResult<()> {
        let (target, name) = (path(target)?, path(name)?);
        py.detach(|| self.0.symlink(target, name)).map_err(raised)
    }

    fn readlink<'py>(&self, py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let name = path(name)?;
        let target = py.detach(|| self.0.read_link(name)).map_err(raised)?;
        Ok(PyBytes::new(py, target.as_os_str().as_encoded_bytes()))
    }

    fn link(&self, py: Python<'_>, original: &[u8], name: &[u8]) -> PyResult<()> {
        let (original, name) = (path(original)?, path(name)?);
        py.detach(|| self.0.hard_link(original, name)).map_err(raised)
    }

    fn chmod(&self, py: Python<'_>, name: &[u8], mode: u32) -> PyResult<()> {
        let name = path(name)?;
        py.detach(|| self.0.set_permissions(name, mode)).map_err(raised)
    }

    fn chown(&self, py: Python<'_>, name: &[u8], uid: Option<u32>, gid: Option<u32>, follow: bool) -> PyResult<()> {
        let name = path(name)?;
        let done = py.detach(|| if follow { self.0.chown(name, uid, gid) } else { self.0.lchown(name, uid, gid) });
        done.map_err(raised)
    }

    fn utime(&self, py: Python<'_>, name: &[u8], accessed: Time, modified: Time) -> PyResult<()> {
        let (name, accessed, modified) = (path(name)?, system_time(accessed)?, system_time(modified)?);
        py.detach(|| self.0.set_times(name, Some(accessed), Some(modified))).map_err(raised)
    }

    fn getxattr<'py>(&self, py: Python<'py>, name: &[u8], attribute: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let name = path(name)?;
        let value = py.detach(|| self.0.get_xattr(name, attribute)).map_err(raised)?;
        Ok(PyBytes::new(py, &value))
    }

    fn setxattr(&self, py: Python<'_>, name: &[u8], attribute: &[u8], value: &[u8]) -> PyResult<()> {
        let name = path(name)?;
        py.detach(|| self.0.set_xattr(name, attribute, value)).map_err(raised)
    }

    fn removexattr(&self, py: Python<'_>, name: &[u8], attribute: &[u8]) -> PyResult<()> {
        let name = path(name)?;
        py.detach(|| self.0.remove_xattr(name, attribute)).map_err(raised)
    }

    fn listxattr<'py>(&self, py: Python<'py>, name: &[u8]) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let name = path(name)?;
        let names = py.detach(|| self.0.list_xattrs(name)).map_err(raised)?;
        Ok(names.iter().map(|name| PyBytes::new(py, name)).collect())
    }

    fn copy_in(&self, py: Python<'_>, host: &[u8], name: &[u8]) -> PyResult<()> {
        let (host, name) = (path(host)?, path(name)?);
        py.detach(|| self.0.copy_in(host, name)).map_err(raised)
    }

    fn copy_out(&self, py: Python<'_>, name: &[u8], host: &[u8]) -> PyResult<()> {
        let (host, name) = (path(host)?, path(name)?);
        py.detach(|| self.0.copy_out(name, host)).map_err(raised)
    }

    fn export(&self, py: Python<'_>, name: &[u8], to: Py<PyAny>) -> PyResult<()> {
        let name = path(name)?;
        let mut output = Output { to, failed: None };
        let done = py.detach(|| self.0.export(&mut output, &ExportOptions::new().path(name)));
        match (done, output.failed) {
            (Err(_), Some(e)) => Err(e),
            (done, _) => done.map_err(raised),
        }
    }
}

/// An object of Python with a method `write`, and the exception that it has raised.
struct Output {
    to: Py<PyAny>,
    failed: Option<PyErr>,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = Python::attach(|py| {
            let count = self.to.call_method1(py, "write", (PyBytes::new(py, bytes),))?;
            count.extract::<Option<usize>>(py)
        });
        match written {
            // An object that returns nothing has taken all.
            Ok(count) => Ok(count.map_or(bytes.len(), |count| count.min(bytes.len()))),
            Err(e) => {
                self.failed = Some(e);
                Err(io::Error::other("the output raised an exception"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
