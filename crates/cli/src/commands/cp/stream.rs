//! `-` as source or destination: standard input and output.
//!
//! # Locking
//! None.

use std::io::{Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;
use rustix::fs::Mode;
use rustix::process::{getegid, geteuid, umask};

use super::inside::ImageSource;
use super::side::{Node, Sink, Source};
use super::{CHUNK_BYTES, Images};
use crate::failure::{Failure, OPERATIONAL, Result, each};
use crate::place::Place;
use crate::text::Output;

/// Prints files of images, one after the other.
pub fn out(from: &[Place], images: &mut Images) -> Result<()> {
    let mut out = Output::new();
    let done = each(from, |place| match place {
        Place::Inside(spec, path) => images.get(spec).and_then(|fs| print(&ImageSource::new(fs), path, &mut out)),
        Place::Local(_) => Ok(()),
    })?;
    out.flush()?;
    if done { Ok(()) } else { Err(Failure::silent(OPERATIONAL)) }
}

fn print(source: &ImageSource, path: &[u8], out: &mut Output) -> Result<()> {
    let at = || source.show(path);
    let file = source.top(path, true).map_err(|e| e.at(at))?;
    let size = source.node(&file).map_err(|e| e.at(at))?.size;
    let mut pos = 0;
    let done = source.read(&file, &mut |offset, data| {
        zeroes(out, offset - pos)?;
        pos = offset + data.len() as u64;
        Ok(out.write_all(data)?)
    });
    done.map_err(|e| e.at(at))?;
    zeroes(out, size.saturating_sub(pos))
}

/// A hole.
fn zeroes(out: &mut Output, len: u64) -> Result<()> {
    std::io::copy(&mut std::io::repeat(0).take(len), out)?;
    Ok(())
}

/// Copies standard input into a file of the sink; returns how long it is.
pub fn fill<S: Sink>(
    sink: &S,
    file: &S::File,
    at: &dyn Fn() -> String,
    mut go_on: impl FnMut() -> Result<()>,
) -> Result<u64> {
    let mut stdin = std::io::stdin().lock();
    let mut buf = vec![0; CHUNK_BYTES];
    let mut size = 0;
    loop {
        go_on()?;
        match stdin.read(&mut buf) {
            Ok(0) => return Ok(size),
            Ok(n) => {
                sink.write(file, size, &buf[..n]).map_err(|e| e.at(at))?;
                size += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Failure::op(format!("standard input: {}", crate::failure::plain(&e)))),
        }
    }
}

/// What a file made from standard input is like.
pub fn node(size: u64) -> Node {
    let mask = umask(Mode::empty());
    umask(mask);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() };
    Node {
        kind: FileType::Regular,
        mode: 0o666 & !(mask.bits() as u16),
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        links: 1,
        size,
        atime: now,
        mtime: now,
        device: None,
        id: (0, 0),
    }
}
