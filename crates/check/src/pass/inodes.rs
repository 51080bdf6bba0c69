//! The rules of inodes, apart from those of their maps and attributes.
//!
//! Main functions: [`table`] (a piece of an inode table), [`finish`] (size and block count, which can be checked only
//! when the whole map is known).
//!
//! # Locking
//! None.

use extant_ondisk::extent::NodeRef;
use extant_ondisk::features::{Compat, RoCompat};
use extant_ondisk::indirect;
use extant_ondisk::inode::{
    FAST_SYMLINK_LIMIT, FileType, InodeDamage, InodeDesc, InodeFlags, RawInode, inline, is_zeros, verify_checksum,
};
use extant_ondisk::xattr::inode_area::area_of;
use extant_ondisk::{BlockNr, InodeNr};
use zerocopy::FromBytes;

use super::walk::{Dir, InlineDir, Mode, Tally, ValueInode, Walker};
use super::{maps, peeks, quota, xattrs};
use crate::context::{Check, InodeState, Kind};
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::scan::Run;

const BAD_BLOCKS_INO: u32 = 1;
const USER_QUOTA_INO: u32 = 3;
const GROUP_QUOTA_INO: u32 = 4;
const BOOT_LOADER_INO: u32 = 5;
const LARGE_FILE_BYTES: u64 = 1 << 31;
/// The pointers of a file map at most 2^(this minus log2 of the block size) blocks, because more could not be counted
/// in sectors.
const FILE_BLOCKS_LOG2: u32 = 41;
/// The size of the shortest directory entry.
const ENTRY_MIN: u64 = 12;

/// An inode in its table.
pub struct Inode<'a> {
    pub ino: u32,
    pub raw: RawInode,
    pub bytes: &'a [u8],
    pub kind: Option<FileType>,
    pub flags: InodeFlags,
    pub size: u64,
    pub file_acl: u64,
    /// Whether its checksum is known to match.
    verified: bool,
}

