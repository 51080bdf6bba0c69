//! Archives out of a mounted image.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use extant::{ExportOptions, Fs, Image};
use extant_oracle::{MkfsOptions, debugfs_write, make_image};

fn filled() -> Fs {
    let image = Image::memory(32 << 20).format().expect("formatted").mount().expect("mounted");
    image.create_dir_all("/tree/below").expect("directories");
    image.write("/tree/a", vec![7; 70_000]).expect("a file");
    image.hard_link("/tree/a", "/tree/below/b").expect("a link");
    image.symlink("../a", "/tree/below/link").expect("a link");
    image
}

/// The exit status and the output of tar.
fn tar(dir: &Path, how: &str) -> (Option<i32>, String) {
    let out = Command::new("tar").args([how, "archive.tar"]).current_dir(dir).env("LC_ALL", "C").output().expect("tar");
    (out.status.code(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
}

/// A pipe whose reader goes away after some bytes.
struct Short {
    room: usize,
    taken: Vec<u8>,
}

impl Write for Short {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let n = bytes.len().min(self.room);
        self.room -= n;
        self.taken.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn tar_restores_an_archive() {
    let dir = tempfile::tempdir().expect("a folder");
    let image = filled();
    let mut archive = Vec::new();
    image.export(&mut archive, &ExportOptions::new().path("/tree")).expect("exported");
    let mut again = Vec::new();
    image.export(&mut again, &ExportOptions::new().path("tree/")).expect("exported");
    assert!(archive == again, "the same tree, the same bytes");
    fs::write(dir.path().join("archive.tar"), &archive).expect("written");
    let (code, listed) = tar(dir.path(), "-tf");
    let names: Vec<_> = listed.lines().collect();
    assert_eq!((code, names), (Some(0), vec!["./", "./a", "./below/", "./below/b", "./below/link"]));
    assert_eq!(tar(dir.path(), "-xf").0, Some(0));
    assert!(fs::read(dir.path().join("below/b")).expect("read") == vec![7; 70_000]);
}

#[test]
fn an_export_that_fails_is_no_whole_archive() {
    let dir = tempfile::tempdir().expect("a folder");
    let image = filled();
    let mut short = Short { room: 40_000, taken: Vec::new() };
    let error = image.export(&mut short, &ExportOptions::new()).expect_err("full");
    assert_eq!(error.raw_os_error(), 28, "{error}");
    assert!(short.taken.len() == 40_000 && !error.is_damage());
    fs::write(dir.path().join("archive.tar"), &short.taken).expect("written");
    assert_eq!(tar(dir.path(), "-tf").0, Some(2));

    let missing = image.export(Vec::new(), &ExportOptions::new().path("/none")).expect_err("missing");
    assert_eq!((missing.raw_os_error(), missing.path()), (2, Some(Path::new("/none"))));
    let other = image.clone();
    image.unmount().expect("unmounted");
    assert_eq!(other.export(Vec::new(), &ExportOptions::new()).expect_err("unmounted").raw_os_error(), 9);
}

/// The map of a file is lost: with a rescue, the archive has the rest, and the caller learns of the file.
#[test]
fn a_rescue_exports_what_can_be_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = make_image(dir.path(), &MkfsOptions::new("ext4", 16 << 20)).expect("made");
    let image = Image::open(&path);
    let fs = image.mount().expect("mounted");
    fs.write("/a", "whole").expect("a file");
    fs.write("/b", "hurt").expect("a file");
    fs.unmount().expect("unmounted");
    debugfs_write(&path, "set_inode_field /b block[IND] 7\nset_inode_field /b block[0] 7\n").expect("damaged");

    let fs = image.clone().read_only().mount().expect("mounted");
    let mut archive = Vec::new();
    let error = fs.export(&mut archive, &ExportOptions::new().on_loss(|e| panic!("{e}"))).expect_err("damaged");
    assert!(error.is_damage() && error.path() == Some(Path::new("/b")), "{error}");
    drop(fs);
    let fs = image.rescue().mount().expect("mounted");
    let mut reasons = Vec::new();
    let mut archive = Vec::new();
    fs.export(&mut archive, &ExportOptions::new().on_loss(|e| reasons.push(e.to_string()))).expect("exported");
    assert!(reasons.len() == 1 && reasons[0].contains("/b"), "{reasons:?}");
    assert!(archive.windows(5).any(|part| part == b"whole"));
    std::fs::write(dir.path().join("archive.tar"), &archive).expect("written");
    assert_eq!(tar(dir.path(), "-tf").0, Some(0));
}
