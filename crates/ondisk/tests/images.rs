//! Images made by mke2fs: everything decodes, every checksum holds, encoding gives the same bytes back, and the values
//! are those that dumpe2fs and debugfs print.

mod common;

use common::{Image, make};
use extant_ondisk::features::{self, MountMode};
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::inode::{self, DeviceNr, FileType, InodeDesc};
use extant_ondisk::superblock::{Geometry, SUPERBLOCK_OFFSET, SuperBlock, backup_candidates};
use extant_ondisk::time::Timestamp;
use extant_ondisk::{GroupNr, InodeNr, bitmap, orphan};
use extant_oracle::mount::{LoopMount, Mounted};
use extant_oracle::{arg, debugfs, debugfs_write, tool};
use std::collections::HashMap;

/// The header of dumpe2fs as key and value.
fn header(dump: &str) -> HashMap<&str, &str> {
    let head = dump.split("\nGroup 0:").next().unwrap();
    head.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key.trim(), value.trim())).collect()
}

/// The number after `before` in a line of dumpe2fs.
fn number_after(line: &str, before: &str) -> Option<u64> {
    let rest = &line[line.find(before)? + before.len()..];
    rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
}

fn compare_header(superblock: &SuperBlock, dump: &str) {
    let header = header(dump);
    let geometry = superblock.geometry();
    let mut names = superblock.compat().names();
    names.extend(superblock.incompat().names());
    names.extend(superblock.ro_compat().names());
    assert_eq!(names.join(" "), header["Filesystem features"]);
    for (key, value) in [
        ("Inode count", u64::from(geometry.inodes_count)),
        ("Block count", geometry.blocks_count),
        ("Reserved block count", superblock.reserved_blocks()),
        ("Free blocks", superblock.free_blocks()),
        ("Free inodes", superblock.free_inodes().into()),
        ("First block", geometry.first_data_block),
        ("Block size", geometry.block_size.into()),
        ("Blocks per group", geometry.blocks_per_group.into()),
        ("Inodes per group", geometry.inodes_per_group.into()),
        ("Inode blocks per group", geometry.inode_table_blocks.into()),
        ("First inode", geometry.first_ino.into()),
        ("Inode size", geometry.inode_size as u64),
    ] {
        assert_eq!(header[key], value.to_string(), "{key}");
    }
    for (key, value) in [
        ("Group descriptor size", geometry.desc_size as u64),
        ("Reserved GDT blocks", geometry.reserved_gdt_blocks.into()),
        ("Flex block group size", geometry.groups_per_flex.into()),
        ("Journal inode", superblock.journal_inode().map_or(0, |ino| ino.0).into()),
        ("Orphan file inode", superblock.orphan_file().map_or(0, |ino| ino.0).into()),
        ("Desired extra isize", superblock.want_extra_isize.into()),
    ] {
        if let Some(printed) = header.get(key) {
            assert_eq!(*printed, value.to_string(), "{key}");
        }
    }
    if let (Some(printed), None) = (header.get("Overhead clusters"), superblock.journal_inode()) {
        assert_eq!(*printed, geometry.overhead_blocks().to_string());
    }
    if let Some(printed) = header.get("Checksum seed") {
        assert_eq!(*printed, format!("{:#010x}", superblock.checksum_seed().raw()));
    }
}