impl<'a> Inode<'a> {
    fn read(bytes: &'a [u8], ino: u32, check: &Check) -> Option<Inode<'a>> {
        let (raw, _) = RawInode::read_from_prefix(bytes).ok()?;
        let mut file_acl = u64::from(raw.i_file_acl_lo.get());
        if check.geo.bit64 {
            file_acl |= u64::from(raw.l_i_file_acl_high.get()) << 32;
        }
        Some(Inode {
            ino,
            bytes,
            kind: FileType::from_mode(raw.i_mode.get()),
            flags: InodeFlags::from_bits_retain(raw.i_flags.get()),
            size: u64::from(raw.i_size_lo.get()) | u64::from(raw.i_size_high.get()) << 32,
            file_acl,
            verified: false,
            raw,
        })
    }

    pub fn is_dir(&self) -> bool {
        self.kind == Some(FileType::Directory)
    }

    pub fn is_regular(&self) -> bool {
        self.kind == Some(FileType::Regular)
    }

    pub fn is_symlink(&self) -> bool {
        self.kind == Some(FileType::Symlink)
    }

    /// The stored count of blocks.
    pub fn blocks(&self, check: &Check) -> u64 {
        let high = if check.geo.huge_file { u64::from(self.raw.l_i_blocks_high.get()) << 32 } else { 0 };
        u64::from(self.raw.i_blocks_lo.get()) | high
    }

    /// Whether this is a symlink that, according to its size, has its target in the inode.
    fn is_short_symlink(&self) -> bool {
        self.is_symlink() && self.size != 0 && self.size < FAST_SYMLINK_LIMIT
    }

    /// Whether `i_block` contains a map.
    pub fn has_map(&self) -> bool {
        if self.flags.contains(InodeFlags::INLINE_DATA) {
            return false;
        }
        if self.is_symlink() {
            if self.file_acl == 0 {
                return self.raw.i_blocks_lo.get() != 0 && !self.is_short_symlink();
            }
            let second = indirect::pointer(&self.raw.i_block, 1);
            return self.size >= FAST_SYMLINK_LIMIT || (self.size > 4 && second == Some(0));
        }
        self.is_dir() || self.is_regular()
    }

    /// Whether `i_block` begins like an extent tree.
    fn has_extent_header(&self) -> bool {
        NodeRef::parse(&self.raw.i_block, 0).is_ok()
    }
}

/// Checks the inodes of a piece of a table. `run.items` is the group and the block of the table at which the piece
/// begins.
pub fn table(walker: &mut Walker<'_>, run: &Run, data: &[u8]) {
    let check = walker.check;
    let geo = &check.geo;
    let (group, table_block) = run.items;
    let per_block = geo.inodes_per_block();
    let read = crate::context::inodes_read(geo, &check.descs[group]);
    for (at, block) in data.chunks(geo.block_size as usize).enumerate() {
        let first = (table_block + at) as u32 * per_block;
        let base = group as u32 * geo.inodes_per_group + 1 + first;
        let count = per_block.min(read.saturating_sub(first));
        let slots = || block.chunks_exact(geo.inode_size).zip(base..).take(count as usize);
        let (garbage, verified) = if per_block > 1 { is_garbage(check, slots(), per_block) } else { (false, 0) };
        for (slot, (bytes, ino)) in slots().enumerate() {
            let verified = slot < Verified::BITS as usize && verified >> slot & 1 != 0;
            inode(walker, ino, bytes, garbage, verified);
        }
    }
    if walker.mode == Mode::Check && table_block == 0 {
        check.progress(1, group as u64, check.descs.len() as u64);
    }
}

/// The first inodes of a block whose checksums match, one bit each.
type Verified = u64;

/// Whether more than half of the inodes of a block make no sense. Also returns the inodes whose checksums were verified
/// in order to find out.
fn is_garbage<'a>(check: &Check, slots: impl Iterator<Item = (&'a [u8], u32)>, per_block: u32) -> (bool, Verified) {
    let (mut bad, mut good, mut verified) = (0, 0, 0);
    for (slot, (bytes, ino)) in slots.enumerate() {
        // The rest cannot be more than half.
        if good >= per_block - per_block / 2 {
            break;
        }
        // This is the most common case: the inode was never used.
        if is_zeros(bytes) {
            good += 1;
            continue;
        }
        let Some(inode) = Inode::read(bytes, ino, check) else { continue };
        let fits = verify_checksum(bytes, InodeNr(ino), &check.geo).is_ok();
        if fits && slot < Verified::BITS as usize {
            verified |= 1 << slot;
        }
        if !fits
            || (inode.flags.contains(InodeFlags::EXTENTS) && !inode.has_extent_header())
            || pointers_are_wild(check, &inode)
        {
            bad += 1;
            if bad > per_block / 2 {
                return (true, verified);
            }
        } else {
            good += 1;
        }
    }
    (false, verified)
}

/// Whether most pointers of an inode refer to blocks outside the file system.
fn pointers_are_wild(check: &Check, inode: &Inode<'_>) -> bool {
    if inode.flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)
        || inode.raw.i_links_count.get() == 0
        || !(inode.is_regular() || inode.is_dir() || (inode.is_symlink() && inode.size > FAST_SYMLINK_LIMIT))
    {
        return false;
    }
    let wild = |slot: &usize| {
        let block = u64::from(indirect::pointer(&inode.raw.i_block, *slot).unwrap_or(0));
        block != 0 && (block < check.geo.first_data_block || block >= check.geo.blocks_count)
    };
    (0..indirect::SLOTS).filter(wild).count() > indirect::SLOTS / 2
}

/// Whether `i_block` can contain pointers.
fn could_be_pointers(check: &Check, inode: &Inode<'_>) -> bool {
    (0..indirect::SLOTS).all(|slot| {
        let block = u64::from(indirect::pointer(&inode.raw.i_block, slot).unwrap_or(0));
        block == 0 || (block >= check.geo.first_data_block && block < check.geo.blocks_count)
    })
}

