//! The failure of a command: a message and an exit status.
//!
//! All messages pass through [`say`], [`mention`] or [`usage_error`]. A message may contain a path of the host, a name
//! in an image or the text of another program. Therefore control characters in it are replaced: they could control the
//! terminal, or forge a line.
//!
//! # Locking
//! None.

use std::io;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use extant_block::Error as DeviceError;
pub use extant_transfer::{plain, plain_text};

use crate::args;
use crate::text::shown;

/// Wrong arguments; for `mount` also missing permissions.
pub const USAGE: u8 = 1;
/// `mount`: memory or a process cannot be allocated; `unmount`: the server could not write everything.
pub const SYSTEM: u8 = 2;
/// A file in a rescued image is damaged (fsck's "errors left uncorrected").
pub const HURT: u8 = 4;
/// The image or the system refused (fsck's "operational error").
pub const OPERATIONAL: u8 = 8;
/// `mount` and `unmount` failed.
pub const MOUNT: u8 = 32;
/// The status that a shell reports for a program that SIGPIPE ended.
pub const BROKEN_PIPE: u8 = 141;

/// Why a command ends early.
#[derive(Debug)]
pub struct Failure {
    pub status: u8,
    /// Without the leading `extant:`; empty if the error has already been printed.
    pub message: String,
    /// Lines to print below the message.
    pub table: Vec<String>,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(status: u8, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into(), table: Vec::new() }
    }

    /// An operational error.
    pub fn op(message: impl Into<String>) -> Failure {
        Failure::new(OPERATIONAL, message)
    }

    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, message)
    }

    /// A failure that has already been printed.
    pub fn silent(status: u8) -> Failure {
        Failure::new(status, "")
    }

    pub fn io(path: &Path, e: impl Into<io::Error>) -> Failure {
        Failure::op(format!("{}: {}", path.display(), plain(&e.into())))
    }

    /// A write to `name` failed.
    pub fn write(name: &str, e: &io::Error) -> Failure {
        let full = matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let next = if full { "; free some space, or write to another disk" } else { "" };
        Failure::op(format!("{name}: {}{next}", plain(e)))
    }

    pub fn with_status(self, status: u8) -> Failure {
        Failure { status, ..self }
    }

    /// Whether the failure concerns only one file or image, so that the command continues with the others.
    fn is_of_one(&self) -> bool {
        matches!(self.status, OPERATIONAL | HURT)
    }

    pub fn print(&self) {
        if !self.message.is_empty() {
            warn(&self.message);
            self.table.iter().for_each(|line| say(line));
        }
    }
}

/// The errors of a command that continues after each.
#[derive(Default)]
pub struct Report {
    /// The status to end with.
    worst: u8,
}

impl Report {
    /// Prints the error of one file; returns an error that ends the command.
    pub fn note(&mut self, result: Result<()>) -> Result<()> {
        self.note_by(result, |e| e.print())
    }

    /// As [`Report::note`]; `say` prints the error.
    pub fn note_by(&mut self, result: Result<()>, say: impl FnOnce(&Failure)) -> Result<()> {
        match result {
            Err(e) if e.is_of_one() => {
                say(&e);
                self.count(&e);
                Ok(())
            }
            other => other,
        }
    }

    /// Prints an error, and continues.
    pub fn complain(&mut self, e: Failure) {
        e.print();
        self.count(&e);
    }

    /// Counts an error that has already been printed.
    pub fn count(&mut self, e: &Failure) {
        self.worst = self.worst.max(e.status);
    }

    pub fn end(self) -> Result<()> {
        if self.worst == 0 { Ok(()) } else { Err(Failure::silent(self.worst)) }
    }
}

/// Combines the results of a command and of closing its images. Both errors are printed; the status is the command's.
pub fn both(done: Result<()>, closed: Result<()>) -> Result<()> {
    match (done, closed) {
        (Err(first), Err(second)) => {
            first.print();
            Err(second.with_status(first.status))
        }
        (done, closed) => done.and(closed),
    }
}

/// Prints a message on stderr, with the program's name.
pub fn warn(message: &str) {
    say(&format!("extant: {message}"));
}

/// Prints one line on stderr.
pub fn say(line: &str) {
    use std::io::Write;
    // A closed stderr is no reason to panic.
    let _ = writeln!(io::stderr(), "{}", shown(line.as_bytes()));
}

/// Prints an error of the command line. clap repeats words of the command line, which may be names that another user
/// has chosen.
pub fn usage_error(mut e: clap::Error) {
    let plain = |text: &str| shown(text.as_bytes());
    let words: Vec<_> = e.context().map(|(kind, value)| (kind, value.clone())).collect();
    let word = |kind: ContextKind| match words.iter().find(|(k, _)| *k == kind) {
        Some((_, ContextValue::String(word))) => word.clone(),
        _ => String::new(),
    };
    match std::error::Error::source(&e).map(ToString::to_string) {
        // clap prints the message of a value's parser unchanged.
        Some(cause) if cause != plain(&cause) => {
            let (value, of) = (word(ContextKind::InvalidValue), word(ContextKind::InvalidArg));
            say(&format!("error: invalid value '{value}' for '{of}': {cause}"));
            return say("For more information, try '--help'.");
        }
        _ => {}
    }
    if e.kind() == ErrorKind::InvalidSubcommand {
        let verb = word(ContextKind::InvalidSubcommand);
        if let Some(advice) = args::advice(&verb) {
            return say(&format!("error: there is no verb '{verb}': {advice}"));
        }
        let proposed = words.iter().find_map(|(kind, value)| match (kind, value) {
            (ContextKind::SuggestedSubcommand, ContextValue::Strings(verbs)) => Some(verbs.clone()),
            _ => None,
        });
        let harmless: Vec<_> = proposed.into_iter().flatten().filter(|verb| args::may_be_proposed(verb)).collect();
        let value = if harmless.is_empty() { ContextValue::None } else { ContextValue::Strings(harmless) };
        e.insert(ContextKind::SuggestedSubcommand, value);
    }
    let mut replaced = false;
    for (kind, value) in words {
        let value = match value {
            ContextValue::String(word) if word != plain(&word) => ContextValue::String(plain(&word)),
            ContextValue::Strings(words) if words.iter().any(|word| *word != plain(word)) => {
                ContextValue::Strings(words.iter().map(|word| plain(word)).collect())
            }
            _ => continue,
        };
        e.insert(kind, value);
        replaced = true;
    }
    if replaced {
        // This also repeats the word, with styles around it.
        e.insert(ContextKind::Suggested, ContextValue::None);
    }
    let _ = e.print();
}

/// Prints an optional message on stdout; an error there is ignored.
pub fn mention(message: &str) {
    use std::io::Write;
    let _ = writeln!(io::stdout(), "{}", shown(message.as_bytes()));
}

impl From<DeviceError> for Failure {
    fn from(e: DeviceError) -> Failure {
        Failure::op(match e {
            DeviceError::Open { device, source } => format!("{device}: {}", plain(&source)),
            other => other.to_string(),
        })
    }
}

/// Output could not be written.
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
    fn a_failure_does_not_hide_another() {
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
}
