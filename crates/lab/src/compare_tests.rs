//! Tests of [`super`]: what is compared, what is refused, what is said.

use super::tests_support::trial;
use super::*;
use crate::result::TRIALS;

fn rounds(label: &str, seconds: &[f64]) -> Vec<Trial> {
    seconds.iter().zip(0..).map(|(s, round)| trial(label, round, *s)).collect()
}

fn write(dir: &Path, trials: &[Trial]) -> PathBuf {
    std::fs::create_dir_all(dir).unwrap();
    let text: String = trials.iter().map(|t| serde_json::to_string(t).unwrap() + "\n").collect();
    std::fs::write(dir.join(TRIALS), text).unwrap();
    dir.to_owned()
}

fn run(what: &[PathBuf], force: bool) -> Result<(String, Judgement), Error> {
    let mut out = Vec::new();
    let options = Options { what: what.to_vec(), force, ..Options::default() };
    let judgement = command(&options, &mut out)?;
    Ok((String::from_utf8(out).unwrap(), judgement))
}

const FAST: [f64; 4] = [1.0, 1.1, 0.9, 1.05];
const SLOW: [f64; 4] = [1.3, 1.4, 1.2, 1.33];

#[test]
fn the_command_line_decides_who_is_the_baseline() {
    let dir = tempfile::tempdir().unwrap();
    let result = write(dir.path(), &[rounds("engine:a", &SLOW), rounds("engine:b", &FAST)].concat());
    let (text, judgement) = run(std::slice::from_ref(&result), false).unwrap();
    assert!(text.contains("x engine:b\n+ engine:a\n"), "{text}");
    assert!(text.contains("worse: -"), "{text}");
    assert!(text.contains("(4 rounds, paired, p "), "{text}");
    assert!(text.contains("Ops work.ops_per_s"), "{text}");
    assert_eq!(judgement.regressions, ["small-files: engine:a"]);
    // The other way round it is an improvement.
    let a = PathBuf::from(format!("{}#engine:a", result.display()));
    let b = PathBuf::from(format!("{}#b", result.display()));
    let (text, judgement) = run(&[a, b], false).unwrap();
    assert!(text.contains("engine:b: better: +"), "{text}");
    assert!(text.contains("paired"), "{text}");
    assert_eq!(judgement, Judgement::default());
}

#[test]
fn failed_trials_never_enter() {
    let dir = tempfile::tempdir().unwrap();
    let mut trials = [rounds("engine:b", &FAST), rounds("engine:a", &FAST)].concat();
    trials[6].outcome = Outcome::Failed("e2fsck: \u{1b}[2J bitmap differs".into());
    trials[6].phases[0].seconds = 1e9;
    let (text, judgement) = run(&[write(dir.path(), &trials)], false).unwrap();
    assert!(
        text.contains("engine:a: 1 of 4 trials failed and are left out (round 2: e2fsck: \u{fffd}[2J bitmap differs)"),
        "{text}"
    );
    assert!(text.contains("(3 rounds, paired"), "{text}");
    assert_eq!(judgement, Judgement::default());
    for t in &mut trials {
        t.outcome = Outcome::Failed("no".into());
    }
    assert!(matches!(run(&[write(dir.path(), &trials)], false), Err(Error::Nothing { .. })));
}

#[test]
fn one_round_is_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let result = write(dir.path(), &[rounds("engine:b", &[1.0]), rounds("engine:a", &[9.0])].concat());
    let (text, judgement) = run(&[result], false).unwrap();
    assert!(text.contains("engine:a: no verdict"), "{text}");
    assert_eq!(judgement, Judgement::default());
}

