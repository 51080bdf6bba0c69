//! Images with random damage: no panic, the same report for any number of threads, nothing written, and damage wherever
//! e2fsck finds some.
//!
//! `EXTANT_IMAGES=N` checks N images of each kind instead of a few.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Finding, Options, Problem, Report, Result, Severity, check};
use extant_testkit::damage::{fsck, random};

fn kinds() -> impl Iterator<Item = (&'static [&'static str], bool)> {
    random::KINDS.into_iter()
}

fn images() -> u64 {
    std::env::var("EXTANT_IMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

fn checked(device: &MemDevice, threads: usize) -> Result<Report> {
    let device: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
    check(&device, &Options { threads, now: 2_000_000_000, ..Options::default() })
}

fn bytes(device: &MemDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes, BioFlags::empty()).expect("memory");
    bytes
}

fn is_damage(finding: &Finding) -> bool {
    finding.problem.severity() == Severity::Damage
}

#[test]
fn the_report_does_not_depend_on_the_number_of_threads() {
    for (index, (kind, crashed)) in kinds().enumerate() {
        let sound = random::filled(kind, crashed);
        let places = random::pieces(&sound);
        for seed in 0..images() {
            let device = sound.snapshot();
            random::strike(&device, &places, &mut Rng::new(seed * 100 + index as u64));
            let one = checked(&device, 1);
            for threads in [2, 8] {
                let many = checked(&device, threads);
                match (&one, &many) {
                    (Ok(one), Ok(many)) => {
                        assert_eq!(one.findings, many.findings, "{kind:?}, seed {seed}, {threads} threads");
                        assert_eq!(one.counts, many.counts);
                        assert_eq!(one.notes, many.notes);
                    }
                    (Err(one), Err(many)) => assert_eq!(one.to_string(), many.to_string()),
                    _ => panic!("{kind:?}, seed {seed}: {threads} threads come to another end"),
                }
            }
        }
    }
}

#[test]
fn a_check_writes_nothing() {
    let (kind, crashed) = random::KINDS[5];
    let sound = random::filled(kind, crashed);
    let places = random::pieces(&sound);
    for seed in 0..4 {
        let device = sound.snapshot();
        random::strike(&device, &places, &mut Rng::new(seed));
        let before = bytes(&device);
        let device = Arc::new(device);
        let shared: Arc<dyn BlockDevice> = device.clone();
        let _ = check(&shared, &Options { threads: 2, ..Options::default() });
        assert!(before == bytes(&device), "seed {seed}");
    }
}

#[test]
fn filled_images_have_no_damage_also_after_a_crash() {
    for (kind, crashed) in kinds() {
        let report = checked(&random::filled(kind, crashed), 2).expect("checked");
        let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        assert!(!report.is_damaged(), "{kind:?}, crashed: {crashed}: {found:#?}");
    }
}

#[test]
fn damage_is_found_where_e2fsck_finds_some() {
    let dir = tempfile::tempdir().expect("directory");
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (index, (kind, crashed)) in kinds().enumerate() {
        let sound = random::filled(kind, crashed);
        let places = random::pieces(&sound);
        for seed in 0..images() {
            let device = sound.snapshot();
            random::strike(&device, &places, &mut Rng::new(seed * 100 + index as u64));
            let theirs = fsck::judged(&device, dir.path());
            let Some(code @ (0 | 4 | 8 | 12)) = theirs.code else { continue };
            count += 1;
            let ours = match checked(&device, 2) {
                Ok(ours) => ours,
                // e2fsck cannot check this image either.
                Err(_) if code & 8 != 0 => continue,
                Err(e) => {
                    wrong.push(format!("{kind:?}, seed {seed}: e2fsck {code}, ours {e}"));
                    continue;
                }
            };
            // e2fsck's exit status leaves out findings in the superblock and the descriptors.
            let forgotten = |finding: &Finding| finding.problem.code() < 0x01_0000 && is_damage(finding);
            // Deleting orphans after the replay repairs the bitmaps' ends; for e2fsck, remaining orphans are damage.
            let mended = |finding: &Finding| {
                crashed && [Problem::InodeBmapPadding, Problem::BlockBmapPadding].contains(&finding.problem)
            };
            let agrees = match code {
                0 => ours.findings.iter().all(|f| !is_damage(f) || mended(f)) || ours.findings.iter().any(forgotten),
                _ => ours.is_damaged() || !ours.complete || crashed,
            };
            if !agrees {
                let found: Vec<_> = ours.findings.iter().map(ToString::to_string).collect();
                wrong.push(format!("{kind:?}, seed {seed}: e2fsck {code}, ours {found:#?}\n{}", theirs.output));
            }
        }
    }
    assert!(count > images(), "e2fsck has looked at {count} images alone");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
