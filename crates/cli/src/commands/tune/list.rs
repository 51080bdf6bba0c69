//! A superblock in the form of `tune2fs -l` (e2fsprogs: lib/e2p/ls.c), which scripts parse.
//!
//! Main function: [`print`]. Times are in UTC; tune2fs prints them in the caller's time zone.
//!
//! # Locking
//! None.

use std::io::Write;

use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::superblock::{FsState, MAGIC, RawSuperBlock, SuperBlock, SuperFlags};
use nix::unistd::{Gid, Group, Uid, User};

use super::words;
use crate::failure::Result;
use crate::text::{Output, shown, uuid};

const DAY: u32 = 86_400;

/// Prints a label and its value.
fn row(out: &mut Output, label: &str, value: impl std::fmt::Display) -> Result<()> {
    Ok(writeln!(out, "{:<25} {value}", format!("{label}:"))?)
}

/// Prints the lines of `tune2fs -l`.
pub fn print(out: &mut Output, sb: &SuperBlock) -> Result<()> {
    let raw = sb.raw();
    identity(out, sb)?;
    sizes(out, sb)?;
    times(out, raw)?;
    let user = User::from_uid(Uid::from_raw(raw.s_def_resuid.get().into())).ok().flatten();
    let group = Group::from_gid(Gid::from_raw(raw.s_def_resgid.get().into())).ok().flatten();
    let user = user.map_or("user unknown".to_owned(), |user| format!("user {}", user.name));
    let group = group.map_or("group unknown".to_owned(), |group| format!("group {}", group.name));
    row(out, "Reserved blocks uid", format!("{} ({user})", raw.s_def_resuid.get()))?;
    row(out, "Reserved blocks gid", format!("{} ({group})", raw.s_def_resgid.get()))?;
    if raw.s_rev_level.get() >= 1 {
        files(out, sb)?;
    }
    errors(out, raw)?;
    protection(out, sb)
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    shown(&bytes[..end])
}

fn or<'a>(text: &'a str, none: &'a str) -> &'a str {
    if text.is_empty() { none } else { text }
}

fn identity(out: &mut Output, sb: &SuperBlock) -> Result<()> {
    let raw = sb.raw();
    row(out, "Filesystem volume name", or(&text(&raw.s_volume_name), "<none>"))?;
    row(out, "Last mounted on", or(&text(&raw.s_last_mounted), "<not available>"))?;
    let id = if raw.s_uuid == [0; 16] { "<none>".to_owned() } else { uuid(&raw.s_uuid) };
    row(out, "Filesystem UUID", id)?;
    row(out, "Filesystem magic number", format!("0x{MAGIC:04X}"))?;
    let revision = match raw.s_rev_level.get() {
        0 => "0 (original)".to_owned(),
        1 => "1 (dynamic)".to_owned(),
        other => format!("{other} (unknown)"),
    };
    row(out, "Filesystem revision #", revision)?;
    let features = [sb.compat().names(), sb.incompat().names(), sb.ro_compat().names()].concat();
    row(out, "Filesystem features", or(&features.join(" "), "(none)"))?;
    let flags = [
        (SuperFlags::SIGNED_HASH, "signed_directory_hash "),
        (SuperFlags::UNSIGNED_HASH, "unsigned_directory_hash "),
        (SuperFlags::TEST_FILESYS, "test_filesystem "),
    ];
    let flags: String = flags.iter().filter(|(bit, _)| sb.flags().contains(*bit)).map(|(_, name)| *name).collect();
    row(out, "Filesystem flags", or(&flags, "(none)"))?;
    let options = words::mount_options(sb.default_mount_opts()).join(" ");
    row(out, "Default mount options", or(&options, "(none)"))?;
    if raw.s_mount_opts[0] != 0 {
        row(out, "Mount options", text(&raw.s_mount_opts))?;
    }
    let state = sb.state();
    let clean = if state.contains(FsState::VALID) { "clean" } else { "not clean" };
    let errors = if state.contains(FsState::ERROR) { " with errors" } else { "" };
    row(out, "Filesystem state", format!("{clean}{errors}"))?;
    let behaviour = match raw.s_errors.get() {
        1 => "Continue",
        2 => "Remount read-only",
        3 => "Panic",
        _ => "Unknown (continue)",
    };
    row(out, "Errors behavior", behaviour)?;
    let system = ["Linux", "Hurd", "Masix", "FreeBSD", "Lites"].get(raw.s_creator_os.get() as usize);
    row(out, "Filesystem OS type", system.unwrap_or(&"(unknown os)"))
}

