//! Attributes in inodes and in blocks, and access control lists.
#![no_main]

use extant_ondisk::xattr::{XattrBlock, inode_area};
use extant_ondisk::{BlockNr, InodeNr, acl};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    let seed = (flags & 1 != 0).then_some(9);
    if let Ok(acl) = acl::from_disk(data) {
        assert_eq!(acl::from_disk(&acl::to_disk(&acl)).ok(), Some(acl));
    }
    let _ = acl::from_xattr(data);
    let mut bytes = extant_fuzz::take(&mut data, if flags & 2 != 0 { 96 } else { 1024 });
    // The search gains nothing from the magic number, so it is given.
    bytes[..4].copy_from_slice(&0xEA02_0000u32.to_le_bytes());
    if let Ok(list) = inode_area::decode(&bytes, InodeNr(12)) {
        let mut area = vec![0; bytes.len() * 2];
        inode_area::encode(&list, &mut area).expect("twice the room");
        assert_eq!(inode_area::decode(&area, InodeNr(12)).map(|l| l.len()).ok(), Some(list.len()));
    }
    if let Ok(block) = XattrBlock::parse(&bytes, BlockNr(30), seed) {
        let Ok(mut list) = block.to_list() else { return };
        list.sort_for_block();
        let _ = list.stored_len();
    }
});
