//! Other programs that the lab calls, and parsing of sizes.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// A program to call.
pub struct Tool(Command, String);

impl Tool {
    /// The program `name`; the directories of system administration are searched, too.
    pub fn new(name: &str) -> Tool {
        Tool(Command::new(find(name).unwrap_or_else(|| name.into())), name.to_owned())
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Tool {
        self.1 += &format!(" {}", arg.as_ref().to_string_lossy());
        self.0.arg(arg);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A>) -> Tool {
        args.into_iter().fold(self, Tool::arg)
    }

    /// Runs it; an exit status other than 0 is an error with its output.
    pub fn run(self) -> Result<String> {
        let (status, output, command) = self.status()?;
        if status == Some(0) { Ok(output) } else { Err(Error::Tool { command, output: one_line(&output) }) }
    }

    /// Runs it; returns its exit status, its output, and the command line.
    pub fn status(mut self) -> Result<(Option<i32>, String, String)> {
        let command = self.1;
        let output = self.0.stdin(Stdio::null()).output();
        let output = output.map_err(|e| Error::Tool { command: command.clone(), output: e.to_string() })?;
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned(), command))
    }
}

/// The output of a program, for a message.
pub fn one_line(said: &str) -> String {
    said.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The path of the program `name`.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// Whether something is mounted on `dir`. This includes a FUSE mount whose server has died, which answers with an
/// error.
pub fn is_mount_point(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Some(parent) = dir.parent().and_then(|p| p.metadata().ok()) else { return false };
    dir.metadata().map_or(true, |m| m.dev() != parent.dev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools() {
        assert_eq!(Tool::new("sh").args(["-c", "echo hi"]).run().unwrap(), "hi\n");
        let e = Tool::new("sh").args(["-c", "echo no >&2; exit 3"]).run().unwrap_err().to_string();
        assert_eq!(e, "sh -c echo no >&2; exit 3: no");
        assert!(!is_mount_point(Path::new("/etc")) && is_mount_point(Path::new("/proc")));
    }
}