fn sizes(out: &mut Output, sb: &SuperBlock) -> Result<()> {
    let (raw, geo) = (sb.raw(), sb.geometry());
    let clusters = sb.ro_compat().contains(RoCompat::BIGALLOC);
    row(out, "Inode count", raw.s_inodes_count.get())?;
    row(out, "Block count", sb.blocks_count)?;
    row(out, "Reserved block count", sb.reserved_blocks())?;
    if raw.s_overhead_clusters.get() != 0 {
        row(out, "Overhead clusters", raw.s_overhead_clusters.get())?;
    }
    row(out, "Free blocks", sb.free_blocks())?;
    row(out, "Free inodes", sb.free_inodes())?;
    row(out, "First block", raw.s_first_data_block.get())?;
    row(out, "Block size", sb.block_size)?;
    let unit = 1024u64 << raw.s_log_cluster_size.get().min(32);
    row(out, if clusters { "Cluster size" } else { "Fragment size" }, unit)?;
    if sb.incompat().contains(Incompat::BIT64) {
        row(out, "Group descriptor size", raw.s_desc_size.get())?;
    }
    if raw.s_reserved_gdt_blocks.get() != 0 {
        row(out, "Reserved GDT blocks", raw.s_reserved_gdt_blocks.get())?;
    }
    row(out, "Blocks per group", raw.s_blocks_per_group.get())?;
    let per_group = if clusters { "Clusters per group" } else { "Fragments per group" };
    row(out, per_group, raw.s_clusters_per_group.get())?;
    row(out, "Inodes per group", raw.s_inodes_per_group.get())?;
    row(out, "Inode blocks per group", geo.inode_table_blocks)?;
    if raw.s_first_meta_bg.get() != 0 {
        row(out, "First meta block group", raw.s_first_meta_bg.get())?;
    }
    if raw.s_raid_stride.get() != 0 {
        row(out, "RAID stride", raw.s_raid_stride.get())?;
    }
    if raw.s_raid_stripe_width.get() != 0 {
        row(out, "RAID stripe width", raw.s_raid_stripe_width.get())?;
    }
    if raw.s_log_groups_per_flex != 0 {
        row(out, "Flex block group size", 1u64 << raw.s_log_groups_per_flex.min(63))?;
    }
    Ok(())
}

fn times(out: &mut Output, raw: &RawSuperBlock) -> Result<()> {
    let at = |seconds: i64| if seconds == 0 { "n/a".to_owned() } else { moment(seconds) };
    if raw.s_mkfs_time.get() != 0 {
        row(out, "Filesystem created", at(RawSuperBlock::time(raw.s_mkfs_time, raw.s_mkfs_time_hi)))?;
    }
    row(out, "Last mount time", at(RawSuperBlock::time(raw.s_mtime, raw.s_mtime_hi)))?;
    row(out, "Last write time", moment(RawSuperBlock::time(raw.s_wtime, raw.s_wtime_hi)))?;
    row(out, "Mount count", raw.s_mnt_count.get())?;
    row(out, "Maximum mount count", raw.s_max_mnt_count.get() as i16)?;
    let checked = RawSuperBlock::time(raw.s_lastcheck, raw.s_lastcheck_hi);
    row(out, "Last checked", moment(checked))?;
    let interval = raw.s_checkinterval.get();
    row(out, "Check interval", format!("{interval} ({})", span(interval)))?;
    if interval != 0 {
        row(out, "Next check after", moment(checked + i64::from(interval)))?;
    }
    let kbytes = raw.s_kbytes_written.get();
    if kbytes != 0 {
        row(out, "Lifetime writes", size_kb(kbytes))?;
    }
    Ok(())
}

/// A time in the format `Sun Nov 29 08:00:38 2026`.
fn moment(seconds: i64) -> String {
    let utc = jiff::Timestamp::from_second(seconds).map(|at| at.to_zoned(jiff::tz::TimeZone::UTC));
    utc.map_or_else(|_| seconds.to_string(), |at| at.strftime("%a %b %e %H:%M:%S %Y").to_string())
}

