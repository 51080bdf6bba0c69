//! `tags`: request tags are taken and given back by one thread that holds `held` of `depth` all the time and gives back
//! in random order: how many different tags that takes. Few are good: their requests stay in the cache.
//!
//! What it does not do: several threads, waiting. What those cost is no exact count; the workload `fsmark` has it.
//!
//! # Locking
//! None.

use std::collections::BTreeSet;
use std::sync::Arc;

use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_block::queue::{TagGuard, TagPolicyKind, TagSet};

use super::{Bench, Model};
use crate::error::{Error, Result};
use crate::workload::Parameters;

/// No queue is deeper (Linux: BLK_MQ_MAX_DEPTH is 10240).
const DEPTH_MAX: u64 = 1 << 16;

/// See the page.
pub struct Tags;

impl Model for Tags {
    fn name(&self) -> &'static str {
        "tags"
    }

    fn summary(&self) -> &'static str {
        "request tags are taken and given back by one thread"
    }

    fn headline(&self) -> &'static str {
        "tags_used"
    }

    fn policies(&self) -> Table {
        TagPolicyKind::TABLE
    }

    fn parameters(&self) -> Parameters {
        Parameters::new().with("depth", 128).with("held", 32).with("requests", 100_000)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let (depth, held) = (parameters.get("depth"), parameters.get("held"));
        if depth == 0 || depth > DEPTH_MAX || held >= depth {
            return Err(Error::Usage(format!("depth={depth} held={held}: from 1 to {DEPTH_MAX}, and fewer held")));
        }
        Ok(())
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let kind = TagPolicyKind::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let (depth, held) = (parameters.get("depth"), parameters.get("held"));
        let set = Arc::new(TagSet::new(depth as u32, kind));
        let mut work = Work { set, held: Vec::new(), rng: bench.rng(), used: BTreeSet::new(), most: held as usize };
        bench.time("take", parameters.get("requests"), &mut work, Work::give_back, Work::take)?;
        work.used.extend(work.held.iter().map(TagGuard::tag));
        bench.count("tags_used", work.used.len() as u64);
        bench.count("tags_waited_for", work.set.waits());
        Ok(())
    }
}

struct Work {
    set: Arc<TagSet>,
    held: Vec<TagGuard>,
    rng: Rng,
    used: BTreeSet<u32>,
    most: usize,
}

impl Work {
    fn give_back(&mut self, _: u64) -> Result<()> {
        if let Some(last) = self.held.last() {
            self.used.insert(last.tag());
        }
        if self.held.len() > self.most {
            let which = self.rng.below(self.held.len() as u64) as usize;
            drop(self.held.swap_remove(which));
        }
        Ok(())
    }

    fn take(&mut self, (): ()) -> Result<()> {
        let tag = TagSet::try_get(&self.set);
        self.held.push(tag.ok_or_else(|| Error::Failed("no tag, though some are free".into()))?);
        Ok(())
    }
}
