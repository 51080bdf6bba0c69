//! Tests every cell of the state table at the head of the module, and its guarantees from the view of parties.

use super::*;

const INODE: InodeNr = InodeNr(12);

type Ledger = LossLedger<&'static str>;
type MakeCursor = fn(&Ledger) -> LossCursor;

fn record(s: &Ledger, cause: &'static str) {
    s.record(INODE, Some(0..1), cause);
}

/// The cause that a check or a hint reports.
fn cause(reported: Result<(), Loss<&'static str>>) -> Option<&'static str> {
    reported.err().map(|loss| loss.cause)
}

fn check(s: &Ledger, cursor: &LossCursor) -> Option<&'static str> {
    cause(s.check(cursor))
}

fn hint(s: &Ledger, cursor: &LossCursor) -> Option<&'static str> {
    cause(s.hint(cursor))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Clean,
    Unseen,
    UnseenReported,
    Hinted,
    Others,
    OthersReported,
    Seen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Record,
    Open,
    Check,
    CheckByAnother,
    Hint,
    Write,
}

use Event::*;
use State::*;

/// A next state, and whether the cell reports.
type Cell = (bool, State);

const fn to(state: State) -> Cell {
    (false, state)
}

const fn report(state: State) -> Cell {
    (true, state)
}

const STATES: [State; 5] = [Clean, Unseen, Hinted, Others, Seen];
const TABLE: [(Event, [Cell; 5]); 6] = [
    (Record, [to(Unseen), to(Unseen), to(Unseen), to(Unseen), to(Unseen)]),
    (Open, [to(Clean), to(Unseen), to(Unseen), to(Seen), to(Seen)]),
    (Check, [to(Clean), report(Seen), to(Seen), report(Seen), to(Seen)]),
    (CheckByAnother, [to(Clean), to(Others), to(Seen), to(Others), to(Seen)]),
    (Hint, [to(Clean), report(Hinted), to(Hinted), report(Seen), to(Seen)]),
    (Write, [to(Clean), to(Unseen), to(Hinted), to(Others), to(Seen)]),
];

const SHARED_STATES: [State; 7] = [Clean, Unseen, UnseenReported, Hinted, Others, OthersReported, Seen];
const SHARED_TABLE: [(Event, [Cell; 7]); 5] = [
    (Record, [to(Unseen), to(Unseen), to(Unseen), to(Unseen), to(Unseen), to(Unseen), to(Unseen)]),
    (
        Check,
        [
            to(Clean),
            report(OthersReported),
            report(OthersReported),
            to(Seen),
            report(OthersReported),
            report(OthersReported),
            to(Seen),
        ],
    ),
    (CheckByAnother, [to(Clean), to(Others), to(OthersReported), to(Seen), to(Others), to(OthersReported), to(Seen)]),
    (
        Hint,
        [
            to(Clean),
            report(UnseenReported),
            report(UnseenReported),
            to(Hinted),
            report(OthersReported),
            report(OthersReported),
            to(Seen),
        ],
    ),
    (Write, [to(Clean), to(Unseen), to(Hinted), to(Hinted), to(Others), to(Seen), to(Seen)]),
];

/// A ledger, one cursor, and the number of recorded losses.
struct Scene {
    ledger: Ledger,
    cursor: LossCursor,
    recorded: u64,
}

impl Scene {
    /// Brings an empty ledger to `state` in the shortest way.
    fn in_state(state: State, cursor: &impl Fn(&Ledger) -> LossCursor) -> Scene {
        let ledger = Ledger::default();
        let mut scene = Scene { cursor: cursor(&ledger), ledger, recorded: 0 };
        let shared = matches!(scene.cursor, LossCursor::Shared);
        let way: &[Event] = match state {
            Clean => &[],
            Unseen => &[Record],
            Others => &[Record, CheckByAnother],
            Hinted if shared => &[Record, Hint, Write],
            Seen if shared => &[Record, Check, Write],
            Hinted | UnseenReported => &[Record, Hint],
            Seen | OthersReported => &[Record, Check],
        };
        way.iter().for_each(|event| drop(scene.apply(*event)));
        assert_eq!(scene.state(), state, "the way to it");
        scene
    }

