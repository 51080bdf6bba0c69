//! A directory that cannot be read completely is never listed without an error.

use crate::common::{Dir, debugfs, extant, patch, run};
use extant_testkit::mount::fuse_works;

/// An image whose directory `/d` has `names` files, with a damaged first entry in its last block.
fn damaged(dir: &Dir, mkfs: &[&str], names: usize) -> String {
    let image = dir.empty_image("damaged.img", mkfs);
    let tree = dir.path("names/d");
    std::fs::create_dir_all(&tree).expect("directories");
    for i in 0..names {
        std::fs::write(tree.join(format!("{i:0>60}")), "x").expect("file");
    }
    extant(&["cp", "-r", tree.to_str().expect("UTF-8"), &format!("{image}:/")]).ok();
    let stat = extant(&["stat", "--json", &image, "/d"]).ok();
    let size = stat.split("\"size\":").nth(1).and_then(|rest| rest.split([',', '}']).next()).expect("a size");
    let block_size = if mkfs.contains(&"1024") { 1024 } else { 4096 };
    let last = size.trim().parse::<u64>().expect("a number") / block_size - 1;
    let block: u64 = debugfs(&image, &format!("bmap /d {last}")).trim().parse().expect("a block");
    patch(&image, block * block_size + 4, &[3, 0]);
    image
}

#[test]
fn listing_a_damaged_directory_of_a_mount_fails() {
    if !fuse_works() {
        eprintln!("skipped: /dev/fuse cannot be opened");
        return;
    }
    for (mkfs, names) in [
        (&["-b", "4096"][..], 3),
        (&["-b", "1024", "-O", "^metadata_csum"], 3),
        (&["-b", "4096"], 2000),
        (&["-b", "1024", "-O", "^metadata_csum,^dir_index"], 2000),
    ] {
        let dir = Dir::new();
        let image = damaged(&dir, mkfs, names);
        let (mnt, out) = (dir.text("mnt"), dir.text("out"));
        std::fs::create_dir(&mnt).expect("directory");
        for options in ["ro", "ro,no_open=0"] {
            extant(&["mount", "-o", options, &image, &mnt]).ok();
            let d = format!("{mnt}/d");
            let tried = [
                run("ls", &["-f", &d]),
                run("ls", &["-l", &d]),
                run("find", &[&d, "-type", "f"]),
                run("cp", &["-a", &d, &out]),
            ];
            let seen = String::from_utf8_lossy(&tried[0].out).lines().filter(|l| l.len() == 60).count();
            extant(&["unmount", &mnt]).ok();
            for ran in tried {
                assert_ne!(ran.code, Some(0), "{mkfs:?} {names} {options}: {}", String::from_utf8_lossy(&ran.out));
                assert!(ran.err.contains("Structure needs cleaning"), "{}", ran.err);
            }
            // All names except those of one block.
            assert!(seen < names && (names < 100 || seen > names - 100), "{seen} of {names}");
            let _ = std::fs::remove_dir_all(&out);
        }
        for args in
            [&["ls", &image, "/d"][..], &["tree", &image], &["find", &image], &["du", &image], &["export", &image]]
        {
            extant(args).fails(8, &["directory"]);
        }
        extant(&["cp", "-r", &format!("{image}:/d"), &out]).fails(8, &["directory"]);
    }
}
