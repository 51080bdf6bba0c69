//! `extant find`: searches for files by name, kind, size and the like.
//!
//! Main type: [`Search`] (the starting points, the expression, and the output format). `extant_transfer::find`
//! evaluates the expression, whose words are those of find(1). There is no -exec: `-print0` is for xargs.
//!
//! # Locking
//! None.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_fs::walk::{Visit, Walk};
use extant_fs::{BlockUse, Filesystem, InodeRef};
use extant_image::{has_magic, look, partition_table};
use extant_ondisk::time::Timestamp;
use extant_transfer::find::{self, Candidate, Expression, Outcome, Spot};
use nix::unistd::{Group, User};

use super::verb::{File, Images, Report};
use crate::args::FindArgs;
use crate::failure::{Failure, Result, warn};
use crate::image::{self, ImageSpec, Part};
use crate::place::Place;
use crate::record::{self, Format, Records};
use crate::rescued::{self, AccessKind, Tally};

/// The search of a command line.
struct Search {
    expression: Expression,
    depth_max: usize,
    depth_min: usize,
    /// The places on the device that its tests name.
    spots: Vec<Spot>,
    format: Format,
}

/// The context for the words of an expression: the command's images, the host, and the options.
struct Words<'a> {
    images: &'a mut Images,
    format: Format,
}

impl find::Words for Words<'_> {
    type Error = Failure;

    /// The modification time of a file of an image, or of the host.
    fn modified(&mut self, file: &OsStr) -> Result<Timestamp> {
        if Place::parse(file).is_in_image() {
            let file = self.images.file(file)?;
            return Ok(file.fs.getattr(&file.walk(false)?).mtime);
        }
        let path = Path::new(file);
        let modified = path.symlink_metadata().map_err(|e| Failure::io(path, e))?;
        Ok(Timestamp { seconds: modified.mtime(), nanos: modified.mtime_nsec() as u32 })
    }

    fn user(&self, name: &str) -> Option<u32> {
        User::from_name(name).ok().flatten().map(|user| user.uid.as_raw())
    }

    fn group(&self, name: &str) -> Option<u32> {
        Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw())
    }

    fn takes(&mut self, word: &str) -> bool {
        match word {
            "-print0" | "-0" => self.format.null = true,
            "--json" => self.format.json = true,
            _ => return false,
        }
        true
    }

    fn known(&self) -> &'static str {
        " -print0 --json"
    }

    fn wrong(&self, why: String) -> Failure {
        Failure::usage(why)
    }
}

/// The search of one image: where the image begins in its file, in bytes, and where results go.
struct Results {
    start: u64,
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
    let format = Format { json: args.json, null: args.null };
    let mut context = Words { images, format };
    let found = find::Search::parse(words, &mut context)?;
    let format = context.format;
    let find::Search { expression, depth_max, depth_min, spots } = found;
    let search = Search { expression, depth_max, depth_min, spots, format };
    let (records, report) = (Records::new(search.format)?, Report::default());
    let mut to = Results { start: 0, records, report, tally: Tally::new(AccessKind::Looked) };
    for path in paths {
        // If one image cannot be opened, the search continues with the others.
        let path = search.partition_of(path);
        let searched = images.file_or_image(&path).and_then(|file| {
            to.start = images.start(&file.fs);
            let before = to.records.count;
            search.file(&file, &mut to)?;
            search.explain(&file, to.start, to.records.count > before)
        });
        to.report.note(searched)?;
    }
    to.records.end()?;
    images.each_open(|fs| to.tally.print(fs));
    to.report.end()
}

impl Search {
    /// If a sector of a disk is given and the image names no partition, adds the partition that contains the sector.
    fn partition_of(&self, arg: &OsStr) -> OsString {
        let number = self.spots.iter().find_map(|spot| match spot {
            Spot::Sector(sector) if !Place::parse(arg).is_in_image() => {
                let spec = ImageSpec::parse(arg);
                let whole = look(&spec).ok().filter(|dev| spec.part == Part::Any && !has_magic(&**dev))?;
                let byte = sector.saturating_mul(512);
                let partitions = partition_table(&*whole).ok()?.partitions;
                partitions.iter().find(|p| byte >= p.start && byte - p.start < p.len).map(|p| p.number)
            }
            _ => None,
        });
        let mut arg = arg.to_owned();
        if let Some(number) = number {
            arg.push(format!("@{number}"));
        }
        arg
    }

    /// Explains places that belong to no file. `printed`: the search has found something.
    fn explain(&self, file: &File, start: u64, printed: bool) -> Result<()> {
        for spot in &self.spots {
            let place = match spot {
                Spot::Block(block) => format!("block {block}"),
                Spot::Sector(sector) => format!("sector {sector}"),
            };
            let found = spot.block(&file.fs, start).map_or(Ok(BlockUse::Outside), |block| file.fs.block_use(block));
            let found = found.map_err(|e| Failure::op(format!("{}: {place}: {e}", file.fs.image())))?;
            if found == BlockUse::File && printed {
                continue;
            }
            if found == BlockUse::File {
                warn(&format!("{}: {place}: in use, but not by any file that the search found", file.fs.image()));
            } else {
                warn(&format!("{}: {place}: {found}", file.fs.image()));
            }
        }
        Ok(())
    }

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

    /// Visits one file. Returns true to skip everything below it.
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
        let candidate = Candidate { fs, path, name, inode, attr: fs.getattr(inode), start: to.start };
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
