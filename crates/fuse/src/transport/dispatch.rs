//! Decoding: one message from the kernel becomes one call of the server.
//!
//! Every length is checked against the message before it is used. A message that is too short for its opcode is
//! answered with EIO, an unknown opcode with ENOSYS.
//!
//! # Locking
//! None.

use extant_base::clock::Timespec;
use extant_base::trace_point;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::dirbuf::DirBuf;
use super::init::Negotiated;
use super::origin::Origin;
use super::reply::*;
use crate::abi::*;
use crate::server::Server;
use crate::types::{
    CopyArgs, CreateArgs, FallocateArgs, IoctlArgs, MknodArgs, ReadArgs, ReleaseArgs, RenameArgs, Request, SetAttr,
    SetTime, SetxattrArgs, WriteArgs,
};

/// The worker's next action.
pub(crate) enum Flow {
    Continue,
    /// DESTROY: finish the server, then answer.
    Destroy(ReplyEmpty),
}

/// The message does not match its header. Its reply has been dropped, which answers EIO.
struct Malformed;

type Decoded<T> = Result<T, Malformed>;

/// The rest of a message.
struct Args<'a>(&'a [u8]);

impl<'a> Args<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Decoded<T> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    /// A name, without the NUL that ends it.
    fn name(&mut self) -> Decoded<&'a [u8]> {
        let end = self.0.iter().position(|&c| c == 0).ok_or(Malformed)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(name)
    }

    fn bytes(&mut self, len: u32) -> Decoded<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len as usize).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }
}

fn time(sec: u64, nsec: u32) -> Decoded<Timespec> {
    if nsec >= 1_000_000_000 {
        return Err(Malformed);
    }
    Ok(Timespec { sec: sec as i64, nsec })
}

fn set_attr(a: &SetattrIn) -> Decoded<SetAttr> {
    let valid = SetattrValid::from_bits_retain(a.valid);
    let has = |f| valid.contains(f);
    let set_time = |set, now, sec, nsec| -> Decoded<Option<SetTime>> {
        Ok(match (has(set), has(now)) {
            (_, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(time(sec, nsec)?)),
            (false, false) => None,
        })
    };
    Ok(SetAttr {
        fh: has(SetattrValid::FH).then_some(a.fh),
        mode: has(SetattrValid::MODE).then_some(a.mode),
        uid: has(SetattrValid::UID).then_some(a.uid),
        gid: has(SetattrValid::GID).then_some(a.gid),
        size: has(SetattrValid::SIZE).then_some(a.size),
        atime: set_time(SetattrValid::ATIME, SetattrValid::ATIME_NOW, a.atime, a.atimensec)?,
        mtime: set_time(SetattrValid::MTIME, SetattrValid::MTIME_NOW, a.mtime, a.mtimensec)?,
        ctime: if has(SetattrValid::CTIME) { Some(time(a.ctime, a.ctimensec)?) } else { None },
        kill_suidgid: has(SetattrValid::KILL_SUIDGID),
        lock_owner: has(SetattrValid::LOCKOWNER).then_some(a.lock_owner),
    })
}

/// Linux: FS_IOC_SETFLAGS (two sizes), FS_IOC_FSSETXATTR, FS_IOC_SETFSLABEL, FITRIM.
const CHANGING_IOCTLS: [u32; 5] = [0x4008_6602, 0x4004_6602, 0x401c_5820, 0x4100_9432, 0xc018_5879];
const O_TRUNC: u32 = 0o1000;

/// Whether a message requests a change that a frozen mount must not make. That includes FORGET, which frees deleted
/// files. It excludes RELEASE, which changes nothing on the device and is sent for readers, too.
pub(crate) fn changes_something(message: &[u8]) -> bool {
    let Ok((header, body)) = InHeader::read_from_prefix(message) else { return false };
    let Some(opcode) = Opcode::from_raw(header.opcode) else { return false };
    match opcode {
        Opcode::Setattr
        | Opcode::Symlink
        | Opcode::Mknod
        | Opcode::Mkdir
        | Opcode::Unlink
        | Opcode::Rmdir
        | Opcode::Rename
        | Opcode::Rename2
        | Opcode::Link
        | Opcode::Create
        | Opcode::Tmpfile
        | Opcode::Write
        | Opcode::Setxattr
        | Opcode::Removexattr
        | Opcode::Fallocate
        | Opcode::CopyFileRange
        | Opcode::CopyFileRange64
        | Opcode::Forget
        | Opcode::BatchForget => true,
        Opcode::Open => OpenIn::read_from_prefix(body).is_ok_and(|(open, _)| open.flags & O_TRUNC != 0),
        Opcode::Ioctl => IoctlIn::read_from_prefix(body).is_ok_and(|(ioctl, _)| CHANGING_IOCTLS.contains(&ioctl.cmd)),
        _ => false,
    }
}

