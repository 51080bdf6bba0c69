//! `SOURCE_DATE_EPOCH`: the moment that a reproducible build calls now (reproducible-builds.org).
//!
//! While it is set, no newer time is written, and random numbers begin at a seed that it gives: the same commands on
//! copies of one image leave the same bytes.
//!
//! Main type: [`SourceDate`].
//!
//! # Locking
//! None.

use extant_base::clock::Clock;
use extant_ondisk::time::Timestamp;

use crate::failure::{Failure, Result};

const VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// What counts as now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceDate(i64);

impl SourceDate {
    /// `None`: the variable is not set, or empty.
    ///
    /// # Errors
    /// It is set to something else than seconds since 1970.
    pub fn from_environment() -> Result<Option<SourceDate>> {
        let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(None) };
        let seconds = value.to_str().and_then(|text| text.parse().ok());
        let wrong = || Failure::usage(format!("{VARIABLE}: '{}' is no number of seconds since 1970", value.display()));
        seconds.map(SourceDate).map(Some).ok_or_else(wrong)
    }

    /// A clock that stands still there, or at the moment if that is earlier.
    pub fn clock(self) -> Clock {
        Clock::virtual_at(self.0.min(Clock::real().wall().sec))
    }

    /// Where random numbers begin.
    pub fn seed(self) -> u64 {
        self.0 as u64
    }

    /// `time`, but not later.
    pub fn clamp(self, time: Timestamp) -> Timestamp {
        if time.seconds < self.0 { time } else { Timestamp { seconds: self.0, nanos: 0 } }
    }
}
