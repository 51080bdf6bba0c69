//! A rescue shows the files that no name leads to: for damaged directories, a lost root and a lost first group it has
//! all content that `e2fsck -fy` leaves on a copy of the image. e2fsck is the oracle for what is left, debugfs for
//! damage.

use extant_oracle::memory as tools;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use extant_base::rng::Rng;
use extant_base::sync::{LockClass, Mutex};
use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{Error, Filesystem, Messages, MountOptions, Mounted};
use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;
use extant_oracle::{arg, debugfs_damaged, mke2fs, run_bounded, run_command};
use extant_testkit::damage::{Image, mixed, random};
use extant_testkit::shown::{Content, Digest, Entry, ImageContents, shown};

/// Images of every form of directories, maps and inode tables.
const KINDS: [&[&str]; 10] = [
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext3", "-b", "1024", "-O", "^dir_index"],
    &["-t", "ext3", "-b", "1024", "-I", "128"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096", "-g", "2048", "-O", "^flex_bg,^resize_inode"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit,^flex_bg"],
    &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode,^flex_bg"],
    &["-t", "ext4", "-b", "1024", "-O", "inline_data"],
    &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file,quota,ea_inode,^flex_bg"],
];

/// Each file has other content: its bytes are alike, and its length is its number.
fn tree(top: &Path, files: usize) {
    let mut number = 0;
    let mut fill = |dir: &Path, count: usize| {
        std::fs::create_dir_all(dir).expect("directory");
        for _ in 0..count {
            number += 1;
            let name = format!("{number}-of-a-name-that-fills-blocks");
            std::fs::write(dir.join(name), vec![(number % 255 + 1) as u8; number]).expect("file");
        }
    };
    for d in 0..files / 20 {
        fill(&top.join(format!("d{d}/sub/deeper")), 5);
        fill(&top.join(format!("d{d}/sub")), 5);
        fill(&top.join(format!("d{d}")), 5);
    }
    fill(&top.join("large"), files / 4);
    fill(top, 3);
}

/// An image of `tree`, with indexed directories where it has indexes.
fn filled(kind: &[&str], size: &str, files: usize) -> MemDevice {
    // Few inodes in each group, so that the first group has not all of them.
    let inodes = (files * 8 / 5).to_string();
    let dir = tempfile::tempdir().expect("tempdir");
    let (source, image) = (dir.path().join("src"), dir.path().join("image"));
    tree(&source, files);
    mke2fs(&image, &[kind, &["-d", arg(&source), "-N", &inodes]].concat(), size);
    let (code, said) = run_command("e2fsck", &["-fyD", arg(&image)]).expect("e2fsck");
    assert!(code.is_some_and(|code| code < 2), "{kind:?}: {said}");
    MemDevice::load(&image).expect("loaded")
}

fn images() -> &'static [MemDevice] {
    static IMAGES: OnceLock<Vec<MemDevice>> = OnceLock::new();
    IMAGES.get_or_init(|| KINDS.iter().map(|kind| filled(kind, "32M", 200)).collect())
}

fn options(rescue: bool) -> MountOptions {
    MountOptions { threads: false, seed: Some(1), read_only: true, rescue, ..MountOptions::default() }
}

fn rescued(dev: &MemDevice) -> Mounted {
    Filesystem::mount(Arc::new(dev.snapshot()), options(true)).unwrap_or_else(|e| panic!("{e}"))
}

/// The content of the image after `e2fsck -fy`; nothing if e2fsck gives up.
fn repaired(dev: &MemDevice) -> ImageContents {
    let dir = tempfile::tempdir().expect("tempdir");
    let image = dir.path().join("image");
    dev.save(&image).expect("saved");
    let run = |how: &str| run_bounded(60, "e2fsck", &[how, arg(&image)]).expect("e2fsck");
    // A second run, because the first may leave something.
    run("-fy");
    run("-fy");
    let after = Arc::new(MemDevice::load(&image).expect("loaded"));
    Filesystem::mount(after, options(false)).map_or_else(|_| ImageContents::default(), |fs| shown(&fs))
}

fn block_size(dev: &MemDevice) -> u64 {
    let mut word = [0; 4];
    dev.read_at(1024 + 0x18, &mut word, BioFlags::empty()).expect("memory");
    1024 << u32::from_le_bytes(word)
}

