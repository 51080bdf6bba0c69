//! `extant ls`: lists directories.
//!
//! # Locking
//! None.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use extant_fs::walk::{Name, Names, Visit, Walk};
use extant_fs::{Attr, Error, Filesystem, InodeRef};
use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;

use super::verb::{File, Images};
use crate::args::LsArgs;
use crate::failure::{Failure, Report, Result};
use crate::image;
use crate::place::in_images;
use crate::record::{self, Records};
use crate::rescued::{self, AccessKind, Tally};
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
        tally: Tally::new(AccessKind::Looked),
    };
    // As ls(1): a link on the command line is followed, unless the link itself is to be described.
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
            // If one image cannot be opened, the list continues with the others.
            Err(e) => lister.report.note(Err(e))?,
        }
    }
    for some in [&mut files, &mut directories] {
        some.sort_by_cached_key(|(inode, file)| (order(args, Some(&file.fs.getattr(inode))), lister.named(file)));
        if args.reverse {
            some.reverse();
        }
    }
    if !files.is_empty() {
        let mut rows = Vec::new();
        for (inode, file) in &files {
            let name = lister.named(file);
            rows.push(lister.row(&file.fs, inode, &name)?);
        }
        lister.print(&rows)?;
        lister.begun = true;
    }
    for (inode, file) in directories {
        lister.tree(&file, inode)?;
    }
    let Lister { records, report, tally, .. } = lister;
    records.end()?;
    images.each_open(|fs| tally.print(fs));
    report.end()?;
    image::refuse_damage(&open)
}

/// The maximum number of lines in memory; the columns of these lines are aligned.
const ROWS_MAX: usize = 65_536;
/// The memory for names that are sorted in one pass, for orders other than by bytes.
const SORTED_BYTES: usize = 16 << 20;

/// The sort key of a list, as in ls(1): newest first, largest first. Equal ones are ordered by name.
type Order = (Reverse<(i64, u32)>, Reverse<u64>);

fn order(args: &LsArgs, attr: Option<&Attr>) -> Order {
    let time = attr.filter(|_| args.time).map_or((0, 0), |a| (a.mtime.seconds, a.mtime.nanos));
    (Reverse(time), Reverse(attr.filter(|_| args.size).map_or(0, |a| a.size)))
}

/// A name of a directory, with its place in the list.
#[derive(Clone, PartialEq, Eq)]
struct Ranked {
    order: Order,
    reverse: bool,
    entry: Name,
}

