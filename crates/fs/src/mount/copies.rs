//! Chooses the copies of the superblock and of the group descriptors for a mount (Linux: `sb=` of ext4(5) and
//! `descriptor_loc`, fs/ext4/super.c; unlike it, each descriptor comes from the first copy in which it is intact).
//!
//! Main types: [`Copies`] (the superblock in use, and its place), [`Examined`] (a device on which good copies replace
//! damaged primaries). A read-only mount may use any copy. A mount for writing uses only primaries; if one is damaged,
//! its error names the copies that a read-only mount would use.
//!
//! With [`MountOptions::rescue`] a copy need not be intact: its plausible values are used. If no descriptor of a group
//! is usable, only that group is lost, and the mount continues.
//!
//! What it does not do: read bitmaps, which have no copies, or repair anything.
//!
//! # Locking
//! None: no other thread uses the file system yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::features::{self, MountMode};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::superblock::{Geometry, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr};
use extant_recovery::read::{FoundSuper, find_super};

use crate::error::{Damage, Error, Result, Unsupported};
use crate::mount::patched::{PatchedDevice, Patches};
use crate::options::Messages;
#[allow(unused_imports)] // for links in the documentation
use crate::options::MountOptions;

/// The maximum number of copies of a descriptor block to try; without `sparse_super` every group has one.
const COPIES_MAX: usize = 12;
/// The maximum number of groups that may be lost. Further groups are not examined: only a field of the superblock
/// claims that they exist, and each takes memory.
const LOST_MAX: usize = 1 << 16;
/// The maximum number of messages about descriptors; further ones are only counted.
const SAID_MAX: usize = 8;

/// The superblock in use, and its origin.
pub(crate) struct Copies {
    pub sb: SuperBlock,
    /// The backup in use instead of the primary.
    pub backup: Option<Backup>,
    /// Damage in the copy that was ignored.
    doubts: Vec<Error>,
    rescue: bool,
}

/// A backup in use instead of the primary.
pub(crate) struct Backup {
    pub block: u64,
    /// The damage of the primary; `None` if the user chose the copy.
    pub primary: Option<Error>,
}

/// The device through which the image must be read.
pub(crate) struct Examined {
    pub dev: Arc<dyn BlockDevice>,
    /// Whether it differs from the underlying device.
    pub patched: bool,
}

impl Copies {
    /// Finds the primary superblock, or the first backup that belongs to this image. If `superblock` is given, the copy
    /// at that byte is used instead.
    pub(crate) fn find(dev: &dyn BlockDevice, superblock: Option<u64>, rescue: bool) -> Result<Copies> {
        let FoundSuper { sb, backup, doubts } = find_super(dev, superblock, rescue)?;
        let backup = backup.map(|(block, e)| Backup { block: block.0, primary: e.map(Error::from) });
        Ok(Copies { sb, backup, doubts: doubts.into_iter().map(Error::from).collect(), rescue })
    }

    /// Checks that the image can be mounted in this way, and reports what the mount ignores.
    ///
    /// # Errors
    /// For writing: only a backup is left, a feature allows only reading, or the device is too small. Without rescue: a
    /// feature does not even allow reading.
    pub(crate) fn check(&self, dev: &dyn BlockDevice, read_only: bool, messages: &Messages) -> Result<()> {
        let name = dev.name();
        if let Some(Backup { block, primary }) = &self.backup {
            if !read_only {
                return Err(match primary {
                    Some(primary) => primary.clone().advised(&format!(
                        "the backup superblock at block {block} is good: mount read-only (-o ro) to use it, or let \
                         e2fsck repair the image"
                    )),
                    None => Error::Unsupported(Unsupported::Writing {
                        reasons: vec![format!("the backup superblock at block {block}, which was requested")],
                    }),
                });
            }
            match primary {
                Some(e) => {
                    messages.say(format_args!("{name}: {e}; using the backup superblock at block {block}, read-only"));
                }
                None => {
                    messages.say(format_args!("{name}: using the backup superblock at block {block}, as requested"))
                }
            }
        }
        for doubt in &self.doubts {
            messages.say(format_args!("{name}: {doubt}; used nevertheless"));
        }
        self.check_features(read_only, &|e| messages.say(format_args!("{name}: {e}; read as far as possible")))?;
        match self.sb.geometry().check_device_size(dev.size_bytes()) {
            Err(e) if read_only => {
                let e = Error::from(e);
                messages.say(format_args!("{name}: {e}; read-only, and data behind the device's end is lost"));
                Ok(())
            }
            checked => Ok(checked?),
        }
    }

