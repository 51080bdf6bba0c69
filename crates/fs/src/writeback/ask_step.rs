//! Continuing the writes of callers that do not wait.
//!
//! Main types: none; [`defer`] defers a write, and [`step`] is a round of the thread that continues them.
//!
//! # Locking
//! `asks` (207) is a leaf. The plug takes `inode writeback` (25).

use std::sync::Arc;
use std::time::Duration;

use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::writeback::asks::{Ask, Countdown};
use crate::writeback::batch::WritebackReason;
use crate::writeback::patience::{Obstacle, Patience};
use crate::writeback::plug::WritebackPlug;
use crate::writeback::work::EndOnPanic;

/// Starts writing all dirty data of the inode once the obstacle is gone. When the data can be read from the device,
/// `closed` is decremented.
pub(crate) fn defer(
    fs: &Filesystem,
    inode: &Arc<Inode>,
    why: WritebackReason,
    obstacle: Obstacle,
    closed: &Arc<Countdown>,
) {
    if !fs.writeback.asks.announce() {
        return;
    }
    closed.one_more();
    put_aside(fs, Ask { inode: inode.clone(), why, again: false, closed: closed.clone() }, obstacle);
}

/// Defers the ask until the obstacle is gone.
fn put_aside(fs: &Filesystem, mut ask: Ask, obstacle: Obstacle) {
    let inode = ask.inode.clone();
    match obstacle {
        Obstacle::Locked => inode.wb.ask(ask),
        Obstacle::InFlight(epoch) => {
            let fs = fs.arc();
            inode.writes.when_closed(epoch, move || drop(fs.writeback.asks.push(vec![ask])));
        }
        Obstacle::NoSpace => {
            ask.again = true;
            drop(fs.writeback.asks.push(vec![ask]));
        }
    }
}

/// One round of the thread that continues asks. Returns false if the thread must end.
pub(crate) fn step(fs: &Filesystem, wait: Duration) -> bool {
    let Some(mut asks) = fs.writeback.asks.take(usize::MAX, wait) else { return false };
    let _end = EndOnPanic(&fs.writeback.asks);
    asks.sort_by_key(|ask| ask.inode.ino);
    let (patient, quick): (Vec<_>, Vec<_>) = asks.into_iter().partition(|ask| ask.again);
    let (mut begun, mut left) = (Vec::new(), Vec::new());
    {
        let mut plug = WritebackPlug::new(fs, WritebackReason::Fsync, Patience::Leaves);
        for ask in quick {
            plug.because(ask.why);
            match plug.try_write_pages(&ask.inode) {
                Ok(()) => begun.push(ask),
                Err(obstacle) => left.push((ask, obstacle)),
            }
        }
    }
    for (mut ask, obstacle) in left {
        ask.again = true;
        put_aside(fs, ask, obstacle);
    }
    for ask in &patient {
        WritebackPlug::new(fs, ask.why, Patience::Sends).write_pages(&ask.inode);
    }
    begun.extend(patient);
    fs.writeback.asks.finish(begun.len());
    begun.iter().for_each(|ask| ask.closed.add_inode(&ask.inode));
    true
}
