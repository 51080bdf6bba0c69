//! The words of a script's line, quoted as in a shell.
//!
//! Outside of quotes a backslash makes the next byte literal, and `#` at the beginning of a word starts a comment.
//! `'…'` is entirely literal. In `"…"` a backslash escapes only `$`, `` ` ``, `"` and itself. `$'…'` has the escapes of
//! C: bash's `printf %q` uses them for names that have no other form, for example with a line break.
//!
//! What it does not do: it expands no variables, patterns or commands.
//!
//! # Locking
//! None.

use std::ffi::OsString;
use std::iter::Peekable;
use std::os::unix::ffi::OsStringExt;
use std::slice::Iter;

const UNPAIRED: &str = "a quotation mark without its pair";

type Bytes<'a> = Peekable<Iter<'a, u8>>;

/// The words of `line`, or an error.
pub fn split(line: &[u8]) -> Result<Vec<OsString>, &'static str> {
    let mut rest = line.iter().peekable();
    let mut words = Vec::new();
    loop {
        while rest.next_if(|b| matches!(b, b' ' | b'\t')).is_some() {}
        match rest.peek() {
            None | Some(b'#') => return Ok(words),
            Some(_) => words.push(OsString::from_vec(word(&mut rest)?)),
        }
    }
}

fn word(rest: &mut Bytes<'_>) -> Result<Vec<u8>, &'static str> {
    let mut out = Vec::new();
    while let Some(&byte) = rest.next_if(|b| !matches!(b, b' ' | b'\t')) {
        match byte {
            b'\\' => out.push(*rest.next().ok_or("a backslash at the end")?),
            b'\'' => quoted(rest, b'\'', &mut out, |_, out| {
                out.push(b'\\');
                Ok(())
            })?,
            b'"' => quoted(rest, b'"', &mut out, |rest, out| {
                out.push(rest.next_if(|b| matches!(b, b'$' | b'`' | b'"' | b'\\')).copied().unwrap_or(b'\\'));
                Ok(())
            })?,
            b'$' if rest.next_if_eq(&&b'\'').is_some() => quoted(rest, b'\'', &mut out, |rest, out| {
                out.push(escape(rest)?);
                Ok(())
            })?,
            byte => out.push(byte),
        }
    }
    if out.contains(&0) { Err("a NUL, which no name can contain") } else { Ok(out) }
}

/// Takes the bytes up to `end`; `backslash` handles the bytes after a backslash.
fn quoted(
    rest: &mut Bytes<'_>,
    end: u8,
    out: &mut Vec<u8>,
    backslash: impl Fn(&mut Bytes<'_>, &mut Vec<u8>) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    loop {
        match rest.next() {
            None => return Err(UNPAIRED),
            Some(&byte) if byte == end => return Ok(()),
            Some(b'\\') => backslash(rest, out)?,
            Some(&byte) => out.push(byte),
        }
    }
}

/// Decodes an escape of C, without its backslash.
fn escape(rest: &mut Bytes<'_>) -> Result<u8, &'static str> {
    Ok(match rest.next().ok_or(UNPAIRED)? {
        b'a' => 7,
        b'b' => 8,
        b'e' | b'E' => 0x1b,
        b'f' => 0xc,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0xb,
        b'x' if rest.peek().is_some_and(|b| b.is_ascii_hexdigit()) => number(rest, 0, 16, 2)?,
        &byte @ b'0'..=b'7' => number(rest, u32::from(byte - b'0'), 8, 2)?,
        &byte @ (b'\\' | b'\'' | b'"' | b'?') => byte,
        _ => return Err("an unknown escape in $'…'; known are \\n, \\t, \\\\, \\', \\OOO (octal) and \\xHH"),
    })
}

/// Parses at most `digits` further digits of a number that begins with `value`.
fn number(rest: &mut Bytes<'_>, mut value: u32, radix: u32, digits: usize) -> Result<u8, &'static str> {
    for _ in 0..digits {
        let Some(&byte) = rest.next_if(|b| char::from(**b).is_digit(radix)) else { break };
        value = value * radix + char::from(byte).to_digit(radix).unwrap_or(0);
    }
    u8::try_from(value).map_err(|_| "an escape for more than one byte")
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::process::Command;

    use extant_base::rng::Rng;

    use super::*;

    #[test]
    fn words_are_those_of_a_shell() {
        for line in [
            "",
            "  # nothing",
            "a b\tc # d",
            "a#b 'c d'\"e f\"g",
            r"a\ b \# 'c\d' \\",
            r#""a\b\"\$\`\\'""#,
            r#"$'a\nb\tc' x$'\''y $'\x41\101\0101\e[\a\b\f\r\v\\\'\\\"\?'"#,
            "'' \"\" $''",
            "a$ $b",
        ] {
            // The variable contains its own text, because nothing is expanded here.
            let script = format!("b='$b'; for word in {line}\ndo printf '%s\\0' \"$word\"; done");
            let shell = Command::new("bash").args(["-c", &script]).output().expect("bash");
            assert!(shell.status.success(), "{line}: {}", String::from_utf8_lossy(&shell.stderr));
            let wanted: Vec<&[u8]> = shell.stdout.split_inclusive(|b| *b == 0).map(|w| &w[..w.len() - 1]).collect();
            let words = split(line.as_bytes()).expect(line);
            assert_eq!(words.iter().map(|w| w.as_bytes()).collect::<Vec<_>>(), wanted, "{line}");
        }
    }

    #[test]
    fn all_quotes_of_bash_are_parsed() {
        let mut rng = Rng::new(5);
        for _ in 0..50 {
            let word: Vec<u8> = (0..1 + rng.below(40)).map(|_| 1 + rng.below(255) as u8).collect();
            let mut bash = Command::new("bash");
            bash.args(["-c", "printf %q \"$0\""]).arg(OsString::from_vec(word.clone())).env("LC_ALL", "C");
            let quoted = bash.output().expect("bash").stdout;
            assert!(!quoted.contains(&b'\n'));
            assert_eq!(split(&quoted).expect("words"), [OsString::from_vec(word)]);
        }
    }

    #[test]
    fn malformed_lines_are_refused() {
        for (line, why) in [
            ("'a", UNPAIRED),
            ("\"a\\", UNPAIRED),
            ("$'a\\'", UNPAIRED),
            ("a\\", "a backslash at the end"),
            ("$'\\q'", "an unknown escape"),
            ("$'\\xg'", "an unknown escape"),
            ("$'\\777'", "more than one byte"),
            ("$'\\0'", "a NUL"),
        ] {
            let said = split(line.as_bytes()).expect_err(line);
            assert!(said.contains(why), "{line}: {said}");
        }
    }
}
