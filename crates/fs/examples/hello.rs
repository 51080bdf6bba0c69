//! Creates, writes, fsyncs and reads a file in an ext image: `cargo run -p extant-fs --example hello -- disk.img`.
//!
//! An image to try it on: `mke2fs -t ext4 disk.img 64M`.

use std::sync::Arc;

use extant_block::device::{FileDevice, OpenOptions};
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, WriteFlags};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args().nth(1).ok_or("usage: hello IMAGE")?;
    let device = FileDevice::open(image, OpenOptions::default())?;
    let fs = Filesystem::mount(Arc::new(device), MountOptions::default())?;
    let root = fs.root()?;
    let file = match fs.lookup(&root, b"hello.txt") {
        Ok(file) => file,
        Err(_) => fs.create(&root, b"hello.txt", NewNode::file(0o644), Cred::default())?,
    };
    fs.write(&file, 0, b"Hello from user space.\n", WriteFlags::default())?;
    fs.fsync(&file, false)?;
    let mut text = [0; 100];
    let n = fs.read(&file, 0, &mut text)?;
    print!("{}", String::from_utf8_lossy(&text[..n]));
    drop((file, root));
    Ok(fs.unmount()?)
}
