//! Older versions of blocks in logs made by hand: overwritten places, revokes, missing commits, escapes.

use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::LogCsum;

use super::log_writer::{LogWriter, Work};
use crate::Newest;

const BS: u32 = 1024;
const ALL: [LogCsum; 4] = [LogCsum::None, LogCsum::V1, LogCsum::V2, LogCsum::V3];

fn data(fill: u8) -> Vec<u8> {
    vec![fill; BS as usize]
}

fn copies(list: &[(u64, u8)]) -> Work {
    Work { copies: list.iter().map(|(block, fill)| (*block, data(*fill))).collect(), ..Work::default() }
}

fn history(writer: &LogWriter) -> Newest {
    Newest::load(writer.open(), writer.disk.as_ref()).expect("read")
}

/// The first byte of a block's copy.
fn copy(writer: &LogWriter, block: u64) -> Option<u8> {
    history(writer).read(BlockNr(block)).expect("read").map(|bytes| bytes[9])
}

#[test]
fn an_empty_log_still_has_the_newest_copy_of_each_block() {
    for csum in ALL {
        for wide in [false, true] {
            let mut w = LogWriter::new(BS, 1000, 64, csum, wide);
            w.transaction(&copies(&[(10, 1), (11, 1)]));
            w.transaction(&copies(&[(10, 2)]));
            assert!(!w.open().super_block().is_live());
            assert_eq!((copy(&w, 10), copy(&w, 11), copy(&w, 12)), (Some(2), Some(1), None), "{csum:?}");
            let mut escaped = data(5);
            escaped[..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
            w.transaction(&Work { copies: vec![(12, escaped.clone())], ..Work::default() });
            assert_eq!(history(&w).read(BlockNr(12)).expect("read"), Some(escaped), "{csum:?}");
        }
    }
}

#[test]
fn a_copy_whose_place_a_later_transaction_has_used_does_not_count() {
    for csum in ALL {
        let mut w = LogWriter::new(BS, 1000, 64, csum, true);
        w.transaction(&copies(&[(10, 1), (11, 1), (12, 1), (13, 1)]));
        w.transaction(&copies(&[(20, 1)]));
        // As a kernel does after an unmount, from the start of the log again: over the descriptor and two copies.
        w.at = w.sb.log().first;
        w.transaction(&copies(&[(10, 3)]));
        assert_eq!((copy(&w, 10), copy(&w, 20)), (Some(3), Some(1)), "{csum:?}");
        assert_eq!([11, 12, 13].map(|block| copy(&w, block)), [None; 3], "{csum:?}: their descriptor is gone");
        // A transaction that goes round: its copies at the start of the log are overwritten, the others count.
        let mut w = LogWriter::new(BS, 1000, 64, csum, true);
        w.at = w.sb.log().last - 3;
        w.transaction(&copies(&[(30, 1), (31, 1), (32, 1), (33, 1), (34, 1)]));
        assert_eq!([30, 34].map(|block| copy(&w, block)), [Some(1); 2], "{csum:?}");
        w.at = w.sb.log().first;
        w.transaction(&copies(&[(40, 1)]));
        assert_eq!([30, 31].map(|block| copy(&w, block)), [Some(1); 2], "{csum:?}");
        assert_eq!([32, 33, 34].map(|block| copy(&w, block)), [None; 3], "{csum:?}");
    }
}

#[test]
fn a_revoke_after_a_copy_disqualifies_it() {
    for csum in ALL {
        let mut w = LogWriter::new(BS, 1000, 64, csum, false);
        w.transaction(&copies(&[(10, 1), (11, 1)]));
        w.transaction(&Work { revokes: vec![10], ..copies(&[(12, 1)]) });
        assert_eq!((copy(&w, 10), copy(&w, 11), copy(&w, 12)), (None, Some(1), Some(1)), "{csum:?}");
        w.transaction(&copies(&[(10, 2)]));
        assert_eq!(copy(&w, 10), Some(2), "{csum:?}");
        // Without a commit, neither counts.
        w.body(&Work { revokes: vec![11], ..copies(&[(10, 3)]) });
        assert_eq!((copy(&w, 10), copy(&w, 11)), (Some(2), Some(1)), "{csum:?}");
    }
}

#[test]
fn a_damaged_copy_and_a_copy_of_the_log_itself_do_not_count() {
    for csum in [LogCsum::V2, LogCsum::V3] {
        let mut w = LogWriter::new(BS, 1000, 64, csum, true);
        let inside = w.map.lookup(40).expect("a block").0.0;
        w.transaction(&copies(&[(10, 1), (11, 1), (inside, 1), (5_000, 1)]));
        w.spoil(w.written[1], 77);
        assert_eq!([10, 11].map(|block| copy(&w, block)), [None, Some(1)], "{csum:?}");
        assert_eq!(history(&w).blocks().collect::<Vec<_>>(), [BlockNr(11)], "{csum:?}");
    }
}
