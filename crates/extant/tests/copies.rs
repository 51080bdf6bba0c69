//! Copies between the host and an image: what they keep, and what they refuse.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, UNIX_EPOCH};

use extant::{Fs, Image};

fn mounted() -> Fs {
    Image::memory(32 << 20).format().expect("formatted").mount().expect("mounted")
}

#[test]
fn trees_keep_content_modes_times_links_and_holes() {
    let dir = tempfile::tempdir().expect("a folder");
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("a/b")).expect("directories");
    let mut content = vec![0; 1 << 20];
    content.extend_from_slice(b"end");
    fs::write(from.join("a/b/sparse"), &content).expect("a file");
    fs::write(from.join("empty"), "").expect("a file");
    symlink("../nowhere", from.join("link")).expect("a link");
    let then = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::open(from.join("empty")).and_then(|f| f.set_modified(then)).expect("a time");
    fs::set_permissions(from.join("a"), fs::Permissions::from_mode(0o500)).expect("a mode");

    let image = mounted();
    image.copy_in(&from, "/copy").expect("copied in");
    let sparse = image.metadata("/copy/a/b/sparse").expect("there");
    assert!(sparse.len() == content.len() as u64 && sparse.blocks() < 200, "{sparse:?}");
    assert_eq!(image.metadata("/copy/empty").expect("there").modified(), then);
    assert_eq!(image.metadata("/copy/a").expect("there").mode(), 0o500);
    image.set_permissions("/copy/empty", 0o6751).expect("a mode");

    let to = dir.path().join("to");
    image.copy_out("/copy", &to).expect("copied out");
    assert!(fs::read(to.join("a/b/sparse")).expect("read") == content);
    assert_eq!(fs::read_link(to.join("link")).expect("a link"), fs::read_link(from.join("link")).expect("a link"));
    let empty = fs::metadata(to.join("empty")).expect("there");
    // Its power stays in the image.
    assert_eq!((empty.mode() & 0o7777, empty.modified().expect("a time")), (0o751, then));
    assert_eq!(fs::metadata(to.join("a")).expect("there").mode() & 0o7777, 0o500);
}

#[test]
fn copies_replace_and_follow_nothing_that_exists() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let image = mounted();
    image.write("/f", "from the image").expect("a file");
    fs::write(at("victim"), "kept").expect("a file");
    symlink(at("victim"), at("link")).expect("a link");
    symlink(at("new"), at("dangling")).expect("a link");
    for name in ["victim", "link", "dangling"] {
        let error = image.copy_out("/f", at(name)).expect_err("exists");
        assert!(error.raw_os_error() == 17 && error.to_string().contains(name), "{error}");
    }
    assert!(fs::read(at("victim")).expect("read") == b"kept" && !at("new").exists());

    image.symlink("/f", "/link").expect("a link");
    let error = image.copy_in(at("victim"), "/link").expect_err("exists");
    assert_eq!((error.raw_os_error(), error.path().and_then(|p| p.to_str())), (17, Some("/link")));
    assert_eq!(image.read("/f").expect("read"), b"from the image");
    let error = image.copy_in(at("none"), "/x").expect_err("missing");
    assert!(error.raw_os_error() == 2 && error.to_string().contains("none"), "{error}");
    let error = image.copy_in("/dev/null", "/null").expect_err("a device");
    assert_eq!(error.raw_os_error(), 95);
}

#[test]
fn copies_keep_hard_links_and_attributes_and_no_owners() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let image = mounted();
    image.create_dir_all("/tree/below").expect("directories");
    image.write("/tree/a", "one file").expect("a file");
    image.hard_link("/tree/a", "/tree/below/b").expect("a link");
    image.set_xattr("/tree/a", "user.colour", "green").expect("an attribute");
    image.chown("/tree/a", Some(7), Some(8)).expect("an owner");

    image.copy_out("/tree", at("out")).expect("copied out");
    let (a, b) = (fs::metadata(at("out/a")).expect("there"), fs::metadata(at("out/below/b")).expect("there"));
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
    assert_eq!(a.uid(), fs::metadata(dir.path()).expect("there").uid(), "the caller's file");

    image.copy_in(at("out"), "/in").expect("copied in");
    let a = image.metadata("/in/a").expect("there");
    assert_eq!((a.ino(), a.nlink(), a.uid()), (image.metadata("/in/below/b").expect("there").ino(), 2, 0));
    // Not every temporary folder stores attributes.
    let stored = image.get_xattr("/in/a", "user.colour");
    assert!(stored.is_err_and(|e| e.raw_os_error() == 61) || image.get_xattr("/in/a", "user.colour").is_ok());
}

/// In the middle of a tree, and at its top, on either side.
#[test]
fn errors_name_the_path_in_the_image_and_that_of_the_host() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("tree/below")).expect("directories");
    let socket = std::os::unix::net::UnixListener::bind(at("tree/below/socket")).expect("a socket");
    let image = mounted();
    let path = |e: &extant::Error| e.path().map(|path| path.display().to_string());

    let error = image.copy_in(at("tree"), "copy").expect_err("a socket");
    assert_eq!((error.raw_os_error(), path(&error).as_deref()), (95, Some("copy/below/socket")), "{error}");
    drop(socket);
    let error = image.copy_in(at("tree"), "/none/copy").expect_err("no such directory");
    assert_eq!((error.raw_os_error(), path(&error).as_deref()), (2, Some("/none/copy")), "{error}");
    let error = image.copy_in("", "/empty").expect_err("no path");
    assert_eq!(error.raw_os_error(), 2, "{error}");
    assert_eq!(image.copy_in(at("tree"), "/").expect_err("it exists").raw_os_error(), 17);

    let error = image.copy_out("/copy", at("none/out")).expect_err("no such directory");
    assert!(error.raw_os_error() == 2 && error.to_string().contains("none"), "{error}");
    assert_eq!(path(&error).as_deref(), Some("/copy"));
    // A name that looks like the number of an inode is a name.
    image.write("/<2>", "a file").expect("a file");
    image.copy_out("<2>", at("number")).expect("copied");
    assert_eq!(fs::read(at("number")).expect("read"), b"a file");
}

#[test]
fn copies_of_a_full_image_end_with_enospc() {
    let dir = tempfile::tempdir().expect("a folder");
    let image = Image::memory(4 << 20).format().expect("formatted").mount().expect("mounted");
    fs::write(dir.path().join("large"), vec![1; 8 << 20]).expect("a file");
    let error = image.copy_in(dir.path().join("large"), "/large").expect_err("full");
    assert_eq!((error.raw_os_error(), error.path().and_then(|p| p.to_str())), (28, Some("/large")), "{error}");
}
