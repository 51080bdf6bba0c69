//! Tar archives: GNU tar's archive of a tree gives that tree again, in every format; damaged ones are refused.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{assert_same, bytes, find, lines, make_tree, run};
use extant_base::rng::Rng;
use extant_build::source::{Options, Source, Word};
use extant_build::tree::{Body, Id};
use extant_build::{Error, Result};

/// The source that a word of a command line names.
fn open(word: &std::ffi::OsStr) -> Result<Source> {
    Source::open(&Word::parse(word)?, Options::default())
}

/// The options with which GNU tar stores everything that an image can store.
const POSIX: &[&str] = &["--format=posix", "--xattrs", "--xattrs-include=*", "--acls", "-S"];

/// GNU tar's archive of a directory.
fn tar(dir: &Path, options: &[&str]) -> Vec<u8> {
    let mut arguments = vec!["-c"];
    arguments.extend(options);
    arguments.push(".");
    run("tar", &arguments, dir)
}

/// Reads an archive as a file and as a stream, which must give the same.
fn read(archive: &[u8]) -> Result<Source> {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("f.tar");
    std::fs::write(&path, archive).expect("written");
    let file = Source::tar(&path, Options::default());
    let mut rest = archive;
    let stream = Source::tar_stream("f.tar".into(), Box::new(&mut rest), Options::default());
    match (file, stream) {
        (Ok(file), Ok(stream)) => {
            assert_same(&file, &stream);
            assert!(rest.is_empty(), "a stream is read to its end");
            Ok(file)
        }
        (Err(file), Err(stream)) => {
            let said = file.to_string();
            assert_eq!(said.strip_prefix(&format!("{}/", dir.path().display())), Some(&*stream.to_string()));
            Err(stream)
        }
        (file, stream) => panic!("{:?} {:?}", file.err(), stream.err()),
    }
}

fn refused(archive: &[u8]) -> String {
    read(archive).err().expect("refused").to_string()
}

/// An entry as bytes, with the headers in front that belong to it.
fn members(archive: &[u8]) -> Vec<&[u8]> {
    let mut members = Vec::new();
    let (mut start, mut at) = (0, 0);
    while archive[at] != 0 {
        let octal = std::str::from_utf8(&archive[at + 124..at + 135]).expect("digits");
        let size = usize::from_str_radix(octal, 8).expect("a size");
        let kind = archive[at + 156];
        let mut more = kind == b'S' && archive[at + 482] != 0;
        at += 512;
        while more {
            more = archive[at + 504] != 0;
            at += 512;
        }
        at += if matches!(kind, b'1'..=b'6') { 0 } else { size.next_multiple_of(512) };
        if !matches!(kind, b'x' | b'L' | b'K') {
            members.push(&archive[start..at]);
            start = at;
        }
    }
    members
}

fn shuffled(archive: &[u8], seed: u64) -> Vec<u8> {
    let mut members = members(archive);
    let mut rng = Rng::new(seed);
    for n in (1..members.len()).rev() {
        members.swap(n, rng.below(n as u64 + 1) as usize);
    }
    let mut archive = members.concat();
    archive.extend_from_slice(&[0; 1024]);
    archive
}

#[test]
fn a_posix_archive_is_the_tree_that_it_was_made_of_in_any_order() {
    let dir = tempfile::tempdir().expect("directory");
    make_tree(dir.path());
    let directory = Source::directory(dir.path(), Options::default()).expect("read");
    let archive = tar(dir.path(), POSIX);
    assert_same(&directory, &read(&archive).expect("read"));
    for seed in 0..20 {
        assert_same(&directory, &read(&shuffled(&archive, seed)).expect("read"));
    }
    for version in ["--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"] {
        let archive = tar(dir.path(), &[POSIX, &[version]].concat());
        assert_same(&directory, &read(&archive).expect("read"));
    }
}

