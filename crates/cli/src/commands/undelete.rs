//! `extant undelete`: lists deleted files, and copies them out of an image.
//!
//! `extant_repair::undelete` finds and judges them. Names in the image are not trusted. Each is one component, files
//! are created and never opened, and symbolic links are created after all files, so none is followed.
//!
//! # Locking
//! None.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use extant_base::clock::Clock;
use extant_base::task;
use extant_check::Options;
use extant_image::probe;
use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;
use extant_repair::undelete::{Chance, Deleted, DeletedFiles, search};

use super::change;
use crate::args::{ImageArgs, UndeleteArgs};
use crate::failure::{Failure, HURT, Report, Result};
use crate::image;
use crate::text::{Output, second, shown};
use crate::when;

/// Permissions that a copied file may have: no set-ID bits.
const PERMISSIONS: u16 = 0o777;

pub fn run(args: &UndeleteArgs) -> Result<()> {
    let how = ImageArgs { partition: args.partition, offset: args.offset, ..ImageArgs::default() };
    let spec = how.spec(&args.image);
    let name = spec.shown();
    let now = Clock::real().wall().sec;
    let since = match &args.since {
        None => None,
        Some(text) => Some(when::date(text, Timestamp::from_seconds(now))?.map_or(now, |at| at.seconds)),
    };
    if let Some(dir) = &args.output {
        refuse_full(dir)?;
    }
    let device = image::open(&spec, &how.access(true))?.device;
    let (_, backup) = probe(&*device)?;
    if backup.is_some() {
        return Err(Failure::op(format!(
            "{name}: its superblock cannot be used; on a copy, 'extant fsck -fy' repairs it first"
        )));
    }
    let check = Options { threads: task::processors(), now, ..Options::default() };
    let overlay = Arc::new(change::layers().over(device));
    let found = search(overlay, &check).map_err(|e| Failure::op(format!("{name}: {e}")))?;
    let none = |why: &str| Err(Failure::new(HURT, format!("{name}: no deleted file was found: {why}")));
    let Some(mut found) = found else {
        return none("it has no journal; photorec(8) searches blocks for known kinds of files");
    };
    let is_since = |file: &Deleted| {
        let when = file.deleted.or(file.version.map(|when| when as i64));
        since.is_none_or(|since| when.is_none_or(|when| when >= since))
    };
    found.files.retain(is_since);
    if found.files.is_empty() {
        let transactions = found.transactions;
        return none(&format!(
            "the journal has {transactions} transactions, and none shows a deleted file; photorec(8) searches blocks"
        ));
    }
    match &args.output {
        None => list(&found),
        Some(dir) => Copy { dir, partial: args.partial, found: &found, report: Report::default() }.run(),
    }
}

/// Creates the directory for copies. Refuses one that is not empty.
fn refuse_full(dir: &Path) -> Result<()> {
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(Failure::op(format!("{}: not empty: name a new directory for the files", dir.display()))),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => fs::create_dir(dir).map_err(|e| Failure::io(dir, e)),
        Err(e) => Err(Failure::io(dir, e)),
    }
}

fn list(found: &DeletedFiles) -> Result<()> {
    let mut out = Output::new();
    for file in &found.files {
        let (word, why) = match &file.chance {
            Chance::Whole => ("whole  ", String::new()),
            Chance::Partial { lost, why } => ("partial", format!("  ({why}; {lost} bytes lost)")),
        };
        let when = file.deleted.map_or_else(|| " ".repeat(19), second);
        write!(out, "{word} {:>12} {when} ", file.inode.size)?;
        out.name(&file.path)?;
        writeln!(out, "{why}")?;
    }
    out.flush()?;
    summary(found, None)
}

fn summary(found: &DeletedFiles, copied: Option<usize>) -> Result<()> {
    let whole = found.files.iter().filter(|file| file.chance == Chance::Whole).count();
    let partial = found.files.len() - whole;
    let copied = copied.map_or(String::new(), |count| format!("; {count} copied"));
    let mut out = Output::new();
    writeln!(out, "{whole} whole as far as bitmaps and log tell, {partial} partial{copied}")?;
    Ok(out.flush()?)
}

