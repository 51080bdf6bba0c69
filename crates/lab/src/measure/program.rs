//! Figures in the output of a program: fio's JSON, and lines with a name and a number.
//!
//! Main items: [`figures`], [`Said`]. The output may mix both with other text, which is skipped: fio prints notes
//! before its JSON, and a script may print anything. Figures are named `fio.JOB.DIRECTION.FIGURE` and `program.NAME`;
//! `figure` derives unit and direction from these names.
//!
//! It runs nothing and judges nothing.
//!
//! # Locking
//! None.

use serde_json::Value;

use super::Figures;

/// The maximum number of figures of one trial: a program that prints more prints data.
const FIGURES_MAX: usize = 2000;
/// How many places are tried at which JSON may begin. Each costs up to the length of the output.
const OBJECTS_MAX: usize = 64;
/// The maximum length of a name, in characters.
const NAME_MAX: usize = 64;
/// Directions of fio's I/O, as it names them.
const DIRECTIONS: [&str; 3] = ["read", "write", "trim"];
/// Percentiles that become figures: as fio writes them, the suffix of the figure's name, and the number of samples that
/// it requires.
const PERCENTILES: [(&str, &str, f64); 4] =
    [("50.000000", "p50", 1.0), ("90.000000", "p90", 10.0), ("99.000000", "p99", 100.0), ("99.900000", "p999", 1000.0)];

/// The figures in a program's output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// The figures, by name.
    pub figures: Figures,
    /// Figures that could not be read, with the reason.
    pub flaws: Vec<String>,
}

/// Reads an output.
pub fn figures(output: &str) -> Said {
    let mut said = Said::default();
    let mut lines = String::new();
    let (mut rest, mut tried, mut found) = (output, 0, false);
    while let Some((before, object, after)) = next_object(rest, &mut tried) {
        lines.push_str(before);
        lines.push('\n');
        if let Some(jobs) = object.get("jobs").and_then(Value::as_array)
            && object.get("fio version").is_some()
        {
            found = true;
            fio(jobs, &mut said.figures);
        }
        rest = after;
    }
    lines.push_str(rest);
    if !found && output.contains("\"fio version\"") {
        said.flaws.push("fio's JSON in the output is incomplete: its figures are missing".into());
    }
    for line in lines.lines() {
        if let Some((name, value)) = named(line) {
            said.figures.insert(format!("program.{name}"), value);
        }
    }
    let more = said.figures.len().saturating_sub(FIGURES_MAX);
    if more > 0 {
        said.figures = std::mem::take(&mut said.figures).into_iter().take(FIGURES_MAX).collect();
        said.flaws.push(format!("{more} figures of the output are left out: a trial has {FIGURES_MAX} at most"));
    }
    said
}

/// The last character boundary of `text` at or before `at`.
pub fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// The next JSON object at the start of a line: the text before it, the object, the text after it.
fn next_object<'a>(text: &'a str, tried: &mut usize) -> Option<(&'a str, Value, &'a str)> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with('{') && *tried < OBJECTS_MAX {
            *tried += 1;
            let mut objects = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
            if let Some(Ok(object)) = objects.next() {
                return Some((&text[..at], object, &text[at + objects.byte_offset()..]));
            }
        }
        at += line.len();
    }
    None
}

/// Parses a line that consists of a name and a finite number.
fn named(line: &str) -> Option<(&str, f64)> {
    let mut words = line.split_whitespace();
    let (name, value) = (words.next()?, words.next()?);
    let name = name.trim_end_matches([':', '=']);
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-/".contains(c));
    if words.next().is_some() || !begins || !letters || name.len() > NAME_MAX {
        return None;
    }
    // "inf" and "nan" are words, not figures.
    let number = value.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    value.parse().ok().filter(|v: &f64| number && v.is_finite()).map(|v| (name, v))
}

/// The figures of fio's jobs. Jobs with the same name are numbered from the second on, because percentiles cannot be
/// added up.
fn fio(jobs: &[Value], figures: &mut Figures) {
    let mut names: Vec<String> = Vec::new();
    for job in jobs {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
        let given = job.get("jobname").and_then(Value::as_str).unwrap_or("job");
        let base: String = given.chars().take(NAME_MAX).map(plain).collect();
        let mut name = base.clone();
        let mut number = 1;
        while names.contains(&name) {
            number += 1;
            name = format!("{base}-{number}");
        }
        for direction in DIRECTIONS {
            if let Some(io) = job.get(direction).filter(|io| number_of(io, "total_ios") > 0.0) {
                let mut put = |figure: &str, value: f64| {
                    figures.insert(format!("fio.{name}.{direction}.{figure}"), value);
                };
                put("iops", number_of(io, "iops"));
                // bw is in KiB per second in every version; bw_bytes was added later.
                put("mib_per_s", number_of(io, "bw") / 1024.0);
                put("total_ios", number_of(io, "total_ios"));
                latency(io, "clat", &mut put);
            }
        }
        if let Some(sync) = job.get("sync").filter(|s| number_of(s, "total_ios") > 0.0) {
            latency(sync, "lat", &mut |figure, value| {
                figures.insert(format!("fio.{name}.sync.{figure}"), value);
            });
        }
        names.push(name);
    }
}

