//! The only file of this crate with `unsafe` outside the ring: ioctls, scheduling policies, a thread's own working
//! directory, and the process's user and group as the kernel sees them. There are no safe wrappers for these.
//!
//! # Locking
//! None.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use extant_fs::{GrowTo, Grown, Limits, QuotaKind, QuotaLimits, Usage};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result};
use rustix::ioctl::{NoArg, Opcode, Setter, Updater, ioctl, opcode};
use rustix::process::{Gid, Pid, Uid};
use zerocopy::IntoBytes;

/// Linux: `FUSE_DEV_IOC_CLONE`, include/uapi/linux/fuse.h: _IOR(229, 0, uint32_t).
const FUSE_DEV_IOC_CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Opens /dev/fuse, not yet attached to a connection.
pub fn open_device() -> Result<OwnedFd> {
    open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// A second descriptor of the connection behind `fd`, with its own queue of requests in processing: replies must go to
/// the descriptor that the request was read from.
pub fn clone_device(fd: impl AsFd) -> Result<OwnedFd> {
    let clone = open_device()?;
    let source = u32::try_from(fd.as_fd().as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the number of an open descriptor, through the pointer that `Setter`
    // passes, and writes nothing. `fd` is borrowed for the whole call, so the number stays valid.
    unsafe { ioctl(&clone, Setter::<FUSE_DEV_IOC_CLONE, u32>::new(source))? };
    Ok(clone)
}

/// Our own ioctls on the root directory of a mount. They have no argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    Freeze,
    Thaw,
    ReadOnly,
    ReadWrite,
}

impl Control {
    pub(crate) const FREEZE: u32 = opcode::none(0xEB, 1) as u32;
    pub(crate) const THAW: u32 = opcode::none(0xEB, 2) as u32;
    pub(crate) const READ_ONLY: u32 = opcode::none(0xEB, 3) as u32;
    pub(crate) const READ_WRITE: u32 = opcode::none(0xEB, 4) as u32;
}

/// Sends an ioctl to the server of the mount whose root directory is `dir`.
pub fn control(dir: impl AsFd, what: Control) -> Result<()> {
    // SAFETY: these carry no argument, and no driver interprets their numbers differently for a directory of a FUSE
    // mount.
    unsafe {
        match what {
            Control::Freeze => ioctl(dir, NoArg::<{ Control::FREEZE as Opcode }>::new()),
            Control::Thaw => ioctl(dir, NoArg::<{ Control::THAW as Opcode }>::new()),
            Control::ReadOnly => ioctl(dir, NoArg::<{ Control::READ_ONLY as Opcode }>::new()),
            Control::ReadWrite => ioctl(dir, NoArg::<{ Control::READ_WRITE as Opcode }>::new()),
        }
    }
}

/// A request about the quotas of a mount, with a [`QuotaRecord`] (Linux: quotactl(2), which does not support FUSE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaRequest {
    /// Fills in the first owner at or after the record's; ENOENT after the last one.
    Next,
    /// Fills in the grace periods.
    Grace,
    /// Sets the owner's limits.
    SetLimits,
    /// Sets the grace periods.
    SetGrace,
}

impl QuotaRequest {
    pub(crate) const NEXT: u32 = opcode::read_write::<QuotaRecord>(0xEB, 5) as u32;
    pub(crate) const GRACE: u32 = opcode::read_write::<QuotaRecord>(0xEB, 6) as u32;
    pub(crate) const SET_LIMITS: u32 = opcode::read_write::<QuotaRecord>(0xEB, 7) as u32;
    pub(crate) const SET_GRACE: u32 = opcode::read_write::<QuotaRecord>(0xEB, 8) as u32;
}

/// The argument of a [`QuotaRequest`]. In order: the kind (0: users, 1: groups, 2: projects), the owner, bytes and
/// inodes in use, the soft and the hard limit of blocks of 1 KiB, those of inodes, the ends of both grace periods, and
/// the lengths of the grace periods.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct QuotaRecord(pub(crate) [u64; 12]);

impl QuotaRecord {
    /// A record for an owner.
    pub fn of(kind: QuotaKind, id: u32) -> QuotaRecord {
        let mut record = QuotaRecord::default();
        (record.0[0], record.0[1]) = (kind as u64, id.into());
        record
    }

