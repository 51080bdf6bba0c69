//! `extant ls`: lists a directory.
//!
//! # Locking
//! None.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use extant_fs::{Attr, Error, Filesystem, InodeRef};
use extant_ondisk::inode::FileType;

use crate::args::LsArgs;
use crate::failure::{Failure, OPERATIONAL, Result};
use crate::image::{self, ImageSpec, open_image};
use crate::text::{self, Output};
use crate::walk::{Seen, list_dir};

pub fn run(args: &LsArgs) -> Result<()> {
    let fs = open_image(&ImageSpec::parse(&args.image, args.partition.partition), true)?;
    let path = args.path.as_bytes();
    // As ls(1): a link named on the command line is followed, unless it is to be described.
    let follow = !args.long || path.ends_with(b"/");
    let inode = fs.walk(path, follow).map_err(|e| image::at(&fs, path, e))?;
    let mut lister = Lister { fs: &fs, out: Output::new(), long: args.long, failed: false };
    if inode.is_dir() {
        lister.tree(path.to_vec(), inode, args.recursive)?;
    } else {
        let row = lister.row(&inode, path)?;
        lister.print(&[row])?;
    }
    lister.out.flush()?;
    if lister.failed || image::is_damaged(&fs) { Err(Failure::silent(OPERATIONAL)) } else { Ok(()) }
}

struct Lister<'a> {
    fs: &'a Filesystem,
    out: Output,
    long: bool,
    failed: bool,
}

/// A line: everything before the name as columns.
struct Row {
    columns: Vec<String>,
    name: Vec<u8>,
    target: Option<Vec<u8>>,
}

impl Lister<'_> {
    fn complain(&mut self, path: &[u8], e: Error) {
        image::at(self.fs, path, e).print();
        self.failed = true;
    }

    fn tree(&mut self, path: Vec<u8>, dir: InodeRef, recursive: bool) -> Result<()> {
        let mut seen = Seen::default();
        let mut todo = vec![(path, dir)];
        let mut first = true;
        while let Some((path, dir)) = todo.pop() {
            if let Err(e) = seen.enter(&dir) {
                self.complain(&path, e);
                continue;
            }
            if recursive {
                if !first {
                    self.out.write_all(b"\n")?;
                }
                self.out.name(&path)?;
                self.out.write_all(b":\n")?;
                first = false;
            }
            let below = self.directory(&path, &dir, recursive)?;
            todo.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Prints one directory; its subdirectories, if wanted.
    fn directory(&mut self, path: &[u8], dir: &InodeRef, recursive: bool) -> Result<Vec<(Vec<u8>, InodeRef)>> {
        let entries = match list_dir(self.fs, dir) {
            Ok(entries) => entries,
            Err(e) => {
                self.complain(path, e);
                return Ok(Vec::new());
            }
        };
        let (mut rows, mut below) = (Vec::new(), Vec::new());
        for entry in entries {
            if !self.long && !recursive {
                rows.push(Row { columns: Vec::new(), name: entry.name, target: None });
                continue;
            }
            let full = text::join(path, &entry.name);
            match self.fs.lookup(dir, &entry.name) {
                Ok(inode) => {
                    match self.row(&inode, &entry.name) {
                        Ok(row) => rows.push(row),
                        Err(e) => {
                            e.print();
                            self.failed = true;
                        }
                    }
                    if recursive && inode.is_dir() {
                        below.push((full, inode));
                    }
                }
                Err(e) => {
                    rows.push(Row { columns: vec!["?".into(); 7], name: entry.name, target: None });
                    self.complain(&full, e);
                }
            }
        }
        self.print(&rows)?;
        Ok(below)
    }

    fn row(&self, inode: &InodeRef, name: &[u8]) -> Result<Row> {
        if !self.long {
            return Ok(Row { columns: Vec::new(), name: name.to_vec(), target: None });
        }
        let attr = self.fs.getattr(inode);
        let target = match inode.file_type() {
            Some(FileType::Symlink) => Some(self.fs.read_link(inode).map_err(|e| image::at(self.fs, name, e))?),
            _ => None,
        };
        Ok(Row { columns: columns(&attr), name: name.to_vec(), target })
    }

    fn print(&mut self, rows: &[Row]) -> Result<()> {
        let count = rows.iter().map(|r| r.columns.len()).max().unwrap_or(0);
        let width = |i: usize| rows.iter().filter_map(|r| r.columns.get(i)).map(String::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..count).map(width).collect();
        for row in rows {
            for (i, column) in row.columns.iter().enumerate() {
                // Numbers to the right.
                if i == 0 || i == 5 || i == 6 {
                    write!(self.out, "{column:<w$} ", w = widths[i])?;
                } else {
                    write!(self.out, "{column:>w$} ", w = widths[i])?;
                }
            }
            self.out.name(&row.name)?;
            if let Some(target) = &row.target {
                self.out.write_all(b" -> ")?;
                self.out.name(target)?;
            }
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }
}

/// Mode, links, owner, group, size or device number, date, time.
fn columns(attr: &Attr) -> Vec<String> {
    let time = text::minute(attr.mtime);
    let (date, minute) = time.split_once(' ').unwrap_or((&time, ""));
    let size = match attr.rdev {
        Some(dev) => format!("{}, {}", dev.major, dev.minor),
        None => attr.size.to_string(),
    };
    let numbers = [attr.nlink.to_string(), attr.uid.to_string(), attr.gid.to_string(), size];
    let mut columns = vec![text::mode(attr.mode)];
    columns.extend(numbers);
    columns.extend([date.to_owned(), minute.to_owned()]);
    columns
}
