//! The whole table of damaged images, repaired: what is proved is clean for e2fsck, and no loss comes unannounced.
//!
//! `EXTANT_ONLY=TEXT` takes only the mutations whose names contain the text, and prints their plans.

mod judge;

use std::collections::BTreeMap;

use extant_repair::End;
use extant_testkit::damage::{self, Image, Mutation, census};
use judge::{Verdict, all, judge, summary};

#[test]
fn damage_of_the_table_is_repaired_or_left_alone() {
    let only = std::env::var("EXTANT_ONLY").ok();
    let wanted = |mutation: &&Mutation| only.as_ref().is_none_or(|only| mutation.name.contains(only.as_str()));
    let states: Vec<(&Mutation, Image)> =
        damage::table().filter(wanted).flat_map(|one| one.images.iter().map(move |image| (one, *image))).collect();
    let sound: BTreeMap<String, _> =
        Image::ALL.iter().map(|image| (format!("{image:?}"), census::take(image.made()))).collect();
    let verdicts = all(&states, |(mutation, image), dir| {
        let name = format!("{image:?}: {}", mutation.name);
        judge(name, &sound[&format!("{image:?}")], &mutation.on(*image), dir)
    });
    let shown = |one: &&Verdict| {
        only.is_some()
            || one.end == Some(End::Refused)
            || one.end.is_none()
            || !one.unnamed.is_empty()
            || !one.is_clean()
            || !one.losses.is_empty()
    };
    verdicts.iter().filter(shown).for_each(|one| println!("{}", one.text()));
    println!("{}", summary(&verdicts));
    let count = |of: &dyn Fn(&Verdict) -> bool| verdicts.iter().filter(|one| of(one)).count();
    // Of what is written, e2fsck finds nothing more, and no loss comes unannounced.
    let doubted: Vec<&str> = verdicts
        .iter()
        .filter(|one| one.end == Some(End::Proved) && !one.is_clean())
        .map(|one| one.name.as_str())
        .collect();
    assert!(doubted.is_empty(), "{doubted:?}");
    // Where -p stops, it has planned beside the device, and nothing else.
    let stops = count(&|one| one.stops.is_some());
    let changed = count(&|one| one.stops.is_some() && one.preen_changed);
    println!("preen: stops in {stops} states, of which {changed} are changed");
    assert_eq!(changed, 0, "-p has changed images where it stops");
    let unnamed = verdicts.iter().map(|one| one.unnamed.len()).sum::<usize>();
    assert_eq!(unnamed, 0, "losses that the plan does not name");
    let other: Vec<&Verdict> = verdicts.iter().filter(|one| !one.agrees_with_preen()).collect();
    for one in &other {
        println!("preen: {}: {:?}, e2fsck -fp {:?}", one.name, one.stops, one.e2fsck_preen);
    }
    println!("preen: the same decision in {} of {} states", verdicts.len() - other.len(), verdicts.len());
    if only.is_none() {
        let good = count(&|one| matches!(one.end, Some(End::Proved | End::Sound)));
        let names: usize = verdicts.iter().map(|one| one.difference.moved.len()).sum();
        let gone: usize = verdicts.iter().map(|one| one.difference.gone.len()).sum();
        assert_eq!(verdicts.len(), 402);
        assert!(verdicts.len() - other.len() >= 385, "the decision of -p differs in {} states", other.len());
        assert!(good >= 395 && names <= 10 && gone == 0, "{good} sound or repaired, {names} names lost, {gone} gone");
    }
}
