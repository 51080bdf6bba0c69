//! `-` as source or destination: standard input and output.
//!
//! # Locking
//! None.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use extant_fs::{Error, Filesystem};
use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;
use extant_transfer::content::{self, CHUNK_BYTES, TransferError};
use extant_transfer::copy::{Node, closed};
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, umask};

use super::Images;
use crate::failure::{Report, Result};
use crate::image;
use crate::place::Place;
use crate::rescued;
use crate::server::signals::Stop;

/// Prints files of images, one after the other, until a signal arrives.
pub fn out(from: &[Place], stop: &Stop, images: &mut Images) -> Result<()> {
    let out = Out::new(io::stdout(), stop)?;
    let mut report = Report::default();
    for place in from {
        let printed = match place {
            Place::Inside(spec, path) => images.get(spec).and_then(|fs| print(&fs, path, &out)),
            Place::Local(_) => Ok(()),
        };
        report.note(printed)?;
    }
    closed(out.to).map_err(io::Error::from)?;
    report.end()
}

fn print(fs: &Filesystem, path: &[u8], out: &Out<'_>) -> Result<()> {
    let failed = |e| image::at(fs, path, e);
    let file = image::walk(fs, path, true).map_err(failed)?;
    if file.is_dir() {
        return Err(failed(Error::IsDirectory));
    }
    let mut pos = 0;
    let read = content::read(fs, &file, &mut |offset, data| {
        out.zeroes(offset - pos)?;
        pos = offset + data.len() as u64;
        out.write(data)
    });
    let missing = match read {
        Ok(missing) => missing,
        Err(TransferError::Write(e)) => return Err(e),
        Err(TransferError::Read(e)) => return Err(failed(e)),
    };
    out.zeroes(fs.getattr(&file).size.saturating_sub(pos))?;
    missing.map_or(Ok(()), |missing| Err(image::hurt(fs, path, &missing)))?;
    rescued::doubt(fs, &file).cloned().map_or(Ok(()), |e| Err(failed(e)))
}

/// The standard output.
struct Out<'a> {
    to: OwnedFd,
    /// Bytes of one write: few enough that it does not block after the pipe is ready.
    step: usize,
    stop: &'a Stop,
}

impl Out<'_> {
    fn new(to: impl AsFd, stop: &Stop) -> io::Result<Out<'_>> {
        let kind = fstat(&to).ok().and_then(|stat| FileType::from_mode(stat.st_mode as u16));
        let pipe = if kind == Some(FileType::Fifo) { unwaiting(&to) } else { None };
        let whole = pipe.is_some() || kind == Some(FileType::Regular);
        let to = pipe.map_or_else(|| to.as_fd().try_clone_to_owned(), Ok)?;
        Ok(Out { to, step: if whole { CHUNK_BYTES } else { libc::PIPE_BUF }, stop })
    }

    /// Performs one write, of as many bytes as there is room for.
    fn write_some(&self, data: &[u8]) -> std::result::Result<usize, Errno> {
        rustix::io::write(&self.to, &data[..data.len().min(self.step)])
    }

    fn write(&self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            self.stop.wait_for(&self.to, PollFlags::OUT)?;
            match self.write_some(data) {
                Ok(n) => data = &data[n..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
        Ok(())
    }

    /// Writes a hole.
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

/// Opens the pipe again, so that a write fills only the free space and does not block. A signal right before a blocking
/// write would go unnoticed. The flag O_NONBLOCK belongs to the open description, and other processes that share `pipe`
/// do not expect it. None without /proc, or without permission.
fn unwaiting(pipe: &impl AsFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", pipe.as_fd().as_raw_fd());
    open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// The attributes of a file made from standard input.
pub fn node() -> Node {
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
        size: 0,
        atime: now,
        mtime: now,
        device: None,
        id: (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::fcntl_getfl;
    use rustix::pipe::{fcntl_setpipe_size, pipe};

    use super::*;

    /// Counts bytes, not time: one write fills the pipe, and the next does not wait.
    #[test]
    fn a_write_takes_all_the_room_in_a_pipe() {
        let (read, write) = pipe().expect("pipe");
        let room = fcntl_setpipe_size(&write, 1 << 16).expect("size");
        let stop = Stop::default();
        let out = Out::new(&write, &stop).expect("output");
        let data: Vec<u8> = (0..room + 100).map(|i| (i % 251) as u8).collect();
        assert_eq!(out.write_some(&data), Ok(room));
        assert_eq!(out.write_some(&data[room..]), Err(Errno::AGAIN));
        assert!(
            !fcntl_getfl(&write).expect("flags").contains(OFlags::NONBLOCK),
            "writes of other processes still wait"
        );
        let mut half = vec![0; room / 2];
        let mut from = std::fs::File::from(read);
        from.read_exact(&mut half).expect("read");
        assert_eq!((half == data[..room / 2], out.write_some(&data[room..])), (true, Ok(100)));
        drop((out, write));
        let mut rest = Vec::new();
        from.read_to_end(&mut rest).expect("read");
        assert!(rest == data[room / 2..]);
    }
}