#[test]
fn another_scale_is_refused_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let a = write(&dir.path().join("a"), &rounds("engine:a", &FAST));
    let mut other = rounds("engine:a", &SLOW);
    for t in &mut other {
        t.workload.scale = 1.0;
        t.workload.parameters.insert("count".into(), 3.into());
    }
    let b = write(&dir.path().join("b"), &other);
    let e = run(&[a.clone(), b.clone()], false).unwrap_err();
    assert!(e.is_usage());
    assert_eq!(
        e.to_string(),
        "not comparable (small-files): scale 0.5 and 1; count none and 3. --force compares anyway"
    );
    let (text, _) = run(&[a, b], true).unwrap();
    assert!(text.contains("note: NOT THE SAME WORK, COMPARED BY FORCE: scale 0.5 and 1"), "{text}");
}

#[test]
fn another_recording_is_refused_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let a = write(&dir.path().join("a"), &rounds("engine:a", &FAST));
    for (recorded, said) in [(Some("latency,locks".to_owned()), "latency,locks"), (None, "unknown")] {
        let mut other = rounds("engine:a", &SLOW);
        other.iter_mut().for_each(|t| t.recorded = recorded.clone());
        let b = write(&dir.path().join("b"), &other);
        let e = run(&[a.clone(), b.clone()], false).unwrap_err();
        assert!(e.is_usage() && e.to_string().contains(&format!("recorded latency and {said}")), "{e}");
        assert!(run(&[a.clone(), b], true).unwrap().0.contains("BY FORCE: recorded latency"));
    }
}

#[test]
fn what_slows_one_side_down_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let mut trials = [rounds("engine:b", &FAST), rounds("engine:a", &FAST)].concat();
    trials[4..].iter_mut().for_each(|t| t.contestant.kind = "fuse2fs".into());
    trials[5].flaws.push("files_left is 3, the workload leaves 0".into());
    let result = write(dir.path(), &trials);
    let (text, _) = run(std::slice::from_ref(&result), false).unwrap();
    assert!(!text.contains("recorded:"), "{text}");
    assert!(
        text.contains("engine:a: 1 of 4 trials are FLAWED") && text.contains("(round 1: files_left is 3"),
        "{text}"
    );
    trials.iter_mut().for_each(|t| t.recorded = Some("latency,locks,events".into()));
    let (text, _) = run(&[write(dir.path(), &trials)], false).unwrap();
    assert!(text.contains("slows down engine by a few per cent, and not fuse2fs"), "{text}");
}

#[test]
fn unknown_figures_get_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let result = write(dir.path(), &[rounds("engine:b", &FAST), rounds("engine:a", &FAST)].concat());
    let mut options = Options { what: vec![result], figures: vec!["work.second".into()], ..Options::default() };
    let mut out = Vec::new();
    let e = command(&options, &mut out).unwrap_err();
    assert!(e.is_usage() && out.is_empty(), "nothing is printed before it");
    assert!(e.to_string().starts_with("no figure \"work.second\"; there are: work.ops_per_s, work.seconds"), "{e}");
    options.figures = vec!["work.seconds".into()];
    command(&options, &mut out).unwrap();
}

#[test]
fn two_runs_are_not_paired() {
    let dir = tempfile::tempdir().unwrap();
    let a = write(&dir.path().join("before"), &rounds("engine:a", &FAST));
    let b = write(&dir.path().join("after"), &rounds("engine:a", &SLOW));
    let (text, judgement) = run(&[a.clone(), b], false).unwrap();
    assert!(text.contains("x before#engine:a\n+ after#engine:a\n"), "{text}");
    assert!(text.contains("(4 and 4, not paired"), "{text}");
    assert!(text.contains("note: from different runs"), "{text}");
    assert_eq!(judgement.regressions, ["small-files: after#engine:a"]);
    // With several contestants each, label by label.
    let c = write(&dir.path().join("c"), &[rounds("engine:a", &SLOW), rounds("engine:b", &SLOW)].concat());
    let (text, judgement) = run(&[a, c], false).unwrap();
    assert!(text.contains("note: engine:b: not in the first result, left out"), "{text}");
    assert_eq!(judgement.regressions, ["small-files: c#engine:a"]);
}

