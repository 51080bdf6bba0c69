//! Every state of a claim against the tables in the head of `mod.rs`, with real requests.

use extant_block::device::MemDevice;

use super::gate_tests::{claim_of, none_ended, write};
use super::*;

const STATES: [ClaimState; 5] = {
    use ClaimState::*;
    [Ours, Lent, Kernels, Unknown, Foreign]
};
const TRANSITIONS: [Transition; 5] = {
    use Transition::*;
    [Lend, Mounted, ConnectionEnded, Regain, GiveUp]
};

/// The rows of the tables in the module's head, without the lines that name the columns.
fn rows() -> Vec<Vec<&'static str>> {
    let lines = include_str!("mod.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
    let cells = |line: &'static str| line.trim_end_matches(" |").split(" | ").collect::<Vec<_>>();
    lines.map(cells).filter(|row| !["state", "transition"].contains(&row[0])).collect()
}

/// The rest of the row that begins with `name`.
fn row(name: &str) -> Vec<&'static str> {
    let mut found = rows().into_iter().filter(|row| row[0] == name);
    let row = found.next().unwrap_or_else(|| panic!("no row of {name}"));
    assert_eq!(found.next(), None);
    row[1..].to_vec()
}

/// A new claim in this state, and the device that it has open exclusively or has closed.
fn in_state(state: ClaimState) -> (Arc<DeviceClaim>, Arc<MemDevice>) {
    use Transition::*;
    let exclusive = Arc::new(MemDevice::new(4096));
    let claim = claim_of(exclusive.clone(), Arc::new(MemDevice::new(4096)));
    let way: &[Transition] = match state {
        ClaimState::Ours => &[],
        ClaimState::Lent => &[Lend],
        ClaimState::Kernels => &[Lend, Mounted],
        ClaimState::Unknown => &[Lend, Mounted, ConnectionEnded],
        ClaimState::Foreign => &[Lend, GiveUp],
    };
    for transition in way {
        assert!(claim.go(*transition), "{transition:?}");
        claim.gate.close(None);
    }
    (claim, exclusive)
}

#[test]
fn each_state_passes_requests_and_makes_transitions_as_the_tables_say() {
    for state in STATES {
        let name = format!("{state:?}");
        let [opened, read, change] = row(&name)[..] else { panic!("three columns") };
        let ((claim, exclusive), ended) = (in_state(state), none_ended());
        assert_eq!((claim.state(), Arc::strong_count(&exclusive) > 1), (state, opened == "by the claim"));
        write(&*claim, 1, &ended);
        let done = match ended.lock().first() {
            None => "waits",
            Some((_, true, _)) => "passes",
            Some((_, false, _)) => "fails",
        };
        assert_eq!(done, change, "{name}");
        let is_read = claim.read_at(0, &mut [0; 512], BioFlags::empty()).is_ok();
        assert_eq!(is_read, read == "passes", "{name}");
        for transition in TRANSITIONS {
            let moves = row(&format!("{transition:?}"))[0].split(", ");
            let mut moves = moves.map(|one| one.split_once(" → ").expect("from and to"));
            let to = moves.find(|(from, _)| *from == name).map(|(_, to)| to);
            let (claim, _) = in_state(state);
            assert_eq!(claim.go(transition), to.is_some(), "{name}, {transition:?}");
            assert_eq!(format!("{:?}", claim.state()), to.unwrap_or(&name), "{name}, {transition:?}");
        }
    }
    assert_eq!(rows().len(), STATES.len() + TRANSITIONS.len());
}

/// A claim hides none of the device's properties.
#[test]
fn a_claim_looks_like_its_device() {
    let inner = Arc::new(MemDevice::new(1 << 20));
    let claim = claim_of(inner.clone(), inner.clone());
    claim.write_at(512 << 10, &[&[1; 512]], BioFlags::empty()).expect("written");
    let facts = |dev: &dyn BlockDevice| {
        let found = dev.next_data(0).expect("found");
        (dev.size_bytes(), *dev.limits(), dev.read_only(), dev.completes_later(), dev.is_flushed(), found, dev.stats())
    };
    assert_eq!(facts(&*claim), facts(&*inner));
    assert_eq!((claim.name(), claim.next_data(0).expect("found")), (inner.name(), Some(512 << 10)));
}
