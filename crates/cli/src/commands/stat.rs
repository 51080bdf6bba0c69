//! `extant stat`: everything about one file.
//!
//! # Locking
//! None.

use std::io::{self, Write};

use extant_fs::{Attr, FileExtent, Filesystem, InodeRef};
use extant_ondisk::inode::{FileType, InodeFlags};
use extant_transfer::attributes::Xattrs;
use serde_json::{Value, json};

use super::verb::Images;
use crate::args::StatArgs;
use crate::failure::{Failure, Report, Result};
use crate::image;
use crate::place::{in_image, the_path};
use crate::record;
use crate::rescued;
use crate::text::{self, Output};

pub fn run(args: &StatArgs, images: &mut Images) -> Result<()> {
    let (spec, paths) = in_image(&args.image, args.path.as_slice());
    if paths.is_empty() {
        let image = spec.shown();
        return Err(Failure::usage(format!(
            "of which file? `extant stat {image} /`; of the image: `extant info {image}`"
        )));
    }
    let fs = images.image(&spec)?;
    let path = the_path(&paths)?;
    let failed = |e| image::at(&fs, path, e);
    let inode = image::walk(&fs, path, false).map_err(failed)?;
    let mut report = Report::default();
    // If one part is damaged, the others are still shown.
    let (xattrs, missed) = image::xattrs(&fs, &inode);
    missed.into_iter().for_each(|e| report.complain(failed(e)));
    let file = Described { fs: &fs, path, inode: &inode, xattrs };
    let out = Output::new();
    if args.json {
        file.print_json(out, &mut report)?
    } else {
        file.print(out, &mut report)?
    }
    if let Some(doubt) = rescued::doubt(&fs, &inode) {
        report.complain(failed(doubt.clone()));
    }
    report.end()?;
    image::refuse_damage([&fs])
}

/// A file, with all its readable attributes.
struct Described<'a> {
    fs: &'a Filesystem,
    path: &'a [u8],
    inode: &'a InodeRef,
    xattrs: Xattrs,
}

fn flag_names(attr: &Attr) -> Vec<String> {
    let flags = InodeFlags::from_bits_retain(attr.flags);
    flags.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}

impl Described<'_> {
    /// Prints each extent as it is found: the extents of a file may not fit into memory.
    fn each_extent(&self, report: &mut Report, mut print: impl FnMut(FileExtent) -> io::Result<()>) -> Result<()> {
        let mut printed = Ok(());
        let read = self.fs.extents(self.inode, |extent| {
            if printed.is_ok() {
                printed = print(extent);
            }
        });
        printed?;
        if let Err(e) = read {
            report.complain(image::at(self.fs, self.path, e));
        }
        Ok(())
    }

    fn print_json(&self, mut out: Output, report: &mut Report) -> Result<()> {
        let Described { fs, path, inode, xattrs } = self;
        let attr = fs.getattr(inode);
        let (mut record, missed) = record::file(fs, path, inode);
        missed.into_iter().for_each(|e| report.complain(image::at(fs, path, e)));
        record.insert("block_size".into(), attr.block_size.into());
        record.insert("generation".into(), attr.generation.into());
        record.insert("flags".into(), flag_names(&attr).into());
        let xattrs = xattrs.iter().map(|(name, value)| {
            let mut xattr = record::name("name", name);
            xattr.append(&mut record::name("value", value));
            Value::from(xattr)
        });
        record.insert("xattrs".into(), xattrs.collect::<Vec<_>>().into());
        let described = record::escaped(&format!("{:#}", Value::from(record)));
        write!(out, "{},\n  \"extents\": [", described.trim_end_matches("\n}"))?;
        let mut before = "\n";
        self.each_extent(report, |e| {
            let FileExtent { logical, physical, len, unwritten } = e;
            let extent = json!({ "logical": logical, "physical": physical.0, "length": len, "unwritten": unwritten });
            write!(out, "{}    {extent}", std::mem::replace(&mut before, ",\n"))
        })?;
        writeln!(out, "{}", if before == "\n" { "]\n}" } else { "\n  ]\n}" })?;
        Ok(out.flush()?)
    }

    fn print(&self, mut out: Output, report: &mut Report) -> Result<()> {
        let Described { fs, path, inode, xattrs } = self;
        let attr = fs.getattr(inode);
        out.write_all(b"  File: ")?;
        out.name(path)?;
        if inode.file_type() == Some(FileType::Symlink) {
            match fs.read_link(inode) {
                Ok(target) => {
                    out.write_all(b" -> ")?;
                    out.name(&target)?;
                }
                Err(e) => report.complain(image::at(fs, path, e)),
            }
        }
        writeln!(out)?;
        let (size, blocks, kind) = (attr.size, attr.blocks, text::kind(attr.mode));
        writeln!(out, "  Size: {size:<15} Blocks: {blocks:<10} Block size: {:<6} {kind}", attr.block_size)?;
        write!(out, " Inode: {:<15} Links: {:<11} Generation: {}", attr.ino.0, attr.nlink, attr.generation)?;
        if let Some(dev) = attr.rdev {
            write!(out, "  Device type: {},{}", dev.major, dev.minor)?;
        }
        writeln!(out)?;
        let mode = text::mode(attr.mode);
        writeln!(out, "Access: ({:04o}/{mode})  Uid: {}  Gid: {}", attr.mode & 0o7777, attr.uid, attr.gid)?;
        writeln!(out, "Access: {}", text::exact(attr.atime))?;
        writeln!(out, "Modify: {}", text::exact(attr.mtime))?;
        writeln!(out, "Change: {}", text::exact(attr.ctime))?;
        if let Some(birth) = attr.crtime {
            writeln!(out, " Birth: {}", text::exact(birth))?;
        }
        writeln!(out, " Flags: {:#x} {}", attr.flags, flag_names(&attr).join(" "))?;
        for (name, value) in xattrs {
            out.write_all(b" Xattr: ")?;
            out.name(name)?;
            writeln!(out, " ({} bytes)", value.len())?;
        }
        let mut begun = false;
        self.each_extent(report, |FileExtent { logical, physical, len, unwritten }| {
            if !std::mem::replace(&mut begun, true) {
                writeln!(out, "Extent: {:>12} {:>12} {:>10}", "logical", "physical", "length")?;
            }
            let flags = if unwritten { "  unwritten" } else { "" };
            writeln!(out, "        {logical:>12} {:>12} {len:>10}{flags}", physical.0)
        })?;
        Ok(out.flush()?)
    }
}
