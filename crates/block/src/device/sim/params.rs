//! The constants of the models: files of `name = value # source`, compiled in.
//!
//! Every line has its source. `hdd-2007` is the disk in one mail of 2007, with the host's readahead. Constants without
//! a data sheet were fitted to rows 2 to 4 of its table (`device/tests/calibration.rs` computes them).

use std::collections::BTreeMap;

use super::disk::Disk;
use super::parallel::Parallel;

/// The name and the file of each model.
const FILES: [(&str, &str); 4] = [
    ("hdd-2007", include_str!("params/hdd-2007.toml")),
    ("hdd", include_str!("params/hdd.toml")),
    ("flash", include_str!("params/flash.toml")),
    ("net-5ms", include_str!("params/net-5ms.toml")),
];

/// A kind of device with its constants.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    name: &'static str,
    summary: &'static str,
    capacity: u64,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Disk(Disk),
    Parallel(Parallel),
}

impl DeviceModel {
    /// The names of all models.
    pub fn names() -> [&'static str; FILES.len()] {
        FILES.map(|(name, _)| name)
    }

    /// The model with this name.
    ///
    /// # Errors
    /// There is no such model; the message lists the names.
    pub fn named(name: &str) -> Result<DeviceModel, String> {
        let Some((name, text)) = FILES.into_iter().find(|(known, _)| *known == name) else {
            return Err(format!("no device is called '{name}'; known are: {}", DeviceModel::names().join(", ")));
        };
        DeviceModel::parse(name, text).map_err(|e| format!("{name}.toml: {e}"))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The device in one line, the first of its file.
    pub fn summary(&self) -> &'static str {
        self.summary
    }

    /// The size of such a device in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    fn parse(name: &'static str, text: &'static str) -> Result<DeviceModel, String> {
        let summary = text.lines().next().and_then(|line| line.strip_prefix("# ")).ok_or("line 1: no summary")?;
        let mut values = Values(BTreeMap::new());
        let mut is_disk = None;
        for (line, at) in text.lines().zip(1..) {
            let (entry, source) = line.split_once('#').unwrap_or((line, ""));
            if entry.trim().is_empty() {
                continue;
            }
            if source.trim().is_empty() {
                return Err(format!("line {at}: no source behind '#'"));
            }
            let (key, value) = entry.split_once('=').ok_or_else(|| format!("line {at}: not NAME = VALUE"))?;
            match (key.trim(), value.trim()) {
                ("kind", "\"disk\"") => is_disk = Some(true),
                ("kind", "\"parallel\"") => is_disk = Some(false),
                (key, value) => {
                    let number = value.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
                    let number = number.ok_or_else(|| format!("line {at}: '{value}' is not a number"))?;
                    if values.0.insert(key, number).is_some() {
                        return Err(format!("line {at}: {key} is there twice"));
                    }
                }
            }
        }
        let capacity = (values.take("capacity_gib")? * f64::from(1 << 30)) as u64;
        let kind = match is_disk {
            Some(true) => Kind::Disk(Disk::from_values(&mut values)?),
            Some(false) => Kind::Parallel(Parallel::from_values(&mut values)?),
            None => return Err("kind is neither \"disk\" nor \"parallel\"".into()),
        };
        match values.0.keys().next() {
            Some(unknown) => Err(format!("{unknown} is not known")),
            None => Ok(DeviceModel { name, summary, capacity, kind }),
        }
    }
}

/// The numbers in a file that have not been taken yet.
pub(super) struct Values<'a>(BTreeMap<&'a str, f64>);

impl Values<'_> {
    pub(super) fn take(&mut self, name: &str) -> Result<f64, String> {
        self.0.remove(name).ok_or_else(|| format!("{name} is missing"))
    }

    /// The same as [`Values::take`], for a divisor.
    pub(super) fn take_positive(&mut self, name: &str) -> Result<f64, String> {
        self.take(name).and_then(|n| if n > 0.0 { Ok(n) } else { Err(format!("{name} is not above 0")) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_constants_is_complete_and_an_unknown_name_lists_the_known_ones() {
        for name in DeviceModel::names() {
            let model = DeviceModel::named(name).expect("whole");
            assert!(model.name() == name && model.capacity() >= 1 << 30, "{name}");
        }
        let e = DeviceModel::named("hdd-2008").expect_err("unknown");
        assert!(e.contains("hdd-2008") && e.contains("hdd-2007, hdd, flash, net-5ms"), "{e}");
    }

    #[test]
    fn an_invalid_file_is_refused_with_the_wrong_line() {
        let good = FILES[2].1;
        for (text, said) in [
            (good.replace("mb_per_s", "mb/s"), "is missing"),
            (good.replace("# requests", "// requests"), "line 2: no source"),
            (good.replace("# a solid", "a solid"), "line 1: no summary"),
            (format!("{good}\nlatency_us 5 # x"), "not NAME = VALUE"),
            (format!("{good}\nread_latency_us = 5 # x"), "twice"),
            (format!("{good}\ncolour = 5 # x"), "colour is not known"),
            (format!("{good}\ncolour = red # x"), "not a number"),
            (good.replace("\"parallel\"", "\"tape\""), "not a number"),
        ] {
            let e = DeviceModel::parse("flash", text.leak()).expect_err(said);
            assert!(e.contains(said), "{e}");
        }
    }
}
