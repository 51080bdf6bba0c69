//! A user's request, and the options that follow from it.
//!
//! Main types: [`Request`], [`Fact`]. Main function: [`Request::resolve`].
//!
//! # Locking
//! None.

use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::jbd2::{MIN_LOG_BLOCKS, default_blocks};
use extant_ondisk::superblock::{JournalDevice, LayoutRequest, NewJournalDevice};

use super::extended::Extended;
use super::features::Features;
use super::profile::{self, Profile};
use super::{ExternalJournal, Options};
use crate::{Error, Result};

const BLOCK_SIZES: std::ops::RangeInclusive<u64> = 1024..=65536;
const CLUSTER_SIZE_MAX: u64 = 1 << 29;
/// The allowed numbers of bytes per inode.
const INODE_RATIOS: std::ops::RangeInclusive<u64> = 1024..=65536 * 1024;
const BLOCKS_32BIT_MAX: u64 = u32::MAX as u64;
const INODE_SIZE_SMALL: u32 = 128;
/// The size of a page. A default size is truncated to a multiple of it.
const PAGE: u64 = 4096;
const RESERVED_PERCENT: f64 = 5.0;
const FLEX_BG_SIZE: u64 = 16;
/// The encoding: UTF-8 of Unicode 12.1.
const ENCODING: (u16, u16) = (1, 0);
/// Refuse names that are not UTF-8.
const ENCODING_STRICT: u16 = 1;
/// The names of systems that may have created a file system, and the values of `s_creator_os`.
const SYSTEMS: [(&str, u32); 5] = [("linux", 0), ("hurd", HURD), ("GNU", HURD), ("freebsd", 3), ("lites", 4)];
const HURD: u32 = 1;
/// The features of the defaults that the Hurd does not support.
const NOT_IN_HURD: [&str; 3] = ["filetype", "huge_file", "metadata_csum"];
/// `errors=continue`.
const ERRORS_CONTINUE: u16 = 1;

/// The UUID that a user requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UuidAsked {
    /// A random one.
    #[default]
    Random,
    /// All zero.
    Clear,
    /// The given one.
    Given([u8; 16]),
    /// Created from the time and random numbers (version 1).
    Time,
}

/// The size that a user requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizeAsked {
    /// The size of the device.
    #[default]
    Device,
    /// This many bytes.
    Bytes(u64),
    /// This many blocks, of 1 KiB if no block size is given.
    Blocks(u64),
}

/// Facts about the device and the current time, which a request does not contain.
#[derive(Clone, Copy, Debug)]
pub struct Fact {
    /// The number of bytes of the device, from where the file system begins; 0 for a file that does not exist yet.
    pub device_bytes: u64,
    /// The number of bytes that the device writes at once; 0 for any.
    pub sector_size: u32,
    /// Whether all unwritten bytes read as zeros.
    pub zeroed: bool,
    /// Seconds since 1970.
    pub now: i64,
    /// Random bytes for the UUID and the seed of hashes.
    pub random: [u8; 32],
    /// The caller: user, group.
    pub user: (u32, u32),
}

/// A user's request. Words are those of mke2fs(8).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// -t: the type, `ext2`, `ext3` or `ext4`.
    pub fs_type: Option<String>,
    /// -T: usage types, separated by commas; otherwise by the size.
    pub usage: Option<String>,
    /// -b: the size of a block in bytes.
    pub block_size: Option<u64>,
    /// -b with a minus: the minimum size of a block in bytes.
    pub block_size_least: Option<u64>,
    /// -C: the size of a cluster in bytes.
    pub cluster_size: Option<u64>,
    /// -E: extended options, each a list separated by commas.
    pub extended: Vec<String>,
    /// -e: the reaction to errors, `continue`, `remount-ro` or `panic`.
    pub errors: Option<String>,
    /// -g: the number of blocks in a group.
    pub blocks_per_group: Option<u64>,
    /// -G: the number of groups in each flexible group.
    pub flex_bg_size: Option<u64>,
    /// -i: the number of bytes per inode.
    pub inode_ratio: Option<u64>,
    /// -I: the size of an inode in bytes.
    pub inode_size: Option<u64>,
    /// -j: a journal.
    pub journal: bool,
    /// -J: journal options, each a list separated by commas.
    pub journal_options: Vec<String>,
    /// -L: the label.
    pub label: Option<Vec<u8>>,
    /// -m: the percentage of reserved blocks.
    pub reserved_percent: Option<f64>,
    /// -M: the directory of the last mount.
    pub last_mounted: Option<Vec<u8>>,
    /// -N: the number of inodes.
    pub inodes: Option<u64>,
    /// -o: the name or number of the system that created it.
    pub creator_os: Option<String>,
    /// -O: features, each a list separated by commas.
    pub features: Vec<String>,
    /// -r: the revision of the format.
    pub revision: Option<u64>,
    /// -U: the UUID.
    pub uuid: UuidAsked,
    /// The size of the file system.
    pub size: SizeAsked,
    /// The journal of `-J device=`, which the caller has opened.
    pub external_journal: Option<ExternalJournal>,
}

