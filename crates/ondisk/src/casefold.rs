//! Case-insensitive names: the form in which a directory with the casefold flag compares and hashes them (Linux:
//! fs/unicode, NFDICF of Unicode 12.1).
//!
//! Main function: [`fold`]. Main type: [`LookupName`] (a name to find, and the rule by which stored names match it).
//! [`may_be_written`] says which new names such a directory accepts.
//!
//! What it does not do: fold encrypted names, whose hash is stored with them.
//!
//! # Locking
//! None.

use caseless::Caseless;
use unicode_normalization::UnicodeNormalization;

/// The form of a name for case-insensitive comparison. Each character is decomposed and folded, ignorable characters
/// are dropped, and marks are sorted in canonical order. A name that is not UTF-8 is compared unchanged.
pub fn fold(name: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(name) else { return name.to_vec() };
    if text.is_ascii() {
        return text.to_ascii_lowercase().into_bytes();
    }
    let mut folded = String::new();
    // Fold piece by piece: no mark moves past an ignorable or newer character, or past the folded form of a mark.
    for part in text.split_inclusive(|c| is_ignorable(c) || is_newer(c)) {
        let last = part.chars().next_back().filter(|c| is_ignorable(*c) || is_newer(*c));
        let marks_end = part.len() - last.map_or(0, char::len_utf8);
        let characters = part[..marks_end].chars();
        folded.extend(characters.flat_map(|c| std::iter::once(c).nfd().default_case_fold().nfd()).nfd());
        folded.extend(last.filter(|c| is_newer(*c)));
    }
    folded.into_bytes()
}

/// The bit of `s_encoding_flags` by which names that are not UTF-8 are refused (Linux: `SB_ENC_STRICT_MODE_FL`).
pub const STRICT: u16 = 1;

/// Whether a case-insensitive directory accepts this new name (Linux: `generic_ci_validate_strict_name`, fs/libfs.c).
/// In strict mode it must be UTF-8. In any mode it must not fold to `.` or `..`, because Linux's ext4 would find the
/// directory itself under that name, and report damage.
pub fn may_be_written(name: &[u8], strict: bool) -> bool {
    if name.is_ascii() {
        return true;
    }
    (!strict || std::str::from_utf8(name).is_ok()) && !is_dot(&fold(name))
}

fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// A name to find in a directory (Linux: `struct ext4_filename`, fs/ext4/ext4.h).
#[derive(Clone, Debug)]
pub struct LookupName<'a> {
    name: &'a [u8],
    /// The folded form, if the directory is case-insensitive.
    folded: Option<Vec<u8>>,
}

