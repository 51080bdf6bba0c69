//! An image that is there is aged by the engine in this process, and stays for other work.
//!
//! Main items: [`Config`], [`age`], [`Point`] (how the image is laid out after a part of it). The work is the workload
//! `age`; here the image is looked at each time it is unmounted.
//!
//! The option `exact` is always on: the same seed leaves the same image.
//!
//! # Locking
//! None.

use std::path::PathBuf;

use extant_base::sync::atomic::{AtomicBool, AtomicU32};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::measure::Recorded;
use crate::target::{self, Site};
use crate::vfs::Vfs;
use crate::workload::{self, Context, Parameters, Place, Settled, Space};

/// What to age, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The image file. It is changed.
    pub image: PathBuf,
    /// Options of the engine, as in a target.
    pub options: Vec<String>,
    /// `NAME=VALUE`: parameters of the workload that differ from its own.
    pub settings: Vec<String>,
    /// Of everything random.
    pub seed: u64,
}

/// The image at the end of a part of the work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The part: `fill`, `turn-0.5`, `turn-1.0`, ...
    pub phase: String,
    /// Seed of everything random.
    pub seed: u64,
    /// Options of the engine.
    pub options: String,
    /// Parameters of the workload.
    pub parameters: std::collections::BTreeMap<String, serde_json::Value>,
    /// Where things lie.
    pub layout: Layout,
}

/// Ages the image; `at` hears of each point when it is reached, `say` what is being done. `stop` ends it; the image is
/// then of no use.
///
/// # Errors
/// Wrong parameters and options, which are found before anything is written; what fails in the image.
pub fn age(
    config: &Config,
    stop: &AtomicBool,
    at: &mut dyn FnMut(&Point) -> Result<()>,
    say: &dyn Fn(&str),
) -> Result<()> {
    let workload = workload::find("age")?;
    let mut parameters = workload.parameters(1.0);
    config.settings.iter().try_for_each(|setting| parameters.set(setting))?;
    workload.check(&parameters)?;
    let options = ["exact".to_owned()].iter().chain(&config.options).cloned().collect::<Vec<_>>().join(",");
    let target = format!("engine:{},{options}", config.image.display());
    let rig = target::contestants(&[target], &[])?.remove(0);
    target::check::engine_on(&rig).map_err(|why| Error::Target { label: rig.contestant.label.clone(), why })?;
    let program = PathBuf::new();
    let site =
        Site::new(&rig, &config.image, &program, config.seed, Recorded::NONE, std::sync::Arc::new(AtomicU32::new(0)))?;
    let mut watched = Watched { site, config, options: &options, parameters: &parameters, points: 0, at };
    say("mounting");
    watched.site.up()?;
    let mut context = Context::new(&mut watched, &parameters, config.seed, false, stop, None, say);
    workload.run(&mut context)?;
    drop(context);
    say("writing the image");
    watched.site.settle()?;
    watched.site.finish()?;
    Ok(())
}

/// The image, which is looked at whenever it is unmounted.
struct Watched<'a> {
    site: Site,
    config: &'a Config,
    options: &'a str,
    parameters: &'a Parameters,
    points: u64,
    at: &'a mut dyn FnMut(&Point) -> Result<()>,
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
        let device = self.site.device().ok_or_else(|| Error::Failed("the image is not open".into()))?;
        let point = Point {
            phase: workload::age_phase(self.points),
            seed: self.config.seed,
            options: self.options.to_owned(),
            parameters: self.parameters.values().clone(),
            layout: Layout::of(device)?,
        };
        self.points += 1;
        (self.at)(&point)?;
        self.site.up()?;
        Ok(settled)
    }
}
