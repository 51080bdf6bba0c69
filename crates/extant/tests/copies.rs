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
