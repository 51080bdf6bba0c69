//! The reader against debugfs, on copies when the primaries are lost, and on a map that leads to itself. Needs
//! e2fsprogs.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr};
use extant_oracle::memory::{debugfs, edited, made};

use crate::read::{Error, Reader, Step, find_super};

/// The first inode of a new image that a file gets.
const FILE: InodeNr = InodeNr(12);
/// Its pieces: first logical block of 1 KiB, and how many.
const PIECES: [(u64, u64); 7] = [(0, 3), (11, 2), (200, 1), (267, 2), (300, 20), (700, 1), (900, 5)];

/// An image with one file that has holes.
fn with_file(options: &[&str], size: &str) -> MemDevice {
    let host = tempfile::NamedTempFile::new().expect("a file");
    for (first, blocks) in PIECES {
        host.as_file().write_all_at(&vec![b'x'; blocks as usize * 1024], first * 1024).expect("written");
    }
    let dev = made(&[options, &["-b", "1024"]].concat(), size);
    edited(&dev, &[&format!("write {} file", host.path().display())])
}

fn superblock(dev: &MemDevice) -> SuperBlock {
    find_super(dev, None, false).expect("a superblock").sb
}

/// The blocks of the file by their places in it, the blocks of its map, and the errors of the walk.
fn walked(dev: &MemDevice, sb: &SuperBlock) -> (BTreeMap<u64, u64>, u64, Vec<Error>) {
    let reader = Reader::new(dev, sb);
    let inode = reader.inode(FILE).expect("the inode");
    let (mut blocks, mut nodes, mut errors) = (BTreeMap::new(), 0, Vec::new());
    let seed = sb.metadata_csum.then(|| sb.checksum_seed().for_inode(FILE, inode.generation).raw());
    let walked = reader.walk(&inode, seed, &mut |step| {
        match step {
            Ok(Step::Run(run)) => {
                blocks.extend((0..u64::from(run.len)).map(|i| (u64::from(run.lblk.0) + i, run.pblk.0 + i)));
            }
            Ok(Step::Node(_)) => nodes += 1,
            Ok(Step::Damage(block, damage)) => return Err(format!("{block}: {damage}")),
            Err(e) => errors.push(e),
        }
        Ok(true)
    });
    walked.expect("sound nodes");
    (blocks, nodes, errors)
}

#[test]
fn maps_agree_with_those_of_debugfs() {
    for options in [&["-t", "ext4"][..], &["-t", "ext2"], &["-t", "ext4", "-O", "^metadata_csum,^64bit"]] {
        let dev = with_file(options, "24M");
        let sb = superblock(&dev);
        let (ours, nodes, errors) = walked(&dev, &sb);
        assert!(errors.is_empty(), "{options:?}: {errors:?}");
        let wanted: Vec<u64> = PIECES.iter().flat_map(|(first, blocks)| *first..first + blocks).collect();
        assert!(ours.keys().eq(&wanted), "{options:?}: {:?}", ours.keys());
        let requests: String = wanted.iter().map(|lblk| format!("bmap <{FILE}> {lblk}\n", FILE = FILE.0)).collect();
        let theirs = debugfs(&dev, &requests);
        let theirs = theirs.lines().filter_map(|line| line.trim().parse::<u64>().ok());
        assert!(ours.values().copied().eq(theirs), "{options:?}: {ours:?}");
        let inode = Reader::new(&dev, &sb).inode(FILE).expect("the inode");
        assert!(nodes > 0, "{options:?}");
        assert_eq!(inode.blocks, (ours.len() as u64 + nodes) * 2, "{options:?}");
    }
}

#[test]
fn copies_take_the_place_of_lost_primaries() {
    let dev = with_file(&["-t", "ext4"], "24M");
    let sb = superblock(&dev);
    let before = walked(&dev, &sb).0;
    // The superblock and the first block of descriptors behind it.
    dev.write_at(SUPERBLOCK_OFFSET, &[&[0xff; 2048]], BioFlags::empty()).expect("written");
    let found = find_super(&dev, None, false).expect("a backup");
    assert!(matches!(found.backup, Some((BlockNr(8193), Some(Error::Format(_))))));
    assert_eq!(found.sb.uuid(), sb.uuid());
    assert!(walked(&dev, &found.sb).0 == before);
    let reader = Reader::new(&dev, &found.sb);
    let intact = reader.backup_of(GroupNr(1)).expect("a backup");
    assert_eq!(reader.desc(GroupNr(1)).expect("a descriptor").inode_table, intact.inode_table);
    // The same copy by its name, and a place without one.
    let named = find_super(&dev, Some(8193 * 1024), false).expect("the copy");
    assert!(matches!(named.backup, Some((BlockNr(8193), None))));
    assert!(find_super(&dev, Some(8192 * 1024), false).is_err() && find_super(&dev, Some(1 << 60), true).is_err());
    let far = InodeNr(sb.inodes_count + 1);
    assert!(reader.inode(far).is_err() && reader.inode(InodeNr(0)).is_err());
}

#[test]
fn a_walk_over_a_map_that_leads_to_itself_ends() {
    let dev = with_file(&["-t", "ext2"], "4M");
    let sb = superblock(&dev);
    let pointers = Reader::new(&dev, &sb).inode(FILE).expect("the inode").i_block[48..52].to_vec();
    let block = u64::from(u32::from_le_bytes(pointers.clone().try_into().expect("a pointer")));
    let dev = edited(&dev, &[&format!("sif <{}> block[TIND] {block}", FILE.0)]);
    dev.write_at(block * 1024, &[&pointers.repeat(256)], BioFlags::empty()).expect("written");
    let (reader, mut nodes) = (Reader::new(&dev, &sb), 0);
    let inode = reader.inode(FILE).expect("the inode");
    let walked = reader.walk(&inode, None, &mut |step| {
        nodes += u64::from(matches!(step?, Step::Node(_)));
        Ok::<_, Error>(true)
    });
    let said = walked.expect_err("an endless map").to_string();
    assert!(said.contains("more nodes than there are blocks"), "{said}");
    assert_eq!(nodes, sb.blocks_count + 1);
}
