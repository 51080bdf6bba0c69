//! Every model, run small: exact, repeatable, and comparable with the means of the lab.

use super::*;
use crate::compare::groups_of;
use crate::stats::Verdict;

fn config(dir: &std::path::Path, model: &str, settings: &[&str]) -> Config {
    Config {
        model: model.into(),
        policies: Vec::new(),
        settings: settings.iter().map(|s| (*s).to_owned()).collect(),
        rounds: 2,
        seed: 7,
        output: dir.join("result"),
        build: crate::environment::Build { version: "0", commit: "unknown", profile: "test" },
        command: vec!["extant".into(), "lab".into(), "model".into(), model.into()],
    }
}

/// Trials of a run with these settings.
fn trials(model: &str, settings: &[&str]) -> Vec<Trial> {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path(), model, settings);
    let summary = run(&config, &AtomicBool::new(false)).expect("run");
    let all = crate::run::load(&config.output).expect("trials");
    assert_eq!((summary.usable as usize, summary.failed.len()), (all.len(), 0));
    let again = run(&config, &AtomicBool::new(false)).expect("again");
    assert_eq!((again.usable, again.skipped as usize), (0, all.len()), "existing trials are not repeated");
    all
}

/// A count of a policy, which is the same in every round.
fn count(trials: &[Trial], policy: &str, name: &str) -> f64 {
    let of: Vec<f64> = trials
        .iter()
        .filter(|t| t.contestant.policies.values().any(|p| p == policy))
        .map(|t| t.measures[name])
        .collect();
    assert!(of.len() == 2 && of[0] == of[1], "{policy} {name}: {of:?}");
    of[0]
}

fn counts_the_same_every_time_beside_an_empty_loop(model: &str) {
    let model = find(model).expect("a model");
    let all = trials(model.name(), &[]);
    assert_eq!(all.len(), 2 * model.policies().rows.len());
    for trial in &all {
        assert_eq!((&trial.outcome, trial.flaws.len()), (&Outcome::Unchecked, 0), "{}", model.name());
        let [work, empty, ..] = &trial.phases[..] else { panic!("{:?}", trial.phases) };
        assert_eq!((empty.name.as_str(), empty.operations), (EMPTY, work.operations));
        assert!(trial.measures.contains_key(model.headline()), "{}", model.name());
    }
    let groups = groups_of(all).expect("comparable");
    assert_eq!(groups[0].headline, model.headline());
}

macro_rules! of_models {
    ($($name:ident: $model:literal),*) => {
        mod every_model_counts_the_same_every_time_beside_an_empty_loop {
            use super::*;
            $(
                #[test]
                fn $name() {
                    counts_the_same_every_time_beside_an_empty_loop($model);
                }
            )*

            #[test]
            fn every_model_has_its_test() {
                assert!(all().iter().all(|model| [$($model),*].contains(&model.name())));
            }
        }
    };
}

of_models!(
    alloc_threads: "alloc-threads", append: "append", engine: "engine", es_memory: "es-memory", es_shrink:
    "es-shrink", es_stall: "es-stall", es_traces: "es-traces", group_search: "group-search", reclaim:
    "reclaim", reclaim_traces: "reclaim-traces", tags: "tags"
);

#[test]
fn the_docs_have_a_row_for_each_with_its_parameters_and_counts() {
    let docs = include_str!("../../../../docs/lab.md");
    for model in all() {
        let start = format!("| `{}` |", model.name());
        let row = docs.lines().find(|l| l.starts_with(&start)).unwrap_or_else(|| panic!("{}", model.name()));
        assert!(row.contains(&format!("| `{}`", model.headline())), "{row}");
        for name in model.parameters().values().keys().filter(|name| *name != "blocks_per_group") {
            assert!(row.contains(&format!("`{name}")), "{}: {name}", model.name());
        }
    }
}

