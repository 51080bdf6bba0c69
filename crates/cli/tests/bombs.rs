//! Images that claim to contain huge amounts of data, and some that do. For any image, neither a command nor the server
//! of a mount uses more than 64 MiB besides its cache.
//!
//! The check is a limit on the address space (`ulimit -v`): the amount for a harmless image, the cache, and 64 MiB. If
//! a program needs more, its allocation fails, and it aborts. Each image is a few MiB, mostly holes.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};

use common::{CommandResult, Dir, debugfs, extant_path, patch, run, tool, wait_until};
use extant_block::device::{FileDevice, OpenOptions};
use extant_fs::{Cred, Filesystem, MountOptions, NewNode};
use extant_testkit::mount::fuse_works;
use extant_testkit::tests_of_cases;

const BESIDE_CACHE_KIB: u64 = 64 << 10;
/// The cache of a command, and the cache that the mounts here get.
const CACHE_KIB: u64 = 256 << 10;
const MOUNT_CACHE_KIB: u64 = 8 << 10;
/// Step of the search for the address space that a harmless image needs.
const STEP_KIB: usize = 4 << 10;

/// `extant` with this much address space. The allocator takes memory when it needs some, and none in advance.
fn limited(limit_kib: Option<u64>) -> Command {
    let mut command = Command::new("sh");
    let limit = limit_kib.map_or("unlimited".to_owned(), |limit| limit.to_string());
    command.args(["-c", &format!("ulimit -v {limit}; ulimit -c 0; exec \"$@\""), "sh"]).arg(extant_path());
    // Rust's backtrace of a failed allocation may itself fail to allocate, and would then wait for its own lock.
    command.env("RUST_BACKTRACE", "0");
    command.env("MIMALLOC_ARENA_RESERVE", "0").env("LC_ALL", "C").stdin(Stdio::null());
    command
}

