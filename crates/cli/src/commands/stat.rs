//! `extant stat`: everything about one file.
//!
//! # Locking
//! None.

use std::io::Write;

use extant_ondisk::inode::{FileType, InodeFlags};

use super::verb::Images;
use crate::args::StatArgs;
use crate::failure::{Failure, Result};
use crate::image;
use crate::place::{in_image, the_path};
use crate::record;
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
    let inode = fs.walk(path, false).map_err(failed)?;
    let attr = fs.getattr(&inode);
    let mut out = Output::new();
    let flags = InodeFlags::from_bits_retain(attr.flags);
    let flag_names: Vec<String> = flags.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    if args.json {
        let mut record = record::file(&fs, path, &inode).map_err(failed)?;
        record.insert("block_size".into(), attr.block_size.into());
        record.insert("generation".into(), attr.generation.into());
        record.insert("flags".into(), flag_names.into());
        let mut xattrs = Vec::new();
        for name in fs.list_xattrs(&inode).map_err(failed)? {
            let value = fs.get_xattr(&inode, &name).map_err(failed)?;
            let mut xattr = record::name("name", &name);
            xattr.append(&mut record::name("value", &value));
            xattrs.push(serde_json::Value::from(xattr));
        }
        record.insert("xattrs".into(), xattrs.into());
        writeln!(out, "{}", record::escaped(&format!("{:#}", serde_json::Value::from(record))))?;
        return Ok(out.flush()?);
    }
    out.write_all(b"  File: ")?;
    out.name(path)?;
    if inode.file_type() == Some(FileType::Symlink) {
        out.write_all(b" -> ")?;
        out.name(&fs.read_link(&inode).map_err(failed)?)?;
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
    writeln!(out, " Flags: {:#x} {}", attr.flags, flag_names.join(" "))?;
    for name in fs.list_xattrs(&inode).map_err(failed)? {
        let value = fs.get_xattr(&inode, &name).map_err(failed)?;
        out.write_all(b" Xattr: ")?;
        out.name(&name)?;
        writeln!(out, " ({} bytes)", value.len())?;
    }
    out.flush()?;
    Ok(())
}