/// Overwrites blocks with zeros or with bytes that are no structure.
fn destroy(dev: &MemDevice, block: u64, count: u64, zero: bool) {
    let size = block_size(dev);
    let bytes: Vec<u8> = (0..size * count).map(|i| if zero { 0 } else { (i * 151 + 7) as u8 }).collect();
    dev.write_at(block * size, &[&bytes], BioFlags::empty()).expect("memory");
}

/// The blocks of all directories.
fn directory_blocks(dev: &MemDevice) -> Vec<u64> {
    let fs = Filesystem::mount(Arc::new(dev.snapshot()), options(false)).expect("mounted");
    let mut blocks = Vec::new();
    let all = shown(&fs);
    let dirs = all.entries.values().filter(|entry| entry.kind == FileType::Directory).map(|entry| entry.ino);
    for ino in dirs.chain([InodeNr::ROOT.0]) {
        let dir = fs.iget_by_number(InodeNr(ino)).expect("a directory");
        fs.extents(&dir, |e| blocks.extend(e.physical.0..e.physical.0 + e.len)).expect("a map");
    }
    blocks
}

/// A rescue has every file that e2fsck leaves, and says that the image is damaged.
fn compare(dev: &MemDevice, what: &str) -> ImageContents {
    let theirs = repaired(dev);
    let fs = rescued(dev);
    let ours = shown(&fs);
    let (have, wanted) = (ours.contents(), theirs.contents());
    let lost: Vec<&Content> = wanted.difference(&have).collect();
    assert!(lost.is_empty(), "{what}: {} files of {} are lost: {lost:?}; {:#?}", lost.len(), wanted.len(), ours.hurt);
    assert!(ours.files() >= theirs.files(), "{what}: {} files, {} after e2fsck", ours.files(), theirs.files());
    assert!(fs.stats.errors.get() > 0, "{what}: damage without a word");
    ours
}

/// No name leads to one of the file system's own inodes, but they are not lost.
#[test]
fn a_rescue_of_a_sound_image_adds_nothing() {
    // The content of a file without a real Merkle tree cannot be read.
    let own = Image::ALL.iter().filter(|image| **image != Image::Verity);
    let own: Vec<MemDevice> = own.map(|image| image.made().snapshot()).collect();
    let crashed = random::KINDS.iter().map(|(kind, crashed)| random::filled(kind, *crashed));
    for (i, dev) in own.into_iter().chain(crashed).chain(images().iter().map(MemDevice::snapshot)).enumerate() {
        let plain = Filesystem::mount(Arc::new(dev.snapshot()), options(false)).expect("mounted");
        let (plain, fs) = (shown(&plain), rescued(&dev));
        let all = shown(&fs);
        assert_eq!((all.entries, all.hurt), (plain.entries, plain.hurt), "image {i}");
        assert_eq!((fs.nameless(), fs.stats.errors.get()), (Some(0), 0), "image {i}");
    }
}

/// `every`: one block of so many is destroyed.
fn destroy_directory_blocks(every: usize) {
    let mut blocks = 0;
    for (kind, image) in KINDS.iter().zip(images()) {
        for (i, block) in directory_blocks(image).into_iter().enumerate().filter(|(i, _)| i % every == 0) {
            let dev = image.snapshot();
            destroy(&dev, block, 1, i % 2 == 0);
            compare(&dev, &format!("{kind:?}, block {block}"));
            blocks += 1;
        }
    }
    assert!(blocks >= KINDS.len(), "{blocks} blocks");
}

#[test]
fn files_of_a_destroyed_directory_block_are_in_lost_and_found() {
    destroy_directory_blocks(17);
}

#[test]
#[ignore = "minutes: each block of each directory of ten images, and e2fsck twice for each"]
fn soak_files_of_every_destroyed_directory_block_are_in_lost_and_found() {
    destroy_directory_blocks(1);
}

/// Superblock, descriptors, root, and with them a part of the inodes and files.
#[test]
fn files_of_other_groups_outlive_the_first_group() {
    let mut kept = 0;
    for (kind, image) in KINDS.iter().zip(images()) {
        let fs = Filesystem::mount(Arc::new(image.snapshot()), options(false)).expect("mounted");
        let (first, group) = (fs.geometry().first_data_block, u64::from(fs.geometry().blocks_per_group));
        drop(fs);
        for zero in [true, false] {
            let dev = image.snapshot();
            destroy(&dev, first, group, zero);
            if Filesystem::mount(Arc::new(dev.snapshot()), options(true)).is_err() {
                // bigalloc in one group: there is no backup.
                assert!(repaired(&dev).entries.is_empty(), "{kind:?}: e2fsck finds a file system");
                continue;
            }
            kept += compare(&dev, &format!("{kind:?}, first group")).files();
        }
    }
    assert!(kept > 100, "{kept} files are left in the other groups");
}

