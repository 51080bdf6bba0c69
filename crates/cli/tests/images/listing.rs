//! ls of several paths and in several orders; find with and, or, parentheses, -newer and -prune: compared with ls(1)
//! and find(1).

use std::path::Path;

use crate::common::{Dir, extant, tool};

/// A tree on the host, and an image of it.
fn tree_and_image(dir: &Dir) -> (String, String) {
    let top = dir.text("t");
    std::fs::create_dir_all(dir.path("t/a/sub")).expect("directories");
    std::fs::create_dir_all(dir.path("t/b")).expect("directories");
    for (name, len, seconds) in
        [("a/one", 10, 300), ("a/two", 3000, 100), ("a/sub/three", 20, 200), ("b/four", 5, 400), ("five", 0, 500)]
    {
        let path = dir.path("t").join(name);
        std::fs::write(&path, vec![b'x'; len]).expect("file");
        tool("touch", &["-d", &format!("@{seconds}"), path.to_str().expect("UTF-8")]);
    }
    let image = dir.empty_image("i.img", &[]);
    extant(&["cp", "-r", &format!("{top}/."), &format!("{image}:/")]).ok();
    (top, image)
}

#[test]
fn several_paths_are_listed_as_ls_lists_them() {
    let dir = Dir::new();
    let (_, image) = tree_and_image(&dir);
    let ls = |args: &[&str]| extant(&[&["ls"], args].concat()).ok();
    assert_eq!(ls(&[&image, "/b", "/five", "/a"]), "/five\n\n/a:\none\nsub\ntwo\n\n/b:\nfour\n");
    let word = |path: &str| format!("{image}:{path}");
    assert_eq!(ls(&[&word("/b"), &word("/five"), "/a"]), "/five\n\n/a:\none\nsub\ntwo\n\n/b:\nfour\n");
    assert_eq!(ls(&["-d", &image, "/b", "/a"]), "/a\n/b\n");
    assert_eq!(ls(&["-d", &image]), "/\n");
    assert_eq!(ls(&["-0", &image, "/b", "/a/sub"]), "/a/sub/three\0/b/four\0");
    // A directory that cannot be listed is reported, and the rest is listed.
    let some = extant(&["ls", &image, "/nothing", "/b"]);
    assert_eq!(String::from_utf8_lossy(&some.out), "/b:\nfour\n");
    some.fails(8, &["/nothing: no such file"]);

    let other = dir.empty_image("j.img", &[]);
    extant(&["mkdir", &format!("{other}:/c")]).ok();
    let both = ls(&[&word("/b"), &format!("{other}:/")]);
    assert_eq!(both, format!("{image}:/b:\nfour\n\n{other}:/:\nc\nlost+found\n"));
}

#[test]
fn lists_are_sorted_by_time_and_size() {
    let dir = Dir::new();
    let (top, image) = tree_and_image(&dir);
    for options in ["-t", "-S", "-r", "-tr", "-Sr"] {
        let theirs = tool("ls", &[options, &format!("{top}/a/")]);
        let files = |list: &str| list.lines().filter(|name| *name != "sub").map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(files(&extant(&["ls", options, &image, "/a"]).ok()), files(&theirs), "{options}");
    }
    assert_eq!(extant(&["ls", "-td", &image, "/a/two", "/b/four", "/a/one"]).ok(), "/b/four\n/a/one\n/a/two\n");
    let json: serde_json::Value =
        serde_json::from_slice(&extant(&["ls", "-t", "--json", &image, "/a"]).out).expect("JSON");
    let names: Vec<_> = json.as_array().expect("a list").iter().filter_map(|file| file["path"].as_str()).collect();
    assert_eq!(names.iter().filter(|name| **name != "sub").collect::<Vec<_>>(), [&"one", &"two"]);
    let numbered = extant(&["ls", "-i", &image, "/b"]).ok();
    let stat: serde_json::Value =
        serde_json::from_slice(&extant(&["stat", "--json", &image, "/b/four"]).out).expect("JSON");
    assert_eq!(numbered, format!("{} four\n", stat["inode"]));
    extant(&["ls", "-tS", &image]).fails(1, &["cannot be used with"]);
}

/// Compares with the host's find on the same tree.
#[test]
fn expressions_match_the_same_files_as_in_find() {
    let dir = Dir::new();
    let (top, image) = tree_and_image(&dir);
    extant(&["rm", "-r", &format!("{image}:/lost+found")]).ok();
    let expressions: [&[&str]; 12] = [
        &[],
        &["-name", "one", "-o", "-name", "two"],
        &["-type", "f", "(", "-size", "+1", "-o", "-name", "f*", ")"],
        &["-type", "f", "-size", "+1", "-o", "-name", "f*"],
        &["!", "(", "-name", "a", "-o", "-path", "*/a/*", ")"],
        &["-name", "a", "-prune", "-o", "-type", "f", "-print"],
        &["-name", "sub", "-prune", "-o", "-name", "b", "-prune"],
        &["-name", "a", "-print", "-o", "-name", "b"],
        &["-name", "one", "-print", "-print"],
        &["-type", "d", "-a", "!", "-name", "a"],
        &["!", "!", "-name", "one"],
        &["-user", "root", "-o", "-user", "0", "-o", "-not", "-user", "root"],
    ];
    for expression in expressions {
        let theirs = tool("find", &[&[&top[..]], expression].concat()).replace(&top, "");
        let ours = extant(&[&["find", &image], expression].concat()).ok();
        let sorted = |list: &str| {
            let mut lines: Vec<_> =
                list.lines().map(|line| if line.is_empty() { "/" } else { line }.to_owned()).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&ours), sorted(&theirs), "{expression:?}");
    }
    for (wrong, why) in [
        (&["-name", "a", "-o"][..], "a test is missing at the end"),
        (&["-o", "-name", "a"], "a test is missing before '-o'"),
        (&["(", "-name", "a"], "a parenthesis without its pair"),
        (&["-name", "a", ")"], "')' is not expected there"),
        (&["(", ")"], "a test is missing before ')'"),
        (&["-frobnicate"], "'-frobnicate' is not a test of find"),
    ] {
        extant(&[&["find", &image], wrong].concat()).fails(1, &[why]);
    }
    extant(&[&["find", &image][..], &["("; 1000]].concat()).fails(1, &["more than 100 nested parentheses"]);
}

#[test]
fn find_compares_times_with_files_of_the_host_and_of_images() {
    let dir = Dir::new();
    let (_, image) = tree_and_image(&dir);
    let stamp = dir.text("stamp");
    std::fs::write(&stamp, "").expect("file");
    tool("touch", &["-d", "@200.5", &stamp]);
    let find = |than: &str| extant(&["find", &image, "-type", "f", "-newer", than]).ok();
    assert_eq!(find(&stamp), "/a/one\n/b/four\n/five\n");
    assert_eq!(find(&format!("{image}:/a/one")), "/b/four\n/five\n");
    assert!(!Path::new("no-such-stamp").exists());
    extant(&["find", &image, "-newer", "no-such-stamp"]).fails(8, &["no-such-stamp: No such file"]);
}
