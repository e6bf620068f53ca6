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

    /// Its arrays.
    fn parts(&self) -> IndexParts<'_>;
}

/// The arrays of an index, for kernels that look keys up.
#[derive(Debug, Clone, Copy)]
pub enum IndexParts<'a> {
    /// There are none.
    BinarySearch,
    /// A [`BTree`](crate::BTree).
    BTree {
        /// The keys of the inner nodes, level by level from the root on.
        nodes: &'a [u64],
        /// Keys of a node.
        node_keys: usize,
        /// The first node of each level.
        levels: &'a [usize],
    },
    /// [`Harmonia`](crate::Harmonia).
    Harmonia {
        /// The keys of the inner nodes, level by level from the root on.
        key_region: &'a [u64],
        /// The first child of each inner node.
        child_region: &'a [u32],
        /// The number of levels of inner nodes.
        levels: usize,
    },
    /// A [`RadixSpline`](crate::RadixSpline).
    RadixSpline {
        /// Keys with their places.
        points: &'a [[u64; 2]],
        /// For each value of the upper bits of a distance, the first point with these or larger ones, and the number of points.
        table: &'a [u32],
        /// Lower bits of a distance that the table ignores.
        shift: u32,
    },
}

/// Number of keys that are looked up together, each a step at a time. A core waits for 10 to 16 lines at once; more keys give
/// each prefetch the time to come. (Letting each step work for another key, so that no two wait alike, was slower by half.)
pub(crate) const TOGETHER: usize = 32;
