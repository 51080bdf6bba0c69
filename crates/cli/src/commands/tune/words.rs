//! Turns the options of tune2fs into changes.
//!
//! Main functions: [`changes`], [`told`] (the lines about completed changes).
//!
//! # Locking
//! None.

use std::os::unix::ffi::OsStrExt;

use extant_base::clock::Clock;
use extant_build::options::{parse_uuid, random_uuid, time_uuid};
use extant_ondisk::features::{Compat, Incompat};
use extant_ondisk::superblock::{DefaultMountOpts, SuperBlock};
use extant_ondisk::time::Timestamp;
use extant_repair::tune::{Change, Feature};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{JournalAsked, TuneRequest};
use crate::args::TuneLetters;
use crate::failure::{Failure, Result};
use crate::image::ImageSpec;
use crate::owner::OwnerSpec;
use crate::text::{shown, uuid};
use crate::when;

/// The names for `-o`, as in e2fsprogs: the name, the bits to set, and the bits that select it.
const MOUNT_OPTIONS: [(&str, DefaultMountOpts, DefaultMountOpts); 12] = {
    const JMODE: DefaultMountOpts = DefaultMountOpts::JMODE_DATA.union(DefaultMountOpts::JMODE_ORDERED);
    const fn one(name: &str, bit: DefaultMountOpts) -> (&str, DefaultMountOpts, DefaultMountOpts) {
        (name, bit, bit)
    }
    [
        one("debug", DefaultMountOpts::DEBUG),
        one("bsdgroups", DefaultMountOpts::BSDGROUPS),
        one("user_xattr", DefaultMountOpts::XATTR_USER),
        one("acl", DefaultMountOpts::ACL),
        one("uid16", DefaultMountOpts::UID16),
        ("journal_data", DefaultMountOpts::JMODE_DATA, JMODE),
        ("journal_data_ordered", DefaultMountOpts::JMODE_ORDERED, JMODE),
        ("journal_data_writeback", JMODE, JMODE),
        one("nobarrier", DefaultMountOpts::NOBARRIER),
        one("block_validity", DefaultMountOpts::BLOCK_VALIDITY),
        one("discard", DefaultMountOpts::DISCARD),
        one("nodelalloc", DefaultMountOpts::NODELALLOC),
    ]
};
const DAY: u32 = 86_400;

/// The names for `-o` of these bits.
pub fn mount_options(bits: DefaultMountOpts) -> Vec<&'static str> {
    let named = MOUNT_OPTIONS.iter().filter(|(_, set, mask)| bits & *mask == *set);
    named.map(|(name, ..)| *name).collect()
}

/// Whether an option requests a change.
pub fn has_changes(letters: &TuneLetters) -> bool {
    let TuneLetters { label, uuid, reserved_percent, reserved_blocks, user, group, errors, .. } = letters;
    let TuneLetters { max_mounts, mounts, interval, last_check, last_mounted, journal, .. } = letters;
    label.is_some()
        || uuid.is_some()
        || reserved_percent.is_some()
        || reserved_blocks.is_some()
        || [user, group, errors, interval, last_check].into_iter().any(Option::is_some)
        || max_mounts.is_some()
        || mounts.is_some()
        || last_mounted.is_some()
        || *journal
        || letters.journal_options.is_some()
        || letters.inode_size.is_some()
        || letters.quota.is_some()
        || !(letters.mount_options.is_empty() && letters.features.is_empty() && letters.extended.is_empty())
}

