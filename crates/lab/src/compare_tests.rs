//! Tests of [`super`]: comparisons, refusals and messages.

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
fn the_first_contestant_of_the_command_line_is_the_baseline() {
    let dir = tempfile::tempdir().unwrap();
    let result = write(dir.path(), &[rounds("engine:a", &SLOW), rounds("engine:b", &FAST)].concat());
    let (text, judgement) = run(std::slice::from_ref(&result), false).unwrap();
    assert!(text.contains("x engine:b\n+ engine:a\n"), "{text}");
    assert!(text.contains("worse: -"), "{text}");
    assert!(text.contains("(4 rounds, paired, p "), "{text}");
    assert!(text.contains("Ops work.ops_per_s"), "{text}");
    assert_eq!(judgement.regressions, ["small-files: engine:a"]);
    // In the other direction it is an improvement.
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

/// Experiments keep long results compressed.
#[test]
fn compressed_trials_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let result = write(dir.path(), &[rounds("engine:b", &FAST), rounds("engine:a", &FAST)].concat());
    let (plain, _) = run(std::slice::from_ref(&result), false).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(&std::fs::read(result.join(TRIALS)).unwrap()).unwrap();
    let kept = result.join(format!("{TRIALS}.gz"));
    std::fs::write(&kept, packed.finish().unwrap()).unwrap();
    std::fs::remove_file(result.join(TRIALS)).unwrap();
    assert_eq!(run(std::slice::from_ref(&result), false).unwrap().0, plain, "the directory");
    assert!(run(std::slice::from_ref(&kept), false).is_ok(), "the file");
    std::fs::write(&kept, b"not compressed").unwrap();
    let e = run(&[result], false).unwrap_err().to_string();
    assert!(e.starts_with(&kept.display().to_string()), "{e}");
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
    assert!(text.contains("note: DIFFERENT WORK, compared only because of --force: scale 0.5 and 1"), "{text}");
}

#[test]
fn another_list_of_operations_or_limit_of_memory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let result = |name: &str, identity: &[(&str, &str)]| {
        let mut trials = rounds("engine:a", &FAST);
        for t in &mut trials {
            t.identity = Some(identity.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect());
        }
        write(&dir.path().join(name), &trials)
    };
    let a = result("a", &[("operations (SHA-256)", "1234"), ("program", "one")]);
    let b = result("b", &[("operations (SHA-256)", "5678"), ("program", "one")]);
    let c = result("c", &[("operations (SHA-256)", "1234"), ("memory", "64"), ("program", "one")]);
    let d = result("d", &[("operations (SHA-256)", "1234"), ("program", "two")]);
    let e = run(&[a.clone(), b], false).unwrap_err().to_string();
    assert!(e.contains("operations (SHA-256) 1234 and 5678"), "{e}");
    let e = run(&[a.clone(), c], false).unwrap_err().to_string();
    assert!(e.contains("memory none and 64"), "{e}");
    run(&[a, d], false).expect("builds may differ");
}

#[test]
fn a_headline_that_waits_is_not_compared_with_one_that_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let result = |name: &str, workload: &str, fsync: u64, identified: bool| {
        let mut trials = rounds("engine:a", &FAST);
        for t in &mut trials {
            t.workload.name = workload.to_owned();
            t.workload.parameters.insert("fsync".into(), fsync.into());
            t.identity = identified.then(Default::default);
        }
        write(&dir.path().join(name), &trials)
    };
    for (workload, fsync, alike) in
        [("kernel-tree", 1, false), ("small-files", 0, false), ("small-files", 1, true), ("untar", 1, true)]
    {
        let name = |side: &str| format!("{workload}-{fsync}-{side}");
        let both = [result(&name("a"), workload, fsync, false), result(&name("b"), workload, fsync, true)];
        match run(&both, false) {
            Ok(_) => assert!(alike, "{workload}, fsync={fsync}"),
            Err(e) => assert!(!alike && e.to_string().contains("until the work was durable, and without that"), "{e}"),
        }
    }
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
        assert!(run(&[a.clone(), b], true).unwrap().0.contains("only because of --force: recorded latency"));
    }
}

