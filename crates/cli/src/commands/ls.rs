//! `extant ls`: lists a directory.
//!
//! # Locking
//! None.

use std::io::Write;

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Attr, Error, Filesystem, InodeRef};
use extant_ondisk::inode::FileType;

use super::verb::Images;
use crate::args::LsArgs;
use crate::failure::{Failure, OPERATIONAL, Result};
use crate::image;
use crate::place::{in_image, the_path};
use crate::record::{self, Records};
use crate::{size, text};

pub fn run(args: &LsArgs, images: &mut Images) -> Result<()> {
    let (spec, paths) = in_image(&args.image, args.path.as_slice());
    let fs = images.image(&spec)?;
    let path = the_path(&paths)?;
    let long = args.long || args.numeric;
    // As ls(1): a link named on the command line is followed, unless it is to be described.
    let follow = !(long || args.format.json) || path.ends_with(b"/");
    let inode = fs.walk(path, follow).map_err(|e| image::at(&fs, path, e))?;
    let mut lister = Lister { fs: &fs, records: Records::new(args.format)?, args, long, failed: false };
    if inode.is_dir() {
        lister.tree(path, inode)?;
    } else {
        let row = lister.row(&inode, path)?;
        lister.print(&[row])?;
    }
    let failed = lister.failed;
    lister.records.end()?;
    if failed { Err(Failure::silent(OPERATIONAL)) } else { Ok(()) }
}

struct Lister<'a> {
    fs: &'a Filesystem,
    records: Records,
    args: &'a LsArgs,
    /// Everything about each, not only names.
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

    fn tree(&mut self, path: &[u8], top: InodeRef) -> Result<()> {
        self.heading(path, true)?;
        self.directory(path, &top)?;
        if !self.args.recursive {
            return Ok(());
        }
        let fs = self.fs;
        let mut walk = Walk::new(fs, path, top);
        while let Some(visit) = walk.next() {
            match visit {
                Ok(Visit::Name(inode)) if inode.is_dir() => {
                    self.heading(walk.path(), false)?;
                    self.directory(walk.path(), &inode)?;
                }
                Ok(_) => {}
                // Of a name, its directory's list has said it; of a directory that cannot be read, too.
                Err(e) if e.is_corruption() => self.complain(walk.path(), e),
                Err(_) => self.failed = true,
            }
        }
        Ok(())
    }

    fn heading(&mut self, path: &[u8], first: bool) -> Result<()> {
        if self.args.recursive && self.records.is_plain() {
            if !first {
                self.records.out.write_all(b"\n")?;
            }
            self.records.out.name(path)?;
            self.records.out.write_all(b":\n")?;
        }
        Ok(())
    }

    /// Prints one directory.
    fn directory(&mut self, path: &[u8], dir: &InodeRef) -> Result<()> {
        let entries = match self.fs.list(dir) {
            Ok(entries) => entries,
            Err(e) => {
                self.complain(path, e);
                return Ok(());
            }
        };
        let mut rows = Vec::new();
        for entry in entries {
            // Names alone, but whole paths where nothing else says which directory it is.
            let shown = match self.records.is_plain() || !self.args.recursive {
                true => entry.name.clone(),
                false => text::join(path, &entry.name),
            };
            if !self.long && !self.records.format.json {
                rows.push(Row { columns: Vec::new(), name: shown, target: None });
                continue;
            }
            match self.fs.lookup(dir, &entry.name) {
                Ok(inode) => match self.row(&inode, &shown) {
                    Ok(row) => rows.push(row),
                    Err(e) => {
                        e.print();
                        self.failed = true;
                    }
                },
                Err(e) => {
                    rows.push(Row { columns: vec!["?".into(); 7], name: shown, target: None });
                    self.complain(&text::join(path, &entry.name), e);
                }
            }
        }
        self.print(&rows)
    }

    fn row(&mut self, inode: &InodeRef, name: &[u8]) -> Result<Row> {
        let failed = |e| image::at(self.fs, name, e);
        if self.records.format.json {
            let record = record::file(self.fs, name, inode).map_err(failed)?;
            self.records.value(&record.into())?;
        }
        if !self.long || !self.records.is_plain() {
            return Ok(Row { columns: Vec::new(), name: name.to_vec(), target: None });
        }
        let attr = self.fs.getattr(inode);
        let target = match inode.file_type() {
            Some(FileType::Symlink) => Some(self.fs.read_link(inode).map_err(failed)?),
            _ => None,
        };
        Ok(Row { columns: columns(&attr, self.args.human), name: name.to_vec(), target })
    }

    fn print(&mut self, rows: &[Row]) -> Result<()> {
        if !self.records.is_plain() {
            if self.records.format.null {
                rows.iter().try_for_each(|row| self.records.path(&row.name))?;
            }
            return Ok(());
        }
        let count = rows.iter().map(|r| r.columns.len()).max().unwrap_or(0);
        let width = |i: usize| rows.iter().filter_map(|r| r.columns.get(i)).map(String::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..count).map(width).collect();
        let out = &mut self.records.out;
        for row in rows {
            for (i, column) in row.columns.iter().enumerate() {
                // Numbers to the right.
                if i == 0 || i == 5 || i == 6 {
                    write!(out, "{column:<w$} ", w = widths[i])?;
                } else {
                    write!(out, "{column:>w$} ", w = widths[i])?;
                }
            }
            out.name(&row.name)?;
            if let Some(target) = &row.target {
                out.write_all(b" -> ")?;
                out.name(target)?;
            }
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

/// Mode, links, owner, group, size or device number, date, time.
fn columns(attr: &Attr, human: bool) -> Vec<String> {
    let time = text::minute(attr.mtime);
    let (date, minute) = time.split_once(' ').unwrap_or((&time, ""));
    let size = match attr.rdev {
        Some(dev) => format!("{}, {}", dev.major, dev.minor),
        None if human => size::short(attr.size),
        None => attr.size.to_string(),
    };
    let numbers = [attr.nlink.to_string(), attr.uid.to_string(), attr.gid.to_string(), size];
    let mut columns = vec![text::mode(attr.mode)];
    columns.extend(numbers);
    columns.extend([date.to_owned(), minute.to_owned()]);
    columns
}
