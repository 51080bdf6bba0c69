//! Reads and writes at a position with the functions of `std` that exist on every system: the engine
//! [`Engine::Portable`].
//!
//! It gives the same guarantees as the others with less: no O_DIRECT, no durable write (each FUA is a flush), no
//! discard, no holes.
//!
//! What it does not do: open and lock files, which depends on the system.
//!
//! [`Engine::Portable`]: super::Engine::Portable
//!
//! # Locking
//! None.

use std::fs::File;
use std::io;

use extant_base::task;

/// The name of the environment variable that chooses an engine: `portable` is the only value.
pub(super) const ENGINE: &str = "EXTANT_ENGINE";

/// Whether the environment selects this engine.
pub(super) fn is_asked_for() -> bool {
    std::env::var_os(ENGINE).is_some_and(|engine| engine == "portable")
}

#[cfg(unix)]
fn read_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buf, at)
}

#[cfg(windows)]
fn read_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buf, at)
}

#[cfg(unix)]
fn write_at(file: &File, data: &[u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::write_at(file, data, at)
}

#[cfg(windows)]
fn write_at(file: &File, data: &[u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_write(file, data, at)
}

/// Fills as much of `buf` as the file contains from byte `at` on. Returns the number of bytes.
pub(crate) fn read_some(file: &File, mut at: u64, mut buf: &mut [u8]) -> io::Result<usize> {
    let wanted = buf.len();
    while !buf.is_empty() {
        match read_at(file, buf, at) {
            Ok(0) => break,
            Ok(n) => {
                at += n as u64;
                buf = &mut buf[n..];
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(wanted - buf.len())
}

/// Fills `buf` from byte `at` of the file. The end of the file is an error, because a device has all of its bytes.
pub(crate) fn read_full(file: &File, at: u64, buf: &mut [u8]) -> io::Result<()> {
    task::before_sleep();
    let wanted = buf.len();
    if read_some(file, at, buf)? < wanted { Err(short_file()) } else { Ok(()) }
}

pub(super) fn short_file() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter than the device")
}

/// Writes the pieces one after the other from byte `at` on.
pub(crate) fn write_full(file: &File, mut at: u64, pieces: &[&[u8]]) -> io::Result<()> {
    for piece in pieces {
        let mut left = *piece;
        while !left.is_empty() {
            match write_at(file, left, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    at += n as u64;
                    left = &left[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// Makes everything durable that was written (fdatasync(2), F_FULLFSYNC on macOS, FlushFileBuffers on Windows).
pub(super) fn sync(file: &File) -> io::Result<()> {
    task::before_sleep();
    file.sync_data()
}
