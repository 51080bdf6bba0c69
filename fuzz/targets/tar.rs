//! Any bytes as a tar archive, plain or compressed: read to its end, with every file that it claims to have.
#![no_main]

use extant_build::source::{Options, Source};
use extant_build::tree::{Body, Id};
use libfuzzer_sys::fuzz_target;

/// The most that is read of a file: it may claim to have any size.
const READ_BYTES: u64 = 1 << 16;

/// Gives each header the checksum that belongs to it, so that the reader looks at its fields.
fn sign(archive: &mut [u8]) {
    for block in archive.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    let mut archive = data.to_vec();
    if flags & 1 != 0 {
        sign(&mut archive);
    }
    if flags & 2 != 0 {
        archive.extend_from_slice(&[0; 1024]);
    }
    let read = Source::tar_stream("f.tar".into(), Box::new(&archive[..]), Options::default());
    let Ok(source) = read else { return };
    let tree = &source.tree;
    let mut links = vec![0u32; tree.len()];
    for id in (0..tree.len() as u32).map(Id) {
        let mut before: Option<&[u8]> = None;
        for (name, entry) in tree.entries(id) {
            assert!(!name.is_empty() && name.len() <= 255 && !name.contains(&b'/') && !name.contains(&0));
            assert!(!matches!(name, b"." | b".."));
            assert!(before.is_none_or(|before| before < name), "names ascend");
            before = Some(name);
            links[entry.0 as usize] += 1;
        }
    }
    for id in (0..tree.len() as u32).map(Id) {
        let node = tree.node(id);
        assert_eq!(node.xattrs.map_or(1, |set| tree.xattrs(set).len()).min(1), 1);
        match &node.body {
            Body::File { size, sparse, content } => {
                assert_eq!(node.links, links[id.0 as usize]);
                let data = sparse.map_or(vec![0..*size], |sparse| tree.data(sparse).to_vec());
                assert!(data.iter().all(|range| range.start <= range.end && range.end <= *size));
                let file = source.content.open(*content).expect("a file");
                let read = (*size).min(READ_BYTES);
                let mut buf = vec![0; read as usize];
                for offset in [0, *size - read] {
                    file.read_at(offset, &mut buf).expect("stored data can be read");
                }
                file.finish().expect("the file did not change");
            }
            Body::Symlink(target) => assert!((1..4096).contains(&target.len())),
            _ => {}
        }
    }
});
