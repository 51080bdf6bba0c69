//! Runs the engine in this process on an existing image, which is kept for other work; by default with the workload
//! `age`.
//!
//! Main items: [`Config`], [`age`], [`Point`] (the layout of the image after a phase). The image is read each time that
//! the workload has unmounted it, and at the end.
//!
//! The option `exact` is always on: the same seed leaves the same image.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_block::device::{DeviceModel, Locking};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::measure::{Figures, Recorded};
use crate::result::Phase;
use crate::target::{self, EngineOptions, Site};
use crate::timing;
use crate::vfs::Vfs;
use crate::workload::{self, Context, Parameters, Place, Settled, Space};

/// The image and the work.
#[derive(Clone, Debug)]
pub struct Config {
    /// The image file, which is changed.
    pub image: PathBuf,
    /// Name of the workload.
    pub workload: String,
    /// 1.0: the parameters of the workload's source.
    pub scale: f64,
    /// `NAME=VALUE`: parameters that differ from the scaled ones.
    pub settings: Vec<String>,
    /// Options of the engine, as in a target.
    pub options: Vec<String>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The device on which checks are timed at each point.
    pub check_on: Option<DeviceModel>,
}

/// The image after a phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The last phase that has ended.
    pub phase: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Options of the engine.
    pub options: String,
    /// The workload.
    pub workload: String,
    /// Its parameters.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// The phase's operations.
    pub operations: u64,
    /// Bytes of file data that it read or wrote.
    pub bytes: u64,
    /// The figures of a modelled device while the phase ran; times are the model's.
    pub device: Figures,
    /// The time of the device of [`Config::check_on`] for checks of the image, in seconds.
    pub check: BTreeMap<&'static str, f64>,
    /// The layout of the image.
    pub layout: Layout,
}

/// Runs the workload on the image. `at` is called for each point, `say` for each step. `stop` ends it; the image is
/// then unusable.
///
/// # Errors
/// Wrong parameters and options, which are detected before anything is written; errors of the image.
pub fn age(
    config: &Config,
    stop: &AtomicBool,
    at: &mut dyn FnMut(&Point) -> Result<()>,
    say: &dyn Fn(&str),
) -> Result<()> {
    let workload = workload::find(&config.workload)?;
    workload::check_inputs(workload, None)?;
    super::check_scale(config.scale)?;
    let mut parameters = workload.parameters(config.scale);
    config.settings.iter().try_for_each(|setting| parameters.set(setting))?;
    workload.check(&parameters)?;
    let options = [&["exact".to_owned()], &config.options[..]].concat().join(",");
    if config.check_on.is_some() && EngineOptions::parse(&options).is_ok_and(|o| o.memory) {
        return Err(Error::Usage("io=memory: e2fsck checks only the file; leave the option out".into()));
    }
    let mut rig = target::contestants(&[format!("engine:IMAGE,{options}")], &[])?.remove(0);
    // Sets the path directly: in a target's text it would end at a comma.
    rig.target.path.clone_from(&config.image);
    let refused = |why| Error::Target { label: config.image.display().to_string(), why };
    target::check::engine_on(&rig, workload.needs(&parameters)).map_err(refused)?;
    // No other program serves the image.
    let (program, serving) = (PathBuf::new(), Arc::new(AtomicU32::new(0)));
    let site = Site::new(&rig, &config.image, &program, config.seed, Recorded::NONE, serving)?;
    let mut watched = Watched {
        site,
        config,
        options,
        parameters: &parameters,
        ended: Phase::default(),
        fresh: false,
        checked: None,
        at,
    };
    let mut work = || {
        say("mounting");
        watched.site.up()?;
        let mut context = Context::new(&mut watched, &parameters, config.seed, false, stop, None, say);
        workload.run(&mut context)?;
        drop(context);
        say("writing the image");
        watched.site.settle()?;
        if watched.fresh {
            watched.look()?;
        }
        Ok(())
    };
    work().and_then(|()| watched.site.finish().map(drop)).map_err(|e| match stop.load(Ordering::Relaxed) {
        // A program that was called also gets Ctrl-C, and fails.
        true => Error::Interrupted,
        false => e,
    })
}

/// The image, which is read whenever it is unmounted.
struct Watched<'a> {
    site: Site,
    config: &'a Config,
    options: String,
    parameters: &'a Parameters,
    /// The last phase, and whether the image still has to be read after it.
    ended: Phase,
    fresh: bool,
    /// The times of checks of an image with this layout.
    checked: Option<(Layout, BTreeMap<&'static str, f64>)>,
    at: &'a mut dyn FnMut(&Point) -> Result<()>,
}

impl Watched<'_> {
    fn check(&self) -> Result<BTreeMap<&'static str, f64>> {
        let Some(model) = &self.config.check_on else { return Ok(BTreeMap::new()) };
        // The engine has the image open, and is idle meanwhile.
        let extant = timing::check(&self.config.image, model.clone(), Locking::None)?;
        let e2fsck = timing::e2fsck(&self.config.image, model.clone(), Locking::None)?;
        for (program, checked) in [("extant", extant), ("e2fsck", e2fsck)] {
            if checked.damaged {
                let image = self.config.image.display();
                return Err(Error::Failed(format!("{image}: {program} finds damage after {}", self.ended.name)));
            }
        }
        Ok([("extant", extant.usage.seconds()), ("e2fsck", e2fsck.usage.seconds())].into())
    }

    fn look(&mut self) -> Result<()> {
        let device = self.site.device().ok_or_else(|| Error::Failed("the image is not open".into()))?;
        let modelled = self.site.modelled();
        let layout = Layout::of(device)?;
        // A phase that only reads leaves the image unchanged.
        let check = match self.checked.take().filter(|(same, _)| *same == layout) {
            Some((_, check)) => check,
            None => self.check()?,
        };
        self.checked = Some((layout.clone(), check.clone()));
        let measures = self.ended.measures.iter().filter(|(name, _)| modelled.contains_key(*name));
        let point = Point {
            phase: self.ended.name.clone(),
            seed: self.config.seed,
            options: self.options.clone(),
            workload: self.config.workload.clone(),
            parameters: self.parameters.values().clone(),
            operations: self.ended.operations,
            bytes: self.ended.bytes,
            device: measures.map(|(name, n)| (name.clone(), *n)).collect(),
            check,
            layout,
        };
        self.fresh = false;
        (self.at)(&point)
    }
}

impl Place for Watched<'_> {
    fn vfs(&self) -> Result<&dyn Vfs> {
        self.site.vfs()
    }

    fn space(&self) -> Result<Space> {
        self.site.space()
    }

    fn cold(&mut self) -> Result<Settled> {
        let settled = self.site.settle()?;
        if self.fresh {
            self.look()?;
        }
        self.site.up()?;
        Ok(settled)
    }

    fn counters(&self) -> Figures {
        self.site.counters()
    }

    fn ended(&mut self, phase: &Phase) {
        (self.ended, self.fresh) = (phase.clone(), true);
    }
}
