//! The decoded list of attributes, which is edited and then written back as a whole.

use super::entry::{ENTRY_LEN, EntryRef, TERMINATOR_LEN};
use super::{NAME_LEN_MAX, Name, entry_hash, pad4};
use crate::InodeNr;

/// A value in a separate inode, as its entry describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExternalValue {
    /// `e_value_inum`.
    pub inode: InodeNr,
    /// `e_value_size`, in bytes.
    pub len: u32,
    /// `e_hash`, which covers the value's hash and the name.
    pub hash: u32,
}

/// One attribute, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The prefix, as a number of [`super::index`].
    pub index: u8,
    /// The name after its prefix, at most [`NAME_LEN_MAX`] bytes.
    pub suffix: Vec<u8>,
    /// The value, which can be any bytes, and as many as fit. Empty if the value is outside.
    pub value: Vec<u8>,
    /// The inode that contains the value.
    pub outside: Option<ExternalValue>,
}

impl Entry {
    /// The prefix and the rest.
    pub fn name(&self) -> Name<'_> {
        Name { index: self.index, suffix: &self.suffix }
    }

    /// `e_hash`, as a block stores it.
    pub fn hash(&self) -> u32 {
        self.outside.map_or_else(|| entry_hash(&self.suffix, &self.value), |outside| outside.hash)
    }

    /// The number of bytes that name and value take on disk.
    fn stored_len(&self) -> usize {
        pad4(ENTRY_LEN + self.suffix.len()) + pad4(self.value.len())
    }
}

/// The attributes of one place, in the order in which they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryList {
    entries: Vec<Entry>,
}

impl EntryList {
    /// A list without attributes.
    pub fn new() -> EntryList {
        EntryList::default()
    }

    /// Copies entries out of the bytes.
    pub fn from_refs(refs: &[EntryRef<'_>]) -> EntryList {
        let owned = |r: &EntryRef<'_>| Entry {
            index: r.name.index,
            suffix: r.name.suffix.to_vec(),
            value: r.value.to_vec(),
            outside: r.outside(),
        };
        EntryList { entries: refs.iter().map(owned).collect() }
    }

    /// The attributes, in the order in which they are stored.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The number of attributes.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no attributes, so that nothing needs to be stored.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the attribute with this name.
    pub fn find(&self, name: Name<'_>) -> Option<&Entry> {
        self.entries.iter().find(|e| e.name() == name)
    }

    /// The value of an attribute; also `None` if the value is outside.
    pub fn get(&self, name: Name<'_>) -> Option<&[u8]> {
        self.find(name).filter(|e| e.outside.is_none()).map(|e| e.value.as_slice())
    }

    /// The values in separate inodes, in the order in which they are stored.
    pub fn outside(&self) -> impl Iterator<Item = ExternalValue> {
        self.entries.iter().filter_map(|e| e.outside)
    }

    /// Sets an attribute, in place if it exists. Duplicates from a damaged image are removed. Returns false, without a
    /// change, if the name is longer than [`NAME_LEN_MAX`].
    #[must_use]
    pub fn set(&mut self, name: Name<'_>, value: &[u8]) -> bool {
        self.put(name, value, None)
    }

    /// The same as [`EntryList::set`], for a value in a separate inode.
    #[must_use]
    pub fn set_outside(&mut self, name: Name<'_>, outside: ExternalValue) -> bool {
        self.put(name, &[], Some(outside))
    }

    fn put(&mut self, name: Name<'_>, value: &[u8], outside: Option<ExternalValue>) -> bool {
        if name.suffix.len() > NAME_LEN_MAX {
            return false;
        }
        let new = Entry { index: name.index, suffix: name.suffix.to_vec(), value: value.to_vec(), outside };
        match self.entries.iter().position(|e| e.name() == name) {
            Some(at) => {
                self.entries[at] = new;
                let mut seen = 0;
                self.entries.retain(|e| {
                    seen += usize::from(e.name() == name);
                    e.name() != name || seen == 1
                });
            }
            None => self.entries.push(new),
        }
        true
    }

    /// Removes an attribute. Returns whether it existed.
    pub fn remove(&mut self, name: Name<'_>) -> bool {
        let before = self.entries.len();
        self.entries.retain(|e| e.name() != name);
        self.entries.len() != before
    }

    /// Sorts the entries in the order that a block requires.
    pub fn sort_for_block(&mut self) {
        self.entries.sort_by(|a, b| a.name().block_order().cmp(&b.name().block_order()));
    }

    /// The number of bytes that the values take.
    pub fn values_len(&self) -> usize {
        self.entries.iter().map(|e| pad4(e.value.len())).sum()
    }

    /// The number of bytes that names, values and terminator take, without a header.
    pub fn stored_len(&self) -> usize {
        self.entries.iter().map(Entry::stored_len).sum::<usize>() + TERMINATOR_LEN
    }
}
