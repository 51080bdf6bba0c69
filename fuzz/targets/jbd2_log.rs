//! A log of any content: read, judged, replayed.
#![no_main]

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{JournalSuperBlock, LogCsum, Tid};
use extant_recovery::{Accept, JournalFile, JournalMap, Replay};
use libfuzzer_sys::fuzz_target;

const BLOCK: u32 = 1024;
const BLOCKS: u32 = 64;
/// The file system around the log.
const HOME: u64 = 512;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    let csum = [LogCsum::None, LogCsum::None, LogCsum::V1, LogCsum::V2, LogCsum::V3][usize::from(flags & 7) % 5];
    let mut superblock = JournalSuperBlock::create(BLOCK, BLOCKS, [7; 16], csum, flags & 8 != 0);
    superblock.start = 1 + u32::from(extant_fuzz::byte(&mut data)) % (BLOCKS - 1);
    superblock.sequence = Tid(u32::from(extant_fuzz::byte(&mut data)));
    let device = Arc::new(MemDevice::new(HOME * u64::from(BLOCK)));
    let put = |block: u32, bytes: &[u8]| {
        device.write_at(u64::from(block) * u64::from(BLOCK), &[bytes], BioFlags::empty()).expect("memory");
    };
    let mut first = vec![0; BLOCK as usize];
    first[..1024].copy_from_slice(&superblock.encode());
    put(0, &first);
    // Each log block: what kind it is, then up to 255 bytes of it. Headers are given, so that the search gets inside.
    let mut at = superblock.start;
    while !data.is_empty() {
        let kind = extant_fuzz::byte(&mut data);
        let len = usize::from(extant_fuzz::byte(&mut data));
        let mut block = extant_fuzz::take(&mut data, len);
        block.resize(BLOCK as usize, 0);
        if kind % 8 != 0 {
            block[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
            block[4..8].copy_from_slice(&u32::from(kind % 8).to_be_bytes());
            let sequence = superblock.sequence.0.wrapping_add(u32::from(kind >> 6));
            block[8..12].copy_from_slice(&sequence.to_be_bytes());
        }
        put(at, &block);
        at = if at + 1 == BLOCKS { 1 } else { at + 1 };
    }
    let home: Arc<dyn BlockDevice> = device;
    let Ok(map) = JournalMap::from_runs([(BlockNr(0), BLOCKS)]) else { return };
    let Ok(mut journal) = JournalFile::open(home.clone(), BLOCK, map) else { return };
    let Ok(replay) = Replay::load(&journal, &*home, &mut |_| {}) else { return };
    let _ = replay.check();
    let _ = replay.apply(&mut journal, &*home, Accept::WholeOnly, &mut |_| {});
});