pub(super) fn refuse<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Options(text.into()))
}

/// A positive number of blocks, or their bytes with a suffix.
pub(super) fn block_count(text: &str, block_size: u64) -> Option<u64> {
    parse_number(text).or_else(|| parse_bytes(text, 0).map(|bytes| bytes / block_size)).filter(|n| *n > 0)
}

/// Parses a number with a suffix, as in mke2fs, in bytes; without a suffix, in units of `unit` bytes.
pub fn parse_bytes(text: &str, unit: u64) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = parse_number(digits)?;
    let factor = match &text[digits.len()..] {
        "" => unit,
        "s" => 512,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "t" | "T" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

pub(super) fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?,
    }
}

/// Features, sizes and counts of a request, from which the other values follow.
struct Basis {
    extended: Extended,
    features: Features,
    revision: u64,
    /// The size of a block in bytes.
    block_size: u64,
    blocks: u64,
    /// The percentage of blocks that are reserved.
    percent: f64,
    /// The size of a cluster in bytes.
    cluster_size: u64,
    /// The number of blocks in a group; 0 for a default by the block size.
    per_group: u64,
    /// log2 of the number of groups in each flexible group.
    flex: u8,
    /// The size of an inode in bytes.
    inode_size: u32,
    inodes: u32,
    reserved_gdt_blocks: Option<u16>,
    /// Whether users, groups and projects have quota.
    quota: [bool; 3],
    warnings: Vec<String>,
}

/// 32 hexadecimal digits with hyphens, as uuid_parse(3) takes them.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    let hyphens = [8, 13, 18, 23];
    let form = |(i, b): (usize, &u8)| if hyphens.contains(&i) { *b == b'-' } else { b.is_ascii_hexdigit() };
    if bytes.len() != 36 || !bytes.iter().enumerate().all(form) {
        return None;
    }
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let mut uuid = [0; 16];
    for (i, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(uuid)
}

impl Request {
    /// The number of bytes before the file system, from -E.
    ///
    /// # Errors
    /// -E or -J is invalid.
    pub fn offset(&self) -> Result<u64> {
        Ok(Extended::parse(self)?.offset)
    }

    /// Whether a device may free the storage of ranges that are zeroed (`-E discard`, the default).
    ///
    /// # Errors
    /// As [`Request::offset`].
    pub fn discards(&self) -> Result<bool> {
        Ok(!Extended::parse(self)?.keeps_storage)
    }

    /// The owner of the root directory, if one is given (`-E root_owner`).
    ///
    /// # Errors
    /// As [`Request::resolve`].
    pub fn root_owner(&self, fact: &Fact) -> Result<Option<(u32, u32)>> {
        let asked = Extended::parse(self)?.root_owner;
        Ok(asked.map(|owner| if owner == (u32::MAX, u32::MAX) { fact.user } else { owner }))
    }

    /// Permissions and SELinux label of the root directory, if they are given (`-E root_perms`, `-E root_selinux`).
    ///
    /// # Errors
    /// As [`Request::offset`].
    pub fn root(&self) -> Result<(Option<u16>, Option<String>)> {
        let Extended { root_perms, root_selinux, .. } = Extended::parse(self)?;
        Ok((root_perms, root_selinux))
    }

