//! The cache that each contestant implements.
//!
//! Main types: [`Cache`].

use extant_cache::reclaim::Core;

use super::super::belady::Belady;

/// A cache at work.
pub trait Cache {
    /// Uses the item; whether it was in the cache.
    fn access(&mut self, item: u32) -> bool;

    /// The engine's frames, if the policy is one of the engine's.
    fn core(&self) -> Option<&Core> {
        None
    }
}

impl Cache for Belady {
    fn access(&mut self, _: u32) -> bool {
        self.advance()
    }
}
