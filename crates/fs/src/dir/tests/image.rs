//! Tests on real images: Extant reads the kernel's directories. Then Extant's directories replace them on the image,
//! and e2fsck and the kernel check those.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use extant_ondisk::htree::HashVersion;
use extant_ondisk::inode::FileType;
use extant_ondisk::units::InodeNr;
use extant_oracle::mount::{LoopMount, Mounted};
use extant_oracle::{arg, debugfs, expect_clean, mke2fs, tool};

use super::super::*;
use super::store::MemDir;

fn names(count: u32) -> Vec<Vec<u8>> {
    (0..count)
        .map(|n| match n % 10 {
            0 => format!("{n:x>200}").into_bytes(),
            1 => [b"\xC3\xA9t\xE9-".as_slice(), n.to_string().as_bytes()].concat(),
            _ => format!("file-{n}").into_bytes(),
        })
        .collect()
}

/// The directory's parameters, from the superblock and the inode of an unmounted image.
fn directory(image: &Path, ino: u32, has_dir_index: bool, has_csum: bool) -> DirParams {
    let mut sb = [0; 1024];
    fs::File::open(image).unwrap().read_exact_at(&mut sb, 1024).unwrap();
    let word = |at: usize| u32::from_le_bytes(sb[at..at + 4].try_into().unwrap());
    let fs_seed = match word(0x60) & 0x2000 {
        0 => ChecksumSeed::from_uuid(sb[0x68..0x78].try_into().unwrap()),
        _ => ChecksumSeed::from_raw(word(0x270)),
    };
    let stat = debugfs(image, format!("stat <{ino}>")).unwrap();
    let field = |label: &str| stat.split_once(label).unwrap().1.split_whitespace().next().unwrap().to_string();
    let generation: u32 = field("Generation:").parse().unwrap();
    let flags = u32::from_str_radix(field("Flags:").trim_start_matches("0x"), 16).unwrap();
    DirParams {
        has_csum,
        has_filetype: word(0x60) & 2 != 0,
        has_dir_index,
        has_large_dir: word(0x60) & 0x4000 != 0,
        is_indexed: flags & 0x1000 != 0,
        hash_version: HashVersion::from_disk(sb[0xFC], word(0x160) & 2 != 0).unwrap(),
        hash_seed: [word(0xEC), word(0xF0), word(0xF4), word(0xF8)],
        inode_seed: fs_seed.for_inode(InodeNr(ino), generation),
        inodes_count: word(0),
        folds: false,
        encrypted: false,
        by_place: false,
    }
}

fn load(image: &Path, ino: u32, block_size: usize, base: DirParams) -> MemDir {
    let content = image.with_extension("content");
    debugfs(image, format!("dump <{ino}> {}", content.display())).unwrap();
    let dir = MemDir::empty(block_size, base);
    *dir.blocks.borrow_mut() = fs::read(content).unwrap().chunks(block_size).map(<[u8]>::to_vec).collect();
    dir
}

/// The names in the kernel's order of listing.
fn listed_by_kernel(path: &Path) -> Vec<(Vec<u8>, u32)> {
    use std::os::unix::fs::DirEntryExt;
    let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_vec(), entry.ino() as u32)).collect()
}

struct Case {
    block_size: usize,
    options: &'static str,
    hash: &'static str,
    dir_index: bool,
    csum: bool,
}

const CASES: [Case; 6] = [
    Case { block_size: 1024, options: "metadata_csum", hash: "half_md4", dir_index: true, csum: true },
    Case {
        block_size: 4096,
        options: "metadata_csum,metadata_csum_seed",
        hash: "half_md4",
        dir_index: true,
        csum: true,
    },
    Case { block_size: 1024, options: "^metadata_csum", hash: "tea", dir_index: true, csum: false },
    Case { block_size: 2048, options: "metadata_csum", hash: "legacy", dir_index: true, csum: true },
    Case { block_size: 4096, options: "^dir_index,metadata_csum", hash: "half_md4", dir_index: false, csum: true },
    Case {
        block_size: 1024,
        options: "^filetype,^metadata_csum,^64bit",
        hash: "half_md4",
        dir_index: true,
        csum: false,
    },
];

/// Extant reads the kernel's directories, in the kernel's order. Then Extant adds the same names to directories of its
/// own, which replace the kernel's on the image. E2fsck and the kernel must accept them.
#[test]
fn kernel_and_e2fsck_agree() {
    CASES.iter().for_each(run);
}