#[test]
fn a_note_names_the_side_that_recording_slows_down() {
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

/// For two runs, however different: the difference and its interval, but no "better" or "worse", and no exit status 3.
#[test]
fn two_runs_get_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let a = write(&dir.path().join("before"), &rounds("engine:a", &FAST));
    let b = write(&dir.path().join("after"), &rounds("engine:a", &SLOW));
    let (text, judgement) = run(&[a.clone(), b], false).unwrap();
    assert!(text.contains("x before#engine:a\n+ after#engine:a\n"), "{text}");
    assert!(text.contains("+ after#engine:a: no verdict: -22."), "{text}");
    assert!(text.contains("] at 95% confidence (4 and 4 trials, as if every run were like these)"), "{text}");
    assert!(text.contains("note: after#engine:a: from other runs than the baseline (1 and 1)"), "{text}");
    assert!(!text.contains("worse") && !text.contains("better"), "{text}");
    assert_eq!(judgement, Judgement::default());
    // With several contestants each, compared label by label.
    let c = write(&dir.path().join("c"), &[rounds("engine:a", &SLOW), rounds("engine:b", &SLOW)].concat());
    let (text, judgement) = run(&[a, c], false).unwrap();
    assert!(text.contains("note: engine:b: not in the first result, left out"), "{text}");
    assert!(text.contains("c#engine:a: no verdict"), "{text}");
    assert_eq!(judgement, Judgement::default());
}

/// Runs of both sides in the order of `order` (false: before), half an hour apart; `after` takes 1.5 times as long.
fn sides(dir: &Path, order: &[bool]) -> Options {
    let mut options = Options::default();
    for (at, after) in order.iter().enumerate() {
        let seconds = FAST.map(|s| if *after { s * 1.5 } else { s } + at as f64 * 0.01);
        let mut trials = rounds("engine:a", &seconds);
        trials.iter_mut().for_each(|t| t.started_s += 1800 * at as u64);
        let side = if *after { &mut options.what } else { &mut options.against };
        let name = format!("{}{}", if *after { "after" } else { "before" }, side.len() + 1);
        side.push(write(&dir.join(name), &trials));
    }
    options
}

fn text_of(options: &Options) -> Result<(String, Judgement), Error> {
    let mut out = Vec::new();
    let judgement = command(options, &mut out)?;
    Ok((String::from_utf8(out).unwrap(), judgement))
}

#[test]
fn five_turns_get_a_verdict() {
    let turns = [false, true, true, false, false, true, true, false, false, true];
    let dir = tempfile::tempdir().unwrap();
    let options = sides(dir.path(), &turns);
    let (text, judgement) = text_of(&options).unwrap();
    assert!(text.contains("x before1..before5#engine:a\n+ after1..after5#engine:a\n"), "{text}");
    assert!(text.contains("worse: -3") && text.contains("(5 and 5 runs, a value each, p < 0.0001)"), "{text}");
    assert_eq!(judgement.regressions, ["small-files: after1..after5#engine:a"]);
    // One more run of a side has no partner.
    let dir = tempfile::tempdir().unwrap();
    let options = sides(dir.path(), &[&[false][..], &turns].concat());
    let (text, judgement) = text_of(&options).unwrap();
    assert!(text.contains("1 runs had no partner before or after them") && text.contains("(5 and 5 runs"), "{text}");
    assert_eq!(judgement.regressions.len(), 1);
    // Four turns, or all runs of one side first: no verdict.
    for order in [&turns[..8], &[false, false, false, false, false, true, true, true, true, true]] {
        let dir = tempfile::tempdir().unwrap();
        let (text, judgement) = text_of(&sides(dir.path(), order)).unwrap();
        assert!(text.contains("no verdict: -3") && text.contains("which takes 5 turns of a run of each"), "{text}");
        assert_eq!(judgement, Judgement::default());
    }
}

