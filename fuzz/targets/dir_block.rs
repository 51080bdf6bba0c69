//! Directory leaves: listed, searched, added to, removed from.
#![no_main]

use extant_ondisk::dirent::DirBlockFormat;
use extant_ondisk::inode::FileType;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    let format = DirBlockFormat { has_filetype: flags & 1 != 0, has_csum: flags & 2 != 0, inodes_count: 5000, encrypted: flags & 4 != 0 };
    let name = extant_fuzz::take(&mut data, usize::from(flags) % 255 + 1);
    let mut block = extant_fuzz::take(&mut data, 1024);
    let mut offsets = Vec::new();
    let sound = format.entries(&block).take(1024).all(|e| e.is_ok());
    for entry in format.entries(&block).take(1024) {
        let Ok(entry) = entry else { break };
        assert!(entry.name.len() <= 255);
        offsets.push(entry.offset);
    }
    let _ = format.dots(&block);
    let _ = format.find(&block, &name);
    if sound
        && let Ok(extant_ondisk::dirent::Insert::Done { .. }) =
            format.insert(&mut block, &name, 77, Some(FileType::Regular))
    {
        assert!(format.find(&block, &name).is_ok_and(|f| f.is_some()));
    }
    for offset in offsets {
        let _ = format.entry_at(&block, offset);
        let _ = format.set_inode(&mut block, offset, 78, Some(FileType::Regular));
        let _ = format.remove(&mut block, offset);
    }
});
