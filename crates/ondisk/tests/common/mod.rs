//! Making images with mke2fs and finding things in them.
#![allow(dead_code, reason = "each test file uses its part")]

use extant_ondisk::InodeNr;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::superblock::{Geometry, SUPERBLOCK_OFFSET, SuperBlock};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that goes away with its content.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("extant-ondisk-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A tree for `mke2fs -d`: directories, files, links short and long.
pub fn tree(at: &Path) {
    std::fs::create_dir_all(at.join("dir/below")).unwrap();
    std::fs::write(at.join("dir/file"), vec![7u8; 100_000]).unwrap();
    std::fs::write(at.join("empty"), b"").unwrap();
    std::os::unix::fs::symlink("short target", at.join("short")).unwrap();
    std::os::unix::fs::symlink("l".repeat(200), at.join("long")).unwrap();
    for i in 0..200 {
        std::fs::write(at.join(format!("dir/a rather long name for a file {i}")), b"x").unwrap();
    }
}

pub struct Image {
    pub scratch: Scratch,
    pub path: String,
    pub bytes: Vec<u8>,
}

pub fn make(arguments: &str, size: &str) -> Image {
    let scratch = Scratch::new();
    let path = scratch.0.join("image").to_str().unwrap().to_string();
    let from = scratch.0.join("tree");
    tree(&from);
    let mut all = vec!["-q", "-F", "-U", "6b2f0f1a-59c5-4f9d-9d3c-2f1b3a4c5d6e", "-d", from.to_str().unwrap()];
    all.extend(arguments.split_whitespace());
    all.extend([path.as_str(), size]);
    run("mke2fs", &all);
    let bytes = std::fs::read(&path).unwrap();
    Image { scratch, path, bytes }
}

impl Image {
    pub fn superblock(&self) -> SuperBlock {
        SuperBlock::decode(&self.bytes[SUPERBLOCK_OFFSET as usize..], SUPERBLOCK_OFFSET).unwrap()
    }

    pub fn block(&self, number: u64, geometry: &Geometry) -> &[u8] {
        let size = geometry.block_size as usize;
        &self.bytes[number as usize * size..][..size]
    }

    pub fn descs(&self, geometry: &Geometry) -> Vec<GroupDesc> {
        geometry
            .groups()
            .map(|group| {
                let (block, offset) = geometry.group_desc_block(group).unwrap();
                let bytes = &self.block(block.0, geometry)[offset..];
                let desc = GroupDesc::decode(bytes, group, geometry).unwrap();
                let mut again = bytes[..geometry.desc_size].to_vec();
                again[0] ^= 0xff;
                desc.encode_into(&mut again, group, geometry);
                assert_eq!(again, bytes[..geometry.desc_size], "descriptor of {group} changes when encoded");
                desc
            })
            .collect()
    }

    pub fn inode_bytes(&self, ino: InodeNr, descs: &[GroupDesc], geometry: &Geometry) -> &[u8] {
        let place = geometry.inode_location(ino).unwrap();
        let block = descs[place.group.0 as usize].inode_table.0 + u64::from(place.table_block);
        &self.block(block, geometry)[place.offset..][..geometry.inode_size]
    }
}
