//! What every policy must satisfy, run over [`MetaPolicy::ALL`].

use super::MetaPolicy;

#[test]
fn names_are_found_and_in_the_table() {
    for policy in MetaPolicy::ALL {
        assert_eq!(MetaPolicy::from_name(policy.name()), Ok(policy));
    }
    for row in MetaPolicy::TABLE.rows {
        assert!(include_str!("mod.rs").contains(&format!("//! | `{}` |", row.name)), "{}", row.name);
    }
}