#[test]
fn bad_files() {
    let dir = tempfile::tempdir().unwrap();
    let result = write(dir.path(), &[rounds("engine:b", &FAST), rounds("engine:a", &FAST)].concat());
    let file = result.join(TRIALS);
    let text = std::fs::read_to_string(&file).unwrap();
    // Cut off in the last line: usable.
    std::fs::write(&file, &text[..text.len() - 40]).unwrap();
    let (out, _) = run(std::slice::from_ref(&result), false).unwrap();
    assert!(out.contains("the last line was cut off") && out.contains("(3 rounds, paired"), "{out}");
    // Anywhere else: an error with its line.
    std::fs::write(&file, format!("{}\n{text}", &text[..50])).unwrap();
    assert!(matches!(run(std::slice::from_ref(&result), false), Err(Error::Line { line: 1, .. })));
    std::fs::write(&file, text.replace("\"schema\":1", "\"schema\":99")).unwrap();
    assert!(matches!(run(std::slice::from_ref(&result), false), Err(Error::Schema { line: 1, found: 99, .. })));
    let (out, _) = run(std::slice::from_ref(&result), true).unwrap();
    assert!(out.contains("BY FORCE: schema 99 and 1"), "{out}");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(run(std::slice::from_ref(&result), false), Err(Error::Empty { .. })));
    std::fs::write(&file, [0xff, 0xfe, b'\n']).unwrap();
    assert!(matches!(run(&[result], false), Err(Error::Line { .. })));
    assert!(matches!(run(&["/nonexistent/result".into()], false), Err(Error::Read { .. })));
}

#[test]
fn unknown_contestants_get_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let result = write(dir.path(), &[rounds("engine:b", &FAST), rounds("engine:a", &FAST)].concat());
    for label in ["xfs", "engine"] {
        let e = run(&[format!("{}#{label}", result.display()).into()], false).unwrap_err();
        assert!(e.to_string().contains("there are: engine:b, engine:a"), "{e}");
    }
    let options = Options { what: vec![result], baseline: Some("engine:a".into()), ..Options::default() };
    let mut out = Vec::new();
    command(&options, &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("x engine:a\n+ engine:b\n"));
}

#[test]
fn figures_that_one_lacks_are_blank() {
    let dir = tempfile::tempdir().unwrap();
    let mut trials = [rounds("engine:b", &FAST), rounds("engine:a", &FAST)].concat();
    for t in &mut trials[4..] {
        t.measures.insert("device_writes".into(), 10.0);
        t.phases[0].seconds *= 1.0;
    }
    let (text, _) = run(&[write(dir.path(), &trials)], false).unwrap();
    let line = text.lines().find(|l| l.starts_with("Ops device_writes")).unwrap();
    assert!(line.ends_with(" 10.00") && !line.contains('%'), "{line}");
}

/// A phase of no time has no rate; what is not a number never reaches the statistics.
#[test]
fn rates_of_nothing() {
    let groups = groups_of([rounds("engine:b", &[0.0, 0.0]), rounds("engine:a", &[1.0, 1.0])].concat()).unwrap();
    assert_eq!(groups[0].summary(0, "work.ops_per_s"), None);
    assert_eq!(groups[0].comparison(1, "work.ops_per_s"), None);
    assert_eq!(judge(&groups), Judgement::default());
}

#[test]
fn policies_follow_the_command_line() {
    let mut trials = Vec::new();
    for (value, round) in [("rr", 0), ("lru", 0), ("rr", 1), ("lru", 1)] {
        let mut t = trial(&format!("engine:e,es_policy={value}"), round, 1.0);
        t.environment.command = ["extant", "lab", "run", "w", "--target", "engine:e", "--policy", "es_policy=lru,rr"]
            .map(String::from)
            .to_vec();
        t.contestant.policies.insert("es_policy".into(), value.into());
        trials.push(t);
    }
    assert_eq!(groups_of(trials).unwrap()[0].labels(), ["engine:e,es_policy=lru", "engine:e,es_policy=rr"]);
}
