//! Damaged images, mounted to read as much as possible. Intact files read as before, damaged ones fail on their own,
//! and nothing is written.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex};
use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{
    Cred, Error, Filesystem, InodeRef, Messages, MountOptions, Mounted, NewNode, Unsupported, WriteFlags,
    probe_superblock,
};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::superblock::Geometry;
use extant_ondisk::{BlockNr, GroupNr, InodeNr};

static SAID_CLASS: LockClass = LockClass::new("said", 250);

const FILES: usize = 40;
const FILE_BYTES: usize = 1 << 20;

fn content(i: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at / 64 * 31 + i * 7 + at) as u8).collect()
}

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

/// An image of 64 MiB with [`FILES`] in a directory, unmounted.
fn filled(args: &[&str]) -> MemDevice {
    let dev = Arc::new(tools::made(args, "64M"));
    let fs = Filesystem::mount(dev.clone(), options()).unwrap_or_else(|e| panic!("{args:?}: {e}"));
    let dir = fs.create(&fs.root().expect("root"), b"s", NewNode::directory(0o755), Cred::default()).expect("mkdir");
    for i in 0..FILES {
        let file = fs.create(&dir, format!("f{i}").as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
        fs.write(&file, 0, &content(i), WriteFlags::default()).expect("write");
    }
    drop(dir);
    fs.unmount().expect("unmount");
    dev.snapshot()
}

/// A mount for rescue, and its messages.
fn rescued(dev: &Arc<MemDevice>) -> (extant_fs::Result<Mounted>, String) {
    let said = Arc::new(Mutex::new(&SAID_CLASS, Vec::new()));
    let heard = Arc::clone(&said);
    let messages = Messages::new(move |line| heard.lock().push(line.to_owned()));
    let fs = Filesystem::mount(dev.clone(), MountOptions { rescue: true, messages, ..options() });
    let said = said.lock().join("\n");
    (fs, said)
}

/// The error of an ordinary read-only mount.
fn refused(dev: &Arc<MemDevice>) -> String {
    let fs = Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options() });
    fs.err().map(|e| e.to_string()).unwrap_or_default()
}

fn read_whole(fs: &Filesystem, file: &InodeRef) -> extant_fs::Result<Vec<u8>> {
    let mut bytes = vec![0; fs.getattr(file).size as usize];
    let mut at = 0;
    while at < bytes.len() {
        let n = fs.read(file, at as u64, &mut bytes[at..])?;
        assert!(n > 0, "an end before the size");
        at += n;
    }
    Ok(bytes)
}

/// The intact files. The others must fail: no read returns other than the written data.
fn whole(fs: &Filesystem) -> Vec<usize> {
    let read = |i: &usize| {
        let file = fs.walk(format!("/s/f{i}").as_bytes(), true)?;
        let bytes = read_whole(fs, &file)?;
        assert!(bytes == content(*i), "f{i} has other bytes");
        Ok::<_, Error>(())
    };
    (0..FILES).filter(|i| read(i).is_ok()).collect()
}

fn geometry(dev: &MemDevice) -> Geometry {
    probe_superblock(dev).expect("superblock").0.geometry().clone()
}

fn block(dev: &MemDevice, geo: &Geometry, nr: BlockNr) -> Vec<u8> {
    let mut bytes = vec![0; geo.block_size as usize];
    dev.read_at(nr.0 << geo.block_bits, &mut bytes, BioFlags::empty()).expect("memory");
    bytes
}

fn put(dev: &MemDevice, geo: &Geometry, nr: BlockNr, bytes: &[u8]) {
    dev.write_at(nr.0 << geo.block_bits, &[bytes], BioFlags::empty()).expect("memory");
}

/// The first bytes of a device.
fn cut(dev: &MemDevice, len: u64) -> Arc<MemDevice> {
    let short = MemDevice::new(len);
    let mut bytes = vec![0; 1 << 20];
    for at in (0..len).step_by(1 << 20) {
        let n = (len - at).min(1 << 20) as usize;
        dev.read_at(at, &mut bytes[..n], BioFlags::empty()).expect("memory");
        short.write_at(at, &[&bytes[..n]], BioFlags::empty()).expect("memory");
    }
    Arc::new(short)
}

