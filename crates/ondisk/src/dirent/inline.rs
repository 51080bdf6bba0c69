//! The names of a directory that are stored in its inode (`inline_data`; Linux: fs/ext4/inline.c).
//!
//! Main type: [`InlineDir`]. The content of such a directory begins with its parent's number, instead of `.` and `..`.
//! Two chains of entries follow: one in the rest of `i_block`, one in the attribute `system.data`.
//!
//! [`InlineDir::to_block`] converts them to an ordinary first block. Each name is at the offset that the kernel gives
//! it when the directory moves to a block, so a cursor in the directory remains valid then. Code for blocks can change
//! such a copy, and [`InlineDir::from_block`] converts it back.
//!
//! What it does not do: know how much room the inode has.
//!
//! # Locking
//! None.

use super::{
    DirBlockFormat, DirDamage, DirRule, Dirent, HEADER_LEN, Insert, REC_LEN_MIN, rec_len_needed, write_rec_len,
};
use crate::inode::inline::ROOM;

/// The bytes of `.` and `..` in a block.
const DOTS_LEN: usize = 2 * REC_LEN_MIN;

/// The content of a directory that is stored in its inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineDir {
    parent: u32,
    /// The chains of entries, in `i_block` and in the attribute; the second may be empty.
    parts: [Vec<u8>; 2],
}

impl InlineDir {
    /// The bytes of the parent's number (Linux: `EXT4_INLINE_DOTDOT_SIZE`).
    pub const PARENT_LEN: usize = 4;

    /// A new directory, without names, and with `rest_len` bytes in the attribute.
    pub fn new(parent: u32, rest_len: usize) -> InlineDir {
        let mut parts = [vec![0; ROOM - Self::PARENT_LEN], vec![0; rest_len]];
        parts.iter_mut().for_each(|part| relink(part, &[]));
        InlineDir { parent, parts }
    }

    /// The bytes in the attribute that names of these lengths need, if they are inserted in this order.
    pub fn rest_for(names: impl Iterator<Item = usize>) -> usize {
        let mut room = ROOM - Self::PARENT_LEN;
        let behind = names.map(rec_len_needed).filter(|needed| {
            let fits = *needed <= room;
            room -= if fits { *needed } else { 0 };
            !fits
        });
        behind.sum()
    }

    /// Splits `i_block` and the attribute into their parts, without examining the entries.
    pub fn from_parts(i_block: &[u8; ROOM], rest: Vec<u8>) -> InlineDir {
        let (parent, first) = i_block.split_at(Self::PARENT_LEN);
        let parent = u32::from_le_bytes([parent[0], parent[1], parent[2], parent[3]]);
        InlineDir { parent, parts: [first.to_vec(), rest] }
    }

