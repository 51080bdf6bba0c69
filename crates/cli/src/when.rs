//! Times in the forms that users type: `touch -d` and `-t`.
//!
//! # Locking
//! None.

use extant_ondisk::time::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::failure::{Failure, Result};

fn wrong(text: &str) -> Failure {
    Failure::usage(format!(
        "'{text}' is not a time: write @SECONDS, 2024-02-29, 2024-02-29 12:34:56 (UTC), 2024-02-29T12:34:56+01:00, \
         yesterday or -3days"
    ))
}

/// A timestamp; `None` if it is before the earliest time.
fn stamp(seconds: i64, nanos: i32) -> Option<Timestamp> {
    // Before 1970, jiff's fraction counts backwards, and that of a `Timestamp` forwards.
    let (seconds, nanos) = if nanos < 0 { (seconds.checked_sub(1)?, nanos + 1_000_000_000) } else { (seconds, nanos) };
    Some(Timestamp { seconds, nanos: nanos as u32 })
}

fn utc(time: DateTime) -> Option<Timestamp> {
    let at = time.to_zoned(TimeZone::UTC).ok()?.timestamp();
    stamp(at.as_second(), at.subsec_nanosecond())
}

/// `@SECONDS`, `now`, a date with an optional time and offset (UTC without an offset), or a span relative to `now`:
/// `-3days`, `2 hours ago`.
pub fn date(text: &str, now: Timestamp) -> Result<Option<Timestamp>> {
    let trimmed = text.trim();
    let span = match trimmed {
        "now" | "today" => return Ok(None),
        "yesterday" => Some(jiff::Span::new().days(-1)),
        "tomorrow" => Some(jiff::Span::new().days(1)),
        _ => trimmed.parse::<jiff::Span>().ok(),
    };
    if let Some(span) = span {
        let from = jiff::Timestamp::new(now.seconds, now.nanos as i32).map(|now| now.to_zoned(TimeZone::UTC));
        let at = from.and_then(|from| from.checked_add(span)).map(|at| at.timestamp());
        return at
            .ok()
            .and_then(|at| stamp(at.as_second(), at.subsec_nanosecond()))
            .map(Some)
            .ok_or_else(|| wrong(text));
    }
    if let Some(number) = trimmed.strip_prefix('@') {
        let (seconds, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit());
        let nanos = format!("{fraction:0<9}").parse::<i32>().ok().filter(|_| digits && !seconds.starts_with('+'));
        let (Ok(whole), Some(nanos)) = (seconds.parse::<i64>(), nanos) else { return Err(wrong(text)) };
        let at = stamp(whole, if seconds.starts_with('-') { -nanos } else { nanos });
        return at.map(Some).ok_or_else(|| wrong(text));
    }
    if let Ok(at) = trimmed.parse::<jiff::Timestamp>() {
        return stamp(at.as_second(), at.subsec_nanosecond()).map(Some).ok_or_else(|| wrong(text));
    }
    let civil = trimmed.parse::<DateTime>().ok().and_then(utc);
    civil.map(Some).ok_or_else(|| wrong(text))
}

/// `[[CC]YY]MMDDhhmm[.ss]`, in UTC.
pub fn digits(text: &str) -> Result<Timestamp> {
    parse_digits(text).ok_or_else(|| Failure::usage(format!("'{text}' is not a time: write [[CC]YY]MMDDhhmm[.ss]")))
}

fn parse_digits(text: &str) -> Option<Timestamp> {
    let (main, second) = match text.split_once('.') {
        Some((main, second)) if second.len() == 2 => (main, second.parse::<i8>().ok()?),
        Some(_) => return None,
        None => (text, 0),
    };
    if !main.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match main.len() {
        8 => (jiff::Timestamp::now().to_zoned(TimeZone::UTC).year(), main),
        10 => {
            let short: i16 = main[..2].parse().ok()?;
            // As in POSIX.
            (short + if short < 69 { 2000 } else { 1900 }, &main[2..])
        }
        12 => (main[..4].parse().ok()?, &main[4..]),
        _ => return None,
    };
    let two = |at: usize| rest[at..at + 2].parse::<i8>().ok();
    utc(DateTime::new(year, two(0)?, two(2)?, two(4)?, two(6)?, second, 0).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2024-02-29 12:34:56 UTC.
    const NOW: Timestamp = Timestamp { seconds: 1_709_210_096, nanos: 500 };

    #[test]
    fn times() {
        let at = |seconds, nanos| Some(Timestamp { seconds, nanos });
        for (text, expected) in [
            ("@1700000000", at(1_700_000_000, 0)),
            ("@1700000000.25", at(1_700_000_000, 250_000_000)),
            ("@-1", at(-1, 0)),
            ("@-0.5", at(-1, 500_000_000)),
            ("2024-02-29", at(1_709_164_800, 0)),
            ("2024-02-29 12:34:56", at(1_709_210_096, 0)),
            ("2024-02-29T12:34:56Z", at(1_709_210_096, 0)),
            ("2024-02-29T13:34:56.5+01:00", at(1_709_210_096, 500_000_000)),
            ("now", None),
            ("yesterday", at(NOW.seconds - 86_400, 500)),
            ("-1day", at(NOW.seconds - 86_400, 500)),
            ("2 hours ago", at(NOW.seconds - 7200, 500)),
            ("+3 weeks", at(NOW.seconds + 21 * 86_400, 500)),
            // One year before the 29th of February.
            ("-1 year", at(1_677_587_696, 500)),
        ] {
            assert_eq!(date(text, NOW).unwrap(), expected, "{text}");
        }
        assert_eq!(date("@-9223372036854775808", NOW).unwrap(), at(i64::MIN, 0));
        assert_eq!(date("@-9223372036854775807.5", NOW).unwrap(), at(i64::MIN, 500_000_000));
        for bad in [
            "",
            "@",
            "@x",
            "@1.1234567890",
            "@-9223372036854775808.5",
            "@-9223372036854775809",
            "1 fortnight",
            "99999999 days",
            "2024-02-30",
            "2024-13-01",
        ] {
            assert!(date(bad, NOW).is_err(), "{bad}");
        }
        assert_eq!(Some(digits("202402291234.56").unwrap()), at(1_709_210_096, 0));
        assert_eq!(Some(digits("2402291234").unwrap()), at(1_709_210_040, 0));
        assert!(digits("02291234").is_ok() || digits("02281234").is_ok());
        for bad in ["", "2024", "20240229123x", "202402301234", "202402291234.5"] {
            assert!(digits(bad).is_err(), "{bad}");
        }
    }
}