/// Zeroes the slot of an inode.
fn wipe_inode(dev: &MemDevice, ino: InodeNr) {
    let geo = geometry(dev);
    let place = geo.inode_location(ino).expect("an inode");
    let (nr, at) = geo.group_desc_block(place.group).expect("a group");
    let desc = GroupDesc::parse(&block(dev, &geo, nr)[at..], place.group, &geo).expect("a descriptor");
    let nr = BlockNr(desc.inode_table.0 + u64::from(place.table_block));
    let mut bytes = block(dev, &geo, nr);
    bytes[place.offset..][..geo.inode_size].fill(0);
    put(dev, &geo, nr, &bytes);
}

#[test]
fn files_before_a_cut_are_readable() {
    for args in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext4", "-b", "4096"], &["-t", "ext3", "-b", "4096"]] {
        let dev = filled(args);
        let mut before = FILES;
        for mib in [60, 40, 20, 3] {
            let short = cut(&dev, mib << 20);
            let pristine = short.snapshot();
            let (fs, said) = rescued(&short);
            assert!(said.contains("data behind the device's end is lost"), "{args:?}: {said}");
            let there = whole(&fs.unwrap_or_else(|e| panic!("{args:?}, {mib} MiB: {e}"))).len();
            assert!(there <= before && (there > 0 || mib < 20), "{args:?}: {there} files of {mib} MiB");
            before = there;
            assert_eq!(short.first_difference(&pristine).expect("compared"), None);
        }
        assert!(before < FILES / 2);
        // While the journal is there, reading needs no rescue; writing is refused.
        let short = cut(&dev, 60 << 20);
        let fs = Filesystem::mount(short.clone(), MountOptions { read_only: true, ..options() }).expect("mounted");
        assert!(!whole(&fs).is_empty());
        let writing = Filesystem::mount(short, options()).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(writing.contains("on a device of"), "{writing}");
    }
}

/// Readahead past the cut must not fail a read before it.
#[test]
fn a_file_across_the_cut_is_readable_up_to_it() {
    let dev = Arc::new(tools::made(&["-t", "ext4", "-b", "4096"], "64M"));
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let file = fs.create(&fs.root().expect("root"), b"f", NewNode::file(0o644), Cred::default()).expect("create");
    fs.write(&file, 0, &vec![5; 30 << 20], WriteFlags::default()).expect("write");
    fs.fsync(&file, false).expect("synced");
    let end = fs.bmap(&file, 5000).expect("mapped").expect("a block");
    drop(file);
    fs.unmount().expect("unmount");
    let (fs, _) = rescued(&cut(&dev, end.0 << 12));
    let fs = fs.expect("mounted");
    let file = fs.walk(b"/f", true).expect("found");
    let mut buf = [0; 4096];
    for at in 0..4990 {
        assert_eq!(fs.read(&file, at * 4096, &mut buf).unwrap_or_else(|e| panic!("block {at}: {e}")), 4096);
        assert!(buf == [5; 4096]);
    }
    assert!(fs.read(&file, 5000 * 4096, &mut buf).is_err());
}

#[test]
fn an_image_without_its_journal_inode_is_readable() {
    let dev = Arc::new(filled(&["-t", "ext4", "-b", "4096"]));
    wipe_inode(&dev, InodeNr(8));
    assert!(refused(&dev).contains("journal"), "{}", refused(&dev));
    let (fs, said) = rescued(&dev);
    assert_eq!(whole(&fs.expect("mounted")).len(), FILES);
    assert!(said.contains("the log is not replayed"), "{said}");
}