    /// A record that sets an owner's limits.
    pub fn with_limits(kind: QuotaKind, id: u32, limits: QuotaLimits) -> QuotaRecord {
        let mut record = QuotaRecord::of(kind, id);
        let QuotaLimits { blocks_soft, blocks_hard, inodes_soft, inodes_hard } = limits;
        record.0[4..8].copy_from_slice(&[blocks_soft, blocks_hard, inodes_soft, inodes_hard]);
        record
    }

    /// A record that sets the grace periods.
    pub fn with_grace(kind: QuotaKind, grace: [u32; 2]) -> QuotaRecord {
        let mut record = QuotaRecord::of(kind, 0);
        record.0[10..].copy_from_slice(&grace.map(u64::from));
        record
    }

    pub(crate) fn fill(&mut self, usage: &Usage, limits: &Limits) {
        self.0[1..10].copy_from_slice(&[
            usage.id.into(),
            usage.bytes,
            usage.inodes,
            limits.blocks_soft,
            limits.blocks_hard,
            limits.inodes_soft,
            limits.inodes_hard,
            limits.blocks_until,
            limits.inodes_until,
        ]);
    }

    pub(crate) fn kind(&self) -> Option<QuotaKind> {
        QuotaKind::ALL.into_iter().find(|kind| *kind as u64 == self.0[0])
    }

    pub(crate) fn id(&self) -> u32 {
        self.0[1] as u32
    }

    pub(crate) fn new_limits(&self) -> QuotaLimits {
        let [blocks_soft, blocks_hard, inodes_soft, inodes_hard] = [self.0[4], self.0[5], self.0[6], self.0[7]];
        QuotaLimits { blocks_soft, blocks_hard, inodes_soft, inodes_hard }
    }

    /// The owner's usage.
    pub fn usage(&self) -> Usage {
        Usage { id: self.id(), bytes: self.0[2], inodes: self.0[3] }
    }

    /// The owner's limits.
    pub fn limits(&self) -> Limits {
        let QuotaLimits { blocks_soft, blocks_hard, inodes_soft, inodes_hard } = self.new_limits();
        let (blocks_until, inodes_until) = (self.0[8], self.0[9]);
        Limits { inodes_hard, inodes_soft, blocks_hard, blocks_soft, blocks_until, inodes_until }
    }

    /// For how many seconds the soft limits of blocks and of inodes may be exceeded.
    pub fn grace(&self) -> [u32; 2] {
        [self.0[10] as u32, self.0[11] as u32]
    }
}

/// Sends a quota request to the server of the mount whose root directory is `dir`.
pub fn quota_control(dir: impl AsFd, what: QuotaRequest, record: &mut QuotaRecord) -> Result<()> {
    // SAFETY: the numbers declare that these read and write a `QuotaRecord`, which consists of integers, and the kernel
    // copies exactly its size in both directions.
    unsafe {
        match what {
            QuotaRequest::Next => ioctl(dir, Updater::<{ QuotaRequest::NEXT as Opcode }, _>::new(record)),
            QuotaRequest::Grace => ioctl(dir, Updater::<{ QuotaRequest::GRACE as Opcode }, _>::new(record)),
            QuotaRequest::SetLimits => ioctl(dir, Updater::<{ QuotaRequest::SET_LIMITS as Opcode }, _>::new(record)),
            QuotaRequest::SetGrace => ioctl(dir, Updater::<{ QuotaRequest::SET_GRACE as Opcode }, _>::new(record)),
        }
    }
}

/// The argument of the ioctl that grows a mounted file system (Linux: `EXT4_IOC_RESIZE_FS`, which FUSE does not pass
/// on). In order: the unit of the size, the size in bytes, the outcome, blocks before and afterwards, groups before and
/// afterwards, bytes per block, and the reason of a refusal.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct GrowRecord(pub(crate) [u64; 40]);

/// Words before the text of a [`GrowRecord`].
const TEXT_AT: usize = 8;

/// The outcome of a growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowOutcome {
    /// The growth is durable.
    Done,
    /// The size is less than the file system's present size.
    Smaller,
    /// Refused for another reason; see [`GrowRecord::reason`].
    Refused,
}

impl GrowRecord {
    pub(crate) const GROW: u32 = opcode::read_write::<GrowRecord>(0xEB, 9) as u32;