/// Checks one inode.
fn inode(walker: &mut Walker<'_>, ino: u32, bytes: &[u8], garbage: bool, verified: bool) {
    // The inode was never used, or was zeroed, so nothing can be wrong with it.
    if ino >= walker.check.geo.first_ino && is_zeros(bytes) {
        return;
    }
    let Some(inode) = Inode::read(bytes, ino, walker.check) else { return };
    let inode = Inode { verified, ..inode };
    if garbage && inode.raw.i_links_count.get() > 0 {
        walker.bad_inode(Problem::InodeIsGarbage, ino, 0u64, 0u64);
    }
    let flags = judge(walker, &inode);
    if let Some(flags) = flags
        && walker.mode == Mode::Check
    {
        let kind = match inode.kind {
            None if ino < walker.check.geo.first_ino => Kind::Regular,
            kind => Kind::of(kind),
        };
        walker.check.inodes.put(InodeNr(ino), inode.raw.i_links_count.get(), kind, flags | InodeState::USED);
    }
}

/// The use of an inode, which determines its rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Not in use, and the fields are left over from the last file.
    Free,
    /// A reserved inode, which has a map and little else.
    Reserved,
    /// A file, or an inode that should be one.
    File,
}

/// Checks one inode. Returns its flags; `None` if it is not in use.
fn judge(walker: &mut Walker<'_>, inode: &Inode<'_>) -> Option<u8> {
    let check = walker.check;
    let (ino, raw) = (inode.ino, &inode.raw);
    let links = raw.i_links_count.get();
    let orphan = check.orphans.contains(&ino);
    let sb = check.sb.raw();
    let quota = [USER_QUOTA_INO, GROUP_QUOTA_INO].contains(&ino) || ino == check.project_quota();
    let special = ino < check.geo.first_ino || quota || ino == sb.s_orphan_file_inum.get();
    let is_reserved = special && is_reserved(walker, inode, quota);
    let role = match () {
        () if is_reserved => Role::Reserved,
        () if links == 0 && !orphan => Role::Free,
        () => Role::File,
    };
    let mut is_bad = walker.mode == Mode::Check && own_damage(walker, inode, role);
    if role == Role::Free {
        return None;
    }
    let mut flags = if orphan { InodeState::ORPHAN } else { 0 };
    if inode.flags.contains(InodeFlags::EA_INODE) && !is_reserved {
        flags |= InodeState::VALUE;
        walker.out.values.push(ValueInode {
            ino,
            size: inode.size,
            references: u64::from(raw.i_ctime.get()) << 32 | u64::from(raw.l_i_version.get()),
            uncounted: raw.i_ctime == raw.i_atime,
            hash: raw.i_atime.get(),
            owner: raw.i_mtime.get(),
            generation: raw.i_generation.get(),
        });
    }
    if inode.flags.contains(InodeFlags::INLINE_DATA) && !is_reserved {
        let there = xattrs::has_inline_data(inode, check);
        match check.geo.inline_data {
            true if !there => walker.bad_inode(Problem::InlineDataNoAttr, ino, 0u64, 0u64),
            false if there => walker.bad_inode(Problem::InlineDataFeature, ino, 0u64, 0u64),
            _ => {}
        }
    }
    if is_reserved {
        maps::root(walker, inode, true);
        return Some(flags | InodeState::UNCOUNTED);
    }
    if inode.flags.contains(InodeFlags::IMAGIC) && check.geo.imagic_inodes {
        flags |= InodeState::UNCOUNTED;
    }
    if inode.file_acl != 0 && !check.sb.compat().contains(Compat::EXT_ATTR) {
        walker.bad_inode(Problem::FileAclZero, ino, inode.file_acl, 0u64);
        is_bad = true;
    }
    let attributes = area_of(inode.bytes);
    if let Some(area) = attributes {
        xattrs::in_inode(walker, inode, area);
    }
    if inode.flags.contains(InodeFlags::ENCRYPT) {
        flags |= InodeState::ENCRYPTED;
        xattrs::encryption(walker, inode);
    }
    is_bad |= content(walker, inode);
    if is_bad {
        flags |= InodeState::BAD;
    }
    if inode.is_dir() && inode.flags.contains(InodeFlags::INDEX) {
        flags |= InodeState::INDEXED;
    }
    if raw.i_blocks_lo.get() == 0 && attributes.is_none() && (inode.is_dir() || inode.is_regular()) {
        flags |= InodeState::EMPTY;
    }
    if inode.flags.contains(InodeFlags::INLINE_DATA) && check.geo.inline_data && inode.is_dir() {
        inline_dir(walker, inode);
    }
    maps::root(walker, inode, false);
    Some(flags)
}

