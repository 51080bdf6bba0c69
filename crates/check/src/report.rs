//! Collects findings: first those of a run by the thread that decodes it, then all in one report.
//!
//! Main types: [`Sink`] (takes findings, and stores a limited number for each problem), [`Report`] (the result of a
//! check). For each problem, the smallest [`KEPT_MAX`] findings are stored, regardless of their order, and all are
//! counted. So the report does not depend on the number of threads.
//!
//! # Locking
//! None of its own.

use std::collections::{BTreeMap, BinaryHeap};

use crate::finding::Finding;
use crate::problem::{Problem, Severity};

/// The maximum number of findings of one problem that are stored; the others are only counted.
pub const KEPT_MAX: usize = 10_000;

#[derive(Default)]
struct KeptFindings {
    /// The smallest findings, as a heap with the largest on top.
    findings: BinaryHeap<Finding>,
    count: u64,
}

impl KeptFindings {
    fn keep(&mut self, finding: Finding) {
        let (kept, room) = (self.findings.len(), self.findings.capacity());
        if kept < KEPT_MAX {
            if kept == room {
                // No memory is allocated that can never be used.
                self.findings.reserve_exact(room.clamp(4, KEPT_MAX - kept));
            }
            self.findings.push(finding);
        } else if let Some(mut largest) = self.findings.peek_mut().filter(|largest| finding < **largest) {
            *largest = finding;
        }
    }
}

/// Takes findings.
#[derive(Default)]
pub struct Sink {
    kept: BTreeMap<Problem, KeptFindings>,
}

impl Extend<Finding> for Sink {
    fn extend<T: IntoIterator<Item = Finding>>(&mut self, findings: T) {
        findings.into_iter().for_each(|finding| self.push(finding));
    }
}

impl Sink {
    /// Adds one finding.
    pub fn push(&mut self, finding: Finding) {
        let kept = self.kept.entry(finding.problem).or_default();
        kept.count += 1;
        kept.keep(finding);
    }

    /// Adds the findings of another sink.
    pub fn merge(&mut self, other: Sink) {
        for (problem, theirs) in other.kept {
            let kept = self.kept.entry(problem).or_default();
            kept.count += theirs.count;
            theirs.findings.into_iter().for_each(|finding| kept.keep(finding));
        }
    }

    /// Changes the values of the stored findings. Findings that only differ in these values would become equal, so the
    /// caller must ensure that there are none.
    pub fn amend(&mut self, change: impl Fn(&mut Finding)) {
        for kept in self.kept.values_mut() {
            let mut findings = std::mem::take(&mut kept.findings).into_vec();
            findings.iter_mut().for_each(&change);
            kept.findings = findings.into();
        }
    }

    /// Whether there are no findings.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// All findings in order, and the number of findings of each problem.
    pub(crate) fn finish(self) -> (Vec<Finding>, BTreeMap<Problem, u64>) {
        let mut findings = Vec::with_capacity(self.kept.values().map(|kept| kept.findings.len()).sum());
        let mut counts = BTreeMap::new();
        for (problem, kept) in self.kept {
            counts.insert(problem, kept.count);
            findings.append(&mut kept.findings.into_sorted_vec());
        }
        (findings, counts)
    }
}

/// A fact that a reader of the report should know, but that is no damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The primary superblock cannot be used; the backup at this byte was used instead.
    BackupSuperblock {
        /// The offset on the device, in bytes.
        offset: u64,
    },
    /// The log was replayed in memory.
    Replayed {
        /// The number of transactions.
        transactions: u32,
    },
    /// The log continues with fast commits, which were not applied.
    FastCommits {
        /// The number of fast commits.
        count: usize,
    },
    /// The log was not replayed, so the image is checked in its state on the device.
    NotReplayed {
        /// The reason.
        why: String,
    },
    /// This check does not know a feature, so its structures are not checked.
    Unchecked {
        /// The names of the features.
        features: String,
    },
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Note::BackupSuperblock { offset } => write!(f, "the backup of the superblock at byte {offset} is used"),
            Note::Replayed { transactions } => {
                write!(f, "{transactions} transactions of the log are replayed in memory")
            }
            Note::FastCommits { count } => {
                write!(f, "{count} fast commits of the log are left out: mount the image once to apply them")
            }
            Note::NotReplayed { why } => write!(f, "the log is not replayed: {why}"),
            Note::Unchecked { features } => write!(f, "not checked: {features}"),
        }
    }
}

/// The size of the file system and of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of inodes in use.
    pub inodes_used: u64,
    /// The number of inodes in all groups.
    pub inodes: u64,
    /// The number of directories in use.
    pub directories: u64,
    /// The number of blocks in use, including metadata.
    pub blocks_used: u64,
    /// The number of blocks in the file system.
    pub blocks: u64,
    /// The number of requests that the check made.
    pub reads: u64,
    /// The number of bytes that it read.
    pub read_bytes: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The findings, in a fixed order.
    pub findings: Vec<Finding>,
    /// The number of findings of each problem, including those that were not stored.
    pub counts: BTreeMap<Problem, u64>,
    /// Other facts to know.
    pub notes: Vec<Note>,
    /// The totals. Zeros if nothing could be checked.
    pub totals: Totals,
    /// Whether every pass ran. If not, something fatal was found, and the rest is unknown.
    pub complete: bool,
}

impl Report {
    /// Whether the file system is damaged.
    pub fn is_damaged(&self) -> bool {
        self.counts.keys().any(|problem| problem.severity() >= Severity::Damage)
    }

    /// The number of findings of one problem.
    pub fn count(&self, problem: Problem) -> u64 {
        self.counts.get(&problem).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Place;
    use extant_ondisk::InodeNr;

    fn finding(ino: u32) -> Finding {
        Finding::at(Problem::BadIBlocks, Place::Inode(InodeNr(ino)))
    }

    #[test]
    fn a_sink_allocates_no_room_beyond_its_limit() {
        let mut sink = Sink::default();
        for ino in (0..3 * KEPT_MAX as u32).rev() {
            sink.push(finding(ino));
            assert!(sink.kept[&Problem::BadIBlocks].findings.capacity() <= KEPT_MAX);
        }
    }

    #[test]
    fn the_smallest_findings_stay_in_any_order_of_arrival() {
        let many = 3 * KEPT_MAX as u32;
        let (mut up, mut down, mut halves) = (Sink::default(), Sink::default(), (Sink::default(), Sink::default()));
        for ino in 0..many {
            up.push(finding(ino));
            down.push(finding(many - 1 - ino));
            if ino % 2 == 0 { halves.0.push(finding(ino)) } else { halves.1.push(finding(ino)) }
        }
        halves.1.merge(halves.0);
        let up = up.finish();
        assert_eq!(up.0.len(), KEPT_MAX);
        assert_eq!(up.0.last(), Some(&finding(KEPT_MAX as u32 - 1)));
        assert_eq!(up.1[&Problem::BadIBlocks], u64::from(many));
        assert_eq!(up, down.finish());
        assert_eq!(up, halves.1.finish());
    }
}