#[test]
fn counts_that_are_not_exact_are_a_flaw() {
    let dir = tempfile::tempdir().expect("directory");
    let mut config = config(dir.path(), "tags", &["requests=100", "threads=4"]);
    config.rounds = 1;
    run(&config, &AtomicBool::new(false)).expect("run");
    let path = config.output.join(crate::result::TRIALS);
    let text = std::fs::read_to_string(&path).expect("trials");
    std::fs::write(&path, text.replace("\"requests\":100.0", "\"requests\":101.0")).expect("trials");
    config.rounds = 2;
    run(&config, &AtomicBool::new(false)).expect("run");
    let flaws: Vec<usize> = load(&config.output).expect("trials").iter().map(|t| t.flaws.len()).collect();
    // The first trial of each of five policies, and then the second.
    assert_eq!(flaws, [[0; 5], [1; 5]].concat());
}

/// Runs a model twice with one seed. The trials are the same, at all three scales of the costs.
fn gives_the_same_again(model: &str, settings: &[&str], figures: &[&str]) {
    let [first, second] = [(); 2].map(|()| trials(model, settings));
    for (a, b) in first.iter().zip(&second) {
        assert_eq!((&a.measures, &a.locks), (&b.measures, &b.locks), "{model}");
        assert!(figures.iter().all(|name| a.measures.contains_key(*name)), "{model}: {:?}", a.measures);
        assert!(a.measures["cost_bounce_ns"] > 0.0 && !a.locks.is_empty(), "{model}");
    }
}

#[test]
fn tags_and_es_stall_on_processors_depend_on_the_seed_alone() {
    gives_the_same_again(
        "tags",
        &["processors=4", "machine=calibrated", "requests=300"],
        &["longest_wait_ns", "requests_at_half_costs_per_s", "requests_at_twice_costs_per_s"],
    );
    gives_the_same_again(
        "es-stall",
        &["processors=3", "inodes=2", "entries=2000", "reclaim=200"],
        &["lookup_p999_ns", "lookup_p999_at_half_costs_ns", "lookup_p999_at_twice_costs_ns"],
    );
}

#[test]
fn allocators_on_processors_depend_on_the_seed_alone() {
    gives_the_same_again(
        "alloc-threads",
        &["processors=6", "work=fallocate", "operations=24"],
        &["operation_ns", "operation_at_half_costs_ns", "operation_at_twice_costs_ns"],
    );
    let alone = trials("alloc-threads", &["processors=1", "work=fallocate", "operations=24"]);
    let crowd = trials("alloc-threads", &["processors=6", "work=fallocate", "operations=24"]);
    let of = |trials: &[Trial], policy: &str| {
        let found = trials.iter().find(|t| t.contestant.policies.values().any(|p| p == policy));
        found.map(|t| (t.measures["operation_ns"], t.measures["waiting_percent"])).expect("a trial")
    };
    // The one goal of all streams makes Linux 5.13 wait for the lock of one group.
    assert_eq!(of(&alone, "vanilla").1, 0.0);
    assert!(of(&crowd, "vanilla").0 > 2.0 * of(&alone, "vanilla").0);
    assert!(of(&crowd, "sure-fit").0 < of(&crowd, "vanilla").0);
}

/// The whole engine with its own threads, on more processors than any other test has.
#[test]
fn the_engine_on_sixty_four_processors_depends_on_the_seed_alone() {
    let [first, second, other] = [7, 7, 8].map(|seed| {
        let dir = tempfile::tempdir().expect("directory");
        let settings = ["processors=64", "work=create", "operations=3"];
        let policies = vec!["sure-fit".to_owned()];
        let config = Config { policies, rounds: 1, seed, ..config(dir.path(), "engine", &settings) };
        run(&config, &AtomicBool::new(false)).expect("run");
        let trial = crate::run::load(&config.output).expect("trials").remove(0);
        assert_eq!((&trial.outcome, trial.measures["operations"]), (&Outcome::Unchecked, 64.0 * 3.0));
        (trial.measures, trial.locks)
    });
    assert_eq!(first, second);
    assert!(first.0["waiting_percent"] > 0.0 && first.0.contains_key("operation_at_twice_costs_ns"), "{:?}", first.0);
    assert_ne!(first.0["operation_ns"], other.0["operation_ns"], "another seed is another run");
}