    /// The whole content: the bytes of `i_block`, followed by the attribute's value.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.parent.to_le_bytes()[..], &self.parts[0], &self.parts[1]].concat()
    }

    /// The parent's number.
    pub fn parent(&self) -> u32 {
        self.parent
    }

    /// The bytes in the attribute.
    pub fn rest_len(&self) -> usize {
        self.parts[1].len()
    }

    /// Fills `block` with the first block of a directory with these names; the tail has no checksum yet. `damaged`
    /// decides whether to continue without a damaged entry, or, if a chain breaks, without the entries after that
    /// point.
    ///
    /// # Errors
    /// The errors of `damaged`.
    pub fn to_block<E>(
        &self,
        format: DirBlockFormat,
        ino: u32,
        block: &mut [u8],
        mut damaged: impl FnMut(DirDamage) -> Result<(), E>,
    ) -> Result<(), E> {
        format.init_dots(block, ino, self.parent);
        let limit = format.limit(block.len());
        let mut last = REC_LEN_MIN;
        let mut base = DOTS_LEN;
        for part in &self.parts {
            for entry in of_part(format).entries(part) {
                let entry = match entry {
                    Ok(entry) if !entry.is_used() => continue,
                    Ok(entry) => entry,
                    Err(damage) => {
                        damaged(damage)?;
                        continue;
                    }
                };
                let at = base + entry.offset as usize;
                if at + entry.needed() > limit {
                    damaged(DirDamage { offset: entry.offset, what: DirRule::DoNotFit })?;
                    continue;
                }
                write_rec_len(block, last, at - last);
                format.write_entry(block, at, limit - at, entry.name, entry.ino, entry.file_type);
                last = at;
            }
            base += part.len();
        }
        Ok(())
    }

    /// Converts a block from [`InlineDir::to_block`] back after a change that moved no name: names may have been
    /// removed, or may refer to other inodes. `rest_len` is the size of the attribute, as before.
    ///
    /// # Errors
    /// [`DirDamage`] of the block, or a name at an offset that the inode does not have.
    pub fn from_block(format: DirBlockFormat, block: &[u8], rest_len: usize) -> Result<InlineDir, DirDamage> {
        let (_, parent, _) = format.dots(block)?;
        let mut parts = [vec![0; ROOM - Self::PARENT_LEN], vec![0; rest_len]];
        let mut places = [Vec::new(), Vec::new()];
        for entry in format.entries(block) {
            let entry = entry?;
            if !entry.is_used() || entry.is_dot() {
                continue;
            }
            let lost = DirDamage { offset: entry.offset, what: DirRule::DoNotFit };
            let at = (entry.offset as usize).checked_sub(DOTS_LEN).ok_or(lost)?;
            let (part, at) = if at < parts[0].len() { (0, at) } else { (1, at - parts[0].len()) };
            if at + entry.needed() > parts[part].len() {
                return Err(lost);
            }
            of_part(format).write_entry(&mut parts[part], at, entry.needed(), entry.name, entry.ino, entry.file_type);
            places[part].push(at);
        }
        for (part, places) in parts.iter_mut().zip(&places) {
            relink(part, places);
        }
        Ok(InlineDir { parent, parts })
    }

    /// Adds a name where there is room: in `i_block`, or else in the attribute at its present size.
    ///
    /// # Errors
    /// [`DirDamage`] of the entries, or a name that may not be written.
    pub fn insert(
        &mut self,
        format: DirBlockFormat,
        name: &[u8],
        ino: u32,
        file_type: Option<crate::inode::FileType>,
    ) -> Result<Insert, DirDamage> {
        for part in self.parts.iter_mut().filter(|part| !part.is_empty()) {
            match of_part(format).insert(part, name, ino, file_type)? {
                Insert::Full => {}
                done => return Ok(done),
            }
        }
        Ok(Insert::Full)
    }

    /// Extends the attribute to `rest_len` bytes. Returns false, without a change, if no entry would fit in the added
    /// bytes (Linux: `ext4_update_inline_dir`).
    ///
    /// # Errors
    /// [`DirDamage`] of the entries in the attribute.
    pub fn grow(&mut self, format: DirBlockFormat, rest_len: usize) -> Result<bool, DirDamage> {
        let part = &mut self.parts[1];
        if rest_len <= part.len() + REC_LEN_MIN {
            return Ok(false);
        }
        let mut places = Vec::new();
        for entry in of_part(format).entries(part) {
            let entry: Dirent<'_> = entry?;
            if entry.is_used() {
                places.push(entry.offset as usize);
            }
        }
        part.resize(rest_len, 0);
        relink(part, &places);
        Ok(true)
    }
}

/// The format of a chain of entries in an inode. It has no checksum, because the inode's covers it.
fn of_part(format: DirBlockFormat) -> DirBlockFormat {
    DirBlockFormat { has_csum: false, ..format }
}