/// Compares locations, counts, flags and checksums of every group with the output of dumpe2fs.
fn compare_groups(descs: &[GroupDesc], geometry: &Geometry, dump: &str) {
    let mut seen = 0;
    let mut group = GroupNr(0);
    let mut metadata = Vec::new();
    let check_base = |group: GroupNr, printed: &mut Vec<(u64, u64)>| {
        let ours: Vec<(u64, u64)> = geometry
            .base_metadata(group)
            .ranges()
            .map(|(start, count)| (start.0, start.0 + u64::from(count) - 1))
            .collect();
        assert_eq!(&ours, printed, "base metadata of {group}");
        printed.clear();
    };
    for line in dump.lines() {
        if let Some(number) = line.strip_prefix("Group ").and_then(|_| number_after(line, "Group ")) {
            if seen > 0 {
                check_base(group, &mut metadata);
            }
            group = GroupNr(number as u32);
            seen += 1;
            let desc = &descs[number as usize];
            let range = line[line.find("Blocks ").unwrap() + 7..].split(')').next().unwrap();
            let first = geometry.first_block_of_group(group).0;
            assert_eq!(range, format!("{first}-{}", first + u64::from(geometry.blocks_in_group(group)) - 1));
            for (name, flag) in [
                ("INODE_UNINIT", GroupFlags::INODE_UNINIT),
                ("BLOCK_UNINIT", GroupFlags::BLOCK_UNINIT),
                ("ITABLE_ZEROED", GroupFlags::INODE_ZEROED),
            ] {
                assert_eq!(line.contains(name), desc.flags.contains(flag), "{name} of {group}");
            }
            if let Some(at) = line.find("csum 0x") {
                let printed = u16::from_str_radix(&line[at + 7..at + 11], 16).unwrap();
                let mut bytes = vec![0; geometry.desc_size];
                desc.encode_into(&mut bytes, group, geometry);
                assert_eq!(printed, u16::from_le_bytes([bytes[0x1E], bytes[0x1F]]));
            }
            continue;
        }
        let Some(desc) = descs.get(group.0 as usize).filter(|_| seen > 0) else { continue };
        for (what, expected) in [
            ("Block bitmap at ", desc.block_bitmap.0),
            ("Inode bitmap at ", desc.inode_bitmap.0),
            ("Inode table at ", desc.inode_table.0),
        ] {
            if let Some(printed) = number_after(line, what) {
                assert_eq!(printed, expected, "{what}{group}");
            }
        }
        if let Some(block) =
            number_after(line, "rimary superblock at ").or_else(|| number_after(line, "ackup superblock at "))
        {
            metadata.push((block, block));
        }
        for what in ["roup descriptors at ", "roup descriptor at ", "eserved GDT blocks at "] {
            if let Some(first) = number_after(line, what) {
                let last = number_after(line, &format!("{what}{first}-")).unwrap_or(first);
                metadata.push((first, last));
            }
        }
        if line.contains(" free inodes, ") {
            let numbers: Vec<u32> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
            let ours = [desc.free_clusters, desc.free_inodes, desc.used_dirs, desc.itable_unused];
            assert_eq!(numbers, ours[..numbers.len()], "counts of {group}");
        }
    }
    check_base(group, &mut metadata);
    assert_eq!(seen, geometry.group_count);
}

fn check_bitmaps(image: &Image, descs: &[GroupDesc], geometry: &Geometry) {
    for group in geometry.groups() {
        let desc = &descs[group.0 as usize];
        let mut blocks = image.block(desc.block_bitmap.0, geometry).to_vec();
        if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            bitmap::init_block_bitmap(&mut blocks, group, descs, geometry);
        } else {
            desc.verify_block_bitmap(&blocks, group, geometry).unwrap();
            let mut again = desc.clone();
            again.set_block_bitmap_csum(&blocks, geometry);
            assert_eq!(again.block_bitmap_csum, desc.block_bitmap_csum);
            if geometry.metadata_csum {
                blocks[0] ^= 1;
                desc.verify_block_bitmap(&blocks, group, geometry).unwrap_err();
                blocks[0] ^= 1;
            }
            let mut fixed = vec![0; blocks.len()];
            bitmap::init_block_bitmap(&mut fixed, group, descs, geometry);
            assert!(fixed.iter().zip(&blocks).all(|(ours, theirs)| ours & !theirs == 0), "metadata free in {group}");
        }
        let clusters = geometry.clusters_in_group(group);
        assert_eq!(bitmap::count_zeros(&blocks, 0..clusters), desc.free_clusters, "free blocks of {group}");
        assert!(bitmap::padding_is_set(&blocks, clusters), "padding of {group}");

        let mut inodes = image.block(desc.inode_bitmap.0, geometry).to_vec();
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            bitmap::init_inode_bitmap(&mut inodes, geometry);
        } else {
            desc.verify_inode_bitmap(&inodes, group, geometry).unwrap();
        }
        assert_eq!(bitmap::count_zeros(&inodes, 0..geometry.inodes_per_group), desc.free_inodes);
        assert!(bitmap::padding_is_set(&inodes, geometry.inodes_per_group), "inode padding of {group}");
    }
}

