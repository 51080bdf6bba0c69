//! Whole images with changed bytes: checked. Nothing is written, the findings are bounded, and each has a text.
#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_check::{KEPT_MAX, Options, check};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    // A sound image, or one that a mutation of the table has damaged.
    let device = if flags & 1 == 0 {
        extant_fuzz::damaged(flags >> 1, &mut data)
    } else {
        let number = extant_fuzz::take(&mut data, 2);
        extant_fuzz::mutated(u16::from_le_bytes([number[0], number[1]]), &mut data)
    };
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let before = device.stats();
    // Now and then by a backup, which may lie anywhere.
    let superblock = (flags >= 0xe0).then(|| extant_fuzz::byte(&mut data).into());
    let options = Options { superblock, threads: 1, now: 2_000_000_000, ..Options::default() };
    let checked = check(&device, &options);
    assert_eq!(device.stats().writes, before.writes, "a check writes nothing");
    let Ok(report) = checked else { return };
    let mut kept = BTreeMap::new();
    for finding in &report.findings {
        assert!(!finding.to_string().is_empty());
        *kept.entry(finding.problem).or_insert(0u64) += 1;
    }
    for (problem, count) in &report.counts {
        assert_eq!(kept.get(problem).copied().unwrap_or(0), (*count).min(KEPT_MAX as u64), "{problem:?}");
    }
    assert_eq!(kept.len(), report.counts.len());
    let bytes = device.size_bytes();
    assert!(report.counts.values().sum::<u64>() <= bytes, "{:?} in {bytes} bytes", report.counts);
});
