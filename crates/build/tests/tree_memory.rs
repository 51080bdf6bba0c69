//! The memory that a tree takes while it is made. One test per process, so that nothing else allocates.

use extant_build::tree::{Attributes, Builder, Options, Xattr};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

#[test]
fn an_entry_takes_at_most_260_bytes_and_its_name_while_the_tree_is_made() {
    // The worst case: just above a power of two, where vectors have twice the room that they need.
    const ENTRIES: u64 = (1 << 18) + 1000;
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let mut builder = Builder::new(Options::default());
    let mut names = 0;
    let label = |n: u64| -> Vec<Xattr> { vec![(b"user.label"[..].into(), (n % 10).to_string().into_bytes().into())] };
    for n in 0..ENTRIES {
        let path = format!("directory {}/file {}", n % 500, n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40);
        names += path.len() as u64 - path.find('/').map_or(0, |at| at as u64 + 1);
        let attributes = Attributes { mode: 0o644, xattrs: label(n), ..Attributes::default() };
        builder.file(path.as_bytes(), attributes, n, None, n).expect("a file");
    }
    let building = ALLOCATOR.peak_usage() - before;
    let tree = builder.finish().expect("a tree");
    let peak = (ALLOCATOR.peak_usage() - before) as u64;
    let rest = (ALLOCATOR.current_usage() - before) as u64;
    // Vectors of names grow, and are written anew in order: three times.
    let per_entry = (peak - names * 3) / ENTRIES;
    println!(
        "{} inodes, {names} bytes of names: {building} bytes at most before the end, {peak} at most, {rest} left; \
         {per_entry} an entry beside names",
        tree.len()
    );
    assert!(per_entry <= 260, "{per_entry} bytes an entry");
    assert!((rest - names * 2) / ENTRIES <= 110, "{rest} bytes are left");
}