/// Decodes every inode that was ever used, encodes it over a copy, and returns how many have links.
fn check_inodes(image: &Image, descs: &[GroupDesc], geometry: &Geometry) -> u32 {
    let mut linked = 0;
    for group in geometry.groups() {
        let desc = &descs[group.0 as usize];
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            continue;
        }
        for index in 0..geometry.inodes_per_group - desc.itable_unused {
            let ino = geometry.inode_at(group, index).unwrap();
            let bytes = image.inode_bytes(ino, descs, geometry);
            let inode = InodeDesc::decode(bytes, ino, geometry).unwrap_or_else(|error| panic!("{error}"));
            inode::verify_checksum(bytes, ino, geometry).unwrap();
            if bytes.iter().all(|&byte| byte == 0) {
                continue;
            }
            let mut again = bytes.to_vec();
            // Spoil the words that encoding must restore, but not those that it must preserve.
            again[..2].fill(0xee);
            again[0x28..0x64].fill(0xee);
            inode.encode_into(&mut again, ino, geometry).unwrap();
            assert_eq!(again, bytes, "{ino} changes when encoded: {inode:?}");
            linked += u32::from(inode.links > 0);
        }
    }
    linked
}

/// Compares one file with the output of debugfs.
fn compare_stat(image: &Image, name: &str, descs: &[GroupDesc], geometry: &Geometry) -> InodeDesc {
    let text = debugfs(&image.path, format!("stat {name}")).unwrap();
    let field = |key: &str| {
        let rest = &text[text.find(key).unwrap_or_else(|| panic!("{key} in {text}")) + key.len()..];
        rest.split_whitespace().next().unwrap().to_string()
    };
    let ino = InodeNr(field("Inode:").parse().unwrap());
    let inode = InodeDesc::decode(image.inode_bytes(ino, descs, geometry), ino, geometry).unwrap();
    assert_eq!(field("Mode:"), format!("{:04o}", inode.mode & 0o7777), "{name}");
    assert_eq!(field("Generation:"), inode.generation.to_string());
    assert_eq!(field("User:"), inode.uid.to_string());
    assert_eq!(field("Group:"), inode.gid.to_string());
    assert_eq!(field("Size:"), inode.size.to_string());
    assert_eq!(field("Links:"), inode.links.to_string());
    assert_eq!(field("Blockcount:"), inode.blocks.to_string());
    for (key, stamp) in
        [("mtime: 0x", Some(inode.mtime)), ("atime: 0x", Some(inode.atime)), ("crtime: 0x", inode.crtime)]
    {
        let Some(stamp) = stamp else { continue };
        let (seconds, extra) = stamp.encode();
        let expected =
            if inode.has_extra_times() { format!("{seconds:08x}:{extra:08x}") } else { format!("{seconds:08x}") };
        assert_eq!(field(key), expected, "{name} {key}");
    }
    inode
}

