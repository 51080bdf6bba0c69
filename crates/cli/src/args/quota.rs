//! The command line of `extant quota`.
//!
//! # Locking
//! None.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::ImageArgs;

/// Show or set what users, groups and projects may use
///
/// The image needs the feature quota (extant mkfs -O quota, mke2fs -O quota). Every change updates the usage; limits
/// are enforced in mounts with the options usrquota, grpquota and prjquota. IMAGE may also be the directory of a mount.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant quota report disk.img
  extant quota set -u 1000 900M 1G 0 0 disk.img
  extant quota set -P 42 0 2G 0 10000 /mnt
  extant quota grace -u 7days 1day disk.img

Exit status: 0, 1 (usage), 8 (the image or the system said no).")]
pub struct QuotaArgs {
    #[command(subcommand)]
    pub command: QuotaCommand,
}

#[derive(Subcommand, Debug)]
pub enum QuotaCommand {
    /// List owners with their usage and limits, as repquota -n does: blocks of 1 KiB, then inodes
    ///
    /// Of the two signs after an ID, the first is a plus if the soft limit of blocks is exceeded, the second if that of
    /// inodes is.
    Report(QuotaReportArgs),
    /// Set an owner's limits, as setquota does
    Set(QuotaSetArgs),
    /// Set for how long soft limits may be exceeded, as setquota -t does
    Grace(QuotaGraceArgs),
}

#[derive(Args, Debug)]
pub struct QuotaReportArgs {
    /// Users (without -u, -g and -P: all types that the image has)
    #[arg(short, long)]
    pub users: bool,
    /// Groups
    #[arg(short, long)]
    pub groups: bool,
    /// Projects
    #[arg(short = 'P', long)]
    pub projects: bool,
    /// Image file or block device, or the directory of a mount
    pub image: OsString,
    #[command(flatten)]
    pub how: ImageArgs,
}

#[derive(Args, Debug)]
#[group(id = "owner", required = true, multiple = false)]
pub struct Owner {
    /// The user with this ID
    #[arg(short, long, value_name = "UID", group = "owner")]
    pub user: Option<u32>,
    /// The group with this ID
    #[arg(short, long, value_name = "GID", group = "owner")]
    pub group: Option<u32>,
    /// The project with this ID
    #[arg(short = 'P', long, value_name = "ID", group = "owner")]
    pub project: Option<u32>,
}

#[derive(Args, Debug)]
pub struct QuotaSetArgs {
    #[command(flatten)]
    pub owner: Owner,
    /// Soft limit of blocks, which may be exceeded for a grace period: KiB, or with K, M, G or T; 0: no limit
    #[arg(value_name = "BLOCKS_SOFT", value_parser = kibibytes)]
    pub blocks_soft: u64,
    /// Hard limit of blocks
    #[arg(value_name = "BLOCKS_HARD", value_parser = kibibytes)]
    pub blocks_hard: u64,
    /// Soft limit of inodes, which may be exceeded for a grace period
    #[arg(value_name = "INODES_SOFT")]
    pub inodes_soft: u64,
    /// Hard limit of inodes
    #[arg(value_name = "INODES_HARD")]
    pub inodes_hard: u64,
    /// Image file or block device, or the directory of a mount
    pub image: OsString,
    #[command(flatten)]
    pub how: ImageArgs,
}

#[derive(Args, Debug)]
#[group(id = "kind", required = true, multiple = false)]
pub struct Kind {
    /// Grace periods of users
    #[arg(short, long, group = "kind")]
    pub users: bool,
    /// Grace periods of groups
    #[arg(short, long, group = "kind")]
    pub groups: bool,
    /// Grace periods of projects
    #[arg(short = 'P', long, group = "kind")]
    pub projects: bool,
}

#[derive(Args, Debug)]
pub struct QuotaGraceArgs {
    #[command(flatten)]
    pub kind: Kind,
    /// For blocks: seconds, or a number with minutes, hours, days or weeks
    #[arg(value_name = "BLOCKS", value_parser = seconds)]
    pub blocks: u32,
    /// For inodes
    #[arg(value_name = "INODES", value_parser = seconds)]
    pub inodes: u32,
    /// Image file or block device, or the directory of a mount
    pub image: OsString,
    #[command(flatten)]
    pub how: ImageArgs,
}

/// As for setquota: a number without a unit counts KiB.
fn kibibytes(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(blocks) => Ok(blocks),
        Err(_) => extant_base::size::parse(text).map(|bytes| bytes.div_ceil(1024)),
    }
}

fn seconds(text: &str) -> Result<u32, String> {
    let wrong = || format!("'{text}' is not a time (seconds, or with minutes, hours, days or weeks)");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u32 = number.parse().map_err(|_| wrong())?;
    let each = match unit.trim() {
        "" | "s" | "second" | "seconds" => 1,
        "m" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3600,
        "d" | "day" | "days" => 24 * 3600,
        "w" | "week" | "weeks" => 7 * 24 * 3600,
        _ => return Err(wrong()),
    };
    number.checked_mul(each).ok_or_else(|| format!("'{text}' is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_count_kibibytes_and_times_seconds() {
        assert_eq!((kibibytes("5"), kibibytes("2M"), kibibytes("1b")), (Ok(5), Ok(2048), Ok(1)));
        assert!(kibibytes("x").is_err() && kibibytes("").is_err());
        assert_eq!((seconds("90"), seconds("7days"), seconds("2 hours")), (Ok(90), Ok(604_800), Ok(7200)));
        assert!(seconds("2years").is_err() && seconds("9999999999").is_err() && seconds("99999999weeks").is_err());
    }
}
