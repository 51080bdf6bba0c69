//! `extant tree`: draws a directory tree.
//!
//! # Locking
//! None.

use std::io::Write;

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Error, Filesystem, InodeRef};
use extant_ondisk::inode::FileType;

use super::verb::Images;
use crate::args::TreeArgs;
use crate::failure::{Report, Result};
use crate::image;
use crate::place::{in_image, the_path};
use crate::record::{self, Records};
use crate::rescued::{self, AccessKind, Tally};

pub fn run(args: &TreeArgs, images: &mut Images) -> Result<()> {
    let (spec, paths) = in_image(&args.image, args.path.as_slice());
    let fs = images.image(&spec)?;
    let path = the_path(&paths)?;
    let top = image::walk(&fs, path, true).map_err(|e| image::at(&fs, path, e))?;
    if !top.is_dir() {
        return Err(image::at(&fs, path, Error::NotDirectory));
    }
    let mut drawing = Drawing {
        fs: &fs,
        records: Records::new(args.format)?,
        directories: 0,
        files: 0,
        report: Report::default(),
        tally: Tally::new(AccessKind::Looked),
    };
    if drawing.records.is_plain() {
        drawing.records.path(path)?;
    }
    drawing.draw(path, top, args.levels.unwrap_or(u32::MAX))?;
    if drawing.records.is_plain() {
        let plural = |n: u64, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
        let dirs = plural(drawing.directories, "directory", "directories");
        let files = plural(drawing.files, "other file", "other files");
        writeln!(drawing.records.out, "\n{dirs}, {files}")?;
    }
    let Drawing { records, report, tally, .. } = drawing;
    records.end()?;
    tally.print(&fs);
    report.end()?;
    image::refuse_damage([&fs])
}

struct Drawing<'a> {
    fs: &'a Filesystem,
    records: Records,
    directories: u64,
    files: u64,
    report: Report,
    tally: Tally,
}

impl Drawing<'_> {
    fn complain(&mut self, path: &[u8], e: Error) {
        self.report.complain(image::at(self.fs, path, e));
    }

    fn draw(&mut self, path: &[u8], top: InodeRef, levels: u32) -> Result<()> {
        let fs = self.fs;
        let mut walk = Walk::new(fs, path, top);
        while let Some(visit) = walk.next() {
            match visit {
                Ok(Visit::Name(inode)) => {
                    if walk.depth() as u64 >= u64::from(levels) {
                        walk.skip();
                    }
                    if inode.is_dir() {
                        self.directories += 1;
                    } else {
                        self.files += 1;
                    }
                    if self.records.format.null {
                        self.records.path(walk.path())?;
                    } else if self.records.format.json {
                        let (record, missed) = record::file(fs, walk.path(), &inode);
                        self.records.value(&record.into())?;
                        missed.into_iter().for_each(|e| self.complain(walk.path(), e));
                    } else {
                        self.line(&walk, &inode)?;
                    }
                    let doubt = self.tally.found(fs, walk.path(), &inode);
                    doubt.into_iter().for_each(|e| self.report.complain(e));
                }
                Ok(Visit::Left(dir)) => {
                    let doubt = self.tally.left(fs, walk.path(), &dir);
                    doubt.into_iter().for_each(|e| self.report.complain(e));
                }
                Err(e) => {
                    self.tally.hurt(rescued::id(fs));
                    self.complain(walk.path(), e);
                }
            }
        }
        Ok(())
    }

    fn line(&mut self, walk: &Walk<'_>, inode: &InodeRef) -> Result<()> {
        for (level, more) in walk.more().enumerate() {
            let line = match (level + 1 == walk.depth(), more) {
                (false, true) => "│   ",
                (false, false) => "    ",
                (true, true) => "├── ",
                (true, false) => "└── ",
            };
            self.records.out.write_all(line.as_bytes())?;
        }
        self.records.out.name(walk.name())?;
        if inode.file_type() == Some(FileType::Symlink) {
            match self.fs.read_link(inode) {
                Ok(target) => {
                    self.records.out.write_all(b" -> ")?;
                    self.records.out.name(&target)?;
                }
                Err(e) => self.complain(walk.path(), e),
            }
        }
        writeln!(self.records.out)?;
        Ok(())
    }
}
