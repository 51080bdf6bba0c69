//! Fast commits with records of any content: read to their end.
#![no_main]

use extant_ondisk::csum::crc32c;
use extant_ondisk::jbd2::{FastCommitScan, Tid};
use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 1024;
const TID: u32 = 7;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let mut scan = FastCommitScan::new(Tid(TID));
    // Head and tail, with its checksum, are given, so that the search gets inside.
    for log_block in 0..8 {
        let mut block = vec![9, 0, 8, 0, 0, 0, 0, 0, TID as u8, 0, 0, 0];
        while !data.is_empty() && block.len() < BLOCK - 512 {
            let tag = extant_fuzz::byte(&mut data);
            let len = usize::from(extant_fuzz::byte(&mut data));
            block.extend([tag % 11, 0, len as u8, 0]);
            block.extend(extant_fuzz::take(&mut data, len));
        }
        let left = (BLOCK - block.len() - 4) as u16;
        block.extend([8, 0]);
        block.extend(left.to_le_bytes());
        block.extend(TID.to_le_bytes());
        let crc = crc32c(0, &block);
        block.extend(crc.to_le_bytes());
        block.resize(BLOCK, extant_fuzz::byte(&mut data));
        if !matches!(scan.block(log_block, &block), Ok(true)) {
            break;
        }
    }
    let _ = scan.finish();
});
