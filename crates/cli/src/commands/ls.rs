//! `extant ls`: lists directories.
//!
//! # Locking
//! None.

use std::cmp::Reverse;
use std::io::Write;
use std::sync::Arc;

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Attr, Filesystem, InodeRef};
use extant_ondisk::inode::FileType;

use super::verb::{File, Images};
use crate::args::LsArgs;
use crate::failure::{Failure, Report, Result};
use crate::image;
use crate::place::in_images;
use crate::record::{self, Records};
use crate::{size, text};

pub fn run(args: &LsArgs, images: &mut Images) -> Result<()> {
    let long = args.long || args.numeric;
    let named = in_images(&args.image, &args.paths);
    let mut lister = Lister {
        records: Records::new(args.format)?,
        args,
        long,
        headings: args.recursive || named.len() > 1,
        of_images: named.iter().any(|(spec, _)| *spec != named[0].0),
        begun: false,
        report: Report::default(),
    };
    // As ls(1): a link named on the command line is followed, unless it is to be described.
    let follow = !(long || args.format.json || args.directory);
    let (mut files, mut directories, mut open) = (Vec::new(), Vec::new(), Vec::new());
    for (spec, path) in named {
        let found = images.image(&spec).and_then(|fs| {
            let file = File { fs: fs.clone(), path };
            open.push(fs);
            Ok((file.walk(follow)?, file))
        });
        match found {
            Ok((inode, file)) if inode.is_dir() && !args.directory => directories.push((inode, file)),
            Ok(found) => files.push(found),
            // One that cannot be had does not cut the list short.
            Err(e) => lister.report.note(Err(e))?,
        }
    }
    for some in [&mut files, &mut directories] {
        some.sort_by_cached_key(|(inode, file)| Order::of(args, lister.named(file), Some(&file.fs.getattr(inode))));
        if args.reverse {
            some.reverse();
        }
    }
    if !files.is_empty() {
        let mut rows = Vec::new();
        for (inode, file) in &files {
            let name = lister.named(file);
            match lister.row(&file.fs, inode, &name) {
                Ok(row) => rows.push(row),
                Err(e) => lister.report.note(Err(e))?,
            }
        }
        lister.print(&rows)?;
        lister.begun = true;
    }
    for (inode, file) in directories {
        lister.tree(&file, inode)?;
    }
    let Lister { records, report, .. } = lister;
    records.end()?;
    report.end()?;
    image::refuse_damage(&open)
}

/// What a list is sorted by, in the order of ls(1).
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Order(Reverse<(i64, u32)>, Reverse<u64>, Vec<u8>);

impl Order {
    fn of(args: &LsArgs, name: Vec<u8>, attr: Option<&Attr>) -> Order {
        let time = attr.filter(|_| args.time).map_or((0, 0), |a| (a.mtime.seconds, a.mtime.nanos));
        Order(Reverse(time), Reverse(attr.filter(|_| args.size).map_or(0, |a| a.size)), name)
    }
}

struct Lister<'a> {
    records: Records,
    args: &'a LsArgs,
    /// Everything about each, not only names.
    long: bool,
    /// More than one directory may be listed: each says its name.
    headings: bool,
    /// A name says which image it is in.
    of_images: bool,
    /// Something has been printed.
    begun: bool,
    report: Report,
}

/// A line: everything before the name as columns.
struct Row {
    inode: Option<u32>,
    columns: Vec<String>,
    name: Vec<u8>,
    target: Option<Vec<u8>>,
}

