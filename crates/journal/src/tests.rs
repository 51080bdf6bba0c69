//! Placeholder until the crash device lands; see tests in fs.