/// Reports the inode's own damage. Returns whether e2fsck no longer trusts its kind.
fn own_damage(walker: &mut Walker<'_>, inode: &Inode<'_>, role: Role) -> bool {
    let (check, ino) = (walker.check, InodeNr(inode.ino));
    let Ok(desc) = InodeDesc::parse(inode.bytes, ino, &check.geo) else { return false };
    let (mut is_bad, mut has_old_time) = (false, false);
    let mut found = |damage| {
        let is_time = matches!(damage, InodeDamage::Timestamp { .. });
        // One finding for the four times is sufficient.
        if applies(&damage, role) && !(is_time && has_old_time) {
            is_bad |= report(walker, inode, damage);
        }
        has_old_time |= is_time;
    };
    match inode.verified {
        true => desc.damage_of_fields(inode.bytes, ino, &check.geo, &mut found),
        false => desc.damage(inode.bytes, ino, &check.geo, &mut found),
    }
    is_bad
}

/// Whether the rule applies to an inode of this role.
fn applies(damage: &InodeDamage, role: Role) -> bool {
    use InodeDamage as D;
    match damage {
        D::Checksum { .. } | D::DtimeLow { .. } => true,
        D::DtimeMissing => role == Role::Free,
        D::CasefoldOnFile | D::CasefoldFeature => role != Role::Free,
        D::ExtentsFeature { .. } | D::ExtentsFlagMissing => role != Role::Free,
        _ => role == Role::File,
    }
}

/// Reports damage with its problem. Returns whether the inode's kind cannot be trusted.
fn report(walker: &mut Walker<'_>, inode: &Inode<'_>, damage: InodeDamage) -> bool {
    use InodeDamage as D;
    let check = walker.check;
    let is_root = inode.ino == InodeNr::ROOT.0;
    // The deletion time of an orphan is the number of the next orphan.
    let orphan = check.orphans.contains(&inode.ino);
    let mut bad = |problem, found: u64, expected: u64| walker.bad_inode(problem, inode.ino, found, expected);
    // If one of these fields is set, e2fsck asks whether it is an inode at all.
    let mut unused = |problem, found: u64| {
        bad(problem, found, 0);
        true
    };
    match damage {
        D::Checksum { found, expected } => bad(Problem::InodeOnlyCsumInvalid, found.into(), expected.into()),
        D::ExtraIsize { found, inode_size } => bad(Problem::ExtraIsize, found.into(), (inode_size - 128).into()),
        D::DtimeLow { found, .. } if check.low_dtime && !orphan => bad(Problem::LowDtime, found.into(), 0),
        D::DtimeSet { found } if is_root => bad(Problem::RootDtime, found.into(), 0),
        D::DtimeSet { found } if !orphan => bad(Problem::SetDtime, found.into(), 0),
        D::DtimeLow { .. } | D::DtimeSet { .. } => {}
        D::DtimeMissing => bad(Problem::ZeroDtime, 0, 0),
        D::Mode { found } => {
            bad(Problem::BadMode, found.into(), 0);
            return true;
        }
        D::RootMode { found } => bad(Problem::RootNoDir, found.into(), 0),
        // Sizes are compared with the map later, and the size of a target with its bytes.
        D::Size { .. } | D::DirSize { .. } | D::SymlinkSize { .. } => {}
        D::FileAcl { found } => return unused(Problem::FileAclBad, found.0),
        D::DirSizeHigh { found } => return unused(Problem::DirSizeHighZero, found.into()),
        D::BlocksHigh { found } => return unused(Problem::BlocksHiZero, found.into()),
        D::FileAclHigh { found } => return unused(Problem::IFileAclHiZero, found.into()),
        D::FragmentAddress { found } => return unused(Problem::FaddrZero, found.into()),
        D::FragmentNumber { found } => return unused(Problem::FragZero, found.into()),
        D::FragmentSize { found } => return unused(Problem::FsizeZero, found.into()),
        D::SpecialSize { found } => bad(Problem::SetNonzsize, found, 0),
        D::Timestamp { .. } => bad(Problem::EaTimeOutOfRange, 0, 0),
        D::ExtentsFeature { header } => {
            if header {
                bad(Problem::ExtentFeature, 0, 0);
            }
            bad(Problem::ExtentsSet, 0, 0);
        }
        D::ExtentsFlagMissing => bad(Problem::UnsetExtentFl, 0, 0),
        D::ExtentsOnFastSymlink { .. } => bad(Problem::FastSymlinkExtentFl, 0, 0),
        D::MapOnSpecial { found } => {
            if found & InodeFlags::INLINE_DATA.bits() != 0 {
                bad(Problem::SpecialExtentsIdata, found.into(), 0);
            }
            if found & InodeFlags::EXTENTS.bits() != 0 {
                bad(bad_special(inode), found.into(), 0);
                return true;
            }
        }
        D::InlineDataFeature => bad(Problem::InlineDataSet, 0, 0),
        D::InlineDataAndExtents { header } => bad(both_contents(check, inode, header), 0, 0),
        D::BlockMapOnClusters => bad(Problem::NoBigallocBlockmapFiles, 0, 0),
        D::IndexFeature => bad(Problem::HtreeSet, 0, 0),
        D::IndexOnFile => {
            bad(Problem::HtreeNodir, 0, 0);
            if is_special(inode) {
                bad(bad_special(inode), InodeFlags::INDEX.bits().into(), 0);
                return true;
            }
        }
        D::Imagic => bad(Problem::SetImagic, 0, 0),
        D::ImmutableSpecial { found } => {
            if (4..indirect::SLOTS).any(|slot| indirect::pointer(&inode.raw.i_block, slot) != Some(0)) {
                bad(bad_special(inode), found.into(), 0);
                return true;
            }
            bad(Problem::SetImmutable, found.into(), 0);
        }
        D::CasefoldFeature => bad(Problem::CasefoldFeature, 0, 0),
        D::CasefoldOnFile => bad(Problem::CasefoldNondir, inode.raw.i_mode.get().into(), 0),
        // The inode is not a value, which the attributes show.
        D::EaInodeFeature => {}
        D::EaInodeMode { mode } => bad(Problem::EaInodeNonreg, mode.into(), 0),
    }
    false
}