/// Copies of deleted files in a directory of the host.
struct Copy<'a> {
    dir: &'a Path,
    partial: bool,
    found: &'a DeletedFiles,
    report: Report,
}

impl Copy<'_> {
    fn run(mut self) -> Result<()> {
        let mut copied = 0;
        for links in [false, true] {
            for file in self.found.files.iter().filter(|file| (file.kind == FileType::Symlink) == links) {
                if file.chance != Chance::Whole && !self.partial {
                    continue;
                }
                match self.file(file) {
                    Ok(()) => copied += 1,
                    Err(e) => self.report.note(Err(e))?,
                }
            }
        }
        summary(self.found, Some(copied))?;
        self.report.end()
    }

    fn file(&self, file: &Deleted) -> Result<()> {
        let mut name = file.path.clone();
        if file.chance != Chance::Whole {
            name.extend(b".partial");
        }
        let wanted = self.dir.join(std::ffi::OsStr::from_bytes(&name));
        // Two files had the same path, or a directory became a file.
        let other = self.dir.join(format!("#{}.{}", file.ino.0, file.inode.generation));
        if file.kind == FileType::Symlink {
            let mut target = Vec::new();
            self.found.read::<FailedSide>(file, |_, bytes| {
                target.extend_from_slice(bytes);
                Ok(())
            })?;
            let target = std::ffi::OsStr::from_bytes(&target);
            return place(&wanted, &other, |path| symlink(target, path)).map(drop);
        }
        let create = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
        let (to, path) = place(&wanted, &other, create)?;
        let written = self.content(file, &to);
        written.map_err(|e| match e {
            FailedSide::Image(e) => Failure::op(format!("{}: {e}", shown(&file.path))),
            FailedSide::Host(e) => Failure::write(&path.display().to_string(), &e),
        })
    }

    fn content(&self, file: &Deleted, to: &File) -> std::result::Result<(), FailedSide> {
        to.set_len(file.inode.size)?;
        self.found.read::<FailedSide>(file, |at, bytes| Ok(to.write_all_at(bytes, at)?))?;
        let seconds = u64::try_from(file.inode.mtime.seconds).unwrap_or(0);
        let time = UNIX_EPOCH + Duration::new(seconds, file.inode.mtime.nanos.min(999_999_999));
        to.set_permissions(Permissions::from_mode(u32::from(file.inode.mode & PERMISSIONS)))?;
        Ok(to.set_times(FileTimes::new().set_modified(time).set_accessed(time))?)
    }
}

/// Creates a file at its path, or under its number if the path is taken.
fn place<T>(wanted: &Path, other: &Path, make: impl Fn(&Path) -> std::io::Result<T>) -> Result<(T, PathBuf)> {
    let parent = wanted.parent().unwrap_or(wanted);
    let first = fs::create_dir_all(parent).and_then(|()| make(wanted));
    match first {
        Ok(made) => Ok((made, wanted.to_owned())),
        Err(_) => make(other).map(|made| (made, other.to_owned())).map_err(|e| Failure::io(other, e)),
    }
}

/// The side that failed.
enum FailedSide {
    Image(extant_repair::Error),
    Host(std::io::Error),
}

impl From<extant_repair::Error> for FailedSide {
    fn from(e: extant_repair::Error) -> FailedSide {
        FailedSide::Image(e)
    }
}

impl From<std::io::Error> for FailedSide {
    fn from(e: std::io::Error) -> FailedSide {
        FailedSide::Host(e)
    }
}

impl From<FailedSide> for Failure {
    fn from(broken: FailedSide) -> Failure {
        match broken {
            FailedSide::Image(e) => Failure::op(e.to_string()),
            FailedSide::Host(e) => Failure::op(e.to_string()),
        }
    }
}
