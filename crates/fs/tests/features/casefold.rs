//! Directories that ignore case: every operation on names, against a model and e2fsck, whose hashes of folded names
//! are the judge of the trees.

use extant_oracle::memory as tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Error, Filesystem, InodeRef, MountOptions, Mounted, NewNode, RenameFlags, Result, SetFlags};
use extant_ondisk::casefold::fold;
use extant_ondisk::htree::{HashVersion, Hasher};
use extant_ondisk::inode::InodeFlags;

const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: None };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAIN };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: Some(Cred { uid: 0, gid: 0, umask: 0 }), ..PLAIN };

fn image(args: &[&str]) -> Arc<MemDevice> {
    Arc::new(tools::made(&[&["-t", "ext4", "-b", "1024", "-N", "4096"], args].concat(), "32M"))
}

fn mount(dev: &Arc<MemDevice>) -> Mounted {
    let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
    Filesystem::mount(dev.clone(), options).expect("mounted")
}

fn create(fs: &Filesystem, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
    fs.create(dir, name, NewNode::file(0o644), Cred::default())
}

fn mkdir(fs: &Filesystem, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
    fs.create(dir, name, NewNode::directory(0o755), Cred::default())
}

/// chattr +F or -F.
fn ignore_case(fs: &Filesystem, inode: &InodeRef, on: bool) -> Result<()> {
    let mut flags = InodeFlags::from_bits_retain(fs.getattr(inode).flags);
    flags.set(InodeFlags::CASEFOLD, on);
    fs.set_flags(inode, SetFlags { flags: Some(flags.bits()), ..SetFlags::default() })
}

/// A new directory in the root that ignores case.
fn folded(fs: &Filesystem) -> InodeRef {
    let dir = mkdir(fs, &fs.root().expect("root"), b"folded").expect("mkdir");
    ignore_case(fs, &dir, true).expect("chattr +F");
    dir
}

