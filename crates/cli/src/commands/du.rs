//! `extant du`: the space that files use.
//!
//! # Locking
//! None.

use std::collections::HashMap;
use std::io::Write;

use extant_fs::number_set::NumberSet;
use extant_fs::walk::{Visit, Walk};
use extant_fs::{Error, Filesystem, InodeRef};

use super::verb::{File, Images, Report};
use crate::args::DuArgs;
use crate::failure::Result;
use crate::record::{self, Records};
use crate::rescued::{self, AccessKind, Tally};
use crate::{image, size};

pub fn run(args: &DuArgs, images: &mut Images) -> Result<()> {
    let (records, tally) = (Records::new(args.format)?, Tally::new(AccessKind::Looked));
    let mut counting = Counting { args, records, counted: HashMap::new(), tally };
    let mut report = Report::default();
    for path in &args.paths {
        let done = images.file_or_image(path).and_then(|file| counting.file(&file, &mut report));
        report.note(done)?;
    }
    counting.records.end()?;
    images.each_open(|fs| counting.tally.print(fs));
    report.end()
}

struct Counting<'a> {
    args: &'a DuArgs,
    records: Records,
    /// Inodes with several names, which count once, for each image.
    counted: HashMap<usize, NumberSet>,
    tally: Tally,
}

impl Counting<'_> {
    /// Bytes of one file; 0 if it was counted before.
    fn bytes(&mut self, fs: &Filesystem, inode: &InodeRef) -> std::result::Result<u64, Error> {
        let attr = fs.getattr(inode);
        if attr.nlink > 1 && !inode.is_dir() {
            let counted = self.counted.entry(rescued::id(fs)).or_default();
            match counted.insert(attr.ino.0.into()) {
                Some(true) => {}
                Some(false) => return Ok(0),
                None => {
                    let detail = "more files with several names than can be remembered: not counted".into();
                    return Err(Error::NoMemory { detail });
                }
            }
        }
        Ok(if self.args.apparent {
            if inode.is_dir() { 0 } else { attr.size }
        } else {
            attr.blocks.saturating_mul(512)
        })
    }

    fn line(&mut self, path: &[u8], bytes: u64) -> Result<()> {
        if self.records.format.json {
            let mut record = record::path(path);
            record.insert("bytes".into(), bytes.into());
            return self.records.value(&record.into());
        }
        let amount = match () {
            () if self.args.human => size::short(bytes),
            () if self.args.apparent => bytes.to_string(),
            () => bytes.div_ceil(1024).to_string(),
        };
        write!(self.records.out, "{amount}\t")?;
        self.records.path(path)
    }

    fn file(&mut self, file: &File, report: &mut Report) -> Result<()> {
        let fs = &file.fs;
        let top = file.walk(false)?;
        let own = self.bytes(fs, &top).map_err(|e| file.failed(e))?;
        if !top.is_dir() {
            return self.line(&file.path, own);
        }
        // The sum so far of each directory on the current path.
        let mut sums = vec![own];
        let mut walk = Walk::new(fs, &file.path, top);
        while let Some(visit) = walk.next() {
            match visit {
                Ok(Visit::Name(inode)) => {
                    let bytes = match self.bytes(fs, &inode) {
                        Ok(bytes) => bytes,
                        Err(e) => {
                            report.note(Err(image::at(fs, walk.path(), e)))?;
                            continue;
                        }
                    };
                    self.tally.found(fs, walk.path(), &inode).into_iter().for_each(|e| report.complain(e));
                    if inode.is_dir() {
                        sums.truncate(walk.depth());
                        sums.push(bytes);
                        continue;
                    }
                    if let Some(sum) = sums.get_mut(walk.depth() - 1) {
                        *sum = sum.saturating_add(bytes);
                    }
                    if self.args.all {
                        self.line(walk.path(), bytes)?;
                    }
                }
                Ok(Visit::Left(dir)) => {
                    self.tally.left(fs, walk.path(), &dir).into_iter().for_each(|e| report.complain(e));
                    sums.truncate(walk.depth() + 1);
                    let sum = sums.pop().unwrap_or(0);
                    if let Some(above) = sums.last_mut() {
                        *above = above.saturating_add(sum);
                    }
                    if !self.args.summarize || walk.depth() == 0 {
                        self.line(walk.path(), sum)?;
                    }
                }
                Err(e) => {
                    self.tally.hurt(rescued::id(fs));
                    report.note(Err(image::at(fs, walk.path(), e)))?;
                }
            }
        }
        Ok(())
    }
}