#[test]
fn compressed_archives_are_recognised_and_all_their_members_are_read() {
    let dir = tempfile::tempdir().expect("directory");
    make_tree(dir.path());
    let archive = tar(dir.path(), POSIX);
    let directory = Source::directory(dir.path(), Options::default()).expect("read");
    for program in ["gzip", "xz", "zstd"] {
        let half = archive.len() / 2;
        let packed = [packed(program, &archive[..half]), packed(program, &archive[half..])].concat();
        assert_same(&directory, &read(&packed).expect("read"));
        let cut = refused(&packed[..packed.len() - 5]);
        assert!(cut.starts_with("f.tar: it is cut off (at byte "), "{program}: {cut}");
        let mut damaged = packed.clone();
        let place = packed.len() / 2 - packed.len() / 8;
        damaged[place..place + 16].fill(0x55);
        let said = refused(&damaged);
        assert!(said.starts_with("f.tar: "), "{program}: {said}");
    }
    let said = refused(b"BZh91AY&SY");
    assert_eq!(said, "f.tar: is compressed with bzip2, which is not supported; decompress it first");
}

#[test]
fn bytes_behind_a_gzip_are_ignored_with_a_warning_unless_they_are_zeroes() {
    let plain = archive(&[TarMember::new("f", b'0', b"content")]);
    let (first, second) = (packed("gzip", &plain[..700]), packed("gzip", &plain[700..]));
    for zeroes in [1, 10_240, 300_000] {
        let source = read(&[&first[..], &second, &vec![0; zeroes]].concat()).expect("read");
        assert_eq!((source.tree.len(), source.warnings.len()), (2, 0));
    }
    let late = [&[0; 300_000][..], b"rest"].concat();
    for rest in [&b"rest"[..], b"\x1f", b"\x1f\x8cand the rest", b"\0\0\0rest", &[&[0; 7][..], &second].concat(), &late]
    {
        let source = read(&[&first[..], &second, rest].concat()).expect("read");
        assert_eq!(source.tree.len(), 2);
        let warning = "f.tar: other bytes follow the end of the gzip data; they are ignored";
        assert!(matches!(&source.warnings[..], [said] if said.ends_with(warning)), "{:?}", source.warnings);
    }
    let said = refused(&[&first[..], &second, b"\x1f\x8b"].concat());
    assert!(said.starts_with("f.tar: it is cut off"), "{said}");
}

#[test]
fn bytes_stored_for_a_directory_are_passed_over() {
    let smuggled = TarMember::new("smuggled", b'0', b"").bytes();
    let deep = TarMember { size: b"77777777777\0".into(), ..TarMember::new("dir/", b'0', b"") };
    for kind in [0, b'0', b'D'] {
        let members = [TarMember::new("dir/", kind, &smuggled), TarMember::new("dir/f", b'0', b"f")];
        let source = read(&archive(&members)).expect("read");
        assert_eq!(find(&source.tree, "smuggled"), None);
        assert!(find(&source.tree, "dir/f").is_some());
    }
    let said = refused(&archive(&[deep]));
    assert_eq!(said, "f.tar: dir/: its size is 8589934591 bytes, but the archive is cut off (at byte 0)");
}

#[test]
fn a_directory_and_a_socket_are_no_archives() {
    let dir = tempfile::tempdir().expect("directory");
    let said = |path: &Path| Source::tar(path, Options::default()).err().expect("refused").to_string();
    assert!(said(dir.path()).ends_with(": is a directory, and no tar archive"), "{}", said(dir.path()));
    let path = dir.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    assert!(said(&path).ends_with("/socket: is a socket, and no tar archive"), "{}", said(&path));
}

fn packed(program: &str, bytes: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let mut input = child.stdin.take().expect("a pipe");
    let out = std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(bytes).expect("written"));
        child.wait_with_output().expect("finished")
    });
    assert!(out.status.success());
    out.stdout
}

