//! The output of listing commands for programs: JSON, or paths terminated by NUL.
//!
//! Main types: [`Format`] (the options `--json` and `-0`), [`Records`] (a list that is written element by element: one
//! array, one record per line). [`file()`] is the record of a file, the same in all commands.
//!
//! # Locking
//! None.

use std::io::Write;

use clap::Args;
use extant_fs::{Attr, Error, Filesystem, InodeRef};
use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;
use serde_json::{Map, Value, json};

use crate::failure::Result;
use crate::text::{self, Output};

/// How a list is printed.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Format {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// End each path with NUL instead of a newline, and print nothing else
    #[arg(short = '0', long = "null", conflicts_with = "json")]
    pub null: bool,
}

/// The output of a listing command.
pub struct Records {
    pub out: Output,
    pub format: Format,
    /// The elements written so far.
    pub count: u64,
}

impl Records {
    pub fn new(format: Format) -> Result<Records> {
        let mut records = Records { out: Output::new(), format, count: 0 };
        if format.json {
            records.out.write_all(b"[")?;
        }
        Ok(records)
    }

    /// Whether the output is plain text.
    pub fn is_plain(&self) -> bool {
        !self.format.json && !self.format.null
    }

    /// Writes one element of the array.
    pub fn value(&mut self, value: &Value) -> Result<()> {
        let comma = if self.count == 0 { "\n" } else { ",\n" };
        self.count += 1;
        Ok(write!(self.out, "{comma}  {}", escaped(&value.to_string()))?)
    }

    /// Writes a path and its terminator.
    pub fn path(&mut self, path: &[u8]) -> Result<()> {
        self.count += 1;
        if self.format.null {
            self.out.write_all(path)?;
            self.out.write_all(b"\0")?;
        } else {
            self.out.name(path)?;
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }

    pub fn end(mut self) -> Result<()> {
        if self.format.json {
            self.out.write_all(if self.count == 0 { b"]\n" } else { b"\n]\n" })?;
        }
        Ok(self.out.flush()?)
    }
}

/// JSON in which all control characters are escaped, even those for which JSON does not require it: a terminal would
/// obey them. They occur only in strings.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{7f}'..='\u{9f}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// A name as JSON: the text if it is UTF-8, otherwise similar text and the exact bytes in hexadecimal.
fn named(into: &mut Map<String, Value>, key: &str, name: &[u8]) {
    match std::str::from_utf8(name) {
        Ok(text) => drop(into.insert(key.into(), text.into())),
        Err(_) => {
            into.insert(key.into(), String::from_utf8_lossy(name).into());
            let hex: String = name.iter().map(|b| format!("{b:02x}")).collect();
            into.insert(format!("{key}_hex"), hex.into());
        }
    }
}

/// `{"path": …}`, for further fields.
pub fn path(path: &[u8]) -> Map<String, Value> {
    let mut map = Map::new();
    named(&mut map, "path", path);
    map
}

/// A bare name under `key`.
pub fn name(key: &str, name: &[u8]) -> Map<String, Value> {
    let mut map = Map::new();
    named(&mut map, key, name);
    map
}

/// Seconds since 1970 and nanoseconds, as `1700000000.000000001`; a number would lose digits.
fn time(t: Timestamp) -> Value {
    format!("{}.{:09}", t.seconds, t.nanos).into()
}

/// The path, attributes and link target of a file, for JSON. Also returns the error if the link cannot be read.
pub fn file(fs: &Filesystem, at: &[u8], inode: &InodeRef) -> (Map<String, Value>, Option<Error>) {
    let Attr { ino, mode, nlink, uid, gid, size, blocks, atime, mtime, ctime, crtime, rdev, .. } = fs.getattr(inode);
    let mut map = path(at);
    let mut put = |key: &str, value: Value| drop(map.insert(key.into(), value));
    put("inode", ino.0.into());
    put("type", text::kind(mode).into());
    put("mode", format!("{:04o}", mode & 0o7777).into());
    put("links", nlink.into());
    put("uid", uid.into());
    put("gid", gid.into());
    put("size", size.into());
    put("blocks_512", blocks.into());
    put("atime", time(atime));
    put("mtime", time(mtime));
    put("ctime", time(ctime));
    if let Some(birth) = crtime {
        put("crtime", time(birth));
    }
    if let Some(dev) = rdev {
        put("device", json!({ "major": dev.major, "minor": dev.minor }));
    }
    let mut missed = None;
    if inode.file_type() == Some(FileType::Symlink) {
        match fs.read_link(inode) {
            Ok(target) => named(&mut map, "target", &target),
            Err(e) => missed = Some(e),
        }
    }
    (map, missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters that control a terminal are escaped in the output, and decode to themselves.
    #[test]
    fn control_characters_are_escaped() {
        let name = "\u{9b}2J\u{7f}\u{1b}\u{a0}\u{e4}\"";
        let text = escaped(&Value::Object(path(name.as_bytes())).to_string());
        assert_eq!(text, "{\"path\":\"\\u009b2J\\u007f\\u001b\u{a0}\u{e4}\\\"\"}");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["path"], name);
    }
}
