//! Everything that docs/features.md calls readable is readable. Images with features that Extant does not write, made
//! by mke2fs and debugfs from a tree, are mounted read-only and compared with the tree. Nothing is written, and a
//! mount for writing fails and names the features.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_fs::{Error, Filesystem, InodeRef, MountOptions, Mounted, Seek};
use extant_ondisk::inode::FileType;
use extant_oracle::mount::{LoopMount, Mounted as _};
use extant_oracle::{arg, debugfs_write, expect_clean, mke2fs, tool};

/// A tree with differently stored objects: sizes around the capacity of an inode, long links, directories of any
/// size.
fn tree(top: &Path) {
    let write = |name: &str, len: usize| {
        let content: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        std::fs::write(top.join(name), content).expect("file");
    };
    for len in [0, 1, 59, 60, 61, 100, 130, 160, 4096, 5000, 70_000, 3_000_000] {
        write(&format!("file-{len}"), len);
    }
    // mke2fs puts zeros into an inode of any size: the stored content is shorter than the file.
    for len in [60, 61, 100, 150, 200_000] {
        std::fs::File::create(top.join(format!("sparse-{len}"))).expect("file").set_len(len).expect("size");
        std::fs::write(top.join(format!("zeros-{len}")), vec![0; len as usize]).expect("file");
    }
    let sparse = std::fs::File::create(top.join("sparse")).expect("file");
    sparse.set_len(9 << 20).expect("size");
    use std::os::unix::fs::FileExt;
    sparse.write_all_at(b"in the middle", 5 << 20).expect("write");
    sparse.write_all_at(b"end", (9 << 20) - 3).expect("write");
    for (dir, names) in [("none", 0), ("few", 3), ("some", 12), ("many", 2000)] {
        std::fs::create_dir(top.join(dir)).expect("directory");
        (0..names).for_each(|n| write(&format!("{dir}/name-{n}"), n % 200));
    }
    for len in [1, 59, 60, 61, 120, 900] {
        std::os::unix::fs::symlink("x".repeat(len), top.join(format!("link-{len}"))).expect("link");
    }
}

struct Image {
    dir: tempfile::TempDir,
}

impl Image {
    fn path(&self) -> PathBuf {
        self.dir.path().join("disk.img")
    }

    fn debugfs(&self, requests: &str) {
        debugfs_write(self.path(), requests).expect("changed");
    }

    fn device(&self) -> Arc<MemDevice> {
        Arc::new(MemDevice::load(&self.path()).expect("loaded"))
    }

    fn mount(&self) -> (Arc<MemDevice>, Mounted) {
        let dev = self.device();
        let options = MountOptions { read_only: true, threads: false, ..MountOptions::default() };
        let fs = Filesystem::mount(dev.clone(), options).unwrap_or_else(|e| panic!("{e}"));
        (dev, fs)
    }
}

/// An image of the tree, accepted by e2fsck.
fn image(args: &[&str]) -> Image {
    let image = Image { dir: tempfile::tempdir().expect("tempdir") };
    let source = image.dir.path().join("src");
    std::fs::create_dir(&source).expect("directory");
    tree(&source);
    mke2fs(image.path(), &[&["-t", "ext4", "-d", arg(&source)], args].concat(), "300M");
    image
}

/// Every path with its kind and content.
type Seen = BTreeMap<String, Vec<u8>>;

fn on_host(top: &Path, at: &str, seen: &mut Seen) {
    for entry in std::fs::read_dir(top.join(at)).expect("directory") {
        let name = entry.expect("entry").file_name().into_string().expect("UTF-8");
        let path = if at.is_empty() { name } else { format!("{at}/{name}") };
        let full = top.join(&path);
        let kind = std::fs::symlink_metadata(&full).expect("stat").file_type();
        if kind.is_dir() {
            seen.insert(path.clone(), b"directory".to_vec());
            on_host(top, &path, seen);
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&full).expect("link");
            seen.insert(path, target.into_os_string().into_encoded_bytes());
        } else {
            seen.insert(path, std::fs::read(&full).expect("read"));
        }
    }
}

fn in_image(fs: &Filesystem, dir: &InodeRef, at: &str, seen: &mut Seen) {
    let mut names = Vec::new();
    fs.read_dir(dir, 0, |e| {
        names.push(String::from_utf8_lossy(e.name).into_owned());
        true
    })
    .expect("listed");
    for name in names.iter().filter(|n| *n != "." && *n != ".." && *n != "lost+found") {
        let inode = fs.lookup(dir, name.as_bytes()).unwrap_or_else(|e| panic!("{at}/{name}: {e}"));
        let path = if at.is_empty() { name.clone() } else { format!("{at}/{name}") };
        match inode.file_type() {
            Some(FileType::Directory) => {
                seen.insert(path.clone(), b"directory".to_vec());
                assert_eq!(fs.parent(&inode).expect("parent").ino, dir.ino);
                in_image(fs, &inode, &path, seen);
            }
            Some(FileType::Symlink) => {
                seen.insert(path, fs.read_link(&inode).expect("link"));
            }
            _ => {
                let size = fs.getattr(&inode).size;
                let mut content = vec![0xEE; size as usize];
                // In unaligned pieces.
                let mut done = 0;
                while done < content.len() {
                    let end = (done + 70_001).min(content.len());
                    done += fs.read(&inode, done as u64, &mut content[done..end]).expect("read");
                }
                if size > 0 && !path.starts_with("sparse") && !path.starts_with("zeros") {
                    assert_eq!(fs.seek(&inode, 0, Seek::Hole).expect("hole"), size, "{path}");
                }
                seen.insert(path, content);
            }
        }
    }
}