    /// Whether the image is in Android's sparse format (`-E android_sparse`).
    ///
    /// # Errors
    /// As [`Request::offset`].
    pub fn is_android_sparse(&self) -> Result<bool> {
        Ok(Extended::parse(self)?.android_sparse)
    }

    /// Whether the attributes of the source are left out (`-E no_copy_xattrs`).
    ///
    /// # Errors
    /// As [`Request::offset`].
    pub fn drops_xattrs(&self) -> Result<bool> {
        Ok(Extended::parse(self)?.no_copy_xattrs)
    }

    /// The device of a journal that is not in the file system (`-J device=`).
    ///
    /// # Errors
    /// As [`Request::offset`].
    pub fn journal_device(&self) -> Result<Option<String>> {
        Ok(Extended::parse(self)?.journal_device)
    }

    /// Whether to create a journal's device instead of a file system (`-O journal_dev`).
    ///
    /// # Errors
    /// A feature is not known.
    pub fn makes_journal(&self) -> Result<bool> {
        let mut features = Features::default();
        self.features.iter().try_for_each(|list| features.edit(list))?;
        Ok(features.incompat.contains(Incompat::JOURNAL_DEV))
    }

    /// Decides the values of a journal's device.
    ///
    /// # Errors
    /// As [`Request::resolve`].
    pub fn resolve_journal(&self, fact: &Fact) -> Result<NewJournalDevice> {
        let extended = Extended::parse(self)?;
        if extended.journal_asked {
            return refuse("-O journal_dev: it makes a journal of the whole device; leave -j and -J out");
        }
        let mut features = Features::default();
        self.features.iter().try_for_each(|list| features.edit(list))?;
        // The warnings are about mounts of file systems, so they do not apply.
        let asked = self.asked_block_size(fact, &mut Vec::new())?;
        let block_size = asked.unwrap_or(PAGE.max(fact.sector_size.into()));
        let blocks = self.bytes(fact, asked.unwrap_or(1024))? / block_size;
        // Linux counts only the log, which begins after the journal's own superblock; mke2fs also creates smaller ones.
        let least = MIN_LOG_BLOCKS + JournalDevice::journal_super(block_size as u32);
        let Some(blocks_count) = u32::try_from(blocks).ok().filter(|blocks| *blocks >= least) else {
            let most = u32::MAX;
            return refuse(format!("-O journal_dev: the journal has {blocks} blocks; it must have {least} to {most}"));
        };
        Ok(NewJournalDevice {
            block_size: block_size as u32,
            blocks_count,
            uuid: self.new_uuid(fact),
            hash_seed: extended.hash_seed.unwrap_or_else(|| random_uuid(half(fact, 16))),
            label: self.label.clone().unwrap_or_default(),
            last_mounted: self.last_mounted.clone().unwrap_or_default(),
            time: fact.now,
            errors: self.errors()?,
            default_mount_opts: profile::DEFAULT_MOUNT_OPTS,
            creator_os: self.creator_os()?,
            metadata_csum: features.ro_compat.contains(RoCompat::METADATA_CSUM),
        })
    }

    fn new_uuid(&self, fact: &Fact) -> [u8; 16] {
        match self.uuid {
            UuidAsked::Random => random_uuid(half(fact, 0)),
            UuidAsked::Clear => [0; 16],
            UuidAsked::Given(uuid) => uuid,
            UuidAsked::Time => time_uuid(fact.now, half(fact, 0)),
        }
    }