/// The changes that the options request, features first, the UUID last.
pub fn changes(letters: &TuneLetters, sb: &SuperBlock, spec: &ImageSpec) -> Result<TuneRequest> {
    let image = spec.shown();
    if letters.inode_size.is_some() {
        let next = "'extant mkfs --from image:OLD -I BYTES NEW' makes a new image with the same files";
        return Err(Failure::usage(format!("{image}: -I: inodes keep their size in place; {next}")));
    }
    if letters.quota.is_some() {
        let next = "'extant mkfs --from image:OLD -O quota NEW' makes a new image with the same files";
        return Err(Failure::usage(format!("{image}: -Q: quota files are not made in place; {next}")));
    }
    let mut changes = Vec::new();
    if letters.journal {
        changes.push(Change::Feature { feature: Feature::Compat(Compat::HAS_JOURNAL), on: true });
    }
    for word in words(&letters.features) {
        changes.push(feature(word)?);
    }
    for word in words(&letters.extended) {
        changes.push(extended(word)?);
    }
    for word in words(&letters.mount_options) {
        changes.push(mount_option(word)?);
    }
    let label = letters.label.as_ref().map(|label| Change::Label(label.as_bytes().to_vec()));
    let errors = letters.errors.as_deref().map(behaviour).transpose()?;
    let max = letters.max_mounts.map(max_mounts).transpose()?;
    let interval = letters.interval.as_deref().map(interval).transpose()?;
    let last = letters.last_check.as_deref().map(last_check).transpose()?;
    let user = letters.user.as_deref().map(|text| owner("-u", text)).transpose()?;
    let group = letters.group.as_deref().map(|text| owner("-g", &format!(":{text}"))).transpose()?;
    let mounted = letters.last_mounted.as_ref().map(|path| Change::LastMounted(path.as_bytes().to_vec()));
    let uuid = letters.uuid.as_deref().map(new_uuid).transpose()?;
    changes.extend(letters.reserved_percent.map(Change::ReservedPercent));
    changes.extend(letters.reserved_blocks.map(Change::ReservedBlocks));
    changes.extend(letters.mounts.map(Change::Mounts));
    changes.extend([label, errors, max, interval, last, user, group, mounted, uuid].into_iter().flatten());
    let journal = Compat::HAS_JOURNAL;
    let has = |on: bool| changes.contains(&Change::Feature { feature: Feature::Compat(journal), on });
    let (comes, goes) = (has(true), has(false));
    let journal = match letters.journal_options.as_deref() {
        None => JournalAsked::Default,
        Some(text) => match text.strip_prefix("device=") {
            Some(path) if goes => JournalAsked::Released(path.to_owned()),
            Some(path) => JournalAsked::Device(path.to_owned()),
            None if comes => JournalAsked::Blocks(journal_blocks(text, sb)?),
            None => return Err(Failure::usage(format!("{image}: -J: it is for a journal that is added with -j"))),
        },
    };
    if matches!(journal, JournalAsked::Released(_)) && sb.external_journal().is_none() {
        return Err(Failure::usage(format!("{image}: -J device=: its journal is not on another device")));
    }
    Ok(TuneRequest { changes, journal })
}

fn words(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split([',', ' ', '\t'])).filter(|word| !word.is_empty())
}

fn wrong(letter: &str, text: &str, takes: &str) -> Failure {
    Failure::usage(format!("{letter} {text}: it takes {takes}"))
}

fn feature(word: &str) -> Result<Change> {
    let (name, on) = signed(word);
    match Feature::by_name(name) {
        Some(Feature::Incompat(Incompat::NEEDS_RECOVERY)) if !on => {
            Err(Failure::usage(format!("-O {word}: 'extant fsck -p' replays the log, which is what it stands for")))
        }
        Some(feature) => Ok(Change::Feature { feature, on }),
        None => Err(Failure::usage(format!("-O {word}: no such feature; 'extant help tune' lists them"))),
    }
}

/// The name behind a sign, and whether it is to be enabled.
fn signed(word: &str) -> (&str, bool) {
    match word.strip_prefix(['^', '-']) {
        Some(name) => (name, false),
        None => (word.strip_prefix('+').unwrap_or(word), true),
    }
}

fn mount_option(word: &str) -> Result<Change> {
    if word == "none" || word == "clear" {
        return Ok(Change::MountBits { clear: !0, set: 0 });
    }
    let (name, on) = signed(word);
    let Some((_, set, mask)) = MOUNT_OPTIONS.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name)) else {
        let known = MOUNT_OPTIONS.map(|(name, ..)| name).join(", ");
        return Err(wrong("-o", word, &known));
    };
    Ok(Change::MountBits { clear: mask.bits(), set: if on { set.bits() } else { 0 } })
}

fn extended(word: &str) -> Result<Change> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let text = value.unwrap_or("");
    let number = |takes: &str| text.parse::<u32>().map_err(|_| wrong("-E", word, takes));
    let short = |takes: &str| text.parse::<u16>().map_err(|_| wrong("-E", word, takes));
    match name {
        "clear_mmp" => Ok(Change::ClearMmp),
        "force_fsck" => Ok(Change::ForceCheck),
        "test_fs" => Ok(Change::TestFs(true)),
        "^test_fs" => Ok(Change::TestFs(false)),
        "stride" => Ok(Change::Stride(short("stride=BLOCKS, at most 65535")?)),
        "stripe_width" | "stripe-width" => Ok(Change::StripeWidth(number("stripe_width=BLOCKS")?)),
        "mmp_update_interval" => {
            let takes = "mmp_update_interval=SECONDS, at most 300";
            Ok(Change::MmpInterval(short(takes).ok().filter(|s| *s <= 300).ok_or_else(|| wrong("-E", word, takes))?))
        }
        "mount_opts" => Ok(Change::MountText(text.as_bytes().to_vec())),
        "hash_alg" => match text {
            "legacy" => Ok(Change::Hash(0)),
            "half_md4" => Ok(Change::Hash(1)),
            "tea" => Ok(Change::Hash(2)),
            _ => Err(wrong("-E", word, "hash_alg=legacy, half_md4 or tea")),
        },
        _ => Err(wrong(
            "-E",
            word,
            "clear_mmp, force_fsck, hash_alg, mmp_update_interval, mount_opts, stride, stripe_width, test_fs, ^test_fs",
        )),
    }
}

