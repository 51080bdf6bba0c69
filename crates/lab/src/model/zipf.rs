//! Popularity by rank, for traces.
//!
//! Main types: [`Zipf`], [`shuffled`].

use extant_base::rng::Rng;

/// Numbers 0 to `n`, the smaller the likelier: the `k`th as 1 to `k` to the power of `skew`.
pub struct Zipf(Vec<f64>);

impl Zipf {
    pub fn new(n: u64, skew: f64) -> Zipf {
        let mut sum = 0.0;
        let add = |k: u64| {
            sum += 1.0 / (k as f64).powf(skew);
            sum
        };
        Zipf((1..=n).map(add).collect())
    }

    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let all = self.0.last().copied().unwrap_or(0.0);
        let at = rng.next_u64() as f64 / u64::MAX as f64 * all;
        (self.0.partition_point(|sum| *sum < at) as u64).min(self.0.len() as u64 - 1)
    }
}

/// Numbers 0 to `n` in random order, so that an item's popularity has nothing to do with its place.
pub fn shuffled(n: u64, rng: &mut Rng) -> Vec<u32> {
    let mut all: Vec<u32> = (0..n as u32).collect();
    for i in (1..all.len()).rev() {
        all.swap(i, rng.below(i as u64 + 1) as usize);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_draws_are_among_the_popular() {
        let zipf = Zipf::new(1000, 1.0);
        let mut rng = Rng::new(1);
        let popular = (0..10_000).filter(|_| zipf.draw(&mut rng) < 23).count();
        // The harmonic numbers of 23 and 1000 are 3.73 and 7.49.
        assert!((4_700..5_300).contains(&popular), "{popular}");
    }

    #[test]
    fn shuffling_keeps_every_number() {
        let mut all = shuffled(1000, &mut Rng::new(1));
        assert_ne!(all, (0..1000).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }
}
