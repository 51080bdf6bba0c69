//! The plan: an answer to each finding.
//!
//! Main types: [`Step`] (the change, and its cause), [`Action`], [`Layer`], [`Answer`], [`Plan`]. [`volume`],
//! [`inodes`], [`directories`] and [`counts`] answer the problems of the check's passes. Every problem of the table has
//! an answer, or a reason why there is none. [`preen`] decides which steps need no confirmation.
//!
//! What it does not do: change anything.
//!
//! # Locking
//! None.

mod counts;
mod directories;
mod inodes;
mod preen;
mod step;
mod volume;

use std::collections::{BTreeMap, BTreeSet};

use extant_check::{Finding, Place, Problem, Report, Severity};
use extant_ondisk::{GroupNr, InodeNr};

pub use step::{Action, InodeField, Layer, Step, SuperField, Word};

use crate::error::UNREADABLE;
use crate::view::Image;

/// The answer to a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A step repairs it.
    Act(Layer, Action),
    /// Another finding has the same cause, and its step repairs both.
    Follows,
    /// It is no damage, or something that the owner may want.
    Leave,
    /// There is no repair, for this reason.
    Refuse(&'static str),
}

/// The steps for a report.
#[derive(Debug, Default)]
pub struct Plan {
    /// The steps by layer, and within a layer by action.
    pub steps: Vec<Step>,
    /// Damage that no step repairs, with the reason.
    pub refused: Vec<(Finding, String)>,
}

/// Facts that answers need.
pub struct Planner<'a> {
    pub image: &'a Image,
    pub report: &'a Report,
    /// Actions that were declined or could not be carried out, with the reason.
    pub without: &'a BTreeMap<Action, String>,
}

impl Planner<'_> {
    /// Whether there is a finding of this problem.
    pub fn any(&self, problem: Problem) -> bool {
        self.report.count(problem) > 0
    }

    /// Whether there is a finding of this problem for this inode.
    pub fn has(&self, problem: Problem, ino: InodeNr) -> bool {
        self.report.findings.iter().any(|finding| finding.problem == problem && finding.place.ino() == Some(ino))
    }

    fn answer(&self, finding: &Finding) -> Answer {
        let found = match finding.problem.code() >> 16 {
            0x00 => volume::answer(self, finding),
            0x01 => inodes::answer(self, finding),
            0x02 | 0x03 => directories::answer(self, finding),
            _ => counts::answer(self, finding),
        };
        found.unwrap_or(Answer::Refuse("this version knows no repair for it"))
    }
}

/// The inode of a finding; 0 if it has none.
pub fn ino(finding: &Finding) -> InodeNr {
    finding.place.ino().unwrap_or(InodeNr(0))
}

/// The group of a finding.
pub fn group(finding: &Finding) -> Option<GroupNr> {
    match finding.place {
        Place::Group(group) => Some(group),
        _ => None,
    }
}

/// A step on a field of the finding's inode.
pub fn field(layer: Layer, finding: &Finding, field: InodeField, value: u64) -> Option<Answer> {
    Some(Answer::Act(layer, Action::InodeField(ino(finding), field, value)))
}

/// A step on flags of the finding's inode.
pub fn flags(finding: &Finding, set: u32, clear: u32) -> Option<Answer> {
    Some(Answer::Act(Layer::Inodes, Action::InodeFlags { ino: ino(finding), set, clear }))
}

/// The rule if a block cannot be read: names, maps and inodes in it still count, so nothing is freed, and no count
/// becomes smaller.
struct UnreadRule {
    /// Groups whose bitmaps have bits set that nothing readable uses.
    groups: BTreeSet<GroupNr>,
}