/// Everything of the tree is there, and nothing is written.
fn reads(image: &Image) -> Mounted {
    let mut expected = Seen::new();
    on_host(&image.dir.path().join("src"), "", &mut expected);
    let (dev, fs) = image.mount();
    let mut seen = Seen::new();
    in_image(&fs, &fs.root().expect("root"), "", &mut seen);
    let differ: Vec<_> = expected.iter().filter(|(path, what)| seen.get(*path) != Some(what)).map(|(p, _)| p).collect();
    assert!(differ.is_empty() && seen.len() == expected.len(), "{differ:?}");
    expect_clean(image.path()).expect("clean");
    let said = tool("dumpe2fs", &["-h", arg(&image.path())]);
    let free = said.lines().find_map(|l| l.strip_prefix("Free blocks:")).expect("free").trim().to_owned();
    assert_eq!(fs.statfs().blocks_free.to_string(), free);
    assert_eq!(dev.stats().write_bytes, 0);
    fs
}

#[test]
fn images_with_clusters_are_readable() {
    for args in [&["-O", "bigalloc"][..], &["-O", "bigalloc", "-C", "65536"], &["-O", "bigalloc", "-b", "1024"]] {
        drop(reads(&image(args)));
    }
}

#[test]
fn images_with_large_blocks_are_readable() {
    for size in ["8192", "16384", "32768", "65536"] {
        drop(reads(&image(&["-b", size])));
    }
}

#[test]
fn data_in_inodes_is_readable() {
    for inode in ["256", "512", "1024"] {
        let image = image(&["-O", "inline_data", "-I", inode]);
        let said = extant_oracle::debugfs(image.path(), "stat few").expect("debugfs");
        assert!(said.contains("0x10000000"), "the image lacks inline data: {said}");
        drop(reads(&image));
    }
}

/// The kernel writes them: debugfs stores at most a block.
#[test]
fn attributes_in_inodes_are_readable() {
    let image = image(&["-O", "ea_inode"]);
    let at = image.dir.path().join("mnt");
    let Some(mount) = LoopMount::if_permitted(&image.path(), &at, "") else { return };
    let values = [("user.small", 20), ("user.block", 700), ("user.large", 9000), ("user.largest", 65_000)];
    for (name, len) in values {
        tool("setfattr", &["-n", name, "-v", &"v".repeat(len), arg(&at.join("few"))]);
    }
    mount.unmount().expect("unmounted");
    let fs = reads(&image);
    let f = fs.walk(b"few", false).expect("there");
    let mut names = fs.list_xattrs(&f).expect("listed");
    names.sort();
    assert_eq!(names, [&b"user.block"[..], b"user.large", b"user.largest", b"user.small"]);
    for (name, len) in values {
        assert!(fs.get_xattr(&f, name.as_bytes()).expect(name) == vec![b'v'; len], "{name}");
    }
}

/// The blocks of a value in an inode of its own count as the link's.
#[test]
fn a_link_with_an_attribute_in_an_inode_is_readable() {
    let image = image(&["-O", "ea_inode"]);
    image.debugfs("symlink /link target\nset_inode_field /link blocks 24");
    let (_, fs) = image.mount();
    let link = fs.walk(b"link", false).expect("there");
    assert_eq!(fs.read_link(&link).expect("target"), b"target");
}

#[test]
fn casefolded_names_are_found_in_any_case() {
    let image = image(&["-O", "casefold", "-E", "encoding=utf8"]);
    let many = "/many";
    for name in ["Grüße", "ΣΊΣΥΦΟΣ", "e\u{301}te\u{301}"] {
        std::fs::write(image.dir.path().join("src/few").join(name), name).expect("file");
        let from = image.dir.path().join("src/few").join(name);
        image.debugfs(&format!("write {} /few/{name}", from.display()));
    }
    // As chattr +F on an empty directory would have left them.
    for dir in ["/few", many, "/none"] {
        image.debugfs(&format!("set_inode_field {dir} flags 0x40080000"));
    }
    let (_, fs) = image.mount();
    let same = |path: &str, other: &str| {
        let of = |p: &str| fs.walk(p.as_bytes(), false).map(|i| i.ino);
        assert_eq!(of(path).expect(path), of(other).expect(other));
    };
    same("few/name-1", "few/NAME-1");
    same("many/name-1999", "many/Name-1999");
    same("few/Grüße", "few/GRÜSSE");
    same("few/ΣΊΣΥΦΟΣ", "few/σίσυφος");
    same("few/e\u{301}te\u{301}", "few/\u{c9}T\u{c9}");
    for wrong in ["few/NAME-7", "some/NAME-1", "none/x"] {
        assert!(matches!(fs.walk(wrong.as_bytes(), false), Err(Error::NotFound)), "{wrong}");
    }
}
