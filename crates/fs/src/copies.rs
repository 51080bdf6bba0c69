//! Which copies of the superblock and of the group descriptors a mount works with (Linux: `sb=` of ext4(5) and
//! `descriptor_loc`, fs/ext4/super.c; unlike it, each descriptor is taken from the first copy that has it whole).
//!
//! Main types: [`Copies`] (the superblock that was found, and where), [`Examined`] (a device on which good copies stand
//! where primaries are damaged). A mount that only reads uses what any copy has; one that writes uses primaries alone,
//! and names the copies that a read-only mount would use.
//!
//! With [`MountOptions::rescue`] a copy need not be whole: what is plausible in it is believed, and a group of which
//! nothing is known is lost, not the mount.
//!
//! What it does not do: read bitmaps, which copies do not change; repair anything.
//!
//! # Locking
//! Nobody else has the file system yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::features::{self, MountMode};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::superblock::{self, Geometry, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock, backup_at};
use extant_ondisk::{BlockNr, GroupNr};

use crate::error::{Damage, Error, Result, Unsupported};
use crate::options::Messages;
#[allow(unused_imports)] // for links in the documentation
use crate::options::MountOptions;
use crate::patched::{PatchedDevice, Patches};
use crate::super_block::read_super_at;

/// Copies of a descriptor block that are looked at; without `sparse_super` every group has one.
const COPIES_MAX: usize = 12;
/// Groups that may be lost. Of an image with more, those behind are not looked for: only a field of the superblock says
/// that they exist, and each costs memory.
const LOST_MAX: usize = 1 << 16;
/// Messages about descriptors; what is beyond is counted.
const SAID_MAX: usize = 8;

/// Where the superblock that is used came from.
pub(crate) struct Copies {
    pub sb: SuperBlock,
    /// The block of the copy that is used instead of the primary.
    pub backup: Option<Backup>,
    /// What is wrong with the copy, and was passed over.
    doubts: Vec<Error>,
    rescue: bool,
}

/// A copy that is used instead of the primary.
pub(crate) struct Backup {
    pub block: u64,
    /// What is wrong with the primary; nothing, where the user chose the copy.
    pub primary: Option<Error>,
}

/// What an image is to be read through.
pub(crate) struct Examined {
    pub dev: Arc<dyn BlockDevice>,
    /// Whether anything differs from what the device has.
    pub patched: bool,
}

impl Copies {
    /// The primary superblock, or the first backup that is one of this image; the copy at byte `superblock`, if one is
    /// named.
    pub(crate) fn find(dev: &dyn BlockDevice, superblock: Option<u64>, rescue: bool) -> Result<Copies> {
        if let Some(at) = superblock.filter(|at| *at != SUPERBLOCK_OFFSET) {
            return Copies::named(dev, at, rescue);
        }
        let fits = |sb: &SuperBlock| rescue || sb.check_device_size(dev.size_bytes()).is_ok();
        let is_lost = |e: &Error| rescue || !matches!(e, Error::Device(_) | Error::Unsupported(_));
        match superblock::find(dev.size_bytes(), |at| read_super_at(dev, at), fits, is_lost) {
            Ok((sb, backup)) => {
                let backup = backup.map(|(block, e)| Backup { block: block.0, primary: Some(e) });
                Ok(Copies { sb, backup, doubts: Vec::new(), rescue })
            }
            Err(e) if !rescue => Err(e),
            Err(e) => {
                let (sb, doubts) = read_damaged_super(dev, SUPERBLOCK_OFFSET).map_err(|_| e)?;
                Ok(Copies { sb, backup: None, doubts, rescue })
            }
        }
    }

    fn named(dev: &dyn BlockDevice, at: u64, rescue: bool) -> Result<Copies> {
        let (sb, doubts) = match read_super_at(dev, at) {
            Err(e) if rescue => read_damaged_super(dev, at).map_err(|_| e)?,
            found => (found?, Vec::new()),
        };
        let geo = sb.geometry();
        let Some(BlockNr(block)) = backup_at(geo, at) else {
            let blocks: Vec<u64> = geo.backup_groups().take(8).map(|g| geo.super_location(g).0.0).collect();
            let detail =
                format!("no copy of this file system's superblock belongs there; there are some at {blocks:?}");
            return Err(Error::corrupt(Damage::SuperBlock { byte: at }, detail));
        };
        Ok(Copies { sb, backup: Some(Backup { block, primary: None }), doubts, rescue })
    }

