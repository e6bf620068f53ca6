//! The shape of trees over sorted keys.

/// The levels of a tree of nodes with `keys` keys and one child more, over leaves of `keys` sorted keys each. Nodes are full from
/// the left.
#[derive(Debug)]
pub(crate) struct Levels {
    keys: usize,
    /// Number of nodes of each level, from the lowest to the root. Empty if all keys are one leaf.
    counts: Vec<usize>,
}

impl Levels {
    /// The levels over `length` sorted keys.
    pub(crate) fn new(length: usize, keys: usize) -> Self {
        let (mut counts, mut below) = (Vec::new(), length.div_ceil(keys));
        while below > 1 {
            below = below.div_ceil(keys + 1);
            counts.push(below);
        }
        Self { keys, counts }
    }

    /// Number of nodes of all levels.
    pub(crate) fn nodes(&self) -> usize {
        self.counts.iter().sum()
    }

    /// The number of nodes of each level, from the root down, and the number of sorted keys below a child of the level.
    pub(crate) fn down_from_root(&self) -> impl Iterator<Item = (usize, usize)> {
        let below = |level: usize| self.keys * (self.keys + 1).pow(level as u32);
        self.counts.iter().enumerate().rev().map(move |(level, count)| (*count, below(level)))
    }
}

/// Writes the keys of a node to `words`. `node` is the number of the node in its level, and `below` is how many sorted keys lie below
/// each of its children. Key `j` is the smallest key below child `j + 1`.
pub(crate) fn write_node(words: &mut [u64], node: usize, below: usize, sorted: &[u64]) {
    let first = node * (words.len() + 1) + 1;
    for (child, word) in (first..).zip(words) {
        // No key is greater than the largest, so no lookup goes to a child that is not there.
        *word = sorted.get(child * below).copied().unwrap_or(u64::MAX);
    }
}