    /// Decides everything.
    ///
    /// # Errors
    /// A value is out of its range, or contradicts another.
    pub fn resolve(&self, fact: &Fact) -> Result<Options> {
        let basis = self.basis(fact)?;
        let wanted = self.wanted(fact, &basis)?;
        let Basis { blocks, block_size, features, extended, quota, mut warnings, .. } = basis;
        let external_journal = self.external(&extended, block_size)?;
        let journal = extended.journal(&features, block_size)?.filter(|_| external_journal.is_none());
        if journal.is_some() && default_blocks(blocks).is_none() {
            warnings.push(format!("{blocks} blocks are too few for a journal; it gets none"));
        }
        let orphan_file = features.compat.contains(Compat::ORPHAN_FILE);
        if orphan_file && journal.is_none() && external_journal.is_none() {
            return refuse("-O orphan_file: it needs a journal; add -O has_journal");
        }
        let orphan_blocks = extended.orphan_blocks(block_size)?;
        Ok(Options {
            wanted,
            journal,
            external_journal,
            orphan_file: orphan_file.then_some(orphan_blocks),
            quota: if features.ro_compat.contains(RoCompat::QUOTA) { quota } else { [false; 3] },
            packed_meta_blocks: extended.packed,
            root_owner: self.root_owner(fact)?.unwrap_or((0, 0)),
            tables_zeroed: fact.zeroed || extended.zeroed || extended.eager_tables,
            warnings,
        })
    }

    /// The journal of `-J device=`.
    fn external(&self, extended: &Extended, block_size: u64) -> Result<Option<ExternalJournal>> {
        let Some(name) = &extended.journal_device else { return Ok(None) };
        match self.external_journal {
            None => refuse(format!("-J device={name}: it has to be opened first, which only a command does")),
            Some(journal) if u64::from(journal.block_size) != block_size => refuse(format!(
                "-J device={name}: blocks of the journal have {} bytes, and those of the file system {block_size}; use -b \
                 {}",
                journal.block_size, journal.block_size
            )),
            journal => Ok(journal),
        }
    }

    /// Decides features, sizes and counts, which depend on each other.
    fn basis(&self, fact: &Fact) -> Result<Basis> {
        let mut warnings = Vec::new();
        // This is as in mke2fs, which takes the block size of the journal.
        let asked_block_size = self.asked_block_size(fact, &mut warnings)?.or_else(|| {
            self.external_journal.filter(|_| self.block_size_least.is_none()).map(|journal| journal.block_size.into())
        });
        let extended = Extended::parse(self)?;
        let unit = asked_block_size.unwrap_or(1024);
        let bytes = self.bytes(fact, unit)?;
        let fs_type = self.fs_type.as_deref().unwrap_or("ext4");
        if !profile::is_fs_type(fs_type) {
            return refuse(format!("-t {fs_type}: unknown type; use ext2, ext3 or ext4"));
        }
        let usage = self.usage.as_deref().unwrap_or_else(|| profile::usage_for(bytes));
        let os = self.creator_os()?;
        let types = std::iter::once(fs_type).chain(usage.split(',')).chain((os == HURD).then_some("hurd"));
        let (profile, unknown) = Profile::of(types);
        warnings.extend(unknown.iter().map(|name| format!("-T {name}: it is not known and changes nothing")));
        let revision = self.revision.or(extended.revision).unwrap_or(1);
        if revision > 1 {
            return refuse(format!("-r {revision}: known are 0 and 1"));
        }
        let mut features = self.asked_features(&profile, revision, os)?;

        let block_size = match asked_block_size {
            Some(size) => size,
            None => u64::from(profile.block_size).max(fact.sector_size.into()).max(self.block_size_least.unwrap_or(0)),
        };
        let blocks = bytes / block_size;
        self.check_block_count(&mut features, blocks, block_size)?;
        if revision == 0 && features != Features::default() {
            return refuse("-r 0: features are not possible there; add -O none");
        }
        if extended.journal_asked {
            if revision == 0 {
                return refuse("-r 0: a journal is not possible there; leave -j and -J out");
            }
            features.compat |= Compat::HAS_JOURNAL;
        }
        let percent = self.percent()?;
        let cluster_size = self.cluster_size(&features, block_size)?;
        let ratio = self.ratio(&profile, block_size, cluster_size)?;
        let quota = self.add_features(&extended, &mut features)?;
        let reserved_gdt_blocks = self.resize(&extended, &mut features, blocks, block_size, revision)?;
        check_features(&features)?;
        if extended.desc_size.is_some() && !features.incompat.contains(Incompat::BIT64) {
            return refuse("-E desc_size: it needs the feature 64bit; add -O 64bit");
        }
        let per_group = self.per_group(block_size)?;
        let flex = self.flex_bg(&features)?;
        let inode_size = self.inode_size(&profile, block_size, revision)?;
        if inode_size == INODE_SIZE_SMALL {
            if features.incompat.contains(Incompat::INLINE_DATA) {
                return refuse("-O inline_data: inodes of 128 bytes have no room for data; use -I 256");
            }
            if revision > 0 {
                warnings.push("inodes of 128 bytes have no dates after 2038".into());
            }
        }
        let inodes = self.inodes(&features, blocks, block_size, ratio, inode_size)?;
        if extended.stride != 0 && !extended.stripe_width.is_multiple_of(extended.stride.into()) {
            let (width, stride) = (extended.stripe_width, extended.stride);
            warnings.push(format!("-E stripe_width={width} is not a multiple of stride={stride}"));
        }
        if self.label.as_ref().is_some_and(|label| label.len() > 16) {
            warnings.push("-L: a label has 16 bytes; the rest is cut off".into());
        }
        Ok(Basis {
            extended,
            features,
            revision,
            block_size,
            blocks,
            percent,
            cluster_size,
            per_group,
            flex,
            inode_size,
            inodes,
            reserved_gdt_blocks,
            quota,
            warnings,
        })
    }

