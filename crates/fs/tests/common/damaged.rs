//! Images whose structures a test damages, byte by byte.
#![allow(dead_code)] // each test binary uses its part

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{Filesystem, InodeRef, MountOptions, Mounted, OnError};
use extant_ondisk::extent::NodeRef;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::{InodeDesc, update_checksum};
use extant_ondisk::superblock::{Geometry, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr};

use extant_oracle::memory as tools;

pub const KINDS: [&[&str]; 3] = [
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext3", "-b", "1024"],
];

pub fn options() -> MountOptions {
    MountOptions {
        threads: false,
        seed: Some(1),
        cache_bytes: 16 << 20,
        errors: Some(OnError::Continue),
        ..MountOptions::default()
    }
}

pub fn made(kind: &[&str], fill: impl FnOnce(&Filesystem, &InodeRef)) -> Arc<MemDevice> {
    let dev = Arc::new(tools::made(kind, "20M"));
    let fs = Filesystem::mount(dev.clone(), options()).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    fill(&fs, &fs.root().expect("root"));
    fs.unmount().expect("unmount");
    dev
}

pub fn mount(dev: &Arc<MemDevice>) -> (Mounted, InodeRef) {
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let root = fs.root().expect("root");
    (fs, root)
}

pub fn super_of(dev: &MemDevice) -> SuperBlock {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    dev.read_at(1024, &mut bytes, BioFlags::empty()).expect("memory");
    SuperBlock::decode(&bytes, 1024).expect("superblock")
}

pub fn block(dev: &MemDevice, geo: &Geometry, nr: BlockNr) -> Vec<u8> {
    let mut bytes = vec![0; geo.block_size as usize];
    dev.read_at(nr.0 * bytes.len() as u64, &mut bytes, BioFlags::empty()).expect("memory");
    bytes
}

pub fn put(dev: &MemDevice, nr: BlockNr, bytes: &[u8]) {
    dev.write_at(nr.0 * bytes.len() as u64, &[bytes], BioFlags::empty()).expect("memory");
}

pub fn desc(dev: &MemDevice, geo: &Geometry, group: GroupNr) -> GroupDesc {
    let (nr, offset) = geo.group_desc_block(group).expect("there");
    GroupDesc::decode(&block(dev, geo, nr)[offset..], group, geo).expect("descriptor")
}

pub fn edit_inode(dev: &MemDevice, ino: InodeNr, f: impl FnOnce(&mut [u8])) {
    let sb = super_of(dev);
    let geo = sb.geometry();
    let place = geo.inode_location(ino).expect("place");
    let nr = BlockNr(desc(dev, geo, place.group).inode_table.0 + u64::from(place.table_block));
    let mut bytes = block(dev, geo, nr);
    let slot = &mut bytes[place.offset..place.offset + geo.inode_size];
    f(slot);
    update_checksum(slot, ino, geo);
    put(dev, nr, &bytes);
}

/// The physical block of the first logical one.
pub fn first_block(dev: &MemDevice, ino: InodeNr) -> BlockNr {
    mapped(dev, ino, 0)
}

/// The physical block of a logical one in the inode's own pointers or extents.
pub fn mapped(dev: &MemDevice, ino: InodeNr, lblk: u32) -> BlockNr {
    let mut found = None;
    edit_inode(dev, ino, |slot| {
        let inode = InodeDesc::parse(slot, ino, super_of(dev).geometry()).expect("inode");
        found = Some(if inode.has_extents() {
            let root = NodeRef::parse(&inode.i_block, 0).expect("root");
            let all = (0..root.len()).map(|i| root.extent(i).expect("an extent"));
            let of = |e: &extant_ondisk::extent::Extent| (e.lblk.0..e.lblk.0 + e.len).contains(&lblk);
            let extent = all.clone().find(of).expect("mapped");
            BlockNr(extent.pblk.0 + u64::from(lblk - extent.lblk.0))
        } else {
            let pointer = &inode.i_block[lblk as usize * 4..][..4];
            BlockNr(u64::from(u32::from_le_bytes(pointer.try_into().expect("4 bytes"))))
        });
    });
    found.expect("found")
}