fn limited_run(limit_kib: u64, args: &[&str]) -> CommandResult {
    let done = limited(Some(limit_kib)).args(args).output().expect("started");
    CommandResult {
        code: done.status.code(),
        out: done.stdout,
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

fn harmless(dir: &Dir) -> String {
    dir.empty_image("harmless.img", &[])
}

/// The address space of a command, in KiB: the smallest that suffices for a harmless image, plus the allowance. The
/// cache is added up to the amount that the image can fill ([`run_within`]).
static COMMAND_KIB: LazyLock<u64> = LazyLock::new(|| least_kib(&["ls"]) + BESIDE_CACHE_KIB);

/// As [`COMMAND_KIB`], for a check, whose threads have stacks.
static CHECK_KIB: LazyLock<u64> = LazyLock::new(|| least_kib(CHECK) + BESIDE_CACHE_KIB);

const CHECK: &[&str] = &["fsck", "-n", "-f", "--threads", "2"];

/// The smallest limit at which a command on a harmless image succeeds three times. Threads may need their memory at
/// once or one after the other.
fn least_kib(command: &[&str]) -> u64 {
    let dir = Dir::new();
    let image = harmless(&dir);
    let works = |limit: u64| limited_run(limit, &[command, &[&image]].concat()).code == Some(0);
    let mut limits = ((8 << 10)..(1 << 20)).step_by(STEP_KIB).map(|limit| limit as u64);
    limits.find(|limit| (0..3).all(|_| works(*limit))).expect("it works with 1 GiB")
}

/// As [`COMMAND_KIB`], for a mount's server.
static SERVER_KIB: LazyLock<u64> = LazyLock::new(|| {
    let dir = Dir::new();
    let image = harmless(&dir);
    let server = Server::start(&dir, &image, None).expect("mounted");
    assert_eq!(server.list("."), Some(0));
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).expect("alive");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).expect("a peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    peak + BESIDE_CACHE_KIB + MOUNT_CACHE_KIB
});

/// A mount whose server has a limit; unmounted when dropped.
struct Server {
    child: Child,
    at: String,
}

impl Server {
    /// Returns the message if the mount fails.
    fn start(dir: &Dir, image: &str, limit_kib: Option<u64>) -> Result<Server, String> {
        let at = dir.text("mnt");
        std::fs::create_dir_all(&at).expect("a mount point");
        let options = format!("ro,cache={MOUNT_CACHE_KIB}K");
        let mut child = limited(limit_kib)
            .args(["mount", "-f", "-o", &options, image, &at])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let (mut mounted, mut ended) = (false, false);
        wait_until("a mount", || {
            ended = child.try_wait().expect("status").is_some();
            mounted = common::run("mountpoint", &["-q", &at]).code == Some(0);
            mounted || ended
        });
        if !mounted {
            let said = child.wait_with_output().expect("ended").stderr;
            return Err(String::from_utf8_lossy(&said).into_owned());
        }
        Ok(Server { child, at })
    }

    /// Lists everything below a path, with the result of stat(2), for two seconds.
    fn list(&self, path: &str) -> Option<i32> {
        common::run("timeout", &["2", "find", &format!("{}/{path}", self.at), "-ls"]).code
    }

    /// Checks that the server is alive, and that it ends normally.
    fn ends(mut self, what: &str) {
        assert!(self.child.try_wait().expect("status").is_none(), "{what}: the server is gone");
        common::umount(&[&self.at]);
        let mut status = None;
        wait_until("the server", || {
            status = self.child.try_wait().expect("status");
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{what}: {status:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.at]).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command with the limit for this image.
fn run_within(args: &[&str]) -> CommandResult {
    run_beside(*COMMAND_KIB, args)
}

/// Runs a command with this much address space besides the cache.
fn run_beside(kib: u64, args: &[&str]) -> CommandResult {
    let image = args.iter().find_map(|arg| std::fs::metadata(arg.split(':').next()?).ok().filter(|m| m.is_file()));
    let cache_kib = (image.expect("an image").len() >> 10).min(CACHE_KIB);
    limited_run(kib + cache_kib, args)
}

/// Runs a command on a bomb, and checks its exit status and its message.
#[track_caller]
fn stays_within(args: &[&str], code: i32, words: &[&str]) -> CommandResult {
    let ran = run_within(args);
    assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.err.lines().last().unwrap_or_default());
    for word in words {
        assert!(ran.err.contains(word), "{args:?}: '{word}' is not in: {}", ran.err.lines().last().unwrap_or_default());
    }
    ran
}

/// Checks that the server of a mount survives a walk through everything within its limit, or that it refuses the image
/// with these words.
#[track_caller]
fn mount_stays_within(dir: &Dir, image: &str, refused: Option<&str>) {
    if !fuse_works() {
        eprintln!("SKIPPED: no FUSE mounts here");
        return;
    }
    match (Server::start(dir, image, Some(*SERVER_KIB)), refused) {
        (Ok(server), None) => {
            let status = server.list(".");
            assert!(matches!(status, Some(0 | 1 | 124)), "{image}: find ended with {status:?}");
            server.ends(image);
        }
        (Err(said), Some(words)) => assert!(said.contains(words), "{image}: {said}"),
        (Ok(_), Some(words)) => panic!("{image}: mounted, not refused: {words}"),
        (Err(said), None) => panic!("{image}: {said}"),
    }
}

/// An image without checksums and journal, of one or a few groups.
fn plain_image(dir: &Dir, name: &str, block_size: usize, more: &[&str], size: &str) -> String {
    let (image, block_size) = (dir.text(name), block_size.to_string());
    let args = ["-q", "-F", "-t", "ext4", "-b", &block_size, "-O", "^metadata_csum,^has_journal,^resize_inode"];
    tool("mke2fs", &[&args, more, &[&image, size]].concat());
    image
}

/// Puts a small file into the root: its inode, and its first block.
fn put(dir: &Dir, image: &str, name: &str, content: &[u8]) -> (u32, u64) {
    let local = dir.text("content");
    std::fs::write(&local, content).expect("written");
    tool("debugfs", &["-w", "-R", &format!("write {local} {name}"), image]);
    let stat = debugfs(image, &format!("stat /{name}"));
    let inode = stat.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("an inode");
    (inode, debugfs(image, &format!("bmap /{name} 0")).trim().parse().expect("a block"))
}

/// Puts a file of one extent into the root, at a block behind everything that mke2fs wrote; returns its inode.
fn put_at(dir: &Dir, image: &str, name: &str, content: &[u8], block: u64, block_size: usize) -> u32 {
    let (inode, _) = put(dir, image, name, b"content");
    let at = inode_at(image, inode, block_size);
    let blocks = content.len().div_ceil(block_size) as u16;
    patch(image, at + 0x28, &extent_node(0, 4, &[extent(0, blocks, block)]));
    patch(image, at + 4, &(content.len() as u32).to_le_bytes());
    patch(image, block * block_size as u64, content);
    inode
}

/// The byte offset of an inode.
fn inode_at(image: &str, inode: u32, block_size: usize) -> u64 {
    let said = debugfs(image, &format!("imap <{inode}>"));
    let mut words = said.split(|c: char| c.is_whitespace() || c == ',').skip_while(|word| *word != "block");
    let _ = words.next().expect("a group");
    let block: u64 = words.skip_while(|word| *word != "block").nth(1).and_then(|n| n.parse().ok()).expect("a block");
    let offset = said.rsplit("0x").next().map(str::trim).and_then(|n| u64::from_str_radix(n, 16).ok());
    block * block_size as u64 + offset.expect("an offset")
}

/// Turns an inode into a directory of this many bytes, with these flags.
fn become_directory(image: &str, at: u64, size: u64, flags: u32) {
    patch(image, at, &0o040755u16.to_le_bytes());
    patch(image, at + 4, &(size as u32).to_le_bytes());
    patch(image, at + 0x1A, &2u16.to_le_bytes());
    patch(image, at + 0x20, &flags.to_le_bytes());
    patch(image, at + 0x6C, &((size >> 32) as u32).to_le_bytes());
}

const EXTENTS_FL: u32 = 0x80000;
const INDEX_FL: u32 = 0x1000;

fn entry(inode: u32, name: &[u8], rec_len: usize, kind: u8) -> Vec<u8> {
    let mut bytes = inode.to_le_bytes().to_vec();
    bytes.extend((rec_len as u16).to_le_bytes());
    bytes.extend([name.len() as u8, kind]);
    bytes.extend(name);
    bytes.resize(rec_len.min(8 + name.len().next_multiple_of(4)), 0);
    bytes
}

/// Blocks of a directory with these names, all of the same length.
fn blocks_of_names(block_size: usize, names: impl IntoIterator<Item = (u32, String)>, kind: u8) -> Vec<u8> {
    let mut blocks: Vec<u8> = Vec::new();
    let mut names = names.into_iter().peekable();
    while let Some((_, name)) = names.peek() {
        let len = 8 + name.len().next_multiple_of(4);
        let end = blocks.len() + block_size;
        while let Some((inode, name)) = names.next_if(|_| end - blocks.len() >= len) {
            let rest = end - blocks.len();
            // The last entry of a block extends to the end of the block.
            let rec_len = if rest < 2 * len || names.peek().is_none() { rest } else { len };
            blocks.extend(entry(inode, name.as_bytes(), rec_len, kind));
            if rec_len == rest {
                break;
            }
        }
        blocks.resize(end, 0);
    }
    blocks
}

/// An extent node: header, and records of 12 bytes.
fn extent_node(depth: u16, max: u16, records: &[[u8; 12]]) -> Vec<u8> {
    let mut node = Vec::new();
    for field in [0xF30A, records.len() as u16, max, depth, 0, 0] {
        node.extend(u16::to_le_bytes(field));
    }
    records.iter().for_each(|record| node.extend(record));
    node
}

fn extent(lblk: u32, len: u16, block: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&lblk.to_le_bytes());
    bytes[4..6].copy_from_slice(&len.to_le_bytes());
    bytes[8..].copy_from_slice(&(block as u32).to_le_bytes());
    bytes
}

fn index(lblk: u32, block: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&lblk.to_le_bytes());
    bytes[4..8].copy_from_slice(&(block as u32).to_le_bytes());
    bytes
}

/// Blocks of pointers, stored as one file in the image. Every pointer of the first level refers to `below`, and those
/// of each further level to the previous level.
fn pointers(dir: &Dir, image: &str, below: u64) -> Vec<u64> {
    let (_, first) = put(dir, image, "pointers", &vec![7; 3 << 10]);
    let pointers: Vec<u64> = (first..first + 3).collect();
    for (block, below) in pointers.iter().zip([below, pointers[0], pointers[1]]) {
        patch(image, block << 10, &(below as u32).to_le_bytes().repeat(256));
    }
    pointers
}

/// Gives a file a map in which every pointer refers to one block.
fn map_to_one_block(dir: &Dir, image: &str, name: &str, block: u64, size: u64) {
    let pointers = pointers(dir, image, block);
    let direct = (0..12).map(|i| format!("block[{i}] {block}"));
    let indirect = ["IND", "DIND", "TIND"].iter().zip(&pointers).map(|(name, block)| format!("block[{name}] {block}"));
    let fields = direct.chain(indirect).chain([format!("size {size}"), "blocks 0x7fffffff".into()]);
    let commands: String = fields.map(|field| format!("set_inode_field {name} {field}\n")).collect();
    let script = dir.text("commands");
    std::fs::write(&script, commands).expect("written");
    tool("debugfs", &["-w", "-f", &script, image]);
}

/// A directory of 1 GiB in an image of 16 MiB: every pointer refers to one block of pointers, or to one block of names.
fn directory_of_one_block(dir: &Dir) -> String {
    let image = dir.text("bomb.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext2", "-b", "1024", "-O", "^dir_index,^resize_inode", &image, "16M"]);
    let tree = dir.path("d");
    std::fs::create_dir(&tree).expect("directory");
    for i in 0..60 {
        std::fs::write(tree.join(format!("{i:02}")), "").expect("file");
    }
    common::extant(&["cp", "-r", tree.to_str().expect("UTF-8"), &format!("{image}:/")]).ok();
    let names: u64 = debugfs(&image, "bmap /d 0").trim().parse().expect("a block");
    map_to_one_block(dir, &image, "/d", names, 1 << 30);
    image
}

