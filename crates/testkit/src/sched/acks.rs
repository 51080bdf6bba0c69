//! Acknowledgements that something is durable.
//!
//! Main types: [`Ack`], [`Coverage`].
//!
//! What it does not do: check them ([`super::check`]).
//!
//! # Locking
//! None.

use crate::crash::history::NodeId;

/// An acknowledgement that something is durable.
#[derive(Clone, Debug)]
pub struct Ack {
    /// The number of events in the device's log at the acknowledgement.
    pub events: usize,
    /// The number of operations of each client that had ended at the time of the call.
    pub upto: Vec<usize>,
    pub what: Coverage,
    /// The call that was acknowledged.
    pub by: &'static str,
    /// The number of requests that had not completed at the acknowledgement.
    pub in_flight: usize,
    /// The number of earlier acknowledgements.
    pub(super) nr: usize,
}

/// The writes that are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    Everything,
    /// A file of a client; with `data`, without its names and times.
    File {
        client: usize,
        node: NodeId,
        data: bool,
    },
}
