//! The format's limits: link counts of directories, sparse files to the last block, names of 255 bytes, a full disk.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_fs::{Cred, Error, Filesystem, MountOptions, Mounted, NewNode, SetAttr, WriteFlags};

fn mounted(args: &[&str], size: &str) -> (Arc<MemDevice>, Mounted) {
    let dev = Arc::new(tools::made(args, size));
    let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    (dev, fs)
}

#[test]
fn a_directory_may_have_more_subdirectories_than_links_can_count() {
    const DIRS: u32 = 65_010;
    let (dev, fs) = mounted(&["-t", "ext4", "-N", "80000", "-b", "1024"], "400M");
    let root = fs.root().expect("root");
    let top = fs.create(&root, b"top", NewNode::directory(0o755), Cred::default()).expect("mkdir");
    for i in 0..DIRS {
        fs.create(&top, format!("{i}").as_bytes(), NewNode::directory(0o755), Cred::default())
            .unwrap_or_else(|e| panic!("directory {i}: {e}"));
    }
    assert_eq!(fs.getattr(&top).nlink, 1, "beyond 65000 the count says 1");
    drop((top, root));
    fs.unmount().expect("unmount");
    tools::assert_clean(&dev);
    let fs = Filesystem::mount(dev.clone(), MountOptions { threads: false, ..Default::default() }).expect("mounted");
    let top = fs.walk(b"top", true).expect("top");
    for i in 0..DIRS {
        fs.rmdir(&top, format!("{i}").as_bytes()).unwrap_or_else(|e| panic!("directory {i}: {e}"));
    }
    fs.rmdir(&fs.root().expect("root"), b"top").expect("rmdir");
    drop(top);
    fs.unmount().expect("unmount");
    tools::assert_clean(&dev);
}

#[test]
fn a_file_has_at_most_65000_names() {
    let (dev, fs) = mounted(&["-t", "ext4"], "64M");
    let root = fs.root().expect("root");
    let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
    for i in 1..65_000 {
        fs.link(&f, &root, format!("l{i}").as_bytes()).unwrap_or_else(|e| panic!("link {i}: {e}"));
    }
    assert!(matches!(fs.link(&f, &root, b"one more"), Err(Error::TooManyLinks)));
    drop((root, f));
    fs.unmount().expect("unmount");
    tools::assert_clean(&dev);
}

#[test]
fn sparse_files_reach_the_formats_last_byte() {
    for (args, bs) in [
        (&["-t", "ext4", "-b", "4096"][..], 4096u64),
        (&["-t", "ext4", "-b", "1024"], 1024),
        (&["-t", "ext3", "-b", "1024"], 0),
    ] {
        let (dev, fs) = mounted(args, "64M");
        let root = fs.root().expect("root");
        let f = fs.create(&root, b"sparse", NewNode::file(0o644), Cred::default()).expect("create");
        let max = if bs > 0 { bs * ((1u64 << 32) - 1) } else { fs.geometry().max_indirect_file_size() };
        fs.write(&f, max - 10, &[7; 10], WriteFlags::default()).unwrap_or_else(|e| panic!("{args:?}: {e}"));
        assert!(matches!(fs.write(&f, max, &[7], WriteFlags::default()), Err(Error::FileTooBig)));
        assert_eq!(fs.write(&f, max - 4, &[8; 10], WriteFlags::default()).expect("cut"), 4);
        let too_big = SetAttr { size: Some(max + 1), ..Default::default() };
        assert!(matches!(fs.setattr(&f, &too_big), Err(Error::FileTooBig)));
        assert_eq!(fs.getattr(&f).size, max);
        let mut buf = [0; 20];
        assert_eq!(fs.read(&f, max - 12, &mut buf).expect("read"), 12);
        assert_eq!(&buf[..12], &[0, 0, 7, 7, 7, 7, 7, 7, 8, 8, 8, 8]);
        drop((root, f));
        fs.unmount().expect("unmount");
        tools::assert_clean(&dev);
    }
}

#[test]
fn a_full_disk_fails_the_write_and_loses_nothing() {
    for args in [&["-t", "ext4"][..], &["-t", "ext3", "-b", "1024"], &["-t", "ext2"]] {
        let (dev, fs) = mounted(args, "16M");
        let root = fs.root().expect("root");
        let mut written = Vec::new();
        let e = 'full: loop {
            let n = written.len();
            let f = match fs.create(&root, format!("f{n}").as_bytes(), NewNode::file(0o644), Cred::default()) {
                Ok(f) => f,
                Err(e) => break e,
            };
            let mut size = 0u64;
            for _ in 0..8 {
                match fs.write(&f, size, &[n as u8 + 1; 50_000], WriteFlags::default()) {
                    Ok(k) => size += k as u64,
                    Err(e) => {
                        written.push(size);
                        break 'full e;
                    }
                }
            }
            written.push(size);
        };
        assert!(matches!(e, Error::NoSpace | Error::NoInodes), "{args:?}: {e}");
        fs.sync().expect("what was accepted can be written");
        // Removed files free their space at once, without an explicit commit.
        fs.unlink(&root, b"f0").expect("unlink");
        let again = fs.create(&root, b"again", NewNode::file(0o644), Cred::default()).expect("create");
        fs.write(&again, 0, &[0xEE; 100_000], WriteFlags::default()).expect("the freed space is usable at once");
        drop((again, root));
        fs.unmount().expect("unmount");
        tools::assert_clean(&dev);
        let fs =
            Filesystem::mount(dev.clone(), MountOptions { threads: false, ..Default::default() }).expect("mounted");
        for (n, size) in written.iter().enumerate().skip(1) {
            let f = fs.walk(format!("f{n}").as_bytes(), true).expect("there");
            assert_eq!(fs.getattr(&f).size, *size);
            let mut buf = vec![0; *size as usize];
            fs.read(&f, 0, &mut buf).expect("read");
            assert!(buf.iter().all(|b| *b == n as u8 + 1), "{args:?}: f{n}");
        }
    }
}