/// A directory of 336 MiB in an image of 16 MiB: 336 extents that refer to the same 1000 blocks, with 85,000 names.
fn directory_of_one_extent(dir: &Dir) -> String {
    let image = plain_image(dir, "extents.img", 1024, &[], "16M");
    let (file, _) = put(dir, &image, "file", b"content");
    // 12 bytes per entry, 85 entries per block.
    let letter = |n: u32| char::from(b'a' + (n % 26) as u8);
    let names = (0..85_000).map(|i| (file, [i / 17_576, i / 676, i / 26, i].map(letter).iter().collect()));
    let (names_at, leaves_at) = (10_000, 12_000);
    put_at(dir, &image, "names", &blocks_of_names(1024, names, 1), names_at, 1024);
    let leaf = |n: u32| (0..84).map(|i| extent((n * 84 + i) * 1000, 1000, names_at)).collect::<Vec<_>>();
    let leaves: Vec<u8> = (0..4).flat_map(|n| [extent_node(0, 84, &leaf(n)), vec![0; 4]].concat()).collect();
    let inode = put_at(dir, &image, "d", &leaves, leaves_at, 1024);
    let at = inode_at(&image, inode, 1024);
    become_directory(&image, at, 336_000 << 10, EXTENTS_FL);
    let root = extent_node(1, 4, &[0, 1, 2, 3].map(|n| index(n * 84_000, leaves_at + u64::from(n))));
    patch(&image, at + 0x28, &root);
    image
}

