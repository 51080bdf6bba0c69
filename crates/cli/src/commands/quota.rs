//! `extant quota`: usage and limits of users, groups and projects, in an image or in a mount.
//!
//! Main type: [`Source`], an image or a mount.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_fs::{Error, Filesystem, Limits, QuotaKind, QuotaLimits, Usage};
use extant_fuse::{Errno, QuotaRecord, QuotaRequest, quota_control};

use super::freeze::NOT_PRIVILEGED;
use super::verb::Images;
use crate::args::{ImageArgs, QuotaArgs, QuotaCommand, QuotaGraceArgs, QuotaReportArgs, QuotaSetArgs};
use crate::failure::{Failure, Result, USAGE, plain};
use crate::image::ImageSpec;
use crate::mount_table;
use crate::text::{Output, shown};

/// Why quotas of a kind cannot be shown.
enum Missing {
    /// There are no quotas of this kind.
    Kind,
    Failed(Failure),
}

enum Source {
    Image(Arc<Filesystem>),
    Mount(OwnedFd, String),
}

/// The usage and the limits of one owner.
struct Row {
    usage: Usage,
    limits: Limits,
}

pub fn run(args: &QuotaArgs) -> Result<()> {
    match &args.command {
        QuotaCommand::Report(args) => within(&args.image, &args.how, false, |source, name| report(args, source, name)),
        QuotaCommand::Set(args) => within(&args.image, &args.how, true, |source, _| set(args, source)),
        QuotaCommand::Grace(args) => within(&args.image, &args.how, true, |source, _| set_grace(args, source)),
    }
}

/// Calls `f` for a mount, if `image` is the directory of one, or for the image.
fn within(image: &OsStr, how: &ImageArgs, writes: bool, f: impl FnOnce(&Source, &str) -> Result<()>) -> Result<()> {
    let name = shown(image.as_bytes());
    if Path::new(image).is_dir() {
        let Some(found) = mount_table::find(Path::new(image))?.filter(|found| found.mount.is_extant()) else {
            return Err(Failure::op(format!("{name}: neither an image nor a mount of Extant")));
        };
        let root = found.point.open_root(found.top);
        let root = root.map_err(|e| Failure::io(found.point.path(), std::io::Error::from(e)))?;
        return f(&Source::Mount(root, name.clone()), &name);
    }
    let images = if writes { Images::for_writing(how) } else { Images::for_looking(how) };
    images.with(|images| {
        let fs = images.image(&ImageSpec::parse(image))?;
        f(&Source::Image(fs), &name)
    })
}

impl Source {
    fn failed(&self, e: &Error) -> Failure {
        let Source::Image(fs) = self else { return Failure::op(e.to_string()) };
        Failure::op(format!("{}: {e}", fs.image()))
    }

    fn missing(&self, e: Error) -> Missing {
        match e {
            Error::NotSupported(_) => Missing::Kind,
            e => Missing::Failed(self.failed(&e)),
        }
    }

    fn ask(
        root: &OwnedFd,
        name: &str,
        request: QuotaRequest,
        record: &mut QuotaRecord,
    ) -> std::result::Result<bool, Missing> {
        match quota_control(root, request, record) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(Errno::OPNOTSUPP | Errno::NOTTY) => Err(Missing::Kind),
            Err(Errno::PERM) => Err(Missing::Failed(Failure::new(USAGE, format!("{name}: {NOT_PRIVILEGED}")))),
            Err(e) => Err(Missing::Failed(Failure::op(format!("{name}: {}", plain(&e.into()))))),
        }
    }

    /// The grace periods for blocks and inodes, seconds.
    fn grace(&self, kind: QuotaKind) -> std::result::Result<[u32; 2], Missing> {
        match self {
            Source::Image(fs) => fs.quota_grace(kind).map_err(|e| self.missing(e)),
            Source::Mount(root, name) => {
                let mut record = QuotaRecord::of(kind, 0);
                Source::ask(root, name, QuotaRequest::Grace, &mut record)?;
                Ok(record.grace())
            }
        }
    }

    /// The first owner at or after `id`.
    fn next(&self, kind: QuotaKind, id: u32) -> std::result::Result<Option<Row>, Missing> {
        match self {
            Source::Image(fs) => match fs.quota_from(kind, id) {
                Ok((usage, limits)) => Ok(Some(Row { usage, limits })),
                Err(Error::NotFound) => Ok(None),
                Err(e) => Err(self.missing(e)),
            },
            Source::Mount(root, name) => {
                let mut record = QuotaRecord::of(kind, id);
                let found = Source::ask(root, name, QuotaRequest::Next, &mut record)?;
                Ok(found.then(|| Row { usage: record.usage(), limits: record.limits() }))
            }
        }
    }
}

fn no_kind(kind: QuotaKind) -> Failure {
    Failure::op(format!(
        "the image has no quotas of {}: it needs the feature quota, and mkfs made none of these",
        plural(kind)
    ))
}

fn or_no_kind<T>(kind: QuotaKind, result: std::result::Result<T, Missing>) -> Result<T> {
    result.map_err(|missing| match missing {
        Missing::Kind => no_kind(kind),
        Missing::Failed(e) => e,
    })
}

fn plural(kind: QuotaKind) -> &'static str {
    match kind {
        QuotaKind::User => "users",
        QuotaKind::Group => "groups",
        QuotaKind::Project => "projects",
    }
}

fn singular(kind: QuotaKind) -> &'static str {
    match kind {
        QuotaKind::User => "user",
        QuotaKind::Group => "group",
        QuotaKind::Project => "project",
    }
}