#[expect(clippy::too_many_lines, reason = "one scenario: the kernel and Extant take turns on one image")]
fn run(case: &Case) {
    let folder = tempfile::tempdir().unwrap();
    let (image, point) = (folder.path().join("image"), folder.path().join("mnt"));
    let hash = format!("hash_alg={}", case.hash);
    let size = case.block_size.to_string();
    mke2fs(&image, &["-t", "ext4", "-b", &size, "-O", case.options], "64M");
    tool("tune2fs", &["-E", &hash, arg(&image)]);
    let (all, spare) = (names(5000), (0..600).map(|n| format!("spare{n}")).collect::<Vec<_>>());
    let (many, few) = (point.join("many"), point.join("few"));

    let Some(mounted) = LoopMount::if_permitted(&image, &point, "") else { return };
    fs::create_dir(&many).unwrap();
    fs::create_dir(&few).unwrap();
    let target = point.join("target");
    fs::write(&target, "x").unwrap();
    let link = |folder: &Path, name: &[u8]| {
        fs::hard_link(&target, folder.join(std::ffi::OsStr::from_bytes(name))).unwrap();
    };
    all.iter().for_each(|name| link(&many, name));
    // These names enlarge the directory, so that it has room to spare, and are removed again.
    spare.iter().for_each(|name| link(&many, name.as_bytes()));
    spare.iter().for_each(|name| fs::remove_file(many.join(name)).unwrap());
    all[..12].iter().filter(|name| name.len() < 100).for_each(|name| link(&few, name));
    let (many_ino, few_ino) = (fs::metadata(&many).unwrap().ino() as u32, fs::metadata(&few).unwrap().ino() as u32);
    let target_ino = fs::metadata(&target).unwrap().ino() as u32;
    let listed = [listed_by_kernel(&many), listed_by_kernel(&few)];
    mounted.unmount().unwrap();

    // Extant reads the kernel's directories.
    for ((ino, expected), indexed) in [many_ino, few_ino].into_iter().zip(&listed).zip([case.dir_index, false]) {
        let params = directory(&image, ino, case.dir_index, case.csum);
        assert_eq!(params.is_indexed, indexed);
        let dir = load(&image, ino, case.block_size, params);
        for (name, ino) in expected {
            assert_eq!(dir.find(name), Some(*ino));
        }
        assert_eq!(dir.find(b"spare3"), None);
        assert_eq!(dotdot(&dir, &params), Ok(InodeNr(2)));
        let ours = dir.list(17);
        if case.hash == "legacy" {
            let sorted = |names: &[(Vec<u8>, u32)]| names.iter().cloned().collect::<BTreeMap<_, _>>();
            assert_eq!(sorted(&ours), sorted(expected));
        } else {
            assert_eq!(&ours, expected, "the kernel lists in the same order");
        }
        dir.check(&expected.iter().cloned().collect());
    }

    // Extant makes the same directory. Spare names fill it up to the size of the kernel's.
    let kernel = load(&image, many_ino, case.block_size, directory(&image, many_ino, case.dir_index, case.csum));
    let base = DirParams { is_indexed: false, ..kernel.base };
    let ours = MemDir::empty(case.block_size, base);
    init(&ours, &mut (), &base, InodeNr(many_ino), InodeNr(2)).unwrap();
    let add_one = |name: &[u8]| {
        add(&ours, &mut (), &ours.params(), name, InodeNr(target_ino), Some(FileType::Regular)).unwrap();
    };
    all.iter().for_each(|name| add_one(name));
    assert!(ours.blocks() <= kernel.blocks(), "{} > {}", ours.blocks(), kernel.blocks());
    let mut spares = 0;
    while ours.blocks() < kernel.blocks() {
        add_one(format!("extra{spares}").as_bytes());
        spares += 1;
    }
    assert_eq!(ours.blocks(), kernel.blocks(), "after {spares} spare names");
    for n in 0..spares {
        ours.remove(format!("extra{n}").as_bytes()).unwrap();
    }
    assert_eq!(ours.params().is_indexed, case.dir_index);
    let places = debugfs(&image, format!("blocks <{many_ino}>")).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    let mut written = 0;
    for (place, block) in places.split_whitespace().zip(ours.blocks.borrow().iter()) {
        file.write_all_at(block, place.parse::<u64>().unwrap() * case.block_size as u64).unwrap();
        written += 1;
    }
    assert_eq!(written, ours.blocks());
    drop(file);
    expect_clean(&image).unwrap_or_else(|e| panic!("{}: {e}", case.options));
    let Some(mounted) = LoopMount::if_permitted(&image, &point, "") else { return };
    for name in &all {
        let meta = fs::symlink_metadata(many.join(std::ffi::OsStr::from_bytes(name))).unwrap();
        assert_eq!(meta.ino() as u32, target_ino);
    }
    let kernel_sees: BTreeMap<_, _> = listed_by_kernel(&many).into_iter().collect();
    assert_eq!(kernel_sees, ours.list(100).into_iter().collect());
    assert!(fs::symlink_metadata(many.join("spare5")).is_err());
    // The kernel continues with Extant's directory.
    (0..300).for_each(|n| link(&many, format!("more{n}").as_bytes()));
    all.iter().step_by(3).for_each(|name| {
        fs::remove_file(many.join(std::ffi::OsStr::from_bytes(name))).unwrap();
    });
    mounted.unmount().unwrap();
    expect_clean(&image).unwrap();
}