/// The problem of an inode with the flags of inline data and of extents: `i_block` and the attributes determine which
/// flag is correct. `header` means that `i_block` begins like an extent tree.
fn both_contents(check: &Check, inode: &Inode<'_>, header: bool) -> Problem {
    match () {
        () if header => Problem::ClearInlineDataForExtent,
        () if xattrs::has_inline_data(inode, check) => Problem::ClearExtentForInlineData,
        () if could_be_pointers(check, inode) => Problem::ClearExtentInlineDataFlags,
        () => Problem::ClearExtentInlineDataInode,
    }
}

fn is_special(inode: &Inode<'_>) -> bool {
    !matches!(inode.kind, None | Some(FileType::Directory | FileType::Regular | FileType::Symlink))
}

/// The problem of a device, pipe or socket that cannot be one.
fn bad_special(inode: &Inode<'_>) -> Problem {
    match inode.kind {
        Some(FileType::CharDevice) => Problem::BadCharDev,
        Some(FileType::BlockDevice) => Problem::BadBlockDev,
        Some(FileType::Fifo) => Problem::BadFifo,
        _ => Problem::BadSocket,
    }
}

/// Handles a directory whose entries are in the inode.
fn inline_dir(walker: &mut Walker<'_>, inode: &Inode<'_>) {
    let Some(bytes) = xattrs::inline_bytes(inode, walker.check) else { return };
    let (length, room) = (bytes.len() as u64, inline::ROOM as u64);
    if !inline::fits(inode.kind, inode.size, bytes.len().checked_sub(inline::ROOM)) {
        walker.bad_inode(Problem::BadISize, inode.ino, inode.size, length);
    }
    if !length.is_multiple_of(4) || (length > room && length < room + ENTRY_MIN) {
        walker.bad_inode(Problem::BadInlineDirSize, inode.ino, length, 0u64);
    }
    if walker.mode == Mode::Check {
        walker.out.inline_dirs.push(InlineDir { ino: inode.ino, bytes });
    }
}

