//! Empty file systems are byte for byte those of mke2fs 1.47.0, and clean for e2fsck.
//!
//! With `EXTANT_EMPTY_TABLE=FILE` the comparison is also written to a file: a line for each combination of options.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_block::device::{FileDevice, IoMode, OpenOptions};
use extant_build::options::{Fact, Request, SizeAsked, UuidAsked};
use extant_build::plan::Plan;
use extant_build::skeleton::Empty;
use extant_build::write::write_with_progress;
use extant_ondisk::GroupNr;
use extant_testkit::oracle::{arg, expect_clean, tool};
use extant_testkit::tests_of_cases;
use rustix::fs::SeekFrom;

const UUID: &str = "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d";
const HASH_SEED: &str = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed";
const NOW: i64 = 1_700_000_000;

/// Fields of the superblock that differ, and why: offset, bytes, reason.
const DIFFERENT: [(usize, usize, &str); 2] = [
    (0x178, 8, "s_kbytes_written: mke2fs counts the writes of its block cache, which is not to be repeated"),
    (0x3fc, 4, "s_checksum: covers s_kbytes_written"),
];

/// Fields of the block of multi-mount protection that differ, and why.
const MMP_DIFFERENT: [(usize, usize, &str); 4] = [
    (8, 8, "mmp_time: mke2fs reads the clock and ignores E2FSPROGS_FAKE_TIME; zero here"),
    (16, 64, "mmp_nodename: the host that made it; the same options make the same bytes here"),
    (80, 32, "mmp_bdevname: where the image was made; likewise"),
    (1020, 4, "mmp_checksum: covers them"),
];