fn report(args: &QuotaReportArgs, source: &Source, name: &str) -> Result<()> {
    let asked: Vec<QuotaKind> = QuotaKind::ALL
        .into_iter()
        .zip([args.users, args.groups, args.projects])
        .filter(|(_, asked)| *asked)
        .map(|(kind, _)| kind)
        .collect();
    let kinds = if asked.is_empty() { QuotaKind::ALL.to_vec() } else { asked.clone() };
    let mut out = Output::new();
    let mut any = false;
    for kind in kinds {
        let grace = match source.grace(kind) {
            Err(Missing::Kind) if asked.is_empty() => continue,
            grace => or_no_kind(kind, grace)?,
        };
        if any {
            writeln!(out)?;
        }
        any = true;
        print(&mut out, source, name, kind, grace)?;
    }
    out.flush()?;
    if any { Ok(()) } else { Err(Failure::op(format!("{name}: no quotas: it needs the feature quota"))) }
}

fn print(out: &mut Output, source: &Source, name: &str, kind: QuotaKind, grace: [u32; 2]) -> Result<()> {
    let now = Clock::real().wall().sec.max(0) as u64;
    writeln!(out, "*** Report for {} quotas on {name}", singular(kind))?;
    writeln!(out, "Block grace time: {}; Inode grace time: {}", duration(grace[0].into()), duration(grace[1].into()))?;
    writeln!(out, "                        Block limits                File limits")?;
    let title = format!("{}{}", singular(kind)[..1].to_uppercase(), &singular(kind)[1..]);
    writeln!(out, "{title:<15} used    soft    hard  grace    used  soft  hard  grace")?;
    writeln!(out, "{}", "-".repeat(70))?;
    let mut from = Some(0);
    while let Some(id) = from {
        let Some(Row { usage, limits }) = or_no_kind(kind, source.next(kind, id))? else { break };
        let blocks = usage.bytes.div_ceil(1024);
        let beyond = |soft: u64, used: u64| soft > 0 && used > soft;
        let (more_blocks, more_inodes) = (beyond(limits.blocks_soft, blocks), beyond(limits.inodes_soft, usage.inodes));
        let sign = |beyond: bool| if beyond { '+' } else { '-' };
        writeln!(
            out,
            "#{:<8} {}{} {:>7} {:>7} {:>7} {:>6} {:>7} {:>5} {:>5} {:>6}",
            usage.id,
            sign(more_blocks),
            sign(more_inodes),
            blocks,
            limits.blocks_soft,
            limits.blocks_hard,
            left(more_blocks, limits.blocks_until, now),
            usage.inodes,
            limits.inodes_soft,
            limits.inodes_hard,
            left(more_inodes, limits.inodes_until, now),
        )?;
        from = usage.id.checked_add(1);
    }
    Ok(())
}

/// The rest of a grace period.
fn left(exceeded: bool, until: u64, now: u64) -> String {
    match until.checked_sub(now) {
        _ if !exceeded || until == 0 => String::new(),
        Some(left) if left > 0 => duration(left),
        _ => "none".into(),
    }
}

/// As in repquota: whole days, or hours and minutes.
fn duration(seconds: u64) -> String {
    match seconds / (24 * 3600) {
        days if days >= 2 || seconds == 24 * 3600 => format!("{days}days"),
        _ => format!("{:02}:{:02}", seconds / 3600, seconds / 60 % 60),
    }
}

fn set(args: &QuotaSetArgs, source: &Source) -> Result<()> {
    let owner = &args.owner;
    let kinds = QuotaKind::ALL.into_iter().zip([owner.user, owner.group, owner.project]);
    for (kind, id) in kinds.filter_map(|(kind, id)| Some((kind, id?))) {
        let limits = QuotaLimits {
            blocks_soft: args.blocks_soft,
            blocks_hard: args.blocks_hard,
            inodes_soft: args.inodes_soft,
            inodes_hard: args.inodes_hard,
        };
        let done = match source {
            Source::Image(fs) => fs.set_quota(kind, id, limits).map_err(|e| source.missing(e)),
            Source::Mount(root, name) => {
                let mut record = QuotaRecord::with_limits(kind, id, limits);
                Source::ask(root, name, QuotaRequest::SetLimits, &mut record).map(drop)
            }
        };
        or_no_kind(kind, done)?;
    }
    Ok(())
}

fn set_grace(args: &QuotaGraceArgs, source: &Source) -> Result<()> {
    let kinds = QuotaKind::ALL.into_iter().zip([args.kind.users, args.kind.groups, args.kind.projects]);
    for (kind, _) in kinds.filter(|(_, asked)| *asked) {
        let grace = [args.blocks, args.inodes];
        let done = match source {
            Source::Image(fs) => fs.set_quota_grace(kind, grace).map_err(|e| source.missing(e)),
            Source::Mount(root, name) => {
                let mut record = QuotaRecord::with_grace(kind, grace);
                Source::ask(root, name, QuotaRequest::SetGrace, &mut record).map(drop)
            }
        };
        or_no_kind(kind, done)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_days_or_hours() {
        for (seconds, text) in
            [(604_800, "7days"), (86_400, "1days"), (100_000, "27:46"), (3600, "01:00"), (59, "00:00")]
        {
            assert_eq!(duration(seconds), text);
        }
        assert_eq!(
            (left(false, 5, 1), left(true, 5, 5), left(true, 3700, 100)),
            (String::new(), "none".into(), "01:00".into())
        );
    }
}
