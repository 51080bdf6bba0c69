//! Tests against the kernel, e2fsck and debugfs: Extant reads the attributes that they wrote, and they read and accept
//! those that Extant wrote.
//!
//! The tests with the kernel need the permission to mount loop devices. Without it they print a message and pass.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use extant_oracle::mount::{LoopMount, Mounted};
use extant_oracle::{arg, debugfs, expect_clean, mke2fs, tool};

use super::image_store::{Geometry, ImageInode};
use super::*;

struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn new(mkfs: &[&str]) -> Fixture {
        let f = Fixture { dir: tempfile::tempdir().unwrap() };
        mke2fs(f.image(), mkfs, "8M");
        f
    }

    /// Runs `work` on the loop-mounted image. Returns false if mounting is not permitted here.
    fn with_kernel(&self, work: impl FnOnce(&Path)) -> bool {
        let mnt = self.dir.path().join("mnt");
        let Some(mount) = LoopMount::if_permitted(&self.image(), &mnt, "") else { return false };
        work(&mnt);
        mount.unmount().unwrap();
        true
    }

    fn fsck(&self) {
        expect_clean(self.image()).unwrap();
    }
}

fn ino_of(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).unwrap().ino() as u32
}

fn setfattr(path: &Path, name: &str, value: &[u8]) {
    let hex: String = value.iter().map(|b| format!("{b:02x}")).collect();
    tool("setfattr", &["-n", name, "-v", &format!("0x{hex}"), arg(path)]);
}

/// All attributes of a path as the kernel reports them: (name, value in hex).
fn getfattr(path: &Path) -> Vec<(String, String)> {
    let text = tool("getfattr", &["-d", "-m", "-", "-e", "hex", "--absolute-names", arg(path)]);
    let mut all: Vec<_> = text
        .lines()
        .filter_map(|l| l.split_once("=0x").or_else(|| l.split_once('=')))
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect();
    all.sort();
    all
}

fn ours(inode: &ImageInode<'_>) -> Vec<(String, String)> {
    let mut all: Vec<_> = list(inode)
        .unwrap()
        .into_iter()
        .map(|n| {
            let value = get(inode, &n).unwrap().iter().map(|b| format!("{b:02x}")).collect();
            (String::from_utf8(n).unwrap(), value)
        })
        .collect();
    all.sort();
    all
}

const KINDS: [&[&str]; 5] = [
    &["-t", "ext2", "-I", "128", "-b", "1024"],
    &["-t", "ext3", "-I", "256", "-b", "1024"],
    &["-t", "ext4", "-I", "256", "-b", "1024"],
    &["-t", "ext4", "-I", "128", "-b", "4096"],
    &["-t", "ext4", "-I", "512", "-b", "4096", "-O", "metadata_csum_seed"],
];

#[test]
fn attributes_of_the_kernel_are_read() {
    for mkfs in KINDS {
        let f = Fixture::new(mkfs);
        let mut expected = Vec::new();
        let mounted = f.with_kernel(|mnt| {
            for i in 0..24usize {
                let path = mnt.join(format!("f{i}"));
                if i % 4 == 3 {
                    std::fs::create_dir(&path).unwrap()
                } else {
                    std::fs::write(&path, b"x").unwrap()
                }
                for k in 0..i % 7 {
                    let prefix = ["user", "trusted", "security"][k % 3];
                    let value: Vec<u8> = (0..(i * k * 3) % 130).map(|b| b as u8).collect();
                    setfattr(&path, &format!("{prefix}.n{}", "y".repeat(k * 5)), &value);
                }
                if i % 3 == 0 {
                    tool("setfacl", &["-m", "u:1000:rw,g:70000:r,m::rw", arg(&path)]);
                }
                if i % 4 == 3 {
                    tool("setfacl", &["-d", "-m", "u:5:rwx,o::-", arg(&path)]);
                }
                expected.push((ino_of(&path), getfattr(&path)));
            }
            // As much as fits in one block, and a name with bytes above 0x7f.
            let path = mnt.join("big");
            std::fs::write(&path, b"x").unwrap();
            setfattr(&path, "user.big", &[0x5A; 900]);
            expected.push((ino_of(&path), getfattr(&path)));
        });
        if !mounted {
            return;
        }
        let g = Geometry::open(&f.image());
        let mut seen = 0;
        for (ino, attributes) in &expected {
            seen += attributes.len();
            assert_eq!(&ours(&ImageInode::new(&g, *ino)), attributes, "{mkfs:?} inode {ino}");
        }
        assert!(seen > 60, "the oracle itself saw {seen} attributes");
    }
}

