//! The sizes of files.
//!
//! Main type: [`Sizes`].
//!
//! # Locking
//! None.

use extant_base::rng::Rng;

use crate::error::{Error, Result};

/// The mean of the log-normal distribution in "Generating Realistic Impressions" (exp(9.48 + 2.46^2 / 2)), in bytes.
/// The source gives files beyond 512 MB a Pareto tail, which is omitted here: the largest sizes are cut off.
pub const MEAN_BYTES: u64 = 264 << 10;
/// Its standard deviation, of the logarithm to base e.
const SIGMA: f64 = 2.46;
/// The smallest size of files with a random magnitude, in bytes.
const SMALLEST: f64 = 4096.0;
/// The mean must be this many times below the largest size; otherwise most files would have the largest size.
const MEAN_BELOW_LARGEST: f64 = 4.0;

/// A distribution of sizes.
#[derive(Clone, Copy, Debug)]
pub enum Sizes {
    /// The logarithm is normally distributed; larger sizes are cut to the largest.
    LogNormal {
        /// Mean of the logarithm.
        mu: f64,
        /// The largest size, bytes.
        largest: f64,
    },
    /// Each magnitude is equally frequent.
    LogUniform {
        /// The largest size, bytes.
        largest: f64,
    },
    /// All sizes are the same, bytes.
    Fixed(u64),
}

/// The name of the distribution with one size.
pub const FIXED: &str = "fixed";
const NAMES: [&str; 3] = ["log-normal", "log-uniform", FIXED];

impl Sizes {
    /// Refuses parameters that are wrong for every image.
    pub fn check(name: &str, mean: u64) -> Result<()> {
        if mean == 0 {
            return Err(Error::Usage("mean_bytes=0: it must be at least 1".into()));
        }
        let known = NAMES.contains(&name);
        if known { Ok(()) } else { Err(Error::unknown("distribution of sizes", name, NAMES)) }
    }

    /// The distribution with this name.
    pub fn new(name: &str, mean: u64, largest: u64) -> Result<Sizes> {
        let too_large = |most: u64| Error::Usage(format!("mean_bytes={mean}: it must be {most} at most in this image"));
        Sizes::check(name, mean)?;
        let bytes = largest as f64;
        match name {
            FIXED if mean > largest => Err(too_large(largest)),
            FIXED => Ok(Sizes::Fixed(mean)),
            "log-uniform" => Ok(Sizes::LogUniform { largest: bytes.max(SMALLEST) }),
            _ if mean as f64 * MEAN_BELOW_LARGEST > bytes => Err(Error::Usage(format!(
                "{}; sizes=fixed can be larger",
                too_large((bytes / MEAN_BELOW_LARGEST) as u64)
            ))),
            _ => Ok(Sizes::LogNormal { mu: mu(mean as f64, bytes), largest: bytes }),
        }
    }

    /// The size of the next file, in bytes.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let bytes = match self {
            Sizes::Fixed(bytes) => return *bytes,
            Sizes::LogUniform { largest } => SMALLEST * (largest / SMALLEST).powf(unit(rng)),
            Sizes::LogNormal { mu, largest } => {
                // Box-Muller; 1 - u is never 0.
                let (radius, angle) = ((-2.0 * (1.0 - unit(rng)).ln()).sqrt(), std::f64::consts::TAU * unit(rng));
                (mu + SIGMA * radius * angle.cos()).exp().min(*largest)
            }
        };
        (bytes as u64).max(1)
    }
}

/// A number of at least 0 and below 1.
fn unit(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// The mean of the logarithm for which the sizes, cut off at the largest, have this mean.
fn mu(mean: f64, largest: f64) -> f64 {
    let (mut low, mut high) = (0.0, largest.ln());
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if cut_mean(middle, largest) < mean {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The mean of a log-normal size that is cut off at the largest.
fn cut_mean(mu: f64, largest: f64) -> f64 {
    const STEPS: i32 = 1024;
    const REACH: f64 = 8.0;
    let width = 2.0 * REACH / f64::from(STEPS);
    let at = |i: i32| {
        let z = f64::from(i) * width - REACH;
        let density = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
        (mu + SIGMA * z).exp().min(largest) * density * width
    };
    (0..=STEPS).map(at).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_of(sizes: Sizes, draws: u64) -> (f64, u64) {
        let mut rng = Rng::new(7);
        let all: Vec<u64> = (0..draws).map(|_| sizes.draw(&mut rng)).collect();
        (all.iter().sum::<u64>() as f64 / draws as f64, all.into_iter().max().unwrap_or(0))
    }

    #[test]
    fn sizes_have_the_mean_that_is_asked_for_and_none_is_beyond_the_largest() {
        for (mean, largest) in [(MEAN_BYTES, 1 << 30), (64 << 10, 64 << 20), (16 << 20, 64 << 20)] {
            let (found, most) = mean_of(Sizes::new("log-normal", mean, largest).unwrap(), 2_000_000);
            assert!((found / mean as f64 - 1.0).abs() < 0.06, "{found} of {mean}");
            assert!(most <= largest, "{most}");
        }
        assert_eq!(mean_of(Sizes::new("fixed", 5000, 10_000).unwrap(), 10), (5000.0, 5000));
        let (found, most) = mean_of(Sizes::new("log-uniform", 1, 1 << 20).unwrap(), 100_000);
        // (b - a) / ln(b / a) from 4 KiB to 1 MiB.
        assert!((found / 188_350.0 - 1.0).abs() < 0.02 && most <= 1 << 20, "{found}");
    }

    #[test]
    fn most_files_are_small_and_most_bytes_are_in_large_ones() {
        let sizes = Sizes::new("log-normal", MEAN_BYTES, 1 << 30).unwrap();
        let mut rng = Rng::new(1);
        let all: Vec<u64> = (0..100_000).map(|_| sizes.draw(&mut rng)).collect();
        let small = all.iter().filter(|bytes| **bytes < 48 << 10).count();
        assert!(small > 60_000, "{small}");
        let large: u64 = all.iter().filter(|bytes| **bytes >= 4 << 20).sum();
        assert!(large * 2 > all.iter().sum::<u64>());
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_with_what_can_be() {
        let said = |name, mean, largest| Sizes::new(name, mean, largest).unwrap_err().to_string();
        assert!(said("pareto", 1, 10).contains("log-normal, log-uniform, fixed"));
        assert!(said("fixed", 11, 10).contains("10 at most"));
        assert!(said("log-normal", 1 << 20, 1 << 20).contains("262144 at most"));
        assert!(said("log-normal", 0, 10).contains("at least 1"));
    }
}