/// A hash-indexed directory in which 259,000 index entries refer to one leaf, with 340 names.
fn index_of_one_leaf(dir: &Dir) -> String {
    let image = plain_image(dir, "index.img", 4096, &[], "16M");
    let (file, _) = put(dir, &image, "file", b"content");
    let records = |n: u32, first: usize, of: &mut dyn FnMut(u32) -> [u32; 2]| -> Vec<u8> {
        let limit = (4096 - first) / 8;
        let mut bytes: Vec<u8> = (0..n).flat_map(of).flat_map(u32::to_le_bytes).collect();
        // The limit of entries, and their number, take the place of the first hash.
        bytes[..2].copy_from_slice(&(limit as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&(n as u16).to_le_bytes());
        bytes
    };
    let mut content = [entry(2, b".", 12, 2), entry(2, b"..", 4096 - 12, 2)].concat();
    content.resize(24, 0);
    content.extend([0, 0, 0, 0, 1, 8, 1, 0]);
    content.extend(records(508, 32, &mut |i| [(i * 511) << 14, 2 + i]));
    content.resize(4096, 0);
    content.extend(blocks_of_names(4096, (0..340).map(|i| (file, format!("{i:04}"))), 1));
    for node in 0..508 {
        content.extend(entry(0, b"", 4096, 0));
        content.extend(records(511, 8, &mut |i| [(node * 511 + i) << 14, 1]));
    }
    let inode = put_at(dir, &image, "d", &content, 3000, 4096);
    become_directory(&image, inode_at(&image, inode, 4096), content.len() as u64, EXTENTS_FL | INDEX_FL);
    image
}

/// Directories that share one set of blocks, which names all of them, so that a walk would descend through all of them.
fn directories_of_one_another(dir: &Dir) -> String {
    const DIRECTORIES: u32 = 1500;
    let image = plain_image(dir, "tower.img", 1024, &["-I", "128", "-N", "8192"], "8M");
    let names = (0..DIRECTORIES).map(|i| (1000 + i, format!("{i:04}")));
    let blocks = blocks_of_names(1024, names, 2);
    let first = 7000;
    let inode = put_at(dir, &image, "d", &blocks, first, 1024);
    let extents = extent_node(0, 4, &[extent(0, (blocks.len() >> 10) as u16, first)]);
    for inode in (1000..1000 + DIRECTORIES).chain([inode]) {
        let at = match inode < 1000 {
            true => inode_at(&image, inode, 1024),
            false => inode_at(&image, 1000, 1024) + u64::from(inode - 1000) * 128,
        };
        become_directory(&image, at, blocks.len() as u64, EXTENTS_FL);
        patch(&image, at + 0x28, &extents);
    }
    image
}

/// A directory in its inode with a claimed size of 2 GiB.
fn huge_inline_directory(dir: &Dir) -> String {
    let image = plain_image(dir, "inline.img", 1024, &["-O", "inline_data", "-I", "256"], "16M");
    tool("debugfs", &["-w", "-R", "mkdir d", &image]);
    tool("debugfs", &["-w", "-R", "set_inode_field /d size 0x7fffffff", &image]);
    image
}

fn list_within_memory(make: fn(&Dir) -> String) {
    let dir = Dir::new();
    let image = make(&dir);
    let (out, at) = (dir.text("out"), format!("{image}:/d"));
    for args in [
        &["ls", &image, "/d"][..],
        &["ls", "-t", &image, "/d"],
        &["ls", "-lR", "--rescue", &image, "/d"],
        &["tree", &image, "/d"],
        &["find", &at],
        &["du", &at],
        &["export", &image, "/d"],
        &["cp", "-r", &at, &out],
        &["chmod", "-R", "a+r", &at],
        &["rm", "-r", &at],
    ] {
        let ran = run_within(args);
        if args.contains(&"--rescue") && image.ends_with("index.img") {
            // The listing does not use the index, and the blocks are valid.
            let names = ran.out.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"-")).count();
            assert_eq!((ran.code, names), (Some(0), 340), "{}", ran.err);
            continue;
        }
        assert!(matches!(ran.code, Some(4 | 8)), "{args:?}: {:?}, {}", ran.code, ran.err);
        assert!(ran.err.contains(" entries with ") && ran.err.contains(" names"), "{args:?}: {}", ran.err);
    }
    mount_stays_within(&dir, &image, None);
}

tests_of_cases!(
    listing_a_directory_that_repeats_its_blocks_stays_within_memory,
    list_within_memory,
    one_block: directory_of_one_block,
    one_extent: directory_of_one_extent,
    one_leaf: index_of_one_leaf,
);

