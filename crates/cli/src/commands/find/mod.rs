//! `extant find`: searches for files by name, kind, size and the like.
//!
//! Main types: [`Search`] (where to begin, and how to print), [`Expression`] (the condition). The words are those of
//! find(1). There is no -exec: `-print0` is for xargs.
//!
//! # Locking
//! None.

mod expression;
mod test;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Filesystem, InodeRef};

use self::expression::{Expression, Outcome, parse};
use self::test::Candidate;
use super::verb::{File, Images, Report};
use crate::args::FindArgs;
use crate::failure::{Failure, Result};
use crate::image;
use crate::record::{self, Format, Records};
use crate::rescued::{self, Did, Tally};

/// The search of a command line.
struct Search {
    expression: Expression,
    depth_max: usize,
    depth_min: usize,
    format: Format,
}

/// Where the results of a search go.
struct Results {
    records: Records,
    report: Report,
    tally: Tally,
}

pub fn run(args: &FindArgs, images: &mut Images) -> Result<()> {
    let begins = |word: &OsString| word.as_bytes().starts_with(b"-") || word == "!" || word == "(" || word == ")";
    let paths = args.words.iter().take_while(|word| !begins(word)).count();
    let (paths, words) = args.words.split_at(paths);
    if paths.is_empty() {
        return Err(Failure::usage("find needs an image: IMAGE or IMAGE:PATH"));
    }
    let mut search = parse(words, images)?;
    search.format = Format { json: args.json || search.format.json, null: args.null || search.format.null };
    let (records, report) = (Records::new(search.format)?, Report::default());
    let mut to = Results { records, report, tally: Tally::new(Did::Looked) };
    for path in paths {
        // If one cannot be opened, the search goes on with the others.
        let searched = images.file_or_image(path).and_then(|file| search.file(&file, &mut to));
        to.report.note(searched)?;
    }
    to.records.end()?;
    images.each_open(|fs| to.tally.print(fs));
    to.report.end()
}

impl Search {
    fn file(&self, file: &File, to: &mut Results) -> Result<()> {
        let fs = &file.fs;
        let top = file.walk(false)?;
        let name = file.name().unwrap_or(b"/");
        let pruned = self.visit(fs, &file.path, name, 0, &top, to)?;
        let mut walk = Walk::new(fs, &file.path, top);
        if self.depth_max == 0 || pruned {
            walk.skip();
        }
        while let Some(visit) = walk.next() {
            match visit {
                Ok(Visit::Name(inode)) => {
                    let pruned = self.visit(fs, walk.path(), walk.name(), walk.depth(), &inode, to)?;
                    to.tally.found(fs, walk.path(), &inode).into_iter().for_each(|e| to.report.complain(e));
                    if walk.depth() >= self.depth_max || pruned {
                        walk.skip();
                    }
                }
                Ok(Visit::Left(dir)) => {
                    to.tally.left(fs, walk.path(), &dir).into_iter().for_each(|e| to.report.complain(e));
                }
                Err(e) => {
                    to.tally.hurt(rescued::id(fs));
                    to.report.note(Err(image::at(fs, walk.path(), e)))?;
                }
            }
        }
        Ok(())
    }

    /// True: skip everything below it.
    fn visit(
        &self,
        fs: &Filesystem,
        path: &[u8],
        name: &[u8],
        depth: usize,
        inode: &InodeRef,
        to: &mut Results,
    ) -> Result<bool> {
        if depth < self.depth_min {
            return Ok(false);
        }
        let candidate = Candidate { fs, path, name, inode, attr: fs.getattr(inode) };
        let mut outcome = Outcome::default();
        if let Err(e) = self.expression.holds(&candidate, &mut outcome) {
            to.report.note(Err(image::at(fs, path, e)))?;
        }
        for _ in 0..outcome.prints {
            if !self.format.json {
                to.records.path(path)?;
                continue;
            }
            let (record, missed) = record::file(fs, path, inode);
            to.records.value(&record.into())?;
            missed.map_or(Ok(()), |e| to.report.note(Err(image::at(fs, path, e))))?;
        }
        Ok(outcome.pruned)
    }
}