#[test]
fn names_are_unique_and_known() {
    for model in all() {
        assert_eq!(find(model.name()).unwrap().summary(), model.summary());
        assert_eq!(all().iter().filter(|m| m.name() == model.name()).count(), 1);
        model.check(&model.parameters()).unwrap();
    }
    assert!(find("crystal-ball").is_err_and(|e| e.to_string().contains("group-search")));
}

#[test]
fn only_policies_that_do_not_know_the_groups_walk_a_fragmented_disk() {
    // No run is long enough: policies that know the groups skip the criteria that cannot be met.
    let all = trials("group-search", &["groups=256", "requests=50"]);
    let visited = |policy| count(&all, policy, "groups_visited");
    assert!(visited("vanilla") > 50.0 * 256.0, "each request walks over all groups: {}", visited("vanilla"));
    assert!(visited("size-classes") < visited("vanilla") / 10.0, "{}", visited("size-classes"));
    assert_eq!(count(&all, "vanilla", "requests_cut_short"), 50.0);
    let groups = groups_of(all).unwrap();
    let labels = groups[0].labels();
    let vanilla = labels.iter().position(|l| l == "mb_policy=vanilla").unwrap();
    let comparison = groups[0].comparison(vanilla, "groups_visited").unwrap();
    assert_eq!((labels[0].as_str(), comparison.verdict), ("mb_policy=sure-fit", Verdict::Worse), "the default first");
}

#[test]
fn the_first_policy_of_the_command_line_is_the_baseline() {
    for (given, words) in [
        (["vanilla", "sure-fit"], vec!["-p", "vanilla,sure-fit"]),
        (["sure-fit", "vanilla"], vec!["--policy=sure-fit,vanilla", "-o", "vanilla"]),
    ] {
        let dir = tempfile::tempdir().expect("directory");
        let mut config = config(dir.path(), "group-search", &["groups=16", "requests=5"]);
        config.policies = given.map(str::to_owned).to_vec();
        config.command =
            ["extant", "lab", "model", "group-search"].into_iter().chain(words).map(str::to_owned).collect();
        // For any random order of the rounds.
        for seed in 1..6 {
            config.seed = seed;
            config.output = dir.path().join(seed.to_string());
            run(&config, &AtomicBool::new(false)).expect("run");
            let labels = groups_of(crate::run::load(&config.output).expect("trials")).unwrap()[0].labels();
            assert_eq!(labels, given.map(|p| format!("mb_policy={p}")), "{seed}");
        }
    }
}

#[test]
fn delayed_entries_in_front_cost_vanilla_most() {
    let settings = ["inodes=20", "entries=500", "times=100", "lookups=64", "reclaim=32", "scan=32"];
    let of = |placement: &str| trials("es-shrink", &[&settings[..], &[placement]].concat());
    let all = of("placement=front");
    for policy in ["vanilla", "evictable-list", "round-robin"] {
        assert_eq!(count(&all, policy, "entries_not_to_be_had"), 0.0, "{policy}");
        assert!(count(&all, policy, "entries_reclaimed") >= 3200.0, "{policy}");
        assert!(count(&all, policy, "lookups_missed") > 0.0, "{policy}");
    }
    let scanned = |policy| count(&all, policy, "entries_scanned");
    assert_eq!(scanned("evictable-list"), count(&all, "evictable-list", "entries_reclaimed"));
    assert!(scanned("vanilla") > 4.0 * scanned("evictable-list"), "{}", scanned("vanilla"));
    // The place of entries does not matter to a policy that looks only at evictable ones.
    assert_eq!(count(&of("placement=spread"), "evictable-list", "entries_scanned"), scanned("evictable-list"));
}

