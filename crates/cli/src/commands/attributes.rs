//! `extant chattr` and `extant lsattr`: the flags of files.
//!
//! What it does not do: it changes neither the version nor some flags: those for how a file is stored (`e`, `F`), and
//! the one that needs the journal (`j`).
//!
//! # Locking
//! None.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Write;

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Filesystem, InodeRef, SetFlags};
use extant_ondisk::inode::FileType;

use super::verb::{File, Images, Report, each};
use crate::args::{ChattrArgs, LsattrArgs};
use crate::failure::{Failure, Result};
use crate::image;
use crate::text::Output;

/// Letter, bit and word of each flag, in the order of lsattr(1) (e2fsprogs: lib/e2p/pf.c).
const FLAGS: [(char, u32, &str); 22] = [
    ('s', 0x1, "Secure_Deletion"),
    ('u', 0x2, "Undelete"),
    ('S', 0x8, "Synchronous_Updates"),
    ('D', 0x1_0000, "Synchronous_Directory_Updates"),
    ('i', 0x10, "Immutable"),
    ('a', 0x20, "Append_Only"),
    ('d', 0x40, "No_Dump"),
    ('A', 0x80, "No_Atime"),
    ('c', 0x4, "Compression_Requested"),
    ('E', 0x800, "Encrypted"),
    ('j', 0x4000, "Journaled_Data"),
    ('I', 0x1000, "Indexed_directory"),
    ('t', 0x8000, "No_Tailmerging"),
    ('T', 0x2_0000, "Top_of_Directory_Hierarchies"),
    ('e', 0x8_0000, "Extents"),
    ('C', 0x80_0000, "No_COW"),
    ('x', 0x200_0000, "DAX"),
    ('F', 0x4000_0000, "Casefold"),
    ('N', 0x1000_0000, "Inline_Data"),
    ('P', 0x2000_0000, "Project_Hierarchy"),
    ('V', 0x10_0000, "Verity"),
    ('m', 0x400, "Dont_Compress"),
];
/// Letters that chattr(1) takes.
const SETTABLE: &str = "aAcCdDeFijmPsStTux";

/// A change of flags: those to add, those to remove, and the whole set if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mode {
    add: u32,
    remove: u32,
    set: Option<u32>,
}

impl Mode {
    /// Adds one word, such as `+ia`. `None` if it is not a mode.
    fn with(mut self, word: &str) -> Option<Mode> {
        let mut letters = word.chars();
        let sign = letters.next()?;
        let rest = letters.as_str();
        let bit = |letter| {
            let known = SETTABLE.contains(letter);
            FLAGS.iter().find(|(one, ..)| known && *one == letter).map(|(_, bit, _)| *bit)
        };
        let bits = rest.chars().map(bit).try_fold(0, |all, bit| Some(all | bit?))?;
        match sign {
            '+' if !rest.is_empty() => self.add |= bits,
            '-' if !rest.is_empty() => self.remove |= bits,
            '=' => self.set = Some(self.set.unwrap_or(0) | bits),
            _ => return None,
        }
        Some(self)
    }

    /// The new flags of a file that has `old`. Bits that chattr has no letter for do not change.
    fn apply(self, old: u32) -> u32 {
        let letters = FLAGS.iter().filter(|(letter, ..)| SETTABLE.contains(*letter)).map(|(_, bit, _)| *bit);
        // Flags for how a file is stored do not change, as with the kernel's chattr.
        let fixed = 0x8_0000 | 0x4000_0000;
        let all = letters.fold(0, |all, bit| all | bit) & !fixed;
        let base = self.set.map_or(old, |set| old & !all | set & all);
        (base | self.add) & !self.remove
    }
}

/// The mode in the words before the files.
fn mode(words: &[OsString]) -> Result<(Mode, &[OsString])> {
    let mut mode = Mode::default();
    let mut at = 0;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        match mode.with(word) {
            Some(more) => mode = more,
            None if word.starts_with(['+', '-', '=']) => {
                return Err(Failure::usage(format!("'{word}' is not a mode: + - or = and letters of {SETTABLE}")));
            }
            None => break,
        }
        at += 1;
    }
    if mode.set.is_some() && (mode.add | mode.remove) != 0 {
        return Err(Failure::usage("= goes without + and -".to_owned()));
    }
    if mode.add & mode.remove != 0 {
        return Err(Failure::usage("a flag cannot both come and go".to_owned()));
    }
    Ok((mode, &words[at..]))
}

