//! The text forms of names, modes and times.
//!
//! Names are bytes. They are printed unchanged, except to a terminal, where control characters, which could control the
//! terminal, become `?`.
//!
//! # Locking
//! None.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};

pub use extant_image::shown;
use extant_image::{ImageSpec, Part};
use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;
pub use extant_transfer::path::split_last;

/// The standard output, buffered.
pub struct Output {
    to: BufWriter<io::StdoutLock<'static>>,
    terminal: bool,
}

impl Output {
    pub fn new() -> Output {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Output { to: BufWriter::with_capacity(1 << 16, stdout.lock()), terminal }
    }

    /// Prints a name.
    pub fn name(&mut self, name: &[u8]) -> io::Result<()> {
        if self.terminal {
            let text = String::from_utf8_lossy(name);
            let clean: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            self.to.write_all(clean.as_bytes())
        } else {
            self.to.write_all(name)
        }
    }
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.to.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// `drwxr-sr-t`.
pub fn mode(mode: u16) -> String {
    let kind = match FileType::from_mode(mode) {
        Some(FileType::Regular) => '-',
        Some(FileType::Directory) => 'd',
        Some(FileType::Symlink) => 'l',
        Some(FileType::CharDevice) => 'c',
        Some(FileType::BlockDevice) => 'b',
        Some(FileType::Fifo) => 'p',
        Some(FileType::Socket) => 's',
        None => '?',
    };
    let mut out = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    out
}

pub fn kind(mode: u16) -> &'static str {
    match FileType::from_mode(mode) {
        Some(FileType::Regular) => "regular file",
        Some(FileType::Directory) => "directory",
        Some(FileType::Symlink) => "symbolic link",
        Some(FileType::CharDevice) => "character device",
        Some(FileType::BlockDevice) => "block device",
        Some(FileType::Fifo) => "fifo",
        Some(FileType::Socket) => "socket",
        None => "unknown",
    }
}

/// Year, month, day, hour, minute, second in UTC.
fn civil(seconds: i64) -> (i64, u32, u32, u32, u32, u32) {
    let (days, rest) = (seconds.div_euclid(86400), seconds.rem_euclid(86400) as u32);
    // Counts in 400-year cycles from 1 March of the year 0, so that a leap day is the last day of its year.
    let from_march = days + 719_468;
    let (cycle, day) = (from_march.div_euclid(146_097), from_march.rem_euclid(146_097));
    let year_of_cycle = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u32;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 } as u32;
    let year = cycle * 400 + year_of_cycle + i64::from(month <= 2);
    (year, month, day_of_month, rest / 3600, rest / 60 % 60, rest % 60)
}

/// `2024-02-29 12:34`, UTC.
pub fn minute(t: Timestamp) -> String {
    let (year, month, day, hour, minute, _) = civil(t.seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// `2024-02-29 12:34:56.000000000 +0000`.
pub fn exact(t: Timestamp) -> String {
    let (year, month, day, hour, minute, second) = civil(t.seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{:09} +0000", t.nanos)
}

/// `2024-02-29 12:34:56`, UTC; "never" for 0.
pub fn second(seconds: i64) -> String {
    if seconds == 0 {
        return "never".into();
    }
    let (year, month, day, hour, minute, second) = civil(seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// `2024-02-29T12:34:56Z`.
pub fn utc(seconds: i64) -> String {
    let (year, month, day, hour, minute, second) = civil(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// `9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d`.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| -> String { bytes[range].iter().map(|b| format!("{b:02x}")).collect() };
    format!("{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

/// A path as bytes in the image.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path: Cow<'_, [u8]> = dir.into();
    if !path.ends_with(b"/") {
        path.to_mut().push(b'/');
    }
    path.to_mut().extend_from_slice(name);
    path.into_owned()
}

/// The image as one argument of a command that a message proposes.
pub fn image_argument(spec: &ImageSpec) -> String {
    let part = match spec.part {
        Part::Any => String::new(),
        Part::Partition(number) => format!("@{number}"),
        Part::Offset(offset) => format!("?offset={offset}"),
    };
    argument(spec.path.as_os_str().as_encoded_bytes(), &part)
}

/// An image and its `part` (`@N`, `?offset=N` or nothing) as one argument of a shell command.
pub fn argument(path: &[u8], part: &str) -> String {
    let dash: &[u8] = if path.starts_with(b"-") { b"./" } else { b"" };
    let word = [dash, path, part.as_bytes()].concat();
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"_./@%+=:,-".contains(b);
    match std::str::from_utf8(&word) {
        Ok(text) if !word.is_empty() && word.iter().all(plain) => text.to_owned(),
        Ok(text) if !text.chars().any(char::is_control) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let byte = |b: &u8| match b {
                b'\\' | b'\'' => format!("\\{}", char::from(*b)),
                0x20..=0x7e => char::from(*b).to_string(),
                _ => format!("\\x{b:02x}"),
            };
            format!("$'{}'", word.iter().map(byte).collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00.000000000 +0000"),
            (-1, "1969-12-31 23:59:59.000000000 +0000"),
            (951_782_400, "2000-02-29 00:00:00.000000000 +0000"),
            (4_107_542_399, "2100-02-28 23:59:59.000000000 +0000"),
            (-2_147_483_648, "1901-12-13 20:45:52.000000000 +0000"),
            (15_032_385_535, "2446-05-10 22:38:55.000000000 +0000"),
        ] {
            assert_eq!(exact(Timestamp::from_seconds(seconds)), text);
        }
    }

    #[test]
    fn modes() {
        assert_eq!(mode(0o100644), "-rw-r--r--");
        assert_eq!(mode(0o041777), "drwxrwxrwt");
        assert_eq!(mode(0o106750), "-rwsr-s---");
        assert_eq!(mode(0o107000), "---S--S--T");
        assert_eq!(mode(0o000001), "?--------x");
    }

    #[test]
    fn paths() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
        assert_eq!(shown(b"a\x1b[2J\xff"), "a?[2J\u{fffd}");
    }
}
