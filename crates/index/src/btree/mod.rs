//! A B+tree without pointers.

use overspill_machine::Result;
use overspill_machine::memory::{CacheLine, PageVec, prefetch};
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};

use crate::node::{LINE, line_at, rank};
use crate::search::{Search, TOGETHER};

/// A B+tree of which the sorted keys are the leaves. Its nodes have `LINES` lines of keys, a power of two: 1 line makes the tree
/// that needs the fewest lines a lookup, 64 lines (4 KiB) that of the paper (section 3.2).
///
/// Node `k` of a level has the children `k * fanout` to `k * fanout + fanout - 1` of the level below, where the fanout is one more
/// than the keys of a node. Key `j` is the smallest key below child `j + 1`.
#[derive(Debug)]
pub struct BTree<const LINES: usize> {
    nodes: PageVec<CacheLine>,
    /// The first node of each level, from the root on.
    levels: Vec<usize>,
}

impl<const LINES: usize> BTree<LINES> {
    const KEYS: usize = LINES * LINE;
    const FANOUT: usize = Self::KEYS + 1;

    /// Builds the inner nodes over sorted keys. `O(n / keys of a node)`.
    ///
    /// # Errors
    /// If the system does not provide the memory.
    pub fn new(sorted: &[u64]) -> Result<Self> {
        const { assert!(LINES.is_power_of_two(), "the lines of a node are halved until one is left") };
        // Nodes of each level, from the leaves up.
        let mut counts = vec![sorted.len().div_ceil(Self::KEYS)];
        while let Some(count) = counts.last().copied().filter(|count| *count > 1) {
            counts.push(count.div_ceil(Self::FANOUT));
        }
        let inner: usize = counts[1..].iter().sum();
        let mut nodes = PageVec::<CacheLine>::zeroed(inner * LINES)?;
        let mut levels = Vec::with_capacity(counts.len() - 1);
        let mut first = 0;
        for level in (1..counts.len()).rev() {
            levels.push(first);
            // Keys below a child of this level.
            let below = Self::KEYS * Self::FANOUT.pow(level as u32 - 1);
            let words = CacheLine::words_mut(&mut nodes[first * LINES..(first + counts[level]) * LINES]);
            for (node, words) in words.chunks_mut(Self::KEYS).enumerate() {
                for (place, word) in words.iter_mut().enumerate() {
                    let child = node * Self::FANOUT + place + 1;
                    // No key is greater than the largest, so no lookup goes to a child that is not there.
                    *word = sorted.get(child * below).copied().unwrap_or(u64::MAX);
                }
            }
            first += counts[level];
        }
        Ok(Self { nodes, levels })
    }
}

impl<const LINES: usize> Search for BTree<LINES> {
    fn lower_bounds(&self, sorted: &[u64], keys: &[u64], places: &mut [usize]) {
        with_widest_vectors(Descent { tree: self, sorted, keys, places: &mut places[..keys.len()] });
    }

    fn bytes(&self) -> usize {
        self.nodes.bytes()
    }
}

/// Goes from the root to the leaves.
struct Descent<'a, const LINES: usize> {
    tree: &'a BTree<LINES>,
    sorted: &'a [u64],
    keys: &'a [u64],
    places: &'a mut [usize],
}

impl<const LINES: usize> VectorLoop for Descent<'_, LINES> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Vectors) {
        let Self { tree, sorted, keys, places } = self;
        let (fanout, node_keys) = (BTree::<LINES>::FANOUT, BTree::<LINES>::KEYS);
        let words = CacheLine::words(&tree.nodes);
        for (keys, places) in keys.chunks(TOGETHER).zip(places.chunks_mut(TOGETHER)) {
            let mut nodes = [0; TOGETHER];
            for (level, first) in tree.levels.iter().enumerate() {
                let starts = nodes.map(|node| (first + node) * node_keys);
                let ranks = ranks::<LINES>(words, starts, keys);
                let next = tree.levels.get(level + 1);
                for (node, rank) in nodes.iter_mut().zip(ranks).take(keys.len()) {
                    *node = *node * fanout + rank;
                    match next {
                        Some(next) => prefetch_node::<LINES>(words, (next + *node) * node_keys),
                        None => prefetch_node::<LINES>(sorted, *node * node_keys),
                    }
                }
            }
            let starts = nodes.map(|node| node * node_keys);
            let ranks = ranks::<LINES>(sorted, starts, keys);
            for ((place, start), rank) in places.iter_mut().zip(starts).zip(ranks) {
                *place = start + rank;
            }
        }
    }
}

/// Prefetches the line of a node that is read first.
#[inline(always)]
fn prefetch_node<const LINES: usize>(words: &[u64], start: usize) {
    if let Some(word) = words.get(start + LINES / 2 * LINE) {
        prefetch(word);
    }
}

/// For each key, the number of smaller keys in the node that starts at the same place of `starts`.
///
/// The lines of a node are halved by their first keys until one is left, in which all keys are compared.
#[inline(always)]
fn ranks<const LINES: usize>(words: &[u64], starts: [usize; TOGETHER], keys: &[u64]) -> [usize; TOGETHER] {
    let mut lines = [0; TOGETHER];
    let mut length = LINES;
    while length > 1 {
        let half = length / 2;
        length -= half;
        for ((line, start), key) in lines.iter_mut().zip(starts).zip(keys) {
            let is_smaller = words.get(start + (*line + half) * LINE).is_some_and(|first| first < key);
            *line += if is_smaller { half } else { 0 };
            if let Some(word) = words.get(start + (*line + length / 2) * LINE) {
                prefetch(word);
            }
        }
    }
    let mut ranks = [0; TOGETHER];
    for (((rank_of, line), start), key) in ranks.iter_mut().zip(lines).zip(starts).zip(keys) {
        *rank_of = line * LINE + rank(line_at(words, start + line * LINE), *key);
    }
    ranks
}
