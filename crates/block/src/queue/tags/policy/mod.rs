//! Which free tag is taken next.
//!
//! A policy here *is* the data structure: it owns the bitmap and whatever locks or atomics guard it. Waiting is not its
//! business. Dispatch is an enum chosen when the queue is made.
//!
//! | name | idea in one sentence | after | judged by |
//! |---|---|---|---|
//! | `vanilla` | bits spread over cache lines, each core remembers where it last found one, releases are collected per word | Linux `lib/sbitmap.c` | (baseline) |

#[cfg(test)]
mod contract;
mod vanilla;

use self::vanilla::Sbitmap;

/// What every policy does.
///
/// Duties of the caller: `hint` is [`extant_base::task::shard_index`] of the thread that takes the tag, also when it is
/// given back; only tags that `get` returned are `put`, once. Duties of the implementer: any number of threads may call
/// at once; no tag is out twice; tags are below the depth; when nobody else calls meanwhile, `get` finds a tag as long
/// as one is free; a `put` is ordered before whatever the caller does next, for every `get` after that (sequential
/// consistency).
pub trait TagPolicy: Send + Sync {
    /// A tag that nobody holds.
    fn get(&self, hint: usize) -> Option<u32>;

    /// Gives a tag back.
    fn put(&self, tag: u32, hint: usize);
}

extant_base::policies! {
    /// The policies by name.
    pub enum TagPolicyKind: "tag_policy", "which free tag a request gets", default Vanilla {
        Vanilla = "vanilla", "bits spread over cache lines, a hint for each core, releases collected by word (Linux: sbitmap)";
    }
}

/// One of the policies.
pub(super) enum Tags {
    Vanilla(Sbitmap),
}

impl Tags {
    pub fn new(kind: TagPolicyKind, depth: u32) -> Tags {
        match kind {
            TagPolicyKind::Vanilla => Tags::Vanilla(Sbitmap::new(depth)),
        }
    }
}

impl TagPolicy for Tags {
    fn get(&self, hint: usize) -> Option<u32> {
        match self {
            Tags::Vanilla(t) => t.get(hint),
        }
    }

    fn put(&self, tag: u32, hint: usize) {
        match self {
            Tags::Vanilla(t) => t.put(tag, hint),
        }
    }
}
