//! `extant resize` of a directory on which Extant serves a file system, which grows while it is in use.
//!
//! The server grows it ([`extant_fs::Filesystem::grow`]); this module sends the request and reports the result.
//!
//! # Locking
//! None.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use extant_fs::GrowTo;
use extant_fuse::{Errno, GrowOutcome, GrowRecord, grow_control};

use super::{FAILED, Size, shape};
use crate::args::ResizeArgs;
use crate::commands::freeze::NOT_PRIVILEGED;
use crate::failure::{Failure, Result, USAGE, plain};
use crate::mount_table;
use crate::text::{Output, shown};

/// Grows the file system that is mounted on the directory `args.image`.
pub fn run(args: &ResizeArgs, size: Size) -> Result<()> {
    let name = shown(args.image.as_bytes());
    if args.partition.is_some() || args.offset.is_some() || args.undo_file.is_some() {
        let e = format!("{name}: a directory: --partition, --offset and -z are for images that nothing uses");
        return Err(Failure::new(USAGE, e));
    }
    let size = match size {
        Size::To(bytes) => GrowTo::Bytes(bytes),
        Size::More(bytes) => GrowTo::More(bytes),
        Size::Max => GrowTo::Device,
        Size::Min => return Err(smaller(&name)),
    };
    grow(&name, Path::new(&args.image), size).map_err(|e| e.with_status(FAILED))
}

fn smaller(name: &str) -> Failure {
    let e = format!("{name}: not shrunk: a file system becomes smaller only while nothing uses it; unmount it first");
    Failure::op(e).with_status(FAILED)
}

fn grow(name: &str, dir: &Path, size: GrowTo) -> Result<()> {
    let Some(found) = mount_table::find(dir)?.filter(|found| found.mount.is_extant()) else {
        return Err(Failure::op(format!("{name}: neither an image nor a mount of Extant")));
    };
    let root = found.point.open_root(found.top);
    let root = root.map_err(|e| Failure::io(found.point.path(), std::io::Error::from(e)))?;
    let mut record = GrowRecord::to(size);
    grow_control(&root, &mut record).map_err(|e| match e {
        Errno::PERM => Failure::op(format!("{name}: {NOT_PRIVILEGED}")),
        Errno::NOTTY | Errno::OPNOTSUPP => {
            Failure::op(format!("{name}: the program that serves it is older than growth while mounted; mount it anew"))
        }
        e => Failure::op(format!("{name}: {}", plain(&e.into()))),
    })?;
    let sizes = record.sizes();
    let described = |blocks: u64, groups: u32| shape(blocks, groups, record.block_size());
    match record.outcome() {
        GrowOutcome::Done => {
            let (before, after) = (described(sizes.before, sizes.groups_before), described(sizes.after, sizes.groups));
            let mut out = Output::new();
            if sizes.before == sizes.after {
                writeln!(out, "{name}: nothing to do: it has {after}")?;
            } else {
                writeln!(out, "{name}: {after} now; it had {before}")?;
            }
            Ok(out.flush()?)
        }
        GrowOutcome::Smaller => Err(smaller(name)),
        GrowOutcome::Refused if sizes.before == sizes.after => {
            Err(Failure::op(format!("{name}: not grown: {}; it is as it was", record.reason())))
        }
        GrowOutcome::Refused => {
            let now = described(sizes.after, sizes.groups);
            Err(Failure::op(format!("{name}: not grown as far as asked: {}; it has {now} now", record.reason())))
        }
    }
}