#[test]
fn e2fsck_debugfs_and_the_kernel_accept_our_attributes() {
    for mkfs in KINDS {
        let f = Fixture::new(mkfs);
        let mut files = Vec::new();
        let mounted = f.with_kernel(|mnt| {
            for i in 0..6 {
                let path = mnt.join(format!("f{i}"));
                std::fs::write(&path, b"x").unwrap();
                // One block for each inode, all different, so that checksummed images need no allocation later.
                setfattr(&path, "user.kernel", &[i as u8; 700]);
                files.push(ino_of(&path));
            }
        });
        if !mounted {
            return;
        }
        let g = Geometry::open(&f.image());
        for (i, &ino) in files.iter().enumerate() {
            let mut inode = ImageInode::new(&g, ino);
            set(&mut inode, b"user.in", b"tiny", SetMode::Create).unwrap();
            set(&mut inode, b"security.high\xff\x80", &vec![i as u8; i * 17], SetMode::Any).unwrap();
            set(&mut inode, b"trusted.empty", b"", SetMode::Any).unwrap();
            set(&mut inode, b"user.kernel", &vec![0xEE; 600 - i], SetMode::Replace).unwrap();
            let acl = acl_blob();
            set(&mut inode, b"system.posix_acl_access", &acl, SetMode::Any).unwrap();
        }
        f.fsck();
        let shown = debugfs(f.image(), "ea_list f2").unwrap();
        for want in ["user.in (4) = \"tiny\"", "trusted.empty (0)", "user.kernel (598)", "system.posix_acl_access"] {
            assert!(shown.contains(want), "{want} missing in {shown}");
        }
        let mut by_kernel = Vec::new();
        f.with_kernel(|mnt| {
            for i in 0..files.len() {
                by_kernel.push(getfattr_raw(&mnt.join(format!("f{i}"))));
            }
            let facl = tool("getfacl", &["-cnE", arg(&mnt.join("f0"))]);
            assert!(facl.contains("user:1000:rw-") && facl.contains("mask::rw-"), "{facl}");
        });
        for (i, kernel) in by_kernel.iter().enumerate() {
            assert_eq!(*kernel, 5, "{mkfs:?} f{i}");
        }
        f.fsck();
    }
}

/// The number of attributes that the kernel lists.
fn getfattr_raw(path: &Path) -> usize {
    let text = tool("getfattr", &["-m", "-", "--absolute-names", arg(path)]);
    text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).count()
}

fn acl_blob() -> Vec<u8> {
    use extant_ondisk::acl::{Acl, AclEntry, Tag, to_xattr};
    let e = |tag, perm| AclEntry { tag, perm };
    let entries =
        vec![e(Tag::UserObj, 6), e(Tag::User(1000), 6), e(Tag::GroupObj, 4), e(Tag::Mask, 6), e(Tag::Other, 4)];
    to_xattr(&Acl { entries })
}

#[test]
fn block_shared_by_the_kernel_is_left_and_joined() {
    let f = Fixture::new(&["-t", "ext4", "-I", "128", "-b", "1024", "-O", "^metadata_csum,^uninit_bg"]);
    let mut files = Vec::new();
    let mounted = f.with_kernel(|mnt| {
        for i in 0..5 {
            let path = mnt.join(format!("f{i}"));
            std::fs::write(&path, b"").unwrap();
            setfattr(&path, "user.same", &[7; 300]);
            files.push(ino_of(&path));
        }
    });
    if !mounted {
        return;
    }
    let g = Geometry::open(&f.image());
    let mut inodes: Vec<_> = files.iter().map(|&i| ImageInode::new(&g, i)).collect();
    let shared = inodes[0].block_nr().unwrap();
    assert!(inodes.iter().all(|i| i.block_nr() == Some(shared)), "the kernel shared the block");
    set(&mut inodes[0], b"user.own", b"1", SetMode::Any).unwrap();
    assert_ne!(inodes[0].block_nr(), Some(shared));
    f.fsck();
    // When its attributes are equal again, it shares the kernel's block, once another inode has read that block.
    get(&inodes[2], b"user.same").unwrap();
    remove(&mut inodes[0], b"user.own").unwrap();
    assert_eq!(inodes[0].block_nr(), Some(shared));
    f.fsck();
    set(&mut inodes[0], b"user.own", b"1", SetMode::Any).unwrap();
    remove(&mut inodes[1], b"user.same").unwrap();
    assert_eq!(inodes[1].block_nr(), None);
    f.fsck();
    for inode in &mut inodes {
        let _ = remove(inode, b"user.same");
    }
    assert_eq!(inodes.iter().map(|i| i.freed.get()).sum::<u32>(), 2, "one that was left, and the last one's");
    f.fsck();
    assert_eq!(ours(&inodes[0]), [("user.own".into(), "31".into())]);
    f.with_kernel(|mnt| {
        assert_eq!(getfattr(&mnt.join("f0")), [("user.own".into(), "31".into())]);
        assert_eq!(getfattr(&mnt.join("f3")), []);
        assert!(mnt.as_os_str().as_bytes().starts_with(b"/"));
    });
}
