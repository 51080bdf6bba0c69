//! Makes an image of the files of a tar archive: `cargo run --example build_from_tar -- rootfs.tar disk.img 256`,
//! with the size in MiB. `SOURCE_DATE_EPOCH=0 extant mkfs -U content --from rootfs.tar disk.img 256M` makes the same
//! bytes.

fn main() -> std::io::Result<()> {
    let words: Vec<_> = std::env::args_os().collect();
    let [_, tar, image, mib] = &words[..] else {
        return Err(std::io::Error::other("usage: build_from_tar ARCHIVE IMAGE MIB"));
    };
    let mib: u64 = mib.to_str().and_then(|text| text.parse().ok()).ok_or(std::io::Error::other("MIB: a number"))?;
    let built = extant::Image::build(tar, image, mib << 20, 0)?;
    println!("{}: {} bytes free", built.name(), built.read_only().mount()?.space()?.free);
    Ok(())
}
