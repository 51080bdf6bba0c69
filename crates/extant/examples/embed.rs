//! Reads, appends, makes directories and walks in partition 2 of a disk image: `cargo run --example embed -- disk.img`.

use std::io::Write;

use extant::{Image, OpenOptions};

fn main() -> std::io::Result<()> {
    let path = std::env::args_os().nth(1).ok_or(std::io::Error::other("usage: embed IMAGE"))?;
    let fs = Image::open(path).partition(2).mount()?;
    for line in fs.read_to_string("/etc/passwd")?.lines() {
        println!("{}", line.split(':').next().unwrap_or_default());
    }
    writeln!(OpenOptions::new().append(true).create(true).open(&fs, "/etc/motd")?, "edited by embed")?;
    fs.create_dir_all("/opt/app/data")?;
    for entry in fs.walk("/etc")? {
        let (path, metadata) = entry?;
        println!("{} {}", metadata.len(), path.display());
    }
    Ok(fs.unmount()?)
}