fn check_image(arguments: &str, size: &str) -> Image {
    let image = make(arguments, size);
    let superblock = image.superblock();
    let geometry = superblock.geometry();
    geometry.check_device_size(image.bytes.len() as u64).unwrap();
    geometry.check_device_size(image.bytes.len() as u64 / 2).unwrap_err();

    let original = &image.bytes[SUPERBLOCK_OFFSET as usize..][..1024];
    let mut again = [0u8; 1024];
    superblock.encode_into(&mut again);
    assert_eq!(again, original);
    for group in geometry.backup_groups() {
        let (block, offset) = geometry.super_location(group);
        let place = block.0 * u64::from(geometry.block_size) + offset as u64;
        let copy = SuperBlock::decode(&image.bytes[place as usize..], place).unwrap();
        assert_eq!(copy.geometry(), geometry);
        assert_eq!(u32::from(copy.raw().s_block_group_nr.get()), group.0);
    }

    let dump = tool("dumpe2fs", &[arg(&image.path)]);
    compare_header(&superblock, &dump);
    let descs = image.descs(geometry);
    compare_groups(&descs, geometry, &dump);
    check_bitmaps(&image, &descs, geometry);
    let linked = check_inodes(&image, &descs, geometry);
    assert!(linked > 200, "{linked} inodes with links");

    assert!(compare_stat(&image, "/", &descs, geometry).is_dir());
    assert!(compare_stat(&image, "/dir/file", &descs, geometry).is_regular());
    let short = compare_stat(&image, "/short", &descs, geometry);
    assert_eq!(short.fast_symlink_target(geometry), Some(&b"short target"[..]));
    let long = compare_stat(&image, "/long", &descs, geometry);
    assert!(long.is_symlink() && !long.is_fast_symlink(geometry) && long.size == 200);
    image
}

macro_rules! images {
    ($($name:ident: $arguments:literal, $size:literal;)*) => {$(
        #[test]
        fn $name() {
            let image = check_image($arguments, $size);
            assert_eq!(features::check(&image.superblock()), Ok(MountMode::ReadWrite));
        }
    )*};
}

images! {
    ext2_1k: "-t ext2 -b 1024", "24M";
    ext2_2k: "-t ext2 -b 2048 -I 128", "40M";
    ext2_without_sparse_super: "-t ext2 -b 1024 -O ^sparse_super,^filetype,^resize_inode", "40M";
    ext3_4k: "-t ext3 -b 4096 -I 256", "32M";
    ext3_1k_odd_groups: "-t ext3 -b 1024 -g 1096 -N 2000", "17M";
    ext4_default: "-t ext4 -O metadata_csum,64bit", "64M";
    ext4_1k: "-t ext4 -b 1024 -O metadata_csum,64bit", "64M";
    ext4_2k_inode_1024: "-t ext4 -b 2048 -I 1024 -N 3000", "64M";
    ext4_inode_128: "-t ext4 -b 4096 -I 128 -O ^extra_isize", "32M";
    ext4_without_64bit: "-t ext4 -b 1024 -O ^64bit,metadata_csum", "48M";
    ext4_uninit_bg: "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg", "64M";
    ext4_uninit_bg_without_64bit: "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^64bit -G 4", "64M";
    ext4_without_checksums: "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg", "32M";
    ext4_without_flex_bg: "-t ext4 -b 1024 -O ^flex_bg", "48M";
    ext4_flex_2: "-t ext4 -b 1024 -G 2 -O ^resize_inode", "80M";
    ext4_flex_64_lazy: "-t ext4 -b 1024 -G 64 -E lazy_itable_init=1", "80M";
    ext4_meta_bg: "-t ext4 -b 1024 -O meta_bg,^resize_inode", "200M";
    ext4_meta_bg_32_byte_descs: "-t ext4 -b 1024 -g 512 -N 8000 -O meta_bg,^resize_inode,^64bit,^flex_bg", "64M";
    ext4_csum_seed: "-t ext4 -b 1024 -O metadata_csum_seed", "24M";
    ext4_sparse_super2: "-t ext4 -b 1024 -O sparse_super2,^resize_inode", "64M";
    ext4_large_dir_short_group: "-t ext4 -b 1024 -O large_dir -g 2048", "15777K";
    ext4_without_journal: "-t ext4 -b 4096 -O ^has_journal -N 20000", "48M";
    ext4_without_huge_file: "-t ext4 -b 4096 -O ^huge_file", "32M";
    ext4_fast_commit: "-t ext4 -b 1024 -O fast_commit", "32M";
}

#[test]
fn the_seed_survives_a_new_uuid() {
    let image = make("-t ext4 -b 1024 -O metadata_csum_seed", "16M");
    tool("tune2fs", &["-U", "random", arg(&image.path)]);
    let image = image.again();
    let superblock = image.superblock();
    let descs = image.descs(superblock.geometry());
    assert!(check_inodes(&image, &descs, superblock.geometry()) > 200);
}

