//! Real tools as oracles of tests: the e2fsprogs make an image, check it and look into it; the kernel mounts it.
//!
//! Main types: [`MkfsOptions`], [`Fsck`], [`mount::Mounted`]. [`memory`] is the same for images in memory.
//!
//! What it does not do: know `fs`, so that every crate below it can use this one in its tests. Unit tests of `block`
//! itself use only what takes a path: their `MemDevice` is another type than the one here. `cargo xtask tidy` checks
//! that no test runs the e2fsprogs without this crate.
//!
//! # Locking
//! None.
#![forbid(unsafe_code)]

pub mod encryption;
pub mod error;
pub mod memory;
pub mod mount;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub use error::{Error, Result};

/// How to make an image.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// `ext2`, `ext3` or `ext4`: the defaults of mke2fs.conf.
    pub fs_type: &'static str,
    /// Bytes per block.
    pub block_size: u32,
    /// Bytes per inode; None: mke2fs's choice.
    pub inode_size: Option<u32>,
    /// The `-O` list, e.g. `orphan_file,^has_journal`; empty: the defaults.
    pub features: String,
    /// Size of the image in bytes.
    pub size: u64,
    pub extra_args: Vec<String>,
    /// Bytes of a journal in a file of its own beside the image ([`journal_of`]); 0: it is in the image.
    pub external_journal: u64,
}

impl MkfsOptions {
    /// `fs_type` with its defaults, 4 KiB blocks.
    pub fn new(fs_type: &'static str, size: u64) -> MkfsOptions {
        MkfsOptions {
            fs_type,
            block_size: 4096,
            inode_size: None,
            features: String::new(),
            size,
            extra_args: Vec::new(),
            external_journal: 0,
        }
    }
}

fn output(program: impl AsRef<OsStr>, args: &[&str]) -> Result<Output> {
    let program = program.as_ref();
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).env("LC_ALL", "C").env("TZ", "UTC");
    command.output().map_err(|source| Error::Spawn { program: program.display().to_string(), source })
}

/// Runs a program to its end. Returns its exit status (None: a signal) and standard output and error as one text.
pub fn run_command(program: impl AsRef<OsStr>, args: &[&str]) -> Result<(Option<i32>, String)> {
    let o = output(program, args)?;
    Ok((o.status.code(), String::from_utf8_lossy(&[o.stdout, o.stderr].concat()).into_owned()))
}

/// Runs a program as [`run_command`] does, and kills it when a processor has worked `seconds` for it: on a busy machine
/// an honest program takes longer by the clock. One that sleeps is killed after thirty times as long by the clock.
/// The exit status is `None` if it was killed.
pub fn run_bounded(seconds: u32, program: &str, args: &[&str]) -> Result<(Option<i32>, String)> {
    let (code, o) = bounded(seconds, program, args)?;
    Ok((code, String::from_utf8_lossy(&[o.stdout, o.stderr].concat()).into_owned()))
}

fn bounded(seconds: u32, program: &str, args: &[&str]) -> Result<(Option<i32>, Output)> {
    let (clock, processor) = ((seconds * 30).to_string(), format!("--cpu={seconds}"));
    let bounds = ["-k", "1", &clock, "prlimit", "--core=0", &processor, program];
    let o = output("timeout", &[&bounds, args].concat())?;
    // timeout(1): 124 and 137 if it killed the program, 128 and the number of a signal that the program received.
    Ok((o.status.code().filter(|code| *code < 124), o))
}

/// Runs a program that must succeed; its standard output.
pub fn run_ok(program: &str, args: &[&str]) -> Result<String> {
    let o = output(program, args)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if o.status.success() {
        return Ok(text(&o.stdout));
    }
    let output = text(&[o.stdout, o.stderr].concat());
    Err(Error::Command { command: format!("{program} {}", args.join(" ")), code: o.status.code(), output })
}

/// As [`run_ok`]; a failure ends the test.
#[track_caller]
pub fn tool(program: &str, args: &[&str]) -> String {
    run_ok(program, args).unwrap_or_else(|e| panic!("{e}"))
}

/// The path as an argument; test directories have UTF-8 names.
pub fn arg(path: &Path) -> &str {
    path.to_str().expect("a test's own path is UTF-8")
}

/// Makes the image `dir/image`: a sparse file with a fixed UUID and hash seed, so that two images made alike are alike.
pub fn make_image(dir: &Path, options: &MkfsOptions) -> Result<PathBuf> {
    let image = dir.join("image");
    let file = std::fs::File::create(&image).map_err(Error::io(format!("create {}", image.display())))?;
    file.set_len(options.size).map_err(Error::io(format!("size {}", image.display())))?;
    let block_size = options.block_size.to_string();
    let inode_size = options.inode_size.map(|s| s.to_string());
    let mut args = vec!["-q", "-F", "-t", options.fs_type, "-b", &block_size];
    args.extend(["-U", "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"]);
    args.extend(["-E", "hash_seed=1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed"]);
    if let Some(size) = &inode_size {
        args.extend(["-I", size]);
    }
    if !options.features.is_empty() {
        args.extend(["-O", &options.features]);
    }
    args.extend(options.extra_args.iter().map(String::as_str));
    // mke2fs takes a block device for a journal.
    let journal = if options.external_journal > 0 { Some(external_journal(&image, options)?) } else { None };
    let device = journal.as_ref().map(|journal| format!("device={}", journal.path()));
    if let Some(device) = &device {
        args.extend(["-J", device]);
    }
    args.push(arg(&image));
    run_ok("mke2fs", &args)?;
    Ok(image)
}