fn names(fs: &Filesystem, dir: &InodeRef) -> Vec<String> {
    let mut names = Vec::new();
    let listed = fs.read_dir(dir, 0, |item| {
        names.push(String::from_utf8_lossy(item.name).into_owned());
        true
    });
    listed.expect("listed");
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

fn finish(fs: Mounted, dev: &MemDevice) {
    fs.unmount().expect("unmount");
    tools::assert_clean(dev);
}

fn ignores_case(fs: &Filesystem, inode: &InodeRef) -> bool {
    fs.getattr(inode).flags & InodeFlags::CASEFOLD.bits() != 0
}

#[test]
fn only_an_empty_directory_begins_or_ceases_to_ignore_case() {
    let dev = image(&["-O", "casefold"]);
    let fs = mount(&dev);
    let root = fs.root().expect("root");
    assert!(matches!(ignore_case(&fs, &root, true), Err(Error::NotEmpty)), "lost+found is there");
    let d = mkdir(&fs, &root, b"d").expect("mkdir");
    let f = create(&fs, &d, b"f").expect("create");
    assert!(matches!(ignore_case(&fs, &d, true), Err(Error::NotEmpty)));
    assert!(matches!(ignore_case(&fs, &f, true), Err(Error::NotSupported(_))));
    assert!(!ignores_case(&fs, &d) && !ignores_case(&fs, &f));
    drop(f);
    fs.unlink(&d, b"f").expect("unlink");
    ignore_case(&fs, &d, true).expect("chattr +F");
    // New directories inherit the flag, files do not.
    let (below, f) = (mkdir(&fs, &d, b"Below").expect("mkdir"), create(&fs, &d, b"F").expect("create"));
    assert!(ignores_case(&fs, &d) && ignores_case(&fs, &below) && !ignores_case(&fs, &f));
    assert!(matches!(ignore_case(&fs, &d, false), Err(Error::NotEmpty)));
    ignore_case(&fs, &d, true).expect("nothing to do");
    ignore_case(&fs, &below, false).expect("chattr -F");
    assert!(create(&fs, &below, b"x").is_ok() && create(&fs, &below, b"X").is_ok());
    drop((root, d, below, f));
    finish(fs, &dev);

    let dev = image(&[]);
    let fs = mount(&dev);
    let d = mkdir(&fs, &fs.root().expect("root"), b"d").expect("mkdir");
    assert!(matches!(ignore_case(&fs, &d, true), Err(Error::NotSupported(_))), "without the feature");
    drop(d);
    finish(fs, &dev);
}

/// A directory that was large once has an index, which names in any case then use.
#[test]
fn an_emptied_directory_with_an_index_can_ignore_case() {
    let dev = image(&["-O", "casefold"]);
    let fs = mount(&dev);
    let d = mkdir(&fs, &fs.root().expect("root"), b"d").expect("mkdir");
    let name = |i: u32, upper: bool| {
        let name = format!("a name of some length {i:040}");
        if upper { name.to_uppercase() } else { name }.into_bytes()
    };
    for i in 0..300 {
        create(&fs, &d, &name(i, false)).expect("create");
    }
    for i in 0..300 {
        fs.unlink(&d, &name(i, false)).expect("unlink");
    }
    assert!(fs.getattr(&d).size > 10 << 10);
    ignore_case(&fs, &d, true).expect("chattr +F");
    for i in 0..300 {
        create(&fs, &d, &name(i, i % 2 == 0)).expect("create");
    }
    for i in 0..300 {
        assert!(matches!(create(&fs, &d, &name(i, i % 2 == 1)), Err(Error::Exists)));
    }
    drop(d);
    finish(fs, &dev);
}

#[test]
fn a_name_is_one_in_any_case_for_every_operation() {
    for features in ["casefold", "casefold,^dir_index", "casefold,inline_data", "casefold,^metadata_csum"] {
        let dev = image(&["-I", "256", "-O", features]);
        let fs = mount(&dev);
        let (root, d) = (fs.root().expect("root"), folded(&fs));
        let foo = create(&fs, &d, b"Foo").expect("create");
        let other = create(&fs, &root, b"other").expect("create");
        assert!(matches!(create(&fs, &d, b"fOO"), Err(Error::Exists)));
        assert!(matches!(mkdir(&fs, &d, b"FOO"), Err(Error::Exists)));
        assert!(matches!(fs.link(&other, &d, b"foo"), Err(Error::Exists)));
        let careful = RenameFlags { no_replace: true, ..PLAIN };
        assert!(matches!(fs.rename(&root, b"other", &d, b"foo", careful), Err(Error::Exists)));
        assert_eq!(fs.lookup(&d, b"foo").expect("found").ino, foo.ino);
        assert_eq!(fs.lookup(&root, b"FOLDED").err().map(|e| e.to_string()), Some(Error::NotFound.to_string()));
        // A replaced name keeps its spelling, as in Linux.
        fs.rename(&root, b"other", &d, b"FOO", PLAIN).expect("rename");
        assert_eq!((names(&fs, &d), fs.getattr(&foo).nlink), (vec!["Foo".to_owned()], 0));
        assert_eq!(fs.lookup(&d, b"fOo").expect("found").ino, other.ino);
        // Other spellings of one name: the same length, shorter, longer than the entry has room for.
        for name in ["foo", "STRA\u{df}E \u{df}\u{df}\u{df}\u{df}", "strasse ssssssss", "stra\u{df}e \u{df}SSSSss", "x"]
        {
            fs.rename(&d, names(&fs, &d)[0].to_uppercase().as_bytes(), &d, name.as_bytes(), PLAIN).expect(name);
            assert_eq!((names(&fs, &d), fs.getattr(&other).nlink), (vec![name.to_owned()], 1), "{features}");
        }
        // Exchanged with itself, it stays; with another one, both names do.
        fs.rename(&d, b"x", &d, b"X", EXCHANGE).expect("nothing to do");
        fs.rename(&d, b"x", &d, b"X", WHITEOUT).expect("nothing to do");
        let y = create(&fs, &d, b"Y").expect("create");
        fs.rename(&d, b"X", &d, b"y", EXCHANGE).expect("exchange");
        assert_eq!(names(&fs, &d), ["Y", "x"]);
        assert_eq!(fs.lookup(&d, b"X").expect("found").ino, y.ino);
        // The whiteout has the old spelling.
        fs.rename(&d, b"X", &d, b"Moved", WHITEOUT).expect("rename");
        assert_eq!(names(&fs, &d), ["Moved", "Y", "x"]);
        assert_eq!(fs.lookup(&d, b"MOVED").expect("found").ino, y.ino);
        // Two hard links in one directory stay two.
        fs.link(&y, &d, b"Second").expect("link");
        fs.rename(&d, b"MOVED", &d, b"SECOND", PLAIN).expect("nothing to do");
        assert_eq!(names(&fs, &d), ["Moved", "Second", "Y", "x"]);
        let below = mkdir(&fs, &d, b"Below").expect("mkdir");
        assert!(matches!(fs.rename(&d, b"BELOW", &below, b"below", PLAIN), Err(Error::Invalid(_))));
        fs.rename(&d, b"below", &d, b"BELOW", PLAIN).expect("rename");
        assert_eq!((names(&fs, &d)[0].as_str(), fs.getattr(&d).nlink), ("BELOW", 3));
        for name in [&b"mOVED"[..], b"second", b"y", b"X"] {
            fs.unlink(&d, name).expect("unlink");
        }
        drop(below);
        fs.rmdir(&d, b"Below").expect("rmdir");
        assert_eq!((names(&fs, &d).len(), fs.getattr(&d).nlink), (0, 2));
        drop((root, d, foo, other, y));
        finish(fs, &dev);
    }
}

#[test]
fn strict_directories_take_only_text_and_others_take_bytes() {
    for (strict, flags) in [(true, "encoding_flags=strict"), (false, "encoding=utf8")] {
        let dev = image(&["-O", "casefold", "-E", flags]);
        let fs = mount(&dev);
        let (root, d) = (fs.root().expect("root"), folded(&fs));
        let made = create(&fs, &d, b"A\xff").map(|inode| inode.ino);
        if strict {
            assert!(matches!(made, Err(Error::Invalid(_))), "{made:?}");
            assert!(matches!(fs.lookup(&d, b"\xff"), Err(Error::Invalid(_))));
            create(&fs, &root, b"A\xff").expect("the root does not ignore case");
            assert!(matches!(fs.rename(&root, b"A\xff", &d, b"A\xff", PLAIN), Err(Error::Invalid(_))));
            fs.unlink(&root, b"A\xff").expect("unlink");
        } else {
            // Bytes without case.
            made.expect("create");
            create(&fs, &d, b"a\xff").expect("create");
            assert!(matches!(create(&fs, &d, b"a\xff"), Err(Error::Exists)));
            fs.unlink(&d, b"A\xff").expect("unlink");
            assert!(fs.lookup(&d, b"a\xff").is_ok() && fs.lookup(&d, b"A\xff").is_err());
        }
        // Names that fold to those of the directory itself, or to nothing.
        for name in [".\u{200b}", "\u{200b}..", ".\u{ad}."] {
            assert!(matches!(fs.lookup(&d, name.as_bytes()), Err(Error::NotFound)), "{name:?}");
            assert!(matches!(create(&fs, &d, name.as_bytes()), Err(Error::Invalid(_))), "{name:?}");
        }
        create(&fs, &d, "\u{200b}".as_bytes()).expect("create");
        assert!(matches!(create(&fs, &d, "\u{ad}".as_bytes()), Err(Error::Exists)));
        drop((root, d));
        finish(fs, &dev);
    }
}

/// As the kernel's `ext4fs_dirhash`, by debugfs.
#[test]
fn hashes_of_folded_names_are_those_of_e2fsprogs() {
    let dev = tools::made(&["-t", "ext4", "-O", "casefold"], "8M");
    let seed = "e6a1cb3f-16b8-4c3e-649d-642a3d9f6b01";
    let words = [0x3fcb_a1e6, 0x3e4c_b816, 0x2a64_9d64, 0x016b_9f3d];
    let versions = [("legacy", HashVersion::Legacy), ("half_md4", HashVersion::HalfMd4), ("tea", HashVersion::Tea)];
    let mut compared = 0;
    for (word, version) in versions {
        let hasher = Hasher::new(version, words).folding(true);
        for name in
            ["NAME", "Grüße", "ΣΊΣΥΦΟΣ", "Å", "a\u{30a}", "ﬃ", "\u{1e9e}", "Ｆｕｌｌ", "한글", "n\u{200b}othing"]
        {
            let said = tools::debugfs(&dev, &format!("dx_hash -c -e utf8 -h {word} -s {seed} {name}"));
            let hash = hasher.hash(name.as_bytes());
            let expected = format!("is 0x{:x} (minor 0x{:x})", hash.hash, hash.minor);
            assert!(said.contains(&expected), "{name}, {word}: {said} {expected}");
            compared += 1;
        }
    }
    assert_eq!(compared, 30);
}

/// Such a directory can only be the work of another program.
#[test]
fn names_that_collide_on_the_image_can_be_removed_one_by_one() {
    let made = tools::made(&["-t", "ext4", "-O", "casefold"], "8M");
    let made = tools::edited(&made, &["mkdir /d", "mkdir /d/Foo", "mkdir /d/foo", "mkdir /d/FOO"]);
    let dev = Arc::new(tools::edited(&made, &["set_inode_field /d flags 0x40080000"]));
    let fs = mount(&dev);
    let d = fs.walk(b"d", false).expect("d");
    assert_eq!(names(&fs, &d), ["FOO", "Foo", "foo"]);
    for left in (0..3).rev() {
        assert!(matches!(create(&fs, &d, b"fOo"), Err(Error::Exists)));
        fs.rmdir(&d, b"fOo").expect("rmdir");
        assert_eq!(names(&fs, &d).len(), left);
    }
    create(&fs, &d, b"fOo").expect("create");
    drop(d);
    finish(fs, &dev);
}

/// A directory in memory: the folded name, the stored one and the inode.
type Model = BTreeMap<Vec<u8>, (String, u32)>;

const WORDS: &[&str] = &["name", "straße", "Ärger", "ΣΊΣΥΦΟΣ", "ﬃ", "İ", "e\u{301}te\u{301}", "Ｆｕｌｌ"];

/// One of a few thousand names, in some case.
fn spelling(rng: &mut Rng) -> String {
    let word = WORDS[rng.below(WORDS.len() as u64) as usize];
    let name = format!("{word} {:0>1$}", rng.below(200), 3 + 40 * rng.below(2) as usize);
    match rng.below(3) {
        0 => name.to_uppercase(),
        1 => name.to_lowercase(),
        _ => name,
    }
}

fn step(fs: &Filesystem, d: &InodeRef, model: &mut Model, rng: &mut Rng) {
    let (name, other) = (spelling(rng), spelling(rng));
    let (key, target) = (fold(name.as_bytes()), fold(other.as_bytes()));
    let (name, other) = (name.as_bytes(), other.as_bytes());
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).expect("UTF-8");
    let known = model.get(&key).cloned();
    let found = fs.lookup(d, name).map(|inode| inode.ino.0);
    assert_eq!(found.ok(), known.as_ref().map(|(_, ino)| *ino), "{}", text(name));
    match rng.below(10) {
        0..=4 => match create(fs, d, name) {
            Ok(inode) => assert!(model.insert(key, (text(name), inode.ino.0)).is_none()),
            Err(e) => assert!(matches!(e, Error::Exists) && known.is_some(), "{e}"),
        },
        5 | 6 => match fs.unlink(d, name) {
            Ok(()) => assert!(model.remove(&key).is_some()),
            Err(e) => assert!(matches!(e, Error::NotFound) && known.is_none(), "{e}"),
        },
        7 => match fs.rename(d, name, d, other, EXCHANGE) {
            Ok(()) => {
                let (one, two) = (model[&key].1, model[&target].1);
                model.get_mut(&key).expect("there").1 = two;
                model.get_mut(&target).expect("there").1 = one;
            }
            Err(e) => assert!(matches!(e, Error::NotFound) && !(known.is_some() && model.contains_key(&target)), "{e}"),
        },
        8 => {
            // Another case of the same name.
            let again = if rng.one_in(2) { text(name).to_uppercase() } else { text(name).to_lowercase() };
            match fs.rename(d, name, d, again.as_bytes(), PLAIN) {
                Ok(()) if fold(again.as_bytes()) == key => model.get_mut(&key).expect("there").0 = again,
                Ok(()) => {
                    let (_, ino) = model.remove(&key).expect("there");
                    model.entry(fold(again.as_bytes())).or_insert((again, 0)).1 = ino;
                }
                Err(e) => assert!(matches!(e, Error::NotFound) && known.is_none(), "{e}"),
            }
        }
        _ => match fs.rename(d, name, d, other, PLAIN) {
            Ok(()) if key == target => model.get_mut(&key).expect("there").0 = text(other),
            Ok(()) => {
                let (_, ino) = model.remove(&key).expect("there");
                model.entry(target).or_insert((text(other), 0)).1 = ino;
            }
            Err(e) => assert!(matches!(e, Error::NotFound) && known.is_none(), "{e}"),
        },
    }
}

