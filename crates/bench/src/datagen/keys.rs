//! Keys of join workloads, shuffled, spread and drawn without tables, so that memory does not grow with the number of keys.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// Bits of sparse keys: the non-negative range of a signed 64-bit integer.
pub(crate) const SPARSE_BITS: u32 = 63;

const ROUNDS: usize = 4;

/// A seeded permutation of the numbers below a bound, computed per number.
///
/// Each round multiplies by an odd number, adds, and folds the upper half of the bits onto the lower. Each step is
/// invertible, so that the rounds permute the numbers of as many bits as the bound needs. A number beyond the bound is
/// permuted again (cycle walking), which happens less than once on average.
#[derive(Debug, Clone)]
pub(crate) struct Permutation {
    bound: u64,
    mask: u64,
    shift: u32,
    rounds: [(u64, u64); ROUNDS],
}

impl Permutation {
    /// A permutation of the numbers below `bound`, which is at most 2^63.
    pub(crate) fn new(bound: u64, random: &mut ChaCha8Rng) -> Self {
        let bits = (u64::BITS - bound.saturating_sub(1).leading_zeros()).clamp(1, SPARSE_BITS);
        let rounds = std::array::from_fn(|_| (random.next_u64() | 1, random.next_u64()));
        Self { bound, mask: u64::MAX >> (u64::BITS - bits), shift: bits.div_ceil(2), rounds }
    }

    /// The image of `number`, which is below the bound.
    pub(crate) fn apply(&self, number: u64) -> u64 {
        let mut number = number;
        loop {
            for (factor, summand) in self.rounds {
                number = number.wrapping_mul(factor).wrapping_add(summand) & self.mask;
                number ^= number >> self.shift;
            }
            if number < self.bound {
                return number;
            }
        }
    }
}

/// The keys of the two tables of a workload.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    /// The number of keys of the build side.
    count: u64,
    /// The order of the build side; `None` if it is that of the keys.
    shuffle: Option<Permutation>,
    /// Maps the rank of a key in a skewed distribution to the key, so that frequent keys are not adjacent.
    ranks: Permutation,
    spread: Spread,
    /// The distribution of the keys that are drawn; `None` if it is uniform.
    zipf: Option<Zipf<f64>>,
    match_rate: f64,
}

/// Where keys lie.
#[derive(Debug, Clone)]
enum Spread {
    /// From 1 on, one beside the other.
    Dense,
    /// At random over 63 bits.
    Shuffled(Permutation),
    /// In order over 63 bits, at this distance from each other.
    Even(u64),
}