/// An image whose log contains two transactions: one file is in the first, another in the second.
fn logged(args: &[&str]) -> (Arc<MemDevice>, Vec<BlockNr>) {
    let dev = Arc::new(filled(args));
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let root = fs.root().expect("root");
    for name in [b"first", b"other"] {
        let file = fs.create(&root, name, NewNode::file(0o644), Cred::default()).expect("create");
        fs.write(&file, 0, name, WriteFlags::default()).expect("write");
        fs.fsync(&file, false).expect("synced");
    }
    let crashed = Arc::new(dev.snapshot());
    let sb = fs.superblock();
    let map = extant_recovery::locate::journal_map(&*crashed, &sb, InodeNr(8)).expect("a journal");
    (crashed, map.blocks().collect())
}

#[test]
fn intact_transactions_of_a_damaged_log_are_used() {
    let (dev, log) = logged(&["-t", "ext4", "-b", "4096"]);
    let geo = geometry(&dev);
    // The last commit block of the log: the journal's blocks begin with its magic number, and the kind 2.
    let is_commit = |nr: &BlockNr| block(&dev, &geo, *nr)[..8] == [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2];
    let sequence = |nr: &BlockNr| block(&dev, &geo, *nr)[8..12].to_vec();
    let mut commits: Vec<BlockNr> = log.iter().copied().filter(is_commit).collect();
    commits.sort_by_key(sequence);
    let last = *commits.last().expect("a commit");
    let mut bytes = block(&dev, &geo, last);
    bytes[0x30] ^= 0x55;
    put(&dev, &geo, last, &bytes);
    assert!(commits.len() >= 2, "{commits:?}");
    assert!(refused(&dev).contains("journal"), "{}", refused(&dev));
    let (fs, said) = rescued(&dev);
    let fs = fs.expect("mounted");
    assert!(said.contains("of the log are whole, and used"), "{said}");
    assert!(fs.walk(b"/first", true).is_ok() && fs.walk(b"/other", true).is_err());
    assert_eq!(whole(&fs).len(), FILES);
    // And without it, after its superblock is lost.
    put(&dev, &geo, log[0], &vec![0; 4096]);
    let (fs, said) = rescued(&dev);
    assert!(said.contains("the log is not replayed, and its changes are missing"), "{said}");
    assert_eq!(whole(&fs.expect("mounted")).len(), FILES);
}

#[test]
fn an_intact_log_is_replayed_during_rescue() {
    let (dev, _) = logged(&["-t", "ext4", "-b", "1024"]);
    let (fs, said) = rescued(&dev);
    assert!(fs.expect("mounted").walk(b"/other", true).is_ok() && said.is_empty(), "{said}");
}

/// Neither the primary descriptors nor a copy are left: the tables are at mke2fs's places.
#[test]
fn files_are_readable_without_any_descriptor() {
    for args in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg"],
        &["-t", "ext3", "-b", "1024"],
    ] {
        let dev = Arc::new(filled(args));
        let geo = geometry(&dev);
        let backups: Vec<GroupNr> = geo.backup_groups().collect();
        for index in 0..geo.desc_blocks {
            for at in geo.desc_block_copies(index, &backups).collect::<Vec<_>>() {
                put(&dev, &geo, at, &vec![0; geo.block_size as usize]);
            }
        }
        assert!(refused(&dev).contains("descriptor"), "{args:?}: {}", refused(&dev));
        let (fs, said) = rescued(&dev);
        let fs = fs.unwrap_or_else(|e| panic!("{args:?}: {e}"));
        assert_eq!(whole(&fs).len(), FILES, "{args:?}: {said}");
        assert!(said.contains("group descriptors in block"), "{said}");
    }
}

