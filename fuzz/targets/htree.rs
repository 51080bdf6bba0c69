//! Index blocks of hashed directories, and the hashes.
#![no_main]

use extant_ondisk::dirent::DirBlockFormat;
use extant_ondisk::htree::{DxFormat, shape_of};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    let format = DxFormat { has_csum: flags & 1 != 0 };
    let at = usize::from(extant_fuzz::byte(&mut data));
    let block = extant_fuzz::take(&mut data, 1024);
    let _ = DirBlockFormat { has_filetype: true, has_csum: false, inodes_count: 5000, encrypted: false }.dots(&block);
    let Some(shape) = shape_of(&block) else { return };
    if let Ok((_, node)) = format.root(&block) {
        let i = node.search(0x1234_5678);
        node.child(i);
        let _ = node.validate(shape, 50);
    }
    if let Ok(node) = format.node(shape, &block) {
        let valid = node.validate(shape, 50).is_ok();
        let at = at % (node.count() + 1);
        let mut copy = block.clone();
        if valid && format.insert(&mut copy, shape, at.max(1), 0x7000_0000, 3).is_ok() {
            assert!(format.node(shape, &copy).is_ok());
        }
        let mut half = vec![0; 1024];
        let _ = format.upper_half(&block, &mut half);
    }
});