    /// The superblock's values.
    fn wanted(&self, fact: &Fact, basis: &Basis) -> Result<LayoutRequest> {
        let Basis { extended, features, .. } = basis;
        let casefold = features.incompat.contains(Incompat::CASEFOLD);
        let strict = if extended.encoding_strict == Some(true) { ENCODING_STRICT } else { 0 };
        let sparse2 = features.compat.contains(Compat::SPARSE_SUPER2);
        let backup = |n: u32, group: u32| if sparse2 && extended.backups >= n { group } else { 0 };
        let (default_mount_opts, revision) = match basis.revision {
            0 => (0, 0),
            _ => (profile::DEFAULT_MOUNT_OPTS, 1),
        };
        Ok(LayoutRequest {
            compat: features.compat,
            incompat: features.incompat,
            ro_compat: features.ro_compat,
            revision,
            block_size: basis.block_size as u32,
            cluster_size: basis.cluster_size as u32,
            blocks_count: basis.blocks,
            reserved_blocks: (basis.percent * basis.blocks as f64 / 100.0) as u64,
            per_group: basis.per_group as u32,
            inodes_count: basis.inodes,
            inode_size: basis.inode_size as u16,
            log_groups_per_flex: basis.flex,
            reserved_gdt_blocks: basis.reserved_gdt_blocks,
            first_meta_bg: 0,
            backup_groups: [backup(1, 1), backup(2, u32::MAX)],
            stride: extended.stride,
            stripe_width: extended.stripe_width,
            uuid: self.new_uuid(fact),
            hash_seed: extended.hash_seed.unwrap_or_else(|| random_uuid(half(fact, 16))),
            label: self.label.clone().unwrap_or_default(),
            last_mounted: self.last_mounted.clone().unwrap_or_default(),
            time: fact.now,
            errors: self.errors()?,
            default_mount_opts,
            desc_size: extended.desc_size.unwrap_or(0),
            creator_os: self.creator_os()?,
            test_filesystem: extended.test_fs,
            encoding: if casefold { (ENCODING.0, ENCODING.1 | strict) } else { (0, 0) },
            mmp_interval: extended.mmp_interval,
        })
    }

    /// The share of blocks that are reserved (`-m`).
    fn percent(&self) -> Result<f64> {
        let percent = self.reserved_percent.unwrap_or(RESERVED_PERCENT);
        if !(0.0..=50.0).contains(&percent) {
            return refuse(format!("-m {percent}: it takes a percentage from 0 to 50"));
        }
        Ok(percent)
    }

    /// The number of bytes per inode (`-i`).
    fn ratio(&self, profile: &Profile, block_size: u64, cluster_size: u64) -> Result<u64> {
        match self.inode_ratio {
            None => Ok(profile.inode_ratio.max(block_size).max(cluster_size)),
            Some(ratio) if INODE_RATIOS.contains(&ratio) => Ok(ratio),
            Some(ratio) => {
                let (least, most) = INODE_RATIOS.into_inner();
                refuse(format!("-i {ratio}: it takes bytes for each inode, from {least} to {most}"))
            }
        }
    }

