//! The superblock, with its checksum made right.
#![no_main]

use extant_ondisk::features;
use extant_ondisk::superblock::{RawSuperBlock, SuperBlock};
use extant_ondisk::{GroupNr, InodeNr};
use libfuzzer_sys::fuzz_target;
use zerocopy::{FromBytes, IntoBytes};

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let mut bytes = extant_fuzz::superblock(extant_fuzz::byte(&mut data)).raw().as_bytes().to_vec();
    // Pairs of offset and value, so that the rest is mostly valid.
    while data.len() >= 4 {
        let [lo, hi, value, more] = extant_fuzz::take(&mut data, 4)[..] else { return };
        let at = usize::from(u16::from_le_bytes([lo, hi])) % 1023;
        bytes[at] = value;
        bytes[at + 1] ^= more;
    }
    let mut raw = RawSuperBlock::read_from_bytes(&bytes).expect("1024 bytes");
    raw.s_checksum = raw.compute_checksum().into();
    let Ok((superblock, _)) = SuperBlock::decode_damaged(raw.as_bytes(), 0) else { return };
    let _ = SuperBlock::decode(raw.as_bytes(), 0);
    let _ = features::check(&superblock);
    let geometry = superblock.geometry();
    let last = geometry.group_count() - 1;
    for group in [0, 1, last / 2, last, last.wrapping_add(1)].map(GroupNr) {
        geometry.base_metadata(group);
        geometry.group_desc_block(group);
        geometry.super_location(group);
        geometry.default_tables(group);
    }
    for ino in [0, 1, 2, 11, geometry.inodes_count, u32::MAX] {
        let _ = geometry.inode_location(InodeNr(ino));
    }
    let _ = geometry.check_device_size(8 << 20);
    geometry.overhead_blocks();
    let mut cut = geometry.clone();
    cut.cut_to(last / 2 + 1);
    cut.overhead_blocks();
});
