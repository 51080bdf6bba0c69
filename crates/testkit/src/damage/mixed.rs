//! Damaged images by the thousand, for comparing checkers: mutations of the table, single and several at once, changed
//! bytes, and changed fields of one object with its checksum repaired.
//!
//! Main functions: [`damaged`] (the image for a kind and a seed), [`KINDS`]. If only bytes change, the checksum rule
//! reports them before any other rule. With a repaired checksum, an object reaches the other rules.
//!
//! # Locking
//! None.

use extant_base::rng::Rng;
use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::superblock::SUPERBLOCK_OFFSET;
use extant_ondisk::{InodeNr, bitmap};

use super::edit::{Edit, set_half, set_word};
use super::{Image, Mutation, random, table};

/// The kinds of images to damage. Together they have every feature that Extant writes.
pub const KINDS: [Image; 21] = [
    Image::Ext2,
    Image::Ext3,
    Image::Ext4,
    Image::Ext4Gdt,
    Image::Bigalloc,
    Image::InlineData,
    Image::EaInode,
    Image::OrphanFile,
    Image::Casefold,
    Image::Dirty,
    Image::Ext4Plain,
    Image::Quota,
    Image::Encrypt,
    Image::Mmp,
    Image::Verity,
    Image::Blocks8k,
    Image::Blocks64k,
    Image::MetaBg,
    Image::UninitCsum,
    Image::MetaBgResize,
    Image::JournalDev,
];

/// Those of [`KINDS`] whose images are on one disk, and have no fault for e2fsck before they are damaged.
pub fn kinds_on_one_disk() -> impl Iterator<Item = Image> {
    KINDS.into_iter().filter(|kind| kind.journal_at().is_none() && kind.faults().is_empty())
}

/// The image of `kind` with the damage of `seed`, and a description of it. Every second seed uses the next mutation of
/// the table, while there are any.
pub fn damaged(kind: Image, seed: u64) -> (MemDevice, String) {
    let mut rng = Rng::new(seed << 8 | kind as u64);
    let of = like(kind);
    let fitting: Vec<&Mutation> = table().filter(|mutation| mutation.images.contains(&of)).collect();
    let any = |rng: &mut Rng| fitting[rng.below(fitting.len() as u64) as usize];
    if let Some(mutation) = fitting.get((seed / 2) as usize).filter(|_| seed.is_multiple_of(2)) {
        return (mutation.on(kind), mutation.name.to_owned());
    }
    let mut what = Vec::new();
    let image = kind.made().snapshot();
    let mut put = |name: String, other: &MemDevice| {
        overlay(&image, kind.made(), other);
        what.push(name);
    };
    let sort = if fitting.is_empty() { 2 + rng.below(4) } else { rng.below(6) };
    match sort {
        0 => {
            for _ in 0..2 + rng.below(2) {
                let mutation = any(&mut rng);
                put(mutation.name.to_owned(), &mutation.on(kind));
            }
        }
        1 => {
            let mutation = any(&mut rng);
            put(mutation.name.to_owned(), &mutation.on(kind));
            let (name, other) = object(kind, &mut rng);
            put(name, &other);
        }
        2 => {
            let other = kind.made().snapshot();
            random::strike(&other, &random::pieces(&other), &mut rng);
            put("bytes".to_owned(), &other);
        }
        _ => {
            for _ in 0..1 + rng.below(3) {
                let (name, other) = object(kind, &mut rng);
                put(name, &other);
            }
        }
    }
    (image, what.join(" + "))
}

/// The kind whose mutations fit another one: what they change is the same in both.
fn like(kind: Image) -> Image {
    match kind {
        Image::Verity | Image::UninitCsum | Image::MetaBgResize => Image::Ext4,
        Image::Blocks8k => Image::Ext4Large,
        other => other,
    }
}

/// Applies to `image` the differences of `other` from `sound`.
fn overlay(image: &MemDevice, sound: &MemDevice, other: &MemDevice) {
    const STEP: usize = 64 << 10;
    let [mut old, mut new, mut now] = [const { Vec::new() }; 3].map(|_: Vec<u8>| vec![0; STEP]);
    for at in (0..sound.size_bytes()).step_by(STEP) {
        let count = STEP.min((sound.size_bytes() - at) as usize);
        let read = |device: &MemDevice, bytes: &mut [u8]| {
            device.read_at(at, &mut bytes[..count], BioFlags::empty()).expect("memory");
        };
        read(sound, &mut old);
        read(other, &mut new);
        if old[..count] == new[..count] {
            continue;
        }
        read(image, &mut now);
        for i in (0..count).filter(|i| old[*i] != new[*i]) {
            now[i] = new[i];
        }
        image.write_at(at, &[&now[..count]], BioFlags::empty()).expect("memory");
    }
}

