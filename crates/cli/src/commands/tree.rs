//! `extant tree`: draws a directory tree.
//!
//! # Locking
//! None.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use extant_fs::{Error, Filesystem, InodeRef};
use extant_ondisk::inode::FileType;

use crate::args::TreeArgs;
use crate::failure::{Failure, OPERATIONAL, Result};
use crate::image::{self, ImageSpec, open_image};
use crate::text::{self, Output};
use crate::walk::{Entry, Seen, list_dir};

pub fn run(args: &TreeArgs) -> Result<()> {
    let fs = open_image(&ImageSpec::parse(&args.image, args.partition.partition), true)?;
    let path = args.path.as_bytes();
    let top = fs.walk(path, true).map_err(|e| image::at(&fs, path, e))?;
    if !top.is_dir() {
        return Err(image::at(&fs, path, Error::NotDirectory));
    }
    let mut drawing = Drawing { fs: &fs, out: Output::new(), directories: 0, files: 0, failed: false };
    drawing.out.name(path)?;
    writeln!(drawing.out)?;
    drawing.draw(path.to_vec(), top, args.levels.unwrap_or(u32::MAX))?;
    let plural = |n: u64, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let (dirs, files) = (drawing.directories, drawing.files);
    writeln!(
        drawing.out,
        "\n{}, {}",
        plural(dirs, "directory", "directories"),
        plural(files, "other file", "other files")
    )?;
    drawing.out.flush()?;
    if drawing.failed || image::is_damaged(&fs) { Err(Failure::silent(OPERATIONAL)) } else { Ok(()) }
}

struct Drawing<'a> {
    fs: &'a Filesystem,
    out: Output,
    directories: u64,
    files: u64,
    failed: bool,
}

/// A directory that is being drawn.
struct Level {
    path: Vec<u8>,
    dir: InodeRef,
    rest: std::vec::IntoIter<Entry>,
}

impl Drawing<'_> {
    fn complain(&mut self, path: &[u8], e: Error) {
        image::at(self.fs, path, e).print();
        self.failed = true;
    }

    fn open(&mut self, seen: &mut Seen, path: Vec<u8>, dir: InodeRef) -> Option<Level> {
        match seen.enter(&dir).and_then(|()| list_dir(self.fs, &dir)) {
            Ok(entries) => Some(Level { path, dir, rest: entries.into_iter() }),
            Err(e) => {
                self.complain(&path, e);
                None
            }
        }
    }

    /// Depth first, with a stack of its own: how deep an image goes is not to decide about ours.
    fn draw(&mut self, path: Vec<u8>, top: InodeRef, levels: u32) -> Result<()> {
        let mut seen = Seen::default();
        let mut stack: Vec<Level> = self.open(&mut seen, path, top).into_iter().collect();
        while let Some(level) = stack.last_mut() {
            let Some(entry) = level.rest.next() else {
                stack.pop();
                continue;
            };
            let full = text::join(&level.path, &entry.name);
            let inode = self.fs.lookup(&level.dir, &entry.name);
            for (depth, level) in stack.iter().enumerate() {
                let more = level.rest.len() > 0;
                let line = match (depth + 1 == stack.len(), more) {
                    (false, true) => "│   ",
                    (false, false) => "    ",
                    (true, true) => "├── ",
                    (true, false) => "└── ",
                };
                self.out.write_all(line.as_bytes())?;
            }
            self.out.name(&entry.name)?;
            let inode = match inode {
                Ok(inode) => inode,
                Err(e) => {
                    writeln!(self.out)?;
                    self.complain(&full, e);
                    continue;
                }
            };
            if inode.is_dir() {
                self.directories += 1;
                writeln!(self.out)?;
                if (stack.len() as u64) < u64::from(levels) {
                    let below = self.open(&mut seen, full, inode);
                    stack.extend(below);
                }
                continue;
            }
            self.files += 1;
            if inode.file_type() == Some(FileType::Symlink) {
                match self.fs.read_link(&inode) {
                    Ok(target) => {
                        self.out.write_all(b" -> ")?;
                        self.out.name(&target)?;
                    }
                    Err(e) => self.complain(&full, e),
                }
            }
            writeln!(self.out)?;
        }
        Ok(())
    }
}
