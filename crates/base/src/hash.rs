//! Hash tables whose order of iteration is random, or a [`crate::sim`] run's.
//!
//! Main types: [`HashMap`], [`HashSet`], [`State`]. Made on a simulated thread, a table draws its key from the run's seed, so
//! that what walks it walks it alike each time; made elsewhere, from the process's randomness, as std's. Images are hostile: a
//! key that is known would let one choose which entries collide.
//!
//! # Locking
//! None.

use std::collections::hash_map::{DefaultHasher, RandomState};
use std::hash::{BuildHasher, Hasher};

use crate::sim;

pub type HashMap<K, V> = std::collections::HashMap<K, V, State>;
pub type HashSet<T> = std::collections::HashSet<T, State>;

/// Where a table's hashers get their key.
#[derive(Clone, Debug)]
pub struct State(Source);

#[derive(Clone, Debug)]
enum Source {
    Process(RandomState),
    Run(u64),
}

impl Default for State {
    fn default() -> State {
        let key = if sim::active() { sim::hash_key() } else { None };
        State(key.map_or_else(|| Source::Process(RandomState::new()), Source::Run))
    }
}

impl BuildHasher for State {
    type Hasher = DefaultHasher;

    #[inline]
    fn build_hasher(&self) -> DefaultHasher {
        match &self.0 {
            Source::Process(state) => state.build_hasher(),
            Source::Run(key) => {
                let mut hasher = DefaultHasher::new();
                hasher.write_u64(*key);
                hasher
            }
        }
    }
}
