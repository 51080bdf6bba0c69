//! ioctls on the mount as a whole: trim, label, freeze and thaw, remount read-only or read-write, quotas, growth,
//! shutdown.
//!
//! FITRIM, the labels and the shutdown are Linux's. FUSE does not pass on the mode of a shutdown, because the ioctl's
//! number declares no argument. So the log is always written first, which each of the modes allows. FIFREEZE never
//! arrives: the kernel answers it itself, with EOPNOTSUPP. So freezing has ioctls of our own ([`Control`]). While a
//! mount is frozen, the session holds back the requests that would change something, without a worker for each. So a
//! worker is always free to serve the thaw.
//!
//! The kernel checks no capability before it passes an ioctl on, so the server checks. A change of the mount requires
//! CAP_SYS_ADMIN in the server's user namespace. An ordinary user needs no capability for a mount of their own.
//!
//! # Locking
//! None of its own.

use extant_base::sync::atomic::Ordering;
use extant_fs::{CannotGrow, Error, Grown, LABEL_MAX, NoGrowth, QuotaKind};
use zerocopy::{FromBytes, IntoBytes};

use super::FsServer;
use super::errno::errno;
use crate::Errno;
use crate::sys::{Control, GrowOutcome, GrowRecord, QuotaRecord, QuotaRequest};
use crate::transport::reply::ReplyIoctl;
use crate::types::{IoctlArgs, Request};

const FITRIM: u32 = 0xc018_5879;
/// The request of `xfs_io -x -c shutdown`.
const FS_IOC_SHUTDOWN: u32 = 0x8004_587d;
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
const FS_IOC_SETFSLABEL: u32 = 0x4100_9432;
/// Linux: FSLABEL_MAX.
const LABEL_ROOM: usize = 256;

impl FsServer {
    /// Answers an ioctl on the mount as a whole. Returns the reply if it is another ioctl.
    pub(super) fn volume_ioctl(&self, req: &Request, args: &IoctlArgs<'_>, reply: ReplyIoctl) -> Option<ReplyIoctl> {
        let changes = matches!(
            args.cmd,
            FITRIM
                | FS_IOC_SETFSLABEL
                | FS_IOC_SHUTDOWN
                | Control::FREEZE
                | Control::THAW
                | Control::READ_ONLY
                | Control::READ_WRITE
                | QuotaRequest::SET_LIMITS
                | QuotaRequest::SET_GRACE
                | GrowRecord::GROW
        );
        if changes && !self.controls(req) {
            reply.error(Errno::PERM);
            return None;
        }
        match args.cmd {
            FS_IOC_GETFSLABEL => {
                let mut label = [0; LABEL_ROOM];
                let name = self.fs.label();
                label[..name.len()].copy_from_slice(&name);
                reply.ok(0, &label);
            }
            FS_IOC_SETFSLABEL => {
                let label = args.data.split(|b| *b == 0).next().unwrap_or_default();
                if label.len() > LABEL_MAX {
                    reply.error(Errno::INVAL);
                } else {
                    match self.fs.set_label(label) {
                        Ok(()) => reply.ok(0, &[]),
                        Err(e) => reply.error(errno(&e)),
                    }
                }
            }
            FITRIM => self.trim(args, reply),
            GrowRecord::GROW => self.grow(args, reply),
            FS_IOC_SHUTDOWN => self.shut_down(reply),
            Control::FREEZE | Control::THAW => self.freeze_or_thaw(args.cmd == Control::FREEZE, reply),
            Control::READ_ONLY | Control::READ_WRITE => self.remount(args.cmd == Control::READ_ONLY, reply),
            QuotaRequest::NEXT | QuotaRequest::GRACE | QuotaRequest::SET_LIMITS | QuotaRequest::SET_GRACE => {
                self.quota(req, args, reply);
            }
            _ => return Some(reply),
        }
        None
    }

    /// Whether the caller controls the mount. User 0 is no ordinary user: it has capabilities, or has been denied them.
    fn controls(&self, req: &Request) -> bool {
        let callers = self.callers.lock().clone();
        req.uid == self.owner && self.owner != 0 || callers.is_privileged(req.pid)
    }

    /// Runs on a thread of its own, because a trim may take long and workers have clients to serve. While the mount is
    /// frozen, a trim waits for the thaw, which needs the controller's thread.
    fn trim(&self, args: &IoctlArgs<'_>, reply: ReplyIoctl) {
        let Ok(([start, len, min_len], _)) = <[u64; 3]>::read_from_prefix(args.data) else {
            return reply.error(Errno::INVAL);
        };
        let (fs, ticket) = (self.fs.clone(), self.outstanding.begin());
        self.trimmer.submit(Box::new(move || {
            match fs.trim(start, len, min_len) {
                Ok(trimmed) => reply.ok(0, [start, trimmed, min_len].as_bytes()),
                Err(e) => reply.error(errno(&e)),
            }
            drop(fs);
            drop(ticket);
        }));
    }