#[test]
fn everything_outlives_the_root() {
    for (kind, image) in KINDS.iter().zip(images()) {
        let all = shown(&rescued(image)).contents();
        let fs = Filesystem::mount(Arc::new(image.snapshot()), options(false)).expect("mounted");
        let mut root = Vec::new();
        fs.extents(&fs.root().expect("root"), |e| root.extend(e.physical.0..e.physical.0 + e.len)).expect("a map");
        drop(fs);
        // Its blocks, and its inode.
        let dev = image.snapshot();
        root.iter().for_each(|block| destroy(&dev, *block, 1, false));
        if !root.is_empty() {
            assert_eq!(compare(&dev, &format!("{kind:?}, blocks of the root")).contents(), all, "{kind:?}");
        }
        let dev = tools::edited(image, &["clri <2>"]);
        let ours = compare(&dev, &format!("{kind:?}, inode of the root"));
        assert_eq!(ours.contents(), all, "{kind:?}");
        assert!(ours.entries.keys().all(|path| path.starts_with("/lost+found")), "{:?}", ours.entries);
    }
}

static MESSAGES: LockClass = LockClass::new("test messages", 2000);

/// Names, numbers, parents, and what a server needs: everything by number, again and again.
#[test]
fn lost_and_found_is_a_directory_like_any_other() {
    for has_own in [true, false] {
        let image = &images()[3];
        let mut requests = vec!["unlink /d1", "unlink /d2/sub"];
        if has_own {
            // Something that an earlier repair has left there, and an entry with the number of another inode.
            requests.extend(["ln /d3 /lost+found/#12345", "unlink /d3"]);
        } else {
            requests.push("unlink /lost+found");
        }
        let fs = Filesystem::mount(Arc::new(image.snapshot()), options(false)).expect("mounted");
        let ino = |path: &str| fs.walk(path.as_bytes(), false).expect(path).ino;
        let (d1, sub, d2) = (ino("/d1"), ino("/d2/sub"), ino("/d2"));
        let count = shown(&fs).files();
        drop(fs);
        let said = Arc::new(Mutex::new(&MESSAGES, String::new()));
        let heard = said.clone();
        let messages = Messages::new(move |line| heard.lock().push_str(line));
        let dev = Arc::new(tools::edited(image, &requests));
        let fs = Filesystem::mount(dev, MountOptions { messages, ..options(true) }).expect("mounted");
        let root = fs.root().expect("root");
        let names = fs.list(&root).expect("listed");
        assert_eq!(names.iter().filter(|name| name.name == b"lost+found").count(), 1, "{names:?}");
        let found = fs.lookup(&root, b"lost+found").expect("there");
        assert_eq!((found.is_dir(), fs.parent(&found).expect("root").ino), (true, InodeNr::ROOT));
        assert_eq!(fs.serving().iget_again(found.ino, found.generation).expect("by number").ino, found.ino);
        assert!(fs.list_xattrs(&found).expect("none").is_empty());
        let mut names: Vec<String> =
            fs.list(&found).expect("listed").iter().map(|n| String::from_utf8_lossy(&n.name).into_owned()).collect();
        let mut expected = vec![format!("#{}", d1.0), format!("#{}", sub.0)];
        if has_own {
            expected.push("#12345".into());
        } else {
            // The image's own lost+found lost its name, too.
            expected.push("#11".into());
        }
        names.sort();
        expected.sort();
        assert_eq!(names, expected);
        let lost = fs.lookup(&found, format!("#{}", d1.0).as_bytes()).expect("there");
        assert_eq!((lost.ino, fs.parent(&lost).expect("parent").ino), (d1, found.ino));
        let below = fs.lookup(&lost, b"sub").expect("there");
        assert_eq!(fs.parent(&below).expect("parent").ino, d1, "what has a name keeps its place");
        for path in [format!("/lost+found/#{}/sub/deeper/..", d1.0), format!("/lost+found/#{}/../#{}", d1.0, sub.0)] {
            assert!(fs.walk(path.as_bytes(), true).is_ok(), "{path}");
        }
        for wrong in ["/lost+found/#99", &format!("/lost+found/#{}", d2.0), "/#12", "/lost+found/x"] {
            assert!(matches!(fs.walk(wrong.as_bytes(), false), Err(Error::NotFound)), "{wrong}");
        }
        // One entry per call, as the FUSE server lists a directory.
        let (mut cookie, mut single) = (0, Vec::new());
        loop {
            let mut entry = None;
            let next = fs.read_dir(&found, cookie, |item| {
                let first = entry.is_none();
                if first {
                    entry = Some((String::from_utf8_lossy(item.name).into_owned(), item.next_cookie));
                }
                first
            });
            next.expect("listed");
            let Some((name, next)) = entry else { break };
            assert!(next > cookie, "{name}: from {cookie} to {next}");
            cookie = next;
            single.push(name);
        }
        single.retain(|name| name != "." && name != "..");
        single.sort();
        assert_eq!(single, expected);
        let all = shown(&fs);
        assert_eq!((all.files(), all.hurt.len()), (count, 0), "{:?}", all.hurt);
        let nameless = expected.len() as u64 - u64::from(has_own);
        assert_eq!(fs.nameless(), Some(nameless));
        let text = format!("{nameless} inodes have no name, and can be found in /lost+found");
        let said = said.lock().clone();
        assert!(said.contains(&text), "{said}");
    }
}

