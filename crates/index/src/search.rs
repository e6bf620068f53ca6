//! What all indexes have in common.

use std::fmt::Debug;

use crate::keys::SortedKeys;

/// Finds places in sorted keys.
///
/// It was built from the same sorted keys as it is called with.
pub trait Search: Debug + Send + Sync {
    /// For each of `keys`, writes the place of the first sorted key that is not smaller, or the number of sorted keys.
    ///
    /// # Panics
    /// If there are fewer `places` than `keys`.
    fn lower_bounds(&self, sorted: &SortedKeys, keys: &[u64], places: &mut [usize]);

    /// Bytes of memory besides the sorted keys.
    fn bytes(&self) -> usize;
}

/// Number of keys that are looked up together, each a step at a time. A core waits for 10 to 16 lines at once; more keys give
/// each prefetch the time to come. (Letting each step work for another key, so that no two wait alike, was slower by half.)
pub(crate) const TOGETHER: usize = 32;