    /// Whether the image can be mounted as was asked, and what is to be said of it.
    ///
    /// # Errors
    /// For writing: only a backup is left, a feature that can only be read, a device that is too small. Unless the
    /// image is to be rescued: a feature that cannot even be read.
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
                        reasons: vec![format!("the backup superblock at block {block}, which was asked for")],
                    }),
                });
            }
            match primary {
                Some(e) => {
                    messages.say(format_args!("{name}: {e}; using the backup superblock at block {block}, read-only"));
                }
                None => messages.say(format_args!("{name}: using the backup superblock at block {block}, as asked")),
            }
        }
        for doubt in &self.doubts {
            messages.say(format_args!("{name}: {doubt}; believed all the same"));
        }
        self.check_features(read_only, &|e| messages.say(format_args!("{name}: {e}; read as far as it can be")))?;
        match self.sb.geometry().check_device_size(dev.size_bytes()) {
            Err(e) if read_only => {
                let e = Error::from(e);
                messages.say(format_args!("{name}: {e}; read-only, and what lies behind the device's end is lost"));
                Ok(())
            }
            checked => Ok(checked?),
        }
    }

    /// Whether it is known, before anything else is read, that primaries cannot be relied on.
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

    /// The device with good copies where primaries are damaged; says which, and cuts `sb` to the groups that there is
    /// any descriptor of. `sb` is the one found, perhaps newer.
    ///
    /// # Errors
    /// Unless the image is to be rescued: no copy has a descriptor whole.
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

    /// For a mount that writes, and was refused because of damage: that copies of group descriptors are good, if it
    /// lies in those.
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

/// For tools that only want to look: the superblock, and the block of the backup that it came from, if so. The other
/// arguments are those of [`MountOptions`].
///
/// # Errors
/// No superblock, good or with a good backup, is there.
pub fn probe_superblock_at(
    dev: &dyn BlockDevice,
    superblock: Option<u64>,
    rescue: bool,
) -> Result<(SuperBlock, Option<u64>)> {
    let Copies { sb, backup, .. } = Copies::find(dev, superblock, rescue)?;
    Ok((sb, backup.map(|b| b.block)))
}

/// [`probe_superblock_at`] for an image of which nothing is known.
///
/// # Errors
/// As [`probe_superblock_at`].
pub fn probe_superblock(dev: &dyn BlockDevice) -> Result<(SuperBlock, Option<u64>)> {
    probe_superblock_at(dev, None, false)
}

fn read_damaged_super(dev: &dyn BlockDevice, offset: u64) -> Result<(SuperBlock, Vec<Error>)> {
    let mut bytes = [0u8; SUPERBLOCK_SIZE];
    dev.read_at(offset, &mut bytes, BioFlags::META)?;
    let (sb, doubts) = SuperBlock::decode_damaged(&bytes, offset)?;
    Ok((sb, doubts.into_iter().map(Error::from).collect()))
}

/// All descriptors, looked at.
struct Found {
    patches: Patches,
    /// The groups of which nothing is known, and why.
    lost: BTreeMap<u32, Error>,
    /// Those that there are descriptors of.
    groups: u32,
    said: Vec<String>,
}

struct Look<'a> {
    dev: &'a dyn BlockDevice,
    geo: &'a Geometry,
    /// The groups whose copies of the whole table are looked at, the best first.
    backups: Vec<GroupNr>,
    /// The first of them goes before the primary.
    chosen: bool,
    rescue: bool,
}

/// Descriptor blocks that were mended in the same way.
struct Mended {
    first: BlockNr,
    last: BlockNr,
    /// The copy for `first`; none: what is plausible was believed.
    from: Option<BlockNr>,
    /// The first thing wrong.
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
                // Behind the end of the device there are no more.
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
            found.said.push(format!("{why}; of {n} groups, group {group} the first, nothing is known"));
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

    /// One block of descriptors: what it is to read as goes into `found`. `None`: the primary is as it should be.
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
                return Error::corrupt(Damage::GroupDescriptor, format!("{group}: no copy of it is whole"));
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

    /// A descriptor whose places can be right though its checksum is not; its counts, where they cannot be, are none.
    fn plausible(&self, group: GroupNr, bytes: &[u8]) -> Option<GroupDesc> {
        let mut desc = GroupDesc::parse(bytes, group, self.geo).ok()?;
        desc.check_locations(group, self.geo).ok()?;
        if desc.check_counts(group, self.geo).is_err() {
            (desc.free_clusters, desc.free_inodes, desc.used_dirs, desc.itable_unused) = (0, 0, 0, 0);
        }
        Some(desc)
    }

    /// A descriptor as mke2fs would have made it, if inodes are where it says.
    fn by_default(&self, group: GroupNr) -> Option<GroupDesc> {
        let zeroes = vec![0; self.geo.desc_size];
        let mut desc = GroupDesc::parse(&zeroes, group, self.geo).ok()?;
        self.geo.default_tables(group).into_iter().find_map(|tables| {
            [desc.block_bitmap, desc.inode_bitmap, desc.inode_table] = tables;
            desc.check_locations(group, self.geo).ok()?;
            self.has_inodes(group, desc.inode_table).then(|| desc.clone())
        })
    }

    /// Whether the first blocks of what may be an inode table hold an inode, and nothing that is none.
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
                    // Reserved inodes without content have a checksum and nothing else.
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
            None => write!(f, "as asked, ")?,
        }
        match self.from {
            Some(from) => write!(f, "using those of the copy in {} (free space is as it was then)", blocks(from, more)),
            None => write!(f, "no copy is whole; what is plausible is believed"),
        }
    }
}