/// An entry of the real `lost+found` has the number of another inode.
#[test]
fn two_files_of_one_number_are_both_there() {
    let image = &images()[3];
    let fs = Filesystem::mount(Arc::new(image.snapshot()), options(false)).expect("mounted");
    let (d1, d2) = (fs.walk(b"/d1", false).expect("d1").ino, fs.walk(b"/d2", false).expect("d2").ino);
    drop(fs);
    let link = format!("ln /d2 /lost+found/#{}", d1.0);
    let fs = rescued(&tools::edited(image, &[&link, "unlink /d1", "unlink /d2"]));
    let find = |name: String| fs.walk(name.as_bytes(), false).map(|found| found.ino);
    assert_eq!(find(format!("/lost+found/#{}", d1.0)).expect("the entry"), d2);
    assert_eq!(find(format!("/lost+found/#{}~", d1.0)).expect("the inode"), d1);
}

/// Directories that contain each other appear once, and what lies below them once.
#[test]
fn a_circle_of_directories_hangs_in_lost_and_found_once() {
    let image = &images()[5];
    let fs = Filesystem::mount(Arc::new(image.snapshot()), options(false)).expect("mounted");
    let (d1, count) = (fs.walk(b"/d1", false).expect("d1").ino, shown(&fs).files());
    drop(fs);
    let dev = tools::edited(image, &["ln /d1 /d1/sub/deeper/again", "unlink /d1"]);
    let fs = rescued(&dev);
    let found = fs.walk(b"/lost+found", false).expect("there");
    let names = fs.list(&found).expect("listed");
    assert_eq!(names.len(), 1, "{names:?}");
    let all = shown(&fs);
    assert_eq!(all.files(), count);
    let again = all.hurt.values().filter(|why| why.contains("reached a second time")).count();
    assert_eq!((again, all.hurt.len()), (1, 1), "{:?}", all.hurt);
    assert!(all.entries.contains_key(&format!("/lost+found/#{}/sub/deeper", d1.0)) || names[0].ino != d1);
}

/// Deleted inodes keep mode and map, and orphans wait for their deletion: neither is a lost file.
#[test]
fn deleted_inodes_are_not_in_lost_and_found() {
    let image = &images()[0];
    let fs = Filesystem::mount(Arc::new(image.snapshot()), options(false)).expect("mounted");
    let ino = fs.walk(b"/d1/1-of-a-name-that-fills-blocks", false).or_else(|_| {
        let names = fs.list(&fs.walk(b"/d1", false)?)?;
        let file = names.iter().find(|name| name.kind == Some(FileType::Regular)).ok_or(Error::NotFound)?;
        fs.iget_by_number(file.ino)
    });
    let ino = ino.expect("a file").ino;
    let name = fs.list(&fs.walk(b"/d1", false).expect("d1")).expect("listed");
    let name = name.iter().find(|name| name.ino == ino).expect("its name");
    let unlink = format!("unlink /d1/{}", String::from_utf8_lossy(&name.name));
    drop(fs);
    let gone = format!("sif <{}> links_count 0", ino.0);
    let fs = rescued(&tools::edited(image, &[&unlink, &gone]));
    assert!(shown(&fs).entries.values().all(|entry| entry.ino != ino.0));
    assert_eq!(fs.nameless(), Some(0));
    // With a name and without links, it is a file whose inode is damaged.
    let fs = rescued(&tools::edited(image, &[&gone]));
    let all = shown(&fs);
    let (path, _) = all.entries.iter().find(|(_, entry)| entry.ino == ino.0).expect("there");
    assert!(all.hurt[path].contains("deleted"), "{:?}", all.hurt);
}

