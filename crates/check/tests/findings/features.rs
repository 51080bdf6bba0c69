//! Random bytes in images of every kind, checked with one thread and with three.
//!
//! `EXTANT_IMAGES=N` checks N images of each kind instead of a few.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::BlockDevice;
use extant_check::{Finding, Options, Severity, check};
use extant_testkit::damage::{fsck, mixed, random};

#[test]
fn changed_bytes_in_images_of_each_kind_are_found_where_e2fsck_finds_some() {
    let images = std::env::var("EXTANT_IMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let dir = tempfile::tempdir().expect("directory");
    let (mut wrong, mut count) = (Vec::new(), 0);
    for image in mixed::kinds_on_one_disk() {
        let places = random::pieces(image.made());
        for seed in 0..images {
            let device = image.made().snapshot();
            random::strike(&device, &places, &mut Rng::new(seed));
            let theirs = fsck::e2fsck(&device, dir.path(), "-fn", false);
            let device: Arc<dyn BlockDevice> = Arc::new(device);
            let checked = |threads| check(&device, &Options { threads, now: 2_000_000_000, ..Options::default() });
            // Without a superblock there is no report.
            let (Ok(one), Ok(many)) = (checked(1), checked(3)) else { continue };
            assert_eq!(one.findings, many.findings, "{image:?}, seed {seed}");
            // e2fsck crashes and hangs on some images.
            let Some(code @ (0 | 4 | 8 | 12)) = theirs.code else { continue };
            count += 1;
            // e2fsck's exit status leaves out findings in the superblock and the descriptors.
            let behind = |finding: &&Finding| {
                finding.problem.code() >= 0x01_0000 && finding.problem.severity() == Severity::Damage
            };
            let agrees = match code {
                0 => one.complete && one.findings.iter().filter(behind).count() == 0,
                _ => one.is_damaged() || !one.complete,
            };
            if !agrees {
                let found: Vec<_> = one.findings.iter().map(ToString::to_string).collect();
                wrong.push(format!("{image:?}, seed {seed}: e2fsck {code}, ours {found:#?}\n{}", theirs.output));
            }
        }
    }
    assert!(count > images, "e2fsck has looked at {count} images alone");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