#[test]
fn orphan_file_blocks_are_read() {
    for arguments in ["-t ext4 -b 1024 -O orphan_file", "-t ext4 -b 4096 -O orphan_file,^metadata_csum"] {
        let image = check_image(arguments, "32M");
        let superblock = image.superblock();
        let geometry = superblock.geometry();
        let descs = image.descs(geometry);
        let ino = superblock.orphan_file().unwrap();
        let inode = InodeDesc::decode(image.inode_bytes(ino, &descs, geometry), ino, geometry).unwrap();
        let seed = geometry.metadata_csum.then(|| geometry.seed.for_inode(ino, inode.generation));
        let text = debugfs(&image.path, format!("blocks <{}>", ino.0)).unwrap();
        let blocks: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!(blocks.len() as u64, inode.size / u64::from(geometry.block_size));
        for number in blocks {
            let bytes = image.block(number, geometry);
            orphan::verify(bytes, extant_ondisk::BlockNr(number), seed).unwrap();
            assert_eq!(orphan::used_slots(bytes).count(), 0);
            let mut made = vec![1; bytes.len()];
            orphan::init(&mut made, extant_ondisk::BlockNr(number), seed);
            assert_eq!(made, bytes);
        }
    }
}

#[test]
fn devices_and_special_files_are_read() {
    let image = make("-t ext4 -b 1024", "16M");
    debugfs_write(&image.path, "mknod small c 8 1\nmknod large b 300 60000\nmknod pipe p").unwrap();
    let image = image.again();
    let superblock = image.superblock();
    let descs = image.descs(superblock.geometry());
    let stat = |name| compare_stat(&image, name, &descs, superblock.geometry());
    let small = stat("/small");
    assert_eq!(
        (small.file_type(), small.device()),
        (Some(FileType::CharDevice), Some(DeviceNr { major: 8, minor: 1 }))
    );
    let large = stat("/large");
    assert_eq!(large.device(), Some(DeviceNr { major: 300, minor: 60_000 }));
    assert_eq!((stat("/pipe").file_type(), stat("/pipe").device()), (Some(FileType::Fifo), None));
    assert!(check_inodes(&image, &descs, superblock.geometry()) > 200);
}

#[test]
fn backups_are_found_without_the_primary() {
    for (arguments, size) in [("-t ext4 -b 1024", "24M"), ("-t ext4 -b 2048", "40M"), ("-t ext4 -b 4096", "160M")] {
        let image = make(arguments, size);
        let expected = image.superblock();
        let found = backup_candidates(image.bytes.len() as u64).find_map(|(place, block_size)| {
            let bytes = image.bytes.get(place as usize..)?;
            SuperBlock::decode(bytes, place).ok().filter(|copy| copy.block_size == block_size)
        });
        assert_eq!(found.unwrap().geometry(), expected.geometry(), "{arguments}");
    }
}

#[test]
fn features_make_images_read_only_or_refused() {
    let mode = |arguments: &str| features::check(&make(arguments, "48M").superblock());
    let read_only = |arguments: &str, name: &str| match mode(arguments) {
        Ok(MountMode::ReadOnly { reasons }) => assert_eq!(reasons, [name], "{arguments}"),
        other => panic!("{arguments}: {other:?}"),
    };
    assert!(matches!(mode("-t ext4 -O quota,project,mmp,verity,inline_data,ea_inode"), Ok(MountMode::ReadWrite)));
    assert!(matches!(mode("-t ext4 -O bigalloc -C 16384"), Ok(MountMode::ReadWrite)));
    assert!(matches!(mode("-t ext4 -O casefold"), Ok(MountMode::ReadWrite)));
    assert!(matches!(mode("-t ext4 -b 8192"), Ok(MountMode::ReadWrite)));
    assert!(matches!(mode("-t ext4 -O encrypt"), Ok(MountMode::ReadWrite)));
    read_only("-t ext4 -O encrypt,casefold", "casefold together with encrypt");
}