#[test]
fn a_gnu_archive_has_long_names_links_and_sparse_files() {
    let dir = tempfile::tempdir().expect("directory");
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    std::fs::create_dir_all(dir.path().join("d".repeat(120))).expect("a directory");
    std::fs::write(dir.path().join(&long), b"long").expect("a file");
    std::os::unix::fs::symlink("t".repeat(300), dir.path().join("link")).expect("a link");
    std::fs::hard_link(dir.path().join(&long), dir.path().join("hard")).expect("a link");
    let sparse = std::fs::File::create(dir.path().join("sparse")).expect("a file");
    // More ranges than a header has room for, and than a block of more.
    for n in 0..60u64 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[n as u8 + 1; 4096], n * 20_480).expect("written");
    }
    sparse.set_len(2_000_000).expect("its size");
    drop(sparse);
    for name in ["sparse", &long] {
        let file = std::fs::File::options().write(true).open(dir.path().join(name)).expect("opened");
        let before_1970 = std::time::UNIX_EPOCH - std::time::Duration::from_secs(86_400);
        file.set_modified(before_1970).expect("its time");
    }
    for name in ["", &"d".repeat(120), "link"] {
        use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
        let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, dir.path().join(name), &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
    }
    let directory = Source::directory(dir.path(), Options::default()).expect("read");
    for format in ["--format=gnu", "--format=oldgnu"] {
        let archive = tar(dir.path(), &[format, "-S"]);
        assert_same(&directory, &read(&archive).expect("read"));
        assert_same(&directory, &read(&shuffled(&archive, 1)).expect("read"));
    }
    let plain = read(&tar(dir.path(), &["--format=gnu"])).expect("read");
    let file = |source: &Source| match source.tree.node(find(&source.tree, "sparse").expect("there")).body {
        Body::File { size, content, .. } => bytes(&*source.content, content, size),
        _ => panic!("a file"),
    };
    assert!(file(&plain) == file(&directory));
}

