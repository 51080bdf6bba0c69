//! Copies of the superblock and of the group descriptors: without the primaries, a read-only mount shows every file
//! through any remaining copy. A writing mount fails, and its error gives the advice.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex};
use extant_block::device::{Fault, FaultyDevice, MemDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{Cred, Filesystem, Messages, MountOptions, Mounted, NewNode, WriteFlags, probe_superblock};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::superblock::{Geometry, SUPERBLOCK_OFFSET};
use extant_ondisk::{BlockNr, GroupNr};
use extant_recovery::read::find_super;

static SAID_CLASS: LockClass = LockClass::new("said", 250);

/// mke2fs arguments and size. Each has at least two groups.
const KINDS: [(&[&str], &str); 13] = [
    (&["-t", "ext4", "-b", "1024"], "24M"),
    (&["-t", "ext4", "-b", "4096"], "160M"),
    (&["-t", "ext4", "-b", "4096", "-O", "^flex_bg,^resize_inode,^64bit"], "160M"),
    (&["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,uninit_bg"], "160M"),
    (&["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"], "40M"),
    (&["-t", "ext4", "-b", "4096", "-O", "meta_bg,^resize_inode"], "160M"),
    (&["-t", "ext4", "-b", "4096", "-O", "sparse_super2"], "400M"),
    (&["-t", "ext4", "-b", "4096", "-O", "^sparse_super,^resize_inode"], "400M"),
    (&["-t", "ext3", "-b", "1024"], "24M"),
    (&["-t", "ext2", "-b", "4096"], "160M"),
    (&["-t", "ext4", "-b", "8192", "-g", "8192"], "200M"),
    (&["-t", "ext4", "-b", "16384", "-g", "4096"], "200M"),
    (&["-t", "ext4", "-b", "65536", "-g", "1024"], "200M"),
];

const FILES: [(&str, usize); 4] = [("a", 10), ("b", 5_000), ("d/c", 300_000), ("d/e", 0)];

fn content(name: &str, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + name.len() * 31) as u8 ^ name.as_bytes()[0]).collect()
}

/// An image with [`FILES`].
fn image(args: &[&str], size: &str) -> MemDevice {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::create_dir(dir.path().join("d")).expect("directory");
    for (name, len) in FILES {
        std::fs::write(dir.path().join(name), content(name, len)).expect("file");
    }
    tools::made(&[args, &["-d", dir.path().to_str().expect("UTF-8")]].concat(), size)
}

/// A mount, and its messages.
fn mount(dev: Arc<dyn BlockDevice>, options: MountOptions) -> (extant_fs::Result<Mounted>, Arc<Mutex<Vec<String>>>) {
    let said = Arc::new(Mutex::new(&SAID_CLASS, Vec::new()));
    let heard = Arc::clone(&said);
    let messages = Messages::new(move |line| heard.lock().push(line.to_owned()));
    let options = MountOptions { threads: false, seed: Some(1), messages, ..options };
    (Filesystem::mount(dev, options), said)
}

fn reading() -> MountOptions {
    MountOptions { read_only: true, ..MountOptions::default() }
}

fn assert_whole(fs: &Filesystem, what: &str) {
    for (name, len) in FILES {
        let file = fs.walk(format!("/{name}").as_bytes(), true).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        let mut buf = vec![0; len + 1];
        let n = fs.read(&file, 0, &mut buf).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        assert!(buf[..n] == content(name, len), "{what}: {name}");
    }
}

fn zero(dev: &MemDevice, from: u64, to: u64) {
    let (start, end) = (from / 4096 * 4096, to.next_multiple_of(4096));
    let mut bytes = vec![0; (end - start) as usize];
    dev.read_at(start, &mut bytes, BioFlags::empty()).expect("memory");
    bytes[(from - start) as usize..(to - start) as usize].fill(0);
    dev.write_at(start, &[&bytes], BioFlags::empty()).expect("memory");
}

fn block(dev: &MemDevice, geo: &Geometry, nr: BlockNr) -> Vec<u8> {
    let mut bytes = vec![0; geo.block_size as usize];
    dev.read_at(nr.0 << geo.block_bits, &mut bytes, BioFlags::empty()).expect("memory");
    bytes
}

