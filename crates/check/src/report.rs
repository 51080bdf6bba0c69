//! Findings collected: by each thread on its own, then in one report.
//!
//! Main types: [`Sink`] (takes findings, keeps a bounded number of each problem), [`Report`] (what a check comes to).
//! Of one problem the smallest [`KEPT_MAX`] findings are kept, whatever order they came in, and all are counted: the
//! report does not depend on the number of threads.
//!
//! # Locking
//! None: each thread has a sink of its own.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::problem::{Problem, Severity};

/// Findings of one problem that are kept; the rest is counted.
pub const KEPT_MAX: usize = 10_000;

#[derive(Default)]
struct Kept {
    findings: Vec<Finding>,
    count: u64,
}

impl Kept {
    /// Keeps the smallest.
    fn cut(&mut self) {
        self.findings.sort_unstable();
        self.findings.truncate(KEPT_MAX);
    }
}

/// Takes findings.
#[derive(Default)]
pub struct Sink {
    kept: BTreeMap<Problem, Kept>,
}

impl Extend<Finding> for Sink {
    fn extend<T: IntoIterator<Item = Finding>>(&mut self, findings: T) {
        findings.into_iter().for_each(|finding| self.push(finding));
    }
}

impl Sink {
    /// Takes one finding.
    pub fn push(&mut self, finding: Finding) {
        let kept = self.kept.entry(finding.problem).or_default();
        kept.count += 1;
        kept.findings.push(finding);
        if kept.findings.len() >= 2 * KEPT_MAX {
            kept.cut();
        }
    }

    /// Takes what another sink has.
    pub fn merge(&mut self, other: Sink) {
        for (problem, theirs) in other.kept {
            let kept = self.kept.entry(problem).or_default();
            kept.count += theirs.count;
            kept.findings.extend(theirs.findings);
            if kept.findings.len() >= 2 * KEPT_MAX {
                kept.cut();
            }
        }
    }

    /// All findings in order, and how many there were of each problem.
    pub(crate) fn finish(self) -> (Vec<Finding>, BTreeMap<Problem, u64>) {
        let mut findings = Vec::new();
        let mut counts = BTreeMap::new();
        for (problem, mut kept) in self.kept {
            kept.cut();
            counts.insert(problem, kept.count);
            findings.append(&mut kept.findings);
        }
        (findings, counts)
    }
}

/// Something that a reader of the report should know, and that is no damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The primary superblock cannot be used; the backup at this byte was used instead.
    BackupSuperblock {
        /// The byte on the device.
        offset: u64,
    },
    /// The log was replayed in memory.
    Replayed {
        /// How many transactions.
        transactions: u32,
    },
    /// The log goes on with fast commits, which were not applied.
    FastCommits {
        /// How many.
        count: usize,
    },
    /// The log was not replayed: the image is checked as it lies on the device.
    NotReplayed {
        /// Why.
        why: String,
    },
    /// A feature that this check does not understand: what belongs to it is not checked.
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

/// How much there is in the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes of all groups.
    pub inodes: u64,
    /// Directories among those in use.
    pub directories: u64,
    /// Blocks in use, metadata included.
    pub blocks_used: u64,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Requests that the check made.
    pub reads: u64,
    /// Bytes that it read.
    pub read_bytes: u64,
}

/// What a check comes to.
#[derive(Debug, Default)]
pub struct Report {
    /// What is wrong, in a fixed order.
    pub findings: Vec<Finding>,
    /// How many findings there were of each problem, also of those that were not kept.
    pub counts: BTreeMap<Problem, u64>,
    /// What else is to be known.
    pub notes: Vec<Note>,
    /// How much there is. Zeros if nothing could be checked.
    pub totals: Totals,
    /// Whether every pass ran. False: something fatal was found, and the rest is not known.
    pub complete: bool,
}

impl Report {
    /// Whether the file system is damaged.
    pub fn is_damaged(&self) -> bool {
        self.counts.keys().any(|problem| problem.severity() >= Severity::Damage)
    }

    /// How many findings there were of one problem.
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
    fn the_smallest_findings_are_kept_whatever_their_order() {
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
