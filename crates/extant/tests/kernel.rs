//! The library beside the kernel: the same calls on the same image fail with the same numbers, and what one writes the
//! other reads.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use extant::{Fs, Image};
use extant_oracle::mount::{LoopMount, loop_mounts_work};
use extant_oracle::{MkfsOptions, expect_clean, make_image};
use rustix::fs::XattrFlags;

/// A tree with something for each error.
fn furnish(dir: &Path) {
    fs::create_dir_all(dir.join("full/inner")).expect("directories");
    fs::write(dir.join("file"), "text").expect("file");
    std::os::unix::fs::symlink("loop", dir.join("loop")).expect("link");
    std::os::unix::fs::symlink("/nowhere/x", dir.join("dangling")).expect("link");
}

/// An operation, and its answer from the kernel below a directory and from the library.
type Case = (&'static str, fn(&Path) -> io::Result<()>, fn(&Fs) -> extant::Result<()>);

fn open_new(path: &Path) -> io::Result<()> {
    fs::OpenOptions::new().write(true).create_new(true).open(path).map(drop)
}

const CASES: &[Case] = &[
    ("open a missing file", |d| fs::File::open(d.join("none")).map(drop), |f| f.open("/none").map(drop)),
    ("open an empty path", |_| fs::File::open("").map(drop), |f| f.open("").map(drop)),
    ("create below a missing directory", |d| fs::write(d.join("no/x"), ""), |f| f.write("/no/x", "")),
    ("create below a file", |d| fs::write(d.join("file/x"), ""), |f| f.write("/file/x", "")),
    ("open a file with a slash", |d| fs::File::open(d.join("file/")).map(drop), |f| f.open("/file/").map(drop)),
    ("open a file as a directory", |d| fs::metadata(d.join("file/.")).map(drop), |f| f.metadata("/file/.").map(drop)),
    ("write a directory", |d| fs::write(d.join("full"), ""), |f| f.write("/full", "")),
    ("read a directory", |d| fs::read(d.join("full")).map(drop), |f| f.read("/full").map(drop)),
    ("create with a slash", |d| fs::write(d.join("new/"), ""), |f| f.write("/new/", "")),
    ("create through a dangling link", |d| fs::write(d.join("dangling"), ""), |f| f.write("/dangling", "")),
    ("make a directory twice", |d| fs::create_dir(d.join("full")), |f| f.create_dir("/full")),
    ("make dot", |d| fs::create_dir(d.join("full/.")), |f| f.create_dir("/full/.")),
    (
        "create a file twice",
        |d| open_new(&d.join("file")),
        |f| extant::OpenOptions::new().write(true).create_new(true).open(f, "/file").map(drop),
    ),
    (
        "create over a dangling link",
        |d| open_new(&d.join("dangling")),
        |f| extant::OpenOptions::new().write(true).create_new(true).open(f, "/dangling").map(drop),
    ),
    ("remove a full directory", |d| fs::remove_dir(d.join("full")), |f| f.remove_dir("/full")),
    ("remove dot", |d| fs::remove_dir(d.join("full/.")), |f| f.remove_dir("/full/.")),
    ("remove dot dot", |d| fs::remove_dir(d.join("full/inner/..")), |f| f.remove_dir("/full/inner/..")),
    ("remove a file as a directory", |d| fs::remove_dir(d.join("file")), |f| f.remove_dir("/file")),
    ("remove a directory as a file", |d| fs::remove_file(d.join("full")), |f| f.remove_file("/full")),
    ("remove a file with a slash", |d| fs::remove_file(d.join("file/")), |f| f.remove_file("/file/")),
    ("remove the root", |d| fs::remove_dir(d), |f| f.remove_dir("/")),
    ("a name of 256 bytes", |d| fs::write(d.join("n".repeat(256)), ""), |f| f.write("n".repeat(256), "")),
    (
        "a name of 256 bytes, looked up",
        |d| fs::metadata(d.join("n".repeat(256))).map(drop),
        |f| f.metadata("n".repeat(256)).map(drop),
    ),
    ("a loop of links", |d| fs::read(d.join("loop")).map(drop), |f| f.read("/loop").map(drop)),
    ("a loop of links, created", |d| fs::write(d.join("loop"), ""), |f| f.write("/loop", "")),
    (
        "a directory below itself",
        |d| fs::rename(d.join("full"), d.join("full/inner/x")),
        |f| f.rename("/full", "/full/inner/x"),
    ),
    ("a file over a directory", |d| fs::rename(d.join("file"), d.join("full")), |f| f.rename("/file", "/full")),
    ("a directory over a file", |d| fs::rename(d.join("full"), d.join("file")), |f| f.rename("/full", "/file")),
    ("rename dot", |d| fs::rename(d.join("full/."), d.join("x")), |f| f.rename("/full/.", "/x")),
    ("rename a file to a slash", |d| fs::rename(d.join("file"), d.join("x/")), |f| f.rename("/file", "/x/")),
    ("link a directory", |d| fs::hard_link(d.join("full"), d.join("x")), |f| f.hard_link("/full", "/x")),
    ("link over a file", |d| fs::hard_link(d.join("file"), d.join("dangling")), |f| f.hard_link("/file", "/dangling")),
    ("an empty link", |d| std::os::unix::fs::symlink("", d.join("x")), |f| f.symlink("", "/x")),
    ("read a file as a link", |d| fs::read_link(d.join("file")).map(drop), |f| f.read_link("/file").map(drop)),
    ("list a file", |d| fs::read_dir(d.join("file")).map(drop), |f| f.read_dir("/file").map(drop)),
    (
        "a missing attribute",
        |d| Ok(rustix::fs::getxattr(d.join("file"), "user.x", &mut [0; 8][..]).map(drop)?),
        |f| f.get_xattr("/file", "user.x").map(drop),
    ),
    (
        "an attribute of no known kind",
        |d| Ok(rustix::fs::setxattr(d.join("file"), "odd.x", b"", XattrFlags::empty())?),
        |f| f.set_xattr("/file", "odd.x", ""),
    ),
    (
        "a file beyond the format",
        |d| fs::File::options().write(true).open(d.join("file"))?.set_len(1 << 62),
        |f| extant::OpenOptions::new().write(true).open(f, "/file")?.set_len(1 << 62),
    ),
];

#[test]
fn errors_have_the_numbers_of_the_kernel_and_name_the_path() {
    if !loop_mounts_work() {
        eprintln!("no loop mounts here: skipped");
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let image = make_image(dir.path(), &MkfsOptions::new("ext4", 16 << 20)).expect("made");
    let at = dir.path().join("mnt");
    fs::create_dir(&at).expect("mount point");
    let mount = LoopMount::new(&image, &at, "rw").expect("mounted");
    furnish(&at);
    let kernel: Vec<_> = CASES
        .iter()
        .map(|(what, op, _)| op(&at).expect_err(what).raw_os_error().unwrap_or_else(|| panic!("{what}: no number")))
        .collect();
    drop(mount);
    let fs = Image::open(&image).mount().expect("mounted");
    let mut numbers = std::collections::BTreeSet::new();
    for ((what, _, op), kernel) in CASES.iter().zip(kernel) {
        let error = op(&fs).expect_err(what);
        assert_eq!(error.raw_os_error(), kernel, "{what}: {error}");
        let path = error.path().unwrap_or_else(|| panic!("{what}: no path"));
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{what}: {error}");
        assert!(error.to_string().starts_with(&*image.to_string_lossy()), "{what}: {error}");
        let through = io::Error::from(error);
        assert_eq!(through.kind(), io::Error::from_raw_os_error(kernel).kind(), "{what}");
        assert_eq!(extant::Error::of(&through).map(extant::Error::raw_os_error), Some(kernel), "{what}");
        numbers.insert(kernel);
    }
    assert!(numbers.len() >= 10, "{numbers:?}");
    fs.unmount().expect("unmounted");
    expect_clean(&image).expect("clean");
}

#[test]
fn a_full_image_and_a_read_only_one_answer_as_the_kernel_does() {
    let dir = tempfile::tempdir().expect("directory");
    let image = make_image(dir.path(), &MkfsOptions::new("ext4", 8 << 20)).expect("made");
    let fs = Image::open(&image).mount().expect("mounted");
    let full = fs.write("/large", vec![1; 16 << 20]).expect_err("full");
    assert_eq!((full.raw_os_error(), full.kind()), (28, ErrorKind::StorageFull));
    assert!(full.to_string().contains("/large"), "{full}");
    // A second mount of the same image, in this process as in another, is refused.
    let twice = Image::open(&image).mount().expect_err("in use");
    assert_eq!(twice.raw_os_error(), 16, "{twice}");
    fs.unmount().expect("unmounted");
    let fs = Image::open(&image).read_only().mount().expect("mounted");
    for error in [fs.write("/x", ""), fs.create_dir("/x"), fs.remove_file("/large"), fs.set_permissions("/large", 0)] {
        assert_eq!(error.expect_err("read-only").raw_os_error(), 30);
    }
    drop(fs);
    expect_clean(&image).expect("clean");
}

#[test]
fn any_bytes_but_nul_are_a_name() {
    let fs = Image::memory(16 << 20).format().and_then(|image| image.mount()).expect("mounted");
    let odd = Path::new(std::ffi::OsStr::from_bytes(b"/\xff\n\x01"));
    fs.write(odd, "x").expect("written");
    let listed: Vec<_> = fs.read_dir("/").expect("listed").map(|e| e.expect("entry").path()).collect();
    assert!(listed.iter().any(|path| path == odd), "{listed:?}");
    let nul = fs.read("a\0b").expect_err("NUL");
    assert_eq!(nul.raw_os_error(), 22);
    assert!(!nul.to_string().contains('\0'));
    // The parent of the root is the root.
    assert_eq!(fs.read("/../../\u{e9}/..").expect_err("missing").raw_os_error(), 2);
    fs.unmount().expect("unmounted");
}

#[test]
fn handles_fail_after_an_unmount_and_the_last_one_dropped_unmounts() {
    let disk = extant::device::memory(16 << 20);
    let image = Image::device(disk).format().expect("formatted");
    let fs = image.mount().expect("mounted");
    fs.write("/a", "text").expect("written");
    let file = fs.open("/a").expect("opened");
    fs.clone().unmount().expect("unmounted");
    assert_eq!(file.read_at(&mut [0; 4], 0).expect_err("ended").raw_os_error(), 9);
    assert_eq!(fs.read_dir("/").expect_err("ended").raw_os_error(), 9);
    drop((file, fs));
    let file = image.mount().expect("mounted").create("/b").expect("created");
    file.write_at(b"late", 0).expect("written");
    drop(file);
    let report = image.check().expect("checked");
    assert!(report.complete && report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(image.mount().expect("mounted").read("/b").expect("read"), b"late");
}

#[test]
fn damage_names_its_place_and_does_not_stop_the_rest() {
    let disk = extant::device::memory(16 << 20);
    let image = Image::device(disk.clone()).format().expect("formatted");
    let fs = image.mount().expect("mounted");
    fs.create_dir("/d").expect("made");
    fs.write("/d/file", "text").expect("written");
    fs.write("/other", "text").expect("written");
    let ino = fs.metadata("/d/file").expect("metadata").ino();
    fs.unmount().expect("unmounted");
    // The place of the inode, by the first bytes of what it holds: its checksum no longer fits.
    let mut all = vec![0; 16 << 20];
    disk.read_at(0, &mut all, extant_block_flags()).expect("read");
    let sb = &all[1024..2048];
    let field = |at: usize| u32::from_le_bytes(sb[at..at + 4].try_into().expect("four bytes")) as usize;
    let (block, size) = (1024usize << field(24), usize::from(u16::from_le_bytes([sb[88], sb[89]])));
    let descriptors = if block == 1024 { 2 * block } else { block };
    let table = u32::from_le_bytes(all[descriptors + 8..descriptors + 12].try_into().expect("four bytes")) as usize;
    let at = table * block + (ino as usize - 1) * size;
    let sector = at - at % 512;
    all[at + 4] ^= 0xff;
    disk.write_at(sector as u64, &[&all[sector..sector + 512]], extant_block_flags()).expect("written");
    let fs = image.mount().expect("mounted");
    let error = fs.read("/d/file").expect_err("damaged");
    assert!(error.is_damage() && error.raw_os_error() == 117, "{error}");
    let source = std::error::Error::source(&error).expect("a source").to_string();
    assert!(source.contains(&ino.to_string()), "{source}");
    assert_eq!(fs.read("/other").expect("sound"), b"text");
    fs.unmount().expect("unmounted");
}

fn extant_block_flags() -> extant::device::BioFlags {
    extant::device::BioFlags::empty()
}

#[test]
fn a_device_that_fails_or_ends_early_is_an_error_and_not_success() {
    use std::io::{Cursor, Read, Seek, SeekFrom, Write};
    /// Says that it is longer than it is.
    struct Liar(Cursor<Vec<u8>>);
    impl Read for Liar {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }
    impl Write for Liar {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            let end = self.0.get_ref().len() as u64;
            if self.0.position() + data.len() as u64 > end {
                return Err(io::Error::from_raw_os_error(5));
            }
            self.0.write(data)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl Seek for Liar {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            match to {
                SeekFrom::End(0) => Ok(64 << 20),
                to => self.0.seek(to),
            }
        }
    }
    let liar = extant::device::from_io("liar", Liar(Cursor::new(vec![0; 24 << 20]))).expect("a device");
    // The superblocks behind the end cannot be written.
    let error = Image::device(liar).format().expect_err("too short");
    assert_eq!(error.raw_os_error(), 5, "{error}");
    let small = extant::device::from_io("small", Cursor::new(vec![0; 700])).expect("a device");
    assert_eq!(Image::device(small).mount().expect_err("no file system").raw_os_error(), 22);
}