    /// Adds the features that options of `-E` imply, and removes one that another replaces. Returns the kinds of quota.
    fn add_features(&self, extended: &Extended, features: &mut Features) -> Result<[bool; 3]> {
        if extended.encoding {
            features.incompat |= Incompat::CASEFOLD;
        }
        if extended.encoding_strict.is_some() && !features.incompat.contains(Incompat::CASEFOLD) {
            return refuse("-E encoding_flags: it needs an encoding; add -E encoding=utf8");
        }
        let mut quota = extended.quota_types.unwrap_or([true, true, false]);
        if quota[2] {
            features.ro_compat |= RoCompat::PROJECT;
        }
        let project = features.ro_compat.contains(RoCompat::PROJECT);
        quota[2] |= project;
        if project && self.inode_size == Some(INODE_SIZE_SMALL.into()) {
            return refuse("-I 128: inodes of 128 bytes have no room for a project; use -I 256");
        }
        if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            features.ro_compat -= RoCompat::GDT_CSUM;
        }
        Ok(quota)
    }

    /// The number of blocks in each group (`-g`); 0 for a default by the block size.
    fn per_group(&self, block_size: u64) -> Result<u64> {
        let per_group = self.blocks_per_group.unwrap_or(0);
        if self.blocks_per_group.is_some()
            && (!per_group.is_multiple_of(8) || !(256..=8 * block_size).contains(&per_group))
        {
            let most = 8 * block_size;
            return refuse(format!("-g {per_group}: it takes a multiple of 8 from 256 to {most}"));
        }
        Ok(per_group)
    }

    fn asked_block_size(&self, fact: &Fact, warnings: &mut Vec<String>) -> Result<Option<u64>> {
        let Some(size) = self.block_size.or(self.block_size_least) else { return Ok(None) };
        if !BLOCK_SIZES.contains(&size) || !size.is_power_of_two() {
            return refuse(format!("-b {size}: it takes a power of two from 1024 to 65536"));
        }
        if size < fact.sector_size.into() {
            let sector = fact.sector_size;
            return refuse(format!("-b {size}: the device writes sectors of {sector} bytes; use -b {sector}"));
        }
        if size > PAGE {
            warnings.push(format!("-b {size}: most systems cannot mount blocks of more than {PAGE} bytes"));
        }
        Ok(self.block_size)
    }

    fn bytes(&self, fact: &Fact, unit: u64) -> Result<u64> {
        match self.size {
            SizeAsked::Bytes(bytes) => Ok(bytes),
            SizeAsked::Blocks(blocks) => match blocks.checked_mul(unit) {
                Some(bytes) => Ok(bytes),
                None => refuse(format!("{blocks} blocks are more than a file system can have")),
            },
            SizeAsked::Device if fact.device_bytes == 0 => {
                refuse("no size: the file is empty or does not exist; give a size after it, such as 1G")
            }
            SizeAsked::Device if unit < PAGE => Ok(fact.device_bytes & !(PAGE - 1)),
            SizeAsked::Device => Ok(fact.device_bytes),
        }
    }

    fn asked_features(&self, profile: &Profile, revision: u64, os: u32) -> Result<Features> {
        let mut features = Features::default();
        if revision != 0 {
            features.edit(profile::BASE_FEATURES)?;
            for list in &profile.features {
                features.edit(list)?;
            }
        }
        if os == HURD {
            NOT_IN_HURD.iter().try_for_each(|name| features.edit(&format!("^{name}")))?;
        }
        for list in &self.features {
            features.edit(list)?;
        }
        for name in NOT_IN_HURD.iter().filter(|_| os == HURD) {
            let mut without = features;
            without.edit(&format!("^{name}"))?;
            if without != features {
                return refuse(format!("-O {name}: the Hurd does not support it; leave it out, or -o hurd"));
            }
        }
        Ok(features)
    }

    /// The number of the system that created it (`-o`).
    fn creator_os(&self) -> Result<u32> {
        let Some(name) = &self.creator_os else { return Ok(0) };
        if let Some((_, number)) = SYSTEMS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            return Ok(*number);
        }
        match parse_number(name).and_then(|number| u32::try_from(number).ok()) {
            Some(number) if !name.is_empty() => Ok(number),
            _ => refuse(format!("-o {name}: unknown operating system; use linux, hurd, freebsd, lites or a number")),
        }
    }

    fn check_block_count(&self, features: &mut Features, blocks: u64, block_size: u64) -> Result<()> {
        if blocks == 0 {
            return refuse("the file system is too small; give it more than one block");
        }
        if blocks > BLOCKS_32BIT_MAX {
            if !features.incompat.contains(Incompat::BIT64) {
                return refuse(format!(
                    "{blocks} blocks of {block_size} bytes need -O 64bit, or larger blocks with -b"
                ));
            }
            features.compat -= Compat::RESIZE_INODE;
        }
        if blocks >= 1 << 48 || blocks / (8 * block_size) >= u64::from(u32::MAX) {
            return refuse(format!("{blocks} blocks of {block_size} bytes are more than a file system can have"));
        }
        Ok(())
    }

    fn cluster_size(&self, features: &Features, block_size: u64) -> Result<u64> {
        let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
        let Some(size) = self.cluster_size else {
            return Ok(if bigalloc { (block_size * 16).min(CLUSTER_SIZE_MAX) } else { block_size });
        };
        if !bigalloc {
            return refuse(format!("-C {size}: clusters need the feature bigalloc; add -O bigalloc"));
        }
        if !size.is_power_of_two() || size > CLUSTER_SIZE_MAX || size <= 1024 {
            return refuse(format!("-C {size}: it takes a power of two from 2048 to {CLUSTER_SIZE_MAX}"));
        }
        if size < block_size {
            return refuse(format!("-C {size}: a cluster is not smaller than a block; use -C {block_size} or more"));
        }
        Ok(size)
    }

    fn resize(
        &self,
        extended: &Extended,
        features: &mut Features,
        blocks: u64,
        block_size: u64,
        revision: u64,
    ) -> Result<Option<u16>> {
        let most = extended.resize_blocks.or(extended.resize_bytes.map(|bytes| bytes / block_size));
        let Some(most) = most else { return Ok(None) };
        if most <= blocks {
            return refuse(format!("-E resize: {most} blocks are not more than the {blocks} that it has"));
        }
        let per_group = self.blocks_per_group.filter(|n| *n > 0).unwrap_or(block_size * 8);
        let per_block = block_size / if features.incompat.contains(Incompat::BIT64) { 64 } else { 32 };
        let desc_blocks = blocks.div_ceil(per_group).div_ceil(per_block);
        let reserved = most.div_ceil(per_group).div_ceil(per_block).saturating_sub(desc_blocks).min(block_size / 4);
        if reserved == 0 {
            return Ok(None);
        }
        if revision == 0 {
            return refuse("-E resize: growing is not possible with revision 0; leave -r 0 out");
        }
        features.compat |= Compat::RESIZE_INODE;
        Ok(Some(reserved as u16))
    }

    fn flex_bg(&self, features: &Features) -> Result<u8> {
        let has = features.incompat.contains(Incompat::FLEX_BG);
        match self.flex_bg_size {
            None if has => Ok(FLEX_BG_SIZE.ilog2() as u8),
            None => Ok(0),
            Some(size) if !size.is_power_of_two() || size > 1 << 31 => {
                refuse(format!("-G {size}: it takes a power of two of at most 2^31"))
            }
            Some(size) if !has => refuse(format!("-G {size}: it needs the feature flex_bg; add -O flex_bg")),
            Some(size) => Ok(size.ilog2() as u8),
        }
    }

    fn inode_size(&self, profile: &Profile, block_size: u64, revision: u64) -> Result<u32> {
        let size = self.inode_size.unwrap_or(profile.inode_size.into());
        if revision == 0 {
            return Ok(INODE_SIZE_SMALL);
        }
        if !size.is_power_of_two() || !(INODE_SIZE_SMALL.into()..=block_size).contains(&size) {
            return refuse(format!("-I {size}: it takes a power of two from {INODE_SIZE_SMALL} to {block_size}"));
        }
        Ok(size as u32)
    }

    fn inodes(&self, features: &Features, blocks: u64, block_size: u64, ratio: u64, inode_size: u32) -> Result<u32> {
        let most = u64::from(u32::MAX);
        let inodes = match self.inodes.filter(|n| *n > 0) {
            Some(inodes) if inodes > most => {
                return refuse(format!("-N {inodes}: a file system has at most {most} inodes"));
            }
            Some(inodes) => inodes,
            None => {
                let inodes = u128::from(blocks) * u128::from(block_size) / u128::from(ratio);
                if inodes > most.into() && !features.incompat.contains(Incompat::BIT64) {
                    return refuse(format!("{inodes} inodes are too many; use fewer with -i"));
                }
                inodes.min(most.into()) as u64
            }
        };
        if u128::from(inodes) * u128::from(inode_size) >= u128::from(blocks) * u128::from(block_size) {
            return refuse(format!(
                "{inodes} inodes of {inode_size} bytes do not fit {blocks} blocks of {block_size}; \
                 use fewer with -N, or a larger -i"
            ));
        }
        Ok(inodes as u32)
    }

    fn errors(&self) -> Result<u16> {
        match self.errors.as_deref() {
            None => Ok(ERRORS_CONTINUE),
            Some("continue") => Ok(1),
            Some("remount-ro") => Ok(2),
            Some("panic") => Ok(3),
            Some(other) => refuse(format!("-e {other}: known are continue, remount-ro and panic")),
        }
    }
}

