//! `SOURCE_DATE_EPOCH`: the current time of a reproducible build (reproducible-builds.org).
//!
//! While it is set, no later time is written, and it seeds the random numbers. So the same commands on copies of one
//! image leave the same bytes.
//!
//! Main type: [`SourceDate`].
//!
//! # Locking
//! None.

use extant_base::clock::Clock;

use crate::failure::{Failure, Result};

const VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// The time that counts as now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceDate(i64);

impl SourceDate {
    /// The time in the environment; `None` if the variable is not set, or empty.
    ///
    /// # Errors
    /// The value is not a number of seconds since 1970.
    pub fn from_environment() -> Result<Option<SourceDate>> {
        let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(None) };
        let seconds = value.to_str().and_then(|text| text.parse().ok());
        let wrong =
            || Failure::usage(format!("{VARIABLE}: '{}' is not a number of seconds since 1970", value.display()));
        seconds.map(SourceDate).map(Some).ok_or_else(wrong)
    }

    /// A clock that is stopped at this time, or at the real time if that is earlier.
    pub fn clock(self) -> Clock {
        Clock::virtual_at(self.0.min(Clock::real().wall().sec))
    }

    /// The seed for random numbers.
    pub fn seed(self) -> u64 {
        self.0 as u64
    }

    /// Seconds since 1970.
    pub fn seconds(self) -> i64 {
        self.0
    }
}