impl Keys {
    /// Draws from `count` keys with Zipf exponent `zipf`; a share of `match_rate` of them has a match. `None` if `zipf` is
    /// not a valid exponent.
    pub(super) fn new(count: u64, zipf: f64, match_rate: f64, sparse: bool, sorted: bool, seed: u64) -> Option<Self> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let shuffle = Permutation::new(count, &mut random);
        let ranks = Permutation::new(count, &mut random);
        let spread = Permutation::new(1 << SPARSE_BITS, &mut random);
        let zipf = if zipf == 0.0 { None } else { Some(Zipf::new(count as f64, zipf).ok()?) };
        let spread = match (sparse, sorted) {
            (false, _) => Spread::Dense,
            (true, false) => Spread::Shuffled(spread),
            // Keys without a match follow those of the build side.
            (true, true) => Spread::Even((1 << SPARSE_BITS) / (2 * count.max(1))),
        };
        Some(Self { count, shuffle: (!sorted).then_some(shuffle), ranks, spread, zipf, match_rate })
    }

    /// The key of row `row` of the build side.
    pub(super) fn build(&self, row: u64) -> u64 {
        self.value(self.shuffle.as_ref().map_or(row, |shuffle| shuffle.apply(row)))
    }

    /// A key of the probe side.
    pub(super) fn probe(&self, random: &mut ChaCha8Rng) -> u64 {
        let number = match &self.zipf {
            None => random.random_range(0..self.count),
            // Ranks start at 1, and rounding could exceed the count.
            Some(zipf) => self.ranks.apply((zipf.sample(random) as u64).clamp(1, self.count) - 1),
        };
        let matches = self.match_rate >= 1.0 || random.random::<f64>() < self.match_rate;
        self.value(if matches { number } else { self.count + number })
    }

    /// Numbers below the count are keys of the build side; the next `count` numbers are keys without a match.
    fn value(&self, number: u64) -> u64 {
        match &self.spread {
            Spread::Dense => number + 1,
            Spread::Shuffled(spread) => spread.apply(number),
            Spread::Even(gap) => number * gap,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn random() -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(1)
    }

    #[test]
    fn permutations_reach_every_number_once() {
        for bound in (1..70).chain([127, 128, 129, 1000, 4096, 65_537]) {
            let permutation = Permutation::new(bound, &mut random());
            let reached: HashSet<u64> = (0..bound).map(|number| permutation.apply(number)).collect();
            assert_eq!(reached.len() as u64, bound);
            assert!(reached.iter().all(|number| *number < bound));
        }
    }

    #[test]
    fn permutations_shuffle() {
        let bound = 100_000;
        let permutation = Permutation::new(bound, &mut random());
        let ascents = (1..bound).filter(|&n| permutation.apply(n) > permutation.apply(n - 1)).count();
        assert!((45_000..55_000).contains(&ascents), "{ascents} ascents");
        let near = (0..bound).filter(|&n| permutation.apply(n).abs_diff(n) < bound / 20).count();
        assert!((8_000..12_000).contains(&near), "{near} numbers stay near their place, of about 9750");
    }

    #[test]
    fn sparse_keys_are_unique_and_fill_63_bits() {
        let keys = Keys::new(100_000, 0.0, 1.0, true, false, 3).unwrap();
        let build: HashSet<u64> = (0..100_000).map(|row| keys.build(row)).collect();
        assert_eq!(build.len(), 100_000);
        assert!(build.iter().all(|key| i64::try_from(*key).is_ok()));
        let large = build.iter().filter(|key| **key >= 1 << 62).count();
        assert!((45_000..55_000).contains(&large), "{large} of 100000 are in the upper half");
        let low: HashSet<u64> = build.iter().map(|key| key & 0xffff).collect();
        assert!(low.len() > 45_000, "{} values of the lowest 16 bits, of about 51000", low.len());
    }

    #[test]
    fn sorted_keys_ascend_and_are_found() {
        for sparse in [false, true] {
            let keys = Keys::new(1000, 0.0, 0.5, sparse, true, 5).unwrap();
            let build: Vec<u64> = (0..1000).map(|row| keys.build(row)).collect();
            assert!(build.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(sparse, build[999] > 1 << 61);
            let mut random = random();
            let found = (0..2000).filter(|_| build.binary_search(&keys.probe(&mut random)).is_ok()).count();
            assert!((900..1100).contains(&found), "{found} of 2000");
        }
    }

    #[test]
    fn the_match_rate_is_the_share_of_probe_keys_with_a_partner() {
        for sparse in [false, true] {
            for match_rate in [0.0, 0.1, 0.5, 1.0] {
                let keys = Keys::new(1000, 0.0, match_rate, sparse, false, 5).unwrap();
                let build: HashSet<u64> = (0..1000).map(|row| keys.build(row)).collect();
                let mut random = random();
                let matches = (0..20_000).filter(|_| build.contains(&keys.probe(&mut random))).count();
                assert!((matches as f64 / 20_000.0 - match_rate).abs() < 0.02, "{matches} for {match_rate}");
            }
        }
    }

    #[test]
    fn zipf_prefers_few_keys_and_spreads_them() {
        let keys = Keys::new(1000, 1.5, 1.0, false, false, 5).unwrap();
        let mut random = random();
        let mut counts = vec![0; 1001];
        for _ in 0..20_000 {
            counts[usize::try_from(keys.probe(&mut random)).unwrap()] += 1;
        }
        let mut order: Vec<usize> = (1..=1000).collect();
        order.sort_by_key(|key| std::cmp::Reverse(counts[*key]));
        // The most frequent of 1000 keys has a share of 1 / zeta(1.5) = 0.39, a bit more for the cut tail.
        assert!((7_500..8_700).contains(&counts[order[0]]), "{}", counts[order[0]]);
        assert!(counts[order[1]] * 2 < counts[order[0]]);
        assert!(order[0].abs_diff(order[1]) > 1 || order[1].abs_diff(order[2]) > 1);
    }

    #[test]
    fn impossible_exponents_are_refused() {
        assert!(Keys::new(10, -1.0, 1.0, false, false, 0).is_none());
        assert!(Keys::new(10, f64::NAN, 1.0, false, false, 0).is_none());
    }
}