#[test]
fn walking_directories_that_name_one_another_ends_within_memory() {
    let dir = Dir::new();
    let image = directories_of_one_another(&dir);
    let at = format!("{image}:/d");
    for args in [&["find", &at][..], &["du", &at], &["ls", "-R", &image, "/d"]] {
        stays_within(args, 8, &["are reached a second time"]);
    }
}

#[test]
fn copying_directories_that_name_one_another_ends_within_memory() {
    let dir = Dir::new();
    let image = directories_of_one_another(&dir);
    let (out, at) = (dir.text("out"), format!("{image}:/d"));
    stays_within(&["cp", "-r", &at, &out], 8, &["are reached a second time"]);
    // The export ends at the first such directory.
    stays_within(&["export", &at], 8, &["a directory that is reached a second time"]);
    mount_stays_within(&dir, &image, None);
}

/// The survey of a rescue reads every directory, including those without a name. Together they may have far more blocks
/// than the file system.
fn rescue_within_memory((make, is_named): (fn(&Dir) -> String, bool)) {
    let dir = Dir::new();
    let image = make(&dir);
    if !is_named {
        tool("debugfs", &["-w", "-R", "unlink /d", &image]);
    }
    let ran = run_within(&["ls", "-R", "--rescue", &image]);
    let out = String::from_utf8_lossy(&ran.out);
    assert_eq!(out.contains("/lost+found/#"), !is_named, "{}", ran.err);
    assert_eq!(ran.code, Some(4), "{}", ran.err);
}

tests_of_cases!(
    a_rescue_of_directories_that_repeat_their_blocks_ends_within_memory,
    rescue_within_memory,
    one_block: (directory_of_one_block, true),
    one_block_without_a_name: (directory_of_one_block, false),
    one_extent: (directory_of_one_extent, true),
    one_extent_without_a_name: (directory_of_one_extent, false),
    one_another: (directories_of_one_another, true),
    one_another_without_a_name: (directories_of_one_another, false),
);

#[test]
fn an_inline_directory_of_any_size_stays_within_memory() {
    let dir = Dir::new();
    let image = huge_inline_directory(&dir);
    for args in [&["ls", "-lR", &image][..], &["find", &image], &["du", &image], &["stat", &image, "/d"]] {
        let ran = run_within(args);
        assert!(matches!(ran.code, Some(0 | 8)), "{args:?}: {:?}, {}", ran.code, ran.err);
    }
    mount_stays_within(&dir, &image, None);
}

fn file_of_one_block(dir: &Dir) -> String {
    let image = dir.text("file.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext2", "-b", "1024", "-O", "^resize_inode", &image, "16M"]);
    let (_, block) = put(dir, &image, "f", b"content");
    map_to_one_block(dir, &image, "/f", block, 2 << 30);
    image
}

fn describe_within_memory(words: &[&str]) {
    let dir = Dir::new();
    let image = file_of_one_block(&dir);
    let args = [words, &[image.as_str(), "/f"]].concat();
    let ran = stays_within(&args, 0, &[]);
    assert!(ran.out.len() > 1 << 26, "{args:?}: every extent is printed, {} bytes", ran.out.len());
}

tests_of_cases!(
    a_file_that_repeats_one_block_is_described_within_memory,
    describe_within_memory,
    text: &["stat"],
    json: &["stat", "--json"],
);

#[test]
fn a_file_that_repeats_one_block_is_served_within_memory() {
    let dir = Dir::new();
    let image = file_of_one_block(&dir);
    mount_stays_within(&dir, &image, None);
}

#[test]
fn a_symbolic_link_of_any_size_stays_within_memory() {
    let dir = Dir::new();
    let image = plain_image(&dir, "symlink.img", 1024, &[], "16M");
    tool("debugfs", &["-w", "-R", "symlink short target", &image]);
    tool("debugfs", &["-w", "-R", &format!("symlink long {}", "t".repeat(200)), &image]);
    for link in ["short", "long"] {
        for size in ["60000", "0x7fffffff", "0x7fffffffffff"] {
            tool("debugfs", &["-w", "-R", &format!("set_inode_field /{link} size {size}"), &image]);
            let path = format!("/{link}");
            for args in [&["stat", &image, &path][..], &["ls", "-l", &image, &path], &["ls", "-lR", &image]] {
                let ran = run_within(args);
                assert!(matches!(ran.code, Some(0 | 8)), "{args:?}: {:?}, {}", ran.code, ran.err);
            }
        }
    }
    mount_stays_within(&dir, &image, None);
}

