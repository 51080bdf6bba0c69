//! Records of extended headers: `LENGTH KEY=VALUE\n`, as in POSIX, with the keys of star, GNU and libarchive.
//!
//! Main type: [`Extended`] (the records of an entry).
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::ops::Range;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use extant_ondisk::time::Timestamp;

use super::super::left_out::LeftOut;
use super::acl;
use super::header::{FieldError, add_range};
use crate::error::shown;
use crate::tree::{Xattr, stored_name};

/// Base64 without padding, as libarchive writes values.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The records of extended headers for one entry, or for all that follow.
#[derive(Clone, Debug, Default)]
pub struct Extended {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<i128>,
    pub uid: Option<i128>,
    pub gid: Option<i128>,
    pub mtime: Option<Timestamp>,
    pub device: (Option<i128>, Option<i128>),
    pub sparse: Sparse,
    /// The flags that chattr(1) sets, as names.
    pub flags: Option<Vec<u8>>,
    /// Extended attributes by full name.
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// ACLs as text, by the full name of the attribute.
    acls: BTreeMap<&'static str, Vec<u8>>,
}

/// A sparse file in GNU's three formats.
#[derive(Clone, Debug, Default)]
pub struct Sparse {
    pub name: Option<Vec<u8>>,
    pub real_size: Option<i128>,
    pub major: Option<i128>,
    pub minor: Option<i128>,
    /// The ranges of formats 0.0 and 0.1; format 1.0 has its map before the data.
    pub ranges: Option<Vec<Range<u64>>>,
    /// In format 0.0: an offset whose length comes next.
    offset: Option<i128>,
}

/// The memory of an attribute in addition to its bytes.
const XATTR_BYTES: usize = 96;

impl Extended {
    /// The number of bytes of memory that the records take.
    pub fn bytes(&self) -> usize {
        let texts = [&self.path, &self.link, &self.sparse.name, &self.flags].into_iter().flatten().map(Vec::len);
        let xattrs = self.xattrs.iter().map(|(name, value)| name.len() + value.len() + XATTR_BYTES);
        let acls = self.acls.values().map(|text| text.len() + XATTR_BYTES);
        let ranges = self.sparse.ranges.as_ref().map_or(0, |ranges| size_of_val(&ranges[..]));
        texts.chain(xattrs).chain(acls).sum::<usize>() + ranges
    }