    fn apply(&mut self, event: Event) -> Result<(), Loss<&'static str>> {
        match event {
            Record => {
                record(&self.ledger, "lost");
                self.recorded += 1;
            }
            Open => self.cursor = self.ledger.open(),
            Check => return self.ledger.check(&self.cursor),
            CheckByAnother => drop(self.ledger.check(&LossCursor::Of(Party::Thread(99)))),
            Hint => return self.ledger.hint(&self.cursor),
            Write => self.ledger.written(),
        }
        Ok(())
    }

    fn state(&self) -> State {
        if !self.ledger.has_losses() {
            return Clean;
        }
        let newest = self.ledger.newest.lock();
        let newest = newest.as_ref().expect("recorded");
        let is_behind = match &self.cursor {
            LossCursor::Open(open) => open.0.load(Ordering::Relaxed) < newest.loss.number,
            LossCursor::Of(party) => !newest.at_end.contains(party),
            LossCursor::Shared => newest.shared != Shared::AtEnd,
        };
        let reported = matches!(self.cursor, LossCursor::Shared) && newest.shared == Shared::Reported;
        match (self.ledger.is_unseen(), is_behind, reported) {
            (true, true, false) => Unseen,
            (true, true, true) => UnseenReported,
            (true, false, _) => Hinted,
            (false, true, false) => Others,
            (false, true, true) => OthersReported,
            (false, false, _) => Seen,
        }
    }
}

fn assert_cell(kind: &str, cursor: &impl Fn(&Ledger) -> LossCursor, from: State, event: Event, cell: Cell) {
    let mut scene = Scene::in_state(from, cursor);
    let reported = scene.apply(event).err();
    let number = reported.as_ref().map(|loss| loss.number);
    assert_eq!((reported.is_some(), scene.state()), cell, "{kind}: {event:?} in the state {from:?}");
    assert!(number.is_none_or(|number| number == scene.recorded), "{kind}: loss {number:?} is not the newest");
}

#[test]
fn every_cursor_follows_the_state_table() {
    let cursors: [(&str, MakeCursor); 3] = [
        ("an open file", |s| s.open()),
        ("a process", |_| LossCursor::process(7)),
        ("a thread", |_| LossCursor::thread()),
    ];
    for (kind, cursor) in cursors {
        for (event, cells) in TABLE {
            for (from, cell) in STATES.into_iter().zip(cells) {
                assert_cell(kind, &cursor, from, event, cell);
            }
        }
    }
    for (event, cells) in SHARED_TABLE {
        for (from, cell) in SHARED_STATES.into_iter().zip(cells) {
            assert_cell("processes that cannot be told apart", &|_| LossCursor::Shared, from, event, cell);
        }
    }
}

#[test]
fn every_open_file_reports_a_loss_once() {
    let s = Ledger::default();
    let (a, b) = (s.open(), s.open());
    let before = s.position();
    assert_eq!((check(&s, &a), cause(s.lost_since(before)), s.has_losses()), (None, None, false));
    record(&s, "first");
    assert_eq!(cause(s.lost_since(before)), Some("first"), "the caller of lost_since is no party");
    assert!(s.is_unseen());
    assert_eq!((check(&s, &a), check(&s, &a)), (Some("first"), None));
    assert!(!s.is_unseen() && s.has_losses());
    assert_eq!((check(&s, &b), check(&s, &b)), (Some("first"), None));
    assert_eq!(check(&s, &s.open()), None, "opened after a party saw it");
    record(&s, "second");
    let late = s.open();
    assert_eq!((check(&s, &late), check(&s, &late)), (Some("second"), None), "opened before any party saw it");
    assert_eq!(check(&s, &s.open()), None);
    record(&s, "third");
    assert_eq!((check(&s, &a), check(&s, &b), check(&s, &late)), (Some("third"), Some("third"), Some("third")));
}

