//! `extant xattr`: extended attributes.
//!
//! # Locking
//! None.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use extant_fs::SetMode;

use super::verb::{File, Images, Report};
use crate::args::{ImageArgs, XattrArgs, XattrCommand};
use crate::failure::{Failure, Result};
use crate::record::{self, Records};
use crate::text::Output;

/// Opens images for reading or writing, as the sub-command needs.
pub fn images(args: &XattrArgs, how: &ImageArgs) -> Images {
    match args.command {
        XattrCommand::List { .. } | XattrCommand::Get { .. } => Images::for_reading(how),
        XattrCommand::Set { .. } | XattrCommand::Remove { .. } => Images::for_writing(how),
    }
}

pub fn run(args: &XattrArgs, images: &mut Images) -> Result<()> {
    match &args.command {
        XattrCommand::List { paths, no_dereference, format } => {
            let (mut records, mut report) = (Records::new(*format)?, Report::default());
            for path in paths {
                // If one image cannot be opened, the list continues with the others.
                let listed =
                    images.file(path).and_then(|file| list(&file, !no_dereference, paths.len() > 1, &mut records));
                report.note(listed)?;
            }
            records.end()?;
            report.end()
        }
        XattrCommand::Get { name, path, no_dereference } => {
            let file = images.file(path)?;
            let inode = file.walk(!no_dereference)?;
            let value = file.fs.get_xattr(&inode, name.as_bytes()).map_err(|e| file.failed(e))?;
            let mut out = Output::new();
            out.write_all(&value)?;
            Ok(out.flush()?)
        }
        XattrCommand::Set { name, value, paths, no_dereference } => {
            let value = decoded(value.as_bytes())?;
            images.each(paths, |_, file, _| {
                let inode = file.walk(!no_dereference)?;
                file.fs.set_xattr(&inode, name.as_bytes(), &value, SetMode::Any).map_err(|e| file.failed(e))
            })
        }
        XattrCommand::Remove { name, paths, no_dereference } => images.each(paths, |_, file, _| {
            let inode = file.walk(!no_dereference)?;
            file.fs.remove_xattr(&inode, name.as_bytes()).map_err(|e| file.failed(e))
        }),
    }
}

fn list(file: &File, follow: bool, named: bool, records: &mut Records) -> Result<()> {
    let failed = |e| file.failed(e);
    let inode = file.walk(follow)?;
    for name in file.fs.list_xattrs(&inode).map_err(failed)? {
        if records.format.json {
            let value = file.fs.get_xattr(&inode, &name).map_err(failed)?;
            let mut record = record::path(&file.path);
            record.append(&mut record::name("name", &name));
            record.append(&mut record::name("value", &value));
            records.value(&record.into())?;
            continue;
        }
        if named && records.is_plain() {
            records.out.name(&file.path)?;
            records.out.write_all(b": ")?;
        }
        records.path(&name)?;
    }
    Ok(())
}

/// `0x…` is hexadecimal, as in setfattr(1); anything else is the value itself.
fn decoded(value: &[u8]) -> Result<Vec<u8>> {
    let Some(digits) = value.strip_prefix(b"0x").or_else(|| value.strip_prefix(b"0X")) else {
        return Ok(value.to_vec());
    };
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    bytes.ok_or_else(|| Failure::usage("a value that begins with 0x has hexadecimal digits in pairs"))
}