fn behaviour(text: &str) -> Result<Change> {
    match text {
        "continue" => Ok(Change::Errors(1)),
        "remount-ro" => Ok(Change::Errors(2)),
        "panic" => Ok(Change::Errors(3)),
        _ => Err(wrong("-e", text, "continue, remount-ro or panic")),
    }
}

fn max_mounts(count: i32) -> Result<Change> {
    match i16::try_from(count) {
        Ok(count) if count >= -1 => Ok(Change::MaxMounts(if count == 0 { -1 } else { count })),
        _ => Err(wrong("-c", &count.to_string(), "a number of mounts, or -1 for never")),
    }
}

fn interval(text: &str) -> Result<Change> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match text[end..].to_ascii_lowercase().as_str() {
        "" | "d" => Some(DAY),
        "s" => Some(1),
        "w" => Some(7 * DAY),
        "m" => Some(30 * DAY),
        _ => None,
    };
    let seconds = text[..end].parse::<u32>().ok().zip(unit).and_then(|(count, unit)| count.checked_mul(unit));
    seconds.map(Change::Interval).ok_or_else(|| wrong("-i", text, "a number with d, w, m or s; 0 means never"))
}

fn last_check(text: &str) -> Result<Change> {
    let wrong = || wrong("-T", text, "YYYYMMDD[HH[MM[SS]]] in UTC, now or @SECONDS");
    let now = Clock::real().wall();
    let all_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let form = match text.len() {
        8 | 10 | 12 | 14 if all_digits => {
            let padded = format!("{text:0<14}");
            let part = |at: std::ops::Range<usize>| &padded[at];
            let (date, clock) = ((part(0..4), part(4..6), part(6..8)), (part(8..10), part(10..12), part(12..14)));
            format!("{}-{}-{} {}:{}:{}", date.0, date.1, date.2, clock.0, clock.1, clock.2)
        }
        _ if text == "now" || text.starts_with('@') => text.to_owned(),
        _ => return Err(wrong()),
    };
    let found = when::date(&form, Timestamp::from_seconds(now.sec)).map_err(|_| wrong())?;
    Ok(Change::LastCheck(found.map_or(now.sec, |at| at.seconds)))
}

fn owner(letter: &str, text: &str) -> Result<Change> {
    let given = OwnerSpec::parse(text).map_err(|e| Failure::usage(format!("{letter}: {e}")))?;
    let takes = "a name or a number up to 65535";
    let short = |id: Option<u32>| {
        id.and_then(|id| u16::try_from(id).ok()).ok_or_else(|| wrong(letter, text.trim_start_matches(':'), takes))
    };
    match letter {
        "-u" => Ok(Change::ReservedUser(short(given.uid)?)),
        _ => Ok(Change::ReservedGroup(short(given.gid)?)),
    }
}

fn new_uuid(text: &str) -> Result<Change> {
    let random = || -> Result<[u8; 16]> {
        let mut bytes = [0; 16];
        let io = |e: rustix::io::Errno| Failure::op(format!("no random numbers: {e}"));
        getrandom(&mut bytes, GetRandomFlags::empty()).map_err(io)?;
        Ok(bytes)
    };
    let uuid = match text.to_ascii_lowercase().as_str() {
        "clear" | "null" => [0; 16],
        "random" => random_uuid(random()?),
        "time" => time_uuid(Clock::real().wall().sec, random()?),
        _ => parse_uuid(text).ok_or_else(|| wrong("-U", text, "a UUID, clear, random or time"))?,
    };
    Ok(Change::Uuid(uuid))
}

