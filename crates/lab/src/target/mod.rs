//! The targets on which workloads run.
//!
//! Main types: [`Target`] (as the user wrote it), [`Kind`], [`Rig`] (a target prepared for one trial, with its options
//! and policies), [`Site`] (a target that is mounted). Before a run writes anything, [`check::all`] checks all of them.
//!
//! # Locking
//! None.

pub mod check;
mod image;
mod options;
mod site;
pub(crate) mod tools;

use std::path::PathBuf;
use std::str::FromStr;

use extant_base::policy::Table;
use extant_fs::POLICIES;

use crate::error::{Error, Result};
use crate::result::Contestant;

pub use image::{DEFAULT_MKFS, ImagePlan, Made, is_block_device, same_file};
pub use options::EngineOptions;
pub use site::{Evidence, Site, drop_caches};
pub(crate) use tools::find;
pub use tools::{Tool, one_line};

/// Kinds of targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Extant's engine in this process.
    Engine,
    /// Extant through FUSE, served by a separate process.
    Mount,
    /// The kernel's driver on a loop device.
    Kernel,
    /// e2fsprogs' FUSE driver.
    Fuse2fs,
    /// A directory as it is.
    Dir,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Engine, Kind::Mount, Kind::Kernel, Kind::Fuse2fs, Kind::Dir];

    /// Stable name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Engine => "engine",
            Kind::Mount => "mount",
            Kind::Kernel => "kernel",
            Kind::Fuse2fs => "fuse2fs",
            Kind::Dir => "dir",
        }
    }

    /// One line for a list.
    pub fn summary(self) -> &'static str {
        match self {
            Kind::Engine => {
                "engine:IMAGE[,OPTIONS]   Extant in this process, without FUSE; io=memory puts the image into memory"
            }
            Kind::Mount => "mount:IMAGE[,OPTIONS]    Extant through FUSE",
            Kind::Kernel => "kernel:IMAGE[,OPTIONS]   the kernel's ext4 on a loop device (root)",
            Kind::Fuse2fs => "fuse2fs:IMAGE[,OPTIONS]  e2fsprogs' FUSE driver",
            Kind::Dir => "dir:PATH                 any directory as it is; nothing is checked afterwards",
        }
    }
}

/// A target as the user wrote it: `KIND:PATH[,OPTION...]`. Three options belong to the lab: `name=LABEL`,
/// `program=PATH` (another build of `extant`), and `memory=SIZE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The driver.
    pub kind: Kind,
    /// Image or directory.
    pub path: PathBuf,
    /// Mount options.
    pub options: String,
    /// The label that the user gave it.
    pub name: Option<String>,
    /// The build of `extant` that serves it; `None` for this one.
    pub program: Option<PathBuf>,
    /// The memory of its trials in bytes, if different from that of all others.
    pub memory: Option<u64>,
}

impl Target {
    /// Its label. The path is left out, so that results of several machines can be merged.
    pub fn label(&self) -> String {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let mut label = match self.kind {
            Kind::Dir => format!("{}:{}", self.kind.name(), self.path.display()),
            _ if self.options.is_empty() => self.kind.name().to_owned(),
            _ => format!("{},{}", self.kind.name(), self.options),
        };
        if let Some(program) = &self.program {
            label += &format!(",program={}", program.file_name().unwrap_or_default().to_string_lossy());
        }
        if let Some(bytes) = self.memory {
            label += &format!(",memory={}M", bytes >> 20);
        }
        label
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Target> {
        let wrong = |why: &str| Error::Usage(format!("target '{text}': {why}"));
        let (kind, rest) = text.split_once(':').ok_or_else(|| wrong("write KIND:PATH, kernel:/var/tmp/k.img say"))?;
        let kind = Kind::ALL
            .into_iter()
            .find(|k| k.name() == kind)
            .ok_or_else(|| Error::unknown("kind of target", kind, Kind::ALL.map(Kind::name)))?;
        let (path, options) = match kind {
            Kind::Dir => (rest, ""),
            _ => rest.split_once(',').unwrap_or((rest, "")),
        };
        if path.is_empty() {
            return Err(wrong("the path is missing"));
        }
        let (mut name, mut program, mut memory, mut rest) = (None, None, None, Vec::new());
        for option in options.split(',').filter(|o| !o.is_empty()) {
            match option.split_once('=') {
                Some(("name", n)) if n.is_empty() || n.contains(|c: char| c == '#' || c.is_control()) => {
                    return Err(wrong("a name is not empty and has no '#'"));
                }
                Some(("name", n)) => name = Some(n.to_owned()),
                Some(("program", p)) => program = Some(PathBuf::from(p)),
                Some(("memory", size)) => {
                    let bytes = extant_base::size::parse(size).map_err(|e| wrong(&e))?;
                    if bytes < 1 << 20 {
                        return Err(wrong("memory= is one MiB at least"));
                    }
                    memory = Some(bytes);
                }
                _ => rest.push(option),
            }
        }
        if program.is_some() && !matches!(kind, Kind::Engine | Kind::Mount) {
            return Err(wrong("program= is for engine and mount"));
        }
        // The engine's memory is set by its own options.
        if memory.is_some() && !matches!(kind, Kind::Kernel | Kind::Fuse2fs) {
            return Err(wrong("memory= is for kernel and fuse2fs; engine and mount have cache="));
        }
        Ok(Target { kind, path: path.into(), options: rest.join(","), name, program, memory })
    }
}

/// The policies of Extant, one table per mechanism.
pub fn policies() -> impl Iterator<Item = Table> {
    POLICIES.iter().map(|p| p.table)
}

/// A contestant, ready to run, with its label.
#[derive(Clone, Debug)]
pub struct Rig {
    /// The target.
    pub target: Target,
    /// The contestant, as recorded in results.
    pub contestant: Contestant,
    /// The options that its serving program knows.
    pub server: Server,
    /// The cache size that matches a memory limit, in bytes.
    cache: Option<u64>,
}

/// The mount options that a build of `extant` supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// `--stats` and `--stats-of`, which write its counters to a file.
    pub stats: bool,
    /// The mount option `seed=`.
    pub seed: bool,
}

