//! `extant mkfs --format android-sparse`.

use std::process::Command;

use crate::common::{Dir, extant, extant_path, run};

#[test]
fn a_sparse_image_unpacks_to_the_raw_image() {
    let dir = Dir::new();
    let tree = dir.tree();
    let [raw, sparse, unpacked] = ["raw.img", "sparse.img", "unpacked.img"].map(|name| dir.text(name));
    for (image, format) in [(&raw, "raw"), (&sparse, "android-sparse")] {
        let made = Command::new(extant_path())
            .args(["mkfs", "-q", "-d", &tree, "--format", format, image, "64M"])
            .env("SOURCE_DATE_EPOCH", "1000000000")
            .output()
            .expect("extant");
        assert!(made.status.success() && made.stderr.is_empty(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let packed = std::fs::read(&sparse).expect("image");
    assert!(packed.starts_with(b"\x3a\xff\x26\xed") && packed.len() < 6 << 20, "{}", packed.len());
    extant(&["info", &sparse]).fails(8, &["an Android sparse image", "simg2img"]);
    let left: Vec<_> = std::fs::read_dir(dir.path("")).expect("list").map(|e| e.expect("entry").file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".extant-")), "{left:?}");
    if run("sh", &["-c", "command -v simg2img"]).code != Some(0) {
        eprintln!("skipped: needs simg2img");
        return;
    }
    crate::common::tool("simg2img", &[&sparse, &unpacked]);
    assert!(std::fs::read(&unpacked).expect("unpacked") == std::fs::read(&raw).expect("raw"));
}

#[test]
fn a_link_leads_to_the_sparse_image() {
    let dir = Dir::new();
    let [image, link] = ["i.img", "link.img"].map(|name| dir.text(name));
    std::fs::write(&image, "").expect("file");
    std::os::unix::fs::symlink("i.img", &link).expect("link");
    extant(&["mkfs", "-q", "--format", "android-sparse", &link, "16M"]).ok();
    assert!(std::fs::symlink_metadata(&link).expect("link").is_symlink());
    assert!(std::fs::read(&image).expect("image").starts_with(b"\x3a\xff\x26\xed"));
}

#[test]
fn a_part_of_an_image_is_not_packed() {
    let dir = Dir::new();
    let image = dir.text("i.img");
    std::fs::write(&image, vec![0; 32 << 20]).expect("file");
    let at = format!("{image}?offset=1048576");
    extant(&["mkfs", "-q", "--format", "android-sparse", &at, "16M"]).fails(1, &["an image file as a whole"]);
    assert!(std::fs::read(&image).expect("file").iter().all(|byte| *byte == 0));
}