impl Lister<'_> {
    fn complain(&mut self, e: Failure) {
        self.report.complain(e);
    }

    /// A file of the command line, as it is shown.
    fn named(&self, file: &File) -> Vec<u8> {
        self.placed(&file.fs, &file.path)
    }

    fn placed(&self, fs: &Filesystem, path: &[u8]) -> Vec<u8> {
        if self.of_images { [fs.image().as_bytes(), b":", path].concat() } else { path.to_vec() }
    }

    fn tree(&mut self, file: &File, top: InodeRef) -> Result<()> {
        let fs = &file.fs;
        self.heading(&self.named(file))?;
        self.directory(fs, &file.path, &top)?;
        if !self.args.recursive {
            return Ok(());
        }
        let mut walk = Walk::new(fs, &file.path, top);
        while let Some(visit) = walk.next() {
            match visit {
                Ok(Visit::Name(inode)) if inode.is_dir() => {
                    self.heading(&self.placed(fs, walk.path()))?;
                    self.directory(fs, walk.path(), &inode)?;
                }
                Ok(_) => {}
                // Of a name, its directory's list has said it; of a directory that cannot be read, too.
                Err(e) if e.is_corruption() => self.complain(image::at(fs, walk.path(), e)),
                Err(e) => self.report.count(&image::at(fs, walk.path(), e)),
            }
        }
        Ok(())
    }

    fn heading(&mut self, path: &[u8]) -> Result<()> {
        if self.headings && self.records.is_plain() {
            if std::mem::replace(&mut self.begun, true) {
                self.records.out.write_all(b"\n")?;
            }
            self.records.out.name(path)?;
            self.records.out.write_all(b":\n")?;
        }
        Ok(())
    }

    /// Prints one directory.
    fn directory(&mut self, fs: &Arc<Filesystem>, path: &[u8], dir: &InodeRef) -> Result<()> {
        let mut entries = match fs.list(dir) {
            Ok(entries) => entries,
            Err(e) => {
                self.complain(image::at(fs, path, e));
                return Ok(());
            }
        };
        if self.args.time || self.args.size {
            entries.sort_by_cached_key(|entry| {
                let attr = fs.lookup(dir, &entry.name).ok().map(|inode| fs.getattr(&inode));
                Order::of(self.args, entry.name.clone(), attr.as_ref())
            });
        }
        if self.args.reverse {
            entries.reverse();
        }
        let mut rows = Vec::new();
        for entry in entries {
            // Names alone, but whole paths where nothing else says which directory it is.
            let shown = match self.records.is_plain() || !self.headings {
                true => entry.name.clone(),
                false => self.placed(fs, &text::join(path, &entry.name)),
            };
            let inode = self.args.inode.then_some(entry.ino.0);
            if !self.long && !self.records.format.json {
                rows.push(Row { inode, columns: Vec::new(), name: shown, target: None });
                continue;
            }
            let failed = |e| image::at(fs, &text::join(path, &entry.name), e);
            match fs.lookup(dir, &entry.name).map_err(failed) {
                Ok(found) => match self.row(fs, &found, &shown) {
                    Ok(row) => rows.push(row),
                    Err(e) => self.report.note(Err(e))?,
                },
                Err(e) => {
                    rows.push(Row { inode, columns: vec!["?".into(); 7], name: shown, target: None });
                    self.complain(e);
                }
            }
        }
        self.print(&rows)
    }

    fn row(&mut self, fs: &Filesystem, inode: &InodeRef, name: &[u8]) -> Result<Row> {
        let failed = |e| image::at(fs, name, e);
        if self.records.format.json {
            let record = record::file(fs, name, inode).map_err(failed)?;
            self.records.value(&record.into())?;
        }
        let (number, name) = (self.args.inode.then_some(inode.ino.0), name.to_vec());
        if !self.long || !self.records.is_plain() {
            return Ok(Row { inode: number, columns: Vec::new(), name, target: None });
        }
        let attr = fs.getattr(inode);
        let target = match inode.file_type() {
            Some(FileType::Symlink) => Some(fs.read_link(inode).map_err(failed)?),
            _ => None,
        };
        Ok(Row { inode: number, columns: columns(&attr, self.args.human), name, target })
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
        let digits = rows.iter().filter_map(|row| row.inode).max().map_or(0, |n| n.to_string().len());
        let out = &mut self.records.out;
        for row in rows {
            if let Some(inode) = row.inode {
                write!(out, "{inode:>digits$} ")?;
            }
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
