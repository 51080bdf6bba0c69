//! One file that all clients write to, each its own stripes of it: writers that meet in one cluster, extent and map.
//!
//! Main types: [`Stripes`] (the changes of a run, and acknowledged fsyncs of the file), [`Stripe`] (a change).
//! A row has a stripe of one block for each client, one behind the other, so with clusters of several blocks clients
//! allocate, punch and write back parts of one cluster at the same time. [`Stripes::check`] compares the file after a
//! power cut: each sector has the last acknowledged content of its stripe, or that of a later change.
//!
//! What it does not do: it changes no size but by writing, and nothing that belongs to two clients.
//!
//! # Locking
//! `schedule stripes` (0): the lists, held for a moment.

use extant_base::sync::{LockClass, Mutex};

use crate::crash::pattern;
use crate::sched::acks::{Ack, Coverage};
use crate::sched::config::{CLIENTS_MAX, NODES};

static CLASS: LockClass = LockClass::new("schedule stripes", 0);

/// The stripes of each client.
pub const ROWS: usize = 6;
/// The bytes that a disk writes as a whole.
const SECTOR: usize = 512;

/// The byte at which a stripe begins.
pub fn start(client: usize, row: usize, block: u64) -> u64 {
    (row * CLIENTS_MAX + client) as u64 * block
}

/// The content of a stripe after a write; version 0 is a hole.
pub fn content(client: usize, row: usize, version: u32, block: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; block as usize];
    }
    let from = start(client, row, block);
    // Behind the numbers of all files of the client.
    pattern::bytes(client as u32 * NODES + NODES - 1, version, from, from + block)
}

/// A change of a stripe.
#[derive(Clone, Copy, Debug)]
pub struct Stripe {
    pub client: usize,
    pub row: usize,
    /// The client's operation.
    pub op: usize,
    /// The operation again, or 0 for a hole.
    pub version: u32,
    /// The number of events in the device's log when it began.
    pub start: usize,
}

/// The changes of a run.
pub struct Stripes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    changes: Vec<Stripe>,
    /// Acknowledged fsyncs: the number of events, and the operations of each client that had ended at the call.
    acks: Vec<(usize, Vec<usize>)>,
    /// Stripes whose content is unknown.
    forgotten: Vec<(usize, usize)>,
    all_forgotten: bool,
}

impl Default for Stripes {
    fn default() -> Stripes {
        Stripes { state: Mutex::new(&CLASS, State::default()) }
    }
}

impl Stripes {
    /// Records a change that begins.
    pub fn changes(&self, change: Stripe) {
        self.state.lock().changes.push(change);
    }

    /// Records an acknowledged fsync of the file.
    pub fn acknowledge(&self, events: usize, upto: Vec<usize>) {
        self.state.lock().acks.push((events, upto));
    }

    /// Records that the content of a stripe is unknown from now on.
    pub fn forget(&self, client: usize, row: usize) {
        self.state.lock().forgotten.push((client, row));
    }

    /// As [`Stripes::forget`], for all stripes.
    pub fn forget_all(&self) {
        self.state.lock().all_forgotten = true;
    }

    /// Whether the content of a stripe is unknown.
    pub fn is_forgotten(&self, client: usize, row: usize) -> bool {
        let s = self.state.lock();
        s.all_forgotten || s.forgotten.contains(&(client, row))
    }

    /// Checks the file after a cut behind `events`. `acks`: the acknowledgements of all kinds.
    pub fn check(&self, file: &[u8], block: u64, clients: usize, events: usize, acks: &[Ack]) -> Result<(), String> {
        for client in 0..clients {
            let of_all = acks.iter().filter(|ack| ack.what == Coverage::Everything).map(|ack| (ack.events, &ack.upto));
            let state = self.state.lock();
            let of_file = state.acks.iter().map(|(events, upto)| (*events, upto));
            let floor = of_all.chain(of_file).filter(|(at, _)| *at <= events).map(|(_, upto)| upto[client]).max();
            let changes: Vec<Stripe> = state.changes.iter().copied().filter(|one| one.client == client).collect();
            drop(state);
            for row in (0..ROWS).filter(|row| !self.is_forgotten(client, *row)) {
                let mut versions = vec![0];
                for one in changes.iter().filter(|one| one.row == row && one.start <= events) {
                    if Some(one.op) <= floor {
                        versions.clear();
                    }
                    versions.push(one.version);
                }
                let from = start(client, row, block) as usize;
                let mut found = file.get(from..).unwrap_or_default().to_vec();
                found.resize(block as usize, 0);
                let possible: Vec<Vec<u8>> = versions.iter().map(|one| content(client, row, *one, block)).collect();
                for at in (0..found.len()).step_by(SECTOR) {
                    let sector = at..at + SECTOR;
                    if !possible.iter().any(|one| one[sector.clone()] == found[sector.clone()]) {
                        return Err(format!(
                            "stripes: client {client}, row {row}, byte {at}: none of the writes {versions:?}; floor \
                             {floor:?}\n    {changes:?}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 1024;

    fn stripes() -> Stripes {
        let stripes = Stripes::default();
        for (op, version, start) in [(3, 3, 10), (5, 0, 20), (7, 7, 30)] {
            stripes.changes(Stripe { client: 1, row: 2, op, version, start });
        }
        // The second change is durable.
        stripes.acknowledge(25, vec![0, 6]);
        stripes
    }

    /// A file with `bytes` in the stripe.
    fn file(bytes: &[u8]) -> Vec<u8> {
        let mut file = vec![0; (ROWS * CLIENTS_MAX) * BLOCK as usize];
        let at = start(1, 2, BLOCK) as usize;
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    }

    #[test]
    fn a_sector_has_the_last_durable_content_or_that_of_a_later_change() {
        let of = |version| content(1, 2, version, BLOCK);
        let found = |bytes: &[u8], events| stripes().check(&file(bytes), BLOCK, 2, events, &[]);
        // Before any change; before the acknowledgement; behind it, and before the last change.
        assert!(found(&of(0), 5).is_ok() && found(&of(3), 5).is_err());
        assert!(found(&of(0), 22).is_ok() && found(&of(3), 22).is_ok() && found(&of(7), 22).is_err());
        assert!(found(&of(0), 26).is_ok() && found(&of(3), 26).is_err() && found(&of(7), 26).is_err());
        let half = [&of(7)[..SECTOR], &of(0)[SECTOR..]].concat();
        assert!(found(&half, 40).is_ok() && found(&of(7), 40).is_ok() && found(&of(3), 40).is_err());
        // Bytes that no client wrote, and those of another client.
        assert!(found(pattern::POISON, 40).is_err());
        assert!(found(&content(0, 2, 7, BLOCK), 40).is_err());
        // A file that ends early ends with zeros.
        assert!(stripes().check(&[], BLOCK, 2, 26, &[]).is_ok());
        let forgotten = stripes();
        forgotten.forget(1, 2);
        assert!(forgotten.check(&file(&of(3)), BLOCK, 2, 26, &[]).is_ok());
    }
}
