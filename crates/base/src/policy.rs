//! Declares the alternative policies of a mechanism in one place: their names, their summaries and the default.
//!
//! Main items: [`policies!`](crate::policies) (declares the enum of a mechanism), [`Table`] (the same data for code
//! that is independent of the mechanism: mount options, the lab, lists). A new policy needs one line in the declaration
//! of the enum, and its implementation.
//!
//! This module makes no decisions and holds no state.
//!
//! # Locking
//! None.

use std::fmt;

/// One policy of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The name in mount options and results.
    pub name: &'static str,
    /// Its behaviour, in one line.
    pub summary: &'static str,
}

/// The policies of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The name of the mechanism, which is the mount option if there is one.
    pub option: &'static str,
    /// The decision that it makes, in one line.
    pub decides: &'static str,
    /// The name of the default policy.
    pub default: &'static str,
    /// The policies, in the order of their declaration.
    pub rows: &'static [Row],
}

impl Table {
    /// The policies, the default first.
    pub fn default_first(&self) -> impl Iterator<Item = Row> {
        let of_default = |wanted: bool| self.rows.iter().copied().filter(move |r| (r.name == self.default) == wanted);
        of_default(true).chain(of_default(false))
    }

    /// The policy called `name`.
    pub fn find(&self, name: &str) -> Result<Row, Unknown> {
        self.rows.iter().copied().find(|r| r.name == name).ok_or_else(|| self.unknown(name))
    }

    /// The error for an unknown name.
    pub fn unknown(&self, name: &str) -> Unknown {
        Unknown { table: *self, name: name.to_owned() }
    }
}

/// The mechanism has no policy with this name. The message lists the known ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    table: Table,
    name: String,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = self.table.rows.iter().map(|r| r.name).collect();
        write!(f, "'{}' is none of {}", self.name, known.join(", "))
    }
}

impl std::error::Error for Unknown {}

/// Declares the enum of a mechanism's policies, with `ALL`, `TABLE`, `name()`, `from_name()` and `Default`.
///
/// ```
/// extant_base::policies! {
///     /// How a bicycle shed is painted.
///     pub enum Paint: "paint", "the colour of the shed", default Green {
///         Red = "red", "like a barn";
///         Green = "green", "like a tree";
///     }
/// }
/// assert_eq!(Paint::default().name(), "green");
/// assert_eq!(Paint::from_name("red"), Ok(Paint::Red));
/// assert_eq!(Paint::from_name("blue").unwrap_err().to_string(), "'blue' is none of red, green");
/// let names: Vec<&str> = Paint::TABLE.default_first().map(|row| row.name).collect();
/// assert_eq!(names, ["green", "red"]);
/// ```
#[macro_export]
macro_rules! policies {
    ($(#[$attribute:meta])* $visible:vis enum $kind:ident: $option:literal, $decides:literal, default $default:ident {
        $($policy:ident = $name:literal, $summary:literal;)+
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $visible enum $kind {
            $(#[doc = $summary] $policy,)+
        }

        impl $kind {
            /// Every policy, in the order of the declaration.
            pub const ALL: [$kind; [$($name),+].len()] = [$($kind::$policy),+];

            /// The names and summaries.
            pub const TABLE: $crate::policy::Table = $crate::policy::Table {
                option: $option,
                decides: $decides,
                default: $kind::$default.name(),
                rows: &[$($crate::policy::Row { name: $name, summary: $summary }),+],
            };

            /// The name in mount options and results.
            pub const fn name(self) -> &'static str {
                match self {
                    $($kind::$policy => $name,)+
                }
            }

            /// The policy with this name, in which `_` is read as `-`.
            pub fn from_name(name: &str) -> Result<$kind, $crate::policy::Unknown> {
                let plain = name.replace('_', "-");
                $kind::ALL.into_iter().find(|p| p.name() == plain).ok_or_else(|| $kind::TABLE.unknown(name))
            }
        }

        impl Default for $kind {
            fn default() -> $kind {
                $kind::$default
            }
        }
    };
}