/// The number of blocks of a new journal.
fn journal_blocks(text: &str, sb: &SuperBlock) -> Result<u32> {
    let wrong = || wrong("-J", text, "size=MEGABYTES, at least 1024 blocks, or device=DEVICE");
    let value = text.strip_prefix("size=").ok_or_else(wrong)?;
    let bytes = match value.parse::<u64>() {
        Ok(megabytes) => megabytes.checked_mul(1 << 20),
        Err(_) => extant_base::size::parse(value).ok(),
    };
    let blocks = bytes.map(|bytes| bytes >> sb.block_bits).and_then(|blocks| u32::try_from(blocks).ok());
    let fits = |blocks: &u32| {
        (extant_ondisk::jbd2::MIN_LOG_BLOCKS..=10_240_000).contains(blocks) && u64::from(*blocks) < sb.free_blocks()
    };
    blocks.filter(fits).ok_or_else(wrong)
}

/// One line about each completed change.
pub fn told(changes: &[Change]) -> Vec<String> {
    changes.iter().map(line).collect()
}

fn line(change: &Change) -> String {
    match change {
        Change::Label(label) if label.is_empty() => "it has no label now".to_owned(),
        Change::Label(label) => format!("its label is '{}' now", shown(label)),
        Change::Uuid(bytes) => format!("its UUID is {} now", uuid(bytes)),
        Change::ReservedPercent(percent) => format!("{percent}% of its blocks are reserved"),
        Change::ReservedBlocks(count) => format!("{count} blocks are reserved"),
        Change::ReservedUser(id) => format!("user {id} may use reserved blocks"),
        Change::ReservedGroup(id) => format!("group {id} may use reserved blocks"),
        Change::Errors(1) => "mounts continue after an error".to_owned(),
        Change::Errors(2) => "mounts turn read-only after an error".to_owned(),
        Change::Errors(_) => "the kernel panics after an error".to_owned(),
        Change::MountBits { .. } | Change::MountText(_) => "the options of each mount are changed".to_owned(),
        Change::MaxMounts(-1) => "no number of mounts makes a check due".to_owned(),
        Change::MaxMounts(count) => format!("a check is due after {count} mounts"),
        Change::Mounts(count) => format!("it counts {count} mounts since the last check"),
        Change::Interval(0) => "no time makes a check due".to_owned(),
        Change::Interval(seconds) => format!("a check is due after {seconds} seconds"),
        Change::LastCheck(when) => format!("it was checked at {}", crate::text::second(*when)),
        Change::LastMounted(path) => format!("it was mounted last on '{}'", shown(path)),
        Change::Hash(_) => "new directory indexes have another hash".to_owned(),
        Change::Stride(blocks) => format!("its stride is {blocks} blocks"),
        Change::StripeWidth(blocks) => format!("its stripe width is {blocks} blocks"),
        Change::MmpInterval(seconds) => format!("a mount shows a sign of life every {seconds} seconds"),
        Change::ClearMmp => "its block of multi-mount protection says that no mount uses it".to_owned(),
        Change::ForceCheck => "the next e2fsck checks it".to_owned(),
        Change::TestFs(true) => "it is marked for development code".to_owned(),
        Change::TestFs(false) => "it is not marked for development code".to_owned(),
        Change::ExternalJournal { uuid: bytes, .. } => {
            format!("its journal is the device with the UUID {} now", uuid(bytes))
        }
        Change::Feature { feature, on: true } => format!("it has the feature {} now", feature.name()),
        Change::Feature { feature, on: false } => format!("it does not have the feature {} any more", feature.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_times_and_options_are_those_of_tune2fs() {
        assert_eq!(interval("0").ok(), Some(Change::Interval(0)));
        assert_eq!(interval("2w").ok(), Some(Change::Interval(14 * DAY)));
        assert_eq!(interval("1m").ok(), Some(Change::Interval(30 * DAY)));
        assert_eq!(interval("9s").ok(), Some(Change::Interval(9)));
        assert!(["", "w", "1y", "-1", "99999999m"].iter().all(|text| interval(text).is_err()));
        assert_eq!(last_check("19700102").ok(), Some(Change::LastCheck(86_400)));
        assert_eq!(last_check("1970010101").ok(), Some(Change::LastCheck(3600)));
        assert_eq!(last_check("@7").ok(), Some(Change::LastCheck(7)));
        assert!(["", "1970", "19701301", "tomorrow"].iter().all(|text| last_check(text).is_err()));
        assert_eq!(mount_option("journal_data").ok(), Some(Change::MountBits { clear: 0x60, set: 0x20 }));
        assert_eq!(mount_option("^acl").ok(), Some(Change::MountBits { clear: 8, set: 0 }));
        assert!(mount_option("fast").is_err() && extended("speed=1").is_err() && feature("^no_such").is_err());
        assert_eq!(max_mounts(0).ok(), Some(Change::MaxMounts(-1)));
    }
}
