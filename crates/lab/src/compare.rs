//! Which trials may be compared, and the result of the comparison.
//!
//! Main types: [`Options`] and [`command`] (`extant lab compare`), [`Group`] (the contestants of one workload, the
//! first is the baseline), [`Judgement`]. [`groups_of`] does the same with trials that are in memory.
//!
//! Trials that failed never enter a figure; a note counts them. Results with another schema, scale, workload parameter
//! or headline are refused. If forced, they are compared, and a note says so first. The results in one file form a
//! sitting. Contestants of one sitting are paired by round. A side may consist of many sittings, and `stats` decides
//! when these are enough for a verdict.
//!
//! It computes no statistics (`stats`) and lays out no tables (`table`).
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::export;
use crate::figure::{self, direction};
pub use crate::load::Error;
use crate::load::{self, Source};
use crate::measure::Recorded;
use crate::names;
use crate::result::{Environment, Outcome, SCHEMA, Trial, WorkloadRun};
use crate::stats::{self, ALPHA, Comparison, DEFAULT_EFFECT, SITTINGS_MIN, Sample, Summary, Verdict, holm};
use crate::table::{self, Row, plain};
use crate::workload::ends_early;

/// Exit status of a comparison that shows a regression of a headline figure. The statuses 1, 2 and 8 have the same
/// meaning in every command of extant.
pub const REGRESSION: u8 = 3;

/// The arguments of `extant lab compare`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directories or files of results, each optionally with `#LABEL`. Each is a side of its own, unless `against` is
    /// given.
    pub what: Vec<PathBuf>,
    /// The sittings of the baseline; those of `what` are then the other side. If empty, the first of `what` is the
    /// baseline.
    pub against: Vec<PathBuf>,
    /// Label of the baseline; by default that of the first contestant.
    pub baseline: Option<String>,
    /// Figures that are printed in full besides the headline.
    pub figures: Vec<String>,
    /// The difference for which a number of rounds is proposed; 0.05 means 5 %.
    pub effect: f64,
    /// Whether to compare results that must not be compared.
    pub force: bool,
    /// How the comparison is printed.
    pub output: Output,
}

/// How a comparison is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Tables for people.
    #[default]
    Tables,
    /// One object.
    Json,
    /// One line for each figure of each contestant.
    Csv,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            what: Vec::new(),
            against: Vec::new(),
            baseline: None,
            figures: Vec::new(),
            effect: DEFAULT_EFFECT,
            force: false,
            output: Output::Tables,
        }
    }
}

impl Options {
    fn sides(&self) -> Vec<Vec<PathBuf>> {
        match self.against.is_empty() {
            true => self.what.iter().map(|w| vec![w.clone()]).collect(),
            false => vec![self.against.clone(), self.what.clone()],
        }
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// `workload: contestant` of every headline figure that has been shown to be worse than the baseline's.
    pub regressions: Vec<String>,
}

/// The trials of one file.
#[derive(Clone, Debug)]
pub struct Sitting {
    pub file: PathBuf,
    /// The usable trials, by round.
    pub trials: Vec<Trial>,
    /// Round and reason of each trial that is not usable.
    pub failed: Vec<(u32, String)>,
}

/// One contestant's trials of one workload.
#[derive(Clone, Debug)]
pub struct Series {
    /// The label, unique within its group.
    pub label: String,
    /// In the order of the command line.
    pub sittings: Vec<Sitting>,
}

/// The contestants of one workload.
#[derive(Clone, Debug)]
pub struct Group {
    pub workload: WorkloadRun,
    /// The figure that the verdict is based on.
    pub headline: String,
    /// The first is the baseline.
    pub series: Vec<Series>,
    /// Notes that a reader needs; forced comparisons first.
    pub notes: Vec<String>,
}

/// One line of the table of all figures.
#[derive(Clone, Debug)]
pub struct TableRow {
    pub row: Row,
    /// For each contestant: the verdict when all cells of the table share the 5 % (Holm). None if no difference is
    /// shown.
    pub shown: Vec<Option<Verdict>>,
}

fn figure_of(trial: &Trial, figure: &str) -> Option<f64> {
    Some(figure::figures(trial).into_iter().find(|(n, _)| n == figure)?.1)
}

impl Series {
    /// The usable trials.
    pub fn trials(&self) -> impl Iterator<Item = &Trial> {
        self.sittings.iter().flat_map(|s| &s.trials)
    }