/// An interval in words (e2fsprogs: `interval_string`).
fn span(mut seconds: u32) -> String {
    let units = [(30 * DAY, "month"), (7 * DAY, "week"), (DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second")];
    let mut parts = Vec::new();
    for (unit, name) in units {
        let count = seconds / unit;
        seconds %= unit;
        match count {
            0 => {}
            1 => parts.push(format!("1 {name}")),
            count => parts.push(format!("{count} {name}s")),
        }
    }
    if parts.is_empty() { "<none>".to_owned() } else { parts.join(", ") }
}

/// Kilobytes with the unit that e2fsprogs prints: at most four digits, rounded.
fn size_kb(kbytes: u64) -> String {
    let rounded = |bits: u32| (kbytes + (1 << (bits - 1))) >> bits;
    match kbytes {
        0..0x2000 => format!("{kbytes} kB"),
        0x2000..0x80_0000 => format!("{} MB", rounded(10)),
        0x80_0000..0x2_0000_0000 => format!("{} GB", rounded(20)),
        _ => format!("{} TB", kbytes.saturating_add(1 << 29) >> 30),
    }
}

fn files(out: &mut Output, sb: &SuperBlock) -> Result<()> {
    let raw = sb.raw();
    row(out, "First inode", raw.s_first_ino.get())?;
    // The tab is in tune2fs's output, too.
    writeln!(out, "Inode size:\t          {}", raw.s_inode_size.get())?;
    if raw.s_min_extra_isize.get() != 0 {
        row(out, "Required extra isize", raw.s_min_extra_isize.get())?;
    }
    if raw.s_want_extra_isize.get() != 0 {
        row(out, "Desired extra isize", raw.s_want_extra_isize.get())?;
    }
    if raw.s_journal_uuid != [0; 16] {
        row(out, "Journal UUID", uuid(&raw.s_journal_uuid))?;
    }
    if raw.s_journal_inum.get() != 0 {
        row(out, "Journal inode", raw.s_journal_inum.get())?;
    }
    if raw.s_journal_dev.get() != 0 {
        row(out, "Journal device", format!("0x{:04x}", raw.s_journal_dev.get()))?;
    }
    if raw.s_last_orphan.get() != 0 {
        row(out, "First orphan inode", raw.s_last_orphan.get())?;
    }
    if sb.compat().contains(Compat::DIR_INDEX) || raw.s_def_hash_version != 0 {
        let hash = match raw.s_def_hash_version {
            0 => "legacy".to_owned(),
            1 => "half_md4".to_owned(),
            2 => "tea".to_owned(),
            6 => "siphash".to_owned(),
            other => format!("HASHALG_{other}"),
        };
        row(out, "Default directory hash", hash)?;
    }
    let mut seed = [0; 16];
    for (bytes, word) in seed.chunks_mut(4).zip(sb.hash_seed()) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    if seed != [0; 16] {
        row(out, "Directory Hash Seed", uuid(&seed))?;
    }
    match raw.s_jnl_backup_type {
        0 => {}
        1 => row(out, "Journal backup", "inode blocks")?,
        other => row(out, "Journal backup", format!("type {other}"))?,
    }
    let backups = raw.s_backup_bgs.map(|group| group.get());
    if backups != [0, 0] {
        let named: Vec<String> = backups.iter().filter(|group| **group != 0).map(u32::to_string).collect();
        writeln!(out, "Backup block groups:      {} ", named.join(" "))?;
    }
    Ok(())
}

fn errors(out: &mut Output, raw: &RawSuperBlock) -> Result<()> {
    if raw.s_error_count.get() != 0 {
        row(out, "FS Error count", raw.s_error_count.get())?;
    }
    let first = (RawSuperBlock::time(raw.s_first_error_time, raw.s_first_error_time_hi), &raw.s_first_error_func);
    let last = (RawSuperBlock::time(raw.s_last_error_time, raw.s_last_error_time_hi), &raw.s_last_error_func);
    let numbers = [
        (raw.s_first_error_line.get(), raw.s_first_error_ino.get(), raw.s_first_error_block.get()),
        (raw.s_last_error_line.get(), raw.s_last_error_ino.get(), raw.s_last_error_block.get()),
    ];
    for (which, (when, function), (line, inode, block)) in [("First", first, numbers[0]), ("Last", last, numbers[1])] {
        if when == 0 {
            continue;
        }
        row(out, &format!("{which} error time"), moment(when))?;
        row(out, &format!("{which} error function"), text(function))?;
        row(out, &format!("{which} error line #"), line)?;
        if inode != 0 {
            row(out, &format!("{which} error inode #"), inode)?;
        }
        if block != 0 {
            row(out, &format!("{which} error block #"), block)?;
        }
    }
    Ok(())
}

fn protection(out: &mut Output, sb: &SuperBlock) -> Result<()> {
    let raw = sb.raw();
    if sb.incompat().contains(Incompat::MMP) {
        row(out, "MMP block number", raw.s_mmp_block.get())?;
        row(out, "MMP update interval", raw.s_mmp_update_interval.get())?;
    }
    let quotas = [
        ("User", raw.s_usr_quota_inum.get()),
        ("Group", raw.s_grp_quota_inum.get()),
        ("Project", raw.s_prj_quota_inum.get()),
    ];
    for (kind, inode) in quotas.into_iter().filter(|(_, inode)| *inode != 0) {
        row(out, &format!("{kind} quota inode"), inode)?;
    }
    if sb.ro_compat().contains(RoCompat::METADATA_CSUM) {
        row(out, "Checksum type", if raw.s_checksum_type == 1 { "crc32c" } else { "INVALID" })?;
        row(out, "Checksum", format!("0x{:08x}", raw.compute_checksum()))?;
    }
    if sb.incompat().contains(Incompat::CSUM_SEED) {
        row(out, "Checksum seed", format!("0x{:08x}", raw.s_checksum_seed.get()))?;
    }
    if raw.s_orphan_file_inum.get() != 0 {
        row(out, "Orphan file inode", raw.s_orphan_file_inum.get())?;
    }
    if raw.s_encoding.get() != 0 {
        let name = if raw.s_encoding.get() == 1 { "utf8-12.1" } else { "unknown" };
        row(out, "Character encoding", name)?;
    }
    Ok(())
}
