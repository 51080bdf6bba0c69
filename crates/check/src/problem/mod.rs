//! The problems of a file system, in one table.
//!
//! Main type: [`Problem`] (an index of the table; e2fsck's code, so that logs of both can be compared). The rows are in
//! [`table`]: name, severity, the action of `e2fsck -p`, text. A text contains no place; a [`Finding`](crate::Finding)
//! adds that.
//!
//! # Locking
//! None.

mod table;

use std::fmt;

/// A problem. The number is e2fsck's code (e2fsck/problem.h), or above 0xff0000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem(u32);

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It should be changed, but nothing is lost or at risk, so it does not count as damage.
    Advice,
    /// Damage.
    Damage,
}

/// The action of `e2fsck -p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preen {
    /// Repair it without a question.
    Fix,
    /// Leave it to the user.
    Stop,
}

/// A row of the table.
#[derive(Debug)]
struct Row {
    code: u32,
    name: &'static str,
    severity: Severity,
    preen: Preen,
    text: &'static str,
}

impl Problem {
    /// Every problem that this crate knows, by ascending code.
    pub fn all() -> impl Iterator<Item = Problem> {
        table::ROWS.iter().map(|row| Problem(row.code))
    }

    /// The problem with this code.
    pub fn from_code(code: u32) -> Option<Problem> {
        table::ROWS.binary_search_by_key(&code, |row| row.code).ok().map(|_| Problem(code))
    }

    /// e2fsck's code.
    pub fn code(self) -> u32 {
        self.0
    }

    /// e2fsck's name, without its prefix.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The severity.
    pub fn severity(self) -> Severity {
        self.row().severity
    }

    /// The action of `e2fsck -p`.
    pub fn preen(self) -> Preen {
        self.row().preen
    }

    /// The text, with the placeholders `{found}`, `{expected}` (also as `:x` and `:o`), `{block}` and `{lblk}`.
    pub fn text(self) -> &'static str {
        self.row().text
    }

    fn row(self) -> &'static Row {
        // Problems are only created from rows.
        let at = table::ROWS.partition_point(|row| row.code < self.0);
        &table::ROWS[at]
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_and_names_are_unique() {
        assert!(table::ROWS.windows(2).all(|pair| pair[0].code < pair[1].code));
        let mut names: Vec<_> = table::ROWS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), table::ROWS.len());
    }

    #[test]
    fn every_problem_is_found_by_its_code() {
        for problem in Problem::all() {
            assert_eq!(Problem::from_code(problem.code()), Some(problem));
        }
        assert_eq!(Problem::from_code(0x12_3456), None);
    }

    #[test]
    fn texts_use_only_known_placeholders() {
        let known = ["found", "expected", "found:x", "expected:x", "found:o", "block", "lblk"];
        for problem in Problem::all() {
            let mut rest = problem.text();
            while let Some((_, after)) = rest.split_once('{') {
                let (name, behind) = after.split_once('}').expect("a closing brace");
                assert!(known.contains(&name), "{problem:?}: {{{name}}}");
                rest = behind;
            }
        }
    }
}
