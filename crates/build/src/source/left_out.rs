//! Attributes and flags of a source that an image cannot contain.
//!
//! Main type: [`LeftOut`].
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::error::shown;

/// The maximum number of names in the warning. Sources of other systems have one or two kinds.
const NAMES_MAX: usize = 8;

/// Attributes and flags that are left out, counted by name.
#[derive(Debug, Default)]
pub struct LeftOut {
    names: BTreeMap<String, u64>,
    /// Whether there are other names.
    more: bool,
}

impl LeftOut {
    /// Counts an attribute of an entry.
    pub fn attribute(&mut self, name: &[u8]) {
        self.count(shown(name), 1);
    }

    /// Counts a flag of an entry.
    pub fn flag(&mut self, name: &[u8]) {
        self.count(format!("the flag {}", shown(name)), 1);
    }

    fn count(&mut self, name: String, entries: u64) {
        let has_room = self.names.len() < NAMES_MAX;
        match self.names.entry(name) {
            Entry::Occupied(mut count) => *count.get_mut() += entries,
            Entry::Vacant(free) if has_room => drop(free.insert(entries)),
            Entry::Vacant(_) => self.more = true,
        }
    }

    /// Adds the counts of another part of the source.
    pub fn add(&mut self, other: LeftOut) {
        other.names.into_iter().for_each(|(name, entries)| self.count(name, entries));
        self.more |= other.more;
    }

    /// The warning about the source `name`; `None` if everything is stored.
    pub fn warning(&self, name: &str) -> Option<String> {
        let of = |(name, count): (&String, &u64)| match count {
            1 => format!("{name} (1 entry)"),
            count => format!("{name} ({count} entries)"),
        };
        let mut list: Vec<String> = self.names.iter().map(of).collect();
        if self.more {
            list.push("others".into());
        }
        let list = Some(list.join(", ")).filter(|list| !list.is_empty())?;
        Some(format!("{name}: left out, since an image has no place for it: {list}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_counts_each_name_and_ends_somewhere() {
        let mut left = LeftOut::default();
        assert_eq!(left.warning("x.tar"), None);
        let mut other = LeftOut::default();
        for _ in 0..3 {
            other.attribute(b"nfs4.acl\n");
        }
        left.flag(b"uchg");
        left.add(other);
        let begin = "x.tar: left out, since an image has no place for it: ";
        assert_eq!(
            left.warning("x.tar").expect("words"),
            format!("{begin}nfs4.acl? (3 entries), the flag uchg (1 entry)")
        );
        (0..100_000).for_each(|n| left.attribute(format!("{n}{}", "x".repeat(2000)).as_bytes()));
        let said = left.warning("x.tar").expect("words");
        assert!(said.ends_with(", the flag uchg (1 entry), others") && said.len() < 4000, "{said}");
    }
}