/// The image of `dev` after random damage of its metadata from `seed`.
fn struck(dev: &MemDevice, pieces: &[u64], seed: u64) -> MemDevice {
    let mut rng = Rng::new(seed);
    let dev = dev.snapshot();
    for _ in 0..1 + rng.below(4) {
        let at = pieces[rng.below(pieces.len() as u64) as usize];
        match rng.below(4) {
            // A sector, a few bytes.
            0 => dev.write_at(at, &[&[0; 1024]], BioFlags::empty()).expect("memory"),
            1 => {
                let noise: Vec<u8> = (0..1024).map(|_| rng.next_u32() as u8).collect();
                dev.write_at(at, &[&noise], BioFlags::empty()).expect("memory");
            }
            _ => random::strike(&dev, &[at; 12], &mut rng),
        }
    }
    dev
}

/// Random damage of an image of `files` files: a rescue has no fewer files than the repaired copy, and of the original
/// contents all that it has.
fn random_damage(kinds: &[usize], files: usize, size: &str, seeds: std::ops::Range<u64>) {
    for kind in kinds {
        let image = filled(KINDS[*kind], size, files);
        let original = shown(&rescued(&image)).contents();
        let pieces = random::pieces(&image);
        for seed in seeds.clone().filter(|seed| *seed as usize % kinds.len() == *kind % kinds.len()) {
            let dev = struck(&image, &pieces, seed);
            let theirs = repaired(&dev);
            let what = format!("{:?}, seed {seed}", KINDS[*kind]);
            let ours = match Filesystem::mount(Arc::new(dev.snapshot()), options(true)) {
                Ok(fs) => shown(&fs),
                Err(e) => panic!("{what}: {e}; e2fsck has {} files", theirs.files()),
            };
            let (have, wanted) = (ours.contents(), theirs.contents());
            let lost: Vec<_> = wanted.intersection(&original).filter(|content| !have.contains(content)).collect();
            assert!(lost.is_empty(), "{what}: {lost:?} are lost; {:#?}", ours.hurt);
            assert!(ours.files() >= theirs.files(), "{what}: {} of {}; {:#?}", ours.files(), theirs.files(), ours.hurt);
        }
    }
}

#[test]
fn a_rescue_after_random_damage_has_what_e2fsck_leaves() {
    random_damage(&[3, 5], 300, "32M", 0..24);
}

#[test]
#[ignore = "minutes: 200 damaged images of 3,000 files, and e2fsck twice for each"]
fn soak_a_rescue_after_random_damage_has_what_e2fsck_leaves() {
    random_damage(&[0, 2, 3, 4, 5], 3000, "64M", 1000..1200);
}

/// One name that debugfs lists.
struct Listed {
    ino: u32,
    mode: u32,
    size: Option<u64>,
}

/// Every path that debugfs finds from the root on.
fn by_debugfs(image: &Path) -> Option<std::collections::BTreeMap<String, Listed>> {
    let mut all = std::collections::BTreeMap::new();
    let mut entered = BTreeSet::from([InodeNr::ROOT.0]);
    let mut level = vec![(String::new(), InodeNr::ROOT.0)];
    while !level.is_empty() {
        let requests: String = level.iter().map(|(_, ino)| format!("ls -p <{ino}>\n")).collect();
        let said = debugfs_damaged(image, &requests).expect("debugfs")?;
        let mut next = Vec::new();
        let answers = said.split("debugfs: ls -p <").skip(1);
        for ((path, _), answer) in level.iter().zip(answers) {
            for line in answer.lines().skip(1) {
                // /inode/mode/uid/gid/name/size/
                let Some(line) = line.strip_prefix('/').and_then(|line| line.strip_suffix('/')) else { continue };
                let fields: Vec<&str> = line.splitn(5, '/').collect();
                let [ino, mode, _, _, rest] = fields[..] else { continue };
                let Some((name, size)) = rest.rsplit_once('/') else { continue };
                let (Ok(ino), Ok(mode)) = (ino.parse::<u32>(), u32::from_str_radix(mode, 8)) else { continue };
                if ino == 0 || mode == 0 || name == "." || name == ".." || !name.is_ascii() || name.contains('\\') {
                    continue;
                }
                let path = format!("{path}/{name}");
                if mode & 0o170_000 == 0o040_000 && entered.insert(ino) {
                    next.push((path.clone(), ino));
                }
                all.insert(path, Listed { ino, mode, size: size.parse().ok() });
            }
        }
        level = next;
    }
    Some(all)
}