/// `extant chattr`.
pub fn change(args: &ChattrArgs, images: &mut Images) -> Result<()> {
    let (mode, paths) = mode(&args.words)?;
    if mode == Mode::default() && args.project.is_none() {
        return Err(Failure::usage("chattr: no MODE: + - or = and letters, before IMAGE:PATH".to_owned()));
    }
    if paths.is_empty() {
        return Err(Failure::usage("chattr: no file: write IMAGE:PATH behind MODE".to_owned()));
    }
    let mut out = Output::new();
    let done = images.each(paths, |images, file, report| {
        each(file, true, args.recursive, &images.stop, report, |path, inode, _| {
            if !matches!(inode.file_type(), Some(FileType::Regular | FileType::Directory)) {
                return Ok(());
            }
            let old = file.fs.getattr(inode).flags;
            let flags = mode.apply(old);
            // The owner of an image may do everything that root may do on a mount.
            let set = SetFlags { flags: Some(flags), project: args.project, privileged: true };
            match file.fs.set_flags(inode, set) {
                Ok(()) if args.verbose => {
                    write!(out, "Flags of ")?;
                    out.name(path)?;
                    Ok(writeln!(out, " set as {}", letters(flags))?)
                }
                Ok(()) => Ok(()),
                Err(extant_fs::Error::NotSupported(_)) if args.force => Ok(()),
                Err(e) => Err(image::at(&file.fs, path, e)),
            }
        })
    });
    out.flush()?;
    done
}

fn letters(flags: u32) -> String {
    FLAGS.iter().map(|(letter, bit, _)| if flags & bit != 0 { *letter } else { '-' }).collect()
}

fn words(flags: u32) -> String {
    let set: Vec<&str> = FLAGS.iter().filter(|(_, bit, _)| flags & bit != 0).map(|(.., word)| *word).collect();
    if set.is_empty() { "---".to_owned() } else { set.join(", ") }
}

/// `extant lsattr`.
pub fn list(args: &LsattrArgs, images: &mut Images) -> Result<()> {
    let mut report = Report::default();
    let mut out = Output::new();
    for arg in &args.paths {
        let file = images.file_or_image(arg)?;
        images.stop.check()?;
        let listed = one(args, &mut out, &file, images, &mut report);
        report.note(listed)?;
    }
    out.flush()?;
    report.end()
}

fn one(args: &LsattrArgs, out: &mut Output, file: &File, images: &Images, report: &mut Report) -> Result<()> {
    let top = file.walk(false)?;
    if args.directory || !top.is_dir() {
        return show(args, out, &file.fs, &file.path, &top);
    }
    let mut dirs = VecDeque::from([(file.path.clone(), top)]);
    while let Some((path, dir)) = dirs.pop_front() {
        images.stop.check()?;
        if path != file.path {
            out.write_all(b"\n")?;
            out.name(&path)?;
            out.write_all(b":\n")?;
        }
        // The walk never leaves this directory: subdirectories get a walk of their own.
        let mut walk = Walk::new(&file.fs, &path, dir);
        while let Some(visit) = walk.next() {
            let inode = match visit {
                Ok(Visit::Name(inode)) => inode,
                Ok(Visit::Left(_)) => continue,
                Err(e) => {
                    report.note(Err(image::at(&file.fs, walk.path(), e)))?;
                    continue;
                }
            };
            if inode.is_dir() {
                walk.skip();
            }
            if walk.name().starts_with(b".") && !args.all {
                continue;
            }
            let shown = show(args, out, &file.fs, walk.path(), &inode);
            report.note(shown)?;
            if args.recursive && inode.is_dir() {
                dirs.push_back((walk.path().to_vec(), inode));
            }
        }
    }
    Ok(())
}

fn show(args: &LsattrArgs, out: &mut Output, fs: &Filesystem, path: &[u8], inode: &InodeRef) -> Result<()> {
    let attr = fs.getattr(inode);
    // lsattr(1) fails for links and devices; here their flags are readable.
    if args.project {
        write!(out, "{:>5} ", inode.project())?;
    }
    if args.generation {
        write!(out, "{:<10} ", attr.generation)?;
    }
    if args.long {
        let width = 28usize.saturating_sub(path.len());
        out.name(path)?;
        return Ok(writeln!(out, "{:width$} {}", "", words(attr.flags))?);
    }
    write!(out, "{} ", letters(attr.flags))?;
    out.name(path)?;
    Ok(writeln!(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_add_remove_and_replace() {
        let parse = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            mode(&words).map(|(mode, rest)| (mode, rest.len()))
        };
        let (plus, rest) = parse(&["+ia", "-d", "x:/f"]).expect("a mode");
        assert_eq!((plus.apply(0x8_0040), rest), (0x8_0030, 1));
        let (set, _) = parse(&["=A", "x:/f"]).expect("a mode");
        assert_eq!(set.apply(0x8_0030), 0x8_0080);
        let (none, _) = parse(&["=", "x:/f"]).expect("a mode");
        assert_eq!(none.apply(0x8_1030), 0x8_1000);
        for wrong in [&["+q", "x:/f"][..], &["+", "x:/f"], &["+i", "-i", "x:/f"], &["=i", "+a", "x:/f"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(letters(0x8_0000), "--------------e-------");
        assert_eq!(words(0x30), "Immutable, Append_Only");
    }
}