    /// Whether the superblock and the device's size already show that the primaries are unreliable.
    pub(crate) fn are_needed(&self, dev: &dyn BlockDevice) -> bool {
        self.backup.is_some() || self.rescue || self.sb.geometry().check_device_size(dev.size_bytes()).is_err()
    }

    fn check_features(&self, read_only: bool, passed: &dyn Fn(Error)) -> Result<()> {
        match features::check(&self.sb) {
            Err(e) if self.rescue => passed(e.into()),
            Err(e) => return Err(e.into()),
            Ok(MountMode::ReadOnly { reasons }) if !read_only => {
                return Err(Error::Unsupported(Unsupported::Writing { reasons }));
            }
            Ok(_) => {}
        }
        Ok(())
    }

    /// The device, with good copies in place of damaged primaries. Reports the replacements, and reduces `sb` to the
    /// groups with a descriptor. `sb` is the superblock that [`Copies::find`] found, or a newer one.
    ///
    /// # Errors
    /// Without rescue: a descriptor is damaged in every copy.
    pub(crate) fn examine(
        &self,
        dev: Arc<dyn BlockDevice>,
        sb: &mut SuperBlock,
        messages: &Messages,
    ) -> Result<Examined> {
        let mut backups: Vec<GroupNr> = sb.geometry().backup_groups().take(COPIES_MAX).collect();
        let chosen = self.backup.as_ref().filter(|backup| backup.primary.is_none());
        let chosen = chosen.and_then(|b| sb.geometry().group_of_block(BlockNr(b.block))).map(|(group, _)| group);
        if let Some(group) = chosen {
            backups.retain(|g| *g != group);
            backups.insert(0, group);
        }
        let look = Look { dev: &*dev, geo: sb.geometry(), backups, chosen: chosen.is_some(), rescue: self.rescue };
        let Found { mut patches, groups, said, .. } = look.all()?;
        for line in said {
            messages.say(format_args!("{}: {line}", dev.name()));
        }
        sb.cut_to(groups);
        if self.backup.is_some() || !self.doubts.is_empty() {
            let mut bytes = vec![0; SUPERBLOCK_SIZE];
            sb.encode_into(&mut bytes);
            patches.insert(SUPERBLOCK_OFFSET, bytes);
        }
        let patched = !patches.is_empty();
        let dev: Arc<dyn BlockDevice> = if patched { Arc::new(PatchedDevice::new(dev, patches)) } else { dev };
        Ok(Examined { dev, patched })
    }

    /// Adds advice to the error of a mount for writing, if group descriptors are damaged but have good backups.
    pub(crate) fn advise(&self, dev: Arc<dyn BlockDevice>, refused: Error) -> Error {
        let good = |examined: Result<Examined>| examined.is_ok_and(|e| e.patched);
        if refused.is_corruption() && good(self.examine(dev, &mut self.sb.clone(), &Messages::default())) {
            return refused.advised(
                "the backup group descriptors are good: mount read-only (-o ro) to use them, or let e2fsck repair the \
                 image",
            );
        }
        refused
    }
}

/// The superblock of an unknown image, and the block of the backup that it came from, if it did.
///
/// # Errors
/// There is no superblock, neither an intact one nor one with an intact backup.
pub fn probe_superblock(dev: &dyn BlockDevice) -> Result<(SuperBlock, Option<u64>)> {
    let FoundSuper { sb, backup, .. } = find_super(dev, None, false)?;
    Ok((sb, backup.map(|(block, _)| block.0)))
}

/// The result of examining all descriptors.
struct Found {
    patches: Patches,
    /// The groups without a usable descriptor, and the reason.
    lost: BTreeMap<u32, Error>,
    /// The number of groups whose descriptors are on the device.
    groups: u32,
    said: Vec<String>,
}

