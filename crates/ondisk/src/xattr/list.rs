//! The decoded list of attributes that is edited and written back whole.

use super::entry::{ENTRY_LEN, EntryRef, TERMINATOR_LEN};
use super::{NAME_LEN_MAX, Name, pad4};
use crate::{Error, Result};

/// One attribute, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The prefix, as a number of [`super::index`].
    pub index: u8,
    /// The name behind its prefix, at most [`NAME_LEN_MAX`] bytes.
    pub suffix: Vec<u8>,
    /// Any bytes, and as many as fit.
    pub value: Vec<u8>,
}

impl Entry {
    /// Prefix and rest.
    pub fn name(&self) -> Name<'_> {
        Name { index: self.index, suffix: &self.suffix }
    }

    /// Bytes that name and value take on disk.
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
    /// Without attributes.
    pub fn new() -> EntryList {
        EntryList::default()
    }

    /// Copies entries out of the bytes.
    ///
    /// # Errors
    /// `Unsupported` if a value is in an inode of its own, whose reference count would have to be maintained.
    pub fn from_refs(refs: &[EntryRef<'_>]) -> Result<EntryList> {
        let owned = |r: &EntryRef<'_>| match r.outside {
            None => Ok(Entry { index: r.name.index, suffix: r.name.suffix.to_vec(), value: r.value.to_vec() }),
            Some((ino, _)) => Err(Error::unsupported(format!("attribute value in {ino} (ea_inode)"))),
        };
        Ok(EntryList { entries: refs.iter().map(owned).collect::<Result<_>>()? })
    }

    /// In the order in which they are stored.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// How many attributes.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no attributes, so that nothing needs to be stored.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of an attribute.
    pub fn get(&self, name: Name<'_>) -> Option<&[u8]> {
        self.entries.iter().find(|e| e.name() == name).map(|e| e.value.as_slice())
    }

    /// Sets an attribute, in place when it exists; duplicates of a damaged image disappear. False, and no change, when
    /// the name is longer than [`NAME_LEN_MAX`].
    #[must_use]
    pub fn set(&mut self, name: Name<'_>, value: &[u8]) -> bool {
        if name.suffix.len() > NAME_LEN_MAX {
            return false;
        }
        match self.entries.iter().position(|e| e.name() == name) {
            Some(at) => {
                self.entries[at].value = value.to_vec();
                let mut seen = 0;
                self.entries.retain(|e| {
                    seen += usize::from(e.name() == name);
                    e.name() != name || seen == 1
                });
            }
            None => self.entries.push(Entry { index: name.index, suffix: name.suffix.to_vec(), value: value.to_vec() }),
        }
        true
    }

    /// Removes an attribute; whether it was there.
    pub fn remove(&mut self, name: Name<'_>) -> bool {
        let before = self.entries.len();
        self.entries.retain(|e| e.name() != name);
        self.entries.len() != before
    }

    /// Puts the entries into the order that a block needs.
    pub fn sort_for_block(&mut self) {
        self.entries.sort_by(|a, b| a.name().block_order().cmp(&b.name().block_order()));
    }

    /// Bytes that names, values and terminator take, without a header.
    pub fn stored_len(&self) -> usize {
        self.entries.iter().map(Entry::stored_len).sum::<usize>() + TERMINATOR_LEN
    }
}
