//! The situations in which a writer waits.
//!
//! Main types: [`Patience`], the mode of a plug; [`Moment`], a situation in which it may wait; [`Obstacle`], the reason
//! why an inode is left to another thread.
//!
//! `Obstacle`: another thread holds the inode's writeback lock, an earlier write of the block is in flight, space may
//! become free with the next commit, or completed batches need a handle. `Full`: the plug contains enough to be sent.
//! `End`: the writer is done. A writer that does not wait at an obstacle leaves the inode, or the batch, to a thread of
//! the mount. A writer that does not wait after sending leaves the requests to their completions.
//!
//! | patience | Obstacle | Full | End |
//! |---|---|---|---|
//! | Inline | waits | waits | waits |
//! | Finishes | waits | sends | waits |
//! | Sends | waits | sends | sends |
//! | Leaves | leaves | sends | sends |
//!
//! # Locking
//! None.

use extant_cache::Epoch;

/// How much of its work a writer does itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The mount has no threads: the writer does everything.
    Inline,
    /// The caller waits for its data in any case, so it retires the last batches itself instead of waking another
    /// thread.
    Finishes,
    /// The caller continues once everything has been sent.
    Sends,
    /// The caller does not wait for anything.
    Leaves,
}

/// A situation in which a writer waits or continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Obstacle,
    Full,
    End,
}

/// A reason to wait, or to leave the inode.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Obstacle {
    /// Another thread holds the inode's writeback lock.
    Locked,
    /// An earlier write of a block is in flight. All of them have completed when the tokens before this epoch are
    /// closed.
    InFlight(Epoch),
    /// Space may become free with the next commit.
    NoSpace,
}

impl Patience {
    pub(crate) const fn waits(self, moment: Moment) -> bool {
        match moment {
            Moment::Obstacle => !matches!(self, Patience::Leaves),
            Moment::Full => matches!(self, Patience::Inline),
            Moment::End => matches!(self, Patience::Inline | Patience::Finishes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_patience_waits_where_the_table_says() {
        let head = include_str!("patience.rs").split("# Locking").next().expect("a head");
        for patience in [Patience::Inline, Patience::Finishes, Patience::Sends, Patience::Leaves] {
            let cell = |moment, other| if patience.waits(moment) { "waits" } else { other };
            let [obstacle, full, end] =
                [cell(Moment::Obstacle, "leaves"), cell(Moment::Full, "sends"), cell(Moment::End, "sends")];
            let row = format!("//! | {patience:?} | {obstacle} | {full} | {end} |\n");
            assert!(head.contains(&row), "not in the table: {row}");
        }
        assert_eq!(head.matches("\n//! | ").count(), 1 + 4);
    }
}
