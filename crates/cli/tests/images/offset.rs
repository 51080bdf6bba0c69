//! The part of an image that a command works on: a partition or an offset, given by an option or in the name.

use crate::common::{Dir, extant, fsck_clean, whole_disk};

const OFFSET: u64 = 1_234_944;

/// An image with a file system that begins at byte [`OFFSET`], and a copy of that file system.
fn in_the_middle(dir: &Dir) -> (String, String) {
    let image = dir.image("ext4", &[]);
    let middle = dir.text("c.sif");
    let mut bytes = vec![0; OFFSET as usize];
    bytes.extend(std::fs::read(&image).expect("image"));
    std::fs::write(&middle, bytes).expect("written");
    (middle, image)
}

#[test]
fn verbs_find_a_file_system_at_an_offset() {
    let dir = Dir::new();
    let (middle, image) = in_the_middle(&dir);
    let offset = OFFSET.to_string();
    let named = |path: &str| format!("{middle}?offset={OFFSET}{path}");
    let plain = |args: &[&str]| String::from_utf8_lossy(&extant(args).out).into_owned();
    for (verb, path) in [("ls", ""), ("cat", ":/etc/passwd"), ("stat", ":/big"), ("tree", ""), ("find", ""), ("du", "")]
    {
        let wanted = plain(&[verb, &format!("{image}{path}")]).replace(&image, "IMAGE");
        let said = |out: String| out.replace(&named(""), "IMAGE");
        assert_eq!(said(plain(&[verb, "--offset", &offset, &format!("{middle}{path}")])), wanted, "{verb}");
        assert_eq!(said(plain(&[verb, &named(path)])), wanted, "{verb}");
    }
    extant(&["ls", &middle]).fails(8, &["no ext2/3/4 file system"]);
    let info: serde_json::Value = serde_json::from_slice(&extant(&["info", "--json", &named("")]).out).expect("JSON");
    assert_eq!((&info["offset"], &info["filesystem"]["type"]), (&OFFSET.into(), &"ext4".into()));
    assert!(plain(&["df", &named("")]).contains(&named("")));
}

#[test]
fn verbs_change_a_file_system_at_an_offset() {
    let dir = Dir::new();
    let (middle, _) = in_the_middle(&dir);
    let offset = OFFSET.to_string();
    let at = |path: &str| format!("{middle}:{path}");
    let verbs: [(&str, &[&str]); 8] = [
        ("mkdir", &[&at("/new")]),
        ("touch", &[&at("/new/a")]),
        ("ln", &["-s", "a", &at("/new/b")]),
        ("mv", &[&at("/new/a"), &at("/new/c")]),
        ("chmod", &["600", &at("/new/c")]),
        ("chown", &["7:8", &at("/new/c")]),
        ("mknod", &[&at("/new/p"), "p"]),
        ("cp", &[&at("/etc/passwd"), &at("/new/passwd")]),
    ];
    for (verb, args) in verbs {
        extant(&[&[verb, "--offset", &offset], args].concat()).ok();
    }
    for xattr in [&["--offset", &offset, "set"][..], &["set", "--offset", &offset]] {
        extant(&[&["xattr"], xattr, &["user.a", "b", &at("/new/c")]].concat()).ok();
    }
    std::fs::write(dir.path("lines"), "rm /new/b\n").expect("script");
    extant(&["script", "--offset", &offset, &middle, &dir.text("lines")]).ok();
    let named = format!("{middle}?offset={OFFSET}");
    assert_eq!(extant(&["ls", &format!("{named}:/new")]).ok(), "c\np\npasswd\n");
    let bytes = std::fs::read(&middle).expect("image");
    let whole = dir.text("part.img");
    std::fs::write(&whole, &bytes[OFFSET as usize..]).expect("written");
    assert!(bytes[..OFFSET as usize].iter().all(|b| *b == 0));
    fsck_clean(&whole);
}

/// The two images of one copy may have different parts; an option applies to names without a part.
#[test]
fn the_part_in_a_name_overrides_the_option() {
    let dir = Dir::new();
    let (middle, image) = in_the_middle(&dir);
    let disk = dir.text("whole.img");
    whole_disk(&disk, &image);
    let named = format!("{middle}?offset={OFFSET}:/");
    extant(&["cp", "--partition", "5", &format!("{disk}:/etc/passwd"), &format!("{named}copied")]).ok();
    let text = extant(&["cat", &format!("{disk}@5:/etc/passwd")]).ok();
    assert_eq!(extant(&["cat", &format!("{named}copied")]).ok(), text);
    // Two options for the same thing.
    extant(&["ls", "--partition", "5", "--offset", "1M", &disk]).fails(1, &["--offset", "cannot be used with"]);
    extant(&["ls", "--offset", "513", &disk]).fails(8, &["offset 513 is not a multiple of 512"]);
    extant(&["ls", "--offset", "1T", &disk]).fails(8, &["offset 1099511627776 is past the end"]);
    // A line of a script applies to the script's image.
    std::fs::write(dir.path("lines"), "rm --partition 5 /etc/passwd\n").expect("script");
    extant(&["script", &disk, &dir.text("lines"), "--partition", "5"]).fails(1, &["unexpected argument '--partition'"]);
}

#[test]
fn an_existing_file_overrides_a_name_with_a_part() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let odd = format!("{image}?offset=512");
    std::fs::rename(&image, &odd).expect("renamed");
    assert!(extant(&["cat", &format!("{odd}:/etc/passwd")]).ok().contains("root"));
    assert!(extant(&["cat", &odd, "/etc/passwd"]).ok().contains("root"));
}