#[test]
fn random_changes_agree_with_a_model_and_e2fsck() {
    let shapes: [(&[&str], &[&str]); 6] = [
        (&["-O", "casefold"], &[]),
        (&["-O", "casefold,^metadata_csum"], &["set_super_value def_hash_version tea"]),
        (&["-O", "casefold"], &["set_super_value def_hash_version legacy", "set_super_value flags 2"]),
        (&["-O", "casefold,inline_data", "-I", "256", "-E", "encoding_flags=strict"], &[]),
        (&["-O", "casefold,^dir_index"], &[]),
        (&["-O", "casefold,large_dir,quota"], &[]),
    ];
    for (number, (args, requests)) in shapes.into_iter().enumerate() {
        let made = Arc::into_inner(image(args)).expect("one owner");
        let dev = Arc::new(if requests.is_empty() { made } else { tools::edited(&made, requests) });
        let mut rng = Rng::new(number as u64 + 1);
        let mut fs = mount(&dev);
        let mut d = folded(&fs);
        let mut model = Model::new();
        for round in 0..2 {
            for _ in 0..700 {
                step(&fs, &d, &mut model, &mut rng);
            }
            let mut expected: Vec<String> = model.values().map(|(name, _)| name.clone()).collect();
            expected.sort();
            assert_eq!(names(&fs, &d), expected, "{args:?}, round {round}");
            drop(d);
            finish(fs, &dev);
            fs = mount(&dev);
            d = fs.walk(b"folded", false).expect("there");
        }
        assert!(model.len() > 300 && (fs.getattr(&d).size > 16 << 10), "{} names, {args:?}", model.len());
        drop(d);
        finish(fs, &dev);
    }
}