    /// Adds the records of a header; they override earlier ones.
    pub fn add(&mut self, mut bytes: &[u8]) -> Result<(), FieldError> {
        // The map of another header is not continued.
        let before = self.sparse.ranges.take();
        while !bytes.is_empty() {
            let (record, rest) = split(bytes)?;
            bytes = rest;
            let equals =
                record.iter().position(|byte| *byte == b'=').ok_or("a record of an extended header has no =")?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            self.record(key, value).map_err(|why| format!("{}: {why}", shown(key)))?;
        }
        if self.sparse.ranges.is_none() {
            self.sparse.ranges = before;
        }
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), FieldError> {
        // An empty value cancels that of a global header.
        let given = || (!value.is_empty()).then(|| value.to_vec());
        let number = || given().map(|value| decimal(&value)).transpose();
        match key {
            b"path" => self.path = given(),
            b"linkpath" => self.link = given(),
            b"size" => self.size = number()?,
            b"uid" => self.uid = number()?,
            b"gid" => self.gid = number()?,
            b"mtime" => self.mtime = given().map(|value| time(&value)).transpose()?,
            b"SCHILY.devmajor" => self.device.0 = number()?,
            b"SCHILY.devminor" => self.device.1 = number()?,
            b"SCHILY.fflags" => self.flags = given(),
            b"SCHILY.acl.access" => self.acl(acl::ACCESS, given()),
            b"SCHILY.acl.default" => self.acl(acl::DEFAULT, given()),
            // This record does not include the NUL at the end of the value in the kernel.
            b"RHT.security.selinux" => {
                let label = given().map(|value| [&value[..], b"\0"].concat());
                self.xattr(b"security.selinux".to_vec(), label);
            }
            b"GNU.sparse.name" => self.sparse.name = given(),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse.real_size = number()?,
            b"GNU.sparse.major" => self.sparse.major = number()?,
            b"GNU.sparse.minor" => self.sparse.minor = number()?,
            b"GNU.sparse.offset" => self.sparse.offset = Some(decimal(value)?),
            b"GNU.sparse.numbytes" => {
                let start = self.sparse.offset.take().ok_or("a length without an offset before it")?;
                add_range(self.sparse.ranges.get_or_insert_default(), start, decimal(value)?)?;
            }
            b"GNU.sparse.map" => {
                let mut numbers = value.split(|byte| *byte == b',').filter(|number| !number.is_empty());
                let mut ranges = Vec::new();
                while let Some(start) = numbers.next() {
                    let len = numbers.next().ok_or("an offset without a length behind it")?;
                    add_range(&mut ranges, decimal(start)?, decimal(len)?)?;
                }
                self.sparse.ranges = Some(ranges);
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    // An attribute without a value counts, too.
                    self.xattr(keyword(name), Some(value.to_vec()));
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    let name = unescaped(name);
                    // This is written in addition to star's record, which has the raw bytes.
                    if !self.xattrs.contains_key(&name) {
                        let value = BASE64.decode(value).map_err(|_| "its value is not in base 64")?;
                        self.xattr(name, Some(value));
                    }
                }
                // Other times, names of owners, comments and foreign records do not concern an image.
            }
        }
        Ok(())
    }

    fn xattr(&mut self, name: Vec<u8>, value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.xattrs.insert(name, value),
            None => self.xattrs.remove(&name),
        };
    }

    fn acl(&mut self, name: &'static str, value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.acls.insert(name, value),
            None => self.acls.remove(name),
        };
    }

    /// The attributes that an image can store; the others are counted in `left_out`. An ACL as text is used only if
    /// there is none as bytes.
    pub fn take_xattrs(&mut self, left_out: &mut LeftOut) -> Result<Vec<Xattr>, FieldError> {
        for (name, text) in std::mem::take(&mut self.acls) {
            if !self.xattrs.contains_key(name.as_bytes())
                && let Some(value) = acl::encode(&text, name == acl::DEFAULT)?
            {
                self.xattrs.insert(name.as_bytes().to_vec(), value);
            }
        }
        let mut set = Vec::new();
        for (name, value) in std::mem::take(&mut self.xattrs) {
            if name.contains(&0) {
                return Err("the name of an extended attribute has a NUL byte".into());
            }
            match stored_name(&name) {
                Some(_) => set.push((name.into(), value.into())),
                None => left_out.attribute(&name),
            }
        }
        Ok(set)
    }
}

/// A record without its length and line break, and what follows.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), FieldError> {
    let wrong = || FieldError::from("a record of an extended header has a wrong length");
    let space = bytes.iter().take(12).position(|byte| *byte == b' ').ok_or_else(wrong)?;
    let len = usize::try_from(decimal(&bytes[..space])?).map_err(|_| wrong())?;
    if len <= space + 1 || len > bytes.len() || bytes[len - 1] != b'\n' {
        return Err(wrong());
    }
    Ok((&bytes[space + 1..len - 1], &bytes[len..]))
}

/// A number of at most 30 digits.
pub fn decimal(text: &[u8]) -> Result<i128, FieldError> {
    let wrong = || format!("no number: {}", shown(text));
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || digits.len() > 30 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(wrong());
    }
    let value = digits.iter().fold(0i128, |n, digit| n * 10 + i128::from(digit - b'0'));
    Ok(if negative { -value } else { value })
}