    /// Round and reason of each trial that is not usable.
    pub fn failed(&self) -> impl Iterator<Item = &(u32, String)> {
        self.sittings.iter().flat_map(|s| &s.failed)
    }

    /// Every figure with this name.
    pub fn values(&self, figure: &str) -> Vec<f64> {
        self.trials().filter_map(|t| figure_of(t, figure)).collect()
    }

    fn sample(&self, figure: &str) -> Sample {
        Sample { figures: self.trials().filter_map(|t| Some((t.round, figure_of(t, figure)?))).collect() }
    }

    /// The sittings that have this figure.
    fn runs(&self, figure: &str) -> Vec<stats::Sitting> {
        let run = |s: &Sitting| {
            let figures: Vec<f64> = s.trials.iter().filter_map(|t| figure_of(t, figure)).collect();
            let started = s.trials.iter().map(|t| t.started_s * 1_000_000_000 + u64::from(t.started_ns)).min();
            Some(stats::Sitting { started_ns: started.filter(|_| !figures.is_empty())?, figures })
        };
        self.sittings.iter().filter_map(run).collect()
    }

    /// Whether the rounds of both belong to one run.
    fn same_run(&self, other: &Series) -> bool {
        matches!((&self.sittings[..], &other.sittings[..]), ([a], [b]) if a.file == b.file)
    }
}

impl Group {
    /// Names of all figures that any contestant has, in the order of a trial.
    pub fn figures(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for trial in self.series.iter().flat_map(Series::trials) {
            let mut at = 0;
            for (name, _) in figure::figures(trial) {
                match names.iter().position(|n| *n == name) {
                    Some(i) => at = i + 1,
                    None => {
                        names.insert(at, name);
                        at += 1;
                    }
                }
            }
        }
        names
    }

    /// The summary of contestant `i`. None if it has no such figure.
    pub fn summary(&self, i: usize, figure: &str) -> Option<Summary> {
        Summary::of(&self.series.get(i)?.values(figure))
    }

    /// Contestant `i` against the baseline. None if there are too few rounds.
    pub fn comparison(&self, i: usize, figure: &str) -> Option<Comparison> {
        let (base, other) = (self.series.first()?, self.series.get(i)?);
        if base.same_run(other) {
            stats::compare(&base.sample(figure), &other.sample(figure), direction(figure))
        } else {
            stats::compare_runs(&base.runs(figure), &other.runs(figure), direction(figure))
        }
    }

    /// The comparisons of all contestants with the baseline; None for the baseline itself.
    pub fn comparisons(&self, figure: &str) -> Vec<Option<Comparison>> {
        (0..self.series.len()).map(|i| if i == 0 { None } else { self.comparison(i, figure) }).collect()
    }

    /// The lines of the mmtests table.
    pub fn rows(&self) -> Vec<Row> {
        let names = self.figures();
        names
            .into_iter()
            .map(|name| Row {
                direction: direction(&name),
                unit: figure::unit(&name),
                means: (0..self.series.len()).map(|i| Some(self.summary(i, &name)?.mean)).collect(),
                name,
            })
            .collect()
    }

    /// The lines of the mmtests table, with the cells that may be coloured: of a hundred unchanged figures, five would
    /// differ at 5 % each.
    pub fn table(&self) -> Vec<TableRow> {
        let rows = self.rows();
        let cells: Vec<Option<Comparison>> = rows.iter().flat_map(|row| self.comparisons(&row.name)).collect();
        let shown = family(&cells);
        rows.into_iter()
            .zip(shown.chunks(self.series.len().max(1)))
            .map(|(row, shown)| TableRow { row, shown: shown.to_vec() })
            .collect()
    }

