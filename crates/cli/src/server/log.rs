//! Sends the messages of a background server to the system's log.
//!
//! Messages of the lower layers on standard error (a damaged image, an aborted journal) must reach the user. The
//! standard error becomes a pipe, and a thread copies its lines to `/dev/log` (syslog(3), journald). Without such a
//! socket they go to `extant.log` in the user's run folder ([`crate::server::status`]), each with its time, the process
//! and the image. All servers of the user share that file. When it is long, it becomes `extant.log.1`, and replaces the
//! older one.
//!
//! Main functions: [`Log::find`], [`take_standard_error`], [`end`]; [`where_messages_go`], for messages to the user.
//!
//! # Locking
//! `log thread` (961), a leaf. flock on the run folder, without waiting: a log that hangs must not make the file
//! system hang.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use extant_base::clock::Clock;
use extant_base::sync::{LockClass, Mutex};
use extant_base::task::{self, JoinHandle};
use rustix::fs::{Mode, OFlags, openat, renameat};

use crate::server::status;
use crate::text;

/// Longer lines are cut: datagrams have a limit.
const LINE_MAX: u64 = 2000;
/// Facility daemon, severity warning.
const PRIORITY: u32 = 3 << 3 | 4;
/// A longer file is replaced, bytes.
const FILE_MAX: u64 = 1 << 20;

const FILE: &str = "extant.log";
const OLDER_FILE: &str = "extant.log.1";
const SOCKET: &str = "/dev/log";

static CLASS: LockClass = LockClass::new("log thread", 961);
static THREAD: Mutex<Option<JoinHandle<()>>> = Mutex::new(&CLASS, None);

/// Redirects the standard error. False: that failed, and nothing was changed.
pub fn take_standard_error(log: Log) -> bool {
    let Ok((read, write)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else { return false };
    let Ok(thread) = task::spawn("extant-log", move || forward(File::from(read), |line| log.write(line))) else {
        return false;
    };
    let taken = rustix::stdio::dup2_stderr(&write).is_ok();
    if taken {
        *THREAD.lock() = Some(thread);
    }
    taken
}

/// Closes the standard error, after all earlier messages have been forwarded. Later messages are lost.
pub fn end() {
    let Some(thread) = THREAD.lock().take() else { return };
    // This closes the last descriptor that can write into the pipe.
    let quiet =
        File::options().write(true).open("/dev/null").is_ok_and(|null| rustix::stdio::dup2_stderr(null).is_ok());
    if quiet {
        let _ = thread.join();
    }
}

/// Where the messages of a background server go.
pub fn where_messages_go() -> String {
    match Place::find() {
        Some(Place::System(_)) => "to the system's log (journalctl -t extant, or a file in /var/log)".into(),
        Some(Place::Folder(_, dir)) => format!("to {}", text::shown(dir.join(FILE).as_os_str().as_encoded_bytes())),
        None => format!("nowhere: there is no {SOCKET}, and no folder for a file"),
    }
}

/// The log of this host.
enum Place {
    System(UnixDatagram),
    Folder(OwnedFd, std::path::PathBuf),
}

impl Place {
    fn find() -> Option<Place> {
        let system = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect(SOCKET).ok()?;
            // A log that hangs must not make the file system hang.
            socket.set_nonblocking(true).ok()?;
            Some(Place::System(socket))
        };
        system().or_else(|| status::own_directory().map(|(fd, dir)| Place::Folder(fd, dir)))
    }
}

/// An open log. Opened before the sandbox, which prevents connections.
pub struct Log {
    place: Place,
    /// Put before each line, after its time.
    name: String,
    image: String,
}

impl Log {
    /// For the messages of the server of `image`.
    pub fn find(image: &str) -> Option<Log> {
        let name = format!("extant[{}]: ", task::process_id());
        Some(Log { place: Place::find()?, name, image: image.to_owned() })
    }

    fn write(&self, line: &[u8]) {
        let line = line.strip_prefix(b"extant: ").unwrap_or(line);
        match &self.place {
            Place::System(socket) => {
                let priority = format!("<{PRIORITY}>");
                let _ = socket.send(&[priority.as_bytes(), self.name.as_bytes(), line].concat());
            }
            Place::Folder(dir, _) => {
                let time = text::utc(Clock::real().wall().sec);
                // Most messages begin with it.
                let image =
                    if line.starts_with(self.image.as_bytes()) { String::new() } else { format!("{}: ", self.image) };
                let line = [time.as_bytes(), b" ", self.name.as_bytes(), image.as_bytes(), line, b"\n"].concat();
                let _ = append(dir, &line);
            }
        }
    }
}

/// Adds a line to the file in `dir`, which is opened again each time: another server may have replaced it.
fn append(dir: &OwnedFd, line: &[u8]) -> std::io::Result<()> {
    let open = || {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(dir, FILE, flags, Mode::RUSR | Mode::WUSR).map(File::from)
    };
    let is_full = |file: &File| Ok::<_, std::io::Error>(file.metadata()?.len() > FILE_MAX);
    let mut file = open()?;
    if is_full(&file)? {
        // One of the processes that find it full replaces it; the others write into the present file.
        status::if_alone_in(dir, || {
            if is_full(&open()?)? {
                renameat(dir, FILE, dir, OLDER_FILE)?;
            }
            Ok::<_, std::io::Error>(())
        })
        .transpose()?;
        file = open()?;
    }
    file.write_all(line)
}

/// Calls `send` for each line, until the last writer has closed the pipe.
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
    fn long_lines_are_cut() {
        let mut seen = Vec::new();
        let long = "x".repeat(LINE_MAX as usize + 5);
        forward(format!("one\n\ntwo \n{long}\nlast").as_bytes(), |line| seen.push(line.len()));
        assert_eq!(seen, [3, 3, LINE_MAX as usize, 5, 4]);
    }

    #[test]
    fn a_line_of_the_file_has_its_time_process_and_image() {
        let top = tempfile::tempdir().expect("directory");
        let dir = OwnedFd::from(File::open(top.path()).expect("opened"));
        let log = Log {
            place: Place::Folder(dir, top.path().into()),
            name: "extant[7]: ".into(),
            image: "/img/disk.img".into(),
        };
        log.write(b"extant: /img/disk.img: inode 12: damaged");
        log.write(b"the journal was aborted");
        let text = std::fs::read_to_string(top.path().join(FILE)).expect("written");
        let lines: Vec<&str> = text.lines().collect();
        for (line, rest) in
            lines.iter().zip(["/img/disk.img: inode 12: damaged", "/img/disk.img: the journal was aborted"])
        {
            let (time, said) = line.split_once(' ').expect("two parts");
            assert_eq!(said, format!("extant[7]: {rest}"));
            assert!(time.parse::<jiff::Timestamp>().is_ok() && time.ends_with('Z') && time.len() == 20, "{time}");
        }
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn the_file_is_bounded_while_it_is_written() {
        let top = tempfile::tempdir().expect("directory");
        let dir = OwnedFd::from(File::open(top.path()).expect("opened"));
        let line = [b'x'; LINE_MAX as usize];
        let len = |name| top.path().join(name).metadata().map_or(0, |m| m.len());
        for _ in 0..3 * FILE_MAX / LINE_MAX {
            append(&dir, &line).expect("written");
            assert!(len(FILE) <= FILE_MAX + LINE_MAX && len(OLDER_FILE) <= FILE_MAX + LINE_MAX);
        }
        assert!(len(OLDER_FILE) > FILE_MAX, "the older file still exists");
        assert_eq!(std::fs::read_dir(top.path()).expect("read").count(), 2);
    }
}