fn desc(dev: &MemDevice, geo: &Geometry, group: GroupNr) -> GroupDesc {
    let (nr, at) = geo.group_desc_block(group).expect("a group");
    GroupDesc::decode(&block(dev, geo, nr)[at..], group, geo).expect("a good descriptor")
}

#[test]
fn files_are_read_through_backups_of_superblock_and_descriptors() {
    for (args, size) in KINDS {
        let whole = image(args, size);
        let geo = probe_superblock(&whole).expect("superblock").0.geometry().clone();
        let first = geo.groups().map(|g| desc(&whole, &geo, g)).map(|d| d.block_bitmap.min(d.inode_bitmap)).min();
        let table = desc(&whole, &geo, GroupNr(0)).inode_table;
        // The blocks before the bitmaps, and all blocks before the first inodes.
        for end in [first.expect("groups"), table] {
            let dev = Arc::new(whole.snapshot());
            zero(&dev, 0, end.0 << geo.block_bits);
            let (fs, said) = mount(dev.clone(), reading());
            let fs = fs.unwrap_or_else(|e| panic!("{args:?}: {e}"));
            assert_whole(&fs, &format!("{args:?} without the first {end} blocks"));
            let said = said.lock().join("\n");
            assert!(said.contains("using the backup superblock at block"), "{args:?}: {said}");
            assert!(said.contains("using those of the copy in block"), "{args:?}: {said}");
            let (writing, _) = mount(dev, MountOptions::default());
            let refused = writing.err().map(|e| e.to_string()).unwrap_or_default();
            assert!(refused.contains("is good: mount read-only (-o ro)"), "{args:?}: {refused}");
        }
    }
}

#[test]
fn each_descriptor_block_comes_from_an_intact_copy() {
    for (args, size) in KINDS {
        let whole = image(args, size);
        let geo = probe_superblock(&whole).expect("superblock").0.geometry().clone();
        let places: Vec<BlockNr> = (0..geo.desc_blocks).filter_map(|i| geo.desc_table_block(i)).collect();
        let damage = |bytes: &mut Vec<u8>, slot: usize| bytes[slot * geo.desc_size..][..geo.desc_size].fill(0xEE);
        for (index, at) in places.iter().enumerate() {
            let dev = Arc::new(whole.snapshot());
            let mut bytes = block(&dev, &geo, *at);
            damage(&mut bytes, 0);
            dev.write_at(at.0 << geo.block_bits, &[&bytes], BioFlags::empty()).expect("memory");
            let copies = geo.desc_block_copies(index as u32, &geo.backup_groups().collect::<Vec<_>>()).count();
            let (fs, said) = mount(dev.clone(), reading());
            if copies == 1 {
                // The last metagroup of an image may have no second group.
                assert!(fs.is_err(), "{args:?}: block {at}");
                continue;
            }
            assert_whole(&fs.unwrap_or_else(|e| panic!("{args:?}: {e}")), &format!("{args:?} without {at}"));
            let said = said.lock().join("\n");
            let names = format!("group descriptors in block {}: group descriptor: group ", at.0);
            assert!(said.contains(&names), "{args:?}: {said}");
            let (writing, _) = mount(dev, MountOptions::default());
            let refused = writing.err().map(|e| e.to_string()).unwrap_or_default();
            let reasons =
                ["backup group descriptors are good: mount read-only (-o ro)", "cannot be mounted for writing"];
            assert!(reasons.iter().any(|reason| refused.contains(reason)), "{args:?}: {refused}");
        }
    }
}

/// The primary lacks one group's descriptor, the first copy another group's.
#[test]
fn descriptors_of_one_block_come_from_several_copies() {
    let dev = Arc::new(image(&["-t", "ext4", "-b", "1024"], "48M"));
    let geo = probe_superblock(&*dev).expect("superblock").0.geometry().clone();
    let backups: Vec<_> = geo.backup_groups().collect();
    for (slot, at) in geo.desc_block_copies(0, &backups).take(3).enumerate() {
        let mut bytes = block(&dev, &geo, at);
        bytes[slot * geo.desc_size..][..geo.desc_size].fill(0xEE);
        dev.write_at(at.0 << geo.block_bits, &[&bytes], BioFlags::empty()).expect("memory");
    }
    let (fs, _) = mount(dev, reading());
    assert_whole(&fs.expect("mounted"), "each copy lacks one");
}

