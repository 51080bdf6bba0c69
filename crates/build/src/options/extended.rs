//! The words of -E and -J.
//!
//! Main type: [`Extended`].
//!
//! # Locking
//! None.

use extant_ondisk::features::Compat;

use super::JournalOptions;
use super::features::Features;
use super::request::{Request, block_count, parse_bytes, parse_number, parse_uuid, refuse};
use crate::Result;

/// The largest descriptor that Linux reads.
const DESC_SIZES: std::ops::RangeInclusive<u64> = 64..=1024;
/// All bits of a mode except the type.
const PERMISSIONS: u32 = 0o7777;

/// The extended options (-E) and the journal options (-J).
#[derive(Default)]
pub(super) struct Extended {
    pub stride: u16,
    pub stripe_width: u32,
    pub resize_bytes: Option<u64>,
    pub resize_blocks: Option<u64>,
    pub hash_seed: Option<[u8; 16]>,
    pub packed: bool,
    pub backups: u32,
    pub orphan_file: Option<String>,
    pub offset: u64,
    pub root_owner: Option<(u32, u32)>,
    /// Permissions of the root directory.
    pub root_perms: Option<u16>,
    /// The SELinux label of the root directory.
    pub root_selinux: Option<String>,
    pub revision: Option<u64>,
    /// The size of a descriptor in bytes.
    pub desc_size: Option<u16>,
    pub no_copy_xattrs: bool,
    pub android_sparse: bool,
    pub test_fs: bool,
    pub zeroed: bool,
    pub keeps_storage: bool,
    pub eager_tables: bool,
    pub quota_types: Option<[bool; 3]>,
    pub encoding_strict: Option<bool>,
    pub encoding: bool,
    pub mmp_interval: u16,
    pub journal: JournalOptions,
    pub journal_asked: bool,
    pub journal_megabytes: Option<u64>,
    pub journal_location: Option<String>,
    pub fast_commit_kilobytes: Option<u64>,
    /// The device of the journal, if it is not in the file system.
    pub journal_device: Option<String>,
}