/// Checks the rules of an inode that may be reserved. Returns true if it is reserved and no other rule applies.
fn is_reserved(walker: &mut Walker<'_>, inode: &Inode<'_>, quota: bool) -> bool {
    let check = walker.check;
    let (ino, raw) = (inode.ino, &inode.raw);
    let sb = check.sb.raw();
    let mode = raw.i_mode.get();
    let filled = raw.i_links_count.get() != 0
        || raw.i_blocks_lo.get() != 0
        || indirect::pointer(&raw.i_block, 0).unwrap_or(0) != 0;
    let mut special = |in_use: bool, bad_mode, not_clear| {
        if in_use {
            if !inode.is_regular() {
                walker.bad_inode(bad_mode, ino, mode, 0u64);
            }
            return true;
        }
        if filled {
            walker.bad_inode(not_clear, ino, 0u64, 0u64);
        }
        false
    };
    if ino == BAD_BLOCKS_INO {
        let owned = raw.i_uid.get() != 0 || raw.i_gid.get() != 0 || raw.i_links_count.get() != 0;
        let holds = inode.file_acl != 0 || inode.flags.contains(InodeFlags::INLINE_DATA);
        if mode != 0 || owned || holds {
            walker.bad_inode(Problem::InvalidBadInode, ino, mode, 0u64);
        }
        return true;
    }
    if ino == InodeNr::ROOT.0 {
        return false;
    }
    if ino == InodeNr::JOURNAL.0 {
        let in_use = sb.s_journal_inum.get() == ino;
        return special(in_use, Problem::JournalBadMode, Problem::JournalInodeNotClear);
    }
    if quota {
        let named = [sb.s_usr_quota_inum.get(), sb.s_grp_quota_inum.get(), sb.s_prj_quota_inum.get()].contains(&ino);
        return special(
            check.sb.ro_compat().contains(RoCompat::QUOTA) && named,
            Problem::QuotaBadMode,
            Problem::QuotaInodeNotClear,
        );
    }
    if ino == sb.s_orphan_file_inum.get() {
        let in_use = check.sb.compat().contains(Compat::ORPHAN_FILE);
        return special(in_use, Problem::OrphanFileBadMode, Problem::OrphanFileNotClear);
    }
    let bad = match ino {
        BOOT_LOADER_INO => inode.is_dir(),
        _ if ino == InodeNr::RESIZE.0 => mode != 0 && !inode.is_regular(),
        _ => mode != 0,
    };
    if bad {
        walker.bad_inode(Problem::ReservedBadMode, ino, mode, 0u64);
    }
    true
}

/// Handles the content in the blocks, or stored in place of them. Returns whether a symlink's target does not match its
/// size.
fn content(walker: &mut Walker<'_>, inode: &Inode<'_>) -> bool {
    if inode.kind.is_none() || is_special(inode) {
        peeks::maybe_directory(walker, inode);
    }
    if !inode.is_symlink() {
        return false;
    }
    match symlink(walker, inode) {
        Some(false) => walker.bad_inode(Problem::InvalidSymlink, inode.ino, inode.size, 0u64),
        Some(true) if inode.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) => {
            walker.bad_inode(Problem::SetImmutable, inode.ino, 0u64, 0u64);
            return false;
        }
        _ => return false,
    }
    true
}

/// Whether a symlink's target matches its size. `None` if its block has to be read first.
fn symlink(walker: &mut Walker<'_>, inode: &Inode<'_>) -> Option<bool> {
    if inode.raw.i_size_high.get() != 0 || inode.size == 0 || inode.flags.contains(InodeFlags::INDEX) {
        return Some(false);
    }
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        let rest = xattrs::inline_rest(inode, walker.check);
        return Some(!inode.flags.contains(InodeFlags::EXTENTS) && inline::fits(inode.kind, inode.size, rest));
    }
    if inode.is_short_symlink() {
        return Some(
            !inode.flags.contains(InodeFlags::EXTENTS)
                && peeks::target_fits(&inode.raw.i_block, inode.size, inode.flags.contains(InodeFlags::ENCRYPT)),
        );
    }
    let block = if inode.flags.contains(InodeFlags::EXTENTS) {
        let root = NodeRef::parse(&inode.raw.i_block, 0).ok().filter(|root| root.depth() == 0 && root.len() == 1);
        let extent = root.and_then(|root| root.extent(0)).filter(|extent| extent.lblk.0 == 0 && extent.len == 1);
        extent.map(|extent| extent.pblk.0)
    } else {
        let alone = (1..indirect::SLOTS).all(|slot| indirect::pointer(&inode.raw.i_block, slot) == Some(0));
        indirect::pointer(&inode.raw.i_block, 0).filter(|_| alone).map(u64::from)
    };
    let Some(block) =
        block.filter(|block| *block >= walker.check.geo.first_data_block && *block < walker.check.geo.blocks_count)
    else {
        return Some(false);
    };
    peeks::target(walker, inode, block);
    None
}