impl Rig {
    /// All mount options: the target's, then the policies, then the cache size that matches a memory limit.
    pub fn all_options(&self) -> String {
        let policies = self.contestant.policies.iter().map(|(name, value)| format!("{name}={value}"));
        let own = Some(self.target.options.clone()).filter(|o| !o.is_empty());
        let cache = self.cache.map(|bytes| format!("cache={bytes}"));
        own.into_iter().chain(policies).chain(cache).collect::<Vec<_>>().join(",")
    }

    /// Sets the size of Extant's own cache, which it has besides the page cache, to half of the memory, unless its
    /// options give a size.
    pub fn match_memory(&mut self, bytes: u64) {
        let said = self.target.options.split(',').any(|o| o.starts_with("cache="));
        if matches!(self.target.kind, Kind::Engine | Kind::Mount) && !said {
            self.cache = Some((bytes / 2).max(8 << 20));
        }
    }

    /// Finds out which options another build supports.
    pub fn ask_program(&mut self) -> Result<()> {
        let Some(program) = &self.target.program else { return Ok(()) };
        let ask = |args: &[&str]| {
            let said = Tool::new(&program.to_string_lossy()).args(args).status();
            said.map_err(|e| Error::Target { label: self.contestant.label.clone(), why: e.to_string() })
        };
        let (status, version, command) = ask(&["--version"])?;
        if status != Some(0) {
            let why = format!("{command}: {}", version.trim());
            return Err(Error::Target { label: self.contestant.label.clone(), why });
        }
        // The options are only for this crate and not in the help, but an error message reveals whether they are known.
        let nothing = ["/dev/null/no-image", "/dev/null/no-directory"];
        let (_, seed, _) = ask(&[&["mount", "-o", "seed=1"], &nothing[..]].concat())?;
        let (_, stats, _) = ask(&[&["mount", "--stats=/dev/null", "--stats-of=none"], &nothing[..]].concat())?;
        self.server =
            Server { stats: !stats.contains("unexpected argument"), seed: !seed.contains("unknown mount option") };
        self.contestant.program = Some(version.trim().to_owned());
        Ok(())
    }
}