/// Seconds with any number of digits after the point, of which nine are used.
fn time(text: &[u8]) -> Result<Timestamp, FieldError> {
    let wrong = || format!("no time: {}", shown(text));
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let whole = parts.next().unwrap_or(text);
    let fraction = parts.next().unwrap_or(b"");
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(wrong());
    }
    let digit = |at: usize| fraction.get(at).map_or(0, |digit| u32::from(digit - b'0'));
    let nanos = (0..9).fold(0, |n, at| n * 10 + digit(at));
    let seconds = i64::try_from(decimal(whole)?).map_err(|_| wrong())?;
    // Nanoseconds are added to the seconds, also before 1970.
    Ok(if whole.starts_with(b"-") && nanos > 0 {
        Timestamp { seconds: seconds.checked_sub(1).ok_or_else(wrong)?, nanos: 1_000_000_000 - nanos }
    } else {
        Timestamp { seconds, nanos }
    })
}

/// The name in a keyword, which ends at the first `=`: GNU tar and libarchive write `=` as `%3D`, and `%` as `%25`.
/// Others write names without a change.
fn keyword(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, ..] = rest {
        let (byte, used) = match rest {
            [b'%', b'3', b'D', ..] => (b'=', 3),
            [b'%', b'2', b'5', ..] => (b'%', 3),
            _ => (*first, 1),
        };
        out.push(byte);
        rest = &rest[used..];
    }
    out
}

/// Replaces `%3D` by `=`.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = name;
    while let [first, more @ ..] = rest {
        let hex = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16)).map(|digit| digit as u8);
        match (first, hex(more.first()), hex(more.get(1))) {
            (b'%', Some(high), Some(low)) => {
                out.push(high << 4 | low);
                rest = &more[2..];
            }
            _ => {
                out.push(*first);
                rest = more;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_nanoseconds_forward() {
        for (text, seconds, nanos) in [
            ("0", 0, 0),
            ("1350244992.023960108", 1_350_244_992, 23_960_108),
            ("1.5", 1, 500_000_000),
            ("1.", 1, 0),
            ("7.1234567899999", 7, 123_456_789),
            ("-86399.75", -86_400, 250_000_000),
            ("-0.25", -1, 750_000_000),
            ("-5.0", -5, 0),
        ] {
            assert_eq!(time(text.as_bytes()), Ok(Timestamp { seconds, nanos }), "{text}");
        }
        for text in ["", "x", "1.x", "1.-5", "--1", "9223372036854775808", "-9223372036854775808.5"] {
            assert!(time(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn records_may_hold_line_breaks_and_lie_about_their_length() {
        let mut extended = Extended::default();
        extended.add(b"11 path=a\nb\n22 SCHILY.xattr.user.x=\n").expect_err("22 is too long");
        extended.add(b"12 path=a\nb\n23 SCHILY.xattr.user.x\n").expect_err("no equals sign");
        let mut extended = Extended::default();
        extended.add(b"12 path=a\nb\n23 SCHILY.xattr.user.x=\n").expect_err("one short");
        extended.add(b"12 path=a\nb\n24 SCHILY.xattr.user.x=\n29 LIBARCHIVE.xattr.a%3Db=QQ\n").expect("records");
        assert_eq!(extended.path.as_deref(), Some(&b"a\nb"[..]));
        assert_eq!(extended.xattrs[&b"user.x"[..]], b"");
        assert_eq!(extended.xattrs[&b"a=b"[..]], b"A");
        let before = extended.bytes();
        extended.add(b"30 GNU.sparse.map=0,0,7,0,7,0\n").expect("a map");
        assert_eq!((extended.sparse.ranges.as_deref(), extended.bytes()), (Some(&[][..]), before), "empty ranges");
        extended.add(b"8 path=\n").expect("taken back");
        assert_eq!(extended.path, None);
        for wrong in ["x", "5 a", "0 a=b\n", "2 \n", "99999999999999 a=b\n", " 6 a=b\n", "-6 a=b\n", "6 a=bc\n"] {
            assert!(extended.add(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