/// The options of mke2fs that the table uses.
fn request(args: &[&str]) -> Request {
    let mut request = Request { fs_type: Some("ext2".into()), ..Request::default() };
    let mut args = args.iter();
    while let Some(option) = args.next() {
        let mut value = || args.next().expect("the option has a value");
        match *option {
            "-t" => request.fs_type = Some((*value()).into()),
            "-T" => request.usage = Some((*value()).into()),
            "-b" => match value().parse::<i64>() {
                Ok(size) if size < 0 => request.block_size_least = Some(size.unsigned_abs()),
                size => request.block_size = size.ok().map(|size| size as u64),
            },
            "-C" => request.cluster_size = value().parse().ok(),
            "-E" => request.extended.push((*value()).into()),
            "-e" => request.errors = Some((*value()).into()),
            "-g" => request.blocks_per_group = value().parse().ok(),
            "-G" => request.flex_bg_size = value().parse().ok(),
            "-i" => request.inode_ratio = value().parse().ok(),
            "-I" => request.inode_size = value().parse().ok(),
            "-j" => request.journal = true,
            "-J" => request.journal_options.push((*value()).into()),
            "-L" => request.label = Some(value().as_bytes().to_vec()),
            "-m" => request.reserved_percent = value().parse().ok(),
            "-M" => request.last_mounted = Some(value().as_bytes().to_vec()),
            "-o" => request.creator_os = Some((*value()).into()),
            "-N" => request.inodes = value().parse().ok(),
            "-O" => request.features.push((*value()).into()),
            "-r" => request.revision = value().parse().ok(),
            other => panic!("no such option: {other}"),
        }
    }
    request
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Bytes of the device, and the options.
const TABLE: &[(u64, &str)] = &[
    // The types and the sizes of their blocks.
    (64 * MIB, "-t ext4"),
    (64 * MIB, "-t ext3"),
    (64 * MIB, "-t ext2"),
    (GIB, "-t ext4"),
    (GIB, "-t ext3"),
    (GIB, "-t ext2"),
    (64 * MIB, "-t ext4 -b 2048"),
    (64 * MIB, "-t ext4 -b 4096"),
    (200 * MIB, "-t ext3 -b 2048"),
    (200 * MIB, "-t ext2 -b 4096"),
    (64 * MIB, "-t ext4 -b 65536"),
    // Sizes.
    (MIB, "-t ext2"),
    (MIB, "-t ext4"),
    (2 * MIB, "-t ext4"),
    (77 * MIB + 12_288, "-t ext4"),
    (129 * MIB, "-t ext4 -b 4096"),
    (257 * MIB + 4096, "-t ext2 -b 1024"),
    (10 * GIB, "-t ext4"),
    (40 * GIB, "-t ext3"),
    (150 * GIB, "-t ext4"),
    (6 * TIB, "-t ext4"),
    (15 * TIB, "-t ext4"),
    (64 * MIB, "-t ext4 -b -1024"),
    (64 * MIB, "-t ext4 -b -4096"),
    (GIB, "-t ext2 -b -2048"),
    // Other systems.
    (64 * MIB, "-t ext2 -o hurd"),
    (64 * MIB, "-t ext4 -o GNU"),
    (GIB, "-t ext3 -o 1 -I 256"),
    (64 * MIB, "-t ext4 -o FreeBSD"),
    (64 * MIB, "-t ext2 -o Lites"),
    (64 * MIB, "-t ext4 -o 7"),
    // Sizes of descriptors.
    (GIB, "-t ext4 -E desc_size=64"),
    (GIB, "-t ext4 -E desc_size=128"),
    (GIB, "-t ext4 -E desc_size=1024 -O ^metadata_csum,uninit_bg"),
    // Where tables go.
    (2 * GIB, "-t ext4 -O ^flex_bg"),
    (2 * GIB, "-t ext4 -G 64"),
    (3 * GIB, "-t ext4 -G 4"),
    (3 * GIB, "-t ext4 -G 1"),
    (2 * GIB, "-t ext4 -O meta_bg,^resize_inode"),
    (2 * GIB, "-t ext4 -O meta_bg,^resize_inode,^flex_bg -b 1024"),
    (2 * GIB, "-t ext4 -O sparse_super2"),
    (2 * GIB, "-t ext4 -O sparse_super2 -E num_backup_sb=1"),
    (2 * GIB, "-t ext4 -O sparse_super2 -E num_backup_sb=0"),
    (2 * GIB, "-t ext4 -O ^resize_inode"),
    (500 * MIB, "-t ext2 -O ^sparse_super,^resize_inode"),
    (2 * GIB, "-t ext4 -E packed_meta_blocks=1"),
    (2 * GIB, "-t ext4 -E stride=32,stripe_width=64"),
    (500 * MIB, "-t ext2 -E stride=32"),
    (500 * MIB, "-t ext4 -g 4096 -b 4096"),
    (500 * MIB, "-t ext4 -E resize=8G"),
    // Clusters.
    (GIB, "-t ext4 -O bigalloc"),
    (GIB, "-t ext4 -O bigalloc -C 16384 -b 1024"),
    (4 * GIB, "-t ext4 -O bigalloc -C 65536 -O ^resize_inode"),
    (4 * GIB, "-t ext4 -O bigalloc,^flex_bg"),
    // Journals.
    (500 * MIB, "-t ext4 -O ^has_journal"),
    (4 * GIB, "-t ext4 -J size=1024"),
    (4 * GIB, "-t ext3 -J size=1024"),
    (4 * GIB, "-t ext4 -O ^flex_bg -J size=1024"),
    (500 * MIB, "-t ext4 -J size=8,location=40000"),
    (500 * MIB, "-t ext4 -O fast_commit"),
    (500 * MIB, "-t ext2 -j"),
    // Inodes.
    (500 * MIB, "-t ext4 -I 128"),
    (500 * MIB, "-t ext4 -I 512 -b 1024"),
    (500 * MIB, "-t ext4 -I 1024 -N 100000"),
    (500 * MIB, "-t ext4 -N 20"),
    (500 * MIB, "-t ext4 -i 65536"),
    (500 * MIB, "-t ext3 -I 128 -T news"),
    (500 * MIB, "-t ext4 -T largefile4"),
    // Features.
    (500 * MIB, "-t ext4 -O ^metadata_csum"),
    (500 * MIB, "-t ext4 -O ^metadata_csum,uninit_bg"),
    (500 * MIB, "-t ext4 -O ^64bit"),
    (500 * MIB, "-t ext4 -O metadata_csum_seed"),
    (500 * MIB, "-t ext4 -O ^extent,^64bit"),
    (500 * MIB, "-t ext4 -O orphan_file"),
    (500 * MIB, "-t ext4 -O orphan_file,^extent,^64bit,^metadata_csum"),
    (2 * GIB, "-t ext4 -O orphan_file,bigalloc"),
    (500 * MIB, "-t ext4 -O orphan_file -E orphan_file_size=1M"),
    (500 * MIB, "-t ext4 -O casefold -E encoding_flags=strict"),
    (500 * MIB, "-t ext4 -O encrypt,verity,stable_inodes,ea_inode,large_dir"),
    (500 * MIB, "-t ext4 -O ^filetype,^dir_index"),
    (500 * MIB, "-t ext4 -O inline_data"),
    (500 * MIB, "-t ext4 -O inline_data -b 1024"),
    (GIB, "-t ext4 -O quota"),
    (500 * MIB, "-t ext4 -O quota -b 1024"),
    (GIB, "-t ext4 -O quota,project,orphan_file"),
    (GIB, "-t ext4 -O quota -E quotatype=usrquota,root_owner=5:70000"),
    (GIB, "-t ext4 -O quota,bigalloc"),
    (GIB, "-t ext4 -O mmp"),
    (GIB, "-t ext3 -O quota"),
    (300 * MIB, "-t ext4 -O quota,project,mmp,orphan_file,casefold,inline_data,metadata_csum_seed"),
    // Words and numbers.
    (500 * MIB, "-t ext4 -L label -M /mnt -m 0 -e remount-ro"),
    (500 * MIB, "-t ext4 -m 12.5 -E root_owner=1000:70000,test_fs"),
    (16 * MIB, "-r 0 -O none"),
];

fn make_own(path: &Path, bytes: u64, args: &[&str]) -> Empty {
    let mut request = request(args);
    request.uuid = UuidAsked::Given(uuid(UUID));
    request.extended.push(format!("hash_seed={HASH_SEED}"));
    request.size = SizeAsked::Device;
    let fact = Fact { device_bytes: bytes, sector_size: 0, zeroed: true, now: NOW, random: [0; 32], user: (0, 0) };
    let options = request.resolve(&fact).unwrap_or_else(|e| panic!("{args:?}: {e}"));
    let empty = Empty::plan(&options).unwrap_or_else(|e| panic!("{args:?}: {e}"));
    let device = FileDevice::create(path, bytes, OpenOptions { io: IoMode::Buffered, ..OpenOptions::default() });
    write_with_progress(&device.expect("the image can be made"), &empty, 1, &|_| ()).expect("the image can be written");
    empty
}

fn uuid(text: &str) -> [u8; 16] {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    std::array::from_fn(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).expect("hexadecimal"))
}

