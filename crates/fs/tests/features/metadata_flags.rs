//! All metadata requests carry META: on a device that drops data, images remain intact.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_block::BlockDevice;
use extant_block::device::{MemDevice, MetaOnlyDevice};
use extant_fs::{
    BorrowJournal, Cred, Draft, FallocateMode, Filesystem, InodeRef, MetaPolicy, MountOptions, Mounted, NewNode,
    SetAttr, SetMode, WriteFlags,
};

const KINDS: [&[&str]; 7] = [
    &["-t", "ext4"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext3"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext2"],
    &["-t", "ext4", "-O", "orphan_file,metadata_csum_seed"],
    &["-t", "ext4", "-I", "128", "-O", "^has_journal"],
];

fn create(fs: &Filesystem, dir: &InodeRef, name: &str, node: NewNode<'_>) -> InodeRef {
    fs.create(dir, name.as_bytes(), node, Cred::default()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Files with holes, so that their maps need blocks; directories, symbolic links, attributes. Some are removed, and
/// others reuse their blocks.
fn work(fs: &Filesystem) {
    let root = fs.root().expect("root");
    let content = vec![7; 30_000];
    for round in 0..3u64 {
        let dir = create(fs, &root, &format!("dir{round}"), NewNode::directory(0o755));
        for i in 0..200usize {
            let f = create(fs, &dir, &format!("file-with-a-long-name-{i:050}"), NewNode::file(0o644));
            fs.write(&f, 0, &content[..1 + 97 * i % 30_000], WriteFlags::default()).expect("write");
            if i % 16 == 0 {
                fs.set_xattr(&f, b"user.note", &[b'x'; 600], SetMode::Any).expect("attribute");
                fs.fsync(&f, false).expect("fsync");
            }
        }
        create(fs, &dir, "link", NewNode::symlink(&[b'l'; 300]));
        let sparse = create(fs, &root, &format!("sparse{round}"), NewNode::file(0o644));
        for i in 0..400 {
            fs.write(&sparse, i * 20_000, &[7; 5000], WriteFlags::default()).expect("write");
        }
        fs.fsync(&sparse, false).expect("fsync");
        fs.fallocate(&sparse, FallocateMode::PunchHole, 1 << 20, 1 << 20).expect("punched");
        let mut buf = vec![1; 50_000];
        fs.read(&sparse, 3 << 20, &mut buf).expect("read");
        if round > 0 {
            let gone = fs.lookup(&root, format!("sparse{}", round - 1).as_bytes()).expect("found");
            fs.setattr(&gone, &SetAttr { size: Some(12_345), ..SetAttr::default() }).expect("truncated");
            for i in (0..200).step_by(2) {
                let dir = fs.lookup(&root, format!("dir{}", round - 1).as_bytes()).expect("found");
                fs.unlink(&dir, format!("file-with-a-long-name-{i:050}").as_bytes()).expect("unlinked");
            }
        }
        fs.sync().expect("sync");
    }
}

/// Reads every name and every block of every map.
fn walk(fs: &Filesystem, dir: &InodeRef) -> usize {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let before = names.len();
        cookie = fs
            .read_dir(dir, cookie, |e| {
                names.push(e.name.to_vec());
                true
            })
            .expect("listed");
        if names.len() == before {
            break;
        }
    }
    let mut found = 0;
    for name in names.iter().filter(|n| !matches!(n.as_slice(), b"." | b".." | b"lost+found")) {
        let inode = fs.lookup(dir, name).expect("found");
        fs.list_xattrs(&inode).expect("attributes");
        found += 1;
        if inode.is_dir() {
            found += walk(fs, &inode);
        } else if inode.size() > 1000 {
            let mut buf = vec![0; inode.size() as usize];
            fs.read(&inode, 0, &mut buf).expect("read");
        }
    }
    found
}

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn mount(dev: &Arc<MetaOnlyDevice>, options: &MountOptions) -> Mounted {
    Filesystem::mount(dev.clone(), options.clone()).expect("mounted")
}

#[track_caller]
fn assert_kept(kind: &[&str], options: &MountOptions) {
    let below = Arc::new(tools::made(kind, "64M"));
    let dev = Arc::new(MetaOnlyDevice::new(below.clone()));
    let fs = mount(&dev, options);
    work(&fs);
    fs.unmount().unwrap_or_else(|e| panic!("{kind:?} {options:?}: {e}"));
    tools::assert_clean(&below);
    let fs = mount(&dev, options);
    let found = walk(&fs, &fs.root().expect("root"));
    assert_eq!(found, 3 * 202 - 200 + 3, "{kind:?} {options:?}");
    fs.unmount().expect("unmounted");
    assert!(dev.dropped().bytes > 3 * 200 * 1000 && below.resident_bytes() < 40 << 20, "{kind:?}");
    tools::assert_clean(&below);
}

#[test]
fn no_metadata_is_written_or_read_as_data() {
    for kind in KINDS {
        for borrow_journal in [BorrowJournal::IfClean, BorrowJournal::Never] {
            assert_kept(kind, &MountOptions { borrow_journal, ..options() });
        }
    }
}

/// Wherever the policy places map blocks, and whatever is read with them.
#[test]
fn no_policy_of_metadata_writes_or_reads_it_as_data() {
    for policy in MetaPolicy::ALL {
        for kind in [&KINDS[2], &KINDS[0]] {
            assert_kept(kind, &MountOptions { meta_policy: policy, ..options() });
        }
    }
}

/// A draft cannot know which of its new blocks are metadata.
#[test]
fn new_blocks_of_a_draft_count_as_metadata() {
    let below = Arc::new(tools::made(&["-t", "ext4"], "16M"));
    let dev = Arc::new(MetaOnlyDevice::new(below.clone()));
    let draft = Arc::new(Draft::new(dev.clone(), Arc::new(MemDevice::new(dev.size_bytes())), Clock::real()));
    let fs = Filesystem::mount(draft.clone(), options()).expect("mounted");
    fs.make_dirs(b"/a/b/c", 0o755, Cred::default()).expect("directories");
    fs.unmount().expect("unmounted");
    draft.commit().expect("committed");
    drop((fs, draft));
    mount(&dev, &options()).unmount().expect("replayed");
    tools::assert_clean(&below);
}