/// A rescue finds every name and byte that debugfs finds, or reports damage of the path.
fn compare_with_debugfs(dev: &MemDevice, what: &str) -> usize {
    const BYTES_MAX: u64 = 4 << 20;
    let dir = tempfile::tempdir().expect("tempdir");
    let image = dir.path().join("image");
    dev.save(&image).expect("saved");
    // debugfs uses no backups, and may hang.
    let Some(theirs) = by_debugfs(&image) else { return 0 };
    let fs = match Filesystem::mount(Arc::new(dev.snapshot()), options(true)) {
        Ok(fs) => fs,
        Err(_) if theirs.is_empty() => return 0,
        // Every copy of the superblock contradicts itself; debugfs looks at fewer of its fields.
        Err(e) => {
            let left = repaired(dev).files();
            assert_eq!(left, 0, "{what}: {e}; debugfs lists {} names", theirs.len());
            return 0;
        }
    };
    let ours = shown(&fs);
    let is_small =
        |listed: &&Listed| listed.mode & 0o170_000 == 0o100_000 && listed.size.is_some_and(|s| s <= BYTES_MAX);
    let files: BTreeSet<u32> = theirs.values().filter(is_small).map(|listed| listed.ino).collect();
    let dump = |ino: &u32| format!("dump <{ino}> {}\n", dir.path().join(ino.to_string()).display());
    let dumped = debugfs_damaged(&image, &files.iter().map(dump).collect::<String>()).expect("debugfs").is_some();
    for (path, listed) in &theirs {
        let Some(entry) = ours.entries.get(path).filter(|entry| entry.ino == listed.ino) else {
            // A file in the place of the directory for what has no name is in there.
            let found = |(path, entry): (&String, &Entry)| path.starts_with("/lost+found/#") && entry.ino == listed.ino;
            let is_moved = path == "/lost+found" && ours.entries.iter().any(found);
            let is_there = is_moved || ours.is_hurt(path);
            assert!(is_there, "{what}: {path} (inode {}) is missing without a word", listed.ino);
            continue;
        };
        if let (true, Some(content)) = (dumped && is_small(&listed), entry.content)
            && let Ok(mut bytes) = std::fs::read(dir.path().join(listed.ino.to_string()))
        {
            // It dumps all 60 bytes of an inode with content, whatever its size.
            bytes.truncate(listed.size.unwrap_or(0) as usize);
            let same = content == (bytes.len() as u64, Digest::of(&bytes));
            let (ino, len) = (listed.ino, bytes.len());
            assert!(same || ours.is_hurt(path), "{what}: {path} (inode {ino}) is {content:?}, {len} bytes by debugfs");
        }
    }
    theirs.len()
}

fn mutants(seeds: std::ops::Range<u64>) {
    // A log that waits for its replay shows debugfs an older state. debugfs reads a file without a real Merkle tree,
    // and encrypted names as they are stored.
    let left_out = [Image::Dirty, Image::Verity, Image::Encrypt];
    let kinds = mixed::kinds_on_one_disk().filter(|kind| !left_out.contains(kind));
    let mut names = 0;
    for kind in kinds {
        for seed in seeds.clone() {
            let (dev, what) = mixed::damaged(kind, seed);
            names += compare_with_debugfs(&dev, &format!("{kind:?}, seed {seed}, {what}"));
        }
    }
    assert!(names > 1000, "{names} names were compared");
}

#[test]
fn a_rescue_finds_what_debugfs_finds_in_mutants() {
    mutants(0..3);
}

#[test]
#[ignore = "minutes: more than 400 mutants, each dumped by debugfs"]
fn soak_a_rescue_finds_what_debugfs_finds_in_mutants() {
    mutants(3..40);
}
