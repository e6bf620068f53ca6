//! Sorted keys with an index of any kind.

use std::ops::Range;
use std::sync::Arc;

use overspill_advisor::IndexKind;
use overspill_machine::Result;

use crate::binary_search::BinarySearch;
use crate::btree::BTree;
use crate::harmonia::Harmonia;
use crate::keys::SortedKeys;
use crate::radix_spline::RadixSpline;
use crate::ranges::WordRanges;
use crate::search::{IndexParts, Search};

/// Lines of the nodes of a B+tree on a page.
const PAGE_LINES: usize = 64;

/// Sorted keys that are looked up.
#[derive(Debug)]
pub struct Index {
    keys: Arc<SortedKeys>,
    search: Box<dyn Search>,
}

impl Index {
    /// Builds an index over sorted keys. `O(n)`.
    ///
    /// # Errors
    /// If the system does not provide the memory, or there are more keys than an index of the kind can have.
    pub fn build(kind: IndexKind, keys: Arc<SortedKeys>) -> Result<Self> {
        let search: Box<dyn Search> = match kind {
            IndexKind::BinarySearch => Box::new(BinarySearch),
            IndexKind::BTree => Box::new(BTree::<PAGE_LINES>::new(&keys)?),
            IndexKind::LineBTree => Box::new(BTree::<1>::new(&keys)?),
            IndexKind::Harmonia => Box::new(Harmonia::new(&keys)?),
            IndexKind::RadixSpline => Box::new(RadixSpline::new(&keys)?),
        };
        Ok(Self { keys, search })
    }

    /// The sorted keys.
    pub fn keys(&self) -> &Arc<SortedKeys> {
        &self.keys
    }

    /// Bytes of memory besides the sorted keys.
    pub fn bytes(&self) -> usize {
        self.search.bytes()
    }