/// Makes the journal of an image, on a loop device.
fn external_journal(image: &Path, options: &MkfsOptions) -> Result<mount::AttachedFile> {
    let (path, block_size) = (journal_name(image), options.block_size.to_string());
    let size = format!("{}k", options.external_journal >> 10);
    run_ok("mke2fs", &["-q", "-F", "-O", "journal_dev", "-b", &block_size, arg(&path), &size])?;
    mount::AttachedFile::new(&path)
}

fn journal_name(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(".journal");
    name.into()
}

/// The file of an image's journal, if [`make_image`] has made one.
pub fn journal_of(image: &Path) -> Option<PathBuf> {
    Some(journal_name(image)).filter(|path| path.exists())
}

/// UUID and hash seed of the images of [`mke2fs`]. The places of directories and their splits depend on them.
pub const SEED: &str = "5eed5eed-5eed-45ee-8eed-5eed5eed5eed";

/// Makes an image at `path`; `args` override the seed. A failure ends the test.
#[track_caller]
pub fn mke2fs(path: impl AsRef<Path>, args: &[&str], size: &str) {
    let seed = format!("hash_seed={SEED}");
    tool("mke2fs", &[&["-q", "-F", "-U", SEED, "-E", &seed], args, &[arg(path.as_ref()), size]].concat());
}

/// e2fsck's answer.
#[derive(Clone, Debug)]
pub struct Fsck {
    /// 0: clean; 1, 2: errors corrected; 4: errors left; 8 and more: not checked.
    pub code: i32,
    pub output: String,
}

/// Runs e2fsck with `args` (`-fn`, `-fy`). A journal that needs replay is not replayed by `-n`.
pub fn e2fsck(image: impl AsRef<Path>, args: &[&str]) -> Result<Fsck> {
    let journal = journal_of(image.as_ref());
    let elsewhere = journal.as_ref().map_or_else(Vec::new, |journal| vec!["-j", arg(journal)]);
    let (code, output) = run_command("e2fsck", &[args, &elsewhere, &[arg(image.as_ref())]].concat())?;
    let code = code.ok_or_else(|| Error::Command { command: "e2fsck".into(), code: None, output: output.clone() })?;
    Ok(Fsck { code, output })
}

/// `e2fsck -fn` must find nothing.
pub fn expect_clean(image: impl AsRef<Path>) -> Result<()> {
    let fsck = e2fsck(&image, &["-fn"])?;
    if fsck.code == 0 {
        return Ok(());
    }
    let command = format!("e2fsck -fn {}", image.as_ref().display());
    Err(Error::Command { command, code: Some(fsck.code), output: fsck.output })
}

/// Runs requests of debugfs, one a line, without write access; its output.
pub fn debugfs(image: impl AsRef<Path>, requests: impl AsRef<[u8]>) -> Result<String> {
    requested(&[arg(image.as_ref())], requests.as_ref())
}

/// As [`debugfs`], for a damaged image: bitmaps are not read (`-c`), and a request may fail. `None`: it did not end in
/// half a minute of a processor, or was killed.
pub fn debugfs_damaged(image: impl AsRef<Path>, requests: &str) -> Result<Option<String>> {
    let script = tempfile::NamedTempFile::new().map_err(Error::io("create a script"))?;
    std::fs::write(&script, requests).map_err(Error::io("write a script"))?;
    let (code, said) = bounded(30, "debugfs", &["-c", "-f", arg(script.path()), arg(image.as_ref())])?;
    Ok(code.map(|_| String::from_utf8_lossy(&said.stdout).into_owned()))
}

/// Runs requests of debugfs, one a line, that may write.
pub fn debugfs_write(image: impl AsRef<Path>, requests: &str) -> Result<()> {
    let output = requested(&["-w", arg(image.as_ref())], requests.as_bytes())?;
    // debugfs reports a failed request only as additional output.
    const KNOWN: [&str; 4] =
        ["Allocated inode: ", "Setting csum v", "Journal needs recovery, will not add csums", "Filesystem features:"];
    let known = |line: &str| KNOWN.iter().any(|text| line.starts_with(text));
    if output.lines().all(|line| line.trim().is_empty() || known(line)) {
        return Ok(());
    }
    Err(Error::Command { command: format!("debugfs -w: {requests}"), code: Some(0), output })
}

/// The output of debugfs, without its name and its echo of the requests.
fn requested(args: &[&str], requests: &[u8]) -> Result<String> {
    let script = tempfile::NamedTempFile::new().map_err(Error::io("create a script"))?;
    std::fs::write(&script, requests).map_err(Error::io("write a script"))?;
    let said = output("debugfs", &[&["-f", arg(script.path())], args].concat())?;
    let lines = |bytes: &[u8], own: &str| {
        let text = String::from_utf8_lossy(bytes);
        text.split_inclusive('\n').filter(|line| !line.starts_with(own)).collect::<String>()
    };
    let output = lines(&said.stdout, "debugfs: ") + &lines(&said.stderr, "debugfs 1.");
    if said.status.success() {
        return Ok(output);
    }
    let command = format!("debugfs {}: {}", args.join(" "), String::from_utf8_lossy(requests));
    Err(Error::Command { command, code: said.status.code(), output })
}
