//! Nodes of sorted keys.

use overspill_machine::memory::{CacheLine, prefetch};
use overspill_machine::vectors::Vectors;

/// Number of keys in a line.
pub(crate) const LINE: usize = CacheLine::WORDS;

/// The search in a node of `LINES` lines that begins at line `start`. The last node of all may have fewer lines.
///
/// The search halves the lines by their first keys until one line is left, and compares all keys of that line. It so reads fewer
/// lines than if it compared all keys of the node.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NodeSearch<const LINES: usize> {
    start: usize,
    line: usize,
}

impl<const LINES: usize> NodeSearch<LINES> {
    /// Starts in the node at line `start` and prefetches what is read first.
    #[inline(always)]
    pub(crate) fn new(lines: &[CacheLine], start: usize) -> Self {
        lines.get(start + LINES / 2).into_iter().for_each(prefetch);
        Self { start, line: 0 }
    }

    /// Halves the node's `length` lines that are left, and prefetches what is read next.
    #[inline(always)]
    pub(crate) fn halve(&mut self, lines: &[CacheLine], length: usize, key: u64) {
        let half = length / 2;
        let is_smaller = lines.get(self.start + self.line + half).is_some_and(|line| line.0[0] < key);
        self.line += if is_smaller { half } else { 0 };
        lines.get(self.start + self.line + half / 2).into_iter().for_each(prefetch);
    }

    /// The number of keys of the node that are smaller than `key`, once one line is left.
    #[inline(always)]
    pub(crate) fn rank(&self, lines: &[CacheLine], key: u64, vectors: impl Vectors) -> usize {
        let smaller = lines.get(self.start + self.line).map_or(0, |line| vectors.count_smaller(line, key));
        self.line * LINE + smaller
    }
}

/// Halves the lines of several nodes, a step at a time, until one is left of each.
#[inline(always)]
pub(crate) fn halve_all<const LINES: usize>(searches: &mut [NodeSearch<LINES>], lines: &[CacheLine], keys: &[u64]) {
    let mut length = LINES;
    while length > 1 {
        for (search, key) in searches.iter_mut().zip(keys) {
            search.halve(lines, length, *key);
        }
        length /= 2;
    }
}
