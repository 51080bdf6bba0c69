//! What holds for every workload.

use super::*;

#[test]
fn names_are_unique_and_known() {
    let mut names: Vec<&str> = all().iter().map(|w| w.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all().len());
    let e = find("small-file").err().map(|e| e.to_string()).unwrap_or_default();
    assert!(e.contains("small-files, fio-mix"), "{e}");
}