/// Changes, now and then, an object that only this kind has, and returns its name.
fn special(kind: Image, edit: &mut Edit, rng: &mut Rng) -> Option<&'static str> {
    match kind {
        Image::JournalDev if rng.one_in(4) => Some(journal_device(edit, kind.journal_at()?, rng)),
        Image::Mmp if rng.one_in(6) => {
            edit.mmp(|bytes| fields(&mut bytes[..256], rng));
            Some("block of multi-mount protection")
        }
        _ => None,
    }
}

/// A sound image with one changed object, and the name of that object.
fn object(kind: Image, rng: &mut Rng) -> (String, MemDevice) {
    let mut edit = Edit::new(kind.made());
    if let Some(what) = special(kind, &mut edit, rng) {
        return (what.to_owned(), edit.finish());
    }
    if rng.one_in(8) {
        edit.leave_checksums();
    }
    let inodes = inodes(&edit);
    let pick = |rng: &mut Rng, of: &[u32]| of[rng.below(of.len() as u64) as usize];
    // `i_block` need not contain a map.
    let mapped = |edit: &Edit, ino: u32, kinds: &[FileType]| {
        let raw = edit.raw_inode(ino);
        let kind = FileType::from_mode(raw.i_mode.get());
        kind.is_some_and(|kind| kinds.contains(&kind)) && raw.i_flags.get() & InodeFlags::INLINE_DATA.bits() == 0
    };
    let ino = pick(rng, &inodes);
    let group = rng.below(edit.groups().into()) as u32;
    let what = match rng.below(20) {
        0 => {
            edit.superblock(|sb| fields(zerocopy::IntoBytes::as_mut_bytes(sb), rng));
            "superblock".to_owned()
        }
        1 => {
            edit.group(group, |desc| fields(zerocopy::IntoBytes::as_mut_bytes(desc), rng));
            format!("descriptor of group {group}")
        }
        2 => {
            let bits = edit.geometry().clusters_per_group.into();
            edit.block_bitmap(group, |bytes| flip(bytes, bits, rng));
            format!("block bitmap of group {group}")
        }
        3 => {
            let bits = edit.geometry().inodes_per_group.into();
            edit.inode_bitmap(group, |bytes| flip(bytes, bits, rng));
            format!("inode bitmap of group {group}")
        }
        4..10 => {
            edit.inode_bytes(ino, |bytes| fields(bytes, rng));
            format!("inode {ino}")
        }
        10..15 => {
            let is_dir = |ino: &u32| mapped(&edit, *ino, &[FileType::Directory]);
            let dirs: Vec<u32> = inodes.iter().copied().filter(is_dir).collect();
            let dir = pick(rng, &dirs);
            let data = edit.data(dir);
            let lblk = data[rng.below(data.len() as u64) as usize].0;
            edit.dir_block(dir, lblk, |bytes| entry(bytes, rng));
            format!("logical block {lblk} of directory {dir}")
        }
        15..18 => {
            let has_nodes = |ino: &u32| {
                mapped(&edit, *ino, &[FileType::Directory, FileType::Regular]) && !edit.nodes(*ino).is_empty()
            };
            let large: Vec<u32> = inodes.iter().copied().filter(has_nodes).collect();
            let ino = pick(rng, &large);
            let index = rng.below(edit.nodes(ino).len() as u64) as usize;
            edit.node(ino, index, |bytes| {
                let used = if rng.one_in(2) { 64.min(bytes.len()) } else { bytes.len() };
                fields(&mut bytes[..used], rng);
            });
            format!("node {index} of inode {ino}")
        }
        18 => {
            let path = if rng.one_in(2) { "/eablock" } else { "/eashared" };
            edit.attributes(path, |bytes| {
                let used = if rng.one_in(4) { bytes.len() } else { 96 };
                fields(&mut bytes[..used], rng);
            });
            format!("attributes of {path}")
        }
        _ if edit.geometry().inode_size > 128 => {
            edit.inode_attributes("/ea", |bytes| fields(bytes, rng));
            "attributes in /ea".to_owned()
        }
        _ => {
            edit.inode_bytes("/ea", |bytes| fields(bytes, rng));
            "inode of /ea".to_owned()
        }
    };
    (what, edit.finish())
}