/// Completion latency in nanoseconds: `clat_ns` since fio 3, before that `clat` in microseconds.
fn latency(io: &Value, kind: &str, put: &mut dyn FnMut(&str, f64)) {
    let Some((table, scale)) = io.get(format!("{kind}_ns")).map(|t| (t, 1.0)).or_else(|| Some((io.get(kind)?, 1000.0)))
    else {
        return;
    };
    // Versions before 3.13 do not give the number of samples.
    let samples = table.get("N").and_then(Value::as_f64).unwrap_or_else(|| number_of(io, "total_ios"));
    for (field, end) in [("mean", "mean"), ("max", "max")] {
        if let Some(value) = table.get(field).and_then(Value::as_f64) {
            put(&format!("{kind}_{end}_ns"), value * scale);
        }
    }
    for (field, end, least) in PERCENTILES {
        let value = table.get("percentile").and_then(|p| p.get(field)).and_then(Value::as_f64);
        if let Some(value) = value.filter(|_| samples >= least) {
            put(&format!("{kind}_{end}_ns"), value * scale);
        }
    }
}

fn number_of(value: &Value, name: &str) -> f64 {
    value.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIO: &str = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
{
  "fio version" : "fio-3.33",
  "jobs" : [
    { "jobname" : "a b", "read" : { "total_ios" : 0, "iops" : 0.0 },
      "write" : { "total_ios" : 500, "iops" : 1234.5, "bw" : 2048,
        "clat_ns" : { "max" : 90, "mean" : 12.5, "N" : 500, "percentile" : { "50.000000" : 10, "99.000000" : 80, "99.900000" : 90 } } },
      "sync" : { "total_ios" : 7, "lat_ns" : { "max" : 5, "mean" : 3.0, "N" : 7, "percentile" : { "99.000000" : 5 } } } },
    { "jobname" : "a b", "read" : { "total_ios" : 9, "iops" : 1.0, "bw" : 1,
        "clat" : { "max" : 2, "mean" : 1.0, "percentile" : { "50.000000" : 1 } } } }
  ]
}
hits 17
"#;

    #[test]
    fn json_of_fio_is_found_between_other_lines() {
        let said = figures(FIO);
        let of = |name: &str| said.figures.get(name).copied();
        assert_eq!(of("fio.a_b.write.iops"), Some(1234.5));
        assert_eq!(of("fio.a_b.write.mib_per_s"), Some(2.0));
        assert_eq!(of("fio.a_b.write.clat_p99_ns"), Some(80.0));
        assert_eq!(of("fio.a_b.write.clat_p999_ns"), None, "500 samples have no 99.9th percentile");
        assert_eq!(of("fio.a_b.read.iops"), None, "no reads");
        assert_eq!(of("fio.a_b.sync.lat_mean_ns"), Some(3.0));
        assert_eq!(of("fio.a_b-2.read.clat_max_ns"), Some(2000.0), "microseconds before fio 3");
        assert_eq!(of("program.hits"), Some(17.0));
        assert_eq!(said.flaws, Vec::<String>::new());
    }

    #[test]
    fn incomplete_json_of_fio_is_a_flaw() {
        let said = figures(&FIO[..FIO.len() / 2]);
        assert_eq!(said.figures.len(), 0, "{:?}", said.figures);
        assert_eq!(said.flaws.len(), 1);
    }

    #[test]
    fn lines_of_a_name_and_a_number_are_figures() {
        let said =
            figures("rate_per_s 12.5\nlatency_us: -3\nx= 1e3\nthree words 3\n7 7\nnan nan\ninf inf\nx/y 2\nx.y\n");
        let all: Vec<_> = said.figures.into_iter().collect();
        let is =
            [("program.latency_us", -3.0), ("program.rate_per_s", 12.5), ("program.x", 1000.0), ("program.x/y", 2.0)];
        assert_eq!(all, is.map(|(n, v)| (n.to_owned(), v)));
    }

    #[test]
    fn output_that_is_no_figure_ends() {
        let hostile = "{\n".repeat(100_000);
        assert_eq!(figures(&hostile), Said::default());
        let many: String = (0..5000).map(|i| format!("n{i} 1\n")).collect();
        let said = figures(&many);
        assert_eq!((said.figures.len(), said.flaws.len()), (FIGURES_MAX, 1));
    }
}
