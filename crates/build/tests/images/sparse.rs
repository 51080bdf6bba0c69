//! The Android sparse format: read back by a reader of its own, and by simg2img where that is installed.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::process::Command;

use extant_build::sparse;

const BLOCK: u32 = 4096;

/// The kinds and lengths of chunks, and the bytes that they stand for.
fn unpack(bytes: &[u8]) -> (Vec<(u16, u32)>, Vec<u8>) {
    let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"));
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((word(0), half(4), half(6), half(8), half(10)), (0xed26ff3a, 1, 0, 28, 12));
    let (block, blocks, chunks) = (word(12) as usize, word(16) as usize, word(20));
    let (mut at, mut image, mut seen) = (28, Vec::new(), Vec::new());
    for _ in 0..chunks {
        let (kind, count, total) = (half(at), word(at + 4) as usize * block, word(at + 8) as usize);
        let content = &bytes[at + 12..at + total];
        match kind {
            0xcac1 => {
                assert_eq!(content.len(), count);
                image.extend_from_slice(content);
            }
            0xcac2 => image.extend(content.iter().cycle().take(count)),
            kind => panic!("chunk {kind:#x}"),
        }
        seen.push((kind, word(at + 4)));
        at += total;
    }
    assert_eq!((at, image.len()), (bytes.len(), blocks * block));
    (seen, image)
}

/// Data, holes, zeros that are written, and a word that is repeated.
fn image() -> File {
    let file = tempfile::tempfile().expect("file");
    file.set_len(1000 * u64::from(BLOCK)).expect("size");
    let put = |block: u64, data: &[u8]| file.write_all_at(data, block * u64::from(BLOCK)).expect("written");
    let some: Vec<u8> = (0..3 * BLOCK).map(|i| (i % 251) as u8).collect();
    put(0, &some);
    put(3, &[0; 2 * BLOCK as usize]);
    put(5, &b"word".repeat(BLOCK as usize / 4 * 2));
    put(700, &some[..100]);
    put(999, &some[..BLOCK as usize]);
    file
}

fn packed(mut image: File) -> (Vec<u8>, Vec<u8>) {
    let mut raw = vec![0; image.metadata().expect("metadata").len() as usize];
    image.read_exact_at(&mut raw, 0).expect("read");
    let mut to = std::io::Cursor::new(Vec::new());
    sparse::write(&mut image, BLOCK, &mut to, &mut |_| Ok(())).expect("written");
    (raw, to.into_inner())
}

#[test]
fn a_sparse_image_unpacks_to_the_image() {
    let (raw, bytes) = packed(image());
    let (chunks, unpacked) = unpack(&bytes);
    assert!(unpacked == raw);
    assert_eq!(chunks, [(0xcac1, 3), (0xcac2, 2), (0xcac2, 2), (0xcac2, 693), (0xcac1, 1), (0xcac2, 298), (0xcac1, 1)]);
}

#[test]
fn long_data_is_cut_into_chunks_and_odd_sizes_are_refused() {
    let file = tempfile::tempfile().expect("file");
    let mut line = vec![0; 1 << 20];
    for mib in 0..130u8 {
        line.fill_with(|| mib);
        line[0] = !mib;
        // No block has only one value.
        line.chunks_mut(BLOCK as usize).for_each(|block| block[0] = !mib);
        (&file).write_all(&line).expect("written");
    }
    let (raw, bytes) = packed(file);
    let (chunks, unpacked) = unpack(&bytes);
    assert!(unpacked == raw);
    assert_eq!(chunks, [(0xcac1, 16384), (0xcac1, 16384), (0xcac1, 512)]);
    let mut odd = tempfile::tempfile().expect("file");
    odd.set_len(5000).expect("size");
    odd.seek(SeekFrom::Start(0)).expect("seek");
    let mut to = std::io::Cursor::new(Vec::new());
    assert!(sparse::write(&mut odd, BLOCK, &mut to, &mut |_| Ok(())).is_err());
    let stopped = || Err(std::io::ErrorKind::StorageFull.into());
    sparse::write(&mut image(), BLOCK, &mut to, &mut |_| stopped()).expect_err("stopped");
    assert!(to.get_ref().len() > 28 && to.get_ref()[..28] == [0; 28], "no header before the rest is durable");
}

#[test]
fn simg2img_reads_a_sparse_image() {
    let dir = tempfile::tempdir().expect("directory");
    let [from, to] = ["sparse.img", "raw.img"].map(|name| dir.path().join(name));
    let (raw, bytes) = packed(image());
    std::fs::write(&from, bytes).expect("written");
    let ran = match Command::new("simg2img").args([&from, &to]).output() {
        Ok(ran) => ran,
        Err(e) => return eprintln!("skipped: needs simg2img ({e})"),
    };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(std::fs::read(&to).expect("unpacked") == raw);
}