/// An image of 8 MiB that claims 2 TiB in over eight million groups.
fn millions_of_groups(dir: &Dir) -> String {
    let image = plain_image(dir, "groups.img", 1024, &["-I", "128"], "8M");
    File::options().write(true).open(&image).and_then(|f| f.set_len(2 << 40)).expect("an image of 2 TiB");
    // 2 TiB in groups of 256 KiB, of 8 inodes each.
    let (blocks, per_group) = ((1u32 << 31) - 255, 256u32);
    let groups = (blocks - 1).div_ceil(per_group);
    let mut incompat = [0; 4];
    let file = File::open(&image).expect("the image");
    file.read_exact_at(&mut incompat, 1024 + 0x60).expect("read");
    // Descriptors are stored in their own groups.
    let meta_bg = u32::from_le_bytes(incompat) | 0x10;
    let sizes = [(0x00, groups * 8), (0x04, blocks), (0x20, per_group), (0x24, per_group), (0x28, 8)];
    for (field, value) in [(0x60, meta_bg), (0x104, 0)].into_iter().chain(sizes) {
        patch(&image, 1024 + field, &value.to_le_bytes());
    }
    image
}

#[test]
fn more_groups_than_fit_in_memory_are_refused() {
    let dir = Dir::new();
    let image = millions_of_groups(&dir);
    for args in
        [&["ls", &image][..], &["find", &image], &["du", &image], &["df", &image], &["mkdir", &format!("{image}:/x")]]
    {
        stays_within(args, 8, &["groups of 256 blocks"]);
    }
    mount_stays_within(&dir, &image, Some("groups of 256 blocks"));
}

/// Gives the journal of an ext3 image of 4 GiB a map of two million pieces.
fn journal_in_pieces(dir: &Dir) -> String {
    const BLOCKS: u32 = 2 << 20;
    let image = dir.text("pieces.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext3", "-b", "1024", "-I", "128", "-N", "4096", "-J", "size=1", &image, "4G"]);
    let data = |n: u32| 4_000_000 - n;
    // In the order of the walk; the first five are the roots.
    let pointer_blocks =
        |first: u32, n: u32| (first..first + n).flat_map(|n| data(n).to_le_bytes()).collect::<Vec<_>>();
    let leaves = pointer_blocks(12, BLOCKS - 12);
    let first_leaf = 100_000;
    patch(&image, first_leaf << 10, &leaves);
    let of = |first: u64, n: u64| (first..first + n).flat_map(|b| (b as u32).to_le_bytes()).collect::<Vec<_>>();
    let leaf_blocks = leaves.len().div_ceil(1024) as u64;
    let nodes = first_leaf + leaf_blocks;
    patch(&image, nodes << 10, &of(first_leaf + 1, leaf_blocks - 1));
    let node_blocks = (leaf_blocks - 1).div_ceil(256);
    let top = nodes + node_blocks;
    patch(&image, top << 10, &of(nodes + 1, node_blocks - 1));
    let at = inode_at(&image, 8, 1024);
    let map: Vec<u8> =
        (0..12).map(data).chain([first_leaf, nodes, top].map(|b| b as u32)).flat_map(u32::to_le_bytes).collect();
    patch(&image, at + 0x28, &map);
    patch(&image, at + 4, &(BLOCKS << 10).to_le_bytes());
    image
}

#[test]
fn a_journal_in_more_pieces_than_fit_in_memory_is_refused() {
    let dir = Dir::new();
    let image = journal_in_pieces(&dir);
    for args in [&["ls", &image][..], &["mkdir", &format!("{image}:/x")]] {
        stays_within(args, 8, &["pieces of the journal"]);
    }
    mount_stays_within(&dir, &image, Some("pieces of the journal"));
}

/// A log of one transaction with this many copies, each of a different block, in an image of 8 GiB.
fn log_of_copies(dir: &Dir, copies: u32) -> String {
    let image = dir.text("log.img");
    let size = copies / 1000 + 64;
    let journal = format!("size={size}");
    let features = "^metadata_csum,^resize_inode,^64bit,sparse_super2";
    let extended = "lazy_journal_init=1,lazy_itable_init=1,num_backup_sb=0";
    let args = ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", features, "-E", extended, "-N", "4096", "-J", &journal];
    tool("mke2fs", &[&args[..], &["-G", "1024", &image, "8G"]].concat());
    let file = File::options().read(true).write(true).open(&image).expect("the image");
    // Logical block, block, length of each extent.
    let extents: Vec<[u64; 3]> = debugfs(&image, "dump_extents <8>")
        .lines()
        .skip(1)
        .filter_map(|line| {
            let numbers: Vec<u64> = line
                .split(|c: char| !(c.is_ascii_digit() || c == '/'))
                .filter(|word| !word.is_empty() && !word.contains('/'))
                .filter_map(|word| word.parse().ok())
                .collect();
            // Level and number of the entry; both ends of either range; its length.
            match numbers[..] {
                [_, _, logical, _, block, _, len] => Some([logical, block, len]),
                _ => None,
            }
        })
        .collect();
    let place = |log_block: u64| {
        let [logical, block, _] =
            extents.iter().find(|[logical, _, len]| (*logical..logical + len).contains(&log_block)).expect("mapped");
        (block + log_block - logical) << 10
    };
    let header = |kind: u32| [0xC03B_3998, kind, 1].map(u32::to_be_bytes).concat();
    let (mut at, mut home) = (1, 0);
    while home < copies {
        let mut descriptor = header(1);
        let tags = 126.min(copies - home);
        for i in 0..tags {
            // Flags: no UUID; the last tag of its block.
            let flags = if i + 1 == tags { 2u16 | 8 } else { 2 };
            // Behind the metadata of all groups, and the journal.
            descriptor.extend((6_000_000 + home + i).to_be_bytes());
            descriptor.extend([0, 0]);
            descriptor.extend(flags.to_be_bytes());
        }
        descriptor.resize(1024, 0);
        file.write_all_at(&descriptor, place(at)).expect("written");
        at += 1 + u64::from(tags);
        home += tags;
    }
    let mut commit = header(2);
    commit.resize(1024, 0);
    file.write_all_at(&commit, place(at)).expect("written");
    // The log begins at block 1 with transaction 1.
    for (field, value) in [(0x18, 1u32), (0x1C, 1)] {
        file.write_all_at(&value.to_be_bytes(), place(0) + field).expect("written");
    }
    let mut incompat = [0; 4];
    file.read_exact_at(&mut incompat, 1024 + 0x60).expect("read");
    patch(&image, 1024 + 0x60, &(u32::from_le_bytes(incompat) | 4).to_le_bytes());
    image
}