#[test]
fn delayed_entries_stay_and_no_call_of_the_shrinker_has_nothing_to_do() {
    let all = trials("es-memory", &["inodes=5", "entries=3200", "order=runs", "delayed=25"]);
    for policy in ["vanilla", "evictable-list", "round-robin"] {
        assert_eq!(count(&all, policy, "entries_kept"), 16_000.0, "{policy}");
        assert_eq!(count(&all, policy, "entries_left"), 4_000.0, "{policy}: a quarter is delayed");
    }
    let calls = |policy: &str| {
        let of = |t: &&Trial| t.contestant.policies.values().any(|p| p == policy);
        all.iter().find(of).expect("a trial").phase("shrink").expect("shrink").operations
    };
    assert_eq!(calls("evictable-list"), 12_000_u64.div_ceil(128));
    assert!(calls("round-robin") > calls("evictable-list"), "marks of lookups come off first");
}

/// It learns which of the two is popular, and again when that changes; within a percentage point of the best for each.
#[test]
fn leaf_ring_keeps_popular_entries_where_entries_are_and_popular_files_where_files_are() {
    let size = ["files=40", "entries=500", "room=10", "lookups=200000"];
    for (trace, best) in [("zipf-entry", "round-robin"), ("mixed", "round-robin"), ("zipf-file", "vanilla")] {
        let all = trials("es-traces", &[&size[..], &[&format!("trace={trace}")]].concat());
        let missed = |policy: &str| count(&all, policy, "lookups_missed");
        let (ours, theirs) = (missed("leaf-ring"), missed(best));
        assert!(ours < theirs + 2_000.0, "{trace}: {ours} misses, {best} {theirs}");
    }
}

#[test]
fn a_tag_that_is_handed_off_wakes_only_its_new_owner() {
    for (threads, depth) in [("threads=4", "depth=4"), ("threads=32", "depth=2")] {
        let all = trials("tags", &[threads, depth, "requests=640", "latency_us=20"]);
        for trial in all.iter().filter(|t| t.contestant.label.ends_with("hand-off")) {
            for never in ["wakes_per_request", "wakes_in_vain_per_request", "overtakings_per_request"] {
                assert_eq!(trial.measures[never], 0.0, "{never}");
            }
            assert_eq!(trial.measures["waits_per_request"] > 0.0, depth == "depth=2");
        }
        assert_eq!(count(&all, "wake-all", "requests"), 640.0);
    }
}

/// A figure of a policy, of each round.
fn rounds(trials: &[Trial], policy: &str, name: &str) -> Vec<f64> {
    let of = |t: &&Trial| t.contestant.policies.values().any(|p| p == policy);
    trials.iter().filter(of).map(|t| t.measures[name]).collect()
}

#[test]
fn a_seed_gives_the_same_figures_on_modelled_processors_and_a_round_others() {
    let figures = || -> Vec<_> {
        let all = trials("tags", &["processors=4", "threads=32", "depth=8", "requests=640"]);
        all.into_iter().map(|t| (t.contestant.label, t.round, t.phases[0].seconds, t.measures)).collect()
    };
    let first = figures();
    assert_eq!(first, figures());
    let of = |round| first.iter().find(|t| t.0.ends_with("wake-exclusive") && t.1 == round).map(|t| &t.3);
    assert_ne!(of(0), of(1));
}