/// A group without a usable descriptor loses its files.
#[test]
fn a_lost_group_loses_only_its_files() {
    let dev = Arc::new(filled(&["-t", "ext4", "-b", "1024", "-O", "^flex_bg", "-N", "256"]));
    let geo = geometry(&dev);
    let backups: Vec<GroupNr> = geo.backup_groups().collect();
    let fs = Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options() }).expect("mounted");
    let group =
        |path: &str| geo.inode_location(fs.walk(path.as_bytes(), true).expect("found").ino).expect("there").group;
    let lost = (0..FILES).map(|i| group(&format!("/s/f{i}"))).find(|g| g.0 > 0 && *g != group("/s")).expect("another");
    let (_, at) = geo.group_desc_block(lost).expect("a group");
    for nr in geo.desc_block_copies(0, &backups).collect::<Vec<_>>() {
        let mut bytes = block(&dev, &geo, nr);
        bytes[at..at + geo.desc_size].fill(0xEE);
        put(&dev, &geo, nr, &bytes);
    }
    // Its table is not at the expected place either.
    for [.., table] in geo.default_tables(lost) {
        put(&dev, &geo, table, &[0xEE; 1024]);
    }
    let (fs, said) = rescued(&dev);
    let fs = fs.expect("mounted");
    assert!(said.contains(&lost.to_string()), "{said}");
    let there = whole(&fs).len();
    assert!(there > 0 && there < FILES, "{there}");
    let e = fs.iget_by_number(geo.inode_at(lost, 2).expect("an inode")).expect_err("lost");
    assert!(e.to_string().contains("group descriptor"), "{e}");
    let _ = fs.statfs();
}

/// A superblock that claims two million groups, on a device with room for none of them. The device bounds the memory
/// of a mount.
#[test]
fn groups_that_only_the_superblock_claims_cost_nothing() {
    let dev = Arc::new(tools::made(&["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,^resize_inode,64bit"], "32M"));
    let mut bytes = vec![0; 4096];
    dev.read_at(0, &mut bytes, BioFlags::empty()).expect("memory");
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[1024 + at..][..4].try_into().expect("four"));
    let groups = 2_000_000u64;
    let per_group = 16u32;
    let blocks = groups * u64::from(word(&bytes, 0x20));
    for (at, value) in
        [(0x00, groups as u32 * per_group), (0x28, per_group), (0x04, blocks as u32), (0x150, (blocks >> 32) as u32)]
    {
        bytes[1024 + at..][..4].copy_from_slice(&value.to_le_bytes());
    }
    dev.write_at(0, &[&bytes], BioFlags::empty()).expect("memory");
    assert_eq!(u64::from(geometry(&dev).group_count), groups);
    let (fs, said) = rescued(&dev);
    let fs = fs.expect("mounted");
    assert!(fs.geometry().group_count < 100_000, "{} groups; {said}", fs.geometry().group_count);
    assert!(fs.statistics().fixed_bytes() < 64 << 20, "{} bytes", fs.statistics().fixed_bytes());
    let plain = Filesystem::mount(dev, MountOptions { read_only: true, ..options() });
    assert!(plain.is_err(), "no copy of the descriptors is intact");
}

#[test]
fn rescue_uses_a_superblock_with_a_bad_checksum_or_unknown_features() {
    // One group: no backup.
    let whole_image = tools::made(&["-t", "ext4", "-b", "4096"], "32M");
    let change = |at: usize, value: u8| {
        let dev = whole_image.snapshot();
        let mut bytes = vec![0; 4096];
        dev.read_at(0, &mut bytes, BioFlags::empty()).expect("memory");
        bytes[1024 + at] = value;
        dev.write_at(0, &[&bytes], BioFlags::empty()).expect("memory");
        Arc::new(dev)
    };
    for (at, value, said_of_it) in [(0x88, b'x', "checksum"), (0x62, 0x40, "FEATURE_I22")] {
        let dev = change(at, value);
        assert!(!refused(&dev).is_empty());
        let (fs, said) = rescued(&dev);
        assert!(fs.expect("mounted").walk(b"/lost+found", true).is_ok(), "{said}");
        assert!(said.contains(said_of_it) && said.contains("used nevertheless"), "{said}");
    }
}

#[test]
fn files_of_an_image_without_a_root_are_readable_by_number() {
    let dev = Arc::new(filled(&["-t", "ext4", "-b", "4096"]));
    let fs = Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options() }).expect("mounted");
    let ino = fs.walk(b"/s/f3", true).expect("found").ino;
    drop(fs);
    wipe_inode(&dev, InodeNr::ROOT);
    assert!(!refused(&dev).is_empty());
    let (fs, said) = rescued(&dev);
    let fs = fs.expect("mounted");
    assert!(said.contains("what is left is in /lost+found"), "{said}");
    let file = fs.iget_by_number(ino).expect("found");
    assert!(read_whole(&fs, &file).expect("read") == content(3));
}