#[test]
fn ustar_and_v7_archives_are_read() {
    let dir = tempfile::tempdir().expect("directory");
    // Too long for the field of a name.
    let deep = format!("{}/{}", "d".repeat(90), "f".repeat(90));
    std::fs::create_dir_all(dir.path().join("d".repeat(90))).expect("a directory");
    std::fs::create_dir_all(dir.path().join("empty")).expect("a directory");
    std::fs::write(dir.path().join(&deep), b"deep").expect("a file");
    std::fs::write(dir.path().join("file"), b"file").expect("a file");
    let ustar = read(&tar(dir.path(), &["--format=ustar"])).expect("read");
    let names = |source: &Source| {
        lines(&source.tree).iter().map(|l| l.split(' ').next().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(names(&ustar), names(&Source::directory(dir.path(), Options::default()).expect("read")));
    std::fs::remove_file(dir.path().join(&deep)).expect("removed");
    let v7 = read(&tar(dir.path(), &["--format=v7"])).expect("read");
    assert_eq!(names(&v7), names(&Source::directory(dir.path(), Options::default()).expect("read")));
}

/// A header in the format ustar.
#[derive(Clone)]
struct TarMember {
    name: Vec<u8>,
    kind: u8,
    link: Vec<u8>,
    size: Vec<u8>,
    body: Vec<u8>,
}

impl TarMember {
    fn new(name: &str, kind: u8, body: &[u8]) -> TarMember {
        let size = format!("{:011o}\0", body.len()).into_bytes();
        TarMember { name: name.into(), kind, link: Vec::new(), size, body: body.to_vec() }
    }

    fn link(name: &str, kind: u8, target: &str) -> TarMember {
        TarMember { link: target.into(), ..TarMember::new(name, kind, b"") }
    }

    /// An extended header with one record.
    fn pax(kind: u8, record: &str) -> TarMember {
        let len = (record.len()..).find(|len| format!("{len} {record}\n").len() == *len).expect("a length");
        TarMember::new("x", kind, format!("{len} {record}\n").as_bytes())
    }

    fn bytes(&self) -> Vec<u8> {
        let mut block = vec![0; 512];
        block[..self.name.len()].copy_from_slice(&self.name);
        block[100..108].copy_from_slice(b"0000644\0");
        block[108..116].copy_from_slice(b"0000001\0");
        block[116..124].copy_from_slice(b"0000002\0");
        block[124..136].copy_from_slice(&self.size);
        block[136..148].copy_from_slice(b"00000000003\0");
        block[156] = self.kind;
        block[157..157 + self.link.len()].copy_from_slice(&self.link);
        block[257..265].copy_from_slice(b"ustar\x0000");
        sign(&mut block);
        block.extend_from_slice(&self.body);
        block.resize(block.len().next_multiple_of(512), 0);
        block
    }
}

fn sign(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block[..512].iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn archive(members: &[TarMember]) -> Vec<u8> {
    let mut archive: Vec<u8> = members.iter().flat_map(TarMember::bytes).collect();
    archive.extend_from_slice(&[0; 1024]);
    archive
}

#[test]
fn parents_without_entries_are_made_and_the_last_of_two_entries_counts() {
    let members = [
        TarMember::new("a/b/c", b'0', b"first"),
        TarMember::new("./a/b/c", b'0', b"second"),
        TarMember::link("same", b'1', "a/b/c"),
        TarMember::new("/a/absolute", b'7', b"x"),
        TarMember::new("a/dir/", 0, b""),
    ];
    let source = read(&archive(&members)).expect("read");
    let line = |path: &str| {
        let start = format!("{path}/ ");
        lines(&source.tree).into_iter().find(|line| line.starts_with(&start)).expect("there")
    };
    assert!(line("/a").contains("40755 0:0 (0, 0)"), "{}", line("/a"));
    assert!(line("/a/dir").contains("40644 1:2 (3, 0)"), "{}", line("/a/dir"));
    assert!(line("/same").contains("100644 1:2 (3, 0) links 2 6"), "{}", line("/same"));
    assert!(line("/a/absolute").contains("100644"));
}

#[test]
fn global_headers_count_until_they_are_overridden() {
    let members = [
        TarMember::pax(b'g', "uid=7"),
        TarMember::pax(b'g', "comment=whatever"),
        TarMember::new("a", b'0', b""),
        TarMember::pax(b'x', "uid=8"),
        TarMember::new("b", b'0', b""),
        TarMember::pax(b'x', "uid="),
        TarMember::new("c", b'0', b""),
        TarMember::pax(b'x', "size=3"),
        TarMember { size: b"00000000000\0".into(), ..TarMember::new("d", b'0', b"abc") },
        TarMember { size: b"\x80\0\0\0\0\0\0\0\0\0\0\x03".into(), ..TarMember::new("e", b'0', b"abc") },
    ];
    let source = read(&archive(&members)).expect("read");
    let uids: Vec<u32> = source.tree.entries(Id(0)).map(|(_, id)| source.tree.node(id).uid).collect();
    assert_eq!(uids, [7, 8, 1, 7, 7]);
}

#[test]
fn entries_that_cannot_be_stored_are_named_with_their_place() {
    let one = |member: TarMember| refused(&archive(&[TarMember::new("ok", b'0', b"x"), member]));
    for (member, said) in [
        (TarMember::new("../x", b'0', b""), "../x: the name .. leads out of its directory"),
        (TarMember::new("/a/../../x", b'5', b""), "/a/../../x: the name .. leads out of its directory"),
        (TarMember::new("", b'0', b""), ": an entry without a name"),
        (TarMember::link("l", b'1', "../out"), "l: a hard link to ../out: the name .. leads out of its directory"),
        (TarMember::link("l", b'1', "no"), "l: a hard link to no, which is not there"),
        (TarMember::link("l", b'1', "l"), "l: a hard link that leads back to itself"),
        (TarMember::link("l", b'2', ""), "l: a symbolic link that leads nowhere"),
        (TarMember::new("odd", b'Q', b""), "odd: an entry of the unknown type 'Q'"),
        (TarMember::new("odd", b'M', b""), "odd: the rest of a file that begins on another volume"),
        (TarMember::new("\x1b[2J", b'Q', b""), "?[2J: an entry of the unknown type 'Q'"),
        (
            TarMember { size: b"0000000000x\0".into(), ..TarMember::new("s", b'0', b"") },
            "s: its size is no number: 0000000000x\\x00",
        ),
        (TarMember { size: [255; 12].into(), ..TarMember::new("s", b'0', b"") }, "s: its size is -1"),
        (TarMember::new("ok/below", b'0', b""), "ok/below: ok is not a directory"),
    ] {
        assert_eq!(one(member), format!("f.tar: {said} (at byte 1024)"));
    }
    for (record, said) in [
        ("mtime=x", "f.tar: mtime: no number: x (at byte 0)"),
        ("size=-1", "f.tar: e: its size is -1 (at byte 0)"),
        ("uid=4294967296", "f.tar: e: its owner is 4294967296, which does not fit into 32 bits (at byte 0)"),
        ("path=", "f.tar: : an entry without a name (at byte 0)"),
        ("GNU.sparse.map=0,1,5", "f.tar: GNU.sparse.map: an offset without a length behind it (at byte 0)"),
        ("GNU.sparse.major=2", "f.tar: e: a sparse file of a form that is not known (at byte 0)"),
        ("GNU.sparse.map=0,1", "f.tar: e: a sparse file without its real size (at byte 0)"),
        (
            "SCHILY.acl.access=user:joe:r",
            "f.tar: e: its ACL has user:joe:r, a name without its number; archive with --xattrs (at byte 0)",
        ),
    ] {
        let name = if record == "path=" { "" } else { "e" };
        assert_eq!(refused(&archive(&[TarMember::pax(b'x', record), TarMember::new(name, b'0', b"")])), said);
    }
    let link = [TarMember::link("up", b'2', ".."), TarMember::new("up/x", b'0', b"")];
    assert_eq!(refused(&archive(&link)), "f.tar: up/x: up is not a directory (at byte 512)");
}

#[test]
fn sparse_maps_that_lie_are_refused() {
    let sparse = |map: &str, size: &str, body: &[u8]| {
        let record = |text: String| {
            let len = (1..).find(|len| format!("{len} {text}\n").len() == *len).expect("a length");
            format!("{len} {text}\n")
        };
        let records = record(format!("GNU.sparse.map={map}")) + &record(format!("GNU.sparse.size={size}"));
        archive(&[TarMember::new("x", b'x', records.as_bytes()), TarMember::new("s", b'0', body)])
    };
    for (map, size, said) in [
        ("0,512", "1000", "its sparse map has 512 bytes, but 600 are stored"),
        ("0,512,1024,88", "1000", "its sparse map leads backwards or beyond its 1000 bytes"),
        ("512,512,0,88", "9999", "its sparse map leads backwards or beyond its 9999 bytes"),
        ("0,88,512,512", "9999", "its sparse map has a range that ends within a block"),
        ("18446744073709551615,600", "9999", "its sparse map has a range of 600 bytes at 18446744073709551615"),
        ("0,512,600,88", "99999999999999999999", "its size is 99999999999999999999"),
        ("0,512,600,88", "9223372036854775808", "a file of 9223372036854775808 bytes is larger than any can be"),
    ] {
        let said = match said {
            said if map.starts_with("18446") => format!("f.tar: GNU.sparse.map: {said} (at byte 0)"),
            said => format!("f.tar: s: {said} (at byte 0)"),
        };
        assert_eq!(refused(&sparse(map, size, &[1; 600])), said);
    }
    assert_eq!(read(&sparse("0,512,600,88", "688", &[1; 600])).expect("read").tree.len(), 2);
}

#[test]
fn an_archive_that_is_cut_off_anywhere_but_between_entries_is_refused() {
    let members = [
        TarMember::new("a", b'0', &[7; 700]),
        TarMember::pax(b'x', &format!("path={}p", "p/".repeat(300))),
        TarMember::new("b", b'0', b"b"),
        TarMember::new("dir", b'5', b""),
    ];
    let whole = archive(&members);
    assert!(read(&whole).expect("read").warnings.is_empty());
    // Behind the first entry, the third and the last; and a block of zeroes, which is an end by itself.
    let ends = [512 + 1024, 512 + 1024 + 512 + 1024 + 512 + 512, whole.len() - 1024, whole.len() - 512];
    for len in (0..whole.len()).filter(|len| *len <= 10 || len % 512 < 2 || len % 97 == 0) {
        match read(&whole[..len]) {
            Ok(source) => {
                assert!(ends.contains(&len), "{len} bytes");
                let warning = "f.tar: no end mark follows the last entry; more may be missing if it was cut off";
                let warned = source.warnings.iter().any(|said| said.ends_with(warning));
                assert_eq!(warned, len != ends[3], "{len} bytes: {:?}", source.warnings);
            }
            Err(error) => {
                let said = error.to_string();
                let wanted = match len {
                    0 => &["it is empty"][..],
                    1..512 => &["not a tar archive"],
                    _ => &["cut off", "ends behind an extended header"],
                };
                assert!(wanted.iter().any(|words| said.contains(words)), "{len}: {said}");
                assert!(said.starts_with("f.tar: "), "{said}");
            }
        }
    }
    let said = refused(&[&whole[..ends[2]], &[0; 512], &whole].concat());
    assert!(said.starts_with("f.tar: a block of zeroes, with more entries behind it (at byte "), "{said}");
}

#[test]
fn a_size_beyond_the_end_and_a_wrong_checksum_are_refused() {
    let huge = TarMember { size: b"77777777777\0".into(), ..TarMember::new("huge", b'0', b"little") };
    let said = refused(&archive(std::slice::from_ref(&huge)));
    assert_eq!(said, "f.tar: huge: its size is 8589934591 bytes, but the archive is cut off (at byte 0)");
    let most = TarMember { size: b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff".into(), ..huge };
    let said = refused(&archive(&[most]));
    assert!(said.starts_with("f.tar: "), "{said}");
    let long = TarMember { size: b"77777777777\0".into(), ..TarMember::new("x", b'x', b"") };
    assert_eq!(
        refused(&archive(&[long])),
        "f.tar: the extended headers of an entry, and those of all, have at most 16777216 bytes (at byte 0)"
    );
    let mut wrong = archive(&[TarMember::new("a", b'0', b""), TarMember::new("b", b'0', b"")]);
    wrong[512] = b'c';
    assert_eq!(refused(&wrong), "f.tar: the checksum of a header is wrong (at byte 512)");
}

#[test]
fn a_file_that_is_no_archive_and_a_damaged_archive_have_different_errors() {
    for len in [1, 20, 511, 512, 2048] {
        assert_eq!(refused(&vec![b'x'; len]), "f.tar: not a tar archive (nor gzip, xz or zstd)", "{len} bytes");
    }
    assert_eq!(refused(b""), "f.tar: it is empty");
    let stream = Source::tar_stream("standard input".into(), Box::new(std::io::empty()), Options::default());
    assert_eq!(stream.err().expect("refused").to_string(), "standard input: it is empty");
}

#[test]
fn a_file_of_zeroes_is_no_empty_archive() {
    let mut image = vec![0; 1 << 20];
    image[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
    let ext = "f.tar: not a tar archive: it begins with zeroes, and an ext2/3/4 file system follows";
    assert_eq!(refused(&image), ext);
    let mut other = vec![0; 1 << 20];
    other[700_000] = 1;
    assert_eq!(refused(&other), "f.tar: not a tar archive: it begins with zeroes, and other data follows");
    let empty = "f.tar: it has only zeroes and no entries; with tar: in front it is taken as an empty archive";
    for len in [512, 1024, 10240, 4 << 20] {
        assert_eq!(refused(&vec![0; len]), empty, "{len} bytes");
        assert_eq!(refused(&packed("gzip", &vec![0; len])), empty, "{len} bytes");
    }
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("empty.tar");
    let as_archive = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("written");
        open(format!("tar:{}", path.display()).as_ref())
    };
    assert_eq!(as_archive(&run("tar", &["-cT", "/dev/null"], dir.path())).expect("read").tree.len(), 1);
    for data in [image, other] {
        assert!(as_archive(&data).err().expect("refused").to_string().contains("it begins with zeroes, and "));
    }
}

#[test]
fn attributes_and_flags_without_a_place_in_an_image_are_named() {
    let pax = |records: &[&str]| -> Vec<TarMember> {
        let all = records.iter().map(|record| TarMember::pax(b'x', record));
        all.chain([TarMember::new(&format!("f{}", records.len()), b'0', b"")]).collect()
    };
    let some = pax(&["SCHILY.xattr.com.apple.quarantine=q", "SCHILY.fflags=uchg,nodump"]);
    let more = pax(&["SCHILY.xattr.com.apple.quarantine=q", "SCHILY.xattr.gnu.translator=/hurd/null\0", "comment=x"]);
    let source = read(&archive(&[some, more].concat())).expect("read");
    let words =
        "left out, since an image has no place for it: com.apple.quarantine (2 entries), the flag uchg (1 entry)";
    assert_eq!(source.warnings.len(), 1, "{:?}", source.warnings);
    assert!(source.warnings[0].ends_with(words), "{:?}", source.warnings);
    let line = |name| lines(&source.tree).into_iter().find(|line| line.starts_with(name)).expect("there");
    assert!(line("/f3").contains("gnu.translator=/hurd/null"), "{}", line("/f3"));
    let id = find(&source.tree, "/f2").expect("there");
    assert_eq!(source.tree.node(id).flags, extant_ondisk::inode::InodeFlags::NODUMP);
}

#[test]
fn messages_are_short_however_long_the_values_of_an_archive_are() {
    let long = "n".repeat(1 << 20);
    let keys = ["path", "linkpath", "uid", "mtime", "size", "SCHILY.acl.access", "SCHILY.devmajor", "GNU.sparse.map"];
    for record in keys.iter().map(|key| format!("{key}={long}")).chain([format!("{long}=x"), long.clone()]) {
        for kind in [b'0', b'1', b'2', b'3'] {
            let members = [TarMember::pax(b'x', &record), TarMember::new("f", kind, b"")];
            let said = match read(&archive(&members)) {
                Err(error) => error.to_string(),
                Ok(source) => source.warnings.concat(),
            };
            assert!(said.len() < 1000, "{} bytes", said.len());
        }
    }
    let records = ["SCHILY.fflags", "SCHILY.xattr.com.unknown"].map(|key| format!("{key}.{long}={long}"));
    let members = records.iter().map(|record| TarMember::pax(b'x', record)).chain([TarMember::new("f", b'0', b"")]);
    let source = read(&archive(&members.collect::<Vec<_>>())).expect("read");
    assert!(source.warnings.concat().len() < 1000, "{:?}", source.warnings);
}

#[test]
fn memory_of_entries_is_bounded_by_the_bytes_stored() {
    let large = "x".repeat(1 << 20);
    let entries = (0..100).map(|n| TarMember::new(&format!("f{n}"), b'0', b""));
    let members: Vec<TarMember> =
        std::iter::once(TarMember::pax(b'g', &format!("SCHILY.xattr.user.x={large}"))).chain(entries).collect();
    let said = refused(&packed("gzip", &archive(&members)));
    let start = "f.tar: f64: names, attributes and sparse maps up to here take ";
    assert!(said.starts_with(start) && said.ends_with(" (at byte 1082368)"), "{said}");
    assert!(read(&archive(&members[..60])).is_ok());
    let comment = format!("comment={}", "x".repeat(9 << 20));
    for kind in [b'x', b'g', b'L', b'K'] {
        let one = match kind {
            b'x' | b'g' => TarMember::pax(kind, &comment),
            _ => TarMember::new("long", kind, comment.as_bytes()),
        };
        let said = refused(&archive(&[one.clone(), one, TarMember::new("f", b'0', b"")]));
        let start = "f.tar: the extended headers of an entry, and those of all, have at most 16777216 bytes (at byte ";
        assert!(said.starts_with(start), "{said}");
    }
}

/// Stored bytes may take as much memory again, in a file and in a stream.
#[test]
fn entries_that_are_stored_in_full_may_take_their_size_in_memory() {
    let comment = format!("SCHILY.xattr.user.x={}", "x".repeat(1 << 20));
    let entries = (0..70).flat_map(|n| [TarMember::pax(b'x', &comment), TarMember::new(&format!("f{n}"), b'0', b"")]);
    assert_eq!(read(&archive(&entries.collect::<Vec<_>>())).expect("read").tree.len(), 71);
}

#[test]
fn the_map_of_a_sparse_file_counts_as_memory() {
    let comment = format!("SCHILY.xattr.user.x={}", "x".repeat(1 << 20));
    let with_ranges = |count: usize| {
        let entries =
            (0..63).flat_map(|n| [TarMember::pax(b'x', &comment), TarMember::new(&format!("f{n}"), b'0', b"")]);
        let records = ["GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.realsize=999999999"];
        let records: Vec<u8> = records.iter().flat_map(|record| TarMember::pax(b'x', record).body).collect();
        let ranges: String = (0..count).map(|n| format!("{}\n512\n", n * 1024)).collect();
        let mut body = format!("{count}\n{ranges}").into_bytes();
        body.resize(body.len().next_multiple_of(512) + count * 512, 0);
        let sparse = [TarMember::new("x", b'x', &records), TarMember::new("sparse", b'0', &body)];
        packed("gzip", &archive(&entries.chain(sparse).collect::<Vec<_>>()))
    };
    assert_eq!(read(&with_ranges(10)).expect("read").tree.len(), 65);
    let said = refused(&with_ranges(50_000));
    let start = "f.tar: sparse: names, attributes and sparse maps up to here take ";
    assert!(said.starts_with(start), "{said}");
}

#[test]
fn an_archive_that_changes_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("f.tar");
    std::fs::write(&path, archive(&[TarMember::new("a", b'0', &[7; 700])])).expect("written");
    let source = Source::tar(&path, Options::default()).expect("read");
    let Body::File { content, .. } = source.tree.node(Id(1)).body else { panic!("a file") };
    let file = source.content.open(content).expect("opened");
    std::fs::File::options().write(true).open(&path).expect("opened").set_len(600).expect("cut");
    let said = |error: Error| error.to_string();
    assert!(
        said(file.read_at(0, &mut [0; 700]).expect_err("cut")).ends_with("f.tar: became shorter while it was read")
    );
    assert!(said(file.finish().expect_err("changed")).ends_with("f.tar: changed while it was read"));
}

#[test]
fn a_spool_that_cannot_be_made_is_named() {
    let options = Options { spool: "/nonexistent/place".into(), ..Options::default() };
    let archive = archive(&[TarMember::new("a", b'0', b"x")]);
    let error = Source::tar_stream("-".into(), Box::new(&archive[..]), options).err().expect("refused");
    let expected = "/nonexistent/place: the contents of the archive cannot be stored here: No such file or directory; \
                    name another directory in TMPDIR";
    assert_eq!(error.to_string(), expected);
}

/// Every file of a source that was accepted can be read.
fn read_all(source: &Source) {
    for id in (0..source.tree.len() as u32).map(Id) {
        if let Body::File { size, content, .. } = source.tree.node(id).body {
            let file = source.content.open(content).expect("opened");
            let some = size.min(1 << 16);
            for offset in [0, size - some] {
                file.read_at(offset, &mut vec![0; some as usize]).expect("read");
            }
        }
    }
}

/// The same property as the fuzz target `tar`.
#[test]
fn damaged_archives_are_read_or_refused_and_never_anything_else() {
    let dir = tempfile::tempdir().expect("directory");
    make_tree(dir.path());
    std::fs::remove_file(dir.path().join("dir/below/large")).expect("removed");
    let posix = tar(dir.path(), POSIX);
    let archives =
        [packed("xz", &posix), packed("zstd", &posix), packed("gzip", &posix), tar(dir.path(), &["-S"]), posix];
    let mut rng = Rng::new(45);
    let mut accepted = 0;
    for round in 0..1500 {
        let which = round % 8;
        let mut archive = archives[which.min(4)].clone();
        for _ in 0..=rng.below(8) {
            // Mostly in the headers, which only these archives have uncompressed.
            let headers: Vec<usize> = if which >= 3 {
                (0..archive.len()).step_by(512).filter(|at| archive[*at..].get(257) == Some(&b'u')).collect()
            } else {
                vec![]
            };
            let at = match headers.len() as u64 {
                0 => rng.below(archive.len() as u64) as usize,
                some => headers[rng.below(some) as usize] + rng.below(1024) as usize,
            };
            let Some(byte) = archive.get_mut(at) else { continue };
            *byte = match rng.below(3) {
                0 => rng.next_u32() as u8,
                1 => b'0' + rng.below(8) as u8,
                _ => *byte ^ 1 << rng.below(8),
            };
        }
        if rng.one_in(4) {
            archive.truncate(rng.below(archive.len() as u64) as usize);
        }
        for block in archive.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
            sign(block);
        }
        match Source::tar_stream("f.tar".into(), Box::new(&archive[..]), Options::default()) {
            Ok(source) => {
                accepted += 1;
                read_all(&source);
            }
            Err(error) => assert!(error.to_string().starts_with("f.tar: "), "{error}"),
        }
    }
    // Both outcomes occur.
    assert!((100..1400).contains(&accepted), "{accepted} were accepted");
}