impl Ranked {
    fn bytes(&self) -> usize {
        2 * size_of::<Ranked>() + self.entry.name.len()
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> Ordering {
        fn key(ranked: &Ranked) -> (Order, &[u8], InodeNr) {
            (ranked.order, &ranked.entry.name, ranked.entry.ino)
        }
        let ordering = key(self).cmp(&key(other));
        if self.reverse { ordering.reverse() } else { ordering }
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A part of a directory's list; the next part starts after `last`.
struct Part {
    names: Vec<Name>,
    last: Option<Ranked>,
}

struct Lister<'a> {
    records: Records,
    args: &'a LsArgs,
    /// All attributes, not only names.
    long: bool,
    /// Whether more than one directory may be listed: each then gets a heading.
    headings: bool,
    /// Whether names include the image.
    of_images: bool,
    /// Whether anything has been printed.
    begun: bool,
    report: Report,
    tally: Tally,
}

/// A line: the columns before the name, and the name.
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

    /// A file of the command line, in the form for output.
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
                // The error of a name was reported with its directory; so was the error of an unreadable directory.
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

    /// Prints one directory, a part at a time.
    fn directory(&mut self, fs: &Arc<Filesystem>, path: &[u8], dir: &InodeRef) -> Result<()> {
        let mut last = None;
        loop {
            let part = match self.part(fs, dir, last.as_ref()) {
                Ok(part) => part,
                Err(e) => {
                    self.tally.hurt(rescued::id(fs));
                    self.complain(image::at(fs, path, e));
                    return Ok(());
                }
            };
            for names in part.names.chunks(ROWS_MAX) {
                self.rows(fs, path, dir, names)?;
            }
            last = part.last;
            if last.is_none() {
                let doubt = self.tally.left(fs, path, dir);
                doubt.into_iter().for_each(|e| self.complain(e));
                return Ok(());
            }
        }
    }

    /// The next names of a directory, in the order of the list.
    fn part(&self, fs: &Arc<Filesystem>, dir: &InodeRef, last: Option<&Ranked>) -> std::result::Result<Part, Error> {
        if !self.args.time && !self.args.size && !self.args.reverse {
            let Names { names, more } = fs.list_after(dir, last.map(|last| &last.entry))?;
            let last = names.last().filter(|_| more).cloned().map(|entry| self.ranked(fs, dir, entry));
            return Ok(Part { names, last });
        }
        // Examines all names, and keeps those that come next.
        let (mut next, mut bytes, mut dropped, mut at) = (BTreeSet::new(), 0, false, None);
        loop {
            let Names { names, more } = fs.list_after(dir, at.as_ref())?;
            at = names.last().cloned();
            for entry in names {
                let ranked = self.ranked(fs, dir, entry);
                if last.is_some_and(|last| ranked <= *last) {
                    continue;
                }
                bytes += ranked.bytes();
                next.insert(ranked);
                while bytes > SORTED_BYTES {
                    let Some(behind) = next.pop_last() else { break };
                    bytes -= behind.bytes();
                    dropped = true;
                }
            }
            if !more {
                break;
            }
        }
        let last = next.last().filter(|_| dropped).cloned();
        Ok(Part { names: next.into_iter().map(|ranked| ranked.entry).collect(), last })
    }

    fn ranked(&self, fs: &Filesystem, dir: &InodeRef, entry: Name) -> Ranked {
        let attr = match self.args.time || self.args.size {
            true => fs.lookup(dir, &entry.name).ok().map(|inode| fs.getattr(&inode)),
            false => None,
        };
        Ranked { order: order(self.args, attr.as_ref()), reverse: self.args.reverse, entry }
    }

    fn rows(&mut self, fs: &Arc<Filesystem>, path: &[u8], dir: &InodeRef, entries: &[Name]) -> Result<()> {
        let mut rows = Vec::new();
        for entry in entries {
            // Prints only names, or whole paths if no heading names the directory.
            let shown = match self.records.is_plain() || !self.headings {
                true => entry.name.clone(),
                false => self.placed(fs, &text::join(path, &entry.name)),
            };
            let inode = self.args.inode.then_some(entry.ino.0);
            if !self.long && !self.records.format.json {
                if entry.kind != Some(FileType::Directory) {
                    self.tally.whole(rescued::id(fs));
                }
                rows.push(Row { inode, columns: Vec::new(), name: shown, target: None });
                continue;
            }
            let failed = |e| image::at(fs, &text::join(path, &entry.name), e);
            match fs.lookup(dir, &entry.name).map_err(failed) {
                Ok(found) => {
                    let doubt = self.tally.found(fs, &text::join(path, &entry.name), &found);
                    doubt.into_iter().for_each(|e| self.complain(e));
                    rows.push(self.row(fs, &found, &shown)?);
                }
                Err(e) => {
                    self.tally.hurt(rescued::id(fs));
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
            let (record, missed) = record::file(fs, name, inode);
            self.records.value(&record.into())?;
            missed.into_iter().for_each(|e| self.complain(failed(e)));
        }
        let (number, name) = (self.args.inode.then_some(inode.ino.0), name.to_vec());
        if !self.long || !self.records.is_plain() {
            return Ok(Row { inode: number, columns: Vec::new(), name, target: None });
        }
        let attr = fs.getattr(inode);
        let target = match inode.file_type() {
            Some(FileType::Symlink) => match fs.read_link(inode) {
                Ok(target) => Some(target),
                Err(e) => {
                    self.complain(failed(e));
                    None
                }
            },
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
                // Numbers are right-aligned.
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