/// Changes a field of the file system's superblock that leads to its journal's disk, or one of that disk's two
/// superblocks, which begins at byte `at`.
fn journal_device(edit: &mut Edit, at: u64, rng: &mut Rng) -> &'static str {
    match rng.below(3) {
        0 => {
            edit.superblock(|sb| {
                let bytes = zerocopy::IntoBytes::as_mut_bytes(sb);
                // From `s_journal_uuid` to `s_journal_dev`.
                fields(&mut bytes[0xD0..0xE8], rng);
            });
            "way to the journal"
        }
        1 => {
            // Its label, and what tools alone look at, are as long as all else.
            let mut bytes = edit.read(at + SUPERBLOCK_OFFSET, 256);
            fields(&mut bytes, rng);
            edit.write(at + SUPERBLOCK_OFFSET, &bytes);
            "superblock of the journal's disk"
        }
        _ => {
            let mut bytes = edit.read(at + 2 * SUPERBLOCK_OFFSET, 352);
            fields(&mut bytes, rng);
            edit.write(at + 2 * SUPERBLOCK_OFFSET, &bytes);
            "superblock of the journal"
        }
    }
}

/// The inodes in use. Those with their own blocks occur more often than their number would suggest.
fn inodes(edit: &Edit) -> Vec<u32> {
    let geometry = edit.geometry();
    let mut all = Vec::new();
    for group in 0..edit.groups() {
        let desc = edit.group_desc(group);
        // Bit 0 of the flags: the inode bitmap was never written.
        if desc.bg_flags.get() & 1 != 0 {
            continue;
        }
        let at = u64::from(desc.bg_inode_bitmap_lo.get()) * edit.block_size() as u64;
        let map = edit.read(at, edit.block_size());
        let first = group * geometry.inodes_per_group + 1;
        let used = (0..geometry.inodes_per_group).filter(|bit| bitmap::test(&map, *bit)).map(|bit| first + bit);
        all.extend(used.filter(|ino| *ino == InodeNr::ROOT.0 || *ino == InodeNr::JOURNAL.0 || *ino > 10));
    }
    // A few inodes that are free or have a special purpose.
    all.extend([1, InodeNr::RESIZE.0, edit.free_ino()]);
    all
}

/// Changes one to three fields.
fn fields(bytes: &mut [u8], rng: &mut Rng) {
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(bytes.len() as u64 / 4) as usize * 4;
        match rng.below(10) {
            0 => bytes[at + rng.below(4) as usize] = rng.next_u32() as u8,
            1 | 2 => bytes[at + rng.below(4) as usize] ^= 1 << rng.below(8),
            3 => set_word(bytes, at, u32::MAX),
            4 => set_word(bytes, at, 0),
            5 => set_word(bytes, at, rng.below(40_000) as u32),
            6 => set_half(bytes, at + 2 * rng.below(2) as usize, rng.below(2048) as u16),
            7 => set_half(bytes, at + 2 * rng.below(2) as usize, 0),
            8 => {
                let word = super::edit::word(bytes, at);
                set_word(bytes, at, if rng.one_in(2) { word.wrapping_add(1) } else { word.wrapping_sub(1) });
            }
            _ => {
                let from = rng.below(bytes.len() as u64 / 4) as usize * 4;
                bytes.copy_within(from..from + 4, at);
            }
        }
    }
}

/// Flips one to four bits.
fn flip(bytes: &mut [u8], bits: u64, rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        let bit = rng.below(bits) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Changes a field of one entry, or anything in the block.
fn entry(bytes: &mut [u8], rng: &mut Rng) {
    let mut starts = Vec::new();
    let mut at = 0;
    while at + 12 <= bytes.len() {
        starts.push(at);
        at += usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]])).max(8);
    }
    if rng.one_in(6) {
        let used = if rng.one_in(2) { 64 } else { bytes.len() };
        return fields(&mut bytes[..used], rng);
    }
    let at = starts[rng.below(starts.len() as u64) as usize];
    match rng.below(6) {
        0 => set_word(bytes, at, rng.below(3_000) as u32),
        1 => set_half(bytes, at + 4, rng.below(1_100) as u16),
        2 => bytes[at + 6] = rng.next_u32() as u8,
        3 => bytes[at + 7] = rng.below(9) as u8,
        4 => bytes[at + 8] = rng.next_u32() as u8,
        _ => {
            let end = (at + 32).min(bytes.len());
            fields(&mut bytes[at..end], rng);
        }
    }
}