#[test]
fn unreadable_descriptors_come_from_a_copy() {
    let dev = Arc::new(image(&["-t", "ext4", "-b", "4096"], "160M"));
    let faulty = Arc::new(FaultyDevice::new(dev));
    faulty.inject(Fault::eio().range(4096..8192));
    let (fs, said) = mount(faulty, reading());
    assert_whole(&fs.expect("mounted"), "an unreadable descriptor block");
    assert!(said.lock().join("\n").contains("using those of the copy in block 32769"));
}

#[test]
fn the_requested_superblock_is_used() {
    let dev = Arc::new(image(&["-t", "ext4", "-b", "4096"], "160M"));
    let at = |block: u64| MountOptions { superblock: Some(block * 4096), ..reading() };
    let (fs, said) = mount(dev.clone(), at(32768));
    assert_whole(&fs.expect("mounted"), "the copy of group 1");
    let said = said.lock().join("\n");
    assert!(said.contains("using the backup superblock at block 32768, as requested"), "{said}");
    assert!(said.contains("using those of the copy in block 32769"), "{said}");
    assert_eq!(find_super(&*dev, Some(32768 * 4096), false).expect("found").backup.expect("a copy").0, BlockNr(32768));
    // The primary's own place is not a backup, and permits writing.
    let (fs, said) =
        mount(dev.clone(), MountOptions { superblock: Some(SUPERBLOCK_OFFSET), ..MountOptions::default() });
    assert!(!fs.expect("mounted").is_read_only() && said.lock().is_empty());
    for (wrong, why) in [(1, "magic"), (32767, "magic"), (1 << 40, "too small")] {
        let refused = mount(dev.clone(), at(wrong)).0.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.contains(why), "{wrong}: {refused}");
    }
    let (writing, _) = mount(dev, MountOptions { read_only: false, ..at(32768) });
    let refused = writing.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(refused.contains("the backup superblock at block 32768"), "{refused}");
}

/// Only the primary records whether the log needs replay. Without it, the log itself decides.
#[test]
fn a_log_is_replayed_when_only_a_backup_superblock_is_left() {
    for args in [&["-t", "ext4", "-b", "4096"][..], &["-t", "ext3", "-b", "4096"]] {
        let dev = Arc::new(image(args, "160M"));
        let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        let root = fs.root().expect("root");
        let file = fs.create(&root, b"logged", NewNode::file(0o644), Cred::default()).expect("create");
        fs.write(&file, 0, b"only in the log", WriteFlags::default()).expect("write");
        fs.sync_names().expect("logged");
        fs.fsync(&file, false).expect("synced");
        let crashed = Arc::new(dev.snapshot());
        zero(&crashed, 0, 8192);
        let before = crashed.snapshot();
        let (fs, said) = mount(crashed.clone(), reading());
        let fs = fs.expect("mounted");
        assert_whole(&fs, "after the crash");
        let mut buf = [0; 15];
        let n = fs.read(&fs.walk(b"/logged", true).expect("replayed"), 0, &mut buf).expect("read");
        assert_eq!(&buf[..n], b"only in the log", "{args:?}");
        let said = said.lock().join("\n");
        assert!(said.contains("which are replayed in memory"), "{said}");
        assert_eq!(crashed.first_difference(&before).expect("compared"), None);
    }
}

/// The journal's inode is lost with the primary superblock: files are readable nevertheless, and a message reports
/// the loss.
#[test]
fn a_mount_with_a_backup_superblock_works_without_the_journal() {
    let dev = Arc::new(image(&["-t", "ext4", "-b", "4096"], "160M"));
    let geo = probe_superblock(&*dev).expect("superblock").0.geometry().clone();
    let table = desc(&dev, &geo, GroupNr(0)).inode_table.0 * 4096;
    zero(&dev, table + 7 * 256, table + 8 * 256);
    zero(&dev, 0, 4096);
    let (fs, said) = mount(dev, reading());
    assert_whole(&fs.expect("mounted"), "without a journal");
    let said = said.lock().join("\n");
    assert!(said.contains("the log is not replayed, and its changes are missing"), "{said}");
}

#[test]
fn a_clean_image_is_mounted_without_messages() {
    for (args, size) in KINDS {
        let (fs, said) = mount(Arc::new(image(args, size)), reading());
        assert_whole(&fs.expect("mounted"), &format!("{args:?}"));
        assert!(said.lock().is_empty(), "{args:?}: {said:?}");
    }
}
