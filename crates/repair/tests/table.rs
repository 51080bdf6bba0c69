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
}