fn make_theirs(path: &Path, bytes: u64, args: &[&str]) {
    File::create(path).and_then(|file| file.set_len(bytes)).expect("a sparse file");
    let seed = format!("hash_seed={HASH_SEED}");
    let now = format!("E2FSPROGS_FAKE_TIME={NOW}");
    let mut all: Vec<&str> = vec![&now, "mke2fs", "-q", "-F", "-U", UUID];
    // Of several -E, mke2fs takes the last one.
    let mut extended = seed;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if *arg == "-E" {
            extended = format!("{extended},{}", rest.next().expect("-E has a value"));
        } else {
            all.push(arg);
        }
    }
    all.extend(["-E", &extended]);
    all.push(arg(path));
    tool("env", &all);
}

/// The ranges of a file with data, rounded to blocks.
fn data(file: &File, bytes: u64, block: u64) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < bytes {
        let Ok(start) = rustix::fs::seek(file, SeekFrom::Data(at)) else { break };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).expect("a hole or the end follows");
        runs.push((start / block, end.div_ceil(block)));
        at = end;
    }
    runs
}

fn read_block(file: &File, number: u64, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; block as usize];
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], number * block + got as u64).expect("an image can be read") {
            0 => break,
            n => got += n,
        }
    }
    bytes
}

/// Bytes that differ in fields that may differ, by field.
type Differences = BTreeMap<&'static str, usize>;