/// Whether a request is served after a shutdown. These need nothing from the device, and umount(8) sends some of them.
fn outlives_shutdown(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Getattr | Opcode::Statx | Opcode::Statfs | Opcode::Release | Opcode::Releasedir | Opcode::Flush
    )
}

/// Handles one message, in the format that the device delivers. Replies go to `origin`.
pub(crate) fn dispatch<S: Server>(server: &S, agreed: &Negotiated, origin: Origin, message: &[u8]) -> Flow {
    let Ok((header, body)) = InHeader::read_from_prefix(message) else { return Flow::Continue };
    let opcode = Opcode::from_raw(header.opcode);
    trace_point!(
        fuse_request_send,
        unique = header.unique,
        opcode = header.opcode,
        nodeid = header.nodeid,
        len = header.len
    );
    let extensions_len = usize::from(header.total_extlen) * 8;
    let body = match body.len().checked_sub(extensions_len) {
        Some(n) if header.len as usize == message.len() => &body[..n],
        _ => {
            if opcode.is_none_or(Opcode::has_reply) {
                origin.answer_error(header.unique, Errno::IO);
            }
            return Flow::Continue;
        }
    };
    let args = Args(body);
    // A message without a reply must not create a `Pending`, which would send one.
    match opcode {
        Some(opcode) if !opcode.has_reply() => {
            let _ = without_reply(server, &header, args, opcode);
            Flow::Continue
        }
        Some(Opcode::Destroy) => Flow::Destroy(ReplyEmpty::new(Pending::new(origin, header.unique))),
        Some(opcode) if server.is_down() && !outlives_shutdown(opcode) => {
            origin.answer_error(header.unique, Errno::IO);
            Flow::Continue
        }
        Some(opcode) => {
            let _ = with_reply(server, agreed, &header, args, opcode, Pending::new(origin, header.unique));
            Flow::Continue
        }
        None => {
            origin.answer_error(header.unique, Errno::NOSYS);
            Flow::Continue
        }
    }
}

fn without_reply<S: Server>(server: &S, header: &InHeader, mut args: Args<'_>, opcode: Opcode) -> Decoded<()> {
    match opcode {
        Opcode::Forget => {
            let a: ForgetIn = args.take()?;
            server.forget(&[ForgetOne { nodeid: header.nodeid, nlookup: a.nlookup }]);
        }
        Opcode::BatchForget => {
            let a: BatchForgetIn = args.take()?;
            // Read in place: the batch is aligned, because the buffer is and both headers are multiples of 8 bytes.
            let batch = <[ForgetOne]>::ref_from_prefix_with_elems(args.0, a.count as usize);
            let (batch, _) = batch.map_err(|_| Malformed)?;
            server.forget(batch);
        }
        Opcode::Interrupt => {
            let a: InterruptIn = args.take()?;
            server.interrupt(a.unique);
        }
        _ => {}
    }
    Ok(())
}

