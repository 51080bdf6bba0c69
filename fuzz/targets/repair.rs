//! Whole images with changed bytes: repaired. The repair ends clean, or the image is untouched; what is written is what
//! was proved, and every loss has a text.
#![no_main]

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::{CowDevice, MemDevice};
use extant_check::{Options, Severity, check};
use extant_repair::{Decision, End, Layers, Sharing, Stamp, Undo, commit, prove};
use libfuzzer_sys::fuzz_target;

const NOW: i64 = 2_000_000_000;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let flags = extant_fuzz::byte(&mut data);
    // A sound image, or one that a mutation of the table has damaged.
    let image = if flags & 1 == 0 {
        extant_fuzz::damaged(flags >> 1, &mut data)
    } else {
        let number = extant_fuzz::take(&mut data, 2);
        extant_fuzz::mutated(u16::from_le_bytes([number[0], number[1]]), &mut data)
    };
    let memory = Arc::new(image.snapshot());
    let device: Arc<dyn BlockDevice> = memory.clone();
    let checks = Options { threads: 1, now: NOW, ..Options::default() };
    let sharing = [Sharing::Copy, Sharing::Winner, Sharing::Hole, Sharing::Copy][usize::from(flags >> 6)];
    let options = extant_repair::Options { check: checks.clone(), layers: Layers::in_memory(), sharing, now: NOW };
    let proved = prove(Arc::new(CowDevice::new(device.clone())), &options, &mut |_, _| Decision::Yes);
    assert!(memory.first_difference(&image).expect("compared").is_none(), "a proof has written");
    let Ok(outcome) = proved else { return };
    assert!(outcome.losses.iter().all(|loss| !loss.to_string().is_empty()));
    assert!(outcome.steps.iter().all(|step| !step.to_string().is_empty()));
    if outcome.end != End::Proved {
        return;
    }
    let mut make = |bytes| Ok((Arc::new(MemDevice::new(bytes)) as Arc<dyn BlockDevice>, b"record".to_vec()));
    let stamp = Stamp { sec: NOW as u64, nsec: 0 };
    commit(&device, &outcome, 0, stamp, Undo::IfNeeded(&mut make)).expect("written");
    let report = check(&device, &checks).expect("checked");
    let damage = report.findings.iter().find(|finding| finding.problem.severity() == Severity::Damage);
    assert!(damage.is_none() && report.complete, "after the repair: {}", damage.expect("a finding"));
});
