//! `-` as source or destination: standard input and output.
//!
//! # Locking
//! None.

use std::io::{Read, Stdout};
use std::time::{SystemTime, UNIX_EPOCH};

use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;
use rustix::event::PollFlags;
use rustix::fs::{Mode, fstat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, umask};

use super::inside::ImageSource;
use super::side::{Node, Sink, Source};
use super::{CHUNK_BYTES, Images};
use crate::failure::{Failure, OPERATIONAL, Result, each};
use crate::place::Place;
use crate::signals::{Input, Stop};

/// Prints files of images, one after the other, until a signal comes.
pub fn out(from: &[Place], stop: &Stop, images: &mut Images) -> Result<()> {
    let out = Out::new(stop);
    let done = each(from, |place| match place {
        Place::Inside(spec, path) => images.get(spec).and_then(|fs| print(&ImageSource::new(fs), path, &out)),
        Place::Local(_) => Ok(()),
    })?;
    if done { Ok(()) } else { Err(Failure::silent(OPERATIONAL)) }
}

fn print(source: &ImageSource, path: &[u8], out: &Out) -> Result<()> {
    let at = || source.show(path);
    let file = source.top(path, true).map_err(|e| e.at(at))?;
    let size = source.node(&file).map_err(|e| e.at(at))?.size;
    let mut pos = 0;
    let done = source.read(&file, &mut |offset, data| {
        out.zeroes(offset - pos)?;
        pos = offset + data.len() as u64;
        out.write(data)
    });
    done.map_err(|e| e.at(at))?;
    out.zeroes(size.saturating_sub(pos))
}

/// The standard output.
struct Out<'a> {
    to: Stdout,
    /// Bytes that can be written without a wait, once it is ready.
    step: usize,
    stop: &'a Stop,
}

impl Out<'_> {
    fn new(stop: &Stop) -> Out<'_> {
        let to = std::io::stdout();
        let file = fstat(&to).is_ok_and(|stat| FileType::from_mode(stat.st_mode as u16) == Some(FileType::Regular));
        Out { to, step: if file { CHUNK_BYTES } else { libc::PIPE_BUF }, stop }
    }

    fn write(&self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            self.stop.wait_for(&self.to, PollFlags::OUT)?;
            match rustix::io::write(&self.to, &data[..data.len().min(self.step)]) {
                Ok(n) => data = &data[n..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(e) => return Err(std::io::Error::from(e).into()),
            }
        }
        Ok(())
    }

    /// A hole.
    fn zeroes(&self, mut len: u64) -> Result<()> {
        let zeroes = [0; 65536];
        while len > 0 {
            let n = len.min(zeroes.len() as u64);
            self.write(&zeroes[..n as usize])?;
            len -= n;
        }
        Ok(())
    }
}

/// Copies standard input into a file of the sink; returns how long it is.
pub fn fill<S: Sink>(sink: &S, file: &S::File, at: &dyn Fn() -> String, stop: &Stop) -> Result<u64> {
    let mut stdin = Input::new(std::io::stdin(), stop);
    let mut buf = vec![0; CHUNK_BYTES];
    let mut size = 0;
    loop {
        let read = stdin.read(&mut buf);
        stop.check()?;
        match read {
            Ok(0) => return Ok(size),
            Ok(n) => {
                sink.write(file, size, &buf[..n]).map_err(|e| e.at(at))?;
                size += n as u64;
            }
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