#[expect(clippy::too_many_lines, reason = "one arm an opcode")]
fn with_reply<S: Server>(
    server: &S,
    agreed: &Negotiated,
    header: &InHeader,
    mut args: Args<'_>,
    opcode: Opcode,
    p: Pending,
) -> Decoded<()> {
    let req = &Request { unique: header.unique, uid: header.uid, gid: header.gid, pid: header.pid };
    let ino = header.nodeid;
    match opcode {
        Opcode::Lookup => server.lookup(req, ino, args.name()?, ReplyEntry::new(p)),
        Opcode::Getattr => {
            let a: GetattrIn = args.take()?;
            server.getattr(req, ino, (a.getattr_flags & GETATTR_FH != 0).then_some(a.fh), ReplyAttr::new(p));
        }
        Opcode::Statx => {
            let a: StatxIn = args.take()?;
            server.statx(req, ino, (a.getattr_flags & GETATTR_FH != 0).then_some(a.fh), ReplyStatx::new(p));
        }
        Opcode::Setattr => {
            let a: SetattrIn = args.take()?;
            server.setattr(req, ino, &set_attr(&a)?, ReplyAttr::new(p));
        }
        Opcode::Readlink => server.readlink(req, ino, ReplyData::new(p, READLINK_MAX)),
        Opcode::Symlink => {
            let (name, target) = (args.name()?, args.name()?);
            server.symlink(req, ino, name, target, ReplyEntry::new(p));
        }
        Opcode::Mknod => {
            let a: MknodIn = args.take()?;
            let how = MknodArgs { mode: a.mode, umask: a.umask, rdev: a.rdev };
            server.mknod(req, ino, args.name()?, &how, ReplyEntry::new(p));
        }
        Opcode::Mkdir => {
            let a: MkdirIn = args.take()?;
            let how = MknodArgs { mode: a.mode, umask: a.umask, rdev: 0 };
            server.mkdir(req, ino, args.name()?, &how, ReplyEntry::new(p));
        }
        Opcode::Unlink => server.unlink(req, ino, args.name()?, ReplyEmpty::new(p)),
        Opcode::Rmdir => server.rmdir(req, ino, args.name()?, ReplyEmpty::new(p)),
        Opcode::Rename | Opcode::Rename2 => {
            let (new_parent, flags) = if opcode == Opcode::Rename {
                (args.take::<RenameIn>()?.newdir, 0)
            } else {
                let a: Rename2In = args.take()?;
                (a.newdir, a.flags)
            };
            let (name, new_name) = (args.name()?, args.name()?);
            let names = RenameArgs { parent: ino, name, new_parent, new_name, flags };
            server.rename(req, &names, ReplyEmpty::new(p));
        }
        Opcode::Link => {
            let a: LinkIn = args.take()?;
            server.link(req, a.oldnodeid, ino, args.name()?, ReplyEntry::new(p));
        }
        Opcode::Create | Opcode::Tmpfile => {
            let a: CreateIn = args.take()?;
            let how = CreateArgs {
                mode: a.mode,
                umask: a.umask,
                flags: a.flags,
                kill_suidgid: a.open_flags & OPEN_KILL_SUIDGID != 0,
            };
            if opcode == Opcode::Create {
                server.create(req, ino, args.name()?, &how, ReplyCreate::new(p));
            } else {
                server.tmpfile(req, ino, &how, ReplyCreate::new(p));
            }
        }
        Opcode::Statfs => server.statfs(req, ino, ReplyStatfs::new(p)),
        Opcode::Syncfs => server.syncfs(req, ino, ReplyEmpty::new(p)),
        Opcode::Access => {
            let a: AccessIn = args.take()?;
            server.access(req, ino, a.mask, ReplyEmpty::new(p));
        }
        Opcode::Setxattr => {
            let a: SetxattrIn = args.take()?;
            let mut how = SetxattrArgs { flags: a.flags, kill_sgid: false };
            if agreed.flags.contains(InitFlags::SETXATTR_EXT) {
                let ext: SetxattrInExt = args.take()?;
                how.kill_sgid = ext.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0;
            }
            let name = args.name()?;
            server.setxattr(req, ino, name, args.bytes(a.size)?, &how, ReplyEmpty::new(p));
        }
        Opcode::Getxattr => {
            let a: GetxattrIn = args.take()?;
            server.getxattr(req, ino, args.name()?, ReplyXattr::new(p, a.size as usize));
        }
        Opcode::Listxattr => {
            let a: GetxattrIn = args.take()?;
            server.listxattr(req, ino, ReplyXattr::new(p, a.size as usize));
        }
        Opcode::Removexattr => server.removexattr(req, ino, args.name()?, ReplyEmpty::new(p)),
        Opcode::Bmap => {
            let a: BmapIn = args.take()?;
            server.bmap(req, ino, a.blocksize, a.block, ReplyBmap::new(p));
        }
        _ => return with_handle(server, agreed, req, ino, args, opcode, p),
    }
    Ok(())
}

/// A symbolic link's target fits into a page, less the terminating NUL.
const READLINK_MAX: usize = 4095;

