//! Ageing an image, and the figures of its layout, compared with e2fsck, dumpe2fs and debugfs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use extant_block::device::{FileDevice, Locking, OpenOptions};
use extant_lab::layout::Layout;
use extant_lab::run::age::{Config, Point, age};
use extant_oracle::{arg, debugfs, expect_clean, mke2fs, tool};

fn image(dir: &Path, name: &str, size: &str, mkfs: &[&str]) -> PathBuf {
    let path = dir.join(name);
    mke2fs(&path, &[&["-E", "lazy_itable_init=0"], mkfs].concat(), size);
    path
}

fn layout(image: &Path) -> Layout {
    Layout::of(&FileDevice::open(image, OpenOptions::read_only()).expect("image")).expect("layout")
}

fn config(image: &Path, settings: &[&str]) -> Config {
    Config {
        image: image.to_owned(),
        workload: "age".into(),
        scale: 1.0,
        options: Vec::new(),
        settings: settings.iter().map(|s| (*s).to_owned()).collect(),
        seed: 7,
        check_on: None,
    }
}

fn points(config: &Config) -> extant_lab::Result<Vec<Point>> {
    let mut all = Vec::new();
    let mut at = |point: &Point| {
        // At each point, the image is unmounted and its log has been checkpointed.
        expect_clean(&config.image).expect("clean");
        all.push(point.clone());
        Ok(())
    };
    age(config, &AtomicBool::new(false), &mut at, &|_| {})?;
    Ok(all)
}

#[test]
fn an_aged_image_has_the_given_fill_and_is_clean_after_each_half_turnover() {
    let dir = tempfile::tempdir().expect("directory");
    for (mkfs, fill, more) in [
        (&["-t", "ext3"][..], 90u64, &[][..]),
        (&["-t", "ext4"], 60, &["sizes=fixed", "mean_bytes=65536"]),
        (&["-t", "ext3", "-b", "1024"], 97, &["sizes=log-uniform"]),
    ] {
        let path = image(dir.path(), "a.img", "48M", mkfs);
        let fresh = layout(&path);
        let fill_setting = format!("fill={fill}");
        let settings = [&["turnovers=1", "directories=5", fill_setting.as_str()], more].concat();
        let all = points(&config(&path, &settings)).expect("aged");
        let names: Vec<&str> = all.iter().map(|p| p.phase.as_str()).collect();
        assert_eq!(names, ["fill", "turn-0.5", "turn-1.0"]);
        for point in &all {
            // At first, all space for files was free, except for the root directory and lost+found.
            let used = 100.0 * (1.0 - point.layout.free_blocks as f64 / fresh.free_blocks as f64);
            assert!((used - fill as f64).abs() < 1.0, "{mkfs:?} {}: {used} % of {fill}", point.phase);
            assert!(point.layout.files > 20 && point.layout.directory_blocks >= 5, "{point:?}");
        }
        assert_ne!(all[1].layout, all[2].layout, "nothing happened");
        assert_eq!(layout(&path), all[2].layout, "the file has the last layout");
        std::fs::remove_file(&path).expect("removed");
    }
}

/// The ratio of e2fsck's time to that of Extant's checker, on an image this small.
const RATIO: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// Checks of the image are timed while it is open, despite its locks.
#[test]
fn checks_are_timed_at_each_point() {
    let dir = tempfile::tempdir().expect("directory");
    let path = image(dir.path(), "c.img", "48M", &["-t", "ext3"]);
    let mut c = config(&path, &["turnovers=0", "directories=5"]);
    c.options = vec!["store=metadata".into()];
    c.check_on = Some(extant_lab::timing::device("hdd-2007").expect("known"));
    let checked = match points(&c) {
        Err(e) if e.to_string().contains("strace is missing") => return eprintln!("skipped: {e}"),
        points => points.expect("aged").remove(0).check,
    };
    let alone = extant_lab::timing::check(&path, c.check_on.clone().expect("known"), Locking::Required);
    let alone = alone.expect("checked");
    assert_eq!(checked["extant"], alone.usage.seconds());
    let ratio = checked["e2fsck"] / checked["extant"];
    assert!(RATIO.contains(&ratio), "{ratio}: {checked:?}");
    c.options = vec!["io=memory".into()];
    assert!(points(&c).expect_err("nothing to check").to_string().contains("leave the option out"));
}

/// The map blocks that debugfs lists, in its order, which is that of a checker.
fn map_blocks_of(image: &Path, file: &str) -> Vec<(String, u64)> {
    let text = debugfs(image, format!("stat {file}")).expect("debugfs");
    let named = |entry: &str| {
        let (kind, block) = entry.trim().strip_prefix('(')?.split_once("):")?;
        kind.chars().all(|c| c.is_ascii_uppercase() || c == '0').then_some((kind.to_owned(), block.parse().ok()?))
    };
    text.split(['\n', ',']).filter_map(named).filter(|(kind, _)| kind != "0").collect()
}