    /// The arrays of the index besides the sorted keys.
    pub fn parts(&self) -> IndexParts<'_> {
        self.search.parts()
    }

    /// Looks keys up: replaces `places` by the places of the sorted keys that are equal to each; of a key that is not there, the
    /// empty range where it would be. `O(log n)` a key.
    pub fn look_up(&self, keys: &[u64], places: &mut Vec<Range<usize>>) {
        /// Few enough that the lines that were read last are still in the nearest cache.
        const PART: usize = 64;
        places.clear();
        places.reserve(keys.len());
        let mut starts = [0; PART];
        for keys in keys.chunks(PART) {
            self.search.lower_bounds(&self.keys, keys, &mut starts);
            for (key, start) in keys.iter().zip(starts) {
                let is_there = self.keys.get(start) == Some(key);
                let end = match (is_there, self.keys.is_unique()) {
                    (false, _) => start,
                    (true, true) => start + 1,
                    (true, false) => self.keys.end_of(start),
                };
                places.push(start..end);
            }
        }
    }

    /// Where the keys of a set are: replaces `places` by the places of each range that has any. `O(log n)` a range.
    pub fn look_up_ranges(&self, words: &WordRanges, places: &mut Vec<Range<usize>>) {
        let ranges = words.ranges();
        // The end of a range is where the next word would be.
        let bounds: Vec<u64> = ranges.iter().flat_map(|range| [*range.start(), range.end().wrapping_add(1)]).collect();
        let mut found = vec![0; bounds.len()];
        self.search.lower_bounds(&self.keys, &bounds, &mut found);
        places.clear();
        places.extend(ranges.iter().zip(found.chunks_exact(2)).filter_map(|(range, found)| {
            let end = if *range.end() == u64::MAX { self.keys.len() } else { found[1] };
            (found[0] < end).then_some(found[0]..end)
        }));
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn sorted(mut words: Vec<u64>) -> Arc<SortedKeys> {
        words.sort_unstable();
        Arc::new(SortedKeys::write(words.len(), |keys| keys.copy_from_slice(&words)).unwrap())
    }

    /// Keys of one of several distributions.
    fn random_keys(random: &mut StdRng, count: usize) -> Vec<u64> {
        let spread = [1, 10, count as u64, 1 << 20, 1 << 40, u64::MAX][random.random_range(0..6)];
        let start = [0, 1, u64::MAX - spread, random.random_range(0..=u64::MAX - spread)][random.random_range(0..4)];
        match random.random_range(0..4) {
            0 => (0..count).map(|_| start + random.random_range(0..=spread)).collect(),
            // Far more small keys than large ones.
            1 => (0..count).map(|_| random.random::<u64>() >> random.random_range(0..64)).collect(),
            // Few keys, each many times, beside single ones.
            2 => (0..count)
                .map(|place| if place % 3 == 0 { random.random() } else { (start & !3) + place as u64 % 3 })
                .collect(),
            // In order, with gaps.
            _ => (0..count as u64).map(|place| place * 7 + u64::from(place > count as u64 / 2) * (1 << 50)).collect(),
        }
    }

    fn check(keys: &Arc<SortedKeys>, probes: &[u64], case: &str) {
        for kind in IndexKind::ALL {
            let index = Index::build(kind, Arc::clone(keys)).unwrap();
            let mut places = Vec::new();
            index.look_up(probes, &mut places);
            assert_eq!(places.len(), probes.len(), "{case}");
            for (probe, found) in probes.iter().zip(places.drain(..)) {
                let start = keys.partition_point(|key| key < probe);
                let end = keys.partition_point(|key| key <= probe);
                assert_eq!(found, start..end, "{kind} of {} keys, {probe}: {case}", keys.len());
            }
            let set = WordRanges::of(probes.chunks(2).step_by(7).map(|pair| pair[0]..=pair[pair.len() - 1]));
            index.look_up_ranges(&set, &mut places);
            let expected = set.ranges().iter().map(|range| {
                keys.partition_point(|key| key < range.start())..keys.partition_point(|key| key <= range.end())
            });
            let expected: Vec<_> = expected.filter(|places| !places.is_empty()).collect();
            assert_eq!(places, expected, "{kind} of {} keys: {case}", keys.len());
        }
    }

    #[test]
    fn all_kinds_agree_with_a_sorted_array() {
        let mut cases = 0;
        for case in 0..400 {
            let random = &mut StdRng::seed_from_u64(case);
            let count = [0, 1, 2, 7, 8, 9, 63, 300, 3000, 20_000][case as usize % 10];
            let keys = sorted(random_keys(random, count));
            let mut probes = vec![0, 1, u64::MAX, u64::MAX - 1];
            for _ in 0..300 {
                let near = if keys.is_empty() { random.random() } else { keys[random.random_range(0..keys.len())] };
                probes.push(near.wrapping_add(random.random_range(0..3)).wrapping_sub(1));
                probes.push(random.random());
            }
            check(&keys, &probes, &format!("case {case}"));
            cases += probes.len();
        }
        assert!(cases > 200_000);
    }

    /// More levels of every tree, keys in huge pages, and a spline of many points.
    #[test]
    fn large_indexes_agree_with_a_sorted_array() {
        let random = &mut StdRng::seed_from_u64(7);
        let keys = sorted((0..3_000_000).map(|_| random.random::<u64>() >> (random.random_range(0..3) * 13)).collect());
        let probes: Vec<u64> = (0..50_000)
            .map(|place| if place % 2 == 0 { keys[random.random_range(0..keys.len())] } else { random.random() })
            .collect();
        check(&keys, &probes, "large");
    }

    #[test]
    fn keys_that_are_not_sorted_are_refused() {
        let error = SortedKeys::write(3, |keys| keys.copy_from_slice(&[1, 3, 2])).unwrap_err().to_string();
        assert!(error.contains("not sorted: key 2"), "{error}");
    }

    #[test]
    fn indexes_take_the_memory_that_they_say() {
        let keys = sorted((0..1_000_000).collect());
        let bytes = |kind| Index::build(kind, Arc::clone(&keys)).unwrap().bytes();
        let all = 8 * keys.len();
        assert_eq!(bytes(IndexKind::BinarySearch), 0);
        assert!((all / 520..all / 300).contains(&bytes(IndexKind::BTree)));
        assert!((all / 9..all / 7).contains(&bytes(IndexKind::LineBTree)));
        assert!((all / 33..all / 30).contains(&bytes(IndexKind::Harmonia)));
        // Dense keys are a line between two points.
        assert!(bytes(IndexKind::RadixSpline) < 100);
    }
}