/// The same run under two names is not another sitting.
#[test]
fn copies_are_no_sittings() {
    let dir = tempfile::tempdir().unwrap();
    let a = write(&dir.path().join("a"), &rounds("engine:a", &FAST));
    let b = write(&dir.path().join("b"), &rounds("engine:a", &SLOW));
    let copy = write(&dir.path().join("copy"), &rounds("engine:a", &FAST));
    for what in [vec![a.clone(), copy.clone()], vec![a.clone(), a.clone()]] {
        let e = text_of(&Options { what, against: vec![b.clone()], ..Options::default() }).unwrap_err();
        assert!(e.is_usage() && matches!(e, Error::Copy { .. }), "{e}");
    }
    assert!(matches!(run(&[a.clone(), a.clone()], false), Err(Error::Copy { .. })));
    let e = run(&[a, copy], false).unwrap_err();
    assert!(e.to_string().ends_with("hold the same trials: a copy is no other run"), "{e}");
}

/// Each message names the file, the line and the error.
#[test]
fn errors_name_the_file_the_line_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let result = write(dir.path(), &[rounds("engine:b", &FAST), rounds("engine:a", &FAST)].concat());
    let file = result.join(TRIALS);
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let says = |content: String| {
        std::fs::write(&file, content).unwrap();
        run(std::slice::from_ref(&result), false).unwrap_err().to_string()
    };
    let at = |line: usize| format!("{}:{line}: ", file.display());
    let message = says(format!("{}\n{text}", &lines[0][..50]));
    assert!(message.starts_with(&(at(1) + "not a trial: EOF while parsing")), "{message}");
    assert!(message.ends_with(" at column 50"), "{message}");
    let message = says(format!("{text}\n\n{{\"schema\":1}}\n"));
    assert_eq!(message, at(11) + "not a trial: missing field `workload`");
    let message = says(format!("{}\n[1,2]\n", lines[0]));
    assert_eq!(message, at(2) + "not a trial: no schema");
    let message = says(text.replacen("\"schema\":1", "\"schema\":2", 3).replacen("\"schema\":2", "\"schema\":1", 2));
    assert_eq!(message, at(3) + "written with schema 2, this program reads 1 (--force tries anyway)");
    // The same round again, with the same figures or with others.
    let message = says(format!("{text}{}\n", lines[6]));
    assert_eq!(message, at(9) + "round 2 of \"engine:a\" in small-files is in line 7 already");
    let other = serde_json::to_string(&trial("engine:b", 0, 7.0)).unwrap();
    let message = says(format!("{text}{other}\n"));
    assert_eq!(message, at(9) + "round 0 of \"engine:b\" in small-files is in line 1 already");
    // Cut off in its first line.
    let message = says(lines[0][..99].to_owned());
    assert_eq!(message, format!("{}: no trials: its only line was cut off", file.display()));
    std::fs::write(&file, &text[..text.len() - 40]).unwrap();
    let (out, _) = run(std::slice::from_ref(&result), false).unwrap();
    assert!(out.contains(&(at(8) + "the last line was cut off and is left out")), "{out}");
}

/// A label may contain spaces, commas, special characters of the command line, and control characters of a terminal.
#[test]
fn labels_of_all_kinds() {
    let odd = "engine:/tmp/my images/a, b#1.img,io=memory";
    let dir = tempfile::tempdir().unwrap();
    let result = write(
        &dir.path().join("a, b#c d"),
        &[rounds(odd, &FAST), rounds("engine:a#2", &SLOW), rounds("\u{1b}[2J", &FAST)].concat(),
    );
    let named = |label: &str| PathBuf::from(format!("{}#{label}", result.display()));
    let (text, _) = run(&[named(odd), named("a#2")], false).unwrap();
    assert!(text.contains(&format!("x {odd}\n+ engine:a#2\n")) && text.contains("4 rounds, paired"), "{text}");
    let options =
        Options { what: vec![result.clone()], baseline: Some("my images/a, b#1".into()), ..Options::default() };
    assert!(text_of(&options).unwrap().0.contains(&format!("x {odd}\n")));
    let e = run(&[named("engine:")], false).unwrap_err();
    assert!(e.is_usage() && e.to_string().ends_with(&format!(": \"{odd}\", \"engine:a#2\"")), "{e}");
    let e = run(&[named("none, such")], false).unwrap_err();
    assert!(e.to_string().contains("no contestant \"none, such\"; there are: \""), "{e}");
    assert!(e.to_string().contains("\u{fffd}[2J\"") && !e.to_string().contains('\u{1b}'), "{e}");
}