impl<'a> LookupName<'a> {
    /// `folds` says whether the directory compares folded names. `.` and `..` are never folded.
    pub fn new(name: &'a [u8], folds: bool) -> LookupName<'a> {
        LookupName { name, folded: (folds && !is_dot(name)).then(|| fold(name)) }
    }

    /// Whether the stored name matches (Linux: `generic_ci_match`).
    #[inline(always)]
    pub fn is(&self, stored: &[u8]) -> bool {
        stored == self.name || self.folded.as_ref().is_some_and(|folded| is_folded_as(stored, folded))
    }
}

/// Whether the stored name folds to `folded`. ASCII names, the most common ones, need no allocation.
fn is_folded_as(stored: &[u8], folded: &[u8]) -> bool {
    if stored.is_ascii() {
        return stored.eq_ignore_ascii_case(folded) && !is_dot(stored);
    }
    fold(stored) == folded
}

/// Unicode's Default_Ignorable_Code_Point.
fn is_ignorable(c: char) -> bool {
    matches!(u32::from(c),
        0xAD | 0x34F | 0x61C | 0x115F..=0x1160 | 0x17B4..=0x17B5 | 0x180B..=0x180E | 0x200B..=0x200F | 0x202A..=0x202E
        | 0x2060..=0x206F | 0x3164 | 0xFE00..=0xFE0F | 0xFEFF | 0xFFA0 | 0xFFF0..=0xFFF8 | 0x1BCA0..=0x1BCA3
        | 0x1D173..=0x1D17A | 0xE0000..=0xE0FFF)
}

/// Characters that later versions of Unicode fold, decompose or reorder. The version on disk does not have them, so
/// they remain unchanged.
fn is_newer(c: char) -> bool {
    matches!(u32::from(c),
        0x5C8..=0x5C9 | 0x897..=0x89F | 0x8CA..=0x8D2 | 0xC3C | 0x1715 | 0x1ABF..=0x1AF0 | 0x1C89 | 0x1DFA | 0x2C2F
        | 0xA7C0 | 0xA7C7 | 0xA7C9 | 0xA7CB..=0xA7CC | 0xA7D0 | 0xA7D6 | 0xA7D8 | 0xA7DA | 0xA7DC | 0xA7F5 | 0xA82C
        | 0x10570..=0x1057A | 0x1057C..=0x1058A | 0x1058C..=0x10592 | 0x10594..=0x10595 | 0x105C9 | 0x105E4
        | 0x10D50..=0x10D65 | 0x10D69..=0x10D6D | 0x10EAB..=0x10EAC | 0x10ECB..=0x10ECF | 0x10EF0..=0x10EFB
        | 0x10EFD..=0x10EFF | 0x10F82..=0x10F85 | 0x11070 | 0x11383 | 0x11385 | 0x1138E | 0x11391 | 0x113C5
        | 0x113C7..=0x113C8 | 0x113CE..=0x113D0 | 0x11938 | 0x1193D..=0x1193E | 0x11943 | 0x11F41..=0x11F42
        | 0x16121..=0x16128 | 0x1612F | 0x16D68..=0x16D6A | 0x16FF0..=0x16FF1 | 0x1D127..=0x1D128 | 0x1D250..=0x1D252
        | 0x1D25B..=0x1D25C | 0x1D25F | 0x1D280..=0x1D281 | 0x1E08F | 0x1E2AE | 0x1E4EC..=0x1E4EF | 0x1E5EE..=0x1E5EF
        | 0x1E6E3 | 0x1E6E6 | 0x1E6EE..=0x1E6EF | 0x1E6F5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csum::crc32c;

    fn folded(text: &str) -> String {
        String::from_utf8(fold(text.as_bytes())).expect("UTF-8")
    }

    #[test]
    fn names_that_differ_in_case_form_or_ignorable_characters_fold_alike() {
        let alike = [
            ("Name.TXT", "nAmE.txt"),
            ("STRASSE", "stra\u{df}e"),
            ("\u{c4}RGER", "a\u{308}rger"),
            ("soft\u{ad}hyphen", "softhyphen"),
            ("\u{1e9b}\u{323}", "\u{1e69}"),
            ("\u{1fb3}", "\u{391}\u{3b9}"),
        ];
        for (one, other) in alike {
            assert_eq!(folded(one), folded(other));
        }
        assert_ne!(folded("a"), folded("b"));
        // A mark that stays after an ignorable character, and a letter of Unicode 13.
        assert_eq!(folded("a\u{301}\u{ad}\u{334}"), "a\u{301}\u{334}");
        assert_eq!(folded("\u{a7c7}A"), "\u{a7c7}a");
        assert_eq!(fold(b"A\xff"), b"A\xff");
    }

    #[test]
    fn a_stored_name_is_the_wanted_one_in_any_case_and_dots_are_themselves() {
        let is = |name: &str, stored: &str| LookupName::new(name.as_bytes(), true).is(stored.as_bytes());
        assert!(is("Name", "nAME") && is("stra\u{df}e", "STRASSE") && is("\u{c4}", "a\u{308}") && is(".", "."));
        assert!(!is("name", "names") && !is(".\u{200b}", ".") && !is("..\u{200b}", "..") && !is(".", ".\u{200b}"));
        assert!(!LookupName::new(b"Name", false).is(b"name") && LookupName::new(b"Name", false).is(b"Name"));
        // Names that are not UTF-8 have no case.
        assert!(LookupName::new(b"A\xff", true).is(b"A\xff") && !LookupName::new(b"a\xff", true).is(b"A\xff"));
        assert!(may_be_written(b"A\xff", false) && !may_be_written(b"A\xff", true));
        assert!(may_be_written("\u{c4}".as_bytes(), true) && !may_be_written(".\u{200b}".as_bytes(), false));
    }

    #[test]
    fn every_character_folds_as_in_unicode_12_1() {
        let mut sum = !0;
        for c in (1..=0x10_ffff).filter_map(char::from_u32) {
            // Put the character between two marks, whose order then shows its class.
            sum = crc32c(sum, folded(&format!("A\u{301}{c}\u{334}b\n")).as_bytes());
        }
        // The same sum over the results of e2fsprogs 1.47.4 (lib/ext2fs/nls_utf8.c).
        assert_eq!(sum, 0xb54f_6fb1);
    }
}
