//! Tests of [`super`]: the page needs no other file, and no result can inject markup into it.

use proptest::prelude::*;

use super::*;
use crate::compare::groups_of;
use crate::compare::tests_support::trial;
use crate::measure::latency::records;
use crate::vfs::{Histograms, Op};

const NASTY: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u{202e}\u{1b}[31m";

fn result() -> Vec<Trial> {
    let mut all = Vec::new();
    for round in 0..5 {
        for (label, base) in [("engine:a", 1.0), ("kernel:b", 1.3)] {
            let mut t = trial(label, round, base + f64::from(round) * 0.02);
            let mut h = Histograms::default();
            for k in 1..2000u64 {
                h.record(Op::Fsync, k * 1000 * u64::from(round + 1));
            }
            t.latency = records(&h).unwrap();
            t.groups = [(0, 10), (7, 500), (130, 1)].into();
            t.locks = vec![LockRow {
                name: "allocator".into(),
                acquired: 100,
                contended: 2,
                avg_wait_ns: 50.0,
                total_wait_ns: 100,
                max_wait_ns: 80,
                min_wait_ns: 20,
            }];
            all.push(t);
        }
    }
    all
}

/// The markup of the page must balance. This is a crude check that finds a forgotten end tag.
fn balanced(page: &str) {
    for tag in
        ["section", "div", "table", "thead", "tbody", "figure", "details", "svg", "pre", "p", "h3", "code", "main"]
    {
        let open = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn the_page_has_everything_and_stands_alone() {
    let page = html("result", &groups_of(result()).unwrap());
    balanced(&page);
    assert_eq!(page.matches("<svg").count(), 3, "boxes, fsync's curve, the map");
    for there in [
        "worse: ",
        "work.ops_per_s",
        "allocator",
        "Configuration",
        "99.9%",
        "prefers-color-scheme",
        "var(--s1)",
        "var(--ink)",
        // Every figure has its unit, and each detail is named.
        "work.ops_per_s [1/s]",
        "<th>work.seconds <small>[s]</small></th>",
        "<th>groups_used <small>[count]</small></th>",
        "standard deviation 2",
        "% of the mean)",
        "started <small>[s since 1970]</small>",
    ] {
        assert!(page.contains(there), "{there}");
    }
    for absent in ["<script", "http://", "https://", "url(", "src=", "@import", "#0102", "NaN", "±"] {
        assert!(!page.replace("http://www.w3.org/2000/svg", "").contains(absent), "{absent}");
    }
}

#[test]
fn hostile_strings_stay_text() {
    let mut trials = result();
    for t in &mut trials {
        t.workload.name = NASTY.into();
        t.workload.parameters.insert(NASTY.into(), NASTY.into());
        t.contestant.label.push_str(NASTY);
        t.contestant.kind = NASTY.into();
        t.contestant.options = NASTY.into();
        t.contestant.policies.insert(NASTY.into(), NASTY.into());
        t.environment.kernel = NASTY.into();
        t.environment.command.push(NASTY.into());
        t.environment.features.push(NASTY.into());
        t.locks[0].name = NASTY.into();
        t.measures.insert(NASTY.into(), 1.0);
        t.phases[0].name = NASTY.into();
        t.workload.headline = NASTY.into();
        let l = t.latency["fsync"].clone();
        t.latency.insert(NASTY.into(), l);
    }
    trials[3].outcome = Outcome::Failed(NASTY.into());
    let page = html(NASTY, &groups_of(trials).unwrap());
    balanced(&page);
    assert!(
        !page.contains("<script") && !page.contains("<img") && !page.contains('\u{1b}') && !page.contains('\u{202e}')
    );
}

/// Cells whose differences are shown only individually, and not as a family, have no colour.
#[test]
fn colours_are_those_of_the_whole_table() {
    let mut trials = result();
    for t in trials.iter_mut() {
        // A single test shows it at p = 0.02.
        let more =
            [0.01, 0.05, 0.02, 0.04, 0.06][t.round as usize] * f64::from(u8::from(t.contestant.label == "kernel:b"));
        t.measures.insert("by_chance".into(), 1.0 + more);
    }
    let groups = groups_of(trials).unwrap();
    let c = groups[0].comparison(1, "by_chance").unwrap();
    assert_eq!((c.verdict, c.p > 0.005), (Verdict::Worse, true));
    let page = html("result", &groups);
    let row = |name: &str| {
        let at = page.find(&format!("<th>{name} <small>")).unwrap();
        page[at..].split("</tr>").next().unwrap().to_owned()
    };
    assert!(!row("by_chance").contains("class="), "{}", row("by_chance"));
    assert!(row("work.seconds").contains("class=\"bad\""), "{}", row("work.seconds"));
    assert!(page.contains("<th>latency.fsync.p999_ns</th>"), "1999 samples a trial have one");
}

/// A record that is damaged, or empty, loses only its own curve.
#[test]
fn damaged_histograms() {
    let mut trials = result();
    for t in &mut trials {
        t.latency.get_mut("fsync").unwrap().histogram = "AAAA%%%".into();
        t.groups.insert(u32::MAX, u64::MAX);
        t.environment.image_bytes = u64::MAX;
        t.phases[0].seconds = 0.0;
    }
    let page = html("result", &groups_of(trials).unwrap());
    balanced(&page);
}

#[test]
fn written_beside_the_trials() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = result().iter().map(|t| serde_json::to_string(t).unwrap() + "\n").collect();
    std::fs::write(dir.path().join(TRIALS), text).unwrap();
    let path = command(dir.path(), None).unwrap();
    assert_eq!(path, dir.path().join(REPORT));
    // The page has the directory's name, however its path is written.
    let name = dir.path().file_name().unwrap().to_string_lossy().into_owned();
    let spelt = dir.path().join("..").join(&name).join(".");
    let page = std::fs::read_to_string(command(&spelt, None).unwrap()).unwrap();
    assert!(page.contains(&format!("<p class=\"dim\">Result <code>{name}</code>")), "{name}");
    assert!(std::fs::read_to_string(path).unwrap().ends_with("</html>\n"));
    assert!(command(dir.path(), Some(&dir.path().join(TRIALS))).is_err());
    assert!(matches!(command(&dir.path().join("nothing"), None), Err(Error::Read { .. })));
}

/// A change to a file before it is read.
#[derive(Clone, Debug)]
enum Damage {
    Cut(usize),
    Byte(usize, u8),
    Twice(usize),
    /// The number at this position among all numbers becomes this one.
    Number(usize, &'static str),
}

fn damage() -> impl Strategy<Value = Damage> {
    const NUMBERS: &[&str] =
        &["0", "-1", "1e308", "-1e308", "5e-324", "1e999", "18446744073709551615", "4294967295", "null", "\"\""];
    prop_oneof![
        any::<usize>().prop_map(Damage::Cut),
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        any::<usize>().prop_map(Damage::Twice),
        (any::<usize>(), proptest::sample::select(NUMBERS)).prop_map(|(at, n)| Damage::Number(at, n)),
        (any::<usize>(), proptest::sample::select(NUMBERS)).prop_map(|(at, n)| Damage::Number(at, n)),
    ]
}

fn damaged(mut text: Vec<u8>, damage: &Damage) -> Vec<u8> {
    let length = text.len().max(1);
    match damage {
        Damage::Cut(at) => text.truncate(at % length),
        Damage::Byte(at, byte) => {
            if let Some(b) = text.get_mut(at % length) {
                *b = *byte;
            }
        }
        Damage::Twice(at) => {
            let lines: Vec<Vec<u8>> = text.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
            text.extend(lines.get(at % lines.len().max(1)).into_iter().flatten());
        }
        Damage::Number(at, new) => {
            let starts: Vec<usize> =
                (1..text.len()).filter(|&i| text[i].is_ascii_digit() && matches!(text[i - 1], b':' | b',')).collect();
            if let Some(&start) = starts.get(at % starts.len().max(1)) {
                let end = start + text[start..].iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count();
                text.splice(start..end, new.bytes());
            }
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A file with any content is compared, reported and judged, or is refused with a message that begins with its
    /// name.
    #[test]
    fn damaged_files_get_an_answer(all in proptest::collection::vec(damage(), 1..4)) {
        let dir = tempfile::tempdir().unwrap();
        let mut small = result();
        small.retain(|t| t.round < 3);
        let text: String = small.iter().map(|t| serde_json::to_string(t).unwrap() + "\n").collect();
        let text = all.iter().fold(text.into_bytes(), damaged);
        std::fs::write(dir.path().join(TRIALS), text).unwrap();
        match compare::open(&[vec![dir.path().to_owned()]], None, true) {
            Ok(groups) => {
                balanced(&html("result", &groups));
                let findings = crate::regression::judge(&groups);
                prop_assert!(findings.iter().all(|f| !f.to_string().contains("NaN")));
                let options = compare::Options { what: vec![dir.path().to_owned()], force: true, ..Default::default() };
                let mut out = Vec::new();
                let _ = compare::command(&options, &mut out);
                prop_assert!(!String::from_utf8(out).unwrap().contains("NaN"));
            }
            Err(e) => {
                let text = e.to_string();
                let place = dir.path().to_string_lossy().into_owned();
                prop_assert!(text.starts_with(&place) || text.starts_with("nothing to compare: "), "{}", text);
            }
        }
    }
}