    pub fn labels(&self) -> Vec<String> {
        self.series.iter().map(|s| s.label.clone()).collect()
    }

    /// The point of a sweep that the trials belong to; empty outside a sweep.
    pub fn point(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.series.iter().flat_map(Series::trials).next().map_or(&NONE, |t| &t.point)
    }

    /// Workload, scale, seed and parameters in one line.
    pub fn title(&self) -> String {
        let w = &self.workload;
        let mut title = format!("{}, scale {}, seed {}", plain(&w.name), w.scale, w.seed);
        for (name, value) in &w.parameters {
            title.push_str(&format!(", {}={}", plain(name), plain(&value.to_string())));
        }
        title
    }

    /// The table of one figure, in ministat's form.
    pub fn ministat(&self, figure: &str, effect: f64) -> String {
        let rows: Vec<_> =
            (0..self.series.len()).map(|i| (self.series[i].label.clone(), self.summary(i, figure))).collect();
        table::ministat(figure, figure::unit(figure), &rows, &self.comparisons(figure), effect)
    }
}

/// The verdicts of a family of comparisons that share the 5 % (Holm). None if there is no comparison, no verdict, or no
/// difference shown.
pub fn family(comparisons: &[Option<Comparison>]) -> Vec<Option<Verdict>> {
    let judged = || comparisons.iter().enumerate().filter_map(|(i, c)| Some((i, c.as_ref().filter(|c| c.judged())?)));
    let shown = holm(&judged().map(|(_, c)| c.p).collect::<Vec<_>>(), ALPHA);
    let mut verdicts = vec![None; comparisons.len()];
    for ((i, c), _) in judged().zip(shown).filter(|(_, shown)| *shown) {
        verdicts[i] = Some(c.verdict);
    }
    verdicts
}

/// `extant lab compare`: prints the tables and the verdicts.
pub fn command(options: &Options, out: &mut dyn Write) -> Result<Judgement, Error> {
    let groups = open(&options.sides(), options.baseline.as_deref(), options.force)?;
    for group in &groups {
        if let [only] = &group.series[..] {
            return Err(Error::Nothing {
                why: format!("{} has only {}", plain(&group.workload.name), plain(&only.label)),
            });
        }
    }
    let mut known: Vec<String> = Vec::new();
    for figure in groups.iter().flat_map(Group::figures) {
        if !known.contains(&figure) {
            known.push(figure);
        }
    }
    if let Some(wanted) = options.figures.iter().find(|f| !known.contains(f)) {
        let known = known.iter().map(|k| plain(k)).collect();
        return Err(Error::NoFigure { wanted: plain(wanted), known });
    }
    match options.output {
        Output::Tables => print(&groups, options, out),
        Output::Json => writeln!(out, "{:#}", export::comparison_json(&groups)),
        Output::Csv => out.write_all(export::comparison_csv(&groups).as_bytes()),
    }
    .map_err(|source| Error::Write { source })?;
    Ok(judge(&groups))
}

/// The sittings of one side.
struct Side {
    /// The name of the side, for labels that occur on several sides.
    name: String,
    sources: Vec<Source>,
}

/// Reads and groups the results that the arguments name, by side; a side is one result or several.
pub fn open(sides: &[Vec<PathBuf>], baseline: Option<&str>, force: bool) -> Result<Vec<Group>, Error> {
    let read = |side: &Vec<PathBuf>| side.iter().map(|w| load::load(w, force)).collect::<Result<Vec<_>, _>>();
    let sources = sides.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    no_copies(&sources)?;
    let names: Vec<String> = sources.iter().map(|side| side_name(side, &sources)).collect();
    let named = names.into_iter().zip(sources).map(|(name, sources)| Side { name, sources }).collect();
    let mut groups = group(named, force)?;
    if let Some(wanted) = baseline {
        for g in &mut groups {
            let path = sides.iter().flatten().next().cloned().unwrap_or_default();
            let label = load::choose(&path, wanted, g.labels())?;
            let at = g.series.iter().position(|s| s.label == label).unwrap_or(0);
            g.series[..=at].rotate_right(1);
        }
    }
    Ok(groups)
}

/// Refuses a result that is named twice, or a copy of one: it is not a second run.
fn no_copies(sides: &[Vec<Source>]) -> Result<(), Error> {
    let all: Vec<&Source> = sides.iter().flatten().collect();
    for (i, a) in all.iter().enumerate() {
        if let Some(b) = all[i + 1..].iter().find(|b| b.trials.first().is_some_and(|t| a.trials.contains(t))) {
            return Err(Error::Copy { path: a.file.clone(), copy: b.file.clone() });
        }
    }
    Ok(())
}

/// `before`, or `before1..before5`; with the parent directory if another side has the same name.
fn side_name(side: &[Source], all: &[Vec<Source>]) -> String {
    let twins = |name: &str| all.iter().filter(|s| s.iter().any(|s| s.name == name)).count() > 1;
    let name = |s: &Source| {
        let folder = s.file.parent().and_then(Path::parent).and_then(Path::file_name);
        match folder {
            Some(folder) if twins(&s.name) => format!("{}/{}", folder.to_string_lossy(), s.name),
            _ => s.name.clone(),
        }
    };
    match side {
        [first, .., last] => format!("{}..{}", name(first), name(last)),
        _ => side.first().map(name).unwrap_or_default(),
    }
}

/// Groups trials of one run that are in memory.
pub fn groups_of(mut trials: Vec<Trial>) -> Result<Vec<Group>, Error> {
    load::order(&mut trials);
    let source = Source { name: "run".into(), file: PathBuf::new(), trials, notes: Vec::new() };
    group(vec![Side { name: "run".into(), sources: vec![source] }], false)
}

/// The workload, and the point of a sweep, of trials that compete.
struct Kind {
    workload: String,
    point: BTreeMap<String, String>,
}

impl Kind {
    fn is_not(&self, t: &Trial) -> bool {
        self.workload != t.workload.name || self.point != t.point
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.workload)?;
        self.point.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// Makes one group per workload and point. If several sides have several contestants each, makes one group per label.
fn group(sides: Vec<Side>, force: bool) -> Result<Vec<Group>, Error> {
    let sources = || sides.iter().flat_map(|s| &s.sources);
    let mut kinds: Vec<Kind> = Vec::new();
    for t in sources().flat_map(|s| &s.trials) {
        if kinds.last().is_none_or(|last| last.is_not(t)) && kinds.iter().all(|kind| kind.is_not(t)) {
            kinds.push(Kind { workload: t.workload.name.clone(), point: t.point.clone() });
        }
    }
    let mut groups = Vec::new();
    for kind in kinds {
        let workload = kind.to_string();
        let mut all: Vec<Vec<Series>> = sides.iter().map(|s| series(s, &kind)).collect();
        all.retain(|s| !s.is_empty());
        let several = all.len() > 1 && all.iter().any(|s| s.len() > 1);
        let mut sets: Vec<Vec<Series>> = Vec::new();
        let mut notes: Vec<String> = sources().flat_map(|s| s.notes.clone()).collect();
        if all.len() < sides.len() {
            notes.push(format!("{} is not in every result", plain(&workload)));
        }
        if several {
            let mut rest = all.split_off(1).into_iter().flatten().collect::<Vec<_>>();
            for first in all.into_iter().flatten() {
                let (same, other): (Vec<_>, Vec<_>) = rest.into_iter().partition(|s| s.label == first.label);
                rest = other;
                if same.is_empty() {
                    notes.push(format!("{}: in the first result only, left out", plain(&first.label)));
                } else {
                    sets.push([vec![first], same].concat());
                }
            }
            notes.extend(rest.iter().map(|s| format!("{}: not in the first result, left out", plain(&s.label))));
            if sets.is_empty() {
                return Err(Error::Nothing { why: format!("{}: no contestant is in both results", plain(&workload)) });
            }
        } else {
            sets.push(all.into_iter().flatten().collect());
        }
        for mut set in sets {
            distinguish(&mut set, &sides);
            groups.push(checked(set, notes.clone(), force)?);
        }
    }
    Ok(groups)
}

/// The contestants of a side, in the order of its first result.
fn series(side: &Side, kind: &Kind) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for source in &side.sources {
        for t in source.trials.iter().filter(|t| !kind.is_not(t)) {
            let label = &t.contestant.label;
            let at = all.iter().position(|s| s.label == *label).unwrap_or_else(|| {
                all.push(Series { label: label.clone(), sittings: Vec::new() });
                all.len() - 1
            });
            let sittings = &mut all[at].sittings;
            if sittings.last().is_none_or(|s| s.file != source.file) {
                sittings.push(Sitting { file: source.file.clone(), trials: Vec::new(), failed: Vec::new() });
            }
            let Some(sitting) = sittings.last_mut() else { continue };
            match &t.outcome {
                Outcome::Failed(why) => sitting.failed.push((t.round, why.clone())),
                Outcome::Checked | Outcome::Unchecked => sitting.trials.push(t.clone()),
            }
        }
    }
    all
}

/// Puts the side's name in front of equal labels from different sides.
fn distinguish(set: &mut [Series], sides: &[Side]) {
    let labels: Vec<String> = set.iter().map(|s| s.label.clone()).collect();
    for (i, s) in set.iter_mut().enumerate() {
        let file = s.sittings.first().map(|s| &s.file);
        if labels.iter().enumerate().any(|(j, l)| i != j && *l == s.label)
            && let Some(side) = sides.iter().find(|side| side.sources.iter().any(|source| Some(&source.file) == file))
        {
            s.label = format!("{}#{}", side.name, s.label);
        }
    }
}

/// Refuses different work, and notes all other differences.
fn checked(series: Vec<Series>, notes: Vec<String>, force: bool) -> Result<Group, Error> {
    let trials: Vec<&Trial> = series.iter().flat_map(Series::trials).collect();
    let (Some(first), Some(headline)) = (trials.first(), figure::headline_of(&trials)) else {
        let why: Vec<String> = series
            .iter()
            .flat_map(|s| s.failed().next().map(|(_, why)| format!("{}: {}", plain(&s.label), plain(why))))
            .collect();
        return Err(Error::Nothing { why: format!("every trial failed ({})", why.join("; ")) });
    };
    let workload = first.workload.clone();
    let mut differences: Vec<String> = Vec::new();
    let mut add = |text: String| {
        if !differences.contains(&text) {
            differences.push(text);
        }
    };
    for t in series.iter().flat_map(Series::trials) {
        let w = &t.workload;
        if t.schema != SCHEMA {
            add(format!("schema {} and {SCHEMA}", t.schema));
        }
        let recorded = |t: &Trial| t.recorded.clone().unwrap_or_else(|| "unknown".to_owned());
        if t.recorded != first.recorded {
            add(format!("recorded {} and {}", plain(&recorded(first)), plain(&recorded(t))));
        }
        // The other parts of the work's identity; the rest is handled below, or differs between equal runs.
        for name in ["operations (SHA-256)", "memory"] {
            let of = |t: &Trial| t.identity.as_ref().and_then(|i| i.get(name)).map_or("none", |v| v).to_owned();
            if of(t) != of(first) {
                add(format!("{name} {} and {}", of(first), of(t)));
            }
        }
        if ends_early(t) != ends_early(first) {
            add(format!("{} until the work was durable, and without that", plain(&w.headline)));
        }
        if w.scale != workload.scale {
            add(format!("scale {} and {}", workload.scale, w.scale));
        }
        if w.headline != workload.headline {
            add(format!("headline {} and {}", plain(&workload.headline), plain(&w.headline)));
        }
        for name in workload.parameters.keys().chain(w.parameters.keys()) {
            let show = |v: Option<&serde_json::Value>| v.map_or("none".into(), |v| plain(&v.to_string()));
            let (a, b) = (workload.parameters.get(name), w.parameters.get(name));
            if a != b {
                add(format!("{} {} and {}", plain(name), show(a), show(b)));
            }
        }
    }
    if !differences.is_empty() && !force {
        return Err(Error::Different { workload: plain(&workload.name), differences });
    }
    let mut all: Vec<String> = differences
        .iter()
        .map(|d| {
            format!(
                "DIFFERENT WORK, compared only because of --force: {d}. Do not draw conclusions from the figures below."
            )
        })
        .collect();
    all.extend(notes);
    all.extend(remarks(&series, &headline));
    Ok(Group { workload, headline, series, notes: all })
}

/// Notes what else a reader needs to know: failed trials, other seeds, other machines.
fn remarks(series: &[Series], headline: &str) -> Vec<String> {
    let mut notes = Vec::new();
    for s in series {
        let trials: Vec<&Trial> = s.trials().collect();
        if let Some((round, why)) = s.failed().next() {
            let n = s.failed().count();
            let all = n + trials.len();
            notes.push(format!(
                "{}: {n} of {all} trials failed and are left out (round {round}: {})",
                plain(&s.label),
                plain(why)
            ));
        }
        let flawed: Vec<&&Trial> = trials.iter().filter(|t| !t.flaws.is_empty()).collect();
        if let Some(first) = flawed.first() {
            notes.push(format!(
                "{}: {} of {} trials are FLAWED: it did not do all of the work that it is timed for (round {}: {})",
                plain(&s.label),
                flawed.len(),
                trials.len(),
                first.round,
                plain(&first.flaws.join("; "))
            ));
        }
        let written = |t: &Trial| t.outcome == Outcome::Unchecked && t.contestant.kind != "model";
        if trials.iter().any(|t| written(t)) {
            notes.push(format!("{}: unchecked: the target has no image that e2fsck could check", plain(&s.label)));
        }
    }
    notes.extend(one_sided(series));
    notes.extend(series.iter().skip(1).filter_map(|s| apart(&series[0], s, headline)));
    notes.extend(series.iter().skip(1).filter_map(|s| unsteady(&series[0], s, headline)));
    let trials: Vec<&Trial> = series.iter().flat_map(Series::trials).collect();
    let mut differ = |what: &str, of: &dyn Fn(&Trial) -> String| {
        let mut values: Vec<String> = Vec::new();
        for t in &trials {
            let v = plain(&of(t));
            if !values.contains(&v) {
                values.push(v);
            }
        }
        if values.len() > 1 {
            notes.push(format!("{what} differs: {}", values.join(" | ")));
        }
    };
    differ("seed", &|t| t.workload.seed.to_string());
    let of = |f: fn(&Environment) -> String| move |t: &Trial| f(&t.environment);
    differ("processor", &of(|e| format!("{} ({} cores)", e.cpu, e.cores)));
    differ("memory", &of(|e| format!("{} bytes", e.memory_bytes)));
    differ("kernel", &of(|e| e.kernel.clone()));
    differ("extant", &of(|e| format!("{} ({})", e.version, e.commit)));
    // A directory has no image.
    differ("device", &|t| t.environment.device.clone());
    let images: Vec<Series> =
        series.iter().filter(|s| s.trials().all(|t| t.environment.image_bytes > 0)).cloned().collect();
    let trials: Vec<&Trial> = images.iter().flat_map(Series::trials).collect();
    if let Some(first) = trials.first()
        && let Some(t) = trials.iter().find(|t| t.environment.image_bytes != first.environment.image_bytes)
    {
        notes.push(format!(
            "size of the image differs: {} | {}",
            first.environment.image_bytes, t.environment.image_bytes
        ));
    }
    notes
}

/// A note about modelled processors: a difference that another machine's costs would turn around is none.
fn unsteady(base: &Series, other: &Series, headline: &str) -> Option<String> {
    let (name, unit) = headline.rsplit_once('_')?;
    let less = |figure: &str| {
        let mean = |s: &Series| Summary::of(&s.values(figure)).map(|summary| summary.mean);
        Some(mean(other)?.total_cmp(&mean(base)?))
    };
    let measured = less(headline)?;
    let turned: Vec<&str> = ["half", "twice"]
        .into_iter()
        .filter(|scale| less(&format!("{name}_at_{scale}_costs_{unit}")).is_some_and(|sign| sign != measured))
        .collect();
    (!turned.is_empty()).then(|| {
        let (label, base) = (plain(&other.label), plain(&base.label));
        format!(
            "{label} against {base}: no difference, for its sign is another one at {} the costs",
            turned.join(" and ")
        )
    })
}

/// A note about different runs: whether they get a verdict.
fn apart(base: &Series, other: &Series, headline: &str) -> Option<String> {
    if base.same_run(other) {
        return None;
    }
    let (a, b) = (base.runs(headline), other.runs(headline));
    let turns = stats::turns(&a, &b).len();
    let label = plain(&other.label);
    if turns < SITTINGS_MIN {
        return Some(format!(
            "{label}: from other runs than the baseline ({} and {}), and whatever changed between them is part of the \
             difference: no verdict, which takes {SITTINGS_MIN} turns of a run of each, and here are {turns}",
            a.len(),
            b.len()
        ));
    }
    let left = a.len() + b.len() - 2 * turns;
    (left > 0)
        .then(|| format!("{label}: {left} runs had no partner before or after them, and are left out of the verdict"))
}

/// A note if locks or events are recorded for some targets only: recording slows these down, and not the others.
fn one_sided(series: &[Series]) -> Option<String> {
    let recorded: Recorded = series.iter().flat_map(Series::trials).find_map(|t| t.recorded.as_ref())?.parse().ok()?;
    let pays = |kind: &str| match kind {
        "engine" | "mount" => recorded.one_sided(),
        "kernel" => recorded.events,
        _ => false,
    };
    let mut kinds: Vec<&str> = series.iter().flat_map(Series::trials).map(|t| t.contestant.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let (dear, free): (Vec<&str>, Vec<&str>) = kinds.into_iter().partition(|k| pays(k));
    // Only Extant has lock statistics.
    let unequal = recorded.locks && dear.contains(&"kernel");
    (!dear.is_empty() && (!free.is_empty() || unequal)).then(|| {
        format!("recorded: {recorded}. That slows down {} by a few per cent, and not {}", plain(&dear.join(", ")), {
            if free.is_empty() { "alike".to_owned() } else { plain(&free.join(", ")) }
        })
    })
}

fn print(groups: &[Group], options: &Options, out: &mut dyn Write) -> std::io::Result<()> {
    for (i, group) in groups.iter().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", plain(&names::title(group)))?;
        writeln!(out, "{}", group.title())?;
        for note in &group.notes {
            writeln!(out, "note: {}", plain(note))?;
        }
        writeln!(out)?;
        let known = group.figures();
        let mut blocks = vec![group.headline.clone()];
        for f in &options.figures {
            if known.contains(f) && !blocks.contains(f) {
                blocks.push(f.clone());
            } else if !known.contains(f) {
                writeln!(out, "note: this workload has no figure \"{}\"\n", plain(f))?;
            }
        }
        for figure in blocks {
            writeln!(out, "{}", group.ministat(&figure, options.effect))?;
        }
        write!(out, "{}", table::mmtests(&group.labels(), &group.rows()))?;
    }
    Ok(())
}

/// Regressions of headline figures. Several comparisons share the 5 % (Holm): otherwise one in twenty would be wrong.
pub fn judge(groups: &[Group]) -> Judgement {
    let (mut names, mut all) = (Vec::new(), Vec::new());
    for g in groups {
        for i in 1..g.series.len() {
            if let Some(c) = g.comparison(i, &g.headline) {
                names.push(format!("{}: {}", plain(&g.workload.name), plain(&g.series[i].label)));
                all.push(Some(c));
            }
        }
    }
    let worse = names.into_iter().zip(family(&all)).filter(|(_, shown)| *shown == Some(Verdict::Worse));
    Judgement { regressions: worse.map(|(name, _)| name).collect() }
}

#[cfg(test)]
#[path = "compare_support.rs"]
pub(crate) mod tests_support;

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