    /// A request to grow to `size`.
    pub fn to(size: GrowTo) -> GrowRecord {
        let mut record = GrowRecord([0; 40]);
        (record.0[0], record.0[1]) = match size {
            GrowTo::Bytes(bytes) => (0, bytes),
            GrowTo::More(bytes) => (1, bytes),
            GrowTo::Device => (2, 0),
        };
        record
    }

    pub(crate) fn size(&self) -> Option<GrowTo> {
        match self.0[0] {
            0 => Some(GrowTo::Bytes(self.0[1])),
            1 => Some(GrowTo::More(self.0[1])),
            2 => Some(GrowTo::Device),
            _ => None,
        }
    }

    pub(crate) fn fill(&mut self, outcome: GrowOutcome, sizes: &Grown, block_size: u32, reason: &str) {
        let Grown { before, after, groups_before, groups } = *sizes;
        self.0[2..TEXT_AT].copy_from_slice(&[
            outcome as u64,
            before,
            after,
            groups_before.into(),
            groups.into(),
            block_size.into(),
        ]);
        self.0[TEXT_AT..].fill(0);
        let text = self.0[TEXT_AT..].as_mut_bytes();
        let len = reason.len().min(text.len());
        text[..len].copy_from_slice(&reason.as_bytes()[..len]);
    }

    /// The outcome.
    pub fn outcome(&self) -> GrowOutcome {
        match self.0[2] {
            0 => GrowOutcome::Done,
            1 => GrowOutcome::Smaller,
            _ => GrowOutcome::Refused,
        }
    }

    /// Blocks and groups before and afterwards, whatever the outcome.
    pub fn sizes(&self) -> Grown {
        let [before, after, groups_before, groups] = [self.0[3], self.0[4], self.0[5], self.0[6]];
        Grown { before, after, groups_before: groups_before as u32, groups: groups as u32 }
    }

    /// Bytes per block.
    pub fn block_size(&self) -> u32 {
        self.0[7] as u32
    }

    /// Why the file system did not grow, or not as far as requested. Truncated to the size of the record.
    pub fn reason(&self) -> String {
        let text = self.0[TEXT_AT..].as_bytes().split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

/// Asks the server of the mount whose root directory is `dir` to grow the file system.
pub fn grow_control(dir: impl AsFd, record: &mut GrowRecord) -> Result<()> {
    // SAFETY: the number declares that this reads and writes a `GrowRecord`, which consists of integers, and the kernel
    // copies exactly its size in both directions.
    unsafe { ioctl(dir, Updater::<{ GrowRecord::GROW as Opcode }, _>::new(record)) }
}

/// The effective user as the kernel knows it. Under fakeroot(1) the C library's geteuid(2) returns root, while mount(2)
/// and other processes see this user.
pub fn kernel_uid() -> Uid {
    // SAFETY: takes no argument and cannot fail.
    Uid::from_raw(unsafe { libc::syscall(libc::SYS_geteuid) } as u32)
}

/// As [`kernel_uid`], the effective group.
pub fn kernel_gid() -> Gid {
    // SAFETY: takes no argument and cannot fail.
    Gid::from_raw(unsafe { libc::syscall(libc::SYS_getegid) } as u32)
}

/// Gives the calling thread a working directory of its own, instead of the process's shared one.
pub fn own_working_directory() -> Result<()> {
    // SAFETY: the flag covers only working directory, root and umask. So no descriptor is affected that other threads
    // might rely on.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
}

/// Sets the policy of a thread of this process (None: the calling thread) to SCHED_IDLE, or back to SCHED_OTHER.
/// Returning to SCHED_OTHER requires a privilege.
pub fn set_idle_policy(thread: Option<Pid>, idle: bool) -> Result<()> {
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one sched_param through the pointer; the first argument is a thread's ID.
    match unsafe { libc::sched_setscheduler(Pid::as_raw(thread), policy, &param) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Whether a thread (None: the calling thread) has the scheduling policy `policy`, and no flag.
pub fn has_policy(thread: Option<Pid>, policy: i32) -> bool {
    // SAFETY: the argument is a thread's ID; nothing else is passed.
    unsafe { libc::sched_getscheduler(Pid::as_raw(thread)) == policy }
}
