//! Features that mke2fs does not combine, and the kernel mounts together: `uninit_bg` beside `metadata_csum`, and
//! `resize_inode` beside `meta_bg`. Written in turns by Extant and the kernel; e2fsck finds nothing but the pair.

use extant_oracle::memory as tools;

use std::path::Path;
use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_fs::{Cred, Filesystem, GrowTo, InodeRef, MountOptions, Mounted, NewNode, WriteFlags, probe_superblock};
use extant_oracle::mount::{LoopMount, Mounted as _};

fn mount(dev: &Arc<MemDevice>) -> Mounted {
    let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
    Filesystem::mount(dev.clone(), options).expect("mounted for writing")
}

fn content(i: u32) -> Vec<u8> {
    vec![i as u8 + 1; 3000 + 500 * i as usize]
}

/// Makes directories in all groups, with files, and removes every third of the files.
fn fill(fs: &Filesystem, round: u32) {
    let root = fs.root().expect("root");
    for d in 0..12 {
        let name = format!("d{round}-{d}");
        let dir = fs.create(&root, name.as_bytes(), NewNode::directory(0o755), Cred::default()).expect("mkdir");
        for i in 0..30 {
            let f: InodeRef =
                fs.create(&dir, format!("f{i}").as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
            assert_eq!(fs.write(&f, 0, &content(i), WriteFlags::default()).expect("write"), content(i).len());
        }
        for i in (0..30).step_by(3) {
            fs.unlink(&dir, format!("f{i}").as_bytes()).expect("unlink");
        }
    }
}

/// The kernel reads what Extant wrote, and writes as much.
fn by_kernel(dev: &MemDevice, round: u32) -> Option<MemDevice> {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    dev.save(&path).expect("saved");
    let mounted = LoopMount::if_permitted(&path, &dir.path().join("mnt"), "")?;
    let at = |d: u32, name: &str| dir.path().join(format!("mnt/d{round}-{d}")).join(name);
    for d in 0..12 {
        for i in 0..30 {
            let (old, new) = (at(d, &format!("f{i}")), at(d, &format!("k{i}")));
            assert_eq!(read(&old), (i % 3 != 0).then(|| content(i)), "{old:?}");
            std::fs::write(new, content(i)).expect("written");
        }
    }
    mounted.unmount().expect("unmounted");
    Some(MemDevice::load(&path).expect("loaded"))
}

fn read(path: &Path) -> Option<Vec<u8>> {
    std::fs::read(path).ok()
}

/// e2fsck knows the pair for a fault, and counts otherwise because of it. Without the feature that means nothing here,
/// which `without` removes, it finds nothing.
fn assert_clean(dev: &MemDevice, without: &[&str]) {
    tools::assert_clean(&tools::edited(dev, without));
}

fn alternate(dev: MemDevice, without: &[&str]) -> Arc<MemDevice> {
    assert_clean(&dev, without);
    let mut dev = Arc::new(dev);
    for round in 0..2 {
        let fs = mount(&dev);
        fill(&fs, round);
        if round > 0 {
            let f = fs.walk(format!("d{}-3/k7", round - 1).as_bytes(), false).expect("written by the kernel");
            let mut bytes = vec![0; content(7).len()];
            assert_eq!(fs.read(&f, 0, &mut bytes).expect("read"), bytes.len());
            assert!(bytes == content(7));
        }
        fs.unmount().expect("unmount");
        assert_clean(&dev, without);
        let Some(changed) = by_kernel(&dev, round) else { return dev };
        assert_clean(&changed, without);
        dev = Arc::new(changed);
    }
    dev
}

#[test]
fn uninit_bg_has_no_meaning_beside_metadata_csum() {
    for args in [&["-b", "1024", "-g", "2048"][..], &["-b", "4096", "-O", "^64bit"]] {
        let made = tools::made(&[&["-t", "ext4"], args].concat(), "48M");
        let dev = tools::edited(&made, &["feature uninit_bg"]);
        let dev = alternate(dev, &["feature -uninit_bg"]);
        let sb = probe_superblock(&*dev).expect("superblock").0;
        assert!(sb.geometry().metadata_csum);
    }
}

#[test]
fn resize_inode_stays_beside_meta_bg_where_their_groups_do_not_meet() {
    for args in
        [&["-b", "1024", "-g", "1024"][..], &["-b", "1024", "-g", "1024", "-O", "^flex_bg,^metadata_csum,uninit_bg"]]
    {
        let made = tools::made(&[&["-t", "ext4"], args].concat(), "48M");
        let blocks = probe_superblock(&made).expect("superblock").0.desc_blocks;
        let without = &["feature -meta_bg", "set_super_value first_meta_bg 0"];
        let first = format!("set_super_value first_meta_bg {blocks}");
        let dev = alternate(tools::edited(&made, &[&first, "feature meta_bg"]), without);
        // Growth would need to decide between the two.
        let fs = mount(&dev);
        assert!(fs.grow(GrowTo::Bytes(64 << 20)).is_err());
        fs.unmount().expect("unmount");
        assert_clean(&dev, without);
        // With meta block groups, those of the resize inode's blocks that lie there count as free.
        let met = Arc::new(tools::edited(&made, &["set_super_value first_meta_bg 0", "feature meta_bg"]));
        let refused = Filesystem::mount(met, MountOptions::default()).err().expect("refused").to_string();
        assert!(refused.contains("meta_bg together with resize_inode"), "{refused}");
    }
}