/// 16 of the random bytes.
fn half(fact: &Fact, at: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&fact.random[at..at + 16]);
    bytes
}

fn check_features(features: &Features) -> Result<()> {
    let Features { compat, incompat, ro_compat } = *features;
    let extents = incompat.contains(Incompat::EXTENTS);
    if incompat.contains(Incompat::JOURNAL_DEV) {
        return refuse("-O journal_dev: it makes a journal and no file system; give no source with it");
    }
    if incompat.contains(Incompat::BIT64) && !extents {
        return refuse("-O 64bit: it needs extents; add -O extent, or -O ^64bit");
    }
    if ro_compat.contains(RoCompat::BIGALLOC) && !extents {
        return refuse("-O bigalloc: it needs extents; add -O extent");
    }
    if incompat.contains(Incompat::META_BG) && compat.contains(Compat::RESIZE_INODE) {
        return refuse("-O meta_bg: it contradicts resize_inode; add -O ^resize_inode");
    }
    if compat.contains(Compat::RESIZE_INODE) && !ro_compat.contains(RoCompat::SPARSE_SUPER) {
        return refuse("-O ^sparse_super: it contradicts resize_inode; add -O ^resize_inode");
    }
    if incompat.contains(Incompat::CSUM_SEED) && !ro_compat.contains(RoCompat::METADATA_CSUM) {
        return refuse("-O metadata_csum_seed: it needs metadata_csum; add -O metadata_csum");
    }
    Ok(())
}

/// A UUID of version 1. `now` is in seconds since 1970.
pub fn time_uuid(now: i64, random: [u8; 16]) -> [u8; 16] {
    /// The time from the beginning of the Gregorian calendar to 1970, in seconds.
    const GREGORIAN: i64 = 12_219_292_800;
    let ticks = (now.saturating_add(GREGORIAN) as u64).wrapping_mul(10_000_000);
    let mut uuid = random;
    uuid[..4].copy_from_slice(&(ticks as u32).to_be_bytes());
    uuid[4..6].copy_from_slice(&((ticks >> 32) as u16).to_be_bytes());
    uuid[6..8].copy_from_slice(&((ticks >> 48) as u16 & 0x0fff | 0x1000).to_be_bytes());
    uuid[8] = uuid[8] & 0x3f | 0x80;
    // The multicast bit shows that the node is not the address of a network card.
    uuid[10] |= 1;
    uuid
}

/// A UUID of version 4 from random bytes.
pub fn random_uuid(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}