/// A named target keeps its place on the command line.
#[test]
fn named_targets_follow_the_command_line() {
    let mut trials = Vec::new();
    for (label, round) in [("new, 2", 0), ("old", 0), ("old", 1), ("new, 2", 1)] {
        let mut t = trial(label, round, 1.0);
        let targets = ["--target", "engine:e.img,name=old,io=memory", "--target=engine:e.img,name=new, 2"];
        t.environment.command = targets.map(String::from).to_vec();
        trials.push(t);
    }
    assert_eq!(groups_of(trials).unwrap()[0].labels(), ["old", "new, 2"]);
}

/// A hundred unchanged figures, of which seven differ at 5 % by chance: no cell of the table is coloured. A figure that
/// has changed is coloured.
#[test]
fn cells_of_a_table_share_the_chance_of_error() {
    let mut trials = [rounds("engine:b", &FAST), rounds("engine:a", &FAST)].concat();
    for (i, t) in trials.iter_mut().enumerate() {
        for k in 0..100u32 {
            // Variation between rounds. That of the contestant is larger by so little that only a single test takes it
            // for a difference.
            let swing = [1.0, 1.3, 0.8, 1.1][i % 4] * (1.0 + 0.01 * f64::from(k % 7));
            let by_chance = if k < 7 && i >= 4 { [1.02, 1.05, 1.03, 1.04][i % 4] } else { 1.0 };
            t.measures.insert(format!("noise_{k}"), swing * by_chance);
        }
        t.measures.insert("changed".into(), if i < 4 { 100.0 } else { 120.0 });
    }
    let groups = groups_of(trials).unwrap();
    let alone = |f: &String| groups[0].comparison(1, f).is_some_and(|c| c.verdict == Verdict::Worse);
    assert_eq!(groups[0].figures().into_iter().filter(|f| f.starts_with("noise") && alone(f)).count(), 7);
    let table = groups[0].table();
    let coloured: Vec<&str> = table.iter().filter(|r| r.shown[1].is_some()).map(|r| r.row.name.as_str()).collect();
    assert_eq!(coloured, ["changed"]);
    assert!(table.iter().all(|r| r.shown.len() == 2 && r.shown[0].is_none()));
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
    // Cut off anywhere else: an error that names the line.
    std::fs::write(&file, format!("{}\n{text}", &text[..50])).unwrap();
    assert!(matches!(run(std::slice::from_ref(&result), false), Err(Error::Line { line: 1, .. })));
    std::fs::write(&file, text.replace("\"schema\":1", "\"schema\":99")).unwrap();
    assert!(matches!(run(std::slice::from_ref(&result), false), Err(Error::Schema { line: 1, found: 99, .. })));
    let (out, _) = run(std::slice::from_ref(&result), true).unwrap();
    assert!(out.contains("only because of --force: schema 99 and 1"), "{out}");
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
    for (label, said) in [("xfs", "there are: "), ("engine", "may be any of: ")] {
        let e = run(&[format!("{}#{label}", result.display()).into()], false).unwrap_err();
        assert!(e.to_string().contains(&format!("{said}\"engine:b\", \"engine:a\"")), "{e}");
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

/// A phase of zero duration has no rate, and a value that is not a number never reaches the statistics.
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