/// The order of experiments/012 on two real processors.
#[test]
fn policies_have_the_same_order_by_wakes_on_two_modelled_processors_as_on_real_ones() {
    let all = trials("tags", &["processors=2", "threads=64", "depth=8", "requests=2000"]);
    for name in ["wakes_per_request", "wakes_in_vain_per_request"] {
        let of = |policy: &str| rounds(&all, policy, name).iter().sum::<f64>() / 2.0;
        let (exclusive, sbitmap) = (of("wake-exclusive"), of("sbitmap"));
        assert!(of("percpu-ida") > of("wake-all"), "{name}: {} {}", of("percpu-ida"), of("wake-all"));
        assert!(of("wake-all") > 2.0 * exclusive.max(sbitmap), "{name}: {} {exclusive} {sbitmap}", of("wake-all"));
        assert!((exclusive - sbitmap).abs() < 0.2 && exclusive.min(sbitmap) > 0.1, "{name}: {exclusive} {sbitmap}");
        assert_eq!(of("hand-off"), 0.0, "{name}");
    }
}

#[test]
fn hand_off_wakes_no_thread_and_keeps_order_on_modelled_processors() {
    for settings in [["processors=16", "threads=200", "depth=64"], ["processors=2", "threads=40", "depth=16"]] {
        let all = trials("tags", &[&settings[..], &["requests=1000"]].concat());
        for never in ["wakes_per_request", "wakes_in_vain_per_request", "overtakings_per_request"] {
            assert_eq!(rounds(&all, "hand-off", never), [0.0; 2], "{never}");
        }
        assert!(rounds(&all, "hand-off", "waits_per_request").iter().all(|waits| *waits > 0.5));
        assert_eq!(rounds(&all, "hand-off", "switches_per_request"), [1.0; 2], "each waits for its completion alone");
    }
}

/// A request occupies a processor for its submission, its completion, the wake and the switch to its thread.
#[test]
fn no_rate_is_above_that_of_the_device_or_of_the_modelled_processors() {
    let request_s = (2_000 + 1_000 + 1_000 + 2_000) as f64 / 1e9;
    for (processors, depth, latency_us) in [(16, 8, 100), (2, 64, 100), (4, 32, 10)] {
        let numbers = [("processors", processors), ("depth", depth), ("latency_us", latency_us), ("threads", 80)];
        let settings = numbers.map(|(name, n)| format!("{name}={n}"));
        let all = trials("tags", &[&settings.each_ref().map(String::as_str)[..], &["requests=1600"]].concat());
        let most = (f64::from(depth) / f64::from(latency_us) * 1e6).min(f64::from(processors) / request_s);
        for trial in &all {
            let rate = trial.phases[0].operations as f64 / trial.phases[0].seconds;
            assert!(rate <= most, "{} {settings:?}: {rate} of {most}", trial.contestant.label);
            assert!(
                rate > most / 2.0 || !trial.contestant.label.ends_with("hand-off"),
                "{settings:?}: {rate} of {most}"
            );
        }
    }
}

#[test]
fn the_shrinker_frees_what_it_is_called_for_beside_lookups_of_the_same_inode() {
    let all = trials("es-stall", &["entries=10000", "reclaim=2000", "scan=64"]);
    for trial in &all {
        let (label, freed) = (&trial.contestant.label, trial.measures["entries_reclaimed"]);
        let wanted = if label.ends_with("delayed-only") { 0.0..=0.0 } else { 2_000.0..=2_063.0 };
        assert!(wanted.contains(&freed), "{label}: {freed}");
        assert!(trial.phase("lookup").is_some_and(|p| p.operations > 0), "{label}");
    }
}

#[test]
fn each_thread_of_alloc_threads_does_all_its_operations() {
    for work in ["work=small-files", "work=append"] {
        let all = trials("alloc-threads", &[work, "threads=3", "operations=300"]);
        for trial in &all {
            assert_eq!(trial.measures["operations"], 900.0, "{work} {}", trial.contestant.label);
            assert!(trial.measures["operation_ns"] > 0.0, "{work} {}", trial.contestant.label);
        }
    }
}