/// Links the entries at `places` (in ascending order) into a chain that covers all of `part`.
fn relink(part: &mut [u8], places: &[usize]) {
    if part.len() < REC_LEN_MIN {
        return;
    }
    let first = places.first().copied().unwrap_or(part.len());
    if first > 0 {
        part[..HEADER_LEN].fill(0);
        write_rec_len(part, 0, first);
    }
    for (i, at) in places.iter().enumerate() {
        let end = places.get(i + 1).copied().unwrap_or(part.len());
        write_rec_len(part, *at, end - at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::FileType;

    const FORMAT: DirBlockFormat =
        DirBlockFormat { has_filetype: true, has_csum: true, inodes_count: 1000, encrypted: false };

    fn add(dir: &mut InlineDir, name: &str, ino: u32) -> bool {
        let added = dir.insert(FORMAT, name.as_bytes(), ino, Some(FileType::Regular)).expect("sound");
        matches!(added, Insert::Done { .. })
    }

    fn block_of(dir: &InlineDir) -> Vec<u8> {
        let mut block = vec![0xEE; 1024];
        dir.to_block(FORMAT, 7, &mut block, Err).expect("sound");
        block
    }

    fn names(block: &[u8]) -> Vec<(String, u32)> {
        let entries = FORMAT.entries(block).map(|e| e.expect("sound")).filter(|e| e.is_used() && !e.is_dot());
        entries.map(|e| (String::from_utf8_lossy(e.name).into_owned(), e.ino)).collect()
    }

    /// A directory with both parts full, with a name at each offset.
    fn filled() -> InlineDir {
        let mut dir = InlineDir::new(2, 0);
        assert_eq!(dir.to_bytes().len(), ROOM);
        let mut n = 10;
        while add(&mut dir, &format!("name-{n}"), n) {
            n += 1;
        }
        assert_eq!(n, 13, "56 bytes hold three entries of 16");
        assert!(!dir.grow(FORMAT, 12).expect("sound"), "no entry would fit");
        assert!(dir.grow(FORMAT, 40).expect("sound"));
        while add(&mut dir, &format!("name-{n}"), n) {
            n += 1;
        }
        assert_eq!((n, dir.rest_len(), dir.to_bytes().len()), (15, 40, 100));
        dir
    }

    #[test]
    fn a_directory_in_an_inode_is_the_same_as_a_block() {
        let dir = filled();
        let block = block_of(&dir);
        assert_eq!(FORMAT.dots(&block).expect("dots"), (7, 2, 12));
        let wanted: Vec<_> = (10..15).map(|n| (format!("name-{n}"), n)).collect();
        assert_eq!(names(&block), wanted);
        assert_eq!(InlineDir::from_block(FORMAT, &block, 40).expect("fits"), dir);
        let bytes = dir.to_bytes();
        let first = bytes[..ROOM].try_into().expect("60 bytes");
        assert_eq!(InlineDir::from_parts(first, bytes[ROOM..].to_vec()), dir);
    }

    /// Removing any set of names from the block, and filling the gaps again, does not move other names.
    #[test]
    fn names_removed_from_the_block_leave_room_in_the_inode() {
        for removed in 0..32u32 {
            let mut block = block_of(&filled());
            let before = names(&block);
            for bit in (0..5).filter(|bit| removed & 1 << bit != 0) {
                let name = format!("name-{}", 10 + bit);
                let at = FORMAT.find(&block, name.as_bytes()).expect("sound").expect("there").offset;
                FORMAT.remove(&mut block, at).expect("removed");
            }
            let mut dir = InlineDir::from_block(FORMAT, &block, 40).expect("fits");
            let kept: Vec<_> = before.iter().filter(|(_, n)| removed & 1 << (n - 10) == 0).cloned().collect();
            assert_eq!(names(&block_of(&dir)), kept, "{removed:#b}");
            for bit in (0..5).filter(|bit| removed & 1 << bit != 0) {
                assert!(add(&mut dir, &format!("new--{bit}"), 100 + bit), "{removed:#b}");
            }
            assert!(!add(&mut dir, "another", 200), "{removed:#b}");
            assert_eq!(names(&block_of(&dir)).len(), 5, "{removed:#b}");
        }
    }

    #[test]
    fn damage_hides_no_sound_name_and_is_reported() {
        let mut dir = filled();
        // The second entry of the attribute has an impossible length.
        dir.parts[1][16 + 4] = 3;
        let mut block = vec![0; 1024];
        assert!(dir.to_block(FORMAT, 7, &mut block, Err).is_err());
        let mut seen = Vec::new();
        let pass = |damage: DirDamage| -> Result<(), DirDamage> {
            seen.push(damage.what);
            Ok(())
        };
        dir.to_block(FORMAT, 7, &mut block, pass).expect("passed");
        assert_eq!(seen, [DirRule::RecLen { found: 3 }]);
        assert_eq!(names(&block).len(), 4);
        assert!(dir.insert(FORMAT, b"a name that is too long", 9, None).is_err() && dir.grow(FORMAT, 80).is_err());
        // Three bytes cannot be a chain of entries.
        let short = InlineDir::from_parts(&[0; ROOM], vec![1, 2, 3]);
        assert!(short.to_block(FORMAT, 7, &mut block, Err).is_err());
    }

    #[test]
    fn a_block_with_a_name_at_another_place_is_refused() {
        let dir = InlineDir::new(2, 0);
        let mut block = block_of(&dir);
        FORMAT.insert(&mut block, &[b'x'; 60], 9, None).expect("sound");
        assert!(InlineDir::from_block(FORMAT, &block, 0).is_err());
    }
}
