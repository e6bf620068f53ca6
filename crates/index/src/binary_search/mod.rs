//! Binary search, the index that needs no memory.

use overspill_machine::memory::prefetch;

use crate::keys::SortedKeys;
use crate::search::{IndexParts, Search, TOGETHER};

/// Halves the sorted keys until one is left.
///
/// All keys of a batch take the same number of steps, without branches that depend on keys, and prefetch the key of their next
/// step.
#[derive(Debug)]
pub struct BinarySearch;

impl Search for BinarySearch {
    fn lower_bounds(&self, sorted: &SortedKeys, keys: &[u64], places: &mut [usize]) {
        let (sorted, places): (&[u64], _) = (sorted, &mut places[..keys.len()]);
        if sorted.is_empty() {
            places.fill(0);
            return;
        }
        for (keys, places) in keys.chunks(TOGETHER).zip(places.chunks_mut(TOGETHER)) {
            let mut firsts = [0; TOGETHER];
            let mut length = sorted.len();
            while length > 1 {
                let half = length / 2;
                length -= half;
                let next = length / 2;
                for (first, key) in firsts.iter_mut().zip(keys) {
                    *first += if sorted[*first + half - 1] < *key { half } else { 0 };
                    prefetch(&sorted[*first + next.saturating_sub(1)]);
                }
            }
            for ((place, first), key) in places.iter_mut().zip(firsts).zip(keys) {
                *place = first + usize::from(sorted[first] < *key);
            }
        }
    }

    fn bytes(&self) -> usize {
        0
    }

    fn parts(&self) -> IndexParts<'_> {
        IndexParts::BinarySearch
    }
}
