//! Shared parts of the tests of sources.
#![allow(dead_code)] // each test file uses its part

use std::path::Path;
use std::process::Command;

use extant_build::source::Source;
use extant_build::tree::{Body, Content, Id, Node, Tree};

/// All bytes of a file, read in pieces of odd sizes.
pub fn bytes(content: &dyn Content, number: u64, size: u64) -> Vec<u8> {
    let file = content.open(number).expect("opened");
    let mut bytes = vec![0; size as usize];
    for (at, piece) in (0..).step_by(70_001).zip(bytes.chunks_mut(70_001)) {
        file.read_at(at, piece).expect("read");
    }
    file.finish().expect("unchanged");
    bytes
}

/// A node without the source's own numbers.
pub fn plain(node: &Node) -> Node {
    let mut node = node.clone();
    if let Body::File { content, .. } = &mut node.body {
        *content = 0;
    }
    node
}

/// Two sources give the same tree, and the same bytes.
pub fn assert_same(a: &Source, b: &Source) {
    assert_same_trees(&a.tree, &b.tree);
    for id in (0..a.tree.len() as u32).map(Id) {
        if let (Body::File { size, content, .. }, Body::File { content: other, .. }) =
            (&a.tree.node(id).body, &b.tree.node(id).body)
        {
            let (one, two) = (bytes(&*a.content, *content, *size), bytes(&*b.content, *other, *size));
            assert!(one == two, "the bytes of inode {}", id.0);
        }
    }
}

pub fn assert_same_trees(a: &Tree, b: &Tree) {
    assert_eq!(lines(a), lines(b));
    assert_eq!(a.len(), b.len());
    for id in (0..a.len() as u32).map(Id) {
        assert_eq!(plain(a.node(id)), plain(b.node(id)), "inode {}", id.0);
        assert!(a.entries(id).eq(b.entries(id)), "entries of inode {}", id.0);
        if let (Some(one), Some(two)) = (a.node(id).xattrs, b.node(id).xattrs) {
            assert_eq!(a.xattrs(one), b.xattrs(two));
        }
        if let (Body::File { sparse: Some(one), .. }, Body::File { sparse: Some(two), .. }) =
            (&a.node(id).body, &b.node(id).body)
        {
            assert_eq!(a.data(*one), b.data(*two), "data of inode {}", id.0);
        }
    }
}

/// A line for each name: path, inode, mode, owner, time, links and body.
pub fn lines(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    let mut waiting = vec![(String::new(), Id(0))];
    while let Some((path, id)) = waiting.pop() {
        let node = plain(tree.node(id));
        let time = (node.mtime.seconds, node.mtime.nanos);
        let xattrs =
            node.xattrs.map(|set| tree.xattrs(set).iter().map(show).collect::<Vec<_>>().join(",")).unwrap_or_default();
        let body = match &node.body {
            Body::File { size, sparse, .. } => format!("{size} {:?}", sparse.map(|sparse| tree.data(sparse))),
            Body::Directory { parent, .. } => format!("in {}", parent.0),
            body => format!("{body:?}"),
        };
        lines.push(format!(
            "{path}/ #{} {:o} {}:{} {time:?} links {} {body} {xattrs}",
            id.0, node.mode, node.uid, node.gid, node.links
        ));
        for (name, id) in tree.entries(id) {
            waiting.push((format!("{path}/{}", name.escape_ascii()), id));
        }
    }
    lines.sort();
    lines
}

fn show((name, value): &(Box<[u8]>, Box<[u8]>)) -> String {
    format!("{}={}", name.escape_ascii(), value.escape_ascii())
}

/// The inode that a path leads to.
pub fn find(tree: &Tree, path: &str) -> Option<Id> {
    let mut at = Id(0);
    for part in path.split('/').filter(|part| !part.is_empty()) {
        at = tree.entries(at).find(|(name, _)| *name == part.as_bytes())?.1;
    }
    Some(at)
}

/// Runs a tool, which must succeed.
pub fn run(program: &str, arguments: &[&str], dir: &Path) -> Vec<u8> {
    let out = Command::new(program).args(arguments).current_dir(dir).output();
    let out = out.unwrap_or_else(|e| panic!("{program}: {e}"));
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {arguments:?}: {error}");
    out.stdout
}

pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped in part: needs root, to make devices and owners");
    }
    root
}

/// Makes a tree with everything that an image can store; as root, also with files that only root can make.
pub fn make_tree(at: &Path) {
    use rustix::fs::{
        AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, lsetxattr, mknodat, utimensat,
    };
    use std::os::unix::fs::{FileExt, symlink};

    std::fs::create_dir_all(at.join("dir/below/deep")).expect("directories");
    std::fs::create_dir_all(at.join("empty")).expect("directories");
    let file = |name: &str, content: &[u8]| std::fs::write(at.join(name), content).expect("a file");
    file("dir/file", b"content\n");
    file("dir/none", b"");
    file("dir/below/large", &(0..1_000_000u32).flat_map(|n| (n % 251).to_le_bytes()).collect::<Vec<u8>>());
    file("dir/below/deep/x", &[7; 512]);
    // These sort differently as bytes and as text.
    for name in ["A", "a", "a-b", "ä", "with space", "line\nbreak", &"n".repeat(255)] {
        file(&format!("dir/{name}"), name.as_bytes());
    }
    std::fs::hard_link(at.join("dir/file"), at.join("another name")).expect("a link");
    std::fs::hard_link(at.join("dir/file"), at.join("dir/below/third")).expect("a link");
    symlink("dir/file", at.join("link")).expect("a link");
    symlink("l".repeat(300), at.join("dir/long link")).expect("a link");
    symlink("/absolute/../and/beyond", at.join("dir/below/out")).expect("a link");
    let sparse = std::fs::File::create(at.join("dir/sparse")).expect("a file");
    sparse.set_len(3 << 20).expect("its size");
    sparse.write_all_at(&[1; 8192], 1 << 20).expect("written");
    sparse.write_all_at(&[2; 100], (3 << 20) - 100).expect("written");
    let hole = std::fs::File::create(at.join("dir/hole")).expect("a file");
    hole.set_len(100_000).expect("its size");
    mknodat(CWD, at.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
    let xattr = |name: &str, key: &str, value: &[u8]| {
        lsetxattr(at.join(name), key, value, XattrFlags::empty()).unwrap_or_else(|e| panic!("{name} {key}: {e}"));
    };
    xattr("dir/file", "user.comment", b"text");
    xattr("dir/none", "user.comment", b"text");
    xattr("dir", "user.binary", b"\x00\n\xff=5 user.x=y\n");
    let permissions = |name: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(at.join(name), mode).expect("permissions");
    };
    permissions("dir/A", 0o4755);
    permissions("empty", 0o1777);
    if is_root() {
        let device = |name: &str, kind, number| {
            mknodat(CWD, at.join(name), kind, Mode::from_raw_mode(0o640), number).expect("a device");
        };
        device("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
        device("dir/disk", FileType::BlockDevice, rustix::fs::makedev(300, 70_000));
        for (name, uid, gid) in [("dir/a", 1000, 100), ("link", 5, 6), ("dir/below", 4_000_000_000, 3_000_000)] {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(CWD, at.join(name), uid, gid, AtFlags::SYMLINK_NOFOLLOW).expect("an owner");
        }
        xattr("dir/a", "security.capability", b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        xattr("dir/a", "trusted.overlay.x", b"y");
        run("setfacl", &["-m", "u:1234:rw,g:99:r", "dir/A"], at);
        run("setfacl", &["-d", "-m", "u:1234:rwx", "empty"], at);
    }
    // Directories last: their times change with their entries.
    let names = ["dir/file", "dir/sparse", "link", "fifo", "dir/below/deep", "dir/below", "dir", "empty", ""];
    for (seconds, name) in (1_000_000_000..).zip(names) {
        let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, at.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
    }
    let before_1970 = Timespec { tv_sec: -86_400, tv_nsec: 250_000_000 };
    let times = Timestamps { last_access: before_1970, last_modification: before_1970 };
    utimensat(CWD, at.join("dir/none"), &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
}
