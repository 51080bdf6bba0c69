//! Real tools as oracles of tests: the e2fsprogs make an image, check it and look into it; the kernel mounts it.
//!
//! Main types: [`MkfsOptions`], [`Fsck`], [`mount::Mounted`]. [`memory`] is the same for images in memory.
//!
//! What it does not do: know `fs`, so that every crate below it can use this one in its tests. Unit tests of `block`
//! itself use only what takes a path: their `MemDevice` is another type than the one here.
//!
//! # Locking
//! None.
#![forbid(unsafe_code)]

pub mod error;
pub mod memory;
pub mod mount;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
        }
    }
}

/// Runs a program to its end. Returns standard output and error as one text.
pub fn run_command(program: &Path, args: &[&str]) -> Result<(Option<i32>, String)> {
    let o = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        .output()
        .map_err(|source| Error::Spawn { program: program.display().to_string(), source })?;
    let output = [o.stdout, o.stderr].concat();
    Ok((o.status.code(), String::from_utf8_lossy(&output).into_owned()))
}

/// Runs a program that must succeed; its output.
pub fn run_ok(program: &str, args: &[&str]) -> Result<String> {
    let (code, output) = run_command(Path::new(program), args)?;
    if code == Some(0) {
        return Ok(output);
    }
    Err(Error::Command { command: format!("{program} {}", args.join(" ")), code, output })
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
    args.push(arg(&image));
    run_ok("mke2fs", &args)?;
    Ok(image)
}

/// e2fsck's answer.
#[derive(Clone, Debug)]
pub struct Fsck {
    /// 0: clean; 1, 2: errors corrected; 4: errors left; 8 and more: not checked.
    pub code: i32,
    pub output: String,
}

/// Runs e2fsck with `args` (`-fn`, `-fy`). A journal that needs replay is not replayed by `-n`.
pub fn e2fsck(image: &Path, args: &[&str]) -> Result<Fsck> {
    let (code, output) = run_command(Path::new("e2fsck"), &[args, &[arg(image)]].concat())?;
    let code = code.ok_or_else(|| Error::Command { command: "e2fsck".into(), code: None, output: output.clone() })?;
    Ok(Fsck { code, output })
}

/// `e2fsck -fn` must find nothing.
pub fn expect_clean(image: &Path) -> Result<()> {
    let fsck = e2fsck(image, &["-fn"])?;
    if fsck.code == 0 {
        return Ok(());
    }
    let command = format!("e2fsck -fn {}", image.display());
    Err(Error::Command { command, code: Some(fsck.code), output: fsck.output })
}

/// Runs one debugfs request without write access; its output.
pub fn debugfs(image: &Path, request: &str) -> Result<String> {
    run_ok("debugfs", &["-R", request, arg(image)])
}

/// Runs one debugfs request that may write.
pub fn debugfs_write(image: &Path, request: &str) -> Result<String> {
    run_ok("debugfs", &["-w", "-R", request, arg(image)])
}
