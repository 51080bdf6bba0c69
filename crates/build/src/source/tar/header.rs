//! The block of 512 bytes at the beginning of an entry of an archive: v7, ustar, and GNU's variants.
//!
//! Main types: [`Header`] (fields, decoded when needed). [`numbers`] decodes any field.
//!
//! # Locking
//! None.

use std::ops::Range;

/// The unit of archives.
pub const BLOCK: usize = 512;

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const KIND: usize = 156;
const LINK: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..263;
const MAJOR: Range<usize> = 329..337;
const MINOR: Range<usize> = 337..345;
/// The part of the path before the name, if the format is ustar.
const PREFIX: Range<usize> = 345..500;
/// GNU's old form of a sparse file: four pairs of offset and length, whether more blocks follow, and the real size.
const SPARSE: Range<usize> = 386..482;
const SPARSE_MORE: usize = 482;
const SPARSE_SIZE: Range<usize> = 483..495;
/// A block of more such pairs.
const MORE_SPARSE: Range<usize> = 0..504;
const MORE_SPARSE_MORE: usize = 504;

/// The reason why a field is wrong.
pub type FieldError = String;

/// The first block of an entry.
pub struct Header<'a>(&'a [u8; BLOCK]);

impl<'a> Header<'a> {
    /// Reads a header; `None` for a block of zeros, which ends an archive.
    ///
    /// # Errors
    /// The checksum is wrong, so this is no header.
    pub fn new(block: &'a [u8; BLOCK]) -> Result<Option<Header<'a>>, FieldError> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let stored = numeric(&block[CHECKSUM]).unwrap_or(-1);
        let with = |byte: fn(u8) -> i128| -> i128 {
            let blank = byte(b' ') * CHECKSUM.len() as i128;
            let all = block.iter().enumerate().filter(|(at, _)| !CHECKSUM.contains(at));
            all.map(|(_, value)| byte(*value)).sum::<i128>() + blank
        };
        // Some old programs added the bytes as signed numbers.
        if stored != with(i128::from) && stored != with(|byte| i128::from(byte as i8)) {
            return Err("the checksum of a header is wrong".into());
        }
        Ok(Some(Header(block)))
    }

    /// The type flag.
    pub fn kind(&self) -> u8 {
        self.0[KIND]
    }

    pub fn path(&self) -> Vec<u8> {
        let name = text(&self.0[NAME]);
        let prefix = if self.0[MAGIC] == *b"ustar\0" { text(&self.0[PREFIX]) } else { b"" };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    pub fn link(&self) -> &'a [u8] {
        text(&self.0[LINK])
    }

    pub fn mode(&self) -> Result<u16, FieldError> {
        Ok((number(&self.0[MODE], "mode")? & 0o7777) as u16)
    }

    pub fn uid(&self) -> Result<i128, FieldError> {
        number(&self.0[UID], "owner")
    }

    pub fn gid(&self) -> Result<i128, FieldError> {
        number(&self.0[GID], "group")
    }

    pub fn size(&self) -> Result<i128, FieldError> {
        number(&self.0[SIZE], "size")
    }

    pub fn mtime(&self) -> Result<i128, FieldError> {
        number(&self.0[MTIME], "time")
    }

    pub fn device(&self) -> Result<(i128, i128), FieldError> {
        Ok((number(&self.0[MAJOR], "device")?, number(&self.0[MINOR], "device")?))
    }

    /// The fields of GNU's old form of a sparse file: the real size, and whether blocks with more ranges follow.
    pub fn sparse(&self, ranges: &mut Vec<Range<u64>>) -> Result<(i128, bool), FieldError> {
        sparse_ranges(&self.0[SPARSE], ranges)?;
        Ok((number(&self.0[SPARSE_SIZE], "real size")?, self.0[SPARSE_MORE] != 0))
    }
}

/// Reads a block of more ranges of a sparse file. Returns whether another one follows.
pub fn more_sparse(block: &[u8; BLOCK], ranges: &mut Vec<Range<u64>>) -> Result<bool, FieldError> {
    sparse_ranges(&block[MORE_SPARSE], ranges)?;
    Ok(block[MORE_SPARSE_MORE] != 0)
}

fn sparse_ranges(fields: &[u8], ranges: &mut Vec<Range<u64>>) -> Result<(), FieldError> {
    for pair in fields.chunks_exact(24) {
        // Unused pairs are blank.
        if pair[0] == 0 && pair[12] == 0 {
            break;
        }
        let (start, len) = (number(&pair[..12], "sparse map")?, number(&pair[12..], "sparse map")?);
        add_range(ranges, start, len)?;
    }
    Ok(())
}

/// Adds a range of a sparse map. Empty ones are dropped.
pub fn add_range(ranges: &mut Vec<Range<u64>>, start: i128, len: i128) -> Result<(), FieldError> {
    let range = range(start, len)?;
    if !range.is_empty() {
        ranges.push(range);
    }
    Ok(())
}

fn range(start: i128, len: i128) -> Result<Range<u64>, FieldError> {
    let bound = |n| u64::try_from(n).map_err(|_| format!("its sparse map has a range of {len} bytes at {start}"));
    Ok(bound(start)?..bound(start.saturating_add(len.max(0)))?)
}

/// The text up to the first NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or(field)
}

fn number(field: &[u8], what: &str) -> Result<i128, FieldError> {
    numeric(field).ok_or_else(|| format!("its {what} is no number: {}", field.escape_ascii()))
}

/// Octal digits, or base 256 if the first bit says so; a blank field is 0.
fn numeric(field: &[u8]) -> Option<i128> {
    if field[0] & 0x80 != 0 {
        // The next bit is the sign; there are at most twelve bytes.
        let first = i128::from(field[0] & 0x7f) - if field[0] & 0x40 != 0 { 0x80 } else { 0 };
        return Some(field[1..].iter().fold(first, |n, byte| n << 8 | i128::from(*byte)));
    }
    let digits = field.split(|byte| matches!(byte, 0 | b' ')).find(|digits| !digits.is_empty()).unwrap_or(b"");
    digits.iter().try_fold(0i128, |n, digit| match digit {
        b'0'..=b'7' => Some(n * 8 + i128::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        for (field, value) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"  644 \0\0", Some(0o644)),
            (b"77777777", Some(0o77777777)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"00000x1\0", None),
            (b"-0000001", None),
            (b"00000008", None),
            (b"\x80\0\0\0\0\0\x01\x02", Some(258)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xae\x80", Some(-86_400)),
            (b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", Some((1 << 94) - 1)),
        ] {
            assert_eq!(numeric(field), value, "{field:?}");
        }
    }

    #[test]
    fn ranges_are_within_what_a_number_holds() {
        assert_eq!(range(5, 3), Ok(5..8));
        assert!(range(-1, 3).is_err());
        assert!(range(0, 1 << 64).is_err());
        assert!(range((1 << 64) - 1, 1).is_err());
        assert_eq!(range(5, -3), Ok(5..5));
    }
}