/// A deleted file in ext2 can be read; an ordinary mount does not show it.
#[test]
fn a_deleted_file_is_readable_by_number() {
    let dev = filled(&["-t", "ext2", "-b", "4096"]);
    let fs = Filesystem::mount(Arc::new(dev.snapshot()), MountOptions { read_only: true, ..options() }).expect("mount");
    let ino = fs.walk(b"/s/f3", true).expect("found").ino;
    drop(fs);
    // The name and the link are removed, the map remains.
    let dev = Arc::new(tools::edited(&dev, &["unlink /s/f3", &format!("sif <{}> links_count 0", ino.0)]));
    let fs = Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options() }).expect("mounted");
    assert!(matches!(fs.iget_by_number(ino), Err(Error::Stale(_))));
    drop(fs);
    let (fs, _) = rescued(&dev);
    let fs = fs.expect("mounted");
    let file = fs.iget_by_number(ino).expect("found");
    assert!(read_whole(&fs, &file).expect("read") == content(3));
    drop(file);
    assert!(fs.iget_by_number(ino).is_ok(), "it remains after its last user released it");
}

/// As fscrypt makes it, as far as a mount without a key can see: flags, names of any bytes, a context.
#[test]
fn plain_files_of_an_encrypted_image_are_readable_and_encrypted_names_are_listed() {
    let dev = tools::made(&["-t", "ext4", "-b", "4096", "-O", "encrypt"], "32M");
    let dev = tools::edited(&dev, &["mkdir /secret", "write /etc/hostname /secret/name", "write /etc/hostname /plain"]);
    let dev = Arc::new(tools::edited(&dev, &["sif /secret flags 0x80800", "sif /secret/name flags 0x80800"]));
    // A name of other bytes, in place of the one of the same length.
    let geo = geometry(&dev);
    for nr in (1..geo.blocks_count).map(BlockNr) {
        let mut bytes = block(&dev, &geo, nr);
        let entry = [4, 1, b'n', b'a', b'm', b'e'];
        if let Some(at) = bytes.windows(6).position(|w| w == entry) {
            bytes[at + 2..at + 6].copy_from_slice(b"/\0\xff\xfe");
            let tail = bytes.len() - 12;
            let dir = tools::debugfs(&dev, "stat /secret");
            let field = |name: &str| {
                let rest = dir.split(name).nth(1).expect(name).trim_start_matches(':').trim_start();
                rest.split_whitespace().next().expect(name).parse::<u32>().expect(name)
            };
            let seed = geo.seed.for_inode(InodeNr(field("Inode:")), field("Generation:"));
            let sum = seed.checksum(&bytes[..tail]);
            bytes[tail + 8..].copy_from_slice(&sum.to_le_bytes());
            put(&dev, &geo, nr, &bytes);
        }
    }
    let fs = Filesystem::mount(dev, MountOptions { read_only: true, ..options() }).expect("mounted");
    let host = std::fs::read("/etc/hostname").expect("a file");
    assert_eq!(read_whole(&fs, &fs.walk(b"/plain", true).expect("found")).expect("read"), host);
    let secret = fs.walk(b"/secret", true).expect("found");
    let names: Vec<Vec<u8>> = fs.list(&secret).expect("listed").into_iter().map(|e| e.name).collect();
    assert_eq!(names, [b"LwD__g".to_vec()]);
    let file = fs.lookup(&secret, b"LwD__g").expect("found by its shown name");
    let e = read_whole(&fs, &file).expect_err("no key");
    assert!(matches!(e, Error::Unsupported(Unsupported::Content { .. })), "{e}");
    assert!(matches!(fs.lookup(&secret, b"name"), Err(Error::NotFound)));
}