impl UnreadRule {
    /// Returns `None` if everything necessary could be read.
    fn of(planner: &Planner<'_>, without: &BTreeMap<Action, String>) -> Option<UnreadRule> {
        if !planner.any(Problem::Unreadable) && !without.values().any(|why| why == UNREADABLE) {
            return None;
        }
        let frees = |finding: &&Finding| matches!(finding.problem, Problem::BlockUnused | Problem::InodeUnused);
        let group = |finding| match planner.answer(finding) {
            Answer::Act(_, Action::Recount(group)) => Some(group),
            _ => None,
        };
        Some(UnreadRule { groups: planner.report.findings.iter().filter(frees).filter_map(group).collect() })
    }

    fn forbids(&self, action: &Action, finding: &Finding) -> bool {
        match action {
            Action::Recount(group) => self.groups.contains(group),
            Action::Links(..) | Action::Blocks(..) | Action::InodeField(_, InodeField::References, _) => {
                finding.expected < finding.found
            }
            Action::AttributeBlock { references, .. } => *references != 0 && finding.expected < finding.found,
            // Its name may be in an unreadable block.
            Action::Clear(_) => finding.problem == Problem::UnattachedInode,
            Action::Quota(_) => true,
            _ => false,
        }
    }
}

/// Plans the repair of everything in a report. `without` are actions that were declined or could not be carried out.
pub fn plan(image: &Image, report: &Report, without: &BTreeMap<Action, String>) -> Plan {
    let planner = Planner { image, report, without };
    let mut plan = Plan::default();
    let mut steps: BTreeMap<(Layer, Action), Step> = BTreeMap::new();
    let mut add = |layer, action: Action, cause: &Finding| {
        let is_safe = preen::is_safe(image, &action, cause);
        let fresh = || Step { layer, action: action.clone(), cause: *cause, findings: 0, is_safe: true };
        let step = steps.entry((layer, action.clone())).or_insert_with(fresh);
        step.findings += 1;
        step.is_safe &= is_safe;
    };
    let blind = UnreadRule::of(&planner, without);
    for finding in &report.findings {
        let is_damage = finding.problem.severity() == Severity::Damage;
        match planner.answer(finding) {
            Answer::Act(_, action) if blind.as_ref().is_some_and(|blind| blind.forbids(&action, finding)) => {
                plan.refused.push((*finding, UNREADABLE.to_owned()));
            }
            Answer::Act(_, action) if without.contains_key(&action) => {
                plan.refused.push((*finding, without[&action].clone()));
            }
            Answer::Act(layer, action) => add(layer, action, finding),
            Answer::Refuse(why) if is_damage => plan.refused.push((*finding, why.to_owned())),
            Answer::Refuse(_) | Answer::Follows | Answer::Leave => {}
        }
    }
    if blind.is_none() {
        counts::complete(&planner, &mut add);
    }
    for (ino, cause) in inodes::sharers(&planner) {
        let action = Action::Own(ino);
        match without.get(&action) {
            Some(why) => plan.refused.push((*cause, why.clone())),
            None => add(Layer::Shared, action, cause),
        }
    }
    plan.steps = steps.into_values().collect();
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every problem of the table has an answer or a reason for having none, regardless of where it is found.
    #[test]
    fn every_problem_has_an_answer() {
        let (image, report) = crate::view::tests::small();
        let without = BTreeMap::new();
        let planner = Planner { image: &image, report: &report, without: &without };
        let entry = Place::Entry { dir: InodeNr::ROOT, lblk: 0, offset: 24, ino: InodeNr(12) };
        let places = [
            Place::Volume,
            Place::Journal,
            Place::Group(GroupNr(0)),
            Place::Inode(InodeNr(12)),
            Place::Blocks(extant_ondisk::BlockNr(99)),
            entry,
        ];
        for problem in Problem::all() {
            let known = |place: &Place| {
                let finding = Finding::at(problem, *place);
                match problem.code() >> 16 {
                    0x00 => volume::answer(&planner, &finding),
                    0x01 => inodes::answer(&planner, &finding),
                    0x02 | 0x03 => directories::answer(&planner, &finding),
                    _ => counts::answer(&planner, &finding),
                }
            };
            assert!(places.iter().any(|place| known(place).is_some()), "{problem:?}");
        }
    }
}