/// Values that debugfs puts into the inode are read back, at the edges of every field.
#[test]
fn wide_fields_and_late_times_are_read() {
    let image = make("-t ext4 -b 4096 -O 64bit,metadata_csum,project,quota", "32M");
    let fields = [
        "uid 70000",
        "gid 300000",
        "size 0x0000123456789abc",
        "generation 0xdeadbeef",
        "mtime_lo 0x80000001",
        "mtime_extra 0x00000ffe",
        "atime_lo 0xffffffff",
        "atime_extra 0xee6b27fc",
        "crtime_lo 0x7fffffff",
        "crtime_extra 0x3",
        "projid 4242",
        "links_count 65000",
        "version 0x123456789",
    ];
    let lines: String = fields.iter().map(|field| format!("set_inode_field /dir/file {field}\n")).collect();
    debugfs_write(&image.path, &lines).unwrap();
    let image = image.again();
    let superblock = image.superblock();
    let geometry = superblock.geometry();
    let descs = image.descs(geometry);
    let inode = compare_stat(&image, "/dir/file", &descs, geometry);
    assert_eq!((inode.uid, inode.gid, inode.projid), (70_000, 300_000, 4242));
    assert_eq!((inode.size, inode.generation, inode.links), (0x1234_5678_9abc, 0xdead_beef, 65_000));
    assert_eq!(inode.mtime, Timestamp { seconds: -0x7fff_ffff + (2 << 32), nanos: 0x3ff });
    assert_eq!(inode.atime, Timestamp { seconds: -1, nanos: 999_999_999 });
    assert_eq!(inode.crtime, Some(Timestamp { seconds: 0x7fff_ffff + (3 << 32), nanos: 0 }));
    assert_eq!(inode.version, 0x1_2345_6789);
    assert!(check_inodes(&image, &descs, geometry) > 200);
}

/// The state that the kernel's driver leaves after a clean unmount. Needs the right to mount; says so and passes
/// without it.
#[test]
fn images_written_by_the_kernel_decode() {
    for arguments in [
        "-t ext4 -b 1024 -O metadata_csum,64bit",
        "-t ext4 -b 4096 -O ^metadata_csum,uninit_bg,^64bit",
        "-t ext4 -b 1024 -O orphan_file,meta_bg,^resize_inode",
        "-t ext3 -b 1024 -I 128",
        "-t ext2 -b 2048 -I 256",
    ] {
        let image = make(arguments, "48M");
        let at = image.dir.path().join("mnt");
        let Some(mounted) = LoopMount::if_permitted(&image.path, &at, "") else { return };
        for i in 0..600 {
            std::fs::write(at.join(format!("new {i}")), vec![i as u8; i * 20]).unwrap();
        }
        for i in 0..300 {
            std::fs::remove_file(at.join(format!("new {}", i * 2))).unwrap();
        }
        let file = std::fs::File::create(at.join("late")).unwrap();
        file.set_len((1 << 31) + 5).unwrap();
        let late = std::time::UNIX_EPOCH + std::time::Duration::new(9_000_000_000, 987_654_321);
        let _ = file.set_modified(late);
        std::os::unix::fs::chown(at.join("late"), Some(123_456), Some(654_321)).unwrap();
        drop(file);
        mounted.unmount().unwrap();

        let image = image.again();
        let superblock = image.superblock();
        let geometry = superblock.geometry();
        let dump = tool("dumpe2fs", &[arg(&image.path)]);
        compare_header(&superblock, &dump);
        let descs = image.descs(geometry);
        compare_groups(&descs, geometry, &dump);
        check_bitmaps(&image, &descs, geometry);
        assert!(check_inodes(&image, &descs, geometry) > 500);
        let late = compare_stat(&image, "/late", &descs, geometry);
        assert_eq!((late.uid, late.gid, late.size), (123_456, 654_321, (1 << 31) + 5));
        if late.has_extra_times() {
            assert_eq!(late.mtime, Timestamp { seconds: 9_000_000_000, nanos: 987_654_321 });
        }
        assert!(!superblock.needs_recovery() && superblock.mount_count() == 1);
    }
}
