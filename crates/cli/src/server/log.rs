//! Sends the messages of a background server to the system's log.
//!
//! Messages of the lower layers on standard error (a damaged image, an aborted journal) must reach the user. The
//! standard error becomes a pipe, and a thread copies its lines to `/dev/log` (syslog(3), journald). Without such a
//! socket they go to a file in the user's run folder ([`crate::server::status`]), named after the mount's device
//! number, each with its time, the process and the image. When the file is full, its content replaces that of a second
//! file. Both are opened before the server drops its privileges, so a compromised server cannot reach the messages of
//! others.
//!
//! Main functions: [`Log::find`], [`take_standard_error`], [`end`]; [`where_messages_go`], for messages to the user.
//!
//! # Locking
//! `log thread` (961), a leaf.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use extant_base::clock::Clock;
use extant_base::sync::{LockClass, Mutex};
use extant_base::task::{self, JoinHandle};
use rustix::fs::{Mode, OFlags, openat};

use crate::server::status;
use crate::text;

/// Longer lines are cut: datagrams have a limit.
const LINE_MAX: u64 = 2000;
/// Facility daemon, severity warning.
const PRIORITY: u32 = 3 << 3 | 4;
/// A file that is longer than this many bytes is rotated.
const FILE_MAX: u64 = 1 << 20;

const SOCKET: &str = "/dev/log";

static CLASS: LockClass = LockClass::new("log thread", 961);
static THREAD: Mutex<Option<JoinHandle<()>>> = Mutex::new(&CLASS, None);

/// Redirects the standard error. Returns false if that failed; then nothing has changed.
pub fn take_standard_error(mut log: Log) -> bool {
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

/// The names of the files with messages for the mount with this device number: the present file, and the older one.
fn names(device: &str) -> [String; 2] {
    [format!("{device}.log"), format!("{device}.log.1")]
}

/// Where the messages of a background server go; `None` if its mount's device number is unknown.
pub fn where_messages_go(device: Option<&str>) -> String {
    if system().is_some() {
        return "to the system's log (journalctl -t extant, or a file in /var/log)".into();
    }
    match device.and_then(|device| Some((status::own_directory()?.1, names(device)))) {
        Some((dir, [file, _])) => format!("to {}", text::shown(dir.join(file).as_os_str().as_encoded_bytes())),
        None => format!("nowhere: there is no {SOCKET}, and no folder for a file"),
    }
}

/// The socket of the system's log.
fn system() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(SOCKET).ok()?;
    // A blocked log must not block the file system.
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

/// Where messages go on this host.
enum Place {
    System(UnixDatagram),
    /// The file of present messages, and the file of older ones.
    Files(File, File),
}

impl Place {
    fn find(device: Option<&str>) -> Option<Place> {
        if let Some(socket) = system() {
            return Some(Place::System(socket));
        }
        let (dir, _) = status::own_directory()?;
        let [file, older] = names(device?);
        Some(Place::Files(open(&dir, &file)?, open(&dir, &older)?))
    }
}

fn open(dir: &OwnedFd, name: &str) -> Option<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::RUSR | Mode::WUSR).map(File::from).ok()
}

/// An open log. Opened before the sandbox, which prevents connections.
pub struct Log {
    place: Place,
    /// The prefix of each line, after its time.
    name: String,
    image: String,
}

impl Log {
    /// Opens the log for the messages of the server of `image`, whose mount has this device number.
    pub fn find(image: &str, device: Option<&str>) -> Option<Log> {
        let name = format!("extant[{}]: ", task::process_id());
        Some(Log { place: Place::find(device)?, name, image: image.to_owned() })
    }

    fn write(&mut self, line: &[u8]) {
        let line = line.strip_prefix(b"extant: ").unwrap_or(line);
        match &mut self.place {
            Place::System(socket) => {
                let priority = format!("<{PRIORITY}>");
                let _ = socket.send(&[priority.as_bytes(), self.name.as_bytes(), line].concat());
            }
            Place::Files(file, older) => {
                let time = text::utc(Clock::real().wall().sec);
                // Most messages already begin with the image's name.
                let image =
                    if line.starts_with(self.image.as_bytes()) { String::new() } else { format!("{}: ", self.image) };
                let line = [time.as_bytes(), b" ", self.name.as_bytes(), image.as_bytes(), line, b"\n"].concat();
                let _ = append(file, older, &line);
            }
        }
    }
}

/// Appends a line. A full file replaces the older one, and begins again empty.
fn append(file: &mut File, older: &mut File, line: &[u8]) -> std::io::Result<()> {
    if file.metadata()?.len() > FILE_MAX {
        older.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        std::io::copy(file, older)?;
        file.set_len(0)?;
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

    /// The files of device `7` in a directory.
    fn files(top: &tempfile::TempDir) -> (File, File) {
        let dir = OwnedFd::from(File::open(top.path()).expect("opened"));
        let [file, older] = names("7").map(|name| open(&dir, &name).expect("made"));
        (file, older)
    }

    #[test]
    fn a_line_of_the_file_has_its_time_process_and_image() {
        let top = tempfile::tempdir().expect("directory");
        let (file, older) = files(&top);
        let mut log =
            Log { place: Place::Files(file, older), name: "extant[7]: ".into(), image: "/img/disk.img".into() };
        log.write(b"extant: /img/disk.img: inode 12: damaged");
        log.write(b"the journal was aborted");
        let text = std::fs::read_to_string(top.path().join("7.log")).expect("written");
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
    fn the_files_are_bounded_and_lose_the_oldest_lines() {
        let top = tempfile::tempdir().expect("directory");
        let (mut file, mut older) = files(&top);
        let len = |name: &str| top.path().join(name).metadata().map_or(0, |m| m.len());
        let lines = 3 * FILE_MAX / LINE_MAX;
        for number in 0..lines {
            let line = format!("{number:>width$}\n", width = LINE_MAX as usize - 1);
            append(&mut file, &mut older, line.as_bytes()).expect("written");
            assert!(len("7.log") <= FILE_MAX + LINE_MAX && len("7.log.1") <= FILE_MAX + LINE_MAX);
        }
        let text = ["7.log.1", "7.log"].map(|name| std::fs::read_to_string(top.path().join(name)).expect("read"));
        let numbers: Vec<u64> = text.concat().lines().map(|line| line.trim().parse().expect("a number")).collect();
        assert!(numbers.len() as u64 > FILE_MAX / LINE_MAX && numbers.last() == Some(&(lines - 1)));
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
        assert_eq!(std::fs::read_dir(top.path()).expect("read").count(), 2);
    }
}