#[test]
fn the_layout_has_the_map_blocks_that_debugfs_names() {
    let dir = tempfile::tempdir().expect("directory");
    for (mkfs, extents) in [(&["-t", "ext3", "-b", "1024"][..], false), (&["-t", "ext4", "-b", "1024"], true)] {
        let path = image(dir.path(), "l.img", "80M", mkfs);
        let fresh = layout(&path);
        let settings = ["fill=70", "turnovers=1", "directories=2", "step_bytes=4096", "sizes=log-uniform"];
        let all = points(&config(&path, &settings)).expect("aged");
        let aged = &all.last().expect("a point").layout;
        // Map blocks by inode.
        let mut maps = BTreeMap::from([(8, map_blocks_of(&path, "<8>"))]);
        for directory in ["a0", "a1"] {
            let list = debugfs(&path, format!("ls -p {directory}")).expect("debugfs");
            // The fields are /inode/mode/uid/gid/name/size/
            for line in list.lines() {
                let fields: Vec<&str> = line.split('/').collect();
                if let [_, inode, _, _, _, name, ..] = fields[..]
                    && (name.starts_with('f') || name == ".")
                {
                    let inode: u64 = inode.parse().expect("a number");
                    maps.insert(inode, map_blocks_of(&path, &format!("<{inode}>")));
                }
            }
        }
        let blocks: Vec<&(String, u64)> = maps.values().flatten().collect();
        let jumps = blocks.windows(2).filter(|pair| pair[1].1 != pair[0].1 + 1).count() as u64;
        assert_eq!(aged.map_jumps, jumps, "{mkfs:?}");
        let of = |kind: &str| blocks.iter().filter(|(k, _)| k.starts_with(kind)).count() as u64;
        assert_eq!(
            (aged.single_indirect, aged.double_indirect, aged.triple_indirect, aged.extent_nodes),
            (of("IND"), of("DIND"), of("TIND"), of("ETB")),
            "{mkfs:?}"
        );
        assert_eq!(extents, aged.extent_nodes > 0);
        let numbers: BTreeSet<u64> = blocks.iter().map(|(_, block)| *block).collect();
        let runs = numbers.iter().filter(|block| !numbers.contains(&(*block - 1))).count() as u64;
        assert_eq!((aged.map_blocks, aged.map_runs), (numbers.len() as u64, runs), "{mkfs:?}");
        assert!(fresh.map_blocks < 20 && numbers.len() > fresh.map_blocks as usize + 3, "{}", numbers.len());
        // dumpe2fs' free blocks, in runs that end with their group.
        let dump = tool("dumpe2fs", &[arg(&path)]);
        let free = dump.lines().filter_map(|line| line.strip_prefix("  Free blocks: "));
        let lengths: Vec<u64> = free
            .flat_map(|list| list.split(", ").filter(|range| !range.is_empty()))
            .map(|range| {
                let mut ends = range.split('-').map(|n| n.parse::<u64>().expect("a block"));
                let first = ends.next().expect("a block");
                ends.next().unwrap_or(first) - first + 1
            })
            .collect();
        assert_eq!(aged.free_blocks, lengths.iter().sum::<u64>());
        let longest = lengths.iter().max().expect("something is free").ilog2() as usize;
        let histogram: Vec<u64> =
            (0..=longest).map(|order| lengths.iter().filter(|n| n.ilog2() as usize == order).count() as u64).collect();
        assert_eq!(aged.free_runs, histogram);
        std::fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn an_image_that_cannot_be_aged_is_refused_with_the_reason_and_not_changed() {
    let dir = tempfile::tempdir().expect("directory");
    let path = image(dir.path(), "r.img", "20M", &["-t", "ext3"]);
    let before = std::fs::read(&path).expect("image");
    for (settings, why) in [
        (&["fill=0"][..], "from 1 to 99"),
        (&["fill=120"], "from 1 to 99"),
        (&["growing=0"], "from 1 to 64"),
        (&["step_bytes=1"], "from 4096"),
        (&["append=60", "overwrite=60"], "below 100"),
        (&["sizes=pareto"], "log-normal, log-uniform, fixed"),
        (&["age=3"], "turnovers"),
    ] {
        let e = points(&config(&path, settings)).expect_err(why);
        assert!(e.is_usage() && e.to_string().contains(why), "{settings:?}: {e}");
    }
    let options = Config { options: vec!["io=fast".into()], ..config(&path, &[]) };
    assert!(points(&options).expect_err("an option").is_usage());
    let none = config(&dir.path().join("none.img"), &[]);
    assert!(points(&none).expect_err("no image").to_string().contains("none.img"));
    assert!(std::fs::read(&path).expect("image") == before, "it was written to");
    // Its size is known only once it is mounted.
    let e = points(&config(&path, &["fill=80"])).expect_err("too small");
    assert!(e.is_usage() && e.to_string().contains("age needs 16 MiB"), "{e}");
}
