//! The policies, side by side.
//!
//! | name | idea | Linux | judged by |
//! |---|---|---|---|
//! | `vanilla` | beside the block that points to it, else beside its data | all | none yet |
//! | `inline` | each pointer block in front of the data that it maps | ext3 without delayed allocation | none yet |
//!
//! Main types: [`MetaPolicy`] (the choice at mount), [`MetaPlace`] (what a policy is).
//!
//! # Locking
//! None.

pub mod inline;
pub mod vanilla;

#[cfg(test)]
mod contract;

use extant_ondisk::BlockNr;

use crate::MetaRequest;

extant_base::policies! {
    /// The policies.
    pub enum MetaPolicy: "meta_policy", "where metadata blocks lie", default Vanilla {
        Vanilla = "vanilla", "beside the block that points to them, else beside their data (Linux)";
        Inline = "inline", "each pointer block in front of the data that it maps (ext3 in 2007)";
    }
}

/// What a policy is.
pub trait MetaPlace: Send + Sync {
    /// Whether pointer blocks are taken together with the first data that they map, in front of it.
    fn in_front(&self) -> bool {
        false
    }

    /// The block in whose group the search begins.
    fn goal(&self, meta: &MetaRequest) -> Option<BlockNr>;
}

impl MetaPolicy {
    /// The state of the policy for one mount.
    pub fn state(self) -> Box<dyn MetaPlace> {
        match self {
            MetaPolicy::Vanilla => Box::new(vanilla::Vanilla),
            MetaPolicy::Inline => Box::new(inline::Inline),
        }
    }
}
