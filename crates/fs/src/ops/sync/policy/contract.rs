//! The contract that every policy must satisfy.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::task;

use super::*;

#[test]
fn nothing_for_a_lone_file_and_never_too_much() {
    for kind in SyncPolicyKind::ALL {
        for inodes_per_group in [0, 1, 16, 8192, u32::MAX] {
            let policy: Arc<dyn SyncPolicy> = Arc::from(kind.state(inodes_per_group));
            assert_eq!(policy.carry(InodeNr(12)), 0, "{kind:?}: nobody knows yet that there are more");
            assert_eq!(policy.carry(InodeNr(12)), 0, "{kind:?}: it is the same file");
            let threads = [1, 2, 3].map(|t| {
                let policy = policy.clone();
                task::spawn("sync policy", move || {
                    let mut rng = Rng::new(t);
                    // Any inode numbers, as a hostile caller may choose them.
                    (0..1000).map(|_| policy.carry(InodeNr(rng.next_u64() as u32))).max()
                })
                .expect("thread")
            });
            for most in threads.map(|t| t.join().expect("joined")) {
                assert!(most.is_some_and(|m| m <= BYTES_MAX), "{kind:?}");
            }
        }
    }
}