/// Counts the bytes of `fields`, from `at` on, that differ, and makes them equal.
fn set_aside(known: &mut Differences, fields: &[(usize, usize, &'static str)], at: usize, a: &mut [u8], b: &[u8]) {
    for (field, len, why) in fields {
        let (a, b) = (&mut a[at + field..at + field + len], &b[at + field..at + field + len]);
        let count = a.iter().zip(b).filter(|(a, b)| a != b).count();
        if count > 0 {
            *known.entry(why.split_once(':').map_or(why, |(name, _)| name)).or_default() += count;
        }
        a.copy_from_slice(b);
    }
}

/// The known differences; an error with the first other difference, and the structure that it is in.
fn difference(own: &Path, theirs: &Path, empty: &Empty, bytes: u64) -> Result<Differences, String> {
    let block = u64::from(empty.block_size());
    let (own, theirs) = (File::open(own).expect("own"), File::open(theirs).expect("theirs"));
    let mut runs = data(&own, bytes, block);
    runs.extend(data(&theirs, bytes, block));
    runs.sort_unstable();
    let geo = empty.skeleton().geometry();
    let supers: Vec<(u64, usize)> = std::iter::once(GroupNr(0))
        .chain(geo.backup_groups())
        .map(|group| geo.super_location(group))
        .map(|(block, at)| (block.0, at))
        .collect();
    let mut next = 0;
    let mut known = Differences::new();
    for (start, end) in runs {
        for number in start.max(next)..end {
            let (mut a, b) = (read_block(&own, number, block), read_block(&theirs, number, block));
            if let Some((_, at)) = supers.iter().find(|(block, _)| *block == number) {
                set_aside(&mut known, &DIFFERENT, *at, &mut a, &b);
            }
            if number == empty.superblock().raw().s_mmp_block.get() && number > 0 {
                set_aside(&mut known, &MMP_DIFFERENT, 0, &mut a, &b);
            }
            if a != b {
                let at = a.iter().zip(&b).position(|(a, b)| a != b).expect("a difference");
                let piece = empty.pieces().find(|p| (p.start.0..p.start.0 + u64::from(p.blocks)).contains(&number));
                let piece = piece.map_or("in no piece".to_owned(), |p| format!("{:?} from {}", p.key, p.start.0));
                let end = (at + 16).min(a.len());
                return Err(format!(
                    "block {number}, byte {at:#x} ({piece}): {:02x?}, mke2fs has {:02x?}",
                    &a[at..end],
                    &b[at..end]
                ));
            }
        }
        next = next.max(end);
    }
    Ok(known)
}

fn compare(bytes: u64, line: &str) -> Result<Differences, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let (own, theirs) = (dir.path().join("own"), dir.path().join("theirs"));
    let args: Vec<&str> = line.split_whitespace().collect();
    let empty = make_own(&own, bytes, &args);
    make_theirs(&theirs, bytes, &args);
    let difference = difference(&own, &theirs, &empty, bytes);
    if difference.is_err()
        && let Some(keep) = std::env::var_os("EXTANT_SAVE")
    {
        std::fs::copy(&own, Path::new(&keep).join("own")).expect("own is kept");
        std::fs::copy(&theirs, Path::new(&keep).join("theirs")).expect("theirs is kept");
    }
    let known = difference?;
    if bytes > TIB {
        // e2fsck takes half a minute to read so many groups.
        return Ok(known);
    }
    expect_clean(&own).map(|()| known).map_err(|e| e.to_string())
}

/// A line of the table.
fn shown(bytes: u64, line: &str, compared: &Result<Differences, String>) -> String {
    let size = format!("{} KiB", bytes >> 10);
    let (count, fields) = match compared {
        Ok(known) => {
            let fields: Vec<String> = known.iter().map(|(field, bytes)| format!("{field} {bytes}")).collect();
            (known.values().sum::<usize>().to_string(), fields.join(", "))
        }
        Err(difference) => ("?".into(), difference.clone()),
    };
    format!("{line:<70} {size:>15} {count:>6}  {fields}")
}

/// Compares every second combination; a table of all is one test's.
fn is_that_of_mke2fs(half: usize) {
    let only = std::env::var("EXTANT_ONLY").ok();
    let path = std::env::var_os("EXTANT_EMPTY_TABLE");
    let (skip, step) = if path.is_some() { (half * TABLE.len(), 1) } else { (half, 2) };
    let mut failed = Vec::new();
    let mut table = format!("{:<70} {:>15} {:>6}  of which in the fields\n", "options", "size", "bytes");
    let wanted = |line: &str| only.as_deref().is_none_or(|only| line.contains(only));
    for (bytes, line) in TABLE.iter().skip(skip).step_by(step).filter(|(_, line)| wanted(line)) {
        let compared = compare(*bytes, line);
        writeln!(table, "{}", shown(*bytes, line, &compared).trim_end()).expect("into memory");
        if let Err(difference) = compared {
            failed.push(format!("{bytes} bytes, {line}: {difference}"));
        }
    }
    if half == 0
        && let Some(path) = path
    {
        std::fs::write(path, table).expect("the table is written");
    }
    assert!(failed.is_empty(), "{} of {} differ:\n{}", failed.len(), TABLE.len(), failed.join("\n"));
}

tests_of_cases!(images_are_those_of_mke2fs, is_that_of_mke2fs, first_half: 0, second_half: 1);
