//! How a command fails: a message and an exit status.
//!
//! # Locking
//! None.

use std::io;
use std::path::Path;

use extant_block::Error as DeviceError;

/// Wrong arguments; for `mount` also missing permissions.
pub const USAGE: u8 = 1;
/// `mount`: no memory, no process; `unmount`: the server could not write everything.
pub const SYSTEM: u8 = 2;
/// The image or the system said no (fsck's "operational error").
pub const OPERATIONAL: u8 = 8;
/// `mount` and `unmount` failed.
pub const MOUNT: u8 = 32;
/// As a shell reports a program that SIGPIPE ended.
pub const BROKEN_PIPE: u8 = 141;

/// Why a command ends early.
#[derive(Debug)]
pub struct Failure {
    pub status: u8,
    /// Without the leading `extant:`; empty when there is nothing left to say.
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(status: u8, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into() }
    }

    /// An operational error.
    pub fn op(message: impl Into<String>) -> Failure {
        Failure::new(OPERATIONAL, message)
    }

    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, message)
    }

    /// Everything has been said.
    pub fn silent(status: u8) -> Failure {
        Failure { status, message: String::new() }
    }

    pub fn io(path: &Path, e: impl Into<io::Error>) -> Failure {
        Failure::op(format!("{}: {}", path.display(), plain(&e.into())))
    }

    pub fn with_status(self, status: u8) -> Failure {
        Failure { status, ..self }
    }

    pub fn print(&self) {
        if !self.message.is_empty() {
            warn(&self.message);
        }
    }
}

/// Does all of them: an operational error of one is said, and the rest is done all the same.
pub fn each<T>(all: impl IntoIterator<Item = T>, mut f: impl FnMut(T) -> Result<()>) -> Result<bool> {
    let mut all_done = true;
    for one in all {
        match f(one) {
            Err(e) if e.status == OPERATIONAL => {
                e.print();
                all_done = false;
            }
            other => other?,
        }
    }
    Ok(all_done)
}

/// What a command comes to, and what closing its images comes to: both are said, the status is the command's.
pub fn both(done: Result<()>, closed: Result<()>) -> Result<()> {
    match (done, closed) {
        (Err(first), Err(second)) => {
            first.print();
            Err(second.with_status(first.status))
        }
        (done, closed) => done.and(closed),
    }
}

/// Says something on stderr.
pub fn warn(message: &str) {
    use std::io::Write;
    // Nobody listening is no reason to panic.
    let _ = writeln!(io::stderr(), "extant: {message}");
}

/// Says something on stdout that nobody has to hear: it is done, whether that can be said or not.
pub fn mention(message: &str) {
    use std::io::Write;
    let _ = writeln!(io::stdout(), "{message}");
}

/// The error's words, without "(os error 2)".
pub fn plain(e: &io::Error) -> String {
    plain_text(&e.to_string())
}

/// A message without "(os error 2)".
pub fn plain_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, number)) = rest.split_once(" (os error ") {
        out.push_str(before);
        rest = match number.split_once(')') {
            Some((digits, after)) if digits.bytes().all(|b| b.is_ascii_digit()) => after,
            _ => {
                out.push_str(" (os error ");
                number
            }
        };
    }
    out + rest
}

impl From<DeviceError> for Failure {
    fn from(e: DeviceError) -> Failure {
        Failure::op(match e {
            DeviceError::Open { device, source } => format!("{device}: {}", plain(&source)),
            other => other.to_string(),
        })
    }
}

/// Output that could not be written.
impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        if e.kind() == io::ErrorKind::BrokenPipe {
            Failure::silent(BROKEN_PIPE)
        } else {
            Failure::op(format!("writing output: {}", plain(&e)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_hides_no_other() {
        let fails = |status, message| Err(Failure::new(status, message));
        for (done, closed, status, message) in [
            (fails(USAGE, "line 3"), fails(OPERATIONAL, "not written"), USAGE, "not written"),
            (Ok(()), fails(OPERATIONAL, "not written"), OPERATIONAL, "not written"),
            (fails(USAGE, "line 3"), Ok(()), USAGE, "line 3"),
        ] {
            let e = both(done, closed).expect_err("a failure");
            assert_eq!((e.status, e.message.as_str()), (status, message));
        }
        assert!(both(Ok(()), Ok(())).is_ok());
    }

    #[test]
    fn error_numbers_are_for_machines() {
        assert_eq!(plain(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(plain(&io::Error::other("(odd) text")), "(odd) text");
        let twice = "/x (os error 7): no (os error 13), so (os error is) not (os error 1) (it)";
        assert_eq!(plain_text(twice), "/x: no, so (os error is) not (it)");
        assert_eq!(plain_text("(os error 2) (os error "), "(os error 2) (os error ");
    }
}
