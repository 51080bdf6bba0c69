//! Compares every state of a mount with the tables in the head of `lifecycle.rs`, and tests the gate.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::Waiter;
use extant_base::task;

use super::*;

const RIGHTS: [Right; 7] = {
    use Right::*;
    [Enter, Evict, Report, Work, Change, Superblock, Acknowledge]
};
const TRANSITIONS: [Transition; 14] = {
    use Transition::*;
    [
        BeginCleanUp,
        GiveUp,
        Fail,
        Shut,
        Freeze,
        Resume,
        Reopen,
        RemountReadOnly,
        RemountWritable,
        StayReadOnly,
        BeginEnd,
        Close,
        End,
        CutOff,
    ]
};

/// A row of a table: each cell with the name of its column.
type Row = Vec<(&'static str, &'static str)>;

/// All rows of the tables in the module's head.
fn head() -> Vec<Row> {
    let mut columns = Vec::new();
    let mut rows = Vec::new();
    for line in include_str!("lifecycle.rs").lines() {
        let Some(row) = line.strip_prefix("//! |") else {
            columns.clear();
            continue;
        };
        let cells: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
        if columns.is_empty() {
            columns = cells;
        } else if !row.starts_with("---") {
            rows.push(columns.iter().copied().zip(cells).collect());
        }
    }
    rows
}

/// The cell of `table` in the row of `name` and the column `of`, if there is one.
fn cell(table: &str, name: &str, of: &str) -> Option<&'static str> {
    let of_row = |row: Row| row.iter().find(|(column, _)| *column == of).map(|(_, cell)| *cell);
    head().into_iter().find(|row| row[0] == (table, name)).and_then(of_row)
}

/// The part of a state (phase or access) after a transition, according to the cell.
fn moved(cell: &str, from: &str) -> Option<String> {
    let mut moves = cell.split(", ").filter_map(|one| one.split_once(" → "));
    let listed = moves.find(|(before, _)| *before == from).map(|(_, after)| after);
    let stays = cell.ends_with("same") || cell.ends_with("not CutOff") && from != "CutOff";
    listed.or(stays.then_some(from)).map(str::to_owned)
}

#[test]
fn each_state_has_the_rights_and_transitions_of_the_tables() {
    let mut seen = 0;
    for (phase, access) in State::PHASES.into_iter().flat_map(|p| State::ACCESSES.into_iter().map(move |a| (p, a))) {
        let state = State { phase, access };
        assert_eq!(State::of(state.code()), state);
        let (phase, access) = (format!("{phase:?}"), format!("{access:?}"));
        for right in RIGHTS {
            let of = format!("{right:?}");
            let sides = [cell("phase", &phase, &of), cell("access", &access, &of)];
            assert!(sides != [None, None], "{right:?} is in no table");
            let expected = sides.into_iter().flatten().all(|side| side == "yes");
            assert_eq!(state.allows(right), expected, "{state:?}, {right:?}");
            seen += 1;
        }
        for transition in TRANSITIONS {
            let name = format!("{transition:?}");
            let to = |of: &str, from: &str| moved(cell("transition", &name, of).expect("a row"), from);
            let expected = to("phase", &phase).zip(to("access", &access));
            let found = state.after(transition).map(|to| (format!("{:?}", to.phase), format!("{:?}", to.access)));
            assert_eq!(found, expected, "{state:?}, {transition:?}");
            let lifecycle = Lifecycle::new(false);
            lifecycle.code.store(state.code(), Ordering::SeqCst);
            assert_eq!(lifecycle.go(transition), expected.is_some(), "{state:?}, {transition:?}");
            assert_eq!(lifecycle.now(), state.after(transition).unwrap_or(state));
            seen += 1;
        }
    }
    assert_eq!(seen, 7 * 5 * (RIGHTS.len() + TRANSITIONS.len()));
    assert_eq!(head().len(), 7 + 5 + TRANSITIONS.len());
}

/// A barrier asks only once whether it has to write, and must not mistake a mount that fails for a read-only one.
#[test]
fn a_barrier_of_a_failed_mount_returns_the_first_error() {
    let answers = |mount: &Lifecycle| (mount.writes().ok(), mount.acknowledge().is_ok());
    let [running, failed, cut, closed] = [(); 4].map(|()| Lifecycle::new(false));
    assert!(
        failed.go_because(Transition::Fail, &Error::NoSpace) && !failed.go_because(Transition::Fail, &Error::Exists)
    );
    assert!(cut.cut_off(&Error::NoSpace) && !cut.cut_off(&Error::Exists));
    assert!(closed.go(Transition::BeginEnd) && closed.go(Transition::Close) && closed.go(Transition::End));
    assert_eq!(answers(&running), (Some(true), true));
    for stopped in [failed, cut] {
        assert_eq!(answers(&stopped), (None, false));
        assert!(matches!(stopped.first_error(), Some(Error::NoSpace)));
    }
    assert_eq!((answers(&closed), answers(&Lifecycle::new(true))), ((Some(false), true), (Some(false), true)));
}

/// The gate is shut between the beginning of an operation and that of a nested one. The nested operation enters,
/// because the gate waits for the outer one.
#[test]
fn a_nested_change_passes_a_gate_that_is_shut() {
    let mount = Lifecycle::new(false);
    let outer = mount.enter(false).expect("open");
    let shut = State { phase: Phase::Shut, access: Access::Writable };
    mount.code.store(shut.code(), Ordering::SeqCst); // `go` would wait for `outer`
    drop((mount.enter(true).expect("nested"), mount.try_enter(true).expect("nested").expect("writable")));
    drop(outer);
    assert!(mount.try_enter(false).is_none(), "shut");
    assert!(mount.go(Transition::Reopen));
    assert!(matches!(mount.try_enter(false), Some(Ok(_))));
    assert!(mount.go_because(Transition::Fail, &Error::NoSpace));
    assert!(matches!(mount.try_enter(false), Some(Err(Error::ReadOnly))));
    assert!(matches!(mount.enter(false), Err(Error::ReadOnly)));
    assert_eq!(mount.inside(), 0);
}

impl Lifecycle {
    pub(crate) fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }
}

/// Whether `done` is set within a short time.
fn soon(done: &Waiter<()>) -> bool {
    (0..500).any(|_| {
        Clock::real().sleep(Duration::from_millis(10));
        done.is_set()
    })
}

#[test]
fn a_gate_waits_for_changes_inside_before_it_is_shut_and_wakes_those_outside_when_it_opens() {
    let mount = Arc::new(Lifecycle::new(false));
    let start = |act: fn(&Lifecycle)| {
        let (mount, done) = (mount.clone(), Waiter::new());
        let tell = done.clone();
        let run = move || {
            act(&mount);
            tell.set(());
        };
        drop(task::spawn("other", run).expect("thread"));
        done
    };
    let inside = mount.enter(false).expect("open");
    let shuts = start(|mount| assert!(mount.go(Transition::Shut)));
    while mount.now().phase != Phase::Shut {
        Clock::real().sleep(Duration::from_millis(1));
    }
    let enters = start(|mount| drop(mount.enter(false).expect("open again")));
    Clock::real().sleep(Duration::from_millis(50));
    assert!(!shuts.is_set(), "a change is inside");
    drop(inside);
    assert!(soon(&shuts) && !enters.is_set(), "a change passed a gate that is shut");
    assert!(mount.go(Transition::Reopen));
    assert!(soon(&enters), "a change sleeps at an open gate");
}
