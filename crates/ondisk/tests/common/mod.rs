//! Making images with mke2fs and finding things in them.
#![allow(dead_code, reason = "each test file uses its part")]

use extant_ondisk::InodeNr;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::superblock::{Geometry, SUPERBLOCK_OFFSET, SuperBlock};
use extant_oracle::{arg, mke2fs};
use std::path::{Path, PathBuf};

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
    pub dir: tempfile::TempDir,
    pub path: PathBuf,
    pub bytes: Vec<u8>,
}

pub fn make(arguments: &str, size: &str) -> Image {
    let dir = tempfile::tempdir().unwrap();
    let (path, from) = (dir.path().join("image"), dir.path().join("tree"));
    tree(&from);
    let mut all = vec!["-d", arg(&from)];
    all.extend(arguments.split_whitespace());
    mke2fs(&path, &all, size);
    let bytes = std::fs::read(&path).unwrap();
    Image { dir, path, bytes }
}

impl Image {
    /// As the file is now.
    pub fn again(self) -> Image {
        Image { bytes: std::fs::read(&self.path).unwrap(), ..self }
    }

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
