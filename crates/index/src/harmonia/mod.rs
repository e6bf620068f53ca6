//! Harmonia (Yan et al., 2019): a B+tree whose nodes lie in one array, and whose children in another.

use overspill_machine::memory::{CacheLine, PageVec, prefetch};
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};
use overspill_machine::{Error, Result};

use crate::keys::SortedKeys;
use crate::levels::{Levels, write_node};
use crate::node::{LINE, NodeSearch, halve_all};
use crate::search::{IndexParts, Search, TOGETHER};

/// Lines of a node.
const LINES: usize = 4;

/// Keys of a node: as many as a warp has threads (section 3.2).
const KEYS: usize = LINES * LINE;

/// A B+tree over runs of sorted keys. The *key region* has its nodes, level by level from the root on; the *child region* has the
/// number of each node's first child, so that a node has no pointers and what a lookup reads of it is a few lines in order. Groups
/// of threads of a GPU compare a key with a node together.
#[derive(Debug)]
pub struct Harmonia {
    key_region: PageVec<CacheLine>,
    /// The first child of each node: a node, or for nodes of the lowest level a run of `KEYS` sorted keys.
    child_region: PageVec<u32>,
    levels: usize,
}

impl Harmonia {
    /// Builds the nodes over sorted keys. `O(n / 32)`.
    ///
    /// # Errors
    /// If the system does not provide the memory, or there are over 2^37 keys.
    pub fn new(sorted: &SortedKeys) -> Result<Self> {
        let shape = Levels::new(sorted.len(), KEYS);
        let mut key_region = PageVec::<CacheLine>::zeroed(shape.nodes() * LINES)?;
        let mut child_region = PageVec::<u32>::zeroed(shape.nodes())?;
        let levels = shape.down_from_root().count();
        let mut node = 0;
        for (level, (count, below)) in shape.down_from_root().enumerate() {
            // Nodes of the level below follow those of this one; runs are numbered from 0.
            let children = if level + 1 < levels { node + count } else { 0 };
            for number in 0..count {
                child_region[node] = u32::try_from(children + number * (KEYS + 1))
                    .map_err(|_| Error::Invalid(format!("{} keys are too many for Harmonia", sorted.len())))?;
                let words = CacheLine::words_mut(&mut key_region[node * LINES..(node + 1) * LINES]);
                write_node(words, number, below, sorted);
                node += 1;
            }
        }
        Ok(Self { key_region, child_region, levels })
    }
}

impl Search for Harmonia {
    fn lower_bounds(&self, sorted: &SortedKeys, keys: &[u64], places: &mut [usize]) {
        with_widest_vectors(Descent { tree: self, runs: sorted.lines(), keys, places: &mut places[..keys.len()] });
    }

    fn bytes(&self) -> usize {
        self.key_region.bytes() + self.child_region.bytes()
    }

    fn parts(&self) -> IndexParts<'_> {
        let Self { key_region, child_region, levels } = self;
        IndexParts::Harmonia { key_region: CacheLine::words(key_region), child_region, levels: *levels }
    }
}

/// Goes from the root to the runs.
struct Descent<'a> {
    tree: &'a Harmonia,
    runs: &'a [CacheLine],
    keys: &'a [u64],
    places: &'a mut [usize],
}

impl VectorLoop for Descent<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vectors: impl Vectors) {
        let Self { tree, runs, keys, places } = self;
        let key_region = &tree.key_region[..];
        for (keys, places) in keys.chunks(TOGETHER).zip(places.chunks_mut(TOGETHER)) {
            // The place of a key is that of a node until it is that in a run.
            places.fill(0);
            let mut searches = [NodeSearch::<LINES>::default(); TOGETHER];
            for level in 1..=tree.levels {
                halve_all(&mut searches, key_region, keys);
                let below = if level < tree.levels { key_region } else { runs };
                for ((search, key), node) in searches.iter_mut().zip(keys).zip(&mut *places) {
                    *node = tree.child_region[*node] as usize + search.rank(key_region, *key, vectors);
                    tree.child_region.get(*node).into_iter().for_each(prefetch);
                    *search = NodeSearch::new(below, *node * LINES);
                }
            }
            halve_all(&mut searches, runs, keys);
            for ((search, key), place) in searches.iter().zip(keys).zip(&mut *places) {
                *place = *place * KEYS + search.rank(runs, *key, vectors);
            }
        }
    }
}