/// The contestants that result from `targets` and `policies` (`NAME=a,b`): Extant's targets once for each value, others
/// once.
pub fn contestants(targets: &[String], policies: &[String]) -> Result<Vec<Rig>> {
    if targets.is_empty() {
        return Err(Error::Usage("a run needs a --target; see `extant lab list`".into()));
    }
    let mut chosen: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
    let known: Vec<Table> = self::policies().collect();
    for text in policies {
        let (name, values) =
            text.split_once('=').ok_or_else(|| Error::Usage(format!("policy '{text}': write NAME=a,b")))?;
        let policy = known
            .iter()
            .find(|p| p.option == name)
            .ok_or_else(|| Error::unknown("policy", name, known.iter().map(|p| p.option)))?;
        let find = |value: &str| match policy.find(value) {
            Ok(row) => Ok(row.name),
            Err(_) => Err(Error::unknown(policy.option, value, policy.rows.iter().map(|r| r.name))),
        };
        if chosen.iter().any(|(n, _)| *n == policy.option) {
            return Err(Error::Usage(format!("policy {name} is given twice: write {name}=a,b")));
        }
        chosen.push((policy.option, values.split(',').map(find).collect::<Result<_>>()?));
    }
    let mut rigs: Vec<Rig> = Vec::new();
    for text in targets {
        let target: Target = text.parse()?;
        let mut sets = vec![Vec::new()];
        if matches!(target.kind, Kind::Engine | Kind::Mount) {
            for (name, values) in &chosen {
                sets = sets
                    .iter()
                    .flat_map(|set: &Vec<(&str, &str)>| values.iter().map(move |v| [&set[..], &[(*name, *v)]].concat()))
                    .collect();
            }
        }
        for set in sets {
            let mut label = target.label();
            for (name, value) in &set {
                label += &format!(",{name}={value}");
            }
            if rigs.iter().any(|r| r.contestant.label == label) {
                return Err(Error::Usage(format!("two contestants are called {label}: give one of them name=LABEL")));
            }
            let contestant = Contestant {
                label,
                kind: target.kind.name().to_owned(),
                options: target.options.clone(),
                policies: set.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
                program: None,
            };
            let server = Server { stats: true, seed: true };
            rigs.push(Rig { target: target.clone(), contestant, server, cache: None });
        }
    }
    Ok(rigs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(targets: &[&str], policies: &[&str]) -> Result<Vec<String>> {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        Ok(contestants(&own(targets), &own(policies))?.into_iter().map(|r| r.contestant.label).collect())
    }

    #[test]
    fn targets() {
        let t: Target = "kernel:/var/tmp/k.img,mb_optimize_scan=0,noatime".parse().unwrap();
        assert_eq!(
            (t.kind, t.path.to_str(), t.options.as_str()),
            (Kind::Kernel, Some("/var/tmp/k.img"), "mb_optimize_scan=0,noatime")
        );
        let t: Target = "dir:/a,b".parse().unwrap();
        assert_eq!((t.kind, t.path.to_str()), (Kind::Dir, Some("/a,b")));
        for bad in ["kernel", "kernel:", "engine:,a", "ext3:/x"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
        let t: Target = "mount:/m,name=old,noatime,program=/opt/old/extant".parse().unwrap();
        assert_eq!((t.label().as_str(), t.options.as_str()), ("old", "noatime"));
        assert_eq!(t.program, Some("/opt/old/extant".into()));
        let t: Target = "engine:/e,program=/opt/old/extant".parse().unwrap();
        assert_eq!(t.label(), "engine,program=extant");
        let t: Target = "kernel:/k,memory=66M,noatime".parse().unwrap();
        assert_eq!((t.label().as_str(), t.options.as_str()), ("kernel,noatime,memory=66M", "noatime"));
        assert_eq!(t.memory, Some(66 << 20));
        let wrong = [
            "engine:/e,name=",
            "engine:/e,name=a#b",
            "kernel:/k,memory=",
            "kernel:/k,memory=4K",
            "engine:/e,memory=1G",
        ];
        for bad in ["kernel:/k,program=/x"].into_iter().chain(wrong) {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
        let e = "ext3:/x".parse::<Target>().unwrap_err().to_string();
        assert!(e.contains("engine, mount, kernel, fuse2fs, dir"), "{e}");
    }

    #[test]
    fn every_policy_of_the_tables_can_compete_and_is_in_the_docs() {
        let docs = include_str!("../../../../docs/lab.md");
        for table in policies() {
            assert!(docs.contains(&format!("| `{}` |", table.option)), "docs/lab.md: {}", table.option);
            let names: Vec<&str> = table.default_first().map(|row| row.name).collect();
            let all = labels(&["engine:/e"], &[&format!("{}={}", table.option, names.join(","))]).unwrap();
            assert_eq!(all.len(), table.rows.len(), "{all:?}");
            for row in table.rows {
                assert!(docs.contains(&format!("`{}`: {}", row.name, row.summary)), "docs/lab.md: {}", row.name);
                assert!(EngineOptions::parse(&format!("{}={}", table.option, row.name)).is_ok());
            }
        }
    }

    #[test]
    fn a_limit_of_memory_sets_the_cache_unless_an_option_does() {
        for (target, options) in [
            ("engine:/e,noatime", "noatime,cache=33554432"),
            ("mount:/m", "cache=33554432"),
            ("mount:/m,cache=9M", "cache=9M"),
            ("kernel:/k,noatime", "noatime"),
        ] {
            let mut rig = contestants(&[target.to_owned()], &[]).unwrap().remove(0);
            rig.match_memory(64 << 20);
            assert_eq!(rig.all_options(), options, "{target}");
            assert!(!rig.contestant.label.contains("=33554432"), "the limit is the run's, not the contestant's");
        }
        let mut rig = contestants(&["engine:/e".to_owned()], &[]).unwrap().remove(0);
        rig.match_memory(1 << 20);
        assert_eq!(rig.all_options(), "cache=8388608", "the smallest that a mount takes");
    }

    #[test]
    fn policies_multiply_extant_alone() {
        let all = labels(&["engine:/e", "kernel:/k"], &["mb_policy=vanilla,goal-first", "es_policy=vanilla"]).unwrap();
        assert_eq!(
            all,
            ["engine,mb_policy=vanilla,es_policy=vanilla", "engine,mb_policy=goal-first,es_policy=vanilla", "kernel"]
        );
        let e = labels(&["engine:/e"], &["mb_policy=best"]).unwrap_err().to_string();
        assert!(e.contains("vanilla") && e.contains("goal-first"), "{e}");
        assert!(labels(&["engine:/e"], &["color=red"]).unwrap_err().to_string().contains("es_policy"));
        let e = labels(&["engine:/e", "engine:/f"], &[]).unwrap_err().to_string();
        assert!(e.contains("name="), "{e}");
        assert_eq!(labels(&["engine:/e", "engine:/f,name=b"], &[]).unwrap(), ["engine", "b"]);
        assert!(labels(&[], &[]).is_err());
    }
}
