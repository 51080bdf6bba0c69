//! `extant du`: how much space files take.
//!
//! # Locking
//! None.

use std::collections::HashSet;
use std::io::Write;

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Filesystem, InodeRef};

use super::verb::{File, Images, Report};
use crate::args::DuArgs;
use crate::failure::Result;
use crate::record::{self, Records};
use crate::{image, size};

pub fn run(args: &DuArgs, images: &mut Images) -> Result<()> {
    let mut counting = Counting { args, records: Records::new(args.format)?, counted: HashSet::new() };
    let mut report = Report::default();
    for path in &args.paths {
        let done = images.file_or_image(path).and_then(|file| counting.file(&file, &mut report));
        report.note(done)?;
    }
    counting.records.end()?;
    report.end()
}

struct Counting<'a> {
    args: &'a DuArgs,
    records: Records,
    /// Files with several names, which are counted once: which image, which inode.
    counted: HashSet<(usize, u32)>,
}

impl Counting<'_> {
    /// Bytes of one file; none if it has been counted.
    fn bytes(&mut self, fs: &Filesystem, inode: &InodeRef) -> u64 {
        let attr = fs.getattr(inode);
        if attr.nlink > 1 && !inode.is_dir() && !self.counted.insert((std::ptr::from_ref(fs) as usize, attr.ino.0)) {
            return 0;
        }
        if self.args.apparent { if inode.is_dir() { 0 } else { attr.size } } else { attr.blocks * 512 }
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
        let own = self.bytes(fs, &top);
        if !top.is_dir() {
            return self.line(&file.path, own);
        }
        // What each directory on the way down has in it so far.
        let mut sums = vec![own];
        let mut walk = Walk::new(fs, &file.path, top);
        while let Some(visit) = walk.next() {
            match visit {
                Ok(Visit::Name(inode)) => {
                    let bytes = self.bytes(fs, &inode);
                    if inode.is_dir() {
                        sums.truncate(walk.depth());
                        sums.push(bytes);
                        continue;
                    }
                    if let Some(sum) = sums.get_mut(walk.depth() - 1) {
                        *sum += bytes;
                    }
                    if self.args.all {
                        self.line(walk.path(), bytes)?;
                    }
                }
                Ok(Visit::Left(_)) => {
                    sums.truncate(walk.depth() + 1);
                    let sum = sums.pop().unwrap_or(0);
                    if let Some(above) = sums.last_mut() {
                        *above += sum;
                    }
                    if !self.args.summarize || walk.depth() == 0 {
                        self.line(walk.path(), sum)?;
                    }
                }
                Err(e) => report.note(Err(image::at(fs, walk.path(), e)))?,
            }
        }
        Ok(())
    }
}