#[test]
fn every_process_reports_a_loss_once() {
    let s = Ledger::default();
    let (one, two) = (LossCursor::process(1), LossCursor::process(2));
    assert_eq!(check(&s, &one), None);
    record(&s, "first");
    assert_eq!((check(&s, &one), check(&s, &one), check(&s, &two)), (Some("first"), None, Some("first")));
    record(&s, "second");
    assert_eq!((check(&s, &one), check(&s, &one)), (Some("second"), None));
}

#[test]
fn a_thread_and_a_process_of_one_number_are_two_parties() {
    let s = Ledger::default();
    record(&s, "first");
    let (thread, process) = (LossCursor::Of(Party::Thread(1)), LossCursor::process(1));
    assert_eq!((check(&s, &thread), check(&s, &process)), (Some("first"), Some("first")));
}

#[test]
fn a_hint_takes_a_loss_from_no_other_party() {
    let s = Ledger::default();
    let one = LossCursor::process(1);
    assert_eq!((hint(&s, &one), hint(&s, &LossCursor::Shared)), (None, None));
    record(&s, "first");
    assert_eq!((hint(&s, &one), hint(&s, &one), hint(&s, &LossCursor::Shared)), (Some("first"), None, Some("first")));
    assert!(s.is_unseen());
    assert_eq!((check(&s, &s.open()), s.is_unseen()), (Some("first"), false));
}

#[test]
fn the_shared_cursor_reports_until_a_write_reaches_the_device() {
    let s = Ledger::default();
    s.written();
    assert_eq!(check(&s, &LossCursor::Shared), None);
    record(&s, "first");
    // No process has reported it yet.
    s.written();
    assert_eq!(
        (check(&s, &LossCursor::Shared), check(&s, &LossCursor::Shared), check(&s, &LossCursor::process(1))),
        (Some("first"), Some("first"), Some("first"))
    );
    s.written();
    assert_eq!((check(&s, &LossCursor::Shared), check(&s, &LossCursor::process(2))), (None, Some("first")));
    record(&s, "second");
    assert_eq!(
        (check(&s, &LossCursor::Shared), check(&s, &LossCursor::Shared), check(&s, &s.open())),
        (Some("second"), Some("second"), None)
    );
}

#[test]
fn a_ledger_keeps_a_bounded_number_of_cursors() {
    let s = Ledger::default();
    record(&s, "first");
    for process in 0..3 * NAMED_MAX as u32 {
        assert_eq!(check(&s, &LossCursor::process(process)), Some("first"), "process {process}");
        let cursors = s.newest.lock().as_ref().map_or(0, |newest| newest.at_end.len());
        assert!(cursors <= NAMED_MAX, "{cursors} cursors after process {process}");
    }
    assert_eq!(check(&s, &LossCursor::process(0)), Some("first"), "a cursor that the ledger forgot is at the start");
}

#[test]
fn lost_since_reports_lost_data_and_no_lost_times() {
    let s = Ledger::default();
    record(&s, "before");
    let before = s.position();
    assert_eq!((before.is_end(), cause(s.lost_since(before))), (true, None));
    s.record(INODE, None, "times");
    assert_eq!((before.is_end(), cause(s.lost_since(before))), (false, None));
    assert_eq!(check(&s, &LossCursor::thread()), Some("times"), "a check reports them");
    s.record(INODE, Some(3..5), "data");
    let lost = s.lost_since(before).expect_err("data was lost");
    assert_eq!(lost, Loss { number: 3, inode: INODE, blocks: Some(3..5), cause: "data" });
    s.record(INODE, None, "times");
    assert_eq!(cause(s.lost_since(before)), Some("times"), "the newest loss stands for the lost data before it");
    assert_eq!(cause(s.lost_since(s.position())), None);
}
