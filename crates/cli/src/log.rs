//! Where the messages of a server in the background go: to the system's log.
//!
//! What the layers below say on standard error (an image found damaged, a journal aborted) must reach somebody. The
//! standard error becomes a pipe; a thread takes its lines to `/dev/log` (syslog(3), journald). Where there is no such
//! socket they go to `extant.log` in the run folder of the user ([`crate::status`]).
//!
//! # Locking
//! None.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixDatagram;

use rustix::fs::{Mode, OFlags, openat};

use crate::status;

/// Longer lines are cut: datagrams have a limit.
const LINE_MAX: u64 = 2000;
/// Facility daemon, severity warning.
const PRIORITY: u32 = 3 << 3 | 4;

/// Takes over the standard error. False: there is no log, and nothing was changed.
pub fn take_standard_error() -> bool {
    let Some((socket, lines)) = connect() else { return false };
    let name = format!("<{PRIORITY}>extant[{}]: ", std::process::id());
    extant_base::task::spawn("extant-log", move || forward(lines, |line| send(&socket, &name, line))).is_ok()
}

/// A longer log is begun anew.
const FILE_MAX: u64 = 1 << 20;

/// Takes the standard error into a file. False: there is no place for it.
pub fn to_own_file() -> bool {
    let Some((dir, _)) = status::own_directory() else { return false };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = openat(&dir, "extant.log", flags, Mode::RUSR | Mode::WUSR) else { return false };
    let file = File::from(file);
    if file.metadata().is_ok_and(|m| m.len() > FILE_MAX) {
        let _ = file.set_len(0);
    }
    rustix::stdio::dup2_stderr(&file).is_ok()
}

fn connect() -> Option<(UnixDatagram, File)> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect("/dev/log").ok()?;
    // A log that hangs must not make the file system hang.
    socket.set_nonblocking(true).ok()?;
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
    rustix::stdio::dup2_stderr(&write).ok()?;
    Some((socket, read.into()))
}

fn send(socket: &UnixDatagram, name: &str, line: &[u8]) {
    let line = line.strip_prefix(b"extant: ").unwrap_or(line);
    let _ = socket.send(&[name.as_bytes(), line].concat());
}

/// Calls `send` for each line, until nobody can write any more.
fn forward(lines: impl Read, mut send: impl FnMut(&[u8])) {
    let mut lines = BufReader::new(lines);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut lines).take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = line.trim_ascii_end();
                if !text.is_empty() {
                    send(text);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut() {
        let mut seen = Vec::new();
        let long = "x".repeat(LINE_MAX as usize + 5);
        forward(format!("one\n\ntwo \n{long}\nlast").as_bytes(), |line| seen.push(line.len()));
        assert_eq!(seen, [3, 3, LINE_MAX as usize, 5, 4]);
    }
}