    /// The answer has the reason of a refusal, which an error number cannot express. Runs on a thread of its own, as
    /// [`FsServer::trim`].
    fn grow(&self, args: &IoctlArgs<'_>, reply: ReplyIoctl) {
        let Ok((words, _)) = <[u64; 40]>::read_from_prefix(args.data) else { return reply.error(Errno::INVAL) };
        let mut record = GrowRecord(words);
        let Some(size) = record.size() else { return reply.error(Errno::INVAL) };
        let (fs, ticket) = (self.fs.clone(), self.outstanding.begin());
        self.trimmer.submit(Box::new(move || {
            let layout = |fs: &extant_fs::Filesystem| (fs.geometry().blocks_count, fs.geometry().group_count);
            let ((before, groups_before), block_size) = (layout(&fs), fs.block_size());
            let (outcome, sizes, reason) = match fs.grow(size) {
                Ok(grown) => (GrowOutcome::Done, grown, String::new()),
                Err(e) => {
                    let (after, groups) = layout(&fs);
                    let smaller = matches!(e, Error::CannotGrow(CannotGrow::Layout(NoGrowth::Smaller { .. })));
                    let outcome = if smaller { GrowOutcome::Smaller } else { GrowOutcome::Refused };
                    (outcome, Grown { before, after, groups_before, groups }, e.to_string())
                }
            };
            record.fill(outcome, &sizes, block_size, &reason);
            reply.ok(0, record.0.as_bytes());
            drop(fs);
            drop(ticket);
        }));
    }

    /// A caller that does not control the mount sees only its own usage (Linux: `check_quotactl_permission`). Runs on a
    /// thread of its own, as [`FsServer::trim`].
    fn quota(&self, req: &Request, args: &IoctlArgs<'_>, reply: ReplyIoctl) {
        let Ok((words, _)) = <[u64; 12]>::read_from_prefix(args.data) else { return reply.error(Errno::INVAL) };
        let mut record = QuotaRecord(words);
        let Some(kind) = record.kind() else { return reply.error(Errno::INVAL) };
        let all = self.controls(req);
        let own = match kind {
            QuotaKind::User => Some(req.uid),
            QuotaKind::Group => Some(req.gid),
            QuotaKind::Project => None,
        };
        let id = match own.filter(|own| *own >= record.id()) {
            _ if all || args.cmd != QuotaRequest::NEXT => record.id(),
            Some(own) => own,
            None => return reply.error(Errno::NOENT),
        };
        let (cmd, fs, ticket) = (args.cmd, self.fs.clone(), self.outstanding.begin());
        self.trimmer.submit(Box::new(move || {
            let done = match cmd {
                QuotaRequest::NEXT => fs.quota_from(kind, id).and_then(|(usage, limits)| {
                    if !all && usage.id != id {
                        return Err(Error::NotFound);
                    }
                    record.fill(&usage, &limits);
                    Ok(())
                }),
                QuotaRequest::GRACE => fs.quota_grace(kind).map(|grace| record = QuotaRecord::with_grace(kind, grace)),
                QuotaRequest::SET_LIMITS => fs.set_quota(kind, id, record.new_limits()),
                _ => fs.set_quota_grace(kind, record.grace()),
            };
            match done {
                Ok(()) => reply.ok(0, record.0.as_bytes()),
                Err(e) => reply.error(errno(&e)),
            }
            drop(fs);
            drop(ticket);
        }));
    }

    /// Afterwards, requests that were held back because the mount was frozen fail.
    fn shut_down(&self, reply: ReplyIoctl) {
        let (fs, down, hold, ticket) =
            (self.fs.clone(), self.down.clone(), self.hold.lock().clone(), self.outstanding.begin());
        self.controller.submit(Box::new(move || {
            down.store(true, Ordering::Release);
            match fs.shut_down() {
                Ok(()) => reply.ok(0, &[]),
                Err(e) => reply.error(errno(&e)),
            }
            if let Some(hold) = hold {
                hold.end();
            }
            drop(fs);
            drop(ticket);
        }));
    }

    /// Afterwards, the requests that were held back fail or are served, according to the new state. If the mount is
    /// frozen, they stay held back until the thaw: this thread must not wait for it.
    fn remount(&self, read_only: bool, reply: ReplyIoctl) {
        let Some(hold) = self.hold.lock().clone() else { return reply.error(Errno::OPNOTSUPP) };
        let (fs, ticket) = (self.fs.clone(), self.outstanding.begin());
        self.controller.submit(Box::new(move || {
            hold.begin();
            let done = fs.remount(read_only);
            if !fs.is_frozen() {
                hold.end();
            }
            match done {
                Ok(()) => reply.ok(0, &[]),
                Err(e) => reply.error(errno(&e)),
            }
            drop(fs);
            drop(ticket);
        }));
    }

    fn freeze_or_thaw(&self, freeze: bool, reply: ReplyIoctl) {
        let Some(hold) = self.hold.lock().clone() else { return reply.error(Errno::OPNOTSUPP) };
        let (fs, ticket) = (self.fs.clone(), self.outstanding.begin());
        self.controller.submit(Box::new(move || {
            if !freeze {
                let thawed = fs.thaw();
                hold.end();
                if thawed { reply.ok(0, &[]) } else { reply.error(Errno::INVAL) }
            } else if fs.is_frozen() {
                reply.error(Errno::BUSY);
            } else {
                hold.begin();
                match fs.freeze() {
                    Ok(true) => reply.ok(0, &[]),
                    Ok(false) => reply.error(Errno::BUSY),
                    Err(e) => {
                        hold.end();
                        reply.error(errno(&e));
                    }
                }
            }
            drop(fs);
            drop(ticket);
        }));
    }
}
