//! Inodes, with their checksums made right.
#![no_main]

use extant_ondisk::InodeNr;
use extant_ondisk::inode::{self, InodeDesc};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let geometry = extant_fuzz::geometry(extant_fuzz::byte(&mut data));
    let ino = InodeNr(u32::from(extant_fuzz::byte(&mut data)) + 1);
    let mut bytes = extant_fuzz::take(&mut data, geometry.inode_size);
    let _ = InodeDesc::decode(&bytes, ino, &geometry);
    inode::update_checksum(&mut bytes, ino, &geometry);
    let Ok(desc) = InodeDesc::decode(&bytes, ino, &geometry) else { return };
    let _ = desc.fast_symlink_target(&geometry);
    let _ = desc.device();
    if let Some(area) = desc.xattr_area(&geometry) {
        let _ = extant_ondisk::xattr::inode_area::parse_area(&bytes[area], ino);
    }
    desc.encode_into(&mut bytes, ino, &geometry).expect("a decoded inode can be encoded");
    InodeDesc::decode(&bytes, ino, &geometry).expect("and decoded again");
});
