//! Runs one operation with system calls.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use extant_base::rng::Rng;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags, chownat, fallocate,
    linkat, lremovexattr, lsetxattr, makedev, mkdirat, mknodat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::op::{Falloc, NodeType, Op, RenameMode, bulk_name};
use super::settle::set_times;

/// `len` bytes derived from `fill`.
pub(super) fn pattern(fill: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(fill);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Opens an existing regular file. Anything else is refused without opening it: a fifo would block, and a device node
/// would act.
fn open(path: &Path, append: bool) -> io::Result<File> {
    if !path.symlink_metadata()?.is_file() {
        return Err(Errno::NXIO.into());
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    File::options().read(true).write(!append).append(append).custom_flags(flags.bits() as i32).open(path)
}

pub(super) fn execute(top: &Path, op: &Op) -> io::Result<()> {
    match op {
        Op::Create { path, mode } => {
            File::options().write(true).create_new(true).mode(*mode).open(top.join(path)).map(drop)
        }
        Op::Write { path, offset, len, fill } => {
            open(&top.join(path), false)?.write_all_at(&pattern(*fill, *len), *offset)
        }
        Op::Append { path, len, fill } => open(&top.join(path), true)?.write_all(&pattern(*fill, *len)),
        Op::Truncate { path, size } => open(&top.join(path), false)?.set_len(*size),
        Op::Fallocate { path, how, offset, len } => {
            let flags = match how {
                Falloc::Allocate => FallocateFlags::empty(),
                Falloc::KeepSize => FallocateFlags::KEEP_SIZE,
                Falloc::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                Falloc::ZeroRange => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            };
            Ok(fallocate(open(&top.join(path), false)?, flags, *offset, *len)?)
        }
        Op::Fsync { path } => open(&top.join(path), false)?.sync_all(),
        Op::UnlinkOpen { path, len, fill } => unlink_open(&top.join(path), *len, *fill),
        Op::Unlink { path } => Ok(unlinkat(CWD, top.join(path), AtFlags::empty())?),
        Op::Mkdir { path, mode } => Ok(mkdirat(CWD, top.join(path), Mode::from_raw_mode(*mode))?),
        Op::Rmdir { path } => Ok(unlinkat(CWD, top.join(path), AtFlags::REMOVEDIR)?),
        Op::Rename { from, to, mode } => {
            let flags = match mode {
                RenameMode::Replace => RenameFlags::empty(),
                RenameMode::NoReplace => RenameFlags::NOREPLACE,
                RenameMode::Exchange => RenameFlags::EXCHANGE,
            };
            Ok(renameat_with(CWD, top.join(from), CWD, top.join(to), flags)?)
        }
        Op::Symlink { path, target } => std::os::unix::fs::symlink(target, top.join(path)),
        Op::Link { from, to } => Ok(linkat(CWD, top.join(from), CWD, top.join(to), AtFlags::empty())?),
        Op::Mknod { path, node, mode } => {
            let (kind, dev) = match *node {
                NodeType::Fifo => (FileType::Fifo, 0),
                NodeType::Socket => (FileType::Socket, 0),
                NodeType::CharDevice(major, minor) => (FileType::CharacterDevice, makedev(major, minor)),
                NodeType::BlockDevice(major, minor) => (FileType::BlockDevice, makedev(major, minor)),
            };
            Ok(mknodat(CWD, top.join(path), kind, Mode::from_raw_mode(*mode), dev)?)
        }
        Op::Chmod { path, mode } => std::fs::set_permissions(top.join(path), std::fs::Permissions::from_mode(*mode)),
        Op::Chown { path, uid, gid } => {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            Ok(chownat(CWD, top.join(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
        }
        Op::Utimens { path, atime, mtime } => set_times(&top.join(path), *atime, *mtime),
        Op::SetXattr { path, name, len, fill, flags } => {
            let flags = XattrFlags::from_bits_retain(*flags);
            Ok(lsetxattr(top.join(path), name.as_slice(), &pattern(*fill, *len), flags)?)
        }
        Op::RemoveXattr { path, name } => Ok(lremovexattr(top.join(path), name.as_slice())?),
        Op::SetAcl { path, default, blob } => {
            Ok(lsetxattr(top.join(path), acl_name(*default), blob, XattrFlags::empty())?)
        }
        Op::RemoveAcl { path, default } => Ok(lremovexattr(top.join(path), acl_name(*default))?),
        Op::Fill { dir, count, name_len } => {
            let dir = top.join(dir);
            (0..*count).try_for_each(|i| {
                let path = dir.join(bulk_name(i, *name_len));
                File::options().write(true).create(true).truncate(false).open(path).map(drop)
            })
        }
        Op::Thin { dir, count, name_len, every } => {
            let dir = top.join(dir);
            (0..*count).filter(|i| i % every == 0).try_for_each(|i| {
                match std::fs::remove_file(dir.join(bulk_name(i, *name_len))) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                    other => other,
                }
            })
        }
    }
}

fn acl_name(default: bool) -> &'static str {
    if default { "system.posix_acl_default" } else { "system.posix_acl_access" }
}

fn unlink_open(path: &Path, len: usize, fill: u64) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
    std::fs::remove_file(path)?;
    let bytes = pattern(fill, len);
    file.write_all(&bytes)?;
    file.seek(SeekFrom::Start(0))?;
    let mut back = Vec::with_capacity(len);
    file.read_to_end(&mut back)?;
    // This is not an error of a file system, but a difference in the report.
    if back == bytes { Ok(()) } else { Err(Errno::BADMSG.into()) }
}