#[test]
fn a_log_of_a_million_copies_is_read_within_memory() {
    let dir = Dir::new();
    let image = log_of_copies(&dir, 1_000_000);
    for args in [&["ls", &image][..], &["find", &image], &["info", &image]] {
        stays_within(args, 0, &[]);
    }
    mount_stays_within(&dir, &image, None);
}

#[test]
fn a_log_of_more_copies_than_fit_in_memory_is_refused() {
    let dir = Dir::new();
    let image = log_of_copies(&dir, 1_100_000);
    for args in [&["ls", &image][..], &["mkdir", &format!("{image}:/x")]] {
        stays_within(args, 8, &["blocks to replay"]);
    }
    mount_stays_within(&dir, &image, Some("blocks to replay"));
}

/// A list of this many orphans.
fn orphans(dir: &Dir, count: u32) -> String {
    let image = dir.text("orphans.img");
    let features = "^metadata_csum,^resize_inode,^orphan_file";
    let args = ["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "128", "-N", "163840", "-O", features];
    tool("mke2fs", &[&args[..], &[&image, "640M"]].concat());
    let per_group = 32_768;
    let mut inode = vec![0; 128];
    inode[..2].copy_from_slice(&0o100644u16.to_le_bytes());
    inode[0x22] = 8;
    inode[0x28..0x34].copy_from_slice(&extent_node(0, 4, &[]));
    for group in 0..5 {
        let first = group * per_group + 1;
        let last = (first + per_group).min(count + 101);
        let mut table = Vec::new();
        for number in first.max(101)..last {
            let next = if number + 1 < count + 101 { number + 1 } else { 0 };
            inode[0x14..0x18].copy_from_slice(&next.to_le_bytes());
            table.extend(&inode);
        }
        if !table.is_empty() {
            patch(&image, inode_at(&image, first.max(101), 4096), &table);
        }
    }
    patch(&image, 1024 + 0xE8, &101u32.to_le_bytes());
    image
}

#[test]
fn a_list_of_many_orphans_stays_within_memory() {
    let dir = Dir::new();
    let image = orphans(&dir, 140_000);
    stays_within(&["ls", &image], 0, &[]);
    stays_within(&["mkdir", &format!("{image}:/x")], 8, &["messages of errors suppressed"]);
    mount_stays_within(&dir, &image, None);
}

#[test]
fn a_file_system_of_2_tib_stays_within_memory() {
    let dir = Dir::new();
    let image = dir.text("large.img");
    let features = "sparse_super2,^resize_inode";
    let extended = "num_backup_sb=0,lazy_itable_init=1,lazy_journal_init=1";
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-O", features, "-E", extended, &image, "2T"]);
    check_stays_within(&image, 0);
    for args in [&["ls", "-lR", &image][..], &["info", &image], &["df", &image], &["mkdir", &format!("{image}:/x")]] {
        stays_within(args, 0, &[]);
    }
    mount_stays_within(&dir, &image, None);
}

/// All groups have the same descriptor as the first, and therefore its inode table. Their inodes would take 128 MiB.
#[test]
fn a_check_takes_no_memory_for_inodes_that_it_does_not_read() {
    const GROUPS: u64 = (256 << 30) / (8192 * 1024);
    let dir = Dir::new();
    let image = dir.text("large.img");
    let features = "sparse_super2,^resize_inode,^has_journal,^metadata_csum,^uninit_bg,^64bit";
    let extended = "num_backup_sb=0,lazy_itable_init=1";
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-O", features, "-E", extended, &image, "256G"]);
    let mut first = [0; 32];
    File::open(&image).and_then(|file| file.read_exact_at(&mut first, 2048)).expect("the first descriptor");
    patch(&image, 2048, &first.repeat(GROUPS as usize));
    let script = "import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let extant = extant_path().to_str().expect("UTF-8");
    let said = run("python3", &["-c", script, extant, "fsck", "-fn", &image]).ok();
    let kib: u64 = said.trim().strip_prefix("4 ").unwrap_or_else(|| panic!("{said}")).parse().expect("a number");
    assert!(kib < 64 << 10, "{kib} KiB");
}

/// Checks an image within the limit, and asserts the exit status.
#[track_caller]
fn check_stays_within(image: &str, code: i32) {
    let ran = run_beside(*CHECK_KIB, &[CHECK, &[image]].concat());
    let said = String::from_utf8_lossy(&ran.out);
    assert_eq!(ran.code, Some(code), "{image}: {}; {}", ran.err, said.lines().last().unwrap_or_default());
}

fn check_within_memory((make, code): (fn(&Dir) -> String, i32)) {
    let dir = Dir::new();
    check_stays_within(&make(&dir), code);
}

tests_of_cases!(
    checking_directories_that_repeat_their_blocks_stays_within_memory,
    check_within_memory,
    one_block: (directory_of_one_block, 4),
    one_extent: (directory_of_one_extent, 4),
    one_leaf: (index_of_one_leaf, 4),
    one_another: (directories_of_one_another, 4),
    one_inode: (huge_inline_directory, 4),
);

tests_of_cases!(
    checking_images_that_claim_to_be_large_stays_within_memory,
    check_within_memory,
    groups: (millions_of_groups, 8),
    journal: (journal_in_pieces, 4),
    many_orphans: (|dir| orphans(dir, 140_000), 4),
    log: (|dir| log_of_copies(dir, 1_000_000), 0),
);

/// A directory with this many names of a few files.
fn directory_of_names(dir: &Dir, names: u32) -> String {
    let image = dir.text("names.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-N", "1024", &image, "1G"]);
    let device = FileDevice::open(&image, OpenOptions::default()).expect("opened");
    let fs = Filesystem::mount(Arc::new(device), MountOptions::default()).expect("mounted");
    let root = fs.root().expect("root");
    let d = fs.create(&root, b"d", NewNode::directory(0o755), Cred::default()).expect("created");
    let mut file = None;
    for i in 0..names {
        let name = format!("{:08}", u64::from(i) * 7919 % u64::from(names));
        if i % 60_000 == 0 {
            file = Some(fs.create(&d, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("created"));
        } else if let Some(file) = &file {
            fs.link(file, &d, name.as_bytes()).expect("linked");
        }
    }
    drop((root, d, file));
    fs.unmount().expect("unmounted");
    image
}

/// The last word of each line, without a path in front.
fn last_words(ran: CommandResult) -> Vec<String> {
    let text = String::from_utf8(ran.out).expect("UTF-8");
    text.lines().filter_map(|line| line.rsplit(['/', ' ']).next()).map(str::to_owned).collect()
}

/// Checks that `ls` lists every name once, in the order that it is asked for.
fn all_names_are_listed(names: u32) {
    let dir = Dir::new();
    let image = directory_of_names(&dir, names);
    let sorted: Vec<String> = (0..names).map(|i| format!("{i:08}")).collect();
    for args in [&["ls", &image, "/d"][..], &["ls", "-l", &image, "/d"], &["ls", "-S", &image, "/d"]] {
        assert!(last_words(stays_within(args, 0, &[])) == sorted, "{args:?}");
    }
    assert!(last_words(stays_within(&["ls", "-r", &image, "/d"], 0, &[])).iter().rev().eq(&sorted), "ls -r");
}

/// Checks that every walk finds every name once, and a mount of the image.
fn all_names_are_found(names: u32) {
    let dir = Dir::new();
    let image = directory_of_names(&dir, names);
    let at = format!("{image}:/d");
    let sorted: Vec<String> = (0..names).map(|i| format!("{i:08}")).collect();
    for args in [&["find", &at][..], &["du", "-a", &at], &["tree", &image, "/d"]] {
        let mut found = last_words(stays_within(args, 0, &[]));
        found.retain(|word| word.len() == 8 && word.bytes().all(|b| b.is_ascii_digit()));
        assert!(found == sorted, "{args:?}: {} names", found.len());
    }
    mount_stays_within(&dir, &image, None);
}

#[test]
fn a_large_sound_directory_is_listed_completely_within_memory() {
    all_names_are_listed(150_000);
}

#[test]
fn a_large_sound_directory_is_walked_completely_within_memory() {
    all_names_are_found(150_000);
}

#[test]
#[ignore = "a minute"]
fn soak_a_sound_directory_of_millions_of_names_is_listed_completely_within_memory() {
    all_names_are_listed(3_000_000);
    all_names_are_found(3_000_000);
}

#[test]
#[ignore = "writes 700 MB"]
fn soak_a_file_system_of_the_most_groups_stays_within_memory() {
    let dir = Dir::new();
    let image = dir.text("most.img");
    let features = "sparse_super2,^resize_inode";
    let extended = "num_backup_sb=0,lazy_itable_init=1,lazy_journal_init=1";
    let args =
        ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "2097152", "-O", features, "-E", extended, &image, "2047G"];
    tool("mke2fs", &args);
    for args in [&["ls", "-lR", &image][..], &["info", &image], &["df", &image], &["mkdir", &format!("{image}:/x")]] {
        stays_within(args, 0, &[]);
    }
    mount_stays_within(&dir, &image, None);
}