impl Extended {
    pub fn parse(request: &Request) -> Result<Extended> {
        let mut extended = Extended { backups: 2, ..Extended::default() };
        for word in request.extended.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            let (name, value) = split(word);
            extended.option(name, value)?;
        }
        for word in request.journal_options.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            let (name, value) = split(word);
            extended.journal_option(name, value)?;
        }
        extended.journal_asked |= request.journal;
        Ok(extended)
    }

    fn option(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let number = |most: u64| -> Result<u64> {
            let text = value.unwrap_or("");
            match parse_number(text).filter(|n| *n <= most) {
                Some(number) => Ok(number),
                None => refuse(format!("-E {name}={text}: it takes a number of at most {most}")),
            }
        };
        let flag = || -> Result<bool> { value.map_or(Ok(true), |_| Ok(number(u64::from(u32::MAX))? != 0)) };
        match name {
            "stride" => self.stride = number(u16::MAX.into())? as u16,
            "stripe-width" | "stripe_width" => self.stripe_width = number(u32::MAX.into())? as u32,
            "resize" => {
                let text = value.unwrap_or("");
                let blocks = parse_number(text).filter(|n| *n > 0);
                self.resize_blocks = blocks;
                self.resize_bytes = parse_bytes(text, 0).filter(|n| *n > 0);
                if self.resize_blocks.is_none() && self.resize_bytes.is_none() {
                    return refuse(format!("-E resize={text}: it takes a size, such as 16T or a number of blocks"));
                }
            }
            "hash_seed" => match value.and_then(parse_uuid) {
                Some(seed) => self.hash_seed = Some(seed),
                None => return refuse(format!("-E hash_seed={}: it takes a UUID", value.unwrap_or(""))),
            },
            "packed_meta_blocks" => {
                self.packed = flag()?;
                if self.packed {
                    self.journal.location = Some(0);
                }
            }
            "num_backup_sb" => self.backups = number(2)? as u32,
            "orphan_file_size" => self.orphan_file = Some(value.unwrap_or("").to_owned()),
            "offset" => self.offset = number(u64::MAX)?,
            "root_owner" | "root_perms" | "root_selinux" => self.root_option(name, value)?,
            "test_fs" => self.test_fs = true,
            "lazy_itable_init" => self.eager_tables = !flag()?,
            "assume_storage_prezeroed" => self.zeroed = flag()?,
            "discard" => self.keeps_storage = false,
            "nodiscard" => self.keeps_storage = true,
            // Unwritten blocks are always zeros.
            "lazy_journal_init" => {
                flag()?;
            }
            "quotatype" => self.quota_types = Some(parse_quota_types(value.unwrap_or(""))?),
            "encoding" => match value {
                Some("utf8" | "utf8-12.1") => self.encoding = true,
                other => {
                    return refuse(format!("-E encoding={}: known is utf8", other.unwrap_or("")));
                }
            },
            "encoding_flags" => match value {
                Some("strict") => self.encoding_strict = Some(true),
                Some("^strict" | "nostrict") => self.encoding_strict = Some(false),
                other => {
                    return refuse(format!("-E encoding_flags={}: known is strict", other.unwrap_or("")));
                }
            },
            "mmp_update_interval" => self.mmp_interval = number(300)? as u16,
            "desc_size" | "desc-size" => match number(u64::MAX)? {
                size if size.is_power_of_two() && DESC_SIZES.contains(&size) => self.desc_size = Some(size as u16),
                size => {
                    let (least, most) = DESC_SIZES.into_inner();
                    return refuse(format!("-E {name}={size}: it takes a power of two from {least} to {most}"));
                }
            },
            "revision" => self.revision = Some(number(u64::MAX)?),
            "no_copy_xattrs" => self.no_copy_xattrs = true,
            "android_sparse" => self.android_sparse = true,
            _ => {
                return refuse(format!(
                    "-E {name}: unknown; the known ones are android_sparse, assume_storage_prezeroed, desc_size, discard, \
                     encoding, encoding_flags, hash_seed, lazy_itable_init, lazy_journal_init, mmp_update_interval, \
                     no_copy_xattrs, nodiscard, num_backup_sb, offset, orphan_file_size, packed_meta_blocks, quotatype, \
                     resize, revision, root_owner, root_perms, root_selinux, stride, stripe_width, test_fs"
                ));
            }
        }
        Ok(())
    }

    fn root_option(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        match (name, value) {
            ("root_owner", value) => self.root_owner = Some(parse_owner(value)?),
            ("root_perms", value) => self.root_perms = Some(parse_permissions(value.unwrap_or(""))?),
            (_, Some(label)) if !label.is_empty() => self.root_selinux = Some(label.to_owned()),
            _ => return refuse("-E root_selinux: it takes a label, such as system_u:object_r:root_t:s0"),
        }
        Ok(())
    }

    fn journal_option(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let text = value.unwrap_or("");
        let number = || match parse_number(text).filter(|n| *n <= 1 << 32) {
            Some(number) => Ok(number),
            None => refuse(format!("-J {name}={text}: it takes a number")),
        };
        match name {
            "size" => self.journal_megabytes = Some(number()?).filter(|n| *n > 0),
            "fast_commit_size" => self.fast_commit_kilobytes = Some(number()?).filter(|n| *n > 0),
            "location" => self.journal_location = Some(text.to_owned()),
            "v1_superblock" => {
                return refuse("-J v1_superblock: journals are made in today's form alone; leave it out");
            }
            "device" if text.is_empty() => return refuse("-J device: it takes a journal's device, such as /dev/sdb1"),
            "device" => self.journal_device = Some(text.to_owned()),
            _ => {
                return refuse(format!(
                    "-J {name}: unknown; the known ones are device, size, location, fast_commit_size"
                ));
            }
        }
        self.journal_asked |= self.journal_megabytes.is_some() || self.journal_device.is_some();
        if self.journal_device.is_some() && (self.journal_megabytes.is_some() || self.journal_location.is_some()) {
            return refuse("-J device: the journal there has its size and place already; leave size and location out");
        }
        Ok(())
    }

    /// The journal's size and place (`-J`); `None` without the feature.
    pub fn journal(&self, features: &Features, block_size: u64) -> Result<Option<JournalOptions>> {
        let journal = features.compat.contains(Compat::HAS_JOURNAL).then(|| {
            let blocks = |bytes: u64| u32::try_from(bytes / block_size).unwrap_or(u32::MAX);
            JournalOptions {
                blocks: self.journal_megabytes.map(|n| blocks(n << 20)),
                fast_commit_blocks: self.fast_commit_kilobytes.map(|n| blocks(n << 10)),
                location: self.journal.location,
            }
        });
        match (journal, &self.journal_location) {
            (Some(journal), Some(text)) => {
                let Some(location) = parse_number(text).or_else(|| block_count(text, block_size)) else {
                    return refuse(format!("-J location={text}: it takes a block, or a size such as 1G"));
                };
                Ok(Some(JournalOptions { location: journal.location.or(Some(location)), ..journal }))
            }
            (journal, _) => Ok(journal),
        }
    }

    /// The number of blocks in the orphan file (`-E orphan_file_size`); 0 for a default that depends on the file
    /// system's size.
    pub fn orphan_blocks(&self, block_size: u64) -> Result<u32> {
        match &self.orphan_file {
            None => Ok(0),
            Some(text) => match block_count(text, block_size).and_then(|n| u32::try_from(n).ok()) {
                Some(blocks) => Ok(blocks),
                None => refuse(format!("-E orphan_file_size={text}: it takes a size, such as 2M")),
            },
        }
    }
}

fn split(word: &str) -> (&str, Option<&str>) {
    word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)))
}

fn parse_owner(value: Option<&str>) -> Result<(u32, u32)> {
    // Without a value, the caller's own user and group are used.
    let Some(text) = value else { return Ok((u32::MAX, u32::MAX)) };
    let both = text.split_once(':').and_then(|(user, group)| Some((parse_number(user)?, parse_number(group)?)));
    match both.and_then(|(user, group)| Some((u32::try_from(user).ok()?, u32::try_from(group).ok()?))) {
        Some(owner) => Ok(owner),
        None => refuse(format!("-E root_owner={text}: it takes two numbers, such as 0:0")),
    }
}

fn parse_quota_types(text: &str) -> Result<[bool; 3]> {
    let mut types = [false; 3];
    for word in text.split(':') {
        match word {
            "usr" | "usrquota" => types[0] = true,
            "grp" | "grpquota" => types[1] = true,
            "prj" | "prjquota" => types[2] = true,
            _ => return refuse(format!("-E quotatype={text}: known are usrquota, grpquota and prjquota, with colons")),
        }
    }
    Ok(types)
}

/// Parses octal digits.
fn parse_permissions(text: &str) -> Result<u16> {
    let digits = text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    match u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= PERMISSIONS) {
        Some(mode) => Ok(mode as u16),
        None => refuse(format!("-E root_perms={text}: it takes octal digits, such as 0755")),
    }
}
