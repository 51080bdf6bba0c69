//! Group descriptors, and the bitmaps they describe.
#![no_main]

use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::{GroupNr, bitmap};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let geometry = extant_fuzz::geometry(extant_fuzz::byte(&mut data));
    let group = GroupNr(u32::from(extant_fuzz::byte(&mut data)) % geometry.group_count());
    let mut bytes = extant_fuzz::take(&mut data, geometry.desc_size);
    let _ = GroupDesc::decode(&bytes, group, &geometry);
    let Ok(desc) = GroupDesc::parse(&bytes, group, &geometry) else { return };
    desc.encode_into(&mut bytes, group, &geometry);
    if GroupDesc::decode(&bytes, group, &geometry).is_ok() {
        assert!(geometry.contains(desc.block_bitmap) && geometry.contains(desc.inode_bitmap));
    }
    let mut map = vec![0; geometry.block_size as usize];
    bitmap::init_block_bitmap(&mut map, group, [&desc], &geometry);
    let _ = desc.verify_block_bitmap(&map, group, &geometry);
    let _ = desc.verify_inode_bitmap(data, group, &geometry);
});
