//! Sets of words.

use std::ops::RangeInclusive;

/// A set of words. It is stored as ranges in ascending order. No two ranges overlap or are adjacent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordRanges(Vec<RangeInclusive<u64>>);

impl WordRanges {
    /// The words that lie in any of these ranges. `O(n log n)`.
    pub fn of(ranges: impl IntoIterator<Item = RangeInclusive<u64>>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        ranges.sort_unstable_by_key(|range| *range.start());
        let mut joined: Vec<RangeInclusive<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => joined.push(range),
            }
        }
        Self(joined)
    }

    /// The words of either set. `O(n log n)`.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self::of(self.0.into_iter().chain(other.0))
    }

    /// The words of both sets. `O(n)`.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut one, mut two) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut common = Vec::new();
        while let (Some(first), Some(second)) = (one.peek(), two.peek()) {
            let both = *first.start().max(second.start())..=*first.end().min(second.end());
            let ended = if first.end() < second.end() { &mut one } else { &mut two };
            ended.next();
            if !both.is_empty() {
                common.push(both);
            }
        }
        Self(common)
    }

    /// The ranges, in ascending order.
    pub fn ranges(&self) -> &[RangeInclusive<u64>] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn words(set: &WordRanges) -> BTreeSet<u64> {
        set.ranges().iter().cloned().flatten().collect()
    }

    #[test]
    fn sets_of_ranges_are_those_of_their_words() {
        for case in 0..2000 {
            let random = &mut StdRng::seed_from_u64(case);
            let mut set = || {
                let ranges = (0..random.random_range(0..8)).map(|_| {
                    let start = random.random_range(0..60);
                    start..=start + random.random_range(0..6) - 1
                });
                let ranges: Vec<_> = ranges
                    .map(|range: RangeInclusive<i64>| *range.start() as u64..=(*range.end()).max(0) as u64)
                    .collect();
                let expected: BTreeSet<u64> = ranges.iter().cloned().flatten().collect();
                let set = WordRanges::of(ranges);
                assert_eq!(words(&set), expected, "case {case}");
                (set, expected)
            };
            let ((one, ones), (two, twos)) = (set(), set());
            let both = one.intersection(&two);
            assert_eq!(words(&both), &ones & &twos, "case {case}");
            let either = one.union(two);
            assert_eq!(words(&either), &ones | &twos, "case {case}");
            for set in [both, either] {
                assert!(set.ranges().windows(2).all(|pair| *pair[0].end() < *pair[1].start()), "case {case}");
            }
        }
    }

    #[test]
    fn the_largest_word_has_no_successor() {
        let all = WordRanges::of([5..=u64::MAX, 0..=u64::MAX, u64::MAX..=u64::MAX]);
        assert_eq!(all.ranges(), [0..=u64::MAX]);
        let last = WordRanges::of([u64::MAX..=u64::MAX, u64::MAX - 1..=u64::MAX - 1]);
        assert_eq!(last.ranges(), [u64::MAX - 1..=u64::MAX]);
        assert_eq!(all.intersection(&last), last);
    }
}
