//! A B+tree without pointers.

use overspill_machine::Result;
use overspill_machine::memory::{CacheLine, PageVec};
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};

use crate::keys::SortedKeys;
use crate::levels::{Levels, write_node};
use crate::node::{LINE, NodeSearch, halve_all};
use crate::search::{IndexParts, Search, TOGETHER};

/// A B+tree whose leaves are the sorted keys. A node has `LINES` lines of keys, a power of two. With 1 line a lookup reads the fewest
/// lines of memory. With 64 lines (4 KiB) it is the tree of the paper (section 3.2).
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
    pub fn new(sorted: &SortedKeys) -> Result<Self> {
        const { assert!(LINES.is_power_of_two(), "the lines of a node are halved until one is left") };
        let shape = Levels::new(sorted.len(), Self::KEYS);
        let mut nodes = PageVec::<CacheLine>::zeroed(shape.nodes() * LINES)?;
        let mut levels = Vec::new();
        let mut first = 0;
        for (count, below) in shape.down_from_root() {
            levels.push(first);
            let words = CacheLine::words_mut(&mut nodes[first * LINES..(first + count) * LINES]);
            for (node, words) in words.chunks_mut(Self::KEYS).enumerate() {
                write_node(words, node, below, sorted);
            }
            first += count;
        }
        Ok(Self { nodes, levels })
    }
}

impl<const LINES: usize> Search for BTree<LINES> {
    fn lower_bounds(&self, sorted: &SortedKeys, keys: &[u64], places: &mut [usize]) {
        with_widest_vectors(Descent { tree: self, leaves: sorted.lines(), keys, places: &mut places[..keys.len()] });
    }

    fn bytes(&self) -> usize {
        self.nodes.bytes()
    }

    fn parts(&self) -> IndexParts<'_> {
        IndexParts::BTree { nodes: CacheLine::words(&self.nodes), node_keys: Self::KEYS, levels: &self.levels }
    }
}

/// Goes from the root to the leaves.
struct Descent<'a, const LINES: usize> {
    tree: &'a BTree<LINES>,
    leaves: &'a [CacheLine],
    keys: &'a [u64],
    places: &'a mut [usize],
}

impl<const LINES: usize> VectorLoop for Descent<'_, LINES> {
    type Output = ();

    #[inline(always)]
    fn run(self, vectors: impl Vectors) {
        let Self { tree, leaves, keys, places } = self;
        for (keys, places) in keys.chunks(TOGETHER).zip(places.chunks_mut(TOGETHER)) {
            // The place of a key is that of a node until it is that in a leaf.
            places.fill(0);
            let mut searches = [NodeSearch::<LINES>::default(); TOGETHER];
            for (level, _) in tree.levels.iter().enumerate() {
                halve_all(&mut searches, &tree.nodes, keys);
                let (below, first) = match tree.levels.get(level + 1) {
                    Some(first) => (&tree.nodes[..], *first),
                    None => (leaves, 0),
                };
                for ((search, key), node) in searches.iter_mut().zip(keys).zip(&mut *places) {
                    *node = *node * BTree::<LINES>::FANOUT + search.rank(&tree.nodes, *key, vectors);
                    *search = NodeSearch::new(below, (first + *node) * LINES);
                }
            }
            halve_all(&mut searches, leaves, keys);
            for ((search, key), place) in searches.iter().zip(keys).zip(&mut *places) {
                *place = *place * BTree::<LINES>::KEYS + search.rank(leaves, *key, vectors);
            }
        }
    }
}