/// Checks size and block count when the whole map is known, and records a directory.
pub fn finish(walker: &mut Walker<'_>, tally: &Tally) {
    let check = walker.check;
    if walker.mode == Mode::Owners {
        return;
    }
    let geo = &check.geo;
    let (ino, sums) = (tally.ino, tally.sums);
    quota::count(walker, tally);
    let flags = InodeFlags::from_bits_retain(tally.flags);
    let kind = FileType::from_mode(tally.mode);
    let is_dir = kind == Some(FileType::Directory);
    let extents = geo.extents && flags.contains(InodeFlags::EXTENTS);
    let inline = flags.contains(InodeFlags::INLINE_DATA);
    let orphan = check.orphans.contains(&ino);
    if is_dir {
        if sums.clusters == 0 && !inline {
            walker.bad_inode(Problem::ZeroLengthDir, ino, 0u64, 0u64);
        }
        walker.out.dirs.push(Dir {
            ino,
            generation: tally.generation,
            flags: tally.flags,
            blocks: u32::try_from(sums.end).unwrap_or(u32::MAX),
            extents,
            partial: sums.partial,
        });
    }
    if kind == Some(FileType::Regular) && tally.size >= LARGE_FILE_BYTES {
        walker.out.large_files += 1;
    }
    if kind == Some(FileType::Regular) && sums.pointers + 1 >= 1 << (FILE_BLOCKS_LOG2 - geo.block_bits) {
        walker.bad_inode(Problem::ToobigReg, ino, sums.pointers, 0u64);
    }
    if is_dir && flags.contains(InodeFlags::INDEX) && tally.size >> geo.block_bits > sums.end && !sums.partial {
        let place = Place::Mapped { ino: InodeNr(ino), lblk: sums.end, block: BlockNr(0) };
        walker.bad(Finding::new(Problem::UnexpectedHtreeBlock, place, tally.size, sums.end));
    }
    // The list of bad blocks is not a file, and its inode does not count its blocks.
    if sums.partial || ino == BAD_BLOCKS_INO {
        return;
    }
    let block_size = u64::from(geo.block_size);
    let bad_size = if is_dir {
        let blocks = tally.size >> geo.block_bits;
        let spare = u64::from(check.sb.raw().s_prealloc_dir_blocks);
        // Inline directories are checked together with their attribute.
        !inline && (!tally.size.is_multiple_of(block_size) || blocks > sums.end || blocks + spare < sums.end)
    } else {
        // A truncation in progress has already set the size.
        let beyond = sums.written_end > 0 && tally.size < (sums.written_end - 1) * block_size && !orphan;
        let most = if extents { (1 << (32 + geo.block_bits)) - 1 } else { pointers_max(block_size) };
        (beyond && !flags.contains(InodeFlags::VERITY)) || tally.size > most
    };
    if bad_size && kind != Some(FileType::Symlink) {
        walker.bad_inode(Problem::BadISize, ino, tally.size, sums.end * block_size);
    }
    let huge = geo.huge_file && flags.contains(InodeFlags::HUGE_FILE);
    let unit = if huge { 1 } else { block_size / 512 };
    let expected = (sums.clusters << geo.cluster_bits) * unit;
    if !geo.hurd && !tally.unknown_values && (expected != tally.blocks || (huge && tally.blocks >> 32 != 0)) {
        walker.bad_inode(Problem::BadIBlocks, ino, tally.blocks, expected);
    }
}

/// The largest size that pointers can map, in bytes.
fn pointers_max(block_size: u64) -> u64 {
    let pointers = block_size / 4;
    (12 + pointers + pointers * pointers + pointers * pointers * pointers).saturating_mul(block_size)
}