/// Operations on open files and directories.
#[expect(clippy::too_many_lines, reason = "one arm an opcode")]
fn with_handle<S: Server>(
    server: &S,
    agreed: &Negotiated,
    req: &Request,
    ino: u64,
    mut args: Args<'_>,
    opcode: Opcode,
    p: Pending,
) -> Decoded<()> {
    match opcode {
        Opcode::Open if agreed.config.no_open => p.error(Errno::NOSYS),
        Opcode::Opendir if agreed.config.no_opendir => p.error(Errno::NOSYS),
        Opcode::Open => {
            let a: OpenIn = args.take()?;
            server.open(req, ino, a.flags, a.open_flags & OPEN_KILL_SUIDGID != 0, ReplyOpen::new(p));
        }
        Opcode::Opendir => {
            let a: OpenIn = args.take()?;
            server.opendir(req, ino, a.flags, ReplyOpen::new(p));
        }
        Opcode::Read => {
            let a: ReadIn = args.take()?;
            let how = ReadArgs {
                fh: a.fh,
                offset: a.offset,
                size: a.size,
                flags: a.flags,
                lock_owner: (a.read_flags & READ_LOCKOWNER != 0).then_some(a.lock_owner),
            };
            server.read(req, ino, &how, ReplyData::new(p, a.size as usize));
        }
        Opcode::Write => {
            let a: WriteIn = args.take()?;
            let how = WriteArgs {
                fh: a.fh,
                offset: a.offset,
                flags: a.flags,
                cached: a.write_flags & WRITE_CACHE != 0,
                kill_suidgid: a.write_flags & WRITE_KILL_SUIDGID != 0,
                lock_owner: (a.write_flags & WRITE_LOCKOWNER != 0).then_some(a.lock_owner),
            };
            server.write(req, ino, &how, args.bytes(a.size)?, ReplyWrite::new(p));
        }
        Opcode::Release | Opcode::Releasedir => {
            let a: ReleaseIn = args.take()?;
            if opcode == Opcode::Releasedir {
                server.releasedir(req, ino, a.fh, a.flags, ReplyEmpty::new(p));
            } else {
                let flush = a.release_flags & RELEASE_FLUSH != 0;
                let how = ReleaseArgs { fh: a.fh, flags: a.flags, flush, lock_owner: a.lock_owner };
                server.release(req, ino, &how, ReplyEmpty::new(p));
            }
        }
        Opcode::Flush => {
            let a: FlushIn = args.take()?;
            server.flush(req, ino, a.fh, a.lock_owner, ReplyEmpty::new(p));
        }
        Opcode::Fsync | Opcode::Fsyncdir => {
            let a: FsyncIn = args.take()?;
            let datasync = a.fsync_flags & FSYNC_FDATASYNC != 0;
            if opcode == Opcode::Fsync {
                server.fsync(req, ino, a.fh, datasync, ReplyEmpty::new(p));
            } else {
                server.fsyncdir(req, ino, a.fh, datasync, ReplyEmpty::new(p));
            }
        }
        Opcode::Readdir => {
            let a: ReadIn = args.take()?;
            server.readdir(req, ino, a.fh, a.offset, ReplyDir::new(p, DirBuf::new(a.size as usize)));
        }
        Opcode::Readdirplus => {
            let a: ReadIn = args.take()?;
            server.readdirplus(req, ino, a.fh, a.offset, ReplyDirPlus::new(p, DirBuf::new(a.size as usize)));
        }
        Opcode::Lseek => {
            let a: LseekIn = args.take()?;
            server.lseek(req, ino, a.fh, a.offset, a.whence, ReplyLseek::new(p));
        }
        Opcode::Fallocate => {
            let a: FallocateIn = args.take()?;
            let how = FallocateArgs { fh: a.fh, offset: a.offset, length: a.length, mode: a.mode };
            server.fallocate(req, ino, &how, ReplyEmpty::new(p));
        }
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
            let a: CopyFileRangeIn = args.take()?;
            let how = CopyArgs {
                ino_in: ino,
                fh_in: a.fh_in,
                offset_in: a.off_in,
                ino_out: a.nodeid_out,
                fh_out: a.fh_out,
                offset_out: a.off_out,
                length: a.len,
                flags: a.flags,
            };
            server.copy_file_range(req, &how, ReplyCopy::new(p, opcode == Opcode::CopyFileRange64));
        }
        Opcode::Ioctl => {
            let a: IoctlIn = args.take()?;
            let how = IoctlArgs {
                fh: a.fh,
                cmd: a.cmd,
                arg: a.arg,
                data: args.bytes(a.in_size)?,
                out_size: a.out_size,
                directory: a.flags & IOCTL_DIR != 0,
                compat: a.flags & IOCTL_COMPAT != 0,
            };
            server.ioctl(req, ino, &how, ReplyIoctl::new(p, a.out_size as usize));
        }
        // The kernel handles locks itself; DAX mappings were not negotiated; a second INIT is invalid.
        _ => p.error(Errno::NOSYS),
    }
    Ok(())
}
