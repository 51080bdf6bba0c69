//! Parsing and formatting of sizes in bytes.
//!
//! # Locking
//! None.

/// Parses `4096`, `64K`, `1M`, `2G`, `1T` (powers of 1024; `KiB` and `KB` mean the same as `K`).
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size (bytes, or with K, M, G or T)");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large"))
}

/// Formats a size as `1.5 GiB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = ((63 - bytes.leading_zeros()) / 10) as usize;
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    let name = UNITS[unit - 1];
    if value.fract() == 0.0 { format!("{value:.0} {name}") } else { format!("{value:.1} {name}") }
}

/// Formats a size as `ls -h` and `du -h` do: `4.0K`, `12M`. Rounds up, so that no size looks smaller than it is.
pub fn short(bytes: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut unit = ((63 - bytes.leading_zeros()) / 10) as usize;
    loop {
        let one = 1u128 << (10 * unit);
        let tenths = (u128::from(bytes) * 10).div_ceil(one);
        let whole = u128::from(bytes).div_ceil(one);
        if tenths < 100 {
            return format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit - 1]);
        }
        if whole < 1024 || unit == UNITS.len() {
            return format!("{whole}{}", UNITS[unit - 1]);
        }
        unit += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_printed() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64K"), Ok(65536));
        assert_eq!(parse("2GiB"), Ok(2 << 30));
        for bad in ["", "K", "-1", "1.5G", "1X", "99999999999999999999", "99999999T", "1 K"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(1 << 30), "1 GiB");
        assert_eq!(human(u64::MAX), "16 EiB");
        // The expected texts are the output of `numfmt --to=iec --round=up`.
        for (bytes, text) in [
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_137, "9.9K"),
            (10_138, "10K"),
            (1_047_553, "1.0M"),
            (52_428_800, "50M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(short(bytes), text, "{bytes}");
        }
    }
}