struct Look<'a> {
    dev: &'a dyn BlockDevice,
    geo: &'a Geometry,
    /// The groups whose copies of the descriptor table are tried, in order of preference.
    backups: Vec<GroupNr>,
    /// The first of them takes precedence over the primary.
    chosen: bool,
    rescue: bool,
}

/// Adjacent descriptor blocks with the same replacement.
struct Mended {
    first: BlockNr,
    last: BlockNr,
    /// The copy that replaces `first`; `None` if plausible values were used.
    from: Option<BlockNr>,
    /// The first damage that was found.
    why: Option<Error>,
}

impl Look<'_> {
    fn all(&self) -> Result<Found> {
        let (geo, per_block) = (self.geo, self.geo.descs_per_block());
        let mut found =
            Found { patches: Patches::new(), lost: BTreeMap::new(), groups: geo.group_count, said: Vec::new() };
        let mut mended: Vec<Mended> = Vec::new();
        for index in 0..geo.desc_blocks {
            let Some(home) = geo.desc_table_block(index) else { break };
            if !self.is_on_device(home) || found.lost.len() > LOST_MAX {
                // The device has no further descriptors.
                found.groups = index * per_block;
                break;
            }
            if let Some(one) = self.block(index, home, &mut found)? {
                let follows = mended.last_mut().filter(|last| {
                    last.last.0 + 1 == home.0
                        && last.from.map(|from| from.0 + (home.0 - last.first.0)) == one.from.map(|from| from.0)
                });
                match follows {
                    Some(last) => last.last = home,
                    None => mended.push(one),
                }
            }
        }
        if found.groups == 0 {
            return Err(Error::corrupt(Damage::GroupDescriptor, "the device ends before the first"));
        }
        found.said = mended.iter().take(SAID_MAX).map(Mended::to_string).collect();
        if let Some(more) = mended.len().checked_sub(SAID_MAX).filter(|n| *n > 0) {
            found.said.push(format!("group descriptors: {more} more places with damage"));
        }
        if let Some((group, why)) = found.lost.first_key_value() {
            let n = found.lost.len();
            found.said.push(format!("{why}; {n} groups, the first of them group {group}, have no usable descriptor"));
        }
        Ok(found)
    }

    fn is_on_device(&self, block: BlockNr) -> bool {
        block.0 < self.dev.size_bytes() >> self.geo.block_bits
    }

    fn read(&self, block: BlockNr) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.geo.block_size as usize];
        self.dev.read_at(block.0 << self.geo.block_bits, &mut bytes, BioFlags::META)?;
        Ok(bytes)
    }

    /// Examines one block of descriptors and adds its replacement to `found`. `None` if the primary is intact.
    fn block(&self, index: u32, home: BlockNr, found: &mut Found) -> Result<Option<Mended>> {
        let (geo, size) = (self.geo, self.geo.desc_size);
        let first = index * geo.descs_per_block();
        let mut wanted: Vec<GroupNr> =
            (first..geo.group_count.min(first.saturating_add(geo.descs_per_block()))).map(GroupNr).collect();
        let slot = |group: GroupNr| (group.0 - first) as usize * size..(group.0 - first + 1) as usize * size;
        let mut why = None;
        let mut copies = geo.desc_block_copies(index, &self.backups).collect::<Vec<_>>();
        if self.chosen && copies.len() > 1 {
            copies.swap(0, 1);
        }
        let mut whole = vec![0; geo.block_size as usize];
        let mut read = Vec::new();
        let mut from = None;
        for at in copies {
            let bytes = match self.read(at) {
                Ok(bytes) => bytes,
                Err(e) => {
                    why.get_or_insert(e);
                    continue;
                }
            };
            if read.is_empty() && at == home {
                whole.copy_from_slice(&bytes);
            }
            let before = wanted.len();
            wanted.retain(|group| match GroupDesc::decode(&bytes[slot(*group)], *group, geo) {
                Ok(_) => {
                    whole[slot(*group)].copy_from_slice(&bytes[slot(*group)]);
                    false
                }
                Err(e) => {
                    why.get_or_insert(e.into());
                    true
                }
            });
            if at != home && wanted.len() < before {
                from.get_or_insert(at);
            }
            read.push(bytes);
            if wanted.is_empty() {
                break;
            }
        }
        if wanted.is_empty() && from.is_none() {
            return Ok(None);
        }
        let wrong = |group: GroupNr| {
            let why = why.clone().unwrap_or_else(|| Error::corrupt(Damage::GroupDescriptor, "no copy of it is left"));
            if matches!(why, Error::Corrupt { .. }) && group.0 > first {
                return Error::corrupt(Damage::GroupDescriptor, format!("{group}: no copy of it is intact"));
            }
            why
        };
        if !self.rescue
            && let Some(group) = wanted.first()
        {
            return Err(wrong(*group));
        }
        for group in wanted {
            let guess = read.iter().find_map(|bytes| self.plausible(group, &bytes[slot(group)]));
            match guess.or_else(|| self.by_default(group)) {
                Some(desc) => desc.encode_into(&mut whole[slot(group)], group, geo),
                None => {
                    found.lost.insert(group.0, wrong(group));
                }
            }
        }
        found.patches.insert(home.0 << geo.block_bits, whole);
        Ok(Some(Mended { first: home, last: home, from, why }))
    }

    /// A descriptor with a bad checksum but plausible block numbers. Implausible counts are replaced by 0.
    fn plausible(&self, group: GroupNr, bytes: &[u8]) -> Option<GroupDesc> {
        let mut desc = GroupDesc::parse(bytes, group, self.geo).ok()?;
        desc.check_locations(group, self.geo).ok()?;
        if desc.check_counts(group, self.geo).is_err() {
            (desc.free_clusters, desc.free_inodes, desc.used_dirs, desc.itable_unused) = (0, 0, 0, 0);
        }
        Some(desc)
    }

    /// The descriptor that mke2fs would create, if there are inodes in the place that it gives.
    fn by_default(&self, group: GroupNr) -> Option<GroupDesc> {
        let zeroes = vec![0; self.geo.desc_size];
        let mut desc = GroupDesc::parse(&zeroes, group, self.geo).ok()?;
        self.geo.default_tables(group).into_iter().find_map(|tables| {
            [desc.block_bitmap, desc.inode_bitmap, desc.inode_table] = tables;
            desc.check_locations(group, self.geo).ok()?;
            self.has_inodes(group, desc.inode_table).then(|| desc.clone())
        })
    }

    /// Whether the first blocks of a presumed inode table contain a valid inode, and no invalid one.
    fn has_inodes(&self, group: GroupNr, table: BlockNr) -> bool {
        const BLOCKS: u32 = 4;
        let (geo, size) = (self.geo, self.geo.inode_size);
        let mut inodes = 0;
        for block in 0..geo.inode_table_blocks.min(BLOCKS) {
            let Ok(bytes) = self.read(BlockNr(table.0 + u64::from(block))) else { return false };
            for (slot, bytes) in (0..geo.inodes_per_block()).zip(bytes.chunks_exact(size)) {
                let Some(ino) = geo.inode_at(group, block * geo.inodes_per_block() + slot) else { continue };
                if bytes.iter().all(|b| *b == 0) {
                    continue;
                }
                match InodeDesc::decode(bytes, ino, geo) {
                    // Reserved inodes without content contain nothing but a checksum.
                    Ok(desc) if desc.file_type().is_some() || desc.links == 0 => inodes += 1,
                    _ => return false,
                }
            }
        }
        inodes > 0
    }
}

impl std::fmt::Display for Mended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let blocks = |first: BlockNr, n: u64| match n {
            0 => format!("block {}", first.0),
            n => format!("blocks {} to {}", first.0, first.0 + n),
        };
        let more = self.last.0 - self.first.0;
        write!(f, "group descriptors in {}: ", blocks(self.first, more))?;
        match &self.why {
            Some(why) => write!(f, "{why}; ")?,
            None => write!(f, "as requested, ")?,
        }
        match self.from {
            Some(from) => write!(f, "using those of the copy in {} (free space is as it was then)", blocks(from, more)),
            None => write!(f, "no copy is intact; plausible values are used"),
        }
    }
}
