//! Nodes of extent trees, and blocks of pointers.
#![no_main]

use extant_ondisk::BlockNr;
use extant_ondisk::extent::{NodeMut, NodeRef};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    let mut bytes = extant_fuzz::take(&mut data, if flags & 1 != 0 { 60 } else { 1024 });
    let valid = |block: BlockNr, len: u32| block.0 > 0 && block.0 + u64::from(len) <= 8192;
    let _ = extant_ondisk::indirect::validate(&bytes, 9, |b| valid(b, 1));
    let Ok(node) = NodeRef::parse(&bytes, 7) else { return };
    let depth = node.depth();
    let good = node.validate(depth, 7, valid).is_ok();
    for at in [0, 1, 1000, u32::MAX] {
        let _ = node.search(at).map(|i| (node.extent(i), node.index(i), node.key(i)));
    }
    let _ = node.checksum(1);
    let entries: Vec<_> = node.raw_entries().collect();
    if good && let Ok(mut node) = NodeMut::parse(&mut bytes, 7) {
        for raw in entries.iter().take(3) {
            let _ = node.insert(0, raw);
            let _ = node.remove(node.view().len() / 2);
        }
        node.seal(Some(5));
    }
});