#[test]
fn threads_are_no_choice_on_modelled_processors() {
    for model in ["alloc-threads", "engine"] {
        let refused = |set: &[&str]| {
            let dir = tempfile::tempdir().expect("directory");
            run(&config(dir.path(), model, set), &AtomicBool::new(false)).expect_err(model).to_string()
        };
        assert!(refused(&["threads=3", "processors=4"]).contains("threads=3"), "{model}");
        assert!(refused(&["threads=1000"]).contains("threads=1000"), "{model}");
    }
}

#[test]
fn an_interruption_ends_the_run_and_leaves_no_trial() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path(), "tags", &[]);
    assert!(matches!(run(&config, &AtomicBool::new(true)), Err(Error::Interrupted)));
    assert!(load(&config.output).expect("trials").is_empty());
}

#[test]
fn senseless_parameters_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().expect("directory");
    let mut configs = vec![
        config(dir.path(), "group-search", &["fill=100"]),
        config(dir.path(), "es-shrink", &["placement=here"]),
        config(dir.path(), "tags", &["depth=0"]),
        config(dir.path(), "tags", &["color=1"]),
        config(dir.path(), "es-stall", &["entries=10", "reclaim=11"]),
        config(dir.path(), "alloc-threads", &["work=rest"]),
        config(dir.path(), "tags", &["processors=100000"]),
        config(dir.path(), "reclaim", &["backing=tape"]),
        config(dir.path(), "reclaim", &["touched_mib=7000"]),
        Config { rounds: 0, ..config(dir.path(), "tags", &[]) },
    ];
    configs.push(Config { policies: vec!["best".into()], ..config(dir.path(), "group-search", &[]) });
    for config in configs {
        assert!(run(&config, &AtomicBool::new(false)).is_err_and(|e| e.is_usage()), "{config:?}");
    }
    assert!(!dir.path().join("result").exists());
}

/// The finding of the 2013 thread, on a sixteenth of its machine.
#[test]
fn vanilla_collapses_beside_a_large_write_and_used_once_does_not() {
    let all = trials("reclaim", &["scale=16"]);
    let ops = |policy: &str, size: &str| count(&all, policy, &format!("memcachetest_ops_{size}"));
    let writes = |policy: &str| count(&all, policy, "page_writes_file");
    assert!(ops("vanilla", "4055M") * 4.0 < ops("vanilla", "0M"), "{}", ops("vanilla", "4055M"));
    assert!(count(&all, "vanilla", "kswapd_pages_reclaimed") < 0.4 * count(&all, "vanilla", "kswapd_pages_scanned"));
    assert!(ops("stall-once", "4055M") > 0.9 * ops("stall-once", "0M"), "{}", ops("stall-once", "4055M"));
    assert!(writes("vanilla") > 100.0 * writes("stall-once"), "{} {}", writes("vanilla"), writes("stall-once"));
    for size in ["715M", "2385M", "4055M"] {
        assert_eq!(ops("used-once", size), ops("used-once", "0M"), "{size}");
        assert_eq!(count(&all, "used-once", &format!("swaptotal_{size}")), 0.0, "{size}");
    }
    assert_eq!(writes("used-once"), 0.0);
    let looks = |name: &str| count(&all, "used-once", &format!("kswapd_pages_{name}"));
    assert_eq!(looks("scanned"), looks("reclaimed"), "no page is looked at in vain");
}

/// A file is durable at the end, with any storage under it and any actor that reclaims.
#[test]
fn every_backing_ends_its_file_without_swapping_under_used_once() {
    for backing in ["backing=nfs", "backing=ext3"] {
        let all = trials("reclaim", &[backing]);
        for policy in ["vanilla", "proportional", "stall-once", "used-once"] {
            for size in ["715M", "2385M", "4055M"] {
                let ns = count(&all, policy, &format!("io_duration_ns_{size}"));
                assert!(ns > 1e7, "{backing} {policy} {size}: {ns}");
            }
        }
        assert_eq!(count(&all, "used-once", "swap_outs"), 0.0, "{backing}");
    }
}
